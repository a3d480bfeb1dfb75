"""NumPy: `ab2` against the same formula written by hand as a loop."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from bench import by_hand
from bench.timing import Row, interleave, ratio, row
from diffnum import grids, paths, schedules
from diffnum.solvers import ab2, adams_bashforth, solve

SIZES = {1_000: (100, 5.0), 1_000_000: (20, 30.0)}
"""Floats of the state -> steps, and seconds to spend."""

LARGE_RATIO = 1.1
SMALL_OVERHEAD = 20e-6


def denoise(x: Any, level: Any) -> Any:
    """One multiplication."""
    return 0.9 * x


def run(*, quick: bool = False) -> list[Row]:
    """Rows of the report."""
    edm = schedules.edm()
    rows = []
    for size, (steps, seconds) in SIZES.items():
        x = np.ones(size, np.float32)
        t = grids.karras(edm, steps)
        table = adams_bashforth(paths.x0(edm, t), 2)
        ready, inside = by_hand.numpy_ab2(denoise, table), by_hand.numpy_ab2_inside(denoise, t)
        functions = {
            "by hand": lambda ready=ready, x=x: ready(x),
            "by hand, coefficients in the loop": lambda inside=inside, x=x: inside(x),
            "solve, table ready": lambda table=table, x=x: solve(denoise, x, table),
            "ab2, path, grid and table included": lambda x=x, steps=steps: ab2(
                denoise, x, paths.x0(edm, grids.karras(edm, steps))
            ),
        }
        for function in functions.values():
            np.testing.assert_allclose(function(), functions["by hand"](), rtol=1e-4)
        times = interleave(functions, seconds=seconds / 10 if quick else seconds)
        base = statistics.median(times["by hand"])
        for name in functions:
            overhead = (statistics.median(times[name]) - base) / steps
            over_hand = ratio(times, name, "by hand")
            met = over_hand <= LARGE_RATIO if size == max(SIZES) else overhead <= SMALL_OVERHEAD
            rows.append(
                row(
                    "NumPy, float32, ab2, time per step",
                    name,
                    size,
                    seconds=statistics.median(times[name]) / steps,
                    unit="step",
                    over_hand_written=over_hand,
                    overhead=overhead,
                    goal=LARGE_RATIO if size == max(SIZES) else SMALL_OVERHEAD,
                    met=met if name.startswith("ab2") else None,
                )
            )
    return rows
