"""Runs whose model is not finite stop, and the others of a comparison go on."""

import warnings

import jax
import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import without_time
from summary_helpers import NAN, rows

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.analysis.pictures import plot_metric
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.runs import results
from fedjax_algos.runs.recorder import DivergenceWarning

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
TEST = {"x": np.ones((2, 3)), "y": np.zeros(2)}


def algorithm(server_learning_rate=1e200):
    return Case("fedavg", {"server_learning_rate": server_learning_rate}).build(
        small_network().problem, LOCAL
    )


def rows_in_rounds(**options):
    engine = fa.make_engine(algorithm(), **options)
    settings = {"cohort_size": 2, "rounds": 6, "eval_every": 2, "test": TEST}
    return fa.simulate(engine, small_network().data, **settings)[1]


def test_a_run_in_rounds_stops_at_the_row_that_shows_it_unless_it_keeps_such_numbers():
    message = r"seed 0: not finite at round 2 \(test_loss=\w+\); the last finite row is .* round 0"
    with pytest.warns(DivergenceWarning, match=message):
        measured = rows_in_rounds()
    assert [row["round"] for row in measured] == [0, 2]
    assert np.isfinite([row["test_loss"] for row in measured]).tolist() == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DivergenceWarning)
        measured = rows_in_rounds(non_finite="keep")
    assert [row["round"] for row in measured] == [0, 2, 4, 6]
    assert "excluded_updates" not in measured[-1]


def test_params_that_are_not_finite_stop_a_run_without_a_test_set():
    toy = small_network()
    params = toy.problem.init(jax.random.key(0)).params
    params["out"] = params["out"] * np.nan
    engine = fa.make_engine(algorithm(1.0))
    with pytest.warns(DivergenceWarning, match="round 0; the last finite row is none"):
        _, rows = fa.simulate(engine, toy.data, cohort_size=2, rounds=2, params=params)
    assert [row["round"] for row in rows] == [0]


@pytest.mark.all
def test_runs_on_the_virtual_clock_stop_whether_they_are_merged_or_not():
    """Merged or not, both seeds have the same rows, which end at different times or at one."""
    toy = small_network()
    executor = fa.make_executor(algorithm(), slots=2)
    systems = asynchrony.barrier(steps=2), asynchrony.simulated(speeds="exponential")
    data, options = {0: toy.data, 3: toy.data}, {"seconds": 6, "evaluations": 6, "test": TEST}
    found = {}
    for merged_bytes in (0, 2**30):
        with pytest.warns(DivergenceWarning, match="not finite at round") as told:
            found[merged_bytes] = fa.simulate_async_seeds(
                executor, data, *systems, merged_bytes=merged_bytes, **options
            )
        assert len(told) == 2
    for result in found[0].values():
        assert 1 < len(result.rows) < 7
        assert not np.isfinite(result.rows[-1]["test_loss"])
    apart, merged = ([without_time(r.rows) for r in each.values()] for each in found.values())
    assert apart == merged


def test_summaries_of_runs_that_ended_early(tmp_path):
    """Also of rows that were written to a file and read again."""
    measured = rows("fedavg", [[0.1, 0.5, 0.6, 0.7], [0.1, 0.4, 0.5, 0.7]], flops=1e9)
    measured += rows("half", [[0.1, 0.8, NAN], [0.1, 0.6, 0.7, 0.8]])
    column = column_by_method(measured, "test_accuracy")["half"]
    np.testing.assert_array_equal(column, [[0.1, 0.8, NAN, NAN], [0.1, 0.6, 0.7, 0.8]])
    results.write_table(tmp_path / "metrics.csv", measured)
    for own in (measured, results.read_metrics(tmp_path)):
        fedavg, half = summarise(own)
        assert (fedavg.seeds_diverged, half.seeds_diverged) == (0, 1)
        assert (half.best.values, half.seeds_reaching) == ((0.8, 0.8), 2)
        assert half.flops is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_metric(measured, tmp_path / "accuracy.png")
    fewer = [row for row in measured if row["method"] != "half" or row["seed"]]
    with pytest.raises(ValueError, match="method 'half' has no rows on seed 0; give the rows"):
        column_by_method(fewer, "round")
