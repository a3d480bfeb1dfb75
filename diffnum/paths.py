"""Paths: what a sampler integrates exactly, and in which coordinate the rest is interpolated.

Every diffusion ODE and SDE, and every semilinear ODE, is written step by step as

    y_b = P y_a + integral over the step of K(s) f(s) ds + N z,

with the denoiser inside f only. A `Path` holds the levels a sampler visits and the functions that give P, N, the
moments of K and the coordinate s between any two levels. Which formula a method then makes of them is the business of
:doc:`/solvers`. The derivations are in :doc:`/paths`.

Conventions. Levels are listed in the order they are visited, the noisiest first. All functions of a path are
vectorised over steps: a level holds arrays of shape (n,), and `steps`, where it appears, says which steps of the path
these are (an `eta` may differ from step to step). ``lambda = log(alpha/sigma)`` in nats, ``rho = sigma/alpha``,
``theta = atan2(sigma, alpha sigma_data)``. Three numbers are called eta in use; here

- `eta` of a path is that of the exact SDE: its noise in a step is ``1 - exp(-2 eta^2 h)`` of the new variance;
- `ancestral` takes the eta of DDIM and of ancestral samplers, `from_ddim_eta` converts it;
- `from_sde_2m_eta` converts that of the 2M-SDE sampler, which is the square of the path's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from diffnum._backend import Array, asfloat, concrete, convert, is_jax, namespace, state_dtype
from diffnum._quadrature import moments as quadrature
from diffnum._quadrature import power_moments
from diffnum.phi import phis
from diffnum.schedules import Level, Schedule

__all__ = [
    "Path",
    "ancestral",
    "churn",
    "from_ddim_eta",
    "from_sde_2m_eta",
    "noise",
    "semilinear",
    "velocity",
    "x0",
]

_FACTORIAL = (1.0, 1.0, 2.0, 6.0, 24.0)
_LARGEST_EXPONENT = 50.0


@dataclass(frozen=True)
class Path:
    """Levels to visit and the exactly integrated part between them; see :eq:`paths-step`.

    Attributes
    ----------
    name : str
        The constructor and its options, for tables and plots.
    start, stop : Level
        Where each step starts and stops, arrays of shape (N,). A gap from ``stop[n]`` to ``start[n + 1]`` is bridged
        by the forward kernel, which adds noise.
    first, last : Level
        Level of the input and of the output, 0-d arrays.
    coordinate : callable
        ``coordinate(level) -> s``: the variable in which f is interpolated.
    at : callable
        ``at(s) -> Level``: the inverse, for the nodes inside a step.
    propagate : callable
        ``propagate(a, b, steps) -> (P, N)`` from level `a` to `b`; N is None on an ODE.
    moments : callable
        ``moments(a, b, count, steps)``: the integrals of ``K(s) ((s - s_a)/(s_b - s_a))^j`` over the step, j < count.
    target : callable or None
        ``target(level) -> (p, q)`` with ``f = p x + q denoise(x, level)``; None where f is the denoiser's output itself.
    schedule : Schedule or None
        The schedule of the levels; None for `semilinear`.
    stochastic : bool
        Whether the steps themselves add noise (eta > 0).
    gaps : bool
        Whether any ``stop[n]`` differs from ``start[n + 1]``.
    gap_noise : float
        Factor on the standard deviation of the noise that bridges gaps (EDM's S_noise).
    centre : array or None
        Point c about which f is formed, broadcastable to x: ``f = p (x - alpha c) + q (D - c)``.
    """

    name: str
    start: Level
    stop: Level
    first: Level
    last: Level
    coordinate: Callable[[Level], Array]
    at: Callable[[Array], Level]
    propagate: Callable[..., tuple[Array, Array | None]]
    moments: Callable[..., tuple[Array, ...]]
    target: Callable[[Level], tuple[Array, Array]] | None
    schedule: Schedule | None
    stochastic: bool = False
    gaps: bool = False
    gap_noise: float = 1.0
    centre: Array | None = None

    @property
    def steps(self) -> int:
        """Number of steps N."""
        return self.start.t.shape[0]


def x0(
    schedule: Schedule, t: Array, /, *, eta: Array | float = 0.0, coordinate: Literal["log_snr", "ratio"] = "log_snr"
) -> Path:
    """Path on which the denoiser's output is interpolated: :eq:`paths-x0`, in ratio form :eq:`paths-x0-ratio`.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times in the order they are visited, strictly decreasing.
    eta : float or array of shape (N,), optional
        Strength of the noise, >= 0: 0 is the probability-flow ODE, 1 the reverse SDE of the schedule.
    coordinate : {"log_snr", "ratio"}, optional
        Interpolate in ``lambda`` or in ``alpha/sigma``.

    Returns
    -------
    Path
        The path, in the namespace of `t`.

    Raises
    ------
    ValueError
        If `t` is not a strictly decreasing grid inside the schedule, or `eta` is negative or of the wrong shape.

    Notes
    -----
    At sigma = 0 the coordinate is infinite and the last step falls to order 1 (``x = alpha D``). At alpha = 0 the first
    step is regular; in ``lambda`` it cannot serve later steps as an interpolation node, in ``alpha/sigma`` it can.

    References
    ----------
    C. Lu et al., DPM-Solver++ (2022), for eta = 0 and 1 in lambda.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths, schedules
    >>> path = paths.x0(schedules.rectified_flow(), np.array([0.75, 0.5, 0.25]))
    >>> path.propagate(path.start, path.stop)[0].round(12).tolist()
    [0.666666666667, 0.5]
    """
    _choose("coordinate", coordinate, ("log_snr", "ratio"))
    levels = _levels(schedule, t, eta)
    eta, stochastic = _per_step("eta", eta, levels.t[1:])
    eta2 = eta**2

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:
        ratio = b.sigma / a.sigma
        if not stochastic:
            return ratio, None
        xp = namespace(a.sigma)
        excess = _times(eta2[steps], b.log_snr - a.log_snr)
        return ratio * xp.exp(-excess), b.sigma * _root(-xp.expm1(-2.0 * excess))

    def moments_log_snr(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        z = b.log_snr - a.log_snr
        if stochastic:
            z = (1.0 + eta2[steps]) * z
        return tuple(b.alpha * chi for chi in _chis(count, z))

    def moments_ratio(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        xp = namespace(a.sigma)
        gap = -xp.expm1(a.log_snr - b.log_snr)
        if not stochastic:
            return tuple(b.alpha * gap / (j + 1) for j in range(count))
        power = eta2[steps]
        inside = power_moments(lambda x: xp.exp(power[:, None] * xp.log(x)), 1.0 - gap, xp.ones_like(gap), gap, count)
        return tuple(b.alpha * (1.0 + power) * m for m in inside)

    ratio_form = coordinate == "ratio"
    return _path(
        f"x0({schedule.name}, {coordinate})",
        schedule,
        levels,
        coordinate=_alpha_over_sigma if ratio_form else _log_snr,
        at=(lambda s: schedule.level_at(namespace(s).log(s))) if ratio_form else schedule.level_at,
        propagate=propagate,
        moments=moments_ratio if ratio_form else moments_log_snr,
        target=None,
        stochastic=stochastic,
    )


def noise(schedule: Schedule, t: Array, /, *, coordinate: Literal["log_snr", "ratio"] = "log_snr") -> Path:
    """Path on which the predicted noise is interpolated: :eq:`paths-noise`, in ratio form :eq:`paths-noise-ratio`.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times in the order they are visited, strictly decreasing; alpha > 0 at all of them.
    coordinate : {"log_snr", "ratio"}, optional
        Interpolate in ``lambda`` or in ``rho = sigma/alpha``.

    Returns
    -------
    Path
        The path, an ODE. In ratio form it keeps its order down to sigma = 0.

    Raises
    ------
    ValueError
        If `t` is not a strictly decreasing grid inside the schedule, or alpha = 0 at its noisy end, where the noise
        cannot be told from x.

    References
    ----------
    C. Lu et al., DPM-Solver (2022), in lambda; T. Karras et al., Elucidating the design space of diffusion-based
    generative models (2022), in rho.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths, schedules
    >>> path = paths.noise(schedules.edm(), np.array([80.0, 1.0, 0.002]), coordinate="ratio")
    >>> [round(float(m), 6) for m in path.moments(path.start, path.stop, 1)[0]]
    [-79.0, -0.998]
    """
    _choose("coordinate", coordinate, ("log_snr", "ratio"))
    levels = _levels(schedule, t)
    alpha = concrete(levels.alpha)
    if alpha is not None and alpha[0] == 0.0:
        msg = (
            f"t must start where alpha > 0 on a noise path, got t = {concrete(levels.t)[0]} of {schedule.name}; "
            "start later (schedules.truncate), or use paths.velocity or paths.x0"
        )
        raise ValueError(msg)

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:  # noqa: ARG001
        return b.alpha / a.alpha, None

    def moments_log_snr(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
        xp = namespace(a.sigma)
        h = b.log_snr - a.log_snr
        infinite = xp.isinf(h)
        finite_h = xp.where(infinite, xp.ones_like(h), h)
        first = xp.where(infinite, -b.alpha * a.sigma / a.alpha, -b.sigma * xp.expm1(finite_h))
        if count == 1:
            return (first,)
        growth = phis(count, finite_h)
        return (first, *(-b.sigma * finite_h * _FACTORIAL[j] * growth[j + 1] for j in range(1, count)))

    def moments_ratio(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
        length = _sigma_over_alpha(b) - _sigma_over_alpha(a)
        return tuple(b.alpha * length / (j + 1) for j in range(count))

    ratio_form = coordinate == "ratio"
    return _path(
        f"noise({schedule.name}, {coordinate})",
        schedule,
        levels,
        coordinate=_sigma_over_alpha if ratio_form else _log_snr,
        at=(lambda s: schedule.level_at(-namespace(s).log(s))) if ratio_form else schedule.level_at,
        propagate=propagate,
        moments=moments_ratio if ratio_form else moments_log_snr,
        target=lambda level: (1.0 / level.sigma, -level.alpha / level.sigma),
    )


def velocity(
    schedule: Schedule,
    t: Array,
    /,
    *,
    sigma_data: float = 1.0,
    centre: Array | float = 0.0,
    eta: Array | float = 0.0,
) -> Path:
    """Path on which the velocity in the angle theta is interpolated: :eq:`paths-velocity`.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times in the order they are visited, strictly decreasing.
    sigma_data : float, optional
        Standard deviation of the data, > 0.
    centre : float or array broadcastable to x, optional
        Mean of the data.
    eta : float or array of shape (N,), optional
        Strength of the noise, >= 0; a last step to sigma = 0 is taken without.

    Returns
    -------
    Path
        The path. On data N(centre, sigma_data^2 I) every method is exact on it, whatever the number of steps.

    Raises
    ------
    ValueError
        If `t` is not a strictly decreasing grid inside the schedule, `sigma_data` is not positive, or `eta` is negative
        or of the wrong shape.

    Notes
    -----
    Regular at both ends, alpha = 0 and sigma = 0. One single step between them with eta = 0 gives ``(pi/2) D``.

    References
    ----------
    T. Salimans and J. Ho, Progressive distillation for fast sampling of diffusion models (2022), Appendix D, for
    sigma_data = 1 and eta = 0.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> flow = schedules.rectified_flow()
    >>> paths.velocity(flow, grids.uniform(flow, 4), sigma_data=0.5).steps
    4
    """
    if not (np.isscalar(sigma_data) and np.isfinite(sigma_data) and sigma_data > 0):
        msg = f"sigma_data must be a finite number > 0, got {sigma_data!r}"
        raise ValueError(msg)
    levels = _levels(schedule, t, eta)
    xp = namespace(levels.t)
    eta, stochastic = _per_step("eta", eta, levels.t[1:])
    eta2 = eta**2
    if stochastic:
        eta2 = xp.where(levels.sigma[1:] == 0.0, xp.zeros_like(eta2), eta2)

    def norm(level: Level) -> Array:
        return namespace(level.alpha).hypot(level.alpha * sigma_data, level.sigma)

    def angle(level: Level) -> Array:
        return namespace(level.alpha).atan2(level.sigma, level.alpha * sigma_data)

    def co_angle(level: Level) -> Array:
        return namespace(level.alpha).atan2(level.alpha * sigma_data, level.sigma)

    def log_cosine(level: Level) -> Array:
        return _log(level.alpha * sigma_data / norm(level))

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:
        ratio = norm(b) / norm(a)
        if not stochastic:
            return ratio, None
        excess = _times(eta2[steps], log_cosine(b) - log_cosine(a))
        return ratio * xp.exp(-excess), norm(b) * _root(-xp.expm1(-2.0 * excess))

    def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        length = angle(b) - angle(a)
        if not stochastic:
            return tuple(norm(b) * length / (j + 1) for j in range(count))
        power = eta2[steps]
        end = xp.log(xp.sin(co_angle(b)))

        def weight(w: Array) -> Array:
            return xp.exp(power[:, None] * (xp.log(xp.sin(w)) - end[:, None]))

        inside = power_moments(weight, co_angle(a), co_angle(b), -length, count)
        return tuple(-norm(b) * (1.0 + power) * m for m in inside)

    def target(level: Level) -> tuple[Array, Array]:
        n = norm(level)
        return level.alpha * sigma_data / (n * level.sigma), -n / (sigma_data * level.sigma)

    def at(s: Array) -> Level:
        return schedule.level_at(xp.log(xp.cos(s) / xp.sin(s)) - float(np.log(sigma_data)))

    centred = not (np.isscalar(centre) and centre == 0.0)
    return _path(
        f"velocity({schedule.name}, {sigma_data:g})",
        schedule,
        levels,
        coordinate=angle,
        at=at,
        propagate=propagate,
        moments=moments,
        target=target,
        stochastic=stochastic,
        centre=asfloat(centre, "centre") if centred else None,
    )


def semilinear(
    t: Array,
    rate: float | Callable[[Array], Array] | None = None,
    /,
    *,
    integral: Callable[[Array], Array] | None = None,
) -> Path:
    """Path of a semilinear equation ``y' = a(t) y + f(t, y)``, linear part exact: :eq:`paths-semilinear`.

    The right-hand side takes the denoiser's place: `solve` calls ``f(y, level)`` and reads time from ``level.t``
    (alpha and sigma are 1 and mean nothing here).

    Parameters
    ----------
    t : array, shape (N + 1,)
        Times, strictly monotone in either direction.
    rate : float or callable, optional
        a: a number, or ``a(t)`` on arrays of any shape; None is 0.
    integral : callable, optional
        An antiderivative A of a; then `rate` is not needed.

    Returns
    -------
    Path
        The path. Moments are phi-functions for a constant rate, Gauss-Legendre quadrature to rounding otherwise.

    Raises
    ------
    ValueError
        If `t` is not strictly monotone, a number `rate` is given together with `integral`, or a varying rate integrates
        to more than 50 in one step, where the quadrature would lose digits.

    References
    ----------
    M. Hochbruck and A. Ostermann, Exponential integrators (2010).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths
    >>> path = paths.semilinear(np.array([0.0, 0.5]), -2.0)
    >>> path.propagate(path.start, path.stop)[0].round(12).tolist()
    [0.367879441171]
    """
    t = _grid(t, decreasing=False)
    xp = namespace(t)
    levels = Level(t, xp.ones_like(t), xp.ones_like(t))
    if integral is None and not callable(rate):
        constant = 0.0 if rate is None else _number("rate", rate)

        def growth(start: Array, stop: Array) -> Array:
            return constant * (stop - start)

        def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
            h = b.t - a.t
            return tuple(h * _FACTORIAL[j] * p for j, p in enumerate(phis(count, constant * h)[1:]))
    else:
        if integral is not None:
            if rate is not None and not callable(rate):
                msg = f"rate must be a callable or None beside integral, got {rate!r}"
                raise ValueError(msg)

            def growth(start: Array, stop: Array) -> Array:
                return integral(stop) - integral(start)
        else:

            def growth(start: Array, stop: Array) -> Array:
                return quadrature(rate, start, stop, 1)[0]

        _check_exponent(growth(t[:-1], t[1:]))

        def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
            return quadrature(lambda s: xp.exp(growth(s, xp.broadcast_to(b.t[:, None], s.shape))), a.t, b.t, count)

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:  # noqa: ARG001
        return xp.exp(growth(a.t, b.t)), None

    return _path(
        "semilinear",
        None,
        levels,
        coordinate=lambda level: level.t,
        at=lambda s: Level(s, xp.ones_like(s), xp.ones_like(s)),
        propagate=propagate,
        moments=moments,
        target=None,
    )


def ancestral(path: Path, /, eta: Array | float = 1.0) -> Path:
    """The same path with each step taken too far and noise put back, as ancestral samplers do: :eq:`paths-ancestral`.

    Parameters
    ----------
    path : Path
        An ODE path without gaps, on a schedule.
    eta : float or array of shape (N,), optional
        DDIM's eta, in [0, 1]: the noise put back has `eta` times the standard deviation of the posterior
        q(x_s | x_t, x_0).

    Returns
    -------
    Path
        Steps stop at lowered levels; the forward kernel bridges the gaps.

    Raises
    ------
    ValueError
        If `path` is stochastic, has gaps or no schedule, or `eta` lies outside [0, 1].

    Notes
    -----
    Methods of order 2 and more keep their order on the ODE parts, but the whole is of weak order 1.

    References
    ----------
    J. Song, C. Meng and S. Ermon, Denoising diffusion implicit models (2021), Eq. 16, on ``x0``.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> flow = schedules.rectified_flow()
    >>> path = paths.ancestral(paths.x0(flow, grids.uniform(flow, 4)))
    >>> path.gaps
    True
    """
    schedule = _movable(path)
    eta, moves = _per_step("eta", eta, path.start.t, largest=1.0)
    if not moves:
        return path
    xp = namespace(path.start.t)
    start, stop = path.start.log_snr, path.stop.log_snr
    clean = xp.isinf(stop)
    # 1 - eta^2 (1 - exp(-2h)) is the part of the new variance that the step itself must leave
    kept = 1.0 + eta**2 * xp.expm1(-2.0 * (xp.where(clean, xp.zeros_like(stop), stop) - start))
    nothing = clean | (kept <= 0.0)
    lowered = stop - 0.5 * xp.log(xp.where(nothing, xp.ones_like(kept), kept))
    lowered = xp.where(nothing, xp.full_like(stop, xp.inf), lowered)
    return replace(
        path,
        name=f"ancestral {path.name}",
        stop=schedule.level_at(lowered),
        gaps=True,
    )


def churn(path: Path, gamma: Array | float, /, *, s_noise: float = 1.0) -> Path:
    """The same path with noise added before each step, which is then taken from higher up: :eq:`paths-churn`.

    Parameters
    ----------
    path : Path
        An ODE path without gaps, on a schedule.
    gamma : float or array of shape (N,)
        Relative increase of ``rho = sigma/alpha`` before each step, >= 0. EDM takes ``min(S_churn/N, sqrt(2) - 1)``
        where ``S_tmin <= rho <= S_tmax`` and 0 elsewhere.
    s_noise : float, optional
        Factor on the standard deviation of the added noise, > 0. The sampler converges to the right law for 1 only.

    Returns
    -------
    Path
        Steps start at raised levels; the forward kernel bridges the gaps.

    Raises
    ------
    ValueError
        If `path` is stochastic, has gaps or no schedule, `gamma` is negative or `s_noise` is not positive.

    References
    ----------
    T. Karras et al., Elucidating the design space of diffusion-based generative models (2022), Algorithm 2.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> edm = schedules.edm()
    >>> path = paths.churn(paths.x0(edm, grids.karras(edm, 4)), 0.1)
    >>> round(float(path.start.sigma[0] / path.first.sigma), 12)
    1.1
    """
    schedule = _movable(path)
    gamma, moves = _per_step("gamma", gamma, path.start.t)
    if not (_number("s_noise", s_noise) > 0.0):
        msg = f"s_noise must be > 0, got {s_noise!r}"
        raise ValueError(msg)
    if not moves:
        return path
    raised = schedule.level_at(path.start.log_snr - namespace(gamma).log1p(gamma))
    return replace(path, name=f"churned {path.name}", start=raised, gaps=True, gap_noise=float(s_noise))


def from_ddim_eta(eta: Array | float, h: Array, /) -> Array:
    """Path eta whose exact SDE puts as much noise into a step as DDIM's eta does: :eq:`paths-ddim-eta`.

    Parameters
    ----------
    eta : float or array
        DDIM's (and ancestral samplers') eta, in [0, 1].
    h : array
        Increments of log-SNR of the steps, in nats, > 0.

    Returns
    -------
    array
        One `eta` for each step, for `x0`; equal to `eta` only at 0 and 1.

    Raises
    ------
    ValueError
        If `eta` lies outside [0, 1] or `h` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths
    >>> paths.from_ddim_eta(0.5, np.array([0.1, 1.0])).round(6).tolist()
    [0.481541, 0.348969]
    """
    h = asfloat(h, "h")
    xp = namespace(h)
    eta, _ = _per_step("eta", eta, h, largest=1.0)
    known = concrete(h)
    if known is not None and not (known > 0.0).all():
        msg = f"h must be > 0, got {known}"
        raise ValueError(msg)
    full = eta == 1.0
    h_finite = xp.where(xp.isinf(h), xp.ones_like(h), h)
    variance = xp.where(xp.isinf(h), -xp.ones_like(h), xp.expm1(-2.0 * h_finite))
    squared = -xp.log1p(xp.where(full, xp.zeros_like(eta), eta) ** 2 * variance) / (2.0 * h)
    return xp.where(full, xp.ones_like(squared), _root(squared))


def from_sde_2m_eta(eta: float, /) -> float:
    """Path eta of the eta of the widespread 2M-SDE sampler, its square root: :eq:`paths-sde-2m-eta`.

    Parameters
    ----------
    eta : float
        That sampler's eta, >= 0; it multiplies h where the path's is squared.

    Returns
    -------
    float
        The path's eta.

    Raises
    ------
    ValueError
        If `eta` is negative.

    Examples
    --------
    >>> from diffnum import paths
    >>> paths.from_sde_2m_eta(0.25)
    0.5
    """
    if not (_number("eta", eta) >= 0.0):
        msg = f"eta must be >= 0, got {eta!r}"
        raise ValueError(msg)
    return float(eta) ** 0.5


def _path(name: str, schedule: Schedule | None, levels: Level, **functions: Any) -> Path:
    start, stop = (Level(*(a[part] for a in levels)) for part in (slice(None, -1), slice(1, None)))
    first, last = (Level(*(a[n, ...] for a in levels)) for n in (0, -1))
    return Path(name=name, schedule=schedule, start=start, stop=stop, first=first, last=last, **functions)


def _grid(t: Array, *, decreasing: bool) -> Array:
    t = asfloat(t, "t")
    xp = namespace(t)
    if t.ndim != 1 or t.shape[0] < 2:
        msg = f"t must have shape (N + 1,) with N >= 1, got {tuple(t.shape)}"
        raise ValueError(msg)
    known = concrete(t)
    if known is not None:
        steps = np.diff(known)
        if not (np.isfinite(known).all() and ((steps < 0).all() or (not decreasing and (steps > 0).all()))):
            kind = "strictly decreasing (noisy first)" if decreasing else "strictly monotone"
            msg = f"t must be finite and {kind}, got {known}"
            raise ValueError(msg)
    return xp.astype(t, state_dtype(t) if is_jax(t) else xp.float64)


def _levels(schedule: Schedule, t: Array, *beside: Any) -> Level:
    """Levels at `t`, in the array library that `t` and the parameters `beside` it share."""
    if not isinstance(schedule, Schedule):
        msg = f"schedule must be a Schedule, got {type(schedule).__name__}"
        raise TypeError(msg)
    t = _grid(t, decreasing=True)
    known = concrete(t)
    if known is not None and not (schedule.t_clean <= known[-1] and known[0] <= schedule.t_noise):
        msg = (
            f"t must lie in [{schedule.t_clean}, {schedule.t_noise}] for {schedule.name}, got {known[0]} to {known[-1]}"
        )
        raise ValueError(msg)
    xp = namespace(t, *beside)
    return schedule.level(t if xp is namespace(t) else xp.asarray(t))


def _per_step(name: str, value: Array | float, like: Array, *, largest: float = np.inf) -> tuple[Array, bool]:
    """`value` as an array of one entry a step, checked to lie in [0, largest]; and whether it may differ from 0."""
    value = asfloat(value, name)
    xp = namespace(value, like)
    known = concrete(value)
    if value.ndim > 1 or (value.ndim == 1 and value.shape != like.shape):
        msg = f"{name} must be a number or have shape {tuple(like.shape)}, one for each step; got {tuple(value.shape)}"
        raise ValueError(msg)
    if known is not None and not ((known >= 0.0) & (known <= largest) & np.isfinite(known)).all():
        bound = "finite and >= 0" if largest == np.inf else f"in [0, {largest:g}]"
        msg = f"{name} must be {bound}, got {known}"
        raise ValueError(msg)
    return xp.broadcast_to(convert(value, like, like.dtype), like.shape), known is None or bool(known.any())


def _movable(path: Path) -> Schedule:
    if not isinstance(path, Path):
        msg = f"path must be a Path, got {type(path).__name__}"
        raise TypeError(msg)
    if path.stochastic or path.gaps or path.schedule is None:
        msg = f"path must be an ODE path on a schedule whose steps join, got {path.name}"
        raise ValueError(msg)
    return path.schedule


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not np.isscalar(value) or not np.isfinite(value):
        msg = f"{name} must be a finite number, got {value!r}"
        raise ValueError(msg)
    return float(value)


def _choose(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        msg = f"{name} must be one of {options}, got {value!r}"
        raise ValueError(msg)


def _check_exponent(growth: Array) -> None:
    known = concrete(growth)
    if known is not None and not (np.abs(known) <= _LARGEST_EXPONENT).all():
        msg = (
            f"rate must integrate to at most {_LARGEST_EXPONENT:g} in one step, got {np.abs(known).max():g}; "
            "take smaller steps or split off a constant rate"
        )
        raise ValueError(msg)


def _chis(count: int, z: Array) -> tuple[Array, ...]:
    """z j! phi_{j+1}(-z) for j < count: 0 at z = 0, 1 at infinity."""
    xp = namespace(z)
    infinite = xp.isinf(z)
    finite = xp.where(infinite, xp.ones_like(z), z)
    inside = phis(count, -finite)[1:]
    return tuple(xp.where(infinite, xp.ones_like(z), finite * _FACTORIAL[j] * p) for j, p in enumerate(inside))


def _times(factor: Array, h: Array) -> Array:
    """factor * h, 0 where the factor is 0 even if h is infinite."""
    xp = namespace(h)
    return xp.where(factor == 0.0, xp.zeros_like(h), factor * xp.where(factor == 0.0, xp.ones_like(h), h))


def _root(x: Array) -> Array:
    """Square root, 0 below 0, with a finite derivative there."""
    xp = namespace(x)
    positive = x > 0.0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, xp.ones_like(x))), xp.zeros_like(x))


def _log(x: Array) -> Array:
    xp = namespace(x)
    return xp.where(x == 0.0, xp.full_like(x, -xp.inf), xp.log(xp.where(x == 0.0, xp.ones_like(x), x)))


def _log_snr(level: Level) -> Array:
    return level.log_snr


def _sigma_over_alpha(level: Level) -> Array:
    return level.sigma / level.alpha


def _alpha_over_sigma(level: Level) -> Array:
    xp = namespace(level.sigma)
    clean = level.sigma == 0.0
    ratio = level.alpha / xp.where(clean, xp.ones_like(level.sigma), level.sigma)
    return xp.where(clean, xp.full_like(ratio, xp.inf), ratio)
