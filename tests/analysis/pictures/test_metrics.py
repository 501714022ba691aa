"""The figure of metrics: its lines, bands, scales, limits and texts, of rows and of histories."""

import re

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from scipy import stats
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, NAN, OTHER, rows

from fedjax_algos.analysis.pictures import draw_metric, method_styles, plot_metric

FIVE = [[0.1, 0.5, 0.6], [0.2, 0.7, 0.6], [0.1, 0.4, 0.7], [0.3, 0.5, 0.9], [0.2, 0.6, 0.5]]
TWO_METHODS = rows("fedavg", FIRST) + rows("fedprox", OTHER)


def lines(axes):
    """x and y of the lines with a marker, by colour."""
    return {
        line.get_color(): line.get_xydata().T.tolist()
        for line in axes.lines
        if line.get_marker() != "None"
    }


def edges(axes):
    """The lower and the upper edge of each band."""
    bands = []
    for band in axes.collections:
        assert isinstance(band, PolyCollection)
        x, y = band.get_paths()[0].vertices.T
        bands.append([[y[x == at].min(), y[x == at].max()] for at in np.unique(x)])
    return bands


def legend(figure):
    (box,) = [*figure.legends, *(own for a in figure.axes if (own := a.get_legend()))]
    return [text.get_text() for text in box.get_texts()]


def colour(label):
    return method_styles([label])[label].colour


def test_lines_are_means_in_the_style_of_the_method():
    figure, hidden = draw_metric(TWO_METHODS)
    (axes,) = figure.axes
    assert hidden == []
    assert lines(axes) == {
        colour("fedavg"): [[0, 10, 20], [0.1, pytest.approx(0.6), 0.6]],
        colour("fedprox"): [[0, 10, 20], [0.1, 0.2, pytest.approx(0.85)]],
    }
    for line, handle, label in zip(
        axes.lines, axes.get_legend().get_lines(), ("fedavg", "fedprox"), strict=True
    ):
        style = method_styles([label])[label]
        for artist in (line, handle):
            assert (artist.get_color(), artist.get_marker()) == style[:2]
        assert line._dash_pattern == handle._dash_pattern
    assert legend(figure) == ["FedAvg", "FedProx"]
    assert axes.get_title() == "mean of 2 seeds, band: lowest to highest"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("communication round", "test accuracy")


def test_the_default_band_depends_on_the_number_of_seeds():
    """None for one seed, from the lowest to the highest below five, then the t interval."""
    (axes,) = draw_metric(rows("fedavg", FIVE[:1]))[0].axes
    assert (axes.get_title(), edges(axes)) == ("one seed", [])
    (axes,) = draw_metric(rows("fedavg", FIVE[:4]))[0].axes
    assert axes.get_title() == "mean of 4 seeds, band: lowest to highest"
    assert edges(axes) == [[[0.1, 0.3], [0.4, 0.7], [0.6, 0.9]]]
    (axes,) = draw_metric(rows("fedavg", FIVE))[0].axes
    assert axes.get_title() == "mean of 5 seeds, band: 95% confidence interval"
    means, errors = np.mean(FIVE, axis=0), stats.sem(FIVE, axis=0)
    expected = np.transpose(stats.t.interval(0.95, 4, loc=means, scale=errors))
    np.testing.assert_allclose(edges(axes), [expected], rtol=1e-12)
    with pytest.raises(ValueError, match="needs at least 5 seeds, but there are 4; choose range"):
        draw_metric(rows("fedavg", FIVE[:4]), band="interval")


def test_bands_by_name():
    (axes,) = draw_metric(rows("fedavg", FIVE), band="none")[0].axes
    assert (axes.get_title(), edges(axes), len(axes.lines)) == ("mean of 5 seeds", [], 1)
    (axes,) = draw_metric(rows("fedavg", FIVE), band="range")[0].axes
    assert edges(axes) == [[[0.1, 0.3], [0.4, 0.7], [0.5, 0.9]]]
    (axes,) = draw_metric(rows("fedavg", FIVE), band="seeds")[0].axes
    assert axes.get_title() == "mean of 5 seeds, thin lines: each seed"
    *thin, mean = axes.lines
    assert [line.get_ydata().tolist() for line in thin] == FIVE
    assert all(line.get_linewidth() < mean.get_linewidth() / 2 for line in thin)
    assert {to_hex(line.get_color()) for line in axes.lines} == {colour("fedavg")}


def test_the_default_limits_fit_what_comes_after_the_first_tenth():
    """Of 20 evaluations two do not count; 0.08 of the height are above and below."""
    curve = [[0.0, 0.1, *np.linspace(0.5, 0.9, 18)]]
    (axes,) = draw_metric(rows("fedavg", curve))[0].axes
    assert axes.get_ylim() == pytest.approx((0.5 - 0.032, 0.9 + 0.032))
    (axes,) = draw_metric(rows("fedavg", curve), log="y")[0].axes
    margin = (0.9 / 0.5) ** 0.08
    assert axes.get_ylim() == pytest.approx((0.5 / margin, 0.9 * margin))
    (axes,) = draw_metric(rows("fedavg", curve), y_limits=(None, 0.7))[0].axes
    assert axes.get_ylim() == pytest.approx((0.468, 0.7))
    (axes,) = draw_metric(rows("fedavg", curve), x_limits=(0, 20))[0].axes  # only 0.5 is left
    assert axes.get_xlim() == (0, 20)


def test_logarithmic_axes():
    for log, scales in {
        "x": ("log", "linear"),
        "y": ("linear", "log"),
        "both": 2 * ("log",),
    }.items():
        figure, hidden = draw_metric(TWO_METHODS, log=log)
        (axes,) = figure.axes
        assert (axes.get_xscale(), axes.get_yscale()) == scales
        told = ["2 points at 0 or below: no place on the logarithmic x axis"]
        assert hidden == (told if log != "y" else [])
    figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    shown = [text.get_text() for place, text in ticks if low <= place <= high]
    assert "0.5" in shown
    assert all(re.fullmatch(r"0\.\d+|\d", text) for text in shown)


def test_costs_have_the_unit_of_their_size():
    measured = rows("fedavg", FIRST, download_bytes=4e5, flops=2e11)
    for x, x_label, last in (
        ("upload_bytes", "upload of all clients, kB", 2),
        ("download_bytes", "download of all clients, MB", 8),
        ("flops", "computation of all clients, TFLOP", 4),
    ):
        (axes,) = draw_metric(measured, x=x)[0].axes
        assert axes.get_xlabel() == x_label
        assert axes.lines[0].get_xdata().tolist() == [0, last / 2, last]
    (axes,) = draw_metric(measured, x="flops", metric="upload_bytes", x_limits=(1e12, 3e12))[0].axes
    assert axes.get_xlim() == (1, 3)
    assert axes.get_ylabel() == "upload of all clients, kB"
    (axes,) = draw_metric(measured, x="download_bytes", x_limits=(0, 5e5))[0].axes
    assert (axes.get_xlabel(), axes.get_xlim()) == ("download of all clients, kB", (0, 500))


def test_on_the_virtual_clock_a_round_is_a_server_step():
    measured = rows("fedavg", FIRST, simulated_seconds=2)
    (axes,) = draw_metric(measured)[0].axes
    assert axes.get_xlabel() == "server step"
    (axes,) = draw_metric(measured, metric="round", x="simulated_seconds")[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("simulated seconds", "server step")


def test_methods_labels_and_texts():
    figure, _ = draw_metric(
        [*TWO_METHODS, *rows("scaffold", OTHER)],
        methods=["fedprox", "fedavg"],
        labels={"fedavg": "$\\mu$ of FedAvg"},
        title="",
        x_label="t",
        y_label="_share",
    )
    (axes,) = figure.axes
    assert legend(figure) == ["FedProx", "$\\mu$ of FedAvg"]
    assert list(lines(axes)) == [colour("fedprox"), colour("fedavg")]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("", "t", "_share")
    assert not axes.yaxis.label.get_parse_math()


def test_a_style_does_not_depend_on_the_methods_that_are_drawn():
    labels = [f"fedprox mu={value}" for value in range(12)]
    measured = [row for label in labels for row in rows(label, FIRST)]
    all_colours = list(lines(draw_metric(measured, facet="method")[0].axes[7]))
    assert list(lines(draw_metric(measured, methods=labels[7:8])[0].axes[0])) == all_colours


def test_panels_of_a_facet_share_the_y_axis():
    measured = [row | {"task": "iid"} for row in TWO_METHODS]
    measured += [row | {"task": "pairs"} for row in rows("fedavg", [[0.0, 0.1, 0.2]])]
    figure, hidden = draw_metric(measured, facet="task", labels={"pairs": "2 labels each"})
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["iid", "2 labels each"]
    assert first.get_ylim() == second.get_ylim() == pytest.approx((-0.08 * 0.85, 1.08 * 0.85))
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", ""]
    assert lines(second) == {colour("fedavg"): [[0, 10, 20], [0.0, 0.1, 0.2]]}
    assert legend(figure) == ["FedAvg", "FedProx"]
    assert figure.get_suptitle() == "mean of 1 to 2 seeds"
    assert hidden == []
    _, hidden = draw_metric(measured, facet="task", methods=["fedprox"])
    assert hidden == ["pairs: none of the methods"]


def test_panels_of_metrics_and_axes():
    figure, _ = draw_metric(TWO_METHODS, metric=["test_accuracy", "test_loss"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", "test loss"]
    assert figure.axes[0].get_ylim() != figure.axes[1].get_ylim()
    figure, _ = draw_metric(
        TWO_METHODS, metric=["test_accuracy", "test_loss"], x=["round", "upload_bytes"]
    )
    grid = figure.axes
    assert [a.get_ylabel() for a in grid] == ["test accuracy", "", "test loss", ""]
    labels = ["communication round", "upload of all clients, kB"]
    assert [a.get_xlabel() for a in grid] == ["", "", *labels]
    assert lines(grid[3])[colour("fedavg")] == [[0, 1, 2], pytest.approx([0.9, 0.4, 0.4])]
    figure, _ = draw_metric(TWO_METHODS, facet="seed")
    assert [axes.get_title() for axes in figure.axes] == ["seed 0", "seed 1"]
    assert figure.get_suptitle() == "one seed in each panel"


@pytest.mark.filterwarnings("error")
def test_what_is_not_shown_is_told(tmp_path):
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    figure, hidden = draw_metric(measured)
    assert hidden == ["half: not finite on 1 of 2 seeds", "all: no finite value"]
    assert legend(figure) == [
        "half (not finite on 1 of 2 seeds)",
        "all (no finite value)",
        "fine",
    ]
    y = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(y, [0.1, np.mean([0.5, 0.4]), NAN])
    assert plot_metric(measured, tmp_path / "a.png").notes == hidden
    _, hidden = draw_metric(TWO_METHODS, y_limits=(0.7, 1))
    assert hidden == ["FedAvg: outside the limits"]
    for limits in ({"x_limits": (30, 40)}, {"y_limits": (80, 90)}):
        with pytest.raises(
            ValueError, match=r"no curve is within x_limits=.*an accuracy is from 0 to"
        ):
            draw_metric(TWO_METHODS, **limits)
    both = [row | {"task": "a"} for row in TWO_METHODS]
    both += [row | {"task": "b"} for row in rows("fedavg", OTHER)]
    figure, hidden = draw_metric(both, facet="task", y_limits=(0.7, 1))
    assert hidden == ["FedAvg: outside the limits in a"]
    assert legend(figure) == ["FedAvg (outside the limits in a)", "FedProx"]


def test_texts_stay_in_the_figure():
    """Legends with wide letters and many methods, in a narrow figure and in the default size."""
    labels = [f"{'W' * 20} {'long ' * 9}{index}" for index in range(3)]
    labels += [f"method {index}" for index in range(9)]
    measured = [row for label in labels for row in rows(label, FIRST)]
    for size in ((5, 6), None):
        figure, _ = draw_metric(measured, size=size)
        figure.savefig("/dev/null", format="png", dpi=100)
        box = figure.legends[0].get_window_extent()
        width, height = figure.get_size_inches() * 100
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert figure.axes[0].get_window_extent().y0 > box.y1
        assert figure.axes[0].get_window_extent().height > 0.3 * height


def test_in_simulated_time_the_limits_fit_the_whole_curve():
    """The first server steps of methods are at different times."""
    curve = [[0.0, 0.1, *np.linspace(0.5, 0.9, 18)]]
    measured = rows("fedavg", curve, simulated_seconds=2)
    (axes,) = draw_metric(measured, x="simulated_seconds")[0].axes
    assert axes.get_ylim() == pytest.approx((-0.072, 0.972))
    (axes,) = draw_metric(measured)[0].axes
    assert axes.get_ylim() == pytest.approx((0.5 - 0.032, 0.9 + 0.032))


def test_the_limits_do_not_follow_an_interval_below_zero():
    """The interval at the second evaluation is .2 -+ .55; that of losses may be below 0."""
    curves = [[0.1, 0.0, 0.9], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9], [0.1, 1.0, 0.9]]
    measured = rows("fedavg", curves)
    (axes,) = draw_metric(measured)[0].axes
    assert edges(axes)[0][1][0] == pytest.approx(0.2 - 0.5553, abs=1e-3)
    low, high = axes.get_ylim()
    assert (low, high) == pytest.approx((-0.08 * 0.9, 0.9 * 1.08))
    below = [row | {"test_accuracy": row["test_accuracy"] - 1} for row in measured]
    (axes,) = draw_metric(below)[0].axes
    assert axes.get_ylim()[0] < -0.9


@pytest.mark.parametrize("last", [1, 3, 5, 10, 40])
def test_rounds_on_an_axis_are_whole(last):
    measured = [row | {"round": row["round"] // 10 * last} for row in rows("fedavg", [[0.1, 0.5]])]
    for options in ({}, {"size": (3, 2)}, {"metric": "round", "x": "wall_seconds"}):
        (axes,) = draw_metric(measured, **options)[0].axes
        axis = axes.yaxis if "x" in options else axes.xaxis
        low, high = axis.get_view_interval()
        ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert len(ticks) >= 2
        assert all(tick == round(tick) for tick in ticks)


def history(curve):
    """The rows of one run, as `simulate` returns them."""
    return [
        {name: value for name, value in row.items() if name not in ("method", "seed")}
        for row in rows("", [curve])
    ]


ONE, TWO = map(history, FIRST)


def y_of(figure):
    """The values of the lines of a figure with one panel."""
    (axes,) = figure.axes
    return [line.get_ydata().tolist() for line in axes.lines]


def test_the_history_of_a_run_is_a_figure_without_a_legend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figure = plot_metric(ONE)
    (axes,) = figure.axes
    assert y_of(figure) == [FIRST[0]]
    assert (axes.get_title(), axes.get_legend(), figure.legends) == ("one seed", None, [])
    assert (figure.notes, list(tmp_path.iterdir())) == ([], [])
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plot_metric(ONE, "a.png").axes
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_several_histories_by_label():
    figure = plot_metric({"FedAvg": ONE, "mine": TWO})
    (axes,) = figure.axes
    assert y_of(figure) == FIRST
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["FedAvg", "mine"]
    assert axes.lines[0].get_color() == method_styles(["fedavg"])["fedavg"].colour
    assert axes.get_title() == "one seed"


def test_several_seeds_of_a_label():
    """The figure is that of rows with a method and a seed."""
    figure = plot_metric({"fedavg": [ONE, TWO], "other": list(map(history, OTHER))})
    whole = plot_metric(rows("fedavg", FIRST) + rows("other", OTHER))
    assert y_of(figure) == y_of(whole)
    assert figure.axes[0].get_title() == "mean of 2 seeds, band: lowest to highest"


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (("state", ONE), TypeError, "is no list of rows but of type tuple; give the rows that sim"),
        ({"a": ("state", ONE)}, TypeError, "a is no list of rows but of type str"),
        (3, TypeError, "rows is no list of rows but of type int"),
        ({1: ONE}, TypeError, "the label 1 is no text"),
        ([], ValueError, "there are no rows to plot in rows; give the rows that simulate returns"),
        ({}, ValueError, "there are no rows to plot; give the rows"),
        ({"a": []}, ValueError, "there are no rows to plot in a"),
        (ONE + TWO, ValueError, "the rows have the round 0 twice and no seed; give {label: "),
        (
            [row | {"method": "a"} for row in ONE + TWO],
            ValueError,
            "the rows of 'a' have the round 0 twice and no seed",
        ),
    ],
)
def test_what_is_no_history(given, kind, message):
    with pytest.raises(kind, match=message):
        draw_metric(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"band": "sd"}, "band='sd' is unknown; choose none, interval, range or seeds"),
        ({"log": "z"}, "log='z' is unknown; choose none, x, y or both"),
        ({"metric": "speed"}, "metric='speed' is unknown; choose round, test_accuracy"),
        ({"metric": []}, "metric is empty; give at least one"),
        ({"x": ["round", "round"]}, "x has 'round' twice; give it once"),
        ({"x": "flops"}, "x='flops' is unknown; choose round, upload_bytes or wall_seconds"),
        ({"facet": "round"}, "facet='round' is unknown; choose method or seed"),
        ({"labels": {"a": "b"}}, "unknown label 'a'; choose fedavg or fedprox"),
        ({"labels": {"fedavg": "FedProx"}}, "'fedavg' and 'fedprox' would have the same label"),
        ({"y_limits": (1,)}, r"is no interval; give the lower and the upper limit"),
        (
            {"y_limits": (0, 1), "metric": ["test_accuracy", "test_loss"]},
            "y_limits is that of one column, but there are 2; leave it out",
        ),
        ({"size": (0.5, 3)}, r"size=\(0.5, 3\) is out of range; give the width and the height"),
        ({"size": 3}, "size=3 is out of range"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        draw_metric(TWO_METHODS, **options)


def test_figures_that_cannot_be_drawn(tmp_path):
    with pytest.raises(ValueError, match="there are no rows to plot"):
        draw_metric([])
    many = [row for index in range(25) for row in rows(f"a{index}", FIRST)]
    with pytest.raises(ValueError, match="25 panels are too many for a figure; choose at most 24"):
        draw_metric(many, facet="method")
    with pytest.raises(ValueError, match="size=1x1 has no room for the axes beside the texts"):
        plot_metric(many, tmp_path / "a.png", size=(1, 1))
    assert list(tmp_path.iterdir()) == []
