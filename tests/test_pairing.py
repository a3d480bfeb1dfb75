"""One chapter, one module, one test file: the three trees hold together, and the anatomy of a chapter is kept."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra `book`")

ROOT = Path(__file__).resolve().parent.parent
BOOK, LIBRARY, TESTS = ROOT / "book", ROOT / "diffnum", ROOT / "tests"

HEADINGS = [
    "Question",
    "Notation",
    "Derivation",
    "Algorithm",
    "Where it breaks",
    "Measured",
    "Cost",
    "Exercises",
    "Takeaways and sources",
    "Ledger",
]
NO_CHAPTER = {"plots"}
"""Public modules that the reader meets in the API reference only."""
PAGES = {"index", "api", "bibliography"}
"""Pages that are not chapters."""
HOUSE = {
    "imports",
    "ledger",
    "pairing",
    "readme",
    "site",
    "mutants",
    "bench",
    "bench_peers",
    "public_reports",
    "sde_figures",
}
"""Test files of the project itself, and of claims that cross modules."""
ALT_LENGTH = (30, 250)

FENCE = re.compile(r"^(`{3,}|~{3,})[ ]*(\{?[\w:-]*\}?)[ ]*([^\n]*)\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)


def modules() -> set[str]:
    """Stems of the public modules."""
    paths = [path for path in LIBRARY.rglob("*.py") if not path.name.startswith("_")]
    return {path.relative_to(LIBRARY).with_suffix("").as_posix() for path in paths}


def chapters() -> list[str]:
    """Stems of the chapters."""
    stems = {path.relative_to(BOOK).with_suffix("").as_posix() for path in BOOK.rglob("*.md")}
    return sorted(stem for stem in stems if stem not in PAGES and not stem.startswith(("api/", "_")))


def prefix(stem: str) -> str:
    """What the labels and figures of a chapter begin with: `kernels-gaussian` for kernels/gaussian."""
    return stem.replace("/", "-")


def source(stem: str) -> str:
    """Text of a page."""
    return (BOOK / f"{stem}.md").read_text(encoding="utf-8")


def fences(text: str) -> list[tuple[str, str, str]]:
    """(name, argument, body) of the fenced blocks of a page: code cells, directives, listings."""
    return [(name.strip("{}"), argument.strip(), body) for _, name, argument, body in FENCE.findall(text)]


def options(body: str) -> dict[str, str]:
    """The ``:name: value`` lines that open a directive."""
    found = {}
    for line in body.splitlines():
        match = re.match(r":([\w-]+):\s*(.*)", line)
        if not match:
            break
        found[match[1]] = match[2]
    return found


def split_cell(body: str) -> tuple[dict, str]:
    """Metadata and code of a code cell."""
    if not body.startswith("---\n"):
        return options(body), re.sub(r"\A(:.*\n)+", "", body)
    head, code = body[4:].split("\n---\n", 1)
    return yaml.safe_load(head) or {}, code


def test_every_module_has_its_chapter_and_its_tests():
    public = modules()
    tests = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    tested = {path.with_name(path.stem.removeprefix("test_")).as_posix() for path in tests}
    assert set(chapters()) == public - NO_CHAPTER
    assert public - NO_CHAPTER <= tested
    private = {path.stem.lstrip("_") for path in LIBRARY.glob("_*.py")}
    assert tested <= public | private | HOUSE


def test_contents_list_every_chapter_and_every_module():
    entries = {
        line.strip() for name, _, body in fences(source("index")) if name == "toctree" for line in body.splitlines()
    }
    assert set(chapters()) | PAGES - {"index"} <= entries
    entries = {
        line.strip() for name, _, body in fences(source("api")) if name == "toctree" for line in body.splitlines()
    }
    assert {f"api/{stem}" for stem in modules()} <= entries


@pytest.mark.parametrize("stem", chapters())
def test_headings(stem):
    text = re.sub(FENCE, "", source(stem))
    assert re.findall(r"^## +(.+?)\s*$", text, re.MULTILINE) == HEADINGS
    assert len(re.findall(r"^# +", text, re.MULTILINE)) == 1
    assert [name for name, _, _ in fences(source(stem))][-1:] == ["ledger"]


@pytest.mark.parametrize("stem", chapters())
def test_module_docstring_links_to_the_chapter(stem):
    tree = ast.parse((LIBRARY / f"{stem}.py").read_text(encoding="utf-8"))
    assert f":doc:`/{stem}`" in (ast.get_docstring(tree) or "")


@pytest.mark.parametrize("stem", sorted(modules()))
def test_all_is_what_the_reference_documents(stem):
    """autodoc documents ``__all__``; the ledger fails the build where a name of it is missing from the site."""
    name = f"diffnum.{stem.replace('/', '.')}"
    if stem == "plots":
        pytest.importorskip("matplotlib")
    module = importlib.import_module(name)
    page = source(f"api/{stem}")
    assert re.search(rf"^\.\. automodule:: {re.escape(name)}\n   :members:$", page, re.MULTILINE)
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert all(hasattr(module, public) for public in listed)
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == name
    }
    assert own <= set(listed), "public names that __all__ does not list"


@pytest.mark.parametrize("stem", chapters())
def test_library_code_appears_by_literalinclude_only(stem):
    public = _definitions(LIBRARY / f"{stem}.py")
    listings = 0
    for name, argument, body in fences(source(stem)):
        assert name not in {"python", "py", "python3", "code-block", "code"}, f"a listing that does not execute: {body}"
        if name == "literalinclude":
            shown = (BOOK / stem).parent / argument
            assert shown.resolve().is_relative_to(LIBRARY), argument
            assert options(body)["pyobject"].split(".")[0] in _definitions(shown)
            listings += 1
        elif name == "code-cell":
            retyped = public & set(re.findall(r"^\s*(?:def|class) +(\w+)", split_cell(body)[1], re.MULTILINE))
            assert not retyped, f"defined by the library already: {retyped}"
    assert listings


def _definitions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {
        t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }


@pytest.mark.parametrize("stem", chapters())
def test_every_figure_is_described(stem):
    figures = 0
    for name, argument, body in fences(source(stem)):
        if name != "code-cell":
            continue
        metadata, code = split_cell(body)
        settings = metadata.get("mystnb") or {}
        draws = re.search(r"\bplt\.|\bplots\.(?!use_style)|\.subplots\(", code) is not None
        if not settings.get("figure") and not (draws and "image" in settings):
            continue
        figures += 1
        alt = str((settings.get("image") or {}).get("alt") or "").strip()
        caption = str((settings.get("figure") or {}).get("caption") or "").strip()
        assert ALT_LENGTH[0] <= len(alt) <= ALT_LENGTH[1], (
            f"{stem}: alt of {len(alt)} characters in {argument}: {code[:80]}"
        )
        assert alt != caption
        assert caption, "a figure has a caption"
        assert prefix(stem) in settings["figure"].get("name", ""), "a figure has a name with the stem in it"
    assert figures


@pytest.mark.parametrize("stem", chapters())
def test_labels_carry_the_stem(stem):
    labels = [options(body).get("label") for name, _, body in fences(source(stem)) if name == "math"]
    assert any(labels)
    assert all(label.startswith(f"{prefix(stem)}-") for label in labels if label)


@pytest.mark.parametrize("stem", chapters())
def test_exercises_have_solutions(stem):
    blocks = fences(source(stem))
    exercises = [options(body)["label"] for name, _, body in blocks if name == "exercise"]
    exercises += [options(body)["label"] for name, _, body in blocks if name == "exercise-start"]
    solutions = [(argument, body) for name, argument, body in blocks if name in {"solution", "solution-start"}]
    assert len(exercises) >= 3
    assert sorted(argument for argument, _ in solutions) == sorted(exercises)
    assert all("dropdown" in options(body)["class"] for _, body in solutions)
