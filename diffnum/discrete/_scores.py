"""Ratios of the noisy law, their bound (score entropy), and the maps between them and the law of the clean token.

See :doc:`/discrete/elbo`.
"""

from __future__ import annotations

import math

import numpy as np

from diffnum._arguments import instance
from diffnum._backend import Array, concrete, namespace
from diffnum.discrete._terms import at_time, checked, jumps, noisy_law
from diffnum.kernels._families import Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._logspace import log_of, log_sum
from diffnum.kernels._tokens import as_levels, law_like, pick

__all__ = ["from_log_score", "score_entropy", "to_log_score"]

_ROUNDINGS = 64.0
"""Roundings of numbers up to 1 that a probability of 0 may be off by."""


def score_entropy(  # noqa: PLR0917
    kernel: Interpolation, x_0: Array, x_t: Array, log_score: Array, schedule: KeepSchedule, t: Array, /
) -> Array:
    """Integrand of the bound from log-ratios ``log p_t(y)/p_t(x_t)``, :eq:`discrete-elbo-score-entropy`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean and noisy tokens.
    log_score : array, shape (batch, length, K)
        Log-ratios for all y; 0 at y = x_t.
    schedule : KeepSchedule
        Continuous schedule.
    t : array
        Times in (0, 1], as in `rate_divergence`. At alpha = 0 ratios say nothing of classes that noise never draws.

    Returns
    -------
    array, shape (batch, length)
        Nats per unit of time, >= 0.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, a token is no class, or alpha = 0 and noise never draws some class (while JAX traces
        the result is NaN there).

    References
    ----------
    A. Lou, C. Meng and S. Ermon, Discrete diffusion modeling by estimating the ratios of the data distribution (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> x, linear = np.array([[0]]), categorical.keep_linear()
    >>> log_p = np.log([[[0.7, 0.3]]])
    >>> log_score = elbo.to_log_score(categorical.uniform(2), x, log_p, linear.level(0.5))
    >>> elbo.score_entropy(categorical.uniform(2), x, x, log_score, linear, np.asarray(0.5)).round(6)
    array([[0.102284]])
    """
    instance("kernel", kernel, Interpolation)
    level, rate, slope = at_time(schedule, t)
    x_0, x_t, log_score = checked(kernel, x_0, x_t, log_score, level, "leave_one_out")
    xp = namespace(log_score)
    (at,) = as_levels(level, like=log_score)
    dead = (at.log_alpha == -math.inf)[..., None]
    thin = law_like(kernel, log_score) == -math.inf
    known, gaps = concrete(dead), concrete(thin)
    if known is not None and gaps is not None and known.any() and gaps.any():
        msg = f"t must have alpha > 0 for {kernel.name}, whose noise never draws some class; got alpha = 0"
        raise ValueError(msg)
    divisor = xp.where(dead, xp.zeros_like(at.log_alpha[..., None]), at.log_alpha[..., None])
    log_thin = xp.where(dead & thin, xp.full_like(log_score, math.nan), log_score - divisor)
    lost = xp.zeros_like(log_score[..., 0]) > 0.0
    return jumps(kernel, x_0, x_t, (log_score, log_thin, lost), level, (rate, slope))


def to_log_score(kernel: Interpolation, x_t: Array, log_p: Array, t: Keep, /, *, head: str = "leave_one_out") -> Array:
    """Log-ratios of the noisy law from the law of the clean token, :eq:`discrete-elbo-score`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (batch, length)
        Noisy tokens.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token, normalised.
    t : Keep
        Level.
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.

    Returns
    -------
    array, shape (batch, length, K)
        ``log p_t(y)/p_t(x_t)``, 0 at y = x_t; +inf for all other possible y where the law makes x_t impossible.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match or a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> np.exp(elbo.to_log_score(categorical.uniform(2), np.array([[0]]), np.log([[[0.7, 0.3]]]), t)).round(6)
    array([[[1.      , 0.666667]]])
    """
    instance("kernel", kernel, Interpolation)
    _, x_t, log_p = checked(kernel, x_t, x_t, log_p, t, head)
    xp = namespace(log_p)
    noisy = noisy_law(kernel, log_p, t)
    here = pick(noisy, x_t)[..., None]
    lost = here == -math.inf
    found = noisy - xp.where(lost, xp.zeros_like(here), here)
    return xp.where(lost & (noisy > -math.inf), xp.full_like(found, math.inf), xp.where(lost, noisy, found))


def from_log_score(kernel: Interpolation, x_t: Array, log_score: Array, t: Keep, /) -> Array:
    """Leave-one-out law from log-ratios of the noisy law, :eq:`discrete-elbo-from-score`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (batch, length)
        Noisy tokens.
    log_score : array, shape (batch, length, K)
        ``log p_t(y)/p_t(x_t)``, finite at y = x_t.
    t : Keep
        Level with alpha > 0.

    Returns
    -------
    array, shape (batch, length, K)
        Log-probabilities, normalised.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, a token is no class, alpha = 0, or the ratios belong to no law: a network's need not.
        While JAX traces, what would be negative counts as 0.

    Notes
    -----
    ``(p_t - (1 - alpha) pi)/alpha`` loses digits as alpha falls: the score of nearly pure noise says little of x_0.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> log_score = np.log([[[1.0, 2 / 3]]])
    >>> np.exp(elbo.from_log_score(categorical.uniform(2), np.array([[0]]), log_score, t)).round(6)
    array([[[0.7, 0.3]]])
    """
    instance("kernel", kernel, Interpolation)
    _, x_t, log_score = checked(kernel, x_t, x_t, log_score, t, "leave_one_out")
    xp = namespace(log_score)
    (at,) = as_levels(t, like=log_score)
    alpha, noise = at.alpha[..., None], at.noise[..., None]
    known = concrete(alpha)
    if known is not None and not (known > 0.0).all():
        msg = f"t must have alpha > 0, where ratios tell of the clean token; got alpha = {known.min()}"
        raise ValueError(msg)
    noisy = xp.exp(log_score - log_sum(log_score))
    p = (noisy - noise * xp.exp(law_like(kernel, log_score))) / alpha
    found = concrete(p)
    if found is not None and known is not None:
        below = found + _ROUNDINGS * float(np.finfo(found.dtype).eps) / known < 0.0
        if below.any():
            msg = f"log_score must be the ratios of some law at this level, got a probability of {found[below].min():g}"
            raise ValueError(msg)
    p = xp.where(p > 0.0, p, xp.zeros_like(p))
    return log_of(p / xp.sum(p, axis=-1, keepdims=True))
