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
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum._arguments import instance, number
from diffnum._backend import Array
from diffnum._moments import (
    Moments,
    Response,
    Sampler,
    impulse_response,
    table_moments,
    takes_rng,
    to_numpy,
)
from diffnum._problems import (
    GRIDS,
    NAMES,
    Problem,
    ends_of,
    problems,
    random_ratio_grid,
    random_ratio_nodes,
)
from diffnum.paths import Path
from diffnum.samplers import Sampler as Entry
from diffnum.schedules import Schedule
from diffnum.solvers import solve

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

SPREAD = 0.1
"""Local slopes of the asymptotic range lie within this of the last one, or within 5 % of it."""
ROUNDING = 100.0
"""Errors below this many roundings, times the square root of the number of steps, are noise."""
REPEATED = 1e-6
"""Relative difference of two runs from which they are taken to draw noise."""


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
            shown = "      -" if i == 0 else f"{_plain(slope):7.3f}"
            lines.append(f"{n:6d}  {error:10.3e} {shown}{'  *' if i in self.used else ''}")
        if self.used:
            lines.append(f"order {_plain(self.order):.3f}, fitted to the rows with *")
        elif self.order == math.inf:
            lines.append("exact: every error is rounding")
        else:
            missing = sum(not math.isfinite(error) for error in self.errors)
            unsettled = "the local slopes have not settled"
            lines.append(
                f"no order: {f'{missing} of {len(self.errors)} errors are not finite' if missing else unsettled}"
            )
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
    instance("run", run, Callable)
    counts = _step_counts(steps)
    target = to_numpy(reference, "reference")
    if not np.isfinite(target).all():
        msg = f"reference must be finite, got {target}"
        raise ValueError(msg)
    if floor is not None:
        number("floor", floor, least=0.0)
    signed, floors = [], []
    for n in counts:
        result = to_numpy(run(n), "run(n)")
        eps = float(np.finfo(result.dtype).eps)
        if result.size == 0 or not _fits(target.shape, result.shape):
            msg = f"run(n) must fit the shape of reference, {target.shape}, got {result.shape} for n = {n}"
            raise ValueError(msg)
        difference = np.asarray(result - target, dtype=np.float64)
        signed.append(_size(difference, norm))
        scale = abs(_size(np.broadcast_to(target, difference.shape), "max" if callable(norm) else norm))
        floors.append(ROUNDING * eps * math.sqrt(n) * scale if floor is None else float(floor))
    return _fit(counts, signed, floors)


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
        hold t, alpha and sigma of each step, noisy first. If it draws noise, see `weak`. An entry of
        `diffnum.samplers.SAMPLERS` is run with its own path and options.
    order : int
        The claim, >= 1.
    problem : Problem or str, optional
        What to solve, by name or as a record of `problems`; by default "mixture-vp", whose alpha and sigma both vary.
        A sampler in terms of sigma alone takes "mixture-ve", where alpha = 1 (and a wrong alpha goes unseen).
    path : callable, optional
        ``path(schedule, t)`` makes the path; `paths.x0` by default, or the equation's own.
    weak : bool, optional
        Measure mean and standard deviation of the result on Gaussian data instead, exactly. The sampler takes its noise
        from a parameter `rng`, which receives a callable: ``rng(row, like)`` returns normals of the shape of `like`;
        see `impulse_response`. The default problem is then "gaussian-vp".
    kinds : sequence of str, optional
        Grids to refine; see `Problem.grid`.
    steps : sequence of int, optional
        Numbers of steps; see `study`. Multiples of 8 suit the random ratios.
    tolerance : float, optional
        How far below the claim an order may be measured; 0.1, or 0.15 from order 4 on.
    strict : bool, optional
        Fail as well where the order is measured that far above the claim.
    asarray : callable, optional
        From NumPy to the sampler's own library, e.g. ``torch.asarray``. In float32 rounding hides all but low orders:
        JAX needs ``jax_enable_x64``.

    Returns
    -------
    dict of str to Study
        The measurement on each grid.

    Raises
    ------
    OrderError
        If the claim fails on any grid: the order is too low, or the slopes do not settle.
    TypeError
        If `sampler`, `path` or `asarray` is not callable, `problem` neither a name nor a Problem, or `sampler` has to
        have an `rng` and `weak` is False.
    ValueError
        If an argument is out of range: `order`, `kinds`, `steps`, `tolerance`, or the name of a problem.

    Notes
    -----
    A sampler in terms of sigma takes three lines to wrap, as the example shows. What is passed to `denoise` may hold
    numbers or arrays, one for each sample. The cause that a failure names is a guess from the slopes, from the dtype of
    the results and from whether noise was drawn.

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
    for name, function in (("sampler", sampler), ("path", path), ("asarray", asarray)):
        if function is not None or name == "sampler":
            instance(name, function, Callable)
    task = _task("gaussian-vp" if weak else "mixture-vp") if problem is None else _task(problem)
    if isinstance(kinds, str) or not isinstance(kinds, Sequence) or not kinds or not set(kinds) <= set(GRIDS):
        msg = f"kinds must be a sequence of one or more of {GRIDS}, got {kinds!r}"
        raise ValueError(msg)
    run = _weak_run if weak else _ode_run
    margin = (0.15 if order >= 4 else 0.1) if tolerance is None else number("tolerance", tolerance, least=0.0)
    if isinstance(sampler, Entry) and path is None:
        path = functools.partial(sampler.path, **sampler.options)
    watched = _watched(sampler)
    if not weak and takes_rng(watched.run, required=True):
        msg = f"sampler must not require rng where weak is False, got {watched.name}; weak=True checks what draws noise"
        raise TypeError(msg)
    runs = {kind: run(watched.run, task, kind, path, asarray or np.asarray) for kind in kinds}
    studies = {kind: study(one, steps, reference) for kind, (one, reference) in runs.items()}
    failed = {}
    for kind, measured in studies.items():
        low = not measured.order >= order - margin
        if low or (strict and measured.order > order + margin):
            failed[kind] = measured
    if failed:
        one, n = runs[next(iter(failed))][0], _step_counts(steps)[0]
        seen = _seen(watched, weak=weak, repeats=weak or _same(one(n), one(n)))
        claim = f"{watched.name} claims {'weak order' if weak else 'order'} {order}"
        cause = f"{seen}{_cause(order, studies, failed)}"
        raise OrderError(_report(claim, task, studies, failed, cause), studies)
    return studies


class _Watched(NamedTuple):
    """A sampler under its name, the dtypes of its results and the numbers of its draws."""

    name: str
    run: Sampler
    dtypes: set[str]
    draws: list[Any]


def _watched(sampler: Any) -> _Watched:
    dtypes: set[str] = set()
    draws: list[Any] = []
    inner: Any = sampler
    name = getattr(sampler, "__name__", repr(sampler))
    if isinstance(sampler, Entry):
        name, inner = sampler.title, _of_entry(sampler)

    @functools.wraps(inner)
    def run(denoise: Any, x: Array, path: Path, **options: Any) -> Array:
        source = options.get("rng")
        if source is not None:
            options["rng"] = lambda row, like: draws.append(row) or source(row, like)
        result: Any = inner(denoise, x, path, **options)
        dtypes.add(str(getattr(result, "dtype", "")).rpartition(".")[2])
        return result

    return _Watched(name, run, dtypes, draws)


def _of_entry(entry: Entry) -> Sampler:
    def run(denoise: Any, x: Array, path: Path, rng: Any = None) -> Array:
        return solve(denoise, x, entry.method(path, **entry.options), rng=rng)

    return run


def _same(first: Array, second: Array) -> bool:
    a, b = (np.asarray(to_numpy(part, "sampler's result"), dtype=np.float64) for part in (first, second))
    return bool(np.allclose(a, b, rtol=REPEATED, atol=0.0, equal_nan=True))


def _seen(watched: _Watched, *, weak: bool, repeats: bool) -> str:
    """What was seen of the runs themselves and comes before any guess from slopes."""
    if not repeats:
        return (
            "two runs differ, so it draws noise of its own: take it from rng and check with weak=True. If it must not, "
        )
    narrow = sorted(watched.dtypes & {"float32", "float16", "bfloat16"})
    found = ""
    if narrow:
        found += (
            f"the result is {narrow[0]}, whose rounding hides orders: compute in float64 (asarray=..., and under JAX "
            "jax_enable_x64). If it fails there too, "
        )
    if weak and not watched.draws:
        found += "it drew nothing from rng: it has no parameter rng, or takes its noise elsewhere. If it has no noise, "
    return found


def _task(problem: Problem | str) -> Problem:
    if not isinstance(problem, str):
        instance("problem", problem, Problem)
        return problem
    if problem not in NAMES:
        msg = f"problem must be a Problem or the name of one, {NAMES}, got {problem!r}"
        raise ValueError(msg)
    return problems(problem)[0]


def _plain(value: float) -> float:
    """Zero instead of minus zero, where three digits are printed."""
    return value if not abs(value) < 5e-4 else 0.0


def _step_counts(steps: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(steps) if isinstance(steps, Iterable) else ()
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in counts)
    if not whole or len(counts) < 3 or any(b <= a for a, b in itertools.pairwise(counts)):
        msg = f"steps must be at least three increasing integers >= 1, got {steps!r}"
        raise ValueError(msg)
    return tuple(int(n) for n in counts)


def _fits(target: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of shape `target` broadcasts to `shape`, without making it larger."""
    try:
        return np.broadcast_shapes(target, shape) == shape
    except ValueError:
        return False


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


def _ode_run(
    sampler: Sampler, task: Problem, kind: str, path: Any, asarray: Callable
) -> tuple[Callable[[int], Array], np.ndarray]:
    def run(n: int) -> Array:
        way = _path_of(task, task.grid(n, kind), path)
        if way.stochastic:
            msg = f"path must be an ODE path where weak is False, got {way.name}; weak=True checks what draws noise"
            raise ValueError(msg)
        result = sampler(task.denoise, asarray(task.x.copy()), way)
        shape = np.shape(to_numpy(result, "sampler's result"))
        if shape != task.x.shape:
            msg = f"sampler must return the shape of x, {task.x.shape}, got {shape}"
            raise ValueError(msg)
        return result

    return run, task.reference


def _weak_run(
    sampler: Sampler, task: Problem, kind: str, path: Any, asarray: Callable
) -> tuple[Callable[[int], np.ndarray], np.ndarray]:
    law = task.law
    if law is None or not isinstance(task.setting, Schedule):
        msg = f"problem must be a Gaussian one for weak orders, got {task.name}"
        raise ValueError(msg)
    noisy, clean = ends_of(task.setting)

    def run(n: int) -> np.ndarray:
        response = impulse_response(
            sampler, _path_of(task, task.grid(n, kind), path), mean=law.mean, std=law.std, asarray=asarray
        )
        return np.stack(response.moments(noisy.alpha * law.mean, np.hypot(noisy.alpha * law.std, noisy.sigma)))

    return run, np.stack([clean.alpha * law.mean, np.hypot(clean.alpha * law.std, clean.sigma)])


def _path_of(task: Problem, t: np.ndarray, path: Any) -> Path:
    return path(task.setting, t) if path is not None and isinstance(task.setting, Schedule) else task.path(t)


def _report(claim: str, task: Problem, studies: dict[str, Study], failed: dict[str, Study], cause: str) -> str:
    lines = [f"{claim}; on {task.name} it misses that on {len(failed)} of {len(studies)} grids."]
    for grid, measured in studies.items():
        lines += [f"{grid}: {'FAILS' if grid in failed else 'passes'}", str(measured)]
    return "\n".join([*lines, f"Likely cause: {cause}."])


def _cause(order: int, studies: dict[str, Study], failed: dict[str, Study]) -> str:
    finest = [measured.errors[-1] for measured in failed.values()]
    orders = [measured.order for measured in failed.values()]
    lasts = [measured.slopes[-1] for measured in failed.values()]
    if not any(math.isfinite(error) for measured in failed.values() for error in measured.errors):
        return (
            "no result is finite, whatever the number of steps: a division by 0 or a logarithm of 0 at the first level"
        )
    if not all(map(math.isfinite, finest)):
        return "the result is not finite (a division by 0 or a logarithm of 0 at an end of the grid, or instability)"
    if any(slope < -0.5 for slope in lasts):
        return (
            "the error grows as the grid is refined: a sign is wrong, the method is unstable, or it loses digits in "
            "its coefficients"
        )
    if all(abs(slope) < 0.3 for slope in lasts):
        return (
            "the error does not fall, so it solves another problem: a wrong sign or constant factor, a coefficient of "
            "the wrong end of the step (alpha_t for alpha_s), alpha taken for 1 (what works in sigma alone is checked "
            "with problem='mixture-ve', or 'gaussian-ve' if weak), rounded times, a last step cut short or a wrong "
            "noise variance"
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
