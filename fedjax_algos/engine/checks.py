"""Validates the arguments of the engine's public functions.

The rest of the engine does not check them again. A round spends microseconds here: the checks read
shapes and the dispatches on the host, and compare a state of new shapes once.
"""

import weakref
from typing import Any, get_args

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.core import Algorithm, Asynchrony, Dispatch, Population, Prelude, Traits, checks
from fedjax_algos.core.algorithm import PartKind, Selection, kinds
from fedjax_algos.core.options import NonFinite, check_choice
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import FederatedData, is_readable
from fedjax_algos.engine.placed.sharded_data import DeviceData
from fedjax_algos.engine.slots import Layout, chunk_size
from fedjax_algos.engine.state import FederatedState, RowTable, place_of, table_of
from fedjax_algos.models.outputs import LabelCheck

_OWN_STATE = "give what engine.init or the last round of this algorithm returned"


def check_algorithm(algorithm: Algorithm) -> None:
    """Raises unless `algorithm` is an `Algorithm` with valid fields."""
    fix = "give what a factory returns, such as algorithms.fedavg(problem, local)"
    checks.check_kind("algorithm", algorithm, Algorithm, fix)
    checks.check_problem(algorithm.problem)
    checks.check_local(algorithm.local)
    if algorithm.selection is not None:
        fix = "give Selection(factor, value, choose), or None"
        checks.check_kind("selection", algorithm.selection, Selection, fix)
        checks.check_functions(algorithm.selection)
        down = getattr(algorithm.transport, "down", None)
        encodes = down if algorithm.selection.asks else algorithm.traits.catch_up
        found = "candidates need whole broadcasts of the model, but the algorithm encodes them"
        require(not encodes, f"selection: {found}; leave direction=down out")
    if algorithm.prelude is not None:
        checks.check_kind("prelude", algorithm.prelude, Prelude, "give Prelude(...), or None")
    phases: tuple[Any, ...] = (algorithm, algorithm.prelude)
    for phase in filter(None, phases):
        traits = phase.traits
        checks.check_functions(phase, contribute="server" * (phase.transport is not None))
        checks.check_kind("traits", traits, Traits, "give fedjax_algos.Traits(...)")
        checks.check_kind("asynchrony", traits.asynchrony, Asynchrony, "give Asynchrony(...)")
        check_choice("Traits: reduce", traits.reduce, ("sum", "stack"))
        check_choice("Traits: catch_up", traits.catch_up, ("", "sum", "full"))
        for field in ("parts", "broadcast"):
            for kind in kinds(getattr(traits, field)):
                check_choice(f"Traits: {field}", kind, get_args(PartKind))


def check_options(algorithm: Algorithm, layout: Layout, non_finite: str) -> None:
    """Raises for an invalid algorithm, and for an unknown layout or `non_finite`."""
    check_algorithm(algorithm)
    chunk_size(layout, 1)
    check_choice("non_finite", non_finite, get_args(NonFinite))


def check_population(population: Population) -> None:
    """Raises unless `population` is a `Population` with numbers in range."""
    checks.check_kind("population", population, Population, "give Population(num_clients, ...)")
    for name, value in population._asdict().items():
        most = population.num_clients if name == "cohort_size" else MAX_INT32
        random_size = name == "cohort_size" and isinstance(value, float) and 0 < value <= most
        if name != "seed" and not random_size:  # the engine sets the seed
            checks.check_whole(f"Population: {name}", value, 1, most)


class StateCheck:
    """Checks the states, data and dispatches of an algorithm; `place` is where rows are kept."""

    def __init__(self, algorithm: Algorithm, place: str = "device"):
        self.algorithm, self.place = algorithm, place
        self.known: set[Any] = set()  # shapes of states that have been compared
        self.check_labels = LabelCheck(algorithm.problem, "the clients' examples")
        self._offsets: weakref.ref | None = None

    def check(
        self, state: FederatedState, data: DeviceData, dispatches: Dispatch, axes: tuple[str, ...]
    ) -> Dispatch:
        """Returns the dispatches as arrays with `axes`; raises for unusable arguments."""
        self.check_state(state, data)
        keeping = not isinstance(state.dispatched, tuple)
        return self.check_dispatches(data, dispatches, axes, keeping)

    def check_dispatches(
        self, data: DeviceData, dispatches: Dispatch, axes: tuple[str, ...], keeping: bool = False
    ) -> Dispatch:
        """Returns them as arrays; ValueError for wrong shapes or, unless traced, values."""
        dispatches = with_arrays(dispatches) if isinstance(dispatches, Dispatch) else dispatches
        checks.check_dispatches(dispatches, data.num_clients, axes)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in dispatches)
        of_rounds = axes[-1] == "cohort" and not traced
        if of_rounds and keeping:
            check_no_repeats(dispatches, data.num_clients)
        known = self.counts_of(data) if of_rounds and isinstance(data, FederatedData) else None
        if known is not None:
            client, number = np.asarray(dispatches.client), np.asarray(dispatches.num_examples)
            counts = known[np.minimum(client, data.num_clients - 1)]
            wrong = (counts != number) & (client < data.num_clients)
            at = np.unravel_index(wrong.argmax(), wrong.shape)
            found = f"client {client[at]} has num_examples={number[at]}, but holds {counts[at]}"
            fix = "draw the dispatches from data.counts() of these data"
            require(not wrong.any(), f"{found}; {fix}")
        reverse, steps = self.algorithm.local.reverse, dispatches.num_steps
        if reverse is not None and not isinstance(steps, jax.core.Tracer):
            most, bound = np.asarray(steps).max(), reverse.max_steps
            found = f"dispatches have num_steps={most}, above max_steps={bound} of local.reverse"
            require(most <= bound, f"{found}; give differentiable(local, data.counts())")
        return dispatches

    def counts_of(self, data: DeviceData) -> np.ndarray | None:
        """Returns the clients' numbers of examples, read once; None if they are traced."""
        if not isinstance(data, FederatedData):
            return data.counts()
        if not is_readable(data.offsets):
            return None
        if self._offsets is None or self._offsets() is not data.offsets:
            self._counts = data.counts()
            self._offsets = weakref.ref(data.offsets)
        return self._counts

    def check_state(self, state: FederatedState, data: DeviceData) -> None:
        """Raises for a state of another type, algorithm or population, and for wrong data."""
        self.check_examples(data)
        checks.check_kind("state", state, FederatedState, _OWN_STATE)
        checks.check_not_consumed(state)
        rows = () if isinstance(state.clients, RowTable) else state.clients
        trees = state.server, rows, state.dispatched
        key = type(state.clients), data.num_clients, jax.tree.structure(trees), *_shapes(trees)
        if key not in self.known:
            self._compare(state, data.num_clients)
            self.known.add(key)

    def check_examples(self, data: DeviceData) -> None:
        """Raises for data of another type, and for labels that the model does not have."""
        checks.check_kind("data", data, DeviceData, "give what federate or put_data returned")
        if isinstance(data, FederatedData):
            self.check_labels(data.examples)

    def _compare(self, state, num_clients):
        """Compares a state with the shapes that the algorithm makes."""
        algorithm, params = self.algorithm, self.algorithm.problem.shapes().params
        found = _shapes(state.server)

        def of_groups(number):
            population = Population(num_clients, num_clients, num_clients, number)
            return jax.eval_shape(lambda tree: algorithm.init(tree, population), params)

        # shapes may depend on the number of groups, which only the state knows
        servers = map(of_groups, [1, *{shape[0] for shape in found if shape}])
        server = next((each for each in servers if _shapes(each) == found), of_groups(1))
        name = "the state is of another algorithm or model, or other options: server"
        checks.check_like(name, state.server, server, _OWN_STATE, any_dtype=True)
        place, in_table = place_of(state.clients), isinstance(state.clients, RowTable)
        last = max(state.clients, default=-1) if in_table else -1
        found = f"the engine has client_state={self.place!r} and data of {num_clients} clients, but"
        found += f" the state's rows are on the {place}" + f" up to client {last}" * in_table
        require(place == self.place and last < num_clients, f"{found}; {_OWN_STATE}")
        row = jax.eval_shape(algorithm.client_init, params, jax.eval_shape(jax.random.key, 0))
        fix = f"give the state of a run with these data of {num_clients} clients"
        if not in_table:
            rows = table_of(row, num_clients)
            checks.check_like("the state's clients", state.clients, rows, fix, any_dtype=True)
        if jax.tree.leaves(row):
            check_num_clients(state, num_clients)


def check_no_repeats(dispatches: Dispatch, num_clients: int) -> None:
    """Raises ValueError if a cohort has a client twice, because it has only one row."""
    ordered = np.sort(dispatches.client, axis=-1)
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] < num_clients)
    if twice.any():
        *row, column = np.argwhere(twice)[0]
        client, number = ordered[*row, column], dispatches.server_step[*row, 0]
        found = f"client {client} is twice in the cohort of round {number}, but this algorithm's"
        raise ValueError(f"{found} clients keep state; give a sampler without replacement")


def check_num_clients(state: FederatedState, num_clients: int) -> None:
    """Raises ValueError for a state with rows for another number of clients."""
    (number,) = np.shape(state.dispatched)
    found = f"the state is of {number} clients, but the data have {num_clients}"
    fix = "give both of the same clients; some may hold no examples to evaluate on"
    require(number == num_clients, f"{found}; {fix}")


def _shapes(tree):
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
