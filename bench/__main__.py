"""`python -m bench [--only NAME] [--quick] [--output FILE]`: measure, print tables, write JSON.

Every figure is the median of interleaved repeats in this process, and every ratio is the median of ratios within a
repeat. Run it on a machine that does nothing else: the load is in the JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import table
from bench.timing import Row, machine, row

OUTPUT = Path(__file__).resolve().parent.parent / "_build" / "bench.json"


def log_sum_exp(*, quick: bool) -> list[Row]:
    """Rows of `bench.logsumexp`."""
    from bench import logsumexp

    rows = 128 if quick else logsumexp.ROWS
    return [
        row(
            f"NumPy, float32, ({rows}, {logsumexp.TERMS}), time per call",
            str(result["name"]),
            rows * logsumexp.TERMS,
            seconds=float(result["seconds"]),
            unit="call",
            over_rival=result["time_ratio"],
            peak_mb=result["peak_mb"],
            memory_ratio=result["memory_ratio"],
        )
        for result in logsumexp.run(rows=rows)
    ]


def scan(*, quick: bool) -> list[Row]:
    """JAX against the bound and a hand-written scan."""
    from bench import scan

    return scan.run(quick=quick)


def diffrax(*, quick: bool) -> list[Row]:
    """JAX against diffrax."""
    from bench import scan

    return scan.run_diffrax(quick=quick)


def noise(*, quick: bool) -> list[Row]:
    """JAX: an SDE against its ODE and the bare draw."""
    from bench import noise

    return noise.run(quick=quick)


def loop(*, quick: bool) -> list[Row]:
    """NumPy against a hand-written loop."""
    from bench import loop

    return loop.run(quick=quick)


def cross_entropy(*, quick: bool) -> list[Row]:
    """Linear cross-entropy against all logits, and other libraries."""
    from bench import cross_entropy

    return cross_entropy.run(quick=quick)


def categorical(*, quick: bool) -> list[Row]:
    """JAX: tokens, against random bits and a softmax."""
    from bench import categorical

    return categorical.run(quick=quick)


def discrete(*, quick: bool) -> list[Row]:
    """A step of the samplers of tokens."""
    from bench import discrete

    return discrete.run(quick=quick)


SECTIONS: dict[str, tuple[Callable[..., list[Row]], str | None]] = {
    "scan": (scan, "jax"),
    "diffrax": (diffrax, "diffrax"),
    "noise": (noise, "jax"),
    "loop": (loop, None),
    "logsumexp": (log_sum_exp, None),
    "cross_entropy": (cross_entropy, None),
    "categorical": (categorical, "jax"),
    "discrete": (discrete, None),
}
"""Name -> function, and the optional package it needs."""


def main() -> int:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the repeats, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    start = time.monotonic()
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}")
    if about["load"][0] > 0.5 * (about["cores"] or 1):
        print("bench: the machine is busy; short functions will look slower than they are")
    rows: list[Row] = []
    for name in options.only or SECTIONS:
        measure, package = SECTIONS[name]
        if package is not None:
            try:
                importlib.import_module(package)
            except ImportError:
                print(f"\n{name}: skipped, {package} is not installed")
                continue
        found = measure(quick=options.quick)
        print(f"\n{found[0]['section']}\n{table(found)}", flush=True)
        rows += found
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    missed = [f"{line['name']} ({line['size']:,})" for line in rows if line.get("met") is False]
    print(f"\nbench: {time.monotonic() - start:.0f} s, written to {options.output}")
    print(f"bench: goals missed: {', '.join(missed)}" if missed else "bench: all goals met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
