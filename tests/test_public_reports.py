"""Mistakes that public samplers were reported to make, each as a small problem with a known answer.

On normal data every sampler is an affine map, and on data at a single point order 1 is exact, whatever the grid: the
right values are closed forms. Where it is short the mistake is made here too, and misses them. Reports whose right
value is tested beside the mechanism (orders, weights, churn, shifts, targets, likelihoods) are not repeated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import reference_samplers as published

from diffnum import grids, guidance, parameterization, paths, schedules
from diffnum.samplers import SAMPLERS
from diffnum.schedules import Level, Schedule
from diffnum.solvers import Table, ab1, ab2, adams_bashforth, solve

EXACT = 1e-11
"""Relative: rounding of a few hundred steps."""
MISTAKE = 1e-2
"""What each of the mistakes changes at the least, relative to numbers of size 1."""

MEAN, STD = 0.4, 0.6
X = np.array([-1.1, 0.2, 1.3])
FLOW = schedules.rectified_flow()
EDM = schedules.edm(sigma_min=0.02, sigma_max=20.0)
CHAIN = 1000
BETAS = np.linspace(math.sqrt(0.00085), math.sqrt(0.012), CHAIN) ** 2
TABLE = schedules.from_betas(BETAS)


def gaussian(x: Any, level: Any) -> Any:
    """Denoiser of N(MEAN, STD^2)."""
    _, alpha, sigma = level
    return MEAN + alpha * STD**2 / (alpha**2 * STD**2 + sigma**2) * (x - alpha * MEAN)


def one_point(x: Any, level: Any) -> Any:
    """Denoiser of data that all lie at MEAN."""
    return MEAN + 0.0 * x


def spread(level: Any) -> float:
    """Standard deviation of the noisy normal data."""
    return math.hypot(float(level[1]) * STD, float(level[2]))


def flow_of(x: Any, start: Any, stop: Any) -> Any:
    """Where the ODE takes x between two levels: each point keeps its quantile."""
    return stop[1] * MEAN + spread(stop) / spread(start) * (x - start[1] * MEAN)


def levels_of(schedule: Schedule, t: Any) -> list[published.Point]:
    return [tuple(map(float, parts)) for parts in zip(*schedule.level(np.asarray(t)), strict=True)]


def law_of(table: Table, start: tuple[float, float]) -> tuple[float, float]:
    """Mean and standard deviation of the output from those of the input: all gains from unit inputs, in one run."""

    def unit(number: int) -> np.ndarray:
        z = np.zeros(table.evaluations + 3)
        z[number] = 1.0
        return z

    out = solve(gaussian, unit(1), table, rng=lambda row, like: unit(row + 2))
    gain = out[1] - out[0]
    return float(out[0] + gain * start[0]), float(math.hypot(gain * start[1], np.linalg.norm(out[2:] - out[0])))


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_number_of_steps_ends_on_the_denoised_point(name):
    """diffusers #9007, k-diffusion #72: weights of order 2 with log 0, NaN when the steps are 3n - 1."""
    schedule = schedules.truncate(FLOW, t_noise=0.9)
    for steps in (*range(1, 10), 11, 14, 20):
        seen: list[Any] = []

        def denoise(x: Any, level: Any, seen: list[Any] = seen) -> Any:
            seen.append(gaussian(x, level))
            return seen[-1]

        t = grids.uniform(schedule, steps)
        out = SAMPLERS[name](denoise, X, schedule, t, rng=lambda row, like: 0.1 * np.cos(row + like))
        assert np.all(np.isfinite(out)), steps
        if SAMPLERS[name].where.startswith("x0"):
            np.testing.assert_allclose(out, seen[-1], rtol=1e-13)


@pytest.mark.parametrize("name", ["unipc_2_bh1", "unipc_3_bh1", "unipc_3_bh2"])
def test_predictor_correctors_take_any_number_of_steps(name):
    """Wan2.1 #108: an assertion below 3 steps and above 50. The error falls all the way."""
    exact = float(flow_of(20.0, *levels_of(EDM, [20.0, 0.02])))
    errors = []
    for steps in (1, 2, 3, 4, 10, 49, 50, 51, 52, 120, 200):
        out = SAMPLERS[name](gaussian, np.array([20.0]), EDM, grids.uniform_log_snr(EDM, steps))
        errors.append(abs(float(out[0]) - exact))
    assert np.all(np.isfinite(errors))
    assert errors[-1] < 1e-3 * errors[4]


def test_an_end_that_is_listed_twice_is_refused():
    """diffusers #5433, #5689: the end of Karras' grid appended to it again, a step of length 0."""
    for steps in (20, 80, 320):
        t = grids.karras(EDM, steps)
        assert float(t[-1]) == EDM.t_clean
        assert np.all(np.diff(t) < 0.0)
        for name in ("dpmpp_3m", "dpmpp_3m_corrected", "unipc_3_bh1"):
            assert np.all(np.isfinite(SAMPLERS[name](gaussian, X, EDM, t)))
            with pytest.raises(ValueError, match="decreas"):
                SAMPLERS[name](gaussian, X, EDM, np.append(t, t[-1]))
        twice = [*levels_of(EDM, t), levels_of(EDM, t[-1:])[0]]
        with pytest.raises(ZeroDivisionError):
            published.multistep(gaussian, X, twice, lambda n: 0.0, order=3, data=True)


def test_the_sample_keeps_the_noise_of_the_level_where_it_ends():
    """diffusers #5433: grain in pictures, from an end above 0. Its variance is that of the level, no more, no less."""
    for low in (0.3, 0.02):
        schedule = schedules.edm(sigma_min=low, sigma_max=20.0)
        path = paths.x0(schedule, grids.uniform_log_snr(schedule, 400))
        _, std = law_of(adams_bashforth(path, 3), (MEAN, spread(schedule.level(20.0))))
        assert std == pytest.approx(math.hypot(STD, low), rel=1e-5)
    assert math.hypot(STD, 0.3) > STD * (1.0 + MISTAKE)


def test_the_last_step_to_clean_data_leaves_an_error_that_more_steps_do_not_remove():
    """x ((1 + q)^(-1/2) - (1 + q)^(-1)) with q = (sigma/std)^2 of the last level but one; `velocity` has none."""
    last = 0.1
    noisy = schedules.truncate(FLOW, t_noise=0.9, t_clean=last / (1.0 + last))
    q = (last / STD) ** 2

    def errors(form: Callable[[Schedule, Any], paths.Path], steps: int) -> np.ndarray:
        t = np.append(grids.uniform_log_snr(noisy, steps), 0.0)
        return ab2(gaussian, X, form(FLOW, t)) - flow_of(X, *levels_of(FLOW, [0.9, 0.0]))

    (start, before) = levels_of(FLOW, [0.9, float(noisy.t_clean)])
    distance = flow_of(X, start, before) / before[1] - MEAN
    floor = distance * (1.0 / (1.0 + q) - 1.0 / math.sqrt(1.0 + q))
    for steps in (400, 800):
        np.testing.assert_allclose(errors(paths.x0, steps), floor, rtol=5e-3)
    assert np.min(np.abs(floor)) > 1e-3
    assert np.max(np.abs(errors(lambda s, t: paths.velocity(s, t, sigma_data=STD, centre=MEAN), 4))) < EXACT


def test_noise_of_short_steps_is_not_set_to_zero():
    """Variances below 1e-6 are not dropped: here they are 1e-9, as large as the level they belong to."""
    schedule = schedules.edm(sigma_min=1e-5)
    t = np.array([1e-4, 5e-5, 2e-5])
    table = adams_bashforth(paths.x0(schedule, t, eta=1.0), 1)
    expected = t[1:] * np.sqrt(1.0 - (t[1:] / t[:-1]) ** 2)
    np.testing.assert_allclose(np.asarray(table.noise), expected, rtol=1e-12)
    assert np.all(expected**2 < 1e-6)


def test_a_chain_rescaled_to_no_signal_starts_from_v_and_not_from_noise():
    """diffusers #3851, #5103: 0/0 at the first step, patched by a small alpha."""
    schedule = schedules.zero_terminal_snr(schedules.vp_linear())
    t = np.array([1.0, 0.6])
    start, stop = levels_of(schedule, t)
    assert start[1] == 0.0

    def v(x: Any, level: Any) -> Any:
        d = gaussian(x, level)
        return -d if level.alpha == 0.0 else level.alpha * (x - level.alpha * d) / level.sigma - level.sigma * d

    out = ab1(parameterization.from_v(v), X, paths.x0(schedule, t))
    np.testing.assert_allclose(out, stop[1] * MEAN + stop[2] * X, rtol=EXACT)
    noise = parameterization.from_eps(lambda x, level: (x - level.alpha * gaussian(x, level)) / level.sigma)
    with pytest.raises(ValueError, match="alpha"):
        ab1(noise, X, paths.x0(schedule, t))
    # the patch: of x = eps in float32 nothing of the data is left, and the quotient is rounding
    tiny = np.float32(2.0**-24)
    x = X.astype("float32")
    eps = x - tiny * np.float32(MEAN)
    assert np.max(np.abs((x - eps) / tiny - MEAN)) > MISTAKE


# -- which level ------------------------------------------------------------------------------------------------------


def spacing(kind: str, steps: int) -> np.ndarray:
    """Rows of a chain of CHAIN steps, as the common programs choose them."""
    if kind == "linspace":
        return np.round(np.linspace(0, CHAIN - 1, steps))[::-1].astype(int)
    if kind == "leading":
        return (np.arange(steps) * (CHAIN // steps))[::-1].astype(int) + 1
    return np.round(np.arange(CHAIN, 0, -CHAIN / steps)).astype(int) - 1


def nodes_of(rows: np.ndarray) -> np.ndarray:
    return (rows + 1) / CHAIN


@pytest.mark.parametrize("steps", [7, 10, 30])
@pytest.mark.parametrize("kind", ["linspace", "leading", "trailing"])
def test_a_step_goes_to_the_next_node(kind, steps):
    """diffusers #12633, #9384: it went to row k - T // N, with T = 1000 and 10 nodes 100 rows on and not 111."""
    rows = spacing(kind, steps)
    levels = levels_of(TABLE, nodes_of(rows))
    start, stop = levels[0], levels[-1]
    quiet = {"rng": lambda row, like: 0.0 * like}
    out = SAMPLERS["ddim"](one_point, start[1] * MEAN + start[2] * X, TABLE, nodes_of(rows))
    np.testing.assert_allclose(out, stop[1] * MEAN + stop[2] * X, rtol=EXACT)
    # ancestral sampling has the exact conditional mean, so that the mean is exact at each node
    mean = SAMPLERS["ddpm"](gaussian, np.array([start[1] * MEAN]), TABLE, nodes_of(rows), trajectory=True, **quiet)
    np.testing.assert_allclose(mean[:, 0], [a[1] * MEAN for a in levels], rtol=EXACT)

    def with_stride(loop: Callable[..., np.ndarray], denoise: Any, x: np.ndarray) -> np.ndarray:
        for row in rows[:-1]:
            pair = levels_of(TABLE, nodes_of(np.array([row, max(row - CHAIN // steps, 0)])))
            x = loop(denoise, x, pair, lambda n: 0.0)
        return x

    missed = with_stride(published.ddim, one_point, start[1] * MEAN + start[2] * X)
    off = np.max(np.abs(missed - stop[1] * MEAN - stop[2] * X))
    drifted = with_stride(published.ddpm, gaussian, np.array([start[1] * MEAN]))[0] - stop[1] * MEAN
    if np.any(np.diff(rows) != -(CHAIN // steps)):
        assert off > 4e-3
        assert abs(drifted) > 5e-4
    else:
        assert max(off, abs(drifted)) < EXACT


@pytest.mark.parametrize("skip", [1, 10, 100])
def test_variance_of_a_step_over_many_rows(skip):
    """diffusers #2090: the beta of one row used for a step over many."""
    k = 700
    bar = np.cumprod(1.0 - BETAS)
    here, there = bar[k], bar[k - skip]
    expected = (1.0 - there) / (1.0 - here) * (1.0 - here / there)
    table = SAMPLERS["ddpm"].table(TABLE, nodes_of(np.array([k, k - skip])))
    assert float(table.noise[0]) ** 2 == pytest.approx(expected, rel=1e-10)
    wrong = (1.0 - there) / (1.0 - here) * BETAS[k]
    assert (abs(wrong / expected - 1.0) > MISTAKE) == (skip > 1)


@pytest.mark.parametrize("steps", [5, 20, 50])
def test_the_first_node_is_the_noisiest_level_for_any_number_of_steps(steps):
    """diffusers #2585, #3475: "leading" rows start below the level that the first state is drawn for.

    The spread of the sample says so, unless the data have unit variance.
    """

    def deviation(t_start: float) -> float:
        path = paths.velocity(TABLE, np.array([t_start, TABLE.t_clean]), sigma_data=STD)
        _, std = law_of(adams_bashforth(path, 1), (0.0, TABLE.prior_std))
        return std / spread(TABLE.level(TABLE.t_clean)) - 1.0

    first = float(grids.uniform(TABLE, steps)[0])
    assert first == TABLE.t_noise
    alpha, sigma = (float(part) for part in TABLE.level(TABLE.t_noise)[1:])
    assert deviation(first) == pytest.approx(sigma / math.hypot(alpha * STD, sigma) - 1.0, rel=1e-8)
    leading = deviation(float(nodes_of(spacing("leading", steps))[0]))
    assert leading - deviation(first) > 0.015 / steps


@pytest.mark.parametrize("name", [name for name in SAMPLERS if SAMPLERS[name].evaluations == 1])
def test_no_level_is_visited_twice(name):
    """diffusers #9090: a warm-up written as a repeated time. Only PLMS, whose first step that is, repeats one."""
    t = np.array([4.0, 3.0, 1.7, 1.1, 0.6, 0.3, 0.1])
    seen: list[float] = []

    def denoise(x: Any, level: Any) -> Any:
        seen.append(float(level.sigma))
        return gaussian(x, level)

    table = SAMPLERS[name].table(EDM, t)
    solve(denoise, X, table, rng=lambda row, like: 0.0 * like)
    if name == "plms":
        assert seen == [4.0, 3.0, *t[1:-1]]
        return
    assert np.all(np.diff(seen) < 0.0)
    assert set(t[:-1]) <= set(seen)
    assert len(seen) == 6 or name.endswith(("_corrected", "_moulton_4"))


def test_the_network_is_asked_at_the_level_and_not_at_the_next_whole_time():
    """diffusers #13768, #11749: levels of Karras' grid, with times cut or rounded to integers: no step removes that."""
    schedule = schedules.truncate(TABLE, t_clean=0.02)
    start, stop = levels_of(schedule, [1.0, 0.02])

    def noise(x: Any, level: Any) -> Any:
        return (x - level[1] * gaussian(x, level)) / level[2]

    def whole(rounding: Callable[[float], float]) -> Callable[[Any, Any], Any]:
        def rounded(x: Any, level: Any) -> Any:
            return noise(x, schedule.level(np.asarray(rounding(CHAIN * float(level.t)) / CHAIN)))

        return rounded

    def error(network: Callable[[Any, Any], Any], steps: int) -> float:
        path = paths.x0(schedule, grids.karras(schedule, steps))
        out = ab2(parameterization.from_eps(network), X, path)
        return float(np.max(np.abs(out - flow_of(X, start, stop))))

    assert error(noise, 640) < error(noise, 160) / 14.0 < 1e-5
    for rounding in (math.floor, round):
        assert error(whole(rounding), 640) > max(10.0 * error(noise, 640), error(whole(rounding), 160) / 4.0)
    rho = [a[2] / a[1] for a in levels_of(schedule, grids.karras(schedule, 12))]
    published_rho = np.linspace(rho[0] ** (1 / 7), rho[-1] ** (1 / 7), 13) ** 7
    np.testing.assert_allclose(rho, published_rho, rtol=1e-12)
    cut = [a[2] / a[1] for a in levels_of(schedule, np.floor(CHAIN * grids.karras(schedule, 12)) / CHAIN)]
    assert np.max(np.abs(cut / published_rho - 1.0)) > 5e-3


@pytest.mark.parametrize("k", [0, 3, 17, 38])
@pytest.mark.parametrize("name", ["euler", "dpmpp_2m", "dpmpp_3m_corrected", "unipc_2_bh1", "lms"])
def test_sampling_may_begin_at_any_node(name, k):
    """diffusers #5687: the level of another node, where two nodes had been rounded to one time."""
    t = grids.karras(EDM, 40)
    levels = levels_of(EDM, t)
    at_k, at_next, exact = (flow_of(20.0 * X, levels[0], levels[i]) for i in (k, k + 1, -1))
    error, missed = (np.max(np.abs(SAMPLERS[name](gaussian, x, EDM, t[k:]) - exact)) for x in (at_k, at_next))
    assert error < (0.05 if name == "euler" else 4e-3)
    assert missed > 2.0 * error
    if name == "lms":
        np.testing.assert_allclose(
            SAMPLERS[name](gaussian, at_k, EDM, t[k:]),
            published.lms(gaussian, at_k, levels[k:], lambda n: 0.0),
            rtol=EXACT,
        )


def test_a_history_does_not_count_steps_that_were_not_made():
    """diffusers #5630: LMS from node k on with weights of order 4 at once, for values that are not there."""
    t = grids.karras(EDM, 40)
    levels = levels_of(EDM, t)
    k = 5
    at_k, exact = (flow_of(20.0 * X, levels[0], levels[i]) for i in (k, -1))

    def fixed(order_at: Callable[[int], int]) -> np.ndarray:
        x, old = at_k, []
        for n, (a, b) in enumerate(itertools.pairwise(levels[k:])):
            old.insert(0, published.eps(gaussian, x, a))
            weights = published.FIXED[min(order_at(n), 4) - 1]
            x = x + (b[2] - a[2]) * sum(w * e for w, e in zip(weights, old, strict=False))
        return x

    both = fixed(lambda n: n + 1), SAMPLERS["lms"](gaussian, at_k, EDM, t[k:])
    right = max(float(np.max(np.abs(x - exact))) for x in both)
    assert np.max(np.abs(fixed(lambda n: k + n + 1) - exact)) > max(20.0 * right, MISTAKE)


# -- noise ------------------------------------------------------------------------------------------------------------


def moments(step: Callable[[float, Level, Level], float], noise: Any, t: Sequence[float]) -> float:
    """Standard deviation at the last of the times of x' = step(x) + noise z, from the exact law at the first."""
    variance = spread(FLOW.level(np.asarray(t[0]))) ** 2
    for a, b in itertools.pairwise(FLOW.level(np.asarray(s)) for s in t):
        gain = step(1.0, a, b) - step(0.0, a, b)
        variance = gain**2 * variance + noise(a, b) ** 2
    return math.sqrt(variance)


@pytest.mark.parametrize("name", ["ddpm", "sde_dpmpp_1", "sde_dpmpp_2m", "sde_dpmpp_3m", "velocity_sde"])
def test_samplers_with_noise_start_a_flow_at_pure_noise(name):
    """Euler-Maruyama kept 1e-6 away from t = 1 has a first drift of a million, and 50 steps do not recover."""

    def error(steps: int) -> float:
        table = SAMPLERS[name].table(FLOW, grids.uniform(FLOW, steps))
        mean, std = law_of(table, (0.0, 1.0))
        return math.hypot(mean - MEAN, std - STD)

    assert error(200) < 0.6 * error(100) < 0.05

    def drift(x: float, a: Level, b: Level) -> float:
        s = np.minimum(a.t, 1.0 - 1e-6)
        score = -(x - a.alpha * MEAN) / spread(a) ** 2
        return float(x + (b.t - a.t) * (FLOW.drift(s) * x - FLOW.diffusion_squared(s) * score))

    def noise(a: Level, b: Level) -> float:
        return float(np.sqrt(FLOW.diffusion_squared(np.minimum(a.t, 1.0 - 1e-6)) * (a.t - b.t)))

    assert abs(moments(drift, noise, np.linspace(1.0, 0.0, 51)) - STD) > 1.0


@pytest.mark.parametrize("name", ["ddpm", "euler_ancestral", "dpm_2_ancestral", "dpmpp_2s_ancestral", "sde_dpmpp_2m"])
def test_noise_added_to_a_flow_keeps_its_law(name):
    """zea #551, stable-diffusion.cpp #1436: noise without the drift of the score, or with the formulas of alpha = 1."""
    schedule = schedules.truncate(FLOW, t_noise=0.95, t_clean=0.05)
    start, stop = levels_of(FLOW, [0.95, 0.05])
    t = np.linspace(0.95, 0.05, 201)
    mean, std = law_of(SAMPLERS[name].table(schedule, t), (start[1] * MEAN, spread(start)))
    bound = {1: 2 * MISTAKE, 2: 0.1 * MISTAKE}[SAMPLERS[name].orders.weak]
    assert mean == pytest.approx(stop[1] * MEAN, abs=bound)
    assert std == pytest.approx(spread(stop), rel=bound)


def test_two_ways_to_lose_the_law_of_a_flow():
    t, stop = np.linspace(0.95, 0.05, 201), FLOW.level(np.asarray(0.05))

    def slope(x: float, a: Level) -> float:
        return float((x - gaussian(x, a)) / a.sigma)

    def euler(x: float, a: Level, b: Level) -> float:
        return float(x + (b.t - a.t) * slope(x, a))

    def diffusion(a: Level, b: Level) -> float:
        return float(np.sqrt(FLOW.diffusion_squared(a.t) * (a.t - b.t)))

    def with_score(x: float, a: Level, b: Level) -> float:
        score = -(x - a.alpha * MEAN) / spread(a) ** 2
        return float(euler(x, a, b) + (a.t - b.t) * 0.5 * FLOW.diffusion_squared(a.t) * score)

    def down(x: float, a: Level, b: Level) -> float:
        return float(x + (published.split(float(a.sigma), float(b.sigma), 1.0)[0] - a.sigma) * slope(x, a))

    def up(a: Level, b: Level) -> float:
        return published.split(float(a.sigma), float(b.sigma), 1.0)[1]

    assert moments(euler, lambda a, b: 0.0, t) == pytest.approx(spread(stop), rel=2 * MISTAKE)
    assert moments(with_score, diffusion, t) == pytest.approx(spread(stop), rel=5 * MISTAKE)
    assert abs(moments(euler, diffusion, t) / spread(stop) - 1.0) > 20 * MISTAKE
    assert abs(moments(down, up, t) / spread(stop) - 1.0) > 5 * MISTAKE


@pytest.mark.parametrize("name", [name for name in SAMPLERS if SAMPLERS[name].orders.weak])
def test_a_table_keeps_nothing_from_one_run_to_the_next(name):
    """diffusers #5532, #3020: noise kept in the scheduler. One source gives one sample, whatever ran before."""
    options = {"eta": 0.7} if "eta" in SAMPLERS[name].options else {}
    table = SAMPLERS[name].table(EDM, grids.karras(EDM, 6), **options)
    before = [solve(gaussian, X, table, rng=np.random.default_rng(seed)) for seed in (5, 6)]
    solve(gaussian, np.zeros(7), table, rng=np.random.default_rng(7))
    np.testing.assert_array_equal(solve(gaussian, X, table, rng=np.random.default_rng(5)), before[0])
    if table.noise is not None:
        assert np.max(np.abs(before[0] - before[1])) > 1e-6


# -- other directions and precisions ----------------------------------------------------------------------------------


def test_an_inversion_uses_the_pairs_of_the_sampler():
    """diffusers #10695, #5703: pairs of levels shifted by one, and a negative time. Exact on data at one point."""
    rows = spacing("trailing", 20)
    levels = levels_of(TABLE, nodes_of(rows))
    start, stop = levels[0], levels[-1]
    clean, noisy = stop[1] * MEAN + stop[2] * X, start[1] * MEAN + start[2] * X
    path = paths.x0(TABLE, nodes_of(rows))
    found = guidance.invert(one_point, clean, path, order=1)
    np.testing.assert_allclose(found, noisy, rtol=EXACT)
    np.testing.assert_allclose(ab1(one_point, found, path), clean, rtol=1e-9)
    upward, shifted = levels[::-1], clean
    for a, b in itertools.pairwise(upward[1:]):  # each state is taken for one of the next level
        shifted = published.transfer(shifted, a, b, published.eps(one_point, shifted, a))
    assert np.max(np.abs(shifted - noisy)) > MISTAKE


def test_levels_are_not_rounded_to_the_precision_of_the_state():
    """diffusers #4254: in half precision the first products of 1 - beta are 1, sigma is 0, and 1/sigma infinite."""
    schedule = schedules.from_betas(np.concatenate([[1e-4], BETAS[1:]]))
    assert np.float16(1.0 - 1e-4) == 1.0
    seen: list[Any] = []

    def denoise(x: Any, level: Any) -> Any:
        seen.append(level)
        return gaussian(x, level).astype(x.dtype)

    t = np.array([1.0, 0.5, 0.1, 0.001])
    table = SAMPLERS["euler"].table(schedule, t)
    out = solve(denoise, X.astype("float16"), table)
    assert out.dtype == np.float16
    assert all(np.asarray(level.sigma).dtype == np.float32 for level in seen)
    assert float(np.asarray(table.node.sigma)[-1]) == pytest.approx(1e-2, rel=1e-6)
    exact = SAMPLERS["euler"](gaussian, X, schedule, t)
    np.testing.assert_allclose(out.astype("float64"), exact, atol=5e-3)
