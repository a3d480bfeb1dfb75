"""Samplers of tokens against enumeration of all sequences, naive transcriptions, generators and exact laws of draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
from conftest import Backend
from hypothesis import assume
from hypothesis import given as drawn
from hypothesis import strategies as st

from diffnum.discrete import _oracles as oracles
from diffnum.discrete import samplers as smp
from diffnum.discrete._sampler_steps import Step
from diffnum.kernels import categorical as cat

ROUNDING = 1e-12
"""Sums of some hundred float64 products of order one."""

MISTAKE = 1e-3
"""A plausible mistake changes a probability by more than this."""

LEVEL = 2e-6
"""float32: a dozen roundings of logarithms of order ten."""

SIGMAS = 5.0
"""Monte Carlo: a cell is off by this many standard errors once in two million."""

LINEAR = cat.keep_linear()


def weights(classes: int, length: int, seed: int = 3, coupling: float = 1.0) -> np.ndarray:
    """A law of all sequences, mixed with the independent one of the same marginals."""
    law = np.random.default_rng(seed).dirichlet(np.ones(classes**length)).reshape((classes,) * length)
    free = np.ones(())
    for i in range(length):
        free = np.multiply.outer(free, law.sum(axis=tuple(j for j in range(length) if j != i)))
    return coupling * law + (1.0 - coupling) * free


def model(kernel: Any, data: np.ndarray) -> tuple[oracles.Table, Any]:
    """A table for this kernel, with a class for its mask, and its denoiser."""
    table = oracles.table(data, mask=kernel.classes > data.shape[0])
    return table, lambda x, level: table.denoise(x, kernel, level)


def noised(law: np.ndarray, kernel: Any, t: Any) -> np.ndarray:
    """Law of the noisy sequence, one matrix for each position."""
    q = cat.transition(kernel, t)
    for axis in range(law.ndim):
        law = np.moveaxis(np.tensordot(law, q, axes=(axis, 0)), -1, axis)
    return law


KERNELS = {
    "absorbing": cat.absorbing(4),
    "uniform": cat.uniform(3),
    "law": cat.stationary([0.5, 0.3, 0.2]),
    "hybrid": cat.hybrid(4, share=0.6),
}


@pytest.fixture(params=list(KERNELS))
def kernel(request: pytest.FixtureRequest) -> cat.Interpolation:
    """Each interpolating family in turn, with three clean classes."""
    return KERNELS[request.param]


@pytest.fixture
def uniform() -> cat.Interpolation:
    """The uniform kernel."""
    return KERNELS["uniform"]


@pytest.fixture
def absorbing() -> cat.Interpolation:
    """The absorbing kernel."""
    return KERNELS["absorbing"]


def generator(law_0: np.ndarray, kernel: cat.Interpolation, t: float) -> np.ndarray:
    """Reverse rates between all states by Bayes' rule on the whole table: forward rate times the ratio of masses."""
    level, rate = LINEAR.level(np.asarray(t)), float(LINEAR.rate(np.asarray(t)))
    mass = noised(law_0, kernel, level).reshape(-1)
    states = oracles.all_states(kernel.classes, law_0.ndim)
    pi = np.exp(kernel.log_law)
    g = np.zeros((len(states), len(states)))
    for a, b in itertools.permutations(range(len(states)), 2):
        (where,) = np.nonzero(states[a] != states[b])
        if len(where) == 1 and mass[a] > 0.0:
            g[a, b] = rate * pi[states[a][where[0]]] * mass[b] / mass[a]
    return g


@pytest.mark.claim("discrete-samplers-rates")
def test_rates_are_those_of_the_whole_table(kernel):
    table, denoise = model(kernel, weights(3, 2))
    states = oracles.all_states(kernel.classes, 2)
    g = generator(table.law, kernel, 0.6)
    t = np.asarray(0.6)
    found = smp.reverse_rates(kernel, states, denoise(states, LINEAR.level(t)), LINEAR, t)
    expected = np.zeros_like(found)
    for a, b in zip(*np.nonzero(g), strict=True):
        (where,) = np.nonzero(states[a] != states[b])
        expected[a, where[0], states[b][where[0]]] = g[a, b]
    possible = noised(table.law, kernel, LINEAR.level(t)).reshape(-1) > 0.0
    np.testing.assert_allclose(found[possible], expected[possible], rtol=1e-10, atol=1e-12)
    posterior = cat.to_posterior(kernel, states, denoise(states, LINEAR.level(t)), LINEAR.level(t))
    wrong = smp.reverse_rates(kernel, states, posterior, LINEAR, t)
    if kernel.mask is None:  # a mask says nothing of its own clean token
        assert abs(wrong - expected)[possible].max() > MISTAKE
    if kernel.kind != "point":
        right = smp.reverse_rates(kernel, states, posterior, LINEAR, t, head="posterior")
        np.testing.assert_allclose(right[possible], expected[possible], rtol=1e-9, atol=1e-11)


def test_rates_at_pure_noise_are_finite_for_a_mask_and_refused_else(absorbing, uniform):
    log_p = np.log(np.array([[0.5, 0.3, 0.2, 0.0]]) + 1e-300)
    np.testing.assert_allclose(
        smp.reverse_rates(absorbing, np.array([3]), log_p, LINEAR, np.asarray(1.0)), [[0.5, 0.3, 0.2, 0.0]], atol=1e-15
    )
    with pytest.raises(ValueError, match="t must have alpha > 0"):
        smp.reverse_rates(uniform, np.array([0]), log_p[:, :3], LINEAR, np.asarray(1.0))


def step_law(step: Step, kernel: Any, denoise: Any, schedule: Any, t: Any, start: np.ndarray) -> np.ndarray:
    """Law after the steps over the grid."""
    return smp.law_of(denoise, kernel, schedule, t, step, length=start.ndim, start=start)


def bayes(joint_0: np.ndarray, kernel: Any, s: Any, t: Any, x_t: tuple[int, ...], i: int) -> np.ndarray:
    """Law of position i at s given all of x_t, by summing the table: q(x_s^i, x_t) over all clean sequences."""
    q_s, q_t, step = cat.transition(kernel, s), cat.transition(kernel, t), cat.transition(kernel, t, s)
    found = np.zeros(kernel.classes)
    for x_0 in itertools.product(range(joint_0.shape[0]), repeat=joint_0.ndim):
        rest = joint_0[x_0]
        for j, v in enumerate(x_0):
            rest *= q_t[v, x_t[j]] if j != i else 1.0
        found += rest * q_s[x_0[i]] * step[:, x_t[i]]
    return found / found.sum()


@pytest.mark.claim("discrete-samplers-ancestral")
@pytest.mark.claim("discrete-samplers-propagation")
@pytest.mark.parametrize("name", [*KERNELS, "walk", "chain"])
def test_ancestral_step_against_bayes_on_the_table(name):
    kernel: Any = {
        **KERNELS,
        "walk": cat.band(3),
        "chain": cat.discretised_gaussian(3, [0.1, 0.2, 0.3, 0.4]),
    }[name]
    chain = name == "chain"
    table, denoise = model(kernel, weights(3, 2))
    s, t = (1, 3) if chain else (LINEAR.level(np.asarray(u)) for u in (0.3, 0.8))
    start = noised(table.law, kernel, t)
    expected = np.zeros_like(start)
    for x_t in itertools.product(range(kernel.classes), repeat=2):
        if start[x_t] > 0.0:
            expected += start[x_t] * np.multiply.outer(*(bayes(table.law, kernel, s, t, x_t, i) for i in (0, 1)))
    grid, schedule = ([3, 1], None) if chain else ([0.8, 0.3], LINEAR)
    found = step_law(smp.ancestral(), kernel, denoise, schedule, grid, start)
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
    # marginals are those of the table at s, the joint law is not: positions were drawn independently
    exact = noised(table.law, kernel, s)
    np.testing.assert_allclose(found.sum(axis=0), exact.sum(axis=0), atol=ROUNDING)
    assert smp.total_variation(found, exact) > MISTAKE
    if not chain:
        for low, high in ((0.8, 0.8), (0.3, 0.55)):  # the current alpha for the next one, one step for the whole way
            law = step_law(smp.ancestral(), kernel, denoise, LINEAR, [high + 1e-9, low], start)
            assert abs(law - expected).max() > MISTAKE


@pytest.mark.claim("discrete-samplers-tv")
def test_total_variation():
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    events = [sum(p[list(e)]) - sum(q[list(e)]) for n in range(4) for e in itertools.combinations(range(3), n)]
    assert smp.total_variation(p, q) == pytest.approx(max(events), abs=1e-15)
    with pytest.raises(ValueError, match="q must have the shape of p"):
        smp.total_variation(p, q[:2])


def test_one_token_is_a_vacuous_case(kernel):
    table, denoise = model(kernel, weights(3, 1))
    law = smp.law_of(denoise, kernel, LINEAR, [1.0, 0.4, 0.0], smp.ancestral(), length=1)
    np.testing.assert_allclose(law, table.law, atol=ROUNDING)


@pytest.mark.claim("discrete-samplers-one-jump")
def test_one_jump_law_naively():
    x, jumps = np.array([[0, 2]]), np.array([[[0.0, 0.3, 0.4], [0.5, 0.9, 0.0]]])
    for euler in (False, True):
        found = np.exp(smp.one_jump_law(x, jumps, euler=euler))
        for i, token in enumerate(x[0]):
            total = sum(jumps[0, i])
            moved = min(1.0, total) if euler else 1.0 - math.exp(-total)
            expected = [1.0 - moved if v == token else moved * jumps[0, i, v] / total for v in range(3)]
            np.testing.assert_allclose(found[0, i], expected, atol=1e-15)
    assert np.exp(smp.one_jump_law(np.array(1), np.zeros(3))).tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="jumps must have shape"):
        smp.one_jump_law(x, jumps[0])


def poisson_displacements(x: int, jumps: np.ndarray, most: int = 14) -> np.ndarray:
    """Law of x plus Poisson numbers of displacements modulo K, by summing over the numbers."""
    classes = len(jumps)
    law = np.eye(classes)[x]
    for v in range(classes):
        shift, after = (v - x) % classes, np.zeros(classes)
        if shift:
            for n in range(most):
                p = math.exp(-jumps[v]) * jumps[v] ** n / math.factorial(n)
                after += p * np.roll(law, n * shift)
            law = after
    return law


@pytest.mark.claim("discrete-samplers-leap")
@pytest.mark.parametrize("x", [0, 1, 3])
def test_leap_law_counts_poisson_jumps(x):
    jumps = np.array([0.3, 0.1, 0.25, 0.6])
    jumps[x] = 0.0
    expected = poisson_displacements(x, jumps)
    found = np.exp(smp.leap_law(cat.uniform(4), np.array(x), jumps))
    np.testing.assert_allclose(found, expected, atol=1e-11)
    assert abs(np.exp(smp.one_jump_law(np.array(x), jumps)) - expected).max() > MISTAKE
    masked = smp.leap_law(cat.absorbing(4, mask=x), np.array(x), jumps)
    np.testing.assert_allclose(masked, smp.one_jump_law(np.array(x), jumps), atol=1e-15)
    with pytest.raises(ValueError, match="kernel must be absorbing or uniform"):
        smp.leap_law(cat.hybrid(4, share=0.5), np.array(x), jumps)


def naive_rates(kernel: Any, denoise: Any, x: tuple[int, ...], t: float) -> list[dict[int, float]]:
    """Rates of each position, from the formula with numbers."""
    level = LINEAR.level(np.asarray(t))
    alpha, noise, pi = 1.0 - t, t, np.exp(kernel.log_law)
    p = np.exp(denoise(np.array([x]), level))[0]
    w = [[alpha * p[i, v] + noise * pi[v] for v in range(kernel.classes)] for i in range(len(x))]
    rate = 1.0 / (1.0 - t)
    return [
        {v: rate * pi[x[i]] * w[i][v] / w[i][x[i]] for v in range(kernel.classes) if v != x[i] and w[i][x[i]] > 0.0}
        for i in range(len(x))
    ]


def naive_leap(kernel: Any, x: tuple[int, ...], jumps: list[dict[int, float]]) -> dict[tuple[int, ...], float]:
    """Law of the sequence after a leap; jumps by target class."""
    laws = []
    for i, token in enumerate(x):
        mean = np.array([jumps[i].get(v, 0.0) for v in range(kernel.classes)])
        if kernel.kind == "uniform":
            laws.append(poisson_displacements(token, mean))
        else:
            total = mean.sum()
            moved = 1.0 - math.exp(-total)
            laws.append(mean * (moved / total if total else 0.0) + (1.0 - moved) * np.eye(kernel.classes)[token])
    return {
        y: math.prod(law[v] for law, v in zip(laws, y, strict=True))
        for y in itertools.product(range(kernel.classes), repeat=len(x))
    }


def moved_to(kernel: Any, jumps: dict[int, float], x: int, y: int) -> dict[int, float]:
    """Jumps from x as jumps from y: by equal displacement, or by target where noise is a mask."""
    return {(v - x + y) % kernel.classes: m for v, m in jumps.items()} if kernel.kind == "uniform" else jumps


def two_stages(
    name: str, kernel: Any, denoise: Any, start: np.ndarray, hi: float, lo: float, theta: float
) -> np.ndarray:
    """One step of the theta-trapezoidal rule or of theta-RK2, as the papers write it, over all sequences."""
    out, h = np.zeros_like(start), hi - lo
    for x in itertools.product(range(kernel.classes), repeat=start.ndim):
        if start[x] == 0.0:
            continue
        old = naive_rates(kernel, denoise, x, hi)
        trial = naive_leap(kernel, x, [{v: theta * h * m for v, m in r.items()} for r in old])
        for y, p in trial.items():
            if p < 1e-16:
                continue
            new, jumps = naive_rates(kernel, denoise, y, hi - theta * h), []
            if name == "trapezoidal":
                a_1 = 1.0 / (2.0 * theta * (1.0 - theta))
                a_2 = ((1.0 - theta) ** 2 + theta**2) / (2.0 * theta * (1.0 - theta))
                for i in range(len(x)):
                    before = moved_to(kernel, old[i], x[i], y[i])
                    jumps.append(
                        {v: (1.0 - theta) * h * max(0.0, a_1 * m - a_2 * before.get(v, 0.0)) for v, m in new[i].items()}
                    )
                law = naive_leap(kernel, y, jumps)
            else:
                share = 1.0 / (2.0 * theta)
                for i in range(len(x)):
                    now = moved_to(kernel, new[i], y[i], x[i])
                    jumps.append({v: h * ((1.0 - share) * m + share * now.get(v, 0.0)) for v, m in old[i].items()})
                law = naive_leap(kernel, x, jumps)
            for z, q in law.items():
                out[z] += start[x] * p * q
    return out


@pytest.mark.parametrize("name", ["uniform", "absorbing"])
@pytest.mark.parametrize(
    ("rule", "theta", "step"),
    [
        pytest.param(
            "trapezoidal", 0.5, smp.theta_trapezoidal(), marks=pytest.mark.claim("discrete-samplers-trapezoidal")
        ),
        pytest.param(
            "trapezoidal",
            0.3,
            smp.theta_trapezoidal(theta=0.3),
            marks=pytest.mark.claim("discrete-samplers-trapezoidal"),
        ),
        pytest.param("rk2", 0.5, smp.midpoint(), marks=pytest.mark.claim("discrete-samplers-rk2")),
        pytest.param("rk2", 0.75, smp.theta_rk2(theta=0.75), marks=pytest.mark.claim("discrete-samplers-rk2")),
        pytest.param("rk2", 1.0, smp.theta_rk2(theta=1.0), marks=pytest.mark.claim("discrete-samplers-rk2")),
    ],
)
def test_two_stage_steps_as_written(name, rule, theta, step):
    kernel = KERNELS[name]
    table, denoise = model(kernel, weights(3, 2))
    start = noised(table.law, kernel, LINEAR.level(np.asarray(0.7)))
    found = step_law(step, kernel, denoise, LINEAR, [0.7, 0.5], start)
    expected = two_stages(rule, kernel, denoise, start, 0.7, 0.5, theta)
    np.testing.assert_allclose(found, expected, atol=1e-11)
    other = two_stages("rk2" if rule == "trapezoidal" else "trapezoidal", kernel, denoise, start, 0.7, 0.5, 0.6)
    assert abs(found - other).max() > MISTAKE / 10.0


@pytest.mark.claim("discrete-samplers-gibbs")
def test_gibbs_corrector_leaves_the_law(kernel):
    table, denoise = model(kernel, weights(3, 3))
    exact = noised(table.law, kernel, LINEAR.level(np.asarray(0.4)))
    corrector = Step("corrector", smp.with_gibbs(smp.ancestral()).stages[1:])
    np.testing.assert_allclose(step_law(corrector, kernel, denoise, LINEAR, [0.9, 0.4], exact), exact, atol=ROUNDING)
    # it is the law of one token given the others, on the whole table
    states = oracles.all_states(kernel.classes, 3)
    level = LINEAR.level(np.asarray(0.4))
    found = np.exp(smp.corrector_law(kernel, states, denoise(states, level), level))
    for x, law in zip(states, found, strict=True):
        for i in range(3):
            line = exact[tuple(x[j] if j != i else slice(None) for j in range(3))]
            if line.sum() > 0.0:
                np.testing.assert_allclose(law[i], line / line.sum(), atol=1e-11)
    # at another level it is another law
    other = smp.law_of(denoise, kernel, LINEAR, [0.9, 0.7], corrector, length=3, start=exact)
    assert smp.total_variation(other, exact) > MISTAKE


@pytest.mark.claim("discrete-samplers-gibbs")
def test_gibbs_corrector_raises_the_order():
    """Errors of all but the last steps are forgotten at a constant rate. Two tokens are a vacuous case: no error."""
    for kernel, slope in ((cat.absorbing(3), 1.95), (cat.uniform(2), 1.8)):
        slopes = order(smp.with_gibbs(smp.ancestral()), kernel, weights(2, 3), 0.9, 0.2, (16, 32))
        assert min(slopes) > slope
        assert max(order(smp.ancestral(), kernel, weights(2, 3), 0.9, 0.2, (16, 32))) < 1.1
    table, denoise = model(KERNELS["uniform"], weights(3, 2))
    start, exact = (noised(table.law, KERNELS["uniform"], LINEAR.level(np.asarray(t))) for t in (0.9, 0.2))
    law = step_law(smp.with_gibbs(smp.ancestral()), KERNELS["uniform"], denoise, LINEAR, [0.9, 0.5, 0.2], start)
    np.testing.assert_allclose(law, exact, atol=ROUNDING)


@pytest.mark.claim("discrete-samplers-forward-backward")
def test_forward_backward_corrector(kernel):
    one, denoise_one = model(kernel, weights(3, 1))
    exact = noised(one.law, kernel, LINEAR.level(np.asarray(0.4)))
    corrector = Step("corrector", smp.with_forward_backward(smp.ancestral(), share=0.75).stages[1:])
    np.testing.assert_allclose(
        step_law(corrector, kernel, denoise_one, LINEAR, [0.9, 0.4], exact), exact, atol=ROUNDING
    )
    table, denoise = model(kernel, weights(3, 2))
    s, u = (LINEAR.level(np.asarray(v)) for v in (0.4, 0.775))
    start = noised(table.law, kernel, s)
    # forward by the matrices of the interval, back by an ancestral step
    q = cat.transition(kernel, u, s)
    noisy = np.einsum("ab,ac,bd->cd", start, q, q)
    expected = step_law(smp.ancestral(), kernel, denoise, LINEAR, [0.775, 0.4], noisy)
    found = step_law(corrector, kernel, denoise, LINEAR, [0.9, 0.4], start)
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
    errors = []
    for h in (0.1, 0.05):
        law = step_law(corrector, kernel, denoise, LINEAR, [0.4 + h, 0.4], start)
        errors.append(smp.total_variation(law, start))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.2)


@pytest.mark.claim("discrete-samplers-remask")
def test_remasking_keeps_marginals_up_to_the_cap(absorbing):
    p = np.array([0.5, 0.3, 0.2, 0.0])
    low, high = LINEAR.level(np.asarray(0.3)), LINEAR.level(np.asarray(0.6))
    cap = 0.3 / 0.4
    states, log_p = np.arange(4), np.log(np.broadcast_to(p, (4, 4)) + 1e-300)
    before = np.append(0.4 * p[:3], 0.6)
    after = np.append(0.7 * p[:3], 0.3)
    for sigma in (0.0, 0.2, cap):
        law = np.exp(smp.remask_law(absorbing, states, log_p, low, high, sigma=sigma))
        np.testing.assert_allclose(law.sum(axis=-1), 1.0, atol=1e-12)
        np.testing.assert_allclose(before @ law, after, atol=1e-12)
        assert law[0, 3] == pytest.approx(sigma, abs=1e-12)
    for sigma in (cap + 1e-3, -0.1):
        with pytest.raises(ValueError, match="sigma must be in"):
            smp.remask_law(absorbing, states, log_p, low, high, sigma=sigma)
    # beyond the cap the masked tokens would have to be revealed with a probability above 1
    assert (0.7 - (1.0 - 1.01 * cap) * 0.4) / 0.6 > 1.0
    with pytest.raises(ValueError, match="kernel must be absorbing"):
        smp.remask_law(cat.uniform(4), states, log_p, low, high, sigma=0.0)
    late = [LINEAR.level(np.asarray(t)) for t in (0.9, 0.95)]
    smp.remask_law(absorbing, states, log_p, *late, sigma=1.0)  # the cap is 1, not .9/.05


@pytest.mark.claim("discrete-samplers-remask")
@pytest.mark.parametrize(("eta", "rule"), [(0.5, "rescaled"), (0.3, "capped"), (1.0, "capped"), (1.0, "rescaled")])
def test_remasking_steps_keep_marginals_and_strength(absorbing, eta, rule):
    table, denoise = model(absorbing, weights(3, 1))
    times = np.linspace(1.0, 0.0, 6)
    law = smp.law_of(denoise, absorbing, LINEAR, times, smp.remasking(eta=eta, rule=rule), length=1)
    np.testing.assert_allclose(law, table.law, atol=ROUNDING)
    start = np.array([1.0, 0.0, 0.0, 0.0])
    once = step_law(smp.remasking(eta=eta, rule=rule), absorbing, denoise, LINEAR, [0.6, 0.3], start)
    cap = 0.3 / 0.4
    assert once[3] == pytest.approx(eta * cap if rule == "rescaled" else min(eta, cap), abs=1e-12)


@pytest.mark.claim("discrete-samplers-kappa")
@pytest.mark.parametrize("name", [*KERNELS, "walk"])
def test_renoising_keeps_marginals_for_any_kernel(name):
    kernel: Any = {**KERNELS, "walk": cat.band(3)}[name]
    table, denoise = model(kernel, weights(3, 1))
    s, t = (LINEAR.level(np.asarray(u)) for u in (0.3, 0.8))
    start, exact = (noised(table.law, kernel, level) for level in (t, s))
    for kappa in (0.0, 0.4, 1.0):
        law = step_law(smp.renoising(kappa=kappa), kernel, denoise, LINEAR, [0.8, 0.3], start)
        np.testing.assert_allclose(law, exact, atol=ROUNDING)
    x = oracles.all_states(kernel.classes, 1)[:3]
    log_p = denoise(x, t)
    mixed = np.exp(smp.renoise_law(kernel, x, log_p, s, t, kappa=0.4))
    stay = np.exp(cat.mixture_posterior(kernel, x, log_p, s, t))
    anew = np.exp(cat.to_posterior(kernel, x, log_p, t)) @ cat.transition(kernel, s)
    np.testing.assert_allclose(mixed, 0.4 * stay + 0.6 * anew, atol=ROUNDING)
    if name == "absorbing":  # there it is remasking with sigma = (1 - kappa)(1 - alpha_s)
        remasked = smp.remask_law(kernel, x, log_p, s, t, sigma=0.6 * 0.3)
        np.testing.assert_allclose(np.exp(remasked), mixed, atol=ROUNDING)


@pytest.mark.claim("discrete-samplers-commit")
def test_commit_rule_is_the_ancestral_step(kernel):
    table, denoise = model(kernel, weights(3, 2))
    states = oracles.all_states(kernel.classes, 2)
    for a, b in ((0.3, 0.8), (0.0, 0.5), (0.5, 1.0)):
        s, t = (LINEAR.level(np.asarray(u)) for u in (a, b))
        possible = noised(table.law, kernel, t).reshape(-1) > 0.0
        log_p = denoise(states, t)
        found = np.exp(smp.commit_law(kernel, states, log_p, s, t))[possible]
        np.testing.assert_allclose(
            found, np.exp(cat.mixture_posterior(kernel, states, log_p, s, t))[possible], atol=1e-11
        )
    if kernel.kind == "point":
        return
    # to draw all noise anew keeps the law of a token, and of sequences not even in the limit
    one, denoise_one = model(kernel, weights(3, 1))
    start, exact = (noised(one.law, kernel, LINEAR.level(np.asarray(u))) for u in (0.8, 0.3))
    law = step_law(smp.committing(carry=False), kernel, denoise_one, LINEAR, [0.8, 0.3], start)
    np.testing.assert_allclose(law, exact, atol=ROUNDING)
    errors = {}
    for carry in (True, False):
        errors[carry] = [
            smp.total_variation(
                smp.law_of(
                    denoise, kernel, LINEAR, np.linspace(1.0, 0.0, n + 1), smp.committing(carry=carry), length=2
                ),
                table.law,
            )
            for n in (64, 256)
        ]
    assert errors[True][1] < 0.26 * errors[True][0]
    assert errors[False][1] > 5.0 * errors[True][1]


@pytest.mark.claim("discrete-samplers-event")
def test_events_are_thinned_jumps(kernel):
    table, denoise = model(kernel, weights(3, 2))
    states, t = oracles.all_states(kernel.classes, 2), np.asarray(0.35)
    level = LINEAR.level(t)
    log_p = denoise(states, level)
    law = np.exp(smp.event_law(kernel, states, log_p, level))
    possible = noised(table.law, kernel, level).reshape(-1) > 0.0
    np.testing.assert_allclose(law[possible].sum(axis=-1), 1.0, atol=ROUNDING)
    bound = float(LINEAR.rate(t)) / 0.35
    others = states[..., None] != np.arange(kernel.classes)
    expected = smp.reverse_rates(kernel, states, log_p, LINEAR, t) / bound
    np.testing.assert_allclose((law * others)[possible], expected[possible], atol=1e-11)


@pytest.mark.claim("discrete-samplers-uniformisation")
@pytest.mark.parametrize("name", ["uniform", "absorbing", "law"])
def test_events_at_rate_one_in_log_odds_give_the_exact_law(name):
    """The generator of the thinned events, L (mean over positions of the law - identity), integrated over log-odds."""
    kernel = KERNELS[name]
    table, denoise = model(kernel, weights(3, 2))
    states = oracles.all_states(kernel.classes, 2)
    start, stop = 0.9, 0.2

    def flow(odds: float, mass: np.ndarray) -> np.ndarray:
        t = np.asarray(1.0 / (1.0 + math.exp(odds)))
        level = LINEAR.level(t)
        p = np.exp(smp.event_law(kernel, states, denoise(states, level), level))
        out = np.zeros_like(mass)
        for i in range(2):
            for a, x in enumerate(states):
                for v in range(kernel.classes):
                    y = x.copy()
                    y[i] = v
                    out[y[0] * kernel.classes + y[1]] += mass[a] * p[a, i, v]
                out[a] -= mass[a]
        return out

    odds = [math.log((1.0 - t) / t) for t in (start, stop)]
    first, exact = (noised(table.law, kernel, LINEAR.level(np.asarray(t))).reshape(-1) for t in (start, stop))
    found = scipy.integrate.solve_ivp(flow, odds, first, method="RK45", rtol=1e-7, atol=1e-10).y[:, -1]
    np.testing.assert_allclose(found, exact, atol=1e-6)
    assert smp.total_variation(first, exact) > 0.05


def frequencies(x: np.ndarray, classes: int) -> np.ndarray:
    """Relative frequencies of sequences."""
    index = np.ravel_multi_index(tuple(x.T), (classes,) * x.shape[1])
    return np.bincount(index, minlength=classes ** x.shape[1]).reshape((classes,) * x.shape[1]) / len(x)


def agree(x: np.ndarray, law: np.ndarray) -> None:
    """Each sequence as often as its probability says, within some standard errors."""
    error = np.sqrt(law * (1.0 - law) / len(x)) + 1.0 / len(x)
    assert (abs(frequencies(x, law.shape[0]) - law) <= SIGMAS * error).all()


def off(x: np.ndarray, law: np.ndarray) -> bool:
    """Whether `agree` notices."""
    error = np.sqrt(law * (1.0 - law) / len(x)) + 1.0 / len(x)
    return bool((abs(frequencies(x, law.shape[0]) - law) > SIGMAS * error).any())


@pytest.mark.claim("discrete-samplers-uniformisation")
def test_uniformisation_draws_the_exact_law(uniform):
    table, denoise = model(uniform, weights(3, 2))
    rng, n = np.random.default_rng(5), 20_000
    begin, end = (LINEAR.level(np.asarray(t)) for t in (0.9, 0.2))
    x = cat.q_sample(rng, table.sample(rng, n), begin, uniform)
    y = smp.uniformisation(denoise, x, uniform, LINEAR, rng=rng, start=0.9, stop=0.2, clean=False)
    agree(y, noised(table.law, uniform, end))
    assert off(y, noised(table.law, uniform, LINEAR.level(np.asarray(0.3))))
    clean = smp.uniformisation(denoise, x[:2000], uniform, LINEAR, rng=rng, start=0.9, stop=0.01)
    agree(clean, table.law)


@pytest.mark.claim("discrete-samplers-uniformisation")
def test_uniformisation_number_of_events_and_times(uniform):
    _, denoise = model(uniform, weights(3, 2))
    seen = []

    def watched(x: Any, level: Any) -> Any:
        seen.append((level.t[:, 0], level.log_odds[:, 0]))
        return denoise(x, level)

    rng = np.random.default_rng(0)
    x = np.tile([0, 1], (200, 1))
    smp.uniformisation(watched, x, uniform, LINEAR, rng=rng, start=0.9, stop=0.2, clean=False)
    t, odds = np.moveaxis(np.array(seen), 1, 0)
    np.testing.assert_allclose(np.log((1.0 - t) / t), odds, atol=1e-9)
    assert t.min() >= 0.2 - 1e-12
    assert (np.diff(t, axis=0) <= 0.0).all()
    counts = (t > 0.2 + 1e-9).sum(axis=0)
    mean = 2.0 * (math.log(0.8 / 0.2) - math.log(0.1 / 0.9))
    assert np.mean(counts) == pytest.approx(mean, abs=SIGMAS * math.sqrt(mean / 200))


def all_orders(denoise: Any, kernel: Any, length: int) -> np.ndarray:
    """Law of revealing tokens in an order drawn uniformly, by enumeration."""
    classes, level = kernel.classes, LINEAR.level(np.asarray(0.5))
    law = np.zeros((classes,) * length)
    orders = list(itertools.permutations(range(length)))
    for y in itertools.product(range(classes - 1), repeat=length):
        for sites in orders:
            x, p = np.full((1, length), kernel.mask), 1.0
            for site in sites:
                p *= math.exp(denoise(x, level)[0, site, y[site]])
                x[0, site] = y[site]
            law[y] += p / len(orders)
    return law


def inconsistent(x: np.ndarray, level: Any) -> np.ndarray:  # noqa: ARG001
    """A denoiser that belongs to no law: what it says depends on the order in which it is asked."""
    seen = x != 3
    bias = np.stack(
        [0.3 * np.roll(seen, 1, axis=1) * (v == 0) + 0.9 * (np.roll(x, 1, axis=1) == v) for v in range(3)], -1
    )
    bias = bias + np.array([0.4, 0.0, -0.3]) * np.arange(1, x.shape[1] + 1)[:, None]
    p = np.exp(bias) / np.exp(bias).sum(axis=-1, keepdims=True)
    return np.log(np.concatenate([p, np.full((*x.shape, 1), 1e-300)], axis=-1))


@pytest.mark.claim("discrete-samplers-first-hitting")
def test_first_hitting_is_exact_and_the_limit_of_ancestral(absorbing):
    table, denoise = model(absorbing, weights(3, 3))
    np.testing.assert_allclose(all_orders(denoise, absorbing, 3), table.law, atol=ROUNDING)
    x = smp.first_hitting(denoise, np.full((20_000, 3), 3), absorbing, LINEAR, rng=np.random.default_rng(1))
    agree(x, table.law)
    one_step = smp.law_of(denoise, absorbing, LINEAR, [1.0, 0.0], smp.ancestral(), length=3)
    assert off(x, one_step)
    # a denoiser of no law: ancestral sampling tends to the same law, at order 1
    limit = all_orders(inconsistent, absorbing, 2)
    errors = [
        smp.law_of(inconsistent, absorbing, LINEAR, np.linspace(1.0, 0.0, n + 1), smp.ancestral(), length=2) - limit
        for n in (32, 64)
    ]
    ratio = abs(errors[0]).max() / abs(errors[1]).max()
    assert ratio == pytest.approx(2.0, abs=0.02)
    y = smp.first_hitting(inconsistent, np.full((20_000, 2), 3), absorbing, LINEAR, rng=np.random.default_rng(2))
    agree(y, limit)


@pytest.mark.claim("discrete-samplers-first-hitting")
def test_first_hitting_times(absorbing):
    """The noise at the next event is that of now times U^(1/n), n masked tokens; given tokens are none of them."""
    words = {0: 2**31, 3: 2**30, 6: 3 * 2**30}
    seen = []

    def denoise(x: Any, level: Any) -> Any:
        seen.append(float(level.t[0, 0]))
        assert level.t.shape == (1, 1)
        assert float(level.alpha[0, 0]) == pytest.approx(1.0 - seen[-1], abs=1e-12)
        return inconsistent(x, level)

    x = np.array([[3, 1, 3, 3]])
    y = smp.first_hitting(
        denoise, x, absorbing, LINEAR, rng=lambda row, like: np.full(like.shape, words.get(row, 5)), start=0.8
    )
    u = [(words[3 * k] + 0.5) * 2.0**-32 for k in range(3)]
    expected = [0.8 * u[0] ** (1 / 3)]
    expected += [expected[0] * u[1] ** (1 / 2)]
    expected += [expected[1] * u[2]]
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
    assert y[0, 1] == 1
    assert (y < 3).all()


def order(step: Any, kernel: Any, data: np.ndarray, hi: float, lo: float, steps: tuple[int, ...]) -> list[float]:
    """Slopes of the total variation against the number of steps."""
    table, denoise = model(kernel, data)
    start, target = (noised(table.law, kernel, LINEAR.level(np.asarray(t))) for t in (hi, lo))
    errors = [
        smp.total_variation(step_law(step, kernel, denoise, LINEAR, np.linspace(hi, lo, n + 1), start), target)
        for n in steps
    ]
    return [math.log2(a / b) for a, b in itertools.pairwise(errors)]


STRONG, WEAK = weights(3, 2, seed=0), weights(3, 2, seed=0, coupling=0.1)

ORDERS = {
    "ancestral, mask": (smp.ancestral(), "absorbing", STRONG, (1.0, 0.0), 1.0),
    "ancestral, uniform": (smp.ancestral(), "uniform", STRONG, (0.9, 0.2), 1.0),
    "euler, mask": (smp.euler(), "absorbing", STRONG, (0.9, 0.2), 1.0),
    "euler, uniform": (smp.euler(), "uniform", STRONG, (0.9, 0.2), 1.0),
    "tau-leaping, mask": (smp.tau_leaping(), "absorbing", STRONG, (0.9, 0.2), 1.0),
    "tau-leaping, uniform": (smp.tau_leaping(), "uniform", STRONG, (0.9, 0.2), 1.0),
    "trapezoidal, mask, unclipped": (smp.theta_trapezoidal(), "absorbing", WEAK, (0.9, 0.2), 2.0),
    "trapezoidal, mask, theta .3": (smp.theta_trapezoidal(theta=0.3), "absorbing", WEAK, (0.9, 0.2), 2.0),
    "trapezoidal, uniform, unclipped": (smp.theta_trapezoidal(), "uniform", WEAK, (0.95, 0.85), 2.0),
    "trapezoidal, mask, clipped": (smp.theta_trapezoidal(), "absorbing", STRONG, (0.9, 0.2), 1.0),
    "trapezoidal, uniform, one jump": (smp.theta_trapezoidal(jumps="one"), "uniform", WEAK, (0.95, 0.85), 1.0),
    "midpoint, mask": (smp.midpoint(), "absorbing", STRONG, (0.9, 0.2), 1.0),
    "midpoint, uniform": (smp.midpoint(), "uniform", WEAK, (0.95, 0.85), 1.0),
    "RK2, mask, weak": (smp.theta_rk2(theta=0.75), "absorbing", WEAK, (0.9, 0.2), 1.0),
    "forward-backward, mask": (smp.with_forward_backward(smp.ancestral()), "absorbing", STRONG, (1.0, 0.0), 1.0),
}


@pytest.mark.parametrize("name", list(ORDERS))
@pytest.mark.claim("discrete-samplers-orders")
def test_orders_in_law(name):
    step, kernel, data, (hi, lo), expected = ORDERS[name]
    slope = order(step, KERNELS[kernel], data, hi, lo, (32, 64))[0]
    assert slope == pytest.approx(expected, abs=0.11)


@pytest.mark.claim("discrete-samplers-orders")
def test_constant_of_ancestral_sampling(absorbing):
    """L = 2, V = 3, linear: a pair is drawn at once with probability 1/T, so TV is that of independence over T."""
    table, denoise = model(absorbing, STRONG)
    free = np.multiply.outer(table.law.sum(axis=1), table.law.sum(axis=0))
    for n in (4, 64):
        law = smp.law_of(denoise, absorbing, LINEAR, np.linspace(1.0, 0.0, n + 1), smp.ancestral(), length=2)
        assert n * smp.total_variation(law, table.law) == pytest.approx(smp.total_variation(free, table.law), rel=1e-10)
    # for any schedule it is the sum of squares of the noise that each step removes
    cosine = cat.keep_cosine()
    times = np.linspace(1.0, 0.0, 9)
    law = smp.law_of(denoise, absorbing, cosine, times, smp.ancestral(), length=2)
    pairs = float((np.diff(np.asarray(cosine.level(times).noise)) ** 2).sum())
    assert smp.total_variation(law, table.law) == pytest.approx(pairs * smp.total_variation(free, table.law), rel=1e-10)


def test_posterior_without_carry_over_is_wrong(absorbing):
    """Negative control: all tokens drawn anew from the denoiser's law and noised, the state forgotten."""
    table, denoise = model(absorbing, STRONG)
    times = np.linspace(1.0, 0.0, 33)
    right, wrong = (
        smp.total_variation(smp.law_of(denoise, absorbing, LINEAR, times, step, length=2), table.law)
        for step in (smp.ancestral(), smp.renoising(kappa=0.0))
    )
    assert right < 0.01
    assert wrong > 2.0 * right


# --------------------------------------------------------------------------------------------------------------------
# the loop


@pytest.mark.claim("discrete-samplers-step")
@pytest.mark.parametrize(
    "step",
    [
        smp.ancestral(),
        smp.theta_trapezoidal(),
        smp.midpoint(),
        smp.with_gibbs(smp.tau_leaping()),
        smp.with_forward_backward(smp.euler()),
        smp.renoising(kappa=0.5),
    ],
    ids=lambda step: step.name,
)
def test_sampler_draws_from_the_law_that_is_propagated(step, uniform):
    table, denoise = model(uniform, weights(3, 2))
    schedule, times = cat.keep_linear_rate(), [1.0, 0.6, 0.3, 0.0]
    law = smp.law_of(denoise, uniform, schedule, times, step, length=2)
    rng = np.random.default_rng(7)
    x = rng.integers(0, 3, (20_000, 2))
    found = smp.sample(denoise, x, uniform, schedule, times, step, rng=rng)
    assert found.dtype == x.dtype
    agree(found, law)
    assert off(found, table.law), "three steps are not enough to be right"


@pytest.mark.claim("discrete-samplers-ancestral")
@pytest.mark.claim("discrete-samplers-commit")
def test_ancestral_draws_in_parts_have_the_law_that_is_propagated(kernel):
    table, denoise = model(kernel, weights(3, 2))
    begin = LINEAR.level(np.asarray(0.8))
    law = step_law(smp.ancestral(), kernel, denoise, LINEAR, [0.8, 0.3], noised(table.law, kernel, begin))
    rng = np.random.default_rng(9)
    x = cat.q_sample(rng, table.sample(rng, 20_000), begin, kernel)
    found = smp.sample(denoise, x, kernel, LINEAR, [0.8, 0.3], smp.ancestral(), rng=rng)
    agree(found, law)
    assert off(found, step_law(smp.ancestral(), kernel, denoise, LINEAR, [0.8, 0.4], noised(table.law, kernel, begin)))


def table_denoiser(backend: Backend, kernel: Any, data: np.ndarray, dtype: str) -> Any:
    """The exact denoiser in a library and dtype."""
    table = oracles.table(data, mask=kernel.classes > data.shape[0])

    def denoise(x: Any, level: Any) -> Any:
        found = table.denoise(x, kernel, level)
        return (
            backend.xp.astype(found, getattr(backend.xp, dtype))
            if backend.name == "strict"
            else (found.astype(dtype) if backend.name in {"numpy", "jax"} else found.to(getattr(backend.xp, dtype)))
        )

    return denoise


def prescribed(backend: Backend, seed: int = 11) -> Any:
    """Words that depend on the row and shape alone, whatever the library."""

    def rng(row: int, like: Any) -> Any:
        words = np.random.default_rng([seed, int(row)]).integers(0, 2**32, tuple(like.shape), dtype=np.uint32)
        return backend.xp.asarray(words if backend.name == "jax" else words.astype(np.int64))

    return rng


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("absorbing", smp.ancestral()),
        ("uniform", smp.ancestral()),
        ("hybrid", smp.euler()),
        ("uniform", smp.theta_trapezoidal()),
        ("absorbing", smp.remasking(eta=0.5)),
        ("uniform", smp.committing()),
        ("uniform", smp.with_gibbs(smp.tau_leaping())),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_loop_in_every_library(backend, dtype, name, step):
    kernel = KERNELS[name]
    data, schedule = weights(3, 2), cat.keep_linear_rate()
    start = np.random.default_rng(1).integers(0, 3, (8, 2))
    if kernel.mask is not None:
        start = np.full((8, 2), kernel.mask)
    reference = smp.sample(
        model(kernel, data)[1], start, kernel, schedule, [1.0, 0.5, 0.0], step, rng=prescribed_numpy()
    )
    x = backend.asarray(start, "int32")
    t = backend.asarray([1.0, 0.5, 0.0], dtype)
    if backend.name == "jax":  # rows are traced inside the scan, so that words cannot be prescribed from outside
        import jax

        if dtype == "float64" or (len(step.stages) == 1 and name != "hybrid"):
            pytest.skip("compilation takes seconds, and the laws themselves are compared in both dtypes")

        denoise = table_denoiser(backend, kernel, data, dtype)
        run = jax.jit(
            lambda x, key: smp.sample(denoise, x, kernel, schedule, np.asarray([1.0, 0.5, 0.0]), step, rng=key)
        )
        found = run(x, jax.random.key(0))
        assert found.dtype == x.dtype
        assert int(np.asarray(found).max()) < 3
        return
    found = smp.sample(
        table_denoiser(backend, kernel, data, dtype), x, kernel, schedule, t, step, rng=prescribed(backend)
    )
    assert backend.dtype(found) == "int32"
    assert np.array_equal(backend.numpy(found), reference)


def prescribed_numpy() -> Any:
    """The same words for NumPy."""

    def rng(row: int, like: Any) -> np.ndarray:
        return np.random.default_rng([11, int(row)]).integers(0, 2**32, like.shape, dtype=np.uint32).astype(np.int64)

    return rng


def test_laws_in_every_library(backend):
    level_s, level_t = (LINEAR.level(np.asarray(t)) for t in (0.3, 0.8))
    x = np.array([[0, 1, 2], [3, 3, 0]])
    p = np.random.default_rng(0).dirichlet(np.ones(3), (2, 3))
    for name in ("absorbing", "hybrid"):
        kernel = KERNELS[name]
        log_p = np.log(np.concatenate([p, np.full((2, 3, 1), 1e-30)], axis=-1))
        laws = {
            "gibbs": lambda x, q, kernel=kernel: smp.corrector_law(kernel, x, q, level_t),
            "event": lambda x, q, kernel=kernel: smp.event_law(kernel, x, q, level_t),
            "commit": lambda x, q, kernel=kernel: smp.commit_law(kernel, x, q, level_s, level_t),
            "renoise": lambda x, q, kernel=kernel: smp.renoise_law(kernel, x, q, level_s, level_t, kappa=0.3),
            "rates": lambda x, q, kernel=kernel: smp.reverse_rates(kernel, x, q, LINEAR, np.asarray(0.8)),
            "shape": lambda x, q: smp.shape_law(q, temperature=0.7, top_k=3, top_p=0.9),
            "guide": lambda x, q: smp.guide(q, 0.5 * q, weight=1.5),
        }
        for key, law in laws.items():
            expected = law(x, log_p)
            for dtype in ("float64", "float32") if backend.name != "jax" else ("float32",):
                found = law(backend.asarray(x, "int32"), backend.asarray(log_p, dtype))
                assert backend.dtype(found) == dtype
                tolerance = ROUNDING if dtype == "float64" else LEVEL
                convert = np.exp if key != "rates" else (lambda v: v / 4.0)
                np.testing.assert_allclose(convert(backend.numpy(found)), convert(expected), atol=tolerance)


def test_laws_have_finite_derivatives_and_map(absorbing, uniform):
    """Impossible classes and infinite levels leave no NaN in a gradient."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    s, t, clean = (LINEAR.level(np.asarray(u)) for u in (0.3, 1.0, 0.0))
    p = np.array([[0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]])
    log_p = jnp.where(p > 0.0, jnp.log(jnp.where(p > 0.0, p, 1.0)), -jnp.inf)
    x = jnp.array([3, 3])

    def mass(law: Any) -> Any:
        return jnp.sum(jnp.exp(law) * jnp.arange(law.shape[-1]))

    def total(q: Any) -> Any:
        jumps = smp.reverse_rates(absorbing, x, q, LINEAR, np.asarray(0.8))
        return (
            mass(smp.commit_law(absorbing, x, q, s, t))
            + mass(smp.commit_law(absorbing, x, q, clean, s))
            + mass(smp.event_law(absorbing, x, q, s))
            + mass(smp.remask_law(absorbing, x, q, s, t, sigma=0.1))
            + mass(smp.renoise_law(absorbing, x, q, s, t, kappa=0.5))
            + mass(smp.leap_law(absorbing, x, jumps))
            + mass(smp.one_jump_law(x, 0.0 * jumps))
        )

    assert np.isfinite(jax.jit(jax.grad(total))(log_p)).all()
    level = LINEAR.level(np.asarray(0.3))
    whole = smp.corrector_law(uniform, x - 3, log_p[:, :3], level)
    mapped = jax.vmap(lambda x, q: smp.corrector_law(uniform, x, q, level))(x - 3, log_p[:, :3])
    np.testing.assert_allclose(mapped, whole, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_leaps_in_every_library(backend, dtype):
    jumps = np.array([[0.0, 0.2, 0.1, 0.4], [0.3, 0.2, 0.0, 0.1]])
    x = np.array([0, 2])
    for kernel in (cat.uniform(4), cat.absorbing(4)):
        expected = np.exp(smp.leap_law(kernel, x, jumps))
        found = smp.leap_law(kernel, backend.asarray(x, "int32"), backend.asarray(jumps, dtype))
        assert backend.dtype(found) == dtype
        np.testing.assert_allclose(np.exp(backend.numpy(found)), expected, atol=1e-14 if dtype == "float64" else 1e-6)


def test_events_in_every_library(backend):
    rng = {"numpy": lambda: np.random.default_rng(0)}.get(backend.name)
    if backend.name == "jax":
        import jax

        rng = lambda: jax.random.key(0)  # noqa: E731
    elif backend.name == "torch":
        rng = lambda: backend.xp.Generator().manual_seed(0)  # noqa: E731
    if rng is None:
        pytest.skip("the strict library has no generators of its own")
    for kernel, run in ((KERNELS["absorbing"], smp.first_hitting), (KERNELS["uniform"], smp.uniformisation)):
        data = weights(3, 2)
        table = oracles.table(data, mask=kernel.mask is not None)
        x = backend.asarray(np.full((300, 2), kernel.mask or 0), "int64")
        options: dict[str, Any] = {} if kernel.mask is not None else {"start": 0.9, "stop": 0.02}

        def draws(
            x: Any, source: Any, kernel: Any = kernel, run: Any = run, options: Any = options, table: Any = table
        ) -> Any:
            return run(lambda x, level: table.denoise(x, kernel, level), x, kernel, LINEAR, rng=source, **options)

        found = jax.jit(draws)(x, rng()) if backend.name == "jax" else draws(x, rng())
        assert found.dtype == x.dtype
        assert abs(frequencies(backend.numpy(found), kernel.classes)[:3, :3] - data).max() < 0.2


def test_samples_do_not_depend_on_the_batch(uniform):
    _, denoise = model(uniform, weights(3, 2))
    x = np.random.default_rng(0).integers(0, 3, (4, 2))
    step, schedule, times = smp.with_gibbs(smp.ancestral()), cat.keep_linear_rate(), [1.0, 0.5, 0.0]

    def sources() -> list[np.random.Generator]:
        return [np.random.default_rng(i) for i in range(4)]

    whole = smp.sample(denoise, x, uniform, schedule, times, step, rng=sources())
    part = smp.sample(denoise, x[2:3], uniform, schedule, times, step, rng=sources()[2:3])
    assert np.array_equal(whole[2:3], part)


def test_a_leap_is_closed_by_an_ancestral_step(uniform):
    table, denoise = model(uniform, weights(3, 2))
    start = noised(table.law, uniform, LINEAR.level(np.asarray(0.9)))
    for step in (smp.tau_leaping(), smp.theta_trapezoidal(), smp.with_gibbs(smp.euler())):
        whole = step_law(step, uniform, denoise, LINEAR, [0.9, 0.6, 0.3, 0.0], start)
        part = step_law(step, uniform, denoise, LINEAR, [0.9, 0.6, 0.3], start)
        closed = step_law(smp.ancestral(), uniform, denoise, LINEAR, [0.3, 0.0], part)
        np.testing.assert_allclose(whole, closed, atol=ROUNDING)
    remasked = smp.remasking(eta=0.5)
    assert remasked.closes
    assert smp.committing().closes
    assert smp.renoising(kappa=0.5).closes


def test_levels_are_of_the_library_and_of_the_precision_of_the_grid():
    torch = pytest.importorskip("torch")
    kernel, seen = KERNELS["uniform"], []

    def denoise(x: Any, level: Any) -> Any:
        seen.append((level.log_alpha.dtype, tuple(level.log_alpha.shape)))
        return torch.zeros((*x.shape, 3)) - math.log(3.0)

    x = torch.zeros((1, 2), dtype=torch.int64)
    for t in (np.array([1.0, 0.0]), torch.tensor([1.0, 0.0], dtype=torch.float64)):
        smp.sample(denoise, x, kernel, LINEAR, t, smp.ancestral(), rng=torch.Generator().manual_seed(0))
    assert seen == [(torch.float32, ()), (torch.float64, ())]


@pytest.mark.parametrize("block", [None, 1])
def test_every_draw_has_its_own_number(block):
    """A JAX key is folded with the number of a draw: two of the same number would be the same."""
    kernel = KERNELS["law"]
    _, denoise = model(kernel, weights(3, 2))
    step, words, rows = smp.with_gibbs(smp.ancestral()), prescribed_numpy(), []

    def rng(row: int, like: Any) -> np.ndarray:
        rows.append(int(row))
        return words(row, like)

    x = np.zeros((2, 2), int)
    smp.sample(denoise, x, kernel, cat.keep_linear_rate(), [1.0, 0.7, 0.4, 0.0], step, rng=rng, block=block)
    canvases = 1 if block is None else 2
    # an ancestral stage: stay or not, a clean token, kept or not, two for a law; a Gibbs stage: token and site
    assert len(rows) == len(set(rows)) == canvases * (2 * (5 + 2) + 5)
    assert max(rows) < canvases * 3 * 2 * 6


def test_the_loop_is_a_scan_that_does_not_grow(uniform):
    jax = pytest.importorskip("jax")
    table = oracles.table(weights(3, 2))

    def text(n: int) -> str:
        def run(x: Any, key: Any) -> Any:
            return smp.sample(
                lambda x, level: table.denoise(x, uniform, level),
                x,
                uniform,
                cat.keep_linear_rate(),
                np.linspace(1.0, 0.0, n + 1),
                smp.ancestral(),
                rng=key,
            )

        return str(jax.make_jaxpr(run)(jax.numpy.zeros((2, 2), int), jax.random.key(0)))

    assert "scan" in text(8)
    assert text(8).count("\n") == text(80).count("\n")


def test_given_positions_stay_and_condition(absorbing):
    table, denoise = model(absorbing, weights(3, 2))
    x = np.tile([1, 3], (20_000, 1))
    found = smp.sample(
        denoise,
        x,
        absorbing,
        LINEAR,
        [1.0, 0.5, 0.0],
        smp.ancestral(),
        rng=np.random.default_rng(3),
        given=np.array([True, False]),
        per_token=True,
    )
    assert (found[:, 0] == 1).all()
    conditional = np.zeros_like(table.law)
    conditional[1] = table.law[1] / table.law[1].sum()
    agree(found, conditional)
    # a uniform kernel must be told which tokens are clean
    uniform = KERNELS["uniform"]
    plain, denoise = model(uniform, weights(3, 2))
    conditional = np.zeros_like(plain.law)
    conditional[1] = plain.law[1] / plain.law[1].sum()
    x = np.stack([np.ones(20_000, int), np.random.default_rng(1).integers(0, 3, 20_000)], axis=1)
    for told in (True, False):
        found = smp.sample(
            denoise,
            x,
            uniform,
            LINEAR,
            np.linspace(1.0, 0.0, 9),
            smp.ancestral(),
            rng=np.random.default_rng(3),
            given=np.array([True, False]),
            per_token=told,
        )
        assert off(found, conditional) is not told


def test_canvases_one_after_the_other(absorbing):
    chain = oracles.markov([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1]], mask=True)
    levels = []

    def denoise(x: Any, level: Any) -> Any:
        levels.append(np.broadcast_to(level.alpha, x.shape)[0])
        return chain.denoise(x, absorbing, level)

    states = oracles.all_states(4, 3)
    law = np.exp(chain.log_probability(states)).reshape(4, 4, 4)
    x = np.full((20_000, 3), 3)
    found = smp.sample(
        denoise,
        x,
        absorbing,
        LINEAR,
        [1.0, 0.0],
        smp.ancestral(),
        rng=np.random.default_rng(0),
        block=1,
        per_token=True,
    )
    agree(found, law)  # one token at a time, one step each: exact
    assert len(levels) == 3
    np.testing.assert_allclose(levels, [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], atol=1e-15)
    pairs = smp.sample(
        denoise,
        x,
        absorbing,
        LINEAR,
        [1.0, 0.0],
        smp.ancestral(),
        rng=np.random.default_rng(0),
        block=2,
        per_token=True,
    )
    assert off(pairs, law)
    states = smp.sample(
        denoise,
        x[:5],
        absorbing,
        LINEAR,
        [1.0, 0.5, 0.0],
        smp.ancestral(),
        rng=np.random.default_rng(0),
        block=2,
        trajectory=True,
        per_token=True,
    )
    assert states.shape == (5, 5, 3)
    assert (states[:3, :, 2] == 3).all()
    assert np.array_equal(states[2, :, :2], states[4, :, :2])
    assert (states[4] < 3).all()
    jax = pytest.importorskip("jax")
    found = smp.sample(
        lambda x, level: chain.denoise(x, absorbing, level),
        jax.numpy.full((5, 3), 3),
        absorbing,
        LINEAR,
        np.array([1.0, 0.5, 0.0]),
        smp.ancestral(),
        rng=jax.random.key(1),
        block=2,
        trajectory=True,
        per_token=True,
    )
    assert found.shape == (5, 5, 3)
    assert (np.asarray(found[:3, :, 2]) == 3).all()
    assert np.array_equal(found[2, :, :2], found[4, :, :2])


def test_self_conditioning_hands_on_the_last_law(uniform):
    seen = []

    def denoise(x: Any, level: Any, previous: Any) -> Any:  # noqa: ARG001
        seen.append(np.array(previous))
        return np.log(np.full((*x.shape, 3), 1.0 / 3.0)) + 0.1 * len(seen)

    smp.sample(
        denoise,
        np.zeros((1, 2), int),
        uniform,
        LINEAR,
        [1.0, 0.5, 0.0],
        smp.ancestral(),
        rng=np.random.default_rng(0),
        self_condition=True,
    )
    np.testing.assert_allclose([a.flat[0] for a in seen], [-math.log(3.0), -math.log(3.0) + 0.1], atol=1e-12)


def test_posterior_head_gives_the_same_samples(uniform):
    _, denoise = model(uniform, weights(3, 2))
    x, schedule = np.random.default_rng(0).integers(0, 3, (50, 2)), cat.keep_linear_rate()

    def posterior(x: Any, level: Any) -> Any:
        return cat.to_posterior(uniform, x, denoise(x, level), level)

    times = [1.0, 0.6, 0.2, 0.0]
    runs = [
        smp.sample(f, x, uniform, schedule, times, smp.ancestral(), rng=np.random.default_rng(1), head=head)
        for f, head in ((denoise, "leave_one_out"), (posterior, "posterior"), (posterior, "leave_one_out"))
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_chain_and_walk_are_sampled():
    chain = cat.discretised_gaussian(3, [0.1, 0.2, 0.3, 0.4])
    table, denoise = model(chain, weights(3, 2))
    start = noised(table.law, chain, 4)
    law = smp.law_of(denoise, chain, None, [4, 2, 0], smp.ancestral(), length=2, start=start)
    rng = np.random.default_rng(0)
    x = oracles.table(start).sample(rng, 20_000)
    agree(smp.sample(denoise, x, chain, None, [4, 2, 0], smp.ancestral(), rng=rng), law)
    for bad in ([2, 4], [5, 0], [1.0, 0.0], [3]):
        with pytest.raises(ValueError, match="t must be decreasing step numbers"):
            smp.sample(denoise, x, chain, None, bad, smp.ancestral(), rng=rng)
    with pytest.raises((TypeError, ValueError), match=r"(kernel|step) must be"):
        smp.sample(denoise, x, chain, None, [4, 0], smp.euler(), rng=rng)
    with pytest.raises(ValueError, match="start must be given"):
        smp.law_of(denoise, chain, None, [4, 0], smp.ancestral(), length=2)


# --------------------------------------------------------------------------------------------------------------------
# published rules, and what users do to laws


@pytest.mark.claim("discrete-samplers-shape")
@drawn(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6, unique=True),
    st.floats(0.2, 3.0),
    st.integers(1, 6),
    st.floats(0.05, 1.0),
)
def test_shaping_naively(p, temperature, k, mass):
    p = np.array(p) / sum(p)
    assume(np.diff(np.sort(p)).min() > 1e-6)  # equal up to rounding, and which is kept is not decided
    k = min(k, len(p))
    q = p ** (1.0 / temperature)
    q /= q.sum()
    by_size = sorted(range(len(q)), key=lambda v: -q[v])
    kept = by_size[:k]
    after = sum(q[v] for v in kept)
    found, held = [], 0.0
    for v in kept:
        if held >= mass - 1e-12:
            break
        found.append(v)
        held += q[v] / after
    expected = np.array([q[v] if v in found else 0.0 for v in range(len(q))])
    result = np.exp(smp.shape_law(np.log(p), temperature=temperature, top_k=k, top_p=mass))
    assert (result > 0.0).tolist() == (expected > 0.0).tolist()
    np.testing.assert_allclose(result, expected / expected.sum(), atol=1e-10)


def test_shaping_at_its_ends():
    p = np.log([0.2, 0.5, 0.3])
    np.testing.assert_allclose(smp.shape_law(p), p, atol=1e-15)
    assert np.exp(smp.shape_law(p, temperature=0.0)).tolist() == [0.0, 1.0, 0.0]
    for options, name in (
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 4}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            smp.shape_law(p, **options)


@pytest.mark.claim("discrete-samplers-guide")
def test_guidance():
    p, free = np.array([0.7, 0.3, 0.0]), np.array([0.4, 0.5, 0.1])
    with np.errstate(divide="ignore"):
        a, b = np.log(p), np.log(free)
    for weight in (0.0, 1.0, 2.5):
        expected = p**weight * free ** (1.0 - weight)
        expected[2] = 0.0
        np.testing.assert_allclose(np.exp(smp.guide(a, b, weight=weight)), expected / expected.sum(), atol=1e-14)
    with pytest.raises(ValueError, match="log_p_free must have the shape"):
        smp.guide(a, b[:2], weight=1.0)
    with pytest.raises(ValueError, match="weight must be"):
        smp.guide(a, b, weight=math.nan)


def race(words: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    """Winner of exponential clocks."""
    return np.argmax(log_p - np.log(-np.log1p(-(words + 0.5) * 2.0**-32)), axis=-1)


def toy(x: np.ndarray, level: Any) -> np.ndarray:
    """A law that depends on neighbours and on the level."""
    logits = 2.0 * (1.2 - float(level.noise)) * (np.roll(x, 1, axis=1)[..., None] == np.arange(3)) + [0.3, 0.0, -0.2]
    return np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))


def restless(x: np.ndarray, level: Any) -> np.ndarray:
    """Another favourite in each step, less sure each time, so that nothing is committed; even sequences are surer."""
    peak = np.where(np.arange(len(x)) % 2 == 0, 0.75, 0.45)[:, None, None] + 0.1 * float(level.t)
    best = np.arange(3) == round(8 * float(level.t)) % 3
    return np.log(np.broadcast_to(np.where(best, peak, (1.0 - peak) / 2.0), (*x.shape, 3)))


@pytest.mark.claim("discrete-samplers-published")
@pytest.mark.parametrize("network", [toy, restless])
@pytest.mark.parametrize("threshold", [None, 0.9])
def test_commit_and_renoise_as_published(uniform, threshold, network):
    """Row after row and token after token, with the published comparisons, temperatures and early stop."""
    times, schedule, words = np.linspace(1.0, 0.0, 9), cat.keep_cosine(), prescribed_numpy()
    x = np.random.default_rng(5).integers(0, 3, (6, 12))
    found = smp.commit_and_renoise(network, x, uniform, schedule, times, rng=words, threshold=threshold)
    state, out = x.copy(), x.copy()
    settled, calm, done = np.zeros(x.shape, bool), np.zeros(6, int), np.zeros(6, bool)
    last, before = None, None
    for k in range(8):
        log_p = network(state, schedule.level(np.asarray(times[k])))
        tau = 0.8 - 0.4 * k / 8
        like = np.empty((6, 12, 3))
        proposal, fresh = race(words(2 * k, like), log_p / tau), race(words(2 * k + 1, like), np.zeros((6, 12, 3)))
        best, sure = log_p.argmax(-1), log_p.max(-1)
        for i in range(6):
            if done[i]:
                continue
            for j in range(12):
                if not settled[i, j]:
                    out[i, j] = proposal[i, j]
                    if k > 0 and (best[i, j] == last[i, j] or sure[i, j] >= before[i, j]):
                        settled[i, j] = True
                state[i, j] = out[i, j] if settled[i, j] else fresh[i, j]
            entropy = -(np.exp(log_p[i]) * log_p[i]).sum(-1).mean()
            calm[i] = calm[i] + 1 if threshold is not None and entropy < threshold else 0
            done[i] = calm[i] >= 2
        last, before = best, sure
    assert np.array_equal(found, out)
    assert done.any() == (threshold is not None)


@pytest.mark.claim("discrete-samplers-order")
@pytest.mark.parametrize("order", ["probability", "margin", "entropy"])
def test_confidence_ordered_as_written(order):
    """Counts, sureness of the law as it is and not of the tempered one, and the proposal kept apart."""
    kernel, times, words = cat.absorbing(4), [1.0, 0.7, 0.4, 0.0], prescribed_numpy()

    def denoise(x: Any, level: Any) -> np.ndarray:
        return np.concatenate([toy(x, level), np.full((*x.shape, 1), -1e3)], axis=-1)

    x = np.full((4, 7), 3)
    x[0, 2] = 1
    found = smp.confidence_ordered(denoise, x, kernel, LINEAR, times, rng=words, order=order, temperature=0.5)
    state, total = x.copy(), (x == 3).sum(axis=1)
    for k, (now, after) in enumerate(itertools.pairwise(times)):
        log_p = denoise(state, LINEAR.level(np.asarray(now)))
        proposal = race(words(2 * k, np.empty(log_p.shape)), log_p / 0.5)
        for i in range(4):
            p = np.exp(log_p[i])
            score = {
                "probability": [p[j, proposal[i, j]] for j in range(7)],
                "margin": [np.sort(p[j])[-1] - np.sort(p[j])[-2] for j in range(7)],
                "entropy": [(p[j] * log_p[i, j]).sum() for j in range(7)],
            }[order]
            masked = [j for j in range(7) if state[i, j] == 3]
            left = math.floor(total[i] * after + 1e-9)
            for j in sorted(masked, key=lambda j: -score[j])[: len(masked) - left]:
                state[i, j] = proposal[i, j]
    assert np.array_equal(found, state)
    assert (found < 3).all()
    assert found[0, 2] == 1


@pytest.mark.claim("discrete-samplers-order")
def test_order_by_confidence_has_another_law(absorbing):
    """Two tokens revealed one by one by an exact denoiser: at random the law is exact, by confidence it is not."""
    table, denoise = model(absorbing, weights(3, 2, seed=8))
    x = np.full((20_000, 2), 3)
    for how in ("random", "probability"):
        found = smp.confidence_ordered(
            denoise, x, absorbing, LINEAR, [1.0, 0.5, 0.0], rng=np.random.default_rng(4), order=how
        )
        assert off(found, table.law) is (how != "random")


@pytest.mark.parametrize("name", ["confidence_ordered", "commit_and_renoise"])
def test_rules_in_every_library(backend, name):
    kernel = KERNELS["absorbing" if name == "confidence_ordered" else "uniform"]
    table = oracles.table(weights(3, 2), mask=kernel.mask is not None)
    x = np.full((6, 2), kernel.mask or 0)
    rule, times = getattr(smp, name), np.linspace(1.0, 0.0, 4)

    def run(x: Any, rng: Any) -> Any:
        return rule(lambda x, level: table.denoise(x, kernel, level), x, kernel, LINEAR, times, rng=rng)

    given_x = backend.asarray(x, "int32")
    if backend.name == "jax":
        import jax

        found = jax.jit(run)(given_x, jax.random.key(0))
        assert int(np.asarray(found).max()) < 3
    else:
        found = run(given_x, prescribed(backend))
        assert np.array_equal(backend.numpy(found), run(x, prescribed_numpy()))
    assert backend.dtype(found) == "int32"


# --------------------------------------------------------------------------------------------------------------------
# the Markov chain of mathematics: V = 8, L = 64


def chain_of_eight(*, mask: bool = False) -> oracles.MarkovChain:
    """Rows Dirichlet(.25), mixed .97/.03 with uniform; started from its stationary law."""
    rows = 0.97 * np.random.default_rng(0).dirichlet(np.full(8, 0.25), 8) + 0.03 / 8
    values, vectors = np.linalg.eig(rows.T)
    law = np.real(vectors[:, np.argmax(np.real(values))])
    return oracles.markov(law / law.sum(), rows, mask=mask)


def bigrams(x: np.ndarray) -> np.ndarray:
    """Relative frequencies of neighbours."""
    return np.bincount((8 * x[:, :-1] + x[:, 1:]).ravel(), minlength=64).reshape(8, 8) / x[:, 1:].size


def bigram_error(chain: oracles.MarkovChain, x: np.ndarray) -> float:
    """Total variation of bigrams."""
    return smp.total_variation(bigrams(x), chain.initial[:, None] * chain.transition)


def run_chain(steps: int, n: int) -> float:
    """Bigram error of ancestral sampling with the exact denoiser, uniform noise, cosine."""
    chain, kernel, rng = chain_of_eight(), cat.uniform(8), np.random.default_rng(steps)
    x = rng.integers(0, 8, (n, 64))
    x = smp.sample(
        lambda x, level: chain.denoise(x, kernel, level),
        x,
        kernel,
        cat.keep_cosine(),
        np.linspace(1.0, 0.0, steps + 1),
        smp.ancestral(),
        rng=rng,
    )
    return bigram_error(chain, x)


def test_bigrams_of_a_markov_chain_after_eight_steps():
    found = run_chain(8, 300)
    assert found == pytest.approx(0.053, abs=0.015), "300 sequences: the floor is three times that of 3,000"


@pytest.mark.slow
def test_bigrams_of_a_markov_chain():
    for steps, expected in ((4, 0.128), (8, 0.053), (16, 0.026), (32, 0.013)):
        assert run_chain(steps, 3000) == pytest.approx(expected, abs=0.006)


def test_commit_and_renoise_draws_nearly_independent_tokens():
    chain, kernel, rng = chain_of_eight(), cat.uniform(8), np.random.default_rng(0)
    x = rng.integers(0, 8, (300, 64))

    def denoise(x: Any, level: Any) -> Any:
        return cat.to_posterior(kernel, x, chain.denoise(x, kernel, level), level)

    y = smp.commit_and_renoise(
        denoise,
        x,
        kernel,
        cat.keep_cosine(),
        np.linspace(1.0, 0.0, 17),
        rng=rng,
        temperatures=(1.0, 1.0),
        threshold=None,
    )
    free = np.multiply.outer(*(bigrams(y).sum(axis=a) for a in (1, 0)))
    assert bigram_error(chain, y) == pytest.approx(0.44, abs=0.04)
    assert smp.total_variation(bigrams(y), free) < 0.1


# --------------------------------------------------------------------------------------------------------------------
# bad input


def call(**changes: Any) -> Any:
    """A call of `sample` that works, with changes."""
    kernel = changes.pop("kernel", KERNELS["uniform"])
    arguments: dict[str, Any] = {
        "denoise": lambda x, level: np.zeros((*x.shape, 3)) - math.log(3.0),
        "x": np.zeros((2, 4), int),
        "schedule": LINEAR,
        "t": [1.0, 0.5, 0.0],
        "step": smp.ancestral(),
    }
    options: dict[str, Any] = {"rng": np.random.default_rng(0)}
    for name, value in changes.items():
        (arguments if name in arguments else options)[name] = value
    a = arguments
    return smp.sample(a["denoise"], a["x"], kernel, a["schedule"], a["t"], a["step"], **options)


BAD = [
    ({"denoise": 3}, TypeError, "denoise must be"),
    ({"denoise": lambda x, level: np.zeros((1, 2, 3))}, ValueError, "denoise must return log-probabilities"),
    ({"denoise": lambda x, level: 1.0}, ValueError, "denoise must return log-probabilities"),
    ({"denoise": lambda x, level: np.zeros((2, 4, 3), complex)}, TypeError, "denoise must return real numbers"),
    ({"x": np.zeros((2, 4))}, TypeError, "x must be integers"),
    ({"x": np.zeros(4, int)}, ValueError, "x must have shape"),
    ({"x": np.zeros((0, 4), int)}, ValueError, "x must have shape"),
    ({"x": np.full((2, 4), 3)}, ValueError, "x must be classes"),
    ({"kernel": "uniform"}, TypeError, "kernel must be"),
    ({"schedule": 3}, TypeError, "schedule must be"),
    ({"t": [0.0, 1.0]}, ValueError, "t must decrease"),
    ({"t": [1.0]}, ValueError, "t must have shape"),
    ({"t": [1.5, 0.0]}, ValueError, r"t must be in \[0, 1\]"),
    ({"step": smp.ancestral}, TypeError, "step must be"),
    ({"step": smp.remasking(eta=0.1)}, ValueError, "kernel must be absorbing"),
    ({"step": smp.tau_leaping()}, ValueError, "t must have alpha > 0"),
    ({"rng": 3}, TypeError, "rng must be"),
    ({"rng": [np.random.default_rng(0)]}, ValueError, "rng must hold one source"),
    ({"given": np.zeros(4)}, TypeError, "given must be booleans"),
    ({"given": np.zeros(3, bool)}, ValueError, "given must have shape"),
    ({"block": 0}, ValueError, "block must be"),
    ({"block": 5}, ValueError, "block must be"),
    ({"block": True}, ValueError, "block must be"),
    ({"head": "x"}, ValueError, "head must be"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD, ids=[f"{m} {i}" for i, (_, _, m) in enumerate(BAD)])
def test_bad_calls(changes, error, message):
    call()
    with pytest.raises(error, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: smp.theta_trapezoidal(theta=0.0), ValueError, "theta must be"),
        (lambda: smp.theta_trapezoidal(theta=1.0), ValueError, "theta must be"),
        (lambda: smp.theta_trapezoidal(jumps="few"), ValueError, "jumps must be"),
        (lambda: smp.theta_rk2(theta=0.4), ValueError, "theta must be"),
        (lambda: smp.theta_rk2(theta=1.1), ValueError, "theta must be"),
        (lambda: smp.tau_leaping(jumps="few"), ValueError, "jumps must be"),
        (lambda: smp.renoising(kappa=1.1), ValueError, "kappa must be"),
        (lambda: smp.renoising(kappa=-0.1), ValueError, "kappa must be"),
        (lambda: smp.remasking(eta=1.1), ValueError, "eta must be"),
        (lambda: smp.remasking(eta=0.1, rule="x"), ValueError, "rule must be"),
        (lambda: smp.with_gibbs(smp.ancestral), TypeError, "step must be"),
        (lambda: smp.with_gibbs(smp.ancestral(), sweeps=0), ValueError, "sweeps must be"),
        (lambda: smp.with_forward_backward(smp.ancestral(), share=0.0), ValueError, "share must be"),
        (lambda: smp.with_forward_backward(3), TypeError, "step must be"),
    ],
)
def test_bad_steps(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bad_arguments_elsewhere(absorbing, uniform):
    x, rng = np.full((2, 3), 3), np.random.default_rng(0)
    times = [1.0, 0.0]
    cases = [
        (lambda: smp.first_hitting(inconsistent, x, uniform, LINEAR, rng=rng), ValueError, "kernel must be absorbing"),
        (lambda: smp.first_hitting(inconsistent, x, absorbing, 3, rng=rng), TypeError, "schedule must be"),
        (
            lambda: smp.first_hitting(inconsistent, x, absorbing, cat.keep_discrete(LINEAR, 4), rng=rng),
            ValueError,
            "schedule must be continuous",
        ),
        (
            lambda: smp.first_hitting(inconsistent, x, absorbing, LINEAR, rng=rng, start=2.0),
            ValueError,
            "start must be",
        ),
        (lambda: smp.uniformisation(toy, x % 3, uniform, LINEAR, rng=rng), ValueError, "start must have 0 < alpha < 1"),
        (
            lambda: smp.uniformisation(toy, x % 3, uniform, LINEAR, rng=rng, start=0.9, stop=0.0),
            ValueError,
            "stop must have 0 < alpha < 1",
        ),
        (lambda: smp.uniformisation(toy, x % 3, "k", LINEAR, rng=rng), TypeError, "kernel must be"),
        (
            lambda: smp.confidence_ordered(toy, x, absorbing, LINEAR, times, rng=rng, order="x"),
            ValueError,
            "order must be",
        ),
        (
            lambda: smp.commit_and_renoise(toy, x % 3, uniform, LINEAR, times, rng=rng, patience=0),
            ValueError,
            "patience must be",
        ),
        (
            lambda: smp.commit_and_renoise(toy, x % 3, uniform, LINEAR, times, rng=rng, temperatures=(0.0, 1.0)),
            ValueError,
            "temperatures must be",
        ),
        (lambda: smp.law_of(toy, uniform, LINEAR, times, smp.ancestral(), length=0), ValueError, "length must be"),
        (lambda: smp.law_of(toy, uniform, LINEAR, times, smp.ancestral(), length=9), ValueError, "length must be such"),
        (
            lambda: smp.law_of(toy, uniform, LINEAR, times, smp.ancestral(), length=2, start=np.ones(3)),
            ValueError,
            "start must be probabilities",
        ),
        (
            lambda: smp.renoise_law(uniform, np.array([0]), np.zeros((1, 3)), *_levels(), kappa=2.0),
            ValueError,
            "kappa must be",
        ),
        (
            lambda: smp.corrector_law(uniform, np.array([0]), np.zeros((1, 4)), _levels()[0]),
            ValueError,
            "log_p must have",
        ),
        (lambda: smp.corrector_law(uniform, np.array([0]), np.zeros((1, 3)), 0.5), TypeError, "t must be"),
    ]
    for run, error, message in cases:
        with pytest.raises(error, match=message):
            run()


def _levels() -> tuple[Any, Any]:
    return LINEAR.level(np.asarray(0.3)), LINEAR.level(np.asarray(0.8))


# --------------------------------------------------------------------------------------------------------------------
# what a reviewer found


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32"])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_differences_of_narrow_tokens_do_not_wrap(library, dtype, uniform):
    xp = np if library == "numpy" else pytest.importorskip("jax").numpy
    jumps = np.array([[0.3, 0.1, 0.0], [0.0, 0.1, 0.3]])
    x = np.array([2, 0])
    found = np.exp(np.asarray(smp.leap_law(uniform, xp.asarray(x.astype(dtype)), xp.asarray(jumps))))
    np.testing.assert_allclose(found, np.exp(smp.leap_law(uniform, x, jumps)), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, atol=1e-6)
    wide = cat.uniform(200)  # 199 + 199 leaves eight bits
    law = smp.leap_law(wide, xp.asarray(np.array(199, dtype="uint8")), xp.zeros(200) + 0.001)
    assert abs(float(np.exp(np.asarray(law)).sum()) - 1.0) < 1e-5


def test_jumps_are_checked_and_the_tokens_own_entry_is_ignored(uniform):
    x, jumps = np.array(2), np.array([0.3, 0.1, 0.0])
    for law in (smp.one_jump_law, lambda *a: smp.leap_law(uniform, *a)):
        assert np.array_equal(law(x, jumps), law(x, jumps + np.array([0.0, 0.0, 5.0])))
        assert np.array_equal(law(2, [0.3, 0.1, 0.0]), law(x, jumps))
        for bad, values in ((3, jumps), (-1, jumps)):
            with pytest.raises(ValueError, match="x must be classes from 0 to 2"):
                law(np.array(bad), values)
        with pytest.raises(ValueError, match="jumps must be >= 0"):
            law(x, -jumps)
        with pytest.raises(TypeError, match="x must be integers"):
            law(np.array(2.0), jumps)
    with pytest.raises(TypeError, match="holds classes up to 199"):
        smp.one_jump_law(np.array(2, dtype="int8"), np.zeros(200))
    for kernel in (uniform, KERNELS["absorbing"]):
        with pytest.raises(ValueError, match=rf"jumps must have shape \({kernel.classes},\)"):
            smp.leap_law(kernel, x, np.zeros(kernel.classes + 1))


def test_a_random_order_is_random_in_half_precision():
    kernel, x = cat.absorbing(3), np.full((400, 8), 2)

    def denoise(x: Any, level: Any) -> np.ndarray:  # noqa: ARG001
        return np.broadcast_to(np.array([-0.5, -1.0, -np.inf], dtype=np.float16), (*x.shape, 3))

    found = smp.confidence_ordered(denoise, x, kernel, LINEAR, [1.0, 0.5], rng=np.random.default_rng(0), order="random")
    revealed = (found != 2).mean(axis=0)
    assert ((found != 2).sum(axis=1) == 4).all()
    # 400 sequences: five standard errors; from left to right it would be 1 and 0
    assert abs(revealed - 0.5).max() < SIGMAS * 0.5 / math.sqrt(400)


def test_shaping_of_what_is_no_law():
    rows = np.array([[0.0, math.nan, -1.0], [-math.inf] * 3, [math.inf, 0.0, 0.0], [-1.0, -2.0, -math.inf]])
    for options in ({}, {"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 1}, {"top_p": 0.5}, {"top_p": 1.0}):
        found = smp.shape_law(rows, **options)
        assert np.isnan(found).all(axis=-1).tolist() == [True, True, True, False]
        assert np.exp(found[3]).sum() == pytest.approx(1.0)
    for bad in (np.array(0.0), np.zeros((2, 0))):
        with pytest.raises(ValueError, match="log_p must have shape"):
            smp.shape_law(bad)


def test_shaping_with_the_least_and_greatest_numbers(backend):
    p = np.log([0.6, 0.4, 1e-30])
    for temperature in (1e-309, 1e-300, 1e-40):
        for law in (p, p - 700.0):
            found = backend.numpy(smp.shape_law(backend.asarray(law), temperature=temperature))
            assert np.exp(found).tolist() == [1.0, 0.0, 0.0]
    flat = backend.numpy(smp.shape_law(backend.asarray([0.0, -1.0, -math.inf]), temperature=1e300))
    np.testing.assert_allclose(flat, [-math.log(2.0)] * 2 + [-math.inf], atol=1e-6)
    tail = backend.asarray(p)
    whole = backend.numpy(smp.shape_law(tail, top_p=1.0))
    np.testing.assert_allclose(whole, p, rtol=1e-6)  # nothing is cut, however small
    assert np.isinf(backend.numpy(smp.shape_law(tail, top_p=0.999))[2])
    assert np.isinf(backend.numpy(smp.shape_law(tail, top_k=np.int64(2)))[2])


def test_guidance_does_not_overflow_in_half_precision():
    a, b = (np.array(law, dtype=np.float16) for law in ([-0.01, -5.0], [-60.0, -0.01]))
    found = smp.guide(a, b, weight=3000.0)  # 180,000 is beyond float16
    assert found.dtype == np.float16
    assert found.tolist() == [0.0, -math.inf]


def test_times_of_uniformisation_are_ordered(uniform):
    _, denoise = model(uniform, weights(3, 2))
    x = np.zeros((2, 2), int)
    options = {"rng": np.random.default_rng(0), "start": np.float32(0.5)}
    with pytest.raises(ValueError, match="stop must be at most start"):
        smp.uniformisation(denoise, x, uniform, LINEAR, stop=0.6, **options)
    assert smp.uniformisation(denoise, x, uniform, LINEAR, stop=np.float32(0.25), **options).shape == x.shape


@pytest.mark.parametrize("token", [-1, 3])
def test_samplers_refuse_tokens_out_of_range(token):
    kernel, x, rng = cat.absorbing(3), np.array([[2, token]]), np.random.default_rng(0)

    def denoise(x: Any, level: Any) -> np.ndarray:  # noqa: ARG001
        return np.broadcast_to(np.log([0.6, 0.4, 1e-300]), (*x.shape, 3))

    calls = (
        lambda: smp.sample(denoise, x, kernel, LINEAR, [1.0, 0.0], smp.ancestral(), rng=rng),
        lambda: smp.first_hitting(denoise, x, kernel, LINEAR, rng=rng),
        lambda: smp.uniformisation(denoise, x, kernel, LINEAR, rng=rng, start=0.5),
        lambda: smp.confidence_ordered(denoise, x, kernel, LINEAR, [1.0, 0.0], rng=rng),
        lambda: smp.commit_and_renoise(denoise, x, kernel, LINEAR, [1.0, 0.0], rng=rng),
    )
    for call in calls:
        with pytest.raises(ValueError, match="x must be classes from 0 to 2"):
            call()


def test_commit_and_renoise_takes_unsigned_tokens_and_two_temperatures(uniform):
    x = np.random.default_rng(1).integers(0, 3, (3, 4))
    runs = [
        smp.commit_and_renoise(toy, x.astype(dtype), uniform, LINEAR, np.linspace(1.0, 0.0, 5), rng=prescribed_numpy())
        for dtype in (np.int64, np.uint8)
    ]
    assert runs[1].dtype == np.uint8
    assert np.array_equal(*runs)
    for bad in (0.5, (0.5,), (0.8, 0.6, 0.4)):
        with pytest.raises(ValueError, match="temperatures must be two numbers"):
            smp.commit_and_renoise(toy, x, uniform, LINEAR, [1.0, 0.0], rng=np.random.default_rng(0), temperatures=bad)


def test_the_law_at_the_start_is_a_law(uniform):
    _, denoise = model(uniform, weights(3, 1))
    for bad in ([0.5, 0.3, 0.3], [1.0, 1.0, -1.0], [1.0, 0.0], [0.0, 0.0, 0.0], [math.nan, 1.0, 0.0]):
        with pytest.raises(ValueError, match="start must be probabilities"):
            smp.law_of(denoise, uniform, LINEAR, [0.5, 0.0], smp.ancestral(), length=1, start=np.array(bad))
    start = np.array([0.2, 0.3, 0.5], dtype=np.float32)
    law = smp.law_of(denoise, uniform, LINEAR, [0.5, 0.0], smp.ancestral(), length=1, start=start)
    assert law.sum() == pytest.approx(1.0, abs=1e-6)


def test_a_traced_grid_closes_with_an_ancestral_step(uniform):
    """Its last time is not known, so that it counts as 0, as documented."""
    jax = pytest.importorskip("jax")

    def run(t: Any) -> Any:
        return smp.sample(
            lambda x, level: jax.numpy.zeros((*x.shape, 3)) - math.log(3.0),
            jax.numpy.zeros((64, 4), int),
            uniform,
            cat.keep_linear_rate(),
            t,
            smp.tau_leaping(),
            rng=jax.random.key(0),
        )

    grid = jax.numpy.array([0.9, 0.4, 0.0])
    assert np.array_equal(run(grid), jax.jit(run)(grid))
