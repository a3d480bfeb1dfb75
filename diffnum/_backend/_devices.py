"""Programs over several devices, under JAX."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ._arrays import Array

__all__ = [
    "device_number",
    "over_devices",
    "shard",
]


def shard(function: Callable[..., Any], mesh: Any, inputs: Any, outputs: Any) -> Any:
    """`function` of the parts of arrays that one device holds, as a function of whole arrays (JAX).

    Parameters
    ----------
    function : callable
        Of local arrays; it may sum over devices by `over_devices`.
    mesh : jax.sharding.Mesh
        The devices.
    inputs, outputs : pytree of tuple
        For each array the names of mesh axes, or None, by which its axes are divided.

    Returns
    -------
    callable
        A function of global arrays.
    """
    import jax

    def specs(tree: Any) -> Any:
        return jax.tree.map(lambda t: jax.P(*t), tree, is_leaf=lambda t: isinstance(t, tuple) and not _nested(t))

    return jax.shard_map(function, mesh=mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False)


def _nested(names: tuple[Any, ...]) -> bool:
    return any(isinstance(name, tuple) for name in names)


def over_devices(kind: str, x: Array, axis: Any) -> Array:
    """Sum, largest or least of `x` over the devices along a mesh axis, inside `shard`; `x` itself where axis is None.

    Parameters
    ----------
    kind : {"sum", "max", "min"}
        What to compute.
    x : array
        Local array.
    axis : str, tuple of str or None
        Names of mesh axes.

    Returns
    -------
    array
        The same on all of them.
    """
    if axis is None:
        return x
    lax = sys.modules["jax"].lax
    return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[kind](x, axis)


def device_number(axis: Any) -> Array:
    """Place of this device along a mesh axis, inside `shard`.

    Parameters
    ----------
    axis : str
        Name of a mesh axis.

    Returns
    -------
    array of int
        From 0.
    """
    return sys.modules["jax"].lax.axis_index(axis)
