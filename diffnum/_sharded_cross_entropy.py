"""Linear cross-entropy over several devices of JAX: classes, tokens or both in shards; see :doc:`/cross_entropy`.

Each device sweeps over its own tokens and classes. What is summed over devices is written out here, in both directions,
so no derivative is taken of a collective operation.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from . import _backend
from ._linear_cross_entropy import Coefficients, Constants, Inputs, Statistics, gradients, statistics
from ._linear_loss import Pair, Problem, attach_tokens, losses, prepare, results, weigh

__all__ = ["sharded_linear_cross_entropy"]

Array = Any


def sharded_linear_cross_entropy(
    hidden: Array,
    weight: Array,
    targets: Array,
    /,
    *,
    mesh: Any,
    token_axis: str | None = None,
    class_axis: str | None = None,
    class_sizes: tuple[int, ...] | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    class_weight: Array | None = None,
    token_weight: Array | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
    chunk: int | tuple[int, int] | None = None,
    accumulate: str | None = None,
    return_lse: bool = False,
    return_accuracy: bool = False,
) -> Any:
    r"""Cross-entropy of a linear layer whose classes or tokens are divided among devices, :eq:`cross_entropy-shards`.

    Parameters
    ----------
    hidden : jax.Array, shape (..., d)
        Hidden states; the number of tokens in all is a multiple of the devices on `token_axis`.
    weight : jax.Array, shape (S P, d)
        Vocabulary matrix, P rows for each of the S devices on `class_axis`.
    targets : jax.Array of int, shape (...)
        Classes in [0, V), or `ignore_index`.
    mesh : jax.sharding.Mesh
        The devices.
    token_axis, class_axis : str or None, optional
        Names of mesh axes by which tokens and classes are divided; None where they are not.
    class_sizes : tuple of int or None, optional
        How many of the P rows of each device are classes, perhaps none: the others are padding, of any value, at the
        end of the rows of that device. Classes are numbered without them; their number V >= 1 is the sum. None: all.
    bias, class_weight : jax.Array or None, optional
        As in `linear_cross_entropy`, in the rows of `weight`: shape (S P,).
    softcap, logit_scale, z_loss, label_smoothing, token_weight, ignore_index, reduction : optional
        As in `linear_cross_entropy`; smoothing spreads over all V classes, and the mean is that of all tokens.
    chunk, accumulate, return_lse, return_accuracy : optional
        As in `linear_cross_entropy`, blocks being those of one device.

    Returns
    -------
    array, or tuple of array and Extras
        As `linear_cross_entropy`, equal to it up to rounding. Reverse mode only.

    Raises
    ------
    ValueError
        If sizes do not fit the mesh, and as `linear_cross_entropy`.
    TypeError
        As `linear_cross_entropy`.

    See Also
    --------
    linear_cross_entropy : On one device.

    Notes
    -----
    Two products forward of the local classes, four in all. A device sends one maximum and one to three sums of numbers
    per token forward, and a sum of its hidden states' gradients backward; with tokens in shards also that of its
    weights' gradients. Sums over devices are in the dtype of `accumulate`.

    References
    ----------
    Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism" (2019).
    """
    if getattr(weight, "ndim", 0) != 2:
        msg = f"weight must have shape (S P, d), got {type(weight).__name__} of shape {getattr(weight, 'shape', ())}"
        raise ValueError(msg)
    tokens_by, classes_by = (1 if axis is None else _devices(mesh, axis) for axis in (token_axis, class_axis))
    if token_axis is not None and token_axis == class_axis:
        msg = f"token_axis and class_axis must differ, got {token_axis!r} for both"
        raise ValueError(msg)
    rows = weight.shape[0] // classes_by
    sizes = _sizes(class_sizes, weight.shape[0], classes_by)
    problem = prepare(
        hidden,
        weight,
        targets,
        bias=bias,
        softcap=softcap,
        logit_scale=logit_scale,
        class_weight=class_weight,
        token_weight=token_weight,
        ignore_index=ignore_index,
        chunk=chunk,
        accumulate=accumulate,
        spread=label_smoothing != 0.0,
        top=return_accuracy,
        vocabulary=sum(sizes),
    )
    if not _backend.is_jax(problem.inputs.hidden):
        msg = f"hidden or weight must be a JAX array, got {type(hidden).__name__}"
        raise TypeError(msg)
    tokens = problem.inputs.hidden.shape[0]
    if tokens % tokens_by:
        msg = f"hidden must have a multiple of {tokens_by} tokens for {token_axis!r}, got {tokens}"
        raise ValueError(msg)
    problem = _in_rows(problem, sizes, rows)
    weights = weigh(problem, reduction, label_smoothing, z_loss)
    pair = _pair(problem, mesh, token_axis, class_axis, sizes)
    lse, nll, spread, top = attach_tokens(problem, pair)
    loss = losses(weights, lse, nll, spread)
    loss = loss if reduction == "none" else _backend.namespace(loss).sum(loss)
    return results(problem, reduction, loss, lse if return_lse else None, top)


def _pair(problem: Problem, mesh: Any, token_axis: str | None, class_axis: str | None, sizes: tuple[int, ...]) -> Pair:
    layer = problem.layer
    rows = problem.inputs.weight.shape[0] // len(sizes)
    xp = _backend.namespace(problem.inputs.hidden)
    padded = any(size != rows for size in sizes)
    per_token, per_class = (token_axis,), (class_axis,)
    places = (
        Inputs((token_axis, None), (class_axis, None), per_class, ()),
        (per_token, per_class),
    )

    def local(constants: tuple[Array, Array | None]) -> Constants:
        if class_axis is None:
            return Constants(*constants, None, xp.asarray(sizes[0]) if padded else None)
        number = _backend.device_number(class_axis)
        dtype = constants[0].dtype
        valid = xp.take(xp.asarray(sizes, dtype=dtype), number) if padded else None
        return Constants(*constants, xp.astype(number, dtype) * rows, valid)

    def joined(inputs: tuple[Any, ...], constants: tuple[Array, Array | None]) -> tuple[Any, ...]:
        own = local(constants)
        found = statistics(layer, Inputs(*inputs), own)
        peak = _backend.over_devices("max", found.max, class_axis)
        total = _backend.over_devices("sum", found.sum * xp.exp(found.max - peak), class_axis)
        picked = _backend.over_devices("sum", found.picked, class_axis)
        deviation, top = found.deviation, found.top
        if deviation is not None:
            mass = rows if own.valid is None else own.valid
            mass = mass if own.class_weight is None else xp.sum(own.class_weight)
            deviation = _backend.over_devices("sum", deviation + (found.max - peak) * mass, class_axis)
        if top is not None:
            last = xp.full_like(top, rows * len(sizes))
            top = _backend.over_devices("min", xp.where(found.max == peak, top, last), class_axis)
        return peak, total, picked, deviation, top

    def sweep(inputs: Inputs, constants: Constants, kept: bool) -> Any:
        del kept
        given, where = _present((tuple(inputs), constants[:2]), places)
        outputs = (
            per_token,
            per_token,
            per_token,
            per_token if layer.spread else None,
            per_token if layer.top else None,
        )
        run = _backend.shard(joined, mesh, where, outputs)
        return Statistics(*run(*given)), None

    def pull(inputs: Inputs, constants: Constants, found: Statistics, coefficients: Coefficients, *rest: Any) -> Any:
        wanted = rest[0]
        if not any(wanted):
            return (None,) * 3

        def pulled(inputs: Any, constants: Any, sums: Any, coefficients: Any) -> Any:
            known = Statistics(sums[0], sums[1], sums[0], None, None)
            own = local(constants)
            raw = gradients(
                layer, Inputs(*inputs), own, known, Coefficients(*coefficients), wanted=wanted, partial=True
            )
            by = (class_axis, token_axis, token_axis)
            return tuple(
                None if g is None else _backend.over_devices("sum", g, a) for g, a in zip(raw, by, strict=True)
            )

        given, where = _present(
            (tuple(inputs), constants[:2], (found.max, found.sum), tuple(coefficients)),
            (*places, (per_token, per_token), (per_token, per_token, per_token)),
        )
        outputs = tuple(p if w else None for p, w in zip(places[0][:3], wanted, strict=True))
        return _backend.shard(pulled, mesh, where, outputs)(*given)

    return Pair(sweep, pull)


def _present(values: Any, places: Any) -> tuple[Any, Any]:
    """Values, and the places of those that are there."""
    kept = tuple(
        tuple(None if v is None else p for v, p in zip(group, place, strict=True))
        for group, place in zip(values, places, strict=True)
    )
    return values, kept


def _in_rows(problem: Problem, sizes: tuple[int, ...], rows: int) -> Problem:
    """`problem` with targets that count the rows of the weight, padding included, and no weight on padding."""
    targets, class_weight = problem.constants.targets, problem.constants.class_weight
    xp = _backend.namespace(targets)
    if all(size == rows for size in sizes):
        return problem
    moved, first = targets, 0
    for number, size in enumerate(sizes):
        moved = xp.where((targets >= first) & (targets < first + size), targets - first + number * rows, moved)
        first += size
    moved = xp.where(targets >= first, targets + rows * len(sizes), moved)
    if class_weight is not None:
        real = xp.concat([xp.arange(rows) < size for size in sizes])
        class_weight = xp.where(real, class_weight, xp.zeros_like(class_weight))
    return problem._replace(constants=Constants(moved, class_weight))


def _devices(mesh: Any, axis: str) -> int:
    shape = getattr(mesh, "shape", None)
    if not isinstance(shape, Mapping):
        msg = f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}"
        raise TypeError(msg)
    if axis not in shape:
        msg = f"mesh must have the axis {axis!r}, got {tuple(shape)}"
        raise ValueError(msg)
    return mesh.shape[axis]


def _sizes(sizes: Any, rows: int, shards: int) -> tuple[int, ...]:
    if rows % shards:
        msg = f"weight must have a multiple of {shards} rows, got {rows}"
        raise ValueError(msg)
    if sizes is None:
        return (rows // shards,) * shards
    try:
        counts = tuple(operator.index(size) for size in sizes)
    except TypeError:
        counts = ()
    if len(counts) != shards or not all(0 <= size <= rows // shards for size in counts) or sum(counts) < 1:
        msg = f"class_sizes must be {shards} integers from 0 to {rows // shards}, not all 0, got {sizes!r}"
        raise ValueError(msg)
    return counts
