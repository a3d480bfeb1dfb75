"""Random draws from the generators of each library, one for a whole array or one for each sample."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

from ._arrays import Array, is_jax, namespace, state_dtype

__all__ = [
    "add_normal",
    "check_rng",
    "draw_ahead",
    "fine_uniform",
    "normal",
    "random_words",
    "uniform",
    "zeros_for",
]

_SMALL, _AHEAD = 4096, 2**20
"""Numbers in a state whose draws cost less than the calls that make them, and in all of its draws: 4 MiB of float32."""


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
            "sequence of them (one for each sample) or a callable (row, like) -> z; got "
            f"{type(rng).__module__.partition('.')[0]}.{type(rng).__name__} for x of type {type(like).__name__}"
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


def draw_ahead(rng: Any, rows: np.ndarray, like: Array) -> Any:
    """A source of the same normals as `rng`, made in one call under JAX where the state is small; else `rng` itself.

    Parameters
    ----------
    rng : see `normal`
        Source.
    rows : array of int
        Numbers of the draws that will be asked for, increasing.
    like : array
        Shape and library.

    Returns
    -------
    object
        `rng`, or a callable ``(row, like) -> z``.
    """
    size = math.prod(like.shape)
    if callable(rng) or not is_jax(like) or not len(rows) or not 0 < size <= _SMALL or size * len(rows) > _AHEAD:
        return rng
    import jax

    place = np.zeros(rows[-1] + 1, dtype=np.int32)
    place[rows] = np.arange(len(rows))
    index = jax.numpy.asarray(place)
    drawn = jax.vmap(lambda row: normal(rng, row, like))(jax.numpy.asarray(rows))
    return lambda row, like: drawn[index[row]]  # noqa: ARG005


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


def _key_rank(rng: Array) -> int:
    """Number of batch axes of a JAX key, typed or raw (uint32 words on the last axis); -1 for no key."""
    import jax

    if jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng.ndim
    return rng.ndim - 1 if rng.dtype == np.uint32 else -1
