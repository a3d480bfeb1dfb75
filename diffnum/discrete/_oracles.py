"""Laws of sequences whose exact denoiser is known: a table of all sequences, and a Markov chain.

A denoiser takes noisy tokens (batch, length) and a level and gives leave-one-out log-probabilities (batch, length, K):
the law of each clean token given all noisy tokens but its own. Where those are impossible, nothing is known, and the
token has its marginal law. See :doc:`/discrete/elbo`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffnum._backend import Array, asfloat, beside, concrete, convert, is_jax, namespace, scan, zeros_for
from diffnum.kernels._draws import from_table
from diffnum.kernels._families import Chain, Interpolation, Walk
from diffnum.kernels._logspace import log_of, log_sum
from diffnum.kernels.categorical import draw, likelihood

__all__ = ["MarkovChain", "Table", "all_states", "markov", "table"]

Kernel = Interpolation | Walk | Chain

_SUM = 1e-9
"""Probabilities may miss a sum of 1 by this, and are then normalised."""


@dataclass(frozen=True, eq=False)
class Table:
    """A law of sequences given by all its probabilities, :eq:`discrete-elbo-table`; `table` makes it.

    Parameters
    ----------
    law : array, shape (K, ..., K)
        Probability of each sequence, an axis for each position.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> model = elbo.table(np.array([[0.4, 0.1], [0.1, 0.4]]))
    >>> round(model.entropy, 6)
    1.19355
    """

    law: np.ndarray = field(repr=False)

    @property
    def classes(self) -> int:
        """Number K of classes."""
        return self.law.shape[0]

    @property
    def length(self) -> int:
        """Length L of a sequence."""
        return self.law.ndim

    @property
    def entropy(self) -> float:
        """Entropy of a sequence in nats."""
        return _entropy(self.law)

    def log_probability(self, x_0: Array, /) -> np.ndarray:
        """Logarithm of the probability of each sequence (batch, length), in NumPy."""
        return np.asarray(log_of(self.law[tuple(np.moveaxis(_known(x_0, self.length), -1, 0))]))

    def sample(self, rng: Any, n: int, /) -> Array:
        """Draw n sequences (n, length), in the library of `rng`, of any kind but a callable."""
        like = zeros_for(rng, (n,))
        xp = namespace(like)
        index = from_table(rng, 0, like, self.law.reshape(-1), like.dtype)
        places = [index // self.classes ** (self.length - 1 - i) % self.classes for i in range(self.length)]
        return xp.stack(places, axis=1)

    def denoise(self, x_t: Array, kernel: Kernel, level: Any, /) -> Array:
        """Leave-one-out log-probabilities by enumeration, in the dtype of the level."""
        evidence = _evidence(x_t, kernel, level, self.classes)
        xp, (batch, length, classes) = namespace(evidence), evidence.shape
        if length != self.length:
            msg = f"x_t must have shape (batch, {self.length}), got {tuple(x_t.shape)}"
            raise ValueError(msg)
        said = [
            xp.reshape(evidence[:, j, :], (batch, *(classes if axis == j else 1 for axis in range(length))))
            for j in range(length)
        ]
        prior = convert(log_of(self.law), evidence, evidence.dtype)[None, ...]
        found = []
        for i in range(length):
            joint = prior
            for j, of_position in enumerate(said):
                joint = joint + of_position if j != i else joint
            joint = xp.broadcast_to(xp.moveaxis(joint, i + 1, 1), (batch, *self.law.shape))
            found.append(log_sum(xp.reshape(joint, (batch, classes, -1)))[..., 0])
        marginals = [self.law.sum(axis=tuple(j for j in range(length) if j != i)) for i in range(length)]
        return _law(xp.stack(found, axis=1), np.stack(marginals))


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """A Markov chain of tokens, :eq:`discrete-elbo-markov`; `markov` makes it.

    Parameters
    ----------
    initial : array, shape (K,)
        Law of the first token.
    transition : array, shape (K, K)
        Law of a token given the one before it, in rows.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> chain = elbo.markov([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
    >>> round(float(chain.log_probability(np.array([[0, 0, 1]]))[0]), 6)  # log(.5 .9 .1)
    -3.101093
    """

    initial: np.ndarray = field(repr=False)
    transition: np.ndarray = field(repr=False)

    @property
    def classes(self) -> int:
        """Number K of classes."""
        return self.initial.shape[0]

    def marginals(self, length: int, /) -> np.ndarray:
        """Laws of the tokens one by one, (length, K)."""
        laws = [self.initial]
        for _ in range(length - 1):
            laws.append(laws[-1] @ self.transition)
        return np.stack(laws)

    def entropy(self, length: int, /) -> float:
        """Entropy of a sequence in nats: that of the first token and of every transition."""
        weights = self.marginals(length)[:-1].sum(axis=0)
        return _entropy(self.initial) + float(
            sum(w * _entropy(row) for w, row in zip(weights, self.transition, strict=True))
        )

    def log_probability(self, x_0: Array, /) -> np.ndarray:
        """Logarithm of the probability of each sequence (batch, length), in NumPy."""
        known = _known(x_0)
        steps = np.asarray(log_of(self.transition))[known[..., :-1], known[..., 1:]]
        return np.asarray(log_of(self.initial))[known[..., 0]] + steps.sum(axis=-1)

    def sample(self, rng: Any, n: int, length: int, /) -> Array:
        """Draw n sequences (n, length), in the library of `rng`, of any kind but a callable."""
        like = zeros_for(rng, (n,))
        xp = namespace(like)
        start, step = (convert(log_of(p), like, like.dtype) for p in (self.initial, self.transition))
        x = [draw(rng, xp.broadcast_to(start, (n, self.classes)), row=0)]
        for i in range(1, length):
            x.append(draw(rng, xp.take(step, x[-1], axis=0), row=i))
        return xp.stack(x, axis=1)

    def denoise(self, x_t: Array, kernel: Kernel, level: Any, /) -> Array:
        """Leave-one-out log-probabilities, the forward times the backward message, in the dtype of the level."""
        evidence = _evidence(x_t, kernel, level, self.classes)
        xp, (batch, length, classes) = namespace(evidence), evidence.shape
        marginals = self.marginals(length)
        # what the chain never visits would otherwise outweigh what it does in the message from the right
        visited = beside(marginals > 0.0, evidence)
        weights = xp.exp(evidence - xp.max(evidence, axis=-1, keepdims=True))
        weights = xp.moveaxis(xp.where(visited, weights, xp.zeros_like(weights)), 1, 0)
        start, step = (convert(p, evidence, evidence.dtype) for p in (self.initial, self.transition))
        start = xp.broadcast_to(start, (batch, classes))
        forward = _messages(start, weights, step)
        backward = xp.flip(_messages(xp.ones_like(start), xp.flip(weights, axis=0), step.T), axis=0)
        return _law(xp.moveaxis(log_of(forward) + log_of(backward), 0, 1), marginals)


def table(law: Array, /, *, mask: bool = False) -> Table:
    """A law of sequences from the probabilities of all of them, :eq:`discrete-elbo-table`.

    Parameters
    ----------
    law : array, shape (K, ..., K)
        Probabilities, an axis of the same length for each position.
    mask : bool, optional
        Whether to append a class of probability 0, the mask of absorbing noise.

    Returns
    -------
    Table
        The law and its exact denoiser.

    Raises
    ------
    TypeError
        If `law` is not real.
    ValueError
        If it is no law.

    Examples
    --------
    >>> import numpy as np
    >>> from diffnum.discrete import elbo
    >>> elbo.table(np.full((2, 2, 2), 1 / 8), mask=True).law.shape
    (3, 3, 3)
    """
    law = _probabilities("law", law, tuple(range(np.ndim(law))))
    if law.ndim < 1 or len(set(law.shape)) != 1 or law.shape[0] < 2:
        msg = f"law must have an axis of the same length >= 2 for each position, got shape {law.shape}"
        raise ValueError(msg)
    return Table(np.pad(law, (0, 1)) if mask else law)


def markov(initial: Array, transition: Array, /, *, mask: bool = False) -> MarkovChain:
    """A Markov chain of tokens, :eq:`discrete-elbo-markov`.

    Parameters
    ----------
    initial : array, shape (K,)
        Law of the first token.
    transition : array, shape (K, K)
        Rows: law of a token given the one before it.
    mask : bool, optional
        Whether to append a class of probability 0, the mask of absorbing noise.

    Returns
    -------
    MarkovChain
        The law and its exact denoiser.

    Raises
    ------
    TypeError
        If an argument is not real.
    ValueError
        If a row is no law, or shapes do not match.

    Examples
    --------
    >>> from diffnum.discrete import elbo
    >>> elbo.markov([1.0, 0.0], [[0.5, 0.5], [1.0, 0.0]]).initial
    array([1., 0.])
    """
    start, step = _probabilities("initial", initial, (-1,)), _probabilities("transition", transition, (-1,))
    if start.ndim != 1 or start.size < 2 or step.shape != (start.size, start.size):
        msg = f"transition must have shape (K, K) and initial (K,), K >= 2; got {step.shape} and {start.shape}"
        raise ValueError(msg)
    return MarkovChain(np.pad(start, (0, 1)), np.pad(step, (0, 1))) if mask else MarkovChain(start, step)


def all_states(classes: int, length: int) -> np.ndarray:
    """All sequences, the last position running fastest.

    Parameters
    ----------
    classes, length : int
        K and L.

    Returns
    -------
    array, shape (K^L, L)
        Sequences.
    """
    return np.stack(np.unravel_index(np.arange(classes**length), (classes,) * length), axis=-1)


def _messages(first: Array, weights: Array, step: Array) -> Array:
    """Message to each position from those before it, (length, batch, K), each normalised; 0 where they contradict."""
    xp = namespace(weights)

    def body(message: Array, weight: Array) -> tuple[Array, Array]:
        after = (message * weight) @ step
        total = xp.sum(after, axis=-1, keepdims=True)
        return after / xp.where(total > 0.0, total, xp.ones_like(total)), message

    rows = weights if is_jax(weights) else [weights[i, ...] for i in range(weights.shape[0])]
    _, messages = scan(body, first, rows, weights)
    return messages if is_jax(weights) else xp.stack(messages)


def _law(log_p: Array, marginals: np.ndarray) -> Array:
    """Normalised `log_p`; the marginal laws where nothing is possible."""
    xp = namespace(log_p)
    norm = log_sum(log_p)
    lost = norm == -math.inf
    found = log_p - xp.where(lost, xp.zeros_like(norm), norm)
    return xp.where(lost, convert(log_of(marginals), log_p, log_p.dtype), found)


def _evidence(x_t: Array, kernel: Kernel, level: Any, classes: int) -> Array:
    """What each noisy token says of its own clean one, as logarithms (batch, length, K)."""
    if x_t.ndim != 2:
        msg = f"x_t must have shape (batch, length), got {tuple(x_t.shape)}"
        raise ValueError(msg)
    if kernel.classes != classes:
        msg = f"kernel must have the {classes} classes of the law, got {kernel.classes}"
        raise ValueError(msg)
    return likelihood(kernel, x_t, level)


def _entropy(law: np.ndarray) -> float:
    possible = law[law > 0.0]
    return float(-np.sum(possible * np.log(possible)))


def _known(x_0: Array, length: int | None = None) -> np.ndarray:
    known = concrete(x_0)
    if known is None or known.ndim != 2 or known.shape[1] not in {length or known.shape[1]}:
        msg = f"x_0 must be known tokens of shape (batch, {length or 'length'}), got {tuple(np.shape(x_0))}"
        raise ValueError(msg)
    return known


def _probabilities(name: str, p: Array, axes: tuple[int, ...]) -> np.ndarray:
    known = concrete(asfloat(p, name))
    if known is None:
        msg = f"{name} must be known probabilities, got an array that JAX traces"
        raise ValueError(msg)
    known = known.astype(float)
    total = known.sum(axis=axes, keepdims=True)
    if not ((known >= 0.0).all() and (abs(total - 1.0) <= _SUM).all()):
        worst = total.flat[np.argmax(abs(total - 1.0))]
        msg = f"{name} must be >= 0 with sum 1, got a sum of {worst:g} and a least of {known.min():g}"
        raise ValueError(msg)
    return known / total
