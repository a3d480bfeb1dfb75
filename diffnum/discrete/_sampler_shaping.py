"""What users do to the law of a clean token before they sample: temperature, truncation, guidance.

None of it leaves the law of the data; see :doc:`/discrete/samplers`.
"""

from __future__ import annotations

import math

from diffnum._arguments import number
from diffnum._backend import Array, asfloat, cast, namespace, state_dtype
from diffnum.kernels._logspace import log_sum

__all__ = ["guide", "shape_law"]


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
        Log-probabilities, normalised.

    Raises
    ------
    TypeError
        If `log_p` is not real.
    ValueError
        If an option is out of range.

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
    classes = law.shape[-1]
    if top_k is not None and not (isinstance(top_k, int) and not isinstance(top_k, bool) and 1 <= top_k <= classes):
        msg = f"top_k must be an integer from 1 to {classes}, got {top_k!r}"
        raise ValueError(msg)
    if top_p is not None and not 0.0 < number("top_p", top_p) <= 1.0:
        msg = f"top_p must be in (0, 1], got {top_p!r}"
        raise ValueError(msg)
    nothing = xp.full_like(law, -math.inf)
    if temperature == 0.0:
        first = xp.argmax(law, axis=-1)[..., None] == xp.astype(xp.arange(classes), int)
        return cast(xp.where(first, xp.zeros_like(law), nothing), given.dtype)
    law = _normalised(law / temperature)
    if top_k is not None:
        least = xp.sort(law, axis=-1)[..., classes - top_k : classes - top_k + 1]
        law = _normalised(xp.where(law >= least, law, nothing))
    if top_p is not None:
        down = xp.flip(xp.sort(law, axis=-1), axis=-1)
        before = xp.cumulative_sum(xp.exp(down), axis=-1) - xp.exp(down)
        least = xp.min(xp.where(before < top_p, down, xp.zeros_like(down)), axis=-1, keepdims=True)
        law = _normalised(xp.where(law >= least, law, nothing))
    return cast(law, given.dtype)


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
    if tuple(given.shape) != tuple(free.shape):
        msg = f"log_p_free must have the shape of log_p, {tuple(given.shape)}, got {tuple(free.shape)}"
        raise ValueError(msg)
    xp = namespace(given, free)
    never = (given == -math.inf) | (free == -math.inf)
    a, b = (xp.where(never, xp.zeros_like(law), law) for law in (given, free))
    return cast(_normalised(xp.where(never, xp.full_like(a, -math.inf), b + weight * (a - b))), given.dtype)


def _normalised(law: Array) -> Array:
    xp, norm = namespace(law), log_sum(law)
    return law - xp.where(norm == -math.inf, xp.zeros_like(norm), norm)
