"""Solvers: a sampler is a path and a method, and both become a table that one loop runs.

`adams_bashforth` and `runge_kutta` make tables from the paths of :doc:`/paths`; `solve` runs any table on NumPy,
PyTorch or JAX arrays. The named samplers are combinations of the two. Derivations, orders and the plots that prove
them: :doc:`/solvers`.

Conventions. ``denoise(x, level)`` returns the posterior mean of the clean data, of the shape of `x`; `level` is a
`Level` of 0-d arrays of the library of `x`, float32 at least. The result has the shape and dtype of `x`; the state
between rows is float32 at least. Under JAX, wrap the whole sampler in ``jax.jit``: called eagerly it is compiled anew
at each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum import _backend, paths
from diffnum._arguments import choose, instance
from diffnum._backend import Array, concrete, namespace
from diffnum._tables import Method, Table, assemble
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule

__all__ = [
    "EULER",
    "HEUN",
    "MIDPOINT",
    "ORDERS",
    "RUNGE_KUTTA_3",
    "Method",
    "Orders",
    "Table",
    "ab1",
    "ab2",
    "ab3",
    "ab4",
    "adams_bashforth",
    "assemble",
    "ddim",
    "heun",
    "runge_kutta",
    "solve",
]

Denoiser = Callable[[Array, Level], Array]

EULER = Method("exponential Euler", 1, (0.0,), ((0,),))
"""One evaluation at the start of the step; order 1."""

MIDPOINT = Method("exponential midpoint", 2, (0.0, 0.5), ((0,), (0, 1)))
"""Two evaluations, the second half-way; order 2, stiff order conditions included."""

HEUN = Method("exponential Heun", 2, (0.0, 1.0), ((0,), (0, 1)))
"""Two evaluations, the second at the end of the step; order 2, stiff order conditions included."""

RUNGE_KUTTA_3 = Method("exponential Runge-Kutta 3", 3, (0.0, 1 / 3, 2 / 3), ((0,), (0, 1), (0, 2)))
"""Three evaluations (DPM-Solver-3); order 3, of which 2 with stiff order conditions."""

_ADAMS_BASHFORTH = tuple(Method(f"Adams-Bashforth {k}", k, (0.0,), (tuple(-j for j in range(k)),)) for k in range(1, 5))


class Orders(NamedTuple):
    """Orders of convergence of a sampler, as :eq:`solvers-orders` defines them.

    Attributes
    ----------
    ode : int
        On the probability-flow ODE.
    weak : int
        Of the law of the result, on a path with eta > 0.
    strong : int
        Of the result itself for one Brownian path, on a path with eta > 0.
    """

    ode: int
    weak: int
    strong: int


ORDERS = {
    "ab1": Orders(1, 1, 1),
    "ab2": Orders(2, 2, 1),
    "ab3": Orders(3, 2, 1),
    "ab4": Orders(4, 2, 1),
    "ddim": Orders(1, 1, 1),
    "heun": Orders(2, 2, 1),
}
"""Stated orders of the named samplers; the tests measure each of them."""


def adams_bashforth(path: Path, order: int, *, start: Literal["runge_kutta", "ramp"] = "runge_kutta") -> Table:
    """Table of the Adams-Bashforth method with variable steps: :eq:`solvers-adams-bashforth`.

    Parameters
    ----------
    path : Path
        What is integrated exactly.
    order : int
        Number of values interpolated, 1 to 4.
    start : {"runge_kutta", "ramp"}, optional
        How the first steps are made. "runge_kutta" keeps the order: Runge-Kutta steps of order `order` - 1 until the
        next lower Adams-Bashforth method can take over, which costs 1 evaluation at order 3 and 4 at order 4. "ramp"
        runs orders 1, 2, 3, ..., as most published samplers do, and is of global order 2 at most.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid, one evaluation for each step (and those of the start).

    Raises
    ------
    ValueError
        If `order` is not 1 to 4 or `start` is unknown.

    Notes
    -----
    The weights are :eq:`solvers-weights`, the first steps :eq:`solvers-start`. A step that starts or stops where the
    path's coordinate is infinite (`x0` at alpha = 0 or sigma = 0) is taken with order 1, and an infinite start is no
    interpolation node: :eq:`solvers-ends`. On a grid that JAX traces all coordinates count as finite.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import adams_bashforth
    >>> edm = schedules.edm()
    >>> table = adams_bashforth(paths.noise(edm, grids.karras(edm, 10), coordinate="ratio"), 3)
    >>> table.steps, table.evaluations
    (10, 11)
    """
    instance("path", path, Path)
    order = _order(order)
    choose("start", start, ("runge_kutta", "ramp"))
    starters = {3: [MIDPOINT], 4: [RUNGE_KUTTA_3, RUNGE_KUTTA_3]}.get(order, []) if start == "runge_kutta" else []
    plan: list[Method] = []
    usable = 0
    for starts, stops in zip(_finite(path, path.start), _finite(path, path.stop), strict=True):
        if not (starts and stops):
            plan.append(EULER)
            usable += starts
        else:
            plan.append(starters[usable] if usable < len(starters) else _ADAMS_BASHFORTH[min(usable, order - 1)])
            usable += 1
    return assemble(path, plan)


def runge_kutta(path: Path, method: Method) -> Table:
    """Table of an exponential Runge-Kutta method: :eq:`solvers-runge-kutta`.

    Parameters
    ----------
    path : Path
        What is integrated exactly.
    method : Method
        A method without history: `EULER`, `MIDPOINT`, `HEUN`, `RUNGE_KUTTA_3` or one of your own.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid, ``len(method.stages)`` evaluations for each step.

    Raises
    ------
    ValueError
        If `method` looks at earlier steps.

    Notes
    -----
    The weights are :eq:`solvers-weights`, the rows :eq:`solvers-one-state`. Where f is singular at the end of a step
    (sigma = 0), a method that evaluates there gives way to `MIDPOINT`, which keeps order 2; where the coordinate is
    infinite, to `EULER`: :eq:`solvers-ends`. On a grid that JAX traces all levels count as regular: there `MIDPOINT`
    can end at sigma = 0, `HEUN` cannot.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import MIDPOINT, runge_kutta
    >>> flow = schedules.rectified_flow()
    >>> runge_kutta(paths.velocity(flow, grids.uniform(flow, 8)), MIDPOINT).evaluations
    16
    """
    instance("path", path, Path)
    instance("method", method, Method)
    if method.history:
        msg = f"method must not look at earlier steps, got {method.name} with {method.history}"
        raise ValueError(msg)
    plan = []
    finite = zip(_finite(path, path.start), _finite(path, path.stop), _regular(path, path.stop), strict=True)
    for starts, stops, regular in finite:
        if not (starts and stops):
            plan.append(EULER)
        else:
            plan.append(method if regular or 1.0 not in method.stages else MIDPOINT)
    return assemble(path, plan)


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
) -> Any:
    """Run a table: :eq:`solvers-table`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape and library of `x`. It must not write to its `x`: on NumPy that is
        read-only, on PyTorch a write would change the state.
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
        If a stochastic table comes without `rng`, the table's centre does not broadcast to `x`, `denoise` returns
        another shape, `progress` is used under JAX, or it leaves out rows.

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
    registers = table.weights.shape[1]
    centre = None if table.centre is None else _backend.convert(table.centre, x, state)

    def body(carry: tuple, row: _Row) -> tuple[tuple, tuple]:
        y, stored = carry
        u = _backend.read_only(_backend.cast(y, dtype))
        value, aux = denoise(u, row.level) if has_aux else (denoise(u, row.level), None)
        value = _checked(value, u)
        f = _backend.cast(value, state)
        if row.target is not None:
            f = row.target[0] * y + row.target[1] * f
        # stored before it is combined: in this order XLA makes no copy of the registers
        f = _backend.cast(f, dtype)
        # the denoiser may use its array again
        stored = _backend.put(stored, row.slot, _backend.copy(f) if registers > 1 and f is value else f)
        y = row.carry * y
        for k in range(registers):
            weight = row.weights[k]
            if not (isinstance(weight, float) and weight == 0.0):
                y += weight * stored[k]
        if row.bias is not None:
            y += row.bias * centre
        if row.noise is not None:
            y = _backend.add_normal(y, row.noise, rng, row.number, known=known)
        recorded = _backend.cast(y, dtype) if trajectory else None
        return (y, stored if registers > 1 else None), (recorded, aux)

    y = _backend.cast(x, state)
    known = table.noise is not None and concrete(table.noise) is not None
    if table.start is not None:
        scale, added = _backend.columns(table.start, x, state)
        y = _backend.add_normal(scale * y, added, rng, table.evaluations)
    rows = _rows(table, x, state)
    stored = _backend.registers(x, registers) if registers > 1 else None
    (end, _), outs = _backend.scan(body, (y, stored), rows if progress is None else progress(rows), x)
    if progress is not None and len(outs) != table.evaluations:
        msg = f"progress must pass on each of the {table.evaluations} rows once, got {len(outs)}"
        raise ValueError(msg)
    states, aux = outs if _backend.is_jax(x) else zip(*outs, strict=True)
    if not trajectory:
        result = _backend.cast(end, dtype)
    elif _backend.is_jax(x):
        result = xp.concat([x[None, ...], states[table.end]])
    else:
        result = xp.stack([x, *(states[r] for r in table.end)])
    if not has_aux:
        return result
    return result, aux if _backend.is_jax(x) else xp.stack(aux)


def ab1(
    denoise: Denoiser, x: Array, path: Path, /, *, rng: Any = None, trajectory: bool = False, progress: Any = None
) -> Array:
    """Sample with Adams-Bashforth of order 1: :eq:`solvers-adams-bashforth`; on `paths.x0` this is DDIM.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level.
    path : Path
        What is integrated exactly, and the grid.
    rng : see `solve`, optional
        Source of noise for a stochastic path.
    trajectory : bool, optional
        Return all N + 1 states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve` does.

    Notes
    -----
    N evaluations. Order 1; on ``x0`` with eta = 1 it is ancestral sampling (DDPM).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import ab1
    >>> flow = schedules.rectified_flow()
    >>> ab1(lambda x, level: 0.0 * x + 1.0, np.array([0.3]), paths.x0(flow, grids.uniform(flow, 4))).tolist()
    [1.0]
    """
    return solve(denoise, x, adams_bashforth(path, 1), rng=rng, trajectory=trajectory, progress=progress)


def ab2(
    denoise: Denoiser, x: Array, path: Path, /, *, rng: Any = None, trajectory: bool = False, progress: Any = None
) -> Array:
    """Sample with Adams-Bashforth of order 2: :eq:`solvers-adams-bashforth`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level.
    path : Path
        What is integrated exactly, and the grid.
    rng : see `solve`, optional
        Source of noise for a stochastic path.
    trajectory : bool, optional
        Return all N + 1 states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve` does.

    Notes
    -----
    N evaluations. Order 2 from a first step of order 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, oracles, paths, schedules
    >>> from diffnum.solvers import ab2
    >>> flow, data = schedules.rectified_flow(), oracles.gaussian(np.array([1.0]), 0.5)
    >>> path = paths.velocity(flow, grids.uniform(flow, 8), sigma_data=0.5, centre=1.0)
    >>> ab2(data.denoise, np.array([0.3]), path).round(12).tolist()
    [1.15]
    """
    return solve(denoise, x, adams_bashforth(path, 2), rng=rng, trajectory=trajectory, progress=progress)


def ab3(
    denoise: Denoiser, x: Array, path: Path, /, *, rng: Any = None, trajectory: bool = False, progress: Any = None
) -> Array:
    """Sample with Adams-Bashforth of order 3: :eq:`solvers-adams-bashforth`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level.
    path : Path
        What is integrated exactly, and the grid.
    rng : see `solve`, optional
        Source of noise for a stochastic path.
    trajectory : bool, optional
        Return all N + 1 states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve` does.

    Notes
    -----
    N + 1 evaluations: the first step is an exponential midpoint step, which keeps order 3.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, oracles, paths, schedules
    >>> from diffnum.solvers import ab3
    >>> flow, data = schedules.rectified_flow(), oracles.gaussian(np.array([1.0]), 0.5)
    >>> path = paths.velocity(flow, grids.uniform(flow, 8), sigma_data=0.5, centre=1.0)
    >>> ab3(data.denoise, np.array([0.3]), path).round(12).tolist()
    [1.15]
    """
    return solve(denoise, x, adams_bashforth(path, 3), rng=rng, trajectory=trajectory, progress=progress)


def ab4(
    denoise: Denoiser, x: Array, path: Path, /, *, rng: Any = None, trajectory: bool = False, progress: Any = None
) -> Array:
    """Sample with Adams-Bashforth of order 4: :eq:`solvers-adams-bashforth`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level.
    path : Path
        What is integrated exactly, and the grid.
    rng : see `solve`, optional
        Source of noise for a stochastic path.
    trajectory : bool, optional
        Return all N + 1 states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve` does.

    Notes
    -----
    N + 4 evaluations: the first two steps are Runge-Kutta steps of order 3, which keeps order 4.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, oracles, paths, schedules
    >>> from diffnum.solvers import ab4
    >>> flow, data = schedules.rectified_flow(), oracles.gaussian(np.array([1.0]), 0.5)
    >>> path = paths.velocity(flow, grids.uniform(flow, 8), sigma_data=0.5, centre=1.0)
    >>> ab4(data.denoise, np.array([0.3]), path).round(12).tolist()
    [1.15]
    """
    return solve(denoise, x, adams_bashforth(path, 4), rng=rng, trajectory=trajectory, progress=progress)


def heun(
    denoise: Denoiser, x: Array, path: Path, /, *, rng: Any = None, trajectory: bool = False, progress: Any = None
) -> Array:
    """Sample with the exponential Heun method: :eq:`solvers-runge-kutta`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level.
    path : Path
        What is integrated exactly, and the grid.
    rng : see `solve`, optional
        Source of noise for a stochastic path.
    trajectory : bool, optional
        Return all N + 1 states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve` does.

    Notes
    -----
    2 N evaluations, order 2. On ``noise`` in ratio form it is EDM's sampler, except for a last step to sigma = 0: EDM
    takes it with order 1, this function with the midpoint method, which keeps order 2.

    References
    ----------
    T. Karras et al., Elucidating the design space of diffusion-based generative models (2022), Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, oracles, paths, schedules
    >>> from diffnum.solvers import heun
    >>> flow, data = schedules.rectified_flow(), oracles.gaussian(np.array([1.0]), 0.5)
    >>> path = paths.velocity(flow, grids.uniform(flow, 8), sigma_data=0.5, centre=1.0)
    >>> heun(data.denoise, np.array([0.3]), path).round(12).tolist()
    [1.15]
    """
    return solve(denoise, x, runge_kutta(path, HEUN), rng=rng, trajectory=trajectory, progress=progress)


def ddim(
    denoise: Denoiser,
    x: Array,
    schedule: Schedule,
    t: Array,
    /,
    *,
    eta: Array | float = 0.0,
    rng: Any = None,
    trajectory: bool = False,
) -> Array:
    """Sample with DDIM: order 1 on `paths.x0`, ancestral with DDIM's own eta :eq:`paths-ancestral`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at ``t[0]``.
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times, strictly decreasing.
    eta : float or array of shape (N,), optional
        DDIM's eta, in [0, 1]: 0 is deterministic, 1 is ancestral sampling (DDPM).
    rng : see `solve`, optional
        Source of noise if ``eta > 0``.
    trajectory : bool, optional
        Return all N + 1 states.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `solve`, `paths.x0` and `paths.ancestral` do.

    References
    ----------
    J. Song, C. Meng and S. Ermon, Denoising diffusion implicit models (2021), Eq. 12 and 16.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, schedules
    >>> from diffnum.solvers import ddim
    >>> flow = schedules.rectified_flow()
    >>> ddim(lambda x, level: 0.0 * x + 1.0, np.array([0.3]), flow, grids.uniform(flow, 4)).tolist()
    [1.0]
    """
    path = paths.ancestral(paths.x0(schedule, t), eta)
    return solve(denoise, x, adams_bashforth(path, 1), rng=rng, trajectory=trajectory)


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
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(x.shape):
        got = f"shape {tuple(shape)}" if shape is not None else type(value).__name__
        msg = f"denoise must return an array of the shape of x, {tuple(x.shape)}, got {got}"
        raise ValueError(msg)
    if not _backend.matches(value, x):
        got = f"{type(value).__name__} of {value.dtype}"
        msg = f"denoise must return real numbers in an array of the library of x, got {got}"
        raise TypeError(msg)
    return value


def _order(order: Any) -> int:
    if isinstance(order, bool) or not hasattr(order, "__index__"):
        msg = f"order must be an integer from 1 to 4, got {order!r}"
        raise TypeError(msg)
    order = operator.index(order)
    if not 1 <= order <= 4:
        msg = f"order must be an integer from 1 to 4, got {order!r}"
        raise ValueError(msg)
    return order


def _finite(path: Path, level: Level) -> list[bool]:
    """Whether the path's coordinate is finite at each level; taken for granted on a traced grid."""
    known = concrete(path.coordinate(level))
    return [True] * path.steps if known is None else np.isfinite(known).tolist()


def _regular(path: Path, level: Level) -> list[bool]:
    """Whether f can be formed at each level."""
    known = concrete(level.sigma)
    return [True] * path.steps if known is None or path.target is None else (known > 0.0).tolist()
