"""Backends under test: every numerical function is run on each of them and compared with float64 NumPy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

MODULES = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch", "strict": "array_api_strict"}

try:
    import jax
except ImportError:
    jax = None
else:
    jax.config.update("jax_enable_x64", True)


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
