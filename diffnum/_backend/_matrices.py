"""What a sweep over blocks of a matrix asks of an array library: memory, sums over rows, arrays fit for loops."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat
import numpy as np

from ._arrays import Array, filled, is_jax, namespace

__all__ = ["difference", "settled", "sum_of_rows", "workspace"]

_GROUP = 32
"""Rows that are added up by themselves first: the error of a sum of c rows grows as 32 + c / 32, not as c."""


def difference(x: Array, shift: Array) -> Array:
    """``x - shift``; `x` is overwritten where that is possible and nobody records derivatives.

    Parameters
    ----------
    x : array
        A temporary.
    shift : array
        What to subtract.

    Returns
    -------
    array
        The difference.
    """
    if getattr(x, "requires_grad", False):
        return x - shift
    x -= shift
    return x


def settled(x: Array) -> Array:
    """`x` such that JAX can close over its tangent in a loop; `x` itself where JAX does not trace.

    Parameters
    ----------
    x : array
        Any array.

    Returns
    -------
    array
        The same values.
    """
    # a tangent may be an array of NumPy, which loops refuse as a constant; an operation makes it one of JAX
    if is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer):
        return x.reshape((1, *x.shape)).reshape(x.shape)
    return x


def workspace(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Memory of any contents, to be written to before it is read.

    Parameters
    ----------
    like : array
        Decides library and device.
    shape : tuple of int
        Shape.
    dtype : dtype
        A dtype of that library.

    Returns
    -------
    array
        A new array; zeros for JAX.
    """
    if is_jax(like):
        return filled(like, shape, 0.0, dtype)
    return namespace(like).empty(shape, dtype=dtype, device=array_api_compat.device(like))


def sum_of_rows(x: Array) -> Array:
    """Sum over the first axis; NumPy, which adds rows one after the other, adds groups of them first.

    Parameters
    ----------
    x : array, shape (c, n)
        Summands.

    Returns
    -------
    array
        Shape (n,).
    """
    whole = x.shape[0] - x.shape[0] % _GROUP
    if type(x) is not np.ndarray or whole == 0:
        return namespace(x).sum(x, axis=0)
    groups = x[:whole].reshape(-1, _GROUP, x.shape[1]).sum(axis=1)
    return groups.sum(axis=0) + x[whole:].sum(axis=0)
