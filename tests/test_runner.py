"""The loop: what it keeps in memory, what it leaves alone, and how JAX compiles it."""

from __future__ import annotations

import numpy as np
import pytest

from diffnum import grids, paths, schedules
from diffnum.solvers import EULER, HEUN, MIDPOINT, RUNGE_KUTTA_3, adams_bashforth, assemble, runge_kutta, solve

EDM = schedules.edm()
STEPS = 6

ROUNDING = 1e-14
"""One program and the other sum a few terms in another order: 1e-16 a row, on states of size 1."""

SINGLE = 5e-6
"""The same in float32."""


def denoise(x, level):
    return 0.3 * x + 0.5 / (1.0 + level.sigma)


def path(**options):
    return paths.x0(EDM, grids.karras(EDM, STEPS), **options)


METHODS = {
    "ab3": lambda p: adams_bashforth(p, 3),
    "euler": lambda p: runge_kutta(p, EULER),
    "heun": lambda p: runge_kutta(p, HEUN),
    "midpoint": lambda p: runge_kutta(p, MIDPOINT),
    "runge_kutta_3": lambda p: runge_kutta(p, RUNGE_KUTTA_3),
    "mixed": lambda p: assemble(p, [HEUN, EULER, MIDPOINT, HEUN, RUNGE_KUTTA_3, EULER]),
}


def by_rows(table, x, denoise=denoise, draws=None):
    """The rows of a table, written out with one list of registers."""
    y, stored, states = x, [np.zeros_like(x)] * table.weights.shape[1], [x]
    for r in range(table.evaluations):
        level = type(table.level)(*(part[r] for part in table.level))
        f = denoise(y, level)
        if table.target is not None:
            f = table.target[r, 0] * y + table.target[r, 1] * f
        stored[table.slot[r]] = f
        y = table.carry[r] * y + sum(w * part for w, part in zip(table.weights[r], stored, strict=True))
        if table.noise is not None:
            y = y + table.noise[r] * draws[r]
        if r in table.end:
            states.append(y)
    return y, np.stack(states)


@pytest.mark.claim("solvers-table")
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_the_loop_does_what_the_rows_say(name, eta):
    table = METHODS[name](path(eta=eta))
    x = np.linspace(-60.0, 80.0, 5)
    draws = np.random.default_rng(3).normal(size=(table.evaluations, 5))
    end, states = by_rows(table, x, draws=draws)
    rng = {"rng": lambda row, like: draws[row]} if eta else {}
    np.testing.assert_allclose(solve(denoise, x, table, **rng), end, rtol=0.0, atol=100 * ROUNDING)
    run = solve(denoise, x, table, trajectory=True, **rng)
    np.testing.assert_allclose(run, states, rtol=0.0, atol=100 * ROUNDING)


@pytest.mark.claim("solvers-memory")
@pytest.mark.parametrize("name", METHODS)
def test_jax_by_rows_and_by_steps_agree(name):
    jax = pytest.importorskip("jax")
    table = METHODS[name](path(eta=1.0))
    x = jax.numpy.linspace(-60.0, 80.0, 5, dtype=jax.numpy.float32)

    def run(x, scale, unroll):
        def guided(x, level):
            value = denoise(x, level) * scale
            return value, value.sum()

        return solve(guided, x, table, rng=jax.random.key(0), trajectory=True, has_aux=True, unroll=unroll)

    def gradient(unroll):
        return jax.jit(jax.grad(lambda x, scale: (run(x, scale, unroll)[0] ** 2).sum(), argnums=(0, 1)))(x, 1.0)

    both = [jax.jit(lambda x, unroll=unroll: run(x, 1.0, unroll))(x) for unroll in (True, False)]
    for one, other in [*zip(*both, strict=True), *zip(gradient(True), gradient(False), strict=True)]:
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=SINGLE, atol=SINGLE * float(abs(other).max()))


@pytest.mark.parametrize(
    ("name", "unroll", "calls"),
    [("heun", True, 2), ("heun", False, 1), ("runge_kutta_3", True, 3), ("ab3", True, 1), ("mixed", True, 1)],
)
def test_number_of_denoisers_that_are_compiled(name, unroll, calls):
    jax = pytest.importorskip("jax")
    table, seen = METHODS[name](path()), []

    def counting(x, level):
        seen.append(1)
        return denoise(x, level)

    jax.jit(lambda x: solve(counting, x, table, unroll=unroll)).lower(jax.numpy.ones(3))
    # the loop may be traced more than once, but every trace holds the same calls
    assert len(seen) % calls == 0
    text = jax.jit(lambda x: solve(lambda x, level: jax.numpy.tanh(x), x, table, unroll=unroll)).lower(
        jax.numpy.ones(3)
    )
    assert text.as_text().count("stablehlo.tanh") == calls


@pytest.mark.parametrize("name", METHODS)
def test_states_that_a_denoiser_keeps_stay_as_they_were(name):
    kept, copies = [], []

    def keeping(x, level):
        kept.append(x)
        copies.append(x.copy())
        return denoise(x, level)

    solve(keeping, np.linspace(-60.0, 80.0, 5), METHODS[name](path()))
    np.testing.assert_array_equal(kept, copies)


@pytest.mark.parametrize("name", METHODS)
def test_a_denoiser_may_use_its_output_again(backend, name):
    table, xp = METHODS[name](path()), backend.xp
    if backend.name not in {"numpy", "torch"}:
        pytest.skip("arrays of this library are not written to")
    x, buffer = backend.asarray(np.linspace(-60.0, 80.0, 5)), backend.asarray(np.zeros(5))

    def reusing(x, level):
        buffer[...] = denoise(x, level)
        return buffer

    np.testing.assert_array_equal(
        np.asarray(solve(reusing, x, table)),
        np.asarray(solve(lambda x, level: xp.asarray(denoise(x, level)), x, table)),
    )


def test_the_input_is_left_alone():
    x = np.linspace(-60.0, 80.0, 5)
    for dtype in (np.float64, np.float32, np.float16):
        given = x.astype(dtype)
        result = solve(denoise, given, METHODS["ab3"](path(eta=1.0)), rng=np.random.default_rng(0))
        np.testing.assert_array_equal(given, x.astype(dtype))
        assert result.dtype == dtype


def test_products_of_a_half_precision_history_are_formed_in_single():
    """Weights of one sign that cancel to 1e-3: a product rounded to 11 bits would be wrong by as much."""
    table = METHODS["ab3"](path())
    weights = np.zeros_like(table.weights)
    weights[:, 0], weights[:, 1] = 1.0, -0.999
    table = table._replace(weights=weights, carry=np.zeros_like(table.carry))
    end = solve(lambda x, level: 0.0 * x + np.float16(1.0), np.ones(3, np.float16), table)
    np.testing.assert_allclose(end, 1.0 - 0.999, rtol=2.0**-10)
    assert abs(np.float16(1.0) - np.float16(0.999) - 0.001) > 2.0**-10 * 0.001


@pytest.mark.parametrize("name", METHODS)
def test_a_numpy_array_is_a_constant_denoiser_under_jax(name):
    jax = pytest.importorskip("jax")
    x, table = jax.numpy.linspace(-60.0, 80.0, 5), METHODS[name](path())
    constant = np.linspace(0.0, 1.0, 5)
    right = solve(lambda x, level: jax.numpy.asarray(constant), x, table)
    np.testing.assert_array_equal(solve(lambda x, level: constant, x, table), right)
    np.testing.assert_array_equal(jax.jit(lambda x: solve(lambda x, level: constant, x, table))(x), right)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_denoiser_says_beside_its_output_is_recorded(backend, name):
    """A vector and a number for each evaluation, in the order of the rows, by rows and by steps."""
    table, xp = METHODS[name](path()), backend.xp
    x = backend.asarray(np.linspace(-60.0, 80.0, 5))
    seen = []
    solve(lambda x, level: seen.append(float(np.sum(x))) or denoise(x, level), np.linspace(-60.0, 80.0, 5), table)

    def speaking(x, level):
        return denoise(x, level), xp.stack([xp.sum(x), level.sigma, 2.0 * xp.sum(x)])

    for unroll in (True, False):
        end, aux = solve(speaking, x, table, has_aux=True, unroll=unroll)
        aux = backend.numpy(aux)
        assert aux.shape == (table.evaluations, 3)
        np.testing.assert_allclose(aux[:, 0], seen, rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(aux[:, 1], table.level.sigma, rtol=1e-12)
        np.testing.assert_allclose(aux[:, 2], 2.0 * aux[:, 0], rtol=1e-12)
        np.testing.assert_array_equal(backend.numpy(end), backend.numpy(solve(denoise, x, table, unroll=unroll)))


@pytest.mark.parametrize("found", [np.ones(5), [np.ones(5)], (np.ones(5),), (np.ones(5), 1.0, 2.0), None])
def test_what_is_no_pair_with_aux_is_named(found):
    with pytest.raises(ValueError, match=r"denoise must return a pair \(x0_hat, aux\) with has_aux, got"):
        solve(lambda x, level: found, np.ones(5), METHODS["ab3"](path()), has_aux=True)
