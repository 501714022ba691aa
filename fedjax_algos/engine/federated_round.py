"""Traces a round: reads rows, trains the cohort, sums the updates and updates the server.

Dispatches come from `fill_slots`, with leaves [slots]. Client id `num_clients` marks an empty slot.
The results of an empty slot, or of a client that fails after its training (`Dispatch.arrives`), are
masked out, and no row is written.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, ClientState, Dispatch, Metrics, Prelude, Stack
from fedjax_algos.core.algorithm import update_in
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.randomness import value_key
from fedjax_algos.core.trees import take
from fedjax_algos.core.types import with_arrays
from fedjax_algos.engine import exchange
from fedjax_algos.engine.non_finite import Excluded, Screening, floats, run_rounds, select
from fedjax_algos.engine.placed.devices import constrain, place_state
from fedjax_algos.engine.placed.sharded_data import ProgramData
from fedjax_algos.engine.server_step import Arrivals, arrival, contribution, decoded, server_step
from fedjax_algos.engine.slots import Placement, answers, map_cohort
from fedjax_algos.engine.state import FederatedState


class CohortResult(NamedTuple):
    """The results of a cohort, in the round or in its prelude."""

    rows: ClientState  # new rows [slots, ...], or the new table; () in a prelude
    arrivals: Arrivals
    metrics: Any  # `Metrics`, or () in a prelude
    excluded: Excluded | tuple[()]  # the updates left out so far
    dispatched: Any  # bool[num_clients]: who has been dispatched; () in a prelude
    screening: Any = None  # the next `Screening`, if one was given


class FederatedRound(NamedTuple):
    """The parts of a round. Client rows are passed separately from the state."""

    algorithm: Algorithm
    placement: Placement  # how the cohort is laid out over chunks and devices
    rows_are_table: bool = True  # whether `rows` hold all clients, or only the cohort
    non_finite: NonFinite = "exclude"  # "error" computes the same; the engine raises

    def select_cohort(
        self, rows: ClientState, state: FederatedState, data: ProgramData, dispatches: Dispatch
    ) -> Dispatch:
        """Returns the dispatches, leaves [slots], that the selection chooses from [candidates]."""
        algorithm, selection = self.algorithm, self.algorithm.selection
        assert selection is not None
        shared = exchange.shared_of(state), state.dispatched, state.server.params
        slots = in_slots(dispatches, self.placement, data.num_clients)

        def of_one(shared, data, dispatch, draws, row):
            shared, dispatched, params = shared
            known = take(dispatched, dispatch.client)
            row = exchange.initialised_row(algorithm, shared, dispatch.client, row, known)
            view, key = exchange.view_of(shared, data, dispatch, draws), value_key(draws.key)
            view = view.sealed(algorithm.local)
            model, dispatch = view.model(params), with_arrays(dispatch)
            return (), selection.value(model, row, view, dispatch, key)

        number = len(dispatches.client)
        rows = _padded(self._read_rows(rows, dispatches), len(slots.client) - number)
        draw = partial(self._draw, selection)
        _, values, _ = map_cohort(of_one, draw, shared, data, (slots, rows), self.placement)
        values, known = take(values, slice(number)), with_arrays(dispatches)
        inputs = values, known, jnp.asarray(answers(dispatches, data.num_clients))
        # on every device, because `choose` may call the host, as in Oort
        values, known, answered = constrain(self.placement.mesh, inputs)
        size = selection.cohort_size(number)
        chosen = selection.choose(values, known, answered, size, state.seed)
        taken = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], dispatches)
        client = jnp.where(answered[chosen], taken.client, data.num_clients)
        return in_slots(taken._replace(client=client), self.placement, data.num_clients)

    def run_prelude(
        self, state: FederatedState, data: ProgramData, dispatches: Dispatch
    ) -> CohortResult:
        """Runs the prelude's exchanges."""
        prelude = self.algorithm.prelude
        assert prelude is not None
        shared = exchange.shared_of(state), prelude.broadcast(state.server, jnp.int32(0))

        def of_one(shared, data, dispatch, draws):
            return exchange.first_exchange(self.algorithm, *shared, data, dispatch, draws)

        reduce = self._stack if prelude.traits.reduce == "stack" else self._sum
        result = reduce(prelude, of_one, shared, state, data, dispatches)
        return self._placed(result._replace(rows=()))

    def run_cohort(
        self,
        rows: ClientState,
        state: FederatedState,
        data: ProgramData,
        dispatches: Dispatch,
        screening: Screening | None = None,
    ) -> CohortResult:
        """Runs the exchanges of a round; rows [slots, ...], or the table [num_clients, ...]."""
        algorithm, mesh = self.algorithm, self.placement.mesh
        # many rounds read rows in place; a reverse pass would then add up whole tables
        in_place = self.rows_are_table and mesh is None and screening is not None
        more = () if in_place else (self._read_rows(rows, dispatches),)
        received, table = exchange.send(algorithm, state.server), rows if in_place else ()
        shared = exchange.shared_of(state), state.dispatched, received, table

        def of_one(shared, data, dispatch, draws, *rows):
            shared, dispatched, received, table = shared
            row = rows[0] if rows else take(table, dispatch.client)
            own = row, take(dispatched, dispatch.client)
            return exchange.exchange(algorithm, shared, received, data, dispatch, draws, own)

        sums = partial(self._sum, screening=None if self.non_finite == "keep" else screening)
        reduce = self._stack if algorithm.traits.reduce == "stack" else sums
        result = reduce(algorithm, of_one, shared, state, data, dispatches, *more)
        written, again = dispatches.client, result.screening
        if again is not None or not isinstance(dispatches.arrives, tuple):
            kept = answers(dispatches, data.num_clients) & (again is None or again.first)
            written = jnp.where(kept, written, data.num_clients)
        # a client that does not answer has an index out of range, which drops its row and mark
        known = jax.tree.map(lambda leaf: leaf.at[written].set(True), state.dispatched)
        new, result = result.rows, self._placed(result._replace(dispatched=known, rows=()))
        if self.rows_are_table:
            new = jax.tree.map(lambda t, r: t.at[written].set(r), rows, new)
        return result._replace(rows=constrain(mesh, new, rows=True))

    def _placed(self, result):
        """Constrains the result: sums on every device, a stack divided over devices."""
        mesh, stack = self.placement.mesh, result.arrivals.contributions
        if not isinstance(stack, Stack):
            return constrain(mesh, result)
        updates, stack = constrain(mesh, stack.updates, rows=True), stack._replace(updates=())
        arrivals = result.arrivals._replace(contributions=stack)
        result = constrain(mesh, result._replace(arrivals=arrivals))
        stack = result.arrivals.contributions._replace(updates=updates)
        return result._replace(arrivals=result.arrivals._replace(contributions=stack))

    def _sum(self, phase, of_one, shared, state, data, dispatches, *more, screening=None):
        """Sums a cohort's contributions; zeros replace one that is not finite or not sent."""
        answered = answers(dispatches, data.num_clients)
        mapped, check_each = dispatches, None
        if screening is not None:
            mapped = dispatches._replace(arrives=answered & ~screening.left_out)
            check_each = screening.check_each

        def of_client(shared, data, dispatch, draws, *more):
            dispatch = with_arrays(dispatch)
            sent = of_one(shared, data, dispatch, draws, *more)
            summand = contribution(phase, sent.message, dispatch, jnp.int32(0), state.server)
            if check_each is None:
                finite = sent.finite(summand) if self.non_finite != "keep" else None
                return (arrival(summand, sent.report, finite), ()), (sent.kept(finite), finite)
            row = sent.kept(dispatch.arrives)  # the sum of new rows is checked like the others
            return (arrival(summand, sent.report, None), floats(row)), (row, None)

        inputs = partial(self._draw, phase), shared, data, (mapped, *more), self.placement
        summed, (rows, finite), checked = map_cohort(of_client, *inputs, check_each)
        (arrivals, metrics), again = summed[0], None
        finite = finite if screening is None else checked
        left_out, excluded = self._leave_out(finite, answered, state, dispatches)
        if screening is not None:
            complete, again = screening.after(summed, left_out)
            count, metrics = select(complete, (arrivals.count, metrics), 0)  # else nothing changes
            arrivals = arrivals._replace(count=count)
        return CohortResult(rows, arrivals, metrics, excluded, (), again)

    def _stack(self, phase, of_one, shared, state, data, dispatches, *more):
        """Stacks a cohort's updates; zeros replace one that is not finite or not sent."""
        answered, screened = answers(dispatches, data.num_clients), self.non_finite != "keep"

        def of_client(shared, data, dispatch, draws, *more):
            sent = of_one(shared, data, with_arrays(dispatch), draws, *more)
            update = decoded(phase, sent.message, state.server)
            finite = sent.finite(update) if screened else None
            arrived, row = arrival((), sent.report, finite), sent.kept(finite)
            update = update if finite is None else select(finite, update, 0)
            if not isinstance(dispatch.arrives, tuple):
                update = select(dispatch.arrives, update, 0)
            return arrived, (row, update, finite)

        inputs = partial(self._draw, phase), shared, data, (dispatches, *more), self.placement
        (arrivals, metrics), (rows, updates, finite), _ = map_cohort(of_client, *inputs)
        mask = answered & finite if screened else answered
        stack = Stack(updates, with_arrays(dispatches), mask)
        _, excluded = self._leave_out(finite, answered, state, dispatches)
        return CohortResult(rows, arrivals._replace(contributions=stack), metrics, excluded, ())

    def _draw(self, phase, shared, data, dispatches):
        """Draws the randomness of dispatches; a prelude and a selection have no local steps."""
        dispatches = dispatches if phase is self.algorithm else with_arrays(dispatches)
        return exchange.draw_cohort(self.algorithm.local, shared[0], data, dispatches)

    def _leave_out(self, finite, answered, state, dispatches):
        """Returns which updates are left out, and the new count of them; () if all are kept."""
        if finite is None:
            return (), ()
        left_out = constrain(self.placement.mesh, ~finite & answered)
        return left_out, state.excluded.add(left_out, dispatches)

    def _read_rows(self, rows, dispatches):
        """Returns leaves [slots, ...]; an empty slot reads the row of some client."""
        return take(rows, dispatches.client) if self.rows_are_table else rows

    def server_step(
        self,
        phase: Algorithm | Prelude,
        before: tuple[Any, Any],
        arrivals: Arrivals,
        dispatches: Dispatch,
    ) -> tuple[Any, Any]:
        """Returns (server state, statistics) after a phase; `before` if no update is left."""
        screened = self.non_finite != "keep" or not isinstance(dispatches.arrives, tuple)
        after = server_step(phase, *before, arrivals, jnp.int32(0), screened=screened)
        return constrain(self.placement.mesh, after)

    def _after_prelude(self, state, data, dispatches):
        """Runs the prelude, if the algorithm has one, and returns the state after it."""
        prelude = self.algorithm.prelude
        if prelude is None:
            return state
        result = self.run_prelude(state, data, dispatches)
        server, _ = self.server_step(prelude, (state.server, ()), result.arrivals, dispatches)
        return state._replace(server=server, excluded=result.excluded)

    def run_round(
        self,
        state: FederatedState,
        data: ProgramData,
        dispatches: Dispatch,
        screening: Screening | None = None,
    ) -> tuple[FederatedState, Metrics, Screening | None]:
        """Runs a whole round, with all clients' rows in the state; see `run_rounds`."""
        algorithm = self.algorithm
        if algorithm.selection is not None:
            dispatches = self.select_cohort(state.clients, state, data, dispatches)
        state = self._after_prelude(state, data, dispatches)
        used = None if algorithm.selection or algorithm.prelude else screening
        result = self.run_cohort(state.clients, state, data, dispatches, used)
        before = state.server, state.statistics
        after = self.server_step(algorithm, before, result.arrivals, dispatches)
        again = screening if result.screening is None else result.screening
        return after_round(state, after, result), result.metrics, again

    def run_rounds(
        self, state: FederatedState, data: ProgramData, dispatches: Dispatch, number: jax.Array
    ) -> tuple[FederatedState, Metrics]:
        """Calls the function `run_rounds` and places its results like its arguments."""
        state, metrics = run_rounds(self.run_round, state, data, dispatches, number)
        mesh = self.placement.mesh
        return place_state(constrain, mesh, state), constrain(mesh, metrics)

    def cohort_updates(
        self,
        rows: ClientState,
        state: FederatedState,
        data: ProgramData,
        dispatches: Dispatch,
        slots: jax.Array | None,
    ) -> Stack:
        """Returns the updates of a cohort as if no client failed; leaves [cohort, ...].

        `slots`, int32[cohort], has the slot of each dispatch; None if slots are not assigned yet.
        """
        cohort_size = len(dispatches.client)
        rows = self._read_rows(rows, dispatches)
        dispatches = in_slots(dispatches, self.placement, data.num_clients)
        rows = _padded(rows, len(dispatches.client) - cohort_size)
        state = self._after_prelude(state, data, dispatches)
        traits = self.algorithm.traits._replace(reduce="stack")
        algorithm = self.algorithm._replace(traits=traits)
        # "keep", because diagnostics show the updates as they are uploaded
        stacked = FederatedRound(algorithm, self.placement, rows_are_table=False, non_finite="keep")
        all_arrive = dispatches._replace(arrives=())
        stack = stacked.run_cohort(rows, state, data, all_arrive).arrivals.contributions
        stack = stack._replace(updates=update_in(traits.parts, stack.updates))
        index = slice(cohort_size) if slots is None else slots
        return constrain(self.placement.mesh, take(stack, index))


def _padded(tree, number):
    """Pads leaves with zeros to [cohort + number, ...]."""
    return jax.tree.map(lambda t: jnp.pad(t, [(0, number)] + [(0, 0)] * (t.ndim - 1)), tree)


def in_slots(dispatches: Dispatch, placement: Placement, num_clients: int) -> Dispatch:
    """Appends empty slots to traced dispatches [cohort]: leaves [slots]."""
    cohort_size = len(dispatches.client)
    num_slots = placement.num_slots(cohort_size)
    slots = _padded(dispatches, num_slots - cohort_size)
    filled = np.arange(num_slots) < cohort_size
    return slots._replace(client=jnp.where(filled, slots.client, num_clients))


def after_round(old: FederatedState, new: tuple[Any, Any], result: CohortResult) -> FederatedState:
    """Returns the state after a round; `new` has the server state and the statistics."""
    rest = old.origin, old.seed, result.excluded, result.dispatched, old.frozen
    return FederatedState(*new, result.rows, *rest)
