"""Runs with examples in files have the bits of runs with examples in memory."""

import functools
import threading
import time

import jax
import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import assert_same
from sweep_helpers import run_rounds

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.data import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.placed.cohort_data import CohortData

PROBLEM = small_network().problem
LOCAL = fa.Local(4, 0.1, epochs=1.0)
RNG = np.random.default_rng(0)
SIZES = [3, 30, 9, 31, 1, 22, 27, 5, 40, 16, 8, 25]  # any four of them fit into 128 rows
SHAPES = {"x": (sum(SIZES), 3), "y": sum(SIZES)}
EXAMPLES = {name: RNG.normal(size=size).astype(np.float32) for name, size in SHAPES.items()}
ROWS = np.split(RNG.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
PARTITION = fa.Partition.of(ROWS)
DATA = fa.federate(EXAMPLES, PARTITION)
SOURCE = source_of(EXAMPLES, PARTITION, [f"client {i}" for i in range(12)])
run = functools.partial(run_rounds, cohort_size=4, test=EXAMPLES)


def watching(clients, **options):
    """Data that add each client that is read to a list."""
    read = lambda client: clients.append(client) or SOURCE.read(client)  # noqa: E731
    return StoredData(SOURCE._replace(read=read), **options)


IN_ALL = [pytest.param(size, marks=pytest.mark.all) for size in (2, 1024)]


@functools.cache
def engine_of(name="fedavg", **options):
    return fa.make_engine(Case(name, {}).build(PROBLEM, LOCAL), **options)


SHARDED = {"devices": 2, "examples": "sharded", "client_state": "host"}


@pytest.mark.all
@pytest.mark.parametrize(("name", "options"), [("scaffold", SHARDED), ("mime", {})])
def test_rounds(name, options):
    """With rows of clients on two devices, and with a prelude, of gradients of all examples."""
    engine, data = engine_of(name, **options), StoredData(SOURCE, cache_bytes=0)
    assert_same(run(engine, DATA, rounds=4), run(engine, data, rounds=4))


@pytest.mark.parametrize("batch_size", [10, *IN_ALL])
def test_clients_are_evaluated_some_at_a_time(batch_size):
    """Those of 8 examples or more, of 40 or more, or all; one program."""
    model = PROBLEM.init(jax.random.key(0))
    evaluate = fa.make_evaluate_clients(PROBLEM, batch_size)
    with fa.measure_compilation() as compiled:
        found = evaluate(model, watching(read := []))
    assert compiled.programs < 12  # 12 parts would have as many
    assert sorted(read) == list(range(12))
    for name, own in fa.make_evaluate_clients(PROBLEM)(model, DATA).items():
        np.testing.assert_array_equal(found[name].weight, own.weight)
        np.testing.assert_allclose(found[name].value(), own.value(), rtol=1e-5)


@pytest.mark.all
def test_the_virtual_clock():
    """Seeds are run one after another."""
    algorithm = Case("fedcompass", {}).build(PROBLEM, fa.Local(4, 0.1, steps=4))
    executor = fa.make_executor(algorithm, devices=2, waves_per_call=3)
    how = asynchrony.compass(min_steps=2, max_steps=8), asynchrony.simulated()
    options = {"seconds": 20.0, "evaluations": 3, "test": EXAMPLES}
    seeds = {seed: StoredData(SOURCE) for seed in (0, 1)}
    others = fa.simulate_async_seeds(executor, seeds, *how, merged_bytes=2**30, **options)
    one = fa.simulate_async(executor, DATA, *how, seed=1, **options)
    assert len(one.plan.time) > 5
    assert_same(one[:2], others[1][:2])


@pytest.mark.all
def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    """It reads the clients of a cohort when it comes."""
    data = watching(read := [], cache_bytes=0)
    run(engine_of(), data, checkpoints=tmp_path, on_evaluation=lambda row: row["round"] == 2)
    read.clear()
    assert_same(run(engine_of(), DATA), run(engine_of(), data, checkpoints=tmp_path))
    drawn = fa.participation.Cohorts(DATA.counts(), LOCAL, cohort_size=4, seed=3).dispatches(5)
    assert np.sort(np.reshape(read, (3, 4))).tolist() == np.sort(drawn.client)[2:].tolist()
    with pytest.raises(ValueError, match="the clients' examples: different in the checkpoint"):
        run(engine_of(), DATA, checkpoints=tmp_path)


def cohort_data(data, least_rows=1, put=lambda own: own):
    return CohortData(data, put, check=lambda own: None, least_rows=least_rows)


def test_cohorts_have_few_sizes():
    """The arrays have the size of the largest cohort, or a half, a quarter, ... of it."""
    # of 40, 34, 1, 53, 128 and 9 examples
    cohorts = [*map(np.array, ([8], [0, 3], [4], [3, 5], [8, 1, 3, 6], [2]))]
    known, unknown, large = (cohort_data(StoredData(SOURCE), least) for least in (1, 1, 100))
    known.reserve(cohorts)
    for data, expected in (
        (known, [64, 64, 1, 64, 128, 16]),
        (unknown, [48, 48, 1, 64, 128, 16]),  # sizes grow if it is not known what comes
        (large, [100, 100, 100, 100, 128, 100]),
    ):
        assert [len(each.indices) for each in data.cohorts(cohorts)] == expected


def test_cohorts_are_read_ahead_in_another_thread():
    """The next two cohorts are read without being asked for, and no more."""
    data, threads = watching(read := []), set()
    reader = cohort_data(data, put=lambda own: threads.add(threading.current_thread()))
    cohorts = reader.cohorts(np.arange(12)[:, None])
    for number in range(12):
        next(cohorts)
        soon = min(number + 3, 12)
        for _ in range(1000):
            if len(read) < soon:
                time.sleep(0.01)
        assert read == list(range(soon))
    assert threading.main_thread() not in threads


def test_a_cohort_holds_its_clients_only():
    cohort = StoredData(SOURCE).cohort(np.array([7, 2, 7, 12]), rows=20)
    assert np.diff(cohort.offsets).tolist() == [0, 0, 9, 0, 0, 0, 0, 5, 0, 0, 0, 0]
    expected = EXAMPLES["x"][np.concatenate([ROWS[2], ROWS[7]])]
    np.testing.assert_array_equal(cohort.examples["x"][:14], expected)
    assert not cohort.examples["x"][14:].any()
    with pytest.raises(ValueError, match="rows=13 do not hold the 14 examples"):
        StoredData(SOURCE).cohort(np.array([2, 7]), rows=13)


def test_some_of_all_examples_are_loaded_in_their_order():
    data = StoredData(SOURCE, clients=[3, 1])
    assert data.client_ids == ["client 3", "client 1"]
    whole = np.concatenate([EXAMPLES["x"][ROWS[3]], EXAMPLES["x"][ROWS[1]]])
    np.testing.assert_array_equal(data.load()["x"], whole)
    some = data.load(max_examples=40, seed=1)
    places = [int(np.flatnonzero((whole == row).all(1))[0]) for row in some["x"]]
    assert len(places) == 40
    assert places == sorted(set(places))
    assert any(place >= 31 for place in places)


def test_the_cache_holds_the_clients_that_were_read_last():
    data = watching(read := [], cache_bytes=(31 + 30) * 16)  # 16 bytes an example
    for client in (1, 2, 1, 3, 1, 2, 8):
        data.cohort(np.array([client]))
    # 3 takes the place of 2, because 1 was asked for later; 2 that of 3
    assert read == [1, 2, 3, 2, 8]


WRONG = [
    (lambda own: {"x": own["x"][1:], "y": own["y"]}, r"has x float32\[.*, 3\]"),
    (lambda own: own | {"x": own["x"][:, :2]}, r"has x float32\[.*, 2\], not"),
    (lambda own: own | {"y": own["y"].astype(int)}, r"has y int64.*not float32"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_examples_that_are_not_as_the_source_says_are_named(change, message):
    data = StoredData(SOURCE._replace(read=lambda client: change(SOURCE.read(client))))
    with pytest.raises(ValueError, match=f"client 'client .* {message}"):
        data.cohort(np.array([0]))


def test_labels_that_are_no_classes_are_refused_when_they_are_read():
    labels = EXAMPLES | {"y": np.full(sum(SIZES), 3, np.int32)}
    data = StoredData(source_of(labels, PARTITION, [*map(str, range(12))]))
    engine = fa.make_engine(fa.algorithms.fedavg(fa.models.linear((3,), 3), LOCAL))
    with pytest.raises(ValueError, match="the examples of a cohort have label 3"):
        fa.simulate(engine, data, cohort_size=4, rounds=1)


def test_no_examples_and_negative_clients_cannot_be_read():
    with pytest.raises(ValueError, match="max_examples=0"):
        StoredData(SOURCE).load(0)
    with pytest.raises(ValueError, match=r"clients=\[-1\] are out of range"):
        StoredData(SOURCE).cohort(np.array([3, -1]))


def test_what_needs_all_examples_is_refused():
    with pytest.raises(ValueError, match="examples of all others, which are in files"):
        run(engine_of("centralised"), StoredData(SOURCE))
    with pytest.raises(ValueError, match="test examples hold StoredData"):
        run(engine_of(), DATA, test=StoredData(SOURCE))


EMPTY = SOURCE._replace(counts=np.array([0, *SIZES[1:]]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((EXAMPLES,), TypeError, "source"),
        ((SOURCE, [12]), ValueError, r"clients=\[12\] .*; give different .* 0 to 11"),
        ((SOURCE, [-1]), ValueError, r"clients=\[-1\]"),
        ((SOURCE, [1, 1]), ValueError, r"clients=\[1 1\]"),
        ((SOURCE, []), ValueError, r"clients=\[\]"),
        ((SOURCE, [0.5]), ValueError, "whole number"),
        ((EMPTY,), ValueError, "client 'client 0' holds no example"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        StoredData(*arguments)
    assert StoredData(EMPTY, range(1, 12)).num_clients == 11
