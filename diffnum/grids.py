"""Time grids: where a sampler puts its steps.

Conventions: `steps` steps have ``steps + 1`` nodes, listed noisy first. The first node is exactly ``schedule.t_noise``,
the last exactly ``schedule.t_clean``; nothing is appended. Grids are float64 NumPy arrays. Derivation: :doc:`/grids`.
"""

from __future__ import annotations

import math
import operator
from numbers import Real

import numpy as np

from diffnum._arguments import instance
from diffnum._optimal import optimal
from diffnum.schedules import Schedule

__all__ = ["karras", "optimal", "uniform", "uniform_angle", "uniform_log_snr"]


def uniform(schedule: Schedule, /, steps: int) -> np.ndarray:
    """Nodes equally spaced in time, :eq:`grids-uniform`.

    Parameters
    ----------
    schedule : Schedule
        The schedule whose interval is divided.
    steps : int
        Number of steps, >= 1.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If `steps` is not an integer >= 1, or so large that float64 cannot tell nodes apart.

    Notes
    -----
    What it equalises depends on what the schedule calls time: sigma for ``edm``, log-SNR for ``ve``.

    Examples
    --------
    >>> from diffnum import grids, schedules
    >>> print(grids.uniform(schedules.rectified_flow(), 4))
    [1.   0.75 0.5  0.25 0.  ]
    """
    instance("schedule", schedule, Schedule)
    return _checked(schedule, _between(schedule.t_noise, schedule.t_clean, _count(steps)), "uniform")


def uniform_log_snr(schedule: Schedule, /, steps: int) -> np.ndarray:
    """Nodes equally spaced in log-SNR, :eq:`grids-log-snr`.

    Parameters
    ----------
    schedule : Schedule
        A schedule with alpha > 0 and sigma > 0 at both ends; ``schedules.truncate`` makes one.
    steps : int
        Number of steps, >= 1.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If log-SNR is infinite at an end, if `steps` is not an integer >= 1, or so large that float64 cannot tell nodes
        apart.

    References
    ----------
    Lu et al., "DPM-Solver: a fast ODE solver for diffusion probabilistic model sampling in around 10 steps" (2022).

    Examples
    --------
    >>> from diffnum import grids, schedules
    >>> print(grids.uniform_log_snr(schedules.edm(sigma_min=0.01, sigma_max=100.0), 4).round(9))
    [1.e+02 1.e+01 1.e+00 1.e-01 1.e-02]
    """
    instance("schedule", schedule, Schedule)
    steps = _count(steps)
    noise, clean = _log_snr_ends(schedule)
    for end, value in (("t_noise", noise), ("t_clean", clean)):
        if math.isinf(value):
            msg = f"schedule must have finite log-SNR at {end}, got {value} for {schedule.name}; see schedules.truncate"
            raise ValueError(msg)
    return _checked(schedule, schedule.time(_between(noise, clean, steps)), "uniform_log_snr")


def uniform_angle(schedule: Schedule, /, steps: int, *, sigma_data: float = 1.0) -> np.ndarray:
    """Nodes equally spaced in the angle atan2(sigma, alpha sigma_data), :eq:`grids-angle`.

    Parameters
    ----------
    schedule : Schedule
        Any schedule; alpha = 0 and sigma = 0 at the ends are welcome.
    steps : int
        Number of steps, >= 1.
    sigma_data : float, optional
        Standard deviation of the data, > 0: the level sigma/alpha around which the nodes gather.

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

    Notes
    -----
    For a variance-preserving schedule and `sigma_data` 1 it is the angle of the pair (alpha, sigma) on the unit circle.
    For ``cosine()`` it is ``pi t/2``, and this grid is `uniform`.

    References
    ----------
    Salimans and Ho, "Progressive distillation for fast sampling of diffusion models" (2022), appendix D.

    Examples
    --------
    >>> from diffnum import grids, schedules
    >>> print(grids.uniform_angle(schedules.rectified_flow(), 4).round(6))
    [1.       0.707107 0.5      0.292893 0.      ]
    """
    instance("schedule", schedule, Schedule)
    steps, sigma_data = _count(steps), _positive("sigma_data", sigma_data)
    ends = schedule.level(np.asarray([schedule.t_noise, schedule.t_clean]))
    signal = ends.alpha * sigma_data
    # The angle and its complement are interpolated apart, so that each is accurate where it is small.
    angle, complement = (
        _between(float(noise), float(clean), steps)[1:-1]
        for noise, clean in (np.arctan2(ends.sigma, signal), np.arctan2(signal, ends.sigma))
    )
    log_snr = np.log(np.sin(complement) / (sigma_data * np.sin(angle)))
    return _checked(schedule, _with_ends(schedule.time(log_snr)), "uniform_angle")


def karras(schedule: Schedule, /, steps: int, *, rho: float = 7.0) -> np.ndarray:
    """Nodes at which (sigma/alpha)^(1/rho) is equally spaced, :eq:`grids-karras`.

    Parameters
    ----------
    schedule : Schedule
        A schedule with alpha > 0 at `t_noise`; sigma = 0 at `t_clean` is allowed.
    steps : int
        Number of steps, >= 1.
    rho : float, optional
        The exponent, > 0: 1 is uniform in sigma/alpha; the larger, the closer to uniform in log-SNR.

    Returns
    -------
    numpy.ndarray
        Times of shape (steps + 1,), strictly decreasing from `t_noise` to `t_clean`.

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If alpha is 0 at `t_noise`, if `rho` is not a finite number > 0, if `steps` is not an integer >= 1, or so large
        that float64 cannot tell nodes apart.

    Notes
    -----
    The published grid of N steps has N nodes from sigma_max to sigma_min and appends sigma = 0. Here the last of the
    ``steps + 1`` nodes is `t_clean` itself. ``np.append(karras(edm(), N - 1), 0.0)`` is the published one.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), equation 5.

    Examples
    --------
    >>> from diffnum import grids, schedules
    >>> print(grids.karras(schedules.edm(), 4).round(4))
    [8.00000e+01 1.75278e+01 2.51520e+00 1.69800e-01 2.00000e-03]
    """
    instance("schedule", schedule, Schedule)
    steps, rho = _count(steps), _positive("rho", rho)
    noise, clean = _log_snr_ends(schedule)
    if math.isinf(noise):
        msg = f"schedule must have alpha > 0 at t_noise, got alpha = 0 for {schedule.name}; see schedules.truncate"
        raise ValueError(msg)
    # In units of the largest, since exp(-noise / rho) may overflow.
    root = _between(1.0, math.exp((noise - clean) / rho), steps)[1:-1]
    return _checked(schedule, _with_ends(schedule.time(noise - rho * np.log(root))), "karras")


def _count(steps: int) -> int:
    try:
        count = 0 if isinstance(steps, bool | np.bool_) else operator.index(steps)
    except TypeError:
        count = 0
    if count < 1:
        msg = f"steps must be an integer >= 1, got {steps!r}"
        raise ValueError(msg)
    return count


def _between(first: float, last: float, steps: int) -> np.ndarray:
    """Equally spaced from `first` to `last`, as a sum of two parts: no rounding on the way to a small end."""
    i = np.arange(steps + 1)
    return first * ((steps - i) / steps) + last * (i / steps)


def _log_snr_ends(schedule: Schedule) -> tuple[float, float]:
    return float(schedule.log_snr(schedule.t_noise)), float(schedule.log_snr(schedule.t_clean))


def _with_ends(inner: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], inner, [0.0]])


def _checked(schedule: Schedule, t: np.ndarray, name: str) -> np.ndarray:
    """`t` with the ends exact, after a check that it decreases."""
    t[0], t[-1] = schedule.t_noise, schedule.t_clean
    if not np.all(np.diff(t) < 0):
        msg = f"steps must leave nodes that float64 can tell apart, got {t.size - 1} for {name} on {schedule.name}"
        raise ValueError(msg)
    return t


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        msg = f"{name} must be a finite number > 0, got {value!r}"
        raise ValueError(msg)
    return float(value)
