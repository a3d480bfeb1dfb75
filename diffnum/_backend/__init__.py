"""What the library asks of an array library: a namespace, a loop over rows, normal draws.

This is the only module that knows which array library it runs on. NumPy and SciPy are always there; JAX and PyTorch
are looked up only when an array of theirs arrives, so importing ``diffnum`` imports neither.

One concern a file. The rest of the library imports from here.
"""

from __future__ import annotations

from ._arrays import (
    Array,
    asfloat,
    beside,
    cast,
    columns,
    concrete,
    constant,
    convert,
    copy,
    exp_of_temporary,
    filled,
    hypot,
    is_jax,
    matches,
    matmul,
    namespace,
    own,
    read_only,
    slice_axis,
    state_dtype,
    top_k,
    writes,
)
from ._derivatives import differentiable, differentiate_as, join, linearised
from ._devices import device_number, over_devices, shard
from ._draws import add_normal, check_rng, draw_ahead, fine_uniform, normal, random_words, uniform, zeros_for
from ._loops import add_rows, add_scaled, put, registers, scan, scratch, subtract_at, while_loop, write
from ._matrices import difference, settled, sum_of_rows, workspace

__all__ = [
    "Array",
    "add_normal",
    "add_rows",
    "add_scaled",
    "asfloat",
    "beside",
    "cast",
    "check_rng",
    "columns",
    "concrete",
    "constant",
    "convert",
    "copy",
    "device_number",
    "difference",
    "differentiable",
    "differentiate_as",
    "draw_ahead",
    "exp_of_temporary",
    "filled",
    "fine_uniform",
    "hypot",
    "is_jax",
    "join",
    "linearised",
    "matches",
    "matmul",
    "namespace",
    "normal",
    "over_devices",
    "own",
    "put",
    "random_words",
    "read_only",
    "registers",
    "scan",
    "scratch",
    "settled",
    "shard",
    "slice_axis",
    "state_dtype",
    "subtract_at",
    "sum_of_rows",
    "top_k",
    "uniform",
    "while_loop",
    "workspace",
    "write",
    "writes",
    "zeros_for",
]
