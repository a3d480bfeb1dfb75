"""Oracles for the tests of tables and solvers: each formula transcribed on its own, problems with known answers.

Nothing here uses the paths, tables or solvers of the library. A level is a tuple ``(t, alpha, sigma)`` of floats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

Point = tuple[float, float, float]

GAUSS_POINTS, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(48)


# -- paths, straight from their definitions ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """One path: the coordinate s, the factor P, the noise N, the kernel K(s) of a step to `b`, and f = p x + q D."""

    coordinate: Callable[[Point], float]
    point: Callable[[float], Point]
    factor: Callable[[Point, Point], float]
    noise: Callable[[Point, Point], float]
    kernel: Callable[[np.ndarray, Point], np.ndarray]
    target: Callable[[Point], tuple[float, float]] = lambda _: (0.0, 1.0)
    centre: float = 0.0


def point_of_geometry(geometry: str, rho: float) -> Point:
    """Level with sigma/alpha = rho; its time is not known here."""
    if geometry == "ve":
        return math.nan, 1.0, rho
    norm = 1.0 + rho if geometry == "flow" else math.hypot(1.0, rho)
    return math.nan, 1.0 / norm, rho / norm


def log_snr(a: Point) -> float:
    return math.log(a[1] / a[2])


def x0_formula(geometry: str, eta: float = 0.0) -> Formula:
    k = 1.0 + eta**2
    return Formula(
        coordinate=log_snr,
        point=lambda s: point_of_geometry(geometry, math.exp(-s)),
        factor=lambda a, b: b[2] / a[2] * math.exp(-(eta**2) * (log_snr(b) - log_snr(a))),
        noise=lambda a, b: b[2] * math.sqrt(1.0 - math.exp(-2.0 * eta**2 * (log_snr(b) - log_snr(a)))),
        kernel=lambda s, b: b[1] * k * np.exp(k * (s - log_snr(b))),
    )


def x0_ratio_formula(geometry: str, eta: float = 0.0) -> Formula:
    return Formula(
        coordinate=lambda a: a[1] / a[2],
        point=lambda s: point_of_geometry(geometry, 1.0 / s),
        factor=lambda a, b: b[2] / a[2] * ((a[1] / a[2]) / (b[1] / b[2])) ** (eta**2),
        noise=lambda a, b: b[2] * math.sqrt(1.0 - ((a[1] / a[2]) / (b[1] / b[2])) ** (2.0 * eta**2)),
        kernel=lambda s, b: b[2] * (1.0 + eta**2) * (s / (b[1] / b[2])) ** (eta**2),
    )


def noise_formula(geometry: str) -> Formula:
    return Formula(
        coordinate=log_snr,
        point=lambda s: point_of_geometry(geometry, math.exp(-s)),
        factor=lambda a, b: b[1] / a[1],
        noise=lambda a, b: 0.0,
        kernel=lambda s, b: -b[2] * np.exp(log_snr(b) - s),
        target=lambda a: (1.0 / a[2], -a[1] / a[2]),
    )


def noise_ratio_formula(geometry: str) -> Formula:
    return Formula(
        coordinate=lambda a: a[2] / a[1],
        point=lambda s: point_of_geometry(geometry, s),
        factor=lambda a, b: b[1] / a[1],
        noise=lambda a, b: 0.0,
        kernel=lambda s, b: b[1] + 0.0 * s,
        target=lambda a: (1.0 / a[2], -a[1] / a[2]),
    )


def velocity_formula(geometry: str, sigma_data: float = 1.0, centre: float = 0.0, eta: float = 0.0) -> Formula:
    def norm(a: Point) -> float:
        return math.sqrt((a[1] * sigma_data) ** 2 + a[2] ** 2)

    def theta(a: Point) -> float:
        return math.atan2(a[2], a[1] * sigma_data)

    def falls(a: Point, b: Point) -> float:
        return math.cos(theta(a)) / math.cos(theta(b))

    def target(a: Point) -> tuple[float, float]:
        # v = (cos(theta) x/n - D/sd)/sin(theta)
        return math.cos(theta(a)) / math.sin(theta(a)) / norm(a), -1.0 / (sigma_data * math.sin(theta(a)))

    return Formula(
        coordinate=theta,
        point=lambda s: point_of_geometry(geometry, sigma_data * math.tan(s)),
        factor=lambda a, b: norm(b) / norm(a) * falls(a, b) ** (eta**2),
        noise=lambda a, b: norm(b) * math.sqrt(1.0 - falls(a, b) ** (2.0 * eta**2)),
        kernel=lambda s, b: norm(b) * (1.0 + eta**2) * (np.cos(s) / math.cos(theta(b))) ** (eta**2),
        target=target,
        centre=centre,
    )


def semilinear_formula(integral: Callable[[Any], Any]) -> Formula:
    return Formula(
        coordinate=lambda a: a[0],
        point=lambda s: (s, 1.0, 1.0),
        factor=lambda a, b: math.exp(integral(b[0]) - integral(a[0])),
        noise=lambda a, b: 0.0,
        kernel=lambda s, b: np.exp(integral(b[0]) - integral(s)),
    )


# -- methods, straight from their definitions -------------------------------------------------------------------------


def integrate(function: Callable[[np.ndarray], np.ndarray], a: float, b: float, panels: int = 4) -> float:
    """Gauss-Legendre quadrature, 48 points on each of a few panels."""
    edges = np.linspace(a, b, panels + 1)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        s = low + (GAUSS_POINTS + 1.0) / 2.0 * (high - low)
        total += float(np.sum(function(s) * GAUSS_WEIGHTS)) * (high - low) / 2.0
    return total


def lagrange_weights(formula: Formula, nodes: Sequence[float], a: Point, b: Point) -> list[float]:
    """Integrals from `a` to `b` of K times each Lagrange polynomial through `nodes`."""

    def basis(j: int, s: np.ndarray) -> np.ndarray:
        value = np.ones_like(s)
        for i, node in enumerate(nodes):
            if i != j:
                value = value * (s - node) / (nodes[j] - node)
        return value

    start, stop = formula.coordinate(a), formula.coordinate(b)
    return [integrate(lambda s, j=j: formula.kernel(s, b) * basis(j, s), start, stop) for j in range(len(nodes))]


STAGES = {"midpoint": [0.0, 1 / 2], "heun": [0.0, 1.0], "rk3": [0.0, 1 / 3, 2 / 3]}
"""Fractions of the step at which a Runge-Kutta method evaluates."""
THROUGH = {"midpoint": [[0], [0, 1]], "heun": [[0], [0, 1]], "rk3": [[0], [0, 1], [0, 2]]}
"""Stages it interpolates through, up to the next stage, in the end to the end of the step."""


def run(
    formula: Formula,
    levels: Sequence[Point],
    plan: Sequence[int | str],
    denoise: Callable[[np.ndarray, Point], np.ndarray],
    x: np.ndarray,
    draws: Callable[[int], np.ndarray] = lambda _: np.zeros(()),
) -> list[np.ndarray]:
    """States at all `levels`; step n uses Adams-Bashforth of order ``plan[n]`` or the named Runge-Kutta method.

    Runge-Kutta steps keep the first state of the step and form every stage from it: two state vectors. The noise of
    a step is one path of its linear part, observed at the stages. `draws` are numbered by evaluations.
    """
    c = formula.centre
    y = x - levels[0][1] * c
    states, history, count = [x], [], 0

    def evaluate(y: np.ndarray, a: Point) -> np.ndarray:
        p, q = formula.target(a)
        return p * y + q * (denoise(y + a[1] * c, a) - c)

    for (a, b), method in zip(itertools.pairwise(levels), plan, strict=True):
        begin, end = formula.coordinate(a), formula.coordinate(b)
        fractions = STAGES[method] if isinstance(method, str) else [0.0]
        ends = [*fractions[1:], 1.0]
        first, f, noise, here = y, [], np.zeros_like(x), a
        for m, fraction in enumerate(ends):
            f.append(evaluate(y, here))
            goal = b if fraction == 1.0 else formula.point(begin + fraction * (end - begin))
            if isinstance(method, str):
                chosen = [(begin + fractions[i] * (end - begin), f[i]) for i in THROUGH[method][m]]
            else:
                chosen = ([*history, (begin, f[0])])[-method:]
            weights = lagrange_weights(formula, [s for s, _ in chosen], a, goal)
            if here is not goal:
                noise = formula.factor(here, goal) * noise + formula.noise(here, goal) * draws(count)
            y = formula.factor(a, goal) * first + sum(w * g for w, (_, g) in zip(weights, chosen, strict=True)) + noise
            count, here = count + 1, goal
        history.append((begin, f[0]))
        states.append(y + b[1] * c)
    return states


# -- problems with known answers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoPeaks:
    """Law of x_0: share N(centre + half, std^2) + (1 - share) N(centre - half, std^2), with its denoiser."""

    share: float = 0.3
    half: float = 0.8
    centre: float = 0.1
    std: float = 0.35

    def _parts(self, x: Any, alpha: Any, sigma: Any, tanh: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
        variance = alpha * alpha * self.std**2 + sigma * sigma
        r = x - alpha * self.centre
        odds = 0.5 * math.log(self.share / (1.0 - self.share))
        return variance, r, self.half * tanh(alpha * self.half * r / variance + odds)

    def denoise(self, x: Any, level: Any, tanh: Callable[[Any], Any] = np.tanh) -> Any:
        """Posterior mean; `level` has the fields (t, alpha, sigma)."""
        _, alpha, sigma = level
        variance, r, peak = self._parts(x, alpha, sigma, tanh)
        return self.centre + (alpha * self.std**2 * r + sigma * sigma * peak) / variance

    def noise(self, x: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
        """(x - alpha D)/sigma without the division: regular at sigma = 0."""
        variance, r, peak = self._parts(x, alpha, sigma, np.tanh)
        return sigma * (r - alpha * peak) / variance

    @property
    def mean(self) -> float:
        return self.centre + (2.0 * self.share - 1.0) * self.half

    @property
    def spread(self) -> float:
        """Standard deviation of x_0."""
        return math.sqrt(self.std**2 + self.half**2 * (1.0 - (2.0 * self.share - 1.0) ** 2))

    def exact(self, x: np.ndarray, a: Point, b: Point) -> np.ndarray:
        """Solution of the probability-flow ODE, in the angle atan2(sigma, alpha): both ends are regular."""

        def slope(theta: float, u: np.ndarray) -> np.ndarray:
            alpha, sigma = math.cos(theta), math.sin(theta)
            return alpha * self.noise(u, alpha, sigma) - sigma * self.denoise(u, (0.0, alpha, sigma))

        start, stop = math.atan2(a[2], a[1]), math.atan2(b[2], b[1])
        u = x.ravel() / math.hypot(a[1], a[2])
        solved = solve_ivp(slope, (start, stop), u, method="DOP853", rtol=3e-14, atol=1e-15)
        return solved.y[:, -1].reshape(x.shape) * math.hypot(b[1], b[2])


@dataclass(frozen=True)
class Forced:
    """y' = a(t) y + f(t, y), a = mean + wave cos 3t, with the solution cos(t + phase) for each phase."""

    mean: float = -1.0
    wave: float = 0.0
    coupling: float = 0.7
    phases: tuple[float, ...] = (0.0, 1.0, 2.5)

    def rate(self, t: Any) -> Any:
        return self.mean + self.wave * np.cos(3.0 * t)

    def integral(self, t: Any) -> Any:
        return self.mean * t + self.wave * np.sin(3.0 * t) / 3.0

    def exact(self, t: float) -> np.ndarray:
        return np.cos(t + np.asarray(self.phases))

    def denoise(self, y: np.ndarray, level: Any) -> np.ndarray:
        """f(t, y); `level` has the time first."""
        t = float(level[0])
        inhomogeneous = -np.sin(t + np.asarray(self.phases)) - self.rate(t) * self.exact(t)
        return inhomogeneous + self.coupling * (np.sin(y) - np.sin(self.exact(t)))


# -- grids and slopes -------------------------------------------------------------------------------------------------


RATIOS = (1.0, 2.9, 1.6, 4.0, 1.2, 2.2, 3.5, 1.9)
"""One random pattern of step ratios, up to 4, repeated as a grid is refined: fresh draws would scatter the slopes."""


def random_ratio(a: float, b: float, steps: int) -> np.ndarray:
    """Nodes from a to b whose steps repeat the pattern."""
    widths = np.resize(RATIOS, steps)
    inner = np.cumsum(widths)[:-1] / np.sum(widths)
    return np.concatenate([[a], a + (b - a) * inner, [b]])


def graded(a: float, b: float, steps: int, power: float = 3.0) -> np.ndarray:
    """Nodes from a to b, closest together at b."""
    inner = (np.arange(1, steps) / steps)[::-1] ** power
    return np.concatenate([[a], b + (a - b) * inner, [b]])


def rms(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.asarray(error, dtype=float) ** 2)))


def slopes(steps: Sequence[int], errors: Sequence[float]) -> np.ndarray:
    """Local orders between neighbouring runs."""
    return -np.diff(np.log(np.asarray(errors, dtype=float))) / np.diff(np.log(np.asarray(steps, dtype=float)))
