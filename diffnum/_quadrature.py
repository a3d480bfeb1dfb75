"""Moments of a kernel over many intervals at once, by Gauss-Legendre quadrature with 32 points.

A moment is an integral of the kernel times ``u^j``, u running from 0 to 1 over the interval. `moments` takes smooth
kernels. `power_moments` takes those with a branch point, ``v^p`` times a smooth function, at any distance from it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diffnum._backend import Array, convert, namespace

__all__ = ["moments", "power_moments"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0

_POWER = 8.0
"""The power that the substitution in `power_moments` gives to the branch point: 32 points see it as smooth."""


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
    nodes, weights = _rule(stop)
    length = stop - start
    values = kernel(start[..., None] + nodes * length[..., None]) * weights * length[..., None]
    return tuple(xp.sum(values * nodes**j, axis=-1) for j in range(count))


def power_moments(
    power: Array, log_start: Array, count: int, smooth: Callable[[Array], Array] | None = None
) -> tuple[Array, ...]:
    """``1 + p`` times the integrals of ``v^p g(v) u^j dv`` from ``v = exp(log_start)`` to 1, for j < `count`.

    The substitution ``v = y^m`` with ``m = 8/(1 + p)`` turns ``(1 + p) v^p dv`` into ``8 y^7 dy`` for every p: a branch
    point at v = 0 is gone, and a steep power is flat. Lengths are formed by ``expm1``, so that nothing cancels on short
    intervals.

    Parameters
    ----------
    power : array, shape (n,)
        p >= 0.
    log_start : array, shape (n,)
        Logarithm of the lower end, < 0; -inf for an interval from 0.
    count : int
        Number of moments.
    smooth : callable, optional
        g, on points of shape (n, 32); 1 if None.

    Returns
    -------
    tuple of array
        `count` arrays of shape (n,).
    """
    xp = namespace(log_start)
    nodes, weights = _rule(log_start)
    m = (_POWER / (1.0 + power))[:, None]
    log_start = log_start[:, None]
    whole = xp.isinf(log_start)
    log_start = xp.where(whole, xp.full_like(log_start, -1.0), log_start)
    one = xp.ones_like(log_start)
    step = xp.where(whole, one, -xp.expm1(log_start / m))
    length = xp.where(whole, one, -xp.expm1(log_start))
    log_y = xp.log1p((nodes - 1.0) * step)
    values = _POWER * xp.exp((_POWER - 1.0) * log_y) * weights * step
    if smooth is not None:
        values = values * smooth(xp.exp(m * log_y))
    u = 1.0 + xp.expm1(m * log_y) / length
    return tuple(xp.sum(values * u**j, axis=-1) for j in range(count))


def _rule(like: Array) -> tuple[Array, Array]:
    return convert(_NODES, like, like.dtype), convert(_WEIGHTS, like, like.dtype)
