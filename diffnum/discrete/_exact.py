"""Bounds and laws of all sequences of a tiny vocabulary, by enumeration: no Monte Carlo. See :doc:`/discrete/elbo`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance
from diffnum.discrete._oracles import all_states
from diffnum.discrete._terms import HEADS, Bound, prior, rate_divergence, reconstruction, step_divergence
from diffnum.kernels._families import Chain, Interpolation, Walk
from diffnum.kernels._keep import KeepSchedule
from diffnum.kernels._tokens import whole
from diffnum.kernels.categorical import mixture_posterior, to_leave_one_out, transition

__all__ = ["exact_bound", "exact_law"]

Kernel = Interpolation | Walk | Chain
Denoiser = Callable[[Any, Any], Any]

_LARGEST = 4096
"""Most sequences that are enumerated."""

_NODES = 16
"""Gauss-Legendre nodes of a panel."""


class _Integral(NamedTuple):
    """Ends of time and number of panels."""

    ends: tuple[float, float]
    panels: int


def exact_bound(
    kernel: Kernel,
    schedule: KeepSchedule | None,
    denoise: Denoiser,
    length: int,
    /,
    *,
    steps: int | None = None,
    t_clean: float = 0.0,
    t_noise: float = 1.0,
    panels: int = 4,
    head: str = "leave_one_out",
) -> Bound:
    """The bound of every sequence of a tiny vocabulary by enumeration, :eq:`discrete-elbo-expectation`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    schedule : KeepSchedule or None
        Schedule; None for a `Chain`, whose steps are its own.
    denoise : callable
        ``(x_t, level) -> log_p`` for NumPy arrays; the level has 0-d entries.
    length : int
        Length L of a sequence; K^L <= 4,096.
    steps : int, optional
        Number T of steps, at multiples of 1/T; that of the schedule if it has one, else continuous time by
        Gauss-Legendre quadrature.
    t_clean, t_noise : float, optional
        Ends of continuous time.
    panels : int, optional
        Panels of 16 nodes of the quadrature, in a time that stretches both ends.
    head : {"leave_one_out", "posterior"}, optional
        What `denoise` gives.

    Returns
    -------
    Bound
        Arrays of shape (K^L,), the last token running fastest. Infinite where a term is.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If there are too many sequences or a number is out of range.

    Notes
    -----
    A denoiser call for each of T levels or 16 `panels` times, on K^L sequences, and L^2 K^(L+2) operations for means.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> model, kernel = elbo.table(np.array([0.25, 0.75])), categorical.uniform(2)
    >>> denoise = lambda x_t, level: model.denoise(x_t, kernel, level)
    >>> elbo.exact_bound(kernel, categorical.keep_cosine(), denoise, 1).total.round(6)  # one token: -log of the law
    array([1.386294, 0.287682])
    """
    states = _states(kernel, length)
    choose("head", head, HEADS)
    levels = _levels(kernel, schedule, steps)
    if levels is None:
        instance("kernel", kernel, Interpolation)
        assert isinstance(kernel, Interpolation)
        assert schedule is not None
        if not 0.0 <= t_clean < t_noise <= 1.0:
            msg = f"t_clean and t_noise must be 0 <= t_clean < t_noise <= 1, got {t_clean} and {t_noise}"
            raise ValueError(msg)
        integral = _Integral((t_clean, t_noise), whole("panels", panels))
        return _continuous(kernel, schedule, lambda x, t: _denoised(kernel, denoise, x, t, head), states, integral)
    terms = []
    for s, t in itertools.pairwise(levels):
        log_p = _denoised(kernel, denoise, states, t, head)
        terms.append(
            _expected(kernel, states, t, lambda x, s=s, t=t, p=log_p: step_divergence(kernel, x, states, p, s, t))
        )
    diffusion = sum(terms[1:], np.zeros(len(states)))
    return Bound(diffusion, terms[0], np.sum(prior(kernel, states, levels[-1]), axis=-1))


def exact_law(
    kernel: Kernel,
    schedule: KeepSchedule | None,
    denoise: Denoiser,
    length: int,
    /,
    *,
    steps: int | None = None,
    head: str = "leave_one_out",
) -> np.ndarray:
    """Law of ancestral sampling with a denoiser, by propagation, :eq:`discrete-elbo-law`: its exact likelihood.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    schedule : KeepSchedule or None
        Schedule; None for a `Chain`.
    denoise : callable
        ``(x_t, level) -> log_p`` for NumPy arrays.
    length : int
        Length L of a sequence; K^L <= 4,096.
    steps : int, optional
        Number T of steps; that of the schedule, or the kernel, if it has one.
    head : {"leave_one_out", "posterior"}, optional
        What `denoise` gives.

    Returns
    -------
    array, shape (K^L,)
        Probabilities of all sequences, the last token running fastest.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If there are too many sequences, or no number of steps.

    Notes
    -----
    It starts from the stationary law (uniform for a `Walk` or `Chain`), and costs K^(2L) for each step.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> model, kernel = elbo.table(np.array([0.25, 0.75])), categorical.uniform(2)
    >>> denoise = lambda x_t, level: model.denoise(x_t, kernel, level)
    >>> elbo.exact_law(kernel, categorical.keep_cosine(), denoise, 1, steps=4).round(12)  # one token: exact
    array([0.25, 0.75])
    """
    states = _states(kernel, length)
    choose("head", head, HEADS)
    levels = _levels(kernel, schedule, steps)
    if levels is None:
        msg = f"steps must be given for the continuous schedule {getattr(schedule, 'name', schedule)}, got None"
        raise ValueError(msg)
    first = np.exp(kernel.log_law) if isinstance(kernel, Interpolation) else np.full(kernel.classes, 1 / kernel.classes)
    law = np.prod(np.asarray(first)[states], axis=-1)
    for s, t in zip(levels[-2::-1], levels[:0:-1], strict=True):
        log_p = _denoised(kernel, denoise, states, t, head)
        each = np.exp(mixture_posterior(kernel, states, log_p, s, t))
        move = np.ones((len(states), 1))
        for i in range(length):
            move = (move[:, :, None] * each[:, i, None, :]).reshape(len(states), -1)
        law = law @ move
    return law


def _levels(kernel: Kernel, schedule: KeepSchedule | None, steps: int | None) -> list[Any] | None:
    """Levels from clean data on, or None for continuous time."""
    if isinstance(kernel, Chain):
        return list(range(len(kernel.steps) + 1))
    instance("schedule", schedule, KeepSchedule)
    assert schedule is not None
    steps = schedule.steps if steps is None else steps
    if steps is None:
        return None
    return [schedule.level(np.asarray(k / whole("steps", steps))) for k in range(steps + 1)]


def _continuous(
    kernel: Interpolation,
    schedule: KeepSchedule,
    denoise: Denoiser,
    states: np.ndarray,
    integral: _Integral,
) -> Bound:
    ends, panels = integral
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # y -> y^4 (35 - 84 y + 70 y^2 - 20 y^3) is flat at both ends, where the integrand may have a logarithm
    y = ((np.arange(panels)[:, None] + (nodes + 1.0) / 2.0) / panels).reshape(-1)
    place = y**4 * (35.0 - 84.0 * y + 70.0 * y**2 - 20.0 * y**3)
    pace = 140.0 * (y * (1.0 - y)) ** 3 * np.tile(weights, panels) / (2.0 * panels)
    width = ends[1] - ends[0]
    diffusion = np.zeros(len(states))
    for u, weight in zip(place, pace, strict=True):
        t = np.asarray(ends[0] + width * u)
        level = schedule.level(t)
        log_p = denoise(states, level)
        mean = _expected(
            kernel, states, level, lambda x, t=t, p=log_p: rate_divergence(kernel, x, states, p, schedule, t)
        )
        diffusion = diffusion + width * weight * mean
    low, high = (schedule.level(np.asarray(float(end))) for end in ends)
    back = np.zeros(len(states))
    if float(low.log_noise) > -math.inf:
        log_p = denoise(states, low)
        back = _expected(kernel, states, low, lambda x: reconstruction(kernel, x, states, log_p, low))
    return Bound(diffusion, back, np.sum(prior(kernel, states, high), axis=-1))


def _expected(kernel: Kernel, states: np.ndarray, t: Any, term: Callable[[np.ndarray], Any]) -> np.ndarray:
    """Mean over q(x_t | x_0) of a sum over positions, for every x_0; a position's term needs that token of x_0 only."""
    q = np.asarray(transition(kernel, t))
    (count, length), classes = states.shape, kernel.classes
    total = np.zeros(count)
    for u in range(classes):
        values = np.asarray(term(np.full(states.shape, u)))
        infinite = np.isinf(values)
        parts = np.stack([np.where(infinite, 0.0, values), infinite.astype(float)], axis=-1)
        parts = parts.reshape(*(classes,) * length, length, 2)
        for axis in range(length):
            parts = np.moveaxis(np.tensordot(q, parts, axes=(1, axis)), 0, axis)
        mean, lost = np.moveaxis(parts.reshape(count, length, 2), -1, 0)
        total += np.sum(np.where(states == u, np.where(lost > 0.0, math.inf, mean), 0.0), axis=-1)
    return total


def _denoised(kernel: Kernel, denoise: Denoiser, states: np.ndarray, t: Any, head: str) -> np.ndarray:
    log_p = denoise(states, t)
    return to_leave_one_out(kernel, states, log_p, t) if head == "posterior" else log_p


def _states(kernel: Any, length: int) -> np.ndarray:
    if not isinstance(kernel, Interpolation | Walk | Chain):
        instance("kernel", kernel, Interpolation)
    if kernel.classes ** whole("length", length) > _LARGEST:
        msg = f"length must leave at most {_LARGEST:,} sequences, got {kernel.classes}^{length}"
        raise ValueError(msg)
    return all_states(kernel.classes, length)
