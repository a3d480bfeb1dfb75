"""What the network predicts: targets, preconditioning, loss weights, laws of training times.

A network may predict x0, eps, ``v = alpha eps - sigma x0``, the score or the flow velocity
``d(alpha)/dt x0 + d(sigma)/dt eps``; called "x0", "eps", "v", "score" and "flow". `to_x0` and its siblings convert a
value, `from_eps` and its siblings make a denoiser of a network, `precondition` one of a network that sees and predicts
numbers of unit variance. Weights multiply the squared error of a target at a level. Laws are laws of the log-SNR.

Conventions: ``log_snr = log(alpha / sigma)`` in nats, half the logarithm of the signal-to-noise ratio
``SNR = (alpha / sigma)^2``. Levels hold scalars, or one entry for each sample, that is for the first axes of x. A value
that a level does not determine (x0 from eps at alpha = 0) raises an error; nothing is divided by an epsilon.
Derivation: :doc:`/parameterization`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diffnum import _targets
from diffnum._arguments import choose, finite, instance, number
from diffnum._backend import Array, asfloat, cast, concrete, hypot, namespace, state_dtype
from diffnum._laws import (
    TimeLaw,
    estimator_variance,
    importance,
    importance_weight,
    log_normal,
    uniform_log_snr,
    uniform_time,
    uniforms,
)
from diffnum._targets import Target
from diffnum._weights import (
    Loss,
    convert_weight,
    edm_weight,
    elbo_weight,
    min_snr_weight,
    same_loss,
    sigmoid_weight,
    snr_weight,
    truncated_snr_weight,
)
from diffnum.schedules import Level, Schedule

__all__ = [
    "Loss",
    "Preconditioning",
    "TimeLaw",
    "convert_weight",
    "edm_weight",
    "elbo_weight",
    "estimator_variance",
    "from_eps",
    "from_flow",
    "from_score",
    "from_v",
    "importance",
    "importance_weight",
    "log_normal",
    "min_snr_weight",
    "network_target",
    "precondition",
    "preconditioning",
    "same_loss",
    "sigmoid_weight",
    "snr_weight",
    "to_eps",
    "to_flow",
    "to_score",
    "to_v",
    "to_x0",
    "truncated_snr_weight",
    "uniform_log_snr",
    "uniform_time",
    "uniforms",
]

Network = Callable[[Array, Any], Array]
Denoiser = Callable[[Array, Level], Array]

KINDS = ("edm", *_targets.TARGETS)

# -- conversions ------------------------------------------------------------------------------------------------------


def to_x0(value: Array, x: Array, level: Level, /, *, source: Target, schedule: Schedule | None = None) -> Array:
    """Clean data x0 from another prediction, :eq:`parameterization-halves`.

    Parameters
    ----------
    value : array
        The prediction, of the shape of `x`.
    x : array
        Noisy points.
    level : Level
        Their level: scalars, or one entry for each sample.
    source : {"x0", "eps", "v", "score", "flow"}
        What `value` is.
    schedule : Schedule, optional
        Needed for "flow", whose velocity depends on what is called time.

    Returns
    -------
    array
        Of the library and dtype of `x`.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule, or `x` and `value` are not real arrays of one library.
    ValueError
        If shapes differ, or alpha = 0 and `source` is "eps" or "score", which then say nothing of x0.

    Notes
    -----
    One multiplication and one addition for each number. At alpha = 0, "v" and "flow" still give x0.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import to_x0
    >>> from diffnum.schedules import Level
    >>> print(to_x0(np.array([0.5]), np.array([1.5]), Level(0.3, 0.8, 0.6), source="eps"))
    [1.5]
    """
    return _convert(value, x, level, source, "x0", schedule=schedule)


def to_eps(value: Array, x: Array, level: Level, /, *, source: Target, schedule: Schedule | None = None) -> Array:
    """Noise eps from another prediction, :eq:`parameterization-halves`.

    Parameters
    ----------
    value : array
        The prediction, of the shape of `x`.
    x : array
        Noisy points.
    level : Level
        Their level.
    source : {"x0", "eps", "v", "score", "flow"}
        What `value` is.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        Of the library and dtype of `x`.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule, or `x` and `value` are not real arrays of one library.
    ValueError
        If shapes differ, or sigma = 0 and `source` is "x0", which then says nothing of eps.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import to_eps
    >>> from diffnum.schedules import Level
    >>> print(to_eps(np.array([1.5]), np.array([1.5]), Level(0.3, 0.8, 0.6), source="x0"))
    [0.5]
    """
    return _convert(value, x, level, source, "eps", schedule=schedule)


def to_v(value: Array, x: Array, level: Level, /, *, source: Target, schedule: Schedule | None = None) -> Array:
    """The combination ``v = alpha eps - sigma x0`` from another prediction, :eq:`parameterization-targets`.

    Parameters
    ----------
    value : array
        The prediction, of the shape of `x`.
    x : array
        Noisy points.
    level : Level
        Their level.
    source : {"x0", "eps", "v", "score", "flow"}
        What `value` is.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        Of the library and dtype of `x`.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule, or `x` and `value` are not real arrays of one library.
    ValueError
        If shapes differ, or `source` says nothing of x0 or of eps at this level.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import to_v
    >>> from diffnum.schedules import Level
    >>> print(to_v(np.array([1.5]), np.array([1.5]), Level(0.3, 0.8, 0.6), source="x0").round(6))
    [-0.5]
    """
    return _convert(value, x, level, source, "v", schedule=schedule)


def to_score(value: Array, x: Array, level: Level, /, *, source: Target, schedule: Schedule | None = None) -> Array:
    """Score ``-eps/sigma`` from another prediction, :eq:`parameterization-targets`.

    Parameters
    ----------
    value : array
        The prediction, of the shape of `x`.
    x : array
        Noisy points.
    level : Level
        Their level.
    source : {"x0", "eps", "v", "score", "flow"}
        What `value` is.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        Of the library and dtype of `x`.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule, or `x` and `value` are not real arrays of one library.
    ValueError
        If shapes differ, or sigma = 0 and `source` is not the score itself.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import to_score
    >>> from diffnum.schedules import Level
    >>> print(to_score(np.array([0.3]), np.array([1.5]), Level(0.3, 0.8, 0.6), source="eps"))
    [-0.5]
    """
    return _convert(value, x, level, source, "score", schedule=schedule)


def to_flow(value: Array, x: Array, level: Level, /, *, source: Target, schedule: Schedule) -> Array:
    """Flow velocity from another prediction, :eq:`parameterization-targets` and :eq:`parameterization-wronskian`.

    Parameters
    ----------
    value : array
        The prediction, of the shape of `x`.
    x : array
        Noisy points.
    level : Level
        Their level, with its time.
    source : {"x0", "eps", "v", "score", "flow"}
        What `value` is.
    schedule : Schedule
        The schedule of the level.

    Returns
    -------
    array
        Of the library and dtype of `x`.

    Raises
    ------
    TypeError
        If `schedule` is no schedule, or `x` and `value` are not real arrays of one library.
    ValueError
        If shapes differ, the level is not of this schedule, the velocity is infinite there, or `source` says nothing of
        x0 or of eps at this level.

    Notes
    -----
    It is dx/dt of the probability-flow ODE, for time that runs towards the noise. At the ends of ``rectified_flow`` and
    ``cosine()`` it is finite.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import to_flow
    >>> flow = schedules.rectified_flow()
    >>> print(to_flow(np.array([0.5]), np.array([2.0]), flow.level(1.0), source="x0", schedule=flow))
    [1.5]
    """
    return _convert(value, x, level, source, "flow", schedule=schedule)


def from_eps(network: Denoiser, /) -> Denoiser:
    """Denoiser from a network that predicts eps, :eq:`parameterization-halves`.

    Parameters
    ----------
    network : callable
        ``network(x, level) -> eps``, of the shape of `x`.

    Returns
    -------
    callable
        ``denoise(x, level) -> x0``; raises at alpha = 0, where eps says nothing of x0.

    Raises
    ------
    TypeError
        If `network` is not callable.

    Notes
    -----
    A network that is told the index k of a chain of T steps, as in DDPM, is wrapped: the time of
    ``schedules.from_betas`` is ``(k + 1)/T``, so that ``network=lambda x, level: model(x, T * level.t - 1)``, rounded
    if it embeds integers only, with one entry for each sample if it wants a vector. Rounded times are an error of the
    sampler that no step removes. One with labels or prompts is wrapped likewise.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.parameterization import from_eps
    >>> from diffnum.schedules import Level
    >>> data = oracles.gaussian(1.0, 0.5)
    >>> denoise = from_eps(lambda x, level: -level.sigma * data.score(x, level))
    >>> x, level = np.array([[0.2]]), Level(1.0, 0.8, 0.6)
    >>> print((denoise(x, level) - data.denoise(x, level)).round(12))
    [[0.]]
    """
    return _denoiser(network, "eps", None)


def from_v(network: Denoiser, /) -> Denoiser:
    """Denoiser from a network that predicts v, :eq:`parameterization-halves`; regular at every level.

    Parameters
    ----------
    network : callable
        ``network(x, level) -> v``, of the shape of `x`, with ``v = alpha eps - sigma x0``.

    Returns
    -------
    callable
        ``denoise(x, level) -> x0``.

    Raises
    ------
    TypeError
        If `network` is not callable.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import from_v
    >>> from diffnum.schedules import Level
    >>> print(from_v(lambda x, level: -x)(np.array([3.0]), Level(1.0, 0.0, 1.0)))
    [3.]
    """
    return _denoiser(network, "v", None)


def from_score(network: Denoiser, /) -> Denoiser:
    """Denoiser from a network that predicts the score, :eq:`parameterization-halves`: Tweedie's formula.

    Parameters
    ----------
    network : callable
        ``network(x, level) -> score``, of the shape of `x`.

    Returns
    -------
    callable
        ``denoise(x, level) -> x0``; raises at alpha = 0.

    Raises
    ------
    TypeError
        If `network` is not callable.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import from_score
    >>> from diffnum.schedules import Level
    >>> print(from_score(lambda x, level: -x)(np.array([3.0]), Level(0.5, 1.0, 0.5)))
    [2.25]
    """
    return _denoiser(network, "score", None)


def from_flow(network: Denoiser, schedule: Schedule, /) -> Denoiser:
    """Denoiser from a network that predicts the flow velocity of `schedule`, :eq:`parameterization-halves`.

    Parameters
    ----------
    network : callable
        ``network(x, level) -> dx/dt``, of the shape of `x`; t grows with the noise.
    schedule : Schedule
        The schedule the network was trained on.

    Returns
    -------
    callable
        ``denoise(x, level) -> x0`` for levels of `schedule`.

    Raises
    ------
    TypeError
        If `network` is not callable or `schedule` no `Schedule`.

    Notes
    -----
    A network trained with time running towards the data predicts the negative of it.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import from_flow
    >>> flow = schedules.rectified_flow()
    >>> print(from_flow(lambda x, level: 3.0 * x, flow)(np.array([1.0]), flow.level(0.25)))
    [0.25]
    """
    return _denoiser(network, "flow", schedule)


# -- preconditioning --------------------------------------------------------------------------------------------------


class Preconditioning(NamedTuple):
    """Coefficients of a denoiser ``D = c_skip x + c_out F(c_in x, c_noise)``, :eq:`parameterization-preconditioned`.

    Parameters
    ----------
    c_skip : array
        Weight of the noisy points.
    c_out : array
        Weight of what the network predicts.
    c_in : array
        Factor of the network's input.
    c_noise : array
        What the network is told of the level, ``-log_snr/4``; infinite at alpha = 0 and at sigma = 0.

    Examples
    --------
    >>> from diffnum.parameterization import preconditioning
    >>> from diffnum.schedules import Level
    >>> [round(float(c), 6) for c in preconditioning(Level(0.5, 1.0, 0.5), sigma_data=0.5)]
    [0.5, 0.353553, 1.414214, -0.173287]
    """

    c_skip: Array
    c_out: Array
    c_in: Array
    c_noise: Array


def preconditioning(
    level: Level, /, kind: str = "edm", *, sigma_data: float = 1.0, schedule: Schedule | None = None
) -> Preconditioning:
    """Coefficients with which the network's input and target have unit variance, :eq:`parameterization-edm`.

    Parameters
    ----------
    level : Level
        Noise level, of any schedule.
    kind : {"edm", "x0", "eps", "v", "score", "flow"}, optional
        "edm" takes the smallest `c_out` there is, :eq:`parameterization-optimal`; another kind makes the network
        predict that target, divided by its standard deviation, :eq:`parameterization-unit`.
    sigma_data : float, optional
        Standard deviation of the data, > 0; their mean is taken to be 0 here.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    Preconditioning
        Four coefficients of the shape of the level.

    Raises
    ------
    TypeError
        If "flow" comes without a schedule.
    ValueError
        If `kind` is none of these, `sigma_data` is not > 0, or `kind` is "eps" or "score" at alpha = 0.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), table 1 and appendix B.6.

    Examples
    --------
    >>> from diffnum import schedules
    >>> from diffnum.parameterization import preconditioning
    >>> vp = schedules.cosine()
    >>> edm, v = preconditioning(vp.level(0.3)), preconditioning(vp.level(0.3), "v")
    >>> [round(float(a + b), 12) for a, b in zip(edm, v)][1]
    0.0
    """
    choose("kind", kind, KINDS)
    scale = number("sigma_data", sigma_data, above=0.0)
    n = _targets.norm(level, scale)
    xp = namespace(n)
    c_noise = -asfloat(level.log_snr) / 4.0
    if kind == "edm":
        alpha, sigma = _targets.scales(level)
        return Preconditioning((alpha / n) * (scale**2 / n), scale * (sigma / n), 1.0 / n, c_noise)
    if kind == "score":  # its standard deviation is 1/sigma: divided by it, the score is -eps
        skip, out = _targets.coefficients(level, "eps", "x0", None)
        return Preconditioning(skip, -out, 1.0 / n, c_noise)
    skip, out = _targets.coefficients(level, kind, "x0", schedule)
    spread = _spread_of(level, kind, scale, schedule)
    return Preconditioning(xp.zeros_like(n) if skip is None else skip, out * spread, 1.0 / n, c_noise)


def precondition(
    network: Network,
    /,
    kind: str = "edm",
    *,
    sigma_data: float = 1.0,
    centre: Array | float = 0.0,
    condition: Callable[[Level], Any] | None = None,
    schedule: Schedule | None = None,
) -> Denoiser:
    """Denoiser around a network that sees and predicts numbers of unit variance, :eq:`parameterization-preconditioned`.

    Parameters
    ----------
    network : callable
        ``network(y, c) -> F`` with y of the shape of `x`, F of the shape of y.
    kind : {"edm", "x0", "eps", "v", "score", "flow"}, optional
        What F stands for, see `preconditioning`; `network_target` is what it learns.
    sigma_data : float, optional
        Standard deviation of the data, > 0.
    centre : float or array broadcastable to x, optional
        Mean of the data.
    condition : callable, optional
        ``condition(level) -> c``, what the network is told of the level; c_noise = -log_snr/4 if None.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    callable
        ``denoise(x, level) -> x0``. It raises where c_noise is infinite: pass `condition` to go to alpha = 0.

    Raises
    ------
    TypeError
        If `network` or `condition` is not callable, or "flow" comes without a schedule.
    ValueError
        If `kind` is none of these or `sigma_data` is not > 0.

    References
    ----------
    Karras et al., "Elucidating the design space of diffusion-based generative models" (2022), equation 7, where alpha
    is 1 and the centre 0.

    Examples
    --------
    The zero network is the best linear denoiser, exact on Gaussian data:

    >>> import numpy as np
    >>> from diffnum import oracles
    >>> from diffnum.parameterization import precondition
    >>> from diffnum.schedules import Level
    >>> denoise = precondition(lambda y, c: 0.0 * y, sigma_data=0.5, centre=2.0)
    >>> x, level = np.array([[1.5]]), Level(0.4, 0.6, 0.3)
    >>> print((denoise(x, level) - oracles.gaussian(2.0, 0.5).denoise(x, level)).round(15))
    [[0.]]
    """
    instance("network", network, Callable)
    if condition is not None:
        instance("condition", condition, Callable)
    if kind == "flow":
        instance("schedule", schedule, Schedule)
    choose("kind", kind, KINDS)
    scale = number("sigma_data", sigma_data, above=0.0)

    def denoise(x: Array, level: Level) -> Array:
        c = preconditioning(level, kind, sigma_data=scale, schedule=schedule)
        known = concrete(c.c_noise) if condition is None else None
        if known is not None and not np.all(np.isfinite(known)):
            msg = f"level must have alpha > 0 and sigma > 0, or pass condition; got {level}"
            raise ValueError(msg)
        x = asfloat(x)
        y, middle = cast(x, state_dtype(x)), _centre(centre, x)
        y = y - _targets.spread(level.alpha, x) * middle
        told = c.c_noise if condition is None else condition(level)
        seen = cast(_targets.spread(c.c_in, x) * y, x.dtype)
        centred = _targets.apply(y, network(seen, told), c.c_skip, c.c_out, "network(y, c)")
        return cast(middle + centred, x.dtype)

    return denoise


def network_target(
    x0: Array,
    eps: Array,
    level: Level,
    /,
    kind: str = "edm",
    *,
    sigma_data: float = 1.0,
    centre: Array | float = 0.0,
    schedule: Schedule | None = None,
) -> Array:
    """What the network inside `precondition` learns, from the pair that made x: :eq:`parameterization-identity`.

    Parameters
    ----------
    x0, eps : array
        Clean data and noise, of one shape.
    level : Level
        Their level: scalars, or one entry for each sample.
    kind : {"edm", "x0", "eps", "v", "score", "flow"}, optional
        As in `precondition`.
    sigma_data : float, optional
        Standard deviation of the data, > 0.
    centre : float or array broadcastable to x, optional
        Mean of the data.
    schedule : Schedule, optional
        Needed for "flow".

    Returns
    -------
    array
        The target F, of mean zero and unit variance on such data.

    Raises
    ------
    ValueError
        If shapes differ or an option is out of range.

    Notes
    -----
    For "edm" it is minus the velocity of ``paths.velocity``. There is no difference of near numbers in it, and no
    division by c_out, which vanishes at sigma = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.parameterization import network_target
    >>> from diffnum.schedules import Level
    >>> print(network_target(np.array([2.0]), np.array([-1.0]), Level(0.0, 1.0, 0.0), sigma_data=2.0))
    [1.]
    """
    choose("kind", kind, KINDS)
    scale = number("sigma_data", sigma_data, above=0.0)
    if kind == "edm":
        n = _targets.norm(level, scale)
        alpha, sigma = _targets.scales(level)
        a, b = sigma / n / scale, -alpha / n * scale
    elif kind == "score":  # divided by its standard deviation 1/sigma
        a, b = (-c for c in _targets.parts(level, "eps", None))
    else:
        a, b = _targets.parts(level, kind, schedule)
        spread = _spread_of(level, kind, scale, schedule)
        a, b = a / spread, b / spread
    x0 = asfloat(x0, "x0")
    middle = _centre(centre, x0)
    return cast(_targets.apply(cast(x0, state_dtype(x0)) - middle, cast(eps, state_dtype(x0)), a, b, "eps"), x0.dtype)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _convert(value: Array, x: Array, level: Level, *kinds: str, schedule: Schedule | None) -> Array:
    source, target = kinds
    p, q = _targets.coefficients(level, source, target, schedule)
    return _targets.apply(x, value, p, q, "value")


def _denoiser(network: Denoiser, source: str, schedule: Schedule | None) -> Denoiser:
    instance("network", network, Callable)
    if source == "flow":
        instance("schedule", schedule, Schedule)

    def denoise(x: Array, level: Level) -> Array:
        p, q = _targets.coefficients(level, source, "x0", schedule)
        return _targets.apply(x, network(x, level), p, q, "network(x, level)")

    return denoise


def _centre(centre: Array | float, x: Array) -> Array:
    """The mean of the data, in the library and state dtype of `x`."""
    values = finite("centre", centre)
    shape, wanted = tuple(values.shape), tuple(x.shape)
    if len(shape) > len(wanted) or any(m not in {1, n} for m, n in zip(shape[::-1], wanted[::-1], strict=False)):
        msg = f"centre must broadcast to x of shape {wanted}, got shape {shape}"
        raise ValueError(msg)
    return _targets.convert(values, x, state_dtype(x))


def _spread_of(level: Level, target: str, sigma_data: float, schedule: Schedule | None) -> Array:
    """Standard deviation of a target whose x0 has standard deviation `sigma_data`."""
    a, b = _targets.parts(level, target, schedule)
    return hypot(a * sigma_data, b)
