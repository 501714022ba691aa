"""Each setting reaches the engine, the cohorts or the programs of a sweep."""

import jax
import numpy as np
import pytest
from helpers import quadratics, run

from fedjax_algos import participation
from fedjax_algos.algorithms import fedprox
from fedjax_algos.core import Population
from fedjax_algos.core.options import options
from fedjax_algos.runs import comparison
from fedjax_algos.runs.loops.run import Rounds
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import prepare_sweep, run_sweep

SMALL = Settings(
    model="linear", partition="iid", clients=12, cohort=4, rounds=2, local_steps=2, eval_every=1
)


def prepared(algorithm="fedavg", **changes):
    settings = Settings(**vars(SMALL) | changes)
    return prepare(settings, methods_of((algorithm,), settings))


def drawn(**changes):
    """What a run draws of its cohorts."""
    settings = Settings(**vars(SMALL) | changes)
    counts = np.array([119, 120] * 6)  # 4 batches of 30
    cohorts = participation.Cohorts(counts, settings.local(0.1), seed=0, **settings.cohorts())
    dispatches = cohorts.dispatches(settings.rounds)
    parts = dispatches.client, dispatches.num_steps, dispatches.learning_rate, dispatches.arrives
    return [np.asarray(part).tolist() for part in parts]


CYCLIC = {"sampler": "cyclic:num_groups=3", "rounds": 3}
DECAYED = CYCLIC | {"rate_schedule": "step:factor=0.001,every=1"}
EPOCHS = {"local_steps": None, "local_epochs": 0.5, "batch_size": 30}
SAME = [
    ({"cohort": 0.34}, {}),
    (EPOCHS, {"local_steps": 2, "batch_size": 30}),
    ({"work": "deadline:seconds=0.1,speeds=homogeneous"}, {"local_steps": 1}),
    # in the first three rounds, each with other clients, a rate by dispatches does not change
    (DECAYED | {"rate_by": "dispatch"}, CYCLIC),
]


def test_settings_that_mean_the_same_and_something_else():
    for changes, others in SAME:
        assert drawn(**changes) == drawn(**others)
    others = [{}, {"local_steps": 1}, CYCLIC, DECAYED, {"failures": "independent:0.5"}]
    assert len({str(drawn(**changes)) for changes in others}) == len(others)
    assert [Settings(cohort=c, clients=12).cohort_size for c in (0.34, 0.1, 1)] == [4, 1, 1]
    rates = np.array(drawn(**DECAYED)[2])[:, 0]
    np.testing.assert_allclose(rates, [0.1, 1e-4, 1e-7], rtol=1e-6)


@pytest.mark.all
def test_the_loss_is_trained_and_evaluated():
    usual, squares = (
        [row["test_loss"] for row in comparison.run(prepared(client_learning_rate=1e-3, loss=loss))]
        for loss in ("cross_entropy", "squared_error")
    )
    assert usual[0] != squares[0] > squares[-1]  # of the same first model


def test_a_note_counts_the_examples_that_belong_to_no_client():
    experiment = prepared(dataset="synthetic", partition="natural", clients=10)
    left_out = len(experiment.labels) - int(experiment.data[0].counts().sum())
    (note,) = experiment.notes
    assert note.startswith(f"{left_out} of the training examples belong to no client")
    assert not prepared(partition="iid").notes


def test_where_client_state_and_examples_are_kept():
    places = {"devices": 2, "examples": "sharded", "client_state": "host"}
    experiment = prepared("scaffold", **places)
    (engine,), data = experiment.engines.values(), experiment.data[0]
    assert type(engine.put_data(data)).__name__ == "ShardedData"
    state = engine.init(0, Population(12, 4, int(data.counts().sum())))
    assert type(state.clients).__name__ == "HostClientState"


def test_poisson_cohorts_have_the_slots_of_the_rule():
    settings = [Settings(sampler=s, clients=12) for s in ("poisson:2", "poisson:4", "uniform")]
    assert [each.cohort_size for each in settings] == [11, 12, 10]  # 4 + 6 * 2 is more than 12
    assert Settings(sampler="poisson:2", clients=12, cohort=3).cohort_size == 3


def test_failures_and_samplers_meet_the_system(tmp_path):
    """Here homogeneous speeds, whose jitter is the only difference, and sessions in a file."""
    system = "simulated:homogeneous,seconds_per_step="
    late = [drawn(failures="late:seconds=1", system=f"{system}{each}")[3] for each in (1, 0.1)]
    assert not np.any(late[0])
    assert np.all(late[1])
    devices, behaviour = tmp_path / "devices", tmp_path / "behaviour"
    devices.write_text('{"1": {"computation": 1, "communication": 1}}')
    behaviour.write_text('{"1": {"active": [0, 20], "inactive": [5, 40], "finish_time": 60}}')
    system = f"fedscale:devices={devices},behaviour={behaviour}"
    clients = drawn(sampler="in_session:seconds=10", system=system, rounds=7)[0]
    assert (np.array(clients) < 12).sum(1).tolist() == [4, 0, 4, 4, 4, 0, 4]


@pytest.mark.all
def test_samplers_know_the_labels():
    """Digits of iid clients have all labels."""
    found = []
    for spec in ("available:mode=label_few,beta=0.5", "available:mode=homogeneous,beta=0"):
        experiment = prepared(sampler=spec)
        (engine,), rounds = experiment.engines.values(), Rounds(**experiment.settings.loop())
        how = experiment.data[0], engine.algorithm, engine.algorithm.local, 0
        found.append(rounds.cohorts(*how).dispatches(2).client.tolist())
    assert found[0] == found[1]


def test_layouts_devices_and_folders():
    """Nothing is measured, so that machines of a kind compute the same digits."""
    assert prepared(devices=2).layout[:3] == ("sequential", 2, "rule")
    assert prepared(layout="3").layout[:3] == ("3", 1, "given")
    for given, devices in ((None, 1), (2, 2)):  # waves use one device unless it is given
        (executor,) = prepared(seconds=9.0, devices=given).engines.values()
        assert executor.num_devices == devices
    with pytest.raises(ValueError, match="client_state='disk' is unknown"):
        prepared(client_state="disk")


def test_clipping_and_decay_come_after_the_correction_and_in_this_order():
    """Two full-batch steps of FedProx: `y <- y - rate (clip(g(y) + mu (y - x)) + decay y)`."""
    x, rate, mu, norm, decay = 0.5, 0.3, 2.0, 0.05, 0.5
    a, b, toy = 1.5, 2.0, quadratics([[1.0, 2.0]], [[3.0, 1.5]])  # their mean is a (y - b)^2 / 2
    y = x
    for _ in range(2):
        g = a * (y - b) + mu * (y - x)
        assert abs(g) > norm
        y -= rate * (norm * np.sign(g) + decay * y)
    settings = Settings(local_steps=2, batches="full", clip_norm=norm, weight_decay=decay)
    (params,) = run(fedprox(toy.problem, settings.local(rate), mu=mu), toy.data, [[0]])
    np.testing.assert_allclose(params["x"], y, rtol=1e-6)
    assert jax.tree.leaves(Settings().local(0.1).transform.init({"x": np.ones(2)})) == []


MFL = "mfl:beta=0.5 mfl:optimizer=adam,beta=0.5 mfl:optimizer=adam"
RATE, OPTIMIZER = "fedavg:client_learning_rate=", "fedavg:client_optimizer="


@pytest.mark.parametrize(
    ("specs", "labels"),
    [
        (" ".join(comparison.TUNED), "fedavg|fedprox|fedgbo sgdm|fedgbo rmsprop|fedgbo adam"),
        ("ghbm:tau=5,beta=0.8 fedavg ghbm:tau=10", "ghbm tau=5|fedavg|ghbm tau=10"),
        ("fedlga:clip=true fedlga", "fedlga clip=true|fedlga clip=false"),
        (MFL, "mfl sgdm beta=0.5|mfl adam beta=0.5|mfl adam beta=0.9"),
        (f"{RATE}1 {RATE}2", "fedavg client_learning_rate=1|fedavg client_learning_rate=2"),
        ("fedprox:mu=1e-5 fedprox:mu=0.123456789", "fedprox mu=1e-05|fedprox mu=0.123456789"),
        ("fedadam fedadam:initial_v=1", "fedadam initial_v=none|fedadam initial_v=1"),
        # the optimiser of every method is said if they differ
        (f"fedavg {OPTIMIZER}adam:b1=0.9 fedprox", "fedavg sgd|fedavg adam|fedprox sgd"),
        (f"{OPTIMIZER}adam fedprox:client_optimizer=adam", "fedavg|fedprox"),
    ],
)
def test_labels_distinguish_methods_of_the_same_algorithm(specs, labels):
    methods = methods_of(tuple(specs.split()), Settings())
    assert [method.label for method in methods] == labels.split("|")


def test_two_spellings_of_one_method_are_refused():
    with pytest.raises(ValueError, match=r"fedprox and fedprox:mu=.* are the same"):
        methods_of(("fedprox", "fedavg", "fedprox:mu=0.01"), Settings())
    rates = ("fedavg:client_learning_rate=1", "fedavg:client_learning_rate=2")
    with pytest.raises(ValueError, match="are the same"):
        methods_of(rates, Settings(client_learning_rate=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": -1.0}, "clip_norm=-1.0 is out of range"),
        ({"target": 80}, "target=80 is out of range"),
        ({"cohort": 2.5}, "2.5 is out of range; give a whole number from 1 to 100"),
        ({"rounds": 1.5}, "rounds=1.5"),
    ],
)
def test_settings_made_in_python_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**changes).check()


def test_every_number_declares_its_range():
    for option in options(Settings).values():
        assert option.kind not in (int, float) or option.range is not None, option.name


@pytest.mark.all
def test_choices_and_settings_of_the_local_work_have_a_program_each_in_a_sweep():
    """The last setting of a sweep on two devices has the rows of a comparison on one."""
    grid = {"client_optimizer": ["sgd", "yogi"], "local_steps": [2]}
    changes = {"clip_norm": 0.5, "work": "partial", "sampler": "cyclic:num_groups=3"}
    spec, changes = "fedavg:client_learning_rate=0.2", changes | {"seeds": (0, 1)}
    on_two = Settings(**vars(SMALL) | changes | {"devices": 2})
    rows, notes = run_sweep(prepare_sweep(on_two, spec, grid))
    labels = [f"fedavg client_optimizer={name} local_steps=2" for name in ("sgd", "yogi")]
    assert [row["method"] for row in rows] == [label for label in labels for _ in range(6)]
    assert len(notes) == 2
    assert rows[2]["test_loss"] != rows[8]["test_loss"]
    expected = comparison.run(prepared(f"{spec},client_optimizer=yogi", **changes))
    for row, other in zip(rows[6:], expected, strict=True):
        assert list(row) == list(other)  # the same columns in the same order
        for name in other.keys() - {"wall_seconds", "method"}:
            np.testing.assert_allclose(row[name], other[name], rtol=1e-5, err_msg=name)


def test_clients_are_not_evaluated_in_a_sweep():
    settings = Settings(**vars(SMALL) | {"evaluate_clients": "train"})
    with pytest.raises(ValueError, match="evaluate_clients='train' is not for sweeps"):
        prepare_sweep(settings, "fedprox", {"mu": [0.1]})
