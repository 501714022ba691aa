"""Runs whose model is not finite stop, and the others of a comparison go on."""

import jax.numpy as jnp
import numpy as np
import pytest
from same_runs import without_time
from summary_helpers import NAN, rows
from sweep_helpers import QUADRATICS, rounds_engine, run_rounds

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.runs import results
from fedjax_algos.runs.loops.recorder import DivergenceWarning, describe_excluded
from fedjax_algos.runs.studies import folder_content

# its model is too large for float32 after a few rounds
LOCAL = fa.Local(3, 0.1, steps=2)
ALGORITHM = fa.algorithms.fedavg(QUADRATICS.problem, LOCAL, server_learning_rate=1e30)


def test_a_run_in_rounds_stops_at_the_row_that_shows_it():
    message = r"seed 3: not finite at round 2 \(test_loss=.* last finite row is from round 0"
    with pytest.warns(DivergenceWarning, match=message):
        _, measured = run_rounds(fa.make_engine(ALGORITHM), rounds=6)
    assert [row["round"] for row in measured] == [0, 2]
    assert np.isfinite([row["test_loss"] for row in measured]).tolist() == [True, False]


@pytest.mark.all
def test_a_run_goes_on_if_it_keeps_such_numbers(recwarn):
    _, measured = run_rounds(fa.make_engine(ALGORITHM, non_finite="keep"), rounds=6)
    assert [row["round"] for row in measured] == [0, 2, 4, 6]
    assert not recwarn.list
    assert "excluded_updates" not in measured[-1]


def test_updates_that_are_left_out_are_told():
    """Such as those of a client with an example that is NaN; the run goes on without them."""
    data = QUADRATICS.data
    spoiled = data.examples | {"b": data.examples["b"].at[data.indices[0]].set(np.nan)}
    engine = fa.make_engine(
        fa.algorithms.fedavg(QUADRATICS.problem, LOCAL._replace(epochs=1.0, steps=None))
    )
    with pytest.warns(DivergenceWarning, match="^seed 3: 5 updates of clients were not finite and"):
        _, measured = run_rounds(engine, data._replace(examples=spoiled), cohort_size=4)
    assert [row["excluded_updates"] for row in measured] == [0, 2, 4, 5]
    assert describe_excluded(1) == "1 update of a client was not finite and was left out"


def test_params_that_are_not_finite_stop_a_run_without_a_test_set():
    params = {"x": jnp.full(4, np.nan)}
    with pytest.warns(DivergenceWarning, match="round 0; no row is finite"):
        _, measured = run_rounds(rounds_engine(), params=params, test=None)
    assert [row["round"] for row in measured] == [0]


@pytest.mark.all
def test_runs_on_the_virtual_clock_stop_whether_they_are_merged_or_not():
    """Merged or not, both seeds have the same rows, which end at different times or at one."""
    executor, data = fa.make_executor(ALGORITHM, slots=2), QUADRATICS.data
    systems = asynchrony.barrier(steps=2), asynchrony.simulated(speeds="exponential")
    options, found = {"seconds": 6, "evaluations": 6, "test": data.examples}, []
    for merged_bytes in (0, 2**30):
        how = executor, dict.fromkeys((0, 3), data), *systems
        with pytest.warns(DivergenceWarning, match="not finite at round") as told:
            results = fa.simulate_async_seeds(*how, merged_bytes=merged_bytes, **options)
        assert sum(str(each.message).count("not finite at round") for each in told) == 2
        found.append([without_time(result.rows) for result in results.values()])
    for measured in found[0]:
        assert 1 < len(measured) < 7
        assert not np.isfinite(measured[-1]["test_loss"])
    assert found[0] == found[1]


def test_rows_of_runs_that_ended_early(tmp_path):
    """In columns, summaries and pictures, also when they were written and read again."""
    measured = rows("fedavg", [[0.1, 0.5, 0.6, 0.7], [0.1, 0.4, 0.5, 0.7]], flops=1e9)
    measured += rows("half", [[0.1, 0.8, NAN], [0.1, 0.6, 0.7, 0.8]])
    column = column_by_method(measured, "test_accuracy")["half"]
    np.testing.assert_array_equal(column, [[0.1, 0.8, NAN, NAN], [0.1, 0.6, 0.7, 0.8]])
    folder_content.write_table(tmp_path / "metrics.csv", measured)
    for own in (measured, results.read_metrics(tmp_path)):
        _, half = summarise(own)
        assert (half.best.values, half.seeds_reaching, half.flops) == ((0.8, 0.8), 2, None)
