"""The exact law of a sampler's output, by propagating all K^L probabilities through the steps that `sample` draws from.

See :doc:`/discrete/samplers`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffnum.discrete._oracles import all_states
from diffnum.discrete._sampler_laws import Kernel, Moment
from diffnum.discrete._sampler_loop import Denoiser, grid_moments
from diffnum.discrete._sampler_steps import Interval, Point, Step, shares
from diffnum.kernels._families import Chain, Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._tokens import whole

__all__ = ["law_of", "total_variation"]

_SLACK = 1e-6
"""A law may miss a sum of 1 by this, the rounding of float32."""

_LARGEST = 4096
"""Number of sequences up to which a law is propagated: a step of two stages holds its cube in the worst case."""


def law_of(
    denoise: Denoiser,
    kernel: Kernel,
    schedule: KeepSchedule | None,
    t: Any,
    step: Step,
    /,
    *,
    length: int,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Exact law of the output of `sample`, :eq:`discrete-samplers-propagation`: no Monte Carlo.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p`` for NumPy arrays, of all sequences at once.
    kernel : Interpolation, Walk or Chain
        The family.
    schedule : KeepSchedule or None
        Keep probability.
    t : array, shape (N + 1,)
        Times, decreasing.
    step : Step
        The step.
    length : int
        Length L of a sequence.
    start : array, shape (K, ..., K), optional
        Law at the first time; independent draws from pi if left out, which only an `Interpolation` has.

    Returns
    -------
    array, shape (K, ..., K)
        Probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If there are more than 4,096 sequences, or an argument does not fit.

    Notes
    -----
    A stage that reads earlier ones is enumerated over all of their draws: K^(2L) evaluations for two stages.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo, samplers
    >>> from diffnum.kernels import categorical
    >>> data, kernel = elbo.table(np.array([[0.5, 0.0], [0.0, 0.5]]), mask=True), categorical.absorbing(3)
    >>> law = samplers.law_of(  # one step draws both tokens independently
    ...     lambda x, level: data.denoise(x, kernel, level), kernel, categorical.keep_linear(), [1.0, 0.0],
    ...     samplers.ancestral(), length=2,
    ... )
    >>> law[:2, :2]
    array([[0.25, 0.25],
           [0.25, 0.25]])
    """
    classes = getattr(kernel, "classes", 0)
    length = whole("length", length)
    if classes**length > _LARGEST:
        msg = f"length must be such that K^length <= {_LARGEST}, got {classes}^{length}"
        raise ValueError(msg)
    states = all_states(max(classes, 1), length)
    times = t if isinstance(kernel, Chain) else np.asarray(t, dtype=float)
    (many, final), h, count, last = grid_moments(kernel, schedule, times, step, states)
    law = _start(kernel, start, classes, length)
    for n in range(count):
        now, moments = (last, final) if n == count - 1 else (step, many)
        index = 0 if now is last and moments is final else n
        at = moments[index] if isinstance(kernel, Chain) else tuple(_at(m, index) for m in moments)
        law = _propagate(denoise, kernel, now, Interval(dict(zip(shares(now), at, strict=True)), h[n]), law, states)
    return law.reshape((classes,) * length)


def total_variation(p: np.ndarray, q: np.ndarray, /) -> float:
    """Half the sum of absolute differences of two laws, :eq:`discrete-samplers-tv`.

    Parameters
    ----------
    p, q : array
        Probabilities of the same shape.

    Returns
    -------
    float
        Between 0 and 1; how it falls with the number of steps is the order, :eq:`discrete-samplers-orders`.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.total_variation([0.5, 0.5], [0.25, 0.75])
    0.25
    """
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    if p.shape != q.shape:
        msg = f"q must have the shape of p, {p.shape}, got {q.shape}"
        raise ValueError(msg)
    return float(0.5 * np.abs(p - q).sum())


def _propagate(  # noqa: PLR0917
    denoise: Denoiser, kernel: Kernel, step: Step, interval: Interval, law: np.ndarray, states: np.ndarray
) -> np.ndarray:
    """One step: `weights` belongs to paths, each a row of `trail` with the states that later stages may read."""
    trail, weights = np.flatnonzero(law)[:, None], law[law != 0.0]
    points: list[tuple[int, np.ndarray, Moment]] = []
    for stage in step.stages:
        if stage.alone:
            whole = np.bincount(trail[:, -1], weights=weights, minlength=len(states))
            trail, points = np.flatnonzero(whole)[:, None], []
            weights = whole[whole != 0.0]
        x = states[trail[:, -1]]
        if stage.share is not None:
            at = interval.at[stage.share]
            points.append((trail.shape[1] - 1, np.asarray(denoise(x, at.level)), at))
        seen = tuple(Point(states[trail[:, place]], log_p, at) for place, log_p, at in points)
        moves = _moves(np.exp(np.asarray(stage.law(kernel, x, seen, interval))), x, states, stage.site)
        flow = (weights[:, None] * moves).reshape(-1)
        some = np.flatnonzero(flow)
        old, new = np.divmod(some, len(states))
        trail, weights = np.concatenate([trail[old], new[:, None]], axis=1), flow[some]
        points = [(place, log_p[old], at) for place, log_p, at in points]
    return np.bincount(trail[:, -1], weights=weights, minlength=len(states))


def _moves(p: np.ndarray, x: np.ndarray, states: np.ndarray, site: bool) -> np.ndarray:
    """Probability of each next state, (paths, states): positions are drawn independently, or one of them moves."""
    length = x.shape[1]
    factors = [p[:, i, :][:, states[:, i]] for i in range(length)]
    if not site:
        return np.prod(factors, axis=0)
    same = [x[:, i, None] == states[None, :, i] for i in range(length)]
    total = np.zeros_like(factors[0])
    for i in range(length):
        rest = np.all([same[j] for j in range(length) if j != i], axis=0) if length > 1 else True
        total += factors[i] * rest / length
    return total


def _start(kernel: Any, start: Any, classes: int, length: int) -> np.ndarray:
    shape = (classes,) * length
    if start is not None:
        law = np.asarray(start, dtype=float)
        if law.shape != shape or not (law >= 0.0).all() or not abs(law.sum() - 1.0) <= _SLACK:
            msg = f"start must be probabilities >= 0 of shape {shape} and of sum 1, got {law.shape}, sum {law.sum()}"
            raise ValueError(msg)
        return law.reshape(-1)
    if not isinstance(kernel, Interpolation):
        # a missing argument, not a wrong one
        msg = f"start must be given for {kernel.name}, got None"
        raise ValueError(msg)  # noqa: TRY004
    pi = np.exp(np.asarray(kernel.log_law, dtype=float))
    law = np.ones(())
    for _ in range(length):
        law = np.multiply.outer(law, pi)
    return law.reshape(-1)


def _at(m: Moment, n: int) -> Moment:
    return Moment(Keep(*(p[n] for p in m.level)), m.rate[n], m.slope[n])
