"""Bounds against enumeration, closed forms of the papers, entropies, exact likelihoods and exact variances."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st

from diffnum._times import uniforms
from diffnum.discrete import elbo
from diffnum.kernels import categorical as cat

ROUNDING = 1e-12
"""Sums of a few hundred float64 numbers of order one."""

QUADRATURE = 1e-8
"""Gauss-Legendre over an integrand with a logarithm at one end."""

SINGLE = 2e-5
"""Sums of logarithms of float32 numbers, relative to numbers of order one."""

MISTAKE = 1e-3
"""A plausible mistake changes a bound by more than this."""

SIGMAS = 5.0
"""Monte Carlo means may be off by so many standard errors; seeds are fixed."""

LINEAR, COSINE, SQUARE = cat.keep_linear(), cat.keep_cosine(), cat.keep_polynomial(power=2.0)
LAW = np.random.default_rng(7).dirichlet(np.full(9, 2.0)).reshape(3, 3)
"""Two tokens of three classes: the smallest case in which tokens depend on one another."""

LONG = np.random.default_rng(8).dirichlet(np.ones(27)).reshape(3, 3, 3)

CASES: dict[str, tuple[Any, bool]] = {
    "uniform": (cat.uniform(3), False),
    "law": (cat.stationary([0.2, 0.5, 0.3]), False),
    "absorbing": (cat.absorbing(4), True),
    "hybrid": (cat.hybrid(4, share=0.4), True),
}
"""Kernel, and whether the law needs a mask."""


def case(name: str, law: np.ndarray = LAW) -> tuple[Any, Any, Any, np.ndarray]:
    """Kernel, model, its exact denoiser, and the probability of each sequence."""
    kernel, mask = CASES[name]
    model = elbo.table(law, mask=mask)
    return kernel, model, lambda x_t, level: model.denoise(x_t, kernel, level), model.law.reshape(-1)


def mean(weights: np.ndarray, terms: np.ndarray) -> float:
    """Mean over the data; what cannot happen may be infinite."""
    known = weights > 0
    return float(weights[known] @ terms[known])


def entropy(p: np.ndarray) -> float:
    """Entropy of a law."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def flat(denoise: Any, power: float = 0.5) -> Any:
    """An inexact denoiser: a power of the exact one."""

    def inexact(x_t: Any, level: Any) -> Any:
        p = np.exp(power * denoise(x_t, level)) * np.isfinite(denoise(x_t, level))
        return np.log(np.maximum(p / p.sum(axis=-1, keepdims=True), 1e-300))

    return inexact


def joint(kernel: Any, law: np.ndarray, t: Any) -> np.ndarray:
    """P(x_0, x_t) over all pairs of sequences, by products of matrices."""
    q = np.asarray(cat.transition(kernel, t))
    whole = q
    for _ in range(law.ndim - 1):
        whole = np.kron(whole, q)
    return law.reshape(-1)[:, None] * whole


def states(classes: int, length: int) -> np.ndarray:
    """All sequences, naively."""
    return np.asarray(list(itertools.product(range(classes), repeat=length)))


# -- laws whose denoiser is known -------------------------------------------------------------------------------------


@pytest.mark.claim("discrete-elbo-table", "discrete-elbo-markov")
@pytest.mark.parametrize("name", CASES)
def test_denoisers_leave_their_own_token_out(name):
    """Both against a naive sum over sequences; the posterior is another law."""
    rng = np.random.default_rng(3)
    start, step = rng.dirichlet(np.ones(3)), rng.dirichlet(np.full(3, 0.4), 3)
    law = np.asarray([start[a] * step[a, b] * step[b, c] for a, b, c in states(3, 3)]).reshape(3, 3, 3)
    kernel, mask = CASES[name]
    t = COSINE.level(0.55)
    x_t = states(kernel.classes, 3)
    models = elbo.table(law, mask=mask), elbo.markov(start, step, mask=mask)
    found = [np.exp(model.denoise(x_t, kernel, t)) for model in models]
    q, whole = np.asarray(cat.transition(kernel, t)), models[0].law
    for index, noisy in enumerate(x_t):
        for i in range(3):
            exact, counted = np.zeros(kernel.classes), np.zeros(kernel.classes)
            for x_0 in x_t:
                others = math.prod(q[x_0[j], noisy[j]] for j in range(3) if j != i)
                exact[x_0[i]] += whole[tuple(x_0)] * others
                counted[x_0[i]] += whole[tuple(x_0)] * others * q[x_0[i], noisy[i]]
            for values in found:
                np.testing.assert_allclose(values[index, i], exact / exact.sum(), atol=ROUNDING)
            if name == "uniform":
                assert abs(found[0][index, i] - counted / counted.sum()).max() > MISTAKE
    np.testing.assert_allclose(models[0].entropy, models[1].entropy(3), rtol=ROUNDING)
    assert models[0].entropy == pytest.approx(entropy(law), rel=ROUNDING)
    clean = states(3, 3)
    for model in models:
        np.testing.assert_allclose(model.log_probability(clean), np.log(law.reshape(-1)), rtol=ROUNDING)
        assert model.classes == kernel.classes
    assert models[0].length == 3
    np.testing.assert_allclose(models[1].marginals(3)[2][:3], law.sum(axis=(0, 1)), rtol=ROUNDING)


@pytest.mark.claim("discrete-elbo-table", "discrete-elbo-markov")
@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
def test_samples_have_their_law(kind):
    """Chi-square of all 27 sequences, of which some are impossible and never drawn; all kinds of source."""
    start, step = np.asarray([0.5, 0.5, 0.0]), np.asarray([[0.7, 0.2, 0.1], [0.0, 0.3, 0.7], [1.0, 0.0, 0.0]])
    chain = elbo.markov(start, step)
    law = np.asarray([start[a] * step[a, b] * step[b, c] for a, b, c in states(3, 3)]).reshape(3, 3, 3)
    library = pytest.importorskip(kind)
    source = {
        "numpy": lambda: np.random.default_rng(1),
        "jax": lambda: library.random.key(1),
        "torch": lambda: library.Generator().manual_seed(1),
    }[kind]()
    n = 4000
    for x in (chain.sample(source, n, 3), elbo.table(law).sample(source, n)):
        assert tuple(x.shape) == (n, 3)
        assert type(x).__module__.split(".")[0] in {kind, "jaxlib"}
        counts = np.zeros((3, 3, 3))
        np.add.at(counts, tuple(np.asarray(x).T), 1)
        possible = law > 0
        assert counts[~possible].sum() == 0
        chi = ((counts - n * law)[possible] ** 2 / (n * law[possible])).sum()
        assert chi < possible.sum() - 1 + 4 * math.sqrt(2 * possible.sum())
        assert chi > 0.5


def test_long_chains_do_not_underflow():
    """1,000 masked tokens at noise 1e-6 in float32: messages of what is never visited would swallow the others."""
    rng = np.random.default_rng(0)
    chain = elbo.markov(np.full(3, 1 / 3), rng.dirichlet(np.ones(3), 3), mask=True)
    level = LINEAR.level(np.float32(1e-6))
    found = chain.denoise(np.full((1, 1000), 3), cat.absorbing(4), level)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.exp(found[0]).sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found[0, :, :3]), chain.marginals(1000)[:, :3], rtol=1e-4)
    assert (found[0, :, 3] == -math.inf).all()
    # noise of exp(-60), whose square float32 does not hold: what is seen still decides
    level = cat.Keep(None, np.float32(0.0), np.float32(-60.0))
    found = chain.denoise(np.asarray([[0, 3, 3]]), cat.absorbing(4), level)
    np.testing.assert_allclose(np.exp(found[0, 1, :3]), chain.transition[0, :3], rtol=1e-5)


def test_where_the_others_contradict_the_law_a_token_has_its_marginal():
    """An ancestral step may reveal two tokens that do not go together."""
    law = np.diag([0.5, 0.3, 0.2])[:, :, None] * np.asarray([0.6, 0.3, 0.1])
    model, kernel = elbo.table(law, mask=True), cat.absorbing(4)
    found = np.exp(model.denoise(np.asarray([[0, 1, 3]]), kernel, COSINE.level(0.5)))[0]
    np.testing.assert_allclose(found[2], [0.6, 0.3, 0.1, 0.0], atol=ROUNDING)
    np.testing.assert_allclose(found[0], [0.0, 1.0, 0.0, 0.0], atol=ROUNDING)
    chain = elbo.markov([0.5, 0.3, 0.2], np.eye(3), mask=True)
    found = np.exp(chain.denoise(np.asarray([[0, 1, 3]]), kernel, COSINE.level(0.5)))[0]
    np.testing.assert_allclose(found[2], [0.5, 0.3, 0.2, 0.0], atol=ROUNDING)


# -- terms ------------------------------------------------------------------------------------------------------------


@pytest.mark.claim("discrete-elbo-step", "discrete-elbo-reconstruction")
@pytest.mark.parametrize("name", ["uniform", "law", "absorbing", "hybrid", "band", "gaussian"])
def test_steps_are_divergences_of_bayes_rule(name):
    """From matrices entry by entry; other levels give another number."""
    kernel = {"band": cat.band(3), "gaussian": cat.discretised_gaussian(3, [0.1, 0.4])}.get(name) or CASES[name][0]
    k = kernel.classes
    s, t = (1, 2) if name == "gaussian" else (COSINE.level(0.4), COSINE.level(0.6))
    q_s, q_t, q_ts = (
        np.asarray(m) for m in (cat.transition(kernel, s), cat.transition(kernel, t), cat.transition(kernel, t, s))
    )
    p = np.random.default_rng(0).dirichlet(np.ones(k))
    pairs = [(a, b) for a in range(k) for b in range(k) if q_t[a, b] > 0]
    x_0, x_t = (np.asarray([pair[i] for pair in pairs])[None] for i in (0, 1))
    log_p = np.broadcast_to(np.log(p), (*x_0.shape, k))
    found = elbo.step_divergence(kernel, x_0, x_t, log_p, s, t)[0]
    back = elbo.reconstruction(kernel, x_0, x_t, log_p, t)[0]
    for index, (a, b) in enumerate(pairs):
        true = q_s[a] * q_ts[:, b] / q_t[a, b]
        model = (p @ q_s) * q_ts[:, b] / (p @ q_t[:, b])
        known = true > 0
        exact = float(np.sum(true[known] * np.log(true[known] / model[known])))
        assert found[index] == pytest.approx(exact, abs=ROUNDING)
        assert back[index] == pytest.approx(-math.log(p[a] * q_t[a, b] / (p @ q_t[:, b])), abs=ROUNDING)
    assert (found >= 0).all()
    clean = 0 if name == "gaussian" else COSINE.level(0.0)
    first = elbo.step_divergence(kernel, x_0, x_t, log_p, clean, t)[0]
    np.testing.assert_allclose(first, back, atol=ROUNDING)
    if name != "gaussian":
        later = elbo.step_divergence(kernel, x_0, x_t, log_p, COSINE.level(0.5), COSINE.level(0.7))[0]
        assert abs(later - found).max() > MISTAKE


@pytest.mark.claim("discrete-elbo-step")
def test_close_steps_keep_their_digits():
    """A step of 1e-6 in float32 against float64, and the sum of q log(q/p), which cancels to nothing."""
    kernel = cat.uniform(50)
    rng = np.random.default_rng(1)
    x_0, x_t = rng.integers(0, 50, (2, 1, 40))
    log_p = np.log(0.98 * (np.arange(50) == x_0[..., None]) + 0.02 * rng.dirichlet(np.ones(50), (1, 40)))
    single = [COSINE.level(np.float32(u)) for u in (0.5, 0.5 + 1e-5)]
    levels = [cat.Keep(None, *(np.asarray(part, float) for part in level[1:])) for level in single]
    exact = elbo.step_divergence(kernel, x_0, x_t, log_p, *levels)
    found = elbo.step_divergence(kernel, x_0, x_t, log_p.astype(np.float32), *single)
    assert found.dtype == np.float32
    # 1 - alpha_{t|s} itself has an error of 1e-7 over 3e-5 here
    np.testing.assert_allclose(found, exact, rtol=2e-2)
    q = cat.posterior(kernel, x_t, x_0, *single)
    p = cat.mixture_posterior(kernel, x_t, log_p.astype(np.float32), *single)
    plain = np.sum(np.exp(q) * (q - p), axis=-1)
    assert np.median(abs(plain - exact) / exact) > 0.05


@pytest.mark.claim("discrete-elbo-masked-step", "discrete-elbo-absorbing")
def test_absorbing_terms_in_closed_form():
    kernel, rng = cat.absorbing(5), np.random.default_rng(2)
    log_p = np.log(np.append(rng.dirichlet(np.ones(4)), 1e-300))
    x_t, x_0 = np.asarray([[4, 4, 1, 0]]), np.asarray([[0, 3, 1, 0]])
    laws = np.broadcast_to(log_p, (1, 4, 5))
    for schedule in (LINEAR, COSINE, SQUARE):
        s, t = schedule.level(0.3), schedule.level(0.7)
        nll = np.where(x_t == 4, -log_p[x_0], 0.0)
        weight = (float(s.alpha) - float(t.alpha)) / (1 - float(t.alpha))
        np.testing.assert_allclose(elbo.step_divergence(kernel, x_0, x_t, laws, s, t), weight * nll, atol=ROUNDING)
        first = elbo.step_divergence(kernel, x_0, x_t, laws, schedule.level(0.0), schedule.level(0.1))
        np.testing.assert_allclose(first, nll, atol=ROUNDING)
        rate = float(schedule.slope(0.7)) / (1 - float(t.alpha))
        found = elbo.rate_divergence(kernel, x_0, x_t, laws, schedule, np.asarray(0.7))
        np.testing.assert_allclose(found, rate * nll, rtol=ROUNDING)
        # 1 - (t - dt) and t - dt, as in a public code
        assert abs((float(t.alpha) - float(s.alpha)) / (1 - float(t.alpha)) - weight) > MISTAKE


@pytest.mark.claim("discrete-elbo-absorbing", "discrete-elbo-rate")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pure_noise_is_a_limit_and_not_a_hole(backend: Backend, dtype: str):
    """alpha = 0 under a mask: slope times -log p, 0 only where the slope is; all other families vanish there."""
    log_p = backend.asarray(np.log([[[0.6, 0.3, 0.1 - 1e-12, 1e-12]]]), dtype)
    masked, x_0 = backend.asarray([[3]], None), backend.asarray([[1]], None)
    steep = cat.keep_polynomial(power=2.5, of="noise")
    for schedule, slope in ((LINEAR, 1.0), (COSINE, 0.0)) if backend.name == "jax" else ((steep, 2.5), (COSINE, 0.0)):
        found = elbo.rate_divergence(cat.absorbing(4), x_0, masked, log_p, schedule, backend.asarray(1.0, dtype))
        np.testing.assert_allclose(backend.numpy(found), [[-slope * math.log(0.3)]], rtol=SINGLE)
        close = elbo.rate_divergence(
            cat.absorbing(4), x_0, masked, log_p, schedule, backend.asarray(1 - 2.0**-22, dtype)
        )
        np.testing.assert_allclose(backend.numpy(close), backend.numpy(found), atol=1e-5)
        for kernel in (cat.uniform(4), cat.stationary([0.1, 0.2, 0.3, 0.4])):
            at = elbo.rate_divergence(kernel, x_0, masked, log_p, schedule, backend.asarray(1.0, dtype))
            near = elbo.rate_divergence(kernel, x_0, masked, log_p, schedule, backend.asarray(1 - 2.0**-22, dtype))
            np.testing.assert_array_equal(backend.numpy(at), 0.0)
            np.testing.assert_allclose(backend.numpy(near), 0.0, atol=1e-5)


def naive_uniform(k: int, alpha: float, slope: float, p: np.ndarray, x_0: int, z: int) -> float:
    """The closed form, term by term."""
    bar_x = np.asarray([k * alpha * (j == x_0) + (1 - alpha) for j in range(k)])
    bar_p = k * alpha * p + (1 - alpha)
    total = k / bar_p[z] - k / bar_x[z]
    for j in range(k):
        total += bar_x[j] / bar_x[z] * math.log(bar_p[z] * bar_x[j] / (bar_p[j] * bar_x[z]))
    return slope / (k * alpha) * total


@pytest.mark.claim("discrete-elbo-uniform", "discrete-elbo-score-entropy", "discrete-elbo-score", "discrete-elbo-rate")
@pytest.mark.parametrize("schedule", [LINEAR, COSINE, cat.keep_geometric()], ids=lambda s: s.name)
def test_uniform_bound_is_score_entropy(schedule):
    """Both closed forms, naively; the posterior in the place of the leave-one-out law is another number."""
    k, t = 5, np.asarray(0.6)
    kernel, level = cat.uniform(k), schedule.level(t)
    alpha, slope = float(level.alpha), float(schedule.slope(t))
    p = np.random.default_rng(3).dirichlet(np.ones(k))
    x_0, x_t = (m.reshape(1, -1) for m in np.meshgrid(np.arange(k), np.arange(k), indexing="ij"))
    log_p = np.broadcast_to(np.log(p), (1, k * k, k))
    found = elbo.rate_divergence(kernel, x_0, x_t, log_p, schedule, t)
    exact = [naive_uniform(k, alpha, slope, p, a, z) for a, z in zip(x_0[0], x_t[0], strict=True)]
    np.testing.assert_allclose(found[0], exact, rtol=1e-10)
    scores = elbo.to_log_score(kernel, x_t, log_p, level)
    np.testing.assert_allclose(elbo.score_entropy(kernel, x_0, x_t, scores, schedule, t), found, rtol=1e-10)
    noisy = alpha * p + (1 - alpha) / k
    for index, (a, z) in enumerate(zip(x_0[0], x_t[0], strict=True)):
        s = noisy / noisy[z]
        np.testing.assert_allclose(np.exp(scores[0, index]), s, rtol=1e-12)
        q = alpha * (np.arange(k) == a) + (1 - alpha) / k
        r = q / q[z]
        others = np.arange(k) != z
        sum_ = np.sum((s - r * np.log(s) + r * np.log(r) - r)[others])
        assert found[0, index] == pytest.approx(slope / alpha / k * sum_, rel=1e-10)
    wrong = elbo.rate_divergence(kernel, x_0, x_t, cat.to_posterior(kernel, x_t, log_p, level), schedule, t)
    assert abs(wrong - found).max() > MISTAKE * abs(found).max()
    right = elbo.rate_divergence(
        kernel, x_0, x_t, cat.to_posterior(kernel, x_t, log_p, level), schedule, t, head="posterior"
    )
    np.testing.assert_allclose(right, found, rtol=1e-10)


@pytest.mark.claim("discrete-elbo-rate")
@pytest.mark.parametrize("name", CASES)
def test_rates_are_limits_of_steps(name):
    """For any law, at order 1 in the step: the divergence of a step of length h, over h."""
    kernel = CASES[name][0]
    k = kernel.classes
    p = np.random.default_rng(4).dirichlet(np.ones(k))
    t = 0.6
    q = np.asarray(cat.transition(kernel, COSINE.level(t)))
    pairs = [(a, z) for a in range(k) for z in range(k) if q[a, z] > 0]
    x_0, x_t = (np.asarray([pair[i] for pair in pairs])[None] for i in (0, 1))
    log_p = np.broadcast_to(np.log(p), (*x_0.shape, k))
    found = elbo.rate_divergence(kernel, x_0, x_t, log_p, COSINE, np.asarray(t))
    errors = []
    for h in (1e-3, 5e-4):
        step = elbo.step_divergence(kernel, x_0, x_t, log_p, COSINE.level(t - h), COSINE.level(t)) / h
        errors.append(abs(step - found).max())
    assert errors[0] < 20e-3
    assert 1.9 < errors[0] / errors[1] < 2.1
    assert abs(found).max() > 10 * errors[0]


@pytest.mark.claim("discrete-elbo-from-score", "discrete-elbo-score")
@pytest.mark.parametrize("name", CASES)
def test_scores_and_laws_are_one_another(name):
    kernel = CASES[name][0]
    k = kernel.classes
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(k), (2, 3))
    if name == "absorbing":
        p[..., 3] = 0.0
        p /= p.sum(axis=-1, keepdims=True)
    x_t = np.asarray([[0, 1, 2], [k - 1, 0, 1]])
    if name == "absorbing":
        x_t = np.full((2, 3), 3)
    log_p = np.log(np.where(p > 0, p, 1e-300))
    for u in (0.2, 0.8):
        level = COSINE.level(u)
        scores = elbo.to_log_score(kernel, x_t, log_p, level)
        back = np.exp(elbo.from_log_score(kernel, x_t, scores, level))
        np.testing.assert_allclose(back, p, atol=1e-13 / float(level.alpha))
        alpha = float(level.alpha)
        noisy = alpha * p + (1 - alpha) * np.exp(kernel.log_law)
        naive = noisy / np.take_along_axis(noisy, x_t[..., None], axis=-1)
        np.testing.assert_allclose(np.exp(scores), naive, rtol=1e-11)
        # up to a constant they say the same
        np.testing.assert_allclose(np.exp(elbo.from_log_score(kernel, x_t, scores + 1.0, level)), back, atol=1e-12)
        posterior = cat.to_posterior(kernel, x_t, log_p, level)
        if name != "absorbing":
            again = elbo.to_log_score(kernel, x_t, posterior, level, head="posterior")
            np.testing.assert_allclose(again, scores, atol=1e-10)
            # s(y|x) = 1 + (r - 1) p(y|x) + (1/r - 1) p(x|x), in the posterior, for uniform noise
            if name == "uniform":
                r = 1 + alpha * k / (1 - alpha)
                post = np.exp(posterior)
                here = np.take_along_axis(post, x_t[..., None], axis=-1)
                formula = 1 + (r - 1) * post + (1 / r - 1) * here
                others = np.arange(k) != x_t[..., None]
                np.testing.assert_allclose(np.exp(scores)[others], formula[others], rtol=1e-11)


@pytest.mark.claim("discrete-elbo-prior")
def test_priors():
    x = np.asarray([[0, 1, 2]])
    kernel, level = cat.stationary([0.2, 0.5, 0.3]), COSINE.level(0.9)
    alpha = float(level.alpha)
    pi = np.asarray([0.2, 0.5, 0.3])
    rows = alpha * np.eye(3) + (1 - alpha) * pi
    exact = np.sum(rows * np.log(rows / pi), axis=1)
    np.testing.assert_allclose(elbo.prior(kernel, x, level)[0], exact, rtol=1e-11)
    # the loss of an exact denoiser at t = T is the entropy of the data, not the prior
    other = np.asarray([0.6, 0.2, 0.2])
    found = elbo.prior(kernel, x, level, log_law=np.log(other))
    np.testing.assert_allclose(found[0], np.sum(rows * np.log(rows / other), axis=1), rtol=1e-11)
    for family in (kernel, cat.uniform(3), cat.absorbing(4)):
        np.testing.assert_array_equal(elbo.prior(family, x, COSINE.level(1.0)), 0.0)
    assert (elbo.prior(cat.absorbing(4), x, cat.keep_log_linear().level(1.0)) == math.inf).all()
    walk = cat.band(3)
    q = np.asarray(cat.transition(walk, level))
    np.testing.assert_allclose(elbo.prior(walk, x, level)[0], np.sum(q * np.log(3 * q), axis=1), atol=1e-15)
    # small priors keep their digits: (K - 1) alpha^2/2
    tiny = elbo.prior(cat.uniform(3), x, cat.keep_log_linear(floor=1e-9).level(1.0))
    np.testing.assert_allclose(tiny, 1e-18, rtol=1e-6)


def test_float32_ratio_of_a_large_vocabulary():
    """1 - exp(-sigma) over K at sigma = 1e-4, K = 50,257, formed naively in float32, is 30 times too large."""
    level = cat.keep_geometric().level(np.float32(0.0))
    kernel = cat.uniform(50257)
    x = np.zeros((1, 1), np.int64)
    scores = elbo.to_log_score(kernel, x, cat.marginal(kernel, x, COSINE.level(np.float32(0.0))), level)
    assert scores.dtype == np.float32
    ratio = float(np.exp(scores[0, 0, 1]))
    exact = -math.expm1(-1e-4) / 50257 / (1 + math.expm1(-1e-4) * (1 - 1 / 50257))
    assert ratio == pytest.approx(exact, rel=1e-4)
    assert f"{exact:.2e}" == "1.99e-09"
    e = np.expm1(np.float32(1e-4))
    naive = np.float32(1) - np.float32(50257) / (e + np.float32(50257))
    assert naive.dtype == np.float32
    # 0 or one rounding of 1, 30 times too much, as the hardware divides
    assert abs(float(naive) / exact - 1) > 0.5


def test_impossible_and_certain_are_no_nan():
    """x_t that x_0 cannot become, laws that exclude what is, and clean data."""
    sure = np.asarray([[[0.0, -math.inf, -math.inf]]])
    zero, one = np.asarray([[0]]), np.asarray([[1]])
    mask = cat.absorbing(3)
    s, t = LINEAR.level(0.3), LINEAR.level(0.6)
    assert elbo.step_divergence(mask, zero, np.asarray([[2]]), sure, s, t) == pytest.approx(0.0, abs=ROUNDING)
    assert elbo.step_divergence(mask, one, np.asarray([[2]]), sure, s, t) == math.inf
    assert elbo.rate_divergence(mask, one, np.asarray([[2]]), sure, LINEAR, np.asarray(0.6)) == math.inf
    assert elbo.rate_divergence(mask, one, zero, sure, LINEAR, np.asarray(0.6)) == 0.0
    assert elbo.reconstruction(mask, one, np.asarray([[2]]), sure, t) == math.inf
    assert elbo.reconstruction(mask, one, one, np.log([[[0.3, 0.7, 1e-300]]]), t) == 0.0
    uniform = cat.uniform(3)
    # clean data: the limit of the rate is slope/K (1/p - 1)
    p = np.log([[[0.5, 0.25, 0.25]]])
    found = elbo.rate_divergence(uniform, zero, zero, p, LINEAR, np.asarray(0.0))
    assert found == pytest.approx(1 / 3 * (1 / 0.5 - 1), rel=ROUNDING)
    close = elbo.rate_divergence(uniform, zero, zero, p, LINEAR, np.asarray(1e-9))
    assert close == pytest.approx(1 / 3 * (1 / 0.5 - 1), rel=1e-6)
    assert elbo.rate_divergence(uniform, one, one, sure, LINEAR, np.asarray(0.0)) == math.inf
    assert elbo.rate_divergence(uniform, one, zero, sure, LINEAR, np.asarray(0.0)) == 0.0
    assert elbo.rate_divergence(uniform, zero, zero, sure, LINEAR, np.asarray(0.5)) == pytest.approx(0.0, abs=ROUNDING)
    lost = elbo.to_log_score(mask, zero, np.asarray([[[-math.inf, 0.0, -math.inf]]]), t)
    np.testing.assert_array_equal(lost, [[[-math.inf, math.inf, math.inf]]])
    with pytest.raises(ValueError, match="t must have alpha > 0 for absorbing"):
        elbo.score_entropy(mask, zero, np.asarray([[2]]), p, LINEAR, np.asarray(1.0))
    assert elbo.score_entropy(uniform, zero, zero, p, LINEAR, np.asarray(1.0)) == 0.0
    with pytest.raises(ValueError, match="t must have alpha > 0, where ratios tell"):
        elbo.from_log_score(uniform, zero, p, LINEAR.level(1.0))
    with pytest.raises(ValueError, match="log_score must be the ratios of some law"):
        elbo.from_log_score(uniform, zero, np.log([[[1.0, 0.1, 0.1]]]), LINEAR.level(0.5))


# -- bounds that are exact --------------------------------------------------------------------------------------------


def total_correlation(kernel: Any, law: np.ndarray, s: Any, t: Any) -> float:
    """Mean over x_t of sum_i H(x_s^i | x_t) - H(x_s | x_t), from joint laws of x_s and x_t."""
    whole = joint(kernel, joint(kernel, law, s).sum(axis=0).reshape(law.shape), cat.between(s, t))
    shape = law.shape
    found = 0.0
    for column in whole.T:
        if column.sum() <= 0:
            continue
        p = (column / column.sum()).reshape(shape)
        marginals = [p.sum(axis=tuple(j for j in range(law.ndim) if j != i)) for i in range(law.ndim)]
        found += column.sum() * (sum(entropy(m) for m in marginals) - entropy(p.reshape(-1)))
    return found


@pytest.mark.claim("discrete-elbo-entropy", "discrete-elbo-bound", "discrete-elbo-expectation")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_steps_cost_total_correlation(name, floor):
    """NELBO_T = H + sum of total correlations + KL of noisy data and pi; each term by itself, from joint laws."""
    kernel, model, denoise, weights = case(name, LONG)
    schedule = cat.keep_log_linear(floor=floor)
    steps = 5
    if name == "absorbing" and floor:
        # a token that was kept is no mask: the three terms are a bound, and say nothing
        terms = elbo.exact_bound(kernel, schedule, denoise, 3, steps=steps)
        assert np.isinf(terms.prior[weights > 0]).all()
        assert np.isfinite(terms.diffusion[weights > 0]).all()
        return
    levels = [schedule.level(np.asarray(i / steps)) for i in range(steps + 1)]
    lost = [total_correlation(kernel, model.law, s, t) for s, t in itertools.pairwise(levels)]
    end = joint(kernel, model.law, levels[-1]).sum(axis=0)
    pi = np.exp(kernel.log_law)
    start = pi
    for _ in range(2):
        start = np.kron(start, pi)
    known = end > 0
    rest = float(np.sum(end[known] * np.log(end[known] / start[known])))
    terms = elbo.exact_bound(kernel, schedule, denoise, 3, steps=steps)
    assert mean(weights, terms.total) == pytest.approx(model.entropy + sum(lost) + rest, abs=1e-11)
    assert sum(lost) > 0.05
    # the reconstruction is the entropy of clean given the first level, token by token
    first = joint(kernel, model.law, levels[1])
    conditional = 0.0
    for column in first.T:
        p = column.reshape(model.law.shape)
        for i in range(3):
            m = p.sum(axis=tuple(j for j in range(3) if j != i))
            m = m[m > 0]
            conditional -= float(np.sum(m * np.log(m / m.sum()))) if m.size else 0.0
    assert mean(weights, terms.reconstruction) == pytest.approx(conditional, abs=1e-11)
    rows = np.asarray(cat.transition(kernel, levels[-1]))
    single = np.asarray([np.sum(r[r > 0] * np.log(r[r > 0] / pi[r > 0])) for r in rows])
    np.testing.assert_allclose(
        terms.prior[weights > 0], single[states(kernel.classes, 3)].sum(axis=1)[weights > 0], atol=1e-12
    )


@pytest.mark.claim("discrete-elbo-entropy", "discrete-elbo-rate", "discrete-elbo-expectation")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("schedule", [COSINE, pytest.param(SQUARE, marks=pytest.mark.slow)], ids=["cosine", "square"])
def test_in_continuous_time_the_bound_is_exact(name, schedule):
    """For each sequence, not only on average, and for any two schedules; the wrong head is far off."""
    kernel, _, denoise, weights = case(name)
    terms = elbo.exact_bound(kernel, schedule, denoise, 2)
    known = weights > 0
    np.testing.assert_allclose(terms.total[known], -np.log(weights[known]), atol=QUADRATURE)
    np.testing.assert_array_equal(terms.reconstruction, 0.0)
    np.testing.assert_allclose(terms.prior[known], 0.0)
    if name != "absorbing":

        def posterior(x_t, level):
            return cat.to_posterior(kernel, x_t, denoise(x_t, level), level)

        wrong = elbo.exact_bound(kernel, schedule, posterior, 2, panels=2)
        assert mean(weights, wrong.total) > entropy(weights) + 0.1
        right = elbo.exact_bound(kernel, schedule, posterior, 2, head="posterior")
        np.testing.assert_allclose(right.total[known], -np.log(weights[known]), atol=QUADRATURE)


@pytest.mark.claim("discrete-elbo-uniform", "discrete-elbo-entropy")
def test_a_posterior_in_the_uniform_bound_gives_169_where_the_entropy_is_1085():
    p = np.asarray([0.5, 0.36, 0.08, 0.06])
    model, kernel = elbo.table(p), cat.uniform(4)

    def posterior(x_t, level):
        return cat.to_posterior(kernel, x_t, model.denoise(x_t, kernel, level), level)

    wrong = p @ elbo.exact_bound(kernel, COSINE, posterior, 1).total
    right = p @ elbo.exact_bound(kernel, COSINE, posterior, 1, head="posterior").total
    assert right == pytest.approx(entropy(p), abs=QUADRATURE)
    assert f"{right:.3f}" == "1.085"
    assert f"{wrong:.2f}" == "1.69"


@pytest.mark.claim("discrete-elbo-entropy", "discrete-elbo-cross-entropy")
def test_one_token_telescopes():
    """Each step adds CE(t) - CE(s) with CE = H(x_0 | x_t); their mean is no bound; one token has no correlations."""
    p = np.random.default_rng(6).dirichlet(np.ones(5))
    model, kernel = elbo.table(p), cat.uniform(5)
    steps = 8
    levels = [COSINE.level(np.asarray(i / steps)) for i in range(steps + 1)]
    left = []
    for level in levels:
        both = p[:, None] * np.asarray(cat.transition(kernel, level))
        given = both / np.where(both.sum(axis=0) > 0, both.sum(axis=0), 1.0)
        left.append(-float(np.sum(both[both > 0] * np.log(given[both > 0]))))
    x = np.arange(5)[:, None]
    for s, t, before, after in zip(levels[:-1], levels[1:], left[:-1], left[1:], strict=True):
        q = np.asarray(cat.transition(kernel, t))
        value, plain = 0.0, 0.0
        for z in range(5):
            noisy = np.full((5, 1), z)
            log_p = model.denoise(noisy, kernel, t)
            value += float(np.sum(p * q[:, z] * elbo.step_divergence(kernel, x, noisy, log_p, s, t)[:, 0]))
            plain += float(np.sum(p * q[:, z] * elbo.cross_entropy(kernel, x, noisy, log_p, t)[:, 0]))
        assert value == pytest.approx(after - before, abs=ROUNDING)
        assert plain == pytest.approx(after, abs=ROUNDING)
    bound = p @ elbo.exact_bound(kernel, COSINE, lambda x_t, t: model.denoise(x_t, kernel, t), 1, steps=steps).total
    assert bound == pytest.approx(entropy(p), abs=ROUNDING)
    assert np.mean(left[1:]) < entropy(p) - 0.3
    # leave-one-out: it knows nothing at all of a single token
    log_p = model.denoise(x, kernel, levels[3])
    loo = elbo.cross_entropy(kernel, x, x, log_p, levels[3], of="leave_one_out")
    np.testing.assert_allclose(loo[:, 0], -np.log(p), rtol=ROUNDING)


@pytest.mark.claim("discrete-elbo-cross-entropy")
def test_plain_cross_entropy_of_perfect_models_of_large_vocabularies():
    """6.14 where nobody can be below 10.82, and 4.22 against 7.57 for Zipf's law."""
    size, canvas = 50257, cat.preset("canvas")
    for weights, wanted, floor in ((np.ones(size), "6.14", "10.82"), (1 / np.arange(1, size + 1), "4.22", "7.57")):
        source = weights / weights.sum()
        h = entropy(source)
        levels = [canvas.level(i / 16) for i in range(1, 17)]
        left = [h - float(cat.mutual_information(cat.uniform(size), source, t)) for t in levels]
        assert f"{np.mean(left):.2f}" == wanted
        assert f"{h:.2f}" == floor
        assert left[-1] == pytest.approx(h, abs=1e-9)


def test_wider_vocabulary_telescopes_to_the_entropy_of_zipf():
    """V = 27: the steps of 16 cosine levels add up to the entropy, 2.75138 for Zipf's law."""
    weights = 1 / np.arange(1, 28)
    p = weights / weights.sum()
    model, kernel = elbo.table(p), cat.uniform(27)
    terms = elbo.exact_bound(kernel, cat.preset("canvas"), lambda x_t, t: model.denoise(x_t, kernel, t), 1)
    assert p @ terms.total == pytest.approx(entropy(p), abs=1e-11)
    assert f"{p @ terms.total:.5f}" == "2.75138"


FORMS = 1e-12
"""Four sums of the same logarithms in four orders, two of them by quadrature."""


@pytest.mark.claim("discrete-elbo-orders", "discrete-elbo-count", "discrete-elbo-absorbing", "discrete-elbo-rate")
def test_four_forms_of_the_absorbing_bound():
    """An inexact model that does not depend on time, L = 3 tokens of 3: two schedules, orders, counts."""
    length, mask, kernel = 3, 3, cat.absorbing(4)
    rng = np.random.default_rng(9)
    laws = np.log(rng.dirichlet(np.ones(3), (4, 4, 4, length)))
    laws = np.concatenate([laws, np.full((*laws.shape[:-1], 1), -math.inf)], axis=-1)

    def denoise(x_t, _level):
        return laws[x_t[:, 0], x_t[:, 1], x_t[:, 2]]

    forms = [elbo.exact_bound(kernel, s, denoise, length).total for s in (LINEAR, COSINE)]

    def term(x, seen, i):
        noisy = tuple(x[j] if j in seen else mask for j in range(length))
        return -laws[noisy][i, x[i]]

    places = range(length)
    for x in itertools.product(range(3), repeat=length):
        index = int(np.ravel_multi_index(x, (4,) * length))
        orders = [sum(term(x, o[:j], o[j]) for j in places) for o in itertools.permutations(places)]
        counts = []
        for size in range(1, length + 1):
            groups = list(itertools.combinations(places, size))
            counts.append(np.mean([length / size * sum(term(x, set(places) - set(m), i) for i in m) for m in groups]))
        assert forms[0][index] == pytest.approx(np.mean(orders), rel=FORMS)
        assert forms[1][index] == pytest.approx(np.mean(orders), rel=FORMS)
        assert np.mean(counts) == pytest.approx(np.mean(orders), rel=FORMS)
        # the number of masks for the length: a constant L instead of L/l per token
        assert abs(np.mean(orders) - orders[0]) > MISTAKE
    # in steps the schedule matters
    discrete = [elbo.exact_bound(kernel, s, denoise, length, steps=3).total[0] for s in (LINEAR, COSINE)]
    assert abs(discrete[0] - discrete[1]) > MISTAKE


@pytest.mark.claim("discrete-elbo-entropy", "discrete-elbo-rate")
@pytest.mark.parametrize("name", ["uniform", "absorbing", pytest.param("law", marks=pytest.mark.slow)])
def test_discrete_tends_to_continuous_at_order_one(name):
    """Slope of the gap for an inexact model: between .95 and 1.05, and neither 0 nor 2."""
    kernel, _, denoise, weights = case(name)
    guess = flat(denoise)
    limit = mean(weights, elbo.exact_bound(kernel, COSINE, guess, 2).total)
    counts = np.asarray([32, 64, 128])
    gaps = [mean(weights, elbo.exact_bound(kernel, COSINE, guess, 2, steps=int(n)).total) - limit for n in counts]
    slope = -np.polyfit(np.log(counts), np.log(np.abs(gaps)), 1)[0]
    assert 0.95 < slope < 1.05
    assert limit > entropy(weights) + 1e-2


@pytest.mark.claim("discrete-elbo-law", "discrete-elbo-bound", "discrete-elbo-expectation")
@pytest.mark.parametrize("name", [*CASES, "band", "gaussian"])
@pytest.mark.parametrize("power", [1.0, 0.5, pytest.param(2.0, marks=pytest.mark.slow)])
def test_bounds_lie_above_the_exact_likelihood(name, power):
    """Any model, every sequence; the law is that of a naive propagation. Without an end term it fails."""
    if name in CASES:
        kernel, _, denoise, weights = case(name)
        schedule, steps = LINEAR, 3
    else:
        kernel = cat.band(3) if name == "band" else cat.discretised_gaussian(3, [0.1, 0.3, 0.8])
        model = elbo.table(LAW)
        denoise, weights = (lambda x_t, level: model.denoise(x_t, kernel, level)), LAW.reshape(-1)
        schedule, steps = (cat.keep_linear_rate(rate_max=3.0), 3) if name == "band" else (None, None)
    guess = flat(denoise, power)
    terms = elbo.exact_bound(kernel, schedule, guess, 2, steps=steps)
    law = elbo.exact_law(kernel, schedule, guess, 2, steps=steps)
    known = weights > 0
    assert law.sum() == pytest.approx(1.0, abs=ROUNDING)
    gap = terms.total[known] + np.log(law[known])
    assert gap.min() > 1e-6
    short = (terms.total - terms.reconstruction)[known] + np.log(law[known])
    assert power != 1.0 or name == "gaussian" or short.min() < 0
    # naively, one sequence at a time
    k = kernel.classes
    levels = list(range(4)) if schedule is None else [schedule.level(np.asarray(i / 3)) for i in range(4)]
    everything = states(k, 2)
    start = np.exp(kernel.log_law) if name in CASES else np.full(k, 1 / k)
    now = np.asarray([start[a] * start[b] for a, b in everything])
    for s, t in zip(levels[2::-1], levels[:0:-1], strict=True):
        after = np.zeros(k * k)
        for p, x_t in zip(now, everything, strict=True):
            each = np.exp(cat.mixture_posterior(kernel, x_t[None], guess(x_t[None], t), s, t))[0]
            after += p * np.asarray([each[0, a] * each[1, b] for a, b in everything])
        now = after
    np.testing.assert_allclose(law, now, atol=ROUNDING)


@pytest.mark.claim("discrete-elbo-bound", "discrete-elbo-reconstruction", "discrete-elbo-prior")
@pytest.mark.parametrize("name", ["uniform", "hybrid", "absorbing"])
def test_truncation_needs_both_ends(name):
    """Cut at t0: with its end the bound stays above the entropy, without it falls below; so for t1."""
    kernel, _, denoise, weights = case(name)
    h = entropy(weights)
    whole = elbo.exact_bound(kernel, LINEAR, denoise, 2, t_clean=0.1, panels=2)
    assert mean(weights, whole.total) > h
    assert mean(weights, whole.diffusion + whole.prior) < h - 0.05
    late = elbo.exact_bound(kernel, LINEAR, denoise, 2, t_noise=0.8, panels=2)
    if name == "absorbing":
        assert (late.prior == math.inf)[weights > 0].all()
        assert mean(weights, late.diffusion) < h - 0.05
        return
    assert mean(weights, late.total) > h
    assert mean(weights, late.diffusion + late.reconstruction) < h - 0.01
    assert mean(weights, late.total) < h + 0.3
    # the reconstruction is that at t0
    back = elbo.exact_bound(kernel, LINEAR, denoise, 2, steps=10).reconstruction
    np.testing.assert_allclose(whole.reconstruction, back, atol=ROUNDING)


@pytest.mark.claim("discrete-elbo-masked-step", "discrete-elbo-bound")
def test_the_weights_of_a_chain_reveal_each_token_once():
    """Weights times shares of masks sum to 1; with the current level for the next, or one step for all, they do not."""
    chain = cat.preset("canvas")
    k = np.arange(1, 17)
    s, t = chain.alpha((k - 1) / 16), chain.alpha(k / 16)
    x = np.zeros((1, 1), int)
    log_p = np.log([[[math.exp(-1.0), 1 - math.exp(-1.0), 1e-300]]])
    kernel = cat.absorbing(3)
    found = [
        float(elbo.step_divergence(kernel, x, x + 2, log_p, chain.level((i - 1) / 16), chain.level(i / 16))[0, 0])
        for i in k
    ]
    assert np.sum(found * (1 - t)) == pytest.approx(1.0, abs=ROUNDING)
    later = (t - np.append(t[1:], 0.0)) / (1 - t)
    assert abs(np.sum(later * (1 - t)) - 1) > MISTAKE
    assert abs(np.sum((1 - t / s) * (1 - t)) - 1) > 1.0


def test_infinite_terms_are_infinite_and_not_nan():
    """A model that excludes what happens, and a step in which nothing happens."""
    kernel = cat.absorbing(3)

    def sure(x_t, _level):
        return np.broadcast_to(np.asarray([0.0, -math.inf, -math.inf]), (*x_t.shape, 3))

    for steps in (1, 3, None):
        terms = elbo.exact_bound(kernel, LINEAR, sure, 1, steps=steps)
        np.testing.assert_allclose(terms.total[:2], [0.0, math.inf], atol=ROUNDING)
        assert not any(np.isnan(part).any() for part in terms)
    one = elbo.exact_bound(kernel, LINEAR, sure, 1, steps=1)
    np.testing.assert_array_equal(one.diffusion, 0.0)


# -- estimates --------------------------------------------------------------------------------------------------------


def check_mean(values: np.ndarray, exact: float) -> None:
    """Mean within so many standard errors, which are small enough to tell."""
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - exact) < SIGMAS * error
    assert error < 0.1 * exact


@pytest.mark.claim("discrete-elbo-estimate")
@pytest.mark.parametrize("name", ["uniform", "absorbing", "hybrid"])
@pytest.mark.parametrize(
    "options", [{}, {"steps": 4}, {"t_clean": 0.2}, {"law": True}, {"law": True, "steps": 5}], ids=str
)
def test_estimates_are_unbiased(name, options):
    """Term by term, for one sequence repeated, against enumeration; each time alone has the right law."""
    options = dict(options)
    kernel, _, denoise, _ = case(name)
    guess = flat(denoise)
    exact = elbo.exact_bound(kernel, LINEAR, guess, 2, **{k: v for k, v in options.items() if k != "law"})
    if "law" in options:
        options["law"] = elbo.time_law([3.0, 1.0, 0.5, 0.2, 2.0], share=0.1)
    x = np.tile([[1, 2]], (20000, 1))
    index = 1 * kernel.classes + 2
    found = elbo.bound(kernel, LINEAR, x, guess, np.random.default_rng(0), method="independent", **options)
    for part, truth in zip(found, exact, strict=True):
        if truth[index] < 1e-12 or math.isinf(truth[index]):
            np.testing.assert_allclose(part, truth[index], atol=1e-12)
        else:
            check_mean(part, truth[index])


@pytest.mark.claim("discrete-elbo-estimate")
def test_strata_are_dealt_out_at_random():
    """Each row's own time is uniform; in the order of the strata the first row would always see the least noise."""
    runs, rows = 400, []

    def spy(x_t, level):
        rows.append(level.t[:, 0])
        return guess3(x_t, level)

    for i in range(runs):
        elbo.bound(cat.uniform(3), LINEAR, np.zeros((4, 1), int), spy, np.random.default_rng(i))
    times = np.stack(rows)
    np.testing.assert_array_equal(np.sort(np.floor(4 * times), axis=1), np.broadcast_to(np.arange(4), times.shape))
    error = SIGMAS * math.sqrt(1 / 12 / runs)
    np.testing.assert_allclose(times.mean(axis=0), 0.5, atol=error)
    in_order = np.stack([uniforms(np.random.default_rng(i), 4, "stratified") for i in range(runs)])
    assert abs(in_order.mean(axis=0) - 0.5).max() > error


@pytest.mark.claim("discrete-elbo-estimate")
@pytest.mark.parametrize(
    "method",
    [
        "independent",
        "stratified",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("lattice", "antithetic", "stratified_antithetic")),
    ],
)
def test_variance_of_spread_times(method):
    """Total variance = mean of that given the time, over n, + the exact variance of the mean over times."""
    kernel, _, denoise, _ = case("uniform")
    steps, n = 8, 8
    x = np.asarray([[2, 0]])
    everything = states(3, 2)
    first, second = [], []
    for i in range(1, steps + 1):
        s, t = LINEAR.level((i - 1) / steps), LINEAR.level(i / steps)
        q = np.asarray(cat.transition(kernel, t))
        reach = q[2, everything[:, 0]] * q[0, everything[:, 1]]
        clean = np.broadcast_to(x, everything.shape)
        log_p = denoise(everything, t)
        loss = steps * elbo.step_divergence(kernel, clean, everything, log_p, s, t).sum(axis=-1)
        first.append(float(reach @ loss))
        second.append(float(reach @ loss**2))
    first, second = np.asarray(first), np.asarray(second)
    within = float(np.mean(second - first**2)) / n
    across = cat.canvas_variance(lambda t: first[np.round(t * steps).astype(int) - 1], n, method=method, steps=steps)
    batch = np.tile(x, (n, 1))
    runs = 500
    means = np.asarray(
        [
            np.mean(
                elbo.bound(kernel, LINEAR, batch, denoise, np.random.default_rng(i), steps=steps, method=method).total
            )
            for i in range(runs)
        ]
    )
    assert means.mean() == pytest.approx(np.mean(first), abs=SIGMAS * means.std() / math.sqrt(runs))
    # the standard error of a variance, with a kurtosis of up to 9
    assert means.var() == pytest.approx(within + across, rel=SIGMAS * math.sqrt(8 / runs))
    assert across == pytest.approx(0.0 if method == "stratified" else across)
    if method == "independent":
        assert within + across > 1.1 * within


@pytest.mark.claim("discrete-elbo-importance", "discrete-elbo-variance")
def test_laws_of_times():
    """Density and sampler agree by quadrature; reweighting is unbiased; the root mean square has least variance."""
    heights = np.asarray([0.5, 2.0, 0.25, 1.0])
    law = elbo.time_law(heights)
    np.testing.assert_allclose(law.heights, heights / heights.mean())
    nodes, weights = np.polynomial.legendre.leggauss(24)
    u = ((np.arange(8)[:, None] + (nodes + 1) / 2) / 8).reshape(-1)
    w = np.tile(weights, 8) / 16
    # cells of the sampler end where the mass does
    mass = np.concatenate([[0.0], np.cumsum(heights) / heights.sum()])
    inside = np.concatenate([a + (b - a) * (nodes + 1) / 2 for a, b in itertools.pairwise(mass)])
    width = np.concatenate([(b - a) * weights / 2 for a, b in itertools.pairwise(mass)])
    assert width @ (np.cos(3 * law.place(inside)) / law.density(law.place(inside))) == pytest.approx(
        math.sin(3) / 3, abs=1e-13
    )
    assert abs(width @ np.cos(3 * law.place(inside)) - math.sin(3) / 3) > MISTAKE
    edges = np.concatenate([a + 0.25 * (nodes + 1) / 2 for a in np.arange(4) / 4])
    assert np.tile(weights, 4) / 8 @ law.density(edges) == pytest.approx(1.0, abs=1e-14)
    # the inverse of the distribution function, cell by cell
    np.testing.assert_allclose(law.place(mass[1:-1]), np.arange(1, 4) / 4, rtol=1e-15)
    np.testing.assert_allclose(law.place(np.asarray([0.0, 1.0])), [0.0, 1.0], atol=1e-15)
    slopes = (law.place(u + 1e-6) - law.place(u)) / 1e-6
    np.testing.assert_allclose(slopes, 1 / law.density(law.place(u)), rtol=1e-6)
    assert w.sum() == pytest.approx(1.0)
    mixed = elbo.time_law(heights, share=0.25)
    np.testing.assert_allclose(mixed.heights, 0.75 * heights / heights.mean() + 0.25)
    assert 1 / mixed.density(np.asarray(0.6)) < 4.0
    # one cell with half of the square: variance by quadrature of E[l^2]/w - (E l)^2
    rms = np.asarray([1.0, 3.0, 0.5, 2.0])

    def variance(h):
        d = np.asarray(h) / np.mean(h)
        return np.mean(rms**2 / d) - np.mean(rms) ** 2

    assert variance(rms) == pytest.approx(0.0, abs=1e-14)
    for other in (np.ones(4), rms**2, np.sqrt(rms)):
        assert variance(other) > 0.05
    with pytest.raises(ValueError, match="heights must be > 0 where share is 0"):
        elbo.time_law([1.0, 0.0])
    assert elbo.time_law([1.0, 0.0], share=0.5).heights.tolist() == [1.5, 0.5]


@pytest.mark.claim("discrete-elbo-variance", "discrete-elbo-importance")
def test_importance_saves_what_it_should():
    """A schedule that spends its loss early: second moments of both laws, against enumeration and quadrature.

    From t = 0 on they would be infinite.
    """
    kernel, _, denoise, _ = case("uniform")
    schedule, n, low = cat.keep_linear_rate(), 16, 0.1
    x = np.tile([[2, 0]], (40000, 1))
    everything = states(3, 2)
    clean = np.broadcast_to([[2, 0]], everything.shape)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    places = ((np.arange(n)[:, None] + (nodes + 1) / 2) / n).reshape(-1)
    second = []
    for u in low + (1 - low) * places:
        t = schedule.level(u)
        q = np.asarray(cat.transition(kernel, t))
        reach = q[2, everything[:, 0]] * q[0, everything[:, 1]]
        loss = elbo.rate_divergence(kernel, clean, everything, denoise(everything, t), schedule, np.asarray(u))
        second.append(float(reach @ loss.sum(axis=-1) ** 2) * (1 - low) ** 2)
    cells = (np.asarray(second).reshape(n, -1) @ weights) / 2
    moments = []
    for law in (None, elbo.time_law(np.sqrt(cells), share=0.02)):
        rng = np.random.default_rng(1)
        found = elbo.bound(kernel, schedule, x, denoise, rng, method="independent", law=law, t_clean=low)
        exact = float(np.mean(cells if law is None else cells / law.heights))
        moments.append(exact)
        square = found.diffusion**2
        assert square.mean() == pytest.approx(exact, abs=SIGMAS * square.std() / math.sqrt(len(square)))
        assert square.std() / math.sqrt(len(square)) < 0.05 * exact
    assert moments[1] < 0.7 * moments[0]


@pytest.mark.claim("discrete-elbo-count")
def test_counts_are_uniform_and_their_estimate_unbiased():
    """L = 5 with batches of 2, L = 8 with 16: half-to-even rounding of jL/b would not be uniform."""
    for length, batch in ((5, 2), (8, 16)):
        kernel = cat.absorbing(4)
        seen: list[int] = []
        places = np.zeros(length)

        def spy(x_t, level, seen=seen, places=places):
            masks = (x_t == 3).sum(axis=1)
            np.testing.assert_allclose(level.noise[:, 0] * x_t.shape[1], masks, rtol=1e-12)
            np.testing.assert_allclose(level.alpha[:, 0] + level.noise[:, 0], 1.0)
            seen.extend(masks.tolist())
            places += (x_t == 3).sum(axis=0)
            return np.full((*x_t.shape, 4), math.log(0.25))

        runs = 200
        for i in range(runs):
            x = np.zeros((batch, length), int)
            found = elbo.count_bound(kernel, x, spy, np.random.default_rng(i))
            # each token costs log 4, whatever the count: L/l times l of them
            np.testing.assert_allclose(found, length * math.log(4), rtol=1e-12)
        share = np.bincount(seen, minlength=length + 1)[1:] / len(seen)
        np.testing.assert_allclose(share, 1 / length, atol=SIGMAS * math.sqrt(1 / length / len(seen)))
        np.testing.assert_allclose(places / places.sum(), 1 / length, atol=SIGMAS * math.sqrt(1 / length / len(seen)))
        counts = np.arange(batch) * length / batch
        rounded = np.bincount(np.round(counts).astype(int), minlength=length + 1)
        assert rounded.max() >= 2 * max(1, rounded[rounded > 0].min()) or batch < length
    kernel, _, denoise, _ = case("absorbing", LONG)
    guess = flat(denoise)
    exact = elbo.exact_bound(kernel, COSINE, guess, 3).total
    x = np.tile([[2, 0, 1]], (20000, 1))
    index = 2 * 16 + 0 * 4 + 1
    found = elbo.count_bound(kernel, x, guess, np.random.default_rng(3), method="independent")
    check_mean(found, exact[index])
    plain = elbo.bound(kernel, LINEAR, x, guess, np.random.default_rng(3), method="independent").total
    assert found.var() < 0.8 * plain.var()
    with pytest.raises(ValueError, match="kernel must be absorbing, got hybrid"):
        elbo.count_bound(cat.hybrid(4, share=0.5), x, guess, np.random.default_rng(0))


@pytest.mark.claim("discrete-elbo-estimate", "discrete-elbo-bound")
def test_the_first_step_is_drawn_and_finite():
    """With T = 1,000 and times from 1e-3 it never is, and the reconstruction is missing."""
    kernel, _, denoise, _ = case("absorbing")
    x = np.tile([[0, 1]], (3000, 1))
    for steps in (100, 1000):
        noise: list[float] = []

        def spy(x_t, level, noise=noise):
            noise.extend(level.noise[:, 0].tolist())
            return denoise(x_t, level)

        found = elbo.bound(kernel, LINEAR, x, spy, np.random.default_rng(0), steps=steps)
        assert all(np.isfinite(part).all() for part in found)
        assert min(noise) == pytest.approx(1 / steps)
        assert max(noise) == 1.0
        first = np.asarray(noise) < 1.5 / steps
        assert first.sum() == 3000 / steps
        assert (found.diffusion[first] == 0).all()
        assert (found.reconstruction[~first] == 0).all()
    few = elbo.bound(kernel, LINEAR, x, denoise, np.random.default_rng(0), steps=3)
    assert few.reconstruction.mean() > 0.1
    chain = cat.keep_discrete(cat.keep_cosine(), 4)
    by_steps = elbo.bound(kernel, chain, x, denoise, np.random.default_rng(5))
    same = elbo.bound(kernel, COSINE, x, denoise, np.random.default_rng(5), steps=4)
    for a, b in zip(by_steps, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


@pytest.mark.claim("discrete-elbo-absorbing", "discrete-elbo-bound")
def test_weights_of_public_codes_that_are_off():
    """Loss L(t) per unit of t for L(t) = 2 + 2t masks in the mean, exact 3; and an epsilon below a cosine weight."""
    eps = 1e-3
    nodes, w = np.polynomial.legendre.leggauss(30)
    t = eps + (1 - eps) * (nodes + 1) / 2
    # times from eps on without their Jacobian, masks with (1 - eps) t: a tenth of a percent too low
    wrong = float(w @ (2 + 2 * (1 - eps) * t) / 2) * (1 - eps)
    exact = float(w @ (2 + 2 * (nodes + 1) / 2) / 2)
    assert exact == pytest.approx(3.0, abs=1e-14)
    assert 2.990 < wrong < 2.999
    # masks with 1 - (1 - eps) cos(pi t/2), and one eps more below the weight
    for t0, ratio in ((1e-3, "0.50"), (0.05, "0.80"), (0.1, "0.93")):
        noise = 1 - (1 - eps) * math.cos(math.pi * t0 / 2)
        assert f"{noise / (noise + eps):.2f}" == ratio
    # t - dt for 1 - (t - dt): at t = 1/4 and T = 1,000 a weight of -2 where it is .004
    at = [LINEAR.level(u).alpha for u in (0.249, 0.25)]
    assert (at[0] - at[1]) / (1 - at[1]) == pytest.approx(0.004, rel=1e-9)
    assert (0.249 - at[1]) / (1 - at[1]) < -2
    x = np.asarray([[3]])
    log_p = np.log([[[0.5, 0.25, 0.25 - 1e-12, 1e-12]]])
    found = elbo.rate_divergence(cat.absorbing(4), 0 * x, x, log_p, COSINE, np.asarray(1e-3))
    rate = math.pi / math.tan(math.pi * 1e-3 / 2)
    assert found[0, 0] == pytest.approx(rate * math.log(2), rel=1e-9)


# -- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["absorbing", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_all_libraries_agree(backend: Backend, dtype: str, name: str):
    kernel = CASES[name][0]
    k = kernel.classes
    rng = np.random.default_rng(11)
    x_0 = rng.integers(0, 3, (2, 5))
    x_t = np.where(rng.random((2, 5)) < 0.5, x_0, k - 1 if name == "absorbing" else rng.integers(0, k, (2, 5)))
    log_p = np.log(rng.dirichlet(np.ones(k), (2, 5)))
    s, t, u = (np.asarray([[0.2], [0.5]]), np.asarray([[0.4], [0.6]]), np.asarray([[0.3], [0.7]]))

    def everything(a, b, p, low, high, at):
        score = elbo.to_log_score(kernel, b, p, COSINE.level(at))
        return [
            elbo.step_divergence(kernel, a, b, p, COSINE.level(low), COSINE.level(high)),
            elbo.rate_divergence(kernel, a, b, p, COSINE, at),
            score,
            elbo.score_entropy(kernel, a, b, score, COSINE, at),
            elbo.from_log_score(kernel, b, score, COSINE.level(at)),
            elbo.reconstruction(kernel, a, b, p, COSINE.level(low)),
            elbo.prior(kernel, a, COSINE.level(at)) if name != "absorbing" else p[..., 0],
            elbo.cross_entropy(kernel, a, b, p, COSINE.level(at), of="leave_one_out"),
            elbo.cross_entropy(kernel, a, b, p, COSINE.level(at), head="posterior"),
        ]

    exact = everything(x_0, x_t, log_p, s, t, u)
    arrays = [backend.asarray(v, None if v.dtype.kind == "i" else dtype) for v in (x_0, x_t, log_p, s, t, u)]
    found = (importlib.import_module("jax").jit(everything) if backend.name == "jax" else everything)(*arrays)
    for value, truth in zip(found, exact, strict=True):
        assert backend.dtype(value) == dtype
        tolerance = SINGLE * 20 if dtype == "float32" else 1e-10
        finite = np.isfinite(truth)
        np.testing.assert_array_equal(np.isfinite(backend.numpy(value)), finite)
        np.testing.assert_allclose(backend.numpy(value)[finite], truth[finite], rtol=tolerance, atol=tolerance)


def test_half_precision_is_summed_in_float32(backend: Backend):
    if backend.name in {"numpy", "strict"}:
        pytest.skip("no bfloat16")
    log_p = backend.asarray(np.log([[[0.5, 0.25, 0.25]]]), "bfloat16")
    x = backend.asarray([[1]], None)
    found = elbo.rate_divergence(cat.uniform(3), x, x, log_p, LINEAR, backend.asarray(0.5, "float32"))
    assert backend.dtype(found) == "float32"


@pytest.mark.parametrize("name", [pytest.param("absorbing", marks=pytest.mark.slow), "hybrid"])
def test_jax_compiles_differentiates_and_maps(name):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    kernel = CASES[name][0]
    k = kernel.classes
    rng = np.random.default_rng(12)
    logits = jnp.asarray(rng.standard_normal((2, 4, k)))
    x_0 = jnp.asarray(rng.integers(0, 3, (2, 4)))
    x_t = jnp.where(jnp.asarray(rng.random((2, 4)) < 0.5), x_0, k - 1)

    def loss(z, t):
        log_p = jax.nn.log_softmax(z)
        return elbo.rate_divergence(kernel, x_0, x_t, log_p, COSINE, t).sum()

    t = jnp.asarray([[0.3], [1.0]])
    value, (by_z, by_t) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(logits, t)
    quick = jax.jit(loss)
    assert float(value) == pytest.approx(float(quick(logits, t)), rel=1e-12)
    for g in (by_z, by_t):
        assert np.isfinite(np.asarray(g)).all()
    assert abs(np.asarray(by_z)).max() > 1e-3
    # central differences
    for place in ((0, 1, 1), (1, 2, 0), (0, 3, 2)):
        h = 1e-6
        up, down = (quick(logits.at[place].add(sign * h), t) for sign in (1, -1))
        assert float(by_z[place]) == pytest.approx(float(up - down) / (2 * h), abs=1e-6)

    def step(z):
        log_p = jax.nn.log_softmax(z)
        s, r = COSINE.level(jnp.asarray(0.0)), COSINE.level(jnp.asarray(0.4))
        return elbo.step_divergence(kernel, x_0, x_t, log_p, s, r)

    grads = jax.jit(jax.grad(lambda z: step(z).sum()))(logits)
    assert np.isfinite(np.asarray(grads)).all()
    at = np.asarray(0.4)
    mapped = jax.jit(jax.vmap(lambda a, b, p: elbo.rate_divergence(kernel, a[None], b[None], p[None], COSINE, at)[0]))
    log_p = jax.nn.log_softmax(logits)
    exact = elbo.rate_divergence(kernel, *(np.asarray(v) for v in (x_0, x_t, log_p)), COSINE, at)
    np.testing.assert_allclose(mapped(x_0, x_t, log_p), exact, rtol=1e-10)


@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_estimates_of_other_libraries(kind):
    """A training step: compiled where it can be, with finite gradients, and unbiased."""
    library = pytest.importorskip(kind)
    kernel, model, _, weights = case("uniform")
    law = elbo.time_law([2.0, 1.0])
    exact = -math.log(weights[5])
    n = 4000
    if kind == "jax":
        jnp = library.numpy

        def total(scale, key):
            x = jnp.tile(jnp.asarray([[1, 2]]), (n, 1))

            def denoise(x_t, level):
                return library.nn.log_softmax(scale * model.denoise(x_t, kernel, level))

            return elbo.bound(kernel, LINEAR, x, denoise, key, law=law).total

        values = library.jit(total)(1.0, library.random.key(0))
        grad = library.jit(library.grad(lambda a, k: total(a, k).mean()))(1.3, library.random.key(0))

        @library.jit
        def others(key):
            steps = elbo.bound(
                kernel,
                LINEAR,
                jnp.tile(jnp.asarray([[1, 2]]), (n, 1)),
                lambda x_t, level: model.denoise(x_t, kernel, level),
                key,
                steps=3,
            )
            counts = elbo.count_bound(
                cat.absorbing(4),
                jnp.zeros((6, 5), int),
                lambda x_t, level: jnp.full((*x_t.shape, 4), math.log(0.25)),
                key,
            )
            return steps, counts

        steps, counts = others(library.random.key(1))
    else:
        x = library.tensor([[1, 2]]).repeat(n, 1)
        scale = library.tensor(1.3, requires_grad=True)

        def run(a, seed):

            def denoise(x_t, level):
                return library.log_softmax(a * model.denoise(x_t, kernel, level), dim=-1)

            return elbo.bound(kernel, LINEAR, x, denoise, library.Generator().manual_seed(seed), law=law).total

        values = run(1.0, 0)
        run(scale, 0).mean().backward()
        grad = scale.grad
        steps = elbo.bound(
            kernel,
            LINEAR,
            x,
            lambda x_t, level: model.denoise(x_t, kernel, level),
            library.Generator().manual_seed(1),
            steps=3,
        )
        counts = elbo.count_bound(
            cat.absorbing(4),
            library.zeros((6, 5), dtype=library.int64),
            lambda x_t, level: library.full((*x_t.shape, 4), math.log(0.25)),
            library.Generator().manual_seed(0),
        )
    values = np.asarray(values)
    check_mean(values, exact)
    assert math.isfinite(float(grad))
    assert abs(float(grad)) > 1e-3
    discrete = elbo.exact_bound(kernel, LINEAR, lambda x_t, t: model.denoise(x_t, kernel, t), 2, steps=3).total[5]
    check_mean(np.asarray(steps.total), discrete)
    np.testing.assert_allclose(np.asarray(counts), 5 * math.log(4), rtol=1e-5)


def test_scores_at_pure_noise_while_jax_traces():
    """Under a mask they say nothing there, and that shows."""
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray([[3]])
    score = jax.numpy.zeros((1, 1, 4))
    found = jax.jit(lambda t: elbo.score_entropy(cat.absorbing(4), 0 * x, x, score, LINEAR, t))(1.0)
    assert bool(jax.numpy.isnan(found).all())
    fine = jax.jit(lambda t: elbo.score_entropy(cat.uniform(4), 0 * x, x, score, LINEAR, t))(1.0)
    assert float(fine[0, 0]) == 0.0


# -- what is refused --------------------------------------------------------------------------------------------------

X = np.asarray([[0, 1]])
P = np.log(np.full((1, 2, 3), 1 / 3))
T = COSINE.level(0.5)
U3 = cat.uniform(3)


def guess3(x_t: Any, _level: Any) -> Any:
    """A denoiser that knows nothing."""
    return np.full((*x_t.shape, 3), -math.log(3))


BAD = [
    (lambda: elbo.step_divergence(None, X, X, P, T, T), TypeError, "kernel must be an Interpolation, got NoneType"),
    (lambda: elbo.rate_divergence(cat.band(3), X, X, P, COSINE, 0.5), TypeError, "kernel must be an Interpolation"),
    (lambda: elbo.rate_divergence(U3, X, X, P, "cosine", 0.5), TypeError, "schedule must be a KeepSchedule, got str"),
    (lambda: elbo.rate_divergence(U3, X, X, P, cat.preset("canvas"), 0.5), ValueError, "schedule must be continuous"),
    (lambda: elbo.rate_divergence(U3, X, X, P, COSINE, 1.5), ValueError, "t must be in [0, 1]"),
    (lambda: elbo.score_entropy(cat.band(3), X, X, P, COSINE, 0.5), TypeError, "kernel must be an Interpolation"),
    (lambda: elbo.to_log_score(cat.band(3), X, P, T), TypeError, "kernel must be an Interpolation"),
    (lambda: elbo.from_log_score(cat.band(3), X, P, T), TypeError, "kernel must be an Interpolation"),
    (lambda: elbo.step_divergence(U3, X, X, P[:, :1], T, T), ValueError, "log_p must have the shape of x_t and x_0"),
    (
        lambda: elbo.step_divergence(U3, X[:, :1], X, P, T, T),
        ValueError,
        "one axis more of 3, got (1, 2, 3) for (1, 2)",
    ),
    (lambda: elbo.step_divergence(U3, X, X, P, T, T, head="logits"), ValueError, "head must be one of"),
    (lambda: elbo.step_divergence(U3, X + 2, X, P, T, T), ValueError, "x_0 must be classes from 0 to 2, got 2 to 3"),
    (lambda: elbo.step_divergence(U3, X, X - 1, P, T, T), ValueError, "x_t must be classes from 0 to 2, got -1 to 0"),
    (lambda: elbo.step_divergence(U3, X, 1.0 * X, P, T, T), TypeError, "x_t must be integers, got dtype float64"),
    (lambda: elbo.step_divergence(U3, X, X, P, T, COSINE.level(0.1)), ValueError, "t must be at least as noisy as s"),
    (lambda: elbo.cross_entropy(U3, X, X, P, T, of="mean"), ValueError, "of must be one of"),
    (lambda: elbo.prior(U3, X, T, log_law=np.zeros(2)), ValueError, "log_law must have shape (3,), got (2,)"),
    (lambda: elbo.exact_bound(U3, COSINE, guess3, 9), ValueError, "length must leave at most 4,096 sequences, got 3^9"),
    (lambda: elbo.exact_bound(U3, COSINE, guess3, 0), ValueError, "length must be an integer >= 1, got 0"),
    (lambda: elbo.exact_bound("uniform", COSINE, guess3, 2), TypeError, "kernel must be an Interpolation, got str"),
    (lambda: elbo.exact_bound(U3, None, guess3, 2), TypeError, "schedule must be a KeepSchedule, got NoneType"),
    (lambda: elbo.exact_bound(cat.band(3), COSINE, guess3, 2), TypeError, "kernel must be an Interpolation, got Walk"),
    (lambda: elbo.exact_bound(U3, COSINE, guess3, 2, steps=0), ValueError, "steps must be an integer >= 1, got 0"),
    (
        lambda: elbo.exact_bound(U3, COSINE, guess3, 2, panels=1.5),
        ValueError,
        "panels must be an integer >= 1, got 1.5",
    ),
    (
        lambda: elbo.exact_bound(U3, COSINE, guess3, 2, t_clean=0.9, t_noise=0.2),
        ValueError,
        "t_clean and t_noise must be",
    ),
    (lambda: elbo.exact_bound(U3, COSINE, guess3, 2, head="x0"), ValueError, "head must be one of"),
    (lambda: elbo.exact_law(U3, COSINE, guess3, 2), ValueError, "steps must be given for the continuous schedule"),
    (lambda: elbo.exact_law(U3, COSINE, guess3, 2, steps=1, head="x0"), ValueError, "head must be one of"),
    (lambda: elbo.bound(cat.band(3), COSINE, X, guess3, None), TypeError, "kernel must be an Interpolation, got Walk"),
    (lambda: elbo.bound(U3, 0.5, X, guess3, None), TypeError, "schedule must be a KeepSchedule, got float"),
    (lambda: elbo.bound(U3, COSINE, X[0], guess3, None), ValueError, "x_0 must have shape (batch, length), got (2,)"),
    (lambda: elbo.bound(U3, COSINE, X, guess3, 3), TypeError, "rng must be a numpy.random.Generator"),
    (
        lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), method="sobol"),
        ValueError,
        "method must be one",
    ),
    (lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), head="x0"), ValueError, "head must be one of"),
    (
        lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), law=[1.0]),
        TypeError,
        "law must be a TimeLaw",
    ),
    (
        lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), steps=1.5),
        ValueError,
        "steps must be an integer",
    ),
    (lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), t_clean=-0.1), ValueError, "t_clean must be"),
    (
        lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), t_clean=0.5, t_noise=0.4),
        ValueError,
        "t_noise",
    ),
    (
        lambda: elbo.bound(U3, COSINE, X, guess3, np.random.default_rng(0), steps=4, t_clean=0.1),
        ValueError,
        "t_clean and t_noise must be 0 and 1 where time has steps",
    ),
    (lambda: elbo.count_bound(cat.band(3), X, guess3, None), TypeError, "kernel must be an Interpolation, got Walk"),
    (lambda: elbo.count_bound(cat.absorbing(3), X, guess3, None, head="x0"), ValueError, "head must be one of"),
    (lambda: elbo.time_law([1.0, -1.0]), ValueError, "heights must be known numbers >= 0 of shape (n,)"),
    (lambda: elbo.time_law([[1.0]]), ValueError, "heights must be known numbers >= 0 of shape (n,)"),
    (lambda: elbo.time_law([1.0, math.inf]), ValueError, "heights must be known numbers >= 0 of shape (n,)"),
    (lambda: elbo.time_law([]), ValueError, "heights must be known numbers >= 0 of shape (n,)"),
    (lambda: elbo.time_law([0.0, 0.0], share=0.5), ValueError, "heights must be > 0"),
    (lambda: elbo.time_law([1.0], share=1.5), ValueError, "share must be in [0, 1], got 1.5"),
    (lambda: elbo.time_law([1.0], share=-0.5), ValueError, "share must be a finite number >= 0"),
    (lambda: elbo.table([[0.5, 0.5]]), ValueError, "law must have an axis of the same length >= 2 for each position"),
    (lambda: elbo.table([1.0]), ValueError, "law must have an axis of the same length >= 2 for each position"),
    (lambda: elbo.table([0.5, 0.6]), ValueError, "law must be >= 0 with sum 1, got a sum of 1.1"),
    (lambda: elbo.table([1.5, -0.5]), ValueError, "law must be >= 0 with sum 1, got a sum of 1 and a least of -0.5"),
    (lambda: elbo.table(np.asarray(["a"])), TypeError, "law must be real numbers"),
    (lambda: elbo.markov([0.5, 0.5], np.eye(3)), ValueError, "transition must have shape (K, K) and initial (K,)"),
    (lambda: elbo.markov([0.5, 0.5], [[0.5, 0.5], [0.5, 0.4]]), ValueError, "transition must be >= 0 with sum 1"),
    (lambda: elbo.markov([0.5, 0.4], np.eye(2)), ValueError, "initial must be >= 0 with sum 1, got a sum of 0.9"),
    (lambda: elbo.table(LAW).denoise(X[0], U3, T), ValueError, "x_t must have shape (batch, length), got (2,)"),
    (lambda: elbo.table(LAW).denoise(X[:, :1], U3, T), ValueError, "x_t must have shape (batch, 2), got (1, 1)"),
    (
        lambda: elbo.table(LAW).denoise(X, cat.uniform(4), T),
        ValueError,
        "kernel must have the 3 classes of the law, got 4",
    ),
    (lambda: elbo.table(LAW).log_probability(X[:, :1]), ValueError, "x_0 must be known tokens of shape (batch, 2)"),
    (lambda: elbo.markov([0.5, 0.5], np.eye(2)).log_probability(X[0]), ValueError, "x_0 must be known tokens of shape"),
    (lambda: elbo.table(LAW).sample(3, 5), TypeError, "rng must be a numpy.random.Generator"),
]


@pytest.mark.parametrize("call, error, message", BAD, ids=[message[:50] for _, _, message in BAD])
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_any_law_of_times_is_a_law(heights, share, u):
    law = elbo.time_law(heights, share=share)
    assert np.mean(law.heights) == pytest.approx(1.0, rel=1e-12)
    t = law.place(np.asarray([u]))
    assert 0.0 <= t[0] <= 1.0
    assert law.density(t)[0] > 0.0
    n = len(heights)
    cell = min(int(t[0] * n), n - 1)
    below = float(np.sum(law.heights[:cell]) / n + (t[0] - cell / n) * law.heights[cell])
    assert below == pytest.approx(u, abs=1e-12)


@given(st.integers(0, 10**6), st.sampled_from(sorted(CASES)), st.floats(0.02, 0.98))
def test_terms_are_never_negative(seed, name, u):
    kernel = CASES[name][0]
    rng = np.random.default_rng(seed)
    x_0, x_t = rng.integers(0, 3, (1, 6)), rng.integers(0, kernel.classes, (1, 6))
    log_p = np.log(rng.dirichlet(np.full(kernel.classes, 0.3), (1, 6)) + 1e-290)
    t, s = COSINE.level(u), COSINE.level(0.9 * u)
    for found in (
        elbo.rate_divergence(kernel, x_0, x_t, log_p, COSINE, np.asarray(u)),
        elbo.step_divergence(kernel, x_0, x_t, log_p, s, t),
    ):
        assert (found >= -1e-14).all()


def test_records_print_without_their_arrays():
    assert repr(elbo.table(LAW)) == "Table()"
    assert repr(elbo.markov([0.5, 0.5], np.eye(2))) == "MarkovChain()"
    assert repr(elbo.time_law([1.0, 2.0])) == "TimeLaw()"


def test_count_bound_checks_and_widens_what_the_denoiser_gives():
    kernel, x = cat.absorbing(3), np.zeros((2, 4), int)

    def found(row: Any) -> Any:
        return elbo.count_bound(
            kernel,
            x,
            lambda x, level: np.broadcast_to(row, (*x.shape, len(row))),
            np.random.default_rng(0),
        )

    # each masked token costs one nat, weighed by L over the number of masks: 4, which integers would truncate
    np.testing.assert_allclose(found(np.array([-1, -1, -9])), 4.0, rtol=1e-6)
    large = found(np.array([-30000.0, -1.0, -1.0], dtype=np.float16))
    np.testing.assert_allclose(large, 4.0 * 30000.0, rtol=1e-6)  # beyond float16
    for bad in (np.full(2, -1.0), np.full(4, -1.0)):
        with pytest.raises(ValueError, match="log_p must have the shape"):
            found(bad)
