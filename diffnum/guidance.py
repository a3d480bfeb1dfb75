"""Guidance, thresholds, inversion: denoisers made of denoisers, and samplers that start elsewhere.

`classifier_free`, `clip` and `dynamic_threshold` wrap denoisers into denoisers, so that every solver takes them.
`invert` solves a path from data to noise, and `noise_to` starts a sampler at a given level.
What each of them does to the order of a solver is derived and measured in :doc:`/guidance`.

Conventions. ``denoise(x, level)`` as in :doc:`/solvers`. A scale of 1 is the conditional denoiser, 0 the unconditional
one; scales and levels are aligned with the first axes of x, one for each sample. Samples lie along the first
`batch_axes` axes of x (0 under ``jax.vmap``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from diffnum import _backend, paths
from diffnum._arguments import instance, number
from diffnum._backend import Array, concrete, namespace
from diffnum.paths import Path
from diffnum.schedules import Level
from diffnum.solvers import adams_bashforth, solve

__all__ = ["classifier_free", "clip", "dynamic_threshold", "invert", "noise_to"]

Denoiser = Callable[[Array, Level], Array]

_ROUNDING = 16.0
"""Roundings by which the log-SNR of one level may differ, computed along two ways."""


def classifier_free(
    conditional: Denoiser,
    unconditional: Denoiser,
    /,
    scale: Array | float,
    *,
    interval: tuple[float, float] | None = None,
    rescale: float = 0.0,
    batch_axes: int = 1,
) -> Denoiser:
    """Guided denoiser :eq:`guidance-scale`, within an interval of log-SNR only :eq:`guidance-interval`.

    Parameters
    ----------
    conditional, unconditional : callable
        The two denoisers.
    scale : float or array
        Guidance scale w: 1 is the conditional denoiser, more pushes away from the unconditional one. An array of shape
        (B,) is one for each sample; its axes are aligned with the first ones of x.
    interval : tuple of float, optional
        ``(low, high)``: guide where ``low <= log_snr < high``, and be conditional elsewhere. Ends may be infinite.
    rescale : float, optional
        Share, in [0, 1], of the guided output that is rescaled to the standard deviation of the conditional one:
        :eq:`guidance-rescale`.
    batch_axes : int, optional
        Number of leading axes of x that count samples, for `rescale`.

    Returns
    -------
    callable
        ``denoise(x, level)``.

    Raises
    ------
    TypeError
        If a denoiser is not callable.
    ValueError
        If `scale` is not finite, `interval` is no interval or `rescale` lies outside [0, 1]. The denoiser raises it if
        an output or `scale` does not fit the shape of x.

    Notes
    -----
    Two evaluations; one outside the interval, where the level is known (it is not while JAX traces). Guidance is
    affine, so that it is the same whatever the networks predict, :eq:`guidance-affine`; `rescale` is not. All orders
    stay what they are. An interval is a jump in time, which costs all orders but 1 unless a step of a one-step method
    begins there: :eq:`guidance-jump`. A node within rounding of an end, in the dtype of the level, lies on it.

    References
    ----------
    J. Ho and T. Salimans, Classifier-free diffusion guidance (2022). T. Kynkaanniemi et al., Applying guidance in a
    limited interval improves sample and distribution quality in diffusion models (2024). S. Lin et al., Common
    diffusion noise schedules and sample steps are flawed (2024), for `rescale`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import guidance, schedules
    >>> guided = guidance.classifier_free(lambda x, level: 0.0 * x + 1.0, lambda x, level: 0.0 * x, 3.0)
    >>> guided(np.zeros(1), schedules.rectified_flow().level(0.5)).tolist()
    [3.0]
    """
    _check_callable("conditional", conditional)
    _check_callable("unconditional", unconditional)
    _check_finite("scale", scale)
    low, high = (-math.inf, math.inf) if interval is None else _interval(interval)
    share = _share(rescale)
    axes = _count("batch_axes", batch_axes)

    def denoise(x: Array, level: Level) -> Array:
        given = _output("conditional", conditional, x, level)
        xp = namespace(given)
        inside = None if interval is None else _inside(level.log_snr, low, high)
        known = None if inside is None else concrete(inside)
        if known is not None and not known.any():
            return given
        change = (_beside(scale, given) - 1.0) * (given - _output("unconditional", unconditional, x, level))
        if inside is not None:
            change = xp.where(_trailing("level", inside, given), change, xp.zeros_like(change))
        guided = given + change
        if share == 0.0:
            return guided
        if given.ndim <= axes:
            msg = f"batch_axes must be less than the axes of x for rescale, got {axes} for shape {tuple(given.shape)}"
            raise ValueError(msg)
        return guided * _backend.cast(share * _relative_spread(given, guided, axes) + (1.0 - share), guided.dtype)

    return denoise


def clip(denoise: Denoiser, /, low: float = -1.0, high: float = 1.0) -> Denoiser:
    """Denoiser whose output is clipped: :eq:`guidance-clip`.

    Parameters
    ----------
    denoise : callable
        The denoiser.
    low, high : float, optional
        Smallest and largest value of the data.

    Returns
    -------
    callable
        ``denoise(x, level)``.

    Raises
    ------
    TypeError
        If `denoise` is not callable.
    ValueError
        If not ``low < high``.

    Notes
    -----
    Continuous with kinks: orders above 2 fall to 2, :eq:`guidance-kink`.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import guidance, schedules
    >>> guidance.clip(lambda x, level: 2.0 * x)(np.array([-0.7, 0.1]), schedules.rectified_flow().level(0.5)).tolist()
    [-1.0, 0.2]
    """
    _check_callable("denoise", denoise)
    low, high = number("low", low), number("high", high)
    if not low < high:
        msg = f"low must be less than high, got {low!r} and {high!r}"
        raise ValueError(msg)

    def clipped(x: Array, level: Level) -> Array:
        value = _output("denoise", denoise, x, level)
        return namespace(value).clip(value, low, high)

    return clipped


def dynamic_threshold(
    denoise: Denoiser, /, quantile: float = 0.995, *, bound: float = 1.0, batch_axes: int = 1
) -> Denoiser:
    """Denoiser whose output is clipped at a quantile of its own size and scaled into the bound: :eq:`guidance-dynamic`.

    Parameters
    ----------
    denoise : callable
        The denoiser.
    quantile : float, optional
        Which quantile of the absolute values of a sample, in [0, 1].
    bound : float, optional
        Largest absolute value of the data, > 0. A sample whose quantile is below it is clipped at the bound.
    batch_axes : int, optional
        Number of leading axes of x that count samples.

    Returns
    -------
    callable
        ``denoise(x, level)``.

    Raises
    ------
    TypeError
        If `denoise` is not callable.
    ValueError
        If an option is out of range.

    Notes
    -----
    Quantiles are interpolated linearly between order statistics. Continuous with kinks, where the order of the entries
    changes or the threshold passes the bound: orders above 2 fall to 2, :eq:`guidance-kink`.

    References
    ----------
    C. Saharia et al., Photorealistic text-to-image diffusion models with deep language understanding (2022), section
    2.3.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import guidance, schedules
    >>> bounded = guidance.dynamic_threshold(lambda x, level: x, 0.5)
    >>> bounded(np.array([[1.0, -2.0, 4.0]]), schedules.rectified_flow().level(0.5)).tolist()
    [[0.5, -1.0, 1.0]]
    """
    _check_callable("denoise", denoise)
    limit = number("bound", bound, above=0.0)
    q = number("quantile", quantile, least=0.0)
    if q > 1.0:
        msg = f"quantile must be in [0, 1], got {quantile!r}"
        raise ValueError(msg)
    axes = _count("batch_axes", batch_axes)

    def thresholded(x: Array, level: Level) -> Array:
        value = _output("denoise", denoise, x, level)
        if 0 in value.shape:
            return value
        xp = namespace(value)
        s = _quantile(xp.abs(value), q, axes)
        s = xp.where(s > limit, s, xp.full_like(s, limit))
        inside = xp.where(value > s, s, xp.where(value < -s, -s, value))
        return inside * (limit / s)

    return thresholded


def invert(denoise: Denoiser, x: Array, path: Path, /, *, order: int = 2, trajectory: bool = False) -> Array:
    """Noise that a sampler would turn into `x`: the ODE of `path` solved backwards, :eq:`guidance-round-trip`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``.
    x : array
        State at the path's *last* level.
    path : Path
        The path of the sampler, an ODE path that ends at sigma > 0.
    order : int, optional
        Order of the Adams-Bashforth method, 1 to 4.
    trajectory : bool, optional
        Return all N + 1 states, the clean one first.

    Returns
    -------
    array
        State at the path's first level, of the shape and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        As `diffnum.paths.reverse`, `adams_bashforth` and `solve` do.

    Notes
    -----
    Both ways have an error of their order, and so has the round trip: it returns to `x` up to O(h^order), not exactly.

    References
    ----------
    J. Song, C. Meng and S. Ermon, Denoising diffusion implicit models (2021), section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import grids, guidance, oracles, paths, schedules, solvers
    >>> flow = schedules.truncate(schedules.rectified_flow(), t_clean=0.01)
    >>> data = oracles.mixture([0.5, 0.5], [[-1.0], [1.0]], [0.3, 0.3])
    >>> path = paths.velocity(flow, grids.uniform_angle(flow, 100))
    >>> noise = guidance.invert(data.denoise, np.array([[0.7]]), path)
    >>> bool(abs(solvers.ab2(data.denoise, noise, path)[0, 0] - 0.7) < 1e-3)
    True
    """
    return solve(denoise, x, adams_bashforth(paths.reverse(path), order), trajectory=trajectory)


def noise_to(x: Array, level: Level, /, *, rng: Any) -> Array:
    """Clean data with the noise of a level, a draw from :eq:`guidance-forward`: where an image-to-image sampler starts.

    Parameters
    ----------
    x : array
        Clean data.
    level : Level
        Level to reach, such as ``path.first`` of a path on a truncated schedule.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source of the noise, as in `diffnum.solvers.solve`.

    Returns
    -------
    array
        ``alpha x + sigma z``, of the shape and dtype of `x`.

    Raises
    ------
    TypeError
        If `level` is no `Level`, or `rng` of another kind than `x`.
    ValueError
        If the level is neither one nor one for each sample.

    References
    ----------
    C. Meng et al., SDEdit: guided image synthesis and editing with stochastic differential equations (2022).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import guidance, schedules
    >>> level = schedules.rectified_flow().level(0.25)
    >>> guidance.noise_to(np.array([2.0]), level, rng=lambda row, like: like * 0.0 + 1.0).tolist()
    [1.75]
    """
    instance("level", level, Level)
    x = _backend.asfloat(x)
    state = _backend.state_dtype(x)
    wide = _backend.cast(x, state)
    alpha, sigma = (
        _trailing("level", _backend.convert(_backend.asfloat(part), wide, state), wide) for part in level[1:]
    )
    return _backend.cast(alpha * wide + sigma * _backend.normal(rng, 0, x), x.dtype)


def _interval(interval: Any) -> tuple[float, float]:
    try:
        low, high = map(float, interval)
    except (TypeError, ValueError):
        low = high = math.nan
    if not low < high:
        msg = f"interval must be (low, high) with low < high, in log-SNR, got {interval!r}"
        raise ValueError(msg)
    return low, high


def _inside(log_snr: Array, low: float, high: float) -> Array:
    """Whether ``low <= log_snr < high``, both ends moved by the rounding of a log-SNR that is computed from a level."""
    eps = _ROUNDING * float(namespace(log_snr).finfo(log_snr.dtype).eps)
    low, high = (end - eps * (1.0 + abs(end)) if math.isfinite(end) else end for end in (low, high))
    return (low <= log_snr) & (log_snr < high)


def _share(rescale: Any) -> float:
    share = number("rescale", rescale, least=0.0)
    if share > 1.0:
        msg = f"rescale must be in [0, 1], got {rescale!r}"
        raise ValueError(msg)
    return share


def _count(name: str, value: Any) -> int:
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        msg = f"{name} must be an integer >= 0, got {value!r}"
        raise ValueError(msg)
    return count


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        msg = f"{name} must be a callable denoise(x, level), got {type(value).__name__}"
        raise TypeError(msg)


def _check_finite(name: str, value: Any) -> None:
    known = concrete(_backend.asfloat(value, name))
    if known is not None and not np.isfinite(known).all():
        msg = f"{name} must be finite, got {value!r}"
        raise ValueError(msg)


def _output(name: str, denoise: Denoiser, x: Array, level: Level) -> Array:
    """What a denoiser returns, if that is an array of the shape of `x`."""
    value: Any = denoise(x, level)
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(np.shape(x)):
        got = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
        msg = f"{name} must return an array of the shape of x, {tuple(np.shape(x))}, got {got}"
        raise ValueError(msg)
    return value


def _beside(scale: Any, like: Array) -> Any:
    """A number as it is; an array in the library and dtype of `like`, aligned with its first axes."""
    if not hasattr(scale, "shape") and not isinstance(scale, list | tuple):
        return float(scale)
    return _trailing("scale", _backend.convert(_backend.asfloat(scale), like, like.dtype), like)


def _trailing(name: str, value: Array, like: Array) -> Array:
    """One entry for all or one for each sample, with axes for the rest of `like`."""
    if value.ndim > like.ndim or any(m not in {1, n} for m, n in zip(value.shape, like.shape, strict=False)):
        msg = (
            f"{name} must have one entry, or the first axes of x of shape {tuple(like.shape)}; "
            f"got shape {tuple(value.shape)}"
        )
        raise ValueError(msg)
    return namespace(value).reshape(value, (*value.shape, *[1] * (like.ndim - value.ndim)))


def _relative_spread(a: Array, b: Array, axes: int) -> Array:
    """Quotient of the standard deviations of each sample; 1 where b is constant, and nothing can be rescaled."""
    xp, state = namespace(a, b), _backend.state_dtype(b)
    first, second = (_variance(_backend.cast(value, state), axes) for value in (a, b))
    flat, none = second == 0.0, first == 0.0
    one = xp.ones_like(second)
    # where a alone is constant the quotient is 0, and the root has no derivative
    root = xp.sqrt(xp.where(none | flat, one, first) / xp.where(flat, one, second))
    return xp.where(none & ~flat, xp.zeros_like(root), root)


def _variance(value: Array, axes: int) -> Array:
    return namespace(value).var(value, axis=tuple(range(axes, value.ndim)), keepdims=True)


def _quantile(sizes: Array, q: float, axes: int) -> Array:
    """Quantile over all axes but the first, kept as axes of length 1."""
    xp = namespace(sizes)
    batch = tuple(sizes.shape[:axes])
    ordered = xp.sort(xp.reshape(sizes, (*batch, -1)), axis=-1)
    place = q * (ordered.shape[-1] - 1)
    below = min(int(place), ordered.shape[-1] - 1)
    above = min(below + 1, ordered.shape[-1] - 1)
    value = ordered[..., below] + (place - below) * (ordered[..., above] - ordered[..., below])
    return xp.reshape(value, (*batch, *[1] * (sizes.ndim - len(batch))))
