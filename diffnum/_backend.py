"""What the library asks of an array library: a namespace, a loop over rows, normal draws.

This is the only module that knows which array library it runs on. NumPy and SciPy are always there; JAX and PyTorch
are looked up only when an array of theirs arrives, so importing ``diffnum`` imports neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

__all__ = [
    "add_normal",
    "asfloat",
    "cast",
    "check_rng",
    "columns",
    "concrete",
    "constant",
    "convert",
    "copy",
    "differentiable",
    "differentiate_as",
    "exp_of_temporary",
    "hypot",
    "is_jax",
    "linearised",
    "matches",
    "namespace",
    "normal",
    "own",
    "random_words",
    "read_only",
    "scan",
    "slice_axis",
    "state_dtype",
    "while_loop",
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
    """Host copy of `x` in NumPy, or None where its values are not known yet (while JAX traces).

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
        if isinstance(x, sys.modules["jax"].core.Tracer):
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
    """
    xp = namespace(like)
    if array_api_compat.is_array_api_obj(array) and namespace(array) is xp:
        return xp.astype(array, dtype, copy=False)
    if is_jax(like):
        return xp.asarray(array, dtype=dtype)
    return xp.asarray(concrete(array), dtype=dtype, device=array_api_compat.device(like))


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


def add_normal(y: Array, scale: Array | float, rng: Any, row: Any, *, known: bool = True) -> Array:
    """``y + scale z`` with standard normals z; nothing is drawn where `scale` is known to be 0.

    Parameters
    ----------
    y : array
        State.
    scale : float or 0-d array
        Standard deviation of the noise.
    rng : see `normal`
        Source of the draw.
    row : int
        Number of the draw.
    known : bool, optional
        Whether `scale` comes from values that were known when tracing began. If not, z is drawn at 0 too, since
        derivatives with respect to `scale` need it.

    Returns
    -------
    array
        The noisy state.
    """
    if is_jax(y) and is_jax(scale) and known:
        import jax

        z = jax.lax.cond(scale == 0.0, lambda: jax.numpy.zeros_like(y), lambda: normal(rng, row, y))
        return y + scale * z
    if isinstance(scale, float) and scale == 0.0:
        return y
    return y + scale * normal(rng, row, y)


def check_rng(rng: Any, like: Array) -> None:
    """Raise unless `rng` is a source of normals for arrays like `like`; see `normal`.

    Parameters
    ----------
    rng : object
        A candidate: generator, key, batch of them or callable.
    like : array
        The array whose library must match.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `like`.
    ValueError
        If a batch of sources does not match ``like.shape[0]``.
    """
    if callable(rng):
        return
    if is_jax(like):
        valid = is_jax(rng) and _key_rank(rng) in {0, 1}
        sources = rng.shape[0] if valid and _key_rank(rng) == 1 else None
    else:
        kind = sys.modules["torch"].Generator if array_api_compat.is_torch_array(like) else np.random.Generator
        batch = isinstance(rng, Sequence)
        valid = all(isinstance(g, kind) for g in rng) if batch else isinstance(rng, kind)
        sources = len(rng) if batch else None
    if not valid:
        msg = (
            "rng must be a numpy.random.Generator, a jax.random key, a torch.Generator (of the library of x), a "
            f"sequence of them (one for each sample) or a callable (row, like) -> z; got {type(rng).__name__}"
        )
        raise TypeError(msg)
    if sources is not None and (like.ndim == 0 or sources != like.shape[0]):
        msg = f"rng must hold one source for each sample, got {sources} for x of shape {tuple(like.shape)}"
        raise ValueError(msg)


def normal(rng: Any, row: Any, like: Array) -> Array:
    """Standard normals of the shape of `like`, in its state dtype; draw number `row` of `rng`.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of them, or callable
        One source for the whole array, or one for each ``like[i]`` (an array of keys, a sequence of generators): sample
        `i` then does not depend on the batch. A callable ``(row, like) -> z`` prescribes the draw. A JAX key is
        folded with `row`; generators advance.
    row : int
        Number of the draw, from 0.
    like : array
        Shape, library and device.

    Returns
    -------
    array
        Draws of dtype ``state_dtype(like)``.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `like`.
    ValueError
        If a batch of sources does not match ``like.shape[0]``.
    """
    check_rng(rng, like)
    xp = namespace(like)
    dtype = state_dtype(like)
    if callable(rng):
        z = xp.asarray(rng(row, like))
        if z.shape != like.shape:
            msg = f"rng(row, like) must return shape {tuple(like.shape)}, got {tuple(z.shape)}"
            raise ValueError(msg)
        return xp.astype(z, dtype)
    if is_jax(like):
        return _jax_normal(rng, row, like, dtype)
    if isinstance(rng, Sequence):
        return xp.stack([normal(g, row, like[i, ...]) for i, g in enumerate(rng)])
    if array_api_compat.is_torch_array(like):
        return xp.randn(like.shape, generator=rng, dtype=dtype, device=like.device)
    return xp.asarray(rng.standard_normal(like.shape, dtype=np.float64 if dtype == xp.float64 else np.float32))


def _jax_normal(rng: Array, row: Any, like: Array, dtype: Any) -> Array:
    import jax

    def draw(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(jax.random.fold_in(key, row), shape, dtype)

    if _key_rank(rng) == 0:
        return draw(rng, like.shape)
    return jax.vmap(lambda key: draw(key, like.shape[1:]))(rng)


def _key_rank(rng: Array) -> int:
    """Number of batch axes of a JAX key, typed or raw (uint32 words on the last axis); -1 for no key."""
    import jax

    if jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng.ndim
    return rng.ndim - 1 if rng.dtype == np.uint32 else -1


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
    """``exp(x)``; a NumPy `x` is overwritten, which saves a temporary of its size.

    Parameters
    ----------
    x : array
        A temporary of at least one dimension.

    Returns
    -------
    array
        The exponentials.
    """
    return np.exp(x, out=x) if array_api_compat.is_numpy_array(x) else namespace(x).exp(x)


def differentiable(x: Array) -> bool:
    """Whether the library of `x` differentiates: JAX or PyTorch.

    Parameters
    ----------
    x : array
        Any array.

    Returns
    -------
    bool
        False for NumPy and others.
    """
    return is_jax(x) or array_api_compat.is_torch_array(x)


def linearised(function: Callable[[Array], Array], x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """``function(x)`` and its Jacobian J there as a linear map, evaluated once for all directions.

    Parameters
    ----------
    function : callable
        ``function(x)``, of the shape of `x`.
    x : array
        A JAX array or PyTorch tensor.

    Returns
    -------
    tuple of array and callable
        The value, and a map of directions, stacked along a new first axis, to ``J e`` (JAX) or ``J^T e`` (PyTorch),
        whichever that library computes with the operators it has; ``e . J e`` is the same number. Derivatives pass.

    Raises
    ------
    TypeError
        If `x` belongs to a library without derivatives.
    """
    if is_jax(x):
        jax = sys.modules["jax"]
        value, product = jax.linearize(function, x)
        return value, jax.vmap(product)
    if array_api_compat.is_torch_array(x):
        torch = sys.modules["torch"]
        value, product = torch.func.vjp(function, x)
        return value, lambda directions: torch.stack([product(e)[0] for e in directions])
    msg = f"x must be an array of JAX or PyTorch to be differentiated, got {type(x).__name__}"
    raise TypeError(msg)


def differentiate_as(value: Callable[..., Any], twin: Callable[..., Any], *args: Array) -> Any:
    """``value(*args)``, whose derivatives are those of an equal function that is cheaper to differentiate.

    Parameters
    ----------
    value : callable
        ``value(*args) -> tuple of arrays``: computed, never differentiated.
    twin : callable
        ``twin(out, *args)`` equals ``value(*args)`` when ``out`` does; derivatives to any order are taken of it with
        respect to `args`, `out` held constant.
    *args : array
        Floating-point arrays; all differentiable inputs must be among them.

    Returns
    -------
    tuple of array
        ``value(*args)``.
    """
    if any(is_jax(a) for a in args):
        jax = sys.modules["jax"]

        def rule(primals: Any, tangents: Any) -> Any:
            out = function(*primals)
            held = jax.lax.stop_gradient(out)
            return out, jax.jvp(lambda *a: twin(held, *a), primals, tangents)[1]

        # Under nested transformations JAX may hand over NumPy arrays.
        function = jax.custom_jvp(lambda *a: value(*map(jax.numpy.asarray, a)))
        function.defjvp(rule)
        return function(*args)
    if any(array_api_compat.is_torch_array(a) for a in args):
        return _torch_function(value, twin).apply(*args)
    return value(*args)


def _torch_function(value: Callable[..., Any], twin: Callable[..., Any]) -> Any:
    torch = sys.modules["torch"]

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return value(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs, *output)
            ctx.save_for_forward(*inputs, *output)
            ctx.split = len(inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            args, out = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
            held = tuple(o.detach() for o in out)
            return torch.func.vjp(lambda *a: twin(held, *a), *args)[1](cotangents)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            args, out = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
            return torch.func.jvp(lambda *a: twin(out, *a), args, tangents)[1]

    return Function


def zeros_for(rng: Any, shape: tuple[int, ...]) -> Array:
    """Zeros of the library and device of `rng`, in that library's default floating dtype.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of them
        A source of random numbers.
    shape : tuple of int
        Shape of the result.

    Returns
    -------
    array
        Zeros: float64 for NumPy, the default dtype of JAX and PyTorch.

    Raises
    ------
    TypeError
        If `rng` is none of these.
    """
    source: Any = rng[0] if isinstance(rng, Sequence) and len(rng) > 0 else rng
    torch = sys.modules.get("torch")
    if isinstance(source, np.random.Generator):
        return np.zeros(shape)
    if torch is not None and isinstance(source, torch.Generator):
        return torch.zeros(shape, device=source.device)
    if is_jax(rng) and _key_rank(rng) in {0, 1}:
        return sys.modules["jax"].numpy.zeros(shape)
    msg = (
        "rng must be a numpy.random.Generator, a jax.random key, a torch.Generator or a sequence of them (one for each "
        f"sample), got {type(rng).__name__}"
    )
    raise TypeError(msg)


def uniform(rng: Any, row: int, like: Array) -> Array:
    """Uniform draws from [0, 1) of the shape of `like`, in its state dtype; draw number `row` of `rng`.

    Parameters
    ----------
    rng : numpy.random.Generator, jax.random key, torch.Generator, or a batch of them
        As in `normal`, without callables.
    row : int
        Number of the draw, from 0.
    like : array
        Shape, library and device.

    Returns
    -------
    array
        Draws on a grid of spacing 2^-53 in float64 and 2^-24 (JAX 2^-23) in float32.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `like`.
    ValueError
        If a batch of sources does not match ``like.shape[0]``.
    """
    check_rng(rng, like)
    xp = namespace(like)
    dtype = state_dtype(like)
    if is_jax(like):
        import jax

        def draw(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(jax.random.fold_in(key, row), shape, dtype)

        if _key_rank(rng) == 0:
            return draw(rng, like.shape)
        return jax.vmap(lambda key: draw(key, like.shape[1:]))(rng)
    if isinstance(rng, Sequence):
        return xp.stack([uniform(g, row, like[i, ...]) for i, g in enumerate(rng)])
    if array_api_compat.is_torch_array(like):
        return xp.rand(like.shape, generator=rng, dtype=dtype, device=like.device)
    return xp.asarray(rng.random(like.shape, dtype=np.float64 if dtype == xp.float64 else np.float32))


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


def subtract_at(array: Array, columns: Array, values: Array) -> Array:
    """`array` minus ``values[i]`` at ``[i, columns[i]]``, rows whose column is outside untouched; NumPy's in place.

    Parameters
    ----------
    array : array, shape (n, c)
        A temporary.
    columns : array of int, shape (n,)
        One column for each row.
    values : array, shape (n,)
        What to subtract.

    Returns
    -------
    array
        The difference.
    """
    xp, width = namespace(array), array.shape[1]
    if array_api_compat.is_numpy_array(array) or array_api_compat.is_torch_array(array):
        (rows,) = xp.nonzero((columns >= 0) & (columns < width))
        array[rows, columns[rows]] -= values[rows]
        return array
    here = xp.arange(width, dtype=columns.dtype)[None, :] == columns[:, None]
    return array - xp.where(here, values[:, None], xp.zeros_like(values)[:, None])


def join(
    value: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: tuple[Any, ...],
    constants: tuple[Any, ...],
) -> tuple[Any, ...]:
    """``value(inputs, constants)``, whose derivatives in reverse mode are a pair of functions written by hand.

    Parameters
    ----------
    value : callable
        ``value(inputs, constants) -> tuple of arrays``, where no derivative is asked for.
    forward : callable
        ``forward(inputs, constants, wanted) -> (outputs, residuals)``, flat tuples; `wanted` says for which inputs.
    backward : callable
        ``backward(inputs, constants, residuals, cotangents, wanted) -> tuple``, one array or None for each input; a
        cotangent that is known to be zero is None.
    inputs : tuple of array or None
        What derivatives are taken with respect to.
    constants : tuple of array or None
        Whatever else is an array.

    Returns
    -------
    tuple of array
        The outputs.
    """
    present = [a for a in (*inputs, *constants) if a is not None]
    if any(is_jax(a) for a in present):
        return _jax_join(value, forward, backward)(inputs, constants)
    if any(array_api_compat.is_torch_array(a) for a in present):
        wanted = tuple(getattr(a, "requires_grad", False) for a in inputs)
        if any(wanted) and sys.modules["torch"].is_grad_enabled():
            return _torch_join(forward, backward, constants, wanted)(*inputs)
    return value(inputs, constants)


def _jax_join(value: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    import jax

    def forth(inputs: Any, constants: Any) -> Any:
        leaf = jax.custom_derivatives.CustomVJPPrimal
        held = jax.tree.map(lambda a: a.value, (inputs, constants), is_leaf=lambda a: isinstance(a, leaf))
        wanted = tuple(a is not None and a.perturbed for a in inputs)
        outputs, residuals = forward(*held, wanted)
        # what is wanted is static: it travels in the structure of the residuals
        return outputs, (*held, residuals, tuple(() if w else None for w in wanted))

    def back(saved: Any, cotangents: Any) -> Any:
        *held, marks = saved
        zero = jax.custom_derivatives.SymbolicZero
        known = tuple(
            None if c is None or isinstance(c, zero) or c.dtype == jax.dtypes.float0 else c for c in cotangents
        )
        return backward(*held, known, tuple(m is not None for m in marks)), None

    function = jax.custom_vjp(value)
    function.defvjp(forth, back, symbolic_zeros=True)
    return function


def _torch_join(
    forward: Callable[..., Any], backward: Callable[..., Any], constants: tuple[Any, ...], wanted: tuple[bool, ...]
) -> Any:
    torch = sys.modules["torch"]
    parts: list[int] = []

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            outputs, residuals = forward(inputs, constants, wanted)
            parts[:] = [len(inputs), len(outputs)]
            return (*outputs, *residuals)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            held = output[parts[1] :]
            ctx.mark_non_differentiable(*(a for a in output if a is not None and not a.is_floating_point()))
            ctx.mark_non_differentiable(*(a for a in held if a is not None))
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*inputs, *held)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            inputs, residuals = ctx.saved_tensors[: parts[0]], ctx.saved_tensors[parts[0] :]
            return backward(inputs, constants, residuals, cotangents[: parts[1]], wanted)

    return lambda *inputs: Function.apply(*inputs)[: parts[1]]


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


def fine_uniform(rng: Any, row: Any, like: Array) -> Array:
    """Uniform draws from [0, 1] whose grid near 0 has twice the digits of `uniform`: from two draws, high and low part.

    Parameters
    ----------
    rng : see `uniform`
        Source.
    row : int
        Number of the draw.
    like : array
        Shape, library and device.

    Returns
    -------
    array
        Draws; the probability of lying below q has the relative accuracy of the dtype down to q = 2^-46 in float32.
    """
    spacing = float(namespace(like).finfo(state_dtype(like)).eps) * (1.0 if is_jax(like) else 0.5)
    return uniform(rng, 2 * row, like) + spacing * uniform(rng, 2 * row + 1, like)


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


def random_words(rng: Any, row: Any, like: Array) -> Array:
    """Uniform 32-bit words of the shape of `like`; draw number `row` of `rng`.

    Parameters
    ----------
    rng : see `normal`
        Source; a callable ``(row, like) -> words`` prescribes them.
    row : int
        Number of the draw, from 0.
    like : array
        Shape, library and device.

    Returns
    -------
    array of int
        Integers from 0 to 2^32 - 1; of dtype uint32 for JAX, int64 elsewhere.

    Raises
    ------
    TypeError
        If `rng` is of another kind than `like`.
    ValueError
        If a batch of sources does not match ``like.shape[0]``, or a callable returns another shape.
    """
    check_rng(rng, like)
    xp = namespace(like)
    kind = xp.uint32 if is_jax(like) else xp.int64
    if callable(rng):
        words = xp.asarray(rng(row, like))
        if words.shape != like.shape:
            msg = f"rng(row, like) must return shape {tuple(like.shape)}, got {tuple(words.shape)}"
            raise ValueError(msg)
        return xp.astype(words, kind)
    if is_jax(like):
        import jax

        def draw(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.bits(jax.random.fold_in(key, row), shape, kind)

        if _key_rank(rng) == 0:
            return draw(rng, like.shape)
        return jax.vmap(lambda key: draw(key, like.shape[1:]))(rng)
    if isinstance(rng, Sequence):
        return xp.stack([random_words(g, row, like[i, ...]) for i, g in enumerate(rng)])
    if array_api_compat.is_torch_array(like):
        return xp.randint(0, 2**32, like.shape, generator=rng, dtype=xp.int64, device=like.device)
    return xp.asarray(np.asarray(rng.integers(0, 2**32, like.shape, dtype=np.uint32)).astype(np.int64))


def shard(function: Callable[..., Any], mesh: Any, inputs: Any, outputs: Any) -> Any:
    """`function` of the parts of arrays that one device holds, as a function of whole arrays (JAX).

    Parameters
    ----------
    function : callable
        Of local arrays; it may sum over devices by `over_devices`.
    mesh : jax.sharding.Mesh
        The devices.
    inputs, outputs : pytree of tuple
        For each array the names of mesh axes, or None, by which its axes are divided.

    Returns
    -------
    callable
        A function of global arrays.
    """
    import jax

    def specs(tree: Any) -> Any:
        return jax.tree.map(lambda t: jax.P(*t), tree, is_leaf=lambda t: isinstance(t, tuple) and not _nested(t))

    return jax.shard_map(function, mesh=mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False)


def _nested(names: tuple[Any, ...]) -> bool:
    return any(isinstance(name, tuple) for name in names)


def over_devices(kind: str, x: Array, axis: Any) -> Array:
    """Sum, largest or least of `x` over the devices along a mesh axis, inside `shard`; `x` itself where axis is None.

    Parameters
    ----------
    kind : {"sum", "max", "min"}
        What to compute.
    x : array
        Local array.
    axis : str, tuple of str or None
        Names of mesh axes.

    Returns
    -------
    array
        The same on all of them.
    """
    if axis is None:
        return x
    lax = sys.modules["jax"].lax
    return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[kind](x, axis)


def device_number(axis: Any) -> Array:
    """Place of this device along a mesh axis, inside `shard`.

    Parameters
    ----------
    axis : str
        Name of a mesh axis.

    Returns
    -------
    array of int
        From 0.
    """
    return sys.modules["jax"].lax.axis_index(axis)
