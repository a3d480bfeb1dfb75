"""The claim ledger: what it reads from the sources, what it prints, and that it fails where there is a gap."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="Sphinx comes with the extra `book`")

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = ROOT / "book" / "_ext"

CONF = """
import sys
sys.path[:0] = [{root!r}, {extensions!r}]
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "ledger"]
project = "tiny"
html_theme = "basic"
numfig = math_numfig = True
numfig_secnum_depth = 1
autodoc_typehints = "none"
"""
MODULE = '''
"""A module."""

__all__ = ["double", "Record"]


def double(x):
    """Twice `x`: :eq:`twice-definition`."""
    return 2 * x


class Record:
    """A record, which need not cite."""

    def value(self):
        """The value of :eq:`twice-sum`."""
'''
CHAPTER = r"""
# Twice

```{math}
:label: twice-definition
y = 2 x
```

```{math}
:label: twice-sum
y = x + x
```

```{ledger}
```
"""
API = """
# API

```{eval-rst}
.. automodule:: diffnum.twice
   :members:
```
"""
TEST = """
import pytest


@pytest.mark.claim("twice-definition", "twice-sum")
def test_twice():
    pass
"""


def load_ledger():
    """Import the extension from its file."""
    spec = importlib.util.spec_from_file_location("ledger", EXTENSIONS / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ledger"] = module
    spec.loader.exec_module(module)
    return module


def write(root: Path, files: dict[str, str]) -> None:
    """Write `files` under `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def tiny(tmp_path):
    """A project of one module, one chapter and one test, without a gap."""
    files = {
        "conf.py": CONF.format(root=str(tmp_path), extensions=str(EXTENSIONS)),
        "diffnum/__init__.py": "",
        "diffnum/twice.py": MODULE,
        "book/index.md": "# Book\n\n```{toctree}\n:numbered:\n\ntwice\napi\n```\n",
        "book/twice.md": CHAPTER,
        "book/api.md": API,
        "tests/test_twice.py": TEST,
    }
    write(tmp_path, files)
    return tmp_path


def build(root: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run sphinx-build, without -W: the ledger must fail by itself."""
    command = [sys.executable, "-m", "sphinx", "-q", *options, "-c", str(root), str(root / "book"), str(root / "html")]
    env = {key: value for key, value in os.environ.items() if key not in {"DIFFNUM_LEDGER", "PYTHONPATH"}} | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=root)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_claims_are_read_wherever_pytest_would_see_them(tmp_path):
    write(
        tmp_path,
        {
            "tests/test_a.py": """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.claim("everywhere")]

@pytest.mark.claim("one", "two")
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.claim("three")), 2])
def test_function(n):
    pass

@pytest.mark.claim("four")
class TestClass:
    @pytest.mark.claim("five")
    def test_method(self):
        pass

    def helper(self):
        pass

def helper():
    pass
"""
        },
    )
    found = {test.name: test.labels for test in load_ledger().read_sources(tmp_path).tests}
    assert found == {
        "test_function": ("everywhere", "one", "two", "three"),
        "TestClass.test_method": ("everywhere", "four", "five"),
    }


@pytest.mark.parametrize(
    ("mark", "name"),
    [("claim(LABEL)", "test_a"), ("claim()", "test_a"), ('claim(label="a")', "test_a"), ('claim("a")', "helper")],
)
def test_claims_that_say_nothing_are_problems(tmp_path, mark, name):
    write(tmp_path, {"tests/test_a.py": f"import pytest\n\n@pytest.mark.{mark}\ndef {name}():\n    pass\n"})
    (problem,) = load_ledger().read_sources(tmp_path).problems
    assert problem.startswith("tests/test_a.py:")


def test_functions_and_methods_are_read_with_their_citations(tiny):
    sources = load_ledger().read_sources(tiny)
    assert {code.name: code.labels for code in sources.functions} == {
        "diffnum.twice.double": ("twice-definition",),
        "diffnum.twice.Record.value": ("twice-sum",),
    }
    assert not sources.problems


def test_functions_that_a_module_passes_on_are_read_where_they_stand(tiny):
    module, private = tiny / "diffnum" / "twice.py", tiny / "diffnum" / "_inner.py"
    private.write_text(
        MODULE.replace('"Record"]', '"Record", "helper"]')
        + '\n\ndef helper():\n    """Not public: :eq:`twice-sum`."""\n',
        encoding="utf-8",
    )
    text = '"""A module."""\n\nfrom diffnum._inner import Record, double, helper\n\n__all__ = ["Record", "double"]\n'
    module.write_text(text, encoding="utf-8")
    sources = load_ledger().read_sources(tiny)
    assert {(code.name, code.path) for code in sources.functions} == {
        ("diffnum.twice.double", "diffnum/_inner.py"),
        ("diffnum.twice.Record.value", "diffnum/_inner.py"),
    }
    assert not sources.problems


def test_a_public_function_must_cite_where_there_is_a_chapter(tiny):
    path = tiny / "diffnum" / "twice.py"
    path.write_text(MODULE.replace(":eq:`twice-definition`", "no equation"), encoding="utf-8")
    assert ["double" in problem for problem in load_ledger().read_sources(tiny).problems] == [True]
    (tiny / "book" / "twice.md").unlink()
    assert not load_ledger().read_sources(tiny).problems


def test_this_library_is_read():
    sources = load_ledger().read_sources(ROOT)
    assert "phi" in sources.public["diffnum.phi"]
    assert {"diffnum.phi.phi", "diffnum.solvers.solve"} <= {code.name for code in sources.functions}


# -- printing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_site_links_equations_functions_and_tests(tiny, jobs):
    done = build(tiny, "-j", jobs)
    assert done.returncode == 0, done.stderr
    page = (tiny / "html" / "twice.html").read_text(encoding="utf-8")
    assert page.count('<details class="ledger') == 2
    assert "1 function · 1 test" in page
    links = set(re.findall(r'href="([^"]+)"', page))
    assert {"api.html#diffnum.twice.double", "_tests/test_twice.html#test_twice"} <= links
    assert 'id="test_twice"' in (tiny / "html" / "_tests" / "test_twice.html").read_text(encoding="utf-8")
    assert 'id="diffnum.twice.double"' in (tiny / "html" / "api.html").read_text(encoding="utf-8")
    records = json.loads((tiny / "html" / "equations.json").read_text(encoding="utf-8"))
    assert records[0] == {
        "label": "twice-definition",
        "number": "1.1",
        "page": "twice",
        "url": "twice.html#equation-twice-definition",
        "latex": "y = 2 x",
        "functions": [{"name": "diffnum.twice.double", "file": "diffnum/twice.py", "line": 7}],
        "tests": [{"name": "test_twice", "file": "tests/test_twice.py", "line": 5}],
    }
    assert [record["number"] for record in records] == ["1.1", "1.2"]


def test_a_renamed_test_reaches_a_page_that_did_not_change(tiny):
    build(tiny)
    write(tiny, {"tests/test_twice.py": TEST.replace("def test_twice", "def test_double")})
    assert build(tiny).returncode == 0
    page = (tiny / "html" / "twice.html").read_text(encoding="utf-8")
    assert "test_double" in page
    assert "::test_twice" not in page
    assert 'id="test_double"' in (tiny / "html" / "_tests" / "test_twice.html").read_text(encoding="utf-8")


# -- failing ----------------------------------------------------------------------------------------------------------

GAPS = {
    "an equation without a test": (
        "tests/test_twice.py",
        '"twice-definition", ',
        "",
        "equation twice-definition has no test",
    ),
    "an unknown label": ("tests/test_twice.py", '"twice-sum"', '"twice-sum", "twice-lost"', "claims twice-lost"),
    "a function that cites nothing": (
        "diffnum/twice.py",
        ":eq:`twice-definition`",
        "",
        "double is public but its docstring",
    ),
    "an undocumented name": ("diffnum/twice.py", '"Record"]', '"Record", "LOST"]', "LOST is public but not in the API"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_gaps_fail_the_build_also_the_second_time(tiny, gap):
    assert build(tiny).returncode == 0
    name, old, new, message = GAPS[gap]
    text = (tiny / name).read_text(encoding="utf-8")
    assert old in text
    write(tiny, {name: text.replace(old, new)})
    for _ in range(2):
        done = build(tiny)
        assert done.returncode != 0
        assert message in done.stderr
    assert build(tiny, DIFFNUM_LEDGER="off").returncode == 0
