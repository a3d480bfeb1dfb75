"""The README keeps what it promises: its code runs and prints what it shows, its links and commands exist."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

CODE = re.compile(r"^```python\n(.*?)^```\n\s*^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
LARGEST_FIGURE = 100_000
LINES_OF_EXAMPLE = 10


def targets() -> set[str]:
    """What make can make."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_code_prints_what_the_page_shows():
    """One namespace for the page, as for a reader who pastes block after block."""
    blocks = CODE.findall(README)
    assert len(blocks) == README.count("```python") == 2
    assert len(blocks[0][0].strip().replace("\n\n", "\n").splitlines()) <= LINES_OF_EXAMPLE
    names: dict = {}
    for code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        printed = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
        assert printed == [line.rstrip() for line in shown.rstrip().splitlines()]


def test_the_wrong_version_that_the_page_warns_of_is_caught():
    from diffnum.convergence import OrderError, check_sampler

    code = CODE.findall(README)[1][0]
    assert "h / last_h / 2" in code
    names: dict = {}
    exec("import numpy as np\n" + code.replace("h / last_h / 2", "0.5").split("print(")[0], names)
    wrong = names["two_m"]
    check_sampler(wrong, order=2, kinds=["uniform_log_snr"])
    with pytest.raises(OrderError, match="random_ratio: FAILS") as caught:
        check_sampler(wrong, order=2)
    assert caught.value.studies["random_ratio"].order == pytest.approx(1.0, abs=0.1)
    assert "ratio of neighbouring steps" in str(caught.value)


def test_links_lead_to_files():
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert "book/_static/orders.svg" in links
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_commands_are_targets():
    named = set(re.findall(r"`?make ([a-z-]+)", README)) - {"alone"}
    assert {"book", "test", "serve", "mutants", "bench"} <= named
    assert named <= targets()


def test_modules_are_those_of_the_library():
    rows = re.findall(r"^\| `([\w.]+)` \|", README, re.MULTILINE)
    files = [path.relative_to(ROOT / "diffnum") for path in (ROOT / "diffnum").rglob("*.py")]
    public = {".".join(path.with_suffix("").parts) for path in files if not path.stem.startswith("_")}
    assert set(rows) == public - {"plots"}


@pytest.mark.slow
def test_figure_shows_the_orders_of_today(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import readme_figure

    text = readme_figure.FIGURE.read_text(encoding="utf-8")
    assert len(text) < LARGEST_FIGURE
    shown = re.findall(r">([^<>]+: \d+\.\d\d)</text>", text)
    assert shown == [readme_figure.legend(name, study) for name, study in readme_figure.studies().items()]


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (version,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    (released,) = re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert version == VERSION
    assert f"## [{VERSION}] - {released}\n" in changes
    assert f"Version {VERSION}." in README


def test_citation_has_what_its_format_asks_for():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra `book`")
    fields = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert set(fields) >= {"cff-version", "message", "title", "authors"}
    assert all("name" in author for author in fields["authors"])
    assert fields["license"] == "Apache-2.0"


def test_supported_versions_of_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert "Python " + ", ".join(classified[:-1]) + f" or {classified[-1]}" in README
    assert sys.version_info >= (3, 11)
