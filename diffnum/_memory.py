"""Bytes that linear cross-entropy needs, counted before anything is computed; see :doc:`/cross_entropy`."""

from __future__ import annotations

from typing import NamedTuple

from ._arguments import choose
from ._blocks import choose_blocks
from ._linear_loss import SAVES

__all__ = ["Memory", "linear_cross_entropy_bytes"]

WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Memory(NamedTuple):
    r"""Bytes of a loss with its gradients, :eq:`cross_entropy-memory`; integers without a limit.

    Attributes
    ----------
    inputs : int
        Hidden states and weight.
    gradients : int
        Gradients of both, in their own dtype.
    retained : int
        What lives from the forward sweep to the backward one, beside inputs and gradients.
    transient : int
        What else is there at the peak.
    logits : int
        The matrix of logits, which is not there: for comparison.
    """

    inputs: int
    gradients: int
    retained: int
    transient: int
    logits: int


def linear_cross_entropy_bytes(
    tokens: int,
    features: int,
    vocabulary: int,
    /,
    *,
    dtype: str = "float32",
    accumulate: str | None = None,
    chunk: int | tuple[int, int] | None = None,
    save: str = "gradients",
) -> Memory:
    r"""Bytes of `linear_cross_entropy` with gradients of hidden states and weight, :eq:`cross_entropy-memory`.

    Parameters
    ----------
    tokens, features, vocabulary : int
        Sizes N, d and V, >= 1.
    dtype : {"float16", "bfloat16", "float32", "float64"}, optional
        Of hidden states and weight.
    accumulate, chunk, save : optional
        As in `linear_cross_entropy`, for a loss that is reduced to a number.

    Returns
    -------
    Memory
        Counts of bytes.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Notes
    -----
    Counted for the program that XLA makes for a CPU: ``retained + transient`` is its temporary memory, within 2 % for
    automatic blocks and never 2 % less; between blocks of other shapes XLA may find up to 15 % to share, and more where
    there are few. For narrower inputs XLA widens both matrices as a whole, which is counted. NumPy and PyTorch need one
    to two more blocks of logits.

    Examples
    --------
    >>> from diffnum.cross_entropy import linear_cross_entropy_bytes
    >>> memory = linear_cross_entropy_bytes(8 * 4096, 1024, 50257)
    >>> memory.logits / 1e9, (memory.retained + memory.transient) / 1e6 < 150
    (6.587285504, True)
    """
    sizes = {"tokens": tokens, "features": features, "vocabulary": vocabulary}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            msg = f"{name} must be an integer >= 1, got {size!r}"
            raise ValueError(msg)
    choose("dtype", dtype, tuple(WIDTHS))
    choose("save", save, SAVES)
    if accumulate is not None:
        choose("accumulate", accumulate, ("float32", "float64"))
    narrow, wide = WIDTHS[dtype], WIDTHS[accumulate or "float32"] if accumulate else max(4, WIDTHS[dtype])
    n, c = choose_blocks(chunk, tokens, vocabulary, wide, whole_rows=save != "nothing")
    both = (tokens + vocabulary) * features
    widened = 0 if narrow == wide else wide * both
    if save == "gradients":
        retained = 0 if narrow == wide else wide * both
        transient = wide * (
            n * vocabulary + n * c + n * -(-vocabulary // c) + 2 * c * features + 3 * n * features + 2 * tokens
        )
    else:
        retained = wide * 2 * tokens + (2 * tokens * vocabulary if save == "logits" else 0)
        transient = wide * (n * c + 3 * c * features + 2 * n * features + tokens)
        transient += 0 if narrow == wide else wide * tokens * features
        if save == "logits" and features < n:
            # whole rows of logits, which else find room in the memory of the gradient to come
            transient = max(transient, wide * (n * vocabulary + c * features))
    return Memory(narrow * both, narrow * both, retained, transient + widened, wide * tokens * vocabulary)
