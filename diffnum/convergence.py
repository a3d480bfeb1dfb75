"""Measured orders, exact moments, and a check of samplers that were written elsewhere.

`study` measures errors and fits an order over the asymptotic range only. `table_moments` and `impulse_response` give
the mean and the variance of a sampler's output on Gaussian data exactly, without a random number. `problems` is a bank
of tasks with known solutions; `check_sampler` runs a sampler on it and raises `OrderError` when it misses its order.

Conventions. A run of n steps has error e_n; a method of order p has e_n = C n^-p + higher powers of 1/n. Errors are
measured in the units of the state, slopes are dimensionless and positive where the error falls. The derivations, and
the ways in which a measured order lies, are in :doc:`/convergence`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from diffnum._backend import Array, concrete

__all__ = ["Study", "study"]

SPREAD = 0.1
"""Local slopes of the asymptotic range lie within this of the last one, or within 5 % of it."""
ROUNDING = 100.0
"""Errors below this many roundings, times the square root of the number of steps, are noise."""


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
        scale = abs(_size(np.broadcast_to(target, difference.shape).astype(np.float64), norm))
        floors.append(ROUNDING * eps * math.sqrt(n) * scale if floor is None else float(floor))
    return _fit(counts, signed, floors)


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
        return float(norm(difference))
    if difference.size == 1:
        return float(difference.reshape(()))
    if norm == "rms":
        return float(np.sqrt(np.mean(difference**2)))
    if norm == "max":
        return float(np.max(np.abs(difference)))
    msg = f"norm must be 'rms', 'max' or a callable, got {norm!r}"
    raise ValueError(msg)


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
