"""Conversions between targets against the definitions in 50 digits, their limits, and trajectories that agree."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st

from diffnum import _targets, grids, oracles, paths, schedules
from diffnum import parameterization as par
from diffnum.schedules import Level, Schedule
from diffnum.solvers import ab2, ab4, heun

EPS = 2.0**-52

ROUNDING = 12 * EPS
"""Error of a conversion relative to |p x| + |q value|: a dozen roundings of the coefficients and the sum."""

TINY = 1e-30
"""Where the exact p is 0, the oracle's 50 digits leave something smaller than this."""

RATES = 8 * EPS
"""Relative error of the derivatives of alpha and sigma: those of the drift, and one rounding of t at an end."""

TRAJECTORY = {"float64": 1e-12, "float32": 2e-4}
"""Rounding of a conversion, 1/sigma at the clean end, times 16 steps."""

MISTAKE = 1e-3
"""A plausible mistake moves a value by more than this."""

TO = {"x0": par.to_x0, "eps": par.to_eps, "v": par.to_v, "score": par.to_score, "flow": par.to_flow}

SCHEDULES = {
    "cosine": schedules.cosine(),
    "cosine(s)": schedules.cosine(offset=0.008),
    "vp_linear": schedules.vp_linear(),
    "flow": schedules.rectified_flow(),
    "shifted": schedules.shift(schedules.rectified_flow(), 3.0),
    "edm": schedules.edm(),
    "ve": schedules.ve(),
    "zero": schedules.zero_terminal_snr(schedules.vp_linear()),
}
TIMES = {"edm": [0.002, 0.03, 1.0, 9.0, 80.0]}
INNER = [1e-6, 0.02, 0.3, 0.71, 0.98, 1.0 - 1e-6]
MIXTURE = oracles.mixture([0.3, 0.7], [[-1.0], [0.8]], [0.3, 0.4])

PAIRS = list(itertools.product(TO, TO))

CASES = [(name, t) for name in SCHEDULES for t in TIMES.get(name, INNER)]


# -- oracles ----------------------------------------------------------------------------------------------------------


def exact_scales(name: str, t: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """The pair (alpha, sigma) from the textbook formula of each schedule."""
    if name.startswith("cosine"):
        s = mp.mpf(0.008) if name.endswith("(s)") else mp.mpf(0)
        alpha = mp.cos(mp.pi / 2 * (t + s) / (1 + s)) / mp.cos(mp.pi / 2 * s / (1 + s))
        return alpha, mp.sqrt(1 - alpha**2)
    if name == "vp_linear":
        alpha = mp.exp(-(mp.mpf(0.1) * t + mp.mpf(19.9) * t**2 / 2) / 2)
        return alpha, mp.sqrt(1 - alpha**2)
    if name == "zero":
        last = exact_scales("vp_linear", mp.mpf(1))[0]
        alpha = (exact_scales("vp_linear", t)[0] - last) / (1 - last)
        return alpha, mp.sqrt(1 - alpha**2)
    if name == "flow":
        return 1 - t, t
    if name == "shifted":
        return (1 - t) / (1 + 2 * t), 3 * t / (1 + 2 * t)
    if name == "edm":
        return mp.mpf(1), t
    return mp.mpf(1), mp.mpf(0.002) * (mp.mpf(80) / mp.mpf(0.002)) ** t


@functools.cache
def exact_rates(name: str, t: float) -> tuple[mp.mpf, mp.mpf]:
    """Derivatives of both by a central difference in 60 digits: error 1e-32 here."""
    with mp.workdps(60):
        h = mp.mpf(10) ** -22
        ahead, behind = (exact_scales(name, mp.mpf(t) + s * h) for s in (1, -1))
        return (ahead[0] - behind[0]) / (2 * h), (ahead[1] - behind[1]) / (2 * h)


def definition(target: str, alpha: Any, sigma: Any, slopes: tuple) -> tuple[Any, Any]:
    """The a and b of target = a x0 + b eps, typed from the definition of each."""
    return {
        "x0": (1, 0),
        "eps": (0, 1),
        "v": (-sigma, alpha),
        "score": (0, -1 / sigma),
        "flow": slopes,
    }[target]


def exact_pq(name: str, level: Level, source: str, target: str) -> tuple[mp.mpf, mp.mpf]:
    """The p and q of target = p x + q source: solve for (x0, eps), 50 digits."""
    with mp.workdps(50):
        alpha, sigma = mp.mpf(float(level.alpha)), mp.mpf(float(level.sigma))
        slopes = exact_rates(name, float(level.t))
        system = mp.matrix([[alpha, sigma], list(definition(source, alpha, sigma, slopes))])
        row = mp.matrix([list(definition(target, alpha, sigma, slopes))])
        p, q = row * mp.inverse(system)
        return p, q


def close(name: str, level: Level, source: str, target: str, convert: Any = None) -> bool:
    """Whether a conversion is right to rounding on a few points."""
    p, q = exact_pq(name, level, source, target)
    schedule = SCHEDULES[name]
    convert = convert or (lambda value, x: TO[target](value, x, level, source=source, schedule=schedule))
    x, value = np.array([1.7, -0.3, 0.0, 2.1]), np.array([-0.6, 1.9, 1.1, 0.0])
    got = convert(value, x)
    want = np.array([float(p * mp.mpf(a) + q * mp.mpf(b)) for a, b in zip(x, value, strict=True)])
    size = float(abs(p)) * abs(x) + float(abs(q)) * abs(value)
    # what rounding the derivatives does to p, which may be a difference of two large terms
    slack = np.where(np.array("flow" in {source, target}), abs(x) * 8 * EPS * (1.0 + float(abs(q))), 0.0)
    return bool(np.all(abs(got - want) <= ROUNDING * size + slack + TINY))


# -- derivatives of the scales ----------------------------------------------------------------------------------------


@pytest.mark.claim("parameterization-wronskian")
@pytest.mark.parametrize("name,t", CASES)
def test_rates_are_the_derivatives(name, t):
    got = _targets.rates(SCHEDULES[name], np.asarray(t))
    want = exact_rates(name, t)
    # t itself is rounded: near an end its rounding over the distance to the end counts
    slack = EPS / min(t, abs(1 - t)) if name != "edm" else 0.0
    for a, b in zip(got, want, strict=True):
        assert abs(float(a) - float(b)) <= (RATES + slack) * float(abs(b))


@pytest.mark.claim("parameterization-wronskian")
@pytest.mark.parametrize("name,t", CASES)
def test_the_wronskian_is_the_slope_of_the_log_snr(name, t):
    schedule = SCHEDULES[name]
    level = schedule.level(t)
    slope = -schedule.diffusion_squared(t) / (2.0 * level.sigma**2)
    got = _targets.wronskian(level, schedule)
    np.testing.assert_allclose(got, -level.alpha * level.sigma * slope, rtol=1e-10 if t > 0.9 else 1e-13)
    if level.sigma < 0.99:
        assert abs(got + level.alpha * slope) > MISTAKE * got


ENDS = [
    ("cosine", 0.0, (0.0, np.pi / 2)),
    ("cosine", 1.0, (-np.pi / 2, 0.0)),
    ("flow", 0.0, (-1.0, 1.0)),
    ("flow", 1.0, (-1.0, 1.0)),
    ("shifted", 0.0, (-3.0, 3.0)),
    ("shifted", 1.0, (-1.0 / 3.0, 1.0 / 3.0)),
    ("edm", 0.0, (0.0, 1.0)),
    ("vp_linear", 0.0, (-0.05, np.inf)),
    ("cosine(s)", 0.0, (-np.pi / 2 / 1.008 * np.tan(np.pi / 2 * 0.008 / 1.008), np.inf)),
]


@pytest.mark.claim("parameterization-wronskian")
@pytest.mark.parametrize("name,t,want", ENDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rates_at_the_ends_are_limits(backend: Backend, name, t, want, dtype):
    got = _targets.rates(SCHEDULES[name], backend.asarray(t, dtype))
    for a, b in zip(got, want, strict=True):
        assert backend.dtype(a) == dtype
        np.testing.assert_allclose(backend.numpy(a), b, rtol=1e-15 if dtype == "float64" else 2e-6, atol=1e-6)


@pytest.mark.claim("parameterization-wronskian")
def test_the_rate_at_zero_terminal_snr_is_its_limit():
    alpha_dot, sigma_dot = _targets.rates(SCHEDULES["zero"], np.asarray(1.0))
    last = float(schedules.vp_linear().alpha(1.0))
    np.testing.assert_allclose(alpha_dot, -10.0 * last / (1.0 - last), rtol=1e-13)
    assert abs(sigma_dot) < 1e-12


def test_a_square_root_at_the_noisy_end_has_an_infinite_rate():
    alpha_dot, _ = _targets.rates(schedules.sigmoid(), np.asarray(1.0))
    assert alpha_dot == -np.inf


# -- conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("parameterization-targets", "parameterization-halves")
@pytest.mark.parametrize("name,t", CASES)
def test_every_conversion_is_the_solution_of_the_definitions(name, t):
    level = SCHEDULES[name].level(t)
    for source, target in itertools.product(TO, TO):
        assert close(name, level, source, target), (source, target)


@pytest.mark.claim("parameterization-halves")
@pytest.mark.parametrize(
    "source,wrong",
    [
        ("v", lambda v, x, a, s: a * x - s * v),  # right where variance is preserved only
        ("v", lambda v, x, a, s: (a * x + s * v) / (a**2 + s**2)),  # the other sign of v
        ("eps", lambda e, x, a, s: x - s * e),  # alpha forgotten
        ("score", lambda e, x, a, s: (x + s * e) / a),  # sigma for its square
        ("score", lambda e, x, a, s: (x - s**2 * e) / a),  # the sign
        ("flow", lambda u, x, a, s: x + s * u),  # time towards the data
    ],
)
def test_plausible_mistakes_fail(source, wrong):
    level = SCHEDULES["flow"].level(0.3)
    a, s = level.alpha, level.sigma
    assert not close("flow", level, source, "x0", lambda value, x: wrong(value, x, a, s))
    right = {"v": lambda v, x: (a * x - s * v) / (a**2 + s**2), "flow": lambda u, x: x - s * u}
    if source in right:
        assert close("flow", level, source, "x0", right[source])


@pytest.mark.claim("parameterization-targets", "parameterization-halves")
@settings(max_examples=60)
@given(
    name=st.sampled_from(["cosine", "flow", "shifted", "edm", "ve"]),
    place=st.floats(-6.0, 6.0),
    seed=st.integers(0, 999),
)
def test_conversions_form_a_groupoid(name, place, seed):
    """Compositions and inverses, to rounding relative to what the values in between amplify."""
    schedule = SCHEDULES[name]
    level = schedule.level_at(place)
    x0, eps = np.random.default_rng(seed).standard_normal((2, 7))
    x = level.alpha * x0 + level.sigma * eps
    values = {t: TO[t](eps, x, level, source="eps", schedule=schedule) for t in TO}
    amplification = np.exp(2 * abs(place)) * 10
    for s, m, t in itertools.product(TO, TO, TO):
        middle = TO[m](values[s], x, level, source=s, schedule=schedule)
        end = TO[t](middle, x, level, source=m, schedule=schedule)
        scale = np.max(abs(values[t])) + 1.0
        assert np.max(abs(end - values[t])) <= 40 * EPS * amplification * scale, (s, m, t)
    assert np.all(TO["v"](values["v"], x, level, source="v") == values["v"])


# -- ends -------------------------------------------------------------------------------------------------------------


NOISE = {"cosine": 1.0, "flow": 1.0, "shifted": 1.0, "zero": 1.0}
CLEAN = {"cosine": 0.0, "flow": 0.0, "shifted": 0.0, "edm": 0.0}


@pytest.mark.claim("parameterization-halves")
@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("source,target", PAIRS)
def test_at_pure_noise_what_is_determined_is_right_and_the_rest_raises(name, source, target):
    schedule = SCHEDULES[name]
    level = schedule.level(NOISE[name])
    x0, eps = np.array([0.4, -1.3]), np.array([1.1, 0.2])
    slopes = _targets.rates(schedule, level.t)
    value, want = (c[0] * x0 + c[1] * eps for c in (definition(k, 0.0, 1.0, slopes) for k in (source, target)))
    lost = source in {"eps", "score"} and target in {"x0", "v", "flow"}
    if lost:
        with pytest.raises(ValueError, match="alpha > 0"):
            TO[target](value, eps, level, source=source, schedule=schedule)
    else:
        got = TO[target](value, eps, level, source=source, schedule=schedule)
        # x0 comes from the flow velocity divided by the slope of alpha, 0.066 on `zero`
        np.testing.assert_allclose(got, want, atol=1e-13)


@pytest.mark.claim("parameterization-halves")
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("source,target", PAIRS)
def test_at_clean_data_what_is_determined_is_right_and_the_rest_raises(name, source, target):
    schedule = SCHEDULES[name]
    level = schedule.level(CLEAN[name])
    if source == "score":  # the score of a pair with eps != 0 is infinite there: the next test
        return
    x0, eps = np.array([0.4, -1.3]), np.array([1.1, 0.2])
    slopes = _targets.rates(schedule, level.t)
    values = {"x0": x0, "eps": eps, "v": eps, "flow": slopes[0] * x0 + slopes[1] * eps}
    value = values[source]
    lost = (source == "x0" and target != "x0") or target == "score"
    if lost:
        with pytest.raises(ValueError, match="sigma > 0"):
            TO[target](value, x0, level, source=source, schedule=schedule)
        return
    got = TO[target](value, x0, level, source=source, schedule=schedule)
    np.testing.assert_allclose(got, values[target], atol=1e-14)


@pytest.mark.claim("parameterization-halves")
def test_a_finite_score_at_clean_data_means_no_noise():
    level = Level(0.0, 0.5, 0.0)
    assert par.to_eps(np.array([3.0]), np.array([1.0]), level, source="score") == 0.0
    assert par.to_x0(np.array([3.0]), np.array([1.0]), level, source="score") == 2.0
    assert par.to_score(np.array([3.0]), np.array([1.0]), level, source="score") == 3.0


def test_an_infinite_velocity_raises():
    schedule = schedules.vp_linear()
    with pytest.raises(ValueError, match=r"flow velocity .* is finite"):
        par.to_flow(np.ones(2), np.ones(2), schedule.level(0.0), source="eps", schedule=schedule)
    with pytest.raises(ValueError, match=r"flow velocity .* is finite"):
        par.to_x0(np.ones(2), np.ones(2), schedules.sigmoid().level(1.0), source="flow", schedule=schedules.sigmoid())


# -- denoisers --------------------------------------------------------------------------------------------------------


def network(target: str, data: Any, schedule: Schedule) -> Any:
    """A network that predicts `target` exactly."""
    return lambda x, level: TO[target](data.denoise(x, level), x, level, source="x0", schedule=schedule)


def denoisers(data: Any, schedule: Schedule) -> dict[str, Any]:
    """One denoiser for each target."""
    nets = {t: network(t, data, schedule) for t in TO}
    return {
        "x0": nets["x0"],
        "eps": par.from_eps(nets["eps"]),
        "v": par.from_v(nets["v"]),
        "score": par.from_score(nets["score"]),
        "flow": par.from_flow(nets["flow"], schedule),
    }


@pytest.mark.claim("parameterization-halves")
@pytest.mark.parametrize("name,solver", [("cosine", heun), ("flow", ab2), ("edm", ab2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_targets_give_the_same_trajectory(backend: Backend, name, solver, dtype):
    if backend.name == "jax" and name == "edm":
        pytest.skip("twice is enough where each run is compiled")
    schedule = SCHEDULES[name]
    start, stop = (20.0, 0.05) if name == "edm" else (0.95, 0.05)
    schedule = schedules.truncate(schedule, t_noise=start, t_clean=stop)
    path = paths.velocity(schedule, grids.uniform_angle(schedule, 12), sigma_data=0.8)
    each = list(denoisers(MIXTURE, schedule).values())

    def denoise(x, level):
        return backend.xp.stack([d(x[i, ...], level) for i, d in enumerate(each)])

    x = np.array([[-1.1], [0.2], [0.9]]) * float(schedule.prior_std)
    got = backend.numpy(solver(denoise, backend.asarray(np.stack([x] * len(each)), dtype), path))
    assert np.max(abs(got - got[0])) <= TRAJECTORY[dtype]
    assert np.max(abs(got[0] - x)) > 0.1


@pytest.mark.claim("parameterization-halves")
@pytest.mark.parametrize("name", ["cosine", "flow"])
def test_v_and_flow_start_at_pure_noise(name):
    schedule = SCHEDULES[name]
    path = paths.velocity(schedule, grids.uniform_angle(schedule, 12))
    nets = {t: network(t, MIXTURE, schedule) for t in ("v", "flow")}
    want = ab2(MIXTURE.denoise, np.array([[0.3], [1.2]]), path)
    for denoise in (par.from_v(nets["v"]), par.from_flow(nets["flow"], schedule)):
        np.testing.assert_allclose(ab2(denoise, np.array([[0.3], [1.2]]), path), want, atol=1e-13)
    with pytest.raises(ValueError, match="alpha > 0 to get x0 from eps"):
        ab2(par.from_eps(lambda x, level: x), np.array([[0.3], [1.2]]), path)


@pytest.mark.claim("parameterization-halves")
def test_a_stage_converted_at_the_level_of_its_step_is_seen():
    """The corrector of Heun's method must convert at its own level; one public sampler used the first one for v."""
    flow = schedules.truncate(SCHEDULES["flow"], t_noise=0.9, t_clean=0.1)
    grid = grids.uniform(flow, 16)
    x = np.array([[0.3], [1.2]])
    net = network("v", MIXTURE, flow)

    def by_hand(x, wrong):
        for t, s in itertools.pairwise(grid):
            here, there = flow.level(t), flow.level(s)
            d = par.from_v(net)(x, here)
            u = (x - d) / here.sigma
            ahead = x + (s - t) * u
            d2 = par.to_x0(net(ahead, there), ahead, here if wrong else there, source="v")
            x = x + (s - t) * (u + (ahead - d2) / there.sigma) / 2.0
        return x

    fine = ab4(MIXTURE.denoise, x, paths.x0(flow, grids.uniform(flow, 200)))
    assert np.max(abs(by_hand(x, wrong=False) - fine)) < 0.005
    assert np.max(abs(by_hand(x, wrong=True) - fine)) > 0.015


# -- libraries, dtypes, transformations -------------------------------------------------------------------------------


@pytest.mark.parametrize("source,target", PAIRS)
@pytest.mark.parametrize("dtype,rtol", [("float64", 1e-14), ("float32", 3e-6)])
def test_every_library_and_dtype(backend: Backend, source, target, dtype, rtol):
    schedule = SCHEDULES["shifted"]
    x, value = np.array([1.7, -0.3, 0.5]), np.array([-0.6, 1.9, 1.1])
    want = TO[target](value, x, schedule.level(0.4), source=source, schedule=schedule)
    for t in (backend.asarray(0.4, dtype), 0.4):
        level = schedule.level(t)
        got = TO[target](
            backend.asarray(value, dtype), backend.asarray(x, dtype), level, source=source, schedule=schedule
        )
        assert backend.dtype(got) == dtype
        np.testing.assert_allclose(backend.numpy(got), want, rtol=rtol, atol=rtol)


def test_half_precision_is_computed_in_single(backend: Backend):
    if backend.name not in {"jax", "torch"}:
        pytest.skip("bfloat16 is an extension")
    x, value = np.array([1.5, -0.25]), np.array([1.25, 0.5])
    got = par.to_eps(
        backend.asarray(value, "bfloat16"), backend.asarray(x, "bfloat16"), Level(0.1, 0.9, 0.3), source="x0"
    )
    assert backend.dtype(got) == "bfloat16"
    want = (x - 0.9 * value) / 0.3
    np.testing.assert_allclose(backend.numpy(got), want, rtol=2.0**-8)


def test_levels_with_one_entry_for_each_sample(backend: Backend):
    """Entries go with the first axes of x, also where a later axis has the same length."""
    flow = SCHEDULES["flow"]
    rng = np.random.default_rng(0)
    x, value = rng.standard_normal((2, 3, 3, 3))
    t = np.array([0.2, 0.5, 0.9])
    want = np.stack(
        [par.to_x0(v, y, flow.level(s), source="flow", schedule=flow) for v, y, s in zip(value, x, t, strict=True)]
    )
    got = par.to_x0(
        backend.asarray(value), backend.asarray(x), flow.level(backend.asarray(t)), source="flow", schedule=flow
    )
    np.testing.assert_allclose(backend.numpy(got), want, rtol=1e-14)
    with pytest.raises(ValueError, match="first axes of x"):
        par.to_x0(value[:2], x[:2], flow.level(t), source="v")
    with pytest.raises(ValueError, match="first axes of x"):
        par.to_x0(value[0, 0, 0], x[0, 0, 0], flow.level(t), source="v")


def test_jit_grad_vmap():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    flow = SCHEDULES["flow"]

    def value(t, x):
        return par.to_x0(jnp.sin(x), x, flow.level(t), source="flow", schedule=flow)

    x, t = jnp.array([0.3, -1.1]), jnp.array([0.0, 0.4, 1.0])

    @jax.jit
    def everything(t):
        slope = jax.vmap(jax.grad(lambda t: value(t, x).sum()))(t)
        # nothing raises while tracing: what is not determined is not finite
        return jax.vmap(value, (0, None))(t, x), slope, par.to_x0(x, x, flow.level(t[2]), source="eps")

    got, slope, lost = everything(t)
    np.testing.assert_allclose(got, x - t[:, None] * jnp.sin(x), atol=1e-15)
    np.testing.assert_allclose(slope, -jnp.sin(x).sum() * jnp.ones(3), atol=1e-12)
    assert not np.any(np.isfinite(lost))


def test_torch_derivatives():
    torch = pytest.importorskip("torch")
    flow = SCHEDULES["flow"]
    t = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    u = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    par.to_x0(u, torch.ones(2, dtype=torch.float64), flow.level(t), source="flow", schedule=flow).sum().backward()
    np.testing.assert_allclose(t.grad, -5.0, rtol=1e-14)
    np.testing.assert_allclose(u.grad, -0.4, rtol=1e-14)


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input():
    x, level = np.ones(3), Level(0.3, 0.7, 0.3)
    with pytest.raises(ValueError, match=r"source must be one of .*, got 'epsilon'"):
        par.to_x0(x, x, level, source="epsilon")
    with pytest.raises(
        TypeError, match="schedule must be a Schedule where the flow velocity is involved, got NoneType"
    ):
        par.to_x0(x, x, level, source="flow")
    with pytest.raises(ValueError, match=r"value must have the shape of x, \(3,\), got \(2,\)"):
        par.to_x0(x[:2], x, level, source="v")
    with pytest.raises(ValueError, match="level must be a level of the schedule"):
        par.to_x0(x, x, Level(0.3, 0.8, 0.6), source="flow", schedule=SCHEDULES["flow"])
    with pytest.raises(ValueError, match="level must be a level of the schedule"):
        par.to_x0(x, x, Level(0.3, 0.7, 0.71), source="flow", schedule=SCHEDULES["flow"])
    with pytest.raises(TypeError, match="x must be real"):
        par.to_x0(x, x > 0, level, source="v")
    with pytest.raises(TypeError, match="value must be a real array"):
        par.to_x0(x * 1j, x, level, source="v")
    with pytest.raises(ValueError, match=r"network\(x, level\) must have the shape of x"):
        par.from_v(lambda x, level: x[:1])(x, level)


@given(alpha=st.floats(-2.0, 2.0), sigma=st.floats(-2.0, 2.0))
def test_no_level_has_these_scales(alpha, sigma):
    right = alpha >= 0 and sigma >= 0 and max(alpha, sigma) > 0
    if right:
        par.to_x0(np.ones(1), np.ones(1), Level(0.0, alpha, sigma), source="x0")
    else:
        with pytest.raises(ValueError, match="level must have finite alpha, sigma >= 0, not both zero"):
            par.to_x0(np.ones(1), np.ones(1), Level(0.0, alpha, sigma), source="x0")


@pytest.mark.parametrize("scales", [(np.nan, 1.0), (1.0, np.inf), (0.0, 0.0)])
def test_scales_that_are_no_numbers(scales):
    with pytest.raises(ValueError, match="level must have finite alpha"):
        par.to_v(np.ones(1), np.ones(1), Level(0.0, *scales), source="x0")
