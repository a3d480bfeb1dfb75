"""Nodes of equal error: against local errors computed by hand, the known optimum on normal data, and other grids."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest

from diffnum import grids, oracles, paths, schedules
from diffnum._optimal import _Reference
from diffnum.adaptive import solve_adaptive
from diffnum.schedules import Level
from diffnum.solvers import adams_bashforth, solve

FLOW, EDM = schedules.rectified_flow(), schedules.edm()
MIXTURE = oracles.mixture([0.4, 0.6], [[-1.0], [0.7]], [0.1, 0.2])
VELOCITY = functools.partial(paths.velocity, sigma_data=0.85)
RNG = np.random.default_rng(0)
X, OTHERS = RNG.normal(size=(24, 1)), RNG.normal(size=(200, 1))

EQUAL = 1.05
"""Largest over smallest error: the library stops at 1.01 of errors that it knows to a percent or two."""


@functools.cache
def nodes(steps: int, order: int, weight: str = "end") -> np.ndarray:
    return grids.optimal(FLOW, steps, MIXTURE.denoise, X, path=VELOCITY, order=order, weight=weight)


def exact(x: np.ndarray, *t: float, tol: float = 1e-7) -> np.ndarray:
    return solve_adaptive(MIXTURE.denoise, x, VELOCITY(FLOW, np.array(t)), rtol=tol, atol=tol).x


def errors_by_hand(t: np.ndarray, order: int, *, growth: bool) -> np.ndarray:
    """Local errors of Adams-Bashforth 1 and 2 written out on the velocity path, from exact states."""
    sd, level = 0.85, FLOW.level(t)
    theta, norm = np.arctan2(level.sigma, level.alpha * sd), np.hypot(level.alpha * sd, level.sigma)
    states = [X]
    for a, b in itertools.pairwise(t):
        states.append(exact(states[-1], a, b))
    values = []
    for n in range(len(t) - 1):
        at = Level(*(part[n] for part in level))
        mean = MIXTURE.denoise(states[n], at)
        values.append((np.cos(theta[n]) * states[n] / norm[n] - mean / sd) / np.sin(theta[n]))
    found = []
    for n in range(len(t) - 1):
        h = theta[n] - theta[n + 1]
        f = values[n]
        if order == 2 and n > 0:
            r = h / (theta[n - 1] - theta[n])
            f = (1.0 + r / 2.0) * values[n] - r / 2.0 * values[n - 1]
        missed = states[n + 1] - norm[n + 1] * (states[n] / norm[n] - h * f)
        factor = 1.0
        if growth and n + 2 < len(t):
            ends = [exact(states[n + 1] + d, t[n + 1], t[-1]) for d in (1e-4, -1e-4)]
            factor = (ends[0] - ends[1]) / 2e-4
        found.append(math.sqrt(np.mean((factor * missed) ** 2)))
    return np.array(found)


@pytest.mark.claim("grids-optimal", "grids-local", "grids-growth")
@pytest.mark.parametrize("order", [1, 2])
def test_all_steps_have_the_same_error(order):
    errors = errors_by_hand(nodes(9, order), order, growth=True)
    assert errors.max() < EQUAL * errors.min(), errors
    others = errors_by_hand(grids.uniform_angle(FLOW, 9, sigma_data=0.85), order, growth=True)
    assert others.max() > 4.0 * others.min()
    assert errors.max() < others.max()


@pytest.mark.claim("grids-growth")
def test_errors_where_they_are_made():
    local = errors_by_hand(nodes(9, 2, "local"), 2, growth=False)
    assert local.max() < EQUAL * local.min()
    at_the_end = errors_by_hand(nodes(9, 2, "local"), 2, growth=True)
    assert at_the_end.max() > 1.5 * at_the_end.min()


@pytest.mark.claim("grids-optimal")
def test_on_normal_data_equal_angles_come_out():
    """The theorem on equal angles, found by the search: order 1 in rho, data N(0, s^2)."""
    std, schedule = 0.5, schedules.edm(sigma_min=0.01, sigma_max=20.0)
    path = functools.partial(paths.noise, coordinate="ratio")
    x = 20.0 * np.array([[0.7], [-1.3], [1.0]])  # the rest of an error at the end is its relative size
    for steps in (20, 80):
        denoise = oracles.gaussian([0.0], std).denoise
        t = grids.optimal(schedule, steps, denoise, x, path=path, order=1, weight="end")
        angle = np.arctan(t / std)
        assert np.max(np.abs(angle - np.linspace(angle[0], angle[-1], steps + 1))) < 0.005
    others = np.arctan(grids.karras(schedule, 80) / std)
    assert np.max(np.abs(others - np.linspace(others[0], others[-1], 81))) > 0.2


@pytest.mark.claim("grids-optimal")
def test_the_density_is_a_power_of_the_constant():
    """One smooth function f(s) without y: the error of order 1 is f' h^2/2, so nodes have the density sqrt(f')."""

    schedule = schedules.truncate(FLOW, t_clean=0.02)
    t = grids.optimal(schedule, 60, exponential, np.ones((1, 1)), order=1, weight="local", path=paths.velocity)
    level = schedule.level(t)
    theta = np.arctan2(level.sigma, level.alpha)
    # the error is measured in x, which is n u with n = |level|; the density is (n f')^(1/2)
    s = np.linspace(theta[-1], theta[0], 4001)
    size = 1.0 / (np.cos(s) + np.sin(s))
    mass = np.concatenate([[0.0], np.cumsum(np.sqrt(size * np.exp(2.0 * s))[1:] * np.diff(s))])
    expected = np.interp(np.linspace(1.0, 0.0, 61), mass / mass[-1], s)
    assert np.max(np.abs(theta - expected)) < 0.01
    wrong = np.concatenate([[0.0], np.cumsum((size * np.exp(2.0 * s))[1:] * np.diff(s))])
    assert np.max(np.abs(theta - np.interp(np.linspace(1.0, 0.0, 61), wrong / wrong[-1], s))) > 0.05


def exponential(x, level):
    """Denoiser whose velocity is exp(2 theta), whatever x."""
    theta = np.arctan2(level.sigma, level.alpha)
    return np.cos(theta) * x / np.hypot(level.alpha, level.sigma) - np.sin(theta) * np.exp(2.0 * theta)


@pytest.mark.claim("grids-local")
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_local_errors_are_those_of_the_solver(order):
    """Where f does not depend on x, the solver's own steps have them, those of its start included."""
    schedule = schedules.truncate(FLOW, t_clean=0.02, t_noise=0.9)
    reference = _Reference(schedule, exponential, np.ones((1, 1)), paths.velocity, end=False)
    share = np.array([0.1, 0.25, 0.15, 0.2, 0.1, 0.2])
    level = reference.levels(reference.places(share))
    table = adams_bashforth(paths.velocity(schedule, level.t), order)
    states = solve(exponential, np.ones((1, 1)), table, trajectory=True)[:, 0, 0]
    theta, norm = np.arctan2(level.sigma, level.alpha), np.hypot(level.alpha, level.sigma)
    steps = states[1:] / norm[1:] - states[:-1] / norm[:-1]
    exact_steps = -(np.exp(2.0 * theta[:-1]) - np.exp(2.0 * theta[1:])) / 2.0
    np.testing.assert_allclose(
        reference.errors(share, order), np.abs(norm[1:] * (steps - exact_steps)), rtol=1e-3, atol=1e-6
    )


def test_normal_data_on_their_own_path_are_left_alone():
    path = functools.partial(paths.velocity, sigma_data=0.6, centre=0.3)
    t = grids.optimal(FLOW, 8, oracles.gaussian([0.3], 0.6).denoise, X, path=path)
    np.testing.assert_allclose(t, grids.uniform_angle(FLOW, 8, sigma_data=0.6), atol=1e-12)


def error(t: np.ndarray, order: int, x: np.ndarray, ends: np.ndarray, schedule: Any, oracle: Any, path: Any) -> float:
    return float(np.sqrt(np.mean((solve(oracle.denoise, x, adams_bashforth(path(schedule, t), order)) - ends) ** 2)))


@pytest.mark.claim("grids-optimal")
@pytest.mark.parametrize("steps", [10, 20])
def test_other_points_have_a_smaller_error_than_on_other_grids(steps):
    path, x = VELOCITY, 80.0 * OTHERS
    ends = solve_adaptive(MIXTURE.denoise, x, path(EDM, np.array([80.0, 0.002])), rtol=1e-6, atol=1e-6).x
    found = grids.optimal(EDM, steps, MIXTURE.denoise, 80.0 * X, path=path, weight="end")
    ours = error(found, 2, x, ends, EDM, MIXTURE, path)
    others = {
        "uniform_angle": grids.uniform_angle(EDM, steps, sigma_data=0.85),
        "karras": grids.karras(EDM, steps),
        "uniform_log_snr": grids.uniform_log_snr(EDM, steps),
        "uniform": grids.uniform(EDM, steps),
    }
    for name, t in others.items():
        assert ours < 0.35 * error(t, 2, x, ends, EDM, MIXTURE, path), name


@pytest.mark.slow
@pytest.mark.claim("grids-optimal")
def test_digits():
    """Root mean squares over digits count the samples that end at another digit: fewer than on the usual grids."""
    digits = pytest.importorskip("sklearn.datasets").load_digits().data[:500] / 8.0 - 1.0
    schedule, path = schedules.edm(sigma_min=0.02), functools.partial(paths.velocity, sigma_data=0.75)
    oracle, rng = oracles.empirical(digits), np.random.default_rng(0)
    x, others = 80.0 * rng.normal(size=(16, 64)), 80.0 * rng.normal(size=(128, 64))
    ends = solve_adaptive(oracle.denoise, others, path(schedule, np.array([80.0, 0.02])), rtol=1e-5, atol=1e-5).x
    ours = error(grids.optimal(schedule, 20, oracle.denoise, x, path=path), 2, others, ends, schedule, oracle, path)
    for t in (grids.karras(schedule, 20), grids.uniform_log_snr(schedule, 20)):
        assert ours < 0.8 * error(t, 2, others, ends, schedule, oracle, path)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_ends_and_shape(steps, order):
    t = nodes(steps, order)
    assert t.shape == (steps + 1,)
    assert t.dtype == np.float64
    assert (t[0], t[-1]) == (1.0, 0.0)
    assert np.all(np.diff(t) < 0)


@pytest.mark.parametrize("order", [3, 4])
def test_higher_orders_gain_too(order):
    ends = exact(OTHERS, 1.0, 0.0)
    ours = error(nodes(20, order), order, OTHERS, ends, FLOW, MIXTURE, VELOCITY)
    angle = grids.uniform_angle(FLOW, 20, sigma_data=0.85)
    assert ours < 0.8 * error(angle, order, OTHERS, ends, FLOW, MIXTURE, VELOCITY)


@pytest.mark.slow
def test_other_libraries(backend):
    x = backend.asarray(X[:6])
    found = grids.optimal(FLOW, 5, MIXTURE.denoise, x, path=VELOCITY)
    np.testing.assert_allclose(found, grids.optimal(FLOW, 5, MIXTURE.denoise, X[:6], path=VELOCITY), atol=1e-6)
    assert type(found) is np.ndarray


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 1, 1)])
def test_samples_of_any_shape(shape):
    def denoise(x, level):
        return MIXTURE.denoise(x.reshape(-1, 1), level).reshape(x.shape)

    t = grids.optimal(FLOW, 5, denoise, X[:6].reshape(shape), path=VELOCITY)
    np.testing.assert_allclose(t, grids.optimal(FLOW, 5, MIXTURE.denoise, X[:6], path=VELOCITY), atol=1e-6)


def test_refusals():
    denoise = MIXTURE.denoise
    for steps in (0, 1.5, True, None):
        with pytest.raises(ValueError, match="steps must be an integer >= 1"):
            grids.optimal(FLOW, steps, denoise, X)
    for order in (0, 5, 1.5, True):
        with pytest.raises(ValueError, match="order must be an integer from 1 to 4"):
            grids.optimal(FLOW, 4, denoise, X, order=order)
    with pytest.raises(ValueError, match="weight must be one of"):
        grids.optimal(FLOW, 4, denoise, X, weight="start")
    with pytest.raises(TypeError, match="schedule must be a Schedule"):
        grids.optimal(1.0, 4, denoise, X)
    for x in (np.zeros((0, 1)), 1.0):
        with pytest.raises(ValueError, match="x must have shape"):
            grids.optimal(FLOW, 4, denoise, x)
    with pytest.raises(ValueError, match="path must have a finite coordinate at both ends"):
        grids.optimal(FLOW, 4, denoise, X, path=paths.x0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": None}, TypeError, "x must be real numbers"),
        ({"x": X * 1j}, TypeError, "x must be real numbers"),
        ({"x": X * math.nan}, ValueError, "x must be finite"),
        ({"x": np.zeros((0, 1))}, ValueError, r"x must have shape \(n, ...\) with n >= 1, got \(0, 1\)"),
        ({"denoise": None}, TypeError, "denoise must be a Callable, got NoneType"),
        ({"denoise": lambda x, level: x[0]}, ValueError, "denoise must return an array of the shape of x"),
        ({"path": None}, TypeError, "path must be a Callable, got NoneType"),
        ({"path": lambda schedule, t: t}, TypeError, r"path\(schedule, t\) must be a Path, got ndarray"),
        ({"path": paths.x0}, ValueError, "path must have a finite coordinate at both ends"),
        ({"schedule": None}, TypeError, "schedule must be a Schedule, got NoneType"),
    ],
)
def test_what_has_no_nodes(changes, error, message):
    given = {"schedule": FLOW, "denoise": MIXTURE.denoise, "x": X, "path": VELOCITY} | changes
    with pytest.raises(error, match=message):
        grids.optimal(given["schedule"], 4, given["denoise"], given["x"], path=given["path"])


def test_points_in_a_list_and_in_float32():
    wanted = grids.optimal(FLOW, 4, MIXTURE.denoise, X[:8], path=VELOCITY)
    for x in (X[:8].tolist(), X[:8].astype(np.float32)):
        np.testing.assert_allclose(grids.optimal(FLOW, 4, MIXTURE.denoise, x, path=VELOCITY), wanted, rtol=1e-4)


def test_defaults():
    """Order 2 on the velocity path, errors where they are made."""
    plain = grids.optimal(FLOW, 4, MIXTURE.denoise, X[:8])
    stated = grids.optimal(FLOW, 4, MIXTURE.denoise, X[:8], path=paths.velocity, order=2, weight="local")
    np.testing.assert_array_equal(plain, stated)
    for other in ({"order": 3}, {"weight": "end"}):
        assert not np.allclose(grids.optimal(FLOW, 4, MIXTURE.denoise, X[:8], **other), plain, rtol=1e-3)
