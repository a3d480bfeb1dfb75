"""Grids: what each of them equalises, by definitions that share no code; ends, counts, errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffnum import grids, schedules
from diffnum.schedules import Schedule

SD = schedules.from_betas(np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
FINITE = [
    schedules.ve(),
    schedules.edm(),
    SD,
    schedules.truncate(schedules.cosine(), t_clean=1e-3, t_noise=0.999),
    schedules.truncate(schedules.rectified_flow(), t_clean=1e-4, t_noise=0.99),
    schedules.shift(schedules.truncate(schedules.vp_linear(), t_clean=1e-5), 3.0),
]
OPEN = [
    schedules.cosine(),
    schedules.cosine(offset=0.008),
    schedules.rectified_flow(),
    schedules.sigmoid(),
    schedules.zero_terminal_snr(SD),
    schedules.shift(schedules.rectified_flow(), 3.0),
]
HALF_OPEN = [schedules.vp_linear(), schedules.edm(sigma_min=0.0)]
ANY = FINITE + OPEN + HALF_OPEN

# Nodes pass through log-SNR and back: a few epsilons of |log_snr|, times the slope of what is equalised.
RTOL = 1e-12


def named(values: list[Schedule]) -> Any:
    return pytest.mark.parametrize("schedule", values, ids=lambda schedule: schedule.name)


def admitted(grid: Callable) -> list[Schedule]:
    return {"uniform_log_snr": FINITE, "karras": FINITE + HALF_OPEN}.get(grid.__name__, ANY)


CLOSED = [name for name in grids.__all__ if name != "optimal"]
"""Grids that need no denoiser; for the other one see test_optimal."""

PAIRS = [(grid, schedule) for grid in (getattr(grids, name) for name in CLOSED) for schedule in admitted(grid)]
EACH = pytest.mark.parametrize("grid,schedule", PAIRS, ids=lambda v: getattr(v, "__name__", getattr(v, "name", None)))


@EACH
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 257])
def test_every_grid(grid, schedule, steps):
    t = grid(schedule, steps)
    assert type(t) is np.ndarray
    assert t.dtype == np.float64
    assert t.shape == (steps + 1,)
    assert (t[0], t[-1]) == (schedule.t_noise, schedule.t_clean)
    assert np.all(np.diff(t) < 0)
    assert np.array_equal(t, grid(schedule, steps=np.int32(steps)))


@EACH
def test_refinement_keeps_the_nodes(grid, schedule):
    """Twice the steps contain the grid: the nodes are values of one smooth map, whatever the number of steps."""
    np.testing.assert_allclose(grid(schedule, 24)[::2], grid(schedule, 12), rtol=1e-11)


@named(ANY)
@pytest.mark.claim("grids-uniform")
def test_uniform(schedule):
    t = grids.uniform(schedule, 7)
    a, b = mp.mpf(schedule.t_clean), mp.mpf(schedule.t_noise)
    np.testing.assert_allclose(t, [float(b + (a - b) * i / 7) for i in range(8)], rtol=0, atol=3e-16 * schedule.t_noise)
    if schedule.name.startswith("cosine(offset=0)"):
        np.testing.assert_allclose(grids.uniform_angle(schedule, 7), t, rtol=1e-14)


@named(FINITE)
@pytest.mark.claim("grids-log-snr")
def test_uniform_log_snr(schedule):
    lam = schedule.log_snr(grids.uniform_log_snr(schedule, 9))
    np.testing.assert_allclose(np.diff(lam), (lam[-1] - lam[0]) / 9, rtol=RTOL)
    if not schedule.name.startswith("ve"):  # log-SNR is linear in the time of ve
        other = np.diff(schedule.log_snr(grids.uniform(schedule, 9)))
        assert np.max(np.abs(other / np.mean(other) - 1)) > 0.1


@named(ANY)
@pytest.mark.parametrize("sigma_data", [1.0, 0.25, 3.0])
@pytest.mark.claim("grids-angle")
def test_uniform_angle(schedule, sigma_data):
    def angles(t: np.ndarray, std: float) -> np.ndarray:
        level = schedule.level(t)
        return np.diff([math.atan2(s, a * std) for a, s in zip(level.alpha, level.sigma, strict=True)])

    t = grids.uniform_angle(schedule, 9, sigma_data=sigma_data)
    steps = angles(t, sigma_data)
    np.testing.assert_allclose(steps, np.mean(steps), rtol=RTOL)
    wrong = angles(t, 1 / sigma_data if sigma_data != 1 else 2.0)
    assert np.max(np.abs(wrong / np.mean(wrong) - 1)) > 0.1
    assert np.array_equal(grids.uniform_angle(schedule, 9), grids.uniform_angle(schedule, 9, sigma_data=1.0))


def test_angle_is_accurate_at_both_ends():
    """At 1e5 steps the first and last inner nodes have all their digits: no cos(atan2(.)) near pi/2, no tan near it."""
    schedule = schedules.edm(sigma_min=0.0, sigma_max=1e9)
    t = grids.uniform_angle(schedule, 100_000)
    with mp.workdps(40):
        first, last = mp.atan2(mp.mpf(10) ** 9, 1), mp.mpf(0)
        exact = [float(mp.tan(first + (last - first) * i / 100_000)) for i in (1, 2, 99_998, 99_999)]
    np.testing.assert_allclose(t[[1, 2, -3, -2]], exact, rtol=1e-13)
    naive = np.tan(np.linspace(math.atan2(1e9, 1), 0.0, 100_001))
    assert abs(naive[0] / 1e9 - 1) > 1e-9


@named(FINITE + HALF_OPEN)
@pytest.mark.parametrize("rho", [7.0, 1.0, 3.5])
@pytest.mark.claim("grids-karras")
def test_karras(schedule, rho):
    t = grids.karras(schedule, 9, rho=rho)
    level = schedule.level(t)
    root = (level.sigma / level.alpha) ** (1 / rho)
    np.testing.assert_allclose(np.diff(root), (root[-1] - root[0]) / 9, rtol=RTOL)
    other = (level.sigma / level.alpha) ** (1 / (2 * rho))
    assert np.max(np.abs(np.diff(other) / ((other[-1] - other[0]) / 9) - 1)) > 0.1


@pytest.mark.claim("grids-karras")
def test_karras_is_the_published_formula():
    """Equation 5 of the paper, literally: N nodes with i/(N - 1), then sigma = 0."""
    n, low, high, rho = 18, 0.002, 80.0, 7
    published = [(high ** (1 / rho) + i / (n - 1) * (low ** (1 / rho) - high ** (1 / rho))) ** rho for i in range(n)]
    ours = grids.karras(schedules.edm(), n - 1)
    np.testing.assert_allclose(ours, published, rtol=1e-14)
    wrong = [(high ** (1 / rho) + i / n * (low ** (1 / rho) - high ** (1 / rho))) ** rho for i in range(n)]
    assert np.max(np.abs(ours / wrong - 1)) > 0.1
    assert len(grids.karras(schedules.edm(), n)) == n + 1


@pytest.mark.claim("grids-karras")
def test_karras_tends_to_uniform_log_snr():
    schedule = schedules.edm()
    limit = grids.uniform_log_snr(schedule, 12)
    errors = [np.max(np.abs(np.log(grids.karras(schedule, 12, rho=rho) / limit))) for rho in (50.0, 100.0, 200.0)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.05)
    np.testing.assert_allclose(grids.karras(schedule, 12, rho=1.0), grids.uniform(schedule, 12), rtol=1e-12)


@pytest.mark.parametrize("grid", [grids.uniform_log_snr, grids.uniform_angle, grids.karras])
@pytest.mark.claim("grids-log-snr", "grids-angle", "grids-karras")
def test_three_grids_do_not_see_the_schedule(grid):
    """Between equal levels they choose equal levels, whatever the geometry and its time; uniform does not."""
    ends = -math.log(20.0), -math.log(0.01)
    nodes = []
    for base in (schedules.edm(), schedules.cosine(), schedules.rectified_flow(), schedules.vp_linear(beta_max=25.0)):
        noise, clean = (float(base.time(lam)) for lam in ends)
        schedule = schedules.truncate(base, t_clean=clean, t_noise=noise)
        level = schedule.level(grid(schedule, 11))
        uniform = schedule.level(grids.uniform(schedule, 11))
        nodes.append((level.sigma / level.alpha, uniform.sigma / uniform.alpha))
    for ours, uniform in nodes[1:]:
        np.testing.assert_allclose(ours, nodes[0][0], rtol=1e-11)
        assert np.max(np.abs(uniform / nodes[0][1] - 1)) > 0.1


def first_order_errors(ratio: np.ndarray, s: float) -> np.ndarray:
    """Log of the gain of each DDIM step on N(0, s^2) over the exact gain: dy/dr = r y/(s^2 + r^2), y = x/alpha."""
    here, there = ratio[:-1], ratio[1:]
    gain = 1 + (there - here) * here / (s**2 + here**2)
    return np.log(gain) - 0.5 * np.log((s**2 + there**2) / (s**2 + here**2))


@pytest.mark.claim("grids-defect", "grids-angle")
def test_uniform_angle_shares_the_first_order_error_equally():
    s, schedule = 0.5, schedules.edm()
    angle = math.atan2(80.0, s) - math.atan2(0.002, s)
    totals = {}
    for steps in (200, 400):
        errors = first_order_errors(grids.uniform_angle(schedule, steps, sigma_data=s), s)
        expected = -0.5 * (angle / steps) ** 2
        np.testing.assert_allclose(errors, expected, rtol=5 / steps * 4)
        assert np.sum(errors) * steps == pytest.approx(-0.5 * angle**2, rel=4 / steps)
        totals = {
            name: abs(np.sum(first_order_errors(getattr(grids, name)(schedule, steps), s)))
            for name in ("uniform", "uniform_log_snr", "karras")
        }
        assert min(totals.values()) > 1.5 * abs(np.sum(errors))
        wrong = first_order_errors(grids.uniform_angle(schedule, steps, sigma_data=2.0), s)
        assert np.max(np.abs(wrong / expected - 1)) > 0.5


@pytest.mark.claim("grids-defect")
def test_local_error_formula():
    """-(1/2) (s step/(s^2 + ratio^2))^2 to leading order, on any grid: halving the step halves the misfit."""
    s, worst = 0.5, []
    for factor in (0.02, 0.01, 0.005):
        ratio = np.geomspace(0.01, 50, 60)
        there = ratio * (1 - factor)
        errors = np.asarray([first_order_errors(np.asarray(pair), s)[0] for pair in zip(ratio, there, strict=True)])
        predicted = -0.5 * (s * (ratio - there) / (s**2 + ratio**2)) ** 2
        worst.append(np.max(np.abs(errors / predicted - 1)))
    assert worst[0] < 0.05
    assert worst[0] / worst[1] == pytest.approx(2, rel=0.1)
    assert worst[1] / worst[2] == pytest.approx(2, rel=0.1)


# -- errors -----------------------------------------------------------------------------------------------------------


GRIDS = pytest.mark.parametrize("grid", [getattr(grids, name) for name in CLOSED], ids=lambda g: g.__name__)


@GRIDS
@pytest.mark.parametrize("steps", [0, -1, 1.0, 2.5, True, np.True_, None, "3", math.nan, [4], 1j])
def test_bad_steps(grid, steps):
    with pytest.raises(ValueError, match="steps must be an integer >= 1, got"):
        grid(schedules.edm(), steps)


@pytest.mark.parametrize(
    "grid,name", [(grids.karras, "rho"), (grids.uniform_angle, "sigma_data")], ids=["rho", "sigma_data"]
)
@given(value=st.one_of(st.floats(max_value=0), st.sampled_from([math.nan, math.inf, None, True, "a", [1.0], 1j])))
@settings(max_examples=25, deadline=None)
def test_bad_options(grid, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a finite number > 0, got"):
        grid(schedules.edm(), 4, **{name: value})


def test_small_options_are_fine():
    t = grids.karras(schedules.edm(), 3, rho=1e-3)  # 80^1000 would overflow
    np.testing.assert_allclose(t[1:3] / 80.0, [(2 / 3) ** 1e-3, (1 / 3) ** 1e-3], rtol=1e-13)
    assert grids.karras(schedules.edm(), 2, rho=1)[1] == pytest.approx(40.001)
    assert grids.uniform_angle(schedules.edm(), 2, sigma_data=np.float32(0.5))[1] > 0.4


@named(OPEN)
def test_karras_needs_signal_at_the_start(schedule):
    with pytest.raises(ValueError, match=r"alpha > 0 at t_noise, got alpha = 0 for .*; see schedules\.truncate"):
        grids.karras(schedule, 5)
    grids.karras(schedules.truncate(schedule, t_noise=0.99), 5)


@named(OPEN + HALF_OPEN)
def test_uniform_log_snr_needs_finite_ends(schedule):
    with pytest.raises(
        ValueError, match=r"finite log-SNR at t_(noise|clean), got -?inf for .*; see schedules\.truncate"
    ):
        grids.uniform_log_snr(schedule, 5)
    if schedule in HALF_OPEN:
        with pytest.raises(ValueError, match="at t_clean, got inf"):
            grids.uniform_log_snr(schedule, 5)


def test_too_many_steps():
    schedule = schedules.truncate(schedules.rectified_flow(), t_clean=1 - 2.0**-50, t_noise=1.0 - 2.0**-53)
    with pytest.raises(
        ValueError, match="steps must leave nodes that float64 can tell apart, got 64 for uniform on trun"
    ):
        grids.uniform(schedule, 64)
    for grid in (grids.uniform_log_snr, grids.uniform_angle, grids.karras):
        with pytest.raises(ValueError, match=f"can tell apart, got 64 for {grid.__name__} on"):
            grid(schedule, 64)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_grid_is_valid_or_refused(data):
    make = data.draw(
        st.sampled_from(
            [
                functools.partial(schedules.shift, schedules.cosine()),
                functools.partial(schedules.shift, schedules.vp_linear()),
                functools.partial(schedules.shift, schedules.edm()),
            ]
        )
    )
    schedule = make(data.draw(st.floats(1e-6, 1e6)))
    grid = getattr(grids, data.draw(st.sampled_from(CLOSED)))
    steps = data.draw(st.integers(1, 300))
    try:
        t = grid(schedule, steps)
    except ValueError as error:
        assert "truncate" in str(error) or "tell apart" in str(error)  # noqa: PT017
    else:
        assert np.all(np.diff(t) < 0)
        assert t.shape == (steps + 1,)
        assert (t[0], t[-1]) == (schedule.t_noise, schedule.t_clean)


@pytest.mark.parametrize("make", [grids.uniform, grids.uniform_log_snr, grids.uniform_angle, grids.karras])
@pytest.mark.parametrize("wrong", ["a", None, 4, schedules.rectified_flow])
def test_things_that_are_no_schedule(make, wrong):
    with pytest.raises(TypeError, match=f"schedule must be a Schedule, got {type(wrong).__name__}"):
        make(wrong, 4)
