"""What functions of tokens ask of their arguments: integers of a class, levels in one library, rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffnum._arguments import instance
from diffnum._backend import Array, asfloat, beside, cast, concrete, convert, is_jax, namespace
from diffnum.kernels._families import Chain, Interpolation, Walk
from diffnum.kernels._keep import Keep

__all__ = ["as_levels", "law_like", "one_hot", "pick", "rows_of", "tokens", "whole"]

Kernel = Interpolation | Walk | Chain


def law_like(kernel: Interpolation, like: Array) -> Array:
    """Logarithm of the stationary law in the library and dtype of `like`.

    Parameters
    ----------
    kernel : Interpolation
        The family.
    like : array
        Decides library and dtype.

    Returns
    -------
    array, shape (K,)
        Logarithms.
    """
    return convert(kernel.log_law, like, like.dtype)


def pick(values: Array, index: Array) -> Array:
    """Entries of the last axis that tokens choose.

    Parameters
    ----------
    values : array, shape (..., K)
        Rows.
    index : array of int, shape (...)
        Tokens.

    Returns
    -------
    array, shape (...)
        One entry of each row.
    """
    xp = namespace(values)
    index = index if is_jax(index) else cast(index, xp.int64)
    return xp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def rows_of(table: Array, index: Array) -> Array:
    """``table[index]`` for an array of indices of any shape.

    Parameters
    ----------
    table : array, shape (K, ...)
        Rows.
    index : array of int
        Places.

    Returns
    -------
    array
        Its shape is that of `index`, then that of a row.
    """
    xp = namespace(table, index)
    table, index = (a if namespace(a) is xp else xp.asarray(a) for a in (table, index))
    return xp.reshape(xp.take(table, xp.reshape(index, (-1,)), axis=0), (*index.shape, *table.shape[1:]))


def one_hot(x: Array, classes: int) -> Array:
    """Where a new last axis of `classes` meets the token.

    Parameters
    ----------
    x : array of int
        Tokens.
    classes : int
        Their number K.

    Returns
    -------
    array of bool
        One axis more than `x`.
    """
    places = beside(np.arange(classes), x)
    return x[..., None] == cast(places, x.dtype)


def as_levels(*levels: Any, like: Array) -> list[Keep]:
    """Levels in the library of `like`, and in its dtype if it is real; else in their own.

    Parameters
    ----------
    *levels : Keep
        Levels.
    like : array
        Decides.

    Returns
    -------
    list of Keep
        The same levels.

    Raises
    ------
    TypeError
        If one is no `Keep`.
    """
    found = []
    real = namespace(like).isdtype(like.dtype, "real floating")
    for level in levels:
        instance("level", level, Keep)
        parts = [asfloat(part) for part in level[1:]]
        xp = namespace(*parts, like)
        at = like if namespace(like) is xp else xp.zeros(())
        parts = [convert(part, at, at.dtype) if real else beside(part, at) for part in parts]
        found.append(Keep(level.t, *parts))
    return found


def tokens(kernel: Kernel, name: str, x: Any, t: Any) -> Array:
    """Tokens as an array of integers, checked where they are known; numbers join the library of the level.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    name : str
        The argument's name.
    x : array of int
        Tokens.
    t : Keep or int
        Level that they meet.

    Returns
    -------
    array of int
        Tokens.

    Raises
    ------
    TypeError
        If they are no integers, or of a dtype that does not hold all classes.
    ValueError
        If one is no class.
    """
    if not isinstance(kernel, Interpolation | Walk | Chain):
        instance("kernel", kernel, Interpolation)
    if not hasattr(x, "dtype"):
        x = np.asarray(x)
        x = beside(x, t.log_alpha) if isinstance(t, Keep) and hasattr(t.log_alpha, "dtype") else x
    if not namespace(x).isdtype(x.dtype, "integral"):
        msg = f"{name} must be integers, got dtype {x.dtype}"
        raise TypeError(msg)
    # a class that the dtype cannot hold would be compared as another one
    if int(namespace(x).iinfo(x.dtype).max) < kernel.classes - 1:
        msg = f"{name} must have a dtype that holds classes up to {kernel.classes - 1}, got {x.dtype}"
        raise TypeError(msg)
    known = concrete(x)
    if known is not None and not ((known >= 0) & (known < kernel.classes)).all():
        msg = f"{name} must be classes from 0 to {kernel.classes - 1}, got {known.min()} to {known.max()}"
        raise ValueError(msg)
    return x


def whole(name: str, value: Any) -> int:
    """`value` as a Python integer >= 1.

    Parameters
    ----------
    name : str
        The argument's name.
    value : int
        A number.

    Returns
    -------
    int
        The same.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        msg = f"{name} must be an integer >= 1, got {value!r}"
        raise ValueError(msg)
    return int(value)
