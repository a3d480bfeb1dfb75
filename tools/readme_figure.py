"""Draw the figure of the README: `python tools/readme_figure.py` writes book/_static/orders.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from diffnum import convergence, solvers

ROOT = Path(__file__).resolve().parent.parent
FIGURE = ROOT / "book" / "_static" / "orders.svg"
STEPS = (16, 32, 64, 128, 256, 512)


def studies() -> dict[str, convergence.Study]:
    """Errors of every method on a mixture with a known solution, on grids of random ratios."""
    (problem,) = convergence.problems("mixture-vp")
    methods = {
        "ab1 (DDIM)": solvers.ab1,
        "ab2": solvers.ab2,
        "midpoint": lambda denoise, x, path: solvers.solve(denoise, x, solvers.runge_kutta(path, solvers.MIDPOINT)),
        "heun": solvers.heun,
        "ab3": solvers.ab3,
        "Runge-Kutta 3": lambda denoise, x, path: solvers.solve(
            denoise, x, solvers.runge_kutta(path, solvers.RUNGE_KUTTA_3)
        ),
        "ab4": solvers.ab4,
    }

    def study(sampler):
        def run(n):
            return sampler(problem.denoise, problem.x, problem.path(problem.grid(n)))

        return convergence.study(run, STEPS, problem.reference)

    return {name: study(sampler) for name, sampler in methods.items()}


def legend(name: str, study: convergence.Study) -> str:
    """What the figure's legend says of a study."""
    return f"{name}: {study.order:.2f}"


def main() -> int:
    """Draw and write."""
    import matplotlib as mpl

    mpl.use("Agg")
    from diffnum import plots

    plots.use_style()
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small, and a test reads it
    axes = plots.order(studies())
    axes.set_title("Error against steps, and the fitted order")
    axes.figure.savefig(FIGURE, metadata={"Date": None, "Creator": None})
    text = FIGURE.read_text(encoding="utf-8")
    FIGURE.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)}, {FIGURE.stat().st_size // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
