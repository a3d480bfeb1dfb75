"""Steps as data: a sequence of stages, each a law from which the next tokens are drawn.

A stage may evaluate the denoiser first, at a given share of the step, and may read what earlier stages evaluated and
drew. Both the sampler and the exact propagation of laws run these stages. See :doc:`/discrete/samplers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diffnum._arguments import choose, instance, number
from diffnum._backend import Array, convert, namespace
from diffnum.discrete._sampler_laws import (
    Kernel,
    Moment,
    ancestral_draw,
    check_leap,
    check_masked,
    commit_law,
    corrector_law,
    displaced,
    leap_law,
    one_jump_law,
    rates_at,
    remask_cap,
    remask_law,
    renoise_law,
)
from diffnum.kernels._families import Interpolation
from diffnum.kernels._tokens import whole
from diffnum.kernels.categorical import between, marginal, mixture_posterior

__all__ = [
    "Step",
    "ancestral",
    "committing",
    "euler",
    "midpoint",
    "remasking",
    "renoising",
    "tau_leaping",
    "theta_rk2",
    "theta_trapezoidal",
    "with_forward_backward",
    "with_gibbs",
]


class Point(NamedTuple):
    """An evaluation: the tokens, the leave-one-out law there, and when."""

    x: Array
    log_p: Array
    at: Moment


class Interval(NamedTuple):
    """A step: its moments by share, 0 the noisy end and 1 the clean one, and its length in time."""

    at: Mapping[float, Moment]
    h: Any


class Stage(NamedTuple):
    """A law to draw from, ``law(kernel, x, points, interval)``; see `Step`.

    Attributes
    ----------
    law : callable
        Log-probabilities of the next tokens.
    share : float or None
        Where in the step the denoiser is evaluated before; None if it is not.
    alone : bool
        Whether the points of earlier stages are not read.
    site : bool
        Whether only one position moves, which is drawn uniformly.
    pick : callable or None
        ``pick(rng, kernel, x, points, interval, row)`` draws from the same law in another way, for interpolations.
    """

    law: Callable[[Any, Array, tuple[Point, ...], Interval], Array]
    share: float | None = 0.0
    alone: bool = True
    site: bool = False
    pick: Callable[..., Array] | None = None


def _any_kernel(kernel: Any) -> None:
    """Accept all kernels."""


@dataclass(frozen=True)
class Step:
    """A step of a sampler: stages, each a law of the next tokens, :eq:`discrete-samplers-step`.

    Parameters
    ----------
    name : str
        The call that made it.
    stages : tuple of Stage
        Laws in order.
    closes : bool
        Whether it can step to clean data.
    check : callable
        Raises for a kernel that the step does not serve.
    rates : bool
        Whether it reads the rates of the schedule.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.theta_trapezoidal().evaluations
    2
    """

    name: str
    stages: tuple[Stage, ...] = field(repr=False)
    closes: bool = field(repr=False, default=False)
    check: Callable[[Any], None] = field(repr=False, default=_any_kernel)
    rates: bool = field(repr=False, default=False)

    @property
    def evaluations(self) -> int:
        """Calls of the denoiser in a step of :eq:`discrete-samplers-step`."""
        return sum(stage.share is not None for stage in self.stages)


def ancestral() -> Step:
    """Draw from the posterior mixture, :eq:`discrete-samplers-ancestral`; any kernel, any skip.

    Returns
    -------
    Step
        Order 1 in law; exact for one token.

    References
    ----------
    J. Austin et al., Structured denoising diffusion models in discrete state-spaces (2021).

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.ancestral()
    Step(name='ancestral()')
    """

    def law(kernel: Kernel, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return mixture_posterior(kernel, x, points[-1].log_p, step.at[1.0].level, step.at[0.0].level)

    return Step("ancestral()", (Stage(law, pick=_pick),), closes=True)


def euler() -> Step:
    """One jump with probability rate times step, at most 1, :eq:`discrete-samplers-one-jump`; any interpolation.

    Returns
    -------
    Step
        Order 1 in law.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.euler()
    Step(name='euler()')
    """

    def law(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return one_jump_law(x, _jumps(kernel, points[-1], step, 1.0), euler=True)

    return Step("euler()", (Stage(law),), check=_interpolation, rates=True)


def tau_leaping(*, jumps: str = "many") -> Step:
    """Leap with the rates of the start of the step, :eq:`discrete-samplers-leap`; absorbing or uniform kernels.

    Parameters
    ----------
    jumps : {"many", "one"}, optional
        Poisson numbers of jumps, or one at most.

    Returns
    -------
    Step
        Order 1 in law.

    Raises
    ------
    ValueError
        If `jumps` is something else.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.tau_leaping()
    Step(name="tau_leaping(jumps='many')")
    """
    leap = _leap(jumps)

    def law(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return leap(kernel, x, _jumps(kernel, points[-1], step, 1.0))

    return Step(f"tau_leaping(jumps={jumps!r})", (Stage(law),), check=check_leap, rates=True)


def theta_trapezoidal(*, theta: float = 0.5, jumps: str = "many") -> Step:
    """A leap over a share of the step, then one with extrapolated rates, :eq:`discrete-samplers-trapezoidal`.

    Parameters
    ----------
    theta : float, optional
        Share of the first leap, in (0, 1).
    jumps : {"many", "one"}, optional
        Poisson numbers of jumps, or one at most, which is of order 1 for a uniform kernel.

    Returns
    -------
    Step
        Order 2 in law where no extrapolated rate is negative; negative ones are set to 0, and the order falls to 1.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    Y. Ren et al., Fast solvers for discrete diffusion models: theory and applications of high-order algorithms (2025);
    D. Anderson and J. Mattingly, A weak trapezoidal method for a class of stochastic differential equations (2011).

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.theta_trapezoidal(theta=0.4)
    Step(name="theta_trapezoidal(theta=0.4, jumps='many')")
    """
    theta, leap = _theta(theta, 1.0), _leap(jumps)
    first = 0.5 / (theta * (1.0 - theta))

    def start(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return leap(kernel, x, _jumps(kernel, points[-1], step, theta))

    def rest(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        old, new = points[-2:]
        before = displaced(kernel, old.x, x, _jumps(kernel, old, step, 1.0 - theta))
        jumps = first * _jumps(kernel, new, step, 1.0 - theta) - (first - 1.0) * before
        return leap(kernel, x, namespace(jumps).maximum(jumps, 0.0 * jumps))

    stages = (Stage(start), Stage(rest, share=theta, alone=False))
    return Step(f"theta_trapezoidal(theta={theta:g}, jumps={jumps!r})", stages, check=check_leap, rates=True)


def theta_rk2(*, theta: float = 0.5) -> Step:
    """A trial leap, then one from the start with mixed rates, :eq:`discrete-samplers-rk2`.

    Parameters
    ----------
    theta : float, optional
        Share of the trial leap, in [1/2, 1]; below 1/2 a weight would be negative.

    Returns
    -------
    Step
        Order 1 in law, since the trial's tokens are thrown away.

    Raises
    ------
    ValueError
        If `theta` is out of range.

    References
    ----------
    Y. Ren et al., Fast solvers for discrete diffusion models: theory and applications of high-order algorithms (2025).

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.theta_rk2()
    Step(name='theta_rk2(theta=0.5)')
    """
    theta = _theta(theta, 1.0, closed=True)
    if theta < 0.5:
        msg = f"theta must be in [1/2, 1], got {theta!r}"
        raise ValueError(msg)
    weight = 0.5 / theta

    def start(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return leap_law(kernel, x, _jumps(kernel, points[-1], step, theta))

    def rest(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:  # noqa: ARG001
        old, new = points[-2:]
        trial = displaced(kernel, new.x, old.x, _jumps(kernel, new, step, 1.0))
        jumps = weight * trial + (1.0 - weight) * _jumps(kernel, old, step, 1.0)
        return leap_law(kernel, old.x, jumps)

    stages = (Stage(start), Stage(rest, share=theta, alone=False))
    return Step(f"theta_rk2(theta={theta:g})", stages, check=check_leap, rates=True)


def midpoint() -> Step:
    """Leap with the rates that a trial leap finds in the middle, :eq:`discrete-samplers-rk2` with theta = 1/2.

    Returns
    -------
    Step
        Order 1 in law.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.midpoint()
    Step(name='midpoint()')
    """
    step = theta_rk2(theta=0.5)
    return Step("midpoint()", step.stages, check=step.check, rates=True)


def committing(*, carry: bool = True) -> Step:
    """Commit, carry over, renoise, each with its probability, :eq:`discrete-samplers-commit`.

    Parameters
    ----------
    carry : bool, optional
        Whether noise is carried over; without, all that is not committed is drawn anew, and the law stays wrong.

    Returns
    -------
    Step
        With `carry`, the law of `ancestral`.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.committing()
    Step(name='committing(carry=True)')
    """

    def law(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return commit_law(kernel, x, points[-1].log_p, step.at[1.0].level, step.at[0.0].level, carry=carry)

    return Step(f"committing(carry={bool(carry)})", (Stage(law),), closes=True, check=_interpolation)


def renoising(*, kappa: float) -> Step:
    """Forget the state with probability ``1 - kappa``, :eq:`discrete-samplers-kappa`; any kernel.

    Parameters
    ----------
    kappa : float
        Probability of the posterior step, in [0, 1].

    Returns
    -------
    Step
        Marginals are kept; the law converges only if ``1 - kappa`` falls with the length of the step.

    Raises
    ------
    ValueError
        If `kappa` is out of range.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.renoising(kappa=0.9)
    Step(name='renoising(kappa=0.9)')
    """
    kappa = number("kappa", kappa, least=0.0)
    if kappa > 1.0:
        msg = f"kappa must be in [0, 1], got {kappa!r}"
        raise ValueError(msg)

    def law(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        return renoise_law(kernel, x, points[-1].log_p, step.at[1.0].level, step.at[0.0].level, kappa=kappa)

    return Step(f"renoising(kappa={kappa:g})", (Stage(law),), closes=True)


def remasking(*, eta: float, rule: str = "rescaled") -> Step:
    """Mask revealed tokens again, :eq:`discrete-samplers-remask`; absorbing kernels.

    Parameters
    ----------
    eta : float
        Strength in [0, 1].
    rule : {"rescaled", "capped"}, optional
        The probability is `eta` times the cap ``min(1, (1 - alpha_s)/alpha_t)``, or `eta` but at most the cap.

    Returns
    -------
    Step
        Marginals are kept.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    G. Wang et al., Remasking discrete diffusion models with inference-time scaling (2025).

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.remasking(eta=0.02, rule="capped")
    Step(name="remasking(eta=0.02, rule='capped')")
    """
    choose("rule", rule, ("rescaled", "capped"))
    eta = number("eta", eta, least=0.0)
    if eta > 1.0:
        msg = f"eta must be in [0, 1], got {eta!r}"
        raise ValueError(msg)

    def law(kernel: Any, x: Array, points: tuple[Point, ...], step: Interval) -> Array:
        s, t = step.at[1.0].level, step.at[0.0].level
        cap = remask_cap(s, t)
        xp = namespace(cap)
        sigma = eta * cap if rule == "rescaled" else xp.minimum(cap, xp.full_like(cap, eta))
        return remask_law(kernel, x, points[-1].log_p, s, t, sigma=sigma)

    return Step(f"remasking(eta={eta:g}, rule={rule!r})", (Stage(law),), closes=True, check=check_masked)


def with_gibbs(step: Step, /, *, sweeps: int = 1) -> Step:
    """`step`, then `sweeps` times a position drawn anew given all others, :eq:`discrete-samplers-gibbs`.

    Parameters
    ----------
    step : Step
        Predictor.
    sweeps : int, optional
        Number of positions, each with an evaluation of the denoiser.

    Returns
    -------
    Step
        The corrector leaves the exact law as it is, whatever the predictor did.

    Raises
    ------
    TypeError
        If `step` is no `Step`.
    ValueError
        If `sweeps` is no number >= 1.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.with_gibbs(samplers.ancestral()).evaluations
    2
    """
    instance("step", step, Step)
    sweeps = whole("sweeps", sweeps)

    def law(kernel: Any, x: Array, points: tuple[Point, ...], interval: Interval) -> Array:
        return corrector_law(kernel, x, points[-1].log_p, interval.at[1.0].level)

    corrector = (Stage(law, share=1.0, site=True),) * sweeps
    return Step(
        f"with_gibbs({step.name}, sweeps={sweeps})",
        (*step.stages, *corrector),
        check=_checks(step, True),
        rates=step.rates,
    )


def with_forward_backward(step: Step, /, *, share: float = 0.5) -> Step:
    """`step`, then noise over a share of it and a posterior step back, :eq:`discrete-samplers-forward-backward`.

    Parameters
    ----------
    step : Step
        Predictor.
    share : float, optional
        Share of the step that is run again, in (0, 1].

    Returns
    -------
    Step
        The corrector errs like an ancestral step, to second order in its length.

    Raises
    ------
    TypeError
        If `step` is no `Step`.
    ValueError
        If `share` is out of range.

    Examples
    --------
    >>> from diffnum.discrete import samplers
    >>> samplers.with_forward_backward(samplers.ancestral(), share=1.0).evaluations
    2
    """
    instance("step", step, Step)
    back = 1.0 - _theta(share, 1.0, closed=True, name="share")

    def noise(kernel: Any, x: Array, points: tuple[Point, ...], interval: Interval) -> Array:  # noqa: ARG001
        return marginal(kernel, x, between(interval.at[1.0].level, interval.at[back].level))

    def denoise(kernel: Any, x: Array, points: tuple[Point, ...], interval: Interval) -> Array:
        return mixture_posterior(kernel, x, points[-1].log_p, interval.at[1.0].level, interval.at[back].level)

    corrector = (Stage(noise, share=None), Stage(denoise, share=back))
    name = f"with_forward_backward({step.name}, share={share:g})"
    return Step(name, (*step.stages, *corrector), check=_checks(step, False), rates=step.rates)


def shares(step: Step) -> tuple[float, ...]:
    """Shares of a step at which something is needed: both ends, and where the denoiser is evaluated.

    Parameters
    ----------
    step : Step
        A step.

    Returns
    -------
    tuple of float
        Increasing.
    """
    return tuple(sorted({0.0, 1.0, *(stage.share for stage in step.stages if stage.share is not None)}))


def _pick(rng: Any, kernel: Any, x: Array, points: tuple[Point, ...], step: Interval, row: Any) -> Array:  # noqa: PLR0917
    levels = (step.at[1.0].level, step.at[0.0].level)
    return ancestral_draw(rng, kernel, x, points[-1].log_p, levels, row)


def _jumps(kernel: Any, point: Point, step: Interval, share: float) -> Array:
    """Expected numbers of jumps over a share of the step, at the rates of a point."""
    rates = rates_at(kernel, point.x, point.log_p, point.at)
    return rates * (share * convert(step.h, rates, rates.dtype))


def _leap(jumps: str) -> Callable[[Any, Array, Array], Array]:
    choose("jumps", jumps, ("many", "one"))
    return leap_law if jumps == "many" else lambda kernel, x, mean: one_jump_law(x, mean)  # noqa: ARG005


def _theta(value: Any, top: float, *, closed: bool = False, name: str = "theta") -> float:
    value = number(name, value, above=0.0)
    if value > top or (value == top and not closed):
        msg = f"{name} must be in (0, {top:g}{']' if closed else ')'}, got {value!r}"
        raise ValueError(msg)
    return value


def _interpolation(kernel: Any) -> None:
    instance("kernel", kernel, Interpolation)


def _checks(step: Step, only_interpolations: bool) -> Callable[[Any], None]:
    def check(kernel: Any) -> None:
        step.check(kernel)
        if only_interpolations:
            _interpolation(kernel)
        elif not hasattr(kernel, "classes") or hasattr(kernel, "cumulative"):
            msg = f"kernel must be an Interpolation or a Walk, got {type(kernel).__name__}"
            raise TypeError(msg)

    return check
