"""Scalar coefficients between the things a network can predict: x0, eps, v, the score and the flow velocity.

At a fixed x every one of them is an affine function of every other. The coefficients go through the pair (x0, eps),
not through x0 alone: v and the flow velocity determine both at either end, where alpha or sigma is 0. A route that
does not need a singular half never computes it. See :doc:`/parameterization`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import array_api_compat
import numpy as np

from diffnum._arguments import choose, instance
from diffnum._backend import Array, asfloat, cast, concrete, convert, hypot, matches, namespace, state_dtype
from diffnum.schedules import Level, Schedule

__all__ = ["TARGETS", "Target", "apply", "coefficients", "norm", "parts", "rates", "scales", "spread", "wronskian"]

Target = Literal["x0", "eps", "v", "score", "flow"]

TARGETS = ("x0", "eps", "v", "score", "flow")

_NEEDS = {"x0": (True, False), "eps": (False, True), "v": (True, True), "score": (False, True), "flow": (True, True)}
"""Whether a target is made from x0, and whether it is made from eps."""

_INSIDE = 1e-30
"""A time this far from an end at 0 has the derivatives of the end to rounding, and its square is no longer needed."""

_SAME = 1e-3
"""Distance at which alpha and sigma of a level cannot be those of the schedule, in any precision."""

Coefficient = Array | float | None


def coefficients(level: Level, source: str, target: str, schedule: Schedule | None) -> tuple[Coefficient, Array]:
    """The p and q of ``target = p x + q source``; p is None where it is zero by construction.

    Parameters
    ----------
    level : Level
        Noise level; numbers or arrays.
    source, target : {"x0", "eps", "v", "score", "flow"}
        What is known, what is wanted.
    schedule : Schedule or None
        Needed if one of them is the flow velocity.

    Returns
    -------
    tuple
        Coefficients of the shape of the level.

    Raises
    ------
    ValueError
        If the target is not determined by the source at a level whose values are known.
    """
    choose("source", source, TARGETS)
    choose("target", target, TARGETS)
    alpha, sigma = scales(level)
    if source == target:
        return None, namespace(alpha).ones_like(alpha)
    data, noise = _NEEDS[target]
    for scale, name, singular in (
        (alpha, "alpha", source in {"eps", "score"} and data),
        (sigma, "sigma", (source == "x0" and noise) or target == "score"),
    ):
        values = concrete(scale) if singular else None
        if values is not None and np.any(values == 0):
            hint = "; see schedules.truncate" if name == "alpha" else ""
            msg = f"level must have {name} > 0 to get {target} from {source}, got {name} = 0{hint}"
            raise ValueError(msg)
    slopes = _finite_rates(schedule, level, source, target) if "flow" in {source, target} else (0.0, 0.0)
    half = _halves(source, alpha, sigma, slopes)
    a, b = _parts(target, alpha, sigma, slopes)
    terms = [(a, half[0]) for _ in range(data)] + [(b, half[1]) for _ in range(noise)]
    p = [c * pair[0] for c, pair in terms if pair[0] is not None]
    return sum(p[1:], p[0]) if p else None, sum(c * pair[1] for c, pair in terms)


def _halves(source: str, alpha: Array, sigma: Array, slopes: tuple[Array, Array]) -> Any:
    """Coefficients of (x, source) in x0 and in eps; None where a source says nothing of x."""

    def inverse(scale: Array) -> Array:
        xp, zero = namespace(scale), scale == 0
        ratio = 1.0 / xp.where(zero, xp.ones_like(scale), scale)
        return xp.where(zero, xp.full_like(ratio, math.inf), ratio)

    if source == "x0":
        one = namespace(sigma).ones_like(sigma)
        return (None, one), (inverse(sigma), -alpha * inverse(sigma))
    if source in {"eps", "score"}:
        unit = namespace(sigma).ones_like(sigma) if source == "eps" else -sigma
        return (inverse(alpha), -sigma * unit * inverse(alpha)), (None, unit)
    if source == "v":
        square = alpha**2 + sigma**2
        return (alpha / square, -sigma / square), (sigma / square, alpha / square)
    down, up = slopes
    w = alpha * up - down * sigma
    return (up / w, -sigma / w), (-down / w, alpha / w)


def parts(level: Level, target: str, schedule: Schedule | None) -> tuple[Array, Array]:
    """The a and b of ``target = a x0 + b eps``.

    Parameters
    ----------
    level : Level
        Noise level.
    target : {"x0", "eps", "v", "score", "flow"}
        What is wanted.
    schedule : Schedule or None
        Needed for the flow velocity.

    Returns
    -------
    tuple of array
        Coefficients.

    Raises
    ------
    ValueError
        If they are infinite at a level whose values are known.
    """
    choose("target", target, TARGETS)
    alpha, sigma = scales(level)
    values = concrete(sigma) if target == "score" else None
    if values is not None and np.any(values == 0):
        msg = "level must have sigma > 0 for the score, got sigma = 0"
        raise ValueError(msg)
    slopes = _finite_rates(schedule, level, target, target) if target == "flow" else (0.0, 0.0)
    return _parts(target, alpha, sigma, slopes)


def _parts(target: str, alpha: Array, sigma: Array, slopes: tuple[Array, Array]) -> tuple[Array, Array]:
    one = namespace(alpha, sigma).ones_like(alpha)
    if target == "score":
        positive = sigma > 0
        return 0.0 * one, -1.0 / namespace(sigma).where(positive, sigma, one)
    return {"x0": (one, 0.0 * one), "eps": (0.0 * one, one), "v": (-sigma, alpha), "flow": slopes}[target]


def rates(schedule: Schedule, t: Array) -> tuple[Array, Array]:
    """Derivatives (d alpha/dt, d sigma/dt) at time `t`; at an end the limit, which may be infinite.

    At alpha = 0 or sigma = 0 the drift or g^2 is infinite or 0/0. There the derivative is taken one rounding of t
    inside, which changes a finite limit by rounding. Whether it is finite shows in the exponent: with s the distance
    to the end, a scale that vanishes like s^m has ``s d log(scale)/ds = m``, and m is 1 or, for a square root, 1/2.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array or float
        Times.

    Returns
    -------
    tuple of array
        Derivatives of the shape of `t`.
    """
    here = schedule.level(t)
    t = here.t
    xp = namespace(t)
    tiny = xp.finfo(t.dtype).eps
    empty, clean = here.alpha == 0, here.sigma == 0
    small = xp.where(t == 0, xp.full_like(t, _INSIDE), abs(t) * tiny)
    inside = xp.where(empty, t - small, xp.where(clean, t + small, t))
    _, alpha, sigma = schedule.level(inside)
    if schedule.geometry == "ve":
        down, up = xp.zeros_like(t), schedule.diffusion_squared(inside) / (2.0 * sigma)
    else:
        down = schedule.drift(inside) * alpha
        up = -down if schedule.geometry == "flow" else -down * alpha / sigma
    length = abs(inside - t)
    root_down = empty & (-down * length < 0.75 * alpha)
    root_up = clean & (up * length < 0.75 * sigma)
    infinite = xp.full_like(t, math.inf)
    return xp.where(root_down, -infinite, down), xp.where(root_up, infinite, up)


def _finite_rates(schedule: Schedule | None, level: Level, source: str, target: str) -> tuple[Array, Array]:
    if not isinstance(schedule, Schedule):
        msg = f"schedule must be a Schedule where the flow velocity is involved, got {type(schedule).__name__}"
        raise TypeError(msg)
    known = [concrete(asfloat(v, name)) for v, name in zip(level, ("t", "alpha", "sigma"), strict=True)]
    if all(v is not None for v in known):
        own = [np.asarray(v) for v in schedule.level(np.asarray(known[0]))[1:]]
        gap = max(float(np.max(abs(a - b) / (1.0 + abs(b)))) for a, b in zip(known[1:], own, strict=True))
        if not gap < _SAME:
            msg = f"level must be a level of the schedule {schedule.name}, got {level}, whose scales at t are {own}"
            raise ValueError(msg)
    slopes = rates(schedule, level.t)
    values = [concrete(s) for s in slopes]
    if values[0] is not None and not np.isfinite(np.asarray(values)).all():
        msg = (
            f"level must be one where the flow velocity of {schedule.name} is finite, to get {target} from {source}; "
            f"got {level}"
        )
        raise ValueError(msg)
    return slopes


def wronskian(level: Level, schedule: Schedule | None) -> Array:
    """``alpha d(sigma)/dt - sigma d(alpha)/dt``, the determinant that takes (x0, eps) to (x, flow velocity).

    Parameters
    ----------
    level : Level
        Noise level.
    schedule : Schedule or None
        Its schedule.

    Returns
    -------
    array
        Values > 0.
    """
    alpha, sigma = scales(level)
    down, up = _finite_rates(schedule, level, "flow", "flow")
    return alpha * up - down * sigma


def norm(level: Level, sigma_data: float) -> Array:
    """``sqrt(alpha^2 sigma_data^2 + sigma^2)``, the standard deviation of x.

    Parameters
    ----------
    level : Level
        Noise level.
    sigma_data : float
        Standard deviation of the data.

    Returns
    -------
    array
        Values > 0.
    """
    alpha, sigma = scales(level)
    return hypot(alpha * sigma_data, sigma)


def scales(level: Level) -> tuple[Array, Array]:
    """Alpha and sigma of a level as arrays of one library.

    Parameters
    ----------
    level : Level
        Noise level.

    Returns
    -------
    tuple of array
        Both scales.

    Raises
    ------
    TypeError
        If `level` is no `Level` or not real.
    ValueError
        If values are known and no level has them.
    """
    instance("level", level, Level)
    alpha, sigma = asfloat(level.alpha, "level.alpha"), asfloat(level.sigma, "level.sigma")
    xp = namespace(alpha, sigma)
    if namespace(alpha) is not xp:
        alpha = convert(alpha, sigma, sigma.dtype)
    if namespace(sigma) is not xp:
        sigma = convert(sigma, alpha, alpha.dtype)
    a, b = concrete(alpha), concrete(sigma)
    if a is not None and b is not None:
        low, high = np.minimum(a, b), np.maximum(a, b)
        if not (np.all(low >= 0) and np.all(high > 0) and np.all(np.isfinite(high))):
            msg = f"level must have finite alpha, sigma >= 0, not both zero, got alpha {a}, sigma {b}"
            raise ValueError(msg)
    return alpha, sigma


def apply(x: Array, value: Array, p: Coefficient, q: Array, name: str) -> Array:
    """``p x + q value`` in the library and dtype of `x`, computed in float32 at least.

    Parameters
    ----------
    x : array
        Noisy points.
    value : array
        What is known of them, of the shape of `x`.
    p, q : array or None
        Coefficients: scalars, or of the shape of the first axes of `x`.
    name : str
        Name of `value`, for the error message.

    Returns
    -------
    array
        The combination.

    Raises
    ------
    TypeError
        If `x` or `value` is not real, or they are of two libraries.
    ValueError
        If the shapes differ.
    """
    x = asfloat(x)
    value = value if array_api_compat.is_array_api_obj(value) else np.asarray(value)
    if not matches(value, x):
        kinds = [f"{type(v).__module__.partition('.')[0]}.{type(v).__name__} ({v.dtype})" for v in (value, x)]
        msg = f"{name} must be a real array of the library of x, got {kinds[0]} for x of {kinds[1]}"
        raise TypeError(msg)
    if value.shape != x.shape:
        msg = f"{name} must have the shape of x, {tuple(x.shape)}, got {tuple(value.shape)}"
        raise ValueError(msg)
    if p is None:
        return cast(spread(q, x) * cast(value, state_dtype(x)), x.dtype)
    # one expression: NumPy then adds in place
    return cast(spread(p, x) * cast(x, state_dtype(x)) + spread(q, x) * cast(value, state_dtype(x)), x.dtype)


def spread(coefficient: Array | float, x: Array) -> Array:
    """`coefficient` in the library and state dtype of `x`, with axes appended so that it multiplies the first ones.

    Parameters
    ----------
    coefficient : array or float
        A scalar, or one entry for each sample.
    x : array
        Samples along the first axes.

    Returns
    -------
    array
        Coefficients that broadcast against `x`.

    Raises
    ------
    ValueError
        If the axes do not match.
    """
    c = convert(asfloat(coefficient), x, state_dtype(x))
    if c.ndim > x.ndim or any(m not in {1, n} for m, n in zip(c.shape, x.shape, strict=False)):
        msg = f"level must have one entry, or the first axes of x of shape {tuple(x.shape)}; got {tuple(c.shape)}"
        raise ValueError(msg)
    return namespace(c).reshape(c, tuple(c.shape) + (1,) * (x.ndim - c.ndim)) if c.ndim else c
