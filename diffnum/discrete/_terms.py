"""Terms of the bound for each token: a step back, its limit per unit of time, the two ends, plain cross-entropy.

All are built from the leave-one-out law of the clean token, in O(K) for interpolations, and all but the cross-entropy
are sums of terms >= 0. See :doc:`/discrete/elbo`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance
from diffnum._backend import Array, asfloat, beside, cast, convert, namespace, state_dtype
from diffnum.kernels._families import Chain, Interpolation, Walk
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._logspace import logaddexp
from diffnum.kernels._tokens import as_levels, law_like, one_hot, pick, rows_of, tokens
from diffnum.kernels.categorical import marginal, mixture_posterior, posterior, to_leave_one_out, to_posterior

__all__ = [
    "HEADS",
    "Bound",
    "at_time",
    "checked",
    "cross_entropy",
    "jumps",
    "noisy_law",
    "prior",
    "rate_divergence",
    "reconstruction",
    "step_divergence",
]

Kernel = Interpolation | Walk | Chain

HEADS = ("leave_one_out", "posterior")
"""What a network's law of the clean token may be."""

_NEAR, _SERIES = 0.125, 10
"""Where exp(d) - 1 - d is a series, and its last power: the next is below 4e-16 of the first."""


class Bound(NamedTuple):
    """A variational bound of -log p(x_0), :eq:`discrete-elbo-bound`, in its three terms.

    Attributes
    ----------
    diffusion : array
        Sum or integral of the divergences of the steps but the last, to clean data.
    reconstruction : array
        The step to clean data.
    prior : array
        What is left of the data in the noisiest level.

    Examples
    --------
    >>> from diffnum.discrete import elbo
    >>> elbo.Bound(1.0, 0.25, 0.5).total
    1.75
    """

    diffusion: Array
    reconstruction: Array
    prior: Array

    @property
    def total(self) -> Array:
        """The bound of :eq:`discrete-elbo-bound`: without one of the terms it is none."""
        return self.diffusion + self.reconstruction + self.prior


def step_divergence(  # noqa: PLR0917
    kernel: Kernel, x_0: Array, x_t: Array, log_p: Array, s: Any, t: Any, /, *, head: str = "leave_one_out"
) -> Array:
    """Divergence of a step back from the true one for each token, :eq:`discrete-elbo-step`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean and noisy tokens.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token, normalised.
    s, t : Keep or int
        The less noisy and the noisier level. With s clean data it is the reconstruction term.
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.

    Returns
    -------
    array, shape (batch, length)
        Nats, >= 0; in the dtype of `log_p`, float32 at least.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, a token is no class, or the levels are not in order.

    Notes
    -----
    All terms of the sum are >= 0, so that steps which differ little keep their digits.

    References
    ----------
    J. Austin et al., Structured denoising diffusion models in discrete state-spaces (2021), Eq. 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> log_p = np.log([[[0.7, 0.3, 1e-300]]])
    >>> masked = np.array([[2]])
    >>> elbo.step_divergence(categorical.absorbing(3), 0 * masked, masked, log_p, s, t).round(6)  # -log(.7)/3
    array([[0.118892]])
    """
    x_0, x_t, log_p = checked(kernel, x_0, x_t, log_p, t, head)
    log_q = convert(posterior(kernel, x_t, x_0, s, t), log_p, log_p.dtype)
    return _sum(_excess(log_q, mixture_posterior(kernel, x_t, log_p, s, t)))


def rate_divergence(  # noqa: PLR0917
    kernel: Interpolation,
    x_0: Array,
    x_t: Array,
    log_p: Array,
    schedule: KeepSchedule,
    t: Array,
    /,
    *,
    head: str = "leave_one_out",
) -> Array:
    """Integrand of the bound in continuous time for each token, per unit of time, :eq:`discrete-elbo-rate`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean and noisy tokens.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token, normalised.
    schedule : KeepSchedule
        Continuous schedule.
    t : array
        Times in (0, 1], 0-d or of a shape that broadcasts to (batch, length).
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.

    Returns
    -------
    array, shape (batch, length)
        Nats per unit of time, >= 0; where alpha = 0 its limit. 0 where x_t is impossible for x_0.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match or a token is no class.

    Notes
    -----
    For the mask it is :eq:`discrete-elbo-absorbing`, for a uniform law :eq:`discrete-elbo-uniform`: one formula.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> log_p = np.log([[[0.7, 0.3, 1e-300]]])
    >>> masked = np.array([[2]])
    >>> elbo.rate_divergence(  # -log(.7)/t
    ...     categorical.absorbing(3), 0 * masked, masked, log_p, categorical.keep_linear(), np.asarray(0.5)
    ... ).round(6)
    array([[0.71335]])
    """
    instance("kernel", kernel, Interpolation)
    level, rate, slope = at_time(schedule, t)
    x_0, x_t, log_p = checked(kernel, x_0, x_t, log_p, level, head)
    noisy = noisy_law(kernel, log_p, level)
    here = pick(noisy, x_t)
    lost = here == -math.inf
    here = namespace(here).where(lost, namespace(here).zeros_like(here), here)[..., None]
    return jumps(kernel, x_0, x_t, (noisy - here, log_p - here, lost), level, (rate, slope))


def reconstruction(
    kernel: Kernel, x_0: Array, x_t: Array, log_p: Array, t: Any, /, *, head: str = "leave_one_out"
) -> Array:
    """The step from the cleanest level to clean data for each token, :eq:`discrete-elbo-reconstruction`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean tokens, and noisy ones at the cleanest level.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token, normalised.
    t : Keep or int
        The cleanest level.
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.

    Returns
    -------
    array, shape (batch, length)
        ``-log p(x_0 | x_t)`` of the posterior, in nats: it is 0 for an unmasked token.

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
    >>> x = np.array([[0]])
    >>> elbo.reconstruction(categorical.uniform(2), x, x, np.log([[[0.5, 0.5]]]), t).round(6)  # -log(.75)
    array([[0.287682]])
    """
    return cross_entropy(kernel, x_0, x_t, log_p, t, head=head)


def prior(kernel: Kernel, x_0: Array, t: Any, /, *, log_law: Array | None = None) -> Array:
    """Divergence of the noisiest level from the law that sampling starts from, :eq:`discrete-elbo-prior`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0 : array of int, shape (batch, length)
        Clean tokens.
    t : Keep or int
        The noisiest level.
    log_law : array, shape (K,), optional
        Logarithm of that law; the stationary one of an interpolation if left out, uniform for the others.

    Returns
    -------
    array, shape (batch, length)
        Nats, >= 0; infinite for absorbing noise with alpha > 0. In the dtype of the level.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class, or the law has another shape.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> x = np.array([[0]])
    >>> last = categorical.keep_log_linear().level(1.0)
    >>> elbo.prior(categorical.absorbing(3), x, last), elbo.prior(categorical.uniform(3), x, last).round(9)
    (array([[inf]]), array([[1.e-06]]))
    """
    log_q = marginal(kernel, x_0, t)
    if log_law is None:
        even = np.full(kernel.classes, -math.log(kernel.classes))
        log_law = kernel.log_law if isinstance(kernel, Interpolation) else even
    law = asfloat(log_law, "log_law")
    if tuple(law.shape) != (kernel.classes,):
        msg = f"log_law must have shape ({kernel.classes},), got {tuple(law.shape)}"
        raise ValueError(msg)
    xp = namespace(log_q)
    return _sum(_excess(log_q, xp.broadcast_to(convert(law, log_q, log_q.dtype), log_q.shape)))


def cross_entropy(
    kernel: Kernel,
    x_0: Array,
    x_t: Array,
    log_p: Array,
    t: Any,
    /,
    *,
    head: str = "leave_one_out",
    of: str = "posterior",
) -> Array:
    """Plain cross-entropy of the clean token, :eq:`discrete-elbo-cross-entropy`: a surrogate, and no bound.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean and noisy tokens.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token, normalised.
    t : Keep or int
        Level.
    head : {"leave_one_out", "posterior"}, optional
        What `log_p` is.
    of : {"posterior", "leave_one_out"}, optional
        Which law is judged. Both have their least mean at the exact denoiser.

    Returns
    -------
    array, shape (batch, length)
        Nats; in the dtype of `log_p`, float32 at least.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match or a token is no class.

    Notes
    -----
    Its mean over t is not comparable with the cross-entropy of an autoregressive model, which is a likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> x = np.array([[0]])
    >>> elbo.cross_entropy(categorical.uniform(2), x, x, np.log([[[0.5, 0.5]]]), t, of="leave_one_out").round(6)
    array([[0.693147]])
    """
    choose("of", of, HEADS)
    x_0, x_t, log_p = checked(kernel, x_0, x_t, log_p, t, head)
    return -pick(to_posterior(kernel, x_t, log_p, t) if of == "posterior" else log_p, x_0)


def jumps(  # noqa: PLR0917
    kernel: Interpolation,
    x_0: Array,
    x_t: Array,
    model: tuple[Array, Array, Array],
    level: Keep,
    speeds: tuple[Array, Array],
) -> Array:
    """``pi(z) sum_y speed_y [s_y - r_y + r_y log(r_y/s_y)]`` over jumps from z = x_t, ratios r true and s a model's.

    A class that noise never draws (pi = 0) has ratios of order alpha: it is counted by ``r/alpha`` and the slope, the
    others by r and the rate. So no term divides by alpha, which may be 0.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Clean and noisy tokens.
    model : tuple of array
        Logarithms of s and of s/alpha (read where pi = 0), (batch, length, K), and where they are infinite.
    level : Keep
        Level.
    speeds : tuple of array
        Rate and slope of the schedule.

    Returns
    -------
    array, shape (batch, length)
        Nats per unit of time.
    """
    log_s, log_s_thin, lost = model
    xp, width = namespace(log_s), kernel.classes
    (at,) = as_levels(level, like=log_s)
    rate, slope = (convert(asfloat(speed), log_s, log_s.dtype)[..., None] for speed in speeds)
    log_pi = law_like(kernel, log_s)
    source = rows_of(log_pi, x_t)
    log_q = marginal(kernel, x_0, at)
    here = pick(log_q, x_t)
    # what is never drawn anew was kept, and moves nowhere; what x_0 cannot become is not met
    still = (source == -math.inf) | (here == -math.inf)
    here = xp.where(still, xp.zeros_like(here), here)[..., None]
    thin = log_pi == -math.inf
    clean = xp.where(one_hot(x_0, width), xp.zeros_like(log_q), xp.full_like(log_q, -math.inf))
    log_r = xp.where(thin, clean, log_q) - here
    log_s = xp.where(thin, log_s_thin, log_s)
    # at pure noise all other ratios agree, and their differences vanish faster than the rate grows
    dead = ~thin & (at.log_alpha == -math.inf)[..., None]
    speed = xp.where(thin, slope, xp.where(rate == math.inf, xp.zeros_like(rate), rate))
    off = still[..., None] | lost[..., None] | dead
    nothing = xp.full_like(log_r, -math.inf)
    terms = _excess(xp.where(off, nothing, log_r), xp.where(off, nothing, log_s))
    # a term of 0 stays 0 and an infinite one infinite, also where nothing happens at the time
    idle = speed == 0.0
    total = _sum(xp.where(idle, xp.zeros_like(terms), terms) * xp.where(idle, xp.ones_like(speed), speed))
    found = xp.exp(xp.where(still, xp.zeros_like(source), source)) * total
    never = xp.zeros_like(found)
    return xp.where(still, never, xp.where(lost, xp.full_like(found, math.inf), found))


def noisy_law(kernel: Interpolation, log_p: Array, level: Keep) -> Array:
    """Law of the noisy token that a law of the clean one implies.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    log_p : array, shape (batch, length, K)
        Log-probabilities of the clean token.
    level : Keep
        Level.

    Returns
    -------
    array, shape (batch, length, K)
        Log-probabilities.
    """
    (at,) = as_levels(level, like=log_p)
    return logaddexp(at.log_alpha[..., None] + log_p, at.log_noise[..., None] + law_like(kernel, log_p))


def at_time(schedule: KeepSchedule, t: Array) -> tuple[Keep, Array, Array]:
    """Level, rate and slope of a schedule.

    Parameters
    ----------
    schedule : KeepSchedule
        Continuous schedule.
    t : array
        Times.

    Returns
    -------
    tuple
        `Keep` and two arrays.

    Raises
    ------
    TypeError
        If `schedule` is of another type.
    ValueError
        If it is one of steps.
    """
    instance("schedule", schedule, KeepSchedule)
    if schedule.steps is not None:
        msg = f"schedule must be continuous, got {schedule.name} of {schedule.steps} steps"
        raise ValueError(msg)
    return schedule.level(t), schedule.rate(t), schedule.slope(t)


def checked(  # noqa: PLR0917
    kernel: Kernel, x_0: Array, x_t: Array, log_p: Array, t: Any, head: str
) -> tuple[Array, Array, Array]:
    """Tokens and the leave-one-out law in one library, in the dtype in which sums are held.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0, x_t : array of int, shape (batch, length)
        Tokens.
    log_p : array, shape (batch, length, K)
        Log-probabilities, or for scores anything of that shape.
    t : Keep or int
        Level.
    head : str
        What `log_p` is.

    Returns
    -------
    tuple of array
        x_0, x_t and the leave-one-out law.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match.
    """
    choose("head", head, HEADS)
    log_p = asfloat(log_p, "log_p")
    x_0, x_t = (beside(tokens(kernel, name, x, t), log_p) for name, x in (("x_0", x_0), ("x_t", x_t)))
    if x_0.shape != x_t.shape or log_p.shape != (*x_t.shape, kernel.classes):
        msg = (
            f"log_p must have the shape of x_t and x_0 and one axis more of {kernel.classes}, got "
            f"{tuple(log_p.shape)} for {tuple(x_t.shape)} and {tuple(x_0.shape)}"
        )
        raise ValueError(msg)
    log_p = cast(log_p, state_dtype(log_p))
    return x_0, x_t, to_leave_one_out(kernel, x_t, log_p, t) if head == "posterior" else log_p


def _sum(terms: Array) -> Array:
    return namespace(terms).sum(terms, axis=-1)


def _excess(log_q: Array, log_p: Array) -> Array:
    """``p - q + q log(q/p)``: >= 0, to 14 digits also where p and q are close."""
    xp = namespace(log_q, log_p)
    q = xp.exp(log_q)
    # also where q underflows: 0 log 0 is 0
    empty = q == 0.0
    p = xp.exp(log_p)
    gap = xp.where(empty, xp.zeros_like(q), log_p - xp.where(empty, xp.zeros_like(q), log_q))
    near = abs(gap) < _NEAR
    small = xp.where(near, gap, xp.zeros_like(gap))
    series = xp.zeros_like(gap)
    for k in range(_SERIES, 1, -1):
        series = 1.0 / math.factorial(k) + small * series
    far = xp.where(near, xp.ones_like(gap), gap)
    return xp.where(empty, p, xp.where(near, q * small * small * series, p - q * (1.0 + far)))
