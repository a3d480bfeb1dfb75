"""Phi-functions against 60-digit arithmetic, quadrature and their own differential identities."""

from __future__ import annotations

import functools
import math

import mpmath as mp
import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from diffnum.phi import LARGEST, SWITCH, _limit, phi, phis

INDICES = range(LARGEST + 1)

ACCURACY = {"float64": 1.1e-15, "float32": 8 * 2.0**-24}
"""Stated relative error: 5 ulp in float64; in float32 also 1-2 ulp of the libraries' own exponentials."""

BACKEND_ULPS = 8
"""Libraries differ from NumPy by their exponential (2 ulp) and by fused multiply-adds in the polynomial."""

HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""One rounding from float32 to the narrow type."""

DERIVATIVE = {"float64": 1e-14, "float32": 5e-6}
"""Relative error of automatic derivatives: two quotients more than the value, 50-100 ulp at the switch for k = 5."""

QUADRATURE = 1e-12
"""Relative error of adaptive quadrature on an entire function, and of 60-point Gauss-Legendre."""


def exact(k: int, z: float) -> mp.mpf:
    """phi_k(z) from its definition, with enough digits to survive the cancellation."""
    with mp.workdps(60 + 10 * k + (k * max(0, -round(math.log10(abs(z)))) if z else 0)):
        if z == 0:
            return 1 / mp.factorial(k)
        y = mp.exp(mp.mpf(z))
        for j in range(k):
            y = (y - 1 / mp.factorial(j)) / z
        return +y


def relative_error(values: np.ndarray, k: int, z: np.ndarray) -> np.ndarray:
    """Relative errors, computed in high precision and then rounded."""
    with mp.workdps(40):
        ratios = [mp.mpf(float(v)) / exact(k, float(x)) for v, x in zip(values, z, strict=True)]
        return np.asarray([float(abs(r - 1)) for r in ratios])


@functools.cache
def arguments(dtype: str, k: int) -> np.ndarray:
    """Both signs, both sides of the switch, the ends of the stated range, and zero."""
    rng = np.random.default_rng(k)
    low, high = {"float64": (-1e3 if k else -700.0, 700.0), "float32": (-1e3 if k else -85.0, 88.0)}[dtype]
    edge = np.asarray(SWITCH, dtype)
    z = np.concatenate(
        [
            [0.0, -0.0, low, high],
            np.geomspace(1e-300 if dtype == "float64" else 1e-30, high, 60),
            -np.geomspace(1e-300 if dtype == "float64" else 1e-30, -low, 60),
            np.geomspace(1e-6, 0.5, 60),
            -np.geomspace(1e-6, 0.5, 60),
            rng.uniform(-2 * SWITCH, 2 * SWITCH, 300),
            [s * np.nextafter(edge, edge.dtype.type(to)) for s in (-1, 1) for to in (0, 9)],
            [SWITCH, -SWITCH],
        ]
    )
    return z.astype(dtype)


def naive(k: int, z: np.ndarray) -> np.ndarray:
    """The textbook quotient: the recurrence from exp(z) at every argument."""
    y = np.exp(z)
    for j in range(k):
        y = (y - z.dtype.type(1 / math.factorial(j))) / z
    return y


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("phi-recurrence", "phi-error")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("k", INDICES)
def test_accuracy(k: int, dtype: str) -> None:
    z = arguments(dtype, k)
    assert relative_error(phi(k, z), k, z).max() <= ACCURACY[dtype]
    assert relative_error(phis(LARGEST, z)[k], k, z).max() <= ACCURACY[dtype]
    if k:
        z = z[np.abs(z) > 1e-7]
        assert relative_error(naive(k, z), k, z).max() > 1e3 * ACCURACY[dtype]


@pytest.mark.claim("phi-error")
@pytest.mark.parametrize("k", [2, 5])
def test_either_branch_alone_is_inaccurate(k: int) -> None:
    z = np.concatenate([-np.geomspace(0.01, 25.0, 150), np.geomspace(0.01, 25.0, 150)])
    series = sum(z**j / math.factorial(j + k) for j in range(31))
    start = np.expm1(z) / z
    for j in range(1, k):
        start = (start - 1 / math.factorial(j)) / z
    near = np.abs(z) < SWITCH
    for branch, region in ((series, ~near), (start, near)):
        assert relative_error(branch[region], k, z[region]).max() > 3 * ACCURACY["float64"]
        assert relative_error(branch[~region], k, z[~region]).max() <= 2 * ACCURACY["float64"]


@pytest.mark.claim("phi-error")
@pytest.mark.parametrize("k", range(1, LARGEST + 1))
def test_error_bound_of_the_recurrence(k: int) -> None:
    """Measured errors stay below the bound, near zero too, and come within a factor of 30 of it."""
    z = np.concatenate([-np.geomspace(1e-3, 50, 200), np.geomspace(1e-3, 50, 200)])
    y, bound, p = np.expm1(z) / z, np.full_like(z, 3.0), phis(LARGEST, z)
    for j in range(1, k):
        y = (y - 1 / math.factorial(j)) / z
        step = np.abs(z) * p[j + 1]
        bound = p[j] / step * bound + 2 + 1 / (math.factorial(j) * step)
    ratio = relative_error(y, k, z) / (bound * 2.0**-53)
    assert 1 / 30 < ratio.max() <= 1
    # The bound without its magnification is no bound.
    if k > 1:
        assert (relative_error(y, k, z) / (3 * k * 2.0**-53)).max() > 10


@pytest.mark.claim("phi-horner")
@pytest.mark.parametrize("k", range(1, LARGEST + 1))
def test_error_bound_of_horners_rule(k: int) -> None:
    z = np.concatenate([np.linspace(-SWITCH, -0.01, 200), np.linspace(0.01, SWITCH, 200)])
    z = z[np.abs(z) < SWITCH]
    c = [1 / math.factorial(j + k) for j in range(31)]
    y, delta = np.full_like(z, c[-1]), np.full_like(z, c[-1])
    for cj in reversed(c[:-1]):
        delta, y = np.abs(z) * delta + np.abs(z * y) + np.abs(z * y + cj) + cj, z * y + cj
    error = relative_error(phi(k, z), k, z) * phi(k, z) * 2.0**53
    assert 1 / 30 < (error / delta).max() <= 1
    assert (error / (phi(k, z) * 0.5)).max() > 1


@pytest.mark.claim("phi-taylor")
@pytest.mark.parametrize("k", INDICES)
def test_taylor_coefficients(k: int) -> None:
    assert phi(k, np.zeros(1))[0] == 1 / math.factorial(k)
    tiny = 2.0**-60
    linear = 1 / math.factorial(k) + tiny / math.factorial(k + 1)
    assert phi(k, np.asarray([tiny]))[0] == pytest.approx(linear, rel=2e-16)
    z = np.linspace(-2.9, 2.9, 40)
    partial = sum(z**j / math.factorial(j + k) for j in range(60))
    np.testing.assert_allclose(phi(k, z), partial, rtol=2e-14)
    shifted = sum(z**j / math.factorial(j + k + 1) for j in range(60))
    assert np.abs(phi(k, z) / shifted - 1).min() > 0.01


@pytest.mark.claim("phi-remainder")
@pytest.mark.parametrize("k", range(1, LARGEST + 1))
def test_remainder_bound(k: int) -> None:
    terms = 31
    for z in (-SWITCH, SWITCH):
        with mp.workdps(60):
            partial = mp.fsum(mp.mpf(z) ** j / mp.factorial(j + k) for j in range(terms))
            remainder = abs(exact(k, z) - partial)
            bound = mp.mpf(SWITCH) ** terms / mp.factorial(terms + k) / (1 - SWITCH / (terms + k + 1))
            assert bound / 3 < remainder <= bound
            assert bound / exact(k, -SWITCH) < 2.0**-53 / 1e4


@pytest.mark.claim("phi-recurrence")
@pytest.mark.parametrize("k", range(LARGEST))
def test_recurrence(k: int) -> None:
    z = np.concatenate([np.linspace(-40, -0.5, 60), np.linspace(0.5, 40, 60)])
    left = z * phi(k + 1, z)
    scale = np.maximum(phi(k, z), 1 / math.factorial(k))
    assert np.abs(left - (phi(k, z) - 1 / math.factorial(k))).max() <= 5e-15 * scale.max()
    assert (np.abs(left - (phi(k, z) - 1 / math.factorial(k))) / scale).max() <= 5e-15
    if k:
        assert (np.abs(left - (phi(k, z) - 1 / math.factorial(k + 1))) / scale).max() > 1e-2


@pytest.mark.claim("phi-integral")
@pytest.mark.parametrize("z", [-30.0, -2.0, -1e-3, 0.0, 0.7, 9.0])
@pytest.mark.parametrize("k", range(1, LARGEST + 1))
def test_integral(k: int, z: float) -> None:
    def integrand(u: float, power: int) -> float:
        return math.exp((1 - u) * z) * u**power / math.factorial(power)

    value, _ = integrate.quad(integrand, 0, 1, args=(k - 1,), epsabs=0, epsrel=1e-13)
    assert float(phi(k, z)) == pytest.approx(value, rel=QUADRATURE)
    wrong, _ = integrate.quad(integrand, 0, 1, args=(k,), epsabs=0, epsrel=1e-13)
    assert abs(wrong / float(phi(k, z)) - 1) > 0.01


@pytest.mark.claim("phi-moments")
@pytest.mark.parametrize(("kappa", "h"), [(1.0, 0.01), (1.0, 2.0), (-3.0, 1.1), (40.0, 1.5), (2.0, 2.0), (0.0, 0.8)])
@pytest.mark.parametrize("m", range(LARGEST))
def test_moments_of_the_exponential(m: int, kappa: float, h: float) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = h * (nodes + 1) / 2
    integral = np.sum(weights * np.exp(-kappa * (h - t)) * t**m) * h / 2
    value = math.factorial(m) * h ** (m + 1) * float(phi(m + 1, -kappa * h))
    assert value == pytest.approx(integral, rel=QUADRATURE)
    if kappa:
        reversed_time = math.factorial(m) * h ** (m + 1) * float(phi(m + 1, kappa * h))
        assert abs(reversed_time / integral - 1) > 1e-3
    if m >= 2:
        assert abs(value / math.factorial(m) / integral - 1) > 0.49


@pytest.mark.claim("phi-variation")
def test_exact_solution_of_a_linear_equation_with_polynomial_forcing() -> None:
    """y' = -kappa y + c0 + c1 t + c2 t^2: the sum of phi-functions is the solution."""
    kappa, h, y0, c = 1.7, 1.3, 0.4, (0.3, -1.1, 2.5)
    step = float(phi(0, -kappa * h)) * y0 + sum(
        cm * math.factorial(m) * h ** (m + 1) * float(phi(m + 1, -kappa * h)) for m, cm in enumerate(c)
    )
    solution = integrate.solve_ivp(
        lambda t, y: -kappa * y + c[0] + c[1] * t + c[2] * t**2, (0, h), [y0], rtol=1e-12, atol=1e-13, method="DOP853"
    )
    assert step == pytest.approx(solution.y[0, -1], rel=1e-10)


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("phi-limits")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("k", INDICES)
def test_limits(k: int, dtype: str, backend: Backend) -> None:
    top = {"float64": 709.7827128933, "float32": 88.7228}[dtype]
    beyond = {"float64": 709.7827128934, "float32": 88.72285}[dtype]
    z = backend.asarray([-np.inf, np.inf, np.nan, top, beyond, 1e30, -1e30, 0.0, -0.0], dtype)
    for value in (phi(k, z), phis(LARGEST, z)[k]):
        y = backend.numpy(value)
        assert y[0] == 0
        assert (y[[1, 4, 5]] == np.inf).all()
        assert np.isnan(y[2])
        assert y[3] == pytest.approx(math.exp(top) / top**k, rel=2e-4 if dtype == "float32" else 1e-9)
        assert 0 <= y[6] < 1e-29
        assert (y[7:] == np.asarray(1 / math.factorial(k), dtype)).all()


@pytest.mark.claim("phi-limits")
@pytest.mark.parametrize("k", range(1, LARGEST + 1))
def test_asymptotes(k: int) -> None:
    z = np.asarray([1e4, 1e6])
    ratio = phi(k, -z) * z * math.factorial(k - 1)
    assert np.abs(ratio - 1).max() <= 1e-3 * 0.5
    assert np.abs(ratio[1] - 1) <= 1e-5
    assert float(phi(k, 300.0)) == pytest.approx(math.exp(300.0) / 300.0**k, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_warning_at_the_last_finite_exponential(dtype: str) -> None:
    limit = np.asarray(math.log(float(np.finfo(dtype).max)), dtype)
    z = np.asarray([limit, np.nextafter(limit, limit.dtype.type(0)), np.nextafter(limit, limit.dtype.type(1e4))], dtype)
    for k in INDICES:
        assert (phi(k, z) > 1e20).all()
    largest = np.asarray(_limit(z), dtype)
    largest = np.where(largest > _limit(z), np.nextafter(largest, largest.dtype.type(0)), largest)
    for k in INDICES:
        for value in (phi(k, largest), phis(LARGEST, largest)[k]):
            assert value == pytest.approx(math.exp(largest) / float(largest) ** k, rel=2e-5)
    assert np.isfinite(phi(0, limit * limit.dtype.type(1 - 1e-6)))


# -- libraries and dtypes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("k", INDICES)
def test_every_library_agrees_with_numpy(k: int, dtype: str, backend: Backend) -> None:
    z = arguments(dtype, k)
    expected = phi(k, z)
    for value in (phi(k, backend.asarray(z, dtype)), phis(LARGEST, backend.asarray(z, dtype))[k]):
        assert backend.dtype(value) == dtype
        np.testing.assert_allclose(backend.numpy(value), expected, rtol=BACKEND_ULPS * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype: str, backend: Backend) -> None:
    if backend.name == "strict" or (backend.name == "numpy" and dtype == "bfloat16"):
        pytest.skip("no such dtype")
    z = backend.asarray([-50.0, -4.0, -0.125, 0.0, 2.0**-9, 1.5, 8.0, 10.0, 60000.0, -np.inf, np.inf], dtype)
    exact_z = backend.numpy(z)
    for k in INDICES:
        value = phi(k, z)
        assert backend.dtype(value) == dtype
        expected = phi(k, exact_z)
        expected[-3] = np.inf
        np.testing.assert_allclose(backend.numpy(value), expected, rtol=HALF[dtype], atol=6e-8)


def test_values_beyond_half_precision_are_infinite_without_a_warning() -> None:
    z = np.asarray([11.0, 12.0, 60.0, -60.0], np.float16)
    assert np.isfinite(phi(0, z)).tolist() == [True, False, False, True]
    assert np.isfinite(phi(4, z)).tolist() == [True, True, False, True]


def test_shapes_numbers_and_integers() -> None:
    z = np.linspace(-4, 4, 24).reshape(2, 3, 4)
    assert phi(3, z).shape == z.shape
    np.testing.assert_array_equal(phi(3, z)[1, 2], phi(3, z[1, 2]))
    for zero_d in (phi(2, 0.5), phi(2, np.float64(0.5)), phi(0, 0.5), phis(2, 0.5)[0], phis(2, 0.5)[2]):
        assert isinstance(zero_d, np.ndarray)
        assert zero_d.shape == ()
    assert phi(1, np.arange(3)).dtype == np.float64
    assert phi(np.int64(1), 2.0) == phi(1, 2.0)
    assert phi(2, np.empty(0)).shape == (0,)
    assert len(phis(0, 1.0)) == 1
    assert [p.shape for p in phis(4, z)] == [z.shape] * 5


# -- derivatives ------------------------------------------------------------------------------------------------------

INSIDE = float(np.nextafter(SWITCH, 0))
POINTS = [-700.0, -20.0, -SWITCH, -INSIDE, -1.0, -1e-9, 0.0, 1e-9, 0.5, INSIDE, SWITCH, 12.0]


def by_quadrature(k: int, z: mp.mpf) -> mp.mpf:
    """phi_k from its integral."""
    return mp.quad(lambda u: mp.exp((1 - u) * z) * u ** (k - 1) / mp.factorial(k - 1), [0, 1]) if k else mp.exp(z)


def identity(k: int, z: float) -> float:
    """phi_k' by the identity, in high precision."""
    with mp.workdps(40):
        return float(exact(k, z) - k * exact(k + 1, z))


@pytest.mark.claim("phi-derivative")
@pytest.mark.parametrize("k", INDICES)
def test_derivative_identity(k: int) -> None:
    for z in (-5.0, -0.3, 0.0, 4.0):
        with mp.workdps(40):
            derivative = mp.diff(lambda x: by_quadrature(k, x), z)
        assert identity(k, z) == pytest.approx(float(derivative), rel=1e-12)


@pytest.mark.claim("phi-derivative")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("k", INDICES)
def test_automatic_derivatives(k: int, dtype: str) -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    z = np.asarray(POINTS).astype(dtype)
    expected = np.asarray([identity(k, float(x)) for x in z])
    tolerance = {"rtol": DERIVATIVE[dtype], "atol": 1e-40}
    leaf = torch.asarray(z, requires_grad=True)
    phi(k, leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), expected, **tolerance)
    for function in (lambda x: phi(k, x), lambda x: phis(LARGEST, x)[k]):
        np.testing.assert_allclose(jax.vmap(jax.grad(function))(z), expected, **tolerance)
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.jacfwd(function)))(z), expected, **tolerance)


@pytest.mark.claim("phi-derivative")
@pytest.mark.parametrize("k", INDICES)
def test_second_derivative(k: int) -> None:
    jax = pytest.importorskip("jax")
    z = np.asarray([-SWITCH, -2.0, 0.0, 1e-8, 2.5, SWITCH])
    with mp.workdps(40):
        expected = [float(exact(k, x) - 2 * k * exact(k + 1, x) + k * (k + 1) * exact(k + 2, x)) for x in z]
    np.testing.assert_allclose(jax.vmap(jax.grad(jax.grad(lambda x: phi(k, x))))(z), expected, rtol=1e-12)


@pytest.mark.parametrize("k", INDICES)
def test_derivatives_are_not_nan_at_the_limits(k: int) -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    z = np.asarray([-np.inf, -1e300, 710.0, np.inf])
    expected = [0.0, 0.0, np.inf, np.inf]
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: phi(k, x)))(z), expected, atol=1e-200)
    leaf = torch.asarray(z, requires_grad=True)
    phi(k, leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), expected, atol=1e-200)


def test_under_jit_and_vmap() -> None:
    jax = pytest.importorskip("jax")
    z = np.linspace(-5, 5, 12)
    np.testing.assert_allclose(jax.jit(phi, static_argnums=0)(3, z), phi(3, z), rtol=BACKEND_ULPS * 2.2e-16)
    np.testing.assert_allclose(jax.vmap(lambda x: phi(3, x))(z), phi(3, z), rtol=BACKEND_ULPS * 2.2e-16)


# -- the cancellation that this module avoids -------------------------------------------------------------------------


def float32_recurrence(k: int, z: float, *, start: str) -> float:
    """phi_k(z) by the recurrence in float32, started at expm1(z)/z or at (exp(z) - 1)/z."""
    x = np.float32(z)
    y = (np.expm1(x) if start == "expm1" else np.exp(x) - np.float32(1)) / x
    for j in range(1, k):
        y = (y - np.float32(1 / math.factorial(j))) / x
    return float(y)


@pytest.mark.claim("phi-condition")
@pytest.mark.parametrize(
    ("start", "h", "low", "high"), [("expm1", 1e-2, 5e-3, 9e-3), ("expm1", 1e-3, 0.3, 0.5), ("exp", 1e-2, 0.28, 0.75)]
)
def test_second_moment_weight_in_float32(start: str, h: float, low: float, high: float) -> None:
    z = float(np.float32(-h))
    reference = exact(3, z)
    assert low < abs(float32_recurrence(3, z, start=start) / reference - 1) < high
    assert abs(float(phi(3, np.float32(z))) / reference - 1) < ACCURACY["float32"]


@pytest.mark.claim("phi-condition")
@pytest.mark.parametrize("k", [2, 3, 4])
def test_recurrence_loses_a_power_of_z_for_each_index(k: int) -> None:
    """Median errors of the recurrence in float64 scale as z^-(k-1), as the condition number says."""
    medians = []
    for scale in (1e-2, 1e-3):
        z = -scale * np.linspace(0.5, 1.5, 101)
        y = np.expm1(z) / z
        for j in range(1, k):
            y = (y - 1 / math.factorial(j)) / z
        medians.append(np.median(relative_error(y, k, z)))
    assert math.log10(medians[1] / medians[0]) == pytest.approx(k - 1, abs=0.3)


# -- bad input --------------------------------------------------------------------------------------------------------


@given(st.one_of(st.integers(max_value=-1), st.integers(min_value=LARGEST + 1)))
def test_index_out_of_range(k: int) -> None:
    for function in (phi, phis):
        with pytest.raises(ValueError, match=rf"k must be an integer from 0 to 5, got {k}"):
            function(k, 1.0)


@given(st.one_of(st.floats(), st.text(max_size=3), st.none(), st.booleans(), st.just([1])))
def test_index_of_another_type(k: object) -> None:
    for function in (phi, phis):
        with pytest.raises(TypeError, match="k must be an integer from 0 to 5, got"):
            function(k, 1.0)


@pytest.mark.parametrize("z", [np.asarray([1j]), np.asarray([True]), "a"])
def test_argument_of_another_type(z: object) -> None:
    with pytest.raises(TypeError, match="z must be"):
        phi(1, z)


def test_cost_on_the_host() -> None:
    """A table of 20 steps costs tens of microseconds; the bound is loose because tests share their machine."""
    import timeit

    z = np.linspace(-5.0, -0.1, 20)
    assert min(timeit.repeat(lambda: phi(4, z), number=50, repeat=5)) / 50 < 300e-6
