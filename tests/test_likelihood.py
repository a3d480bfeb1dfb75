"""Log-densities against closed forms, determinants of measured maps, and the laws of trace estimates enumerated."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from diffnum import grids, likelihood, oracles, paths, schedules
from diffnum.likelihood import (
    bits_per_dimension,
    dequantise,
    log_density,
    normal_prior,
    oracle_divergence,
    probes,
    trace_variance,
    transport,
)
from diffnum.schedules import Level
from diffnum.solvers import HEUN, MIDPOINT, RUNGE_KUTTA_3, adams_bashforth, adams_moulton, runge_kutta, solve

EXACT = 1e-12
"""Rounding of a few hundred additions of numbers of size 10."""

ORDER = 0.2
"""Distance of a measured slope from the order, at 80 and 160 steps."""

MISTAKE = 1e-2
"""A plausible mistake changes a log-density by more than this."""

SINGLE = 2e-4
"""float32: 2^-24 in each of 24 rows, on log-densities of size 10 whose terms are larger."""

VP, FLOW, VE = schedules.cosine(), schedules.rectified_flow(), schedules.edm()
MIXTURE = oracles.mixture([0.3, 0.7], [[-1.0, 0.4], [0.8, -0.2]], [[0.3, 0.5], [0.4, 0.25]])
X = np.asarray([[0.2, 0.3], [-0.9, 0.1]])
COVARIANCE = np.asarray([[1.0, 0.6, 0.1], [0.6, 0.8, -0.3], [0.1, -0.3, 0.5]])
MEAN = np.asarray([0.5, -0.2, 0.1])
GAUSSIAN = oracles.gaussian(MEAN, covariance=COVARIANCE)
X3 = np.asarray([[0.2, 0.3, -0.1], [-0.9, 0.1, 0.4]])

PATHS = {
    "x0": paths.x0,
    "x0 ratio": functools.partial(paths.x0, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": functools.partial(paths.noise, coordinate="ratio"),
    "noise t": functools.partial(paths.noise, coordinate="t"),
    "velocity": functools.partial(paths.velocity, sigma_data=0.8),
}
METHODS = {
    "ab1": (lambda path: adams_bashforth(path, 1), 1),
    "ab2": (lambda path: adams_bashforth(path, 2), 2),
    "ab3": (lambda path: adams_bashforth(path, 3), 3),
    "ab4": (lambda path: adams_bashforth(path, 4), 4),
    "midpoint": (lambda path: runge_kutta(path, MIDPOINT), 2),
    "heun": (lambda path: runge_kutta(path, HEUN), 2),
    "rk3": (lambda path: runge_kutta(path, RUNGE_KUTTA_3), 3),
    "am3": (lambda path: adams_moulton(path, 3), 3),
}


def path_of(name: str, steps: int, schedule: Any = VP, ends: tuple[float, float] = (0.05, 0.95)) -> paths.Path:
    """A path from the noisier end to the cleaner one, uniform in log-SNR."""
    part = schedules.truncate(schedule, t_clean=ends[0], t_noise=ends[1])
    return PATHS[name](schedule, grids.uniform_log_snr(part, steps))


def density(data: Any, x: np.ndarray, path: paths.Path, **options: Any) -> np.ndarray:
    """Log-density with the exact law at the noisy end."""
    options = {"divergence": oracle_divergence(data), **options}
    return log_density(data.denoise, x, path, prior=data.log_density, **options).value


def product(data: Any) -> Any:
    """Jacobian of an oracle's denoiser times a direction, for libraries without derivatives."""

    def jvp(x: np.ndarray, level: Level, e: np.ndarray) -> np.ndarray:
        return level.alpha / level.sigma**2 * np.einsum("...ij,...j->...i", data.covariance(x, level), e)

    return jvp


# -- log-density ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("likelihood-log-density", "likelihood-weights")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["velocity", "noise ratio"])
def test_log_density_has_the_order_of_the_method(name, method):
    """On a mixture that is no product of its coordinates, slope asserted on both sides."""
    build, order = METHODS[method]
    exact = MIXTURE.log_density(X, path_of(name, 1).last)
    errors = [np.abs(density(MIXTURE, X, path_of(name, n), method=build) - exact).max() for n in (80, 160)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=ORDER)


@pytest.mark.claim("likelihood-log-density", "likelihood-weights")
@pytest.mark.parametrize("name", PATHS)
def test_log_density_on_every_path(name):
    """Two laws in two and three dimensions, order 4 at 160 steps; geometries with alpha = 1 and alpha < 1."""
    for data, x in ((MIXTURE, X), (GAUSSIAN, X3)):
        for schedule, ends in ((VP, (0.05, 0.95)), (VE, (0.1, 30.0)), (FLOW, (0.1, 0.9))):
            path = path_of(name, 160, schedule, ends)
            found = density(data, x, path, method=METHODS["ab4"][0])
            np.testing.assert_allclose(found, data.log_density(x, path.last), atol=2e-3)
            # without log|P|: the density of x over the path's own unit
            scale = math.log(path.propagate(*(Level(*(p[None] for p in e)) for e in (path.first, path.last)))[0][0])
            assert (name.startswith("noise") and schedule is VE) or abs(x.shape[-1] * scale) > MISTAKE


@pytest.mark.claim("likelihood-log-density")
def test_error_control_serves_as_well():
    path = path_of("velocity", 1)
    exact = MIXTURE.log_density(X, path.last)
    errors = []
    for tolerance in (1e-4, 1e-7):
        found = density(MIXTURE, X, path, tolerance=tolerance)
        errors.append(np.abs(found - exact).max())
        assert errors[-1] < 20 * tolerance
    assert errors[1] < 0.01 * errors[0]
    ratio = density(GAUSSIAN, X3, path_of("x0 ratio", 1), tolerance=1e-8)
    np.testing.assert_allclose(ratio, GAUSSIAN.log_density(X3, path.last), atol=1e-6)


@pytest.mark.claim("likelihood-continuity", "likelihood-log-density")
@pytest.mark.parametrize("schedule", [VP, FLOW, VE], ids=["vp", "flow", "ve"])
def test_naive_transcription_and_its_mistakes(schedule):
    """In log-SNR: log p_y = log p_y(noise) + integral of d - tr dD/dy, log p_x = log p_y - d log alpha; y = x/alpha."""
    ends = (0.3, 20.0) if schedule is VE else (0.1, 0.9)
    path = path_of("noise", 640, schedule, ends)
    found = density(MIXTURE, X, path, method=METHODS["ab4"][0])
    back = paths.reverse(path)
    states = solve(MIXTURE.denoise, X, adams_bashforth(back, 4), trajectory=True)
    nodes = [Level(*(np.append(a[:1], b)[n] for a, b in zip(back.start, back.stop, strict=True))) for n in range(641)]
    traces = np.stack(
        [np.trace(MIXTURE.covariance(x, at), axis1=-2, axis2=-1) for x, at in zip(states, nodes, strict=True)]
    )
    alpha, sigma = (np.asarray([at[i] for at in nodes])[:, None] for i in (1, 2))
    lam = np.log(alpha / sigma)
    simpson = np.where(np.arange(641) % 2 == 1, 4.0, 2.0)[:, None] / 3 * (lam[0] - lam[-1]) / 640
    simpson[[0, -1]] /= 2

    def assembled(integrand: np.ndarray, *, clean: float = 1.0, noisy: float = 1.0, sign: float = 1.0) -> np.ndarray:
        log_y = MIXTURE.log_density(states[-1], nodes[-1]) + noisy * 2 * np.log(alpha[-1])
        return log_y + sign * np.sum(simpson * integrand, axis=0) - clean * 2 * np.log(alpha[0])

    per_y, per_x = alpha**2 / sigma**2 * traces, alpha / sigma**2 * traces
    np.testing.assert_allclose(assembled(2 - per_y), found, atol=1e-6)
    np.testing.assert_allclose(found, MIXTURE.log_density(X, path.last), atol=1e-6)
    assert np.abs(assembled(2 - per_y, sign=-1.0) - found).max() > MISTAKE
    if schedule is not VE:
        # with alpha = 1 these three cannot be told apart from the right one
        assert np.abs(assembled(2 - per_x) - found).max() > MISTAKE
        assert np.abs(assembled(2 - per_y, clean=0.0) - found).max() > MISTAKE
        assert np.abs(assembled(2 - per_y, noisy=0.0) - found).max() > MISTAKE


@pytest.mark.claim("likelihood-continuity")
@pytest.mark.parametrize("name", PATHS)
def test_log_density_falls_by_the_divergence(name):
    """d log p(x(s))/ds + div = 0 at one point, by central differences of the oracle along the flow."""
    path = path_of(name, 2)
    level = Level(*(part[1] for part in path.start))
    x = MIXTURE.denoise(X, level) * level.alpha + 0.3 * level.sigma
    s, step = path.coordinate(level), 1e-5
    at = [path.at(np.asarray([s + d])) for d in (-step, 0.0, step)]
    middle = Level(*(part[0] for part in at[1]))
    p, q = (0.0, 1.0) if path.target is None else path.target(middle)
    f = p * x + q * MIXTURE.denoise(x, middle)
    growth = np.log(path.propagate(at[0], at[2])[0][0]) / (2 * step)
    velocity = growth * x + path.gain(middle) * f
    logs = [
        MIXTURE.log_density(x + sign * step * velocity, Level(*(part[0] for part in level)))
        for sign, level in ((-1.0, at[0]), (1.0, at[2]))
    ]
    change = (logs[1] - logs[0]) / (2 * step)
    divergence = 2 * growth + path.gain(middle) * (2 * p + q * oracle_divergence(MIXTURE)(x, middle))
    np.testing.assert_allclose(change, -divergence, rtol=1e-5, atol=1e-5)


@pytest.mark.claim("likelihood-velocity")
@pytest.mark.parametrize("method", METHODS)
def test_one_step_is_exact_on_gaussian_data(method):
    """From pure noise and to clean data, with the standard deviation and the centre of the data; and not without."""
    mean, std = np.asarray([0.8, -0.5, 2.0]), 1.7
    data = oracles.gaussian(mean, std)
    options = {"method": METHODS[method][0], "divergence": oracle_divergence(data)}
    t = np.linspace(1.0, 0.2, 2 if method != "am3" else 3)
    path = paths.velocity(VP, t, sigma_data=std, centre=mean)
    found = log_density(data.denoise, X3, path, **options)
    np.testing.assert_allclose(found.value, data.log_density(X3, path.last), rtol=EXACT)
    np.testing.assert_allclose(found.value, normal_prior()(found.x, path.first) + found.volume, rtol=EXACT)
    np.testing.assert_allclose(
        found.volume, -3 * math.log(math.hypot(path.last.alpha * std, path.last.sigma)), rtol=EXACT
    )
    clean = paths.velocity(VP, np.linspace(1.0, 0.0, len(t)), sigma_data=std, centre=mean)
    moved = transport(data.denoise, X3, clean, **options)
    np.testing.assert_allclose(moved.volume, 3 * math.log(std), rtol=EXACT)
    np.testing.assert_allclose(moved.x, mean + std * X3, rtol=EXACT)
    wrong = log_density(data.denoise, X3, paths.velocity(VP, t, sigma_data=1.0, centre=mean), **options).value
    assert np.abs(wrong - found.value).max() > MISTAKE


@pytest.mark.claim("likelihood-gaussian")
def test_volume_of_a_correlated_gaussian():
    """For each eigenvalue c of the covariance, log[(c + rho_noise^2)/(c + rho_clean^2)]/2, in units of alpha."""
    path = path_of("velocity", 1, FLOW, (0.1, 0.9))
    found = density(GAUSSIAN, X3, path, tolerance=1e-10)
    moved = transport(
        GAUSSIAN.denoise, X3, paths.reverse(path), tolerance=1e-10, divergence=oracle_divergence(GAUSSIAN)
    )
    noisy, clean = ((level.sigma / level.alpha) ** 2 for level in (path.first, path.last))
    eigenvalues = np.linalg.eigvalsh(COVARIANCE)
    integral = 0.5 * np.log((eigenvalues + noisy) / (eigenvalues + clean)).sum()
    volume = integral + 3 * math.log(path.first.alpha / path.last.alpha)
    np.testing.assert_allclose(moved.volume, volume, rtol=1e-8)
    covariance = path.last.alpha**2 * COVARIANCE + path.last.sigma**2 * np.eye(3)
    np.testing.assert_allclose(found, multivariate_normal(path.last.alpha * MEAN, covariance).logpdf(X3), rtol=1e-7)
    # the diagonal alone is another law
    diagonal = 0.5 * np.log((np.diag(COVARIANCE) + noisy) / (np.diag(COVARIANCE) + clean)).sum()
    assert abs(diagonal - integral) > MISTAKE


@pytest.mark.claim("likelihood-volume")
@pytest.mark.parametrize("direction", ["to data", "to noise"])
def test_volume_is_the_determinant_of_the_map(direction):
    """Of its Jacobian, by central differences of the solved ODE."""
    path = path_of("velocity", 1)
    path = path if direction == "to data" else paths.reverse(path)
    step = 1e-4
    moves = step * np.stack([np.zeros(2), *np.eye(2), *-np.eye(2)])
    moved = transport(MIXTURE.denoise, X + moves[:, None], path, tolerance=1e-8, divergence=oracle_divergence(MIXTURE))
    jacobian = np.stack([moved.x[k] - moved.x[k + 2] for k in (1, 2)], axis=-1) / (2 * step)
    np.testing.assert_allclose(moved.volume[0], np.log(np.linalg.det(jacobian)), atol=1e-5)
    trace = np.trace(jacobian, axis1=-2, axis2=-1)
    assert np.abs(moved.volume[0] - np.log(trace / 2) * 2).max() > MISTAKE


def test_there_and_back_again():
    path = path_of("velocity", 60)
    options = {"divergence": oracle_divergence(MIXTURE), "method": METHODS["ab4"][0]}
    back = transport(MIXTURE.denoise, X, paths.reverse(path), **options)
    there = transport(MIXTURE.denoise, back.x, path, **options)
    np.testing.assert_allclose(there.x, X, atol=1e-3)
    np.testing.assert_allclose(there.volume, -back.volume, atol=1e-2)
    assert np.abs(back.volume).min() > 0.2


@pytest.mark.claim("likelihood-volume")
def test_a_semilinear_equation_with_a_known_volume():
    """y' = -2 y + sin(y) cos(t): the trace is cos(y) cos(t), and the linear part counts d times."""
    t = np.linspace(0.0, 1.5, 401)
    path = paths.semilinear(t, -2.0)
    moved = transport(
        lambda y, level: np.sin(y) * np.cos(level.t),
        X3,
        path,
        divergence=lambda y, level: np.sum(np.cos(y), axis=-1) * np.cos(level.t),
        method=METHODS["ab4"][0],
    )
    step, table = 1e-5, adams_bashforth(path, 4)
    ends = [solve(lambda y, level: np.sin(y) * np.cos(level.t), X3 + d, table) for d in (step, -step)]
    stretch = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(moved.volume, np.log(stretch).sum(axis=-1), atol=1e-7)


@pytest.mark.claim("likelihood-weights")
@pytest.mark.parametrize("method", METHODS)
def test_weights_of_rows_are_what_the_runner_does(method):
    """Run the table of the volume on prescribed values: its result is linear in them."""
    plain = METHODS[method][0](likelihood._trace_path(path_of("x0", 7)))
    values = np.random.default_rng(0).standard_normal(plain.evaluations)
    feed = iter(values)
    end = solve(lambda x, level: 0.0 * x + next(feed), np.zeros(1), plain._replace(target=None))
    weights = likelihood._row_weights(plain)
    assert weights.shape == values.shape
    assert end[0] == pytest.approx(weights @ values, rel=1e-12)
    lam = VP.log_snr(np.asarray([0.95, 0.05]))
    # of a constant the quadrature is exact
    assert weights.sum() == pytest.approx(lam[1] - lam[0], rel=1e-12)


@pytest.mark.claim("likelihood-covariance")
def test_trace_from_the_covariance():
    level = VP.level(np.asarray(0.4))
    step = 1e-5
    for data, x in ((MIXTURE, X), (GAUSSIAN, X3)):
        slopes = [
            (data.denoise(x + step * e, level) - data.denoise(x - step * e, level))[:, i] / (2 * step)
            for i, e in enumerate(np.eye(x.shape[1]))
        ]
        np.testing.assert_allclose(oracle_divergence(data)(x, level), np.sum(slopes, axis=0), rtol=1e-8)
        # with respect to y = x/alpha it is another number
        assert np.abs(level.alpha * np.sum(slopes, axis=0) - np.sum(slopes, axis=0)).min() > MISTAKE


# -- the law at the noisy end -----------------------------------------------------------------------------------------


@pytest.mark.claim("likelihood-prior")
def test_normal_prior():
    level = VP.level(np.asarray(0.9))
    prior = normal_prior(sigma_data=1.3, centre=MEAN)
    expected = norm.logpdf(X3, level.alpha * MEAN, math.hypot(1.3 * level.alpha, level.sigma)).sum(axis=-1)
    np.testing.assert_allclose(prior(X3, level), expected, rtol=EXACT)
    np.testing.assert_allclose(normal_prior()(X3, level), norm.logpdf(X3, 0.0, level.sigma).sum(axis=-1), rtol=EXACT)
    whole = normal_prior(event_ndim=2)(X3, level)
    assert float(whole) == pytest.approx(norm.logpdf(X3, 0.0, level.sigma).sum(), rel=EXACT)


@pytest.mark.claim("likelihood-prior-error")
@pytest.mark.parametrize("t", [0.8, 0.99])
def test_error_of_the_samplers_prior(t):
    """Mean of log p_T - log N(0, sigma^2) over the law itself, by quadrature and in closed form, in one dimension."""
    mean, std = 0.7, 1.4
    level = VP.level(np.asarray(t))
    scale = math.hypot(level.alpha * std, level.sigma)
    z, weight = np.polynomial.hermite_e.hermegauss(40)
    x = level.alpha * mean + scale * z
    difference = norm.logpdf(x, level.alpha * mean, scale) - normal_prior()(x[:, None], level)
    found = np.sum(weight * difference) / math.sqrt(2 * math.pi)
    q = (level.alpha / level.sigma) ** 2
    stated = 0.5 * (q * (std**2 + mean**2) - math.log1p(q * std**2))
    assert found == pytest.approx(stated, rel=1e-10)
    # of second order in q for the variance, of first order for the mean
    assert stated == pytest.approx(0.5 * q * mean**2 + 0.25 * (q * std**2) ** 2, rel=2 * q * std**2)


@pytest.mark.claim("likelihood-prior-error", "likelihood-log-density")
def test_default_prior_errs_by_what_is_stated():
    path = paths.velocity(VE, np.asarray([80.0, 0.5]), sigma_data=1.7, centre=0.8)
    data = oracles.gaussian(np.asarray([0.8, 0.8]), 1.7)
    options = {"divergence": oracle_divergence(data)}
    found = log_density(data.denoise, X, path, **options)
    exact = data.log_density(X, path.last)
    stated = normal_prior()(found.x, path.first) - data.log_density(found.x, path.first)
    np.testing.assert_allclose(found.value - exact, stated, atol=1e-11)
    assert MISTAKE < np.abs(found.value - exact).max() < 2 * MISTAKE
    prior = normal_prior(sigma_data=1.7, centre=0.8)
    np.testing.assert_allclose(log_density(data.denoise, X, path, prior=prior, **options).value, exact, rtol=EXACT)


# -- estimates of the trace -------------------------------------------------------------------------------------------

JACOBIAN = np.asarray([[1.0, 2.0, -0.5], [0.3, -0.7, 0.9], [1.1, 0.2, 0.4]])


def second_moment(kind: str, matrix: np.ndarray) -> float:
    """E[(e . J e)^2] by enumeration: all signs, or a product rule that is exact for polynomials of degree 5."""
    size = len(matrix)
    if kind == "rademacher":
        points, weights = np.asarray(list(itertools.product([-1.0, 1.0], repeat=size))), np.full(2**size, 0.5**size)
    else:
        places, w = np.polynomial.hermite_e.hermegauss(3)
        points = np.asarray(list(itertools.product(places, repeat=size)))
        weights = np.prod(list(itertools.product(w / w.sum(), repeat=size)), axis=1)
    moment = np.sum(weights * np.einsum("ni,ij,nj->n", points, matrix, points) ** 2)
    # a normal vector is a point of the sphere times a length, and E|z|^4 = d (d + 2)
    return moment * size / (size + 2) if kind == "sphere" else moment


@pytest.mark.claim("likelihood-variance")
@pytest.mark.parametrize("kind", ["rademacher", "gaussian", "sphere"])
def test_variance_laws(kind):
    variance = second_moment(kind, JACOBIAN) - np.trace(JACOBIAN) ** 2
    assert trace_variance(JACOBIAN, kind=kind) == pytest.approx(variance, rel=EXACT)
    if kind == "sphere":
        assert trace_variance(JACOBIAN, kind="orthogonal") == pytest.approx(variance, rel=EXACT)
    # J is not symmetric, and its own norm is not that of its symmetric part
    assert abs(2 * (JACOBIAN**2).sum() - 2 * np.diag(JACOBIAN**2).sum() - variance) > MISTAKE
    # the traps: one dimension and a diagonal J tell nothing about signs
    assert trace_variance(np.diag([1.0, 2.0]), kind="rademacher") == 0.0
    assert trace_variance(np.asarray([[3.0]]), kind="sphere") == 0.0
    stack = np.stack([JACOBIAN, np.eye(3), JACOBIAN.T, -JACOBIAN])[None]
    np.testing.assert_allclose(trace_variance(stack, kind=kind)[0, [0, 2, 3]], variance, rtol=EXACT)


@pytest.mark.claim("likelihood-hutchinson", "likelihood-variance")
@pytest.mark.parametrize("kind", likelihood.KINDS)
def test_laws_of_the_directions(kind):
    """E[e e^T] = I, and the variance of e . J e measured on 60,000 directions (4 standard errors and more)."""
    e = probes(np.zeros((30_000, 3)), 2, rng=np.random.default_rng(0), kind=kind)
    assert e.shape == (2, 30_000, 3)
    flat = e.reshape(-1, 3)
    np.testing.assert_allclose(flat.T @ flat / len(flat), np.eye(3), atol=0.03)
    quadratic = np.einsum("ni,ij,nj->n", flat, JACOBIAN, flat)
    assert quadratic.mean() == pytest.approx(np.trace(JACOBIAN), abs=0.06)
    assert quadratic.var() == pytest.approx(float(trace_variance(JACOBIAN, kind=kind)), rel=0.05)
    lengths = np.sum(flat**2, axis=1)
    if kind != "gaussian":
        np.testing.assert_allclose(lengths, 3.0, rtol=EXACT)
    if kind == "rademacher":
        np.testing.assert_array_equal(np.abs(flat), 1.0)
    products = np.abs(np.sum(e[0] * e[1], axis=-1))
    assert (products.max() < 1e-12) == (kind == "orthogonal")


@pytest.mark.claim("likelihood-hutchinson", "likelihood-variance")
def test_all_signs_give_the_exact_trace_and_its_variance():
    """Prescribed signs, all eight in three dimensions: their mean is the divergence, their variance the law's."""
    signs = np.asarray(list(itertools.product([-1.0, 1.0], repeat=3)))
    path = path_of("velocity", 12)
    options = {"prior": GAUSSIAN.log_density, "jvp": product(GAUSSIAN)}
    rng = lambda row, like: np.broadcast_to(signs[row], like.shape)  # noqa: E731
    exact = log_density(GAUSSIAN.denoise, X3, path, **options)
    assert exact.standard_error is None
    found = log_density(GAUSSIAN.denoise, X3, path, divergence="hutchinson", count=8, rng=rng, **options)
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-12)
    np.testing.assert_allclose(exact.value, density(GAUSSIAN, X3, path), rtol=1e-12)
    # the volume is e . S e with S the same combination of the Jacobians, which here do not depend on x
    back = paths.reverse(path)
    table = adams_bashforth(back, 3)
    weights = likelihood._row_weights(adams_bashforth(likelihood._trace_path(back), 3))
    weights = weights * back.gain(table.level) * back.target(table.level)[1] * table.level.alpha / table.level.sigma**2
    levels = [Level(*(part[n] for part in table.level)) for n in range(table.evaluations)]
    total = sum(w * GAUSSIAN.covariance(X3[0], level) for w, level in zip(weights, levels, strict=True))
    variance = trace_variance(total, kind="rademacher")
    np.testing.assert_allclose(np.square(found.standard_error) * 7, variance, rtol=1e-10)
    assert variance > 0.1
    single = log_density(GAUSSIAN.denoise, X3, path, divergence="hutchinson", rng=np.random.default_rng(0), **options)
    assert single.standard_error is None
    assert np.abs(single.value - exact.value).max() > 1e-3


@pytest.mark.claim("likelihood-standard-error")
@pytest.mark.parametrize(("kind", "count"), [("rademacher", 4), ("gaussian", 4), ("sphere", 4), ("orthogonal", 2)])
def test_standard_errors_are_honest(kind, count):
    """Over 4,000 equal samples: the mean of the squared standard error is the mean squared error, within 8 %."""
    x = np.broadcast_to(X3[0], (4000, 3))
    path = path_of("velocity", 4)
    options = {"prior": GAUSSIAN.log_density, "jvp": product(GAUSSIAN)}
    rng = np.random.default_rng(2)
    found = log_density(GAUSSIAN.denoise, x, path, divergence="hutchinson", kind=kind, count=count, rng=rng, **options)
    exact = log_density(GAUSSIAN.denoise, X3[:1], path, **options).value
    ratio = np.mean(np.square(found.standard_error)) / np.mean((found.value - exact) ** 2)
    assert ratio == pytest.approx(1.0, abs=0.08)
    if kind == "orthogonal":
        # as if the directions were independent: three times too much
        assert ratio * 3 / (3 - count) > 2.0
        full = {"kind": kind, "count": 3, "rng": rng}
        whole = log_density(GAUSSIAN.denoise, X3, path, divergence="hutchinson", **full, **options)
        np.testing.assert_allclose(whole.value[0], exact[0], rtol=1e-10)
        np.testing.assert_allclose(whole.standard_error, 0.0, atol=1e-7)


@pytest.mark.claim("likelihood-hutchinson")
@pytest.mark.parametrize("kind", likelihood.KINDS)
def test_directions_cancel_where_the_trace_does(kind):
    """On N(mu, sd^2 I) the Jacobian of v is 0 for each direction, if |e|^2 stands for the trace of the identity."""
    data = oracles.gaussian(MEAN, 1.7)
    path = paths.velocity(VP, np.asarray([0.9, 0.4, 0.2]), sigma_data=1.7, centre=MEAN)
    options = {"divergence": "hutchinson", "kind": kind, "count": 2, "jvp": product(data)}
    for more in ({}, {"tolerance": 1e-3}):
        found = log_density(
            data.denoise, X3, path, rng=np.random.default_rng(0), prior=data.log_density, **options, **more
        )
        np.testing.assert_allclose(found.value, data.log_density(X3, path.last), rtol=EXACT)
        np.testing.assert_allclose(found.standard_error, 0.0, atol=EXACT)


# -- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.claim("likelihood-bits")
def test_bits_of_the_usual_scalings():
    """8-bit values k as x = k/127.5 - 1, 2k/256 - 1 and k/256: the same law, the same bits."""
    for width, shift in ((1 / 127.5, 6.994), (2 / 256, 7.0), (1 / 256, 8.0)):
        assert bits_per_dimension(0.0, 5, bin_width=width) == pytest.approx(shift, abs=5e-4)
        uniform = -5 * math.log(256 * width)
        assert bits_per_dimension(uniform, 5, bin_width=width) == pytest.approx(8.0, rel=1e-12)
    assert bits_per_dimension(np.asarray([-10.0, 0.0]), 4, bin_width=1.0)[0] == pytest.approx(2.5 / math.log(2))


@pytest.mark.claim("likelihood-dequantisation", "likelihood-bits")
def test_dequantised_bits_bound_those_of_the_data():
    """Four values, the model a mixture of normals about them. Jensen, by quadrature; without dequantising no bound."""
    probabilities, width = np.asarray([0.1, 0.4, 0.2, 0.3]), 0.25
    edges = width * np.arange(4)
    place, weight = np.polynomial.legendre.leggauss(400)
    inside = edges[:, None] + width * (1 + place) / 2
    entropy = -(probabilities * np.log2(probabilities)).sum()
    for std in (0.1, 0.03, 0.001):
        model = oracles.mixture(probabilities, (edges + width / 2)[:, None], np.full(4, std))
        level = Level(0.0, np.asarray(1.0), np.asarray(0.0))
        logs = model.log_density(inside[..., None], level)
        spread = probabilities @ (bits_per_dimension(logs, 1, bin_width=width) * weight / 2).sum(axis=1)
        mass = width * (np.exp(logs) * weight / 2).sum(axis=1) if std > 0.01 else probabilities
        cross = -(probabilities * np.log2(mass)).sum()
        assert spread >= cross >= entropy - 1e-9
    # at the centres of the bins the density of a narrow model is as large as one likes, and the "bits" negative
    centres = model.log_density((edges + width / 2)[:, None], level)
    assert probabilities @ bits_per_dimension(centres, 1, bin_width=width) < -2.0


@pytest.mark.claim("likelihood-dequantisation")
def test_dequantised_values_fill_their_bins():
    x = np.repeat(np.arange(4) / 4, 20_000)
    spread = dequantise(x, bin_width=0.25, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(np.floor(4 * spread), 4 * x)
    inside = 4 * (spread - x)
    assert inside.mean() == pytest.approx(0.5, abs=0.005)
    assert inside.var() == pytest.approx(1 / 12, rel=0.02)
    jax = pytest.importorskip("jax")
    draws = [dequantise(jax.numpy.zeros(3), bin_width=1.0, rng=jax.random.key(0), row=row) for row in (0, 1)]
    assert not np.array_equal(*draws)


# -- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_library_and_dtype(backend: Backend, dtype: str):
    path = path_of("velocity", 20)
    expected = log_density(MIXTURE.denoise, X, path, divergence=oracle_divergence(MIXTURE)).value
    x = backend.asarray(X, dtype)
    for options in ({"divergence": oracle_divergence(MIXTURE)}, {"divergence": "exact"}):
        automatic = backend.name in {"jax", "torch"} and dtype == "float64"
        if options["divergence"] == "exact" and not automatic:
            continue
        found = log_density(MIXTURE.denoise, x, path, **options)
        assert backend.dtype(found.value) == dtype
        assert backend.dtype(found.x) == dtype
        np.testing.assert_allclose(backend.numpy(found.value), expected, rtol=SINGLE if dtype == "float32" else EXACT)
    level = Level(*(backend.asarray(part, dtype) for part in path.first))
    prior = backend.numpy(normal_prior(sigma_data=0.5)(x, level))
    np.testing.assert_allclose(prior, normal_prior(sigma_data=0.5)(X, path.first), rtol=SINGLE)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_estimates_on_libraries_with_derivatives(name: str):
    """All directions of an orthogonal system give the trace, whoever draws them; samples have event axes (2, 2)."""
    from conftest import make_backend

    backend = make_backend(name)
    data = oracles.gaussian(np.zeros(4), covariance=np.eye(4) + 0.3)
    x = np.random.default_rng(0).standard_normal((3, 2, 2))
    denoise = lambda u, level: backend.xp.reshape(data.denoise(backend.xp.reshape(u, (-1, 4)), level), u.shape)  # noqa: E731
    source = backend.xp.asarray(0)
    if name == "jax":
        import jax

        source = jax.random.key(0)
    else:
        import torch

        source = torch.Generator().manual_seed(0)
    path = path_of("velocity", 6)
    expected = log_density(data.denoise, x.reshape(3, 4), path, divergence=oracle_divergence(data))
    for options in (
        {"divergence": "exact"},
        {"divergence": "hutchinson", "kind": "orthogonal", "count": 4, "rng": source},
    ):
        found = log_density(denoise, backend.asarray(x), path, event_ndim=2, **options)
        np.testing.assert_allclose(backend.numpy(found.value), expected.value, rtol=1e-11)
        assert (found.standard_error is None) == (options["divergence"] == "exact")


@pytest.mark.parametrize("kind", ["gaussian", "orthogonal"])
def test_sums_over_bfloat16_states_are_float32(kind: str):
    torch = pytest.importorskip("torch")
    path, x = path_of("velocity", 8), torch.tensor(X, dtype=torch.bfloat16)
    options = {"prior": MIXTURE.log_density, "divergence": "hutchinson", "kind": kind, "count": 2}
    found = log_density(MIXTURE.denoise, x, path, rng=torch.Generator().manual_seed(0), **options)
    wide = log_density(MIXTURE.denoise, torch.tensor(X), path, rng=torch.Generator().manual_seed(0), **options)
    assert found.value.dtype == found.standard_error.dtype == torch.float32
    assert found.x.dtype == torch.bfloat16
    if kind == "orthogonal":
        # a basis: the draw does not matter, bfloat16 errs by 2^-9 in each of a dozen numbers of size one
        np.testing.assert_allclose(found.value.numpy(), wide.value.numpy(), atol=0.1)


@pytest.mark.parametrize("name", [pytest.param("jax", marks=pytest.mark.slow), "torch"])
def test_error_control_on_libraries_with_derivatives(name: str):
    """The same steps as on NumPy, with the divergence by derivatives."""
    from conftest import make_backend

    backend, path = make_backend(name), path_of("velocity", 1)
    found = log_density(MIXTURE.denoise, backend.asarray(X), path, prior=MIXTURE.log_density, tolerance=1e-3)
    np.testing.assert_allclose(backend.numpy(found.value), density(MIXTURE, X, path, tolerance=1e-3), rtol=1e-9)


def test_jit_vmap_and_the_score():
    """The derivative of the log-density is the score, on JAX and PyTorch, through the divergence as well."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    path = paths.velocity(VP, VP.time(np.linspace(-1.5, 0.5, 41)), sigma_data=0.8)

    def total(x: Any) -> Any:
        return log_density(MIXTURE.denoise, x, path, prior=MIXTURE.log_density).value.sum()

    x = jax.numpy.asarray(X)
    value, slope = jax.jit(jax.value_and_grad(total))(x)
    assert float(value) == pytest.approx(density(MIXTURE, X, path).sum(), rel=1e-12)
    np.testing.assert_allclose(slope, MIXTURE.score(X, path.last), atol=5e-3)
    given = torch.tensor(X, requires_grad=True)
    total(given).backward()
    np.testing.assert_allclose(given.grad.numpy(), slope, rtol=1e-10)
    one = jax.vmap(lambda row: log_density(MIXTURE.denoise, row, path, prior=MIXTURE.log_density).value)
    np.testing.assert_allclose(jax.jit(one)(x), density(MIXTURE, X, path), rtol=1e-12)


@pytest.mark.slow
def test_traced_grid():
    """Table, quadrature and both laws follow a grid that JAX traces, with derivatives."""
    jax = pytest.importorskip("jax")
    data = oracles.gaussian(np.zeros(2), np.asarray([0.5, 1.0]))
    t = np.asarray([0.9, 0.6, 0.3, 0.1])

    def value(grid: Any, x: Any) -> Any:
        path = paths.velocity(VP, grid, sigma_data=0.8)
        return log_density(data.denoise, x, path, divergence=oracle_divergence(data)).value

    eager = value(t, X)
    traced, slope = jax.jit(lambda g: (value(g, jax.numpy.asarray(X)), jax.jacobian(value)(g, jax.numpy.asarray(X))))(t)
    np.testing.assert_allclose(traced, eager, rtol=1e-12)
    step = 1e-6 * np.eye(4)
    difference = np.stack([(value(t + e, X) - value(t - e, X)) / 2e-6 for e in step], axis=-1)
    np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-7)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_paths_that_have_no_volume():
    t = np.asarray([0.9, 0.5, 0.1])
    options = {"divergence": oracle_divergence(MIXTURE)}
    for path in (paths.x0(VP, t, eta=1.0), paths.churn(paths.x0(VP, t), 0.1)):
        with pytest.raises(ValueError, match="path must be an ODE path whose steps join"):
            log_density(MIXTURE.denoise, X, path, **options)
    with pytest.raises(ValueError, match="path must have finite coordinates at both ends"):
        transport(MIXTURE.denoise, X, paths.x0(VP, np.asarray([1.0, 0.5])), **options)
    for factor in (0.0, np.inf):
        broken = likelihood.replace(paths.velocity(VP, t), propagate=lambda a, b: (np.full(b.t.shape, factor), None))
        with pytest.raises(ValueError, match=f"path must not shrink or stretch to a point, got a factor of {factor:g}"):
            likelihood._log_scale(broken)
    silent = likelihood.replace(paths.velocity(VP, t), gain=None)
    with pytest.raises(ValueError, match="path must know the factor of f"):
        log_density(MIXTURE.denoise, X, silent, **options)
    with pytest.raises(ValueError, match="path must end at sigma > 0"):
        log_density(MIXTURE.denoise, X, paths.velocity(VP, np.asarray([1.0, 0.0])), **options)
    with pytest.raises(ValueError, match="path must run from noise to data"):
        log_density(MIXTURE.denoise, X, paths.reverse(paths.velocity(VP, t)), **options)
    with pytest.raises(TypeError, match="path must be a Path, got Schedule"):
        log_density(MIXTURE.denoise, X, VP)


def test_options_out_of_range():
    path = path_of("velocity", 4)
    run = functools.partial(log_density, MIXTURE.denoise, X, path)
    for choice in ("exact", "hutchinson"):
        with pytest.raises(TypeError, match="divergence must be a function, or jvp be given"):
            run(divergence=choice, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="divergence must be one of"):
        run(divergence="trace")
    hutchinson = {"divergence": "hutchinson", "jvp": product(MIXTURE)}
    with pytest.raises(ValueError, match="rng must be given for random directions"):
        run(**hutchinson)
    with pytest.raises(ValueError, match="kind must be one of"):
        run(kind="normal", rng=np.random.default_rng(0), **hutchinson)
    with pytest.raises(ValueError, match="count must be at most 2 for orthogonal directions in that dimension, got 3"):
        run(kind="orthogonal", count=3, rng=np.random.default_rng(0), **hutchinson)
    with pytest.raises(ValueError, match=r"divergence must return shape \(2,\), got \(\)"):
        run(divergence=lambda x, level: 0.0)
    with pytest.raises(ValueError, match="tolerance must be a finite number > 0"):
        run(divergence=oracle_divergence(MIXTURE), tolerance=0.0)
    with pytest.raises(TypeError, match="oracle must be an Oracle"):
        oracle_divergence(VP)
    with pytest.raises(ValueError, match="sigma_data must be a finite number >= 0"):
        normal_prior(sigma_data=-1.0)
    with pytest.raises(ValueError, match="centre must be finite"):
        normal_prior(centre=np.inf)
    with pytest.raises(ValueError, match="bin_width must be a finite number > 0"):
        dequantise(X, bin_width=0.0, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="kind must be one of"):
        trace_variance(JACOBIAN, kind="normal")
    with pytest.raises(TypeError, match="x must have a floating-point dtype, got int64"):
        log_density(MIXTURE.denoise, np.ones((2, 2), dtype=int), path)
    with pytest.raises(ValueError, match=r"x must have at least event_ndim = 3 axes, got shape \(2, 2\)"):
        run(event_ndim=3)


@given(value=st.one_of(st.integers(-3, 0), st.floats(), st.booleans(), st.text(max_size=2)))
def test_counts(value):
    for call in (
        lambda: bits_per_dimension(0.0, value, bin_width=1.0),
        lambda: probes(X, value, rng=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match="must be an integer >= 1, got"):
            call()


LEVEL = schedules.edm().level(2.0)


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: dequantise(np.arange(4), bin_width=1.0, rng=np.random.default_rng(0)), TypeError, "x must"),
        (lambda: probes(np.zeros(3, int), 2, rng=np.random.default_rng(0), kind="gaussian"), TypeError, "like must"),
        (lambda: probes(np.zeros(3), 2, rng=np.random.default_rng(0), event_ndim=2), ValueError, "like must"),
        (lambda: probes(np.zeros(3), 2, rng=np.random.default_rng(0), event_ndim=0), ValueError, "event_ndim must"),
        (lambda: normal_prior(event_ndim=0), ValueError, "event_ndim must"),
        (lambda: normal_prior(centre=0.5)(np.zeros(2, int), LEVEL), TypeError, "x must"),
        (lambda: normal_prior(event_ndim=2)(np.zeros(2), LEVEL), ValueError, "x must"),
    ],
)
def test_nothing_is_cut_to_integers_or_summed_over_other_axes(call, error, name):
    """Integers would take no noise, lose a centre's fraction, and make directions of another covariance."""
    with pytest.raises(error, match=name):
        call()


@pytest.mark.parametrize("jacobian", [np.ones(3), np.ones((2, 3)), np.ones((4, 3, 2)), 2.0, np.ones((0, 0))])
def test_traces_need_square_matrices(jacobian):
    with pytest.raises(ValueError, match=r"jacobian must have shape \(..., d, d\), got"):
        trace_variance(jacobian)


def test_traces_of_lists_and_integers_and_no_complex_ones():
    assert trace_variance([[1, 2], [0, 3]]) == 4.0
    assert trace_variance(np.asarray([[1, 3], [0, 3]]), kind="rademacher") == 9.0
    with pytest.raises(TypeError, match="jacobian must be real numbers, got dtype complex128"):
        trace_variance(1j * JACOBIAN)


def test_options_of_log_density_are_checked_under_its_name():
    with pytest.raises(
        TypeError, match=r"options of log_density must be among .*'divergence'.*, got \['divergences'\]"
    ):
        log_density(MIXTURE.denoise, X, path_of("velocity", 4), divergences="exact")


def test_infinite_coordinates_point_to_a_way_out():
    with pytest.raises(
        ValueError, match=r"path must have finite coordinates .*; use paths.velocity, or schedules.trunc"
    ):
        transport(MIXTURE.denoise, X, paths.x0(FLOW, np.asarray([1.0, 0.5, 0.1])))


@pytest.mark.claim("likelihood-standard-error")
@pytest.mark.parametrize("kind", ["orthogonal", "rademacher"])
def test_no_error_has_derivatives(kind):
    """A whole orthogonal set is exact, and signs on a multiple of the identity agree: the root of 0 has slope 0."""
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")

    def values(scale, z):
        return scale * z[:, None] if kind == "orthogonal" else scale * (1.0 + 0.0 * z[:, None])

    def error(scale):
        return likelihood._standard_error(values(scale, jax.numpy.arange(3.0)), kind, 3).sum()

    assert jax.value_and_grad(error)(jax.numpy.asarray(2.0)) == (0.0, 0.0)
    scale = torch.tensor(2.0, requires_grad=True)
    likelihood._standard_error(values(scale, torch.arange(3.0)), kind, 3).sum().backward()
    assert float(scale.grad) == 0.0
    spread = likelihood._standard_error(np.arange(3.0)[:, None], kind, 4)
    assert float(spread[0]) == pytest.approx(math.sqrt(1.0 / 3.0 * (0.25 if kind == "orthogonal" else 1.0)), rel=EXACT)
