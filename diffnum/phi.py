r"""Phi-functions: the integrals of an exponential against powers of time, accurate at every argument.

An exponential integrator weighs the values of a smooth function with integrals of ``exp(-kappa (h - t)) t**m``. All of
them are phi-functions of ``-kappa h``. The textbook quotients that define them lose every digit near zero; this module
uses a Taylor polynomial there and the recurrence elsewhere. Derivation and error analysis: :doc:`/phi`.

Conventions: ``phi_0 = exp``, ``phi_k(0) = 1/k!``; `z` is real and dimensionless; results have the dtype of `z`, and
half precision is computed in float32.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from . import _backend

__all__ = ["phi", "phis"]

Array = Any

SWITCH = 3.0
"""Taylor polynomial for ``|z| < SWITCH``, recurrence elsewhere."""

TERMS = 31
"""Terms of the Taylor polynomial: its remainder at ``|z| = SWITCH``, and that of two derivatives, is below rounding."""

LARGEST = 5
"""Highest index for which this switch has been measured to keep full accuracy."""


def phi(k: int, z: Array, /) -> Array:
    r"""Phi-function of index `k`, defined by the recurrence :eq:`phi-recurrence`.

    Parameters
    ----------
    k : int
        Index, 0 to 5.
    z : array or float
        Real argument of any shape, dimensionless; infinite values are limits.

    Returns
    -------
    array
        ``phi_k(z)``, of the shape, library and dtype of `z`; infinite where ``exp(z)`` overflows (in float64 above
        709.78), zero at minus infinity.

    Raises
    ------
    ValueError
        If `k` is not one of 0 to 5.
    TypeError
        If `k` is not an integer or `z` is not real.

    See Also
    --------
    phis : All indices up to `k` at about the cost of one.

    Notes
    -----
    The integrals of :eq:`phi-integral` and :eq:`phi-moments`. Relative error at most 1.1e-15 in float64 for z in
    [-1e3, 700] (k = 0: z > -700), a few ulp in float32, by :eq:`phi-horner` and :eq:`phi-error`; limits
    :eq:`phi-limits`; derivatives :eq:`phi-derivative`. Cost: one exponential and 31 multiply-adds an element.

    References
    ----------
    Hochbruck and Ostermann, "Exponential integrators", Acta Numerica 19 (2010).

    Examples
    --------
    >>> from diffnum.phi import phi
    >>> float(phi(2, 0.0))
    0.5
    >>> phi(1, [-1e-9, 2.0]).round(6)
    array([1.      , 3.194528])
    """
    k = _index(k)
    z, wide = _widen(z)
    if k == 0:
        return _narrow(z, _exp(wide))
    near, inner, outer, over = _regions(wide)
    return _narrow(z, _join(near, over, wide, _taylor(k, inner), _upward(k, outer)[k]))


def phis(k: int, z: Array, /) -> tuple[Array, ...]:
    r"""Phi-functions of all indices from 0 to `k`, with :eq:`phi-recurrence` run downwards from :eq:`phi-taylor`.

    Parameters
    ----------
    k : int
        Highest index, 0 to 5.
    z : array or float
        Real argument of any shape, dimensionless; infinite values are limits.

    Returns
    -------
    tuple of array
        ``(phi_0(z), ..., phi_k(z))``, each as `phi` returns it, to the same accuracy.

    Raises
    ------
    ValueError
        If `k` is not one of 0 to 5.
    TypeError
        If `k` is not an integer or `z` is not real.

    See Also
    --------
    phi : One index.

    Notes
    -----
    One Taylor polynomial and one exponential serve all indices.

    References
    ----------
    Hochbruck and Ostermann, "Exponential integrators", Acta Numerica 19 (2010).

    Examples
    --------
    >>> from diffnum.phi import phis
    >>> [round(float(p), 6) for p in phis(3, -1.0)]
    [0.367879, 0.632121, 0.367879, 0.132121]
    """
    k = _index(k)
    z, wide = _widen(z)
    near, inner, outer, over = _regions(wide)
    low, high = _downward(k, inner), _upward(k, outer)
    rest = (_narrow(z, _join(near, over, wide, low[j], high[j])) for j in range(1, k + 1))
    return (_narrow(z, _exp(wide)), *rest)


def _index(k: int) -> int:
    if isinstance(k, bool):
        msg = f"k must be an integer from 0 to {LARGEST}, got {k!r}"
        raise TypeError(msg)
    try:
        index = operator.index(k)
    except TypeError:
        msg = f"k must be an integer from 0 to {LARGEST}, got {k!r}"
        raise TypeError(msg) from None
    if not 0 <= index <= LARGEST:
        msg = f"k must be an integer from 0 to {LARGEST}, got {k!r}"
        raise ValueError(msg)
    return index


def _widen(z: Array) -> tuple[Array, Array]:
    """`z` as a floating-point array, and the same in the dtype of the computation."""
    z = _backend.asfloat(z, "z")
    return z, _backend.namespace(z).astype(z, _backend.state_dtype(z), copy=False)


def _narrow(z: Array, y: Array) -> Array:
    """`y` in the dtype of `z`; values beyond its range become infinite without a warning of the cast."""
    if y.dtype == z.dtype:
        return y
    xp = _backend.namespace(z)
    return xp.astype(_infinite_above(float(xp.finfo(z.dtype).max), y, y), z.dtype)


def _infinite_above(limit: float, x: Array, y: Array) -> Array:
    """`y` where ``x <= limit`` or x is NaN, else infinity (with an infinite derivative)."""
    xp = _backend.namespace(x)
    over = x > limit
    return xp.where(over, xp.where(over, x, math.inf) * math.inf, y)


def _limit(z: Array) -> float:
    """Argument above which ``exp`` may overflow; two ulp inside, because the logarithm itself is rounded."""
    info = _backend.namespace(z).finfo(z.dtype)
    ulp = float(info.eps)
    return math.log(float(info.max)) * (1 - ulp - ulp)


def _exp(z: Array) -> Array:
    xp, limit = _backend.namespace(z), _limit(z)
    return _infinite_above(limit, z, xp.exp(xp.where(z > limit, SWITCH, z)))


def _regions(z: Array) -> tuple[Array, Array, Array, float]:
    """Mask of the Taylor region, arguments that are safe for the polynomial and the recurrence, and exp's limit."""
    xp, over = _backend.namespace(z), _limit(z)
    near = xp.abs(z) < SWITCH
    return near, xp.where(near, z, 0.0), xp.where(near | (z > over), SWITCH, z), over


def _join(near: Array, over: float, z: Array, low: Array, high: Array) -> Array:
    return _infinite_above(over, z, _backend.namespace(z).where(near, low, high))


@functools.cache
def _coefficients(k: int) -> tuple[float, ...]:
    """Taylor coefficients 1/(j + k)!, highest power first."""
    return tuple(1.0 / math.factorial(j + k) for j in reversed(range(TERMS)))


def _taylor(k: int, z: Array) -> Array:
    y = z * 0.0
    for c in _coefficients(k):
        y = y * z + c
    return y


def _upward(k: int, z: Array) -> list[Array]:
    """Indices 0 to k by the recurrence from expm1(z)/z; entry 0 is not used, phi_0 needs no quotient."""
    y = [z, _backend.namespace(z).expm1(z) / z]
    for j in range(1, k):
        y.append((y[j] - 1.0 / math.factorial(j)) / z)
    return y


def _downward(k: int, z: Array) -> list[Array]:
    """Indices 0 to k by phi_j = 1/j! + z phi_{j+1} from the Taylor polynomial of the highest; entry 0 is not used."""
    y = [_taylor(k, z)]
    for j in reversed(range(1, k)):
        y.insert(0, 1.0 / math.factorial(j) + z * y[0])
    return [z, *y]
