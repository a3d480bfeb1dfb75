"""The claim ledger: under every labelled equation of the book, the functions that implement it and its tests.

Tests name equations with ``@pytest.mark.claim("label", ...)``; docstrings of public functions cite them with
``:eq:`label```. Both are read from the sources by ``ast``, nothing is imported. The build fails for a labelled equation
that no test claims, for a test that claims an unknown label, and for a public function of a chapter that cites none.

Published with the site: a page for each test file, which the links lead to, and ``equations.json``.
"""

from __future__ import annotations

import ast
import hashlib
import html
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)

CITATION = re.compile(r":eq:`(?:[^`<]*<)?([^`<>]+)>?`")
TEST_PAGES = "_tests"


# -- reading the sources ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A function or test: dotted `name` inside `path`, first and last line, the labels that it names."""

    name: str
    path: str
    start: int
    end: int
    labels: tuple[str, ...]


@dataclass
class Sources:
    """What the library and the tests say about equations."""

    functions: list[Code] = field(default_factory=list)
    tests: list[Code] = field(default_factory=list)
    public: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def by_label(self) -> dict[str, tuple[list[Code], list[Code]]]:
        """Label -> (functions, tests), in source order."""
        found: dict[str, tuple[list[Code], list[Code]]] = defaultdict(lambda: ([], []))
        for kind, codes in enumerate((self.functions, self.tests)):
            for code in codes:
                for label in code.labels:
                    found[label][kind].append(code)
        return dict(found)


def read_sources(root: Path) -> Sources:
    """Parse ``diffnum/**/*.py`` and ``tests/**/test_*.py`` under `root`.

    Parameters
    ----------
    root : Path
        The folder that holds ``diffnum``, ``tests`` and ``book``.

    Returns
    -------
    Sources
        Functions, tests and what is wrong with them.
    """
    sources = Sources()
    for path in sorted((root / "diffnum").rglob("*.py")):
        _read_module(path, root, sources)
    for path in sorted((root / "tests").rglob("test_*.py")):
        _read_tests(path, root, sources)
    return sources


def _read_module(path: Path, root: Path, sources: Sources) -> None:
    relative = path.relative_to(root)
    if path.name.startswith("_"):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = exported(tree)
    module = ".".join(relative.with_suffix("").parts)
    sources.public[module] = public
    chapter = root / "book" / relative.relative_to("diffnum").with_suffix(".md")
    for node in _definitions(tree):
        if node.name not in public:
            continue
        codes = _codes(node, module, relative.as_posix())
        if isinstance(node, ast.FunctionDef) and chapter.exists() and not codes[0].labels:
            sources.problems.append(
                f"{relative}:{node.lineno}: {node.name} is public but its docstring cites no equation"
            )
        sources.functions += [code for code in codes if code.labels]
    for private, names in _passed_on(tree, root):
        for node in _definitions(ast.parse(private.read_text(encoding="utf-8"))):
            if node.name in names and node.name in public:
                codes = _codes(node, module, private.relative_to(root).as_posix())
                sources.functions += [code for code in codes if code.labels]


def _codes(node: ast.FunctionDef | ast.ClassDef, module: str, path: str) -> list[Code]:
    """A definition and, of a class, its public methods."""
    codes = [_code(node, node.name, module, path)]
    if isinstance(node, ast.ClassDef):
        methods = [item for item in _definitions(node) if not item.name.startswith("_")]
        codes += [_code(item, f"{node.name}.{item.name}", module, path) for item in methods]
    return codes


def _passed_on(tree: ast.Module, root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Private files of the library that a module imports names from, which it may pass on as its own."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[-1].startswith("_"):
            path = (root / node.module.replace(".", "/")).with_suffix(".py")
            if node.level == 0 and path.exists():
                yield path, {alias.name for alias in node.names if alias.asname is None}


def exported(tree: ast.Module) -> list[str]:
    """Names in the ``__all__`` of a module; empty without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node


def _code(node: ast.FunctionDef | ast.ClassDef, name: str, module: str, path: str) -> Code:
    labels = tuple(dict.fromkeys(CITATION.findall(ast.get_docstring(node) or "")))
    return Code(f"{module}.{name}", path, _first_line(node), node.end_lineno or 0, labels)


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _read_tests(path: Path, root: Path, sources: Sources) -> None:
    relative = path.relative_to(root).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    everywhere: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            everywhere += _claims(node.value, relative, sources)

    def visit(parent: ast.AST, prefix: str, inherited: list[str]) -> None:
        for node in _definitions(parent):
            own = [label for item in node.decorator_list for label in _claims(item, relative, sources)]
            is_class = isinstance(node, ast.ClassDef)
            if own and not node.name.startswith("Test" if is_class else "test"):
                sources.problems.append(f"{relative}:{node.lineno}: {node.name} claims an equation but is not a test")
            labels = tuple(dict.fromkeys([*inherited, *own]))
            if is_class:
                visit(node, f"{prefix}{node.name}.", [*inherited, *own])
            elif node.name.startswith("test") and labels:
                sources.tests.append(
                    Code(prefix + node.name, relative, _first_line(node), node.end_lineno or 0, labels)
                )

    visit(tree, "", everywhere)


def _claims(expression: ast.expr, path: str, sources: Sources) -> list[str]:
    """Labels in the ``pytest.mark.claim(...)`` calls anywhere in `expression` (``pytest.param`` marks included)."""
    labels: list[str] = []
    for node in ast.walk(expression):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "claim"):
            continue
        literal = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if len(literal) != len(node.args) or not literal or node.keywords:
            sources.problems.append(f"{path}:{node.lineno}: claim() takes labels, written out as strings")
        labels += literal
    return labels


# -- the equations of the book ----------------------------------------------------------------------------------------


def _root(app: Sphinx) -> Path:
    return Path(app.srcdir).parent


def _sources(app: Sphinx) -> Sources:
    return app.diffnum_sources  # type: ignore[attr-defined]


def load_sources(app: Sphinx) -> None:
    """Read the library and the tests once, before any page."""
    app.diffnum_sources = read_sources(_root(app))  # type: ignore[attr-defined]


def collect_latex(app: Sphinx, doctree: nodes.document) -> None:
    """Remember the source of each labelled equation of the page just read."""
    found = {node["label"]: node.astext() for node in doctree.findall(nodes.math_block) if node.get("label")}
    _latex(app.env)[app.env.docname] = found


def _latex(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    if not hasattr(env, "ledger_latex"):
        env.ledger_latex = {}  # type: ignore[attr-defined]
        env.ledger_digest = {}  # type: ignore[attr-defined]
    return env.ledger_latex  # type: ignore[attr-defined]


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget a page."""
    _latex(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    """Take over the pages that another process has read."""
    _latex(env).update({page: found for page, found in _latex(other).items() if page in docnames})


def _defined(env: BuildEnvironment) -> dict[str, tuple[str, int]]:
    """Label -> (page, serial number in its page), of all labelled equations."""
    return env.get_domain("math").equations  # type: ignore[attr-defined]


def equations(env: BuildEnvironment, page: str | None = None) -> list[str]:
    """Labels in the order of their pages and numbers; of one page or of all."""
    known = _defined(env)
    return [label for label, (docname, _) in known.items() if page in {None, docname}]


def number(env: BuildEnvironment, label: str) -> str:
    """Number of an equation as printed, without parentheses."""
    docname, serial = _defined(env)[label]
    numbers = env.toc_fignumbers.get(docname, {}).get("displaymath", {})
    return ".".join(map(str, numbers.get(f"equation-{label}", ()))) or str(serial)


def changed_pages(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Check the whole ledger, and name the pages to write again because a function or test of theirs has changed."""
    _latex(env)
    table = _sources(app).by_label()
    hashes: dict[str, str] = {}

    def fingerprint(path: str) -> str:
        if path not in hashes:
            hashes[path] = hashlib.sha256((_root(app) / path).read_bytes()).hexdigest()
        return hashes[path]

    changed = []
    for page in env.found_docs:
        rows = [(label, *table.get(label, ([], []))) for label in equations(env, page)]
        files = sorted({code.path for _, functions, tests in rows for code in [*functions, *tests]})
        digest = hashlib.sha256(repr([rows, [fingerprint(path) for path in files]]).encode()).hexdigest()
        if env.ledger_digest.get(page) != digest:  # type: ignore[attr-defined]
            env.ledger_digest[page] = digest  # type: ignore[attr-defined]
            changed.append(page)
    app.diffnum_problems = find_problems(app)  # type: ignore[attr-defined]
    return changed


def find_problems(app: Sphinx) -> list[str]:
    """Everything that makes the build fail.

    Parameters
    ----------
    app : Sphinx
        The application, after all pages have been read.

    Returns
    -------
    list of str
        One line for each problem, with its place.
    """
    sources, env = _sources(app), app.env
    known = {label: env.doc2path(docname, base=False) for docname, found in _latex(env).items() for label in found}
    problems = list(sources.problems)
    claimed = {label for test in sources.tests for label in test.labels}
    problems += [f"book/{known[x]}: the equation {x} has no test that claims it" for x in known if x not in claimed]
    for test in sources.tests:
        unknown = [label for label in test.labels if label not in known]
        problems += [
            f"{test.path}:{test.start}: {test.name} claims {label}, which no page defines" for label in unknown
        ]
    objects = env.get_domain("py").objects  # type: ignore[attr-defined]
    for module, names in sources.public.items():
        missing = [name for name in names if f"{module}.{name}" not in objects]
        problems += [f"{module}.{name} is public but not in the API reference" for name in missing]
    return problems


def fail(app: Sphinx, exception: Exception | None) -> None:
    """End the build with an error where the ledger has gaps, whether or not warnings count as errors."""
    if exception is not None or app.builder.format != "html":
        return
    publish(app)
    problems = getattr(app, "diffnum_problems", [])
    if not problems:
        logger.info("ledger: %d equations, every one with a test", len(equations(app.env)))
        return
    text = f"the claim ledger has {len(problems)} problems:\n  " + "\n  ".join(problems)
    if os.environ.get("DIFFNUM_LEDGER") == "off":
        logger.info("DIFFNUM_LEDGER=off: the claim ledger has %d problems, the first: %s", len(problems), problems[0])
        return
    raise ExtensionError(text)


# -- what the reader sees ---------------------------------------------------------------------------------------------


class ledger_details(nodes.General, nodes.Element):
    """A block that opens on a click; its first child is the summary."""


class ledger_summary(nodes.General, nodes.TextElement):
    """The visible line of a `ledger_details`."""


class ledger_table(nodes.General, nodes.Element):
    """Place of a table of equations, filled in when the page is written."""


class Ledger(SphinxDirective):
    """The table equation, functions, tests of this page, or of the whole book with ``:all:``."""

    option_spec: ClassVar = {"all": lambda argument: True}

    def run(self) -> list[nodes.Node]:
        """Leave a placeholder; numbers and links are known only after all pages have been read."""
        return [ledger_table("", page=None if "all" in self.options else self.env.docname)]


def _tag(name: str) -> tuple[Any, Any]:
    def visit(translator: Any, node: nodes.Element) -> None:
        translator.body.append(translator.starttag(node, name, ""))

    def depart(translator: Any, node: nodes.Element) -> None:
        translator.body.append(f"</{name}>")

    return visit, depart


def _skip(translator: Any, node: nodes.Element) -> None:
    raise nodes.SkipNode


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the block under each labelled equation and fill in the tables."""
    tables = list(doctree.findall(ledger_table))
    if app.builder.format != "html":
        for placeholder in tables:
            placeholder.parent.remove(placeholder)
        return
    entries = _sources(app).by_label()
    for block in list(doctree.findall(nodes.math_block)):
        if block.get("label"):
            index = block.parent.index(block)
            block.parent.insert(index + 1, _details(app, docname, *entries.get(block["label"], ([], []))))
    for placeholder in tables:
        placeholder.replace_self(_table(app, docname, equations(app.env, placeholder["page"]), entries))


def _details(app: Sphinx, docname: str, functions: list[Code], tests: list[Code]) -> nodes.Element:
    counts = [_count(len(codes), word) for codes, word in ((functions, "function"), (tests, "test")) if codes]
    summary = " · ".join(counts) or "no test"
    block = ledger_details("", ledger_summary("", summary), classes=["ledger"])
    for title, codes in (("Implemented by", functions), ("Tested by", tests)):
        if codes:
            block += nodes.paragraph("", title, classes=["ledger-title"])
            block += _links(app, docname, codes)
    return block


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _links(app: Sphinx, docname: str, codes: list[Code]) -> nodes.Element:
    items = [nodes.list_item("", nodes.paragraph("", "", _link(app, docname, code))) for code in codes]
    return nodes.bullet_list("", *items, classes=["ledger-list"])


def _link(app: Sphinx, docname: str, code: Code) -> nodes.Element:
    """Link to a function in the API reference, or to a test in its published source."""
    uri = app.builder.get_relative_uri
    if code.path.startswith("tests/"):
        target = f"{uri(docname, _test_page(code.path))}#{code.name}"
        own = code.path == f"tests/{Path(docname).with_name(f'test_{Path(docname).name}.py').as_posix()}"
        text = ("" if own else f"{Path(code.path).name}::") + code.name.replace(".", "::")
    else:
        entry = app.env.get_domain("py").objects.get(code.name)  # type: ignore[attr-defined]
        text = code.name.removeprefix("diffnum.")
        if entry is None:
            return nodes.literal(text, text)
        target = f"{uri(docname, entry.docname)}#{entry.node_id}"
    return nodes.reference("", "", nodes.literal(text, text), refuri=target, internal=True)


def _test_page(path: str) -> str:
    return f"{TEST_PAGES}/{Path(path).relative_to('tests').with_suffix('').as_posix()}"


def _table(
    app: Sphinx, docname: str, labels: list[str], entries: dict[str, tuple[list[Code], list[Code]]]
) -> nodes.Node:
    if not labels:
        return nodes.paragraph("", "This page has no labelled equation.")
    head = nodes.row("", *[nodes.entry("", nodes.paragraph("", text)) for text in ("Equation", "Functions", "Tests")])
    body = nodes.tbody()
    for label in sorted(labels, key=lambda label: _order(app.env, label)):
        functions, tests = entries.get(label, ([], []))
        page = _defined(app.env)[label][0]
        target = f"{app.builder.get_relative_uri(docname, page)}#{_anchor(label)}"
        text = f"({number(app.env, label)})"
        link = nodes.paragraph(
            "",
            "",
            nodes.reference("", text, refuri=target, internal=True),
            nodes.Text(" "),
            nodes.literal(label, label),
        )
        cells = [_links(app, docname, codes) if codes else nodes.paragraph("", "none") for codes in (functions, tests)]
        body += nodes.row("", nodes.entry("", link), *[nodes.entry("", cell) for cell in cells])
    group = nodes.tgroup("", *[nodes.colspec(colwidth=1) for _ in range(3)], nodes.thead("", head), body, cols=3)
    return nodes.table("", group, classes=["ledger-table"])


def _order(env: BuildEnvironment, label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number(env, label).split("."))


def test_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page with the source of each test file, an anchor at each test, and links back to the equations."""
    tests = defaultdict(list)
    for test in _sources(app).tests:
        tests[test.path].append(test)
    known = _defined(app.env)
    for path, codes in sorted(tests.items()):
        page = _test_page(path)
        source = (_root(app) / path).read_text(encoding="utf-8")
        lines = app.builder.highlighter.highlight_block(source, "python").splitlines()  # type: ignore[attr-defined]
        before, after = lines[0].split("<pre>")
        lines[0:1] = [before + "<pre>", after]
        for code in codes:
            back = "".join(_back(app, page, label) for label in code.labels if label in known)
            lines[code.start] = f'<div class="viewcode-block" id="{code.name}">{back}{lines[code.start]}'
            lines[min(code.end, len(lines) - 1)] += "</div>"
        body = f"<h1>{html.escape(path)}</h1>\n<p>The numbers lead back to the equations that a test claims.</p>\n"
        yield page, {"title": path, "body": body + "\n".join(lines), "parents": []}, "page.html"


def _anchor(label: str) -> str:
    """The id of an equation in its page."""
    return nodes.make_id(f"equation-{label}")


def _back(app: Sphinx, page: str, label: str) -> str:
    target = app.builder.get_relative_uri(page, _defined(app.env)[label][0])
    return f'<a class="ledger-back" href="{target}#{_anchor(label)}">({number(app.env, label)})</a>'


def publish(app: Sphinx) -> None:
    """Write ``equations.json``: label, number, page, LaTeX, functions and tests of each equation."""
    entries = _sources(app).by_label()
    env, records = app.env, []
    for label in sorted(equations(env), key=lambda label: _order(env, label)):
        page = _defined(env)[label][0]
        functions, tests = entries.get(label, ([], []))
        records.append(
            {
                "label": label,
                "number": number(env, label),
                "page": page,
                "url": f"{app.builder.get_target_uri(page)}#{_anchor(label)}",
                "latex": _latex(env).get(page, {}).get(label, ""),
                "functions": [_record(code) for code in functions],
                "tests": [_record(code) for code in tests],
            }
        )
    text = json.dumps(records, indent=1, ensure_ascii=False) + "\n"
    (Path(app.outdir) / "equations.json").write_text(text, encoding="utf-8")


def _record(code: Code) -> dict[str, Any]:
    record = asdict(code)
    return {"name": record["name"], "file": record["path"], "line": record["start"]}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the ledger to the build."""
    for node, name in ((ledger_details, "details"), (ledger_summary, "summary")):
        app.add_node(node, html=_tag(name), text=(_skip, None), latex=(_skip, None))
    app.add_node(ledger_table)
    app.add_directive("ledger", Ledger)
    app.connect("builder-inited", load_sources)
    app.connect("doctree-read", collect_latex)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", changed_pages)
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", test_pages)
    app.connect("build-finished", fail)
    version = int(hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8], 16)
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
