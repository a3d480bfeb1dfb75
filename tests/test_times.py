"""Draws that spread, the exact variance of their means, and the normal law against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from diffnum import _times
from diffnum.parameterization import estimator_variance, uniforms

EPS = 2.0**-52

NORMAL = 160 * EPS
"""Relative error of the normal law for |x| < 9: a few roundings of the exponent, which is 40."""

QUADRATURE = 1e-10
"""Relative error of the variances of smooth functions: differences of squares are avoided, so only rounding is left."""

SIGNIFICANCE = 1e-3
"""Level of the chi-square tests, whose seeds are fixed."""

METHODS = _times.METHODS
PAIRED = [m for m in METHODS if m.endswith("antithetic")]


def generator(backend: Backend, seed: int):
    """A source of random numbers of this library; None where it has none."""
    if backend.name == "jax":
        import jax

        return jax.random.key(seed)
    if backend.name == "torch":
        import torch

        return torch.Generator().manual_seed(seed)
    return np.random.default_rng(seed) if backend.name == "numpy" else None


# -- the normal law ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype,rtol", [("float64", NORMAL), ("float32", 4e-6)])
def test_normal_law(backend: Backend, dtype, rtol):
    x = np.concatenate([np.linspace(-9, 9, 181), [-np.inf, np.inf]]).astype(dtype)
    np.testing.assert_allclose(backend.numpy(_times.normal_cdf(backend.asarray(x, dtype))), ndtr(x.astype(float)), rtol)
    u = np.array([0.0, 1e-12, 1e-6, 0.02, 0.3, 0.5, 0.50001, 0.8, 0.999, 1.0]).astype(dtype)
    got = _times.normal_quantile(backend.asarray(u, dtype))
    assert backend.dtype(got) == dtype
    np.testing.assert_allclose(backend.numpy(got), ndtri(u.astype(float)), rtol, atol=rtol)


def test_the_tails_of_the_normal_law():
    np.testing.assert_allclose(_times.normal_cdf(np.array([-20.0, -37.0])), ndtr([-20.0, -37.0]), rtol=1e-12)
    u = 10.0 ** -np.arange(1.0, 300.0)
    np.testing.assert_allclose(_times.normal_quantile(u), ndtri(u), rtol=1e-14)
    np.testing.assert_allclose(_times.normal_quantile(1.0 - u[:15]), ndtri(1.0 - u[:15]), rtol=1e-14)


# -- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.claim("parameterization-estimators")
@pytest.mark.parametrize("method", METHODS)
def test_draws_of_every_library_lie_where_they_should(backend: Backend, method):
    rng = generator(backend, 3)
    if rng is None:
        pytest.skip("no random numbers in this library")
    n = 12
    got = uniforms(rng, n, method=method)
    assert backend.dtype(got) == ("float32" if backend.name == "torch" else "float64")
    u = backend.numpy(got)
    assert u.shape == (n,)
    assert np.all((u > 0) & (u < 1))
    assert len(np.unique(u)) == n
    if method == "stratified":
        assert np.array_equal(np.floor(n * u), np.arange(n))
    elif method == "lattice":
        gaps = np.diff(np.sort(u))
        np.testing.assert_allclose(gaps, 1 / n, rtol=1e-5)
        np.testing.assert_allclose((u - u[0]) % 1.0, np.arange(n) / n, atol=1e-6)
    elif method == "antithetic":
        np.testing.assert_allclose(u[: n // 2] + u[n // 2 :], 1.0, rtol=1e-6)
    elif method == "stratified_antithetic":
        assert np.array_equal(np.sort(np.floor(n / 2 * u)), np.repeat(np.arange(n // 2), 2))
        pairs = u[: n // 2] + u[n // 2 :]
        np.testing.assert_allclose(pairs, (2 * np.arange(n // 2) + 1) / (n // 2), rtol=1e-6)
    else:
        assert not np.array_equal(np.sort(np.floor(n * u)), np.arange(n))


@pytest.mark.claim("parameterization-estimators")
@pytest.mark.parametrize("method", METHODS)
def test_every_draw_of_a_set_pooled_over_calls_is_uniform(method):
    """Chi-square over 40 bins; the pool is a sample of the mixture law of the n draws, which has density 1."""
    rng = np.random.default_rng(7)
    # one draw of each call, chosen at random, so that the pool is independent
    u = np.array([uniforms(rng, 8, method=method)[rng.integers(8)] for _ in range(2000)])
    counts = np.bincount((40 * u).astype(int), minlength=40)
    assert np.sum((counts - 50.0) ** 2 / 50.0) < chi2.ppf(1 - SIGNIFICANCE, 39)
    squeezed = np.bincount((40 * u**1.3).astype(int), minlength=40)
    assert np.sum((squeezed - 50.0) ** 2 / 50.0) > chi2.ppf(1 - SIGNIFICANCE, 39)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("raw", [0.0, 1.0])
def test_draws_are_never_zero_or_one(monkeypatch, method, dtype, raw):
    """A float32 generator returns 0 once in 2^24 draws: a few times each day of training."""
    largest = np.nextafter(dtype(1.0), dtype(0.0))

    def rigged(rng, row, like):
        assert row == 0
        return np.full(like.shape, dtype(0.0) if raw == 0.0 else largest)

    monkeypatch.setattr(_times, "uniform", rigged)
    u = uniforms(np.random.default_rng(0), 6, method=method)
    assert u.dtype == dtype
    assert np.all((u > 0) & (u < 1))
    naive = (np.arange(6, dtype=dtype) + rigged(None, 0, np.zeros(6))) / dtype(6)
    assert (naive.min() == 0.0) == (raw == 0.0)
    if raw == 0.0 and method in {"independent", "stratified"}:
        assert u[0] == dtype(EPS / 4 if dtype is np.float64 else 2.0**-25)
    if raw == 1.0 and method in {"independent", "stratified"}:
        assert u[-1] == largest


def test_sample_i_depends_on_source_i_alone():
    def sources(n):
        return [np.random.default_rng(s) for s in range(n)]

    few, many = uniforms(sources(3), 3), uniforms(sources(5), 5)
    assert np.array_equal(few, many[:3])
    strata = uniforms(sources(5), 5, method="stratified")
    np.testing.assert_allclose(strata * 5 - np.arange(5), many, rtol=1e-14)
    for method in ("lattice", *PAIRED):
        with pytest.raises(ValueError, match="one source for each sample"):
            uniforms(sources(4), 4, method=method)


def test_jit_draws():
    jax = pytest.importorskip("jax")
    key = jax.random.key(0)
    got = jax.jit(lambda k: [uniforms(k, 6, method=method) for method in METHODS])(key)
    for values, method in zip(got, METHODS, strict=True):
        np.testing.assert_allclose(values, uniforms(key, 6, method=method), rtol=1e-15)


# -- the variance of a mean -------------------------------------------------------------------------------------------


def smooth(u):
    """No symmetry about 1/2, all derivatives, different values at the ends."""
    return np.exp(1.3 * u) + 0.3 * np.sin(5.0 * u)


def moment(f, a=0.0, b=1.0):
    """Mean of f over [a, b], by adaptive quadrature."""
    return quad(f, a, b, epsabs=1e-15, epsrel=1e-13)[0] / (b - a)


def variance(f, a=0.0, b=1.0):
    """Variance of f over [a, b]."""
    mean = moment(f, a, b)
    return moment(lambda u: (f(u) - mean) ** 2, a, b)


def definition(f, n, method):
    """The variance of the mean, from what the draws are."""
    if method == "independent":
        return variance(f) / n
    if method == "stratified":
        return sum(variance(f, i / n, (i + 1) / n) for i in range(n)) / n**2
    if method == "lattice":
        return variance(lambda u: np.mean([f((u + i) / n) for i in range(n)]))
    if method == "antithetic":
        covariance = moment(lambda u: (f(u) - moment(f)) * (f(1 - u) - moment(f)))
        return (variance(f) + covariance) / n
    m = n // 2
    parts = [variance(lambda u, i=i: (f((i + u) / m) + f((i + 1 - u) / m)) / 2) for i in range(m)]
    return sum(parts) / m**2


@pytest.mark.claim("parameterization-estimators")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [2, 6])
def test_variances_are_those_of_the_draws(method, n):
    np.testing.assert_allclose(estimator_variance(smooth, n, method=method), definition(smooth, n, method), QUADRATURE)


@pytest.mark.claim("parameterization-estimators")
def test_variances_for_many_draws_are_the_asymptotic_ones():
    n = 64
    first, second = (
        moment(lambda u: d(u) ** 2)
        for d in (
            lambda u: 1.3 * np.exp(1.3 * u) + 1.5 * np.cos(5 * u),
            lambda u: 1.69 * np.exp(1.3 * u) - 7.5 * np.sin(5 * u),
        )
    )
    want = {
        "stratified": first / (12 * n**3),
        "lattice": (smooth(1.0) - smooth(0.0)) ** 2 / (12 * n**2),
        "stratified_antithetic": 2 * second / (45 * n**5),
    }
    for method, value in want.items():
        assert abs(estimator_variance(smooth, n, method=method) / value - 1) < 0.01, method
    assert estimator_variance(smooth, n, method="antithetic") < 0.1 * estimator_variance(smooth, n)


@pytest.mark.claim("parameterization-estimators")
@pytest.mark.parametrize("method", METHODS)
def test_variances_are_those_of_the_numbers_drawn(method):
    """2,000 means; their sample variance has a relative error of about sqrt(2/2000)."""
    rng = np.random.default_rng(11)
    means = [np.mean(smooth(uniforms(rng, 8, method=method))) for _ in range(2000)]
    want = estimator_variance(smooth, 8, method=method)
    assert abs(np.var(means) / want - 1) < 4 * np.sqrt(2 / 2000)
    assert abs(np.mean(means) - moment(smooth)) < 4 * np.sqrt(want / 2000)


@pytest.mark.claim("parameterization-estimators")
def test_antithetic_draws_do_not_count_as_independent():
    """For a function that is even about 1/2 a pair is one draw: the variance is twice that of independent draws."""
    bump = lambda u: np.cos(2 * np.pi * u)  # noqa: E731
    independent = estimator_variance(bump, 8)
    np.testing.assert_allclose(independent, 0.5 / 8, rtol=1e-12)
    np.testing.assert_allclose(estimator_variance(bump, 8, method="antithetic"), 2 * independent, rtol=1e-12)
    odd = lambda u: np.cos(np.pi * u)  # noqa: E731
    assert estimator_variance(odd, 8, method="antithetic") < 1e-30


# -- bad input --------------------------------------------------------------------------------------------------------


@given(n=st.one_of(st.integers(-3, 0), st.floats(), st.just("4"), st.just(True)), method=st.sampled_from(METHODS))
def test_bad_counts(n, method):
    with pytest.raises(ValueError, match=r"n must be an (even )?integer >= [12] for '\w+', got"):
        uniforms(np.random.default_rng(0), n, method=method)


def test_one_draw_is_a_draw():
    for method in ("independent", "stratified", "lattice"):
        assert uniforms(np.random.default_rng(0), 1, method=method).shape == (1,)
        np.testing.assert_allclose(estimator_variance(smooth, 1, method=method), variance(smooth), QUADRATURE)


def test_more_bad_input():
    for method in PAIRED:
        with pytest.raises(ValueError, match="n must be an even integer >= 2"):
            estimator_variance(smooth, 3, method=method)
    with pytest.raises(ValueError, match="method must be one of"):
        uniforms(np.random.default_rng(0), 4, method="sobol")
    with pytest.raises(TypeError, match="rng must be"):
        uniforms(0, 4)
    with pytest.raises(ValueError, match="f must return the shape of its argument"):
        estimator_variance(lambda u: 1.0, 4)
