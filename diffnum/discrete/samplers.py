"""Samplers of categorical diffusion: a step is a sequence of laws, one loop draws from them, another adds them up.

`sample` runs a step (`ancestral`, `tau_leaping`, `theta_trapezoidal`, ...) over a grid of times; `law_of` gives the
exact law of its output where all sequences can be enumerated. `first_hitting` and `uniformisation` have no time steps
and no error of their own; `confidence_ordered` and `commit_and_renoise` are published rules whose law is another one.
Derivation: :doc:`/discrete/samplers`.

Conventions. Tokens have shape (batch, length), laws one more axis of K. A denoiser is ``denoise(x_t, level) -> log_p``,
the leave-one-out law of each clean token. Times run from noisy to clean; s is less noisy than t.
"""

from __future__ import annotations

from diffnum.discrete._sampler_enumeration import law_of, total_variation
from diffnum.discrete._sampler_events import first_hitting, uniformisation
from diffnum.discrete._sampler_laws import (
    commit_law,
    corrector_law,
    event_law,
    leap_law,
    one_jump_law,
    remask_law,
    renoise_law,
    reverse_rates,
)
from diffnum.discrete._sampler_loop import sample
from diffnum.discrete._sampler_orders import commit_and_renoise, confidence_ordered
from diffnum.discrete._sampler_shaping import guide, shape_law
from diffnum.discrete._sampler_steps import (
    Step,
    ancestral,
    committing,
    euler,
    midpoint,
    remasking,
    renoising,
    tau_leaping,
    theta_rk2,
    theta_trapezoidal,
    with_forward_backward,
    with_gibbs,
)

__all__ = [
    "Step",
    "ancestral",
    "commit_and_renoise",
    "commit_law",
    "committing",
    "confidence_ordered",
    "corrector_law",
    "euler",
    "event_law",
    "first_hitting",
    "guide",
    "law_of",
    "leap_law",
    "midpoint",
    "one_jump_law",
    "remask_law",
    "remasking",
    "renoise_law",
    "renoising",
    "reverse_rates",
    "sample",
    "shape_law",
    "tau_leaping",
    "theta_rk2",
    "theta_trapezoidal",
    "total_variation",
    "uniformisation",
    "with_forward_backward",
    "with_gibbs",
]
