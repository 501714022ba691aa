"""Typical user code. mypy and pyright accept every call; nothing here is run.

`wrong_calls.py` beside it holds calls that both must report.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_algos as fa


def init(key: jax.Array) -> fa.Model:
    return fa.Model({"w": jax.random.normal(key, (8,))})


def apply(model: fa.Model, batch: Any, key: jax.Array, training: bool) -> tuple[jax.Array, tuple]:
    return batch["x"] @ model.params["w"], ()


def loss(outputs: jax.Array, batch: Any) -> jax.Array:
    return (outputs - batch["y"]) ** 2


def federated_data() -> fa.FederatedData:
    examples = {"x": np.ones((100, 8)), "y": np.zeros(100)}
    return fa.federate(examples, fa.Partition.of(np.array_split(np.arange(100), 10)))


def algorithms(problem: fa.Problem, local: fa.Local) -> Iterator[fa.Algorithm]:
    yield fa.algorithms.fedavg(problem, local, server_transform=optax.scale_by_adam())
    yield fa.algorithms.fedprox(problem, local, mu=0.1, weighting="uniform")
    yield fa.algorithms.ghbm(problem, local, tau=10)
    yield fa.algorithms.algorithms["scaffold"](problem, local, server_learning_rate=0.7)
    yield fa.algorithms.algorithms.make("fedprox:mu=0.1", problem, local)


def own_algorithm(problem: fa.Problem, local: fa.Local, *, rate: float = 1.0) -> fa.Algorithm:
    frame = fa.algorithms.fedavg(problem, local)

    def server_update(server: Any, sums: Any, count: jax.Array, group: jax.Array) -> Any:
        return server._replace(params=optax.tree.sub(server.params, sums.mean()))

    traits = fa.Traits(asynchrony=fa.Asynchrony("buffered"))
    return frame._replace(server_update=server_update, traits=traits)


def stop_early(row: dict[str, Any], state: fa.FederatedState | None) -> bool:
    return state is not None and row["test_loss"] < 0.1


def rounds(problem: fa.Problem, local: fa.Local) -> fa.FederatedState:
    data = federated_data()
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), "vmapped", devices=1)
    print(fa.make_engine(engine.algorithm, client_state=fa.RowsOnDisk("rows")).placement.layout)
    arguments: dict[str, Any] = {"cohort_size": 4, "rounds": 5}
    test = {"x": jnp.ones((2, 8)), "y": jnp.zeros(2)}
    state, history = fa.simulate(engine, data, test=test, on_evaluation=stop_early, **arguments)
    print(history[-1]["test_loss"], state.server.params["w"])
    rows: list[dict[str, Any]] = []
    fa.simulate(engine, data, state=state, start_round=5, on_evaluation=rows.append, **arguments)
    for latest, row in fa.iterate_rounds(engine, data, cohort_size=4, rounds=5):
        print(latest.server.params["w"], row["round"])

    cohorts = fa.participation.Cohorts(data.counts(), local, cohort_size=4, seed=0)
    state = engine.init(0, fa.Population(10, 4, 100))
    for _ in range(3):
        dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        state, metrics = engine.round(state, engine.put_data(data), dispatches)
        print(float(metrics["train_loss"].value()))
    print(engine.transfer(state, data, cohorts.dispatches(1)).download)
    return state


def on_the_virtual_clock(problem: fa.Problem, local: fa.Local) -> float:
    executor = fa.make_executor(fa.algorithms.fedcompass(problem, local), slots=4)
    planner = fa.asynchrony.compass(min_steps=5, max_steps=20)
    system = fa.asynchrony.simulated(speeds="exponential")
    result = fa.simulate_async(executor, federated_data(), planner, system, seconds=60)
    print(result.plan.time, result.rows[-1]["simulated_seconds"])
    return result.rows[-1]["test_loss"]


def sweep_and_evaluation(problem: fa.Problem, local: fa.Local, state: fa.FederatedState) -> int:
    fa.keep_compiled("cache")
    data, grid = federated_data(), {"mu": [0.01, 0.1], "client_learning_rate": [0.1, 0.3]}
    with fa.measure_compilation() as compiled:
        result = fa.sweep(
            "fedprox", problem, local, data, grid=grid, seeds=range(3), cohort_size=4, rounds=20
        )
    print(compiled.seconds, result.rows[0]["method"], result.notes)
    evaluate = fa.make_evaluate(problem)
    model = fa.Model(state.server.params, state.statistics)
    print(evaluate(model, {"x": jnp.ones((2, 8)), "y": jnp.zeros(2)})["loss"].value())
    print(fa.count_flops(fa.algorithms.fedavg(problem, local), state, data).fixed)
    partition = fa.data.partitioning.dirichlet(np.zeros(100, int), 10, 0, alpha=0.3)
    print(partition.num_clients, fa.models.mlp((64,), 10, hidden=200).init)
    return compiled.programs
