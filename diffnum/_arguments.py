"""Checks of what a path is made from: schedule, time grid, numbers, one parameter for each step.

Each check raises with the argument's name, what it got and what it expects. Shapes are always checked, values where
they are known: not while JAX traces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffnum._backend import Array, asfloat, concrete, convert, is_jax, namespace, own, state_dtype
from diffnum.schedules import Level, Schedule

__all__ = ["choose", "finite", "grid", "instance", "levels", "number", "per_step"]

_LEAST = 1e-50
"""Least alpha and sigma but 0; weights of order 4 hold cubes of quotients of ratios, which must not overflow."""


def levels(schedule: Schedule, t: Array, *beside: Any) -> Level:
    """Levels at `t`, in the array library that `t` and the parameters `beside` it share.

    Parameters
    ----------
    schedule : Schedule
        Noise schedule.
    t : array, shape (N + 1,)
        Times, strictly decreasing.
    *beside : array or float
        Parameters that will meet the levels in formulas.

    Returns
    -------
    Level
        Arrays of shape (N + 1,).

    Raises
    ------
    TypeError
        If `schedule` is no `Schedule`.
    ValueError
        If `t` is not such a grid or leaves the schedule.
    """
    instance("schedule", schedule, Schedule)
    known = concrete(asfloat(t, "t"))
    t = grid(t, decreasing=True)
    # the ends are rounded to the dtype of t: float32(0.7) lies below 0.7 and must not be refused
    if known is not None:
        low, high = (np.asarray(end, dtype=known.dtype) for end in (schedule.t_clean, schedule.t_noise))
        if not (low <= known[-1] and known[0] <= high):
            ends = f"[{schedule.t_clean}, {schedule.t_noise}]"
            msg = f"t must lie in {ends} for {schedule.name}, got {known[0]} to {known[-1]}"
            raise ValueError(msg)
    xp = namespace(t, *beside)
    found = schedule.level(t if xp is namespace(t) else xp.asarray(t))
    for name, part in (("alpha", found.alpha), ("sigma", found.sigma)):
        values = concrete(part)
        if values is not None:
            values = values.astype(np.float64)
            outside = (values != 0.0) & ~((values >= _LEAST) & (values <= 1.0 / _LEAST))
            if outside.any():
                got = values[outside][0]
                msg = f"t must have {name} of 0 or in [{_LEAST:g}, {1.0 / _LEAST:g}], got {name} = {got:g}"
                raise ValueError(msg)
    return found


def grid(t: Array, *, decreasing: bool) -> Array:
    """`t` as an array of shape (N + 1,), in float64 (under JAX in its own precision), checked to be monotone.

    Parameters
    ----------
    t : array
        Times.
    decreasing : bool
        Whether an increasing grid is refused.

    Returns
    -------
    array
        The grid.

    Raises
    ------
    TypeError
        If `t` is not real.
    ValueError
        If `t` is no strictly monotone grid of two nodes or more.
    """
    t = asfloat(t, "t")
    xp = namespace(t)
    if t.ndim != 1 or t.shape[0] < 2:
        msg = f"t must have shape (N + 1,) with N >= 1, got {tuple(t.shape)}"
        raise ValueError(msg)
    known = concrete(t)
    if known is not None:
        steps = np.diff(known)
        monotone = (steps < 0).all() or (not decreasing and (steps > 0).all())
        if not (np.isfinite(known).all() and monotone):
            kind = "strictly decreasing (noisy first)" if decreasing else "strictly monotone"
            msg = f"t must be finite and {kind}, got {known}"
            raise ValueError(msg)
    return xp.astype(t, state_dtype(t) if is_jax(t) else xp.float64)


def per_step(name: str, value: Array, like: Array, *, largest: float = np.inf) -> tuple[Array, bool]:
    """`value` as an array of one entry a step, in the library it shares with `like`; whether it may differ from 0.

    Parameters
    ----------
    name : str
        The argument's name.
    value : array or float
        A number, or an array of the shape of `like`; all in [0, largest].
    like : array, shape (N,)
        Shape and dtype of the result.
    largest : float, optional
        Greatest allowed value.

    Returns
    -------
    tuple of array and bool
        The entries; False only if all are known to be 0 and no derivative is asked for.

    Raises
    ------
    TypeError
        If `value` is not real.
    ValueError
        If `value` has another shape or leaves its range.
    """
    value = own(asfloat(value, name))
    xp = namespace(value, like)
    if value.ndim > 1 or (value.ndim == 1 and value.shape != like.shape):
        msg = f"{name} must be a number or have shape {tuple(like.shape)}, one for each step; got {tuple(value.shape)}"
        raise ValueError(msg)
    known = concrete(value)
    if known is not None and not ((known >= 0.0) & (known <= largest) & np.isfinite(known)).all():
        bound = "finite and >= 0" if largest == np.inf else f"in [0, {largest:g}]"
        msg = f"{name} must be {bound}, got {known}"
        raise ValueError(msg)
    moves = known is None or bool(known.any()) or getattr(value, "requires_grad", False)
    # NumPy's grid meets another library's parameter there, where derivatives pass
    like = like if namespace(like) is xp else xp.asarray(like)
    return xp.broadcast_to(convert(value, like, like.dtype), like.shape), moves


def number(name: str, value: Any, *, above: float = -np.inf, least: float = -np.inf) -> float:
    """`value` as a Python float.

    Parameters
    ----------
    name : str
        The argument's name.
    value : float
        A finite number.
    above, least : float, optional
        Bounds: ``value > above`` and ``value >= least``.

    Returns
    -------
    float
        The number.

    Raises
    ------
    ValueError
        If it is none, or out of bounds.
    """
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and np.isfinite(value) and value > above and value >= least):
        bound = f" > {above:g}" if above > -np.inf else f" >= {least:g}" if least > -np.inf else ""
        msg = f"{name} must be a finite number{bound}, got {value!r}"
        raise ValueError(msg)
    return float(value)


def finite(name: str, value: Any) -> Array:
    """`value` as a floating-point array of its own library.

    Parameters
    ----------
    name : str
        The argument's name.
    value : array or float
        Finite numbers.

    Returns
    -------
    array
        The same values.

    Raises
    ------
    TypeError
        If `value` is not real.
    ValueError
        If it is not finite.
    """
    value = own(asfloat(value, name))
    known = concrete(value)
    if known is not None and not np.isfinite(known).all():
        msg = f"{name} must be finite, got {known}"
        raise ValueError(msg)
    return value


def choose(name: str, value: str, options: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `options`.

    Parameters
    ----------
    name : str
        The argument's name.
    value : str
        What was asked for.
    options : tuple of str
        What there is.

    Raises
    ------
    ValueError
        If `value` is none of them.
    """
    if value not in options:
        msg = f"{name} must be one of {options}, got {value!r}"
        raise ValueError(msg)


def instance(name: str, value: Any, kind: Any) -> None:
    """Raise unless `value` is an instance of `kind`.

    Parameters
    ----------
    name : str
        The argument's name.
    value : object
        What was given.
    kind : type
        What is expected.

    Raises
    ------
    TypeError
        If `value` is of another type.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        msg = f"{name} must be {article} {kind.__name__}, got {type(value).__name__}"
        raise TypeError(msg)
