"""The execution of batched runs: one program, in as many calls as the memory needs."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.core import Algorithm, Batch, Model, Population, Problem
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.fingerprint import (
    algorithm_fingerprint,
    array_fingerprint,
    data_fingerprint,
    examples_fingerprint,
)
from fedjax_algos.engine.non_finite import NonFinite
from fedjax_algos.engine.placed.devices import replicate, row_sharding, wait_on_cpu
from fedjax_algos.engine.slots import Layout, Placement, fill_slots
from fedjax_algos.engine.state import initial_state
from fedjax_algos.runs.batched.call_size import call_size
from fedjax_algos.runs.batched.program import (
    Entry,
    Program,
    Shared,
    advance_each,
    begin_each,
    constants_of,
    unreadable_rate,
)
from fedjax_algos.runs.batched.rows import CallStop, Recorder, Run
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE
from fedjax_algos.runs.saving.arrays import fill
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver
from fedjax_algos.runs.saving.interruption import check_interruption
from fedjax_algos.runs.windows import Window, draw_windows, flop_counter, identify_rounds
from fedjax_algos.schedules import Synchronous


class BatchedArguments(NamedTuple):
    """The arguments of `run_batched`, in the form in which its programs need them."""

    factory: Callable[..., Algorithm]
    problem: Problem
    schedule: Callable[[Run], Synchronous]
    cohort_size: int
    rounds: int
    eval_every: int  # at most `rounds`
    test: Batch | None
    params: Model | None
    layout: Layout
    mesh: Mesh | None
    runs_per_device: int | None
    memory: int | None  # bytes
    non_finite: NonFinite
    recorder: Recorder
    checkpoints: Checkpoints | None


def traced_names(run: Run, static: frozenset[str]) -> list[str]:
    """The swept values of a run that are arguments of its program.

    Args:
      run: any run.
      static: names of swept values that are constants of the program.
    """
    known = {CLIENT_LEARNING_RATE, *run.hyperparameters} - static
    return [name for name, value in run.swept.items() if isinstance(value, float) and name in known]


def run_program(arguments: BatchedArguments, runs: dict[int, Run], static: frozenset[str]) -> str:
    """Runs a group that shares a program.

    Args:
      arguments: of `run_batched`.
      runs: by index. They differ in their seed, their data's tables and their traced values only.
      static: names of swept values that are constants of the program.

    Returns:
      A note on the program.

    Raises:
      ValueError: for too little memory.
      UNTRACEABLE: if the algorithm reads a traced value in Python.
    """
    first = next(iter(runs.values()))
    algorithm = arguments.factory(arguments.problem, first.local, **first.hyperparameters)
    clients = first.data.num_clients
    population = Population(clients, arguments.cohort_size, len(first.data.indices))
    placement = Placement(arguments.layout)
    begin = partial(
        initial_state,
        algorithm,
        placement,
        population=population,
        num_rows=clients,
        non_finite=arguments.non_finite,
    )
    state = jax.eval_shape(begin, np.uint32(0), arguments.params)
    dispatches = arguments.schedule(first).dispatches(1)
    run_bytes = 2 * tree_bytes(state) + arguments.eval_every * tree_bytes(dispatches)
    mesh, runs_per_device, size, note = call_size(
        arguments.mesh, arguments.runs_per_device, arguments.memory, len(runs), run_bytes
    )
    traced = traced_names(first, static)
    program = _program(arguments, first, traced, population, mesh, runs_per_device)
    tables = {_table(run): run for run in runs.values()}
    positions = {key: position for position, key in enumerate(tables)}
    shared = _share(arguments, mesh, list(tables.values()))
    one_round = jax.tree.map(lambda leaf: leaf[0], dispatches)
    transfer = count_transfer(algorithm, state, first.data, one_round)
    count, keeping = flop_counter(algorithm, state, first.data), bool(jax.tree.leaves(state.origin))
    of_windows = count, arguments.rounds, arguments.eval_every, keeping
    for start in range(0, len(runs), size):
        call = dict(list(runs.items())[start : start + size])
        # the results of the repeated first run are dropped
        filled = [*call.values(), *[first] * (size - len(call))]
        entries = Entry(
            np.array([positions[_table(run)] for run in filled], np.int32),
            np.array([run.seed for run in filled], np.uint32),
            {name: np.array([run.swept[name] for run in filled], float) for name in traced},
        )
        one = jax.tree.map(lambda leaf: leaf[0, 0], dispatches)
        algorithm_of = partial(algorithm_fingerprint, algorithm, state, first.data, one)
        identity = partial(_identity, arguments, filled, mesh, algorithm_of)
        saver = RunSaver(_checkpoints_of(arguments.checkpoints, call), identity)
        schedules = [arguments.schedule(run) for run in filled]
        start_of_call = _start(arguments.recorder, call, program, shared, entries, schedules, saver)
        windows = zip(*(draw_windows(each, *of_windows) for each in schedules), strict=True)
        states = start_of_call.states
        for stop in _compute(program, shared, entries, windows, start_of_call):
            arguments.recorder.measure(call, transfer, stop)
            rows = [arguments.recorder.histories[index] for index in call]
            if not stop.rounds:
                check_interruption()
            else:  # the first models are made again as quickly as they are read
                diverged = [index in arguments.recorder.diverged for index in call]
                content = partial(_content, stop, {"rows": rows, "diverged": diverged})
                saver.after_evaluation(stop.rounds, content, last=stop.rounds == arguments.rounds)
            states = stop.states
        arguments.recorder.end(call, states)
    return note


def _table(run):
    """What runs that read the same examples have in common."""
    return id(run.data), id(run.test_rows)


def _table_fingerprint(run):
    data = data_fingerprint(run.data)
    return data if run.test_rows is None else f"{data} {array_fingerprint(run.test_rows)}"


def _checkpoints_of(checkpoints, call):
    """The checkpoints of a call, in a folder that is named after its runs."""
    if checkpoints is None:
        return None
    name = f"from-run-{min(call)}-{array_fingerprint(np.array(list(call)))}"
    return checkpoints._replace(folder=Path(checkpoints.folder) / name)


def _identity(arguments, runs, mesh, algorithm):
    """By what a checkpoint of other runs is recognised."""
    tables = {_table(run): run for run in runs}
    of_tables = {key: _table_fingerprint(run) for key, run in tables.items()}
    return {
        "algorithm": algorithm(),
        "runs": [[run.label, run.seed, of_tables[_table(run)]] for run in runs],
        **identify_rounds([arguments.schedule(run) for run in runs], arguments.rounds),
        "initial_model": array_fingerprint(arguments.params),
        "test": examples_fingerprint(arguments.test),
        "rounds": arguments.rounds,
        "eval_every": arguments.eval_every,
        "non_finite": arguments.non_finite,
        "layout": str(arguments.layout),
        "devices": 1 if mesh is None else mesh.size,
    }


def _content(stop, facts):
    """What a checkpoint holds."""
    return {"states": stop.states, "schedules": stop.positions, "flops": stop.flops}, facts


def _start(recorder, call, program, shared, entries, schedules, saver):
    """The beginning of a call, or where its checkpoint was saved; the schedules go there."""
    mesh, num_runs = program.mesh, len(entries.seed)
    entries = jax.device_put(entries, row_sharding(mesh, num_runs))
    states = wait_on_cpu(mesh, begin_each(program, shared, entries))
    positions = _stack([schedule.position() for schedule in schedules])
    stop = CallStop(0, {}, np.zeros(num_runs), (), True, states, positions)
    if saved := saver.restore():
        filled = fill(_content(stop, ())[0], saved.arrays)
        positions = filled["schedules"]
        for number, schedule in enumerate(schedules):
            schedule.go_to(jax.tree.map(lambda leaf, i=number: leaf[i], positions))
        recorder.restore(call, saved.facts["rows"], saved.facts["diverged"])
        stop = stop._replace(
            rounds=saved.position,
            flops=filled["flops"],
            states=filled["states"],
            positions=positions,
        )
    return stop


def _stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _program(arguments, run, traced, population, mesh, runs_per_device):
    """The program of a run and of all that share it; what is traced is not part of it."""
    local = run.local
    if CLIENT_LEARNING_RATE in traced:
        rate = unreadable_rate if callable(local.learning_rate) else 0.0
        local = local._replace(learning_rate=rate)
    return Program(
        arguments.factory, arguments.problem, local, constants_of(run.hyperparameters, traced),
        population, arguments.layout, mesh, runs_per_device, arguments.non_finite,
    )  # fmt: skip


def _share(arguments: BatchedArguments, mesh: Mesh | None, runs: list[Run]) -> Shared:
    """What all runs read, on all devices; `runs` has one run for each of their tables."""
    rows = [(run.data.indices, run.data.offsets, run.test_rows) for run in runs]
    indices, offsets, test_rows = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    data = FederatedData(runs[0].data.examples, indices, offsets)
    test = arguments.test if test_rows is None else None
    return replicate(mesh, Shared(data, test, test_rows, arguments.params))


def _compute(
    program: Program,
    shared: Shared,
    entries: Entry,
    windows: Iterator[tuple[Window, ...]],
    start: CallStop,
) -> Iterator[CallStop]:
    """Computes the runs of one call from where they are to the end; yields at each evaluation."""
    mesh, num_runs = program.mesh, len(entries.seed)
    put = partial(jax.device_put, device=row_sharding(mesh, num_runs))
    entries = put(entries)
    done, states, flops = start.rounds, start.states, start.flops
    following = next(windows, None)
    while following is not None:
        drawn, window = following, following[0].rounds
        order = Placement(program.layout).slot_order
        stacked = _stack([each.dispatches for each in drawn])
        filled = fill_slots(stacked, order(stacked.num_steps), program.population.num_clients)
        placed, positions = put(filled), _stack([each.position for each in drawn])
        for rounds in [window] if done else [0, window]:  # 0: the evaluation of the first models
            states, trained, tested, finite = wait_on_cpu(
                mesh, advance_each(program, states, shared, entries, placed, np.int32(rounds))
            )
            if rounds:  # while the devices compute
                following = next(windows, None)
                flops = flops + [each.flops for each in drawn]
            trained, tested, excluded, finite = jax.device_get(
                (trained if rounds else {}, tested, states.excluded, finite)
            )
            at = positions if rounds else start.positions
            metrics = trained | tested
            yield CallStop(done + rounds, metrics, flops, excluded, finite, states, at)
        done += window
