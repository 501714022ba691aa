"""Runs on the virtual clock: their rows, and the commands that start them."""

import csv
import json
import re

import numpy as np
import pytest
from helpers import Case, small_network

import fedjax_algos as fa
from fedjax_algos.asynchrony import immediate, plan_dispatches, simulated, traced
from fedjax_algos.cli import main
from fedjax_algos.engine.asynchronous.executor import make_executor
from fedjax_algos.participation.local_work import SpeedDistribution, relative_times
from fedjax_algos.runs.clock import simulate_async
from fedjax_algos.runs.method import Method, methods_of
from fedjax_algos.runs.settings import Settings

LOCAL = fa.Local(batch_size=3, learning_rate=0.05, steps=5)
TEST = {"x": np.ones((6, 3), np.float32), "y": np.zeros(6, np.float32)}


@pytest.fixture(scope="module")
def run():
    toy = small_network()
    executor = make_executor(Case("fedasync", {}).build(toy.problem, LOCAL), slots=2)

    def run(system, **options):
        return simulate_async(executor, toy.data, immediate(steps=5), system, **options)

    return run


@pytest.mark.all
def test_rows_count_what_has_arrived(run):
    """Four clients at 1, 2, 2.5 and 10 seconds a dispatch, for 10 seconds."""
    system = traced(np.array([1.0, 2.0, 2.5, 10.0]) / 5)
    state, rows, plan = run(system, seconds=10, evaluations=4, test=TEST)
    assert [row["simulated_seconds"] for row in rows] == [0, 2.5, 5, 7.5, 10]
    arrivals = [0, 2 + 1 + 1, 5 + 2 + 2, 7 + 3 + 3, 10 + 5 + 4 + 1]
    assert [row["arrivals"] for row in rows] == arrivals == [row["round"] for row in rows]
    assert len(plan.time) == arrivals[-1]
    weights = 3 * 4 + 4 + 4  # the network's params
    uploads = [row["upload_bytes"] for row in rows]
    assert uploads == [4 * weights * number for number in arrivals]
    assert uploads == [row["download_bytes"] for row in rows]
    per_dispatch = rows[1]["flops"] / arrivals[1]
    assert [row["flops"] for row in rows] == pytest.approx([per_dispatch * n for n in arrivals])
    losses = [row["test_loss"] for row in rows]
    assert losses[0] > losses[-1]
    evaluate = fa.make_evaluate(small_network().problem)
    last = evaluate(fa.Model(state.server.params), TEST)["loss"].value()
    assert losses[-1] == pytest.approx(float(last))


def test_the_initial_model_is_evaluated_until_the_first_step(run):
    system = traced(np.full(4, 1.0))
    _, rows, _ = run(system, seconds=8, evaluations=4, test=TEST)
    assert [row["round"] for row in rows] == [0, 0, 0, 4, 4]
    assert rows[0]["test_loss"] == rows[2]["test_loss"] != rows[3]["test_loss"]


def test_rows_count_lost_dispatches(run):
    system = simulated(seconds_per_step=0.1, dropout=0.3, unavailable_seconds=1)
    _, rows, plan = run(system, seconds=20, evaluations=2, seed=1)
    assert rows[-1]["lost"] == int(((plan.fate == 2) & (plan.ended <= 20)).sum()) > 0
    assert rows[-1]["upload_bytes"] < rows[-1]["download_bytes"]


def test_communication_takes_the_bytes_of_the_method(run):
    system = simulated(speeds="homogeneous", jitter=0, bytes_per_second=80.0)
    assert run(system, seconds=20).plan.ended[0] == pytest.approx(0.5 + 2 * 80 / 80)


def test_seconds_that_are_too_short(run):
    with pytest.raises(ValueError, match=r"seconds=3 end before .* after 5 seconds"):
        run(traced(np.full(4, 1.0)), seconds=3)


CLOCK = Settings(seconds=50.0, local_steps=7)


def test_planners_of_methods():
    specs = "fedavg", "fedbuff@buffered:size=4", "fedcompass", "scaffold@immediate"
    expected = ["barrier:steps=7", "buffered:size=4,steps=7", "compass", "immediate:steps=7"]
    assert [method.planner for method in methods_of(specs, CLOCK)] == expected
    twice = methods_of(("fedbuff@buffered:size=3", "fedbuff@buffered:size=5"), CLOCK)
    assert len({method.label for method in twice}) == 2


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ("fedavg@immediate", Settings(), "names a planner of the virtual clock; give seconds="),
        ("fedavg@immediat", CLOCK, "unknown planner 'immediat'; did you mean immediate"),
        ("mime", CLOCK, "does not run with the planner barrier: a round has two exchanges"),
        ("fedgbo@compass", CLOCK, "give upload=gradient"),
    ],
)
def test_wrong_planners(spec, settings, message):
    with pytest.raises(ValueError, match=message):
        Method.of(spec, settings)


def read_table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.all
def test_command_line(tmp_path, capsys):
    """Also the speeds of the clients of every seed."""
    out = tmp_path / "out"
    arguments = "compare fedavg fedcompass@compass:min_steps=2,max_steps=6 --seconds 12 --clients 4"
    arguments += " --model linear --partition iid --local-steps 6 --seeds 2 --evaluations 3"
    system = "simulated:speeds=exponential,seconds_per_step=0.2,time_floor=0.5"
    main([*arguments.split(), "--devices", "1", "--system", system, "--out", str(out)])
    printed = capsys.readouterr()
    assert "simulated time" in printed.out
    configuration = json.loads((out / "config.json").read_text())
    for method in ("fedavg", "fedcompass"):  # before it runs
        assert re.search(rf"{method}: at most \d+ models and \d+ updates in flight, ", printed.err)
        for picture in (f"timeline-{method}", f"staleness-{method}", "accuracy"):
            assert (out / f"{picture}.png").stat().st_size > 1000
    times = [row["simulated_seconds"] for row in read_table(out / "metrics.csv")]
    assert times == ["0.0", "4.0", "8.0", "12.0"] * 4
    assert configuration["methods"]["fedcompass"]["planner"] == "compass:min_steps=2,max_steps=6"
    assert configuration["in_flight"]["fedavg"]["update_rows"] == 2
    assert len(read_table(out / "idle.csv")) == 2 * 4
    distribution = SpeedDistribution("exponential", 0.5)
    speeds = {seed: 0.2 * relative_times(distribution, seed, 4) for seed in (0, 1)}
    assert [tuple(map(float, row.values())) for row in read_table(out / "speeds.csv")] == [
        (seed, client, speeds[seed][client]) for seed in (0, 1) for client in range(4)
    ]
    ratios = {seed: max(values) / min(values) for seed, values in speeds.items()}
    assert configuration["speed_ratio"] == {str(seed): ratio for seed, ratio in ratios.items()}
    assert f"fastest: {ratios[0]:.3g} (seed 0), {ratios[1]:.3g} (seed 1)\n" in printed.err


@pytest.mark.all
@pytest.mark.parametrize("name", ["fedhbm", "localghbm"])
def test_the_dispatch_after_a_lost_first_one_has_no_anchor(name):
    """Client 0 loses its first dispatch: the first arrival equals FedAvg's, the next does not."""
    toy = small_network()
    system = traced(np.array([0.2, 99.0, 99.0, 99.0]), {(0, 0): (0.5, 1.0)})
    models = []
    for algorithm in (Case(name, {"beta": 0.9}), Case("fedavg", {})):
        executor = make_executor(algorithm.build(toy.problem, LOCAL), slots=1)
        plan = immediate(steps=5)(system(0), 4, seconds=4)
        dispatches = plan_dispatches(plan, toy.data.counts(), LOCAL)
        state = executor.init(0, fa.Population(4, 4, 17))
        run = executor.run(state, toy.data, plan, dispatches, stops=[1, 2])
        models.append([np.asarray(state.server.params["out"]) for _, state, *_ in run])
    assert plan.fate[0] == 2
    np.testing.assert_array_equal(models[0][0], models[1][0])
    assert np.abs(models[0][1] - models[1][1]).max() > 1e-6
