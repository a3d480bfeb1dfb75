"""Other questions to the logits of a linear layer, asked block by block: averages, entropy, largest classes, draws.

All take hidden states (..., d) and a weight (V, d), and hold a block of logits at a time. Equations:
:doc:`/cross_entropy`.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from . import _backend
from ._blocks import BUDGET, over
from ._linear_cross_entropy import logits, statistics
from ._linear_loss import prepare
from .logsumexp import average, start, update

__all__ = ["TopK", "argmax", "entropy", "sample", "softmax_embed", "top_k"]

Array = Any


class TopK(NamedTuple):
    r"""The most probable classes of :eq:`cross_entropy-logits`, in falling order.

    Attributes
    ----------
    log_prob : array
        Logarithms of their probabilities, shape (..., k); NaN where a logit is NaN or all are -inf.
    classes : array of int
        Their numbers; -1 where fewer than k classes have a probability above 0, or where it is NaN. Equal ones: the
        smaller number first.
    """

    log_prob: Array
    classes: Array


def softmax_embed(
    hidden: Array,
    weight: Array,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    chunk: int | tuple[int, int] | None = None,
) -> Array:
    r"""Average of the rows of `weight` under the softmax of the logits, :eq:`cross_entropy-embed`, in one sweep.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states.
    weight : array, shape (V, d)
        Vocabulary matrix, for the logits and for the average.
    bias, softcap, logit_scale, chunk : optional
        As in `linear_cross_entropy`.

    Returns
    -------
    array
        Shape, library and dtype of `hidden`.

    See Also
    --------
    diffnum.logsumexp.softmax_average : The same for scores that are given.

    Notes
    -----
    Two products, where the softmax as an array needs them too and a log-sum-exp first needs three. JAX differentiates
    the sweep, in any mode, and recomputes the logits.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import softmax_embed
    >>> softmax_embed(np.array([np.log(3.0)]), np.array([[1.0], [0.0]]), chunk=(1, 1))
    array([0.75])
    """
    problem = prepare(hidden, weight, None, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=chunk)
    layer, inputs = problem.layer, problem.inputs

    def block(out: Array, row: Any, rows: int) -> Array:
        h = _backend.slice_axis(inputs.hidden, row, rows, 0)

        def classes(state: Any, column: Any, columns: int) -> Any:
            z = logits(layer, inputs, None, h, (column, columns)).T
            return update(state, z, _backend.slice_axis(inputs.weight, column, columns, 0))

        empty = start(_backend.filled(inputs.hidden, rows, 0.0, layer.dtype), features=inputs.weight.shape[1])
        mean = average(over(inputs.weight.shape[0], layer.blocks.vocabulary, classes, empty, inputs.hidden))
        return _backend.write(out, row, _backend.cast(mean, inputs.hidden.dtype))

    out = _backend.filled(inputs.hidden, tuple(inputs.hidden.shape), 0.0, inputs.hidden.dtype)
    out = over(inputs.hidden.shape[0], layer.blocks.tokens, block, out, inputs.hidden)
    return _backend.namespace(out).reshape(out, (*problem.shape, inputs.hidden.shape[1]))


def entropy(
    hidden: Array,
    weight: Array,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    chunk: int | tuple[int, int] | None = None,
    accumulate: str | None = None,
) -> Array:
    r"""Entropy of the softmax of the logits, :eq:`cross_entropy-entropy`, in nats.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states.
    weight : array, shape (V, d)
        Vocabulary matrix.
    bias, softcap, logit_scale, chunk, accumulate : optional
        As in `linear_cross_entropy`.

    Returns
    -------
    array
        Shape (...), in the dtype of sums: between 0 and log V; NaN where a logit is NaN or all are -inf.

    Notes
    -----
    One product. Sums are held relative to the maximum, so large logits cost no digits.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import entropy
    >>> float(np.exp(entropy(np.zeros(3), np.ones((7, 3)), chunk=(1, 2))).round(12))
    7.0
    """
    problem = prepare(
        hidden, weight, None, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=chunk, accumulate=accumulate
    )
    layer, inputs = problem.layer, problem.inputs
    xp = _backend.namespace(inputs.hidden)

    def block(out: Array, row: Any, rows: int) -> Array:
        h = _backend.slice_axis(inputs.hidden, row, rows, 0)

        def classes(state: Any, column: Any, columns: int) -> Any:
            peak, total, moment = state
            z = logits(layer, inputs, None, h, (column, columns)).T
            top = xp.maximum(peak, xp.max(_backend.constant(z), axis=1))
            fall = xp.where(z == -math.inf, xp.zeros_like(z), z - top[:, None])
            e = xp.where(z == -math.inf, xp.zeros_like(z), xp.exp(fall))
            kept = xp.exp(peak - top)
            moment = kept * (moment + (peak - top) * total) + xp.sum(e * fall, axis=1)
            return top, kept * total + xp.sum(e, axis=1), moment

        def full(value: float) -> Array:
            return _backend.filled(inputs.hidden, rows, value, layer.dtype)

        empty = (full(float(xp.finfo(layer.dtype).min)), full(0.0), full(0.0))
        _, total, moment = over(inputs.weight.shape[0], layer.blocks.vocabulary, classes, empty, inputs.hidden)
        total = xp.where(total == 0, math.nan, total)
        return _backend.write(out, row, xp.log(total) - moment / total)

    out = _backend.filled(inputs.hidden, inputs.hidden.shape[0], 0.0, layer.dtype)
    return xp.reshape(over(inputs.hidden.shape[0], layer.blocks.tokens, block, out, inputs.hidden), problem.shape)


def argmax(
    hidden: Array,
    weight: Array,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    chunk: int | tuple[int, int] | None = None,
) -> Array:
    r"""First class with the largest logit, :eq:`cross_entropy-logits`.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states.
    weight : array, shape (V, d)
        Vocabulary matrix.
    bias, softcap, logit_scale, chunk : optional
        As in `linear_cross_entropy`.

    Returns
    -------
    array of int
        Shape (...); -1 where a logit is NaN or all are -inf.

    See Also
    --------
    top_k : More of them, with their probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import argmax
    >>> argmax(np.eye(2), np.array([[1.0, 0.0], [2.0, 3.0], [0.0, 3.0]]), chunk=(1, 2)).tolist()
    [1, 1]
    """
    problem = prepare(hidden, weight, None, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=chunk, top=True)
    found = statistics(problem.layer, problem.inputs, problem.constants)
    xp = _backend.namespace(found.top)
    return xp.reshape(xp.where(found.sum > 0, found.top, xp.full_like(found.top, -1)), problem.shape)


def top_k(
    hidden: Array,
    weight: Array,
    k: int,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    chunk: int | tuple[int, int] | None = None,
) -> TopK:
    r"""The `k` most probable classes and the logarithms of their probabilities, :eq:`cross_entropy-logits`.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states.
    weight : array, shape (V, d)
        Vocabulary matrix.
    k : int
        How many, from 1 to V.
    bias, softcap, logit_scale, chunk : optional
        As in `linear_cross_entropy`.

    Returns
    -------
    TopK
        Arrays of shape (..., k).

    Raises
    ------
    ValueError
        If `k` is no integer from 1 to V.

    See Also
    --------
    argmax : The first of them.

    Notes
    -----
    One product, and a partial sort of each block joined with the k best so far.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import top_k
    >>> best = top_k(np.ones(1), np.log([[2.0], [5.0], [3.0]]), 2, chunk=(1, 1))
    >>> best.classes.tolist(), np.exp(best.log_prob).round(12).tolist()
    ([1, 2], [0.5, 0.3])
    """
    problem = prepare(hidden, weight, None, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=chunk)
    layer, inputs = problem.layer, problem.inputs
    vocabulary = inputs.weight.shape[0]
    try:
        count = 0 if isinstance(k, bool) else operator.index(k)
    except TypeError:
        count = 0
    if not 1 <= count <= vocabulary:
        msg = f"k must be an integer from 1 to {vocabulary}, got {k!r}"
        raise ValueError(msg)
    xp, integer = _backend.namespace(inputs.hidden), problem.constants.targets.dtype

    def block(out: Any, row: Any, rows: int) -> Any:
        h = _backend.slice_axis(inputs.hidden, row, rows, 0)

        def classes(carry: Any, column: Any, columns: int) -> Any:
            state, values, numbers = carry
            z = logits(layer, inputs, None, h, (column, columns)).T
            here = xp.astype(xp.arange(columns), integer) + column
            here = xp.broadcast_to(xp.astype(_backend.beside(here, numbers), integer)[None, :], (rows, columns))
            values, places = _backend.top_k(xp.concat([values, z], axis=1), count)
            numbers = xp.take_along_axis(xp.concat([numbers, here], axis=1), places, axis=1)
            return update(state, z), values, numbers

        begin = (
            start(_backend.filled(inputs.hidden, rows, 0.0, layer.dtype)),
            _backend.filled(inputs.hidden, (rows, count), -math.inf, layer.dtype),
            _backend.filled(inputs.hidden, (rows, count), -1, integer),
        )
        state, values, numbers = over(vocabulary, layer.blocks.vocabulary, classes, begin, inputs.hidden)
        some = state.sum > 0
        peak, total = (xp.where(some, part, math.nan)[:, None] for part in (state.max, state.sum))
        log_prob = (values - peak) - xp.log(total)
        numbers = xp.where(some[:, None] & (values > -math.inf), numbers, xp.full_like(numbers, -1))
        return _backend.write(out[0], row, log_prob), _backend.write(out[1], row, numbers)

    tokens = inputs.hidden.shape[0]
    out = (
        _backend.filled(inputs.hidden, (tokens, count), 0.0, layer.dtype),
        _backend.filled(inputs.hidden, (tokens, count), 0, integer),
    )
    out = over(tokens, layer.blocks.tokens, block, out, inputs.hidden)
    return TopK(*(xp.reshape(a, (*problem.shape, count)) for a in out))


def sample(
    hidden: Array,
    weight: Array,
    /,
    *,
    rng: Any,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    chunk: int | None = None,
) -> Array:
    r"""Draws of a class from the softmax of the logits, :eq:`cross_entropy-draw`, one for each hidden state.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states.
    weight : array, shape (V, d)
        Vocabulary matrix.
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of them
        Source of the draws; a batch has one for each hidden state, in their flattened order.
    bias, softcap, logit_scale : optional
        As in `linear_cross_entropy`. The inverse of a temperature is a scale.
    chunk : int or None, optional
        Classes handled at a time; all hidden states are handled at once. None keeps a block within 128 MiB.

    Returns
    -------
    array of int
        Shape (...); -1 where a logit is NaN or inf, or all are -inf. A class of probability 0 is never drawn.

    Notes
    -----
    One product. The probability of each class is right to relative ``2 u log2(V)`` and a few roundings, in float32
    down to 1e-13: every decision compares a uniform number with the *smaller* of two probabilities, and that number has
    46 bits or more near 0. A race of Gumbel variables in float32 loses classes below 1e-7.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import sample
    >>> draws = sample(np.ones((4000, 1)), np.log([[1.0], [3.0]]), rng=np.random.default_rng(0), chunk=1)
    >>> bool(abs(np.mean(draws) - 0.75) < 0.03)
    True
    """
    if isinstance(chunk, tuple):
        msg = f"chunk must be an integer >= 1 or None, got {chunk!r}"
        raise ValueError(msg)  # noqa: TRY004
    problem = prepare(hidden, weight, None, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=chunk)
    layer, inputs = problem.layer, problem.inputs
    tokens, vocabulary = inputs.hidden.shape[0], inputs.weight.shape[0]
    size = problem.layer.blocks.tokens if chunk is not None else max(1, BUDGET // (8 * max(tokens, 1)))
    size = min(size if chunk is None else int(operator.index(chunk)), vocabulary)
    levels = (size - 1).bit_length()
    xp, integer = _backend.namespace(inputs.hidden), problem.constants.targets.dtype

    def classes(state: Any, column: Any, columns: int) -> Any:
        peak, total, chosen, draw = state
        z = logits(layer, inputs, None, inputs.hidden, (column, columns)).T
        top = xp.maximum(peak, xp.max(z, axis=1))
        sums = [xp.exp(z - top[:, None])]
        pad = _backend.filled(inputs.hidden, (tokens, 2**levels - columns), 0.0, layer.dtype)
        sums[0] = xp.concat([sums[0], pad], axis=1)
        for _ in range(levels):
            sums.append(sums[-1][:, ::2] + sums[-1][:, 1::2])
        place = _backend.filled(inputs.hidden, tokens, 0, integer)
        for level in range(levels - 1, -1, -1):
            pair = 2 * place
            left = xp.take_along_axis(sums[level], pair[:, None], axis=1)[:, 0]
            right = xp.take_along_axis(sums[level], pair[:, None] + 1, axis=1)[:, 0]
            place = pair + xp.astype(_second(left, right, rng, draw + level), integer)
        old = xp.exp(peak - top) * total
        new = _second(old, sums[-1][:, 0], rng, draw + levels)
        chosen = xp.where(new, place + column, chosen)
        return top, old + sums[-1][:, 0], xp.astype(chosen, integer), draw + levels + 1

    begin = (
        _backend.filled(inputs.hidden, tokens, float(xp.finfo(layer.dtype).min), layer.dtype),
        _backend.filled(inputs.hidden, tokens, 0.0, layer.dtype),
        _backend.filled(inputs.hidden, tokens, 0, integer),
        0,
    )
    _, total, chosen, _ = over(vocabulary, size, classes, begin, inputs.hidden)
    return xp.reshape(xp.where(total > 0, chosen, xp.full_like(chosen, -1)), problem.shape)


def _second(a: Array, b: Array, rng: Any, draw: Any) -> Array:
    """Whether the second of two masses is drawn, decided by the smaller one, whose probability is known best."""
    xp = _backend.namespace(a)
    total = a + b
    smaller = xp.minimum(a, b) / xp.where(total == 0, xp.ones_like(total), total)
    hit = _backend.fine_uniform(rng, draw, a) < smaller
    return xp.where(b < a, hit, ~hit & (b > 0))
