"""Build the wheel, look into it, and import it from an empty folder: the package alone, with its type information."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Return 0 where the wheel holds what it should."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("diffnum-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        foreign = [name for name in names if not name.startswith(("diffnum/", "diffnum-"))]
        wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "diffnum").rglob("*.py")} | {"diffnum/py.typed"}
        lost = wanted - set(names)
        if foreign or lost:
            print(f"wheel: FAILED: beside the package {foreign}, missing {sorted(lost)}")
            return 1
        target = Path(folder) / "installed"
        subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
        code = f"import sys; sys.path.insert(0, {str(target)!r}); import diffnum.solvers as m; print(m.__file__)"
        where = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
        if not where.startswith(str(target)):
            print(f"wheel: FAILED: imported {where}")
            return 1
        print(f"wheel: passed: {wheel.name}, {len(names)} files, {wheel.stat().st_size // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
