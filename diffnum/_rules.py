"""What published samplers put in place of the moments and places of :eq:`solvers-weights`.

A rule is called with the moments of a step, the places of the nodes in units of it, its length and the slice of the
steps, and returns the moments and places that the method uses. Each of the rules here is one mechanism met in print;
what it costs is derived in :doc:`/samplers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffnum._backend import Array
from diffnum._tables import Rule

__all__ = ["half_end", "half_moment", "half_second_moment", "uniform_places"]

Used = tuple[Sequence[Array], Sequence[Any]]


def half_moment(moments: tuple[Array, ...], places: list[Array], length: Array, steps: slice) -> Used:  # noqa: ARG001
    """Half of the whole for the first moment, where two values are interpolated: :eq:`samplers-half`.

    Parameters
    ----------
    moments : tuple of array
        Moments of the step.
    places : list of array
        Places of the nodes.
    length : array
        Length of the step in the path's coordinate.
    steps : slice
        The steps.

    Returns
    -------
    tuple
        Moments and places to use.
    """
    return ((moments[0], 0.5 * moments[0]) if len(places) == 2 else moments), places


def half_second_moment(moments: tuple[Array, ...], places: list[Array], length: Array, steps: slice) -> Used:  # noqa: ARG001
    """Half of the second moment, where three values are interpolated: :eq:`samplers-half-second`.

    Parameters
    ----------
    moments : tuple of array
        Moments of the step.
    places : list of array
        Places of the nodes.
    length : array
        Length of the step in the path's coordinate.
    steps : slice
        The steps.

    Returns
    -------
    tuple
        Moments and places to use.
    """
    return ((*moments[:2], 0.5 * moments[2]) if len(places) == 3 else moments), places


def uniform_places(moments: tuple[Array, ...], places: list[Array], length: Array, steps: slice) -> Used:  # noqa: ARG001
    """Places 0, -1, -2, ... and the moments of a constant kernel, whatever the steps: :eq:`samplers-uniform-places`.

    Parameters
    ----------
    moments : tuple of array
        Moments of the step.
    places : list of array
        Places of the nodes.
    length : array
        Length of the step in the path's coordinate.
    steps : slice
        The steps.

    Returns
    -------
    tuple
        Moments and places to use.
    """
    order = range(len(places))
    return [moments[0] / (j + 1) for j in order], [-float(j) for j in order]


def half_end(rate: Array | float) -> Rule:
    """Half of the kernel at the end times the length for the first moment of two values: :eq:`samplers-half`.

    Parameters
    ----------
    rate : float or array of shape (N,)
        The kernel is ``exp(rate s)``: 1 + eta^2 on `x0`, -1 on `noise`, both in log-SNR.

    Returns
    -------
    callable
        The rule.
    """

    def rule(moments: tuple[Array, ...], places: list[Array], length: Array, steps: slice) -> Used:
        if len(places) != 2:
            return moments, places
        steepness = rate if isinstance(rate, int | float) else rate[steps]
        # K(end) h by parts, from the first two moments
        return (moments[0], 0.5 * (moments[0] + steepness * length * moments[1])), places

    return rule
