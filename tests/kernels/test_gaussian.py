"""Kernels against Bayes' rule by quadrature, Chapman-Kolmogorov, the DDPM paper's formulas and high precision."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st

from diffnum import oracles, paths, schedules
from diffnum._guarded import renewed
from diffnum.kernels import gaussian
from diffnum.kernels.gaussian import Kernel
from diffnum.schedules import Level

EPS = 2.0**-52

ROUNDING = 8 * EPS
"""Weights and standard deviations: a handful of products and quotients, where the share is well conditioned."""

QUADRATURE = 1e-12
"""Trapezoidal sums of a Gaussian over 16 standard deviations: exact to rounding, which 4,001 terms add up."""

MISTAKE = 1e-3
"""A plausible mistake changes a weight or a standard deviation by more than this."""

SINGLE = 4 * 2.0**-23
"""float32 levels rounded to 2^-24 each, in a share of order one."""

FLOW, VP, VE = schedules.rectified_flow(), schedules.cosine(), schedules.edm()
SCHEDULES = {"flow": FLOW, "vp": VP, "ve": VE}
TIMES = {"flow": (0.15, 0.4, 0.85), "vp": (0.15, 0.4, 0.85), "ve": (0.3, 1.1, 7.0)}
CLEAN = Level(0.0, 1.0, 0.0)


def three(name: str) -> tuple[Level, ...]:
    """Levels r, s, t of increasing noise."""
    return tuple(SCHEDULES[name].level(t) for t in TIMES[name])


def normal(x: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """Density, without its constant."""
    return np.exp(-0.5 * ((x - mean) / std) ** 2)


def squares(s: Level, t: Level) -> tuple[float, float]:
    """Factor and variance of x_t given x_s as most code computes them: by subtracting squares."""
    factor = t.alpha / s.alpha
    return factor, t.sigma**2 - factor**2 * s.sigma**2


# -- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-gaussian-forward")
@pytest.mark.parametrize("name", SCHEDULES)
def test_forward_keeps_the_marginal_and_the_covariance(name):
    """What defines it: from x_s = alpha_s x_0 + sigma_s eps it leads to alpha_t x_0 + sigma_t eps."""
    _, s, t = three(name)
    kernel = gaussian.forward(s, t)
    (factor,) = kernel.weights
    assert factor * s.alpha == pytest.approx(t.alpha, rel=ROUNDING)
    assert math.hypot(factor * s.sigma, kernel.std) == pytest.approx(t.sigma, rel=ROUNDING)
    h = s.log_snr - t.log_snr
    assert kernel.std == pytest.approx(t.sigma * math.sqrt(-math.expm1(-2 * h)), rel=ROUNDING)
    # h for 2 h, as if lambda were the full log-SNR, and the noise at s for that at t
    for wrong in (t.sigma * math.sqrt(-math.expm1(-h)), s.sigma * math.sqrt(-math.expm1(-2 * h))):
        assert abs(math.hypot(factor * s.sigma, wrong) - t.sigma) > MISTAKE


@pytest.mark.claim("kernels-gaussian-forward")
@pytest.mark.parametrize("beta", [1e-4, 0.02, 0.3])
def test_forward_of_one_step_is_that_of_ddpm(beta):
    schedule = schedules.from_betas(np.full(10, beta))
    kernel = gaussian.forward(schedule.level(0.3), schedule.level(0.4))
    assert kernel.weights[0] == pytest.approx(math.sqrt(1 - beta), rel=1e-14)
    assert kernel.std == pytest.approx(math.sqrt(beta), rel=4 * EPS / beta)


@pytest.mark.claim("kernels-gaussian-share")
@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-6, 1e-10, 1e-14])
def test_share_is_as_accurate_as_its_levels(gap):
    """Exact for VE, where the difference of two close sigmas is; an absolute 2 eps for all others."""
    close = 1.0 - 0.9 * gap
    for s, t in (
        (Level(0.0, 1.0, 3.7 * close), Level(0.0, 1.0, 3.7)),
        (Level(0.0, 0.7, 0.3 * close), Level(0.0, 0.7 * (1.0 - gap / 7), 0.3)),
    ):
        with mp.workdps(40):
            q = mp.mpf(t.alpha) / s.alpha * s.sigma / t.sigma
            exact = float(1 - q**2)
        value = float(renewed(*(Level(*map(np.asarray, level)) for level in (s, t))))
        assert value == pytest.approx(exact, rel=4 * EPS if s.alpha == 1.0 else 4 * EPS * (1 + 1 / exact))


def float32_levels(low: float, high: float) -> tuple[Level, Level, np.ndarray]:
    """Pairs of variance-preserving float32 levels with 10^low <= h <= 10^high; the exact share of what they hold."""
    rng = np.random.default_rng(0)
    lam = rng.uniform(-6.0, 6.0, 4000)
    h = 10.0 ** rng.uniform(low, high, 4000)
    s, t = (VP.level_at(at) for at in (lam + h, lam))
    s, t = (Level(*(part.astype(np.float32) for part in level)) for level in (s, t))
    q = t.alpha.astype(float) * s.sigma / (s.alpha.astype(float) * t.sigma)
    return s, t, 1.0 - q**2


UNIT = 2.0**-24
"""Unit roundoff of float32."""


@pytest.mark.claim("kernels-gaussian-share", "kernels-gaussian-cancellation")
def test_what_logarithms_and_cumulative_products_lose_in_float32():
    """Error of the share in units of rounding: below 4; with logarithms more, by |lambda|; with 1 - abar unbounded."""
    s, t, exact = float32_levels(-5.0, 0.0)
    share = renewed(s, t)
    assert share.dtype == np.float32
    assert np.abs(share - exact).max() < 4 * UNIT
    lam_s, lam_t = (np.log(level.alpha / level.sigma) for level in (s, t))
    logarithms = -np.expm1(-2 * (lam_s - lam_t))
    assert logarithms.dtype == np.float32
    bound = 2 * (1 - exact) * (np.abs(lam_s) + np.abs(lam_t) + 4) * UNIT + UNIT
    error = np.abs(logarithms - exact)
    assert (error <= bound).all()
    assert error.max() > 12 * UNIT
    # (1 - abar_t/abar_s) / (1 - abar_t): the same number on exact levels, here with an error of u/sigma_t^2
    kept_s, kept_t = s.alpha**2, t.alpha**2
    small = t.sigma < 0.01
    cumulative = (1 - kept_t / kept_s)[small] / t.sigma[small] ** 2
    assert np.abs(cumulative - exact[small]).max() > 1000 * UNIT


@pytest.mark.claim("kernels-gaussian-share", "kernels-gaussian-cancellation")
def test_subtracted_squares_go_negative():
    """On levels a few roundings apart, (alpha_t sigma_s)/alpha_s may exceed sigma_t. A cross product keeps its sign."""
    s, t, exact = float32_levels(-9.0, -7.0)
    squared = t.sigma**2 - (t.alpha * s.sigma / s.alpha) ** 2
    assert squared.dtype == np.float32
    assert exact.min() >= 0.0
    assert (squared < 0.0).sum() > 20
    share = renewed(s, t)
    assert share.min() >= 0.0
    assert np.abs(share - exact).max() < 4 * UNIT


RATIOS = st.floats(0.0, 1.0, width=32)
SIZES = st.floats(2.0**-60, 2.0**60, width=32)


@given(sigma=SIZES, ratio=RATIOS, alpha=st.floats(2.0**-20, 1.0, width=32), fall=RATIOS)
def test_no_variance_is_negative_at_any_ratio(sigma, ratio, alpha, fall):
    """Any float32 levels in the order of their noise, one ulp apart or 10^18."""
    t = Level(*map(np.float32, (1.0, alpha * fall, sigma)))
    s = Level(*map(np.float32, (0.5, alpha, sigma * ratio)))
    r = Level(*map(np.float32, (0.2, alpha, sigma * ratio * ratio)))
    for kernel in (gaussian.forward(s, t), gaussian.posterior(s, t), gaussian.bridge(r, s, t)):
        for value in (*kernel.weights, kernel.std):
            assert value.dtype == np.float32
            assert np.isfinite(value)
            assert value >= 0.0
    assert gaussian.forward(s, t).std <= t.sigma
    assert gaussian.bridge(r, s, t).std <= gaussian.posterior(s, t).std * (1 + 1e-6) <= s.sigma * (1 + 2e-6)


# -- posterior and bridge ---------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-gaussian-posterior", "kernels-gaussian-bridge")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("clean", [True, False])
def test_bayes_rule_by_quadrature(name, clean):
    """Prior q(x_s | x_r) times likelihood q(x_t | x_s), normalised by a sum."""
    r, s, t = three(name)
    r = CLEAN if clean else r
    x_r, x_t = 0.7, -0.4
    prior = t.alpha / s.alpha, math.sqrt(squares(s, t)[1])
    first = s.alpha / r.alpha, math.sqrt(squares(r, s)[1])
    x = first[0] * x_r + first[1] * np.linspace(-16.0, 16.0, 4001)
    density = normal(x, first[0] * x_r, first[1]) * normal(x_t, prior[0] * x, prior[1])
    mean = np.sum(x * density) / np.sum(density)
    std = math.sqrt(np.sum((x - mean) ** 2 * density) / np.sum(density))
    kernels = [gaussian.bridge(r, s, t)] + ([gaussian.posterior(s, t)] if clean else [])
    for kernel in kernels:
        assert kernel.mean(np.asarray(x_t), np.asarray(x_r)) == pytest.approx(mean, rel=QUADRATURE)
        assert kernel.std == pytest.approx(std, rel=QUADRATURE)
    # the weights belong to these points and not to each other's; and the noise is not that of the step
    kernel = kernels[0]
    assert abs(kernel.mean(np.asarray(x_r), np.asarray(x_t)) - mean) > MISTAKE
    assert abs(gaussian.forward(s, t).std - std) > MISTAKE


@pytest.mark.claim("kernels-gaussian-posterior")
def test_posterior_is_that_of_ddpm():
    """Ho et al., Eq. 6 and 7, from the betas; k counts the noise added so far."""
    betas = np.linspace(1e-4, 0.02, 1000)
    schedule = schedules.from_betas(betas)
    kept = np.cumprod(1 - betas)
    for k in (2, 10, 500, 999, 1000):
        beta, now, before = betas[k - 1], kept[k - 1], kept[k - 2]
        kernel = gaussian.posterior(schedule.level((k - 1) / 1000), schedule.level(k / 1000))
        expected = math.sqrt(1 - beta) * (1 - before) / (1 - now), math.sqrt(before) * beta / (1 - now)
        np.testing.assert_allclose(kernel.weights, expected, rtol=1e-11)
        assert kernel.std**2 == pytest.approx((1 - before) / (1 - now) * beta, rel=1e-11)
        # "fixedlarge", beta itself, is another variance
        assert abs(kernel.std**2 / beta - 1) > 1e-7
    assert values(gaussian.posterior(CLEAN, schedule.level(0.001))) == (0.0, 1.0, 0.0)


@pytest.mark.claim("kernels-gaussian-posterior")
@pytest.mark.parametrize("name", SCHEDULES)
def test_posterior_is_the_ancestral_step_of_the_path(name):
    _, s, t = three(name)
    path = paths.x0(SCHEDULES[name], np.asarray(TIMES[name][:0:-1]), eta=1.0)
    factor, noise = path.propagate(path.start, path.stop)
    kernel = gaussian.posterior(s, t)
    assert kernel.weights[0] == pytest.approx(factor[0], rel=ROUNDING)
    assert kernel.weights[1] == pytest.approx(path.moments(path.start, path.stop, 1)[0][0], rel=ROUNDING)
    assert kernel.std == pytest.approx(noise[0], rel=ROUNDING)
    assert abs(gaussian.posterior(three(name)[0], t).std - noise[0]) > MISTAKE


@pytest.mark.claim("kernels-gaussian-posterior", "kernels-gaussian-bridge")
@pytest.mark.parametrize("name", SCHEDULES)
def test_forth_and_back_is_the_law_between(name):
    """Integrated over x_t given x_r, the bridge is the forward kernel to s: the tower property."""
    r, s, t = three(name)
    for start, kernel in ((CLEAN, gaussian.posterior(s, t)), (r, gaussian.bridge(r, s, t))):
        ahead, wanted = gaussian.forward(start, t), gaussian.forward(start, s)
        of_t, of_r = kernel.weights
        assert of_t * ahead.weights[0] + of_r == pytest.approx(wanted.weights[0], rel=ROUNDING)
        assert math.hypot(of_t * ahead.std, kernel.std) == pytest.approx(wanted.std, rel=ROUNDING)


@pytest.mark.claim("kernels-gaussian-bridge")
def test_brownian_bridge():
    """With alpha = 1 and sigma^2 = time: the straight line between the ends, variance (s - r)(t - s)/(t - r)."""
    r, s, t = (Level(0.0, 1.0, math.sqrt(time)) for time in (1.0, 2.5, 7.0))
    kernel = gaussian.bridge(r, s, t)
    np.testing.assert_allclose(kernel.weights, [0.25, 0.75], rtol=ROUNDING)
    assert kernel.std**2 == pytest.approx(1.5 * 4.5 / 6.0, rel=ROUNDING)


# -- composition ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-gaussian-compose")
@pytest.mark.parametrize("name", SCHEDULES)
def test_chapman_kolmogorov(name):
    r, s, t = three(name)
    noisier = {"flow": 0.97, "vp": 0.97, "ve": 20.0}[name]
    u = SCHEDULES[name].level(noisier)
    pairs = [
        (gaussian.forward(r, s), gaussian.forward(s, t), gaussian.forward(r, t)),
        (gaussian.posterior(s, t), gaussian.posterior(r, s), gaussian.posterior(r, t)),
        (gaussian.bridge(r, t, u), gaussian.bridge(r, s, t), gaussian.bridge(r, s, u)),
    ]
    for first, second, both in pairs:
        found = gaussian.compose(first, second)
        np.testing.assert_allclose(found.weights, both.weights, rtol=2 * ROUNDING)
        assert found.std == pytest.approx(both.std, rel=2 * ROUNDING)
        # standard deviations do not add, and the first noise passes through the second kernel
        assert abs(second.weights[0] * first.std + second.std - both.std) > MISTAKE
        assert second.weights[0] == 1.0 or abs(math.hypot(first.std, second.std) - both.std) > MISTAKE


@pytest.mark.claim("kernels-gaussian-compose")
def test_composition_is_associative_and_has_a_unit():
    levels = [VP.level(t) for t in (0.1, 0.3, 0.5, 0.9)]
    a, b, c = (gaussian.forward(s, t) for s, t in itertools.pairwise(levels))
    left, right = gaussian.compose(gaussian.compose(a, b), c), gaussian.compose(a, gaussian.compose(b, c))
    np.testing.assert_allclose([*left.weights, left.std], [*right.weights, right.std], rtol=ROUNDING)
    unit = gaussian.forward(levels[0], levels[0])
    assert (float(unit.weights[0]), float(unit.std)) == (1.0, 0.0)
    same = gaussian.compose(unit, a)
    np.testing.assert_array_equal([*same.weights, same.std], [*a.weights, a.std])


# -- mean and sample --------------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-gaussian-kernel")
def test_moments_of_samples():
    """Of the draw itself with prescribed normals, and of 10^5 draws to 4 standard errors."""
    _, s, t = three("vp")
    kernel = gaussian.posterior(s, t)
    x_t, x_0, z = np.asarray([0.4, -1.0]), np.asarray([1.0, 2.0]), np.asarray([0.3, -0.7])
    asked = []

    def given_z(row: int, _: np.ndarray) -> np.ndarray:
        asked.append(row)
        return z

    draw = kernel.sample(x_t, x_0, rng=given_z, row=3)
    assert asked == [3]
    np.testing.assert_array_equal(kernel.mean(x_t, x_0), kernel.weights[0] * x_t + kernel.weights[1] * x_0)
    np.testing.assert_allclose(draw, kernel.mean(x_t, x_0) + kernel.std * z, rtol=ROUNDING)
    many = kernel.sample(np.full(100_000, 0.4), np.full(100_000, 1.0), rng=np.random.default_rng(0))
    assert many.mean() == pytest.approx(kernel.mean(x_t, x_0)[0], abs=4 * kernel.std / math.sqrt(1e5))
    assert many.std() == pytest.approx(kernel.std, rel=4 / math.sqrt(2e5))


@pytest.mark.claim("kernels-gaussian-kernel")
def test_a_chain_of_draws_has_the_law_of_the_oracle():
    """x_0 from a mixture, forward to s and on to t: the law of x_t, in its first two moments."""
    data = oracles.mixture([0.3, 0.7], [[-1.0], [0.8]], [0.3, 0.4])
    rng = np.random.default_rng(1)
    x, n = data.sample(rng, 200_000), 200_000
    _, s, t = three("flow")
    for a, b in itertools.pairwise((CLEAN, s, t)):
        x = gaussian.forward(a, b).sample(x, rng=rng)
    mean, second = 0.3 * -1.0 + 0.7 * 0.8, 0.3 * (1 + 0.09) + 0.7 * (0.64 + 0.16)
    std = math.sqrt(t.alpha**2 * (second - mean**2) + t.sigma**2)
    assert x.mean() == pytest.approx(t.alpha * mean, abs=4 * std / math.sqrt(n))
    assert x.std() == pytest.approx(std, rel=4 / math.sqrt(2 * n))


def test_levels_are_aligned_on_the_first_axes():
    """As everywhere: one level for each sample, also where samples and components are as many."""
    t = np.asarray([0.2, 0.5, 0.9])
    kernel = gaussian.posterior(FLOW.level(0.5 * t), FLOW.level(t))
    assert kernel.std.shape == (3,)
    for shape in ((3,), (3, 3), (3, 2), (3, 2, 4)):
        x, y = np.random.default_rng(0).normal(size=(2, *shape))
        z = np.random.default_rng(1).normal(size=shape)
        draw = kernel.sample(x, y, rng=lambda row, like, z=z: z)
        for n in range(3):
            one = gaussian.posterior(FLOW.level(0.5 * t[n]), FLOW.level(t[n]))
            np.testing.assert_allclose(kernel.mean(x, y)[n], one.mean(x[n], y[n]), rtol=ROUNDING)
            np.testing.assert_allclose(draw[n], one.mean(x[n], y[n]) + one.std * z[n], rtol=4 * ROUNDING)
    x = np.random.default_rng(2).normal(size=(3, 3))
    assert np.abs(kernel.weights[0] * x + kernel.weights[1] * x - kernel.mean(x, x)).max() > MISTAKE
    # axes that are there stay, one point serves many levels, and so does one data set for all
    column = gaussian.posterior(FLOW.level(0.5 * t[:, None]), FLOW.level(t[:, None]))
    np.testing.assert_array_equal(column.mean(x, x), kernel.mean(x, x))
    np.testing.assert_array_equal(
        kernel.mean(np.asarray(0.3), np.asarray(0.1)), kernel.mean(*np.full((2, 3), [[0.3], [0.1]]))
    )
    np.testing.assert_array_equal(kernel.mean(x, np.ones((1, 3))), kernel.mean(x, np.ones((3, 3))))
    for shape in ((2, 3), (2,), (4, 3)):
        with pytest.raises(ValueError, match=r"points must have first axes that fit .*\(3,\), .* got shape"):
            kernel.mean(np.zeros(shape), np.zeros(shape))
    with pytest.raises(ValueError, match="points must have first axes"):
        column.mean(np.zeros(3), np.zeros(3))


# -- ends -------------------------------------------------------------------------------------------------------------


def values(kernel: Kernel) -> tuple[float, ...]:
    return (*map(float, kernel.weights), float(kernel.std))


@pytest.mark.claim("kernels-gaussian-forward", "kernels-gaussian-posterior", "kernels-gaussian-bridge")
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_ends_are_exact(schedule):
    clean, r, s, pure = (schedule.level(t) for t in (0.0, 0.25, 0.5, 1.0))
    assert (clean.sigma, pure.alpha) == (0.0, 0.0)
    assert values(gaussian.forward(clean, s)) == (s.alpha, s.sigma)
    assert values(gaussian.forward(s, pure)) == (0.0, 1.0)
    assert values(gaussian.forward(clean, pure)) == (0.0, 1.0)
    assert values(gaussian.posterior(clean, s)) == (0.0, 1.0, 0.0)
    assert values(gaussian.posterior(s, pure)) == (0.0, s.alpha, s.sigma)
    assert values(gaussian.posterior(clean, pure)) == (0.0, 1.0, 0.0)
    assert values(gaussian.bridge(clean, r, s)) == values(gaussian.posterior(r, s))
    assert values(gaussian.bridge(r, s, pure)) == (0.0, *values(gaussian.forward(r, s)))
    for level in (clean, s, pure):
        assert values(gaussian.forward(level, level)) == (1.0, 0.0)
        assert values(gaussian.bridge(level, level, level)) == (0.0, 1.0, 0.0)
    for level in (s, pure):
        assert values(gaussian.posterior(level, level)) == (1.0, 0.0, 0.0)
        assert values(gaussian.bridge(r, level, level)) == (1.0, 0.0, 0.0)
    assert values(gaussian.bridge(r, r, s)) == (0.0, 1.0, 0.0)


def test_levels_that_are_equal_up_to_rounding_pass():
    s = VP.level(np.asarray(0.3))
    around = VP.level_at(s.log_snr)
    for pair in ((s, around), (around, s)):
        assert float(gaussian.forward(*pair).std) < 1e-7


# -- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_library_and_dtype(backend: Backend, dtype: str, name: str):
    tolerance = SINGLE if dtype == "float32" else ROUNDING
    levels = [SCHEDULES[name].level(backend.asarray(t, dtype)) for t in TIMES[name]]
    reference = [SCHEDULES[name].level(np.asarray(t, dtype).astype(float)) for t in TIMES[name]]
    points = [np.asarray([0.4, -1.0]), np.asarray([0.7, 0.2])]
    for function, count in ((gaussian.forward, 2), (gaussian.posterior, 2), (gaussian.bridge, 3)):
        kernel, expected = function(*levels[-count:]), function(*reference[-count:])
        for mine, theirs in zip((*kernel.weights, kernel.std), (*expected.weights, expected.std), strict=True):
            assert backend.dtype(mine) == dtype
            assert backend.numpy(mine) == pytest.approx(float(theirs), rel=16 * tolerance)
        at = points[: len(kernel.weights)]
        mean = kernel.mean(*(backend.asarray(p, dtype) for p in at))
        assert backend.dtype(mean) == dtype
        np.testing.assert_allclose(backend.numpy(mean), expected.mean(*at), rtol=16 * tolerance, atol=4 * tolerance)
        # float64 levels of NumPy beside the library's points
        mean = expected.mean(*(backend.asarray(p, dtype) for p in at))
        assert backend.dtype(mean) == dtype
        np.testing.assert_allclose(backend.numpy(mean), expected.mean(*at), rtol=4 * tolerance, atol=4 * tolerance)


def test_a_level_may_mix_numbers_and_arrays(backend: Backend):
    """alpha = 1 of a number beside sigma of the library, and the other way round."""
    sigma, alpha = backend.asarray(0.5), backend.asarray(0.8)
    kernel = gaussian.forward(Level(0.0, 1.0, 0.25), Level(0.0, 1.0, sigma))
    assert backend.numpy(kernel.std) == pytest.approx(math.sqrt(0.25 - 0.0625), rel=ROUNDING)
    kernel = gaussian.forward(Level(0.0, 1.0, 0.25), Level(0.0, alpha, 0.5))
    assert backend.numpy(kernel.std) == pytest.approx(math.sqrt(0.25 - 0.64 * 0.0625), rel=ROUNDING)


def test_samples_on_each_library(backend: Backend):
    kernel = gaussian.forward(FLOW.level(0.2), FLOW.level(0.7))
    z = np.asarray([[0.3, -1.0]])
    for dtype in ("float32", "bfloat16" if backend.name in {"jax", "torch"} else "float64"):
        x = backend.asarray([[1.0, 2.0]], dtype)
        draw = kernel.sample(x, rng=lambda row, like: backend.asarray(z, "float32"))
        assert backend.dtype(draw) == dtype
        wanted = kernel.mean(np.asarray([[1.0, 2.0]])) + kernel.std * z
        np.testing.assert_allclose(backend.numpy(draw), wanted, rtol=1e-2 if dtype == "bfloat16" else 1e-6)


def test_points_of_numpy_beside_those_of_another_library(backend: Backend):
    """As constants, whichever comes first; the result is of the library that is not NumPy, in the first one's dtype."""
    kernel = gaussian.posterior(FLOW.level(0.2), FLOW.level(0.7))
    x, y = np.asarray([0.3, 1.0]), np.asarray([-0.2, 0.4])
    for pair in ((backend.asarray(x, "float32"), y.tolist()), (x.tolist(), backend.asarray(y, "float32"))):
        found = kernel.mean(*pair)
        assert type(found) is type(backend.asarray(x))
        np.testing.assert_allclose(backend.numpy(found), kernel.mean(x, y), rtol=1e-6)


def test_jax_keys_one_for_each_sample():
    jax = pytest.importorskip("jax")
    kernel = gaussian.forward(FLOW.level(0.2), FLOW.level(0.7))
    x = jax.numpy.ones((3, 2))
    keys = jax.random.split(jax.random.key(0), 3)
    whole, last = kernel.sample(x, rng=keys), kernel.sample(x[2:], rng=keys[2:])
    np.testing.assert_array_equal(whole[2:], last)
    assert not np.array_equal(whole, kernel.sample(x, rng=keys, row=1))


def test_jit_vmap_and_derivatives():
    """Through both levels, against a central difference of the mpmath-checked NumPy values."""
    jax = pytest.importorskip("jax")

    def std(t, s):
        return gaussian.posterior(VP.level(s), VP.level(t)).std

    numbers = jax.numpy.asarray(0.7), jax.numpy.asarray(0.4)
    assert float(jax.jit(std)(*numbers)) == pytest.approx(float(std(0.7, 0.4)), rel=1e-14)
    step = 1e-6
    for argnum in (0, 1):
        at = [0.7, 0.4]
        ends = []
        for sign in (1, -1):
            moved = list(at)
            moved[argnum] += sign * step
            ends.append(float(std(*moved)))
        assert float(jax.grad(std, argnum)(*numbers)) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-8)
    many = jax.numpy.asarray([0.5, 0.7, 1.0])
    np.testing.assert_allclose(jax.vmap(lambda t: std(t, 0.4))(many), [std(t, 0.4) for t in many], rtol=1e-14)


def parts(r: Any, s: Any, t: Any) -> list[Any]:
    levels = [Level(0.0, *level) for level in (r, s, t)]
    kernels = (gaussian.forward(*levels[1:]), gaussian.posterior(*levels[1:]), gaussian.bridge(*levels))
    return [value for kernel in kernels for value in (*kernel.weights, kernel.std)]


ENDS = {
    "to pure noise": ((0.9, 0.1), (0.5, 0.5), (0.0, 1.0)),
    "from clean data": ((1.0, 0.0), (0.5, 0.5), (0.3, 0.7)),
    "to clean data": ((1.0, 0.0), (1.0, 0.0), (0.3, 0.7)),
    "no step": ((0.5, 0.5), (0.5, 0.5), (0.5, 0.5)),
    "two clean levels": ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
    "two of pure noise": ((0.5, 0.5), (0.0, 1.0), (0.0, 1.0)),
}


@pytest.mark.parametrize("name", ENDS)
def test_derivatives_at_the_ends_are_finite(name):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    levels = ENDS[name]
    jacobian = jax.jacobian(lambda *a: jax.numpy.stack(parts(*a)), (0, 1, 2))(*map(jax.numpy.asarray, levels))
    assert np.isfinite(jacobian).all()
    for k in range(8):
        tensors = [torch.tensor(level, requires_grad=True) for level in levels]
        parts(*tensors)[k].sum().backward()
        assert all(tensor.grad is None or torch.isfinite(tensor.grad).all() for tensor in tensors)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-gaussian-posterior")
def test_swapped_levels_are_refused():
    """With s and t exchanged the formula gives a variance below 0, which is how it is found in the wild."""
    r, s, t = three("flow")
    assert -np.expm1(-2 * (t.log_snr - s.log_snr)) < 0.0
    for function in (gaussian.forward, gaussian.posterior):
        with pytest.raises(ValueError, match=r"t must be at least as noisy as s, got log-SNR 0\.40\d* after -1\.73"):
            function(t, s)
    with pytest.raises(ValueError, match="s must be at least as noisy as r"):
        gaussian.bridge(s, r, t)
    with pytest.raises(ValueError, match="t must be at least as noisy as s"):
        gaussian.bridge(r, t, s)


def test_pure_noise_leads_to_nothing_else():
    with pytest.raises(ValueError, match="t must be at least as noisy as s"):
        gaussian.forward(Level(1.0, 0.0, 1.0), Level(1.0, 0.0, 2.0))


@given(count=st.integers(0, 4))
def test_as_many_points_as_weights(count):
    kernel = gaussian.posterior(*three("vp")[1:])
    points = [np.zeros(2)] * count
    if count == 2:
        assert kernel.mean(*points).shape == (2,)
        return
    with pytest.raises(ValueError, match=f"points must be 2, one for each weight, got {count}"):
        kernel.mean(*points)
    with pytest.raises(ValueError, match=f"points must be 2, one for each weight, got {count}"):
        kernel.sample(*points, rng=np.random.default_rng(0))


def test_other_input_is_refused():
    s, t = three("vp")[1:]
    with pytest.raises(TypeError, match="s must be a Level, got float"):
        gaussian.forward(0.3, t)
    with pytest.raises(ValueError, match="second must have as many weights as first, 1, got 2"):
        gaussian.compose(gaussian.forward(s, t), gaussian.posterior(s, t))
    with pytest.raises(TypeError, match="rng must be"):
        gaussian.forward(s, t).sample(np.zeros(2), rng=7)


@pytest.mark.parametrize(
    "alpha, sigma",
    [(-0.5, 0.5), (0.5, -0.1), (0.0, 0.0), (math.inf, 1.0), (1.0, math.inf), (math.nan, 1.0), (1.0, math.nan)],
)
def test_what_is_no_level_is_refused(alpha, sigma):
    wrong, good = Level(0.5, alpha, sigma), FLOW.level(0.5)
    for levels, name in (((wrong, good), "s"), ((good, wrong), "t")):
        for function in (gaussian.forward, gaussian.posterior):
            with pytest.raises(ValueError, match=f"^{name} must have finite alpha, sigma >= 0, not both zero, got"):
                function(*levels)
    several = Level(0.5, np.asarray([0.5, alpha]), np.asarray([0.5, sigma]))
    with pytest.raises(ValueError, match=r"^r must have finite alpha"):
        gaussian.bridge(several, good, good)


def test_only_kernels_are_composed():
    kernel = gaussian.forward(*three("vp")[1:])
    with pytest.raises(TypeError, match="first must be a Kernel, got NoneType"):
        gaussian.compose(None, kernel)
    with pytest.raises(TypeError, match="second must be a Kernel, got tuple"):
        gaussian.compose(kernel, ((1.0,), 0.0))
