"""The summary of several methods, its table, and its picture."""

import math

import pytest
from rich.console import Console

from fedjax_algos.analysis import plots
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli import tables
from fedjax_algos.runs import results
from fedjax_algos.runs.settings import Settings


def rows(method, by_seed, **columns):
    """Rows of one method: its test accuracies, and other columns as a factor of the round."""
    return [
        {
            "method": method,
            "seed": seed,
            "round": 10 * index,
            "test_accuracy": accuracy,
            "test_loss": -math.log(accuracy),
            "upload_bytes": 1000 * index,
            "wall_seconds": 1.0 + seed,
            **{name: 10 * index * factor for name, factor in columns.items()},
        }
        for seed, curve in enumerate(by_seed)
        for index, accuracy in enumerate(curve)
    ]


def printed(summary, **settings):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(tables.summary_table(summary, Settings(seeds=(0, 1), **settings)))
    return [line.split() for line in capture.get().splitlines()]


FIRST = [[0.1, 0.5, 0.6], [0.1, 0.7, 0.6]]
OTHER = [[0.1, 0.2, 0.8], [0.1, 0.2, 0.9]]


def test_a_given_target_replaces_the_first_method_s_best():
    measured = rows("first", FIRST) + rows("other", OTHER)
    first, other = summarise(measured)
    assert (first.rounds, first.seeds_reaching) == (10, 2)  # of 20 and 10
    first, other = summarise(measured, target=0.65)
    assert (first.rounds, first.seeds_reaching) == (10, 1)
    assert (other.rounds, other.seeds_reaching) == (20, 2)
    (first, other), settings = summarise(measured, target=0.85), Settings(target=0.85)
    assert (first.rounds, first.seeds_reaching, other.seeds_reaching) == (None, 0, 1)
    assert "to a test accuracy of 85%," in tables.legend([first, other], settings)
    assert "to first's best accuracy on the same seed," in tables.legend([first], Settings())


def test_flops_to_the_target_are_shown_where_they_were_measured():
    measured = rows("first", FIRST, flops=3.14e11) + rows("other", OTHER)
    first, other = summarise(measured)
    assert (first.flops, other.flops) == (3.14e12, None)
    heading, cells, others = printed([first, other])
    assert heading[5] == "flops"
    assert "3.1 TFLOP" in " ".join(cells)
    assert others.count("-") == 1
    assert "rounds, upload and flops" in tables.legend([first, other], Settings())
    summary = summarise(rows("first", FIRST))
    assert summary[0].flops is None
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
def test_diverged_runs_are_counted_and_printed(tmp_path):
    nan = math.nan
    measured = (
        rows("half", [[0.1, 0.5, nan], [0.1, 0.4, 0.5]])
        + rows("all", [[nan] * 3] * 2)
        + rows("fine", OTHER)
    )
    half, everywhere, fine = summarise(measured)
    assert (half.seeds_diverged, everywhere.seeds_diverged, fine.seeds_diverged) == (1, 2, 0)
    assert half.best == pytest.approx(0.5)  # before it diverged
    assert (half.rounds, half.seeds_reaching) == (10, 2)
    assert (everywhere.rounds, everywhere.seeds_reaching) == (None, 0)
    _, some, none, good = (" ".join(cells) for cells in printed([half, everywhere, fine]))
    assert some.startswith("half 1/2 diverged 50.0")
    assert none.startswith("all diverged - - -")
    assert good.startswith("fine 85.0")
    plots.plot_metric(measured, tmp_path / "a.png")
    assert summarise(rows("all", [[nan] * 3]) + rows("fine", OTHER[:1]))[1].rounds is None


def test_a_loss_that_is_not_finite_is_a_diverged_run():
    """The largest of logits that are all NaN is the first, so that an accuracy stays finite."""
    measured = rows("first", FIRST)
    measured[-1]["test_loss"] = math.nan
    assert summarise(measured)[0].seeds_diverged == 1


def test_flops_are_an_axis_where_they_were_measured(tmp_path):
    with_flops, without = rows("first", FIRST, flops=1e9), rows("other", OTHER)
    plots.plot_metric(with_flops, tmp_path / "a.png", x="flops")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    message = "x='flops' is unknown; choose from round, upload_bytes, wall_seconds"
    with pytest.raises(ValueError, match=message):
        plots.plot_metric(with_flops + without, tmp_path / "b.png", x="flops")


def test_values_that_are_not_finite_survive_the_file(tmp_path):
    measured = rows("first", [[0.1, math.nan]], flops=1e9) + rows("other", [[0.1, 0.2]])
    results.write_table(tmp_path / "metrics.csv", measured)
    again = results.read_metrics(tmp_path)
    assert math.isnan(again[1]["test_accuracy"])
    assert summarise(again)[0].seeds_diverged == 1
    assert summarise(again)[1].flops is None
