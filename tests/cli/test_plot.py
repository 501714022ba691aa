"""The command plot: its options, several folders, and what it tells."""

import pytest
from summary_helpers import ALL_DIVERGED, FIRST, OTHER, rows, write_folder

from fedjax_algos.analysis.pictures import metrics
from fedjax_algos.cli import main

TWO_METHODS = rows("fedavg", FIRST) + rows("fedprox mu=0.1", OTHER)


@pytest.fixture
def folders(here):
    """Two results folders of the same name, and one of other seeds."""
    for name, measured in {"a": TWO_METHODS, "b": rows("fedavg", OTHER)}.items():
        (here / name).mkdir()
        write_folder(here / name / "compare", measured)
    write_folder(here / "one", [row | {"../[a]/b": 1.0} for row in rows("fedavg", FIRST[:1])])
    write_folder(here / "diverged", rows("fedavg", ALL_DIVERGED) + rows("scaffold", FIRST))


@pytest.fixture
def figure(monkeypatch, folders):
    """The axes and the legend of the last figure, which is not written."""
    drawn, draw = {}, metrics.draw_metric

    def keep(measured, **options):
        own, hidden = draw(measured, **options)
        (box,) = [*own.legends, *(one for axes in own.axes if (one := axes.get_legend()))]
        drawn.update(axes=own.axes, legend=[text.get_text() for text in box.get_texts()])
        return own, hidden

    monkeypatch.setattr(metrics, "draw_metric", keep)
    return drawn


def test_options_of_a_figure(command, figure):
    line = ["plot", "a/compare", "--metric", "test_loss", "--x", "upload_bytes", "--log", "y"]
    line += ["--methods", "fedprox mu=0.1,fedavg", "--label", "fedprox mu=0.1=FedProx, mu=0.1"]
    line += ["--x-limits", "500,", "--y-limits", ",2", "--size", "3.5x2.6", "--band", "seeds"]
    line += ["--title", "", "--x-label", "upload", "--y-label", "loss", "--out", "a.pdf"]
    assert command(*line) == "a.pdf\n"
    (axes,) = figure["axes"]
    assert figure["legend"] == ["FedProx, mu=0.1", "FedAvg"]
    assert (axes.get_xlim()[0], axes.get_ylim()[1]) == (0.5, 2)
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("upload", "loss", "")
    assert axes.figure.get_size_inches().tolist() == [3.5, 2.6]
    assert len(axes.lines) == 2 + 4


def test_the_picture_is_named_by_its_columns(command, folders, quick_pictures):
    for line, name in (
        ("a/compare --metric test_accuracy,test_loss", "test_accuracy-test_loss-by-round.png"),
        ("one --x round,upload_bytes", "test_accuracy-by-round-upload_bytes.png"),
        ("one --metric ../[a]/b", "..-a-b-by-round.png"),
    ):
        assert command("plot", *line.split()) == f"{line.split()[0]}/{name}\n"


def test_folders_in_one_panel_and_in_panels(command, figure):
    """Folders of the same name are told apart by their paths."""
    command("plot", "a/compare", "diverged", "--out", "1.png")
    of_first, of_second = ["FedAvg", "FedProx mu=0.1"], ["FedAvg (no finite value)", "SCAFFOLD"]
    expected = [f"compare: {name}" for name in of_first] + [f"diverged: {n}" for n in of_second]
    assert figure["legend"] == expected
    line = "plot a/compare b/compare --methods fedavg --label fedavg=Average --out 2.png"
    command(*line.split())
    assert figure["legend"] == ["a/compare: Average", "b/compare: Average"]
    command("plot", "a/compare", "one", "--facet", "results", "--label", "one=1 seed")
    assert [axes.get_title() for axes in figure["axes"]] == ["compare", "1 seed"]
    assert figure["legend"] == ["FedAvg", "FedProx mu=0.1"]


def test_what_a_figure_does_not_show_is_told(folders, capsys):
    main(["plot", "diverged", "--y-limits", "0.7,", "--log", "x", "--out", "a.svg"])
    assert capsys.readouterr() == (
        "a.svg\n",
        "FedAvg: no finite value\nSCAFFOLD: outside the limits\n"
        "1 point at 0 or below: no place on the logarithmic x axis\n",
    )


WRONG = """
--band interval | band='interval' needs at least 5 seeds, but there are 2
--band std | band='std' is unknown; choose none, interval, range or seeds
--methods fedavg,fedprx | methods='fedprx' is unknown; choose fedavg or fedprox mu=0.1
--methods fedavg,fedavg | methods=['fedavg', 'fedavg'] are not different
--label fedavg | label='fedavg' has no new text; give OLD=NEW
--x-limits 0,x | x_limits='0,x' is not A,B, or A, or ,B: could not convert string to float: 'x'
--x-limits , | x_limits=',' is not A,B, or A, or ,B: could not convert string to float: ''
--label fedavgm=x | unknown label 'fedavgm'; did you mean fedavg?
--label fedavg=x --label fedavg=y | is not OLD=NEW with a label of its own: unknown label 'fed
--x-limits 5 | x_limits=(5.0,) is not an interval
--x-limits 0,5 --log x | give finite numbers above 0, lower first
--size 3.5 | size=(3.5,) is out of range; give the width and the height
--size 1x1 | size=1x1 has no room for the axes beside the texts
--out a.eps | suffix='.eps' is unknown; choose .pdf, .png or .svg
one | different seeds, so their means are not comparable; add --facet results
./a/compare | a/compare ./a/compare is given; give one or more
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_wrong_options(refused, folders, case):
    options, message = case.split(" | ")
    assert message in refused("plot", "a/compare", *options.split())
