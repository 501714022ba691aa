"""The program of batched runs, which takes the numbers in which they differ as arguments."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.core import Algorithm, Batch, Local, Model, Population, Problem
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.federated_round import run_rounds
from fedjax_algos.engine.non_finite import NonFinite, all_finite
from fedjax_algos.engine.placed.devices import AXIS
from fedjax_algos.engine.slots import Layout, Placement
from fedjax_algos.engine.state import initial_state
from fedjax_algos.runs.divergence import training_mean
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE


class Shared(NamedTuple):
    """What all runs of a program read, on every device."""

    data: FederatedData  # indices [partitions, assigned], offsets [partitions, num_clients + 1]
    test: Batch | None  # None if there is none, or if each partition has test rows
    test_rows: Any  # int32[partitions, rows] of the examples, or None
    params: Model | None


class Entry(NamedTuple):
    """The arguments in which runs differ, leaves [runs] on the host."""

    partition: Any  # int32[]: its row in the shared data
    seed: Any  # uint32[]
    numbers: dict[str, Any]  # float[] each: swept hyperparameters and the client learning rate


Constants = frozenset[tuple[str, type, Any]]  # with types, because 1, 1.0 and True are equal


def constants_of(values: Mapping[str, Any], traced: Collection[str]) -> Constants:
    """The values that are part of a program.

    Args:
      values: by name.
      traced: names of the others, which are arguments of the program.
    """
    return frozenset((n, type(value), value) for n, value in values.items() if n not in traced)


class Program(NamedTuple):
    """All that a compilation depends on, besides shapes. Equal programs share a compilation."""

    factory: Callable[..., Algorithm]
    problem: Problem
    local: Local
    constants: Constants  # the hyperparameters that are no arguments
    population: Population
    layout: Layout
    mesh: Mesh | None
    runs_per_device: int
    non_finite: NonFinite

    def algorithm(self, numbers):
        """The algorithm of a run.

        Args:
          numbers: traced floats; see `Entry`.
        """
        # weakly typed, as Python's numbers are: params of another precision keep theirs
        numbers = {name: jnp.asarray(0.0).at[()].set(value) for name, value in numbers.items()}
        local, rate = self.local, numbers.pop(CLIENT_LEARNING_RATE, None)
        if rate is not None and not callable(local.learning_rate):
            local = local._replace(learning_rate=rate)
        constants = {name: value for name, _, value in self.constants}
        return self.factory(self.problem, local, **constants, **numbers)

    def begin(self, shared, entry):
        """The first state of a run.

        Args:
          shared: of all runs.
          entry: of this run.
        """
        algorithm, placement = self.algorithm(entry.numbers), Placement(self.layout)
        return initial_state(
            algorithm,
            placement,
            entry.seed,
            shared.params,
            self.population,
            self.population.num_clients,
            self.non_finite,
        )

    def advance(self, shared_and_rounds, state, entry, dispatches):
        """Some rounds of a run and an evaluation.

        Args:
          shared_and_rounds: of all runs; the number of rounds is an int32[].
          state: of this run.
          entry: of this run.
          dispatches: leaves [rounds, slots], of at least so many rounds.

        Returns:
          The state, the means of training, the means on the test examples, and whether the params
          are finite.
        """
        (shared, rounds), algorithm = shared_and_rounds, self.algorithm(entry.numbers)
        examples, indices, offsets = shared.data
        data = FederatedData(examples, indices[entry.partition], offsets[entry.partition])
        placement, tested = Placement(self.layout), {}
        state, trained = run_rounds(
            algorithm, placement, state, data, dispatches, rounds, self.non_finite
        )
        test = shared.test
        if shared.test_rows is not None:
            rows = shared.test_rows[entry.partition]
            test = jax.tree.map(lambda leaf: leaf[rows], examples)
        if test is not None:
            values = make_evaluate(algorithm.problem)(state.model, test)
            tested = {f"test_{name}": mean.value() for name, mean in values.items()}
        trained = {name: training_mean(mean) for name, mean in trained.items()}
        return state, trained, tested, all_finite(state.server.params)

    def of_each(self, function, shared, *inputs):
        """`function(shared, *inputs)` of every run.

        Args:
          function: of one run.
          shared: of all runs, on every device.
          *inputs: leaves [runs, ...], divided over the devices.

        Returns:
          Leaves [runs, ...].
        """

        def share(shared, inputs):
            size = None if self.runs_per_device == 1 else self.runs_per_device
            return jax.lax.map(lambda each: function(shared, *each), inputs, batch_size=size)

        if self.mesh is None:
            return share(shared, inputs)
        specs, split = (PartitionSpec(), PartitionSpec(AXIS)), PartitionSpec(AXIS)
        mapped = jax.shard_map(
            share, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False
        )
        return mapped(shared, inputs)


@partial(jax.jit, static_argnums=0)
def begin_each(program, shared, entries):
    """The first states of all runs, leaves [runs, ...].

    Args:
      program: static.
      shared: of all runs.
      entries: leaves [runs].
    """
    return program.of_each(program.begin, shared, entries)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def advance_each(program, states, shared, entries, dispatches, rounds):
    """The next rounds of all runs, and an evaluation.

    Args:
      program: static.
      states: leaves [runs, ...]; consumed.
      shared: of all runs.
      entries: leaves [runs].
      dispatches: leaves [runs, rounds, slots], of at least so many rounds.
      rounds: int32[], 0 for the evaluation alone.

    Returns:
      The states, the means of training, the means on the test examples, and whether the params are
      finite; leaves [runs, ...].
    """
    return program.of_each(program.advance, (shared, rounds), states, entries, dispatches)


class ValueReadError(Exception):
    """The algorithm reads a traced learning rate function in Python."""


def unreadable_rate(count: Any) -> Any:
    """Stands for a client learning rate function that differs between the runs of a program.

    Args:
      count: of rounds or dispatches.

    Raises:
      ValueReadError: always.
    """
    raise ValueReadError


UNTRACEABLE = (
    ValueReadError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
