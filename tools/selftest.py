"""Do the gates notice? Plant one fault at a time in a copy of the tree, and demand that the right gate goes red.

Everything must be green first. The copy shares the execution cache, so that only changed pages run. A gate that is red
for another reason than the plant counts as blind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "phi"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "_build", ".mutants*", "__pycache__", ".*_cache", ".hypothesis", "dist"
)

BOOK = [sys.executable, "tools/book.py", "_build"]
TESTS = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-x",
    "-m",
    "not slow",
    "-p",
    "no:cacheprovider",
    f"tests/test_{CHAPTER}.py",
]
HOUSE = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_pairing.py"]
SITE = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "tests/test_site.py",
    "-k",
    "nothing_on_the_site",
]
LAYERS = [str(Path(sysconfig.get_path("scripts")) / "lint-imports"), "--no-cache"]


@dataclass(frozen=True)
class Plant:
    """A fault: in which file, how to make it, which gate must go red, and what that gate must say."""

    name: str
    file: str
    change: Callable[[str], str]
    gate: list[str]
    says: str


def replace(old: str, new: str) -> Callable[[str], str]:
    """Exchange the first `old`."""
    return lambda text: text.replace(old, new, 1)


def without_alt(text: str) -> str:
    """Drop the first alternative text of a page."""
    return re.sub(r"^( +)alt:.*\n(?:\1 +.*\n)*", "", text, count=1, flags=re.MULTILINE)


CELL = "```{code-cell} python3\nraise RuntimeError('planted failure')\n```\n\n## Cost"
EQUATION = f"```{{math}}\n:label: {CHAPTER}-planted\n1 = 2\n```\n\n## Cost"
TEST = f'\n\nimport pytest\n\n\n@pytest.mark.claim("{CHAPTER}-planted")\ndef test_planted():\n    pass\n'
RETYPED = "```{code-cell} python3\ndef phi(k, z):\n    return z\n```\n\n## Cost"
IMAGE = '<img src="https://example.org/planted.png" alt="planted"></body>'

PLANTS = [
    Plant("a cell that fails", f"book/{CHAPTER}.md", replace("## Cost", CELL), BOOK, "planted failure"),
    Plant("a figure without a description", f"book/{CHAPTER}.md", without_alt, BOOK, "alternative text"),
    Plant(
        "an equation without a test",
        f"book/{CHAPTER}.md",
        replace("## Cost", EQUATION),
        BOOK,
        "has no test that claims it",
    ),
    Plant(
        "a test of an unknown label",
        f"tests/test_{CHAPTER}.py",
        lambda text: text + TEST,
        BOOK,
        "which no page defines",
    ),
    Plant("a sign turned in the library", "diffnum/phi.py", replace("(y[j] - 1.0 /", "(y[j] + 1.0 /"), TESTS, "failed"),
    Plant(
        "library code typed again",
        f"book/{CHAPTER}.md",
        replace("## Cost", RETYPED),
        HOUSE,
        "defined by the library already",
    ),
    Plant("a picture from another host", "_build/html/index.html", replace("</body>", IMAGE), SITE, "example.org"),
    Plant(
        "an import against the layers",
        "diffnum/phi.py",
        lambda text: text + "\nimport diffnum.solvers\n",
        LAYERS,
        "not allowed to import",
    ),
]


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output of a gate in the copy."""
    environment = {key: value for key, value in os.environ.items() if key not in {"DIFFNUM_LEDGER", "DIFFNUM_SITE"}}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def cache_key(folder: Path) -> str:
    """Name of the execution cache that the copy would use."""
    code = "import conf; print(conf.nb_execution_cache_path)"
    return run([sys.executable, "-c", code], folder)[1].strip()


def copy_tree(folder: Path) -> None:
    """Copy the sources and the execution caches, which are keyed by content."""
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    for cache in (ROOT / "_build").glob(".jupyter_cache-*"):
        shutil.copytree(cache, folder / "_build" / cache.name)


def probe(plant: Plant, folder: Path) -> str | None:
    """Plant, run the gate, take the plant out again. What went wrong, or None."""
    path = folder / plant.file
    original = path.read_text(encoding="utf-8")
    planted = plant.change(original)
    if planted == original:
        return f"could not be planted in {plant.file}; adapt tools/selftest.py"
    path.write_text(planted, encoding="utf-8")
    try:
        code, output = run(plant.gate, folder)
        if plant.file.startswith("diffnum/") and cache_key(folder) == cache_key(ROOT):
            return "left the execution cache in use"
    finally:
        path.write_text(original, encoding="utf-8")
        if plant.gate is BOOK:
            # The build throws its state away when it fails; start the next one from the green state.
            shutil.rmtree(folder / "_build" / "doctrees", ignore_errors=True)
            shutil.copytree(folder / "green", folder / "_build" / "doctrees")
    if code == 0:
        return "was not noticed"
    if plant.says not in output:
        return f"turned the gate red for another reason:\n{output[-3000:]}"
    return None


def main() -> int:
    """Return 0 where every gate sees its fault."""
    start = time.monotonic()
    blind = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tree"
        copy_tree(folder)
        for gate in (BOOK, TESTS, HOUSE, SITE, LAYERS):
            code, output = run(gate, folder)
            if code:
                print(output[-6000:])
                print(f"selftest: FAILED before any fault was planted: {' '.join(gate[1:])}")
                return 1
        print(f"green without a fault ({time.monotonic() - start:.0f} s)", flush=True)
        shutil.copytree(folder / "_build" / "doctrees", folder / "green")
        for plant in PLANTS:
            before = time.monotonic()
            problem = probe(plant, folder)
            print(
                f"{'red' if problem is None else 'BLIND':5} {plant.name} ({time.monotonic() - before:.0f} s)",
                flush=True,
            )
            if problem:
                print(f"      {problem}")
                blind.append(plant.name)
    if blind:
        print(f"selftest: FAILED: {', '.join(blind)}")
        return 1
    print(f"selftest: passed: {len(PLANTS)} faults planted, {len(PLANTS)} noticed, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
