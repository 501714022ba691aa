"""The compiled program of batched runs, with their differences as arguments, and its calls."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.core import Algorithm, Batch, Local, Model, Population, Problem
from fedjax_algos.core.options import NonFinite
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.fingerprint import array_fingerprint, data_fingerprint
from fedjax_algos.engine.non_finite import all_finite, check_excluded, looking, run_rounds
from fedjax_algos.engine.placed.devices import (
    AXIS,
    ClientMesh,
    no_more_devices,
    put,
    row_sharding,
    wait_on_cpu,
)
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.pure_round import pure_round
from fedjax_algos.engine.slots import Layout, mark_equal_steps
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation import Cohorts
from fedjax_algos.participation.cohorts import Position, common_steps
from fedjax_algos.runs.loops import recorder as recording
from fedjax_algos.runs.loops.checkpoints import RunSaver, as_checkpoints, fill
from fedjax_algos.runs.loops.identity import identity_of_rounds
from fedjax_algos.runs.loops.recorder import Due, Recorder, Stop
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE, FlopCounter, Rounds, Run, draw_windows

_MEMORY = 2**30  # bytes for the runs of one call, unless the runs computed at once need more


class Shared(NamedTuple):
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
    """Returns the mode of the devices: for "error" they exclude, and the host raises."""
    return "exclude" if non_finite == "error" else non_finite


class Program(NamedTuple):
    """Everything but shapes that a compilation depends on. Equal programs share a compilation."""

    factory: Callable[..., Algorithm]
    problem: Problem
    local: Local
    constants: Constants  # the hyperparameters that are not arguments
    population: Population
    layout: Layout
    mesh: ClientMesh | None
    runs_per_device: int
    non_finite: NonFinite

    def round_of(self, numbers):
        """Builds a round of a run; `numbers` are traced floats, see `Entry`."""
        # weakly typed, like Python's numbers, so params of another precision keep theirs
        numbers = {name: jnp.asarray(0.0).at[()].set(value) for name, value in numbers.items()}
        local, rate = self.local, numbers.pop(CLIENT_LEARNING_RATE, None)
        if rate is not None and not callable(local.learning_rate):
            local = local._replace(learning_rate=rate)
        constants = {name: value for name, _, value in self.constants}
        algorithm = self.factory(self.problem, local, **constants, **numbers)
        return pure_round(algorithm, self.layout, screening(self.non_finite))

    def advance(self, shared_and_rounds, state, entry, dispatches):
        """Runs 0 or more rounds; returns the state, means of training and tests, and finiteness."""
        (shared, rounds), run_round = shared_and_rounds, self.round_of(entry.numbers)
        examples, indices, offsets = shared.data
        data = FederatedData(examples, indices[entry.partition], offsets[entry.partition])
        state, trained = run_rounds(looking(run_round), state, data, dispatches, rounds)
        test, tested = shared.test, {}
        if shared.test_rows is not None:
            rows = shared.test_rows[entry.partition]
            test = jax.tree.map(lambda leaf: leaf[rows], examples)
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
        split = PartitionSpec(AXIS)
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


class ValueReadError(Exception):
    """The algorithm reads a traced learning rate function in Python."""


def unreadable_rate(count: Any) -> Any:
    """Raises an error; stands for a learning rate function that differs between runs."""
    raise ValueReadError


UNTRACEABLE = (
    ValueReadError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def traced_names(run: Run, static: frozenset[str]) -> list[str]:
    """Names a run's swept values that are arguments of its program, without those in `static`."""
    known = {CLIENT_LEARNING_RATE, *run.hyperparameters} - static
    return [name for name, value in run.swept.items() if isinstance(value, float) and name in known]


def cohorts_of(run: Run, loop: Rounds, algorithm: Algorithm) -> Cohorts:
    """Returns the cohorts of a run before its first round."""
    return loop.cohorts(run.data, algorithm, run.local, run.seed)


def call_size(
    mesh: ClientMesh | None,
    runs_per_device: int | None,
    memory: int | None,
    num_runs: int,
    run_bytes: int,
) -> tuple[ClientMesh | None, int, int, str]:
    """Returns the devices, runs at once on each, runs of a call, and a note; checks the memory."""
    mesh = no_more_devices(mesh, num_runs)
    devices = 1 if mesh is None else mesh.size
    available = memory or _MEMORY
    default = 1 if jax.default_backend() == "cpu" else max(available // run_bytes // devices, 1)
    at_once = min(runs_per_device or default, -(-num_runs // devices))
    width = devices * at_once
    if memory is None and available < width * run_bytes:
        available = width * run_bytes
        fix = "give fewer clients, runs_per_device or devices"
        what = f"the states of {at_once} runs at once"
        check_device_memory(what, at_once * run_bytes, fix, devices=devices)
    fitting = available // run_bytes
    if fitting < width:
        least = width * run_bytes
        raise ValueError(f"memory={memory} is out of range; give at least {least} bytes")
    calls = -(-num_runs // (fitting // width * width))
    runs = -(-num_runs // (calls * width)) * width
    note = f"{num_runs} runs in a program, {runs} in a call, {at_once} at once on each of "
    note += f"{devices} devices: {runs * run_bytes / 1e6:.3g} of {available / 1e6:.4g} MB"
    return mesh, at_once, runs, note


class Group(NamedTuple):
    """Runs that share a program."""

    runs: dict[int, Run]  # by index
    static: frozenset[str]  # names of swept values that are constants of the program
    program: Program
    loop: Rounds
    size: int  # runs of a call
    note: str
    algorithm: Algorithm  # of the first run
    state: FederatedState  # the shapes of its first state
    transfer: Transfer

    @property
    def first(self) -> Run:
        """Any of the runs."""
        return next(iter(self.runs.values()))


class Call:
    """Runs of one call of a program, and their stops; runs beyond `own` only fill the call."""

    states: FederatedState  # after the last stop; leaves [runs, ...]

    def __init__(self, group: Group, indices: list[int], shared: Shared, checkpoints: Any):
        self.group, self.indices, self.shared = group, indices, shared
        self.sharding = row_sharding(group.program.mesh, group.size)
        self.own = [group.runs[index] for index in indices]
        self.filled = self.own + [group.first] * (group.size - len(indices))
        self.cohorts = [cohorts_of(run, group.loop, group.algorithm) for run in self.filled]
        traced = traced_names(group.first, group.static)
        tables = list(dict.fromkeys(map(table_of, group.runs.values())))
        self.entries = Entry(
            np.array([tables.index(table_of(run)) for run in self.filled], np.int32),
            np.array([run.seed for run in self.filled], np.uint32),
            {name: np.array([run.swept[name] for run in self.filled], float) for name in traced},
        )
        name = f"from-run-{min(indices)}-{array_fingerprint(np.array(indices))}"
        self.saver = RunSaver(as_checkpoints(checkpoints, name), self._identity)

    def stops(self, count: FlopCounter, recorder: Recorder) -> Iterator[Stop]:
        """Yields the evaluations from the start, or from the checkpoint."""
        program, loop = self.group.program, self.group.loop
        divide = partial(put, self.sharding)
        entries = divide(self.entries)
        begun = begin_each(program, self.shared, entries)
        self.states = wait_on_cpu(program.mesh, begun)
        done, flops = self._restore(recorder)
        position = stack([each.position() for each in self.cohorts])
        if recorder.ended:
            return
        costs, transfer = recording.costs_of_rounds, self.group.transfer
        arguments = count, loop.rounds, loop.eval_every, self.group.state
        counts = np.concatenate([each.counts for each in self.cohorts])
        common = common_steps(self.group.first.local, counts), program.population.num_clients
        windows = zip(*(draw_windows(each, *arguments) for each in self.cohorts), strict=True)
        following = next(windows, None)
        while following is not None:
            drawn, window = following, following[0].rounds
            dispatches = stack([each.dispatches for each in drawn])
            placed = divide(mark_equal_steps(dispatches, dispatches, *common))
            for rounds in [window] if done else [0, window]:  # 0: evaluates the first models
                inputs = self.states, self.shared, entries, placed, np.int32(rounds)
                advanced = advance_each(program, *inputs)
                self.states, trained, tested, finite = wait_on_cpu(program.mesh, advanced)
                arrays = None
                if rounds:  # while the devices compute
                    following, done = next(windows, None), done + rounds
                    flops = flops + [each.flops for each in drawn]
                    position = stack([each.position for each in drawn])
                    arrays = partial(self._arrays, position, flops)
                server = self.states.server
                told = recording.reported(self.group.algorithm, server, batched=True)
                tested = told | tested
                values = trained if rounds else {}, tested, self.states.excluded, finite
                measure = partial(_measure, recorder, *fetch(values))
                sent = told.get("uploads", [None] * len(self.own))
                due = [
                    Due(
                        i, costs(done, own, transfer, float(flops[i]), sent[i]), partial(measure, i)
                    )
                    for i, own in enumerate(each_of(position, len(self.own)))
                ]
                yield Stop(done, due, self.states, done == loop.rounds, arrays)

    def _restore(self, recorder: Recorder) -> tuple[int, np.ndarray]:
        """Restores states and cohorts; returns rounds and float64[runs] operations so far."""
        flops, saved = np.zeros(len(self.cohorts)), self.saver.restore()
        if saved is None:
            return 0, flops
        position = stack([drawn.position().after(saved.position) for drawn in self.cohorts])
        # runs that fill the call repeat the first one; their number depends on the devices
        own = np.arange(self.group.size) * (np.arange(self.group.size) < len(self.own))
        filled = fill(self._arrays(position, flops), saved.arrays)
        filled = jax.tree.map(lambda leaf: leaf[own], filled)
        self.states = put(self.sharding, filled["states"])
        for i, drawn in enumerate(self.cohorts):
            drawn.go_to(jax.tree.map(lambda leaf, i=i: leaf[i], filled["cohorts"]))
        recorder.restore(saved, None)
        return saved.position, filled["flops"]

    def _arrays(self, positions: Position, flops: np.ndarray) -> dict[str, Any]:
        """Returns the arrays of a checkpoint for the call's own runs, leaves [runs, ...]."""
        arrays = {"states": fetch(self.states), "cohorts": positions, "flops": flops}
        return jax.tree.map(lambda leaf: leaf[: len(self.own)], arrays)

    def _identity(self):
        """Returns what a checkpoint must match to be resumed."""
        group, loop, program = self.group, self.group.loop, self.group.program
        tables = {table_of(run): run for run in self.own}
        fingerprints = {key: _table_fingerprint(run) for key, run in tables.items()}
        return identity_of_rounds(
            group.algorithm,
            group.state,
            self.own[0].data,
            loop,
            [cohorts_of(run, loop, group.algorithm) for run in self.own],
            loop.rounds,
            runs=[[run.label, run.seed, fingerprints[table_of(run)]] for run in self.own],
            initial_model=array_fingerprint(loop.params),
            non_finite=program.non_finite,
            layout=str(program.layout),
            devices=1 if program.mesh is None else program.mesh.size,
        )


def _measure(recorder, trained, tested, excluded, finite, number) -> recording.Measured:
    """Selects one run's measurements from the values of all runs."""
    excluded = jax.tree.map(lambda leaf: leaf[number], excluded)
    with recording.named_errors(f"{recorder.names[number]}: "):
        check_excluded(recorder.non_finite, excluded)
    measured = {name: float(values[number]) for name, values in (trained | tested).items()}
    return measured, recording.count_excluded(excluded), finite[number]


def stack(trees):
    """Stacks several trees into one, with leaves [trees, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def each_of(stacked, number):
    """Returns the first `number` trees of a stack."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(number)]


def table_of(run):
    """Returns a key shared by runs that read the same examples."""
    return id(run.data), id(run.test_rows)


def _table_fingerprint(run):
    data = data_fingerprint(run.data)
    return data if run.test_rows is None else f"{data} {array_fingerprint(run.test_rows)}"
