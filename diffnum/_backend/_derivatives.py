"""Derivatives written by hand, and derivatives as maps, in the libraries that take derivatives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_compat

from ._arrays import Array, is_jax

__all__ = [
    "differentiable",
    "differentiate_as",
    "join",
    "linearised",
]


def differentiable(x: Array) -> bool:
    """Whether the library of `x` differentiates: JAX or PyTorch.

    Parameters
    ----------
    x : array
        Any array.

    Returns
    -------
    bool
        False for NumPy and others.
    """
    return is_jax(x) or array_api_compat.is_torch_array(x)


def linearised(function: Callable[[Array], Array], x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """``function(x)`` and its Jacobian J there as a linear map, evaluated once for all directions.

    Parameters
    ----------
    function : callable
        ``function(x)``, of the shape of `x`.
    x : array
        A JAX array or PyTorch tensor.

    Returns
    -------
    tuple of array and callable
        The value, and a map of directions, stacked along a new first axis, to ``J e`` (JAX) or ``J^T e`` (PyTorch),
        whichever that library computes with the operators it has; ``e . J e`` is the same number. Derivatives pass.

    Raises
    ------
    TypeError
        If `x` belongs to a library without derivatives.
    """
    if is_jax(x):
        jax = sys.modules["jax"]
        value, product = jax.linearize(function, x)
        return value, jax.vmap(product)
    if array_api_compat.is_torch_array(x):
        torch = sys.modules["torch"]
        value, product = torch.func.vjp(function, x)
        return value, lambda directions: torch.stack([product(e)[0] for e in directions])
    msg = f"x must be an array of JAX or PyTorch to be differentiated, got {type(x).__name__}"
    raise TypeError(msg)


def differentiate_as(value: Callable[..., Any], twin: Callable[..., Any], *args: Array) -> Any:
    """``value(*args)``, whose derivatives are those of an equal function that is cheaper to differentiate.

    Parameters
    ----------
    value : callable
        ``value(*args) -> tuple of arrays``: computed, never differentiated.
    twin : callable
        ``twin(out, *args)`` equals ``value(*args)`` when ``out`` does; derivatives to any order are taken of it with
        respect to `args`, `out` held constant.
    *args : array
        Floating-point arrays; all differentiable inputs must be among them.

    Returns
    -------
    tuple of array
        ``value(*args)``.
    """
    if any(is_jax(a) for a in args):
        jax = sys.modules["jax"]

        def rule(primals: Any, tangents: Any) -> Any:
            out = function(*primals)
            held = jax.lax.stop_gradient(out)
            return out, jax.jvp(lambda *a: twin(held, *a), primals, tangents)[1]

        # Under nested transformations JAX may hand over NumPy arrays.
        function = jax.custom_jvp(lambda *a: value(*map(jax.numpy.asarray, a)))
        function.defjvp(rule)
        return function(*args)
    if any(array_api_compat.is_torch_array(a) for a in args):
        return _torch_function(value, twin).apply(*args)
    return value(*args)


def _torch_function(value: Callable[..., Any], twin: Callable[..., Any]) -> Any:
    torch = sys.modules["torch"]

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return value(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs, *output)
            ctx.save_for_forward(*inputs, *output)
            ctx.split = len(inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            args, out = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
            held = tuple(o.detach() for o in out)
            return torch.func.vjp(lambda *a: twin(held, *a), *args)[1](cotangents)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            args, out = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
            return torch.func.jvp(lambda *a: twin(out, *a), args, tangents)[1]

    return Function


def join(
    value: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: tuple[Any, ...],
    constants: tuple[Any, ...],
) -> tuple[Any, ...]:
    """``value(inputs, constants)``, whose derivatives in reverse mode are a pair of functions written by hand.

    Parameters
    ----------
    value : callable
        ``value(inputs, constants) -> tuple of arrays``, where no derivative is asked for.
    forward : callable
        ``forward(inputs, constants, wanted) -> (outputs, residuals)``, flat tuples; `wanted` says for which inputs.
    backward : callable
        ``backward(inputs, constants, residuals, cotangents, wanted) -> tuple``, one array or None for each input; a
        cotangent that is known to be zero is None.
    inputs : tuple of array or None
        What derivatives are taken with respect to.
    constants : tuple of array or None
        Whatever else is an array.

    Returns
    -------
    tuple of array
        The outputs.
    """
    present = [a for a in (*inputs, *constants) if a is not None]
    if any(is_jax(a) for a in present):
        return _jax_join(value, forward, backward)(inputs, constants)
    if any(array_api_compat.is_torch_array(a) for a in present):
        wanted = tuple(getattr(a, "requires_grad", False) for a in inputs)
        if any(wanted) and sys.modules["torch"].is_grad_enabled():
            return _torch_join(forward, backward, constants, wanted)(*inputs)
    return value(inputs, constants)


def _jax_join(value: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    import jax

    def forth(inputs: Any, constants: Any) -> Any:
        leaf = jax.custom_derivatives.CustomVJPPrimal
        # inside a loop, JAX hands on what does not change as arrays of NumPy's kind
        held = jax.tree.map(
            lambda a: jax.numpy.asarray(a.value), (inputs, constants), is_leaf=lambda a: isinstance(a, leaf)
        )
        wanted = tuple(a is not None and a.perturbed for a in inputs)
        outputs, residuals = forward(*held, wanted)
        # what is wanted is static: it travels in the structure of the residuals
        return outputs, (*held, residuals, tuple(() if w else None for w in wanted))

    def back(saved: Any, cotangents: Any) -> Any:
        *held, marks = saved
        held = jax.tree.map(jax.numpy.asarray, held)
        zero = jax.custom_derivatives.SymbolicZero
        known = tuple(
            None if c is None or isinstance(c, zero) or c.dtype == jax.dtypes.float0 else c for c in cotangents
        )
        return backward(*held, known, tuple(m is not None for m in marks)), None

    function = jax.custom_vjp(value)
    function.defvjp(forth, back, symbolic_zeros=True)
    return function


def _torch_join(
    forward: Callable[..., Any], backward: Callable[..., Any], constants: tuple[Any, ...], wanted: tuple[bool, ...]
) -> Any:
    torch = sys.modules["torch"]
    parts: list[int] = []

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            outputs, residuals = forward(inputs, constants, wanted)
            parts[:] = [len(inputs), len(outputs)]
            return (*outputs, *residuals)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            held = output[parts[1] :]
            ctx.mark_non_differentiable(*(a for a in output if a is not None and not a.is_floating_point()))
            ctx.mark_non_differentiable(*(a for a in held if a is not None))
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*inputs, *held)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            inputs, residuals = ctx.saved_tensors[: parts[0]], ctx.saved_tensors[parts[0] :]
            return backward(inputs, constants, residuals, cotangents[: parts[1]], wanted)

    return lambda *inputs: Function.apply(*inputs)[: parts[1]]
