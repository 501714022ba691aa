"""Implements `costs`, which shows what methods cost before anything is trained."""

import dataclasses
from typing import Any

import click
import jax
import numpy as np

from fedjax_algos.analysis import UncountedError, count_flops, count_memory, tables
from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.tables import Column, ResultTable, amounts
from fedjax_algos.base.errors import require
from fedjax_algos.cli.config_file import ConfigFile, read_config
from fedjax_algos.cli.options import settings_of
from fedjax_algos.core import Algorithm, Dispatch, Population
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.slots import Placement
from fedjax_algos.engine.state import initial_state
from fedjax_algos.runs.loops.run import Rounds
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.method import methods_of

_NOTES = [
    "download, upload: of a client in a round.",
    "message, missed: if broadcasts build upon each other, download is a client's first message; "
    "then it receives the message of a round, and missed for each round that it has missed, "
    "but never more than download.",
    "report: what each candidate sends before the server chooses who trains or uploads.",
    "flops: of a local update, mean of the clients of the first round of seed 0.",
    "client state: what a client keeps between its rounds.",
    "all states: of all clients together, which the simulation holds.",
    "client memory: the most that a client needs in a round, besides its examples, frozen params, "
    "and the activations and gradients of a step.",
    "server state: the global model and what the server keeps beside it, without clients' updates.",
]


def costs_of(
    algorithm: Algorithm, data: RunData, dispatches: Dispatch, population: Population
) -> dict[str, float | None]:
    """Counts an algorithm's bytes from shapes, and its operations unless one is unknown."""

    def init(seed: jax.Array) -> Any:
        placement = Placement("sequential")
        return initial_state(algorithm, placement, seed, None, population, on_device=False)

    state, shapes = jax.eval_shape(init, np.uint32(0)), data_shapes(data)
    try:
        by_client = count_flops(algorithm, state, shapes).of(dispatches)
        flops = float(by_client[dispatches.client < population.num_clients].mean())
    except UncountedError:
        flops = None
    memory = count_memory(algorithm, state, shapes)
    return {
        **count_transfer(algorithm, state, data, dispatches)._asdict(),
        "flops": flops,
        "client state": memory.between_rounds,
        "all states": memory.between_rounds * population.num_clients,
        "client memory": memory.in_round,
        "server state": tree_bytes(state.server) + tree_bytes(state.statistics),
    }


def show_costs(methods: tuple[str, ...], values: dict[str, str | None]) -> None:
    """Prints what methods cost."""
    file = ConfigFile() if values["config"] is None else read_config(values["config"])
    methods = methods or file.methods
    require(methods, "costs needs a method; give one such as fedavg, or --config")
    settings = settings_of(values, "1", file, methods)
    settings = dataclasses.replace(settings, seeds=(0,))
    laid_out = dataclasses.replace(settings, layout="sequential")  # so that nothing is compiled
    experiment = prepare(laid_out, methods_of(methods, settings), files=True)
    data = experiment.data[0]
    population = Population(data.num_clients, settings.cohort_size, int(data.counts().sum()))
    costs: dict[str, dict[str, float | None]] = {}
    for label, engine in experiment.engines.items():
        algorithm = engine.algorithm
        cohorts = Rounds(**settings.loop()).cohorts(data, algorithm, algorithm.local, 0)
        costs[label] = costs_of(algorithm, data, take(cohorts.dispatches(1), 0), population)
    names, rows = display_names(costs), costs.values()
    columns = [Column("method", [names[label] for label in costs])]
    for name in next(iter(rows)):
        columns.append(amounts(name, [r[name] for r in rows], "FLOP" if name == "flops" else "B"))
    hidden = ["message", "missed"] * all(row["message"] == row["download"] for row in rows)
    hidden += ["report"] * all(row["report"] is None for row in rows)
    headings = [column.heading for column in columns if column.heading not in hidden]
    click.echo(tables.text([ResultTable(columns, _NOTES).choose(headings)]), nl=False)
