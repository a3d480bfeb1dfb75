"""Rows of measurements as a table of text."""

from __future__ import annotations

from bench.timing import Row

COLUMNS = {
    "over_bound": "/bound",
    "over_hand_written": "/by hand",
    "over_diffnum": "/diffnum",
    "over_rival": "/rival",
    "overhead": "overhead",
    "peak_mb": "peak MB",
    "memory_ratio": "memory",
    "peak_mib": "peak MiB",
    "loss_error": "loss err",
    "hidden_error": "dh err",
    "weight_error": "dW err",
    "goal": "goal",
    "met": "met",
}


def duration(seconds: float) -> str:
    """A time with its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def cell(name: str, value: object) -> str:
    """A value as the tables show it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    number = float(str(value))
    if name == "overhead" or (name == "goal" and number < 1e-3):
        return duration(number)
    if name.endswith("_error"):
        return f"{number:.1e}"
    return f"{number:.4g}" if name in {"peak_mb", "peak_mib"} else f"{number:.2f}"


def table(rows: list[Row]) -> str:
    """The rows of one section, aligned."""
    names = [name for name in COLUMNS if any(name in line for line in rows)]
    width = max(len(line["name"]) for line in rows)
    head = f"{'floats':>12}  {'':{width}}  {'per ' + rows[0]['per']:>14}"
    lines = [head + "".join(f"  {COLUMNS[name]:>9}" for name in names)]
    for line in rows:
        text = f"{line['size']:>12,}  {line['name']:{width}}  {duration(line['seconds']):>14}"
        lines.append(text + "".join(f"  {cell(name, line.get(name)):>9}" for name in names))
    return "\n".join(lines)
