"""Linear cross-entropy against the logits written out in float64, and against every mistake that public code makes."""

from __future__ import annotations

import importlib
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import Backend, make_backend
from hypothesis import given
from hypothesis import strategies as st

from diffnum import _backend, _vocabulary
from diffnum._blocks import BUDGET, Blocks, choose_blocks, over, ragged
from diffnum.cross_entropy import (
    argmax,
    entropy,
    linear_cross_entropy,
    linear_cross_entropy_and_grad,
    linear_cross_entropy_bytes,
    sample,
    softmax_embed,
    top_k,
)

CLOSE = {"float64": 1e-12, "float32": 3e-5}
"""Relative to the largest entry: rounding of sums of some hundred terms of order one."""
HALF = {"float16": 2e-3, "bfloat16": 1.2e-2}
"""Relative to the largest entry: the last rounding of a gradient, with sums in float32."""
STEP = 1e-30
"""Of the complex-step derivative, which has no cancellation: its result is exact to rounding."""
WRONG = 1e-3
"""A mistake moves a loss or a gradient by more than this, relative to its largest entry."""


@pytest.fixture(params=["numpy", "torch", "strict", pytest.param("jax", marks=pytest.mark.slow)])
def library(request: pytest.FixtureRequest) -> Backend:
    """Each array library in turn; JAX, which compiles for seconds, where one fast test has seen it already."""
    return make_backend(request.param)


# -- the loss, written out --------------------------------------------------------------------------------------------


def naive(
    hidden: Any,
    weight: Any,
    targets: np.ndarray,
    *,
    bias: Any = None,
    logit_scale: Any = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    class_weight: np.ndarray | None = None,
    token_weight: Any = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    """The definition, over the matrix of logits; analytic, so that a complex step through it is a derivative."""
    z = logit_scale * (hidden @ weight.T + (0.0 if bias is None else bias))
    if softcap is not None:
        z = softcap * np.tanh(z / softcap)
    top = z.real.max(-1, keepdims=True)
    lse = (top + np.log(np.exp(z - top).sum(-1, keepdims=True)))[..., 0]
    vocabulary = weight.shape[0]
    classes = np.ones(vocabulary) if class_weight is None else class_weight
    losses, shares = [], []
    for i, y in enumerate(targets):
        if y == ignore_index:
            losses.append(0.0 * lse[i])
            continue
        q = classes * (label_smoothing / vocabulary + (1 - label_smoothing) * (np.arange(vocabulary) == y))
        share = 1.0 if token_weight is None else token_weight[i]
        losses.append(share * ((q * (lse[i] - z[i])).sum() + z_loss * lse[i] ** 2))
        shares.append(share * classes[y])
    each = np.array(losses)
    if reduction == "none":
        return each
    total = each.sum()
    return total if reduction == "sum" else (total / sum(shares) if np.sum(shares).real != 0 else 0.0 * total)


def slope(function: Any, x: np.ndarray, direction: np.ndarray) -> Any:
    """Derivative of `function` at `x` along `direction`, by a complex step."""
    return np.imag(function(x + 1j * STEP * direction)) / STEP


def example(seed: int = 0, tokens: int = 13, features: int = 5, vocabulary: int = 29) -> dict[str, Any]:
    """Arrays of a call with all options, three tokens ignored."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, vocabulary, tokens)
    targets[[1, 4, tokens - 1]] = -7
    return {
        "hidden": rng.standard_normal((tokens, features)),
        "weight": rng.standard_normal((vocabulary, features)),
        "targets": targets,
        "bias": rng.standard_normal(vocabulary),
        "logit_scale": 0.7,
        "softcap": 3.0,
        "z_loss": 0.1,
        "label_smoothing": 0.2,
        "class_weight": rng.uniform(0.5, 2.0, vocabulary),
        "token_weight": rng.uniform(0.5, 2.0, tokens),
        "ignore_index": -7,
    }


def split(call: dict[str, Any], *names: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arrays, and the options without `names`."""
    arrays = tuple(call[name] for name in ("hidden", "weight", "targets"))
    return arrays, {k: v for k, v in call.items() if k not in {"hidden", "weight", "targets", *names}}


def off(value: Any, truth: Any) -> float:
    """Largest error, relative to the largest entry."""
    truth = np.asarray(truth)
    return float(np.abs(np.asarray(value) - truth).max() / max(np.abs(truth).max(), 1e-300))


def bfloat16(x: np.ndarray) -> np.ndarray:
    """`x` rounded to bfloat16, to nearest, ties to even."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


# -- value and gradients ----------------------------------------------------------------------------------------------


@st.composite
def calls(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call with any sizes and options, and how it is cut."""
    tokens, features, vocabulary = draw(st.integers(1, 11)), draw(st.integers(1, 4)), draw(st.integers(1, 17))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    call: dict[str, Any] = {
        "hidden": rng.standard_normal((tokens, features)),
        "weight": 2 * rng.standard_normal((vocabulary, features)),
        "targets": rng.integers(0, vocabulary, tokens),
    }
    options = {
        "bias": lambda: rng.standard_normal(vocabulary),
        "logit_scale": lambda: float(rng.uniform(-2, 2)),
        "softcap": lambda: float(rng.uniform(1, 5)),
        "z_loss": lambda: float(rng.uniform(0, 1)),
        "label_smoothing": lambda: float(rng.uniform(0, 1)),
        "class_weight": lambda: rng.uniform(0, 2, vocabulary),
        "token_weight": lambda: rng.uniform(-1, 2, tokens),
    }
    for name, make in options.items():
        if draw(st.booleans()):
            call[name] = make()
    if draw(st.booleans()):
        call["ignore_index"] = draw(st.sampled_from([-100, 0]))
        call["targets"][rng.random(tokens) < 0.4] = call["ignore_index"]
    call["reduction"] = draw(st.sampled_from(["mean", "sum", "none"]))
    rows, columns = st.integers(1, tokens + 2), st.integers(1, vocabulary + 2)
    cut = {
        "chunk": draw(st.one_of(st.none(), rows, st.tuples(rows, columns))),
        "save": draw(st.sampled_from(["gradients", "nothing"])),
    }
    return call, cut


@pytest.mark.claim("cross_entropy-loss")
@pytest.mark.claim("cross_entropy-gradients")
@given(calls())
def test_any_options_and_blocks(case: Any) -> None:
    call, cut = case
    arrays, options = split(call)
    truth = naive(*arrays, **options)
    cotangent = np.random.default_rng(1).standard_normal(np.shape(truth))
    loss, grads = linear_cross_entropy_and_grad(*arrays, **options, **cut, cotangent=cotangent)
    size = max(np.abs(naive(*arrays, **options | {"reduction": "none"})).max(), 1.0)
    assert np.abs(loss - truth).max() < 1e-9 * size
    assert np.abs(linear_cross_entropy(*arrays, **options, **cut) - truth).max() < 1e-9 * size
    for name, gradient in zip(("hidden", "weight", "bias", "logit_scale"), grads, strict=True):
        if name not in call:
            assert gradient is None
            continue
        direction = np.random.default_rng(2).standard_normal(np.shape(call[name]))

        def along(x: Any, name: str = name) -> Any:
            arrays, options = split(call | {name: x})
            return np.sum(cotangent * naive(*arrays, **options))

        expected = slope(along, np.asarray(call[name]), direction)
        scale = np.abs(gradient).max() * np.abs(direction).sum() + 1e-3
        assert abs(np.sum(gradient * direction) - expected) < 1e-9 * scale


@pytest.mark.claim("cross_entropy-gradients")
def test_every_entry_of_every_gradient() -> None:
    call = example()
    arrays, options = split(call)
    _, grads = linear_cross_entropy_and_grad(*arrays, **options, chunk=(5, 7))
    for name, gradient in zip(("hidden", "weight", "bias", "logit_scale"), grads, strict=True):
        x = np.asarray(call[name])
        for index in np.ndindex(x.shape):
            unit = np.zeros(x.shape)
            unit[index] = 1.0

            def swapped(v: Any, name: str = name) -> Any:
                arrays, options = split(call | {name: v})
                return naive(*arrays, **options)

            assert gradient[index] == pytest.approx(slope(swapped, x, unit), rel=1e-11, abs=1e-14)


@pytest.mark.claim("cross_entropy-gradients")
def test_finite_differences_of_the_blocked_loss_itself() -> None:
    call = example(3)
    arrays, options = split(call)
    _, grads = linear_cross_entropy_and_grad(*arrays, **options, chunk=(4, 6))
    direction = np.random.default_rng(0).standard_normal(call["weight"].shape)
    h = 1e-5
    moved = [
        linear_cross_entropy(arrays[0], arrays[1] + s * h * direction, arrays[2], **options, chunk=(3, 8))
        for s in (1, -1)
    ]
    # the error of a central difference is h^2 times a third derivative of order one
    assert (moved[0] - moved[1]) / (2 * h) == pytest.approx(np.sum(grads.weight * direction), rel=1e-8)


@pytest.mark.claim("cross_entropy-loss")
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("vocabulary", [1, 2, 7])
@pytest.mark.parametrize("save", ["gradients", "nothing"])
def test_blocks_do_not_matter(tokens: int, vocabulary: int, save: str) -> None:
    """One token, one class, one block, blocks longer than the axis; one class has no loss, exactly."""
    rng = np.random.default_rng(tokens)
    hidden, weight = rng.standard_normal((tokens, 3)), rng.standard_normal((vocabulary, 3))
    targets = rng.integers(0, vocabulary, tokens)
    truth = naive(hidden, weight, targets)
    _, reference = linear_cross_entropy_and_grad(hidden, weight, targets, chunk=(100, 100))
    for chunk in (None, 1, 3, *itertools.product((1, 2, 3, 7, 50), (1, 2, 3, 7, 50))):
        loss, grads = linear_cross_entropy_and_grad(hidden, weight, targets, chunk=chunk, save=save)
        assert loss == pytest.approx(truth, rel=1e-13, abs=1e-15)
        for a, b in zip(grads[:2], reference[:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
        if vocabulary == 1:
            assert loss == 0
            assert not grads.hidden.any()


def test_shapes_and_dtypes(library: Backend) -> None:
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((2, 3, 4)), rng.standard_normal((7, 4))
    targets = rng.integers(0, 7, (2, 3))
    for dtype in ("float64", "float32"):
        h, w, y = library.asarray(hidden, dtype), library.asarray(weight, dtype), library.asarray(targets, None)
        loss, extras = linear_cross_entropy(h, w, y, reduction="none", return_lse=True, return_accuracy=True)
        assert tuple(loss.shape) == tuple(extras.lse.shape) == tuple(extras.accuracy.shape) == (2, 3)
        assert library.dtype(loss) == library.dtype(extras.lse) == dtype
        mean, grads = linear_cross_entropy_and_grad(h, w, y)
        assert mean.shape == ()
        assert tuple(grads.hidden.shape) == (2, 3, 4)
        assert grads.bias is grads.logit_scale is None
        assert library.dtype(grads.hidden) == library.dtype(grads.weight) == dtype
        assert float(mean) == pytest.approx(float(library.numpy(loss).mean()), rel=CLOSE[dtype])


@pytest.mark.claim("cross_entropy-loss")
@pytest.mark.claim("cross_entropy-gradients")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_library(dtype: str, backend: Backend) -> None:
    call = example()
    arrays, options = split(call)
    expected, grads = linear_cross_entropy_and_grad(*arrays, **options)
    moved = {k: backend.asarray(v, dtype) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    hidden, weight, targets = (backend.asarray(a, d) for a, d in zip(arrays, (dtype, dtype, None), strict=True))
    function = partial(linear_cross_entropy_and_grad, **moved, chunk=(5, 7), return_lse=True)
    if backend.name == "jax":
        function = importlib.import_module("jax").jit(function)
    (loss, extras), found = function(hidden, weight, targets)
    assert backend.dtype(loss) == dtype
    assert off(backend.numpy(loss), expected) < CLOSE[dtype]
    assert extras.accuracy is None
    counted = call["targets"] != -7
    assert off(backend.numpy(extras.lse), np.where(counted, naive_lse(call), 0.0)) < CLOSE[dtype]
    for a, b in zip(found, grads, strict=True):
        assert backend.dtype(a) == dtype
        assert off(backend.numpy(a), b) < CLOSE[dtype]


def naive_logits(call: dict[str, Any]) -> np.ndarray:
    z = call["logit_scale"] * (call["hidden"] @ call["weight"].T + call["bias"])
    return call["softcap"] * np.tanh(z / call["softcap"])


def naive_lse(call: dict[str, Any]) -> np.ndarray:
    return np.log(np.exp(naive_logits(call)).sum(-1))


def test_numpy_arrays_beside_another_library_are_constants() -> None:
    jax = pytest.importorskip("jax")
    arrays, options = split(example())
    loss = linear_cross_entropy(jax.numpy.asarray(arrays[0]), *arrays[1:], **options)
    assert isinstance(loss, jax.Array)
    assert float(loss) == pytest.approx(naive(*arrays, **options), rel=1e-12)
    options["bias"] = jax.numpy.asarray(options["bias"])
    assert isinstance(linear_cross_entropy(*arrays, **options), jax.Array)


# -- the parts of the derivation --------------------------------------------------------------------------------------


@pytest.mark.claim("cross_entropy-logits")
def test_order_of_bias_scale_and_cap() -> None:
    """Scale after bias, cap last; every other order moves the loss."""
    call = example()
    arrays, options = split(call)
    ours = linear_cross_entropy(*arrays, **options)
    assert ours == pytest.approx(naive(*arrays, **options), rel=1e-13)
    h, w, b, a, c = (call[k] for k in ("hidden", "weight", "bias", "logit_scale", "softcap"))
    others = {
        "bias after scale": c * np.tanh((a * (h @ w.T) + b) / c),
        "scale after cap": a * c * np.tanh((h @ w.T + b) / c),
        "bias after cap": c * np.tanh(a * (h @ w.T) / c) + b,
        "no cap": a * (h @ w.T + b),
        "no scale": c * np.tanh((h @ w.T + b) / c),
        "z tanh(z/c)": a * (h @ w.T + b) * np.tanh(a * (h @ w.T + b) / c),
    }
    for z in others.values():
        # logits as they are, through an identity layer
        plain = {k: v for k, v in options.items() if k not in {"bias", "logit_scale", "softcap"}}
        assert abs(naive(z, np.eye(z.shape[1]), call["targets"], **plain) - ours) > WRONG * abs(ours)


@pytest.mark.claim("cross_entropy-logits")
def test_the_cap_bounds_every_log_probability() -> None:
    """unsloth-zoo 593: a cap that is none gives log-probabilities far below -2c - log V."""
    hidden, weight = 50 * np.ones((1, 1)), np.array([[1.0], [-1.0], [0.5]])
    loss = linear_cross_entropy(hidden, weight, np.array([1]), softcap=2.0)
    assert loss < 2 * 2.0 + math.log(3)
    assert linear_cross_entropy(hidden, weight, np.array([1])) > 90


@pytest.mark.claim("cross_entropy-target")
def test_smoothing_is_the_cross_entropy_of_a_mixture() -> None:
    call = example()
    arrays, options = split(call, "z_loss", "softcap", "bias", "logit_scale", "ignore_index", "token_weight")
    targets = np.abs(arrays[2])
    ours = linear_cross_entropy(arrays[0], arrays[1], targets, **options, reduction="none")
    logp = arrays[0] @ arrays[1].T
    logp -= np.log(np.exp(logp).sum(-1, keepdims=True))
    q = 0.8 * np.eye(29)[targets] + 0.2 / 29
    np.testing.assert_allclose(ours, -(q * call["class_weight"] * logp).sum(-1), rtol=1e-12)
    for wrong in (0.8 * np.eye(29)[targets] + 0.2 / 28, np.eye(29)[targets] + 0.2 / 29):
        assert off(-(wrong * call["class_weight"] * logp).sum(-1), ours) > WRONG


@pytest.mark.claim("cross_entropy-loss")
def test_reductions_against_pytorch() -> None:
    """`torch.nn.functional.cross_entropy` has weights, smoothing and ignored tokens, over given logits."""
    torch = pytest.importorskip("torch")
    call = example()
    arrays, options = split(call, "bias", "softcap", "logit_scale", "z_loss", "token_weight")
    z = torch.as_tensor(arrays[0] @ arrays[1].T)
    for reduction in ("mean", "sum", "none"):
        truth = torch.nn.functional.cross_entropy(
            z,
            torch.as_tensor(arrays[2]),
            weight=torch.as_tensor(call["class_weight"]),
            ignore_index=-7,
            reduction=reduction,
            label_smoothing=0.2,
        )
        ours = linear_cross_entropy(*arrays, **options, reduction=reduction, chunk=(4, 5))
        np.testing.assert_allclose(ours, truth.numpy(), rtol=1e-12)


@pytest.mark.claim("cross_entropy-split")
def test_three_quantities_make_every_loss() -> None:
    call = example()
    arrays, options = split(call)
    z, classes = naive_logits(call), call["class_weight"]
    lse = naive_lse(call)
    counted = call["targets"] != -7
    y = np.where(counted, call["targets"], 0)
    nll, spread = lse - z[np.arange(13), y], (classes * (lse[:, None] - z)).sum(-1)
    share = counted * call["token_weight"]
    loss = share * (classes[y] * 0.8 * nll + 0.2 / 29 * spread + 0.1 * lse**2)
    ours = linear_cross_entropy(*arrays, **options, reduction="none", chunk=(3, 4))
    np.testing.assert_allclose(ours, loss, rtol=1e-12, atol=1e-15)
    mean = linear_cross_entropy(*arrays, **options)
    assert mean == pytest.approx(loss.sum() / (share * classes[y]).sum(), rel=1e-12)
    # the z-loss beside the mean, or the weights of tokens alone below it
    assert abs(loss.sum() / share.sum() - mean) > WRONG * mean


@pytest.mark.claim("cross_entropy-logit-gradient")
def test_gradient_of_logits_through_an_identity_layer() -> None:
    """With weight I the hidden states are the logits, and their gradient is that of the logits."""
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((6, 9)), rng.integers(0, 9, 6)
    _, grads = linear_cross_entropy_and_grad(z, np.eye(9), y, reduction="sum", z_loss=0.3, chunk=(4, 2))
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    p, onehot = np.exp(z - lse), np.eye(9)[y]
    np.testing.assert_allclose(grads.hidden, (1 + 2 * 0.3 * lse) * p - onehot, rtol=1e-12, atol=1e-15)
    assert off((1 + 0.3 * lse) * p - onehot, grads.hidden) > WRONG
    assert off(p - onehot + 2 * 0.3 * lse, grads.hidden) > WRONG


@pytest.mark.claim("cross_entropy-statistics")
def test_a_deviation_follows_the_maximum() -> None:
    """Sums relative to a maximum that rises in every block: 1e8 away, digits would be gone without the correction."""
    z = np.sort(np.random.default_rng(0).standard_normal(20)) + 1e8
    kwargs = {"label_smoothing": 0.5, "class_weight": np.random.default_rng(1).uniform(0.5, 2, 20)}
    near = linear_cross_entropy(z[None] - 1e8, np.eye(20), np.array([3]), **kwargs, chunk=(1, 3), reduction="sum")
    far = linear_cross_entropy(z[None], np.eye(20), np.array([3]), **kwargs, chunk=(1, 3), reduction="sum")
    assert far == pytest.approx(near, rel=1e-13)
    lse = 1e8 + np.log(np.exp(z - 1e8).sum())
    spread = (kwargs["class_weight"] * lse).sum() - (kwargs["class_weight"] * z).sum()
    wrong = 0.5 * kwargs["class_weight"][3] * (lse - z[3]) + 0.5 / 20 * spread
    assert abs(wrong - near) > 1e-9 * near  # sums of logits as they are


@pytest.mark.parametrize("shift", [1e4, 1e8])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.claim("cross_entropy-split")
def test_shift(shift: float, dtype: str, library: Backend) -> None:
    """pytorch 11752: a loss of 0 at logits of 1e8, where log 2 is right. Multiples of 8: shifts are exact."""
    z = 8.0 * np.random.default_rng(0).integers(-3, 4, (5, 11))
    z[0] = -1e3
    z[0, :2] = 8.0
    y = np.array([1, 4, 2, 10, 0])
    eye, target = library.asarray(np.eye(11), dtype), library.asarray(y, None)
    call = partial(linear_cross_entropy, label_smoothing=0.1, reduction="none", chunk=(2, 3))
    if library.name == "jax":
        call = importlib.import_module("jax").jit(call)
    plain, moved = (library.numpy(call(library.asarray(v, dtype), eye, target)) for v in (z, z + shift))
    np.testing.assert_allclose(moved, plain, rtol=CLOSE[dtype])
    bare = linear_cross_entropy(library.asarray(z[:1] + shift, dtype), eye, target[:1])
    assert float(bare) == pytest.approx(math.log(2), rel=1e-6)
    if dtype == "float32" and library.name == "numpy":
        far = (z + shift).astype(dtype)
        lse = far.max(-1) + np.log(np.exp(far - far.max(-1, keepdims=True)).sum(-1))
        assert off(lse - far[np.arange(5), y], z.max(-1) - z[np.arange(5), y] + np.log(2)) > WRONG


# -- mistakes of public code ------------------------------------------------------------------------------------------


@pytest.mark.claim("cross_entropy-logits")
def test_padding_enters_after_the_cap() -> None:
    """tokamax, levanter, CCE 59: padded classes in the sum. V = 29 in blocks of 12 has 7 places too many."""
    call = example()
    arrays, options = split(call)
    ours = linear_cross_entropy(*arrays, **options, chunk=(4, 12))
    truth = naive(*arrays, **options)
    assert ours == pytest.approx(truth, rel=1e-13)
    z, pad = naive_logits(call), np.zeros((13, 7))
    plain = {k: v for k, v in options.items() if k not in {"bias", "logit_scale", "softcap", "class_weight"}}
    right = naive(z, np.eye(29), call["targets"], **plain)
    before_cap = np.concatenate([z, pad - call["softcap"]], axis=1)  # c tanh(-inf)
    for wrong in (np.concatenate([z, pad], axis=1), before_cap, z[:, :24], np.concatenate([z[:, :24], z[:, 17:]], 1)):
        padded = naive(wrong, np.eye(wrong.shape[1]), np.minimum(call["targets"], wrong.shape[1] - 1), **plain)
        assert abs(padded - right) > WRONG * right


@pytest.mark.claim("cross_entropy-loss")
def test_means_of_chunks_are_not_the_mean() -> None:
    """Automodel 3803 and transformers 35203: 3 + 1 counted tokens in two chunks."""
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((6, 4)), rng.standard_normal((9, 4))
    targets = np.array([1, 2, 3, 8, -100, -100])
    both = linear_cross_entropy(hidden, weight, targets, ignore_index=-100, chunk=3)
    parts = [linear_cross_entropy(hidden[i : i + 3], weight, targets[i : i + 3], ignore_index=-100) for i in (0, 3)]
    assert both == pytest.approx((3 * parts[0] + parts[1]) / 4, rel=1e-13)
    assert abs(sum(parts) - both) > WRONG * both
    assert abs(np.mean(parts) - both) > WRONG * both
    sums = [
        linear_cross_entropy_and_grad(hidden[i : i + 3], weight, targets[i : i + 3], ignore_index=-100, reduction="sum")
        for i in (0, 3)
    ]
    whole = linear_cross_entropy_and_grad(hidden, weight, targets, ignore_index=-100)[1]
    np.testing.assert_allclose((sums[0][1].weight + sums[1][1].weight) / 4, whole.weight, rtol=1e-12, atol=1e-15)


@pytest.mark.claim("cross_entropy-gradients")
def test_slope_of_the_cap() -> None:
    """levanter: without the factor 1 - tanh^2 the gradient is wrong by 100 % at small caps and by 1 % at large ones."""
    rng = np.random.default_rng(0)
    hidden, weight, y = 2 * rng.standard_normal((7, 5)), rng.standard_normal((11, 5)), rng.integers(0, 11, 7)
    for cap, least in ((2.0, 0.3), (30.0, 5e-3)):
        _, grads = linear_cross_entropy_and_grad(hidden, weight, y, softcap=cap)
        z = cap * np.tanh(hidden @ weight.T / cap)
        g = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) - np.eye(11)[y]) / 7
        np.testing.assert_allclose(grads.hidden, (g * (1 - (z / cap) ** 2)) @ weight, rtol=1e-10, atol=1e-15)
        assert off(g @ weight, grads.hidden) > least


@pytest.mark.claim("cross_entropy-gradients")
@pytest.mark.parametrize("save", ["gradients", "logits", "nothing"])
def test_every_token_has_its_own_cotangent(save: str) -> None:
    """Liger 968: every gradient scaled by the first cotangent."""
    jax = pytest.importorskip("jax")
    call = example()
    arrays, options = split(call)
    g = np.random.default_rng(5).standard_normal(13)
    _, ours = linear_cross_entropy_and_grad(*arrays, **options, reduction="none", cotangent=g, chunk=(4, 6))
    function = partial(linear_cross_entropy, **options, reduction="none", save=save, chunk=(4, 6))
    pulled = jax.jit(lambda h, w: jax.vjp(lambda h, w: function(h, w, arrays[2]), h, w)[1](g))(*arrays[:2])
    limit = 3e-3 if save == "logits" else 1e-11
    for a, b in zip(pulled, ours[:2], strict=True):
        assert off(a, b) < limit
    _, ones = linear_cross_entropy_and_grad(*arrays, **options, reduction="none", chunk=(4, 6))
    for a, b in zip(ours[:2], ones[:2], strict=True):
        assert off(g[0] * b, a) > WRONG
        assert off(g.mean() * b, a) > WRONG


@pytest.mark.claim("cross_entropy-bound")
def test_folding_finished_sums_shows() -> None:
    """float32, 50,257 logits: carried states against log-sum-exps added one at a time; the bound holds for ours."""
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((4, 50257))).astype("float32")
    y = rng.integers(0, 50257, 4)
    one, layer = np.ones((1, 1), "float32"), z.T
    errors, folded = [], []
    for i, row in enumerate(z):
        exact = math.log(math.fsum(np.exp(row.astype(float) - row.max()))) + float(row.max()) - float(row[y[i]])
        ours = linear_cross_entropy(one, np.ascontiguousarray(layer[:, i : i + 1]), y[i : i + 1], chunk=(1, 512))
        errors.append(abs(float(ours) - exact))
        folded.append(abs(float(np.logaddexp.reduce(row) - row[y[i]]) - exact))
        size = 2.0**-24 * (exact + 8 * math.log(50257) + 512 + 99 + 9 * 20)
        assert errors[-1] < size
        assert folded[-1] > 0.3 * size
    assert max(errors) < 3e-6
    assert min(folded) > 30 * max(errors)


@pytest.mark.claim("cross_entropy-accumulation")
def test_accumulation_of_the_weight_gradient() -> None:
    """Liger 512: partial sums rounded to bfloat16 after each of 256 chunks, against sums in float32."""
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(0)
    hidden, weight = bfloat16(rng.standard_normal((512, 8))), bfloat16(rng.standard_normal((40, 8)))
    y = rng.integers(0, 40, 512)
    truth = linear_cross_entropy_and_grad(hidden.astype(float), weight.astype(float), y)[1].weight
    narrow = (jnp.asarray(a, dtype=jnp.bfloat16) for a in (hidden, weight))
    errors = {}
    h, w = narrow
    for chunk in (512, 2):
        step = importlib.import_module("jax").jit(partial(linear_cross_entropy_and_grad, chunk=chunk))
        ours = step(h, w, jnp.asarray(y))[1].weight
        assert ours.dtype == jnp.bfloat16
        errors[chunk] = off(np.asarray(ours, dtype=float), truth)
    assert max(errors.values()) < 2.0**-8  # one rounding of the result
    z = hidden.astype(float) @ weight.T.astype(float)
    g = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) - np.eye(40)[y]) / 512
    total = np.zeros((40, 8), "float32")
    for i in range(0, 512, 2):
        total = bfloat16(total + (g[i : i + 2].T @ hidden[i : i + 2]).astype("float32"))
    assert off(total, truth) > 3 * max(errors.values())


def test_counts_are_integers() -> None:
    """efficient_cross_entropy: 257 tokens counted in bfloat16 are 256, and the mean is off by 0.4 %."""
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(0)
    hidden, weight = bfloat16(rng.standard_normal((257, 2))), bfloat16(rng.standard_normal((5, 2)))
    y = rng.integers(0, 5, 257)
    truth = naive(hidden.astype(float), weight.astype(float), y)
    h, w = (jnp.asarray(a, dtype=jnp.bfloat16) for a in (hidden, weight))
    call = importlib.import_module("jax").jit(partial(linear_cross_entropy, return_accuracy=True))
    loss, extras = call(h, w, y)
    assert float(loss) == pytest.approx(truth, rel=1e-6)
    right = (hidden.astype(float) @ weight.T.astype(float)).argmax(-1) == y
    assert float(extras.accuracy) == pytest.approx(right.sum() / 257, rel=1e-7)
    assert bfloat16(np.float32(257)) == 256
    assert abs(truth * 257 / 256 - truth) > 1e-6 * truth


def test_sixteen_bit_logits_are_not_subtracted_in_sixteen_bits(library: Backend) -> None:
    """TransformerEngine 3193, mlx 4520: with hidden states that 16 bits hold exactly, nothing is lost."""
    if library.name == "strict":
        pytest.skip("no such dtype")
    rng = np.random.default_rng(0)
    hidden, weight, y = (
        bfloat16(rng.standard_normal((33, 8))),
        bfloat16(2 * rng.standard_normal((101, 8))),
        rng.integers(0, 101, 33),
    )
    dtype = "float16" if library.name == "numpy" else "bfloat16"
    if dtype == "float16":
        hidden, weight = hidden.astype(dtype).astype("float32"), weight.astype(dtype).astype("float32")
    truth = naive(hidden.astype(float), weight.astype(float), y, reduction="none")
    _, exact = linear_cross_entropy_and_grad(hidden.astype(float), weight.astype(float), y)
    h, w = library.asarray(hidden, dtype), library.asarray(weight, dtype)
    loss = linear_cross_entropy(h, w, library.asarray(y, None), reduction="none", chunk=(8, 13))
    assert library.dtype(loss) == "float32"
    assert np.abs(library.numpy(loss) - truth).max() < 3e-6
    z = bfloat16(hidden @ weight.T)
    rounded = naive(z.astype(float), np.eye(101), y, reduction="none")
    assert np.abs(rounded - truth).max() > WRONG
    _, grads = linear_cross_entropy_and_grad(h, w, library.asarray(y, None), chunk=(8, 13))
    for a, b in zip(grads[:2], exact[:2], strict=True):
        assert library.dtype(a) == dtype
        assert off(library.numpy(a), b) < HALF[dtype]


# -- ignored tokens and targets out of range --------------------------------------------------------------------------


def test_all_ignored(library: Backend) -> None:
    """Liger 177, torchtune 2341, pytorch 75181: 0 and zero gradients, by definition."""
    rng = np.random.default_rng(0)
    hidden, weight = library.asarray(rng.standard_normal((4, 3))), library.asarray(rng.standard_normal((5, 3)))
    targets = library.asarray(np.full(4, -100), None)
    for reduction in ("mean", "sum", "none"):
        (loss, extras), grads = linear_cross_entropy_and_grad(
            hidden, weight, targets, ignore_index=-100, reduction=reduction, z_loss=0.1, return_accuracy=True
        )
        assert not library.numpy(loss).any()
        assert not library.numpy(grads.hidden).any()
        assert not library.numpy(grads.weight).any()
        assert not library.numpy(extras.accuracy).any()


def test_weights_that_sum_to_zero_give_zero() -> None:
    rng = np.random.default_rng(0)
    loss, grads = linear_cross_entropy_and_grad(
        rng.standard_normal((4, 3)), rng.standard_normal((5, 3)), np.arange(4), token_weight=np.zeros(4)
    )
    assert loss == 0
    assert not grads.weight.any()


def test_no_tokens_at_all() -> None:
    loss, grads = linear_cross_entropy_and_grad(np.zeros((0, 3)), np.ones((5, 3)), np.zeros(0, int))
    assert loss == 0
    assert grads.hidden.shape == (0, 3)
    assert not grads.weight.any()
    assert linear_cross_entropy(
        np.zeros((2, 0, 3)), np.ones((5, 3)), np.zeros((2, 0), int), reduction="none"
    ).shape == (
        2,
        0,
    )


@pytest.mark.claim("cross_entropy-loss")
def test_ignored_tokens_are_as_if_dropped() -> None:
    """pytorch 73205, unsloth 5230: smoothing, z-loss and the mean count what is left, be it one token in eight."""
    call = example()
    kept = np.array([2, 9])
    call["targets"][np.setdiff1d(np.arange(13), kept)] = -7
    arrays, options = split(call)
    loss, grads = linear_cross_entropy_and_grad(*arrays, **options, chunk=(3, 5))
    fewer = options | {"token_weight": options["token_weight"][kept]}
    short, expected = linear_cross_entropy_and_grad(arrays[0][kept], arrays[1], arrays[2][kept], **fewer)
    assert loss == pytest.approx(short, rel=1e-13)
    np.testing.assert_allclose(grads.weight, expected.weight, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(grads.hidden[kept], expected.hidden, rtol=1e-12, atol=1e-15)
    assert not np.delete(grads.hidden, kept, axis=0).any()
    assert grads.weight.any()


def test_a_class_may_be_the_one_that_is_ignored() -> None:
    rng = np.random.default_rng(0)
    hidden, weight, y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3)), np.array([0, 1, 0, 4])
    assert linear_cross_entropy(hidden, weight, y, ignore_index=0) == pytest.approx(
        naive(hidden[[1, 3]], weight, y[[1, 3]]), rel=1e-13
    )


def test_a_forbidden_class_of_an_ignored_token_is_no_nan() -> None:
    bias = np.array([-np.inf, 0.0, 0.0])
    loss, grads = linear_cross_entropy_and_grad(
        np.ones((2, 2)), np.ones((3, 2)), np.array([-1, 2]), ignore_index=-1, bias=bias, chunk=(1, 1)
    )
    assert loss == pytest.approx(math.log(2))
    assert all(np.isfinite(g).all() for g in grads[:3])
    assert grads.bias[0] == 0


@pytest.mark.claim("cross_entropy-loss")
def test_losses_are_not_negative_with_a_bias() -> None:
    """ml-cross-entropy 52: a bias that enters the sum but not the target."""
    rng = np.random.default_rng(0)
    bias = 3 * rng.standard_normal(12)
    hidden, weight, y = rng.standard_normal((40, 3)), rng.standard_normal((12, 3)), rng.integers(0, 12, 40)
    each = linear_cross_entropy(hidden, weight, y, bias=bias, reduction="none", chunk=(7, 5))
    assert (each >= 0).all()
    z = hidden @ weight.T
    assert (np.log(np.exp(z + bias).sum(-1)) - z[np.arange(40), y] < each - WRONG).any()


def test_targets_out_of_range(backend: Backend) -> None:
    hidden, weight = backend.asarray(np.ones((2, 3))), backend.asarray(np.ones((5, 3)))
    for wrong in (5, -1, 10**6, -100):
        with pytest.raises(ValueError, match=r"targets must lie in \[0, 5\) or equal ignore_index=None, got"):
            linear_cross_entropy(hidden, weight, backend.asarray(np.array([0, wrong]), None))
    with pytest.raises(ValueError, match="ignore_index=-1, got -2"):
        linear_cross_entropy(hidden, weight, backend.asarray(np.array([-1, -2]), None), ignore_index=-1)


def test_traced_targets_out_of_range_are_nan_and_stay_with_their_token() -> None:
    jax = pytest.importorskip("jax")
    hidden, weight = np.ones((3, 2)), np.random.default_rng(0).standard_normal((5, 2))
    each = jax.jit(partial(linear_cross_entropy, reduction="none", ignore_index=-1))
    value = np.asarray(each(hidden, weight, np.array([1, 5, -1])))
    assert np.isnan(value[1])
    np.testing.assert_allclose(value[[0, 2]], [naive(hidden[:1], weight, np.array([1])), 0.0], rtol=1e-12)
    gradient = jax.jit(jax.grad(linear_cross_entropy))(hidden, weight, np.array([1, 2, 5]))
    assert np.isnan(np.asarray(gradient)[2]).all()


# -- indices and memory -----------------------------------------------------------------------------------------------


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_blocks_of_huge_axes(count: int, size: int) -> None:
    """Liger 803, pytorch 85786 and 111484: indices beyond 2^31, without the arrays."""
    first = ragged(count, size)
    assert 1 <= first <= size
    assert (count - first) % size == 0
    n, c = choose_blocks(None, count, size, 4, whole_rows=True)
    assert 1 <= n <= count
    assert 1 <= c <= size
    assert n == 1 or 4 * n * size <= BUDGET
    memory = linear_cross_entropy_bytes(count, 7, size)
    assert memory.logits == 4 * count * size
    assert memory.inputs == memory.gradients == 4 * 7 * (count + size)


@given(st.integers(0, 40), st.integers(1, 15))
def test_blocks_cover_the_axis_once_and_in_order(count: int, size: int) -> None:
    seen: list[tuple[int, int]] = []
    over(count, size, lambda carry, begin, length: seen.append((begin, length)), None, np.zeros(1))
    assert [i for begin, length in seen for i in range(begin, begin + length)] == list(range(count))
    assert all(length == size for _, length in seen[1:])


def test_automatic_blocks() -> None:
    assert choose_blocks(None, 2048, 50257, 4, whole_rows=True) == Blocks(512, 1024)
    assert choose_blocks(None, 2048, 50257, 8, whole_rows=True) == Blocks(320, 1024)  # 293 in seven equal blocks
    assert choose_blocks(None, 667, 50257, 4, whole_rows=True) == Blocks(640, 1024)  # 667 would fit
    assert choose_blocks(None, 640, 50257, 4, whole_rows=True) == Blocks(640, 1024)
    assert choose_blocks(None, 2048, 50257, 4, whole_rows=False) == Blocks(1024, 1024)
    assert choose_blocks(None, 2049, 50257, 4, whole_rows=False) == Blocks(704, 1024)
    assert choose_blocks(None, 2048, 50257, 4, whole_rows=True, eager=True) == Blocks(512, 4096)
    assert choose_blocks(None, 2048, 50257, 4, whole_rows=False, eager=True) == Blocks(1024, 4096)
    assert choose_blocks(7, 2048, 50257, 4, whole_rows=False, eager=True) == Blocks(7, 4096)
    assert choose_blocks((7, 9), 2048, 50257, 4, whole_rows=False, eager=True) == Blocks(7, 9)
    assert choose_blocks(None, 5, 3, 8, whole_rows=True) == Blocks(5, 3)
    assert choose_blocks(None, 2048, 10**9, 4, whole_rows=True) == Blocks(1, 1024)
    assert choose_blocks(None, 10**6, 600_000, 4, whole_rows=True) == Blocks(55, 1024)
    assert choose_blocks(None, 0, 50257, 4, whole_rows=True) == Blocks(1, 1024)
    assert choose_blocks(7, 2048, 50257, 4, whole_rows=False) == Blocks(7, 1024)
    assert choose_blocks((7, 9), 5, 50257, 4, whole_rows=True) == Blocks(5, 9)


@pytest.mark.claim("cross_entropy-memory")
def test_counted_bytes() -> None:
    memory = linear_cross_entropy_bytes(8 * 4096, 1024, 50257)
    assert memory.logits == 6_587_285_504
    assert memory.retained == 0
    halves = linear_cross_entropy_bytes(100, 10, 1000, dtype="bfloat16", save="logits", chunk=(10, 100))
    assert halves.inputs == 2 * 10 * 1100
    assert halves.retained == 2 * 100 * 1000 + 8 * 100
    assert halves.logits == 4 * 100 * 1000
    double = linear_cross_entropy_bytes(100, 10, 1000, dtype="float64", save="nothing", chunk=(10, 100))
    single = linear_cross_entropy_bytes(100, 10, 1000, save="nothing", chunk=(10, 100))
    assert all(a == 2 * b for a, b in zip(double, single, strict=True))
    wide = linear_cross_entropy_bytes(100, 10, 1000, accumulate="float64", save="nothing", chunk=(10, 100))
    assert wide.inputs == single.inputs
    assert wide.logits == double.logits
    # at fixed blocks: flat in V, 12 bytes for each further token
    flat = [linear_cross_entropy_bytes(2048, 64, v, save="nothing", chunk=(64, 512)) for v in (5_000, 500_000)]
    assert flat[0].transient == flat[1].transient
    more = [
        linear_cross_entropy_bytes(n, 64, 50257, save=s, chunk=(64, 512))
        for s in ("nothing", "gradients")
        for n in (2048, 4096)
    ]
    growth = [b.retained + b.transient - a.retained - a.transient for a, b in (more[:2], more[2:])]
    assert growth == [12 * 2048, 8 * 2048]


@pytest.mark.claim("cross_entropy-memory")
@pytest.mark.parametrize("save", ["gradients", "nothing", "logits"])
def test_bytes_are_what_xla_reports(save: str) -> None:
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct
    sizes = [
        (1031, 48, 5003, (64, 512)),
        (517, 48, 9001, (64, 512)),
        (2048, 512, 50257, None),
        (1000, 256, 20011, (100, 1000)),
    ]
    for tokens, features, vocabulary, chunk in sizes[: 1 if save == "logits" else 4]:
        function = partial(linear_cross_entropy, save=save, chunk=chunk)
        lowered = jax.jit(jax.value_and_grad(function, argnums=(0, 1))).lower(
            shape((tokens, features), "float32"), shape((vocabulary, features), "float32"), shape((tokens,), "int32")
        )
        reported = lowered.compile().memory_analysis().temp_size_in_bytes
        memory = linear_cross_entropy_bytes(tokens, features, vocabulary, save=save, chunk=chunk)
        counted = memory.retained + memory.transient
        # shapes of the last kind leave XLA room to share
        assert 0.99 * reported < counted < (1.15 if features == 256 else 1.003) * reported
        assert reported < (0.7 if save == "logits" else 0.2 if chunk else 0.3) * memory.logits
        if chunk is None:
            assert counted < 150 * 2**20


@pytest.mark.claim("cross_entropy-memory")
def test_memory_grows_by_twelve_bytes_a_token_and_not_with_classes() -> None:
    """What XLA reports for the two-sweep form at fixed blocks, beside inputs and gradients."""
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct

    def temporary(tokens: int, vocabulary: int) -> int:
        function = partial(linear_cross_entropy, save="nothing", chunk=(64, 512))
        lowered = jax.jit(jax.value_and_grad(function, argnums=(0, 1))).lower(
            shape((tokens, 16), "float32"), shape((vocabulary, 16), "float32"), shape((tokens,), "int32")
        )
        return lowered.compile().memory_analysis().temp_size_in_bytes

    small, more_tokens, more_classes = temporary(2000, 9001), temporary(20000, 9001), temporary(2000, 90001)
    # beside 12 bytes a token, where each of 282 blocks begins
    assert more_tokens - small <= 12 * 18000 + 16 * 282
    assert abs(more_classes - small) < 4096


@pytest.mark.claim("cross_entropy-accumulation")
@pytest.mark.parametrize("confident", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_errors_are_no_larger_than_those_of_all_logits(dtype: str, confident: bool) -> None:
    """Root mean square of the gradients' errors against float64, beside the plain loss in the same precision."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rng = np.random.default_rng(0)
    hidden = bfloat16(rng.standard_normal((300, 32)) * (3 if confident else 1))
    weight = bfloat16(rng.standard_normal((3001, 32)))
    logits = hidden.astype(float) @ weight.T.astype(float)
    y = logits.argmax(-1) if confident else rng.integers(0, 3001, 300)
    _, truth = linear_cross_entropy_and_grad(hidden.astype(float), weight.astype(float), y)

    def plain(h: Any, w: Any) -> Any:
        return -jax.nn.log_softmax(h @ w.T)[jnp.arange(300), y].mean()

    def ours(h: Any, w: Any) -> Any:
        return linear_cross_entropy(h, w, y, chunk=(64, 512))

    arrays = jnp.asarray(hidden, dtype=dtype), jnp.asarray(weight, dtype=dtype)
    errors = [
        [
            float(np.sqrt(np.mean((np.asarray(g.astype(jnp.float32), dtype=float) - t) ** 2)))
            for g, t in zip(jax.jit(jax.grad(function, argnums=(0, 1)))(*arrays), truth, strict=False)
        ]
        for function in (ours, plain)
    ]
    for mine, other in zip(*errors, strict=True):
        assert mine <= 1.02 * other


# -- JAX --------------------------------------------------------------------------------------------------------------


def dense(call: dict[str, Any]) -> Any:
    """The loss over all logits in JAX, of (hidden, weight, bias, logit_scale, token_weight): a mean."""
    jax = importlib.import_module("jax")
    jnp, y, classes = jax.numpy, call["targets"], call["class_weight"]
    counted = y != -7
    safe = np.where(counted, y, 0)

    def loss(hidden: Any, weight: Any, bias: Any, scale: Any, share: Any) -> Any:
        z = 3.0 * jnp.tanh(scale * (hidden @ weight.T + bias) / 3.0)
        lse = jax.nn.logsumexp(z, axis=-1)
        fall = lse[:, None] - z
        share = jnp.where(counted, share, 0.0)
        each = 0.8 * classes[safe] * fall[jnp.arange(len(y)), safe] + 0.2 / 29 * (classes * fall).sum(-1) + 0.1 * lse**2
        return (share * each).sum() / (share * classes[safe]).sum()

    return loss


def differentiable(call: dict[str, Any], **how: Any) -> tuple[Any, tuple[Any, ...]]:
    """Our loss as a function of the same five arrays, and the arrays."""
    names = ("hidden", "weight", "bias", "logit_scale", "token_weight")
    _, options = split(call, *names)

    def loss(hidden: Any, weight: Any, bias: Any, scale: Any, share: Any) -> Any:
        return linear_cross_entropy(
            hidden, weight, call["targets"], bias=bias, logit_scale=scale, token_weight=share, **options, **how
        )

    return loss, tuple(np.asarray(call[name]) for name in names)


@pytest.mark.claim("cross_entropy-gradients")
@pytest.mark.parametrize("save", ["gradients", "logits", "nothing"])
def test_gradients_in_jax(save: str) -> None:
    jax = pytest.importorskip("jax")
    call = example()
    ours, arrays = differentiable(call, save=save, chunk=(5, 7))
    value, found = jax.jit(jax.value_and_grad(ours, argnums=range(5)))(*arrays)
    truth, expected = jax.jit(jax.value_and_grad(dense(call), argnums=range(5)))(*arrays)
    assert float(value) == pytest.approx(float(truth), rel=1e-12)
    for a, b in zip(found, expected, strict=True):
        assert off(a, b) < (3e-3 if save == "logits" else 1e-11)


@pytest.mark.claim("cross_entropy-second")
@pytest.mark.parametrize(
    "how",
    [
        {"derivatives": "all"},
        pytest.param({"save": "gradients"}, marks=pytest.mark.slow),
        pytest.param({"save": "nothing"}, marks=pytest.mark.slow),
    ],
)
def test_hessian_vector_products(how: dict[str, str]) -> None:
    jax = pytest.importorskip("jax")
    call = example()
    ours, arrays = differentiable(call, **how, chunk=(8, 16))
    rng = np.random.default_rng(0)
    tangents = tuple(jax.numpy.asarray(rng.standard_normal(a.shape)) for a in arrays)

    def product(function: Any) -> Any:
        return jax.jit(lambda *a: jax.jvp(jax.grad(function, argnums=range(5)), a, tangents)[1])(*arrays)

    for a, b in zip(product(ours), product(dense(call)), strict=True):
        assert off(a, b) < 1e-10


@pytest.mark.claim("cross_entropy-second")
def test_forward_mode() -> None:
    jax = pytest.importorskip("jax")
    call = example()
    ours, arrays = differentiable(call, derivatives="all", chunk=(8, 16))
    rng = np.random.default_rng(0)
    tangents = tuple(jax.numpy.asarray(rng.standard_normal(a.shape)) for a in arrays)

    def push(f: Any) -> Any:
        return jax.jit(lambda *a: jax.jvp(f, a, tangents))(*arrays)

    for a, b in zip(push(ours), push(dense(call)), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-11)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(differentiable(call)[0], arrays, tangents)


@pytest.mark.slow
@pytest.mark.claim("cross_entropy-second")
def test_reverse_over_reverse_and_third_derivatives() -> None:
    jax = pytest.importorskip("jax")
    call = example()
    rng = np.random.default_rng(0)
    for how in ({"save": "gradients"}, {"save": "nothing"}, {"derivatives": "all"}):
        ours, arrays = differentiable(call, **how, chunk=(8, 16))
        v = rng.standard_normal(arrays[1].shape)

        def curvature(f: Any, arrays: Any = arrays, v: np.ndarray = v) -> Any:
            def inner(w: Any) -> Any:
                return (jax.grad(f, argnums=1)(arrays[0], w, *arrays[2:]) * v).sum()

            return jax.jit(jax.grad(inner))(arrays[1])

        assert off(curvature(ours), curvature(dense(call))) < 1e-10
    ours, arrays = differentiable(call, derivatives="all", chunk=(8, 16))

    def third(f: Any) -> Any:
        def along(t: Any) -> Any:
            return f(arrays[0] + t * np.ones_like(arrays[0]), *arrays[1:])

        return jax.jit(jax.jacfwd(jax.jacfwd(jax.jacfwd(along))))(0.1)

    assert float(third(ours)) == pytest.approx(float(third(dense(call))), rel=1e-9)


@pytest.mark.slow
def test_log_sum_exp_is_an_output_with_a_gradient() -> None:
    """A penalty made by hand from the log-sum-exp equals the z-loss, whatever the forward sweep left."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight, y = rng.standard_normal((7, 3)), rng.standard_normal((11, 3)), rng.integers(0, 11, 7)
    _, expected = linear_cross_entropy_and_grad(hidden, weight, y, z_loss=0.2)
    for save in ("gradients", "nothing"):

        def loss(h: Any, w: Any, save: str = save) -> Any:
            value, extras = linear_cross_entropy(h, w, y, save=save, chunk=(4, 6), return_lse=True)
            return value + 0.2 * (extras.lse**2).mean()

        for a, b in zip(jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, weight), expected[:2], strict=True):
            assert off(a, b) < 1e-11


@pytest.mark.slow
def test_transformations_of_jax() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((3, 7, 4)), rng.standard_normal((11, 4))
    y = rng.integers(0, 11, (3, 7))
    for how in ({"save": "gradients"}, {"save": "logits"}, {"save": "nothing"}, {"derivatives": "all"}):
        function = partial(linear_cross_entropy, chunk=(4, 5), **how)
        gradient = jax.value_and_grad(function, argnums=(0, 1))
        truth = [linear_cross_entropy_and_grad(h, weight, t) for h, t in zip(hidden, y, strict=True)]
        limit = 1e-2 if how.get("save") == "logits" else 1e-11
        mapped = jax.jit(jax.vmap(gradient, in_axes=(0, None, 0)))(hidden, weight, y)
        _, scanned = jax.lax.scan(lambda c, row: (c, gradient(row[0], weight, row[1])), 0, (hidden, y))
        kept = jax.jit(jax.grad(jax.checkpoint(function), argnums=(0, 1)))(hidden[0], weight, y[0])
        for values, grads in (mapped, scanned):
            np.testing.assert_allclose(values, [t[0] for t in truth], rtol=1e-11)
            for i, (_, t) in enumerate(truth):
                assert off(grads[0][i], t.hidden) < limit
                assert off(grads[1][i], t.weight) < limit
        assert off(kept[1], truth[0][1].weight) < limit
        over_weights = jax.jit(jax.vmap(gradient, in_axes=(None, 0, None)))(hidden[0], np.stack([weight] * 2), y[0])
        assert off(over_weights[1][1][1], truth[0][1].weight) < limit


def test_only_what_is_asked_for_is_computed() -> None:
    """Frozen weights cost two products instead of three, counted in the compiled program."""
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct
    shapes = shape((512, 64), "float32"), shape((4096, 64), "float32"), shape((512,), "int32")

    def flops(argnums: Any) -> float:
        function = partial(linear_cross_entropy, chunk=(512, 4096))
        found = jax.jit(jax.grad(function, argnums=argnums)).lower(*shapes).compile().cost_analysis()
        return found["flops"] / (2 * 512 * 64 * 4096)

    both, hidden = flops((0, 1)), flops(0)
    assert both == pytest.approx(3, abs=0.2)
    assert hidden == pytest.approx(2, abs=0.2)


# -- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.claim("cross_entropy-gradients")
@pytest.mark.parametrize("save", ["gradients", "logits", "nothing"])
def test_gradients_in_pytorch(save: str) -> None:
    torch = make_backend("torch").xp
    torch_ = importlib.import_module("torch")
    call = example()
    arrays, options = split(call)
    for reduction in ("mean", "none"):
        g = np.random.default_rng(3).standard_normal(13) if reduction == "none" else np.ones(())
        _, expected = linear_cross_entropy_and_grad(*arrays, **options, reduction=reduction, cotangent=g)
        names = ("hidden", "weight", "bias", "logit_scale", "token_weight")
        leaves = {n: torch.asarray(np.array(call[n], dtype=float)).requires_grad_() for n in names}
        moved = split(call | leaves)[1]
        loss, extras = linear_cross_entropy(
            leaves["hidden"],
            leaves["weight"],
            torch.asarray(arrays[2]),
            **moved,
            reduction=reduction,
            save=save,
            chunk=(5, 7),
            return_lse=True,
            return_accuracy=True,
        )
        assert not extras.accuracy.requires_grad
        loss.backward(torch.asarray(g))
        for name, b in zip(names, expected, strict=False):
            assert off(leaves[name].grad.numpy(), b) < (2e-2 if save == "logits" else 1e-11)
        share = leaves["token_weight"].grad.numpy()

        def along(t: Any, g: Any = g, reduction: str = reduction) -> Any:
            return np.sum(g * naive(*arrays, **options | {"token_weight": t, "reduction": reduction}))

        unit = np.eye(13)[2]
        assert share[2] == pytest.approx(slope(along, call["token_weight"], unit), rel=1e-10)
        assert share[1] == 0
    with torch_.no_grad():
        assert not linear_cross_entropy(leaves["hidden"], leaves["weight"], torch.asarray(arrays[2]), **moved).grad_fn


def test_second_derivatives_in_pytorch() -> None:
    torch = importlib.import_module("torch") if make_backend("torch") else None
    rng = np.random.default_rng(0)
    hidden, y = torch.asarray(rng.standard_normal((4, 3))), torch.asarray([1, 2, 0, 4])
    weight = torch.asarray(rng.standard_normal((5, 3)))

    def flat(h: Any) -> Any:
        return linear_cross_entropy(h, weight, y, derivatives="all", chunk=(3, 2))

    def dense(h: Any) -> Any:
        return torch.nn.functional.cross_entropy(h @ weight.T, y)

    ours, truth = (torch.autograd.functional.hessian(f, hidden) for f in (flat, dense))
    np.testing.assert_allclose(ours.numpy(), truth.numpy(), atol=1e-13)
    h = hidden.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear_cross_entropy(h, weight, y), h, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        gradient.sum().backward()


# -- other questions --------------------------------------------------------------------------------------------------


def jitted(backend: Backend, function: Any) -> Any:
    return importlib.import_module("jax").jit(function) if backend.name == "jax" else function


def layer(backend: Backend) -> tuple[Any, Any, dict[str, Any], np.ndarray]:
    """Hidden states, weight, options and logits of a layer with leading axes and a tie between two classes."""
    call = example(4, tokens=12)
    call["weight"][17], call["bias"][17] = call["weight"][3], call["bias"][3]
    z = naive_logits(call).reshape(3, 4, 29)
    options = {"bias": backend.asarray(call["bias"]), "softcap": 3.0, "logit_scale": 0.7}
    hidden, weight = (backend.asarray(a) for a in (call["hidden"].reshape(3, 4, 5), call["weight"]))
    return hidden, weight, options, z


@pytest.mark.claim("cross_entropy-embed")
@pytest.mark.claim("cross_entropy-entropy")
def test_average_and_entropy(library: Backend) -> None:
    hidden, weight, options, z = layer(library)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    for chunk in (None, (5, 7)):
        mean = jitted(library, partial(softmax_embed, **options, chunk=chunk))(hidden, weight)
        np.testing.assert_allclose(library.numpy(mean), p @ library.numpy(weight), rtol=1e-12, atol=1e-14)
        bits = jitted(library, partial(entropy, **options, chunk=chunk))(hidden, weight)
        np.testing.assert_allclose(library.numpy(bits), -(p * np.log(p)).sum(-1), rtol=1e-12)
    far = entropy(library.asarray([[1e8]], "float32"), library.asarray([[1.0], [1.0], [0.5]], "float32"), chunk=(1, 1))
    assert float(far[0]) == pytest.approx(math.log(2), rel=1e-6)
    forbidden = entropy(
        library.asarray(np.ones((1, 1))),
        library.asarray(np.ones((4, 1))),
        bias=library.asarray([0, 0, -np.inf, 0]),
        chunk=(1, 1),
    )
    assert float(forbidden[0]) == pytest.approx(math.log(3), rel=1e-12)


@pytest.mark.claim("cross_entropy-logits")
def test_largest_classes(library: Backend) -> None:
    hidden, weight, options, z = layer(library)
    order = np.argsort(-z, axis=-1, kind="stable")[..., :6]
    logp = np.take_along_axis(z - np.log(np.exp(z).sum(-1, keepdims=True)), order, axis=-1)
    for chunk in (None, (5, 7), (12, 4)):
        first = jitted(library, partial(argmax, **options, chunk=chunk))(hidden, weight)
        assert (library.numpy(first) == z.argmax(-1)).all()
        best = jitted(library, lambda h, w: top_k(h, w, 6, **options, chunk=chunk))(hidden, weight)
        assert (library.numpy(best.classes) == order).all()
        np.testing.assert_allclose(library.numpy(best.log_prob), logp, rtol=1e-11)
    one = top_k(hidden, weight, 1, **options, chunk=(5, 7))
    assert (library.numpy(one.classes)[..., 0] == z.argmax(-1)).all()
    everything = top_k(library.asarray(np.zeros((1, 1))), library.asarray(np.zeros((3, 1))), 3)
    assert library.numpy(everything.classes).tolist() == [[0, 1, 2]]
    tied = top_k(library.asarray(np.zeros((2, 1))), library.asarray(np.zeros((9, 1))), 4, chunk=(1, 2))
    assert library.numpy(tied.classes).tolist() == [[0, 1, 2, 3]] * 2
    forbidden = library.asarray([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    few = top_k(library.asarray(np.zeros((1, 1))), library.asarray(np.zeros((5, 1))), 3, bias=forbidden, chunk=(1, 2))
    assert library.numpy(few.classes).tolist() == [[1, 3, -1]]
    assert library.numpy(few.log_prob)[0, 2] == -np.inf


def test_accuracy(library: Backend) -> None:
    call = example(7, tokens=40)
    arrays, options = split(call)
    right = (naive_logits(call).argmax(-1) == arrays[2]) & (arrays[2] != -7)
    assert 0 < right.sum() < 37
    moved = {k: library.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    hidden, weight, y = library.asarray(arrays[0]), library.asarray(arrays[1]), library.asarray(arrays[2], None)
    for reduction, truth in (("none", right), ("sum", right.sum()), ("mean", right.sum() / 37)):
        found = linear_cross_entropy(hidden, weight, y, **moved, reduction=reduction, return_accuracy=True)[1]
        np.testing.assert_allclose(library.numpy(found.accuracy), truth, rtol=1e-15)
        assert found.lse is None


def generator(backend: Backend, seed: int) -> Any:
    if backend.name == "jax":
        return importlib.import_module("jax").random.key(seed)
    if backend.name == "torch":
        return importlib.import_module("torch").Generator().manual_seed(seed)
    return np.random.default_rng(seed)


@pytest.mark.claim("cross_entropy-draw")
@pytest.mark.parametrize("chunk", [None, 1, 3, 8])
def test_draws_have_the_law_of_the_softmax(chunk: int | None, library: Backend) -> None:
    if library.name == "strict":
        pytest.skip("no generator")
    weight = np.random.default_rng(0).standard_normal((11, 1))
    weight[4] = -np.inf
    p = np.exp(weight[:, 0]) / np.exp(weight).sum()
    n = 20_000
    hidden = library.asarray(np.ones((n, 1)))
    draws = sample(hidden, library.asarray(weight), rng=generator(library, 1), chunk=chunk)
    counts = np.bincount(library.numpy(draws), minlength=11)
    assert counts[4] == 0
    alive = p > 0
    chi_squared = ((counts - n * p)[alive] ** 2 / (n * p[alive])).sum()
    assert chi_squared < 29.6  # nine degrees of freedom, one in two thousand
    shifted = np.roll(p, 1)
    assert ((counts - n * shifted)[shifted > 0] ** 2 / (n * shifted[shifted > 0])).sum() > 100


@pytest.mark.claim("cross_entropy-draw")
def test_draws_of_tiny_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities of 2^-40 beside one near 1: a decision by the smaller mass still sees them, in float32."""
    weight = np.array([[0.0], [-40.0], [-40.0], [-np.inf]], "float32") * np.float32(math.log(2))
    hidden = np.ones((5, 1), "float32")
    u = np.array([0.0, 2.0**-41.5, 2.0**-40.5, 2.0**-38.5, 1.0], "float32")
    monkeypatch.setattr(_backend, "fine_uniform", lambda rng, row, like: u)
    assert sample(hidden, weight, rng=None, chunk=4).tolist() == [2, 2, 2, 0, 0]
    assert sample(hidden, weight[[0, 1, 3, 3]], rng=None, chunk=4).tolist() == [1, 1, 1, 0, 0]
    assert sample(hidden, weight[[0, 1, 3, 3]], rng=None, chunk=1).tolist() == [1, 1, 1, 0, 0]
    assert sample(hidden, weight[[1, 0, 3, 3]], rng=None, chunk=1).tolist() == [0, 0, 0, 1, 1]
    assert sample(hidden, weight[[3, 3, 1, 0]], rng=None, chunk=3).tolist() == [2, 2, 2, 3, 3]
    assert np.float32(1) + np.float32(2.0**-40) == 1  # what an inverse of the cumulative sum would see
    assert _vocabulary._second(u * 0 + 1, u * 0, None, 0).tolist() == [False] * 5


def test_fine_uniform_has_digits_near_zero() -> None:
    draws = _backend.fine_uniform(np.random.default_rng(0), 0, np.zeros(200_000, "float32"))
    assert draws.dtype == np.float32
    coarse = draws * 2.0**24
    assert (coarse[draws < 1e-3] % 1 != 0).mean() > 0.9
    assert abs(draws.mean() - 0.5) < 0.003
    assert draws.max() <= 1.0


@pytest.mark.slow
def test_draws_with_a_source_for_each() -> None:
    jax = pytest.importorskip("jax")
    keys = jax.random.split(jax.random.key(0), 6)
    hidden, weight = np.random.default_rng(0).standard_normal((6, 2)), np.random.default_rng(1).standard_normal((9, 2))
    whole = sample(jax.numpy.asarray(hidden), weight, rng=keys, chunk=4)
    part = sample(jax.numpy.asarray(hidden[:3]), weight, rng=keys[:3], chunk=4)
    assert (np.asarray(whole)[:3] == np.asarray(part)).all()


@pytest.mark.claim("cross_entropy-embed")
def test_derivatives_of_average_and_entropy() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight, g = rng.standard_normal((6, 3)), rng.standard_normal((11, 3)), rng.standard_normal((6, 3))

    def ours(h: Any, w: Any) -> Any:
        return (g * softmax_embed(h, w, chunk=(4, 5))).sum() + entropy(h, w, chunk=(4, 5)).sum()

    def dense(h: Any, w: Any) -> Any:
        p = jax.nn.softmax(h @ w.T)
        return (g * (p @ w)).sum() - (p * jax.nn.log_softmax(h @ w.T)).sum()

    for a, b in zip(*(jax.jit(jax.grad(f, argnums=(0, 1)))(hidden, weight) for f in (ours, dense)), strict=True):
        assert off(a, b) < 1e-12


# -- bad input --------------------------------------------------------------------------------------------------------


@given(
    st.one_of(
        st.integers(max_value=0),
        st.floats(),
        st.text(max_size=2),
        st.booleans(),
        st.just(()),
        st.just((1,)),
        st.just((1, 2, 3)),
        st.tuples(st.integers(max_value=0), st.just(3)),
        st.just((3, None)),
    )
)
def test_chunk_of_no_use(chunk: Any) -> None:
    with pytest.raises(ValueError, match="chunk must be an integer >= 1, a pair"):
        linear_cross_entropy(np.ones((2, 3)), np.ones((4, 3)), np.zeros(2, int), chunk=chunk)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden": np.ones((2, 4))}, ValueError, "hidden and weight must have shapes"),
        ({"hidden": np.ones(())}, ValueError, "hidden and weight must have shapes"),
        ({"weight": np.ones((0, 3))}, ValueError, "hidden and weight must have shapes"),
        ({"weight": np.ones(3)}, ValueError, "hidden and weight must have shapes"),
        ({"hidden": np.ones((2, 3), bool)}, TypeError, "hidden must be real"),
        ({"weight": np.ones((4, 3), complex)}, TypeError, "weight must be real"),
        ({"targets": np.zeros(3, int)}, ValueError, "targets must have the shape of hidden without its last axis"),
        ({"targets": np.zeros(2)}, TypeError, "targets must be integers"),
        ({"targets": [0, 4]}, ValueError, r"targets must lie in \[0, 4\)"),
        ({"bias": np.ones(3)}, ValueError, r"bias must have shape \(4,\)"),
        ({"class_weight": np.ones(2)}, ValueError, r"class_weight must have shape \(4,\)"),
        ({"token_weight": np.ones(4)}, ValueError, r"token_weight must have shape \(2,\)"),
        ({"logit_scale": np.ones(1)}, ValueError, r"logit_scale must have shape \(\)"),
        ({"softcap": 0.0}, ValueError, "softcap must be a finite number > 0"),
        ({"softcap": np.inf}, ValueError, "softcap must be a finite number > 0"),
        ({"z_loss": -1e-9}, ValueError, "z_loss must be a finite number >= 0"),
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing must be"),
        ({"label_smoothing": 1.1}, ValueError, r"label_smoothing must be a finite number in \[0, 1\]"),
        ({"ignore_index": 1.0}, ValueError, "ignore_index must be an integer or None"),
        ({"ignore_index": True}, ValueError, "ignore_index must be an integer or None"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of"),
        ({"save": "all"}, ValueError, "save must be one of"),
        ({"derivatives": "forward"}, ValueError, "derivatives must be one of"),
        ({"accumulate": "bfloat16"}, ValueError, "accumulate must be one of"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    call = {"hidden": np.ones((2, 3)), "weight": np.ones((4, 3)), "targets": np.zeros(2, int)} | change
    arrays, options = split(call)
    with pytest.raises(error, match=message):
        linear_cross_entropy(*arrays, **options)


def test_bad_arguments_of_the_others() -> None:
    hidden, weight, y = np.ones((2, 3)), np.ones((4, 3)), np.zeros(2, int)
    for cotangent, reduction in ((np.ones(2), "mean"), (np.ones(3), "none"), (1.0, "none")):
        with pytest.raises(ValueError, match="cotangent must have the shape of the loss"):
            linear_cross_entropy_and_grad(hidden, weight, y, cotangent=cotangent, reduction=reduction)
    with pytest.raises(ValueError, match="save must be one of"):
        linear_cross_entropy_and_grad(hidden, weight, y, save="logits")
    for k in (0, 5, 1.0, True, "2"):
        with pytest.raises(ValueError, match="k must be an integer from 1 to 4, got"):
            top_k(hidden, weight, k)
    for change in ({"dtype": "int8"}, {"save": "x"}, {"accumulate": "float16"}):
        with pytest.raises(ValueError, match="must be one of"):
            linear_cross_entropy_bytes(1, 1, 1, **change)
    for sizes in ((0, 1, 1), (1, 1.0, 1), (1, 1, True)):
        with pytest.raises(ValueError, match="must be an integer >= 1, got"):
            linear_cross_entropy_bytes(*sizes)
    with pytest.raises(TypeError, match="rng must be"):
        sample(hidden, weight, rng=3)


def test_sums_may_be_wider_or_narrower_than_the_inputs() -> None:
    call = example()
    arrays, options = split(call)
    singles = [a.astype("float32") for a in arrays[:2]]
    wide = linear_cross_entropy(*singles, arrays[2], **options, accumulate="float64")
    assert wide.dtype == np.float64
    assert wide == pytest.approx(naive(*(a.astype(float) for a in singles), arrays[2], **options), rel=1e-12)
    narrow, grads = linear_cross_entropy_and_grad(*arrays, **options, accumulate="float32")
    assert narrow.dtype == np.float32
    assert grads.hidden.dtype == np.float64
    assert float(narrow) == pytest.approx(float(wide), rel=1e-5)


@pytest.mark.slow
def test_logits_that_could_not_be_held() -> None:
    """N = 32,768, d = 1,024, V = 50,257: 6.6 GB of logits, in a process that stays below 3 GiB; some minutes."""
    import subprocess
    import sys

    code = """
import resource
import numpy as np
from diffnum.cross_entropy import linear_cross_entropy_and_grad
rng = np.random.default_rng(0)
hidden = rng.standard_normal((32768, 1024), dtype=np.float32)
weight = rng.standard_normal((50257, 1024), dtype=np.float32)
weight /= 32
loss, grads = linear_cross_entropy_and_grad(hidden, weight, rng.integers(0, 50257, 32768))
print(float(loss), float(np.abs(grads.weight.sum(axis=0)).max()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loss, balance, kib = map(float, done.stdout.split())
    assert loss == pytest.approx(math.log(50257) + 0.5, abs=0.02)  # Gaussian logits of variance 1
    assert balance < 1e-4  # gradients of the logits sum to 0, so those of the weights do
    assert kib < 3 * 2**20


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_an_ignored_class_that_the_targets_cannot_hold(name):
    backend = make_backend(name)
    arrays = backend.asarray(np.eye(2)), backend.asarray([[1.0, 2.0], [3.0, 5.0]]), backend.xp.asarray([1, 0])
    expected = float(linear_cross_entropy(*arrays))
    for outside in (2**40, 2**70, -(2**70)):
        assert float(linear_cross_entropy(*arrays, ignore_index=outside)) == expected


def test_unsigned_targets_are_compared_before_they_wrap():
    """In 32 bits 2^32 - 100 is -100: under jit, where targets are not known, such a target is NaN and not ignored."""
    jax = pytest.importorskip("jax")
    hidden, weight = jax.numpy.eye(2), jax.numpy.ones((3, 2))

    def loss(targets):
        return linear_cross_entropy(hidden, weight, targets, ignore_index=-100, reduction="none")

    found = np.asarray(jax.jit(loss)(jax.numpy.asarray([0, 2**32 - 100], dtype=jax.numpy.uint32)))
    np.testing.assert_allclose(found[0], np.log(3.0), rtol=1e-6)
    assert np.isnan(found[1])


def test_options_of_the_wrong_kind_are_named():
    arrays = np.eye(2), np.ones((3, 2)), np.array([1, 0])
    with pytest.raises(ValueError, match=r"ignore_index must be an integer or None, got array\(\[1, 2\]\)"):
        linear_cross_entropy(*arrays, ignore_index=np.array([1, 2]))
    with pytest.raises(ValueError, match=r"chunk must be an integer >= 1 or None, got \(2, 3\)"):
        sample(arrays[0], arrays[1], rng=np.random.default_rng(0), chunk=(2, 3))


def test_sums_in_a_dtype_that_jax_has_off():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    arrays = jnp.eye(2, dtype=jnp.float32), jnp.ones((3, 2), dtype=jnp.float32), jnp.asarray([1, 0])
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="accumulate must be a dtype that the library has enabled, got 'float64'"):
            linear_cross_entropy(*arrays, accumulate="float64")
    finally:
        jax.config.update("jax_enable_x64", True)


# -- states and logits that are no numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("filling", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("save", ["gradients", "nothing"])
def test_padding_of_any_kind_is_ignored(filling: float, save: str, library: Backend) -> None:
    """Hidden states of ignored tokens may be memory that nobody wrote: they reach neither loss nor gradients."""
    call = example()
    arrays, options = split(call)
    expected, grads = linear_cross_entropy_and_grad(*arrays, **options)
    call["hidden"][call["targets"] == -7] = filling
    moved = {k: library.asarray(v) if isinstance(v, np.ndarray) else v for k, v in split(call)[1].items()}
    hidden, weight = library.asarray(call["hidden"]), library.asarray(call["weight"])
    function = jitted(
        library, partial(linear_cross_entropy_and_grad, **moved, chunk=(5, 7), save=save, return_lse=True)
    )
    (loss, extras), found = function(hidden, weight, library.asarray(arrays[2], None))
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert (library.numpy(extras.lse)[call["targets"] == -7] == 0).all()
    for a, b in zip(found, grads, strict=True):
        assert off(library.numpy(a), b) < 1e-12


def test_padding_is_ignored_by_derivatives() -> None:
    """Forward and reverse mode of JAX, and PyTorch: 0 times NaN is NaN, so the argument is masked."""
    jax = pytest.importorskip("jax")
    call = example()
    _, truth = linear_cross_entropy_and_grad(*split(call)[0], **split(call)[1])
    call["hidden"][call["targets"] == -7] = np.nan
    for how in ({"derivatives": "all"}, {"save": "gradients"}, {"save": "nothing"}):
        ours, arrays = differentiable(call, **how, chunk=(8, 16))
        found = jax.jit(jax.grad(ours, argnums=range(5)))(*arrays)
        for a, b in zip(found, truth, strict=False):
            assert off(a, b) < 1e-11
        assert np.isfinite(np.asarray(found[4])).all()


def test_padding_is_ignored_in_pytorch() -> None:
    torch = make_backend("torch").xp
    call = example()
    _, truth = linear_cross_entropy_and_grad(*split(call)[0], **split(call)[1])
    call["hidden"][call["targets"] == -7] = np.nan
    names = ("hidden", "weight", "bias", "logit_scale")
    for how in ({"derivatives": "all"}, {"save": "gradients"}, {"save": "nothing"}):
        leaves = {n: torch.asarray(np.array(call[n], dtype=float)).requires_grad_() for n in names}
        arrays, options = split(call | leaves)
        linear_cross_entropy(*arrays[:2], torch.asarray(arrays[2]), **options, **how, chunk=(8, 16)).backward()
        for name, b in zip(names, truth, strict=True):
            assert off(leaves[name].grad.numpy(), b) < 1e-11


def test_a_counted_token_that_is_no_number_shows() -> None:
    call = example()
    call["hidden"][2, 3] = np.nan
    arrays, options = split(call)
    each = linear_cross_entropy(*arrays, **options, reduction="none", chunk=(5, 7))
    assert np.flatnonzero(np.isnan(each)).tolist() == [2]
    loss, grads = linear_cross_entropy_and_grad(*arrays, **options, chunk=(5, 7))
    assert np.isnan(loss)
    assert np.isnan(grads.hidden[2]).all()
    assert np.isfinite(np.delete(grads.hidden, 2, axis=0)).all()


def test_other_questions_to_logits_that_are_no_numbers(library: Backend) -> None:
    """NaN where there is no answer, -1 where there is no class; the other row does not notice."""
    hidden = library.asarray([[1.0, 0.0], [np.nan, 1.0]])
    weight = library.asarray([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    for chunk in ((1, 2), (2, 3), None):
        assert library.numpy(argmax(hidden, weight, chunk=chunk)).tolist() == [1, -1]
        best = top_k(hidden, weight, 2, chunk=chunk)
        assert library.numpy(best.classes).tolist() == [[1, 2], [-1, -1]]
        assert np.isnan(library.numpy(best.log_prob)).tolist() == [[False] * 2, [True] * 2]
        assert np.isnan(library.numpy(entropy(hidden, weight, chunk=chunk))).tolist() == [False, True]
        assert np.isnan(library.numpy(softmax_embed(hidden, weight, chunk=chunk))).any(-1).tolist() == [False, True]
    if library.name != "strict":
        drawn = library.numpy(sample(hidden, weight, rng=generator(library, 0), chunk=3))
        assert drawn[0] in range(4)
        assert drawn[1] == -1


def test_no_class_that_is_possible(library: Backend) -> None:
    """Rows whose logits are all -inf have no softmax: NaN, and no class."""
    hidden, weight = library.asarray([[1.0], [-np.inf]]), library.asarray([[1.0], [3.0], [2.0]])
    bias, targets = library.asarray([0.0, 1.0, -np.inf]), library.asarray(np.array([1, 1]), None)
    for chunk in ((1, 2), None):
        loss = linear_cross_entropy(hidden, weight, targets, bias=bias, reduction="none", chunk=chunk)
        assert np.isnan(library.numpy(loss)).tolist() == [False, True]
        assert library.numpy(argmax(hidden, weight, bias=bias, chunk=chunk)).tolist() == [1, -1]
        best = top_k(hidden, weight, 2, bias=bias, chunk=chunk)
        assert library.numpy(best.classes).tolist() == [[1, 0], [-1, -1]]
        assert np.isnan(library.numpy(best.log_prob)).tolist() == [[False] * 2, [True] * 2]
        assert np.isnan(library.numpy(entropy(hidden, weight, bias=bias, chunk=chunk))).tolist() == [False, True]
        if library.name != "strict":
            drawn = library.numpy(sample(hidden, weight, bias=bias, rng=generator(library, 0), chunk=2))
            assert drawn[0] in (0, 1)
            assert drawn[1] == -1
    _, grads = linear_cross_entropy_and_grad(hidden, weight, targets, bias=bias, reduction="none", chunk=(1, 2))
    assert np.isnan(library.numpy(grads.hidden)).tolist() == [[False], [True]]


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_scale_that_is_no_number(wrong: float, library: Backend) -> None:
    arrays = library.asarray(np.eye(2)), library.asarray(np.ones((3, 2))), library.asarray(np.array([1, 0]), None)
    for scale in (wrong, library.asarray(wrong)):
        with pytest.raises(ValueError, match=r"logit_scale must be a finite number, got (inf|-inf|nan)"):
            linear_cross_entropy(*arrays, logit_scale=scale)
    with pytest.raises(ValueError, match="bias must be above -inf for some class"):
        linear_cross_entropy(*arrays, bias=library.asarray(np.full(3, -np.inf)))


def test_an_ignored_class_that_is_traced_beside_numpy_targets() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight, y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3)), np.array([0, -3, 2, -3])
    loss = jax.jit(lambda i: linear_cross_entropy(hidden, weight, y, ignore_index=i, chunk=(3, 2)))
    assert float(loss(-3)) == pytest.approx(naive(hidden, weight, y, ignore_index=-3), rel=1e-12)
    assert np.isnan(float(loss(0)))
    with pytest.raises(ValueError, match="targets must lie in"):
        linear_cross_entropy(hidden, weight, y, ignore_index=jax.numpy.asarray(0))


@pytest.mark.claim("cross_entropy-second")
def test_tangents_that_are_constants_of_numpy() -> None:
    """Tangents closed over in `jit` reach the loop as arrays of NumPy."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight, y = rng.standard_normal((7, 3)), rng.standard_normal((11, 3)), rng.integers(0, 11, 7)
    tangents = rng.standard_normal((7, 3)), rng.standard_normal((11, 3))

    def push(function: Any) -> Any:
        return jax.jit(lambda *a: jax.jvp(function, a, tangents))(hidden, weight)

    def plain(h: Any, w: Any) -> Any:
        return -jax.nn.log_softmax(h @ w.T)[jax.numpy.arange(7), y].mean()

    for a, b in zip(
        push(lambda h, w: linear_cross_entropy(h, w, y, derivatives="all", chunk=(4, 5))), push(plain), strict=True
    ):
        assert float(a) == pytest.approx(float(b), rel=1e-11)
    product = jax.jit(
        lambda *a: jax.jvp(
            jax.grad(lambda h, w: linear_cross_entropy(h, w, y, derivatives="all", chunk=(4, 5)), argnums=(0, 1)),
            a,
            tangents,
        )[1]
    )(hidden, weight)
    truth = jax.jit(lambda *a: jax.jvp(jax.grad(plain, argnums=(0, 1)), a, tangents)[1])(hidden, weight)
    for a, b in zip(product, truth, strict=True):
        assert off(a, b) < 1e-10


def test_sums_over_rows_are_made_of_groups(backend: Backend) -> None:
    """4,107 rows of 0.1 in float32: one after the other they drift by 647 roundings, in groups by 16."""
    rows = np.full((4107, 3), 0.1, "float32")
    found = backend.numpy(_backend.sum_of_rows(backend.asarray(rows, "float32")))
    exact = 4107 * float(np.float32(0.1))
    assert found.shape == (3,)
    assert np.abs(found - exact).max() < (700 if backend.name == "strict" else 40) * 2.0**-24 * exact
    assert abs(float(np.cumsum(rows[:, 0])[-1]) - exact) > 600 * 2.0**-24 * exact
    few = np.arange(93.0).reshape(31, 3)
    np.testing.assert_allclose(backend.numpy(_backend.sum_of_rows(backend.asarray(few))), few.sum(0))


def test_values_are_subtracted_at_their_places(backend: Backend) -> None:
    """One row for each column; rows outside of the block, on either side, touch nothing."""
    places, values = np.array([0, 4, -1, 5, 2]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = _backend.subtract_at(
        backend.asarray(np.zeros((5, 5))), backend.asarray(places, None), backend.asarray(values)
    )
    expected = np.zeros((5, 5))
    expected[0, 0], expected[4, 1], expected[2, 4] = -1.0, -2.0, -5.0
    np.testing.assert_array_equal(backend.numpy(found), expected)


def test_what_is_overwritten_is_no_input() -> None:
    """Blocks are overwritten in place; hidden states, weights and biases are not, with one block and with many."""
    for name in ("numpy", "torch"):
        library = make_backend(name)
        call = example()
        arrays, options = split(call)
        given = [library.asarray(np.array(a, dtype=float)) for a in (*arrays[:2], call["bias"], call["class_weight"])]
        before = [np.array(library.numpy(a)) for a in given]
        options |= {"bias": given[2], "class_weight": given[3], "token_weight": library.asarray(call["token_weight"])}
        for chunk in (None, (5, 7), 1):
            for save in ("gradients", "nothing"):
                linear_cross_entropy_and_grad(
                    *given[:2], library.asarray(arrays[2], None), **options, chunk=chunk, save=save
                )
            argmax(*given[:2], bias=given[2], chunk=chunk)
            entropy(*given[:2], bias=given[2], chunk=chunk)
        for a, b in zip(given, before, strict=True):
            assert (library.numpy(a) == b).all()
