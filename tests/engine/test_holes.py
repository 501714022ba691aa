"""Clients that fail and empty slots in whole runs; test_rounds.py has what a round computes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, CLIENTS, LOCAL, POPULATION, examples
from helpers import Case, fixed, one_round, small_network
from same_runs import assert_same, without_time
from sweep_helpers import FULL, assert_same_rows, sweep_toy, toy

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts, independent, uniform
from fedjax_algos.runs.studies.settings import Settings

HALF = independent(probability=0.5)


def holes(cohorts, number, num_clients, cohort_size, numpy):
    """Slot number `round mod 4` is empty; nobody is in round 2."""
    empty = (np.arange(cohort_size) == number % 4) | (number == 2)
    return numpy.where(empty, num_clients, cohorts)


def leave_empty(seed, rounds, *sizes):
    return holes(uniform(seed, rounds, *sizes), np.asarray(rounds)[:, None], *sizes, np)


def traced_leave_empty(seed, number, *sizes):
    cohort = fa.participation.traced_samplers["uniform"]()(seed, number, *sizes)
    return holes(cohort, number, *sizes, jnp)


leave_empty.may_leave_empty = traced_leave_empty.may_leave_empty = True
ROUNDS = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "seed": 3}
HOLES = {"sampler": leave_empty, "failures": HALF}


def dispatches_of_run(data, local):
    return Cohorts(data.counts(), local, cohort_size=3, seed=3, **HOLES).dispatches(5)


def test_dispatches():
    """Each field counted from scratch; a run below has them where dispatches are traced."""
    counts = examples().counts()
    drawn = dispatches_of_run(examples(), fa.Local(3, 0.1, epochs=2, batches="persistent"))
    numbers, steps = np.zeros((2, CLIENTS), int)
    for index, client in np.ndenumerate(drawn.client):
        one = one_round(drawn, index)
        if client == CLIENTS:
            nothing = one.number, one.num_steps, one.num_examples, one.share, one.first_step
            assert (*nothing, one.arrives) == (0, 0, 0, 0, 0, False)
            continue
        assert (one.number, one.first_step) == (numbers[client], steps[client])
        assert (one.num_examples, one.share) == (counts[client], np.float32(counts[client] / 36))
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


@pytest.mark.all
@pytest.mark.parametrize("prelude", [False, True])
def test_rows_of_a_run_and_a_pure_round(prelude):
    """Bytes, FLOPs and lost updates by hand; a prelude sends twice, others have client rows."""
    algorithm, data = ALGORITHM, examples()
    if prelude:
        data = small_network().data
        algorithm = Case("mime", {}).build(small_network().problem, LOCAL)
    engine, local, number = fa.make_engine(algorithm, "vmapped"), algorithm.local, data.num_clients
    state, rows = fa.simulate(engine, data, **ROUNDS, **HOLES)
    drawn = dispatches_of_run(data, local)
    filled, lost = drawn.client < number, (drawn.client < number) & ~drawn.arrives
    first = engine.init(3, fa.Population(number, 3, int(data.counts().sum())))
    transfer = engine.transfer(first, data, one_round(drawn, 0))
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
    options = {"cohort_size": 3, "rounds": 5, "sampler": traced_leave_empty, "failures": HALF}

    @jax.jit
    def run(seed, begin):
        dispatches = fa.traced_dispatches(seed, data.counts(), local, **options)
        return jax.lax.scan(lambda s, d: round_fn(s, data, d), begin, dispatches)[0]

    chex.assert_trees_all_equal(run(3, first), state)


@pytest.mark.all
def test_a_run_goes_on(tmp_path):
    """From its checkpoint and from its state, bit for bit."""
    run = functools.partial(fa.simulate, fa.make_engine(ALGORITHM), examples(), **HOLES)
    whole = run(**ROUNDS)
    run(checkpoints=tmp_path, on_evaluation=lambda row: row["round"] == 2, **ROUNDS)
    assert_same(run(checkpoints=tmp_path, **ROUNDS), whole)
    state, rows = run(**ROUNDS | {"rounds": 2})
    later = run(**ROUNDS | {"rounds": 3}, state=state, start_round=2)
    assert_same((later[0], []), (whole[0], []))
    for row, expected in zip((*rows, *later[1][1:]), whole[1], strict=True):
        for key in ("round", "lost", "upload_bytes", "flops"):
            assert row[key] == expected[key]


@pytest.mark.all
def test_sweeps_are_separate_runs(tmp_path, x64):
    """Two seeds and rates in one program, which goes on from a checkpoint."""
    problem, data, test = toy()
    options = {"rounds": 4, "failures": HALF}
    both = {"local": FULL, "checkpoints": tmp_path} | options
    rows, (note,) = sweep_toy("fedavg", {"client_learning_rate": [0.05, 0.1]}, **both)
    assert note.startswith("4 runs in a program")
    engine = fa.make_engine(fa.algorithms.fedavg(problem, FULL._replace(learning_rate=0.1)))
    alone = {"cohort_size": 2, "eval_every": 2, "test": test} | options
    _, expected = fa.simulate(engine, data[7], seed=7, **alone)
    assert_same_rows(rows[-3:], expected)
    assert 0 < expected[-1]["lost"] < 8
    again, _ = sweep_toy("fedavg", {"client_learning_rate": [0.05, 0.1]}, **both)
    assert without_time(again) == without_time(rows)


def test_refusals():
    make = functools.partial(Cohorts, examples().counts(), LOCAL, cohort_size=2, seed=0)
    for options, named in (
        ({"sampler": fixed([(0, 8)])}, "client 8 .* may_leave_empty = True"),
        ({"sampler": fixed([(0, 9)])}, "clients 0 to 7"),
        ({"failures": lambda *_: np.zeros(3, bool)}, r"bool\[2\]"),
        ({"failures": lambda *_: np.zeros(2)}, "which dispatches"),
    ):
        with pytest.raises(ValueError, match=named):
            make(**options).dispatches(1)
    with pytest.raises(ValueError, match="is not for the virtual clock"):
        Settings(failures="independent:0.5", seconds=10.0).check()
    with pytest.raises(TypeError, match=r"failures=0\.3"):
        make(failures=0.3)
    engine, one = fa.make_engine(ALGORITHM), one_round(make().dispatches(1), 0)
    for changes, named in (
        ({"arrives": np.ones(2, int)}, "arrives of type int64"),
        ({"client": np.array([0, 8])}, "client 8 is in a cohort"),
        ({"client": np.array([7, 1], np.int32)}, "client 7 has num_examples="),
        ({"client": np.array([1, 1], np.int32), "num_examples": np.full(2, 2, np.int32)}, "twice"),
    ):
        with pytest.raises(ValueError, match=named):
            engine.round(engine.init(0, POPULATION), examples(), one._replace(**changes))
