"""Preconditioning by exact moments, optimal skips, and the identity with the velocity path."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from diffnum import _targets, oracles, paths, schedules
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


# -- preconditioning --------------------------------------------------------------------------------------------------


@pytest.mark.claim("parameterization-edm")
@pytest.mark.parametrize("sigma", [0.002, 0.3, 1.0, 80.0])
@pytest.mark.parametrize("sd", [0.5, 1.7])
def test_edm_is_the_published_table_at_alpha_one(sigma, sd):
    c = par.preconditioning(Level(sigma, 1.0, sigma), sigma_data=sd)
    published = (
        sd**2 / (sigma**2 + sd**2),
        sigma * sd / math.sqrt(sigma**2 + sd**2),
        1 / math.sqrt(sigma**2 + sd**2),
        math.log(sigma) / 4,
    )
    assert_close(c, published)


def moments(kind, schedule, level, sd):
    """Variances of the network's input and target over independent x0 and eps, from three runs of the functions.

    The functions are linear in (x0, eps), so unit vectors give their coefficients, and the variances follow exactly.
    """
    x0, eps = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    c = par.preconditioning(level, kind, sigma_data=sd, schedule=schedule)
    seen = c.c_in * (level.alpha * x0 + level.sigma * eps)
    target = par.network_target(x0, eps, level, kind, sigma_data=sd, schedule=schedule)
    weights = np.array([sd**2, 1.0])
    return seen**2 @ weights, target**2 @ weights


@pytest.mark.claim("parameterization-edm", "parameterization-unit")
@pytest.mark.parametrize("kind", par.KINDS)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("sd", [1.0, 0.6, 2.3])
def test_inputs_and_targets_have_unit_variance(kind, name, sd):
    for place in PLACES:
        schedule = schedules.truncate(VP, t_noise=0.999) if name == "vp_linear" else SCHEDULES[name]
        level = schedule.level_at(place)
        assert_close(moments(kind, schedule, level, sd), (1.0, 1.0))


@pytest.mark.claim("parameterization-unit")
def test_raw_v_and_flow_do_not_have_unit_variance():
    """v has it where variance is preserved and the data have unit variance; the flow velocity never, at alpha = 1/2."""
    vp, half = COSINE.level(0.3), FLOW.level(0.5)
    a, b = _targets.parts(vp, "v", None)
    assert_close(a**2 + b**2, 1.0)
    assert differs(a**2 * 0.25 + b**2, 1.0)
    a, b = _targets.parts(half, "flow", FLOW)
    assert_close(a**2 + b**2, 2.0)


def test_defaults_are_unit_data_about_zero():
    level, x0, eps = FLOW.level(0.3), np.array([0.4, -1.0]), np.array([1.0, 0.2])
    x = level.alpha * x0 + level.sigma * eps
    n2 = 0.7**2 + 0.3**2
    assert_close(par.preconditioning(level)[:3], (0.7 / n2, 0.3 / math.sqrt(n2), 1 / math.sqrt(n2)))
    assert_close(par.network_target(x0, eps, level), (0.3 * x0 - 0.7 * eps) / math.sqrt(n2))
    assert_close(par.precondition(lambda y, c: 0.0 * y)(x, level), 0.7 * x / n2)


@pytest.mark.claim("parameterization-preconditioned")
@pytest.mark.parametrize("kind", par.KINDS)
@pytest.mark.parametrize("name", ["cosine", "flow", "edm"])
def test_the_denoiser_undoes_the_target(kind, name):
    """A network that returns its target gives back x0, whatever the centre."""
    schedule, centre = SCHEDULES[name], np.array([0.5, -2.0, 1.0])
    x0, eps = np.random.default_rng(0).standard_normal((2, 4, 3))
    for place in PLACES:
        level = schedule.level_at(place)
        x = level.alpha * x0 + level.sigma * eps
        target = par.network_target(x0, eps, level, kind, sigma_data=0.7, centre=centre, schedule=schedule)

        def network(y, c, target=target, level=level, place=place, x=x):
            assert_close(c, -place / 4, 1e-13)
            np.testing.assert_allclose(
                y * np.hypot(0.7 * level.alpha, level.sigma), x - level.alpha * centre, rtol=1e-12, atol=1e-12
            )
            return target

        denoise = par.precondition(network, kind, sigma_data=0.7, centre=centre, schedule=schedule)
        np.testing.assert_allclose(denoise(x, level), x0, rtol=BALANCE, atol=20 * BALANCE)


@pytest.mark.claim("parameterization-optimal")
@pytest.mark.parametrize("name", ["cosine", "flow", "edm"])
@pytest.mark.parametrize("place", PLACES)
def test_the_skip_is_the_one_with_the_smallest_output(name, place):
    level, sd = SCHEDULES[name].level_at(place), 0.6

    def output(skip):
        """Standard deviation of x0 - skip x."""
        return math.hypot((1 - skip * level.alpha) * sd, skip * level.sigma)

    best = minimize_scalar(output, bracket=(-2.0, 2.0), tol=1e-14)
    c = par.preconditioning(level, sigma_data=sd)
    assert abs(best.x - c.c_skip) < 1e-6 * max(1.0, abs(c.c_skip))
    assert_close(c.c_out, output(c.c_skip), 1e-13)
    for kind in TARGETS:
        other = par.preconditioning(level, kind, sigma_data=sd, schedule=SCHEDULES[name])
        assert abs(other.c_out) >= c.c_out * (1 - ROUNDING)
        assert_close(abs(other.c_out), output(float(other.c_skip)), 1e-12)


@pytest.mark.claim("parameterization-optimal")
def test_the_skip_is_the_best_linear_denoiser():
    """Zero network: exact on Gaussian data; on others the least squared error among linear maps, by quadrature."""
    data = oracles.gaussian(0.9, 0.6)
    level = Level(0.3, 0.6, 0.45)
    denoise = par.precondition(lambda y, c: 0.0 * y, sigma_data=0.6, centre=0.9)
    x = np.array([[-1.0], [0.3], [2.0]])
    np.testing.assert_allclose(denoise(x, level), data.denoise(x, level), rtol=1e-14)
    off_centre = par.precondition(lambda y, c: 0.0 * y, sigma_data=0.6)
    assert differs(off_centre(x, level), data.denoise(x, level))


@pytest.mark.claim("parameterization-identity")
@pytest.mark.parametrize("sd", [1.0, 0.6])
@pytest.mark.parametrize("name", ["cosine", "flow", "edm"])
def test_the_network_predicts_minus_the_velocity(name, sd):
    """The velocity of `paths.velocity` at a denoiser is -F, and so are the conditional means on Gaussian data."""
    schedule = schedules.truncate(SCHEDULES[name], t_noise=0.95, t_clean=0.05) if name != "edm" else EDM
    path = paths.velocity(schedule, np.array([0.9, 0.2]), sigma_data=sd)
    x0, eps = np.random.default_rng(1).standard_normal((2, 5))
    for t in (0.2, 0.5, 0.9):
        level = schedule.level(t)
        x = level.alpha * x0 + level.sigma * eps
        p, q = path.target(level)
        target = par.network_target(x0, eps, level, sigma_data=sd)
        np.testing.assert_allclose(target, -(p * x + q * x0), rtol=1e-11, atol=1e-13)
        assert not np.allclose(target, p * x + q * x0, rtol=MISTAKE)
        if name == "cosine" and sd == 1.0:
            np.testing.assert_allclose(target, -par.to_v(x0, x, level, source="x0"), rtol=1e-11, atol=1e-13)


def test_targets_are_regular_at_both_ends():
    x0, eps = np.array([0.4, -2.0]), np.array([1.0, 0.3])
    np.testing.assert_array_equal(par.network_target(x0, eps, Level(1.0, 0.0, 1.0), sigma_data=2.0), x0 / 2)
    np.testing.assert_array_equal(par.network_target(x0, eps, Level(0.0, 1.0, 0.0), sigma_data=2.0), -eps)
    for level in (COSINE.level(1.0), FLOW.level(1.0), COSINE.level(0.0)):
        c = par.preconditioning(level, sigma_data=0.5)
        assert np.all(np.isfinite(c[:3]))
        assert np.isinf(c.c_noise)
    assert par.preconditioning(COSINE.level(1.0), sigma_data=0.5).c_out == 0.5


def test_an_infinite_condition_raises_and_another_one_serves():
    x = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="or pass condition"):
        par.precondition(lambda y, c: y)(x, FLOW.level(1.0))
    told = []
    denoise = par.precondition(lambda y, c: told.append(c) or y, condition=lambda level: level.t)
    np.testing.assert_array_equal(denoise(x, FLOW.level(1.0)), x)
    assert told == [1.0]


@pytest.mark.parametrize("kind", par.KINDS)
@pytest.mark.parametrize("dtype,rtol", [("float64", 1e-13), ("float32", 1e-5)])
def test_preconditioned_networks_in_every_library(backend: Backend, kind, dtype, rtol):
    x, schedule = np.array([[0.3, -1.0], [1.2, 0.1]]), SCHEDULES["shifted"]
    t = np.array([0.2, 0.8])

    def network(y, c):
        assert "int" not in str(y.dtype)
        return y * y

    denoise = par.precondition(network, kind, sigma_data=0.5, centre=np.array([0.1, -0.2]), schedule=schedule)
    want = denoise(x, schedule.level(t))
    got = denoise(backend.asarray(x, dtype), schedule.level(backend.asarray(t, dtype)))
    assert backend.dtype(got) == dtype
    np.testing.assert_allclose(backend.numpy(got), want, rtol=rtol, atol=rtol)
    pair = backend.asarray(x, dtype), backend.asarray(x[::-1].copy(), dtype)
    level = schedule.level(backend.asarray(t, dtype))
    got = par.network_target(*pair, level, kind, sigma_data=0.5, centre=0.3, schedule=schedule)
    assert backend.dtype(got) == dtype
    want = par.network_target(x, x[::-1], schedule.level(t), kind, sigma_data=0.5, centre=0.3, schedule=schedule)
    np.testing.assert_allclose(backend.numpy(got), want, rtol=rtol, atol=rtol)


# -- bad input --------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(value=st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf), st.just("1"), st.just(True)))
def test_numbers_that_must_be_positive(value):
    level = Level(0.5, 0.5, 0.5)
    for function in (
        lambda: par.preconditioning(level, sigma_data=value),
        lambda: par.precondition(lambda y, c: y, sigma_data=value),
        lambda: par.network_target(np.ones(1), np.ones(1), level, sigma_data=value),
    ):
        with pytest.raises(ValueError, match="sigma_data must be a finite number > 0, got"):
            function()


def test_more_bad_input():
    level = Level(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'ddpm'"):
        par.precondition(lambda y, c: y, "ddpm")
    with pytest.raises(ValueError, match="kind must be one of"):
        par.preconditioning(level, "ddpm")
    with pytest.raises(ValueError, match="kind must be one of"):
        par.network_target(np.ones(1), np.ones(1), level, "ddpm")
    with pytest.raises(ValueError, match="alpha > 0 to get x0 from eps"):
        par.preconditioning(FLOW.level(1.0), "eps")
    with pytest.raises(ValueError, match="sigma > 0 for the score"):
        _targets.parts(FLOW.level(0.0), "score", None)
    with pytest.raises(ValueError, match=r"network\(y, c\) must have the shape of x"):
        par.precondition(lambda y, c: y[:1])(np.ones(2), level)


@pytest.mark.parametrize("make", [par.from_eps, par.from_v, par.from_score, par.precondition])
@pytest.mark.parametrize("network", [None, 3, "unet"])
def test_what_is_no_network_is_named_at_once(make, network):
    with pytest.raises(TypeError, match="network must be a Callable, got"):
        make(network)


def test_other_arguments_of_the_wrong_kind():
    with pytest.raises(TypeError, match="network must be a Callable, got NoneType"):
        par.from_flow(None, FLOW)
    with pytest.raises(TypeError, match="schedule must be a Schedule, got NoneType"):
        par.from_flow(lambda x, level: x, None)
    with pytest.raises(TypeError, match="schedule must be a Schedule, got NoneType"):
        par.precondition(lambda y, c: y, "flow")
    with pytest.raises(TypeError, match="condition must be a Callable, got float"):
        par.precondition(lambda y, c: y, condition=0.5)


def test_a_network_of_another_library_is_named():
    torch = pytest.importorskip("torch")
    level = Level(0.5, 0.5, 0.5)
    with pytest.raises(
        TypeError, match=r"network\(x, level\) must be .* library of x, got numpy.ndarray .float64. for x of torch.T"
    ):
        par.from_eps(lambda x, level: np.ones(2))(torch.ones(2), level)
    with pytest.raises(TypeError, match=r"got torch.Tensor \(torch.float32\) for x of numpy.ndarray"):
        par.from_eps(lambda x, level: torch.ones(2))(np.ones(2), level)


def test_a_network_of_indices():
    """The recipe of from_eps: at the nodes of a chain of T steps the index is T t - 1."""
    betas = np.linspace(1e-3, 0.2, 20)
    schedule, told = schedules.from_betas(betas), []
    denoise = par.from_eps(lambda x, level: told.append(20 * level.t - 1) or 0.0 * x)
    kept = np.cumprod(1.0 - betas)
    for k in (0, 7, 19):
        level = schedule.level((k + 1) / 20)
        np.testing.assert_allclose(denoise(np.ones(1), level), 1.0 / np.sqrt(kept[k]), rtol=1e-12)
    np.testing.assert_allclose(told, [0, 7, 19], atol=1e-12)


NOT_LEVELS = (None, (0.5, 0.6, 0.4), 0.5)


@pytest.mark.parametrize("level", NOT_LEVELS, ids=["none", "tuple", "number"])
def test_what_is_no_level_is_named(level):
    x = np.ones(2)
    for function in (
        *(functools.partial(f, x, x, level, source="eps") for f in (par.to_x0, par.to_eps, par.to_v, par.to_score)),
        lambda: par.from_v(lambda x, level: x)(x, level),
        lambda: par.preconditioning(level),
        lambda: par.network_target(x, x, level),
        lambda: par.edm_weight(level),
        lambda: par.snr_weight(level),
        lambda: par.min_snr_weight(level),
        lambda: par.truncated_snr_weight(level),
        lambda: par.sigmoid_weight(level),
        lambda: par.elbo_weight(level, par.log_normal()),
        lambda: par.convert_weight(1.0, level, source="x0", target="eps"),
    ):
        # eps from eps asks nothing of a level but that it is one
        with pytest.raises(TypeError, match="level must be a Level, got"):
            function()


def test_what_is_no_law_is_named():
    law, level = par.log_normal(), Level(0.5, 0.6, 0.4)
    for function, name in (
        (lambda: par.elbo_weight(level, None), "law"),
        (lambda: par.importance(None, [1.0, 2.0]), "base"),
        (lambda: par.importance_weight(None, law, 0.0), "law"),
        (lambda: par.importance_weight(law, None, 0.0), "base"),
    ):
        with pytest.raises(TypeError, match=f"^{name} must be a TimeLaw, got NoneType"):
            function()


@pytest.mark.parametrize("centre", [np.ones(3), np.ones((2, 1)), np.ones((1, 2)), math.nan, [1.0, math.inf]])
def test_centres_that_do_not_fit(centre):
    x, level = np.ones(2), Level(0.5, 0.6, 0.4)
    for function in (
        lambda: par.precondition(lambda y, c: y, centre=centre)(x, level),
        lambda: par.network_target(x, x, level, centre=centre),
    ):
        with pytest.raises(
            ValueError, match=r"centre must be finite|centre must broadcast to x of shape \(2,\), got shape"
        ):
            function()


def test_outputs_of_a_network_that_are_none():
    level = Level(0.5, 0.6, 0.4)
    assert par.precondition(lambda y, c: [0.0, 0.0])(np.ones(2), level).shape == (2,), "a list is NumPy's"
    for output in (None, "a", [None, None], np.ones(2) * 1j):
        with pytest.raises(TypeError, match=r"network\(y, c\) must be a real array of the library of x, got numpy"):
            par.precondition(lambda y, c, output=output: output)(np.ones(2), level)
