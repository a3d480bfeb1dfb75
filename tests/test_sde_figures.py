"""What 16 points of an SDE give: Gaussian data exactly, two separated modes nearly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from diffnum import grids, oracles, paths, schedules
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


def wasserstein(x: np.ndarray) -> float:
    """Integral of the distance of the distribution functions; the law of the mixture is symmetric, as are `x`."""
    places = np.linspace(-8.0, 8.0, 16001)
    exact = 0.5 * (ndtr((places - MEANS[0]) / STD) + ndtr((places - MEANS[1]) / STD))
    share = np.searchsorted(np.sort(x), places) / len(x)
    return float(np.sum(np.abs(share - exact)) * (places[1] - places[0]))
