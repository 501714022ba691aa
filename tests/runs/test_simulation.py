"""The loops of runs: what the host does while the devices compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same_runs import assert_same, without_time
from sweep_helpers import DECAYING, LOCAL, POPULATION, QUADRATICS, rounds_engine, run_rounds, toy

import fedjax_algos as fa
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.batched import program as batched_program

# three windows of two, two and one round: the next one is drawn before the metrics of one are read
EXPECTED = [
    "draws [0, 1]", "computes", "draws [2, 3]", "reads", "computes", "draws [4]", "reads",
    "computes", "reads",
]  # fmt: skip


def watched(log):
    """A sampler that logs what it draws."""

    def sampler(seed, rounds, num_clients, cohort_size):
        log.append(f"draws {rounds.tolist()}")
        return np.tile(np.arange(cohort_size, dtype=np.int32), (len(rounds), 1))

    return sampler


def test_the_next_rounds_are_drawn_before_metrics_are_read(monkeypatch):
    log, real = [], fa.make_engine(rounds_engine().algorithm)

    class Measured:
        weight = 1.0

        def over_classes(self):
            return self

        def value(self):
            log.append("reads")
            return 1.0

    def rounds(state, data, dispatches, number):
        log.append("computes")
        return state, {"train_loss": Measured()}

    monkeypatch.setattr(real, "rounds", rounds)
    _, rows = run_rounds(real, cohort_size=3, sampler=watched(log), test=None)
    assert log == EXPECTED
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    flops = [row["flops"] for row in rows]
    assert flops == [0, flops[1], 2 * flops[1], 2.5 * flops[1]]


def test_batched_runs_draw_the_next_rounds_before_metrics_are_read(monkeypatch):
    """The programs are traced, and not compiled."""
    (problem, data, _), log = toy(), []
    runs = [Run("fedavg", seed, data[seed], LOCAL, {}, {}) for seed in (0, 7)]

    def traced(function, program, *inputs):
        shapes = jax.eval_shape(functools.partial(function, program), *inputs)
        return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)

    def spied(name, function):
        def spy(*arguments):
            log.append(name)
            return function(*arguments)

        return spy

    begin, advance = (getattr(batched_program, name) for name in ("begin_each", "advance_each"))
    monkeypatch.setattr(batched_program, "begin_each", functools.partial(traced, begin))
    advance = spied("computes", functools.partial(traced, advance))
    monkeypatch.setattr(batched_program, "advance_each", advance)
    monkeypatch.setattr(jax, "device_get", spied("reads", jax.device_get))
    options = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "sampler": watched(log)}
    result = run_batched(fa.algorithms.fedavg, problem, runs, **options)
    log = log[log.index("computes") - 2 :]  # before, one dispatch for its shape
    start = ["draws [0, 1]"] * 2 + ["computes", "reads"]  # of the first models
    twice = [line for line in EXPECTED[1:] for _ in range(1 + line.startswith("draws"))]
    assert log == start + twice
    assert [row["round"] for row in result.rows] == [0, 2, 4, 5] * 2


ITERATED = {"cohort_size": 2, "seed": 3, "eval_every": 2, "test": QUADRATICS.data.examples}


def iterated(**options):
    return fa.iterate_rounds(rounds_engine(), QUADRATICS.data, **ITERATED | options)


def run(rounds=5, place="device", **options):
    return run_rounds(rounds_engine(place=place), rounds=rounds, **options)


@pytest.mark.parametrize("place", ["device", pytest.param("host", marks=pytest.mark.all)])
def test_a_run_in_pieces_is_the_same_run(place):
    """Its states and rows, bit for bit: rates, orders and costs count all earlier rounds."""
    assert (DECAYING.rate_by, DECAYING.learning_rate(1)) == ("dispatch", 0.05)
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
    for consumed in (lambda: initial.server, lambda: run(3, state=initial, start_round=0)):
        with pytest.raises(ValueError, match="this state was consumed"):
            consumed()


@pytest.mark.all
def test_a_second_piece_goes_on_from_its_checkpoint(tmp_path):
    whole, rows = run(7)
    state, _ = run(4)
    seen, piece = [], {"start_round": 4, "checkpoints": fa.Checkpoints(tmp_path, every=0)}
    copy, other = (jax.tree.map(jnp.copy, state) for _ in range(2))

    def end(row):
        seen.append(row["round"])
        return seen == [4, 6]

    for given in (state, copy):
        last, resumed = run(3, state=given, on_evaluation=end, **piece)
    assert seen == [4, 6, 4, 6, 7]
    assert_same((last, resumed[1:]), (whole, rows[3:]))
    with pytest.raises(ValueError, match="start_round: 4 in the checkpoint"):
        run(3, state=other, start_round=0, checkpoints=tmp_path)


def test_an_iterator_gives_the_states_of_simulate():
    """Each step consumes the state before it."""
    given = iterated(rounds=2)
    first, _ = next(given)
    assert first.server.params["x"].shape == (4,)
    next(given)
    with pytest.raises(ValueError, match="this state was consumed"):
        _ = first.server
    whole, rows = run()
    pairs = ((jax.tree.map(jnp.copy, state), row) for state, row in iterated(rounds=5))
    states, told = zip(*pairs, strict=True)
    assert_same((states[-1], told), (whole, rows))
    (*_, (state, row)) = iterated(rounds=3, state=states[1], start_round=2)
    assert row["round"] == 5
    assert_same((state, []), (whole, []))


def test_a_callback_sees_the_state_if_it_has_a_parameter_for_it():
    seen = []
    run(on_evaluation=lambda row, *, state: seen.append(float(state.server.params["x"].sum())))
    assert seen == [float(state.server.params["x"].sum()) for state, _ in iterated(rounds=5)]
    assert len(seen) == 4


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
