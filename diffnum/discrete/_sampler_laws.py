"""Laws of one step back: the log-probabilities of each next token, given all tokens now and what a denoiser says.

The same functions serve to draw and to propagate a whole distribution, so that what is proved is what runs. See
:doc:`/discrete/samplers`. Inside, w(y) = alpha p(y) + (1 - alpha) pi(y) is the law of a noisy token given all others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance
from diffnum._backend import (
    Array,
    asfloat,
    beside,
    cast,
    concrete,
    convert,
    is_jax,
    namespace,
    random_words,
    state_dtype,
)
from diffnum.kernels._draws import happens
from diffnum.kernels._families import Chain, Interpolation, Walk
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._logspace import log_of, log_sum, logaddexp
from diffnum.kernels._tokens import as_levels, law_like, one_hot, pick, tokens
from diffnum.kernels.categorical import (
    between,
    draw,
    mixture_posterior,
    q_sample,
    to_leave_one_out,
    to_posterior,
    transition,
)

__all__ = [
    "Kernel",
    "Moment",
    "ancestral_draw",
    "commit_law",
    "corrector_law",
    "displaced",
    "event_law",
    "leap_law",
    "moment_of",
    "one_jump_law",
    "rates_at",
    "remask_law",
    "renoise_law",
    "reverse_rates",
]

Kernel = Interpolation | Walk | Chain

_SLACK = 1e-5
"""A probability may pass its bound by this, a rounding of float32 levels."""


class Moment(NamedTuple):
    """A level with the rate ``-d log(alpha)/dt`` and the slope ``-d alpha/dt`` there; a number for a `Chain`."""

    level: Any
    rate: Any
    slope: Any


def moment_of(schedule: KeepSchedule, t: Array) -> Moment:
    """Level, rate and slope at `t`.

    Parameters
    ----------
    schedule : KeepSchedule
        Continuous or discrete.
    t : array
        Times.

    Returns
    -------
    Moment
        Arrays of the shape of `t`.
    """
    return Moment(schedule.level(t), schedule.rate(t), schedule.slope(t))


def reverse_rates(
    kernel: Interpolation, x_t: Array, log_p: Array, schedule: KeepSchedule, t: Array, /, *, head: str = "leave_one_out"
) -> Array:
    """Rates at which each token jumps to each other one in reverse time, :eq:`discrete-samplers-rates`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Law of the clean tokens, normalised.
    schedule : KeepSchedule
        Continuous schedule.
    t : array
        Time, 0-d or of the shape of `x_t`.
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.

    Returns
    -------
    array, shape (..., K)
        Rates per unit of time, 0 at the token itself.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, or the rate of the schedule is infinite there and the kernel has no mask.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> log_p = np.log([0.75, 0.25, 1e-300])
    >>> samplers.reverse_rates(  # p/t
    ...     categorical.absorbing(3), np.array(2), log_p, categorical.keep_linear(), np.array(0.5)
    ... ).round(6)
    array([1.5, 0.5, 0. ])
    """
    instance("kernel", kernel, Interpolation)
    instance("schedule", schedule, KeepSchedule)
    choose("head", head, ("leave_one_out", "posterior"))
    t = asfloat(t, "t")
    at = moment_of(schedule, t)
    if head == "posterior":
        log_p = to_leave_one_out(kernel, x_t, log_p, at.level)
    check_rate(kernel, at.rate)
    return rates_at(kernel, x_t, log_p, at)


def rates_at(kernel: Interpolation, x_t: Array, log_p: Array, at: Moment) -> Array:
    """The same at a `Moment`, in the state dtype of `log_p`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    at : Moment
        Level, rate and slope.

    Returns
    -------
    array, shape (..., K)
        Rates.
    """
    p = _parts(kernel, x_t, log_p, at.level)
    xp, law = p.xp, p.law
    rate, slope = (_wide(convert(a, law, law.dtype)) for a in (at.rate, at.slope))
    possible, certain = p.pi > 0.0, p.whole_here == 0.0
    # where alpha = 0 the rate is infinite, and only what noise can become feels it
    noisy = xp.where(possible, rate, xp.zeros_like(rate)) * (_wide(p.noise) * p.pi)
    found = _wide(p.pi_here) * (slope * xp.exp(law) + noisy)
    found = found / _wide(xp.where(certain, xp.ones_like(p.whole_here), p.whole_here))
    return xp.where(p.here | _wide(certain), xp.zeros_like(found), found)


def check_rate(kernel: Interpolation, rate: Array) -> None:
    """Raise where a rate is infinite and would be needed: at alpha = 0, unless all noise is one mask.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    rate : array
        Rates of the schedule.

    Raises
    ------
    ValueError
        If one is infinite.
    """
    known = concrete(rate)
    if kernel.kind != "point" and known is not None and np.isinf(known).any():
        msg = f"t must have alpha > 0 for rates of {kernel.name}, got a time where the schedule's rate is infinite"
        raise ValueError(msg)


def one_jump_law(x: Array, jumps: Array, /, *, euler: bool = False) -> Array:
    """Law of the next token where it jumps once or not at all, :eq:`discrete-samplers-one-jump`.

    Parameters
    ----------
    x : array of int, shape (...)
        Tokens.
    jumps : array, shape (..., K)
        Expected numbers of jumps >= 0, rate times length of the step; the entry at the token itself is ignored.
    euler : bool, optional
        Jump with probability ``min(1, M)``, M the sum, instead of ``1 - exp(-M)``.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If `x` is no integers.
    ValueError
        If shapes do not match, a token is no class or a number of jumps is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> np.exp(samplers.one_jump_law(np.array(2), np.array([0.2, 0.1, 0.0]), euler=True)).round(6)
    array([0.2, 0.1, 0.7])
    """
    x, here, jumps = _placed(x, jumps)
    xp = namespace(jumps)
    total = xp.sum(jumps, axis=-1, keepdims=True)
    still = total == 0.0
    safe = xp.where(still, xp.ones_like(total), total)
    one = xp.ones_like(total)
    if euler:
        moved, stays = xp.minimum(total, one), log_of(xp.maximum(1.0 - total, xp.zeros_like(total)))
    else:
        moved, stays = -xp.expm1(-total), -total
    share = xp.where(still, xp.zeros_like(total), moved / safe)
    return xp.where(here, stays, log_of(jumps * share))


def leap_law(kernel: Interpolation, x: Array, jumps: Array, /) -> Array:
    """Law of the next token after a leap, :eq:`discrete-samplers-leap`: any number of jumps at frozen rates.

    Parameters
    ----------
    kernel : Interpolation
        `absorbing`, where a token jumps once; or `uniform`, where Poisson numbers of displacements add up modulo K.
    x : array of int, shape (...)
        Tokens.
    jumps : array, shape (..., K)
        Expected numbers of jumps >= 0 to each class; the entry at the token itself is ignored.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If `kernel` is no `Interpolation`, or `x` no integers.
    ValueError
        If it is neither family, shapes do not match, a token is no class or a number of jumps is negative.

    Notes
    -----
    The law of a sum of Poisson displacements is a circular convolution, done by two Fourier transforms: O(K log K), its
    absolute error a rounding of 1.

    References
    ----------
    D. Gillespie, Approximate accelerated stochastic simulation of chemically reacting systems (2001); A. Campbell et
    al., A continuous time framework for discrete denoising models (2022).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = samplers.leap_law(categorical.uniform(3), np.array(0), np.array([0.0, 0.2, 0.0]))
    >>> np.exp(law).round(6)  # Poisson numbers of jumps by one place, modulo 3
    array([0.819822, 0.163801, 0.016377])
    """
    check_leap(kernel)
    x, _, jumps = _placed(x, jumps, kernel.classes)
    if kernel.kind == "point":
        return one_jump_law(x, jumps)
    xp = namespace(jumps)
    shifts = _shift(x, jumps, 1)
    spectrum = xp.fft.fft(shifts + 0.0j)
    law = xp.real(xp.fft.ifft(xp.exp(spectrum - xp.sum(shifts, axis=-1, keepdims=True))))
    return _shift(x, log_of(xp.maximum(cast(law, jumps.dtype), xp.zeros_like(jumps))), -1)


def displaced(kernel: Interpolation, x_from: Array, x_to: Array, jumps: Array) -> Array:
    """Jumps counted at one token, as jumps of another: by equal displacements for `uniform`, by target for a mask.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_from, x_to : array of int, shape (...)
        Tokens.
    jumps : array, shape (..., K)
        Expected numbers of jumps from `x_from`.

    Returns
    -------
    array, shape (..., K)
        The same for `x_to`.
    """
    if kernel.kind == "point":
        return jumps
    return _shift(x_to, _shift(x_from, jumps, 1), -1)


def check_leap(kernel: Any) -> None:
    """Raise unless leaps are defined for `kernel`.

    Parameters
    ----------
    kernel : object
        A candidate.

    Raises
    ------
    TypeError
        If it is no `Interpolation`.
    ValueError
        If its noise is neither one mask nor uniform.
    """
    instance("kernel", kernel, Interpolation)
    if kernel.kind not in {"point", "uniform"}:
        msg = f"kernel must be absorbing or uniform for leaps, got {kernel.name}; euler takes any"
        raise ValueError(msg)


def corrector_law(kernel: Interpolation, x_t: Array, log_p: Array, t: Keep, /) -> Array:
    """Law of a noisy token given all others, the step of a Gibbs corrector, :eq:`discrete-samplers-gibbs`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    t : Keep
        Level.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities; they depend on the other tokens only.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> np.exp(samplers.corrector_law(categorical.uniform(2), np.array(0), np.log([0.9, 0.1]), t)).round(6)
    array([0.7, 0.3])
    """
    p = _parts(kernel, x_t, log_p, t)
    return cast(_noisy(p), log_p.dtype)


def event_law(kernel: Interpolation, x_t: Array, log_p: Array, t: Keep, /) -> Array:
    """Law of a token after an event of uniformisation, :eq:`discrete-samplers-event`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    t : Keep
        Level.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> np.exp(samplers.event_law(categorical.uniform(2), np.array(1), np.log([0.9, 0.1]), t)).round(6)
    array([0.583333, 0.416667])
    """
    p = _parts(kernel, x_t, log_p, t)
    kept, lost = _flags(p)
    return cast(_mixed(p, kept, _wide(lost) + _noisy(p)), log_p.dtype)


def commit_law(kernel: Interpolation, x_t: Array, log_p: Array, s: Keep, t: Keep, /, *, carry: bool = True) -> Array:
    """Law of a step that commits, carries over and renoises, :eq:`discrete-samplers-commit`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    s, t : Keep
        The less noisy and the noisier level.
    carry : bool, optional
        Whether noise stays what it is unless it is drawn anew between the levels. It is then the ancestral step. If
        all that is not committed is drawn anew, a step keeps each token's law, but not that of sequences.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, or the levels are not in order.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> np.exp(samplers.commit_law(categorical.uniform(3), np.array(0), np.log([0.7, 0.2, 0.1]), s, t)).round(3)
    array([0.81 , 0.105, 0.085])
    """
    p = _parts(kernel, x_t, log_p, t)
    low, step = as_levels(s, between(s, t), like=p.law)
    kept, lost = _flags(p)
    log_noise = _safe_log(p.log_noise)
    fresh = _wide(low.log_alpha + step.log_noise - log_noise) + p.law
    if carry:
        same = lost + low.log_noise + step.log_alpha - log_noise
        kept = logaddexp(kept, same)
        anew = low.log_noise + step.log_noise - log_noise
    else:
        anew = low.log_noise - log_noise
    fresh = logaddexp(fresh, _wide(anew) + p.log_pi)
    return cast(_mixed(p, kept, _wide(lost) + fresh), log_p.dtype)


def ancestral_draw(  # noqa: PLR0917
    rng: Any, kernel: Interpolation, x_t: Array, log_p: Array, levels: tuple[Keep, Keep], row: int
) -> Array:
    """A draw of the ancestral step in parts: stay, or draw a clean token and noise it to the next level.

    Sorted like :eq:`discrete-samplers-commit`, the law is ``stay`` on the token itself, else ``q(x_s | x_0)`` for x_0
    from `log_p`; no law of the next token is formed.

    Parameters
    ----------
    rng : see `diffnum.kernels.categorical.draw`
        Source.
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    levels : tuple of Keep
        The less noisy and the noisier level.
    row : int
        Number of the first of six draws, a multiple of 3.

    Returns
    -------
    array of int, shape (...)
        Tokens.
    """
    s, t = levels
    p = _parts(kernel, x_t, log_p, t)
    low, step = as_levels(s, between(s, t), like=p.law)
    kept, lost = _flags(p)
    gone = lost - _safe_log(p.log_noise)
    leaves = p.xp.exp(gone + step.log_noise)
    stays = p.xp.exp(logaddexp(kept, gone + low.log_noise + step.log_alpha))
    moved = happens(random_words(rng, row, p.x), leaves, stays)
    clean = cast(draw(rng, p.law, row=row + 1), p.x.dtype)
    return p.xp.where(moved, q_sample(rng, clean, low, kernel, row=row // 3 + 1), p.x)


def renoise_law(kernel: Kernel, x_t: Array, log_p: Array, s: Any, t: Any, /, *, kappa: float) -> Array:
    """Law that forgets x_t with probability ``1 - kappa``, :eq:`discrete-samplers-kappa`: it keeps tokens' laws.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    s, t : Keep or int
        The less noisy and the noisier level.
    kappa : float
        Probability of the posterior step, in [0, 1]; else the clean token is drawn and noised anew.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If `kappa` is out of range, shapes do not match, or the levels are not in order.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> log_p = np.log([0.7, 0.3, 1e-300])
    >>> np.exp(samplers.renoise_law(categorical.absorbing(3), np.array(0), log_p, s, t, kappa=0.8)).round(6)
    array([0.9, 0. , 0.1])
    """
    share = _probability("kappa", kappa)
    stay = mixture_posterior(kernel, x_t, log_p, s, t)
    law = to_posterior(kernel, x_t, log_p, t)
    anew = _noised(kernel, law, s)
    return logaddexp(_log(share) + stay, _log(1.0 - share) + anew)


def remask_law(kernel: Interpolation, x_t: Array, log_p: Array, s: Keep, t: Keep, /, *, sigma: Array | float) -> Array:
    """Law that masks revealed tokens again with probability `sigma`, :eq:`discrete-samplers-remask`.

    Parameters
    ----------
    kernel : Interpolation
        An absorbing kernel.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out law.
    s, t : Keep
        The less noisy and the noisier level.
    sigma : float or array
        Probability, at most ``min(1, (1 - alpha_s)/alpha_t)``: beyond that no step keeps the laws of tokens.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If `sigma` is out of range, the kernel has no mask, or shapes do not match.

    References
    ----------
    G. Wang et al., Remasking discrete diffusion models with inference-time scaling (2025).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> law = samplers.remask_law(categorical.absorbing(3), np.array(2), np.log([0.7, 0.3, 1e-300]), s, t, sigma=0.5)
    >>> np.exp(law).round(6)  # revealed with probability 1/2, not 1/3
    array([0.35, 0.15, 0.5 ])
    """
    check_masked(kernel)
    p = _parts(kernel, x_t, log_p, t)
    xp, (low, step) = p.xp, as_levels(s, between(s, t), like=p.law)
    share = convert(asfloat(sigma, "sigma"), p.law, p.law.dtype)
    known, cap = concrete(share), concrete(remask_cap(low, p.level))
    if known is not None and cap is not None and not ((known >= 0.0) & (known <= cap + _SLACK)).all():
        msg = f"sigma must be in [0, (1 - alpha_s)/alpha_t] = [0, {cap}] to keep the laws of tokens, got {sigma!r}"
        raise ValueError(msg)
    one = xp.ones_like(share)
    reveal = xp.minimum((low.alpha * step.noise + share * p.level.alpha) / p.noise, one)
    masked = p.x == kernel.mask
    of_mask = xp.where(p.here, _wide(log_of(1.0 - reveal)), _wide(log_of(reveal)) + p.law)
    blank = one_hot(xp.full_like(p.x, kernel.mask), kernel.classes)
    nothing = xp.full_like(p.law, -math.inf)
    of_token = xp.where(p.here, _wide(log_of(1.0 - share)), xp.where(blank, _wide(log_of(share)), nothing))
    return cast(xp.where(_wide(masked), of_mask, of_token), log_p.dtype)


def remask_cap(s: Keep, t: Keep) -> Array:
    """Largest probability of masking again that keeps the laws of tokens, ``min(1, (1 - alpha_s)/alpha_t)``.

    Parameters
    ----------
    s, t : Keep
        The less noisy and the noisier level.

    Returns
    -------
    array
        Probabilities.
    """
    xp = namespace(s.log_noise, t.log_alpha)
    empty = t.log_alpha == -math.inf
    gap = s.log_noise - xp.where(empty, xp.zeros_like(t.log_alpha), t.log_alpha)
    gap = xp.where(empty, xp.zeros_like(gap), gap)
    return xp.exp(xp.minimum(gap, xp.zeros_like(gap)))


def check_masked(kernel: Any) -> None:
    """Raise unless all noise of `kernel` is one mask.

    Parameters
    ----------
    kernel : object
        A candidate.

    Raises
    ------
    TypeError
        If it is no `Interpolation`.
    ValueError
        If it is not absorbing.
    """
    instance("kernel", kernel, Interpolation)
    if kernel.kind != "point":
        msg = f"kernel must be absorbing, got {kernel.name}"
        raise ValueError(msg)


class _Parts(NamedTuple):
    xp: Any
    x: Array
    law: Array
    level: Keep
    noise: Array
    log_noise: Array
    log_pi: Array
    pi: Array
    pi_here: Array
    law_here: Array
    whole_here: Array
    here: Array


def _parts(kernel: Any, x_t: Array, log_p: Array, t: Any) -> _Parts:
    """What all laws need, in the library and state dtype of `log_p`."""
    instance("kernel", kernel, Interpolation)
    instance("t", t, Keep)
    log_p = asfloat(log_p, "log_p")
    law = cast(log_p, state_dtype(log_p))
    xp = namespace(law)
    x = beside(tokens(kernel, "x_t", x_t, t), law)
    if tuple(law.shape) != (*x.shape, kernel.classes):
        msg = f"log_p must have shape {(*x.shape, kernel.classes)}, got {tuple(law.shape)}"
        raise ValueError(msg)
    (level,) = as_levels(t, like=law)
    log_pi = law_like(kernel, law)
    pi, noise = xp.exp(log_pi), level.noise
    pi_here, law_here = pick(xp.broadcast_to(pi, law.shape), x), pick(law, x)
    whole = level.alpha * xp.exp(law_here) + noise * pi_here
    return _Parts(
        xp, x, law, level, noise, level.log_noise, log_pi, pi, pi_here, law_here, whole, one_hot(x, kernel.classes)
    )


def _noisy(p: _Parts) -> Array:
    """Logarithm of w."""
    return logaddexp(_wide(p.level.log_alpha) + p.law, _wide(p.log_noise) + p.log_pi)


def _flags(p: _Parts) -> tuple[Array, Array]:
    """Log-probabilities that the token was kept, and that it is noise, given all tokens; kept if it can be neither."""
    xp = p.xp
    kept, lost = p.level.log_alpha + p.law_here, p.log_noise + log_of(p.pi_here)
    whole = logaddexp(kept, lost)
    never = whole == -math.inf
    zero = xp.zeros_like(whole)
    safe = xp.where(never, zero, whole)
    return xp.where(never, zero, kept - safe), xp.where(never, xp.full_like(whole, -math.inf), lost - safe)


def _mixed(p: _Parts, stays: Array, fresh: Array) -> Array:
    """Log of a law `fresh` and of weight `stays` on the token itself."""
    return p.xp.where(p.here, logaddexp(fresh, _wide(stays)), fresh)


def _noised(kernel: Kernel, law: Array, s: Any) -> Array:
    """Logarithm of the law at `s` of a token whose clean law is `law`."""
    state = cast(law, state_dtype(law))
    if isinstance(kernel, Interpolation):
        (level,) = as_levels(s, like=state)
        fresh = _wide(level.log_noise) + law_like(kernel, state)
        return cast(logaddexp(_wide(level.log_alpha) + state, fresh), law.dtype)
    xp = namespace(state)
    found = log_of(xp.exp(state) @ convert(transition(kernel, s), state, state.dtype))
    return cast(found - log_sum(found), law.dtype)


def _placed(x: Any, jumps: Any, classes: int | None = None) -> tuple[Array, Array, Array]:
    """Tokens, where they are, and the jumps of other classes; checked where they are known."""
    jumps = asfloat(jumps, "jumps")
    x = beside(x if hasattr(x, "dtype") else np.asarray(x), jumps)
    if jumps.ndim == 0 or tuple(jumps.shape) != (*x.shape, classes or jumps.shape[-1]):
        msg = f"jumps must have shape {(*x.shape, classes or 'K')}, got {tuple(jumps.shape)}"
        raise ValueError(msg)
    xp, classes = namespace(jumps), int(jumps.shape[-1])
    if not xp.isdtype(x.dtype, "integral") or int(xp.iinfo(x.dtype).max) < classes - 1:
        msg = f"x must be integers of a dtype that holds classes up to {classes - 1}, got {x.dtype}"
        raise TypeError(msg)
    known, numbers = concrete(x), concrete(jumps)
    if known is not None and not ((known >= 0) & (known < classes)).all():
        msg = f"x must be classes from 0 to {classes - 1}, got {known!r}"
        raise ValueError(msg)
    here = one_hot(x, classes)
    if numbers is not None and (numbers < 0.0).any():
        msg = f"jumps must be >= 0, got {numbers!r}"
        raise ValueError(msg)
    return x, here, xp.where(here, xp.zeros_like(jumps), jumps)


def _shift(x: Array, values: Array, sign: int) -> Array:
    """Values by displacement from `x` (sign 1), or back by class (sign -1)."""
    xp, classes = namespace(values), values.shape[-1]
    # differences of tokens leave the range of a dtype that is narrow or unsigned
    x = cast(x, xp.int32 if is_jax(x) else xp.int64)
    places = cast(beside(np.arange(classes), values), x.dtype)
    index = (places + sign * x[..., None]) % classes
    return xp.take_along_axis(values, index, axis=-1)


def _wide(x: Array) -> Array:
    return x[..., None]


def _safe_log(log_noise: Array) -> Array:
    """A level's ``log(1 - alpha)`` as a divisor: 0 for clean data, where nothing is divided."""
    xp = namespace(log_noise)
    return xp.where(log_noise == -math.inf, xp.zeros_like(log_noise), log_noise)


def _log(p: float) -> float:
    return math.log(p) if p > 0.0 else -math.inf


def _probability(name: str, value: Any) -> float:
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and 0.0 <= value <= 1.0):
        msg = f"{name} must be a number in [0, 1], got {value!r}"
        raise ValueError(msg)
    return float(value)
