"""Samplers by the names they are known by: each is a path and a method, with the orders that the tests measure.

`SAMPLERS` is the registry; ``samplers.dpmpp_2m`` is short for ``SAMPLERS["dpmpp_2m"]``. An entry runs like a function
and shows its coefficients with ``.table``. Where a published sampler departs from the formula of :doc:`/solvers`, the
entry of its name does the same, to rounding, and `differs` says what that is; the entry with ``_corrected`` does not.
The theory, the table of all entries with measured orders and the plots of what goes wrong: :doc:`/samplers`.

Conventions. Those of :doc:`/solvers`; times are strictly decreasing. `eta` is that of the entry: its field of that name
says whose.
"""

from __future__ import annotations

import difflib
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from types import MappingProxyType
from typing import Any

from diffnum import paths
from diffnum._arguments import instance, levels, number
from diffnum._backend import Array, asfloat, namespace
from diffnum._guarded import sigma_over_alpha
from diffnum._rules import half_end, half_moment, half_second_moment, uniform_places
from diffnum._runner import Denoiser, solve
from diffnum._tables import Method, Rule, Table
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule
from diffnum.solvers import (
    EULER,
    HEUN,
    KROGSTAD,
    KUTTA_3,
    MIDPOINT,
    RUNGE_KUTTA_3,
    Orders,
    adams_bashforth,
    adams_moulton,
    multistep,
    runge_kutta,
    two_stage,
)

__all__ = ["SAMPLERS", "Sampler", "churn_strength", "restart", "tau_interval"]


@dataclass(frozen=True, eq=False)
class Sampler:
    """A named sampler: a path and a method that become a table, :eq:`solvers-table`.

    Attributes
    ----------
    title : str
        The name in print.
    source : str
        Who published it.
    path : callable
        ``path(schedule, t, **options) -> Path``.
    method : callable
        ``method(path, **options) -> Table``. Both take the options they know and ignore the others.
    where : str
        The path in words.
    how : str
        The method in words.
    evaluations : int
        Calls of the denoiser for each step, those of the start left out.
    orders : Orders
        Orders on the ODE (with all noise switched off), weak and strong; the latter None for a sampler without noise.
    eta : str
        Whose eta the option `eta` is: "path", "ancestral" (Song's, and that of ancestral samplers), "2M-SDE"
        (k-diffusion's, the square of the path's), "tau", "churn" or "restart" for samplers with other options; "" for
        none.
    differs : str
        What the published sampler does differently from the plain method of its kind.
    options : mapping
        Options and their defaults.
    """

    title: str
    source: str
    path: Callable[..., Path] = field(repr=False)
    method: Callable[..., Table] = field(repr=False)
    where: str
    how: str
    evaluations: int
    orders: Orders
    eta: str = ""
    differs: str = ""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def table(self, schedule: Schedule, t: Array, /, **options: Any) -> Table:
        """Coefficients of the sampler on the times `t` of `schedule`, :eq:`solvers-table`.

        Parameters
        ----------
        schedule : Schedule
            Noise schedule.
        t : array, shape (N + 1,)
            Times, strictly decreasing.
        **options : Any
            Some of `options`.

        Returns
        -------
        Table
            In the namespace of `t`.

        Raises
        ------
        TypeError
            If an option is unknown.
        ValueError
            As the path and the method do.
        """
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            msg = f"options must be among {sorted(self.options)} for {self.title}, got {unknown}"
            raise TypeError(msg)
        chosen = {**self.options, **options}
        return self.method(self.path(schedule, t, **chosen), **chosen)

    def __call__(
        self,
        denoise: Denoiser,
        x: Array,
        schedule: Schedule,
        t: Array,
        /,
        *,
        rng: Any = None,
        trajectory: bool = False,
        **options: Any,
    ) -> Array:
        """Sample, :eq:`solvers-table`.

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
        rng : see `solve`, optional
            Source of noise; not used by a sampler without.
        trajectory : bool, optional
            Return the states at all nodes. Those of a predictor-corrector are the predicted ones.
        **options : Any
            Some of `options`.

        Returns
        -------
        array
            Sample, of the shape and dtype of `x`.

        Raises
        ------
        TypeError, ValueError
            As `table` and `solve` do.

        Notes
        -----
        Multistep samplers with noise want steps that are even in log-SNR: on data N(0, 0.5^2), from sigma 80 to 0.002
        in 24 steps, the standard deviation of `sde_dpmpp_2m_corrected` is 7 % too large there, 17 % on Karras' grid.
        """
        return solve(denoise, x, self.table(schedule, t, **options), rng=rng, trajectory=trajectory)


def churn_strength(
    schedule: Schedule, t: Array, /, *, s_churn: float, s_tmin: float = 0.0, s_tmax: float = math.inf
) -> Array:
    """EDM's relative increase of the noise level before each step: :eq:`samplers-churn`.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times, strictly decreasing.
    s_churn : float
        Strength, >= 0; it is divided by N.
    s_tmin, s_tmax : float, optional
        Noise is added where ``sigma/alpha`` lies between; ``s_tmin <= s_tmax``, which may be infinite.

    Returns
    -------
    array, shape (N,)
        gamma, for `paths.churn`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`, or `t` not real.
    ValueError
        If `s_churn` is negative, `s_tmin` and `s_tmax` are no interval, or `t` is no decreasing grid on `schedule`.

    References
    ----------
    T. Karras et al., Elucidating the design space of diffusion-based generative models (2022), Algorithm 2.

    Examples
    --------
    >>> from diffnum import grids, samplers, schedules
    >>> edm = schedules.edm()
    >>> t = grids.karras(edm, 5)
    >>> samplers.churn_strength(edm, t, s_churn=1.0, s_tmin=0.1, s_tmax=50.0).tolist()
    [0.0, 0.2, 0.2, 0.2, 0.0]
    """
    number("s_churn", s_churn, least=0.0)
    _check_interval("s_tmin", s_tmin, "s_tmax", s_tmax)
    levels(schedule, t)
    rho = sigma_over_alpha(schedule.level(asfloat(t, "t")[:-1]))
    xp = namespace(rho)
    gamma = min(s_churn / rho.shape[0], math.sqrt(2.0) - 1.0)
    return xp.where((rho >= s_tmin) & (rho <= s_tmax), xp.full_like(rho, gamma), xp.zeros_like(rho))


def tau_interval(tau: float = 1.0, /, *, low: float = 0.05, high: float = 1.0) -> Callable[[Array], Array]:
    """SA-Solver's stochasticity, constant on an interval of noise levels and 0 elsewhere: :eq:`samplers-tau`.

    Parameters
    ----------
    tau : float, optional
        Value inside, >= 0; the path's eta there.
    low, high : float, optional
        Ends of the interval, in sigma/alpha.

    Returns
    -------
    callable
        ``tau(rho)``, for the option `tau` of ``SAMPLERS["sa_solver"]``.

    Raises
    ------
    ValueError
        If `tau` is negative, or `low` and `high` are no interval.

    References
    ----------
    S. Xue et al., SA-Solver: stochastic Adams solver for fast sampling of diffusion models (2023).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import samplers
    >>> samplers.tau_interval(0.8)(np.array([10.0, 1.0, 0.01])).tolist()
    [0.0, 0.8, 0.0]
    """
    number("tau", tau, least=0.0)
    _check_interval("low", low, "high", high)

    def function(rho: Array) -> Array:
        rho = asfloat(rho, "rho")
        xp = namespace(rho)
        return xp.where((rho >= low) & (rho <= high), xp.full_like(rho, tau), xp.zeros_like(rho))

    return function


def restart(path: Path, jumps: Sequence[tuple[int, int, int]], /) -> Path:
    """The same path with parts of it gone through again after adding noise: :eq:`samplers-restart`.

    Parameters
    ----------
    path : Path
        An ODE path without gaps, on a schedule.
    jumps : sequence of tuple of int
        ``(i, j, k)``: having reached node j, add noise up to node i and take the steps from i to j again, k times.

    Returns
    -------
    Path
        N + sum of k (j - i) steps; the forward kernel :eq:`paths-bridge` bridges the gaps.

    Raises
    ------
    TypeError
        If `path` is no `Path`.
    ValueError
        If `path` is stochastic, has gaps or no schedule, or a jump is not three integers with 0 <= i < j <= N, k >= 0.

    References
    ----------
    Y. Xu et al., Restart sampling for improving generative processes (2023).

    Examples
    --------
    >>> from diffnum import grids, paths, samplers, schedules
    >>> edm = schedules.edm()
    >>> path = paths.noise(edm, grids.karras(edm, 6), coordinate="ratio")
    >>> samplers.restart(path, [(2, 4, 3)]).steps
    12
    """
    instance("path", path, Path)
    if path.stochastic or path.gaps or path.schedule is None:
        msg = f"path must be an ODE path on a schedule whose steps join, got {path.name}"
        raise ValueError(msg)
    again: dict[int, list[int]] = {}
    for jump in jumps if isinstance(jumps, Iterable) else (jumps,):
        i, j, k = _integers(jump)
        if not (0 <= i < j <= path.steps and k >= 0):
            msg = f"jumps must hold integers (i, j, k) with 0 <= i < j <= {path.steps} and k >= 0, got {jump!r}"
            raise ValueError(msg)
        again.setdefault(j - 1, []).extend([*range(i, j)] * k)
    if not any(again.values()):
        return path
    order = [step for n in range(path.steps) for step in (n, *again.get(n, ()))]
    xp = namespace(path.start.t)
    index = xp.asarray(order)
    start, stop = (Level(*(xp.take(part, index, axis=0) for part in level)) for level in (path.start, path.stop))
    return replace(path, name=f"restarted {path.name}", start=start, stop=stop, gaps=True)


def _integers(jump: Any) -> tuple[int, int, int]:
    """The three integers of a jump; integers that are refused if it does not hold three."""
    try:
        i, j, k = (-1 if isinstance(part, bool) else operator.index(part) for part in jump)
    except (TypeError, ValueError):
        return -1, -1, -1
    return i, j, k


def _check_interval(first: str, low: Any, second: str, high: Any) -> None:
    real = all(isinstance(end, Real) and not isinstance(end, bool) for end in (low, high))
    if not (real and low <= high):
        msg = f"{first} and {second} must be numbers with {first} <= {second}, got {low!r} and {high!r}"
        raise ValueError(msg)


# -- paths: builder, words, whose eta, options ------------------------------------------------------------------------


def _tau(start: Level, tau: Any) -> Any:
    """Stochasticity of each step, that of its start."""
    return tau(sigma_over_alpha(start)) if callable(tau) else tau


def _ddim(schedule: Schedule, t: Array, *, eta: Array | float, **_: Any) -> Path:
    return paths.ancestral(paths.x0(schedule, t), eta)


def _ratio(schedule: Schedule, t: Array, **_: Any) -> Path:
    return paths.noise(schedule, t, coordinate="ratio")


def _churned(schedule: Schedule, t: Array, *, s_churn: float, s_tmin: float, s_tmax: float, s_noise: float) -> Path:
    gamma = churn_strength(schedule, t, s_churn=s_churn, s_tmin=s_tmin, s_tmax=s_tmax)
    return paths.churn(_ratio(schedule, t), gamma, s_noise=s_noise)


_Kind = tuple[Callable[..., Any], str, str, dict[str, Any]]

_PATHS: dict[str, _Kind] = {
    "x0": (lambda s, t, **_: paths.x0(s, t), "x0", "", {}),
    "x0 sde": (lambda s, t, eta, **_: paths.x0(s, t, eta=eta), "x0", "path", {"eta": 1.0}),
    "x0 sde 1": (lambda s, t, **_: paths.x0(s, t, eta=1.0), "x0, eta = 1", "", {}),
    "x0 sde 2m": (lambda s, t, eta, **_: paths.x0(s, t, eta=paths.from_sde_2m_eta(eta)), "x0", "2M-SDE", {"eta": 1.0}),
    "x0 ddim": (_ddim, "x0, ancestral", "ancestral", {"eta": 0.0}),
    "x0 ancestral": (_ddim, "x0, ancestral", "ancestral", {"eta": 1.0}),
    "x0 tau": (
        lambda s, t, tau, **_: paths.x0(s, t, eta=_tau(s.level(t[:-1]), tau)), "x0", "tau",
        {"tau": tau_interval(), "predictor": 2, "corrector": 2},
    ),
    "noise": (lambda s, t, **_: paths.noise(s, t), "noise", "", {}),
    "noise sde": (lambda s, t, eta, **_: paths.noise(s, t, eta=eta), "noise", "path", {"eta": 1.0}),
    "time": (lambda s, t, **_: paths.noise(s, t, coordinate="t"), "noise, in t", "", {}),
    "ratio": (_ratio, "noise, ratio", "", {}),
    "ratio alpha": (_ratio, "noise, ratio", "", {"alpha": 2 / 3}),
    "ratio ancestral": (
        lambda s, t, eta, **_: paths.ancestral(_ratio(s, t), eta), "noise, ratio, ancestral", "ancestral", {"eta": 1.0}
    ),
    "ratio churn": (
        _churned, "noise, ratio, churn", "churn", {"s_churn": 0.0, "s_tmin": 0.0, "s_tmax": math.inf, "s_noise": 1.0}
    ),
    "ratio restart": (
        lambda s, t, jumps, **_: restart(_ratio(s, t), jumps), "noise, ratio, restart", "restart", {"jumps": ()}
    ),
    "velocity sde": (paths.velocity, "velocity", "path", {"eta": 1.0, "sigma_data": 1.0, "centre": 0.0}),
}  # fmt: skip

# -- methods: builder, words, evaluations a step ----------------------------------------------------------------------


def _adams(order: int, rule: Rule | None = None) -> tuple[Method, ...]:
    """Adams-Bashforth of orders 1 to `order`: what a ramp goes through."""
    nodes = [tuple(-j for j in range(k)) for k in range(1, order + 1)]
    return tuple(Method(f"Adams-Bashforth {len(n)}", len(n), (0.0,), (n,), rule=rule) for n in nodes)


def _corrected(predictor: int, corrector: int, rule: Rule | None = None) -> tuple[Method, ...]:
    """Predictors through up to `predictor` values, correctors through up to `corrector`; a ramp."""
    ladder = [*_adams(1)]
    for known in range(1, max(predictor, corrector)):
        nodes = tuple(-j for j in range(min(corrector, known + 1)))
        ladder.append(_adams(predictor, rule)[min(predictor, known + 1) - 1]._replace(corrector=nodes))
    return tuple(ladder)


def _growing(*ladder: Method) -> Callable[..., Table]:
    return lambda path, **_: multistep(path, ladder)


def _stages(method: Method, end: Method | None = None) -> Callable[..., Table]:
    return lambda path, **_: runge_kutta(path, method, end=end)


def _sa_solver(path: Path, *, tau: Any, predictor: int, corrector: int, **_: Any) -> Table:
    """The rule that the published program applies needs the rate of the kernel."""
    return multistep(path, _corrected(predictor, corrector, half_end(1.0 + _tau(path.start, tau) ** 2)))


_AB1, _AB2 = _adams(2)
_HALF_2 = _adams(2, half_moment)[1]
_HALF_3 = _adams(3, half_second_moment)[2]
_UNIFORM = _adams(4, uniform_places)
_DPM_2 = Method("DPM-2", 2, (0.0, 0.5), ((0,), (1,)), clock="log_snr")
_WEAK = two_stage(0.5, weak=True)

_METHODS: dict[str, tuple[Callable[..., Table], str, int]] = {
    "euler": (_growing(_AB1), "Euler", 1),
    "ab2": (_growing(_AB1, _AB2), "Adams-Bashforth 2", 1),
    "ab3": (lambda path, **_: adams_bashforth(path, 3), "Adams-Bashforth 3", 1),
    "ab3 ramp": (_growing(*_adams(3)), "Adams-Bashforth 3", 1),
    "ab4 ramp": (_growing(*_adams(4)), "Adams-Bashforth 4", 1),
    "half ab2": (_growing(_AB1, _HALF_2), "Adams-Bashforth 2", 1),
    "half ab3": (_growing(_AB1, _HALF_2, _HALF_3), "Adams-Bashforth 3", 1),
    "half ab3, full ab2": (_growing(_AB1, _AB2, _HALF_3), "Adams-Bashforth 3", 1),
    "uniform": (_growing(*_UNIFORM), "Adams-Bashforth 4", 1),
    "uniform, heun": (_growing(HEUN, *_UNIFORM[1:]), "Adams-Bashforth 4", 1),
    "am2": (lambda path, **_: adams_moulton(path, 2), "Adams-Moulton 2, PEC", 1),
    "am3": (lambda path, **_: adams_moulton(path, 3), "Adams-Moulton 3, PEC", 1),
    "am4": (lambda path, **_: adams_moulton(path, 4), "Adams-Moulton 4, PEC", 1),
    "sa": (_sa_solver, "Adams-Moulton 2, PEC", 1),
    "sa corrected": (
        lambda path, predictor, corrector, **_: multistep(path, _corrected(predictor, corrector)),
        "Adams-Moulton 2, PEC",
        1,
    ),
    "heun": (_stages(HEUN), "Heun", 2),
    "heun, euler": (_stages(HEUN, EULER), "Heun", 2),
    "alpha": (lambda path, alpha, **_: runge_kutta(path, two_stage(alpha), end=EULER), "stages at 0 and alpha", 2),
    "midpoint": (_stages(MIDPOINT), "midpoint", 2),
    "weak": (_stages(_WEAK), "midpoint", 2),
    "weak, one noise": (_stages(_WEAK._replace(noise="end")), "midpoint", 2),
    "dpm 2": (_stages(_DPM_2, EULER), "midpoint in log-SNR", 2),
    "rk3": (_stages(RUNGE_KUTTA_3), "Runge-Kutta 3", 3),
    "kutta": (_stages(KUTTA_3), "Kutta 3", 3),
    "rk4": (_stages(KROGSTAD), "Runge-Kutta 4", 4),
}
for _order, _kind in itertools.product((1, 2, 3), ("bh1", "bh2")):
    _METHODS[f"unipc {_order} {_kind}"] = (
        _growing(*_corrected(_order, _order + 1, half_end(1.0) if _kind == "bh1" else half_moment)),
        f"Adams-Moulton {_order + 1}, PEC",
        1,
    )

# -- the entries ------------------------------------------------------------------------------------------------------

_EDM, _K = "Karras et al. 2022", "k-diffusion"
_LU, _LU_PP = "Lu et al. 2022a", "Lu et al. 2022b"
_DEIS, _UNIPC, _SEEDS = "Zhang & Chen 2023", "Zhao et al. 2023", "Gonzalez et al. 2023"
_SA = "Xue et al. 2023"

_HALF = "half-weight for the first moment"
_MISSING = "half of the second moment is missing"
_RAMP = "ramp of orders 1, 2, 3, ..."
_FINAL = "lower_order_final in diffusers: last step of order 1 below 15 steps"
_FALLING = "lower_order_final in diffusers: ends with lower orders"
_EULER_END = "last step to sigma = 0 by Euler"
_VE = "written for alpha = 1"
_ONE = "kernel at the end for the first moment"


def _entry(
    title: str,
    source: str,
    path: str,
    method: str,
    *claims: Any,
) -> Sampler:
    build, where, eta, options = _PATHS[path]
    tabulate, how, evaluations = _METHODS[method]
    ode, weak, *differs = (*claims, None) if len(claims) == 1 else claims
    # a restart draws as often whatever the number of steps: between its draws it is an ODE
    strong = None if weak is None else ode if eta == "restart" else 1
    return Sampler(
        title=title,
        source=source,
        path=build,
        method=tabulate,
        where=where,
        how=how,
        evaluations=evaluations,
        orders=Orders(ode, weak, strong),
        eta=eta,
        differs="; ".join(differs),
        options=MappingProxyType(options),
    )


_ENTRIES: dict[str, tuple[Any, ...]] = {
    # order 1
    "ddim": ("DDIM", "Song et al. 2021", "x0 ddim", "euler", 1, 1),
    "ddpm": ("DDPM, ancestral sampling", "Ho et al. 2020", "x0 sde 1", "euler", 1, 1),
    "euler": ("Euler in sigma", _EDM, "ratio", "euler", 1),
    "euler_ancestral": ("Euler ancestral", _K, "ratio ancestral", "euler", 1, 1, _VE),
    "dpm_solver_1": ("DPM-Solver-1", _LU, "noise", "euler", 1, None, "is DDIM"),
    "sde_dpmpp_1": ("SDE-DPM-Solver++(1)", _LU_PP, "x0 sde", "euler", 1, 1),
    "seeds_1": ("SEEDS-1", _SEEDS, "noise sde", "euler", 1, 1, "eta = 1 only"),
    # Runge-Kutta
    "heun": ("Heun", _EDM, "ratio", "heun, euler", 2, None, _EULER_END),
    "heun_corrected": ("Heun, corrected", _EDM, "ratio", "heun", 2),
    "heun_churn": (
        "Heun with churn",
        _EDM,
        "ratio churn",
        "heun, euler",
        2,
        2,
        "noise times 1.003 to 1.007",
        _EULER_END,
    ),
    "alpha_rk2": ("alpha-RK2", _EDM, "ratio alpha", "alpha", 2, None, _EULER_END),
    "dpm_2": ("DPM-2", _K, "ratio", "dpm 2", 2, None, "weights of a stage half-way in sigma", _EULER_END),
    "dpm_2_ancestral": ("DPM-2 ancestral", _K, "ratio ancestral", "dpm 2", 2, 2, "as DPM-2", _VE),
    "dpm_solver_2": ("DPM-Solver-2", _LU, "noise", "weak", 2, None, _HALF),
    "dpm_solver_2_corrected": ("DPM-Solver-2, corrected", _LU, "noise", "midpoint", 2),
    "dpm_solver_3": ("DPM-Solver-3", _LU, "noise", "rk3", 3),
    "dpmpp_2s": ("DPM-Solver++(2S)", _LU_PP, "x0", "weak", 2, None, _HALF),
    "dpmpp_2s_corrected": ("DPM-Solver++(2S), corrected", _LU_PP, "x0", "midpoint", 2),
    "dpmpp_2s_ancestral": ("DPM-Solver++(2S) ancestral", _K, "x0 ancestral", "weak", 2, 2, _HALF, _VE),
    "deis_rho_kutta": ("DEIS, rho-Kutta", _DEIS, "ratio", "kutta", 3),
    "deis_rho_rk4": ("DEIS, rho-RK4", _DEIS, "ratio", "rk4", 4),
    # multistep
    "dpm_solver_2m": ("DPM-Solver(2M)", _LU_PP, "noise", "half ab2", 2, None, _HALF, _FINAL),
    "dpm_solver_2m_corrected": ("DPM-Solver(2M), corrected", _LU_PP, "noise", "ab2", 2),
    "dpm_solver_3m": ("DPM-Solver(3M)", _LU_PP, "noise", "half ab3", 2, None, _MISSING, _RAMP, _FINAL),
    "dpm_solver_3m_corrected": ("DPM-Solver(3M), corrected", _LU_PP, "noise", "ab3", 3),
    "dpmpp_2m": ("DPM-Solver++(2M)", _LU_PP, "x0", "half ab2", 2, None, _HALF, _FINAL),
    "dpmpp_2m_corrected": ("DPM-Solver++(2M), corrected", _LU_PP, "x0", "ab2", 2),
    "dpmpp_3m": ("DPM-Solver++(3M)", _LU_PP, "x0", "half ab3", 2, None, _MISSING, _RAMP, _FINAL),
    "dpmpp_3m_corrected": ("DPM-Solver++(3M), corrected", _LU_PP, "x0", "ab3", 3),
    "lms": ("LMS", _K, "ratio", "ab4 ramp", 2, None, _RAMP, "quadrature at tolerance 1e-4"),
    "plms": ("PLMS", "Liu et al. 2022", "ratio", "uniform, heun", 1, None, "weights of equal steps"),
    "ipndm": ("iPNDM", _DEIS, "ratio", "uniform", 1, None, "weights of equal steps", _RAMP),
    "deis_t": ("DEIS, tAB3", _DEIS, "time", "ab4 ramp", 2, None, _RAMP, "Riemann sums"),
    "deis_rho": ("DEIS, rhoAB3", _DEIS, "ratio", "ab4 ramp", 2, None, _RAMP),
    "deis_log_rho": ("DEIS in log rho", "diffusers", "noise", "ab3 ramp", 2, None, _RAMP, "cancels in float32"),
    # predictor-corrector
    "unipc_1_bh1": ("UniPC-1, B1", _UNIPC, "x0", "unipc 1 bh1", 2, None, _ONE),
    "unipc_1_bh2": ("UniPC-1, B2", _UNIPC, "x0", "unipc 1 bh2", 2, None, _HALF),
    "unipc_2_bh1": ("UniPC-2, B1", _UNIPC, "x0", "unipc 2 bh1", 3, None, _ONE, _FALLING),
    "unipc_2_bh2": ("UniPC-2, B2", _UNIPC, "x0", "unipc 2 bh2", 3, None, _HALF, _FALLING),
    "unipc_3_bh1": ("UniPC-3, B1", _UNIPC, "x0", "unipc 3 bh1", 3, None, _ONE, _RAMP, _FALLING),
    "unipc_3_bh2": ("UniPC-3, B2", _UNIPC, "x0", "unipc 3 bh2", 3, None, _HALF, _RAMP, _FALLING),
    "unipc_3_corrected": ("UniPC-3, corrected", _UNIPC, "x0", "am4", 4),
    "adams_moulton_2": ("Adams-Moulton 2", "classical", "ratio", "am2", 2),
    "adams_moulton_3": ("Adams-Moulton 3", "classical", "ratio", "am3", 3),
    "adams_moulton_4": ("Adams-Moulton 4", "classical", "ratio", "am4", 4),
    "sa_solver": ("SA-Solver", _SA, "x0 tau", "sa", 2, 2, _ONE),
    "sa_solver_corrected": ("SA-Solver, corrected", _SA, "x0 tau", "sa corrected", 2, 2),
    # stochastic, order 2
    "sde_dpmpp_2s": (
        "SDE-DPM-Solver++(2S), DPM++ SDE",
        _K,
        "x0 sde",
        "weak",
        2,
        2,
        _HALF,
        "ancestral eta and a Brownian path in sigma",
        "two independent noises in diffusers",
    ),
    "sde_dpmpp_2s_one_noise": (
        "SDE-DPM-Solver++(2S), one noise",
        "this book",
        "x0 sde",
        "weak, one noise",
        2,
        1,
        _HALF,
    ),
    "sde_dpmpp_3s": (
        "SDE-DPM-Solver++(3S)",
        "diffusers",
        "x0 sde",
        "rk3",
        3,
        2,
        "independent noises",
    ),
    "sde_dpmpp_2m": ("SDE-DPM-Solver++(2M)", _LU_PP, "x0 sde 2m", "half ab2", 2, 2, _HALF),
    "sde_dpmpp_2m_corrected": ("SDE-DPM-Solver++(2M), corrected", _LU_PP, "x0 sde", "ab2", 2, 2),
    "sde_dpmpp_3m": ("SDE-DPM-Solver++(3M)", _K, "x0 sde 2m", "half ab3, full ab2", 2, 2, _MISSING, _RAMP),
    "sde_dpmpp_3m_corrected": ("SDE-DPM-Solver++(3M), corrected", _K, "x0 sde", "ab3", 3, 2),
    "seeds_2": ("SEEDS-2", _SEEDS, "noise sde", "weak", 2, 2, "eta = 1 only", _HALF),
    "restart": (
        "Restart",
        "Xu et al. 2023",
        "ratio restart",
        "heun, euler",
        2,
        2,
        "a grid of its own for each restart",
    ),
    "velocity_sde": ("Exponential SDE in the angle", "this book", "velocity sde", "ab2", 2, 2),
}


class _Registry(dict[str, Sampler]):
    def __missing__(self, name: Any) -> Sampler:
        raise KeyError(_unknown(name))


def _unknown(name: Any) -> str:
    close = difflib.get_close_matches(str(name), _ENTRIES, n=5, cutoff=0.5)
    names = f"close names are {', '.join(close)}" if close else f"the names are {', '.join(_ENTRIES)}"
    return f"SAMPLERS has no {name!r}; {names}"


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(_Registry({name: _entry(*e) for name, e in _ENTRIES.items()}))
"""All samplers by their short names."""


def __getattr__(name: str) -> Sampler:
    if name in SAMPLERS:
        return SAMPLERS[name]
    msg = f"module {__name__!r} has no attribute {name!r}; {_unknown(name)}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *SAMPLERS})
