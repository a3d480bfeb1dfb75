"""Logarithms of probabilities: 0 is -inf, both tails keep their digits, and no derivative is NaN."""

from __future__ import annotations

import math

from diffnum._backend import Array, namespace

__all__ = ["log1mexp", "log_of", "log_sum", "logaddexp", "softplus"]


def log_of(p: Array) -> Array:
    """``log(p)``; -inf with derivative 0 at 0.

    Parameters
    ----------
    p : array
        Numbers >= 0.

    Returns
    -------
    array
        Logarithms.
    """
    xp = namespace(p)
    zero = p == 0.0
    return xp.where(zero, xp.full_like(p, -math.inf), xp.log(xp.where(zero, xp.ones_like(p), p)))


def log1mexp(x: Array) -> Array:
    """``log(1 - exp(x))``: -inf at 0, 0 at -inf.

    Parameters
    ----------
    x : array
        Numbers <= 0.

    Returns
    -------
    array
        Logarithms.
    """
    xp = namespace(x)
    zero, near = x == 0.0, x > -math.log(2.0)
    close = xp.log(-xp.expm1(xp.where(near & ~zero, x, xp.full_like(x, -1.0))))
    far = xp.log1p(-xp.exp(xp.where(near, xp.full_like(x, -1.0), x)))
    return xp.where(zero, xp.full_like(x, -math.inf), xp.where(near, close, far))


def logaddexp(a: Array, b: Array) -> Array:
    """``log(exp(a) + exp(b))``; -inf where both are, with finite derivatives everywhere.

    Parameters
    ----------
    a, b : array
        Logarithms, below +inf, that broadcast.

    Returns
    -------
    array
        Logarithms of the sums.
    """
    xp = namespace(a, b)
    top, low = xp.maximum(a, b), xp.minimum(a, b)
    alone = low == -math.inf
    gap = xp.where(alone, xp.zeros_like(low), low) - xp.where(alone, xp.zeros_like(top), top)
    return top + xp.where(alone, xp.zeros_like(gap), xp.log1p(xp.exp(gap)))


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))``.

    Parameters
    ----------
    x : array
        Numbers, perhaps infinite.

    Returns
    -------
    array
        Values >= 0.
    """
    xp = namespace(x)
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-abs(x)))


def log_sum(x: Array) -> Array:
    """Logarithm of the sum of exponentials over the last axis, which stays with length 1; -inf where all are.

    Parameters
    ----------
    x : array
        Logarithms, below +inf.

    Returns
    -------
    array
        One for each row.
    """
    xp = namespace(x)
    top = xp.max(x, axis=-1, keepdims=True)
    empty = top == -math.inf
    shift = xp.where(empty, xp.zeros_like(top), top)
    return shift + log_of(xp.sum(xp.exp(x - shift), axis=-1, keepdims=True))
