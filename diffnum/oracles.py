"""Distributions whose denoiser is known in closed form, and a semilinear equation whose solution is.

An oracle knows the law of x_0 and so the exact posterior mean E[x_0 | x_t = x], the score and the log-density of
x_t = alpha x_0 + sigma eps at every level. With one in place of a network a sampler has no error but its own.

Conventions: ``x`` has shape (..., d); a level is a ``Level(t, alpha, sigma)`` whose entries are scalars or broadcast
against ``x[..., 0]``. Parameters are NumPy constants, or arrays of the library of ``x``, through which gradients flow.
Log-densities are in nats. The chapter :doc:`/oracles` derives the formulas.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from . import _backend
from .logsumexp import Accumulator, average, finish, logsumexp, start, update

if TYPE_CHECKING:
    from .schedules import Level

__all__ = [
    "Empirical",
    "Gaussian",
    "Mixture",
    "Oracle",
    "SemilinearProblem",
    "empirical",
    "gaussian",
    "mixture",
    "semilinear_problem",
]

Array = Any
FREQUENCY = 3.0
LOG_TWO_PI = math.log(2.0 * math.pi)
CHUNK_NUMBERS = 2**20
"""Scores, or coordinates of data, held at once when no chunk is given: 8 MiB of float64."""
SHORTEST_CHUNK = 128
"""Points of data in an automatic chunk at least, whatever the batch."""
LIMIT = 1e-10
"""sigma over the size of the data below which the posterior of a data set is its limit in every digit."""


@dataclass(frozen=True, eq=False)
class Oracle:
    """A law of x_0 with its exact denoiser; the base of the three records of this module."""

    def denoise(self, x: Array, level: Level, /) -> Array:
        """Posterior mean E[x_0 | x_t = x], equation :eq:`oracles-posterior-mean`.

        Parameters
        ----------
        x : array, shape (..., d)
            Noisy points.
        level : Level
            Their ``alpha`` and ``sigma``: scalars, or arrays that broadcast against ``x[..., 0]``.

        Returns
        -------
        array, shape (..., d)
            The denoised points, of the namespace and dtype of `x`.
        """
        at = _Point(self, x, level)
        return at.result(self._mean(at))

    def score(self, x: Array, level: Level, /) -> Array:
        """Gradient of the log-density of x_t, equation :eq:`oracles-tweedie`.

        Parameters
        ----------
        x : array, shape (..., d)
            Noisy points.
        level : Level
            Their ``alpha`` and ``sigma``.

        Returns
        -------
        array, shape (..., d)
            The score (alpha D - x)/sigma^2, without that difference where a direct form exists.
        """
        at = _Point(self, x, level)
        return at.result(self._score(at))

    def log_density(self, x: Array, level: Level, /) -> Array:
        """Log-density of x_t at `x` in nats, equation :eq:`oracles-log-density`.

        Parameters
        ----------
        x : array, shape (..., d)
            Noisy points.
        level : Level
            Their ``alpha`` and ``sigma``.

        Returns
        -------
        array, shape (...)
            log p_t(x); +inf or -inf where the law has no density (point masses at sigma = 0).
        """
        at = _Point(self, x, level)
        return at.result(self._log_density(at))

    def covariance(self, x: Array, level: Level, /) -> Array:
        """Posterior covariance Cov[x_0 | x_t = x], equation :eq:`oracles-covariance`.

        Parameters
        ----------
        x : array, shape (..., d)
            Noisy points.
        level : Level
            Their ``alpha`` and ``sigma``.

        Returns
        -------
        array, shape (..., d, d)
            The covariance; times alpha/sigma^2 it is the Jacobian of the denoiser.
        """
        at = _Point(self, x, level)
        return at.result(self._covariance(at))

    def sample(self, rng: Any, n: int) -> Array:
        """Draws of x_0.

        Parameters
        ----------
        rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of n of them
            The source decides the library. With one source for each sample, sample i depends on source i alone.
        n : int
            Number of draws, at least 1.

        Returns
        -------
        array, shape (n, d)
            Draws in the default floating dtype of the library (d = 1 where all parameters are scalars).

        Raises
        ------
        TypeError
            If `rng` is no source of random numbers.
        ValueError
            If `n` is not a positive integer, or differs from the number of sources.
        """
        count = _integer(n, "n")
        like = _backend.zeros_for(rng, (count, self._dimension() or 1))
        return self._draw(rng, like)

    def _parameters(self) -> tuple[Array, ...]:
        raise NotImplementedError

    def _dimension(self) -> int | None:
        """Number of components of x; None for any."""
        raise NotImplementedError

    def _working(self, x: Array) -> Any:
        """Floating type of the arithmetic."""
        return _backend.state_dtype(x)

    def _mean(self, at: _Point) -> Array:
        raise NotImplementedError

    def _score(self, at: _Point) -> Array:
        raise NotImplementedError

    def _log_density(self, at: _Point) -> Array:
        raise NotImplementedError

    def _covariance(self, at: _Point) -> Array:
        raise NotImplementedError

    def _draw(self, rng: Any, like: Array) -> Array:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Gaussian(Oracle):
    """Record of a normal law, made by `gaussian`; with a `basis`, `std` belongs to its columns."""

    mean: Array
    std: Array
    basis: Array | None = None

    def _parameters(self) -> tuple[Array, ...]:
        return (self.mean, self.std) if self.basis is None else (self.mean, self.std, self.basis)

    def _dimension(self) -> int | None:
        shapes = [p.shape for p in self._parameters() if p.ndim > 0]
        return int(shapes[0][-1]) if shapes else None

    def _standardise(self, at: _Point) -> tuple[Array, Array, Array]:
        """Prior std, inverse std of x_t (0 for none) and residual in the eigenbasis."""
        mean, std = at.parameters[:2]
        residual = at.x - at.alpha * mean
        if self.basis is not None:
            residual = at.xp.matmul(residual, at.parameters[2])
        return std, _inverse(at.xp, _backend.hypot(at.alpha * std, at.sigma)), residual

    def _back(self, at: _Point, z: Array) -> Array:
        return z if self.basis is None else at.xp.matmul(z, at.parameters[2].T)

    def _mean(self, at: _Point) -> Array:
        std, inverse, residual = self._standardise(at)
        return at.parameters[0] + self._back(at, at.alpha * std * inverse * (std * (residual * inverse)))

    def _score(self, at: _Point) -> Array:
        _, inverse, residual = self._standardise(at)
        return -self._back(at, residual * inverse * inverse)

    def _log_density(self, at: _Point) -> Array:
        _, inverse, residual = self._standardise(at)
        xp, flat = at.xp, inverse == 0
        z = residual * inverse
        log_inverse = xp.log(xp.where(flat, xp.ones_like(inverse), inverse))
        regular = xp.sum(log_inverse - 0.5 * (z * z + LOG_TWO_PI), axis=-1)
        off = xp.any(flat & (residual != 0), axis=-1)
        singular = xp.where(off, xp.full_like(regular, -math.inf), xp.full_like(regular, math.inf))
        return xp.where(xp.any(xp.broadcast_to(flat, residual.shape), axis=-1), singular, regular)

    def _covariance(self, at: _Point) -> Array:
        std, inverse, residual = self._standardise(at)
        # A direction without noise is known exactly; one without spread always was.
        variance = at.xp.broadcast_to((std * at.sigma * inverse) ** 2, residual.shape)
        basis = _identity(at, at.x.shape[-1]) if self.basis is None else at.parameters[2]
        return at.xp.matmul(basis * variance[..., None, :], basis.T)

    def _draw(self, rng: Any, like: Array) -> Array:
        mean, std, *basis = _cast(self._parameters(), like)
        draws = _backend.normal(rng, 0, like) * std
        return mean + (_backend.namespace(like).matmul(draws, basis[0].T) if basis else draws)


@dataclass(frozen=True, eq=False)
class Mixture(Oracle):
    """Record of a mixture of normal laws, made by `mixture`; `stds` is (M, 1) or (M, d).

    `log_weights` are the logarithms of the normalised weights, `narrowest` is the smallest std, where that is known.
    """

    weights: Array
    means: Array
    stds: Array
    log_weights: Array
    narrowest: float | None = None

    def _parameters(self) -> tuple[Array, ...]:
        return (self.log_weights, self.means, self.stds)

    def _dimension(self) -> int:
        return int(self.means.shape[-1])

    def _components(self, at: _Point) -> tuple[Array, Array, Array, Array]:
        """Shifted log of weight times density, the shift, standardised residual and std of x_t, for each component."""
        tiny = float(at.xp.finfo(at.x.dtype).smallest_normal)
        if self.narrowest is not None and self.narrowest < tiny:
            msg = f"stds must be at least {tiny:.1e} in the arithmetic of x, {at.x.dtype}, got {self.narrowest:g}"
            raise ValueError(msg)
        log_weights, means, stds = at.parameters
        alpha, sigma = at.alpha[..., None], at.sigma[..., None]
        spread = _backend.hypot(alpha * stds, sigma)
        residual = at.x[..., None, :] - alpha * means
        z = residual / spread
        squares = at.xp.sum(z * z, axis=-1)
        # Far from all components the squares would swallow the log-weights; their differences do not.
        least = _backend.constant(at.xp.min(squares, axis=-1, keepdims=True))
        width = at.xp.sum(at.xp.broadcast_to(at.xp.log(spread), z.shape), axis=-1)
        logs = log_weights - width - 0.5 * (squares - least)
        return logs, -0.5 * (least[..., 0] + z.shape[-1] * LOG_TWO_PI), z, spread

    def _posterior(self, at: _Point) -> tuple[Array, Array, Array]:
        """Responsibilities, posterior means and standard deviations of the components."""
        logs, _, z, spread = self._components(at)
        _, means, stds = at.parameters
        gain = at.alpha[..., None] * stds / spread
        return _shares(at.xp, logs), means + gain * stds * z, stds * at.sigma[..., None] / spread

    def _mean(self, at: _Point) -> Array:
        share, means, _ = self._posterior(at)
        return at.xp.sum(share * means, axis=-2)

    def _score(self, at: _Point) -> Array:
        logs, _, z, spread = self._components(at)
        return -at.xp.sum(_shares(at.xp, logs) * (z / spread), axis=-2)

    def _log_density(self, at: _Point) -> Array:
        logs, shift, _, _ = self._components(at)
        return logsumexp(logs) + shift

    def _covariance(self, at: _Point) -> Array:
        share, means, stds = self._posterior(at)
        centred = means - at.xp.sum(share * means, axis=-2, keepdims=True)
        between = at.xp.matmul(at.xp.matrix_transpose(share * centred), centred)
        within = at.xp.sum(at.xp.broadcast_to(share * stds * stds, centred.shape), axis=-2)
        return between + within[..., None] * _identity(at, at.x.shape[-1])

    def _draw(self, rng: Any, like: Array) -> Array:
        xp, number = _backend.namespace(like), _category_number(rng, like)
        _, means, stds = _cast(self._parameters(), like)
        (log_weights,) = _cast((self.log_weights,), number)
        weights = xp.exp(log_weights)
        cumulative = xp.cumulative_sum(weights)
        which = xp.searchsorted(cumulative[:-1], number * cumulative[-1], side="right")
        return xp.take(means, which, axis=0) + xp.take(stds, which, axis=0) * _backend.normal(rng, 1, like)


@dataclass(frozen=True, eq=False)
class Empirical(Oracle):
    """Record of a finite data set whose points are equally likely, made by `empirical`.

    `offsets` are the data minus their mean `centre` in the widest floating type of their library, `half_squares`
    half their squared lengths, `scale` the largest coordinate among them.
    """

    data: Array
    centre: Array
    offsets: Array
    half_squares: Array
    scale: Array
    chunk: int | None = None

    def _parameters(self) -> tuple[Array, ...]:
        return (self.centre, self.scale)

    def _working(self, x: Array) -> Any:
        return _widest(x)

    def _dimension(self) -> int:
        return int(self.data.shape[-1])

    def _mean(self, at: _Point) -> Array:
        return self._sweep(at)[1]

    def _score(self, at: _Point) -> Array:
        xp, residual = at.xp, at.alpha * self._sweep(at)[1] - at.x
        clean = at.sigma == 0
        sigma = xp.where(clean, xp.ones_like(at.sigma), at.sigma)
        infinite = xp.where(residual > 0, math.inf, xp.where(residual < 0, -math.inf, residual))
        return xp.where(clean, infinite, residual / sigma / sigma)

    def _log_density(self, at: _Point) -> Array:
        xp = at.xp
        total, mean = self._sweep(at)
        sigma = at.sigma[..., 0]
        clean = sigma == 0
        constant = math.log(self.data.shape[0]) + 0.5 * self.data.shape[1] * LOG_TWO_PI
        regular = total - self.data.shape[1] * xp.log(xp.where(clean, xp.ones_like(sigma), sigma)) - constant
        on = xp.all(at.alpha * mean == at.x, axis=-1)
        mass = xp.where(on, xp.full_like(regular, math.inf), xp.full_like(regular, -math.inf))
        return xp.where(clean, mass, regular)

    def _covariance(self, at: _Point) -> Array:
        xp, size = at.xp, self.data.shape[1]

        def moments(offsets: Array) -> Array:
            products = xp.reshape(offsets[:, :, None] * offsets[:, None, :], (-1, size * size))
            return xp.concat([offsets, products], axis=1)

        both = self._sweep(at, moments, size + size * size)[1]
        mean = both[..., :size]
        return xp.reshape(both[..., size:], (*mean.shape, size)) - mean[..., :, None] * mean[..., None, :]

    def _sweep(self, at: _Point, values: Any = None, width: int = 0) -> tuple[Array, Array]:
        """Log of the sum of exp(-|x - alpha y|^2/(2 sigma^2)) over the data y, and a softmax average.

        What is averaged are the data, or ``values(offsets)`` with `width` columns.
        """
        xp, count = at.xp, self.data.shape[0]
        x, alpha, sigma = self._flatten(at)
        residual = x - alpha * at.parameters[0]
        width = width or x.shape[1]
        chunk = self.chunk or max(SHORTEST_CHUNK, CHUNK_NUMBERS // max(x.shape[0], width))
        chunk = min(chunk, count)
        tables = (self.offsets, self.half_squares, self.data)
        tables = _cast(tables, x) if _backend.is_jax(x) else tables

        def read(state: Accumulator, begin: Any, size: int) -> Accumulator:
            rows = [_backend.slice_axis(table, begin, size, 0) for table in tables]
            offsets, half_squares, data = _cast(rows, x)
            scores = _scores(residual, alpha, sigma, offsets, half_squares)
            return update(state, scores, data if values is None else values(offsets))

        nothing = xp.zeros((x.shape[0], width), dtype=x.dtype, device=array_api_compat.device(x))
        state, first = start(x[:, 0])._replace(weighted=nothing), (count - 1) % chunk + 1
        state = read(state, 0, first)
        if first < count:
            begins = range(first, count, chunk)
            begins = xp.asarray(list(begins)) if _backend.is_jax(x) else begins
            state, _ = _backend.scan(lambda state, i: (read(state, i, chunk), None), state, begins, x)
        logs, shape = finish(state), at.x.shape[:-1]
        if x.dtype == xp.float64:
            logs = logs - 0.5 * xp.sum((residual / sigma) ** 2, axis=-1)
        return xp.reshape(logs, shape), xp.reshape(average(state), (*shape, width))

    def _flatten(self, at: _Point) -> tuple[Array, Array, Array]:
        """Points as rows, and their alpha and sigma as columns, sigma not below the floor of `LIMIT`."""
        xp = at.xp
        alpha, sigma, scale = (
            xp.reshape(xp.broadcast_to(value, at.x[..., :1].shape), (-1, 1))
            for value in (at.alpha, at.sigma, at.parameters[1])
        )
        floor = scale * LIMIT
        sigma = xp.where(sigma <= floor, xp.where(floor > 0, floor, xp.ones_like(floor)), sigma)
        return xp.reshape(at.x, (-1, at.x.shape[-1])), alpha, sigma

    def _draw(self, rng: Any, like: Array) -> Array:
        xp, count = _backend.namespace(like), self.data.shape[0]
        which = xp.astype(xp.floor(_category_number(rng, like) * count), xp.int32)
        (data,) = _cast((self.data,), like)
        # In float32 the product may round up to the count.
        return xp.take(data, xp.clip(which, 0, count - 1), axis=0)


@dataclass(frozen=True, eq=False)
class SemilinearProblem:
    """Record of y' = a(t) y + f(t, y) with a known solution; made by `semilinear_problem`."""

    rate_mean: Array
    rate_wave: Array
    coupling: Array
    phases: Array
    t0: float
    t1: float

    def rate(self, t: Array, /) -> Array:
        """Rate a(t) of :eq:`oracles-semilinear`.

        Parameters
        ----------
        t : array
            Time, of any shape.

        Returns
        -------
        array
            The rate, of the shape of `t`.
        """
        t, mean, wave = self._at(t)
        return mean + wave * _backend.namespace(t).cos(FREQUENCY * t)

    def integral(self, t: Array, /) -> Array:
        """Integral of the rate of :eq:`oracles-semilinear` from 0 to t.

        Parameters
        ----------
        t : array
            Time, of any shape.

        Returns
        -------
        array
            The integral, of the shape of `t`.
        """
        t, mean, wave = self._at(t)
        return mean * t + wave * _backend.namespace(t).sin(FREQUENCY * t) / FREQUENCY

    def solution(self, t: Array, /) -> Array:
        """Exact solution cos(t + phase) of :eq:`oracles-semilinear`.

        Parameters
        ----------
        t : array
            Time, of any shape.

        Returns
        -------
        array, shape (..., d)
            One component for each phase.
        """
        t, _, _ = self._at(t)
        (phases,) = _cast((self.phases,), t)
        return _backend.namespace(t).cos(t[..., None] + phases)

    def f(self, t: Array, y: Array, /) -> Array:
        """Nonlinear part f(t, y) of :eq:`oracles-semilinear`.

        Parameters
        ----------
        t : array
            Time: a scalar, or an array that broadcasts against ``y[..., 0]``.
        y : array, shape (..., d)
            State.

        Returns
        -------
        array, shape (..., d)
            The values, of the namespace and dtype of `y`.

        Raises
        ------
        ValueError
            If `y` has another number of components.
        """
        y = _backend.asfloat(y, "y")
        xp = _backend.namespace(y, t, *self._constants())
        y, dtype = _as(xp, y), y.dtype
        if y.ndim == 0 or y.shape[-1] != self.phases.shape[0]:
            msg = f"y must have shape (..., {self.phases.shape[0]}), got {tuple(y.shape)}"
            raise ValueError(msg)
        y = xp.astype(y, _backend.state_dtype(y), copy=False)
        t, coupling, phases = _cast((t, self.coupling, self.phases), y)
        angle = t[..., None] + phases
        solution = xp.cos(angle)
        forcing = coupling * (xp.sin(y) - xp.sin(solution)) - xp.sin(angle)
        return xp.astype(forcing - self.rate(t)[..., None] * solution, dtype, copy=False)

    def denoise(self, y: Array, level: Level, /) -> Array:
        """``f(level.t, y)``, the form in which solvers call the nonlinear part of :eq:`oracles-semilinear`.

        Parameters
        ----------
        y : array, shape (..., d)
            State.
        level : Level
            Only ``level.t`` is used.

        Returns
        -------
        array, shape (..., d)
            The values of f.
        """
        return self.f(level.t, y)

    def _constants(self) -> tuple[Array, ...]:
        return (self.rate_mean, self.rate_wave, self.coupling)

    def _at(self, t: Array) -> tuple[Array, Array, Array]:
        t = _as(_backend.namespace(t, self.rate_mean, self.rate_wave), _backend.asfloat(t, "t"))
        return (t, *_cast((self.rate_mean, self.rate_wave), t))


def gaussian(mean: Array, std: Array | None = None, *, covariance: Array | None = None) -> Gaussian:
    """Normal law N(mean, std^2), or N(mean, covariance): equation :eq:`oracles-gaussian`.

    Parameters
    ----------
    mean : float or array, shape (d,)
        Mean; a number stands for every component.
    std : float or array, shape (d,), optional
        Standard deviation of the components, at least 0.
    covariance : array, shape (d, d), optional
        In place of `std`: a symmetric positive semi-definite matrix.

    Returns
    -------
    Gaussian
        The oracle.

    Raises
    ------
    ValueError
        If not exactly one of `std` and `covariance` is given, or a parameter has another shape or range.

    Notes
    -----
    A covariance is diagonalised once; a call then costs two products with its eigenvectors. Gradients through `mean`
    and `std` are regular; those through a covariance are those of an eigendecomposition, undefined where eigenvalues
    repeat. Directions without variance have no density at sigma = 0: `log_density` is then -inf off the support and
    +inf on it, and the score is that within the support.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.schedules import Level
    >>> data = oracles.gaussian(0.8, 1.7)
    >>> data.denoise(np.array([2.0]), Level(0.5, 0.6, 0.8)).round(6)
    array([2.368484])
    """
    mean = _parameter(mean, "mean", ranks=(0, 1))
    if (std is None) == (covariance is None):
        msg = f"std or covariance must be given, and not both; got std={std!r}, covariance={covariance!r}"
        raise ValueError(msg)
    if covariance is None:
        spread = _parameter(std, "std", ranks=(0, 1), least=0.0)
        if mean.ndim == 1 and spread.ndim == 1 and mean.shape != spread.shape:
            msg = f"std must have the shape of mean, {tuple(mean.shape)}, got {tuple(spread.shape)}"
            raise ValueError(msg)
        return Gaussian(mean, spread)
    matrix = _parameter(covariance, "covariance", ranks=(2,))
    size = matrix.shape[0]
    if matrix.shape != (size, size) or (mean.ndim == 1 and mean.shape[0] != size):
        msg = f"covariance must have shape (d, d) with d that of mean {tuple(mean.shape)}, got {tuple(matrix.shape)}"
        raise ValueError(msg)
    return Gaussian(mean, *_principal_axes(matrix))


def mixture(weights: Array, means: Array, stds: Array) -> Mixture:
    """Mixture of M normal laws, isotropic or diagonal: equation :eq:`oracles-mixture`.

    Parameters
    ----------
    weights : array, shape (M,)
        Positive; divided by their sum.
    means : array, shape (M, d)
        Means of the components.
    stds : array, shape (M,) or (M, d)
        Their standard deviations, positive: one for each component, or for each coordinate too.

    Returns
    -------
    Mixture
        The oracle.

    Raises
    ------
    ValueError
        If a parameter has another shape or range.

    Notes
    -----
    A call holds arrays of shape (..., M, d). For many points without spread use `empirical`. In float32 a point must be
    nearer than 1e19 standard deviations of x_t to one of the components (in float64 than 1e154), or no weight is left;
    standard deviations below 1.2e-38 are refused there. Weights may have any size: their logarithms are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.schedules import Level
    >>> data = oracles.mixture([0.5, 0.5], [[-3.0], [3.0]], [0.5, 0.5])
    >>> data.denoise(np.array([[0.0], [1.0]]), Level(0.5, 1.0, 2.0)).round(6)
    array([[0.      ],
           [1.775779]])
    """
    weights = _parameter(weights, "weights", ranks=(1,), above=0.0)
    means = _parameter(means, "means", ranks=(2,))
    stds = _parameter(stds, "stds", ranks=(1, 2), above=0.0)
    if means.shape[0] != weights.shape[0]:
        msg = f"means must have one row for each of the {weights.shape[0]} weights, got shape {tuple(means.shape)}"
        raise ValueError(msg)
    if stds.shape not in {tuple(means.shape), tuple(means.shape[:1])}:
        msg = f"stds must have shape {tuple(means.shape[:1])} or {tuple(means.shape)}, got {tuple(stds.shape)}"
        raise ValueError(msg)
    known, logs = _backend.concrete(stds), _backend.namespace(weights).log(weights)
    stds = stds if stds.ndim == 2 else stds[:, None]
    return Mixture(weights, means, stds, logs - logsumexp(logs), None if known is None else float(known.min()))


def empirical(data: Array, *, chunk: int | None = None) -> Empirical:
    """Finite data set, every point equally likely: equation :eq:`oracles-empirical`.

    Parameters
    ----------
    data : array, shape (N, d)
        The points.
    chunk : int, optional
        How many points are compared with the batch at once; by default as many as make about a million numbers, 128
        at least.

    Returns
    -------
    Empirical
        The oracle.

    Raises
    ------
    ValueError
        If `data` is no finite matrix or `chunk` no positive integer.

    Notes
    -----
    Cost O(B N d) for B points x, memory O(chunk (B + d)) besides a centred copy of the data. Where the library has
    float64 (NumPy, PyTorch, JAX with x64; x itself may be float32) the log-weights come from the matrix product of
    :eq:`oracles-distance` and err by about 1e-16 ``|x - alpha m| |y - m| alpha/sigma^2``, m the mean. Where it has not,
    that would be 1e-7 of the product: the squares of the differences are summed instead, with relative error 1e-7.

    At alpha = 0 the denoiser is the data mean, at sigma = 0 the nearest data point (the mean of several at the same
    distance, up to rounding); the log-density is then +inf on the data and -inf off them. In a compiled JAX program
    NumPy data are constants: give large data as a JAX array. `covariance` is a difference of second moments, with an
    error of the rounding unit times the variance of the data.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.schedules import Level
    >>> data = oracles.empirical([[-1.0], [1.0]])
    >>> data.denoise(np.array([[0.5]]), Level(0.5, 1.0, 1.0)).round(6)
    array([[0.462117]])
    """
    data = _parameter(data, "data", ranks=(2,))
    if 0 in data.shape:
        msg = f"data must hold at least one point and one dimension, got shape {tuple(data.shape)}"
        raise ValueError(msg)
    xp = _backend.namespace(data)
    wide = xp.astype(data, _widest(data), copy=False)
    centre = xp.mean(wide, axis=0)
    offsets = wide - centre
    half_squares = 0.5 * xp.sum(offsets * offsets, axis=1)
    scale = xp.max(xp.abs(offsets))
    return Empirical(data, centre, offsets, half_squares, scale, None if chunk is None else _integer(chunk, "chunk"))


def semilinear_problem(
    rate: Array = -1.0,
    *,
    wave: Array = 0.0,
    coupling: Array = 1.0,
    phases: Sequence[float] = (0.0, 1.0, 2.5),
    t0: float = 0.0,
    t1: float = 2.0,
) -> SemilinearProblem:
    """Nonlinear y' = a(t) y + f(t, y) whose solution is cos(t + phase): equation :eq:`oracles-semilinear`.

    Parameters
    ----------
    rate : float, optional
        Mean of the rate a(t) = rate + wave cos(3 t). Large and negative with `coupling` 0 it makes Prothero and
        Robinson's stiff problem.
    wave : float, optional
        Amplitude of its oscillation; 0 for a constant rate.
    coupling : float, optional
        How strongly f depends on y.
    phases : sequence of float, optional
        One for each component.
    t0, t1 : float, optional
        Where to start and to stop; t1 < t0 runs backward.

    Returns
    -------
    SemilinearProblem
        Record with ``rate(t)``, ``integral(t)``, ``f(t, y)``, ``solution(t)`` and ``denoise(y, level)``.

    Raises
    ------
    ValueError
        If `phases` is empty, or `t0` and `t1` are not two times.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> problem = oracles.semilinear_problem(-2.0, wave=1.0)
    >>> t = np.asarray(0.3)
    >>> y = problem.solution(t)
    >>> slope = problem.rate(t) * y + problem.f(t, y)
    >>> bool(np.allclose(slope, -np.sin(0.3 + problem.phases)))
    True
    """
    angles = _parameter(phases, "phases", ranks=(1,))
    if angles.shape[0] == 0:
        msg = f"phases must hold at least one number, got {phases!r}"
        raise ValueError(msg)
    if t0 == t1 or not (math.isfinite(t0) and math.isfinite(t1)):
        msg = f"t0 and t1 must be two finite times, got {t0!r} and {t1!r}"
        raise ValueError(msg)
    rate, wave, coupling = (
        _parameter(value, name, ranks=(0,)) for value, name in ((rate, "rate"), (wave, "wave"), (coupling, "coupling"))
    )
    return SemilinearProblem(rate, wave, coupling, angles, t0, t1)


class _Point:
    """Points and level in one namespace and dtype; level entries carry a trailing axis for the components of x."""

    def __init__(self, oracle: Oracle, x: Array, level: Level) -> None:
        x = _backend.asfloat(x)
        if not (hasattr(level, "alpha") and hasattr(level, "sigma")):
            msg = f"level must be a Level(t, alpha, sigma), as Schedule.level makes it, got {type(level).__name__}"
            raise TypeError(msg)
        self.xp = _backend.namespace(x, *oracle._parameters(), level.alpha, level.sigma)
        x = _as(self.xp, x)
        if x.ndim == 0:
            msg = f"x must have shape (..., d), got {x!r}"
            raise ValueError(msg)
        self.dtype = x.dtype
        self.x = self.xp.astype(x, oracle._working(x), copy=False)
        size = oracle._dimension()
        if size not in {None, x.shape[-1]}:
            msg = f"x must have shape (..., {size}), got {tuple(x.shape)}"
            raise ValueError(msg)
        alpha, sigma = _cast((level.alpha, level.sigma), self.x)
        batch = tuple(x.shape[:-1])
        for name, value in (("alpha", alpha), ("sigma", sigma)):
            if not _broadcasts(value.shape, batch):
                msg = f"level.{name} must broadcast against x[..., 0] of shape {batch}, got {tuple(value.shape)}"
                raise ValueError(msg)
        self.alpha, self.sigma = alpha[..., None], sigma[..., None]
        self.parameters = _cast(oracle._parameters(), self.x)

    def result(self, value: Array) -> Array:
        return self.xp.astype(_as(self.xp, value), self.dtype, copy=False)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in {1, b} for a, b in pairs)


def _as(xp: Any, value: Array) -> Array:
    """`value` in the library `xp`; a conversion of what is there already would cut PyTorch's gradients."""
    foreign = not array_api_compat.is_array_api_obj(value) or array_api_compat.is_numpy_array(value)
    return xp.asarray(np.asarray(value)) if foreign else value


def _cast(values: Sequence[Array], like: Array) -> list[Array]:
    """`values` in the library, dtype and device of `like`; NumPy receives copies of the values of others."""
    return [_backend.convert(value, like, like.dtype) for value in values]


def _parameter(
    value: Any, name: str, *, ranks: tuple[int, ...], least: float | None = None, above: float | None = None
) -> Array:
    """`value` as a floating-point array of one of `ranks`; its values are checked where they are known."""
    array = _backend.own(_backend.asfloat(value, name))
    if array.ndim not in ranks:
        msg = f"{name} must have {' or '.join(map(str, ranks))} axes, got shape {tuple(array.shape)}"
        raise ValueError(msg)
    values = _backend.concrete(array)
    if values is None:
        return array
    if not np.all(np.isfinite(values)):
        msg = f"{name} must be finite, got {value!r}"
        raise ValueError(msg)
    if least is not None and np.any(values < least):
        msg = f"{name} must be at least {least}, got {value!r}"
        raise ValueError(msg)
    if above is not None and np.any(values <= above):
        msg = f"{name} must be greater than {above}, got {value!r}"
        raise ValueError(msg)
    return array


def _integer(value: Any, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        msg = f"{name} must be an integer >= 1, got {value!r}"
        raise ValueError(msg)
    return number


def _widest(like: Array) -> Any:
    """float64, but for JAX without x64, which has none."""
    xp = _backend.namespace(like)
    return xp.asarray(0.0).dtype if _backend.is_jax(like) else xp.float64


def _inverse(xp: Any, value: Array) -> Array:
    """1/value; 0 where value is 0."""
    zero = value == 0
    return xp.where(zero, xp.zeros_like(value), 1.0 / xp.where(zero, xp.ones_like(value), value))


def _shares(xp: Any, logs: Array) -> Array:
    """Posterior weights of the components, with an axis for the coordinates."""
    return xp.exp(logs - logsumexp(logs)[..., None])[..., None]


def _scores(residual: Array, alpha: Array, sigma: Array, offsets: Array, half_squares: Array) -> Array:
    """Log-weights of data for points, up to a term that does not depend on the datum in float64."""
    xp = _backend.namespace(residual)
    if residual.dtype == xp.float64:
        # One product and nothing after it: a compiler that fuses a last multiplication with the subtraction of the
        # maximum takes that of other numbers than it found the maximum of, and at 1e20 all terms vanish.
        scale = alpha / sigma / sigma
        left = xp.concat([residual * scale, -alpha * scale], axis=1)
        return xp.matmul(left, xp.concat([offsets, half_squares[:, None]], axis=1).T)
    # float32 would lose the difference of two large squares: take the square of the difference.
    gap = (residual[:, None, :] - alpha[..., None] * offsets) / sigma[..., None]
    return -0.5 * xp.sum(gap * gap, axis=-1)


def _principal_axes(matrix: Array) -> tuple[Array, Array]:
    """Standard deviations along the eigenvectors of a covariance, and the eigenvectors as columns."""
    values = _backend.concrete(matrix)
    if values is not None and not np.allclose(values, values.T, rtol=1e-5, atol=1e-8 * np.abs(values).max()):
        msg = f"covariance must be symmetric, got {matrix!r}"
        raise ValueError(msg)
    xp = _backend.namespace(matrix)
    variances, basis = xp.linalg.eigh(matrix)
    known = _backend.concrete(variances)
    if known is not None and known.min() < -1e-6 * np.abs(known).max():
        msg = f"covariance must be positive semi-definite, got the eigenvalue {known.min()}"
        raise ValueError(msg)
    # Rounding leaves a null direction at +-1e-16 of the largest variance, not at 0.
    positive = variances > 8 * matrix.shape[0] * float(xp.finfo(variances.dtype).eps) * variances[-1]
    roots = xp.sqrt(xp.where(positive, variances, xp.ones_like(variances)))
    return xp.where(positive, roots, xp.zeros_like(roots)), basis


def _identity(at: _Point, size: int) -> Array:
    return at.xp.eye(size, dtype=at.x.dtype, device=array_api_compat.device(at.x))


def _category_number(rng: Any, like: Array) -> Array:
    """One uniform number for each row of `like`, of the widest type: 2^-24 is coarse for many classes."""
    xp = _backend.namespace(like)
    return _backend.uniform(rng, 0, xp.zeros(like.shape[:1], dtype=_widest(like), device=array_api_compat.device(like)))
