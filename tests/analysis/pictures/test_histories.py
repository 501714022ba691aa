"""Figures of what `simulate` returns, without columns for the method and the seed."""

import pytest
from summary_helpers import FIRST, OTHER, rows

from fedjax_algos.analysis.pictures import draw_metric, method_styles, plot_metric


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


def test_the_given_rows_stay_as_they_are():
    before = [dict(row) for row in ONE]
    draw_metric({"fedavg": ONE})
    assert before == ONE


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
