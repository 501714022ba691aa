"""The loops of runs: what the host does while the devices compute."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same_runs import assert_same, without_time
from sweep_helpers import POPULATION, QUADRATICS, rounds_engine, run_rounds, sweep_toy, traced

import fedjax_algos as fa
from fedjax_algos.runs.loops import program as programs

# three windows of two, two and one round: the next one is drawn before the metrics of one are read
FIRST, NEXT, LAST = (f"draws {rounds}" for rounds in ([0, 1], [2, 3], [4]))
EXPECTED = [FIRST, "computes", NEXT, "reads", "computes", LAST, "reads", "computes", "reads"]


def watched(log):
    """Options of a run with a sampler that logs what it draws."""

    def sampler(seed, rounds, num_clients, cohort_size):
        log.append(f"draws {rounds.tolist()}")
        return np.tile(np.arange(cohort_size, dtype=np.int32), (len(rounds), 1))

    return {"cohort_size": 3, "rounds": 5, "sampler": sampler, "test": None}


def test_the_next_rounds_are_drawn_before_metrics_are_read(monkeypatch):
    log, engine, loss = [], fa.make_engine(rounds_engine().algorithm), mock.Mock()
    loss.value.side_effect = lambda: log.append("reads") or 1.0

    def rounds(state, data, dispatches, number):
        log.append("computes")
        return state, {"train_loss": loss}

    monkeypatch.setattr(engine, "rounds", rounds)
    _, rows = run_rounds(engine, **watched(log))
    assert log == EXPECTED
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    flops = [row["flops"] for row in rows]
    assert flops == [0, flops[1], 2 * flops[1], 2.5 * flops[1]]


def test_batched_runs_draw_the_next_rounds_before_metrics_are_read(monkeypatch):
    """The programs are traced, and not compiled."""
    log = []
    traced(monkeypatch)

    def spy(told, function, *arguments):
        log.append(told)
        return function(*arguments)

    advance = functools.partial(spy, "computes", programs.advance_each)
    monkeypatch.setattr(programs, "advance_each", advance)
    monkeypatch.setattr(jax, "device_get", functools.partial(spy, "reads", jax.device_get))
    rows, _ = sweep_toy("fedavg", {"client_learning_rate": [0.1]}, **watched(log))
    log = log[log.index("computes") - 2 :]  # before, one dispatch for its shape
    start = [FIRST] * 2 + ["computes", "reads"]  # of the first models
    twice = [line for line in EXPECTED[1:] for _ in range(1 + line.startswith("draws"))]
    assert log == start + twice
    assert [row["round"] for row in rows] == [0, 2, 4, 5] * 2


def run(rounds=5, place="device", **options):
    return run_rounds(rounds_engine(place=place), rounds=rounds, **options)


@pytest.mark.parametrize("place", ["device", pytest.param("host", marks=pytest.mark.all)])
def test_a_run_in_pieces_is_the_same_run(place):
    """Its states and rows, bit for bit: rates, orders and costs count all earlier rounds."""
    whole, rows = run(7, place)
    state, first = run(4, place)
    state, second = run(3, place, state=state, start_round=4)
    start, *_ = without_time(second)
    assert_same((state, first + second[1:]), (whole, rows))
    assert start.keys() == without_time(rows)[0].keys()  # it has trained nothing
    assert start == {name: first[-1][name] for name in start}
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]


def test_a_state_of_init_begins_a_run():
    initial = rounds_engine().init(3, POPULATION)
    assert_same(run(3, state=initial, start_round=0), run(3))
    with pytest.raises(ValueError, match="this state was consumed"):
        run(3, state=initial, start_round=0)


@pytest.mark.all
def test_a_second_piece_goes_on_from_its_checkpoint(tmp_path):
    whole, rows = run(7)
    state, _ = run(4)
    seen, piece = [], {"start_round": 4, "checkpoints": fa.Checkpoints(tmp_path, every=0)}

    def end(row):
        seen.append(row["round"])
        return seen == [4, 6]

    for given in (state, jax.tree.map(jnp.copy, state)):
        last, resumed = run(3, state=given, on_evaluation=end, **piece)
    assert seen == [4, 6, 4, 6, 7]
    assert_same((last, resumed[1:]), (whole, rows[3:]))


def test_an_iterator_gives_the_states_and_rows_that_a_callback_sees():
    """If the callback has a parameter for the state. Each step consumes the state before it."""
    seen, how = [], {"cohort_size": 2, "seed": 3, "eval_every": 2, "test": QUADRATICS.data.examples}
    iterated = functools.partial(fa.iterate_rounds, rounds_engine(), QUADRATICS.data, **how)
    whole, rows = run(on_evaluation=lambda row, *, state: seen.append(state.server.params["x"][0]))
    pairs = ((jax.tree.map(jnp.copy, state), row) for state, row in iterated(rounds=5))
    states, told = zip(*pairs, strict=True)
    assert_same((states[-1], told), (whole, rows))
    assert seen == [state.server.params["x"][0] for state in states]
    (*_, (state, row)) = iterated(rounds=3, state=states[1], start_round=2)
    assert row["round"] == 5
    assert_same((state, []), (whole, []))
    with pytest.raises(ValueError, match="this state was consumed"):
        run(3, state=states[1], start_round=2)


def test_a_callback_that_returns_true_ends_the_run(tmp_path):
    """The second call runs nothing, and a call without the callback goes on."""
    shorter, calls = run(4), []

    def until(row):
        calls.append(row["round"])
        return row["round"] == np.int64(4)

    for _ in range(2):
        assert_same(run(7, on_evaluation=until, checkpoints=tmp_path), shorter)
    assert calls == [0, 2, 4] * 2
    assert_same(run(7, checkpoints=tmp_path), run(7))
    values = iter([1, "yes", False, np.bool_(False)])  # other results do not end a run
    assert len(run(on_evaluation=lambda row: next(values))[1]) == 4
