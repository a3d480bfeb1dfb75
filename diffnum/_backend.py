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

__all__ = ["asfloat", "concrete", "is_jax", "is_rng", "namespace", "normal", "scan", "state_dtype"]

Array = Any
"""An array of NumPy, JAX, PyTorch or any library of the array API standard."""


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
    others = [a for a in arrays if array_api_compat.is_array_api_obj(a) and not array_api_compat.is_numpy_array(a)]
    if not others:
        return array_api_compat.array_namespace(np.empty(0))
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
        return x.detach().cpu().numpy()
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
    if not array_api_compat.is_array_api_obj(x):
        x = np.asarray(x)
    xp = namespace(x)
    if xp.isdtype(x.dtype, "real floating") or _is_bfloat16(x.dtype):
        return x
    if xp.isdtype(x.dtype, "integral"):
        return xp.astype(x, xp.asarray(0.0).dtype if is_jax(x) else xp.float64)
    msg = f"{name} must be real numbers, got dtype {x.dtype}"
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
    return xp.float64 if x.dtype == xp.float64 else xp.float32


def _is_bfloat16(dtype: Any) -> bool:
    return str(dtype) in {"bfloat16", "torch.bfloat16"}


def scan(body: Callable[[Any, Any], Any], carry: Any, rows: Sequence[Any] | Any, *, jax_rows: bool) -> Any:
    """Apply ``carry = body(carry, row)`` over `rows`; a Python loop, or ``lax.scan`` when `jax_rows`.

    Parameters
    ----------
    body : callable
        ``body(carry, row) -> carry``.
    carry : pytree
        Initial value.
    rows : iterable or pytree of arrays
        An iterable of rows; with `jax_rows` a pytree of arrays that are sliced along their first axis.
    jax_rows : bool
        Whether JAX runs the loop. Reverse mode then recomputes a row's work instead of storing it.

    Returns
    -------
    pytree
        The final carry.
    """
    if not jax_rows:
        for row in rows:
            carry = body(carry, row)
        return carry
    import jax

    step = jax.checkpoint(lambda c, row: (body(c, row), None), prevent_cse=False)
    return jax.lax.scan(step, carry, rows)[0]


def is_rng(rng: Any, like: Array) -> bool:
    """Whether `rng` is a source of normals for arrays like `like`.

    Parameters
    ----------
    rng : object
        A candidate: generator, key, keys, sequence of generators or callable.
    like : array
        The array whose library must match.

    Returns
    -------
    bool
        True if `normal` accepts the pair.
    """
    if callable(rng):
        return True
    if is_jax(like):
        return is_jax(rng) and _key_rank(rng) in {0, 1}
    kind = sys.modules["torch"].Generator if array_api_compat.is_torch_array(like) else np.random.Generator
    return isinstance(rng, kind) or (isinstance(rng, Sequence) and len(rng) > 0 and all(isinstance(g, kind) for g in rng))


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
    if not is_rng(rng, like):
        msg = (
            "rng must be a numpy.random.Generator, a jax.random key, a torch.Generator (of the library of x), a sequence "
            f"of them (one for each sample) or a callable (row, like) -> z; got {type(rng).__name__}"
        )
        raise TypeError(msg)
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
        _check_batch(len(rng), like)
        return xp.stack([normal(g, row, like[i, ...]) for i, g in enumerate(rng)])
    if array_api_compat.is_torch_array(like):
        return xp.randn(like.shape, generator=rng, dtype=dtype, device=like.device)
    return xp.asarray(rng.standard_normal(like.shape, dtype=np.dtype(str(dtype).rsplit(".", 1)[-1])))


def _jax_normal(rng: Array, row: Any, like: Array, dtype: Any) -> Array:
    import jax

    def draw(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(jax.random.fold_in(key, row), shape, dtype)

    if _key_rank(rng) == 0:
        return draw(rng, like.shape)
    _check_batch(rng.shape[0], like)
    return jax.vmap(lambda key: draw(key, like.shape[1:]))(rng)


def _key_rank(rng: Array) -> int:
    """Number of batch axes of a JAX key, typed or raw (uint32 words on the last axis); -1 for no key."""
    import jax

    if jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng.ndim
    return rng.ndim - 1 if rng.dtype == np.uint32 else -1


def _check_batch(sources: int, like: Array) -> None:
    if like.ndim == 0 or sources != like.shape[0]:
        msg = f"rng must hold one source for each sample, got {sources} for x of shape {tuple(like.shape)}"
        raise ValueError(msg)
