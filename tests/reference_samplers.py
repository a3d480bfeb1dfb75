"""Published samplers written out naively from their papers, as loops with as many states and old values as they like.

Nothing here uses the library. A level is a tuple ``(t, alpha, sigma)``; ``z(row)`` is the normal number of the row that
a table of one row for each evaluation would add it in.
"""

# ruff: noqa: ARG001  all samplers have the same arguments

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.integrate import quad

Point = tuple[float, float, float]
Denoise = Callable[[np.ndarray, Point], np.ndarray]
Draw = Callable[[int], np.ndarray]


def lam(a: Point) -> float:
    return math.log(a[1] / a[2])


def eps(denoise: Denoise, x: np.ndarray, a: Point) -> np.ndarray:
    return (x - a[1] * denoise(x, a)) / a[2]


def of_geometry(like: Point, log_snr: float) -> Point:
    """Level of that log-SNR on the schedule of `like`: alpha = 1, alpha + sigma = 1 or alpha^2 + sigma^2 = 1."""
    rho = math.exp(-log_snr)
    _, alpha, sigma = like
    if abs(alpha - 1.0) < 1e-14:
        return math.nan, 1.0, rho
    norm = 1.0 + rho if abs(alpha + sigma - 1.0) < 1e-12 else math.hypot(1.0, rho)
    return math.nan, 1.0 / norm, rho / norm


def pairs(levels: Sequence[Point]) -> list[tuple[int, Point, Point]]:
    return [(n, a, b) for n, (a, b) in enumerate(itertools.pairwise(levels))]


# -- order 1 ----------------------------------------------------------------------------------------------------------


def ddim(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float = 0.0) -> np.ndarray:
    """Song et al. (2021), equation 12; its 1 - (alpha/alpha')^2 written for any schedule."""
    for n, a, b in pairs(levels):
        d, e = denoise(x, a), eps(denoise, x, a)
        s = eta * b[2] / a[2] * math.sqrt(a[2] ** 2 - (a[1] / b[1] * b[2]) ** 2)
        x = b[1] * d + math.sqrt(b[2] ** 2 - s**2) * e + s * z(n)
    return x


def ddpm(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Ho et al. (2020), equations 6 and 7: the posterior q(x_s | x_t, x_0) with the predicted x_0."""
    for n, t, s in pairs(levels):
        alpha_ts, d = t[1] / s[1], denoise(x, t)
        beta = t[2] ** 2 - alpha_ts**2 * s[2] ** 2
        mean = (alpha_ts * s[2] ** 2 * x + s[1] * beta * d) / t[2] ** 2
        x = mean + math.sqrt(beta) * s[2] / t[2] * z(n)
    return x


def seeds_1(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Gonzalez et al. (2023): noise prediction, eta = 1."""
    for n, a, b in pairs(levels):
        h = lam(b) - lam(a)
        x = (
            b[1] / a[1] * x
            - 2.0 * b[2] * math.expm1(h) * eps(denoise, x, a)
            + b[2] * math.sqrt(math.expm1(2 * h)) * z(n)
        )
    return x


# -- in sigma, alpha = 1 ----------------------------------------------------------------------------------------------


def split(sigma: float, following: float, eta: float) -> tuple[float, float]:
    """The step down and the noise up of ancestral samplers."""
    up = min(following, eta * math.sqrt(following**2 * (sigma**2 - following**2) / sigma**2))
    return math.sqrt(following**2 - up**2), up


def slope(denoise: Denoise, x: np.ndarray, sigma: float) -> np.ndarray:
    return (x - denoise(x, (math.nan, 1.0, sigma))) / sigma


def euler_ancestral(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float = 1.0
) -> np.ndarray:
    for n, a, b in pairs(levels):
        down, up = split(a[2], b[2], eta)
        x = x + slope(denoise, x, a[2]) * (down - a[2])
        if b[2] > 0.0:
            x = x + up * z(n)
    return x


def heun(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *,
    gamma: Sequence[float] | None = None, s_noise: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """Karras et al. (2022), algorithm 2; the noise of step n is that of the row before it."""
    row = sum(2 if b[2] > 0.0 else 1 for _, _, b in pairs(levels))
    done = 0
    for n, a, b in pairs(levels):
        hat = a[2] * (1.0 + (0.0 if gamma is None else gamma[n]))
        if hat > a[2]:
            x = x + math.sqrt(hat**2 - a[2] ** 2) * s_noise * z(row)
        d = slope(denoise, x, hat)
        ahead = x + (b[2] - hat) * d
        x = ahead if b[2] == 0.0 else x + (b[2] - hat) * 0.5 * (d + slope(denoise, ahead, b[2]))
        done += 2 if b[2] > 0.0 else 1
        row = done - 1
    return x


def alpha_rk2(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, alpha: float) -> np.ndarray:
    """Karras et al. (2022), algorithm 3."""
    for _, a, b in pairs(levels):
        h = b[2] - a[2]
        d = slope(denoise, x, a[2])
        inner = slope(denoise, x + alpha * h * d, a[2] + alpha * h) if b[2] > 0.0 else d
        x = x + h * ((1.0 - 1.0 / (2.0 * alpha)) * d + 1.0 / (2.0 * alpha) * inner)
    return x


def dpm_2(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float = 0.0) -> np.ndarray:
    for n, a, b in pairs(levels):
        down, up = split(a[2], b[2], eta)
        d = slope(denoise, x, a[2])
        if down == 0.0:
            x = x + d * (down - a[2])
        else:
            mid = math.sqrt(a[2] * down)
            x = x + slope(denoise, x + d * (mid - a[2]), mid) * (down - a[2]) + up * z(2 * n + 1)
    return x


def lms(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, order: int = 4) -> np.ndarray:
    """Lagrange polynomials in sigma, integrated numerically; accurately here."""
    old: list[np.ndarray] = []
    sigmas = [a[2] for a in levels]
    for n, a, _ in pairs(levels):
        old.append(slope(denoise, x, a[2]))
        k = min(n + 1, order)

        def basis(s: float, j: int, n: int = n, k: int = k) -> float:
            return math.prod((s - sigmas[n - i]) / (sigmas[n - j] - sigmas[n - i]) for i in range(k) if i != j)

        for j in range(k):
            x = x + quad(basis, sigmas[n], sigmas[n + 1], args=(j,), epsabs=1e-14, epsrel=1e-13)[0] * old[n - j]
    return x


def dpmpp_2s_ancestral(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float) -> np.ndarray:
    for n, a, b in pairs(levels):
        down, up = split(a[2], b[2], eta)
        d = denoise(x, a)
        if down == 0.0:
            x = d
            continue
        h = math.log(a[2] / down)
        mid = a[2] * math.exp(-0.5 * h)
        inner = denoise(mid / a[2] * x - math.expm1(-0.5 * h) * d, (math.nan, 1.0, mid))
        x = down / a[2] * x - math.expm1(-h) * inner + up * z(2 * n + 1)
    return x


def sde_2m(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float, solver: str = "midpoint"
) -> np.ndarray:
    """The widespread sampler of SDE-DPM-Solver++(2M), in sigma."""
    old, last = None, 0.0
    for n, a, b in pairs(levels):
        d = denoise(x, a)
        if b[2] == 0.0:
            return d
        h = math.log(a[2] / b[2])
        both = h + eta * h
        x = b[2] / a[2] * math.exp(-eta * h) * x - math.expm1(-both) * d
        if old is not None:
            r = last / h
            factor = -0.5 * math.expm1(-both) if solver == "midpoint" else -math.expm1(-both) / -both + 1.0
            x = x + factor / r * (d - old)
        x = x + b[2] * math.sqrt(-math.expm1(-2.0 * eta * h)) * z(n)
        old, last = d, h
    return x


def sde_3m(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float) -> np.ndarray:
    """The widespread sampler of SDE-DPM-Solver++(3M), in sigma."""
    old: list[np.ndarray] = []
    steps: list[float] = []
    for n, a, b in pairs(levels):
        d = denoise(x, a)
        if b[2] == 0.0:
            return d
        h = math.log(a[2] / b[2])
        both = h * (eta + 1.0)
        x = math.exp(-both) * x - math.expm1(-both) * d
        phi_2 = math.expm1(-both) / both + 1.0
        if len(old) == 1:
            x = x + phi_2 * (d - old[-1]) / (steps[-1] / h)
        elif old:
            r0, r1 = steps[-1] / h, steps[-2] / h
            d0, d1 = (d - old[-1]) / r0, (old[-1] - old[-2]) / r1
            first, second = d0 + (d0 - d1) * r0 / (r0 + r1), (d0 - d1) / (r0 + r1)
            phi_3 = phi_2 / both - 0.5
            x = x + phi_2 * first - phi_3 * second
        x = x + b[2] * math.sqrt(-math.expm1(-2.0 * h * eta)) * z(n)
        old.append(d)
        steps.append(h)
    return x


def restart(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, jumps: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """Xu et al. (2023), algorithm 1, on the nodes of one grid."""
    row = 0

    def step(x: np.ndarray, a: Point, b: Point) -> np.ndarray:
        d = slope(denoise, x, a[2])
        ahead = x + (b[2] - a[2]) * d
        return ahead if b[2] == 0.0 else x + (b[2] - a[2]) * 0.5 * (d + slope(denoise, ahead, b[2]))

    for n, a, b in pairs(levels):
        x = step(x, a, b)
        row += 2
        for i, j, times in jumps:
            if j == n + 1:
                for _ in range(times):
                    x = x + math.sqrt(levels[i][2] ** 2 - levels[j][2] ** 2) * z(row - 1)
                    for c, d in itertools.pairwise(levels[i : j + 1]):
                        x = step(x, c, d)
                        row += 2
    return x


# -- fixed weights, in sigma/alpha ------------------------------------------------------------------------------------

FIXED = ([1.0], [3 / 2, -1 / 2], [23 / 12, -16 / 12, 5 / 12], [55 / 24, -59 / 24, 37 / 24, -9 / 24])


def transfer(x: np.ndarray, a: Point, b: Point, e: np.ndarray) -> np.ndarray:
    """DDIM's step with a given noise."""
    return b[1] / a[1] * (x - a[2] * e) + b[2] * e


def ipndm(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    old: list[np.ndarray] = []
    for _, a, b in pairs(levels):
        old.insert(0, eps(denoise, x, a))
        x = transfer(x, a, b, sum(w * e for w, e in zip(FIXED[min(len(old), 4) - 1], old, strict=False)))
    return x


def plms(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Liu et al. (2022) with the first step of latent diffusion: the mean of two noises."""
    old: list[np.ndarray] = []
    for n, a, b in pairs(levels):
        e = eps(denoise, x, a)
        old.insert(0, e)
        if n == 0:
            e = 0.5 * (e + eps(denoise, transfer(x, a, b, e), b))
        else:
            e = sum(w * f for w, f in zip(FIXED[min(len(old), 4) - 1], old, strict=False))
        x = transfer(x, a, b, e)
    return x


# -- DPM-Solver -------------------------------------------------------------------------------------------------------


def dpm_solver_2(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Lu et al. (2022), algorithm 1."""
    for _, a, b in pairs(levels):
        h = lam(b) - lam(a)
        s = of_geometry(a, 0.5 * (lam(a) + lam(b)))
        u = s[1] / a[1] * x - s[2] * math.expm1(0.5 * h) * eps(denoise, x, a)
        x = b[1] / a[1] * x - b[2] * math.expm1(h) * eps(denoise, u, s)
    return x


def dpm_solver_3(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Lu et al. (2022), algorithm 2, r_1 = 1/3, r_2 = 2/3."""
    r1, r2 = 1 / 3, 2 / 3
    for _, a, b in pairs(levels):
        h = lam(b) - lam(a)
        s1, s2 = (of_geometry(a, lam(a) + r * h) for r in (r1, r2))
        e = eps(denoise, x, a)
        u1 = s1[1] / a[1] * x - s1[2] * math.expm1(r1 * h) * e
        d1 = eps(denoise, u1, s1) - e
        u2 = s2[1] / a[1] * x - s2[2] * math.expm1(r2 * h) * e
        u2 = u2 - s2[2] * r2 / r1 * (math.expm1(r2 * h) / (r2 * h) - 1.0) * d1
        d2 = eps(denoise, u2, s2) - e
        x = b[1] / a[1] * x - b[2] * math.expm1(h) * e - b[2] / r2 * (math.expm1(h) / h - 1.0) * d2
    return x


def dpmpp_2s(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Lu et al. (2022), DPM-Solver++, algorithm 1."""
    r = 0.5
    for _, a, b in pairs(levels):
        h = lam(b) - lam(a)
        s = of_geometry(a, lam(a) + r * h)
        d = denoise(x, a)
        u = s[2] / a[2] * x - s[1] * math.expm1(-r * h) * d
        mixed = (1.0 - 1.0 / (2.0 * r)) * d + 1.0 / (2.0 * r) * denoise(u, s)
        x = b[2] / a[2] * x - b[1] * math.expm1(-h) * mixed
    return x


def multistep(
    denoise: Denoise,
    x: np.ndarray,
    levels: Sequence[Point],
    z: Draw,
    *,
    order: int,
    data: bool,
    factor: float = 1.0,
) -> np.ndarray:
    """Multistep DPM-Solver (noise) and ++ (data) of order 2 and 3, as in the published programs; `factor` on D2."""
    old: list[np.ndarray] = []
    for n, a, b in pairs(levels):
        h = lam(b) - lam(a)
        f = denoise(x, a) if data else eps(denoise, x, a)
        if data:
            phi_1 = math.expm1(-h)
            phi_2 = phi_1 / h + 1.0
        else:
            phi_1 = math.expm1(h)
            phi_2 = phi_1 / h - 1.0
        phi_3 = phi_2 / h - 0.5
        new = b[2] / a[2] * x - b[1] * phi_1 * f if data else b[1] / a[1] * x - b[2] * phi_1 * f
        if n >= 1:
            r0 = (lam(a) - lam(levels[n - 1])) / h
            d0 = (f - old[-1]) / r0
        if n == 1 or (n > 1 and order == 2):
            new = new - 0.5 * (b[1] if data else b[2]) * phi_1 * d0
        elif n > 1:
            r1 = (lam(levels[n - 1]) - lam(levels[n - 2])) / h
            d1 = (old[-1] - old[-2]) / r1
            first, second = d0 + r0 / (r0 + r1) * (d0 - d1), (d0 - d1) / (r0 + r1)
            if data:
                new = new + b[1] * phi_2 * first - factor * b[1] * phi_3 * second
            else:
                new = new - b[2] * phi_2 * first - factor * b[2] * phi_3 * second
        x = new
        old.append(f)
    return x


# -- DEIS -------------------------------------------------------------------------------------------------------------


def deis(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *,
    clock: Callable[[Point], float], rho_of: Callable[[float], float], order: int,
) -> np.ndarray:  # fmt: skip
    """Zhang and Chen (2023): x'/alpha' = x/alpha + sum_j e_j int l_j d rho, l_j in `clock`, by parts and `quad`."""
    old: list[np.ndarray] = []
    for n, a, b in pairs(levels):
        old.append(eps(denoise, x, a))
        k = min(n + 1, order)
        nodes = [clock(levels[n - j]) for j in range(k)]
        start, stop = clock(a), clock(b)
        total = np.zeros_like(x)
        for j in range(k):
            others = [nodes[i] for i in range(k) if i != j]
            poly = np.polynomial.Polynomial.fromroots(others) if others else np.polynomial.Polynomial([1.0])
            poly = poly / poly(nodes[j])
            slope_of = poly.deriv()
            inner = quad(lambda s, p=slope_of: p(s) * rho_of(s), start, stop, epsabs=1e-14, epsrel=1e-13, limit=200)[0]
            total = total + (poly(stop) * rho_of(stop) - poly(start) * rho_of(start) - inner) * old[n - j]
        x = b[1] * (x / a[1] + total)
    return x


# -- predictor-corrector ----------------------------------------------------------------------------------------------


def unipc(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, order: int, kind: str) -> np.ndarray:
    """Zhao et al. (2023), data prediction: the systems R rho = b, rho = 1/2 where there is one unknown of two."""

    def solve(n: int, others: list[float], p: int) -> tuple[np.ndarray, float]:
        """Coefficients of the differences (f_m - f_n)/r_m for step n, and B."""
        h = lam(levels[n + 1]) - lam(levels[n])
        scale = -h if kind == "bh1" else math.expm1(-h)
        if p == 1:
            return np.array([0.5]), scale
        r = np.array(others)
        phi = math.expm1(-h) / -h - 1.0
        rows, right = [], []
        for k in range(1, p + 1):
            rows.append(r ** (k - 1))
            right.append(phi * math.factorial(k) / scale)
            phi = phi / -h - 1.0 / math.factorial(k + 1)
        return np.linalg.solve(np.array(rows), np.array(right)), scale

    def ratio(n: int, m: int) -> float:
        return (lam(levels[m]) - lam(levels[n])) / (lam(levels[n + 1]) - lam(levels[n]))

    values: list[np.ndarray] = []
    states: list[np.ndarray] = []
    for n, a, b in pairs(levels):
        value = denoise(x, a)
        if n > 0:
            p = min(order, n)
            c, d = levels[n - 1], levels[n]
            h = lam(d) - lam(c)
            rs = [ratio(n - 1, n - 1 - i) for i in range(1, p)]
            rho, scale = solve(n - 1, [*rs, 1.0], p)
            base = d[2] / c[2] * states[-1] - d[1] * math.expm1(-h) * values[-1]
            parts = [(values[-1 - i] - values[-1]) / r for i, r in zip(range(1, p), rs, strict=True)]
            total = sum(w * part for w, part in zip(rho[:-1], parts, strict=True)) + rho[-1] * (value - values[-1])
            x = base - d[1] * scale * total
        values.append(value)
        states.append(x)
        p = min(order, n + 1)
        h = lam(b) - lam(a)
        base = b[2] / a[2] * x - b[1] * math.expm1(-h) * value
        if p > 1:
            rs = [ratio(n, n - i) for i in range(1, p)]
            rho, scale = solve(n, rs, p - 1)
            parts = [(values[n - i] - value) / r for i, r in zip(range(1, p), rs, strict=True)]
            base = base - b[1] * scale * sum(w * part for w, part in zip(rho, parts, strict=True))
        x = base
    return x


def sa_solver(
    denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *,
    tau: Sequence[float], predictor: int, corrector: int,
) -> np.ndarray:  # fmt: skip
    """Xue et al. (2023), data prediction; where two values are interpolated the program puts h^2/2 for an integral."""

    def coefficients(n: int, nodes: list[float]) -> list[float]:
        """Integrals of exp((1 + tau^2) lambda) l_j, relative to that exponential at the end."""
        k, start, stop = 1.0 + tau[n] ** 2, lam(levels[n]), lam(levels[n + 1])

        def basis(s: float, j: int) -> float:
            return math.prod((s - o) / (nodes[j] - o) for i, o in enumerate(nodes) if i != j)

        found = [
            quad(lambda s, j=j: math.exp(k * (s - stop)) * basis(s, j), start, stop, epsabs=1e-15, epsrel=1e-13)[0]
            for j in range(len(nodes))
        ]
        if len(nodes) == 2:
            h = stop - start
            exact = (h * k - 1.0 + math.exp(-k * h)) / k**2
            change = (0.5 * h**2 - exact) / (nodes[0] - nodes[1])
            found = [found[0] + change, found[1] - change]
        return found

    def made(n: int, x: np.ndarray, nodes: list[float], values: list[np.ndarray]) -> np.ndarray:
        a, b, k = levels[n], levels[n + 1], tau[n]
        h = lam(b) - lam(a)
        drift = sum(w * v for w, v in zip(coefficients(n, nodes), values, strict=True))
        return (
            b[2] / a[2] * math.exp(-(k**2) * h) * x
            + (1.0 + k**2) * b[1] * drift
            + b[2] * math.sqrt(-math.expm1(-2.0 * k**2 * h)) * z(n)
        )

    values: list[np.ndarray] = []
    before = x
    for n, a, _ in pairs(levels):
        values.insert(0, denoise(x, a))
        if n > 0:
            c = min(corrector, n + 1)
            x = made(n - 1, before, [lam(levels[n - j]) for j in range(c)], values[:c])
        before = x
        p = min(predictor, n + 1)
        x = made(n, x, [lam(levels[n - j]) for j in range(p)], values[:p])
    return x


# -- stochastic Runge-Kutta -------------------------------------------------------------------------------------------


def sde_2s(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw, *, eta: float, noises: str) -> np.ndarray:
    """SDE-DPM-Solver++(2S): the two noises of a step exactly, independent of each other, or the last only."""
    for n, a, b in pairs(levels):
        h = lam(b) - lam(a)
        s = of_geometry(a, lam(a) + 0.5 * h)
        k = 1.0 + eta**2
        inner = s[2] * math.sqrt(-math.expm1(-(eta**2) * h))
        outer = b[2] * math.sqrt(-math.expm1(-2.0 * eta**2 * h))
        carried = b[2] / s[2] * math.exp(-0.5 * eta**2 * h)
        d = denoise(x, a)
        u = s[2] / a[2] * math.exp(-0.5 * eta**2 * h) * x - s[1] * math.expm1(-0.5 * k * h) * d
        if noises != "one":
            u = u + inner * z(2 * n)
        x = b[2] / a[2] * math.exp(-(eta**2) * h) * x - b[1] * math.expm1(-k * h) * denoise(u, s)
        if noises == "exact":
            x = x + carried * inner * z(2 * n) + math.sqrt(outer**2 - (carried * inner) ** 2) * z(2 * n + 1)
        else:
            x = x + outer * z(2 * n + 1)
    return x


def seeds_2(denoise: Denoise, x: np.ndarray, levels: Sequence[Point], z: Draw) -> np.ndarray:
    """Gonzalez et al. (2023), SEEDS-2, noise prediction, half-way."""
    for n, a, b in pairs(levels):
        h = lam(b) - lam(a)
        s = of_geometry(a, lam(a) + 0.5 * h)
        z1, z2 = z(2 * n), z(2 * n + 1)
        u = (
            s[1] / a[1] * x
            - 2.0 * s[2] * math.expm1(0.5 * h) * eps(denoise, x, a)
            + s[2] * math.sqrt(math.expm1(h)) * z1
        )
        x = b[1] / a[1] * x - 2.0 * b[2] * math.expm1(h) * eps(denoise, u, s)
        x = x + b[2] * (math.sqrt(math.exp(2.0 * h) - math.exp(h)) * z1 + math.sqrt(math.expm1(h)) * z2)
    return x


def adams_moulton(
    denoise: Denoise,
    x: np.ndarray,
    levels: Sequence[Point],
    z: Draw,
    *,
    order: int,
) -> np.ndarray:
    """PEC in rho with two states; the first step of order 4 is Kutta's of order 3 with thirds, uncorrected."""
    rho = [a[2] / a[1] for a in levels]

    def integral(nodes: list[float], start: float, stop: float) -> list[float]:
        found = []
        for j, node in enumerate(nodes):
            others = [o for i, o in enumerate(nodes) if i != j]
            poly = np.polynomial.Polynomial.fromroots(others) if others else np.polynomial.Polynomial([1.0])
            whole = (poly / poly(node)).integ()
            found.append(float(whole(stop) - whole(start)))
        return found

    y, before = x / levels[0][1], x / levels[0][1]
    values: list[np.ndarray] = []
    for n, a, _ in pairs(levels):
        values.insert(0, eps(denoise, a[1] * y, a))
        c = min(order, n + 1)
        if n > 0 and not (order == 4 and n == 1):
            weights = integral([rho[n - j] for j in range(c)], rho[n - 1], rho[n])
            y = before + sum(w * v for w, v in zip(weights, values, strict=False))
        before = y
        if order == 4 and n == 0:
            h = rho[1] - rho[0]
            s1, s2 = (of_geometry(a, -math.log(rho[0] + r * h)) for r in (1 / 3, 2 / 3))
            e1 = eps(denoise, s1[1] * (y + h / 3 * values[0]), s1)
            e2 = eps(denoise, s2[1] * (y + 2 * h / 3 * e1), s2)
            y = y + h * (0.25 * values[0] + 0.75 * e2)
            continue
        p = min(order - 1, n + 1)
        weights = integral([rho[n - j] for j in range(p)], rho[n], rho[n + 1])
        y = y + sum(w * v for w, v in zip(weights, values, strict=False))
    return levels[-1][1] * y


def runge_kutta(
    denoise: Denoise,
    x: np.ndarray,
    levels: Sequence[Point],
    z: Draw,
    *,
    c: Any,
    a: Any,
    b: Any,
) -> np.ndarray:
    """A classical tableau in rho = sigma/alpha."""
    y = x / levels[0][1]
    for _, start, stop in pairs(levels):
        first, h = start[2] / start[1], stop[2] / stop[1] - start[2] / start[1]
        k: list[np.ndarray] = []
        for place, row in zip(c, a, strict=True):
            level = of_geometry(start, -math.log(first + place * h))
            k.append(eps(denoise, level[1] * (y + h * sum(w * f for w, f in zip(row, k, strict=False))), level))
        y = y + h * sum(w * f for w, f in zip(b, k, strict=True))
    return levels[-1][1] * y
