"""NumPy: a step of the samplers of tokens over its denoiser, against one softmax and one draw."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from bench.timing import Row, interleave, ratio, row
from diffnum.discrete import samplers
from diffnum.kernels import categorical

BATCH, LENGTH, VOCABULARY = 8, 64, 4096
GOAL = 1.3
REFERENCE = "softmax and draw"


def calls(batch: int) -> dict[str, Any]:
    """One step of each sampler, and the least that any must do."""
    rng, schedule = np.random.default_rng(0), categorical.keep_cosine()
    logits = rng.standard_normal((batch, LENGTH, VOCABULARY)).astype(np.float32)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    uniform, absorbing = categorical.uniform(VOCABULARY), categorical.absorbing(VOCABULARY)
    x, masked = np.zeros((batch, LENGTH), int), np.full((batch, LENGTH), VOCABULARY - 1)

    def least() -> Any:
        e = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True), categorical.draw(rng, log_p)

    def step(x: Any, kernel: Any, how: Any) -> Any:
        return lambda: samplers.sample(
            lambda x, level: log_p,
            x,
            kernel,
            schedule,
            [0.7, 0.4],
            how,
            rng=rng,
        )

    return {
        REFERENCE: least,
        "ancestral, uniform": step(x, uniform, samplers.ancestral()),
        "ancestral, absorbing": step(masked, absorbing, samplers.ancestral()),
        "tau-leaping, absorbing": step(masked, absorbing, samplers.tau_leaping()),
        "tau-leaping, uniform": step(x, uniform, samplers.tau_leaping()),
    }


def run(*, quick: bool = False) -> list[Row]:
    """Rows of the report."""
    batch = 1 if quick else BATCH
    functions = calls(batch)
    times = interleave(functions, seconds=0.2 if quick else 6.0, least=3 if quick else 9)
    section = (
        f"NumPy, float32, ({batch}, {LENGTH}) tokens of {VOCABULARY} classes: a step over one softmax and one draw"
    )
    found = []
    for name in functions:
        if name != REFERENCE:
            over = ratio(times, name, REFERENCE)
            judged = {"goal": GOAL, "met": over <= GOAL} if name.startswith("ancestral") else {}
            seconds = statistics.median(times[name])
            size = batch * LENGTH * VOCABULARY
            found.append(row(section, name, size, seconds=seconds, unit="step", over_rival=over, **judged))
    return found
