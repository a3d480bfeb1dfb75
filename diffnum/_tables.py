"""From a path and a method to a table of coefficients, one row for each call of the denoiser.

A method only says where it evaluates and through which of the values it has it interpolates. All its weights are
moments of the path's kernel times the coefficients of a Lagrange basis: one formula for every method.

A table has one state vector. A Runge-Kutta stage needs no second one: the state at a stage is a combination of the
step's first state and of stored values, so the next stage is the same combination turned round. It costs no division,
since the path propagates from stage to stage, and halves the memory traffic.

Rows, registers and orders are integers, known before any value is. The values are computed for all steps at once and
scattered by a gather, so that tracing a grid under JAX costs the same at 20 and at 1,000 steps.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diffnum._arguments import instance
from diffnum._backend import Array, concrete, namespace
from diffnum.paths import Path
from diffnum.phi import LARGEST
from diffnum.schedules import Level

__all__ = ["Method", "Table", "assemble"]


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
    """

    name: str
    order: int
    stages: tuple[float, ...]
    nodes: tuple[tuple[int, ...], ...]

    @property
    def history(self) -> int:
        """Number of earlier steps the method looks at."""
        return -min(0, *itertools.chain.from_iterable(self.nodes))


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
    if known is not None and np.isin(0.0, np.diff(known[np.isfinite(known)])):
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
    blocks = []
    for method, group in itertools.groupby(range(len(plan)), key=plan.__getitem__):
        steps = list(group)
        if method.history > steps[0]:
            msg = f"plan must not use {method.name} in step {steps[0]}: it needs {method.history} earlier steps"
            raise ValueError(msg)
        blocks.append(_block(path, method, slice(steps[0], steps[-1] + 1), first_rows))
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
    for nodes, goal in zip(method.nodes, (*c[1:], 1.0), strict=True):
        places = [c[j] if j >= 0 else float(j) for j in nodes]
        if len(nodes) > LARGEST:
            msg = f"method must interpolate through at most {LARGEST} values, got {len(nodes)} for {method.name}"
            raise ValueError(msg)
        if len(nodes) > 1 and (len(set(places)) < len(places) or goal == 0.0):
            msg = (
                "method must interpolate through values at distinct positions, up to a position above 0, "
                f"got {nodes} of the stages {c} for {method.name}"
            )
            raise ValueError(msg)


def _block(path: Path, method: Method, steps: slice, first_rows: np.ndarray) -> _Block:
    xp = namespace(path.start.t)
    count = steps.stop - steps.start
    start, stop = _at(path.start, steps), _at(path.stop, steps)
    origin = path.coordinate(start)
    levels = [_stage(path, start, stop, c) for c in method.stages]
    goals = [*levels[1:], stop]
    rows = first_rows[steps.start : steps.stop]
    known: dict[int, Array] = {}
    here, here_bias = start, None
    carries, noises, biases, weights, sources = [], [], [], [], []
    for m, (goal, nodes) in enumerate(zip(goals, method.nodes, strict=True)):
        reached = _interpolation_weights(path, start, goal, origin, steps, nodes=nodes, levels=levels)
        carry, noise = path.propagate(here, goal, steps)
        row = {j: reached.get(j, 0.0) - carry * known[j] if j in known else reached[j] for j in {*reached, *known}}
        bias = None
        if path.centre is not None:
            offsets = sum(w * _offset(path, _node(path, steps, j, levels)) for j, w in reached.items())
            goal_bias = goal.alpha - path.propagate(start, goal, steps)[0] * start.alpha + offsets
            bias = goal_bias if here_bias is None else goal_bias - carry * here_bias
            here_bias = goal_bias
        if path.gaps:
            last = m == len(method.stages) - 1
            scale, added = _bridge(path, stop, _at(_following(path), steps), steps) if last else (1.0, 0.0 * carry)
            noise = added if noise is None else xp.hypot(noise * scale, added)
            carry, row = carry * scale, {j: w * scale for j, w in row.items()}
            bias = None if bias is None else bias * scale
        order = sorted(row)
        carries.append(carry)
        noises.append(noise)
        biases.append(bias)
        weights.append([row[j] for j in order])
        sources.append([rows + j if j >= 0 else first_rows[steps.start + j : steps.stop + j] for j in order])
        known, here = reached, goal
    width = max(len(w) for w in weights)
    padded = [[*w, *([xp.zeros_like(origin)] * (width - len(w)))] for w in weights]
    rows_of = np.full((count, len(weights), width), -1)
    for m, columns in enumerate(sources):
        for k, column in enumerate(columns):
            rows_of[:, m, k] = column
    return _Block(
        level=Level(*(xp.stack([level[i] for level in levels], axis=1) for i in range(3))),
        carry=xp.stack(carries, axis=1),
        weights=xp.stack([xp.stack(w, axis=-1) for w in padded], axis=1),
        sources=rows_of,
        noise=None if noises[0] is None else xp.stack(noises, axis=1),
        bias=None if biases[0] is None else xp.stack(biases, axis=1),
    )


def _interpolation_weights(
    path: Path, start: Level, goal: Level, origin: Array, steps: slice, *, nodes: tuple[int, ...], levels: list[Level]
) -> dict[int, Array]:
    """Integral of K times the Lagrange basis through `nodes`, from `start` to `goal`."""
    moments = path.moments(start, goal, len(nodes), steps)
    if len(nodes) == 1:
        return {nodes[0]: moments[0]}
    length = path.coordinate(goal) - origin
    places = [(path.coordinate(_node(path, steps, j, levels)) - origin) / length for j in nodes]
    weights = {}
    for i, j in enumerate(nodes):
        basis: list[Any] = [1.0]
        for other in places[:i] + places[i + 1 :]:
            scale = 1.0 / (places[i] - other)
            shifted, kept = [0.0, *basis], [*basis, 0.0]
            basis = [(up - other * down) * scale for up, down in zip(shifted, kept, strict=True)]
        weights[j] = sum(b * moment for b, moment in zip(basis, moments, strict=True))
    return weights


def _node(path: Path, steps: slice, j: int, levels: list[Level]) -> Level:
    return levels[j] if j >= 0 else _at(path.start, slice(steps.start + j, steps.stop + j))


def _stage(path: Path, start: Level, stop: Level, c: float) -> Level:
    if c in {0.0, 1.0}:
        return stop if c else start
    a, b = path.coordinate(start), path.coordinate(stop)
    return path.at(a + c * (b - a))


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
    # levels that went to log-SNR and back differ by roundings, whose square root would be noise
    rounding = 64.0 * float(xp.finfo(a.alpha.dtype).eps)
    same = (xp.abs(a.alpha - b.alpha) <= rounding * b.alpha) & (xp.abs(a.sigma - b.sigma) <= rounding * b.sigma)
    scale = xp.where(same, xp.ones_like(a.alpha), b.alpha / xp.where(same, xp.ones_like(a.alpha), a.alpha))
    if path.gap_share is not None and steps is not None:
        return scale, path.gap_noise * b.sigma * path.gap_share[steps]
    h = xp.where(same, xp.zeros_like(a.alpha), a.log_snr) - xp.where(same, xp.zeros_like(a.alpha), b.log_snr)
    variance = -xp.expm1(-2.0 * h)
    still = variance <= 0.0
    added = xp.where(still, xp.zeros_like(variance), xp.sqrt(xp.where(still, xp.ones_like(variance), variance)))
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
