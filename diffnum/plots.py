"""Figures of the book, for users too: orders, work and precision, grids, schedules, tables, images.

Every function draws into the axes it is given, or makes a figure, and returns the axes; nothing is shown or saved.
matplotlib is imported when a function is called, never with `diffnum`. `use_style` sets the look: white and opaque,
readable on a telephone, and told apart without colour, since lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from diffnum.convergence import Study

__all__ = ["order", "use_style"]

COLOURS = ("#0b5fa5", "#c8500b", "#1b7f4d", "#8a3ea8", "#a37500", "#2d2d2d", "#c22f6b", "#0e8c94")
"""Eight colours of similar darkness: at least 3:1 against white, apart for the common colour blindnesses."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (3, 1, 1, 1)), (0, (2, 2)))


def use_style() -> None:
    """Set matplotlib's defaults to the look of the book, for the rest of the session.

    Examples
    --------
    >>> from diffnum import plots
    >>> plots.use_style()
    """
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "figure.figsize": (6.4, 3.8),
            "figure.dpi": 150,
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "savefig.dpi": 150,
            "savefig.facecolor": "white",
            "savefig.transparent": False,
            "axes.facecolor": "white",
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.labelsize": 11,
            "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=MARKERS) + cycler(linestyle=list(DASHES)),
            "grid.color": "#d9d9d9",
            "grid.linewidth": 0.6,
            "font.size": 11,
            "legend.fontsize": 10,
            "legend.frameon": True,
            "legend.framealpha": 1.0,
            "legend.edgecolor": "#bbbbbb",
            "lines.linewidth": 1.6,
            "lines.markersize": 5.0,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "image.cmap": "viridis",
            "svg.hashsalt": "diffnum",
        }
    )


def order(studies: Mapping[str, Study], ax: Any = None, *, reference_slopes: bool = True) -> Any:
    """Errors against steps on logarithmic axes, the fitted order of each line in the legend.

    Parameters
    ----------
    studies : mapping of str to Study
        What `diffnum.convergence.study` returned, by name.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    reference_slopes : bool, optional
        Draw a grey line of slope -k for each whole order k that was measured, through the last point of its study.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If `studies` is empty.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from diffnum import plots
    >>> from diffnum.convergence import study
    >>> ax = plots.order({"Euler": study(lambda n: (1 + 1 / n) ** n, [20, 40, 80, 160], 2.718281828459045)})
    >>> ax.get_legend_handles_labels()[1]
    ['Euler: 0.98']
    """
    if not studies:
        msg = f"studies must hold at least one study, got {studies!r}"
        raise ValueError(msg)
    ax = _axes(ax)
    drawn: set[int] = set()
    for name, study in studies.items():
        ax.loglog(study.steps, study.errors, label=f"{name}: {_shown(study.order)}")
        whole = round(study.order) if np.isfinite(study.order) else 0
        if reference_slopes and whole > 0 and whole not in drawn:
            drawn.add(whole)
            last = study.used[-1]
            n = np.asarray([study.steps[study.used[0]], study.steps[last]], dtype=float)
            line = 0.6 * study.errors[last] * (n / study.steps[last]) ** -whole
            ax.loglog(n, line, color="#888888", linewidth=1.0, linestyle="-", marker="", zorder=1)
            ax.annotate(
                f"slope {whole}", (n[0], line[0]), xytext=(-2, -2), textcoords="offset points", color="#555555",
                fontsize=9, ha="right", va="top",
            )  # fmt: skip
    ax.set_xlabel("steps")
    ax.set_ylabel("error")
    _plain_ticks(ax, sorted({n for study in studies.values() for n in study.steps}))
    ax.legend()
    return ax


def _axes(ax: Any, **options: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(**options)[1]


def _shown(order: float) -> str:
    if np.isnan(order):
        return "no order"
    return "exact" if np.isinf(order) else f"{order:.2f}"


def _plain_ticks(ax: Any, numbers: list[int]) -> None:
    """Ticks at the numbers themselves, written out, at most eight of them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    shown = numbers[:: -(-len(numbers) // 8)]
    ax.set_xticks(shown, [str(n) for n in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
