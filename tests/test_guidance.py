"""Guidance, thresholds and reversed paths: naive formulas, and what each of them does to the order of a solver."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffnum import adaptive, convergence, guidance, oracles, parameterization, paths, schedules
from diffnum.schedules import Level
from diffnum.solvers import HEUN, MIDPOINT, RUNGE_KUTTA_3, adams_bashforth, runge_kutta, solve

FLOW = schedules.rectified_flow()
INNER = schedules.truncate(FLOW, t_clean=0.05, t_noise=0.9)
U = oracles.mixture([0.3, 0.7], [[-1.0, 0.3], [0.5, -0.2]], [0.4, 0.3])
C = oracles.mixture([0.5, 0.5], [[0.6, 0.2], [0.9, -0.6]], [0.2, 0.35])
X = np.array([[0.5, 0.3], [-0.2, 1.0], [1.3, -0.4], [0.1, -1.5], [-1.2, -0.3]])
W = 3.0
LOW, HIGH = -0.5, 1.0
LEVEL = Level(np.asarray(0.4), np.asarray(0.6), np.asarray(0.4))

SAME = 1e-13
"""A formula written in two ways."""
ORDER_TOLERANCE = 0.15
"""Deviation of a slope from the order; the effects below are worth 1 and more."""

METHODS: dict[str, Callable] = {
    **{f"ab{k}": functools.partial(adams_bashforth, order=k) for k in (1, 2, 3, 4)},
    "midpoint": functools.partial(runge_kutta, method=MIDPOINT),
    "heun": functools.partial(runge_kutta, method=HEUN),
    "rk3": functools.partial(runge_kutta, method=RUNGE_KUTTA_3),
    "rk4": functools.partial(runge_kutta, method=adaptive.PAIR_43.method),
}
ORDERS = {"ab1": 1, "ab2": 2, "ab3": 3, "ab4": 4, "midpoint": 2, "heun": 2, "rk3": 3, "rk4": 4}

GUIDED = guidance.classifier_free(C.denoise, U.denoise, W)
LIMITED = guidance.classifier_free(C.denoise, U.denoise, W, interval=(LOW, HIGH))


def accurate(denoise: Callable, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    return adaptive.solve_adaptive(denoise, x, paths.velocity(FLOW, t), rtol=1e-11, atol=1e-12, max_steps=20000).x


@functools.cache
def exact_guided() -> np.ndarray:
    return accurate(GUIDED, X, np.array([0.9, 0.05]))


@functools.cache
def exact_limited() -> np.ndarray:
    """In three legs, each with a smooth denoiser."""
    t = [0.9, float(FLOW.time(LOW)), float(FLOW.time(HIGH)), 0.05]
    x = X
    for denoise, ends in zip((C.denoise, GUIDED, C.denoise), itertools.pairwise(t), strict=True):
        x = accurate(denoise, x, np.array(ends))
    return x


def slope(run: Callable[[int], np.ndarray], exact: np.ndarray, steps: tuple[int, int]) -> float:
    first, last = (np.sqrt(np.mean((run(n) - exact) ** 2)) for n in steps)
    return float(math.log(first / last) / math.log(steps[1] / steps[0]))


# -- classifier-free guidance -----------------------------------------------------------------------------------------


def written_out(w: float, x: np.ndarray, level: Level) -> np.ndarray:
    return (1.0 - w) * U.denoise(x, level) + w * C.denoise(x, level)


@pytest.mark.claim("guidance-scale")
def test_guidance_is_the_formula():
    for w in (0.0, 0.5, 3.0, -1.0):
        found = guidance.classifier_free(C.denoise, U.denoise, w)(X, LEVEL)
        np.testing.assert_allclose(found, written_out(w, X, LEVEL), atol=SAME)
    assert np.array_equal(guidance.classifier_free(C.denoise, U.denoise, 1.0)(X, LEVEL), C.denoise(X, LEVEL))
    # the other convention in use counts from the conditional one
    assert np.abs(written_out(W + 1.0, X, LEVEL) - GUIDED(X, LEVEL)).max() > 0.1
    each = np.arange(5.0)
    rows = [guidance.classifier_free(C.denoise, U.denoise, float(w))(X, LEVEL)[i] for i, w in enumerate(each)]
    for scale in (each, each[:, None], each.tolist()):
        found = guidance.classifier_free(C.denoise, U.denoise, scale=scale)(X, LEVEL)
        np.testing.assert_allclose(found, rows, atol=SAME)


def test_scales_belong_to_samples_even_where_components_are_as_many():
    x = np.random.default_rng(4).normal(size=(3, 3, 2))
    scale = np.array([0.0, 2.0, 5.0])
    found = guidance.classifier_free(smooth, other, scale)(x, LEVEL)
    by_hand = [w * smooth(x[i], LEVEL) + (1.0 - w) * other(x[i], LEVEL) for i, w in enumerate(scale)]
    np.testing.assert_allclose(found, by_hand, atol=SAME)
    along_the_features = other(x, LEVEL) + scale[:, None] * (smooth(x, LEVEL) - other(x, LEVEL))
    assert np.abs(along_the_features - found).max() > 0.1


def test_nothing_may_enlarge_the_state():
    x = np.zeros((2, 3))
    for scale in (np.ones(3), np.ones((1, 2, 3)), np.ones((2, 4)), np.ones(4)):
        with pytest.raises(ValueError, match=r"scale must have one entry, or the first axes of x of shape \(2, 3\)"):
            guidance.classifier_free(smooth, other, scale)(x, LEVEL)
    wrong = {
        r"got shape \(1, 2, 3\)": lambda x, level: x[None],
        r"got shape \(3,\)": lambda x, level: x[0],
        "got list": lambda x, level: x.tolist(),
        "got NoneType": lambda x, level: None,
    }
    for got, bad in wrong.items():
        for name, denoise in (
            ("conditional", guidance.classifier_free(bad, other, W)),
            ("unconditional", guidance.classifier_free(smooth, bad, W)),
            ("denoise", guidance.clip(bad)),
            ("denoise", guidance.dynamic_threshold(bad)),
        ):
            with pytest.raises(ValueError, match=rf"^{name} must return an array of the shape of x, \(2, 3\), {got}"):
                denoise(x, LEVEL)
    several = Level(*(np.full(3, part) for part in LEVEL))
    with pytest.raises(ValueError, match=r"level must have one entry, or the first axes of x .* got shape \(3,\)"):
        guidance.noise_to(x, several, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="level must have one entry"):
        guidance.classifier_free(smooth, lambda x, level: 0.0 * x, W, interval=(-9.0, 9.0))(x, several)


@pytest.mark.claim("guidance-affine")
@pytest.mark.parametrize("target", ["eps", "v", "score", "flow"])
def test_guidance_is_the_same_for_every_prediction(target):
    options = {"schedule": FLOW} if target == "flow" else {}
    to = getattr(parameterization, f"to_{target}")
    level = FLOW.level(np.asarray(0.4))
    c, u = (to(oracle.denoise(X, level), X, level, source="x0", **options) for oracle in (C, U))
    mixed = (1.0 - W) * u + W * c
    found = parameterization.to_x0(mixed, X, level, source=target, **({"schedule": FLOW} if target == "flow" else {}))
    np.testing.assert_allclose(found, GUIDED(X, level), atol=1e-12)
    # thresholds are not affine: clipping the two first is another thing
    clipped = [np.clip(oracle.denoise(X, level), -0.4, 0.4) for oracle in (C, U)]
    both = W * clipped[0] + (1.0 - W) * clipped[1]
    assert np.abs(both - np.clip(GUIDED(X, level), -0.4, 0.4)).max() > 0.05


@pytest.mark.claim("guidance-scale")
@pytest.mark.parametrize("method", METHODS)
def test_guidance_keeps_the_order(method):
    def run(n):
        return solve(GUIDED, X, METHODS[method](paths.velocity(INNER, convergence.random_ratio_grid(INNER, n))))

    steps = (320, 1280) if method == "ab4" else (160, 320)
    assert abs(slope(run, exact_guided(), steps) - ORDERS[method]) < ORDER_TOLERANCE + 0.1 * (ORDERS[method] == 4)


@pytest.mark.claim("guidance-interval")
def test_the_interval_is_half_open_and_saves_calls():
    calls = []

    def unconditional(x, level):
        calls.append(float(level.log_snr))
        return U.denoise(x, level)

    limited = guidance.classifier_free(C.denoise, unconditional, W, interval=(LOW, HIGH))
    for log_snr, guided in ((-0.51, False), (LOW, True), (0.3, True), (0.99, True), (HIGH, False), (1.2, False)):
        level = FLOW.level_at(np.asarray(log_snr))
        calls.clear()
        expected = written_out(W if guided else 1.0, X, level)
        np.testing.assert_allclose(limited(X, level), expected, atol=SAME)
        assert len(calls) == guided
    for interval, at in (((-math.inf, 0.0), -50.0), ((0.0, math.inf), 50.0)):
        always = guidance.classifier_free(C.denoise, U.denoise, W, interval=interval)
        level = FLOW.level_at(np.asarray(at))
        np.testing.assert_allclose(always(X, level), written_out(W, X, level), atol=SAME)


@pytest.mark.claim("guidance-interval")
def test_a_node_lies_on_an_end_up_to_rounding(backend):
    """The level in float32 has another log-SNR than the number given, on either side of it."""
    for low in np.linspace(-3.0, 3.0, 25):
        limited = guidance.classifier_free(
            lambda x, level: 0.0 * x, lambda x, level: 0.0 * x + 1.0, 2.0, interval=(float(low), float(low) + 1.0)
        )
        x = backend.asarray(np.zeros(1), "float32")
        for at, expected in ((low, -1.0), (low + 1.0, 0.0), (low - 1e-4, 0.0), (low + 1.0 - 1e-4, -1.0)):
            exact = FLOW.level_at(np.asarray(at))
            level = Level(*(backend.asarray(part, "float32") for part in exact))
            assert float(limited(x, level)[0]) == expected


def test_levels_may_differ_from_sample_to_sample():
    level = FLOW.level_at(np.array([-1.0, -0.4, 0.2, 1.5, 0.9]))
    one = [LIMITED(X[i], Level(*(part[i] for part in level))) for i in range(5)]
    np.testing.assert_allclose(LIMITED(X, level), one, atol=SAME)


def aligned(n: int) -> np.ndarray:
    """Random ratios in three legs, with nodes at both ends of the interval."""
    ends = [float(INNER.log_snr(0.9)), LOW, HIGH, float(INNER.log_snr(0.05))]
    counts = [n // 4, n // 2, n - n // 4 - n // 2]
    legs = [convergence.random_ratio_nodes(a, b, k)[1:] for a, b, k in zip(ends, ends[1:], counts, strict=False)]
    t = FLOW.time(np.concatenate([[ends[0]], *legs]))
    t[0], t[-1] = 0.9, 0.05
    return t


@pytest.mark.claim("guidance-jump")
@pytest.mark.parametrize("method", METHODS)
def test_a_jump_at_a_node_keeps_the_order_of_what_does_not_look_across(method):
    def run(n):
        return solve(LIMITED, X, METHODS[method](paths.velocity(INNER, aligned(n))))

    expected = ORDERS[method] if method in {"ab1", "midpoint", "rk3", "rk4"} else 1
    assert abs(slope(run, exact_limited(), (160, 320)) - expected) < ORDER_TOLERANCE


@pytest.mark.claim("guidance-jump")
@pytest.mark.parametrize("method", ["ab1", "ab2", "midpoint", "rk4"])
def test_a_jump_inside_a_step_leaves_order_one(method):
    """Where in its step the jump lies changes from grid to grid: over many of them the error has a slope."""

    def size(n):
        errors = [
            solve(LIMITED, X, METHODS[method](paths.velocity(INNER, FLOW.time(np.linspace(*ends, n + k + 1)))))
            - exact_limited()
            for k in range(12)
        ]
        return np.sqrt(np.mean(np.square(errors)))

    ends = float(INNER.log_snr(0.9)), float(INNER.log_snr(0.05)) - 1e-12
    assert abs(math.log2(size(40) / size(80)) - 1.0) < 0.3


@pytest.mark.claim("guidance-rescale")
def test_rescaled_guidance():
    x = np.random.default_rng(0).normal(size=(3, 4, 2))
    c, u = lambda x, level: np.tanh(x), lambda x, level: 0.3 * x - 0.1
    for share in (0.3, 1.0):
        found = guidance.classifier_free(c, u, W, rescale=share)(x, LEVEL)
        for i in range(3):
            plain = (1.0 - W) * u(x[i], None) + W * c(x[i], None)
            factor = np.std(c(x[i], None)) / np.std(plain)
            np.testing.assert_allclose(found[i], share * factor * plain + (1.0 - share) * plain, atol=SAME)
    np.testing.assert_allclose(np.std(found, axis=(1, 2)), np.std(c(x, None), axis=(1, 2)), rtol=1e-12)
    alone = guidance.classifier_free(c, u, W, rescale=1.0, batch_axes=0)(x[0], LEVEL)
    np.testing.assert_allclose(found[0], alone, atol=SAME)
    # it depends on what is predicted: rescaling eps is another denoiser
    level = FLOW.level(np.asarray(0.4))
    eps = [(x - level.alpha * f(x, None)) / level.sigma for f in (c, u)]
    mixed = W * eps[0] + (1.0 - W) * eps[1]
    mixed *= np.std(eps[0], axis=(1, 2), keepdims=True) / np.std(mixed, axis=(1, 2), keepdims=True)
    assert np.abs((x - level.sigma * mixed) / level.alpha - found).max() > 0.1


# -- thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.claim("guidance-clip")
def test_clip():
    found = guidance.clip(GUIDED, -0.3, 0.8)(X, LEVEL)
    expected = [[min(max(v, -0.3), 0.8) for v in row] for row in GUIDED(X, LEVEL)]
    np.testing.assert_array_equal(found, expected)
    assert (found == 0.8).any()
    assert (found == -0.3).any()
    assert np.array_equal(guidance.clip(lambda x, level: 9.0 * x)(X, LEVEL), np.clip(9.0 * X, -1.0, 1.0))


@pytest.mark.claim("guidance-dynamic")
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.95, 1.0])
def test_dynamic_threshold(quantile):
    x = np.random.default_rng(1).normal(size=(6, 3, 5)) * np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])[:, None, None]
    found = guidance.dynamic_threshold(lambda x, level: 2.0 * x, quantile, bound=0.7)(x, LEVEL)
    for i in range(6):
        s = max(np.quantile(np.abs(2.0 * x[i]), quantile), 0.7)
        np.testing.assert_allclose(found[i], np.clip(2.0 * x[i], -s, s) * 0.7 / s, atol=SAME)
    assert np.abs(found).max() <= 0.7 * (1.0 + 1e-15)
    # over the whole batch, a sample would depend on its neighbours
    s = max(np.quantile(np.abs(2.0 * x), quantile), 0.7)
    assert np.abs(np.clip(2.0 * x, -s, s) * 0.7 / s - found).max() > 0.05 or quantile == 0.0
    alone = guidance.dynamic_threshold(lambda x, level: 2.0 * x, quantile, bound=0.7, batch_axes=0)
    np.testing.assert_allclose(alone(x[3], LEVEL), found[3], atol=SAME)


def test_a_threshold_of_one_entry():
    bounded = guidance.dynamic_threshold(lambda x, level: x, 0.5, batch_axes=1)
    np.testing.assert_array_equal(bounded(np.array([-3.0, 0.2]), LEVEL), [-1.0, 0.2])


THRESHOLDS = {
    "clip": lambda d: guidance.clip(d, -0.9, 0.9),
    "dynamic": lambda d: guidance.dynamic_threshold(d, 0.6, bound=0.5),
}


@functools.cache
def many() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(60, 2))


@functools.cache
def exact_threshold(name: str) -> np.ndarray:
    t = np.linspace(0.9, 0.05, 6001)
    return solve(THRESHOLDS[name](GUIDED), many(), METHODS["rk4"](paths.velocity(INNER, t)))


@pytest.mark.slow
@pytest.mark.claim("guidance-kink")
@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("method", ["ab1", "ab2", "ab4", "rk4"])
def test_a_kink_leaves_order_two(name, method):
    """Not one, as a jump does: over many starts the slope settles."""
    denoise = THRESHOLDS[name](GUIDED)

    def run(n):
        return solve(denoise, many(), METHODS[method](paths.velocity(INNER, np.linspace(0.9, 0.05, n + 1))))

    assert abs(slope(run, exact_threshold(name), (80, 640)) - min(ORDERS[method], 2)) < 0.3


@pytest.mark.claim("guidance-kink")
@pytest.mark.parametrize("method", ["ab1", "ab2", "ab4", "rk4"])
def test_a_kink_on_the_line(method):
    """y' = max(cos t, 0) with K = 1 has kinks at pi/2 and 3 pi/2 and the solution 2 + sin t after them."""

    def size(n):
        errors = []
        for k in range(8):
            path = paths.semilinear(np.linspace(0.0, 5.5, n + k + 1))
            run = solve(lambda x, level: 0.0 * x + max(math.cos(level.t), 0.0), np.zeros(1), METHODS[method](path))
            errors.append(run[0] - (2.0 + math.sin(5.5)))
        return np.sqrt(np.mean(np.square(errors)))

    found = math.log(size(40) / size(160)) / math.log(4.0)
    assert abs(found - min(ORDERS[method], 2)) < 0.25


# -- other directions -------------------------------------------------------------------------------------------------

PATHS = {
    "x0": paths.x0,
    "x0 ratio": functools.partial(paths.x0, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": functools.partial(paths.noise, coordinate="ratio"),
    "velocity": functools.partial(paths.velocity, sigma_data=0.6, centre=0.2),
}


@pytest.mark.claim("guidance-round-trip")
def test_inversion_is_exact_where_the_steps_are():
    mean, std = 0.4, 0.6
    path = paths.velocity(INNER, np.array([0.9, 0.3, 0.05]), sigma_data=std, centre=mean)
    x = np.array([[0.1], [1.0]])
    start, stop = path.first, path.last
    scale = np.hypot(start.alpha * std, start.sigma) / np.hypot(stop.alpha * std, stop.sigma)
    exact = start.alpha * mean + scale * (x - stop.alpha * mean)
    found = guidance.invert(oracles.gaussian([mean], std).denoise, x, path, order=1)
    np.testing.assert_allclose(found, exact, rtol=1e-12)


@pytest.mark.claim("guidance-round-trip")
@pytest.mark.parametrize("name", ["x0", "velocity", "noise ratio"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_inversion_has_the_order_of_its_method(name, order):
    exact = accurate_back()

    def run(n):
        return guidance.invert(C.denoise, X, PATHS[name](INNER, convergence.random_ratio_grid(INNER, n)), order=order)

    assert slope(run, exact, (160, 640)) > order - ORDER_TOLERANCE


@functools.cache
def accurate_back() -> np.ndarray:
    back = paths.reverse(paths.velocity(FLOW, np.array([0.9, 0.05])))
    return adaptive.solve_adaptive(C.denoise, X, back, rtol=1e-11, atol=1e-12, max_steps=20000).x


@pytest.mark.claim("guidance-round-trip")
@pytest.mark.parametrize("order", [1, 2, 3])
def test_round_trip(order):
    def run(n):
        path = paths.velocity(INNER, convergence.random_ratio_grid(INNER, n))
        return solve(C.denoise, guidance.invert(C.denoise, X, path, order=order), adams_bashforth(path, order))

    found = slope(run, X, (80, 640))
    assert order - ORDER_TOLERANCE < found < order + 0.8
    assert np.abs(run(40) - X).max() > 1e-6, "the way back is not the inverse of the steps"


@pytest.mark.claim("guidance-round-trip")
def test_the_way_back_needs_the_order_too():
    """Negative control: an inversion of order 1, which public samplers use beside solvers of order 2 and 3."""

    def run(n):
        path = paths.velocity(INNER, convergence.random_ratio_grid(INNER, n))
        return solve(C.denoise, guidance.invert(C.denoise, X, path, order=1), adams_bashforth(path, 3))

    assert abs(slope(run, X, (80, 640)) - 1.0) < ORDER_TOLERANCE


def test_trajectory_of_an_inversion():
    path = paths.velocity(INNER, np.linspace(0.9, 0.05, 6))
    states = guidance.invert(C.denoise, X, path, trajectory=True)
    assert states.shape == (6, *X.shape)
    assert np.array_equal(states[0], X)
    assert np.array_equal(states[-1], guidance.invert(C.denoise, X, path))


@pytest.mark.claim("guidance-forward")
def test_a_start_at_any_level_keeps_the_law_of_the_data():
    """Noise and the way back are affine on normal data: the gains of data and of noise give the variance exactly."""
    mean, std = 0.4, 0.6
    oracle = oracles.gaussian([mean], std)
    for t in (0.1, 0.5, 0.9):
        schedule = schedules.truncate(FLOW, t_noise=t)
        path = paths.velocity(schedule, np.array([t, 0.4 * t, 0.0]), sigma_data=std, centre=mean)

        def end(x0, z, path=path, noisy=guidance.noise_to):
            x = noisy(np.array([[x0]]), path.first, rng=lambda row, like: like * 0.0 + z)
            return solve(oracle.denoise, x, adams_bashforth(path, 2))[0, 0]

        def law(noisy=guidance.noise_to, end=end):
            at_mean = end(mean, 0.0, noisy=noisy)
            gains = (end(mean + 1.0, 0.0, noisy=noisy) - at_mean, end(mean, 1.0, noisy=noisy) - at_mean)
            return at_mean, math.hypot(gains[0] * std, gains[1])

        np.testing.assert_allclose(law(), (mean, std), rtol=1e-11)

        def unscaled(x, level, rng):
            return x + level.sigma * rng(0, x)

        assert abs(law(unscaled)[1] / std - 1.0) > 1e-3


def test_noise_to_takes_levels_of_each_sample_and_any_source(backend):
    level = Level(None, backend.asarray([0.5, 1.0]), backend.asarray([0.2, 0.0]))
    x = backend.asarray(np.ones((2, 3)), "float32")

    def prescribed(row, like):
        return like * 0.0 + 2.0 + row

    found = guidance.noise_to(x, level, rng=prescribed)
    assert backend.dtype(found) == "float32"
    np.testing.assert_allclose(backend.numpy(found), [[0.9] * 3, [1.0] * 3], rtol=1e-6)
    one = guidance.noise_to(x, FLOW.level(0.25), rng=prescribed)
    np.testing.assert_allclose(backend.numpy(one), np.full((2, 3), 1.25), rtol=1e-6)


def test_noise_to_draws_normals():
    x = np.zeros((4, 20000))
    found = guidance.noise_to(x, FLOW.level(0.25), rng=np.random.default_rng(0))
    assert abs(found.std() / 0.25 - 1.0) < 0.01
    rows = [np.random.default_rng(i) for i in range(4)]
    alone = guidance.noise_to(x[2:3], FLOW.level(0.25), rng=[np.random.default_rng(2)])
    np.testing.assert_array_equal(guidance.noise_to(x, FLOW.level(0.25), rng=rows)[2:3], alone)


# -- array libraries --------------------------------------------------------------------------------------------------

WRAPPERS = {
    "guided": lambda c, u: guidance.classifier_free(c, u, W),
    "array scale": lambda c, u: guidance.classifier_free(c, u, np.arange(5.0)),
    "limited": lambda c, u: guidance.classifier_free(c, u, W, interval=(LOW, HIGH)),
    "rescaled": lambda c, u: guidance.classifier_free(c, u, W, rescale=0.5),
    "clip": lambda c, u: guidance.clip(guidance.classifier_free(c, u, W), -0.4, 0.5),
    "dynamic": lambda c, u: guidance.dynamic_threshold(guidance.classifier_free(c, u, W), 0.7, bound=0.4),
}


def smooth(x: Any, level: Level) -> Any:
    return level.alpha * x / (level.alpha**2 + level.sigma**2)


def other(x: Any, level: Level) -> Any:
    return 0.3 * x + 0.1 * level.sigma


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_every_backend_agrees_with_float64_numpy(backend, name, dtype):
    denoise = WRAPPERS[name](smooth, other)
    expected = denoise(X, LEVEL)
    level = Level(*(backend.asarray(part, dtype) for part in LEVEL))
    found = denoise(backend.asarray(X, dtype), level)
    assert backend.dtype(found) == dtype
    np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-12 if dtype == "float64" else 3e-6, atol=1e-7)


@pytest.mark.parametrize("name", WRAPPERS)
def test_inside_jit_with_derivatives(name):
    jax = pytest.importorskip("jax")
    denoise = WRAPPERS[name](smooth, other)
    path = paths.velocity(INNER, np.linspace(0.9, 0.05, 6))
    table = adams_bashforth(path, 2)
    expected = solve(denoise, X, table)
    run = jax.jit(jax.value_and_grad(lambda x: solve(denoise, x, table).sum()))
    value, gradient = run(jax.numpy.asarray(X))
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-12)
    h = 1e-6 * np.random.default_rng(3).normal(size=X.shape)
    difference = (solve(denoise, X + h, table).sum() - solve(denoise, X - h, table).sum()) / 2.0
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * h), difference, rtol=1e-4, atol=1e-11)


def test_under_vmap_samples_have_no_axis():
    jax = pytest.importorskip("jax")
    denoise = guidance.dynamic_threshold(smooth, 0.7, bound=0.4, batch_axes=0)
    level = Level(*map(jax.numpy.asarray, LEVEL))
    found = jax.vmap(lambda x: denoise(x, level))(jax.numpy.asarray(X))
    np.testing.assert_allclose(found, guidance.dynamic_threshold(smooth, 0.7, bound=0.4)(X, LEVEL), rtol=1e-12)


def test_inversion_under_jit_and_torch():
    path = paths.velocity(INNER, np.linspace(0.9, 0.05, 6))
    expected = guidance.invert(smooth, X, path)
    jax = pytest.importorskip("jax")
    found = jax.jit(lambda x, t: guidance.invert(smooth, x, paths.velocity(INNER, t)))(
        jax.numpy.asarray(X), jax.numpy.linspace(0.9, 0.05, 6)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    torch = pytest.importorskip("torch")
    x = torch.asarray(X).requires_grad_()
    ended = guidance.invert(smooth, x, path)
    ended.sum().backward()
    np.testing.assert_allclose(ended.detach().numpy(), expected, rtol=1e-12)
    assert torch.isfinite(x.grad).all()


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_paths_without_an_inverse():
    for path in (paths.x0(INNER, np.array([0.9, 0.5, 0.05]), eta=1.0), paths.velocity(FLOW, np.array([0.9, 0.0]))):
        with pytest.raises(ValueError, match="path must"):
            guidance.invert(smooth, X, path)


@given(st.sampled_from([(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0,), 3.0, "ab", (0.0, 1.0, 2.0)]))
def test_intervals_that_are_none(interval):
    with pytest.raises(ValueError, match="interval must be"):
        guidance.classifier_free(smooth, other, W, interval=interval)


@given(st.floats().filter(lambda v: not 0.0 <= v <= 1.0))
def test_shares_out_of_range(value):
    with pytest.raises(ValueError, match="rescale must be"):
        guidance.classifier_free(smooth, other, W, rescale=value)
    with pytest.raises(ValueError, match="quantile must be"):
        guidance.dynamic_threshold(smooth, value)


def test_other_refusals():
    for value in (math.nan, math.inf, np.array([1.0, math.nan])):
        with pytest.raises(ValueError, match="scale must be finite"):
            guidance.classifier_free(smooth, other, value)
    for pair, name in (((1.0, other), "conditional"), ((smooth, None), "unconditional")):
        with pytest.raises(TypeError, match=f"^{name} must be a callable"):
            guidance.classifier_free(*pair, W)
    for low, high in ((1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError, match="low must be less than high"):
            guidance.clip(smooth, low, high)
    with pytest.raises(TypeError, match="denoise must be a callable"):
        guidance.clip(X)
    with pytest.raises(TypeError, match="denoise must be a callable"):
        guidance.dynamic_threshold(X)
    with pytest.raises(ValueError, match="bound must be"):
        guidance.dynamic_threshold(smooth, bound=0.0)
    for axes in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match="batch_axes must be an integer >= 0"):
            guidance.dynamic_threshold(smooth, batch_axes=axes)
        with pytest.raises(ValueError, match="batch_axes must be an integer >= 0"):
            guidance.classifier_free(smooth, other, W, batch_axes=axes)
    with pytest.raises(TypeError, match="level must be a Level"):
        guidance.noise_to(X, 0.5, rng=np.random.default_rng(0))
    with pytest.raises(TypeError, match="rng must be"):
        guidance.noise_to(X, FLOW.level(0.5), rng=1)


def test_rescaling_leaves_constant_samples_alone():
    """The standard deviation of a constant is 0: there is nothing to rescale, and no 0/0 that becomes NaN."""
    level = FLOW.level(0.5)
    x = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])

    def other(x, level):
        return x * np.array([[0.0], [0.0], [2.0]])

    def guided(x, share):
        return guidance.classifier_free(lambda x, level: x, other, 2.0, rescale=share)(x, level)

    # constant: guided as it is; twice: back to the standard deviation of x; guided to a constant: left alone
    np.testing.assert_allclose(guided(x, 1.0), [[2.0, 2.0, 2.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], rtol=1e-15)
    flat = guidance.classifier_free(lambda x, level: 0.0 * x + 1.0, lambda x, level: x, 2.0, rescale=1.0)
    np.testing.assert_array_equal(flat(x[1:2], level), 0.0)


def test_rescaling_in_half_precision_does_not_overflow():
    x = np.array([[-300.0, 100.0, 300.0]], dtype=np.float16)
    level = FLOW.level(0.5)
    found = guidance.classifier_free(lambda x, level: x, lambda x, level: 0.0 * x, 2.0, rescale=1.0)(x, level)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x)


def test_derivatives_of_rescaling_at_constant_samples():
    jax = pytest.importorskip("jax")
    level = FLOW.level(0.5)

    def total(x):
        denoise = guidance.classifier_free(lambda x, level: x, lambda x, level: 0.0 * x, 2.0, rescale=0.5)
        return denoise(x, level).sum()

    found = jax.grad(total)(jax.numpy.asarray([[1.0, 1.0], [1.0, 2.0]]))
    assert np.isfinite(found).all()

    def to_constant(x):
        """The conditional one is constant where the guided one is not: a quotient of 0, whose root has no slope."""
        denoise = guidance.classifier_free(lambda x, level: 0.0 * x + 1.0, lambda x, level: x, 2.0, rescale=0.5)
        return denoise(x, level).sum()

    assert np.isfinite(jax.grad(to_constant)(jax.numpy.asarray([[1.0, 3.0], [1.0, 2.0]]))).all()


def test_rescaling_needs_more_than_one_number():
    denoise = guidance.classifier_free(lambda x, level: x, lambda x, level: 0.0 * x, 2.0, rescale=0.5)
    with pytest.raises(ValueError, match=r"batch_axes must be less than the axes of x for rescale, got 1 for .*\(2,\)"):
        denoise(np.array([1.0, 2.0]), FLOW.level(0.5))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_thresholds_of_no_numbers(shape):
    assert guidance.dynamic_threshold(lambda x, level: x)(np.zeros(shape), FLOW.level(0.5)).shape == shape


def test_traced_parameters_need_arrays_of_jax():
    """A traced number has no value that an array of NumPy could take: NaN would come of it."""
    jax = pytest.importorskip("jax")
    x, level = np.ones((2, 3)), FLOW.level(0.5)

    def guided(scale):
        return guidance.classifier_free(lambda x, level: x, lambda x, level: 0.0 * x, scale)(x, level)

    def noisy(sigma):
        return guidance.noise_to(x, Level(0.5, 0.5, sigma), rng=np.random.default_rng(0))

    def score(sigma):
        return parameterization.to_score(x, x, Level(0.5, 0.5, sigma), source="eps")

    for function in (guided, noisy, score):
        with pytest.raises(TypeError, match=r"x must be a JAX array where JAX traces .*, got numpy.ndarray"):
            jax.jit(function)(0.5)
