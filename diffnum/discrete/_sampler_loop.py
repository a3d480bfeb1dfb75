"""The one loop of the discrete half: it runs the stages of any step, on NumPy, PyTorch or JAX, in constant memory.

JAX compiles one step and scans. The rows of the loop are levels, computed before the first evaluation. See
:doc:`/discrete/samplers`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance
from diffnum._backend import (
    Array,
    asfloat,
    beside,
    cast,
    check_rng,
    concrete,
    convert,
    filled,
    is_jax,
    matches,
    namespace,
    random_words,
    scan,
)
from diffnum.discrete._sampler_laws import Kernel, Moment, check_rate, moment_of
from diffnum.discrete._sampler_steps import Interval, Point, Step, ancestral, shares
from diffnum.kernels._draws import integers
from diffnum.kernels._families import Chain, Interpolation
from diffnum.kernels._keep import Keep, KeepSchedule
from diffnum.kernels._tokens import tokens, whole
from diffnum.kernels.categorical import draw, to_leave_one_out

__all__ = ["Denoiser", "sample"]

Denoiser = Callable[..., Any]


_DRAWS = 6
"""Numbers of draws that a stage may use."""


class Row(NamedTuple):
    """A step's number, its moments by share, and its length in time."""

    number: Any
    moments: tuple[Moment, ...]
    h: Any


class _Task(NamedTuple):
    denoise: Denoiser
    kernel: Any
    rng: Any
    places: Array
    stride: int
    noisiest: Moment | None
    head: str
    self_condition: bool
    plain: bool


def sample(  # noqa: PLR0917
    denoise: Denoiser,
    x: Array,
    kernel: Kernel,
    schedule: KeepSchedule | None,
    t: Array,
    step: Step,
    /,
    *,
    rng: Any,
    given: Array | None = None,
    block: int | None = None,
    per_token: bool = False,
    head: str = "leave_one_out",
    self_condition: bool = False,
    trajectory: bool = False,
) -> Array:
    """Run a step over a grid of times, :eq:`discrete-samplers-step`: noisy tokens in, clean tokens out.

    Parameters
    ----------
    denoise : callable
        ``denoise(x_t, level) -> log_p``, leave-one-out log-probabilities of shape (batch, length, K). With
        `self_condition` it gets a third argument, what it returned last; uniform at first.
    x : array of int, shape (batch, length)
        Tokens at the first time: noise, and what is given.
    kernel : Interpolation, Walk or Chain
        The family.
    schedule : KeepSchedule or None
        Keep probability; None for a `Chain`.
    t : array, shape (N + 1,)
        Times, decreasing; step numbers for a `Chain`. If the last is 0 and `step` cannot reach clean data, the last
        step is ancestral. So it is wherever JAX traces the times, whose last one is then unknown: a grid that ends
        above 0 must not be traced with such a step.
    step : Step
        What to do in a step.
    rng : numpy.random.Generator, jax.random key, torch.Generator, a batch of them, or callable
        Source; one for each ``x[i]`` if a batch is given, so that sample i does not depend on the batch.
    given : array of bool, shape (length,) or (batch, length), optional
        Positions that stay as they are.
    block : int, optional
        Length of a canvas: canvases are sampled one after the other, from all noise to clean, the earlier ones given.
    per_token : bool, optional
        Whether `denoise` gets levels of shape (batch or 1, length): clean for what is given or done, noise for canvases
        to come. If not, the level of the canvas, 0-d.
    head : {"leave_one_out", "posterior"}, optional
        What `denoise` returns.
    self_condition : bool, optional
        Whether `denoise` takes its last result.
    trajectory : bool, optional
        Return all N + 1 states along a new first axis, canvas after canvas.

    Returns
    -------
    array of int, shape (batch, length)
        Tokens at the last time, in the library and dtype of `x`.

    Raises
    ------
    TypeError
        If an argument is of another type, or `rng` of another library.
    ValueError
        If times do not decrease, shapes do not match, a step does not serve the kernel, or `denoise` returns another
        shape.

    Notes
    -----
    One evaluation, O(batch length K) work and as many random words for each stage. Memory does not grow with N. A step
    over many skipped levels costs what one over few does.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import samplers
    >>> from diffnum.kernels import categorical
    >>> law = np.log([0.5, 0.5, 1e-300])
    >>> x = samplers.sample(
    ...     lambda x, level: np.broadcast_to(law, (*x.shape, 3)), np.full((1, 6), 2), categorical.absorbing(3),
    ...     categorical.keep_linear(), np.linspace(1.0, 0.0, 5), samplers.ancestral(), rng=np.random.default_rng(0),
    ... )
    >>> x.shape, bool((x < 2).all())
    ((1, 6), True)
    """
    instance("denoise", denoise, Callable)
    choose("head", head, ("leave_one_out", "posterior"))
    x = tokens_of(kernel, "x", x)
    xp, length = namespace(x), x.shape[1]
    check_rng(rng, x)
    kept, size = _given(given, x), _block(block, length)
    moments, h, count, last = grid_moments(kernel, schedule, t, step, x)
    chain = isinstance(kernel, Chain)
    places, loop = beside(np.arange(length), x), np.empty(0) if chain else x
    noisiest = None if chain else _sliced(moments[0] or moments[1], 0, chain)[0]
    plain = isinstance(kernel, Interpolation) and concrete(kernel.log_law) is not None
    stride = _DRAWS * max(len(step.stages), len(last.stages))
    task = _Task(denoise, kernel, rng, places, stride, noisiest if per_token else None, head, self_condition, plain)

    def canvas(state: tuple, index: Any) -> tuple[tuple, Any]:
        active, clean = None, None
        if size is not None:
            active, clean = (places // size == index)[None, :], (places // size < index)[None, :]
        if kept is not None:
            active = ~kept if active is None else active & ~kept
            clean = kept if clean is None else clean | kept

        def body(state: tuple, row: Row) -> tuple[tuple, Any]:
            state = _advance(task, state, row, step, (active, clean))
            return state, state[0] if trajectory else None

        final = Row(index * count + count - 1, _sliced(moments[1], 0, chain), h[count - 1])
        outs: Any = []
        if count > 1:
            state, outs = scan(body, state, _rows(moments[0], h, (index * count, count - 1), x, chain=chain), loop)
        state = _advance(task, state, final, last, (active, clean))
        if not trajectory:
            return state, None
        outs = xp.concat([outs, state[0][None, ...]]) if is_jax(outs) else xp.stack([*outs, state[0]])
        return state, outs

    previous = None
    if self_condition:
        real = xp.zeros(()).dtype if noisiest is None else noisiest.rate.dtype
        previous = filled(x, (*x.shape, kernel.classes), -float(np.log(kernel.classes)), real)
    if size is None:
        state, outs = canvas((x, previous), 0)
        outs = None if outs is None else outs[None, ...]
    else:
        blocks = np.arange(-(-length // size))
        state, outs = scan(canvas, (x, previous), xp.asarray(blocks) if is_jax(x) and not chain else blocks, loop)
        outs = xp.stack(outs) if trajectory and not is_jax(outs) else outs
    if not trajectory:
        return state[0]
    return xp.concat([x[None, ...], xp.reshape(outs, (-1, *x.shape))])


def tokens_of(kernel: Kernel, name: str, x: Array) -> Array:
    """`x` if it is an array of classes of shape (batch, length).

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    name : str
        The argument's name.
    x : array
        Tokens.

    Returns
    -------
    array
        `x`.

    Raises
    ------
    TypeError
        If it is not of integers, or of a dtype that does not hold all classes.
    ValueError
        If it has another rank or no tokens, or one that is no class.
    """
    x = x if hasattr(x, "dtype") else np.asarray(x)
    if 0 not in x.shape:
        x = tokens(kernel, name, x, None)
    if x.ndim != 2 or 0 in x.shape:
        msg = f"{name} must have shape (batch, length), got {tuple(x.shape)}"
        raise ValueError(msg)
    return x


def grid_moments(kernel: Any, schedule: Any, t: Any, step: Any, like: Array) -> tuple[tuple, Any, int, Step]:
    """Moments of all steps and of the last one, lengths, and the step that the last one takes.

    Parameters
    ----------
    kernel : Interpolation, Walk or Chain
        The family.
    schedule : KeepSchedule or None
        Keep probability.
    t : array, shape (N + 1,)
        Times.
    step : Step
        What to do.
    like : array of int
        Library of the result.

    Returns
    -------
    tuple
        Moments by share of the first N - 1 steps and of the last, the N lengths, N, the last step.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If times do not decrease, or the step does not serve the kernel.
    """
    instance("step", step, Step)
    if not hasattr(kernel, "classes"):
        instance("kernel", kernel, Interpolation)
    step.check(kernel)
    if isinstance(kernel, Chain):
        numbers = _numbers(t, len(kernel.steps))
        if shares(step) != (0.0, 1.0) or not step.closes:
            msg = f"step must be ancestral or renoising for a Chain, got {step.name}"
            raise ValueError(msg)
        pairs = [(Moment(a, None, None), Moment(b, None, None)) for a, b in pairwise(numbers)]
        return (pairs[:-1], pairs[-1:]), [None] * len(pairs), len(pairs), step
    instance("schedule", schedule, KeepSchedule)
    times = asfloat(t, "t")
    known = concrete(times)
    if times.ndim != 1 or times.shape[0] < 2:
        msg = f"t must have shape (steps + 1,), got {tuple(times.shape)}"
        raise ValueError(msg)
    if known is not None and not (np.diff(known) < 0.0).all():
        msg = f"t must decrease, got {known}"
        raise ValueError(msg)
    clean = known is None or known[-1] == 0.0
    last = ancestral() if clean and not step.closes else step
    xp = namespace(like)
    # a grid of the library of x decides the precision, a grid of NumPy leaves it to the library
    real = times.dtype if namespace(times) is xp else xp.zeros(()).dtype
    start, stop = times[:-1], times[1:]

    def at(share: float, part: slice, rates: bool) -> Moment:
        a, b = start[part], stop[part]
        found = moment_of(schedule, b if share == 1.0 else a + share * (b - a))
        if rates and share < 1.0:
            check_rate(kernel, found.rate)
        level = Keep(*(convert(p, like, real) for p in found.level))
        return Moment(level, convert(found.rate, like, real), convert(found.slope, like, real))

    many = tuple(at(share, slice(0, -1), step.rates) for share in shares(step)) if times.shape[0] > 2 else ()
    final = tuple(at(share, slice(-1, None), last.rates) for share in shares(last))
    return (many, final), convert(start - stop, like, real), times.shape[0] - 1, last


def _rows(moments: tuple, h: Any, numbers: tuple[Any, int], like: Array, *, chain: bool) -> Any:
    first, count = numbers
    number = np.arange(count)
    if chain:
        return [Row(first + int(n), moments[n], None) for n in number]
    if is_jax(like):
        return Row(first + namespace(like).asarray(number), moments, h[:count])
    return [Row(first + int(n), _sliced(moments, int(n), chain), h[int(n)]) for n in number]


def _sliced(moments: Any, n: int, chain: bool) -> tuple[Moment, ...]:
    if chain:
        return moments[n]
    return tuple(Moment(Keep(*(p[n] for p in m.level)), m.rate[n], m.slope[n]) for m in moments)


def _advance(task: _Task, state: tuple, row: Row, step: Step, roles: tuple) -> tuple:
    """One step: stage after stage, evaluate where the stage asks for it, then draw from its law."""
    active = roles[0]
    interval = Interval(dict(zip(shares(step), row.moments, strict=True)), row.h)
    points: tuple[Point, ...] = ()
    for index, stage in enumerate(step.stages):
        x, previous = state
        if stage.share is not None:
            at = interval.at[stage.share]
            log_p, previous = _evaluate(task, state, at, roles)
            points = (*points, Point(x, log_p, at))
        number = row.number * task.stride + _DRAWS * index
        if stage.pick is None or not task.plain:
            fresh = cast(draw(task.rng, stage.law(task.kernel, x, points, interval), row=number), x.dtype)
        else:
            fresh = stage.pick(task.rng, task.kernel, x, points, interval, number)
        xp = namespace(x)
        if stage.site:
            site = integers(random_words(task.rng, number + 1, x[:, 0]), x.shape[1])
            fresh = xp.where(task.places == cast(site, task.places.dtype)[:, None], fresh, x)
        state = (fresh if active is None else xp.where(active, fresh, x), previous)
    return state


def _evaluate(task: _Task, state: tuple, at: Moment, roles: tuple) -> tuple[Array, Any]:
    """The leave-one-out law, and what the denoiser may want to see next time."""
    x, previous = state
    level = at.level
    if roles[0] is not None and task.noisiest is not None:
        level = _of_tokens(at, task.noisiest, *roles)
    found = task.denoise(x, level, previous) if task.self_condition else task.denoise(x, level)
    log_p = _checked(found, x, task.kernel)
    previous = cast(log_p, previous.dtype) if task.self_condition else previous
    return (to_leave_one_out(task.kernel, x, log_p, at.level) if task.head == "posterior" else log_p), previous


def _of_tokens(at: Moment, noisiest: Moment, active: Array, clean: Array) -> Keep:
    """Levels of all tokens: clean where given or done, the canvas's own where active, noise elsewhere."""
    xp, ends = namespace(active), (0.0, 0.0, -np.inf)
    parts = []
    for now, end, noise in zip(at.level, ends, noisiest.level, strict=True):
        later = xp.where(active, now, noise)
        parts.append(xp.where(clean, xp.full_like(later, end), later))
    return Keep(*parts)


def _checked(found: Any, x: Array, kernel: Kernel) -> Array:
    shape = (*x.shape, kernel.classes)
    if tuple(getattr(found, "shape", ())) != shape:
        got = getattr(found, "shape", type(found).__name__)
        msg = f"denoise must return log-probabilities of shape {shape}, got {got}"
        raise ValueError(msg)
    if not matches(found, x):
        msg = f"denoise must return real numbers in an array of the library of x, got {type(found).__name__}"
        raise TypeError(msg)
    return namespace(x).asarray(found) if is_jax(x) else found


def _given(given: Any, x: Array) -> Array | None:
    if given is None:
        return None
    given = given if hasattr(given, "dtype") else np.asarray(given)
    if not namespace(given).isdtype(given.dtype, "bool"):
        msg = f"given must be booleans, got dtype {given.dtype}"
        raise TypeError(msg)
    if tuple(given.shape) not in {tuple(x.shape), (x.shape[1],)}:
        msg = f"given must have shape {(x.shape[1],)} or {tuple(x.shape)}, got {tuple(given.shape)}"
        raise ValueError(msg)
    given = beside(given, x)
    return given if given.ndim == 2 else given[None, :]


def _block(block: Any, length: int) -> int | None:
    if block is None:
        return None
    if whole("block", block) > length:
        msg = f"block must be an integer from 1 to {length}, got {block!r}"
        raise ValueError(msg)
    return int(block)


def _numbers(t: Any, top: int) -> list[int]:
    numbers = np.asarray(t)
    good = numbers.ndim == 1 and numbers.size > 1 and numbers.dtype.kind in "iu"
    if not good or not (np.diff(numbers) < 0).all() or numbers[0] > top or numbers[-1] < 0:
        msg = f"t must be decreasing step numbers between {top} and 0 for a Chain, got {t!r}"
        raise ValueError(msg)
    return numbers.tolist()
