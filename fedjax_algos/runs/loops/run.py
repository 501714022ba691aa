"""Defines a run: its arguments, their checks, the dispatches of its rounds, and its identity."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Required, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.analysis.costs import count_flops, count_report_flops
from fedjax_algos.analysis.evaluation import CLIENT_COLUMNS, make_evaluate
from fedjax_algos.analysis.flops import UncountedError
from fedjax_algos.analysis.rows import check_evaluations
from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_memory
from fedjax_algos.base.reprs import describe, describe_tree, printable
from fedjax_algos.core import Algorithm, Batch, Dispatch, Local, Model, Params, Population, Problem
from fedjax_algos.core.checks import check_kind, check_whole
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.data.description import held_labels
from fedjax_algos.data.federated_data import FederatedData, check_examples
from fedjax_algos.engine import fingerprint
from fedjax_algos.engine.checks import check_no_repeats
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.sharded_data import RUN_DATA_FIX, RunData, data_shapes
from fedjax_algos.engine.state import FederatedState, HostClientState
from fedjax_algos.models.outputs import check_labels
from fedjax_algos.participation import Cohorts, Failures, LocalWork, Sampler, uniform
from fedjax_algos.participation.cohorts import Position
from fedjax_algos.participation.sampling import expected_size
from fedjax_algos.wrappers import Accountant, Sampling, accountant_of

CLIENT_LEARNING_RATE = "client_learning_rate"  # its name in specs, grids and settings
_IN_WORDS = {  # facts stored as hashes
    "algorithm": "the algorithm, its options or the model",
    "initial_model": "the initial model, which the seed draws",
    "partition_and_values": "the clients' examples",
    "partition_sha256": "the clients' examples",
    "test": "the test examples",
    "first_cohorts": "the cohorts of the first rounds, which the seed and the sampler draw",
    "first_steps": "the local work in the first rounds",
    "first_learning_rates": "the learning rates of the first rounds",
    "first_arrivals": "which clients answer in the first rounds",
    "own_functions": "what functions of your own compute",
    "plan": "the plan of the virtual clock, which depends on its seconds",
    "runs": "the runs, or their clients' examples",
}
_BY_ROUND = ("first_cohorts", "first_steps", "first_learning_rates", "first_arrivals")
_HASH = re.compile(r"\b[0-9a-f]{16}")
_SHOWN = 80  # characters of a value
_COMPARED = 20  # rounds
FlopCounter = Callable[[Dispatch], np.ndarray]  # the operations of each dispatch


class Run(NamedTuple):
    """One of many runs.

    Attributes:
      label: the column `method` of its rows.
      seed: the seed of the run.
      data: the clients' examples.
      local: the clients' training.
      hyperparameters: the options of the algorithm's factory.
      swept: the values that distinguish it from the other runs, by name: some hyperparameters,
        "client_learning_rate", or any other hashable value that its `local` was made from.
      test_rows: int32[rows], the rows of `data.examples` to evaluate on. None for the test examples
        that all runs share.
    """

    label: str
    seed: int
    data: FederatedData
    local: Local
    hyperparameters: dict[str, Any]
    swept: dict[str, Any]
    test_rows: np.ndarray | None = None

    def __repr__(self) -> str:
        return describe(self, label=repr(self.label), seed=self.seed, swept=self.swept)


class RoundOptions(TypedDict, total=False):
    """The keywords of `simulate` that describe its rounds."""

    cohort_size: Required[int]
    rounds: Required[int]
    sampler: Sampler
    work: LocalWork | None
    failures: Failures | None
    test: Batch | None
    eval_every: int
    params: Params | Model | None


class Rounds(NamedTuple):
    """The arguments of runs in rounds; `simulate` documents the fields."""

    cohort_size: int
    rounds: int
    sampler: Sampler = uniform
    work: LocalWork | None = None
    failures: Failures | None = None
    test: Batch | None = None
    eval_every: int = 10
    params: Params | Model | None = None

    def check(self, num_runs: int = 1) -> None:
        """Raises ValueError for numbers out of range, or rows that do not fit into memory."""
        check_whole("rounds", self.rounds)
        check_whole("eval_every", self.eval_every)
        evaluations = num_runs * -(-self.rounds // self.eval_every)
        check_evaluations(evaluations, "give fewer runs or rounds, or a larger eval_every")

    def population(self, data: RunData) -> Population:
        """Returns the facts about the clients of a run."""
        size = expected_size(self.sampler, self.cohort_size)
        return Population(data.num_clients, size, int(data.counts().sum()))

    def accountant(self, data: RunData, algorithm: Algorithm) -> Accountant | None:
        """Returns the accountant of a run; None if its algorithm is not private."""
        drawn = self.sampler, data.num_clients, self.cohort_size, self.rounds
        return accountant_of(algorithm, Sampling(*drawn, int(data.counts().min())))

    def cohorts(self, data: RunData, algorithm: Algorithm, local: Local, seed: int) -> Cohorts:
        """Returns the cohorts of a run before its first round, or of candidates for them."""
        selection, size, counts = algorithm.selection, self.cohort_size, data.counts()
        candidates = size if selection is None else selection.num_candidates(size)
        if selection is not None and candidates > (most := len(counts)):
            found = f"a cohort of {size} is chosen among {candidates} candidates"
            raise ValueError(f"{found}; give at most {most}, the number of clients")
        return Cohorts(
            counts,
            local,
            cohort_size=candidates,
            seed=seed,
            sampler=self.sampler,
            work=self.work,
            failures=self.failures,
            labels=partial(held_labels, data),
            chosen=None if selection is None else size,
        )


class Window(NamedTuple):
    """The rounds between two evaluations."""

    rounds: int
    dispatches: Dispatch  # leaves [longest, cohort]: all windows have the longest one's shape
    flops: float  # of all its dispatches
    position: Position  # of the cohorts after them


def draw_windows(
    cohorts: Cohorts, count: FlopCounter, end: int, eval_every: int, state: FederatedState
) -> Iterator[Window]:
    """Yields the windows from the cohorts' next round to `end`, drawing each on demand."""
    longest, num_clients = min(eval_every, end), len(cohorts.counts)
    for done in range(cohorts.next_round, end, longest):
        number = min(longest, end - done)
        dispatches = cohorts.dispatches(number)
        if jax.tree.leaves(state.origin):  # clients keep state
            check_no_repeats(dispatches, num_clients)
        flops = float(np.where(dispatches.client < num_clients, count(dispatches), 0).sum())
        padded = take(dispatches, np.arange(longest) % number)
        yield Window(number, padded, flops, cohorts.position())


def flop_counter(algorithm: Algorithm, state: FederatedState, data: Any) -> FlopCounter:
    """Builds a counter of a dispatch's operations; if it cannot count, it warns and gives NaN."""
    try:
        training = count_flops(algorithm, state, data_shapes(data)).of
        if algorithm.selection is None:
            return training
        reporting = count_report_flops(algorithm, state, data_shapes(data)).of
        return partial(_flops_of_candidates, algorithm.selection, reporting, training)
    except (UncountedError, KeyError, AttributeError) as error:  # of jaxprs of another jax version
        warnings.warn(f"the column flops will hold NaN: {error}", stacklevel=3)
        return lambda dispatches: np.full(dispatches.client.shape, np.nan)


def _flops_of_candidates(selection, reporting, training, dispatches):
    """Counts reports, and spreads the chosen clients' training over the candidates that answer."""
    filled, flops = dispatches.num_examples > 0, training(dispatches)
    arrives = filled if isinstance(dispatches.arrives, tuple) else filled & dispatches.arrives
    if len(np.unique(flops[arrives])) > 1:  # only the device knows which ones train
        flops = np.full_like(flops, np.nan)
    most = selection.cohort_size(dispatches.client.shape[-1])
    answered = arrives.sum(-1, keepdims=True)
    share = np.minimum(answered, most) / np.maximum(answered, 1)
    return reporting(dispatches) + np.where(arrives, flops * share, 0)


def check_data(problem: Problem, data: RunData, test: Batch | None) -> None:
    """Checks a run's examples and labels; examples in files are checked when they are read."""
    check_kind("data", data, RunData, RUN_DATA_FIX)
    if isinstance(data, FederatedData):
        check_labels(problem, "the clients' examples", data.examples)
    if test is None:
        return
    total, examples = check_examples("test examples", test), data_shapes(data).examples

    def kind(leaf):
        return np.shape(leaf)[1:], jnp.issubdtype(leaf.dtype, jnp.floating)

    fits = total and jax.tree.map(kind, test) == jax.tree.map(kind, examples)
    found = f"the test examples are {describe_tree(test)}"
    fix = "give at least one, with the names, shapes and types of the clients'"
    require(fits, f"{found}; {fix}, {describe_tree(examples)}, or test=None")
    check_labels(problem, "the test examples", test)


def check_metrics(problem: Problem, test: Batch, target_metric: str = "accuracy") -> None:
    """Checks that evaluations measure the accuracy and the target metric."""
    check_labels(problem, "the test examples", test)
    model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    measured = jax.eval_shape(make_evaluate(problem), model, test)
    for name in ("accuracy", target_metric):
        check_target_metric(name, [*measured, *CLIENT_COLUMNS.values()])


def check_test_rows(test_rows: Any, data: FederatedData) -> None:
    """Raises ValueError unless `test_rows` is None or int[rows] of existing examples."""
    if test_rows is None:
        return
    rows, last = np.asarray(test_rows), len(jax.tree.leaves(data.examples)[0]) - 1
    whole = rows.ndim == 1 and rows.size and np.issubdtype(rows.dtype, np.integer)
    if not (whole and 0 <= rows.min() <= rows.max() <= last):
        fix = f"give a list of at least one whole number from 0 to {last}, of the examples"
        raise ValueError(f"test_rows is {describe_tree(rows)}; {fix}")


def check_room_for_rows(state: FederatedState, num_rows: int) -> None:
    """Raises ValueError if this many client rows do not fit into host memory or on disk."""
    what = f"the state of {num_rows} clients"
    if isinstance(state.clients, HostClientState):
        fix = "give fewer clients or rounds, or a smaller model, or keep client_state on disk"
        check_memory(what, num_rows * tree_bytes(state.clients.blank), fix)
    if isinstance(state.clients, DiskClientState):
        state.clients.files.check_room(what, num_rows)


def identity(
    algorithm: Algorithm,
    state: FederatedState,
    data: RunData,
    dispatch: Dispatch,
    test: Batch | None,
    **facts: Any,
) -> dict[str, Any]:
    """Returns, as JSON, what a checkpoint must match to be resumed; `dispatch` is any one."""
    return {
        "algorithm": fingerprint.algorithm_fingerprint(algorithm, state, data, dispatch),
        "clients": data.num_clients,
        "examples": describe_tree(data_shapes(data).examples),
        "test": fingerprint.examples_fingerprint(test),
        **facts,
    }


def identity_of_rounds(
    algorithm: Algorithm,
    state: FederatedState,
    data: RunData,
    loop: Rounds,
    cohorts: Sequence[Cohorts],
    end: int,
    **facts: Any,
) -> dict[str, Any]:
    """Returns the identity of runs in rounds until `end`, with hashes of the first cohorts."""
    number = min(end, _COMPARED)
    drawn = [each.dispatches(number) for each in cohorts]
    parts: dict[str, Any] = {
        "first_cohorts": [each.client for each in drawn],
        "first_learning_rates": [each.learning_rate for each in drawn],
        "first_steps": [(each.num_steps, each.full_steps, each.first_step) for each in drawn],
        "first_arrivals": [each.arrives for each in drawn],
    }
    by_round = {
        name: [fingerprint.array_fingerprint(take(part, t)) for t in range(number)]
        for name, part in parts.items()
        if jax.tree.leaves(part)
    }
    facts = by_round | facts | {"rounds": loop.rounds, "eval_every": loop.eval_every}
    return identity(algorithm, state, data, take(drawn[0], (0, 0)), loop.test, **facts)


class OtherRunError(ValueError):
    """A checkpoint or folder belongs to another run; `lines` has one line for each difference."""

    def __init__(self, what: str, lines: Iterable[str], fix: str):
        super().__init__("\n  ".join([f"{what}:", *lines, fix]))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], place: str) -> list[str]:
    """Returns a line for each fact that differs; `there` is at `place`, "in the checkpoint"."""
    lines = []
    for name in dict.fromkeys([*there, *here]):
        one, other = there.get(name), here.get(name)
        if name in _BY_ROUND and one and other:  # compares the rounds that both have
            one, other = zip(*zip(one, other, strict=False), strict=True)
        if one == other:
            continue
        label = printable(name, _SHOWN)
        if name in _IN_WORDS and _HASH.search(f"{one} {other}"):
            lines.append(f"{_IN_WORDS[name]}: different {place}")
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            lines += [f"{label}, {line}" for line in differences(one, other, place)]
        else:
            texts = ("none" if v is None else printable(v, _SHOWN) for v in (one, other))
            lines.append(f"{label}: {next(texts)} {place}, {next(texts)} here")
    return lines


def check_identity(
    there: dict[str, Any], here: dict[str, Any], position: int, folder: object
) -> None:
    """Raises OtherRunError for another run's checkpoint, or one between this run's evaluations."""
    ignored, checkpoint = {"rounds": 0, "devices": 0}, f"the checkpoint in {folder}"
    if there.get("devices") != here.get("devices"):
        ignored["slots"] = 0
    lines = differences(there | ignored, here | ignored, "in the checkpoint")
    rounds, done = here.get("rounds"), position - here.get("start_round", 0)
    if rounds is not None and there.get("rounds") != rounds and not lines:
        line = f"rounds: {there.get('rounds')} in the checkpoint, {rounds} here; "
        if done > rounds:
            lines.append(f"{line}it was made after {done}, and no earlier one is kept")
        elif done % here["eval_every"] and done != rounds:
            lines.append(f"{line}{off_grid(done, here['eval_every'])}")
    if lines:
        fix = "Give the same run, or another folder"
        raise OtherRunError(f"{checkpoint} is of another run", lines, fix)
    warn_of_devices(checkpoint, there.get("devices"), here.get("devices"))


def warn_of_devices(what: str, there: int | None, here: int | None) -> None:
    """Warns if a run resumes on another number of devices."""
    if there != here:
        change = f"is of {there} device(s), and the run goes on with {here}"
        warnings.warn(f"{what} {change}, which may round differently", stacklevel=4)


def off_grid(rounds: int, eval_every: int) -> str:
    """Explains why a run cannot be resumed for more rounds."""
    end = f"the run ended with an evaluation after {rounds} rounds"
    return f"{end}, not a multiple of eval_every={eval_every}, so a longer run has none there"
