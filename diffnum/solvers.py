"""Solvers: a sampler is a path and a method, and both become a table that one loop runs.

`adams_bashforth`, `adams_moulton` and `runge_kutta` make tables from the paths of :doc:`/paths`; `solve` runs any
table on NumPy, PyTorch or JAX arrays. The named samplers are combinations of the two. Derivations, orders and the plots
that prove them: :doc:`/solvers`; samplers as they were published: :doc:`/samplers`.

Conventions. ``denoise(x, level)`` returns the posterior mean of the clean data, of the shape of `x`; `level` is a
`Level` of 0-d arrays of the library of `x`, float32 at least. The result has the shape and dtype of `x`; the state
between rows is float32 at least. Under JAX, wrap the whole sampler in ``jax.jit``: called eagerly it is compiled anew
at each call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum import paths
from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, concrete
from diffnum._default import default, default_grid, default_table
from diffnum._rules import half_moment
from diffnum._runner import Denoiser, solve
from diffnum._tables import Method, Table, assemble
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule

__all__ = [
    "EULER",
    "HEUN",
    "KROGSTAD",
    "KUTTA_3",
    "MIDPOINT",
    "ORDERS",
    "RUNGE_KUTTA_3",
    "STIFF_3",
    "STIFF_4",
    "Method",
    "Orders",
    "Table",
    "ab1",
    "ab2",
    "ab3",
    "ab4",
    "adams_bashforth",
    "adams_moulton",
    "assemble",
    "ddim",
    "default",
    "default_grid",
    "default_table",
    "heun",
    "multistep",
    "runge_kutta",
    "solve",
    "two_stage",
]

EULER = Method("exponential Euler", 1, (0.0,), ((0,),))
"""One evaluation at the start of the step; order 1."""

MIDPOINT = Method("exponential midpoint", 2, (0.0, 0.5), ((0,), (0, 1)))
"""Two evaluations, the second half-way; order 2, stiff order conditions included."""

HEUN = Method("exponential Heun", 2, (0.0, 1.0), ((0,), (0, 1)))
"""Two evaluations, the second at the end of the step; order 2, stiff order conditions included."""

RUNGE_KUTTA_3 = Method("exponential Runge-Kutta 3", 3, (0.0, 1 / 3, 2 / 3), ((0,), (0, 1), (0, 2)))
"""Three evaluations (DPM-Solver-3); order 3, of which 2 with stiff order conditions."""

KUTTA_3 = Method(
    "exponential Kutta 3",
    3,
    (0.0, 0.5, 1.0),
    ((0,), (0, 1), (0, 1, 2)),
    basis=(None, ((-1.0,), (2.0,)), None),
)
"""Three evaluations; on a constant kernel Kutta's method of order 3: :eq:`samplers-polynomials`."""

KROGSTAD = Method(
    "Krogstad",
    4,
    (0.0, 0.5, 0.5, 1.0),
    ((0,), (0, 1), (0, 2), (0, 1, 2, 3)),
    basis=(
        None,
        ((1.0, -2.0), (0.0, 2.0)),
        None,
        ((1.0, -3.0, 2.0), (0.0, 2.0, -2.0), (0.0, 2.0, -2.0), (0.0, -1.0, 2.0)),
    ),
)
"""Four evaluations; order 4, on a constant kernel the classical Runge-Kutta method: :eq:`samplers-polynomials`."""

STIFF_3 = Method("stiff Runge-Kutta 3", 3, (0.0, 1 / 4, 1 / 2, 3 / 4), ((0,), (0, 1), (0, 1), (0, 2, 3)))
"""Four evaluations, the last two from linear interpolation; order 3, with its stiff conditions :eq:`samplers-stiff`."""

STIFF_4 = Method(
    "stiff Runge-Kutta 4",
    4,
    (0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.9),
    ((0,), (0, 1), (0, 1), (0, 2, 3), (0, 2, 3), (0, 2, 3), (0, 4, 5, 6)),
)
"""Seven evaluations, the last three from parabolas; order 4, with its stiff conditions :eq:`samplers-stiff`."""

_STARTERS = {3: (MIDPOINT,), 4: (RUNGE_KUTTA_3, RUNGE_KUTTA_3)}
_ADAMS_BASHFORTH = tuple(Method(f"Adams-Bashforth {k}", k, (0.0,), (tuple(-j for j in range(k)),)) for k in range(1, 5))


class Orders(NamedTuple):
    """Orders of convergence of a sampler, as :eq:`solvers-orders` defines them.

    Attributes
    ----------
    ode : int
        On the probability-flow ODE.
    weak : int or None
        Of the law of the result, on a path with eta > 0; None for a sampler without noise.
    strong : int or None
        Of the result itself for one Brownian path, on a path with eta > 0.
    """

    ode: int
    weak: int | None
    strong: int | None


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
    starters = _STARTERS.get(order, ()) if start == "runge_kutta" else ()
    return multistep(path, (*starters, *_ADAMS_BASHFORTH[len(starters) : order]))


def adams_moulton(path: Path, order: int, *, start: Literal["runge_kutta", "ramp"] = "runge_kutta") -> Table:
    """Table of a predictor-corrector of one evaluation a step: :eq:`samplers-adams-moulton`.

    Each step is predicted by Adams-Bashforth of order `order` - 1. The evaluation at its end serves the next
    prediction, and also the method of Adams and Moulton of order `order` for the step that has just been made (PEC).

    Parameters
    ----------
    path : Path
        What is integrated exactly; its steps must join.
    order : int
        Number of values that the corrector interpolates, 2 to 4.
    start : {"runge_kutta", "ramp"}, optional
        At order 4, whether the first step is a Runge-Kutta step of order 3, at two more evaluations, or predictors and
        correctors grow from the lowest order, which caps the order at 3. Lower orders need no other start.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid. The states between steps are the predicted ones.

    Raises
    ------
    ValueError
        If `order` is not 2 to 4, `start` is unknown or the path has gaps.

    Notes
    -----
    No second state vector: :eq:`samplers-one-state`. The last step is not corrected, which costs no order.

    References
    ----------
    E. Hairer, S. Norsett and G. Wanner, Solving Ordinary Differential Equations I (1993), chapter III.1.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import adams_moulton
    >>> edm = schedules.edm()
    >>> table = adams_moulton(paths.noise(edm, grids.karras(edm, 10), coordinate="ratio"), 3)
    >>> table.steps, table.evaluations
    (10, 10)
    """
    instance("path", path, Path)
    choose("start", start, ("runge_kutta", "ramp"))
    order = _order(order, 2)
    predictors = _ADAMS_BASHFORTH[: order - 1]
    correctors = [tuple(-j for j in range(k)) for k in range(2, order + 1)]
    ladder = [predictors[0]]
    for k, corrector in enumerate(correctors):
        ladder.append(predictors[min(k + 1, order - 2)]._replace(corrector=corrector))
    if order == 4 and start == "runge_kutta":
        # a first step of order 3 is corrected by nothing
        ladder[:2] = RUNGE_KUTTA_3, predictors[1]
    return multistep(path, ladder)


def multistep(path: Path, ladder: Sequence[Method]) -> Table:
    """Table of methods that grow with the values they find: :eq:`solvers-start`, ends by :eq:`solvers-ends`.

    Parameters
    ----------
    path : Path
        What is integrated exactly.
    ladder : sequence of Method
        ``ladder[j]`` is for steps before which j values are known; the last one for more.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid.

    Raises
    ------
    ValueError
        If `ladder` is empty.

    Notes
    -----
    A step that starts or stops where the path's coordinate is infinite is `EULER`, with the corrector of its place in
    the ladder.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import HEUN, Method, multistep
    >>> flow = schedules.rectified_flow()
    >>> trapezoidal = Method("two old values", 2, (0.0,), ((0, -1),))
    >>> multistep(paths.velocity(flow, grids.uniform(flow, 8)), (HEUN, trapezoidal)).evaluations
    9
    """
    instance("path", path, Path)
    if isinstance(ladder, Method) or not ladder:
        msg = f"ladder must be a sequence of methods, at least one, got {ladder!r}"
        raise ValueError(msg)
    plan: list[Method] = []
    usable = 0
    finite = zip(_finite(path, path.start), _finite(path, path.stop), _regular(path, path.stop), strict=True)
    for starts, stops, regular in finite:
        method = ladder[min(usable, len(ladder) - 1)]
        if starts and stops:
            plan.append(method if regular else _regular_at_end(method))
            usable += 1
        else:
            plan.append(EULER._replace(corrector=method.corrector, rule=method.rule) if method.corrector else EULER)
            usable += starts
    return assemble(path, plan)


def two_stage(c: float, /, *, weak: bool = False) -> Method:
    """Runge-Kutta method with a second evaluation at the fraction `c` of a step: :eq:`solvers-stiff-order`.

    Parameters
    ----------
    c : float
        Place of the second evaluation, in (0, 1]: 1/2 is `MIDPOINT`, 1 is `HEUN`; EDM's alpha.
    weak : bool, optional
        Take the weight ``phi_1/(2 c)`` in place of ``phi_2/c``, as DPM-Solver-2 and ++(2S) do: :eq:`samplers-half`.

    Returns
    -------
    Method
        Of order 2; with stiff order conditions 2, of which the weak one has 1.

    Raises
    ------
    ValueError
        If `c` is not in (0, 1].

    Examples
    --------
    >>> from diffnum.solvers import MIDPOINT, two_stage
    >>> two_stage(0.5).stages == MIDPOINT.stages
    True
    """
    c = number("c", c, above=0.0)
    if c > 1.0:
        msg = f"c must be at most 1, got {c!r}"
        raise ValueError(msg)
    name = f"exponential{' weak' if weak else ''} two-stage {c:g}"
    return Method(name, 2, (0.0, c), ((0,), (0, 1)), rule=half_moment if weak else None)


def runge_kutta(path: Path, method: Method, *, end: Method | None = None) -> Table:
    """Table of an exponential Runge-Kutta method: :eq:`solvers-runge-kutta`.

    Parameters
    ----------
    path : Path
        What is integrated exactly.
    method : Method
        A method without history: `EULER`, `MIDPOINT`, `HEUN`, `RUNGE_KUTTA_3`, ... or one of your own.
    end : Method, optional
        Method of steps at whose end f is singular (sigma = 0). By default `method`, unless it evaluates there or counts
        its stages in log-SNR; then one that keeps the order, `MIDPOINT` or, above order 2, `RUNGE_KUTTA_3`.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid, ``len(method.stages)`` evaluations for each step.

    Raises
    ------
    ValueError
        If `method` or `end` looks at earlier steps.

    Notes
    -----
    The weights are :eq:`solvers-weights`, the rows :eq:`solvers-one-state`. Where f is singular at the end of a step
    (sigma = 0), a method that cannot end there gives way to `end`; where the coordinate is infinite, to `EULER`:
    :eq:`solvers-ends`. On a grid that JAX traces all levels count as regular: there `MIDPOINT` can end at sigma = 0,
    `HEUN` cannot.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.solvers import MIDPOINT, runge_kutta
    >>> flow = schedules.rectified_flow()
    >>> runge_kutta(paths.velocity(flow, grids.uniform(flow, 8)), MIDPOINT).evaluations
    16
    """
    instance("path", path, Path)
    for name, one in (("method", method), ("end", end or method)):
        instance(name, one, Method)
        if one.history:
            msg = f"{name} must not look at earlier steps, got {one.name} with {one.history}"
            raise ValueError(msg)
    plan = []
    finite = zip(_finite(path, path.start), _finite(path, path.stop), _regular(path, path.stop), strict=True)
    for starts, stops, regular in finite:
        if not (starts and stops):
            plan.append(EULER)
        else:
            plan.append(method if regular else end or _regular_at_end(method))
    return assemble(path, plan)


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


def _order(order: Any, least: int = 1) -> int:
    if isinstance(order, bool) or not hasattr(order, "__index__"):
        msg = f"order must be an integer from {least} to 4, got {order!r}"
        raise TypeError(msg)
    order = operator.index(order)
    if not least <= order <= 4:
        msg = f"order must be an integer from {least} to 4, got {order!r}"
        raise ValueError(msg)
    return order


def _finite(path: Path, level: Level) -> list[bool]:
    """Whether the path's coordinate is finite at each level; taken for granted on a traced grid."""
    known = concrete(path.coordinate(level))
    return [True] * path.steps if known is None else np.isfinite(known).tolist()


def _regular_at_end(method: Method) -> Method:
    """The method itself, or one of its order that can take a step to where f cannot be evaluated."""
    if not (1.0 in method.stages or method.clock == "log_snr"):
        return method
    return MIDPOINT if method.order <= 2 else RUNGE_KUTTA_3


def _regular(path: Path, level: Level) -> list[bool]:
    """Whether f can be formed at each level."""
    known = concrete(level.sigma)
    return [True] * path.steps if known is None or path.target is None else (known > 0.0).tolist()
