"""Batched runs: many runs in one compiled program, which takes their differences as arguments.

Runs that can share a program are a group, which is computed in as many calls as the memory needs.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.core import Algorithm, Model, Population, Problem, Row
from fedjax_algos.core.checks import (
    as_model,
    check_callable,
    check_local,
    check_seed,
    check_whole,
)
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.reprs import describe
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.core.user_functions import check_initial
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.fingerprint import array_fingerprint, data_fingerprint
from fedjax_algos.engine.non_finite import NonFinite
from fedjax_algos.engine.placed.devices import Devices, client_mesh, replicate
from fedjax_algos.engine.slots import Layout, Placement
from fedjax_algos.engine.state import initial_state
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.batched.program import (
    UNTRACEABLE,
    Call,
    Entry,
    Program,
    Shared,
    call_size,
    constants_of,
    unreadable_rate,
)
from fedjax_algos.runs.identity import identify_rounds, identity
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE
from fedjax_algos.runs.recorder import (
    Recorder,
    follow,
    warn_of_divergence,
)
from fedjax_algos.runs.run import (
    RoundOptions,
    Rounds,
    Run,
    check_data,
    check_test_rows,
    flop_counter,
)
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver, as_checkpoints


class BatchedResult(NamedTuple):
    """The rows of many runs, and notes on the programs that computed them.

    Attributes:
      rows: one for each run and evaluation.
      notes: on the programs, one line each.
    """

    rows: list[Row]
    notes: list[str]

    def __repr__(self) -> str:
        return describe(self, rows=len(self.rows), notes=self.notes)


class BatchedOptions(RoundOptions, total=False):
    """The keywords of `run_batched`."""

    on_evaluation: Callable[[Row], None]
    on_end: Callable[[str, int, Model], None] | None
    checkpoints: Checkpoints | str | Path | None
    layout: Layout
    devices: Devices
    runs_per_device: int | None
    memory: int | None
    non_finite: NonFinite


def run_batched(
    factory: Callable[..., Algorithm],
    problem: Problem,
    runs: Sequence[Run],
    *,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_end: Callable[[str, int, Model], None] | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    layout: Layout = "auto",
    devices: Devices = None,
    runs_per_device: int | None = None,
    memory: int | None = None,
    non_finite: NonFinite = "exclude",
    **rounds: Unpack[RoundOptions],
) -> BatchedResult:
    """Computes what `simulate` gives for each run, up to rounding, in as few programs as possible.

    Seeds, client learning rates and swept floats are arguments of a program. Runs that differ in
    anything else (whole numbers, choices, objects, local work, shapes of the data) have programs of
    their own, one after another. So have runs that differ in a float whose value the algorithm
    reads in Python; a note says so. An argument has jax's default precision: in float32, `1 - beta`
    is rounded a little differently from Python's.

    Args:
      factory: `(problem, local, **hyperparameters) -> Algorithm`.
      problem: what is learned.
      runs: those whose data hold the same arrays of examples can share a program.
      on_evaluation: called with each row as it is measured, and first with those of checkpoints.
      on_end: called with the label, the seed and the last model of each run, as NumPy arrays.
      checkpoints: a folder, or `Checkpoints`, where the runs are saved and go on, as in `simulate`;
        those of each call have a folder in it.
      layout: of a cohort, as in `make_engine`.
      devices: of this process; the runs are divided over them. See `client_mesh`.
      runs_per_device: runs that a device computes at once. None is one on a CPU, where many copies
        of the weights only move through memory, and elsewhere as many as `memory` allows.
      memory: bytes for the runs of one call, which holds as many runs as fit. A run needs its
        `FederatedState` twice, before and after, and its dispatches until the next evaluation. The
        examples, which all runs share, and the needs of a local step are not counted. None is
        2**30, or what the runs that are computed at once need if this is more.
      non_finite: what is done with updates that are not finite, as in `make_engine`.
      **rounds: `cohort_size`, `rounds`, `sampler`, `work`, `failures`, `test`, `eval_every` and
        `params`, as in `simulate`; for `test` see also `Run.test_rows`.

    Returns:
      The rows of each run, with `method` (its label) and `seed` before the columns of `simulate`;
      `wall_seconds` is the time since all runs began. A run whose model is not finite has no rows
      after the one that shows it, and one warning names all such runs, as in `simulate`.

    Raises:
      ValueError: for arguments that `simulate` or the factory refuse, too little memory, or
        checkpoints of other runs.
      NonFiniteUpdateError: for an update that is not finite if `non_finite` is "error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    check_choice("non_finite", non_finite, get_args(NonFinite))
    check_callable("factory", factory, "give a function (problem, local, **options)")
    check_callable("on_evaluation", on_evaluation, "give a function of a row")
    loop = Rounds(**rounds)
    loop.check(len(runs))
    if runs_per_device is not None:
        check_whole("runs_per_device", runs_per_device)
    for data in {id(run.data): run.data for run in runs}.values():
        check_data(problem, data, loop.test)
    for run in runs:
        check_test_rows(run.test_rows, run.data)
    for run in runs:  # checks ranges while the values are concrete
        check_seed(run.seed)
        check_local(run.local)
        factory(problem, run.local, **run.hyperparameters)
    model = as_model(problem.init, loop.params)
    check_initial(model or jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0)))
    batch = _Batch(
        factory, problem, loop._replace(eval_every=min(loop.eval_every, loop.rounds), params=model),
        layout, client_mesh(devices), runs_per_device, memory, non_finite,
        as_checkpoints(checkpoints), on_evaluation, on_end,
    )  # fmt: skip
    notes: list[str] = []
    for group in _groups(dict(enumerate(runs)), frozenset()):
        notes += batch.run_group(group, frozenset())
    warn_of_divergence({batch.name(runs[i]): batch.rows[i] for i in sorted(batch.diverged)})
    return BatchedResult([row for index in range(len(runs)) for row in batch.rows[index]], notes)


def _traced_names(run: Run, static: frozenset[str]) -> list[str]:
    """The swept values of a run that are arguments of its program; those in `static` are not."""
    known = {CLIENT_LEARNING_RATE, *run.hyperparameters} - static
    return [name for name, value in run.swept.items() if isinstance(value, float) and name in known]


def _groups(runs: dict[int, Run], static: frozenset[str]) -> list[dict[int, Run]]:
    """Groups of runs that can share a program if the values named in `static` are constants."""
    groups: dict[Any, dict[int, Run]] = {}
    for index, run in runs.items():
        constants = constants_of(run.hyperparameters | run.swept, _traced_names(run, static))
        tested = None if run.test_rows is None else np.shape(run.test_rows)
        shapes = run.data.indices.shape, run.data.offsets.shape, tested
        examples = tuple(map(id, jax.tree.leaves(run.data.examples)))
        groups.setdefault((constants, shapes, examples), {})[index] = run
    return list(groups.values())


@dataclasses.dataclass
class _Batch:
    """What the runs of `run_batched` have in common, and their rows as they are measured."""

    factory: Callable[..., Algorithm]
    problem: Problem
    loop: Rounds  # whose params are a `Model` or None, and whose windows are no longer than the run
    layout: Layout
    mesh: Mesh | None
    runs_per_device: int | None
    memory: int | None  # bytes
    non_finite: NonFinite
    checkpoints: Checkpoints | None
    on_evaluation: Callable[[Row], None]
    on_end: Callable[[str, int, Model], None] | None
    rows: dict[int, list[Row]] = dataclasses.field(default_factory=dict)  # by index of the run
    diverged: set[int] = dataclasses.field(default_factory=set)
    started: float = dataclasses.field(default_factory=time.perf_counter)

    @staticmethod
    def name(run: Run) -> str:
        """A run in messages."""
        return f"{run.label}, seed {run.seed}"

    def cohorts(self, run: Run) -> Cohorts:
        """The cohorts of a run before its first round."""
        return self.loop.cohorts(run.data.counts(), run.local, run.seed)

    def run_group(self, runs: dict[int, Run], static: frozenset[str]) -> list[str]:
        """Runs a group, with a program for each value of what cannot be an argument; its notes."""
        try:
            return [self.run_program(runs, static)]
        except UNTRACEABLE:  # raised by the first call, before any row is reported
            names = sorted(_traced_names(next(iter(runs.values())), static))
            if not names:
                raise
        for constant in [*([name] for name in names), names]:
            first, *others = _groups(runs, static.union(constant))
            try:
                notes = [self.run_program(first, static.union(constant))]
            except UNTRACEABLE:
                if constant == names:
                    raise
                continue
            for other in others:
                notes += self.run_group(other, static.union(constant))
            return [f"{' and '.join(constant)}: read as a value, so a program for each", *notes]
        raise AssertionError("the last set of names returns or raises")

    def run_program(self, runs: dict[int, Run], static: frozenset[str]) -> str:
        """Runs a group that shares a program, and returns a note on it.

        Args:
          runs: by index. They differ in their seed, their data's tables and their traced values.
          static: names of swept values that are constants of the program.

        Raises:
          ValueError: for too little memory.
          UNTRACEABLE: if the algorithm reads a traced value in Python.
        """
        first, loop = next(iter(runs.values())), self.loop
        algorithm = self.factory(self.problem, first.local, **first.hyperparameters)
        clients = first.data.num_clients
        population = Population(clients, loop.cohort_size, len(first.data.indices))
        begin = partial(
            initial_state,
            algorithm,
            Placement(self.layout),
            population=population,
            num_rows=clients,
            non_finite=self.non_finite,
        )
        state = jax.eval_shape(begin, np.uint32(0), loop.params)
        dispatches = self.cohorts(first).dispatches(1)
        run_bytes = 2 * tree_bytes(state) + loop.eval_every * tree_bytes(dispatches)
        mesh, runs_per_device, size, note = call_size(
            self.mesh, self.runs_per_device, self.memory, len(runs), run_bytes
        )
        traced = _traced_names(first, static)
        program = self._program(first, traced, population, mesh, runs_per_device)
        tables = {_table(run): run for run in runs.values()}
        shared = self._share(mesh, list(tables.values()))
        one_round = jax.tree.map(lambda leaf: leaf[0], dispatches)
        transfer = count_transfer(algorithm, state, first.data, one_round)
        count = flop_counter(algorithm, state, first.data)
        keeping = bool(jax.tree.leaves(state.origin))
        one = jax.tree.map(lambda leaf: leaf[0, 0], dispatches)
        identify = partial(self._identity, algorithm, state, one, mesh)
        for start in range(0, len(runs), size):
            indices = list(runs)[start : start + size]
            own = [runs[index] for index in indices]
            filled = own + [first] * (size - len(own))  # of the repeated run there are no rows
            entries = Entry(
                np.array([list(tables).index(_table(run)) for run in filled], np.int32),
                np.array([run.seed for run in filled], np.uint32),
                {name: np.array([run.swept[name] for run in filled], float) for name in traced},
            )
            saver = RunSaver(_folder_of(self.checkpoints, indices), partial(identify, filled))
            cohorts = [self.cohorts(run) for run in filled]
            call = Call(program, shared, entries, cohorts, loop, saver)
            self._follow(indices, own, call, partial(call.stops, count, keeping, transfer))
        return note

    def _follow(self, indices, own, call, stops):
        """Computes the runs of a call, and hands on their rows and last models."""
        columns = [{"method": run.label, "seed": run.seed} for run in own]
        for index in indices:
            self.rows[index] = []

        def report(number: int, row: Row, state: Any) -> None:
            row = columns[number] | row
            self.rows[indices[number]].append(row)
            self.on_evaluation(row)

        recorder = Recorder(list(map(self.name, own)), self.non_finite, report, self.started)
        for _ in follow(stops(recorder), recorder, call.saver):
            pass
        self.started = min(self.started, recorder.started)
        self.diverged |= {indices[number] for number in recorder.diverged}
        if self.on_end is not None:
            models = jax.device_get(call.states.model)
            for number, run in enumerate(own):
                model = jax.tree.map(lambda leaf, i=number: leaf[i], models)
                self.on_end(run.label, run.seed, model)

    def _program(self, run, traced, population, mesh, runs_per_device):
        """The program of a run and of all that share it; what is traced is not part of it."""
        local = run.local
        if CLIENT_LEARNING_RATE in traced:
            rate = unreadable_rate if callable(local.learning_rate) else 0.0
            local = local._replace(learning_rate=rate)
        return Program(
            self.factory, self.problem, local, constants_of(run.hyperparameters, traced),
            population, self.layout, mesh, runs_per_device, self.non_finite,
        )  # fmt: skip

    def _share(self, mesh: Mesh | None, runs: list[Run]) -> Shared:
        """What all runs read, on all devices; `runs` has one run for each of their tables."""
        rows = [(run.data.indices, run.data.offsets, run.test_rows) for run in runs]
        indices, offsets, test_rows = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        data = FederatedData(runs[0].data.examples, indices, offsets)
        test = self.loop.test if test_rows is None else None
        return replicate(mesh, Shared(data, test, test_rows, self.loop.params))

    def _identity(self, algorithm, state, dispatch, mesh, runs):
        """By what a checkpoint of other runs is recognised."""
        loop, tables = self.loop, {_table(run): run for run in runs}
        of_tables = {key: _table_fingerprint(run) for key, run in tables.items()}
        return identity(
            algorithm,
            state,
            runs[0].data,
            dispatch,
            loop.test,
            runs=[[run.label, run.seed, of_tables[_table(run)]] for run in runs],
            **identify_rounds([self.cohorts(run) for run in runs], loop.rounds),
            initial_model=array_fingerprint(loop.params),
            rounds=loop.rounds,
            eval_every=loop.eval_every,
            non_finite=self.non_finite,
            layout=str(self.layout),
            devices=1 if mesh is None else mesh.size,
        )


def _table(run):
    """What runs that read the same examples have in common."""
    return id(run.data), id(run.test_rows)


def _table_fingerprint(run):
    data = data_fingerprint(run.data)
    return data if run.test_rows is None else f"{data} {array_fingerprint(run.test_rows)}"


def _folder_of(checkpoints, indices):
    """The checkpoints of a call, in a folder that is named after its runs."""
    if checkpoints is None:
        return None
    name = f"from-run-{min(indices)}-{array_fingerprint(np.array(indices))}"
    return checkpoints._replace(folder=Path(checkpoints.folder) / name)
