"""Schedules against definitions evaluated with 100 digits, on every backend, with the plausible slips beside them."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from conftest import make_backend
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp

from diffnum import schedules
from diffnum.schedules import Level, Schedule

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}

# In machine epsilons, relative: each result is a handful of correctly rounded operations. Measured maximum over all
# cases and times 24 (float64) and 19 (float32). In float64 the bound is 7e-15, far inside the promised 1e-12.
ULPS = 30
# Distance to the ends, as a fraction of the interval, down to 1e-12; float32 has no such neighbours of 1, but of 0.
NEAR = [1e-12, 1e-9, 1e-6, 1e-3]
INTERIOR = [0.013, 0.1, 0.25, 0.4, 0.5, 0.6180339, 0.75, 0.9, 0.987]

DIGITS = 100

SD_BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
DDPM_BETAS = np.linspace(1e-4, 0.02, 1000)
SHORT_BETAS = np.asarray([0.01, 0.05, 0.03, 0.2, 0.4, 0.6, 0.5, 0.3])


# -- the definitions, in mpmath ---------------------------------------------------------------------------------------


def from_alpha(alpha: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, Any]]:
    return lambda t: (alpha(t), mp.sqrt((1 - alpha(t)) * (1 + alpha(t))))


def mp_vp_linear(b0: float = 0.1, b1: float = 20.0) -> Callable:
    return from_alpha(lambda t: mp.exp(-(mp.mpf(b0) * t + (mp.mpf(b1) - mp.mpf(b0)) * t**2 / 2) / 2))


def mp_cosine(s: float) -> Callable:
    def phase(t: Any) -> Any:
        return mp.pi / 2 * (t + mp.mpf(s)) / (1 + mp.mpf(s))

    return from_alpha(lambda t: mp.cos(phase(t)) / mp.cos(phase(mp.mpf(0))))


def mp_sigmoid(start: float, end: float, tau: float) -> Callable:
    def o(t: Any) -> Any:
        return 1 / (1 + mp.exp(-(t * (mp.mpf(end) - mp.mpf(start)) + mp.mpf(start)) / mp.mpf(tau)))

    return from_alpha(lambda t: mp.sqrt((o(mp.mpf(1)) - o(t)) / (o(mp.mpf(1)) - o(mp.mpf(0)))))


@functools.cache
def table_log_snr(name: str) -> list[Any]:
    betas = {"sd": SD_BETAS, "ddpm": DDPM_BETAS, "short": SHORT_BETAS}[name]
    bar, out = mp.mpf(1), []
    for beta in betas:
        bar *= 1 - mp.mpf(float(beta))
        out.append(mp.log(bar / (1 - bar)) / 2)
    return out


def mp_betas(name: str) -> Callable:
    def level(t: Any) -> tuple[Any, Any]:
        lam = table_log_snr(name)
        n = len(lam)
        k = min(max(int(mp.ceil(t * n)), 2), n)  # row k, counted from 1, is the noisy end of the segment
        here = lam[k - 2] + (lam[k - 1] - lam[k - 2]) * (t * n - (k - 1))
        return vp_pair(here)

    return level


def vp_pair(lam: Any) -> tuple[Any, Any]:
    return 1 / mp.sqrt(1 + mp.exp(-2 * lam)), 1 / mp.sqrt(1 + mp.exp(2 * lam))


def flow_pair(lam: Any) -> tuple[Any, Any]:
    return 1 / (1 + mp.exp(-lam)), 1 / (1 + mp.exp(lam))


def ve_pair(lam: Any) -> tuple[Any, Any]:
    return mp.mpf(1), mp.exp(-lam)


PAIRS = {"vp": vp_pair, "flow": flow_pair, "ve": ve_pair}


def mp_shift(level: Callable, factor: float, power: int) -> Callable:
    """Ratio times factor, then alpha^power + sigma^power = 1."""

    def shifted(t: Any) -> tuple[Any, Any]:
        alpha, sigma = level(t)
        ratio = mp.mpf(factor) * sigma / alpha
        alpha = (1 + ratio**power) ** (-mp.mpf(1) / power)
        return alpha, ratio * alpha

    return shifted


def mp_zero_terminal(level: Callable, t0: float = 0.0, t1: float = 1.0) -> Callable:
    first, last = level(mp.mpf(t0))[0], level(mp.mpf(t1))[0]
    return from_alpha(lambda t: (level(t)[0] - last) * first / (first - last))


@dataclass(frozen=True)
class Case:
    """A schedule, its definition in mpmath, and what holds at its two ends."""

    id: str
    schedule: Schedule
    level: Callable
    ends: tuple[bool, bool]  # is sigma 0 at t_clean, is alpha 0 at t_noise


def cases() -> list[Case]:
    s = schedules
    vp, cos, cos8 = s.vp_linear(), s.cosine(), s.cosine(offset=0.008)
    sd, short = s.from_betas(SD_BETAS), s.from_betas(SHORT_BETAS)
    cut = s.truncate(cos8, t_clean=0.125, t_noise=0.875)
    return [
        Case("vp_linear", vp, mp_vp_linear(), (True, False)),
        Case("vp_constant", s.vp_linear(beta_min=3.0, beta_max=3.0), mp_vp_linear(3.0, 3.0), (True, False)),
        Case("cosine", cos, mp_cosine(0.0), (True, True)),
        Case("cosine_offset", cos8, mp_cosine(0.008), (True, True)),
        Case("cosine_one", s.cosine(offset=1.0), mp_cosine(1.0), (True, True)),
        Case("ve", s.ve(), lambda t: (mp.mpf(1), mp.mpf(0.002) * (80 / mp.mpf(0.002)) ** t), (False, False)),
        Case("edm", s.edm(), lambda t: (mp.mpf(1), t), (False, False)),
        Case("flow", s.rectified_flow(), lambda t: (1 - t, t), (True, True)),
        Case("sigmoid", s.sigmoid(), mp_sigmoid(-3.0, 3.0, 1.0), (True, True)),
        Case("sigmoid_late", s.sigmoid(start=0.0, end=3.0, tau=0.3), mp_sigmoid(0.0, 3.0, 0.3), (True, True)),
        Case("sigmoid_steep", s.sigmoid(start=-4.0, end=3.0, tau=0.1), mp_sigmoid(-4.0, 3.0, 0.1), (True, True)),
        Case("betas_sd", sd, mp_betas("sd"), (False, False)),
        Case("betas_ddpm", s.from_betas(DDPM_BETAS), mp_betas("ddpm"), (False, False)),
        Case("betas_short", short, mp_betas("short"), (False, False)),
        Case("shift_vp", s.shift(cos8, 4.0), mp_shift(mp_cosine(0.008), 4.0, 2), (True, True)),
        Case("shift_flow", s.shift(s.rectified_flow(), 3.0), mp_shift(lambda t: (1 - t, t), 3.0, 1), (True, True)),
        Case("shift_ve", s.shift(s.edm(), 0.5), lambda t: (mp.mpf(1), t / 2), (False, False)),
        Case("zero_vp", s.zero_terminal_snr(vp), mp_zero_terminal(mp_vp_linear()), (True, True)),
        Case("zero_sd", s.zero_terminal_snr(sd), mp_zero_terminal(mp_betas("sd"), 1 / 1000), (False, True)),
        Case("zero_short", s.zero_terminal_snr(short), mp_zero_terminal(mp_betas("short"), 1 / 8), (False, True)),
        Case("zero_cut", s.zero_terminal_snr(cut), mp_zero_terminal(mp_cosine(0.008), 0.125, 0.875), (False, True)),
        Case(
            "zero_cut_sigmoid",
            s.zero_terminal_snr(s.truncate(s.sigmoid(), t_noise=0.75)),
            mp_zero_terminal(mp_sigmoid(-3.0, 3.0, 1.0), 0.0, 0.75),
            (True, True),
        ),
        Case(
            "zero_cut_betas",  # the end lies inside a segment of the table
            s.zero_terminal_snr(s.truncate(short, t_noise=0.8125)),
            mp_zero_terminal(mp_betas("short"), 1 / 8, 0.8125),
            (False, True),
        ),
        Case(
            "zero_shift",
            s.zero_terminal_snr(s.shift(vp, 0.25)),
            mp_zero_terminal(mp_shift(mp_vp_linear(), 0.25, 2)),
            (True, True),
        ),
        Case(
            "zero_cut_zero",
            s.zero_terminal_snr(s.truncate(s.zero_terminal_snr(vp), t_noise=0.75)),
            mp_zero_terminal(mp_zero_terminal(mp_vp_linear()), 0.0, 0.75),
            (True, True),
        ),
    ]


with mp.workdps(DIGITS):
    CASES = cases()
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
BY_ID = {case.id: case for case in CASES}
# One of each kind for the slower libraries; NumPy runs all.
KINDS = ["vp_linear", "cosine", "cosine_offset", "ve", "edm", "flow", "sigmoid", "shift_vp", "shift_flow", "zero_short"]
COMPILED = ["vp_linear", "cosine_offset", "ve", "shift_flow", "sigmoid", "zero_short"]  # compiling costs seconds
KIND = pytest.mark.parametrize("case", [BY_ID[name] for name in KINDS], ids=lambda case: case.id)


def times(case: Case, dtype: str = "float64") -> np.ndarray:
    """Inner times, towards both ends, as numbers of `dtype`."""
    a, b = case.schedule.t_clean, case.schedule.t_noise
    w = np.asarray([*NEAR, *INTERIOR, *(1 - x for x in NEAR)])
    t = np.unique((a + (b - a) * w).astype(dtype))
    return t[(t > np.asarray(a, dtype)) & (t < np.asarray(b, dtype))]


@dataclass(frozen=True)
class Truth:
    """alpha, sigma, log-SNR, its slope, drift and diffusion at some times, to float64 from 100 digits."""

    alpha: np.ndarray
    sigma: np.ndarray
    log_snr: np.ndarray
    slope: np.ndarray
    drift: np.ndarray
    diffusion_squared: np.ndarray


@functools.cache
def truth(name: str, dtype: str) -> Truth:
    level = BY_ID[name].level
    rows = []
    with mp.workdps(DIGITS):
        for value in times(BY_ID[name], dtype):
            t = mp.mpf(float(value))
            h = mp.mpf(10) ** -40  # central difference: relative error 1e-40 or so at 100 digits, far from the ends
            (a0, s0), (alpha, sigma), (a1, s1) = level(t - h), level(t), level(t + h)
            drift = mp.log(a1 / a0) / (2 * h)
            slope = mp.log(a1 * s0 / (a0 * s1)) / (2 * h)
            # From the law of the variance, d(sigma^2)/dt = 2 f sigma^2 + g^2, not from the log-SNR.
            g2 = (s1 - s0) * (s1 + s0) / (2 * h) - 2 * drift * sigma**2
            rows.append([float(v) for v in (alpha, sigma, mp.log(alpha / sigma), slope, drift, g2)])
    return Truth(*np.asarray(rows).T)


def ulps(value: Any, exact: np.ndarray, dtype: str, scale: np.ndarray | None = None) -> float:
    """Largest error in machine epsilons, relative to `scale` (to the exact value by default)."""
    scale = np.abs(exact) if scale is None else scale
    return float(np.max(np.abs(np.asarray(value, dtype="float64") - exact) / (EPS[dtype] * scale + 1e-300)))


# -- accuracy ---------------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim(
    "schedules-level",
    "schedules-vp-linear",
    "schedules-cosine",
    "schedules-ve",
    "schedules-edm",
    "schedules-flow",
    "schedules-sigmoid",
    "schedules-betas",
    "schedules-shift",
    "schedules-zero-terminal",
)
def test_scales_and_log_snr(case, dtype):
    t, exact, schedule = times(case, dtype), truth(case.id, dtype), case.schedule
    level = schedule.level(t)
    assert ulps(level.alpha, exact.alpha, dtype) < ULPS
    assert ulps(level.sigma, exact.sigma, dtype) < ULPS
    assert ulps(level.log_snr, exact.log_snr, dtype, 1 + np.abs(exact.log_snr)) < ULPS
    for method, values in (("alpha", level.alpha), ("sigma", level.sigma), ("log_snr", level.log_snr)):
        assert np.array_equal(getattr(schedule, method)(t), values)


@EACH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-sde", "schedules-rate")
def test_drift_and_diffusion(case, dtype):
    t, exact, schedule = times(case, dtype), truth(case.id, dtype), case.schedule
    assert ulps(schedule.drift(t), exact.drift, dtype) < ULPS
    assert ulps(schedule.diffusion_squared(t), exact.diffusion_squared, dtype) < ULPS


@EACH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-level")
def test_round_trip(case, dtype):
    t, exact, schedule = times(case, dtype), truth(case.id, dtype), case.schedule
    back = schedule.time(schedule.log_snr(t))
    # Rounding log-SNR alone moves t by eps |log_snr / slope|: no inverse can do better.
    scale = t + (1 + np.abs(exact.log_snr)) / np.abs(exact.slope)
    assert ulps(back, t.astype("float64"), dtype, scale) < 4


@pytest.mark.parametrize("case", [c for c in CASES if not c.id.startswith(("ve", "shift_ve"))], ids=lambda c: c.id)
def test_round_trip_relative(case):
    t = times(case)
    np.testing.assert_allclose(case.schedule.time(case.schedule.log_snr(t)), t, rtol=1e-12, atol=0)


@EACH
@pytest.mark.claim("schedules-sde")
def test_wrong_derivatives_are_caught(case):
    t, exact, schedule = times(case), truth(case.id, "float64"), case.schedule
    full_log_snr = -(schedule.sigma(t) ** 2) * exact.slope  # log-SNR is only half of that
    assert ulps(full_log_snr, exact.diffusion_squared, "float64") > 1e12
    if schedule.geometry != "ve":
        assert ulps(-schedule.drift(t), exact.drift, "float64") > 1e12


def test_naive_formulas_fail_the_same_bounds():
    """The transcriptions that books print, in float32: each misses a bound that the library meets."""
    dtype = np.float32
    for name, naive in [
        ("cosine", lambda t: np.sqrt(1 - np.cos(dtype(np.pi / 2) * t) ** 2)),
        ("vp_linear", lambda t: np.sqrt(1 - np.exp(-t * (dtype(0.1) + dtype(9.95) * t)))),
    ]:
        t, exact = times(BY_ID[name], "float32"), truth(name, "float32")
        assert ulps(naive(t), exact.sigma, "float32") > 1000
    t = np.geomspace(1e-7, 1e-3, 50).astype(dtype)
    b = np.log1p(np.exp(-2 * schedules.vp_linear().log_snr(t)))
    other_root = (np.sqrt(dtype(0.01) + 2 * dtype(19.9) * b) - dtype(0.1)) / dtype(19.9)
    assert np.max(np.abs(other_root / t - 1)) > 1000 * np.max(np.abs(2 * b / (0.2 + 19.9 * t) / t - 1))
    assert np.cos(np.pi / 2 * 1.0) != 0.0
    near = 1 - 2.0**-40
    low, exact = schedules.vp_linear(), 2.0**-40 * 10 * schedules.vp_linear().alpha(1.0)
    assert abs(low.alpha(near) - low.alpha(1.0) - exact) / exact > 1e-6  # alpha - alpha_1 by subtraction
    assert abs(low._drop(np.asarray(near), 1.0) / (2 * low.alpha(1.0)) - exact) / exact < 1e-11


def test_difference_of_table_slopes_would_lose_digits():
    alpha_bar = np.cumprod(1 - SD_BETAS)
    lam = 0.5 * np.log(alpha_bar / (1 - alpha_bar))
    exact = np.asarray([float(v) for v in np.diff(np.asarray(table_log_snr("sd")))]) * 1000
    schedule = schedules.from_betas(SD_BETAS)
    middle = (np.arange(1, 1000) + 0.5) / 1000
    ours = -schedule.diffusion_squared(middle) / (2 * schedule.sigma(middle) ** 2)
    assert ulps(ours, exact, "float64") < ULPS
    assert ulps(np.diff(lam) * 1000, exact, "float64") > 10 * ULPS


# -- ends -------------------------------------------------------------------------------------------------------------


def jit(backend: Any) -> Callable:
    return sys.modules["jax"].jit if backend.name == "jax" else lambda function: function


def everything(schedule: Schedule, t: Any) -> dict[str, Any]:
    level = schedule.level(t)
    back = schedule.time(level.log_snr)
    scales = {"alpha": level.alpha, "sigma": level.sigma, "log_snr": level.log_snr, "t": back}
    return scales | {"drift": schedule.drift(t), "diffusion_squared": schedule.diffusion_squared(t)}


def check_ends(case: Case, t: np.ndarray, got: dict[str, np.ndarray]) -> None:
    """First and last element of each array in `got`, which are those of the two ends."""
    no_noise, no_signal = case.ends
    if no_noise:
        assert [got[name][0] for name in ("alpha", "sigma", "log_snr", "t")] == [1.0, 0.0, math.inf, t[0]]
    else:
        assert got["sigma"][0] > 0
        assert math.isfinite(got["log_snr"][0])
    if no_signal:
        assert [got[name][-1] for name in ("alpha", "sigma", "log_snr", "t")] == [0.0, 1.0, -math.inf, t[-1]]
        assert not np.signbit(got["alpha"][-1])
        assert (got["drift"][-1], got["diffusion_squared"][-1]) == (-math.inf, math.inf)
    else:
        assert got["alpha"][-1] > 0
        assert math.isfinite(got["log_snr"][-1])
        assert np.all(np.isfinite(got["drift"]))
        assert np.all(np.isfinite(got["diffusion_squared"]))


@EACH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-level", "schedules-zero-terminal")
def test_ends_are_exact(case, dtype):
    schedule = case.schedule
    t = np.asarray([schedule.t_clean, schedule.t_noise], dtype)
    check_ends(case, t, everything(schedule, t))
    at = schedule.level_at(np.asarray([math.inf, -math.inf], dtype))
    assert (at.alpha[0], at.sigma[0]) == (1.0, 0.0)
    assert (at.alpha[1], at.sigma[1]) == ((1.0, math.inf) if schedule.geometry == "ve" else (0.0, 1.0))
    assert not np.any(np.isnan(at.t))
    if case.id in {"vp_linear", "vp_constant", "ve", "edm", "betas_short"}:
        assert at.t[1] == math.inf


@pytest.mark.parametrize(
    "name,drift,diffusion",
    [
        ("vp_linear", -0.05, 0.1),
        ("cosine", 0.0, 0.0),
        ("cosine_offset", -0.01943, 0.03886),
        ("flow", -1.0, 0.0),
        ("edm", 0.0, 0.004),
        ("ve", 0.0, 2 * 0.002**2 * math.log(40000)),
    ],
)
@pytest.mark.claim("schedules-sde", "schedules-rate")
def test_published_values_at_the_clean_end(name, drift, diffusion):
    schedule = BY_ID[name].schedule
    assert float(schedule.drift(schedule.t_clean)) == pytest.approx(drift, rel=3e-4, abs=1e-300)
    assert float(schedule.diffusion_squared(schedule.t_clean)) == pytest.approx(diffusion, rel=3e-4, abs=1e-300)


@pytest.mark.claim("schedules-vp-linear", "schedules-betas")
def test_published_numbers():
    linear = schedules.vp_linear()
    assert float(linear.log_snr(1.0)) == pytest.approx(-5.02498, abs=5e-6)
    assert float(linear.alpha(1.0)) == pytest.approx(6.5716e-3, abs=5e-8)
    ddpm, sd = schedules.from_betas(DDPM_BETAS), schedules.from_betas(SD_BETAS)
    assert float(ddpm.alpha(1.0)) ** 2 == pytest.approx(4.0358e-5, abs=5e-10)
    for schedule, first, last in [(sd, 0.02917, 14.6146), (ddpm, 0.0100005, 157.407)]:
        ratio = [float(schedule.sigma(t) / schedule.alpha(t)) for t in (schedule.t_clean, schedule.t_noise)]
        assert ratio == [pytest.approx(first, rel=2e-4), pytest.approx(last, rel=4e-6)]


# -- geometry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", ["vp", "ve", "flow"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-geometry")
def test_level_at_follows_the_geometry(geometry, dtype, backend):
    schedule = {"vp": schedules.cosine(), "ve": schedules.edm(), "flow": schedules.rectified_flow()}[geometry]
    values = np.asarray([-36.0, -20.0, -3.0, -0.5, 0.0, 1e-3, 0.5, 3.0, 20.0, 36.0]).astype(dtype)
    lam = backend.asarray(values, dtype)
    level = schedule.level_at(lam)
    with mp.workdps(DIGITS):
        exact = [PAIRS[geometry](mp.mpf(float(v))) for v in values]
    for got, want in zip((level.alpha, level.sigma), np.asarray(exact, dtype=object).T, strict=True):
        assert backend.dtype(got) == dtype
        assert ulps(backend.numpy(got), want.astype("float64"), dtype) < 4
    np.testing.assert_array_equal(backend.numpy(level.t), backend.numpy(schedule.time(lam)))


@EACH
@pytest.mark.claim("schedules-geometry", "schedules-level")
def test_level_at_agrees_with_level(case):
    t = times(case)
    level = case.schedule.level(t)
    other = case.schedule.level_at(level.log_snr)
    scale = 1 + np.abs(level.log_snr)
    assert ulps(other.alpha, level.alpha, "float64", level.alpha * scale) < 8
    assert ulps(other.sigma, level.sigma, "float64", level.sigma * scale) < 8
    geometry = {
        "vp": level.alpha**2 + level.sigma**2,
        "ve": level.alpha,
        "flow": level.alpha + level.sigma,
    }[case.schedule.geometry]
    np.testing.assert_allclose(geometry, 1.0, rtol=1e-14)


@pytest.mark.claim("schedules-geometry")
def test_square_root_of_one_minus_square_fails():
    """sigma^2 = 1 - alpha^2 in float32 is 0 from log-SNR 8.7 on; the library keeps all digits."""
    lam = np.float32(9.0)
    level = schedules.cosine().level_at(lam)
    assert abs(level.sigma / math.exp(-9.0) - 1) < 1e-6
    assert np.sqrt(1 - level.alpha**2) == 0.0


def test_level_record():
    assert float(Level(0.1, 1.0, math.e).log_snr) == pytest.approx(-1.0, rel=1e-15)
    assert float(Level(0.0, 1, 0).log_snr) == math.inf
    assert float(Level(1.0, 0.0, 1.0).log_snr) == -math.inf
    assert Level(0.1, 2.0, 3.0) == (0.1, 2.0, 3.0)
    mixed = Level(0.0, np.asarray(1.0, dtype="float32"), np.asarray([0.5, 0.0], dtype="float32")).log_snr
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, [math.log(2), math.inf], rtol=1e-6)


# -- the stochastic equation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["vp_linear", "cosine_offset", "ve", "edm", "flow", "sigmoid", "betas_short", "zero_vp"]
)
@pytest.mark.claim("schedules-sde")
def test_moments_of_the_equation(name):
    """Mean and variance of dx = f x dt + g dw from t_clean on, integrated by SciPy, are those of the kernel."""
    schedule = BY_ID[name].schedule
    a, b = schedule.t_clean, schedule.t_clean + 0.9 * (schedule.t_noise - schedule.t_clean)

    def moments(t: float, state: np.ndarray) -> list[float]:
        f, g2 = float(schedule.drift(t)), float(schedule.diffusion_squared(t))
        return [f * state[0], 2 * f * state[1] + g2]

    start = [float(schedule.alpha(a)), float(schedule.sigma(a)) ** 2]
    step = 1 / 8 / 2 if name == "betas_short" else np.inf  # the slope jumps at the rows of the table
    end = solve_ivp(moments, (a, b), start, rtol=1e-9, atol=1e-14, max_step=step).y[:, -1]
    tolerance = 1e-3 if name == "betas_short" else 1e-7
    np.testing.assert_allclose(end, [schedule.alpha(b), schedule.sigma(b) ** 2], rtol=tolerance)


DIFFERENCE = 1e-6
"""Central differences with a relative step of 1e-6: their rounding error is some 1e-10 of the values over that step."""


@pytest.mark.claim("schedules-equivalence")
def test_one_trajectory_for_all_schedules():
    """d(x/alpha)/d(sigma/alpha) along the probability-flow equation depends on x/alpha and sigma/alpha only."""
    mean, std, y, ratio = 0.7, 1.3, -1.9, np.asarray([0.05, 0.3, 1.0, 2.5, 7.0])
    noise = (y - (mean * ratio**2 + y * std**2) / (std**2 + ratio**2)) / ratio  # (y - E[x_0 | y])/ratio, Gaussian data
    for case in CASES:
        schedule = case.schedule
        level = schedule.level_at(-np.log(ratio))
        inside = (level.t > schedule.t_clean) & (level.t < schedule.t_noise)
        if not np.any(inside):
            continue
        level = Level(*(v[inside] for v in level))
        f, g2 = schedule.drift(level.t), schedule.diffusion_squared(level.t)
        x = level.alpha * y
        score = (level.alpha * mean - x) / (level.alpha**2 * std**2 + level.sigma**2)
        x_dot = f * x - 0.5 * g2 * score
        # alpha and sigma by differences: with f and g^2 in their place the two would cancel, whatever they are
        step = 1e-6 * np.minimum(level.t - schedule.t_clean, schedule.t_noise - level.t)
        after, before = schedule.level(level.t + step), schedule.level(level.t - step)
        alpha_dot = (after.alpha - before.alpha) / (2 * step)
        ratio_dot = (after.sigma / after.alpha - before.sigma / before.alpha) / (2 * step)

        def slope(x_dot: np.ndarray, level: Level = level, x: np.ndarray = x) -> np.ndarray:
            return (x_dot - alpha_dot / level.alpha * x) / level.alpha / ratio_dot

        np.testing.assert_allclose(slope(x_dot), noise[inside], rtol=DIFFERENCE, atol=DIFFERENCE)
        for wrong in (f * x - g2 * score, f * x + 0.5 * g2 * score, 1.1 * f * x - 0.5 * g2 * score - 0.1 * x):
            assert np.max(np.abs(slope(wrong) - noise[inside])) > 0.01


@pytest.mark.claim("schedules-prior")
def test_price_of_the_prior():
    """The exact flow of N(0, s^2), started from N(0, prior_std^2): its std is off by (1 + (alpha s/sigma)^2)^(-1/2)."""
    s = 0.5
    x, w = np.polynomial.legendre.leggauss(16)
    for schedule in (schedules.ve(), schedules.vp_linear(), schedules.from_betas(SD_BETAS)):
        a, b = schedule.t_clean, schedule.t_noise
        assert schedule.prior_std == float(schedule.sigma(b))
        assert isinstance(schedule.prior_std, float)
        panels = a + (b - a) * np.linspace(0, 1, 1000)  # those of the table
        t = panels[:-1, None] + np.diff(panels)[:, None] * (x + 1) / 2
        level = schedule.level(t)
        variance = level.alpha**2 * s**2 + level.sigma**2
        growth = schedule.drift(t) + 0.5 * schedule.diffusion_squared(t) / variance
        final = schedule.prior_std * math.exp(-np.sum(growth * w * np.diff(panels)[:, None] / 2))
        target = math.hypot(float(schedule.alpha(a)) * s, float(schedule.sigma(a)))
        ratio = float(schedule.alpha(b)) * s / schedule.prior_std
        assert final / target - 1 == pytest.approx((1 + ratio**2) ** -0.5 - 1, rel=1e-4)
        assert final / target - 1 != pytest.approx((1 + ratio**2) ** -1 - 1, rel=1e-1)
    ratio = 0.5 / 80
    assert (1 + ratio**2) ** -0.5 - 1 == pytest.approx(-2.0e-5, abs=5e-7)


@pytest.mark.claim("schedules-prior")
def test_kullback_leibler_of_the_prior():
    """E KL(q(x_T | x_0) || N(0, p^2)) by quadrature of the definition."""
    schedule, s = schedules.vp_linear(), 1.7
    alpha, sigma = float(schedule.alpha(1.0)), float(schedule.sigma(1.0))
    for p in (schedule.prior_std, 1.0, 1.3):
        formula = ((alpha**2 * s**2 + sigma**2) / p**2 - 1 - math.log(sigma**2 / p**2)) / 2

        def divergence(x0: float, p: float = p) -> float:
            def integrand(x: float) -> float:
                q = math.exp(-(((x - alpha * x0) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
                return q * (math.log(p / sigma) + x**2 / (2 * p**2) - (x - alpha * x0) ** 2 / (2 * sigma**2))

            return quad(integrand, -12, 12)[0]

        mean = 0.5 * (divergence(s) + divergence(-s))  # two points with E x_0^2 = s^2
        assert mean == pytest.approx(formula, rel=1e-8, abs=1e-12)


# -- families ---------------------------------------------------------------------------------------------------------


@pytest.mark.claim("schedules-cosine")
def test_cosine_without_offset_is_a_tangent():
    t = np.linspace(0.01, 0.99, 21)
    np.testing.assert_allclose(schedules.cosine().log_snr(t), -np.log(np.tan(np.pi * t / 2)), atol=1e-14)
    assert np.max(np.abs(schedules.cosine(offset=0.008).log_snr(t) + np.log(np.tan(np.pi * t / 2)))) > 1e-3


@pytest.mark.claim("schedules-betas")
def test_table_rows():
    """Row k lies at t = (k + 1)/T, not at k/T."""
    schedule = schedules.from_betas(SD_BETAS)
    k = np.arange(1000)
    alpha_bar = np.cumprod(1 - SD_BETAS)
    np.testing.assert_allclose(schedule.alpha((k + 1) / 1000) ** 2, alpha_bar, rtol=1e-12)
    assert np.max(np.abs(schedule.alpha(k / 1000) ** 2 / alpha_bar - 1)) > 1e-3
    assert (schedule.t_clean, schedule.t_noise) == (0.001, 1.0)
    np.testing.assert_allclose(schedule.time(schedule.log_snr((k + 1) / 1000)), (k + 1) / 1000, rtol=1e-14)


@pytest.mark.claim("schedules-betas")
def test_table_is_linear_between_rows_and_beyond():
    schedule = schedules.from_betas(SHORT_BETAS)
    t = np.asarray([1 / 8, 1.5 / 8, 2 / 8, 6 / 8, 6.5 / 8, 7 / 8, 0.0, 1.25])
    lam = schedule.log_snr(t)
    assert lam[1] == pytest.approx((lam[0] + lam[2]) / 2, rel=1e-13)
    assert lam[4] == pytest.approx((lam[3] + lam[5]) / 2, rel=1e-13)
    assert lam[6] == pytest.approx(2 * lam[0] - lam[2], rel=1e-13)
    last = [float(schedule.log_snr(u)) for u in (0.875, 1.0)]
    assert lam[7] == pytest.approx(3 * last[1] - 2 * last[0], rel=1e-13)
    np.testing.assert_allclose(schedule.time(schedule.log_snr(t)), t, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-betas")
def test_slope_at_a_row_is_that_of_the_clean_side(dtype, backend):
    schedule = schedules.from_betas(SD_BETAS)
    rows = np.asarray([2, 3, 7, 100, 333, 999, 1000]) / 1000
    t = backend.asarray(rows, dtype)

    ratio = jit(backend)(lambda u: schedule.diffusion_squared(u) / schedule.sigma(u) ** 2)

    def slope(t: Any) -> np.ndarray:
        return backend.numpy(ratio(t))

    cleaner, noisier = (backend.asarray(rows + shift, dtype) for shift in (-4e-4, 4e-4))
    np.testing.assert_allclose(slope(t), slope(cleaner), rtol=32 * EPS[dtype])
    assert np.min(np.abs(slope(t) / slope(noisier) - 1)[:-1]) > 64 * EPS[dtype]


@pytest.mark.claim("schedules-shift")
def test_shift_of_a_flow_is_a_moebius_map():
    flow, t = schedules.rectified_flow(), np.linspace(0.02, 0.98, 25)
    for factor in (0.25, 3.0):
        shifted = schedules.shift(flow, factor)
        mapped = factor * t / (1 + (factor - 1) * t)
        np.testing.assert_allclose(shifted.sigma(t), mapped, rtol=1e-14)
        np.testing.assert_allclose(shifted.alpha(t), 1 - mapped, rtol=1e-13)
        np.testing.assert_allclose(shifted.drift(t), -factor / ((1 - t) * (1 + (factor - 1) * t)), rtol=1e-13)
        np.testing.assert_allclose(shifted.diffusion_squared(t), 2 * mapped**2 / (t * (1 - t)), rtol=1e-13)
        # The factor acts on half the log of the ratio of powers; on the whole of it, it would be its square root.
        full = flow.level_at(flow.log_snr(t) - 0.5 * math.log(factor))
        assert np.max(np.abs(full.sigma - mapped)) > 0.1


@EACH
@pytest.mark.claim("schedules-shift")
def test_shifts_compose(case):
    t = times(case)
    once, twice = schedules.shift(case.schedule, 6.0), schedules.shift(schedules.shift(case.schedule, 2.0), 3.0)
    for method in ("alpha", "sigma", "drift", "diffusion_squared"):
        np.testing.assert_allclose(getattr(once, method)(t), getattr(twice, method)(t), rtol=1e-13)
    np.testing.assert_allclose(once.log_snr(t), case.schedule.log_snr(t) - math.log(6.0), atol=1e-13)
    back = schedules.shift(schedules.shift(case.schedule, 0.2), 5.0)
    np.testing.assert_allclose(back.sigma(t), case.schedule.sigma(t), rtol=1e-13)
    assert (once.t_clean, once.t_noise) == (case.schedule.t_clean, case.schedule.t_noise)
    assert once.geometry == case.schedule.geometry


@pytest.mark.claim("schedules-zero-terminal")
def test_zero_terminal_against_the_published_algorithm():
    """Lin et al., algorithm 1, literally: shift so the last is zero, scale so the first is unchanged."""
    schedule = schedules.zero_terminal_snr(schedules.from_betas(SD_BETAS))
    root = np.sqrt(np.cumprod(1 - SD_BETAS))
    rescaled = (root - root[-1]) * root[0] / (root[0] - root[-1])
    t = np.arange(1, 1001) / 1000
    np.testing.assert_allclose(schedule.alpha(t), rescaled, rtol=1e-11, atol=1e-16)
    unscaled = root - root[-1]
    assert np.max(np.abs(schedule.alpha(t) - unscaled)) > 0.01
    assert schedule.prior_std == 1.0


@pytest.mark.claim("schedules-zero-terminal")
def test_zero_terminal_changes_nothing_twice():
    once = schedules.zero_terminal_snr(schedules.vp_linear())
    assert schedules.zero_terminal_snr(once) is once
    assert schedules.zero_terminal_snr(schedules.cosine()).name == "cosine(offset=0)"
    for schedule in (schedules.edm(), schedules.ve(), schedules.rectified_flow()):
        with pytest.raises(ValueError, match=r"schedule must be variance preserving.*got geometry"):
            schedules.zero_terminal_snr(schedule)


@pytest.mark.claim("schedules-zero-terminal")
def test_euler_in_time_cannot_start_at_zero_signal():
    schedule = schedules.zero_terminal_snr(schedules.vp_linear())
    assert float(schedule.drift(1.0)) == -math.inf
    near = 1 - 10.0 ** -np.arange(2, 12)
    np.testing.assert_allclose((1 - near) * schedule.drift(near), -1.0, rtol=0.06)  # f ~ -1/(1 - t)


@EACH
def test_truncate(case):
    old = case.schedule
    a, b = (old.t_clean + w * (old.t_noise - old.t_clean) for w in (0.25, 0.75))
    both = schedules.truncate(old, t_clean=a, t_noise=b)
    assert (both.t_clean, both.t_noise) == (a, b)
    t = np.linspace(a, b, 5)
    for method in ("alpha", "sigma", "log_snr", "drift", "diffusion_squared"):
        assert np.array_equal(getattr(both, method)(t), getattr(old, method)(t))
    assert both.prior_std == float(old.sigma(b))
    assert schedules.truncate(old, t_clean=a).t_noise == old.t_noise
    assert schedules.truncate(old, t_noise=b).t_clean == old.t_clean
    same = schedules.truncate(old)
    assert (same.t_clean, same.t_noise) == (old.t_clean, old.t_noise)
    for bad in ({"t_clean": b, "t_noise": a}, {"t_clean": a, "t_noise": a}, {"t_clean": old.t_clean - 0.01}):
        with pytest.raises(ValueError, match=r"t_(clean|noise) must be a number in"):
            schedules.truncate(old, **bad)
    with pytest.raises(ValueError, match="t_noise must be a number in"):
        schedules.truncate(old, t_noise=old.t_noise + 0.01)
    with pytest.raises(ValueError, match="t_clean must be a number in"):
        schedules.truncate(old, t_clean=old.t_noise)


@pytest.mark.parametrize(
    "schedule,name",
    [
        (schedules.vp_linear(beta_max=10.0), "vp_linear(beta_min=0.1, beta_max=10)"),
        (schedules.cosine(offset=0.008), "cosine(offset=0.008)"),
        (schedules.ve(), "ve(sigma_min=0.002, sigma_max=80)"),
        (schedules.edm(sigma_max=10), "edm(sigma_min=0.002, sigma_max=10)"),
        (schedules.sigmoid(), "sigmoid(start=-3, end=3, tau=1)"),
        (schedules.from_betas(SHORT_BETAS), "from_betas(8)"),
        (schedules.shift(schedules.rectified_flow(), 3), "shift(rectified_flow(), 3)"),
        (schedules.zero_terminal_snr(schedules.vp_linear()), "zero_terminal_snr(vp_linear(beta_min=0.1, beta_max=20))"),
        (schedules.truncate(schedules.edm(), t_clean=0.1), "truncate(edm(sigma_min=0.002, sigma_max=80), 0.1, 80)"),
    ],
)
def test_names(schedule, name):
    assert schedule.name == name
    assert repr(schedule).startswith(f"Schedule(name={name!r}, geometry={schedule.geometry!r}, t_clean=")
    assert "function" not in repr(schedule)


# -- array libraries --------------------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("schedules-level", "schedules-sde")
def test_backends(case, dtype, backend):
    """Type, shape, dtype, ends, and values within a few ulp of the truth on every library."""
    schedule, inner, exact = case.schedule, times(case, dtype), truth(case.id, dtype)
    run = jit(backend)(functools.partial(everything, schedule))
    values = np.asarray([schedule.t_clean, *inner, schedule.t_noise], dtype)
    t = backend.asarray(values, dtype)
    results = run(t)
    for name, value in results.items():
        assert backend.dtype(value) == dtype, name
        assert type(value) is type(t), name
        assert value.shape == t.shape, name
    got = {name: backend.numpy(value) for name, value in results.items()}
    check_ends(case, values, got)
    slack = 1 + np.abs(exact.log_snr)
    scale = {"log_snr": slack, "t": inner + slack / np.abs(exact.slope)}
    for name, value in got.items():
        want = inner.astype("float64") if name == "t" else getattr(exact, name)
        assert ulps(value[1:-1], want, dtype, scale.get(name)) < 2 * ULPS, name


@KIND
@pytest.mark.parametrize("library", ["numpy", "torch", "strict"])
def test_shapes(case, library):
    backend = make_backend(library)
    t = backend.asarray(times(case)[:4])
    flat = everything(case.schedule, t)
    for name, value in everything(case.schedule, backend.xp.reshape(t, (2, 2))).items():
        assert value.shape == (2, 2)
        np.testing.assert_allclose(backend.numpy(value).ravel(), backend.numpy(flat[name]), rtol=1e-15)
    for name, value in everything(case.schedule, t[2]).items():
        assert value.shape == ()
        np.testing.assert_allclose(backend.numpy(value), backend.numpy(flat[name])[2], rtol=1e-15)
    for value in everything(case.schedule, t[:0]).values():
        assert value.shape == (0,)
    assert case.schedule.level_at(flat["log_snr"][1]).sigma.shape == ()


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(1), np.asarray([0, 1])])
def test_numbers_and_integers(value):
    level = schedules.vp_linear().level(value)
    expected = np.float32 if isinstance(value, np.float32) else np.float64
    assert np.asarray(level.alpha).dtype == expected
    np.testing.assert_allclose(level.alpha**2 + level.sigma**2, 1.0, rtol=1e-6)


@pytest.mark.parametrize("case", [BY_ID[name] for name in COMPILED], ids=lambda case: case.id)
@pytest.mark.claim("schedules-sde")
def test_derivatives_by_jax(case):
    """Automatic derivatives of log(alpha) and log-SNR are the drift and -g^2/(2 sigma^2), under jit and vmap."""
    jax = pytest.importorskip("jax")
    schedule, t = case.schedule, times(case)
    t = t[(t > schedule.t_clean + 1e-7) & (t < schedule.t_noise - 1e-7)]

    @jax.jit
    @jax.vmap
    def slopes(u: Any) -> tuple[Any, ...]:
        lam, slope = jax.value_and_grad(schedule.log_snr)(u)
        at = schedule.level_at(lam)
        return (
            jax.grad(lambda v: jax.numpy.log(schedule.alpha(v)))(u),
            slope,
            jax.grad(schedule.time)(lam),
            at.t,
            at.sigma,
        )

    drift, slope, inverse, back, sigma = slopes(jax.numpy.asarray(t))
    np.testing.assert_allclose(drift, schedule.drift(t), rtol=1e-7, atol=1e-15)
    np.testing.assert_allclose(slope, -schedule.diffusion_squared(t) / (2 * schedule.sigma(t) ** 2), rtol=1e-7)
    np.testing.assert_allclose(inverse * slope, 1.0, rtol=1e-6)
    np.testing.assert_allclose(back, t, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(sigma, schedule.sigma(t), rtol=1e-12)


@pytest.mark.parametrize(
    "library,case",
    [("jax", BY_ID[name]) for name in COMPILED] + [("torch", case) for case in CASES],
    ids=lambda value: getattr(value, "id", value),
)
def test_derivatives_are_never_nan(library, case):
    """Ends included, where they are infinite in truth: zero or infinite, not NaN."""
    schedule = case.schedule
    ends = [schedule.t_clean, schedule.t_noise]
    lams = [-math.inf, -40.0, 0.0, 40.0, math.inf][1 if schedule.geometry == "ve" else 0 :]

    def of_t(t: Any) -> list[Any]:
        return [schedule.alpha(t), schedule.sigma(t), schedule.log_snr(t)]

    def of_lam(lam: Any) -> list[Any]:
        return list(schedule.level_at(lam))

    if library == "jax":
        jax = pytest.importorskip("jax")
        slopes = jax.jit(lambda t, lam: [jax.vmap(jax.jacrev(f))(u) for f, u in ((of_t, t), (of_lam, lam))])
        for slope in jax.tree.leaves(slopes(jax.numpy.asarray(ends), jax.numpy.asarray(lams))):
            assert not np.any(np.isnan(slope))
    else:
        torch = pytest.importorskip("torch")
        for function, values in ((of_t, ends), (of_lam, lams)):
            u = torch.asarray(values, dtype=torch.float64, requires_grad=True)
            for value in function(u):
                if value.requires_grad:
                    (slope,) = torch.autograd.grad(value, u, torch.ones_like(value), retain_graph=True)
                    assert not torch.any(torch.isnan(slope)), (function.__name__, slope)


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("geometry,slope", [("vp", 8**-0.5), ("flow", 0.25)])
@pytest.mark.claim("schedules-geometry")
def test_derivative_at_log_snr_zero(library, geometry, slope):
    """Through exp(-|.|) this derivative would be zero."""
    schedule = schedules.cosine() if geometry == "vp" else schedules.rectified_flow()

    def derivative(function: Callable) -> float:
        if library == "jax":
            jax = pytest.importorskip("jax")
            return float(jax.jit(jax.grad(function))(0.0))
        torch = pytest.importorskip("torch")
        u = torch.zeros((), dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(function(u), u)[0])

    assert derivative(lambda u: schedule.level_at(u).alpha) == pytest.approx(slope, rel=1e-12)
    assert derivative(lambda u: schedule.level_at(u).sigma) == pytest.approx(-slope, rel=1e-12)
    # dt/dlog_snr = -2 sigma^2/g^2 = -1/beta(t) where log-SNR is 0.
    assert derivative(schedules.vp_linear().time) == pytest.approx(-0.19035620361611547, rel=1e-9)


def test_derivatives_at_regular_ends():
    """alpha and sigma come from t, not through log-SNR, so their slopes survive where log-SNR is infinite."""
    jax = pytest.importorskip("jax")
    flow, cosine = schedules.rectified_flow(), schedules.cosine()
    for t in (0.0, 1.0):
        assert float(jax.grad(flow.alpha)(t)) == -1.0
        assert float(jax.grad(flow.sigma)(t)) == 1.0
    assert float(jax.grad(cosine.alpha)(1.0)) == pytest.approx(-math.pi / 2)
    assert float(jax.grad(cosine.sigma)(0.0)) == pytest.approx(math.pi / 2)
    through = jax.grad(lambda t: jax.nn.sigmoid(jax.numpy.log((1 - t) / t)))(1.0)
    assert not math.isfinite(through)  # the detour


# -- bad input --------------------------------------------------------------------------------------------------------


NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5))
RUBBISH = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.just(math.nan), st.just([1.0]), st.just(1j))


@pytest.mark.parametrize(
    "make,arguments",
    [
        (schedules.vp_linear, ("beta_min", "beta_max")),
        (schedules.cosine, ("offset",)),
        (schedules.ve, ("sigma_min", "sigma_max")),
        (schedules.edm, ("sigma_min", "sigma_max")),
        (schedules.sigmoid, ("start", "end", "tau")),
        (functools.partial(schedules.shift, schedules.cosine()), ("factor",)),
    ],
)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_rubbish_parameters(make, arguments, data):
    name = data.draw(st.sampled_from(arguments))
    value = data.draw(RUBBISH)
    with pytest.raises(ValueError, match=f"{name} must be a.*got"):
        make(**{name: value})


@pytest.mark.parametrize("argument", ["t_clean", "t_noise"])
@given(value=RUBBISH.filter(lambda v: v is not None))
@settings(max_examples=15, deadline=None)
def test_rubbish_ends(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be a number in .*got"):
        schedules.truncate(schedules.cosine(), **{argument: value})


@pytest.mark.parametrize(
    "make,bad,good",
    [
        (schedules.vp_linear, {"beta_min": 0.0}, {"beta_min": 1e-3}),
        (schedules.vp_linear, {"beta_max": 0.09}, {"beta_max": 0.1}),
        (schedules.vp_linear, {"beta_max": math.inf}, {"beta_max": 100}),
        (schedules.cosine, {"offset": -1e-9}, {"offset": 0}),
        (schedules.cosine, {"offset": 1.01}, {"offset": 1}),
        (schedules.ve, {"sigma_min": 0.0}, {"sigma_min": 1e-9}),
        (schedules.ve, {"sigma_max": 0.002}, {"sigma_max": 0.0021}),
        (schedules.edm, {"sigma_min": -1e-9}, {"sigma_min": 0.0}),
        (schedules.edm, {"sigma_max": 0.002}, {"sigma_max": 0.0021}),
        (schedules.sigmoid, {"tau": 0.0}, {"tau": 0.0751}),
        (functools.partial(schedules.sigmoid, tau=0.1), {"end": 5.01}, {"end": 5.0}),
        (schedules.sigmoid, {"end": -3.0}, {"end": -2.9}),
        (functools.partial(schedules.shift, schedules.cosine()), {"factor": 0.0}, {"factor": 1e-3}),
    ],
)
def test_limits_of_parameters(make, bad, good):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be"):
        make(**bad)
    assert make(**good).prior_std > 0


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_accepted_parameters_give_a_schedule(data):
    """Whatever the factory accepts is decreasing in log-SNR, exact at its ends, and free of NaN and warnings."""
    positive = st.floats(1e-3, 1e3)
    make = data.draw(
        st.sampled_from([schedules.vp_linear, schedules.cosine, schedules.ve, schedules.edm, schedules.sigmoid])
    )
    names = make.__kwdefaults__
    try:
        schedule = make(**{name: data.draw(positive) for name in names})
    except ValueError:
        return
    factor = data.draw(st.sampled_from([None, 0.1, 7.0]))
    schedule = schedule if factor is None else schedules.shift(schedule, factor)
    t = np.linspace(schedule.t_clean, schedule.t_noise, 13)
    lam = schedule.log_snr(t)
    # A steep schedule reaches a floating-point limit: alpha underflows to 0 or sigma to the spacing of 1.
    finite = lam[np.isfinite(lam)]
    assert np.all(np.diff(finite) < 0) or schedule.geometry != "ve"
    assert np.all(np.diff(finite) <= 0)
    assert not np.any(np.isnan(lam))
    assert np.all(schedule.diffusion_squared(t) >= 0)
    assert np.all(schedule.drift(t) <= 0)


@pytest.mark.parametrize(
    "betas", [[], [0.1], 0.1, [[0.1, 0.2]], [0.1, 0.0], [0.1, 1.0], [0.1, -0.1], [0.1, math.nan], [0.1, 1.2]]
)
def test_bad_betas(betas):
    with pytest.raises(ValueError, match="betas must be a sequence of at least two numbers"):
        schedules.from_betas(betas)


def test_two_betas_are_enough():
    two = schedules.from_betas([0.1, 0.2])
    np.testing.assert_allclose(two.alpha(np.asarray([two.t_clean, two.t_noise])) ** 2, [0.9, 0.72], rtol=1e-14)


def test_betas_that_leave_nothing():
    for betas in (np.full(866, 0.5), np.append(np.full(865, 0.5), 0.9)):  # log of the product: -600.3, -601.9
        with pytest.raises(
            ValueError, match=r"betas must leave a product of 1 - betas above exp\(-600\), got exp\(-60"
        ):
            schedules.from_betas(betas)
    assert schedules.from_betas(np.full(865, 0.5)).prior_std == 1.0  # -599.6
    assert float(schedules.from_betas(np.full(800, 0.5)).log_snr(1.0)) == pytest.approx(-400 * math.log(2))
    for betas in (["a", "b"], [0.1j, 0.2], [True, False]):
        with pytest.raises((TypeError, ValueError), match="betas"):
            schedules.from_betas(betas)


def test_betas_of_any_library(backend):
    schedule = schedules.from_betas(backend.asarray(SHORT_BETAS))
    assert float(schedule.alpha(1.0)) == float(BY_ID["betas_short"].schedule.alpha(1.0))


@pytest.mark.parametrize(
    "name,inside,outside",
    [
        ("vp_linear", [0.0, 1.5], [-1e-9]),
        ("cosine", [0.0, 1.0], [-1e-9, 1.0000001]),
        ("flow", [0.0, 1.0], [-1e-9, 1.0000001]),
        ("sigmoid", [0.0, 1.0], [-1e-9, 1.0000001]),
        ("ve", [-0.5, 1.5], []),
        ("edm", [0.0, 100.0], [-1e-9]),
        ("betas_sd", [0.0, 1.5], []),
        ("zero_sd", [0.001, 1.0], [0.0, 1.0000001]),
        ("shift_flow", [0.0, 1.0], [-1e-9, 1.0000001]),
        ("zero_cut", [0.125, 0.875], [0.12, 0.88]),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch", "strict"])
def test_domain(name, inside, outside, library):
    backend, schedule = make_backend(library), BY_ID[name].schedule
    methods = [getattr(schedule, m) for m in ("level", "alpha", "sigma", "log_snr", "drift", "diffusion_squared")]
    for method in methods:
        method(backend.asarray(inside))
        for bad in [*outside, math.nan, math.inf, -math.inf]:
            with pytest.raises(ValueError, match=r"t must be finite and in \[.*\] for .*, got"):
                method(backend.asarray([inside[0], bad]))
        with pytest.raises(ValueError, match=r", got -inf$"):  # the first offender
            method(backend.asarray([-math.inf, inside[0], math.nan]))


def test_domain_in_eager_jax():
    backend = make_backend("jax")
    with pytest.raises(ValueError, match=r"t must be finite and in \[0, 1\] for rectified_flow\(\), got 1\.5"):
        schedules.rectified_flow().sigma(backend.asarray([0.5, 1.5]))
    assert backend.numpy(schedules.rectified_flow().sigma(backend.asarray(0.5))) == 0.5


def test_times_outside_extend_the_formulas():
    """The noise may be raised above t_noise, as churn does, wherever the formula goes on."""
    for name in ("vp_linear", "ve", "edm", "betas_sd"):
        schedule = BY_ID[name].schedule
        level = schedule.level_at(schedule.log_snr(schedule.t_noise) - 0.3)
        assert level.t > schedule.t_noise
        assert float(schedule.log_snr(level.t)) == pytest.approx(float(level.log_snr), rel=1e-12)


def test_end_rounded_upwards_is_accepted():
    schedule = schedules.zero_terminal_snr(schedules.truncate(schedules.cosine(), t_noise=0.6))
    t = np.float32(0.6)
    assert float(t) > 0.6
    assert schedule.alpha(t) == 0.0


def test_bad_log_snr(backend):
    for method in (schedules.cosine().time, schedules.cosine().level_at):
        with pytest.raises(ValueError, match="log_snr must hold numbers"):
            method(backend.asarray([0.0, math.nan]))
    for bad in (1j, True, "a"):
        with pytest.raises(TypeError, match="log_snr must be real"):
            schedules.cosine().time(bad)
        with pytest.raises(TypeError, match="t must be real"):
            schedules.cosine().level(bad)


def test_tracing_skips_the_checks():
    jax = pytest.importorskip("jax")
    assert math.isnan(jax.jit(schedules.cosine().log_snr)(1.5))
    assert math.isnan(jax.jit(schedules.zero_terminal_snr(schedules.vp_linear()).log_snr)(1.5))


def test_records_are_frozen_and_compare_by_identity():
    schedule = schedules.cosine()
    with pytest.raises(AttributeError):
        schedule.t_noise = 2.0
    assert schedule == schedule  # noqa: PLR0124
    assert schedule != schedules.cosine()
    assert hash(schedule) != hash(schedules.cosine())


def test_only_variance_preserving_schedules_have_a_difference():
    with pytest.raises(NotImplementedError, match="variance-preserving"):
        schedules.edm()._drop(np.asarray(1.0), 2.0)


@pytest.mark.parametrize("wrong", ["a", None, 4, schedules.rectified_flow])
def test_things_that_are_no_schedule(wrong):
    for make in (lambda s: schedules.shift(s, 2.0), schedules.zero_terminal_snr, schedules.truncate):
        with pytest.raises(TypeError, match=f"schedule must be a Schedule, got {type(wrong).__name__}"):
            make(wrong)


@pytest.mark.claim("schedules-geometry")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_noise_beyond_the_largest_number_is_infinite(dtype):
    """sigma = exp(-lambda) overflows to its limit without a warning, and to nothing below it."""
    largest = float(np.log(np.finfo(dtype).max))
    for schedule in (schedules.edm(), schedules.ve(), schedules.shift(schedules.edm(), 3.0)):
        level = schedule.level_at(np.asarray([-1e5, -largest - 1.0, -np.inf, 1e5, np.inf], dtype=dtype))
        assert level.sigma.tolist() == [np.inf, np.inf, np.inf, 0.0, 0.0]
        assert level.alpha.tolist() == [1.0] * 5
        near = schedule.level_at(np.asarray([-largest + 0.01], dtype=dtype)).sigma
        np.testing.assert_allclose(near, np.exp(np.asarray([largest - 0.01], dtype=dtype)), rtol=0)
    assert schedules.edm().time(np.asarray([-1e5], dtype=dtype)).tolist() == [np.inf]


@pytest.mark.parametrize("operate", [lambda a, b: a * b, lambda a, b: b * a, lambda a, b: a - b, lambda a, b: b / a])
def test_a_level_is_no_array(backend, operate):
    """As a tuple of three it would broadcast: ``level * x`` is written in place of ``level.alpha * x``."""
    level = schedules.rectified_flow().level(0.5)
    for shape in (3, (3, 3)):
        with pytest.raises(TypeError):
            operate(level, backend.asarray(np.ones(shape)))


def test_signal_that_is_left_of_a_lopsided_sigmoid():
    """``alpha_1`` of a schedule that is cut, with start and end of different size: the hyperbolic cosine is even."""
    cut = schedules.truncate(schedules.sigmoid(start=0.0, end=3.0), t_noise=0.9)
    zero = schedules.zero_terminal_snr(cut)

    def alpha(t: float) -> mp.mpf:
        o = [1 / (1 + mp.exp(-mp.mpf(v))) for v in (0.0, 3.0, 3.0 * t)]
        return mp.sqrt((o[1] - o[2]) / (o[1] - o[0]))

    for t in (0.2, 0.5, 0.85):
        expected = (alpha(t) - alpha(0.9)) / (1 - alpha(0.9))
        assert abs(float(zero.alpha(t)) / float(expected) - 1.0) < 1e-13
        assert abs(float(zero.sigma(t)) / float(mp.sqrt(1 - expected**2)) - 1.0) < 1e-13
