"""Nodes at which every step of a solver has the same error, from trajectories of a given denoiser.

Reference trajectories are computed once, with error control. On them the local error of a step is known for any nodes:
what the interpolant through the exact values misses. Lengths are then changed until all steps contribute equally.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.interpolate import CubicSpline

from diffnum import _backend, paths
from diffnum._arguments import choose, finite, instance
from diffnum._backend import Array, concrete
from diffnum.adaptive import PAIR_43, solve_adaptive
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule
from diffnum.solvers import runge_kutta, solve

__all__ = ["optimal"]

_TOLERANCE = 1e-4
"""Of the steps that are split for the reference, whose error is then some hundred times less."""
_SPLIT, _LEAST = 4, 64
"""Steps of the reference for each that error control takes, and altogether: splines between them are as accurate."""
_NOTHING = 1e-6
"""Errors below this part of the state are those of the reference."""
_SAME = 0.01
"""Relative difference of the steps' errors at which the lengths are left alone."""
_CAUTION = 0.7
"""Share of the correction that the leading order suggests: a step's error depends on the steps before it, too."""
_ROUNDS = 300
_NUDGE = 1e-4
"""Distance of the trajectories that measure the growth of an error, relative to the state."""


def optimal(
    schedule: Schedule,
    /,
    steps: int,
    denoise: Callable[[Array, Level], Array],
    x: Array,
    *,
    path: Callable[[Schedule, Array], Path] = paths.velocity,
    order: int = 2,
    weight: Literal["local", "end"] = "local",
) -> np.ndarray:
    """Nodes at which all steps of an Adams-Bashforth method have the same error, :eq:`grids-optimal`.

    Parameters
    ----------
    schedule : Schedule
        The schedule whose interval is divided.
    steps : int
        Number of steps, >= 1.
    denoise : callable
        ``denoise(x, level) -> x0_hat``: an oracle, or the network itself.
    x : array, shape (n, ...)
        Starting points at `t_noise`, a sample of what the sampler will start from. A few tens do.
    path : callable, optional
        ``path(schedule, t)`` makes the path that will be solved, with a finite coordinate at both ends.
    order : int, optional
        Order of the method, 1 to 4.
    weight : {"local", "end"}, optional
        Measure an error where it is made, or by what is left of it at the end, :eq:`grids-growth`. The latter is better
        for data with a smooth density, and useless for a finite set of points, where nothing is left of any error that
        keeps to its point.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`, `denoise` or `path` not callable, or what `path` makes no `Path`.
    ValueError
        If `steps` is not an integer >= 1, `order` not 1 to 4, `x` has no samples or is not finite, or the path's
        coordinate is infinite at an end.
    RuntimeError
        If the reference cannot be computed.

    Notes
    -----
    Costs some hundreds of evaluations of `denoise` on `x`, once for all samples to come. The local errors are those of
    :eq:`grids-local`, for steps as long as these, not in the limit; they come out equal to 1 % where a longer step has
    a larger error. On `x0` in log-SNR a step that begins in pure noise and is long enough has none: with 10 steps or
    fewer the nodes with the least largest error are returned. Where all errors vanish (normal data on their velocity
    path) the nodes are equally spaced in the path's coordinate.

    References
    ----------
    C. de Boor, Good approximation by splines with variable knots II (1974), for equidistribution. A. Sabour, S. Fidler
    and K. Kreis, Align your steps: optimizing sampling schedules in diffusion models (2024), another criterion.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, oracles, schedules
    >>> data = oracles.mixture([0.5, 0.5], [[-1.0], [1.0]], [0.2, 0.2])
    >>> t = grids.optimal(schedules.rectified_flow(), 4, data.denoise, np.linspace(-1.7, 1.6, 12)[:, None])
    >>> bool(np.all(np.diff(t) < 0))
    True
    """
    instance("schedule", schedule, Schedule)
    count, k = _whole("steps", steps, None), _whole("order", order, 4)
    choose("weight", weight, ("local", "end"))
    reference = _Reference(schedule, denoise, x, path, end=weight == "end")
    share = best = np.full(count, 1.0 / count)
    least = np.inf
    for _ in range(_ROUNDS):
        errors = reference.errors(share, k)
        if errors.max() < least:
            best, least = share, errors.max()
        if errors.max() <= max(reference.nothing, (1.0 + _SAME) * errors.min()):
            break
        factor = (np.mean(errors) / np.maximum(errors, reference.nothing)) ** (_CAUTION / (k + 1))
        share = share * np.clip(factor, 0.5, 2.0)
        share = share / np.sum(share)
    t = _with_ends(reference.levels(reference.places(best)).t, schedule)
    if not np.all(np.diff(t) < 0):
        msg = f"steps must leave nodes that float64 can tell apart, got {count} for optimal on {schedule.name}"
        raise ValueError(msg)
    return t


class _Reference:
    """Exact states and values along trajectories, between 0 and 1 of the path's coordinate; errors of steps on them."""

    def __init__(self, schedule: Schedule, denoise: Any, x: Array, path: Any, *, end: bool) -> None:
        x = finite("x", x)
        instance("denoise", denoise, Callable)
        instance("path", path, Callable)
        if x.ndim < 1 or 0 in x.shape:
            msg = f"x must have shape (n, ...) with n >= 1, got {tuple(x.shape)}"
            raise ValueError(msg)
        self._path = path(schedule, np.asarray([schedule.t_noise, schedule.t_clean]))
        instance("path(schedule, t)", self._path, Path)
        self._start, stop = (float(self._path.coordinate(level)) for level in (self._path.first, self._path.last))
        self._length = stop - self._start
        found = _host(solve_adaptive(denoise, x, self._path, rtol=_TOLERANCE, atol=_TOLERANCE).t)
        coarse = (self._path.coordinate(schedule.level(found)) - self._start) / self._length
        split = max(_SPLIT, math.ceil(_LEAST / (len(coarse) - 1)))
        places = np.interp(np.arange(split * (len(coarse) - 1) + 1) / split, np.arange(len(coarse)), coarse)
        fine = path(schedule, _with_ends(self.levels(places).t, schedule))
        table, level = runge_kutta(fine, PAIR_43.method), _nodes(fine)
        states = solve(denoise, x, table, trajectory=True)
        self._state = CubicSpline(places, self._centred(states, level) / _column(_size(level)))
        regular = len(places) - (fine.target is not None and level.sigma[-1] == 0.0)
        outputs = [denoise(states[n, ...], _scalars(level, n, x)) for n in range(regular)]
        self._value = CubicSpline(places[:regular], self._values(states, np.stack(list(map(_host, outputs))), level))
        self._growth = None
        if end:
            apart = _host(solve(denoise, _nudged(x), table, trajectory=True)) - _host(states)
            size = np.sqrt(np.mean(np.reshape(apart**2, (*apart.shape[:2], -1)), axis=2))
            self._growth = CubicSpline(places, np.log(size[-1] / size))
        self.nothing = _NOTHING * float(np.sqrt(np.mean(self._state(places) ** 2)))

    def places(self, share: np.ndarray) -> np.ndarray:
        """Nodes between 0 and 1, for lengths that sum to 1."""
        return np.concatenate([[0.0], np.cumsum(share)[:-1], [1.0]])

    def levels(self, places: np.ndarray) -> Level:
        """Levels at these places, the ends exact."""
        inner = self._path.at(self._start + self._length * places[1:-1])
        return Level(
            *(np.concatenate([[a], m, [b]]) for a, m, b in zip(self._path.first, inner, self._path.last, strict=True))
        )

    def errors(self, share: np.ndarray, order: int) -> np.ndarray:
        """Root mean square over the trajectories of each step's error."""
        places = self.places(share)
        level = self.levels(places)
        start, stop = (Level(*(part[cut] for part in level)) for cut in (slice(None, -1), slice(1, None)))
        kept = self._path.propagate(start, stop)[0]
        moments = np.stack(self._path.moments(start, stop, order), axis=1)
        state = self._state(places) * _column(_size(level))
        known = self._value(places[:-1])
        missed = state[1:] - _column(kept) * state[:-1]
        first = min(order - 1, len(share))
        for n in range(first):
            inside = _starting_stages(order, n)
            seen = [] if len(inside) else [places[n - j] for j in range(n + 1)]
            values = np.concatenate([known[: len(seen)][::-1], self._value(places[n] + share[n] * inside)])
            u = np.concatenate([(np.asarray(seen) - places[n]) / share[n], inside])
            missed[n] -= np.tensordot(_weights(u, moments[n]), values, axes=1)
        back = np.arange(first, len(share))[:, None] - np.arange(order)
        u = (places[back] - places[back[:, :1]]) / share[first:, None]
        missed[first:] -= np.einsum("nj,njbd->nbd", _weights(u, moments[first:]), known[back])
        size = np.sqrt(np.mean(missed**2, axis=2))
        if self._growth is not None:
            size = size * np.exp(self._growth(places[1:]))
        return np.sqrt(np.mean(size**2, axis=1))

    def _centred(self, states: Array, level: Level) -> np.ndarray:
        """States about the path's centre, of shape (nodes, samples, entries)."""
        host = _host(states)
        if self._path.centre is not None:
            host = host - level.alpha.reshape(-1, *[1] * (host.ndim - 1)) * _host(self._path.centre)
        return np.reshape(host, (*host.shape[:2], -1))

    def _values(self, states: Array, outputs: np.ndarray, level: Level) -> np.ndarray:
        """What the path interpolates, at the first nodes."""
        cut = Level(*(part[: len(outputs)] for part in level))
        outputs = outputs if self._path.centre is None else outputs - _host(self._path.centre)
        flat = np.reshape(outputs, (*outputs.shape[:2], -1))
        if self._path.target is None:
            return flat
        p, q = self._path.target(cut)
        return _column(p) * self._centred(states[: len(outputs), ...], cut) + _column(q) * flat


def _weights(u: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Integrals of the Lagrange basis through `u` (..., j), from moments (..., m)."""
    powers = u[..., :, None] ** np.arange(u.shape[-1])
    return np.einsum("...m,...mj->...j", moments[..., : u.shape[-1]], np.linalg.inv(powers))


def _starting_stages(order: int, step: int) -> np.ndarray | list:
    """Stages through which a Runge-Kutta start of this order interpolates, as `adams_bashforth` takes them."""
    if order == 3 and step == 0:
        return np.asarray([0.0, 1 / 2])
    return np.asarray([0.0, 2 / 3]) if order == 4 and step < 2 else np.asarray([])


def _nudged(x: Array) -> Array:
    """Points beside `x`, each in a direction of its own that is always the same."""
    z = np.random.default_rng(0).standard_normal(tuple(x.shape))
    scale = _NUDGE * float(np.sqrt(np.mean(_host(x) ** 2)))
    return x + scale * _backend.convert(z, x, x.dtype)


def _host(array: Array) -> np.ndarray:
    return np.asarray(concrete(array), dtype=np.float64)


def _column(values: Array) -> np.ndarray:
    """One number for each node, beside (nodes, samples, entries)."""
    return np.asarray(values)[:, None, None]


def _size(level: Level) -> np.ndarray:
    return np.hypot(level.alpha, level.sigma)


def _nodes(path: Path) -> Level:
    return Level(*(np.append(start, last) for start, last in zip(path.start, path.last, strict=True)))


def _scalars(level: Level, n: int, like: Array) -> Level:
    return Level(*(_backend.convert(np.asarray(part[n]), like, _backend.state_dtype(like)) for part in level))


def _with_ends(t: np.ndarray, schedule: Schedule) -> np.ndarray:
    t = np.array(t, dtype=np.float64)
    t[0], t[-1] = schedule.t_noise, schedule.t_clean
    return t


def _whole(name: str, value: Any, most: int | None) -> int:
    try:
        number = 0 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or (most is not None and number > most):
        msg = f"{name} must be an integer {'>= 1' if most is None else f'from 1 to {most}'}, got {value!r}"
        raise ValueError(msg)
    return number
