"""The loops of runs: what the host does while the devices compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import assert_same, without_time

import fedjax_algos as fa
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.batched import program as batched_program

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
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
    toy, log = small_network(), []
    real = fa.make_engine(Case("scaffold", {}).build(toy.problem, LOCAL))

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
    options = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "sampler": watched(log)}
    _, rows = fa.simulate(real, toy.data, **options)
    assert log == EXPECTED
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    flops = [row["flops"] for row in rows]
    assert flops == [0, flops[1], 2 * flops[1], 2.5 * flops[1]]


def test_batched_runs_draw_the_next_rounds_before_metrics_are_read(monkeypatch):
    toy, log = small_network(), []
    runs = [Run("fedavg", seed, toy.data, LOCAL, {}, {}) for seed in (0, 1)]

    def spied(name, function):
        def spy(*arguments):
            log.append(name)
            return function(*arguments)

        return spy

    advance = batched_program.advance_each
    monkeypatch.setattr(batched_program, "advance_each", spied("computes", advance))
    monkeypatch.setattr(jax, "device_get", spied("reads", jax.device_get))
    options = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "sampler": watched(log)}
    result = run_batched(fa.algorithms.fedavg, toy.problem, runs, **options)
    log = log[log.index("computes") - 2 :]  # before, one dispatch for its shape
    start = ["draws [0, 1]"] * 2 + ["computes", "reads"]  # of the first models
    twice = [line for line in EXPECTED[1:] for _ in range(1 + line.startswith("draws"))]
    assert log == start + twice
    assert [row["round"] for row in result.rows] == [0, 2, 4, 5] * 2


TOY = small_network()
DECAYING = fa.Local(2, lambda count: 0.1 / (1 + count), epochs=1.0, rate_by="dispatch")
STATEFUL = Case("scaffold", {}).build(TOY.problem, DECAYING)
OPTIONS = {"cohort_size": 2, "seed": 3, "eval_every": 2, "test": TOY.data.examples}


@functools.cache
def engine(client_state="device"):
    return fa.make_engine(STATEFUL, client_state=client_state)


def run(rounds, client_state="device", **options):
    return fa.simulate(engine(client_state), TOY.data, rounds=rounds, **(OPTIONS | options))


@pytest.mark.parametrize("client_state", ["device", "host"])
def test_a_run_in_pieces_is_the_same_run(client_state):
    """Its states and rows, bit for bit: rates, orders and costs count all earlier rounds."""
    whole, rows = run(7, client_state)
    state, first = run(4, client_state)
    state, second = run(3, client_state, state=state, start_round=4)
    start, *_ = without_time(second)
    assert_same((state, first + second[1:]), (whole, rows))
    assert start.keys() == without_time(rows)[0].keys()  # it has trained nothing
    assert start == {name: first[-1][name] for name in start}


def test_a_state_of_init_begins_a_run():
    initial = engine().init(3, fa.Population(4, 2, 17))
    assert_same(run(3, state=initial, start_round=0), run(3))
    with pytest.raises(ValueError, match="this state was consumed"):
        _ = initial.server
    with pytest.raises(ValueError, match="this state was consumed"):
        run(3, state=initial, start_round=0)


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
    with pytest.raises(ValueError, match="of another run:\n  start_round: 4 in the checkp"):
        run(3, state=other, start_round=0, checkpoints=tmp_path)


def test_an_iterator_gives_the_states_of_simulate():
    """Each step consumes the state before it."""
    given = fa.iterate_rounds(engine(), TOY.data, rounds=2, **OPTIONS)
    first, _ = next(given)
    assert first.server.params["out"].shape == (4,)
    next(given)
    with pytest.raises(ValueError, match="this state was consumed"):
        _ = first.server
    whole, rows = run(5)
    given = fa.iterate_rounds(engine(), TOY.data, rounds=5, **OPTIONS)
    states, told = zip(*((jax.tree.map(jnp.copy, state), row) for state, row in given), strict=True)
    assert_same((states[-1], told), (whole, rows))
    options = OPTIONS | {"state": states[1], "start_round": 2}
    later = fa.iterate_rounds(engine(), TOY.data, rounds=3, **options)
    (*_, (state, row)) = later
    assert row["round"] == 5
    assert_same((state, []), (whole, []))


def test_a_callback_sees_the_state_if_it_has_a_parameter_for_it():
    seen = []

    def look(row, *, state):
        seen.append((row["round"], np.array(state.server.params["out"])))

    run(5, on_evaluation=look)
    given = fa.iterate_rounds(engine(), TOY.data, rounds=5, **OPTIONS)
    expected = [(row["round"], np.array(state.server.params["out"])) for state, row in given]
    np.testing.assert_equal(seen, expected)
    assert len(seen) == 4


@pytest.mark.parametrize("stop", [True, np.bool_(True)])
def test_a_callback_that_returns_true_ends_the_run(stop, tmp_path):
    """The second call runs nothing, and a call without the callback goes on."""
    shorter, calls = run(4), []

    def until(row):
        calls.append(row["round"])
        return stop if row["round"] == 4 else None

    for _ in range(2):
        assert_same(run(7, on_evaluation=until, checkpoints=tmp_path), shorter)
    assert calls == [0, 2, 4] * 2
    assert_same(run(7, checkpoints=tmp_path), run(7))
    values = iter([1, "yes", False, np.bool_(False)])  # other results do not end a run
    assert len(run(5, on_evaluation=lambda row: next(values))[1]) == 4
