"""Moments of a kernel over many intervals at once, by Gauss-Legendre quadrature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diffnum._backend import Array, namespace

__all__ = ["moments", "power_moments"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0

_POWER = 8


def moments(kernel: Callable[[Array], Array], start: Array, stop: Array, count: int) -> tuple[Array, ...]:
    """Integrals of ``kernel(s) u^j ds`` with ``u = (s - start)/(stop - start)``, for j < `count`.

    Parameters
    ----------
    kernel : callable
        Smooth function; called once on points of the shape of `start` with one more axis.
    start, stop : array
        Ends of the intervals, of one shape.
    count : int
        Number of moments.

    Returns
    -------
    tuple of array
        `count` arrays of the shape of `start`.
    """
    xp = namespace(start, stop)
    nodes, weights = _rule(xp, stop)
    length = stop - start
    values = kernel(start[..., None] + nodes * length[..., None]) * weights * length[..., None]
    return tuple(xp.sum(values * nodes**j, axis=-1) for j in range(count))


def power_moments(
    kernel: Callable[[Array], Array], start: Array, stop: Array, length: Array, count: int
) -> tuple[Array, ...]:
    """The same where `kernel` has a branch point w^p at w = 0, on or near ``0 <= start < stop``.

    The substitution w = y^8 makes the integrand smooth: y^(8 p + 7) times a function of y^8. Differences of powers are
    written as products, so that nothing cancels on short intervals.

    Parameters
    ----------
    kernel : callable
        ``w^p`` times a smooth function.
    start, stop : array, shape (n,)
        Ends of the intervals.
    length : array, shape (n,)
        ``stop - start``, as accurately as the caller knows it.
    count : int
        Number of moments.

    Returns
    -------
    tuple of array
        `count` arrays of shape (n,).
    """
    xp = namespace(start, stop)
    nodes, weights = _rule(xp, stop)
    zero = start == 0.0
    y_start = xp.where(zero, xp.zeros_like(start), xp.where(zero, xp.ones_like(start), start) ** (1 / _POWER))[:, None]
    y_stop = (stop ** (1 / _POWER))[:, None]
    whole = _quotient(y_stop, y_start)
    step = length[:, None] / whole
    y = y_start + nodes * step
    u = nodes * _quotient(y, y_start) / whole
    values = kernel(y**_POWER) * (_POWER * y ** (_POWER - 1)) * weights * step
    return tuple(xp.sum(values * u**j, axis=-1) for j in range(count))


def _quotient(y: Array, a: Array) -> Array:
    """(y^8 - a^8)/(y - a), without the subtraction."""
    return sum(y ** (_POWER - 1 - i) * a**i for i in range(_POWER))


def _rule(xp: object, like: Array) -> tuple[Array, Array]:
    return xp.asarray(_NODES, dtype=like.dtype), xp.asarray(_WEIGHTS, dtype=like.dtype)
