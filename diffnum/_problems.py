"""A bank of problems with known solutions, and the uneven grids on which to solve them.

Solutions on the line come from quantiles, which the flow keeps, in the plane from an adaptive integrator of another
library. See :doc:`/convergence`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import ndtr

from diffnum import grids, oracles, paths, schedules
from diffnum._arguments import instance
from diffnum._backend import Array
from diffnum._moments import Moments
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule

__all__ = ["GRIDS", "MIXTURE", "NAMES", "Problem", "ends_of", "problems", "random_ratio_grid", "random_ratio_nodes"]

GRIDS = ("uniform", "uniform_log_snr", "uniform_angle", "karras", "random_ratio")
PERIOD = 8
"""Steps in the pattern of a random-ratio grid."""
LARGEST_RATIO = 4.0
"""Its longest step over its shortest."""
MIXTURE = ((-1.0, 1.5), (0.5, 0.7))
"""Means and standard deviations of the mixture on the line; the weights are 0.3 and 0.7."""
QUANTILES = (-1.3, -0.4, 0.2, 0.9)
"""Where its paths start, in standard deviations."""


def random_ratio_nodes(start: float, stop: float, steps: int, /, *, seed: int = 0) -> np.ndarray:
    """Nodes from `start` to `stop` whose step lengths repeat one random pattern, :eq:`convergence-ratios`.

    Parameters
    ----------
    start, stop : float
        Ends of the interval, in either order.
    steps : int
        Number of steps, >= 1; multiples of 8 hold whole patterns.
    seed : int, optional
        Seed of the pattern.

    Returns
    -------
    numpy.ndarray
        Nodes of shape (steps + 1,); the longest step of the pattern is 4 times the shortest.

    Raises
    ------
    ValueError
        If `steps` is not an integer >= 1 or the ends are not two finite numbers.

    Notes
    -----
    The pattern does not change with `steps`: a fresh random grid for each would scatter the slopes.

    Examples
    --------
    >>> from diffnum.convergence import random_ratio_nodes
    >>> random_ratio_nodes(0.0, 1.0, 8).round(3).tolist()
    [0.0, 0.137, 0.215, 0.269, 0.322, 0.501, 0.711, 0.842, 1.0]
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        msg = f"steps must be an integer >= 1, got {steps!r}"
        raise ValueError(msg)
    if not all(isinstance(end, Real) and math.isfinite(end) for end in (start, stop)) or start == stop:
        msg = f"start and stop must be two finite numbers, got {start!r} and {stop!r}"
        raise ValueError(msg)
    exponent = np.random.default_rng(seed).uniform(size=PERIOD)
    exponent = (exponent - exponent.min()) / (exponent.max() - exponent.min())
    lengths = LARGEST_RATIO ** exponent[np.arange(steps) % PERIOD]
    reached = np.cumsum(lengths) / np.sum(lengths)
    return np.concatenate([[start], start + reached[:-1] * (stop - start), [stop]])


def random_ratio_grid(
    schedule: Schedule, /, steps: int, *, coordinate: Literal["log_snr", "angle"] = "log_snr", seed: int = 0
) -> np.ndarray:
    """Times whose steps have random ratios up to 4, in log-SNR or in the angle: :eq:`convergence-ratios`.

    Parameters
    ----------
    schedule : Schedule
        The schedule whose interval is divided.
    steps : int
        Number of steps, >= 1; multiples of 8 hold whole patterns.
    coordinate : {"log_snr", "angle"}, optional
        Where the lengths are taken: log-SNR, or atan2(sigma, alpha), which is finite at both ends of any schedule.
    seed : int, optional
        Seed of the pattern.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    ValueError
        If `steps` is not an integer >= 1, `coordinate` is unknown, or log-SNR is infinite at an end.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.convergence import random_ratio_grid
    >>> random_ratio_grid(schedules.edm(sigma_min=0.1, sigma_max=10.0), 4).round(3).tolist()
    [10.0, 1.406, 0.463, 0.212, 0.1]
    """
    instance("schedule", schedule, Schedule)
    ends = schedule.level(np.asarray([schedule.t_noise, schedule.t_clean]))
    if coordinate == "log_snr":
        if not np.all(np.isfinite(ends.log_snr)):
            msg = (
                f"schedule must have finite log-SNR at both ends, got {ends.log_snr} for {schedule.name}; take 'angle'"
            )
            raise ValueError(msg)
        nodes = random_ratio_nodes(ends.log_snr[0], ends.log_snr[1], steps, seed=seed)[1:-1]
    elif coordinate == "angle":
        noisy, clean = np.arctan2(ends.sigma, ends.alpha)
        nodes = -np.log(np.tan(random_ratio_nodes(noisy, clean, steps, seed=seed)[1:-1]))
    else:
        msg = f"coordinate must be 'log_snr' or 'angle', got {coordinate!r}"
        raise ValueError(msg)
    return np.concatenate([[schedule.t_noise], schedule.time(nodes), [schedule.t_clean]])


@dataclass(frozen=True, eq=False)
class Problem:
    """A task with a known answer: the probability-flow ODE of :eq:`convergence-quantile`, or a semilinear equation.

    Attributes
    ----------
    name : str
        Its name in the bank.
    tags : frozenset of str
        What makes it easy or hard; see `problems`.
    denoise : callable
        ``denoise(x, level)``, exact.
    x : numpy.ndarray, shape (B, d)
        Starting points.
    reference : numpy.ndarray, shape (B, d)
        Where the exact solution takes them.
    setting : Schedule or SemilinearProblem
        The schedule, solved over its whole interval, or the equation.
    law : Moments or None
        Mean and standard deviation of the data where they are Gaussian.
    """

    name: str
    tags: frozenset[str]
    denoise: Callable[[Array, Level], Array]
    x: np.ndarray
    reference: np.ndarray
    setting: Schedule | oracles.SemilinearProblem
    law: Moments | None = None

    def grid(self, steps: int, kind: str = "random_ratio") -> np.ndarray:
        """Times of `steps` steps, as :eq:`convergence-ratios` and the chapter on grids have them.

        Parameters
        ----------
        steps : int
            Number of steps.
        kind : {"uniform", "uniform_log_snr", "uniform_angle", "karras", "random_ratio"}, optional
            Which grid. A semilinear equation has no log-SNR: its "karras" is a grid whose last step is about three
            times its first, the others but "random_ratio" are uniform.

        Returns
        -------
        numpy.ndarray
            Times of shape (steps + 1,).

        Raises
        ------
        ValueError
            If `kind` is unknown or the schedule does not admit it.
        """
        if kind not in GRIDS:
            msg = f"kind must be one of {GRIDS}, got {kind!r}"
            raise ValueError(msg)
        if isinstance(self.setting, oracles.SemilinearProblem):
            t0, t1 = self.setting.t0, self.setting.t1
            if kind == "random_ratio":
                return random_ratio_nodes(t0, t1, steps)
            c = np.arange(steps + 1) / steps
            return t0 + (t1 - t0) * (c if kind != "karras" else c * (1.0 + c) / 2.0)
        if kind == "random_ratio":
            coordinate = "log_snr" if "smooth-end" in self.tags else "angle"
            return random_ratio_grid(self.setting, steps, coordinate=coordinate)
        return getattr(grids, kind)(self.setting, steps)

    def path(self, t: Array) -> Path:
        """`paths.x0` on times `t`, `paths.velocity` if an end is singular, `paths.semilinear` for an equation."""
        if isinstance(self.setting, oracles.SemilinearProblem):
            constant = self.setting.rate_wave == 0.0
            rate = float(self.setting.rate_mean) if constant else None
            return paths.semilinear(t, rate, integral=None if constant else self.setting.integral)
        return (paths.x0 if "smooth-end" in self.tags else paths.velocity)(self.setting, t)


def problems(*tags: str) -> tuple[Problem, ...]:
    """Problems of the bank that carry all of `tags`; those on a line are solved by :eq:`convergence-quantile`.

    Parameters
    ----------
    *tags : str
        "gaussian": affine denoiser, solution in closed form. "multimodal": a mixture whose density has several modes
        where the path ends. "semilinear": y' = a(t) y + f(t, y). "stiff": f is steep, its Lipschitz constant times the
        length of the path exceeds 30. "smooth-end": alpha and sigma are positive at both ends; "noise-end": alpha = 0
        at the start; "clean-end": sigma = 0 at the end. "vacuous": solved by some broken samplers; a warning, kept out
        unless it is asked for. Also the name of a problem.

    Returns
    -------
    tuple of Problem
        In the order of the bank.

    Raises
    ------
    ValueError
        If a tag is unknown.

    Notes
    -----
    References are good to about 1e-14. The mixture in the plane, where quantiles do not help, is integrated by an
    adaptive method of order 8 in log(sigma/alpha) at relative tolerance 1e-13, and good to about 1e-12.

    Examples
    --------
    >>> from diffnum.convergence import problems
    >>> [problem.name for problem in problems("multimodal", "smooth-end")]
    ['mixture-ve', 'mixture-vp', 'mixture-flow', 'mixture-plane', 'mixture-stiff']
    >>> [problem.name for problem in problems("vacuous")]
    ['gaussian-unit']
    """
    known = {name for name, (own, _) in _BANK.items() for name in (name, *own)}
    for tag in tags:
        if tag not in known:
            msg = f"tags must be among {sorted(known)}, got {tag!r}"
            raise ValueError(msg)
    chosen = []
    for name, (own, _) in _BANK.items():
        wanted = set(tags) <= {name, *own} and ("vacuous" not in own or {"vacuous", name} & set(tags))
        if wanted:
            chosen.append(_problem(name))
    return tuple(chosen)


def _quantile_map(mixture: tuple[np.ndarray, ...], x: np.ndarray, start: Level, stop: Level) -> np.ndarray:
    """Flow of a mixture (weights, means, stds) on the line: it keeps the quantile of each point."""
    weights, means, stds = mixture

    def tails(v: float, level: Level) -> tuple[float, float]:
        z = (v - level.alpha * means) / np.hypot(level.alpha * stds, level.sigma)
        return float(weights @ ndtr(z)), float(weights @ ndtr(-z))

    radius = 40.0 * float(stop.alpha * (np.abs(means) + stds).max() + stop.sigma)
    ends = []
    for v in x:
        both = tails(v, start)
        side = int(both[1] < both[0])
        ends.append(brentq(lambda u, s=side, b=both: tails(u, stop)[s] - b[s], -radius, radius, xtol=1e-15))
    return np.asarray(ends)


def _integrated(oracle: oracles.Oracle, x: np.ndarray, start: Level, stop: Level) -> np.ndarray:
    """Flow of any oracle, in y = x/alpha as a function of log(sigma/alpha)."""

    def slope(log_rho: float, y: np.ndarray) -> np.ndarray:
        points = y.reshape(x.shape)
        return (points - oracle.denoise(points, Level(log_rho, 1.0, math.exp(log_rho)))).ravel()

    span = (-float(start.log_snr), -float(stop.log_snr))
    y = (x / start.alpha).ravel()
    return stop.alpha * solve_ivp(slope, span, y, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1].reshape(x.shape)


def ends_of(schedule: Schedule) -> tuple[Level, Level]:
    return schedule.level(schedule.t_noise), schedule.level(schedule.t_clean)


def _gaussian(schedule: Schedule, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    start, stop = ends_of(schedule)
    law = Moments(np.asarray(mean), np.asarray(std))
    before, after = (np.hypot(level.alpha * law.std, level.sigma) for level in (start, stop))
    z = np.linspace(-1.5, 1.5, 3)[:, None]
    return {
        "denoise": oracles.gaussian(law.mean, law.std).denoise,
        "x": start.alpha * law.mean + before * z,
        "reference": stop.alpha * law.mean + after * z,
        "setting": schedule,
        "law": law,
    }


def _line(
    schedule: Schedule, means: tuple[float, float], stds: tuple[float, float], *, ends: Sequence[float] = ()
) -> dict[str, Any]:
    """A mixture of two; with `ends` the starting points are found backward from there."""
    start, stop = ends_of(schedule)
    mixture = (np.asarray([0.3, 0.7]), np.asarray(means), np.asarray(stds))
    if ends:
        reference = np.asarray(ends)
        x = _quantile_map(mixture, reference, stop, start)
    else:
        x = start.alpha * (mixture[0] @ mixture[1]) + np.hypot(start.alpha * 1.3, start.sigma) * np.asarray(QUANTILES)
        reference = _quantile_map(mixture, x, start, stop)
    return {
        "denoise": oracles.mixture(mixture[0], mixture[1][:, None], mixture[2]).denoise,
        "x": x[:, None],
        "reference": reference[:, None],
        "setting": schedule,
    }


def _plane(schedule: Schedule) -> dict[str, Any]:
    start, stop = ends_of(schedule)
    oracle = oracles.mixture([0.5, 0.3, 0.2], [[1.5, 0.0], [-1.0, 1.0], [0.0, -1.5]], [0.5, 0.7, 0.4])
    x = np.asarray([[0.5, 0.4], [-1.2, 1.9], [0.3, -2.2], [2.5, 0.1]])
    return {"denoise": oracle.denoise, "x": x, "reference": _integrated(oracle, x, start, stop), "setting": schedule}


def _semilinear(rate: float, **options: Any) -> dict[str, Any]:
    equation = oracles.semilinear_problem(rate, **options)
    x, reference = (equation.solution(np.asarray(t))[None, :] for t in (equation.t0, equation.t1))
    return {"denoise": equation.denoise, "x": x, "reference": reference, "setting": equation}


def _ve() -> Schedule:
    return schedules.edm(sigma_min=0.1, sigma_max=2.0)


def _vp() -> Schedule:
    return schedules.truncate(schedules.cosine(), t_clean=0.05, t_noise=0.7)


def _flow() -> Schedule:
    return schedules.truncate(schedules.rectified_flow(), t_clean=0.08, t_noise=0.7)


_BANK: dict[str, tuple[tuple[str, ...], Callable[[], dict[str, Any]]]] = {
    "gaussian-ve": (("gaussian", "smooth-end"), lambda: _gaussian(_ve(), [0.8, -0.5, 0.3], [1.7, 0.6, 0.3])),
    "gaussian-vp": (("gaussian", "smooth-end"), lambda: _gaussian(_vp(), [0.8, -0.5, 0.3], [1.7, 0.6, 0.3])),
    "gaussian-unit": (("gaussian", "smooth-end", "vacuous"), lambda: _gaussian(_vp(), [0.0], [1.0])),
    "mixture-ve": (("multimodal", "smooth-end"), lambda: _line(_ve(), *MIXTURE)),
    "mixture-vp": (("multimodal", "smooth-end"), lambda: _line(_vp(), *MIXTURE)),
    "mixture-flow": (("multimodal", "smooth-end"), lambda: _line(_flow(), *MIXTURE)),
    "mixture-plane": (("multimodal", "smooth-end"), lambda: _plane(_ve())),
    "mixture-stiff": (
        ("multimodal", "smooth-end", "stiff"),
        lambda: _line(schedules.edm(sigma_min=0.1, sigma_max=10.0), (-3.0, 3.0), (0.4, 0.4), ends=(-1.6, 1.5, 3.1)),
    ),
    "mixture-ends": (("multimodal", "noise-end", "clean-end"), lambda: _line(schedules.rectified_flow(), *MIXTURE)),
    "semilinear-forward": (("semilinear",), lambda: _semilinear(-1.0, wave=2.0)),
    "semilinear-backward": (("semilinear",), lambda: _semilinear(-1.0, wave=2.0, t0=2.0, t1=0.0)),
    "semilinear-stiff": (("semilinear", "stiff"), lambda: _semilinear(-1e4, coupling=0.0)),
}

NAMES = tuple(_BANK)
"""Names of all problems."""


@functools.cache
def _problem(name: str) -> Problem:
    tags, build = _BANK[name]
    return Problem(name=name, tags=frozenset(tags), **build())
