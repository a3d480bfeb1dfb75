"""Sphinx configuration: ``sphinx-build -j 2 -n -W --keep-going -c . book _build/html``.

Book and API reference are one project, so that an equation number in a docstring is a link. The site needs no
network and no Node: MathJax is shipped with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
sys.path.insert(0, str(ROOT))

DEVELOPMENT = os.environ.get("DIFFNUM_LEDGER") == "off"
"""Chapters may be missing and the ledger may have gaps; never set in CI."""

# -- project ----------------------------------------------------------------------------------------------------------

project = "diffnum"
author = "the diffnum authors"
copyright = "2026, the diffnum authors. Apache License 2.0"
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_codeautolink",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_exercise",
    "sphinx_proof",
    "sphinx_togglebutton",
    "sphinxcontrib.bibtex",
    "house",
    "ledger",
]
exclude_patterns = ["_ext", "_static", "**.ipynb_checkpoints"]
nitpicky = True
bibtex_bibfiles = ["book/references.bib"]
bibtex_reference_style = "author_year"
suppress_warnings: list[str] = []

# -- numbering: chapter.number for equations, figures and theorems ----------------------------------------------------

numfig = True
numfig_secnum_depth = 1
math_numfig = True
math_eqref_format = "({number})"

# -- pages that execute -----------------------------------------------------------------------------------------------


def _cache_key() -> str:
    """Hash of everything a page's output depends on besides its own cells."""
    digest = hashlib.sha256(sys.version.encode())
    for path in [*sorted((ROOT / "diffnum").rglob("*.py")), *sorted(ROOT.glob("constraints*.txt"))]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _prune(current: Path, keep: int = 6) -> None:
    """Remove the execution caches of older library versions."""
    caches = sorted(current.parent.glob(".jupyter_cache-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in [path for path in caches if path != current][keep - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "_build" / f".jupyter_cache-{_cache_key()}")
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_output_stderr = "error"
nb_merge_streams = True
nb_number_source_lines = False


def _quiet_kernels(folder: Path) -> None:
    """Configure kernels apart from the user's own settings; their advice about sockets is no message of a page."""
    profile = folder / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n", encoding="utf-8")


_quiet_kernels(ROOT / "_build" / ".ipython")
os.environ |= {
    "IPYTHONDIR": str(ROOT / "_build" / ".ipython"),
    "JAX_PLATFORMS": "cpu",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
}

# -- mark-up ----------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
codeautolink_autodoc_inject = False
codeautolink_warn_on_missing_inventory = False
codeautolink_global_preface = ""
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
togglebutton_hint = "Show"
togglebutton_hint_hide = "Hide"
viewcode_line_numbers = True

# -- site -------------------------------------------------------------------------------------------------------------

html_theme = "sphinx_book_theme"
html_title = "diffnum"
html_static_path = ["book/_static"]
html_favicon = "book/_static/favicon.svg"
html_css_files = ["book.css"]
html_context = {"default_mode": "auto"}
html_copy_source = False
html_domain_indices = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "navbar_persistent": [],
    "show_toc_level": 2,
    "show_navbar_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {
    "tex": {
        "macros": {
            "E": r"\mathbb{E}",
            "R": r"\mathbb{R}",
            "Var": r"\operatorname{Var}",
            "Cov": r"\operatorname{Cov}",
            "softmax": r"\operatorname{softmax}",
            "diag": r"\operatorname{diag}",
            "expit": r"\operatorname{expit}",
            "logit": r"\operatorname{logit}",
            "dd": r"\mathrm{d}",
            "bx": r"\boldsymbol{x}",
        }
    },
    # The menu and the accessibility explorer load further files on demand; the site ships without them.
    "options": {"enableMenu": False, "menuOptions": {"settings": {"assistiveMml": True}}},
}


def setup(app: Any) -> dict[str, bool]:
    """Remove the execution caches of older library versions."""
    _prune(Path(nb_execution_cache_path))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
