"""What a round computes, traced: read rows, train the cohort, sum, update the server.

`engine.py` compiles these functions; a batched run puts them into a program of its own. What one
client computes is in `exchange.py`, what the server makes of it in `server_step.py`, and how a
cohort is mapped in `slots.py`.

Everywhere the dispatches are those of `fill_slots`, with leaves [slots]: client id `num_clients`
marks an empty slot. What comes from an empty slot, or from a client that fails after its training
(`Dispatch.arrives`), is masked out, and no row is written.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, ClientState, Dispatch, Metrics, Prelude, Stack
from fedjax_algos.engine.exchange import (
    draw_cohort,
    exchange,
    first_exchange,
    read_row,
    send,
    shared_of,
)
from fedjax_algos.engine.non_finite import Excluded, NonFinite, select
from fedjax_algos.engine.placed.sharded_data import ProgramData
from fedjax_algos.engine.server_step import Arrivals, arrival, contribution, decoded, server_step
from fedjax_algos.engine.slots import Placement, answers, map_cohort
from fedjax_algos.engine.state import FederatedState


class CohortResult(NamedTuple):
    """What a cohort has computed, or the clients of a prelude."""

    rows: ClientState  # new rows [slots, ...], or the new table; () of a prelude
    arrivals: Arrivals
    metrics: Any  # `Metrics`, or () of a prelude
    excluded: Excluded | tuple[()]  # the updates left out so far
    dispatched: Any  # bool[num_clients]: which clients have been; () of a prelude


class FederatedRound(NamedTuple):
    """The parts of a round, each of which is traced.

    In their arguments, `state` is that of the run, `data` are all clients' examples, or shards of
    which each device holds one, and `dispatches` have leaves [slots].
    """

    algorithm: Algorithm
    placement: Placement  # how the cohort is laid out over chunks and devices
    rows_are_table: bool = True  # whether `rows` are those of all clients, or those of the cohort
    non_finite: NonFinite = "exclude"  # "error" computes the same; the engine raises

    @property
    def screened(self) -> bool:
        """Whether updates that are not finite are left out."""
        return self.non_finite != "keep"

    def run_prelude(
        self, state: FederatedState, data: ProgramData, dispatches: Dispatch
    ) -> CohortResult:
        """The prelude's exchanges; the rows of `state` are not read."""
        prelude = self.algorithm.prelude
        assert prelude is not None
        shared = shared_of(state), prelude.broadcast(state.server, jnp.int32(0))

        def of_one(shared, data, dispatch, draws, **screening):
            return first_exchange(self.algorithm, *shared, data, dispatch, draws, **screening)

        result = self._map(prelude, of_one, shared, state, data, dispatches)
        return self.placement.constrain(result._replace(rows=()))

    def run_cohort(
        self, rows: ClientState, state: FederatedState, data: ProgramData, dispatches: Dispatch
    ) -> CohortResult:
        """The exchanges of a round.

        Args:
          rows: leaves [slots, ...], or [num_clients, ...] if they are the table.
          state: the state of the run; its rows are not read.
          data: all clients' examples, or shards of which each device holds one.
          dispatches: leaves [slots].
        """
        algorithm, placement = self.algorithm, self.placement
        shared = shared_of(state), state.dispatched, send(algorithm, state.server)

        def of_one(shared, data, dispatch, draws, row, **screening):
            shared, dispatched, received = shared
            own = row, read_row(dispatched, dispatch.client)
            return exchange(algorithm, shared, received, data, dispatch, draws, own, **screening)

        own_rows = self._read_rows(rows, dispatches)
        result = self._map(algorithm, of_one, shared, state, data, dispatches, own_rows)
        written = dispatches.client
        if not isinstance(dispatches.arrives, tuple):
            written = jnp.where(answers(dispatches, data.num_clients), written, data.num_clients)
        # the index of who does not answer is out of range, so its row and its mark are dropped
        known = jax.tree.map(lambda leaf: leaf.at[written].set(True), state.dispatched)
        of_cohort, *results = result._replace(dispatched=known)
        results = placement.constrain(tuple(results))
        if not self.rows_are_table:
            return CohortResult(placement.constrain(of_cohort), *results)
        table = jax.tree.map(lambda t, r: t.at[written].set(r), rows, of_cohort)
        return CohortResult(placement.constrain_rows(table), *results)

    def _map(self, phase, of_one, shared, state, data, dispatches, *more):
        """The exchanges of a cohort by `of_one(shared, data, dispatch, draws, *more, ...)`."""
        stacked, screened = phase.traits.reduce == "stack", self.screened

        def of_client(shared, data, dispatch, draws, *more):
            def hand_in(message):
                if stacked:
                    return decoded(phase, message)
                return contribution(phase, message, dispatch, jnp.int32(0))

            sent = of_one(shared, data, dispatch, draws, *more, screened=screened, hand_in=hand_in)
            update = sent.message if stacked else ()
            arrived = arrival(() if stacked else sent.message, sent.report, sent.finite)
            update = select(sent.finite, update, 0) if screened else update
            if not isinstance(dispatch.arrives, tuple):
                update = select(dispatch.arrives, update, 0)
            return arrived, (sent.row, update, sent.finite)

        inputs = dispatches, draw_cohort(self.algorithm, state.seed, dispatches), *more
        summed, results = map_cohort(of_client, shared, data, inputs, self.placement)
        (arrivals, metrics), (rows, updates, finite) = summed, results
        if stacked:
            mask: Any = answers(dispatches, data.num_clients)
            stack = Stack(updates, dispatches, mask if finite is None else mask & finite)
            arrivals = arrivals._replace(contributions=stack)
        excluded = self._count(state, finite, dispatches, data.num_clients)
        return CohortResult(rows, arrivals, metrics, excluded, ())

    def _count(self, state, finite, dispatches, num_clients):
        """The updates left out so far, with those of this cohort; finite is bool[slots] or None."""
        if finite is None:
            return ()
        left_out = self.placement.constrain(~finite & answers(dispatches, num_clients))
        return state.excluded.add(left_out, dispatches)

    def _read_rows(self, rows, dispatches):
        """Leaves [slots, ...]; an empty slot reads the row of some client."""
        if not self.rows_are_table:
            return rows
        return jax.tree.map(lambda leaf: leaf[dispatches.client], rows)

    def server_step(
        self,
        phase: Algorithm | Prelude,
        before: tuple[Any, Any],
        arrivals: Arrivals,
        dispatches: Dispatch,
    ) -> tuple[Any, Any]:
        """(server state, statistics) after a round or its prelude; `before` if none is left."""
        screened = self.screened or not isinstance(dispatches.arrives, tuple)
        after = server_step(phase, *before, arrivals, jnp.int32(0), screened=screened)
        return self.placement.constrain(after)

    def _after_prelude(self, state, data, dispatches):
        """The state after the prelude's server update; unchanged if there is no prelude."""
        prelude = self.algorithm.prelude
        if prelude is None:
            return state
        result = self.run_prelude(state, data, dispatches)
        server, _ = self.server_step(prelude, (state.server, ()), result.arrivals, dispatches)
        return state._replace(server=server, excluded=result.excluded)

    def run_round(
        self, state: FederatedState, data: ProgramData, dispatches: Dispatch
    ) -> tuple[FederatedState, Metrics]:
        """A whole round, with the table of all clients' rows in the state."""
        state = self._after_prelude(state, data, dispatches)
        result = self.run_cohort(state.clients, state, data, dispatches)
        before = state.server, state.statistics
        after = self.server_step(self.algorithm, before, result.arrivals, dispatches)
        return after_round(state, after, result), result.metrics

    def cohort_updates(
        self,
        rows: ClientState,
        state: FederatedState,
        data: ProgramData,
        dispatches: Dispatch,
        slots: jax.Array | None,
    ) -> Stack:
        """What the clients of a cohort would upload, if none failed; nothing is updated.

        Args:
          rows: leaves [cohort, ...] in the order of `dispatches`, or [num_clients, ...].
          state: the state of the run; its rows are not read.
          data: all clients' examples, or shards of which each device holds one.
          dispatches: leaves [cohort]; of `fill_slots` if `slots` is given.
          slots: int32[cohort]: the slot of each dispatch; None if they are in the first slots.

        Returns:
          The updates in the order of the dispatches before `fill_slots`; leaves [cohort, ...].
        """
        cohort_size = len(dispatches.client)
        num_empty = self.placement.num_slots(cohort_size) - cohort_size
        dispatches, rows = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, num_empty)] + [(0, 0)] * (leaf.ndim - 1)),
            (dispatches, self._read_rows(rows, dispatches)),
        )
        filled = np.arange(cohort_size + num_empty) < cohort_size
        client = jnp.where(filled, dispatches.client, data.num_clients)
        dispatches = dispatches._replace(client=client)
        state = self._after_prelude(state, data, dispatches)
        stacked = self._replace(
            algorithm=self.algorithm._replace(
                traits=self.algorithm.traits._replace(reduce="stack")
            ),
            rows_are_table=False,
            non_finite="keep",  # diagnostics show what is uploaded
        )
        trained = dispatches._replace(arrives=())
        stack = stacked.run_cohort(rows, state, data, trained).arrivals.contributions
        index = slice(cohort_size) if slots is None else slots
        return jax.tree.map(lambda leaf: leaf[index], stack)


def after_round(
    state: FederatedState, after: tuple[Any, Any], result: CohortResult
) -> FederatedState:
    """The state after a round: `after` has the new server state and statistics."""
    rest = state.origin, state.seed, result.excluded, result.dispatched, state.frozen
    return FederatedState(*after, result.rows, *rest)


def run_rounds(
    run_round: Callable[..., tuple[FederatedState, Metrics]],
    state: FederatedState,
    data: ProgramData,
    dispatches: Dispatch,
    number: jax.Array,
) -> tuple[FederatedState, Metrics]:
    """Many rounds in one program: the state after the last one, and the sum of their metrics.

    Args:
      run_round: `(state, data, dispatches) -> (state, metrics)` of one round.
      state: the state of the run, with the table of all clients' rows.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [rounds, ...].
      number: int32[]: so many rounds are computed, from the first.
    """
    run_round = jax.jit(run_round)  # traced once

    def dispatches_of(index):
        return jax.tree.map(lambda leaf: leaf[index], dispatches)

    def add_round(index, carry):
        state, total = carry
        state, metrics = run_round(state, data, dispatches_of(index))
        return state, jax.tree.map(jnp.add, total, metrics)

    _, shapes = jax.eval_shape(run_round, state, data, dispatches_of(0))
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    return jax.lax.fori_loop(0, number, add_round, (state, zeros))
