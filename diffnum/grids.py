"""Time grids: where a sampler puts its steps.

Conventions: `steps` steps have ``steps + 1`` nodes, listed noisy first; the first node is exactly ``schedule.t_noise``, the last
exactly ``schedule.t_clean`` (nothing is appended). Grids are float64 NumPy arrays. Derivation: :doc:`/grids`.
"""

from __future__ import annotations

import math
import operator
from numbers import Real

import numpy as np

from diffnum.schedules import Schedule

__all__ = ["uniform", "uniform_log_snr", "uniform_angle", "karras"]


def uniform(schedule: Schedule, steps: int, /) -> np.ndarray:
    """Nodes equally spaced in time."""
    return _finish(schedule, schedule.t_noise + _weights(steps) * (schedule.t_clean - schedule.t_noise), "uniform")


def uniform_log_snr(schedule: Schedule, steps: int, /) -> np.ndarray:
    """Nodes equally spaced in log-SNR."""
    noise, clean = _log_snr_ends(schedule)
    for end, value in (("t_noise", noise), ("t_clean", clean)):
        if math.isinf(value):
            msg = f"schedule must have a finite log-SNR at {end}, got {value} for {schedule.name}; use schedules.truncate"
            raise ValueError(msg)
    return _finish(schedule, schedule.time(noise + _weights(steps) * (clean - noise)), "uniform_log_snr")


def uniform_angle(schedule: Schedule, steps: int, /, *, sigma_data: float = 1.0) -> np.ndarray:
    """Nodes equally spaced in the angle atan2(sigma, alpha sigma_data)."""
    sigma_data = _positive("sigma_data", sigma_data)
    w = _weights(steps)[1:-1]
    t = np.asarray([schedule.t_noise, schedule.t_clean])
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    # The angle and its complement are interpolated apart, so that both are accurate where they are small.
    angle, complement = np.atan2(sigma, alpha * sigma_data), np.atan2(alpha * sigma_data, sigma)
    ratio = np.sin(complement[0] + w * (complement[1] - complement[0])) / np.sin(angle[0] + w * (angle[1] - angle[0]))
    return _finish(schedule, _with_ends(schedule.time(np.log(ratio / sigma_data))), "uniform_angle")


def karras(schedule: Schedule, steps: int, /, *, rho: float = 7.0) -> np.ndarray:
    """Nodes at which (sigma/alpha)^(1/rho) is equally spaced."""
    rho = _positive("rho", rho)
    noise, clean = _log_snr_ends(schedule)
    if math.isinf(noise):
        msg = f"schedule must have alpha > 0 at t_noise, got alpha = 0 for {schedule.name}; use schedules.truncate"
        raise ValueError(msg)
    first, last = math.exp(-noise / rho), math.exp(-clean / rho)
    root = first + _weights(steps)[1:-1] * (last - first)
    return _finish(schedule, _with_ends(schedule.time(-rho * np.log(root))), "karras")


def _weights(steps: int) -> np.ndarray:
    """0, 1/steps, ..., 1."""
    try:
        count = 0 if isinstance(steps, (bool, np.bool_)) else operator.index(steps)
    except TypeError:
        count = 0
    if count < 1:
        msg = f"steps must be an integer >= 1, got {steps!r}"
        raise ValueError(msg)
    return np.arange(count + 1) / count


def _log_snr_ends(schedule: Schedule) -> tuple[float, float]:
    return float(schedule.log_snr(schedule.t_noise)), float(schedule.log_snr(schedule.t_clean))


def _with_ends(inner: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], inner, [0.0]])


def _finish(schedule: Schedule, t: np.ndarray, name: str) -> np.ndarray:
    """`t` with exact ends, checked."""
    t[0], t[-1] = schedule.t_noise, schedule.t_clean
    if not np.all(np.diff(t) < 0):
        msg = f"steps must be few enough for distinct float64 nodes, got {t.size - 1} for {name} on {schedule.name}"
        raise ValueError(msg)
    return t


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        msg = f"{name} must be a finite number > 0, got {value!r}"
        raise ValueError(msg)
    return float(value)
