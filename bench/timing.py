"""Interleaved timing, and the rows of the report."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def interleave(functions: dict[str, Callable[[], Any]], *, seconds: float, least: int = 5) -> dict[str, list[float]]:
    """Times of each function, one call of each per round, for about `seconds` in all and at least `least` rounds.

    Every other round runs backwards, so that no function always follows the same one. The first round, which
    compiles, is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        names = list(functions)
        for name in names[::-1] if rounds % 2 else names:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return times


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    """Median over the rounds of the ratio within a round, which a change of load between rounds does not move."""
    return statistics.median(a / b for a, b in zip(times[name], times[reference], strict=True))


def row(section: str, name: str, size: int, *, seconds: float, unit: str, **ratios: Any) -> Row:
    """A line of the report: time per `unit`, and ratios."""
    return {"section": section, "name": name, "size": size, "seconds": seconds, "per": unit, **ratios}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    found = {}
    for package in ("diffnum", "numpy", "scipy", "jax", "jaxlib", "diffrax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    load = os.getloadavg() if hasattr(os, "getloadavg") else (float("nan"),) * 3
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in load],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": found,
    }
