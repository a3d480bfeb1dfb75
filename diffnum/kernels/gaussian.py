"""Transition kernels of Gaussian diffusion: forward, posterior, bridge, and how they compose.

Any of the points that a diffusion visits, given some of the others, is normal with a mean that is linear in them. A
`Kernel` holds the weights of that mean and the standard deviation; the functions below make one from two or three
noise levels of any geometry. Derivation: :doc:`/kernels/gaussian`.

Conventions. ``x_t = alpha_t x_0 + sigma_t eps``. r, s, t are levels (`diffnum.schedules.Level`) of increasing noise: r
the cleanest, t the noisiest. Their entries are numbers or arrays that broadcast against each other; against points,
they are aligned on the first axes: entries of shape (B,) are one level for each sample of points (B, ...).
``h = log_snr(s) - log_snr(t)`` in nats.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from diffnum import _backend
from diffnum._arguments import instance
from diffnum._backend import Array, asfloat, concrete, namespace
from diffnum._guarded import renewed
from diffnum.schedules import Level

__all__ = ["Kernel", "bridge", "compose", "forward", "posterior"]


class Kernel(NamedTuple):
    """A normal law whose mean is linear in given points, :eq:`kernels-gaussian-kernel`.

    Attributes
    ----------
    weights : tuple of array
        Factors of the given points, in the order in which the function that made the kernel names them.
    std : array
        Standard deviation of each component.
    """

    weights: tuple[Array, ...]
    std: Array

    def mean(self, *points: Array) -> Array:
        """Mean at the given points, :eq:`kernels-gaussian-kernel`.

        Parameters
        ----------
        *points : array
            One for each weight, of one library.

        Returns
        -------
        array
            The weighted sum, of the library and dtype of the first point.

        Raises
        ------
        ValueError
            If there are more or fewer points than weights, or the levels do not fit their first axes.
        """
        kernel, points, dtype = self._beside(points)
        return _backend.cast(kernel._weighted(points), dtype)

    def sample(self, *points: Array, rng: Any, row: int = 0) -> Array:
        """Draw from the kernel, :eq:`kernels-gaussian-kernel`: the mean plus `std` times a standard normal.

        Parameters
        ----------
        *points : array
            One for each weight, of one library.
        rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
            Source of the normals; one for each ``x[i]``, if a batch is given. A callable ``(row, like) -> z``
            prescribes them.
        row : int, optional
            Number of the draw, which a JAX key is folded with.

        Returns
        -------
        array
            One draw for each point, of the library and dtype of the first.

        Raises
        ------
        TypeError
            If `rng` is of another kind than the points.
        ValueError
            As `mean` does.
        """
        kernel, points, dtype = self._beside(points)
        mean = kernel._weighted(points)
        return _backend.cast(mean + kernel.std * _backend.normal(rng, row, mean), dtype)

    def _beside(self, points: tuple[Array, ...]) -> tuple[Kernel, tuple[Array, ...], Any]:
        """Kernel and points in one library and the working dtype; the dtype of the first point."""
        if len(points) != len(self.weights):
            msg = f"points must be {len(self.weights)}, one for each weight, got {len(points)}"
            raise ValueError(msg)
        xp = namespace(*points, *self.weights)
        like, *others = (p if namespace(p) is xp else xp.asarray(p) for p in map(asfloat, points))
        state = _backend.state_dtype(like)
        points = tuple(_backend.convert(p, like, state) for p in (like, *others))
        widest = points[int(np.argmax([p.ndim for p in points]))]
        *weights, std = (_aligned(_backend.convert(c, like, state), widest) for c in (*self.weights, self.std))
        return Kernel(tuple(weights), std), points, like.dtype

    def _weighted(self, points: tuple[Array, ...]) -> Array:
        first, *rest = (w * p for w, p in zip(self.weights, points, strict=True))
        return sum(rest, first)


def forward(s: Level, t: Level, /) -> Kernel:
    """Law of x_t given x_s, :eq:`kernels-gaussian-forward`.

    Parameters
    ----------
    s : Level
        The less noisy level.
    t : Level
        The noisier level. Where both are pure noise (alpha = 0), or equal, the kernel is the identity.

    Returns
    -------
    Kernel
        One weight, of x_s.

    Raises
    ------
    ValueError
        If `t` is less noisy than `s`, or one of them no level: negative, infinite, or alpha and sigma both 0.

    Notes
    -----
    The variance is never negative, in any dtype, and has a relative error of a few roundings of what the levels are
    rounded to: :eq:`kernels-gaussian-share`.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.kernels import gaussian
    >>> flow = schedules.rectified_flow()
    >>> kernel = gaussian.forward(flow.level(0.2), flow.level(0.6))
    >>> [round(float(kernel.weights[0]), 12), round(float(kernel.std), 12)]
    [0.5, 0.59160797831]
    """
    s, t = _ordered(s=s, t=t)
    return Kernel((_scale(s, t),), t.sigma * _root(renewed(s, t)))


def posterior(s: Level, t: Level, /) -> Kernel:
    """Law of x_s given x_t and x_0, :eq:`kernels-gaussian-posterior`.

    Parameters
    ----------
    s : Level
        The less noisy level.
    t : Level
        The noisier level.

    Returns
    -------
    Kernel
        Two weights, of x_t and of x_0.

    Raises
    ------
    ValueError
        If `t` is less noisy than `s`.

    Notes
    -----
    With a denoiser's output in place of x_0 it is one step of ancestral sampling, the order-1 step of
    ``paths.x0(eta=1)`` (:eq:`paths-posterior`), with the error of the variance :eq:`paths-missing-variance`.

    References
    ----------
    J. Ho, A. Jain and P. Abbeel, Denoising diffusion probabilistic models (2020), Eq. 7; D. Kingma et al., Variational
    diffusion models (2021), Appendix A.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.kernels import gaussian
    >>> flow = schedules.rectified_flow()
    >>> kernel = gaussian.posterior(flow.level(0.5), flow.level(1.0))
    >>> [float(w) for w in kernel.weights], float(kernel.std)
    ([0.0, 0.5], 0.5)
    """
    s, t = _ordered(s=s, t=t)
    share = renewed(s, t)
    return Kernel((_backward(s, t), s.alpha * share), s.sigma * _root(share))


def bridge(r: Level, s: Level, t: Level, /) -> Kernel:
    """Law of x_s given x_t and x_r, a level on either side, :eq:`kernels-gaussian-bridge`.

    Parameters
    ----------
    r : Level
        The cleanest level; at sigma = 0 the bridge is the `posterior`.
    s : Level
        The level between.
    t : Level
        The noisiest level; at alpha = 0 the bridge is the kernel `forward` from `r`.

    Returns
    -------
    Kernel
        Two weights, of x_t and of x_r.

    Raises
    ------
    ValueError
        If the levels are not in the order of their noise.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.kernels import gaussian
    >>> edm = schedules.edm()
    >>> kernel = gaussian.bridge(edm.level(3.0), edm.level(4.0), edm.level(5.0))  # a Brownian bridge in sigma^2
    >>> [round(float(w), 12) for w in kernel.weights], round(float(kernel.std) ** 2, 12)
    ([0.4375, 0.5625], 3.9375)
    """
    r, s, t = _ordered(r=r, s=s, t=t)
    xp = namespace(s.alpha)
    lower, upper, whole = renewed(r, s), renewed(s, t), renewed(r, t)
    moved = whole > 0.0
    length = xp.where(moved, whole, xp.ones_like(whole))
    # between two equal levels there is one point: all of the weight is given to x_r
    before, after = lower / length, xp.where(moved, upper / length, xp.ones_like(whole))
    return Kernel((_backward(s, t) * before, _scale(r, s) * after), s.sigma * _root(lower * after))


def compose(first: Kernel, second: Kernel, /) -> Kernel:
    """Law after both kernels, one after the other: :eq:`kernels-gaussian-compose`.

    Parameters
    ----------
    first : Kernel
        The kernel that is applied first.
    second : Kernel
        The kernel that is applied to its result, as its first point; further points (x_0 of a posterior) are those of
        `first`.

    Returns
    -------
    Kernel
        As many weights as either has.

    Raises
    ------
    TypeError
        If one of them is no `Kernel`.
    ValueError
        If the kernels have different numbers of weights.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.kernels import gaussian
    >>> r, s, t = map(schedules.cosine().level, (0.1, 0.4, 0.8))
    >>> two = gaussian.compose(gaussian.posterior(s, t), gaussian.posterior(r, s))
    >>> bool(abs(two.std - gaussian.posterior(r, t).std) < 1e-15)
    True
    """
    instance("first", first, Kernel)
    instance("second", second, Kernel)
    if len(first.weights) != len(second.weights):
        msg = f"second must have as many weights as first, {len(first.weights)}, got {len(second.weights)}"
        raise ValueError(msg)
    factor, *shared = second.weights
    weights = (factor * first.weights[0],)
    weights += tuple(factor * w + own for w, own in zip(first.weights[1:], shared, strict=True))
    std = factor * first.std
    return Kernel(weights, _backend.hypot(std, second.std))


def _scale(s: Level, t: Level) -> Array:
    """``alpha_t/alpha_s``; 1 where both are 0."""
    return _quotient(t.alpha, s.alpha)


def _backward(s: Level, t: Level) -> Array:
    """Weight of x_t in the mean of x_s, ``(alpha_t/alpha_s) (sigma_s/sigma_t)^2``."""
    return _scale(s, t) * _quotient(s.sigma, t.sigma) ** 2


def _quotient(a: Array, b: Array) -> Array:
    xp = namespace(a, b)
    zero = b == 0.0
    return xp.where(zero, xp.ones_like(b), a / xp.where(zero, xp.ones_like(b), b))


def _root(share: Array) -> Array:
    """Square root with a derivative of 0 at 0."""
    xp = namespace(share)
    zero = share == 0.0
    return xp.where(zero, xp.zeros_like(share), xp.sqrt(xp.where(zero, xp.ones_like(share), share)))


def _aligned(coefficient: Array, points: Array) -> Array:
    """Coefficient of a kernel, with axes appended so that it multiplies the first ones of `points`."""
    c, xp = coefficient, namespace(coefficient)
    if points.ndim == 0 or c.ndim == 0:  # a single point stands beside any levels
        return c
    if c.ndim > points.ndim or any(m != n and 1 not in {m, n} for m, n in zip(c.shape, points.shape, strict=False)):
        msg = (
            f"points must have first axes that fit the kernel's levels, {tuple(c.shape)}, one for each sample; got "
            f"shape {tuple(points.shape)}"
        )
        raise ValueError(msg)
    return xp.reshape(c, (*c.shape, *(1,) * (points.ndim - c.ndim)))


def _ordered(**levels: Level) -> list[Level]:
    """The levels as arrays of one library, checked to be in the order of their noise."""
    for name, level in levels.items():
        instance(name, level, Level)
    xp = namespace(*(part for level in levels.values() for part in level[1:]))
    arrays = []
    for name, level in levels.items():
        parts = [asfloat(part, name) for part in level]
        _check_scales(name, concrete(parts[1]), concrete(parts[2]))
        arrays.append(Level(*(part if namespace(part) is xp else xp.asarray(part) for part in parts)))
    for (low, s), (high, t) in itertools.pairwise(zip(levels, arrays, strict=True)):
        _check_order(low, s, high, t)
    return arrays


def _check_scales(name: str, alpha: np.ndarray | None, sigma: np.ndarray | None) -> None:
    if alpha is None or sigma is None:
        return
    low, high = np.minimum(alpha, sigma), np.maximum(alpha, sigma)
    if not ((low >= 0.0).all() and (high > 0.0).all() and np.isfinite(high).all()):
        msg = f"{name} must have finite alpha, sigma >= 0, not both zero, got alpha {alpha}, sigma {sigma}"
        raise ValueError(msg)


def _check_order(low: str, s: Level, high: str, t: Level) -> None:
    alpha_s, sigma_s, alpha_t, sigma_t = (concrete(part) for part in (*s[1:], *t[1:]))
    if alpha_s is None or sigma_s is None or alpha_t is None or sigma_t is None:
        return
    # levels that are equal up to rounding pass
    slack = 8.0 * float(np.finfo(np.result_type(alpha_s, sigma_s, alpha_t, sigma_t)).eps)
    ordered = alpha_s * sigma_t >= (1.0 - slack) * alpha_t * sigma_s
    lost = (alpha_s == 0.0) & ~((alpha_t == 0.0) & (sigma_s == sigma_t))
    if not (ordered & ~lost).all():
        found = f"log-SNR {concrete(t.log_snr)} after {concrete(s.log_snr)}"
        msg = f"{high} must be at least as noisy as {low}, got {found}"
        raise ValueError(msg)
