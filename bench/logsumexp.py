"""Chunked log-sum-exp and softmax average against SciPy and the stored product: time and peak memory.

``python -m bench.logsumexp`` prints a table; ``run()`` returns its rows. Times are medians of interleaved repeats in
one process. Peak memory is the largest resident set of a process that makes the inputs and calls the function once,
minus that of a process that only makes the inputs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from diffnum.logsumexp import logsumexp, softmax_average

ROWS, TERMS, FEATURES = 2048, 50257, 64
"""Tokens of a batch, vocabulary of GPT-2, features of the values."""

Function = Callable[[Any, Any], Any]


def stored_average(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The softmax as an array, then the product."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ values


def stored_logsumexp(scores: np.ndarray) -> np.ndarray:
    """Two sweeps over all terms at once."""
    peak = scores.max(axis=-1, keepdims=True)
    return peak[..., 0] + np.log(np.exp(scores - peak).sum(axis=-1))


FUNCTIONS: dict[str, Function] = {
    "logsumexp": lambda scores, _: logsumexp(scores),
    "logsumexp, scipy": lambda scores, _: scipy.special.logsumexp(scores, axis=-1),
    "logsumexp, two sweeps": lambda scores, _: stored_logsumexp(scores),
    "softmax_average": softmax_average,
    "softmax_average, scipy": lambda scores, values: scipy.special.softmax(scores, axis=-1) @ values,
    "softmax_average, stored": stored_average,
}
REFERENCE = {"logsumexp": "logsumexp, scipy", "softmax_average": "softmax_average, stored"}
"""Ratios are taken against the rival of the same family."""


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores N(0, 9) and values N(0, 1), float32, made without temporaries of their size."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((rows, TERMS), dtype=np.float32)
    scores *= 3
    return scores, rng.standard_normal((TERMS, FEATURES), dtype=np.float32)


def largest_resident() -> int:
    """Bytes. Linux: of this program alone, since the figure of getrusage survives the start from a large parent."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_bytes(name: str, rows: int) -> int:
    """Largest resident set of a fresh process that makes the inputs and calls `name` ("" for nothing)."""
    command = [sys.executable, "-m", "bench.logsumexp", "--rows", str(rows), "--peak", name]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run(*, rows: int = ROWS, repeats: int = 3) -> list[dict[str, float | str]]:
    """Measure every function.

    Parameters
    ----------
    rows : int, optional
        Rows of scores.
    repeats : int, optional
        Calls of each function, interleaved.

    Returns
    -------
    list of dict
        ``name``, ``seconds`` (median), ``time_ratio`` and ``memory_ratio`` (over the rival of the family), ``peak_mb``.
    """
    scores, values = inputs(rows)
    seconds: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    for _ in range(repeats):
        for name, function in FUNCTIONS.items():
            begin = time.perf_counter()
            function(scores, values)
            seconds[name].append(time.perf_counter() - begin)
    del scores, values
    baseline = peak_bytes("", rows)
    # At least a page, so that a ratio exists.
    peak = {name: max(peak_bytes(name, rows) - baseline, 4096) for name in FUNCTIONS}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    results: list[dict[str, float | str]] = []
    for name in FUNCTIONS:
        rival = REFERENCE[name.split(",")[0]]
        results.append(
            {
                "name": name,
                "seconds": medians[name],
                "time_ratio": medians[name] / medians[rival],
                "peak_mb": peak[name] / 1e6,
                "memory_ratio": peak[name] / peak[rival],
            }
        )
    return results


def main() -> None:
    """Print the table, or the peak memory of one function."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak is not None:
        arrays = inputs(options.rows)
        if options.peak:
            FUNCTIONS[options.peak](*arrays)
        print(largest_resident())
        return
    results = run(rows=options.rows, repeats=options.repeats)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"({options.rows}, {TERMS}) float32, values ({TERMS}, {FEATURES}), NumPy")
    print(f"{'':26s} {'seconds':>8s} {'ratio':>6s} {'peak MB':>9s} {'ratio':>6s}")
    for row in results:
        print(
            f"{row['name']:26s} {row['seconds']:8.3f} {row['time_ratio']:6.2f} "
            f"{row['peak_mb']:9.1f} {row['memory_ratio']:6.3f}"
        )


if __name__ == "__main__":
    main()
