"""Weights of training losses, and what they have in common: their weight relative to the variational bound.

A weight multiplies the squared error of a target at a level. Each function returns it for the target asked for; that of
another target is the same loss. See :doc:`/parameterization`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diffnum import _targets
from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, asfloat, concrete, convert, namespace
from diffnum._laws import TimeLaw
from diffnum._targets import Target
from diffnum.schedules import Level, Schedule

__all__ = [
    "Loss",
    "convert_weight",
    "edm_weight",
    "elbo_weight",
    "min_snr_weight",
    "same_loss",
    "sigmoid_weight",
    "snr_weight",
    "truncated_snr_weight",
]


def convert_weight(
    weight: Array | float, level: Level, /, *, source: Target, target: Target, schedule: Schedule | None = None
) -> Array:
    """Weight on the error of `target` that equals `weight` on the error of `source`, :eq:`parameterization-weights`.

    The ratio of the errors is that of :eq:`parameterization-errors`.

    Parameters
    ----------
    weight : array or float
        Weight of the squared error of `source`.
    level : Level
        Noise level.
    source, target : {"x0", "eps", "v", "score", "flow"}
        The two targets.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        ``weight`` times the square of d source/d target; for each sample the two weighted errors are then equal.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule.
    ValueError
        If the ratio is infinite at a level whose values are known.

    Examples
    --------
    >>> from diffnum.parameterization import convert_weight
    >>> from diffnum.schedules import Level
    >>> float(convert_weight(1.0, Level(0.5, 0.8, 0.4), source="eps", target="x0"))
    4.0
    """
    slope = _targets.coefficients(level, target, source, schedule)[1]
    value = asfloat(weight, "weight")
    plain = value is not weight  # a number, or integers: it takes the dtype of the level
    if plain or namespace(value) is not namespace(value, slope):
        value = convert(value, slope, slope.dtype)
    return value * slope**2


def snr_weight(level: Level, /, *, target: Target = "x0", schedule: Schedule | None = None) -> Array:
    """The plain loss of eps, as a weight on `target`: SNR for x0, 1 for eps; :eq:`parameterization-snr`.

    Parameters
    ----------
    level : Level
        Noise level.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight; infinite for x0 at sigma = 0.

    References
    ----------
    Ho, Jain and Abbeel, "Denoising diffusion probabilistic models" (2020), equation 14.

    Examples
    --------
    >>> from diffnum.parameterization import snr_weight
    >>> from diffnum.schedules import Level
    >>> round(float(snr_weight(Level(0.5, 0.8, 0.4))), 12)
    4.0
    """
    snr = _twice_log_snr(level)
    return _weight(level, snr, namespace(snr).zeros_like(snr), target, schedule)


def truncated_snr_weight(level: Level, /, *, target: Target = "x0", schedule: Schedule | None = None) -> Array:
    """The weight max(SNR, 1) on x0, or its equal on another target; :eq:`parameterization-truncated-snr`.

    Parameters
    ----------
    level : Level
        Noise level.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight.

    References
    ----------
    Salimans and Ho, "Progressive distillation for fast sampling of diffusion models" (2022), section 4.

    Examples
    --------
    >>> from diffnum.parameterization import truncated_snr_weight
    >>> from diffnum.schedules import Level
    >>> [round(float(truncated_snr_weight(Level(0.5, a, 0.4))), 12) for a in (0.8, 0.2)]
    [4.0, 1.0]
    """
    snr = _twice_log_snr(level)
    xp = namespace(snr)
    zero = xp.zeros_like(snr)
    return _weight(level, xp.maximum(snr, zero), xp.maximum(-snr, zero), target, schedule)


def min_snr_weight(
    level: Level, /, *, gamma: float = 5.0, target: Target = "x0", schedule: Schedule | None = None
) -> Array:
    """The weight min(SNR, gamma) on x0, or its equal on another target; :eq:`parameterization-min-snr`.

    Parameters
    ----------
    level : Level
        Noise level.
    gamma : float, optional
        Largest weight, > 0; compared with the full ratio ``(alpha/sigma)^2``, not with its root.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies: on eps it is min(SNR, gamma)/SNR, on v (if variance is preserved)
        min(SNR, gamma)/(SNR + 1).
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight.

    Raises
    ------
    ValueError
        If `gamma` is not > 0.

    References
    ----------
    Hang et al., "Efficient diffusion training via min-SNR weighting strategy" (2023), section 3.4.

    Examples
    --------
    >>> from diffnum.parameterization import min_snr_weight
    >>> from diffnum.schedules import Level
    >>> [round(float(min_snr_weight(Level(0.5, 0.9, 0.3), target=t)), 6) for t in ("x0", "eps")]
    [5.0, 0.555556]
    """
    top = math.log(number("gamma", gamma, above=0.0))
    snr = _twice_log_snr(level)
    xp = namespace(snr)
    zero = xp.zeros_like(snr)
    return _weight(level, xp.minimum(snr, zero + top), xp.minimum(zero, top - snr), target, schedule)


def edm_weight(
    level: Level, /, *, sigma_data: float = 1.0, target: Target = "x0", schedule: Schedule | None = None
) -> Array:
    """The weight 1/c_out^2 on x0, or its equal on another target; :eq:`parameterization-edm-weight`.

    Parameters
    ----------
    level : Level
        Noise level.
    sigma_data : float, optional
        Standard deviation of the data, > 0.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight, with which the error of the preconditioned network counts 1 at every level.

    Raises
    ------
    ValueError
        If `sigma_data` is not > 0.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), table 1.

    Examples
    --------
    >>> from diffnum.parameterization import edm_weight
    >>> from diffnum.schedules import Level
    >>> round(float(edm_weight(Level(0.5, 1.0, 0.5), sigma_data=0.5)), 12)
    8.0
    """
    floor = -2.0 * math.log(number("sigma_data", sigma_data, above=0.0))
    snr = _twice_log_snr(level)
    xp = namespace(snr)
    zero = xp.zeros_like(snr)
    return _weight(level, _log_add(snr, zero + floor), _log_add(zero, floor - snr), target, schedule)


def sigmoid_weight(
    level: Level, /, *, bias: float = 0.0, target: Target = "x0", schedule: Schedule | None = None
) -> Array:
    """The weight expit(bias - log SNR) on eps, or its equal on another target; :eq:`parameterization-sigmoid-weight`.

    Parameters
    ----------
    level : Level
        Noise level.
    bias : float, optional
        Log of the full ratio ``(alpha/sigma)^2`` at which the weight falls to one half.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight.

    Raises
    ------
    ValueError
        If `bias` is not finite.

    Notes
    -----
    The papers state it relative to the bound: the law of the times is divided out, as `elbo_weight` does. Multiply the
    two if you draw times from another law than uniform in log-SNR.

    References
    ----------
    Kingma and Gao, "Understanding diffusion objectives as the ELBO with simple data augmentation" (2023), section 4.3.

    Hoogeboom et al., "Simpler diffusion" (2025), section 3.1.

    Examples
    --------
    >>> from diffnum.parameterization import sigmoid_weight
    >>> from diffnum.schedules import Level
    >>> round(float(sigmoid_weight(Level(0.5, 0.5, 0.5), target="eps")), 12)
    0.5
    """
    bias = number("bias", bias)
    snr = _twice_log_snr(level)
    zero = namespace(snr).zeros_like(snr)
    return _weight(level, -_log_add(-snr, zero - bias), -_log_add(zero, snr - bias), target, schedule)


def elbo_weight(level: Level, law: TimeLaw, /, *, target: Target = "eps", schedule: Schedule | None = None) -> Array:
    """The weight that makes the loss the variational bound: 1/density on eps, :eq:`parameterization-elbo`.

    On Gaussian data the bound is the entropy, :eq:`parameterization-gaussian-elbo`.

    Parameters
    ----------
    level : Level
        Noise level, drawn from `law`.
    law : TimeLaw
        The law of the training times.
    target : {"x0", "eps", "v", "score", "flow"}, optional
        Whose squared error the weight multiplies.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The weight. With the half log-SNR of this library its factor is 1; with the full one it is 1/2.

    Raises
    ------
    ValueError
        If the density of `law` is 0 at a level whose values are known.

    References
    ----------
    Kingma et al., "Variational diffusion models" (2021), equation 18.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import elbo_weight, uniform_log_snr
    >>> round(float(elbo_weight(schedules.cosine().level_at(0.5), uniform_log_snr(-4.0, 4.0))), 12)
    8.0
    """
    instance("law", law, TimeLaw)
    place = 0.5 * _twice_log_snr(level)
    density = law.density(place)
    known = concrete(density)
    if known is not None and not np.all(known > 0):
        msg = f"level must have positive density under {law.name}, got log-SNR {concrete(place)}"
        raise ValueError(msg)
    log_eps = -namespace(density).log(density)
    return _weight(level, log_eps + 2.0 * place, log_eps, target, schedule)


@dataclass(frozen=True, eq=False)
class Loss:
    """A training loss: which target, which weight, which law of the times.

    Parameters
    ----------
    target : {"x0", "eps", "v", "score", "flow"}
        Whose squared error is taken.
    weight : callable
        ``weight(level) -> array``, what it is multiplied with.
    law : TimeLaw
        Where the levels come from.
    schedule : Schedule
        Turns a log-SNR into a level.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import Loss, uniform_time
    >>> flow = schedules.rectified_flow()
    >>> loss = Loss("flow", lambda level: 1.0, uniform_time(flow), flow)
    >>> float(loss.effective_weight(0.0))
    1.0
    """

    target: Target
    weight: Callable[[Level], Array | float]
    law: TimeLaw
    schedule: Schedule

    def effective_weight(self, log_snr: Array, /) -> Array:
        """Density of the law times the weight on eps, :eq:`parameterization-effective`; 1 is the variational bound."""
        level = self.schedule.level_at(log_snr)
        weight = convert_weight(self.weight(level), level, source=self.target, target="eps", schedule=self.schedule)
        return self.law.density(level.log_snr) * weight


def same_loss(first: Loss, second: Loss, /, *, log_snr: Array | None = None, rtol: float = 1e-6) -> bool:
    """Whether two losses are the same function of the denoiser up to a factor, :eq:`parameterization-effective`.

    Parameters
    ----------
    first, second : Loss
        The losses.
    log_snr : array, optional
        Where their effective weights are compared; 65 points from -8 to 8 if None.
    rtol : float, optional
        Relative deviation from a constant ratio that counts as rounding.

    Returns
    -------
    bool
        True if the effective weights are in a constant ratio, zeros at the same points.

    Raises
    ------
    ValueError
        If an effective weight is zero at every point.

    Notes
    -----
    Equal losses have equal expectations for every denoiser, and equal minimisers. Their estimates from a batch have the
    same variance only if the laws of the times are equal too.

    Examples
    --------
    The v loss on the cosine schedule is the flow loss on the straight one:

    >>> from diffnum import schedules
    >>> from diffnum.parameterization import Loss, same_loss, uniform_time
    >>> cosine, flow = schedules.cosine(), schedules.rectified_flow()
    >>> a = Loss("v", lambda level: 1.0, uniform_time(cosine), cosine)
    >>> b = Loss("flow", lambda level: 1.0, uniform_time(flow), flow)
    >>> same_loss(a, b)
    True
    """
    places = np.linspace(-8.0, 8.0, 65) if log_snr is None else asfloat(log_snr, "log_snr")
    weights = []
    for name, loss in (("first", first), ("second", second)):
        weight = np.asarray(concrete(loss.effective_weight(places)))
        if not np.any(weight > 0):
            msg = f"log_snr must have points where the weight of {name} is positive, got none"
            raise ValueError(msg)
        weights.append(weight)
    a, b = weights
    if np.any((a > 0) != (b > 0)):
        return False
    ratio = a[a > 0] / b[a > 0]
    return bool(np.ptp(ratio) <= rtol * np.max(ratio))


def _twice_log_snr(level: Level) -> Array:
    """Logarithm of the signal-to-noise ratio, which is that of squares."""
    instance("level", level, Level)
    return 2.0 * asfloat(level.log_snr)


def _weight(level: Level, log_x0: Array, log_eps: Array, target: str, schedule: Schedule | None) -> Array:
    """Weight on `target`, from the logarithms of those on x0 and eps, of which v and flow take the finite one."""
    choose("target", target, _targets.TARGETS)
    xp = namespace(log_x0)
    if target == "x0":
        return xp.exp(log_x0)
    if target in {"eps", "score"}:
        return xp.exp(log_eps) * (asfloat(level.sigma) ** 2 if target == "score" else 1.0)
    alpha, sigma = _targets.scales(level)
    noisy = alpha < sigma
    slope = xp.where(noisy, sigma, alpha)
    unit = alpha**2 + sigma**2 if target == "v" else _targets.wronskian(level, schedule)
    return xp.exp(xp.where(noisy, log_x0, log_eps)) * (slope / unit) ** 2


def _log_add(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)), one of which may be infinite."""
    return namespace(a, b).logaddexp(a, b)
