"""Laws of training times by quadrature and chi-square, and what they save on a mixture."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi2, norm

from diffnum import _targets, _times, oracles, schedules
from diffnum import parameterization as par

EPS = 2.0**-52

ROUNDING = 32 * EPS
"""Relative error of products of a few coefficients, each with a few roundings."""

MISTAKE = 0.01
"""A plausible mistake moves a value by more than 1 %."""

SIGNIFICANCE = 1e-3
"""Level of the chi-square tests, whose seeds are fixed."""

TARGETS = _targets.TARGETS
COSINE, FLOW, EDM = schedules.cosine(), schedules.rectified_flow(), schedules.edm()
VP = schedules.vp_linear()
SCHEDULES = {"cosine": COSINE, "flow": FLOW, "edm": EDM, "vp_linear": VP, "shifted": schedules.shift(FLOW, 3.0)}
TO = {"x0": par.to_x0, "eps": par.to_eps, "v": par.to_v, "score": par.to_score, "flow": par.to_flow}


def assert_close(got, want, rtol=ROUNDING):
    """Equal to a relative tolerance."""
    np.testing.assert_allclose(got, want, rtol=rtol)


def differs(got, want):
    """A negative control: every entry is off by more than `MISTAKE`."""
    return bool(np.all(abs(np.asarray(got) / np.asarray(want) - 1.0) > MISTAKE))


def gauss(f, low, high, panels=400):
    """Integral by Gauss-Legendre quadrature with 20 points on each panel."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges)[:, None] / 2
    return float(np.sum(half * weights * f(edges[:-1, None] + half * (nodes + 1))))


# -- laws -------------------------------------------------------------------------------------------------------------


LAWS = {
    "cosine": par.uniform_time(COSINE),
    "flow": par.uniform_time(FLOW),
    "vp_linear": par.uniform_time(VP),
    "edm": par.uniform_time(EDM),
    "truncated": par.uniform_time(schedules.truncate(COSINE, t_clean=0.1, t_noise=0.8)),
    "sigmoid": par.uniform_time(schedules.sigmoid()),
    "betas": par.uniform_time(schedules.from_betas(np.linspace(1e-4, 0.02, 100))),
    "log-normal": par.log_normal(),
    "logit-normal": par.log_normal(mean=0.0, std=1.0),
    "uniform": par.uniform_log_snr(-4.0, 3.0),
    "importance": par.importance(par.log_normal(), [1.0, 4.0, 2.0, 0.5]),
    "importance of time": par.importance(par.uniform_time(COSINE), [1.0, 4.0, 2.0]),
}
"""Every law of the library."""


def support(law, tail=1e-12):
    """Where nearly all of a law is, and the ends of the pieces of its density."""
    inner = [float(law.quantile(u)) for u in (0.01, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 0.9, 0.99)]
    return [float(law.quantile(tail)), *inner, float(law.quantile(1 - tail))]


@pytest.mark.claim("parameterization-density")
@pytest.mark.parametrize("name", LAWS)
def test_density_and_distribution_agree(name):
    """The distribution is the integral of the density, by quadrature, and the density has mass 1."""
    law = LAWS[name]
    edges = support(law)
    if name.startswith("importance"):  # the density jumps where the pieces of the base meet
        base, count = (par.log_normal(), 4) if name == "importance" else (par.uniform_time(COSINE), 3)
        edges = sorted([*edges, *(float(base.quantile(k / count)) for k in range(1, count))])
    if name == "betas":  # and at each of the 100 times
        table = schedules.from_betas(np.linspace(1e-4, 0.02, 100))
        edges = sorted([*edges, *table.log_snr(np.linspace(0.0, 1.0, 101))[1:]])
    total, below = 0.0, []
    for a, b in itertools.pairwise(edges):
        total += quad(lambda y: float(law.density(y)), a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
        below.append(total)
    np.testing.assert_allclose(below, law.cdf(np.array(edges[1:])), rtol=1e-8, atol=1e-8)
    assert abs(total - 1) < 1e-8


@pytest.mark.claim("parameterization-density")
@pytest.mark.parametrize("name", LAWS)
def test_quantiles_invert_the_distribution(name):
    law, u = LAWS[name], np.array([1e-6, 0.03, 0.2, 0.5, 0.77, 0.999])
    np.testing.assert_allclose(law.cdf(law.quantile(u)), u, rtol=1e-9)
    assert np.all(np.diff(law.quantile(u)) > 0)


@pytest.mark.claim("parameterization-density")
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("method", ["independent", "lattice"])
def test_samples_have_the_density(name, method):
    """Chi-square of 4,000 draws over 20 bins whose masses are integrals of the density."""
    law, n = LAWS[name], 4000
    edges = np.concatenate([[-np.inf], law.quantile(np.linspace(0.0, 1.0, 21)[1:-1]), [np.inf]])
    draws = law.sample(np.random.default_rng(5), n, method=method)
    assert draws.shape == (n,)
    assert np.all(np.isfinite(draws))
    finite = [support(law)[0], *edges[1:-1], support(law)[-1]]
    masses = np.array([gauss(law.density, a, b, 200) for a, b in itertools.pairwise(finite)])
    np.testing.assert_allclose(masses, 0.05, rtol=1e-2)
    counts = np.histogram(draws, edges)[0]
    statistic = np.sum((counts - n * masses) ** 2 / (n * masses))
    assert statistic < chi2.ppf(1 - SIGNIFICANCE, 19)
    if method == "lattice":  # counts differ from their expectation by less than one
        assert np.max(abs(counts - n * 0.05)) <= 1.0
    shifted = np.histogram(draws + 0.15 * np.std(draws), edges)[0]
    assert np.sum((shifted - n * masses) ** 2 / (n * masses)) > chi2.ppf(1 - SIGNIFICANCE, 19)


@pytest.mark.claim("parameterization-density")
def test_densities_in_time_have_the_jacobian():
    law = par.log_normal(mean=-0.3, std=0.9)
    for schedule in (COSINE, FLOW, VP):
        total = quad(
            lambda t, s=schedule: float(law.time_density(s, t)), 1e-9, 1 - 1e-9, limit=200, points=[0.1, 0.5, 0.9]
        )[0]
        share = float(law.cdf(schedule.log_snr(1e-9)) - law.cdf(schedule.log_snr(1 - 1e-9)))
        assert abs(total - share) < 1e-7
        without = quad(lambda t, s=schedule: float(law.density(s.log_snr(t))), 1e-9, 1 - 1e-9, limit=200)[0]
        assert abs(without - share) > 0.1
        t = np.array([0.2, 0.6])
        assert_close(par.uniform_time(schedule).time_density(schedule, t), np.ones(2), 1e-12)
    with pytest.raises(ValueError, match="t must have finite log-SNR"):
        law.time_density(FLOW, np.array([0.5, 1.0]))


@pytest.mark.claim("parameterization-uniform-time")
def test_uniform_times_in_closed_form():
    places = np.linspace(-5.0, 5.0, 21)
    assert_close(LAWS["cosine"].density(places), 1 / np.cosh(places) / np.pi, 1e-11)
    assert_close(LAWS["flow"].density(places), np.exp(-places) / (1 + np.exp(-places)) ** 2, 1e-11)
    level = VP.level_at(places[1:])
    beta = 0.1 + 19.9 * level.t
    assert_close(LAWS["vp_linear"].density(places[1:]), 2 * level.sigma**2 / beta, 1e-11)
    ends = [float(VP.log_snr(t)) for t in (1.0, 0.0)]
    assert np.all(LAWS["vp_linear"].density(np.array([ends[0] - 1e-6, -9.0])) == 0.0)
    assert np.all(LAWS["cosine"].density(np.array([-np.inf, np.inf])) == 0.0)
    assert_close(
        LAWS["truncated"].density(places[abs(places) < 1]), 1 / np.cosh(places[abs(places) < 1]) / np.pi / 0.7, 1e-12
    )
    assert np.array_equal(LAWS["truncated"].cdf(np.array([-3.0, 3.0])), [0.0, 1.0])
    # "CosMap" of the flow literature is the law of uniform time on the cosine schedule
    t = np.array([0.1, 0.5, 0.8])
    assert_close(LAWS["cosine"].time_density(FLOW, t), 2 / (np.pi - 2 * np.pi * t + 2 * np.pi * t**2), 1e-12)


@pytest.mark.claim("parameterization-log-normal")
def test_log_normal_is_logit_normal_in_flow_time():
    """The density in flow time of the logit-normal law, as published, with mean -1.2 and standard deviation 1.2."""
    t = np.array([0.05, 0.2, 0.5, 0.9])
    logit = np.log(t / (1 - t))
    published = np.exp(-((logit + 1.2) ** 2) / (2 * 1.2**2)) / (1.2 * math.sqrt(2 * math.pi) * t * (1 - t))
    assert_close(par.log_normal().time_density(FLOW, t), published, 1e-13)
    places = np.linspace(-4.0, 6.0, 11)
    assert_close(par.log_normal().density(places), norm.pdf(places, 1.2, 1.2), 1e-13)
    assert_close(par.log_normal().cdf(places), norm.cdf(places, 1.2, 1.2), 1e-11)
    # on EDM's time, sigma itself: the log-normal density
    sigma = np.array([0.02, 0.5, 7.0])
    assert_close(par.log_normal().time_density(EDM, sigma), norm.pdf(np.log(sigma), -1.2, 1.2) / sigma, 1e-12)
    # a shift of the schedule adds its logarithm to the mean
    moved = par.log_normal(mean=-1.2 + math.log(3.0)).density(places - math.log(3.0))
    assert_close(moved, par.log_normal().density(places), 1e-12)


@pytest.mark.claim("parameterization-uniform-log-snr")
def test_uniform_log_snr_is_the_law_of_the_bound():
    law = par.uniform_log_snr(-4.0, 3.0)
    assert_close(law.density(np.array([-4.0, 0.0, 3.0])), np.full(3, 1 / 7))
    assert np.array_equal(law.density(np.array([-4.1, 3.1])), [0.0, 0.0])
    assert_close(law.cdf(np.array([-5.0, 0.0, 5.0])), [0.0, 4 / 7, 1.0])
    assert_close(law.quantile(np.array([0.0, 0.25, 1.0])), [-4.0, -2.25, 3.0])
    places = np.array([-3.0, 0.0, 2.0])
    assert_close(par.elbo_weight(COSINE.level_at(places), law), np.full(3, 7.0), 1e-13)


# -- estimators on an oracle ------------------------------------------------------------------------------------------


MIXTURE = oracles.mixture([0.3, 0.7], [[-1.0], [0.8]], [0.3, 0.4])


def denoising_error(places):
    """Mean squared error of eps at each log-SNR for the exact denoiser of the mixture, by quadrature over x."""
    places = np.asarray(places)
    flat = []
    for place in places.ravel():
        level = COSINE.level_at(place)
        x = np.linspace(-7.0, 7.0, 801)[:, None]
        weight = np.exp(MIXTURE.log_density(x, level)) * (x[1] - x[0])
        flat.append(float(np.sum(weight * MIXTURE.covariance(x, level)[:, 0, 0]) * (level.alpha / level.sigma) ** 2))
    return np.reshape(flat, places.shape)


@pytest.fixture(scope="module")
def curve():
    """The loss of the mixture as a smooth function of the log-SNR: Chebyshev interpolation to 1e-7."""
    nodes = np.polynomial.chebyshev.chebpts1(40)
    return np.polynomial.Chebyshev.fit(4.0 * nodes, denoising_error(4.0 * nodes), 39, domain=(-4, 4))


@pytest.mark.claim("parameterization-estimators")
def test_the_variance_saved_on_the_mixture(curve):
    law = par.uniform_log_snr(-4.0, 4.0)

    def loss(v):
        return curve(law.quantile(v))

    spread = {m: par.estimator_variance(loss, 16, method=m) for m in _times.METHODS}
    n = 16
    total = gauss(lambda v: (loss(v) - gauss(loss, 0.0, 1.0)) ** 2, 0.0, 1.0)
    slope = gauss(lambda y: curve.deriv()(y) ** 2, -4.0, 4.0) * 8.0
    assert_close(spread["independent"], total / n, 1e-9)
    assert abs(spread["stratified"] / (slope / (12 * n**3)) - 1) < 0.02
    assert abs(spread["lattice"] / ((loss(1.0) - loss(0.0)) ** 2 / (12 * n**2)) - 1) < 0.02
    assert spread["stratified"] < spread["independent"] / 50
    assert spread["stratified_antithetic"] < spread["stratified"] / 5


@pytest.mark.claim("parameterization-importance")
def test_importance_changes_the_variance_and_not_the_mean(curve):
    """Both moments by quadrature; without the weights the mean is that of another loss."""
    base = par.uniform_log_snr(-4.0, 4.0)
    middles = np.array([base.quantile((k + np.linspace(0.01, 0.99, 30)) / 8) for k in range(8)])
    law = par.importance(base, np.sqrt(np.mean(curve(middles) ** 2, axis=1)))

    def moments(law, weighted=True):
        def value(y):
            return curve(y) * (par.importance_weight(law, base, y) if weighted else 1.0)

        first, second = (gauss(lambda y: law.density(y) * value(y) ** k, -4.0, 4.0) for k in (1, 2))
        return first, second - first**2

    plain, reweighted, biased = moments(base), moments(law), moments(law, weighted=False)
    assert_close(reweighted[0], plain[0], 1e-10)
    assert reweighted[1] < plain[1] / 10
    assert abs(biased[0] / plain[0] - 1) > 0.2
    assert_close(gauss(lambda y: law.density(y) * par.importance_weight(law, base, y), -4.0, 4.0), 1.0, 1e-10)


@pytest.mark.claim("parameterization-importance")
def test_importance_visits_each_piece_as_often_as_asked():
    sizes = np.array([1.0, 4.0, 2.0, 0.5])
    for base in (par.log_normal(), par.uniform_time(COSINE), par.uniform_log_snr(-1.0, 2.0)):
        law = par.importance(base, sizes)
        edges = base.quantile(np.arange(5) / 4)
        assert_close(np.diff(law.cdf(edges)), sizes / sizes.sum(), 1e-12)
        middle = base.quantile((np.arange(4) + 0.5) / 4)
        assert_close(law.density(middle), base.density(middle) * 4 * sizes / sizes.sum(), 1e-12)
        assert_close(law.cdf(middle), (np.cumsum(sizes) - sizes / 2) / sizes.sum(), 1e-12)
    one = par.importance(base, [3.0])
    assert_close(one.density(middle), base.density(middle), 1e-14)


# -- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cosine", "vp_linear", "log-normal", "uniform", "importance"])
def test_laws_in_every_library(backend: Backend, name):
    law, places, u = LAWS[name], np.array([-3.9, -1.0, 0.3, 2.9]), np.array([0.02, 0.4, 0.97])
    for dtype, rtol in (("float64", 1e-11), ("float32", 2e-3)):
        for method, x in (("density", places), ("cdf", places), ("quantile", u)):
            got = getattr(law, method)(backend.asarray(x, dtype))
            assert backend.dtype(got) == dtype
            # a distribution function is 1 minus the noise fraction: its lower tail has the rounding of 1
            np.testing.assert_allclose(backend.numpy(got), getattr(law, method)(x), rtol, atol=1e-4 * rtol)


def test_samples_in_every_library():
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    law = par.log_normal()
    keys = jax.random.split(jax.random.key(0), 6)
    few = law.sample(keys[:4], 4)
    assert few.shape == (4,)
    np.testing.assert_allclose(few, jax.jit(lambda k: law.sample(k, 6))(keys)[:4], rtol=1e-14)
    draws = law.sample(torch.Generator().manual_seed(0), 500, method="stratified")
    assert draws.dtype == torch.float32
    assert abs(float(draws.mean()) - 1.2) < 0.01
    assert abs(float(draws.std()) - 1.2) < 0.02


# -- bad input --------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(value=st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf), st.just("1"), st.just(True)))
def test_numbers_that_must_be_positive(value):
    with pytest.raises(ValueError, match="std must be a finite number > 0, got"):
        par.log_normal(std=value)
    with pytest.raises(ValueError, match="high must be a finite number > 0, got"):
        par.uniform_log_snr(0.0, value)


def test_more_bad_input():
    with pytest.raises(ValueError, match="log_snr must have positive density under uniform_log_snr"):
        par.importance_weight(par.uniform_log_snr(-4.0, 4.0), par.log_normal(), 5.0)
    for sizes in ([1.0, 0.0], [], [[1.0]], [1.0, math.inf], [1.0, -1.0]):
        with pytest.raises(ValueError, match="sizes must be a list of finite numbers > 0"):
            par.importance(par.log_normal(), sizes)
    for u in (1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"u must be in \[0, 1\], got"):
            par.log_normal().quantile(u)
    with pytest.raises(TypeError, match="schedule must be a Schedule, got str"):
        par.uniform_time("cosine")
