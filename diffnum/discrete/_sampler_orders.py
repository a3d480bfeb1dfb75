"""Samplers that choose which tokens to settle by how sure the network is; their law is not that of the model.

See :doc:`/discrete/samplers`, which says why.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diffnum._arguments import choose, number
from diffnum._backend import Array, beside, cast, check_rng, convert, is_jax, namespace, random_words, scan
from diffnum.discrete._sampler_laws import check_masked
from diffnum.discrete._sampler_loop import Denoiser, _checked, grid_moments, tokens_of
from diffnum.discrete._sampler_shaping import shape_law
from diffnum.discrete._sampler_steps import ancestral
from diffnum.kernels._draws import integers
from diffnum.kernels._families import Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._tokens import pick, whole
from diffnum.kernels.categorical import draw

__all__ = ["commit_and_renoise", "confidence_ordered"]

_ORDERS = ("probability", "margin", "entropy", "random")


def confidence_ordered(
    denoise: Denoiser,
    x: Array,
    kernel: Interpolation,
    schedule: KeepSchedule,
    t: Array,
    /,
    *,
    rng: Any,
    order: str = "probability",
    temperature: float = 1.0,
) -> Array:
    """Reveal the surest masked tokens first, as many in each step as the schedule says, :eq:`discrete-samplers-order`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p``.
    x : array of int, shape (batch, length)
        Tokens; what is not masked is given.
    kernel : Interpolation
        An absorbing kernel.
    schedule : KeepSchedule
        After the step to s a share ``(1 - alpha_s)/(1 - alpha_start)`` of the masked tokens is left, rounded down.
    t : array, shape (N + 1,)
        Times, decreasing.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source.
    order : {"probability", "margin", "entropy", "random"}, optional
        Sureness: the probability of the token that was drawn, the lead of the likeliest over the next, minus the
        entropy, or none. It is measured on `log_p` as it is, whatever the temperature.
    temperature : float, optional
        Of the draw of tokens.

    Returns
    -------
    array of int, shape (batch, length)
        Tokens.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If an argument is out of range.

    References
    ----------
    H. Chang et al., MaskGIT: masked generative image transformer (2022); S. Nie et al., Large language diffusion models
    (2025).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = np.log([[[0.6, 0.4, 1e-300], [0.99, 0.01, 1e-300]]])
    >>> samplers.confidence_ordered(  # one of two tokens, the surer
    ...     lambda x, level: law, np.array([[2, 2]]), categorical.absorbing(3), categorical.keep_linear(), [1.0, 0.5],
    ...     rng=np.random.default_rng(0), temperature=0.0,
    ... )
    array([[2, 0]])
    """
    check_masked(kernel)
    choose("order", order, _ORDERS)
    x = tokens_of(kernel, "x", x)
    check_rng(rng, x)
    xp = namespace(x)
    levels, noise = _levels(kernel, schedule, t, x)
    masked = x == kernel.mask
    total = xp.sum(xp.astype(masked, noise.dtype), axis=1, keepdims=True)

    def body(x: Array, row: tuple) -> tuple[Array, None]:
        step, level, share = row
        log_p = _checked(denoise(x, level), x, kernel)
        token = cast(draw(rng, shape_law(log_p, temperature=temperature), row=2 * step), x.dtype)
        masked = x == kernel.mask
        sure = _sureness(order, log_p, token, rng, 2 * step + 1)
        sure = xp.where(masked, sure, xp.full_like(sure, -math.inf))
        rank = xp.argsort(xp.argsort(-sure, axis=1), axis=1)
        now = xp.sum(xp.astype(masked, noise.dtype), axis=1, keepdims=True)
        # a share of all masked tokens that is whole up to rounding is that whole number
        left = xp.floor(total * share + 1e-4)
        reveal = masked & (xp.astype(rank, noise.dtype) < now - left)
        return xp.where(reveal, token, x), None

    x, _ = scan(body, x, _table(levels, noise, x), x)
    return x


def commit_and_renoise(
    denoise: Denoiser,
    x: Array,
    kernel: Interpolation,
    schedule: KeepSchedule,
    t: Array,
    /,
    *,
    rng: Any,
    temperatures: tuple[float, float] = (0.8, 0.4),
    threshold: float | None = 1.0,
    patience: int = 2,
) -> Array:
    """The published rule of commit-and-renoise, :eq:`discrete-samplers-published`; its law is not that of the data.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p``: the law of the clean token that the rule reads.
    x : array of int, shape (batch, length)
        Noise.
    kernel : Interpolation
        Its law is what uncommitted tokens are drawn from.
    schedule : KeepSchedule
        Keep probability.
    t : array, shape (N + 1,)
        Times, decreasing.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source.
    temperatures : tuple of float, optional
        At the first step, and one step after the last.
    threshold : float or None, optional
        A sequence stops once its mean entropy is below this many nats in `patience` steps in a row; never if None.
    patience : int, optional
        Number of such steps.

    Returns
    -------
    array of int, shape (batch, length)
        Committed tokens, and the last draw of the others.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If an argument is out of range.

    Notes
    -----
    A token is committed from the second step on if the likeliest one is what it was, or is at least as likely as the
    likeliest was before; what is committed is a draw. Each sequence stops by its own entropy.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = np.log([0.999, 0.001])
    >>> samplers.commit_and_renoise(
    ...     lambda x, level: np.broadcast_to(law, (*x.shape, 2)), np.array([[1, 1]]), categorical.uniform(2),
    ...     categorical.keep_cosine(), np.linspace(1.0, 0.0, 5), rng=np.random.default_rng(0),
    ... )
    array([[0, 0]])
    """
    x = tokens_of(kernel, "x", x)
    check_rng(rng, x)
    if not isinstance(temperatures, tuple | list) or len(temperatures) != 2:
        msg = f"temperatures must be two numbers, got {temperatures!r}"
        raise ValueError(msg)
    hot, cold = (number("temperatures", value, above=0.0) for value in temperatures)
    limit = -math.inf if threshold is None else number("threshold", threshold)
    patience = whole("patience", patience)
    xp = namespace(x)
    levels, noise = _levels(kernel, schedule, t, x)
    count = noise.shape[0]
    log_pi = convert(kernel.log_law, x, noise.dtype)

    def body(state: tuple, row: tuple) -> tuple[tuple, None]:
        x, out, settled, likeliest, sure, calm, done = state
        step, level, _ = row
        log_p = cast(_checked(denoise(x, level), x, kernel), noise.dtype)
        best = cast(xp.argmax(log_p, axis=-1), x.dtype)
        now = xp.max(log_p, axis=-1)
        commits = ((best == likeliest) | (now >= sure)) & (step > 0)
        heat = hot - (hot - cold) * step / count
        token = cast(draw(rng, log_p / heat, row=2 * step), x.dtype)
        fresh = cast(draw(rng, xp.broadcast_to(log_pi, log_p.shape), row=2 * step + 1), x.dtype)
        open_ = ~settled & ~done
        out = xp.where(open_, token, out)
        settled = settled | (commits & open_)
        entropy = xp.mean(-xp.sum(xp.exp(log_p) * _finite(log_p), axis=-1), axis=1, keepdims=True)
        calm = xp.where(entropy < limit, calm + 1, xp.zeros_like(calm))
        x = xp.where(done, x, xp.where(settled, out, fresh))
        done = done | (calm >= patience)
        return (x, out, settled, best, now, calm, done), None

    never = x != x  # noqa: PLR0124
    state = (
        x,
        x,
        never,
        xp.zeros_like(x),
        xp.zeros(x.shape, dtype=noise.dtype) + math.inf if is_jax(x) else beside(np.full(x.shape, math.inf), x),
        xp.zeros_like(x[:, :1]),
        never[:, :1],
    )
    state, _ = scan(body, (*state[:4], cast(state[4], noise.dtype), *state[5:]), _table(levels, noise, x), x)
    return state[1]


def _levels(kernel: Any, schedule: Any, t: Any, like: Array) -> tuple[Keep, Array]:
    """Levels at the start of each step, and the noise at its end as a share of that at the first."""
    (many, final), _, _, _ = grid_moments(kernel, schedule, t, ancestral(), like)
    xp = namespace(like)
    ends = [tuple(m.level) for m in (*many, *final)]
    start, stop = ([xp.concat([ends[i][k], ends[i + 2][k]]) if many else ends[i][k] for k in range(3)] for i in (0, 1))
    level, after = Keep(*start), Keep(*stop)
    return level, xp.exp(after.log_noise - level.log_noise[0])


def _table(levels: Keep, noise: Array, like: Array) -> Any:
    xp, count = namespace(like), noise.shape[0]
    if is_jax(like):
        return xp.arange(count), levels, noise
    return [(n, Keep(*(part[n] for part in levels)), noise[n]) for n in range(count)]


def _sureness(order: str, log_p: Array, token: Array, rng: Any, row: Any) -> Array:
    xp = namespace(log_p)
    if order == "probability":
        return pick(log_p, token)
    if order == "random":
        words = random_words(rng, row, token)
        # half precision would neither hold these integers nor tell them apart
        return cast(integers(words, 1 << 23), xp.float32)
    if order == "margin":
        top = xp.exp(xp.sort(log_p, axis=-1)[..., -2:])
        return top[..., 1] - top[..., 0]
    return xp.sum(xp.exp(log_p) * _finite(log_p), axis=-1)


def _finite(log_p: Array) -> Array:
    xp = namespace(log_p)
    return xp.where(log_p == -math.inf, xp.zeros_like(log_p), log_p)
