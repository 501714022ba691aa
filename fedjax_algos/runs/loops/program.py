"""Compiles batched runs into one program; the values that differ between runs are arguments."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.base.errors import prefix_errors
from fedjax_algos.core import Algorithm, Batch, Local, Model, Population, Problem
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.trees import take
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.fingerprint import array_fingerprint, data_fingerprint
from fedjax_algos.engine.non_finite import (
    NonFiniteUpdateError,
    all_finite,
    check_excluded,
    run_rounds,
    without_screening,
)
from fedjax_algos.engine.placed import devices
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.pure_round import pure_round
from fedjax_algos.engine.slots import Layout, mark_equal_steps
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation import Cohorts
from fedjax_algos.participation.cohorts import Position, common_steps
from fedjax_algos.runs.loops import recorder as recording
from fedjax_algos.runs.loops.checkpoints import RunSaver, fill
from fedjax_algos.runs.loops.recorder import Recorder, Stop
from fedjax_algos.runs.loops.run import (
    CLIENT_LEARNING_RATE,
    FlopCounter,
    Rounds,
    Run,
    draw_windows,
    identity_of_rounds,
)
from fedjax_algos.wrappers import Accountant


class ProgramInputs(NamedTuple):
    """The inputs that all runs of a program read, on every device."""

    data: FederatedData  # indices [partitions, assigned], offsets [partitions, num_clients + 1]
    test: Batch | None  # None without test examples, or if each partition has test rows
    test_rows: Any  # int32[partitions, rows] of the examples, or None
    params: Model | None


class Entry(NamedTuple):
    """The arguments that differ between runs, leaves [runs] on the host."""

    partition: Any  # int32[]: its row in the shared data
    seed: Any  # uint32[]
    numbers: dict[str, Any]  # float[] each: swept hyperparameters and the client learning rate


Constants = frozenset[tuple[str, type, Any]]  # with types, because 1, 1.0 and True are equal


def constants_of(values: Mapping[str, Any], traced: Collection[str]) -> Constants:
    """Returns the values that are part of a program; values in `traced` are its arguments."""
    return frozenset((n, type(value), value) for n, value in values.items() if n not in traced)


def screening(non_finite: NonFinite) -> NonFinite:
    """Returns the mode on the devices: with "error" they exclude updates, and the host raises."""
    return "exclude" if non_finite == "error" else non_finite


class Program(NamedTuple):
    """The static part of a compilation; with equal shapes, equal programs share a compilation."""

    factory: Callable[..., Algorithm]
    problem: Problem
    local: Local
    constants: Constants  # the hyperparameters that are not arguments
    population: Population
    layout: Layout
    mesh: devices.ClientMesh | None
    runs_per_device: int
    non_finite: NonFinite

    def round_of(self, numbers):
        """Builds a round of a run; `numbers` are traced floats, see `Entry`."""
        # weakly typed, like Python's numbers, so params of another precision keep theirs
        numbers = {name: jnp.asarray(0.0).at[()].set(value) for name, value in numbers.items()}
        local, rate = self.local, numbers.pop(CLIENT_LEARNING_RATE, None)
        if rate is not None:
            in_steps = callable(local.learning_rate)  # then a call raises: no tracer is a float
            local = local._replace(learning_rate=(lambda _: float(rate)) if in_steps else rate)
        constants = {name: value for name, _, value in self.constants}
        algorithm = self.factory(self.problem, local, **constants, **numbers)
        return pure_round(algorithm, self.layout, screening(self.non_finite))

    def advance(self, shared_and_rounds, state, entry, dispatches):
        """Runs 0 or more rounds; returns the state, means of training and tests, and finiteness."""
        (shared, rounds), run_round = shared_and_rounds, self.round_of(entry.numbers)
        examples, indices, offsets = shared.data
        data = FederatedData(examples, indices[entry.partition], offsets[entry.partition])
        state, trained = run_rounds(without_screening(run_round), state, data, dispatches, rounds)
        test, tested = shared.test, {}
        if shared.test_rows is not None:
            test = take(examples, shared.test_rows[entry.partition])
        if test is not None:
            values = make_evaluate(run_round.algorithm.problem)(state.model, test)
            tested = {f"test_{name}": mean.value() for name, mean in values.items()}
        trained = {name: mean.value() for name, mean in trained.items()}
        return state, trained, tested, all_finite(state.server.params)

    def of_each(self, function, shared, *inputs):
        """Maps `function(shared, *inputs)` over runs; other leaves are [runs, ...]."""

        def share(shared, inputs):
            size = None if self.runs_per_device == 1 else self.runs_per_device
            return jax.lax.map(lambda each: function(shared, *each), inputs, batch_size=size)

        if self.mesh is None:
            return share(shared, inputs)
        split = PartitionSpec(devices.AXIS)
        specs: Any = {"in_specs": (PartitionSpec(), split), "out_specs": split}
        return jax.shard_map(share, mesh=self.mesh.mesh, check_vma=False, **specs)(shared, inputs)


@partial(jax.jit, static_argnums=0)
def begin_each(program, shared, entries):
    """Makes the first states of all runs, leaves [runs, ...]; the program is static."""

    def begin(shared, entry):
        return program.round_of(entry.numbers).init(entry.seed, program.population, shared.params)

    return program.of_each(begin, shared, entries)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def advance_each(program, states, shared, entries, dispatches, rounds):
    """Maps `Program.advance` over runs, leaves [runs, ...]; consumes states. `rounds`: int32[]."""
    return program.of_each(program.advance, (shared, rounds), states, entries, dispatches)


UNTRACEABLE = (  # Python reads a traced value
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def traced_names(run: Run, static: frozenset[str]) -> list[str]:
    """Names a run's swept values that are arguments of its program, except in `static`."""
    known = {CLIENT_LEARNING_RATE, *run.hyperparameters} - static
    return [name for name, value in run.swept.items() if isinstance(value, float) and name in known]


class RunGroup(NamedTuple):
    """Runs that share a program."""

    runs: dict[int, Run]  # by index
    tables: dict[Any, Run]  # one of the runs for each table of examples, see `table_of`
    static: frozenset[str]  # names of swept values that are constants of the program
    program: Program
    loop: Rounds
    size: int  # runs of a call
    note: str
    algorithm: Algorithm  # of the first run
    state: FederatedState  # the shapes of its first state
    transfer: Transfer
    accountant: Accountant | None

    @property
    def first(self) -> Run:
        """Any of the runs."""
        return next(iter(self.runs.values()))

    @property
    def traced(self) -> list[str]:
        """The names of the swept values that are arguments of the program."""
        return traced_names(self.first, self.static)

    def shared(self) -> ProgramInputs:
        """Puts the inputs of all runs on every device."""
        rows = [(run.data.indices, run.data.offsets, run.test_rows) for run in self.tables.values()]
        indices, offsets, test_rows = stack(rows)
        data = FederatedData(self.first.data.examples, indices, offsets)
        test = self.loop.test if test_rows is None else None
        inputs = ProgramInputs(data, test, test_rows, self.loop.params)
        return devices.replicate(self.program.mesh, inputs)

    def cohorts(self, runs: Sequence[Run]) -> list[Cohorts]:
        """Returns the cohorts of some runs before their first round."""
        algorithm, draw = self.algorithm, self.loop.cohorts
        return [draw(run.data, algorithm, run.local, run.seed) for run in runs]


class Call:
    """Runs of one call of a program, and their stops; runs beyond `own` only fill the call."""

    states: FederatedState  # after the last stop; leaves [runs, ...]

    def __init__(self, group: RunGroup, indices: list[int], checkpoints: Any):
        self.group, self.indices = group, indices
        self.own = [group.runs[index] for index in indices]
        self.filled = self.own + [group.first] * (group.size - len(indices))
        self.cohorts = group.cohorts(self.filled)
        name = f"from-run-{min(indices)}-{array_fingerprint(np.array(indices))}"
        self.saver = RunSaver(checkpoints, self._identity, name)

    def stops(
        self, shared: ProgramInputs, count: FlopCounter, recorder: Recorder
    ) -> Iterator[Stop]:
        """Yields the evaluations from the start, or from the checkpoint."""
        group, program, loop = self.group, self.group.program, self.group.loop
        divide = partial(devices.put_state, program.mesh, rows=True)
        numbers = {n: np.array([run.swept[n] for run in self.filled], float) for n in group.traced}
        tables, seeds = [*group.tables], np.array([run.seed for run in self.filled], np.uint32)
        partitions = np.array([tables.index(table_of(run)) for run in self.filled], np.int32)
        entries = divide(Entry(partitions, seeds, numbers))
        self.states = devices.wait_on_cpu(program.mesh, begin_each(program, shared, entries))
        position = stack([each.position() for each in self.cohorts])
        flops, done, saved = np.zeros(group.size), 0, self.saver.restore()
        if saved is not None:
            done = saved.position
            like = stack([each.position().after(done) for each in self.cohorts])
            # runs that fill the call repeat the first one; their number depends on the devices
            index = np.arange(group.size) * (np.arange(group.size) < len(self.own))
            filled = take(fill(self._arrays(like, flops), saved.arrays), index)
            self.states, flops = divide(filled["states"]), filled["flops"]
            for number, each in enumerate(self.cohorts):
                each.go_to(take(filled["cohorts"], number))
            recorder.restore(saved, None)
        if recorder.ended:
            return
        counts = np.concatenate([each.counts for each in self.cohorts])
        common = common_steps(group.first.local, counts), program.population.num_clients
        arguments = count, loop.rounds, loop.eval_every, group.state
        windows = zip(*(draw_windows(each, *arguments) for each in self.cohorts), strict=True)
        following = next(windows, None)
        while following is not None:
            drawn, window = following, following[0].rounds
            dispatches = stack([each.dispatches for each in drawn])
            placed = divide(mark_equal_steps(dispatches, dispatches, *common))
            for rounds in [window] if done else [0, window]:  # 0: evaluates the first models
                inputs = self.states, shared, entries, placed, np.int32(rounds)
                advanced = advance_each(program, *inputs)
                self.states, trained, tested, finite = devices.wait_on_cpu(program.mesh, advanced)
                arrays = None
                if rounds:  # while the devices compute
                    following, done = next(windows, None), done + rounds
                    flops = flops + [each.flops for each in drawn]
                    position = stack([each.position for each in drawn])
                    arrays = partial(self._arrays, position, flops)
                reports = recording.reported(group.algorithm, self.states.server, batched=True)
                values = trained if rounds else {}, reports, tested, self.states.excluded, finite
                measure = partial(_measure, recorder, *fetch(values))
                sent = reports.get("uploads", [None] * group.size)
                due: list[Any] = []
                for i in range(len(self.own)):
                    counted = done, take(position, i), group.transfer, float(flops[i]), sent[i]
                    due.append((i, recording.costs_of_rounds(*counted, group.accountant)))
                yield Stop(done, due, measure, self.states, done == loop.rounds, arrays)

    def _arrays(self, positions: Position, flops: np.ndarray) -> dict[str, Any]:
        """Returns the arrays of a checkpoint for the call's own runs, leaves [runs, ...]."""
        arrays = {"states": fetch(self.states), "cohorts": positions, "flops": flops}
        return take(arrays, slice(len(self.own)))

    def _identity(self):
        """Returns what a checkpoint must match to be resumed."""
        group, program = self.group, self.group.program
        fingerprints = {}
        for key, run in {table_of(run): run for run in self.own}.items():
            rows = "" if run.test_rows is None else f" {array_fingerprint(run.test_rows)}"
            fingerprints[key] = data_fingerprint(run.data) + rows
        shared = group.algorithm, group.state, self.own[0].data, group.loop
        return identity_of_rounds(
            *shared,
            group.cohorts(self.own),
            group.loop.rounds,
            runs=[[run.label, run.seed, fingerprints[table_of(run)]] for run in self.own],
            initial_model=array_fingerprint(group.loop.params),
            non_finite=program.non_finite,
            layout=str(program.layout),
            devices=1 if program.mesh is None else program.mesh.size,
        )


def _measure(recorder, trained, reports, tested, excluded, finite, number) -> recording.Measured:
    """Selects one run's measurements from the values of all runs."""
    excluded = take(excluded, number)
    with prefix_errors(f"{recorder.names[number]}: ", NonFiniteUpdateError):
        check_excluded(recorder.non_finite, excluded)
    parts = (jax.tree.map(float, take(part, number)) for part in (trained, reports, tested))
    return recording.joined(*parts), recording.count_excluded(excluded), finite[number]


def stack(trees):
    """Stacks several trees into one, with leaves [trees, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def table_of(run):
    """Returns a key shared by runs that read the same examples."""
    return id(run.data), id(run.test_rows)
