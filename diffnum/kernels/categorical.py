"""Transition kernels of categorical diffusion: keep probability, kernels, posteriors, draws, information.

A token is kept with probability alpha_t or drawn anew from a law pi (`Interpolation`), or it walks among its neighbours
(`Walk`, `Chain`). Whatever the family, the functions below give the law of a token at one level given others, as
logarithms, at a cost of O(K) for interpolations. Derivation: :doc:`/kernels/categorical`.

Conventions. Tokens are integers 0, ..., K - 1 of any shape; log-probabilities have one more axis, the last, of K.
s and t are levels of increasing noise, s before t: a `Keep` of 0-d arrays or of arrays that broadcast against the
tokens; for a `Chain` step numbers. Cumulative quantities carry one index, alpha_t; those of an interval two:
alpha_{t|s}.
A law of x_0 that a network gives is the *leave-one-out* law, of the clean token given all noisy ones but its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from diffnum import _backend
from diffnum._arguments import choose, instance
from diffnum._backend import Array, asfloat, beside, cast, concrete, convert, namespace, state_dtype
from diffnum._times import METHODS, mean_variance, uniforms
from diffnum.kernels._draws import from_table, happens, integers, race
from diffnum.kernels._families import (
    Chain,
    Interpolation,
    Walk,
    absorbing,
    band,
    discretised_gaussian,
    hybrid,
    matrix_of_walk,
    similarity,
    stationary,
    uniform,
)
from diffnum.kernels._keep import (
    Keep,
    KeepSchedule,
    keep_cosine,
    keep_discrete,
    keep_geometric,
    keep_linear,
    keep_linear_rate,
    keep_log_linear,
    keep_log_odds,
    keep_polynomial,
    keep_sigmoid,
    preset,
)
from diffnum.kernels._logspace import log1mexp, log_of, log_sum, logaddexp
from diffnum.kernels._tokens import as_levels, law_like, one_hot, rows_of, tokens, whole

__all__ = [
    "Chain",
    "Interpolation",
    "Keep",
    "KeepSchedule",
    "Walk",
    "absorbing",
    "band",
    "between",
    "canvas_variance",
    "discretised_gaussian",
    "draw",
    "hybrid",
    "keep_cosine",
    "keep_discrete",
    "keep_geometric",
    "keep_linear",
    "keep_linear_rate",
    "keep_log_linear",
    "keep_log_odds",
    "keep_polynomial",
    "keep_sigmoid",
    "likelihood",
    "log_likelihood_ratio",
    "marginal",
    "mixture_posterior",
    "mutual_information",
    "posterior",
    "preset",
    "q_sample",
    "sample_canvas_t",
    "similarity",
    "spread_canvas",
    "stationary",
    "to_leave_one_out",
    "to_posterior",
    "transition",
    "uniform",
]

Kernel = Interpolation | Walk | Chain

_SERIES = 20
"""Terms of the series of (1 + d) log(1 + d) - d: at |d| = .15 the next one is below 1e-18."""


def between(s: Keep, t: Keep, /) -> Keep:
    """Level of the interval from `s` to `t`: alpha_{t|s} and 1 - alpha_{t|s}, :eq:`kernels-categorical-interval`.

    Parameters
    ----------
    s : Keep
        The less noisy level.
    t : Keep
        The noisier level. Where both are pure noise nothing happens.

    Returns
    -------
    Keep
        Logarithms of both; its time is that of `t`.

    Raises
    ------
    TypeError
        If an argument is no `Keep`.
    ValueError
        If `t` is less noisy than `s`.

    Notes
    -----
    The relative error of 1 - alpha_{t|s} is that of ``log alpha_t - log alpha_s``: near clean data, where both are
    small, a few roundings. ``1 - alpha_t/alpha_s`` has an error of a rounding of 1 instead.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> schedule = categorical.keep_linear()
    >>> step = categorical.between(schedule.level(0.5), schedule.level(0.75))
    >>> float(step.alpha), float(step.noise)
    (0.5, 0.5)
    """
    instance("s", s, Keep)
    instance("t", t, Keep)
    xp = namespace(s.log_alpha, t.log_alpha)
    a, b = (p if namespace(p) is xp else xp.asarray(p) for p in (asfloat(s.log_alpha), asfloat(t.log_alpha)))
    lost = a == -math.inf
    log_alpha = xp.where(lost, xp.zeros_like(b), b) - xp.where(lost, xp.zeros_like(a), a)
    _check_order(a, b, log_alpha)
    # what remains above 0 is rounding of equal levels
    log_alpha = xp.minimum(log_alpha, xp.zeros_like(log_alpha))
    return Keep(t.t, log_alpha, log1mexp(log_alpha))


def transition(kernel: Kernel, t: Any, s: Any = None, /) -> Array:
    """Matrix Q_{t|s}, or Q_t without `s`: rows x_s, columns x_t, :eq:`kernels-categorical-transition`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    t : Keep or int
        The noisier level, 0-d; the step number for a `Chain`.
    s : Keep or int, optional
        The less noisy level; clean data if left out.

    Returns
    -------
    array, shape (K, K)
        Probabilities.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the levels are not in order, or not 0-d.

    Notes
    -----
    K^2 numbers, for small K and for tests: an interpolation never needs them.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.75)
    >>> categorical.transition(categorical.absorbing(3), t).round(2)
    array([[0.25, 0.  , 0.75],
           [0.  , 0.25, 0.75],
           [0.  , 0.  , 1.  ]])
    """
    if isinstance(kernel, Chain):
        return _product(kernel, 0 if s is None else _step(kernel, "s", s), _step(kernel, "t", t))
    level = _interval(s, t)
    if level.log_alpha.ndim:
        msg = f"t must be a level of 0-d arrays, got shape {tuple(level.log_alpha.shape)}"
        raise ValueError(msg)
    xp = namespace(level.log_alpha)
    if isinstance(kernel, Walk):
        return matrix_of_walk(kernel, -level.log_alpha)
    instance("kernel", kernel, Interpolation)
    law = law_like(kernel, level.log_alpha)
    one = xp.astype(xp.eye(kernel.classes), level.log_alpha.dtype)
    return level.alpha * one + level.noise * xp.exp(law)[None, :]


def marginal(kernel: Kernel, x_0: Array, t: Any, /) -> Array:
    """Logarithm of q(x_t | x_0) for all x_t, :eq:`kernels-categorical-marginal`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_0 : array of int, shape (...)
        Clean tokens.
    t : Keep or int
        Level, 0-d or of the shape of `x_0`; 0-d for a `Walk`, a step number for a `Chain`.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, in the dtype of the level.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.75)
    >>> np.exp(categorical.marginal(categorical.uniform(3), 1, t)).round(3)
    array([0.25, 0.5 , 0.25])
    """
    x_0 = tokens(kernel, "x_0", x_0, t)
    if not isinstance(kernel, Interpolation):
        return rows_of(log_of(transition(kernel, t)), x_0)
    level = as_levels(t, like=x_0)[0]
    fresh = _wide(level.log_noise) + law_like(kernel, level.log_alpha)
    kept = logaddexp(_wide(level.log_alpha), fresh)
    return namespace(x_0, fresh).where(one_hot(x_0, kernel.classes), kept, fresh)


def likelihood(kernel: Kernel, x_t: Array, t: Any, /) -> Array:
    """Logarithm of q(x_t | x_0) for all x_0: what the noisy token says about its own clean one.

    The same matrix as :eq:`kernels-categorical-marginal`, read by columns.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    t : Keep or int
        Level, as in `marginal`.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, which do not sum to 1.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.75)
    >>> np.exp(categorical.likelihood(categorical.absorbing(3), 2, t)).round(3)
    array([0.75, 0.75, 1.  ])
    """
    x_t = tokens(kernel, "x_t", x_t, t)
    if not isinstance(kernel, Interpolation):
        return rows_of(log_of(transition(kernel, t)).T, x_t)
    level = as_levels(t, like=x_t)[0]
    fresh = level.log_noise + rows_of(law_like(kernel, level.log_alpha), x_t)
    kept = logaddexp(level.log_alpha, fresh)
    return namespace(x_t, fresh).where(one_hot(x_t, kernel.classes), _wide(kept), _wide(fresh))


def posterior(kernel: Kernel, x_t: Array, x_0: Array, s: Any, t: Any, /) -> Array:
    """Logarithm of q(x_s | x_t, x_0) for all x_s, :eq:`kernels-categorical-posterior`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t, x_0 : array of int, shape (...)
        Noisy and clean tokens.
    s, t : Keep or int
        The less noisy and the noisier level.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities. Where x_t is impossible for x_0, all weight is on x_t: it is carried over.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class, or the levels are not in order.

    Notes
    -----
    O(K) for an interpolation, O(K^2) for a token of the others.

    References
    ----------
    J. Austin et al., Structured denoising diffusion models in discrete state-spaces (2021), Eq. 3.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> np.exp(categorical.posterior(categorical.absorbing(3), 2, 0, s, t)).round(3)  # one of three is revealed
    array([0.333, 0.   , 0.667])
    """
    x_t, x_0 = tokens(kernel, "x_t", x_t, t), tokens(kernel, "x_0", x_0, t)
    xp = namespace(x_t, x_0)
    if not isinstance(kernel, Interpolation):
        return _dense_reverse(kernel, x_t, rows_of(log_of(transition(kernel, s)), x_0), s, t)
    levels = low, high = as_levels(s, t, like=x_t)
    fresh = _wide(low.log_noise) + law_like(kernel, low.log_alpha)
    inner = xp.where(one_hot(x_0, kernel.classes), logaddexp(_wide(low.log_alpha), fresh), fresh)
    noise = high.log_noise + rows_of(law_like(kernel, high.log_alpha), x_t)
    return _reverse(kernel, x_t, inner, xp.where(x_0 == x_t, logaddexp(high.log_alpha, noise), noise), levels)


def mixture_posterior(
    kernel: Kernel, x_t: Array, log_p: Array, s: Any, t: Any, /, *, head: str = "leave_one_out"
) -> Array:
    """Logarithm of p(x_s | x_t) when x_0 has a law and not a value, :eq:`kernels-categorical-mixture`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Log-probabilities of x_0, normalised.
    s, t : Keep or int
        The less noisy and the noisier level.
    head : {"leave_one_out", "posterior"}, optional
        Whether `log_p` leaves the noisy token itself out, or is the law of x_0 given all of x_t.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, in the library and dtype of `log_p`; weight on x_t alone where `log_p` makes x_t impossible.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match, a token is no class, or the levels are not in order.

    Notes
    -----
    O(K) for an interpolation: the normaliser is known, so nothing is summed. It is the step of ancestral sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> s, t = map(categorical.keep_linear().level, (0.5, 0.75))
    >>> log_p = np.log([0.7, 0.2, 0.1])
    >>> np.exp(categorical.mixture_posterior(categorical.uniform(3), 0, log_p, s, t)).round(3)
    array([0.81 , 0.105, 0.085])
    """
    choose("head", head, ("leave_one_out", "posterior"))
    if head == "posterior":
        log_p = to_leave_one_out(kernel, x_t, log_p, t)
    log_p = asfloat(log_p, "log_p")
    xp, state = namespace(log_p), state_dtype(log_p)
    x_t = beside(tokens(kernel, "x_t", x_t, t), log_p)
    _check_law(kernel, x_t, log_p)
    law = cast(log_p, state)
    if not isinstance(kernel, Interpolation):
        inner = log_of(xp.exp(law) @ convert(transition(kernel, s), law, state))
        return cast(_dense_reverse(kernel, x_t, inner, s, t), log_p.dtype)
    levels = low, high = as_levels(s, t, like=law)
    pi = law_like(kernel, law)
    inner = logaddexp(_wide(low.log_alpha) + law, _wide(low.log_noise) + pi)
    index = x_t if _backend.is_jax(x_t) else cast(x_t, xp.int64)
    here = xp.take_along_axis(law, index[..., None], axis=-1)[..., 0]
    norm = logaddexp(high.log_alpha + here, high.log_noise + rows_of(pi, x_t))
    return cast(_reverse(kernel, x_t, inner, norm, levels), log_p.dtype)


def to_posterior(kernel: Kernel, x_t: Array, log_p: Array, t: Any, /) -> Array:
    """Law of x_0 given all of x_t from the leave-one-out law, :eq:`kernels-categorical-leave-one-out`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Leave-one-out log-probabilities, up to a constant.
    t : Keep or int
        Level.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, normalised.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match or a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> np.exp(categorical.to_posterior(categorical.uniform(2), 0, np.log([0.5, 0.5]), t)).round(3)
    array([0.75, 0.25])
    """
    return _times_likelihood(kernel, x_t, log_p, t, 1.0)


def to_leave_one_out(kernel: Kernel, x_t: Array, log_p: Array, t: Any, /) -> Array:
    """Leave-one-out law from the law of x_0 given all of x_t, :eq:`kernels-categorical-leave-one-out`, backwards.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    log_p : array, shape (..., K)
        Log-probabilities of x_0 given all of x_t, up to a constant.
    t : Keep or int
        Level.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, normalised. Where x_t settles x_0 (an unmasked token) the leave-one-out law is not in the
        posterior, and the weight stays on x_t.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match or a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_linear().level(0.5)
    >>> np.exp(categorical.to_leave_one_out(categorical.uniform(2), 0, np.log([0.75, 0.25]), t)).round(3)
    array([0.5, 0.5])
    """
    return _times_likelihood(kernel, x_t, log_p, t, -1.0)


def q_sample(rng: Any, x_0: Array, t: Keep, kernel: Interpolation, /, *, row: int = 0) -> Array:
    """Draw x_t given x_0 in one go, :eq:`kernels-categorical-draw`: no chain is iterated.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source; one for each ``x_0[i]`` if a batch is given. A callable ``(row, like) -> words`` prescribes the 32-bit
        words: row 3 `row` decides what is kept, the next two what the rest becomes.
    x_0 : array of int, shape (...)
        Clean tokens.
    t : Keep
        Level, of arrays that broadcast to the shape of `x_0`.
    kernel : Interpolation
        The family; its law must be known when JAX traces.
    row : int, optional
        Number of the draw.

    Returns
    -------
    array of int, shape (...)
        Noisy tokens, of the dtype of `x_0`.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class.

    Notes
    -----
    One word for each token, one more for a uniform law, two more for any other (alias method). alpha = 0 keeps nothing
    and alpha = 1 everything; a class of probability 0 is never drawn.

    References
    ----------
    A. Walker, An efficient method for generating discrete random variables with general distributions (1977).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_cosine().level(1.0)
    >>> categorical.q_sample(np.random.default_rng(0), np.zeros(4, int), t, categorical.absorbing(9))
    array([8, 8, 8, 8])
    """
    instance("kernel", kernel, Interpolation)
    instance("t", t, Keep)
    x_0 = tokens(kernel, "x_0", x_0, t)
    xp = namespace(x_0)
    (level,) = as_levels(t, like=x_0)
    kept = happens(_backend.random_words(rng, 3 * row, x_0), level.alpha, level.noise)
    if kernel.kind == "point":
        fresh = xp.full_like(x_0, kernel.mask)
    elif kernel.kind == "uniform":
        fresh = integers(_backend.random_words(rng, 3 * row + 1, x_0), kernel.classes)
    else:
        log_law = concrete(kernel.log_law)
        if log_law is None:
            msg = "kernel must have a law that is known when JAX traces, to draw from it; got a traced one"
            raise ValueError(msg)
        fresh = from_table(rng, 3 * row + 1, x_0, np.exp(log_law.astype(float)), level.log_alpha.dtype)
    return xp.where(kept, x_0, cast(fresh, x_0.dtype))


def draw(rng: Any, log_p: Array, /, *, row: int = 0) -> Array:
    """Draw a class from each row of log-probabilities, rare ones as often as is right, :eq:`kernels-categorical-race`.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source, as in `q_sample`; a word for each class.
    log_p : array, shape (..., K)
        Log-probabilities, up to a constant.
    row : int, optional
        Number of the draw.

    Returns
    -------
    array of int, shape (...)
        Classes. One of probability 0 is never drawn.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a row has no possible class.

    Notes
    -----
    K words and two logarithms for each row. Clocks come from uniforms of 32 bits whose fine end is at 0, where the race
    is decided; with 23 bits a rare class is drawn 75 times too rarely.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> categorical.draw(np.random.default_rng(0), np.log([[0.2, 0.8], [1.0, 1e-300]]))
    array([1, 0])
    """
    log_p = asfloat(log_p, "log_p")
    known = concrete(log_p)
    if known is not None and not (known.max(axis=-1) > -math.inf).all():
        msg = "log_p must have a possible class in each row, got a row that is -inf or NaN"
        raise ValueError(msg)
    return race(_backend.random_words(rng, row, log_p), cast(log_p, state_dtype(log_p)))


def sample_canvas_t(
    rng: Any, batch: int, canvases: int, /, *, method: str = "stratified", steps: int | None = None
) -> Array:
    """Training times, one for each canvas, :eq:`kernels-categorical-canvas`: each uniform, spread together.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key or torch.Generator
        Source.
    batch, canvases : int
        Shape; even product for the antithetic methods.
    method : str, optional
        "independent", "stratified", "lattice", "antithetic" or "stratified_antithetic", over all of the batch.
    steps : int, optional
        Number T of levels: times are then k/T, k from 1 to T. Continuous in (0, 1) if left out.

    Returns
    -------
    array, shape (batch, canvases)
        Times. The places of the strata are permuted at random.

    Raises
    ------
    TypeError
        If `rng` is no source.
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.sample_canvas_t(np.random.default_rng(0), 1, 4, steps=4)
    >>> np.sort(t)
    array([[0.25, 0.5 , 0.75, 1.  ]])
    """
    n = whole("batch", batch) * whole("canvases", canvases)
    _check_method(method, n)
    u = uniforms(rng, n, method)
    xp = namespace(u)
    if steps is not None:
        u = xp.ceil(u * whole("steps", steps)) / steps
    order = xp.argsort(_backend.uniform(rng, 1, xp.zeros_like(u)))
    return xp.reshape(xp.take(u, order, axis=0), (batch, canvases))


def spread_canvas(value: Array, length: int, /) -> Array:
    """Repeat a value of each canvas over its tokens: (batch, canvases) to (batch, length).

    The index c(i) of :eq:`kernels-categorical-canvas`.

    Parameters
    ----------
    value : array, shape (batch, canvases)
        Times, or entries of a level.
    length : int
        Length of a sequence, a multiple of the number of canvases.

    Returns
    -------
    array, shape (batch, length)
        Canvas by canvas.

    Raises
    ------
    ValueError
        If the shapes do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> categorical.spread_canvas(np.array([[0.1, 0.9]]), 4)
    array([[0.1, 0.1, 0.9, 0.9]])
    """
    value = value if hasattr(value, "dtype") else asfloat(value, "value")
    shape, whole = tuple(value.shape), isinstance(length, int | np.integer) and not isinstance(length, bool)
    if len(shape) != 2 or shape[1] == 0 or not whole or length < 1 or length % shape[1]:
        msg = f"length must be a multiple of the canvases of a (batch, canvases) array, got {length} for {shape}"
        raise ValueError(msg)
    xp, (batch, canvases) = namespace(value), shape
    spread = xp.broadcast_to(value[..., None], (batch, canvases, length // canvases))
    return xp.reshape(spread, (batch, length))


def canvas_variance(f: Callable[[np.ndarray], Any], n: int, /, *, method: str, steps: int | None = None) -> float:
    """Exact variance of the mean of `f` over n times of `sample_canvas_t`, :eq:`kernels-categorical-canvas-variance`.

    Parameters
    ----------
    f : callable
        Function of arrays of times.
    n : int
        Number of times, batch times canvases.
    method : str
        As in `sample_canvas_t`.
    steps : int, optional
        Number T of levels; by quadrature, for a smooth `f`, if left out.

    Returns
    -------
    float
        The variance.

    Raises
    ------
    ValueError
        If a number is out of range.

    Notes
    -----
    With levels it is a sum over the cells in which all n levels are constant: lcm(n, T) of them.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> round(categorical.canvas_variance(lambda t: t, 16, method="independent", steps=16) ** 0.5, 4)
    0.072
    >>> categorical.canvas_variance(lambda t: t, 16, method="stratified", steps=16)
    0.0
    """
    _check_method(method, whole("n", n))
    if steps is None:
        return mean_variance(f, n, method)
    levels = np.asarray(f(np.arange(1, whole("steps", steps) + 1) / steps), dtype=float)
    if levels.shape != (steps,):
        msg = f"f must return the shape of its argument, {(steps,)}, got {levels.shape}"
        raise ValueError(msg)
    strata = {"lattice": n, "stratified": n, "stratified_antithetic": n // 2}.get(method, 1)
    cells = np.repeat(levels, math.lcm(strata, steps) // steps).reshape(strata, -1)
    if method.endswith("antithetic"):
        cells = (cells + cells[:, ::-1]) / 2.0
    if method == "lattice":
        return float(np.var(np.mean(cells, axis=0)))
    draws = {"independent": n, "antithetic": n // 2}.get(method, strata)
    return float(np.mean(np.var(cells, axis=1))) / draws


def mutual_information(kernel: Kernel, law: Array, t: Any, /) -> Array:
    """Information I(x_0; x_t) in nats of a noisy token about its clean one, :eq:`kernels-categorical-information`.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    law : array, shape (K,)
        Probabilities of x_0.
    t : Keep or int
        Level, 0-d.

    Returns
    -------
    array, 0-d
        Nats.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If shapes do not match.

    Notes
    -----
    All terms are >= 0, so that small information is as accurate as large: a difference of entropies is not.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_cosine().level(0.5)
    >>> float(categorical.mutual_information(categorical.uniform(50257), np.full(50257, 1 / 50257), t).round(3))
    4.719
    """
    if not isinstance(kernel, Interpolation | Walk | Chain):
        instance("kernel", kernel, Interpolation)
    law = asfloat(law, "law")
    if tuple(law.shape) != (kernel.classes,):
        msg = f"law must have shape ({kernel.classes},), got {tuple(law.shape)}"
        raise ValueError(msg)
    known = concrete(law)
    if known is not None and not (known >= 0.0).all():
        msg = f"law must be probabilities, all >= 0, got {known[~(known >= 0.0)][0]}"
        raise ValueError(msg)
    xp = namespace(law)
    if not isinstance(kernel, Interpolation):
        q = convert(transition(kernel, t), law, law.dtype)
        whole = law @ q
        return xp.sum(law[:, None] * whole[None, :] * _excess(*_relative(q - whole[None, :], whole[None, :])))
    (level,) = as_levels(t, like=law)
    alpha, fresh = level.alpha, level.noise * xp.exp(law_like(kernel, law))
    whole = alpha * law + fresh
    kept = law * _excess(*_relative(alpha * (1.0 - law), whole))
    return xp.sum(whole * (kept + (1.0 - law) * _excess(*_relative(-alpha * law, whole))))


def log_likelihood_ratio(kernel: Interpolation, x_t: Array, t: Keep, /) -> Array:
    """Logarithm of q(x_t | x_0 = x_t)/q(x_t | any other x_0), :eq:`kernels-categorical-ratio`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    x_t : array of int, shape (...)
        Noisy tokens.
    t : Keep
        Level.

    Returns
    -------
    array, shape (...)
        Nats; +inf for what no other token can become.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a token is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.kernels import categorical
    >>> t = categorical.keep_cosine().level(0.5)
    >>> float(np.exp(categorical.log_likelihood_ratio(categorical.uniform(50257), 0, t)).round(6))
    50258.0
    """
    instance("kernel", kernel, Interpolation)
    x_t = tokens(kernel, "x_t", x_t, t)
    (level,) = as_levels(t, like=x_t)
    xp = namespace(x_t, level.log_alpha)
    fresh = level.log_noise + rows_of(law_like(kernel, level.log_alpha), x_t)
    only = fresh == -math.inf
    ratio = logaddexp(level.log_alpha, fresh) - xp.where(only, xp.zeros_like(fresh), fresh)
    return xp.where(only, xp.full_like(ratio, math.inf), ratio)


def _reverse(kernel: Interpolation, x_t: Array, inner: Array, norm: Array, levels: list[Keep]) -> Array:
    """``log q(x_t | x_s) + inner - norm``, with x_t carried over where `norm` is -inf."""
    xp, step = namespace(inner), between(*levels)
    jump = step.log_noise + rows_of(law_like(kernel, inner), x_t)
    stay = logaddexp(step.log_alpha, jump)
    here = one_hot(x_t, kernel.classes)
    impossible = _wide(norm) == -math.inf
    safe = xp.where(impossible, xp.zeros_like(_wide(norm)), _wide(norm))
    found = inner + xp.where(here, _wide(stay), _wide(jump)) - safe
    return xp.where(impossible, _carried(here, found), found)


def _dense_reverse(kernel: Walk | Chain, x_t: Array, inner: Array, s: Any, t: Any) -> Array:
    q = convert(transition(kernel, t, s), inner, inner.dtype)
    found = inner + rows_of(log_of(q).T, x_t)
    norm = log_sum(found)
    xp, impossible = namespace(found), norm == -math.inf
    found = found - xp.where(impossible, xp.zeros_like(norm), norm)
    return xp.where(impossible, _carried(one_hot(x_t, kernel.classes), found), found)


def _carried(here: Array, like: Array) -> Array:
    xp = namespace(like)
    return xp.where(here, xp.zeros_like(like), xp.full_like(like, -math.inf))


def _times_likelihood(kernel: Kernel, x_t: Array, log_p: Array, t: Any, sign: float) -> Array:
    log_p = asfloat(log_p, "log_p")
    xp, law = namespace(log_p), cast(log_p, state_dtype(log_p))
    x_t = beside(tokens(kernel, "x_t", x_t, t), log_p)
    _check_law(kernel, x_t, log_p)
    weight = convert(likelihood(kernel, x_t, _converted(t, law)), law, law.dtype)
    impossible = weight == -math.inf
    found = law + sign * xp.where(impossible, xp.zeros_like(weight), weight)
    found = xp.where(impossible, xp.full_like(found, -math.inf), found)
    norm = log_sum(found)
    lost = norm == -math.inf
    found = found - xp.where(lost, xp.zeros_like(norm), norm)
    return cast(xp.where(lost, _carried(one_hot(x_t, kernel.classes), found), found), log_p.dtype)


def _excess(d: Array, finite: Array) -> Array:
    """``(1 + d) log(1 + d) - d`` for d >= -1, to full accuracy near 0, where it is d^2/2."""
    xp = namespace(d)
    near, end = abs(d) < 0.125, d == -1.0
    small = xp.where(near, d, xp.zeros_like(d))
    series = xp.zeros_like(d)
    for k in range(_SERIES, 1, -1):
        series = (-1.0) ** k / (k * (k - 1.0)) + small * series
    large = xp.where(near | end, xp.ones_like(d), d)
    value = xp.where(end, xp.ones_like(d), (1.0 + large) * xp.log1p(large) - large)
    return xp.where(finite, xp.where(near, small**2 * series, value), xp.zeros_like(d))


def _relative(gap: Array, whole: Array) -> tuple[Array, Array]:
    xp = namespace(gap, whole)
    possible = whole > 0.0
    return gap / xp.where(possible, whole, xp.ones_like(whole)), possible


def _wide(x: Array) -> Array:
    return x[..., None]


def _converted(t: Any, like: Array) -> Any:
    return as_levels(t, like=like)[0] if isinstance(t, Keep) else t


def _check_order(a: Array, b: Array, log_alpha: Array) -> None:
    before, after, change = concrete(a), concrete(b), concrete(log_alpha)
    if before is None or after is None or change is None:
        return
    lost = before == -math.inf
    slack = 8.0 * float(np.finfo(change.dtype).eps) * (1.0 + abs(np.where(lost, 0.0, before)))
    if ((change > slack) | (lost & (after > -math.inf))).any():
        msg = f"t must be at least as noisy as s, got log alpha {after} after {before}"
        raise ValueError(msg)


def _interval(s: Any, t: Any) -> Keep:
    if s is not None:
        return between(s, t)
    instance("t", t, Keep)
    return Keep(t.t, asfloat(t.log_alpha), asfloat(t.log_noise))


def _step(kernel: Chain, name: str, value: Any) -> int:
    count = len(kernel.steps)
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value <= count:
        msg = f"{name} must be a step number from 0 to {count}, got {value!r}"
        raise ValueError(msg)
    return int(value)


def _product(kernel: Chain, s: int, t: int) -> np.ndarray:
    if t < s:
        msg = f"t must be at least as noisy as s, got step {t} after {s}"
        raise ValueError(msg)
    if s == 0:
        return kernel.cumulative[t]
    product = np.eye(kernel.classes)
    for step in kernel.steps[s:t]:
        product = product @ step
    return product


def _check_law(kernel: Kernel, x_t: Array, log_p: Array) -> None:
    if log_p.shape != (*x_t.shape, kernel.classes):
        msg = f"log_p must have shape {(*x_t.shape, kernel.classes)}, got {tuple(log_p.shape)}"
        raise ValueError(msg)


def _check_method(method: str, n: int) -> None:
    choose("method", method, METHODS)
    if method.endswith("antithetic") and n % 2:
        msg = f"batch times canvases must be even for {method!r}, got {n}"
        raise ValueError(msg)
