"""The one loop of the continuous half: it runs any table on NumPy, PyTorch or JAX arrays.

What a row does is :eq:`solvers-table`. A Python loop runs the rows one by one, in memory that it uses again; JAX
compiles one row, or one whole step where a step keeps nothing for the next, and scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from diffnum import _backend
from diffnum._arguments import instance
from diffnum._backend import Array, concrete, namespace
from diffnum._tables import Table
from diffnum.schedules import Level

__all__ = ["Denoiser", "solve"]

Denoiser = Callable[[Array, Level], Array]


def solve(
    denoise: Denoiser,
    x: Array,
    table: Table,
    /,
    *,
    rng: Any = None,
    trajectory: bool = False,
    progress: Callable[[list], Iterable] | None = None,
    has_aux: bool = False,
    unroll: bool = True,
) -> Any:
    """Run a table: :eq:`solvers-table`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape and library of `x`. It must not write to its `x`, which is
        the state: on NumPy that is read-only, on PyTorch a write is noticed and refused.
    x : array
        State at the first level, of any shape, floating point.
    table : Table
        Coefficients.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable, optional
        Source of the noise of a stochastic table; one for each ``x[i]``, if a batch (an array of keys, a sequence of
        generators) is given. A callable ``(row, like) -> z`` prescribes the draws; noise before the first row has the
        number ``table.evaluations``.
    trajectory : bool, optional
        Return the states at all N + 1 nodes, stacked along a new first axis.
    progress : callable, optional
        Wraps the list of rows, like ``tqdm.tqdm``; not under JAX.
    has_aux : bool, optional
        Whether `denoise` returns a pair, ``(x0_hat, aux)``, whose second part is an array to be recorded.
    unroll : bool, optional
        Under JAX, compile the stages of a step into one iteration of the loop, if no step needs a value of an earlier
        one (Heun, not Adams-Bashforth): then values between stages need not go through memory. The denoiser is
        compiled once for each stage; with False once in all.

    Returns
    -------
    array or tuple of array
        State at the last level, or all states; dtype and library of `x`. With `has_aux` a pair: that, and the `aux` of
        all evaluations, stacked along a new first axis of length ``table.evaluations``.

    Raises
    ------
    TypeError
        If `x` is not floating point, `rng` is of another kind than `x`, or `denoise` or `progress` is not callable.
    ValueError
        If a stochastic table comes without `rng`, the table's centre does not broadcast to `x`, `denoise` writes to its
        `x` or returns another shape, `progress` is used under JAX, or it leaves out rows.

    Notes
    -----
    Memory is that of ``1 + K`` states, K the number of registers, whatever the number of rows: :eq:`solvers-memory`.
    Reverse-mode derivatives under JAX keep one such set a row and recompute the rest.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import adams_bashforth, solve
    >>> flow = schedules.rectified_flow()
    >>> table = adams_bashforth(paths.x0(flow, grids.uniform(flow, 4)), 2)
    >>> solve(lambda x, level: 0.0 * x + 1.0, np.array([0.3, -2.0]), table).tolist()
    [1.0, 1.0]
    """
    instance("table", table, Table)
    instance("denoise", denoise, Callable)
    x = _floating(x, table)
    _check_options(x, table, rng, progress)
    xp, dtype, state = namespace(x), x.dtype, _backend.state_dtype(x)
    count = table.weights.shape[1]
    centre = None if table.centre is None else _backend.convert(table.centre, x, state)
    deviations = None if table.noise is None else concrete(table.noise)
    known = deviations is not None
    scratch = _backend.scratch(x, state)
    source = _backend.draw_ahead(rng, np.flatnonzero(deviations), x) if deviations is not None else rng

    def evaluate(y: Array, stored: Any, row: _Row, slot: Any) -> tuple[Array, Any, Any]:
        u = _backend.read_only(_backend.cast(y, dtype))
        value, aux = _answer(denoise, u, row.level, has_aux=has_aux)
        f = _backend.cast(_checked(value, u), state)
        if row.target is not None:
            f = row.target[0] * y + row.target[1] * f
        # stored before it is combined: in this order XLA makes no copy of the registers
        stored = _backend.put(stored, slot, _backend.cast(f, dtype), shared=f is value)
        y = row.carry * y
        for weight, part in zip(row.weights, stored, strict=True):
            if not (weight is None or (isinstance(weight, float) and weight == 0.0)):
                y = _backend.add_scaled(y, weight, part, scratch)
        if row.bias is not None:
            y = y + row.bias * centre
        if row.noise is not None:
            y = _backend.add_normal(y, row.noise, source, row.number, known=known)
        return y, stored, aux

    def one_row(carry: tuple, row: _Row) -> tuple[tuple, tuple]:
        y, stored, aux = evaluate(carry[0], carry[1], row, row.slot)
        return (y, stored if count > 1 else None), (_backend.cast(y, dtype) if trajectory else None, aux)

    def one_step(y: Array, rows: list[_Row]) -> tuple[Array, tuple]:
        stored, auxiliary = (None,) * count, []
        for row, slot in zip(rows, table.slot, strict=False):
            y, stored, aux = evaluate(y, stored, row, int(slot))
            auxiliary.append(aux)
        return y, (_backend.cast(y, dtype) if trajectory else None, xp.stack(auxiliary) if has_aux else None)

    y = _backend.cast(x, state)
    if table.start is not None:
        scale, added = _backend.columns(table.start, x, state)
        y = _backend.add_normal(scale * y, added, rng, table.evaluations)
    rows = _rows(table, x, state)
    reads = _reads(table) if unroll and _backend.is_jax(x) else None
    if reads is not None:
        y, (states, aux) = _backend.scan(one_step, y, _by_steps(rows, reads), x)
        ends = slice(None)
        aux = xp.reshape(aux, (table.evaluations, *aux.shape[2:])) if has_aux else None
    else:
        stored = _backend.registers(x, count) if count > 1 else None
        visited = rows if progress is None else _all_of(rows, progress)
        (y, _), outs = _backend.scan(one_row, (y, stored), visited, x)
        states, aux = outs if _backend.is_jax(x) else zip(*outs, strict=True)
        ends = table.end
    result = _backend.cast(y, dtype) if not trajectory else _joined(x, states, ends)
    if not has_aux:
        return result
    return result, aux if _backend.is_jax(x) else xp.stack(aux)


class _Row(NamedTuple):
    number: Any
    level: Any
    target: Any
    slot: Any
    carry: Any
    weights: Any
    noise: Any
    bias: Any


def _rows(table: Table, x: Array, state: Any) -> Any:
    """The table by rows, in the library of `x`: a pytree of arrays for JAX, else a list of rows."""
    xp = namespace(x)
    number = np.arange(table.evaluations)
    level = Level(*(_backend.convert(part, x, state) for part in table.level))
    floats = (table.carry, table.weights, table.noise, table.bias)
    if _backend.is_jax(x):
        target, carry, weights, noise, bias = (
            None if part is None else _backend.convert(part, x, state) for part in (table.target, *floats)
        )
        return _Row(xp.asarray(number), level, target, xp.asarray(table.slot), carry, weights, noise, bias)
    levels = [Level(*(part[r, ...] for part in level)) for r in range(table.evaluations)]
    nothing = [None] * table.evaluations
    target, carry, weights, noise, bias = (
        nothing if part is None else _backend.columns(part, x, state) for part in (table.target, *floats)
    )
    slot = np.asarray(table.slot).tolist()
    return list(map(_Row, number.tolist(), levels, target, slot, carry, weights, noise, bias))


def _reads(table: Table) -> np.ndarray | None:
    """Which registers each stage of a step reads, shape (stages, K), if no step needs what an earlier one stored."""
    weights = concrete(table.weights)
    stages = table.evaluations // table.steps
    regular = np.arange(1, table.steps + 1) * stages - 1
    if weights is None or stages == 1 or not np.array_equal(table.end, regular):
        return None
    slot = np.reshape(table.slot, (-1, stages))
    reads = np.any(np.reshape(weights, (-1, stages, weights.shape[1])) != 0.0, axis=0)
    written = np.stack([np.isin(np.arange(weights.shape[1]), slot[0, : j + 1]) for j in range(stages)])
    return reads if (slot == slot[0]).all() and not (reads & ~written).any() else None


def _by_steps(rows: _Row, reads: np.ndarray) -> list[_Row]:
    """The rows of JAX by stages: each with an entry a step, weights only where a register is read."""
    parts = []
    for j, columns in enumerate(reads):
        every = slice(j, None, len(reads))
        part = _Row(*(None if field is None or isinstance(field, Level) else field[every] for field in rows))
        weights = tuple(part.weights[:, k] if read else None for k, read in enumerate(columns))
        parts.append(part._replace(slot=None, weights=weights, level=Level(*(field[every] for field in rows.level))))
    return parts


def _all_of(rows: list, progress: Callable[[list], Iterable]) -> Iterable:
    """The rows as `progress` hands them out, which must be all of them."""
    count = 0
    for row in progress(rows):
        count += 1
        yield row
    if count != len(rows):
        msg = f"progress must pass on each of the {len(rows)} rows once, got {count}"
        raise ValueError(msg)


def _joined(x: Array, states: Any, ends: Any) -> Array:
    """The input and the states after the rows `ends`, along a new first axis."""
    xp = namespace(x)
    if _backend.is_jax(x):
        return xp.concat([x[None, ...], states[ends]])
    return xp.stack([x, *(states[r] for r in ends)])


def _floating(x: Array, table: Table) -> Array:
    """`x` as an array; of JAX if the table is still being traced."""
    given = x if hasattr(x, "dtype") else np.asarray(x)
    as_array = _backend.asfloat(given)
    if as_array.dtype != given.dtype:
        msg = f"x must have a floating-point dtype, got {given.dtype}"
        raise TypeError(msg)
    if concrete(table.carry) is None:
        return namespace(table.carry).asarray(as_array)
    return as_array


def _check_options(x: Array, table: Table, rng: Any, progress: Any) -> None:
    if progress is not None and _backend.is_jax(x):
        msg = "progress must be None under JAX, where the loop is compiled"
        raise ValueError(msg)
    if progress is not None:
        instance("progress", progress, Callable)
    shape, centre = tuple(x.shape), () if table.centre is None else tuple(table.centre.shape)
    fitting = [c in {1, n} for c, n in zip(reversed(centre), reversed(shape), strict=False)]
    if len(centre) > len(shape) or not all(fitting):
        msg = f"x must have a shape to which the path's centre of shape {centre} broadcasts, got {shape}"
        raise ValueError(msg)
    if table.noise is None and table.start is None:
        return
    if rng is None:
        msg = "rng must be given for a stochastic path, got None"
        raise ValueError(msg)
    _backend.check_rng(rng, x)


def _checked(value: Any, x: Array) -> Array:
    if type(value) is type(x) and value.dtype == x.dtype and value.shape == x.shape:
        return value
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(x.shape):
        got = f"shape {tuple(shape)}" if shape is not None else type(value).__name__
        msg = f"denoise must return an array of the shape of x, {tuple(x.shape)}, got {got}"
        raise ValueError(msg)
    if not _backend.matches(value, x):
        got = f"{type(value).__name__} of {value.dtype}"
        msg = f"denoise must return real numbers in an array of the library of x, got {got}"
        raise TypeError(msg)
    # a NumPy array is a constant under JAX
    return namespace(x).asarray(value) if _backend.is_jax(x) else value


def _answer(denoise: Denoiser, x: Array, level: Level, *, has_aux: bool) -> tuple[Any, Any]:
    """What the denoiser returns, and what beside it."""
    before = _backend.writes(x)
    found = denoise(x, level)
    if _backend.writes(x) != before:
        msg = "denoise must not write to its x, which is the state of the solver; it may write to x.clone()"
        raise ValueError(msg)
    if not has_aux:
        return found, None
    if not (isinstance(found, tuple) and len(found) == 2):
        msg = f"denoise must return a pair (x0_hat, aux) with has_aux, got {type(found).__name__}"
        raise ValueError(msg)
    return found
