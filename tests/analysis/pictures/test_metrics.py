"""The figure of metrics: its lines, bands, scales, limits and texts, of rows and of histories."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy import stats
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, NAN, OTHER, rows

from fedjax_algos.analysis.pictures import draw_metric, method_styles, plot_metric

FIVE = [[0.1, 0.5, 0.6], [0.2, 0.7, 0.6], [0.1, 0.4, 0.7], [0.3, 0.5, 0.9], [0.2, 0.6, 0.5]]
TWENTY = [[0.0, 0.1, *np.linspace(0.5, 0.9, 18)]]
TWO_METHODS = rows("fedavg", FIRST) + rows("fedprox", OTHER)
BOTH = ["test_accuracy", "test_loss"]


def drawn(measured, **options):
    """The axes of a figure with one panel."""
    (axes,) = draw_metric(measured, **options)[0].axes
    return axes


def lines(axes):
    """x and y of the lines with a marker, by colour."""
    marked = (line for line in axes.lines if line.get_marker() != "None")
    return {line.get_color(): line.get_xydata().T.tolist() for line in marked}


def edges(axes):
    """The lower and the upper edge of each band."""
    bands = [band.get_paths()[0].vertices.T for band in axes.collections]
    return [[[y[x == at].min(), y[x == at].max()] for at in np.unique(x)] for x, y in bands]


def legend(figure):
    (box,) = [*figure.legends, *(own for a in figure.axes if (own := a.get_legend()))]
    return [text.get_text() for text in box.get_texts()]


def colour(label):
    return method_styles([label])[label].colour


def test_lines_are_means_in_the_style_of_the_method():
    figure, hidden = draw_metric(TWO_METHODS)
    (axes,) = figure.axes
    assert lines(axes) == {
        colour("fedavg"): [[0, 10, 20], [0.1, pytest.approx(0.6), 0.6]],
        colour("fedprox"): [[0, 10, 20], [0.1, 0.2, pytest.approx(0.85)]],
    }
    handles = axes.get_legend().get_lines()
    assert [line._dash_pattern for line in axes.lines] == [line._dash_pattern for line in handles]
    for artists in (axes.lines, handles):
        styles = [(line.get_color(), line.get_marker()) for line in artists]
        assert styles == [style[:2] for style in method_styles(["fedavg", "fedprox"]).values()]
    assert (legend(figure), hidden) == (["FedAvg", "FedProx"], [])
    assert axes.get_title() == "mean of 2 seeds, band: lowest to highest"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("communication round", "test accuracy")


LOWEST = ", band: lowest to highest"


@pytest.mark.parametrize(
    ("seeds", "band", "title", "expected"),
    [
        (1, None, "one seed", []),
        (4, None, f"mean of 4 seeds{LOWEST}", [[[0.1, 0.3], [0.4, 0.7], [0.6, 0.9]]]),
        (5, "none", "mean of 5 seeds", []),
        (5, "range", f"mean of 5 seeds{LOWEST}", [[[0.1, 0.3], [0.4, 0.7], [0.5, 0.9]]]),
    ],
)
def test_bands(seeds, band, title, expected):
    """By default none for one seed, and from the lowest to the highest below five."""
    axes = drawn(rows("fedavg", FIVE[:seeds]), band=band)
    assert (axes.get_title(), len(axes.lines), edges(axes)) == (title, 1, expected)


def test_intervals_and_lines_of_seeds():
    axes = drawn(rows("fedavg", FIVE))
    assert axes.get_title() == "mean of 5 seeds, band: 95% confidence interval"
    means, errors = np.mean(FIVE, axis=0), stats.sem(FIVE, axis=0)
    expected = np.transpose(stats.t.interval(0.95, 4, loc=means, scale=errors))
    np.testing.assert_allclose(edges(axes), [expected], rtol=1e-12)
    axes = drawn(rows("fedavg", FIVE), band="seeds")
    assert axes.get_title() == "mean of 5 seeds, thin lines: each seed"
    *thin, mean = axes.lines
    assert [line.get_ydata().tolist() for line in thin] == FIVE
    assert all(line.get_linewidth() < mean.get_linewidth() / 2 for line in thin)
    assert {to_hex(line.get_color()) for line in axes.lines} == {colour("fedavg")}


MARGIN = (0.9 / 0.5) ** 0.08


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (0.5 - 0.032, 0.9 + 0.032)),
        ({"log": "y"}, (0.5 / MARGIN, 0.9 * MARGIN)),
        ({"y_limits": (None, 0.7)}, (0.468, 0.7)),
        # the first server steps of methods are at different times
        ({"x": "simulated_seconds"}, (-0.072, 0.972)),
    ],
)
def test_the_default_limits_fit_what_comes_after_the_first_tenth(options, limits):
    """Of 20 evaluations two do not count; 0.08 of the height are above and below."""
    axes = drawn(rows("fedavg", TWENTY, simulated_seconds=2), **options)
    assert axes.get_ylim() == pytest.approx(limits)


def test_the_limits_do_not_follow_an_interval_below_zero():
    """The interval at the second evaluation is .2 -+ .55; that of losses may be below 0."""
    measured = rows("fedavg", [*[[0.1, 0.0, 0.9]] * 4, [0.1, 1.0, 0.9]])
    axes = drawn(measured)
    assert edges(axes)[0][1][0] == pytest.approx(0.2 - 0.5553, abs=1e-3)
    assert axes.get_ylim() == pytest.approx((-0.08 * 0.9, 0.9 * 1.08))
    below = [row | {"test_accuracy": row["test_accuracy"] - 1} for row in measured]
    assert drawn(below).get_ylim()[0] < -0.9


def test_logarithmic_axes():
    told = ["2 points at 0 or below: no place on the logarithmic x axis"]
    for log in ("x", "y", "both"):
        figure, hidden = draw_metric(TWO_METHODS, log=log)
        (axes,) = figure.axes
        scales = ("linear" if log == "y" else "log", "linear" if log == "x" else "log")
        assert (axes.get_xscale(), axes.get_yscale()) == scales
        assert hidden == ([] if log == "y" else told)
    figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    shown = [text.get_text() for place, text in ticks if low <= place <= high]
    assert "0.5" in shown
    assert all(re.fullmatch(r"0\.\d+|\d", text) for text in shown)


@pytest.mark.parametrize("band", ["interval", "seeds"])
def test_a_model_stays_as_it_is_between_evaluations_in_simulated_time(band):
    measured = rows("fedasync", [[0.1, 0.5, 0.9]] * 5, simulated_seconds=2)
    for x, style in ("simulated_seconds", "steps-post"), ("round", "default"):
        axes = drawn(measured, x=x, band=band)
        assert {line.get_drawstyle() for line in axes.lines} == {style}


@pytest.mark.parametrize("log", ["x", "y", "both"])
@pytest.mark.parametrize("band", ["none", "seeds"])
def test_what_a_logarithmic_axis_has_no_place_for_is_not_drawn(log, band):
    """At the edge of the axis a first segment would be horizontal; other points are as they are."""
    measured = rows("fedavg", [[0.0, 0.25, 0.5], [0.0, 0.75, 0.5]])
    for line in drawn(measured, log=log, band=band).lines:
        first, *others = line.get_xydata()
        assert np.isnan(first).tolist() == [log != "y", log != "x"]
        assert np.isfinite(others).all()


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("upload_bytes", "upload of all clients, kB", [0, 1, 2]),
        ("download_bytes", "download of all clients, MB", [0, 4, 8]),
        ("flops", "computation of all clients, TFLOP", [0, 2, 4]),
        ("simulated_seconds", "simulated seconds", [0, 20, 40]),
    ],
)
def test_axes_have_the_unit_of_their_size(name, label, expected):
    """If limits are given, of the size of those."""
    measured = rows("fedavg", FIRST, download_bytes=4e5, flops=2e11, simulated_seconds=2)
    axes = drawn(measured, x=name)
    assert (axes.get_xlabel(), axes.lines[0].get_xdata().tolist()) == (label, expected)
    axes = drawn(measured, metric=name)  # these rows have simulated seconds
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("server step", label)
    axes = drawn(measured, x="download_bytes", x_limits=(0, 5e5))
    assert (axes.get_xlabel(), axes.get_xlim()) == ("download of all clients, kB", (0, 500))


def test_a_style_does_not_depend_on_the_methods_that_are_drawn():
    labels = [f"fedprox mu={value}" for value in range(12)]
    measured = [row for label in labels for row in rows(label, FIRST)]
    of_all = draw_metric(measured, facet="method")[0].axes[7]
    assert lines(drawn(measured, methods=labels[7:8])) == lines(of_all)


TASKS = [row | {"task": "iid"} for row in TWO_METHODS]
TASKS += [row | {"task": "pairs"} for row in rows("fedavg", [[0.0, 0.1, 0.2]])]


def test_panels_of_a_facet_share_the_y_axis():
    figure, hidden = draw_metric(TASKS, facet="task", labels={"pairs": "2 labels each"})
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["iid", "2 labels each"]
    assert first.get_ylim() == second.get_ylim() == pytest.approx((-0.08 * 0.85, 1.08 * 0.85))
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", ""]
    assert lines(second) == {colour("fedavg"): [[0, 10, 20], [0.0, 0.1, 0.2]]}
    assert (legend(figure), hidden) == (["FedAvg", "FedProx"], [])
    assert figure.get_suptitle() == "mean of 1 to 2 seeds"
    figure, _ = draw_metric(TWO_METHODS, facet="seed")
    assert [axes.get_title() for axes in figure.axes] == ["seed 0", "seed 1"]
    assert figure.get_suptitle() == "one seed in each panel"


def test_panels_of_metrics_and_axes():
    grid = draw_metric(TWO_METHODS, metric=BOTH, x=["round", "upload_bytes"])[0].axes
    assert [a.get_ylabel() for a in grid] == ["test accuracy", "", "test loss", ""]
    labels = ["communication round", "upload of all clients, kB"]
    assert [a.get_xlabel() for a in grid] == ["", "", *labels]
    assert grid[0].get_ylim() == grid[1].get_ylim() != grid[2].get_ylim()
    assert lines(grid[3])[colour("fedavg")] == [[0, 1, 2], pytest.approx([0.9, 0.4, 0.4])]


@pytest.mark.filterwarnings("error")
def test_what_is_not_shown_is_told(tmp_path):
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    figure, hidden = draw_metric(measured)
    assert hidden == ["half: not finite on 1 of 2 seeds", "all: no finite value"]
    assert legend(figure) == [*(f"{a} ({b})" for a, b in (h.split(": ") for h in hidden)), "fine"]
    y = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(y, [0.1, np.mean([0.5, 0.4]), NAN])
    assert plot_metric(measured, tmp_path / "a.png").notes == hidden
    figure, hidden = draw_metric(TASKS, facet="task", y_limits=(0.3, 1))
    assert hidden == ["FedAvg: outside the limits in pairs"]
    assert legend(figure) == ["FedAvg (outside the limits in pairs)", "FedProx"]
    told = draw_metric(TASKS, facet="task", methods=["fedprox"])[1]
    assert told == ["pairs: none of the methods"]


@pytest.mark.all
def test_texts_stay_in_the_figure():
    """Legends with wide letters and many methods, in a narrow figure and in the default size."""
    labels = [f"{'W' * 20} {'long ' * 9}{index}" for index in range(3)]
    labels += [f"method {index}" for index in range(9)]
    measured = [row for label in labels for row in rows(label, FIRST)]
    for size in ((5, 6), None):
        figure, _ = draw_metric(measured, size=size)
        figure.savefig("/dev/null", format="png", dpi=100)
        box, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
        width, height = figure.get_size_inches() * 100
        assert min(box.x0, box.y0, width - box.x1) >= 0
        assert axes.y0 > box.y1
        assert axes.height > 0.3 * height


@pytest.mark.parametrize("last", [1, 3, 10])
def test_rounds_on_an_axis_are_whole(last):
    measured = [row | {"round": row["round"] // 10 * last} for row in rows("fedavg", [[0.1, 0.5]])]
    vertical = drawn(measured, metric="round", x="wall_seconds").yaxis
    for axis in (drawn(measured).xaxis, drawn(measured, size=(3, 2)).xaxis, vertical):
        low, high = axis.get_view_interval()
        ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert len(ticks) >= 2
        assert all(tick == round(tick) for tick in ticks)


def history(curve):
    """The rows of one run, as `simulate` returns them."""
    hidden = ("method", "seed")
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows("", [curve])]


ONE, TWO = map(history, FIRST)


def test_the_history_of_a_run_is_a_figure_without_a_legend(here):
    figure = plot_metric(ONE)
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == FIRST[0]
    assert (axes.get_title(), axes.get_legend(), figure.legends) == ("one seed", None, [])
    assert (figure.notes, list(here.iterdir())) == ([], [])
    plot_metric(ONE, "a.png")
    for content in (figure._repr_png_(), (here / "a.png").read_bytes()):
        assert content.startswith(b"\x89PNG")


def test_histories_by_label():
    """With several of a label the figure is that of rows with a method and a seed."""
    figure = plot_metric({"FedAvg": ONE, "mine": TWO})
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == FIRST
    assert legend(figure) == ["FedAvg", "mine"]
    several = {"fedavg": [ONE, TWO], "fedprox": list(map(history, OTHER))}
    assert lines(drawn(several)) == lines(drawn(TWO_METHODS))


@pytest.mark.parametrize(
    ("given", "kind", "named"),
    [
        (("state", ONE), TypeError, r"the rows of '' are \('state', "),
        ({"a": ("state", ONE)}, TypeError, "the rows of 'a' are 'state'; give the rows that"),
        ({1: ONE}, TypeError, r"the rows of 1 are .* \{'label': rows\}"),
        ([], TypeError, r"the rows of '' are \[\]"),
        ({}, TypeError, r"the rows of '' are \{\}"),
        ({"a": []}, TypeError, r"the rows of 'a' are \[\]"),
        (ONE + TWO, ValueError, "the rows of '' have the round 0 twice and no seed"),
        ([{**row, "method": "a"} for row in ONE + TWO], ValueError, "rows of 'a' have the round 0"),
    ],
)
def test_what_is_no_history(given, kind, named):
    with pytest.raises(kind, match=named):
        draw_metric(given)


MANY = [row for index in range(25) for row in rows(f"a{index}", FIRST)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": []}, r"metric=\[\] are not different names; .* at least one"),
        ({"x": ["round", "round"]}, r"x=\['round', 'round'\] are not different"),
        ({"x": "flops"}, "x='flops' is unknown; choose round, upload_bytes or wall_seconds"),
        ({"facet": "round"}, "facet='round' is unknown; choose method or seed"),
        ({"facet": "method"}, "25 panels are too many for a figure; choose at most 24"),
        ({"y_limits": (1,)}, "is not an interval of its axis; give finite numbers, lower first"),
        ({"y_limits": (0, 1), "metric": BOTH}, "y_limits is for one column, but there are 2"),
        ({"x_limits": (30, 40)}, "no curve is within x_limits=.*an accuracy is from 0 to"),
        ({"size": 3}, "size=3 is out of range"),
    ],
)
def test_wrong_options(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plot_metric(MANY, tmp_path / "a.png", **options)
    assert list(tmp_path.iterdir()) == []
