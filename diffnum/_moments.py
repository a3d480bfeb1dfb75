"""Mean and variance of a sampler's output on Gaussian data, exactly and without a random number.

The denoiser of Gaussian data is affine, so a sampler is an affine map of its start and its noise. `table_moments`
follows that map through a table, `impulse_response` reads it off any sampler. Derivation: :doc:`/convergence`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diffnum import _backend, oracles
from diffnum._arguments import finite, instance
from diffnum._backend import Array, concrete, namespace
from diffnum._tables import Table
from diffnum.paths import Path
from diffnum.schedules import Level

__all__ = ["Moments", "Response", "Sampler", "impulse_response", "table_moments", "takes_rng", "to_numpy"]

Sampler = Callable[..., Array]
AFFINE = 1e5
"""Roundings, relative to the sum of its gains, by which a sampler may deviate from an affine map."""


class Moments(NamedTuple):
    """Mean and standard deviation of a sampler's output, as :eq:`convergence-recursion` gives them.

    Attributes
    ----------
    mean : array
        Mean, one entry for each direction of the data.
    std : array
        Standard deviation.
    """

    mean: Array
    std: Array


def table_moments(
    table: Table,
    /,
    *,
    mean: Array | float,
    std: Array | float,
    start_mean: Array | float | None = None,
    start_std: Array | float | None = None,
) -> Moments:
    """Exact mean and standard deviation of the output of `table` on data N(mean, std^2): :eq:`convergence-recursion`.

    Parameters
    ----------
    table : Table
        Made by `adams_bashforth`, `runge_kutta` or `assemble` from a path on a schedule.
    mean : float or array
        Mean of the data.
    std : float or array
        Standard deviation, >= 0. For a covariance matrix give the square roots of its eigenvalues, and `mean` in the
        basis of its eigenvectors.
    start_mean, start_std : float or array, optional
        Law of the state that the sampler starts from; by default the true one, :eq:`convergence-gaussian`, at the
        table's first level. In practice samplers start from mean 0 and standard deviation sigma.

    Returns
    -------
    Moments
        One entry for each direction, in the library of the table. Derivatives pass, to the time grid too.

    Raises
    ------
    TypeError
        If `table` is not a Table, or a moment not real.
    ValueError
        If a moment is not finite, a standard deviation is negative, or their shapes do not fit.

    Notes
    -----
    Cost: for each direction, three products of matrices of size K + 1 for each row (K registers).

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.convergence import table_moments
    >>> from diffnum.solvers import adams_bashforth
    >>> edm = schedules.edm()
    >>> table = adams_bashforth(paths.x0(edm, grids.karras(edm, 20), eta=1.0), 2)
    >>> moments = table_moments(table, mean=0.8, std=1.7)
    >>> print(moments.mean.round(6), moments.std.round(6))
    0.8 2.003085
    """
    instance("table", table, Table)
    given = _moments(mean=mean, std=std, start_mean=start_mean, start_std=start_std)
    mean, std = given["mean"], given["std"]
    xp = namespace(table.carry, mean, std, start_mean, start_std)
    like = table.carry if namespace(table.carry) is xp else xp.asarray(concrete(table.carry))

    def array(value: Any) -> Array:
        return _backend.convert(value, like, like.dtype)

    mean, std = xp.broadcast_arrays(array(mean), array(std))
    first = Level(*(array(part)[0, ...] for part in table.node))
    centre = first.alpha * mean if start_mean is None else array(start_mean) + 0.0 * mean
    spread = _backend.hypot(first.alpha * std, first.sigma) if start_std is None else array(start_std) + 0.0 * std
    variance = spread**2
    if table.start is not None:
        scale, added = array(table.start)[0, ...], array(table.start)[1, ...]
        centre, variance = scale * centre, scale**2 * variance + added**2
    matrices, offsets, noises = _affine_rows(xp, table, array, mean, std)
    unit = array(np.eye(matrices.shape[-1])[0])
    corner = unit[:, None] * unit

    def body(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        centre, covariance = carry
        matrix, offset, noise = row
        centre = xp.matmul(matrix, centre[..., None])[..., 0] + offset
        covariance = xp.matmul(xp.matmul(matrix, covariance), xp.matrix_transpose(matrix))
        return (centre, covariance + noise**2 * corner), None

    state = (centre[..., None] * unit, variance[..., None, None] * corner)
    rows = (matrices, offsets, noises)
    listed = rows if _backend.is_jax(like) else [tuple(part[r, ...] for part in rows) for r in range(noises.shape[0])]
    (end, covariance), _ = _backend.scan(body, state, listed, like)
    return Moments(end[..., 0], _root(covariance[..., 0, 0]))


@dataclass(frozen=True, eq=False)
class Response:
    """A sampler on Gaussian data as the affine map that it is: :eq:`convergence-response`.

    Attributes
    ----------
    offset : numpy.ndarray, shape (d,)
        Output for a start of 0 and noises of 0.
    start : numpy.ndarray, shape (d,)
        Gain on the start.
    noise : numpy.ndarray, shape (m, d)
        Gain on each of the m draws, in the order in which they are made.
    """

    offset: np.ndarray
    start: np.ndarray
    noise: np.ndarray

    def moments(self, start_mean: Any = 0.0, start_std: Any = 1.0) -> Moments:
        """Exact mean and standard deviation of the output by :eq:`convergence-response`, for a start of that law."""
        variance = (self.start * start_std) ** 2 + np.sum(self.noise**2, axis=0)
        return Moments(self.offset + self.start * start_mean, np.sqrt(variance))


def impulse_response(
    sampler: Sampler,
    path: Path,
    /,
    *,
    mean: Any,
    std: Any,
    asarray: Callable[[np.ndarray], Array] | None = None,
) -> Response:
    """Gains of any sampler on data N(mean, std^2), read from unit impulses: :eq:`convergence-response`.

    Parameters
    ----------
    sampler : callable
        ``sampler(denoise, x, path)``, or ``sampler(denoise, x, path, rng=rng)`` if it has a parameter `rng`. All its
        randomness must come from the callable ``rng(row, like) -> z``, standard normals of the shape of `like`.
    path : Path
        Handed to the sampler: levels and whatever else it takes from it.
    mean, std : float or array, shape (d,)
        Law of the data, one entry for each component of `x`.
    asarray : callable, optional
        From NumPy to the sampler's own library, e.g. ``torch.asarray``.

    Returns
    -------
    Response
        Offset and gains, in float64 NumPy.

    Raises
    ------
    TypeError
        If `sampler` or `asarray` is not callable, or `path` is no Path.
    ValueError
        If the sampler is not affine on these data, mixes components or the samples of a batch, returns or draws another
        shape than that of x, or draws a number of noises that changes from run to run; if a moment is not finite, a
        standard deviation is negative, or they have other shapes.

    Notes
    -----
    Three runs, with batches of 1, m + 1 and 16 samples; the last, with random inputs of the size of x at the path's
    first level, shows whether the map is affine. Under JAX the sampler must not be compiled as a whole, or the
    callable is traced once instead of called.

    Examples
    --------
    >>> from diffnum import grids, paths, schedules
    >>> from diffnum.convergence import impulse_response
    >>> from diffnum.solvers import ab2
    >>> edm = schedules.edm()
    >>> path = paths.x0(edm, grids.karras(edm, 20), eta=1.0)
    >>> response = impulse_response(ab2, path, mean=0.8, std=1.7)
    >>> moments = response.moments(start_mean=0.8, start_std=(1.7**2 + 80.0**2) ** 0.5)
    >>> len(response.noise), moments.std.round(6).tolist()
    (20, [2.003085])
    """
    instance("sampler", sampler, Callable)
    instance("path", path, Path)
    instance("asarray", np.asarray if asarray is None else asarray, Callable)
    given = (np.asarray(to_numpy(part, name), dtype=float) for name, part in _moments(mean=mean, std=std).items())
    mean, std = np.broadcast_arrays(*np.atleast_1d(*given))
    if mean.ndim > 1 or mean.size == 0:
        msg = f"mean and std must be numbers or have shape (d,), got {mean.shape}"
        raise ValueError(msg)
    denoise = oracles.gaussian(mean, std).denoise
    convert = asarray or np.asarray
    noisy = takes_rng(sampler)

    def run(inputs: np.ndarray) -> tuple[np.ndarray, int]:
        drawn = itertools.count(1)

        def rng(row: Any, like: Array) -> Array:  # noqa: ARG001
            if np.shape(like) != inputs[0].shape:
                msg = f"sampler must draw noise of the shape of x, {inputs[0].shape}, got {np.shape(like)}"
                raise ValueError(msg)
            j = next(drawn)
            return convert(inputs[j] if j < len(inputs) else np.zeros_like(inputs[0]))

        x = convert(inputs[0])
        end = to_numpy(sampler(denoise, x, path, rng=rng) if noisy else sampler(denoise, x, path), "sampler's result")
        if end.shape != inputs[0].shape:
            msg = f"sampler must return the shape of x, {inputs[0].shape}, got {end.shape}"
            raise ValueError(msg)
        return end, next(drawn) - 1

    base, m = run(np.zeros((1, 1, mean.size)))
    ends, second = run(np.eye(m + 1)[..., None] * np.ones(mean.size))
    response = Response(base[0], ends[0] - base[0], ends[1:] - base[0])
    inputs = np.random.default_rng(0).standard_normal((m + 1, 16, mean.size))
    inputs[0] = path.first.alpha * mean + np.hypot(path.first.alpha * std, path.first.sigma) * inputs[0]
    end, third = run(inputs)
    gains = np.concatenate([response.start[None], response.noise])
    scale = np.abs(base) + np.max(np.sum(np.abs(gains[:, None] * inputs), axis=0))
    deviation = np.abs(end - base - np.einsum("jd,jbd->bd", gains, inputs))
    allowed = AFFINE * np.finfo(base.dtype).eps * scale
    if not (m == second == third and np.all(deviation <= allowed)):
        msg = (
            "sampler must be affine on Gaussian data, treat components and samples alike, always draw as often and all "
            f"of its noise from rng; got a deviation of {np.max(deviation):.1e} where outputs are of size "
            f"{np.max(scale):.1e}, and {m}, {second} and {third} draws"
        )
        raise ValueError(msg)
    return response


def _moments(**given: Any) -> dict[str, Array]:
    """Those given (not None) as finite arrays whose shapes fit; those called std >= 0, where values are known."""
    found = {name: finite(name, value) for name, value in given.items() if value is not None}
    for name, value in found.items():
        known = concrete(value)
        if name.endswith("std") and known is not None and not (known >= 0.0).all():
            msg = f"{name} must be >= 0, got {known}"
            raise ValueError(msg)
    shapes = [tuple(value.shape) for value in found.values()]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        msg = f"{', '.join(found)} must have shapes that broadcast, got {shapes}"
        raise ValueError(msg) from None
    return found


def to_numpy(value: Any, name: str) -> np.ndarray:
    known = concrete(value)
    if known is None or known.dtype.kind not in "fiu":
        msg = f"{name} must be an array of real numbers whose values are known, got {type(value).__name__}"
        raise ValueError(msg)
    return known if known.dtype.kind == "f" else known.astype(np.float64)


def _affine_rows(
    xp: Any, table: Table, array: Callable[[Any], Array], mean: Array, std: Array
) -> tuple[Array, Array, Array]:
    """Matrix and offset of each row on (state, registers), for each direction of the data; noise of each row."""
    rows, count = table.weights.shape
    over = (rows, *(1,) * mean.ndim)
    alpha, sigma = (xp.reshape(array(part), over) for part in (table.level.alpha, table.level.sigma))
    total = _backend.hypot(alpha * std, sigma)
    known = total == 0.0
    inverse = xp.where(known, xp.zeros_like(total), 1.0 / xp.where(known, xp.ones_like(total), total))
    gain = (std * inverse) * (alpha * std * inverse)
    fixed = mean - gain * alpha * mean
    if table.target is not None:
        target = array(table.target)
        q = xp.reshape(target[:, 1], over)
        gain, fixed = xp.reshape(target[:, 0], over) + q * gain, q * fixed
    shape = (rows, *mean.shape)
    gain, fixed = xp.broadcast_to(gain, shape)[..., None], xp.broadcast_to(fixed, shape)[..., None]
    stored = array((np.asarray(table.slot)[:, None] == np.arange(count)).astype(np.float64))
    weights = array(table.weights)
    direct = xp.concat([xp.sum(weights * stored, axis=1)[:, None], stored], axis=1)
    first = xp.reshape(direct, (*over, count + 1))
    carry = array(table.carry)[:, None] * array(np.eye(count + 1)[:1])
    column = xp.reshape(carry, (*over, count + 1)) + first * gain
    offset = first * fixed
    if table.bias is not None:
        centre = array(table.centre) + 0.0 * mean
        pushed = xp.reshape(array(table.bias), over) * centre
        offset = offset + pushed[..., None] * array(np.eye(count + 1)[0])
    kept = 1.0 - stored
    others = xp.concat([(weights * kept)[:, None, :], array(np.eye(count)) * kept[:, None, :]], axis=1)
    others = xp.broadcast_to(xp.reshape(others, (*over, count + 1, count)), (*shape, count + 1, count))
    noise = xp.zeros_like(array(table.carry)) if table.noise is None else array(table.noise)
    return xp.concat([column[..., None], others], axis=-1), offset, noise


def _root(x: Array) -> Array:
    """Square root, 0 below 0, with a finite derivative there."""
    xp = namespace(x)
    positive = x > 0.0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, xp.ones_like(x))), xp.zeros_like(x))


def takes_rng(sampler: Sampler, *, required: bool = False) -> bool:
    """Whether a sampler has a parameter `rng`.

    Parameters
    ----------
    sampler : callable
        The sampler.
    required : bool, optional
        Whether it has one without a default.

    Returns
    -------
    bool
        True for one that collects keywords, too, unless `required`.
    """
    try:
        parameters = inspect.signature(sampler).parameters.values()
    except ValueError:  # some callables written in C have none
        return False
    if required:
        return any(p.name == "rng" and p.default is p.empty for p in parameters)
    return any(p.name == "rng" or p.kind is p.VAR_KEYWORD for p in parameters)
