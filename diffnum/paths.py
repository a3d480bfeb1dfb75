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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from diffnum._arguments import choose, finite, grid, levels, number, per_step
from diffnum._backend import Array, asfloat, concrete, hypot, namespace
from diffnum._guarded import (
    alpha_over_sigma,
    co_angle,
    decay,
    falling_moments,
    log_cosine,
    log_quotient,
    rising_moments,
    sigma_over_alpha,
    times,
    turn,
)
from diffnum._quadrature import moments as quadrature
from diffnum._quadrature import power_moments
from diffnum.phi import phi, phis
from diffnum.schedules import Level, Schedule

__all__ = [
    "Path",
    "ancestral",
    "churn",
    "from_ddim_eta",
    "from_sde_2m_eta",
    "noise",
    "reverse",
    "semilinear",
    "velocity",
    "x0",
]

_LARGEST_EXPONENT = 50.0
"""Exponent over which 32 points integrate a kernel to rounding, with a margin."""

_TIME_ERROR = 1e-9
"""Relative error by which a quadrature in time may miss the integral that is known; a thousand roundings if more."""


@dataclass(frozen=True, eq=False, repr=False)
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
        ``propagate(a, b, steps) -> (P, N)`` from level `a` to `b`, N by :eq:`paths-noise-variance`; None on an ODE.
    moments : callable
        ``moments(a, b, count, steps)``: the integrals :eq:`paths-moments` of ``K(s) ((s - s_a)/(s_b - s_a))^j`` over
        the step, j < count.
    target : callable or None
        ``target(level) -> (p, q)`` with ``f = p x + q denoise(x, level)``; None where f is the denoiser's output.
    schedule : Schedule or None
        The schedule of the levels; None for `semilinear`.
    stochastic : bool
        Whether the steps themselves add noise (eta > 0).
    gaps : bool
        Whether any ``stop[n]`` differs from ``start[n + 1]``.
    gap_noise : float
        Factor on the standard deviation of the noise that bridges gaps (EDM's S_noise).
    gap_share : array or None
        That standard deviation over the sigma it leads up to, shape (N,), for the gap after each step; None where the
        levels say it.
    centre : array or None
        Point c about which f is formed, broadcastable to x: ``f = p (x - alpha c) + q (D - c)``.
    gain : callable or None
        ``gain(level) -> c``: the factor of f in the equation that `x` itself obeys, ``dx/ds = a x + c f``, on an ODE:
        :eq:`paths-gain`.
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
    gap_share: Array | None = None
    centre: Array | None = None
    gain: Callable[[Level], Array] | None = None

    @property
    def steps(self) -> int:
        """Number of steps N."""
        return self.start.t.shape[0]

    def __repr__(self) -> str:
        ends = [concrete(level.t) for level in (self.first, self.last)]
        shown = ["traced" if t is None else f"{float(t):g}" for t in ends]
        noise = "noise in steps" if self.stochastic else "noise between steps" if self.gaps else "no noise"
        return f"Path({self.name}, steps={self.steps}, t from {shown[0]} to {shown[1]}, {noise})"


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
    The exact solution of :eq:`paths-log-snr`, which is :eq:`paths-reverse-sde` in log-SNR. At order 1 and eta = 1 it is
    ancestral sampling :eq:`paths-posterior`, with an error of the variance of :eq:`paths-missing-variance`.

    At sigma = 0 the coordinate is infinite and the last step falls to order 1, ``x = alpha D``, :eq:`paths-clean-end`.
    At alpha = 0 the first step is regular, :eq:`paths-noisy-end`; in ``lambda`` it cannot serve later steps as an
    interpolation node, in ``alpha/sigma`` it can.

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
    choose("coordinate", coordinate, ("log_snr", "ratio"))
    nodes = levels(schedule, t, eta)
    strength, stochastic = per_step("eta", eta, nodes.t[1:])
    power = strength**2

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:
        ratio = b.sigma / a.sigma
        if not stochastic:
            return ratio, None
        kept, added = decay(strength[steps], b.log_snr - a.log_snr)
        return ratio * kept, b.sigma * added

    def moments_log_snr(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        h = b.log_snr - a.log_snr
        inside = rising_moments(count, times(1.0 + power[steps], h) if stochastic else h)
        return tuple(b.alpha * m for m in inside)

    def moments_ratio(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        log_start = a.log_snr - b.log_snr
        if stochastic:
            return tuple(b.alpha * m for m in power_moments(power[steps], log_start, count))
        # on a reversed path b may be pure noise, where the second form is the limit
        xp, empty = namespace(log_start), b.alpha == 0.0
        gap = -xp.expm1(xp.where(empty, xp.zeros_like(log_start), log_start))
        length = xp.where(empty, -b.sigma * alpha_over_sigma(a), b.alpha * gap)
        return tuple(length / (j + 1) for j in range(count))

    ratio_form = coordinate == "ratio"
    return _path(
        f"x0({schedule.name}, {coordinate})",
        schedule,
        nodes,
        coordinate=alpha_over_sigma if ratio_form else (lambda level: level.log_snr),
        at=(lambda s: schedule.level_at(namespace(s).log(s))) if ratio_form else schedule.level_at,
        propagate=propagate,
        moments=moments_ratio if ratio_form else moments_log_snr,
        target=None,
        stochastic=stochastic,
        gain=(lambda level: level.sigma) if ratio_form else (lambda level: level.alpha),
    )


def noise(
    schedule: Schedule,
    t: Array,
    /,
    *,
    eta: Array | float = 0.0,
    coordinate: Literal["log_snr", "ratio", "t"] = "log_snr",
) -> Path:
    """Path on which the predicted noise is interpolated: :eq:`paths-noise`, in ratio form :eq:`paths-noise-ratio`.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times in the order they are visited, strictly decreasing; alpha > 0 at all of them.
    eta : float or array of shape (N,), optional
        Strength of the noise, >= 0, as on `x0`: :eq:`samplers-noise-sde`; a last step to sigma = 0 is taken without.
    coordinate : {"log_snr", "ratio", "t"}, optional
        Interpolate in ``lambda``, in ``rho = sigma/alpha`` or in time: :eq:`samplers-deis-time`.

    Returns
    -------
    Path
        The path. In ratio form it keeps its order down to sigma = 0.

    Raises
    ------
    ValueError
        If `t` is not a strictly decreasing grid inside the schedule, or alpha = 0 at its noisy end, where the noise
        cannot be told from x; if `eta` is negative or of the wrong shape; or, in time, if the schedule is not smooth
        enough for the quadrature of the moments.

    References
    ----------
    C. Lu et al., DPM-Solver (2022), in lambda; T. Karras et al., Elucidating the design space of diffusion-based
    generative models (2022), in rho; Q. Zhang and Y. Chen, Fast sampling of diffusion models with exponential
    integrator (2023), in time.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths, schedules
    >>> path = paths.noise(schedules.edm(), np.array([80.0, 1.0, 0.002]), coordinate="ratio")
    >>> [round(float(m), 6) for m in path.moments(path.start, path.stop, 1)[0]]
    [-79.0, -0.998]
    """
    choose("coordinate", coordinate, ("log_snr", "ratio", "t"))
    nodes = levels(schedule, t, eta)
    xp = namespace(nodes.t)
    strength, stochastic = per_step("eta", eta, nodes.t[1:])
    if stochastic:
        # noise that a step to sigma = 0 adds is removed by no later step
        strength = xp.where(nodes.sigma[1:] == 0.0, xp.zeros_like(strength), strength)
    factor = 1.0 + strength**2
    known = concrete(nodes.alpha)
    if known is not None and known[0] == 0.0:
        msg = (
            f"t must start where alpha > 0 on a noise path, got alpha = 0 at the first time, on {schedule.name}; "
            "start later (schedules.truncate), or use paths.velocity or paths.x0"
        )
        raise ValueError(msg)

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:
        ratio = b.alpha / a.alpha
        if not stochastic:
            return ratio, None
        _, added = decay(xp.ones_like(ratio), b.log_snr - a.log_snr)
        return ratio, strength[steps] * ratio * a.sigma * added

    def scaled(inside: tuple[Array, ...], scale: Array, steps: slice) -> tuple[Array, ...]:
        scale = factor[steps] * scale if stochastic else scale
        return tuple(scale * m for m in inside)

    def moments_log_snr(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        return scaled(falling_moments(count, b.log_snr - a.log_snr), -b.alpha * a.sigma / a.alpha, steps)

    def moments_ratio(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        length = b.alpha * (sigma_over_alpha(b) - sigma_over_alpha(a))
        return scaled(tuple(length / (j + 1) for j in range(count)), 1.0, steps)

    def moments_time(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        return scaled(_time_moments(schedule, a, b, count), b.alpha, steps)

    forms = {
        "log_snr": (lambda level: level.log_snr, schedule.level_at, moments_log_snr),
        "ratio": (sigma_over_alpha, lambda s: schedule.level_at(-namespace(s).log(s)), moments_ratio),
        "t": (lambda level: level.t, schedule.level, moments_time),
    }
    gains = {
        "log_snr": lambda level: -level.sigma,
        "ratio": lambda level: level.alpha,
        "t": lambda level: schedule.diffusion_squared(level.t) / (2.0 * level.sigma),
    }
    where, at, moments = forms[coordinate]
    return _path(
        f"noise({schedule.name}, {coordinate})",
        schedule,
        nodes,
        coordinate=where,
        at=at,
        propagate=propagate,
        moments=moments,
        target=lambda level: (1.0 / level.sigma, -level.alpha / level.sigma),
        gain=gains[coordinate],
        stochastic=stochastic,
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
    The exact solution of :eq:`paths-velocity-equation`; on Gaussian data :eq:`paths-gaussian-exact`. Regular at both
    ends, alpha = 0 and sigma = 0. One single step between them, from x of unit variance, gives
    ``sigma_data x + (pi/2) (D - centre) + centre``, see :eq:`paths-noisy-end`. Moments for eta > 0 are computed by
    quadrature, :eq:`paths-substitution`.

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
    scale = number("sigma_data", sigma_data, above=0.0)
    nodes = levels(schedule, t, eta)
    xp = namespace(nodes.t)
    strength, stochastic = per_step("eta", eta, nodes.t[1:])
    if stochastic:
        # noise that a step to sigma = 0 adds is removed by no later step
        strength = xp.where(nodes.sigma[1:] == 0.0, xp.zeros_like(strength), strength)
    power = strength**2

    def norm(level: Level) -> Array:
        return hypot(level.alpha * scale, level.sigma)

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:
        ratio = norm(b) / norm(a)
        if not stochastic:
            return ratio, None
        kept, added = decay(strength[steps], log_cosine(b, scale) - log_cosine(a, scale))
        return ratio * kept, norm(b) * added

    def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:
        length = turn(a, b, scale)
        if not stochastic:
            return tuple(-norm(b) * length / (j + 1) for j in range(count))
        end, steep = co_angle(b, scale), power[steps][:, None]

        def relative_sinc(v: Array) -> Array:
            whole = end[:, None]
            return xp.exp(steep * (xp.log(xp.sin(v * whole) / xp.sin(whole)) - xp.log(v)))

        inside = power_moments(power[steps], log_quotient(co_angle(a, scale), end, length), count, relative_sinc)
        return tuple(-norm(b) * end * m for m in inside)

    def target(level: Level) -> tuple[Array, Array]:
        n = norm(level)
        return level.alpha * scale / (n * level.sigma), -n / (scale * level.sigma)

    def angle(level: Level) -> Array:
        return namespace(level.alpha).atan2(level.sigma, level.alpha * scale)

    def at(s: Array) -> Level:
        xp = namespace(s)
        return schedule.level_at(xp.log(xp.cos(s) / xp.sin(s)) - math.log(scale))

    point = finite("centre", centre)
    return _path(
        f"velocity({schedule.name}, {scale:g})",
        schedule,
        nodes,
        coordinate=angle,
        at=at,
        propagate=propagate,
        moments=moments,
        target=target,
        stochastic=stochastic,
        centre=None if isinstance(centre, int | float) and centre == 0 else point,
        gain=norm,
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
        If `t` is not strictly monotone, or a varying rate integrates to more than 50 in one step, where the quadrature
        would lose digits.
    TypeError
        If `integral` is not callable, or `rate` beside it is a number.

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
    t = grid(t, decreasing=False)
    xp = namespace(t)
    growth = _growth(rate, integral)
    if integral is None and not callable(rate):

        def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
            inside = phis(count, growth(a.t, b.t))[1:]
            return tuple((b.t - a.t) * math.factorial(j) * p for j, p in enumerate(inside))
    else:
        _check_exponent(growth(t[:-1], t[1:]))

        def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
            return quadrature(lambda s: xp.exp(growth(s, xp.broadcast_to(b.t[:, None], s.shape))), a.t, b.t, count)

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, Array | None]:  # noqa: ARG001
        return phi(0, growth(a.t, b.t)), None

    def at(s: Array) -> Level:
        one = namespace(s).ones_like(s)
        return Level(s, one, one)

    return _path(
        "semilinear",
        None,
        at(t),
        coordinate=lambda level: level.t,
        at=at,
        propagate=propagate,
        moments=moments,
        target=None,
        gain=lambda level: namespace(level.t).ones_like(level.t),
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
        Steps stop at lowered levels; the forward kernel :eq:`paths-bridge` bridges the gaps.

    Raises
    ------
    ValueError
        If `path` is stochastic, has gaps or no schedule, or `eta` lies outside [0, 1].

    Notes
    -----
    Methods of order 2 and more keep their order on the ODE parts, but the whole is of weak order 1. The noise put back
    is linear in `eta`, with its derivative also at 0.

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
    share, moves = per_step("eta", eta, path.start.t, largest=1.0)
    if not moves:
        return path
    path = _beside(path, share)
    xp = namespace(share)
    stop = path.stop.log_snr
    clean = xp.isinf(stop)
    h = xp.where(clean, xp.ones_like(stop), stop - path.start.log_snr)
    # the part of the new variance that the step itself must leave, as a sum: 1 - eta^2 (1 - exp(-2 h)) would cancel
    kept = (1.0 - share) * (1.0 + share) + share**2 * xp.exp(-2.0 * h)
    nothing = clean | (kept == 0.0)
    lowered = stop - 0.5 * xp.log(xp.where(nothing, xp.ones_like(kept), kept))
    lowered = xp.where(nothing, xp.full_like(stop, math.inf), lowered)
    # linear in eta: from the levels it would be the root of a difference that is 0 at eta = 0, and so its derivative
    added = share * xp.sqrt(-xp.expm1(-2.0 * h))
    return replace(path, name=f"ancestral {path.name}", stop=schedule.level_at(lowered), gaps=True, gap_share=added)


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
        Steps start at raised levels; the forward kernel :eq:`paths-bridge` bridges the gaps.

    Raises
    ------
    ValueError
        If `path` is stochastic, has gaps or no schedule, `gamma` is negative or `s_noise` is not positive.

    Notes
    -----
    The noise grows as the root of `gamma`, with an infinite derivative at 0; where `gamma` is 0, 0 is returned for it.

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
    increase, moves = per_step("gamma", gamma, path.start.t)
    factor = number("s_noise", s_noise, above=0.0)
    if not moves:
        return path
    path = _beside(path, increase)
    raised = schedule.level_at(path.start.log_snr - namespace(increase).log1p(increase))
    return replace(path, name=f"churned {path.name}", start=raised, gaps=True, gap_noise=factor)


def reverse(path: Path, /) -> Path:
    """The same path run from data to noise: the ODE has no arrow, :eq:`paths-reverse`.

    Parameters
    ----------
    path : Path
        An ODE path whose steps join, with sigma > 0 at its clean end.

    Returns
    -------
    Path
        The same steps in the opposite order, each from its stop to its start. Any method makes a table of it.

    Raises
    ------
    TypeError
        If `path` is no `Path`.
    ValueError
        If `path` is stochastic or has gaps: noise cannot be taken back. Or if an end is singular: at sigma = 0 the
        denoiser returns its input and says nothing of the direction, and `x0` in log-SNR has no finite step to
        alpha = 0 (``coordinate="ratio"`` and `velocity` have).

    Notes
    -----
    A method of order p run there and back again returns to its start up to an error of order p, not exactly, since the
    two runs interpolate through other values.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import paths, schedules
    >>> path = paths.reverse(paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.5, 0.1])))
    >>> path.start.t.tolist(), path.stop.t.tolist()
    ([0.1, 0.5], [0.5, 1.0])
    """
    if not isinstance(path, Path):
        msg = f"path must be a Path, got {type(path).__name__}"
        raise TypeError(msg)
    if path.stochastic or path.gaps:
        msg = f"path must be an ODE path whose steps join, got {path.name}"
        raise ValueError(msg)
    sigma = concrete(path.last.sigma)
    if sigma is not None and sigma == 0.0:
        msg = (
            f"path must end at sigma > 0 to be reversed, got sigma = 0 at the last level of {path.name}; "
            "end it earlier (schedules.truncate with t_clean)"
        )
        raise ValueError(msg)
    place = concrete(path.coordinate(path.first))
    if place is not None and not np.isfinite(place):
        msg = f"path must start at a finite coordinate to be reversed, got {place} at the first level of {path.name}"
        raise ValueError(msg)
    flip = namespace(path.start.t).flip
    start, stop = (Level(*map(flip, level)) for level in (path.stop, path.start))
    return replace(path, name=f"reversed {path.name}", start=start, stop=stop, first=path.last, last=path.first)


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
    given, _ = per_step("eta", eta, h, largest=1.0)
    xp = namespace(given)
    h = h if namespace(h) is xp else xp.asarray(h)
    known = concrete(h)
    if known is not None and not (known > 0.0).all():
        msg = f"h must be > 0, got {known}"
        raise ValueError(msg)
    one = xp.ones_like(h)
    full, infinite = given == 1.0, xp.isinf(h)
    part, length = xp.where(full, 0.0 * one, given), xp.where(infinite, one, h)
    # with z = eta^2 (1 - exp(-2h)), eta sqrt(log(1 - z)/-z (1 - exp(-2h))/(2h)): linear in eta at 0
    share = -xp.expm1(-2.0 * length)
    z = part**2 * share
    zero = z == 0.0
    growth = xp.where(zero, one, -xp.log1p(-z) / xp.where(zero, one, z))
    inside = part * xp.sqrt(growth * share / (2.0 * length))
    return xp.where(full, one, xp.where(infinite, 0.0 * one, inside))


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
    return number("eta", eta, least=0.0) ** 0.5


def _time_moments(schedule: Schedule, a: Level, b: Level, count: int) -> tuple[Array, ...]:
    """Integrals of ``u^j drho``, u the share of the time that has passed, by quadrature: :eq:`samplers-deis-time`."""
    xp = namespace(a.t)
    start, back = b.t[:, None], (a.t - b.t)[:, None]

    def kernel(w: Array) -> Array:
        # in the root of the time that is left, rho is smooth also where it starts as the root of t
        level = schedule.level(start + back * w**2)
        return schedule.diffusion_squared(level.t) / (2.0 * level.sigma * level.alpha) * 2.0 * w * back

    one = xp.ones_like(a.t)
    inside = [
        quadrature(lambda w, j=j: kernel(w) * (1.0 - w**2) ** j, one, xp.zeros_like(one), 1)[0] for j in range(count)
    ]
    whole = sigma_over_alpha(b) - sigma_over_alpha(a)
    found, expected = concrete(inside[0]), concrete(whole)
    if found is not None and expected is not None:
        error = float(np.max(np.abs(found - expected) / np.abs(expected)))
        if error > max(_TIME_ERROR, 1e3 * float(np.finfo(found.dtype).eps)):
            msg = (
                f"schedule must be smooth in time for a path in t, got {schedule.name}, whose moments err by "
                f"{error:.0e}; a table of betas (schedules.from_betas) has kinks in time: take coordinate='ratio', "
                "or 'log_snr', where the nodes stay the same"
            )
            raise ValueError(msg)
    return tuple(inside)


def _path(name: str, schedule: Schedule | None, nodes: Level, **functions: Any) -> Path:
    start, stop = (Level(*(a[part] for a in nodes)) for part in (slice(None, -1), slice(1, None)))
    first, last = (Level(*(a[n, ...] for a in nodes)) for n in (0, -1))
    return Path(name=name, schedule=schedule, start=start, stop=stop, first=first, last=last, **functions)


def _movable(path: Path) -> Schedule:
    if not isinstance(path, Path):
        msg = f"path must be a Path, got {type(path).__name__}"
        raise TypeError(msg)
    if path.stochastic or path.gaps or path.schedule is None:
        msg = f"path must be an ODE path on a schedule whose steps join, got {path.name}"
        raise ValueError(msg)
    return path.schedule


def _beside(path: Path, value: Array) -> Path:
    """The path with its levels in the array library of `value`."""
    xp = namespace(value)
    if namespace(path.start.t) is xp:
        return path
    nodes = {name: Level(*map(xp.asarray, getattr(path, name))) for name in ("start", "stop", "first", "last")}
    return replace(path, **nodes)


def _growth(rate: Any, integral: Any) -> Callable[[Array, Array], Array]:
    """Integral of the rate from `start` to `stop`, arrays of any one shape."""
    if integral is None and callable(rate):
        return lambda start, stop: quadrature(rate, start, stop, 1)[0]
    if integral is None:
        constant = 0.0 if rate is None else number("rate", rate)
        return lambda start, stop: constant * (stop - start)
    for name, value in (("rate", rate), ("integral", integral)):
        if value is not None and not callable(value):
            msg = f"{name} must be a callable or None where integral is given, got {value!r}"
            raise TypeError(msg)
    antiderivative: Callable[[Array], Array] = integral
    return lambda start, stop: antiderivative(stop) - antiderivative(start)


def _check_exponent(growth: Array) -> None:
    known = concrete(growth)
    if known is not None and not (np.abs(known) <= _LARGEST_EXPONENT).all():
        msg = (
            f"rate must integrate to at most {_LARGEST_EXPONENT:g} in one step, got {np.abs(known).max():g}; "
            "take smaller steps or split off a constant rate"
        )
        raise ValueError(msg)
