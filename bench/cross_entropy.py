"""Linear cross-entropy, loss and both gradients: time and peak memory of each method in a process of its own.

``python -m bench --only cross_entropy`` measures what is installed; rivals that are not are left out. Give the
interpreter of another environment that has them with ``DIFFNUM_PEERS=/path/to/python``. Memory is the largest resident
set during the calls, minus that before them and minus the two gradients: inputs, libraries and compilers do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.timing import Row, row

TOKENS, FEATURES, CLASSES = 2048, 512, 50257
ROOT = Path(__file__).resolve().parent.parent
Call = Callable[[], Any]


def inputs(tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states N(0, 1), weights N(0, 1/d), targets; float32."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((tokens, FEATURES), dtype=np.float32)
    weight = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    weight /= np.float32(FEATURES**0.5)
    return hidden, weight, rng.integers(0, CLASSES, tokens).astype(np.int32)


def compiled(loss: Callable[..., Any]) -> Callable[..., Call]:
    """Value and gradients in JAX, compiled before anything is measured."""

    def make(hidden: Any, weight: Any, targets: Any) -> Call:
        import jax

        arrays = tuple(map(jax.numpy.asarray, (hidden, weight, targets)))
        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arrays).compile()
        return lambda: jax.block_until_ready(run(*arrays))

    return make


def naive(hidden: Any, weight: Any, targets: Any) -> Any:
    """The definition."""
    import jax

    logp = jax.nn.log_softmax(hidden @ weight.T)
    return -jax.numpy.take_along_axis(logp, targets[:, None], axis=1).mean()


def optax(hidden: Any, weight: Any, targets: Any) -> Any:
    """The loss of optax over all logits."""
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(hidden @ weight.T, targets).mean()


def checkpointed(hidden: Any, weight: Any, targets: Any) -> Any:
    """What one writes by hand: a scan over blocks of 256 tokens, recomputed in reverse."""
    import jax

    def block(total: Any, part: Any) -> Any:
        return total + part[0].shape[0] * naive(part[0], weight, part[1]), None

    parts = hidden.reshape(-1, 256, hidden.shape[1]), targets.reshape(-1, 256)
    return jax.lax.scan(jax.checkpoint(block), 0.0, parts)[0] / targets.shape[0]


def diffnum_jax(**options: Any) -> Callable[..., Call]:
    """This library under JAX."""

    def loss(hidden: Any, weight: Any, targets: Any) -> Any:
        from diffnum.cross_entropy import linear_cross_entropy

        return linear_cross_entropy(hidden, weight, targets, **options)

    return compiled(loss)


def diffnum_numpy(hidden: Any, weight: Any, targets: Any) -> Call:
    """This library under NumPy."""
    from diffnum.cross_entropy import linear_cross_entropy_and_grad

    return lambda: linear_cross_entropy_and_grad(hidden, weight, targets)


def numpy_naive(hidden: Any, weight: Any, targets: Any) -> Call:
    """All logits in NumPy, overwritten by their gradient."""

    def run() -> Any:
        z = hidden @ weight.T
        top = z.max(-1, keepdims=True)
        rows = np.arange(len(targets))
        picked = z[rows, targets] - top[:, 0]
        z -= top
        np.exp(z, out=z)
        total = z.sum(-1, keepdims=True)
        z /= total * len(targets)
        z[rows, targets] -= np.float32(1 / len(targets))
        return (np.log(total[:, 0]) - picked).mean(), z @ weight, z.T @ hidden

    return run


def torch_with(loss: Callable[..., Any]) -> Callable[..., Call]:
    """Value and gradients in PyTorch."""

    def make(hidden: Any, weight: Any, targets: Any) -> Call:
        import torch

        h, w = (torch.from_numpy(a).requires_grad_() for a in (hidden, weight))
        y = torch.from_numpy(targets.astype(np.int64))

        def run() -> Any:
            value = loss(h, w, y)
            return (value.detach(), *torch.autograd.grad(value, (h, w)))

        return run

    return make


def torch_plain(h: Any, w: Any, y: Any) -> Any:
    """All logits in PyTorch."""
    import torch

    return torch.nn.functional.cross_entropy(h @ w.T, y)


def torch_chunked(h: Any, w: Any, y: Any) -> Any:
    """PyTorch's own chunks of tokens."""
    from torch.nn import LinearCrossEntropyOptions, functional

    options = LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(h, w, y, options=options)


def torch_diffnum(h: Any, w: Any, y: Any) -> Any:
    """This library under PyTorch."""
    from diffnum.cross_entropy import linear_cross_entropy

    return linear_cross_entropy(h, w, y)


def tokamax(implementation: str) -> Callable[..., Call]:
    """An XLA path of tokamax, whose weight is (d, V)."""

    def loss(hidden: Any, weight: Any, targets: Any) -> Any:
        import tokamax

        total = tokamax.linear_softmax_cross_entropy_loss(
            hidden, targets, weight.T, reduction="sum", implementation=implementation
        )
        return total / targets.shape[0]

    return compiled(loss)


def cut(h: Any, w: Any, y: Any) -> Any:
    """Apple's, in the implementation that runs on a CPU."""
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(h, w, y, impl="torch_compile")


METHODS: dict[str, tuple[str | None, Callable[..., Call]]] = {
    "JAX, all logits": ("jax", compiled(naive)),
    "JAX, diffnum": ("jax", diffnum_jax()),
    "JAX, diffnum, save nothing": ("jax", diffnum_jax(save="nothing")),
    "JAX, scan and checkpoint": ("jax", compiled(checkpointed)),
    "JAX, optax": ("optax", compiled(optax)),
    "JAX, tokamax xla": ("tokamax", tokamax("xla")),
    "JAX, tokamax chunked_xla": ("tokamax", tokamax("chunked_xla")),
    "NumPy, all logits": (None, numpy_naive),
    "NumPy, diffnum": (None, diffnum_numpy),
    "PyTorch, all logits": ("torch", torch_with(torch_plain)),
    "PyTorch, diffnum": ("torch", torch_with(torch_diffnum)),
    "PyTorch, its chunks": ("torch", torch_with(torch_chunked)),
    "PyTorch, cut_cross_entropy": ("cut_cross_entropy", torch_with(cut)),
}
REFERENCE = "JAX, all logits"


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(name: str, tokens: int, repeats: int) -> dict[str, Any]:
    """Times, peak and loss of one method, in this process."""
    arrays = inputs(tokens)
    run = METHODS[name][1](*arrays)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    base, seconds, loss = status("VmRSS"), [], 0.0
    for _ in range(repeats + 1):
        start = time.perf_counter()
        out = run()
        seconds.append(time.perf_counter() - start)
        loss = float(out[0])
        del out
    gradients = arrays[0].nbytes + arrays[1].nbytes
    return {"seconds": seconds[1:], "peak": status("VmHWM") - base - gradients, "loss": loss}


def run(*, quick: bool) -> list[Row]:
    """Rows of the report."""
    tokens, repeats = (256, 1) if quick else (TOKENS, 5)
    hidden, weight, targets = inputs(tokens)
    from diffnum.cross_entropy import linear_cross_entropy

    truth = float(linear_cross_entropy(hidden, weight, targets, accumulate="float64", chunk=(256, 4096)))
    found: dict[str, dict[str, Any]] = {}
    for name in METHODS:
        for python in dict.fromkeys([sys.executable, os.environ.get("DIFFNUM_PEERS", sys.executable)]):
            options = ["--method", name, "--tokens", str(tokens), "--repeats", str(repeats)]
            done = subprocess.run(
                [python, "-m", "bench.cross_entropy", *options],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                found[name] = json.loads(done.stdout.splitlines()[-1])
                break
    reference = statistics.median(found[REFERENCE]["seconds"]) if REFERENCE in found else float("nan")
    return [
        row(
            f"({tokens}, {FEATURES}) x ({CLASSES}, {FEATURES}), float32, loss and gradients; peak beside these",
            name,
            tokens * CLASSES,
            seconds=statistics.median(result["seconds"]),
            unit="call",
            over_rival=statistics.median(result["seconds"]) / reference,
            peak_mb=result["peak"] / 1e6,
            loss_error=abs(result["loss"] - truth),
        )
        for name, result in found.items()
    ]


def main() -> None:
    """Measure one method and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", choices=list(METHODS), required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    package = METHODS[options.method][0]
    if package is not None:
        __import__(package)
    print(json.dumps(measure(options.method, options.tokens, options.repeats)))


if __name__ == "__main__":
    main()
