"""Blocks of tokens and of the vocabulary: their sizes, and loops over them whose ragged block comes first.

An axis of `count` elements in blocks of `size` has one block of ``(count - 1) % size + 1`` elements, then full ones.
All later blocks have one shape, so that a compiled loop serves them, and nothing is ever padded. Sizes are Python
integers, which do not overflow: no index here is an index into the matrix of logits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _backend

__all__ = ["BUDGET", "EAGER_BLOCK", "VOCABULARY_BLOCK", "Blocks", "choose_blocks", "over", "ragged"]

Array = Any

BUDGET = 2**27
"""Bytes that an automatic block of logits may take."""

VOCABULARY_BLOCK = 1024
"""Classes of an automatic block: two megabytes of logits of 512 tokens, which a cache of the second level holds."""

EAGER_BLOCK = 4096
"""The same for libraries that run products one by one, whose threads wait for each other at the end of each."""

TOKEN_BLOCK = 1024
"""Most tokens of an automatic block, where whole rows of logits are not kept."""


class Blocks(NamedTuple):
    """Sizes of blocks.

    Attributes
    ----------
    tokens : int
        Tokens handled at a time, >= 1.
    vocabulary : int
        Classes handled at a time, >= 1.
    """

    tokens: int
    vocabulary: int


def choose_blocks(
    chunk: Any, tokens: int, vocabulary: int, itemsize: int, *, whole_rows: bool, eager: bool = False
) -> Blocks:
    """Sizes of blocks that were asked for, or that keep a block of logits within `BUDGET` bytes.

    Parameters
    ----------
    chunk : int, tuple of int or None
        Tokens, or (tokens, classes); None chooses.
    tokens, vocabulary : int
        Sizes to be divided.
    itemsize : int
        Bytes of a logit.
    whole_rows : bool
        Whether the logits of a block of tokens are kept for all classes.
    eager : bool, optional
        Whether the library runs each product when it is asked for, and does not compile the loop.

    Returns
    -------
    Blocks
        Sizes between 1 and those to be divided.

    Raises
    ------
    ValueError
        If `chunk` is of another kind.
    """
    pair = chunk if isinstance(chunk, tuple) else (chunk, None)
    sizes = [_size(part) for part in pair]
    if len(pair) != 2 or -1 in sizes or (isinstance(chunk, tuple) and 0 in sizes):
        msg = f"chunk must be an integer >= 1, a pair (tokens, classes) of such or None, got {chunk!r}"
        raise ValueError(msg)
    columns = min(sizes[1] or (EAGER_BLOCK if eager else VOCABULARY_BLOCK), max(vocabulary, 1))
    rows = sizes[0]
    if rows == 0:
        wide = max(1, BUDGET // (itemsize * max(vocabulary if whole_rows else columns, 1)))
        wide = wide if whole_rows else min(wide, TOKEN_BLOCK)
        # as many blocks as that makes, but of one size, in whole groups of 64
        rows = -(-tokens // -(-tokens // wide)) if tokens > wide else wide
        rows = min(rows + -rows % 64, wide - wide % 64) if wide > 64 else wide
    return Blocks(min(rows, max(tokens, 1)), columns)


def ragged(count: int, size: int) -> int:
    """Length of the first block.

    Parameters
    ----------
    count : int
        Elements, >= 1.
    size : int
        Elements of a full block.

    Returns
    -------
    int
        Between 1 and `size`, such that the rest is a multiple of `size`.
    """
    return (count - 1) % size + 1


def over(count: int, size: int, body: Callable[[Any, Any, int], Any], carry: Any, like: Array) -> Any:
    """Apply ``carry = body(carry, begin, length)`` to all blocks, in order.

    Parameters
    ----------
    count : int
        Elements; none give the carry back.
    size : int
        Elements of a full block.
    body : callable
        ``body(carry, begin, length) -> carry``; `begin` may be traced by JAX, `length` is an integer.
    carry : pytree
        Initial value.
    like : array
        Decides who runs the loop.

    Returns
    -------
    pytree
        The last carry.
    """
    if count == 0:
        return carry
    first = ragged(count, size) % size
    if first or count == size:
        first = first or size
        carry = body(carry, 0, first)
    if first < count:
        starts: Any = range(first, count, size)
        if _backend.is_jax(like):
            starts = _backend.namespace(like).arange(first, count, size)
        carry, _ = _backend.scan(lambda state, begin: (body(state, begin, size), None), carry, starts, like)
    return carry


def _size(value: Any) -> int:
    """`value` if it is an integer >= 1; 0 for None, -1 for anything else."""
    if value is None:
        return 0
    try:
        size = operator.index(value)
    except TypeError:
        return -1
    return -1 if size < 1 or isinstance(value, bool) else size
