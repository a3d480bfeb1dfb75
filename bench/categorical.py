"""JAX: noising a text against the same random bits and one `where`; steps back and bounds in O(K) against a softmax."""

from __future__ import annotations

import statistics
from typing import Any

from bench.timing import Row, interleave, ratio, row
from diffnum.discrete import elbo
from diffnum.kernels import categorical

BATCH, LENGTH, VOCABULARY, ROWS = 16, 4096, 50_257, 1024
RIVALS: tuple[tuple[str, int | None, dict[str, float | None]], ...] = (
    ("bits and where", BATCH * LENGTH, {"q_sample": 1.3}),
    ("softmax", None, {"posterior, uniform": 2.0, "posterior, absorbing": 2.0, "rate_divergence, uniform": None}),
)
"""Reference, its size (that of all laws if None), and what is compared with it -> goal."""


def calls(rows: int) -> dict[str, Any]:
    """The functions, compiled, of arguments that are none of their constants."""
    import jax
    import jax.numpy as jnp

    schedule, uniform = categorical.keep_cosine(), categorical.uniform(VOCABULARY)
    absorbing = categorical.absorbing(VOCABULARY)
    key, text = jax.random.key(0), jnp.zeros((BATCH, LENGTH), jnp.int32)
    half, less = jnp.asarray(0.7, jnp.float32), jnp.asarray(0.4, jnp.float32)
    logits = jax.random.normal(jax.random.key(1), (rows, VOCABULARY), jnp.float32)
    log_p, x_t, x_0 = jax.nn.log_softmax(logits), jnp.zeros((rows,), jnp.int32), jnp.ones((rows,), jnp.int32)

    @jax.jit
    def bits(key: Any, x: Any, p: Any) -> Any:
        kept, fresh = (jax.random.bits(jax.random.fold_in(key, i), x.shape, jnp.uint32) for i in (0, 1))
        return jnp.where(kept < (p * 2.0**32).astype(jnp.uint32), x, fresh.astype(jnp.int32))

    @jax.jit
    def sample(key: Any, x: Any, t: Any) -> Any:
        return categorical.q_sample(key, x, schedule.level(t), uniform)

    @jax.jit
    def back(log_p: Any, s: Any, t: Any) -> Any:
        return categorical.mixture_posterior(uniform, x_t, log_p, schedule.level(s), schedule.level(t))

    @jax.jit
    def masked(log_p: Any, s: Any, t: Any) -> Any:
        return categorical.mixture_posterior(absorbing, x_t, log_p, schedule.level(s), schedule.level(t))

    @jax.jit
    def term(log_p: Any, t: Any) -> Any:
        return elbo.rate_divergence(uniform, x_0[None], x_t[None], log_p[None], schedule, t)

    softmax = jax.jit(jax.nn.softmax)
    found = {
        "bits and where": lambda: bits(key, text, half),
        "q_sample": lambda: sample(key, text, half),
        "softmax": lambda: softmax(logits),
        "posterior, uniform": lambda: back(log_p, less, half),
        "posterior, absorbing": lambda: masked(log_p, less, half),
        "rate_divergence, uniform": lambda: term(log_p, half),
    }
    return {name: lambda f=f: f().block_until_ready() for name, f in found.items()}


def run(*, quick: bool = False) -> list[Row]:
    """Rows of the report."""
    rows = ROWS // 16 if quick else ROWS
    functions = calls(rows)
    section = f"JAX, float32, {VOCABULARY} classes: ({BATCH}, {LENGTH}) tokens over the same bits and one where, "
    section += f"({rows}, {VOCABULARY}) laws over a softmax, time per call"
    found = []
    for reference, size, goals in RIVALS:
        chosen = {name: functions[name] for name in (reference, *goals)}
        times = interleave(chosen, seconds=0.2 if quick else 6.0, least=3 if quick else 9)
        for name, goal in goals.items():
            over = ratio(times, name, reference)
            judged = {} if goal is None else {"goal": goal, "met": over <= goal}
            count = size or rows * VOCABULARY
            seconds = statistics.median(times[name])
            found.append(row(section, name, count, seconds=seconds, unit="call", over_rival=over, **judged))
    return found
