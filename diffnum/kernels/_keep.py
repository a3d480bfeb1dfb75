"""How much is kept: schedules of the probability alpha_t that a token has not been touched up to time t.

A schedule is one curve and its derivative, in the coordinate in which the curve is simple: the cumulative rate
``-log alpha``, the pair ``(alpha, 1 - alpha)``, or the log-odds. The three builders at the end make all else from it.
So levels and rates cannot disagree, and what changes a curve (a cap) changes both. See :doc:`/kernels/categorical`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, asfloat, concrete, convert, is_jax, namespace
from diffnum.kernels._logspace import log1mexp, log_of, softplus

__all__ = [
    "Keep",
    "KeepSchedule",
    "keep_cosine",
    "keep_discrete",
    "keep_geometric",
    "keep_linear",
    "keep_linear_rate",
    "keep_log_linear",
    "keep_log_odds",
    "keep_polynomial",
    "keep_sigmoid",
    "preset",
]

_SLACK = 1e-4
"""A time counts as k/T if T t is this close to k; float32 times of 1,000 steps are."""


class Keep(NamedTuple):
    """A level of categorical noise, :eq:`kernels-categorical-keep`: the logarithms of alpha and of 1 - alpha.

    Both are stored: neither can be had from the other where it rounds to 0.

    Attributes
    ----------
    t : array
        Time.
    log_alpha : array
        Logarithm of the probability that a token was kept; -inf for pure noise.
    log_noise : array
        Logarithm of the probability that it was drawn anew; -inf for clean data.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> level = categorical.keep_cosine().level(0.5)
    >>> round(float(level.alpha), 12), round(float(level.noise), 12)
    (0.5, 0.5)
    """

    t: Array
    log_alpha: Array
    log_noise: Array

    @property
    def alpha(self) -> Array:
        """Probability alpha of having been kept."""
        return namespace(self.log_alpha).exp(self.log_alpha)

    @property
    def noise(self) -> Array:
        """Probability 1 - alpha of having been drawn anew."""
        return namespace(self.log_noise).exp(self.log_noise)

    @property
    def log_odds(self) -> Array:
        """Logarithm of alpha/(1 - alpha); infinite at both ends."""
        return self.log_alpha - self.log_noise


class Curve(NamedTuple):
    """What a schedule says at a time: both logarithms, the rate ``-d log(alpha)/dt`` and the slope ``-d alpha/dt``."""

    log_alpha: Array
    log_noise: Array
    rate: Array
    slope: Array


@dataclass(frozen=True, eq=False)
class KeepSchedule:
    """A schedule of the keep probability, :eq:`kernels-categorical-keep`, for times from 0 (clean) to 1 (noisy).

    Parameters
    ----------
    name : str
        The call that made it.
    steps : int or None
        Number T of steps of a discrete schedule, whose times are the multiples of 1/T; None for continuous time.
    _curve : callable
        From t to `Curve`.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> schedule = categorical.keep_linear()
    >>> float(schedule.level(0.25).alpha), float(schedule.rate(0.5)), float(schedule.terminal)
    (0.75, 2.0, 0.0)
    """

    name: str
    steps: int | None
    _curve: Callable[[Array], Curve] = field(repr=False)

    def level(self, t: Array, /) -> Keep:
        """Level at time `t`, :eq:`kernels-categorical-keep`."""
        t = self._checked(t)
        curve = self._curve(t)
        return Keep(t, curve.log_alpha, curve.log_noise)

    def alpha(self, t: Array, /) -> Array:
        """Keep probability of :eq:`kernels-categorical-keep` at time `t`."""
        return self.level(t).alpha

    def rate(self, t: Array, /) -> Array:
        """Rate ``-d log(alpha)/dt`` of :eq:`kernels-categorical-rate`, of a discrete schedule that of the step to `t`.

        +inf where alpha = 0.
        """
        return self._curve(self._checked(t)).rate

    def slope(self, t: Array, /) -> Array:
        """Slope ``-d alpha/dt`` of :eq:`kernels-categorical-rate`, finite where the rate is not."""
        return self._curve(self._checked(t)).slope

    def growth(self, t: Array, /) -> Array:
        """Rate ``d log(1 - alpha)/dt`` of :eq:`kernels-categorical-rate`; +inf where alpha = 1."""
        curve = self._curve(self._checked(t))
        noise = namespace(curve.log_noise).exp(curve.log_noise)
        return _ratio(curve.slope, noise)

    @property
    def terminal(self) -> float:
        """Signal alpha(1) that is left at the noisy end of :eq:`kernels-categorical-keep`."""
        return float(self.alpha(np.asarray(1.0)))

    def _checked(self, t: Array) -> Array:
        t = asfloat(t, "t")
        known = concrete(t)
        if known is None:
            return t
        inside = (known >= 0.0) & (known <= 1.0)
        if not inside.all():
            msg = f"t must be in [0, 1] for {self.name}, got {known[~inside].flat[0]}"
            raise ValueError(msg)
        if self.steps is not None:
            count = known.astype(float) * self.steps
            off = abs(count - np.round(count)) > _SLACK
            if off.any():
                msg = f"t must be a multiple of 1/{self.steps} for {self.name}, got {known[off].flat[0]}"
                raise ValueError(msg)
        return t


def keep_linear() -> KeepSchedule:
    """``alpha = 1 - t``, :eq:`kernels-categorical-schedules`: each token is touched at a uniform time.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(1) = 0 exactly. In T steps it is the schedule 1/(T - t + 1) of Austin et al. (2021).

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> float(categorical.keep_linear().alpha(0.75))
    0.25
    """
    return _from_pair("keep_linear()", lambda t: (1.0 - t, t, namespace(t).ones_like(t)))


def keep_log_linear(*, floor: float = 1e-3) -> KeepSchedule:
    """``alpha = 1 - (1 - floor) t``, :eq:`kernels-categorical-schedules`: linear, with signal left at the end.

    Parameters
    ----------
    floor : float, optional
        alpha(1), in [0, 1).

    Returns
    -------
    KeepSchedule
        Continuous. With the floor an absorbing chain has an infinite prior term: its loss is no bound.

    Raises
    ------
    ValueError
        If `floor` is out of range.

    References
    ----------
    A. Lou, C. Meng and S. Ermon, Discrete diffusion modeling by estimating the ratios of the data distribution (2024);
    the name is that of ``-log alpha``.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> round(categorical.keep_log_linear().terminal, 12)
    0.001
    """
    floor = _within("floor", floor, 0.0, 1.0)
    whole = 1.0 - floor

    def pair(t: Array) -> tuple[Array, Array, Array]:
        return (1.0 - t) + floor * t, whole * t, namespace(t).full_like(t, whole)

    return _from_pair(f"keep_log_linear(floor={floor:g})", pair)


def keep_polynomial(*, power: float = 2.0, of: str = "alpha") -> KeepSchedule:
    """``alpha = (1 - t)^power`` or ``1 - alpha = t^power``, :eq:`kernels-categorical-schedules`.

    Parameters
    ----------
    power : float, optional
        Exponent >= 1.
    of : {"alpha", "noise"}, optional
        Which of the two is a power.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(1) = 0 exactly.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> float(categorical.keep_polynomial(power=2).alpha(0.5))
    0.25
    """
    power = number("power", power, least=1.0)
    choose("of", of, ("alpha", "noise"))

    def of_alpha(t: Array) -> tuple[Array, Array, Array]:
        xp, rest = namespace(t), 1.0 - t
        end = rest == 0.0
        noise = -xp.expm1(power * xp.log1p(-xp.where(end, xp.zeros_like(t), t)))
        return rest**power, xp.where(end, xp.ones_like(t), noise), power * rest ** (power - 1.0)

    def of_noise(t: Array) -> tuple[Array, Array, Array]:
        xp = namespace(t)
        start = t == 0.0
        alpha = -xp.expm1(power * xp.log(xp.where(start, xp.ones_like(t), t)))
        return xp.where(start, xp.ones_like(t), alpha), t**power, power * t ** (power - 1.0)

    name = f"keep_polynomial(power={power:g}, of={of!r})"
    return _from_pair(name, of_alpha if of == "alpha" else of_noise)


def keep_cosine(*, offset: float = 0.0, max_rate: float | None = None) -> KeepSchedule:
    """``alpha = cos^2(pi t/2)``, with offset and cap :eq:`kernels-categorical-cosine`.

    Parameters
    ----------
    offset : float, optional
        The s of Nichol and Dhariwal, in [0, 1].
    max_rate : float, optional
        Where the rate reaches this bound, it stays there, and alpha falls exponentially: the cap is one of both.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(1) = 0 exactly, unless capped.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    A. Nichol and P. Dhariwal, Improved denoising diffusion probabilistic models (2021); E. Hoogeboom et al., Argmax
    flows and multinomial diffusion (2021), for alpha as a probability.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> float(categorical.keep_cosine().alpha(1.0))
    0.0
    """
    offset = _within("offset", offset, 0.0, 1.0, closed=True)
    speed = 0.5 * math.pi / (1.0 + offset)
    start = speed * offset
    scale = math.cos(start) ** 2

    def pair(t: Array) -> tuple[Array, Array, Array]:
        # the cosine of an angle near pi/2 is the sine of what is missing: exactly 0 at t = 1
        xp, missing, gone = namespace(t), speed * (1.0 - t), speed * t
        alpha = xp.sin(missing) ** 2 / scale
        noise = xp.sin(gone) * xp.sin(gone + 2.0 * start) / scale
        return alpha, noise, 2.0 * speed * xp.sin(missing) * xp.sin(gone + start) / scale

    name = f"keep_cosine(offset={offset:g})"
    if max_rate is None:
        return _from_pair(name, pair)
    bound = number("max_rate", max_rate, above=2.0 * speed * math.tan(start))
    turn = max(0.0, math.atan(bound / (2.0 * speed)) / speed - offset)

    def integral(t: Array) -> tuple[Array, Array]:
        xp = namespace(t)
        before = xp.minimum(t, xp.full_like(t, turn))
        log_alpha, _, rate, _ = _curve_of_pair(pair, before)
        late = t > turn
        return bound * xp.where(late, t - turn, xp.zeros_like(t)) - log_alpha, xp.where(
            late, xp.full_like(t, bound), rate
        )

    return _from_rate(f"keep_cosine(offset={offset:g}, max_rate={bound:g})", integral)


def keep_linear_rate(*, rate_min: float = 0.1, rate_max: float = 20.0) -> KeepSchedule:
    """``-log alpha = rate_min t + (rate_max - rate_min) t^2/2``, :eq:`kernels-categorical-schedules`.

    Parameters
    ----------
    rate_min, rate_max : float, optional
        Rates at t = 0 and t = 1; 0 < `rate_min` <= `rate_max`.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(1) = exp(-(rate_min + rate_max)/2), with the defaults exp(-10.05) = 4.32e-5.

    Raises
    ------
    ValueError
        If a rate is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> f"{categorical.keep_linear_rate().terminal:.4g}"
    '4.319e-05'
    """
    rate_min = number("rate_min", rate_min, above=0.0)
    rate_max = number("rate_max", rate_max, least=rate_min)
    gain = rate_max - rate_min

    def integral(t: Array) -> tuple[Array, Array]:
        return t * (rate_min + 0.5 * gain * t), rate_min + gain * t

    return _from_rate(f"keep_linear_rate(rate_min={rate_min:g}, rate_max={rate_max:g})", integral)


def keep_geometric(*, total_min: float = 1e-4, total_max: float = 20.0) -> KeepSchedule:
    """``-log alpha = total_min^(1 - t) total_max^t``, :eq:`kernels-categorical-schedules`.

    Parameters
    ----------
    total_min, total_max : float, optional
        Cumulative rates at t = 0 and t = 1; 0 < `total_min` < `total_max`.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(0) = exp(-total_min) is not 1, so that a bound needs its reconstruction term.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> f"{categorical.keep_geometric().terminal:.4g}"
    '2.061e-09'
    """
    total_min = number("total_min", total_min, above=0.0)
    total_max = number("total_max", total_max, above=total_min)
    speed = math.log(total_max / total_min)

    def integral(t: Array) -> tuple[Array, Array]:
        total = total_min * namespace(t).exp(speed * t)
        return total, speed * total

    return _from_rate(f"keep_geometric(total_min={total_min:g}, total_max={total_max:g})", integral)


def keep_sigmoid(*, start: float = -3.0, end: float = 3.0, tau: float = 1.0) -> KeepSchedule:
    """A sigmoid between `start` and `end`, shifted and scaled so that both ends are exact.

    The second line of :eq:`kernels-categorical-odds`.

    Parameters
    ----------
    start, end : float, optional
        Arguments of the sigmoid at t = 0 and t = 1, before division by `tau`; `end` > `start`.
    tau : float, optional
        Temperature > 0.

    Returns
    -------
    KeepSchedule
        Continuous; alpha(1) = 0 exactly.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    A. Jabri, D. Fleet and T. Chen, Scalable adaptive computation for iterative generation (2023).

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> round(float(categorical.keep_sigmoid().alpha(0.5)), 12)
    0.5
    """
    start = number("start", start)
    end = number("end", end, above=start)
    tau = number("tau", tau, above=0.0)
    low, width = start / tau, (end - start) / tau
    high = low + width
    whole = _logistic(high) * _logistic(-low) * -math.expm1(-width)

    def pair(t: Array) -> tuple[Array, Array, Array]:
        # a difference of two sigmoids is a product: sig(a) - sig(b) = sig(a) sig(-b) (1 - exp(b - a))
        xp = namespace(t)
        rest, gone = width * (1.0 - t), width * t
        ahead, back = _sigmoid(low + gone), _sigmoid(-(low + gone))
        alpha = _logistic(high) * back * -xp.expm1(-rest) / whole
        noise = ahead * _logistic(-low) * -xp.expm1(-gone) / whole
        return alpha, noise, width * ahead * back / whole

    return _from_pair(f"keep_sigmoid(start={start:g}, end={end:g}, tau={tau:g})", pair)


def keep_log_odds(*, start: float = 9.0, end: float = -9.0) -> KeepSchedule:
    """Log-odds ``log(alpha/(1 - alpha))`` that fall linearly from `start` to `end`, :eq:`kernels-categorical-odds`.

    Parameters
    ----------
    start, end : float, optional
        Log-odds at t = 0 and t = 1 in nats; `end` < `start`. They are those of signal against noise, without a half.

    Returns
    -------
    KeepSchedule
        Continuous; neither end is exact: alpha(1) = 1/(1 + exp(-end)).

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> f"{categorical.keep_log_odds().terminal:.4g}"
    '0.0001234'
    """
    start = number("start", start)
    end = number("end", end)
    if end >= start:
        msg = f"end must be below start, got {end!r} and {start!r}"
        raise ValueError(msg)

    def odds(t: Array) -> tuple[Array, Array]:
        return start * (1.0 - t) + end * t, namespace(t).full_like(t, start - end)

    return _from_odds(f"keep_log_odds(start={start:g}, end={end:g})", odds)


def keep_discrete(schedule: KeepSchedule | Array, steps: int | None = None, *, max_noise: float = 1.0) -> KeepSchedule:
    """A chain of T steps, :eq:`kernels-categorical-discrete`: levels at k/T only, with a cap on the noise of a step.

    Parameters
    ----------
    schedule : KeepSchedule or array, shape (T,)
        Curve to be read at k/T, or the noise probabilities 1 - alpha_{k|k-1} of the steps, in [0, 1].
    steps : int, optional
        Number T of steps, where a curve is given.
    max_noise : float, optional
        Largest noise probability of a step, in (0, 1]; the cumulative levels are those of the capped steps.

    Returns
    -------
    KeepSchedule
        Its rate at k/T is ``-T log alpha_{k|k-1}``, so that rates sum to the level.

    Raises
    ------
    TypeError
        If `schedule` is neither.
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> chain = categorical.keep_discrete(categorical.keep_cosine(), 16)
    >>> np.round(chain.alpha(np.array([1, 8, 15, 16]) / 16), 4)
    array([0.9904, 0.5   , 0.0096, 0.    ])
    """
    cap = _within("max_noise", max_noise, 0.0, 1.0, closed=True)
    if cap == 0.0:
        msg = f"max_noise must be in (0, 1], got {max_noise!r}"
        raise ValueError(msg)
    if isinstance(schedule, KeepSchedule):
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            msg = f"steps must be an integer >= 1, got {steps!r}"
            raise ValueError(msg)
        level = schedule.level(np.arange(steps + 1) / steps)
        log_alpha, log_noise = np.asarray(level.log_alpha), np.asarray(level.log_noise)
        name = f"keep_discrete({schedule.name}, {steps}"
    else:
        noise = concrete(asfloat(schedule, "schedule"))
        if noise is None or noise.ndim != 1 or not noise.size or not ((noise >= 0.0) & (noise <= 1.0)).all():
            msg = f"schedule must be a KeepSchedule or probabilities of shape (T,), got {schedule!r}"
            raise ValueError(msg)
        steps = noise.size
        log_alpha = np.concatenate([[0.0], np.cumsum(np.asarray(log_of(1.0 - noise.astype(float))))])
        log_noise = np.asarray(log1mexp(log_alpha))
        name = f"keep_discrete(<{steps} probabilities>"
    ratios = np.asarray(_falls(log_alpha))
    least = float(log_of(np.asarray(1.0 - cap))) if cap == 1.0 else math.log1p(-cap)
    if (ratios < least).any():
        ratios = np.maximum(ratios, least)
        log_alpha = log_alpha[0] + np.concatenate([[0.0], np.cumsum(ratios)])
        log_noise = np.asarray(log1mexp(log_alpha))
    rates = -steps * np.concatenate([ratios[:1], ratios])
    drops = np.exp(log_alpha[:-1]) * -np.expm1(ratios) * steps
    tables = (log_alpha, log_noise, rates, np.concatenate([drops[:1], drops]))
    count = steps

    def curve(t: Array) -> Curve:
        xp = namespace(t)
        index = xp.astype(xp.round(t * count), xp.int32 if is_jax(t) else xp.int64)
        parts = (xp.take(convert(table, t, t.dtype), xp.reshape(index, (-1,)), axis=0) for table in tables)
        return Curve(*(xp.reshape(part, t.shape) for part in parts))

    return KeepSchedule(f"{name}{'' if cap == 1.0 else f', max_noise={cap:g}'})", count, curve)


def preset(name: str, /) -> KeepSchedule:
    """A schedule that a paper uses, with its terminal signal, :eq:`kernels-categorical-terminal`.

    Parameters
    ----------
    name : str
        "d3pm" (1/(T - t + 1), 1,000 steps: 0), "multinomial" (cosine with offset .008 in 1,000 steps, at most .999 of
        noise in each: 2.4e-9), "sedd" (geometric: 2.1e-9), "mdlm" (log-linear: 1e-3), "vp" (rates .1 to 20: 4.3e-5) or
        "canvas" (cosine in 16 steps: 0).

    Returns
    -------
    KeepSchedule
        The schedule.

    Raises
    ------
    ValueError
        For another name.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> f"{categorical.preset('mdlm').terminal:.3g}"
    '0.001'
    """
    choose("name", name, tuple(_PRESETS))
    return _PRESETS[name]()


_PRESETS: dict[str, Callable[[], KeepSchedule]] = {
    "d3pm": lambda: keep_discrete(keep_linear(), 1000),
    "multinomial": lambda: keep_discrete(keep_cosine(offset=0.008), 1000, max_noise=0.999),
    "sedd": keep_geometric,
    "mdlm": keep_log_linear,
    "vp": keep_linear_rate,
    "canvas": lambda: keep_discrete(keep_cosine(), 16),
}


def _from_rate(name: str, integral: Callable[[Array], tuple[Array, Array]]) -> KeepSchedule:
    """From the cumulative rate ``-log alpha`` and its derivative."""

    def curve(t: Array) -> Curve:
        total, rate = integral(t)
        return Curve(-total, log1mexp(-total), rate, rate * namespace(t).exp(-total))

    return KeepSchedule(name, None, curve)


def _from_pair(name: str, pair: Callable[[Array], tuple[Array, Array, Array]]) -> KeepSchedule:
    """From alpha, 1 - alpha and ``-d alpha/dt``, each to a few roundings."""
    return KeepSchedule(name, None, lambda t: _curve_of_pair(pair, t))


def _from_odds(name: str, odds: Callable[[Array], tuple[Array, Array]]) -> KeepSchedule:
    """From the log-odds and the speed with which they fall."""

    def curve(t: Array) -> Curve:
        xp = namespace(t)
        value, speed = odds(t)
        log_alpha, log_noise = -softplus(-value), -softplus(value)
        rate = xp.exp(log_noise) * speed
        return Curve(log_alpha, log_noise, rate, xp.exp(log_alpha) * rate)

    return KeepSchedule(name, None, curve)


def _curve_of_pair(pair: Callable[[Array], tuple[Array, Array, Array]], t: Array) -> Curve:
    alpha, noise, slope = pair(t)
    # each logarithm is taken of the smaller of the two, which has the digits
    return Curve(_log_from(alpha, noise), _log_from(noise, alpha), _ratio(slope, alpha), slope)


def _log_from(p: Array, rest: Array) -> Array:
    xp = namespace(p)
    near = rest < 0.5
    close = xp.log1p(-xp.where(near, rest, xp.zeros_like(rest)))
    return xp.where(near, close, log_of(xp.where(near, xp.ones_like(p), p)))


def _ratio(a: Array, b: Array) -> Array:
    """Quotient a/b, +inf at b = 0."""
    xp = namespace(a, b)
    zero = b == 0.0
    return xp.where(zero, xp.full_like(b, math.inf), a / xp.where(zero, xp.ones_like(b), b))


def _falls(log_alpha: np.ndarray) -> np.ndarray:
    """Logarithms of alpha_{k|k-1}; 0 where both levels are pure noise."""
    before, after = log_alpha[:-1], log_alpha[1:]
    lost = before == -math.inf
    return np.where(lost, 0.0, after - np.where(lost, 0.0, before))


def _sigmoid(x: Array) -> Array:
    return namespace(x).exp(-softplus(-x))


def _logistic(x: float) -> float:
    return math.exp(-math.log1p(math.exp(-abs(x)))) * (1.0 if x >= 0.0 else math.exp(x))


def _within(name: str, value: Any, low: float, high: float, *, closed: bool = False) -> float:
    value = number(name, value)
    if not (low <= value < high or (closed and value == high)):
        msg = f"{name} must be in [{low:g}, {high:g}{']' if closed else ')'}, got {value!r}"
        raise ValueError(msg)
    return value


def check_schedule(schedule: Any) -> None:
    """Raise unless `schedule` is a `KeepSchedule`.

    Parameters
    ----------
    schedule : object
        A candidate.

    Raises
    ------
    TypeError
        If it is something else.
    """
    instance("schedule", schedule, KeepSchedule)
