"""Samplers without time steps: one token after the other, at random times; exact for an exact denoiser.

See :doc:`/discrete/samplers`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diffnum._arguments import instance
from diffnum._backend import (
    Array,
    beside,
    cast,
    check_rng,
    concrete,
    convert,
    filled,
    is_jax,
    namespace,
    random_words,
    scan,
    while_loop,
)
from diffnum.discrete._sampler_laws import _probability, check_masked, event_law
from diffnum.discrete._sampler_loop import Denoiser, _checked, tokens_of
from diffnum.kernels._draws import integers, unit
from diffnum.kernels._families import Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._logspace import log1mexp, softplus
from diffnum.kernels._tokens import pick
from diffnum.kernels.categorical import draw, mixture_posterior

__all__ = ["first_hitting", "uniformisation"]

_HALVINGS = {4: 30, 8: 60}
"""Bisections that find a time in [0, 1] to rounding, by bytes of the dtype."""


def first_hitting(
    denoise: Denoiser, x: Array, kernel: Interpolation, schedule: KeepSchedule, /, *, rng: Any, start: float = 1.0
) -> Array:
    """Reveal one masked token after the other, at its time, :eq:`discrete-samplers-first-hitting`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p``, leave-one-out; the level has shape (batch, 1), each sequence its own time.
    x : array of int, shape (batch, length)
        Tokens at the start. What is not masked is given.
    kernel : Interpolation
        An absorbing kernel.
    schedule : KeepSchedule
        Continuous schedule.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source.
    start : float, optional
        Time of the start.

    Returns
    -------
    array of int, shape (batch, length)
        Clean tokens.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the kernel is not absorbing, the schedule is discrete, or `denoise` returns another shape.

    Notes
    -----
    As many evaluations as there are masked tokens, and no error of its own: for any denoiser its law is the limit of
    ancestral sampling in small steps.

    References
    ----------
    K. Zheng et al., Masked diffusion models are secretly time-agnostic masked models (2025).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = np.log([0.5, 0.5, 1e-300])
    >>> samplers.first_hitting(
    ...     lambda x, level: np.broadcast_to(law, (*x.shape, 3)), np.array([[2, 0, 2]]), categorical.absorbing(3),
    ...     categorical.keep_linear(), rng=np.random.default_rng(0),
    ... )[0, 1]
    np.int64(0)
    """
    check_masked(kernel)
    x, level = _begin(kernel, x, schedule, start, rng)
    xp, length = namespace(x), x.shape[1]
    real, places = level.log_noise.dtype, beside(np.arange(length), x)
    known = concrete(x)
    events = length if known is None else int((known == kernel.mask).sum(axis=1).max())

    def body(state: tuple, number: Any) -> tuple[tuple, None]:
        x, log_noise = state
        masked = x == kernel.mask
        count = xp.sum(xp.astype(masked, real), axis=1, keepdims=True)
        some = count > 0.0
        gap = xp.log(unit(random_words(rng, 3 * number, x[:, :1]), real)) / xp.where(some, count, xp.ones_like(count))
        log_noise = xp.where(some, log_noise + gap, log_noise)
        level = Keep(_time(schedule, log_noise, "noise"), log1mexp(log_noise), log_noise)
        log_p = _checked(denoise(x, level), x, kernel)
        even = xp.zeros(x.shape, dtype=real) if is_jax(x) else filled(x, tuple(x.shape), 0.0, real)
        site = draw(rng, xp.where(masked | ~some, even, even - math.inf), row=3 * number + 1)
        token = cast(draw(rng, _row_of(log_p, site), row=3 * number + 2), x.dtype)
        here = (places == cast(site, places.dtype)[:, None]) & masked
        return (xp.where(here, token[:, None], x), log_noise), None

    rows = xp.arange(events) if is_jax(x) else range(events)
    (x, _), _ = scan(body, (x, level.log_noise), rows, x)
    return x


def uniformisation(
    denoise: Denoiser,
    x: Array,
    kernel: Interpolation,
    schedule: KeepSchedule,
    /,
    *,
    rng: Any,
    start: float = 1.0,
    stop: float = 1e-3,
    clean: bool = True,
) -> Array:
    """Events of a Poisson process whose rate bounds all jumps, thinned, :eq:`discrete-samplers-uniformisation`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p``, leave-one-out; the level has shape (batch, 1).
    x : array of int, shape (batch, length)
        Tokens at `start`.
    kernel : Interpolation
        The family.
    schedule : KeepSchedule
        Continuous schedule.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source.
    start, stop : float, optional
        Times, both with ``0 < alpha < 1``; ``stop <= start``.
    clean : bool, optional
        Whether a posterior step from `stop` to clean data follows, whose error falls like the noise at `stop` squared.

    Returns
    -------
    array of int, shape (batch, length)
        Clean tokens, or tokens at `stop`.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a level is pure or clean, `stop` is above `start`, the schedule is discrete, or `denoise` returns another
        shape.

    Notes
    -----
    From `start` to `stop` the law is exact for an exact denoiser. The expected number of events of a sequence is L
    times the difference of log-odds of the two levels; the loop runs as long as the slowest sequence of the batch.

    References
    ----------
    H. Chen and L. Ying, Convergence analysis of discrete diffusion model: exact implementation through uniformization
    (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = np.log([0.5, 0.5])
    >>> samplers.uniformisation(
    ...     lambda x, level: np.broadcast_to(law, (*x.shape, 2)), np.array([[0, 1, 1]]), categorical.uniform(2),
    ...     categorical.keep_linear_rate(), rng=np.random.default_rng(0),
    ... ).shape
    (1, 3)
    """
    instance("kernel", kernel, Interpolation)
    x, level = _begin(kernel, x, schedule, start, rng)
    xp, length = namespace(x), x.shape[1]
    real, places = level.log_noise.dtype, beside(np.arange(length), x)
    end = _level(schedule, stop, "stop", x, real)
    for name, value, odds in (("start", start, level.log_odds), ("stop", stop, end.log_odds)):
        known = concrete(odds)
        if known is not None and not np.isfinite(known).all():
            msg = f"{name} must have 0 < alpha < 1, got {value!r}"
            raise ValueError(msg)
    if stop > start:
        msg = f"stop must be at most start, {start!r}, got {stop!r}"
        raise ValueError(msg)

    def body(state: tuple) -> tuple:
        x, odds, number, _ = state
        odds = odds - xp.log(unit(random_words(rng, 3 * number, x[:, :1]), real)) / length
        alive = odds < end.log_odds
        at = xp.where(alive, odds, xp.zeros_like(odds) + end.log_odds)
        level = Keep(_time(schedule, at, "odds"), -softplus(-at), -softplus(at))
        log_p = _checked(denoise(x, level), x, kernel)
        site = integers(random_words(rng, 3 * number + 1, x[:, 0]), length)
        now = pick(x, site)
        of_site = Keep(level.t[:, 0], level.log_alpha[:, 0], level.log_noise[:, 0])
        token = draw(rng, event_law(kernel, now, _row_of(log_p, site), of_site), row=3 * number + 2)
        here = (places == cast(site, places.dtype)[:, None]) & alive
        return xp.where(here, cast(token, x.dtype)[:, None], x), odds, number + 1, xp.any(alive)

    going = xp.any(level.log_odds < end.log_odds)
    number = xp.asarray(0) if is_jax(x) else 0
    x, _, number, _ = while_loop(lambda state: state[3], body, (x, level.log_odds, number, going), x)
    if not clean:
        return x
    log_p = _checked(denoise(x, _broadcast(end, x)), x, kernel)
    at_zero = _level(schedule, 0.0, "stop", x, real)
    return cast(draw(rng, mixture_posterior(kernel, x, log_p, at_zero, end), row=3 * number), x.dtype)


def _begin(kernel: Interpolation, x: Array, schedule: Any, start: float, rng: Any) -> tuple[Array, Keep]:
    x = tokens_of(kernel, "x", x)
    check_rng(rng, x)
    instance("schedule", schedule, KeepSchedule)
    if schedule.steps is not None:
        msg = f"schedule must be continuous, got {schedule.name}"
        raise ValueError(msg)
    xp = namespace(x)
    return x, _broadcast(_level(schedule, start, "start", x, xp.zeros(()).dtype), x)


def _level(schedule: KeepSchedule, t: Any, name: str, like: Array, real: Any) -> Keep:
    at = np.asarray(_probability(name, t))
    return Keep(*(convert(part, like, real) for part in schedule.level(at)))


def _broadcast(level: Keep, x: Array) -> Keep:
    xp = namespace(x)
    return Keep(*(xp.broadcast_to(part, (x.shape[0], 1)) for part in level))


def _time(schedule: KeepSchedule, value: Array, of: str) -> Array:
    """Time at which the schedule has this ``log(1 - alpha)`` or these log-odds, by bisection; both are monotone."""
    xp = namespace(value)
    count = _HALVINGS[value.dtype.itemsize]

    def halve(bounds: tuple, _: Any) -> tuple[tuple, None]:
        low, high = bounds
        middle = 0.5 * (low + high)
        level = schedule.level(middle)
        noisier = level.log_noise > value if of == "noise" else level.log_odds < value
        return (xp.where(noisier, low, middle), xp.where(noisier, middle, high)), None

    start = (xp.zeros_like(value), xp.ones_like(value))
    (low, high), _ = scan(halve, start, xp.arange(count) if is_jax(value) else range(count), value)
    return 0.5 * (low + high)


def _row_of(log_p: Array, site: Array) -> Array:
    """Law at one position of each sequence, (batch, K)."""
    xp = namespace(log_p)
    site = site if is_jax(site) else cast(site, xp.int64)
    index = xp.broadcast_to(site[:, None, None], (log_p.shape[0], 1, log_p.shape[2]))
    return xp.take_along_axis(log_p, index, axis=1)[:, 0, :]
