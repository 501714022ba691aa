"""Every picture of the package in both styles: its width, its fonts, its formats, its bytes."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
from plan_helpers import plan_of_figure_1
from summary_helpers import FIRST, OTHER, rows

from fedjax_algos.analysis import pictures
from fedjax_algos.data import Partition

ROWS = rows("fedavg", FIRST) + rows("fedprox", OTHER)
LABELS = np.arange(600) % 10


def partitioned(num_clients):
    return Partition.of(np.array_split(np.arange(600), num_clients))


TWO = partial(pictures.plot_metric, ROWS, metric=["test_accuracy", "test_loss"], log="both")
CLIENTS = [
    {"method": name, "seed": seed, "accuracy": accuracy, "participations": i}
    for name, seed in itertools.product(("fedavg", "qfedavg"), (0, 1))
    for i, accuracy in enumerate([0.3 + seed / 10, np.nan, 0.9])
]
PICTURES = {  # by name: how each is drawn, and its width in a paper
    "metric": (partial(pictures.plot_metric, ROWS), 3.25),
    "two metrics": (TWO, 6.75),
    "timeline": (partial(pictures.plot_timeline, plan_of_figure_1()), 6.75),
    "staleness": (partial(pictures.plot_staleness, plan_of_figure_1()), 3.25),
    "small partition": (partial(pictures.plot_partition, LABELS, partitioned(20)), 3.25),
    "clients": (partial(pictures.plot_clients, CLIENTS), 6.75),
    "large partition": (partial(pictures.plot_partition, LABELS, partitioned(60)), 3.25),
}
LATER = [name for name in PICTURES if name not in ("two metrics", "timeline")]
LATER = [pytest.param(name, marks=pytest.mark.all) for name in LATER]


@pytest.mark.parametrize("name", ["two metrics", "timeline", *LATER])
def test_fonts_and_width(name, tmp_path):
    draw, width = PICTURES[name]
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


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "suffix"), [("two metrics", ".svg"), ("timeline", ".pdf"), ("large partition", ".png")]
)
def test_the_same_bytes_in_each_format(name, suffix, tmp_path):
    draw, _ = PICTURES[name]
    paths = [tmp_path / f"{index}{suffix}" for index in range(2)]
    for path in paths:
        draw(path, style="paper")
    content, again = (path.read_bytes() for path in paths)
    assert content == again
    assert content.startswith(STARTS[suffix])
    found = [word in content for word in (b"/FontFile2", b"/Type3", b"Date")]
    assert found == [suffix == ".pdf", False, False]


@pytest.mark.parametrize("name", PICTURES)
def test_mistakes(name, tmp_path):
    for file, style, named in (("a.svg", "print", "style='print'"), ("a.eps", "paper", ".eps")):
        with pytest.raises(ValueError, match=named):
            PICTURES[name][0](tmp_path / file, style=style)


def test_the_title_is_returned_for_the_caption(tmp_path):
    path, caption = tmp_path / "a.svg", "for the caption: mean of 2 seeds, band: lowest to highest"
    assert pictures.plot_metric(ROWS, path, style="paper").notes == [caption]
    assert "mean of" not in path.read_text()
    assert pictures.plot_metric(ROWS, path, style="paper", title="mine").notes == []
    assert "mine" in path.read_text()


def test_lines_of_clients_are_means_of_quantile_functions(tmp_path, monkeypatch):
    """A client without examples has no accuracy, and its dispatches count."""
    drawn = {}

    def keep(figure, path, style):
        for axes in figure.axes:
            drawn[axes.get_ylabel()] = {line.get_label(): line for line in axes.lines}

    monkeypatch.setattr("fedjax_algos.analysis.pictures.axes.save_figure", keep)
    pictures.plot_clients(CLIENTS, tmp_path / "a.png")
    assert list(drawn["accuracy"]) == ["FedAvg", "q-FedAvg"]
    x, y = drawn["accuracy"]["FedAvg"].get_data()
    np.testing.assert_allclose(y, 0.35 + 0.55 * x)  # from .3 and .4 to .9
    x, y = drawn["participations"]["q-FedAvg"].get_data()
    np.testing.assert_allclose(y, 2 * x)
    unknown = [row | {"participations": np.nan} for row in CLIENTS]  # of a choice among candidates
    pictures.plot_clients(unknown, tmp_path / "a.png")
    assert drawn["participations"] == {}
