"""What 16 points of an SDE give: Gaussian data exactly, two separated modes nearly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from diffnum import _backend, grids, oracles, paths, schedules
from diffnum.convergence import table_moments
from diffnum.solvers import adams_bashforth, solve

POINTS = 16
SCHEDULE = schedules.edm(sigma_min=1e-3, sigma_max=80.0)
MEANS, STD, SCALE = np.array([-3.0, 3.0]), 0.5, math.sqrt(9.25)
DRAWS = 2**16
"""Quasi-random; two scrambles differ by a tenth of the bounds."""
DEVIATION, DISTANCE = 2e-3, 0.02
"""Relative error of the standard deviation, first Wasserstein distance."""
EXACT = 1e-12
"""Relative: some tens of roundings a step."""


@pytest.mark.claim("paths-gaussian-exact")
@pytest.mark.parametrize("order", [1, 2, 3])
def test_gaussian_data_are_exact_in_law(order):
    """Mean and deviation by recurrence, without a random number; a scale that is not the data's is the control."""
    t, sd, mean = grids.uniform_angle(SCHEDULE, POINTS - 1, sigma_data=1.7), 1.7, 0.8

    def law(scale: float) -> tuple[float, float]:
        path = paths.velocity(SCHEDULE, t, sigma_data=scale, centre=mean, eta=1.0)
        found = table_moments(adams_bashforth(path, order), mean=mean, std=sd)
        return float(found.mean), float(found.std)

    end = SCHEDULE.level(np.asarray(SCHEDULE.t_clean))
    expected = (mean, math.hypot(sd, float(end.sigma)))
    np.testing.assert_allclose(law(sd), expected, rtol=EXACT)
    assert not np.allclose(law(1.0), expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.claim("solvers-orders")
def test_two_modes_come_out_right():
    """Against the distribution function; one order lower misses the distance."""
    t = grids.uniform_log_snr(SCHEDULE, POINTS - 1)
    path = paths.velocity(SCHEDULE, t, sigma_data=SCALE, eta=1.0)
    oracle = oracles.mixture(np.array([0.5, 0.5]), MEANS[:, None], np.full(2, STD))
    u = qmc.Sobol(POINTS + 1, rng=np.random.default_rng(0)).random(DRAWS)
    z = ndtri(u)
    start = np.where(u[:, 0] < 0.5, MEANS[0], MEANS[1]) + STD * z[:, 1] + 80.0 * ndtri(np.remainder(2.0 * u[:, 0], 1.0))
    for order, good in ((2, True), (1, False)):
        table = adams_bashforth(path, order)
        out = solve(oracle.denoise, start[:, None], table, rng=lambda row, like: z[:, 2 + row, None])[:, 0]
        both = np.concatenate([out, -out])
        assert abs(both.std() / SCALE - 1.0) < DEVIATION
        assert (wasserstein(both) < DISTANCE) == good


def some_noise(steps: int = 6) -> paths.Path:
    """Noise in the first and the last two steps alone."""
    eta = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    return paths.x0(SCHEDULE, grids.karras(SCHEDULE, steps), eta=eta)


def test_rows_without_noise_draw_nothing():
    """The generator has moved on by three draws, not by six."""
    used, fresh = np.random.default_rng(0), np.random.default_rng(0)
    solve(lambda x, level: 0.5 * x, np.ones(5), adams_bashforth(some_noise(), 1), rng=used)
    fresh.standard_normal((3, 5))
    assert used.standard_normal() == fresh.standard_normal()


@pytest.mark.parametrize("batch", [False, True])
def test_draws_made_ahead_are_those_of_the_rows(batch):
    jax = pytest.importorskip("jax")
    key, like = jax.random.key(3), jax.numpy.ones((4, 2))
    key = jax.random.split(key, 4) if batch else key
    rows = np.array([1, 2, 5])
    source = _backend.draw_ahead(key, rows, like)
    assert source is not key
    for row in rows.tolist():
        np.testing.assert_array_equal(source(row, like), _backend.normal(key, row, like))
    assert not np.array_equal(source(1, like), source(2, like))
    closed = jax.make_jaxpr(lambda k: _backend.draw_ahead(k, rows, like)(5, like))(key)
    assert "[3,4,2]" in str(closed)
    assert "[6,4,2]" not in str(closed)


def test_only_small_states_of_jax_draw_ahead():
    jax = pytest.importorskip("jax")
    key, rows = jax.random.key(0), np.arange(3)
    assert _backend.draw_ahead(key, rows, jax.numpy.ones(4097)) is key
    assert _backend.draw_ahead(key, np.arange(257), jax.numpy.ones(4096)) is key
    assert _backend.draw_ahead(key, rows[:0], jax.numpy.ones(4)) is key
    assert _backend.draw_ahead(key, rows, jax.numpy.ones(0)) is key
    prescribed, generator = (lambda row, like: like), np.random.default_rng(0)
    assert _backend.draw_ahead(prescribed, rows, jax.numpy.ones(4)) is prescribed
    assert _backend.draw_ahead(generator, rows, np.ones(4)) is generator


def test_small_and_large_states_get_the_same_noise():
    """The first 4,096 of a state drawn row by row, with one key for each sample, are those of a state drawn ahead."""
    jax = pytest.importorskip("jax")
    keys = jax.random.split(jax.random.key(1), 8)
    x = jax.numpy.ones((8, 1000))
    table = adams_bashforth(some_noise(), 2)
    large = jax.jit(lambda y, k: solve(lambda u, level: 0.5 * u, y, table, rng=k))(x, keys)
    small = jax.jit(lambda y, k: solve(lambda u, level: 0.5 * u, y, table, rng=k))(x[:2], keys[:2])
    np.testing.assert_allclose(small, large[:2], rtol=1e-12)


def wasserstein(x: np.ndarray) -> float:
    """Integral of the distance of the distribution functions; the law of the mixture is symmetric, as are `x`."""
    places = np.linspace(-8.0, 8.0, 16001)
    exact = 0.5 * (ndtr((places - MEANS[0]) / STD) + ndtr((places - MEANS[1]) / STD))
    share = np.searchsorted(np.sort(x), places) / len(x)
    return float(np.sum(np.abs(share - exact)) * (places[1] - places[0]))
