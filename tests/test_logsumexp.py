"""Log-sum-exp and softmax averages against exact sums and closed forms, the usual mistakes beside them."""

from __future__ import annotations

import importlib
import itertools
import math
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from conftest import Backend
from hypothesis import given, settings
from hypothesis import strategies as st

from diffnum import _backend
from diffnum.logsumexp import (
    CHUNK_ELEMENTS,
    LAZY_CHUNK,
    SHORTEST_CHUNK,
    Accumulator,
    average,
    finish,
    logsumexp,
    merge,
    softmax_average,
    start,
    update,
)

U = {"float64": 2.0**-53, "float32": 2.0**-24}

ETA = 8
"""Error of the libraries' exponential and logarithm in units of u: NumPy's float32 log errs by 3.8 ulp = 7.7 u."""

CLOSE = {"float64": 4e-14, "float32": 3e-5}
"""Short rows (37 terms): the bound of the chapter is below 200 u for any chunk, and scores are of order 10."""

HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""One rounding of the result; sums are held in float32."""

CHUNKS = [1, 2, 5, 12, 36, 37, 38, 1000, None]
"""For 37 terms: coprime, one short of the row, the row, longer, automatic."""


def chunks_for(backend: Backend) -> list[int | None]:
    """All of `CHUNKS`; two of them where each costs a compilation."""
    return [5, None] if backend.name == "jax" else CHUNKS


def exact(x: np.ndarray) -> float:
    """Log-sum-exp of a row of finite float64, by 40 digits."""
    with mp.workdps(40):
        top = max(float(v) for v in x)
        return float(mp.log(mp.fsum(mp.exp(mp.mpf(float(v)) - top) for v in x)) + top)


def call(backend: Backend, function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """``function(*arrays, **options)``, compiled for JAX: one compilation instead of one for each operation."""
    if backend.name != "jax":
        return function(*arrays, **options)
    return compiled(function, tuple(options.items()))(*arrays)


@cache
def compiled(function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    """`function` with its options under ``jax.jit``, kept so that it compiles once for each shape."""
    return importlib.import_module("jax").jit(partial(function, **dict(options)))


def reference(x: np.ndarray) -> np.ndarray:
    """Log-sum-exp of the last axis in float64, correctly rounded sums; infinite and NaN rows by definition."""

    def row(v: np.ndarray) -> float:
        if np.isnan(v).any():
            return math.nan
        top = v.max()
        return float(top) if np.isinf(top) else float(top) + math.log(math.fsum(np.exp(v - top)))

    x = x.astype("float64")
    return np.asarray([row(v) for v in x.reshape(-1, x.shape[-1])]).reshape(x.shape[:-1])


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax of finite scores in float64."""
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def special_rows() -> np.ndarray:
    """Rows of 37: ordinary, with -inf entries, all -inf, one +inf, a NaN, a single term, far away."""
    x = 5 * np.random.default_rng(0).standard_normal((9, 37))
    x[1, [0, 3, 36]] = -np.inf
    x[2] = -np.inf
    x[3, 11] = np.inf
    x[4, 30] = np.nan
    x[5] = -np.inf
    x[5, 36] = 2.5
    x[6] += 1e4
    x[7] -= 1e4
    x[8, :36] = -np.inf
    return x


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("logsumexp-definition")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_library_and_chunk(dtype: str, backend: Backend) -> None:
    x = special_rows().astype(dtype)
    expected = reference(x)
    for chunk in chunks_for(backend):
        y = call(backend, logsumexp, backend.asarray(x, dtype), chunk=chunk)
        assert backend.dtype(y) == dtype
        np.testing.assert_allclose(backend.numpy(y), expected, rtol=CLOSE[dtype])


@pytest.mark.claim("logsumexp-definition")
def test_against_forty_digits() -> None:
    x = 3 * np.random.default_rng(1).standard_normal((4, 101))
    for row, value in zip(x, logsumexp(x, chunk=7), strict=True):
        assert value == pytest.approx(exact(row), rel=4e-15)
        assert abs(exact(row) - np.log2(np.sum(np.exp2(row)))) > 0.1


@pytest.mark.claim("logsumexp-definition")
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4, (0,), (1, 3), (3, 1), (0, -1), (2, 3), (0, 1, 2, 3), None])
def test_axes(axis: Any, backend: Backend) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5))
    axes = axis if isinstance(axis, tuple) else (0, 1, 2, 3) if axis is None else (axis,)
    expected = np.log(np.exp(x).sum(axis=axes))
    for chunk in (4,) if backend.name == "jax" else (4, None):
        y = call(backend, logsumexp, backend.asarray(x), axis=axis, chunk=chunk)
        assert tuple(y.shape) == expected.shape
        np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-14)


def test_default_axis_is_the_last() -> None:
    assert logsumexp(np.zeros((2, 5))).tolist() == [math.log(5)] * 2


def test_empty_axes_and_batches(backend: Backend) -> None:
    for chunk in (1, None):
        assert backend.numpy(logsumexp(backend.asarray(np.zeros((3, 0))), chunk=chunk)).tolist() == [-np.inf] * 3
        assert backend.dtype(logsumexp(backend.asarray(np.zeros((3, 0)), "float32"))) == "float32"
        assert logsumexp(backend.asarray(np.zeros((0, 3))), chunk=chunk).shape == (0,)
        assert backend.numpy(logsumexp(backend.asarray(np.zeros((2, 0, 3))), axis=(0, 1))).tolist() == [-np.inf] * 3
    assert float(logsumexp(backend.asarray(3.0), axis=None)) == 3
    assert logsumexp(backend.asarray(np.zeros(0)), axis=None).shape == ()
    for axis, shape in ((0, (3, 4)), (1, (2, 4)), (2, (2, 3)), (-2, (2, 4))):
        empty = [2, 3, 4]
        empty[axis] = 0
        assert logsumexp(backend.asarray(np.zeros(empty)), axis=axis).shape == shape


def test_numbers_and_integers() -> None:
    assert logsumexp([1000, 1000]).dtype == np.float64
    assert float(logsumexp([1000, 1000])) == 1000 + math.log(2)
    assert isinstance(logsumexp(np.zeros(3)), np.ndarray)
    assert logsumexp(np.zeros(3)).shape == ()


@pytest.mark.claim("logsumexp-shift")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shift", [1e4, -1e4, 1e8, -1e8])
def test_shift(shift: float, dtype: str, backend: Backend) -> None:
    """Scores are multiples of 8, so that shifting them is exact in float32 as well."""
    x = (8.0 * np.random.default_rng(3).integers(-6, 7, (3, 37))).astype(dtype)
    for chunk in (5, None):
        plain, moved = (backend.asarray(v, dtype) for v in (x, x + x.dtype.type(shift)))
        plain, moved = (backend.numpy(call(backend, logsumexp, v, chunk=chunk)) for v in (plain, moved))
        np.testing.assert_allclose(moved - shift, plain, atol=2 * U[dtype] * abs(shift), rtol=4 * U[dtype])
    with np.errstate(all="ignore"):
        naive = np.log(np.exp(x + x.dtype.type(shift)).sum(-1))
    assert np.isinf(naive).all()


def test_huge_and_lowest_scores_do_not_overflow(backend: Backend) -> None:
    for dtype in ("float64", "float32"):
        low, high = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
        x = backend.asarray([[low, low, low], [low, 1.0, low], [np.inf, low, 1.0], [-np.inf, low, np.inf]], dtype)
        for chunk in (1, 2):
            y = backend.numpy(call(backend, logsumexp, x, chunk=chunk))
            assert y.tolist() == [low, 1.0, np.inf, np.inf]
            values = backend.asarray([[1.0], [2.0], [4.0]], dtype)
            mean = backend.numpy(call(backend, softmax_average, x, values, chunk=chunk))[:, 0]
            np.testing.assert_allclose(mean, [7 / 3, 2, 1, 4], rtol=1e-6)
        assert float(logsumexp(backend.asarray([high / 4, -high / 4], dtype), chunk=1)) == high / 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype: str, backend: Backend) -> None:
    if backend.name == "strict" or (backend.name == "numpy" and dtype == "bfloat16"):
        pytest.skip("no such dtype")
    x = backend.asarray(np.random.default_rng(4).standard_normal((2, 5000)), dtype)
    y = call(backend, logsumexp, x, chunk=7)
    assert backend.dtype(y) == dtype
    np.testing.assert_allclose(backend.numpy(y), reference(backend.numpy(x)), rtol=HALF[dtype])
    values = backend.asarray(np.random.default_rng(5).standard_normal((5000, 2)), dtype)
    mean = call(backend, softmax_average, x, values, chunk=7)
    assert backend.dtype(mean) == dtype
    np.testing.assert_allclose(
        backend.numpy(mean), softmax(backend.numpy(x)) @ backend.numpy(values), rtol=HALF[dtype], atol=1e-6
    )


# -- ragged edges -----------------------------------------------------------------------------------------------------


def ragged(x: np.ndarray, chunk: int, mistake: str) -> float:
    """A chunked log-sum-exp with one of the mistakes that public code makes at its last chunk."""
    n, short = len(x), len(x) % chunk
    if mistake == "zero padding":
        x = np.concatenate([x, np.zeros(-n % chunk)])
    elif mistake == "tail twice" and short:
        x = np.concatenate([x[: n - short], x[n - chunk :]])
    elif mistake == "tail dropped":
        x = x[: n - short]
    elif mistake == "padding before the soft-cap":
        x = 30 * np.tanh(np.concatenate([x, np.full(-n % chunk, -np.inf)]) / 30)
    return float(reference(x))


@pytest.mark.claim("logsumexp-merge")
def test_every_length_and_chunk() -> None:
    rng = np.random.default_rng(6)
    for n, chunk in itertools.product(range(1, 14), range(1, 16)):
        x, values = rng.standard_normal(n), rng.standard_normal((n, 2))
        assert float(logsumexp(x, chunk=chunk)) == pytest.approx(exact(x), rel=1e-13, abs=1e-14)
        np.testing.assert_allclose(softmax_average(x, values, chunk=chunk), softmax(x) @ values, rtol=1e-12, atol=1e-13)


@pytest.mark.claim("logsumexp-merge")
@pytest.mark.parametrize("mistake", ["zero padding", "tail twice", "tail dropped", "padding before the soft-cap"])
def test_mistakes_at_the_ragged_edge_are_visible(mistake: str) -> None:
    x = np.random.default_rng(7).standard_normal(37) - (60 if "cap" in mistake else 3)
    scores = 30 * np.tanh(x / 30) if "cap" in mistake else x
    truth = float(reference(scores))
    assert abs(ragged(x, 12, mistake) - truth) > 1e-2
    assert float(logsumexp(scores, chunk=12)) == pytest.approx(truth, rel=1e-14)


# -- the accumulator --------------------------------------------------------------------------------------------------


def state_of(x: np.ndarray, values: np.ndarray | None = None) -> Accumulator:
    """State of one chunk."""
    return update(start(np.zeros(x.shape[:-1]), features=None if values is None else values.shape[-1]), x, values)


@pytest.mark.claim("logsumexp-state", "logsumexp-finish")
def test_state_is_the_triple(backend: Backend) -> None:
    x, values = np.asarray([[1.0, 3.0, -2.0], [0.0, -np.inf, 5.0]]), np.asarray([[1.0], [2.0], [-4.0]])
    empty = start(backend.asarray(np.zeros(2)), features=1)
    state = update(empty, backend.asarray(x), backend.asarray(values))
    terms = np.exp(x - np.asarray([[3.0], [5.0]]))
    assert backend.numpy(state.max).tolist() == [3.0, 5.0]
    np.testing.assert_allclose(backend.numpy(state.sum), terms.sum(-1), rtol=1e-15)
    np.testing.assert_allclose(backend.numpy(state.weighted), terms @ values, rtol=1e-15)
    np.testing.assert_allclose(backend.numpy(finish(state)), np.log(np.exp(x).sum(-1)), rtol=1e-15)
    np.testing.assert_allclose(backend.numpy(average(state)), softmax(x) @ values, rtol=1e-15)
    assert backend.numpy(finish(empty)).tolist() == [-np.inf] * 2
    assert np.isnan(backend.numpy(average(empty))).all()
    assert backend.dtype(start(backend.asarray(np.zeros(2), "float32")).sum) == "float32"
    assert update(state, backend.asarray(np.zeros((2, 0))), backend.asarray(np.zeros((0, 1)))) is state


scores = st.lists(st.one_of(st.floats(-800, 800), st.just(-math.inf)), min_size=1, max_size=6)


@pytest.mark.claim("logsumexp-merge")
@settings(max_examples=60, deadline=None)
@given(scores, scores, scores)
def test_merge_is_a_commutative_monoid(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = (state_of(np.asarray(v), np.arange(2.0 * len(v)).reshape(-1, 2) + 1) for v in (a, b, c))
    neutral = start(np.zeros(()), features=2)
    for left, right in ((merge(x, y), merge(y, x)), (merge(x, neutral), x), (merge(neutral, x), x)):
        for p, q in zip(left, right, strict=True):
            np.testing.assert_array_equal(p, q)
    left, right = merge(merge(x, y), z), merge(x, merge(y, z))
    assert left.max == right.max
    np.testing.assert_allclose(left.sum, right.sum, rtol=2e-13)
    np.testing.assert_allclose(left.weighted, right.weighted, rtol=2e-13)
    np.testing.assert_allclose(finish(left), reference(np.asarray([*a, *b, *c])), rtol=1e-14, atol=1e-14)


@pytest.mark.claim("logsumexp-merge")
def test_shards_in_any_order(backend: Backend) -> None:
    rng = np.random.default_rng(8)
    x, values = 4 * rng.standard_normal((2, 50)), rng.standard_normal((50, 3))
    cuts = [0, 7, 8, 31, 50]
    parts = []
    for a, b in itertools.pairwise(cuts):
        empty = start(backend.asarray(np.zeros(2)), features=3)
        parts.append(update(empty, backend.asarray(x[:, a:b]), backend.asarray(values[a:b])))
    for order in itertools.permutations(range(4)):
        p = [parts[i] for i in order]
        state = merge(merge(p[0], p[1]), merge(p[2], p[3]))
        np.testing.assert_allclose(backend.numpy(finish(state)), reference(x), rtol=1e-14)
        np.testing.assert_allclose(backend.numpy(average(state)), softmax(x) @ values, rtol=1e-12, atol=1e-14)
    unscaled = sum(backend.numpy(p.sum) for p in parts)
    assert (np.abs(backend.numpy(state.max) + np.log(unscaled) - reference(x)) > 0.1).all()


def test_merge_without_values_forgets_them() -> None:
    x = np.asarray([1.0, 2.0])
    assert merge(state_of(x, np.ones((2, 1))), state_of(x)).weighted is None
    assert merge(state_of(x), state_of(x, np.ones((2, 1)))).weighted is None
    assert merge(state_of(x), state_of(x)).weighted is None


def test_state_needs_its_values() -> None:
    x = np.zeros(2)
    with pytest.raises(ValueError, match="values must be given exactly if"):
        update(start(np.zeros(())), x, np.zeros((2, 1)))
    with pytest.raises(ValueError, match="values must be given exactly if"):
        update(start(np.zeros(()), features=1), x)
    with pytest.raises(ValueError, match="state must hold weighted values"):
        average(state_of(x))


# -- averages ---------------------------------------------------------------------------------------------------------


@pytest.mark.claim("logsumexp-average")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_average_in_every_library(dtype: str, backend: Backend) -> None:
    x = special_rows().astype(dtype)
    values = np.random.default_rng(9).standard_normal((37, 3)).astype(dtype)
    ordinary = [0, 1, 5, 6, 7, 8]
    expected = softmax(x[ordinary]) @ values.astype("float64")
    for chunk in chunks_for(backend):
        y = call(backend, softmax_average, backend.asarray(x, dtype), backend.asarray(values, dtype), chunk=chunk)
        assert backend.dtype(y) == dtype
        y = backend.numpy(y)
        np.testing.assert_allclose(y[ordinary], expected, atol=40 * U[dtype] * 10, rtol=0)
        assert np.isnan(y[[2, 4]]).all()
        np.testing.assert_array_equal(y[3], values[11])
    unnormalised = np.exp(x[ordinary[:1]] - x[ordinary[:1]].max()) @ values
    assert np.abs(unnormalised - expected[:1]).max() > 0.05


@pytest.mark.claim("logsumexp-average")
@pytest.mark.parametrize(
    ("scores_shape", "values_shape"),
    [
        ((7,), (7, 2)),
        ((3, 7), (7, 2)),
        ((4, 3, 7), (7, 2)),
        ((3, 7), (3, 7, 2)),
        ((4, 3, 7), (3, 7, 2)),
        ((4, 1, 7), (1, 3, 7, 2)),
    ],
)
def test_average_broadcasts(scores_shape: tuple[int, ...], values_shape: tuple[int, ...], backend: Backend) -> None:
    rng = np.random.default_rng(10)
    x, values = rng.standard_normal(scores_shape), rng.standard_normal(values_shape)
    expected = np.einsum("...n,...nd->...d", softmax(x), values)
    for chunk in (3,) if backend.name == "jax" else (3, None):
        y = call(backend, softmax_average, backend.asarray(x), backend.asarray(values), chunk=chunk)
        assert tuple(y.shape) == expected.shape
        np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-13, atol=1e-14)


def test_numpy_values_are_constants_beside_other_arrays(backend: Backend) -> None:
    x, values = np.random.default_rng(11).standard_normal((2, 9)), np.arange(18.0).reshape(9, 2)
    y = softmax_average(backend.asarray(x, "float32"), values, chunk=4)
    assert backend.dtype(y) == "float32"
    np.testing.assert_allclose(backend.numpy(y), softmax(x) @ values, rtol=1e-5)


@pytest.mark.claim("logsumexp-average")
def test_scores_computed_on_demand(backend: Backend) -> None:
    rng = np.random.default_rng(12)
    x, data = rng.standard_normal((4, 3)), rng.standard_normal((23, 3))
    expected = softmax(-((x[:, None] - data) ** 2).sum(-1) / 2) @ data
    for chunk in (5, None) if backend.name == "jax" else (1, 5, 22, 23, 24, None):
        for dtype in ("float64", "float32"):
            lengths: list[int] = []

            def mean(point: Any, values: Any, lengths: list[int] = lengths, chunk: int | None = chunk) -> Any:
                def distance(rows: Any) -> Any:
                    lengths.append(rows.shape[0])
                    rows = backend.xp.asarray(rows, dtype=point.dtype)
                    return -backend.xp.sum((point[:, None, :] - rows) ** 2, axis=-1) / 2

                return softmax_average(distance, values, chunk=chunk)

            for values in (data, backend.asarray(data, dtype)):
                y = call(backend, mean, backend.asarray(x, dtype), values)
                assert backend.dtype(y) == dtype
                np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e3 * U[dtype], atol=1e2 * U[dtype])
            assert max(lengths) <= (chunk or 23)


def test_automatic_chunks() -> None:
    lengths = []

    def flat(rows: np.ndarray) -> np.ndarray:
        lengths.append(len(rows))
        return np.zeros((2, len(rows)))

    softmax_average(flat, np.ones((2 * LAZY_CHUNK + 3, 1)))
    assert lengths[-3:] == [3, LAZY_CHUNK, LAZY_CHUNK]


@pytest.mark.parametrize(
    ("shape", "axis", "lengths"),
    [
        ((4096, 1300), -1, [276, 512, 512]),
        ((1300, 64, 64), 0, [276, 512, 512]),
        ((64, 1300, 64), 1, [276, 512, 512]),
        ((2**15, 300), -1, [44, 128, 128]),
        ((0, 300), -1, [300]),
        ((2**21 + 5,), -1, [5, 2**21]),
    ],
)
def test_automatic_chunks_of_an_array(
    shape: tuple[int, ...], axis: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, cut = [], _backend.slice_axis

    def record(x: np.ndarray, begin: int, length: int, axis: int) -> np.ndarray:
        seen.append(length)
        return cut(x, begin, length, axis)

    monkeypatch.setattr(_backend, "slice_axis", record)
    x = np.broadcast_to(np.float32(0), shape)
    np.testing.assert_allclose(logsumexp(x, axis=axis), math.log(shape[axis]), rtol=1e-6)
    assert seen == lengths
    if shape[0] == 4096:
        seen.clear()
        softmax_average(np.reshape(x, (64, 64, -1)), np.zeros((shape[-1], 1)))
        assert seen[::2] == lengths


def test_constants() -> None:
    assert LAZY_CHUNK == 1024
    assert CHUNK_ELEMENTS == 2**21
    assert SHORTEST_CHUNK == 128


# -- derivatives ------------------------------------------------------------------------------------------------------


def gradient(function: Callable[..., Any], library: str, *args: np.ndarray, argnum: int = 0) -> np.ndarray:
    """Gradient of the sum of `function` by JAX or PyTorch."""
    if library == "jax":
        jax = pytest.importorskip("jax")
        arrays = [jax.numpy.asarray(a) for a in args]
        return np.asarray(jax.jit(jax.grad(lambda *a: function(*a).sum(), argnums=argnum))(*arrays))
    torch = pytest.importorskip("torch")
    arrays = [torch.asarray(a) for a in args]
    arrays[argnum].requires_grad_(True)
    function(*arrays).sum().backward()
    return arrays[argnum].grad.numpy()


@pytest.mark.claim("logsumexp-gradient")
@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("chunk", [5, 37, None])
def test_gradient_is_the_softmax(chunk: int | None, library: str) -> None:
    x = special_rows()
    g = gradient(lambda x: logsumexp(x, chunk=chunk), library, x)
    ordinary = [0, 1, 5, 6, 7, 8]
    np.testing.assert_allclose(g[ordinary], softmax(x[ordinary]), rtol=1e-13, atol=1e-300)
    assert (g[1, [0, 3, 36]] == 0).all()
    assert (g[2] == 0).all()
    assert np.isfinite(g[3]).all()
    assert np.isnan(g[4]).all()
    first = gradient(lambda x: logsumexp(x, axis=0, chunk=2), library, x[:2].T.copy())
    np.testing.assert_allclose(first, softmax(x[:2]).T, rtol=1e-13, atol=1e-300)


@pytest.mark.claim("logsumexp-gradient")
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_gradient_of_one_sweep_is_exact_far_from_zero(library: str) -> None:
    """exp(x - lse) loses 1e4 u at scores of 1e4 in float32; the quotient by the sum does not."""
    base = np.random.default_rng(13).integers(-8, 8, 64) / 8
    x = (base + 2.0**13).astype("float32")
    g = gradient(lambda x: logsumexp(x, chunk=5), library, x)
    np.testing.assert_allclose(g, softmax(x), rtol=40 * U["float32"])
    subtracted = np.exp(x - logsumexp(x))
    assert np.abs(subtracted / softmax(x) - 1).max() > 5e-5


@pytest.mark.claim("logsumexp-gradient")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_forward_mode_in_torch() -> None:
    """Slow, since PyTorch compiles its decompositions when the mode is first used."""
    torch = pytest.importorskip("torch")
    x, values = np.random.default_rng(24).standard_normal((2, 11))
    p = softmax(x)
    hessian = torch.func.hessian(partial(logsumexp, chunk=4))(torch.asarray(x))
    np.testing.assert_allclose(hessian, np.diag(p) - np.outer(p, p), atol=1e-15)
    rows = torch.asarray(values[:, None])
    jacobian = torch.func.jacfwd(lambda x: softmax_average(x, rows, chunk=4))(torch.asarray(x))
    np.testing.assert_allclose(jacobian[0], p * (values - p @ values), rtol=1e-12)


@pytest.mark.claim("logsumexp-gradient")
def test_second_derivative() -> None:
    x = np.random.default_rng(14).standard_normal(11)
    x[4] = -np.inf
    p = softmax(x)
    expected = np.diag(p) - np.outer(p, p)
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")

    def function(x: Any) -> Any:
        return logsumexp(x, chunk=4)

    np.testing.assert_allclose(jax.jit(jax.hessian(function))(x), expected, atol=1e-15)
    np.testing.assert_allclose(jax.jit(jax.jacrev(jax.jacrev(function)))(x), expected, atol=1e-15)
    hessian = torch.autograd.functional.hessian(function, torch.asarray(x))
    np.testing.assert_allclose(hessian, expected, atol=1e-15)


@pytest.mark.claim("logsumexp-average-gradient")
@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("chunk", [5, None])
def test_gradient_of_the_average(chunk: int | None, library: str) -> None:
    rng = np.random.default_rng(15)
    x, values = rng.standard_normal((2, 13)), rng.standard_normal((13, 3))
    x[0, 3] = -np.inf
    x[1] = -np.inf
    p = softmax(x[0])
    centred = values - p @ values
    by_scores = gradient(lambda x, v: softmax_average(x, v, chunk=chunk)[0], library, x, values)
    np.testing.assert_allclose(by_scores[0], p * centred.sum(-1), rtol=1e-12, atol=1e-15)
    assert (by_scores[1] == 0).all()
    by_values = gradient(lambda x, v: softmax_average(x, v, chunk=chunk)[0], library, x, values, argnum=1)
    np.testing.assert_allclose(by_values, np.repeat(p[:, None], 3, axis=1), rtol=1e-12)
    assert np.abs(by_scores[0] - p * values.sum(-1)).max() > 1e-2
    for shape in ((13,), (1, 1, 13)):
        alone = gradient(lambda x, v: softmax_average(x, v, chunk=chunk), library, np.reshape(x[0], shape), values)
        np.testing.assert_allclose(np.reshape(alone, 13), p * centred.sum(-1), rtol=1e-12, atol=1e-15)


@pytest.mark.claim("logsumexp-average-gradient")
def test_jacobian_of_lazy_scores() -> None:
    """The derivative of a denoiser of data is a covariance: exact through the chunks, in both modes and twice."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    data = np.random.default_rng(16).standard_normal((23, 2))

    def denoise(x: Any, chunk: int | None = 5) -> Any:
        return softmax_average(lambda rows: -jnp.sum((x - rows) ** 2, axis=-1) / 2, data, chunk=chunk)

    x = np.asarray([0.3, -0.7])
    p = softmax(-((x - data) ** 2).sum(-1) / 2)
    centred = data - p @ data
    covariance = (centred * p[:, None]).T @ centred
    for mode in (jax.jacrev, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(mode(denoise))(x), covariance, rtol=1e-12)
    third = np.einsum("n,ni,nj,nk->ijk", p, centred, centred, centred)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.jacrev(denoise)))(x), third, rtol=1e-11, atol=1e-14)


def test_under_jit_and_vmap() -> None:
    jax = pytest.importorskip("jax")
    x, values = special_rows(), np.random.default_rng(17).standard_normal((37, 2))
    for chunk in (5,):
        y = logsumexp(x, chunk=chunk)
        np.testing.assert_allclose(logsumexp(jax.numpy.asarray(x), chunk=chunk), y, rtol=1e-14)
        np.testing.assert_allclose(jax.jit(jax.vmap(partial(logsumexp, chunk=chunk)))(x), y, rtol=1e-14)
        z = softmax_average(x, values, chunk=chunk)
        mapped = jax.jit(jax.vmap(lambda x, c=chunk: softmax_average(x, values, chunk=c)))(x)
        np.testing.assert_allclose(mapped, z, rtol=1e-12)
        rows = jax.vmap(jax.grad(partial(logsumexp, chunk=chunk)))(x[:2])
        np.testing.assert_allclose(rows, softmax(x[:2]), rtol=1e-13)


def test_vmap_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x = special_rows()[:2]
    rows = torch.func.vmap(torch.func.grad(lambda x: logsumexp(x, chunk=5)))(torch.asarray(x))
    np.testing.assert_allclose(rows.numpy(), softmax(x), rtol=1e-13)


# -- accuracy ---------------------------------------------------------------------------------------------------------


def bound(x: np.ndarray, chunk: int, u: float) -> float:
    """Error bound of the chapter for one row."""
    n = len(x)
    size = min(chunk, n)
    first = (n - 1) % size + 1
    tops = [float(x[:first].max()), *(float(x[a : a + size].max()) for a in range(first, n, size))]
    moves = sum(b > a for a, b in itertools.pairwise(np.maximum.accumulate(tops)))
    value = abs(float(reference(x[None])[0]))
    return u * (value + ETA * math.log(n) + size + len(tops) + (ETA + 1) * (moves + 2))


def adversarial(kind: str, n: int) -> np.ndarray:
    """Rows that are unkind: rising maxima, equal terms that round one way, cancelling result, a wide range."""
    ramp = np.arange(n) / n
    return {
        "normal": 3 * np.random.default_rng(18).standard_normal(n),
        "rising": 20 * ramp,
        "falling": -20 * ramp,
        "equal": np.full(n, math.log(0.1)),
        "near zero": np.random.default_rng(19).uniform(-1, 1, n) - math.log(n),
        "far": np.random.default_rng(20).standard_normal(n) + 1e4,
        "wide": np.linspace(-200, 60, n),
        "late": np.concatenate([np.full(n - 1, -8.0), [9.0]]),
    }[kind].astype("float32")


@pytest.mark.claim("logsumexp-bound")
@pytest.mark.parametrize("kind", ["normal", "rising", "falling", "equal", "near zero", "far", "wide", "late"])
def test_error_bound(kind: str) -> None:
    x = adversarial(kind, 2003)
    truth = float(reference(x[None])[0])
    for chunk in (3, 16, 45, 512, 2003):
        assert abs(float(logsumexp(x, chunk=chunk)) - truth) <= bound(x, chunk, U["float32"])
    folded = float(np.logaddexp.reduce(x))
    if kind in {"normal", "rising"}:
        assert abs(folded - truth) > bound(x, 45, U["float32"])


@pytest.mark.claim("logsumexp-bound")
def test_bound_is_approached() -> None:
    """With chunks of one term the sum is sequential and drifts: a bound without the number of chunks is broken."""
    x = np.zeros(2**14 + 1, "float32")
    x[1:] = math.log(0.3)
    error = abs(float(logsumexp(x, chunk=1)) - float(reference(x[None])[0]))
    assert bound(x, 1, U["float32"]) / 300 < error <= bound(x, 1, U["float32"])
    assert error > U["float32"] * (20 + ETA * math.log(len(x)) + 2 * (ETA + 1))


@pytest.mark.claim("logsumexp-average-bound")
@pytest.mark.parametrize("kind", ["normal", "rising", "equal", "far", "wide", "late"])
def test_error_bound_of_the_average(kind: str) -> None:
    x = adversarial(kind, 5003)
    values = np.random.default_rng(21).standard_normal((5003, 4)).astype("float32") + 1
    p, v = softmax(x), values.astype("float64")
    y = p @ v
    distance = x.max() - x.astype("float64")
    for chunk in (16, 71, 5003):
        count = -(-5003 // chunk)
        weight = distance + chunk + count + (ETA + 1) * (count + 2) + 2
        limit = U["float32"] * (p * weight) @ (np.abs(v) + np.abs(y))
        error = np.abs(softmax_average(x, values, chunk=chunk) - y)
        assert (error <= limit).all()
        if kind == "far" and chunk == 71:
            # The weights exp(x - lse) are all off by one factor, the rounding of lse.
            assert (np.abs(np.exp(x - logsumexp(x)) @ v - y) > limit).any()


@pytest.mark.claim("logsumexp-condition")
def test_condition_number() -> None:
    """Near lse = 0 the relative error is unbounded, the absolute error is not."""
    x = np.random.default_rng(22).standard_normal(50)
    x -= exact(x)
    p = softmax(x)
    perturbed = x * (1 + 1e-6 * np.sign(x))
    change = exact(perturbed) - exact(x)
    assert change == pytest.approx(1e-6 * (p @ np.abs(x)), rel=1e-3)
    x32 = (x + 1e-6).astype("float32")
    truth = float(reference(x32[None])[0])
    assert abs(float(logsumexp(x32)) - truth) < 2e-7
    assert abs(truth) < 2e-6


@pytest.mark.claim("logsumexp-relative")
def test_relative_condition() -> None:
    """kappa is at most 1 for positive scores and is reached by a perturbation along the signs, whatever its size."""
    for x in (np.random.default_rng(3).uniform(0, 5, 40), np.random.default_rng(4).standard_normal(40) - 3.5):
        p, value = softmax(x), exact(x)
        kappa = float(p @ np.abs(x)) / abs(value)
        moved = exact(x * (1 + 1e-7 * np.sign(x)))
        assert abs(moved / value - 1) == pytest.approx(1e-7 * kappa, rel=1e-4)
        assert (kappa <= 1) == bool((x > 0).all())
        wrong = float(p @ np.abs(x - x.max())) / abs(value)  # the condition of the shifted scores
        assert abs(wrong - kappa) > 0.1 * kappa


@pytest.mark.claim("logsumexp-softmax-condition")
def test_condition_of_the_softmax() -> None:
    """Rounding scores near 1e4 to float32 moves probabilities by up to the bound; without the scores' size it fails."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(30) + 1e4
    p, rounded = softmax(x), softmax(x.astype("float32").astype("float64"))
    limit = U["float32"] * (np.abs(x) + p @ np.abs(x))
    change = np.abs(rounded / p - 1)
    assert (change <= limit * 1.001).all()
    assert (limit <= 2 * U["float32"] * np.abs(x).max()).all()
    assert change.max() > 0.1 * limit.max()
    assert (change > U["float32"] * (np.abs(x - x.max()) + p @ np.abs(x - x.max()))).any()
    # and the first term is reached where one score alone moves
    alone = x.copy()
    alone[3] *= 1 + 1e-9
    assert abs(softmax(alone)[3] / p[3] - 1) == pytest.approx(1e-9 * x[3] * (1 - p[3]), rel=1e-4)


def running_bound(x: np.ndarray, *, additions: bool = True, merges: bool = True) -> tuple[float, float]:
    """Result of the library's sweep over single terms, and the bound of the chapter that is computed beside it."""
    state, limit = start(np.zeros((), "float32")), 0.0
    for term in x:
        before, state = state, update(state, term[None])
        m, total = float(state.max), float(state.sum)
        parts = [(float(before.max), float(before.sum), limit), (float(term), 1.0, float(ETA))]
        limit = total if additions else 0.0
        for k, s, e in parts:
            if s:
                limit += math.exp(k - m) * (e + (merges and k != m) * (m - k + ETA + 1) * s)
    value = float(finish(state))
    return value, U["float32"] * (limit / total + ETA * abs(math.log(total)) + abs(value))


@pytest.mark.claim("logsumexp-running")
@pytest.mark.parametrize("kind", ["normal", "rising", "falling", "equal", "near zero", "far", "wide", "late"])
def test_running_bound(kind: str) -> None:
    x = adversarial(kind, 2003)
    value, limit = running_bound(x)
    assert abs(value - float(reference(x[None])[0])) <= limit
    assert limit < bound(x, 1, U["float32"])
    if kind == "late":
        assert limit < 0.02 * bound(x, 1, U["float32"])


@pytest.mark.claim("logsumexp-running")
def test_running_bound_needs_the_partial_sums() -> None:
    """Equal terms that round one way: without the additions in it the bound is broken."""
    x = np.zeros(2**13 + 1, "float32")
    x[1:] = math.log(0.3)
    value, limit = running_bound(x)
    error = abs(value - float(reference(x[None])[0]))
    assert limit / 300 < error <= limit
    _, short = running_bound(x, additions=False, merges=False)
    assert error > short


@pytest.mark.claim("logsumexp-sweeps")
def test_one_sweep_reads_once() -> None:
    """Rows of values that are asked for: each once, and one of them twice, to learn its dtype."""
    rng = np.random.default_rng(6)
    values, weights = rng.standard_normal((1009, 2)), rng.standard_normal(2)
    read: list[int] = []

    def scores(rows: np.ndarray) -> np.ndarray:
        read.append(len(rows))
        return rows @ weights

    mean = softmax_average(scores, values, chunk=64)
    assert sum(read) == 1009 + 1
    read.clear()
    peak = scores(values).max()
    e = np.exp(scores(values) - peak)
    np.testing.assert_allclose(mean, e @ values / e.sum(), rtol=1e-12)
    assert sum(read) == 2 * 1009


@pytest.mark.claim("logsumexp-sweeps")
def test_one_sweep_takes_two_exponentials_more_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real, temporary = np.exp, _backend.exp_of_temporary

    def count(x: Any, *args: Any, **kwargs: Any) -> Any:
        taken.append(np.size(x))
        return real(x, *args, **kwargs)

    def count_temporary(x: Any) -> Any:
        taken.append(np.size(x))
        return temporary(x)

    xp = _backend.namespace(np.zeros(1))
    monkeypatch.setattr(xp, "exp", count)
    monkeypatch.setattr(_backend, "exp_of_temporary", count_temporary)
    logsumexp(np.random.default_rng(7).standard_normal(1000), chunk=50)
    assert sum(taken) == 1000 + 2 * (20 - 1)


@pytest.mark.claim("logsumexp-sweeps")
def test_a_maximum_of_scores_in_random_order_rises_as_the_logarithm() -> None:
    """Expected rises over C chunks: 1/2 + ... + 1/C, 3.5 for C = 50, where the bound allows 49."""
    x = np.random.default_rng(8).standard_normal((4000, 50, 4)).max(-1)
    rises = (np.diff(np.maximum.accumulate(x, axis=1), axis=1) > 0).sum(1)
    assert rises.mean() == pytest.approx(sum(1 / k for k in range(2, 51)), abs=0.15)


FACTS = 40
"""Draws of the experiment below; its root mean squares then scatter by about a tenth."""


@pytest.mark.claim("logsumexp-fold", "logsumexp-bound")
def test_folding_chunk_results_costs_digits() -> None:
    """float32, 50,257 logits N(0, 9), chunks of 512: what the orders of summation cost."""
    errors: dict[str, list[float]] = {name: [] for name in ("two sweeps", "online", "folded", "sum", "logaddexp")}
    rng = np.random.default_rng(23)
    for _ in range(FACTS):
        x = 3 * rng.standard_normal(50257, dtype=np.float32)
        truth = float(reference(x[None])[0])
        e = np.exp(x - x.max())
        parts = [logsumexp(x[a : a + 512]) for a in range(0, 50257, 512)]
        for name, value in (
            ("two sweeps", x.max() + np.log(e.sum())),
            ("online", logsumexp(x, chunk=512)),
            ("folded", np.logaddexp.reduce(np.asarray(parts))),
            ("sum", x.max() + np.log(np.cumsum(e)[-1])),
            ("logaddexp", np.logaddexp.reduce(x)),
        ):
            errors[name].append(float(value) - truth)
    rms = {name: float(np.sqrt(np.mean(np.square(e)))) for name, e in errors.items()}
    assert rms["two sweeps"] < 4.5e-7
    assert rms["online"] < 4.5e-7
    assert 1.2e-6 < rms["folded"] < 2.2e-6
    assert 3e-5 < rms["sum"] < 8e-5
    assert 7e-4 < rms["logaddexp"] < 1.3e-3


# -- memory -----------------------------------------------------------------------------------------------------------


def peak(function: Callable[[], Any]) -> int:
    """Bytes that NumPy allocates beyond what it holds, at most; the first call may import."""
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.claim("logsumexp-memory")
def test_memory_of_a_chunk() -> None:
    x, values = np.zeros((64, 20011), "float32"), np.zeros((20011, 8), "float32")
    chunk_bytes = 64 * 500 * 4
    assert peak(lambda: logsumexp(x, chunk=500)) < 2.5 * chunk_bytes
    assert peak(lambda: softmax_average(x, values, chunk=500)) < 2.5 * chunk_bytes
    assert peak(lambda: logsumexp(x, axis=0, chunk=8)) < (2.5 * 8 + 8) * 20011 * 4
    assert peak(lambda: np.exp(x)) > 30 * chunk_bytes
    wide = np.zeros((1, CHUNK_ELEMENTS * 3), "float32")
    assert peak(lambda: logsumexp(wide)) < 2.5 * CHUNK_ELEMENTS * 4


@pytest.mark.claim("logsumexp-memory")
def test_memory_and_program_size_under_jax() -> None:
    jax = pytest.importorskip("jax")
    programs, temporary = [], []
    for n in (5003, 50021):
        x = jax.ShapeDtypeStruct((16, n), "float32")
        values = jax.ShapeDtypeStruct((n, 4), "float32")
        for function, args in (
            (lambda x: logsumexp(x, chunk=256), (x,)),
            (lambda x, v: softmax_average(x, v, chunk=256), (x, values)),
        ):
            lowered = jax.jit(function).lower(*args)
            programs.append(len(lowered.as_text().splitlines()))
            temporary.append(lowered.compile().memory_analysis().temp_size_in_bytes)
    first = jax.jit(partial(logsumexp, axis=0, chunk=256)).lower(jax.ShapeDtypeStruct((50021, 16), "float32"))
    temporary.append(first.compile().memory_analysis().temp_size_in_bytes)
    assert programs[:2] == programs[2:]
    assert max(temporary) < 8 * 16 * 256 * 4
    assert max(abs(temporary[0] - temporary[2]), abs(temporary[1] - temporary[3])) < 2048


# -- bad input --------------------------------------------------------------------------------------------------------


@given(st.one_of(st.integers(max_value=0), st.floats(), st.text(max_size=2), st.booleans()))
def test_chunk_of_no_use(chunk: Any) -> None:
    for call in (
        lambda: logsumexp(np.zeros(3), chunk=chunk),
        lambda: logsumexp(np.zeros((3, 0)), chunk=chunk),
        lambda: softmax_average(np.zeros(3), np.zeros((3, 1)), chunk=chunk),
        lambda: softmax_average(lambda rows: rows[:, 0], np.zeros((3, 1)), chunk=chunk),
    ):
        with pytest.raises(ValueError, match="chunk must be an integer >= 1 or None, got"):
            call()


@given(st.one_of(st.integers(2, 9), st.integers(-9, -3), st.just((0, 0)), st.just((0, -2)), st.just(()), st.just(1.0)))
def test_axis_of_no_use(axis: Any) -> None:
    with pytest.raises(ValueError, match="axis must be distinct axes of an array of 2 dimensions, got"):
        logsumexp(np.zeros((2, 3)), axis=axis)


@pytest.mark.parametrize(
    ("scores_shape", "values_shape", "message"),
    [
        ((3,), (3,), "values must have shape"),
        ((0,), (0, 2), "values must have shape"),
        ((), (1, 2), "scores and values must have shapes"),
        ((4,), (3, 2), "scores and values must have shapes"),
        ((2, 3), (5, 3, 2), "scores and values must have shapes"),
        ((2, 4, 3), (5, 1, 3, 2), "scores and values must have shapes"),
    ],
)
def test_shapes_that_do_not_fit(scores_shape: Any, values_shape: Any, message: str, backend: Backend) -> None:
    with pytest.raises(ValueError, match=message):
        softmax_average(backend.asarray(np.zeros(scores_shape)), backend.asarray(np.zeros(values_shape)))


@pytest.mark.parametrize("bad", [np.asarray([1j]), np.asarray([True]), "a"])
def test_not_real(bad: Any) -> None:
    with pytest.raises(TypeError, match="x must be real"):
        logsumexp(bad)
    with pytest.raises(TypeError, match="scores must be real"):
        softmax_average(bad, np.zeros((1, 1)))
    with pytest.raises(TypeError, match="values must be real"):
        softmax_average(np.zeros(1), bad)
    with pytest.raises(TypeError, match="like must be real"):
        start(bad)


def test_scores_on_demand_may_be_integers():
    found = softmax_average(lambda rows: np.arange(len(rows)), np.array([[0.0], [10.0], [4.0]]), chunk=3)
    weights = np.exp([0.0, 1.0, 2.0])
    assert found[0] == pytest.approx(float(weights @ [0.0, 10.0, 4.0] / weights.sum()), rel=1e-14)
    with pytest.raises(TypeError, match="scores must be real"):
        softmax_average(lambda rows: np.ones(len(rows), dtype=bool), np.ones((3, 1)))


# -- +inf beside the largest numbers ----------------------------------------------------------------------------------


@pytest.mark.claim("logsumexp-merge", "logsumexp-average")
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_infinite_scores_beside_the_largest_finite_ones(backend: Backend, chunk: int) -> None:
    """Any finite number that stood for +inf would be beaten by a larger score, in its chunk or in another."""
    for dtype in ("float64", "float32"):
        high = float(np.finfo(dtype).max)
        # the scale of a stand-in that can be added to anything; it lost to the rest of the range
        near = high * float(np.finfo(dtype).eps)
        rows = [[near, np.inf, 0.0, high, np.inf], [np.inf, high, near, high, 1.0], [high, 1.0, near, -np.inf, high]]
        values = backend.asarray([[1.0], [2.0], [4.0], [8.0], [32.0]], dtype)
        y = call(backend, logsumexp, backend.asarray(rows, dtype), chunk=chunk)
        assert backend.numpy(y).tolist() == [np.inf, np.inf, high]
        mean = call(backend, softmax_average, backend.asarray(rows, dtype), values, chunk=chunk)
        np.testing.assert_allclose(backend.numpy(mean)[:, 0], [17.0, 1.0, 16.5], rtol=1e-6)


def test_states_of_infinite_maxima(backend: Backend) -> None:
    """An empty state is -inf and 0; infinite maxima merge to the number of infinite scores."""
    empty = start(backend.asarray([0.0, 0.0]))
    assert backend.numpy(empty.max).tolist() == [-np.inf, -np.inf]
    large = update(empty, backend.asarray([[1e300], [-1e300]]))
    assert backend.numpy(finish(large)).tolist() == [1e300, -1e300]
    endless = update(large, backend.asarray([[np.inf, np.inf], [3.0, -np.inf]]))
    for state in (merge(endless, large), merge(large, endless)):
        assert backend.numpy(state.max).tolist() == [np.inf, 3.0]
        assert backend.numpy(state.sum).tolist() == [2.0, 1.0]
    twice = merge(endless, endless)
    assert backend.numpy(twice.sum).tolist() == [4.0, 2.0]


def test_no_derivative_in_rows_of_infinite_scores() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray([[np.inf, 1.0, 1e30], [0.0, 1.0, -np.inf]], dtype="float32")
    for chunk in (1, 3):
        grad = jax.grad(lambda x, chunk=chunk: logsumexp(x, chunk=chunk)[1] + 0.0 * x[0, 1])(x)
        np.testing.assert_allclose(grad, [[0, 0, 0], [1 / (1 + np.e), np.e / (1 + np.e), 0]], rtol=1e-6)
        jacobian = jax.jacobian(lambda x, chunk=chunk: logsumexp(x, chunk=chunk))(x)
        assert np.isfinite(jacobian).all()
        assert (np.asarray(jacobian)[0] == 0).all()


def test_states_under_jit_and_grad() -> None:
    """Also with columns to average, and of no terms: a traced array has no device."""
    jax = pytest.importorskip("jax")
    x, v = jax.numpy.asarray([[0.3, -1.0, 2.0]]), jax.numpy.asarray([[1.0], [2.0], [4.0]])

    def mean(x: Any) -> Any:
        return average(update(start(x[:, 0], features=1), x, v)).sum()

    share = np.exp(np.asarray(x[0])) / np.exp(np.asarray(x[0])).sum()
    expected = share * (np.asarray(v[:, 0]) - share @ np.asarray(v[:, 0]))
    np.testing.assert_allclose(jax.jit(jax.grad(mean))(x)[0], expected, rtol=1e-12)
    assert jax.jit(logsumexp)(x[:, :0]).tolist() == [-np.inf]
