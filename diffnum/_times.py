"""Uniform draws that spread, the variance of their means, and the normal law in the array API.

Everything is counted in noise fractions: v in (0, 1) is the share of training levels with less noise. Small v are
represented finely, and there the log-SNR is large. See :doc:`/parameterization`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from diffnum._backend import Array, convert, namespace, uniform, zeros_for

__all__ = ["METHODS", "mean_variance", "normal_cdf", "normal_quantile", "uniforms"]

METHODS = ("independent", "stratified", "lattice", "antithetic", "stratified_antithetic")

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0

_CUT = 38.0
"""The integral of Mills' ratio is cut where its integrand is exp(-38), below rounding."""

_START = (2.515517, 0.802853, 0.010328), (1.0, 1.432788, 0.189269, 0.001308)
"""Numerator and denominator of the first guess of the quantile, good to 4.5e-4 (Hastings 1955, sheet 68)."""


def uniforms(rng: Any, n: int, method: str) -> Array:
    """`n` draws from (0, 1), each uniform or uniform together, never 0 or 1.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of n of them
        Source of the draws.
    n : int
        How many, even for the antithetic ones.
    method : str
        One of `METHODS`.

    Returns
    -------
    array, shape (n,)
        Draws.
    """
    shape = {"lattice": (), "antithetic": (n // 2,), "stratified_antithetic": (n // 2,)}.get(method, (n,))
    u = uniform(rng, 0, zeros_for(rng, shape))
    xp = namespace(u)
    count = n if method == "lattice" else shape[0]
    place = xp.astype(xp.arange(count), u.dtype)
    if method == "stratified":
        u = (place + u) / n
    elif method == "lattice":
        u = u + place / n
        u = u - xp.floor(u)
    elif method == "antithetic":
        u = xp.concat([u, 1.0 - u])
    elif method == "stratified_antithetic":
        u = xp.concat([(place + u) / count, (place + (1.0 - u)) / count])
    # a draw stands for the numbers that round to it: those of 0 have their middle inside, those of 1 lie below it
    tiny = xp.finfo(u.dtype).eps
    return xp.minimum(xp.maximum(u, xp.full_like(u, tiny / 4.0)), xp.full_like(u, 1.0 - tiny / 2.0))


def mean_variance(f: Callable[[np.ndarray], Array], n: int, method: str) -> float:
    """Variance of the mean of `f` over the `n` draws of `uniforms`, by Gauss-Legendre quadrature on n panels.

    Parameters
    ----------
    f : callable
        Smooth function on (0, 1), applied to arrays.
    n : int
        Number of draws.
    method : str
        One of `METHODS`.

    Returns
    -------
    float
        The variance.
    """
    paired = method.endswith("antithetic")
    panels = n // 2 if method == "stratified_antithetic" else n
    places = (np.arange(panels)[:, None] + _NODES) / panels
    values = np.asarray(f(places), dtype=float)
    if values.shape != places.shape:
        msg = f"f must return the shape of its argument, {places.shape}, got {values.shape}"
        raise ValueError(msg)
    if paired:
        # nodes and panels are symmetric, so the partner of each node is a node
        mirror = values[:, ::-1] if method == "stratified_antithetic" else values[::-1, ::-1]
        values = (values + mirror) / 2.0
    if method == "lattice":
        values = np.mean(values, axis=0, keepdims=True)
    within = method.startswith("stratified")
    means = values @ _WEIGHTS
    centre = means[:, None] if within else np.mean(means)
    spread = float(np.mean((values - centre) ** 2 @ _WEIGHTS))
    return spread / {"lattice": 1, "antithetic": n // 2, "stratified_antithetic": n // 2}.get(method, n)


def normal_cdf(x: Array) -> Array:
    """Cumulative distribution function of the standard normal law, both tails to rounding.

    Parameters
    ----------
    x : array
        Numbers; infinite ones are welcome.

    Returns
    -------
    array
        Probabilities.
    """
    xp = namespace(x)
    infinite = xp.isinf(x)
    z = abs(xp.where(infinite, xp.ones_like(x), x))
    tail = xp.exp(-0.5 * z * z) * _mills(z) / math.sqrt(2.0 * math.pi)
    tail = xp.where(infinite, xp.zeros_like(x), tail)
    return xp.where(x < 0, tail, 1.0 - tail)


def normal_quantile(u: Array) -> Array:
    """Inverse of `normal_cdf`: infinite at 0 and 1.

    Parameters
    ----------
    u : array
        Probabilities.

    Returns
    -------
    array
        Quantiles.
    """
    xp = namespace(u)
    low = u < 0.5
    p = xp.where(low, u, 1.0 - u)
    end = p <= 0
    p = xp.where(end, xp.full_like(u, 0.25), p)
    r = xp.sqrt(-2.0 * xp.log(p))
    above, below = (sum(c * r**k for k, c in enumerate(cs)) for cs in _START)
    z = r - above / below
    for _ in range(2):
        # Halley's step on the tail, in units of the density: the error is cubed
        error = _mills(z) - math.sqrt(2.0 * math.pi) * p * xp.exp(0.5 * z * z)
        z = z + error / (1.0 - 0.5 * z * error)
    z = xp.where(end, xp.full_like(u, math.inf), z)
    return xp.where(low, -z, z)


def _mills(z: Array) -> Array:
    """Tail over density of the normal law, ``integral of exp(-z s - s^2/2)`` over s > 0: all terms positive."""
    xp = namespace(z)
    nodes, weights = (convert(np.asarray(a), z, z.dtype) for a in (_NODES, _WEIGHTS))
    length = 2.0 * _CUT / (z + xp.sqrt(z * z + 2.0 * _CUT))
    s = length[..., None] * nodes
    return length * xp.sum(weights * xp.exp(-s * (z[..., None] + 0.5 * s)), axis=-1)
