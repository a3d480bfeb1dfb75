"""Laws of training times, as laws of the log-SNR, and the draws and estimators that go with them.

A law has a density, a distribution function, its inverse, and draws; all count from the noise fraction of
`diffnum._times`. See :doc:`/parameterization`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from diffnum import _times
from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, asfloat, concrete, namespace
from diffnum.schedules import Level, Schedule

__all__ = [
    "Method",
    "TimeLaw",
    "estimator_variance",
    "importance",
    "importance_weight",
    "log_normal",
    "uniform_log_snr",
    "uniform_time",
    "uniforms",
]

Method = Literal["independent", "stratified", "lattice", "antithetic", "stratified_antithetic"]


@dataclass(frozen=True, eq=False)
class TimeLaw:
    """A law of training times, as a law of the log-SNR: density, distribution, draws.

    The functions below make laws; the parameters with an underscore are what such a function provides. They work with
    the noise fraction v, the share of levels with less noise: 0 is the clean end, 1 the noisy one.

    Parameters
    ----------
    name : str
        The call that made the law.
    _density : callable
        From log-SNR to density.
    _fraction : callable
        From log-SNR to noise fraction.
    _place : callable
        From noise fraction to log-SNR.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import log_normal
    >>> law, vp = log_normal(), schedules.vp_linear()
    >>> level = vp.level_at(law.sample(np.random.default_rng(0), 4, method="stratified"))
    >>> print(np.round(level.t, 2))
    [0.02 0.05 0.09 0.19]
    """

    name: str
    _density: Callable[[Array], Array] = field(repr=False)
    _fraction: Callable[[Array], Array] = field(repr=False)
    _place: Callable[[Array], Array] = field(repr=False)

    def density(self, log_snr: Array, /) -> Array:
        """Density per nat of log-SNR, of the shape of `log_snr`; :eq:`parameterization-density`."""
        return self._density(asfloat(log_snr, "log_snr"))

    def time_density(self, schedule: Schedule, t: Array, /) -> Array:
        """Density per unit of time of `schedule`, by the Jacobian of :eq:`parameterization-density`; sigma > 0."""
        level = schedule.level(t)
        known = concrete(level.log_snr)
        if known is not None and not np.all(np.isfinite(known)):
            msg = f"t must have finite log-SNR, got {concrete(level.t)} for {schedule.name}"
            raise ValueError(msg)
        return self.density(level.log_snr) * schedule.diffusion_squared(level.t) / (2.0 * level.sigma**2)

    def cdf(self, log_snr: Array, /) -> Array:
        """Share of the levels with a smaller log-SNR, that is more noise; :eq:`parameterization-density`."""
        return 1.0 - self._fraction(asfloat(log_snr, "log_snr"))

    def quantile(self, u: Array, /) -> Array:
        """Log-SNR below which a share `u` in [0, 1] of the levels lies; the inverse of `cdf`."""
        u = asfloat(u, "u")
        known = concrete(u)
        if known is not None and not np.all((known >= 0) & (known <= 1)):
            msg = f"u must be in [0, 1], got {known}"
            raise ValueError(msg)
        return self._place(1.0 - u)

    def sample(self, rng: Any, n: int, /, *, method: Method = "independent") -> Array:
        """`n` log-SNRs from the draws of `uniforms`, shape (n,); ``schedule.level_at`` makes levels of them."""
        return self._place(uniforms(rng, n, method=method))


def uniform_time(schedule: Schedule, /) -> TimeLaw:
    """Times uniform between the ends of `schedule`, :eq:`parameterization-uniform-time`.

    Parameters
    ----------
    schedule : Schedule
        The schedule whose time it is.

    Returns
    -------
    TimeLaw
        On ``cosine()`` its density is sech(log_snr)/pi, on ``rectified_flow()`` the logistic density.

    Raises
    ------
    TypeError
        If `schedule` is no schedule.

    Notes
    -----
    The density is computed from the time. Near a noisy end at t = 1 its relative error is the rounding of t over 1 - t.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import uniform_time
    >>> float(uniform_time(schedules.rectified_flow()).density(0.0))
    0.25
    """
    if not isinstance(schedule, Schedule):
        msg = f"schedule must be a Schedule, got {type(schedule).__name__}"
        raise TypeError(msg)
    first, span = schedule.t_clean, schedule.t_noise - schedule.t_clean
    ends = [float(schedule.log_snr(t)) for t in (schedule.t_noise, schedule.t_clean)]

    def inside(log_snr: Array) -> tuple[Array, Level]:
        """Whether the log-SNR is between the ends, and its level; that of the clean end where it is not."""
        xp = namespace(log_snr)
        within = (log_snr >= ends[0]) & (log_snr <= ends[1])
        return within, schedule.level_at(xp.where(within, log_snr, xp.full_like(log_snr, ends[1])))

    def density(log_snr: Array) -> Array:
        within, level = inside(log_snr)
        xp = namespace(log_snr)
        one, positive = xp.ones_like(log_snr), within & (level.sigma > 0)
        t = xp.where(positive, level.t, one * schedule.t_noise)
        rate = schedule.diffusion_squared(t)
        value = 2.0 * level.sigma**2 / (span * xp.where(positive, rate, one))
        return xp.where(positive, value, 0.0 * one)

    def fraction(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        within, level = inside(log_snr)
        outside = xp.where(log_snr < ends[0], xp.ones_like(log_snr), xp.zeros_like(log_snr))
        return xp.where(within, (level.t - first) / span, outside)

    def place(v: Array) -> Array:
        return schedule.log_snr(first + span * v)

    return TimeLaw(f"uniform_time({schedule.name})", density, fraction, place)


def log_normal(*, mean: float = -1.2, std: float = 1.2) -> TimeLaw:
    """Logarithm of sigma/alpha normally distributed, :eq:`parameterization-log-normal`.

    Parameters
    ----------
    mean : float, optional
        Mean of log(sigma/alpha), in nats.
    std : float, optional
        Its standard deviation, > 0.

    Returns
    -------
    TimeLaw
        For the time of ``rectified_flow`` it is the logit-normal law with the same parameters.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), table 1.

    Esser et al., "Scaling rectified flow transformers for high-resolution image synthesis" (2024), section 3.1, as the
    logit-normal law, by default with mean 0 and standard deviation 1.

    Examples
    --------
    >>> from diffnum.parameterization import log_normal
    >>> round(float(log_normal().quantile(0.5)), 12)
    1.2
    """
    mean, std = number("mean", mean), number("std", std, above=0.0)

    def density(log_snr: Array) -> Array:
        z = (log_snr + mean) / std
        return namespace(z).exp(-0.5 * z * z) / (math.sqrt(2.0 * math.pi) * std)

    def fraction(log_snr: Array) -> Array:
        return _times.normal_cdf(-(log_snr + mean) / std)

    def place(v: Array) -> Array:
        return -(mean + std * _times.normal_quantile(v))

    return TimeLaw(f"log_normal(mean={mean:g}, std={std:g})", density, fraction, place)


def uniform_log_snr(low: float, high: float, /) -> TimeLaw:
    """Log-SNR uniform between two numbers, :eq:`parameterization-uniform-log-snr`.

    Parameters
    ----------
    low, high : float
        The ends, in nats; `low` is the noisy one.

    Returns
    -------
    TimeLaw
        With it the plain eps loss is the variational bound between the two levels, times 1/(high - low).

    Raises
    ------
    ValueError
        If the numbers are not finite or not in order.

    Examples
    --------
    >>> from diffnum.parameterization import uniform_log_snr
    >>> float(uniform_log_snr(-6.0, 4.0).density(0.0))
    0.1
    """
    low, high = number("low", low), number("high", high, above=low)
    span = high - low

    def density(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        inside = (log_snr >= low) & (log_snr <= high)
        return xp.where(inside, xp.full_like(log_snr, 1.0 / span), xp.zeros_like(log_snr))

    def fraction(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        share = (high - log_snr) / span
        return xp.minimum(xp.maximum(share, xp.zeros_like(share)), xp.ones_like(share))

    return TimeLaw(f"uniform_log_snr({low:g}, {high:g})", density, fraction, lambda v: high - span * v)


def importance(base: TimeLaw, sizes: Any, /) -> TimeLaw:
    """Law that visits equally likely pieces of `base` in proportion to `sizes`, :eq:`parameterization-importance`.

    Parameters
    ----------
    base : TimeLaw
        The law of the loss.
    sizes : array_like, shape (K,)
        Positive numbers, one for each of the K pieces of equal probability under `base`, noisy first. The variance is
        least for the root mean square of the weighted loss in each piece.

    Returns
    -------
    TimeLaw
        Its draws, multiplied by `importance_weight`, estimate the same loss as those of `base`.

    Raises
    ------
    TypeError
        If `base` is no `TimeLaw`.
    ValueError
        If `sizes` is not a list of finite numbers > 0.

    Examples
    --------
    >>> from diffnum.parameterization import importance, uniform_log_snr
    >>> law = importance(uniform_log_snr(-2.0, 2.0), [1.0, 3.0])
    >>> [float(law.density(place)) for place in (-1.0, 1.0)]
    [0.125, 0.375]
    """
    instance("base", base, TimeLaw)
    shares = np.asarray(concrete(asfloat(sizes, "sizes")), dtype=float)
    if shares.ndim != 1 or shares.size < 1 or not (np.all(shares > 0) and np.all(np.isfinite(shares))):
        msg = f"sizes must be a list of finite numbers > 0, got {sizes!r}"
        raise ValueError(msg)
    # by noise fraction, so clean first
    shares = (shares / np.sum(shares))[::-1]
    count = shares.size
    before = np.cumsum(shares) - shares

    def part(v: Array, start: float, length: float) -> Array:
        """How much of a piece lies below v."""
        xp = namespace(v)
        share = (v - start) / length
        return xp.minimum(xp.maximum(share, xp.zeros_like(share)), xp.ones_like(share))

    def density(log_snr: Array) -> Array:
        xp = namespace(log_snr)
        piece = xp.floor(base._fraction(log_snr) * count)
        factor = xp.zeros_like(log_snr)
        for k, share in enumerate(shares.tolist()):
            here = piece >= k if k == count - 1 else piece == k
            factor = xp.where(here, xp.full_like(factor, count * share), factor)
        return base._density(log_snr) * factor

    def fraction(log_snr: Array) -> Array:
        v = base._fraction(log_snr)
        return sum(share * part(v, k / count, 1.0 / count) for k, share in enumerate(shares.tolist()))

    def place(v: Array) -> Array:
        pieces = zip(before.tolist(), shares.tolist(), strict=True)
        return base._place(sum(part(v, start, share) for start, share in pieces) / count)

    return TimeLaw(f"importance({base.name}, {count} pieces)", density, fraction, place)


def importance_weight(law: TimeLaw, base: TimeLaw, log_snr: Array, /) -> Array:
    """Ratio of densities by which the losses at draws from `law` are multiplied, :eq:`parameterization-importance`.

    Parameters
    ----------
    law : TimeLaw
        The law the levels were drawn from.
    base : TimeLaw
        The law of the loss.
    log_snr : array
        The levels.

    Returns
    -------
    array
        Weights with mean 1 under `law`. Without them the loss is another one: that of `law`.

    Raises
    ------
    TypeError
        If `law` or `base` is no `TimeLaw`.
    ValueError
        If a level has density 0 under `law` and values are known.

    Examples
    --------
    >>> from diffnum.parameterization import importance, importance_weight, uniform_log_snr
    >>> base = uniform_log_snr(-2.0, 2.0)
    >>> float(importance_weight(importance(base, [1.0, 3.0]), base, -1.0))
    2.0
    """
    instance("law", law, TimeLaw)
    instance("base", base, TimeLaw)
    places = asfloat(log_snr, "log_snr")
    drawn = law.density(places)
    known = concrete(drawn)
    if known is not None and not np.all(known > 0):
        msg = f"log_snr must have positive density under {law.name}, got {concrete(places)}"
        raise ValueError(msg)
    return base.density(places) / drawn


def uniforms(rng: Any, n: int, /, *, method: Method = "independent") -> Array:
    """Draws from (0, 1) that spread over it, :eq:`parameterization-estimators`.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of n of them
        The source decides the library. A batch, one source for each draw, serves the first two methods only.
    n : int
        How many, >= 1; even for the antithetic methods.
    method : {"independent", "stratified", "lattice", "antithetic", "stratified_antithetic"}, optional
        "stratified": one draw in each n-th. "lattice": one draw, shifted by i/n modulo 1. "antithetic": n/2 draws and
        their mirror images 1 - u. "stratified_antithetic": a draw and its mirror image in each of n/2 parts.

    Returns
    -------
    array, shape (n,)
        Draws in the default floating dtype of the library, never 0 or 1.

    Raises
    ------
    TypeError
        If `rng` is none of these.
    ValueError
        If `method` is unknown or `n` does not fit it.

    Notes
    -----
    The draws of one call depend on each other: a mean over them is unbiased, but its error is not std/sqrt(n).
    Stratified draws come in order; pair them with data in random order.

    References
    ----------
    Owen, "Monte Carlo theory, methods and examples" (2013), chapters 8 and 10.

    Kingma et al., "Variational diffusion models" (2021), appendix I.1, for the lattice.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import uniforms
    >>> print(np.floor(4 * uniforms(np.random.default_rng(0), 4, method="stratified")))
    [0. 1. 2. 3.]
    """
    return _times.uniforms(rng, _count(n, method), method)


def estimator_variance(f: Callable[[Array], Array], n: int, /, *, method: Method = "independent") -> float:
    """Variance of the mean of `f` over the draws of `uniforms`, without drawing: :eq:`parameterization-estimators`.

    Parameters
    ----------
    f : callable
        Smooth function on (0, 1) that accepts NumPy arrays, such as ``lambda v: loss(law.quantile(v))``.
    n : int
        Number of draws in a mean, >= 1; even for the antithetic methods.
    method : str, optional
        As in `uniforms`.

    Returns
    -------
    float
        The variance between levels. What one level adds, since its loss is random too, is the same for all methods.

    Raises
    ------
    ValueError
        If `method` is unknown, `n` does not fit it, or `f` changes the shape.

    Notes
    -----
    Gauss-Legendre quadrature with 32 points in each n-th; an end where `f` is singular costs accuracy.

    Examples
    --------
    >>> from diffnum.parameterization import estimator_variance
    >>> [round(1 / estimator_variance(lambda u: u, 4, method=m)) for m in ("independent", "stratified", "lattice")]
    [48, 768, 192]
    """
    return _times.mean_variance(f, _count(n, method), method)


def _count(n: int, method: str) -> int:
    choose("method", method, _times.METHODS)
    try:
        count = 0 if isinstance(n, bool | np.bool_) else operator.index(n)
    except TypeError:
        count = 0
    even = method.endswith("antithetic")
    if count < 1 or (even and count % 2):
        msg = f"n must be {'an even integer >= 2' if even else 'an integer >= 1'} for {method!r}, got {n!r}"
        raise ValueError(msg)
    return count
