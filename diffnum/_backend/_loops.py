"""The loop over rows, its registers, and rows written into buffers: in place where a library can, else anew."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from ._arrays import Array, cast, copy, is_jax, namespace, slice_axis

__all__ = [
    "add_rows",
    "add_scaled",
    "put",
    "registers",
    "scan",
    "scratch",
    "subtract_at",
    "while_loop",
    "write",
]


def scan(body: Callable[[Any, Any], Any], carry: Any, rows: Any, like: Array) -> tuple[Any, Any]:
    """Apply ``carry, out = body(carry, row)`` over `rows`; ``lax.scan`` if `like` is a JAX array, else a Python loop.

    Parameters
    ----------
    body : callable
        ``body(carry, row) -> (carry, out)``.
    carry : pytree
        Initial value.
    rows : iterable or pytree of arrays
        An iterable of rows; for JAX a pytree of arrays that are sliced along their first axis. Reverse-mode derivatives
        then recompute a row's work instead of storing it.
    like : array
        Decides who runs the loop.

    Returns
    -------
    tuple
        The final carry, and the outs: a list, or for JAX stacked arrays.
    """
    if is_jax(like):
        import jax

        return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), carry, rows)
    outs = []
    for row in rows:
        carry, out = body(carry, row)
        outs.append(out)
    return carry, outs


def while_loop(going: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any, like: Array) -> Any:
    """Apply ``carry = body(carry)`` while ``going(carry)``; ``lax.while_loop`` if `like` is a JAX array.

    Parameters
    ----------
    going : callable
        ``going(carry) -> bool``.
    body : callable
        ``body(carry) -> carry``, of the same shapes and dtypes.
    carry : pytree
        Initial value; for JAX a pytree of arrays, differentiable in forward mode only.
    like : array
        Decides who runs the loop.

    Returns
    -------
    pytree
        The final carry.
    """
    if is_jax(like):
        import jax

        return jax.lax.while_loop(going, body, carry)
    while going(carry):
        carry = body(carry)
    return carry


def registers(like: Array, count: int) -> Any:
    """`count` arrays like `like`, to be read by index and written by `put` first.

    Parameters
    ----------
    like : array
        Shape, dtype and library.
    count : int
        Number of registers.

    Returns
    -------
    tuple of array, or array
        A tuple; for JAX one array with a first axis of `count`.
    """
    xp = namespace(like)
    if is_jax(like):
        return xp.zeros((count, *like.shape), dtype=like.dtype)
    if type(like) is np.ndarray:
        return tuple(np.empty(like.shape, like.dtype) for _ in range(count))
    return (xp.zeros_like(like),) * count


def scratch(like: Array, dtype: Any) -> np.ndarray | None:
    """Memory for the products of `add_scaled`, on NumPy; None elsewhere.

    Parameters
    ----------
    like : array
        Shape and library.
    dtype : dtype
        dtype of the products.

    Returns
    -------
    array or None
        Uninitialised memory.
    """
    return np.empty(like.shape, dtype) if type(like) is np.ndarray and like.ndim else None


def add_scaled(y: Array, weight: Any, value: Array, memory: np.ndarray | None) -> Array:
    """``y + weight * value``, formed in the dtype of `y`, which nobody else may hold: its memory is used again.

    Parameters
    ----------
    y : array
        A fresh array.
    weight : float or array
        Factor.
    value : array
        Of the shape of `y`, perhaps of a narrower dtype.
    memory : array or None
        What `scratch` made.

    Returns
    -------
    array
        The sum.
    """
    if memory is None:
        y += weight * cast(value, y.dtype)
        return y
    np.multiply(value, weight, out=memory, dtype=memory.dtype)
    return np.add(y, memory, out=y)


def put(stored: Any, slot: Any, value: Array, *, shared: bool = False) -> Any:
    """Registers with `value` in `slot`; if there are none (None), `value` alone, which is not kept from row to row.

    Parameters
    ----------
    stored : tuple of array, array or None
        What `registers` made.
    slot : int
        Which one to replace.
    value : array
        Its new value.
    shared : bool, optional
        Whether somebody else may write to `value` later, so that a copy must be kept.

    Returns
    -------
    tuple of array, or array
        The new registers, at least one.
    """
    if stored is None:
        return (value,)
    if type(value) is np.ndarray:
        np.copyto(stored[slot], value)
        return stored
    if not isinstance(stored, tuple):
        import jax

        return jax.lax.dynamic_update_index_in_dim(stored, value, slot, 0)
    return (*stored[:slot], copy(value) if shared else value, *stored[slot + 1 :])


def write(buffer: Array, start: Any, rows: Array, axis: int = 0) -> Array:
    """`buffer` with `rows` from index `start` of `axis` on; in place where the library allows it.

    Parameters
    ----------
    buffer : array
        Memory of the caller.
    start : int
        First index, may be traced by JAX.
    rows : array
        New values.
    axis : int, optional
        Axis, counted from the front.

    Returns
    -------
    array
        The buffer.
    """
    if is_jax(buffer):
        return sys.modules["jax"].lax.dynamic_update_slice_in_dim(buffer, rows, start, axis)
    buffer[(slice(None),) * axis + (slice(start, start + rows.shape[axis]), ...)] = rows
    return buffer


def add_rows(buffer: Array, start: Any, rows: Array) -> Array:
    """`buffer` with `rows` added from row `start` on; in place where the library allows it.

    Parameters
    ----------
    buffer : array
        Memory of the caller.
    start : int
        First row, may be traced by JAX.
    rows : array
        What to add.

    Returns
    -------
    array
        The buffer.
    """
    if is_jax(buffer):
        return write(buffer, start, slice_axis(buffer, start, rows.shape[0], 0) + rows)
    buffer[start : start + rows.shape[0], ...] += rows
    return buffer


def subtract_at(array: Array, rows: Array, values: Array) -> Array:
    """`array` minus ``values[i]`` at ``[rows[i], i]``, columns whose row is outside untouched; NumPy's in place.

    Parameters
    ----------
    array : array, shape (c, n)
        A temporary.
    rows : array of int, shape (n,)
        One row for each column.
    values : array, shape (n,)
        What to subtract.

    Returns
    -------
    array
        The difference.
    """
    xp, height = namespace(array), array.shape[0]
    if array_api_compat.is_numpy_array(array) or array_api_compat.is_torch_array(array):
        (columns,) = xp.nonzero((rows >= 0) & (rows < height))
        array[rows[columns], columns] -= values[columns]
        return array
    here = xp.arange(height, dtype=rows.dtype)[:, None] == rows[None, :]
    return array - xp.where(here, values[None, :], xp.zeros_like(values)[None, :])
