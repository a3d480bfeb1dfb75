"""Paths against quadrature of their kernels, the equations they come from, and everything that must follow."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.calculus.quadrature import GaussLegendre
from scipy.integrate import quad, solve_ivp
from scipy.stats import norm

from diffnum import grids, oracles, paths, schedules
from diffnum._backend import hypot, namespace
from diffnum._guarded import log_cosine, log_quotient
from diffnum._quadrature import moments as smooth_moments
from diffnum._quadrature import power_moments
from diffnum.paths import Path
from diffnum.schedules import Level, Schedule
from diffnum.solvers import (
    HEUN,
    MIDPOINT,
    RUNGE_KUTTA_3,
    Table,
    ab1,
    ab2,
    ab3,
    ab4,
    adams_bashforth,
    ddim,
    runge_kutta,
    solve,
)

EPS = 2.0**-52

ROUNDING = 16 * EPS
"""Relative error of P, N and the moments in float64, when log-SNR is exact: a dozen roundings."""

NODES = 48 * EPS
"""The same for moments by quadrature: nodes and weights have a few roundings, powers up to 8 and 40 multiply them."""

BACKENDS = 1e-13
"""Libraries differ by a few roundings of exp, log and atan2 on numbers of size 10."""

SINGLE = 2e-5
"""JAX computes a float32 grid in float32: 2^-24 over the shortest step, .01."""

MISTAKE = 1e-6
"""A plausible mistake changes each value by more than this."""

EXACT = 1e-12
"""Exactness of a solution on Gaussian data: rounding times the extrapolation of order 4 on the grids used."""

ORDER = 0.1
"""Distance of a measured slope from the order, at the numbers of steps used."""

FLOW, VP, VE = schedules.rectified_flow(), schedules.cosine(), schedules.edm()
SCHEDULES = {"flow": FLOW, "vp": VP, "ve": VE}
MIXTURE = oracles.mixture([0.3, 0.7], [[-1.0], [0.8]], [0.3, 0.4])
X = np.asarray([[-1.2], [0.1], [0.9]])


# -- oracles ----------------------------------------------------------------------------------------------------------

DIGITS = 26

RULE = GaussLegendre(mp.mp).calc_nodes(4, 4 * DIGITS)
"""24 nodes and weights on (-1, 1): 26 digits on the panels below, where an integrand falls by exp(-25) at most."""


def integrate(f: Any, length: mp.mpf, rate: float = 1.0) -> list[mp.mpf]:
    """Integrals from 0 to `length` of the components of f, which decay like exp(-rate y)."""
    ends = [mp.mpf(e) / rate for e in (0, 1, 3, 8, 16, 30, 50, 75) if e < rate * length]
    ends = ends if rate * length > 75 else [*ends, length]
    total = [mp.mpf(0)] * len(f(ends[0]))
    for a, b in itertools.pairwise(ends):
        for x, w in RULE:
            total = [t + (b - a) / 2 * w * y for t, y in zip(total, f((a + b + x * (b - a)) / 2), strict=True)]
    return total


class Step(NamedTuple):
    """P, N and four moments of one step."""

    keep: mp.mpf
    noise: mp.mpf
    moments: list[mp.mpf]


def log_ratio(a: tuple, b: tuple) -> mp.mpf:
    """Increase of log-SNR."""
    return mp.log(b[0] * a[1] / (b[1] * a[0])) if a[0] and b[1] else mp.inf


def reference_x0(a: tuple, b: tuple, eta: float, *, ratio: bool) -> Step:
    """From dy = ((1 + eta^2) e^lambda D - eta^2 y) dlambda + eta sqrt(2) dW, y = x/sigma; z counts from the end."""
    h, e2 = log_ratio(a, b), mp.mpf(eta) ** 2
    q = mp.exp(-h)

    def kernel(z: mp.mpf) -> list[mp.mpf]:
        place = (mp.exp(-z) - q) / (1 - q) if ratio else 1 - z / h
        value = b[1] * (1 + e2) * (b[0] / b[1]) * mp.exp(-z) * mp.exp(-e2 * z)
        return [value * place**j for j in range(4)]

    variance = integrate(lambda z: [2 * e2 * mp.exp(-2 * e2 * z)], h, 2 * e2)[0] if e2 else mp.mpf(0)
    keep = b[1] / a[1] * mp.exp(-e2 * h) if e2 else b[1] / a[1]
    return Step(keep, b[1] * mp.sqrt(variance), integrate(kernel, h, 1 + e2))


def reference_noise(a: tuple, b: tuple, *, ratio: bool) -> Step:
    """From d(x/alpha) = -exp(-lambda) eps dlambda; z is distance from the start."""
    h = log_ratio(a, b)

    def kernel(z: mp.mpf) -> list[mp.mpf]:
        place = mp.expm1(-z) / mp.expm1(-h) if ratio else z / h
        return [-b[0] * (a[1] / a[0]) * mp.exp(-z) * place**j for j in range(4)]

    return Step(b[0] / a[0], mp.mpf(0), integrate(kernel, h))


def reference_velocity(a: tuple, b: tuple, eta: float, sd: float) -> Step:
    """From du = ((1 + eta^2) v + eta^2 tan(theta) u) dtheta + eta sqrt(2 tan(theta)) dW; pi/2 - theta = w_b exp(-y)."""
    e2, sd = mp.mpf(eta) ** 2, mp.mpf(sd)
    n = [mp.sqrt((alpha * sd) ** 2 + sigma**2) for alpha, sigma in (a, b)]
    start, end = (mp.atan2(alpha * sd, sigma) for alpha, sigma in (a, b))
    length = mp.log(end / start) if start else mp.inf

    def kernel(y: mp.mpf) -> list[mp.mpf]:
        x = end * mp.exp(-y)
        place, grown = (x - start) / (end - start), mp.sin(x) / mp.sin(end)
        return [-n[1] * (1 + e2) * grown**e2 * x * place**j for j in range(4)]

    def diffusion(y: mp.mpf) -> list[mp.mpf]:
        x = end * mp.exp(-y)
        return [2 * e2 / mp.tan(x) * (mp.sin(x) / mp.sin(end)) ** (2 * e2) * x]

    variance = integrate(diffusion, length, 2 * e2)[0] if e2 else mp.mpf(0)
    grown = (a[0] / n[0]) / (b[0] / n[1])
    keep = n[1] / n[0] * (grown**e2 if e2 else 1)
    return Step(keep, n[1] * mp.sqrt(variance), integrate(kernel, length, 1 + e2))


def at_log_snr(geometry: str, log_snr: float) -> tuple[float, float]:
    """(alpha, sigma) in plain floats."""
    if geometry == "ve":
        return 1.0, math.exp(-log_snr)
    p, q = 1 / (1 + math.exp(-2 * log_snr)), 1 / (1 + math.exp(2 * log_snr))
    return (
        (math.sqrt(p), math.sqrt(q))
        if geometry == "vp"
        else (1 / (1 + math.exp(-log_snr)), 1 / (1 + math.exp(log_snr)))
    )


def around(geometry: str, middle: float, h: float) -> tuple[tuple[float, float], tuple[float, float]]:
    return at_log_snr(geometry, middle - h / 2), at_log_snr(geometry, middle + h / 2)


NOISE_ONLY = (0.0, 1.0)
PAIRS = [
    around("flow", 0.3, 1e-8),
    around("vp", -4.0, 0.01),
    around("vp", 2.0, 0.3),
    around("flow", 0.2, 3.0),
    around("ve", 1.0, 10.0),
    around("flow", 0.0, 50.0),
    around("flow", 0.0, 700.0),
    ((1.0, 80.0), (1.0, 79.0)),
    ((1.0, 0.011), (1.0, 0.002)),
]
FROM_NOISE = [(NOISE_ONLY, at_log_snr("flow", x)) for x in (1.0, -6.0)]


def level(pairs: list[tuple[float, float]]) -> Level:
    alpha, sigma = np.asarray(pairs).T
    return Level(sigma, alpha.copy(), sigma.copy())


def dummy_grid(n: int) -> np.ndarray:
    return np.linspace(0.9, 0.1, n + 1)


def relative(value: Any, exact: mp.mpf) -> float:
    """Relative error; the absolute one where the exact value underflows."""
    return float(abs(mp.mpf(float(value)) / exact - 1)) if abs(exact) > 1e-290 else abs(float(value))


def conditioning(a: tuple, b: tuple) -> float:
    """Relative change of h when alpha and sigma change by one rounding: no formula in these numbers does better."""
    size = sum(abs(math.log(alpha / sigma)) for alpha, sigma in (a, b) if alpha and sigma)
    h = float(log_ratio(a, b))
    return 1 + (1 + size) / min(h, 1.0)


def worst_errors(build: Any, pairs: list, references: list[Step], least: bool = False) -> np.ndarray:
    """Largest (or least) errors of P, N and the moments in units of the conditioning."""
    path = build(dummy_grid(len(pairs)))
    a, b = level([p for p, _ in pairs]), level([q for _, q in pairs])
    keep, noise = path.propagate(a, b)
    rows = [keep, np.zeros_like(keep) if noise is None else noise, *path.moments(a, b, 4)]
    errors = []
    for i, ((p, q), exact) in enumerate(zip(pairs, references, strict=True)):
        scale = conditioning(p, q)
        values = [exact.keep, exact.noise, *exact.moments]
        errors.append([relative(row[i], value) / scale for row, value in zip(rows, values, strict=True)])
    return np.min(errors, axis=0) if least else np.max(errors, axis=0)


def mpf_pair(pair: tuple) -> tuple:
    return tuple(tuple(mp.mpf(x) for x in one) for one in pair)


# -- the step formula, path by path -----------------------------------------------------------------------------------


@pytest.mark.claim("paths-x0", "paths-x0-ratio", "paths-noise-variance", "paths-moments")
@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("coordinate", ["log_snr", "ratio"])
def test_x0_against_quadrature(coordinate: str, eta: float) -> None:
    ratio = coordinate == "ratio"
    pairs = [*PAIRS, *FROM_NOISE] if ratio else PAIRS

    def build(t: np.ndarray) -> Path:
        return paths.x0(FLOW, t, eta=eta, coordinate=coordinate)

    with mp.workdps(DIGITS):
        exact = [reference_x0(*mpf_pair(pair), eta, ratio=ratio) for pair in pairs]
        errors = worst_errors(build, pairs, exact)
        assert errors[:2].max() <= ROUNDING
        assert errors[2:].max() <= (NODES if ratio and eta else ROUNDING)
        # alpha of the start for alpha of the end; eta for eta^2
        wrong = [
            step._replace(moments=[m * a[0] / b[0] for m in step.moments])
            for step, (a, b) in zip(exact, pairs, strict=True)
        ]
        assert worst_errors(build, pairs[1:4], wrong[1:4], least=True)[2:].min() > MISTAKE
        if eta not in {0.0, 1.0}:
            other = [reference_x0(*mpf_pair(pair), math.sqrt(eta), ratio=ratio) for pair in pairs[1:4]]
            assert worst_errors(build, pairs[1:4], other, least=True).min() > MISTAKE


@pytest.mark.claim("paths-noise", "paths-noise-ratio", "paths-moments")
@pytest.mark.parametrize("coordinate", ["log_snr", "ratio"])
def test_noise_against_quadrature(coordinate: str) -> None:
    ratio = coordinate == "ratio"

    def build(t: np.ndarray) -> Path:
        return paths.noise(FLOW, t, coordinate=coordinate)

    with mp.workdps(DIGITS):
        exact = [reference_noise(*mpf_pair(pair), ratio=ratio) for pair in PAIRS]
        assert worst_errors(build, PAIRS, exact).max() <= ROUNDING
        wrong = [reference_noise(*mpf_pair(pair), ratio=not ratio) for pair in PAIRS[3:6]]
        assert worst_errors(build, PAIRS[3:6], wrong, least=True)[3:].min() > MISTAKE


@pytest.mark.claim("paths-velocity", "paths-noise-variance", "paths-moments")
@pytest.mark.parametrize("sigma_data", [1.0, 0.5])
@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0, 1.7])
def test_velocity_against_quadrature(eta: float, sigma_data: float) -> None:
    pairs = [*PAIRS, *FROM_NOISE]

    def build(t: np.ndarray) -> Path:
        return paths.velocity(FLOW, t, eta=eta, sigma_data=sigma_data)

    with mp.workdps(DIGITS):
        exact = [reference_velocity(*mpf_pair(pair), eta, sigma_data) for pair in pairs]
        errors = worst_errors(build, pairs, exact)
        assert errors[:2].max() <= ROUNDING
        assert errors[2:].max() <= (NODES if eta else ROUNDING)
        wrong = [reference_velocity(*mpf_pair(pair), eta, 2 * sigma_data) for pair in pairs[2:5]]
        assert worst_errors(build, pairs[2:5], wrong, least=True)[2:].min() > MISTAKE


@pytest.mark.claim("paths-x0", "paths-noise", "paths-velocity")
@pytest.mark.parametrize("geometry", ["vp", "ve", "flow"])
def test_propagators_are_the_exponentials_of_the_linear_part(geometry: str) -> None:
    """P from the rate of x itself: d log sigma - eta^2 dlambda, d log alpha, d log n + eta^2 tan(theta) dtheta."""
    eta, sd, ends = 0.6, 0.7, (-1.3, 0.9)

    def rates(lam: mp.mpf) -> list[mp.mpf]:
        share = {"vp": 1 / (1 + mp.exp(-2 * lam)), "ve": mp.mpf(1), "flow": 1 / (1 + mp.exp(-lam))}[geometry]
        d_alpha, d_sigma = 1 - share, -share
        cosine2 = sd**2 / (sd**2 + mp.exp(-2 * lam))
        return [
            d_sigma,
            d_sigma - eta**2,
            d_alpha,
            cosine2 * d_alpha + (1 - cosine2) * d_sigma,
            cosine2 * d_alpha + (1 - cosine2) * d_sigma - eta**2 * (1 - cosine2),
        ]

    with mp.workdps(DIGITS):
        length = mp.mpf(ends[1]) - ends[0]
        exact = [float(mp.exp(r)) for r in integrate(lambda y: rates(ends[0] + y), length)]
    a, b = (level([at_log_snr(geometry, e)]) for e in ends)
    t = dummy_grid(1)
    made = [
        paths.x0(FLOW, t),
        paths.x0(FLOW, t, eta=eta),
        paths.noise(FLOW, t),
        paths.velocity(FLOW, t, sigma_data=sd),
        paths.velocity(FLOW, t, sigma_data=sd, eta=eta),
    ]
    values = [path.propagate(a, b)[0][0] for path in made]
    np.testing.assert_allclose(values, exact, rtol=ROUNDING)
    assert abs(values[1] / exact[0] - 1) > 0.1
    assert abs(values[4] / exact[3] - 1) > 0.1


@pytest.mark.claim("paths-substitution")
def test_power_moments_against_quadrature() -> None:
    power = np.asarray([0.0, 0.01, 0.49, 1.0, 2.5, 40.0])
    start = np.asarray([0.0, 1e-30, 1e-4, 0.3, 1 - 1e-3, 0.0])
    log_start = np.log(np.where(start == 0, 1, start))
    log_start[start == 0] = -np.inf
    values = power_moments(power, log_start, 4, np.cos)
    plain = power_moments(power, log_start, 4)
    with mp.workdps(DIGITS):
        for i, p in enumerate(map(mp.mpf, power.tolist())):
            q = mp.exp(float(log_start[i]))

            def integrand(y: mp.mpf, p: mp.mpf = p, q: mp.mpf = q) -> list[mp.mpf]:
                v = mp.exp(-y)
                return [(1 + p) * v ** (1 + p) * g * ((v - q) / (1 - q)) ** j for g in (mp.cos(v), 1) for j in range(4)]

            exact = integrate(integrand, -mp.mpf(float(log_start[i])), 1 + p)
            got = [m[i] for m in (*values, *plain)]
            assert max(relative(g, e) for g, e in zip(got, exact, strict=True)) <= NODES


def test_plain_quadrature_stalls_at_a_branch_point() -> None:
    """32 points on w^0.09 reach four digits; with the substitution all of them."""
    power, zero, one = np.asarray([0.09]), np.zeros(1), np.ones(1)
    plain = 1.09 * smooth_moments(lambda w: w**0.09, zero, one, 1)[0]
    assert 1e-6 < abs(plain[0] - 1) < 1e-3
    assert abs(power_moments(power, np.log(zero, where=False, out=-np.inf * one), 1)[0][0] - 1) <= NODES


@pytest.mark.claim("paths-moments")
def test_limits_of_infinite_steps() -> None:
    """From alpha = 0 and to sigma = 0 all paths have finite P, N and moments; the next nodes have weight 0 or 1."""
    noise_only, clean, middle = level([NOISE_ONLY]), level([(1.0, 0.0)]), level([(0.6, 0.4)])
    t = dummy_grid(1)
    for eta in (0.0, 0.8):
        path = paths.x0(FLOW, t, eta=eta)
        for a, b in ((noise_only, middle), (middle, clean), (noise_only, clean)):
            keep, added = path.propagate(a, b)
            assert keep[0] == (b.sigma[0] if a is noise_only and eta == 0 else 0.0)
            assert added is None if eta == 0 else added[0] == b.sigma[0]
            assert [m[0] for m in path.moments(a, b, 4)] == [b.alpha[0]] * 4
            other = paths.x0(FLOW, t, eta=eta, coordinate="ratio").moments(a, b, 4)
            np.testing.assert_allclose([m[0] for m in other[:1]], b.alpha, rtol=NODES)
    log_form, ratio_form = (paths.noise(FLOW, t, coordinate=c).moments(middle, clean, 4) for c in ("log_snr", "ratio"))
    assert [m[0] for m in log_form] == [-0.4 / 0.6, 0.0, 0.0, 0.0]
    np.testing.assert_allclose([m[0] for m in ratio_form], [-0.4 / 0.6 / j for j in (1, 2, 3, 4)], rtol=ROUNDING)
    path = paths.velocity(FLOW, np.asarray([1.0, 0.0]), sigma_data=0.5, eta=1.0)
    keep, added = path.propagate(noise_only, clean)
    assert (keep[0], added[0]) == (0.5, 0.0)
    np.testing.assert_allclose(
        [m[0] for m in path.moments(noise_only, clean, 4)], [-math.pi / 4 / j for j in (1, 2, 3, 4)], rtol=NODES
    )


def test_falling_moments_on_both_sides_of_their_switch() -> None:
    for h in (49.0, 50.0, 50.5, 60.0, 720.0, 1500.0):
        a, b = around("ve", 0.0, h) if h < 1000 else ((1.0, 1e300), (1.0, 1e-300))
        with mp.workdps(DIGITS):
            exact = reference_noise(*mpf_pair((a, b)), ratio=False)
            assert worst_errors(lambda t: paths.noise(FLOW, t), [(a, b)], [exact]).max() <= ROUNDING


EVERY_PATH = {
    "x0": lambda t: paths.x0(FLOW, t),
    "x0 sde": lambda t: paths.x0(VP, t, eta=0.7),
    "ratio": lambda t: paths.x0(FLOW, t, coordinate="ratio"),
    "ratio sde": lambda t: paths.x0(VP, t, eta=0.7, coordinate="ratio"),
    "velocity": lambda t: paths.velocity(VP, t, sigma_data=0.5),
    "velocity sde": lambda t: paths.velocity(FLOW, t, eta=0.7, sigma_data=0.5),
    "noise": lambda t: paths.noise(VP, t[1:]),
    "noise ratio": lambda t: paths.noise(FLOW, t[1:], coordinate="ratio"),
    "semilinear": lambda t: paths.semilinear(t, -1.5),
    "varying": lambda t: paths.semilinear(t, lambda s: 2.0 * s),
    "ancestral": lambda t: paths.ancestral(paths.x0(FLOW, t), 0.8),
    "churn": lambda t: paths.churn(paths.noise(VP, t[1:]), 0.1),
}


def everything(t: Any, names: tuple[str, ...]) -> dict[str, list]:
    """P, N and three moments of the steps of paths, and the nodes."""
    found = {}
    for name in names:
        path = EVERY_PATH[name](t)
        values = [*path.propagate(path.start, path.stop), *path.moments(path.start, path.stop, 3)]
        found[name] = [
            *(v for v in values if v is not None),
            *path.start,
            *path.stop,
            path.first.sigma,
            path.last.alpha,
        ]
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_in_every_library_and_precision(dtype: str, backend: Backend) -> None:
    t = np.asarray([1.0, 0.9, 0.5, 0.2, 0.19, 0.0], dtype)
    jitted = backend.name == "jax"
    names = list(EVERY_PATH)[:: 5 if jitted and dtype == "float32" else 1]
    function = pytest.importorskip("jax").jit(everything, static_argnums=1) if jitted else everything
    single = dtype == "float32" and jitted
    tolerance = SINGLE if single else BACKENDS
    expected, found = everything(t.astype("float64"), tuple(names)), function(backend.asarray(t, dtype), tuple(names))
    for name, wanted in expected.items():
        assert len(found[name]) == len(wanted)
        for value, want in zip(found[name], wanted, strict=True):
            assert backend.dtype(value) == ("float32" if single else "float64")
            np.testing.assert_allclose(backend.numpy(value), want, rtol=tolerance, atol=tolerance, err_msg=name)


# -- the equations the paths come from --------------------------------------------------------------------------------


def density(x: mp.mpf, t: mp.mpf) -> mp.mpf:
    """Marginal of the two-component mixture under the cosine schedule."""
    alpha, sigma = mp.cos(mp.pi * t / 2), mp.sin(mp.pi * t / 2)
    parts = zip((0.3, 0.7), (-1.0, 0.8), (0.3, 0.4), strict=True)
    return mp.fsum(w * mp.npdf(x, alpha * m, mp.sqrt((alpha * s) ** 2 + sigma**2)) for w, m, s in parts)


def rates(t: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """f = d log alpha/dt and g^2 = d sigma^2/dt - 2 f sigma^2 of the cosine schedule, by differentiation."""
    f = mp.diff(lambda s: mp.log(mp.cos(mp.pi * s / 2)), t)
    return f, mp.diff(lambda s: mp.sin(mp.pi * s / 2) ** 2, t) - 2 * f * mp.sin(mp.pi * t / 2) ** 2


@pytest.mark.claim("paths-fokker-planck", "paths-reverse-sde")
@pytest.mark.parametrize(("x", "t"), [(-0.4, 0.3), (1.1, 0.75)])
def test_every_eta_has_the_same_marginals(x: float, t: float) -> None:
    """The Fokker-Planck equations of the forward process and of the whole reverse family, at a point."""
    with mp.workdps(40):
        f, g2 = rates(mp.mpf(t))
        rate = mp.diff(lambda s: density(mp.mpf(x), s), t)
        spread = mp.diff(lambda y: density(y, t), x, 2)

        def score(y: mp.mpf) -> mp.mpf:
            return mp.diff(lambda z: mp.log(density(z, t)), y)

        forward = -mp.diff(lambda y: f * y * density(y, t), x) + g2 / 2 * spread
        assert abs(forward - rate) < 1e-12
        for eta in (0.0, 0.5, 1.0, 1.6):

            def residual(share: float, eta: float = eta) -> mp.mpf:
                flux = mp.diff(lambda y: (f * y - share * g2 * score(y)) * density(y, t), x)
                return abs(-flux - mp.mpf(eta) ** 2 * g2 / 2 * spread - rate)

            assert residual((1 + eta**2) / 2) < 1e-12
            if eta not in {0.0, 1.0}:
                assert residual((1 + eta) / 2) > 1e-3


@pytest.mark.claim("paths-log-snr", "paths-velocity-equation")
@pytest.mark.parametrize("eta", [0.0, 0.7, 1.0])
def test_change_of_variables(eta: float) -> None:
    """The SDE in t against its forms in lambda and theta: drift by the chain rule, noise by its variance."""
    sd = 0.5
    with mp.workdps(30):
        x, t = mp.mpf("0.7"), mp.mpf("0.4")
        f, g2 = rates(t)
        alpha, sigma = mp.cos(mp.pi * t / 2), mp.sin(mp.pi * t / 2)
        score = mp.diff(lambda y: mp.log(density(y, t)), x)
        denoised = (x + sigma**2 * score) / alpha
        drift, noise2 = f * x - (1 + eta**2) / 2 * g2 * score, eta**2 * g2

        def along(scale: Any) -> tuple[mp.mpf, mp.mpf]:
            """Drift and noise of x/scale(t)."""
            return drift / scale(t) - x * mp.diff(scale, t) / scale(t) ** 2, noise2 / scale(t) ** 2

        d_lam = mp.diff(lambda s: mp.log(mp.cos(mp.pi * s / 2) / mp.sin(mp.pi * s / 2)), t)
        got = along(lambda s: mp.sin(mp.pi * s / 2))
        y = x / sigma
        assert abs(got[0] - d_lam * ((1 + eta**2) * alpha / sigma * denoised - eta**2 * y)) < 1e-12
        assert abs(got[1] - 2 * eta**2 * abs(d_lam)) < 1e-12

        def angle(s: mp.mpf) -> mp.mpf:
            return mp.atan2(mp.sin(mp.pi * s / 2), sd * mp.cos(mp.pi * s / 2))

        def length(s: mp.mpf) -> mp.mpf:
            return mp.sqrt((sd * mp.cos(mp.pi * s / 2)) ** 2 + mp.sin(mp.pi * s / 2) ** 2)

        theta, u = angle(t), x / length(t)
        v = (mp.cos(theta) * u - denoised / sd) / mp.sin(theta)
        assert abs(v - (mp.cos(theta) * (x - alpha * denoised) / sigma - mp.sin(theta) * denoised / sd)) < 1e-20
        got, d_theta = along(length), mp.diff(angle, t)
        assert abs(got[0] - d_theta * ((1 + eta**2) * v + eta**2 * mp.tan(theta) * u)) < 1e-12
        assert abs(got[1] - 2 * eta**2 * mp.tan(theta) * d_theta) < 1e-12
        at = level([(float(alpha), float(sigma))])
        p, q = paths.velocity(FLOW, dummy_grid(1), sigma_data=sd).target(at)
        assert float(p[0] * x + q[0] * denoised) == pytest.approx(float(v), rel=1e-14)
        p, q = paths.noise(FLOW, dummy_grid(1)).target(at)
        assert float(p[0] * x + q[0] * denoised) == pytest.approx(float((x - alpha * denoised) / sigma), rel=1e-14)


@functools.cache
def in_time(schedule: Schedule, start: float, stop: float) -> np.ndarray:
    """X carried from start to stop by the probability-flow ODE of MIXTURE in t, by a method of order 8."""

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        at = schedule.level(t)
        score = (at.alpha * MIXTURE.denoise(y[:, None], at)[:, 0] - y) / at.sigma**2
        return float(schedule.drift(t)) * y - 0.5 * float(schedule.diffusion_squared(t)) * score

    return solve_ivp(slope, (start, stop), X[:, 0], method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1:]


ODE_PATHS = {
    "x0": paths.x0,
    "x0 ratio": lambda s, t: paths.x0(s, t, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": lambda s, t: paths.noise(s, t, coordinate="ratio"),
    "velocity": paths.velocity,
    "velocity .5": lambda s, t: paths.velocity(s, t, sigma_data=0.5, centre=0.3),
}


@pytest.mark.claim("paths-step", "paths-log-snr")
@pytest.mark.parametrize("name", ODE_PATHS)
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_all_paths_solve_the_same_equation(schedule: Schedule, name: str) -> None:
    t = np.linspace(0.9, 0.1, 241)
    exact = in_time(schedule, 0.9, 0.1)
    y = ab4(MIXTURE.denoise, X, ODE_PATHS[name](schedule, t))
    assert np.abs(y - exact).max() < 1e-6
    other = ab4(MIXTURE.denoise, X, ODE_PATHS[name](schedule, np.linspace(0.9, 0.12, 241)))
    assert np.abs(other - exact).max() > 1e-3


@pytest.mark.claim("paths-semilinear")
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_the_same_equation_as_a_semilinear_one_in_time(schedule: Schedule) -> None:
    """Rate d log alpha/dt, the rest as f: what noise prediction integrates, but in t."""

    def rest(x: np.ndarray, at: Level) -> np.ndarray:
        here = schedule.level(at.t)
        return 0.5 * schedule.diffusion_squared(at.t) / here.sigma**2 * (x - here.alpha * MIXTURE.denoise(x, here))

    t = np.linspace(0.9, 0.1, 241)
    exact = in_time(schedule, 0.9, 0.1)
    assert np.abs(ab4(rest, X, paths.semilinear(t, schedule.drift)) - exact).max() < 2e-5
    assert np.abs(ab4(rest, X, paths.semilinear(t, lambda s: 1.1 * schedule.drift(s))) - exact).max() > 1e-2


# -- equivariance -----------------------------------------------------------------------------------------------------

LOG_SNR = np.cumsum([-2.0, 0.3, 0.05, 0.4, 0.1, 0.35, 0.08, 0.5, 0.2, 0.6, 0.11])
"""A badly graded grid, the same log-SNR for every schedule."""


def scaled_output(schedule: Schedule, build: Any, make: Any) -> np.ndarray:
    """x/alpha at the end, from the same x/alpha at the start; noise prescribed in units of sigma."""
    path = build(schedule, schedule.time(LOG_SNR))
    z = np.random.default_rng(0).standard_normal((99, *X.shape))
    y = solve(MIXTURE.denoise, X * path.first.alpha, make(path), rng=lambda row, like: z[row])
    return y / path.last.alpha


METHODS = {
    "order 1": (lambda p: adams_bashforth(p, 1), 1e-14),
    "order 2": (lambda p: adams_bashforth(p, 2), 1e-13),
    "order 4": (lambda p: adams_bashforth(p, 4), 1e-11),
    "Heun": (lambda p: runge_kutta(p, HEUN), 1e-13),
    "Runge-Kutta 3": (lambda p: runge_kutta(p, RUNGE_KUTTA_3), 1e-13),
}


@pytest.mark.claim("paths-equivariance")
@pytest.mark.parametrize("method", METHODS)
def test_schedules_with_the_same_ratios_give_the_same_trajectory(method: str) -> None:
    make, tolerance = METHODS[method]
    made = {
        **ODE_PATHS,
        "x0 sde": lambda s, t: paths.x0(s, t, eta=1.0),
        "velocity sde": lambda s, t: paths.velocity(s, t, eta=0.6, sigma_data=0.5),
        "ancestral": lambda s, t: paths.ancestral(paths.x0(s, t), 0.7),
        "churn": lambda s, t: paths.churn(paths.noise(s, t, coordinate="ratio"), 0.2),
    }
    for name, build in made.items():
        outputs = [scaled_output(schedule, build, make) for schedule in SCHEDULES.values()]
        for output in outputs[1:]:
            np.testing.assert_allclose(output, outputs[0], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.claim("paths-equivariance")
def test_a_semilinear_path_depends_on_the_schedule() -> None:
    """Its coordinate is t: at the same levels the order-2 results differ by far more than rounding."""
    outputs = []
    for schedule in (FLOW, VP):

        def rest(x: np.ndarray, at: Level, schedule: Schedule = schedule) -> np.ndarray:
            here = schedule.level(at.t)
            return 0.5 * schedule.diffusion_squared(at.t) / here.sigma**2 * (x - here.alpha * MIXTURE.denoise(x, here))

        t = schedule.time(LOG_SNR)
        y = ab2(rest, X * schedule.alpha(t[0]), paths.semilinear(t, schedule.drift))
        outputs.append(y / schedule.alpha(t[-1]))
    assert np.abs(outputs[1] - outputs[0]).max() > 1e-3


# -- names in use: DDIM, DDPM, ancestral samplers, 2M-SDE -------------------------------------------------------------


def ddim_step(x: np.ndarray, a: Level, b: Level) -> np.ndarray:
    """Song's formula: predict the clean data, put the predicted noise back."""
    denoised = MIXTURE.denoise(x, a)
    return b.alpha * denoised + b.sigma * (x - a.alpha * denoised) / a.sigma


@pytest.mark.claim("paths-x0", "paths-noise", "paths-noise-ratio", "paths-x0-ratio")
def test_ddim_is_order_one_on_x0_and_on_noise_but_not_on_velocity() -> None:
    t = VP.time(LOG_SNR)
    expected = X
    for a, b in itertools.pairwise(t):
        expected = ddim_step(expected, VP.level(a), VP.level(b))
    outputs = {name: ab1(MIXTURE.denoise, X, build(VP, t)) for name, build in ODE_PATHS.items()}
    for name in ("x0", "x0 ratio", "noise", "noise ratio"):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(ddim(MIXTURE.denoise, X, VP, t), expected, rtol=1e-14, atol=1e-14)
    assert 1e-3 < np.abs(outputs["velocity"] - expected).max() < 0.3
    wrong = X
    for a, b in itertools.pairwise(t):
        at, to = VP.level(a), VP.level(b)
        wrong = ddim_step(wrong, at, to._replace(alpha=at.alpha))
    assert np.abs(wrong - expected).max() > 0.1


def conditional(x: np.ndarray, a: Level, b: Level) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and variance of x_b given x_a for MIXTURE: within a component the two are jointly Gaussian."""
    m, s, w = np.asarray([-1.0, 0.8]), np.asarray([0.3, 0.4]), np.asarray([0.3, 0.7])
    forward = a.alpha / b.alpha
    var_b, var_a = (at.alpha**2 * s**2 + at.sigma**2 for at in (b, a))
    share = w * norm.pdf(x, a.alpha * m, np.sqrt(var_a))
    share /= share.sum(axis=-1, keepdims=True)
    gain = forward * var_b / var_a
    means = b.alpha * m + gain * (x - a.alpha * m)
    mean = (share * means).sum(axis=-1, keepdims=True)
    return mean, (share * (var_b - gain * forward * var_b + (means - mean) ** 2)).sum(axis=-1, keepdims=True)


@pytest.mark.claim("paths-posterior", "paths-missing-variance")
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_order_one_with_eta_one_is_ancestral_sampling(schedule: Schedule) -> None:
    path = paths.x0(schedule, np.asarray([0.7, 0.45]), eta=1.0)
    a, b = path.first, path.last
    noise = path.propagate(path.start, path.stop)[1][0]
    forward = a.alpha / b.alpha
    forward_variance = a.sigma**2 - forward**2 * b.sigma**2
    posterior = forward_variance * b.sigma**2 / a.sigma**2
    assert noise**2 == pytest.approx(posterior, rel=1e-13)
    assert noise**2 == pytest.approx(b.sigma**2 * (1 - (a.alpha * b.sigma / (a.sigma * b.alpha)) ** 2), rel=1e-13)
    mean = ab1(MIXTURE.denoise, X, path, rng=lambda row, like: 0.0 * like)
    denoised = MIXTURE.denoise(X, a)
    weights = (forward * b.sigma**2 / a.sigma**2, b.alpha * forward_variance / a.sigma**2)
    np.testing.assert_allclose(mean, weights[0] * X + weights[1] * denoised, rtol=1e-13)
    exact_mean, exact_variance = conditional(X, a, b)
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-12)
    h = b.log_snr - a.log_snr
    step = 1e-6
    slope = (MIXTURE.denoise(X + step, a) - MIXTURE.denoise(X - step, a)) / (2 * step)
    np.testing.assert_allclose(MIXTURE.covariance(X, a)[..., 0], a.sigma**2 / a.alpha * slope, rtol=1e-8)
    missing = (b.alpha * -np.expm1(-2 * h)) ** 2 * MIXTURE.covariance(X, a)[..., 0]
    np.testing.assert_allclose(noise**2 + missing, exact_variance, rtol=1e-12)
    assert (missing / exact_variance).min() > 0.01
    # with another eta the mean is not the conditional one
    other = ab1(
        MIXTURE.denoise, X, paths.x0(schedule, np.asarray([0.7, 0.45]), eta=0.8), rng=lambda row, like: 0.0 * like
    )
    assert np.abs(other - exact_mean).max() > 1e-2


@pytest.mark.claim("paths-ancestral", "paths-ddim-eta")
@pytest.mark.parametrize("eta", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_ancestral_is_the_formula_of_ddim(schedule: Schedule, eta: float) -> None:
    t = np.asarray([0.9, 0.6, 0.35, 0.1])
    z = np.random.default_rng(1).standard_normal((3, *X.shape))
    expected, levels = X, [schedule.level(s) for s in t]
    for n, (a, b) in enumerate(itertools.pairwise(levels)):
        posterior = b.sigma**2 / a.sigma**2 * (a.sigma**2 - (a.alpha / b.alpha) ** 2 * b.sigma**2)
        sigma = eta * math.sqrt(posterior)
        denoised = MIXTURE.denoise(expected, a)
        predicted = (expected - a.alpha * denoised) / a.sigma
        expected = b.alpha * denoised + math.sqrt(b.sigma**2 - sigma**2) * predicted + sigma * z[n]
    rng = {"rng": lambda row, like: z[row]}
    np.testing.assert_allclose(ddim(MIXTURE.denoise, X, schedule, t, eta=eta, **rng), expected, rtol=1e-13)
    lam = schedule.log_snr(t)
    converted = paths.from_ddim_eta(eta, np.diff(lam))
    np.testing.assert_allclose(
        ab1(MIXTURE.denoise, X, paths.x0(schedule, t, eta=converted), **rng), expected, rtol=1e-13
    )
    unconverted = ab1(MIXTURE.denoise, X, paths.x0(schedule, t, eta=eta), **rng)
    assert (np.abs(unconverted - expected).max() > 1e-2) == (eta != 1.0)


@pytest.mark.claim("paths-ancestral")
def test_ancestral_is_the_formula_of_sigma_up_and_sigma_down() -> None:
    t = np.asarray([80.0, 10.0, 1.0, 0.2])
    z = np.random.default_rng(1).standard_normal((3, *X.shape))
    etas = np.asarray([1.0, 0.6, 0.0])
    expected = 80.0 * X
    for n, (now, then) in enumerate(itertools.pairwise(t)):
        up = min(then, etas[n] * math.sqrt(then**2 * (now**2 - then**2) / now**2))
        down = math.sqrt(then**2 - up**2)
        slope = (expected - MIXTURE.denoise(expected, VE.level(now))) / now
        expected = expected + slope * (down - now) + up * z[n]
    for build in (paths.x0, lambda s, t: paths.noise(s, t, coordinate="ratio")):
        path = paths.ancestral(build(VE, t), etas)
        y = ab1(MIXTURE.denoise, 80.0 * X, path, rng=lambda row, like: z[row])
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(path.stop.sigma[1], math.sqrt(1.0 - 0.36 * 0.99), rtol=1e-13)
        assert path.stop.sigma[2] == pytest.approx(0.2, rel=1e-14)


@pytest.mark.claim("paths-ddim-eta")
@pytest.mark.parametrize("h", [1e-6, 0.1, 2.0, 40.0])
@pytest.mark.parametrize("eta", [0.0, 1e-9, 0.4, 0.999, 1.0])
def test_ddim_eta_puts_the_same_noise_into_a_step(eta: float, h: float) -> None:
    with mp.workdps(60):
        wanted = mp.mpf(eta) ** 2 * (1 - mp.exp(-2 * mp.mpf(h)))
        exact = mp.sqrt(-mp.log(1 - wanted) / (2 * mp.mpf(h)))
        converted = float(paths.from_ddim_eta(eta, np.asarray([h]))[0])
        assert converted == pytest.approx(float(exact), rel=1e-13)
        assert 1 - mp.exp(-2 * mp.mpf(converted) ** 2 * h) == pytest.approx(wanted, rel=1e-10)
    if 0 < eta < 1 and h > 0.05:
        assert converted < eta * (1 - 1e-4)


@pytest.mark.claim("paths-ddim-eta")
def test_ddim_eta_on_an_infinite_step() -> None:
    h = np.asarray([np.inf, 1.0])
    assert paths.from_ddim_eta(0.5, h)[0] == 0.0
    assert paths.from_ddim_eta(1.0, h).tolist() == [1.0, 1.0]
    assert paths.from_ddim_eta(np.asarray([1.0, 0.0]), h).tolist() == [1.0, 0.0]


@pytest.mark.claim("paths-sde-2m-eta")
@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_eta_of_the_2m_sde_sampler(eta: float) -> None:
    """Its formula: exp(-eta h) beside exp(-h), h_eta = (1 + eta) h, noise 1 - exp(-2 eta h)."""
    t = np.asarray([20.0, 5.0, 1.0, 0.3, 0.1])
    z = np.random.default_rng(2).standard_normal((4, *X.shape))
    expected, old, h_old = 20.0 * X, 0.0 * X, math.inf
    for n, (now, then) in enumerate(itertools.pairwise(t)):
        denoised, h = MIXTURE.denoise(expected, VE.level(now)), math.log(now / then)
        grown = -math.expm1(-h - eta * h)
        expected = then / now * math.exp(-eta * h) * expected + grown * denoised
        if n > 0:
            # integral of the kernel times the linear interpolant, by parts
            expected = expected + (1 - grown / ((1 + eta) * h)) / (h_old / h) * (denoised - old)
        expected = expected + z[n] * then * math.sqrt(-math.expm1(-2 * eta * h))
        old, h_old = denoised, h
    rng = {"rng": lambda row, like: z[row]}
    y = ab2(MIXTURE.denoise, 20.0 * X, paths.x0(VE, t, eta=paths.from_sde_2m_eta(eta)), **rng)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    assert paths.from_sde_2m_eta(0.3) == math.sqrt(0.3)
    assert paths.from_sde_2m_eta(0.0) == 0.0
    other = ab2(MIXTURE.denoise, 20.0 * X, paths.x0(VE, t, eta=eta), **rng)
    assert (np.abs(other - expected).max() > 1e-2) == (eta != 1.0)


# -- exact laws on Gaussian data --------------------------------------------------------------------------------------


def output_law(path: Path, table: Table, mean: float, std: float) -> tuple[float, float]:
    """Mean and std of the output on data N(mean, std^2): the response to the mean, to x and to each noise, one by one.

    The denoiser is affine. Component 0 sees all of it and starts at the mean, the others its linear part: component 1
    starts with one standard deviation, component 2 + r receives noise r alone.
    """
    size = 3 + table.evaluations
    whole = np.eye(size)[0]

    def denoise(x: np.ndarray, at: Level) -> np.ndarray:
        gain = at.alpha * std**2 / ((at.alpha * std) ** 2 + at.sigma**2)
        return whole * mean + gain * (x - at.alpha * mean * whole)

    if table.centre is not None:
        table = table._replace(centre=table.centre * whole)
    first = path.first
    x = np.hypot(first.alpha * std, first.sigma) * np.eye(size)[1] + first.alpha * mean * whole
    y = solve(denoise, x, table, rng=lambda row, like: np.eye(size)[2 + row])
    return y[0], math.sqrt((y[1:] ** 2).sum())


def law_at(at: Level, mean: float, std: float) -> tuple[float, float]:
    return at.alpha * mean, math.hypot(at.alpha * std, at.sigma)


TABLES = {
    "order 1": lambda p: adams_bashforth(p, 1),
    "order 2": lambda p: adams_bashforth(p, 2),
    "order 3": lambda p: adams_bashforth(p, 3),
    "order 4 ramp": lambda p: adams_bashforth(p, 4, start="ramp"),
    "order 4": lambda p: adams_bashforth(p, 4),
    "midpoint": lambda p: runge_kutta(p, MIDPOINT),
    "Heun": lambda p: runge_kutta(p, HEUN),
}


@pytest.mark.claim("paths-gaussian-exact", "paths-velocity")
@pytest.mark.parametrize("schedule", [FLOW, VP, VE, schedules.vp_linear()], ids=["flow", "vp", "ve", "vp_linear"])
@pytest.mark.parametrize("eta", [0.0, 0.6, 1.0])
def test_velocity_is_exact_on_gaussian_data(eta: float, schedule: Schedule) -> None:
    for n in (1, 2, 7):
        path = paths.velocity(
            schedule, grids.uniform_angle(schedule, n, sigma_data=1.7), sigma_data=1.7, centre=0.8, eta=eta
        )
        for name, make in TABLES.items():
            if eta and name in {"midpoint", "Heun"} and n == 7:
                continue
            law = output_law(path, make(path), 0.8, 1.7)
            np.testing.assert_allclose(law, law_at(path.last, 0.8, 1.7), rtol=EXACT, err_msg=f"{name} {n}")
    for change in ({"centre": 0.0}, {"sigma_data": 1.2}):
        other = paths.velocity(
            schedule, grids.uniform(schedule, 1), **({"sigma_data": 1.7, "centre": 0.8, "eta": eta} | change)
        )
        law, exact = output_law(other, adams_bashforth(other, 1), 0.8, 1.7), law_at(other.last, 0.8, 1.7)
        assert np.abs(np.subtract(law, exact)).max() > 0.3


@pytest.mark.claim("paths-gaussian-exact")
def test_one_step_without_the_centre_misses_the_mean() -> None:
    """From alpha = 0 the error is (pi/2 - 1) mu for the ODE; from sigma = 10 it is .44, and .78 for the SDE."""
    ode = paths.velocity(FLOW, np.asarray([1.0, 0.0]), sigma_data=1.7)
    mean, std = output_law(ode, adams_bashforth(ode, 1), 0.8, 1.7)
    assert mean == pytest.approx(0.8 * math.pi / 2, rel=1e-14)
    assert std == pytest.approx(1.7, rel=1e-14)
    for eta, missed in ((0.0, 0.44), (1.0, 0.78)):
        path = paths.velocity(VE, np.asarray([10.0, 0.002]), sigma_data=1.7, eta=eta)
        assert output_law(path, adams_bashforth(path, 1), 0.8, 1.7)[0] - 0.8 == pytest.approx(missed, abs=0.005)


@pytest.mark.claim("paths-gaussian-exact")
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_velocity_is_exact_for_a_centre_in_every_dimension(eta: float) -> None:
    """Arrays (n, 3, 2) around a centre (3, 2): the deviation is scaled, noise is prescribed."""
    centre = np.arange(6.0).reshape(3, 2) - 2
    data = oracles.gaussian(centre.ravel(), 0.5)
    x = np.random.default_rng(0).standard_normal((5, 3, 2)) + 0.1 * centre

    def denoise(y: np.ndarray, at: Level) -> np.ndarray:
        return data.denoise(y.reshape(5, 6), at).reshape(y.shape)

    t, z = np.asarray([0.9, 0.3, 0.1]), np.random.default_rng(1).standard_normal((9, 5, 3, 2))
    path = paths.velocity(FLOW, t, sigma_data=0.5, centre=centre, eta=eta)
    expected, levels = x, [FLOW.level(s) for s in t]
    for n, (a, b) in enumerate(itertools.pairwise(levels)):
        na, nb = (math.hypot(0.5 * at.alpha, at.sigma) for at in (a, b))
        kept = ((a.alpha / na) / (b.alpha / nb)) ** eta
        expected = b.alpha * centre + nb * (kept * (expected - a.alpha * centre) / na + math.sqrt(1 - kept**2) * z[n])
    for make in (ab1, ab2):
        y = make(denoise, x, path, rng=lambda row, like: z[row])
        np.testing.assert_allclose(y, expected, rtol=EXACT)


@pytest.mark.claim("paths-gaussian-exact")
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_exact_transition_for_each_eigenvalue(eta: float) -> None:
    """Keep and noise of the row with sd^2 = c are those to which order 2 on x0 converges, for every variance c."""
    s = schedules.truncate(VP, t_clean=0.1, t_noise=0.9)
    for std in (0.2, 1.7):
        one = paths.velocity(s, np.asarray([0.9, 0.1]), sigma_data=std, eta=eta)
        keep, noise = (0.0 if v is None else float(v[0]) for v in one.propagate(one.start, one.stop))
        errors = []
        for n in (100, 200):
            path = paths.x0(s, grids.uniform_log_snr(s, n), eta=eta)
            size = n + 3

            def denoise(x: np.ndarray, at: Level, std: float = std) -> np.ndarray:
                return at.alpha * std**2 / ((at.alpha * std) ** 2 + at.sigma**2) * x

            y = ab2(denoise, np.eye(size)[1], path, rng=lambda row, like, size=size: np.eye(size)[2 + row])
            errors.append([y[1] - keep, math.sqrt((y[2:] ** 2).sum()) - noise])
        errors = np.asarray(errors)
        assert np.abs(errors[1]).max() < 2e-3
        assert np.abs(errors[1] - errors[0] / 4).max() < 0.08 * np.abs(errors[0]).max()


@pytest.mark.claim("paths-gaussian-exact")
def test_sde_keeps_a_correlated_law() -> None:
    """The exact SDE applied along eigenvectors carries N(mu, C_a) to N(mu, C_b), with the forward joint law."""
    cov = np.asarray([[2.0, 0.9], [0.9, 0.5]])
    values, vectors = np.linalg.eigh(cov)
    path = [paths.velocity(FLOW, np.asarray([0.8, 0.3]), sigma_data=math.sqrt(c), eta=1.0) for c in values]
    keep, noise = np.asarray([[float(v[0]) for v in p.propagate(p.start, p.stop)] for p in path]).T
    marginal = [FLOW.alpha(s) ** 2 * cov + FLOW.sigma(s) ** 2 * np.eye(2) for s in (0.8, 0.3)]
    step = vectors @ np.diag(keep) @ vectors.T
    np.testing.assert_allclose(
        step @ marginal[0] @ step.T + vectors @ np.diag(noise**2) @ vectors.T, marginal[1], rtol=1e-13
    )
    # the joint law is that of the forward process
    np.testing.assert_allclose(step @ marginal[0], FLOW.alpha(0.8) / FLOW.alpha(0.3) * marginal[1], rtol=1e-13)


def weak_errors(build: Any, make: Any, steps: tuple[int, ...] = (160, 320)) -> np.ndarray:
    """Relative errors of the output variance on N(.8, 1.7^2)."""
    s = schedules.truncate(VP, t_clean=0.05, t_noise=0.99)
    errors = []
    for n in steps:
        path = build(s, grids.uniform_log_snr(s, n))
        law = output_law(path, make(path), 0.8, 1.7)
        errors.append((law[1] / law_at(path.last, 0.8, 1.7)[1]) ** 2 - 1)
    return np.abs(errors)


@pytest.mark.claim("paths-ancestral", "paths-x0", "paths-velocity")
@pytest.mark.parametrize(
    ("build", "weak"),
    [
        (lambda s, t: paths.x0(s, t, eta=1.0), 2),
        (lambda s, t: paths.velocity(s, t, eta=1.0, sigma_data=0.7), 2),
        (lambda s, t: paths.x0(s, t, eta=1.0, coordinate="ratio"), 2),
        (lambda s, t: paths.ancestral(paths.x0(s, t)), 1),
        (lambda s, t: paths.ancestral(paths.noise(s, t)), 1),
    ],
    ids=["x0", "velocity", "x0 ratio", "ancestral x0", "ancestral noise"],
)
def test_weak_order_of_adams_bashforth_2(build: Any, weak: int) -> None:
    """On an SDE path it is of weak order 2; on top of ancestral noise it falls to 1."""
    errors = weak_errors(build, lambda p: adams_bashforth(p, 2))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(weak, abs=ORDER)


@pytest.mark.claim("paths-churn")
def test_weak_order_of_churned_heun() -> None:
    """With gamma = S_churn/N it is 2; with S_noise other than 1 the error tends to a constant; multistep falls to 1."""

    def build(s_noise: float) -> Any:
        return lambda s, t: paths.churn(paths.noise(s, t, coordinate="ratio"), 4.0 / (t.size - 1), s_noise=s_noise)

    good = weak_errors(build(1.0), lambda p: runge_kutta(p, HEUN))
    assert np.log2(good[0] / good[1]) == pytest.approx(2, abs=ORDER)
    bad = weak_errors(build(1.01), lambda p: runge_kutta(p, HEUN))
    assert bad[1] > 0.9 * bad[0] > 0.01
    multistep = weak_errors(build(1.0), lambda p: adams_bashforth(p, 2))
    assert np.log2(multistep[0] / multistep[1]) == pytest.approx(1, abs=ORDER)


# -- a mixture, without Monte Carlo -----------------------------------------------------------------------------------

TWO_MODES = oracles.mixture([0.5, 0.5], [[-3.0], [3.0]], [0.5, 0.5])
TWO_MODES_STD = math.sqrt(9.25)
FAR = schedules.ve(sigma_min=1e-3, sigma_max=80.0)


def two_modes_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * norm.cdf(x, -3, 0.5) + 0.5 * norm.cdf(x, 3, 0.5)


def output_density(path: Path, order: int, points: int = 160, width: float = 5.2) -> tuple[np.ndarray, np.ndarray]:
    """Grid and density of x/n at the end, by quadrature of the transitions of the pair (state, last f)."""
    table = adams_bashforth(path, order)
    u = np.linspace(-width, width, points)
    du = u[1] - u[0]
    levels = [Level(*(part[r] for part in table.node)) for r in range(table.steps + 1)]
    norms = [math.hypot(at.alpha * TWO_MODES_STD, at.sigma) for at in levels]
    start = sum(
        0.5 * norm.pdf(u, m * levels[0].alpha / norms[0], math.hypot(0.5, levels[0].sigma) / norms[0]) for m in (-3, 3)
    )
    joint, f_old = start[:, None] * np.full(points, 1 / (points * du)), np.zeros(points)
    for r in range(table.evaluations):
        x = norms[r] * u[:, None]
        f = (table.target[r, 0] * x + table.target[r, 1] * TWO_MODES.denoise(x, levels[r]))[:, 0]
        weights = table.weights[r]
        new, old = weights[table.slot[r]], sum(w for k, w in enumerate(weights) if k != table.slot[r])
        mean = (table.carry[r] * norms[r] * u + new * f)[:, None] + old * f_old
        spread = table.noise[r] / norms[r + 1]
        scale, f_old = du / (math.sqrt(2 * math.pi) * spread), f
        joint = np.stack(
            [
                np.exp(-0.5 * ((u[:, None] - mean[j] / norms[r + 1]) / spread) ** 2) @ (scale * joint[j])
                for j in range(points)
            ],
            axis=1,
        )
    return norms[-1] * u, joint.sum(axis=1) * du / norms[-1]


@pytest.mark.claim("paths-velocity")
def test_two_modes_with_fifteen_steps_of_an_sde() -> None:
    """16 points, sigma 80 to .001: standard deviation within .2 % at order 2, and the distance of the laws."""
    t = grids.uniform_angle(FAR, 15, sigma_data=TWO_MODES_STD)
    distance, spread = {}, {}
    for order in (1, 2):
        x, p = output_density(paths.velocity(FAR, t, sigma_data=TWO_MODES_STD, eta=1.0), order)
        dx = x[1] - x[0]
        assert p.sum() * dx == pytest.approx(1, abs=1e-6)
        distance[order] = np.abs((np.cumsum(p) - p / 2) * dx - two_modes_cdf(x)).max()
        spread[order] = math.sqrt((p * x**2).sum() * dx) / TWO_MODES_STD - 1
    assert spread[1] == pytest.approx(9.0e-3, abs=2e-4)
    assert spread[2] == pytest.approx(-1.6e-3, abs=1e-4)
    assert distance[2] < 0.02
    assert distance[1] > 0.026


@pytest.mark.slow
@pytest.mark.claim("paths-velocity")
def test_two_modes_on_a_grid_uniform_in_log_snr() -> None:
    """The standard deviation is right at order 1 as well, the mass between the modes is not. 400,000 samples."""
    rng, n = np.random.default_rng(0), 400_000
    data = np.repeat([-3.0, 3.0], n // 2) + 0.5 * rng.standard_normal(n)
    x = (data + 80.0 * rng.standard_normal(n))[:, None]
    middle, distance = {}, {}
    for order in (1, 2):
        path = paths.velocity(FAR, grids.uniform_log_snr(FAR, 15), sigma_data=TWO_MODES_STD, eta=1.0)
        y = np.sort(solve(TWO_MODES.denoise, x, adams_bashforth(path, order), rng=rng)[:, 0])
        assert y.std() == pytest.approx(TWO_MODES_STD, rel=2e-3)
        middle[order] = (np.abs(y) < 1).mean()
        distance[order] = np.abs(two_modes_cdf(y) - (np.arange(n) + 0.5) / n).max()
    assert middle[2] < 1.1e-3
    assert middle[1] > 1.5e-3
    assert distance[2] < 0.007
    assert distance[1] > 0.012


# -- the ends ---------------------------------------------------------------------------------------------------------


@functools.cache
def through_the_angle(start: tuple[float, float], stop: tuple[float, float]) -> np.ndarray:
    """X carried by the ODE of MIXTURE for u = x/n in theta, which is regular at both ends, by a method of order 8."""
    angle, length = (lambda p: math.atan2(p[1], p[0])), (lambda p: math.hypot(*p))

    def slope(theta: float, u: np.ndarray) -> np.ndarray:
        c, s = math.cos(theta), math.sin(theta)
        return (c * u - MIXTURE.denoise(u[:, None], Level(0.0, c, s))[:, 0]) / s

    ends = (angle(start), max(angle(stop), 1e-13))
    return (
        length(stop)
        * solve_ivp(slope, ends, X[:, 0] / length(start), method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1:]
    )


def observed_order(build: Any, make: Any, t_start: float, t_stop: float, steps: tuple[int, int]) -> float:
    exact = through_the_angle((1 - t_start, t_start), (1 - t_stop, t_stop))
    errors = []
    for n in steps:
        path = build(FLOW, np.linspace(t_start, t_stop, n + 1))
        errors.append(np.abs(solve(MIXTURE.denoise, X, make(path)) - exact).max())
    return math.log(errors[0] / errors[1]) / math.log(steps[1] / steps[0])


@pytest.mark.claim("paths-noisy-end")
@pytest.mark.parametrize(
    ("name", "order", "observed"),
    [("x0", 4, 2), ("x0", 3, 2), ("x0 ratio", 4, 4), ("x0 ratio", 3, 3), ("velocity", 4, 4), ("velocity", 3, 3)],
)
def test_order_from_pure_noise(name: str, order: int, observed: float) -> None:
    """Flow from t = 1, uniform in t: in log-SNR the first node is infinite and the rest too sparse."""
    steps = (800, 1600) if name == "x0" else (200, 400)
    found = observed_order(ODE_PATHS[name], lambda p: adams_bashforth(p, order), 1.0, 0.2, steps)
    assert found == pytest.approx(observed, abs=ORDER)


@pytest.mark.claim("paths-clean-end")
@pytest.mark.parametrize("name", ["noise ratio", "velocity"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_order_down_to_clean_data(name: str, order: int) -> None:
    found = observed_order(ODE_PATHS[name], lambda p: adams_bashforth(p, order), 0.8, 0.0, (320, 640))
    assert found == pytest.approx(order, abs=0.15)


@pytest.mark.claim("paths-clean-end")
def test_last_step_to_clean_data_on_x0() -> None:
    """x = D: the standard deviation falls short by the factor (1 + q)^(-1/2), q = (rho/s)^2, for every method."""
    for std, last in ((0.5, 0.05), (1.7, 0.1)):
        for n in (100, 200):
            t = np.append(np.geomspace(80.0, last, n), 0.0)
            exact = (1 + (last / std) ** 2) ** -0.5 - 1
            path = paths.x0(schedules.edm(sigma_min=0.0), t)
            for order in (3, 4):
                law = output_law(path, adams_bashforth(path, order), 0.8, std)
                assert law[1] / std - 1 == pytest.approx(exact, rel=0.05)
                assert law[1] / std - 1 == pytest.approx(-0.5 * (last / std) ** 2, rel=0.05)
            other = paths.velocity(schedules.edm(sigma_min=0.0), t, sigma_data=1.0)
            law = output_law(other, adams_bashforth(other, 3), 0.8, std)
            assert abs(law[1] / std - 1) < 0.2 * abs(exact)


@pytest.mark.claim("paths-clean-end")
def test_last_step_to_clean_data_depends_on_rho() -> None:
    """Where alpha differs from 1, rho and sigma do; 2 % is less than 1/sqrt(1 + q) and 1 - q/2 differ by."""
    std, last = 0.5, 0.2
    t = np.append(np.linspace(0.98, last, 400), 0.0)
    law = output_law(paths.x0(FLOW, t), adams_bashforth(paths.x0(FLOW, t), 3), 0.8, std)
    q = (last / (1 - last) / std) ** 2
    assert law[1] / std - 1 == pytest.approx((1 + q) ** -0.5 - 1, rel=0.02)
    for wrong in ((1 + (last / std) ** 2) ** -0.5 - 1, -q / 2):
        assert law[1] / std - 1 != pytest.approx(wrong, rel=0.1)


@pytest.mark.claim("paths-clean-end")
def test_velocity_takes_its_last_step_to_clean_data_without_noise() -> None:
    """On a point mass noise in that step would leave sqrt(2) sigma of the step before."""
    sigma, from_zero = 0.01, schedules.edm(sigma_min=0.0)
    for last, spread in ((0.0, 0.0), (1e-9, math.sqrt(2) * sigma)):
        path = paths.velocity(from_zero, np.asarray([sigma, last]), eta=1.0)
        found = output_law(path, adams_bashforth(path, 1), 0.0, 1e-12)[1]
        assert found == pytest.approx(spread, rel=1e-3, abs=1e-5)
    clean = paths.velocity(FLOW, np.asarray([0.5, 0.2, 0.0]), eta=np.asarray([0.4, 0.7]))
    keep, noise = clean.propagate(clean.start, clean.stop)
    assert noise is not None
    assert (noise > 0).tolist() == [True, False]
    np.testing.assert_allclose(keep[1], 1 / math.hypot(0.8, 0.2), rtol=ROUNDING)


@pytest.mark.claim("paths-noisy-end", "paths-clean-end")
def test_one_step_from_pure_noise_to_clean_data() -> None:
    """D on x0, sigma_data x + pi/2 D on velocity."""
    t = np.asarray([1.0, 0.0])
    denoised = MIXTURE.denoise(X, FLOW.level(1.0))
    for coordinate in ("log_snr", "ratio"):
        y = ab1(MIXTURE.denoise, X, paths.x0(FLOW, t, coordinate=coordinate))
        np.testing.assert_allclose(y, denoised, rtol=1e-14)
    for sd in (1.0, 0.4):
        y = ab1(MIXTURE.denoise, X, paths.velocity(FLOW, t, sigma_data=sd))
        np.testing.assert_allclose(y, sd * X + math.pi / 2 * denoised, rtol=1e-13)


@pytest.mark.claim("paths-noisy-end")
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
@pytest.mark.parametrize("coordinate", ["log_snr", "ratio"])
def test_noise_path_refuses_pure_noise(schedule: Schedule, coordinate: str) -> None:
    with pytest.raises(ValueError, match="t must start where alpha > 0 on a noise path, got alpha = 0"):
        paths.noise(schedule, np.asarray([1.0, 0.5]), coordinate=coordinate)


@pytest.mark.claim("paths-noisy-end")
def test_fractional_eta_from_pure_noise() -> None:
    """The kernel starts like w^(eta^2); the first step is the exact integral, so constants are reproduced."""
    for eta in (0.3, 0.7, 1.3):
        path = paths.velocity(VP, np.asarray([1.0, 0.6]), eta=eta)
        moment = path.moments(path.start, path.stop, 1)[0][0]
        end = math.pi / 2 * 0.4
        with mp.workdps(DIGITS):
            exact = -(1 + eta**2) * mp.quad(lambda w: (mp.sin(w) / mp.sin(end)) ** (eta**2), [0, 1e-6, 1e-2, end])
        assert moment == pytest.approx(float(exact), rel=1e-12)
        keep, noise = path.propagate(path.start, path.stop)
        assert (keep[0], noise[0]) == (0.0, pytest.approx(1.0, rel=1e-15))
    t = np.asarray([1.0, 0.8, 0.5, 0.1])
    y = ab2(MIXTURE.denoise, X, paths.velocity(FLOW, t, eta=0.7), rng=lambda row, like: 0.0 * like)
    assert np.isfinite(y).all()
    # alpha = 0 leaves no trace of x where there is noise
    np.testing.assert_allclose(y, np.broadcast_to(y[0], y.shape), rtol=1e-12)


def test_cosine_of_the_angle_is_exact_at_pure_noise() -> None:
    """cos(atan2(sigma, alpha)) is 6e-17 there, and 6e-17^(eta^2) is .035 at eta = .3."""
    angle = np.atan2(1.0, 0.0)
    assert 1e-17 < np.cos(angle) < 1e-16
    assert np.cos(angle) ** 0.09 > 0.03
    path = paths.velocity(FLOW, np.asarray([1.0, 0.5]), eta=0.3)
    assert path.propagate(path.start, path.stop)[0][0] == 0.0


# -- moved nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.claim("paths-bridge", "paths-churn", "paths-ancestral")
@pytest.mark.parametrize("geometry", list(SCHEDULES))
def test_gaps_are_bridged_by_the_forward_kernel(geometry: str) -> None:
    """x_b | x_a has factor alpha_b/alpha_a and variance sigma_b^2 - (alpha_b/alpha_a)^2 sigma_a^2."""
    schedule = SCHEDULES[geometry]
    t = schedule.time(np.asarray([-1.0, 0.2, 0.9, 2.5]))
    churned = paths.churn(paths.x0(schedule, t), 0.3, s_noise=1.1)
    np.testing.assert_allclose(churned.start.sigma / churned.start.alpha, 1.3 * np.exp([1.0, -0.2, -0.9]), rtol=1e-12)
    assert (churned.steps, churned.gaps, churned.stochastic, churned.gap_noise) == (3, True, False, 1.1)
    assert paths.churn(paths.x0(schedule, t), 0.3).gap_noise == 1.0
    assert float(churned.first.log_snr) == pytest.approx(-1.0, rel=1e-13)
    table = adams_bashforth(churned, 1)
    a, b = churned.first, Level(*(part[0] for part in churned.start))
    factor = b.alpha / a.alpha
    np.testing.assert_allclose(table.start, [factor, 1.1 * math.sqrt(b.sigma**2 - factor**2 * a.sigma**2)], rtol=1e-12)
    # a sample of the marginal stays one
    assert math.hypot(factor * a.sigma, table.start[1] / 1.1) == pytest.approx(b.sigma, rel=1e-13)
    assert table.noise[-1] == 0.0
    lowered = paths.ancestral(paths.x0(schedule, t), np.asarray([0.5, 0.0, 1.0]))
    assert adams_bashforth(lowered, 1).start.tolist() == [1.0, 0.0]
    assert adams_bashforth(lowered, 1).noise[1] == 0.0
    np.testing.assert_allclose(lowered.start.log_snr, [-1.0, 0.2, 0.9], rtol=1e-12)
    assert (lowered.stop.sigma / lowered.stop.alpha)[2] == pytest.approx(
        math.exp(-2.5) * math.exp(0.9 - 2.5), rel=1e-12
    )
    assert float(lowered.last.log_snr) == pytest.approx(2.5, rel=1e-13)


@pytest.mark.claim("paths-churn")
def test_churn_is_the_published_algorithm() -> None:
    """Raise sigma by 1 + gamma_n, add noise of the difference of variances, then an Euler step to the next sigma."""
    t, gamma = np.asarray([10.0, 3.0, 0.5, 0.05]), np.asarray([0.4, 0.0, 0.1])
    z = np.random.default_rng(3).standard_normal((4, *X.shape))
    expected = 10.0 * X
    order = [3, 0, 1]  # the noise before the first row has the last number
    for n, (now, then) in enumerate(itertools.pairwise(t)):
        raised = now * (1 + gamma[n])
        expected = expected + 1.003 * math.sqrt(raised**2 - now**2) * z[order[n]]
        slope = (expected - MIXTURE.denoise(expected, VE.level(raised))) / raised
        expected = expected + (then - raised) * slope
    path = paths.churn(paths.noise(VE, t, coordinate="ratio"), gamma, s_noise=1.003)
    y = ab1(MIXTURE.denoise, 10.0 * X, path, rng=lambda row, like: z[row])
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@pytest.mark.claim("paths-churn", "paths-ancestral")
def test_no_noise_is_the_same_path() -> None:
    path = paths.noise(VP, np.asarray([0.9, 0.5, 0.2]))
    assert paths.churn(path, 0.0) is path
    assert paths.churn(path, np.zeros(2)) is path
    assert paths.ancestral(path, 0.0) is path
    assert not path.gaps


@pytest.mark.claim("paths-ancestral")
def test_ancestral_at_the_ends() -> None:
    """Towards sigma = 0 no noise can be put back; from alpha = 0 with eta = 1 a step goes all the way down."""
    path = paths.ancestral(paths.x0(FLOW, np.asarray([1.0, 0.5, 0.0])), 1.0)
    assert path.stop.sigma.tolist() == [0.0, 0.0]
    assert path.stop.alpha.tolist() == [1.0, 1.0]
    assert adams_bashforth(path, 1).noise.tolist() == [0.5, 0.0]
    half = paths.ancestral(paths.x0(FLOW, np.asarray([1.0, 0.5])), 0.6)
    assert (half.stop.sigma / half.stop.alpha)[0] == pytest.approx(0.8, rel=1e-13)
    # a long step: the part that is left is e^-80, not the rounding error of 1 - (1 - e^-80)
    wide = schedules.edm(sigma_min=0.0, sigma_max=1e30)
    far = paths.ancestral(paths.x0(wide, np.asarray([math.exp(20.0), math.exp(-20.0)])), 1.0)
    assert far.stop.sigma[0] == pytest.approx(math.exp(-60.0), rel=1e-12)


# -- semilinear equations ---------------------------------------------------------------------------------------------


def forced(t_start: float, t_stop: float) -> np.ndarray:
    """Solution of y' = cos(3t) y + sin(y + t) from y = .4."""
    found = solve_ivp(
        lambda t, y: np.cos(3 * t) * y + np.sin(y + t),
        (t_start, t_stop),
        [0.4],
        method="DOP853",
        rtol=1e-13,
        atol=1e-13,
    )
    return found.y[:, -1]


def forcing(y: np.ndarray, at: Level) -> np.ndarray:
    return np.sin(y + at.t)


RATES = {
    "rate": {"rate": lambda t: np.cos(3 * t)},
    "integral": {"integral": lambda t: np.sin(3 * t) / 3},
    "both": {"rate": lambda t: 99.0 * t, "integral": lambda t: np.sin(3 * t) / 3 + 7.0},
}


@pytest.mark.claim("paths-semilinear")
@pytest.mark.parametrize("ends", [(0.0, 2.0), (2.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("given", RATES)
def test_semilinear_with_a_varying_rate(given: str, ends: tuple[float, float]) -> None:
    options = dict(RATES[given])
    rate, exact, errors = options.pop("rate", None), forced(*ends), []
    for n in (200, 400):
        y = ab3(forcing, np.asarray([0.4]), paths.semilinear(np.linspace(*ends, n + 1), rate, **options))
        errors.append(np.abs(y - exact).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(3, abs=ORDER)
    assert errors[1] < 2e-6


@pytest.mark.claim("paths-semilinear")
def test_a_frozen_rate_caps_the_order() -> None:
    """The rate in the middle of each step in place of its integral: order 2 for any method; at the left end order 1."""
    exact = forced(0.0, 2.0)
    for place, order in ((0.5, 2), (0.0, 1)):
        errors = []
        for n in (200, 400):
            t = np.linspace(0.0, 2.0, n + 1)

            def frozen(s: np.ndarray, t: np.ndarray = t, place: float = place) -> np.ndarray:
                """Antiderivative of the piecewise constant rate."""
                steps = np.cos(3 * (t[:-1] + place * np.diff(t))) * np.diff(t)
                return np.interp(s, t, np.concatenate([[0.0], np.cumsum(steps)]))

            y = ab4(forcing, np.asarray([0.4]), paths.semilinear(t, integral=frozen))
            errors.append(np.abs(y - exact).max())
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


@pytest.mark.claim("paths-semilinear")
@pytest.mark.parametrize("rate", [-2.0, 3, 0.0, None])
def test_semilinear_with_a_constant_rate(rate: float | None) -> None:
    """P and moments from the definition, forward and backward in time."""
    a = 0.0 if rate is None else float(rate)
    for t in (np.asarray([0.2, 0.5, 1.7]), np.asarray([1.7, 0.5, 0.2])):
        path = paths.semilinear(t, rate)
        keep, noise = path.propagate(path.start, path.stop)
        np.testing.assert_allclose(keep, np.exp(a * np.diff(t)), rtol=ROUNDING)
        assert noise is None
        moments = path.moments(path.start, path.stop, 4)
        for n, (start, stop) in enumerate(itertools.pairwise(t)):
            for j in range(4):
                with mp.workdps(DIGITS):
                    exact = mp.quad(
                        lambda s, j=j, p=start, q=stop: mp.exp(a * (q - s)) * ((s - p) / (q - p)) ** j, [start, stop]
                    )
                assert moments[j][n] == pytest.approx(float(exact), rel=1e-14)
        same = paths.semilinear(t, lambda s: a + 0.0 * s).moments(path.start, path.stop, 4)
        np.testing.assert_allclose(same, moments, rtol=1e-13)


@pytest.mark.claim("paths-semilinear")
def test_moments_of_a_varying_rate_up_to_the_largest_exponent() -> None:
    """Kernel exp(+-50): 32 points are rounding-exact relative to the largest value in the step."""
    t = np.asarray([0.0, 1.0])
    for sign in (-1.0, 1.0):
        path = paths.semilinear(t, lambda s, c=sign: c * 100.0 * s)
        moments = path.moments(path.start, path.stop, 4)
        for j in range(4):
            with mp.workdps(40):
                exact = mp.quad(lambda s, j=j, c=sign: mp.exp(c * 50 * (1 - s**2)) * s**j, mp.linspace(0, 1, 9))
            assert moments[j][0] == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.claim("paths-semilinear")
def test_semilinear_refuses_what_its_quadrature_cannot_do() -> None:
    t = np.asarray([0.0, 1.0, 3.0])
    for sign in (1.0, -1.0):
        with pytest.raises(ValueError, match=r"rate must integrate to at most 50 in one step, got 51"):
            paths.semilinear(t, lambda s, c=sign: c * 25.5 + 0.0 * s)
        with pytest.raises(ValueError, match="rate must integrate"):
            paths.semilinear(t, integral=lambda s, c=sign: c * 26.0 * s)
    with pytest.raises(ValueError, match="rate must integrate"):
        paths.semilinear(t, lambda s: np.nan * s)
    assert paths.semilinear(t, lambda s: 25.0 + 0.0 * s).steps == 2
    assert paths.semilinear(t, 1e4 * -1).steps == 2
    stiff = paths.semilinear(t, -1e5)
    assert stiff.propagate(stiff.start, stiff.stop)[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(stiff.moments(stiff.start, stiff.stop, 1)[0], 1e-5, rtol=ROUNDING)
    with pytest.raises(TypeError, match=r"rate must be a callable or None where integral is given, got 2"):
        paths.semilinear(t, 2.0, integral=lambda s: s)
    with pytest.raises(TypeError, match=r"integral must be a callable or None where integral is given, got 3"):
        paths.semilinear(t, integral=3)
    for rate in ("fast", np.nan, np.inf, True, np.ones(2)):
        with pytest.raises(ValueError, match="rate must be a finite number"):
            paths.semilinear(t, rate)


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.claim("paths-step")
@pytest.mark.parametrize("name", EVERY_PATH)
def test_record(name: str) -> None:
    """Nodes in order, coordinate and its inverse, the step formula under composition."""
    t = np.asarray([0.95, 0.9, 0.5, 0.2, 0.1])
    path = EVERY_PATH[name](t)
    assert path.steps == path.start.t.shape[0] == path.stop.t.shape[0]
    assert path.first.t.shape == path.last.t.shape == ()
    assert path.stochastic == ("sde" in name)
    assert path.gaps == (name in {"ancestral", "churn"})
    assert (path.target is None) == (
        name in {"x0", "x0 sde", "ratio", "ratio sde", "semilinear", "varying", "ancestral"}
    )
    assert (path.schedule is None) == (name in {"semilinear", "varying"})
    assert path.name.startswith(
        name
        if name in {"semilinear", "ancestral"}
        else {"varying": "semi", "ratio": "x0", "ratio sde": "x0"}.get(name, name.split(maxsplit=1)[0])
    )
    for part in range(3):
        assert path.first[part] == (path.start[part][0] if name != "churn" else path.first[part])
        assert path.last[part] == (path.stop[part][-1] if name != "ancestral" else path.last[part])
    if not path.gaps:
        np.testing.assert_array_equal(path.stop.t[:-1], path.start.t[1:])
        np.testing.assert_array_equal(path.start.t, t[-path.steps - 1 : -1])
        np.testing.assert_array_equal(path.stop.t, t[-path.steps :])
    a, b = path.coordinate(path.start), path.coordinate(path.stop)
    middle = path.at(0.5 * (a + b))
    np.testing.assert_allclose(path.coordinate(middle), 0.5 * (a + b), rtol=1e-14)
    for part, again in zip(path.start, path.at(a), strict=True):
        np.testing.assert_allclose(again, part, rtol=1e-13)
    # two half steps are the step: P multiplies, variances add up, first moments add up
    keep, noise = path.propagate(path.start, path.stop)
    first, second = path.propagate(path.start, middle), path.propagate(middle, path.stop)
    np.testing.assert_allclose(second[0] * first[0], keep, rtol=1e-13)
    half = [path.moments(*ends, 1)[0] for ends in ((path.start, middle), (middle, path.stop))]
    np.testing.assert_allclose(second[0] * half[0] + half[1], path.moments(path.start, path.stop, 1)[0], rtol=1e-13)
    if noise is not None:
        np.testing.assert_allclose(np.hypot(second[0] * first[1], second[1]), noise, rtol=1e-13)
        some = path.propagate(*(Level(*(p[1:3] for p in part)) for part in (path.start, path.stop)), slice(1, 3))
        np.testing.assert_array_equal(some[1], noise[1:3])
    with pytest.raises(dataclasses.FrozenInstanceError):
        path.name = "other"
    assert path != EVERY_PATH[name](t)
    assert path in {path}


def test_names_say_what_a_path_is() -> None:
    t = np.asarray([0.9, 0.5])
    assert paths.x0(FLOW, t).name == "x0(rectified_flow(), log_snr)"
    assert paths.noise(FLOW, t, coordinate="ratio").name == "noise(rectified_flow(), ratio)"
    assert paths.velocity(FLOW, t, sigma_data=0.5).name == "velocity(rectified_flow(), 0.5)"
    assert paths.ancestral(paths.x0(FLOW, t)).name == "ancestral x0(rectified_flow(), log_snr)"
    assert paths.churn(paths.x0(FLOW, t), 0.1).name == "churned x0(rectified_flow(), log_snr)"


def test_eta_may_differ_from_step_to_step() -> None:
    t, etas = np.asarray([0.9, 0.7, 0.4, 0.1]), np.asarray([0.0, 0.6, 1.0])
    for build in (
        lambda e: paths.x0(FLOW, t, eta=e),
        lambda e: paths.x0(FLOW, t, eta=e, coordinate="ratio"),
        lambda e: paths.velocity(FLOW, t, eta=e, sigma_data=0.5),
    ):
        mixed = build(etas)
        assert mixed.stochastic
        assert not build(np.zeros(3)).stochastic
        for n, eta in enumerate(etas):
            one = build(eta)
            keep, noise = one.propagate(one.start, one.stop)
            got = mixed.propagate(mixed.start, mixed.stop)
            assert got[0][n] == pytest.approx(keep[n], rel=1e-15)
            assert got[1][n] == pytest.approx(0.0 if noise is None else noise[n], rel=1e-15)
            for m, want in zip(
                mixed.moments(mixed.start, mixed.stop, 3), one.moments(one.start, one.stop, 3), strict=True
            ):
                assert m[n] == pytest.approx(want[n], rel=1e-14)


def test_logarithm_of_the_cosine_at_both_ends_and_between() -> None:
    pairs = [(0.0, 1.0), (1.0, 0.0), (0.3, 0.9), (0.9, 1e-9), (1e-200, 1.0)]
    values = log_cosine(level(pairs), 0.5)
    assert values[0] == -math.inf
    with mp.workdps(40):
        for value, (alpha, sigma) in zip(values[1:], pairs[1:], strict=True):
            exact = mp.log(0.5 * mp.mpf(alpha) / mp.sqrt((0.5 * mp.mpf(alpha)) ** 2 + mp.mpf(sigma) ** 2))
            assert value == pytest.approx(float(exact), rel=ROUNDING)


@pytest.mark.claim("paths-noise-variance")
def test_variance_of_a_short_step_in_float32() -> None:
    """1 - r^(2 eta^2) formed as it is written loses all digits; expm1 keeps them."""
    jax = pytest.importorskip("jax")
    h = np.float32(1e-5)
    path = paths.x0(VE, jax.numpy.asarray([1.0, 0.5], "float32"), eta=0.03)
    # sigma/alpha of the levels carries the step, in float32 too
    b = Level(*(jax.numpy.asarray([x], "float32") for x in (0.5, 1.0, 0.5)))
    a = b._replace(sigma=b.sigma * (1 + h))
    exact = 0.5 * math.sqrt(-math.expm1(-2 * 0.0009 * math.log(float(a.sigma[0]) / 0.5)))
    assert float(path.propagate(a, b)[1][0]) == pytest.approx(exact, rel=1e-2)
    ratio = np.float32(0.5) / np.asarray(a.sigma)[0]
    naive = 0.5 * np.sqrt(np.float32(1) - ratio ** np.float32(0.0018))
    assert abs(naive / exact - 1) > 0.5


# -- JAX and PyTorch --------------------------------------------------------------------------------------------------


def linear_denoiser(x: Any, at: Level) -> Any:
    """A denoiser of N(.4, 1), in any library."""
    variance = at.alpha**2 + at.sigma**2
    return 0.4 + at.alpha / variance * (x - 0.4 * at.alpha) + 0.1 * x / (1 + x * x)


DIFFERENTIABLE = {
    "x0": lambda t, eta: paths.x0(FLOW, t),
    "x0 sde": lambda t, eta: paths.x0(FLOW, t, eta=eta),
    "ratio sde": lambda t, eta: paths.x0(VP, t, eta=eta, coordinate="ratio"),
    "noise": lambda t, eta: paths.noise(VP, t),
    "noise ratio": lambda t, eta: paths.noise(FLOW, t, coordinate="ratio"),
    "velocity": lambda t, eta: paths.velocity(FLOW, t, sigma_data=0.5, centre=0.3),
    "velocity sde": lambda t, eta: paths.velocity(VP, t, eta=eta, sigma_data=0.5),
    "semilinear": lambda t, eta: paths.semilinear(t, -0.7),
    "ancestral": lambda t, eta: paths.ancestral(paths.x0(FLOW, t), eta),
    "churn": lambda t, eta: paths.churn(paths.noise(VP, t, coordinate="ratio"), 0.3 * eta),
    "converted": lambda t, eta: paths.x0(
        FLOW, t, eta=paths.from_ddim_eta(eta, FLOW.log_snr(t)[1:] - FLOW.log_snr(t)[:-1])
    ),
}

DRAWS = np.random.default_rng(5).standard_normal((9, 1))
T_INSIDE = np.asarray([0.93, 0.7, 0.64, 0.3, 0.12])


def run_in_numpy(name: str, t: np.ndarray, eta: float) -> float:
    path = DIFFERENTIABLE[name](t, eta)
    return float(ab2(linear_denoiser, np.asarray([0.7]), path, rng=lambda row, like: DRAWS[row])[0])


def difference(function: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences of a function of an array, one entry at a time."""
    out = []
    for i in range(x.size):
        e = step * np.eye(x.size)[i]
        out.append((function(x + e) - function(x - e)) / (2 * step))
    return np.asarray(out)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_grid_and_eta_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    t = torch.asarray(T_INSIDE, requires_grad=True)
    eta = torch.asarray(0.6, dtype=torch.float64, requires_grad=True)
    path = DIFFERENTIABLE[name](t, eta)
    x = torch.asarray([0.7], dtype=torch.float64)
    y = ab2(linear_denoiser, x, path, rng=lambda row, like: torch.asarray(DRAWS[row]))
    y.sum().backward()
    assert y.item() == pytest.approx(run_in_numpy(name, T_INSIDE, 0.6), rel=1e-13)
    np.testing.assert_allclose(
        t.grad.numpy(), difference(lambda s: run_in_numpy(name, s, 0.6), T_INSIDE), rtol=2e-6, atol=1e-8
    )
    if eta.grad is not None:
        slope = difference(lambda e: run_in_numpy(name, T_INSIDE, float(e[0])), np.asarray([0.6]))[0]
        assert float(eta.grad) == pytest.approx(slope, rel=1e-6)
    assert (eta.grad is not None) == (
        name in {"x0 sde", "ratio sde", "velocity sde", "ancestral", "churn", "converted"}
    )


@pytest.mark.parametrize("name", ["x0 sde", "ratio sde", "velocity sde", "ancestral", "converted", "velocity", "x0"])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_no_gradient_is_nan_from_pure_noise_to_clean_data(name: str, eta: float) -> None:
    """Both ends singular, eta at the ends of its range; inner nodes have the gradients of finite differences."""
    torch = pytest.importorskip("torch")
    t = np.asarray([1.0, 0.7, 0.4, 0.0])
    leaf = torch.asarray(t, requires_grad=True)
    strength = torch.asarray([eta] * 3, dtype=torch.float64, requires_grad=True)
    path = DIFFERENTIABLE[name](leaf, strength)
    y = ab1(
        linear_denoiser,
        torch.asarray([0.7], dtype=torch.float64),
        path,
        rng=lambda row, like: torch.asarray(DRAWS[row]),
    )
    y.sum().backward()
    assert np.isfinite(leaf.grad.numpy()).all()
    assert strength.grad is None or np.isfinite(strength.grad.numpy()).all()
    if name in {"x0", "velocity", "x0 sde", "ratio sde", "velocity sde"}:

        def inner(s: np.ndarray) -> float:
            path = DIFFERENTIABLE[name](np.concatenate([[1.0], s, [0.0]]), eta)
            return float(ab1(linear_denoiser, np.asarray([0.7]), path, rng=lambda row, like: DRAWS[row])[0])

        np.testing.assert_allclose(leaf.grad.numpy()[1:-1], difference(inner, t[1:-1]), rtol=1e-5, atol=1e-8)


@pytest.mark.claim("paths-noise-variance")
@pytest.mark.parametrize("name", ["x0 sde", "ratio sde", "velocity sde", "converted"])
def test_derivative_with_respect_to_eta_at_zero(name: str) -> None:
    """The noise grows linearly from eta = 0: the derivative there is that of the noise, not 0."""
    jax = pytest.importorskip("jax")

    def output(eta: Any) -> Any:
        path = DIFFERENTIABLE[name](T_INSIDE, eta)
        return path.propagate(path.start, path.stop)[1].sum()

    slope = float(jax.jit(jax.grad(output))(0.0))
    step = 1e-6
    path = DIFFERENTIABLE[name](T_INSIDE, step)
    assert slope == pytest.approx(float(path.propagate(path.start, path.stop)[1].sum()) / step, rel=1e-5)
    assert slope > 0.5


def test_under_jit_with_grid_and_eta_traced() -> None:
    jax = pytest.importorskip("jax")

    def output(t: Any, eta: Any) -> Any:
        path = DIFFERENTIABLE["x0 sde"](t, eta)
        return ab2(
            linear_denoiser, jax.numpy.asarray([0.7]), path, rng=lambda row, like: jax.numpy.asarray(DRAWS)[row]
        )[0]

    value, slopes = jax.jit(jax.value_and_grad(output))(T_INSIDE, 0.6)
    assert float(value) == pytest.approx(run_in_numpy("x0 sde", T_INSIDE, 0.6), rel=1e-12)
    expected = difference(lambda s: run_in_numpy("x0 sde", s, 0.6), T_INSIDE)
    np.testing.assert_allclose(slopes, expected, rtol=2e-6, atol=1e-8)


def test_eta_mapped_over_a_numpy_grid() -> None:
    """eta decides the library: a NumPy grid and a mapped eta give paths of JAX, moved ones too."""
    jax = pytest.importorskip("jax")
    etas = np.asarray([0.0, 0.5, 1.0])

    def added(eta: Any) -> Any:
        path = paths.x0(FLOW, np.asarray([0.9, 0.5]), eta=eta)
        moved = paths.ancestral(paths.velocity(FLOW, np.asarray([0.9, 0.5])), eta)
        churned = paths.churn(paths.noise(FLOW, np.asarray([0.9, 0.5])), eta)
        return (
            path.propagate(path.start, path.stop)[1][0],
            moved.stop.sigma[0] / moved.stop.alpha[0],
            churned.start.sigma[0],
        )

    noise, lowered, raised = jax.vmap(added)(etas)
    np.testing.assert_allclose(noise, 0.5 * np.sqrt(-np.expm1(-2 * etas**2 * math.log(9))), rtol=1e-13)
    np.testing.assert_allclose(lowered, np.sqrt(1 + etas**2 * math.expm1(-2 * math.log(9))), rtol=1e-13)
    np.testing.assert_allclose(raised, 9 * (1 + etas) / (1 + 9 * (1 + etas)), rtol=1e-13)


def test_jax_without_64_bits() -> None:
    """Grids from pure noise to clean data in float32, traced or not; a NumPy grid keeps float64 coefficients."""
    jax = pytest.importorskip("jax")
    t = np.linspace(1.0, 0.0, 9)
    expected = ab1(
        linear_denoiser, np.asarray([0.7]), paths.velocity(FLOW, t, eta=0.5), rng=lambda row, like: DRAWS[row]
    )
    with jax.enable_x64(False):
        x, draws = jax.numpy.asarray([0.7]), jax.numpy.asarray(DRAWS)

        def output(t: Any) -> Any:
            return ab1(linear_denoiser, x, paths.velocity(FLOW, t, eta=0.5), rng=lambda row, like: draws[row])

        for y in (jax.jit(output)(jax.numpy.asarray(t)), jax.jit(lambda: output(t))()):
            assert y.dtype == "float32"
            np.testing.assert_allclose(y, expected, rtol=5e-6)
        path = paths.velocity(FLOW, t)
        assert path.start.t.dtype == "float64"
        assert isinstance(path.start.t, np.ndarray)


# -- bad input --------------------------------------------------------------------------------------------------------

MAKERS = {
    "x0": lambda t, **kw: paths.x0(FLOW, t, **kw),
    "noise": lambda t, **kw: paths.noise(FLOW, t, **kw),
    "velocity": lambda t, **kw: paths.velocity(FLOW, t, **kw),
}
GOOD = np.asarray([0.9, 0.5, 0.1])


@pytest.mark.parametrize("name", [*MAKERS, "semilinear"])
@given(values=st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_grids_that_are_not_strictly_decreasing(name: str, values: list[float], data: st.DataObject) -> None:
    grid = np.sort(np.asarray(values))[::-1].copy()
    i = data.draw(st.integers(0, grid.size - 2))
    kind = data.draw(st.sampled_from(["repeat", "swap", "nan", "inf"]))
    if kind == "repeat":
        grid[i + 1] = grid[i]
    elif kind == "swap":
        grid[i], grid[i + 1] = grid[i + 1], grid[i] + 0.005
        if name == "semilinear" and grid.size == 2:
            return
    else:
        grid[i] = float(kind)
    maker = MAKERS.get(name, paths.semilinear)
    if name == "semilinear" and (np.diff(grid) > 0).all():
        return
    with pytest.raises(ValueError, match="t must be finite and strictly"):
        maker(grid)


@pytest.mark.parametrize("name", [*MAKERS, "semilinear"])
def test_grids_of_the_wrong_shape_or_kind(name: str) -> None:
    maker = MAKERS.get(name, paths.semilinear)
    for bad in (0.5, np.asarray([0.5]), np.ones((2, 2)), np.empty(0), GOOD[:, None]):
        with pytest.raises(ValueError, match=r"t must have shape \(N \+ 1,\) with N >= 1, got \("):
            maker(bad)
    for bad in ("noisy", np.asarray([1j, 0]), np.asarray([True, False])):
        with pytest.raises(TypeError, match="t must be real numbers"):
            maker(bad)
    assert maker([0.9, 0.5, 0.1]).steps == 2
    assert maker(np.asarray([0.9, 0.5], "float32")).start.t.dtype == "float64"


@pytest.mark.parametrize("name", MAKERS)
def test_grids_must_lie_inside_the_schedule(name: str) -> None:
    for bad in ([1.01, 0.5], [0.5, -0.01]):
        with pytest.raises(ValueError, match=r"t must lie in \[0.0, 1.0\] for rectified_flow\(\), got"):
            MAKERS[name](np.asarray(bad))
    with pytest.raises(ValueError, match="strictly decreasing"):
        MAKERS[name](np.asarray([0.1, 0.5]))
    maker = {"x0": paths.x0, "noise": paths.noise, "velocity": paths.velocity}[name]
    for bad in ("flow", None, 3, schedules.rectified_flow):
        with pytest.raises(TypeError, match="schedule must be a Schedule, got"):
            maker(bad, GOOD)
    short = schedules.truncate(FLOW, t_clean=0.7, t_noise=0.9)
    assert maker(short, np.asarray([0.9, 0.7])).steps == 1
    assert maker(short, np.asarray([0.9, 0.7], "float32")).steps == 1
    with pytest.raises(ValueError, match="t must lie"):
        maker(short, np.asarray([0.9, np.nextafter(np.float32(0.7), np.float32(0))], "float32"))
    with pytest.raises(ValueError, match="t must lie"):
        maker(short, np.asarray([0.9, 0.05]))


@given(st.one_of(st.floats(max_value=-1e-9), st.just(math.nan), st.just(math.inf)))
@settings(max_examples=30, deadline=None)
def test_eta_out_of_range(eta: float) -> None:
    for name in ("x0", "velocity"):
        with pytest.raises(ValueError, match="eta must be finite and >= 0, got"):
            MAKERS[name](GOOD, eta=eta)
    path = paths.x0(FLOW, GOOD)
    with pytest.raises(ValueError, match=r"eta must be in \[0, 1\], got"):
        paths.ancestral(path, eta)
    with pytest.raises(ValueError, match="gamma must be finite and >= 0, got"):
        paths.churn(path, eta)
    with pytest.raises(ValueError, match=r"eta must be in \[0, 1\], got"):
        paths.from_ddim_eta(eta, np.ones(1))
    with pytest.raises(ValueError, match="eta must be a finite number >= 0, got"):
        paths.from_sde_2m_eta(eta)


def test_eta_and_gamma_of_the_wrong_shape_or_kind() -> None:
    path = paths.x0(FLOW, GOOD)
    calls = {
        "eta": [
            lambda v: paths.x0(FLOW, GOOD, eta=v),
            lambda v: paths.velocity(FLOW, GOOD, eta=v),
            lambda v: paths.ancestral(path, v),
        ],
        "gamma": [lambda v: paths.churn(path, v)],
    }
    for name, functions in calls.items():
        for function in functions:
            for bad in (np.full(3, 0.5), np.full(1, 0.5), np.full((2, 1), 0.5), np.full((2, 2), 0.5)):
                with pytest.raises(
                    ValueError, match=rf"{name} must be a number or have shape \(2,\), one for each step; got \("
                ):
                    function(bad)
            for bad in ("much", np.asarray([True, False]), 1j):
                with pytest.raises(TypeError, match=f"{name} must be real numbers"):
                    function(bad)
            assert function(np.asarray([0.5, 0.0])).steps == 2
    for too_much in (1.0001, np.asarray([0.5, 2.0])):
        with pytest.raises(ValueError, match=r"eta must be in \[0, 1\], got"):
            paths.ancestral(path, too_much)
    assert paths.x0(FLOW, GOOD, eta=3.0).stochastic
    assert paths.churn(path, 7).gaps


def test_ancestral_and_churn_need_an_ode_path_whose_steps_join() -> None:
    for bad in (
        paths.x0(FLOW, GOOD, eta=0.5),
        paths.velocity(FLOW, GOOD, eta=0.5),
        paths.ancestral(paths.x0(FLOW, GOOD)),
        paths.churn(paths.x0(FLOW, GOOD), 0.1),
        paths.semilinear(GOOD, 1.0),
    ):
        for function in (lambda p: paths.ancestral(p, 0.0), lambda p: paths.churn(p, 0.0)):
            with pytest.raises(ValueError, match="path must be an ODE path on a schedule whose steps join, got"):
                function(bad)
    for function in (paths.ancestral, lambda p: paths.churn(p, 0.1)):
        with pytest.raises(TypeError, match="path must be a Path, got ndarray"):
            function(GOOD)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "one", True, None, np.ones(1), 1j])
def test_numbers_that_must_be_positive(bad: object) -> None:
    with pytest.raises(ValueError, match="sigma_data must be a finite number > 0, got"):
        paths.velocity(FLOW, GOOD, sigma_data=bad)
    with pytest.raises(ValueError, match="s_noise must be a finite number > 0, got"):
        paths.churn(paths.x0(FLOW, GOOD), 0.1, s_noise=bad)
    assert paths.velocity(FLOW, GOOD, sigma_data=np.float32(0.5)).steps == 2
    assert paths.velocity(FLOW, GOOD, sigma_data=2).steps == 2


def test_centres() -> None:
    for none in (0.0, 0):
        assert paths.velocity(FLOW, GOOD, centre=none).centre is None
    assert paths.velocity(FLOW, GOOD, centre=np.zeros(2)).centre.shape == (2,)
    assert paths.velocity(FLOW, GOOD, centre=2).centre.dtype == "float64"
    with pytest.raises(ValueError, match="centre must be finite"):
        paths.velocity(FLOW, GOOD, centre=np.asarray([0.0, np.nan]))
    for bad in ("middle", 1j, False):
        with pytest.raises(TypeError, match="centre must be real numbers"):
            paths.velocity(FLOW, GOOD, centre=bad)


@pytest.mark.parametrize("bad", ["lambda", None, 1, "LOG_SNR"])
def test_coordinates_by_name(bad: object) -> None:
    for maker, last in ((paths.x0, "'ratio'"), (paths.noise, "'ratio', 't'")):
        with pytest.raises(ValueError, match=rf"coordinate must be one of \('log_snr', {last}\), got"):
            maker(FLOW, GOOD, coordinate=bad)


def test_steps_of_ddim_eta() -> None:
    for bad in (np.asarray([0.0]), np.asarray([1.0, -1.0]), np.asarray([np.nan])):
        with pytest.raises(ValueError, match="h must be > 0, got"):
            paths.from_ddim_eta(0.5, bad)
    with pytest.raises(ValueError, match="eta must be a number or have shape"):
        paths.from_ddim_eta(np.ones(2), np.ones(3))
    with pytest.raises(TypeError, match="h must be real numbers"):
        paths.from_ddim_eta(0.5, "long")


# -- the derivative of what ancestral puts back -----------------------------------------------------------------------

JOINED_PATHS = {"x0": paths.x0, "noise": paths.noise, "velocity": functools.partial(paths.velocity, sigma_data=0.6)}


def posterior_share(t: np.ndarray) -> np.ndarray:
    """Standard deviation of q(x_s | x_t, x_0) at eta = 1: (sigma_s/sigma_t) sqrt(1 - (alpha_t/alpha_s)^2), on FLOW."""
    sigma_t, sigma_s = t[:-1], t[1:]
    ratio = (1 - sigma_t) / (1 - sigma_s)
    return sigma_s / sigma_t * np.sqrt(sigma_t**2 - ratio**2 * sigma_s**2)


@pytest.mark.claim("paths-ancestral")
@pytest.mark.parametrize("eta", [1e-300, 1e-12, 1e-8, 1e-4, 0.3, 1.0])
def test_ancestral_noise_is_linear_in_eta(eta: float) -> None:
    """From the lowered levels alone it would be lost below 1e-7, where they round to the node."""
    t = np.asarray([1.0, 0.7, 0.6999, 0.2])
    table = adams_bashforth(paths.ancestral(paths.x0(FLOW, t), eta), 1)
    np.testing.assert_allclose(table.noise, eta * posterior_share(t), rtol=1e-12)


@pytest.mark.claim("paths-ancestral")
@pytest.mark.parametrize("name", JOINED_PATHS)
@pytest.mark.parametrize("eta", [0.0, 1e-9, 0.5])
def test_ancestral_derivative_in_eta(name: str, eta: float) -> None:
    """At eta = 0 the noise of a step has the derivative of its formula, not 0; the rest of the table has 0."""
    jax = pytest.importorskip("jax")
    t = np.asarray([0.95, 0.7, 0.6, 0.2])

    def parts(strength: Any) -> tuple[Any, ...]:
        table = adams_bashforth(paths.ancestral(JOINED_PATHS[name](FLOW, t), strength), 1)
        return table.noise, table.carry, table.weights

    noise, carry, weights = jax.jacobian(parts)(eta)
    np.testing.assert_allclose(noise, posterior_share(t), rtol=1e-10)
    if eta == 0.0:
        np.testing.assert_allclose(carry, 0.0, atol=1e-13)
        np.testing.assert_allclose(weights, 0.0, atol=1e-13)
    else:
        assert (np.abs(weights) > 0.1 * eta).any()


@pytest.mark.claim("paths-ancestral")
def test_ancestral_derivative_in_eta_of_a_sample() -> None:
    """Through `ddim`, against a one-sided difference; one eta a step, the middle one 0; JAX and PyTorch."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    t, eta = np.asarray([0.95, 0.7, 0.6, 0.2]), np.asarray([0.0, 0.4, 0.0])
    z = np.random.default_rng(5).standard_normal((3, *X.shape))

    def sample(strength: Any, x: Any = X) -> Any:
        return ddim(lambda x, level: 0.5 * x, x, FLOW, t, eta=strength, rng=lambda row, like: z[np.asarray(row)]).sum()

    def with_jax(strength: Any) -> Any:
        draws = jax.numpy.asarray(z)
        rng = lambda row, like: draws[row]  # noqa: E731
        return ddim(lambda x, level: 0.5 * x, jax.numpy.asarray(X), FLOW, t, eta=strength, rng=rng).sum()

    step = 1e-6
    difference = [
        (4 * sample(eta + step * unit) - sample(eta + 2 * step * unit) - 3 * sample(eta)) / (2 * step)
        for unit in np.eye(3)
    ]
    np.testing.assert_allclose(jax.grad(with_jax)(jax.numpy.asarray(eta)), difference, rtol=1e-6)
    given = torch.tensor(eta, requires_grad=True)
    ddim(
        lambda x, level: 0.5 * x, torch.tensor(X), FLOW, t, eta=given, rng=lambda row, like: torch.tensor(z[row])
    ).sum().backward()
    np.testing.assert_allclose(given.grad.numpy(), difference, rtol=1e-6)
    assert (np.abs(difference) > 1e-3).all()


@pytest.mark.claim("paths-ancestral")
def test_ancestral_derivatives_at_the_ends_are_finite() -> None:
    """Through the grid and eta, from alpha = 0 to sigma = 0, where no noise is put back."""
    jax = pytest.importorskip("jax")

    def noise(t: Any, eta: Any) -> Any:
        return adams_bashforth(paths.ancestral(paths.x0(FLOW, t), eta), 1).noise

    t = jax.numpy.asarray([1.0, 0.5, 0.2, 0.0])
    for eta in (0.0, 0.5, 1.0):
        by_t, by_eta = jax.jacobian(noise, (0, 1))(t, eta)
        assert np.isfinite(by_t).all()
        np.testing.assert_allclose(by_eta, [0.5, posterior_share(np.asarray([0.5, 0.2]))[0], 0.0], rtol=1e-12)


# -- from data to noise -----------------------------------------------------------------------------------------------

REVERSIBLE = {
    "x0": paths.x0,
    "x0 ratio": lambda s, t: paths.x0(s, t, coordinate="ratio"),
    "noise": paths.noise,
    "noise ratio": lambda s, t: paths.noise(s, t, coordinate="ratio"),
    "velocity": lambda s, t: paths.velocity(s, t, sigma_data=0.7, centre=0.3),
    "semilinear": lambda s, t: paths.semilinear(t, -1.5),
}

RETURN = 64 * EPS
"""1/P and the moments of the way back, each computed from its own formula."""


@pytest.mark.claim("paths-reverse")
@pytest.mark.parametrize("name", REVERSIBLE)
def test_reversed_path_is_the_same_equation(name: str) -> None:
    """Moments about the other end: (1 - u)^j under the integral, divided by -P."""
    path = REVERSIBLE[name](FLOW, np.asarray([0.9, 0.6, 0.35, 0.05]))
    back = paths.reverse(path)
    for mine, theirs in ((back.start, path.stop), (back.stop, path.start)):
        np.testing.assert_array_equal(mine, [part[::-1] for part in theirs])
    np.testing.assert_array_equal([*back.first, *back.last], [*path.last, *path.first])
    np.testing.assert_array_equal(paths.reverse(back).start, path.start)
    keep, noise = back.propagate(back.start, back.stop)
    there = path.propagate(path.start, path.stop)[0][::-1]
    assert noise is None
    np.testing.assert_allclose(keep, 1.0 / there, rtol=RETURN)
    m0, m1, m2 = (m[::-1] for m in path.moments(path.start, path.stop, 3))
    expected = -np.stack([m0, m0 - m1, m0 - 2 * m1 + m2]) / there
    found = back.moments(back.start, back.stop, 3)
    np.testing.assert_allclose(found, expected, rtol=RETURN, atol=RETURN * np.abs(expected).max())
    # without the factor 1/P each moment is another number
    assert (np.abs(np.stack(found) + np.stack([m0, m0 - m1, m0 - 2 * m1 + m2])) > MISTAKE).any(axis=1).all()


@pytest.mark.claim("paths-reverse")
@pytest.mark.parametrize("name", [name for name in REVERSIBLE if name != "semilinear"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_data_to_noise_has_the_order_of_the_method(name: str, order: int) -> None:
    """Against the solution of the same ODE from its other end, in log-SNR, by another solver."""
    ends = np.asarray([0.9, 0.1])
    lam = FLOW.log_snr(ends)

    def slope(s: float, y: np.ndarray) -> np.ndarray:
        level = FLOW.level_at(np.asarray(s))
        x = level.sigma * y[:, None]
        return (np.exp(s) * MIXTURE.denoise(x, level))[:, 0]

    start = X * 0.5
    sigma = FLOW.level(ends).sigma
    exact = sigma[0] * solve_ivp(slope, lam[::-1], start[:, 0] / sigma[1], rtol=1e-12, atol=1e-13).y[:, -1]
    errors = []
    for n in (64, 128):
        grid = grids.uniform_log_snr(schedules.truncate(FLOW, t_clean=0.1, t_noise=0.9), n)
        path = paths.reverse(REVERSIBLE[name](FLOW, grid))
        errors.append(np.abs(solve(MIXTURE.denoise, start, adams_bashforth(path, order))[:, 0] - exact).max())
    measured = math.log2(errors[0] / errors[1])
    assert measured == pytest.approx(order, abs=0.2)


@pytest.mark.claim("paths-reverse")
def test_gaussian_data_to_pure_noise_in_one_step() -> None:
    path = paths.velocity(FLOW, np.asarray([1.0, 0.2]), sigma_data=1.7, centre=0.8)
    data = oracles.gaussian(np.asarray([0.8]), 1.7)
    back = solve(data.denoise, X, adams_bashforth(paths.reverse(path), 1))
    np.testing.assert_allclose(back, (X - 0.8 * 0.8) / math.hypot(0.8 * 1.7, 0.2), rtol=EXACT)
    np.testing.assert_allclose(solve(data.denoise, back, adams_bashforth(path, 1)), X, rtol=EXACT)
    ratio = paths.reverse(paths.x0(FLOW, np.asarray([1.0, 0.5, 0.2]), coordinate="ratio"))
    # the whole of sigma (s_b - s_a), with s_b = 0 at pure noise
    np.testing.assert_allclose(ratio.moments(ratio.start, ratio.stop, 2)[0], [0.5 * (1.0 - 4.0), -1.0], rtol=1e-14)
    np.testing.assert_allclose(ratio.moments(ratio.start, ratio.stop, 2)[1], [0.25 * (1.0 - 4.0), -0.5], rtol=1e-14)


@pytest.mark.claim("paths-reverse")
def test_what_cannot_be_reversed_says_so() -> None:
    t = np.asarray([0.9, 0.5, 0.1])
    with pytest.raises(ValueError, match="path must be an ODE path whose steps join"):
        paths.reverse(paths.x0(FLOW, t, eta=1.0))
    with pytest.raises(ValueError, match="path must be an ODE path whose steps join"):
        paths.reverse(paths.churn(paths.x0(FLOW, t), 0.1))
    with pytest.raises(ValueError, match=r"path must end at sigma > 0 to be reversed.*schedules\.truncate"):
        paths.reverse(paths.velocity(FLOW, np.asarray([0.9, 0.0])))
    with pytest.raises(ValueError, match="path must start at a finite coordinate to be reversed"):
        paths.reverse(paths.x0(FLOW, np.asarray([1.0, 0.5])))
    with pytest.raises(TypeError, match="path must be a Path, got Schedule"):
        paths.reverse(FLOW)


@pytest.mark.claim("paths-reverse")
def test_reversed_path_on_each_library(backend: Backend) -> None:
    t = backend.asarray([1.0, 0.5, 0.1])
    path = paths.reverse(paths.velocity(FLOW, t))
    expected = adams_bashforth(paths.reverse(paths.velocity(FLOW, np.asarray([1.0, 0.5, 0.1]))), 2)
    table = adams_bashforth(path, 2)
    for mine, theirs in ((table.carry, expected.carry), (table.weights, expected.weights)):
        np.testing.assert_allclose(backend.numpy(mine), theirs, atol=BACKENDS)


@pytest.mark.claim("paths-gain")
@pytest.mark.parametrize("name", [*REVERSIBLE, "noise t"])
def test_gain_is_the_kernel_without_its_propagator(name: str) -> None:
    """The integral of c(s) P from s to the end, by Gauss-Legendre, is the first moment."""
    build = REVERSIBLE.get(name, lambda s, t: paths.noise(s, t, coordinate="t"))
    path = build(VP, np.asarray([0.8, 0.5, 0.3]))
    place, weight = np.polynomial.legendre.leggauss(20)
    starts, stops = path.coordinate(path.start), path.coordinate(path.stop)
    s = starts[:, None] + (stops - starts)[:, None] * (1 + place) / 2
    inside = path.at(s.ravel())
    ends = Level(*(np.repeat(part, 20) for part in path.stop))
    kernel = (path.gain(inside) * path.propagate(inside, ends, np.repeat(np.arange(2), 20))[0]).reshape(2, 20)
    moment = path.moments(path.start, path.stop, 1)[0]
    np.testing.assert_allclose((kernel * weight / 2).sum(axis=1) * (stops - starts), moment, rtol=1e-12)
    # without the propagator it is another number, unless that is 1
    alone = (path.gain(inside).reshape(2, 20) * weight / 2).sum(axis=1) * (stops - starts)
    assert (np.abs(alone / moment - 1.0) > MISTAKE).all()


def test_paths_keep_their_own_copies() -> None:
    """A buffer that the caller uses again must not reach a path made before."""
    t, eta, centre = np.asarray([0.9, 0.5, 0.1]), np.asarray([0.5, 0.7]), np.asarray([0.1, 0.2])

    def built() -> list[Path]:
        return [
            paths.x0(FLOW, t, eta=eta),
            paths.velocity(FLOW, t, centre=centre, eta=eta),
            paths.ancestral(paths.noise(FLOW, t), eta),
            paths.churn(paths.noise(FLOW, t), eta),
            paths.semilinear(t, -1.0),
        ]

    def values(made: list[Path]) -> list[str]:
        return [adams_bashforth(path, 2).to_json() for path in made]

    made = built()
    before = values(made)
    t *= 0.5
    eta[:] = 0.25
    centre += 1.0
    assert values(made) == before
    assert values(built()) != before


# -- levels that floating point cannot hold ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*ODE_PATHS.values(), functools.partial(paths.x0, coordinate="ratio")])
def test_levels_out_of_range_are_refused(make: Any) -> None:
    """Their quotients, squares and cubes would overflow in the weights; 0 is a limit and welcome."""
    for sigma_min, sigma_max, shown in ((1e-300, 1.0, "1e-300"), (5e-324, 1.0, "4.94066e-324"), (0.1, 1e51, r"1e\+51")):
        schedule = schedules.edm(sigma_min=sigma_min, sigma_max=sigma_max)
        with pytest.raises(ValueError, match=rf"t must have sigma of 0 or in \[1e-50, 1e\+50\], got sigma = {shown}"):
            make(schedule, grids.karras(schedule, 6))
    with pytest.raises(ValueError, match="t must have alpha of 0 or in"):
        make(schedules.vp_linear(beta_max=500.0), np.asarray([1.0, 0.5]))


@pytest.mark.parametrize("method", [ab1, ab2, ab3, ab4])
@pytest.mark.parametrize("ratio", [False, True])
def test_levels_in_range_are_finite_or_refused(method: Any, ratio: bool) -> None:
    """Steps of up to e^60: where nodes round to one place, an error says so; where they do not, weights are finite."""
    refused = 0
    for sigma_min in (1e-49, 1e-40, 1e-20, 1e-10):
        schedule = schedules.edm(sigma_min=sigma_min)
        for grid in (grids.karras, grids.uniform, grids.uniform_log_snr):
            for make in (paths.x0, paths.noise):
                path = make(schedule, grid(schedule, 3), coordinate="ratio" if ratio else "log_snr")
                far = path.start.sigma[1] * 1e16 < path.start.sigma[0]
                if far and ratio and make is paths.x0 and method in {ab3, ab4}:
                    with pytest.raises(ValueError, match="t must have steps whose lengths differ less"):
                        method(lambda x, level: 0.5 * x, np.ones(2), path)
                    refused += 1
                else:
                    assert np.isfinite(method(lambda x, level: 0.5 * x, np.ones(2), path)).all()
    assert (refused > 0) == (ratio and method in {ab3, ab4})


# -- second derivatives -----------------------------------------------------------------------------------------------


def smooth(x: Any, at: Level) -> Any:
    """A denoiser whose derivatives of all orders differ from 0."""
    xp = namespace(x)
    return xp.tanh(at.alpha * x) * xp.cos(x - at.sigma)


def test_hypotenuse_has_second_derivatives(backend: Backend) -> None:
    """JAX's own tells the larger leg from the smaller; where they are equal its second derivative is 0."""
    a = np.asarray([3.0, 0.5, 0.0, 2.0, 0.0, 1e200, 1e-200, np.inf, -3.0])
    b = np.asarray([4.0, 0.5, 1.0, 0.0, 0.0, 1e200, 1e-200, 1.0, 4.0])
    found = backend.numpy(hypot(backend.asarray(a), backend.asarray(b)))
    np.testing.assert_allclose(found, np.hypot(a, b), rtol=4 * EPS)
    if backend.name == "jax":
        jax = pytest.importorskip("jax")
        for x, y in ((3.0, 4.0), (0.5, 0.5), (0.0, 1.0), (-0.5, 0.5)):
            r = math.hypot(x, y)
            first, second = (d(lambda v: hypot(v[0], v[1]))(jax.numpy.asarray([x, y])) for d in (jax.grad, jax.hessian))
            np.testing.assert_allclose(first, [x / r, y / r], atol=4 * EPS)
            np.testing.assert_allclose(second, np.asarray([[y * y, -x * y], [-x * y, x * x]]) / r**3, atol=8 * EPS / r)
        zero = jax.numpy.zeros(2)
        assert np.isfinite(jax.hessian(lambda v: hypot(v[0], v[1]))(zero)).all()


@pytest.mark.claim("paths-velocity")
def test_second_derivative_in_the_grid() -> None:
    """Through a node where alpha and sigma are equal, against differences of the first derivative."""
    jax = pytest.importorskip("jax")

    def total(t: Any) -> Any:
        return ab1(smooth, jax.numpy.asarray([0.3, -0.8]), paths.velocity(FLOW, t)).sum()

    t, step = np.asarray([0.9, 0.5, 0.1]), 1e-5
    first, second = jax.jit(jax.grad(total)), jax.jit(jax.hessian(total))(t)
    differences = [(first(t + step * unit) - first(t - step * unit)) / (2 * step) for unit in np.eye(3)]
    np.testing.assert_allclose(second, differences, rtol=1e-6, atol=1e-7)
    assert abs(second[1, 1]) > 0.1


@pytest.mark.parametrize("name", ["x0", "velocity", "ancestral"])
def test_second_derivative_in_eta_at_zero(name: str) -> None:
    """What a step keeps, exp(-eta^2 h), has slope 0 there but not curvature 0; against one-sided differences."""
    jax = pytest.importorskip("jax")
    t = np.asarray([0.9, 0.5, 0.1])

    def total(eta: Any) -> Any:
        path = paths.ancestral(paths.x0(FLOW, t), eta) if name == "ancestral" else ODE_PATHS[name](FLOW, t, eta=eta)
        return ab1(smooth, jax.numpy.asarray([0.3, -0.8]), path, rng=jax.random.key(0)).sum()

    first, step = jax.jit(jax.grad(total)), 1e-4
    difference = (4 * first(step) - first(2 * step) - 3 * first(0.0)) / (2 * step)
    assert float(jax.jit(jax.hessian(total))(0.0)) == pytest.approx(float(difference), rel=1e-5)
    assert abs(float(difference)) > 0.01


def test_vmap_over_eta() -> None:
    """0 and 1 among them, through the whole sampler."""
    jax = pytest.importorskip("jax")
    t, x, etas = np.asarray([1.0, 0.6, 0.3, 0.0]), np.asarray([0.3, -0.8]), np.asarray([0.0, 0.4, 1.0])
    z = np.random.default_rng(2).standard_normal((3, 2))
    draws = jax.numpy.asarray(z)
    for run in (
        lambda eta, x, rng: ddim(smooth, x, FLOW, t, eta=eta, rng=rng),
        lambda eta, x, rng: ab2(smooth, x, paths.velocity(FLOW, t, eta=eta), rng=rng),
    ):
        found = jax.vmap(lambda eta, run=run: run(eta, jax.numpy.asarray(x), lambda row, like: draws[row]))(etas)
        for eta, y in zip(etas, found, strict=True):
            np.testing.assert_allclose(y, run(float(eta), x, lambda row, like: z[row]), rtol=1e-12, atol=1e-13)


@pytest.mark.claim("paths-noise")
@pytest.mark.parametrize("schedule", [FLOW, VP], ids=["flow", "vp"])
def test_noise_of_the_noise_path(schedule: Schedule) -> None:
    """The linear part only rescales x/alpha, which receives eta^2 (rho_a^2 - rho_b^2); none on a step to sigma = 0."""
    t, eta = np.asarray([0.9, 0.5, 0.2, 0.0]), np.asarray([0.4, 1.0, 0.7])
    level = schedule.level(t)
    rho, alpha = level.sigma / level.alpha, level.alpha
    for coordinate in ("log_snr", "ratio"):
        path = paths.noise(schedule, t, eta=eta, coordinate=coordinate)
        keep, noise = path.propagate(path.start, path.stop)
        np.testing.assert_allclose(keep, alpha[1:] / alpha[:-1], rtol=ROUNDING)
        expected = eta * alpha[1:] * np.sqrt(rho[:-1] ** 2 - rho[1:] ** 2)
        np.testing.assert_allclose(noise, [*expected[:2], 0.0], rtol=1e-13)
        # a factor the wrong way up, and the wrong end's alpha
        assert not np.allclose(noise[:2], (expected / (alpha[1:] / alpha[:-1]) ** 2)[:2], rtol=1e-3)


def test_a_path_is_shown_in_one_line():
    flow = schedules.rectified_flow()
    t = np.array([0.9, 0.5, 0.1])
    assert repr(paths.x0(flow, t)) == "Path(x0(rectified_flow(), log_snr), steps=2, t from 0.9 to 0.1, no noise)"
    assert repr(paths.velocity(flow, t, eta=1.0)).endswith("t from 0.9 to 0.1, noise in steps)")
    assert repr(paths.ancestral(paths.x0(flow, t))).endswith("noise between steps)")
    jax = pytest.importorskip("jax")
    shown = []
    jax.jit(lambda t: shown.append(repr(paths.noise(flow, t))) or t)(jax.numpy.asarray(t))
    assert "steps=2, t from traced to traced" in shown[0]


@pytest.mark.claim("samplers-deis-time")
def test_moments_in_time_against_adaptive_quadrature():
    """``int u^j drho`` by parts: ``rho(b) - j int u^(j-1) rho du``, of a known function, with no derivative of it."""
    vp = schedules.vp_linear()
    a, b = 0.8, 0.3
    path = paths.noise(vp, np.array([a, b]), coordinate="t")
    found = path.moments(path.start, path.stop, 4)

    def rho(u: float) -> float:
        t = a + u * (b - a)
        return math.sqrt(math.expm1(0.1 * t + 19.9 * t * t / 2.0))

    for j, moment in enumerate(found):
        inner = 0.0 if j == 0 else j * quad(lambda u, j=j: u ** (j - 1) * rho(u), 0.0, 1.0, epsabs=0.0, epsrel=1e-13)[0]
        expected = float(vp.alpha(b)) * (rho(1.0) - (rho(0.0) if j == 0 else 0.0) - inner)
        np.testing.assert_allclose(moment, expected, rtol=1e-12)


@pytest.mark.parametrize("a", [1e-30, 1e-12, 1e-4, 0.3, 0.499, 0.501, 0.7, 1.0 - 1e-3, 1.0 - 1e-12])
def test_log_of_a_quotient_is_accurate_everywhere(a):
    """One form loses the digits of a small a, the other those of ``b - a``: neither may serve for all."""
    length = float(mp.mpf(1) - mp.mpf(a))
    found = float(log_quotient(np.asarray(a), np.asarray(1.0), np.asarray(length)))
    expected = mp.log(a) if a < 0.5 else mp.log1p(-mp.mpf(length))
    assert abs(found / float(expected) - 1.0) <= 4 * EPS
    assert log_quotient(np.asarray(0.0), np.asarray(1.0), np.asarray(1.0)) == -math.inf


@pytest.mark.claim("samplers-noise-sde")
@pytest.mark.parametrize("coordinate", ["log_snr", "ratio", "t"])
def test_noise_path_with_noise_under_a_constant_prediction(coordinate: str) -> None:
    """``d(x/alpha) = (1 + eta^2) eps drho + eta sqrt(-d rho^2) dw`` is integrated by hand where eps is constant."""
    vp, t, eta = schedules.vp_linear(), np.array([0.9, 0.6, 0.2]), np.array([0.7, 1.3])
    path = paths.noise(vp, t, eta=eta, coordinate=coordinate)
    factor, added = path.propagate(path.start, path.stop)
    alpha = np.array([math.exp(-(0.1 * u + 19.9 * u * u / 2.0) / 2.0) for u in t])
    rho = np.sqrt(1.0 - alpha**2) / alpha
    np.testing.assert_allclose(factor, alpha[1:] / alpha[:-1], rtol=1e-13)
    (moment,) = path.moments(path.start, path.stop, 1)
    np.testing.assert_allclose(moment, (1.0 + eta**2) * alpha[1:] * np.diff(rho), rtol=1e-12)
    assert added is not None
    np.testing.assert_allclose(added, eta * alpha[1:] * np.sqrt(-np.diff(rho**2)), rtol=1e-12)
