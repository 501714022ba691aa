"""Runs with examples in files have the bits of runs with examples in memory."""

import functools
import threading
import time

import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import assert_same

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.data import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.placed.cohort_data import CohortData

PROBLEM = small_network().problem
LOCAL = fa.Local(4, 0.1, epochs=1.0)
RNG = np.random.default_rng(0)
SIZES = [3, 30, 9, 31, 1, 22, 27, 5, 40, 16, 8, 25]  # any four of them fit into 128 rows
EXAMPLES = {
    "x": RNG.normal(size=(sum(SIZES), 3)).astype(np.float32),
    "y": RNG.normal(size=sum(SIZES)).astype(np.float32),
}
ROWS = np.split(RNG.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
PARTITION = fa.Partition.of(ROWS)
DATA = fa.federate(EXAMPLES, PARTITION)
SOURCE = source_of(EXAMPLES, PARTITION, [f"client {i}" for i in range(12)])
CASES = [
    ("fedavg", {"devices": 2}),
    ("scaffold", {"devices": 2, "examples": "sharded", "client_state": "host"}),
    ("mime", {}),  # a prelude, and gradients of all examples
    ("fedlga", {"layout": "vmapped"}),  # a stack of updates
    ("ifca", {}),
]


def stored(**options):
    return StoredData(SOURCE, **options)


def run(engine, data, **options):
    """Evaluated after 0, 2, 4 and 5 rounds."""
    rounds = {"cohort_size": 4, "rounds": 5, "eval_every": 2, "seed": 3, "test": EXAMPLES}
    return fa.simulate(engine, data, **rounds | options)


def engine_of(case, *options, **more):
    return fa.make_engine(case.build(PROBLEM, LOCAL), *options, **more)


@pytest.mark.all
@pytest.mark.parametrize(("name", "options"), CASES)
def test_rounds(name, options):
    engine = engine_of(Case(name, {}), **options)
    cache = {"cache_bytes": 0} if "devices" in options else {}
    assert_same(run(engine, DATA, rounds=4), run(engine, stored(**cache), rounds=4))


@pytest.mark.all
def test_the_virtual_clock():
    """Seeds are run one after another."""
    algorithm = Case("fedcompass", {}).build(PROBLEM, fa.Local(4, 0.1, steps=4))
    executor = fa.make_executor(algorithm, devices=2, waves_per_call=3)
    arguments = asynchrony.compass(min_steps=2, max_steps=8), asynchrony.simulated()
    options = {"seconds": 20.0, "evaluations": 3, "test": EXAMPLES}
    seeds = {0: stored(), 1: stored()}
    others = fa.simulate_async_seeds(executor, seeds, *arguments, merged_bytes=2**30, **options)
    one = fa.simulate_async(executor, DATA, *arguments, seed=1, **options)
    assert len(one.plan.time) > 5
    assert_same(one[:2], others[1][:2])


@pytest.mark.usefixtures("optimised")
@pytest.mark.all
def test_a_run_goes_on_from_a_state_and_from_a_checkpoint(tmp_path):
    engine = engine_of(Case("scaffold", {}))
    whole = run(engine, DATA)
    run(engine, stored(), checkpoints=tmp_path, on_evaluation=lambda row: row["round"] == 2)
    assert_same(whole, run(engine, stored(), checkpoints=tmp_path))
    with pytest.raises(ValueError, match="the clients' examples: others in the checkpoint"):
        run(engine, DATA, checkpoints=tmp_path)
    state, first = run(engine, stored(), rounds=2)
    state, rest = run(engine, stored(), rounds=3, state=state, start_round=2)
    assert_same((whole[0], whole[1][2:]), (state, rest[1:]))
    assert first[-1]["test_loss"] == whole[1][1]["test_loss"]


@functools.cache
def fedavg():
    return engine_of(Case("fedavg", {}))


def test_the_clients_of_a_cohort_are_read_when_it_comes():
    read = []

    def watched(client):
        read.append(client)
        return SOURCE.read(client)

    data = StoredData(SOURCE._replace(read=watched), cache_bytes=0)
    run(fedavg(), data)
    drawn = fa.participation.Cohorts(DATA.counts(), LOCAL, cohort_size=4, seed=3).dispatches(5)
    assert [sorted(read[4 * i : 4 * i + 4]) for i in range(5)] == np.sort(drawn.client).tolist()


def cohort_data(data, least_rows=1):
    return CohortData(
        data, put=lambda cohort: cohort, check=lambda cohort: None, least_rows=least_rows
    )


def test_cohorts_have_few_sizes():
    """The arrays have the size of the largest cohort, or a half, a quarter, ... of it."""
    cohorts = [[8], [0, 3], [4], [3, 5], [8, 1, 3, 6], [2]]
    rows = [40, 34, 1, 53, 128, 9]
    data = cohort_data(stored())
    data.reserve(map(np.array, cohorts))
    sizes = [len(each.indices) for each in data.cohorts(map(np.array, cohorts))]
    assert sizes == [64, 64, 1, 64, 128, 16]
    assert all(size >= count for size, count in zip(sizes, rows, strict=True))
    unknown = cohort_data(stored())  # sizes grow if it is not known what comes
    sizes = [len(each.indices) for each in unknown.cohorts(map(np.array, cohorts))]
    assert sizes == [48, 48, 1, 64, 128, 16]
    least = cohort_data(stored(), least_rows=100)
    assert len(least.cohort(np.array([4])).indices) == 100


def test_cohorts_are_read_ahead_in_another_thread():
    """The next two cohorts are read without being asked for, and no more."""
    read, threads = [], set()

    def watched(client):
        read.append(client)
        threads.add(threading.current_thread())
        return SOURCE.read(client)

    data = cohort_data(StoredData(SOURCE._replace(read=watched)))
    cohorts = data.cohorts(np.arange(12)[:, None])
    for number in range(12):
        next(cohorts)
        soon = min(number + 3, 12)
        for _ in range(1000):
            if len(read) < soon:
                time.sleep(0.01)
        assert read == list(range(soon))
    assert threading.main_thread() not in threads


def test_a_cohort_holds_its_clients_only():
    cohort = stored().cohort(np.array([7, 2, 7, 12]), rows=20)
    assert np.diff(cohort.offsets).tolist() == [0, 0, 9, 0, 0, 0, 0, 5, 0, 0, 0, 0]
    expected = EXAMPLES["x"][np.concatenate([ROWS[2], ROWS[7]])]
    np.testing.assert_array_equal(cohort.examples["x"][:14], expected)
    assert not cohort.examples["x"][14:].any()
    with pytest.raises(ValueError, match="rows=13 do not hold the 14 examples"):
        stored().cohort(np.array([2, 7]), rows=13)


def test_some_of_all_examples_are_loaded_in_their_order():
    data = stored(clients=[3, 1])
    assert data.client_ids == ["client 3", "client 1"]
    whole = np.concatenate([EXAMPLES["x"][ROWS[3]], EXAMPLES["x"][ROWS[1]]])
    np.testing.assert_array_equal(data.load()["x"], whole)
    some = data.load(max_examples=40, seed=1)
    places = [int(np.flatnonzero((whole == row).all(1))[0]) for row in some["x"]]
    assert len(places) == 40
    assert places == sorted(set(places))
    assert any(place >= 31 for place in places)


def test_the_cache_holds_the_clients_that_were_read_last():
    read = []
    source = SOURCE._replace(read=lambda client: read.append(client) or SOURCE.read(client))
    of_example = 16
    data = StoredData(source, cache_bytes=(31 + 30) * of_example)
    for client in (1, 2, 1, 3, 1, 2, 8):
        data.cohort(np.array([client]))
    # 3 takes the place of 2, because 1 was asked for later; 2 that of 3
    assert read == [1, 2, 3, 2, 8]


WRONG = {
    "another length": (lambda own: {"x": own["x"][1:], "y": own["y"]}, r"has x float32\[.*, 3\]"),
    "another shape": (lambda own: own | {"x": own["x"][:, :2]}, r"has x float32\[.*, 2\], not"),
    "another type": (lambda own: own | {"y": own["y"].astype(int)}, r"has y int64.*not float32"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_examples_that_are_not_as_the_source_says_are_named(kind):
    change, message = WRONG[kind]
    data = StoredData(SOURCE._replace(read=lambda client: change(SOURCE.read(client))))
    with pytest.raises(ValueError, match="examples in memory: client 'client .* " + message):
        run(fedavg(), data)


def test_labels_that_are_no_classes_are_refused_when_they_are_read():
    labels = EXAMPLES | {"y": np.full(sum(SIZES), 3, np.int32)}
    data = StoredData(source_of(labels, PARTITION, [str(i) for i in range(12)]))
    problem = fa.models.linear((3,), 3)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, LOCAL))
    with pytest.raises(ValueError, match="the examples of a cohort have label 3"):
        fa.simulate(engine, data, cohort_size=4, rounds=1)


def test_what_needs_all_examples_is_refused():
    engine = engine_of(Case("centralised", {}))
    with pytest.raises(ValueError, match="examples of all others, which are in files; give"):
        run(engine, stored())
    with pytest.raises(TypeError, match=r"data\.load\(\)"):
        run(fedavg(), DATA, test=stored())


EMPTY = SOURCE._replace(counts=np.array([0, *SIZES[1:]]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((EXAMPLES,), TypeError, "source"),
        ((SOURCE, [12]), ValueError, "clients has 12 to 12; .* has clients 0 to 11"),
        ((SOURCE, [-1]), ValueError, "clients has -1 to -1"),
        ((SOURCE, [1, 1]), ValueError, "twice"),
        ((SOURCE, []), ValueError, "at least one"),
        ((SOURCE, [0.5]), ValueError, "whole number"),
        ((EMPTY,), ValueError, "client 'client 0' holds no example; leave it out"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        StoredData(*arguments)
    assert StoredData(EMPTY, range(1, 12)).num_clients == 11
