"""The command `costs`: shapes and counts of every algorithm, without any computation."""

from pathlib import Path

import cost_helpers
import jax
import numpy as np
import pytest
from helpers import by_kind, dispatches_of, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.cli.costs import costs_of

TOY = small_network()
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
POPULATION = fa.Population(4, 2, 17)
COHORT = one_round(dispatches_of(TOY.data, LOCAL, [(0, 3)]), 0)
MODEL = 4 * (3 * 4 + 4 + 4)  # bytes of the network


def costs(algorithm):
    with fa.measure_compilation() as compiled:
        found = costs_of(algorithm, TOY.data, COHORT, POPULATION)
    assert compiled.programs <= 1  # once, of a constant
    return found


@pytest.mark.parametrize("case", by_kind())
def test_every_algorithm_has_costs(case):
    """No round is compiled; FedRep and others send a part of the model; more steps cost more."""
    algorithm = case.build(TOY.problem, LOCAL)
    found = costs(algorithm)
    own = {
        "lgfedavg": 4 * (3 * 4 + 4),
        **dict.fromkeys(("fedrep", "fedbn", "fedper", "fedbabu"), 16),
    }
    least = MODEL - own.get(case.name, 0)
    assert min(found["download"], found["upload"]) >= least
    assert min(found["client memory"], found["server state"]) >= MODEL
    assert found["client memory"] >= found["client state"]
    state = cost_helpers.state_of(algorithm, TOY.data)
    longer = cost_helpers.dispatches_of([1, 2, 3], 5)
    flops = fa.count_flops(algorithm, state, TOY.data).of(longer)
    assert min(found["flops"], *flops) > 0
    assert case.name == "centralised" or (np.diff(flops) > 0).all()
    assert (found["client state"] > 0) == bool(jax.tree.leaves(state.clients))


def test_costs_by_hand_and_by_the_engine():
    algorithm = fa.algorithms.scaffold(TOY.problem, LOCAL)
    found = costs(algorithm)
    # the model and a control variate each way, one at the client, and both and N at the server
    assert (found["download"], found["upload"]) == (2 * MODEL, 2 * MODEL)
    assert (found["client state"], found["server state"]) == (MODEL, 2 * MODEL + 4)
    assert found["all states"] == 4 * MODEL
    engine = fa.make_engine(algorithm)
    state = engine.init(0, POPULATION)
    assert found.items() >= engine.transfer(state, TOY.data, COHORT)._asdict().items()
    flops = fa.count_flops(algorithm, state, TOY.data).of(COHORT)
    assert found["flops"] == pytest.approx(np.mean(flops))
    assert found["client memory"] == fa.count_memory(algorithm, state, TOY.data).in_round


def test_the_command(command, here):
    model = ["--model", "linear", "--clients", "10", "--cohort", "2", "--local-steps", "3"]
    heading, *lines = command("costs", "fedavg", "fedhbm", *model).splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["FedAvg", "FedHBM"]
    # 650 weights; FedHBM downloads one number more
    assert lines[0].split()[1:5] == ["2.6", "kB", "2.6", "kB"]
    assert any(line.startswith("server state: the global model") for line in lines)
    assert "missed" not in heading
    Path("own.toml").write_text('methods = ["fedavg", "fedhbm"]')
    assert command("costs", "--config", "own.toml", *model).splitlines() == [heading, *lines]
    with pytest.raises(SystemExit):
        command("costs", *model)
    out = command("costs", "fedavg+topk:fraction=0.1,direction=down,feedback=ef21", *model)
    cells = out.splitlines()[1].split("  ")
    # 65 values, and places of ten bits in 21 words
    assert [cell.strip() for cell in cells if "B" in cell][:4] == ["2.6 kB"] * 2 + ["344.0 B"] * 2
    assert "message, missed: if broadcasts build upon each other" in out
