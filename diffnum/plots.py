"""Figures of the book, for users too: orders, work and precision, grids, schedules, tables, images.

Every function draws into the axes it is given, or makes a figure, and returns the axes; nothing is shown or saved.
matplotlib is imported when a function is called, never with `diffnum`. `use_style` sets the look: white and opaque,
readable on a telephone, and told apart without colour, since lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffnum._backend import concrete

if TYPE_CHECKING:
    from diffnum._tables import Table
    from diffnum.convergence import Study
    from diffnum.schedules import Schedule

__all__ = ["errors", "grid", "images", "order", "schedule", "table", "use_style", "work_precision"]

COLOURS = ("#0b5fa5", "#c8500b", "#1b7f4d", "#8a3ea8", "#a37500", "#2d2d2d", "#c22f6b", "#0e8c94")
"""Eight colours of similar darkness: at least 3:1 against white, apart for the common colour blindnesses."""
GUIDE, TEXT = "#888888", "#555555"
"""Greys of reference lines and of their names."""
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
            "axes.titlesize": 12,
            "axes.labelsize": 12,
            "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=MARKERS) + cycler(linestyle=list(DASHES)),
            "grid.color": "#d9d9d9",
            "grid.linewidth": 0.6,
            "font.size": 12,
            "legend.fontsize": 11,
            "legend.frameon": True,
            "legend.framealpha": 1.0,
            "legend.edgecolor": "#bbbbbb",
            "lines.linewidth": 1.6,
            "lines.markersize": 5.0,
            "xtick.labelsize": 11,
            "ytick.labelsize": 11,
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
        Draw a grey line of slope -k for each whole order k that was measured, below the points of its study.

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
            n = np.asarray([study.steps[i] for i in (study.used[0], study.used[-1])], dtype=float)
            line = 0.6 * study.errors[study.used[-1]] * (n / n[-1]) ** -whole
            _guide(ax, n, line, f"$n^{{-{whole}}}$")
    ax.set_xlabel("steps $n$")
    ax.set_ylabel("error")
    _plain_ticks(ax, sorted({n for study in studies.values() for n in study.steps}))
    ax.legend()
    return ax


def work_precision(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], ax: Any = None) -> Any:
    """Errors against evaluations of the denoiser, on logarithmic axes: the lowest line is the cheapest sampler.

    Parameters
    ----------
    curves : mapping of str to pair
        By name: numbers of evaluations, and errors.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If `curves` is empty, or two lengths differ.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from diffnum import plots
    >>> plots.work_precision({"ab2": ([8, 16, 32], [1e-1, 2.5e-2, 6e-3])}).get_xlabel()
    'evaluations of the denoiser'
    """
    ax = errors(curves, ax, xlabel="evaluations of the denoiser")
    _plain_ticks(ax, sorted({round(n) for pair in curves.values() for n in pair[0]}))
    return ax


def errors(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ax: Any = None,
    *,
    xlabel: str = "",
    ylabel: str = "error",
    rounding: float | None = None,
    markers: bool = True,
) -> Any:
    """Errors against any positive quantity, on logarithmic axes; zeros are left out.

    Parameters
    ----------
    curves : mapping of str to pair
        By name: abscissae and errors.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    xlabel, ylabel : str, optional
        What the axes show.
    rounding : float, optional
        Draw a level line there, such as the machine epsilon.
    markers : bool, optional
        Mark the points; switch it off for dense curves.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If `curves` is empty, or two lengths differ.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> from diffnum import plots
    >>> h = np.logspace(-8, 0, 50)
    >>> naive = abs((np.exp(h) - 1.0) / np.expm1(h) - 1.0)
    >>> ax = plots.errors({"exp(h) - 1": (h, naive)}, xlabel="h", rounding=2.2e-16, markers=False)
    >>> ax.get_xscale(), len(ax.lines)
    ('log', 2)
    """
    if not curves:
        msg = f"curves must hold at least one curve, got {curves!r}"
        raise ValueError(msg)
    ax = _axes(ax)
    for name, (places, sizes) in curves.items():
        x, y = np.asarray(places, dtype=float), np.asarray(sizes, dtype=float)
        if x.shape != y.shape or x.ndim != 1:
            msg = f"curves must hold pairs of sequences of one length, got {x.shape} and {y.shape} for {name!r}"
            raise ValueError(msg)
        positive = y > 0.0
        ax.loglog(x[positive], y[positive], label=name, **({} if markers else {"marker": ""}))
    if rounding is not None:
        ax.axhline(rounding, color=GUIDE, linewidth=1.0, linestyle="-", marker="", zorder=1)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend()
    return ax


def schedule(schedules: Sequence[Schedule], ax: Any = None, *, count: int = 400) -> Any:
    """Log-SNR over time, each schedule from its clean to its noisy end; infinite ends are left out.

    Parameters
    ----------
    schedules : sequence of Schedule
        What to draw.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    count : int, optional
        Points for each.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; time is scaled to [0, 1].

    Raises
    ------
    ValueError
        If `schedules` is empty.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from diffnum import plots, schedules
    >>> ax = plots.schedule([schedules.cosine(), schedules.rectified_flow()])
    >>> ax.get_legend_handles_labels()[1]
    ['cosine(offset=0)', 'rectified_flow()']
    """
    if not schedules:
        msg = f"schedules must hold at least one schedule, got {schedules!r}"
        raise ValueError(msg)
    ax = _axes(ax)
    share = (np.arange(count) + 0.5) / count
    for one in schedules:
        log_snr = one.log_snr(one.t_clean + share * (one.t_noise - one.t_clean))
        ax.plot(share, log_snr, label=one.name, marker="")
    ax.set_xlabel("time, from clean to noisy")
    ax.set_ylabel("log-SNR (nats)")
    ax.legend()
    return ax


def grid(nodes: Mapping[str, Sequence[float]], ax: Any = None, *, label: str = "log-SNR (nats)") -> Any:
    """Nodes of several grids, one grid above the other.

    Parameters
    ----------
    nodes : mapping of str to sequence of float
        By name: the nodes in the coordinate to be shown; infinite ones are left out.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default, its height according to the number of grids.
    label : str, optional
        What the coordinate is.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, the first grid on top.

    Raises
    ------
    ValueError
        If `nodes` is empty.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from diffnum import grids, plots, schedules
    >>> edm = schedules.edm()
    >>> ax = plots.grid({"karras": edm.log_snr(grids.karras(edm, 20))})
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['karras']
    """
    if not nodes:
        msg = f"nodes must hold at least one grid, got {nodes!r}"
        raise ValueError(msg)
    ax = _axes(ax, figsize=(6.4, 0.9 + 0.45 * len(nodes)))
    for row, values in enumerate(nodes.values()):
        places = np.asarray(values, dtype=float)
        places = places[np.isfinite(places)]
        colour, marker = COLOURS[row % len(COLOURS)], MARKERS[row % len(MARKERS)]
        ax.plot(places, np.full(places.shape, row), color=colour, marker=marker, linestyle="-", linewidth=0.6)
    ax.set_yticks(range(len(nodes)), list(nodes))
    ax.set_ylim(len(nodes) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(label)
    return ax


def table(table: Table, ax: Any = None, *, numbers: bool | None = None) -> Any:
    """Picture of a table: a row for each evaluation, colours for the factors of state and registers, noise uncoloured.

    Parameters
    ----------
    table : Table
        What to draw.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default, its height according to the number of rows.
    numbers : bool, optional
        Write the factors into the cells; by default up to 16 rows.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Orange is positive, violet negative; a ring marks the register that a row stores its value in.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from diffnum import grids, paths, plots, schedules
    >>> from diffnum.solvers import adams_bashforth
    >>> edm = schedules.edm()
    >>> ax = plots.table(adams_bashforth(paths.x0(edm, grids.karras(edm, 6)), 2))
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['state', 'F0', 'F1']
    """
    carry, weights = (np.asarray(concrete(part), dtype=float) for part in (table.carry, table.weights))
    names = ["state", *(f"F{k}" for k in range(weights.shape[1]))]
    values = np.concatenate([carry[:, None], weights], axis=1)
    shades = values / np.max(np.abs(values))
    if table.noise is not None:
        noise = np.asarray(concrete(table.noise), dtype=float)[:, None]
        values, shades = np.concatenate([values, noise], axis=1), np.concatenate([shades, 0.0 * noise], axis=1)
        names.append("noise")
    rows = values.shape[0]
    ax = _axes(ax, figsize=(1.4 + 0.9 * len(names), 0.9 + 0.3 * rows))
    # pale enough to read black numbers on
    ax.imshow(shades, cmap="PuOr_r", vmin=-1.6, vmax=1.6, aspect="auto")
    stored = np.asarray(table.slot)
    if rows <= 16 if numbers is None else numbers:
        for r, k in np.ndindex(*values.shape):
            if values[r, k] != 0.0:
                ax.text(k, r, f"{values[r, k]:.3g}", ha="center", va="center", fontsize=8)
    ax.plot(stored + 1.38, np.arange(rows), linestyle="", marker="o", markersize=4, color="black", fillstyle="none")
    ax.set_xticks(range(len(names)), names)
    ax.xaxis.tick_top()
    ax.set_yticks(range(0, rows, -(-rows // 16)))
    ax.set_ylabel("evaluation")
    ax.grid(visible=False)
    return ax


def images(
    array: Any, ax: Any = None, *, columns: int = 10, limits: tuple[float, float] | None = None, gap: int = 1
) -> Any:
    """Grey images in rows, the smallest value white and the largest black.

    Parameters
    ----------
    array : array, shape (N, H, W)
        The images.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default, fitted to the images.
    columns : int, optional
        Images in a row.
    limits : tuple of float, optional
        Values shown white and black; the smallest and the largest by default.
    gap : int, optional
        White pixels between images.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, without ticks.

    Raises
    ------
    ValueError
        If `array` has not three axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> from diffnum import plots
    >>> plots.images(np.zeros((12, 8, 8)), columns=6).get_images()[0].get_array().shape
    (17, 53)
    """
    pictures = np.asarray(concrete(array), dtype=float)
    if pictures.ndim != 3 or 0 in pictures.shape:
        msg = f"array must have shape (N, H, W), got {pictures.shape}"
        raise ValueError(msg)
    count, height, width = pictures.shape
    low, high = (float(pictures.min()), float(pictures.max())) if limits is None else limits
    columns = min(columns, count)
    lines = -(-count // columns)
    sheet = np.full((lines * (height + gap) - gap, columns * (width + gap) - gap), low)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    ax = _axes(ax, figsize=(6.4, 6.4 * sheet.shape[0] / sheet.shape[1]))
    ax.imshow(sheet, cmap="gray_r", vmin=low, vmax=high, interpolation="nearest")
    ax.set_axis_off()
    return ax


def _guide(ax: Any, x: np.ndarray, y: np.ndarray, text: str) -> None:
    """A thin grey line, named below its middle."""
    ax.loglog(x, y, color=GUIDE, linewidth=1.0, linestyle="-", marker="", zorder=1)
    middle = (float(np.sqrt(x[0] * x[-1])), float(np.sqrt(y[0] * y[-1])))
    ax.annotate(
        text, middle, xytext=(-2, -1), textcoords="offset points", color=TEXT, fontsize=10, ha="right", va="top"
    )


def _axes(ax: Any, **options: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(**options)[1]


def _shown(order: float) -> str:
    if np.isnan(order):
        return "no order"
    return "exact" if np.isinf(order) else f"{round(order, 2) + 0.0:.2f}"  # no -0.00


def _plain_ticks(ax: Any, numbers: list[int]) -> None:
    """Ticks at the numbers themselves, written out, at most eight of them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    shown = numbers[:: -(-len(numbers) // 8)]
    ax.set_xticks(shown, [str(n) for n in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
