r"""Linear cross-entropy: the loss of hidden states against a vocabulary matrix, without the matrix of logits.

`linear_cross_entropy` computes the loss of N tokens over V classes from hidden states (N, d) and a weight (V, d), in
blocks of tokens and classes, with its derivatives; the (N, V) logits never exist. `linear_cross_entropy_and_grad`
returns the gradients as values. `softmax_embed`, `entropy`, `argmax`, `top_k` and `sample` ask the same logits other
questions. Derivation, error bounds, memory and what goes wrong otherwise: :doc:`/cross_entropy`.

Conventions: logits are ``z = softcap(scale (W h + bias))`` with ``softcap(r) = c tanh(r/c)``; natural logarithms; sums,
losses and statistics are held in float32 at least, whatever the inputs; a gradient has the dtype of its input.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from . import _backend
from ._arguments import choose
from ._linear_cross_entropy import statistics
from ._linear_loss import (
    SAVES,
    Extras,
    attach,
    losses,
    prepare,
    quantities,
    results,
    value_and_gradients,
    weigh,
)
from ._memory import Memory, linear_cross_entropy_bytes
from ._sharded_cross_entropy import sharded_linear_cross_entropy
from ._vocabulary import TopK, argmax, entropy, sample, softmax_embed, top_k

__all__ = [
    "Extras",
    "Gradients",
    "Memory",
    "TopK",
    "argmax",
    "entropy",
    "linear_cross_entropy",
    "linear_cross_entropy_and_grad",
    "linear_cross_entropy_bytes",
    "sample",
    "sharded_linear_cross_entropy",
    "softmax_embed",
    "top_k",
]

Array = Any
Reduction = Literal["mean", "sum", "none"]
Save = Literal["gradients", "logits", "nothing"]


class Gradients(NamedTuple):
    r"""Gradients of a loss, :eq:`cross_entropy-gradients`; None where there is no such input.

    Attributes
    ----------
    hidden : array
        Shape and dtype of the hidden states.
    weight : array
        Shape (V, d).
    bias : array or None
        Shape (V,).
    logit_scale : array or None
        Shape ().
    """

    hidden: Array
    weight: Array
    bias: Array | None
    logit_scale: Array | None


def linear_cross_entropy(
    hidden: Array,
    weight: Array,
    targets: Array,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    class_weight: Array | None = None,
    token_weight: Array | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    chunk: int | tuple[int, int] | None = None,
    accumulate: Literal["float32", "float64"] | None = None,
    save: Save = "gradients",
    derivatives: Literal["reverse", "all"] = "reverse",
    return_lse: bool = False,
    return_accuracy: bool = False,
) -> Any:
    r"""Cross-entropy of a linear layer with a softmax, :eq:`cross_entropy-loss`, in blocks.

    Parameters
    ----------
    hidden : array, shape (..., d)
        Hidden states of tokens; float16, bfloat16, float32 or float64.
    weight : array, shape (V, d)
        Vocabulary matrix.
    targets : array of int, shape (...)
        Classes in [0, V), or `ignore_index`.
    bias : array or None, optional
        Added to the logits, shape (V,).
    softcap : float or None, optional
        Bound c > 0 of the logits ``c tanh(z/c)``.
    logit_scale : array or float or None, optional
        Factor of the logits, shape (), before the soft-cap; differentiable.
    z_loss : float, optional
        Factor >= 0 of the squared log-sum-exp.
    label_smoothing : float, optional
        Share in [0, 1] of the target that is spread evenly over all V classes.
    class_weight : array or None, optional
        Weight of each class, shape (V,); a constant for derivatives.
    token_weight : array or None, optional
        Weight of each token, shape (...); differentiable.
    ignore_index : int or None, optional
        Target of tokens that do not count.
    reduction : {"mean", "sum", "none"}, optional
        "mean" divides by the sum of the weights ``token_weight * class_weight[target]`` of the counted tokens.
    chunk : int, (int, int) or None, optional
        Tokens, or (tokens, classes), handled at a time, >= 1. None keeps a block of logits within 128 MiB.
    accumulate : {"float32", "float64"} or None, optional
        dtype of logits, statistics, loss and accumulated gradients. None: that of the inputs, float32 at least.
    save : {"gradients", "logits", "nothing"}, optional
        What the forward sweep leaves for reverse mode: finished gradients (3 products; with ``reduction="none"`` the
        cotangents are not known then, and it is as "nothing"), logits in float16 (3 products, 2NV bytes), or the
        statistics alone (4 products).
    derivatives : {"reverse", "all"}, optional
        "reverse": the hand-written gradients; derivatives of these can be taken in JAX. "all": the sweep itself is
        differentiated, in any mode and to any order; `save` has no effect.
    return_lse, return_accuracy : bool, optional
        Whether to return `Extras` as well.

    Returns
    -------
    array, or tuple of array and Extras
        The loss, of shape () or (...), in the dtype of `accumulate`. It is 0, with zero gradients, where the weights of
        the counted tokens sum to 0.

    Raises
    ------
    ValueError
        If shapes do not fit, an option is out of its range, or a target is out of range. While JAX traces, targets are
        not known: the loss of a token with such a target is NaN, and so are its gradients.
    TypeError
        If arrays are of the wrong kind.

    See Also
    --------
    linear_cross_entropy_and_grad : Loss and gradients as values.
    diffnum.logsumexp.logsumexp : The sum of exponentials by itself.

    Notes
    -----
    One product for the loss alone; products for the gradients as above. Error bound: :eq:`cross_entropy-bound`. The
    loss of a token does not depend on the blocks except through rounding. With PyTorch, second derivatives need
    ``derivatives="all"``, which keeps all logits.

    References
    ----------
    Wijmans, Huval, Hertzberg, Koltun and Krähenbühl, "Cut your losses in large-vocabulary language models", ICLR
    (2025). Hsu et al., "Liger kernel: efficient Triton kernels for LLM training" (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import linear_cross_entropy
    >>> hidden, weight = np.eye(2), np.log([[1.0, 1.0], [3.0, 1.0]])
    >>> linear_cross_entropy(hidden, weight, np.array([1, 0]), reduction="none", chunk=1).round(4)
    array([0.2877, 0.6931])
    """
    choose("save", save, SAVES)
    choose("derivatives", derivatives, ("reverse", "all"))
    problem = prepare(
        hidden,
        weight,
        targets,
        bias=bias,
        softcap=softcap,
        logit_scale=logit_scale,
        class_weight=class_weight,
        token_weight=token_weight,
        ignore_index=ignore_index,
        chunk=chunk,
        accumulate=accumulate,
        spread=label_smoothing != 0.0,
        top=return_accuracy,
        whole_rows=derivatives == "reverse" and (save == "logits" or (save == "gradients" and reduction != "none")),
    )
    weights = weigh(problem, reduction, label_smoothing, z_loss)
    total = reduction != "none"
    if derivatives == "all":
        found = statistics(problem.layer, problem.inputs, problem.constants)
        lse, *rest = quantities(problem, found)
        loss, top = losses(weights, lse, *rest), found.top
        loss = _backend.namespace(loss).sum(loss) if total else loss
    else:
        loss, lse, top = attach(problem, weights, save, total=total, with_lse=return_lse)
    return results(problem, reduction, loss, lse if return_lse else None, top)


def linear_cross_entropy_and_grad(
    hidden: Array,
    weight: Array,
    targets: Array,
    /,
    *,
    bias: Array | None = None,
    softcap: float | None = None,
    logit_scale: Array | float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    class_weight: Array | None = None,
    token_weight: Array | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    cotangent: Array | None = None,
    chunk: int | tuple[int, int] | None = None,
    accumulate: Literal["float32", "float64"] | None = None,
    save: Literal["gradients", "nothing"] = "gradients",
    return_lse: bool = False,
    return_accuracy: bool = False,
) -> Any:
    r"""Loss and its gradients as values, :eq:`cross_entropy-loss` and :eq:`cross_entropy-gradients`; for every library.

    Parameters
    ----------
    hidden, weight, targets, bias, softcap, logit_scale, z_loss, label_smoothing, class_weight, token_weight : optional
        As in `linear_cross_entropy`.
    ignore_index, reduction : optional
        As in `linear_cross_entropy`.
    cotangent : array or None, optional
        What the gradients are pulled back from: shape () or, for ``reduction="none"``, (...). None for ones.
    chunk, accumulate : optional
        As in `linear_cross_entropy`.
    save : {"gradients", "nothing"}, optional
        One sweep of three products, with whole rows of logits for a block of tokens; or two sweeps of four products in
        all, in blocks of tokens and classes.
    return_lse, return_accuracy : optional
        As in `linear_cross_entropy`.

    Returns
    -------
    tuple
        What `linear_cross_entropy` returns, and `Gradients`.

    Raises
    ------
    ValueError
        As `linear_cross_entropy`.
    TypeError
        As `linear_cross_entropy`.

    See Also
    --------
    linear_cross_entropy : The loss, to be differentiated by JAX or PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.cross_entropy import linear_cross_entropy_and_grad
    >>> hidden, weight = np.eye(2), np.log([[1.0, 1.0], [3.0, 1.0]])
    >>> loss, grads = linear_cross_entropy_and_grad(hidden, weight, np.array([1, 0]), reduction="sum")
    >>> grads.weight
    array([[ 0.25, -0.5 ], [-0.25,  0.5 ]])
    """
    choose("save", save, ("gradients", "nothing"))
    problem = prepare(
        hidden,
        weight,
        targets,
        bias=bias,
        softcap=softcap,
        logit_scale=logit_scale,
        class_weight=class_weight,
        token_weight=token_weight,
        ignore_index=ignore_index,
        chunk=chunk,
        accumulate=accumulate,
        spread=label_smoothing != 0.0,
        top=return_accuracy,
        whole_rows=save == "gradients",
    )
    weights = weigh(problem, reduction, label_smoothing, z_loss)
    pulled = weights
    if cotangent is not None:
        factor = _cotangent(problem, cotangent, problem.shape if reduction == "none" else ())
        pulled = type(weights)(*(None if a is None else a * factor for a in weights))
    given = tuple(a is not None for a in problem.inputs)

    def record(found: Any) -> Any:
        return (*quantities(problem, found), found.top)

    (lse, nll, spread, top), grads = value_and_gradients(problem, pulled, save, wanted=given, record=record)
    pairs = zip(grads, problem.inputs, strict=True)
    of_hidden, *others = (None if g is None or x is None else _backend.cast(g, x.dtype) for g, x in pairs)
    xp = _backend.namespace(of_hidden)
    loss = losses(weights, lse, nll, spread)
    loss = loss if reduction == "none" else xp.sum(loss)
    result = results(problem, reduction, loss, lse if return_lse else None, top)
    return result, Gradients(xp.reshape(of_hidden, (*problem.shape, weight.shape[1])), *others)


def _cotangent(problem: Any, cotangent: Array, shape: tuple[int, ...]) -> Array:
    cotangent = _backend.asfloat(cotangent, "cotangent")
    if tuple(cotangent.shape) != shape:
        msg = f"cotangent must have the shape of the loss, {shape}, got {tuple(cotangent.shape)}"
        raise ValueError(msg)
    like = problem.inputs.hidden
    cotangent = _backend.convert(cotangent, like, problem.layer.dtype)
    return cotangent if shape == () else _backend.namespace(like).reshape(cotangent, (like.shape[0],))
