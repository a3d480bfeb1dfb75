"""Statistics of the logits of a linear layer, and the pull-back of any loss of them, block by block.

Two pure functions. `statistics` sweeps over the logits once and returns, for each token, what every loss here is made
of: the maximum and the sum of the log-sum-exp, the logit of the target, a weighted sum of all logits, the first
largest class. `gradients` takes the coefficients of those in a loss and returns the gradients of hidden states, weight
and bias. `statistics_and_gradients` does both for a block of tokens before it goes on, and so computes each logit once.

Conventions: hidden states (N, d), weight (V, d); V may be a shard of a larger vocabulary, whose first class has number
`offset` and of which the first `valid` classes exist. Blocks of logits have the shape (classes, tokens): maxima and
sums over classes then run along whole rows of memory. The scale of the logits is left out of the gradients of hidden
states and bias, from which the caller makes that of the scale. Equations: :doc:`/cross_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _backend
from ._blocks import Blocks, over

__all__ = [
    "Coefficients",
    "Constants",
    "Inputs",
    "Layer",
    "Statistics",
    "gradients",
    "logits",
    "statistics",
    "statistics_and_gradients",
    "statistics_and_logits",
]

Array = Any


class Inputs(NamedTuple):
    """What a gradient may be taken of.

    Attributes
    ----------
    hidden : array
        Shape (N, d).
    weight : array
        Shape (V, d).
    bias : array or None
        Shape (V,).
    scale : array or None
        Factor of the logits, shape ().
    """

    hidden: Array
    weight: Array
    bias: Array | None
    scale: Array | None


class Constants(NamedTuple):
    """Arrays that are never differentiated.

    Attributes
    ----------
    targets : array of int
        Shape (N,); a number outside ``[offset, offset + V)`` matches no class of this weight.
    class_weight : array or None
        Shape (V,); None for ones.
    offset : array of int or None
        Number of the first class, shape (); None for 0.
    valid : array of int or None
        How many classes exist, shape (); None for all.
    """

    targets: Array
    class_weight: Array | None
    offset: Array | None = None
    valid: Array | None = None


class Statistics(NamedTuple):
    """What a sweep knows of each token.

    Attributes
    ----------
    max : array
        Largest logit m.
    sum : array
        Sum of ``exp(logit - m)``.
    picked : array
        Logit of the target; 0 where no class matches.
    deviation : array or None
        Sum of class weights times ``logit - m``, where a loss spreads over all classes.
    top : array of int or None
        Number of the first class with the largest logit.
    """

    max: Array
    sum: Array
    picked: Array
    deviation: Array | None
    top: Array | None


class Coefficients(NamedTuple):
    """The pull-back of a loss to the logits: ``total p - target onehot - spread class_weight``, per token.

    Attributes
    ----------
    total : array
        Factor of the softmax, shape (n,).
    target : array
        What the logit of the target has less, shape (n,).
    spread : array or None
        Factor of the class weights, shape (n,).
    """

    total: Array
    target: Array
    spread: Array | None


@dataclass(frozen=True)
class Layer:
    """Static options of a sweep.

    Attributes
    ----------
    blocks : Blocks
        Tokens and classes handled at a time.
    dtype : dtype
        dtype of logits, statistics and sums.
    softcap : float or None
        Bound c of the logits ``c tanh(z/c)``.
    spread : bool
        Whether the deviation is wanted.
    top : bool
        Whether the largest class is wanted.
    masked : bool
        Whether tokens with the target -1 are read as if their hidden state were 0, which may be anything.
    """

    blocks: Blocks
    dtype: Any
    softcap: float | None = None
    spread: bool = False
    top: bool = False
    masked: bool = False


def logits(layer: Layer, inputs: Inputs, valid: Array | None, hidden: Array, columns: tuple[Any, int]) -> Array:
    """Logits of a block of tokens and classes; -inf where no class exists, which enters after every other step.

    Parameters
    ----------
    layer : Layer
        Options.
    inputs : Inputs
        The layer.
    valid : array of int or None
        How many classes exist.
    hidden : array
        Hidden states of a block of tokens, shape (n, d).
    columns : tuple of int
        First class and how many.

    Returns
    -------
    array
        Shape (columns, n), a temporary of the caller.
    """
    weight = _classes(inputs, valid, columns)
    z = _backend.matmul(weight, hidden.T, layer.dtype)
    xp = _backend.namespace(z)
    if inputs.bias is not None:
        z += _backend.cast(_backend.slice_axis(inputs.bias, *columns, 0), layer.dtype)[:, None]
    z = _scale(layer, inputs, z)
    if layer.softcap is not None:
        z = layer.softcap * xp.tanh(z / layer.softcap)
    if valid is not None:
        z = xp.where((_numbers(columns, valid) < valid)[:, None], z, -math.inf)
    return z


def statistics(layer: Layer, inputs: Inputs, constants: Constants) -> Statistics:
    """Statistics of all tokens: one product, in blocks of tokens and classes.

    Parameters
    ----------
    layer : Layer
        Options.
    inputs : Inputs
        The layer.
    constants : Constants
        Targets and class weights.

    Returns
    -------
    Statistics
        Arrays of shape (N,).
    """
    tokens = inputs.hidden.shape[0]

    def block(found: Statistics, row: Any, rows: int) -> Statistics:
        return Statistics(*_store(found, row, _of_tokens(layer, inputs, constants, (row, rows))[0]))

    start = _empty(layer, constants, inputs.hidden, (0, tokens))
    return Statistics(*over(tokens, layer.blocks.tokens, block, start, inputs.hidden))


def statistics_and_logits(layer: Layer, inputs: Inputs, constants: Constants) -> tuple[Statistics, Array]:
    """Statistics, and all logits minus their maximum in float16, whose digits are densest at the largest logits.

    Parameters
    ----------
    layer : Layer
        Options.
    inputs : Inputs
        The layer.
    constants : Constants
        Targets and class weights.

    Returns
    -------
    tuple
        Statistics, and an array of shape (V, N).
    """
    tokens, vocabulary = inputs.hidden.shape[0], inputs.weight.shape[0]
    xp = _backend.namespace(inputs.hidden)

    def block(carry: Any, row: Any, rows: int) -> Any:
        found, kept = carry
        z = _backend.workspace(inputs.hidden, (vocabulary, rows), layer.dtype)
        part, (z, _) = _of_tokens(layer, inputs, constants, (row, rows), (z, None))
        z = xp.maximum(z - part.max[None, :], xp.asarray(float(xp.finfo(xp.float16).min), dtype=layer.dtype))
        return Statistics(*_store(found, row, part)), _backend.write(kept, row, xp.astype(z, xp.float16), 1)

    start = _empty(layer, constants, inputs.hidden, (0, tokens))
    kept = _backend.workspace(inputs.hidden, (vocabulary, tokens), xp.float16)
    found, kept = over(tokens, layer.blocks.tokens, block, (start, kept), inputs.hidden)
    return Statistics(*found), kept


def gradients(
    layer: Layer,
    inputs: Inputs,
    constants: Constants,
    found: Statistics,
    coefficients: Coefficients,
    *,
    wanted: tuple[bool, bool, bool],
    kept: Array | None = None,
    partial: bool = False,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients for hidden states, weight and bias: three products, or two where the logits were kept.

    Classes are the outer loop, so the gradient of a class is complete before the next one begins.

    Parameters
    ----------
    layer : Layer
        Options.
    inputs : Inputs
        The layer.
    constants : Constants
        Targets and class weights.
    found : Statistics
        Maximum and sum of every token.
    coefficients : Coefficients
        What the loss asks of the logits.
    wanted : tuple of bool
        For hidden states, weight and bias: which to compute.
    kept : array or None, optional
        Logits minus the maximum, shape (V, N), in any precision.
    partial : bool, optional
        Whether the result is to be summed further, so that the weight's stays in the dtype of sums.

    Returns
    -------
    tuple of array or None
        Hidden states and bias in the dtype of sums and without the factor `scale`; weight in its own dtype.
    """
    hidden, weight, bias, _ = inputs
    xp = _backend.namespace(hidden)
    tokens, size = hidden.shape[0], layer.blocks.tokens
    narrow = layer.dtype if partial else weight.dtype

    def zeros(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return _backend.filled(like, shape, 0.0, dtype)

    def classes(carry: Any, column: Any, columns: int) -> Any:
        def block(carry: Any, row: Any, rows: int) -> Any:
            of_hidden, of_weight, of_bias = carry
            h = _tokens(layer, inputs, constants, (row, rows))
            if kept is None:
                z = logits(layer, inputs, constants.valid, h, (column, columns))
                z -= _backend.slice_axis(found.max, row, rows, 0)[None, :]
            else:
                z = _backend.slice_axis(_backend.slice_axis(kept, row, rows, 1), column, columns, 0)
                z = xp.astype(z, layer.dtype)
            part, pull = _cut((found, coefficients), row, rows)
            slope = _slope(layer, z, part.max)
            e = _backend.exp_of_temporary(z)
            where = {"rows": (row, rows), "columns": (column, columns)}
            g = _pull_back(layer, constants, e, pull, slope=slope, factor=_factor(pull, part), **where)
            if wanted[0]:
                w = _classes(inputs, constants.valid, (column, columns))
                of_hidden = _backend.add_rows(of_hidden, row, _backend.matmul(g.T, w, layer.dtype))
            if wanted[1]:
                of_weight = of_weight + _scale(layer, inputs, _backend.matmul(g, h, layer.dtype))
            if wanted[2]:
                of_bias = of_bias + xp.sum(g, axis=1)
            return of_hidden, of_weight, of_bias

        of_hidden, of_weight, of_bias = carry
        start = (
            of_hidden,
            zeros(weight, (columns, weight.shape[1]), layer.dtype) if wanted[1] else None,
            zeros(weight, (columns,), layer.dtype) if wanted[2] else None,
        )
        of_hidden, w, b = over(tokens, size, block, start, hidden)
        if wanted[1]:
            of_weight = _backend.write(of_weight, column, _backend.cast(w, narrow))
        if wanted[2]:
            of_bias = _backend.write(of_bias, column, b)
        return of_hidden, of_weight, of_bias

    start = (
        zeros(hidden, hidden.shape, layer.dtype) if wanted[0] else None,
        zeros(weight, weight.shape, narrow) if wanted[1] else None,
        zeros(weight, bias.shape, layer.dtype) if wanted[2] and bias is not None else None,
    )
    return over(weight.shape[0], layer.blocks.vocabulary, classes, start, hidden)


def statistics_and_gradients(
    layer: Layer,
    inputs: Inputs,
    constants: Constants,
    coefficients: Callable[[Statistics, Any, int], Coefficients],
    *,
    wanted: tuple[bool, bool, bool],
    record: Callable[[Statistics], tuple[Array | None, ...]],
) -> tuple[tuple[Array | None, ...], tuple[Array | None, Array | None, Array | None]]:
    """Statistics and gradients in one sweep of three products.

    Of a block of tokens, exponentials relative to the maximum so far are kept until the sum is known, or logits where
    the slope of a soft-cap needs them.

    Parameters
    ----------
    layer : Layer
        Options.
    inputs : Inputs
        The layer.
    constants : Constants
        Targets and class weights.
    coefficients : callable
        ``coefficients(statistics, row, rows)`` of the loss for the tokens from `row` on.
    wanted : tuple of bool
        For hidden states, weight and bias: which to compute.
    record : callable
        What to keep of the statistics of a block: each array is memory for all tokens.

    Returns
    -------
    tuple
        What `record` keeps, and the gradients as in `gradients` but all of them in the dtype of sums.
    """
    hidden, weight, bias, _ = inputs
    xp = _backend.namespace(hidden)
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    size = layer.blocks.vocabulary

    def memory(rows: int) -> tuple[Array, Array | None]:
        tops = _backend.workspace(hidden, (-(-vocabulary // size), rows), layer.dtype)
        return _backend.workspace(hidden, (vocabulary, rows), layer.dtype), None if layer.softcap else tops

    own = None if _backend.is_jax(hidden) else memory(layer.blocks.tokens)

    def block(carry: Any, row: Any, rows: int) -> Any:
        found, of_hidden, of_weight, of_bias = carry
        z, tops = memory(rows) if own is None else (None if a is None else a[:, :rows] for a in own)
        part, (z, tops) = _of_tokens(layer, inputs, constants, (row, rows), (z, tops))
        pull = coefficients(part, row, rows)
        h, factor = _tokens(layer, inputs, constants, (row, rows)), _factor(pull, part)

        def classes(carry: Any, column: Any, columns: int) -> Any:
            of_rows, of_weight, of_bias = carry
            e, slope, share = _backend.slice_axis(z, column, columns, 0), None, factor
            if tops is None:
                e -= part.max[None, :]
                slope = _slope(layer, e, part.max)
                e = _backend.exp_of_temporary(e)
            else:
                top = _backend.slice_axis(tops, _number_of(column, size), 1, 0)[0, :]
                share = factor * xp.exp(top - part.max)
            where = {"rows": (row, rows), "columns": (column, columns)}
            g = _pull_back(layer, constants, e, pull, slope=slope, factor=share, **where)
            if wanted[0]:
                w = _classes(inputs, constants.valid, (column, columns))
                of_rows = of_rows + _backend.matmul(g.T, w, layer.dtype)
            if wanted[1]:
                of_weight = _backend.add_rows(
                    of_weight, column, _scale(layer, inputs, _backend.matmul(g, h, layer.dtype))
                )
            if wanted[2]:
                of_bias = _backend.add_rows(of_bias, column, xp.sum(g, axis=1))
            return of_rows, of_weight, of_bias

        start = zeros((rows, hidden.shape[1])) if wanted[0] else None
        of_rows, of_weight, of_bias = over(
            vocabulary, layer.blocks.vocabulary, classes, (start, of_weight, of_bias), hidden
        )
        if wanted[0]:
            of_hidden = _backend.write(of_hidden, row, of_rows)
        return _store(found, row, record(part)), of_hidden, of_weight, of_bias

    def zeros(shape: tuple[int, ...]) -> Array:
        return _backend.filled(hidden, shape, 0.0, layer.dtype)

    start = (
        record(_empty(layer, constants, hidden, (0, tokens))),
        zeros(hidden.shape) if wanted[0] else None,
        zeros(weight.shape) if wanted[1] else None,
        zeros(bias.shape) if wanted[2] and bias is not None else None,
    )
    found, *grads = over(tokens, layer.blocks.tokens, block, start, hidden)
    return found, tuple(grads)


def _of_tokens(
    layer: Layer,
    inputs: Inputs,
    constants: Constants,
    rows: tuple[Any, int],
    kept: tuple[Array | None, Array | None] = (None, None),
) -> tuple[Statistics, tuple[Array | None, Array | None]]:
    """Statistics of a block of tokens.

    `kept` is memory for all logits, or for all exponentials and the maxima to which those of each block are relative.
    """
    targets, hidden = _backend.slice_axis(constants.targets, *rows, 0), _tokens(layer, inputs, constants, rows)
    xp = _backend.namespace(inputs.hidden)

    def classes(carry: Any, column: Any, columns: int) -> Any:
        found, mass, (memory, tops) = carry
        z = logits(layer, inputs, constants.valid, hidden, (column, columns))
        if memory is not None and tops is None:
            memory = _backend.write(memory, column, z)
        place = targets - column if constants.offset is None else targets - constants.offset - column
        inside = (place >= 0) & (place < columns)
        chosen = xp.take_along_axis(z, xp.where(inside, place, 0)[None, :], axis=0)[0, :]
        picked = xp.where(inside, chosen, found.picked)
        # the value does not depend on the shift, so no derivative passes through it
        largest = xp.max(_backend.constant(z), axis=0)
        peak = xp.maximum(found.max, largest)
        top, deviation = found.top, found.deviation
        if top is not None:
            first = xp.astype(xp.argmax(z, axis=0), top.dtype) + column
            first = first if constants.offset is None else first + constants.offset
            top = xp.where(largest > found.max, xp.astype(first, top.dtype), top)
        z = _backend.difference(z, peak[None, :])
        if deviation is not None:
            weights = _class_weights(layer, constants, (column, columns), z)
            fall = weights @ xp.where((weights == 0.0)[:, None], 0.0, z)
            deviation = deviation + (found.max - peak) * mass + fall
            mass = mass + xp.sum(weights)
        e = _backend.exp_of_temporary(z)
        total = found.sum * xp.exp(found.max - peak) + _backend.sum_of_rows(e)
        if memory is not None and tops is not None:
            memory = _backend.write(memory, column, e)
            tops = _backend.write(tops, _number_of(column, layer.blocks.vocabulary), peak[None, :])
        return Statistics(peak, total, picked, deviation, top), mass, (memory, tops)

    start = _empty(layer, constants, inputs.hidden, rows)
    before = _backend.filled(inputs.hidden, (), 0.0, layer.dtype)
    found, _, kept = over(
        inputs.weight.shape[0], layer.blocks.vocabulary, classes, (start, before, kept), inputs.hidden
    )
    return Statistics(*found), kept


def _number_of(column: Any, size: int) -> Any:
    """Number of the block of classes that begins at `column`, of which the first may be short."""
    return (column + size - 1) // size


def _factor(pull: Coefficients, found: Statistics) -> Array:
    """What an exponential relative to the maximum is multiplied by in the gradient."""
    # a softmax over no classes does not exist, and its gradient is NaN
    return pull.total / _backend.namespace(found.sum).where(found.sum == 0, math.nan, found.sum)


def _slope(layer: Layer, centred: Array, peak: Array) -> Array | None:
    """Slope of the soft-cap at logits that are `centred` plus `peak`; None without one."""
    if layer.softcap is None:
        return None
    xp = _backend.namespace(centred)
    # an absent class has the logit -inf and no softmax: any finite slope will do
    bounded = xp.maximum(centred + peak[None, :], xp.asarray(-layer.softcap, dtype=layer.dtype))
    return 1.0 - (bounded / layer.softcap) ** 2


def _pull_back(
    layer: Layer,
    constants: Constants,
    e: Array,
    pull: Coefficients,
    *,
    slope: Array | None,
    factor: Array,
    rows: tuple[Any, int],
    columns: tuple[Any, int],
) -> Array:
    """Gradient for the logits before soft-cap and scale from exponentials `e`, which are overwritten if possible."""
    e *= factor[None, :]
    if pull.spread is not None:
        e -= pull.spread[None, :] * _class_weights(layer, constants, columns, e)[:, None]
    targets = _backend.slice_axis(constants.targets, *rows, 0) - columns[0]
    g = _backend.subtract_at(e, targets if constants.offset is None else targets - constants.offset, pull.target)
    return g if slope is None else g * slope


def _tokens(layer: Layer, inputs: Inputs, constants: Constants, rows: tuple[Any, int]) -> Array:
    """Hidden states of a block of tokens; those of ignored ones, which may be padding of any kind, are 0."""
    hidden = _backend.slice_axis(inputs.hidden, *rows, 0)
    if not layer.masked:
        return hidden
    xp = _backend.namespace(hidden)
    return xp.where((_backend.slice_axis(constants.targets, *rows, 0) != -1)[:, None], hidden, xp.zeros_like(hidden))


def _classes(inputs: Inputs, valid: Array | None, columns: tuple[Any, int]) -> Array:
    """Rows of the weight of a block of classes; those that are padding of any kind are 0."""
    weight = _backend.slice_axis(inputs.weight, *columns, 0)
    if valid is None:
        return weight
    xp = _backend.namespace(weight)
    return xp.where((_numbers(columns, valid) < valid)[:, None], weight, xp.zeros_like(weight))


def _scale(layer: Layer, inputs: Inputs, z: Array) -> Array:
    return z if inputs.scale is None else z * _backend.cast(inputs.scale, layer.dtype)


def _class_weights(layer: Layer, constants: Constants, columns: tuple[Any, int], like: Array) -> Array:
    """Class weights of a block, 0 where no class exists."""
    xp = _backend.namespace(like)
    if constants.class_weight is None:
        weights = _backend.filled(like, columns[1], 1.0, layer.dtype)
    else:
        weights = _backend.cast(_backend.slice_axis(constants.class_weight, *columns, 0), layer.dtype)
    if constants.valid is None:
        return weights
    return xp.where(_numbers(columns, constants.valid) < constants.valid, weights, 0.0)


def _numbers(columns: tuple[Any, int], like: Array) -> Array:
    """Numbers of the classes of a block, from the start of this weight."""
    return _backend.namespace(like).arange(columns[1], dtype=like.dtype) + columns[0]


def _empty(layer: Layer, constants: Constants, like: Array, rows: tuple[Any, int]) -> Statistics:
    """Statistics of no classes."""
    xp = _backend.namespace(like)

    def full(value: float) -> Array:
        return _backend.filled(like, rows[1], value, layer.dtype)

    top = _backend.filled(like, rows[1], 0, constants.targets.dtype) if layer.top else None
    lowest = float(xp.finfo(layer.dtype).min)
    return Statistics(full(lowest), full(0.0), full(0.0), full(0.0) if layer.spread else None, top)


def _store(found: tuple[Array | None, ...], row: Any, part: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
    pairs = zip(found, part, strict=True)
    return tuple(None if a is None else _backend.write(a, row, b) for a, b in pairs)


def _cut(records: tuple[Any, ...], row: Any, rows: int) -> tuple[Any, ...]:
    def part(a: Array | None) -> Array | None:
        return None if a is None else _backend.slice_axis(a, row, rows, 0)

    return tuple(type(record)(*map(part, record)) for record in records)
