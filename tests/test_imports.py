"""What importing costs, and what the distribution declares."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import diffnum

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

ALLOWED = {"diffnum", "numpy", "scipy", "array_api_compat", "charset_normalizer"}  # the last by numpy.f2py
"""Top-level modules beyond the standard library that `import diffnum.solvers` may load."""

# Beside them: a compiled library's own helpers, which are no packages of their own.
HELPERS = re.compile(
    r"_|cython|pybind11|threadpoolctl|mkl|sitecustomize|usercustomize|distutils|pkg_resources|setuptools"
)

LOADED = """
import json, sys
before = set(sys.modules)
import {name}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

SECONDS = """
import sys, time
start = time.perf_counter()
import numpy, scipy, scipy.special, array_api_compat.numpy
base = time.perf_counter()
import diffnum.solvers
end = time.perf_counter()
own = [name for name in sys.modules if name.startswith("diffnum")]
print(base - start, end - base, len(own))
"""


def run(code: str) -> str:
    """Output of a fresh interpreter, which sees no site configuration of ours."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("name", ["diffnum", "diffnum.solvers", "diffnum.oracles"])
def test_import_loads_nothing_heavy(name):
    loaded = {module.split(".")[0] for module in json.loads(run(LOADED.format(name=name)))}
    assert name.split(".")[0] in loaded
    assert not loaded & {"jax", "jaxlib", "torch", "matplotlib", "sklearn", "mpmath", "pandas", "IPython"}
    foreign = {module for module in loaded - ALLOWED - set(sys.stdlib_module_names) if not HELPERS.match(module)}
    assert not foreign


def test_plots_imports_matplotlib_only_when_it_draws():
    pytest.importorskip("diffnum.plots", reason="diffnum.plots", exc_type=ImportError)
    assert "matplotlib" not in {module.split(".")[0] for module in json.loads(run(LOADED.format(name="diffnum.plots")))}


def test_modules_are_there_at_first_use():
    seen = run(
        "import sys, diffnum; print('diffnum.phi' in sys.modules); "
        "print(diffnum.phi.phi(1, 0.0), 'phi' in dir(diffnum), '_backend' in dir(diffnum), diffnum.__version__)"
    )
    assert seen.split() == ["False", "1.0", "True", "False", PROJECT["version"]]
    with pytest.raises(AttributeError, match="'diffnum' has no attribute 'solver'"):
        _ = diffnum.solver


def test_import_time_is_measured(capsys):
    """A figure for the reader, best of three; seconds on a shared machine are no assertion."""
    base, own, count = min((tuple(map(float, run(SECONDS).split())) for _ in range(3)), key=lambda row: row[1])
    with capsys.disabled():
        print(f"\nimport diffnum.solvers: {own * 1e3:.0f} ms ({count:.0f} modules), NumPy+SciPy: {base * 1e3:.0f} ms")
    assert count >= 2


def test_the_package_is_typed():
    assert (ROOT / "diffnum" / "py.typed").is_file()


def test_extras_and_bounds():
    extras = PROJECT["optional-dependencies"]
    assert set(extras) >= {"jax", "torch", "book", "test", "bench", "dev"}
    for requirement in [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]:
        assert ">=" in requirement, f"no lower bound: {requirement}"


def test_constraints_pin_everything_without_addresses():
    packaging = pytest.importorskip("packaging.requirements")
    names = pytest.importorskip("packaging.utils").canonicalize_name
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert "/" not in line
            assert "@" not in line
            requirement = packaging.Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            pins[names(requirement.name)] = specifier.version
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(item for items in extras.values() for item in items)]:
        requirement = packaging.Requirement(line)
        assert requirement.specifier.contains(pins[names(requirement.name)]), f"{line} against its pin"


def test_a_source_distribution_is_all_of_the_project():
    """Tests, chapters, tools and benchmarks among them, so that it can be built and tested from itself."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    included = {name.removeprefix("/") for name in listed["sdist"]["include"]}
    # what hatchling adds by itself, and what is made and not kept
    rest = {"pyproject.toml", ".gitignore", ".git", "PKG-INFO", "_build", "dist"}
    found = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith(".")} | {".ci"}
    left_out = {name for name in found - rest if not any(fnmatch(name, pattern) for pattern in included)}
    assert not left_out
    assert all(any(fnmatch(name, pattern) for name in found) for pattern in included)
