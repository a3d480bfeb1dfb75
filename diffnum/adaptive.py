"""Error-controlled steps: a pair of exponential Runge-Kutta methods and a controller, on any ODE path.

`solve_adaptive` walks along the coordinate of a path of :doc:`/paths`. In each step two methods of neighbouring orders
use the same evaluations; their difference estimates the error, and a controller chooses the next length or repeats
the step. The weights are moments of the path, computed inside the loop. Derivation and measurements: :doc:`/adaptive`.

Conventions. ``denoise(x, level)`` as in :doc:`/solvers`. Of the path only the two ends count, not the nodes between
them; its direction may be either one. Step lengths are those of the path's coordinate. The loop runs in Python for
NumPy and PyTorch and in ``lax.while_loop`` under JAX.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum import _backend
from diffnum._arguments import choose, finite, instance, number
from diffnum._backend import Array, concrete, namespace
from diffnum._tables import Method
from diffnum.paths import Path
from diffnum.schedules import Level
from diffnum.solvers import RUNGE_KUTTA_3

__all__ = ["PAIR_32", "PAIR_43", "Controller", "Pair", "Solution", "solve_adaptive"]


class Pair(NamedTuple):
    """Two methods with the same evaluations, of neighbouring orders: :eq:`adaptive-pair`.

    Attributes
    ----------
    method : Method
        The method whose result is kept, of order p, without history.
    embedded : tuple of int
        Stages through which the other one, of order p - 1, interpolates in its last row.
    """

    method: Method
    embedded: tuple[int, ...]


PAIR_32 = Pair(RUNGE_KUTTA_3, (0, 1))
"""Order 3 (DPM-Solver-3) with a method of order 2 inside; three evaluations a step, none at its end."""

PAIR_43 = Pair(
    Method(
        "exponential Runge-Kutta 4(3)",
        4,
        (0.0, 2 / 15, 4 / 15, 2 / 5, 7 / 8),
        ((0,), (0, 1), (0, 2), (0, 2, 3), (0, 3, 4)),
    ),
    (0, 2, 4),
)
"""Order 4 with a method of order 3 inside; five evaluations a step, none at its end."""

_LEAST_ERROR = 1e-4
"""Errors (in units of the tolerance) below this count as this in the controller's memory."""


class Controller(NamedTuple):
    """What follows from an error, :eq:`adaptive-controller`.

    Attributes
    ----------
    safety : float
        Factor on the step length, below 1: the aim is an error a little under the tolerance.
    least, largest : float
        Bounds of the factor between a step and the next.
    integral, proportional : float
        Exponents of this error and of the one before, times the order of the estimate.
    """

    safety: float = 0.9
    least: float = 0.2
    largest: float = 5.0
    integral: float = 0.7
    proportional: float = 0.4


class Solution(NamedTuple):
    """Result of `solve_adaptive`.

    Attributes
    ----------
    x : array
        State at the path's last level; NaN where `success` is false (which can be seen inside JAX transformations
        only, elsewhere it raises).
    t : array, shape (accepted + 1,)
        Times of the nodes that were visited. Inside JAX transformations of shape (max_steps + 1,), the last time
        repeated.
    errors : array, shape (accepted,)
        Estimated error of each accepted step in units of the tolerance, at most 1: :eq:`adaptive-norm`. Inside JAX
        transformations of shape (max_steps,), filled up with zeros.
    accepted, rejected : array of int
        Number of steps kept and repeated.
    evaluations : array of int
        Calls of the denoiser.
    success : array of bool
        Whether the last level was reached.
    integral : array or None
        Integral :eq:`adaptive-integral` of the second part of the denoiser's output, in float32 at least; None without
        `has_aux`.
    """

    x: Array
    t: Array
    errors: Array
    accepted: Array
    rejected: Array
    evaluations: Array
    success: Array
    integral: Array | None


class _State(NamedTuple):
    """What the loop carries; `left` and `length` are signed and of shape (1,), as levels are."""

    z: Array
    integral: Any
    level: Level
    left: Array
    length: Array
    previous: Array
    repeated: Array
    accepted: Any
    rejected: Any
    t: Any
    errors: Any


def solve_adaptive(
    denoise: Callable[[Array, Level], Any],
    x: Array,
    path: Path,
    /,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    pair: Pair = PAIR_43,
    norm: Literal["batch", "sample"] = "batch",
    first_step: float = 0.05,
    max_steps: int = 1000,
    controller: Controller = Controller(),  # noqa: B008
    has_aux: bool = False,
) -> Solution:
    """Solve from the first to the last level of `path` with steps chosen by the estimated error: :eq:`adaptive-pair`.

    Parameters
    ----------
    denoise : callable
        ``denoise(x, level) -> x0_hat``, of the shape and library of `x`.
    x : array
        State at the path's first level, of any shape, floating point.
    path : Path
        An ODE path without gaps whose coordinate is finite at both ends: `velocity`, or a ratio form where they are
        clean or pure noise. Two nodes suffice.
    rtol, atol : float, optional
        Relative and absolute tolerance of a step, >= 0 and not both 0.
    pair : Pair, optional
        `PAIR_43`, `PAIR_32` or one of your own.
    norm : {"batch", "sample"}, optional
        Whether the root mean square of the error is taken over all of `x`, or for each ``x[i]``, the largest counting.
    first_step : float, optional
        Length of the first trial, as a fraction of the whole interval, in (0, 1].
    max_steps : int, optional
        Largest number of steps, repeated ones included, >= 1.
    controller : Controller, optional
        How the next length follows from the error.
    has_aux : bool, optional
        Whether `denoise` returns a pair, ``(x0_hat, aux)``; `aux` is then integrated along the solution in the path's
        coordinate, and its error is controlled like that of the state.

    Returns
    -------
    Solution
        State, nodes and statistics.

    Raises
    ------
    TypeError
        If `x` is not floating point, or `denoise` not callable.
    ValueError
        If the path is stochastic, has gaps or an infinite coordinate at an end, starts at sigma = 0 where f is
        singular, or an option is out of range.
    RuntimeError
        If `max_steps` steps do not reach the end, or no step is short enough. Inside JAX transformations
        the result is NaN instead, with `success` false.

    Notes
    -----
    All samples of a batch share their steps. Under ``jax.vmap`` each has its own: a vmapped loop runs until the last
    sample is done. One step costs as many evaluations as the pair has stages, a repeated one too; `has_aux` costs one
    more outside JAX. The global error is proportional to the tolerance, :eq:`adaptive-tolerance`.

    Derivatives are those of the steps that were taken, which are held constant. PyTorch and forward mode of JAX have
    them. JAX cannot reverse a loop of unknown length and says so: make a path of the nodes `t` and use `solve` on it.
    `semilinear` paths need a grid of JAX arrays under JAX.

    References
    ----------
    E. Hairer, S. P. Norsett and G. Wanner, Solving ordinary differential equations I (1993), section II.4.
    K. Gustafsson, Control theoretic techniques for stepsize selection in explicit Runge-Kutta methods (1991).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum import oracles, paths, schedules
    >>> from diffnum.adaptive import solve_adaptive
    >>> data = oracles.mixture([0.5, 0.5], [[-1.0], [1.0]], [0.3, 0.3])
    >>> path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.0]))
    >>> solution = solve_adaptive(data.denoise, np.array([[0.5], [-0.2]]), path, rtol=1e-6, atol=1e-6)
    >>> solution.x.round(4).tolist(), int(solution.accepted), int(solution.evaluations)
    ([[0.9107], [-0.6998]], 26, 130)
    """
    instance("denoise", denoise, Callable)
    _check_path(path)
    _check_pair(pair)
    _check_controller(controller)
    rtol, atol = _tolerances(rtol, atol)
    choose("norm", norm, ("batch", "sample"))
    share, limit = _share(first_step), _count(max_steps)
    x = _floating(x, path)
    xp = namespace(x)
    first, last = (_vector(level, x) for level in (path.first, path.last))
    start, end = path.coordinate(first), path.coordinate(last)
    step = _stepper(denoise, x, path, pair, has_aux=has_aux)
    state = _initial(denoise, x, path, first, end - start, share=share, limit=limit, has_aux=has_aux)

    def going(now: _State) -> Any:
        ns = namespace(now.left)
        size = ns.abs(end - now.left) + ns.abs(now.left)
        moves = (now.left != 0.0) & (size + ns.abs(now.length) > size)
        unfinished = moves[0] & (now.accepted + now.rejected < limit)
        return unfinished if _backend.is_jax(unfinished) else bool(unfinished)

    def body(now: _State) -> _State:
        ns = namespace(now.left)
        final = ns.abs(now.length) >= ns.abs(now.left)
        # a last step that is a sliver is avoided by two equal ones
        two = 2.0 * ns.abs(now.length) > ns.abs(now.left)
        trial = ns.where(final, now.left, ns.where(two, 0.5 * now.left, now.length))
        left = now.left - trial
        inside = path.at(ns.where(final, end - 0.5 * trial, end - left))
        stop = Level(*(ns.where(final, b, a) for a, b in zip(inside, last, strict=True)))
        z, integral, estimates = step(now, stop, trial)
        pairs = [(estimates[0], now.z, z)] + ([(estimates[1], now.integral, integral)] if has_aux else [])
        error = _error(pairs, rtol, atol, norm, like=now.left)
        ok = error <= 1.0
        factor = _factor(now, error, ok, pair.method.order, controller)
        return _State(
            z=_select(ok, z, now.z),
            integral=_select(ok, integral, now.integral),
            level=Level(*(_select(ok, b, a) for a, b in zip(now.level, stop, strict=True))),
            left=_select(ok, left, now.left),
            length=trial * factor,
            previous=_select(ok, _at_least(error, _LEAST_ERROR), now.previous),
            repeated=~ok if _backend.is_jax(ok) else not ok,
            accepted=now.accepted + _select(ok, 1, 0),
            rejected=now.rejected + _select(ok, 0, 1),
            t=_record(now.t, now.accepted + 1, stop.t[0], ok),
            errors=_record(now.errors, now.accepted, error, ok),
        )

    done = _backend.while_loop(going, body, state, x)
    success = done.left[0] == 0.0
    if concrete(success) is not None and not bool(success):
        _give_up(done, path, limit)
    result = done.z if path.centre is None else done.z + _scaled_centre(path, done.level, x)
    integral = done.integral if has_aux else None
    evaluations = (done.accepted + done.rejected) * len(pair.method.stages)
    if _backend.is_jax(x):
        result = xp.where(success, result, xp.full_like(result, math.nan))
        integral = None if integral is None else xp.where(success, integral, xp.full_like(integral, math.nan))
        t, errors = _filled(done, last)
    else:
        t, errors = np.asarray(done.t), np.asarray(done.errors)
        evaluations += has_aux
    return Solution(
        x=_backend.cast(result, x.dtype),
        t=t,
        errors=errors,
        accepted=done.accepted,
        rejected=done.rejected,
        evaluations=evaluations,
        success=success,
        integral=integral,
    )


def _initial(
    denoise: Any,
    x: Array,
    path: Path,
    first: Level,
    left: Array,
    *,
    share: float,
    limit: int,
    has_aux: bool,
) -> _State:
    state = _backend.state_dtype(x)
    z = _backend.cast(x, state)
    if path.centre is not None:
        z = z - _scaled_centre(path, first, x)
    integral: Any = 0.0
    if has_aux:
        _, aux = _pair(denoise(x, _scalars(first, x)))
        integral = namespace(aux).zeros_like(aux)
    common = {"z": z, "integral": integral, "level": first, "left": left, "length": share * left}
    if not _backend.is_jax(x):
        return _State(
            **common, previous=np.asarray(1.0), repeated=False, accepted=0, rejected=0, t=(first.t[0],), errors=()
        )
    xp = namespace(left)
    zero, buffer = xp.asarray(0), xp.zeros(limit, dtype=left.dtype)
    return _State(
        **common,
        previous=xp.ones_like(left[0]),
        repeated=xp.asarray(False),
        accepted=zero,
        rejected=zero,
        t=xp.concat([first.t, buffer]),
        errors=buffer,
    )


def _stepper(denoise: Any, x: Array, path: Path, pair: Pair, *, has_aux: bool) -> Callable:
    """One trial step, about the path's centre: the new state and integral, and the estimated errors of both."""
    dtype, state = x.dtype, _backend.state_dtype(x)
    method = pair.method
    rules, places = _rules(pair), np.asarray(method.stages)
    centre = None if path.centre is None else _backend.convert(path.centre, x, state)

    def step(now: _State, stop: Level, trial: Array) -> tuple[Array, Any, tuple[Array, Any]]:
        levels, goals = _stages(path, places, now.level, stop, trial)
        kept = _backend.columns(path.propagate(now.level, goals)[0], x, state)
        weights = _combined(rules, path.moments(now.level, goals, rules.shape[2]))
        weights = _backend.columns(weights, x, state)
        targets = None if path.target is None else [_backend.columns(part, x, state) for part in path.target(levels)]
        scales = None if centre is None else _backend.columns(levels.alpha, x, state)
        at = Level(*(_backend.convert(part, x, state) for part in levels))
        z, values, extras = now.z, [], []
        for i in range(len(places)):
            y = z if scales is None else z + scales[i] * centre
            output = denoise(_backend.cast(y, dtype), Level(*(part[i, ...] for part in at)))
            f, aux = _pair(output) if has_aux else (output, None)
            f = _backend.cast(_shaped(f, x), state)
            f = f if centre is None else f - centre
            values.append(f if targets is None else targets[0][i] * z + targets[1][i] * f)
            extras.append(aux)
            z = kept[i] * now.z + sum(weights[i][j] * values[j] for j in method.nodes[i])
        used = sorted({*method.nodes[-1], *pair.embedded})
        estimate = sum((weights[-2][j] - weights[-1][j]) * values[j] for j in used)
        if not has_aux:
            return z, now.integral, (estimate, None)
        # the same rules with the kernel 1
        plain = _combined(rules[-2:], [trial / (m + 1) for m in range(rules.shape[2])])
        main, other = _backend.columns(plain, x, state)
        integral = now.integral + sum(main[j] * extras[j] for j in method.nodes[-1])
        return z, integral, (estimate, sum((main[j] - other[j]) * extras[j] for j in used))

    return step


def _rules(pair: Pair) -> np.ndarray:
    """Coefficients of the Lagrange bases in powers of place/goal: (row, stage, power); embedded row last."""
    stages = np.asarray(pair.method.stages)
    rows = [*zip(pair.method.nodes, (*stages[1:], 1.0), strict=True), (pair.embedded, 1.0)]
    rules = np.zeros((len(rows), len(stages), max(len(nodes) for nodes, _ in rows)))
    for row, (nodes, goal) in enumerate(rows):
        powers = np.vander(stages[list(nodes)] / goal, increasing=True)
        rules[row, list(nodes), : len(nodes)] = np.linalg.inv(powers).T
    return rules


def _stages(path: Path, places: np.ndarray, start: Level, stop: Level, trial: Array) -> tuple[Level, Level]:
    """Levels of the evaluations, and of the states that the rows lead to (the last twice)."""
    xp = namespace(trial)
    inner = path.at(path.coordinate(start) + xp.asarray(places[1:], dtype=trial.dtype) * trial)
    levels = Level(*(xp.concat(parts) for parts in zip(start, inner, strict=True)))
    return levels, Level(*(xp.concat(parts) for parts in zip(inner, stop, stop, strict=True)))


def _combined(rules: np.ndarray, moments: Any) -> Array:
    """Weights (row, stage) of moments (row,)."""
    xp = namespace(moments[0])
    return sum(xp.asarray(rules[:, :, m], dtype=moment.dtype) * moment[:, None] for m, moment in enumerate(moments))


def _error(pairs: list, rtol: float, atol: float, norm: str, *, like: Array) -> Array:
    """Largest of the estimates in units of the tolerance; a constant for derivatives, on the host outside JAX."""
    size = _size_of_all if norm == "batch" else _size_of_each
    ratios = []
    for estimate, before, after in pairs:
        xp = namespace(estimate)
        if 0 in estimate.shape:
            ratios.append(xp.zeros_like(xp.sum(estimate)))
            continue
        old, new = size(before), size(after)
        ratios.append(xp.max(size(estimate) / (atol + rtol * xp.where(old > new, old, new))))
    error = _backend.constant(ratios[0])
    for other in ratios[1:]:
        bound = _backend.constant(other)
        error = namespace(error).where(bound > error, bound, error)
    if _backend.is_jax(error):
        return namespace(like).astype(error, like.dtype)
    return np.asarray(concrete(error), dtype=np.float64)


def _size_of_all(value: Array) -> Array:
    xp = namespace(value)
    return xp.sqrt(xp.mean(_backend.constant(value) ** 2))


def _size_of_each(value: Array) -> Array:
    if value.ndim < 2:
        return namespace(value).abs(_backend.constant(value))
    xp = namespace(value)
    return xp.sqrt(xp.mean(_backend.constant(value) ** 2, axis=tuple(range(1, value.ndim))))


def _factor(now: _State, error: Array, ok: Any, order: int, control: Controller) -> Array:
    """Factor from this step's length to the next trial's."""
    xp = namespace(error)
    finite = xp.isfinite(error)
    usable = finite & (error > 0.0)
    e = xp.where(usable, error, xp.ones_like(error))
    smooth = control.safety * e ** (-control.integral / order) * now.previous ** (control.proportional / order)
    plain = control.safety * e ** (-1.0 / order)
    factor = xp.where(ok, smooth, plain)
    factor = xp.where(usable, factor, xp.where(finite, control.largest, control.least))
    most = xp.where(ok & ~xp.asarray(now.repeated), control.largest, 1.0)
    return xp.clip(factor, control.least, most)


def _at_least(value: Array, bound: float) -> Array:
    xp = namespace(value)
    return xp.where(value > bound, value, xp.full_like(value, bound))


def _select(ok: Any, new: Any, old: Any) -> Any:
    return namespace(ok).where(ok, new, old) if _backend.is_jax(ok) else (new if ok else old)


def _record(stored: Any, index: Any, value: Array, ok: Any) -> Any:
    """Under JAX a rejected step is written too, and overwritten by the next."""
    if _backend.is_jax(ok):
        return _backend.put(stored, index, value)
    return (*stored, value) if ok else stored


def _filled(done: _State, last: Level) -> tuple[Array, Array]:
    """The records cut to the accepted steps where their number is known, else filled up."""
    xp = namespace(done.left)
    number = concrete(done.accepted)
    if number is not None:
        return done.t[: int(number) + 1], done.errors[: int(number)]
    index = xp.arange(done.t.shape[0])
    t = xp.where(index > done.accepted, last.t, done.t)
    return t, xp.where(index[:-1] < done.accepted, done.errors, xp.zeros_like(done.errors))


def _check_path(path: Any) -> None:
    if not isinstance(path, Path):
        msg = f"path must be a Path, got {type(path).__name__}"
        raise TypeError(msg)
    if path.stochastic or path.gaps:
        msg = f"path must be an ODE path whose steps join, got {path.name}"
        raise ValueError(msg)
    ends = [concrete(path.coordinate(level)) for level in (path.first, path.last)]
    if not all(end is None or np.isfinite(end).all() for end in ends):
        msg = (
            f"path must have a finite coordinate at both ends, got {ends[0]} and {ends[1]} on {path.name}; "
            "use paths.velocity, or a ratio form"
        )
        raise ValueError(msg)
    sigma = concrete(path.first.sigma)
    if path.target is not None and sigma is not None and sigma == 0.0:
        msg = f"path must start at sigma > 0, where f is regular, got sigma = 0 on {path.name}"
        raise ValueError(msg)


def _check_controller(controller: Any) -> None:
    instance("controller", controller, Controller)
    known: list[Any] = [concrete(finite(f"controller.{name}", value)) for name, value in controller._asdict().items()]
    if any(value is None for value in known):
        return
    safety, least, largest, integral, _ = known
    if not (safety > 0.0 and 0.0 < least < 1.0 <= largest and integral > 0.0):
        msg = f"controller must have safety > 0, 0 < least < 1 <= largest and integral > 0, got {controller}"
        raise ValueError(msg)


def _check_pair(pair: Any) -> None:
    if not isinstance(pair, Pair) or pair.method.history:
        msg = f"pair must be a Pair whose method does not look at earlier steps, got {pair!r}"
        raise ValueError(msg)
    if not max(pair.method.stages) < 1.0:
        msg = f"pair must evaluate before the end of the step, where f may be singular, got {pair.method.stages}"
        raise ValueError(msg)


def _tolerances(rtol: float, atol: float) -> tuple[float, float]:
    relative, absolute = number("rtol", rtol, least=0.0), number("atol", atol, least=0.0)
    if relative == 0.0 and absolute == 0.0:
        msg = f"rtol or atol must be > 0, got rtol={rtol!r}, atol={atol!r}"
        raise ValueError(msg)
    return relative, absolute


def _share(first_step: float) -> float:
    share = number("first_step", first_step, above=0.0)
    if share > 1.0:
        msg = f"first_step must be in (0, 1], got {first_step!r}"
        raise ValueError(msg)
    return share


def _count(value: Any) -> int:
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        msg = f"max_steps must be an integer >= 1, got {value!r}"
        raise ValueError(msg)
    return count


def _floating(x: Any, path: Path) -> Array:
    given = x if hasattr(x, "dtype") else np.asarray(x)
    as_array = _backend.asfloat(given)
    if as_array.dtype != given.dtype:
        msg = f"x must have a floating-point dtype, got {given.dtype}"
        raise TypeError(msg)
    return namespace(path.first.t).asarray(as_array) if concrete(path.first.t) is None else as_array


def _vector(level: Level, x: Array) -> Level:
    """A 0-d level with the axis that the functions of a path expect, as JAX arrays under JAX."""
    parts = level if not _backend.is_jax(x) else map(namespace(x).asarray, level)
    return Level(*(part[None] for part in parts))


def _scalars(level: Level, x: Array) -> Level:
    return Level(*(_backend.convert(part[0, ...], x, _backend.state_dtype(x)) for part in level))


def _scaled_centre(path: Path, level: Level, x: Array) -> Array:
    state = _backend.state_dtype(x)
    return _backend.columns(level.alpha, x, state)[0] * _backend.convert(path.centre, x, state)


def _shaped(value: Any, x: Array) -> Array:
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(x.shape):
        got = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
        msg = f"denoise must return an array of the shape of x, {tuple(x.shape)}, got {got}"
        raise ValueError(msg)
    if not _backend.matches(value, x):
        msg = f"denoise must return a real array of the library of x, got {type(value).__name__} of {value.dtype}"
        raise TypeError(msg)
    return value


def _pair(output: Any) -> tuple[Any, Array]:
    """What a denoiser with `has_aux` returns; the second part in float32 at least, in which it is summed."""
    if not (isinstance(output, tuple) and len(output) == 2):
        msg = f"denoise must return a pair (x0_hat, aux) with has_aux, got {type(output).__name__}"
        raise ValueError(msg)
    aux = _backend.asfloat(output[1], "aux")
    return output[0], _backend.cast(aux, _backend.state_dtype(aux))


def _give_up(done: _State, path: Path, limit: int) -> None:
    reached = float(np.asarray(concrete(done.level.t[0])))
    length = float(np.asarray(concrete(done.length[0])))
    msg = (
        f"max_steps must suffice to reach the end of {path.name}, got {limit}: t = {reached:.6g} was reached with "
        f"{int(done.accepted)} steps accepted and {int(done.rejected)} repeated, and the next trial has the length "
        f"{length:.3g}. Raise the tolerance or max_steps; if the length is at rounding level, look for NaN in denoise"
    )
    raise RuntimeError(msg)
