"""Scalar functions of a step that stay right at its singular ends, with finite derivatives there.

A step may start at alpha = 0 (pure noise) and stop at sigma = 0 (clean data), where log-SNR is infinite. All these
functions return the limit. Where a formula fails, ``where`` replaces its argument and its result, since a derivative
of the branch that is not taken would be 0 * inf. Two more rules: nothing is subtracted that could be divided, and
nothing is exponentiated that could overflow. See :doc:`/paths`, "Where it breaks".
"""

from __future__ import annotations

import math

from diffnum._backend import Array, namespace
from diffnum.phi import phis
from diffnum.schedules import Level

__all__ = [
    "alpha_over_sigma",
    "co_angle",
    "decay",
    "falling_moments",
    "log_cosine",
    "log_quotient",
    "renewed",
    "rising_moments",
    "sigma_over_alpha",
    "times",
    "turn",
]

_LARGE = 50.0
"""Exponent from which the falling moments are those of an infinite interval to rounding, and phi would overflow."""


def decay(eta: Array, length: Array) -> tuple[Array, Array]:
    """What a step keeps of the state and adds as noise: ``exp(-eta^2 length)`` and ``sqrt(1 - its square)``.

    The root is taken of ``expm1`` over its argument, times `eta`: linear in `eta` at 0, with the derivative it has.

    Parameters
    ----------
    eta : array, shape (n,)
        Strength of the noise, >= 0.
    length : array, shape (n,)
        Length of the step, >= 0 or infinite.

    Returns
    -------
    tuple of array
        Both factors, in [0, 1].
    """
    xp = namespace(length)
    one, zero = xp.ones_like(length), xp.zeros_like(length)
    still, far = eta == 0.0, xp.isinf(length)
    finite = xp.where(far, one, length)
    z = 2.0 * eta**2 * finite
    tiny = z == 0.0
    share = xp.where(tiny, one, -xp.expm1(-z) / xp.where(tiny, one, z))
    moving = finite > 0.0
    root = xp.where(moving, xp.sqrt(2.0 * xp.where(moving, finite, one) * share), zero)
    kept = xp.where(far, zero, xp.exp(-0.5 * z))
    added = xp.where(far, one, eta * root)
    return xp.where(still & far, one, kept), xp.where(still & far, zero, added)


def rising_moments(count: int, z: Array) -> tuple[Array, ...]:
    """Integrals of ``z exp(-z (1 - u)) u^j`` over u from 0 to 1, j < `count`: ``z j! phi_{j+1}(-z)``.

    Parameters
    ----------
    count : int
        Number of moments.
    z : array
        Exponents, finite or +inf.

    Returns
    -------
    tuple of array
        `count` arrays: 0 at z = 0, 1 at infinity.
    """
    xp = namespace(z)
    infinite = xp.isinf(z)
    finite = xp.where(infinite, xp.ones_like(z), z)
    inside = phis(count, -finite)[1:]
    return tuple(xp.where(infinite, xp.ones_like(z), finite * math.factorial(j) * p) for j, p in enumerate(inside))


def falling_moments(count: int, z: Array) -> tuple[Array, ...]:
    """Integrals of ``z exp(-z u) u^j`` over u from 0 to 1, j < `count`: ``exp(-z) z j! phi_{j+1}(z)``.

    Parameters
    ----------
    count : int
        Number of moments.
    z : array
        Exponents, >= 0 or infinite.

    Returns
    -------
    tuple of array
        `count` arrays: 0 at z = 0; at infinity 1 for j = 0 and 0 else.
    """
    xp = namespace(z)
    large, infinite = z > _LARGE, xp.isinf(z)
    small, beyond = xp.where(large, xp.ones_like(z), z), xp.where(large & ~infinite, z, xp.full_like(z, _LARGE))
    scale = small * xp.exp(-small)
    inside = phis(count, small)[1:]
    rest = []
    for j in range(1, count):
        # beyond the threshold the integral to infinity: what it has too much is below rounding
        factorial = math.factorial(j)
        tail = xp.where(infinite, xp.zeros_like(z), factorial / beyond**j)
        rest.append(xp.where(large, tail, scale * factorial * inside[j]))
    return (-xp.expm1(-z), *rest)


def times(factor: Array, h: Array) -> Array:
    """``factor * h`` for factor > 0; infinite where h is, whatever the factor.

    Parameters
    ----------
    factor : array
        Factors > 0.
    h : array
        Lengths, >= 0 or infinite.

    Returns
    -------
    array
        The product.
    """
    xp = namespace(h)
    infinite = xp.isinf(h)
    return xp.where(infinite, xp.full_like(h, math.inf), factor * xp.where(infinite, xp.ones_like(h), h))


def log_cosine(level: Level, scale: float) -> Array:
    """Logarithm of the cosine of the angle ``atan2(sigma, alpha scale)``, accurate where it is 1; -inf at alpha = 0.

    Parameters
    ----------
    level : Level
        Noise level.
    scale : float
        Standard deviation of the data.

    Returns
    -------
    array
        Values <= 0.
    """
    xp = namespace(level.alpha)
    one = xp.ones_like(level.sigma)
    signal = scale * level.alpha
    clean, empty = level.sigma < signal, level.alpha == 0.0
    tangent = xp.where(clean, level.sigma, xp.zeros_like(one)) / xp.where(clean, signal, one)
    cotangent = xp.where(clean | empty, one, signal) / xp.where(clean, one, level.sigma)
    near = -0.5 * xp.log1p(tangent**2)
    far = xp.log(cotangent) - 0.5 * xp.log1p(cotangent**2)
    return xp.where(empty, xp.full_like(one, -math.inf), xp.where(clean, near, far))


def turn(a: Level, b: Level, scale: float) -> Array:
    """Angle from `b` up to `a`, positive if `a` is noisier: from a cross product, not from a difference of angles.

    Parameters
    ----------
    a, b : Level
        Noise levels.
    scale : float
        Standard deviation of the data.

    Returns
    -------
    array
        Angles in [-pi/2, pi/2].
    """
    cross = scale * (a.sigma * b.alpha - b.sigma * a.alpha)
    return namespace(a.alpha).atan2(cross, scale**2 * a.alpha * b.alpha + a.sigma * b.sigma)


def co_angle(level: Level, scale: float) -> Array:
    """Complement ``atan2(alpha scale, sigma)`` of the angle, accurate where that is pi/2.

    Parameters
    ----------
    level : Level
        Noise level.
    scale : float
        Standard deviation of the data.

    Returns
    -------
    array
        Angles in [0, pi/2].
    """
    return namespace(level.alpha).atan2(scale * level.alpha, level.sigma)


def log_quotient(a: Array, b: Array, length: Array) -> Array:
    """``log(a/b)``, to full accuracy also where a and b are close; -inf at a = 0.

    Parameters
    ----------
    a, b : array
        Numbers with ``0 <= a < b``.
    length : array
        ``b - a``, as accurately as it is known.

    Returns
    -------
    array
        Values < 0.
    """
    xp = namespace(a)
    one, zero, close = xp.ones_like(a), a == 0.0, 2.0 * length < b
    near = xp.log1p(xp.where(close, -length / b, 0.0 * one))
    far = xp.log(xp.where(zero, one, a) / b)
    return xp.where(zero, xp.full_like(a, -math.inf), xp.where(close, near, far))


def renewed(s: Level, t: Level) -> Array:
    """Share ``1 - exp(-2 h)`` of the variance at `t` that is new since the less noisy `s`, h their log-SNR difference.

    From a cross product, in which rounding keeps the sign: ``1 - exp(-h) = (alpha_s sigma_t - alpha_t sigma_s) /
    (alpha_s sigma_t)``. The difference of two logarithms has their rounding, and of two squares worse.

    Parameters
    ----------
    s, t : Level
        Noise levels.

    Returns
    -------
    array
        Shares in [0, 1]: 1 if `s` is clean or `t` pure noise, 0 where both are, and where `t` is not the noisier.
    """
    xp = namespace(s.alpha, t.alpha)
    whole = s.alpha * t.sigma
    one, zero, rise = xp.ones_like(whole), xp.zeros_like(whole), whole - t.alpha * s.sigma
    moved = rise > 0.0
    gap = xp.where(moved, rise, zero) / xp.where(moved, whole, one)
    return gap * (2.0 - gap)


def sigma_over_alpha(level: Level) -> Array:
    """``rho = sigma/alpha``; infinite at alpha = 0.

    Parameters
    ----------
    level : Level
        Noise level.

    Returns
    -------
    array
        Ratios in [0, inf].
    """
    return _quotient(level.sigma, level.alpha)


def alpha_over_sigma(level: Level) -> Array:
    """``alpha/sigma``; infinite at sigma = 0.

    Parameters
    ----------
    level : Level
        Noise level.

    Returns
    -------
    array
        Ratios in [0, inf].
    """
    return _quotient(level.alpha, level.sigma)


def _quotient(a: Array, b: Array) -> Array:
    xp = namespace(b)
    pole = b == 0.0
    ratio = a / xp.where(pole, xp.ones_like(b), b)
    return xp.where(pole, xp.full_like(ratio, math.inf), ratio)
