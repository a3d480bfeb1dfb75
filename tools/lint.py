"""Static checks, all of them even if one fails: ruff (rules and format), basedpyright, numpydoc, import contract."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))


def checks() -> dict[str, list[str]]:
    """Name -> command."""
    public = [path for path in (ROOT / "diffnum").rglob("*.py") if not path.name.startswith("_")]
    return {
        "rules": [sys.executable, "-m", "ruff", "check", "-q", "."],
        "format": [sys.executable, "-m", "ruff", "format", "-q", "--check", "."],
        "types": [str(SCRIPTS / "basedpyright"), "--level", "error"],
        "numpydoc": [sys.executable, "-m", "numpydoc", "lint", *sorted(str(path.relative_to(ROOT)) for path in public)],
        "imports": [str(SCRIPTS / "lint-imports"), "--no-cache"],
    }


def main() -> int:
    """Run the checks; print the output of those that fail."""
    failed = []
    for name, command in checks().items():
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(name)
            print(f"--- {name}\n{done.stdout}{done.stderr}")
    if failed:
        print(f"lint: FAILED: {', '.join(failed)}")
        return 1
    print(f"lint: passed: {', '.join(checks())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
