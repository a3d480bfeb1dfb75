"""One sampler for every schedule and every data set: path, method and grid chosen once; see :doc:`/solvers`.

The path is :eq:`paths-velocity`, the method a predictor-corrector of one evaluation a step, the grid one of a family
that leads from the uniform angle towards that of Karras. The only number a user gives is the scale of the data.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from diffnum._arguments import instance, number
from diffnum._backend import Array
from diffnum._runner import Denoiser, solve
from diffnum._tables import Method, Table, assemble
from diffnum.paths import velocity
from diffnum.schedules import Schedule

__all__ = ["default", "default_grid", "default_table"]

EXPONENT = 1.25
"""k of :eq:`solvers-default-grid`: 1 is uniform in the angle, more puts more nodes at both ends."""
CENTRE = math.sqrt(0.5)
"""c of :eq:`solvers-default-grid`: the level around which the nodes gather, over sigma_data."""

FIRST, LAST = 3, 2
"""Steps at the beginning and at the end whose predictor takes two values at most: there the third does harm."""


def default_grid(schedule: Schedule, /, steps: int, *, sigma_data: float = 1.0) -> np.ndarray:
    """Nodes of the default sampler: :eq:`solvers-default-grid`.

    Parameters
    ----------
    schedule : Schedule
        Any schedule; alpha = 0 and sigma = 0 at the ends are welcome.
    steps : int
        Number of steps, >= 1.
    sigma_data : float, optional
        Standard deviation of the data, > 0.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If `sigma_data` is not a finite number > 0, if `steps` is not an integer >= 1, or so large that float64 cannot
        tell nodes apart.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.solvers import default_grid
    >>> print(default_grid(schedules.edm(sigma_min=0.0), 4).round(4))
    [80.      2.0053  0.6873  0.2303  0.    ]
    """
    instance("schedule", schedule, Schedule)
    scale = CENTRE * number("sigma_data", sigma_data, above=0.0)
    steps = _count(steps)
    # the uniform angle, of a schedule whose log-SNR is 1/k of this one's
    ends = -schedule.log_snr(np.asarray([schedule.t_noise, schedule.t_clean])) - math.log(scale)
    share = np.arange(steps + 1) / steps
    # the angle and its complement are interpolated apart, so that each is accurate where it is small
    angle, complement = (
        (noise * (1.0 - share) + clean * share)[1:-1]
        for noise, clean in (np.arctan(np.exp(sign * ends / EXPONENT)) for sign in (1.0, -1.0))
    )
    log_snr = EXPONENT * np.log(np.sin(complement) / np.sin(angle)) - math.log(scale)
    t = np.concatenate([[schedule.t_noise], schedule.time(log_snr), [schedule.t_clean]])
    if not np.all(np.diff(t) < 0.0):
        msg = f"steps must leave nodes that float64 can tell apart, got {steps} on {schedule.name}"
        raise ValueError(msg)
    return t


def default_table(schedule: Schedule, steps: int, /, *, sigma_data: float = 1.0, centre: Array | float = 0.0) -> Table:
    """Table of the default sampler: :eq:`solvers-default`.

    Parameters
    ----------
    schedule : Schedule
        Any schedule; alpha = 0 and sigma = 0 at the ends are welcome.
    steps : int
        Number of steps and of evaluations, >= 1.
    sigma_data : float, optional
        Standard deviation of the data over all coordinates, > 0; half or twice of it costs accuracy, not order.
    centre : float or array broadcastable to x, optional
        Mean of the data, if it is known.

    Returns
    -------
    Table
        Coefficients in float64 NumPy.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        As `default_grid` does, or if `centre` is not finite.

    Notes
    -----
    Order 3 on the ODE, for a corrector lifts a predictor of order 2 to it; on data N(centre, sigma_data^2 I) exact for
    every number of steps.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.solvers import default_table
    >>> default_table(schedules.rectified_flow(), 10).evaluations
    10
    """
    nodes = default_grid(schedule, steps, sigma_data=sigma_data)
    path = velocity(schedule, nodes, sigma_data=sigma_data, centre=centre)
    return assemble(path, [_method(n, path.steps) for n in range(path.steps)])


def default(
    denoise: Denoiser,
    x: Array,
    schedule: Schedule,
    steps: int,
    /,
    *,
    sigma_data: float = 1.0,
    centre: Array | float = 0.0,
    trajectory: bool = False,
    progress: Any = None,
) -> Array:
    """Sample with the one sampler that needs no choices: :eq:`solvers-default`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape of `x`.
    x : array
        State at the schedule's noisy end, ``schedule.t_noise``: pure noise is ``schedule.prior_std`` times normals.
    schedule : Schedule
        Any schedule; the result belongs to ``schedule.t_clean``.
    steps : int
        Number of evaluations, >= 1.
    sigma_data : float, optional
        Standard deviation of the data over all coordinates, > 0.
    centre : float or array broadcastable to x, optional
        Mean of the data, if it is known.
    trajectory : bool, optional
        Return all ``steps + 1`` states.
    progress : callable, optional
        Wraps the list of rows; not under JAX.

    Returns
    -------
    array
        Sample, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `default_table` and `solve` do.

    Notes
    -----
    `steps` evaluations, memory of six states. Order 3. A table that serves many calls comes from `default_table`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles, schedules
    >>> from diffnum.solvers import default
    >>> data = oracles.gaussian(np.array([2.0]), np.array([0.5]))
    >>> edm = schedules.edm(sigma_min=0.0, sigma_max=10.0)
    >>> default(data.denoise, np.array([[2.0]]), edm, 3, sigma_data=0.5, centre=2.0).round(12).tolist()
    [[2.0]]
    """
    table = default_table(schedule, steps, sigma_data=sigma_data, centre=centre)
    return solve(denoise, x, table, trajectory=trajectory, progress=progress)


def _method(step: int, steps: int) -> Method:
    """Predictor through two or three values, corrector through five, of those that there are."""
    predicted = min(step + 1, 2 if step < FIRST or step >= steps - LAST else 3)
    corrected = min(step + 1, 5)
    return Method(
        f"default, {predicted} values predict, {corrected} correct",
        predicted,
        (0.0,),
        (tuple(-j for j in range(predicted)),),
        corrector=tuple(-j for j in range(corrected)) if step else None,
    )


def _count(steps: Any) -> int:
    try:
        count = 0 if isinstance(steps, bool | np.bool_) else operator.index(steps)
    except TypeError:
        count = 0
    if count < 1:
        msg = f"steps must be an integer >= 1, got {steps!r}"
        raise ValueError(msg)
    return count
