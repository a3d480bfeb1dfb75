"""From a path and a method to a table of coefficients, one row for each call of the denoiser.

A method only says where it evaluates and through which of the values it has it interpolates. All its weights are
moments of the path's kernel times the coefficients of a Lagrange basis: one formula for every method. What published
samplers do differently are other places or moments in it (`Method.rule`), or other polynomials (`Method.basis`).

A table has one state vector. A Runge-Kutta stage needs no second one: the state at a stage is a combination of the
step's first state and of stored values, so the next stage is the same combination turned round. It costs no division,
since the path propagates from stage to stage, and halves the memory traffic. A corrector needs no second one either:
a corrected state differs from the predicted one by stored values only, which the next row adds.

Rows, registers and orders are integers, known before any value is. The values are computed for all steps at once and
scattered by a gather, so that tracing a grid under JAX costs the same at 20 and at 1,000 steps.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from diffnum._arguments import choose, instance
from diffnum._backend import Array, concrete, hypot, namespace
from diffnum._guarded import renewed
from diffnum.paths import Path
from diffnum.phi import LARGEST
from diffnum.schedules import Level

__all__ = ["Method", "Table", "assemble"]


Rule = Callable[[tuple[Array, ...], list[Array], Array, slice], tuple[Sequence[Array], Sequence[Any]]]
"""``rule(moments, places, length, steps)`` returns the moments and places that a method uses in their stead."""


class Method(NamedTuple):
    """Where a method evaluates in a step and what it interpolates; the weights follow by :eq:`solvers-weights`.

    Attributes
    ----------
    name : str
        Name in tables and messages.
    order : int
        Order on smooth problems.
    stages : tuple of float
        Positions of the evaluations as fractions of the step in the path's coordinate, non-decreasing from 0.
    nodes : tuple of tuple of int
        For each stage, the values through which f is interpolated up to the next stage (the last: up to the end):
        ``m >= 0`` is stage m of this step, ``-m`` the first stage of the m-th step before.
    basis : tuple, optional
        For each stage None, or one polynomial for each of its nodes in place of the Lagrange polynomial: coefficients
        of powers of u, which is 0 at the start of the step and 1 at the stage's goal.
    corrector : tuple of int, optional
        Values through which the *previous* step is integrated once more, now that f is known at its end:
        :eq:`samplers-corrector`. 0 is the value at the start of this step, -m as in `nodes`.
    rule : callable, optional
        ``rule(moments, places, length, steps) -> (moments, places)``, for the weights of published samplers that are
        no integrals of the Lagrange basis: :eq:`samplers-rule`. It sees the moments of :eq:`solvers-weights`, the
        places of the nodes in units of the interval, its length in the path's coordinate and the slice of the steps.
    clock : {"path", "log_snr"}, optional
        What `stages` are fractions of: the step in the path's coordinate, or in log-SNR.
    noise : {"exact", "end"}, optional
        On a stochastic path, whether stages see the noise that has arrived by then, or all of it comes at the end.
    """

    name: str
    order: int
    stages: tuple[float, ...]
    nodes: tuple[tuple[int, ...], ...]
    basis: tuple[tuple[tuple[float, ...], ...] | None, ...] | None = None
    corrector: tuple[int, ...] | None = None
    rule: Rule | None = None
    clock: Literal["path", "log_snr"] = "path"
    noise: Literal["exact", "end"] = "exact"

    @property
    def history(self) -> int:
        """Number of earlier steps the method looks at."""
        correcting = () if self.corrector is None else (-1, *self.corrector)
        return -min(itertools.chain((0,), *self.nodes, correcting))

    def polynomials(self, stage: int) -> tuple[tuple[float, ...], ...] | None:
        """The explicit polynomials of a stage, if it has any."""
        return None if self.basis is None else self.basis[stage]

    def degree(self, stage: int) -> int:
        """Number of moments that the weights of a stage need."""
        explicit = self.polynomials(stage)
        return len(self.nodes[stage]) if explicit is None else max(map(len, explicit))


class Table(NamedTuple):
    """Coefficients of a sampler, one row for each evaluation; what `solve` does with them is :eq:`solvers-table`.

    Attributes
    ----------
    level : Level
        Levels of the evaluations, arrays of shape (R,).
    target : array, shape (R, 2), or None
        ``f = target[0] y + target[1] denoise(y, level)``; None where f is the denoiser's output.
    slot : array of int, shape (R,)
        Register that f is stored in.
    carry : array, shape (R,)
        Factor of the state.
    weights : array, shape (R, K)
        Factors of the registers.
    noise : array, shape (R,), or None
        Standard deviation of the noise added after the row; None for an ODE.
    bias : array, shape (R,), or None
        Factor of the centre.
    centre : array or None
        Point about which f is formed, broadcastable to x.
    start : array, shape (2,), or None
        Factor and noise applied to x before the first evaluation.
    end : array of int, shape (N,)
        Row that completes each step.
    node : Level
        Levels of the states between steps, arrays of shape (N + 1,).
    """

    level: Level
    target: Array | None
    slot: np.ndarray
    carry: Array
    weights: Array
    noise: Array | None
    bias: Array | None
    centre: Array | None
    start: Array | None
    end: np.ndarray
    node: Level

    @property
    def evaluations(self) -> int:
        """Number of calls of the denoiser."""
        return self.carry.shape[0]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.end.shape[0]

    def to_json(self) -> str:
        """The table as JSON text, every float64 written to the last bit.

        Returns
        -------
        str
            Text for `from_json`.

        Raises
        ------
        ValueError
            If the table is traced by JAX and has no values yet.
        """

        def plain(value: Any) -> Any:
            if value is None or isinstance(value, Level):
                return value and [plain(part) for part in value]
            known = concrete(value)
            if known is None:
                msg = "a traced table has no values to write"
                raise ValueError(msg)
            return known.tolist()

        return json.dumps({name: plain(value) for name, value in self._asdict().items()})

    @classmethod
    def from_json(cls, text: str) -> Table:
        """The table written by `to_json`, in NumPy.

        Parameters
        ----------
        text : str
            JSON text.

        Returns
        -------
        Table
            Equal to the table written, in float64.

        Raises
        ------
        ValueError
            If `text` does not hold exactly the fields of a table.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != set(cls._fields):
            msg = f"text must be a JSON object with the fields {cls._fields}, got {text[:60]!r}"
            raise ValueError(msg)

        def array(name: str, value: Any) -> Any:
            if name in {"level", "node"}:
                return Level(*(np.asarray(part, dtype=float) for part in value))
            return None if value is None else np.asarray(value, dtype=int if name in {"slot", "end"} else float)

        table = cls(**{name: array(name, value) for name, value in fields.items()})
        _check_parts(table)
        return table

    def __str__(self) -> str:
        """The rows, aligned: log-SNR of the evaluation, factor of the state, weights of the registers, noise."""
        values = (self.level.log_snr, self.carry, self.weights)
        log_snr, carry, weights = (np.asarray(concrete(part), dtype=float) for part in values)
        noise = np.zeros_like(carry) if self.noise is None else np.asarray(concrete(self.noise), float)
        head = " row  log-SNR    carry  " + "  ".join(f"{'weight ' + str(k):>9}" for k in range(weights.shape[1]))
        lines = [
            f"{r:4d} {log_snr[r]:8.4f} {carry[r]:8.5f}  "
            + "  ".join(f"{w:8.5f}{'*' if k == self.slot[r] else ' '}" for k, w in enumerate(weights[r]))
            + f"  {noise[r]:8.5f}"
            for r in range(len(carry))
        ]
        return "\n".join([f"{head}     noise   (* stored in this row)", *lines])


def _check_parts(table: Table) -> None:
    """Raise unless the parts of a table read from a file fit together."""
    rows, steps, registers = len(table.slot), len(table.end), table.weights.shape[-1]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("slot", "carry", "noise", "bias"), (rows,))
    shapes |= {"weights": (rows, registers), "target": (rows, 2), "start": (2,), "end": (steps,)}
    for name, shape in shapes.items():
        part = getattr(table, name)
        if part is not None and part.shape != shape:
            msg = f"text must hold {name} of shape {shape}, got {part.shape}"
            raise ValueError(msg)
    for name, length in (("level", rows), ("node", steps + 1)):
        got = [part.shape for part in getattr(table, name)]
        if got != [(length,)] * 3:
            msg = f"text must hold {name} of shapes {(length,)}, got {got}"
            raise ValueError(msg)
    for name, part, limit in (("slot", table.slot, registers), ("end", table.end, rows)):
        if not ((part >= 0) & (part < limit)).all():
            msg = f"text must hold {name} from 0 to {limit - 1}, got {part}"
            raise ValueError(msg)


def _check_nodes(path: Path) -> None:
    known = concrete(path.coordinate(path.start))
    if known is not None and not np.diff(known[np.isfinite(known)]).all():
        msg = f"t must have nodes that {path.name} can tell apart, got two with one coordinate"
        raise ValueError(msg)


@dataclass(frozen=True)
class _Block:
    """Rows of consecutive steps that use one method: values of shape (steps, stages), sources of shape (..., nodes)."""

    level: Level
    carry: Array
    weights: Array
    sources: np.ndarray
    noise: Array | None
    bias: Array | None


def assemble(path: Path, plan: Sequence[Method]) -> Table:
    """Table of the method ``plan[n]`` in step n of `path`: weights :eq:`solvers-weights`, rows :eq:`solvers-table`.

    Parameters
    ----------
    path : Path
        What is integrated exactly.
    plan : sequence of Method
        One method for each step.

    Returns
    -------
    Table
        Coefficients in the namespace of the path's grid.

    Raises
    ------
    TypeError
        If `path` is no `Path`, or `plan` no sequence of `Method`.
    ValueError
        If `plan` has the wrong length, a method looks further back than there are steps, or is inconsistent.
    """
    instance("path", path, Path)
    if isinstance(plan, Method) or not isinstance(plan, Sequence):
        msg = f"plan must be a sequence of Method, one for each step, got {type(plan).__name__}"
        raise TypeError(msg)
    for method in plan:
        instance("plan[n]", method, Method)
    plan = list(plan)
    if len(plan) != path.steps:
        msg = f"plan must hold one method for each of the {path.steps} steps, got {len(plan)}"
        raise ValueError(msg)
    _check_nodes(path)
    first_rows = np.concatenate([[0], np.cumsum([len(m.stages) for m in plan])]).astype(int)
    for method, _ in itertools.groupby(plan):
        _check(method)
    whole = _whole_steps(path, plan, first_rows[:-1])
    blocks = []
    before = [None, *plan[:-1]]
    kinds = [(m, b if m.corrector else None) for m, b in zip(plan, before, strict=True)]
    for (method, previous), group in itertools.groupby(range(len(plan)), key=kinds.__getitem__):
        steps = list(group)
        if method.history > steps[0]:
            msg = f"plan must not use {method.name} in step {steps[0]}: it needs {method.history} earlier steps"
            raise ValueError(msg)
        blocks.append(_block(whole, method, previous, slice(steps[0], steps[-1] + 1)))
    xp = namespace(path.start.t)

    def join(name: str) -> Array | None:
        parts = [getattr(block, name) for block in blocks]
        return None if parts[0] is None else xp.concat([xp.reshape(part, (-1,)) for part in parts])

    level = Level(*(xp.concat([xp.reshape(block.level[i], (-1,)) for block in blocks]) for i in range(3)))
    slot, weights = _registers(xp, blocks)
    return Table(
        level=level,
        target=None if path.target is None else xp.stack(path.target(level), axis=-1),
        slot=slot,
        carry=join("carry"),
        weights=weights,
        noise=join("noise"),
        bias=join("bias"),
        centre=path.centre,
        start=xp.stack(_bridge(path, path.first, _at(path.start, 0))) if path.gaps else None,
        end=first_rows[1:] - 1,
        node=Level(*(xp.concat([f[None], s]) for f, s in zip(path.first, _following(path), strict=True))),
    )


def _check(method: Method) -> None:
    c = method.stages
    if not (c and c[0] == 0.0 and c[-1] <= 1.0 and all(a <= b for a, b in itertools.pairwise(c))):
        msg = f"method must have stages that start at 0 and rise to at most 1, got {c} for {method.name}"
        raise ValueError(msg)
    known = [nodes and len(set(nodes)) == len(nodes) and max(nodes) <= m for m, nodes in enumerate(method.nodes)]
    if not (len(known) == len(c) and all(known)):
        msg = (
            "method must interpolate at each stage through distinct values that are known there, "
            f"got {method.nodes} for {method.name}"
        )
        raise ValueError(msg)
    _check_basis(method)
    for m, (nodes, goal) in enumerate(zip(method.nodes, (*c[1:], 1.0), strict=True)):
        places = [c[j] if j >= 0 else float(j) for j in nodes]
        count = max(len(nodes), method.degree(m), len(method.corrector or ()))
        if count > LARGEST:
            msg = f"method must interpolate through at most {LARGEST} values, got {count} for {method.name}"
            raise ValueError(msg)
        apart = len(set(places)) == len(places) or method.polynomials(m) is not None
        if len(nodes) > 1 and not (apart and goal > 0.0):
            msg = (
                "method must interpolate through values at distinct positions, up to a position above 0, "
                f"got {nodes} of the stages {c} for {method.name}"
            )
            raise ValueError(msg)
    corrector = method.corrector
    if corrector is not None and not (corrector and len(set(corrector)) == len(corrector) and max(corrector) <= 0):
        msg = f"method must correct through distinct values at or before its start, got {corrector} for {method.name}"
        raise ValueError(msg)
    choose("clock", method.clock, ("path", "log_snr"))
    choose("noise", method.noise, ("exact", "end"))


def _check_basis(method: Method) -> None:
    if method.basis is None:
        return
    fitting = [
        p is None or (len(p) == len(nodes) and all(p)) for p, nodes in zip(method.basis, method.nodes, strict=False)
    ]
    if not (len(method.basis) == len(method.nodes) and all(fitting)):
        msg = (
            f"method must have a polynomial for each node or None for each stage, got {method.basis} for {method.name}"
        )
        raise ValueError(msg)


@dataclass(frozen=True)
class _Whole:
    """All steps of a path at once: what every method needs of them is computed once."""

    path: Path
    rows: np.ndarray
    start: Array
    stop: Array
    moments: tuple[Array, ...]
    carry: Array | None
    noise: Array | None
    offset: Array | None


Node = tuple[int, int]
"""Steps back, and stage."""


def _whole_steps(path: Path, plan: Sequence[Method], rows: np.ndarray) -> _Whole:
    corrects = any(method.corrector for method in plan)
    if corrects and path.gaps:
        msg = f"plan must not correct steps of {path.name}, which have gaps between them"
        raise ValueError(msg)
    count = max(max(m.degree(-1), len(m.corrector or ())) for m in set(plan))
    single = any(len(m.stages) == 1 or m.noise == "end" for m in plan)
    carry, noise = path.propagate(path.start, path.stop) if single else (None, None)
    return _Whole(
        path=path,
        rows=rows,
        start=path.coordinate(path.start),
        stop=path.coordinate(path.stop),
        moments=path.moments(path.start, path.stop, count),
        carry=carry,
        noise=noise,
        offset=None if path.centre is None else _offset(path, path.start),
    )


def _block(whole: _Whole, method: Method, before: Method | None, steps: slice) -> _Block:
    path, last = whole.path, len(method.stages) - 1
    xp = namespace(path.start.t)
    levels, places = _stages(whole, method, steps)
    start, stop = levels[0], levels[-1]
    known: dict[Node, Array] = {}
    here_bias = None
    carries, noises, biases, rows = [], [], [], []
    for m, (here, goal) in enumerate(itertools.pairwise(levels)):
        reached = _stage_weights(whole, method, steps, stage=m, levels=levels, places=places)
        carry, noise = _at_steps(whole, steps) if last == 0 else path.propagate(here, goal, steps)
        if method.noise == "end" and noise is not None:
            noise = _at_steps(whole, steps)[1] if m == last else xp.zeros_like(carry)
        row = _plus(reached, -carry, known)
        bias = None
        if path.centre is not None:
            offsets = sum(w * _offset_at(whole, steps, node, levels) for node, w in reached.items())
            goal_bias = goal.alpha - path.propagate(start, goal, steps)[0] * start.alpha + offsets
            bias = goal_bias if here_bias is None else goal_bias - carry * here_bias
            here_bias = goal_bias
        if m == 0 and before is not None:
            correction, offset = _correction(whole, method, before, steps)
            row = _plus(row, carry, correction)
            bias = None if bias is None else bias + carry * offset
        if path.gaps:
            scale, added = _bridge(path, stop, _at(_following(path), steps), steps) if m == last else (1.0, 0.0 * carry)
            noise = added if noise is None else hypot(noise * scale, added)
            carry, row = carry * scale, {j: w * scale for j, w in row.items()}
            bias = None if bias is None else bias * scale
        carries.append(carry)
        noises.append(noise)
        biases.append(bias)
        rows.append(row)
        known = reached
    width = max(map(len, rows))
    weights = [xp.stack([*row.values(), *([xp.zeros_like(carries[0])] * (width - len(row)))], axis=-1) for row in rows]
    sources = np.full((steps.stop - steps.start, len(rows), width), -1)
    for m, row in enumerate(rows):
        for k, (back, stage) in enumerate(row):
            sources[:, m, k] = whole.rows[_back(steps, back)] + stage
    return _Block(
        level=Level(*(xp.stack([level[i] for level in levels[:-1]], axis=1) for i in range(3))),
        carry=xp.stack(carries, axis=1),
        weights=xp.stack(weights, axis=1),
        sources=sources,
        noise=None if noises[0] is None else xp.stack(noises, axis=1),
        bias=None if biases[0] is None else xp.stack(biases, axis=1),
    )


def _stages(whole: _Whole, method: Method, steps: slice) -> tuple[list[Level], list[Array]]:
    """Levels and coordinates of the evaluations, and of the end of the step."""
    path, a, b = whole.path, whole.start[steps], whole.stop[steps]
    start, stop = _at(path.start, steps), _at(path.stop, steps)
    levels, places = [], []
    for c in (*method.stages, 1.0):
        if c in {0.0, 1.0}:
            level, place = (stop, b) if c else (start, a)
        elif method.clock == "path" or path.schedule is None:
            place = a + c * (b - a)
            level = path.at(place)
        else:
            level = path.schedule.level_at(start.log_snr + c * (stop.log_snr - start.log_snr))
            place = path.coordinate(level)
        levels.append(level)
        places.append(place)
    return levels, places


def _stage_weights(
    whole: _Whole, method: Method, steps: slice, *, stage: int, levels: list[Level], places: list[Array]
) -> dict[Node, Array]:
    """Weights of the values known at a stage, for the integral from the start of the step to the next stage."""
    nodes: list[Node] = [(0, j) if j >= 0 else (-j, 0) for j in method.nodes[stage]]
    if stage == len(method.stages) - 1:
        moments = tuple(moment[steps] for moment in whole.moments)
    else:
        moments = whole.path.moments(levels[0], levels[stage + 1], method.degree(stage), steps)
    coordinates = [places[j] if back == 0 else whole.start[_back(steps, back)] for back, j in nodes]
    weights = _interpolation_weights(
        moments, coordinates, places[0], places[stage + 1], steps, rule=method.rule, basis=method.polynomials(stage)
    )
    return dict(zip(nodes, weights, strict=True))


def _correction(whole: _Whole, method: Method, before: Method, steps: slice) -> tuple[dict[Node, Array], Array | float]:
    """What the corrected state at the start of `steps` has more than the predicted one: weights, centre's factor."""
    previous = _back(steps, 1)
    levels, places = _stages(whole, before, previous)
    predicted = _stage_weights(whole, before, previous, stage=len(before.stages) - 1, levels=levels, places=places)
    nodes: list[Node] = [(-j, 0) for j in method.corrector or ()]
    corrected = _interpolation_weights(
        tuple(moment[previous] for moment in whole.moments[: len(nodes)]),
        [whole.start[_back(steps, back)] for back, _ in nodes],
        places[0],
        places[-1],
        previous,
        rule=method.rule,
    )
    offset = 0.0
    if whole.offset is not None:
        offset = sum(w * whole.offset[_back(steps, back)] for (back, _), w in zip(nodes, corrected, strict=True))
        offset = offset - sum(w * _offset_at(whole, previous, node, levels) for node, w in predicted.items())
    seen_from_here = {(back + 1, stage): w for (back, stage), w in predicted.items()}
    return _plus(dict(zip(nodes, corrected, strict=True)), -1.0, seen_from_here), offset


def _interpolation_weights(
    moments: tuple[Array, ...],
    nodes: list[Array],
    start: Array,
    stop: Array,
    steps: slice,
    *,
    rule: Rule | None = None,
    basis: tuple[tuple[float, ...], ...] | None = None,
) -> list[Array]:
    """Integrals from `start` to `stop` of K times the Lagrange basis through `nodes`, or times given polynomials."""
    polynomials: Sequence[Sequence[Any]] = [[1.0]] if basis is None else basis
    used: Sequence[Array] = moments
    if basis is None and len(nodes) > 1:
        length = stop - start
        places: Sequence[Any] = [(node - start) / length for node in nodes]
        if rule is not None:
            used, places = rule(moments, list(places), length, steps)
        polynomials = [_lagrange(places, i) for i in range(len(places))]
    return [sum(c * moment for c, moment in zip(p, used, strict=False)) for p in polynomials]


def _lagrange(places: Sequence[Any], i: int) -> list[Any]:
    """Coefficients of the polynomial that is 1 at place i and 0 at the others."""
    coefficients: list[Any] = [1.0]
    for other in (*places[:i], *places[i + 1 :]):
        gap = places[i] - other
        known = None if isinstance(gap, float) else concrete(gap)
        if known is not None and not known.all():
            msg = "t must have steps whose lengths differ less: in the path's coordinate two nodes round to one place"
            raise ValueError(msg)
        scale = 1.0 / gap
        shifted, kept = [0.0, *coefficients], [*coefficients, 0.0]
        coefficients = [(up - other * down) * scale for up, down in zip(shifted, kept, strict=True)]
    return coefficients


def _plus(weights: dict[Node, Array], factor: Array | float, others: dict[Node, Array]) -> dict[Node, Array]:
    """``weights + factor * others``."""
    total = dict(weights)
    for node, w in others.items():
        total[node] = total[node] + factor * w if node in total else factor * w
    return total


def _back(steps: slice, back: int) -> slice:
    return slice(steps.start - back, steps.stop - back)


def _at_steps(whole: _Whole, steps: slice) -> tuple[Any, Array | None]:
    carry, noise = (None if part is None else part[steps] for part in (whole.carry, whole.noise))
    return carry, noise


def _offset_at(whole: _Whole, steps: slice, node: Node, levels: list[Level]) -> Array:
    back, stage = node
    if stage == 0 and whole.offset is not None:
        return whole.offset[_back(steps, back)]
    return _offset(whole.path, levels[stage])


def _offset(path: Path, level: Level) -> Array:
    """Factor of the centre in f: f = p (x - alpha c) + q (D - c)."""
    if path.target is None:
        return -namespace(level.alpha).ones_like(level.alpha)
    p, q = path.target(level)
    return -p * level.alpha - q


def _bridge(path: Path, a: Level, b: Level, steps: slice | None = None) -> tuple[Array, Array]:
    """Forward kernel from `a` up to `b`: factor and standard deviation; exactly 1 and 0 where they are one level.

    These are the gaps after `steps`, or the one before the first.
    """
    xp = namespace(a.t)
    if path.gap_share is not None and steps is not None:
        # its own share of noise, and no case apart where both are one level: derivatives pass
        return b.alpha / a.alpha, path.gap_noise * b.sigma * path.gap_share[steps]
    # levels that went to log-SNR and back differ by roundings, whose square root would be noise
    rounding = 64.0 * float(xp.finfo(a.alpha.dtype).eps)
    same = (xp.abs(a.alpha - b.alpha) <= rounding * b.alpha) & (xp.abs(a.sigma - b.sigma) <= rounding * b.sigma)
    scale = xp.where(same, xp.ones_like(a.alpha), b.alpha / xp.where(same, xp.ones_like(a.alpha), a.alpha))
    share = renewed(a, b)
    still = same | (share == 0.0)
    added = xp.where(still, xp.zeros_like(share), xp.sqrt(xp.where(still, xp.ones_like(share), share)))
    return scale, path.gap_noise * b.sigma * added


def _following(path: Path) -> Level:
    """Where the step after each step starts; the output's level after the last."""
    xp = namespace(path.start.t)
    return Level(*(xp.concat([s[1:], e[None]]) for s, e in zip(path.start, path.last, strict=True)))


def _registers(xp: Any, blocks: Sequence[_Block]) -> tuple[np.ndarray, Array]:
    """Give each row's value a register until its last use; weights in the order of the registers."""
    sources = [list(map(tuple, block.sources.reshape(-1, block.sources.shape[-1]).tolist())) for block in blocks]
    uses = [row for block in sources for row in block]
    last_use = {}
    for r, row in enumerate(uses):
        for source in row:
            last_use[source] = r
    slots, free, expiring, count = [], [], {}, 0
    for r in range(len(uses)):
        free.extend(expiring.pop(r - 1, ()))
        if free:
            slots.append(free.pop(0))
        else:
            slots.append(count)
            count += 1
        expiring.setdefault(last_use[r], []).append(slots[r])
    slot = np.asarray(slots)
    values, index, offset = [], [], 0
    for block, rows in zip(blocks, sources, strict=True):
        flat = xp.reshape(block.weights, (-1,))
        values.append(flat)
        place = np.full((len(rows), count), -1)
        table = np.asarray(rows)
        r, k = np.nonzero(table >= 0)
        place[r, slot[table[r, k]]] = offset + r * table.shape[1] + k
        index.append(place)
        offset += math.prod(block.weights.shape)
    padded = xp.concat([*values, xp.zeros_like(values[0][:1])])
    gather = np.concatenate(index)
    gather[gather < 0] = offset
    return slot, xp.reshape(xp.take(padded, xp.asarray(gather.ravel()), axis=0), gather.shape)


def _at(level: Level, index: Any) -> Level:
    return Level(*(part[index, ...] if isinstance(index, int) else part[index] for part in level))
