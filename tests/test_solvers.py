"""Methods, the runner and the named samplers: transcriptions, orders on both sides, ends, noise, backends."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import reference_solvers as reference
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from diffnum import grids, oracles, paths, schedules, solvers
from diffnum.schedules import Level
from diffnum.solvers import (
    EULER,
    HEUN,
    KROGSTAD,
    KUTTA_3,
    MIDPOINT,
    ORDERS,
    RUNGE_KUTTA_3,
    STIFF_3,
    STIFF_4,
    Method,
    Table,
    ab1,
    ab2,
    ab3,
    ab4,
    adams_bashforth,
    adams_moulton,
    ddim,
    heun,
    runge_kutta,
    solve,
    two_stage,
)

ORDER_TOLERANCE = {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.15}
"""Deviation of a local slope from the order, on both sides; a wrong weight moves it by 1."""
TRANSCRIBED = 2e-12
"""Two ways of computing the same weights differ by their rounding, which 7 graded steps magnify."""
EXACT = 1e-12
"""Relative: some tens of roundings."""

FLOW, VP, EDM = schedules.rectified_flow(), schedules.vp_linear(), schedules.edm(sigma_min=0.01)
PEAKS = reference.TwoPeaks()
STARTS = np.array([-1.3, -0.4, 0.3, 0.9, 1.7])

SLOW = pytest.mark.slow

Builder = Callable[[paths.Path], Table]

METHODS: dict[str, tuple[int, Builder]] = {
    "ab1": (1, lambda path: adams_bashforth(path, 1)),
    "ab2": (2, lambda path: adams_bashforth(path, 2)),
    "ab3": (3, lambda path: adams_bashforth(path, 3)),
    "ab4": (4, lambda path: adams_bashforth(path, 4)),
    "midpoint": (2, lambda path: runge_kutta(path, MIDPOINT)),
    "heun": (2, lambda path: runge_kutta(path, HEUN)),
    "rk3": (3, lambda path: runge_kutta(path, RUNGE_KUTTA_3)),
}
"""Name: order and table."""
MORE: dict[str, tuple[int, Builder]] = {
    **{f"am{k}": (k, lambda path, k=k: adams_moulton(path, k)) for k in (2, 3, 4)},
    "weak": (2, lambda path: runge_kutta(path, two_stage(0.5, weak=True))),
    "ralston": (2, lambda path: runge_kutta(path, two_stage(2 / 3))),
    "kutta": (3, lambda path: runge_kutta(path, KUTTA_3)),
    "krogstad": (4, lambda path: runge_kutta(path, KROGSTAD)),
    "stiff 3": (3, lambda path: runge_kutta(path, STIFF_3)),
    "stiff 4": (4, lambda path: runge_kutta(path, STIFF_4)),
}
"""Methods of the chapter on samplers."""
RAMPS: dict[str, tuple[int, Builder]] = {
    f"ab{k} ramp": (min(k, 2), lambda path, k=k: adams_bashforth(path, k, start="ramp")) for k in (1, 2, 3, 4)
}

PATHS: dict[str, Callable[[schedules.Schedule, Any], paths.Path]] = {
    "x0": paths.x0,
    "x0 ratio": functools.partial(paths.x0, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": functools.partial(paths.noise, coordinate="ratio"),
    "velocity": functools.partial(paths.velocity, sigma_data=0.6, centre=0.2),
}


def point(level: Level) -> reference.Point:
    return float(level.t), float(level.alpha), float(level.sigma)


def exact_peaks(schedule: schedules.Schedule) -> np.ndarray:
    return PEAKS.exact(STARTS, point(schedule.level(schedule.t_noise)), point(schedule.level(schedule.t_clean)))


def in_log_snr(schedule: schedules.Schedule, nodes: np.ndarray) -> np.ndarray:
    t = schedule.time(nodes)
    t[0], t[-1] = schedule.t_noise, schedule.t_clean
    return t


def grid(name: str, schedule: schedules.Schedule, steps: int) -> np.ndarray:
    """Uniform in log-SNR, Karras, or with random ratios of the steps in log-SNR."""
    ends = float(schedule.log_snr(schedule.t_noise)), float(schedule.log_snr(schedule.t_clean))
    if name == "karras":
        return grids.karras(schedule, steps)
    nodes = np.linspace(*ends, steps + 1) if name == "uniform" else reference.random_ratio(*ends, steps)
    return in_log_snr(schedule, nodes)


def assert_order(run: Callable[[int], np.ndarray], exact: np.ndarray, order: int, steps: Sequence[int]) -> None:
    """The slope between the two runs is the order, on both sides."""
    (slope,) = reference.slopes(steps, [reference.rms(run(n) - exact) for n in steps])
    assert abs(slope - order) <= ORDER_TOLERANCE[order], f"measured order {slope:.3f}, stated {order}"


# -- transcriptions ---------------------------------------------------------------------------------------------------

GRADED = np.array([-1.4, -1.35, -0.6, -0.3, 0.9, 1.0, 1.7, 2.2])
"""Log-SNRs of seven steps with ratios up to 15."""

PLANS: dict[str, tuple[Builder, list[int | str]]] = {
    "ab1": (lambda path: adams_bashforth(path, 1), [1] * 7),
    "ab2": (lambda path: adams_bashforth(path, 2), [1, *[2] * 6]),
    "ab3": (lambda path: adams_bashforth(path, 3), ["midpoint", 2, *[3] * 5]),
    "ab4": (lambda path: adams_bashforth(path, 4), ["rk3", "rk3", 3, *[4] * 4]),
    "ab3 ramp": (lambda path: adams_bashforth(path, 3, start="ramp"), [1, 2, *[3] * 5]),
    "ab4 ramp": (lambda path: adams_bashforth(path, 4, start="ramp"), [1, 2, 3, *[4] * 4]),
    "midpoint": (lambda path: runge_kutta(path, MIDPOINT), ["midpoint"] * 7),
    "heun": (lambda path: runge_kutta(path, HEUN), ["heun"] * 7),
    "rk3": (lambda path: runge_kutta(path, RUNGE_KUTTA_3), ["rk3"] * 7),
}

TRANSCRIPTIONS: dict[str, tuple[schedules.Schedule, Callable[..., paths.Path], reference.Formula]] = {
    "x0": (VP, paths.x0, reference.x0_formula("vp")),
    "x0 eta": (FLOW, functools.partial(paths.x0, eta=0.8), reference.x0_formula("flow", 0.8)),
    "x0 ratio": (FLOW, functools.partial(paths.x0, coordinate="ratio"), reference.x0_ratio_formula("flow")),
    "x0 ratio eta": (
        EDM, functools.partial(paths.x0, coordinate="ratio", eta=1.3), reference.x0_ratio_formula("ve", 1.3)
    ),
    "noise": (EDM, paths.noise, reference.noise_formula("ve")),
    "noise ratio": (VP, functools.partial(paths.noise, coordinate="ratio"), reference.noise_ratio_formula("vp")),
    "velocity": (
        FLOW, functools.partial(paths.velocity, sigma_data=0.6, centre=0.2),
        reference.velocity_formula("flow", 0.6, 0.2),
    ),
    "velocity eta": (
        VP, functools.partial(paths.velocity, sigma_data=0.7, centre=-0.1, eta=1.1),
        reference.velocity_formula("vp", 0.7, -0.1, 1.1),
    ),
}  # fmt: skip


def prescribed(row: int, like: Any = None) -> np.ndarray:
    """Draw number `row`: the same numbers for the library and for the transcription."""
    return np.random.default_rng(100 + int(row)).standard_normal(STARTS.shape)


@pytest.mark.claim("solvers-table", "solvers-adams-bashforth", "solvers-runge-kutta", "solvers-start")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_states_equal_a_transcription(name, plan):
    """Two state vectors, a list of old values and quadrature of the Lagrange basis, on the same draws."""
    schedule, build, formula = TRANSCRIPTIONS[name]
    t = schedule.time(GRADED)
    levels = [point(Level(*parts)) for parts in zip(*schedule.level(t), strict=True)]
    make, methods = PLANS[plan]
    expected = reference.run(formula, levels, methods, PEAKS.denoise, STARTS, prescribed)
    found = solve(PEAKS.denoise, STARTS, make(build(schedule, t)), rng=prescribed, trajectory=True)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=TRANSCRIBED * np.max(np.abs(expected)))


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_states_of_a_semilinear_equation_equal_a_transcription(plan, direction):
    problem = reference.Forced(mean=-1.2, wave=0.9)
    t = 1.0 + direction * (GRADED + 1.4) / 3.0
    make, methods = PLANS[plan]
    expected = reference.run(
        reference.semilinear_formula(problem.integral), [(s, 1.0, 1.0) for s in t], methods, problem.denoise,
        problem.exact(1.0),
    )  # fmt: skip
    for path in (paths.semilinear(t, problem.rate), paths.semilinear(t, integral=problem.integral)):
        found = solve(problem.denoise, problem.exact(1.0), make(path), trajectory=True)
        np.testing.assert_allclose(found, expected, atol=TRANSCRIBED)


@pytest.mark.claim("solvers-table", "solvers-runge-kutta")
def test_edm_sampler():
    """Algorithm 1 of Karras et al. transcribed: Heun in sigma on (x - D)/sigma."""
    t = grids.karras(schedules.edm(), 12)
    x = 80.0 * STARTS
    for sigma, following in itertools.pairwise(t):
        d = (x - PEAKS.denoise(x, (0.0, 1.0, sigma))) / sigma
        ahead = x + (following - sigma) * d
        d_ahead = (ahead - PEAKS.denoise(ahead, (0.0, 1.0, following))) / following
        x = x + (following - sigma) * (d + d_ahead) / 2.0
    path = paths.noise(schedules.edm(), t, coordinate="ratio")
    np.testing.assert_allclose(heun(PEAKS.denoise, 80.0 * STARTS, path), x, rtol=EXACT)


@pytest.mark.claim("solvers-table", "paths-churn")
def test_edm_sampler_with_churn():
    """Algorithm 2 of Karras et al. transcribed, on the draws that the table makes."""
    t, gamma = grids.karras(schedules.edm(), 6), np.array([0.0, 0.3, 0.1, 0.4, 0.0, 0.2])
    x, row = 80.0 * STARTS, 12
    for n, (sigma, following) in enumerate(itertools.pairwise(t)):
        raised = sigma * (1.0 + gamma[n])
        x = x + math.sqrt(raised**2 - sigma**2) * 1.05 * (prescribed(row) if gamma[n] else 0.0)
        d = (x - PEAKS.denoise(x, (0.0, 1.0, raised))) / raised
        ahead = x + (following - raised) * d
        d_ahead = (ahead - PEAKS.denoise(ahead, (0.0, 1.0, following))) / following
        x = x + (following - raised) * (d + d_ahead) / 2.0
        row = 2 * n + 1
    path = paths.churn(paths.noise(schedules.edm(), t, coordinate="ratio"), gamma, s_noise=1.05)
    np.testing.assert_allclose(heun(PEAKS.denoise, 80.0 * STARTS, path, rng=prescribed), x, rtol=EXACT)


def ddim_step(x: np.ndarray, a: reference.Point, b: reference.Point, eta: float, z: np.ndarray) -> np.ndarray:
    """Equation 12 of Song et al. (2021): predicted x_0, direction to x_t, noise.

    The noise is their equation 16 generalised: its 1 - (alpha/alpha')^2 is sigma^2 - (alpha sigma'/alpha')^2 wherever
    alpha^2 + sigma^2 = 1, and the latter holds for any schedule.
    """
    d = PEAKS.denoise(x, a)
    eps = (x - a[1] * d) / a[2]
    noise = eta * b[2] / a[2] * math.sqrt(a[2] ** 2 - (a[1] / b[1] * b[2]) ** 2)
    return b[1] * d + math.sqrt(b[2] ** 2 - noise**2) * eps + noise * z


@pytest.mark.claim("paths-ancestral", "solvers-adams-bashforth")
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("schedule", [VP, FLOW, EDM], ids=["vp", "flow", "ve"])
def test_ddim_is_the_published_formula(schedule, eta):
    t = schedule.time(GRADED)
    levels = [point(Level(*parts)) for parts in zip(*schedule.level(t), strict=True)]
    x = STARTS
    for n, (a, b) in enumerate(itertools.pairwise(levels)):
        x = ddim_step(x, a, b, eta, prescribed(n))
    found = ddim(PEAKS.denoise, STARTS, schedule, t, eta=eta, rng=prescribed)
    np.testing.assert_allclose(found, x, rtol=EXACT, atol=EXACT)
    if eta in {0.0, 1.0}:
        path = paths.x0(schedule, t, eta=eta)
        np.testing.assert_allclose(ab1(PEAKS.denoise, STARTS, path, rng=prescribed), x, rtol=EXACT, atol=EXACT)


@pytest.mark.claim("paths-ancestral")
def test_eta_one_of_order_one_is_ancestral_sampling():
    """Mean and standard deviation of q(x_s | x_t, x_0) at x_0 = D, the step of DDPM."""
    t = VP.time(GRADED)
    levels = [point(Level(*parts)) for parts in zip(*VP.level(t), strict=True)]
    x = STARTS
    for n, ((_, alpha_t, sigma_t), (_, alpha_s, sigma_s)) in enumerate(itertools.pairwise(levels)):
        alpha_ts, d = alpha_t / alpha_s, PEAKS.denoise(x, levels[n])
        beta = sigma_t**2 - alpha_ts**2 * sigma_s**2
        mean = (alpha_ts * sigma_s**2 * x + alpha_s * beta * d) / sigma_t**2
        x = mean + math.sqrt(beta) * sigma_s / sigma_t * prescribed(n)
    found = ab1(PEAKS.denoise, STARTS, paths.x0(VP, t, eta=1.0), rng=prescribed)
    np.testing.assert_allclose(found, x, rtol=EXACT, atol=EXACT)


@pytest.mark.claim("solvers-adams-bashforth")
def test_order_one_is_one_map_on_x0_and_on_noise_but_not_on_velocity():
    t = FLOW.time(GRADED)
    results = {name: ab1(PEAKS.denoise, STARTS, build(FLOW, t)) for name, build in PATHS.items()}
    for name in ("x0 ratio", "noise", "noise ratio"):
        np.testing.assert_allclose(results[name], results["x0"], rtol=EXACT, atol=EXACT)
    assert np.max(np.abs(results["velocity"] - results["x0"])) > 1e-2


@pytest.mark.claim("solvers-adams-bashforth", "solvers-runge-kutta")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PATHS)
def test_schedules_of_equal_ratio_give_one_trajectory(name, method):
    """x/alpha depends on sigma/alpha only, stages included."""
    outcome = []
    for schedule in (VP, FLOW, EDM):
        t = schedule.time(GRADED)
        first, last = (schedule.level(t[i]) for i in (0, -1))
        path = PATHS[name](schedule, t)
        outcome.append(solve(PEAKS.denoise, STARTS * first.alpha, METHODS[method][1](path)) / last.alpha)
    tolerance = 1e-13 if METHODS[method][0] <= 2 else 1e-11
    np.testing.assert_allclose(outcome[1], outcome[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(outcome[2], outcome[0], rtol=tolerance, atol=tolerance)


# -- orders -----------------------------------------------------------------------------------------------------------

INNER = schedules.truncate(FLOW, t_clean=0.05, t_noise=0.95)
LATE = schedules.truncate(FLOW, t_clean=0.05, t_noise=float(FLOW.time(0.5)))
"""From a level at which the denoiser varies: there a ramp shows its order."""
EARLY = schedules.truncate(FLOW, t_clean=0.05, t_noise=float(FLOW.time(-3.0)))
"""From a level at which it hardly varies: there a ramp hides it."""


def steps_for(order: int) -> tuple[int, int]:
    """Steps at which the local slopes have settled; the higher the order, the later."""
    return (80, 160) if order == 1 else (160, 320) if order == 2 else (480, 960)


@functools.cache
def exact(schedule: schedules.Schedule) -> np.ndarray:
    return exact_peaks(schedule)


@pytest.mark.claim("solvers-local-error", "solvers-global-error", "solvers-orders")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nodes", ["uniform", "karras", "random"])
@pytest.mark.parametrize("name", PATHS)
def test_order_on_a_mixture(name, nodes, method):
    order, build = METHODS[method]

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, build(PATHS[name](INNER, grid(nodes, INNER, n))))

    assert_order(run, exact(INNER), order, steps_for(order))


@pytest.mark.claim("solvers-start")
@pytest.mark.parametrize("method", RAMPS)
@pytest.mark.parametrize("nodes", ["uniform", "karras", "random"])
@pytest.mark.parametrize("name", PATHS)
def test_order_of_a_ramp_is_two_at_most(name, nodes, method):
    order, build = RAMPS[method]

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, build(PATHS[name](LATE, grid(nodes, LATE, n))))

    steps = steps_for(order) if method in {"ab1 ramp", "ab2 ramp"} else (480, 960)
    assert_order(run, exact(LATE), order, steps)


@pytest.mark.claim("solvers-start")
def test_a_ramp_hides_where_the_denoiser_is_flat():
    """Negative control: claimed as order 3, a ramp fails where the denoiser varies and passes where it does not."""

    def run(schedule: schedules.Schedule, n: int) -> np.ndarray:
        path = paths.x0(schedule, grid("karras", schedule, n), coordinate="ratio")
        return solve(PEAKS.denoise, STARTS, adams_bashforth(path, 3, start="ramp"))

    assert_order(lambda n: run(EARLY, n), exact(EARLY), 3, (160, 320))
    with pytest.raises(AssertionError, match="measured order 2"):
        assert_order(lambda n: run(LATE, n), exact(LATE), 3, (160, 320))


SEMILINEAR: dict[str, tuple[reference.Forced, Callable[[reference.Forced, np.ndarray], paths.Path]]] = {
    "constant rate": (reference.Forced(), lambda problem, t: paths.semilinear(t, problem.mean)),
    "varying rate": (reference.Forced(wave=0.8), lambda problem, t: paths.semilinear(t, problem.rate)),
    "its integral": (
        reference.Forced(mean=0.6, wave=-1.1), lambda problem, t: paths.semilinear(t, integral=problem.integral)
    ),
}  # fmt: skip


@pytest.mark.claim("solvers-local-error", "solvers-orders")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ends", [(0.0, 2.0), (2.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("constant rate", "uniform"),
        ("constant rate", "graded"),
        ("constant rate", "random"),
        ("varying rate", "random"),
        ("its integral", "graded"),
    ],
)
def test_order_on_a_semilinear_equation(name, nodes, ends, method):
    order, build = METHODS[method]
    problem, path = SEMILINEAR[name]
    make = {
        "uniform": lambda n: np.linspace(*ends, n + 1),
        "graded": lambda n: reference.graded(*ends, n, power=2.0),
        "random": lambda n: reference.random_ratio(*ends, n),
    }[nodes]

    def run(n: int) -> np.ndarray:
        return solve(problem.denoise, problem.exact(ends[0]), build(path(problem, make(n))))

    steps = {1: (160, 320), 2: (160, 320), 3: (240, 480), 4: (160, 320)}[order]
    assert_order(run, problem.exact(ends[1]), order, steps)


@pytest.mark.claim("solvers-ends")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "t_noise", "t_clean"),
    [("velocity", 1.0, 0.0), ("x0 ratio", 1.0, 0.05), ("noise ratio", 0.9, 0.0)],
)
def test_order_through_the_ends(name, t_noise, t_clean, method):
    """velocity is regular at alpha = 0 and sigma = 0, x0 in ratio form at alpha = 0, noise in rho at sigma = 0."""
    order, build = METHODS[method]
    schedule = schedules.truncate(FLOW, t_clean=t_clean, t_noise=t_noise)

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, build(PATHS[name](schedule, grids.uniform(schedule, n))))

    # Heun's last step to sigma = 0 is a midpoint step
    assert_order(run, exact(schedule), order, (80, 160) if order == 1 else (480, 960))


@pytest.mark.claim("solvers-ends")
@pytest.mark.parametrize(("method", "order"), [("ab1", 1), ("ab2", 2), ("ab3", 2), ("ab4", 2), ("rk3", 2)])
def test_an_infinite_node_caps_x0_in_log_snr_at_order_two(method, order):
    schedule = schedules.truncate(FLOW, t_clean=0.05)

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, METHODS[method][1](paths.x0(schedule, grids.uniform(schedule, n))))

    assert_order(run, exact(schedule), order, (960, 1920))


# -- negative controls: broken twins fail the same assertion ----------------------------------------------------------


def with_weights(table: Table, values: Callable[[int, float], dict[int, float]], first: int) -> Table:
    """The table with the weights of rows from `first` on replaced: source row -> weight, from (row, sum of weights)."""
    weights = np.array(table.weights)
    for r in range(first, table.evaluations):
        new = values(r, float(weights[r].sum()))
        weights[r] = 0.0
        for source, w in new.items():
            weights[r, table.slot[source]] = w
    return table._replace(weights=weights)


@pytest.mark.claim("solvers-fixed-weights")
def test_fixed_weights_lose_their_order_on_a_random_grid():
    """AB2 with 3/2 and -1/2: order 1 on random ratios. A smooth grading hides it, its ratios tend to 1."""

    def run(nodes: str, n: int) -> np.ndarray:
        table = adams_bashforth(paths.noise(INNER, grid(nodes, INNER, n), coordinate="ratio"), 2)
        return solve(PEAKS.denoise, STARTS, with_weights(table, lambda r, w: {r: 1.5 * w, r - 1: -0.5 * w}, 1))

    assert_order(lambda n: run("random", n), exact(INNER), 1, (240, 480))
    with pytest.raises(AssertionError, match=r"measured order 1\.0"):
        assert_order(lambda n: run("random", n), exact(INNER), 2, (240, 480))
    assert_order(lambda n: run("karras", n), exact(INNER), 2, (240, 480))


def newton_three(path: paths.Path, factor: float) -> Callable[[int, float], dict[int, float]]:
    """Weights of order 3 on x0 in lambda with I_2 times `factor`: 1 is right, 1/2 is published."""
    lam, alpha = np.append(path.start.log_snr, path.last.log_snr), path.stop.alpha

    def moments(n: int, h: float) -> tuple[float, float, float]:
        e = math.exp(-h)
        return alpha[n] * (1 - e), alpha[n] * (h - 1 + e), alpha[n] * (h * h - 2 * h + 2 - 2 * e)

    def values(row: int, total: float) -> dict[int, float]:
        n = row - 1  # the start has made one row more
        h, h0, h1 = (lam[n + 1 - j] - lam[n - j] for j in range(3))
        i0, i1, i2 = moments(n, h)
        second = factor * i2 + h0 * i1
        a, b = 1.0 / h0, 1.0 / h1
        return {
            row: i0 + a * i1 + second * a / (h0 + h1),
            row - 1: -a * i1 - second * (a + b) / (h0 + h1),
            row - 2: second * b / (h0 + h1),
        }

    return values


@pytest.mark.claim("solvers-missing-factor", "solvers-newton")
def test_the_published_third_order_multistep_weights_are_of_order_two():
    """Half of the second divided difference is missing in them; with it the same code is of order 3."""

    def run(n: int, factor: float) -> np.ndarray:
        path = paths.x0(LATE, grid("random", LATE, n))
        table = adams_bashforth(path, 3)
        return solve(PEAKS.denoise, STARTS, with_weights(table, newton_three(path, factor), 4))

    assert_order(lambda n: run(n, 1.0), exact(LATE), 3, (160, 320))
    assert_order(lambda n: run(n, 0.5), exact(LATE), 2, (480, 960))
    with pytest.raises(AssertionError, match=r"measured order (1\.99|2\.0)"):
        assert_order(lambda n: run(n, 0.5), exact(LATE), 3, (480, 960))


@pytest.mark.claim("solvers-half-weight")
@pytest.mark.parametrize("nodes", ["uniform", "random"])
def test_the_half_weight_of_2m_keeps_order_two(nodes):
    """DPM-Solver++(2M): I_0 (1 + r/2) and -I_0 r/2 with r = h/h_0; another error constant."""

    def run(n: int) -> np.ndarray:
        path = paths.x0(INNER, grid(nodes, INNER, n))
        h = np.diff(np.append(path.start.log_snr, path.last.log_snr))
        table = adams_bashforth(path, 2)
        return solve(
            PEAKS.denoise, STARTS,
            with_weights(table, lambda r, w: {r: w * (1 + h[r] / h[r - 1] / 2), r - 1: -w * h[r] / h[r - 1] / 2}, 1),
        )  # fmt: skip

    assert_order(run, exact(INNER), 2, (160, 320))
    ours = ab2(PEAKS.denoise, STARTS, paths.x0(INNER, grid(nodes, INNER, 320)))
    assert reference.rms(run(320) - ours) > 0.1 * reference.rms(ours - exact(INNER))


@pytest.mark.claim("paths-ancestral")
def test_the_present_alpha_in_place_of_the_next_does_not_converge():
    """Negative control of DDIM: alpha_t for alpha_s in front of the clean estimate."""

    def run(n: int, *, broken: bool) -> np.ndarray:
        path = paths.x0(INNER, grid("uniform", INNER, n))
        table = adams_bashforth(path, 1)
        ratio = np.asarray(table.carry)
        wrong = path.start.alpha - ratio * path.start.alpha
        right = path.stop.alpha - ratio * path.start.alpha
        np.testing.assert_allclose(table.weights[:, 0], right, rtol=1e-12)
        return solve(PEAKS.denoise, STARTS, table._replace(weights=(wrong if broken else right)[:, None]))

    assert_order(lambda n: run(n, broken=False), exact(INNER), 1, (160, 320))
    with pytest.raises(AssertionError, match=r"measured order -?0\.0"):
        assert_order(lambda n: run(n, broken=True), exact(INNER), 1, (160, 320))


@pytest.mark.claim("solvers-frozen-rate")
@pytest.mark.parametrize(("place", "order"), [(0.0, 1), (0.5, 2)], ids=["left end", "midpoint"])
def test_a_frozen_rate_caps_the_order(place, order):
    problem = reference.Forced(mean=-1.5, wave=1.3)

    def run(n: int, *, frozen: bool) -> np.ndarray:
        t = reference.random_ratio(0.0, 2.0, n)
        held = np.concatenate([[0.0], np.cumsum(problem.rate(t[:-1] + place * np.diff(t)) * np.diff(t))])
        integral = (lambda s: np.interp(s, t, held)) if frozen else problem.integral
        return solve(problem.denoise, problem.exact(0.0), adams_bashforth(paths.semilinear(t, integral=integral), 3))

    assert_order(lambda n: run(n, frozen=False), problem.exact(2.0), 3, (480, 960))
    assert_order(lambda n: run(n, frozen=True), problem.exact(2.0), order, (480, 960))
    with pytest.raises(AssertionError, match="measured order"):
        assert_order(lambda n: run(n, frozen=True), problem.exact(2.0), 3, (480, 960))


@pytest.mark.claim("solvers-unit-variance")
def test_unit_variance_hides_a_broken_solver():
    """On N(0, 1) and a variance-preserving schedule nothing moves on `velocity`: weights 10 % too large pass there."""
    schedule = schedules.truncate(VP, t_clean=0.05)

    def run(n: int, std: float, factor: float) -> np.ndarray:
        table = adams_bashforth(paths.velocity(schedule, grid("random", schedule, n)), 2)
        return solve(gaussian(0.0, std), STARTS, table._replace(weights=factor * table.weights))

    def exact_end(std: float) -> np.ndarray:
        a, b = schedule.level(1.0), schedule.level(0.05)
        return np.hypot(b.alpha * std, b.sigma) / np.hypot(a.alpha * std, a.sigma) * STARTS

    assert reference.rms(run(20, 1.0, 1.1) - exact_end(1.0)) < EXACT
    assert_order(lambda n: run(n, 1.7, 1.0), exact_end(1.7), 2, (480, 960))
    with pytest.raises(AssertionError, match=r"measured order -?0\.0"):
        assert_order(lambda n: run(n, 1.7, 1.1), exact_end(1.7), 2, (480, 960))


@pytest.mark.claim("samplers-adams-moulton", "samplers-polynomials", "samplers-corrector-order")
@pytest.mark.parametrize("method", MORE)
@pytest.mark.parametrize(
    ("name", "nodes"), [("x0", "random"), ("noise ratio", "uniform"), ("velocity", "karras"), ("noise", "random")]
)
def test_order_of_more_methods(name, nodes, method):
    order, build = MORE[method]

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, build(PATHS[name](LATE, grid(nodes, LATE, n))))

    steps = (240, 480) if order == 4 else steps_for(order)
    assert_order(run, exact(LATE), order, steps)


@pytest.mark.claim("samplers-adams-moulton", "samplers-polynomials")
@pytest.mark.parametrize("method", MORE)
@pytest.mark.parametrize(("name", "ends"), [("constant rate", (0.0, 2.0)), ("varying rate", (2.0, 0.0))])
def test_order_of_more_methods_on_a_semilinear_equation(name, ends, method):
    order, build = MORE[method]
    problem, path = SEMILINEAR[name]

    def run(n: int) -> np.ndarray:
        t = reference.random_ratio(*ends, n)
        return solve(problem.denoise, problem.exact(ends[0]), build(path(problem, t)))

    assert_order(run, problem.exact(ends[1]), order, {2: (160, 320), 3: (240, 480), 4: (160, 320)}[order])


@pytest.mark.claim("solvers-ends")
@pytest.mark.parametrize("method", ["am2", "am3", "am4", "kutta", "krogstad", "stiff 4"])
@pytest.mark.parametrize(("name", "t_noise"), [("velocity", 1.0), ("noise ratio", 0.9)])
def test_more_methods_keep_their_order_through_the_ends(name, t_noise, method):
    """Those that evaluate at sigma = 0 give their last step to a method of order 3."""
    order, build = MORE[method]
    schedule = schedules.truncate(FLOW, t_clean=0.0, t_noise=t_noise)

    def run(n: int) -> np.ndarray:
        return solve(PEAKS.denoise, STARTS, build(PATHS[name](schedule, grids.uniform(schedule, n))))

    assert_order(run, exact(schedule), order, (320, 640) if order == 4 else (480, 960))


@pytest.mark.claim("solvers-ends")
def test_the_method_of_the_last_step_can_be_chosen():
    path = paths.noise(FLOW, np.array([0.9, 0.6, 0.2, 0.0]), coordinate="ratio")
    assert runge_kutta(path, HEUN).evaluations == 6
    assert runge_kutta(path, HEUN, end=EULER).evaluations == 5
    assert runge_kutta(path, MIDPOINT, end=EULER).evaluations == 5
    assert runge_kutta(path, MIDPOINT).evaluations == 6
    assert runge_kutta(path, KROGSTAD).evaluations == 4 + 4 + 3
    with_clock = MIDPOINT._replace(clock="log_snr")
    assert runge_kutta(path, with_clock).level.sigma[-1] == runge_kutta(path, MIDPOINT).level.sigma[-1]


@pytest.mark.parametrize("c", [0.0, -0.5, 1.5, math.nan, "half"])
def test_stages_outside_the_step(c):
    with pytest.raises(ValueError, match="c must be"):
        two_stage(c)


# -- stiffness --------------------------------------------------------------------------------------------------------


def prothero_robinson(n: int, make: Builder, kappa: float = 1e5) -> float:
    """|y(1) - g(1)| for y' = -kappa (y - g) + g', g = cos, worst over the run."""

    def forcing(y: np.ndarray, level: Level) -> np.ndarray:
        return kappa * np.cos(level.t) - np.sin(level.t) + 0.0 * y

    t = np.linspace(0.0, 1.0, n + 1)
    states = solve(forcing, np.ones(1), make(paths.semilinear(t, -kappa)), trajectory=True)
    return float(np.max(np.abs(states[:, 0] - np.cos(t))))


def weak(table: Table) -> Table:
    """The same stages with b_2 = phi_1/(2 c_2), as DPM-Solver-2 has it, c_2 = 1/2: all weight on the second stage."""
    weights, carry = np.array(table.weights), np.asarray(table.carry)
    total = carry[1::2] * weights[0::2, 0] + weights[1::2].sum(axis=1)
    weights[1::2] = np.stack([-carry[1::2] * weights[0::2, 0], total], axis=1)
    return table._replace(weights=weights)


@pytest.mark.claim("solvers-stiff-order", "samplers-stiff")
@pytest.mark.parametrize(
    ("make", "order"),
    [
        (lambda path: runge_kutta(path, MIDPOINT), 2),
        (lambda path: runge_kutta(path, RUNGE_KUTTA_3), 2),
        (lambda path: weak(runge_kutta(path, MIDPOINT)), 1),
        (lambda path: runge_kutta(path, two_stage(0.5, weak=True)), 1),
        (lambda path: runge_kutta(path, STIFF_3), 3),
        (lambda path: runge_kutta(path, STIFF_4), 4),
    ],
    ids=["midpoint", "rk3", "weak midpoint", "weak two-stage", "stiff 3", "stiff 4"],
)
def test_orders_on_a_stiff_equation(make, order):
    """kappa h is 800 and more: strict orders stay, the weak variant falls to 1, order 3 to its strict 2."""
    steps = (20, 40) if order == 4 else (40, 80)
    (slope,) = reference.slopes(steps, [prothero_robinson(n, make) for n in steps])
    assert slope == pytest.approx(order, abs=0.1)


def test_orders_that_methods_state():
    stated = {EULER: 1, HEUN: 2, MIDPOINT: 2, RUNGE_KUTTA_3: 3, KUTTA_3: 3, STIFF_3: 3, STIFF_4: 4, KROGSTAD: 4}
    assert {method: method.order for method in stated} == stated


@pytest.mark.claim("solvers-stiff-order")
def test_heun_ends_on_the_solution_of_a_stiff_equation():
    """Its second node is the end of the step, where all of the kernel sits: the error is h/(2 kappa), below h^2."""
    for n in (40, 80):
        error = prothero_robinson(n, lambda path: runge_kutta(path, HEUN))
        assert error == pytest.approx(0.5 / n / 1e5, rel=0.02)


@pytest.mark.claim("solvers-stiff-order")
def test_weak_variant_is_of_order_two_where_nothing_is_stiff():
    def run(n: int, make: Builder) -> np.ndarray:
        problem = reference.Forced()
        path = paths.semilinear(np.linspace(0.0, 2.0, n + 1), problem.mean)
        return solve(problem.denoise, problem.exact(0.0), make(path))

    exact_solution = reference.Forced().exact(2.0)
    assert_order(lambda n: run(n, lambda path: weak(runge_kutta(path, MIDPOINT))), exact_solution, 2, (160, 320))


@pytest.mark.claim("solvers-lawson")
def test_lawson_methods_lose_their_order_on_a_heat_equation():
    """Modes of u_t = u_xx + source, u = x (1 - x) e^t, of size 8/(pi k)^3: Lawson's midpoint method against ours."""
    modes = np.arange(1, 60, 2)
    rates, size = -((np.pi * modes) ** 2), 8.0 / (np.pi * modes) ** 3

    def ours(n: int) -> float:
        t = np.linspace(0.0, 1.0, n + 1)
        ends = []
        for rate, c in zip(rates, size, strict=True):
            source = lambda y, s, rate=rate, c=c: (1.0 - rate) * c * np.exp(s.t) + 0.0 * y  # noqa: E731
            ends.append(solve(source, np.array(c), runge_kutta(paths.semilinear(t, float(rate)), MIDPOINT)))
        return reference.rms(np.asarray(ends) - size * math.e)

    def lawson(n: int) -> float:
        h, y = 1.0 / n, size.copy()
        for t in np.arange(n) * h:
            y = np.exp(rates * h) * y + h * np.exp(rates * h / 2) * (1.0 - rates) * size * math.exp(t + h / 2)
        return reference.rms(y - size * math.e)

    assert reference.slopes((40, 80), [ours(n) for n in (40, 80)])[0] == pytest.approx(2.0, abs=0.1)
    # a mode with rate times step above 1 is lost altogether: those sizes add up to step^(5/4)
    assert reference.slopes((160, 320), [lawson(n) for n in (160, 320)])[0] == pytest.approx(1.25, abs=0.05)


# -- exact moments, SDEs ----------------------------------------------------------------------------------------------


def gaussian(mean: float, std: float) -> Callable[[Any, Any], Any]:
    """Denoiser of N(mean, std^2)."""

    def denoise(x: Any, level: Any) -> Any:
        _, alpha, sigma = level
        return mean + alpha * std**2 / (alpha**2 * std**2 + sigma**2) * (x - alpha * mean)

    return denoise


def response(table: Table, denoise: Callable[[Any, Any], Any]) -> tuple[float, float, np.ndarray]:
    """The sampler as an affine map x -> offset + gain x + sum noise_i z_i, read from unit inputs in one run."""

    def unit(number: int, like: Any = None) -> np.ndarray:
        z = np.zeros(table.evaluations + 3)
        z[number] = 1.0
        return z

    out = solve(denoise, unit(1), table, rng=lambda row, like: unit(row + 2))
    return float(out[0]), float(out[1] - out[0]), out[2:] - out[0]


def moments_of(path: paths.Path, table: Table, mean: float, std: float) -> tuple[float, float]:
    """Mean and variance of the output for the input N(alpha mean, alpha^2 std^2 + sigma^2), exactly."""
    offset, gain, noise = response(table, gaussian(mean, std))
    _, alpha, sigma = point(path.first)
    return offset + gain * alpha * mean, gain**2 * (alpha**2 * std**2 + sigma**2) + float(np.sum(noise**2))


def exact_moments(path: paths.Path, mean: float, std: float) -> tuple[float, float]:
    _, alpha, sigma = point(path.last)
    return alpha * mean, alpha**2 * std**2 + sigma**2


@pytest.mark.claim("solvers-gaussian")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 1.4])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_gaussian_data_are_exact_on_their_velocity_path(steps, eta, method):
    """Whatever the method, the noise and the number of steps, from alpha = 0 to sigma = 0."""
    for schedule in (FLOW, schedules.cosine(), VP):
        path = paths.velocity(schedule, grids.uniform(schedule, steps), sigma_data=1.7, centre=0.8, eta=eta)
        found = moments_of(path, METHODS[method][1](path), 0.8, 1.7)
        assert found == pytest.approx(exact_moments(path, 0.8, 1.7), rel=EXACT)
    wrong = paths.velocity(FLOW, grids.uniform(FLOW, steps), sigma_data=1.7, eta=eta)
    assert abs(moments_of(wrong, METHODS[method][1](wrong), 0.8, 1.7)[0] - 0.8) > 1e-5


SDE_PATHS: dict[str, Callable[..., paths.Path]] = {
    "x0": paths.x0,
    "x0 ratio": functools.partial(paths.x0, coordinate="ratio"),
    "velocity": functools.partial(paths.velocity, sigma_data=0.6),
}
NOISY = schedules.truncate(FLOW, t_clean=0.05, t_noise=0.97)


def law_error(path: paths.Path, table: Table) -> float:
    """Distance of mean and variance of the output from the law at the last level, for data N(.8, 1.7^2)."""
    (mean, variance), (exact_mean, exact_variance) = moments_of(path, table, 0.8, 1.7), exact_moments(path, 0.8, 1.7)
    return math.hypot(mean - exact_mean, variance - exact_variance)


@pytest.mark.claim("solvers-weak-order", "solvers-orders")
@pytest.mark.parametrize(
    ("method", "order"), [("ab1", 1), ("ab2", 2), ("ab3", 2), ("ab4", 2), ("heun", 2), ("midpoint", 2), ("rk3", 2)]
)
@pytest.mark.parametrize(("name", "eta"), [("x0", 1.0), ("x0 ratio", 0.6), ("velocity", 1.0)])
def test_weak_order_on_gaussian_data(name, eta, method, order):
    steps = (320, 640)
    made = [SDE_PATHS[name](NOISY, grid("random", NOISY, n), eta=eta) for n in steps]
    (slope,) = reference.slopes(steps, [law_error(path, METHODS[method][1](path)) for path in made])
    assert slope == pytest.approx(order, abs=0.1)
    assert method not in ORDERS or ORDERS[method].weak == order


@pytest.mark.claim("solvers-weak-order")
@pytest.mark.parametrize("spacing", [np.full(2, 1.0), np.array([2.5, 1.0]), np.array([1.0, 2.5])])
def test_missing_covariance_of_a_step_and_what_order_two_adds(spacing):
    """One step misses twice the integral of K f_y Cov(B(s), B(end)), quadrature over the noise arrived so far.

    Two steps of order 2 miss that of the first only: the second adds its own share, whatever the ratio of the steps.
    """
    mean, std, t_start = 0.8, 1.7, 0.6
    ratios, totals = [], []
    for h in (2e-3, 1e-3):
        lam = float(FLOW.log_snr(t_start)) + np.concatenate([[0.0], h * np.cumsum(spacing)])
        t = FLOW.time(lam)

        def missing(nodes: np.ndarray, order: int) -> float:
            path = paths.x0(FLOW, nodes, eta=1.0)
            return exact_moments(path, mean, std)[1] - moments_of(path, adams_bashforth(path, order), mean, std)[1]

        a, b = point(FLOW.level(t[0])), point(FLOW.level(t[1]))
        slope = a[1] * std**2 / (a[1] ** 2 * std**2 + a[2] ** 2)

        def covariance(s: np.ndarray, a=a, b=b, lam=lam) -> np.ndarray:
            sigma = np.array([reference.point_of_geometry("flow", math.exp(-x))[2] for x in s])
            arrived = sigma**2 * -np.expm1(-2.0 * (s - lam[0]))
            return 2.0 * b[1] * np.exp(2.0 * (s - lam[1])) * arrived * b[2] / sigma * np.exp(s - lam[1])

        integral = reference.integrate(covariance, lam[0], lam[1])
        one = missing(t[:2], 1)
        ratios.append(one / (2.0 * slope * integral))
        # the leading term by hand, in units that share no code
        width = lam[1] - lam[0]
        assert one == pytest.approx(4.0 * a[1] * a[2] ** 2 * slope * width**2, rel=8.0 * width)
        totals.append([missing(t, order) / one for order in (1, 2)])
    # both tend to 1 in proportion to h
    assert abs(ratios[1] - 1.0) < 5e-3
    assert (ratios[0] - 1.0) / (ratios[1] - 1.0) == pytest.approx(2.0, abs=0.1)
    assert totals[1][0] == pytest.approx(1.0 + (spacing[1] / spacing[0]) ** 2, rel=0.02)
    assert totals[1][1] == pytest.approx(1.0, abs=0.04)
    assert (totals[0][1] - 1.0) / (totals[1][1] - 1.0) == pytest.approx(2.0, abs=0.2)


PAIRED = np.linspace(-5.5, 5.5, 110)
"""States in units of their standard deviation; the tails beyond hold 1e-7, the noise of a step is 0.9 spacings."""
WAVE = 2.0
"""The law is judged by E exp(i WAVE x)."""


def characteristic(alpha: float, sigma: float) -> complex:
    """E exp(i WAVE x) of the two peaks at a level."""
    variance = alpha**2 * PEAKS.std**2 + sigma**2
    peaks = [(PEAKS.share, PEAKS.centre + PEAKS.half), (1.0 - PEAKS.share, PEAKS.centre - PEAKS.half)]
    return sum(share * np.exp(1j * WAVE * alpha * m - 0.5 * WAVE**2 * variance) for share, m in peaks)


def density(x: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
    variance = alpha**2 * PEAKS.std**2 + sigma**2
    peaks = [(PEAKS.share, PEAKS.centre + PEAKS.half), (1.0 - PEAKS.share, PEAKS.centre - PEAKS.half)]
    terms = [share * np.exp(-0.5 * (x - alpha * m) ** 2 / variance) for share, m in peaks]
    return np.sum(terms, axis=0) / math.sqrt(2.0 * math.pi * variance)


def spread_at(level: reference.Point) -> float:
    return math.hypot(level[1] * PEAKS.spread, level[2])


def forward_pairs(path: paths.Path) -> complex:
    """E exp(i WAVE x) at the end of Adams-Bashforth 2, by quadrature of the joint law of the state and the last D."""
    table = adams_bashforth(path, 2)
    levels = [point(Level(*parts)) for parts in zip(*table.node, strict=True)]
    du = PAIRED[1] - PAIRED[0]
    x = spread_at(levels[0]) * PAIRED
    joint, old = (density(x, *levels[0][1:]) * spread_at(levels[0]) * du)[:, None], np.zeros(1)
    for r, after in enumerate(levels[1:]):
        f, new = PEAKS.denoise(x, levels[r]), table.weights[r, table.slot[r]]
        mean = (table.carry[r] * x + new * f)[:, None] + (table.weights[r].sum() - new) * old
        x = spread_at(after) * PAIRED
        z = (x[:, None, None] - mean) / table.noise[r]
        scale = spread_at(after) * du / (math.sqrt(2.0 * math.pi) * table.noise[r])
        joint, old = np.einsum("ijk,jk->ij", np.exp(-0.5 * z * z), joint) * scale, f
    return complex(joint.sum(axis=1) @ np.exp(1j * WAVE * x))


def backward(t: np.ndarray, eta: float, method: Method) -> complex:
    """The same on x0 for a method without history, one draw a step: the expectation is carried back from the end."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid_points = np.linspace(-6.5, 6.5, 261)
    value = lambda x: np.exp(1j * WAVE * x)  # noqa: E731
    for pair in reversed(list(itertools.pairwise(t))):
        step = paths.x0(FLOW, np.array(pair), eta=eta)
        first, last = point(step.first), point(step.last)
        x = spread_at(first) * grid_points
        ends = solve(
            PEAKS.denoise, np.repeat(x[:, None], 24, axis=1), runge_kutta(step, method),
            rng=lambda _, like: np.broadcast_to(nodes, like.shape),
        )  # fmt: skip
        reach = spread_at(last) * grid_points[-1]
        carried = value(np.clip(ends, -reach, reach)) @ weights / math.sqrt(2.0 * math.pi)
        value = CubicSpline(x, carried)
    return complex(np.sum(value(x) * density(x, *first[1:])) * (x[1] - x[0]))


@pytest.mark.claim("solvers-orders", "solvers-weak-order")
@pytest.mark.parametrize(("method", "order"), [("ab1", 1), ("ab2", 2), ("heun", 2)])
def test_weak_order_on_a_mixture(method, order):
    """Where the drift is not linear and the mean of an error is not 0, on uneven steps, without random numbers."""
    errors, steps, eta = [], (16, 32), 0.8
    for n in steps:
        widths = np.resize([1.0, 2.0], n)
        lam = np.concatenate([[-1.0], -1.0 + 1.8 * np.cumsum(widths) / np.sum(widths)])
        t = FLOW.time(lam)
        path = paths.x0(FLOW, t, eta=eta)
        found = forward_pairs(path) if method == "ab2" else backward(t, eta, {"ab1": EULER, "heun": HEUN}[method])
        errors.append(abs(found - characteristic(*point(path.last)[1:])))
    (slope,) = reference.slopes(steps, errors)
    assert slope == pytest.approx(order, abs=0.2)
    assert ORDERS[method].weak == order


@pytest.mark.claim("solvers-orders")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["x0", "x0 ratio"])
def test_mean_is_exact_on_x0(name, method):
    """D is constant along x = alpha m, so the mean is exact on x0 for any Gaussian; the variance is not."""
    path = SDE_PATHS[name](NOISY, grid("random", NOISY, 9), eta=0.8)
    (mean, variance), (exact_mean, exact_variance) = (
        moments_of(path, METHODS[method][1](path), 0.8, 1.7), exact_moments(path, 0.8, 1.7)
    )  # fmt: skip
    assert mean == pytest.approx(exact_mean, rel=1e-11)
    assert abs(variance - exact_variance) > 1e-4


@pytest.mark.claim("solvers-weak-order", "paths-ancestral")
@pytest.mark.parametrize(("method", "order"), [("ab1", 1), ("ab2", 1), ("midpoint", 2), ("heun", 2)])
def test_multistep_methods_fall_to_weak_order_one_on_ancestral_noise(method, order):
    """Their old values were taken before the noise was put back; Runge-Kutta methods have none and keep order 2."""
    steps = (320, 640)
    made = [paths.ancestral(paths.x0(NOISY, grid("random", NOISY, n)), 0.7) for n in steps]
    (slope,) = reference.slopes(steps, [law_error(path, METHODS[method][1](path)) for path in made])
    assert slope == pytest.approx(order, abs=0.1)
    assert ORDERS["ddim"].weak == 1


@pytest.mark.claim("solvers-weak-order", "paths-churn")
def test_churn_keeps_weak_order_two_with_unit_noise_only():
    def error(n: int, s_noise: float) -> float:
        path = paths.noise(NOISY, grid("uniform", NOISY, n), coordinate="ratio")
        path = paths.churn(path, np.full(n, min(5.0 / n, math.sqrt(2.0) - 1.0)), s_noise=s_noise)
        return moments_of(path, runge_kutta(path, HEUN), 0.8, 1.7)[1] - exact_moments(path, 0.8, 1.7)[1]

    (slope,) = reference.slopes((160, 320), [abs(error(n, 1.0)) for n in (160, 320)])
    assert slope == pytest.approx(2.0, abs=0.1)
    assert abs(error(320, 1.05)) > 20.0 * abs(error(320, 1.0))
    (slope,) = reference.slopes((160, 320), [abs(error(n, 1.05)) for n in (160, 320)])
    assert abs(slope) < 0.3


@pytest.mark.claim("solvers-strong-order", "solvers-orders")
@pytest.mark.parametrize("method", ["ab1", "ab2", "ab3", "ab4", "heun", "ddim"])
def test_strong_order_on_gaussian_data(method):
    """Root mean square of the difference between n and 2n steps on one Brownian path, exactly: slope 1.

    The noise of a coarse step is that of its two fine steps, the first carried on by the linear part, scaled to
    variance 1. The first steps are left out: those of a Runge-Kutta start split their noise.
    """
    skip = 4

    def parts(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Response to the noise of each step, factor and noise of each step."""
        t = grid("uniform", NOISY, n)
        if method == "ddim":
            table = adams_bashforth(paths.ancestral(paths.x0(NOISY, t), 0.7), 1)
            return response(table, gaussian(0.8, 1.7))[2][:-1], np.asarray(table.carry), np.asarray(table.noise)
        path = paths.x0(NOISY, t, eta=1.0)
        table = METHODS[method][1](path)
        first_rows = np.concatenate([[0], table.end[:-1] + 1])
        return response(table, gaussian(0.8, 1.7))[2][first_rows], *path.propagate(path.start, path.stop)

    def difference(n: int) -> float:
        coarse, (fine, factor, std) = parts(n)[0], parts(2 * n)
        shares = np.stack([factor[1::2] * std[::2], std[1::2]], axis=1)
        shares /= np.sqrt(np.sum(shares**2, axis=1, keepdims=True))
        gap = coarse[:, None] * shares - np.stack([fine[::2], fine[1::2]], axis=1)
        return float(np.sqrt(np.sum(gap[skip:] ** 2)))

    (slope,) = reference.slopes((80, 160), [difference(n) for n in (80, 160)])
    assert slope == pytest.approx(1.0, abs=0.1)
    assert ORDERS[method].strong == 1


def test_orders_are_stated_for_every_named_sampler():
    named = {name for name in solvers.__all__ if name in {"ab1", "ab2", "ab3", "ab4", "ddim", "heun"}}
    assert set(ORDERS) == named
    assert [ORDERS[f"ab{k}"].ode for k in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert ORDERS["heun"].ode == HEUN.order == MIDPOINT.order == 2
    assert (EULER.order, RUNGE_KUTTA_3.order) == (1, 3)
    assert tuple(ORDERS["ddim"]) == tuple(ORDERS["ab1"]) == (1, 1, 1)


# -- ends and few steps -----------------------------------------------------------------------------------------------


def keep_log(calls: list[Level]) -> Callable[[np.ndarray, Level], np.ndarray]:
    """The mixture's denoiser, which writes down the levels it sees."""

    def denoise(x: np.ndarray, level: Level) -> np.ndarray:
        calls.append(level)
        return PEAKS.denoise(x, level)

    return denoise


NAMED = {"ab1": ab1, "ab2": ab2, "ab3": ab3, "ab4": ab4, "heun": heun}


@pytest.mark.claim("solvers-ends")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [[1.0, 0.0], [0.7, 0.3, 0.0], [1.0, 0.6, 0.3, 0.0]], ids=["1 step", "2 steps", "3 steps"])
def test_last_step_to_clean_data_returns_the_denoised_point(t, method):
    """On x0 at sigma = 0 only order 1 has a limit, alpha' D; from alpha = 0 too."""
    calls, seen = [], []

    def denoise(x: np.ndarray, level: Level) -> np.ndarray:
        calls.append(level)
        seen.append(PEAKS.denoise(x, level))
        return seen[-1]

    for coordinate in ("log_snr", "ratio"):
        path = paths.x0(FLOW, np.array(t), coordinate=coordinate)
        out = solve(denoise, STARTS, METHODS[method][1](path))
        np.testing.assert_array_equal(out, seen[-1])
        assert float(calls[-1].t) == t[-2]
        noisy = solve(denoise, STARTS, METHODS[method][1](paths.x0(FLOW, np.array(t), eta=1.0)), rng=prescribed)
        np.testing.assert_array_equal(noisy, seen[-1])


@pytest.mark.claim("solvers-ends")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_few_steps_between_both_ends(steps, method):
    """Finite; one step of `velocity` across the quarter circle adds (pi/2) D to x, one step of `x0` leaves D."""
    schedule = schedules.cosine()
    path = paths.velocity(schedule, grids.uniform(schedule, steps))
    out = solve(PEAKS.denoise, STARTS, METHODS[method][1](path))
    assert np.all(np.isfinite(out))
    if steps == 1 and method in {"ab1", "ab2"}:
        np.testing.assert_allclose(out - STARTS, math.pi / 2.0 * PEAKS.denoise(STARTS, (1.0, 0.0, 1.0)), rtol=EXACT)
    clean = paths.noise(INNER, grids.uniform(INNER, steps))
    assert np.all(np.isfinite(solve(PEAKS.denoise, STARTS, METHODS[method][1](clean))))


@pytest.mark.claim("solvers-ends")
def test_an_infinite_start_is_no_node():
    """x0 in log-SNR from alpha = 0: the first step is of order 1, the second starts the method anew."""
    t = grids.uniform(FLOW, 6)
    in_log, in_ratio = (adams_bashforth(paths.x0(FLOW, t, coordinate=c), 2) for c in ("log_snr", "ratio"))
    for table, nodes in ((in_log, [1, 1, 2, 2, 2, 1]), (in_ratio, [1, 2, 2, 2, 2, 1])):
        assert [int(np.count_nonzero(row)) for row in table.weights] == nodes
    three = adams_bashforth(paths.x0(FLOW, t), 3)
    assert three.evaluations == 7
    assert three.end.tolist() == [0, 2, 3, 4, 5, 6]
    four = adams_bashforth(paths.x0(FLOW, t), 4)
    assert four.end.tolist() == [0, 3, 6, 7, 8, 9]


@pytest.mark.claim("solvers-ends")
def test_runge_kutta_at_the_ends():
    t = grids.uniform(FLOW, 4)
    assert runge_kutta(paths.x0(FLOW, t), HEUN).end.tolist() == [0, 2, 4, 5]
    assert runge_kutta(paths.x0(FLOW, t, coordinate="ratio"), HEUN).end.tolist() == [1, 3, 5, 6]
    velocity = paths.velocity(FLOW, t)
    for method in (HEUN, MIDPOINT):
        table = runge_kutta(velocity, method)
        assert table.end.tolist() == [1, 3, 5, 7]
        last = table.level.sigma / (table.level.alpha + table.level.sigma)
        assert (last[5] == table.level.sigma[6]) == (method is HEUN)
    heun_table, midpoint_table = (runge_kutta(velocity, m) for m in (HEUN, MIDPOINT))
    np.testing.assert_array_equal(heun_table.weights[6:], midpoint_table.weights[6:])
    assert runge_kutta(velocity, RUNGE_KUTTA_3).end.tolist() == [2, 5, 8, 11]
    semilinear = runge_kutta(paths.semilinear(t[::-1] * 1.0, -1.0), HEUN)
    assert semilinear.level.t.tolist() == [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


@pytest.mark.claim("solvers-start")
def test_evaluations_are_those_stated():
    """N for Adams-Bashforth, one more at order 3, four more at order 4; stages times N for Runge-Kutta."""
    expected = {"ab1": 12, "ab2": 12, "ab3": 13, "ab4": 16, "midpoint": 24, "heun": 24, "rk3": 36}
    for name, (_, build) in METHODS.items():
        calls: list[Level] = []
        table = build(paths.x0(INNER, grid("random", INNER, 12)))
        solve(keep_log(calls), STARTS, table)
        assert len(calls) == table.evaluations == expected[name]
        assert table.steps == 12
    for name, (_, build) in RAMPS.items():
        assert build(paths.x0(INNER, grid("random", INNER, 12))).evaluations == 12, name


@pytest.mark.claim("solvers-table")
def test_the_denoiser_sees_the_levels_of_the_grid():
    """Not one off, not rounded, the last one never."""
    t = grid("random", INNER, 9)
    level = INNER.level(t)
    for order in (1, 2, 3, 4):
        calls: list[Level] = []
        table = adams_bashforth(paths.noise(INNER, t), order)
        solve(keep_log(calls), STARTS, table)
        at_nodes = [calls[r] for r in np.concatenate([[0], table.end[:-1] + 1])]
        for name in ("t", "alpha", "sigma"):
            np.testing.assert_array_equal([getattr(c, name) for c in at_nodes], getattr(level, name)[:-1])
            np.testing.assert_array_equal(getattr(table.node, name), getattr(level, name))
    calls = []
    heun(keep_log(calls), STARTS, paths.noise(INNER, t))
    np.testing.assert_array_equal([c.t for c in calls], np.repeat(t, 2)[1:-1])


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("name", [*NAMED, "ddim"])
def test_named_samplers_are_a_path_and_a_method(name):
    t = grid("random", INNER, 8)
    path = paths.x0(INNER, t)
    if name == "ddim":
        out, states = (ddim(PEAKS.denoise, STARTS, INNER, t, trajectory=traced) for traced in (False, True))
        table = adams_bashforth(path, 1)
    else:
        out, states = (NAMED[name](PEAKS.denoise, STARTS, path, trajectory=traced) for traced in (False, True))
        table = METHODS[name][1](path)
    np.testing.assert_array_equal(out, solve(PEAKS.denoise, STARTS, table))
    np.testing.assert_array_equal(states, solve(PEAKS.denoise, STARTS, table, trajectory=True))
    assert states.shape == (9, 5)
    if name != "ddim":
        noisy, wrapped = paths.x0(INNER, t, eta=0.5), []
        out = NAMED[name](
            PEAKS.denoise, STARTS, noisy, rng=prescribed, progress=lambda rows: [wrapped.append(r) or r for r in rows]
        )
        np.testing.assert_array_equal(out, solve(PEAKS.denoise, STARTS, METHODS[name][1](noisy), rng=prescribed))
        assert len(wrapped) == METHODS[name][1](noisy).evaluations
    else:
        out = ddim(PEAKS.denoise, STARTS, INNER, t, eta=0.5, rng=prescribed)
        converted = paths.from_ddim_eta(0.5, np.diff(INNER.log_snr(t)))
        np.testing.assert_allclose(
            out,
            ab1(PEAKS.denoise, STARTS, paths.x0(INNER, t, eta=converted), rng=prescribed),
            rtol=1e-12,
        )


# -- states, progress, noise ------------------------------------------------------------------------------------------

TRACKS: dict[str, Callable[[np.ndarray], paths.Path]] = {
    "ode": lambda t: paths.noise(INNER, t),
    "sde": lambda t: paths.velocity(INNER, t, eta=0.8),
    "ancestral": lambda t: paths.ancestral(paths.x0(INNER, t), 0.7),
    "churn": lambda t: paths.churn(paths.noise(INNER, t, coordinate="ratio"), 0.2),
}


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TRACKS)
def test_trajectory(name, method):
    """First the input, last the result, between them the states of shorter runs."""
    t = grid("random", INNER, 6)
    path = TRACKS[name](t)
    table = METHODS[method][1](path)
    states = solve(PEAKS.denoise, STARTS, table, rng=prescribed, trajectory=True)
    assert states.shape == (7, 5)
    np.testing.assert_array_equal(states[0], STARTS)
    np.testing.assert_array_equal(states[-1], solve(PEAKS.denoise, STARTS, table, rng=prescribed))
    for n in range(1, 6):
        rows = int(table.end[n - 1]) + 1

        def cut(part: Any, rows: int = rows) -> Any:
            return None if part is None else part[:rows]

        shorter = table._replace(
            level=Level(*map(cut, table.level)), target=cut(table.target), slot=cut(table.slot), carry=cut(table.carry),
            weights=cut(table.weights), noise=cut(table.noise), bias=cut(table.bias), end=table.end[:n],
        )  # fmt: skip

        def same_draws(row: int, like: np.ndarray, rows: int = rows) -> np.ndarray:
            return prescribed(table.evaluations if row == rows else row)

        np.testing.assert_array_equal(states[n], solve(PEAKS.denoise, STARTS, shorter, rng=same_draws))


def test_progress_wraps_the_rows():
    seen = []

    def progress(rows: list) -> Any:
        for r, row in enumerate(rows):
            seen.append(r)
            yield row

    table = adams_bashforth(paths.x0(INNER, grid("random", INNER, 6)), 3)
    out = solve(PEAKS.denoise, STARTS, table, progress=progress)
    assert seen == list(range(7))
    np.testing.assert_array_equal(out, solve(PEAKS.denoise, STARTS, table))


@pytest.mark.claim("solvers-table")
def test_no_number_is_drawn_where_there_is_no_noise():
    drawn: list[int] = []

    def rng(row: int, like: np.ndarray) -> np.ndarray:
        drawn.append(row)
        return np.zeros(like.shape)

    t = grid("random", INNER, 6)
    ab2(PEAKS.denoise, STARTS, paths.x0(INNER, t, eta=np.array([0.0, 1.0, 0.0, 0.5, 0.0, 0.0])), rng=rng)
    assert drawn == [1, 3]
    drawn.clear()
    heun(PEAKS.denoise, STARTS, paths.x0(INNER, t, eta=1.0), rng=rng)
    assert drawn == [0, 2, 4, 6, 8, 10]
    drawn.clear()
    path = paths.noise(INNER, t, coordinate="ratio")
    heun(PEAKS.denoise, STARTS, paths.churn(path, np.array([0.1, 0.0, 0.2, 0.0, 0.0, 0.3])), rng=rng)
    assert drawn == [12, 3, 9]
    drawn.clear()
    heun(PEAKS.denoise, STARTS, paths.churn(path, np.array([0.0, 0.0, 0.2, 0.0, 0.0, 0.0])), rng=rng)
    assert drawn == [3]


def test_generators_advance_by_one_draw_a_noisy_row():
    t, eta = grid("random", INNER, 5), np.array([0.0, 1.0, 0.4, 0.0, 0.3])
    path = paths.x0(INNER, t, eta=eta)
    draws = np.random.default_rng(7).standard_normal((3, 5))
    out = ab2(PEAKS.denoise, STARTS, path, rng=np.random.default_rng(7))
    expected = ab2(PEAKS.denoise, STARTS, path, rng=lambda row, like: draws[{1: 0, 2: 1, 4: 2}[row]])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(out, ab2(PEAKS.denoise, STARTS, path, rng=np.random.default_rng(7)))
    assert np.max(np.abs(out - ab2(PEAKS.denoise, STARTS, path, rng=np.random.default_rng(8)))) > 1e-3


def sources(backend: Any, seeds: Sequence[int]) -> Any:
    """One source of noise for each seed, of the library of `backend`."""
    if backend.name == "jax":
        import jax

        return jax.vmap(jax.random.key)(backend.xp.asarray(np.asarray(seeds)))
    if backend.name == "torch":
        return [backend.xp.Generator().manual_seed(seed) for seed in seeds]
    return [np.random.default_rng(seed) for seed in seeds]


def test_a_sample_does_not_depend_on_its_batch(backend):
    """With one source for each sample it gets what it would get alone."""
    if backend.name == "strict":
        pytest.skip("array-api-strict has no random numbers")
    path = paths.churn(paths.noise(INNER, grid("random", INNER, 4), coordinate="ratio"), 0.2)
    table = adams_bashforth(path, 2)
    x = backend.asarray(np.array([[0.3, 1.0], [-1.0, 0.2], [2.0, 0.1]]))

    def denoise(y: Any, level: Level) -> Any:
        return y * level.alpha / (level.alpha**2 + level.sigma**2)

    def run(rows: list[int], seeds: list[int]) -> np.ndarray:
        taken = backend.xp.stack([x[i] for i in rows])
        return backend.numpy(solve(denoise, taken, table, rng=sources(backend, seeds), trajectory=True))

    batch = run([0, 1, 2], [5, 6, 7])
    np.testing.assert_allclose(run([1], [6])[:, 0], batch[:, 1], rtol=1e-13)
    if backend.name != "jax":
        swapped = run([2, 0], [7, 6])
        np.testing.assert_allclose(swapped[:, 0], batch[:, 2], rtol=1e-13)
        assert np.max(np.abs(swapped[:, 1] - batch[:, 0])) > 1e-3


# -- backends and dtypes ----------------------------------------------------------------------------------------------


@functools.cache
def small_tables() -> dict[str, Table]:
    t = grid("random", INNER, 5)
    return {
        "ab4 x0": adams_bashforth(paths.x0(INNER, t), 4),
        "heun noise": runge_kutta(paths.noise(INNER, t), HEUN),
        "rk3 velocity": runge_kutta(paths.velocity(INNER, t, sigma_data=0.6, centre=0.2), RUNGE_KUTTA_3),
        "ab2 sde": adams_bashforth(paths.velocity(INNER, t, eta=0.9, centre=np.linspace(-0.2, 0.2, 5)), 2),
        "heun churn": runge_kutta(paths.churn(paths.noise(INNER, t, coordinate="ratio"), 0.3), HEUN),
        "ab2 ancestral": adams_bashforth(paths.ancestral(paths.x0(INNER, t), 0.5), 2),
    }


TOLERANCES = {"float64": 1e-13, "float32": 2e-6}
"""Some roundings a row, of states of order 1."""


def denoiser_of(backend: Any) -> Callable[[Any, Level], Any]:
    return lambda x, level: PEAKS.denoise(x, level, backend.xp.tanh)


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", small_tables())
def test_every_backend_agrees_with_float64_numpy(backend, name, dtype):
    table = small_tables()[name]
    trajectory = name != "ab4 x0"
    expected = solve(PEAKS.denoise, STARTS, table, rng=prescribed, trajectory=trajectory)
    draws = np.stack([prescribed(r) for r in range(table.evaluations + 1)])

    def rng(row: Any, like: Any) -> Any:
        return backend.asarray(draws)[row, ...]

    found = solve(denoiser_of(backend), backend.asarray(STARTS, dtype), table, rng=rng, trajectory=trajectory)
    assert backend.dtype(found) == dtype
    assert type(found) is type(backend.asarray(STARTS))
    np.testing.assert_allclose(backend.numpy(found), expected, atol=TOLERANCES[dtype] * np.max(np.abs(expected)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 2, 2)])
def test_shapes_dtypes_and_levels(backend, shape, dtype):
    if backend.name == "jax" and shape in {(1,), (2, 1, 2, 2)}:
        pytest.skip("each shape is a compilation")
    seen = []

    def denoise(x: Any, level: Level) -> Any:
        assert backend.name == "jax" or all(type(part) is type(backend.asarray(0.0)) for part in level)
        seen.append((x.shape, backend.dtype(x), [(part.shape, backend.dtype(part)) for part in level]))
        return 0.5 * x + 0.0 * level.sigma

    x = backend.asarray(np.full(shape, 0.3), dtype)
    states = solve(denoise, x, small_tables()["ab4 x0"], trajectory=True)
    assert tuple(states.shape) == (6, *shape)
    assert backend.dtype(states) == dtype
    assert all(entry == (shape, dtype, [((), dtype)] * 3) for entry in seen)
    if backend.name != "jax" or shape == (2, 3):
        out = solve(denoise, x, small_tables()["ab4 x0"])
        assert tuple(out.shape) == shape
        assert backend.dtype(out) == dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_half_precision(name, dtype):
    """The state is float32 between rows, history and denoiser are half: 500 steps err by a few roundings."""
    from conftest import make_backend

    backend = make_backend(name)
    seen = []

    def denoise(x: Any, level: Level) -> Any:
        seen.append((backend.dtype(x), backend.dtype(level.sigma)))
        return backend.xp.asarray(PEAKS.denoise(x, level, backend.xp.tanh)).astype(x.dtype) if name == "jax" else (
            PEAKS.denoise(x, level, backend.xp.tanh).to(x.dtype)
        )  # fmt: skip

    table = adams_bashforth(paths.x0(INNER, grid("karras", INNER, 500)), 2)
    out = solve(denoise, backend.asarray(STARTS, dtype), table)
    assert backend.dtype(out) == dtype
    assert set(seen) == {(dtype, "float32")}
    start = backend.numpy(backend.asarray(STARTS, dtype))
    expected = solve(PEAKS.denoise, start, table)
    rounding = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    assert np.max(np.abs(backend.numpy(out) - expected)) < 3.0 * rounding


MANY_STARTS = np.linspace(-2.0, 2.0, 101)
"""So many that the error of a run in float32 is not small by luck."""


@functools.cache
def many_ends() -> np.ndarray:
    return PEAKS.exact(MANY_STARTS, point(INNER.level(INNER.t_noise)), point(INNER.level(INNER.t_clean)))


def errors_in_float32(name: str, nodes: str, method: str, steps: Sequence[int]) -> list[float]:
    errors = []
    for n in steps:
        table = METHODS[method][1](PATHS[name](INNER, grid(nodes, INNER, n)))
        out = solve(PEAKS.denoise, MANY_STARTS.astype(np.float32), table)
        assert out.dtype == np.float32
        errors.append(reference.rms(out - many_ends()))
    return errors


@pytest.mark.claim("solvers-rounding")
@pytest.mark.parametrize("nodes", ["uniform", "karras", "random"])
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *[("x0", "ab4"), ("noise", "ab2"), ("velocity", "ab3"), ("noise ratio", "heun")],
        *[pytest.param(a, b, marks=SLOW) for a in PATHS for b in METHODS],
    ],
)
def test_refining_in_float32_never_makes_it_worse(name, nodes, method):
    steps = (8, 30, 100, 300, 1000)
    errors = errors_in_float32(name, nodes, method, steps)
    for n in range(len(errors)):
        assert errors[n] <= 3.0 * min(errors[: n + 1]), list(zip(steps, errors, strict=True))
    if METHODS[method][0] > 1:
        assert errors[-1] < 1e-5


# -- JAX --------------------------------------------------------------------------------------------------------------


def import_jax() -> Any:
    return pytest.importorskip("jax", exc_type=ImportError)


def jax_peaks(x: Any, level: Level) -> Any:
    return PEAKS.denoise(x, level, import_jax().numpy.tanh)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *[("x0", "ab3"), ("velocity", "rk3")],
        *[pytest.param(a, b, marks=SLOW) for a in PATHS for b in METHODS],
    ],
)
def test_jit_with_the_grid_as_an_argument(name, method):
    """Paths and tables are traced with it."""
    jax = import_jax()
    t = grid("random", INNER, 6)

    @jax.jit
    def run(x: Any, t: Any) -> Any:
        return solve(jax_peaks, x, METHODS[method][1](PATHS[name](INNER, t)), trajectory=True)

    expected = solve(PEAKS.denoise, STARTS, METHODS[method][1](PATHS[name](INNER, t)), trajectory=True)
    np.testing.assert_allclose(run(STARTS, t), expected, rtol=2e-11)


@pytest.mark.claim("solvers-table")
def test_a_numpy_state_beside_a_traced_table_becomes_a_jax_array():
    jax = import_jax()
    t = grid("random", INNER, 4)
    out = jax.jit(lambda t: ab2(jax_peaks, STARTS, paths.x0(INNER, t)))(t)
    np.testing.assert_allclose(out, ab2(PEAKS.denoise, STARTS, paths.x0(INNER, t)), rtol=1e-13)


def central_difference(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    at = np.asarray(at, dtype=float)
    slopes = np.zeros(at.shape)
    for i in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][i] += step
        moved[1][i] -= step
        slopes[i] = (function(moved[0]) - function(moved[1])) / (2.0 * step)
    return slopes


DIFFERENTIABLE = {
    "ab2 x0": lambda t: adams_bashforth(paths.x0(INNER, t), 2),
    "ab4 noise": lambda t: adams_bashforth(paths.noise(INNER, t), 4),
    "heun velocity": lambda t: runge_kutta(paths.velocity(INNER, t, sigma_data=0.6, centre=0.2), HEUN),
    "ab2 sde": lambda t: adams_bashforth(paths.x0(INNER, t, eta=0.7), 2),
    "heun churn": lambda t: runge_kutta(paths.churn(paths.noise(INNER, t, coordinate="ratio"), SOME_GAMMA), HEUN),
    "ab2 ancestral": lambda t: adams_bashforth(paths.ancestral(paths.x0(INNER, t), 0.5), 2),
}
SOME_GAMMA = np.array([0.2, 0.0, 0.3, 0.0, 0.1])
"""Steps without churn among them: a square root of 0 has no derivative."""
DIFFERENCE = 1e-7
"""Central differences with step 1e-5 err by 1e-10 h^2 and 1e-16/h, times derivatives of order 10."""


@pytest.mark.parametrize(
    "name", [n if n in {"ab2 x0", "heun churn"} else pytest.param(n, marks=SLOW) for n in DIFFERENTIABLE]
)
def test_gradients_under_jax(name):
    """Through the state, a parameter of the denoiser and the inner nodes of the grid, against differences."""
    jax = import_jax()
    t = grid("random", INNER, 5)
    draws = np.stack([prescribed(r) for r in range(20)])

    def loss(x: Any, shift: Any, inner: Any) -> Any:
        xp = jax.numpy
        nodes = xp.concatenate([t[:1], inner, t[-1:]])
        out = solve(
            lambda y, level: jax_peaks(y - shift * level.alpha, level) + shift, x, DIFFERENTIABLE[name](nodes),
            rng=lambda row, like: xp.asarray(draws)[row],
        )  # fmt: skip
        return xp.sum(xp.sin(out) * xp.arange(1.0, 6.0))

    def plain(x: np.ndarray, shift: np.ndarray, inner: np.ndarray) -> float:
        nodes = np.concatenate([t[:1], inner, t[-1:]])
        out = solve(
            lambda y, level: PEAKS.denoise(y - shift * level.alpha, level) + shift, x, DIFFERENTIABLE[name](nodes),
            rng=lambda row, like: draws[row],
        )  # fmt: skip
        return float(np.sum(np.sin(out) * np.arange(1.0, 6.0)))

    point = (STARTS, np.asarray(0.3), t[1:-1])
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*point)
    for i, gradient in enumerate(gradients):
        expected = central_difference(lambda value, i=i: plain(*point[:i], value, *point[i + 1 :]), point[i])
        np.testing.assert_allclose(gradient, expected, rtol=DIFFERENCE, atol=DIFFERENCE * np.max(np.abs(expected)))


@pytest.mark.parametrize("name", ["velocity", pytest.param("x0 ratio", marks=SLOW)])
def test_gradients_at_the_ends_are_finite(name):
    """From alpha = 0 to sigma = 0, through the grid too."""
    jax = import_jax()

    def loss(inner: Any, xp: Any) -> Any:
        t = xp.concatenate([xp.ones(1), inner, xp.zeros(1)])
        denoise = lambda x, level: PEAKS.denoise(x, level, xp.tanh)  # noqa: E731
        return xp.sum(solve(denoise, xp.asarray(STARTS), adams_bashforth(PATHS[name](FLOW, t), 1)))

    inner = np.array([0.8, 0.5, 0.2])
    expected = central_difference(lambda value: float(loss(value, np)), inner)
    found = jax.jit(jax.grad(lambda value: loss(value, jax.numpy)))(inner)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_vmap_over_states_grids_and_keys():
    jax = import_jax()
    x = np.random.default_rng(0).standard_normal((3, 5))
    t = np.stack([grid(nodes, INNER, 4) for nodes in ("uniform", "karras", "random")])
    keys = jax.random.split(jax.random.key(3), 3)

    def run(x: Any, t: Any, key: Any) -> Any:
        return solve(jax_peaks, x, adams_bashforth(paths.x0(INNER, t, eta=0.6), 2), rng=key)

    together = jax.jit(jax.vmap(run))(x, t, keys)
    over_states = jax.jit(jax.vmap(run, in_axes=(0, None, None)))(x, t[2], keys[1])
    for i in range(3):
        for found, nodes, key in ((together[i], t[i], keys[i]), (over_states[i], t[2], keys[1])):

            def by_hand(row: int, like: np.ndarray, key: Any = key) -> np.ndarray:
                return np.asarray(jax.random.normal(jax.random.fold_in(key, row), like.shape, "float64"))

            expected = ab2(PEAKS.denoise, x[i], paths.x0(INNER, nodes, eta=0.6), rng=by_hand)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_keys_are_folded_with_the_number_of_the_row():
    """Same key, same result; typed and raw keys alike; the draws are those of the rows' numbers."""
    jax = import_jax()
    table = small_tables()["heun churn"]
    run = jax.jit(lambda key: solve(jax_peaks, jax.numpy.asarray(STARTS), table, rng=key))
    key = jax.random.key(11)
    out = run(key)
    np.testing.assert_array_equal(out, run(key))
    np.testing.assert_array_equal(out, run(jax.random.PRNGKey(11)))

    def by_hand(row: int, like: np.ndarray) -> np.ndarray:
        return np.asarray(jax.random.normal(jax.random.fold_in(key, row), like.shape, "float64"))

    np.testing.assert_allclose(out, solve(PEAKS.denoise, STARTS, table, rng=by_hand), rtol=1e-12)


@pytest.mark.claim("solvers-rounding")
@pytest.mark.parametrize(
    ("name", "method", "steps"),
    [
        ("x0", "ab2", (10, 100, 1000)),
        *[
            pytest.param(name, method, (10, 30, 100, 300, 1000), marks=SLOW)
            for name, method in (("x0", "ab4"), ("noise ratio", "ab2"), ("noise ratio", "ab4"), ("velocity", "ab4"))
        ],
    ],
)
def test_without_x64_the_table_too_is_float32(name, method, steps):
    jax = import_jax()
    with jax.enable_x64(False):
        errors = []
        for n in steps:
            t = jax.numpy.asarray(grid("karras", INNER, n), dtype="float32")
            x = jax.numpy.asarray(MANY_STARTS, dtype="float32")
            out = jax.jit(lambda x, t: solve(jax_peaks, x, METHODS[method][1](PATHS[name](INNER, t))))(x, t)
            assert out.dtype == "float32"
            errors.append(reference.rms(np.asarray(out, dtype=float) - many_ends()))
    for n in range(len(errors)):
        assert errors[n] <= 3.0 * min(errors[: n + 1]), errors
    assert errors[-1] < 2e-5


def count_equations(jaxpr: Any) -> int:
    """Equations of a program and of all programs inside it."""
    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)  # noqa: PLW2901
                total += count_equations(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.claim("solvers-memory")
@pytest.mark.parametrize("method", ["ab2", *(pytest.param(m, marks=SLOW) for m in ("ab1", "ab4", "rk3"))])
def test_program_and_memory_do_not_grow_with_the_steps(method):
    jax = import_jax()
    x = np.zeros(2**17, dtype=np.float32)
    size, program = {}, {}
    for n in (20, 1000):
        t = np.asarray(grid("uniform", INNER, n), dtype=np.float32)

        def run(x: Any, t: Any) -> Any:
            return solve(jax_peaks, x, METHODS[method][1](paths.x0(INNER, t)))

        traced = jax.jit(run).trace(x, t)
        program[n] = count_equations(traced.jaxpr.jaxpr)
        size[n] = traced.lower().compile().memory_analysis().temp_size_in_bytes
    assert program[20] == program[1000]
    # the table itself is 1,000 rows of a few numbers
    assert size[1000] - size[20] < 0.5 * x.nbytes
    registers = METHODS[method][1](paths.x0(INNER, grid("uniform", INNER, 20))).weights.shape[1]
    assert size[20] < (registers + 3.5) * x.nbytes


# -- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_under_torch(name):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    t = grid("random", INNER, 5)
    draws = np.stack([prescribed(r) for r in range(20)])
    x, inner = torch.tensor(STARTS, requires_grad=True), torch.tensor(t[1:-1], requires_grad=True)
    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    nodes = torch.cat([torch.tensor(t[:1]), inner, torch.tensor(t[-1:])])
    out = solve(
        lambda y, level: PEAKS.denoise(y - shift * level.alpha, level, torch.tanh) + shift,
        x,
        DIFFERENTIABLE[name](nodes),
        rng=lambda row, like: torch.tensor(draws[row]),
    )
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    (torch.sin(out) * weights).sum().backward()

    def plain(x: np.ndarray, shift: np.ndarray, inner: np.ndarray) -> float:
        out = solve(
            lambda y, level: PEAKS.denoise(y - shift * level.alpha, level) + shift, x,
            DIFFERENTIABLE[name](np.concatenate([t[:1], inner, t[-1:]])), rng=lambda row, like: draws[row],
        )  # fmt: skip
        return float(np.sum(np.sin(out) * np.arange(1.0, 6.0)))

    point = (STARTS, np.asarray(0.3), t[1:-1])
    for i, tensor in enumerate((x, shift, inner)):
        expected = central_difference(lambda value, i=i: plain(*point[:i], value, *point[i + 1 :]), point[i])
        np.testing.assert_allclose(tensor.grad, expected, rtol=DIFFERENCE, atol=DIFFERENCE * np.max(np.abs(expected)))


def test_torch_keeps_device_and_dtype():
    torch = pytest.importorskip("torch", exc_type=ImportError)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.tensor(STARTS, dtype=dtype)
        generator = torch.Generator().manual_seed(3)
        out = solve(lambda y, level: 0.5 * y, x, small_tables()["ab2 sde"], rng=generator)
        assert (out.dtype, out.device) == (dtype, x.device)
        again = solve(lambda y, level: 0.5 * y, x, small_tables()["ab2 sde"], rng=generator.manual_seed(3))
        assert torch.equal(out, again)
    meta = solve(lambda y, level: 0.5 * y, torch.empty(3, device="meta"), small_tables()["ab4 x0"])
    assert meta.device.type == "meta"


# -- bad input --------------------------------------------------------------------------------------------------------


def path_of_four() -> paths.Path:
    return paths.x0(INNER, grid("random", INNER, 4))


@given(st.integers().filter(lambda k: not 1 <= k <= 4))
@example(0)
@example(5)
def test_orders_out_of_range(order):
    with pytest.raises(ValueError, match=f"order must be an integer from 1 to 4, got {order}"):
        adams_bashforth(path_of_four(), order)


@given(st.one_of(st.floats(), st.text(), st.none(), st.booleans(), st.just([2])))
def test_orders_that_are_no_integers(order):
    with pytest.raises(TypeError, match="order must be an integer from 1 to 4, got"):
        adams_bashforth(path_of_four(), order)


def test_orders_may_be_integers_of_numpy():
    assert adams_bashforth(path_of_four(), np.int64(3)).evaluations == 5


@given(st.text().filter(lambda s: s not in {"ramp", "runge_kutta"}))
def test_unknown_starts(start):
    with pytest.raises(ValueError, match=r"start must be one of \('runge_kutta', 'ramp'\), got"):
        adams_bashforth(path_of_four(), 2, start=start)


@given(
    st.lists(st.floats(0.05, 0.95), min_size=2, max_size=6).filter(
        lambda t: any(b >= a for a, b in itertools.pairwise(t))
    )
)
def test_grids_that_do_not_decrease(t):
    with pytest.raises(ValueError, match="t must be finite and strictly decreasing"):
        ab2(PEAKS.denoise, STARTS, paths.x0(INNER, np.array(t)))


@given(st.integers(0, 4), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_grids_that_are_not_finite(index, value):
    t = grid("uniform", INNER, 4)
    t[index] = value
    with pytest.raises(ValueError, match="t must be finite"):
        ddim(PEAKS.denoise, STARTS, INNER, t)


@given(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda shape: shape != (2, 3)))
def test_a_denoiser_that_returns_another_shape(shape):
    with pytest.raises(ValueError, match=r"denoise must return an array of the shape of x, \(2, 3\), got shape"):
        ab1(lambda x, level: np.zeros(shape), np.zeros((2, 3)), path_of_four())


@pytest.mark.parametrize("value", [None, 1.0, "x0", [0.0] * 5])
def test_a_denoiser_that_returns_no_array(value):
    with pytest.raises(
        ValueError, match=f"denoise must return an array of the shape of x, .* got {type(value).__name__}"
    ):
        ab1(lambda x, level: value, STARTS, path_of_four())


@pytest.mark.parametrize("x", [np.arange(5), 3, np.array([True]), np.array([1j]), "noise"])
def test_states_that_are_not_floating_point(x):
    with pytest.raises(TypeError, match="x must"):
        ab1(PEAKS.denoise, x, path_of_four())


def test_a_number_is_a_state():
    out = ab2(PEAKS.denoise, 0.3, path_of_four())
    assert out.shape == ()
    assert float(out) == ab2(PEAKS.denoise, STARTS, path_of_four())[2]


@pytest.mark.parametrize("table", [None, "table", np.zeros(3), (1, 2)])
def test_no_table(table):
    with pytest.raises(TypeError, match=f"table must be a Table, got {type(table).__name__}"):
        solve(PEAKS.denoise, STARTS, table)


@pytest.mark.parametrize("name", ["ab2 sde", "heun churn", "ab2 ancestral"])
def test_noise_needs_a_source(name):
    with pytest.raises(ValueError, match="rng must be given for a stochastic path, got None"):
        solve(PEAKS.denoise, STARTS, small_tables()[name])
    with pytest.raises(ValueError, match="rng must be given"):
        ddim(PEAKS.denoise, STARTS, INNER, grid("uniform", INNER, 4), eta=0.1)


@pytest.mark.parametrize("rng", [0, "seed", np.random.RandomState(0), [1, 2, 3, 4, 5]])
def test_a_source_of_another_kind(rng):
    with pytest.raises(TypeError, match="rng must be"):
        solve(PEAKS.denoise, STARTS, small_tables()["ab2 sde"], rng=rng)


def test_sources_of_other_libraries_and_lengths(backend):
    if backend.name == "strict":
        pytest.skip("array-api-strict has no random numbers")
    x = backend.asarray(STARTS)
    denoise = denoiser_of(backend)
    table = small_tables()["ab2 sde"]
    wrong = np.random.RandomState(0) if backend.name == "numpy" else np.random.default_rng(0)
    with pytest.raises(TypeError, match="rng must be"):
        solve(denoise, x, table, rng=wrong)
    with pytest.raises(ValueError, match="rng must hold one source for each sample, got 2"):
        solve(denoise, x, table, rng=sources(backend, [1, 2]))


@given(st.lists(st.integers(1, 4), max_size=2).filter(lambda shape: shape != [5]))
def test_draws_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"rng\(row, like\) must return shape \(5,\)"):
        solve(PEAKS.denoise, STARTS, small_tables()["ab2 sde"], rng=lambda row, like: np.zeros(shape))


def test_no_progress_under_jax():
    jax = import_jax()
    with pytest.raises(ValueError, match="progress must be None under JAX"):
        ab1(jax_peaks, jax.numpy.asarray(STARTS), path_of_four(), progress=list)


def test_a_multistep_method_is_no_runge_kutta_method():
    two = solvers.Method("two", 2, (0.0,), ((0, -1),))
    with pytest.raises(ValueError, match="method must not look at earlier steps, got two with 1"):
        runge_kutta(path_of_four(), two)
    with pytest.raises(ValueError, match="end must not look at earlier steps, got two with 1"):
        runge_kutta(path_of_four(), HEUN, end=two)
    with pytest.raises(ValueError, match="ladder must be a sequence of methods, at least one, got Method"):
        solvers.multistep(path_of_four(), HEUN)
    with pytest.raises(ValueError, match="method must interpolate at each stage through distinct values"):
        runge_kutta(path_of_four(), Method("none", 1, (0.0,), ((),)))


@pytest.mark.claim("paths-bridge")
@pytest.mark.parametrize("move", [lambda p: paths.ancestral(p, 1.0), lambda p: paths.churn(p, 0.3)])
def test_the_centre_moves_with_the_signal_over_a_gap(move):
    """About the data's mean and at their width nothing is predicted: points on the mean must stay on it."""
    flow, centre = schedules.rectified_flow(), 2.0
    t = np.linspace(0.9, 0.1, 9)
    path = move(paths.velocity(flow, t, sigma_data=0.5, centre=centre))
    data = oracles.gaussian(np.array([centre]), 0.5)
    start = float(flow.alpha(0.9)) * centre * np.ones((1, 1))
    for method in (ab1, ab2):
        states = method(data.denoise, start, path, rng=lambda row, like: 0.0 * like, trajectory=True)
        expected = np.asarray([path.first.alpha, *path.start.alpha[1:], path.last.alpha]) * centre
        np.testing.assert_allclose(states[:, 0, 0], expected, rtol=1e-12)


# -- what a denoiser may do with its arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("method", [ab2, ab4, heun])
def test_a_denoiser_may_use_its_output_again(backend, method):
    """Code that writes its result into one buffer must not overwrite the registers."""
    path = paths.x0(schedules.rectified_flow(), np.array([0.9, 0.6, 0.4, 0.2, 0.05]))
    data = oracles.gaussian(np.array([0.5]), 0.8)
    x = backend.asarray([[1.0], [2.0]])
    buffer = backend.asarray([[0.0], [0.0]])

    def denoise(x, level):
        buffer[...] = data.denoise(x, level)
        return buffer

    assert backend.numpy(method(denoise, x, path)).tolist() == backend.numpy(method(data.denoise, x, path)).tolist()


@pytest.mark.parametrize("dtype", [">f8", "longdouble"])
def test_wide_floats_of_numpy_are_summed_in_float64(dtype):
    path = paths.x0(schedules.rectified_flow(), np.array([0.9, 0.6, 0.4, 0.2, 0.05]))
    data, x = oracles.gaussian(np.array([0.5]), 0.8), np.array([[1.0], [2.0]])
    found = ab3(data.denoise, x.astype(dtype), path)
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_allclose(found.astype(float), ab3(data.denoise, x, path), rtol=1e-14)


def test_the_derivative_in_eta_at_zero_sees_the_noise():
    """d/d eta of the noise sigma' sqrt(1 - exp(-2 eta^2 h)) z is not 0 at eta = 0: against a one-sided difference."""
    jax = pytest.importorskip("jax")
    t, x, key = np.array([0.9, 0.5, 0.2]), np.array([[1.0], [2.0]]), jax.random.key(0)
    data = oracles.gaussian(np.array([0.5]), 0.8)

    def total(eta):
        path = paths.x0(schedules.rectified_flow(), jax.numpy.asarray(t), eta=eta)
        return ab1(data.denoise, jax.numpy.asarray(x), path, rng=key).sum()

    step = 1e-6
    eager = jax.jit(total)
    difference = (4 * eager(step) - eager(2 * step) - 3 * eager(0.0)) / (2 * step)
    assert float(jax.grad(total)(0.0)) == pytest.approx(float(difference), rel=1e-5)
    assert abs(float(difference)) > 0.1


def test_a_denoiser_of_another_library():
    path = paths.x0(schedules.rectified_flow(), np.array([0.9, 0.5]))
    jnp = pytest.importorskip("jax.numpy")
    for value in (jnp.ones((2, 1)), np.ones((2, 1), dtype=complex)):
        with pytest.raises(TypeError, match="denoise must return real numbers"):
            ab1(lambda x, level, value=value: value, np.ones((2, 1)), path)


# -- arguments of a wrong kind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["a", None, 3, np.zeros(3), INNER])
def test_things_that_are_no_path(wrong):
    kind = type(wrong).__name__
    for make in (lambda: adams_bashforth(wrong, 2), lambda: runge_kutta(wrong, HEUN), lambda: ab2(abs, STARTS, wrong)):
        with pytest.raises(TypeError, match=f"path must be a Path, got {kind}"):
            make()


@pytest.mark.parametrize("wrong", ["heun", None, 2, ("heun", 2, (0.0,), ((0,),))])
def test_things_that_are_no_method(wrong):
    with pytest.raises(TypeError, match=f"method must be a Method, got {type(wrong).__name__}"):
        runge_kutta(path_of_four(), wrong)


def test_a_path_in_place_of_a_schedule():
    with pytest.raises(TypeError, match="schedule must be a Schedule, got Path"):
        ddim(PEAKS.denoise, STARTS, path_of_four(), grid("uniform", INNER, 4))


@pytest.mark.parametrize("wrong", [3, "tqdm"])
def test_callables_that_are_none(wrong):
    with pytest.raises(TypeError, match=f"denoise must be a Callable, got {type(wrong).__name__}"):
        ab1(wrong, STARTS, path_of_four())
    with pytest.raises(TypeError, match=f"progress must be a Callable, got {type(wrong).__name__}"):
        ab1(PEAKS.denoise, STARTS, path_of_four(), progress=wrong)


@pytest.mark.parametrize(
    ("wrap", "count"), [(lambda rows: rows[:3], 3), (lambda rows: [*rows, *rows], 10), (lambda rows: iter(()), 0)]
)
@pytest.mark.parametrize("trajectory", [False, True])
def test_progress_that_leaves_out_rows(wrap, count, trajectory):
    table = adams_bashforth(path_of_four(), 3)
    with pytest.raises(ValueError, match=f"progress must pass on each of the 5 rows once, got {count}"):
        solve(PEAKS.denoise, STARTS, table, progress=wrap, trajectory=trajectory)


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (2, 3, 2)])
def test_states_that_the_centre_does_not_fit(backend, shape):
    path = paths.velocity(INNER, grid("uniform", INNER, 4), centre=np.ones(3))
    x = backend.asarray(np.ones(shape))
    with pytest.raises(
        ValueError, match=r"x must have a shape to which the path's centre of shape \(3,\) broadcasts, got"
    ):
        ab2(lambda x, level: x, x, path)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4, 3)])
def test_states_that_the_centre_fits(backend, shape):
    path = paths.velocity(INNER, grid("uniform", INNER, 4), centre=np.ones(3))
    assert ab2(lambda x, level: 0.5 * x, backend.asarray(np.ones(shape)), path).shape == shape
    one = paths.velocity(INNER, grid("uniform", INNER, 4), centre=np.ones(1))
    assert ab2(lambda x, level: 0.5 * x, backend.asarray(np.ones(shape)), one).shape == shape
    two = paths.velocity(INNER, grid("uniform", INNER, 4), centre=np.ones(2))
    with pytest.raises(ValueError, match=r"centre of shape \(2,\) broadcasts, got"):
        ab2(lambda x, level: 0.5 * x, backend.asarray(np.ones(shape)), two)


@pytest.mark.parametrize("method", [ab1, ab2, heun])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_denoiser_cannot_write_to_the_state(method, dtype):
    """The state is its argument, so a write would change the sample, and the caller's array in the first row."""

    def writes(x, level):
        x *= 0.5
        return x

    x = STARTS.astype(dtype)
    with pytest.raises(ValueError, match="read-only"):
        method(writes, x, path_of_four())
    assert x.tolist() == STARTS.astype(dtype).tolist()
    assert x.flags.writeable
    # it may copy first, and may return what it was given
    copies = method(lambda x, level: writes(x.copy(), level), x, path_of_four())
    np.testing.assert_array_equal(copies, method(lambda x, level: 0.5 * x, x, path_of_four()))
    assert method(lambda x, level: x, x, path_of_four()).flags.writeable


@pytest.mark.parametrize("method", [ab1, ab2, heun])
def test_a_pytorch_denoiser_that_writes_to_the_state_is_refused(method):
    torch = pytest.importorskip("torch")

    def writes(x, level):
        return x.mul_(0.5)

    x = torch.asarray(STARTS)
    with pytest.raises(ValueError, match=r"denoise must not write to its x.*x\.clone\(\)"):
        method(writes, x.clone(), path_of_four())
    right = method(lambda x, level: 0.5 * x, x, path_of_four())
    assert torch.equal(method(lambda x, level: writes(x.clone(), level), x, path_of_four()), right)
    # where nobody counts, the check is silent: inference mode, transforms of functions
    with torch.inference_mode():
        assert torch.equal(method(lambda x, level: 0.5 * x, x.clone(), path_of_four()), right)
    halves = torch.func.vmap(lambda x: method(lambda x, level: 0.5 * x, x, path_of_four()))(x)
    torch.testing.assert_close(halves, right)


# -- constants, not only slopes ---------------------------------------------------------------------------------------


@pytest.mark.claim("solvers-strong-order")
@pytest.mark.parametrize(("method", "share"), [("ab1", 1.0 / 8.0), ("ab2", 1.0 / 16.0)])
def test_strong_error_is_the_sum_of_squares_of_the_steps(method, share):
    """The difference of n and 2n steps, with its constant: each step of length h has variance share K^2 D_x^2 b^2 h^3.

    Order 1 freezes D, and the two fine steps see half-way: (h/2) B(h/2), of variance h^3/8. Order 2 extrapolates with
    the noise of the step before, which adds (h/2) B(h) in coarse steps and (h/4) B(h) in fine ones: h^3/16.
    """
    n, skip, std = 400, 4, 1.7
    start, stop = (float(NOISY.log_snr(t)) for t in (NOISY.t_noise, NOISY.t_clean))
    h = (stop - start) / n
    first = start + skip * h

    def of_level(lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Growth of a disturbance of x on the exact path with eta = 1, and K^2 D_x^2 b^2; alpha + sigma = 1."""
        alpha, sigma = 1.0 / (1.0 + np.exp(-lam)), 1.0 / (1.0 + np.exp(lam))
        slope = alpha * std**2 / ((alpha * std) ** 2 + sigma**2)
        kernel = 2.0 * alpha
        return -alpha - 1.0 + kernel * slope, (kernel * slope) ** 2 * 2.0 * sigma**2

    lam = np.linspace(first, stop, 4001)
    growth, variance = of_level(lam)
    middle = 0.5 * (growth[1:] + growth[:-1]) * np.diff(lam)
    to_the_end = np.exp(np.concatenate([np.cumsum(middle[::-1])[::-1], [0.0]]))
    integral = np.trapezoid(to_the_end**2 * variance, lam)

    def parts(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        path = paths.x0(NOISY, grid("uniform", NOISY, steps), eta=1.0)
        return response(METHODS[method][1](path), gaussian(0.8, std))[2][:-1], *path.propagate(path.start, path.stop)

    coarse, (fine, factor, noise) = parts(n)[0], parts(2 * n)
    shares = np.stack([factor[1::2] * noise[::2], noise[1::2]], axis=1)
    shares /= np.sqrt(np.sum(shares**2, axis=1, keepdims=True))
    found = np.sum((coarse[:, None] * shares - np.stack([fine[::2], fine[1::2]], axis=1))[skip:] ** 2)
    assert found == pytest.approx(share * h**2 * integral, rel=0.02)
    # the plausible mistakes: errors that add up instead of their squares, D frozen in both runs, no growth
    for wrong in (share * h * integral, h**2 * integral / 3.0, share * h**2 * np.trapezoid(variance, lam)):
        assert found != pytest.approx(wrong, rel=0.05)


@pytest.mark.claim("solvers-global-error")
@pytest.mark.parametrize("rate", [0.0, 0.7, -0.7])
@pytest.mark.parametrize(("order", "largest"), [(1, 1.0), (2, 4.0)])
def test_global_error_is_below_its_bound_and_above_the_sum_of_local_errors(rate, order, largest):
    """y' = a y + L y, the second part extrapolated: local errors d_n from the exact solution, the bound from them.

    No step is longer than twice the one before: weights of order 2 add up to at most W h with W = 4 e^(|a| h).
    """
    lipschitz = 1.1
    widths = np.resize([1.0, 2.0, 1.3, 0.9], 40)
    t = np.concatenate([[0.0], 2.0 * np.cumsum(widths) / np.sum(widths)])
    path = paths.semilinear(t, rate)
    table = adams_bashforth(path, order)
    y = np.exp((rate + lipschitz) * t)
    found = solve(lambda y, level: lipschitz * y, np.ones(1), table, trajectory=True)[:, 0]
    longest = np.diff(t).max()
    first = order - 1
    local, weights = [], []
    for n in range(40):
        kept = math.exp(rate * (t[n + 1] - t[n]))
        if n < first:
            moment = path.moments(path.start, path.stop, 1)[0][n]
            used = {n: moment}
        else:
            used = lagrange_step(t, n, order, rate)
        weights.append(sum(map(abs, used.values())) / (t[n + 1] - t[n]))
        local.append(y[n + 1] - kept * y[n] - sum(w * lipschitz * y[j] for j, w in used.items()))
    w = largest * math.exp(abs(rate) * longest)
    c = (math.exp(abs(rate) * longest) - 1.0) / longest
    assert max(weights) <= w * (1.0 + EXACT)
    bound = math.exp((c + lipschitz * w) * t[-1]) * np.sum(np.abs(local))
    worst = np.max(np.abs(found - y))
    assert worst <= bound
    # without the growth of earlier errors the bound is wrong, and without L too where only P grows
    if rate >= 0.0:
        assert worst > 1.5 * np.sum(np.abs(local))
    # and it is sharp to the growth: it exceeds the error by that factor at most
    assert worst > np.exp(-abs(rate + lipschitz) * t[-1]) * np.sum(np.abs(local)) * 0.5


def lagrange_step(t: np.ndarray, n: int, order: int, rate: float) -> dict[int, float]:
    """Weights of order 1 or 2 by quadrature of exp(a (t' - s)) times the Lagrange basis."""
    x, gauss = np.polynomial.legendre.leggauss(20)
    s = t[n] + (t[n + 1] - t[n]) * (x + 1.0) / 2.0
    kernel = np.exp(rate * (t[n + 1] - s)) * gauss * (t[n + 1] - t[n]) / 2.0
    if order == 1:
        return {n: float(np.sum(kernel))}
    r = (s - t[n]) / (t[n] - t[n - 1])
    return {n: float(np.sum(kernel * (1.0 + r))), n - 1: float(np.sum(kernel * -r))}


# -- half precision and many steps ------------------------------------------------------------------------------------

HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_every_method_in_half_precision(name, dtype):
    """The history and the denoiser are half, the sums are not: few roundings times the weights' absolute sum."""
    from conftest import make_backend

    if name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    backend = make_backend(name)
    t = grid("uniform", INNER, 12)
    x = backend.asarray(STARTS, dtype)
    exact_start = backend.numpy(x)

    def denoise(y: Any, level: Level) -> Any:
        value = PEAKS.denoise(y, level, backend.xp.tanh)
        return value.to(y.dtype) if name == "torch" else value.astype(y.dtype)

    path = paths.x0(INNER, t)
    tables = {method: build(path) for method, (_, build) in METHODS.items()}
    tables["ddim"] = adams_bashforth(paths.ancestral(path, 0.5), 1)
    z = np.random.default_rng(0).standard_normal((13, STARTS.size))
    for method, table in tables.items():
        if name == "jax" and method not in {"ab3", "heun", "ddim"}:
            continue  # each is compiled
        known = backend.asarray(z, "float32")
        found = solve(denoise, x, table, rng=lambda row, like, known=known: known[row])
        assert backend.dtype(found) == dtype
        expected = solve(PEAKS.denoise, exact_start, table, rng=lambda row, like: z[row])
        size = np.max(np.sum(np.abs(np.asarray(table.weights)), axis=1))
        assert np.max(np.abs(backend.numpy(found) - expected)) < 30.0 * max(size, 1.0) * HALVES[dtype], method


@SLOW
def test_five_thousand_steps_under_jit():
    """One compiled loop: nothing grows with the number of steps but the table."""
    jax = import_jax()
    path = paths.x0(INNER, grid("karras", INNER, 5000))
    for method in (ab2, ab4):
        found = jax.jit(lambda x, method=method: method(jax_peaks, x, path))(jax.numpy.asarray(STARTS))
        np.testing.assert_allclose(found, method(PEAKS.denoise, STARTS, path), rtol=1e-11)
        np.testing.assert_allclose(found, exact(INNER), atol=2e-6)
