"""The benchmarks compare like with like, and their arithmetic is right; no time is measured here."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from diffnum import grids, paths, schedules
from diffnum.solvers import HEUN, adams_bashforth, runge_kutta, solve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import by_hand, timing
from bench import loop as numpy_bench
from bench import scan as jax_bench
from bench.report import cell, duration, table

X = np.linspace(-1.0, 1.0, 7)
SAME = 1e-13
"""Relative: the same sums in another order, float64."""
SAME_SINGLE = 1e-5
"""The same, float32, over eight steps."""


def denoise(x, level):
    return np.sin(x) + 0.0 * level[1]


def test_numpy_loops_are_the_same_sampler():
    edm = schedules.edm()
    t = grids.karras(edm, 12)
    reference = adams_bashforth(paths.x0(edm, t), 2)
    expected = solve(denoise, X, reference)
    ready, inside = by_hand.numpy_ab2(denoise, reference), by_hand.numpy_ab2_inside(lambda x, s: np.sin(x), t)
    np.testing.assert_allclose(ready(X), expected, rtol=SAME)
    np.testing.assert_allclose(inside(X), expected, rtol=1e-11)  # h is rounded in another place


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_hand_written_scans_are_the_same_sampler(order):
    jax = pytest.importorskip("jax")
    path = paths.x0(schedules.edm(), grids.karras(schedules.edm(), 8))
    reference = adams_bashforth(path, order, start="ramp")
    x = jax.numpy.asarray(X, jax.numpy.float32)
    sampler = by_hand.jax_multistep(lambda x, level: jax.numpy.sin(x), reference, order)
    np.testing.assert_allclose(sampler(x), solve(lambda x, level: np.sin(x), X, reference), rtol=SAME_SINGLE)


def test_hand_written_heun_is_the_same_sampler():
    jax = pytest.importorskip("jax")
    path = paths.x0(schedules.edm(), grids.karras(schedules.edm(), 8))
    reference = runge_kutta(path, HEUN)
    x = jax.numpy.asarray(X, jax.numpy.float32)
    sampler = by_hand.jax_heun(lambda x, level: jax.numpy.sin(x), reference)
    np.testing.assert_allclose(sampler(x), solve(lambda x, level: np.sin(x), X, reference), rtol=SAME_SINGLE)


def test_bound_counts_reads_and_writes():
    methods = jax_bench.tables(6)
    bounds = {name: jax_bench.bound(method) for name, method in methods.items()}
    assert bounds == {"ab1": 1.0, "ab2": 2.0, "ab3": 2.5, "ab4": 3.0, "heun": 2.0}


def test_weights_by_age_are_those_of_the_formula():
    """On x0 with alpha = 1, order 2: w_0 = I_0 + I_1/h_old, w_1 = -I_1/h_old, from quadrature of the kernel."""
    edm = schedules.edm()
    t = grids.karras(edm, 5)
    weights = by_hand.weights_by_age(adams_bashforth(paths.x0(edm, t), 2), 2)
    lam = -np.log(t)
    nodes, gauss = np.polynomial.legendre.leggauss(40)
    for n in range(1, 5):
        h, old = lam[n + 1] - lam[n], lam[n] - lam[n - 1]
        s = h * (nodes + 1) / 2
        kernel = np.exp(s - h) * gauss * h / 2
        expected = [np.sum(kernel * (1 + s / old)), -np.sum(kernel * s / old)]
        np.testing.assert_allclose(weights[n], expected, rtol=1e-12)


def test_rounds_are_interleaved_in_both_directions():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = timing.interleave(functions, seconds=0.0, least=4)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc" + "cba"
    assert {len(values) for values in times.values()} == {4}


def test_ratio_is_a_median_of_ratios_of_the_same_round():
    times = {"a": [1.0, 20.0, 3.0], "b": [1.0, 10.0, 1.0]}
    assert timing.ratio(times, "a", "b") == 2.0  # of the medians: 3


def test_table_shows_what_was_missed():
    rows = [
        timing.row("s", "ab1", 1000, seconds=1.5e-6, unit="row", over_bound=1.25, goal=1.05, met=False),
        timing.row("s", "ab2", 1000, seconds=2.5e-2, unit="row", over_bound=1.0, goal=1.6, met=True),
    ]
    text = table(rows)
    assert "NO" in text.splitlines()[1]
    assert "yes" in text.splitlines()[2]
    assert "1.5 us" in text
    assert "25 ms" in text
    assert [duration(value) for value in (2.0, 3e-3, 4e-6, -5e-6)] == ["2 s", "3 ms", "4 us", "-5 us"]
    assert cell("overhead", 5e-6) == "5 us"
    assert cell("met", None) == ""


def test_goals_cover_every_method():
    assert set(jax_bench.SIZES) == {10**3, 10**6, 10**7}
    assert set(jax_bench.GOALS) == set(jax_bench.tables(2))
    assert all(low < high for low, high in itertools.pairwise(numpy_bench.SIZES))


def test_tokens_are_measured_against_their_rivals(monkeypatch):
    """Small sizes: what is compared does the same work, and each goal has a row."""
    pytest.importorskip("jax")
    from bench import categorical

    for name, value in (("VOCABULARY", 64), ("LENGTH", 512), ("ROWS", 32)):
        monkeypatch.setattr(categorical, name, value)
    rows = categorical.run(quick=True)
    goals = {name: goal for _, _, chosen in categorical.RIVALS for name, goal in chosen.items()}
    assert {line["name"]: line.get("goal") for line in rows} == goals
    assert goals["q_sample"] == 1.3
    assert goals["posterior, uniform"] == goals["posterior, absorbing"] == 2.0
    assert all(line["over_rival"] > 0 for line in rows)
