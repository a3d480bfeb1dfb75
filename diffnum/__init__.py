"""Numerics of diffusion models: schedules, grids, paths, solvers and oracles as pure functions.

Modules are imported when they are first used: ``import diffnum`` costs nothing, ``diffnum.solvers`` is there.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import importlib.util

    if name == "__version__":
        from importlib.metadata import version

        return version("diffnum")
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    import pkgutil

    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted([*(name for name in modules if not name.startswith("_")), "__version__"])
