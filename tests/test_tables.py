"""From paths and methods to tables: weights, the one-state identity, registers, records."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import reference_solvers as reference

from diffnum import paths, schedules
from diffnum.solvers import (
    EULER,
    HEUN,
    KROGSTAD,
    KUTTA_3,
    MIDPOINT,
    RUNGE_KUTTA_3,
    STIFF_3,
    STIFF_4,
    Method,
    Table,
    adams_bashforth,
    assemble,
    multistep,
    runge_kutta,
    solve,
    two_stage,
)

ROUNDING = 2e-13
"""Weights come from closed forms or quadrature in float64, divided differences of graded nodes cost a digit or two."""

ETAS = np.array([0.3, 1.0, 0.0, 0.7, 1.2, 0.5, 0.9, 0.4, 0.6])
"""One eta a step, 0 and more than 1 among them."""


def badly_graded(seed: int = 3, steps: int = 9) -> np.ndarray:
    """Log-SNRs from -1.5 to 2 whose step ratios go up to 50."""
    widths = 50.0 ** np.random.default_rng(seed).uniform(0.0, 1.0, steps)
    return np.concatenate([[-1.5], -1.5 + 3.5 * np.cumsum(widths) / np.sum(widths)])


LOG_SNR = badly_graded()
FLOW, VP, EDM = schedules.rectified_flow(), schedules.vp_linear(), schedules.edm(sigma_min=0.01)


def shrinking(t: Any) -> Any:
    return -1.3 * t - 0.4 * np.sin(t)


@dataclass(frozen=True)
class Case:
    """A path, the formula of each of its steps, and its levels."""

    path: paths.Path
    formulas: list[reference.Formula]
    levels: list[reference.Point]


def case(name: str) -> Case:
    """The paths of the library on badly graded nodes, and beside them their formulas."""
    if name.startswith("semilinear"):
        t = (
            np.cumsum(np.concatenate([[0.2], np.diff(LOG_SNR)]))
            if "forward" in name
            else 2.0 - np.cumsum(np.diff(LOG_SNR))
        )
        integral = shrinking if "varying" in name else (lambda s: -1.3 * s)
        path = paths.semilinear(t, integral=shrinking) if "varying" in name else paths.semilinear(t, -1.3)
        return Case(path, [reference.semilinear_formula(integral)] * path.steps, [(float(s), 1.0, 1.0) for s in t])
    build = {
        "x0": (VP, paths.x0, {}, lambda eta: reference.x0_formula("vp")),
        "x0 eta": (FLOW, paths.x0, {"eta": ETAS}, lambda eta: reference.x0_formula("flow", eta)),
        "x0 ratio": (EDM, paths.x0, {"coordinate": "ratio"}, lambda eta: reference.x0_ratio_formula("ve")),
        "x0 ratio eta": (
            FLOW, paths.x0, {"coordinate": "ratio", "eta": ETAS}, lambda eta: reference.x0_ratio_formula("flow", eta)
        ),
        "noise": (FLOW, paths.noise, {}, lambda eta: reference.noise_formula("flow")),
        "noise ratio": (VP, paths.noise, {"coordinate": "ratio"}, lambda eta: reference.noise_ratio_formula("vp")),
        "velocity": (FLOW, paths.velocity, {}, lambda eta: reference.velocity_formula("flow")),
        "velocity centre": (
            VP, paths.velocity, {"sigma_data": 0.6, "centre": 0.4},
            lambda eta: reference.velocity_formula("vp", 0.6, 0.4),
        ),
        "velocity eta": (
            EDM, paths.velocity, {"sigma_data": 0.6, "centre": -0.3, "eta": ETAS},
            lambda eta: reference.velocity_formula("ve", 0.6, -0.3, eta),
        ),
    }  # fmt: skip
    schedule, constructor, options, formula = build[name]
    t = schedule.time(LOG_SNR)
    level = schedule.level(t)
    path = constructor(schedule, t, **options)
    etas = ETAS if "eta" in options else np.zeros(path.steps)
    return Case(
        path,
        [formula(float(eta)) for eta in etas],
        [(float(a), float(b), float(c)) for a, b, c in zip(*level, strict=True)],
    )


CASES = [
    "x0", "x0 eta", "x0 ratio", "x0 ratio eta", "noise", "noise ratio", "velocity", "velocity centre", "velocity eta",
    "semilinear forward", "semilinear backward", "semilinear varying forward", "semilinear varying backward",
]  # fmt: skip


def by_source(table: Table) -> list[dict[int, float]]:
    """For each row, the weight of each earlier row's value: registers resolved. A weight on an empty one fails."""
    holder: dict[int, int] = {}
    rows = []
    for r in range(table.evaluations):
        holder[int(table.slot[r])] = r
        found = {}
        for k, w in enumerate(np.asarray(table.weights)[r]):
            if w != 0.0:
                found[holder[k]] = float(w)
        rows.append(found)
    return rows


def of_whole_step(table: Table, n: int) -> list[tuple[float, dict[int, float]]]:
    """Factor of the step's first state and weights of the values, accumulated up to each row of step n."""
    begin = 0 if n == 0 else int(table.end[n - 1]) + 1
    sources = by_source(table)
    factor, weights, states = 1.0, {}, []
    for r in range(begin, int(table.end[n]) + 1):
        carry = float(table.carry[r])
        factor *= carry
        weights = {j: carry * weights.get(j, 0.0) + sources[r].get(j, 0.0) for j in {*weights, *sources[r]}}
        states.append((factor, weights))
    return states


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("solvers-weights", "solvers-interpolant", "solvers-adams-bashforth")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_weights_are_integrals_of_the_lagrange_basis(name, order):
    given = case(name)
    plan = adams_bashforth(given.path, order, start="ramp")
    rows = by_source(plan)
    assert plan.steps == plan.evaluations == given.path.steps
    for n, (a, b) in enumerate(zip(given.levels, given.levels[1:], strict=False)):
        formula, sources = given.formulas[n], list(range(max(0, n - order + 1), n + 1))
        expected = reference.lagrange_weights(formula, [formula.coordinate(given.levels[j]) for j in sources], a, b)
        scale = sum(abs(w) for w in expected)
        assert set(rows[n]) == set(sources)
        for j, w in zip(sources, expected, strict=True):
            assert abs(rows[n][j] - w) <= ROUNDING * scale
        assert float(plan.carry[n]) == pytest.approx(formula.factor(a, b), rel=ROUNDING)
        if given.path.stochastic:
            assert float(plan.noise[n]) == pytest.approx(formula.noise(a, b), rel=1e-12, abs=1e-14)
    assert given.path.stochastic == (plan.noise is not None)


@pytest.mark.claim("solvers-exactness")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_weights_are_exact_below_the_order_and_not_at_it(name, order):
    """K has one sign, and so has the product of (s - s_j) over a step: at m = order the residual cannot vanish."""
    given = case(name)
    rows = by_source(adams_bashforth(given.path, order, start="ramp"))
    for n in range(order - 1, given.path.steps):
        a, b, formula = given.levels[n], given.levels[n + 1], given.formulas[n]
        origin, stop = formula.coordinate(a), formula.coordinate(b)
        nodes = {j: formula.coordinate(given.levels[j]) - origin for j in rows[n]}
        for m in range(order + 1):
            total = sum(w * nodes[j] ** m for j, w in rows[n].items())
            size = sum(abs(w) * abs(nodes[j]) ** m for j, w in rows[n].items())
            integral = reference.integrate(lambda s, m=m: formula.kernel(s, b) * (s - origin) ** m, origin, stop)
            if m < order:
                assert abs(total - integral) <= ROUNDING * max(size, abs(integral))
            else:
                missing = reference.integrate(
                    lambda s: formula.kernel(s, b) * np.prod([s - origin - u for u in nodes.values()], axis=0),
                    origin,
                    stop,
                )
                assert integral - total == pytest.approx(missing, rel=1e-6, abs=1e-12 * size)
                assert abs(missing) > 1e-12 * size


@pytest.mark.claim("solvers-exactness", "solvers-fixed-weights")
def test_fixed_weights_are_not_exact_on_a_graded_grid():
    given = case("noise ratio")
    formula, n = given.formulas[0], 4
    before, a, b = given.levels[n - 1 : n + 2]
    h, back = formula.coordinate(b) - formula.coordinate(a), formula.coordinate(before) - formula.coordinate(a)
    kernel = b[1]
    slope = kernel * h**2 / 2.0
    variable = by_source(adams_bashforth(given.path, 2))[n]
    assert variable[n - 1] * back == pytest.approx(slope, rel=ROUNDING)
    fixed = -0.5 * kernel * h
    assert abs(fixed * back - slope) > 0.1 * abs(slope)


@pytest.mark.claim("solvers-newton")
@pytest.mark.parametrize("order", [2, 3])
def test_weights_in_divided_differences(order):
    """On x0 in lambda: I_0 D_n + I_1 D[n,n-1] + (I_2 + h_0 I_1) D[n,n-1,n-2], with I_m the moments about s_n."""
    given = case("x0")
    n, formula = 6, given.formulas[0]
    a, b = given.levels[n : n + 2]
    origin, h = formula.coordinate(a), formula.coordinate(b) - formula.coordinate(a)
    back = [origin - formula.coordinate(given.levels[n - j]) for j in (1, 2)]
    moments = [
        reference.integrate(lambda s, m=m: formula.kernel(s, b) * (s - origin) ** m, origin, origin + h)
        for m in range(3)
    ]
    values = np.array([0.3, -1.1, 2.0])
    first = (values[0] - values[1]) / back[0]
    second = (first - (values[1] - values[2]) / (back[1] - back[0])) / back[1]
    expected = moments[0] * values[0] + moments[1] * first
    if order == 3:
        expected += (moments[2] + back[0] * moments[1]) * second
    row = by_source(adams_bashforth(given.path, order, start="ramp"))[n]
    assert sum(w * values[n - j] for j, w in row.items()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.claim("solvers-half-weight")
def test_half_weight_of_the_second_moment_differs_by_a_twelfth():
    """DPM-Solver++(2M) takes h I_0/2 for I_1: the difference is kappa h^3/12 to leading order, with I in units of K."""
    for kappa in (1.0, -2.0, 5.0):
        gaps = []
        for h in (0.02, 0.01):
            kernel = lambda s, h=h: np.exp(kappa * (s - h))  # noqa: E731
            zeroth, first = (reference.integrate(lambda s, m=m: kernel(s) * s**m, 0.0, h) for m in (0, 1))
            gaps.append((first - h * zeroth / 2.0) / (kappa * h**3 / 12.0))
        assert gaps[1] == pytest.approx(1.0, abs=0.03)
        assert abs(gaps[1] - 1.0) < 0.6 * abs(gaps[0] - 1.0)


# -- Runge-Kutta ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("solvers-one-state", "solvers-runge-kutta")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("label", "method"), [("midpoint", MIDPOINT), ("heun", HEUN), ("rk3", RUNGE_KUTTA_3)])
def test_stages_turned_round_are_the_stages_from_the_first_state(name, label, method):
    """Rows carry the state from stage to stage; accumulated, they are the factors and weights from the step's start."""
    given = case(name)
    table = runge_kutta(given.path, method)
    assert table.evaluations == given.path.steps * len(method.stages)
    for n, (a, b) in enumerate(zip(given.levels, given.levels[1:], strict=False)):
        formula = given.formulas[n]
        begin, end = formula.coordinate(a), formula.coordinate(b)
        fractions = reference.STAGES[label]
        goals = [*[formula.point(begin + c * (end - begin)) for c in fractions[1:]], b]
        first = n * len(method.stages)
        for m, (factor, weights) in enumerate(of_whole_step(table, n)):
            through = reference.THROUGH[label][m]
            places = [begin + fractions[i] * (end - begin) for i in through]
            expected = dict(zip(through, reference.lagrange_weights(formula, places, a, goals[m]), strict=True))
            scale = sum(map(abs, expected.values()))
            assert factor == pytest.approx(formula.factor(a, goals[m]), rel=1e-12)
            for i in range(len(fractions)):
                assert abs(weights.get(first + i, 0.0) - expected.get(i, 0.0)) <= 1e-12 * scale
            level = [float(part[first + m]) for part in table.level]
            here = a if m == 0 else goals[m - 1]
            assert level[1:] == pytest.approx(here[1:], rel=1e-12)


@pytest.mark.claim("solvers-stiff-order")
@pytest.mark.parametrize("z", [-1e5, -30.0, -1.0, -1e-3, 0.5])
def test_stiff_order_conditions(z):
    """sum b_i c_i^j/j! = phi_{j+1}(z) and row sums c_i phi_1(c_i z), on mpmath's phi; the weak variant fails them."""
    mpmath = pytest.importorskip("mpmath")

    def phi(k: int, z: float) -> float:
        with mpmath.workdps(60):
            terms = sum(mpmath.mpf(z) ** j / mpmath.factorial(j) for j in range(k))
            return float((mpmath.exp(mpmath.mpf(z)) - terms) / mpmath.mpf(z) ** k)

    path = paths.semilinear(np.array([0.0, 1.0]), z)
    for method, strict in ((EULER, 1), (MIDPOINT, 2), (HEUN, 2), (RUNGE_KUTTA_3, 2)):
        table = runge_kutta(path, method)
        states = of_whole_step(table, 0)
        c = np.asarray(method.stages)
        b = np.array([states[-1][1].get(i, 0.0) for i in range(len(c))])
        for j in range(strict):
            assert np.sum(b * c**j) / math.factorial(j) == pytest.approx(phi(j + 1, z), rel=1e-11)
        for m in range(1, len(c)):
            assert sum(states[m - 1][1].values()) == pytest.approx(c[m] * phi(1, c[m] * z), rel=1e-11)
        if -100.0 < z < -0.1:
            # one more condition would be one order more: it fails
            assert np.sum(b * c**strict) / math.factorial(strict) != pytest.approx(phi(strict + 1, z), rel=1e-2)
    if abs(z) > 0.1:
        # b_2 = phi_1/(2 c_2), the weak variant, fails the second condition
        assert phi(1, z) / 2.0 != pytest.approx(phi(2, z), rel=1e-2)
    # DPM-Solver-3 as published: b_3 = phi_2/c_3, a_32 = (c_3^2/c_2) phi_2(c_3 z)
    states = of_whole_step(runge_kutta(path, RUNGE_KUTTA_3), 0)
    assert states[-1][1][2] == pytest.approx(1.5 * phi(2, z), rel=1e-11)
    assert states[-1][1].get(1, 0.0) == pytest.approx(0.0, abs=1e-12 * phi(1, z))
    assert states[1][1][1] == pytest.approx(4.0 / 3.0 * phi(2, 2.0 * z / 3.0), rel=1e-11)


@pytest.mark.claim("solvers-stiff-order")
def test_weak_order_of_the_published_third_order_method():
    """At z = 0 the weights of RUNGE_KUTTA_3 satisfy the four classical conditions of order 3."""
    table = runge_kutta(paths.semilinear(np.array([0.0, 1.0])), RUNGE_KUTTA_3)
    states = of_whole_step(table, 0)
    b = np.array([states[-1][1].get(i, 0.0) for i in range(3)])
    c = np.array([0.0, 1 / 3, 2 / 3])
    assert [b.sum(), b @ c, b @ c**2] == pytest.approx([1.0, 1 / 2, 1 / 3], abs=1e-14)
    assert b[2] * states[1][1][1] * c[1] == pytest.approx(1 / 6, abs=1e-14)


# -- stages that no Lagrange polynomial makes, and all stiff conditions -----------------------------------------------


def exact_phi(k: int, z: float) -> float:
    mpmath = pytest.importorskip("mpmath")
    if z == 0.0:
        return 1.0 / math.factorial(k)
    with mpmath.workdps(60):
        terms = sum(mpmath.mpf(z) ** j / mpmath.factorial(j) for j in range(k))
        return float((mpmath.exp(mpmath.mpf(z)) - terms) / mpmath.mpf(z) ** k)


def tableau(method: Method, z: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """c, a and b of one step of length 1 on y' = z y + f; row i of a leads to stage i."""
    states = of_whole_step(runge_kutta(paths.semilinear(np.array([0.0, 1.0]), z), method), 0)
    count = len(method.stages)
    rows = np.array([[weights.get(j, 0.0) for j in range(count)] for _, weights in states])
    return np.asarray(method.stages), np.vstack([np.zeros(count), rows[:-1]]), rows[-1]


CLASSICAL = {
    "kutta": (KUTTA_3, [[0, 0, 0], [1 / 2, 0, 0], [-1, 2, 0]], [1 / 6, 4 / 6, 1 / 6]),
    "krogstad": (
        KROGSTAD, [[0] * 4, [1 / 2, 0, 0, 0], [0, 1 / 2, 0, 0], [0, 0, 1, 0]], [1 / 6, 2 / 6, 2 / 6, 1 / 6]
    ),
    "alpha 2/3": (two_stage(2 / 3), [[0, 0], [2 / 3, 0]], [1 / 4, 3 / 4]),
    "alpha 2/3 weak": (two_stage(2 / 3, weak=True), [[0, 0], [2 / 3, 0]], [1 / 4, 3 / 4]),
}  # fmt: skip


@pytest.mark.claim("samplers-polynomials")
@pytest.mark.parametrize("name", CLASSICAL)
def test_without_a_linear_part_they_are_the_classical_methods(name):
    method, a, b = CLASSICAL[name]
    _, found_a, found_b = tableau(method, 0.0)
    np.testing.assert_allclose(found_a, a, atol=1e-15)
    np.testing.assert_allclose(found_b, b, atol=1e-15)


@pytest.mark.claim("samplers-polynomials")
@pytest.mark.parametrize("z", [-30.0, -1.0, -1e-3, 0.5])
def test_krogstad_and_cox_matthews_as_published(z):
    """Krogstad (2005) in phi-functions; ETD3RK of Cox and Matthews (2002) in exponentials."""
    phi = {(k, c): exact_phi(k, c * z) for k in (1, 2, 3) for c in (0.5, 1.0)}
    _, a, b = tableau(KROGSTAD, z)
    expected = np.zeros((4, 4))
    expected[1, 0] = phi[1, 0.5] / 2
    expected[2, :2] = phi[1, 0.5] / 2 - phi[2, 0.5], phi[2, 0.5]
    expected[3, [0, 2]] = phi[1, 1.0] - 2 * phi[2, 1.0], 2 * phi[2, 1.0]
    p1, p2, p3 = (phi[k, 1.0] for k in (1, 2, 3))
    np.testing.assert_allclose(a, expected, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(b, [p1 - 3 * p2 + 4 * p3, *[2 * p2 - 4 * p3] * 2, 4 * p3 - p2], rtol=1e-10, atol=1e-13)
    if abs(z) > 0.1:
        _, a, b = tableau(KUTTA_3, z)
        full, half = math.exp(z), math.exp(z / 2)
        np.testing.assert_allclose(a[2], [-(full - 1) / z, 2 * (full - 1) / z, 0.0], rtol=1e-11)
        np.testing.assert_allclose(a[1], [(half - 1) / z, 0.0, 0.0], rtol=1e-11)
        cox = [-4 - z + full * (4 - 3 * z + z**2), 4 * (2 + z + full * (z - 2)), -4 - 3 * z - z**2 + full * (4 - z)]
        np.testing.assert_allclose(b, np.array(cox) / z**3, rtol=1e-11)


@pytest.mark.claim("samplers-stiff")
@pytest.mark.parametrize("z", [-1e5, -30.0, -1.0, -1e-3, 0.5])
@pytest.mark.parametrize(
    ("method", "strict"),
    [(two_stage(0.4), 2), (two_stage(0.4, weak=True), 1), (KUTTA_3, 1), (KROGSTAD, 3), (STIFF_3, 3), (STIFF_4, 4)],
    ids=["two", "two weak", "kutta", "krogstad", "stiff 3", "stiff 4"],
)  # fmt: skip
def test_all_stiff_conditions(method, strict, z):
    """Of the weights at the end, and of the stages they rest on; the method that claims more fails one of them."""
    # the places are a choice
    assert STIFF_3.stages == (0.0, 0.25, 0.5, 0.75)
    assert STIFF_4.stages == (0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.9)
    c, a, b = tableau(method, z)
    scale = np.sum(np.abs(b))

    def psi(q: int) -> np.ndarray:
        """What the stages miss of degree q - 1."""
        made = a @ c ** (q - 1) / math.factorial(q - 1)
        return np.array([ci**q * exact_phi(q, ci * z) for ci in c]) - made

    def misses(p: int) -> float:
        """Largest violation of the conditions of order p."""
        ends = [b @ c**j / math.factorial(j) - exact_phi(j + 1, z) for j in range(p)]
        stages = [b * psi(q) for q in range(1, p)]
        inner = [np.abs(b) @ np.abs(a) @ np.abs(psi(q)) for q in range(1, p - 1)]
        return float(max(np.max(np.abs(part)) for part in (*ends, *stages, *inner)) / scale)

    weights_only = method in {KROGSTAD, KUTTA_3}
    if weights_only:
        # Krogstad's weights at the end are right up to order 3, but they rest on an Euler stage
        ends = [abs(b @ c**j / math.factorial(j) - exact_phi(j + 1, z)) for j in range(3)]
        assert max(ends) <= 1e-11 * scale
        assert z < -1e4 or misses(3) > 1e-8
    else:
        assert misses(strict) <= 1e-11
        if -100.0 < z < -0.1:
            assert misses(strict + 1) > 1e-4


@pytest.mark.claim("samplers-rule")
def test_stages_in_log_snr_on_another_coordinate():
    """The stage lies at the geometric mean of sigma/alpha; its weights are those of the path up to there."""
    path = paths.noise(FLOW, FLOW.time(LOG_SNR), coordinate="ratio")
    method = Method("in log-SNR", 2, (0.0, 0.5), ((0,), (0, 1)), clock="log_snr")
    table = runge_kutta(path, method)
    found = np.asarray(table.level.log_snr)[1::2]
    np.testing.assert_allclose(found, (LOG_SNR[1:] + LOG_SNR[:-1]) / 2.0, atol=1e-13)
    rho = np.exp(-LOG_SNR)
    first, _ = of_whole_step(table, 3)[0][1][6], None
    inside = np.exp(-found[3])
    assert first == pytest.approx(float(table.level.alpha[7]) * (inside - rho[3]), rel=1e-12)
    last = of_whole_step(table, 3)[1][1]
    h, place = rho[4] - rho[3], (inside - rho[3]) / (rho[4] - rho[3])
    alpha = float(FLOW.alpha(FLOW.time(LOG_SNR[4])))
    assert last[7] == pytest.approx(alpha * h / (2.0 * place), rel=1e-11)
    assert last[6] == pytest.approx(alpha * h * (1.0 - 1.0 / (2.0 * place)), rel=1e-11)
    half = np.asarray(runge_kutta(path, MIDPOINT).level.sigma / runge_kutta(path, MIDPOINT).level.alpha)[1::2]
    np.testing.assert_allclose(half, (rho[1:] + rho[:-1]) / 2.0, rtol=1e-12)


@pytest.mark.claim("samplers-independent")
def test_noise_at_the_end_is_that_of_the_step():
    path = paths.x0(VP, VP.time(LOG_SNR), eta=ETAS)
    table = runge_kutta(path, RUNGE_KUTTA_3._replace(noise="end"))
    whole = path.propagate(path.start, path.stop)[1]
    np.testing.assert_array_equal(np.asarray(table.noise).reshape(-1, 3)[:, :2], 0.0)
    np.testing.assert_allclose(np.asarray(table.noise)[2::3], whole, rtol=1e-14)
    exact = np.asarray(runge_kutta(path, RUNGE_KUTTA_3).noise).reshape(-1, 3)
    assert np.all(exact[ETAS > 0.0] > 0.0)
    np.testing.assert_allclose(runge_kutta(path, RUNGE_KUTTA_3).weights, table.weights, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corrector": ()}, "distinct values at or before its start"),
        ({"corrector": (0, 0)}, "distinct values at or before its start"),
        ({"corrector": (1, 0)}, "distinct values at or before its start"),
        ({"corrector": tuple(-j for j in range(6))}, "at most 5 values, got 6"),
        ({"basis": (None, None)}, "a polynomial for each node or None"),
        ({"basis": (((1.0,), (2.0,)),)}, "a polynomial for each node or None"),
        ({"basis": (((),),)}, "a polynomial for each node or None"),
        ({"clock": "sigma"}, "clock must be one of"),
        ({"noise": "none"}, "noise must be one of"),
    ],
)
def test_methods_that_do_not_fit(change, message):
    path = paths.x0(VP, VP.time(LOG_SNR))
    with pytest.raises(ValueError, match=message):
        assemble(path, [EULER] * 6 + [EULER._replace(**change)] * 3)


def test_a_corrector_needs_the_steps_it_looks_at():
    path = paths.x0(VP, VP.time(LOG_SNR))
    for corrector, first in (((0,), 1), ((0, -1), 1), ((0, -1, -2), 2)):
        corrected = EULER._replace(corrector=corrector)
        assert corrected.history == first
        with pytest.raises(ValueError, match=f"it needs {first} earlier steps"):
            assemble(path, [EULER] * (first - 1) + [corrected] * (10 - first))
        assert assemble(path, [EULER] * first + [corrected] * (9 - first)).evaluations == 9
    with pytest.raises(ValueError, match="gaps between them"):
        assemble(paths.churn(path, 0.1), [EULER] + [EULER._replace(corrector=(0, -1))] * 8)


@pytest.mark.claim("samplers-corrector")
def test_a_step_after_a_runge_kutta_step_can_be_corrected():
    """The correction of a midpoint step refers to its stage: w - v with v at the stage of the step before."""
    path = paths.noise(VP, VP.time(LOG_SNR), coordinate="ratio")
    rho = np.exp(-LOG_SNR)
    table = assemble(path, [EULER, MIDPOINT, *[EULER._replace(corrector=(0, -1))] * 7])
    row = by_source(table)[3]
    alpha = np.asarray(path.stop.alpha)
    carry = float(table.carry[3])
    h = rho[2] - rho[1]
    # corrected: h/2 of f at both ends; predicted: h of the stage
    assert row[3] == pytest.approx(carry * alpha[1] * h / 2.0 + alpha[2] * (rho[3] - rho[2]), rel=1e-12)
    assert row[1] == pytest.approx(carry * alpha[1] * h / 2.0, rel=1e-11)
    assert row[2] == pytest.approx(-carry * alpha[1] * h, rel=1e-12)


def test_a_ladder_survives_infinite_ends():
    """From alpha = 0 and to sigma = 0 on x0 in log-SNR: order 1 there; the last step forgets what it corrects."""
    t = np.array([1.0, 0.8, 0.6, 0.3, 0.0])
    path = paths.x0(FLOW, t)
    ladder = (EULER, EULER._replace(corrector=(0, -1)))
    table = multistep(path, ladder)
    assert [len(row) for row in by_source(table)] == [1, 1, 2, 1]
    assert np.all(np.isfinite(table.weights))
    assert float(table.carry[-1]) == 0.0


# -- registers and structure ------------------------------------------------------------------------------------------


def random_values_agree(table: Table, seed: int = 0) -> None:
    """Running the rows with all values kept equals running them with registers."""
    values = np.random.default_rng(seed).standard_normal(table.evaluations)
    calls = iter(values)
    out = solve(lambda x, level: 0.0 * x + next(calls), np.array(0.7), table._replace(target=None, noise=None))
    y = 0.7
    for r, sources in enumerate(by_source(table)):
        y = float(table.carry[r]) * y + sum(w * values[j] for j, w in sources.items())
    assert float(out) == pytest.approx(y, rel=1e-12)


PLANS = {
    "ab4 with its start": (RUNGE_KUTTA_3, RUNGE_KUTTA_3, 3, 4, 4, 4, 4, 4, 4),
    "history past Runge-Kutta steps": (MIDPOINT, 2, HEUN, 3, RUNGE_KUTTA_3, 4, 2, EULER, 4),
    "orders up and down": (1, 2, 1, 3, 4, 2, 2, 3, 4),
}


def plan_of(name: str) -> list[Method]:
    bashforth = [Method(f"ab{k}", k, (0.0,), (tuple(-j for j in range(k)),)) for k in range(1, 5)]
    return [bashforth[m - 1] if isinstance(m, int) else m for m in PLANS[name]]


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("name", PLANS)
def test_registers_hold_a_value_until_its_last_use(name):
    """Stage values do not push out the values of earlier steps: every weight meets the value it was made for."""
    given = case("x0")
    plan = plan_of(name)
    table = assemble(given.path, plan)
    first_rows = np.concatenate([[0], table.end[:-1] + 1])
    for n, method in enumerate(plan):
        _, weights = of_whole_step(table, n)[-1]
        formula = given.formulas[n]
        begin, end = (formula.coordinate(given.levels[i]) for i in (n, n + 1))
        sources, places = [], []
        for j in method.nodes[-1]:
            sources.append(int(first_rows[n] + j if j >= 0 else first_rows[n + j]))
            places.append(
                begin + method.stages[j] * (end - begin) if j >= 0 else formula.coordinate(given.levels[n + j])
            )
        expected = reference.lagrange_weights(formula, places, given.levels[n], given.levels[n + 1])
        scale = sum(map(abs, expected))
        assert {j for j, w in weights.items() if abs(w) > 1e-12 * scale} == set(sources)
        for j, w in zip(sources, expected, strict=True):
            assert abs(weights[j] - w) <= 1e-12 * scale
    random_values_agree(table)


@pytest.mark.parametrize(
    ("order", "start", "registers"),
    [(1, "ramp", 1), (2, "ramp", 2), (3, "ramp", 3), (4, "ramp", 4), (3, "runge_kutta", 3), (4, "runge_kutta", 4)],
)
def test_number_of_registers(order, start, registers):
    path = case("x0").path
    assert adams_bashforth(path, order, start=start).weights.shape[1] == registers


def test_registers_of_runge_kutta():
    path = case("x0").path
    assert runge_kutta(path, EULER).weights.shape[1] == 1
    assert runge_kutta(path, HEUN).weights.shape[1] == 2
    assert runge_kutta(path, RUNGE_KUTTA_3).weights.shape[1] == 3


@pytest.mark.claim("solvers-table")
def test_structure_of_a_table():
    path = case("velocity centre").path
    table = adams_bashforth(path, 4)
    assert (table.steps, table.evaluations) == (9, 13)
    assert table.end.tolist() == [2, 5, 6, 7, 8, 9, 10, 11, 12]
    assert table.slot.dtype.kind == "i"
    for part in (table.carry, table.bias, *table.level, table.target[:, 0], table.target[:, 1]):
        assert part.shape == (13,)
    assert table.weights.shape == (13, 4)
    assert table.noise is None
    assert table.start is None
    assert float(table.centre) == 0.4
    level = schedules.vp_linear().level(schedules.vp_linear().time(LOG_SNR))
    np.testing.assert_array_equal(table.node.sigma, level.sigma)
    np.testing.assert_array_equal(table.level.sigma[[0, 3, 6, 7]], level.sigma[:4])
    assert assemble(path, [EULER] * 9).target.shape == (9, 2)
    assert adams_bashforth(case("x0").path, 2).target is None
    assert adams_bashforth(case("x0").path, 2).bias is None


@pytest.mark.claim("solvers-table")
def test_centre_is_a_shift_of_the_state():
    """A centred table on (x, D) does what the uncentred one does on (x - alpha c, D - c)."""
    schedule, c = schedules.vp_linear(), 0.4
    t = schedule.time(LOG_SNR)
    centred, plain = (paths.velocity(schedule, t, sigma_data=0.6, centre=value) for value in (c, 0.0))
    x = np.array([0.3, -2.0])
    for plan in (plan_of(name) for name in PLANS):
        shifted = solve(
            lambda y, level: np.tanh(y + level.alpha * c) - c, x - centred.first.alpha * c, assemble(plain, plan)
        )
        direct = solve(lambda y, level: np.tanh(y), x, assemble(centred, plan))
        np.testing.assert_allclose(direct, shifted + centred.last.alpha * c, rtol=1e-12)
    assert np.max(np.abs(direct - solve(lambda y, level: np.tanh(y), x, assemble(plain, plan)))) > 1e-3


@pytest.mark.claim("solvers-table", "paths-churn")
@pytest.mark.parametrize("method", [EULER, MIDPOINT, HEUN], ids=["euler", "midpoint", "heun"])
def test_gaps_are_bridged_by_the_forward_kernel(method):
    """A row that ends before a gap carries the step and the kernel up; noise before the first row is `start`."""
    schedule = schedules.vp_linear()
    t = schedule.time(LOG_SNR)
    gamma = np.linspace(0.0, 0.4, 9)[::-1]
    plain = paths.noise(schedule, t, coordinate="ratio")
    path = paths.churn(plain, gamma, s_noise=1.1)
    table = runge_kutta(path, method)
    stages, levels = len(method.stages), schedule.level(t)
    rho = levels.sigma / levels.alpha
    for n in range(9):
        raised = rho[n] * (1.0 + gamma[n])
        next_raised = rho[n + 1] * (1.0 + (gamma[n + 1] if n < 8 else 0.0))
        alpha, following = 1.0 / math.hypot(1.0, raised), 1.0 / math.hypot(1.0, next_raised)
        factor, weights = of_whole_step(table, n)[-1]
        assert factor == pytest.approx(following / alpha, rel=1e-12)
        assert sum(weights.values()) == pytest.approx(following * (rho[n + 1] - raised), rel=1e-11)
        added = 1.1 * following * math.sqrt(max(next_raised**2 - rho[n + 1] ** 2, 0.0))
        noise = np.asarray(table.noise)[n * stages : (n + 1) * stages]
        assert noise[-1] == pytest.approx(added, rel=1e-9, abs=1e-15)
        assert not noise[:-1].any()
    start, noise = np.asarray(table.start)
    alpha = 1.0 / math.hypot(1.0, rho[0] * 1.4)
    assert start == pytest.approx(alpha / levels.alpha[0], rel=1e-12)
    assert noise == pytest.approx(1.1 * alpha * rho[0] * math.sqrt(1.4**2 - 1.0), rel=1e-12)
    np.testing.assert_allclose(table.node.sigma / table.node.alpha, [rho[0], *(rho[1:9] * (1 + gamma[1:])), rho[9]])


@pytest.mark.claim("solvers-table")
def test_noise_of_a_step_and_of_the_gap_after_it_add_in_squares():
    schedule, eta = schedules.vp_linear(), 0.5
    t = schedule.time(LOG_SNR)
    stop = paths.ancestral(paths.x0(schedule, t), 0.8).stop
    path = replace(paths.x0(schedule, t, eta=eta), stop=stop, gaps=True)
    table = runge_kutta(path, EULER)
    level, formula = schedule.level(t), reference.x0_formula("vp", eta)
    for n in range(9):
        a, b = ((0.0, float(part.alpha[i]), float(part.sigma[i])) for part, i in ((level, n), (stop, n)))
        scale = level.alpha[n + 1] / b[1]
        variance = (formula.noise(a, b) * scale) ** 2 + level.sigma[n + 1] ** 2 - (scale * b[2]) ** 2
        assert float(table.noise[n]) == pytest.approx(math.sqrt(variance), rel=1e-9)
        assert float(table.carry[n]) == pytest.approx(formula.factor(a, b) * scale, rel=1e-12)


def test_no_noise_where_nothing_is_raised():
    """Exactly 0 and exactly 1, so that no number is drawn there."""
    schedule = schedules.edm()
    t = np.array([80.0, 10.0, 1.0, 0.1])
    path = paths.churn(paths.x0(schedule, t), np.array([0.0, 0.2, 0.0]))
    table = runge_kutta(path, EULER)
    assert np.asarray(table.start).tolist() == [1.0, 0.0]
    assert np.asarray(table.noise)[[1, 2]].tolist() == [0.0, 0.0]
    assert table.noise[0] > 0.0


# -- records ----------------------------------------------------------------------------------------------------------


def tables() -> dict[str, Table]:
    ancestral = paths.churn(paths.velocity(FLOW, np.array([1.0, 0.5, 0.2, 0.0]), centre=np.array([0.1, 0.2])), 0.0)
    return {
        "ode": adams_bashforth(case("noise").path, 3),
        "sde": runge_kutta(case("velocity eta").path, RUNGE_KUTTA_3),
        "gaps": adams_bashforth(paths.churn(case("x0").path, 0.1), 2),
        "ends": adams_bashforth(ancestral, 2),
    }


@pytest.mark.parametrize("name", tables())
def test_json_keeps_every_bit(name):
    table = tables()[name]
    back = Table.from_json(table.to_json())
    for field, one, other in zip(Table._fields, table, back, strict=True):
        assert (one is None) == (other is None), field
        if one is not None:
            for a, b in zip(*((x if isinstance(x, tuple) else [x]) for x in (one, other)), strict=True):
                assert np.asarray(a).dtype == np.asarray(b).dtype, field
                np.testing.assert_array_equal(np.asarray(a), b)
    assert set(json.loads(table.to_json())) == set(Table._fields)


@pytest.mark.parametrize("text", ["[]", "{}", '{"level": [1.0]}', '"level"'])
def test_json_of_something_else(text):
    with pytest.raises(ValueError, match="text must be a JSON object with the fields"):
        Table.from_json(text)


def test_json_needs_values():
    jax = pytest.importorskip("jax")

    def text(t: Any) -> Any:
        return adams_bashforth(paths.x0(EDM, t), 1).to_json()

    with pytest.raises(ValueError, match="a traced table has no values to write"):
        jax.jit(text)(jax.numpy.asarray([10.0, 1.0, 0.1]))


def test_a_table_prints_its_rows():
    table = runge_kutta(paths.semilinear(np.array([0.0, 0.5, 1.0]), -1.0), MIDPOINT)
    head, *lines = str(table).splitlines()
    assert head.split() == (
        ["row", "log-SNR", "carry", "weight", "0", "weight", "1", "noise", "(*", "stored", "in", "this", "row)"]
    )
    assert len(lines) == 4
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    # P = exp(-1/4); the first stage has the weight phi_1(-1/4)/4 on the value just stored
    assert lines[0].split()[2:] == ["0.77880", "0.22120*", "0.00000", "0.00000"]
    assert lines[1].split()[4].endswith("*")
    noisy = str(runge_kutta(paths.x0(EDM, np.array([10.0, 1.0]), eta=1.0), EULER)).splitlines()[1].split()
    assert noisy == ["0", "-2.3026", "0.01000", "0.99000*", "0.99499"]


@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_plan_has_one_method_for_each_step(length):
    path = paths.semilinear(np.array([0.0, 0.5, 1.0, 2.0]))
    with pytest.raises(ValueError, match=f"plan must hold one method for each of the 3 steps, got {length}"):
        assemble(path, [EULER] * length)


def test_a_plan_cannot_look_before_the_first_step():
    path = paths.semilinear(np.array([0.0, 0.5, 1.0, 2.0]))
    three = Method("three values", 3, (0.0,), ((0, -1, -2),))
    assert three.history == 2
    assert EULER.history == 0
    with pytest.raises(ValueError, match="plan must not use three values in step 1: it needs 2 earlier steps"):
        assemble(path, [EULER, three, three])
    assert assemble(path, [EULER, EULER, three]).steps == 3


@pytest.mark.parametrize(
    ("stages", "nodes"),
    [
        ((), ()),
        ((0.5,), ((0,),)),
        ((0.0, 0.5), ((0,),)),
        ((0.0, 0.6, 0.3), ((0,), (0, 1), (0, 2))),
        ((0.0, 1.5), ((0,), (0, 1))),
        ((0.0, 0.5), ((0, 1), (0, 1))),
        ((0.0, 0.5), ((0,), ())),
        ((0.0, 0.5), ((0,), (1, 1))),
    ],
)
def test_a_method_that_cannot_be_run_is_refused(stages, nodes):
    path = paths.semilinear(np.array([0.0, 0.5]))
    with pytest.raises(ValueError, match="method must"):
        assemble(path, [Method("mine", 2, stages, nodes)])


def test_a_method_of_ones_own():
    """Ralston's: stages 0 and 2/3, order 2; on y' = f its weights are 1/4 and 3/4."""
    ralston = Method("Ralston", 2, (0.0, 2 / 3), ((0,), (0, 1)))
    states = of_whole_step(runge_kutta(paths.semilinear(np.array([0.0, 2.0])), ralston), 0)
    assert states[-1][1] == pytest.approx({0: 0.5, 1: 1.5})
    assert states[0][1] == pytest.approx({0: 4.0 / 3.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("carry", [1.0]),
        ("slot", [9, 9, 9, 9]),
        ("slot", [0, 1, 0, 2]),
        ("end", [0, 1, 2, 99]),
        ("end", [0, 1, 2, 4]),
        ("end", [-1, 1, 2, 3]),
        ("weights", [[1.0, 0.0]] * 3),
        ("target", [[1.0, 0.0]] * 3),
        ("level", [[1.0]] * 3),
        ("node", [[1.0] * 4] * 3),
    ],
)
def test_json_whose_parts_do_not_fit(field, value):
    path = paths.x0(schedules.rectified_flow(), np.array([0.9, 0.6, 0.4, 0.2, 0.05]))
    fields = json.loads(adams_bashforth(path, 2).to_json()) | {field: value}
    with pytest.raises(ValueError, match=field):
        Table.from_json(json.dumps(fields))


def test_nodes_that_round_to_one_coordinate():
    flow = schedules.rectified_flow()
    t = np.array([0.9, np.nextafter(0.9, 0.0), 0.3, 0.05])
    with pytest.raises(ValueError, match=r"t must have nodes that velocity.* can tell apart"):
        adams_bashforth(paths.velocity(flow, t), 2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (["heun", EULER], "plan.n. must be a Method, got str"),
        ([None, None], "plan.n. must be a Method, got NoneType"),
        (EULER, "plan must be a sequence of Method, one for each step, got Method"),
        (2, "plan must be a sequence of Method, one for each step, got int"),
    ],
)
def test_plans_of_something_else(plan, message):
    path = paths.semilinear(np.array([0.0, 0.5, 1.0]))
    with pytest.raises(TypeError, match=message):
        assemble(path, plan)
    with pytest.raises(TypeError, match="path must be a Path, got str"):
        assemble("path", [EULER])


@pytest.mark.parametrize(
    ("stages", "nodes"),
    [
        ((0.0, 0.5, 0.5), ((0,), (0, 1), (1, 2))),
        ((0.0, 0.5, 0.5), ((0,), (0, 1), (2, 1, 0))),
        ((0.0, 0.0, 0.5), ((0,), (0, 1), (0, 2))),
    ],
)
def test_values_at_one_position_are_refused(stages, nodes):
    path = paths.semilinear(np.array([0.0, 0.5]))
    with pytest.raises(ValueError, match="method must interpolate through values at distinct positions"):
        assemble(path, [Method("mine", 2, stages, nodes)])


def test_a_stage_may_be_evaluated_twice():
    """Only interpolation through both of its values is impossible: the second replaces the first."""
    again = Method("mine", 2, (0.0, 0.5, 0.5), ((0,), (0, 1), (0, 2)))
    states = of_whole_step(assemble(paths.semilinear(np.array([0.0, 2.0])), [again]), 0)
    assert {row: weight for row, weight in states[-1][1].items() if weight} == pytest.approx({2: 2.0})


def test_values_up_to_five_and_no_more():
    """phi-functions are known to full accuracy up to index 5."""
    path = paths.x0(FLOW, FLOW.time(LOG_SNR))
    five, six = (Method(f"{k}", k, (0.0,), (tuple(-j for j in range(k)),)) for k in (5, 6))
    assert np.isfinite(assemble(path, [EULER] * 5 + [five] * 4).weights).all()
    with pytest.raises(ValueError, match="method must interpolate through at most 5 values, got 6 for 6"):
        assemble(path, [EULER] * 5 + [six] * 4)
