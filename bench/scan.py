"""JAX: time per row against the memory bandwidth, against a scan written by hand, and against diffrax."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import by_hand
from bench.timing import Row, interleave, ratio, row
from diffnum import grids, paths, schedules
from diffnum.solvers import HEUN, Table, adams_bashforth, runge_kutta, solve

SIZES = {1_000: (1_000, 4.0), 1_000_000: (60, 15.0), 10_000_000: (10, 60.0)}
"""Floats of the state -> steps, and seconds to spend."""

GOALS = {"ab1": 1.05, "ab2": 1.6, "ab3": 1.6, "ab4": 1.6, "heun": 2.5}
"""Time per row over the bound; the goal of ab1 is 1.0, and 5 % are the noise of a median."""

SMALL_ROW = 1e-6
DIFFRAX_STEPS = 500


def bound(table: Table) -> float:
    """Passes of ``y = c y`` that a row needs: each reads and writes once.

    A row reads the state and its K registers and writes the state and one register: (K + 2)/2 passes. Without history
    nothing is stored: one pass.
    """
    registers = table.weights.shape[1]
    return 1.0 if registers == 1 else (registers + 2) / 2


def denoise(x: Any, level: Any) -> Any:
    """A denoiser that costs nothing, and that the compiler fuses with what surrounds it."""
    return 0.9 * x


def opaque(x: Any, level: Any) -> Any:
    """The same, written to memory as a network's output is."""
    import jax

    return jax.lax.optimization_barrier(0.9 * x)


def tables(steps: int) -> dict[str, Table]:
    """The library's methods on one path."""
    edm = schedules.edm()
    path = paths.x0(edm, grids.karras(edm, steps))
    return {f"ab{k}": adams_bashforth(path, k) for k in range(1, 5)} | {"heun": runge_kutta(path, HEUN)}


def run(*, quick: bool = False) -> list[Row]:
    """Rows of the report."""
    import jax
    import jax.numpy as jnp

    rows = []
    for size, (steps, seconds) in SIZES.items():
        x = jnp.ones(size, jnp.float32)
        factors = jnp.asarray(np.linspace(0.9, 1.0, steps), jnp.float32)
        methods = tables(steps)
        ramps = {
            k: adams_bashforth(paths.x0(schedules.edm(), grids.karras(schedules.edm(), steps)), k, start="ramp")
            for k in range(1, 5)
        }
        functions: dict[str, Callable[[Any], Any]] = {}
        functions["pass"] = lambda y, factors=factors: jax.lax.scan(lambda y, c: (c * y, None), y, factors)[0]
        for name, table in methods.items():
            functions[name] = lambda y, table=table: solve(denoise, y, table)
        for k, table in ramps.items():
            functions[f"ab{k} by hand"] = by_hand.jax_multistep(denoise, table, k)
            check(functions[f"ab{k} by hand"], lambda y, table=table: solve(denoise, y, table))
        functions["heun by hand"] = by_hand.jax_heun(denoise, methods["heun"])
        check(functions["heun by hand"], functions["heun"])
        functions["heun, opaque"] = lambda y, table=methods["heun"]: solve(opaque, y, table)
        functions["heun by hand, opaque"] = by_hand.jax_heun(opaque, methods["heun"])
        compiled = {name: jax.jit(function) for name, function in functions.items()}
        calls = {name: lambda f=f, x=x: f(x).block_until_ready() for name, f in compiled.items()}
        times = interleave(calls, seconds=seconds / 10 if quick else seconds, least=2 if quick else 5)
        for name in [*methods, "heun, opaque"]:
            method, _, kind = name.partition(", ")
            table = methods[method]
            other = f"{method} by hand, {kind}" if kind else f"{method} by hand"
            per_row = steps / table.evaluations
            other_rows = table.evaluations if method == "heun" else steps
            over_bound = ratio(times, name, "pass") * per_row / bound(table)
            over_hand = ratio(times, name, other) * other_rows / table.evaluations
            seconds_row = statistics.median(times[name]) / table.evaluations
            met = over_bound <= GOALS[method] and over_hand <= 1.05
            if size == min(SIZES):
                met = met and seconds_row <= SMALL_ROW
            rows.append(
                row(
                    "JAX, float32, time per row",
                    name,
                    size,
                    seconds=seconds_row,
                    unit="row",
                    over_bound=over_bound,
                    over_hand_written=over_hand,
                    goal=GOALS[method],
                    met=met if not kind else None,
                )
            )
    return rows


def check(one: Callable[[Any], Any], other: Callable[[Any], Any]) -> None:
    """Two samplers give the same."""
    import jax
    import jax.numpy as jnp

    x = jnp.linspace(-1.0, 1.0, 16, dtype=jnp.float32)
    np.testing.assert_allclose(jax.jit(one)(x), jax.jit(other)(x), rtol=2e-3, atol=1e-6)


def run_diffrax(*, quick: bool = False) -> list[Row]:
    """Heun on ``y' = -0.9 y``: equal steps, equal evaluations, equal result."""
    import diffrax
    import jax
    import jax.numpy as jnp

    steps, size = DIFFRAX_STEPS, 1_000
    table = runge_kutta(paths.semilinear(np.linspace(0.0, 1.0, steps + 1)), HEUN)
    x = jnp.ones(size, jnp.float32)

    def ours(y):
        return solve(lambda y, level: -0.9 * y, y, table)

    def theirs(y, **options):
        term = diffrax.ODETerm(lambda t, y, args: -0.9 * y)
        return diffrax.diffeqsolve(
            term, diffrax.Heun(), t0=0.0, t1=1.0, dt0=1.0 / steps, y0=y, max_steps=2 * steps, **options
        ).ys[0]

    functions = {
        "diffnum": ours,
        "diffrax": theirs,
        "diffrax, no errors, no reverse mode": lambda y: theirs(y, throw=False, adjoint=diffrax.ForwardMode()),
    }
    compiled = {name: jax.jit(function) for name, function in functions.items()}
    for function in compiled.values():
        np.testing.assert_allclose(function(x), compiled["diffnum"](x), rtol=1e-5)
    calls = {name: lambda f=f: f(x).block_until_ready() for name, f in compiled.items()}
    times = interleave(calls, seconds=1.0 if quick else 6.0)
    return [
        row(
            "JAX, float32, Heun, time per evaluation",
            name,
            size,
            seconds=statistics.median(times[name]) / table.evaluations,
            unit="evaluation",
            over_diffnum=ratio(times, name, "diffnum"),
            goal=5.0,
            met=ratio(times, name, "diffnum") >= 5.0 if name == "diffrax" else None,
        )
        for name in functions
    ]
