"""The execution of batched runs: one program, in as many calls as the memory needs."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.core import Algorithm, Batch, Local, Model, Population, Problem, Row
from fedjax_algos.core.representation import describe
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.devices import client_mesh, replicate, row_sharding, wait_on_cpu
from fedjax_algos.engine.placement import Layout, Placement, fill_slots
from fedjax_algos.engine.state import initial_state
from fedjax_algos.engine.transfer import Transfer, count_transfer
from fedjax_algos.runs.batched_program import (
    Entry,
    Program,
    Shared,
    advance_each,
    begin_each,
    unreadable_rate,
)
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE
from fedjax_algos.runs.simulation import FlopCounter, draw_windows, flop_counter
from fedjax_algos.schedules import Synchronous
from fedjax_algos.schedules.synchronous import LocalWork, Sampler


class Run(NamedTuple):
    """One of many runs.

    `swept` distinguishes it from the others: some of its hyperparameters, "client_learning_rate",
    or anything else that its `local` was made from. The values must be hashable.
    """

    label: str  # `method` in its rows
    seed: int
    data: FederatedData
    local: Local
    hyperparameters: dict[str, Any]  # of the algorithm's factory
    swept: dict[str, Any]

    def __repr__(self) -> str:
        return describe(self, label=repr(self.label), seed=self.seed, swept=self.swept)


class BatchedArguments(NamedTuple):
    """The arguments of `run_batched`, in the form in which its programs need them."""

    factory: Callable[..., Algorithm]
    problem: Problem
    cohort_size: int
    rounds: int
    eval_every: int  # at most `rounds`
    sampler: Sampler
    work: LocalWork | None
    test: Batch | None
    params: Model | None
    layout: Layout
    mesh: Mesh | None
    runs_per_device: int | None
    memory: int  # bytes
    report: Callable[[int, Row], None]  # called with a run's index and a row
    start: float  # of `time.perf_counter`

    def schedule(self, run: Run) -> Synchronous:
        """The cohorts and the local work of a run.

        Args:
          run: any of the runs.
        """
        return Synchronous(
            run.data.counts(),
            run.local,
            cohort_size=self.cohort_size,
            seed=run.seed,
            sampler=self.sampler,
            work=self.work,
        )


class _Costs(NamedTuple):
    """Costs of a dispatch, equal for all runs of a program."""

    flops: FlopCounter
    transfer: Transfer


def run_program(arguments: BatchedArguments, runs: dict[int, Run], traced: Sequence[str]) -> str:
    """Runs a group that shares a program.

    Args:
      arguments: of `run_batched`.
      runs: by index. They differ in their seed, their data's tables and the `traced` values only.
      traced: names of swept floats that are arguments of the program.

    Returns:
      A note on the program.

    Raises:
      ValueError: for too little memory.
      UNTRACEABLE: if the algorithm reads a traced value in Python.
    """
    first = next(iter(runs.values()))
    algorithm = arguments.factory(arguments.problem, first.local, **first.hyperparameters)
    population = Population(first.data.num_clients, arguments.cohort_size, len(first.data.indices))
    begin = partial(
        initial_state,
        algorithm,
        Placement(arguments.layout),
        population=population,
        num_rows=population.num_clients,
    )
    state = jax.eval_shape(begin, np.uint32(0), arguments.params)
    dispatches = arguments.schedule(first).dispatches(1)
    size = _call_size(
        arguments,
        len(runs),
        run_bytes=2 * tree_bytes(state) + arguments.eval_every * tree_bytes(dispatches),
    )
    program = _program(arguments, first, population, traced, size)
    one_round = jax.tree.map(lambda leaf: leaf[0], dispatches)
    costs = _Costs(
        flop_counter(algorithm, state, first.data),
        count_transfer(algorithm, state, first.data, one_round),
    )
    tables = list({id(run.data): run.data for run in runs.values()}.values())
    shared = _share(arguments, size.mesh, tables)
    positions = {id(table): position for position, table in enumerate(tables)}
    for start in range(0, len(runs), size.runs):
        call = dict(list(runs.items())[start : start + size.runs])
        # the results of the repeated first run are dropped
        filled = [*call.values(), *[first] * (size.runs - len(call))]
        entries = Entry(
            np.array([positions[id(run.data)] for run in filled], np.int32),
            np.array([run.seed for run in filled], np.uint32),
            {name: np.array([run.swept[name] for run in filled], float) for name in traced},
        )
        _run_call(arguments, program, shared, entries, filled, list(call), costs)
    return size.note


class _CallSize(NamedTuple):
    """The size of the calls of a program."""

    mesh: Mesh | None
    runs_per_device: int  # computed at once
    runs: int  # a multiple of devices * runs_per_device
    note: str


def _call_size(arguments: BatchedArguments, num_runs: int, run_bytes: int) -> _CallSize:
    """The size of equal calls that fit into the memory."""
    mesh, fitting = arguments.mesh, arguments.memory // run_bytes
    if mesh is not None and mesh.size > num_runs:
        mesh = client_mesh(list(mesh.devices.flat[:num_runs]))
    devices = 1 if mesh is None else mesh.size
    default = 1 if jax.default_backend() == "cpu" else max(fitting // devices, 1)
    runs_per_device = min(arguments.runs_per_device or default, -(-num_runs // devices))
    width = devices * runs_per_device
    if fitting < width:
        raise ValueError(
            f"memory={arguments.memory} is out of range; give at least {width * run_bytes} bytes "
            f"for {runs_per_device} at once on {devices} devices, or less of these"
        )
    calls = -(-num_runs // (fitting // width * width))
    runs = -(-num_runs // (calls * width)) * width
    megabytes = f"{runs * run_bytes / 1e6:.3g} of {arguments.memory / 1e6:.4g} MB"
    note = (
        f"{num_runs} runs in a program, {runs} in a call, {runs_per_device} at once on each of "
        f"{devices} devices: {megabytes}"
    )
    return _CallSize(mesh, runs_per_device, runs, note)


def _program(
    arguments: BatchedArguments,
    run: Run,
    population: Population,
    traced: Sequence[str],
    size: _CallSize,
) -> Program:
    """The program of a run and of all that share it; what is traced is not part of it."""
    local = run.local
    if CLIENT_LEARNING_RATE in traced:
        rate = unreadable_rate if callable(local.learning_rate) else 0.0
        local = local._replace(learning_rate=rate)
    constants = frozenset(
        (name, type(value), value)
        for name, value in run.hyperparameters.items()
        if name not in traced
    )
    return Program(
        arguments.factory,
        arguments.problem,
        local,
        constants,
        population,
        arguments.layout,
        size.mesh,
        size.runs_per_device,
    )


def _share(arguments: BatchedArguments, mesh: Mesh | None, tables: list[FederatedData]) -> Shared:
    """What all runs read, on all devices."""
    rows = [(table.indices, table.offsets) for table in tables]
    indices, offsets = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    data = FederatedData(tables[0].examples, indices, offsets)
    return replicate(mesh, Shared(data, arguments.test, arguments.params))


def _run_call(
    arguments: BatchedArguments,
    program: Program,
    shared: Shared,
    entries: Entry,
    runs: list[Run],
    indices: list[int],
    costs: _Costs,
) -> None:
    """Computes the runs of one call from beginning to end; reports the first `len(indices)`."""
    mesh, flops, done = program.mesh, np.zeros(len(runs)), 0
    put = partial(jax.device_put, device=row_sharding(mesh, len(runs)))
    entries = put(entries)
    states = wait_on_cpu(mesh, begin_each(program, shared, entries))
    keeping = bool(jax.tree.leaves(states.origin))
    windows = zip(
        *(
            draw_windows(
                arguments.schedule(run),
                costs.flops,
                arguments.rounds,
                arguments.eval_every,
                keeping,
            )
            for run in runs
        ),
        strict=True,
    )
    following = next(windows, None)
    while following is not None:
        drawn, window = following, following[0].rounds
        placed = put(_stack_dispatches(program, [each.dispatches for each in drawn]))
        for rounds in [window] if done else [0, window]:  # 0: the evaluation of the first models
            states, trained, tested = wait_on_cpu(
                mesh, advance_each(program, states, shared, entries, placed, np.int32(rounds))
            )
            if rounds:  # while the devices compute
                following = next(windows, None)
                flops += [each.flops for each in drawn]
            trained, tested = jax.device_get((trained if rounds else {}, tested))
            dispatched = (done + rounds) * arguments.cohort_size
            for position, index in enumerate(indices):
                metrics = {n: float(values[position]) for n, values in (trained | tested).items()}
                row = metrics_row(
                    done + rounds,
                    metrics,
                    download_bytes=dispatched * costs.transfer.download,
                    upload_bytes=dispatched * costs.transfer.upload,
                    flops=float(flops[position]),
                    wall_seconds=time.perf_counter() - arguments.start,
                )
                arguments.report(index, row)
        done += window


def _stack_dispatches(program: Program, dispatches: Sequence[Any]) -> Any:
    """The dispatches of all runs in the slots of their cohorts, leaves [runs, rounds, slots]."""
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *dispatches)
    order = Placement(program.layout).slot_order(stacked.num_steps)
    return fill_slots(stacked, order, program.population.num_clients)
