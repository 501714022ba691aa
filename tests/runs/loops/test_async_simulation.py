"""Runs on the virtual clock: their rows, and their settings."""

import numpy as np
import pytest
from helpers import Case
from sweep_helpers import QUADRATICS, clock_executor

import fedjax_algos as fa
from fedjax_algos.asynchrony import immediate, plan_dispatches, simulated, traced
from fedjax_algos.participation.local_work import SpeedDistribution, relative_times
from fedjax_algos.runs.loops.planned_runs import Clock, plan_run
from fedjax_algos.runs.results import configuration as configured
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.method import Method, methods_of
from fedjax_algos.runs.studies.settings import Settings

BYTES = 16  # of the model


def planned(system, seconds, seed=0):
    """A run before its training."""
    clock = Clock(immediate(steps=5), system, seconds)
    return plan_run(clock_executor(), QUADRATICS.data, clock, seed)


def test_rows_count_what_has_arrived():
    """Four clients at 3, 6, 7.5 and 30 seconds a dispatch, for 30 seconds."""
    durations, test = np.array([3.0, 6.0, 7.5, 30.0]), QUADRATICS.data.examples
    how = clock_executor(), QUADRATICS.data, immediate(steps=5), traced(durations / 5)
    state, rows, plan = fa.simulate_async(*how, seconds=30, evaluations=12, test=test)
    times = [row["simulated_seconds"] for row in rows]
    assert times == [2.5 * number for number in range(13)]
    arrivals = [int(sum(now // durations)) for now in times]
    assert len(plan.time) == arrivals[-1] == 10 + 5 + 4 + 1
    # the first arrives after 2.5 and before 5 seconds; all dispatches have as many operations
    of_each = {"arrivals": 1, "round": 1, "upload_bytes": BYTES, "download_bytes": BYTES}
    for name, each in (of_each | {"flops": rows[2]["flops"]}).items():
        assert [row[name] for row in rows] == pytest.approx([each * number for number in arrivals])
    losses = [row["test_loss"] for row in rows]
    assert losses[0] == losses[1] != losses[2]  # until then of the initial model
    last = fa.make_evaluate(QUADRATICS.problem)(fa.Model(state.server.params), test)["loss"].value()
    assert losses[-1] == pytest.approx(float(last))


def test_lost_dispatches_are_counted():
    own = planned(simulated(seconds_per_step=0.1, dropout=0.3, unavailable_seconds=1), 20, seed=1)
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
    with pytest.raises(ValueError, match=r"seconds=3 .* after 5 seconds"):
        planned(traced(np.full(4, 1.0)), 3)


CLOCK = Settings(seconds=50.0, local_steps=7)


def on_the_clock(method, settings=CLOCK):
    return method.on_the_clock(method.build(QUADRATICS.problem, settings), settings)


def test_planners_of_methods():
    specs = "fedavg", "fedbuff@buffered:size=4", "fedcompass", "scaffold@immediate"
    expected = ["barrier:steps=7", "buffered:size=4,steps=7", "compass", "immediate:steps=7"]
    assert [on_the_clock(method).planner for method in methods_of(specs, CLOCK)] == expected
    twice = methods_of(("fedbuff@buffered:size=3", "fedbuff@buffered:size=5"), CLOCK)
    assert len({method.label for method in twice}) == 2


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ("fedavg@immediate", Settings(), "give seconds="),
        ("fedavg@immediat", CLOCK, "unknown planner 'immediat'; did you mean immediate"),
        ("mime", CLOCK, "does not run on the virtual clock: a round has two exchanges"),
        ("fedgbo@compass", CLOCK, "give upload=gradient"),
    ],
)
def test_wrong_planners(spec, settings, message):
    with pytest.raises(ValueError, match=message):
        on_the_clock(Method.of(spec, settings))


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
def test_the_dispatch_after_a_lost_first_one_has_no_anchor():
    """Client 0 loses its first dispatch: the first arrival equals FedAvg's, the next does not."""
    system, models = traced(np.array([0.2, 99.0, 99.0, 99.0]), {(0, 0): (0.5, 1.0)}), []
    data, local = QUADRATICS.data, fa.Local(3, 0.05, steps=5)
    plan = immediate(steps=5)(system(0), 4, seconds=4)
    assert plan.fate[0] == 2
    for name, options in (("fedavg", {}), ("fedhbm", {"beta": 0.9}), ("localghbm", {"beta": 0.9})):
        case = Case(name, options)
        executor = fa.make_executor(case.build(QUADRATICS.problem, local), slots=1)
        dispatches = plan_dispatches(plan, data.counts(), local)
        state = executor.init(0, fa.Population(4, 4, 17))
        stops = executor.run(state, data, plan, dispatches, stops=[1, 2])
        models.append([float(state.server.params["x"].sum()) for _, state, *_ in stops])
    (first, second), *others = models
    assert [own[0] for own in others] == [first] * 2
    assert all(abs(own[1] - second) > 1e-6 for own in others)
