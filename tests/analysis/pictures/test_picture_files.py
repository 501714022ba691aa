"""Every picture of the package in both styles: its width, its fonts, its formats, its bytes."""

import re

import numpy as np
import pytest
from plan_helpers import plan_of_figure_1
from summary_helpers import FIRST, OTHER, rows

from fedjax_algos.analysis.pictures import (
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


PICTURES = {  # by name: how each is drawn, and its width in a paper
    "metric": (lambda path, **style: plot_metric(ROWS, path, **style), 3.25),
    "two metrics": (
        lambda path, **style: plot_metric(
            ROWS, path, metric=["test_accuracy", "test_loss"], log="both", **style
        ),
        6.75,
    ),
    "timeline": (lambda path, **style: plot_timeline(plan_of_figure_1(), path, **style), 6.75),
    "staleness": (lambda path, **style: plot_staleness(plan_of_figure_1(), path, **style), 3.25),
    "small partition": (
        lambda path, **style: plot_partition(LABELS, partitioned(20), path, **style),
        3.25,
    ),
    "large partition": (
        lambda path, **style: plot_partition(LABELS, partitioned(60), path, **style),
        3.25,
    ),
}
EACH = pytest.mark.parametrize(("draw", "width"), PICTURES.values(), ids=PICTURES)


@EACH
@pytest.mark.parametrize("style", ["screen", "paper"])
def test_fonts_and_width(draw, width, style, tmp_path):
    draw(tmp_path / "a.svg", style=style)
    text = (tmp_path / "a.svg").read_text()
    fonts = re.findall(r"font(?:-size)?: ([\d.]+)px;?(?: font-family:)? '([^']+)'", text)
    assert {name for _, name in fonts} == {"STIXGeneral" if style == "paper" else "DejaVu Sans"}
    points = [float(size) for size, _ in fonts]
    assert min(points) > 6
    assert max(points) == (8 if style == "paper" else 10)
    (wide,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', text)
    assert (float(wide) == pytest.approx(72 * width)) == (style == "paper")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["two metrics", "timeline", "staleness", "large partition"])
def test_the_same_bytes_in_each_format(name, tmp_path):
    draw, _ = PICTURES[name]
    for suffix, start in {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}.items():
        contents = []
        for index in range(2):
            draw(tmp_path / f"{index}{suffix}", style="paper")
            contents.append((tmp_path / f"{index}{suffix}").read_bytes())
        assert contents[0] == contents[1]
        assert contents[0].startswith(start)
        assert b"Date" not in contents[0]
        if suffix == ".pdf":
            assert b"/FontFile2" in contents[0]
            assert b"/Type3" not in contents[0]


@EACH
def test_mistakes(draw, width, tmp_path):
    with pytest.raises(ValueError, match="style='print' is unknown; choose screen or paper"):
        draw(tmp_path / "a.svg", style="print")
    with pytest.raises(ValueError, match=r"suffix='.eps' is unknown; choose .pdf, .png or .svg"):
        draw(tmp_path / "a.eps")


def test_the_title_is_returned_for_the_caption(tmp_path):
    assert plot_metric(ROWS, tmp_path / "screen.svg").notes == []
    caption = ["for the caption: mean of 2 seeds, band: lowest to highest"]
    assert plot_metric(ROWS, tmp_path / "paper.svg", style="paper").notes == caption
    assert "mean of" in (tmp_path / "screen.svg").read_text()
    assert "mean of" not in (tmp_path / "paper.svg").read_text()
    assert plot_metric(ROWS, tmp_path / "own.svg", style="paper", title="mine").notes == []
    assert "mine" in (tmp_path / "own.svg").read_text()
