"""The program of a sweep: the numbers in which its runs differ are its arguments."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.core import Algorithm, Batch, Local, Model, Population, Problem
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine import federated_round
from fedjax_algos.engine.devices import AXIS
from fedjax_algos.engine.placement import Layout, Spread

RATE = "client_learning_rate"


class Shared(NamedTuple):
    """What all runs of a program read."""

    data: FederatedData  # indices [partitions, assigned], offsets [partitions, num_clients + 1]
    test: Batch | None
    params: Model | None


class Entry(NamedTuple):
    """What a run begins from."""

    partition: Any  # int32[]: its row in the shared data
    seed: Any  # uint32[]
    numbers: dict[str, Any]  # float[] each


class Program(NamedTuple):
    """What a compilation depends on beside shapes: equal ones share it, also between sweeps."""

    factory: Callable[..., Algorithm]
    problem: Problem
    local: Local
    others: frozenset[tuple[str, type, Any]]  # the hyper-parameters that are no arguments
    population: Population
    layout: Layout
    mesh: Mesh | None
    at_once: int

    def algorithm(self, numbers):
        # weakly typed, as Python's numbers are: params of another precision keep theirs
        numbers = {name: jnp.asarray(0.0).at[()].set(value) for name, value in numbers.items()}
        local, rate = self.local, numbers.pop(RATE, None)
        if rate is not None and not callable(local.learning_rate):
            local = local._replace(learning_rate=rate)
        others = {name: value for name, _, value in self.others}
        return self.factory(self.problem, local, **others, **numbers)

    def begin(self, shared, entry):
        algorithm, spread = self.algorithm(entry.numbers), Spread(self.layout)
        rows = self.population.num_clients
        return federated_round.start(
            algorithm, spread, entry.seed, shared.params, self.population, rows
        )

    def advance(self, held, state, entry, visits):
        """Some rounds and an evaluation: (state, means of training, means of the test)."""
        (shared, number), algorithm = held, self.algorithm(entry.numbers)
        data, tested = shared.data, {}
        data = data._replace(
            indices=data.indices[entry.partition], offsets=data.offsets[entry.partition]
        )
        spread = Spread(self.layout)
        state, trained = federated_round.run_rounds(algorithm, spread, state, data, visits, number)
        if shared.test is not None:
            model = Model(state.server.params, state.statistics)
            values = make_evaluate(algorithm.problem)(model, shared.test)
            tested = {f"test_{name}": mean.value() for name, mean in values.items()}
        return state, {name: mean.value() for name, mean in trained.items()}, tested

    def of_each(self, function, held, *inputs):
        """`function(held, *inputs)` for every run, of inputs with a leading axis of runs."""

        def share(held, inputs):
            size = None if self.at_once == 1 else self.at_once
            return jax.lax.map(lambda each: function(held, *each), inputs, batch_size=size)

        if self.mesh is None:
            return share(held, inputs)
        specs, split = (PartitionSpec(), PartitionSpec(AXIS)), PartitionSpec(AXIS)
        mapped = jax.shard_map(
            share, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False
        )
        return mapped(held, inputs)


@partial(jax.jit, static_argnums=0)
def begin_each(program, shared, entries):
    """The first states of all entries, leaves [entries, ...]."""
    return program.of_each(program.begin, shared, entries)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def advance_each(program, states, shared, entries, visits, number):
    """The next `number` rounds of all entries, and an evaluation; consumes the states."""
    return program.of_each(program.advance, (shared, number), states, entries, visits)


class AskedForValue(Exception):
    """The rate of a run was asked for while its program was traced."""


def told_by_visits(count):
    """The local rate where it is a function that differs between the runs of a program."""
    raise AskedForValue


UNTRACEABLE = (
    AskedForValue,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
