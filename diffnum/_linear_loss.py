"""Losses of a linear layer's logits: options, coefficients, and the two ways to join value and gradient.

Every loss here is, per token, ``b nll + c spread + a lse^2`` with coefficients that do not depend on the logits.
Weights, label smoothing, the z-loss, ignored tokens and the reduction are all in the coefficients, so the sweeps know
none of them. Equations: :doc:`/cross_entropy`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _backend
from ._arguments import choose, number
from ._blocks import choose_blocks
from ._linear_cross_entropy import (
    Coefficients,
    Constants,
    Inputs,
    Layer,
    Statistics,
    gradients,
    statistics,
    statistics_and_gradients,
    statistics_and_logits,
)
from .logsumexp import Accumulator, finish

__all__ = [
    "SAVES",
    "Extras",
    "Pair",
    "Problem",
    "Weights",
    "attach",
    "attach_tokens",
    "losses",
    "prepare",
    "quantities",
    "results",
    "value_and_gradients",
    "weigh",
]

Array = Any

REDUCTIONS = ("mean", "sum", "none")
SAVES = ("gradients", "logits", "nothing")


class Problem(NamedTuple):
    """A checked call.

    Attributes
    ----------
    layer : Layer
        Static options of the sweep.
    inputs : Inputs
        Hidden states (N, d), weight, bias, scale.
    constants : Constants
        Targets, -1 where ignored, and class weights.
    counted : array of bool
        Which tokens count, shape (N,).
    token_weight : array or None
        Shape (N,).
    shape : tuple of int
        Shape of the targets as they came.
    vocabulary : int
        Number of classes; less than the weight has rows where some are padding.
    """

    layer: Layer
    inputs: Inputs
    constants: Constants
    counted: Array
    token_weight: Array | None
    shape: tuple[int, ...]
    vocabulary: int


class Weights(NamedTuple):
    """Coefficients of the loss, shape (N,) each.

    Attributes
    ----------
    nll : array
        Of the negative log-likelihood.
    spread : array or None
        Of the sum over classes of class weight times ``lse - logit``.
    square : array or None
        Of the squared log-sum-exp.
    """

    nll: Array
    spread: Array | None
    square: Array | None


class Extras(NamedTuple):
    r"""What the sweep knows beside the loss.

    Attributes
    ----------
    lse : array or None
        Log-sum-exp of every token, :eq:`cross_entropy-logits`, 0 where it is ignored; differentiable.
    accuracy : array or None
        Whether the target is the first largest class: for each token (False where ignored), their number, or their
        share of the counted tokens, as the reduction is "none", "sum" or "mean".
    """

    lse: Array | None
    accuracy: Array | None


def prepare(
    hidden: Array,
    weight: Array,
    targets: Array | None,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Any = None,
    class_weight: Array | None = None,
    token_weight: Array | None = None,
    ignore_index: int | None = None,
    chunk: Any = None,
    accumulate: str | None = None,
    spread: bool = False,
    top: bool = False,
    whole_rows: bool = False,
    vocabulary: int | None = None,
) -> Problem:
    """Check arrays and bring them into one library; parameters as in `linear_cross_entropy`.

    Parameters
    ----------
    hidden, weight, targets : array
        Targets may be None where there are none.
    bias, softcap, logit_scale, class_weight, token_weight, ignore_index, chunk, accumulate : optional
        As documented there.
    spread, top, whole_rows : bool, optional
        What the sweep is to find, and whether it keeps whole rows of logits.
    vocabulary : int or None, optional
        Number of classes, where it is not the number of rows of the weight.

    Returns
    -------
    Problem
        Hidden states flattened to two axes.

    Raises
    ------
    ValueError
        If shapes do not fit, or a target is known to be out of range.
    TypeError
        If dtypes are of the wrong kind.
    """
    hidden, weight = _backend.asfloat(hidden, "hidden"), _backend.asfloat(weight, "weight")
    if hidden.ndim < 1 or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1] or weight.shape[0] == 0:
        shapes = f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        msg = f"hidden and weight must have shapes (..., d) and (V, d) with V >= 1, got {shapes}"
        raise ValueError(msg)
    batch, rows = tuple(hidden.shape[:-1]), int(weight.shape[0])
    count: int = rows if vocabulary is None else vocabulary
    traced = ignore_index if _backend.is_jax(ignore_index) else None
    optional = (bias, class_weight, token_weight, None if isinstance(logit_scale, float | int) else logit_scale, traced)
    xp = _backend.namespace(hidden, weight, targets, *optional)
    like = next((a for a in (hidden, weight, targets, *optional) if a is not None and _is_of(xp, a)), hidden)
    hidden, weight = _backend.beside(hidden, like), _backend.beside(weight, like)
    dtype = _accumulator(accumulate, hidden, weight)
    if targets is None:
        targets = _backend.filled(hidden, batch, -1, xp.int32 if _backend.is_jax(hidden) else xp.int64)
        counted = _backend.filled(hidden, batch, False, xp.bool)
    else:
        targets, counted = _targets(targets, batch, count, ignore_index, like)
    bias = _vector("bias", bias, (rows,), like)
    class_weight = _vector("class_weight", class_weight, (rows,), like)
    token_weight = _vector("token_weight", token_weight, batch, like)
    if logit_scale is not None:
        logit_scale = _vector("logit_scale", logit_scale, (), like, dtype)
    _check_values(bias, logit_scale)
    tokens = 1
    for length in batch:
        tokens *= length
    itemsize = 8 if dtype == xp.float64 else 4
    layer = Layer(
        choose_blocks(chunk, tokens, rows, itemsize, whole_rows=whole_rows, eager=not _backend.is_jax(hidden)),
        dtype,
        None if softcap is None else number("softcap", softcap, above=0.0),
        spread,
        top,
        masked=ignore_index is not None,
    )
    hidden = xp.reshape(hidden, (tokens, hidden.shape[-1]))
    flat = None if token_weight is None else _backend.cast(xp.reshape(token_weight, (tokens,)), dtype)
    return Problem(
        layer,
        Inputs(*(None if a is None else _backend.settled(a) for a in (hidden, weight, bias, logit_scale))),
        Constants(
            xp.reshape(targets, (tokens,)),
            None if class_weight is None else _backend.constant(_backend.cast(class_weight, dtype)),
        ),
        xp.reshape(counted, (tokens,)),
        flat,
        batch,
        count,
    )


def weigh(problem: Problem, reduction: str, label_smoothing: float, z_loss: float) -> Weights:
    """Coefficients of the loss; a token whose target is out of range gets NaN.

    Parameters
    ----------
    problem : Problem
        The call.
    reduction : str
        One of `REDUCTIONS`.
    label_smoothing, z_loss : float
        As in `linear_cross_entropy`.

    Returns
    -------
    Weights
        Of the dtype of sums.
    """
    choose("reduction", reduction, REDUCTIONS)
    z_loss = number("z_loss", z_loss, least=0.0)
    label_smoothing = number("label_smoothing", label_smoothing, least=0.0)
    if label_smoothing > 1.0:
        msg = f"label_smoothing must be a finite number in [0, 1], got {label_smoothing!r}"
        raise ValueError(msg)
    targets, class_weight = problem.constants.targets, problem.constants.class_weight
    vocabulary, dtype = problem.vocabulary, problem.layer.dtype
    xp = _backend.namespace(targets)
    zero = xp.zeros_like(targets, dtype=dtype)
    inside = (targets >= 0) & (targets < problem.inputs.weight.shape[0])
    share = _backend.cast(problem.counted, dtype) if problem.token_weight is None else problem.token_weight
    share = xp.where(problem.counted, share, zero)
    of_class = xp.ones_like(zero)
    if class_weight is not None:
        of_class = xp.take(class_weight, xp.where(inside, targets, xp.zeros_like(targets)), axis=0)
    if reduction == "mean":
        if problem.token_weight is None and class_weight is None:
            total = _backend.cast(xp.sum(xp.astype(problem.counted, targets.dtype)), dtype)
        else:
            total = xp.sum(share * of_class)
        empty = total == 0
        share = xp.where(empty, zero, share / xp.where(empty, xp.ones_like(total), total))
    if _backend.concrete(targets) is None:
        share = xp.where(problem.counted & ~inside, zero + float("nan"), share)
    return Weights(
        share * (of_class * (1.0 - label_smoothing)),
        share * (label_smoothing / vocabulary) if label_smoothing > 0.0 else None,
        share * z_loss if z_loss > 0.0 else None,
    )


def quantities(problem: Problem, found: Statistics) -> tuple[Array, Array, Array | None]:
    """Log-sum-exp, negative log-likelihood and spread of each token, from differences to the maximum.

    Parameters
    ----------
    problem : Problem
        The call.
    found : Statistics
        What the sweep found.

    Returns
    -------
    tuple of array or None
        Shape (N,) each.
    """
    lse = finish(Accumulator(found.max, found.sum))
    xp = _backend.namespace(lse)
    log_sum = xp.log(xp.where(found.sum == 0, math.nan, found.sum))
    nll = log_sum + (found.max - found.picked)
    spread = None if found.deviation is None else _mass(problem) * log_sum - found.deviation
    return lse, nll, spread


def losses(weights: Weights, lse: Array, nll: Array, spread: Array | None) -> Array:
    """Loss of each token.

    Parameters
    ----------
    weights : Weights
        Coefficients.
    lse, nll, spread : array or None
        What `quantities` returns.

    Returns
    -------
    array
        Shape (N,).
    """
    loss = weights.nll * nll
    if weights.spread is not None:
        loss = loss + weights.spread * spread
    return loss if weights.square is None else loss + weights.square * (lse * lse)


def attach(
    problem: Problem, weights: Weights, save: str, *, total: bool, with_lse: bool
) -> tuple[Array, Array | None, Array | None]:
    """Loss, log-sum-exp and largest class, with derivatives in reverse mode by the hand-written pair.

    Parameters
    ----------
    problem : Problem
        The call.
    weights : Weights
        Coefficients, which may be differentiated as well.
    save : str
        One of `SAVES`: what the forward sweep leaves to the backward one.
    total : bool
        Whether the loss is the sum over tokens.
    with_lse : bool
        Whether the log-sum-exp is wanted.

    Returns
    -------
    tuple of array or None
        Loss of shape () or (N,), log-sum-exp (N,), largest class (N,).
    """
    if save == "gradients" and total:
        return _attach_total(problem, weights, with_lse=with_lse)
    lse, nll, spread, top = attach_tokens(problem, _pair(problem, keep=save == "logits"))
    loss = losses(weights, lse, nll, spread)
    return (_backend.namespace(loss).sum(loss) if total else loss), lse, top


def value_and_gradients(
    problem: Problem,
    weights: Weights,
    save: str,
    *,
    wanted: tuple[bool, ...],
    record: Callable[[Statistics], tuple[Array | None, ...]],
) -> tuple[tuple[Array | None, ...], tuple[Array | None, ...]]:
    """What the sweep found, and gradients of the sum of `losses` for hidden states, weight, bias and scale.

    Parameters
    ----------
    problem : Problem
        The call.
    weights : Weights
        Coefficients.
    save : str
        "gradients" for one sweep of three products; else two sweeps.
    wanted : tuple of bool
        Which gradients to compute.
    record : callable
        What to keep of the statistics.

    Returns
    -------
    tuple
        What `record` keeps; four gradients, in the dtype of sums or their own.
    """
    mass = _mass(problem)

    def pull(found: Statistics, part: Weights) -> Coefficients:
        all_of = part.nll if part.spread is None else part.nll + part.spread * mass
        if part.square is not None:
            all_of = all_of + 2.0 * part.square * finish(Accumulator(found.max, found.sum))
        return Coefficients(all_of, part.nll, part.spread)

    def slice_of(row: Any, rows: int) -> Weights:
        return Weights(*(None if a is None else _backend.slice_axis(a, row, rows, 0) for a in weights))

    needed = _needed(problem, wanted)
    if save == "gradients":
        kept, raw = statistics_and_gradients(
            problem.layer,
            problem.inputs,
            problem.constants,
            lambda s, row, rows: pull(s, slice_of(row, rows)),
            wanted=needed,
            record=record,
        )
    else:
        found = statistics(problem.layer, problem.inputs, problem.constants)
        kept = record(found)
        raw = gradients(problem.layer, problem.inputs, problem.constants, found, pull(found, weights), wanted=needed)
    return kept, _scaled(problem.inputs, raw, wanted)


class Pair(NamedTuple):
    """A sweep and its pull-back.

    Attributes
    ----------
    sweep : callable
        ``sweep(inputs, constants, kept) -> (Statistics, array or None)``; `kept` says whether it is to keep logits.
    pull : callable
        ``pull(inputs, constants, statistics, coefficients, wanted, logits)``: three gradients, as `gradients`.
    """

    sweep: Callable[..., Any]
    pull: Callable[..., Any]


def _pair(problem: Problem, *, keep: bool) -> Pair:
    layer = problem.layer

    def sweep(inputs: Inputs, constants: Constants, kept: bool) -> Any:
        if keep and kept:
            return statistics_and_logits(layer, inputs, constants)
        return statistics(layer, inputs, constants), None

    def pull(inputs: Inputs, constants: Constants, found: Statistics, coefficients: Coefficients, *rest: Any) -> Any:
        wanted, logits = rest
        return gradients(layer, inputs, constants, found, coefficients, wanted=wanted, kept=logits)

    return Pair(sweep, pull)


def attach_tokens(problem: Problem, pair: Pair) -> tuple[Array, Array, Array | None, Array | None]:
    """Quantities of all tokens and the largest class, with derivatives in reverse mode for any cotangents.

    Parameters
    ----------
    problem : Problem
        The call.
    pair : Pair
        Who sweeps.

    Returns
    -------
    tuple of array or None
        Log-sum-exp, negative log-likelihood, spread, largest class: shape (N,) each.
    """

    def again(inputs: Any, constants: Any) -> Problem:
        return problem._replace(inputs=Inputs(*inputs), constants=Constants(*constants))

    def value(inputs: Any, constants: Any) -> Any:
        call = again(inputs, constants)
        found, _ = pair.sweep(call.inputs, call.constants, False)
        return (*quantities(call, found), found.top)

    def forward(inputs: Any, constants: Any, wanted: Any) -> Any:
        del wanted
        call = again(inputs, constants)
        found, kept = pair.sweep(call.inputs, call.constants, True)
        return (*quantities(call, found), found.top), (found.max, found.sum, kept)

    def backward(inputs: Any, constants: Any, saved: Any, cotangents: Any, wanted: Any) -> Any:
        call = again(inputs, constants)
        peak, total, kept = saved
        of_lse, of_nll, of_spread, _ = cotangents
        zero = _backend.namespace(peak).zeros_like(peak)
        of_nll = zero if of_nll is None else of_nll
        pulled = of_nll if of_lse is None else of_nll + of_lse
        pulled = pulled if of_spread is None else pulled + of_spread * _mass(call)
        found = Statistics(peak, total, zero, None, None)
        coefficients = Coefficients(pulled, of_nll, of_spread)
        raw = pair.pull(call.inputs, call.constants, found, coefficients, _needed(call, wanted), kept)
        grads = _scaled(call.inputs, raw, wanted)
        return tuple(None if g is None else _backend.cast(g, x.dtype) for g, x in zip(grads, inputs, strict=True))

    return _backend.join(value, forward, backward, tuple(problem.inputs), tuple(problem.constants))  # pyright: ignore[reportReturnType]


def results(problem: Problem, reduction: str, loss: Array, lse: Array | None, top: Array | None) -> Any:
    """Loss in the shape of the targets, and what was asked for beside it.

    Parameters
    ----------
    problem : Problem
        The call.
    reduction : str
        One of `REDUCTIONS`.
    loss : array
        Shape () or (N,).
    lse, top : array or None
        What is to be returned.

    Returns
    -------
    array, or tuple of array and Extras
        What `linear_cross_entropy` returns.
    """
    xp = _backend.namespace(loss)
    if lse is not None and problem.layer.masked:
        lse = xp.where(problem.counted, lse, xp.zeros_like(lse))
    loss = xp.reshape(loss, problem.shape) if reduction == "none" else loss
    if lse is None and top is None:
        return loss
    accuracy = None
    if top is not None:
        right = (top == problem.constants.targets) & problem.counted
        accuracy = xp.reshape(right, problem.shape)
        if reduction != "none":
            # counted in integers: a sum of ones in 16 bits stalls at 256
            number = xp.sum(xp.astype(right, top.dtype), dtype=top.dtype)
            counted = xp.sum(xp.astype(problem.counted, top.dtype), dtype=top.dtype)
            accuracy = number
            if reduction == "mean":
                safe = xp.where(counted == 0, xp.ones_like(counted), counted)
                accuracy = _backend.cast(number, loss.dtype) / _backend.cast(safe, loss.dtype)
    return loss, Extras(None if lse is None else xp.reshape(lse, problem.shape), accuracy)


def _attach_total(problem: Problem, weights: Weights, *, with_lse: bool) -> tuple[Array, Array | None, Array | None]:
    layer = problem.layer

    def again(inputs: Any, constants: Any) -> tuple[Problem, Weights]:
        return problem._replace(inputs=Inputs(*inputs[:4]), constants=Constants(*constants)), Weights(*inputs[4:])

    def total(part: Weights, lse: Array, nll: Array, spread: Array | None) -> Array:
        loss = losses(part, lse, nll, spread)
        return _backend.namespace(loss).sum(loss)

    def value(inputs: Any, constants: Any) -> Any:
        call, part = again(inputs, constants)
        found = statistics(layer, call.inputs, call.constants)
        lse, nll, spread = quantities(call, found)
        return total(part, lse, nll, spread), lse if with_lse else None, found.top

    def forward(inputs: Any, constants: Any, wanted: Any) -> Any:
        call, part = again(inputs, constants)

        def record(found: Statistics) -> Any:
            lse, nll, spread = quantities(call, found)
            peak = (found.max, found.sum) if with_lse else (None, None)
            return (lse if with_lse or part.square is not None else None), nll, spread, found.top, *peak

        found, grads = value_and_gradients(call, part, "gradients", wanted=wanted[:4], record=record)
        lse, nll, spread, top, *peak = found
        parts = (nll if wanted[4] else None, spread if wanted[5] else None, lse if wanted[6] else None)
        return (total(part, lse, nll, spread), lse if with_lse else None, top), (*grads, *parts, *peak)

    def backward(inputs: Any, constants: Any, saved: Any, cotangents: Any, wanted: Any) -> Any:
        call, _ = again(inputs, constants)
        grads, (nll, spread, lse), (peak, mass) = saved[:4], saved[4:7], saved[7:]
        of_loss, of_lse = cotangents[:2]
        out: list[Any] = [None] * 7
        if of_loss is not None:
            parts = (*grads, nll, spread, None if lse is None else lse * lse)
            out = [None if g is None else of_loss * g for g in parts]
        if of_lse is not None:
            zero = _backend.namespace(of_lse).zeros_like(of_lse)
            raw = gradients(
                layer,
                call.inputs,
                call.constants,
                Statistics(peak, mass, zero, None, None),
                Coefficients(of_lse, zero, None),
                wanted=_needed(call, wanted[:4]),
            )
            more = _scaled(call.inputs, raw, wanted[:4])
            out[:4] = [b if a is None else a if b is None else a + b for a, b in zip(out[:4], more, strict=True)]
        return tuple(None if g is None else _backend.cast(g, x.dtype) for g, x in zip(out, inputs, strict=True))

    inputs = (*problem.inputs, *weights)
    return _backend.join(value, forward, backward, inputs, tuple(problem.constants))  # pyright: ignore[reportReturnType]


def _mass(problem: Problem) -> Any:
    """Sum of the class weights."""
    class_weight = problem.constants.class_weight
    if class_weight is None:
        return float(problem.vocabulary)
    return _backend.namespace(class_weight).sum(class_weight)


def _needed(problem: Problem, wanted: tuple[bool, ...]) -> tuple[bool, bool, bool]:
    """Which raw gradients are computed: that of the scale follows from those of hidden states and bias."""
    of_hidden, of_weight, of_bias, of_scale = wanted
    return of_hidden or of_scale, of_weight, (of_bias or of_scale) and problem.inputs.bias is not None


def _scaled(
    inputs: Inputs, raw: tuple[Array | None, Array | None, Array | None], wanted: tuple[bool, ...]
) -> tuple[Array | None, ...]:
    """Gradients with the factor of the logits: with z = a u, the gradient of a is the sum of u times that of z."""
    of_hidden, of_weight, of_bias = raw
    of_scale = None
    if inputs.scale is not None and of_hidden is not None:
        xp = _backend.namespace(of_hidden)
        if wanted[3]:
            still = of_hidden == 0
            of_scale = xp.sum(of_hidden * xp.where(still, xp.zeros_like(inputs.hidden), inputs.hidden))
            if of_bias is not None:
                still = of_bias == 0
                of_scale = of_scale + xp.sum(of_bias * xp.where(still, xp.zeros_like(of_bias), inputs.bias))
        of_hidden = of_hidden * inputs.scale
    if inputs.scale is not None and of_bias is not None:
        of_bias = of_bias * inputs.scale
    found = (of_hidden, of_weight, of_bias, of_scale)
    return tuple(g if w else None for g, w in zip(found, wanted, strict=True))


def _accumulator(name: str | None, *arrays: Array) -> Any:
    """dtype of sums: as named, else that of the arrays, float32 at least."""
    xp = _backend.namespace(*arrays)
    if name is None:
        wide = any(_backend.state_dtype(a) == xp.float64 for a in arrays)
        return xp.float64 if wide else xp.float32
    choose("accumulate", name, ("float32", "float64"))
    dtype = getattr(xp, name)
    # asking JAX for a dtype that is off would warn
    if name == "float64" and xp.asarray(np.float64(0.0)).dtype != dtype:
        msg = f"accumulate must be a dtype that the library has enabled, got {name!r}"
        raise ValueError(msg)
    return dtype


def _is_of(xp: Any, array: Array) -> bool:
    return hasattr(array, "dtype") and _backend.namespace(array) is xp


def _vector(name: str, value: Any, shape: tuple[int, ...], like: Array, dtype: Any = None) -> Array | None:
    if value is None:
        return None
    value = _backend.beside(_backend.asfloat(value, name), like)
    if tuple(value.shape) != shape:
        msg = f"{name} must have shape {shape}, got {tuple(value.shape)}"
        raise ValueError(msg)
    return value if dtype is None else _backend.cast(value, dtype)


def _check_values(bias: Array | None, logit_scale: Array | None) -> None:
    """Refuse, where values are known, what leaves no softmax to any token."""
    known = None if logit_scale is None else _backend.concrete(logit_scale)
    if known is not None and not np.isfinite(known):
        msg = f"logit_scale must be a finite number, got {float(known)!r}"
        raise ValueError(msg)
    known = None if bias is None else _backend.concrete(bias)
    if known is not None and known.max() == -math.inf:
        msg = "bias must be above -inf for some class, got -inf for all of them"
        raise ValueError(msg)


def _ignored(ignore_index: Any) -> Any:
    """A Python integer; an array where JAX traces it."""
    if ignore_index is None or (_backend.is_jax(ignore_index) and _backend.concrete(ignore_index) is None):
        return ignore_index
    try:
        number = None if isinstance(ignore_index, bool) else operator.index(ignore_index)
    except TypeError:
        number = None
    if number is None:
        msg = f"ignore_index must be an integer or None, got {ignore_index!r}"
        raise ValueError(msg)
    return number


def _targets(
    targets: Array, batch: tuple[int, ...], vocabulary: int, ignore_index: int | None, like: Array
) -> tuple[Array, Array]:
    """Targets with -1 where they are ignored, and which are not."""
    targets = targets if hasattr(targets, "dtype") else _backend.concrete(targets)
    xp = _backend.namespace(targets)
    if not xp.isdtype(targets.dtype, "integral"):
        msg = f"targets must be integers, got dtype {targets.dtype}"
        raise TypeError(msg)
    if tuple(targets.shape) != batch:
        msg = f"targets must have the shape of hidden without its last axis, {batch}, got {tuple(targets.shape)}"
        raise ValueError(msg)
    ignore_index = _ignored(ignore_index)
    known = _backend.concrete(targets)
    if known is not None and _backend.concrete(ignore_index) is not None:
        wrong = (known < 0) | (known >= vocabulary)
        if ignore_index is not None:
            wrong &= known != ignore_index
        if wrong.any():
            msg = f"targets must lie in [0, {vocabulary}) or equal ignore_index={ignore_index}, got {known[wrong][0]}"
            raise ValueError(msg)
    targets = _backend.beside(targets, like)
    xp = _backend.namespace(targets)
    # indices are 64 bits wide in the other libraries
    short = _backend.is_jax(targets) and targets.dtype != xp.int64
    counted = xp.ones_like(targets, dtype=xp.bool)
    if ignore_index is not None:
        # compared before the cast, which would wrap the largest unsigned integers to negative ones
        limits = xp.iinfo(targets.dtype)
        if not isinstance(ignore_index, int) or limits.min <= ignore_index <= limits.max:
            counted = targets != ignore_index
    targets = xp.astype(targets, xp.int32 if short else xp.int64)
    if ignore_index is None:
        return targets, counted
    return xp.where(counted, targets, xp.full_like(targets, -1)), counted
