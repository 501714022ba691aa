"""Many runs in one program: the numbers and seeds in which they differ are its arguments.

Each device works through its own share of the runs and says nothing to the others.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.core import Algorithm, Batch, Local, Model, Params, Population, Problem
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine import federated_round
from fedjax_algos.engine.devices import Devices, client_mesh, divided, place, settle
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.engine.placement import Layout, Spread, arrange
from fedjax_algos.runs.batched_program import (
    RATE,
    UNTRACEABLE,
    Entry,
    Program,
    Shared,
    advance_each,
    begin_each,
    told_by_visits,
)
from fedjax_algos.runs.simulation import Row, draw_windows, flops_of
from fedjax_algos.schedules import Synchronous, uniform
from fedjax_algos.schedules.synchronous import Sampler, Work


class Run(NamedTuple):
    """One of many runs.

    `swept` is what tells it from the others: some of its hyper-parameters, `RATE`, or whatever else
    its `local` was made from. Values must be hashable.
    """

    label: str  # `method` in its rows
    seed: int
    data: FederatedData
    local: Local
    hyperparameters: dict[str, Any]  # of the algorithm's factory
    swept: dict[str, Any]


class Together(NamedTuple):
    """What many runs gave."""

    rows: list[Row]
    notes: list[str]  # on how they were run


def run_together(
    factory: Callable[..., Algorithm],
    problem: Problem,
    runs: Sequence[Run],
    *,
    cohort_size: int,
    rounds: int,
    sampler: Sampler = uniform,
    work: Work | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    layout: Layout = "auto",
    devices: Devices = None,
    at_once: int | None = None,
    memory: int = 2**30,
) -> Together:
    """What `simulate` gives for each run, up to rounding, in as few programs as there can be.

    Seeds, client rates and swept floats are arguments of a program. Runs that differ in anything
    else (whole numbers, choices, objects, local work, shapes of the data) have programs of their
    own, one after another; so have those that differ in a float which the algorithm reads as a
    value, and a note says so. An argument has jax's default precision: in float32, `1 - beta` is
    rounded a little differently from Python's.

    As many runs are computed in a call as `memory` allows. Each counts with its `FederatedState`
    twice, before and after, and its visits until the next evaluation. Not counted are the examples,
    which all share, and what a local step needs.

    Args:
      factory: `(problem, local, **hyperparameters) -> Algorithm`.
      problem: what is learned.
      runs: what is run. Those whose data hold the same arrays of examples can share a program.
      cohort_size, rounds, sampler, work, test, eval_every, params, on_evaluation: as in `simulate`.
      layout: of a cohort, see `make_engine`.
      devices: of this process, over which the runs are divided; see `client_mesh`.
      at_once: runs that a device computes at once; None is one on a CPU, where many copies of the
        weights only move through memory, and elsewhere as many as `memory` allows.
      memory: bytes of the runs of a call.

    Returns:
      Rows, run by run, with `method` and `seed` before what `simulate` measures; `wall_seconds` is
      the time since all runs began.

    Raises:
      ValueError: for what `simulate` or the factory refuse, or too little memory.
    """
    if rounds < 1 or eval_every < 1:
        raise ValueError(f"rounds={rounds} and eval_every={eval_every} must be at least 1")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once} is out of range; give at least 1")
    for run in runs:  # ranges are checked while values are concrete
        factory(problem, run.local, **run.hyperparameters)
    given = params if params is None or isinstance(params, Model) else Model(params)
    histories: list[list[Row]] = [[] for _ in runs]
    start = time.perf_counter()

    def report(number: int, row: Row) -> None:
        names = {"method": runs[number].label, "seed": runs[number].seed}
        row = names | row | {"wall_seconds": time.perf_counter() - start}
        histories[number].append(row)
        on_evaluation(row)

    how = _How(
        factory, problem, cohort_size, rounds, min(eval_every, rounds), sampler, work, test, given,
        layout, client_mesh(devices), at_once, memory, report,
    )  # fmt: skip
    notes: list[str] = []
    for group in _groups(dict(enumerate(runs)), frozenset()):
        notes += _run_group(how, group, frozenset())
    return Together([row for history in histories for row in history], notes)


class _How(NamedTuple):
    """The arguments of `run_together`."""

    factory: Callable[..., Algorithm]
    problem: Problem
    cohort_size: int
    rounds: int
    eval_every: int
    sampler: Sampler
    work: Work | None
    test: Batch | None
    params: Model | None
    layout: Layout
    mesh: Mesh | None
    at_once: int | None
    memory: int
    report: Callable[[int, Row], None]


def _numbers(run, static):
    """The values of a run that are arguments of its program."""
    known = {RATE, *run.hyperparameters} - static
    return {n: value for n, value in run.swept.items() if isinstance(value, float) and n in known}


def _others(values, numbers):
    """All other values; with their types, since 1, 1.0 and True are equal."""
    return frozenset((n, type(value), value) for n, value in values.items() if n not in numbers)


def _groups(runs: dict[int, Run], static: frozenset[str]) -> list[dict[int, Run]]:
    """Runs that can share a program."""
    groups: dict[Any, dict[int, Run]] = {}
    for number, run in runs.items():
        others = _others(run.hyperparameters | run.swept, _numbers(run, static))
        shapes = run.data.indices.shape, run.data.offsets.shape
        examples = tuple(map(id, jax.tree.leaves(run.data.examples)))
        groups.setdefault((others, shapes, examples), {})[number] = run
    return list(groups.values())


def _run_group(how: _How, runs: dict[int, Run], static: frozenset[str]) -> list[str]:
    """Runs a group, with a program for each value of what cannot be an argument; notes on it."""
    try:
        return [_run_program(how, runs, static)]
    except UNTRACEABLE:  # when it is first called, so that nothing was reported yet
        names = sorted(_numbers(next(iter(runs.values())), static))
        if not names:
            raise
    for refused in [*([name] for name in names), names]:
        first, *others = _groups(runs, static.union(refused))
        try:
            notes = [_run_program(how, first, static.union(refused))]
        except UNTRACEABLE:
            if refused == names:
                raise
            continue
        for other in others:
            notes += _run_group(how, other, static.union(refused))
        return [f"{' and '.join(refused)}: read as a value, so a program for each", *notes]
    raise AssertionError("the last of these returns or raises")


def _run_program(how, runs, static):
    """Runs what shares a program; says how."""
    first = next(iter(runs.values()))
    algorithm, local = how.factory(how.problem, first.local, **first.hyperparameters), first.local
    population = Population(first.data.num_clients, how.cohort_size, len(first.data.indices))
    begin = partial(federated_round.start, algorithm, Spread(how.layout))
    begin = partial(begin, population=population, num_rows=population.num_clients)
    state = jax.eval_shape(begin, np.uint32(0), how.params)
    visits = _schedules(how, [first])[0].visits(1)
    run_bytes = 2 * federated_round.tree_bytes(state) + how.eval_every * federated_round.tree_bytes(
        visits
    )
    mesh, at_once, size, note = _fit(how, run_bytes, len(runs))
    numbers = _numbers(first, static)
    if RATE in numbers:
        told = told_by_visits if callable(local.learning_rate) else 0.0
        local = local._replace(learning_rate=told)
    others = _others(first.hyperparameters, numbers)
    program = Program(
        how.factory, how.problem, local, others, population, how.layout, mesh, at_once
    )
    tables = {id(run.data): run.data for run in runs.values()}
    data = FederatedData(
        first.data.examples,
        np.stack([table.indices for table in tables.values()]),
        np.stack([table.offsets for table in tables.values()]),
    )
    shared = place(mesh, Shared(data, how.test, how.params))
    count = flops_of(algorithm, state, first.data)
    sent = make_engine(algorithm, how.layout).transfer(
        state._replace(seed=np.uint32(0)), first.data, jax.tree.map(lambda leaf: leaf[0], visits)
    )
    for start in range(0, len(runs), size):
        call = dict(list(runs.items())[start : start + size])
        filled = [*call.values(), *[first] * (size - len(call))]  # their results are dropped
        entries = Entry(
            np.array([list(tables).index(id(run.data)) for run in filled], np.int32),
            np.array([run.seed for run in filled], np.uint32),
            {name: np.array([run.swept[name] for run in filled], float) for name in numbers},
        )
        _run_call(how, program, shared, entries, filled, list(call), count, sent)
    return note


def _fit(how, run_bytes, number):
    """(mesh, runs of a device at once, runs of a call, note) for so many runs."""
    mesh, fitting = how.mesh, how.memory // run_bytes
    if mesh is not None and mesh.size > number:
        mesh = client_mesh(list(mesh.devices.flat[:number]))
    devices = 1 if mesh is None else mesh.size
    usual = 1 if jax.default_backend() == "cpu" else max(fitting // devices, 1)
    at_once = min(how.at_once or usual, -(-number // devices))
    width = devices * at_once
    if fitting < width:
        raise ValueError(
            f"memory={how.memory} is out of range; give at least {width * run_bytes} bytes for "
            f"{at_once} at once on {devices} devices, or less of these"
        )
    calls = -(-number // (fitting // width * width))
    size = -(-number // (calls * width)) * width
    note = (
        f"{number} runs in a program, {size} in a call, {at_once} at once on each of {devices} "
        f"devices: {size * run_bytes / 1e6:.3g} of {how.memory / 1e6:.4g} MB"
    )
    return mesh, at_once, size, note


def _schedules(how, runs):
    told = {"cohort_size": how.cohort_size, "sampler": how.sampler, "work": how.work}
    return [Synchronous(run.data.counts(), run.local, seed=run.seed, **told) for run in runs]


def _run_call(how, program, shared, entries, runs, numbers, count, sent):
    """Runs as many as a call holds from their beginning to their end; reports the first ones."""
    mesh, flops = program.mesh, np.zeros(len(runs))
    put = partial(jax.device_put, device=divided(mesh, len(runs)))
    entries = put(entries)
    states = settle(mesh, begin_each(program, shared, entries))
    told = count, how.rounds, how.eval_every, bool(jax.tree.leaves(states.origin))
    windows = zip(*(draw_windows(each, *told) for each in _schedules(how, runs)), strict=True)
    following, done = next(windows), 0
    while following is not None:
        drawn, window = following, following[0].rounds
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(each.visits for each in drawn))
        order = Spread(how.layout).order(stacked.num_steps)
        placed = put(arrange(stacked, order, program.population.num_clients))
        for number in [window] if done else [0, window]:
            states, trained, tested = settle(
                mesh, advance_each(program, states, shared, entries, placed, np.int32(number))
            )
            if number:  # while the devices compute
                following = next(windows, None)
                flops += [each.flops for each in drawn]
            trained, tested = jax.device_get((trained if number else {}, tested))
            turns = (done + number) * how.cohort_size
            for at, run_number in enumerate(numbers):
                row = {
                    "round": done + number,
                    **{name: float(values[at]) for name, values in (trained | tested).items()},
                    "download_bytes": turns * sent.download,
                    "upload_bytes": turns * sent.upload,
                    "flops": float(flops[at]),
                }
                how.report(run_number, row)
        done += window
