"""Oracles against quadrature, exhaustive sums and automatic differentiation; an equation against a solver."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from conftest import Backend, make_backend
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import logsumexp as scipy_logsumexp
from scipy.stats import multivariate_normal

from diffnum import oracles
from diffnum.schedules import Level

QUADRATURE = 1e-10
"""Trapezoidal sums of smooth decaying functions converge faster than any power: what is left is rounding."""
ROUNDING = 1e-12
"""Some thousand units of float64 rounding, relative to the largest entry."""
SINGLE = 2e-5
"""A hundred units of float32 rounding, relative to the largest entry."""

COVARIANCE = np.array([[1.3, 0.5, 0.1], [0.5, 0.8, -0.2], [0.1, -0.2, 0.4]])
MEAN = np.array([0.8, -0.5, 0.3])
WEIGHTS, MEANS = np.array([0.2, 0.5, 0.3]), np.array([[-1.5, 0.4], [0.6, 1.2], [0.9, -0.8]])
STDS = np.array([[0.3, 0.7], [0.5, 0.25], [0.9, 0.4]])
LEVELS = [(1.0, 0.3), (0.6, 0.8), (0.25, 1.4), (0.05, 0.4)]


def level(alpha: Any, sigma: Any, t: Any = 0.5) -> Level:
    """Level of given coefficients; the time is of no account."""
    return Level(t, alpha, sigma)


def relative(got: Any, expected: Any) -> float:
    """Largest error relative to the largest entry."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    """Equal to `tolerance`, relative to the largest entry."""
    assert relative(got, expected) <= tolerance


def assert_refused(check: Callable[[], None]) -> None:
    """The check fails: a negative control."""
    with pytest.raises(AssertionError):
        check()


# -- the definition, by quadrature -------------------------------------------------------------------------------------


def by_quadrature(
    density: Callable[[np.ndarray], np.ndarray], x: np.ndarray, alpha: float, sigma: float, points: int
) -> SimpleNamespace:
    """log p_t, E[x_0 | x_t] and Cov[x_0 | x_t] at one x by the trapezoidal rule on a box."""
    axis = np.linspace(-14.0, 14.0, points) if x.size == 1 else np.linspace(-9.0, 9.0, points)
    clean = np.stack(np.meshgrid(*[axis] * x.size, indexing="ij"), axis=-1).reshape(-1, x.size)
    noise = np.exp(-np.sum((x - alpha * clean) ** 2, axis=1) / (2 * sigma**2)) / (2 * np.pi * sigma**2) ** (x.size / 2)
    mass = density(clean) * noise * (axis[1] - axis[0]) ** x.size
    mean = mass @ clean / mass.sum()
    gap = clean - mean
    return SimpleNamespace(log_density=np.log(mass.sum()), mean=mean, covariance=(gap.T * mass) @ gap / mass.sum())


def density_of_mixture(weights: np.ndarray, means: np.ndarray, stds: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Density of a diagonal mixture, by SciPy."""
    laws = [multivariate_normal(m, np.diag(s**2)) for m, s in zip(means, stds, strict=True)]
    return lambda y: sum(w * law.pdf(y) for w, law in zip(weights, laws, strict=True))


CASES = {
    "gaussian-1d": (oracles.gaussian(0.8, 1.3), multivariate_normal(0.8, 1.3**2).pdf, 1, 2001),
    "gaussian-diagonal": (
        oracles.gaussian(MEAN[:2], [1.1, 0.4]),
        multivariate_normal(MEAN[:2], np.diag([1.1**2, 0.4**2])).pdf,
        2,
        301,
    ),
    "gaussian-one-std": (
        oracles.gaussian(MEAN[:2], 0.7),
        multivariate_normal(MEAN[:2], 0.49 * np.eye(2)).pdf,
        2,
        301,
    ),
    "gaussian-one-mean": (
        oracles.gaussian(0.8, [1.1, 0.4]),
        multivariate_normal([0.8, 0.8], np.diag([1.1**2, 0.4**2])).pdf,
        2,
        301,
    ),
    "gaussian-covariance": (
        oracles.gaussian(MEAN[:2], covariance=COVARIANCE[:2, :2]),
        multivariate_normal(MEAN[:2], COVARIANCE[:2, :2]).pdf,
        2,
        301,
    ),
    "mixture-diagonal": (oracles.mixture(WEIGHTS, MEANS, STDS), density_of_mixture(WEIGHTS, MEANS, STDS), 2, 301),
    "mixture-isotropic": (
        oracles.mixture(7.0 * WEIGHTS, MEANS, STDS[:, 0]),
        density_of_mixture(WEIGHTS, MEANS, np.repeat(STDS[:, :1], 2, axis=1)),
        2,
        301,
    ),
    "mixture-1d": (
        oracles.mixture(WEIGHTS, MEANS[:, :1], STDS[:, 0]),
        density_of_mixture(WEIGHTS, MEANS[:, :1], STDS[:, :1]),
        1,
        2001,
    ),
}


def check_against_quadrature(case: str, oracle: Any, alpha: float, sigma: float) -> None:
    """Mean, score, log-density and covariance of `oracle` are those of the definition for the law of `case`."""
    _, density, size, points = CASES[case]
    x = np.linspace(-0.7, 1.9, size)[None] * np.array([[1.0], [-0.6]]) + 0.2
    expected = [by_quadrature(density, row, alpha, sigma, points) for row in x]
    mean = np.stack([e.mean for e in expected])
    assert_close(oracle.denoise(x, level(alpha, sigma)), mean, QUADRATURE)
    assert_close(oracle.log_density(x, level(alpha, sigma)), [e.log_density for e in expected], QUADRATURE)
    assert_close(oracle.score(x, level(alpha, sigma)), (alpha * mean - x) / sigma**2, 10 * QUADRATURE)
    assert_close(oracle.covariance(x, level(alpha, sigma)), [e.covariance for e in expected], QUADRATURE)


@pytest.mark.claim(
    "oracles-posterior-mean",
    "oracles-log-density",
    "oracles-gaussian",
    "oracles-gaussian-density",
    "oracles-mixture",
    "oracles-mixture-weights",
    "oracles-mixture-covariance",
)
@pytest.mark.parametrize("alpha, sigma", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_oracles_are_the_integrals_of_their_definition(case: str, alpha: float, sigma: float) -> None:
    check_against_quadrature(case, CASES[case][0], alpha, sigma)


class WrongMixture:
    """The mixture of the tests with one plausible mistake."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def _parts(self, x: np.ndarray, at: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        alpha = 1.0 if self.mistake == "alpha dropped" else at.alpha
        variance = alpha**2 * STDS**2 + at.sigma**2
        spread = np.broadcast_to(at.sigma**2, variance.shape) if self.mistake == "weights at sigma" else variance
        gap = x[:, None] - alpha * MEANS
        weights = WEIGHTS * (3.0 if self.mistake == "not normalised" else 1.0)
        logs = np.log(weights) - 0.5 * np.sum(gap**2 / spread + np.log(2 * np.pi * spread), axis=-1)
        if self.mistake == "no determinant":
            logs = np.log(weights) - 0.5 * np.sum(gap**2 / spread, axis=-1)
        means = MEANS + alpha * STDS**2 / variance * gap
        return logs, means, STDS**2 * at.sigma**2 / variance

    def log_density(self, x: np.ndarray, at: Level) -> np.ndarray:
        return scipy_logsumexp(self._parts(x, at)[0], axis=-1)

    def denoise(self, x: np.ndarray, at: Level) -> np.ndarray:
        logs, means, _ = self._parts(x, at)
        return np.sum(np.exp(logs - scipy_logsumexp(logs, axis=-1, keepdims=True))[..., None] * means, axis=1)

    def score(self, x: np.ndarray, at: Level) -> np.ndarray:
        power = 1 if self.mistake == "score over sigma" else 2
        return (at.alpha * self.denoise(x, at) - x) / at.sigma**power

    def covariance(self, x: np.ndarray, at: Level) -> np.ndarray:
        logs, means, variances = self._parts(x, at)
        share = np.exp(logs - scipy_logsumexp(logs, axis=-1, keepdims=True))[..., None]
        gap = means - np.sum(share * means, axis=1, keepdims=True)
        between = np.einsum("bki,bkj->bij", share * gap, gap)
        within = np.sum(share * variances, axis=1)[..., None] * np.eye(2)
        return within + (0.0 if self.mistake == "no spread of the means" else between)


MISTAKES = (
    "weights at sigma",
    "alpha dropped",
    "not normalised",
    "no determinant",
    "score over sigma",
    "no spread of the means",
)


@pytest.mark.claim("oracles-mixture", "oracles-mixture-weights")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_quadrature_refuses_plausible_mistakes(mistake: str) -> None:
    check_against_quadrature("mixture-diagonal", WrongMixture("none"), 0.6, 0.8)
    assert_refused(lambda: check_against_quadrature("mixture-diagonal", WrongMixture(mistake), 0.6, 0.8))


@pytest.mark.claim("oracles-gaussian", "oracles-gaussian-density", "oracles-covariance")
@pytest.mark.parametrize("alpha, sigma", [*LEVELS, (1.0, 0.0), (0.0, 1.0)])
def test_full_covariance_is_conditioning_of_a_joint_normal_law(alpha: float, sigma: float) -> None:
    """The textbook rule: blocks of the joint covariance, solved, never diagonalised."""
    x = np.random.default_rng(0).normal(size=(4, 3))
    noisy = alpha**2 * COVARIANCE + sigma**2 * np.eye(3)
    gain = np.linalg.solve(noisy, alpha * COVARIANCE).T
    residual = x - alpha * MEAN
    law = oracles.gaussian(MEAN, covariance=COVARIANCE)
    at = level(alpha, sigma)
    assert_close(law.denoise(x, at), MEAN + residual @ gain.T, ROUNDING)
    assert_close(law.score(x, at), -np.linalg.solve(noisy, residual.T).T, ROUNDING)
    assert_close(law.log_density(x, at), multivariate_normal(alpha * MEAN, noisy).logpdf(x), ROUNDING)
    posterior = np.broadcast_to(COVARIANCE - gain @ (alpha * COVARIANCE), (4, 3, 3))
    assert np.max(np.abs(law.covariance(x, at) - posterior)) <= ROUNDING
    if alpha > 0.0:
        assert_refused(lambda: assert_close(law.denoise(x, at), MEAN + 0.99 * residual @ gain.T, ROUNDING))


@pytest.mark.claim("oracles-log-density")
@pytest.mark.parametrize("case", ["gaussian-1d", "mixture-1d"])
def test_densities_integrate_to_one(case: str) -> None:
    grid = np.linspace(-12.0, 12.0, 4001)
    data = oracles.empirical([[-1.0], [0.5], [2.0]])
    for law, (alpha, sigma) in itertools.product((CASES[case][0], data), LEVELS):
        total = np.sum(np.exp(law.log_density(grid[:, None], level(alpha, sigma)))) * (grid[1] - grid[0])
        assert abs(total - 1.0) <= QUADRATURE
    unnormalised = WrongMixture("not normalised").log_density(np.zeros((1, 2)), level(1.0, 0.5))
    assert abs(unnormalised - CASES["mixture-diagonal"][0].log_density(np.zeros((1, 2)), level(1.0, 0.5))) > 1.0


# -- finite data -------------------------------------------------------------------------------------------------------


def by_exhaustion(data: np.ndarray, x: np.ndarray, alpha: float, sigma: float, factor: float = 0.5) -> SimpleNamespace:
    """The sums over a data set, term by term in 40 digits."""
    with mpmath.workdps(40):
        a, s = mpmath.mpf(alpha), mpmath.mpf(sigma)
        squares = [sum((mpmath.mpf(u) - a * mpmath.mpf(v)) ** 2 for u, v in zip(x, y, strict=True)) for y in data]
        terms = [mpmath.exp(-mpmath.mpf(factor) * square / s**2) for square in squares]
        total = sum(terms)
        share = [term / total for term in terms]
        mean = [sum(w * mpmath.mpf(y[i]) for w, y in zip(share, data, strict=True)) for i in range(x.size)]
        covariance = [
            [
                sum(
                    w * (mpmath.mpf(y[i]) - mean[i]) * (mpmath.mpf(y[j]) - mean[j])
                    for w, y in zip(share, data, strict=True)
                )
                for j in range(x.size)
            ]
            for i in range(x.size)
        ]
        density = mpmath.log(total / len(data)) - mpmath.mpf(x.size) / 2 * mpmath.log(2 * mpmath.pi * s**2)
        score = [(a * m - mpmath.mpf(u)) / s**2 for m, u in zip(mean, x, strict=True)]
        return SimpleNamespace(
            mean=np.array(mean, dtype=float),
            covariance=np.array(covariance, dtype=float),
            score=np.array(score, dtype=float),
            log_density=float(density),
        )


DATA = np.random.default_rng(1).normal(size=(23, 3)) + 2.0


@pytest.mark.claim("oracles-empirical", "oracles-empirical-density", "oracles-distance", "oracles-covariance")
@pytest.mark.parametrize("chunk", [None, 1, 4, 7, 22, 23, 100])
def test_empirical_is_the_exhaustive_sum_for_every_chunk(chunk: int | None) -> None:
    law = oracles.empirical(DATA, chunk=chunk)
    for alpha, sigma in [*LEVELS, (1.0, 0.05)]:
        x = alpha * DATA[[3, 11]] + sigma * np.array([[0.3, -1.0, 0.5], [1.2, 0.1, -0.4]])
        at = level(alpha, sigma)
        expected = [by_exhaustion(DATA, row, alpha, sigma) for row in x]
        assert_close(law.denoise(x, at), [e.mean for e in expected], ROUNDING)
        assert_close(law.log_density(x, at), [e.log_density for e in expected], ROUNDING)
        assert_close(law.score(x, at), [e.score for e in expected], 10 * ROUNDING)
        got = law.covariance(x, at)
        assert np.max(np.abs(got - [e.covariance for e in expected])) <= ROUNDING
        wrong = by_exhaustion(DATA, x[0], alpha, sigma, factor=1.0)
        if sigma > 0.1:
            assert relative(law.denoise(x, at)[0], wrong.mean) > 1e-3


@pytest.mark.claim("oracles-empirical", "oracles-mixture")
def test_empirical_is_the_limit_of_narrow_mixtures() -> None:
    x, at = np.random.default_rng(2).normal(size=(5, 3)) + 1.0, level(0.7, 0.6)
    law = oracles.empirical(DATA)
    errors = []
    for std in (1e-2, 1e-3):
        narrow = oracles.mixture(np.ones(len(DATA)), DATA, np.full(len(DATA), std))
        errors.append(np.max(np.abs(narrow.denoise(x, at) - law.denoise(x, at))))
        assert np.max(np.abs(narrow.log_density(x, at) - law.log_density(x, at))) <= 10.0 * std**2
    assert 1.95 < math.log10(errors[0] / errors[1]) < 2.05


@pytest.mark.claim("oracles-memorisation")
def test_clean_end_returns_the_nearest_data_point() -> None:
    law = oracles.empirical(DATA)
    x = 0.5 * DATA[:6] + 0.01 * np.random.default_rng(3).normal(size=(6, 3))
    for sigma in (0.0, 1e-300, 1e-40, 1e-6):
        assert np.array_equal(law.denoise(x, level(0.5, sigma)), DATA[:6])
    assert np.all(law.log_density(x, level(0.5, 0.0)) == -math.inf)
    assert np.array_equal(law.log_density(0.5 * DATA[:2], level(0.5, 0.0)), [math.inf, math.inf])
    assert np.array_equal(law.score(0.5 * DATA[:2], level(0.5, 0.0)), np.zeros((2, 3)))
    assert np.array_equal(law.score(x, level(0.5, 0.0)), np.sign(0.5 * DATA[:6] - x) * math.inf)
    pair = oracles.empirical([[-1.0], [1.0], [6.0]])
    assert np.array_equal(pair.denoise(np.array([[0.0], [0.1], [-0.1]]), level(1.0, 0.0)), [[0.0], [1.0], [-1.0]])
    assert np.array_equal(pair.denoise(np.array([[1e9]]), level(1.0, 0.0)), [[6.0]])
    wide = oracles.empirical([[-1e9], [1e9]])
    assert np.array_equal(wide.denoise(np.array([[1e-3]]), level(1.0, 0.0)), [[1e9]])
    undecided = oracles.empirical([[-1.0], [1.0]]).denoise(np.array([[2.0**-31]]), level(1.0, 2.0**-15))
    assert abs(undecided[0, 0] - math.tanh(0.5)) <= ROUNDING
    single = oracles.empirical([[2.0, 3.0]])
    for sigma in (0.0, 1e-9, 4.0):
        assert np.array_equal(single.denoise(np.ones((1, 2)), level(1.0, sigma)), [[2.0, 3.0]])


@pytest.mark.claim("oracles-posterior-mean")
def test_noisy_end_returns_the_mean_of_the_data() -> None:
    x = np.array([[5.0, -40.0, 1e8]])
    for sigma in (0.0, 1e-9, 1.0, 80.0):
        assert_close(oracles.empirical(DATA).denoise(x, level(0.0, sigma)), DATA.mean(axis=0)[None], ROUNDING)
        assert np.array_equal(oracles.gaussian(MEAN, 1.3).denoise(x, level(0.0, sigma)), MEAN[None])
        law = oracles.gaussian(MEAN, covariance=COVARIANCE)
        assert np.array_equal(law.denoise(x, level(0.0, sigma)), MEAN[None])
        if sigma > 0.0:
            narrow = oracles.mixture(WEIGHTS, MEANS, STDS).denoise(x[:, :2], level(0.0, sigma))
            assert_close(narrow, WEIGHTS @ MEANS[None], ROUNDING)


@pytest.mark.claim("oracles-gaussian", "oracles-mixture")
def test_clean_end_of_smooth_laws_is_the_point_itself() -> None:
    x = np.array([[0.3, -0.4]])
    for case in ("gaussian-diagonal", "gaussian-covariance", "mixture-diagonal"):
        law, density, _, _ = CASES[case]
        assert_close(law.denoise(0.5 * x, level(0.5, 0.0)), x, ROUNDING)
        assert_close(law.log_density(0.5 * x, level(0.5, 0.0)), [np.log(density(x)) + 2 * np.log(2.0)], ROUNDING)
        assert_close(law.score(x, level(1.0, 0.0)), law.score(x, level(1.0, 1e-9)), 1e-7)
        assert np.max(np.abs(law.covariance(x, level(1.0, 0.0)))) <= 1e-30


@pytest.mark.claim("oracles-gaussian", "oracles-gaussian-density")
def test_directions_without_variance() -> None:
    flat = oracles.gaussian([1.0, 2.0], [0.0, 0.5])
    on, off = np.array([[1.0, 2.2]]), np.array([[1.3, 2.2]])
    assert_close(flat.denoise(off, level(1.0, 0.4)), [[1.0, 2.0 + 0.2 * 0.25 / 0.41]], ROUNDING)
    assert_close(flat.denoise(off, level(1.0, 0.0)), [[1.0, 2.2]], ROUNDING)
    assert flat.log_density(on, level(1.0, 0.0)) == math.inf
    assert flat.log_density(off, level(1.0, 0.0)) == -math.inf
    assert_close(flat.score(off, level(1.0, 0.0)), [[0.0, -0.8]], ROUNDING)
    direction = np.array([3.0, 4.0]) / 5.0
    line = oracles.gaussian([1.0, 2.0], covariance=4.0 * np.outer(direction, direction))
    assert_close(line.denoise(np.array([[1.6, 2.8]]), level(1.0, 0.0)), [[1.6, 2.8]], ROUNDING)
    assert_close(line.denoise(np.array([[0.2, 2.6]]), level(1.0, 0.0)), [[1.0, 2.0]], ROUNDING)
    assert line.log_density(np.array([[0.2, 2.6]]), level(1.0, 0.0)) == -math.inf
    assert line.std[0] == 0.0
    assert math.isclose(line.std[1], 2.0)


def test_covariances_that_rounding_has_touched() -> None:
    """Asymmetry and negative eigenvalues of a few roundings are accepted, larger ones are errors."""
    tilt = np.array([[0.0, 1.0], [0.0, 0.0]])
    oracles.gaussian(0.0, covariance=np.eye(2) + 0.5 * np.ones((2, 2)) + 1e-7 * tilt)
    oracles.gaussian(0.0, covariance=np.diag([1.0, 2.0]) + 1e-9 * tilt)
    small = oracles.gaussian(0.0, covariance=np.diag([-1.5e-6, 2.0]))
    assert small.std[0] == 0.0
    assert oracles.gaussian(0.0, covariance=np.diag([1e-8, 2.0])).std[0] == pytest.approx(1e-4)
    for bad in (np.eye(2) + 0.5 * np.ones((2, 2)) + 1e-3 * tilt, np.diag([1.0, 2.0]) + 1e-6 * tilt):
        with pytest.raises(ValueError, match="symmetric"):
            oracles.gaussian(0.0, covariance=bad)
    with pytest.raises(ValueError, match="positive semi-definite, got the eigenvalue -4e-06"):
        oracles.gaussian(0.0, covariance=np.diag([-4e-6, 2.0]))


# -- Tweedie and the Jacobian, by automatic differentiation ------------------------------------------------------------


MEANS_3D = np.random.default_rng(5).normal(size=(3, 3))
STDS_3D = np.array([[0.3, 0.7, 0.5], [0.5, 0.25, 0.9], [0.9, 0.4, 0.2]])


def smooth_oracles(asarray: Callable[[Any], Any] = np.asarray) -> dict[str, Any]:
    """One law of each kind in three dimensions."""
    a = asarray
    return {
        "gaussian": oracles.gaussian(a(MEAN), a([1.1, 0.4, 0.7])),
        "covariance": oracles.gaussian(a(MEAN), covariance=a(COVARIANCE)),
        "mixture": oracles.mixture(a(WEIGHTS), a(MEANS_3D), a(STDS_3D)),
        "isotropic": oracles.mixture(a(WEIGHTS), a(MEANS_3D), a([0.2, 0.5, 0.9])),
        "empirical": oracles.empirical(a(DATA - 1.5), chunk=5),
    }


KINDS = ("gaussian", "covariance", "mixture", "empirical")
METHODS = ("denoise", "score", "log_density", "covariance")


def all_methods(law: Any, x: Any, at: Level, backend: Backend | None = None) -> list[np.ndarray]:
    """What every method answers; as one compiled program where the backend is JAX: eager calls take longer."""

    def run(x: Any, alpha: Any, sigma: Any) -> list[Any]:
        return [getattr(law, method)(x, level(alpha, sigma)) for method in METHODS]

    if backend is not None and backend.name == "jax":
        run = pytest.importorskip("jax").jit(run)
    return run(x, at.alpha, at.sigma)


@pytest.mark.claim("oracles-tweedie", "oracles-covariance")
@pytest.mark.parametrize("kind", KINDS)
def test_score_and_covariance_are_derivatives(kind: str) -> None:
    jax = pytest.importorskip("jax")
    law, x = smooth_oracles()[kind], np.array([[0.4, -0.9, 0.2], [1.1, 0.3, -0.5]])

    @jax.jit
    def derivatives(alpha: Any, sigma: Any) -> tuple[Any, Any]:
        at = level(alpha, sigma)
        gradient = jax.vmap(jax.grad(lambda row: law.log_density(row, at)))(x)
        return gradient, jax.vmap(jax.jacfwd(lambda row: law.denoise(row, at)))(x)

    def check(alpha: float, sigma: float, power: float = 2.0, factor: float = 1.0) -> None:
        at, (gradient, jacobian) = level(alpha, sigma), derivatives(alpha, sigma)
        assert_close(law.score(x, at), gradient, ROUNDING)
        assert_close((alpha * law.denoise(x, at) * factor - x) / sigma**power, gradient, 100 * ROUNDING)
        assert_close(law.covariance(x, at) * alpha / sigma**power, jacobian, 100 * ROUNDING)

    for alpha, sigma in LEVELS:
        check(alpha, sigma)
    assert_refused(lambda: check(0.6, 0.8, power=1.0))
    assert_refused(lambda: check(0.6, 0.8, factor=1.001))


# -- extremes ----------------------------------------------------------------------------------------------------------


def finite(values: Any) -> bool:
    """All entries are finite."""
    return bool(np.all(np.isfinite(np.asarray(values, dtype=float))))


@pytest.mark.claim("oracles-empirical", "oracles-mixture")
@pytest.mark.parametrize("name, dtype", [("numpy", "float32"), ("numpy", "float64"), ("torch", "float32")])
def test_far_points_at_little_noise(name: str, dtype: str) -> None:
    """Log-weights of -1e6 to -1e14: no overflow, no NaN, and the nearest component wins."""
    backend = make_backend(name)
    x = np.concatenate([np.array([[size, size], [-size, 0.3 * size]]) for size in (2.0, 50.0, 1e4)])
    nearest = np.argmin(np.sum((x[:, None] - MEANS) ** 2, axis=-1), axis=1)
    at = level(backend.asarray(1.0, dtype), backend.asarray(1e-3, dtype))
    for law in (oracles.empirical(MEANS), oracles.mixture(WEIGHTS, MEANS, np.full(3, 1e-6))):
        answers = [backend.numpy(answer) for answer in all_methods(law, backend.asarray(x, dtype), at, backend)]
        assert all(finite(answer) for answer in answers)
        pull = 0.0 if isinstance(law, oracles.Empirical) else 1e-6 * (x - MEANS[nearest])
        assert np.max(np.abs(answers[0] - MEANS[nearest] - pull)) <= 1e-4
        assert_close(answers[1], (MEANS[nearest] - x) / 1e-6, 1e-5)


@pytest.mark.claim("oracles-gaussian", "oracles-empirical")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_astronomic_points(dtype: str) -> None:
    x, at = np.array([[3e17, -3e17]]).astype(dtype), level(1.0, 1e-2)
    assert_close(oracles.gaussian(MEAN[:2], 1.0).denoise(x, at), x, 2e-4)
    assert_close(oracles.empirical(MEANS).denoise(x, at), MEANS[[2]], 1e-6)


# -- rounding of the distances -----------------------------------------------------------------------------------------


def digits() -> np.ndarray:
    """The 1,797 images of 64 pixels of scikit-learn, in [-1, 1]."""
    return pytest.importorskip("sklearn.datasets").load_digits().data / 8.0 - 1.0


def twins() -> tuple[np.ndarray, np.ndarray]:
    """Two hundred digits, each with a twin 0.02 away, and noisy points between the twins at sigma = 0.01."""
    rng = np.random.default_rng(6)
    images = digits()[:200]
    shift = rng.normal(size=images.shape)
    shift *= 0.02 / np.linalg.norm(shift, axis=1, keepdims=True)
    noise = 0.01 * rng.normal(size=(32, 64))
    return np.concatenate([images, images + shift]), (images[:32] + 0.5 * shift[:32] + noise).astype("float32")


def by_float64(data: np.ndarray, x: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
    """Softmax average from differences in float64."""
    scores = -np.sum((x[:, None].astype("float64") - alpha * data) ** 2, axis=-1) / (2 * sigma**2)
    return np.exp(scores - scipy_logsumexp(scores, axis=1, keepdims=True)) @ data


@pytest.mark.claim("oracles-distance")
def test_float32_distances_keep_their_digits() -> None:
    """The twins' weights depend on 1e-4 of the distances, which a float32 product of raw vectors does not resolve."""
    data, x = twins()
    exact = by_float64(data, x, 1.0, 0.01)
    twin_gap = np.max(np.abs(data[:200] - data[200:]))

    def check(got: np.ndarray, tolerance: float) -> None:
        assert np.max(np.abs(got - exact)) <= tolerance * twin_gap

    got = oracles.empirical(data).denoise(x, level(1.0, 0.01))
    assert got.dtype == np.float32
    check(got, 1e-5)
    naive_data = data.astype("float32")
    products = 2.0 * x @ naive_data.T - np.sum(naive_data**2, axis=1)
    scores = (products - np.sum(x**2, axis=1, keepdims=True)) / np.float32(2 * 0.01**2)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    naive = weights / weights.sum(axis=1, keepdims=True) @ naive_data
    assert_refused(lambda: check(naive, 1e-2))


@pytest.mark.claim("oracles-distance")
def test_without_float64_the_differences_are_squared() -> None:
    jax = pytest.importorskip("jax")
    data, x = twins()
    exact = by_float64(data, x, 1.0, 0.01)
    with jax.enable_x64(False):
        law = oracles.empirical(jax.numpy.asarray(data, dtype="float32"), chunk=133)
        run = jax.jit(lambda sigma: [getattr(law, m)(jax.numpy.asarray(x), level(1.0, sigma)) for m in METHODS[::2]])
        (denoised, density), clean = run(0.01), run(0.0)[0]
        small = oracles.empirical(jax.numpy.asarray(DATA - 1.5, dtype="float32"))
        covariance = small.covariance(np.ones(3), level(1.0, 1.0))
    assert denoised.dtype == np.float32
    assert np.max(np.abs(denoised - exact)) <= 1e-3 * np.max(np.abs(data[:200] - data[200:]))
    nearest = np.argmin(np.sum((x[:, None].astype("float64") - data) ** 2, axis=-1), axis=1)
    assert np.max(np.abs(np.asarray(clean) - data[nearest])) <= 1e-6
    assert_close(density, oracles.empirical(data).log_density(x, level(1.0, 0.01)), 1e-6)
    assert_close(covariance, oracles.empirical(DATA - 1.5).covariance(np.ones(3), level(1.0, 1.0)), SINGLE)


@pytest.mark.claim("oracles-memorisation", "oracles-distance")
def test_digits_in_float32_at_little_noise() -> None:
    data = digits()
    rng = np.random.default_rng(7)
    for sigma in (0.01, 0.3, 1.0):
        x = (data[:24] + sigma * rng.normal(size=(24, 64))).astype("float32")
        got = oracles.empirical(data).denoise(x, level(1.0, sigma))
        assert np.max(np.abs(got - by_float64(data, x, 1.0, sigma))) <= 1e-6
        if sigma == 0.01:
            assert np.array_equal(got, data[:24].astype("float32"))


# -- backends, shapes, levels ------------------------------------------------------------------------------------------


@pytest.mark.claim("oracles-posterior-mean", "oracles-tweedie", "oracles-log-density", "oracles-covariance")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_library_and_dtype(backend: Backend, dtype: str, kind: str) -> None:
    law = smooth_oracles()[kind]
    rng = np.random.default_rng(8)
    x, alpha, sigma = rng.normal(size=(2, 4, 3)), rng.uniform(0.3, 1.0, size=(2, 1)), rng.uniform(0.3, 2.0, size=4)
    at = level(backend.asarray(alpha, dtype), backend.asarray(sigma, dtype))
    answers = all_methods(law, backend.asarray(x, dtype), at, backend)
    for got, expected in zip(answers, all_methods(law, x, level(alpha, sigma)), strict=True):
        assert type(got) is type(backend.asarray(x, dtype))
        assert backend.dtype(got) == dtype
        assert_close(backend.numpy(got), expected, SINGLE if dtype == "float32" else ROUNDING)


@pytest.mark.claim("oracles-posterior-mean")
@pytest.mark.parametrize("kind", smooth_oracles())
def test_batches_are_points_one_by_one(kind: str) -> None:
    law = smooth_oracles()[kind]
    rng = np.random.default_rng(8)
    x, alpha, sigma = rng.normal(size=(2, 4, 3)), rng.uniform(0.3, 1.0, size=(2, 1)), rng.uniform(0.3, 2.0, size=4)
    batch = all_methods(law, x, level(alpha, sigma))
    for i, j in itertools.product(range(2), range(4)):
        for whole, single in zip(batch, all_methods(law, x[i, j], level(alpha[i, 0], sigma[j])), strict=True):
            assert np.max(np.abs(whole[i, j] - single)) <= ROUNDING * np.max(np.abs(whole))


@pytest.mark.parametrize("name", ["jax", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_states(name: str, kind: str) -> None:
    backend = make_backend(name)
    x = np.array([[0.5, -1.0, 0.25]])
    denoise = smooth_oracles()[kind].denoise
    if name == "jax":
        denoise = pytest.importorskip("jax").jit(denoise)
    got = denoise(backend.asarray(x, "bfloat16"), level(0.6, 0.8))
    assert backend.dtype(got) == "bfloat16"
    assert_close(backend.numpy(got), smooth_oracles()[kind].denoise(x, level(0.6, 0.8)), 2.0**-8)


@pytest.mark.parametrize(
    "name, kind",
    [*itertools.product(["numpy", "torch", "strict"], smooth_oracles()), ("jax", "isotropic"), ("jax", "empirical")],
)
def test_parameters_of_the_library_of_x(name: str, kind: str) -> None:
    """Laws built from arrays of a library are those built from NumPy, also for NumPy points."""
    backend = make_backend(name)
    law, at = smooth_oracles(backend.asarray)[kind], level(0.6, 0.8)
    x = np.array([[0.4, -0.9, 0.2], [1.1, 0.3, -0.5]])
    expected = all_methods(smooth_oracles()[kind], x, at)
    for points in (x, backend.asarray(x)) if name != "jax" else (x,):
        for got, wanted in zip(all_methods(law, points, at, backend), expected, strict=True):
            assert_close(backend.numpy(got), wanted, ROUNDING)


@pytest.mark.parametrize("kind", ["covariance", "empirical"])
def test_eager_jax_and_vmap_agree_with_numpy(kind: str) -> None:
    jax = pytest.importorskip("jax")
    law = smooth_oracles()[kind]
    x, sigma = np.random.default_rng(9).normal(size=(4, 3)), np.array([0.1, 0.5, 1.0, 2.0])
    expected = law.denoise(x, level(0.6, sigma))
    if kind == "covariance":
        assert_close(law.denoise(jax.numpy.asarray(x), level(0.6, sigma)), expected, ROUNDING)
    one = jax.jit(jax.vmap(lambda row, s: law.denoise(row, level(0.6, s))))
    assert_close(one(x, sigma), expected, ROUNDING)


@pytest.mark.parametrize("kind", smooth_oracles())
def test_an_empty_batch(kind: str) -> None:
    for got, shape in zip(
        all_methods(smooth_oracles()[kind], np.ones((0, 3)), level(0.6, 0.3)),
        [(0, 3), (0, 3), (0,), (0, 3, 3)],
        strict=True,
    ):
        assert got.shape == shape


def parametrised(kind: str, p: Any, asarray: Callable[[Any], Any]) -> Any:
    """A law that depends on a scalar p."""
    if kind == "gaussian":
        return oracles.gaussian(p * asarray(MEAN), p * asarray([1.1, 0.4, 0.7]))
    if kind == "covariance":
        return oracles.gaussian(p * asarray(MEAN), covariance=p * asarray(COVARIANCE))
    if kind == "mixture":
        weights = asarray(WEIGHTS) + p * asarray([0.0, 0.1, 0.2])
        return oracles.mixture(weights, p * asarray(MEANS_3D), p * asarray([0.2, 0.5, 0.9]))
    return oracles.empirical(p * asarray(DATA - 1.5), chunk=6)


@pytest.mark.parametrize(
    "name, kind", [*itertools.product(["torch"], KINDS), ("jax", "gaussian"), ("jax", "mixture"), ("jax", "empirical")]
)
def test_gradients_pass_through_parameters_points_and_levels(name: str, kind: str) -> None:
    """Against central differences in NumPy; step 1e-5 leaves errors of 1e-9."""
    backend = make_backend(name)
    x = np.array([[0.4, -0.9, 0.2], [1.1, 0.3, -0.5]])
    direction = np.array([[0.3, 1.0, -0.2], [0.5, -0.4, 0.8]])

    def value(s: Any, asarray: Callable[[Any], Any]) -> Any:
        law = parametrised(kind, s[0], asarray)
        at = level(0.6 + 0.1 * s[1], 0.8 + s[2])
        points = asarray(x) + s[3] * asarray(direction)
        total = (law.denoise(points, at) * asarray(direction)).sum()
        if kind != "empirical":
            total = total + 0.7 * (law.score(points, at) * asarray(direction)).sum()
        return total + (law.log_density(points, at) * asarray([1.0, 2.0])).sum()

    point = np.array([1.2, 0.0, 0.0, 0.0])
    numeric = [(value(point + e, np.asarray) - value(point - e, np.asarray)) / 2e-5 for e in 1e-5 * np.eye(4)]
    if name == "jax":
        jax = pytest.importorskip("jax")
        gradient = jax.jit(jax.grad(lambda s: value(s, backend.asarray)))(point)
    else:
        leaf = backend.asarray(point).requires_grad_()
        value(leaf, backend.asarray).backward()
        gradient = leaf.grad
    assert_close(backend.numpy(gradient), np.array(numeric), 1e-7)


@pytest.mark.parametrize("kind", ["gaussian", "mixture", "empirical"])
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_gradients_at_the_ends_are_finite(name: str, kind: str) -> None:
    backend = make_backend(name)
    x = backend.asarray(np.array([[0.4, -0.9, 0.2]]))

    def total(p: Any, y: Any, alpha: Any, sigma: Any) -> Any:
        law, at = parametrised(kind, p, backend.asarray), level(alpha, sigma)
        return law.denoise(y, at).sum() + (law.score(y, at).sum() if kind != "empirical" else 0.0)

    if name == "jax":
        jax = pytest.importorskip("jax")
        run = jax.jit(jax.grad(total, (0, 1, 2, 3)))
    else:

        def run(*values: Any) -> list[Any]:
            leaves = [backend.asarray(v).clone().requires_grad_() for v in values]
            total(*leaves).backward()
            return [leaf.grad for leaf in leaves if leaf.grad is not None]

    for alpha, sigma in [(1.0, 0.0), (0.0, 1.0)]:
        assert all(finite(backend.numpy(g)) for g in run(1.2, x, alpha, sigma))


# -- memory ------------------------------------------------------------------------------------------------------------


def peak_of(call: Callable[[], Any]) -> int:
    """Largest number of bytes that NumPy holds at once during the call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.claim("oracles-empirical")
def test_memory_does_not_grow_with_the_data() -> None:
    rng = np.random.default_rng(10)
    x = rng.normal(size=(256, 8))
    peaks = [
        peak_of(lambda n=n: oracles.empirical(rng.normal(size=(n, 8))).denoise(x, level(1.0, 0.7))) for n in (1, 40_000)
    ]
    law = oracles.empirical(rng.normal(size=(40_000, 8)))
    everything = 40_000 * 256 * 8
    assert peaks[0] < everything
    assert peak_of(lambda: law.denoise(x, level(1.0, 0.7))) < 0.5 * everything
    whole = oracles.empirical(law.data, chunk=40_000)
    assert peak_of(lambda: whole.denoise(x, level(1.0, 0.7))) > everything
    assert_close(law.denoise(x, level(1.0, 0.7)), whole.denoise(x, level(1.0, 0.7)), ROUNDING)


@pytest.mark.slow
@pytest.mark.claim("oracles-empirical")
def test_sixty_thousand_images_stay_within_64_mib() -> None:
    rng = np.random.default_rng(11)
    data = rng.standard_normal((60_000, 784), dtype=np.float32)
    law, x = oracles.empirical(data), data[:16] + np.float32(0.1)
    assert peak_of(lambda: law.denoise(x, level(1.0, 0.2))) < 64 * 2**20
    assert_close(law.denoise(x, level(1.0, 0.2)), data[:16], 1e-6)


# -- sampling ----------------------------------------------------------------------------------------------------------


def sources(name: str, seed: int, count: int | None = None) -> Any:
    """A generator or key of a library, or `count` of them."""
    if name == "jax":
        jax = pytest.importorskip("jax")
        keys = jax.random.split(jax.random.key(seed), count or 1)
        return keys if count else keys[0]
    if name == "torch":
        torch = pytest.importorskip("torch")
        many = [torch.Generator().manual_seed(seed + i) for i in range(count or 1)]
    else:
        many = [np.random.default_rng(seed + i) for i in range(count or 1)]
    return many if count else many[0]


def sampler(name: str, law: Any) -> Callable[[Any, int], np.ndarray]:
    """``(rng, n) -> draws`` as NumPy, from a compiled program where the library is JAX."""
    backend, draw = make_backend(name), law.sample
    if name == "jax":
        draw = pytest.importorskip("jax").jit(law.sample, static_argnums=1)
    return lambda rng, n: backend.numpy(draw(rng, n))


@pytest.mark.claim("oracles-gaussian", "oracles-mixture", "oracles-empirical")
@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_follow_the_law(name: str, kind: str) -> None:
    """Mean, covariance and skewness of 20,000 draws within 5 standard errors; a fixed seed, so never by chance."""
    law, n = smooth_oracles()[kind], 20_000
    draws = sampler(name, law)(sources(name, 12), n)
    assert draws.shape == (n, 3)
    at = level(0.0, 1.0)
    mean, covariance = law.denoise(np.zeros(3), at), law.covariance(np.zeros(3), at)
    spread = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) <= 5 * spread / np.sqrt(n))
    gap = (draws - mean) / spread
    correlation = covariance / np.outer(spread, spread)
    assert np.all(np.abs(gap.T @ gap / n - correlation) <= 5 * 1.5 / np.sqrt(n))
    if kind == "empirical":
        values, counts = np.unique(np.round(draws, 4), axis=0, return_counts=True)
        assert np.allclose(values, np.unique(np.round(DATA - 1.5, 4), axis=0), atol=1e-4)
        assert np.all(np.abs(counts - n / 23) <= 5 * np.sqrt(n / 23))


@pytest.mark.claim("oracles-mixture")
@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_components_are_drawn_with_their_weights(name: str) -> None:
    law = oracles.mixture([1.0, 5.0, 2.0], [[-10.0], [0.0], [10.0]], [0.1, 0.2, 0.4])
    draws = sampler(name, law)(sources(name, 13), 20_000)[:, 0]
    for weight, mean, std in zip((0.125, 0.625, 0.25), (-10.0, 0.0, 10.0), (0.1, 0.2, 0.4), strict=True):
        chosen = draws[np.abs(draws - mean) < 5]
        assert abs(chosen.size / 20_000 - weight) <= 5 * np.sqrt(weight * (1 - weight) / 20_000)
        assert abs(chosen.std() - std) <= 5 * std / np.sqrt(2 * chosen.size)


@pytest.mark.parametrize(
    "name, kind", [*itertools.product(["numpy", "torch"], KINDS), ("jax", "mixture"), ("jax", "empirical")]
)
def test_a_sample_depends_on_its_own_source_alone(name: str, kind: str) -> None:
    draw = sampler(name, smooth_oracles()[kind])
    many = draw(sources(name, 14, 6), 6)
    assert np.array_equal(many[:3], draw(sources(name, 14, 6)[:3], 3))
    assert np.array_equal(many, draw(sources(name, 14, 6), 6))
    assert len(np.unique(many.round(6), axis=0)) > 1


def test_scalar_laws_are_sampled_in_one_dimension() -> None:
    draws = oracles.gaussian(0.8, 1.7).sample(np.random.default_rng(0), 5)
    assert draws.shape == (5, 1)
    assert draws.dtype == np.float64
    assert np.array_equal(draws, 0.8 + 1.7 * np.random.default_rng(0).standard_normal((5, 1)))


# -- the semilinear problem --------------------------------------------------------------------------------------------


PROBLEMS = {
    "constant rate": oracles.semilinear_problem(),
    "growing": oracles.semilinear_problem(0.7, coupling=0.5),
    "variable rate": oracles.semilinear_problem(-1.5, wave=2.0, phases=(0.3, 1.9)),
    "Prothero-Robinson": oracles.semilinear_problem(-50.0, coupling=0.0, phases=(0.0,)),
}


def check_solution(problem: Any, t0: float, t1: float) -> None:
    """An ODE solver of order 8 arrives at the solution."""

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        return problem.rate(np.asarray(t)) * y + problem.f(np.asarray(t), y)

    start, stop = problem.solution(np.asarray(t0)), problem.solution(np.asarray(t1))
    end = solve_ivp(slope, (t0, t1), start, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    assert np.max(np.abs(end - stop)) <= 1e-8


@pytest.mark.claim("oracles-semilinear")
@pytest.mark.parametrize("name", PROBLEMS)
def test_an_ode_solver_finds_the_solution_forward_and_backward(name: str) -> None:
    problem = PROBLEMS[name]
    check_solution(problem, problem.t0, problem.t1)
    if name != "Prothero-Robinson":
        check_solution(problem, problem.t1, problem.t0)
    wrong = SimpleNamespace(
        rate=problem.rate, solution=problem.solution, f=lambda t, y: problem.f(t, y) + 0.01 * np.cos(t), t0=0.0, t1=2.0
    )
    assert_refused(lambda: check_solution(wrong, 0.0, 2.0))


@pytest.mark.claim("oracles-semilinear")
@pytest.mark.parametrize("name", PROBLEMS)
def test_integral_solution_and_nonlinearity(name: str) -> None:
    problem = PROBLEMS[name]
    t = np.linspace(-1.0, 3.0, 9)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    quadrature = [s / 2 * weights @ problem.rate(s / 2 * (nodes + 1)) for s in t]
    assert np.max(np.abs(problem.integral(t) - quadrature)) <= ROUNDING * 50
    assert np.array_equal(problem.solution(t), np.cos(t[:, None] + problem.phases))
    assert_close(problem.rate(t), problem.rate_mean + problem.rate_wave * np.cos(3.0 * t), ROUNDING)
    y, h = problem.solution(t), 1e-4
    slope = (problem.f(t, y + h) - problem.f(t, y - h)) / (2 * h)
    assert np.max(np.abs(slope - problem.coupling * np.cos(y))) <= 1e-7
    assert np.array_equal(problem.denoise(y, Level(t, None, None)), problem.f(t, y))
    assert (problem.t0, problem.t1) == (0.0, 2.0)
    if name == "constant rate":
        assert np.array_equal(problem.rate(t), np.full(9, -1.0))
        assert problem.coupling == 1.0
        assert np.array_equal(problem.phases, [0.0, 1.0, 2.5])


@pytest.mark.claim("oracles-semilinear")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_semilinear_problem_in_every_library(backend: Backend, dtype: str) -> None:
    problem = PROBLEMS["variable rate"]
    t, y = np.array([0.3, 1.7]), np.array([[0.2, -1.0], [0.5, 0.1]])
    tolerance = SINGLE if dtype == "float32" else ROUNDING

    def run(t: Any, y: Any) -> list[Any]:
        return [
            problem.rate(t),
            problem.integral(t),
            problem.solution(t),
            problem.f(t, y),
            problem.f(t[0], y[0, :]),
            problem.f(np.asarray([0.3, 1.7]), y),
        ]

    compiled = pytest.importorskip("jax").jit(run) if backend.name == "jax" else run
    for got, expected in zip(compiled(backend.asarray(t, dtype), backend.asarray(y, dtype)), run(t, y), strict=True):
        assert backend.dtype(got) == dtype
        assert_close(backend.numpy(got), expected, tolerance)
    assert problem.rate(0.5) == problem.rate(np.asarray(0.5))


def test_semilinear_problem_under_jit_and_in_bfloat16() -> None:
    jax = pytest.importorskip("jax")
    y = jax.numpy.asarray([[0.2, -1.0, 0.4]])

    def run(rate: Any, state: Any) -> Any:
        problem = oracles.semilinear_problem(rate, wave=0.5)
        return problem.f(jax.numpy.asarray(0.3), state).sum() + problem.integral(jax.numpy.asarray(0.7))

    slope = jax.jit(jax.grad(run))(-1.0, y)
    assert math.isclose(slope, 0.7 - float(np.cos(0.3 + np.array([0.0, 1.0, 2.5])).sum()), rel_tol=1e-12)
    half = oracles.semilinear_problem().f(jax.numpy.asarray(0.3), y.astype("bfloat16"))
    assert half.dtype == jax.numpy.bfloat16


# -- bad input ---------------------------------------------------------------------------------------------------------


BAD = {
    "mean": lambda: oracles.gaussian([[0.0]], 1.0),
    "mean .*finite": lambda: oracles.gaussian(math.nan, 1.0),
    "std must be at least": lambda: oracles.gaussian(0.0, -1.0),
    "std must have the shape": lambda: oracles.gaussian([0.0, 1.0], [1.0, 1.0, 1.0]),
    "std or covariance .*std=None": lambda: oracles.gaussian(0.0),
    "std or covariance": lambda: oracles.gaussian(0.0, 1.0, covariance=np.eye(2)),
    "covariance must have 2 axes": lambda: oracles.gaussian(0.0, covariance=np.ones(2)),
    "covariance must have shape": lambda: oracles.gaussian(np.zeros(3), covariance=np.eye(2)),
    "covariance must have shape .*2, 3": lambda: oracles.gaussian(0.0, covariance=np.ones((2, 3))),
    "covariance must be symmetric": lambda: oracles.gaussian(0.0, covariance=[[1.0, 0.5], [0.0, 1.0]]),
    "covariance must be positive": lambda: oracles.gaussian(0.0, covariance=[[1.0, 2.0], [2.0, 1.0]]),
    "weights must be greater": lambda: oracles.mixture([1.0, 0.0], np.zeros((2, 1)), [1.0, 1.0]),
    "weights must have 1 axes": lambda: oracles.mixture(np.ones((2, 1)), np.zeros((2, 1)), [1.0, 1.0]),
    "means must have 2 axes": lambda: oracles.mixture([1.0, 1.0], [0.0, 1.0], [1.0, 1.0]),
    "means must have one row": lambda: oracles.mixture([1.0, 1.0], np.zeros((3, 1)), [1.0, 1.0]),
    "stds must have shape": lambda: oracles.mixture([1.0, 1.0], np.zeros((2, 3)), np.ones((2, 2))),
    "stds must be greater": lambda: oracles.mixture([1.0, 1.0], np.zeros((2, 1)), [1.0, 0.0]),
    "stds must have 1 or 2 axes": lambda: oracles.mixture([1.0, 1.0], np.zeros((2, 1)), 1.0),
    "data must have 2 axes": lambda: oracles.empirical([0.0, 1.0]),
    "data must hold": lambda: oracles.empirical(np.zeros((0, 2))),
    "data must be finite": lambda: oracles.empirical([[0.0], [math.inf]]),
    "chunk must be an integer >= 1, got 0": lambda: oracles.empirical([[0.0]], chunk=0),
    "chunk must be an integer >= 1, got 2.5": lambda: oracles.empirical([[0.0]], chunk=2.5),
    "chunk must be an integer >= 1, got True": lambda: oracles.empirical([[0.0]], chunk=True),
    "phases must hold": lambda: oracles.semilinear_problem(phases=()),
    "phases must have 1 axes": lambda: oracles.semilinear_problem(phases=0.5),
    "rate must have 0 axes": lambda: oracles.semilinear_problem([1.0]),
    "wave must be finite": lambda: oracles.semilinear_problem(wave=math.inf),
    "coupling must be finite": lambda: oracles.semilinear_problem(coupling=math.nan),
    "t0 and t1 must be two": lambda: oracles.semilinear_problem(t0=1.0, t1=1.0),
    "t0 and t1 .*nan": lambda: oracles.semilinear_problem(t1=math.nan),
    "t0 and t1 .*inf": lambda: oracles.semilinear_problem(t0=-math.inf),
    "y must have shape .*3": lambda: oracles.semilinear_problem().f(0.5, np.zeros(2)),
    "y must have shape": lambda: oracles.semilinear_problem(phases=(0.0,)).f(0.5, 1.0),
    "n must be an integer >= 1, got 0": lambda: oracles.gaussian(0.0, 1.0).sample(np.random.default_rng(0), 0),
    "n must be an integer >= 1, got 'two'": lambda: oracles.gaussian(0.0, 1.0).sample(np.random.default_rng(0), "two"),
    "rng must hold one source for each sample": lambda: oracles.mixture([1.0], [[0.0]], [1.0]).sample(
        [np.random.default_rng(0)], 2
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BAD[message]()


@pytest.mark.parametrize("rng", [None, 3, [], [1], "seed", np.random.RandomState(0), print])
def test_wrong_sources_are_refused(rng: Any) -> None:
    for law in smooth_oracles().values():
        with pytest.raises(TypeError, match="rng must be"):
            law.sample(rng, 2)


@pytest.mark.parametrize("bad", [None, "x", np.array([True]), np.array([1j])])
def test_points_that_are_not_real(bad: Any) -> None:
    with pytest.raises(TypeError, match="must be real numbers"):
        oracles.gaussian(0.0, 1.0).denoise(bad, level(1.0, 1.0))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple),
    levels=st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple),
    kind=st.sampled_from(sorted(smooth_oracles())),
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], levels: tuple[int, ...], kind: str) -> None:
    """Either the shape of x comes back or an error names the argument; NumPy's rules decide which."""
    law, x, sigma = smooth_oracles()[kind], np.ones(shape), np.ones(levels)
    fits = len(shape) > 0 and shape[-1] == 3
    try:
        fits_level = fits and np.broadcast_shapes(levels, shape[:-1]) == shape[:-1]
    except ValueError:
        fits_level = False
    if fits_level:
        assert law.denoise(x, level(1.0, sigma)).shape == shape
        assert law.log_density(x, level(1.0, sigma)).shape == shape[:-1]
        assert law.denoise(x, level(sigma, 1.0)).shape == shape
        return
    for at in (level(1.0, sigma), level(sigma, 1.0)):
        with pytest.raises(ValueError, match="level.(alpha|sigma) must" if fits else "x must"):
            law.denoise(x, at)


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(-1e6, 1e6),
    alpha=st.floats(0.0, 1.0),
    sigma=st.one_of(st.just(0.0), st.floats(1e-100, 100.0)),
    kind=st.sampled_from(sorted(smooth_oracles())),
)
def test_nothing_is_ever_nan(x: float, alpha: float, sigma: float, kind: str) -> None:
    law, points = smooth_oracles()[kind], np.array([[x, -x, 0.5 * x]])
    if kind != "empirical" and alpha < 1e-3:
        sigma += 1e-3
    for method, got in zip(METHODS, all_methods(law, points, level(alpha, sigma)), strict=True):
        assert not np.any(np.isnan(got))
        assert method in {"score", "log_density"} or finite(got)


@pytest.mark.claim("oracles-empirical")
def test_nearest_point_under_jit() -> None:
    """At sigma = 0 the log-weights are near 1e20; fused with the subtraction of their maximum they would all vanish."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    for dtype in ("float64", "float32"):
        compiled = jax.jit(lambda d, x, s: oracles.empirical(1.2 * d).denoise(x, level(1.0, s)))
        for _ in range(10):
            data, x = (rng.standard_normal((n, 3)).astype(dtype) for n in (5, 4))
            found = compiled(data, x, np.zeros((), dtype))
            nearest = (1.2 * data)[((x[:, None] - 1.2 * data) ** 2).sum(-1).argmin(1)]
            np.testing.assert_allclose(found, nearest, rtol=4 * np.finfo(dtype).eps)


# -- parameters of any size, and whose they are ------------------------------------------------------------------------


@pytest.mark.claim("oracles-mixture-weights")
@pytest.mark.parametrize("weights", [[1e-40, 1e-41], [1e308, 1e307], [1e-300, 1e-301], [1e38, 1e37]])
def test_weights_of_any_size(backend: Backend, weights: list[float]) -> None:
    """Only their ratio counts, in float32 too, where 1e-40 has few digits and 1e-300 is 0."""
    means, stds, at = [[0.0], [3.0]], [1.0, 0.5], level(0.8, 0.6)
    for dtype, tolerance in (("float64", 1e-13), ("float32", 2e-6)):
        x = backend.asarray([[0.3], [2.0]], dtype)
        found, plain = (oracles.mixture(w, means, stds) for w in (weights, [10.0, 1.0]))
        for call in ("denoise", "score", "log_density"):
            values, expected = (backend.numpy(getattr(law, call)(x, at)) for law in (found, plain))
            np.testing.assert_allclose(values, expected, rtol=tolerance)
    drawn, expected = (
        oracles.mixture(w, means, stds).sample(np.random.default_rng(0), 50) for w in (weights, [10.0, 1.0])
    )
    np.testing.assert_allclose(drawn, expected)


@pytest.mark.claim("oracles-mixture-weights")
def test_a_small_weight_keeps_its_component_in_float32() -> None:
    """Weight 1e-45 against e^-110 = 2e-48: far from the heavy component the light one must win."""
    law, at = oracles.mixture([1.0, 1e-45], [[0.0], [15.0]], [1.0, 1.0]), level(1.0, 0.1)
    exact = law.denoise(np.array([[15.0]]), at)
    assert exact[0, 0] > 14.0
    np.testing.assert_allclose(law.denoise(np.array([[15.0]], dtype=np.float32), at), exact, rtol=1e-4)


def test_stds_that_float32_does_not_have(backend: Backend) -> None:
    law = oracles.mixture([1.0, 1.0], [[0.0], [3.0]], [1e-50, 0.5])
    for call in (law.denoise, law.score, law.log_density, law.covariance):
        with pytest.raises(
            ValueError, match=r"stds must be at least 1.2e-38 in the arithmetic of x, .*float32, got 1e-50"
        ):
            call(backend.asarray([[0.3]], "float32"), level(1.0, 0.0))
    at_zero = backend.numpy(law.denoise(backend.asarray([[0.0]]), level(1.0, 0.0)))
    assert at_zero.tolist() == [[0.0]]


@pytest.mark.parametrize("call", ["denoise", "score", "log_density", "covariance"])
@pytest.mark.parametrize("at", [level(1.0, math.nan), level(math.nan, 1.0)], ids=["sigma", "alpha"])
def test_a_level_of_nan_is_seen(call: str, at: Level) -> None:
    """NaN is not above any floor, but it is not below it either."""
    laws = (
        oracles.empirical([[0.0, 1.0], [1.0, 3.0]]),
        oracles.mixture([1.0], [[0.0, 1.0]], [1.0]),
        oracles.gaussian([0.0, 1.0], 1.0),
    )
    for law in laws:
        assert np.isnan(getattr(law, call)(np.array([[0.3, 0.4]]), at)).any(), law


def test_oracles_keep_their_own_copies() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.uniform(0.5, 1.5, shape) for shape in ((3,), (3, 2), (3,), (2,), (2,), (5, 2), (3,))]
    weights, means, stds, mean, std, data, phases = parts
    root = np.eye(2) + 0.1
    laws = [
        oracles.mixture(weights, means, stds),
        oracles.mixture(weights, means, means),
        oracles.gaussian(mean, std),
        oracles.gaussian(mean, covariance=root),
        oracles.empirical(data),
    ]
    x, at, equation = rng.standard_normal((4, 2)), level(0.8, 0.6), oracles.semilinear_problem(phases=phases)
    before = [law.denoise(x, at) for law in laws] + [law.sample(np.random.default_rng(1), 9) for law in laws]
    solution = equation.solution(np.asarray(0.3))
    for part in (*parts, root):
        part[...] = 7.0
    after = [law.denoise(x, at) for law in laws] + [law.sample(np.random.default_rng(1), 9) for law in laws]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(solution, equation.solution(np.asarray(0.3)))


@pytest.mark.claim("oracles-gaussian")
@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
def test_second_derivative_in_sigma_where_data_and_noise_are_equal(kind: str) -> None:
    """D = x a s^2/(a^2 s^2 + sigma^2) at sigma = a s, where a library's own hypotenuse has no second derivative."""
    jax = pytest.importorskip("jax")
    law = oracles.gaussian(0.0, 0.5) if kind == "gaussian" else oracles.mixture([1.0], [[0.0]], [0.5])

    def total(sigma: Any) -> Any:
        return law.denoise(jax.numpy.asarray([2.0]), level(1.0, sigma)).sum()

    sigma = variance = 0.5
    variance *= 0.5
    squares = variance + sigma**2
    exact = 2.0 * variance * (8.0 * sigma**2 / squares**3 - 2.0 / squares**2)
    assert float(jax.hessian(total)(sigma)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("level", [0.5, None, np.ones(3), (0.5, 0.6, 0.8)])
@pytest.mark.parametrize("method", ["denoise", "score", "log_density", "covariance"])
def test_what_is_no_level_is_named(method: str, level: Any) -> None:
    with pytest.raises(TypeError, match=r"level must be a Level\(t, alpha, sigma\).*got"):
        getattr(oracles.gaussian(0.0, 1.0), method)(np.zeros(2), level)
