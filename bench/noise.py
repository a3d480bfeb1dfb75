"""JAX: what noise costs a sampler, over its ODE run and the bare draw of the same normals in one call."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from bench.scan import denoise
from bench.timing import Row, interleave, row
from diffnum import grids, paths, schedules
from diffnum.solvers import HEUN, Table, adams_bashforth, runge_kutta, solve

SIZES = {1_000: (200, 4.0), 10_000: (100, 4.0), 100_000: (40, 12.0)}
"""Floats of the state -> steps, and seconds to spend."""

GOAL = 1.2


def tables(steps: int, eta: float) -> dict[str, Table]:
    """Methods of one and two evaluations a step, with and without history."""
    edm = schedules.edm()
    path = paths.x0(edm, grids.karras(edm, steps), eta=eta)
    return {"ab1": adams_bashforth(path, 1), "ab2": adams_bashforth(path, 2), "heun": runge_kutta(path, HEUN)}


def run(*, quick: bool = False) -> list[Row]:
    """Rows of the report: seconds of the SDE run, its ratio to the bound ODE + draw."""
    import jax
    import jax.numpy as jnp

    rows = []
    for size, (steps, seconds) in SIZES.items():
        x, key = jnp.ones(size, jnp.float32), jax.random.key(0)
        calls: dict[str, Any] = {}
        ode, sde = tables(steps, 0.0), tables(steps, 1.0)
        for name in sde:
            draws = int(np.count_nonzero(np.asarray(sde[name].noise)))
            without = jax.jit(lambda y, table=ode[name]: solve(denoise, y, table))
            noisy = jax.jit(lambda y, k, table=sde[name]: solve(denoise, y, table, rng=k))
            bare = jax.jit(lambda k, shape=(draws, size): jax.random.normal(k, shape, jnp.float32))
            calls[name] = lambda f=noisy, y=x, k=key: f(y, k).block_until_ready()
            calls[f"{name}, ODE"] = lambda f=without, y=x: f(y).block_until_ready()
            calls[f"{name}, draw"] = lambda f=bare, k=key: f(k).block_until_ready()
        times = interleave(calls, seconds=seconds / 10 if quick else seconds, least=2 if quick else 5)
        for name, table in sde.items():
            bound = [a + b for a, b in zip(times[f"{name}, ODE"], times[f"{name}, draw"], strict=True)]
            over = statistics.median(a / b for a, b in zip(times[name], bound, strict=True))
            rows.append(
                row(
                    "JAX, float32, SDE over ODE + bare draw, time per row",
                    name,
                    size,
                    seconds=statistics.median(times[name]) / table.evaluations,
                    unit="row",
                    over_bound=over,
                    over_ode=statistics.median(a / b for a, b in zip(times[name], times[f"{name}, ODE"], strict=True)),
                    goal=GOAL,
                    met=over <= GOAL,
                )
            )
    return rows
