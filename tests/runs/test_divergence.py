"""Runs whose model is not finite stop, and the others of a comparison go on."""

import warnings

import jax
import numpy as np
import pytest
from helpers import Case, small_network

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.analysis.pictures import plot_metric
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.runs.recorder import DivergenceWarning

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
TEST = {"x": np.ones((2, 3)), "y": np.zeros(2)}
NAN = float("nan")


def algorithm(server_learning_rate=1e200):
    return Case("fedavg", {"server_learning_rate": server_learning_rate}).build(
        small_network().problem, LOCAL
    )


def rows_in_rounds(**options):
    engine = fa.make_engine(algorithm(), **options)
    settings = {"cohort_size": 2, "rounds": 6, "eval_every": 2, "test": TEST}
    return fa.simulate(engine, small_network().data, **settings)[1]


def test_a_run_in_rounds_stops_at_the_row_that_shows_it():
    told = (
        r"seed 0: not finite at round 2 \(test_loss=\w+\); the last finite row is that of round 0"
    )
    with pytest.warns(DivergenceWarning, match=told):
        rows = rows_in_rounds()
    assert [row["round"] for row in rows] == [0, 2]
    assert np.isfinite(rows[0]["test_loss"])
    assert not np.isfinite(rows[1]["test_loss"])


def test_a_run_that_keeps_such_numbers_goes_on():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DivergenceWarning)
        rows = rows_in_rounds(non_finite="keep")
    assert [row["round"] for row in rows] == [0, 2, 4, 6]
    assert "excluded_updates" not in rows[-1]


def test_params_that_are_not_finite_stop_a_run_without_a_test_set():
    toy = small_network()
    params = toy.problem.init(jax.random.key(0)).params
    params["out"] = params["out"] * np.nan
    with pytest.warns(DivergenceWarning, match="round 0; the last finite row is none"):
        _, rows = fa.simulate(
            fa.make_engine(algorithm(1.0)), toy.data, cohort_size=2, rounds=2, params=params
        )
    assert [row["round"] for row in rows] == [0]


@pytest.mark.slow
def test_runs_on_the_virtual_clock_stop_whether_they_are_merged_or_not():
    """Merged or not, both seeds have the same rows, which end at different times or at one."""
    toy = small_network()
    executor = fa.make_executor(algorithm(), slots=2)
    results = {}
    for merged_bytes in (0, 2**30):
        with pytest.warns(DivergenceWarning, match="not finite at round") as told:
            results[merged_bytes] = fa.simulate_async_seeds(
                executor,
                {0: toy.data, 3: toy.data},
                asynchrony.barrier(steps=2),
                asynchrony.simulated(speeds="exponential"),
                seconds=6,
                evaluations=6,
                test=TEST,
                merged_bytes=merged_bytes,
            )
        assert len(told) == 2
    for result in results[0].values():
        assert 1 < len(result.rows) < 7
        assert not np.isfinite(result.rows[-1]["test_loss"])
    assert [[row | {"wall_seconds": 0} for row in r.rows] for r in results[0].values()] == [
        [row | {"wall_seconds": 0} for row in r.rows] for r in results[2**30].values()
    ]


def rows(method, seed, accuracies):
    return [
        {
            "method": method,
            "seed": seed,
            "round": 10 * index,
            "test_accuracy": accuracy,
            "test_loss": 1 - accuracy,
            "download_bytes": 100 * index,
            "upload_bytes": 100 * index,
            "wall_seconds": 1.0 + index,
        }
        for index, accuracy in enumerate(accuracies)
    ]


MEASURED = [
    *rows("fedavg", 0, [0.1, 0.5, 0.6, 0.7]),
    *rows("fedavg", 1, [0.1, 0.4, 0.5, 0.7]),
    *rows("half", 0, [0.1, 0.8, NAN]),
    *rows("half", 1, [0.1, 0.6, 0.7, 0.8]),
]


def test_summaries_of_runs_that_ended_early(tmp_path):
    column = column_by_method(MEASURED, "test_accuracy")["half"]
    np.testing.assert_array_equal(column, [[0.1, 0.8, NAN, NAN], [0.1, 0.6, 0.7, 0.8]])
    fedavg, half = summarise(MEASURED)
    assert (fedavg.seeds_diverged, half.seeds_diverged) == (0, 1)
    assert (half.best.values, half.seeds_reaching, half.seconds) == ((0.8, 0.8), 2, 3.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_metric(MEASURED, tmp_path / "accuracy.png")


def test_a_method_without_a_seed_is_refused():
    with pytest.raises(ValueError, match="method 'half' has no rows on seed 0; give the rows"):
        column_by_method(
            [row for row in MEASURED if row["method"] != "half" or row["seed"]], "round"
        )
