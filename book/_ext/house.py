"""What this book asks of Sphinx beyond its extensions: two repairs, and three gates that the extensions do not have.

Repairs: sphinx-proof lacks the merge hook that a parallel read needs, and sphinx-codeautolink fails on the untitled
sections inside proofs and exercises, which in turn repeat one id. Gates: alternative text, execution time, links.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.execute import cache
from myst_nb.core.execute.base import ExecutionError
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx_codeautolink.extension.block import CodeBlockAnalyser
from sphinx_proof.domain import ProofDomain

logger = logging.getLogger(__name__)

BUDGET = 8.0
"""Seconds of processor time that a page may execute, the start of its kernel included."""
BUDGET_HARD = 16.0
"""Seconds above which the build fails: twice the budget, since processors differ."""
ALT_LENGTH = (30, 250)
"""Characters of an alternative text."""
SHARED_IDS = ("proof", "proof-content", "exercise-content", "solution-content")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PUNCTUATION = re.compile(r"[.,;:!?)\]\u2019\u201d]+|-\w+")
FILE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")


class ChapterError(ExecutionError):
    """A cell that failed, with its traceback: a parallel build shows the text of an exception and nothing more."""

    def __str__(self) -> str:
        """Path of the page, then the cell and its traceback without colours."""
        return f"{super().__str__()}\n{ANSI.sub('', str(self.__cause__))}"


def execute_timed(*arguments: Any, **options: Any) -> Any:
    """Run a notebook and record the processor time of its kernel, which a busy machine does not stretch."""
    before = _children_seconds()
    result = single_nb_execution(*arguments, **options)
    used = _children_seconds() - before
    if used > 0:
        result.time = used
    return result


def _children_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


def repair_extensions() -> None:
    """Give sphinx-proof its merge hook (the data travel by another event), guard codeautolink's empty stack."""
    cache.single_nb_execution = execute_timed
    cache.ExecutionError = ChapterError
    ProofDomain.merge_domaindata = lambda self, docnames, otherdata: None
    CodeBlockAnalyser.depart_section = lambda self, node: self.title_stack and self.title_stack.pop()


def unique_ids(app: Sphinx, doctree: nodes.document) -> None:
    """Number the ids that all proofs, and the bodies of all theorems, exercises and solutions of a page share."""
    seen = 0
    for node in doctree.findall(lambda node: isinstance(node, nodes.section | nodes.admonition)):
        if len(node["ids"]) == 1 and node["ids"][0] in SHARED_IDS:
            seen += 1
            node["ids"] = [f"{node['ids'][0]}-{seen}"]


def shorten_listings(app: Sphinx, doctree: nodes.document) -> None:
    """Leave out the docstring of library code that a chapter shows; the API reference prints it."""
    for block in doctree.findall(nodes.literal_block):
        path = Path(block.get("source") or "")
        if path.suffix == ".py" and "diffnum" in path.parts:
            text = without_docstring(block.astext())
            block.rawsource = text
            block[:] = [nodes.Text(text)]


def keep_punctuation(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the punctuation after an inline formula on its line."""
    for formula in list(doctree.findall(nodes.math)):
        parent, after = formula.parent, formula.next_node(descend=False, siblings=True)
        if not isinstance(after, nodes.Text):
            continue
        match = PUNCTUATION.match(after)
        if match:
            index = parent.index(formula)
            parent[index : index + 2] = [
                nodes.inline("", "", formula, nodes.Text(match.group()), classes=["nobreak"]),
                nodes.Text(after[match.end() :]),
            ]


def without_docstring(source: str) -> str:
    """`source` of one function or class without its docstring; unchanged if it is anything else."""
    try:
        (node,) = ast.parse(textwrap.dedent(source)).body
    except (SyntaxError, ValueError):
        return source
    is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
    if not is_definition or ast.get_docstring(node) is None or len(node.body) < 2:
        return source
    lines = source.splitlines()
    before, after = lines[: node.body[0].lineno - 1], lines[node.body[0].end_lineno :]
    while after and not after[0].strip():
        after = after[1:]
    return "\n".join([*before, *after]) + "\n"


def alt_problem(alt: str, caption: str = "") -> str | None:
    """What is wrong with an alternative text, or None.

    Parameters
    ----------
    alt : str
        The text; MyST-NB puts the path of the image where none was given.
    caption : str, optional
        The caption of the figure.

    Returns
    -------
    str or None
        The complaint.
    """
    alt = alt.strip()
    low, high = ALT_LENGTH
    if not alt:
        return "has no alternative text"
    if alt.lower().endswith(FILE_SUFFIXES) or "jupyter_execute" in alt:
        return f"has a path for an alternative text: {alt!r}"
    if not low <= len(alt) <= high:
        return f"has an alternative text of {len(alt)} characters, not {low} to {high}: {alt!r}"
    if caption and alt == caption.strip():
        return "has an alternative text that repeats its caption"
    return None


def check_alt(app: Sphinx, doctree: nodes.document) -> None:
    """Demand a description of every figure and image."""
    for image in doctree.findall(nodes.image):
        figure = image.parent if isinstance(image.parent, nodes.figure) else None
        captions = [child.astext() for child in figure if isinstance(child, nodes.caption)] if figure else []
        problem = alt_problem(image.get("alt") or "", *captions[:1])
        if problem:
            name = figure["names"][0] if figure and figure["names"] else image["uri"]
            page = Path(doctree["source"]).name
            logger.warning(
                "%s: the figure %s %s", page, name, problem, location=app.env.docname, type="house", subtype="alt"
            )


def trim_missing(app: Sphinx, docname: str, source: list[str]) -> None:
    """While developing, drop contents entries of pages that do not exist yet."""
    if os.environ.get("DIFFNUM_LEDGER") != "off" or docname != "index":
        return
    folder, lines, inside = Path(app.srcdir), [], False
    for line in source[0].splitlines():
        inside = line.startswith("```{toctree}") or (inside and not line.startswith("```"))
        entry = line.strip()
        is_entry = inside and entry and not entry.startswith((":", "`"))
        if not is_entry or (folder / f"{entry}.md").exists():
            lines.append(line)
    source[0] = "\n".join(lines) + "\n"


def check_budget(app: Sphinx, exception: Exception | None) -> None:
    """Report the processor time recorded for each page; fail far above the budget."""
    if exception is not None:
        return
    data = NbMetadataCollector.get_doc_data(app.env)
    runs = {page: data[page].get("exec_data") for page in sorted(data)}
    seconds = {page: run["runtime"] for page, run in runs.items() if run and run.get("runtime")}
    if not seconds:
        return
    logger.info("executed: %s", ", ".join(f"{page} {value:.1f} s" for page, value in seconds.items()))
    for page, value in seconds.items():
        if value > BUDGET:
            logger.info("budget: %s took %.1f s, above its %.0f s", page, value, BUDGET)
    over = [page for page, value in seconds.items() if value > BUDGET_HARD]
    if over and os.environ.get("DIFFNUM_LEDGER") != "off":
        msg = f"execution took more than {BUDGET_HARD:.0f} s: {', '.join(over)}"
        raise ExtensionError(msg)


def version(path: str) -> int:
    """Hash of an extension: pages that another version has read are read again."""
    return int(hashlib.sha256(Path(path).read_bytes()).hexdigest()[:8], 16)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the repairs and the gates."""
    repair_extensions()
    app.connect("source-read", trim_missing)
    app.connect("doctree-read", unique_ids)
    app.connect("doctree-read", shorten_listings, priority=100)  # before codeautolink reads the code
    app.connect("doctree-read", keep_punctuation)
    app.connect("doctree-read", check_alt)
    app.connect("build-finished", check_budget)
    return {"env_version": version(__file__), "parallel_read_safe": True, "parallel_write_safe": True}
