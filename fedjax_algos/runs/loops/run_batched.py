"""Batched runs: groups that share a program, computed in calls that fit into memory."""

import contextlib
import copy
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, get_args

import jax
import numpy as np

from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Model, Problem, Row, checks
from fedjax_algos.core.options import NonFinite, check_choice
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.placed.devices import ClientMesh, Devices, client_mesh, no_more_devices
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.pure_round import pure_round
from fedjax_algos.engine.slots import Layout
from fedjax_algos.runs.loops import program
from fedjax_algos.runs.loops.checkpoints import Checkpoints
from fedjax_algos.runs.loops.program import Call, RunGroup
from fedjax_algos.runs.loops.recorder import Recorder, follow, warn_of_non_finite
from fedjax_algos.runs.loops.run import (
    CLIENT_LEARNING_RATE,
    FlopCounter,
    RoundOptions,
    Rounds,
    Run,
    check_data,
    check_test_rows,
    flop_counter,
)

_MEMORY = 2**30  # bytes for the runs of one call, unless the runs computed at once need more
OnEnd = Callable[[str, int, Model], None]  # takes the label, the seed and the last model of a run


class BatchedResult(NamedTuple):
    """The `rows` of many runs, and `notes` on the programs that computed them, one line each."""

    rows: list[Row]
    notes: list[str]

    def __repr__(self) -> str:
        return describe(self, rows=len(self.rows), notes=self.notes)


class ProgramOptions(RoundOptions, total=False):
    """The keywords of `run_batched` for the computation."""

    layout: Layout
    devices: Devices
    runs_per_device: int | None
    memory: int | None
    non_finite: NonFinite


class BatchedOptions(ProgramOptions, total=False):
    """The keywords of `run_batched`."""

    on_evaluation: Callable[[Row], None]
    on_end: OnEnd | None
    checkpoints: Checkpoints | str | Path | None


def run_batched(
    factory: Callable[..., Algorithm],
    problem: Problem,
    runs: Sequence[Run],
    *,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_end: OnEnd | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    **options: Unpack[ProgramOptions],
) -> BatchedResult:
    """Computes `simulate` for each run, up to rounding, in as few programs as possible.

    Seeds, client learning rates and swept floats are arguments of a program, with JAX's default
    precision: in float32, `1 - beta` is rounded a little differently from Python's. Runs that
    differ in anything else (whole numbers, choices, objects, local work, shapes of the data) have
    separate programs. If Python reads a float, its values also have separate programs, and a note
    says so.

    Args:
      factory: `(problem, local, **hyperparameters) -> Algorithm`.
      problem: what is learned.
      runs: the runs; runs with the same arrays of examples can share a program.
      on_evaluation: called with each row as it is measured, after the rows of checkpoints.
      on_end: called with the label, the seed and the last model of each run, as NumPy arrays.
      checkpoints: as in `simulate`; the runs of each call have a folder in it.
      **options: `cohort_size`, `rounds`, `sampler`, `work`, `failures`, `test`, `eval_every` and
        `params` as in `simulate`, for `test` see also `Run.test_rows`; and
        `layout` and `non_finite` as in `make_engine`, by default "auto" and "exclude";
        `devices`, the devices that the runs are divided over, see `client_mesh`;
        `runs_per_device`, the runs that a device computes at once: None is one on a CPU, where many
        copies of the weights only move through memory, and elsewhere as many as `memory` allows;
        `memory`, bytes for the runs of one call. A call has as many runs as fit, with their
        `FederatedState` before and after, and their dispatches until the next evaluation. None is
        2**30, or more if the runs computed at once need it.

    Returns:
      The rows of each run, with `method` (its label) and `seed` before the columns of `simulate`;
      `wall_seconds` is the time since all runs began. The first row with a non-finite model is the
      run's last row, and one warning names all such runs, as in `simulate`.

    Raises:
      ValueError: for arguments that `simulate` or the factory refuses, too little memory, or
        checkpoints of other runs.
      NonFiniteUpdateError: for an update that is not finite if `non_finite` is "error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    return BatchedRuns(factory, problem, runs, **options).run(on_evaluation, on_end, checkpoints)


class BatchedRuns:
    """The runs of `run_batched`, checked and grouped before anything is trained."""

    def __init__(
        self,
        factory: Callable[..., Algorithm],
        problem: Problem,
        runs: Sequence[Run],
        *,
        layout: Layout = "auto",
        devices: Devices = None,
        runs_per_device: int | None = None,
        memory: int | None = None,
        non_finite: NonFinite = "exclude",
        **rounds: Unpack[RoundOptions],
    ):
        loop = Rounds(**rounds)
        loop.check(len(runs))
        check_choice("non_finite", non_finite, get_args(NonFinite))
        if runs_per_device is not None:
            checks.check_whole("runs_per_device", runs_per_device)
        for data in {id(run.data): run.data for run in runs}.values():
            check_data(problem, data, loop.test)
        fix = "give a function (problem, local, *, ...) -> Algorithm"
        for run in runs:  # checks ranges while the values are concrete
            check_test_rows(run.test_rows, run.data)
            checks.check_seed(run.seed)
            checks.check_local(run.local)
            options = run.hyperparameters
            checks.check_callable("factory", factory, fix, "problem", "local", **options)
            factory(problem, run.local, **options)
        model = checks.as_model(problem, loop.params)
        key = jax.eval_shape(jax.random.key, 0)
        checks.check_initial(model or jax.eval_shape(problem.init, key))
        self.factory, self.problem, self.runs, self.layout = factory, problem, runs, layout
        # `params` is a `Model` or None, and no window is longer than the run
        self.loop = loop._replace(eval_every=min(loop.eval_every, loop.rounds), params=model)
        self.mesh, self.runs_per_device = client_mesh(devices), runs_per_device
        self.memory, self.non_finite = memory, non_finite
        self.groups = self._grouped(dict(enumerate(runs)), frozenset())

    @property
    def in_order(self) -> list[Run]:
        """The runs in the order of their computation, program by program."""
        return [run for group in self.groups for run in group.runs.values()]

    def only(self, names: Collection[tuple[str, int]]) -> "BatchedRuns":
        """Keeps the runs with these labels and seeds."""
        chosen = copy.copy(self)
        runs = {i: run for i, run in enumerate(self.runs) if (run.label, run.seed) in names}
        chosen.groups = chosen._grouped(runs, frozenset())
        return chosen

    def run(
        self,
        on_evaluation: Callable[[Row], None],
        on_end: OnEnd | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
    ) -> BatchedResult:
        """Computes the runs; see `run_batched`."""
        checks.check_callable("on_evaluation", on_evaluation, "give a function of a row", "row")
        self.on_evaluation, self.on_end, self.checkpoints = on_evaluation, on_end, checkpoints
        self.started, self.rows = time.perf_counter(), dict[int, list[Row]]()  # by index of the run
        self.diverged: set[int] = set()
        notes = [note for group in self.groups for note in self._run_group(group)]
        by_name = {_name(self.runs[i]): rows for i, rows in sorted(self.rows.items())}
        warn_of_non_finite(by_name, {_name(self.runs[i]) for i in self.diverged})
        return BatchedResult([row for i in sorted(self.rows) for row in self.rows[i]], notes)

    def _grouped(self, runs: dict[int, Run], static: frozenset[str]) -> list[RunGroup]:
        """Groups runs that share a program if the values named in `static` are constants."""
        groups: dict[Any, dict[int, Run]] = {}
        for index, run in runs.items():
            values, traced = run.hyperparameters | run.swept, program.traced_names(run, static)
            tested = None if run.test_rows is None else np.shape(run.test_rows)
            shapes = run.data.indices.shape, run.data.offsets.shape, tested
            examples = tuple(map(id, jax.tree.leaves(run.data.examples)))
            key = program.constants_of(values, traced), shapes, examples
            groups.setdefault(key, {})[index] = run
        return [self._group(alike, static) for alike in groups.values()]

    def _group(self, runs: dict[int, Run], static: frozenset[str]) -> RunGroup:
        """Makes a group of runs; raises ValueError for too little memory."""
        first, loop = next(iter(runs.values())), self.loop
        local, data = first.local, first.data
        algorithm = self.factory(self.problem, local, **first.hyperparameters)
        population = loop.population(data)
        begin = pure_round(algorithm, self.layout, program.screening(self.non_finite)).init
        state = jax.eval_shape(partial(begin, population=population, params=loop.params), 0)
        dispatches = loop.cohorts(data, algorithm, local, first.seed).dispatches(1)
        run_bytes = 2 * tree_bytes(state) + loop.eval_every * tree_bytes(dispatches)
        limits = self.mesh, self.runs_per_device, self.memory
        mesh, runs_per_device, size, note = call_size(*limits, len(runs), run_bytes)
        traced = program.traced_names(first, static)
        if CLIENT_LEARNING_RATE in traced:  # it is not part of the program
            local = local._replace(learning_rate=float if callable(local.learning_rate) else 0.0)
        constants = program.constants_of(first.hyperparameters, traced)
        learned = self.factory, self.problem, local, constants, population
        placed = self.layout, mesh, runs_per_device, self.non_finite
        transfer = count_transfer(algorithm, state, data, take(dispatches, 0))
        tables = {program.table_of(run): run for run in runs.values()}
        computed = program.Program(*learned, *placed), loop, size, note
        made = algorithm, state, transfer, loop.accountant(data, algorithm)
        return RunGroup(runs, tables, static, *computed, *made)

    def _run_group(self, group: RunGroup) -> list[str]:
        """Runs a group, with a program for each value that cannot be traced; returns its notes."""
        names, groups = sorted(group.traced), [group]
        for constant in [[], *([name] for name in names), names]:
            if constant:
                groups = self._grouped(group.runs, group.static.union(constant))
            # the first call raises it, before any row is reported
            with contextlib.suppress(*() if constant == names else program.UNTRACEABLE):
                self._run_program(groups[0])
                break
        reason = f"{' and '.join(constant)}: read as a value, so a program for each"
        notes = [reason, groups[0].note] if constant else [group.note]
        for other in groups[1:]:
            notes += self._run_group(other)
        return notes

    def _run_program(self, group: RunGroup) -> None:
        """Runs a group, call by call; UNTRACEABLE if Python reads a traced value."""
        shared = group.shared()
        count = flop_counter(group.algorithm, group.state, group.first.data)
        for start in range(0, len(group.runs), group.size):
            indices = list(group.runs)[start : start + group.size]
            self._follow(Call(group, indices, self.checkpoints), shared, count)

    def _follow(self, call: Call, shared: program.ProgramInputs, count: FlopCounter) -> None:
        """Computes the runs of a call, and reports their rows and last models."""
        self.rows |= {index: [] for index in call.indices}

        def report(number: int, row: Row, state: Any) -> None:
            row = {"method": call.own[number].label, "seed": call.own[number].seed} | row
            self.rows[call.indices[number]].append(row)
            self.on_evaluation(row)

        recorder = Recorder(list(map(_name, call.own)), self.non_finite, report, self.started)
        for _ in follow(call.stops(shared, count, recorder), recorder, call.saver):
            pass
        self.started = min(self.started, recorder.started)
        self.diverged |= {call.indices[number] for number in recorder.diverged}
        if self.on_end is not None:
            models = fetch(call.states.model)
            for number, run in enumerate(call.own):
                self.on_end(run.label, run.seed, take(models, number))


def call_size(
    mesh: ClientMesh | None, at_once: int | None, memory: int | None, total: int, run_bytes: int
) -> tuple[ClientMesh | None, int, int, str]:
    """Returns the devices, runs at once on each, runs of a call, and a note; checks the memory.

    `at_once` None is one run on each device of a CPU, else as many as fit; `total` runs are divided
    over the calls.
    """
    mesh = no_more_devices(mesh, total)
    devices, available = 1 if mesh is None else mesh.size, memory or _MEMORY
    default = 1 if jax.default_backend() == "cpu" else max(available // run_bytes // devices, 1)
    at_once = min(at_once or default, -(-total // devices))
    width = devices * at_once
    least = width * run_bytes
    if memory is not None:
        checks.check_whole("memory", memory, least, sys.maxsize)
    elif available < least:
        available, what = least, f"the states of {at_once} runs at once"
        fix = "give fewer clients, runs_per_device or devices"
        check_device_memory(what, at_once * run_bytes, fix, devices=devices)
    calls = -(-total // (available // run_bytes // width * width))
    runs = -(-total // (calls * width)) * width
    note = f"{total} runs in a program, {runs} in a call, {at_once} at once on each of {devices} "
    note += f"devices: {runs * run_bytes / 1e6:.3g} of {available / 1e6:.4g} MB"
    return mesh, at_once, runs, note


def _name(run):
    return f"{run.label}, seed {run.seed}"
