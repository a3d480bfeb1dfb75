"""The built site in a headless browser: offline, without errors, legible in light, in dark and on a phone.

Build it first (`make book`). Skips where there is no site or no Chromium; CHROMIUM names the program.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(os.environ.get("DIFFNUM_SITE", ROOT / "_build" / "html"))
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FILES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")) if SITE.is_dir() else []
PAGES = [name for name in FILES if not name.startswith("_static/")]  # there, the theme keeps its templates

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "is_mobile": True, "has_touch": True},
}

ALT_LENGTH = (30, 250)
SUFFIXES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
SETTLE = 100
"""Milliseconds for what a page still asks for once it is drawn."""
CONTRAST = 4.5
"""Least ratio of luminances between text and page: WCAG 2.2, level AA."""

FACTS = """() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const rgb = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const luminance = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const c = rgb(getComputedStyle(n).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const contrast = (node) => {
    const [a, b] = [luminance(rgb(getComputedStyle(node).color)), luminance(background(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const counts = {};
  for (const node of all("[id]")) counts[node.id] = (counts[node.id] || 0) + 1;
  const article = (query) => all(".bd-article " + query);
  return {
    width: document.documentElement.scrollWidth,
    theme: document.documentElement.dataset.theme,
    math: article(".math").length,
    unset: article(".math").filter((n) => !n.querySelector("mjx-container")).length,
    wide: article("div.math mjx-container").filter((n) => n.scrollWidth > n.clientWidth + 1)
      .map((n) => n.closest("div.math").id),
    errors: all("mjx-merror, [data-mjx-error], .MathJax_Error").length,
    raw: article("p, li, td").map((n) => n.innerText).filter((t) => /\\\\\\(|\\\\\\[|\\$\\$/.test(t)).slice(0, 3),
    duplicates: Object.keys(counts).filter((id) => counts[id] > 1),
    text: article("p, li, td, figcaption, summary, h1, h2, code")
      .filter((n) => n.innerText && n.offsetParent)
      .map((n) => [contrast(n), n.tagName, n.innerText.slice(0, 40)])
      .sort((a, b) => a[0] - b[0])
      .slice(0, 1),
    images: all("main img, article img").map((n) => ({
      alt: n.getAttribute("alt"),
      caption: n.closest("figure")?.querySelector(".caption-text")?.innerText ?? "",
      loaded: n.complete && n.naturalWidth > 0,
      filter: getComputedStyle(n).filter,
      data: n.classList.contains("data"),
      figure: Boolean(n.closest("figure")),
    })),
  };
}"""


@pytest.fixture(scope="module")
def address():
    """Where the site is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    """Chromium, started once for this file."""
    if not CHROMIUM:
        pytest.skip("no Chromium found; install it or set CHROMIUM to look at the site")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright comes with the extra `dev`")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def test_there_is_a_site():
    if not PAGES:
        pytest.skip(f"no site in {SITE}; run `make book` first")
    assert "index.html" in PAGES
    assert len(PAGES) > 10


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", PAGES)
def test_page(browser, address, page, view):
    context = browser.new_context(**VIEWS[view])
    try:
        tab = context.new_page()
        complaints: list[str] = []
        tab.on(
            "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
        )
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: complaints.append(request.url) if not _local(request.url, address) else None)
        tab.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        tab.on(
            "response", lambda reply: complaints.append(f"{reply.status}: {reply.url}") if reply.status >= 400 else None
        )
        tab.goto(address + page, wait_until="load")
        tab.evaluate("() => window.MathJax?.startup?.promise.then(() => true)")
        tab.evaluate("() => document.fonts.ready.then(() => true)")
        tab.wait_for_timeout(SETTLE)
        facts = tab.evaluate(FACTS)
    finally:
        context.close()
    assert not complaints
    assert facts["width"] <= VIEWS[view]["viewport"]["width"], "the page scrolls sideways"
    assert facts["theme"] == ("dark" if view == "dark" else "light")
    assert facts["errors"] == facts["unset"] == 0, "mathematics that is not rendered"
    if view != "phone":
        assert not facts["wide"], "equations that a reader must scroll"
    assert not facts["raw"]
    assert not facts["duplicates"]
    for contrast, *what in facts["text"]:
        assert contrast >= CONTRAST, f"too little contrast: {what}"
    for image in facts["images"]:
        assert image["loaded"]
        check_alt(image["alt"], image["caption"])
        if view == "dark" and not image["data"]:
            assert "invert" in image["filter"], "a figure that stays white in the dark"


def _local(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


def check_alt(alt: str | None, caption: str) -> None:
    """Demand a description: there, of a sensible length, no path, not the caption again."""
    assert alt is not None
    assert ALT_LENGTH[0] <= len(alt) <= ALT_LENGTH[1], f"{len(alt)} characters: {alt!r}"
    assert not alt.lower().endswith(SUFFIXES)
    assert not re.fullmatch(r"\S*/\S*", alt)
    assert alt.strip() != caption.strip()


@pytest.mark.parametrize(
    ("alt", "caption"),
    [
        (None, ""),
        ("", ""),
        ("A curve.", ""),
        ("../_images/0123456789abcdef0123456789abcdef.png", ""),
        ("A long description of the curve that ends in a name.png", ""),
        ("x" * 251, ""),
        ("A caption, repeated word for word as a description", "A caption, repeated word for word as a description"),
    ],
)
def test_the_check_of_descriptions_fails_where_it_should(alt, caption):
    with pytest.raises(AssertionError):
        check_alt(alt, caption)


def test_a_phone_can_open_the_ledger(browser, address):
    """The block under an equation opens from the keyboard, and its links lead somewhere."""
    page = next((name for name in PAGES if '<details class="ledger' in (SITE / name).read_text(encoding="utf-8")), None)
    if page is None:
        pytest.skip("no chapter with a labelled equation")
    context = browser.new_context(**VIEWS["phone"])
    try:
        tab = context.new_page()
        tab.goto(address + page, wait_until="networkidle")
        summary = tab.locator("details.ledger > summary").first
        summary.focus()
        tab.keyboard.press("Enter")
        assert tab.locator("details.ledger").first.get_attribute("open") is not None
        link = tab.locator("details.ledger").first.locator("a").last
        link.click()
        tab.wait_for_load_state("networkidle")
        target = unquote(urlsplit(tab.url).fragment)
        assert tab.evaluate("(id) => document.getElementById(id) !== null", target)
    finally:
        context.close()


# -- links, without a browser -----------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Collects the targets and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(found["id"] or "")
        for key in ("href", "src"):
            if found.get(key) and tag in {"a", "img", "script", "link"}:
                self.targets.append(found[key] or "")


@functools.cache
def links(page: str) -> Links:
    """Parse a page once."""
    parser = Links()
    parser.feed((SITE / page).read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("page", PAGES)
def test_internal_links_lead_somewhere(page):
    for target in links(page).targets:
        parts = urlsplit(target)
        if parts.scheme in {"http", "https", "mailto", "data", "javascript"}:
            continue
        path = (SITE / page).parent / unquote(parts.path) if parts.path else SITE / page
        assert path.resolve().exists(), f"{page}: {target}"
        if parts.fragment and path.suffix == ".html":
            anchors = links(path.resolve().relative_to(SITE.resolve()).as_posix()).anchors
            assert unquote(parts.fragment) in anchors, f"{page}: {target}"


def test_nothing_on_the_site_is_loaded_from_elsewhere():
    """No script, style sheet, font or image with an address of another host."""
    if not PAGES:
        pytest.skip(f"no site in {SITE}; run `make book` first")
    for page in PAGES:
        text = (SITE / page).read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//[^\"]+", text), page
        assert not re.findall(r"<link[^>]+rel=\"(?:stylesheet|preload|icon)\"[^>]+href=\"(?:https?:)?//[^\"]+", text), (
            page
        )
    for style in SITE.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')]+", style.read_text(encoding="utf-8")), (
            style
        )
