"""Log-density along the probability-flow ODE, and bits per dimension.

The ODE is a map between noise and data without randomness. It stretches volumes by a factor whose logarithm is the
integral of the divergence of its right-hand side, so a table that solves the ODE gives the density as well: a
quadrature of the divergences met on the way. `transport` follows the map in either direction, `log_density` goes from
data to noise and adds the log-density there. Derivation: :doc:`/likelihood`.

Conventions. Logarithms are natural, log-densities in nats. A sample is made of the last `event_ndim` axes of `x`, d
numbers; the denoiser treats samples independently of each other. All densities are those of x at the level where the
path ends, which is data with a little noise, not of the data themselves. Sums are float32 at least.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum import _backend, paths
from diffnum._arguments import choose, finite, instance, number
from diffnum._backend import Array, concrete, namespace
from diffnum.adaptive import solve_adaptive
from diffnum.oracles import Oracle
from diffnum.paths import Path
from diffnum.schedules import Level
from diffnum.solvers import Table, adams_bashforth, solve

__all__ = [
    "LogDensity",
    "Transport",
    "bits_per_dimension",
    "dequantise",
    "log_density",
    "normal_prior",
    "oracle_divergence",
    "probes",
    "trace_variance",
    "transport",
]

Denoiser = Callable[[Array, Level], Array]
Kind = Literal["rademacher", "gaussian", "sphere", "orthogonal"]
KINDS = ("rademacher", "gaussian", "sphere", "orthogonal")
_OPTIONS = ("method", "tolerance", "divergence", "jvp", "kind", "count", "rng")
"""What `log_density` hands on to `transport`."""


class Transport(NamedTuple):
    """Result of `transport`.

    Attributes
    ----------
    x : array
        State at the path's last level, of the dtype of the input.
    volume : array
        Logarithm of the factor by which the map stretches volumes at each sample, :eq:`likelihood-volume`.
    standard_error : array or None
        Standard error of `volume` over the probes, :eq:`likelihood-standard-error`; None if nothing or one probe was
        drawn.
    """

    x: Array
    volume: Array
    standard_error: Array | None


class LogDensity(NamedTuple):
    """Result of `log_density`.

    Attributes
    ----------
    value : array
        Log-density of each sample in nats, :eq:`likelihood-log-density`.
    standard_error : array or None
        Standard error of `value` over the probes; None if nothing or one probe was drawn.
    x : array
        The samples carried to the noisy end, of the dtype of the input.
    volume : array
        Logarithm of the factor by which the way to the noisy end stretches volumes.
    """

    value: Array
    standard_error: Array | None
    x: Array
    volume: Array


def transport(
    denoise: Denoiser,
    x: Array,
    path: Path,
    /,
    *,
    method: Callable[[Path], Table] | None = None,
    tolerance: float | None = None,
    divergence: Literal["exact", "hutchinson"] | Callable[[Array, Level], Array] = "exact",
    jvp: Callable[[Array, Level, Array], Array] | None = None,
    kind: Kind = "rademacher",
    count: int = 1,
    rng: Any = None,
    event_ndim: int = 1,
) -> Transport:
    """Solve the ODE of `path` and follow the volume around the solution, :eq:`likelihood-volume`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the path's first level, floating point, at least one axis.
    path : Path
        An ODE path whose steps join, with finite coordinates; in either direction.
    method : callable, optional
        ``method(path) -> Table``. The default is Adams-Bashforth of order 3.
    tolerance : float, optional
        Relative and absolute tolerance of error-controlled steps (`solve_adaptive`) in place of `method`; the volume is
        controlled as well. Only the ends of the path then count.
    divergence : {"exact", "hutchinson"} or callable, optional
        How the trace of the denoiser's Jacobian is found: from d products with it, from random ones, or by a function
        ``divergence(x, level)`` that returns one number for each sample.
    jvp : callable, optional
        ``jvp(x, level, e) -> J e``, the Jacobian of the denoiser times a direction; JAX and PyTorch find it themselves.
    kind : {"rademacher", "gaussian", "sphere", "orthogonal"}, optional
        Law of the random directions, see `probes`.
    count : int, optional
        Number of random directions, each kept for the whole way.
    rng : see `solve`, optional
        Source of the random directions.
    event_ndim : int, optional
        Number of last axes of `x` that make a sample.

    Returns
    -------
    Transport
        State, log-volume and its standard error.

    Raises
    ------
    TypeError
        If `x` is not floating point, or has no derivatives of its own (NumPy) and neither `jvp` nor a function for the
        divergence is given.
    ValueError
        If `path` is stochastic, has gaps or a singular end, or an option is unknown or out of range.

    Notes
    -----
    The quadrature :eq:`likelihood-weights` interpolates the divergence in the path's coordinate, through the nodes
    through which the table interpolates f, so the volume has the order of the method. "exact" costs d products a row,
    and their memory at once under JAX; "hutchinson" costs `count`. Derivatives with respect to `x` and to what is in
    the denoiser pass.

    References
    ----------
    R. Chen et al., Neural ordinary differential equations (2018); W. Grathwohl et al., FFJORD (2019).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles, paths, schedules
    >>> from diffnum.likelihood import oracle_divergence, transport
    >>> data = oracles.gaussian(np.array([0.0, 0.0]), np.array(0.5))
    >>> path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.0]), sigma_data=0.5)
    >>> moved = transport(data.denoise, np.array([[1.0, -1.0]]), path, divergence=oracle_divergence(data))
    >>> moved.x.tolist(), bool(np.isclose(moved.volume[0], 2 * np.log(0.5)))
    ([[0.5, -0.5]], True)
    """
    _check_path(path)
    x = _samples(x, path, event_ndim)
    directions: Array = None
    if not callable(divergence):
        choose("divergence", divergence, ("exact", "hutchinson"))
        if jvp is None and not _backend.differentiable(x):
            msg = (
                "divergence must be a function, or jvp be given, for arrays without derivatives of their own (an "
                "oracle has oracle_divergence); got "
                f"divergence={divergence!r} for {type(x).__name__}"
            )
            raise TypeError(msg)
        exact = divergence == "exact"
        directions = _basis(x, event_ndim) if exact else probes(x, count, rng=rng, kind=kind, event_ndim=event_ndim)
    trace = _trace(denoise, divergence if callable(divergence) else None, jvp, directions, event_ndim)
    sampled, size = divergence == "hutchinson", _size(x, event_ndim)
    # what a direction makes of the identity: its squared length, so that its error cancels in a form p I + q J near 0
    one = _squares(directions, event_ndim) if sampled else size
    whole = trace if sampled or callable(divergence) else _summed(trace)
    if tolerance is None:
        end, volume = _by_table(whole, x, path, method or _default, size=size, one=one)
    else:
        number("tolerance", tolerance, above=0.0)
        end, volume = _by_tolerance(whole, x, path, tolerance, size=size, one=one)
    if not sampled:
        return Transport(end, volume, None)
    return Transport(end, namespace(volume).mean(volume, axis=0), _standard_error(volume, kind, size))


def log_density(
    denoise: Denoiser,
    x: Array,
    path: Path,
    /,
    *,
    prior: Callable[[Array, Level], Array] | None = None,
    event_ndim: int = 1,
    **options: Any,
) -> LogDensity:
    """Log-density of samples: carry them to the noise and add up, :eq:`likelihood-log-density`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        Samples at the path's *last* level, floating point.
    path : Path
        The path of a sampler, from noise to data; it is run in reverse.
    prior : callable, optional
        ``prior(x, level)``, log-density at the noisy end. The default is `normal_prior`, the law that samplers start
        from; the error that it makes is :eq:`likelihood-prior-error`.
    event_ndim : int, optional
        Number of last axes of `x` that make a sample.
    **options
        Options of `transport`: `method`, `tolerance`, `divergence`, `jvp`, `kind`, `count`, `rng`.

    Returns
    -------
    LogDensity
        Log-density `value`, its `standard_error`, the noise `x` and the `volume`.

    Raises
    ------
    TypeError, ValueError
        As `transport` and `paths.reverse` do, and if `path` runs from data to noise.

    Notes
    -----
    The order is that of the method. For data N(centre, sigma_data^2 I) one step of any method is exact on
    `paths.velocity`: :eq:`likelihood-velocity`.

    References
    ----------
    Y. Song et al., Score-based generative modeling through stochastic differential equations (2021), section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles, paths, schedules
    >>> from diffnum.likelihood import log_density, normal_prior, oracle_divergence
    >>> data = oracles.gaussian(np.array([0.0, 0.0]), np.array(0.5))
    >>> path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 1e-3]), sigma_data=0.5)
    >>> found = log_density(data.denoise, np.array([[0.3, -0.1]]), path, divergence=oracle_divergence(data))
    >>> bool(np.isclose(found.value[0], data.log_density(np.array([0.3, -0.1]), path.last), rtol=1e-12))
    True
    """
    _check_path(path)
    known = [concrete(level.log_snr) for level in (path.first, path.last)]
    if path.schedule is not None and known[0] is not None and known[1] is not None and known[0] > known[1]:
        msg = f"path must run from noise to data, as for sampling, got log-SNR {known[0]:g} to {known[1]:g}"
        raise ValueError(msg)
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        msg = f"options of log_density must be among {_OPTIONS}, got {unknown}"
        raise TypeError(msg)
    moved = transport(denoise, x, paths.reverse(path), event_ndim=event_ndim, **options)
    state = _backend.state_dtype(moved.x)
    noise = _backend.cast(moved.x, state)
    level = Level(*(_backend.convert(part, noise, state) for part in path.first))
    prior = normal_prior(event_ndim=event_ndim) if prior is None else prior
    return LogDensity(prior(noise, level) + moved.volume, moved.standard_error, moved.x, moved.volume)


def normal_prior(
    *, sigma_data: float = 0.0, centre: Array | float = 0.0, event_ndim: int = 1
) -> Callable[[Array, Level], Array]:
    """Log-density of N(alpha centre, (alpha^2 sigma_data^2 + sigma^2) I), :eq:`likelihood-prior`.

    Parameters
    ----------
    sigma_data : float, optional
        Standard deviation of the data, >= 0; 0 gives N(0, sigma^2 I), the law that samplers start from.
    centre : float or array broadcastable to x, optional
        Mean of the data.
    event_ndim : int, optional
        Number of last axes of `x` that make a sample.

    Returns
    -------
    callable
        ``prior(x, level)``, of the shape of `x` without its event axes.

    Raises
    ------
    ValueError
        If `sigma_data` is negative or `centre` not finite.

    Notes
    -----
    The mean error that the law of samplers makes is :eq:`likelihood-prior-error`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import schedules
    >>> from diffnum.likelihood import normal_prior
    >>> prior = normal_prior()
    >>> float(prior(np.zeros(1), schedules.edm().level(80.0)).round(6))
    -5.300965
    """
    std, centre = number("sigma_data", sigma_data, least=0.0), finite("centre", centre)
    _count(event_ndim, "event_ndim")

    def prior(x: Array, level: Level) -> Array:
        x = _events("x", x, event_ndim)
        xp = namespace(x)
        point = _backend.convert(centre, x, x.dtype)
        scale = _backend.hypot(level.alpha * std, level.sigma)
        z = (x - level.alpha * point) / scale
        constant = xp.log(scale) + 0.5 * math.log(2.0 * math.pi)
        return xp.sum(-0.5 * z * z - constant, axis=_axes(event_ndim))

    return prior


def oracle_divergence(oracle: Oracle, /) -> Callable[[Array, Level], Array]:
    """Exact trace of the Jacobian of an oracle's denoiser, from its covariance: :eq:`likelihood-covariance`.

    Parameters
    ----------
    oracle : Oracle
        A law with a known posterior covariance, of `diffnum.oracles`.

    Returns
    -------
    callable
        ``divergence(x, level)`` for `transport`, for levels with sigma > 0.

    Raises
    ------
    TypeError
        If `oracle` is no `Oracle`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.likelihood import oracle_divergence
    >>> from diffnum.schedules import Level
    >>> data = oracles.gaussian(np.zeros(3), np.array(1.0))
    >>> float(oracle_divergence(data)(np.ones(3), Level(1.0, np.array(0.6), np.array(0.8))).round(12))
    1.8
    """
    instance("oracle", oracle, Oracle)

    def divergence(x: Array, level: Level) -> Array:
        covariance = oracle.covariance(x, level)
        return level.alpha / level.sigma**2 * namespace(covariance).linalg.trace(covariance)

    return divergence


def probes(like: Array, count: int, /, *, rng: Any, kind: Kind = "rademacher", event_ndim: int = 1) -> Array:
    """Random directions e with ``E[e e^T] = I``, for the estimate :eq:`likelihood-hutchinson` of a trace.

    Parameters
    ----------
    like : array
        Shape, library and dtype of a batch of samples.
    count : int
        Number of directions for each sample.
    rng : see `solve`
        Source.
    kind : {"rademacher", "gaussian", "sphere", "orthogonal"}, optional
        Signs, normals, points of the sphere of radius sqrt(d), or such points orthogonal to each other, at most d.
    event_ndim : int, optional
        Number of last axes that make a sample.

    Returns
    -------
    array, shape (count, ...)
        Directions like `like`, stacked.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `like`.
    ValueError
        If `rng` is None, `count` is not a positive integer or, for orthogonal directions, more than d.

    Notes
    -----
    Their variances are :eq:`likelihood-variance`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.likelihood import probes
    >>> e = probes(np.zeros(3), 3, rng=np.random.default_rng(0), kind="orthogonal")
    >>> bool(np.allclose(e @ e.T, 3 * np.eye(3)))
    True
    """
    choose("kind", kind, KINDS)
    number_of, like = _count(count), _events("like", like, event_ndim)
    size = _size(like, event_ndim)
    if rng is None:
        msg = "rng must be given for random directions, got None"
        raise ValueError(msg)
    if kind == "orthogonal" and number_of > size:
        msg = f"count must be at most {size} for orthogonal directions in that dimension, got {count}"
        raise ValueError(msg)
    xp = namespace(like)
    z = xp.stack([_backend.normal(rng, m, like) for m in range(number_of)])
    if kind == "rademacher":
        z = xp.where(z < 0.0, -xp.ones_like(z), xp.ones_like(z))
    elif kind == "sphere":
        z = z * (math.sqrt(size) / xp.sqrt(xp.sum(z * z, axis=_axes(event_ndim), keepdims=True)))
    elif kind == "orthogonal":
        columns = xp.moveaxis(xp.reshape(z, (number_of, *like.shape[: like.ndim - event_ndim], size)), 0, -1)
        rows = xp.moveaxis(xp.linalg.qr(columns)[0], -1, 0)
        z = math.sqrt(size) * xp.reshape(rows, z.shape)
    return _backend.cast(z, like.dtype)


def trace_variance(jacobian: Array, /, *, kind: Kind = "rademacher") -> Array:
    """Variance of one estimate ``e . J e`` of a trace, :eq:`likelihood-variance`.

    Parameters
    ----------
    jacobian : array, shape (..., d, d)
        The matrix J; only its symmetric part counts.
    kind : {"rademacher", "gaussian", "sphere", "orthogonal"}, optional
        Law of the direction e, see `probes`; a single orthogonal one is a point of the sphere.

    Returns
    -------
    array, shape (...)
        The variance.

    Raises
    ------
    TypeError
        If `jacobian` is not real.
    ValueError
        If `kind` is unknown or the matrices are not square.

    References
    ----------
    M. Hutchinson, A stochastic estimator of the trace of the influence matrix for Laplacian smoothing splines (1989).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.likelihood import trace_variance
    >>> matrix = np.array([[1.0, 2.0], [0.0, 3.0]])
    >>> [float(trace_variance(matrix, kind=kind)) for kind in ("rademacher", "gaussian", "sphere")]
    [4.0, 24.0, 4.0]
    """
    choose("kind", kind, KINDS)
    jacobian = _backend.asfloat(jacobian, "jacobian")
    if jacobian.ndim < 2 or jacobian.shape[-1] != jacobian.shape[-2] or jacobian.shape[-1] == 0:
        msg = f"jacobian must have shape (..., d, d), got {tuple(jacobian.shape)}"
        raise ValueError(msg)
    xp, size = namespace(jacobian), jacobian.shape[-1]
    symmetric = 0.5 * (jacobian + xp.matrix_transpose(jacobian))
    squares = xp.sum(symmetric**2, axis=(-2, -1))
    diagonal = xp.linalg.diagonal(symmetric)
    if kind == "gaussian":
        return 2.0 * squares
    if kind == "rademacher":
        return 2.0 * (squares - xp.sum(diagonal**2, axis=-1))
    return 2.0 * size / (size + 2.0) * (squares - xp.sum(diagonal, axis=-1) ** 2 / size)


def bits_per_dimension(log_density: Array, dimensions: int, /, *, bin_width: float) -> Array:
    """Bits per dimension of quantised data, :eq:`likelihood-bits`.

    Parameters
    ----------
    log_density : array
        Log-density in nats of a *dequantised* sample, see `dequantise`.
    dimensions : int
        Number of values of a sample, d.
    bin_width : float
        Width of a bin of the quantisation in the units of x, > 0: 1/256 if 8-bit values were divided by 256, 1/127.5 if
        they were divided by 127.5.

    Returns
    -------
    array
        Bits per dimension. Its mean over the noise of the bins is an upper bound on the bits of the discrete data,
        :eq:`likelihood-dequantisation`. Of data that were not dequantised it is no bound on anything.

    Raises
    ------
    ValueError
        If `dimensions` is not a positive integer or `bin_width` is not positive.

    Examples
    --------
    >>> from diffnum.likelihood import bits_per_dimension
    >>> bits_per_dimension(0.0, 3072, bin_width=1 / 256)
    8.0
    """
    width = number("bin_width", bin_width, above=0.0)
    return -(log_density / (_count(dimensions, "dimensions") * math.log(2.0))) - math.log2(width)


def dequantise(x: Array, /, *, bin_width: float, rng: Any, row: int = 0) -> Array:
    """Spread quantised data evenly over their bins, :eq:`likelihood-dequantisation`.

    Parameters
    ----------
    x : array
        Lower edges of the bins.
    bin_width : float
        Width of a bin, > 0.
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of them
        Source of the uniform numbers.
    row : int, optional
        Number of the draw, which a JAX key is folded with.

    Returns
    -------
    array
        ``x + bin_width u``, u uniform on [0, 1), of the dtype of `x`.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `x`.
    ValueError
        If `bin_width` is not positive.

    References
    ----------
    L. Theis, A. van den Oord and M. Bethge, A note on the evaluation of generative models (2016), section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.likelihood import dequantise
    >>> x = dequantise(np.arange(4) / 4, bin_width=1 / 4, rng=np.random.default_rng(0))
    >>> np.floor(4 * x).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    width, x = number("bin_width", bin_width, above=0.0), _floating("x", x)
    return _backend.cast(x + width * _backend.uniform(rng, row, x), x.dtype)


def _default(path: Path) -> Table:
    return adams_bashforth(path, 3)


def _by_table(
    trace: Callable, x: Array, path: Path, method: Callable[[Path], Table], *, size: int, one: Any
) -> tuple[Array, Array]:
    """State at the end and log-volume, with the quadrature of the table's own nodes; `one` is the trace of I."""
    table, plain = method(path), method(_trace_path(path))
    end, traces = solve(trace, x, table, has_aux=True)
    weights = _row_weights(plain) * _gain(path)(table.level)
    p, q = (0.0, 1.0) if path.target is None else path.target(table.level)
    xp, ns = namespace(weights), namespace(traces)
    linear, identity, factors = (
        _backend.convert(part, traces, traces.dtype)
        for part in (size * _log_scale(path), xp.sum(weights * p), weights * q)
    )
    factors = ns.reshape(factors, (-1, *(1,) * (traces.ndim - 1)))
    return end, ns.sum(factors * traces, axis=0) + one * identity + linear


def _by_tolerance(
    trace: Callable, x: Array, path: Path, tolerance: float, *, size: int, one: Any
) -> tuple[Array, Array]:
    """The same with error-controlled steps, which integrate the divergence beside the state."""
    gain = _gain(path)

    def integrand(u: Array, level: Level) -> tuple[Array, Array]:
        value, part = trace(u, level)
        p, q = (0.0, 1.0) if path.target is None else path.target(level)
        return value, gain(level) * (one * p + q * part)

    solution = solve_adaptive(integrand, x, path, rtol=tolerance, atol=tolerance, has_aux=True)
    integral: Any = solution.integral
    return solution.x, integral + _backend.convert(size * _log_scale(path), integral, integral.dtype)


def _trace_path(path: Path) -> Path:
    """The path of the log-volume: the same levels and coordinate, kernel 1, nothing to propagate."""

    def propagate(a: Level, b: Level, steps: slice = slice(None)) -> tuple[Array, None]:  # noqa: ARG001
        return namespace(b.t).ones_like(b.t), None

    def moments(a: Level, b: Level, count: int, steps: slice = slice(None)) -> tuple[Array, ...]:  # noqa: ARG001
        length = path.coordinate(b) - path.coordinate(a)
        return tuple(length / (j + 1) for j in range(count))

    return replace(path, propagate=propagate, moments=moments, centre=None)


def _row_weights(table: Table) -> Array:
    """Factor of each row's value in the final state, of a table that keeps its state: the sum over its uses."""
    rows, registers = table.weights.shape
    slot = np.asarray(table.slot)
    following = np.full(rows, rows)
    last: dict[int, int] = {}
    for r, place in enumerate(slot.tolist()):
        if place in last:
            following[last[place]] = r
        last[place] = r
    age = np.arange(int((following - np.arange(rows)).max()))
    reader = np.arange(rows)[:, None] + age
    index = np.where(reader < following[:, None], reader * registers + slot[:, None], rows * registers)
    xp = namespace(table.weights)
    flat = xp.reshape(table.weights, (-1,))
    padded = xp.concat([flat, xp.zeros_like(flat[:1])])
    return xp.sum(xp.reshape(xp.take(padded, xp.asarray(index.ravel()), axis=0), index.shape), axis=1)


def _log_scale(path: Path) -> Array:
    """Logarithm of P from the first level to the last: what the linear part does to lengths."""
    ends = [Level(*(part[None] for part in level)) for level in (path.first, path.last)]
    scale = path.propagate(*ends)[0][0]
    known = concrete(scale)
    if known is not None and not 0.0 < known < math.inf:
        msg = f"path must not shrink or stretch to a point, got a factor of {known:g} over all of {path.name}"
        raise ValueError(msg)
    return namespace(scale).log(scale)


def _trace(
    denoise: Denoiser, divergence: Callable | None, jvp: Callable | None, directions: Array, event_ndim: int
) -> Callable[[Array, Level], tuple[Array, Array]]:
    """The denoiser, which returns beside its value the trace, or ``e . J e`` for each direction."""

    def measured(u: Array, level: Level) -> tuple[Array, Array]:
        state = _backend.state_dtype(u)
        if divergence is not None:
            value, found = denoise(u, level), divergence(u, level)
            wanted = tuple(u.shape[: u.ndim - event_ndim])
            if tuple(getattr(found, "shape", ())) != wanted:
                msg = f"divergence must return shape {wanted}, got {tuple(getattr(found, 'shape', ()))}"
                raise ValueError(msg)
            return value, _backend.cast(found, state)
        if jvp is None:
            value, product = _backend.linearised(lambda v: denoise(v, level), u)
            products = product(directions)
        else:
            value = denoise(u, level)
            products = namespace(u).stack([jvp(u, level, directions[m, ...]) for m in range(directions.shape[0])])
        terms = _backend.cast(directions, state) * _backend.cast(products, state)
        return value, namespace(u).sum(terms, axis=_axes(event_ndim))

    return measured


def _summed(trace: Callable) -> Callable:
    """The sum over all directions: the trace, if they are a basis."""

    def measured(u: Array, level: Level) -> tuple[Array, Array]:
        value, terms = trace(u, level)
        return value, namespace(terms).sum(terms, axis=0)

    return measured


def _basis(x: Array, event_ndim: int) -> Array:
    """The d unit vectors, each for all samples."""
    xp, size = namespace(x), _size(x, event_ndim)
    unit = _backend.convert(np.eye(size), x, x.dtype)
    event = x.shape[x.ndim - event_ndim :]
    unit = xp.reshape(unit, (size, *(1,) * (x.ndim - event_ndim), *event))
    return xp.broadcast_to(unit, (size, *x.shape))


def _squares(directions: Array, event_ndim: int) -> Array:
    """Squared length of each direction."""
    return namespace(directions).sum(
        _backend.cast(directions, _backend.state_dtype(directions)) ** 2, axis=_axes(event_ndim)
    )


def _standard_error(values: Array, kind: str, size: int) -> Array | None:
    """Standard error of the mean over the first axis; orthogonal directions leave less to chance."""
    count = values.shape[0]
    if count == 1:
        return None
    xp = namespace(values)
    variance = xp.var(values, axis=0, correction=1) / count
    variance = variance * ((size - count) / size if kind == "orthogonal" else 1.0)
    # directions that agree, and a whole orthogonal set, leave no error; there the root has no derivative
    zero = variance == 0.0
    return xp.where(zero, xp.zeros_like(variance), xp.sqrt(xp.where(zero, xp.ones_like(variance), variance)))


def _floating(name: str, x: Any) -> Array:
    given = x if hasattr(x, "dtype") else np.asarray(x)
    array = _backend.asfloat(given, name)
    if array.dtype != given.dtype:
        msg = f"{name} must have a floating-point dtype, got {given.dtype}"
        raise TypeError(msg)
    return array


def _events(name: str, x: Any, event_ndim: int) -> Array:
    """`x` if it is of floating point and has the axes of a sample."""
    array = _floating(name, x)
    _count(event_ndim, "event_ndim")
    if array.ndim < event_ndim:
        msg = f"{name} must have at least event_ndim = {event_ndim} axes, got shape {tuple(array.shape)}"
        raise ValueError(msg)
    return array


def _samples(x: Any, path: Path, event_ndim: int) -> Array:
    array = _events("x", x, event_ndim)
    return namespace(path.first.t).asarray(array) if concrete(path.first.t) is None else array


def _size(x: Array, event_ndim: int) -> int:
    """Number of values of a sample."""
    return math.prod(x.shape[x.ndim - event_ndim :])


def _axes(event_ndim: int) -> tuple[int, ...]:
    return tuple(range(-event_ndim, 0))


def _count(value: Any, name: str = "count") -> int:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = 0
    if whole < 1:
        msg = f"{name} must be an integer >= 1, got {value!r}"
        raise ValueError(msg)
    return whole


def _gain(path: Path) -> Callable[[Level], Array]:
    if path.gain is None:
        msg = f"path must know the factor of f in its equation (`gain`), got {path.name} without"
        raise ValueError(msg)
    return path.gain


def _check_path(path: Any) -> None:
    instance("path", path, Path)
    if path.stochastic or path.gaps:
        msg = f"path must be an ODE path whose steps join, got {path.name}"
        raise ValueError(msg)
    places = [concrete(path.coordinate(level)) for level in (path.first, path.last)]
    if not all(place is None or np.isfinite(place) for place in places):
        msg = (
            f"path must have finite coordinates at both ends, got {places[0]} and {places[1]} on {path.name}; use "
            "paths.velocity, or schedules.truncate"
        )
        raise ValueError(msg)
