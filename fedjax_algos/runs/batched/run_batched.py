"""Batched runs: many runs in one compiled program, which takes their differences as arguments."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, get_args

import jax
import numpy as np

from fedjax_algos.core import Algorithm, Batch, Model, Params, Problem, Row
from fedjax_algos.core.checks import (
    as_model,
    check_callable,
    check_local,
    check_seed,
    check_whole,
)
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.representation import describe
from fedjax_algos.core.user_functions import check_initial
from fedjax_algos.engine.non_finite import NonFinite
from fedjax_algos.engine.placed.devices import Devices, client_mesh
from fedjax_algos.engine.slots import Layout
from fedjax_algos.runs.batched.execution import (
    BatchedArguments,
    Recorder,
    Run,
    run_program,
    traced_names,
)
from fedjax_algos.runs.batched.program import UNTRACEABLE, constants_of
from fedjax_algos.runs.divergence import warn_of_divergence
from fedjax_algos.runs.inputs import check_data, check_evaluations, check_loop, check_test_rows
from fedjax_algos.runs.saving.checkpoints import Checkpoints, as_checkpoints
from fedjax_algos.schedules import LocalWork, Sampler, Synchronous, uniform


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


class BatchedOptions(TypedDict, total=False):
    """The keywords of `run_batched`."""

    cohort_size: Required[int]
    rounds: Required[int]
    sampler: Sampler
    work: LocalWork | None
    test: Batch | None
    eval_every: int
    params: Params | Model | None
    on_evaluation: Callable[[Row], None]
    on_end: Callable[[str, int, Model], None] | None
    checkpoints: Checkpoints | str | Path | None
    layout: Layout
    devices: Devices
    runs_per_device: int | None
    memory: int
    non_finite: NonFinite


def run_batched(
    factory: Callable[..., Algorithm],
    problem: Problem,
    runs: Sequence[Run],
    *,
    cohort_size: int,
    rounds: int,
    sampler: Sampler = uniform,
    work: LocalWork | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_end: Callable[[str, int, Model], None] | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    layout: Layout = "auto",
    devices: Devices = None,
    runs_per_device: int | None = None,
    memory: int | None = None,
    non_finite: NonFinite = "exclude",
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
      cohort_size: clients in a round.
      rounds: the number of rounds.
      sampler: draws the cohorts, as in `simulate`.
      work: how much of its local work a client does, as in `simulate`.
      test: the examples to evaluate on, or None; see `Run.test_rows`.
      eval_every: rounds between evaluations.
      params: replace the problem's own initialisation.
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
    check_loop(rounds, eval_every, on_evaluation)
    check_evaluations(len(runs) * -(-rounds // eval_every), "give fewer runs or evaluations")
    if runs_per_device is not None:
        check_whole("runs_per_device", runs_per_device)
    for data in {id(run.data): run.data for run in runs}.values():
        check_data(problem, data, test)
    for run in runs:
        check_test_rows(run.test_rows, run.data)
    for run in runs:  # checks ranges while the values are concrete
        check_seed(run.seed)
        check_local(run.local)
        factory(problem, run.local, **run.hyperparameters)
    cohorts: dict[str, Any] = {"cohort_size": cohort_size, "sampler": sampler, "work": work}
    recorder = Recorder(runs, cohort_size, on_evaluation, on_end, non_finite)

    def schedule(run: Run) -> Synchronous:
        return Synchronous(run.data.counts(), run.local, seed=run.seed, **cohorts)

    model = as_model(problem.init, params)
    check_initial(model or jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0)))
    arguments = BatchedArguments(
        factory, problem, schedule, cohort_size, rounds, min(eval_every, rounds), test, model,
        layout, client_mesh(devices), runs_per_device, memory, non_finite, recorder,
        as_checkpoints(checkpoints),
    )  # fmt: skip
    notes: list[str] = []
    for group in _groups(dict(enumerate(runs)), frozenset()):
        notes += _run_group(arguments, group, frozenset())
    names = {index: recorder.name(index) for index in sorted(recorder.diverged)}
    warn_of_divergence({name: recorder.histories[index] for index, name in names.items()})
    return BatchedResult([row for history in recorder.histories for row in history], notes)


def _groups(runs: dict[int, Run], static: frozenset[str]) -> list[dict[int, Run]]:
    """Groups of runs that can share a program if the values named in `static` are constants."""
    groups: dict[Any, dict[int, Run]] = {}
    for index, run in runs.items():
        constants = constants_of(run.hyperparameters | run.swept, traced_names(run, static))
        tested = None if run.test_rows is None else np.shape(run.test_rows)
        shapes = run.data.indices.shape, run.data.offsets.shape, tested
        examples = tuple(map(id, jax.tree.leaves(run.data.examples)))
        groups.setdefault((constants, shapes, examples), {})[index] = run
    return list(groups.values())


def _run_group(
    arguments: BatchedArguments, runs: dict[int, Run], static: frozenset[str]
) -> list[str]:
    """Runs a group, with one program for each value of what cannot be an argument; its notes."""
    try:
        return [run_program(arguments, runs, static)]
    except UNTRACEABLE:  # raised by the first call, before any row is reported
        names = sorted(traced_names(next(iter(runs.values())), static))
        if not names:
            raise
    for constant in [*([name] for name in names), names]:
        first, *others = _groups(runs, static.union(constant))
        try:
            notes = [run_program(arguments, first, static.union(constant))]
        except UNTRACEABLE:
            if constant == names:
                raise
            continue
        for other in others:
            notes += _run_group(arguments, other, static.union(constant))
        return [f"{' and '.join(constant)}: read as a value, so a program for each", *notes]
    raise AssertionError("the last set of names returns or raises")
