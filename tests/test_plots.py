"""What the figures consist of: lines, scales, labels, pixels; no snapshots."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from diffnum import convergence, grids, paths, plots, schedules, solvers

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `book`")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib import colors  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    with matplotlib.rc_context():
        yield
        plt.close("all")


def power(p, steps=(16, 32, 64, 128), constant=1.0):
    return convergence.study(lambda n: constant * float(n) ** -p, steps, 0.0)


def contrast(colour):
    """Contrast ratio against white, by the formula of WCAG 2."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(colour))
    return 1.05 / (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05)


def test_the_library_does_not_import_matplotlib():
    code = "import sys, diffnum.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_style_is_opaque_and_told_apart_without_colour():
    plots.use_style()
    figure, ax = plt.subplots()
    lines = [ax.plot([0, 1], [k, k])[0] for k in range(8)]
    assert colors.to_rgba(figure.get_facecolor()) == colors.to_rgba(ax.get_facecolor()) == (1.0, 1.0, 1.0, 1.0)
    assert not matplotlib.rcParams["savefig.transparent"]
    assert colors.to_rgb(matplotlib.rcParams["savefig.facecolor"]) == (1.0, 1.0, 1.0)
    assert figure.get_size_inches().tolist() == [6.4, 3.8]
    assert matplotlib.rcParams["savefig.dpi"] == matplotlib.rcParams["figure.dpi"] == 150
    assert matplotlib.rcParams["font.size"] == 12
    assert len({str(line.get_marker()) for line in lines}) == 8
    assert len({str(line.get_color()) for line in lines}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 8
    assert all(contrast(line.get_color()) > 3.0 for line in lines), "contrast of graphics in WCAG 2"


def test_order_draws_studies_and_slopes():
    studies = {"one": power(1.0), "two": power(2.0), "also two": power(2.0, constant=3.0)}
    ax = plots.order(studies)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_legend_handles_labels()[1] == ["one: 1.00", "two: 2.00", "also two: 2.00"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one: 1.00", "two: 2.00", "also two: 2.00"]
    drawn = [line for line in ax.lines if not line.get_label().startswith("_")]
    guides = [line for line in ax.lines if line.get_label().startswith("_")]
    for line, study in zip(drawn, studies.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), study.steps)
        np.testing.assert_array_equal(line.get_ydata(), study.errors)
    assert len(guides) == 2, "one for each whole order"
    for line, whole in zip(guides, (1, 2), strict=True):
        x, y = line.get_xdata(), line.get_ydata()
        assert x.tolist() == [16, 128]
        assert np.log(y[0] / y[1]) / np.log(x[1] / x[0]) == pytest.approx(whole, abs=1e-12)
        assert y[1] == pytest.approx(0.6 * 128.0**-whole)
    assert [text.get_text() for text in ax.texts] == ["$n^{-1}$", "$n^{-2}$"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["16", "32", "64", "128"]
    assert ax.get_xlabel() == "steps $n$"
    assert ax.get_ylabel() == "error"


def test_order_without_an_order():
    exact = convergence.study(lambda n: 1.0 + 1e-16 * n, [1, 2, 4], 1.0)
    unsettled = convergence.study(lambda n: 1.0 / n if n < 4 else 1e-3, [1, 2, 4], 0.0)
    flat = convergence.study(lambda n: 1.0 + 0.0 * n, [1, 2, 4], 0.0)
    ax = plots.order({"a": exact, "b": unsettled, "c": flat})
    assert ax.get_legend_handles_labels()[1] == ["a: exact", "b: no order", "c: 0.00"]
    assert len(ax.lines) == 3, "no reference slope where no order was measured"
    assert len(plots.order({"a": power(1.0)}, reference_slopes=False).lines) == 1


def test_axes_that_are_given_are_used_and_new_ones_made():
    table = solvers.adams_bashforth(paths.x0(schedules.edm(), grids.karras(schedules.edm(), 4)), 2)
    draw = {
        "order": lambda ax: plots.order({"a": power(1.0)}, ax),
        "work": lambda ax: plots.work_precision({"a": ([1, 2], [1.0, 0.5])}, ax),
        "errors": lambda ax: plots.errors({"a": ([1, 2], [1.0, 0.5])}, ax),
        "schedule": lambda ax: plots.schedule([schedules.cosine()], ax),
        "grid": lambda ax: plots.grid({"a": [1.0, 0.5]}, ax),
        "table": lambda ax: plots.table(table, ax),
        "images": lambda ax: plots.images(np.zeros((2, 3, 3)), ax),
    }
    for function in draw.values():
        _, (left, right) = plt.subplots(1, 2)
        assert function(left) is left
        assert function(None) not in {left, right}
        assert not right.lines


def test_many_step_counts_are_not_all_written():
    ax = plots.order({"a": power(1.0, steps=tuple(range(10, 30)))})
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == ["10", "13", "16", "19", "22", "25", "28"]
    eight = plots.order({"a": power(1.0, steps=tuple(range(10, 18)))})
    assert len(eight.get_xticklabels()) == 8


def test_work_precision():
    ax = plots.work_precision({"a": ([8, 16, 32], [1e-1, 0.0, 1e-3]), "b": ([9, 17], [1e-2, 1e-4])})
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.lines[0].get_xdata().tolist() == [8.0, 32.0], "a zero has no logarithm"
    assert ax.lines[1].get_ydata().tolist() == [1e-2, 1e-4]
    assert ax.get_xlabel() == "evaluations of the denoiser"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["8", "9", "16", "17", "32"]


def test_errors():
    plots.use_style()
    x = np.logspace(-3, 0, 5)
    ax = plots.errors({"a": (x, x**2)}, xlabel="h", ylabel="relative error", rounding=1e-16)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("h", "relative error")
    assert ax.lines[0].get_marker() == "o"
    assert ax.lines[1].get_ydata() == [1e-16, 1e-16]
    assert ax.get_legend_handles_labels()[1] == ["a"]
    assert plots.errors({"a": (x, x**2)}, markers=False).lines[0].get_marker() == ""
    for bad in (([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]])):
        with pytest.raises(ValueError, match="curves must hold pairs of sequences of one length"):
            plots.errors({"a": bad})


def test_schedule():
    ax = plots.schedule([schedules.rectified_flow(), schedules.edm(sigma_min=1.0, sigma_max=3.0)], count=4)
    share = np.asarray([0.125, 0.375, 0.625, 0.875])
    np.testing.assert_allclose(ax.lines[0].get_xdata(), share)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.log((1 - share) / share), rtol=1e-12)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), -np.log(1.0 + 2.0 * share), rtol=1e-12)
    assert ax.get_ylabel() == "log-SNR (nats)"


def test_grid():
    ax = plots.grid({"a": [-np.inf, 0.0, 1.0], "b": [0.5, 2.0, np.inf]}, label="t")
    assert [line.get_xdata().tolist() for line in ax.lines] == [[0.0, 1.0], [0.5, 2.0]]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0.0, 0.0], [1.0, 1.0]]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_ylim() == (1.5, -0.5), "the first one on top"
    assert ax.get_xlabel() == "t"
    assert len({line.get_color() for line in ax.lines}) == len({line.get_marker() for line in ax.lines}) == 2
    assert len(plots.grid({str(k): [0.0] for k in range(9)}).lines) == 9


def test_table():
    edm = schedules.edm()
    table = solvers.adams_bashforth(paths.x0(edm, grids.karras(edm, 6), eta=0.5), 2)
    ax = plots.table(table)
    shown = ax.get_images()[0].get_array()
    assert shown.shape == (6, 4)
    values = np.concatenate([table.carry[:, None], table.weights], axis=1)
    np.testing.assert_allclose(shown[:, :3], values / np.abs(values).max(), rtol=1e-14)
    assert not np.any(shown[:, 3])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["state", "F0", "F1", "noise"]
    written = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in ax.texts}
    assert written[2, 0] == f"{table.carry[2]:.3g}"
    assert written[3, 1] == f"{table.weights[3, 0]:.3g}"
    assert written[4, 3] == f"{table.noise[4]:.3g}"
    assert (0, 2) not in written, "nothing where there is no weight"
    assert np.round(ax.lines[0].get_xdata() - 1.38).astype(int).tolist() == table.slot.tolist()
    assert ax.lines[0].get_ydata().tolist() == list(range(6))
    low, high = ax.get_images()[0].get_clim()
    assert low == -high, "zero is white"


def test_numbers_in_a_table_are_for_short_ones():
    edm = schedules.edm()

    def written(n, **options):
        return len(plots.table(solvers.adams_bashforth(paths.x0(edm, grids.karras(edm, n)), 1), **options).texts)

    assert [written(n) for n in (16, 17)] == [32, 0]
    assert [written(17, numbers=True), written(16, numbers=False)] == [34, 0]
    ax = plots.table(solvers.adams_bashforth(paths.x0(edm, grids.karras(edm, 40)), 1))
    assert ax.get_yticks().tolist() == list(range(0, 40, 3))


def test_images():
    pictures = np.arange(5 * 2 * 3, dtype=float).reshape(5, 2, 3)
    ax = plots.images(pictures, columns=2, gap=2)
    sheet = np.asarray(ax.get_images()[0].get_array())
    assert sheet.shape == (3 * 4 - 2, 2 * 5 - 2)
    for i in range(5):
        row, column = divmod(i, 2)
        np.testing.assert_array_equal(sheet[4 * row : 4 * row + 2, 5 * column : 5 * column + 3], pictures[i])
    sheet[:2, :3] = sheet[:2, 5:] = sheet[4:6, :3] = sheet[4:6, 5:] = sheet[8:, :3] = 0.0
    assert not np.any(sheet), "white between"
    assert ax.get_images()[0].get_clim() == (0.0, 29.0)
    assert ax.get_images()[0].get_cmap().name == "gray_r"
    assert not ax.axison
    shown = plots.images(pictures, columns=9, limits=(-5.0, 7.0)).get_images()[0]
    assert shown.get_clim() == (-5.0, 7.0)
    assert shown.get_array().shape == (2, 5 * 4 - 1)
    assert shown.get_array()[0, 3] == -5.0
    assert plots.images(pictures[:1]).get_images()[0].get_array().shape == (2, 3)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(library):
    xp = pytest.importorskip(library)
    assert plots.images(xp.asarray(np.ones((1, 2, 2)))).get_images()[0].get_array().tolist() == [[1.0, 1.0]] * 2


def test_nothing_to_draw():
    for function, name in (
        (plots.order, "studies"),
        (plots.work_precision, "curves"),
        (plots.errors, "curves"),
        (plots.schedule, "schedules"),
        (plots.grid, "nodes"),
    ):
        with pytest.raises(ValueError, match=f"{name} must hold at least one"):
            function({})
    for shape in ((2, 2), (0, 2, 2), (1, 2, 2, 1)):
        with pytest.raises(ValueError, match=r"array must have shape \(N, H, W\)"):
            plots.images(np.zeros(shape))
