"""Each setting reaches the engine or the cohorts, as the results of small runs show."""

import functools

import jax
import numpy as np
import pytest

from fedjax_algos import participation
from fedjax_algos.core.options import options
from fedjax_algos.core.randomness import model_key
from fedjax_algos.models.adapters import scale_pixels
from fedjax_algos.runs import comparison
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.simulation import simulate

SMALL = Settings(
    model="linear", partition="iid", clients=12, cohort=4, rounds=2, local_steps=2, eval_every=1
)


@functools.cache
def run(algorithm="fedavg", **changes):
    """The rows of one algorithm with some of the small settings changed."""
    settings = Settings(**vars(SMALL) | changes)
    return comparison.run(prepare(settings, methods_of((algorithm,), settings)))


def losses(**changes):
    return [row["test_loss"] for row in run(**changes)]


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
    assert [Settings(cohort=c, clients=12).cohort_size for c in (0.34, 0.1, 1.0)] == [4, 1, 1]
    one_upload = (64 * 10 + 10) * 4
    assert [row["upload_bytes"] for row in run()] == [0, 4 * one_upload, 8 * one_upload]


def test_the_loss_is_trained_and_evaluated():
    plain, squares = losses(), losses(loss="squared_error", client_learning_rate=1e-3)
    assert squares[0] != plain[0]  # of the same first model
    assert squares[-1] < squares[0]


def test_the_rate_follows_its_schedule_by_round():
    start, first, second = losses(rate_schedule="exponential:decay=1e-9")
    assert [start, first] == losses()[:2]
    assert second == pytest.approx(first, abs=1e-6) != losses()[2]


@pytest.mark.all
def test_where_client_state_and_examples_are_kept(monkeypatch):
    """And how many devices compute a cohort, and with which sampler."""
    dispatched, placed = set(), []

    def watched(engine, data, **keywords):
        placed.append(type(engine.put_data(data)).__name__)
        state, rows = simulate(engine, data, **keywords)
        dispatched.update(state.clients)  # of a host's table: the ids of its clients
        return state, rows

    assert len(set(participation.uniform(0, np.arange(3), 12, 4).flat)) < 12
    on_device = run("scaffold", **CYCLIC)
    monkeypatch.setattr(comparison, "simulate", watched)
    two = {"devices": 2, "examples": "sharded", "client_state": "host"}
    on_host = run("scaffold", **CYCLIC, **two)
    assert (dispatched, placed) == (set(range(12)), ["ShardedData"])
    assert on_host[-1]["test_loss"] == pytest.approx(on_device[-1]["test_loss"], rel=1e-5)


@pytest.mark.all
def test_clients_fail():
    row, usual = run(failures="independent:0.5")[-1], run()[-1]
    assert 0 < row["lost"] < 8
    assert row["download_bytes"] == usual["download_bytes"]
    assert row["upload_bytes"] == usual["upload_bytes"] * (8 - row["lost"]) / 8


def test_poisson_cohorts_have_the_slots_of_the_rule():
    sizes = {"poisson:2": 9, "poisson:4": 12, "uniform": 10}  # 4 + 4.5 * 2 is more than 12
    for sampler, size in sizes.items():
        assert Settings(sampler=sampler, clients=12).cohort_size == size
    assert Settings(sampler="poisson:2", clients=12, cohort=3).cohort_size == 3


def test_failures_and_samplers_meet_the_system(tmp_path):
    """Of homogeneous speeds, whose jitter is the only difference, and of sessions in a file."""
    slow, fast = (
        {"failures": "late:seconds=1", "system": f"simulated:homogeneous,seconds_per_step={each}"}
        for each in (1, 0.1)
    )
    arrives = [np.array(drawn(**changes)[3]) for changes in (slow, fast)]
    assert not arrives[0].any()
    assert arrives[1].all()
    devices, behaviour = tmp_path / "devices", tmp_path / "behaviour"
    devices.write_text('{"1": {"computation": 1, "communication": 1}}')
    behaviour.write_text('{"1": {"active": [0, 20], "inactive": [5, 40], "finish_time": 60}}')
    system = f"fedscale:devices={devices},behaviour={behaviour}"
    clients = drawn(sampler="in_session:seconds=10", system=system, rounds=7)[0]
    sizes = (np.array(clients) < 12).sum(1).tolist()
    assert sizes == [4, 0, 4, 4, 4, 0, 4]


@pytest.mark.all
def test_samplers_know_the_labels_of_each_seed():
    """In a comparison and in a sweep: digits of iid clients have all labels."""
    spec = "available:mode=label_few,beta=0.5"
    assert losses(sampler=spec) == losses(sampler="available:mode=homogeneous,beta=0")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("sequential", 1, "rule")),
        ({"devices": 2}, ("sequential", 2, "rule")),
        ({"layout": "3"}, ("3", 1, "given")),
    ],
)
def test_the_layout_is_a_fixed_rule_unless_it_is_named(changes, expected):
    """Nothing is measured, so that machines of a kind compute the same digits."""
    settings = Settings(**vars(SMALL) | changes)
    experiment = prepare(settings, methods_of(("fedavg",), settings))
    assert experiment.layout[:3] == expected


def test_rows_on_disk_need_a_folder():
    settings = Settings(**vars(SMALL) | {"client_state": "disk"})
    with pytest.raises(ValueError, match="client_state='disk' has no folder; give prepare"):
        prepare(settings, methods_of(("fedavg",), settings))


def test_waves_use_one_device_unless_it_is_given():
    for given, devices in ((None, 1), (2, 2)):
        settings = Settings(**vars(SMALL) | {"seconds": 9.0, "devices": given})
        (executor,) = prepare(settings, methods_of(("fedavg",), settings)).engines.values()
        assert executor.num_devices == devices


@pytest.mark.all
def test_clipping_and_decay_come_after_the_correction_and_in_this_order():
    """Two full-batch steps of FedProx: `y <- y - rate (clip(g(y) + mu (y - x)) + decay y)`."""
    rate, mu, norm, decay = 0.3, 2.0, 0.05, 0.5
    changes = {"clients": 1, "cohort": 1, "rounds": 1, "batches": "full"}
    changes |= {"clip_norm": norm, "weight_decay": decay}
    settings = Settings(**vars(SMALL) | changes)
    dataset = settings.load()
    methods = methods_of((f"fedprox:mu={mu},client_learning_rate={rate}",), settings)
    experiment = prepare(settings, methods, dataset)
    (engine,) = experiment.engines.values()

    def matrix(params):
        (layer,) = params.values()
        return np.concatenate([layer["kernel"], layer["bias"][None]])

    images = np.asarray(scale_pixels(dataset.train["x"])).reshape(-1, 64)
    inputs, labels = np.column_stack([images, np.ones(len(images))]), dataset.train["y"]
    x = matrix(engine.algorithm.problem.init(model_key(np.uint32(0))).params)

    def expected(norm, decay):
        y = x
        for _ in range(2):
            shares = np.exp(inputs @ y)
            errors = shares / shares.sum(1, keepdims=True) - np.eye(10)[labels]
            g = inputs.T @ errors / len(labels) + mu * (y - x)
            y = y - rate * (g * min(1, norm / np.linalg.norm(g)) + decay * y)
        return y

    state, _ = simulate(engine, experiment.data[0], cohort_size=1, rounds=1)
    got = matrix(state.server.params)
    np.testing.assert_allclose(got, expected(norm, decay), atol=2e-6)
    assert np.abs(got - expected(np.inf, decay)).max() > 1e-3
    assert np.abs(got - expected(norm, 0)).max() > 1e-3


def test_nothing_is_clipped_or_decayed_by_default():
    state = Settings().local(0.1).transform.init({"x": np.ones(2)})
    assert jax.tree.leaves(state) == []
    given = {"x": np.array([1e9, 0])}
    passed, _ = Settings().local(0.1).transform.update(given, state, {"x": np.ones(2)})
    np.testing.assert_array_equal(passed["x"], given["x"])


@pytest.mark.parametrize(
    ("specs", "labels"),
    [
        ("fedavg fedprox", "fedavg|fedprox"),
        (" ".join(comparison.TUNED), "fedavg|fedprox|fedgbo sgdm|fedgbo rmsprop|fedgbo adam"),
        ("ghbm:tau=5,beta=0.8 fedavg ghbm:tau=10", "ghbm tau=5|fedavg|ghbm tau=10"),
        ("fedlga:clip=true fedlga", "fedlga clip=true|fedlga clip=false"),
        (
            "mfl:beta=0.5 mfl:optimizer=adam,beta=0.5 mfl:optimizer=adam",
            "mfl sgdm beta=0.5|mfl adam beta=0.5|mfl adam beta=0.9",
        ),
        (
            "fedavg:client_learning_rate=1 fedavg",
            "fedavg client_learning_rate=1|fedavg client_learning_rate=0.1",
        ),
        ("fedprox:mu=1e-5 fedprox:mu=0.123456789", "fedprox mu=1e-05|fedprox mu=0.123456789"),
        ("fedadam fedadam:initial_v=1", "fedadam initial_v=none|fedadam initial_v=1"),
        # the optimiser of every method is said if they differ
        (
            "fedavg fedavg:client_optimizer=sgd:0.9 fedavg:client_optimizer=adam:b1=0.9",
            "fedavg sgd|fedavg sgd:momentum=0.9|fedavg adam",
        ),
        ("fedavg:client_optimizer=adam fedprox:client_optimizer=adam", "fedavg|fedprox"),
    ],
)
def test_labels_distinguish_methods_of_the_same_algorithm(specs, labels):
    methods = methods_of(tuple(specs.split()), Settings())
    assert [method.label for method in methods] == labels.split("|")


def test_two_spellings_of_one_method_are_refused():
    with pytest.raises(ValueError, match=r"fedprox and fedprox:mu=.* are the same; leave one out"):
        methods_of(("fedprox", "fedavg", "fedprox:mu=0.01"), Settings())
    rates = ("fedavg:client_learning_rate=1", "fedavg:client_learning_rate=2")
    with pytest.raises(ValueError, match="are the same; leave one out"):
        methods_of(rates, Settings(client_learning_rate=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": "long"}, "batches='long' is unknown; choose short, dropped, wrapped"),
        ({"rate_by": "step"}, "rate_by='step' is unknown; choose round or dispatch"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 is out of range; give a number of at least 0"),
        ({"target": 80}, "target=80 is out of range; give a number above 0 and at most 1"),
        ({"cohort": 2.5}, "2.5 is out of range; give a whole number from 1 to 100"),
        ({"model": "mpl"}, "unknown model 'mpl'"),
        ({"rounds": 1.5}, "rounds=1.5 is no whole number"),
        ({"work": "partial:share=2"}, "partial: share=2 is out of range"),
    ],
)
def test_settings_made_in_python_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**changes).check()


def test_every_number_declares_its_range():
    for option in options(Settings).values():
        assert option.kind not in (int, float) or option.range is not None, option.name
