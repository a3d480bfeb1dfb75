"""Error control: the pair, its estimate, the controller's decisions, and what the tolerance buys."""

from __future__ import annotations

import dataclasses
import fractions
import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from diffnum import convergence, oracles, paths, schedules
from diffnum.adaptive import PAIR_32, PAIR_43, Controller, Pair, solve_adaptive
from diffnum.schedules import Level
from diffnum.solvers import HEUN, Method, assemble, runge_kutta, solve

FLOW, EDM, VP = schedules.rectified_flow(), schedules.edm(sigma_min=0.0, sigma_max=5.0), schedules.vp_linear()
INNER = schedules.truncate(FLOW, t_clean=0.05, t_noise=0.9)
DATA = oracles.mixture([0.3, 0.7], [[-1.0], [0.5]], [0.4, 0.3])
X = np.array([[0.5], [-0.2], [1.3]])
PAIRS = {"3(2)": PAIR_32, "4(3)": PAIR_43}

ORDER_TOLERANCE = 0.1
"""A wrong node moves an order by 1."""
SAME = 1e-11
"""Two evaluations of the same formula, after some ten to fifty steps."""
SLOPE_TOLERANCE = 0.15
"""Slope of the error against the tolerance, which steps have whole numbers of; a wrong estimate moves it by a third."""

PATHS = {
    "x0": paths.x0,
    "x0 ratio": functools.partial(paths.x0, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": functools.partial(paths.noise, coordinate="ratio"),
    "velocity": functools.partial(paths.velocity, sigma_data=0.6, centre=0.2),
}
EACH_PAIR = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
EACH_PATH = pytest.mark.parametrize("name", PATHS)


def two_nodes(schedule: schedules.Schedule) -> np.ndarray:
    return np.array([schedule.t_noise, schedule.t_clean])


def embedded_method(pair: Pair) -> Method:
    last = max(pair.embedded)  # later evaluations are not used
    nodes = (*pair.method.nodes[:last], pair.embedded)
    return Method("embedded", pair.method.order - 1, pair.method.stages[: last + 1], nodes)


def gaussian_flow(mean: float, std: float, x: np.ndarray, start: Level, stop: Level) -> np.ndarray:
    """Quantiles of a normal law move with its mean and standard deviation."""
    scale = math.hypot(stop.alpha * std, stop.sigma) / math.hypot(start.alpha * std, start.sigma)
    return stop.alpha * mean + scale * (x - start.alpha * mean)


# -- the pair ---------------------------------------------------------------------------------------------------------


def classical_tableau(method: Method, last: tuple[int, ...]) -> tuple[list, list, list]:
    """Exact rational a, b, c for a kernel that is 1: integrals of Lagrange polynomials."""
    c = [fractions.Fraction(s).limit_denominator(100) for s in method.stages]
    rows = []
    for goal, nodes in zip([*c[1:], fractions.Fraction(1)], [*method.nodes[:-1], last], strict=True):
        row = [fractions.Fraction(0)] * len(c)
        for j in nodes:
            polynomial = [fractions.Fraction(1)]
            for i in nodes:
                if i != j:
                    down = [*polynomial, fractions.Fraction(0)]
                    polynomial = [
                        (up - c[i] * low) / (c[j] - c[i]) for up, low in zip([0, *polynomial], down, strict=True)
                    ]
            row[j] = sum(p * goal ** (m + 1) / (m + 1) for m, p in enumerate(polynomial))
        rows.append(row)
    return [[fractions.Fraction(0)] * len(c), *rows[:-1]], rows[-1], c


def tree_residuals(a: list, b: list, c: list, order: int) -> list:
    """Residuals of Butcher's conditions of one order, 1 to 4."""
    n = range(len(b))
    ac = [sum(a[i][j] * c[j] for j in n) for i in n]
    ac2 = [sum(a[i][j] * c[j] ** 2 for j in n) for i in n]
    aac = [sum(a[i][j] * ac[j] for j in n) for i in n]
    f = fractions.Fraction
    conditions = {
        1: [(lambda i: 1, f(1))],
        2: [(lambda i: c[i], f(1, 2))],
        3: [(lambda i: c[i] ** 2, f(1, 3)), (lambda i: ac[i], f(1, 6))],
        4: [
            (lambda i: c[i] ** 3, f(1, 4)), (lambda i: c[i] * ac[i], f(1, 8)),
            (lambda i: ac2[i], f(1, 12)), (lambda i: aac[i], f(1, 24)),
        ],
    }  # fmt: skip
    return [sum(b[i] * factor(i) for i in n) - value for factor, value in conditions[order]]


@pytest.mark.claim("adaptive-pair")
@EACH_PAIR
def test_order_conditions_of_the_pair_hold_exactly_and_the_next_ones_do_not(pair):
    order = pair.method.order
    for nodes, stated in ((pair.method.nodes[-1], order), (pair.embedded, order - 1)):
        a, b, c = classical_tableau(pair.method, nodes)
        assert [sum(row) for row in a] == c
        assert all(r == 0 for p in range(1, stated + 1) for r in tree_residuals(a, b, c, p))
        if stated < 4:
            assert any(r != 0 for r in tree_residuals(a, b, c, stated + 1))


@pytest.mark.claim("adaptive-pair")
@EACH_PAIR
@EACH_PATH
def test_measured_orders_of_the_pair(pair, name):
    (problem,) = convergence.problems("mixture-vp")
    for method in (pair.method, embedded_method(pair)):

        def run(n, method=method):
            path = PATHS[name](problem.setting, problem.grid(n))
            return solve(problem.denoise, problem.x, runge_kutta(path, method))

        study = convergence.study(run, [32, 64, 128], problem.reference)
        assert abs(study.slopes[-1] - method.order) < ORDER_TOLERANCE + 0.05 * (method.order == 4), study


def test_a_stage_at_another_place_costs_an_order():
    """Negative control: 2/3 is where the error of the linear interpolant integrates to zero."""
    (problem,) = convergence.problems("mixture-vp")
    moved = PAIR_32.method._replace(stages=(0.0, 1 / 3, 3 / 4))

    def run(n):
        return solve(problem.denoise, problem.x, runge_kutta(paths.x0(problem.setting, problem.grid(n)), moved))

    assert convergence.study(run, [32, 64, 128], problem.reference).slopes[-1] < 2.2
    a, b, c = classical_tableau(moved, moved.nodes[-1])
    assert any(r != 0 for r in tree_residuals(a, b, c, 3))


# -- steps and estimates ----------------------------------------------------------------------------------------------


@pytest.mark.claim("adaptive-estimate")
@EACH_PAIR
@EACH_PATH
def test_steps_and_estimates_are_those_of_two_tables(pair, name):
    rtol, atol = 1e-5, 2e-5
    solution = solve_adaptive(DATA.denoise, X, PATHS[name](INNER, two_nodes(INNER)), rtol=rtol, atol=atol, pair=pair)
    path = PATHS[name](INNER, solution.t)
    states = solve(DATA.denoise, X, runge_kutta(path, pair.method), trajectory=True)
    np.testing.assert_allclose(solution.x, states[-1], rtol=SAME, atol=SAME)
    assert solution.accepted == path.steps == len(solution.errors) >= 5
    for n, (y, following) in enumerate(itertools.pairwise(states)):
        step = PATHS[name](INNER, solution.t[n : n + 2])
        other = solve(DATA.denoise, y, assemble(step, [embedded_method(pair)]))
        centre = 0.2 if name == "velocity" else 0.0
        sizes = [
            np.sqrt(np.mean((v - INNER.alpha(t) * centre) ** 2))
            for v, t in zip((y, following), solution.t[n : n + 2], strict=True)
        ]
        expected = np.sqrt(np.mean((following - other) ** 2)) / (atol + rtol * max(sizes))
        np.testing.assert_allclose(solution.errors[n], expected, rtol=1e-4, atol=1e-6)
    assert np.all(solution.errors <= 1.0)


@pytest.mark.claim("adaptive-estimate")
@EACH_PAIR
def test_the_estimate_tends_to_the_error_of_the_lower_method_and_bounds_that_of_the_higher(pair):
    oracle, x = oracles.gaussian([0.8], 1.7), np.array([[1.1]])
    start = FLOW.level(0.8)
    for length, closeness in ((0.02, 0.1), (0.01, 0.05)):
        stop = FLOW.level(0.8 - length)
        path = paths.velocity(FLOW, np.array([0.8, 0.8 - length]), sigma_data=0.5)
        exact = gaussian_flow(0.8, 1.7, x, start, stop)
        high, low = (solve(oracle.denoise, x, assemble(path, [m])) for m in (pair.method, embedded_method(pair)))
        atol = 1.0
        solution = solve_adaptive(oracle.denoise, x, path, rtol=0.0, atol=atol, first_step=1.0, pair=pair)
        assert solution.accepted == 1
        np.testing.assert_allclose(solution.errors[0] * atol, np.abs(low - exact)[0, 0], rtol=closeness)
        assert np.abs(high - exact) < 0.3 * solution.errors[0] * atol


@pytest.mark.claim("adaptive-estimate")
def test_the_estimate_falls_with_the_order_of_the_pair():
    """The negative control is a pair that claims more: both of order 2."""
    wrong = Pair(PAIR_43.method, (0, 1))
    for pair, order in ((PAIR_32, 3), (PAIR_43, 4), (wrong, 3)):
        lengths, found = (0.04, 0.02), []
        for length in lengths:
            path = paths.velocity(FLOW, np.array([0.6, 0.6 - length]))
            found.append(solve_adaptive(DATA.denoise, X, path, rtol=0.0, atol=1.0, first_step=1.0, pair=pair).errors[0])
        assert abs(math.log2(found[0] / found[1]) - order) < 0.2


@pytest.mark.claim("adaptive-estimate")
def test_the_estimate_of_order_three_on_gaussian_data_and_the_pair_that_is_blind_there():
    """In rho the bracket is (c - 1/2) f_y f': 0 with the midpoint inside; c = 1/3 keeps 2/3 of the term in f''."""
    std, rho = 0.6, 1.0
    q = std**2 + rho**2
    slope_times_rate, second = rho * std**2 * q**-2.5, -3.0 * rho * std**2 * q**-2.5
    oracle, x = oracles.gaussian([0.0], std), np.array([[math.sqrt(q)]])
    schedule = schedules.edm(sigma_min=0.0, sigma_max=5.0)

    def ratio(c: float, length: float) -> float:
        pair = Pair(PAIR_32.method._replace(stages=(0.0, c, 2 / 3)), (0, 1))
        path = paths.noise(schedule, np.array([rho, rho - length]), coordinate="ratio")
        solution = solve_adaptive(oracle.denoise, x, path, rtol=0.0, atol=1.0, first_step=1.0, pair=pair)
        return float(solution.errors[0]) / length**3

    assert PAIR_32.method.stages[1] == 1 / 3
    assert ratio(1 / 3, 0.002) == pytest.approx(slope_times_rate / 6, rel=0.01)
    assert slope_times_rate / 6 == pytest.approx(2 / 3 * abs((1 / 6 - 1 / 12) * second), rel=1e-12)
    assert ratio(1 / 4, 0.002) == pytest.approx(slope_times_rate / 4, rel=0.01)
    assert ratio(1 / 2, 0.002) < 0.01 * slope_times_rate
    assert ratio(1 / 2, 0.004) / ratio(1 / 2, 0.002) == pytest.approx(2.0, abs=0.1)


@pytest.mark.claim("adaptive-norm")
def test_norm_over_the_batch_or_over_each_sample():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 1)) * np.array([[0.1], [1.0], [1.0], [3.0]])
    path = paths.velocity(FLOW, np.array([0.6, 0.5]))
    rtol, atol = 0.3, 0.2
    high, low = (solve(DATA.denoise, x, assemble(path, [m])) for m in (PAIR_32.method, embedded_method(PAIR_32)))
    gap = (high - low)[:, 0]
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "first_step": 1.0, "pair": PAIR_32}
    batch = solve_adaptive(DATA.denoise, x, path, **options).errors
    sample = solve_adaptive(DATA.denoise, x, path, norm="sample", **options).errors
    larger = max(np.sqrt(np.mean(x**2)), np.sqrt(np.mean(high**2)))
    np.testing.assert_allclose(batch, [np.sqrt(np.mean(gap**2)) / (atol + rtol * larger)], rtol=1e-10)
    each = np.abs(gap) / (atol + rtol * np.maximum(np.abs(x), np.abs(high))[:, 0])
    np.testing.assert_allclose(sample, [each.max()], rtol=1e-10)
    assert sample[0] > 1.1 * batch[0]


def test_a_sample_is_a_row_of_any_shape():
    x = np.arange(12.0).reshape(2, 3, 2) / 5.0

    def denoise(x, level):
        return np.tanh(x)

    path = paths.velocity(FLOW, np.array([0.6, 0.5]))
    options: dict[str, Any] = {"rtol": 0.0, "atol": 1.0, "first_step": 1.0}
    both = solve_adaptive(denoise, x, path, norm="sample", **options).errors[0]
    alone = [solve_adaptive(denoise, x[i], path, **options).errors[0] for i in range(2)]
    np.testing.assert_allclose(both, max(alone), rtol=1e-12)
    flat = solve_adaptive(denoise, x[0, 0], path, norm="sample", **options).errors[0]
    np.testing.assert_allclose(
        flat, max(solve_adaptive(denoise, v, path, **options).errors[0] for v in x[0, 0]), rtol=1e-12
    )


# -- the controller ---------------------------------------------------------------------------------------------------


def naive_controller(
    error_of: Any, length: float, order: int, c: Controller, *, reject: bool = True, memory: bool = True
):
    """The rules written out: error_of(position, step) in units of the tolerance; positions in [0, length]."""
    position, h, previous, repeated = 0.0, 0.05 * length, 1.0, False
    nodes, rejections = [0.0], 0
    while position < length:
        rest = length - position
        h = rest if h >= rest else (rest / 2 if 2 * h > rest else h)
        e = error_of(position, h)
        if e <= 1.0 or not reject:
            position = length if h == rest else position + h
            nodes.append(position)
            factor = c.safety * e ** (-c.integral / order) * (previous if memory else 1.0) ** (c.proportional / order)
            factor = min(max(factor, c.least), 1.0 if repeated else c.largest)
            previous, repeated = max(e, 1e-4), False
        else:
            rejections += 1
            factor = min(max(c.safety * e ** (-1.0 / order), c.least), 1.0)
            repeated = True
        h *= factor
    return np.array(nodes), rejections


class Bumps:
    """y' = f(t) along `semilinear`: the pair's errors are quadrature errors, here computed by hand for 3(2)."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def f(self, t):
        return 1.0 + 5.0 / (1.0 + (12.0 * (t - 1.0)) ** 2)

    def error(self, t, h):
        high = h * (self.f(t) / 4 + 3 / 4 * self.f(t + 2 * h / 3))
        low = h * (-self.f(t) / 2 + 3 / 2 * self.f(t + h / 3))
        return abs(high - low) / self.tolerance

    def run(self, **options):
        path = paths.semilinear(np.array([0.0, 3.0]))

        def denoise(x, level):
            return np.full_like(x, self.f(float(level.t)))

        return solve_adaptive(denoise, np.zeros(1), path, rtol=0.0, atol=self.tolerance, pair=PAIR_32, **options)


@pytest.mark.claim("adaptive-controller")
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_steps_are_those_of_the_rules(tolerance):
    bumps = Bumps(tolerance)
    for controller in (Controller(), Controller(0.8, 0.3, 2.0, 1.0, 0.0), Controller(0.95, 0.1, 10.0, 0.6, 0.3)):
        solution = bumps.run(controller=controller)
        nodes, rejections = naive_controller(bumps.error, 3.0, 3, controller)
        np.testing.assert_allclose(solution.t, nodes, atol=1e-10)
        assert solution.rejected == rejections >= 1
        assert np.all(solution.errors <= 1.0)
    for wrong in ({"reject": False}, {"memory": False}):
        nodes, _ = naive_controller(bumps.error, 3.0, 3, Controller(), **wrong)
        assert len(nodes) != len(bumps.run().t) or np.max(np.abs(nodes - bumps.run().t)) > 1e-3


@pytest.mark.claim("adaptive-controller")
def test_without_rejection_a_step_exceeds_its_tolerance():
    bumps = Bumps(1e-4)
    nodes, _ = naive_controller(bumps.error, 3.0, 3, Controller(), reject=False)
    worst = max(bumps.error(a, b - a) for a, b in itertools.pairwise(nodes))
    assert worst > 2.0
    assert bumps.run().errors.max() <= 1.0


def test_an_error_of_zero_grows_by_the_largest_factor_and_a_denoiser_of_nan_stops():
    path = paths.semilinear(np.array([0.0, 1.0]))
    solution = solve_adaptive(lambda x, level: 0.0 * x + 1.0, np.zeros(1), path, rtol=0.0, atol=1.0, first_step=0.01)
    lengths = np.diff(solution.t)
    np.testing.assert_allclose(lengths[1] / lengths[0], 5.0)
    np.testing.assert_allclose(solution.x, 1.0)
    calls = []

    def broken(x, level):
        calls.append(1)
        return x * math.nan

    with pytest.raises(RuntimeError, match="NaN"):
        solve_adaptive(broken, np.zeros(2), path)
    assert len(calls) < 200


def test_the_last_step_is_no_sliver_and_ends_at_the_level():
    for first in (0.3, 0.35, 0.45, 0.6, 0.97):
        path = paths.velocity(FLOW, np.array([0.8, 0.1]))
        solution = solve_adaptive(DATA.denoise, X, path, rtol=1.0, atol=1.0, first_step=first)
        steps = np.diff(path.coordinate(FLOW.level(solution.t)))
        assert solution.t[-1] == 0.1
        assert solution.t[0] == 0.8
        assert np.abs(steps).min() > 0.2 * np.abs(steps).max()


# -- what the tolerance buys ------------------------------------------------------------------------------------------


def errors_of_tolerances(pair: Pair, name: str, tolerances: np.ndarray) -> np.ndarray:
    (problem,) = convergence.problems("mixture-vp")
    path = PATHS[name](problem.setting, two_nodes(problem.setting))

    def run(tol):
        return solve_adaptive(problem.denoise, problem.x, path, rtol=tol, atol=tol, pair=pair, max_steps=5000)

    return np.array([np.sqrt(np.mean((run(tol).x - problem.reference) ** 2)) for tol in tolerances])


@pytest.mark.claim("adaptive-tolerance")
@EACH_PAIR
@pytest.mark.parametrize("name", ["x0", "noise ratio", "velocity"])
def test_the_error_is_proportional_to_the_tolerance(pair, name):
    tolerances = 10.0 ** -np.arange(*((5.0, 8.0) if pair is PAIR_32 else (6.0, 10.0)))
    errors = errors_of_tolerances(pair, name, tolerances)
    assert np.all(errors < tolerances)
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert abs(slope - 1.0) < SLOPE_TOLERANCE, errors / tolerances


@pytest.mark.claim("adaptive-tolerance")
def test_the_slope_is_that_of_the_orders():
    """With an estimate of order 2 beside a method of order 4 the error falls like tolerance^(4/3)."""
    tolerances = 10.0 ** -np.arange(3.0, 7.0)
    errors = errors_of_tolerances(Pair(PAIR_43.method, (0, 1)), "velocity", tolerances)
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert abs(slope - 4 / 3) < 0.15
    assert abs(slope - 1.0) > SLOPE_TOLERANCE


@EACH_PAIR
@pytest.mark.parametrize("case", ["velocity, both ends", "noise ratio to clean", "x0 ratio from pure noise"])
def test_singular_ends(pair, case):
    schedule, path = {
        "velocity, both ends": (FLOW, paths.velocity(FLOW, two_nodes(FLOW), sigma_data=0.8)),
        "noise ratio to clean": (EDM, paths.noise(EDM, two_nodes(EDM), coordinate="ratio")),
        "x0 ratio from pure noise": (
            FLOW, paths.x0(FLOW, np.array([1.0, 0.1]), coordinate="ratio")
        ),
    }[case]  # fmt: skip
    oracle, x = oracles.gaussian([0.4], 0.6), np.array([[0.9], [-1.4]])
    exact = gaussian_flow(0.4, 0.6, x, path.first, path.last)
    errors = []
    for tol in (1e-4, 1e-6):
        solution = solve_adaptive(oracle.denoise, x, path, rtol=tol, atol=tol, pair=pair)
        assert solution.t[-1] == path.last.t
        errors.append(np.abs(solution.x - exact).max() / tol)
    assert max(errors) < 3.0
    assert schedule.t_noise == solution.t[0]


@EACH_PATH
def test_either_direction(name):
    path = PATHS[name](INNER, two_nodes(INNER))
    back = dataclasses.replace(path, start=path.stop, stop=path.start, first=path.last, last=path.first)
    there = solve_adaptive(DATA.denoise, X, path, rtol=1e-8, atol=1e-8)
    again = solve_adaptive(DATA.denoise, there.x, back, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(again.x, X, atol=2e-6)
    assert np.all(np.diff(again.t) > 0)


@pytest.mark.parametrize("rate", [-3.0, lambda t: -3.0 + 2.0 * np.cos(3.0 * t)], ids=["constant", "varying"])
def test_semilinear_equations(rate):
    problem = oracles.semilinear_problem(-3.0, wave=0.0 if rate == -3.0 else 2.0)
    path = paths.semilinear(np.array([problem.t0, problem.t1]), rate)
    x = problem.solution(np.asarray(problem.t0))[None, :]
    solution = solve_adaptive(problem.denoise, x, path, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(solution.x[0], problem.solution(np.asarray(problem.t1)), atol=3e-7)


def test_evaluations_are_counted():
    calls = []

    def denoise(x, level):
        calls.append(float(level.t))
        return DATA.denoise(x, level)

    for pair in PAIRS.values():
        calls.clear()
        solution = solve_adaptive(denoise, X, paths.velocity(FLOW, two_nodes(FLOW)), pair=pair, first_step=0.8)
        assert solution.rejected >= 1
        assert len(calls) == solution.evaluations == len(pair.method.stages) * (solution.accepted + solution.rejected)
        assert min(calls) > 0.0, "f is singular at sigma = 0"


# -- an integral beside -----------------------------------------------------------------------------------------------


@pytest.mark.claim("adaptive-integral")
@EACH_PAIR
@EACH_PATH
def test_integral_beside_the_solution(pair, name):
    """Of a function of the coordinate alone; the negative control integrates with the path's own kernel."""
    path = PATHS[name](INNER, two_nodes(INNER))

    def g(s):
        return np.sin(3.0 * s) + 2.0

    def denoise(x, level):
        return DATA.denoise(x, level), np.stack([g(path.coordinate(level)), level.alpha**2])

    tol = 1e-6 if pair is PAIR_32 else 1e-8
    solution = solve_adaptive(denoise, X, path, rtol=tol, atol=tol, pair=pair, has_aux=True)
    start, stop = (float(path.coordinate(level)) for level in (path.first, path.last))
    expected = [
        quad(g, start, stop, epsabs=1e-12, limit=200)[0],
        quad(lambda s: float(path.at(np.asarray(s)).alpha) ** 2, start, stop, epsabs=1e-12, limit=200)[0],
    ]
    np.testing.assert_allclose(solution.integral, expected, rtol=30 * tol, atol=30 * tol)
    assert solution.evaluations == 1 + len(pair.method.stages) * (solution.accepted + solution.rejected)


@pytest.mark.claim("adaptive-integral")
def test_the_integral_controls_the_steps_too():
    path = paths.x0(INNER, two_nodes(INNER))

    def spike(level):
        return 1.0 / (1.0 + 400.0 * (level.log_snr - 0.5) ** 2)

    def both(x, level):
        return (DATA.denoise(x, level), spike(level))

    options: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
    alone, beside = (
        solve_adaptive(DATA.denoise, X, path, **options),
        solve_adaptive(both, X, path, has_aux=True, **options),
    )
    assert beside.accepted > 1.5 * alone.accepted
    lam = [float(INNER.log_snr(t)) for t in two_nodes(INNER)]
    expected = quad(lambda s: 1.0 / (1.0 + 400.0 * (s - 0.5) ** 2), *lam, epsabs=1e-12, points=[0.5])[0]
    np.testing.assert_allclose(beside.integral, expected, rtol=2e-4)
    np.testing.assert_allclose(beside.x, alone.x, atol=1e-4)
    assert alone.integral is None


@pytest.mark.claim("adaptive-integral")
def test_divergence_of_a_normal_law():
    """The change of log-density along x0 in log-SNR, whose closed form is known."""
    std = np.array([0.3, 1.4])
    oracle = oracles.gaussian([0.2, -0.4], std)
    schedule = schedules.edm(sigma_min=0.05, sigma_max=4.0)

    def denoise(x, level):
        rho2 = (level.sigma / level.alpha) ** 2
        return oracle.denoise(x, level), np.sum(1.0 - std**2 / (std**2 + rho2))

    path = paths.x0(schedule, two_nodes(schedule))
    solution = solve_adaptive(denoise, np.array([[1.0, 2.0]]), path, rtol=1e-9, atol=1e-9, has_aux=True)
    expected = 0.5 * np.sum(np.log((std**2 + 4.0**2) / (std**2 + 0.05**2)))
    np.testing.assert_allclose(solution.integral, expected, rtol=1e-8)


# -- array libraries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,dtype", [("velocity", "float32"), ("noise ratio", "float64"), ("x0", "float64")])
def test_every_backend_agrees_with_float64_numpy(backend, name, dtype):
    path = PATHS[name](INNER, two_nodes(INNER))
    options: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4, "pair": PAIR_32}
    expected = solve_adaptive(DATA.denoise, X, path, **options)
    found = solve_adaptive(DATA.denoise, backend.asarray(X, dtype), path, **options)
    assert backend.dtype(found.x) == dtype
    np.testing.assert_allclose(backend.numpy(found.x), expected.x, atol=1e-11 if dtype == "float64" else 3e-5)
    assert int(found.accepted) == expected.accepted
    np.testing.assert_allclose(np.asarray(found.t, float), expected.t, atol=1e-9 if dtype == "float64" else 3e-3)


def test_half_precision(backend):
    if backend.name not in {"jax", "torch"}:
        pytest.skip("no bfloat16")
    x = backend.asarray(X, "bfloat16")
    path = paths.velocity(INNER, two_nodes(INNER))
    found = solve_adaptive(lambda x, level: 0.5 * x, x, path, rtol=1e-2, atol=1e-2)
    exact = solve_adaptive(lambda x, level: 0.5 * x, X, path, rtol=1e-6, atol=1e-6)
    assert backend.dtype(found.x) == "bfloat16"
    np.testing.assert_allclose(backend.numpy(found.x), exact.x, rtol=0.03, atol=0.03)


def import_jax() -> Any:
    return pytest.importorskip("jax")


def test_levels_reach_the_denoiser_as_scalars_of_its_library(backend):
    def denoise(x, level):
        assert all(part.shape == () and str(part.dtype).endswith("float32") for part in level)
        assert all(type(part).__module__.split(".")[0] == type(x).__module__.split(".")[0] for part in level)
        return 0.5 * x

    solve_adaptive(denoise, backend.asarray(X, "float32"), paths.velocity(FLOW, two_nodes(FLOW)))


def test_inside_jit_the_records_are_filled_up():
    jax = import_jax()
    path = paths.velocity(FLOW, two_nodes(FLOW), centre=0.1)

    def denoise(x, level):
        return DATA.denoise(x, level), x[:, 0] ** 2

    options: dict[str, Any] = {"pair": PAIR_32, "has_aux": True, "rtol": 1e-3}
    eager = solve_adaptive(denoise, X, path, **options)
    run = jax.jit(lambda x: solve_adaptive(denoise, x, path, max_steps=40, **options))
    found = run(jax.numpy.asarray(X))
    np.testing.assert_allclose(found.x, eager.x, atol=1e-11)
    np.testing.assert_allclose(found.integral, eager.integral, atol=1e-11)
    assert found.integral.shape == (3,)
    n = int(eager.accepted)
    assert found.t.shape == (41,)
    assert found.errors.shape == (40,)
    np.testing.assert_allclose(found.t[: n + 1], eager.t, atol=1e-9)
    assert np.all(np.asarray(found.t[n + 1 :]) == 0.0)
    np.testing.assert_allclose(found.errors[:n], eager.errors, rtol=1e-5)
    assert np.all(np.asarray(found.errors[n:]) == 0.0)
    assert (int(found.accepted), int(found.rejected)) == (n, eager.rejected)
    assert int(found.evaluations) == eager.evaluations - 1, "the shape of the integral costs nothing when traced"
    assert bool(found.success)


def test_records_hide_what_was_rejected_last():
    """A rejected trial writes where the next accepted one will: nothing of it may remain."""
    jax = import_jax()
    path = paths.velocity(FLOW, two_nodes(FLOW))
    options: dict[str, Any] = {"first_step": 1.0, "rtol": 1e-5, "max_steps": 5, "pair": PAIR_32}
    found = jax.jit(lambda x: solve_adaptive(lambda x, level: jax.numpy.tanh(3.0 * x), x, path, **options))(
        jax.numpy.asarray(X)
    )
    assert not bool(found.success)
    assert int(found.rejected) >= 1
    accepted = int(found.accepted)
    assert np.all(np.asarray(found.errors[accepted:]) == 0.0)
    assert np.all(np.isnan(found.x))


def test_vmap_gives_each_sample_its_own_steps():
    jax = import_jax()
    path = paths.velocity(FLOW, two_nodes(FLOW))
    options: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5, "max_steps": 200, "pair": PAIR_32}
    x = np.array([[0.5], [-0.2], [0.01]])
    found = jax.jit(jax.vmap(lambda x: solve_adaptive(DATA.denoise, x, path, **options)))(jax.numpy.asarray(x))
    for i in range(len(x)):
        alone = solve_adaptive(DATA.denoise, x[i], path, **options)
        np.testing.assert_allclose(found.x[i], alone.x, atol=1e-10)
        assert int(found.accepted[i]) == alone.accepted
        assert int(found.evaluations[i]) == alone.evaluations
    assert len(set(np.asarray(found.accepted).tolist())) > 1


@pytest.mark.slow
def test_without_x64():
    jax = import_jax()
    path = paths.velocity(FLOW, two_nodes(FLOW))
    expected = solve_adaptive(DATA.denoise, X, path, rtol=1e-7, atol=1e-7).x
    with jax.enable_x64(False):
        run = jax.jit(lambda x: solve_adaptive(DATA.denoise, x, path, rtol=1e-4, atol=1e-4))
        found = run(jax.numpy.asarray(X, dtype="float32"))
        assert found.x.dtype == found.t.dtype == found.errors.dtype == "float32"
        np.testing.assert_allclose(found.x, expected, atol=1e-4)


@pytest.mark.slow
def test_grid_and_ends_may_be_traced():
    jax = import_jax()
    t = np.array([0.9, 0.1])
    expected = solve_adaptive(DATA.denoise, X, paths.velocity(FLOW, t)).x
    run = jax.jit(lambda t, x: solve_adaptive(DATA.denoise, x, paths.velocity(FLOW, t)).x)
    np.testing.assert_allclose(run(jax.numpy.asarray(t), jax.numpy.asarray(X)), expected, atol=1e-11)
    beside_numpy = jax.jit(lambda t: solve_adaptive(DATA.denoise, X, paths.velocity(FLOW, t)).x)
    np.testing.assert_allclose(beside_numpy(jax.numpy.asarray(t)), expected, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [-2.0, math.cos], ids=["constant", "varying"])
def test_semilinear_under_jit(rate):
    jax = import_jax()
    t, turn = np.array([0.0, 1.0]), rate is math.cos
    alone = paths.semilinear(t, np.cos if turn else rate)
    traced = paths.semilinear(jax.numpy.asarray(t), jax.numpy.cos if turn else rate)
    expected = solve_adaptive(lambda x, level: np.sin(x), X, alone, pair=PAIR_32).x
    found = jax.jit(lambda x: solve_adaptive(lambda x, level: jax.numpy.sin(x), x, traced, pair=PAIR_32).x)
    np.testing.assert_allclose(found(jax.numpy.asarray(X)), expected, atol=1e-11)


def directional(h: float, direction: np.ndarray) -> np.ndarray:
    """Central difference of a far more accurate solution."""
    path = paths.velocity(FLOW, two_nodes(FLOW))

    def run(x):
        return solve_adaptive(DATA.denoise, x, path, rtol=1e-9, atol=1e-9, max_steps=9000).x

    return (run(X + h * direction) - run(X - h * direction)) / (2.0 * h)


@pytest.mark.slow
def test_forward_mode_and_the_refusal_of_reverse_mode_under_jax():
    jax = import_jax()
    path = paths.velocity(FLOW, two_nodes(FLOW))

    def run(x):
        return solve_adaptive(DATA.denoise, x, path, rtol=1e-5, atol=1e-5, pair=PAIR_32).x

    direction = np.array([[1.0], [0.5], [-2.0]])
    _, tangent = jax.jit(lambda x, v: jax.jvp(run, (x,), (v,)))(jax.numpy.asarray(X), jax.numpy.asarray(direction))
    np.testing.assert_allclose(tangent, directional(1e-3, direction), atol=3e-5)
    with pytest.raises(ValueError, match="while_loop"):
        jax.grad(lambda x: run(x).sum())(jax.numpy.asarray(X))


def test_reverse_mode_under_torch():
    torch = pytest.importorskip("torch")
    x = torch.asarray(X).requires_grad_()
    solution = solve_adaptive(DATA.denoise, x, paths.velocity(FLOW, two_nodes(FLOW)), rtol=1e-6, atol=1e-6)
    solution.x.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), directional(1e-3, np.ones_like(X)), atol=3e-5)
    assert not solution.x.isnan().any()


@pytest.mark.slow
def test_reverse_mode_under_jax_on_the_nodes_found():
    jax = import_jax()
    nodes = np.asarray(solve_adaptive(DATA.denoise, X, paths.velocity(FLOW, two_nodes(FLOW)), rtol=1e-5, atol=1e-5).t)
    table = runge_kutta(paths.velocity(FLOW, nodes), PAIR_43.method)
    gradient = jax.grad(lambda x: solve(DATA.denoise, x, table).sum())(jax.numpy.asarray(X))
    np.testing.assert_allclose(gradient, directional(1e-3, np.ones_like(X)), atol=3e-5)


# -- refusals ---------------------------------------------------------------------------------------------------------

PATH = paths.velocity(FLOW, np.array([0.9, 0.1]))


def test_too_few_steps():
    with pytest.raises(RuntimeError, match=r"max_steps must suffice .* got 3: t = 0\.\d+ was reached with"):
        solve_adaptive(DATA.denoise, X, PATH, max_steps=3)
    assert solve_adaptive(DATA.denoise, X, PATH, rtol=1.0, atol=1.0, first_step=1.0, max_steps=1).accepted == 1


@pytest.mark.parametrize(
    "path",
    [
        paths.x0(INNER, two_nodes(INNER), eta=1.0),
        paths.ancestral(paths.x0(INNER, two_nodes(INNER))),
        paths.churn(paths.x0(INNER, two_nodes(INNER)), 0.1),
    ],
    ids=lambda path: path.name,
)
def test_paths_with_noise(path):
    with pytest.raises(ValueError, match="path must be an ODE path whose steps join"):
        solve_adaptive(DATA.denoise, X, path)


def test_infinite_coordinates_and_a_singular_start():
    for t in ([1.0, 0.5], [0.5, 0.0]):
        with pytest.raises(ValueError, match="path must have a finite coordinate at both ends"):
            solve_adaptive(DATA.denoise, X, paths.x0(FLOW, np.array(t)))
    path = paths.velocity(FLOW, two_nodes(FLOW))
    back = dataclasses.replace(path, first=path.last, last=path.first)
    with pytest.raises(ValueError, match="path must start at sigma > 0"):
        solve_adaptive(DATA.denoise, X, back)
    with pytest.raises(TypeError, match="path must be a Path, got list"):
        solve_adaptive(DATA.denoise, X, [0.9, 0.1])


@given(st.floats(max_value=0.0, exclude_max=True) | st.just(math.nan) | st.just(math.inf))
def test_tolerances_out_of_range(value):
    for name in ("rtol", "atol"):
        with pytest.raises(ValueError, match=f"{name} must be a finite number >= 0"):
            solve_adaptive(DATA.denoise, X, PATH, **{name: value})


@given(st.floats().filter(lambda v: not 0.0 < v <= 1.0))
def test_first_steps_out_of_range(value):
    with pytest.raises(ValueError, match="first_step must be"):
        solve_adaptive(DATA.denoise, X, PATH, first_step=value)


@given(st.integers(max_value=0) | st.booleans() | st.floats() | st.none())
def test_max_steps_out_of_range(value):
    with pytest.raises(ValueError, match="max_steps must be an integer >= 1"):
        solve_adaptive(DATA.denoise, X, PATH, max_steps=value)


def test_other_refusals():
    with pytest.raises(ValueError, match="rtol or atol must be > 0"):
        solve_adaptive(DATA.denoise, X, PATH, rtol=0.0, atol=0.0)
    with pytest.raises(ValueError, match="norm must be one of"):
        solve_adaptive(DATA.denoise, X, PATH, norm="max")
    with pytest.raises(ValueError, match="denoise must return an array of the shape of x"):
        solve_adaptive(lambda x, level: x[:1], X, PATH)
    with pytest.raises(ValueError, match="got float"):
        solve_adaptive(lambda x, level: 1.0, X, PATH)
    with pytest.raises(TypeError, match="x must have a floating-point dtype"):
        solve_adaptive(DATA.denoise, np.array([[1]]), PATH)
    with pytest.raises(ValueError, match="pair must evaluate before the end of the step"):
        solve_adaptive(DATA.denoise, X, PATH, pair=Pair(HEUN, (0,)))
    history = Pair(Method("two-step", 2, (0.0,), ((0, -1),)), (0,))
    for pair in (history, PAIR_32.method):
        with pytest.raises(ValueError, match="pair must be a Pair"):
            solve_adaptive(DATA.denoise, X, PATH, pair=pair)
    assert solve_adaptive(lambda x, level: 0.5 * x, 0.3, PATH).x.shape == ()


@pytest.mark.parametrize("norm", ["batch", "sample"])
@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_no_samples_take_few_steps(name, norm):
    xp = pytest.importorskip({"jax": "jax.numpy"}.get(name, name))
    path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.0]))
    for shape in ((0, 3), (2, 0)):
        found = solve_adaptive(lambda x, level: 0.5 * x, xp.zeros(shape), path, norm=norm)
        assert tuple(found.x.shape) == shape
        assert int(found.rejected) == 0


@pytest.mark.parametrize(
    "controller, error, message",
    [
        (None, TypeError, "controller must be a Controller, got NoneType"),
        (Controller(safety=math.nan), ValueError, "controller.safety must be finite, got nan"),
        (Controller(safety=-1.0), ValueError, "controller must have safety > 0"),
        (Controller(least=0.0), ValueError, "0 < least < 1 <= largest"),
        (Controller(least=1.0), ValueError, "0 < least < 1 <= largest"),
        (Controller(largest=0.9), ValueError, "0 < least < 1 <= largest"),
        (Controller(integral=0.0), ValueError, "integral > 0"),
        (Controller(proportional="x"), TypeError, "controller.proportional must be real numbers"),  # type: ignore[arg-type]
    ],
)
def test_controllers_that_cannot_work(controller, error, message):
    path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.0]))
    with pytest.raises(error, match=message):
        solve_adaptive(lambda x, level: 0.5 * x, np.ones(2), path, controller=controller)


def test_a_complex_output_is_no_denoiser():
    path = paths.velocity(schedules.rectified_flow(), np.array([1.0, 0.0]))
    with pytest.raises(TypeError, match=r"denoise must return a real array of the library of x, got .*complex128"):
        solve_adaptive(lambda x, level: 1j * x, np.ones(2), path)


@pytest.mark.claim("adaptive-integral")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_the_integral_is_summed_in_single_precision_at_least(library):
    """200 steps of length 1/200 from a half-precision output of 1: its own sums would be off by 1e-3 and more."""
    xp = pytest.importorskip("jax.numpy" if library == "jax" else library)

    def denoise(x, level):
        return 0.0 * x, 0.0 * xp.asarray(x, dtype=xp.float16) + 1.0

    path = paths.semilinear(np.asarray([0.0, 1.0]))
    still = Controller(largest=1.0, safety=0.9)
    found = solve_adaptive(
        denoise, xp.asarray(np.zeros(2), dtype=xp.float32), path, has_aux=True, first_step=1 / 200, controller=still
    )
    assert str(found.integral.dtype).rpartition(".")[2] == "float32"
    assert int(found.accepted) > 150
    np.testing.assert_allclose(np.asarray(found.integral), 1.0, rtol=1e-5)


def test_what_is_no_pair_is_named():
    path = paths.velocity(schedules.rectified_flow(), np.asarray([0.9, 0.1]))
    for output, got in ((np.zeros(2), "ndarray"), ((np.zeros(2),), "tuple"), ([np.zeros(2)] * 2, "list")):
        with pytest.raises(ValueError, match=rf"denoise must return a pair \(x0_hat, aux\) with has_aux, got {got}"):
            solve_adaptive(lambda x, level, output=output: output, np.zeros(2), path, has_aux=True)
    with pytest.raises(TypeError, match="aux must be real numbers"):
        solve_adaptive(lambda x, level: (x, x * 1j), np.zeros(2), path, has_aux=True)


def test_a_denoiser_is_something_to_call():
    path = paths.velocity(schedules.rectified_flow(), np.asarray([0.9, 0.1]))
    with pytest.raises(TypeError, match="denoise must be a Callable, got NoneType"):
        solve_adaptive(None, np.zeros(2), path)
