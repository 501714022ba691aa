"""Every picture of the package in both styles: its width, its fonts, its formats, its bytes."""

import re
from functools import partial

import numpy as np
import pytest
from plan_helpers import plan_of_figure_1
from summary_helpers import FIRST, OTHER, rows

from fedjax_algos.analysis.pictures import (
    plot_clients,
    plot_metric,
    plot_partition,
    plot_staleness,
    plot_timeline,
)
from fedjax_algos.data import Partition

ROWS = rows("fedavg", FIRST) + rows("fedprox", OTHER)
LABELS = np.arange(600) % 10


def partitioned(num_clients):
    return Partition.of(np.array_split(np.arange(600), num_clients))


TWO = partial(plot_metric, ROWS, metric=["test_accuracy", "test_loss"], log="both")
CLIENTS = [
    {"method": name, "seed": seed, "accuracy": accuracy, "participations": i}
    for name, seed in (("fedavg", 0), ("fedavg", 1), ("qfedavg", 0), ("qfedavg", 1))
    for i, accuracy in enumerate([0.3 + seed / 10, np.nan, 0.9])
]
PICTURES = {  # by name: how each is drawn, and its width in a paper
    "metric": (partial(plot_metric, ROWS), 3.25),
    "two metrics": (TWO, 6.75),
    "timeline": (partial(plot_timeline, plan_of_figure_1()), 6.75),
    "staleness": (partial(plot_staleness, plan_of_figure_1()), 3.25),
    "small partition": (partial(plot_partition, LABELS, partitioned(20)), 3.25),
    "clients": (partial(plot_clients, CLIENTS), 6.75),
    "large partition": (partial(plot_partition, LABELS, partitioned(60)), 3.25),
}
QUICK = "two metrics", "timeline"
EACH = pytest.mark.parametrize(
    ("draw", "width"),
    [
        pytest.param(*each, id=name, marks=() if name in QUICK else pytest.mark.all)
        for name, each in PICTURES.items()
    ],
)


@EACH
def test_fonts_and_width(draw, width, tmp_path):
    for style, font, largest in (("screen", "DejaVu Sans", 10), ("paper", "STIXGeneral", 8)):
        draw(tmp_path / "a.svg", style=style)
        text = (tmp_path / "a.svg").read_text()
        fonts = re.findall(r"font(?:-size)?: ([\d.]+)px;?(?: font-family:)? '([^']+)'", text)
        assert {name for _, name in fonts} == {font}
        points = [float(size) for size, _ in fonts]
        assert min(points) > 6
        assert max(points) == largest
        (wide,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', text)
        assert (float(wide) == pytest.approx(72 * width)) == (style == "paper")


STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
PLACES = [("two metrics", ".svg"), ("two metrics", ".pdf"), ("timeline", ".pdf")]
PLACES += [("timeline", ".png"), ("staleness", ".svg"), ("large partition", ".png")]


@pytest.mark.all
@pytest.mark.parametrize(("name", "suffix"), PLACES)
def test_the_same_bytes_in_each_format(name, suffix, tmp_path):
    draw, _ = PICTURES[name]
    contents = []
    for index in range(2):
        draw(tmp_path / f"{index}{suffix}", style="paper")
        contents.append((tmp_path / f"{index}{suffix}").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(STARTS[suffix])
    assert b"Date" not in contents[0]
    if suffix == ".pdf":
        assert b"/FontFile2" in contents[0]
        assert b"/Type3" not in contents[0]


@EACH
def test_mistakes(draw, width, tmp_path):
    for name, style, message in (("a.svg", "print", "style='print'"), ("a.eps", "paper", ".eps")):
        with pytest.raises(ValueError, match=message):
            draw(tmp_path / name, style=style)


def test_the_title_is_returned_for_the_caption(tmp_path):
    caption = ["for the caption: mean of 2 seeds, band: lowest to highest"]
    assert plot_metric(ROWS, tmp_path / "paper.svg", style="paper").notes == caption
    assert "mean of" not in (tmp_path / "paper.svg").read_text()
    assert plot_metric(ROWS, tmp_path / "own.svg", style="paper", title="mine").notes == []
    assert "mine" in (tmp_path / "own.svg").read_text()


def test_lines_of_clients_are_means_of_quantile_functions(tmp_path, monkeypatch):
    """A client without examples has no accuracy, and its dispatches count."""
    drawn = {}

    def keep(figure, path, style):
        for axes in figure.axes:
            drawn[axes.get_ylabel()] = {line.get_label(): line for line in axes.lines}

    monkeypatch.setattr("fedjax_algos.analysis.pictures.axes.save_figure", keep)
    plot_clients(CLIENTS, tmp_path / "a.png")
    assert list(drawn["accuracy"]) == ["FedAvg", "q-FedAvg"]
    x, y = drawn["accuracy"]["FedAvg"].get_data()
    np.testing.assert_allclose(y, 0.35 + 0.55 * x)  # from .3 and .4 to .9
    x, y = drawn["participations"]["q-FedAvg"].get_data()
    np.testing.assert_allclose(y, 2 * x)
    unknown = [row | {"participations": np.nan} for row in CLIENTS]  # of a choice among candidates
    plot_clients(unknown, tmp_path / "a.png")
    assert drawn["participations"] == {}
