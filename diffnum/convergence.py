"""Measured orders, exact moments, and a check of samplers that were written elsewhere.

`study` measures errors and fits an order over the asymptotic range only. `table_moments` and `impulse_response` give
the mean and the variance of a sampler's output on Gaussian data exactly, without a random number. `problems` is a bank
of tasks with known solutions; `check_sampler` runs a sampler on it and raises `OrderError` when it misses its order.

Conventions. A run of n steps has error e_n; a method of order p has e_n = C n^-p + higher powers of 1/n. Errors are
measured in the units of the state, slopes are dimensionless and positive where the error falls. The derivations, and
the ways in which a measured order lies, are in :doc:`/convergence`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import ndtr

from diffnum import _backend, grids, oracles, paths, schedules
from diffnum._backend import Array, concrete, namespace
from diffnum._tables import Table
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule

__all__ = [
    "Moments",
    "OrderError",
    "Problem",
    "Response",
    "Study",
    "check_sampler",
    "impulse_response",
    "problems",
    "random_ratio_grid",
    "random_ratio_nodes",
    "study",
    "table_moments",
]

Sampler = Callable[..., Array]
GRIDS = ("uniform", "uniform_log_snr", "uniform_angle", "karras", "random_ratio")
SPREAD = 0.1
"""Local slopes of the asymptotic range lie within this of the last one, or within 5 % of it."""
ROUNDING = 100.0
"""Errors below this many roundings, times the square root of the number of steps, are noise."""
PERIOD = 8
"""Steps in the pattern of a random-ratio grid."""
LARGEST_RATIO = 4.0
"""Its longest step over its shortest."""
AFFINE = 1e5
"""Roundings, relative to the sum of its gains, by which a sampler may deviate from an affine map."""
MIXTURE = ((-1.0, 1.5), (0.5, 0.7))
"""Means and standard deviations of the mixture on the line; the weights are 0.3 and 0.7."""
QUANTILES = (-1.3, -0.4, 0.2, 0.9)
"""Where its paths start, in standard deviations."""


@dataclass(frozen=True)
class Study:
    """Errors at several numbers of steps and the order fitted to them, :eq:`convergence-fit`.

    Printed, it is a table of steps, errors and local slopes, in which the points that were used are marked.

    Attributes
    ----------
    steps : tuple of int
        Numbers of steps, increasing.
    errors : tuple of float
        Error of each run, >= 0.
    order : float
        Fitted slope; nan where the local slopes have not settled, inf where all errors are at rounding level.
    used : tuple of int
        Indices of the points in the asymptotic range; empty where there is none.
    """

    steps: tuple[int, ...]
    errors: tuple[float, ...]
    order: float
    used: tuple[int, ...]

    @property
    def slopes(self) -> tuple[float, ...]:
        """Local slopes of :eq:`convergence-slope`, one for each two neighbours."""
        return _slopes(self.steps, self.errors)

    @property
    def constant(self) -> float:
        """Constant C of the fitted line ``C n^-order`` of :eq:`convergence-fit`; nan without a finite order."""
        if not self.used:
            return math.nan
        logs = [math.log(self.errors[i]) + self.order * math.log(self.steps[i]) for i in self.used]
        return math.exp(sum(logs) / len(logs))

    def __str__(self) -> str:
        slopes = [math.nan, *self.slopes]
        lines = [" steps       error   slope"]
        for i, (n, error, slope) in enumerate(zip(self.steps, self.errors, slopes, strict=True)):
            shown = "      -" if i == 0 else f"{slope:7.3f}"
            lines.append(f"{n:6d}  {error:10.3e} {shown}{'  *' if i in self.used else ''}")
        fitted = f"order {self.order:.3f}, fitted to the rows with *"
        why = {math.inf: "exact: every error is rounding", math.nan: "no order: the local slopes have not settled"}
        lines.append(fitted if self.used else why[math.inf if self.order == math.inf else math.nan])
        return "\n".join(lines)


def study(
    run: Callable[[int], Array],
    steps: Sequence[int],
    reference: Array,
    *,
    norm: Literal["rms", "max"] | Callable[[np.ndarray], float] = "rms",
    floor: float | None = None,
) -> Study:
    """Errors of ``run(n)`` and the order fitted to them over the asymptotic range: :eq:`convergence-fit`.

    Parameters
    ----------
    run : callable
        ``run(n)`` returns the result of n steps, an array or a number.
    steps : sequence of int
        Numbers of steps, at least 3, increasing; doubling is customary.
    reference : array
        What the results converge to; broadcastable to them.
    norm : {"rms", "max"} or callable, optional
        Size of the difference ``run(n) - reference``: root of the mean square, largest entry, or a function of that
        array in NumPy. Where it has a sign (a callable, or a result of one number) the range starts after the last
        change of sign.
    floor : float, optional
        Errors up to this are noise and not used; by default :eq:`convergence-floor`. Give the accuracy of the reference
        where it is worse than that.

    Returns
    -------
    Study
        Steps, errors, order and which points it was fitted to.

    Raises
    ------
    ValueError
        If `steps` are not at least three increasing integers >= 1, `norm` is unknown, or a shape does not fit.

    Notes
    -----
    The asymptotic range :eq:`convergence-range` ends at the finest run above the floor and reaches back as long as the
    local slopes stay within 0.1 (or 5 %) of the last one and the error keeps its sign. It needs three points; without
    them the order is nan. A floor that is not rounding (a truncated end, integer time steps) is an error of the
    sampler: it is not cut off, and the order comes out as 0.

    Examples
    --------
    >>> from diffnum.convergence import study
    >>> print(study(lambda n: (1.0 + 1.0 / n) ** n, [10, 20, 40, 80, 160], 2.718281828459045))
     steps       error   slope
        10   1.245e-01       -  *
        20   6.498e-02   0.938  *
        40   3.322e-02   0.968  *
        80   1.680e-02   0.984  *
       160   8.446e-03   0.992  *
    order 0.972, fitted to the rows with *
    """
    counts = _step_counts(steps)
    target = _numpy(reference, "reference")
    signed, floors = [], []
    for n in counts:
        result = _numpy(run(n), "run(n)")
        eps = float(np.finfo(result.dtype).eps)
        try:
            difference = np.asarray(result - target, dtype=np.float64)
        except ValueError:
            msg = f"run(n) must fit the shape of reference, {target.shape}, got {result.shape} for n = {n}"
            raise ValueError(msg) from None
        signed.append(_size(difference, norm))
        scale = abs(_size(np.broadcast_to(target, difference.shape), "max" if callable(norm) else norm))
        floors.append(ROUNDING * eps * math.sqrt(n) * scale if floor is None else float(floor))
    return _fit(counts, signed, floors)


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
        If `table` is not a Table.

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
    if not isinstance(table, Table):
        msg = f"table must be a Table, got {type(table).__name__}"
        raise TypeError(msg)
    xp = namespace(table.carry, mean, std, start_mean, start_std)
    like = table.carry if namespace(table.carry) is xp else xp.asarray(concrete(table.carry))

    def array(value: Any) -> Array:
        return _backend.convert(value, like, like.dtype)

    mean, std = xp.broadcast_arrays(array(mean), array(std))
    first = Level(*(array(part)[0, ...] for part in table.node))
    centre = first.alpha * mean if start_mean is None else array(start_mean) + 0.0 * mean
    spread = xp.hypot(first.alpha * std, first.sigma) if start_std is None else array(start_std) + 0.0 * std
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
    ValueError
        If the sampler is not affine on these data, mixes components or the samples of a batch, or draws a number of
        noises that changes from run to run.

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
    mean, std = np.broadcast_arrays(*np.atleast_1d(np.asarray(mean, dtype=float), np.asarray(std, dtype=float)))
    denoise = oracles.gaussian(mean, std).denoise
    convert = asarray or np.asarray
    takes_rng = _takes_rng(sampler)

    def run(inputs: np.ndarray) -> tuple[np.ndarray, int]:
        drawn = itertools.count(1)

        def rng(row: Any, like: Array) -> Array:  # noqa: ARG001
            j = next(drawn)
            return convert(inputs[j] if j < len(inputs) else np.zeros_like(inputs[0]))

        x = convert(inputs[0])
        end = _numpy(sampler(denoise, x, path, rng=rng) if takes_rng else sampler(denoise, x, path), "sampler's result")
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
            "sampler must be affine on Gaussian data, treat components and samples alike and always draw as often; "
            f"got a deviation of {np.max(deviation):.1e} where outputs are of size {np.max(scale):.1e}, and {m}, "
            f"{second} and {third} draws"
        )
        raise ValueError(msg)
    return response


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
    if not (math.isfinite(start) and math.isfinite(stop)) or start == stop:
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


class OrderError(AssertionError):
    """A sampler misses :eq:`convergence-claim`; the message shows errors, slopes and a likely cause.

    Parameters
    ----------
    message : str
        The report.
    studies : dict of str to Study
        The measurements by grid.
    """

    def __init__(self, message: str, studies: dict[str, Study]) -> None:
        super().__init__(message)
        self.studies = studies


def check_sampler(
    sampler: Sampler,
    /,
    *,
    order: int,
    problem: Problem | str | None = None,
    path: Callable[[Schedule, np.ndarray], Path] | None = None,
    weak: bool = False,
    kinds: Sequence[str] = ("uniform_log_snr", "karras", "random_ratio"),
    steps: Sequence[int] = (24, 48, 96, 192, 384),
    tolerance: float | None = None,
    strict: bool = False,
    asarray: Callable[[np.ndarray], Array] | None = None,
) -> dict[str, Study]:
    """Measure the order of a sampler, of any origin, and raise unless it is what it claims: :eq:`convergence-claim`.

    Parameters
    ----------
    sampler : callable
        ``sampler(denoise, x, path) -> x_0``. It may use the levels of the path only: ``path.start`` and ``path.stop``
        hold t, alpha and sigma of each step, noisy first.
    order : int
        The claim, >= 1.
    problem : Problem or str, optional
        What to solve, by name or as a record of `problems`; by default "mixture-vp", whose alpha and sigma both vary.
        A sampler in terms of sigma alone takes "mixture-ve", where alpha = 1 (and a wrong alpha goes unseen).
    path : callable, optional
        ``path(schedule, t)`` makes the path; `paths.x0` by default, or the equation's own.
    weak : bool, optional
        Measure mean and standard deviation of the result on Gaussian data instead, exactly, with the noise taken from
        `rng`; see `impulse_response`. The default problem is then "gaussian-vp".
    kinds : sequence of str, optional
        Grids to refine; see `Problem.grid`.
    steps : sequence of int, optional
        Numbers of steps; see `study`. Multiples of 8 suit the random ratios.
    tolerance : float, optional
        How far below the claim an order may be measured; 0.1, or 0.15 from order 4 on.
    strict : bool, optional
        Fail as well where the order is measured that far above the claim.
    asarray : callable, optional
        From NumPy to the sampler's own library, e.g. ``torch.asarray``.

    Returns
    -------
    dict of str to Study
        The measurement on each grid.

    Raises
    ------
    OrderError
        If the claim fails on any grid: the order is too low, or the slopes do not settle.
    ValueError
        If an argument is out of range.

    Notes
    -----
    A sampler in terms of sigma takes three lines to wrap, as the example shows. What is passed to `denoise` may hold
    numbers or arrays, one for each sample.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.convergence import check_sampler
    >>> from diffnum.schedules import Level
    >>> def euler(model, x, sigmas):  # someone's sampler
    ...     for sigma, following in zip(sigmas[:-1], sigmas[1:]):
    ...         x = x + (following - sigma) * (x - model(x, sigma)) / sigma
    ...     return x
    >>> def wrapped(denoise, x, path):
    ...     sigmas = np.append(path.start.sigma, path.last.sigma)
    ...     return euler(lambda x, sigma: denoise(x, Level(sigma, 1.0, sigma)), x, sigmas)
    >>> studies = check_sampler(wrapped, order=1, problem="mixture-ve")
    >>> {grid: round(study.order, 1) for grid, study in studies.items()}
    {'uniform_log_snr': 1.0, 'karras': 1.0, 'random_ratio': 1.0}
    """
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 1:
        msg = f"order must be an integer >= 1, got {order!r}"
        raise ValueError(msg)
    if problem is None:
        problem = "gaussian-vp" if weak else "mixture-vp"
    task = problems(problem)[0] if isinstance(problem, str) else problem
    run = _weak_run if weak else _ode_run
    margin = (0.15 if order >= 4 else 0.1) if tolerance is None else tolerance
    studies = {}
    for kind in kinds:
        one, reference = run(sampler, task, kind, path, asarray or np.asarray)
        studies[kind] = study(one, steps, reference)
    failed = {}
    for kind, measured in studies.items():
        low = not measured.order >= order - margin
        if low or (strict and measured.order > order + margin):
            failed[kind] = measured
    if failed:
        raise OrderError(_report(sampler, order, task, studies, failed, weak=weak), studies)
    return studies


def _step_counts(steps: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(steps)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in counts)
    if not whole or len(counts) < 3 or any(b <= a for a, b in itertools.pairwise(counts)):
        msg = f"steps must be at least three increasing integers >= 1, got {steps!r}"
        raise ValueError(msg)
    return tuple(int(n) for n in counts)


def _numpy(value: Any, name: str) -> np.ndarray:
    known = concrete(value)
    if known is None or known.dtype.kind not in "fiu":
        msg = f"{name} must be an array of real numbers whose values are known, got {type(value).__name__}"
        raise ValueError(msg)
    return known if known.dtype.kind == "f" else known.astype(np.float64)


def _size(difference: np.ndarray, norm: Any) -> float:
    if callable(norm):
        size: Any = norm(difference)
        return float(size)
    if norm not in {"rms", "max"}:
        msg = f"norm must be 'rms', 'max' or a callable, got {norm!r}"
        raise ValueError(msg)
    if difference.size == 1:
        return float(np.sum(difference))
    return float(np.sqrt(np.mean(difference**2)) if norm == "rms" else np.max(np.abs(difference)))


def _slopes(steps: Sequence[int], errors: Sequence[float]) -> tuple[float, ...]:
    return tuple(
        math.log(a / b) / math.log(m / n) if a > 0.0 and b > 0.0 and math.isfinite(a + b) else math.nan
        for a, b, n, m in zip(errors, errors[1:], steps, steps[1:], strict=False)
    )


def _fit(steps: tuple[int, ...], signed: Sequence[float], floors: Sequence[float]) -> Study:
    """The asymptotic range and the least-squares slope over it."""
    errors = tuple(abs(e) for e in signed)
    above = [i for i, (e, floor) in enumerate(zip(errors, floors, strict=True)) if not e <= floor]
    if not above:
        return Study(steps, errors, math.inf, ())
    slopes, last = _slopes(steps, errors), above[-1]
    used = [last]
    for i in range(last - 1, -1, -1):
        spread = max(SPREAD, SPREAD / 2.0 * abs(slopes[last - 1]))
        same_sign = (signed[i] > 0.0) == (signed[last] > 0.0)
        if i not in above or not same_sign or not abs(slopes[i] - slopes[last - 1]) <= spread:
            break
        used.insert(0, i)
    if len(used) < 3:
        return Study(steps, errors, math.nan, ())
    order = -np.polyfit(np.log([steps[i] for i in used]), np.log([errors[i] for i in used]), 1)[0]
    return Study(steps, errors, float(order), tuple(used))


def _affine_rows(
    xp: Any, table: Table, array: Callable[[Any], Array], mean: Array, std: Array
) -> tuple[Array, Array, Array]:
    """Matrix and offset of each row on (state, registers), for each direction of the data; noise of each row."""
    rows, count = table.weights.shape
    over = (rows, *(1,) * mean.ndim)
    alpha, sigma = (xp.reshape(array(part), over) for part in (table.level.alpha, table.level.sigma))
    total = xp.hypot(alpha * std, sigma)
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


def _takes_rng(sampler: Sampler) -> bool:
    parameters = inspect.signature(sampler).parameters.values()
    return any(p.name == "rng" or p.kind is p.VAR_KEYWORD for p in parameters)


def _ode_run(
    sampler: Sampler, task: Problem, kind: str, path: Any, asarray: Callable
) -> tuple[Callable[[int], Array], np.ndarray]:
    def run(n: int) -> Array:
        return sampler(task.denoise, asarray(task.x), _path_of(task, task.grid(n, kind), path))

    return run, task.reference


def _weak_run(
    sampler: Sampler, task: Problem, kind: str, path: Any, asarray: Callable
) -> tuple[Callable[[int], np.ndarray], np.ndarray]:
    law = task.law
    if law is None or not isinstance(task.setting, Schedule):
        msg = f"problem must be a Gaussian one for weak orders, got {task.name}"
        raise ValueError(msg)
    noisy, clean = _ends(task.setting)

    def run(n: int) -> np.ndarray:
        response = impulse_response(
            sampler, _path_of(task, task.grid(n, kind), path), mean=law.mean, std=law.std, asarray=asarray
        )
        return np.stack(response.moments(noisy.alpha * law.mean, np.hypot(noisy.alpha * law.std, noisy.sigma)))

    return run, np.stack([clean.alpha * law.mean, np.hypot(clean.alpha * law.std, clean.sigma)])


def _path_of(task: Problem, t: np.ndarray, path: Any) -> Path:
    return path(task.setting, t) if path is not None and isinstance(task.setting, Schedule) else task.path(t)


def _report(
    sampler: Sampler, order: int, task: Problem, studies: dict[str, Study], failed: dict[str, Study], *, weak: bool
) -> str:
    name = getattr(sampler, "__name__", repr(sampler))
    kind = "weak order" if weak else "order"
    lines = [f"{name} claims {kind} {order}; on {task.name} it misses that on {len(failed)} of {len(studies)} grids."]
    for grid, measured in studies.items():
        lines += [f"{grid}: {'FAILS' if grid in failed else 'passes'}", str(measured)]
    return "\n".join([*lines, f"Likely cause: {_cause(order, studies, failed)}."])


def _cause(order: int, studies: dict[str, Study], failed: dict[str, Study]) -> str:
    finest = [measured.errors[-1] for measured in failed.values()]
    orders = [measured.order for measured in failed.values()]
    lasts = [measured.slopes[-1] for measured in failed.values()]
    if not all(map(math.isfinite, finest)):
        return "the result is not finite (a division by 0 or a logarithm of 0 at an end of the grid, or instability)"
    if any(slope < -0.5 for slope in lasts):
        return "the error grows as the grid is refined: the method is unstable, or loses digits in its coefficients"
    if all(abs(slope) < 0.3 for slope in lasts):
        return (
            "the error does not fall, so it solves another problem: a coefficient of the wrong end of the step "
            "(alpha_t for alpha_s), alpha taken for 1, rounded times, a last step cut short or a wrong noise variance"
        )
    if any(math.isnan(o) for o in orders) and not all(slope < order - 0.25 for slope in lasts):
        return "the slopes have not settled: take more steps, or the method depends on the grid in an irregular way"
    if all(o > order for o in orders):
        return "the order is higher than claimed: state the higher one, or test on a problem that is less special"
    if set(failed) != set(studies) and "random_ratio" in failed:
        return (
            "it is right where the steps have equal or slowly changing lengths only: its weights ignore the ratio of "
            "neighbouring steps, or take a wrong one (as fixed Adams-Bashforth weights do)"
        )
    if order >= 3 and all(slope > 1.5 for slope in lasts):
        return (
            "order 2 and no more: a start by lower orders (1, 2, 3, ...), a divided difference that is not centred or "
            "lacks a factor, or weights that ignore the ratio of neighbouring steps"
        )
    return (
        "order 1 where more is claimed: history that is not used or of the wrong step, a rate frozen at one end of "
        "the step, or weights that do not integrate linear functions exactly"
    )


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


def _ends(schedule: Schedule) -> tuple[Level, Level]:
    return schedule.level(schedule.t_noise), schedule.level(schedule.t_clean)


def _gaussian(schedule: Schedule, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    start, stop = _ends(schedule)
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
    start, stop = _ends(schedule)
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
    start, stop = _ends(schedule)
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


@functools.cache
def _problem(name: str) -> Problem:
    tags, build = _BANK[name]
    return Problem(name=name, tags=frozenset(tags), **build())
