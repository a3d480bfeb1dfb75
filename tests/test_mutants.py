"""The mutation score on a module of a few lines: what it changes, what it spares, what it says of tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="Cosmic Ray comes with the extra `dev`")

ROOT = Path(__file__).resolve().parent.parent

MODULE = '''"""Sums: 1 + 1 = 2."""

from __future__ import annotations

import math as m

__all__ = ["total"]
LIMIT: int | None = 3


def total(x: int | float, /, *, count: int | None = 2) -> float | None:
    """Sum of `count` copies, 0 + x + x."""
    if x < 0:
        msg = f"x must be >= 0, got {x + 1}"
        raise ValueError(msg + "1" * 2)
    result = 0
    while count > 0:
        result += x
        count -= 1
    return result
'''

STRONG = """
import pytest
from diffnum import tiny


def test_total():
    assert tiny.total(1.5) == 3.0
    assert tiny.total(2.0, count=3) == 6.0
    assert tiny.total(0.0) == 0.0
    assert tiny.LIMIT == 3
    for x in (-0.5, -1.5):
        with pytest.raises(ValueError):
            tiny.total(x)
"""

WEAK = """
from diffnum import tiny


def test_total():
    assert tiny.total(0.0) == 0.0
"""

WRONG = WEAK + "    assert tiny.total(1.0) == 5.0\n"

SCRIPT = """
import json, sys
import hypothesis, pytest
from pathlib import Path
sys.path.insert(0, {tools!r})
import mutants
mutants.MODULES = {{"tiny": ["tiny.py"]}}
mutants.COPY, mutants.SLACK = Path({folder!r}), 1.0
source = (mutants.COPY / "diffnum" / "tiny.py").read_text()
outcomes = [mutants.attempt(("tiny", mutant)) for mutant in mutants.mutants_of("tiny.py", source)[{first}:]]
assert (mutants.COPY / "diffnum" / "tiny.py").read_text() == source
print(json.dumps([[outcome.mutant.line, outcome.verdict, outcome.change, outcome.test] for outcome in outcomes]))
"""


def outcomes(folder: Path, tests: str, first: int = 0) -> list[tuple[int, str, str, str]]:
    """(line, verdict, change, test) of the mutants of MODULE from number `first` on, judged by `tests`."""
    for name, text in {
        "diffnum/__init__.py": "",
        "diffnum/tiny.py": MODULE,
        "tests/test_tiny.py": tests,
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\n",
    }.items():
        path = folder / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    script = SCRIPT.format(tools=str(ROOT / "tools"), folder=str(folder / "checkout"), first=first)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    return [tuple(row) for row in json.loads(done.stdout)]


def lines_with(text: str) -> set[int]:
    """Numbers of the lines of MODULE that contain `text`."""
    return {n for n, line in enumerate(MODULE.splitlines(), start=1) if text in line}


@pytest.mark.slow
def test_good_tests_kill_every_mutant_and_nothing_else_is_mutated(tmp_path):
    found = outcomes(tmp_path, STRONG)
    assert [change for _, verdict, change, _ in found if verdict not in {"killed", "timeout"}] == []
    assert "timeout" in {verdict for _, verdict, _, _ in found}, "a loop that counts up never ends"
    changes = [re.sub(" +", " ", change.splitlines()[-1].strip("+ ")) for _, _, change, _ in found]
    for expected in (
        "LIMIT: int | None = 4",
        "LIMIT: int | None = 2",
        "def total(x: int | float, /, *, count: int | None = 3) -> float | None:",
        "if x < 1:",
        "if x <= 0:",
        "if x >= 0:",
        "result -= x",
        "count += 1",
        "count -= 2",
        "result = 1",
    ):
        assert expected in changes, expected
    assert len(set(changes)) == len(changes)
    mutated = {line for line, *_ in found}
    for spared in ('"""', "import", "__all__", "msg ="):
        assert not mutated & lines_with(spared), spared
    text = "\n".join(changes)
    assert "&" not in text, "annotations are spared"
    assert "*," not in text.replace("/, *,", ""), "so is the slash of a signature"


@pytest.mark.slow
def test_bad_tests_let_mutants_live(tmp_path):
    found = outcomes(tmp_path, WEAK)
    verdicts = {change.splitlines()[-1].strip("+ "): verdict for _, verdict, change, _ in found}
    assert verdicts["result -= x"] == "survived"
    assert verdicts["if x <= 0:"] == "killed"


@pytest.mark.slow
def test_tests_that_fail_anyway_are_an_error(tmp_path):
    found = outcomes(tmp_path, WRONG, first=-2)
    assert {verdict for _, verdict, _, _ in found} == {"error"}
    assert all("unchanged module fails" in test for *_, test in found)


def test_known_equivalents_are_left_out_and_stale_entries_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mutants

    listing = tmp_path / "equivalent.toml"
    entry = '[[equivalent]]\nfile = "{}"\nbefore = "{}"\nafter = "{}"\nreason = "{}"\n'
    texts = [
        ("tiny.py", "if x < 0:", "if x < 1:", "an example"),
        ("tiny.py", "if x < 0:", "if x < 7:", "no operator makes it"),
        ("tiny.py", "if x < 0:", "if x <= 0:", ""),
        ("other.py", "if x < 0:", "if x < 1:", "another module's"),
    ]
    listing.write_text("\n".join(entry.format(*text) for text in texts), encoding="utf-8")
    every = mutants.mutants_of("tiny.py", MODULE)
    known, stale = mutants.equivalents({"tiny.py": MODULE}, every, listing)
    assert {mutants.apply(mutant, MODULE).splitlines()[mutant.line - 1].strip() for mutant in known} == {
        "if x < 1:",
        "if x <= 0:",
    }
    assert [line.rsplit("-> ")[-1] for line in stale] == ["if x < 7:", "if x <= 0:"], "an entry needs its reason"


def test_the_interval_holds_the_score(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from mutants import interval

    low, high = interval(90, 100)
    # Wilson's interval for 90 of 100: 0.8256 to 0.9448 (Newcombe, Statistics in Medicine 17 (1998), gives the formula)
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
