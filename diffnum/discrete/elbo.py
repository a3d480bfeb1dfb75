"""Variational bounds of categorical diffusion, discrete and continuous in time, and their unbiased estimates.

What a network's head means is decided here: it is the *leave-one-out* law of a clean token, given all noisy tokens but
its own. Bound, cross-entropy, score and ancestral step are all formed from it in O(K); a head that gives the posterior,
given all noisy tokens, is converted when it is declared (``head="posterior"``). Derivation: :doc:`/discrete/elbo`.

Conventions. Everything is in nats. Tokens x_0, x_t have shape (batch, length), laws ``log_p`` one more axis of K, and
are normalised. s and t are levels of increasing noise, as in `diffnum.kernels.categorical`. A denoiser is a function
``(x_t, level) -> log_p``; the laws `table` and `markov` have exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, asfloat, beside, cast, concrete, convert, namespace, uniform
from diffnum._times import METHODS
from diffnum.discrete._exact import exact_bound, exact_law
from diffnum.discrete._oracles import MarkovChain, Table, markov, table
from diffnum.discrete._scores import from_log_score, score_entropy, to_log_score
from diffnum.discrete._terms import (
    HEADS,
    Bound,
    checked,
    cross_entropy,
    prior,
    rate_divergence,
    reconstruction,
    step_divergence,
)
from diffnum.kernels._families import Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._tokens import pick, tokens, whole
from diffnum.kernels.categorical import q_sample, sample_canvas_t

__all__ = [
    "Bound",
    "MarkovChain",
    "Table",
    "TimeLaw",
    "bound",
    "count_bound",
    "cross_entropy",
    "exact_bound",
    "exact_law",
    "from_log_score",
    "markov",
    "prior",
    "rate_divergence",
    "reconstruction",
    "score_entropy",
    "step_divergence",
    "table",
    "time_law",
    "to_log_score",
]

Denoiser = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False)
class TimeLaw:
    """A law of training times, constant on cells of equal width, :eq:`discrete-elbo-importance`; `time_law` makes it.

    Parameters
    ----------
    heights : array, shape (n,)
        Density on each cell of (0, 1), with mean 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> law = elbo.time_law([1.0, 3.0])
    >>> law.place(np.array([0.25])), law.density(np.array([0.75]))
    (array([0.5]), array([1.5]))
    """

    heights: np.ndarray = field(repr=False)

    def place(self, u: Array, /) -> Array:
        """Time below which the law has mass `u`, :eq:`discrete-elbo-importance`."""
        u = asfloat(u, "u")
        n = len(self.heights)
        mass = np.concatenate([[0.0], np.cumsum(self.heights) / n])
        cell = self._cell(u, mass[1:-1])
        low, height = (self._taken(values, cell, u) for values in (mass[:-1], self.heights))
        left = cast(cell, u.dtype) / n
        # rounding must not leave the cell
        return namespace(u).minimum(namespace(u).maximum(left + (u - low) / height, left), left + 1.0 / n)

    def density(self, t: Array, /) -> Array:
        """Density of :eq:`discrete-elbo-importance` at time `t`."""
        t = asfloat(t, "t")
        return self._taken(self.heights, self._cell(t, np.arange(1, len(self.heights)) / len(self.heights)), t)

    @staticmethod
    def _cell(at: Array, edges: np.ndarray) -> Array:
        xp = namespace(at)
        return xp.sum(xp.astype(at[..., None] > convert(edges, at, at.dtype), xp.int32), axis=-1)

    @staticmethod
    def _taken(values: np.ndarray, cell: Array, like: Array) -> Array:
        xp = namespace(like)
        flat = xp.take(convert(values, like, like.dtype), xp.reshape(cell, (-1,)), axis=0)
        return xp.reshape(flat, cell.shape)


def bound(
    kernel: Interpolation,
    schedule: KeepSchedule,
    x_0: Array,
    denoise: Denoiser,
    rng: Any,
    /,
    *,
    steps: int | None = None,
    t_clean: float = 0.0,
    t_noise: float = 1.0,
    method: str = "stratified",
    law: TimeLaw | None = None,
    head: str = "leave_one_out",
) -> Bound:
    """Unbiased estimate of the bound of each sequence, one time for each, :eq:`discrete-elbo-estimate`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    schedule : KeepSchedule
        Schedule of the keep probability.
    x_0 : array of int, shape (batch, length)
        Clean tokens.
    denoise : callable
        ``(x_t, level) -> log_p``; the level has entries of shape (batch, 1).
    rng : numpy.random.Generator, jax.random key or torch.Generator
        Source of times and noise, of the library of `x_0`.
    steps : int, optional
        Number T of steps at multiples of 1/T; that of the schedule if it has one, else continuous time.
    t_clean, t_noise : float, optional
        Ends of continuous time. The two end terms are those at these times.
    method : str, optional
        How times spread over the batch, as in `diffnum.kernels.categorical.sample_canvas_t`.
    law : TimeLaw, optional
        Law of the times, on (0, 1) between the two ends; terms are divided by its density. Uniform if left out.
    head : {"leave_one_out", "posterior"}, optional
        What `denoise` gives.

    Returns
    -------
    Bound
        Arrays of shape (batch,). The first two are random, in steps only one of them at a time is not 0.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a number is out of range.

    Notes
    -----
    One call of the denoiser; another one in continuous time where alpha(t_clean) < 1.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> model, kernel, x = elbo.table([0.25, 0.75], mask=True), categorical.absorbing(3), np.ones((1000, 1), int)
    >>> denoise = lambda x_t, level: model.denoise(x_t, kernel, level)
    >>> terms = elbo.bound(kernel, categorical.keep_linear(), x, denoise, np.random.default_rng(0), steps=8)
    >>> bool(abs(np.mean(terms.total) + np.log(0.75)) < 0.04)
    True
    """
    x_0 = _sequences(kernel, schedule, x_0, method)
    choose("head", head, HEADS)
    low_end, high_end = number("t_clean", t_clean, least=0.0), number("t_noise", t_noise, above=float(t_clean))
    batch = x_0.shape[0]
    u = sample_canvas_t(rng, batch, 1, method=method)
    if law is not None:
        instance("law", law, TimeLaw)
        u = law.place(u)
    weight = namespace(u).ones_like(u)[:, 0] if law is None else 1.0 / law.density(u)[:, 0]
    steps = schedule.steps if steps is None else steps
    if steps is None:
        width = high_end - low_end
        t = low_end + width * u
        level = schedule.level(t)
        x_t = q_sample(rng, x_0, level, kernel, row=1)
        term = _summed(rate_divergence(kernel, x_0, x_t, denoise(x_t, level), schedule, t, head=head))
        last = _summed(prior(kernel, x_0, _end(schedule, high_end, u)))
        diffusion = _weighted(width * weight, term)
        if float(schedule.level(np.asarray(low_end)).log_noise) == -math.inf:
            return Bound(diffusion, namespace(diffusion).zeros_like(diffusion), last)
        level = _end(schedule, low_end, u)
        x_t = q_sample(rng, x_0, level, kernel, row=2)
        back = reconstruction(kernel, x_0, x_t, denoise(x_t, level), level, head=head)
        return Bound(diffusion, _summed(back), last)
    if (low_end, high_end) != (0.0, 1.0):
        msg = f"t_clean and t_noise must be 0 and 1 where time has steps, got {t_clean} and {t_noise}"
        raise ValueError(msg)
    xp = namespace(u)
    k = xp.ceil(u * whole("steps", steps))
    before, level = schedule.level((k - 1.0) / steps), schedule.level(k / steps)
    x_t = q_sample(rng, x_0, level, kernel, row=1)
    term = _summed(step_divergence(kernel, x_0, x_t, denoise(x_t, level), before, level, head=head))
    term = _weighted(steps * weight, term)
    first = k[:, 0] == 1.0
    zero = namespace(term).zeros_like(term)
    xp = namespace(term)
    last = _summed(prior(kernel, x_0, _end(schedule, 1.0, u)))
    return Bound(xp.where(first, zero, term), xp.where(first, term, zero), last)


def count_bound(
    kernel: Interpolation,
    x_0: Array,
    denoise: Denoiser,
    rng: Any,
    /,
    *,
    method: str = "stratified",
    head: str = "leave_one_out",
) -> Array:
    """Unbiased estimate of the absorbing bound with a fixed number of masks, :eq:`discrete-elbo-count`.

    Parameters
    ----------
    kernel : Interpolation
        An absorbing family.
    x_0 : array of int, shape (batch, length)
        Clean tokens.
    denoise : callable
        ``(x_t, level) -> log_p``, a denoiser that does not depend on time; alpha of the level is the share of tokens
        that are left, and the entries have shape (batch, 1).
    rng : numpy.random.Generator, jax.random key or torch.Generator
        Source of counts and places, of the library of `x_0`.
    method : str, optional
        How counts spread over the batch, as in `bound`.
    head : {"leave_one_out", "posterior"}, optional
        What `denoise` gives.

    Returns
    -------
    array, shape (batch,)
        Nats: all of the bound of a schedule from 1 to 0.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the family has no mask alone, a number is out of range, or `denoise` returns another shape.

    Notes
    -----
    The variance of the number of masks given the time is gone. Counts are integers 1 to L, each as likely as it should
    be for every L and batch.

    References
    ----------
    S. Nie et al., Large language diffusion models (2025), Eq. 6.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> from diffnum.kernels import categorical
    >>> model, kernel, x = elbo.table([0.25, 0.75], mask=True), categorical.absorbing(3), np.ones((2, 1), int)
    >>> denoise = lambda x_t, level: model.denoise(x_t, kernel, level)
    >>> elbo.count_bound(kernel, x, denoise, np.random.default_rng(0)).round(6)  # one token: no variance
    array([0.287682, 0.287682])
    """
    x_0 = _sequences(kernel, None, x_0, method)
    choose("head", head, HEADS)
    if kernel.kind != "point" or kernel.mask is None:
        msg = f"kernel must be absorbing, got {kernel.name}"
        raise ValueError(msg)
    batch, length = x_0.shape
    share = sample_canvas_t(rng, batch, 1, method=method, steps=length)
    xp = namespace(share)
    masks = xp.round(share * length)
    places = xp.zeros_like(masks) + xp.zeros((batch, length), dtype=masks.dtype)
    # the rank of a uniform among those of its row is a random permutation
    order = xp.argsort(xp.argsort(uniform(rng, 2, places), axis=-1), axis=-1)
    hidden = cast(order, masks.dtype) < masks
    level = _of_counts(masks, length)
    x_t = xp.where(hidden, xp.full_like(x_0, kernel.mask), x_0)
    x_0, _, log_p = checked(kernel, x_0, x_t, denoise(x_t, level), level, head)
    loss = -pick(log_p, x_0)
    loss = namespace(loss).where(beside(hidden, loss), loss, namespace(loss).zeros_like(loss))
    return _weighted(length / masks[:, 0], _summed(loss))


def time_law(heights: Array, /, *, share: float = 0.0) -> TimeLaw:
    """Law of training times with given density on equal cells of (0, 1), :eq:`discrete-elbo-importance`.

    Parameters
    ----------
    heights : array, shape (n,)
        Density up to a constant, > 0; least variance if it is the root mean square of the loss on the cell.
    share : float, optional
        Share of a uniform law mixed in, in [0, 1]: no weight is then above 1/share.

    Returns
    -------
    TimeLaw
        The law.

    Raises
    ------
    TypeError
        If `heights` is not real.
    ValueError
        If a density is not positive, or `share` out of range.

    References
    ----------
    A. Nichol and P. Dhariwal, Improved denoising diffusion probabilistic models (2021), Eq. 18.

    Examples
    --------
    >>> from diffnum.discrete import elbo
    >>> elbo.time_law([1.0, 3.0], share=0.5).heights
    array([0.75, 1.25])
    """
    known = concrete(asfloat(heights, "heights"))
    share = number("share", share, least=0.0)
    if share > 1.0:
        msg = f"share must be in [0, 1], got {share}"
        raise ValueError(msg)
    if known is None or known.ndim != 1 or known.size < 1 or not np.isfinite(known).all() or not (known >= 0.0).all():
        msg = f"heights must be known numbers >= 0 of shape (n,), got {heights!r}"
        raise ValueError(msg)
    known = known.astype(float)
    total = known.mean()
    found = (1.0 - share) * known / total + share if total > 0.0 else np.zeros(1)
    if not (found > 0.0).all():
        msg = f"heights must be > 0 where share is 0: a time that is never drawn leaves out its term; got {heights!r}"
        raise ValueError(msg)
    return TimeLaw(found)


def _sequences(kernel: Any, schedule: Any, x_0: Any, method: str) -> Array:
    instance("kernel", kernel, Interpolation)
    if schedule is not None:
        instance("schedule", schedule, KeepSchedule)
    choose("method", method, METHODS)
    x_0 = tokens(kernel, "x_0", x_0, None)
    if x_0.ndim != 2:
        msg = f"x_0 must have shape (batch, length), got {tuple(x_0.shape)}"
        raise ValueError(msg)
    return x_0


def _end(schedule: KeepSchedule, t: float, like: Array) -> Keep:
    """Level of an end, the same for all sequences."""
    return schedule.level(namespace(like).full_like(like, t))


def _of_counts(masks: Array, length: int) -> Keep:
    """Level at which a share of tokens is masked."""
    xp = namespace(masks)
    noise = masks / length
    last = masks == length
    log_alpha = xp.log1p(-xp.where(last, xp.zeros_like(noise), noise))
    return Keep(noise, xp.where(last, xp.full_like(noise, -math.inf), log_alpha), xp.log(noise))


def _weighted(weight: Array, term: Array) -> Array:
    return cast(weight, term.dtype) * term


def _summed(term: Array) -> Array:
    return namespace(term).sum(term, axis=-1)
