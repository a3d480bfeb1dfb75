"""The samplers as one would write them by hand, with the coefficients of a table: what the library is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from diffnum.schedules import Level
from diffnum.solvers import Table

Denoiser = Callable[[Any, Any], Any]


def weights_by_age(table: Table, order: int) -> np.ndarray:
    """Weights of a multistep table, shape (R, order): column j belongs to the value of j rows before."""
    weights = np.zeros((table.evaluations, order))
    held: dict[int, int] = {}
    for r, slot in enumerate(table.slot.tolist()):
        held[slot] = r
        for register, written in held.items():
            if r - written < order:
                weights[r, r - written] = table.weights[r, register]
    return weights


def jax_multistep(denoise: Denoiser, table: Table, order: int) -> Callable[[Any], Any]:
    """Adams-Bashforth as a scan whose carry is the state and the last values, newest first."""
    import jax
    import jax.numpy as jnp

    rows = (table.level, table.carry, weights_by_age(table, order))
    level, carry, weights = jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), rows)

    def sample(x):
        def body(state, row):
            y, *history = state
            level, c, w = row
            f = denoise(y, level)
            new = c * y + w[0] * f
            for j, value in enumerate(history, start=1):
                new = new + w[j] * value
            return (new, *[f, *history][: order - 1]), None

        state, _ = jax.lax.scan(body, (x, *[jnp.zeros_like(x)] * (order - 1)), (level, carry, weights))
        return state[0]

    return sample


def jax_heun(denoise: Denoiser, table: Table) -> Callable[[Any], Any]:
    """Heun as a scan over steps with two evaluations in its body."""
    import jax
    import jax.numpy as jnp

    n = np.arange(table.steps)
    first, second = 2 * n, 2 * n + 1
    c, w, slot = np.asarray(table.carry), np.asarray(table.weights), np.asarray(table.slot)
    predictor = w[first, slot[first]]
    step = c[first] * c[second]
    old = w[second, slot[first]] + c[second] * predictor
    new = w[second, slot[second]]
    levels = [Level(*(part[rows] for part in table.level)) for rows in (first, second)]
    rows = jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (*levels, c[first], predictor, step, old, new))

    def sample(x):
        def body(y, row):
            start, stop, c, a, p, b0, b1 = row
            f0 = denoise(y, start)
            f1 = denoise(c * y + a * f0, stop)
            return p * y + b0 * f0 + b1 * f1, None

        return jax.lax.scan(body, x, rows)[0]

    return sample


def numpy_ab2(denoise: Denoiser, table: Table) -> Callable[[np.ndarray], np.ndarray]:
    """Adams-Bashforth 2 as a loop over coefficients that are ready."""
    carry, weights = table.carry.tolist(), weights_by_age(table, 2).tolist()
    levels = list(zip(*(part.tolist() for part in table.level), strict=True))

    def sample(x):
        old = None
        for level, c, (w0, w1) in zip(levels, carry, weights, strict=True):
            f = denoise(x, level)
            x = c * x + w0 * f
            if old is not None:
                x += w1 * old
            old = f
        return x

    return sample


def numpy_ab2_inside(denoise: Denoiser, sigma: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The same on x0 with alpha = 1, each coefficient computed in the loop (DPM-Solver++(2M) with exact weights)."""

    def sample(x):
        old = last = None
        for s, t in itertools.pairwise(sigma):
            h = float(np.log(s / t))
            f = denoise(x, s)
            first = -float(np.expm1(-h))
            x = float(t / s) * x
            if old is None:
                x += first * f
            else:
                second = (h - first) / last
                x += (first + second) * f
                x -= second * old
            old, last = f, h
        return x

    return sample
