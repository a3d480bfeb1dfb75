r"""Log-sum-exp and softmax averages, chunk by chunk: bounded memory, one sweep, any order of merging.

The state of a sum of exponentials is a pair: the largest term's exponent and the sum relative to it. Pairs of two
chunks merge exactly as if the chunks had been read together, so a long axis can be read in chunks, as a stream, or in
shards. Carrying the pair costs no accuracy; folding finished log-sum-exps would. Derivation, error bound and what goes
wrong otherwise: :doc:`/logsumexp`.

Conventions: natural logarithms; sums and maxima are held in float32 at least; ``-inf`` is a term that is absent.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat

from . import _backend

__all__ = ["Accumulator", "average", "finish", "logsumexp", "merge", "softmax_average", "start", "update"]

Array = Any

CHUNK_ELEMENTS = 2**21
"""Elements in an automatic chunk: fastest for NumPy on 2,048 rows, 8 MB of float32."""

SHORTEST_CHUNK = 128
"""Shortest automatic chunk, whatever the batch."""

LAZY_CHUNK = 1024
"""Automatic chunk when scores are computed on demand and the batch is not known."""


class Accumulator(NamedTuple):
    r"""State of a sum of exponentials, the triple of :eq:`logsumexp-state`; an element of the monoid of `merge`.

    Attributes
    ----------
    max : array
        Largest score so far, shape (...); ``-inf`` for an empty sum.
    sum : array
        Sum of ``exp(score - max)``, shape (...); where `max` is inf, the number of scores of inf.
    weighted : array or None
        Sum of ``exp(score - max) * value``, shape (..., d); None where no values are averaged.

    See Also
    --------
    start : The empty state.
    update : Add a chunk.
    merge : Join two states.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import finish, merge, start, update
    >>> left = update(start(np.zeros(())), np.array([0.0, 1.0]))
    >>> right = update(start(np.zeros(())), np.array([1000.0, -np.inf]))
    >>> float(finish(merge(left, right)))
    1000.0
    """

    max: Array
    sum: Array
    weighted: Array | None = None


def logsumexp(x: Array, /, *, axis: int | tuple[int, ...] | None = -1, chunk: int | None = None) -> Array:
    r"""Logarithm of the sum of exponentials along `axis`, :eq:`logsumexp-definition`.

    Parameters
    ----------
    x : array
        Real numbers of any shape, infinite ones included.
    axis : int, tuple of int or None, optional
        Axes to sum over; None for all of them.
    chunk : int or None, optional
        Number of elements of the axis (of the axes, flattened) read at a time, >= 1. None chooses about two million
        elements in all.

    Returns
    -------
    array
        `x` without the summed axes, in the dtype of `x`: ``-inf`` where all terms are ``-inf`` or there are none, inf
        where one is, NaN where one is.

    Raises
    ------
    ValueError
        If an axis does not exist or is repeated, or `chunk` is not an integer >= 1.
    TypeError
        If `x` is not real.

    See Also
    --------
    softmax_average : Averages under the softmax, without the softmax.
    finish : The same from an accumulator.

    Notes
    -----
    Error bound: :eq:`logsumexp-bound`. One sweep; temporaries are one or two chunks, :eq:`logsumexp-memory`. Axes that
    are not adjacent and last are copied if they are several. The gradient is the softmax, :eq:`logsumexp-gradient`, and
    zero in rows without a largest finite score; it needs memory for its result and one more array of that size.

    References
    ----------
    Blanchard, Higham and Higham, "Accurately computing the log-sum-exp and softmax functions", IMA J. Numer. Anal. 41
    (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import logsumexp
    >>> float(logsumexp(np.array([1000.0, 1000.0])) - np.log(2))
    1000.0
    >>> logsumexp(np.log([[1.0, 2.0], [3.0, 4.0]]), axis=0, chunk=1).round(4)
    array([1.3863, 1.7918])
    """
    x, axis = _one_axis(_backend.asfloat(x), axis)
    xp, n = _backend.namespace(x), x.shape[axis]
    batch = x.shape[:axis] + x.shape[axis + 1 :]
    size = _chunk_size(chunk, n, math.prod(batch))
    if n == 0:
        return xp.full(batch, -math.inf, dtype=x.dtype, device=array_api_compat.device(x))

    def sweep(x: Array) -> tuple[Array, ...]:
        return _sweep(lambda begin, length: _of_chunk(_backend.slice_axis(x, begin, length, axis), None, axis), n, size)

    def whole(state: tuple[Array, ...], x: Array) -> tuple[Array, ...]:
        return _relative_to(state[0], x, None, axis)

    return xp.astype(finish(Accumulator(*_backend.differentiate_as(sweep, whole, x))), x.dtype, copy=False)


def softmax_average(scores: Array | Callable[[Array], Array], values: Array, /, *, chunk: int | None = None) -> Array:
    r"""Average of `values` with weights ``softmax(scores)`` in one sweep, :eq:`logsumexp-average`.

    Parameters
    ----------
    scores : array or callable
        Real scores, shape (..., N); or ``scores(rows) -> array (..., c)``, which computes the scores of a chunk `rows`
        of `values`, so that (..., N) scores never exist.
    values : array
        Shape (N, d), or (..., N, d) with leading axes that broadcast against those of the scores.
    chunk : int or None, optional
        Number of scores of a row handled at a time, >= 1. None chooses about two million scores in all (1,024 of each
        row for a callable).

    Returns
    -------
    array
        Shape (..., d), library and dtype of the scores. A score of ``-inf`` has no weight; scores of +inf share all of
        it. NaN in rows whose scores are all ``-inf``: there is nothing to average.

    Raises
    ------
    ValueError
        If the shapes do not fit, N is 0, or `chunk` is not an integer >= 1.
    TypeError
        If an array is not real.

    See Also
    --------
    logsumexp : The logarithm of the weights' sum.
    update : For streams and for several averages under the same weights.

    Notes
    -----
    Error bound: :eq:`logsumexp-average-bound`. Memory: the result and one or two chunks of scores. The derivatives,
    :eq:`logsumexp-average-gradient`, materialise an array of scores once more; with a callable, JAX recomputes the
    chunks instead. The matrix product runs at the precision which the array library is set to. Under ``jax.jit`` scores
    that end in a multiplication may be fused with the subtraction of their maximum, which then is that of numbers
    rounded otherwise: an error of a rounding unit of the largest score, which is all of it from 1e18 (float32: 1e10).

    References
    ----------
    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018). Rabe and Staats, "Self-attention does
    not need O(n^2) memory" (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import softmax_average
    >>> softmax_average(np.log([1.0, 3.0]), np.array([[0.0, 4.0], [8.0, 0.0]]), chunk=1)
    array([6., 1.])
    """
    values = _backend.asfloat(values, "values")
    if values.ndim < 2 or values.shape[-2] == 0:
        msg = f"values must have shape (..., N, d) with N >= 1, got {tuple(values.shape)}"
        raise ValueError(msg)
    n = values.shape[-2]
    if callable(scores):
        return _lazy_average(scores, values, n, _chunk_size(chunk, n, CHUNK_ELEMENTS // LAZY_CHUNK))
    given = _backend.asfloat(scores, "scores")
    _check_shapes(given, values)
    given, values = _beside(given, values), _beside(values, given)

    def sweep(scores: Array, values: Array) -> tuple[Array, ...]:
        def read(begin: Any, length: int) -> Accumulator:
            rows = _backend.slice_axis(values, begin, length, -2)
            return _of_chunk(_backend.slice_axis(scores, begin, length, -1), rows, -1)

        return _sweep(read, n, _chunk_size(chunk, n, math.prod(scores.shape[:-1])))

    def whole(state: tuple[Array, ...], scores: Array, values: Array) -> tuple[Array, ...]:
        return _relative_to(state[0], scores, values, -1)

    mean = average(Accumulator(*_backend.differentiate_as(sweep, whole, given, values)))
    return _backend.namespace(mean).astype(mean, given.dtype, copy=False)


def start(like: Array, /, *, features: int | None = None) -> Accumulator:
    r"""Empty sum, the neutral element of :eq:`logsumexp-merge`.

    Parameters
    ----------
    like : array
        One element for each sum: the shape, library and dtype of what the sums are of.
    features : int or None, optional
        Number d of columns of the values to average; None where only the log-sum-exp is wanted.

    Returns
    -------
    Accumulator
        A state that holds no terms.

    See Also
    --------
    update : Add a chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import finish, start
    >>> finish(start(np.zeros(2)))
    array([-inf, -inf])
    """
    like = _backend.asfloat(like, "like")
    xp, dtype = _backend.namespace(like), _backend.state_dtype(like)
    zeros = xp.zeros_like(like, dtype=dtype)
    nothing = xp.full_like(like, -math.inf, dtype=dtype)
    if features is None:
        return Accumulator(nothing, zeros)
    sums = xp.zeros((*like.shape, features), dtype=dtype, device=array_api_compat.device(like))
    return Accumulator(nothing, zeros, sums)


def update(state: Accumulator, scores: Array, values: Array | None = None, /) -> Accumulator:
    r"""State with one more chunk of terms: :eq:`logsumexp-merge` with the state of the chunk.

    Parameters
    ----------
    state : Accumulator
        Sums of shape (...).
    scores : array
        Further scores, shape (..., c); c may be 0.
    values : array or None, optional
        Their values, shape (c, d) or (..., c, d); given exactly if the state averages values.

    Returns
    -------
    Accumulator
        The new state.

    Raises
    ------
    ValueError
        If `values` are missing or not expected.

    See Also
    --------
    merge : Join two states.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import average, start, update
    >>> state = start(np.zeros(()), features=1)
    >>> state = update(state, np.log([1.0, 3.0]), np.array([[0.0], [8.0]]))
    >>> average(update(state, np.log([4.0]), np.array([[2.0]])))
    array([4.])
    """
    if (values is None) != (state.weighted is None):
        msg = f"values must be given exactly if the state averages values, got {values!r} for {state.weighted!r}"
        raise ValueError(msg)
    if scores.shape[-1] == 0:
        return state
    return merge(state, _of_chunk(scores, values, -1))


def merge(a: Accumulator, b: Accumulator, /) -> Accumulator:
    r"""State of all terms of two states, :eq:`logsumexp-merge`: associative and commutative, up to rounding.

    Parameters
    ----------
    a, b : Accumulator
        States of equal or broadcastable shape.

    Returns
    -------
    Accumulator
        Their union.

    See Also
    --------
    update : The same with a chunk of scores.

    Notes
    -----
    Two exponentials for each sum; the factor of the side with the larger maximum is exactly 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import Accumulator, merge
    >>> a, b = (Accumulator(np.asarray(m), np.asarray(1.0)) for m in (0.0, 50.0))
    >>> float(merge(a, b).max)
    50.0
    """
    xp = _backend.namespace(a.max, b.max)
    top = xp.maximum(a.max, b.max)
    left, right = _share(a.max, top), _share(b.max, top)
    total = left * a.sum + right * b.sum
    if a.weighted is None or b.weighted is None:
        return Accumulator(top, total)
    return Accumulator(top, total, left[..., None] * a.weighted + right[..., None] * b.weighted)


def finish(state: Accumulator, /) -> Array:
    r"""Log-sum-exp of a state, :eq:`logsumexp-finish`.

    Parameters
    ----------
    state : Accumulator
        Sums of shape (...).

    Returns
    -------
    array
        Shape (...), in the dtype of the state; ``-inf`` where there are no terms.

    See Also
    --------
    average : The average of the values.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import Accumulator, finish
    >>> float(finish(Accumulator(np.asarray(-1e300), np.asarray(1.0))))
    -1e+300
    """
    xp = _backend.namespace(state.max)
    empty = state.sum == 0
    return xp.where(empty, -math.inf, state.max + xp.log(xp.where(empty, 1.0, state.sum)))


def average(state: Accumulator, /) -> Array:
    r"""Average of the values under the softmax of the scores, :eq:`logsumexp-average`, from a state.

    Parameters
    ----------
    state : Accumulator
        Sums of shape (...) with weighted values.

    Returns
    -------
    array
        Shape (..., d), in the dtype of the state; NaN where there are no terms.

    Raises
    ------
    ValueError
        If the state holds no values.

    See Also
    --------
    finish : The log-sum-exp.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.logsumexp import Accumulator, average
    >>> average(Accumulator(np.asarray(7.0), np.asarray(2.0), np.asarray([3.0, 5.0])))
    array([1.5, 2.5])
    """
    if state.weighted is None:
        msg = "state must hold weighted values, got weighted=None (start it with features)"
        raise ValueError(msg)
    xp = _backend.namespace(state.sum)
    empty = (state.sum == 0)[..., None]
    return xp.where(empty, math.nan, state.weighted / xp.where(empty, 1.0, state.sum[..., None]))


def _share(m: Array, top: Array) -> Array:
    """``exp(m - top)`` of a maximum that is not above `top`: 1 where they are equal, infinities too."""
    xp = _backend.namespace(m, top)
    same, zero = m == top, xp.zeros_like(top)
    return xp.exp(xp.where(same, zero, m) - xp.where(same, zero, top))


def _of_chunk(scores: Array, values: Array | None, axis: int) -> Accumulator:
    xp = _backend.namespace(scores)
    peak = xp.astype(xp.max(_backend.constant(scores), axis=axis), _backend.state_dtype(scores), copy=False)
    return Accumulator(*_relative_to(peak, scores, values, axis))


def _relative_to(peak: Array, scores: Array, values: Array | None, axis: int) -> tuple[Array, ...]:
    """Maximum, sum and weighted sum of a chunk whose maximum is known; no derivative is taken of the maximum."""
    xp = _backend.namespace(scores)
    scores, top = xp.astype(scores, peak.dtype, copy=False), xp.expand_dims(peak, axis=axis)
    endless, zero = top == math.inf, xp.zeros_like(top)
    if not array_api_compat.is_numpy_array(endless) or endless.any():
        # beside a score of inf nothing else has a weight, however large
        scores = xp.where(endless, xp.where(scores == math.inf, zero, zero - math.inf), scores)
    terms = _backend.exp_of_temporary(scores - xp.where(xp.isinf(top), zero, top))
    total = xp.sum(terms, axis=axis)
    if values is None:
        return peak, total
    rows = xp.astype(_beside(values, scores), peak.dtype, copy=False)
    if rows.ndim == 2:
        return peak, total, terms @ rows
    return peak, total, xp.squeeze(terms[..., None, :] @ rows, axis=-2)


def _sweep(read: Callable[[Any, int], Accumulator], n: int, size: int) -> tuple[Array, ...]:
    """Merged state of all chunks; the ragged chunk comes first, so that nothing is ever padded."""
    first = (n - 1) % size + 1
    state = read(0, first)
    if first < n:
        like = state.sum
        starts = _backend.namespace(like).arange(first, n, size) if _backend.is_jax(like) else range(first, n, size)
        state, _ = _backend.scan(lambda state, begin: (merge(state, read(begin, size)), None), state, starts, like)
    return tuple(part for part in state if part is not None)


def _lazy_average(scores: Callable[[Array], Array], values: Array, n: int, size: int) -> Array:
    head = _backend.asfloat(scores(_backend.slice_axis(values, 0, 1, -2)), "scores")
    values = _beside(values, head)

    def read(begin: Any, length: int) -> Accumulator:
        rows = _backend.slice_axis(values, begin, length, -2)
        return _of_chunk(_beside(_backend.asfloat(scores(rows), "scores"), rows), rows, -1)

    mean = average(Accumulator(*_sweep(read, n, size)))
    return _backend.namespace(mean).astype(mean, head.dtype, copy=False)


def _beside(a: Any, b: Any) -> Any:
    """`a` in the library of `b`, where `a` is the NumPy array of the two."""
    xp = _backend.namespace(a, b)
    return a if _backend.namespace(a) is xp else _backend.convert(a, b, _backend.state_dtype(b))


def _chunk_size(chunk: int | None, n: int, batch: int) -> int:
    if chunk is None:
        return max(SHORTEST_CHUNK, CHUNK_ELEMENTS // max(batch, 1))
    try:
        size = operator.index(chunk)
    except TypeError:
        size = 0
    if size < 1 or isinstance(chunk, bool):
        msg = f"chunk must be an integer >= 1 or None, got {chunk!r}"
        raise ValueError(msg)
    return min(size, max(n, 1))


def _one_axis(x: Array, axis: int | tuple[int, ...] | None) -> tuple[Array, int]:
    """`x` with the axes to be summed joined into one, and that axis, counted from the start."""
    xp = _backend.namespace(x)
    if axis is None:
        return xp.reshape(x, (-1,)), 0
    axes = axis if isinstance(axis, tuple) else (axis,)
    try:
        picked = [range(x.ndim)[operator.index(a)] for a in axes]
    except (TypeError, IndexError):
        picked = []
    if not picked or len(set(picked)) < len(picked):
        msg = f"axis must be distinct axes of an array of {x.ndim} dimensions, got {axis!r}"
        raise ValueError(msg)
    if len(picked) == 1:
        return x, picked[0]
    kept = [a for a in range(x.ndim) if a not in picked]
    shape = (*(x.shape[a] for a in kept), math.prod(x.shape[a] for a in picked))
    return xp.reshape(xp.permute_dims(x, (*kept, *picked)), shape), len(kept)


def _check_shapes(scores: Array, values: Array) -> None:
    fits = scores.ndim >= 1 and scores.shape[-1] == values.shape[-2]
    for a, b in zip(reversed(scores.shape[:-1]), reversed(values.shape[:-2]), strict=False):
        fits = fits and (a == b or 1 in (a, b))
    if not fits:
        shapes = f"{tuple(scores.shape)} and {tuple(values.shape)}"
        msg = f"scores and values must have shapes (..., N) and (..., N, d), got {shapes}"
        raise ValueError(msg)
