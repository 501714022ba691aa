"""The table that a comparison ends with, and its legend."""

import pytest
from rich.console import Console
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, OTHER, rows

from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli import tables
from fedjax_algos.runs.settings import Settings


def printed(summary):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(tables.summary_table(summary, Settings(seeds=(0, 1))))
    return [line.split() for line in capture.get().splitlines()]


def test_the_legend_names_the_target():
    first, other = summarise(rows("first", FIRST) + rows("other", OTHER))
    settings = Settings(target=0.85)
    assert "to a test accuracy of 85%," in tables.legend([first, other], settings)
    assert "to first's best accuracy on the same seed," in tables.legend([first], Settings())


def test_flops_to_the_target_are_shown_where_they_were_measured():
    first, other = summarise(rows("first", FIRST, flops=3.14e11) + rows("other", OTHER))
    heading, cells, others = printed([first, other])
    assert heading[5] == "flops"
    assert "3.1 TFLOP" in " ".join(cells)
    assert others.count("-") == 1
    assert "rounds, upload and flops" in tables.legend([first, other], Settings())
    summary = summarise(rows("first", FIRST))
    assert "flops" not in printed(summary)[0]
    assert "flops" not in tables.legend(summary, Settings())


@pytest.mark.parametrize(
    ("flops", "text"),
    [(0, "0.0 FLOP"), (999, "999.0 FLOP"), (2e6, "2.0 MFLOP"), (5e18, "5000.0 P")],
)
def test_flops_have_a_prefix(flops, text):
    (first,) = summarise(rows("first", [[0.5], [0.5]]))
    assert text in " ".join(printed([first._replace(flops=flops)])[1])


@pytest.mark.filterwarnings("error")
def test_diverged_runs_are_printed():
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    _, some, none, good = (" ".join(cells) for cells in printed(summarise(measured)))
    assert some.startswith("half 1/2 diverged 50.0")
    assert none.startswith("all diverged - - -")
    assert good.startswith("fine 85.0")
