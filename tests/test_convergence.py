"""Orders on synthetic errors, exact moments against the loop itself, and broken samplers that must be caught."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from diffnum import _problems, grids, oracles, paths, samplers, schedules, solvers
from diffnum.convergence import (
    Moments,
    OrderError,
    Problem,
    check_sampler,
    impulse_response,
    problems,
    random_ratio_grid,
    random_ratio_nodes,
    study,
    table_moments,
)
from diffnum.phi import phi
from diffnum.schedules import Level

EXACT = 1e-11
"""A slope from numbers that are a pure power: rounding of the logarithms, times a few points."""
SLOPE = 0.1
"""How near the slope of a solver must come to its order (0.15 for order 4), from 24 to 384 steps."""
ROUNDING = 1e-12
"""Relative, for 10 to 100 rows of float64 whose intermediate values are up to 100 times the result."""
SINGLE = {"float32": 2e-5, "float64": ROUNDING}
"""The same in either precision: about 100 roundings."""
STEPS = (24, 48, 96, 192)
SAMPLERS = {"ab1": 1, "ab2": 2, "ab3": 3, "ab4": 4, "heun": 2}


def measured(*errors, steps=(10, 20, 40, 80, 160, 320), **options):
    """Study of prescribed errors: the reference is 0, the results are the errors."""
    table = dict(zip(steps, errors, strict=True))
    return study(lambda n: np.asarray([table[n], table[n]]), steps, np.zeros(2), **options)


def powers(formula, steps=(10, 20, 40, 80, 160, 320), **options):
    return measured(*(formula(n) for n in steps), steps=steps, **options)


# -- study ------------------------------------------------------------------------------------------------------------


@pytest.mark.claim("convergence-order", "convergence-slope", "convergence-fit")
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("steps", [(10, 20, 40, 80, 160, 320), (7, 11, 30, 31, 90, 100)])
def test_a_pure_power_is_fitted_exactly(p, steps):
    result = powers(lambda n: 3.0 * n**-p, steps)
    assert result.order == pytest.approx(p, abs=EXACT)
    assert result.slopes == pytest.approx([p] * 5, abs=EXACT)
    assert result.constant == pytest.approx(3.0, rel=1e-10)
    assert result.used == (0, 1, 2, 3, 4, 5)
    assert result.steps == steps
    assert result.errors == pytest.approx([3.0 * n**-p for n in steps], rel=1e-15)


@pytest.mark.claim("convergence-fit")
def test_the_fit_is_least_squares_over_the_range():
    steps = (10, 20, 40, 80)
    errors = [1.0, 0.52, 0.25, 0.126]
    result = measured(*errors, steps=steps)
    x, y = np.log(steps), np.log(errors)
    assert result.used == (0, 1, 2, 3)
    expected = -np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2)
    assert result.order == pytest.approx(expected, abs=EXACT)
    assert result.constant == pytest.approx(math.exp(y.mean() + expected * x.mean()), rel=1e-10)
    assert abs(expected - math.log2(1.0 / 0.126) / 3.0) > 1e-3, "the line through the end points is another"


@pytest.mark.claim("convergence-range")
def test_a_higher_order_term_shortens_the_range():
    """Errors n^-2 (1 + 30/n) look like order 3 at first."""
    result = powers(lambda n: n**-2 * (1.0 + 30.0 / n), (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048))
    assert result.used == (6, 7, 8, 9)
    assert result.order == pytest.approx(2.0, abs=0.05)
    everything = -np.polyfit(np.log(result.steps), np.log(result.errors), 1)[0]
    assert everything > 2.2, "a fit to all points is fooled"


@pytest.mark.claim("convergence-range")
@pytest.mark.parametrize("norm", ["rms", lambda d: float(np.mean(d))])
def test_the_range_starts_after_a_change_of_sign(norm):
    """Errors n^-2 - 60 n^-3 change sign at n = 60: steep before, shallow after."""
    result = powers(lambda n: n**-2 - 60.0 * n**-3, (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120), norm=norm)
    assert result.order == pytest.approx(2.0, abs=0.06)
    assert min(result.used) >= 6
    assert result.slopes[2] > 2.5
    assert result.slopes[3] < 1.0
    everything = -np.polyfit(np.log(result.steps), np.log(result.errors), 1)[0]
    assert abs(everything - 2.0) > 0.1, "a fit to all points is fooled"


@pytest.mark.claim("convergence-range")
def test_a_sign_counts_even_where_the_slopes_agree():
    """Sizes are a pure power, signs are - - + + + +."""
    signed = [s * n**-2.0 for s, n in zip((-1, -1, 1, 1, 1, 1), (10, 20, 40, 80, 160, 320), strict=True)]
    assert measured(*signed, norm=lambda d: float(d[0])).used == (2, 3, 4, 5)
    assert measured(*signed).used == (0, 1, 2, 3, 4, 5), "the size alone does not see it"
    table = dict(zip((10, 20, 40, 80, 160, 320), signed, strict=True))
    assert study(table.__getitem__, list(table), 0.0).used == (2, 3, 4, 5), "a single number has a sign"
    assert measured(*signed[::-1], steps=(10, 20, 40, 80, 160, 320), norm=lambda d: float(d[0])).order != 2.0
    assert math.isnan(measured(*(s * n**-2.0 for s, n in zip((1, 1, 1, 1, 1, -1), (10, 20, 40, 80, 160, 320), strict=True)), norm=np.sum).order)  # fmt: skip  # noqa: E501


@pytest.mark.claim("convergence-range")
@pytest.mark.parametrize(
    "p, bend, inside",
    [
        *[(1.0, 0.09, True), (1.0, 0.11, False), (1.0, -0.09, True), (1.0, -0.11, False), (2.0, 0.11, False)],
        *[(4.0, 0.19, True), (4.0, 0.21, False), (4.0, -0.19, True), (4.0, -0.21, False)],
    ],
)
def test_slopes_within_a_tenth_or_five_percent_of_the_last(p, bend, inside):
    errors = np.cumprod([1.0, 2.0 ** -(p + bend), 2.0**-p, 2.0**-p, 2.0**-p])
    assert measured(*errors, steps=(1, 2, 4, 8, 16)).used == ((0, 1, 2, 3, 4) if inside else (1, 2, 3, 4))


@pytest.mark.claim("convergence-range")
def test_the_range_needs_three_points():
    settled = measured(1.0, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5, steps=(1, 2, 4, 8))
    assert settled.used == (1, 2, 3)
    assert settled.order == pytest.approx(1.0, abs=EXACT)
    unsettled = measured(1.0, 2.0**-1.0, 2.0**-2.5, 2.0**-3.5, steps=(1, 2, 4, 7))
    assert unsettled.used == ()
    assert math.isnan(unsettled.order)
    assert math.isnan(unsettled.constant)
    assert "no order" in str(unsettled)


@pytest.mark.claim("convergence-floor")
def test_rounding_is_cut_off():
    """1 + n^-4 in float64 is 1 beyond n = 8192; before, digits go one by one."""
    steps = [*(3 * 2**k for k in range(1, 12)), 7000]
    result = study(lambda n: np.asarray([1.0 + n**-4.0] * 2), steps, np.ones(2))
    assert result.order == pytest.approx(4.0, abs=1e-4)
    assert result.used == tuple(range(len(result.used))), "a prefix: the floor is at the fine end"
    assert steps[result.used[-1]] == 768
    assert math.isnan(study(lambda n: np.asarray([1.0 + n**-4.0] * 2), steps, np.ones(2), floor=0.0).order)


@pytest.mark.claim("convergence-floor")
@pytest.mark.parametrize("dtype, eps", [("float32", 2.0**-23), ("float64", 2.0**-52)])
@pytest.mark.parametrize("norm", ["rms", "max"])
def test_the_floor_is_a_hundred_roundings_times_the_root_of_the_steps(dtype, eps, norm):
    reference = np.asarray([3.0, 4.0])
    scale = {"rms": math.sqrt(12.5), "max": 4.0}[norm]

    def used(factor, n):
        error = factor * 100.0 * eps * math.sqrt(n) * scale
        result = study(
            lambda m: np.asarray(reference + error * (m == n), dtype), [n - 2, n - 1, n], reference, norm=norm
        )
        return result.order != math.inf

    for n in (16, 400):
        assert used(1.02, n)
        assert not used(0.98, n)


@pytest.mark.claim("convergence-floor")
def test_a_floor_that_is_no_rounding_is_an_error_of_the_sampler():
    result = powers(lambda n: 1e-3 + n**-2.0, (10, 100, 1000, 10_000, 100_000, 1_000_000))
    assert result.order == pytest.approx(0.0, abs=0.01)
    assert powers(lambda n: 1e-3 + n**-2.0, (4, 5, 6, 1000, 10_000), floor=2e-3).order > 1.9, "unless one says so"


@pytest.mark.claim("convergence-floor")
def test_errors_at_rounding_level_are_exact():
    result = study(lambda n: np.ones(3) + 1e-15 / n, [1, 2, 3], np.ones(3))
    assert result.order == math.inf
    assert result.used == ()
    assert "exact" in str(result)
    assert study(lambda n: 0.0 * n, [1, 2, 3], 0.0).order == math.inf


@pytest.mark.claim("convergence-fit")
def test_norms():
    run, reference = (lambda n: np.asarray([[3.0, -4.0], [0.0, 0.0]]) / n), np.zeros((2, 2))
    assert study(run, [1, 2, 4], reference).errors == pytest.approx([2.5, 1.25, 0.625], rel=1e-15)
    assert study(run, [1, 2, 4], reference, norm="max").errors == (4.0, 2.0, 1.0)
    assert study(run, [1, 2, 4], reference, norm=lambda d: float(d[0, 1])).errors == (4.0, 2.0, 1.0)
    with pytest.raises(ValueError, match="norm must be 'rms', 'max' or a callable, got 'l2'"):
        study(lambda n: 1.0 / n, [1, 2, 4], 0.0, norm="l2")


def test_the_table_of_a_study():
    text = str(measured(1.0, 0.9, 0.45, 0.225, steps=(1, 2, 4, 8))).splitlines()
    assert text[0].split() == ["steps", "error", "slope"]
    assert text[1].split() == ["1", "1.000e+00", "-"]
    assert text[2].split() == ["2", "9.000e-01", "0.152", "*"]
    assert text[4].split() == ["8", "2.250e-01", "1.000", "*"]
    assert text[5] == "order 1.000, fitted to the rows with *"


def test_results_of_every_library(backend):
    result = study(lambda n: backend.asarray([1.0 + 1.0 / n, 2.0]), [10, 20, 40], backend.asarray([1.0, 2.0]))
    assert result.order == pytest.approx(1.0, abs=EXACT)
    assert all(type(e) is float for e in result.errors)


def test_results_that_are_not_finite_have_no_order():
    assert math.isnan(measured(1.0, 0.5, math.nan, steps=(1, 2, 4)).order)
    assert math.isnan(measured(1.0, 0.5, math.inf, steps=(1, 2, 4)).order)
    for errors in ((0.0, 1.0, 0.5, 0.25), (1.0, 0.5, 0.25, 0.0)):
        exact_once = measured(*errors, steps=(1, 2, 4, 8))
        assert math.isnan(exact_once.slopes[0 if errors[0] == 0.0 else 2]), "a zero has no logarithm"
        assert exact_once.order == pytest.approx(1.0, abs=EXACT)
    late = measured(math.nan, 1.0, 0.5, 0.25, steps=(1, 2, 4, 8))
    assert late.order == pytest.approx(1.0, abs=EXACT)
    assert late.used == (1, 2, 3)


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(1, 50), max_size=2),
        st.lists(st.integers(1, 5), min_size=6, max_size=8),
        st.lists(st.integers(-5, 0), min_size=3, max_size=3),
        st.just([1, 2.5, 4]),
        st.just([True, 2, 4]),
        st.just([4, 2, 1]),
    )
)
def test_bad_steps(steps):
    with pytest.raises(ValueError, match="steps must be at least three increasing integers >= 1"):
        study(lambda n: 1.0 / n, steps, 0.0)


def test_bad_results():
    with pytest.raises(ValueError, match=r"run\(n\) must fit the shape of reference, \(3,\), got \(2,\) for n = 1"):
        study(lambda n: np.ones(2) / n, [1, 2, 4], np.zeros(3))
    with pytest.raises(ValueError, match=r"run\(n\) must be an array of real numbers"):
        study(lambda n: np.ones(2) / (1j * n), [1, 2, 4], np.zeros(2))
    with pytest.raises(ValueError, match="reference must be an array of real numbers"):
        study(lambda n: np.ones(2) / n, [1, 2, 4], np.zeros(2, bool))
    assert study(lambda n: np.asarray([n, n]), [1, 2, 4], 0).errors == (1.0, 2.0, 4.0), "integers are numbers"


def test_a_study_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        measured(1.0, 0.5, 0.25, steps=(1, 2, 4)).order = 7.0


# -- exact moments ----------------------------------------------------------------------------------------------------

MEAN, STD = np.asarray([0.8, -0.5, 0.0]), np.asarray([1.7, 0.3, 1.0])


def tables():
    edm, flow, vp = schedules.edm(sigma_min=0.05, sigma_max=5.0), schedules.rectified_flow(), schedules.cosine()
    grid, ends = random_ratio_grid(edm, 9), random_ratio_grid(flow, 9, coordinate="angle")
    inner = random_ratio_grid(schedules.truncate(vp, t_clean=0.05, t_noise=0.9), 9)
    etas = np.linspace(0.0, 1.5, 9)
    return {
        "x0, ab2": solvers.adams_bashforth(paths.x0(edm, grid), 2),
        "x0, ab4, eta": solvers.adams_bashforth(paths.x0(vp, inner, eta=etas), 4),
        "x0, heun, eta": solvers.runge_kutta(paths.x0(edm, grid, eta=0.7), solvers.HEUN),
        "x0, both ends": solvers.adams_bashforth(paths.x0(flow, ends), 3),
        "noise, ab3": solvers.adams_bashforth(paths.noise(vp, inner), 3),
        "velocity, both ends, eta": solvers.adams_bashforth(paths.velocity(flow, ends, sigma_data=0.6, eta=0.8), 2),
        "velocity, centre": solvers.adams_bashforth(paths.velocity(vp, inner, sigma_data=0.6, centre=0.4), 3),
        "velocity, centres": solvers.runge_kutta(
            paths.velocity(vp, inner, centre=np.asarray([0.4, 0.1, -1.0]), eta=0.3), solvers.RUNGE_KUTTA_3
        ),
        "ancestral": solvers.adams_bashforth(paths.ancestral(paths.x0(vp, inner)), 2),
        "churn": solvers.runge_kutta(paths.churn(paths.x0(edm, grid), 0.2, s_noise=1.1), solvers.MIDPOINT),
    }


def by_simulation(table, mean, std, start_mean, start_std):
    """Moments from the loop itself: one run for the offset, one for the start and one for each noise."""
    denoise = oracles.gaussian(mean, std).denoise
    zero = np.zeros_like(mean)

    def run(x, loud=None):
        def rng(row, like):
            return np.full_like(like, float(row == loud))

        return solvers.solve(denoise, x, table, rng=rng)

    offset = run(zero)
    gain = run(zero + 1.0) - offset
    noises = [run(zero, r) - offset for r in range(table.evaluations + 1)]
    variance = (gain * start_std) ** 2 + sum(g**2 for g in noises)
    return offset + gain * start_mean, np.sqrt(variance)


@pytest.mark.claim("convergence-recursion")
@pytest.mark.parametrize("name", list(tables()))
def test_moments_are_those_of_the_loop(name):
    table = tables()[name]
    start_mean, start_std = np.asarray([0.3, -2.0, 1.0]), np.asarray([2.0, 0.7, 0.0])
    mean, std = table_moments(table, mean=MEAN, std=STD, start_mean=start_mean, start_std=start_std)
    expected = by_simulation(table, MEAN, STD, start_mean, start_std)
    np.testing.assert_allclose(mean, expected[0], rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(std, expected[1], rtol=ROUNDING, atol=ROUNDING)
    wrong = table_moments(table._replace(carry=table.carry * (1 + 1e-9)), mean=MEAN, std=STD, start_mean=start_mean)
    assert np.max(np.abs(wrong.std - expected[1])) > ROUNDING, "control"


@pytest.mark.claim("convergence-recursion", "convergence-gaussian")
def test_ddpm_by_hand():
    """Ancestral sampling of N(m, s^2) in one step from t to t': posterior mean and variance, written out."""
    schedule, t = schedules.cosine(), np.asarray([0.8, 0.3])
    a, b = schedule.level(0.8), schedule.level(0.3)
    m, s = 0.8, 1.7
    ratio = a.alpha / b.alpha
    step_variance = a.sigma**2 - (ratio * b.sigma) ** 2
    variance = step_variance * b.sigma**2 / a.sigma**2
    on_x, on_d = ratio * b.sigma**2 / a.sigma**2, b.alpha * step_variance / a.sigma**2
    total = (a.alpha * s) ** 2 + a.sigma**2
    gain = on_x + on_d * a.alpha * s**2 / total
    table = solvers.adams_bashforth(paths.x0(schedule, t, eta=1.0), 1)
    mean, std = table_moments(table, mean=m, std=s)
    assert float(mean) == pytest.approx(b.alpha * m, rel=1e-14)
    assert float(std) == pytest.approx(math.sqrt(gain**2 * total + variance), rel=1e-14)
    lacking = (b.alpha * (1.0 - (a.alpha * b.sigma / (b.alpha * a.sigma)) ** 2)) ** 2 * s**2 * a.sigma**2 / total
    assert float(std) ** 2 + lacking == pytest.approx((b.alpha * s) ** 2 + b.sigma**2, rel=1e-13)
    assert lacking > 0.1, "the variance that ancestral sampling lacks is no rounding"


@pytest.mark.claim("convergence-gaussian")
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_velocity_is_exact_where_it_knows_mean_and_deviation(eta):
    """The law of x_t at the end is N(alpha m, (alpha s)^2 + sigma^2), which the right path meets in one step."""
    schedule = schedules.rectified_flow()
    for t in ([1.0, 0.01], [0.9, 0.3, 0.2]):
        path = paths.velocity(schedule, np.asarray(t), sigma_data=1.7, centre=0.8, eta=eta)
        mean, std = table_moments(solvers.adams_bashforth(path, 2), mean=0.8, std=1.7)
        assert float(mean) == pytest.approx(0.8 * (1.0 - t[-1]), rel=ROUNDING)
        assert float(std) == pytest.approx(math.hypot(1.7 * (1.0 - t[-1]), t[-1]), rel=ROUNDING)
        other = paths.velocity(schedule, np.asarray(t), sigma_data=1.0, centre=0.8, eta=eta)
        assert abs(table_moments(solvers.adams_bashforth(other, 2), mean=0.8, std=1.7).std - std) > 0.01


@pytest.mark.claim("convergence-gaussian")
def test_the_start_is_the_true_law_unless_given():
    flow = schedules.rectified_flow()
    table = solvers.adams_bashforth(paths.x0(flow, grids.uniform(schedules.truncate(flow, t_noise=0.6), 4)), 2)
    true = table_moments(table, mean=MEAN, std=STD)
    given = table_moments(table, mean=MEAN, std=STD, start_mean=0.4 * MEAN, start_std=np.hypot(0.4 * STD, 0.6))
    np.testing.assert_allclose(true.mean, given.mean, rtol=1e-14)
    np.testing.assert_allclose(true.std, given.std, rtol=1e-14)
    usual = table_moments(table, mean=MEAN, std=STD, start_mean=0.0, start_std=0.6)
    assert np.max(np.abs(usual.std - true.std)) > 0.05
    assert np.max(np.abs(usual.mean - true.mean)) > 0.05


def test_data_without_spread_are_found_from_every_level():
    flow = schedules.rectified_flow()
    table = solvers.adams_bashforth(paths.x0(flow, grids.uniform(flow, 4)), 2)
    mean, std = table_moments(table._replace(level=Level(table.level.t, table.level.alpha, 0.0 * table.level.sigma)),
                              mean=0.8, std=0.0)  # fmt: skip
    assert float(mean) == pytest.approx(0.8, rel=1e-14)
    assert float(std) == 0.0


def test_shapes_of_moments():
    table = tables()["x0, ab2"]
    assert table_moments(table, mean=0.5, std=2.0).std.shape == ()
    grid = table_moments(table, mean=np.zeros((4, 1)), std=np.asarray([0.5, 1.0, 2.0]))
    assert grid.mean.shape == grid.std.shape == (4, 3)
    np.testing.assert_allclose(grid.std[2], table_moments(table, mean=0.0, std=[0.5, 1.0, 2.0]).std, rtol=1e-15)
    with pytest.raises(TypeError, match="table must be a Table, got float"):
        table_moments(3.0, mean=0.0, std=1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_in_every_library(backend, dtype):
    table = tables()["velocity, centres"]
    expected = table_moments(table, mean=MEAN, std=STD)
    cast = table._replace(
        **{
            name: backend.asarray(getattr(table, name), dtype)
            for name in ("target", "carry", "weights", "noise", "bias", "centre")
        },
        level=Level(*(backend.asarray(part, dtype) for part in table.level)),
        node=Level(*(backend.asarray(part, dtype) for part in table.node)),
    )

    def moments_of(mean, std):
        return table_moments(cast, mean=mean, std=std)

    if backend.name == "jax":  # eagerly every operation would be compiled by itself
        moments_of = pytest.importorskip("jax").jit(moments_of)
    for moments in (
        moments_of(MEAN, STD),
        moments_of(backend.asarray(MEAN, dtype), backend.asarray(STD, dtype)),
    ):
        assert backend.dtype(moments.mean) == backend.dtype(moments.std) == dtype
        for got, wanted in zip(moments, expected, strict=True):
            np.testing.assert_allclose(backend.numpy(got), wanted, rtol=SINGLE[dtype], atol=SINGLE[dtype])
    if dtype == "float64" and backend.name != "jax":
        moments = table_moments(table, mean=backend.asarray(MEAN), std=STD)
        np.testing.assert_allclose(backend.numpy(moments.std), expected.std, rtol=ROUNDING)
        assert type(moments.std) is type(backend.asarray(MEAN))


@pytest.mark.claim("convergence-recursion")
def test_derivatives_of_moments():
    """Of the standard deviation by a node of the grid, the data's deviation and the start's: against differences."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    edm, grid = schedules.edm(), np.asarray([5.0, 2.0, 0.7, 0.2, 0.05])
    # the float64 differences below lose half of the digits
    tolerance = 1e-7

    def deviation(t, std, start):
        table = solvers.adams_bashforth(paths.x0(edm, t, eta=0.5), 1)
        return table_moments(table, mean=0.8, std=std, start_std=start).std

    gradient = jax.jit(jax.vmap(jax.grad(deviation, argnums=(0, 1, 2)), in_axes=(None, 0, None)))
    by_jax = [part[1] for part in gradient(jax.numpy.asarray(grid), jax.numpy.asarray([1.0, 1.7]), 5.1)]
    t, std, start = (torch.asarray(v, dtype=torch.float64).requires_grad_() for v in (grid, 1.7, 5.1))
    deviation(t, std, start).backward()
    h = 1e-6
    for i in range(5):
        up, down = (deviation(grid + s * h * np.eye(5)[i], 1.7, 5.1) for s in (1, -1))
        assert float(by_jax[0][i]) == pytest.approx((up - down) / (2 * h), abs=tolerance)
        assert float(t.grad[i]) == pytest.approx((up - down) / (2 * h), abs=tolerance)
    for by_torch, index in ((std, 1), (start, 2)):
        base = [grid, 1.7, 5.1]
        up, down = (deviation(*(v + s * h * (k == index) for k, v in enumerate(base))) for s in (1, -1))
        assert float(by_jax[index]) == pytest.approx((up - down) / (2 * h), abs=tolerance)
        assert float(by_torch.grad) == pytest.approx((up - down) / (2 * h), abs=tolerance)
    assert abs(float(by_jax[0][1])) > 1e-3


@pytest.mark.slow
@pytest.mark.claim("convergence-recursion")
def test_moments_agree_with_a_million_samples():
    """Four standard errors of the mean and of the variance of 10^6 draws."""
    edm = schedules.edm(sigma_max=5.0)
    path = paths.x0(edm, grids.karras(edm, 6), eta=1.0)
    table = solvers.adams_bashforth(path, 2)
    exact = table_moments(table, mean=0.8, std=1.7, start_mean=0.0, start_std=5.0)
    rng = np.random.default_rng(1)
    x = solvers.solve(oracles.gaussian(0.8, 1.7).denoise, 5.0 * rng.standard_normal((10**6, 1)), table, rng=rng)
    assert abs(x.mean() - exact.mean) < 4e-3 * exact.std
    assert abs(x.var() / exact.std**2 - 1.0) < 4e-3 * math.sqrt(2.0)


# -- impulse response -------------------------------------------------------------------------------------------------


def ancestral_by_hand(denoise, x, path, rng):
    """DDPM's loop, written for this test: posterior mean plus noise; one draw before the first step."""
    x = x + 0.0 * rng(0, x)
    for i in range(path.steps):
        a, b = (Level(*(part[i] for part in level)) for level in (path.start, path.stop))
        ratio = a.alpha / b.alpha
        step = a.sigma**2 - (ratio * b.sigma) ** 2
        mean = ratio * b.sigma**2 / a.sigma**2 * x + b.alpha * step / a.sigma**2 * denoise(x, a)
        x = mean + math.sqrt(step * b.sigma**2 / a.sigma**2) * rng(i, x)
    return x


@pytest.mark.claim("convergence-response")
@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("eta", [0.0, 0.8])
def test_response_and_recursion_agree(order, eta):
    edm = schedules.edm(sigma_min=0.05, sigma_max=5.0)
    path = paths.x0(edm, random_ratio_grid(edm, 9), eta=eta)
    table = solvers.adams_bashforth(path, order)
    response = impulse_response(
        lambda denoise, x, _, rng: solvers.solve(denoise, x, table, rng=rng), path, mean=MEAN, std=STD
    )
    assert response.noise.shape == (table.evaluations if eta else 0, 3)
    moments = response.moments(np.asarray([0.3, -2.0, 1.0]), np.asarray([2.0, 0.7, 0.0]))
    expected = table_moments(
        table, mean=MEAN, std=STD, start_mean=np.asarray([0.3, -2.0, 1.0]), start_std=np.asarray([2.0, 0.7, 0.0])
    )
    np.testing.assert_allclose(moments.mean, expected.mean, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(moments.std, expected.std, rtol=ROUNDING)


@pytest.mark.claim("convergence-response")
def test_response_of_a_loop_written_by_hand():
    """Gains in the order of the draws, from a product of factors."""
    vp = schedules.cosine()
    path = paths.x0(vp, np.asarray([0.9, 0.7, 0.4, 0.1]))
    m, s = 0.8, 1.7
    response = impulse_response(ancestral_by_hand, path, mean=m, std=s)
    factors, noises, offset = [], [], 0.0
    for i in range(3):
        a, b = vp.level(path.start.t[i]), vp.level(path.stop.t[i])
        ratio = a.alpha / b.alpha
        step = a.sigma**2 - (ratio * b.sigma) ** 2
        gain = a.alpha * s**2 / ((a.alpha * s) ** 2 + a.sigma**2)
        weight = b.alpha * step / a.sigma**2
        factors.append(ratio * b.sigma**2 / a.sigma**2 + weight * gain)
        offset = factors[-1] * offset + weight * (m - gain * a.alpha * m)
        noises.append(math.sqrt(step) * b.sigma / a.sigma)
    expected = [0.0] + [noises[i] * math.prod(factors[i + 1 :]) for i in range(3)]
    np.testing.assert_allclose(response.noise[:, 0], expected, rtol=1e-13)
    np.testing.assert_allclose(response.start, [math.prod(factors)], rtol=1e-13)
    np.testing.assert_allclose(response.offset, [offset], rtol=1e-13)
    mean, std = response.moments(0.3, 2.0)
    assert mean == pytest.approx(offset + 0.3 * math.prod(factors), rel=1e-13)
    assert std == pytest.approx(math.sqrt(4.0 * math.prod(factors) ** 2 + np.sum(np.square(expected))), rel=1e-13)
    standard = response.moments()
    assert standard.mean == pytest.approx(offset, rel=1e-13)
    assert standard.std == pytest.approx(math.sqrt(math.prod(factors) ** 2 + np.sum(np.square(expected))), rel=1e-13)


def test_response_without_randomness():
    edm = schedules.edm(sigma_max=5.0)
    path = paths.x0(edm, grids.karras(edm, 8))

    def deterministic(denoise, x, path):
        return solvers.ab2(denoise, x, path)

    plain = impulse_response(deterministic, path, mean=MEAN, std=STD)
    assert plain.noise.shape == (0, 3)
    expected = table_moments(solvers.adams_bashforth(path, 2), mean=MEAN, std=STD, start_mean=0.0, start_std=5.0)
    np.testing.assert_allclose(plain.moments(0.0, 5.0).std, expected.std, rtol=ROUNDING)

    def optional(denoise, x, path, **options):
        assert callable(options["rng"])
        return solvers.ab2(denoise, x, path)

    np.testing.assert_allclose(impulse_response(optional, path, mean=MEAN, std=STD).start, plain.start, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_response_of_a_torch_sampler(dtype):
    torch = pytest.importorskip("torch")
    vp = schedules.cosine()
    path = paths.x0(vp, np.asarray([0.9, 0.7, 0.4, 0.1]))

    def sampler(denoise, x, path, rng):
        assert isinstance(x, torch.Tensor)
        return ancestral_by_hand(denoise, x, path, rng)

    response = impulse_response(
        sampler, path, mean=MEAN, std=STD, asarray=lambda a: torch.asarray(a, dtype=getattr(torch, dtype))
    )
    expected = impulse_response(ancestral_by_hand, path, mean=MEAN, std=STD)
    np.testing.assert_allclose(response.noise, expected.noise, rtol=SINGLE[dtype], atol=SINGLE[dtype])
    np.testing.assert_allclose(response.start, expected.start, rtol=SINGLE[dtype], atol=SINGLE[dtype])


def test_what_has_no_response_is_refused():
    edm = schedules.edm(sigma_max=5.0)
    path = paths.x0(edm, grids.karras(edm, 4))
    calls = iter(range(100))
    plain = solvers.ab1
    bad = {
        "thresholding": lambda d, x, p, rng: np.clip(plain(d, x, p), -1.0, 1.0) + 0.0 * rng(0, x),
        "mixes samples": lambda d, x, p, rng: plain(d, x, p) - np.mean(x) + 0.0 * rng(0, x),
        "mixes components": lambda d, x, p, rng: plain(d, x, p) + 0.01 * x[:, ::-1] + 0.0 * rng(0, x),
        "draws at will": lambda d, x, p, rng: plain(d, x, p) + sum(0.0 * rng(0, x) for _ in range(next(calls))),
        "draws more once": lambda d, x, p, rng: plain(d, x, p) + 0.0 * sum(rng(0, x) for _ in range(1 + (len(x) > 9))),
        "own randomness": lambda d, x, p, rng: plain(d, x, p) + 0.01 * np.random.default_rng().normal() + rng(0, x),
    }
    for name, sampler in bad.items():
        try:
            impulse_response(sampler, path, mean=[0.5, -0.3], std=[1.0, 2.0])
        except ValueError as error:
            assert "sampler must be affine on Gaussian data" in str(error)  # noqa: PT017
        else:
            pytest.fail(name)


# -- random-ratio grids -----------------------------------------------------------------------------------------------


@pytest.mark.claim("convergence-ratios")
@pytest.mark.parametrize("start, stop", [(0.0, 1.0), (2.0, -3.0)])
@pytest.mark.parametrize("seed", [0, 7])
def test_one_pattern_of_eight_ratios_up_to_four(start, stop, seed):
    coarse, fine = (np.diff(random_ratio_nodes(start, stop, n, seed=seed)) / (stop - start) for n in (8, 32))
    assert coarse.max() / coarse.min() == pytest.approx(4.0, rel=1e-12)
    np.testing.assert_allclose(fine, np.tile(coarse / 4.0, 4), rtol=1e-12)
    logs = np.sort(np.log(coarse / coarse.min()) / math.log(4.0))
    assert np.all(np.diff(logs) > 1e-3), "eight different lengths, and not two"
    assert np.max(np.diff(logs)) < 0.9


@pytest.mark.claim("convergence-ratios")
def test_the_pattern_is_the_seeds():
    u = np.random.default_rng(5).uniform(size=8)
    lengths = 4.0 ** ((u - u.min()) / (u.max() - u.min()))
    lengths = np.concatenate([lengths, lengths[:3]])
    expected = np.concatenate([[0.0], np.cumsum(lengths) / lengths.sum()])
    np.testing.assert_allclose(random_ratio_nodes(0.0, 1.0, 11, seed=5), expected, rtol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.floats(-10, 10), st.floats(0.1, 10), st.booleans())
def test_nodes_are_monotone_and_end_exactly(steps, start, length, backward):
    stop = start - length if backward else start + length
    nodes = random_ratio_nodes(start, stop, steps)
    assert nodes.shape == (steps + 1,)
    assert nodes[0] == start
    assert nodes[-1] == stop
    assert np.all(np.diff(nodes) * (stop - start) > 0)


@pytest.mark.claim("convergence-ratios")
def test_grids_have_the_ratios_in_their_coordinate():
    edm, flow = schedules.edm(sigma_min=0.1, sigma_max=5.0), schedules.rectified_flow()
    t = random_ratio_grid(edm, 24)
    assert (t[0], t[-1]) == (5.0, 0.1)
    np.testing.assert_allclose(-np.log(t), random_ratio_nodes(-math.log(5.0), -math.log(0.1), 24), rtol=1e-12)
    t = random_ratio_grid(flow, 24, coordinate="angle", seed=3)
    assert (t[0], t[-1]) == (1.0, 0.0)
    np.testing.assert_allclose(
        np.arctan2(t, 1.0 - t), random_ratio_nodes(math.pi / 2, 0.0, 24, seed=3), rtol=1e-12, atol=1e-15
    )
    assert not np.allclose(t, random_ratio_grid(flow, 24, coordinate="angle"))
    assert np.all(np.diff(t) < 0)


def test_bad_nodes():
    flow = schedules.rectified_flow()
    for steps in (0, -1, 2.5, True, "8"):
        with pytest.raises(ValueError, match="steps must be an integer >= 1"):
            random_ratio_nodes(0.0, 1.0, steps)
    for ends in ((1.0, 1.0), (math.nan, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match="start and stop must be two finite numbers"):
            random_ratio_nodes(*ends, 4)
    for schedule in (flow, schedules.truncate(flow, t_clean=0.1), schedules.truncate(flow, t_noise=0.9)):
        with pytest.raises(ValueError, match="schedule must have finite log-SNR at both ends"):
            random_ratio_grid(schedule, 4)
    with pytest.raises(ValueError, match="coordinate must be 'log_snr' or 'angle', got 't'"):
        random_ratio_grid(flow, 4, coordinate="t")


# -- the bank ---------------------------------------------------------------------------------------------------------

BANK = (*problems(), *problems("vacuous"))
TAGS = {"gaussian", "multimodal", "semilinear", "stiff", "smooth-end", "noise-end", "clean-end", "vacuous"}


def twice_the_step(denoise, x, path):
    """Broken: Euler for dx/dt of the cosine schedule's ODE, with steps twice as long as they are."""
    for t, s, alpha, sigma in zip(path.start.t, path.stop.t, path.start.alpha, path.start.sigma, strict=True):
        score = (alpha * denoise(x, Level(t, alpha, sigma)) - x) / sigma**2
        drift = -math.pi / 2.0 * sigma / alpha
        x = x + 2.0 * (s - t) * drift * (x + score)
    return x


@pytest.mark.parametrize("problem", BANK, ids=lambda problem: problem.name)
def test_tags_are_true(problem):
    """Each tag, from the numbers of the problem and not from its definition."""
    assert problem.tags <= TAGS
    semilinear = isinstance(problem.setting, oracles.SemilinearProblem)
    assert ("semilinear" in problem.tags) == semilinear
    n = 200
    grid = problem.grid(n, "uniform_angle")
    path = problem.path(grid)
    states = solvers.ab1(problem.denoise, problem.x, path, trajectory=True)
    s = path.coordinate(Level(*(np.append(a, b) for a, b in zip(path.start, path.last, strict=True))))
    steepest = 0.0
    for i in range(n):
        level = Level(*(part[i] for part in path.start))
        p, q = (0.0, 1.0) if path.target is None else path.target(level)
        h = 1e-5
        x = states[i]
        slopes = [
            p + q * (problem.denoise(x + h * e, level) - problem.denoise(x - h * e, level))[:, k] / (2 * h)
            for k, e in enumerate(np.eye(x.shape[1]))
        ]
        steepest = max(steepest, float(np.max(np.abs(slopes))))
    if semilinear:
        rates = np.abs(problem.setting.rate(grid))
        steepest += float(rates.max())
    assert ("stiff" in problem.tags) == (steepest * abs(float(s[-1] - s[0])) > 30.0)
    if semilinear:
        return
    noisy, clean = path.first, path.last
    assert ("noise-end" in problem.tags) == (noisy.alpha == 0.0)
    assert ("clean-end" in problem.tags) == (clean.sigma == 0.0)
    assert ("smooth-end" in problem.tags) == (noisy.alpha > 0.0 and clean.sigma > 0.0)
    u, v = np.random.default_rng(0).normal(size=(2, *problem.x.shape))
    level = Level(0.5, 0.8, 0.6)
    bend = problem.denoise(u + v, level) + problem.denoise(u - v, level) - 2 * problem.denoise(u, level)
    assert ("gaussian" in problem.tags) == (np.max(np.abs(bend)) < 1e-12) == (problem.law is not None)
    assert ("multimodal" in problem.tags) == (modes(problem, clean) > 1)
    broken = study(
        lambda n: twice_the_step(problem.denoise, problem.x, problem.path(problem.grid(n, "uniform_angle"))),
        [40, 80, 160], problem.reference,
    ) if "ends" not in problem.name and problem.setting.geometry == "vp" else None  # fmt: skip
    assert ("vacuous" in problem.tags) == (broken is not None and broken.order == math.inf)


def modes(problem, level):
    """Fixed points of attraction of x -> x + small score, from many starts."""
    if problem.x.shape[1] > 2 or problem.law is not None:
        return 1
    points = np.random.default_rng(0).uniform(-4.5, 4.5, size=(300, problem.x.shape[1]))
    sigma = max(float(level.sigma), 0.05)
    for _ in range(400):
        points = problem.denoise(points, Level(0.0, level.alpha, sigma)) * level.alpha
    return len({tuple(p) for p in np.round(points, 1) + 0.0})


@pytest.mark.claim("convergence-quantile")
@pytest.mark.parametrize("name", ["mixture-ve", "mixture-vp", "mixture-flow", "mixture-stiff", "mixture-ends"])
def test_references_keep_the_quantiles(name):
    """The distribution functions before and after, in 30 digits, agree to what float64 can hold."""
    (problem,) = problems(name)
    means, stds = ((-3.0, 3.0), (0.4, 0.4)) if name == "mixture-stiff" else ((-1.0, 1.5), (0.5, 0.7))
    ends = (problem.setting.level(t) for t in (problem.setting.t_noise, problem.setting.t_clean))
    with mpmath.workdps(30):
        quantiles, densities = [], []
        for level, points in zip(ends, (problem.x, problem.reference), strict=True):
            spread = [mpmath.hypot(float(level.alpha) * s, float(level.sigma)) for s in stds]
            parts = list(zip((mpmath.mpf(3) / 10, mpmath.mpf(7) / 10), means, spread, strict=True))
            z = [[(p - float(level.alpha) * m) / s for _, m, s in parts] for p in points.ravel().tolist()]
            quantiles.append([sum(w * mpmath.ncdf(v) for (w, _, _), v in zip(parts, row, strict=True)) for row in z])
            densities.append(
                [sum(w * mpmath.npdf(v) / s for (w, _, s), v in zip(parts, row, strict=True)) for row in z]
            )
        shifts = [float((a - b) / d) for a, b, d in zip(*quantiles, densities[1], strict=True)]
    # a rounding of a quantile is 1e-16, over a density of at least 0.01; on the stiff one of 3e-4
    assert np.max(np.abs(shifts)) < (1e-12 if name == "mixture-stiff" else 2e-14)


@pytest.mark.claim("convergence-quantile")
@pytest.mark.parametrize("problem", [p for p in BANK if "stiff" not in p.tags], ids=lambda problem: problem.name)
def test_references_are_what_order_four_converges_to(problem):
    """1,280 steps of order 4 leave an error of about 1e-11; a tenth of it when the steps are halved again would do."""
    x = solvers.ab4(problem.denoise, problem.x, problem.path(problem.grid(1280, "uniform_angle")))
    np.testing.assert_allclose(x, problem.reference, atol=3e-10, rtol=0.0)


def test_the_bank():
    assert len({problem.name for problem in BANK}) == len(BANK)
    assert [p.name for p in problems("gaussian")] == ["gaussian-ve", "gaussian-vp"], "the vacuous one is kept out"
    assert [p.name for p in problems("gaussian", "vacuous")] == ["gaussian-unit"]
    assert problems("mixture-ve")[0] is problems("mixture-ve")[0]
    assert problems("gaussian-unit")[0].name == "gaussian-unit"
    assert [p.name for p in problems("stiff", "semilinear")] == ["semilinear-stiff"]
    assert {tag for problem in BANK for tag in problem.tags} == TAGS
    with pytest.raises(ValueError, match=r"tags must be among .*, got 'easy'"):
        problems("easy")
    backward = problems("semilinear-backward")[0].setting
    assert backward.t1 < backward.t0


@pytest.mark.claim("convergence-quantile")
def test_far_points_keep_their_quantiles_too():
    """Nine standard deviations out one tail rounds to 1; the other still tells the points apart, on either side."""
    start, stop = Level(1.0, 1.0, 2.0), Level(0.1, 1.0, 0.1)
    mixture = (np.asarray([0.3, 0.7]), np.asarray([-1.0, 1.5]), np.asarray([0.5, 0.7]))
    mirrored = (mixture[0], -mixture[1], mixture[2])
    x = np.asarray([-19.0, -18.0, 18.0, 19.0])
    there = _problems._quantile_map(mixture, x, start, stop)
    np.testing.assert_allclose(_problems._quantile_map(mirrored, -x, start, stop), -there, rtol=1e-12)
    np.testing.assert_allclose(_problems._quantile_map(mixture, there, stop, start), x, rtol=1e-11)
    assert np.all(np.diff(there) > 0.1)


VE, VP, FLOW = ("ve", 2.0, 0.1), ("vp", 0.7, 0.05), ("flow", 0.7, 0.08)
LINE = ([0.3, 0.7], [[-1.0], [1.5]], [[0.5], [0.7]])
DEFINITIONS = {
    "gaussian-ve": (VE, [1.0], [[0.8, -0.5, 0.3]], [[1.7, 0.6, 0.3]]),
    "gaussian-vp": (VP, [1.0], [[0.8, -0.5, 0.3]], [[1.7, 0.6, 0.3]]),
    "gaussian-unit": (VP, [1.0], [[0.0]], [[1.0]]),
    "mixture-ve": (VE, *LINE),
    "mixture-vp": (VP, *LINE),
    "mixture-flow": (FLOW, *LINE),
    "mixture-plane": (
        VE, [0.5, 0.3, 0.2], [[1.5, 0.0], [-1.0, 1.0], [0.0, -1.5]], [[0.5, 0.5], [0.7, 0.7], [0.4, 0.4]],
    ),
    "mixture-stiff": (("ve", 10.0, 0.1), [0.3, 0.7], [[-3.0], [3.0]], [[0.4], [0.4]]),
    "mixture-ends": (("flow", 1.0, 0.0), *LINE),
}  # fmt: skip
"""The diffusions of the bank: geometry and ends of the schedule, weights, means, standard deviations."""


@pytest.mark.parametrize("problem", [p for p in BANK if p.name in DEFINITIONS], ids=lambda problem: problem.name)
def test_the_bank_does_not_change(problem):
    """Published slopes refer to it. The denoiser is written out with loops, the starting points by what they mean."""
    (geometry, t_noise, t_clean), weights, means, stds = DEFINITIONS[problem.name]
    schedule = problem.setting
    assert (schedule.geometry, schedule.t_noise, schedule.t_clean) == (geometry, t_noise, t_clean)
    a, s = 0.8, 0.6
    for x in np.random.default_rng(3).normal(size=(4, len(means[0]))):
        share, value = [], []
        for w, m, d in zip(weights, means, stds, strict=True):
            total = [(a * dk) ** 2 + s**2 for dk in d]
            exponent = sum((xk - a * mk) ** 2 / tk for xk, mk, tk in zip(x, m, total, strict=True))
            share.append(w * math.exp(-exponent / 2) / math.sqrt(math.prod(total)))
            value.append([mk + a * dk**2 / tk * (xk - a * mk) for xk, mk, dk, tk in zip(x, m, d, total, strict=True)])
        expected = np.asarray(share) @ np.asarray(value) / sum(share)
        np.testing.assert_allclose(problem.denoise(x, Level(0.5, a, s)), expected, rtol=1e-12)
    start = schedule.level(t_noise)
    mean, spread = start.alpha * np.asarray(means), np.hypot(start.alpha * np.asarray(stds), start.sigma)
    if len(weights) == 1:
        np.testing.assert_allclose(problem.x, mean + spread * np.asarray([[-1.5], [0.0], [1.5]]), rtol=1e-14)
    elif problem.name == "mixture-plane":
        assert problem.x.tolist() == [[0.5, 0.4], [-1.2, 1.9], [0.3, -2.2], [2.5, 0.1]]
    elif problem.name == "mixture-stiff":
        assert problem.reference.ravel().tolist() == [-1.6, 1.5, 3.1]
    else:
        z = (problem.x.ravel() - start.alpha * 0.75) / np.hypot(start.alpha * 1.3, start.sigma)
        np.testing.assert_allclose(z, [-1.3, -0.4, 0.2, 0.9], rtol=1e-12)


def test_the_equations_of_the_bank():
    expected = {
        "forward": (-1.0, 2.0, 1.0, 0.0, 2.0),
        "backward": (-1.0, 2.0, 1.0, 2.0, 0.0),
        "stiff": (-1e4, 0.0, 0.0, 0.0, 2.0),
    }
    for name, numbers in expected.items():
        (problem,) = problems(f"semilinear-{name}")
        equation = problem.setting
        parameters = (equation.rate_mean, equation.rate_wave, equation.coupling, equation.t0, equation.t1)
        assert tuple(map(float, parameters)) == numbers
        np.testing.assert_allclose(problem.x, np.cos(equation.t0 + equation.phases)[None], rtol=1e-15)
        np.testing.assert_allclose(problem.reference, np.cos(equation.t1 + equation.phases)[None], rtol=1e-15)


@pytest.mark.claim("convergence-order")
def test_the_stiff_equation_is_solved_by_its_own_path():
    """Prothero and Robinson's equation: with the linear part exact, order 2 shows at steps that make Euler explode."""
    (problem,) = problems("semilinear-stiff")
    result = study(
        lambda n: solvers.ab2(problem.denoise, problem.x, problem.path(problem.grid(n))),
        (24, 48, 96),
        problem.reference,
    )
    assert result.order == pytest.approx(2.0, abs=SLOPE)

    def whole(y, level):
        return problem.denoise(y, level) + problem.setting.rate(level.t) * y

    explicit = solvers.ab1(whole, problem.x, paths.semilinear(problem.grid(24)))
    assert np.max(np.abs(explicit)) > 1e6


def test_grids_of_a_problem():
    (ve,), (ends,), (equation,) = problems("mixture-ve"), problems("mixture-ends"), problems("semilinear-backward")
    np.testing.assert_array_equal(ve.grid(12, "karras"), grids.karras(ve.setting, 12))
    np.testing.assert_array_equal(ve.grid(12), random_ratio_grid(ve.setting, 12))
    np.testing.assert_array_equal(ends.grid(12), random_ratio_grid(ends.setting, 12, coordinate="angle"))
    np.testing.assert_array_equal(equation.grid(12), random_ratio_nodes(2.0, 0.0, 12))
    np.testing.assert_allclose(equation.grid(4, "uniform"), [2.0, 1.5, 1.0, 0.5, 0.0], rtol=1e-15)
    graded = np.diff(equation.grid(100, "karras"))
    assert graded[-1] / graded[0] == pytest.approx(3.0, rel=0.02)
    assert np.max(np.abs(np.diff(graded, 2))) < 1e-12
    assert equation.grid(3, "karras")[-1] == pytest.approx(0.0, abs=1e-15)
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'log'"):
        ve.grid(4, "log")


@pytest.mark.claim("convergence-order")
@pytest.mark.parametrize("problem", [p for p in BANK if "stiff" not in p.tags], ids=lambda problem: problem.name)
@pytest.mark.parametrize("name", ["ab2", "ab4"])
def test_orders_on_the_bank(problem, name):
    order = SAMPLERS[name]
    result = study(
        lambda n: getattr(solvers, name)(problem.denoise, problem.x, problem.path(problem.grid(n))),
        (48, 96, 192, 384), problem.reference,
    )  # fmt: skip
    assert result.order == pytest.approx(order, abs=0.15 if order == 4 else SLOPE)


# -- check_sampler ----------------------------------------------------------------------------------------------------


def fixed_weights(denoise, x, path):
    """Broken: second order with the weights 3/2 and -1/2 whatever the ratio of the steps."""
    before = None
    for i in range(path.steps):
        a, b = (Level(*(part[i] for part in level)) for level in (path.start, path.stop))
        now = denoise(x, a)
        mixed = now if before is None else 1.5 * now - 0.5 * before
        x = b.sigma / a.sigma * x + (b.alpha - b.sigma / a.sigma * a.alpha) * mixed
        before = now
    return x


def right_weights(denoise, x, path):
    """The same with the ratio of the steps in log-SNR."""
    before = last = None
    for i in range(path.steps):
        a, b = (Level(*(part[i] for part in level)) for level in (path.start, path.stop))
        now, h = denoise(x, a), b.log_snr - a.log_snr
        mixed = now if before is None else now + h / (2.0 * last) * (now - before)
        x = b.sigma / a.sigma * x + (b.alpha - b.sigma / a.sigma * a.alpha) * mixed
        before, last = now, h
    return x


def present_alpha(denoise, x, path):
    """Broken: DDIM with alpha_t where alpha_s belongs."""
    for i in range(path.steps):
        a, b = (Level(*(part[i] for part in level)) for level in (path.start, path.stop))
        clean = denoise(x, a)
        x = a.alpha * clean + b.sigma * (x - a.alpha * clean) / a.sigma
    return x


def ramp(denoise, x, path):
    """Order 3 started with orders 1 and 2."""
    return solvers.solve(denoise, x, solvers.adams_bashforth(path, 3, start="ramp"))


def lacking_half(denoise, x, path):
    """Broken: order 3 without the second half of the divided difference, as in a published sampler."""
    history = []
    for i in range(path.steps):
        a, b = (Level(*(part[i] for part in level)) for level in (path.start, path.stop))
        now, h = denoise(x, a), float(b.log_snr - a.log_snr)
        base = b.sigma / a.sigma * x
        weights = [b.alpha * h * math.factorial(j) * float(phi(j + 1, -h)) for j in range(3)]
        if i == 0:
            middle = path.at(np.asarray(a.log_snr + h / 2))
            x_middle = middle.sigma / a.sigma * x + (middle.alpha - middle.sigma / a.sigma * a.alpha) * now
            slope = (denoise(x_middle, middle) - now) * 2.0
            x = base + weights[0] * now + weights[1] * slope
            history.append((h, now))
            continue
        (h0, before), *older = history[::-1]
        first = (now - before) / h0
        second = 0.0
        if older:
            h1, oldest = older[0]
            second = 0.5 * (first - (before - oldest) / h1) / (h0 + h1)
        slope = first + h0 * second
        x = base + weights[0] * now + weights[1] * h * slope + weights[2] * h**2 * second
        history.append((h, now))
    return x


def frozen_rate(denoise, y, path):
    """Broken: exponential Adams-Bashforth of order 2 with the rate of the step's start."""
    rate = problems("semilinear-forward")[0].setting.rate
    before = last = None
    for t, s in zip(path.start.t, path.stop.t, strict=True):
        h, a = s - t, float(rate(t))
        now = denoise(y, Level(t, 1.0, 1.0)) + (float(rate(t)) - a) * y
        slope = 0.0 * now if before is None else (now - before) / last
        y = math.exp(a * h) * y + h * float(phi(1, a * h)) * now + h * h * float(phi(2, a * h)) * slope
        before, last = now, h
    return y


def integrated_rate(denoise, y, path):
    return solvers.ab2(denoise, y, path)


@pytest.mark.claim("convergence-claim")
@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_librarys_samplers_are_what_they_claim(name):
    order = SAMPLERS[name]
    studies = check_sampler(getattr(solvers, name), order=order, strict=True, steps=(48, 96, 192, 384))
    assert list(studies) == ["uniform_log_snr", "karras", "random_ratio"]
    assert all(abs(s.order - order) < 0.15 for s in studies.values())
    with pytest.raises(OrderError, match=f"claims order {order + 1}"):
        check_sampler(getattr(solvers, name), order=order + 1, steps=STEPS, kinds=("karras",))


@pytest.mark.claim("convergence-claim")
def test_fixed_weights_pass_on_smooth_grids_and_fail_on_ratios():
    check_sampler(fixed_weights, order=2, kinds=("uniform_log_snr", "karras"), steps=STEPS)
    with pytest.raises(OrderError, match="ignore the ratio of neighbouring steps, or take a wrong one") as caught:
        check_sampler(fixed_weights, order=2, steps=STEPS)
    studies = caught.value.studies
    assert studies["random_ratio"].order == pytest.approx(1.0, abs=SLOPE)
    assert studies["karras"].order == pytest.approx(2.0, abs=SLOPE)
    message = str(caught.value)
    assert "fixed_weights claims order 2; on mixture-vp it misses that on 1 of 3 grids" in message
    assert "random_ratio: FAILS" in message
    assert "karras: passes" in message
    assert str(studies["random_ratio"]) in message
    check_sampler(right_weights, order=2, steps=STEPS)


@pytest.mark.claim("convergence-claim")
def test_the_ramp_fails_where_the_denoiser_varies_and_hides_where_it_does_not():
    with pytest.raises(OrderError, match="a start by lower orders") as caught:
        check_sampler(ramp, order=3, steps=STEPS, kinds=("uniform_log_snr",))
    assert caught.value.studies["uniform_log_snr"].order == pytest.approx(2.0, abs=SLOPE)
    (mild,) = problems("mixture-ve")
    far = dataclasses.replace(mild, **_problems._line(schedules.edm(sigma_min=0.1, sigma_max=80.0), *_problems.MIXTURE))
    hidden = check_sampler(ramp, order=2, problem=far, steps=(16, 32, 64), kinds=("uniform_log_snr",), tolerance=9.0)
    assert hidden["uniform_log_snr"].slopes[-1] > 2.5


@pytest.mark.claim("convergence-claim")
def test_order_three_without_a_half_is_order_two():
    with pytest.raises(OrderError, match="lacks a factor") as caught:
        check_sampler(lacking_half, order=3, steps=STEPS, kinds=("uniform_log_snr", "random_ratio"))
    for result in caught.value.studies.values():
        assert result.order == pytest.approx(2.0, abs=0.2)


@pytest.mark.claim("convergence-claim")
def test_the_wrong_alpha_fails_but_hides_where_alpha_is_one():
    with pytest.raises(OrderError, match="the error does not fall"):
        check_sampler(present_alpha, order=1, steps=STEPS)
    check_sampler(present_alpha, order=1, steps=STEPS, problem="mixture-ve")
    check_sampler(solvers.ab1, order=1, steps=STEPS)


@pytest.mark.claim("convergence-claim")
def test_a_frozen_rate_fails():
    options = {"problem": "semilinear-forward", "steps": STEPS, "kinds": ("karras", "random_ratio")}
    with pytest.raises(OrderError, match="a rate frozen at one end") as caught:
        check_sampler(frozen_rate, order=2, **options)
    assert caught.value.studies["karras"].order == pytest.approx(1.0, abs=SLOPE)
    check_sampler(integrated_rate, order=2, **options)


@pytest.mark.claim("convergence-claim")
def test_unit_variance_hides_a_broken_solver():
    studies = check_sampler(twice_the_step, order=4, problem="gaussian-unit", steps=STEPS, kinds=("karras",))
    assert studies["karras"].order == math.inf
    with pytest.raises(OrderError, match="the error does not fall"):
        check_sampler(twice_the_step, order=1, problem="gaussian-vp", steps=STEPS, kinds=("karras",))


def test_strict_refuses_more_than_the_claim():
    check_sampler(solvers.ab2, order=1, steps=STEPS, kinds=("karras",))
    with pytest.raises(OrderError, match="the order is higher than claimed"):
        check_sampler(solvers.ab2, order=1, steps=STEPS, kinds=("karras",), strict=True)


@pytest.mark.parametrize(
    "order, slope, passes",
    [(1, 0.91, True), (1, 0.89, False), (3, 2.91, True), (3, 2.89, False), (4, 3.86, True), (4, 3.84, False)],
)
def test_tolerances(order, slope, passes):
    """A sampler that errs by a prescribed power."""
    (problem,) = problems("mixture-vp")

    def sampler(denoise, x, path):
        return problem.reference + path.steps**-slope

    options = {"order": order, "steps": (10, 20, 40), "kinds": ("karras",)}
    if passes:
        check_sampler(sampler, **options)
        with pytest.raises(OrderError):
            check_sampler(sampler, **options, tolerance=0.05)
    else:
        with pytest.raises(OrderError):
            check_sampler(sampler, **options)
        check_sampler(sampler, **options, tolerance=0.2)


@pytest.mark.parametrize(
    "order, errors, cause",
    [
        (2, (1.0, 0.5, math.nan), "the result is not finite"),
        (2, (1.0, 2.0, 4.0), "the error grows"),
        (2, (1.0, 1.1, 1.0), "the error does not fall"),
        (2, (1.0, 0.5, 0.1), "the slopes have not settled"),
        (2, (1.0, 0.25, 0.125), "order 1 where more is claimed"),
        (3, (1.0, 0.125, 0.03), "order 2 and no more"),
        (2, (1.0, 0.5, 0.25), "order 1 where more is claimed"),
        (3, (1.0, 0.25, 0.0625), "order 2 and no more"),
        (3, (1.0, 0.5, 0.25), "order 1 where more is claimed"),
    ],
)
def test_causes(order, errors, cause):
    (problem,) = problems("mixture-vp")
    table = dict(zip((10, 20, 40), errors, strict=True))

    class Sampler:
        def __call__(self, denoise, x, path):  # noqa: ARG002
            return problem.reference + table[path.steps]

        def __repr__(self):
            return "<my sampler>"

    with pytest.raises(OrderError, match=cause) as caught:
        check_sampler(Sampler(), order=order, steps=(10, 20, 40), kinds=("karras", "random_ratio"))
    assert str(caught.value).startswith("<my sampler> claims order")
    assert isinstance(caught.value, AssertionError)


@pytest.mark.claim("convergence-claim")
def test_weak_orders():
    """ab1 and ab2 with noise; the loop of DDPM, of the literature; and the same with a wrong variance."""
    options = {"weak": True, "steps": STEPS, "kinds": ("random_ratio",)}

    def noisy(schedule, t):
        return paths.x0(schedule, t, eta=1.0)

    for name, order in {"ab1": 1, "ab2": 2}.items():
        studies = check_sampler(getattr(solvers, name), order=order, path=noisy, strict=True, **options)
        assert studies["random_ratio"].order == pytest.approx(order, abs=SLOPE)
    check_sampler(ancestral_by_hand, order=1, strict=True, **options)
    with pytest.raises(OrderError, match="claims weak order 2; on gaussian-vp"):
        check_sampler(ancestral_by_hand, order=2, **options)

    def louder(denoise, x, path, rng):
        return ancestral_by_hand(denoise, x, path, lambda row, like: 1.1 * rng(row, like))

    with pytest.raises(OrderError, match="a wrong noise variance"):
        check_sampler(louder, order=1, **options)
    with pytest.raises(ValueError, match="problem must be a Gaussian one for weak orders, got mixture-ve"):
        check_sampler(ancestral_by_hand, order=1, problem="mixture-ve", **options)
    with pytest.raises(ValueError, match="problem must be a Gaussian one for weak orders"):
        check_sampler(ancestral_by_hand, order=1, problem="semilinear-forward", **options)


def test_a_sampler_of_torch():
    torch = pytest.importorskip("torch")
    seen = []

    def sampler(denoise, x, path):
        seen.append(x)
        return right_weights(denoise, x, path)

    check_sampler(sampler, order=2, steps=(12, 24, 48), kinds=("karras",), asarray=torch.asarray)
    assert all(isinstance(x, torch.Tensor) for x in seen)
    with pytest.raises(OrderError):
        check_sampler(fixed_weights, order=2, steps=(12, 24, 48), kinds=("random_ratio",), asarray=torch.asarray)


def test_a_compiled_sampler_of_jax():
    jax = pytest.importorskip("jax")

    def sampler(denoise, x, path):
        assert isinstance(x, jax.Array)
        return jax.jit(lambda x: solvers.ab2(denoise, x, path))(x)

    check_sampler(sampler, order=2, steps=(24, 48, 96), kinds=("karras",), asarray=jax.numpy.asarray)


def test_other_problems_and_paths():
    seen = []

    def path(schedule, t):
        seen.append(schedule)
        return paths.noise(schedule, t, coordinate="ratio")

    (problem,) = problems("mixture-plane")
    assert isinstance(problem, Problem)
    check_sampler(solvers.ab2, order=2, problem=problem, path=path, steps=STEPS, kinds=("karras",))
    assert seen == [problem.setting] * len(STEPS)
    check_sampler(solvers.ab2, order=2, problem="semilinear-forward", path=path, steps=STEPS, kinds=("karras",))
    assert len(seen) == len(STEPS), "an equation has its own path"


def test_defaults_of_the_check():
    """Three grids, 24 to 384 steps, the problem whose alpha varies; Gaussian for weak orders."""
    seen = []
    (mixture,) = problems("mixture-vp")

    def sampler(denoise, x, path):
        seen.append((path.steps, float(path.first.t), x.shape))
        return mixture.reference + path.steps**-1.0

    assert list(check_sampler(sampler, order=1)) == ["uniform_log_snr", "karras", "random_ratio"]
    assert seen == [(n, 0.7, (4, 1)) for n in (24, 48, 96, 192, 384)] * 3

    def still(denoise, x, path):
        seen.append(x.shape)
        return x

    with pytest.raises(OrderError, match="on gaussian-vp"):
        check_sampler(still, order=1, weak=True)
    assert seen[-1] == (16, 3)


CAUSES = {"steps": (12, 24, 48), "kinds": ("karras",)}


def test_what_was_seen_of_a_run_comes_before_guesses():
    """Each failed check names what the runs themselves show: dtype, noise of its own, no noise, NaN, sigma alone."""

    def single(denoise, x, path):
        return present_alpha(denoise, x, path).astype(np.float32)

    with pytest.raises(
        OrderError, match=r"Likely cause: the result is float32, .*jax_enable_x64\)\. If .* does not fall"
    ):
        check_sampler(single, order=1, **CAUSES)
    with pytest.raises(OrderError) as caught:
        check_sampler(present_alpha, order=1, **CAUSES)
    message = str(caught.value)
    assert "Likely cause: the error does not fall" in message, "float64, and no noise"
    for part in ("wrong sign or constant factor", "problem='mixture-ve'", "a wrong noise variance"):
        assert part in message
    source = np.random.default_rng(0)

    def own_noise(denoise, x, path):
        return ancestral_by_hand(denoise, x, path, lambda row, like: source.standard_normal(like.shape))

    with pytest.raises(OrderError, match=r"Likely cause: two runs differ, so it draws noise of its own: .* weak=True"):
        check_sampler(own_noise, order=1, **CAUSES)
    with pytest.raises(ValueError, match="all of its noise from rng"):
        check_sampler(own_noise, order=1, weak=True, **CAUSES)

    def silent(denoise, x, path, rng):
        return ancestral_by_hand(denoise, x, path, lambda row, like: 0.0 * like)

    with pytest.raises(OrderError, match="Likely cause: it drew nothing from rng"):
        check_sampler(silent, order=1, weak=True, **CAUSES)

    def loud(denoise, x, path, rng):
        return ancestral_by_hand(denoise, x, path, lambda row, like: 1.5 * rng(row, like))

    with pytest.raises(OrderError, match="Likely cause: the error does not fall"):
        check_sampler(loud, order=1, weak=True, **CAUSES)
    with pytest.raises(OrderError, match=r"3 of 3 errors are not finite[^\0]*no result is finite, whatever the number"):
        check_sampler(lambda denoise, x, path: x * math.nan, order=1, **CAUSES)
    for wrong, cause in ((-1.0, "a wrong sign or constant factor"), (1.5, "a wrong sign or constant factor")):
        with pytest.raises(OrderError, match=cause):
            check_sampler(lambda denoise, x, path, c=wrong: solvers.ab2(lambda y, l: c * denoise(y, l), x, path), order=2, **CAUSES)  # fmt: skip  # noqa: E501, E741


def test_the_repeated_run_is_the_coarsest_of_a_failed_grid():
    seen = []

    def sampler(denoise, x, path):
        seen.append(path.steps)
        return problems("mixture-vp")[0].reference + 1.0

    with pytest.raises(OrderError):
        check_sampler(sampler, order=1, **CAUSES)
    assert seen == [12, 24, 48, 12, 12]


def test_noise_is_checked_as_such():
    def ancestral(denoise, x, path, rng):
        return ancestral_by_hand(denoise, x, path, rng)

    with pytest.raises(TypeError, match="sampler must not require rng where weak is False, got ancestral; weak=True"):
        check_sampler(ancestral, order=1)
    with pytest.raises(ValueError, match=r"path must be an ODE path where weak is False, got x0.*; weak=True"):
        check_sampler(solvers.ab1, order=1, path=lambda schedule, t: paths.x0(schedule, t, eta=1.0))


def test_entries_of_the_registry_are_samplers():
    entry = samplers.SAMPLERS["dpmpp_2m"]
    studies = check_sampler(entry, order=2, **CAUSES | {"steps": STEPS})
    by_hand = check_sampler(
        lambda denoise, x, path: solvers.solve(denoise, x, entry.method(path)), order=2, path=entry.path,
        **CAUSES | {"steps": STEPS},
    )  # fmt: skip
    assert studies == by_hand
    check_sampler(samplers.SAMPLERS["ddpm"], order=1, weak=True, **CAUSES | {"steps": STEPS})
    check_sampler(samplers.SAMPLERS["sde_dpmpp_2m"], order=2, weak=True, **CAUSES | {"steps": STEPS})
    with pytest.raises(OrderError, match=r"DPM-Solver\+\+\(2M\) claims order 3"):
        check_sampler(entry, order=3, **CAUSES)
    with pytest.raises(ValueError, match=r"path must be an ODE path .* weak=True"):
        check_sampler(samplers.SAMPLERS["ddpm"], order=1)


def test_no_negative_zero_is_printed():
    text = str(measured(1.0, 1.0 + 1e-9, 1.0 + 2e-9, 1.0 + 3e-9, steps=(1, 2, 4, 8)))
    assert "-0.000" not in text
    assert "order 0.000" in text
    assert " -0.001" in str(measured(1.0, 2.0**0.001, 2.0**0.002, 2.0**0.003, steps=(1, 2, 4, 8)))


@pytest.mark.parametrize("order", [0, -1, 1.5, True, "2"])
def test_bad_orders(order):
    with pytest.raises(ValueError, match="order must be an integer >= 1"):
        check_sampler(solvers.ab1, order=order)


def test_moments_is_a_pair():
    mean, std = Moments(1.0, 2.0)
    assert (mean, std) == (1.0, 2.0)
    assert float(ndtr(0.0)) == 0.5


def test_a_sampler_that_works_in_place_leaves_the_bank_alone():
    def in_place(denoise, x, path):
        start, stop = path.start, path.stop
        for t, alpha, sigma, after, noise in zip(*start, stop.alpha, stop.sigma, strict=True):
            value = denoise(x, Level(t, alpha, sigma))
            x *= noise / sigma
            x += (after - alpha * noise / sigma) * value
        return x

    check_sampler(in_place, order=1)
    check_sampler(solvers.ab1, order=1)


def test_shapes_that_do_not_fit_are_no_errors_of_the_method():
    with pytest.raises(ValueError, match="sampler must return the shape of x"):
        check_sampler(lambda denoise, x, path: solvers.ab1(denoise, x, path).ravel(), order=1)
    column = np.array([[1.0], [2.0]])
    with pytest.raises(ValueError, match=r"run\(n\) must fit the shape"):
        study(lambda n: column + n**-2.0, [10, 20, 40, 80], np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="reference must be finite"):
        study(lambda n: 1 / n, [10, 20, 40], np.inf)
    for floor in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="floor"):
            study(lambda n: 1 / n, [10, 20, 40], 0.0, floor=floor)


# -- arguments that would pass unseen ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [(), None, "karras", ("karras", "log"), 3, [None]])
def test_check_sampler_needs_grids(kinds):
    """No grid, no failure: an empty sequence would let every sampler pass."""
    with pytest.raises(ValueError, match="kinds must be a sequence of one or more of"):
        check_sampler(solvers.ab1, order=4, kinds=kinds)


@pytest.mark.parametrize("tolerance", [math.inf, math.nan, -0.1, "a"])
def test_check_sampler_needs_a_finite_tolerance(tolerance):
    with pytest.raises(ValueError, match="tolerance must be a finite number >= 0, got"):
        check_sampler(solvers.ab1, order=4, tolerance=tolerance, kinds=("karras",))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"problem": 3}, TypeError, "problem must be a Problem, got int"),
        ({"problem": "hard"}, ValueError, "problem must be a Problem or the name of one, .*, got 'hard'"),
        ({"problem": "multimodal"}, ValueError, "problem must be a Problem or the name of one"),
        ({"path": 3}, TypeError, "path must be a Callable, got int"),
        ({"asarray": "torch"}, TypeError, "asarray must be a Callable, got str"),
        ({"steps": 8}, ValueError, "steps must be at least three increasing integers >= 1, got 8"),
        ({"steps": (8, 16)}, ValueError, "steps must be at least three"),
    ],
)
def test_check_sampler_names_what_is_wrong(options, error, message):
    with pytest.raises(error, match=message):
        check_sampler(solvers.ab1, order=1, **options)


def test_things_that_are_no_sampler():
    with pytest.raises(TypeError, match="sampler must be a Callable, got NoneType"):
        check_sampler(None, order=1)
    with pytest.raises(TypeError, match="sampler must be a Callable, got str"):
        impulse_response("ab1", paths.semilinear(np.asarray([0.0, 1.0])), mean=0.0, std=1.0)
    with pytest.raises(TypeError, match="run must be a Callable, got float"):
        study(3.0, (1, 2, 3), 0.0)
    with pytest.raises(ValueError, match="floor must be a finite number >= 0, got 'a'"):
        study(lambda n: 1.0 / n, (1, 2, 3), 0.0, floor="a")


def law_table():
    edm = schedules.edm()
    return solvers.adams_bashforth(paths.x0(edm, grids.karras(edm, 6), eta=0.5), 2)


@pytest.mark.parametrize(
    ("law", "error", "message"),
    [
        ({"mean": math.nan, "std": 1.0}, ValueError, "mean must be finite, got nan"),
        ({"mean": 0.0, "std": math.inf}, ValueError, "std must be finite, got inf"),
        ({"mean": 0.0, "std": -0.1}, ValueError, r"std must be >= 0, got -0\.1"),
        ({"mean": [0.0, 0.0], "std": [1.0, -1.0]}, ValueError, "std must be >= 0"),
        ({"mean": [0.0, 0.0], "std": [1.0, 1.0, 1.0]}, ValueError, "mean, std must have shapes that broadcast"),
        ({"mean": "a", "std": 1.0}, TypeError, "mean must be real numbers"),
        ({"mean": 0.0, "std": None}, TypeError, "std"),
    ],
)
def test_laws_that_are_none(law, error, message):
    edm = schedules.edm()
    path = paths.x0(edm, grids.karras(edm, 6))
    given = {name: np.asarray(value) if isinstance(value, list) else value for name, value in law.items()}
    if given["std"] is not None:
        with pytest.raises(error, match=message):
            table_moments(law_table(), **given)
        with pytest.raises(error, match=message):
            impulse_response(solvers.ab1, path, **given)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"start_std": -1.0}, "start_std must be >= 0"),
        ({"start_mean": math.nan}, "start_mean must be finite"),
        ({"start_mean": np.zeros(3)}, "must have shapes that broadcast, got"),
    ],
)
def test_starts_that_are_none(start, message):
    with pytest.raises(ValueError, match=message):
        table_moments(law_table(), mean=np.zeros(2), std=1.0, **start)


def test_zero_spread_is_a_law():
    moments = table_moments(law_table(), mean=0.3, std=0.0, start_mean=1.0, start_std=0.0)
    assert np.isfinite(moments.mean)
    assert moments.std > 0.0


def test_impulse_responses_of_another_shape():
    """Broadcasting would turn a wrong shape into a foreign error, or into a wrong answer."""
    edm = schedules.edm()
    path = paths.x0(edm, grids.karras(edm, 6))
    with pytest.raises(ValueError, match=r"sampler must return the shape of x, \(1, 2\), got \(2,\)"):
        impulse_response(lambda denoise, x, path: x[0], path, mean=np.zeros(2), std=1.0)
    with pytest.raises(ValueError, match=r"sampler must draw noise of the shape of x, \(1, 2\), got \(2,\)"):
        impulse_response(lambda denoise, x, path, rng: x + rng(0, x[0]), path, mean=np.zeros(2), std=1.0)
    with pytest.raises(ValueError, match=r"mean and std must be numbers or have shape \(d,\), got \(2, 2\)"):
        impulse_response(solvers.ab1, path, mean=np.zeros((2, 2)), std=1.0)
    with pytest.raises(TypeError, match="path must be a Path, got ndarray"):
        impulse_response(solvers.ab1, np.zeros(3), mean=0.0, std=1.0)


def test_random_grids_of_the_wrong_things():
    with pytest.raises(TypeError, match="schedule must be a Schedule, got str"):
        random_ratio_grid("edm", 8)
    with pytest.raises(ValueError, match="start and stop must be two finite numbers, got 'a' and 1"):
        random_ratio_nodes("a", 1.0, 8)


def test_no_variance_has_a_derivative():
    """One datum, started where it is: the deviation is 0 for every grid, and so is its slope; a root's would be NaN."""
    jax = pytest.importorskip("jax")
    edm = schedules.edm()

    def deviation(t):
        table = solvers.adams_bashforth(paths.x0(edm, t), 1)
        return table_moments(table, mean=0.7, std=0.0, start_mean=0.7, start_std=0.0).std

    value, slope = jax.value_and_grad(deviation)(jax.numpy.asarray([10.0, 3.0, 1.0]))
    assert value == 0.0
    np.testing.assert_array_equal(slope, 0.0)
