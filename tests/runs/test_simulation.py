"""The loops of runs: what the host does while the devices compute."""

import jax
import numpy as np
from helpers import Case, small_network

import fedjax_algos as fa
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.batched import execution as batched_execution

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


def test_the_next_rounds_are_drawn_before_metrics_are_read():
    toy, log = small_network(), []
    real = fa.make_engine(Case("scaffold", {}).build(toy.problem, LOCAL))

    class Measured:
        weight = 1.0

        def value(self):
            log.append("reads")
            return 1.0

    def rounds(state, data, dispatches, number):
        log.append("computes")
        return state, {"train_loss": Measured()}

    _, rows = fa.simulate(
        real._replace(rounds=rounds), toy.data, cohort_size=3, rounds=5, eval_every=2,
        sampler=watched(log),
    )  # fmt: skip
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

    advance = batched_execution.advance_each
    monkeypatch.setattr(batched_execution, "advance_each", spied("computes", advance))
    monkeypatch.setattr(jax, "device_get", spied("reads", jax.device_get))
    result = run_batched(
        fa.algorithms.fedavg, toy.problem, runs, cohort_size=3, rounds=5, eval_every=2,
        sampler=watched(log),
    )  # fmt: skip
    log = log[log.index("computes") - 2 :]  # before, one dispatch for its shape
    start = ["draws [0, 1]"] * 2 + ["computes", "reads"]  # of the first models
    twice = [line for line in EXPECTED[1:] for _ in range(1 + line.startswith("draws"))]
    assert log == start + twice
    assert [row["round"] for row in result.rows] == [0, 2, 4, 5] * 2
