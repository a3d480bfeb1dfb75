"""Backends under test: every numerical function is run on each of them and compared with float64 NumPy."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

# Tests run in two processes and their arrays are small: more threads only get in each other's way.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pytest

MODULES = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch", "strict": "array_api_strict"}

try:
    import jax
except ImportError:
    jax = None
else:
    jax.config.update("jax_enable_x64", True)


try:
    from hypothesis import settings
except ImportError:
    pass
else:
    # No deadline, since machines are shared; in CI the same examples every time.
    settings.register_profile("house", deadline=None)
    settings.register_profile("ci", deadline=None, derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "house")


def pytest_report_header() -> str:
    """Say which array libraries the tests run on, since a missing one only shows as skipped tests."""
    found = {name: importlib.util.find_spec(module.split(".")[0]) is not None for name, module in MODULES.items()}
    absent = [name for name, there in found.items() if not there]
    text = f"array libraries: {', '.join(name for name, there in found.items() if there)}"
    return f"{text}; NOT INSTALLED, tests skipped: {', '.join(absent)}" if absent else text


@dataclass(frozen=True)
class Backend:
    """An array library: `name`, its namespace `xp`, and conversions to and from NumPy."""

    name: str
    xp: Any

    def asarray(self, values: Any, dtype: str | None = "float64") -> Any:
        """Array of this library; `dtype` by name ('float32', 'float64', 'bfloat16', 'float16'); None keeps NumPy's."""
        values = np.asarray(values)
        if dtype is None:
            return self.xp.asarray(values)
        if dtype == "bfloat16":
            if self.name == "torch":
                return self.xp.asarray(values.astype("float32")).to(self.xp.bfloat16)
            return self.xp.asarray(values.astype("float32"), dtype=self.xp.bfloat16)
        return self.xp.asarray(values.astype(dtype))

    def numpy(self, array: Any) -> np.ndarray:
        """`array` as float64 NumPy (integers and booleans keep their kind)."""
        if self.name == "torch":
            array = array.detach()
            array = array.float() if str(array.dtype) == "torch.bfloat16" else array
        out = np.asarray(array)
        return out if out.dtype.kind in "iub" else out.astype("float64")

    def dtype(self, array: Any) -> str:
        """Name of the dtype of `array`, as NumPy spells it."""
        return str(array.dtype).rsplit(".", 1)[-1]


def make_backend(name: str) -> Backend:
    """The backend called `name`; skips the calling test where its library is not installed."""
    library = MODULES[name].split(".")[0]
    pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ImportError)
    return Backend(name, importlib.import_module(MODULES[name]))


@pytest.fixture(params=list(MODULES))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each array library in turn."""
    return make_backend(request.param)


@pytest.fixture
def numpy_backend() -> Backend:
    """NumPy alone."""
    return make_backend("numpy")
