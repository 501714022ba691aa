"""Runs on the virtual clock: their rows, and their settings."""

import numpy as np
import pytest
from helpers import Case
from sweep_helpers import QUADRATICS, clock_executor

import fedjax_algos as fa
from fedjax_algos.asynchrony import immediate, plan_dispatches, simulated, traced
from fedjax_algos.participation.local_work import SpeedDistribution, relative_times
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import Method, methods_of
from fedjax_algos.runs.planned_runs import Clock, plan_run
from fedjax_algos.runs.results import configuration as configured
from fedjax_algos.runs.settings import Settings

TEST = QUADRATICS.data.examples
BYTES = 16  # of the model


def run(system, **options):
    how = clock_executor(), QUADRATICS.data, immediate(steps=5), system
    return fa.simulate_async(*how, **options)


def planned(system, seconds, seed=0):
    """A run before its training."""
    clock = Clock(immediate(steps=5), system, seconds)
    return plan_run(clock_executor(), QUADRATICS.data, clock, seed)


def test_rows_count_what_has_arrived():
    """Four clients at 3, 6, 7.5 and 30 seconds a dispatch, for 30 seconds."""
    durations = np.array([3.0, 6.0, 7.5, 30.0])
    state, rows, plan = run(traced(durations / 5), seconds=30, evaluations=12, test=TEST)
    times = [row["simulated_seconds"] for row in rows]
    assert times == [2.5 * number for number in range(13)]
    arrivals = [int(sum(now // durations)) for now in times]
    assert [row["arrivals"] for row in rows] == arrivals == [row["round"] for row in rows]
    assert len(plan.time) == arrivals[-1] == 10 + 5 + 4 + 1
    uploads = [row["upload_bytes"] for row in rows]
    assert uploads == [BYTES * number for number in arrivals]
    assert uploads == [row["download_bytes"] for row in rows]
    # the first arrives after 2.5 and before 5 seconds; all dispatches have as many operations
    per_dispatch = rows[2]["flops"]
    assert [row["flops"] for row in rows] == pytest.approx([per_dispatch * n for n in arrivals])
    losses = [row["test_loss"] for row in rows]
    assert losses[0] == losses[1] != losses[2]  # until then of the initial model
    evaluate = fa.make_evaluate(QUADRATICS.problem)
    last = evaluate(fa.Model(state.server.params), TEST)["loss"].value()
    assert losses[-1] == pytest.approx(float(last))


def test_lost_dispatches_are_counted():
    system = simulated(seconds_per_step=0.1, dropout=0.3, unavailable_seconds=1)
    own = planned(system, 20, seed=1)
    counted = own.counted(10, 7)
    ended = own.plan.ended <= 10
    lost = int((ended & (own.plan.fate == 2)).sum())
    assert 0 < lost == counted["lost"] == ended.sum() - counted["arrivals"]
    assert counted["download_bytes"] == BYTES * ended.sum()
    assert counted["upload_bytes"] == BYTES * counted["arrivals"]
    assert (counted["round_number"], counted["simulated_seconds"]) == (7, 10)


def test_communication_takes_the_bytes_of_the_method():
    system = simulated(speeds="homogeneous", jitter=0, bytes_per_second=8.0)
    assert planned(system, 20).plan.ended[0] == pytest.approx(0.5 + 2 * BYTES / 8)


def test_seconds_that_are_too_short():
    with pytest.raises(ValueError, match=r"seconds=3 .* after 5 seconds"):
        planned(traced(np.full(4, 1.0)), 3)


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
        ("fedavg@immediate", Settings(), "give seconds="),
        ("fedavg@immediat", CLOCK, "unknown planner 'immediat'; did you mean immediate"),
        ("mime", CLOCK, "does not run with the planner barrier: a round has two exchanges"),
        ("fedgbo@compass", CLOCK, "give upload=gradient"),
    ],
)
def test_wrong_planners(spec, settings, message):
    with pytest.raises(ValueError, match=message):
        Method.of(spec, settings)


def test_what_is_known_before_a_comparison_on_the_clock():
    system = "simulated:speeds=exponential,seconds_per_step=0.2,time_floor=0.5"
    changes = {"model": "linear", "clients": 4, "seeds": (0, 1), "system": system}
    settings = Settings(**vars(CLOCK) | changes)
    experiment = prepare(settings, methods_of(("fedcompass@compass:min_steps=6",), settings))
    distribution, configuration = SpeedDistribution("exponential", 0.5), configured(experiment)
    for seed in (0, 1):
        speeds = 0.2 * relative_times(distribution, seed, 4)
        np.testing.assert_array_equal(experiment.speeds[seed], speeds)
        assert configuration["speed_ratio"][str(seed)] == speeds.max() / speeds.min()
    assert configuration["methods"]["fedcompass"]["planner"] == "compass:min_steps=6"


@pytest.mark.all
@pytest.mark.parametrize("name", ["fedhbm", "localghbm"])
def test_the_dispatch_after_a_lost_first_one_has_no_anchor(name):
    """Client 0 loses its first dispatch: the first arrival equals FedAvg's, the next does not."""
    system, models = traced(np.array([0.2, 99.0, 99.0, 99.0]), {(0, 0): (0.5, 1.0)}), []
    data, local = QUADRATICS.data, fa.Local(3, 0.05, steps=5)
    for case in (Case(name, {"beta": 0.9}), Case("fedavg", {})):
        executor = fa.make_executor(case.build(QUADRATICS.problem, local), slots=1)
        plan = immediate(steps=5)(system(0), 4, seconds=4)
        dispatches = plan_dispatches(plan, data.counts(), local)
        state = executor.init(0, fa.Population(4, 4, 17))
        stops = executor.run(state, data, plan, dispatches, stops=[1, 2])
        models.append([float(state.server.params["x"].sum()) for _, state, *_ in stops])
    assert plan.fate[0] == 2
    assert models[0][0] == models[1][0]
    assert abs(models[0][1] - models[1][1]) > 1e-6
