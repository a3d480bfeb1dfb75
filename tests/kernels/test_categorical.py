"""Categorical kernels against enumeration, matrix exponentials, Bayes' rule, high precision and exact laws of draws."""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st

from diffnum import _backend
from diffnum.kernels import _draws, _logspace
from diffnum.kernels import categorical as cat
from diffnum.kernels.categorical import Keep, KeepSchedule

EPS = 2.0**-52
UNIT = 2.0**-24
"""Unit roundoff of float32."""

ROUNDING = 1e-13
"""Sums and logarithms of a dozen float64 numbers of order one."""

MISTAKE = 1e-3
"""A plausible mistake changes a probability by more than this."""

SCHEDULES: dict[str, KeepSchedule] = {
    "linear": cat.keep_linear(),
    "log-linear": cat.keep_log_linear(floor=0.01),
    "cosine": cat.keep_cosine(),
    "offset": cat.keep_cosine(offset=0.2),
    "capped": cat.keep_cosine(offset=0.008, max_rate=5.0),
    "square": cat.keep_polynomial(power=2.0),
    "noise power": cat.keep_polynomial(power=2.5, of="noise"),
    "rates": cat.keep_linear_rate(),
    "geometric": cat.keep_geometric(),
    "sigmoid": cat.keep_sigmoid(start=-2.0, end=4.0, tau=0.7),
    "log-odds": cat.keep_log_odds(start=7.0, end=-11.0),
}


def formula(name: str, t: Any) -> Any:
    """Alpha at mpmath time `t`, as the papers write it."""
    pi, exp = mp.pi, mp.exp

    def shifted(t: Any) -> Any:
        return mp.cos(pi / 2 * (t + mp.mpf(0.2)) / (1 + mp.mpf(0.2))) ** 2

    def logistic(t: Any) -> Any:
        return 1 / (1 + exp(-(t * 6 - 2) / mp.mpf(0.7)))

    return {
        "linear": lambda: 1 - t,
        "log-linear": lambda: exp(mp.log(1 - (1 - mp.mpf(0.01)) * t)),
        "cosine": lambda: mp.cos(pi * t / 2) ** 2,
        "offset": lambda: shifted(t) / shifted(0),
        "square": lambda: (1 - t) ** 2,
        "noise power": lambda: 1 - t ** mp.mpf(2.5),
        "rates": lambda: exp(-mp.quad(lambda u: mp.mpf(0.1) + (20 - mp.mpf(0.1)) * u, [0, t])),
        "geometric": lambda: exp(-(mp.mpf(1e-4) ** (1 - t)) * 20**t),
        "sigmoid": lambda: (logistic(1) - logistic(t)) / (logistic(1) - logistic(0)),
        "log-odds": lambda: 1 / (1 + exp(-(7 * (1 - t) - 11 * t))),
    }[name]()


# -- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.claim(
    "kernels-categorical-keep",
    "kernels-categorical-schedules",
    "kernels-categorical-cosine",
    "kernels-categorical-odds",
)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "capped"])
@pytest.mark.parametrize("t", [2.0**-40, 2.0**-10, 0.1875, 0.5, 0.8125, 1 - 2.0**-10, 1 - 2.0**-40])
def test_both_logarithms_to_rounding(name, t):
    """In both, to a few roundings of the larger of 1 and themselves: also where alpha or 1 - alpha is 1e-12."""
    with mp.workdps(60):
        alpha = formula(name, mp.mpf(t))
        exact = [float(mp.log(alpha)), float(mp.log(1 - alpha))]
    level = SCHEDULES[name].level(t)
    for value, truth in zip((level.log_alpha, level.log_noise), exact, strict=True):
        # a logarithm near 0 is as accurate as its small partner, relatively
        assert abs(float(value) - truth) <= 40 * EPS * min(1.0 + abs(truth), 8.0 * abs(truth) + 1e-300) + 2e-16 * (
            abs(truth) > 1e-3
        )


@pytest.mark.claim("kernels-categorical-keep")
def test_one_logarithm_alone_is_not_enough():
    """Float32 log(1 - exp(log alpha)) of cos^2 at small t from a rounded alpha: no digit is right."""
    t = np.float32(2e-4)
    level = cat.keep_cosine().level(t)
    assert level.log_noise.dtype == np.float32
    exact = 2 * math.log(math.sin(math.pi * float(t) / 2))
    assert float(level.log_noise) == pytest.approx(exact, abs=16 * UNIT * abs(exact))
    with np.errstate(divide="ignore"):
        wrong = np.log(np.float32(1) - np.exp(level.log_alpha))
    assert abs(float(wrong) - exact) > 0.01


@pytest.mark.claim("kernels-categorical-rate")
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_derivatives_of_their_levels(name):
    """By JAX through the levels: all three, at times on either side of the cap."""
    jax = pytest.importorskip("jax")
    schedule = SCHEDULES[name]
    t = np.asarray([0.03, 0.3, 0.72, 0.9, 0.97])

    def parts(u):
        level = schedule.level(u)
        return jax.numpy.stack([-level.log_alpha, level.log_noise, -level.alpha])

    found = jax.jit(jax.vmap(jax.jacfwd(parts)))(jax.numpy.asarray(t))
    exact = np.stack([schedule.rate(t), schedule.growth(t), schedule.slope(t)], axis=-1)
    np.testing.assert_allclose(found, exact, rtol=1e-11)
    # beta and sigma' of other papers are not the slope of alpha
    assert (abs(exact[1:, 0] / exact[1:, 2] - 1) > MISTAKE).all()


@pytest.mark.claim("kernels-categorical-keep", "kernels-categorical-rate", "kernels-categorical-cosine")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ends_are_exact(backend: Backend, dtype: str):
    ends = backend.asarray([0.0, 1.0], dtype)
    for name in ("linear", "cosine", "offset", "square", "noise power", "sigmoid"):
        level = SCHEDULES[name].level(ends)
        assert backend.dtype(level.log_alpha) == dtype
        np.testing.assert_array_equal(backend.numpy(level.log_alpha), [0.0, -math.inf])
        np.testing.assert_array_equal(backend.numpy(level.log_noise), [-math.inf, 0.0])
        np.testing.assert_array_equal(backend.numpy(level.alpha), [1.0, 0.0])
        np.testing.assert_array_equal(backend.numpy(level.noise), [0.0, 1.0])
        np.testing.assert_array_equal(backend.numpy(level.log_odds), [math.inf, -math.inf])
        assert backend.numpy(SCHEDULES[name].rate(ends))[1] == math.inf
        assert backend.numpy(SCHEDULES[name].growth(ends))[0] == math.inf
        assert np.isfinite(backend.numpy(SCHEDULES[name].slope(ends))).all()
        assert SCHEDULES[name].terminal == 0.0
    # written as in the papers the end is not 0, and a uniform of 0 keeps the token
    half = np.asarray(math.pi / 2, dtype)
    assert 0.0 < float(np.cos(half) ** 2) < 1e-14
    assert float(SCHEDULES["cosine"].rate(0.0)) == 0.0
    assert float(SCHEDULES["cosine"].slope(1.0)) == 0.0
    assert float(SCHEDULES["cosine"].growth(1.0)) == 0.0
    assert float(SCHEDULES["linear"].slope(1.0)) == 1.0


@pytest.mark.claim("kernels-categorical-discrete", "kernels-categorical-cosine")
def test_table_of_the_cosine_in_sixteen_steps():
    """Both rows of the table of a published text model: cumulative, and the one-step probabilities it leaves out."""
    table = [0.9904, 0.9619, 0.9157, 0.8536, 0.7778, 0.6913, 0.5975, 0.5, 0.4025, 0.3087, 0.2222, 0.1464, 0.0843]
    table += [0.0381, 0.0096, 0.0]
    one_step = [0.9904, 0.9713, 0.9520, 0.9321, 0.9112, 0.8889, 0.8643, 0.8368, 0.8049, 0.7669, 0.7199, 0.6590, 0.5754]
    one_step += [0.4517, 0.2524, 0.0]
    chain = cat.preset("canvas")
    t = np.arange(17) / 16
    np.testing.assert_allclose(chain.alpha(t[1:]), table, atol=5.1e-5)
    steps = cat.between(chain.level(t[:-1]), chain.level(t[1:])).alpha
    np.testing.assert_allclose(steps, one_step, atol=5.1e-5)
    np.testing.assert_allclose(np.exp(-chain.rate(t[1:]) / 16), steps, rtol=ROUNDING)
    np.testing.assert_allclose(np.cumprod(steps), chain.alpha(t[1:]), atol=EPS)
    # one symbol for both: the product of cumulative ones is .1196 at step 8 and not .5
    assert np.prod(chain.alpha(t[1:9])) == pytest.approx(0.1196, abs=5e-5)
    # expected number of corrupted positions of (16, 4096), a level each from 1 to 16
    assert 65536 * float(np.mean(chain.level(t[1:]).noise)) == pytest.approx(34816, abs=1e-8)


@pytest.mark.claim("kernels-categorical-terminal")
def test_terminal_signal_of_the_presets():
    """From the papers' formulas in mpmath; multinomial from the capped betas."""
    betas = []
    levels = [math.cos(math.pi / 2 * (k / 1000 + 0.008) / 1.008) ** 2 for k in range(1001)]
    betas = [min(1 - b / a, 0.999) for a, b in itertools.pairwise(levels)]
    expected = {
        "d3pm": 0.0,
        "multinomial": math.prod(1 - b for b in betas),
        "sedd": math.exp(-20.0),
        "mdlm": 1e-3,
        "vp": math.exp(-10.05),
        "canvas": 0.0,
    }
    for name, value in expected.items():
        assert cat.preset(name).terminal == pytest.approx(value, rel=1e-9, abs=0.0)
    assert f"{expected['vp']:.2e}" == "4.32e-05"
    assert 2e-9 < expected["multinomial"] < 3e-9
    assert {name: cat.preset(name).steps for name in expected} == {
        "d3pm": 1000,
        "multinomial": 1000,
        "sedd": None,
        "mdlm": None,
        "vp": None,
        "canvas": 16,
    }
    # 1/(T - t + 1), the one-step noise of Austin et al.
    chain = cat.preset("d3pm")
    for k in (1, 10, 999, 1000):
        step = cat.between(chain.level((k - 1) / 1000), chain.level(k / 1000))
        assert float(step.noise) == pytest.approx(1 / (1000 - k + 1), rel=1e-10)


@pytest.mark.claim("kernels-categorical-cosine", "kernels-categorical-discrete")
def test_a_cap_changes_level_and_rate():
    """-log alpha is the integral of the rate, by Gauss-Legendre on both sides of the turn; one cap alone is not."""
    capped, free = SCHEDULES["capped"], cat.keep_cosine(offset=0.008)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    turn = math.atan(5.0 / (math.pi / 1.008)) / (math.pi / 2 / 1.008) - 0.008
    for end in (0.5, 0.8, 1.0):
        total = 0.0
        for low, high in ((0.0, min(turn, end)), (min(turn, end), end)):
            at = low + (high - low) * (nodes + 1) / 2
            total += (high - low) / 2 * float(weights @ capped.rate(at))
        assert -float(capped.level(end).log_alpha) == pytest.approx(total, rel=1e-11)
        if end > turn:
            assert float(capped.rate(end)) == 5.0
            assert abs(float(free.alpha(end)) - math.exp(-total)) > MISTAKE
    assert float(capped.rate(turn - 1e-9)) == pytest.approx(5.0, rel=1e-7)
    # a chain: levels are products of the capped steps
    chain = cat.keep_discrete(cat.keep_cosine(), 8, max_noise=0.4)
    t = np.arange(9) / 8
    steps = cat.between(chain.level(t[:-1]), chain.level(t[1:])).noise
    plain = np.cos(np.pi * t / 2) ** 2
    np.testing.assert_allclose(steps, np.minimum(1 - plain[1:] / plain[:-1], 0.4), rtol=1e-12)
    np.testing.assert_allclose(chain.alpha(t[1:]), np.cumprod(1 - steps), rtol=1e-12)
    np.testing.assert_allclose(1 - np.exp(-chain.rate(t[1:]) / 8), steps, rtol=1e-12)
    assert abs(chain.terminal - plain[-1]) > MISTAKE


@pytest.mark.claim("kernels-categorical-discrete")
def test_chains_from_probabilities():
    betas = np.asarray([0.1, 0.0, 0.5, 1.0, 0.3])
    chain = cat.keep_discrete(betas)
    t = np.arange(6) / 5
    np.testing.assert_allclose(chain.alpha(t), [1, 0.9, 0.9, 0.45, 0, 0], rtol=1e-15)
    np.testing.assert_allclose(chain.level(t).noise, [0, 0.1, 0.1, 0.55, 1, 1], rtol=1e-15)
    np.testing.assert_allclose(chain.slope(t), 5 * np.asarray([0.1, 0.1, 0, 0.45, 0.45, 0]), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(chain.rate(t)[[1, 2, 3]], -5 * np.log([0.9, 1.0, 0.5]), rtol=1e-14)
    assert chain.rate(t)[4] == math.inf
    assert chain.steps == 5
    fine = cat.keep_discrete(np.full(1000, 1e-3))
    for k in (1, 333, 999):
        assert float(fine.level(np.float32(k / 1000)).log_alpha) == pytest.approx(k * math.log1p(-1e-3), rel=1e-6)
    with pytest.raises(ValueError, match="t must be a multiple of 1/5 for keep_discrete"):
        chain.level(0.3)


@pytest.mark.claim("kernels-categorical-interval")
def test_intervals_in_float32():
    """1 - alpha_{t|s} between close levels near clean data; the quotient of two alphas loses it."""
    for schedule in SCHEDULES.values():
        for t, gap in ((2e-3, 1e-5), (0.05, 1e-4), (0.4, 1e-3), (0.4, 0.4)):
            levels = [schedule.level(np.float32(u)) for u in (t, t + gap)]
            step = cat.between(*levels)
            assert step.log_noise.dtype == np.float32
            a, b = (float(level.log_alpha) for level in levels)
            exact = -math.expm1(b - a)
            assert float(step.noise) == pytest.approx(exact, rel=16 * UNIT * (1 + abs(math.log(exact))))
            assert float(step.alpha) == pytest.approx(math.exp(b - a), rel=8 * UNIT)
            assert step.t == levels[1].t
    errors = []
    for gap in (1.3e-6, 2.2e-6, 3.7e-6):
        s, t = (cat.keep_linear_rate().level(np.float32(u)) for u in (1e-3, 1e-3 + gap))
        wrong = 1 - t.alpha / s.alpha
        assert wrong.dtype == np.float32
        errors.append(abs(float(wrong) / -math.expm1(float(t.log_alpha) - float(s.log_alpha)) - 1))
    assert max(errors) > 0.01


@pytest.mark.claim("kernels-categorical-interval")
@pytest.mark.parametrize("name", SCHEDULES)
def test_intervals_multiply(name):
    r, s, t = (SCHEDULES[name].level(u) for u in (0.1, 0.4, 0.9))
    one, two, both = cat.between(r, s), cat.between(s, t), cat.between(r, t)
    assert float(one.log_alpha + two.log_alpha) == pytest.approx(float(both.log_alpha), rel=ROUNDING)
    assert float(both.noise) == pytest.approx(float(one.noise + one.alpha * two.noise), rel=ROUNDING)
    same = cat.between(s, s)
    assert (float(same.log_alpha), float(same.log_noise)) == (0.0, -math.inf)


def test_intervals_at_the_ends():
    clean, middle, pure = (SCHEDULES["cosine"].level(u) for u in (0.0, 0.5, 1.0))
    for s, t, wanted in (
        (clean, middle, (float(middle.log_alpha), float(middle.log_noise))),
        (clean, pure, (-math.inf, 0.0)),
        (middle, pure, (-math.inf, 0.0)),
        (pure, pure, (0.0, -math.inf)),
        (clean, clean, (0.0, -math.inf)),
    ):
        step = cat.between(s, t)
        np.testing.assert_allclose((float(step.log_alpha), float(step.log_noise)), wanted, rtol=1e-14)
    for s, t in ((middle, clean), (pure, middle), (pure, clean)):
        with pytest.raises(ValueError, match="t must be at least as noisy as s, got log alpha"):
            cat.between(s, t)
    with pytest.raises(TypeError, match="s must be a Keep, got float"):
        cat.between(0.3, middle)
    with pytest.raises(TypeError, match="t must be a Keep, got float"):
        cat.between(middle, 0.3)


# -- matrices ---------------------------------------------------------------------------------------------------------

K = 5
LAW = np.asarray([0.1, 0.0, 0.4, 0.2, 0.3])
WEIGHTS = np.asarray([[3, 1, 0, 0, 2], [1, 0, 5, 0, 0], [0, 5, 0, 1, 0], [0, 0, 1, 0, 1], [2, 0, 0, 1, 0]], float)
FAMILIES: dict[str, Any] = {
    "uniform": cat.uniform(K),
    "absorbing": cat.absorbing(K),
    "mask first": cat.absorbing(K, mask=0),
    "hybrid": cat.hybrid(K, share=0.3, mask=3),
    "law": cat.stationary(LAW),
    "band": cat.band(K),
    "similarity": cat.similarity(WEIGHTS),
    "gaussian": cat.discretised_gaussian(K, [0.02, 0.1, 0.3, 0.5]),
}
INTERPOLATIONS = ["uniform", "absorbing", "mask first", "hybrid", "law"]
LEVELS = [cat.keep_cosine().level(u) for u in (0.0, 0.2, 0.5, 0.8)]


def levels_of(name: str) -> list[Any]:
    """Clean data and three levels of increasing noise; step numbers for the chain."""
    return [0, 1, 2, 4] if name == "gaussian" else LEVELS


def law_of(name: str) -> np.ndarray:
    """Stationary laws, written out."""
    return {
        "uniform": np.full(K, 0.2),
        "absorbing": np.asarray([0.0, 0, 0, 0, 1]),
        "mask first": np.asarray([1.0, 0, 0, 0, 0]),
        "hybrid": np.asarray([0.175, 0.175, 0.175, 0.3, 0.175]),
        "law": LAW,
    }[name]


def generator(name: str) -> np.ndarray:
    """Rates of the walks, written out."""
    if name == "band":
        g = np.diag(np.ones(K - 1), 1) + np.diag(np.ones(K - 1), -1)
    else:
        g = WEIGHTS * (1 - np.eye(K))
        g = g / (g.sum() / K)
    return g - np.diag(g.sum(axis=1))


def matrix(name: str, t: Any, s: Any) -> np.ndarray:
    """Q_{t|s}, an oracle: naive formulas, scipy's exponential, products of matrices filled entry by entry."""
    if name == "gaussian":
        product = np.eye(K)
        for beta in [0.02, 0.1, 0.3, 0.5][s:t]:
            z = sum(math.exp(-4 * n * n / ((K - 1) ** 2 * beta)) for n in range(-(K - 1), K))
            q = np.zeros((K, K))
            for i, j in itertools.permutations(range(K), 2):
                q[i, j] = math.exp(-4 * (i - j) ** 2 / ((K - 1) ** 2 * beta)) / z
            for i in range(K):
                q[i, i] = 1 - q[i].sum()
            product = product @ q
        return product
    ratio = float(t.alpha) / float(s.alpha)
    if name in INTERPOLATIONS:
        return ratio * np.eye(K) + (1 - ratio) * law_of(name)[None, :]
    return scipy.linalg.expm(-math.log(ratio) * generator(name))


@pytest.mark.claim(
    "kernels-categorical-transition",
    "kernels-categorical-laws",
    "kernels-categorical-walk",
    "kernels-categorical-band",
    "kernels-categorical-gaussian",
    "kernels-categorical-chain",
)
@pytest.mark.parametrize("name", FAMILIES)
def test_transition_matrices(name):
    kernel, (clean, r, s, t) = FAMILIES[name], levels_of(name)
    for low, high in ((clean, r), (clean, t), (r, s), (s, t), (r, t)):
        q = cat.transition(kernel, high, low)
        np.testing.assert_allclose(q, matrix(name, high, low), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=1e-14)
        assert (q >= 0).all()
    np.testing.assert_array_equal(cat.transition(kernel, t), cat.transition(kernel, t, clean))
    # Chapman-Kolmogorov; the one-step matrix is not the cumulative one
    one, two = cat.transition(kernel, s, r), cat.transition(kernel, t, s)
    np.testing.assert_allclose(one @ two, cat.transition(kernel, t, r), atol=1e-14)
    assert abs(two - cat.transition(kernel, t)).max() > MISTAKE
    np.testing.assert_allclose(cat.transition(kernel, s, s), np.eye(K), atol=1e-14)


@pytest.mark.claim("kernels-categorical-gaussian", "kernels-categorical-chain", "kernels-categorical-band")
def test_which_families_commute():
    """Matrices of different beta do not: no function of a cumulative beta is their product. Walks do."""
    kernel = cat.discretised_gaussian(12, [0.02, 0.2])
    first, second = kernel.steps
    assert 0.01 < abs(first @ second - second @ first).max() < 0.05
    np.testing.assert_array_equal(kernel.cumulative[2], first @ second)
    for name in ("band", "similarity", *INTERPOLATIONS):
        a, b = (cat.transition(FAMILIES[name], t) for t in LEVELS[1:3])
        np.testing.assert_allclose(a @ b, b @ a, atol=1e-14)


@pytest.mark.claim("kernels-categorical-gaussian")
def test_discretised_gaussian_is_symmetric_with_a_band():
    kernel = cat.discretised_gaussian(9, [0.05], width=2)
    (step,) = kernel.steps
    np.testing.assert_array_equal(step, step.T)
    assert step[0, 3] == 0.0 < step[0, 2]
    full = cat.discretised_gaussian(9, [0.05]).steps[0]
    assert full[0, 3] > 0.0
    np.testing.assert_array_equal(step[3, 4], full[3, 4])


@pytest.mark.claim("kernels-categorical-band")
def test_band_has_the_variance_of_a_walk():
    """2 tau away from the ends; within 5e-5 of the Gaussian density at tau = 50."""
    kernel = cat.band(401)
    for tau in (0.1, 5.0, 50.0):
        row = cat.transition(kernel, Keep(0.0, np.asarray(-tau), np.asarray(0.0)))[200]
        place = np.arange(401) - 200
        # 401 entries to 1e-16, times squares up to 40,000
        assert row @ place**2 == pytest.approx(2 * tau, abs=1e-7)
    gauss = np.exp(-(place**2) / 200) / math.sqrt(200 * math.pi)
    assert abs(row - gauss).max() < 5.1e-5 < abs(row - np.exp(-(place**2) / 100) / math.sqrt(100 * math.pi)).max()


@pytest.mark.claim("kernels-categorical-walk")
def test_walks_end_in_their_stationary_laws():
    """tau is infinite where alpha = 0: uniform on each connected set."""
    pure = cat.keep_cosine().level(1.0)
    np.testing.assert_allclose(cat.transition(FAMILIES["band"], pure), 1 / K, rtol=1e-14)
    apart = np.zeros((4, 4))
    apart[0, 1] = apart[1, 0] = 1.0
    apart[2, 3] = apart[3, 2] = 0.5
    q = cat.transition(cat.similarity(apart), pure)
    np.testing.assert_allclose(q, np.kron(np.eye(2), np.full((2, 2), 0.5)), atol=1e-15)


# -- marginals and posteriors -----------------------------------------------------------------------------------------

TOKENS = np.asarray([[0, 1, 2], [3, 4, 2]])


@pytest.mark.claim("kernels-categorical-marginal")
@pytest.mark.parametrize("name", FAMILIES)
def test_marginals_are_rows_and_likelihoods_columns(name):
    kernel, (clean, _, s, t) = FAMILIES[name], levels_of(name)
    for level in (s, t):
        q = matrix(name, level, clean)
        found = cat.marginal(kernel, TOKENS, level)
        assert found.shape == (2, 3, K)
        np.testing.assert_allclose(np.exp(found), q[TOKENS], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(np.exp(cat.likelihood(kernel, TOKENS, level)), q.T[TOKENS], rtol=1e-12, atol=1e-15)
    one = np.exp(cat.marginal(kernel, 3, s))
    np.testing.assert_allclose(one, matrix(name, s, clean)[3], rtol=1e-12, atol=1e-15)
    if name in INTERPOLATIONS:
        each = Keep(0.0, *(np.stack([part, part, part]) for part in t[1:]))
        np.testing.assert_allclose(np.exp(cat.marginal(kernel, TOKENS, each)), np.exp(cat.marginal(kernel, TOKENS, t)))


def bayes(name: str, s: Any, t: Any) -> np.ndarray:
    """q(x_s | x_t, x_0) as [x_t, x_0, x_s], by enumeration; NaN where x_t is impossible for x_0."""
    clean = levels_of(name)[0]
    joint = matrix(name, s, clean)[:, :, None] * matrix(name, t, s)[None]  # x_0, x_s, x_t
    total = joint.sum(axis=1, keepdims=True)
    return np.moveaxis(np.where(total > 0, joint, np.nan) / np.where(total > 0, total, 1.0), (0, 1, 2), (1, 2, 0))


@pytest.mark.claim("kernels-categorical-posterior")
@pytest.mark.parametrize("name", FAMILIES)
def test_posteriors_by_enumeration(name):
    kernel, (clean, _, s, t) = FAMILIES[name], levels_of(name)
    x_t, x_0 = np.meshgrid(np.arange(K), np.arange(K), indexing="ij")
    found = np.exp(cat.posterior(kernel, x_t, x_0, s, t))
    exact = bayes(name, s, t)
    possible = ~np.isnan(exact)
    np.testing.assert_allclose(found[possible], exact[possible], rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-13)
    # impossible pairs carry x_t over
    where = ~possible[..., 0]
    assert where.any() == (name in {"absorbing", "mask first", "law"})
    np.testing.assert_array_equal(found[where], np.eye(K)[x_t[where]])
    # the level at t in the place of that at s: the current alpha for the next one
    if name != "gaussian":
        wrong = np.exp(cat.posterior(kernel, x_t, x_0, t, t))
        assert abs(wrong - found)[possible].max() > MISTAKE
    back = np.exp(cat.posterior(kernel, x_t, x_0, clean, t))
    np.testing.assert_allclose(back[possible], np.broadcast_to(np.eye(K), (K, K, K))[possible], atol=1e-14)


@pytest.mark.claim("kernels-categorical-posterior")
def test_absorbing_posterior_carries_over():
    """A token once revealed stays. Without carry-over, renormalised with an epsilon, it does not."""
    kernel, s, t = FAMILIES["absorbing"], *LEVELS[2:]
    law = np.exp(cat.posterior(kernel, 1, 1, s, t))
    np.testing.assert_array_equal(law, [0, 1, 0, 0, 0])
    epsilon = (matrix("absorbing", t, s)[:, 1] + 1e-3) * (matrix("absorbing", s, LEVELS[0])[1] + 1e-3)
    assert abs(epsilon / epsilon.sum() - law).max() > MISTAKE
    masked = np.exp(cat.posterior(kernel, 4, 1, s, t))
    reveal = float((s.alpha - t.alpha) / t.noise)
    np.testing.assert_allclose(masked, [0, reveal, 0, 0, 1 - reveal], rtol=1e-13)


DATA = np.asarray([0.05, 0.3, 0.15, 0.4, 0.1])


@pytest.mark.claim("kernels-categorical-mixture", "kernels-categorical-leave-one-out")
@pytest.mark.parametrize("name", FAMILIES)
def test_mixtures_by_enumeration(name):
    """One token of law DATA: the leave-one-out law is DATA itself, the posterior head its product with q(x_t | x_0)."""
    kernel, (clean, _, s, t) = FAMILIES[name], levels_of(name)
    data = DATA * (np.arange(K) != kernel.mask) if name in {"absorbing", "mask first"} else DATA
    data = data / data.sum()
    joint = data[:, None, None] * matrix(name, s, clean)[:, :, None] * matrix(name, t, s)[None]
    both = joint.sum(axis=0)  # x_s, x_t
    truth = (both / both.sum(axis=0)).T
    head = (joint.sum(axis=1) / both.sum(axis=0)).T  # x_t, x_0
    x_t = np.arange(K)
    log_p = np.asarray(_logspace.log_of(np.tile(data, (K, 1))))
    found = np.exp(cat.mixture_posterior(kernel, x_t, log_p, s, t))
    np.testing.assert_allclose(found, truth, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(np.exp(cat.to_posterior(kernel, x_t, log_p, t)), head, rtol=1e-11, atol=1e-15)
    log_head = np.asarray(_logspace.log_of(head))
    from_head = np.exp(cat.mixture_posterior(kernel, x_t, log_head, s, t, head="posterior"))
    np.testing.assert_allclose(from_head, truth, rtol=1e-10, atol=1e-14)
    # an exact posterior taken for a leave-one-out law counts the noisy token twice
    if name not in {"absorbing", "mask first"}:
        twice = np.exp(cat.mixture_posterior(kernel, x_t, log_head, s, t))
        assert abs(twice - truth).max() > MISTAKE
        back = np.exp(cat.to_leave_one_out(kernel, x_t, log_head, t))
        known = head > 0
        np.testing.assert_allclose(
            back[known & (known.sum(-1, keepdims=True) == K)].reshape(-1, K),
            np.tile(data, ((known.sum(-1) == K).sum(), 1)),
            rtol=1e-11,
        )


@pytest.mark.claim("kernels-categorical-leave-one-out")
def test_leave_one_out_of_two_tokens():
    """A correlated pair under uniform noise: the law of token 1 given the noisy token 2 alone, by enumeration."""
    rng = np.random.default_rng(0)
    pair = rng.dirichlet(np.ones(K * K)).reshape(K, K)
    kernel, t = FAMILIES["uniform"], LEVELS[2]
    q = matrix("uniform", t, LEVELS[0])
    given_2 = pair @ q  # x_0 of token 1, x_t of token 2
    leave = given_2 / given_2.sum(axis=0)
    for z1, z2 in itertools.product(range(K), repeat=2):
        exact = q[:, z1] * given_2[:, z2]
        exact /= exact.sum()
        found = cat.to_posterior(kernel, z1, np.log(leave[:, z2]), t)
        np.testing.assert_allclose(np.exp(found), exact, rtol=1e-12)
        np.testing.assert_allclose(np.exp(cat.to_leave_one_out(kernel, z1, np.log(exact), t)), leave[:, z2], rtol=1e-12)
        assert abs(exact - leave[:, z2]).max() > MISTAKE


def test_a_settled_token_keeps_its_place():
    kernel, t = FAMILIES["absorbing"], LEVELS[2]
    log_p = np.log([0.1, 0.2, 0.3, 0.3, 0.1])
    for function in (cat.to_posterior, cat.to_leave_one_out):
        np.testing.assert_array_equal(np.exp(function(kernel, 2, log_p, t)), [0, 0, 1, 0, 0])
    rare = np.log([0.5, 0.5, 1e-300, 1e-300, 1e-300])
    found = np.exp(cat.mixture_posterior(kernel, 2, rare, LEVELS[1], t))
    np.testing.assert_allclose(found, [0, 0, 1, 0, 0], rtol=1e-12)
    empty = np.asarray([0.0, *([-math.inf] * 4)])
    for head in ("leave_one_out", "posterior"):
        found = cat.mixture_posterior(kernel, 2, empty, LEVELS[1], t, head=head)
        np.testing.assert_array_equal(np.exp(found), [0, 0, 1, 0, 0])
    dense = cat.similarity(np.asarray([[0, 1.0, 0], [1, 0, 0], [0, 0, 0]]))
    found = cat.mixture_posterior(dense, 2, empty[:3], LEVELS[1], t)
    np.testing.assert_array_equal(np.exp(found), [0, 0, 1])


@pytest.mark.claim("kernels-categorical-mixture")
def test_tiny_probabilities_survive_in_float32():
    """Log-probabilities of -200 pass through an absorbing step; through exp they would be 0."""
    kernel, s, t = cat.absorbing(4), *LEVELS[1:3]
    log_p = np.asarray([0.0, -200.0, -300.0, -math.inf], np.float32)
    found = cat.mixture_posterior(kernel, 3, log_p, s, t)
    assert found.dtype == np.float32
    reveal = float((s.alpha - t.alpha) / t.noise)
    np.testing.assert_allclose(found[:3], log_p[:3] + math.log(reveal), rtol=1e-6)
    assert np.exp(log_p[1]) == 0.0


# -- draws ------------------------------------------------------------------------------------------------------------

ALL = np.arange(2**16, dtype=np.int64) * 2**16 + 2**15
"""Words in the middle of 65,536 equal parts: frequencies are probabilities to 2^-16."""


def words(*rows: Any):
    """A source of prescribed words, one array for each row."""

    def given_words(row: int, like: Any) -> Any:
        return np.broadcast_to(np.asarray(rows[row], np.int64), like.shape)

    return given_words


def fixed(backend: Backend, values: Any):
    """A source of the same words in every draw, for each library."""
    return lambda row, like: backend.asarray(np.broadcast_to(values, tuple(like.shape)).astype(np.int64), None)


@pytest.mark.claim("kernels-categorical-draw")
@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_law_of_q_sample_on_prescribed_words(name):
    """Kept with frequency alpha, and the rest of law pi, each to the resolution of the words: no Monte Carlo."""
    kernel, t = FAMILIES[name], LEVELS[2]
    x_0 = np.full(2**16, 2)
    kept = cat.q_sample(words(ALL, 0, 2**31), x_0, t, kernel)
    least = 0 if law_of(name)[0] > 0 else kernel.mask if kernel.mask is not None else None
    share = np.mean(kept == 2)
    assert share == pytest.approx(float(t.alpha), abs=2**-15) or least == 2
    fresh = cat.q_sample(words(2**32 - 1, ALL, 2**31), x_0, cat.keep_cosine().level(1.0), kernel)
    law = np.bincount(fresh, minlength=K) / 2**16
    if kernel.kind != "law":
        np.testing.assert_allclose(law, law_of(name), atol=2**-15)
    assert fresh.dtype == x_0.dtype
    # rows 3 k, 3 k + 1, 3 k + 2 are those of draw k
    asked = []
    cat.q_sample(lambda row, like: asked.append(row) or np.zeros(like.shape, np.int64), x_0, t, kernel, row=2)
    assert asked == {"point": [6], "uniform": [6, 7], "law": [6, 7, 8]}[kernel.kind]


@pytest.mark.claim("kernels-categorical-draw")
def test_alias_tables_hold_the_law():
    """Their law, summed exactly: also for rare classes, and never a class of probability 0."""
    rng = np.random.default_rng(0)
    for law in (
        LAW,
        rng.dirichlet(np.full(1000, 0.05)),
        np.full(7, 1 / 7),
        np.asarray([1.0, 0.0]),
        np.asarray([1e-12, 1 - 1e-12]),
    ):
        accept, other = _draws.alias_table(law)
        found = (accept + np.bincount(other, 1 - accept, minlength=len(law))) / len(law)
        np.testing.assert_allclose(found, law, rtol=1e-9, atol=1e-16)
        assert (accept[law == 0] == 0).all()
        assert (law[other] > 0).all()
    kernel = cat.stationary(LAW)
    pure = cat.keep_cosine().level(1.0)
    counts = np.zeros((2**8, 2**8), int)
    coarse = np.arange(2**8) * 2**24 + 2**23
    counts = cat.q_sample(
        lambda row, like: np.broadcast_to(coarse[:, None] if row == 1 else coarse[None, :], like.shape),
        np.zeros((2**8, 2**8), int),
        pure,
        kernel,
    )
    np.testing.assert_allclose(np.bincount(counts.ravel(), minlength=K) / 2**16, LAW, atol=2 * K * 2**-8)
    assert not (counts == 1).any()


@pytest.mark.claim("kernels-categorical-draw")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_at_the_ends(backend: Backend, dtype: str):
    """alpha = 0 keeps nothing and alpha = 1 everything, at the least word and at the largest one."""
    ends = backend.asarray(cat.keep_cosine().level(np.asarray(0.0)).alpha * 0 + [0.0, 1.0], dtype)
    x_0 = backend.asarray([[1, 1], [1, 1]], "int32")
    for kernel in (cat.absorbing(3), cat.uniform(3), cat.stationary([0.5, 0.0, 0.5])):
        for word in (0, 2**32 - 1):
            level = cat.keep_cosine().level(ends)
            source = fixed(backend, word)
            drawn = backend.numpy(cat.q_sample(source, x_0, level, kernel))
            assert (drawn[:, 0] == 1).all()
            assert (drawn[:, 1] != 1).all()
            assert backend.dtype(cat.q_sample(source, x_0, level, kernel)) == "int32"
    # the published rule: keep if u < cos^2, with u = 0 among the uniforms
    assert np.float32(0.0) < np.cos(np.float32(math.pi / 2)) ** 2


@pytest.mark.claim("kernels-categorical-draw")
def test_rare_events_in_float32():
    """1 - alpha = 1e-8 in float32, where alpha rounds to 1: noise comes for words below 42.9, and for no other."""
    level = Keep(0.0, np.float32(-1e-8), np.float32(math.log(1e-8)))
    assert level.alpha == 1.0
    at = np.asarray([0, 40, 42, 43, 44, 2**31, 2**32 - 1])
    drawn = cat.q_sample(words(at), np.zeros(7, int), level, cat.absorbing(2))
    np.testing.assert_array_equal(drawn, [1, 1, 1, 0, 0, 0, 0])
    # compared on the other side nothing is ever drawn
    assert not (_draws.unit(at, np.dtype("float32")) >= level.alpha)[:-1].any()


@pytest.mark.claim("kernels-categorical-draw")
@pytest.mark.parametrize("count", [1, 2, 3, 27, 65535, 65536, 65537, 50257, 2**20 + 7, 2**31 - 1])
def test_integers_are_the_upper_half_of_a_product(backend: Backend, count: int):
    at = np.concatenate([[0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1], np.random.default_rng(0).integers(0, 2**32, 500)])
    given = backend.asarray(at.astype(np.uint32 if backend.name == "jax" else np.int64), None)
    expected = [int(w) * count // 2**32 for w in at]
    np.testing.assert_array_equal(backend.numpy(_draws.integers(given, count)), expected)
    assert max(expected) == count - 1


def race_law(wins: Any, n: int, counts: int = 257) -> float:
    """Probability that one of n classes of probability q beats the class of 1 - n q; `wins` decides for two clocks.

    Exact on a 2^-32 grid: for words of the big class in the middle of `counts` equal parts, bisection finds how many
    words of a small class win; of n independent ones at least one does.
    """
    big = ((np.arange(counts) + 0.5) / counts * 2.0**32).astype(np.int64)
    low, high = np.zeros(counts, np.int64), np.full(counts, 2**32, np.int64)  # words below `low` win
    while (high - low > 1).any():
        middle = (low + high) // 2
        won = wins(big, middle)
        low, high = np.where(won, middle, low), np.where(won, high, middle)
    count = np.where(wins(big, np.zeros_like(big)), low + 1, 0)
    return float(np.mean(-np.expm1(n * np.log1p(-count / 2.0**32))))


@pytest.mark.claim("kernels-categorical-race")
def test_law_of_the_race_in_float32():
    """50,256 rare classes of an unmasking step and one common: through `draw` itself their rate is right to .2 %.

    On a grid of 2^-23 with u as it comes, as libraries do it, they are drawn at .0134 of their rate.
    """
    n, total = 50256, 1 / 1024
    q = total / n
    log_p = np.asarray([math.log1p(-total), math.log(q)], np.float32)

    def wins(big: np.ndarray, small: np.ndarray) -> np.ndarray:
        stacked = np.stack([big, small], axis=-1)
        return cat.draw(lambda row, like: stacked, np.broadcast_to(log_p, stacked.shape)) == 1

    # quantisation of the big class's clock costs what 257 points leave of the integral
    assert race_law(wins, n) / total == pytest.approx(1.0, abs=2e-3)
    for bits, ratio in ((23, 0.0134), (24, 0.150)):
        assert grid_law(q, n, bits) / total == pytest.approx(ratio, rel=0.02)
        assert abs(grid_law(q, n, bits) / total - 1) > 0.5
    # the flip alone, on the coarse grid with 0 in it, draws them 3.2 times too often
    assert grid_law(q, n, 24, flip=True) / total == pytest.approx(3.2, rel=0.02)


def grid_law(q: float, n: int, bits: int, *, flip: bool = False) -> float:
    """The same probability for u = k 2^-bits, k >= 0, with E = -log u, or -log1p(-u) if flipped."""
    u = np.arange(1, 2**bits) / 2.0**bits
    clocks = -np.log1p(-u) if flip else -np.log(u)
    y = clocks * q / (1 - n * q)
    # how many k have a clock below y; if flipped, 0 is among them
    below = np.ceil(-np.expm1(-y) * 2.0**bits) if flip else 2.0**bits - 1 - np.floor(np.exp(-y) * 2.0**bits)
    return float(np.mean(-np.expm1(n * np.log1p(-below / 2.0**bits))))


@pytest.mark.claim("kernels-categorical-race")
def test_clocks_of_the_race(backend: Backend):
    """Each class in turn has the earliest clock; -inf never wins, whatever the words; float32 clocks to 4 roundings."""
    at = np.asarray([0, 1, 1000, 2**31, 2**32 - 1])
    source = fixed(backend, at)
    log_p = np.zeros((5, 5), np.float32)
    log_p[np.arange(1, 5), 0] = -math.inf
    log_p[np.arange(2, 5), 1] = -math.inf
    log_p[3:, 2] = -math.inf
    log_p[4:, 3] = -math.inf
    drawn = backend.numpy(cat.draw(source, backend.asarray(log_p, "float32")))
    np.testing.assert_array_equal(drawn, [0, 1, 2, 3, 4])
    for word, other in itertools.permutations(at.tolist(), 2):
        # the winner changes where log E_1 - log E_0 passes log p_1 - log p_0
        e = [-math.log1p(-min((w + 0.5) / 2**32, 1 - 2.0**-24)) for w in (word, other)]
        gap = math.log(e[1]) - math.log(e[0])
        pair = np.asarray([word, other])
        for sign in (-1, 1):
            law = np.asarray([0.0, gap + sign * 8 * UNIT * (2 + max(abs(math.log(c)) for c in e))], np.float32)
            assert int(cat.draw(fixed(backend, pair), backend.asarray(law, "float32"))) == (sign > 0)


@pytest.mark.claim("kernels-categorical-draw", "kernels-categorical-race")
@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_frequencies_of_real_sources(name):
    """200,000 tokens from each library's own generator, to 5 standard errors; per-sample sources do not mix."""
    if name == "numpy":
        rng, xp, many = np.random.default_rng(0), np, [np.random.default_rng(k) for k in range(3)]
    elif name == "jax":
        jax = pytest.importorskip("jax")
        rng, xp, many = jax.random.key(0), jax.numpy, jax.random.split(jax.random.key(1), 3)
    else:
        torch = pytest.importorskip("torch")
        rng, xp, many = torch.Generator().manual_seed(0), torch, [torch.Generator().manual_seed(k) for k in range(3)]
    n, t = 200_000, LEVELS[2]
    x_0 = xp.ones((n,), dtype=xp.int32)
    for family in INTERPOLATIONS:
        if name == "jax" and family != "law":
            continue
        drawn = np.asarray(cat.q_sample(rng, x_0, t, FAMILIES[family]))
        exact = float(t.alpha) * np.eye(K)[1] + float(t.noise) * law_of(family)
        error = 5 * np.sqrt(exact * (1 - exact) / n)
        assert (abs(np.bincount(drawn, minlength=K) / n - exact) <= error).all()
    log_p = xp.asarray(np.broadcast_to(np.log(DATA), (n, K)).astype(np.float32))
    drawn = np.asarray(cat.draw(rng, log_p, row=1))
    assert (abs(np.bincount(drawn, minlength=K) / n - DATA) <= 5 * np.sqrt(DATA * (1 - DATA) / n)).all()
    batch = xp.ones((3, 50), dtype=xp.int32)
    whole = np.asarray(cat.q_sample(many, batch, t, FAMILIES["uniform"]))
    if name == "jax":
        np.testing.assert_array_equal(cat.q_sample(many[2:], batch[2:], t, FAMILIES["uniform"]), whole[2:])
        assert (np.asarray(cat.q_sample(many, batch, t, FAMILIES["uniform"], row=1)) != whole).any()
    assert (whole[0] != whole[1]).any()


# -- times ------------------------------------------------------------------------------------------------------------

METHODS = ["independent", "stratified", "lattice", "antithetic", "stratified_antithetic"]


@pytest.mark.claim("kernels-categorical-canvas")
@pytest.mark.parametrize("method", METHODS)
def test_each_canvas_has_uniform_times(method):
    """Mean and second moment of each place over 4,000 batches, to 5 standard errors; levels are multiples of 1/T."""
    rng = np.random.default_rng(0)
    times = np.stack([cat.sample_canvas_t(rng, 2, 4, method=method) for _ in range(4000)])
    assert times.shape == (4000, 2, 4)
    assert (abs(times.mean(axis=0) - 0.5) < 5 / math.sqrt(12 * 4000)).all()
    assert (abs((times**2).mean(axis=0) - 1 / 3) < 5 * math.sqrt(4 / 45 / 4000)).all()
    levels = np.stack([cat.sample_canvas_t(rng, 2, 4, method=method, steps=8) for _ in range(1000)]) * 8
    assert set(np.unique(levels)) == set(range(1, 9))
    if method == "stratified":
        np.testing.assert_array_equal(np.sort(levels.reshape(1000, 8)), np.tile(np.arange(1, 9), (1000, 1)))
    if method == "independent":
        assert not (np.sort(levels.reshape(1000, 8)) == np.arange(1, 9)).all()


@pytest.mark.claim("kernels-categorical-canvas-variance")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [3, 8, 16])
def test_variance_of_canvas_times(method, steps):
    """Against 5,000 batches, to 5 standard errors of a variance; and of a continuous law by quadrature."""
    n, rng = 8, np.random.default_rng(1)

    def f(t: np.ndarray) -> np.ndarray:
        return np.exp(2 * t) + (t > 0.6)

    values = np.asarray([np.mean(f(cat.sample_canvas_t(rng, 2, 4, method=method, steps=steps))) for _ in range(5000)])
    exact = cat.canvas_variance(f, n, method=method, steps=steps)
    spread = math.sqrt(np.var((values - values.mean()) ** 2) / len(values))
    assert abs(values.var() - exact) <= 5 * spread + 1e-12
    others = [cat.canvas_variance(f, n, method=m, steps=steps) for m in METHODS if m != method]
    assert max(abs(o - exact) for o in others) > 20 * spread or steps == 3


@pytest.mark.claim("kernels-categorical-canvas-variance")
def test_figures_of_sixteen_canvases():
    """Independent levels: 10.30 of 16 distinct, all with probability 1.1e-6; stratified ones have no variance."""
    entropy = np.sqrt
    single = cat.canvas_variance(entropy, 1, method="independent", steps=16)
    assert cat.canvas_variance(entropy, 16, method="independent", steps=16) == pytest.approx(single / 16)
    assert single == pytest.approx(np.var(np.sqrt(np.arange(1, 17) / 16)), rel=1e-14)
    assert cat.canvas_variance(entropy, 16, method="stratified", steps=16) == pytest.approx(0.0, abs=1e-30)
    rng = np.random.default_rng(0)
    distinct = [len(np.unique(cat.sample_canvas_t(rng, 1, 16, method="independent", steps=16))) for _ in range(4000)]
    assert np.mean(distinct) == pytest.approx(16 * (1 - (15 / 16) ** 16), abs=5 * np.std(distinct) / math.sqrt(4000))
    assert pytest.approx(10.30, abs=5e-3) == 16 * (1 - (15 / 16) ** 16)
    assert cat.canvas_variance(lambda t: t, 8, method="stratified") == pytest.approx(1 / (12 * 8**3), rel=1e-12)
    assert cat.canvas_variance(lambda t: t, 8, method="independent") == pytest.approx(1 / (12 * 8), rel=1e-12)


@pytest.mark.claim("kernels-categorical-canvas")
def test_spreading_repeats_canvas_by_canvas(backend: Backend):
    values = backend.asarray([[0.1, 0.2], [0.3, 0.4]])
    found = backend.numpy(cat.spread_canvas(values, 6))
    np.testing.assert_array_equal(found, np.repeat(backend.numpy(values), 3, axis=1))
    # tiled, neighbours would have different times
    assert not np.array_equal(found, np.tile(backend.numpy(values), (1, 3)))
    for length in (5, 0, 1):
        with pytest.raises(ValueError, match="length must be a multiple of the canvases"):
            cat.spread_canvas(values, length)
    with pytest.raises(ValueError, match="length must be a multiple"):
        cat.spread_canvas(values[0, :], 4)


# -- information ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("kernels-categorical-information")
@pytest.mark.parametrize("name", FAMILIES)
def test_mutual_information_by_enumeration(name):
    """Sum of p log(p/(p p)) in mpmath; a difference of entropies in float64 loses small information."""
    clean, *others = levels_of(name)
    for t in others:
        joint = DATA[:, None] * matrix(name, t, clean)
        exact = float(
            mp.fsum(
                mp.mpf(p) * mp.log(mp.mpf(p) / (mp.mpf(row) * mp.mpf(column)))
                for p, row, column in zip(
                    joint.ravel(),
                    np.repeat(joint.sum(1), K),
                    np.tile(joint.sum(0), K),
                    strict=True,
                )
                if p > 0
            )
        )
        assert float(cat.mutual_information(FAMILIES[name], DATA, t)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.claim("kernels-categorical-information")
@pytest.mark.parametrize("exponent", [-1, -2, -4, -8])
def test_small_information_keeps_its_digits(exponent):
    alpha = 10.0**exponent
    t = Keep(0.0, np.asarray(math.log(alpha)), np.asarray(math.log1p(-alpha)))
    with mp.workdps(50):
        a, data = mp.mpf(alpha), [mp.mpf(float(p)) for p in DATA]
        total = mp.fsum(data)
        exact = mp.mpf(0)
        for u, v in itertools.product(range(K), repeat=2):
            q = a * (u == v) + (1 - a) / K
            exact += data[u] * q * mp.log(q / (a * data[v] + (1 - a) / K * total))
        exact = float(exact)
    assert float(cat.mutual_information(FAMILIES["uniform"], DATA, t)) == pytest.approx(
        exact, rel=1e-8 if exponent < -6 else 1e-11
    )
    out = alpha * DATA + (1 - alpha) / K

    def entropy(p: np.ndarray) -> float:
        return -np.sum(p * np.log(p))

    rest = [entropy(alpha * np.eye(K)[u] + (1 - alpha) / K) for u in range(K)]
    if exponent == -8:
        assert abs((entropy(out) - DATA @ rest) / exact - 1) > 0.1


@pytest.mark.claim("kernels-categorical-information", "kernels-categorical-ratio")
def test_published_figures_of_a_uniform_source():
    """V = 50,257 in 16 steps: a noisy position is informative about itself."""
    kernel, law = cat.uniform(50257), np.full(50257, 1 / 50257)
    chain = cat.preset("canvas")
    bits = [float(cat.mutual_information(kernel, law, chain.level(k / 16))) / math.log(2) for k in (8, 12, 15)]
    np.testing.assert_allclose(bits, [6.81, 1.69, 0.072], rtol=6e-3)
    ratios = [float(np.exp(cat.log_likelihood_ratio(kernel, 0, chain.level(k / 16)))) for k in (1, 8, 12, 15, 16)]
    np.testing.assert_allclose(ratios, [5.2e6, 50258, 8624, 488.5, 1.0], rtol=1e-2)
    assert ratios[1] == pytest.approx(50258, rel=1e-12)
    assert float(cat.log_likelihood_ratio(FAMILIES["absorbing"], 1, LEVELS[1])) == math.inf
    masked = float(cat.log_likelihood_ratio(FAMILIES["absorbing"], 4, LEVELS[1]))
    assert masked == pytest.approx(-float(LEVELS[1].log_noise), rel=1e-13)
    assert float(cat.mutual_information(kernel, law, chain.level(1.0))) == 0.0
    assert float(cat.mutual_information(kernel, law, chain.level(0.0))) == pytest.approx(math.log(50257), rel=1e-12)


# -- libraries --------------------------------------------------------------------------------------------------------


def everything(name: str, x_t: Any, x_0: Any, law: Any, data: Any, times: Any) -> list[Any]:
    """All functions of one family, at the same tokens, laws and times."""
    kernel = FAMILIES[name]
    s, t = (2, 4) if name == "gaussian" else map(cat.keep_cosine().level, times)
    found = [
        cat.mixture_posterior(kernel, x_t, law, s, t),
        cat.to_posterior(kernel, x_t, law, t),
        cat.to_leave_one_out(kernel, x_t, law, t),
        cat.mutual_information(kernel, data, t),
    ]
    if name != "gaussian":
        found += [
            cat.marginal(kernel, x_0, t),
            cat.likelihood(kernel, x_t, t),
            cat.posterior(kernel, x_t, x_0, s, t),
            cat.transition(kernel, t, s),
        ]
    return [*found, cat.log_likelihood_ratio(kernel, x_t, t)] if name in INTERPOLATIONS else found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["uniform", "absorbing", "law", "band", "gaussian"])
def test_each_library_and_dtype(backend: Backend, dtype: str, name: str):
    """Levels and tokens of each library, JAX's compiled, against float64 NumPy; in the dtype of level or law."""
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(K), (2, 3)))
    times, other = np.asarray([0.5, 0.8], dtype), TOKENS.T.reshape(2, 3)
    run = everything
    if backend.name == "jax":
        run = importlib.import_module("jax").jit(everything, static_argnums=0)
    given = [backend.asarray(TOKENS, "int32"), backend.asarray(other, "int64")]
    given += [backend.asarray(a, dtype) for a in (log_p, DATA)]
    mine = run(name, *given, [backend.asarray(u, dtype) for u in times])
    exact = everything(name, TOKENS, other, log_p, DATA, times.astype(float))
    for value, truth in zip(mine, exact, strict=True):
        assert backend.dtype(value) == dtype
        found = backend.numpy(value)
        # what a walk makes rare is known absolutely, not in its logarithm
        pair = (found, truth) if truth.ndim == 0 or name in INTERPOLATIONS else (np.exp(found), np.exp(truth))
        np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance)


def test_half_precision_laws_come_back_in_their_dtype():
    jax = pytest.importorskip("jax")
    law = jax.numpy.log(jax.numpy.asarray(DATA, dtype=jax.numpy.bfloat16))
    found = cat.mixture_posterior(FAMILIES["uniform"], 1, law, *LEVELS[1:3])
    assert found.dtype == jax.numpy.bfloat16
    exact = cat.mixture_posterior(FAMILIES["uniform"], 1, np.log(DATA), *LEVELS[1:3])
    np.testing.assert_allclose(np.asarray(found, float), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["uniform", "absorbing", "law"])
def test_jit_vmap_and_derivatives(name):
    """With respect to the law and both times, against central differences of the NumPy values."""
    jax = pytest.importorskip("jax")
    kernel, schedule = FAMILIES[name], cat.keep_cosine()
    safe = 4 if name == "absorbing" else 0

    def score(log_p, t, s):
        xp = np if isinstance(log_p, np.ndarray) else jax.numpy
        found = cat.mixture_posterior(kernel, safe, log_p, schedule.level(s), schedule.level(t))
        return xp.sum(xp.exp(found) * xp.arange(K))

    log_p, step = np.log(DATA), 1e-6
    at = [log_p, np.asarray(0.8), np.asarray(0.5)]
    value, gradient = jax.jit(jax.value_and_grad(score, (0, 1, 2)))(*map(jax.numpy.asarray, at))
    assert float(value) == pytest.approx(float(score(*at)), rel=1e-12)
    for which, k in ((0, 0), (0, 3), (1, None), (2, None)):
        ends = []
        for sign in (1, -1):
            moved = [a.copy() for a in at]
            moved[which] = moved[which] + sign * step * (1.0 if k is None else np.eye(K)[k])
            ends.append(float(score(*moved)))
        found = gradient[which] if k is None else gradient[which][k]
        assert float(found) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)
    many = np.asarray([0.6, 0.8, 1.0])
    compiled = jax.jit(jax.vmap(lambda t: score(jax.numpy.asarray(log_p), t, 0.5)))
    np.testing.assert_allclose(compiled(many), [score(log_p, t, np.asarray(0.5)) for t in many], rtol=1e-12)
    x, key = jax.numpy.zeros((2, 3), int), jax.random.key(0)
    sample = jax.jit(lambda x, t: cat.q_sample(key, x, schedule.level(t), kernel))
    eager = cat.q_sample(key, x, schedule.level(0.5), kernel)
    np.testing.assert_array_equal(sample(x, 0.5), eager)


@pytest.mark.parametrize("name", ["uniform", "absorbing", "law"])
def test_no_derivative_is_nan(name):
    """At both ends, for impossible tokens and for classes of probability 0, on JAX and PyTorch."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    kernel, schedule = FAMILIES[name], cat.keep_cosine()
    law = [-0.5, -math.inf, -2.0, -1.5, -math.inf]

    def total(xp, log_p, t, s, x_t):
        found = cat.mixture_posterior(kernel, x_t, log_p, schedule.level(s), schedule.level(t))
        return xp.sum(xp.exp(found) * xp.exp(found))

    cases = np.asarray(list(itertools.product((1.0, 0.6), (0.0, 0.6), range(K))))
    gradient = jax.jit(
        jax.vmap(jax.grad(lambda a, t, s, x: total(jax.numpy, a, t, s, x), (0, 1, 2)), in_axes=(None, 0, 0, 0))
    )(jax.numpy.asarray(law), cases[:, 0], cases[:, 1], cases[:, 2].astype(int))
    assert all(np.isfinite(g).all() for g in gradient)
    for t, s, x_t in cases:
        tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (law, t, s)]
        total(torch, *tensors, torch.tensor(int(x_t))).backward()
        assert all(torch.isfinite(a.grad).all() for a in tensors)


def test_derivatives_through_a_learned_law():
    jax = pytest.importorskip("jax")
    t = LEVELS[2]

    def loss(logits):
        kernel = cat.stationary(jax.nn.softmax(logits))
        return -cat.marginal(kernel, jax.numpy.asarray(1), t)[3]

    logits = jax.numpy.asarray([0.1, 0.2, 0.3, 0.4, 0.5])
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(logits), p - np.eye(K)[3], rtol=1e-10)
    with pytest.raises(ValueError, match="kernel must have a law that is known when JAX traces"):
        jax.jit(
            lambda a: cat.q_sample(jax.random.key(0), jax.numpy.zeros(3, int), t, cat.stationary(jax.nn.softmax(a)))
        )(logits)


def test_derivatives_of_information_are_finite():
    jax = pytest.importorskip("jax")
    law = jax.numpy.asarray([0.5, 0.5, 0.0, 0.0, 0.0])

    def value(law: Any, t: Any) -> Any:
        return cat.mutual_information(FAMILIES["uniform"], law, cat.keep_cosine().level(t))

    slopes = jax.jit(jax.vmap(jax.grad(value, (0, 1)), in_axes=(None, 0)))(law, np.asarray([0.0, 0.3, 1.0]))
    assert all(np.isfinite(slope).all() for slope in slopes)


@given(a=st.floats(-800, 0), b=st.floats(-800, 0))
def test_logarithms_of_sums_and_differences(a, b):
    both = np.asarray([a, b])
    total = float(_logspace.logaddexp(both[0], both[1]))
    assert total == pytest.approx(float(mp.log(mp.exp(mp.mpf(a)) + mp.exp(mp.mpf(b)))), rel=8 * EPS, abs=4 * EPS)
    assert float(_logspace.log_sum(both)[0]) == pytest.approx(total, rel=8 * EPS, abs=4 * EPS)
    if a < 0:
        with mp.workdps(40):
            exact = float(mp.log(-mp.expm1(mp.mpf(a))))
        assert float(_logspace.log1mexp(both)[0]) == pytest.approx(exact, rel=8 * EPS)


def test_logarithms_at_infinity():
    down = np.asarray([-math.inf, -math.inf])
    np.testing.assert_array_equal(_logspace.logaddexp(down, np.asarray([-math.inf, 0.5])), [-math.inf, 0.5])
    assert _logspace.log_sum(down)[0] == -math.inf
    np.testing.assert_array_equal(_logspace.log1mexp(np.asarray([0.0, -math.inf])), [-math.inf, 0.0])
    np.testing.assert_array_equal(_logspace.softplus(np.asarray([-math.inf, math.inf])), [0.0, math.inf])


# -- what is refused --------------------------------------------------------------------------------------------------


@given(value=st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=1.0), st.just(math.nan)))
def test_parameters_of_schedules(value):
    with pytest.raises(ValueError, match="floor must be"):
        cat.keep_log_linear(floor=value)
    with pytest.raises(ValueError, match="t must be in"):
        cat.keep_linear().level(2.0 * value if value == 1.0 else value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: cat.keep_polynomial(power=0.5), "power must be a finite number >= 1"),
        (lambda: cat.keep_polynomial(of="x"), "of must be one of"),
        (lambda: cat.keep_cosine(offset=1.1), r"offset must be in \[0, 1\], got 1.1"),
        (lambda: cat.keep_cosine(offset=-0.1), r"offset must be in \[0, 1\], got -0.1"),
        (lambda: cat.keep_cosine(offset=0.5, max_rate=1.0), "max_rate must be a finite number >"),
        (lambda: cat.keep_linear_rate(rate_min=0.0), "rate_min must be a finite number > 0"),
        (lambda: cat.keep_linear_rate(rate_max=0.01), "rate_max must be a finite number >= 0.1"),
        (lambda: cat.keep_geometric(total_min=0.0), "total_min must be a finite number > 0"),
        (lambda: cat.keep_geometric(total_max=1e-5), "total_max must be a finite number > 0.0001"),
        (lambda: cat.keep_sigmoid(end=-3.0), "end must be a finite number > -3"),
        (lambda: cat.keep_sigmoid(tau=0.0), "tau must be a finite number > 0"),
        (lambda: cat.keep_log_odds(end=9.0), "end must be below start, got 9.0 and 9.0"),
        (lambda: cat.keep_discrete(cat.keep_linear()), "steps must be an integer >= 1, got None"),
        (lambda: cat.keep_discrete(cat.keep_linear(), 0), "steps must be an integer >= 1, got 0"),
        (lambda: cat.keep_discrete(cat.keep_linear(), True), "steps must be an integer >= 1, got True"),
        (lambda: cat.keep_discrete(np.asarray([0.5, 1.5])), "schedule must be a KeepSchedule or probabilities"),
        (lambda: cat.keep_discrete(np.zeros((2, 2))), "schedule must be a KeepSchedule or probabilities"),
        (lambda: cat.keep_discrete(cat.keep_linear(), 4, max_noise=0.0), r"max_noise must be in \(0, 1\]"),
        (lambda: cat.keep_discrete(cat.keep_linear(), 4, max_noise=1.1), r"max_noise must be in \[0, 1\]"),
        (lambda: cat.preset("ddpm"), "name must be one of"),
        (lambda: cat.uniform(1), "classes must be an integer >= 2, got 1"),
        (lambda: cat.uniform(2.5), "classes must be an integer >= 2, got 2.5"),
        (lambda: cat.uniform(True), "classes must be an integer >= 2, got True"),
        (lambda: cat.absorbing(3, mask=3), "mask must be an integer from -3 to 2, got 3"),
        (lambda: cat.absorbing(3, mask=-4), "mask must be an integer from -3 to 2, got -4"),
        (lambda: cat.hybrid(3, share=1.2), r"share must be in \[0, 1\], got 1.2"),
        (lambda: cat.hybrid(3, share=-0.1), r"share must be in \[0, 1\], got -0.1"),
        (lambda: cat.stationary([0.5, 0.6]), "law must be >= 0 with sum 1, got a sum of 1.1"),
        (lambda: cat.stationary([1.5, -0.5]), "law must be >= 0 with sum 1"),
        (lambda: cat.stationary([1.0]), r"law must have shape \(K,\) with K >= 2, got \(1,\)"),
        (lambda: cat.similarity(np.zeros((2, 3))), r"weights must have shape \(K, K\)"),
        (lambda: cat.similarity(np.zeros((1, 1))), r"weights must have shape \(K, K\)"),
        (lambda: cat.similarity([[0, 1], [2, 0]]), "weights must be symmetric, finite and >= 0"),
        (lambda: cat.similarity([[0, -1], [-1, 0]]), "weights must be symmetric, finite and >= 0"),
        (lambda: cat.similarity([[0, math.inf], [math.inf, 0]]), "weights must be symmetric, finite and >= 0"),
        (lambda: cat.similarity(np.eye(2)), "weights must join at least two classes"),
        (lambda: cat.discretised_gaussian(4, [0.0]), r"betas must be > 0, of shape \(T,\)"),
        (lambda: cat.discretised_gaussian(4, []), r"betas must be > 0, of shape \(T,\)"),
        (lambda: cat.discretised_gaussian(4, [0.1], width=4), "width must be an integer from 1 to 3, got 4"),
        (lambda: cat.discretised_gaussian(4, [0.1], width=0), "width must be an integer from 1 to 3, got 0"),
        (lambda: cat.transition(FAMILIES["gaussian"], 5), "t must be a step number from 0 to 4, got 5"),
        (lambda: cat.transition(FAMILIES["gaussian"], 2, -1), "s must be a step number from 0 to 4, got -1"),
        (lambda: cat.transition(FAMILIES["gaussian"], 1, 2), "t must be at least as noisy as s, got step 1 after 2"),
        (
            lambda: cat.transition(FAMILIES["band"], cat.keep_cosine().level(np.asarray([0.1]))),
            "t must be a level of 0-d",
        ),
        (lambda: cat.marginal(FAMILIES["uniform"], 5, LEVELS[1]), "x_0 must be classes from 0 to 4, got 5 to 5"),
        (lambda: cat.likelihood(FAMILIES["uniform"], -1, LEVELS[1]), "x_t must be classes from 0 to 4, got -1"),
        (
            lambda: cat.mixture_posterior(FAMILIES["uniform"], 1, np.zeros(4), *LEVELS[1:3]),
            r"log_p must have shape \(5,\)",
        ),
        (
            lambda: cat.mixture_posterior(FAMILIES["uniform"], 1, np.zeros(5), *LEVELS[1:3], head="x"),
            "head must be one of",
        ),
        (
            lambda: cat.mutual_information(FAMILIES["uniform"], np.zeros(4), LEVELS[1]),
            r"law must have shape \(5,\), got \(4,\)",
        ),
        (lambda: cat.draw(np.random.default_rng(0), np.full((2, 3), -math.inf)), "log_p must have a possible class"),
        (lambda: cat.draw(np.random.default_rng(0), np.full(3, math.nan)), "log_p must have a possible class"),
        (lambda: cat.sample_canvas_t(np.random.default_rng(0), 0, 1), "batch must be an integer >= 1, got 0"),
        (lambda: cat.sample_canvas_t(np.random.default_rng(0), 1, 2.0), "canvases must be an integer >= 1, got 2.0"),
        (lambda: cat.sample_canvas_t(np.random.default_rng(0), 1, 2, steps=0), "steps must be an integer >= 1, got 0"),
        (
            lambda: cat.sample_canvas_t(np.random.default_rng(0), 1, 3, method="antithetic"),
            "must be even for 'antithetic', got 3",
        ),
        (lambda: cat.canvas_variance(np.sqrt, 3, method="stratified_antithetic"), "must be even"),
        (lambda: cat.canvas_variance(np.sqrt, 3, method="sobol"), "method must be one of"),
        (lambda: cat.canvas_variance(lambda t: 1.0, 3, method="lattice", steps=2), "f must return the shape"),
        (
            lambda: cat.mutual_information(FAMILIES["uniform"], np.asarray([2.0, -1.0, 0.0, 0.0, 0.0]), LEVELS[1]),
            "law must be probabilities, all >= 0, got -1.0",
        ),
        (
            lambda: cat.mutual_information(FAMILIES["uniform"], np.full(5, math.nan), LEVELS[1]),
            "law must be probabilities, all >= 0, got nan",
        ),
        (lambda: cat.spread_canvas(np.zeros((2, 0)), 4), r"got 4 for \(2, 0\)"),
        (lambda: cat.spread_canvas([[0.1, 0.2]], 3), r"got 3 for \(1, 2\)"),
        (lambda: cat.spread_canvas(np.zeros((2, 2)), 4.0), r"got 4.0 for \(2, 2\)"),
        (lambda: cat.spread_canvas(np.zeros((2, 1)), True), r"got True for \(2, 1\)"),
        (
            lambda: _backend.random_words(lambda row, like: np.zeros(3), 0, np.zeros(2)),
            r"must return shape \(2,\), got \(3,\)",
        ),
    ],
)
def test_values_that_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: cat.keep_discrete(np.asarray(["x"])), "schedule must be real numbers"),
        (lambda: cat.marginal(FAMILIES["uniform"], 0.5, LEVELS[1]), "x_0 must be integers, got dtype float64"),
        (lambda: cat.marginal("uniform", 0, LEVELS[1]), "kernel must be an Interpolation, got str"),
        (lambda: cat.marginal(FAMILIES["uniform"], 0, 0.5), "level must be a Keep, got float"),
        (lambda: cat.transition(FAMILIES["band"], 0.5), "t must be a Keep, got float"),
        (
            lambda: cat.q_sample(np.random.default_rng(0), np.zeros(2, int), LEVELS[1], FAMILIES["band"]),
            "kernel must be an Interpolation, got Walk",
        ),
        (
            lambda: cat.q_sample(np.random.default_rng(0), np.zeros(2, int), 0.5, FAMILIES["uniform"]),
            "t must be a Keep, got float",
        ),
        (lambda: cat.q_sample(7, np.zeros(2, int), LEVELS[1], FAMILIES["uniform"]), "rng must be"),
        (lambda: cat.mutual_information("uniform", np.full(5, 0.2), LEVELS[1]), "kernel must be an Interpolation, got"),
        (lambda: cat.draw(7, np.zeros(2)), "rng must be"),
        (lambda: cat.log_likelihood_ratio(FAMILIES["band"], 0, LEVELS[1]), "kernel must be an Interpolation, got Walk"),
    ],
)
def test_types_that_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_tokens_whose_dtype_cannot_hold_all_classes_are_refused(backend: Backend, dtype: str):
    """A class compared modulo 256 would be another one: the mask 256 of bytes would be the token 0."""
    classes = 257 if dtype == "uint8" else 129
    kernel, level = cat.absorbing(classes), cat.keep_linear().level(0.75)
    xp = _backend.namespace(backend.asarray([0.0]))
    tokens = xp.asarray([0, 1], dtype=getattr(xp, dtype))
    message = f"must have a dtype that holds classes up to {classes - 1}, got .*{dtype}"
    with pytest.raises(TypeError, match=f"x_0 {message}"):
        cat.marginal(kernel, tokens, level)
    with pytest.raises(TypeError, match=f"x_t {message}"):
        cat.likelihood(kernel, tokens, level)
    with pytest.raises(TypeError, match=f"x_0 {message}"):
        cat.q_sample(lambda row, like: like, tokens, level, kernel)
    found = backend.numpy(cat.marginal(cat.absorbing(classes - 1), tokens, level))
    np.testing.assert_allclose(np.exp(found).sum(axis=-1), 1.0, rtol=ROUNDING if found.dtype == np.float64 else 1e-5)
