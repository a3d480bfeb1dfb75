"""`make bench-peers`: the default sampler beside the public packages k-diffusion and diffusers, on exact denoisers.

All get the same denoiser, the same start at sigma = 80 and at most the same number of evaluations. The table shows the
RMS distance of what comes out from the exact solution of the probability-flow ODE at sigma = 0; for samplers that add
noise, the distance of their law from the data's. The peers live in an environment of their own, ``.venv-peers``, which
``tools/peers.py`` makes; without it ``run(peers=False)`` measures our side alone.

How the peers are called. k-diffusion: its functions, in float64, on its Karras grid, from 80 to 0.002 and then to 0.
Of it only the module ``sampling`` is imported, with a stand-in for torchvision, which that module never calls.
diffusers: its schedulers, with ``sample`` prediction and the same Karras grid in place of their own, which starts
elsewhere. They keep sigma and parts of the state in float32, so errors below 1e-5 are theirs. DEIS cannot end at
sigma = 0 and ends at 0.002.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import platform
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from diffnum import grids, oracles, paths, schedules, solvers
from diffnum.schedules import Level

OUTPUT = Path(__file__).resolve().parent.parent / "_build" / "bench-peers.json"
EVALUATIONS = (10, 20, 40)
GOALS = {10: 1 / 2, 20: 1 / 5, 40: 1 / 5}
"""Our error over that of the best peer."""
SIGMA_MAX, SIGMA_MIN = 80.0, 0.002
EDM = schedules.edm(sigma_min=0.0, sigma_max=SIGMA_MAX)
TORCHVISION = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
PACKAGES = ("torch", "k-diffusion", "diffusers", "torchsde", "torchdiffeq", "numpy", "scipy", "scikit-learn")
QUANTILES = 201
"""Starts on the line: quantiles of the exact law."""
NOISY_SAMPLES = 2**14
AGREEMENT = 1e-4
"""Two integrations of a reference differ by less, unless the start ends at another point."""
LEAST_SURE = 0.97

Denoiser = Callable[[Any, Any], Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A denoiser, starts at sigma = 80 and where the exact ODE takes them."""

    name: str
    oracle: oracles.Oracle
    sigma_data: float
    x: np.ndarray
    exact: np.ndarray


def rms(x: np.ndarray, exact: np.ndarray) -> float:
    """Root of the mean square of the difference, over all coordinates of all points."""
    return float(np.sqrt(np.mean((x - exact) ** 2)))


def wasserstein(x: np.ndarray, exact: np.ndarray) -> float:
    """First Wasserstein distance on the line between samples `x` and as many quantiles of the exact law."""
    return float(np.mean(np.abs(np.sort(x.ravel()) - np.sort(exact.ravel()))))


def on_the_line(name: str, weights: Sequence[float], means: Sequence[float], stds: Sequence[float]) -> Task:
    """A mixture in one dimension, where the flow keeps quantiles: no integrator is asked."""
    w, m, s = (np.asarray(part, dtype=float) for part in (weights, means, stds))
    share = (np.arange(QUANTILES) + 0.5) / QUANTILES
    x, exact = (np.array([[quantile(p, w, m, np.hypot(s, noise))] for p in share]) for noise in (SIGMA_MAX, 0.0))
    variance = float(w @ (m**2 + s**2) - (w @ m) ** 2)
    return Task(name, oracles.mixture(w, m[:, None], s), variance**0.5, x, exact)


def quantile(p: float, weights: np.ndarray, means: np.ndarray, stds: np.ndarray) -> float:
    """Where the distribution function of a mixture is `p`."""

    def above(x: float) -> float:
        return float(weights @ ndtr((x - means) / stds)) - p

    return float(brentq(above, -1e3, 1e3, xtol=1e-13))  # pyright: ignore[reportArgumentType]


def points(name: str, data: np.ndarray, count: int = 384, *, steps: int = 240) -> Task:
    """A data set as point masses.

    The reference is a table of order 4 with twice `steps` steps. Starts that another one with `steps` steps on another
    path takes elsewhere lie on the border between two points, where no reference is sure, and are left out.
    """
    rng = np.random.default_rng(1)
    x = data[rng.integers(len(data), size=count)] + SIGMA_MAX * rng.standard_normal((count, data.shape[1]))
    oracle, sigma_data = oracles.empirical(data), float(data.std())
    fine, coarse = (karras(n) for n in (2 * steps, steps))
    exact = solvers.ab4(oracle.denoise, x, paths.velocity(EDM, fine, sigma_data=sigma_data))
    other = solvers.ab4(oracle.denoise, x, paths.noise(EDM, coarse, coordinate="ratio"))
    sure = np.max(np.abs(exact - other), axis=1) < AGREEMENT
    if np.mean(sure) < LEAST_SURE:
        msg = f"the references of {name} must agree on {LEAST_SURE:.0%} of the starts, got {np.mean(sure):.1%}"
        raise RuntimeError(msg)
    return Task(name, oracle, sigma_data, x[sure], exact[sure])


def karras(steps: int) -> np.ndarray:
    """The published grid: `steps` nodes from 80 to 0.002, and 0."""
    inner = schedules.edm(sigma_min=SIGMA_MIN, sigma_max=SIGMA_MAX)
    return np.append(grids.karras(inner, steps - 1), 0.0)


def mixture() -> Task:
    """1/2 N(-3, 1/4) + 1/2 N(3, 1/4)."""
    return on_the_line("mixture", [0.5, 0.5], [-3.0, 3.0], [0.5, 0.5])


def digits(count: int = 512) -> Task:
    """The 1,797 images of 8 by 8 pixels that scikit-learn ships, in [-1, 1]^64."""
    from sklearn.datasets import load_digits

    return points("digits", load_digits(return_X_y=True)[0] / 8.0 - 1.0, count)


def gaussian() -> Task:
    """A Gaussian with the full covariance of the digits, which the flow maps linearly."""
    from sklearn.datasets import load_digits

    covariance = np.cov((load_digits(return_X_y=True)[0] / 8.0 - 1.0).T)
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    z = np.random.default_rng(2).standard_normal((QUANTILES, len(values)))
    x, exact = ((z * np.sqrt(values + noise**2)) @ axes.T for noise in (SIGMA_MAX, 0.0))
    oracle = oracles.gaussian(np.zeros(len(values)), covariance=covariance)
    return Task("Gaussian, 64 scales", oracle, float(np.sqrt(np.mean(values))), x, exact)


def patches() -> Task:
    """Patches of 8 by 8 pixels of a photograph, whose structure has all scales."""
    from sklearn.datasets import load_sample_image

    image = load_sample_image("china.jpg").mean(axis=2) / 127.5 - 1.0
    rng = np.random.default_rng(3)
    corners = zip(rng.integers(0, image.shape[0] - 8, 2000), rng.integers(0, image.shape[1] - 8, 2000), strict=True)
    return points("photograph", np.array([image[i : i + 8, j : j + 8].ravel() for i, j in corners]))


def table_of(name: str) -> Task:
    """A table of measurements, each column scaled to unit variance."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")().data
    return points(name.replace("_", " "), (data - data.mean(axis=0)) / data.std(axis=0))


CHOSEN_ON: dict[str, Callable[[], Task]] = {"mixture": mixture, "digits": digits}
"""The default sampler was chosen on these."""
HELD_OUT: dict[str, Callable[[], Task]] = {
    "unequal pair": lambda: on_the_line("unequal pair", [0.3, 0.7], [-1.0, 0.6], [0.25, 0.4]),
    "broad pair": lambda: on_the_line("broad pair", [0.3, 0.7], [-1.0, 1.5], [0.5, 0.7]),
    "narrow pair": lambda: on_the_line("narrow pair", [0.5, 0.5], [-1.0, 1.0], [0.05, 0.05]),
    "three far apart": lambda: on_the_line("three far apart", [0.3, 0.3, 0.4], [-8.0, 1.0, 6.0], [0.3] * 3),
    "Gaussian": gaussian,
    "photograph": patches,
    "wine": lambda: table_of("wine"),
    "breast cancer": lambda: table_of("breast_cancer"),
}
"""Only its last two choices, an exponent and the order at both ends, were made with these in sight as well."""


class Counted:
    """The denoiser of a task for torch tensors at alpha = 1, and how often it was asked."""

    def __init__(self, task: Task) -> None:
        self.oracle, self.calls = task.oracle, 0

    def __call__(self, x: Any, sigma: Any, **_: Any) -> Any:
        """Posterior mean of `x` at `sigma`, in float64."""
        import torch

        self.calls += 1
        noise = np.asarray(float(torch.as_tensor(sigma).flatten()[0]))
        return torch.from_numpy(self.oracle.denoise(x.double().numpy(), Level(noise, np.asarray(1.0), noise)))


def ours(task: Task, evaluations: int) -> tuple[np.ndarray, int]:
    """The default sampler, and what it evaluated."""
    table = solvers.default_table(EDM, evaluations, sigma_data=task.sigma_data)
    return solvers.solve(task.oracle.denoise, task.x, table), table.evaluations


def load_k_diffusion() -> Any:
    """The module ``k_diffusion.sampling`` alone, without the image tools that its package imports."""
    if "k_diffusion.sampling" in sys.modules:
        return sys.modules["k_diffusion.sampling"]
    spec = importlib.util.find_spec("k_diffusion")
    if spec is None:
        msg = "k_diffusion is not installed"
        raise ImportError(msg)
    package = stand_in("k_diffusion")
    package.__path__ = list(spec.submodule_search_locations or ())
    images = [] if importlib.util.find_spec("torchvision") else [*map(stand_in, TORCHVISION)]
    for parent, child in itertools.pairwise(images):
        setattr(parent, child.__name__.rpartition(".")[2], child)
    sys.modules.update({module.__name__: module for module in (package, *images)})
    try:
        return importlib.import_module("k_diffusion.sampling")
    finally:
        # others would take a stand-in for the real thing
        for module in images:
            del sys.modules[module.__name__]


def stand_in(name: str) -> types.ModuleType:
    """An empty package."""
    module = types.ModuleType(name)
    module.__path__ = []
    return module


def k_diffusion(name: str) -> Callable[[Task, int], tuple[np.ndarray, int]]:
    """One of its functions on its Karras grid; methods of two evaluations a step get half the steps."""

    def sample(task: Task, evaluations: int) -> tuple[np.ndarray, int]:
        import torch

        sampling, denoise = load_k_diffusion(), Counted(task)
        double = name in {"sample_heun", "sample_dpm_2"}
        steps = (evaluations + 1) // 2 if double else evaluations
        sigmas = sampling.get_sigmas_karras(steps, SIGMA_MIN, SIGMA_MAX).double()
        torch.manual_seed(0)
        out = getattr(sampling, name)(denoise, torch.from_numpy(task.x), sigmas, disable=True)
        return out.numpy(), denoise.calls

    return sample


def diffusers(name: str, **options: Any) -> Callable[[Task, int], tuple[np.ndarray, int]]:
    """One of its schedulers, on the Karras grid; the state is x/sqrt(1 + sigma^2), as in the schedulers."""

    def sample(task: Task, evaluations: int) -> tuple[np.ndarray, int]:
        import diffusers as package
        import torch

        denoise = Counted(task)
        scheduler = getattr(package, name)(prediction_type="sample", **options)
        scheduler.set_timesteps(evaluations)
        zero = name != "DEISMultistepScheduler"
        scheduler.sigmas = torch.from_numpy(karras(evaluations) if zero else karras(evaluations + 1)[:-1]).float()
        scheduler.timesteps = torch.arange(evaluations, 0, -1)
        scheduler.set_begin_index(0)
        norms = torch.sqrt(1.0 + scheduler.sigmas.double() ** 2)
        x = torch.from_numpy(task.x) / norms[0]
        for i, t in enumerate(scheduler.timesteps):
            x = scheduler.step(denoise(x.double() * norms[i], scheduler.sigmas[i]), t, x).prev_sample
        return (x.double() * norms[-1]).numpy(), denoise.calls

    return sample


ODE_PEERS = {
    "k-diffusion Heun": k_diffusion("sample_heun"),
    "k-diffusion DPM-2": k_diffusion("sample_dpm_2"),
    "k-diffusion LMS": k_diffusion("sample_lms"),
    "k-diffusion DPM++ 2M": k_diffusion("sample_dpmpp_2m"),
    "diffusers DPM++ 2M": diffusers("DPMSolverMultistepScheduler", solver_order=2),
    "diffusers UniPC 2": diffusers("UniPCMultistepScheduler", solver_order=2),
    "diffusers UniPC 3": diffusers("UniPCMultistepScheduler", solver_order=3),
    "diffusers DEIS 3": diffusers("DEISMultistepScheduler", solver_order=3),
}
SDE_PEERS = {
    "k-diffusion Euler ancestral": k_diffusion("sample_euler_ancestral"),
    "k-diffusion DPM++ 2M SDE": k_diffusion("sample_dpmpp_2m_sde"),
}


def noisy(task: Task, evaluations: int) -> tuple[np.ndarray, int]:
    """Adams-Bashforth 2 on the velocity path, which is exact in law on Gaussian data of that scale."""
    nodes = solvers.default_grid(EDM, evaluations, sigma_data=task.sigma_data)
    path = paths.velocity(EDM, nodes, sigma_data=task.sigma_data, eta=1.0)
    return solvers.ab2(task.oracle.denoise, task.x, path, rng=np.random.default_rng(0)), evaluations


def run(tasks: Sequence[Task], *, peers: bool = True, noise: bool = True) -> list[Row]:
    """Errors of our sampler and, if asked for, of the peers.

    Parameters
    ----------
    tasks : sequence of Task
        What to run on.
    peers : bool, optional
        Whether to run the public packages, which must be installed.
    noise : bool, optional
        Whether to compare samplers that add noise as well, on the mixture.

    Returns
    -------
    list of dict
        ``task``, ``sampler``, ``evaluations`` (allowed), ``used``, ``error`` (RMS, or Wasserstein with noise), and
        for ours ``best``, ``best_peer``, ``ratio``, ``goal`` and ``met``.
    """
    rows: list[Row] = []
    for task in tasks:
        for evaluations in EVALUATIONS:
            found = {name: sample(task, evaluations) for name, sample in (ODE_PEERS if peers else {}).items()}
            errors = {name: rms(x, task.exact) for name, (x, _) in found.items()}
            x, used = ours(task, evaluations)
            mine = row(task, "diffnum default", evaluations, used, rms(x, task.exact))
            if errors:
                # a sampler that gave NaN is not the best
                best = min(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf))
                ratio = mine["error"] / errors[best]
                goal = GOALS[evaluations] if task.name in CHOSEN_ON else None
                mine |= {"best": errors[best], "best_peer": best, "ratio": ratio, "goal": goal}
                mine["met"] = None if goal is None else ratio <= goal
            rows.append(mine)
            rows += [row(task, name, evaluations, found[name][1], error) for name, error in errors.items()]
    if noise:
        task = many(next(task for task in tasks if task.name == "mixture"))
        for evaluations in EVALUATIONS:
            for name, sample in {"diffnum ab2, eta = 1": noisy, **(SDE_PEERS if peers else {})}.items():
                x, used = sample(task, evaluations)
                line = row(task, name, evaluations, used, wasserstein(x, task.exact))
                rows.append(line | {"law": True, "std": float(x.std() / task.exact.std() - 1.0)})
    return rows


def row(task: Task, sampler: str, evaluations: int, used: int, error: float) -> Row:
    """A line of the report."""
    return {"task": task.name, "sampler": sampler, "evaluations": evaluations, "used": used, "error": error}


def many(task: Task) -> Task:
    """The mixture with as many starts, and as many quantiles, as a law needs."""
    share = (np.arange(NOISY_SAMPLES) + 0.5) / NOISY_SAMPLES
    half = 0.5 * ndtri(share)
    exact = np.sort(np.concatenate([half[::2] - 3.0, half[1::2] + 3.0]))
    start = exact + SIGMA_MAX * np.random.default_rng(4).standard_normal(NOISY_SAMPLES)
    return Task(task.name, task.oracle, task.sigma_data, start[:, None], exact[:, None])


def report(rows: Sequence[Row]) -> str:
    """Tables: a line for each sampler, a column for each number of evaluations."""
    lines = []
    kinds = {(r["task"], r.get("law", False)): None for r in rows}
    for task, law in kinds:
        of_task = [r for r in rows if r["task"] == task and r.get("law", False) == law]
        what = "first Wasserstein distance, relative error of the standard deviation" if law else "RMS error"
        lines.append(f"\n{task}: {what}\n{'':28s}" + "".join(f"{n:>22d}" for n in EVALUATIONS))
        for sampler in {r["sampler"]: None for r in of_task}:
            cells = [r for r in of_task if r["sampler"] == sampler]
            texts = [f"{r['error']:.5f} " + (f"{r['std']:+.2%}" if law else f"({r['used']})") for r in cells]
            lines.append(f"{sampler:28s}" + "".join(f"{text:>22s}" for text in texts))
        for r in of_task:
            if "ratio" in r:
                verdict = "" if r["goal"] is None else f", goal {r['goal']:.2f}: {'met' if r['met'] else 'MISSED'}"
                lines.append(f"  {r['evaluations']:2d}: {r['ratio']:.3f} of the best peer, {r['best_peer']}{verdict}")
    return "\n".join(lines)


def versions() -> dict[str, str | None]:
    """Versions of what was run."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def missing() -> str | None:
    """Why the peers cannot be run, or None."""
    try:
        load_k_diffusion()
        importlib.import_module("diffusers")
    except ImportError as error:
        return f"the peers cannot be imported ({error}); `make bench-peers` installs them, --no-peers leaves them out"
    return None


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="our default sampler beside others")
    parser.add_argument("--no-peers", action="store_true", help="measure our side alone")
    parser.add_argument("--quick", action="store_true", help="only the problems that the goals name")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    reason = None if options.no_peers else missing()
    if reason is not None:
        print(f"bench-peers: {reason}", file=sys.stderr)
        return 1
    about = versions()
    print(", ".join(f"{name} {number}" for name, number in about.items()))
    makers = CHOSEN_ON if options.quick else {**CHOSEN_ON, **HELD_OUT}
    rows = run([make() for make in makers.values()], peers=not options.no_peers)
    print(report(rows))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"versions": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    missed = [f"{r['task']} at {r['evaluations']}" for r in rows if r.get("met") is False]
    print(f"\nbench-peers: written to {options.output}")
    print(f"bench-peers: goals missed: {', '.join(missed)}" if missed else "bench-peers: no goal missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
