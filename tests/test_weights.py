"""Loss weights for each sample, over the log-SNR, and against the entropy of Gaussian data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from diffnum import _targets, oracles, schedules
from diffnum import parameterization as par
from diffnum.schedules import Level

EPS = 2.0**-52

ROUNDING = 32 * EPS
"""Relative error of products of a few coefficients, each with a few roundings."""

BALANCE = 1e-12
"""Two weighted errors agree to rounding times the cancellation in the conversions at |log-SNR| <= 3."""

MISTAKE = 0.01
"""A plausible mistake moves a value by more than 1 %."""

TARGETS = _targets.TARGETS
COSINE, FLOW, EDM = schedules.cosine(), schedules.rectified_flow(), schedules.edm()
VP = schedules.vp_linear()
SCHEDULES = {"cosine": COSINE, "flow": FLOW, "edm": EDM, "vp_linear": VP, "shifted": schedules.shift(FLOW, 3.0)}
TO = {"x0": par.to_x0, "eps": par.to_eps, "v": par.to_v, "score": par.to_score, "flow": par.to_flow}
PLACES = [-3.0, -0.7, 0.0, 0.4, 2.8]
"""Log-SNRs at which the formulas are compared."""


def assert_close(got, want, rtol=ROUNDING):
    """Equal to a relative tolerance."""
    np.testing.assert_allclose(got, want, rtol=rtol)


def differs(got, want):
    """A negative control: every entry is off by more than `MISTAKE`."""
    return bool(np.all(abs(np.asarray(got) / np.asarray(want) - 1.0) > MISTAKE))


# -- errors and weights -----------------------------------------------------------------------------------------------


def errors(schedule, level, seed=0):
    """Errors of every target that belong to one error of the denoiser, at one x."""
    x, truth, delta = np.random.default_rng(seed).standard_normal((3, 6))
    values = [{t: TO[t](d, x, level, source="x0", schedule=schedule) for t in TARGETS} for d in (truth, truth + delta)]
    return delta, {t: values[1][t] - values[0][t] for t in TARGETS}


@pytest.mark.claim("parameterization-errors")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("place", PLACES)
def test_errors_are_amplified_by_known_factors(name, place):
    schedule = SCHEDULES[name]
    level = schedule.level_at(place)
    a, s = float(level.alpha), float(level.sigma)
    delta, found = errors(schedule, level)
    slope = -float(schedule.diffusion_squared(level.t)) / (2 * s**2)
    factors = {"x0": 1.0, "eps": -a / s, "score": a / s**2, "v": -(a**2 + s**2) / s, "flow": a * slope}
    for target, factor in factors.items():
        np.testing.assert_allclose(found[target], factor * delta, rtol=1e-11, atol=1e-11 * abs(factor))


@pytest.mark.claim("parameterization-weights")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", TARGETS)
def test_weighted_errors_of_all_targets_coincide_for_each_sample(name, place, given):
    schedule = SCHEDULES[name]
    level = schedule.level_at(place)
    _, found = errors(schedule, level)
    want = 1.7 * found[given] ** 2
    for target in TARGETS:
        weight = par.convert_weight(1.7, level, source=given, target=target, schedule=schedule)
        np.testing.assert_allclose(weight * found[target] ** 2, want, rtol=1e-10, atol=BALANCE)
        if target not in {given, "x0"} and place == 2.8 and given == "x0":
            assert not np.allclose(1.7 * found[target] ** 2, want, rtol=MISTAKE)


@pytest.mark.claim("parameterization-weights")
def test_the_factor_of_v_is_not_forgotten():
    """Published for preserved variance: weight SNR + 1. Elsewhere (alpha^2 + sigma^2)^2/sigma^2."""
    level = FLOW.level(0.4)
    a, s = 0.6, 0.4
    got = par.convert_weight(1.0, level, source="v", target="x0")
    assert_close(got, (a**2 + s**2) ** 2 / s**2)
    assert differs(got, a**2 / s**2 + 1)
    vp = COSINE.level(0.4)
    assert_close(par.convert_weight(1.0, vp, source="v", target="x0"), (vp.alpha / vp.sigma) ** 2 + 1)


KNOWN = {
    # name: (function, weight on x0 from SNR, weight on eps from SNR)
    "snr": (par.snr_weight, lambda r: r, lambda r: 1.0),
    "truncated": (par.truncated_snr_weight, lambda r: max(r, 1.0), lambda r: max(1.0, 1.0 / r)),
    "min-snr": (
        lambda level, **k: par.min_snr_weight(level, gamma=3.0, **k),
        lambda r: min(r, 3.0),
        lambda r: min(1.0, 3.0 / r),
    ),
    "edm": (
        lambda level, **k: par.edm_weight(level, sigma_data=0.5, **k),
        lambda r: r + 4.0,
        lambda r: 1.0 + 4.0 / r,
    ),
    "sigmoid": (
        lambda level, **k: par.sigmoid_weight(level, bias=-1.5, **k),
        lambda r: r / (1.0 + r * math.exp(1.5)),
        lambda r: 1.0 / (1.0 + r * math.exp(1.5)),
    ),
    "elbo": (
        lambda level, **k: par.elbo_weight(level, par.log_normal(), **k),
        lambda r: r / norm.pdf(math.log(r) / 2, 1.2, 1.2),
        lambda r: 1.0 / norm.pdf(math.log(r) / 2, 1.2, 1.2),
    ),
}


@pytest.mark.claim(
    "parameterization-snr",
    "parameterization-truncated-snr",
    "parameterization-min-snr",
    "parameterization-edm-weight",
    "parameterization-sigmoid-weight",
    "parameterization-elbo",
)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", KNOWN)
def test_known_weights(kind, name):
    weight, on_x0, on_eps = KNOWN[kind]
    schedule = SCHEDULES[name]
    for place in PLACES:
        level = schedule.level_at(place)
        snr = math.exp(2 * place)
        assert_close(weight(level, target="x0"), on_x0(snr), 1e-13)
        assert_close(weight(level, target="eps"), on_eps(snr), 1e-13)
        for target in TARGETS:
            got = weight(level, target=target, schedule=schedule)
            want = par.convert_weight(on_x0(snr), level, source="x0", target=target, schedule=schedule)
            assert_close(got, want, 1e-11)
        if kind != "snr" and place == 0.4:  # the half log-SNR in place of the full one
            assert differs(on_x0(math.exp(place)), on_x0(snr)) or kind == "truncated"


@pytest.mark.claim("parameterization-min-snr")
def test_min_snr_as_published_for_each_target():
    """On eps min(SNR, gamma)/SNR, on v min(SNR, gamma)/(SNR + 1); that of x0 on the error of eps is another."""
    for t in (0.1, 0.3, 0.6):
        level = COSINE.level(t)
        snr = float(level.alpha / level.sigma) ** 2
        assert_close(par.min_snr_weight(level, target="eps"), min(snr, 5.0) / snr, 1e-13)
        assert_close(par.min_snr_weight(level, target="v"), min(snr, 5.0) / (snr + 1), 1e-13)
        assert differs(par.min_snr_weight(level, target="eps"), min(snr, 5.0))
    wrong = par.Loss("eps", lambda level: par.min_snr_weight(level, target="x0"), par.uniform_time(COSINE), COSINE)
    right = par.Loss("eps", lambda level: par.min_snr_weight(level, target="eps"), par.uniform_time(COSINE), COSINE)
    same = par.Loss("v", lambda level: par.min_snr_weight(level, target="v"), par.uniform_time(COSINE), COSINE)
    assert par.same_loss(right, same)
    assert not par.same_loss(right, wrong)


@pytest.mark.claim("parameterization-edm-weight")
def test_the_edm_weight_makes_the_error_of_the_network_count_one():
    level = COSINE.level(0.7)
    c = par.preconditioning(level, sigma_data=0.4)
    assert_close(par.edm_weight(level, sigma_data=0.4), c.c_out**-2)


def test_defaults_are_the_published_ones():
    """No bias, gamma 5, data of unit variance; on x0, but on eps for the bound."""
    level = COSINE.level_at(1.1)
    snr = math.exp(2.2)
    assert_close(par.snr_weight(level), snr, 1e-13)
    assert_close(par.truncated_snr_weight(level), snr, 1e-13)
    assert_close(par.min_snr_weight(level), 5.0, 1e-13)
    assert_close(par.edm_weight(level), snr + 1.0, 1e-13)
    assert_close(par.sigmoid_weight(level), snr / (1.0 + snr), 1e-13)
    assert_close(par.elbo_weight(level, par.uniform_log_snr(0.0, 3.0)), 3.0, 1e-13)


LIMITS = [
    # kind, target, at alpha = 0, at sigma = 0
    ("snr", "x0", 0.0, np.inf),
    ("snr", "eps", 1.0, 1.0),
    ("snr", "v", 0.0, 1.0),
    ("snr", "flow", 0.0, 4 / np.pi**2),
    ("snr", "score", 1.0, 0.0),
    ("truncated", "x0", 1.0, np.inf),
    ("truncated", "eps", np.inf, 1.0),
    ("truncated", "v", 1.0, 1.0),
    ("min-snr", "x0", 0.0, 3.0),
    ("min-snr", "eps", 1.0, 0.0),
    ("min-snr", "v", 0.0, 0.0),
    ("edm", "x0", 4.0, np.inf),
    ("edm", "eps", np.inf, 1.0),
    ("edm", "v", 4.0, 1.0),
    ("sigmoid", "x0", 0.0, math.exp(-1.5)),
    ("sigmoid", "eps", 1.0, 0.0),
]


@pytest.mark.parametrize("kind,target,noisy,clean", LIMITS)
def test_weights_at_the_ends_are_limits(backend: Backend, kind, target, noisy, clean):
    weight = KNOWN[kind][0]
    for t, want in ((1.0, noisy), (0.0, clean)):
        got = weight(COSINE.level(backend.asarray(t)), target=target, schedule=COSINE)
        np.testing.assert_allclose(backend.numpy(got), want, rtol=1e-14)


def test_weights_in_every_library(backend: Backend):
    t = np.array([0.1, 0.5, 0.9])
    for dtype, rtol in (("float64", 1e-13), ("float32", 2e-5)):
        level = FLOW.level(backend.asarray(t, dtype))
        for (weight, *_), target in itertools.product(KNOWN.values(), ("x0", "v", "flow")):
            got = weight(level, target=target, schedule=FLOW)
            assert backend.dtype(got) == dtype
            np.testing.assert_allclose(backend.numpy(got), weight(FLOW.level(t), target=target, schedule=FLOW), rtol)


def test_numbers_as_weights_take_the_dtype_of_the_level(backend: Backend):
    level = FLOW.level(backend.asarray([0.2, 0.7], "float32"))
    for weight in (2.0, 2, np.asarray([2.0, 2.0]) if backend.name != "numpy" else 2.0):
        got = par.convert_weight(weight, level, source="eps", target="x0")
        assert backend.dtype(got) == "float32"
        np.testing.assert_allclose(backend.numpy(got), 2.0 * np.array([16.0, (0.3 / 0.7) ** 2]), rtol=1e-6)
    own = backend.asarray([1.0, 3.0], "float32")
    got = par.convert_weight(own, level, source="eps", target="x0")
    np.testing.assert_allclose(backend.numpy(got), [16.0, 3.0 * (0.3 / 0.7) ** 2], rtol=1e-6)
    loss = par.Loss("v", lambda level: 1.0, par.log_normal(), FLOW)
    assert backend.dtype(loss.effective_weight(backend.asarray([0.1], "float32"))) == "float32"


# -- the bound --------------------------------------------------------------------------------------------------------


def gauss(f, low, high, panels=400):
    """Integral by Gauss-Legendre quadrature with 20 points on each panel."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges)[:, None] / 2
    return float(np.sum(half * weights * f(edges[:-1, None] + half * (nodes + 1))))


@pytest.mark.claim("parameterization-elbo", "parameterization-gaussian-elbo")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["cosine", "flow", "edm"])
def test_the_bound_is_tight_on_gaussian_data(name, target):
    """Prior, weighted loss and noise of the clean level add up to the entropy of x at the clean level."""
    std, (low, high) = 0.7, (-5.0, 4.0)
    schedule, data = SCHEDULES[name], oracles.gaussian(0.4, 0.7)
    law = par.uniform_log_snr(low, high)

    def loss(place):
        """Weighted squared error of the exact denoiser, whose only error is the posterior variance."""
        level = schedule.level_at(place)
        n2 = (level.alpha * std) ** 2 + level.sigma**2
        denoising = std**2 * level.sigma**2 / n2
        slope = _targets.coefficients(level, "x0", target, schedule)[1]
        return law.density(place) * par.elbo_weight(level, law, target=target, schedule=schedule) * slope**2 * denoising

    noisy, clean = schedule.level_at(low), schedule.level_at(high)
    prior_std = math.hypot(noisy.alpha * std, noisy.sigma)
    prior = math.log(prior_std / noisy.sigma)  # KL of N(alpha x0, sigma^2) to the marginal, its quadratic terms cancel
    noise = 0.5 * math.log(2 * math.pi * math.e) + math.log(clean.sigma)
    bound = prior + gauss(loss, low, high) + noise
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(math.hypot(clean.alpha * std, clean.sigma))
    assert abs(bound - entropy) < 1e-12
    # against -E log p, on a grid of quadrature points of x
    x, w = np.polynomial.hermite_e.hermegauss(30)
    points = 0.4 * clean.alpha + math.hypot(clean.alpha * std, clean.sigma) * x
    assert abs(entropy + np.sum(w * data.log_density(points[:, None], clean)) / math.sqrt(2 * math.pi)) < 1e-12
    # the factor 1/2 belongs to the full log-SNR
    assert abs(prior + gauss(loss, low, high) / 2 + noise - entropy) > 1.0


@pytest.mark.claim("parameterization-gaussian-elbo")
def test_a_prior_without_the_data_costs_its_divergence():
    """Started from N(0, sigma^2) the bound is larger by the divergence of the marginal from it."""
    std, level = 0.7, COSINE.level_at(-2.0)
    a2, s2 = (level.alpha * std) ** 2, level.sigma**2
    with_data = 0.5 * math.log((a2 + s2) / s2)
    without = 0.5 * a2 / s2  # E KL(N(alpha x0, sigma^2) || N(0, sigma^2))
    divergence = 0.5 * ((a2 + s2) / s2 - 1 - math.log((a2 + s2) / s2))
    assert_close(without - with_data, divergence, 1e-10)


@pytest.mark.claim("parameterization-effective")
def test_effective_weights_in_closed_form():
    places = np.linspace(-6.0, 6.0, 25)
    flow = par.Loss("flow", lambda level: 1.0, par.uniform_time(FLOW), FLOW)
    np.testing.assert_allclose(flow.effective_weight(places), np.exp(-places), rtol=1e-11)
    v = par.Loss("v", lambda level: 1.0, par.uniform_time(COSINE), COSINE)
    np.testing.assert_allclose(v.effective_weight(places), 2 / np.pi * np.exp(-places), rtol=1e-11)
    edm = par.Loss("x0", lambda level: par.edm_weight(level, sigma_data=0.5), par.log_normal(), EDM)
    want = norm.pdf(places, 1.2, 1.2) * (1 + 4 * np.exp(-2 * places))
    np.testing.assert_allclose(edm.effective_weight(places), want, rtol=1e-12)
    ddpm = par.Loss("eps", lambda level: 1.0, par.uniform_time(COSINE), COSINE)
    np.testing.assert_allclose(ddpm.effective_weight(places), 1 / np.cosh(places) / np.pi, rtol=1e-11)
    for law in (par.log_normal(), par.uniform_time(FLOW)):
        bound = par.Loss("v", lambda level, law=law: par.elbo_weight(level, law, target="v"), law, COSINE)
        np.testing.assert_allclose(bound.effective_weight(places), 1.0, rtol=1e-12)


@pytest.mark.claim("parameterization-effective")
def test_a_target_axis_that_measures_nothing_is_recognised():
    """Three targets with converted weights are one loss; with the weight left alone they are three."""
    law = par.uniform_time(FLOW)

    def converted(target):
        return par.Loss(target, lambda level: par.edm_weight(level, target=target, schedule=FLOW), law, FLOW)

    def same_weight(target):
        return par.Loss(target, lambda level: 1.0, law, FLOW)

    losses = [converted(t) for t in TARGETS]
    assert all(par.same_loss(losses[0], other) for other in losses)
    plain = [same_weight(t) for t in TARGETS]
    assert not any(par.same_loss(a, b) for a, b in itertools.combinations(plain, 2))
    # the velocity of the straight path is v over (alpha^2 + sigma^2), not v: the straight path preserves no variance
    vp = [par.Loss(t, lambda level: 1.0, par.uniform_time(COSINE), COSINE) for t in ("v", "flow")]
    assert par.same_loss(*vp)
    assert not par.same_loss(plain[2], plain[4])


def test_losses_on_different_supports_differ():
    a, b = (par.Loss("eps", lambda level: 1.0, par.uniform_log_snr(-2.0, high), COSINE) for high in (2.0, 3.0))
    assert not par.same_loss(a, b)
    assert par.same_loss(a, b, log_snr=np.linspace(-2.0, 2.0, 5))
    assert not par.same_loss(a, par.Loss("eps", lambda level: 1.0 + 1e-4 * level.alpha, a.law, COSINE))
    with pytest.raises(ValueError, match="log_snr must have points where the weight of second is positive"):
        par.same_loss(b, a, log_snr=np.array([2.5]))


# -- bad input --------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(value=st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf), st.just("1"), st.just(True)))
def test_numbers_that_must_be_positive(value):
    level = Level(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="sigma_data must be a finite number > 0, got"):
        par.edm_weight(level, sigma_data=value)
    with pytest.raises(ValueError, match="gamma must be a finite number > 0, got"):
        par.min_snr_weight(level, gamma=value)


def test_more_bad_input():
    level = Level(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="target must be one of"):
        par.snr_weight(level, target="noise")
    with pytest.raises(ValueError, match="bias must be a finite number"):
        par.sigmoid_weight(level, bias=math.nan)
    with pytest.raises(ValueError, match="level must have positive density under uniform_log_snr"):
        par.elbo_weight(COSINE.level_at(5.0), par.uniform_log_snr(-4.0, 4.0))
