"""Families of categorical kernels, as records: what a token turns into when it is not kept.

`Interpolation` is ``alpha I + (1 - alpha) 1 pi^T`` with any law pi; it costs O(K). `Walk` is a semigroup ``exp(tau G)``
of a symmetric generator with ``tau = -log alpha``; `Chain` is a sequence of matrices that need not commute. See
:doc:`/kernels/categorical`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from diffnum._arguments import number
from diffnum._backend import Array, asfloat, concrete, namespace, own
from diffnum.kernels._logspace import log_of

__all__ = [
    "Chain",
    "Interpolation",
    "Walk",
    "absorbing",
    "band",
    "discretised_gaussian",
    "hybrid",
    "similarity",
    "stationary",
    "uniform",
]


@dataclass(frozen=True, eq=False)
class Interpolation:
    """Kernels ``alpha I + (1 - alpha) 1 pi^T``, :eq:`kernels-categorical-transition`.

    Parameters
    ----------
    name : str
        The call that made it.
    classes : int
        Number K of classes, the mask included.
    log_law : array, shape (K,)
        Logarithm of the stationary law pi.
    kind : {"uniform", "point", "law"}
        How a token that is not kept is drawn.
    mask : int or None
        The mask, if there is one.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.uniform(4).log_law.round(3)
    array([-1.386, -1.386, -1.386, -1.386])
    """

    name: str
    classes: int
    log_law: Array = field(repr=False)
    kind: Literal["uniform", "point", "law"] = "law"
    mask: int | None = None


@dataclass(frozen=True, eq=False)
class Walk:
    """Kernels ``exp(tau G)``, G symmetric, :eq:`kernels-categorical-walk`; ``tau = -log alpha``.

    Parameters
    ----------
    name : str
        The call that made it.
    classes : int
        Number K of classes.
    rates : array, shape (K,)
        Eigenvalues of -G, >= 0; those that belong to stationary laws are exactly 0.
    vectors : array, shape (K, K)
        Eigenvectors, orthonormal, in columns.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.band(3).rates.round(3)
    array([0., 1., 3.])
    """

    name: str
    classes: int
    rates: np.ndarray = field(repr=False)
    vectors: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of given matrices, :eq:`kernels-categorical-chain`; its levels are step numbers 0, ..., T.

    Parameters
    ----------
    name : str
        The call that made it.
    classes : int
        Number K of classes.
    steps : array, shape (T, K, K)
        One-step matrices, rows sum to 1.
    cumulative : array, shape (T + 1, K, K)
        Their products in order, from the identity on.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.discretised_gaussian(3, [0.1, 0.2]).cumulative.shape
    (3, 3, 3)
    """

    name: str
    classes: int
    steps: np.ndarray = field(repr=False)
    cumulative: np.ndarray = field(repr=False)


def uniform(classes: int, /) -> Interpolation:
    """A token that is not kept becomes any token, itself included: pi = 1/K, :eq:`kernels-categorical-laws`.

    Parameters
    ----------
    classes : int
        Number K of classes, >= 2.

    Returns
    -------
    Interpolation
        The kernels.

    Raises
    ------
    ValueError
        If `classes` is no such number.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.uniform(27).name
    'uniform(27)'
    """
    k = _classes(classes)
    return Interpolation(f"uniform({k})", k, np.full(k, -math.log(k)), "uniform")


def absorbing(classes: int, /, *, mask: int = -1) -> Interpolation:
    """A token that is not kept becomes the mask and stays it, :eq:`kernels-categorical-laws`.

    Parameters
    ----------
    classes : int
        Number K of classes, the mask included.
    mask : int, optional
        Which class is the mask; the last by default.

    Returns
    -------
    Interpolation
        The kernels.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.absorbing(28).mask
    27
    """
    k = _classes(classes)
    at = _place(mask, k)
    law = np.full(k, -math.inf)
    law[at] = 0.0
    return Interpolation(f"absorbing({k}, mask={at})", k, law, "point", at)


def hybrid(classes: int, /, *, share: float, mask: int = -1) -> Interpolation:
    """The mask with probability `share`, else one of the other classes, :eq:`kernels-categorical-laws`.

    Parameters
    ----------
    classes : int
        Number K of classes, the mask included.
    share : float
        Share of the mask in pi, in [0, 1].
    mask : int, optional
        Which class is the mask.

    Returns
    -------
    Interpolation
        The kernels.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> import numpy as np
    >>> np.exp(categorical.hybrid(5, share=0.6).log_law).round(3)
    array([0.1, 0.1, 0.1, 0.1, 0.6])
    """
    k = _classes(classes)
    at = _place(mask, k)
    share = number("share", share)
    if not 0.0 <= share <= 1.0:
        msg = f"share must be in [0, 1], got {share!r}"
        raise ValueError(msg)
    law = np.full(k, (1.0 - share) / (k - 1))
    law[at] = share
    return Interpolation(f"hybrid({k}, share={share:g}, mask={at})", k, np.asarray(log_of(law)), "law", at)


def stationary(law: Array, /) -> Interpolation:
    """A token that is not kept is drawn from `law`: that of the data, or a learned one.

    Any pi of :eq:`kernels-categorical-laws`.

    Parameters
    ----------
    law : array, shape (K,)
        Probabilities; of any library, derivatives pass.

    Returns
    -------
    Interpolation
        The kernels.

    Raises
    ------
    TypeError
        If `law` is not real.
    ValueError
        If `law` is no probability law.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.stationary([0.5, 0.25, 0.25]).classes
    3
    """
    law = own(asfloat(law if hasattr(law, "dtype") else np.asarray(law), "law"))
    if law.ndim != 1 or law.shape[0] < 2:
        msg = f"law must have shape (K,) with K >= 2, got {tuple(law.shape)}"
        raise ValueError(msg)
    known = concrete(law)
    if known is not None:
        slack = 4.0 * known.size * float(np.finfo(known.dtype).eps)
        if not ((known >= 0.0).all() and abs(float(known.sum(dtype=float)) - 1.0) <= slack):
            msg = f"law must be >= 0 with sum 1, got a sum of {known.sum(dtype=float):g} and a least of {known.min():g}"
            raise ValueError(msg)
    return Interpolation(f"stationary(<{law.shape[0]} classes>)", law.shape[0], log_of(law), "law")


def band(classes: int, /) -> Walk:
    """A walk to neighbours, reflected at the ends: variance 2 tau until it feels them, :eq:`kernels-categorical-band`.

    Parameters
    ----------
    classes : int
        Number K of ordered classes.

    Returns
    -------
    Walk
        The kernels, which commute and have a closed cumulative form.

    Raises
    ------
    ValueError
        If `classes` is no such number.

    Notes
    -----
    At rate 1 to each side ``tau = -log alpha``: use a schedule that goes to tau of order K^2.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.band(5).classes
    5
    """
    k = _classes(classes)
    place, frequency = np.arange(k)[:, None] + 0.5, np.arange(k)[None, :]
    vectors = np.sqrt(2.0 / k) * np.cos(np.pi * place * frequency / k)
    vectors[:, 0] = math.sqrt(1.0 / k)
    rates = 4.0 * np.sin(0.5 * np.pi * np.arange(k) / k) ** 2
    return Walk(f"band({k})", k, rates, vectors)


def similarity(weights: Array, /) -> Walk:
    """A token turns into others at rates in proportion to their similarity, :eq:`kernels-categorical-walk`.

    Parameters
    ----------
    weights : array, shape (K, K)
        Similarities >= 0, symmetric; the diagonal does not count. They are scaled to a mean rate of 1.

    Returns
    -------
    Walk
        The kernels; uniform is stationary on each set of classes that are connected.

    Raises
    ------
    TypeError
        If `weights` is not real.
    ValueError
        If `weights` is no symmetric matrix of numbers >= 0, or has no two similar classes.

    References
    ----------
    J. Austin et al., Structured denoising diffusion models in discrete state-spaces (2021), appendix A.2.4.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.similarity([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).rates.round(3)
    array([0.  , 0.75, 2.25])
    """
    known = concrete(asfloat(np.asarray(weights), "weights"))
    assert known is not None  # NumPy
    if known.ndim != 2 or known.shape[0] != known.shape[1] or known.shape[0] < 2:
        msg = f"weights must have shape (K, K) with K >= 2, got {known.shape}"
        raise ValueError(msg)
    if not (np.isfinite(known).all() and (known >= 0.0).all() and np.array_equal(known, known.T)):
        msg = "weights must be symmetric, finite and >= 0, got a matrix that is not"
        raise ValueError(msg)
    off = known.astype(float) * (1.0 - np.eye(len(known)))
    if not off.any():
        msg = "weights must join at least two classes, got none off the diagonal"
        raise ValueError(msg)
    off /= off.sum() / len(off)
    rates, vectors = np.linalg.eigh(np.diag(off.sum(axis=1)) - off)
    # eigenvalues that are 0 are known only up to rounding; tau may be infinite, so they are made exact
    still = rates < len(off) * float(np.finfo(float).eps) * rates[-1]
    return Walk(f"similarity(<{len(off)} classes>)", len(off), np.where(still, 0.0, rates), vectors)


def discretised_gaussian(classes: int, betas: Array, /, *, width: int | None = None) -> Chain:
    """Steps whose off-diagonals are a Gaussian of the distance of ordered classes, :eq:`kernels-categorical-gaussian`.

    Parameters
    ----------
    classes : int
        Number K of ordered classes.
    betas : array, shape (T,)
        Parameters of the steps, > 0: the variance is about ``(K - 1)^2 beta/8``.
    width : int, optional
        Distance beyond which nothing moves: a band.

    Returns
    -------
    Chain
        The steps and their products. Matrices of different beta do not commute: there is no continuous time.

    Raises
    ------
    TypeError
        If `betas` is not real.
    ValueError
        If a parameter is out of range.

    References
    ----------
    J. Austin et al., Structured denoising diffusion models in discrete state-spaces (2021), appendix A.2.

    Examples
    --------
    >>> from diffnum.kernels import categorical
    >>> categorical.discretised_gaussian(4, [0.3]).steps[0].sum(axis=1).round(12)
    array([1., 1., 1., 1.])
    """
    k = _classes(classes)
    known = concrete(asfloat(np.asarray(betas), "betas"))
    assert known is not None  # NumPy
    if known.ndim != 1 or not known.size or not (np.isfinite(known) & (known > 0.0)).all():
        msg = f"betas must be > 0, of shape (T,), got {betas!r}"
        raise ValueError(msg)
    reach = k - 1 if width is None else width
    if not isinstance(reach, int | np.integer) or isinstance(reach, bool) or not 1 <= reach < k:
        msg = f"width must be an integer from 1 to {k - 1}, got {width!r}"
        raise ValueError(msg)
    distance = np.arange(k)[:, None] - np.arange(k)[None, :]
    scale = -4.0 / ((k - 1) ** 2 * known.astype(float))[:, None, None]
    all_steps = np.arange(-(k - 1), k)
    normaliser = np.exp(scale * all_steps**2).sum(axis=-1, keepdims=True)
    moves = np.exp(scale * distance**2) / normaliser * ((distance != 0) & (abs(distance) <= reach))
    steps = moves + np.eye(k) * (1.0 - moves.sum(axis=-1))[..., None]
    products = [np.eye(k)]
    for step in steps:
        products.append(products[-1] @ step)
    return Chain(f"discretised_gaussian({k}, <{len(steps)} steps>)", k, steps, np.stack(products))


def matrix_of_walk(kernel: Walk, tau: Array) -> Array:
    """``exp(tau G)`` for 0-d `tau`, perhaps infinite.

    Parameters
    ----------
    kernel : Walk
        The generator.
    tau : array
        Time >= 0.

    Returns
    -------
    array, shape (K, K)
        Probabilities; what rounding made negative is 0.
    """
    xp = namespace(tau)
    rates, vectors = (xp.asarray(a, dtype=tau.dtype) for a in (kernel.rates, kernel.vectors))
    still = rates == 0.0
    decay = xp.where(still, xp.ones_like(rates), xp.exp(-xp.where(still, xp.ones_like(rates), rates) * tau))
    q = (vectors * decay) @ vectors.T
    return xp.where(q > 0.0, q, xp.zeros_like(q))


def _classes(value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 2:
        msg = f"classes must be an integer >= 2, got {value!r}"
        raise ValueError(msg)
    return int(value)


def _place(value: Any, classes: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not -classes <= value < classes:
        msg = f"mask must be an integer from {-classes} to {classes - 1}, got {value!r}"
        raise ValueError(msg)
    return int(value) % classes
