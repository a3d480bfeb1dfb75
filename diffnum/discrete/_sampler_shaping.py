"""What users do to the law of a clean token before they sample: temperature, truncation, guidance.

None of it leaves the law of the data; see :doc:`/discrete/samplers`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diffnum._arguments import number
from diffnum._backend import Array, asfloat, cast, namespace, state_dtype
from diffnum.kernels._logspace import log_sum

__all__ = ["guide", "shape_law"]

_HALF = 65504.0
"""The largest number of float16."""


def shape_law(
    log_p: Array, /, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Temperature, then the `top_k` largest, then the fewest that hold `top_p`, :eq:`discrete-samplers-shape`.

    Parameters
    ----------
    log_p : array, shape (..., K)
        Log-probabilities.
    temperature : float, optional
        Divisor of the logarithms, >= 0; at 0 all weight is on the first largest.
    top_k : int, optional
        How many classes to keep, with all that equal the last of them.
    top_p : float, optional
        Probability to keep at least, in (0, 1], with all that equal the last class.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities, normalised. NaN in a row that holds NaN or +inf, or -inf alone: it is no law.

    Raises
    ------
    TypeError
        If `log_p` is not real.
    ValueError
        If an option is out of range, or `log_p` has no classes.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> np.exp(samplers.shape_law(np.log([0.5, 0.3, 0.2]), top_p=0.7)).round(3)
    array([0.625, 0.375, 0.   ])
    """
    temperature = number("temperature", temperature, least=0.0)
    given = asfloat(log_p, "log_p")
    xp, law = namespace(given), cast(given, state_dtype(given))
    if law.ndim == 0 or law.shape[-1] == 0:
        msg = f"log_p must have shape (..., K) with K >= 1, got {tuple(law.shape)}"
        raise ValueError(msg)
    classes = int(law.shape[-1])
    if top_k is not None and not (
        isinstance(top_k, int | np.integer) and not isinstance(top_k, bool) and 1 <= top_k <= classes
    ):
        msg = f"top_k must be an integer from 1 to {classes}, got {top_k!r}"
        raise ValueError(msg)
    if top_p is not None and not 0.0 < number("top_p", top_p) <= 1.0:
        msg = f"top_p must be in (0, 1], got {top_p!r}"
        raise ValueError(msg)
    nothing = xp.full_like(law, -math.inf)
    top = xp.max(law, axis=-1, keepdims=True)
    # a row of NaN, or without any weight, must not pass for a law
    none = ~((top > -math.inf) & (top < math.inf))
    gap = xp.where(none, xp.zeros_like(law), law) - xp.where(none, xp.zeros_like(top), top)
    if temperature == 0.0:
        first = xp.argmax(gap, axis=-1)[..., None] == xp.astype(xp.arange(classes), int)
        law = xp.where(first, xp.zeros_like(law), nothing)
        return _narrowed(xp.where(none, xp.full_like(law, math.nan), law), given.dtype)
    # the quotient would overflow, or the temperature vanish in this precision
    most, least = float(xp.finfo(law.dtype).max), float(xp.finfo(law.dtype).smallest_normal)
    far = gap < -min(most * temperature, most)
    gap = xp.where(far, xp.zeros_like(gap), gap) / min(max(temperature, least), most)
    law = _normalised(xp.where(far, nothing, gap))
    if top_k is not None:
        top_k = int(top_k)
        least = xp.sort(law, axis=-1)[..., classes - top_k : classes - top_k + 1]
        law = _normalised(xp.where(law >= least, law, nothing))
    if top_p is not None and top_p < 1.0:
        down = xp.flip(xp.sort(law, axis=-1), axis=-1)
        before = xp.cumulative_sum(xp.exp(down), axis=-1) - xp.exp(down)
        least = xp.min(xp.where(before < top_p, down, xp.zeros_like(down)), axis=-1, keepdims=True)
        law = _normalised(xp.where(law >= least, law, nothing))
    return _narrowed(xp.where(none, xp.full_like(law, math.nan), law), given.dtype)


def guide(log_p: Array, log_p_free: Array, /, *, weight: float) -> Array:
    """Classifier-free guidance, ``p^weight p_free^(1 - weight)`` normalised, :eq:`discrete-samplers-guide`.

    Parameters
    ----------
    log_p, log_p_free : array, shape (..., K)
        Log-probabilities with and without the condition.
    weight : float
        1 is the condition alone, 0 is without, above 1 is beyond.

    Returns
    -------
    array, shape (..., K)
        Log-probabilities; what either law excludes stays excluded.

    Raises
    ------
    TypeError
        If an argument is not real.
    ValueError
        If `weight` is no number, or the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> np.exp(samplers.guide(np.log([0.8, 0.2]), np.log([0.5, 0.5]), weight=2.0)).round(4)
    array([0.9412, 0.0588])
    """
    weight = number("weight", weight)
    given, free = asfloat(log_p, "log_p"), asfloat(log_p_free, "log_p_free")
    dtype = given.dtype
    if tuple(given.shape) != tuple(free.shape):
        msg = f"log_p_free must have the shape of log_p, {tuple(given.shape)}, got {tuple(free.shape)}"
        raise ValueError(msg)
    given, free = (cast(law, state_dtype(law)) for law in (given, free))
    xp = namespace(given, free)
    never = (given == -math.inf) | (free == -math.inf)
    a, b = (xp.where(never, xp.zeros_like(law), law) for law in (given, free))
    return _narrowed(_normalised(xp.where(never, xp.full_like(a, -math.inf), b + weight * (a - b))), dtype)


def _narrowed(law: Array, dtype: Any) -> Array:
    """The law in `dtype`; what half precision does not reach has no weight."""
    if str(dtype).rsplit(".", 1)[-1] == "float16":
        xp = namespace(law)
        law = xp.where(law < -_HALF, xp.full_like(law, -math.inf), law)
    return cast(law, dtype)


def _normalised(law: Array) -> Array:
    xp, norm = namespace(law), log_sum(law)
    return law - xp.where(norm == -math.inf, xp.zeros_like(norm), norm)
