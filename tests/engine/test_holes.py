"""Clients that fail and empty slots in whole runs.

That a round equals that of the clients that answer is tested for every algorithm in
tests/algorithms/test_every_algorithm.py.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, fixed, small_network
from same_runs import assert_same, host, without_time
from sweep_helpers import FULL, assert_same_rows, sweep_toy, toy

import fedjax_algos as fa
from fedjax_algos.data import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.participation import Cohorts, independent, uniform
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
POPULATION = fa.Population(4, 3, 17)
HALF = independent(probability=0.5)


def leave_empty(seed, rounds, num_clients, cohort_size):
    """Uniform cohorts, whose slot number `round mod 4` is empty; nobody is in round 2."""
    cohorts = uniform(seed, rounds, num_clients, cohort_size)
    number = np.asarray(rounds)[:, None]
    empty = (np.arange(cohort_size) == number % 4) | (number == 2)
    return np.where(empty, num_clients, cohorts)


leave_empty.may_leave_empty = True


def traced_leave_empty(seed, number, num_clients, cohort_size):
    cohort = fa.participation.traced_samplers["uniform"]()(seed, number, num_clients, cohort_size)
    empty = (jnp.arange(cohort_size) == number % 4) | (number == 2)
    return jnp.where(empty, num_clients, cohort)


traced_leave_empty.may_leave_empty = True
ROUNDS = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "seed": 3}
HOLES = {"sampler": leave_empty, "failures": HALF}


def dispatches_of_run(data, local=LOCAL):
    options = {"cohort_size": 3, "seed": 3} | HOLES
    return Cohorts(data.counts(), local, **options).dispatches(5)


def test_dispatches():
    """Each field counted from scratch; a run below has them where dispatches are traced."""
    counts = small_network().data.counts()
    local = fa.Local(3, 0.1, epochs=2, batches="persistent")
    drawn = dispatches_of_run(small_network().data, local)
    numbers, steps = np.zeros(4, int), np.zeros(4, int)
    for index, client in np.ndenumerate(drawn.client):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], drawn)
        if client == 4:
            nothing = one.number, one.num_steps, one.num_examples, one.share, one.first_step
            assert (*nothing, one.arrives) == (0, 0, 0, 0, 0, False)
            continue
        assert (one.number, one.first_step) == (numbers[client], steps[client])
        assert (one.num_examples, one.share) == (counts[client], np.float64(counts[client] / 17))
        seed, *who = (jnp.asarray([value], jnp.uint32) for value in (3, client, one.number))
        assert one.arrives == ~HALF(seed[0], *who)[0]
        numbers[client] += 1
        steps[client] += one.num_steps
    assert 0 < drawn.arrives.sum() < numbers.sum() == 15 - 4 - 3 + 1


def test_failures_are_independent_draws():
    clients, numbers = (axis.ravel() for axis in np.meshgrid(np.arange(100), np.arange(80)))
    fails = np.asarray(independent(probability=0.3)(np.uint32(0), clients, numbers))
    deviation = np.sqrt(0.3 * 0.7 / fails.size)
    assert abs(fails.mean() - 0.3) < 4 * deviation
    later = fails.reshape(80, 100)
    for one, other in ((later[1:], later[:-1]), (later[:, 1:], later[:, :-1])):
        assert abs((one & other).mean() - 0.09) < 4 * np.sqrt(0.09 * 0.91 / one.size)
    assert (fails != independent(probability=0.3)(np.uint32(1), clients, numbers)).any()
    assert not independent(probability=0.0)(np.uint32(0), clients, numbers).any()


@functools.cache
def algorithm_of(name):
    return Case(name, {}).build(small_network().problem, LOCAL)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ["scaffold", "mime"])
def test_rows_of_a_run_and_a_pure_round(name):
    """Bytes, FLOPs and lost updates by hand; mime has a prelude, scaffold rows of clients."""
    data = small_network().data
    engine, algorithm = fa.make_engine(algorithm_of(name), "vmapped"), algorithm_of(name)
    state, rows = fa.simulate(engine, data, **ROUNDS, **HOLES)
    drawn = dispatches_of_run(data)
    filled, lost = drawn.client < 4, (drawn.client < 4) & ~drawn.arrives
    first = engine.init(3, POPULATION)
    transfer = engine.transfer(first, data, jax.tree.map(lambda leaf: leaf[0], drawn))
    flops = fa.count_flops(algorithm, first, data).of(drawn)
    for row, rounds in zip(rows, [0, 2, 4, 5], strict=True):
        sent = filled[:rounds].sum()
        assert row["round"] == rounds
        assert row["lost"] == lost[:rounds].sum()
        assert row["download_bytes"] == sent * transfer.download
        assert row["upload_bytes"] == (sent - row["lost"]) * transfer.upload
        assert row["flops"] == flops[:rounds][filled[:rounds]].sum()
        assert row["excluded_updates"] == 0
    assert list(rows[1])[:4] == ["round", "train_loss", "lost", "excluded_updates"]

    round_fn = fa.pure_round(algorithm, "vmapped")

    @jax.jit
    def run(seed, begin):
        dispatches = fa.traced_dispatches(
            *(seed, data.counts(), LOCAL),
            cohort_size=3, rounds=5, sampler=traced_leave_empty, failures=HALF,
        )  # fmt: skip
        return jax.lax.scan(lambda s, d: round_fn(s, data, d), begin, dispatches)[0]

    chex.assert_trees_all_equal(run(3, first), state)


@pytest.mark.parametrize(
    "how",
    [
        {"client_state": "disk", "data": "stored"},
        {"devices": 2, "examples": "sharded", "data": "stored"},
    ],
    ids=str,
)
def test_where_rows_and_examples_are(how, tmp_path):
    """Round 2 has no client, so that no examples are read for it."""
    data, how = small_network().data, dict(how)
    expected, rows = fa.simulate(fa.make_engine(algorithm_of("scaffold")), data, **ROUNDS, **HOLES)
    if how.pop("data", None):
        parts = np.split(np.asarray(data.indices), np.asarray(data.offsets)[1:-1])
        names = [f"client {i}" for i in range(4)]
        data = StoredData(source_of(data.examples, fa.Partition.of(parts), names))
    if how.get("client_state") == "disk":
        how["client_state"] = fa.RowsOnDisk(tmp_path)
    engine = fa.make_engine(algorithm_of("scaffold"), **how)
    state, own_rows = fa.simulate(engine, data, **ROUNDS, **HOLES)
    chex.assert_trees_all_close(state.server, expected.server, rtol=1e-11, atol=1e-11)
    of_all = fa.client_states(engine, state)
    usual = fa.client_states(fa.make_engine(algorithm_of("scaffold")), expected)
    chex.assert_trees_all_close(host(of_all), host(usual), rtol=1e-11, atol=1e-11)
    assert [row["lost"] for row in own_rows] == [row["lost"] for row in rows]


def test_a_run_goes_on(tmp_path):
    """From its checkpoint and from its state, bit for bit; other failures are another run."""
    engine, data = fa.make_engine(algorithm_of("fedavg")), small_network().data
    run = functools.partial(fa.simulate, engine, data, **ROUNDS, **HOLES)
    whole = run()
    stop = lambda row: row["round"] == 2  # noqa: E731
    run(checkpoints=tmp_path, on_evaluation=stop)
    other = HOLES | {"failures": independent(probability=0.4)}
    with pytest.raises(ValueError, match="which clients answer in the first rounds: others in the"):
        fa.simulate(engine, data, checkpoints=tmp_path, **ROUNDS, **other)
    assert_same(run(checkpoints=tmp_path), whole)
    state, rows = fa.simulate(engine, data, **ROUNDS | {"rounds": 2}, **HOLES)
    later = fa.simulate(engine, data, **ROUNDS | {"rounds": 3}, **HOLES, state=state, start_round=2)
    assert_same((later[0], []), (whole[0], []))
    keys = ("round", "lost", "upload_bytes", "flops")
    assert [[row[key] for key in keys] for row in (*rows, *later[1][1:])] == [
        [row[key] for key in keys] for row in whole[1]
    ]


def test_sweeps_are_separate_runs(tmp_path):
    """Two seeds and rates in one program, which goes on from a checkpoint."""
    problem, data, test = toy()
    grid = {"client_learning_rate": [0.05, 0.1]}
    options = {"local": FULL, "rounds": 4, "failures": HALF, "checkpoints": tmp_path}
    rows, (note,) = sweep_toy("fedavg", grid, **options)
    assert note.startswith("4 runs in a program")
    local = FULL._replace(learning_rate=0.1)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local))
    alone = {"cohort_size": 2, "rounds": 4, "eval_every": 2, "test": test, "failures": HALF}
    _, expected = fa.simulate(engine, data[7], seed=7, **alone)
    assert_same_rows(rows[-3:], expected)
    assert 0 < expected[-1]["lost"] < 8
    again, _ = sweep_toy("fedavg", grid, **options)
    assert without_time(again) == without_time(rows)


def test_refusals():
    data, counts = small_network().data, small_network().data.counts()
    make = functools.partial(Cohorts, counts, LOCAL, cohort_size=2, seed=0)
    for options, message in (
        ({"sampler": fixed([(0, 4)])}, "client 4 is in a cohort; .* set may_leave_empty = True on"),
        ({"sampler": fixed([(0, 5)])}, r"there are clients 0 to 3: draw .* data\.counts\(\)$"),
        ({"failures": lambda *_: np.zeros(3, bool)}, r"the failures are .*, here bool\[2\]"),
        ({"failures": lambda *_: np.zeros(2)}, "give a function that returns which dispatches"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options).dispatches(1)
    on_clock = Settings(failures="independent:0.5", seconds=10.0)
    with pytest.raises(ValueError, match=r"is for rounds; .* give system='simulated:dropout=0.3'"):
        on_clock.check()
    with pytest.raises(TypeError, match=r"failures=0\.3 cannot be called; give one of particip"):
        make(failures=0.3)
    engine = fa.make_engine(algorithm_of("fedavg"))
    one = jax.tree.map(lambda leaf: leaf[0], make().dispatches(1))
    with pytest.raises(ValueError, match="arrives of type int64; give bools"):
        engine.round(engine.init(0, POPULATION), data, one._replace(arrives=np.ones(2, int)))
    with pytest.raises(ValueError, match="client 4 is in a cohort"):
        engine.round(engine.init(0, POPULATION), data, one._replace(client=np.array([0, 4])))
