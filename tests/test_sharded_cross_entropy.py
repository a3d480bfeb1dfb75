"""Sharded linear cross-entropy on eight devices that are forced out of one CPU, and across two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diffnum.cross_entropy import sharded_linear_cross_entropy

ROOT = Path(__file__).resolve().parent.parent
CLOSE = 1e-11
"""float64, sums in another order."""
WRONG = 1e-3
"""What a mistake moves at least, relative to the largest entry."""

COMMON = """
import json, sys
import numpy as np
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from diffnum.cross_entropy import linear_cross_entropy, sharded_linear_cross_entropy

rng = np.random.default_rng(0)
N, d, rows = 16, 3, 32
hidden = rng.standard_normal((N, d))
token_weight = rng.uniform(0.5, 2, N)

def layer(sizes, shards):
    # classes in their own numbering, and padded to equal shards with numbers that would be seen
    per = rows // shards
    V = sum(sizes)
    weight, bias, classes = rng.standard_normal((V, d)), rng.standard_normal(V), rng.uniform(0.5, 2, V)
    parts = ([], [], [])
    first = 0
    for size in sizes:
        for part, a in zip(parts, (weight, bias, classes)):
            part.append(a[first : first + size])
            part.append(np.full((per - size, *a.shape[1:]), 3.0))
        first += size
    return V, (weight, bias, classes), tuple(np.concatenate(p) for p in parts)

def back(padded, sizes, shards):
    per = rows // shards
    return np.concatenate([np.asarray(padded)[s * per : s * per + size] for s, size in enumerate(sizes)])

def off(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(np.abs(np.asarray(b)).max(), 1e-300))
"""

EIGHT = (
    COMMON
    + """
devices = np.array(jax.devices())
assert devices.size == 8
meshes = {
    "classes": (Mesh(devices, ("v",)), None, "v", (4, 1, 3, 4, 2, 4, 4, 1)),
    "tokens": (Mesh(devices, ("t",)), "t", None, (29,)),
    "both": (Mesh(devices.reshape(2, 4), ("t", "v")), "t", "v", (8, 5, 7, 1)),
}
report = {}
for name, (mesh, by_token, by_class, sizes) in meshes.items():
    V, own, padded = layer(sizes, len(sizes))
    targets = rng.integers(0, V, N)
    targets[[2, 11]] = -1
    targets[5], targets[6] = V - 1, 0
    fixed = dict(softcap=2.5, z_loss=0.1, label_smoothing=0.3, ignore_index=-1, chunk=(3, 2))
    where = dict(mesh=mesh, token_axis=by_token, class_axis=by_class, class_sizes=sizes)

    def plain(h, w, b, a, t, c):
        return linear_cross_entropy(h, w, targets, bias=b, logit_scale=a, token_weight=t, class_weight=c, **fixed)

    def ours(h, w, b, a, t, c):
        return sharded_linear_cross_entropy(
            h, w, targets, bias=b, logit_scale=a, token_weight=t, class_weight=c, **fixed, **where
        )

    place = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    arrays = (
        place(hidden, by_token), place(padded[0], by_class), place(padded[1], by_class), jnp.asarray(0.8),
        place(token_weight, by_token),
    )
    value, grads = jax.jit(jax.value_and_grad(ours, argnums=range(5)))(*arrays, padded[2])
    truth, expected = jax.jit(jax.value_and_grad(plain, argnums=range(5)))(
        hidden, own[0], own[1], 0.8, token_weight, own[2]
    )
    found = [off(value, truth), off(grads[0], expected[0])]
    found += [off(back(grads[i], sizes, len(sizes)), expected[i]) for i in (1, 2)]
    found += [off(grads[3], expected[3]), off(grads[4], expected[4])]
    dead = np.asarray(grads[1]).copy()
    per = rows // len(sizes)
    for s, size in enumerate(sizes):
        dead[s * per : s * per + size] = 0
    report[name] = {"errors": found, "padding": float(np.abs(dead).max())}

    # no options, every output, every token for itself
    some = np.abs(targets)
    some[:4] = (hidden[:4] @ own[0].T).argmax(-1)
    simple = dict(reduction="none", return_lse=True, return_accuracy=True)
    a, more = jax.jit(lambda h, w: sharded_linear_cross_entropy(h, w, some, **simple, **where))(*arrays[:2])
    b, extras = linear_cross_entropy(hidden, own[0], some, **simple)
    report[name]["each"] = off(a, b)
    report[name]["lse"] = off(more.lse, extras.lse)
    report[name]["accuracy"] = bool((np.asarray(more.accuracy) == extras.accuracy).all() and extras.accuracy.any())

    # mistakes: smoothing with the local V, padding that counts, a partial sum taken for the whole
    wrong = linear_cross_entropy(hidden, padded[0], some, reduction="none")
    report[name]["padding counted"] = off(wrong, b)
    wrong = linear_cross_entropy(hidden, own[0], np.abs(targets), label_smoothing=0.3 * len(sizes) / 8)
    right = linear_cross_entropy(hidden, own[0], np.abs(targets), label_smoothing=0.3)
    report[name]["local vocabulary"] = off(wrong, right)

    if by_class:
        from diffnum import _backend
        real = _backend.over_devices
        for kind in ("sum", "max"):
            _backend.over_devices = lambda k, x, axis, kind=kind: x if k == kind else real(k, x, axis)
            jax.clear_caches()
            mistaken = jax.jit(jax.grad(lambda h, w: ours(h, w, padded[1], 0.8, token_weight, padded[2])))(*arrays[:2])
            report[name]["without " + kind] = off(mistaken, expected[0])
        _backend.over_devices = real
        jax.clear_caches()

    bad = np.abs(targets).copy()
    bad[3] = V
    traced = jax.jit(lambda y: sharded_linear_cross_entropy(arrays[0], arrays[1], y, reduction="none", **where))(bad)
    report[name]["nan"] = np.flatnonzero(np.isnan(np.asarray(traced))).tolist()
    try:
        sharded_linear_cross_entropy(arrays[0], arrays[1], bad, **where)
    except ValueError as error:
        report[name]["raised"] = str(error)
print("REPORT" + json.dumps(report))
"""
)

HOSTILE = (
    COMMON
    + """
devices = np.array(jax.devices())
mesh = Mesh(devices.reshape(2, 4), ("t", "v"))
report = {}

def both(name, h, w, y, sizes, mesh=mesh, by_token="t", by_class="v", dtype=None, **options):
    # value and gradients of the sharded loss, and of the same without shards
    shards = len(sizes)
    per = w.shape[0] // shards
    real = np.concatenate([w[s * per : s * per + size] for s, size in enumerate(sizes)])
    h, w, real = (jnp.asarray(a, dtype=dtype) for a in (h, w, real))
    where = dict(mesh=mesh, token_axis=by_token, class_axis=by_class, class_sizes=sizes, chunk=(3, 2))
    f = lambda h, w: sharded_linear_cross_entropy(h, w, y, **where, **options)
    g = lambda h, w: linear_cross_entropy(h, w, y, **options)
    value, grads = jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(h, w)
    truth, expected = jax.jit(jax.value_and_grad(g, argnums=(0, 1)))(h, real)
    wide = lambda a: np.asarray(a.astype(jnp.float64))
    found = np.concatenate([wide(grads[1])[s * per : s * per + size] for s, size in enumerate(sizes)])
    kept = grads[0].dtype == h.dtype and grads[1].dtype == w.dtype and grads[0].shape == h.shape
    report[name] = [
        float(np.nan_to_num(value)) - float(truth) if np.isfinite(value) else 1e9,
        off(wide(grads[0]), wide(expected[0])) if np.any(wide(expected[0])) else float(np.abs(wide(grads[0])).max()),
        off(found, wide(expected[1])) if np.any(wide(expected[1])) else float(np.abs(found).max()),
        0.0 if kept else 1e9,
    ]
    return float(value)

h, w = rng.standard_normal((8, 3)), rng.standard_normal((32, 3))
plain = (8, 8, 8, 8)
lonely = np.where(np.arange(32)[:, None] % 8 < 1, w, np.nan)
both("devices without classes", h, lonely, rng.integers(0, 2, 8), (1, 0, 1, 0))
one = both("one class", h, w, np.zeros(8, int), (0, 0, 1, 0))
assert one == 0, one
both("fewer tokens than a block", h[:2], w, np.array([0, 31]), plain)
both("leading axes", rng.standard_normal((2, 2, 4, 3)), w, rng.integers(0, 32, (2, 2, 4)), plain)
zero = both("all ignored", h, w, np.full(8, -1), plain, ignore_index=-1, z_loss=0.1, label_smoothing=0.2)
assert zero == 0, zero
y = rng.integers(0, 20, 8)
y[3:6] = -1
nan = h.copy()
nan[3:6] = np.nan
both("padding of NaN", nan, w, y, (8, 5, 7, 1), ignore_index=-1, label_smoothing=0.1)
both("weights of zero", h, w, rng.integers(0, 21, 8), (8, 5, 7, 1), token_weight=np.zeros(8))
both("some weights of zero", h, w, rng.integers(0, 21, 8), (8, 5, 7, 1), token_weight=np.arange(8) % 2.0)
both("bfloat16", h, w, rng.integers(0, 21, 8), (8, 5, 7, 1), dtype=jnp.bfloat16, label_smoothing=0.1, softcap=3.0)
both("float32", h, w, rng.integers(0, 21, 8), (8, 5, 7, 1), dtype=jnp.float32)
both("one device", h, w, rng.integers(0, 21, 8), (21,), mesh=Mesh(devices[:1].reshape(1, 1), ("t", "v")))
both("no axis named", h, w, rng.integers(0, 21, 8), (21,), by_token=None, by_class=None)
both("far logits", 1e4 + np.zeros((8, 3)), 1e3 + np.round(w), rng.integers(0, 21, 8), (8, 5, 7, 1))
empty = sharded_linear_cross_entropy(
    jnp.zeros((0, 3)), w, np.zeros(0, int), mesh=mesh, token_axis="t", class_axis="v", class_sizes=plain
)
report["no tokens"] = [float(empty)]
print("REPORT" + json.dumps(report))
"""
)

TWO = (
    COMMON
    + """
number, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
from jax.experimental.multihost_utils import process_allgather

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("t", "v"))
sizes = (8, 5, 7, 1)
V, own, padded = layer(sizes, 4)
targets = rng.integers(0, V, N)

def globally(a, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])

def ours(h, w, y):
    return sharded_linear_cross_entropy(
        h, w, y, mesh=mesh, token_axis="t", class_axis="v", class_sizes=sizes, label_smoothing=0.2, chunk=(3, 2)
    )

value, grads = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(
    globally(hidden, "t"), globally(padded[0], "v"), globally(targets, "t")
)
truth, expected = jax.value_and_grad(
    lambda h, w: linear_cross_entropy(h, w, targets, label_smoothing=0.2), argnums=(0, 1)
)(hidden, own[0])
h, w = (process_allgather(g, tiled=True) for g in grads)
# outside jit, where no process sees all targets
eager = ours(globally(hidden, "t"), globally(padded[0], "v"), globally(targets, "t"))
errors = off(value, truth), off(eager, truth), off(h, expected[0]), off(back(w, sizes, 4), expected[1])
print("REPORT" + json.dumps(errors), flush=True)
"""
)


def environment(devices: int) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def report(output: str) -> object:
    """What the script printed after its mark; gloo prints lines of its own."""
    return json.loads(next(line for line in output.splitlines() if line.startswith("REPORT"))[6:])


@pytest.mark.slow
@pytest.mark.claim("cross_entropy-shards")
def test_eight_devices() -> None:
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-c", EIGHT], capture_output=True, text=True, env=environment(8), check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found in report(done.stdout).items():
        assert max(found["errors"]) < CLOSE, (name, found["errors"])
        assert found["padding"] == 0, name
        assert max(found["each"], found["lse"]) < CLOSE, name
        assert found["accuracy"], name
        assert found["padding counted"] > WRONG
        assert found["nan"] == [3]
        assert "targets must lie in" in found["raised"]
        if name != "tokens":
            assert found["without sum"] > WRONG
            assert found["without max"] > WRONG
        if name == "both":
            assert found["local vocabulary"] > WRONG


ROUNDED = {"bfloat16": 2e-2, "float32": 2e-6}
"""Two results that were rounded once each, sums in another order before."""


@pytest.mark.slow
@pytest.mark.claim("cross_entropy-shards")
def test_hostile_shapes() -> None:
    """Equal to the loss without shards where devices have no classes, no tokens count, or inputs are narrow."""
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, text=True, env=environment(8), check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = report(done.stdout)
    assert len(found) == 14
    for name, errors in found.items():
        assert max(map(abs, errors)) < ROUNDED.get(name, CLOSE), (name, errors)


@pytest.mark.slow
@pytest.mark.claim("cross_entropy-shards")
def test_two_processes() -> None:
    pytest.importorskip("jax")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(i), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(4),
        )
        for i in range(2)
    ]
    done = [process.communicate(timeout=600) for process in running]
    for process, (out, err) in zip(running, done, strict=True):
        assert process.returncode == 0, err[-3000:]
        assert max(report(out)) < CLOSE


@pytest.mark.claim("cross_entropy-shards")
def test_one_device_is_a_mesh_too() -> None:
    """Padding and numbering are already there with one shard."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    hidden, weight, y = rng.standard_normal((5, 3)), rng.standard_normal((9, 3)), rng.integers(0, 7, 5)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("t", "v"))
    ours = jax.jit(
        lambda h: sharded_linear_cross_entropy(
            h, weight, y, mesh=mesh, token_axis="t", class_axis="v", class_sizes=(7,), chunk=(2, 4)
        )
    )(hidden)
    z = hidden @ weight[:7].T
    truth = np.mean(np.log(np.exp(z).sum(-1)) - z[np.arange(5), y])
    assert float(ours) == pytest.approx(truth, rel=1e-12)
    full = hidden @ weight.T
    assert abs(np.mean(np.log(np.exp(full).sum(-1)) - full[np.arange(5), y]) - truth) > WRONG


def test_sizes_that_do_not_fit() -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("v",))
    hidden, weight, y = jax.numpy.ones((2, 3)), np.ones((4, 3)), np.zeros(2, int)
    for sizes in ((5,), (0,), (-1,), (2, 2), (1.5,), 3):
        with pytest.raises(ValueError, match="class_sizes must be 1 integers from 0 to 4, not all 0, got"):
            sharded_linear_cross_entropy(hidden, weight, y, mesh=mesh, class_axis="v", class_sizes=sizes)
    with pytest.raises(ValueError, match="mesh must have the axis 'x', got"):
        sharded_linear_cross_entropy(hidden, weight, y, mesh=mesh, class_axis="x")
    with pytest.raises(ValueError, match="token_axis and class_axis must differ, got 'v' for both"):
        sharded_linear_cross_entropy(hidden, weight, y, mesh=mesh, token_axis="v", class_axis="v")
    with pytest.raises(TypeError, match=r"mesh must be a jax\.sharding\.Mesh, got NoneType"):
        sharded_linear_cross_entropy(hidden, weight, y, mesh=None, class_axis="v")
    for wrong in (np.ones(4), np.ones((2, 2, 3)), None):
        with pytest.raises(ValueError, match=r"weight must have shape \(S P, d\), got"):
            sharded_linear_cross_entropy(hidden, wrong, y, mesh=mesh, class_axis="v")
    with pytest.raises(ValueError, match=r"hidden and weight must have shapes .* with V >= 1"):
        sharded_linear_cross_entropy(hidden, np.ones((0, 3)), y, mesh=mesh, class_sizes=None)
    with pytest.raises(TypeError, match="hidden or weight must be a JAX array, got ndarray"):
        sharded_linear_cross_entropy(np.ones((2, 3)), weight, y, mesh=mesh)
