"""Random events from 32-bit words: what is rare happens as often as it should, and what is impossible never does.

A word k stands for the uniform ``(k + 1/2)/2^32``, which is never 0 and keeps all its digits near 0. So comparisons are
made on the side of the smaller probability, and logarithms are taken of numbers near 1, by ``log1p``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffnum._backend import Array, beside, cast, is_jax, namespace, random_words

__all__ = ["alias_table", "happens", "integers", "race", "unit"]

_WORD = 2.0**-32
"""Spacing of the uniforms."""


def unit(words: Array, dtype: Any) -> Array:
    """Uniforms ``(k + 1/2)/2^32`` in (0, 1]; their relative accuracy is that of `dtype` down to 2^-33.

    Parameters
    ----------
    words : array of int
        Words k.
    dtype : dtype
        Floating-point dtype.

    Returns
    -------
    array
        Numbers.
    """
    return (namespace(words).astype(words, dtype) + 0.5) * _WORD


def happens(words: Array, p: Array, rest: Array) -> Array:
    """Events of probability `p`, compared on the smaller side of `p` and ``rest = 1 - p``: 0 never, 1 always.

    Parameters
    ----------
    words : array of int
        One word for each event.
    p, rest : array
        Probabilities, floating point.

    Returns
    -------
    array of bool
        Whether it happens.
    """
    xp = namespace(words, p)
    rare = p <= rest
    hit = unit(words, p.dtype) < xp.where(rare, p, rest)
    return hit == rare


def integers(words: Array, count: int) -> Array:
    """``floor(k count/2^32)``: integers below `count`, each with probability ``1/count`` to within 2^-32.

    Parameters
    ----------
    words : array of int
        Words k.
    count : int
        Between 1 and 2^31.

    Returns
    -------
    array of int32 or int64
        Integers; of the default integer dtype of JAX.
    """
    xp = namespace(words)
    if not is_jax(words):
        return (words * count) >> 32
    # the upper half of a product of 32-bit numbers from four products of 16-bit ones, none of which overflows
    high, low = words >> 16, words & 0xFFFF
    upper, lower = divmod(count, 1 << 16)
    middle = high * lower + ((low * lower) >> 16)
    carry = low * upper + (middle & 0xFFFF)
    return xp.astype(high * upper + (middle >> 16) + (carry >> 16), int)


def race(words: Array, log_p: Array) -> Array:
    """Class that wins the race of exponential clocks: ``argmax(log p - log E)``, with ``E = -log1p(-u)``.

    Parameters
    ----------
    words : array of int, shape (..., K)
        One word for each class.
    log_p : array, shape (..., K)
        Logarithms of probabilities, up to a constant; -inf never wins.

    Returns
    -------
    array of int, shape (...,)
        Classes.
    """
    xp = namespace(words, log_p)
    u = unit(words, log_p.dtype)
    below_one = 1.0 - 0.5 * float(xp.finfo(log_p.dtype).eps)
    clocks = -xp.log1p(-xp.minimum(u, xp.full_like(u, below_one)))
    return xp.argmax(log_p - xp.log(clocks), axis=-1)


def alias_table(law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's tables: column v is accepted with a probability, else replaced by one other class.

    Parameters
    ----------
    law : array, shape (K,)
        Probabilities.

    Returns
    -------
    tuple of array
        Acceptance probabilities and substitutes.
    """
    k = len(law)
    accept = (np.asarray(law, dtype=float) / np.sum(law, dtype=float) * k).tolist()
    other = list(range(k))
    small = [v for v in range(k) if accept[v] < 1.0]
    large = [v for v in range(k) if accept[v] >= 1.0]
    while small and large:
        low, high = small.pop(), large[-1]
        other[low] = high
        accept[high] -= 1.0 - accept[low]
        if accept[high] < 1.0:
            small.append(large.pop())
    # what is left is 1 up to rounding
    for v in [*small, *large]:
        accept[v], other[v] = 1.0, v
    return np.asarray(accept), np.asarray(other)


def from_table(rng: Any, row: int, like: Array, law: np.ndarray, dtype: Any) -> Array:
    """Draws from a law by `alias_table`, two words each.

    Parameters
    ----------
    rng : see `diffnum._backend.random_words`
        Source.
    row : int
        Number of the first of two draws.
    like : array
        Shape and library.
    law : array, shape (K,)
        Probabilities.
    dtype : dtype
        dtype in which probabilities are compared.

    Returns
    -------
    array of int
        Classes.
    """
    xp = namespace(like)
    accept, other = alias_table(law)
    column = integers(random_words(rng, row, like), len(law))
    flat = xp.reshape(column, (-1,))
    p, rest = (
        xp.reshape(xp.take(cast(beside(a, like), dtype), flat, axis=0), like.shape) for a in (accept, 1.0 - accept)
    )
    substitute = xp.reshape(xp.take(beside(other, like), flat, axis=0), like.shape)
    stays = happens(random_words(rng, row + 1, like), p, rest)
    return xp.where(stays, column, cast(substitute, column.dtype))
