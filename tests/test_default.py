"""The default sampler: grid and method transcribed, its order, exactness, and the figures it was chosen by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.optimize import brentq
from scipy.special import ndtr

from diffnum import convergence, grids, oracles, paths, schedules
from diffnum._default import _method
from diffnum.schedules import Schedule
from diffnum.solvers import ab2, adams_moulton, assemble, default, default_grid, default_table, solve

SCHEDULES = {
    "edm": schedules.edm(),
    "edm to 0": schedules.edm(sigma_min=0.0),
    "flow": schedules.rectified_flow(),
    "cosine": schedules.cosine(),
    "vp": schedules.vp_linear(),
}
GRID = 1e-13
"""Relative to each node: some hundred roundings of float64, against 50 digits."""
EXACT = 1e-12
"""Relative: some tens of roundings a step."""
WEIGHT = 1e-12
"""Relative: the same weights, summed in another order."""
ORDER = (2.8, 3.3)
"""Local slopes of a method of order 3; order 2 gives 2.0, order 4 gives 4.0."""
SINGLE = 2e-5
"""Relative to the size of x: float32 over ten steps."""

BEST_PEER = {"mixture": {10: 0.05819, 20: 0.02543, 40: 0.00506}}
"""Least RMS error of k-diffusion and diffusers, measured by ``make bench-peers``."""
GOAL = {10: 1 / 2, 20: 1 / 5, 40: 1 / 5}
HELD_OUT = 1 / 5
"""Ratio to the same method on the grid of Karras; the least measured is a tenth of that of peers."""


def naive_grid(
    schedule: Schedule, steps: int, sigma_data: float, *, k: float = 1.25, c: float | None = None
) -> list[float]:
    """The definition, in 50 digits, from alpha and sigma of the ends; a node is found by its ratio."""
    with mp.workdps(50):
        scale = mp.mpf(sigma_data) * (mp.sqrt(mp.mpf(1) / 2) if c is None else mp.mpf(c))

        def angle(t: float) -> Any:
            level = schedule.level(np.asarray(t))
            alpha, sigma = mp.mpf(float(level.alpha)), mp.mpf(float(level.sigma))
            return mp.pi / 2 if alpha == 0 else mp.atan((sigma / (alpha * scale)) ** (1 / mp.mpf(k)))

        noise, clean = angle(schedule.t_noise), angle(schedule.t_clean)
        inner = [scale * mp.tan(noise + (clean - noise) * i / steps) ** mp.mpf(k) for i in range(1, steps)]
        return [float(ratio) for ratio in inner]


def ratios(schedule: Schedule, t: np.ndarray) -> np.ndarray:
    level = schedule.level(t)
    return level.sigma / level.alpha


# -- the grid ----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("solvers-default-grid")
@pytest.mark.parametrize("sigma_data", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_grid_is_the_definition(name, sigma_data):
    schedule = SCHEDULES[name]
    t = default_grid(schedule, 9, sigma_data=sigma_data)
    assert t.shape == (10,)
    assert t.dtype == np.float64
    assert (t[0], t[-1]) == (schedule.t_noise, schedule.t_clean)
    assert np.all(np.diff(t) < 0.0)
    np.testing.assert_allclose(ratios(schedule, t[1:-1]), naive_grid(schedule, 9, sigma_data), rtol=3e-12)
    for wrong in ({"k": 1.0}, {"c": 1.0}):
        other = naive_grid(schedule, 9, sigma_data, **wrong)
        assert not np.allclose(ratios(schedule, t[1:-1]), other, rtol=1e-2)


def test_grid_is_accurate_at_both_ends():
    """Time of the EDM schedule is the ratio itself: nothing but the grid's own rounding."""
    schedule = schedules.edm(sigma_min=1e-6, sigma_max=1e6)
    t = default_grid(schedule, 300)
    np.testing.assert_allclose(t[1:-1], naive_grid(schedule, 300, 1.0), rtol=GRID)


@pytest.mark.claim("solvers-default-grid")
def test_grid_with_exponent_1_would_be_the_uniform_angle():
    schedule = SCHEDULES["edm"]
    plain = grids.uniform_angle(schedule, 9, sigma_data=2.0 * math.sqrt(0.5))
    np.testing.assert_allclose(plain[1:-1], naive_grid(schedule, 9, 2.0, k=1.0), rtol=GRID)


def test_grid_follows_the_scale_of_the_data():
    """Data twice as large, noise twice as large: nodes twice as large."""
    one = default_grid(schedules.edm(sigma_min=0.01, sigma_max=10.0), 8, sigma_data=0.7)
    two = default_grid(schedules.edm(sigma_min=0.02, sigma_max=20.0), 8, sigma_data=1.4)
    np.testing.assert_allclose(two, 2.0 * one, rtol=GRID)
    same = default_grid(schedules.edm(sigma_min=0.02, sigma_max=20.0), 8, sigma_data=0.7)
    assert not np.allclose(same, 2.0 * one, rtol=1e-2)


def test_one_step_goes_from_end_to_end():
    assert default_grid(SCHEDULES["flow"], 1).tolist() == [1.0, 0.0]


# -- the method --------------------------------------------------------------------------------------------------------


def integral_of_basis(nodes: np.ndarray, j: int, a: float, b: float) -> float:
    """Integral of a Lagrange polynomial, by its coefficients."""
    others = np.delete(nodes, j)
    basis = np.poly1d(others, r=True) / np.prod(nodes[j] - others)
    whole = basis.integ()
    return float(whole(b) - whole(a))


@pytest.mark.claim("solvers-default")
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9])
def test_method_is_predict_evaluate_correct(steps):
    """Transcribed with two states: what the table does with one."""
    schedule, sd, centre = SCHEDULES["edm"], 1.7, 0.4
    t = default_grid(schedule, steps, sigma_data=sd)

    def denoise(x, level):
        return np.sin(1.3 * x) + 0.2 * float(level.sigma)

    theta = [math.atan2(sigma, sd) for sigma in t]
    norm = [math.hypot(sigma, sd) for sigma in t]
    y = np.array([1.1, -20.0, 37.0])
    got = default(denoise, y, schedule, steps, sigma_data=sd, centre=centre, trajectory=True)
    corrected, states, values = (y - centre) / norm[0], [y], []
    predicted = corrected
    for n in range(steps):
        x = predicted * norm[n] + centre
        data = (denoise(x, schedule.level(np.asarray(t[n]))) - centre) / sd
        values.append((math.cos(theta[n]) * predicted - data) / math.sin(theta[n]))
        if n > 0:
            used = list(range(max(0, n - 4), n + 1))
            corrected = corrected + sum(
                integral_of_basis(np.array(theta)[used], i, theta[n - 1], theta[n]) * values[j]
                for i, j in enumerate(used)
            )
        used = list(range(max(0, n - (1 if n < 3 or n >= steps - 2 else 2)), n + 1))
        predicted = corrected + sum(
            integral_of_basis(np.array(theta)[used], i, theta[n], theta[n + 1]) * values[j] for i, j in enumerate(used)
        )
        states.append(predicted * norm[n + 1] + centre)
    np.testing.assert_allclose(got, np.stack(states), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SCHEDULES)
def test_first_steps_are_those_of_adams_moulton_with_a_ramp(name):
    """Until a third value could predict and a fourth correct, the method is that of order 3."""
    schedule = SCHEDULES[name]
    path = paths.velocity(schedule, default_grid(schedule, 8, sigma_data=0.5), sigma_data=0.5)
    table = default_table(schedule, 8, sigma_data=0.5)
    assert (table.steps, table.evaluations, table.weights.shape[1]) == (8, 8, 5)
    expected = adams_moulton(path, 3, start="ramp")
    x, data = np.array([0.3, 40.0]), lambda y, level: np.sin(y) / (1.0 + level.sigma)
    mine, theirs = (solve(data, x, t, trajectory=True) for t in (table, expected))
    np.testing.assert_allclose(mine[:4], theirs[:4], rtol=WEIGHT, atol=WEIGHT)
    assert not np.allclose(mine[4], theirs[4], rtol=1e-6)


@pytest.mark.claim("solvers-default")
def test_a_third_value_at_the_ends_does_harm():
    """Half of the gain on two problems; the order stays, and a corrector of order 2 would lose it."""
    edm = schedules.edm(sigma_min=0.0)
    for name, gain in {"mixture": 1.1, "unequal pair": 1.4}.items():
        denoise, sd, x, exact = on_the_line(MIXTURES[name], (1.0, 80.0), (1.0, 0.0), 101)
        path = paths.velocity(edm, default_grid(edm, 20, sigma_data=sd), sigma_data=sd)
        plain = [_method(n, 10**6)._replace(nodes=(tuple(-j for j in range(min(n + 1, 3))),)) for n in range(20)]
        error = rms(solve(denoise, x, assemble(path, plain)), exact)
        assert error > gain * rms(default(denoise, x, edm, 20, sigma_data=sd), exact)


@pytest.mark.parametrize("steps", range(1, 13))
def test_evaluations_are_the_steps(steps):
    calls = []

    def denoise(x, level):
        calls.append(float(level.t))
        return 0.0 * x

    default(denoise, np.ones(2), SCHEDULES["edm"], steps)
    np.testing.assert_array_equal(calls, default_grid(SCHEDULES["edm"], steps)[:-1])


def quantile(share: float, mixture: tuple, noise: float, alpha: float = 1.0) -> float:
    """Where the distribution function of alpha x_0 + noise eps is `share`."""
    w, m, s = (np.asarray(part) for part in mixture)

    def above(x: float) -> float:
        return float(w @ ndtr((x - alpha * m) / np.hypot(alpha * s, noise))) - share

    return brentq(above, -1e4, 1e4, xtol=1e-14, rtol=1e-15)


def on_the_line(mixture: tuple, start: tuple[float, float], stop: tuple[float, float], count: int) -> tuple:
    """Denoiser, standard deviation, starts and ends; levels are pairs of alpha and sigma. The flow keeps quantiles."""
    w, m, s = (np.asarray(part) for part in mixture)
    shares = (np.arange(count) + 0.5) / count
    x, exact = (np.array([[quantile(p, mixture, sigma, alpha)] for p in shares]) for alpha, sigma in (start, stop))
    return oracles.mixture(w, m[:, None], s).denoise, float(np.sqrt(w @ (m**2 + s**2) - (w @ m) ** 2)), x, exact


MIXTURES = {
    "mixture": ((0.5, 0.5), (-3.0, 3.0), (0.5, 0.5)),
    "unequal pair": ((0.3, 0.7), (-1.0, 0.6), (0.25, 0.4)),
    "broad pair": ((0.3, 0.7), (-1.0, 1.5), (0.5, 0.7)),
}


def rms(x: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((x - exact) ** 2)))


@pytest.mark.claim("solvers-default")
def test_order_is_3():
    schedule = schedules.truncate(schedules.rectified_flow(), t_clean=0.2, t_noise=0.7)
    denoise, sd, x, exact = on_the_line(MIXTURES["broad pair"], (0.3, 0.7), (0.8, 0.2), 7)
    found = convergence.study(lambda n: default(denoise, x, schedule, n, sigma_data=sd), (40, 80, 160, 320), exact)
    assert ORDER[0] < found.order < ORDER[1], str(found)

    def lower(n: int) -> np.ndarray:
        path = paths.velocity(schedule, default_grid(schedule, n, sigma_data=sd), sigma_data=sd)
        return solve(denoise, x, adams_moulton(path, 2))

    assert not ORDER[0] < convergence.study(lower, (40, 80, 160, 320), exact).order < ORDER[1]


@pytest.mark.claim("paths-gaussian-exact")
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", SCHEDULES)
def test_gaussian_data_of_that_scale_are_exact(name, steps):
    """Affine map of the ends: mean to mean, deviations by the quotient of the standard deviations."""
    schedule, sd, mean = SCHEDULES[name], 1.7, 0.8
    start, stop = (schedule.level(np.asarray(t)) for t in (schedule.t_noise, schedule.t_clean))
    z = np.array([[-1.5], [0.2], [2.0]])
    x, exact = (level.alpha * mean + np.hypot(level.alpha * sd, level.sigma) * z for level in (start, stop))
    data = oracles.gaussian(np.array([mean]), np.array([sd]))
    got = default(data.denoise, x, schedule, steps, sigma_data=sd, centre=mean)
    np.testing.assert_allclose(got, exact, rtol=EXACT, atol=EXACT)
    for wrong in ({"sigma_data": 1.0, "centre": mean}, {"sigma_data": sd}):
        assert not np.allclose(default(data.denoise, x, schedule, steps, **wrong), exact, rtol=1e-4, atol=1e-4)


def test_schedules_agree_where_their_ratios_do():
    """VE, VP and flow between the same ratios sigma/alpha give the same clean sample."""
    denoise, sd, *_ = on_the_line(MIXTURES["broad pair"], (1.0, 20.0), (1.0, 0.01), 3)
    u, got = np.array([[-25.0], [3.0], [17.0]]), []
    for base in (schedules.edm(sigma_min=0.0), schedules.cosine(), schedules.rectified_flow()):
        t_noise, t_clean = (float(base.time(-np.log(np.asarray(ratio)))) for ratio in (20.0, 0.01))
        schedule = schedules.truncate(base, t_noise=t_noise, t_clean=t_clean)
        noise, clean = (schedule.level(np.asarray(t)).alpha for t in (t_noise, t_clean))
        got.append(default(denoise, noise * u, schedule, 12, sigma_data=sd) / clean)
    np.testing.assert_allclose(got[1], got[0], rtol=1e-10)
    np.testing.assert_allclose(got[2], got[0], rtol=1e-10)


# -- what it was chosen for --------------------------------------------------------------------------------------------


@pytest.mark.claim("solvers-default-grid")
@pytest.mark.parametrize("evaluations", GOAL)
def test_error_on_the_mixture_is_a_fraction_of_the_best_peer(evaluations):
    edm = schedules.edm(sigma_min=0.0)
    denoise, sd, x, exact = on_the_line(MIXTURES["mixture"], (1.0, 80.0), (1.0, 0.0), 201)
    bound = GOAL[evaluations] * BEST_PEER["mixture"][evaluations]
    error = rms(default(denoise, x, edm, evaluations, sigma_data=sd), exact)
    assert error <= bound
    karras = np.append(grids.karras(schedules.edm(), evaluations - 1), 0.0)
    for t in (grids.uniform_angle(edm, evaluations, sigma_data=sd), karras):
        other = solve(denoise, x, adams_moulton(paths.velocity(edm, t, sigma_data=sd), 4, start="ramp"))
        assert rms(other, exact) > 1.5 * error


@pytest.mark.parametrize("name", ["unequal pair", "broad pair"])
def test_error_on_mixtures_it_was_not_chosen_on(name):
    """Below that of the same method on the grid of Karras, by more than a factor 5, at each budget."""
    edm = schedules.edm(sigma_min=0.0)
    denoise, sd, x, exact = on_the_line(MIXTURES[name], (1.0, 80.0), (1.0, 0.0), 101)
    for n in GOAL:
        karras = paths.velocity(edm, np.append(grids.karras(schedules.edm(), n - 1), 0.0), sigma_data=sd)
        rival = rms(solve(denoise, x, adams_moulton(karras, 4, start="ramp")), exact)
        assert rms(default(denoise, x, edm, n, sigma_data=sd), exact) < HELD_OUT * rival


@pytest.mark.slow
def test_digits_end_on_the_right_image():
    """Starts near a border go astray: here 4, 1 and 0 of 64, with exact DPM-Solver++(2M) 14, 5 and 4."""
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits().data[:600] / 8.0 - 1.0
    edm, oracle, sd = schedules.edm(sigma_min=0.0), oracles.empirical(data), float(data.std())
    rng = np.random.default_rng(5)
    x = data[rng.integers(len(data), size=64)] + 80.0 * rng.standard_normal((64, 64))

    def image(y: np.ndarray) -> np.ndarray:
        return np.argmin(np.sum((y[:, None] - data) ** 2, axis=-1), axis=1)

    fine = paths.velocity(edm, grids.uniform_angle(edm, 120, sigma_data=sd / 2), sigma_data=sd)
    exact = image(solve(oracle.denoise, x, adams_moulton(fine, 4)))
    for n, astray in {10: 5, 20: 2, 40: 1}.items():
        assert np.sum(image(default(oracle.denoise, x, edm, n, sigma_data=sd)) != exact) <= astray
        karras = paths.x0(edm, np.append(grids.karras(schedules.edm(), n - 1), 0.0))
        assert np.sum(image(ab2(oracle.denoise, x, karras)) != exact) > astray


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_backends_agree_with_numpy(backend, dtype):
    x = np.array([[-30.0, 12.0], [0.5, 80.0]])

    def denoise(x, level):
        return 0.7 * x / (1.0 + level.sigma**2)

    expected = default(denoise, x, SCHEDULES["edm"], 10, sigma_data=0.6)
    got = default(denoise, backend.asarray(x, dtype), SCHEDULES["edm"], 10, sigma_data=0.6)
    assert backend.dtype(got) == dtype
    np.testing.assert_allclose(
        backend.numpy(got), expected, rtol=0.0, atol=(SINGLE if dtype == "float32" else EXACT) * 80.0
    )


def test_jax_compiles_and_differentiates():
    jax = pytest.importorskip("jax")
    x = np.array([0.3, -2.0, 5.0])

    def sample(x, scale=0.9):
        return default(lambda y, level: scale * y / (1.0 + level.sigma**2), x, SCHEDULES["flow"], 6, sigma_data=0.6)

    np.testing.assert_allclose(jax.jit(sample)(jax.numpy.asarray(x)), sample(x), rtol=1e-11)
    slope = jax.grad(lambda c: jax.numpy.sum(sample(jax.numpy.asarray(x), c)))(0.9)
    numeric = (np.sum(sample(x, 0.9 + 1e-6)) - np.sum(sample(x, 0.9 - 1e-6))) / 2e-6
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)
    mapped = jax.vmap(sample)(jax.numpy.asarray(x)[:, None])
    np.testing.assert_allclose(mapped[:, 0], sample(x), rtol=1e-11)


def test_trajectory_and_progress():
    seen = []

    def progress(rows):
        for row in rows:
            seen.append(row)
            yield row

    x = np.array([4.0])
    states = default(lambda y, level: 0.5 * y, x, SCHEDULES["edm"], 5, trajectory=True, progress=progress)
    assert states.shape == (6, 1)
    assert len(seen) == 5
    assert states[-1] == default(lambda y, level: 0.5 * y, x, SCHEDULES["edm"], 5)


@given(bad=st.one_of(st.integers(max_value=0), st.floats(), st.booleans(), st.none(), st.text()))
def test_bad_steps_are_named(bad):
    with pytest.raises(ValueError, match="steps must be an integer >= 1"):
        default_grid(SCHEDULES["edm"], bad)


@given(bad=st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf)))
def test_bad_scales_are_named(bad):
    for call in (default_grid, default_table):
        with pytest.raises(ValueError, match="sigma_data"):
            call(SCHEDULES["edm"], 4, sigma_data=bad)


def test_other_bad_input_is_named():
    with pytest.raises(TypeError, match="schedule"):
        default_grid("edm", 4)
    with pytest.raises(TypeError, match="schedule"):
        default(lambda x, level: x, np.ones(1), 4, 4)
    with pytest.raises(ValueError, match="centre"):
        default_table(SCHEDULES["edm"], 4, centre=math.nan)
    close = schedules.truncate(schedules.edm(), t_clean=1.0, t_noise=1.0 + 1e-14)
    with pytest.raises(ValueError, match="steps must leave nodes"):
        default_grid(close, 1000)
