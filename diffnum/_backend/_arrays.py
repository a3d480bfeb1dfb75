"""Namespaces, dtypes and conversions: the one way in which the library asks whose array an array is."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat
import numpy as np

__all__ = [
    "Array",
    "asfloat",
    "beside",
    "cast",
    "columns",
    "concrete",
    "constant",
    "convert",
    "copy",
    "exp_of_temporary",
    "filled",
    "hypot",
    "is_jax",
    "matches",
    "matmul",
    "namespace",
    "own",
    "read_only",
    "slice_axis",
    "state_dtype",
    "top_k",
    "writes",
]

Array = Any
"""An array of NumPy, JAX, PyTorch or any library of the array API standard."""


_NUMPY = array_api_compat.array_namespace(np.empty(0))


_CONSTANTS = frozenset({np.ndarray, float, int, type(None)})
"""Types that leave the namespace at NumPy's; an eager loop asks often, and this answers ten times faster."""


def namespace(*arrays: Array) -> Any:
    """Array namespace shared by `arrays`; Python numbers and NumPy arrays count as constants beside the others.

    Parameters
    ----------
    *arrays : array or float or None
        Arrays of one library, NumPy arrays, Python numbers and ``None`` in any mixture.

    Returns
    -------
    module
        The array-API namespace; NumPy's when nothing else is present.

    Raises
    ------
    TypeError
        If arrays of two libraries other than NumPy are mixed.
    """
    if all(type(a) in _CONSTANTS for a in arrays):
        return _NUMPY
    others = [a for a in arrays if array_api_compat.is_array_api_obj(a) and not array_api_compat.is_numpy_array(a)]
    if not others:
        return _NUMPY
    return array_api_compat.array_namespace(*others)


def is_jax(x: Array) -> bool:
    """Whether `x` is a JAX array or tracer.

    Parameters
    ----------
    x : object
        Anything.

    Returns
    -------
    bool
        True for JAX arrays, traced ones included.
    """
    return array_api_compat.is_jax_array(x)


def concrete(x: Array) -> np.ndarray | None:
    """Host copy of `x` in NumPy, or None where its values are not known here: JAX traces, or another process has them.

    Parameters
    ----------
    x : array or float
        Any array.

    Returns
    -------
    numpy.ndarray or None
        The values, for checks and for structure that must be decided before tracing.
    """
    if is_jax(x):
        if isinstance(x, sys.modules["jax"].core.Tracer) or not getattr(x, "is_fully_addressable", True):
            return None
        return np.asarray(x)
    if array_api_compat.is_torch_array(x):
        x = x.detach().cpu()
        return (x.float() if _is_bfloat16(x.dtype) else x).numpy()
    return np.asarray(x)


def asfloat(x: Array, name: str = "x") -> Array:
    """`x` as a floating-point array of its own library; numbers and integer arrays of NumPy become float64.

    Parameters
    ----------
    x : array or float
        Values.
    name : str, optional
        The argument's name, for the error message.

    Returns
    -------
    array
        `x` itself if it is a floating-point array.

    Raises
    ------
    TypeError
        If `x` is complex, boolean or not numeric.
    """
    if type(x) is np.ndarray and x.dtype.kind == "f":
        return x
    array: Array = x if array_api_compat.is_array_api_obj(x) else np.asarray(x)
    xp = namespace(array)
    if xp.isdtype(array.dtype, "real floating") or _is_bfloat16(array.dtype):
        return array
    if xp.isdtype(array.dtype, "integral"):
        return xp.astype(array, xp.asarray(0.0).dtype if is_jax(array) else xp.float64)
    msg = f"{name} must be real numbers, got dtype {array.dtype}"
    raise TypeError(msg)


def state_dtype(x: Array) -> Any:
    """dtype in which sums over `x` are held: that of `x`, float32 at least.

    Parameters
    ----------
    x : array
        A floating-point array.

    Returns
    -------
    dtype
        float64 for float64, else float32, of the library of `x`.
    """
    xp = namespace(x)
    if isinstance(x.dtype, np.dtype) and x.dtype.kind == "f":
        return xp.float64 if x.dtype.itemsize >= 8 else xp.float32  # in any byte order, and for long doubles
    return xp.float64 if x.dtype == xp.float64 else xp.float32


def _is_bfloat16(dtype: Any) -> bool:
    return str(dtype) in {"bfloat16", "torch.bfloat16"}


def cast(array: Array, dtype: Any) -> Array:
    """`array` in `dtype`; `array` itself where it has that dtype, which an eager loop finds out fastest here.

    Parameters
    ----------
    array : array
        Values.
    dtype : dtype
        A dtype of its library.

    Returns
    -------
    array
        The same values.
    """
    return array if array.dtype == dtype else namespace(array).astype(array, dtype)


def convert(array: Array, like: Array, dtype: Any) -> Array:
    """`array` in the library and on the device of `like`; derivatives pass if both are of one library.

    Parameters
    ----------
    array : array
        NumPy array, or array of the library of `like`.
    like : array
        Decides library and device.
    dtype : dtype
        dtype of the result, of the library of `like`.

    Returns
    -------
    array
        The same values.

    Raises
    ------
    TypeError
        If JAX traces `array` and `like` is of another library.
    """
    xp = namespace(like)
    if array_api_compat.is_array_api_obj(array) and namespace(array) is xp:
        return xp.astype(array, dtype, copy=False)
    if is_jax(like):
        return xp.asarray(array, dtype=dtype)
    values = concrete(array)
    if values is None:
        kind = f"{type(like).__module__.partition('.')[0]}.{type(like).__name__}"
        msg = f"x must be a JAX array where JAX traces what it is combined with, got {kind}"
        raise TypeError(msg)
    return xp.asarray(values, dtype=dtype, device=array_api_compat.device(like))


def columns(array: Array, like: Array, dtype: Any) -> list:
    """`array` by its first axis as Python numbers, which cost an eager loop least; as arrays where derivatives pass.

    Parameters
    ----------
    array : array
        Coefficients, at least one axis.
    like : array
        Array they will multiply.
    dtype : dtype
        dtype of the products.

    Returns
    -------
    list
        Floats, nested for two axes, or arrays with one axis less.
    """
    values = None if getattr(array, "requires_grad", False) or is_jax(like) else concrete(array)
    if values is not None:
        return values.tolist()
    array = convert(array, like, dtype)
    return [array[i, ...] for i in range(array.shape[0])]


def beside(array: Array, like: Array) -> Array:
    """`array` in the library and on the device of `like`, in its own dtype.

    Parameters
    ----------
    array : array
        NumPy array, or array of the library of `like`.
    like : array
        Decides library and device.

    Returns
    -------
    array
        The same values.
    """
    xp = namespace(like)
    if array_api_compat.is_array_api_obj(array) and namespace(array) is xp:
        return array
    return xp.asarray(array) if is_jax(like) else xp.asarray(array, device=array_api_compat.device(like))


def filled(like: Array, shape: int | tuple[int, ...], value: float, dtype: Any) -> Array:
    """Array of one value, of the library and on the device of `like`.

    Parameters
    ----------
    like : array
        Decides library and device.
    shape : int or tuple of int
        Shape of the result.
    value : float
        Its entries.
    dtype : dtype
        Its dtype.

    Returns
    -------
    array
        A new array.
    """
    xp = namespace(like)
    if is_jax(like):
        return xp.full(shape, value, dtype=dtype)
    return xp.full(shape, value, dtype=dtype, device=array_api_compat.device(like))


def copy(array: Array) -> Array:
    """`array` in memory of its own; itself for JAX, whose arrays cannot be written to.

    Parameters
    ----------
    array : array
        Values.

    Returns
    -------
    array
        The same values; derivatives pass.
    """
    return array if is_jax(array) else namespace(array).astype(array, array.dtype, copy=True)


def own(array: Array) -> Array:
    """`array`, for NumPy in memory of its own: what the caller writes to later does not reach a record that keeps it.

    Parameters
    ----------
    array : array
        Values.

    Returns
    -------
    array
        The same values.
    """
    return array.copy() if array_api_compat.is_numpy_array(array) else array


def read_only(array: Array) -> Array:
    """`array` as a view that cannot be written to, on NumPy; itself elsewhere.

    Parameters
    ----------
    array : array
        Values.

    Returns
    -------
    array
        The same memory.
    """
    if type(array) is not np.ndarray:
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def writes(array: Array) -> int:
    """How often `array` was written to, as PyTorch counts; 0 where nobody counts, because nobody can write or is seen.

    Parameters
    ----------
    array : array
        What `read_only` made.

    Returns
    -------
    int
        A number that a write changes.
    """
    if type(array) is np.ndarray or not array_api_compat.is_torch_array(array):
        return 0
    compiling = sys.modules["torch"].compiler.is_compiling()
    return 0 if compiling or array.is_inference() else array._version


def matches(value: Array, like: Array) -> bool:
    """Whether `value` is a real array of the library of `like`; for JAX, NumPy's serve as constants.

    Parameters
    ----------
    value : array
        Array to judge.
    like : array
        Array to compare with.

    Returns
    -------
    bool
        False for another library or kind of numbers.
    """
    candidate: Any = value
    if not array_api_compat.is_array_api_obj(candidate):
        return False
    xp, own = namespace(like), namespace(value)
    if xp is not (namespace(value, like) if is_jax(like) else own):
        return False
    return _is_bfloat16(value.dtype) or own.isdtype(value.dtype, ("real floating", "integral"))


def constant(x: Array) -> Array:
    """`x` as a constant: derivatives do not pass through it.

    Parameters
    ----------
    x : array
        Any array.

    Returns
    -------
    array
        The same values.
    """
    if is_jax(x):
        return sys.modules["jax"].lax.stop_gradient(x)
    return x.detach() if array_api_compat.is_torch_array(x) else x


def slice_axis(x: Array, start: int | Array, size: int, axis: int) -> Array:
    """``x[..., start : start + size, ...]`` along `axis`; `start` may be traced by JAX.

    Parameters
    ----------
    x : array
        Array to cut.
    start : int
        First index, with ``start + size <= x.shape[axis]``.
    size : int
        Length of the slice.
    axis : int
        Axis, counted from either end.

    Returns
    -------
    array
        The slice; a view where the library has views.
    """
    if is_jax(x):
        return sys.modules["jax"].lax.dynamic_slice_in_dim(x, start, size, axis)
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, start + size)
    return x[tuple(index)]


def hypot(a: Array, b: Array) -> Array:
    """``sqrt(a^2 + b^2)`` without overflow, with second derivatives: JAX's own has none where ``|a| = |b|``.

    Parameters
    ----------
    a, b : array
        Real numbers.

    Returns
    -------
    array
        The lengths; derivatives of all orders, 0 where both are 0.
    """
    xp = namespace(a, b)
    if not (is_jax(a) or is_jax(b)):
        return xp.hypot(a, b)
    a, b = xp.broadcast_arrays(a, b)
    size = constant(xp.maximum(xp.abs(a), xp.abs(b)))
    plain = (size > 0.0) & (size < xp.inf)
    unit = xp.where(plain, size, xp.ones_like(size))
    first = xp.where(plain, a, xp.ones_like(a)) / unit
    second = xp.where(plain, b, xp.zeros_like(b)) / unit
    return xp.where(plain, unit * xp.sqrt(first * first + second * second), size)


def exp_of_temporary(x: Array) -> Array:
    """``exp(x)``; `x` is overwritten by NumPy and, unless it records derivatives, by PyTorch: one temporary less.

    Parameters
    ----------
    x : array
        A temporary of at least one dimension.

    Returns
    -------
    array
        The exponentials.
    """
    if array_api_compat.is_numpy_array(x):
        return np.exp(x, out=x)
    if array_api_compat.is_torch_array(x) and not x.requires_grad:
        return x.exp_()
    return namespace(x).exp(x)


def matmul(a: Array, b: Array, dtype: Any) -> Array:
    """``a @ b`` of matrices in `dtype`: factors enter in their own precision, products are summed in `dtype`.

    Parameters
    ----------
    a, b : array
        Matrices.
    dtype : dtype
        dtype of sums and result, at least as wide as those of the factors.

    Returns
    -------
    array
        The product.
    """
    if is_jax(a):
        jnp = sys.modules["jax"].numpy
        if dtype == jnp.float64:
            a, b = cast(a, dtype), cast(b, dtype)
        return jnp.matmul(a, b, preferred_element_type=dtype)
    return cast(a, dtype) @ cast(b, dtype)


def top_k(values: Array, k: int) -> tuple[Array, Array]:
    """The `k` largest of each row and their places, in falling order; equal ones in the order of their places.

    Parameters
    ----------
    values : array, shape (n, c)
        Real numbers.
    k : int
        Between 1 and c.

    Returns
    -------
    tuple of array
        Shape (n, k) each.
    """
    if is_jax(values):
        return tuple(sys.modules["jax"].lax.top_k(values, k))
    xp = namespace(values)
    places = xp.argsort(values, axis=-1, descending=True, stable=True)[:, :k]
    return xp.take_along_axis(values, places, axis=-1), places
