"""Linear cross-entropy, loss and both gradients: time, peak memory and error of each method, in processes of their own.

``python -m bench --only cross_entropy`` measures what is installed; rivals that are not are left out.
``make bench-peers`` makes an environment that has them and runs this file, which prints the same table with versions.
All processes are started first; then every round calls each method once, so that ratios within a round mean something
on a machine whose load changes. Memory is the largest resident set during the calls, minus that before them and minus
the two gradients: inputs, libraries and compilers do not count. Errors are the largest of a gradient against float64,
relative to its largest entry.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import table
from bench.timing import Row, machine, row

TOKENS, FEATURES, CLASSES = 2048, 512, 50257
ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "_build" / "bench-cross-entropy.json"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PACKAGES = ("numpy", "jax", "torch", "optax", "tokamax", "cut-cross-entropy")
MARK = "bench: "
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


def work(name: str, tokens: int, folder: Path) -> None:
    """Serve one method: a line on standard output when it is ready, after each line on standard input, and at the end.

    The first call, which may compile, is made before the first line.
    """
    arrays = inputs(tokens)
    run = METHODS[name][1](*arrays)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    base = status("VmRSS")
    run()
    say("ready")
    for _ in sys.stdin:
        start = time.perf_counter()
        out = run()
        say(time.perf_counter() - start)
        del out
    peak = status("VmHWM") - base - arrays[0].nbytes - arrays[1].nbytes
    loss, parts = gradients_of(run())
    errors = [off(part, np.load(folder / f"{which}.npy", mmap_mode="r")) for which, part in enumerate(parts)]
    say({"peak": peak, "loss": loss, "errors": errors})


def say(answer: Any) -> None:
    """One line that is told from those which packages print."""
    print(MARK + json.dumps(answer), flush=True)


def gradients_of(out: Any) -> tuple[float, tuple[np.ndarray, ...]]:
    """Loss and both gradients in NumPy, of whatever a method returns."""
    loss, *grads = out
    hidden, weight = grads if len(grads) == 2 else grads[0][:2]
    return float(loss), (np.asarray(hidden), np.asarray(weight))


def off(value: np.ndarray, truth: np.ndarray) -> float:
    """Largest error, relative to the largest entry, without a second copy in float64."""
    worst = largest = 0.0
    for begin in range(0, len(truth), 4096):
        rows = truth[begin : begin + 4096]
        worst = max(worst, float(np.abs(value[begin : begin + 4096] - rows).max()))
        largest = max(largest, float(np.abs(rows).max()))
    return worst / largest


class Worker:
    """A process that serves one method."""

    def __init__(self, python: str, name: str, tokens: int, folder: Path) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "bench.cross_entropy", "--work", name, "--tokens", str(tokens), "--folder", str(folder)],
            cwd=ROOT,
            # threads that wait must not compete with the method whose turn it is
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive", "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ready = self._answer() == "ready"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line[len(MARK) :])
        self.process.wait()
        return None

    def call(self) -> float:
        """Seconds of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._answer())

    def finish(self) -> dict[str, Any]:
        """Peak, loss and errors."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        found = self._answer()
        self.process.wait()
        return found


def run(*, quick: bool, rounds: int = 7) -> list[Row]:
    """Rows of the report."""
    tokens, repeats = (256, 1) if quick else (TOKENS, rounds)
    hidden, weight, targets = inputs(tokens)
    from diffnum.cross_entropy import linear_cross_entropy_and_grad

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wide = hidden.astype(np.float64), weight.astype(np.float64)
        truth, grads = linear_cross_entropy_and_grad(*wide, targets)
        for number, gradient in enumerate(grads[:2]):
            np.save(folder / f"{number}.npy", gradient)
        del wide, grads
        workers: dict[str, Worker] = {}
        interpreters: list[str] = [sys.executable]
        if PEERS.exists() and str(PEERS) != sys.executable:
            interpreters.append(str(PEERS))
        for method in METHODS:
            for python in interpreters:
                worker = Worker(python, method, tokens, folder)
                if worker.ready:
                    workers[method] = worker
                    break
        times: dict[str, list[float]] = {method: [] for method in workers}
        for number in range(repeats):
            for method in list(workers)[::-1] if number % 2 else list(workers):
                times[method].append(workers[method].call())
        found = {method: worker.finish() for method, worker in workers.items()}
    reference = times.get(REFERENCE)
    return [
        row(
            f"({tokens}, {FEATURES}) x ({CLASSES}, {FEATURES}), float32, loss and gradients; peak beside these",
            method,
            tokens * CLASSES,
            seconds=statistics.median(times[method]),
            unit="call",
            over_rival=statistics.median(a / b for a, b in zip(times[method], reference or times[method], strict=True)),
            peak_mib=result["peak"] / 2**20,
            loss_error=abs(result["loss"] - float(truth)),
            hidden_error=result["errors"][0],
            weight_error=result["errors"][1],
        )
        for method, result in found.items()
    ]


def versions() -> dict[str, str | None]:
    """Of the packages that are compared, as installed beside this interpreter."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def main() -> None:
    """Serve one method, or measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", choices=list(METHODS))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer tokens, one round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    if options.work is not None:
        del sys.argv[1:]  # tokamax would read them as options of its own
        package = METHODS[options.work][0]
        if package is not None:
            __import__(package)
        work(options.work, options.tokens, options.folder)
        return
    rows, packages = run(quick=options.quick, rounds=options.rounds), versions()
    print(f"\n{rows[0]['section']}\n{table(rows)}")
    print(", ".join(f"{name} {number or '(not installed)'}" for name, number in packages.items()))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(), "versions": packages, "rows": rows}
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
