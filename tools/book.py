"""Build the site: `python tools/book.py [--jobs N] FOLDER` writes FOLDER/html. Every warning is an error."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run sphinx-build, and say in one line what to open."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    doctrees, site = options.folder / "doctrees", options.folder / "html"
    command = [sys.executable, "-m", "sphinx", "-j", str(options.jobs), "-n", "-W", "--keep-going", "-c", str(ROOT)]
    start = time.monotonic()
    code = subprocess.call([*command, "-d", str(doctrees), str(ROOT / "book"), str(site)], cwd=ROOT)
    if code:
        # Otherwise the next run would not read the offending page again, and would pass.
        shutil.rmtree(doctrees, ignore_errors=True)
        print("book: FAILED, see the warnings above")
        return code
    pages = sum(1 for _ in site.rglob("*.html"))
    print(f"book: {pages} pages in {time.monotonic() - start:.0f} s; open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
