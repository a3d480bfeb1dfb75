"""Noise schedules: how much signal and how much noise there is at time t.

Conventions: ``x_t = alpha x_0 + sigma eps``; `t` grows with the noise; ``log_snr = log(alpha / sigma)`` in nats (half
the log of the signal-to-noise ratio). A schedule has one of three geometries: "vp" (alpha^2 + sigma^2 = 1), "ve"
(alpha = 1) or "flow" (alpha + sigma = 1). Ends are exact: sigma = 0 is log-SNR +inf, alpha = 0 is log-SNR -inf. Times
may be numbers or arrays of any library and shape; results have their library and dtype. Derivation: :doc:`/schedules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, NamedTuple

import array_api_compat
import numpy as np

from diffnum._backend import asfloat, concrete, namespace

__all__ = [
    "Level",
    "Schedule",
    "cosine",
    "edm",
    "from_betas",
    "rectified_flow",
    "shift",
    "sigmoid",
    "truncate",
    "ve",
    "vp_linear",
    "zero_terminal_snr",
]

Array = Any
Geometry = Literal["vp", "ve", "flow"]
Pair = tuple[Array, Array]


def _no_drop(t: Array, s: float) -> Array:
    msg = f"only a variance-preserving schedule has this difference, called with {t!r}, {s!r}"
    raise NotImplementedError(msg)


class Level(NamedTuple):
    """A noise level: time, signal scale and noise scale of :eq:`schedules-level`.

    Parameters
    ----------
    t : array or float
        Time.
    alpha : array or float
        Signal scale, >= 0.
    sigma : array or float
        Noise scale, >= 0; not zero together with `alpha`.

    Examples
    --------
    >>> from diffnum.schedules import Level
    >>> float(Level(0.5, 0.6, 0.3).log_snr.round(6))
    0.693147
    """

    t: Array
    alpha: Array
    sigma: Array
    # a tuple would be read as an array of three rows: ``level * x`` is a mistake, not a product
    __array_ufunc__ = None

    @property
    def log_snr(self) -> Array:
        """Log-SNR ``log(alpha / sigma)`` of :eq:`schedules-level`: +inf where sigma = 0, -inf where alpha = 0."""
        return _log_ratio(self.alpha, self.sigma)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule: maps between time, log-SNR and the two scales, :eq:`schedules-level` to :eq:`schedules-rate`.

    The functions below make schedules; the parameters with an underscore are what such a function provides. Methods
    accept times beyond ``[t_clean, t_noise]`` where the formula continues (a sampler may raise the noise level), and
    refuse concrete times where it does not. Two records are equal only if they are the same object.

    Parameters
    ----------
    name : str
        The call that made the schedule.
    geometry : {"vp", "ve", "flow"}
        Which relation between alpha and sigma holds.
    t_clean : float
        Time of the least noise, where sampling ends.
    t_noise : float
        Time of the most noise, where sampling starts; > `t_clean`.
    _level : callable
        From t to (alpha, sigma), each to a few ulp.
    _time : callable
        From log-SNR to t, the inverse of log(alpha / sigma).
    _rate : callable
        From t to g^2 for "vp" and "ve", to -dlog(alpha)/dt for "flow".
    _domain : tuple of float
        Closed interval of times at which the formulas hold.
    _drop : callable, optional
        For "vp", from (t, s) to alpha(t)^2 - alpha(s)^2 without cancellation, s a float.

    Examples
    --------
    >>> from diffnum import schedules
    >>> flow = schedules.rectified_flow()
    >>> flow.level(0.25)
    Level(t=array(0.25), alpha=np.float64(0.75), sigma=array(0.25))
    >>> float(flow.time(flow.log_snr(0.25)).round(12))
    0.25
    """

    name: str
    geometry: Geometry
    t_clean: float
    t_noise: float
    _level: Callable[[Array], Pair] = field(repr=False)
    _time: Callable[[Array], Array] = field(repr=False)
    _rate: Callable[[Array], Array] = field(repr=False)
    _domain: tuple[float, float] = field(repr=False)
    _drop: Callable[[Array, float], Array] = field(default=_no_drop, repr=False)

    @property
    def prior_std(self) -> float:
        """Standard deviation sigma(t_noise) of the noise that starts a sampler; its error is :eq:`schedules-prior`."""
        return float(self.sigma(self.t_noise))

    def level(self, t: Array, /) -> Level:
        """Noise level of :eq:`schedules-level` at time `t`, each scale to a few ulp."""
        t = self._checked(t)
        return Level(t, *self._level(t))

    def alpha(self, t: Array, /) -> Array:
        """Signal scale of :eq:`schedules-level` at time `t`."""
        return self.level(t).alpha

    def sigma(self, t: Array, /) -> Array:
        """Noise scale of :eq:`schedules-level` at time `t`."""
        return self.level(t).sigma

    def log_snr(self, t: Array, /) -> Array:
        """Log-SNR of :eq:`schedules-level` at time `t`: +inf where sigma = 0, -inf where alpha = 0."""
        return self.level(t).log_snr

    def time(self, log_snr: Array, /) -> Array:
        """Time at which the log-SNR of :eq:`schedules-level` is `log_snr`; may be infinite for an infinite log-SNR."""
        return self._time(_not_nan(log_snr))

    def level_at(self, log_snr: Array, /) -> Level:
        """Noise level at a log-SNR by :eq:`schedules-geometry`, without a detour through the time; exact at +-inf."""
        log_snr = _not_nan(log_snr)
        return Level(self._time(log_snr), *_pair_at(self.geometry, log_snr))

    def drift(self, t: Array, /) -> Array:
        """Drift coefficient d log(alpha)/dt of :eq:`schedules-sde` at time `t`; -inf where alpha = 0."""
        rate = self._rate(self._checked(t))
        if self.geometry == "ve":
            return namespace(rate).zeros_like(rate)
        return -rate / 2.0 if self.geometry == "vp" else -rate

    def diffusion_squared(self, t: Array, /) -> Array:
        """Squared diffusion coefficient of :eq:`schedules-sde`, by :eq:`schedules-rate`; +inf where alpha = 0."""
        t = self._checked(t)
        rate = self._rate(t)
        return 2.0 * self._level(t)[1] * rate if self.geometry == "flow" else rate

    def _checked(self, t: Array) -> Array:
        t = asfloat(t, "t")
        values = concrete(t)
        if values is not None:
            # The ends are rounded to the dtype of t: float32(0.6) lies above 0.6 and must not be refused.
            low, high = (np.asarray(end, dtype=values.dtype) for end in self._domain)
            inside = (values >= low) & (values <= high) & np.isfinite(values)
            if not np.all(inside):
                bad = values[~inside].flat[0]
                low_end, high_end = self._domain
                msg = f"t must be finite and in [{low_end:g}, {high_end:g}] for {self.name}, got {bad}"
                raise ValueError(msg)
        return t


def vp_linear(*, beta_min: float = 0.1, beta_max: float = 20.0) -> Schedule:
    """Variance-preserving schedule with beta linear in time, :eq:`schedules-vp-linear`.

    Parameters
    ----------
    beta_min : float, optional
        Noise rate at t = 0, > 0.
    beta_max : float, optional
        Noise rate at t = 1, >= `beta_min`.

    Returns
    -------
    Schedule
        Geometry "vp", t from 0 to 1; the formulas hold for every t >= 0.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    alpha(1) is not zero: see `zero_terminal_snr` and :eq:`schedules-prior`. The inverse is in closed form.

    References
    ----------
    Song et al., "Score-based generative modeling through stochastic differential equations" (2021), appendix C.

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.vp_linear().alpha(1.0).round(7))
    0.0065716
    """
    beta_min = _number("beta_min", beta_min, "a finite number > 0", lambda v: v > 0)
    beta_max = _number("beta_max", beta_max, "a finite number >= beta_min", lambda v: v >= beta_min)
    slope = beta_max - beta_min

    def integral(t: Array) -> Array:
        return t * (beta_min + 0.5 * slope * t)

    def level(t: Array) -> Pair:
        xp, b = namespace(t), integral(t)
        return xp.exp(-0.5 * b), _sqrt(-xp.expm1(-b))

    def time(log_snr: Array) -> Array:
        xp, b = namespace(log_snr), _softplus(-2.0 * log_snr)
        infinite = xp.isinf(b)
        b = xp.where(infinite, xp.ones_like(b), b)
        # The other form of the root, (-beta_min + sqrt(...)) / slope, cancels for small t.
        t = 2.0 * b / (beta_min + xp.sqrt(beta_min**2 + 2.0 * slope * b))
        return xp.where(infinite, xp.full_like(t, math.inf), t)

    def rate(t: Array) -> Array:
        return beta_min + slope * t

    def drop(t: Array, s: float) -> Array:
        xp = namespace(t)
        return math.exp(-integral(s)) * xp.expm1((s - t) * (beta_min + 0.5 * slope * (s + t)))

    name = f"vp_linear(beta_min={beta_min:g}, beta_max={beta_max:g})"
    return Schedule(name, "vp", 0.0, 1.0, level, time, rate, (0.0, math.inf), drop)


def cosine(*, offset: float = 0.0) -> Schedule:
    """Variance-preserving schedule with alpha a cosine of time, :eq:`schedules-cosine`.

    Parameters
    ----------
    offset : float, optional
        The s of the paper, in [0, 1]; 0 gives ``alpha = cos(pi t/2)``, 0.008 the published schedule.

    Returns
    -------
    Schedule
        Geometry "vp", t from 0 to 1.

    Raises
    ------
    ValueError
        If `offset` is out of range.

    Notes
    -----
    At t = 1, alpha = 0 exactly, the drift is -inf and g^2 is +inf. (The paper clips the betas of its table at 0.999.)

    References
    ----------
    Nichol and Dhariwal, "Improved denoising diffusion probabilistic models" (2021), equation 17.

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.cosine().log_snr(1.0))
    -inf
    """
    offset = _number("offset", offset, "a number in [0, 1]", lambda v: 0 <= v <= 1)
    q = 0.5 * math.pi / (1.0 + offset)
    cos0, sin0 = math.sin(q), math.sin(q * offset)

    def level(t: Array) -> Pair:
        xp = namespace(t)
        # sin(q (1 - t)) is cos(q (t + offset)) without the rounding error of pi/2: exactly 0 at t = 1.
        alpha = xp.sin(q * (1.0 - t)) / cos0
        if offset == 0:
            return alpha, xp.sin(q * t)
        return _unit(alpha, xp.sin(q * t) * xp.sin(q * (t + 2.0 * offset)) / cos0**2)

    def time(log_snr: Array) -> Array:
        alpha, sigma = _pair_at("vp", log_snr)
        xp = namespace(log_snr)
        if offset == 0:
            return xp.atan2(sigma, alpha) / q
        s, c = xp.sqrt(sin0**2 + (cos0 * sigma) ** 2), cos0 * alpha
        t = xp.atan2((cos0 * sigma) ** 2 / (s * cos0 + c * sin0), c * cos0 + s * sin0) / q
        return xp.where(alpha == 0, xp.ones_like(t), xp.minimum(t, xp.ones_like(t)))

    def rate(t: Array) -> Array:
        xp = namespace(t)
        return _quotient(2.0 * q * xp.sin(q * (t + offset)), xp.sin(q * (1.0 - t)))

    def drop(t: Array, s: float) -> Array:
        xp = namespace(t)
        return xp.sin(q * (s - t)) * xp.sin(q * (s + t + 2.0 * offset)) / cos0**2

    return Schedule(f"cosine(offset={offset:g})", "vp", 0.0, 1.0, level, time, rate, (0.0, 1.0), drop)


def ve(*, sigma_min: float = 0.002, sigma_max: float = 80.0) -> Schedule:
    """Variance-exploding schedule with sigma geometric in time, :eq:`schedules-ve`.

    Parameters
    ----------
    sigma_min : float, optional
        Noise at t = 0, > 0.
    sigma_max : float, optional
        Noise at t = 1, > `sigma_min`.

    Returns
    -------
    Schedule
        Geometry "ve", t from 0 to 1; the formulas hold for every t.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Log-SNR is linear in t. The last level still carries the noise `sigma_min`.

    References
    ----------
    Song et al., "Score-based generative modeling through stochastic differential equations" (2021), appendix C.

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.ve(sigma_min=0.01, sigma_max=100.0).sigma(0.5).round(12))
    1.0
    """
    sigma_min = _number("sigma_min", sigma_min, "a finite number > 0", lambda v: v > 0)
    sigma_max = _number("sigma_max", sigma_max, "a finite number > sigma_min", lambda v: v > sigma_min)
    log_min, log_range = math.log(sigma_min), math.log(sigma_max) - math.log(sigma_min)

    def level(t: Array) -> Pair:
        # Two powers, since sigma_min * (sigma_max / sigma_min)**t misses sigma_max at t = 1 by rounding.
        return namespace(t).ones_like(t), sigma_min ** (1.0 - t) * sigma_max**t

    def time(log_snr: Array) -> Array:
        return -(log_snr + log_min) / log_range

    def rate(t: Array) -> Array:
        return 2.0 * log_range * level(t)[1] ** 2

    name = f"ve(sigma_min={sigma_min:g}, sigma_max={sigma_max:g})"
    return Schedule(name, "ve", 0.0, 1.0, level, time, rate, (-math.inf, math.inf))


def edm(*, sigma_min: float = 0.002, sigma_max: float = 80.0) -> Schedule:
    """Variance-exploding schedule whose time is sigma, :eq:`schedules-edm`.

    Parameters
    ----------
    sigma_min : float, optional
        Least noise, >= 0.
    sigma_max : float, optional
        Most noise, > `sigma_min`.

    Returns
    -------
    Schedule
        Geometry "ve", t from `sigma_min` to `sigma_max`; the formulas hold for every t >= 0.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), table 1.

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.edm().diffusion_squared(3.0))
    6.0
    """
    sigma_min = _number("sigma_min", sigma_min, "a finite number >= 0", lambda v: v >= 0)
    sigma_max = _number("sigma_max", sigma_max, "a finite number > sigma_min", lambda v: v > sigma_min)

    def level(t: Array) -> Pair:
        return namespace(t).ones_like(t), t

    def time(log_snr: Array) -> Array:
        return _exp(-log_snr)

    def rate(t: Array) -> Array:
        return 2.0 * t

    name = f"edm(sigma_min={sigma_min:g}, sigma_max={sigma_max:g})"
    return Schedule(name, "ve", sigma_min, sigma_max, level, time, rate, (0.0, math.inf))


def rectified_flow() -> Schedule:
    """Straight interpolation between data and noise, :eq:`schedules-flow`.

    Returns
    -------
    Schedule
        Geometry "flow": alpha = 1 - t, sigma = t, t from 0 to 1.

    Notes
    -----
    Here t = 1 is noise; the papers on flow matching often let t = 1 be data.

    References
    ----------
    Liu, Gong and Liu, "Flow straight and fast: learning to generate and transfer data with rectified flow" (2023).

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.rectified_flow().drift(0.5))
    -2.0
    """

    def level(t: Array) -> Pair:
        return 1.0 - t, t

    def time(log_snr: Array) -> Array:
        return _pair_at("flow", log_snr)[1]

    def rate(t: Array) -> Array:
        return _quotient(namespace(t).ones_like(t), 1.0 - t)

    return Schedule("rectified_flow()", "flow", 0.0, 1.0, level, time, rate, (0.0, 1.0))


def sigmoid(*, start: float = -3.0, end: float = 3.0, tau: float = 1.0) -> Schedule:
    """Variance-preserving schedule with alpha^2 a rescaled piece of a logistic curve, :eq:`schedules-sigmoid`.

    Parameters
    ----------
    start : float, optional
        Where the piece of the curve begins (t = 0), before the division by `tau`.
    end : float, optional
        Where it ends (t = 1), > `start`.
    tau : float, optional
        Temperature, > 0, with ``(end - start) / tau <= 80``.

    Returns
    -------
    Schedule
        Geometry "vp", t from 0 to 1, alpha(0) = 1 and alpha(1) = 0 exactly.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Not to be confused with a table of betas that follow a sigmoid; that one is made by `from_betas`.

    References
    ----------
    Jabri, Fleet and Chen, "Scalable adaptive computation for iterative generation" (2023), appendix.

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.sigmoid().log_snr(0.5).round(12))
    0.0
    """
    start = _number("start", start, "a finite number", math.isfinite)
    tau = _number("tau", tau, "a finite number > 0", lambda v: v > 0)
    end = _number("end", end, "a number with 0 < (end - start) / tau <= 80", lambda v: 0 < (v - start) / tau <= 80)
    first, last = start / tau, end / tau
    k = last - first
    cosh_first, cosh_last, sinh_k = math.cosh(0.5 * first), math.cosh(0.5 * last), math.sinh(0.5 * k)

    def cosh_at(t: Array) -> Array:
        return namespace(t).cosh(0.5 * ((1.0 - t) * first + t * last))

    def level(t: Array) -> Pair:
        xp = namespace(t)
        # A difference of two logistic functions is a quotient of hyperbolic ones: no cancellation at the ends.
        alpha2 = xp.sinh(0.5 * k * (1.0 - t)) / sinh_k * (cosh_first / cosh_at(t))
        sigma2 = xp.sinh(0.5 * k * t) / sinh_k * (cosh_last / cosh_at(t))
        return _unit(_sqrt(alpha2), sigma2)

    def time(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        alpha, sigma = _pair_at("vp", log_snr)
        clean = sigma < alpha
        zero = xp.zeros_like(log_snr)
        # From the nearer end, so that both logarithms have one sign and their arguments stay below 1/2.
        n, a = xp.where(clean, sigma, zero) ** 2, xp.where(clean, zero, alpha) ** 2
        from_clean = xp.log1p(n * (math.expm1(k) * _expit(-last))) - xp.log1p(n * (math.expm1(-k) * _expit(last)))
        from_noise = xp.log1p(a * (math.expm1(k) * _expit(first))) - xp.log1p(a * (math.expm1(-k) * _expit(-first)))
        return xp.where(clean, from_clean / k, 1.0 - from_noise / k)

    def rate(t: Array) -> Array:
        xp = namespace(t)
        return _quotient(0.5 * k * cosh_last / cosh_at(t), xp.sinh(0.5 * k * (1.0 - t)))

    def drop(t: Array, s: float) -> Array:
        scale = cosh_first * cosh_last / (sinh_k * math.cosh(0.5 * ((1.0 - s) * first + s * last)))
        return scale * namespace(t).sinh(0.5 * k * (s - t)) / cosh_at(t)

    name = f"sigmoid(start={start:g}, end={end:g}, tau={tau:g})"
    return Schedule(name, "vp", 0.0, 1.0, level, time, rate, (0.0, 1.0), drop)


def from_betas(betas: Array, /) -> Schedule:
    """Variance-preserving schedule through the table of a discrete chain, :eq:`schedules-betas`.

    Parameters
    ----------
    betas : array
        The noise rates of T >= 2 steps, each in (0, 1); row k = 0, ..., T - 1 lies at time (k + 1)/T.

    Returns
    -------
    Schedule
        Geometry "vp", t from 1/T to 1. A network trained on the index receives ``k = T t - 1``.

    Raises
    ------
    ValueError
        If `betas` is not one-dimensional, too short or out of range, or leaves no signal at all (below exp(-300)).

    Notes
    -----
    Log-SNR is linear in t between rows, and goes on linearly beyond the first and last. Its slope jumps at rows; drift
    and diffusion there are those of the segment on the clean side, ((k - 1)/T, k/T]. A binary search for each time.

    References
    ----------
    Ho, Jain and Abbeel, "Denoising diffusion probabilistic models" (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import schedules
    >>> stable_diffusion = schedules.from_betas(np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    >>> level = stable_diffusion.level(np.asarray([0.001, 1.0]))
    >>> print((level.sigma / level.alpha).round(4))
    [ 0.0292 14.6146]
    """
    table = np.asarray(concrete(asfloat(betas, "betas")), dtype=np.float64)
    if table.ndim != 1 or table.size < 2 or not np.all((table > 0) & (table < 1)):
        msg = f"betas must be a sequence of at least two numbers in (0, 1), got shape {table.shape}: {betas!r}"
        raise ValueError(msg)
    n = table.size
    log_alpha2 = np.cumsum(np.log1p(-table))
    if log_alpha2[-1] < -600.0:
        msg = f"betas must leave a product of 1 - betas above exp(-600), got exp({log_alpha2[-1]:.0f})"
        raise ValueError(msg)
    odds = 1.0 / np.expm1(-log_alpha2)
    lam = 0.5 * np.log(odds)
    knots = np.arange(1, n + 1) / n
    # Not diff(lam), which loses three digits: in a step alpha^2 shrinks by 1 - beta and sigma^2 grows by alpha^2 beta.
    slope = np.concatenate([[math.nan], 0.5 * n * (np.log1p(-table[1:]) - np.log1p(odds[:-1] * table[1:]))])

    def segment(increasing: np.ndarray, x: Array) -> Callable[[np.ndarray], Array]:
        # Segment i is (knot i-1, knot i]: a knot belongs to the segment on its clean side. The first and last extend.
        xp, device = namespace(x), array_api_compat.device(x)
        keys = xp.asarray(increasing, dtype=x.dtype, device=device)
        i = xp.clip(xp.searchsorted(keys, xp.reshape(x, (-1,))), 1, n - 1)
        return lambda values: xp.reshape(xp.take(xp.asarray(values, dtype=x.dtype, device=device), i), x.shape)

    def log_snr(t: Array) -> Array:
        at = segment(knots, t)
        return at(lam) + at(slope) * (t - at(knots))

    def level(t: Array) -> Pair:
        return _pair_at("vp", log_snr(t))

    def time(log_snr: Array) -> Array:
        at = segment(-lam, -log_snr)
        return at(knots) + (log_snr - at(lam)) / at(slope)

    def rate(t: Array) -> Array:
        return -2.0 * level(t)[1] ** 2 * segment(knots, t)(slope)

    def drop(t: Array, s: float) -> Array:
        xp, at = namespace(t), segment(knots, t)
        i = int(np.clip(np.searchsorted(knots, s), 1, n - 1))
        # The log-SNR between s and t as a sum of terms of one sign for t < s, so that it keeps its digits as t -> s.
        far = at(slope) * (t - at(knots)) + (at(lam - lam[i - 1]) + float(slope[i] * (knots[i - 1] - s)))
        gap = xp.where(at(knots) == float(knots[i]), float(slope[i]) * (t - s), far)
        sigma_s = float(level(np.asarray(s))[1])
        return (sigma_s * level(t)[0]) ** 2 * (0.0 - xp.expm1(-2.0 * gap))

    return Schedule(f"from_betas({n})", "vp", 1.0 / n, 1.0, level, time, rate, (-math.inf, math.inf), drop)


def shift(schedule: Schedule, /, factor: float) -> Schedule:
    """Schedule with sigma/alpha multiplied by a factor at every time, :eq:`schedules-shift`.

    Parameters
    ----------
    schedule : Schedule
        The schedule to shift; geometry, ends in time and domain stay.
    factor : float
        The factor, > 0; more than 1 means more noise. It subtracts ``log(factor)`` from the log-SNR used here, which is
        half of the log of the ratio of powers.

    Returns
    -------
    Schedule
        The shifted schedule.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If `factor` is not a finite number > 0.

    Notes
    -----
    Factors multiply: shifting by a and then by b is shifting by a b. Images of width d follow a schedule made for width
    64 with the factor d/64.

    References
    ----------
    Hoogeboom, Heek and Salimans, "simple diffusion: end-to-end diffusion for high resolution images" (2023). Esser et
    al., "Scaling rectified flow transformers for high-resolution image synthesis" (2024).

    Examples
    --------
    >>> from diffnum import schedules
    >>> float(schedules.shift(schedules.rectified_flow(), 3.0).sigma(0.5))
    0.75
    """
    _check_schedule(schedule)
    factor = _number("factor", factor, "a finite number > 0", lambda v: v > 0)
    base, geometry = schedule, schedule.geometry

    def scaled(t: Array) -> tuple[Array, Array, Array]:
        alpha, sigma = base._level(t)
        sigma = factor * sigma
        xp = namespace(alpha)
        if geometry == "vp":
            return alpha, sigma, xp.sqrt(alpha * alpha + sigma * sigma)
        return alpha, sigma, xp.ones_like(alpha) if geometry == "ve" else alpha + sigma

    def level(t: Array) -> Pair:
        alpha, sigma, norm = scaled(t)
        return alpha / norm, sigma / norm

    def time(log_snr: Array) -> Array:
        return base._time(log_snr + math.log(factor))

    def rate(t: Array) -> Array:
        gain = factor / scaled(t)[2]
        return base._rate(t) * gain if geometry == "flow" else base._rate(t) * gain**2

    def drop(t: Array, s: float) -> Array:
        at_s = float(scaled(np.asarray(s))[2])
        return base._drop(t, s) * (factor / (at_s * scaled(t)[2])) ** 2

    name = f"shift({schedule.name}, {factor:g})"
    return replace(schedule, name=name, _level=level, _time=time, _rate=rate, _drop=drop)


def zero_terminal_snr(schedule: Schedule, /) -> Schedule:
    """Schedule with alpha lowered and stretched so that it ends at 0, :eq:`schedules-zero-terminal`.

    Parameters
    ----------
    schedule : Schedule
        A schedule of geometry "vp".

    Returns
    -------
    Schedule
        alpha is 0 at `t_noise` and unchanged at `t_clean`; a `schedule` that ends at 0 is returned as it is. The
        formulas hold between `t_clean` and `t_noise` only.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If the geometry is not "vp".

    Notes
    -----
    At `t_noise` the drift is -inf and g^2 is +inf, so methods that step in time cannot start there; those that step in
    sigma/alpha or in the angle can.

    References
    ----------
    Lin, Liu, Li and Yang, "Common diffusion noise schedules and sample steps are flawed" (2024), algorithm 1.

    Examples
    --------
    >>> from diffnum import schedules
    >>> schedules.zero_terminal_snr(schedules.vp_linear()).prior_std
    1.0
    """
    _check_schedule(schedule)
    base = schedule
    if base.geometry != "vp":
        msg = f"schedule must be variance preserving ('vp'), got geometry {schedule.geometry!r} ({schedule.name})"
        raise ValueError(msg)
    t0, t1 = schedule.t_clean, schedule.t_noise
    (a0, s0), (a1, _) = ([float(v) for v in schedule.level(t)[1:]] for t in (t0, t1))
    if a1 == 0:
        return schedule
    missing = s0**2 / (1.0 + a0)
    scale = a0 / (-float(base._drop(np.asarray(t1), t0)) / (a0 + a1))

    def above(t: Array) -> Array:
        """Alpha of the base minus its last value."""
        return base._drop(t, t1) / (base._level(t)[0] + a1)

    def level(t: Array) -> Pair:
        alpha = scale * above(t)
        below = -base._drop(t, t0) / (base._level(t)[0] + a0)
        return _unit(alpha, (missing + scale * below) * (1.0 + alpha))

    def time(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        alpha, sigma = _pair_at("vp", log_snr)
        base_alpha = a1 + alpha / scale
        one_minus = missing * (a1 / a0) + sigma**2 / ((1.0 + alpha) * scale)
        t = base._time(_log_ratio(base_alpha, _sqrt(one_minus * (1.0 + base_alpha))))
        return xp.where(alpha == 0, xp.full_like(t, t1), t)

    def rate(t: Array) -> Array:
        return _quotient(base._rate(t) * base._level(t)[0], above(t))

    def drop(t: Array, s: float) -> Array:
        at_s, here = float(base._level(np.asarray(s))[0]), base._level(t)[0]
        alphas = scale * above(t) + scale * float(above(np.asarray(s)))
        return scale * base._drop(t, s) / (here + at_s) * alphas

    name = f"zero_terminal_snr({schedule.name})"
    return replace(schedule, name=name, _level=level, _time=time, _rate=rate, _domain=(t0, t1), _drop=drop)


def truncate(schedule: Schedule, /, *, t_clean: float | None = None, t_noise: float | None = None) -> Schedule:
    """Schedule restricted to an interval of its times; the error this makes is :eq:`schedules-prior`.

    Parameters
    ----------
    schedule : Schedule
        The schedule to restrict; its functions stay.
    t_clean : float, optional
        New clean end; the old one if None.
    t_noise : float, optional
        New noisy end; the old one if None.

    Returns
    -------
    Schedule
        The same functions with other ends.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If the new ends are not in order or not inside the old ones.

    Examples
    --------
    >>> from diffnum import schedules
    >>> short = schedules.truncate(schedules.cosine(), t_clean=0.001, t_noise=0.995)
    >>> (short.t_clean, short.t_noise)
    (0.001, 0.995)
    """
    _check_schedule(schedule)
    old = (schedule.t_clean, schedule.t_noise)
    clean = old[0] if t_clean is None else t_clean
    noise = old[1] if t_noise is None else t_noise
    clean = _number("t_clean", clean, f"a number in [{old[0]:g}, {old[1]:g})", lambda v: old[0] <= v < old[1])
    noise = _number("t_noise", noise, f"a number in ({clean:g}, {old[1]:g}]", lambda v: clean < v <= old[1])
    return replace(schedule, name=f"truncate({schedule.name}, {clean:g}, {noise:g})", t_clean=clean, t_noise=noise)


def _pair_at(geometry: str, log_snr: Array) -> Pair:
    """(alpha, sigma) at a log-SNR: exact at +-inf, no cancellation, derivatives right at 0 and finite at +-inf."""
    xp = namespace(log_snr)
    if geometry == "ve":
        return xp.ones_like(log_snr), _exp(-log_snr)
    negative = log_snr < 0
    # Not exp(-abs(.)): at 0 libraries differentiate abs as 0 or as 1, and the derivative of alpha comes out wrong.
    small = xp.exp(xp.where(negative, log_snr, -log_snr))
    norm = xp.sqrt(1.0 + small * small) if geometry == "vp" else 1.0 + small
    small, large = small / norm, 1.0 / norm
    return xp.where(negative, small, large), xp.where(negative, large, small)


def _unit(alpha: Array, sigma2: Array) -> Pair:
    """(alpha, sigma) with squares adding to 1, the larger from the smaller: both ends come out exact."""
    xp = namespace(alpha)
    clean = sigma2 < 0.5
    larger = _sqrt(xp.where(clean, 1.0 - sigma2, xp.ones_like(alpha)))
    return xp.where(clean, larger, alpha), _sqrt(xp.where(clean, sigma2, (1.0 - alpha) * (1.0 + alpha)))


def _log_ratio(alpha: Array, sigma: Array) -> Array:
    alpha, sigma = asfloat(alpha, "alpha"), asfloat(sigma, "sigma")
    xp = namespace(alpha, sigma)
    if type(alpha) is type(sigma) is np.ndarray and alpha.all() and sigma.all():
        return np.log(alpha) - np.log(sigma)
    no_signal, no_noise = alpha == 0, sigma == 0
    ratio = xp.log(xp.where(no_signal, xp.ones_like(alpha), alpha)) - xp.log(
        xp.where(no_noise, xp.ones_like(sigma), sigma)
    )
    ratio = xp.where(no_signal, xp.full_like(ratio, -math.inf), ratio)
    return xp.where(no_noise, xp.full_like(ratio, math.inf), ratio)


def _exp(x: Array) -> Array:
    """Exponential, infinite where it overflows, without a warning."""
    xp = namespace(x)
    over = x > math.log(float(xp.finfo(x.dtype).max)) * (1.0 - float(xp.finfo(x.dtype).eps))
    return xp.where(over, xp.full_like(x, math.inf), xp.exp(xp.where(over, xp.zeros_like(x), x)))


def _sqrt(x: Array) -> Array:
    """Square root whose derivative at 0 is 0 rather than infinite (0 * inf is NaN in a chain rule)."""
    xp = namespace(x)
    zero = x == 0
    return xp.where(zero, xp.zeros_like(x), xp.sqrt(xp.where(zero, xp.ones_like(x), x)))


def _quotient(numerator: Array, denominator: Array) -> Array:
    """numerator/denominator, +inf where the denominator is 0."""
    xp = namespace(denominator)
    pole = denominator == 0
    ratio = numerator / xp.where(pole, xp.ones_like(denominator), denominator)
    return xp.where(pole, xp.full_like(ratio, math.inf), ratio)


def _softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow, its derivative right at 0 too."""
    xp = namespace(x)
    negative = x < 0
    return xp.where(negative, xp.zeros_like(x), x) + xp.log1p(xp.exp(xp.where(negative, x, -x)))


def _expit(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def _not_nan(log_snr: Array) -> Array:
    x = asfloat(log_snr, "log_snr")
    values = concrete(x)
    if values is not None and np.any(np.isnan(values)):
        msg = "log_snr must hold numbers, +inf or -inf, got nan"
        raise ValueError(msg)
    return x


def _number(name: str, value: float, expected: str, accept: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not accept(float(value)):
        msg = f"{name} must be {expected}, got {value!r}"
        raise ValueError(msg)
    return float(value)


def _check_schedule(schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        msg = f"schedule must be a Schedule, got {type(schedule).__name__}"
        raise TypeError(msg)
