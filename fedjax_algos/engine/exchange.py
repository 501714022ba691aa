"""Traces one client's exchange with the server: what it receives, reads, computes and sends.

Rounds and plans decide when and on which device it happens. Fingerprints and the counts of bytes
and FLOPs use the same functions. The server's side is in `server_step.py`.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, ClientData, types
from fedjax_algos.core.checks import check_like, described
from fedjax_algos.core.options import Batches
from fedjax_algos.core.randomness import client_key, dispatch_keys, permutation_words
from fedjax_algos.core.trees import sent_bytes, take
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import FederatedData, client_view
from fedjax_algos.engine.non_finite import all_finite, select
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState

_MAX_DRAWN = 2**24  # examples in the local steps of a device's cohort: rows of 64 MiB


class Shared(NamedTuple):
    """Values that all clients of a run read besides the broadcast."""

    statistics: types.Statistics  # of the model that they start from
    origin: types.Params  # theta_0, used to initialise rows; () if clients keep no state
    seed: jax.Array  # uint32[]
    frozen: Any  # the model's arrays that never change, or ()


def shared_of(state: FederatedState) -> Shared:
    """Returns the `Shared` values of a state."""
    return Shared(state.statistics, state.origin, state.seed, state.frozen)


class Randomness(NamedTuple):
    """The random numbers of one dispatch."""

    order: jax.Array  # uint32[20]: the order of the client's examples; see `permutation_words`
    key: types.Key  # for the client's training
    drawn: Any = ()  # rows and masks of its batches; see `Drawn`


class Exchanged(NamedTuple):
    """The result of an exchange: the client's row before and after it, its message and report."""

    row: types.ClientState  # () of a prelude
    before: types.ClientState  # the row that the client began with
    message: Any  # as `client_update` returned it
    report: types.Report | tuple[()]  # () of a prelude

    def finite(self, summand: Any) -> jax.Array:
        """Returns whether the row, the `summand` and the report are finite, bool[]."""
        return all_finite(self.row, summand, self.report)

    def kept(self, finite: jax.Array | None) -> types.ClientState:
        """Returns the new row, or the old one if `finite` is False; None keeps the new row."""
        return self.row if finite is None else select(finite, self.row, self.before)


def draw(batches: Batches, seed: jax.Array, client: types.Array, number: types.Array) -> Randomness:
    """Draws a dispatch's randomness; "persistent" batches keep the order of the first dispatch."""
    order, key = dispatch_keys(seed, client, number)
    if batches == "persistent":
        order, _ = dispatch_keys(seed, client, jnp.int32(0))
    return Randomness(permutation_words(order), key)


def draw_cohort(
    local: types.Local, shared: Shared, data: FederatedData, dispatches: types.Dispatch
) -> Randomness:
    """Draws the randomness of dispatches, leaves [slots]; with `EqualSteps` also their batches."""
    draw_one = partial(draw, local.batches, shared.seed)
    draws = jax.vmap(draw_one)(dispatches.client, dispatches.number)
    steps, slots = dispatches.num_steps, len(dispatches.client)
    if local.batches == "full" or not isinstance(steps, types.EqualSteps):
        return draws
    if slots * steps.number * local.batch_size > _MAX_DRAWN:
        return draws

    def drawn(dispatch, draws):
        return view_of(shared, data, dispatch, draws).draw_batches(steps.number, local)

    return draws._replace(drawn=jax.vmap(drawn)(dispatches, draws))


def send(algorithm: Algorithm, server: types.ServerState) -> types.Broadcast:
    """Returns the broadcast, or a pair that begins with the prelude's broadcast."""
    broadcast = algorithm.broadcast(server, jnp.int32(0))
    if algorithm.prelude is None:
        return broadcast
    return algorithm.prelude.broadcast(server, jnp.int32(0)), broadcast


def initialised_row(
    algorithm: Algorithm, shared: Shared, client: types.Array, row: types.ClientState, known: Any
) -> types.ClientState:
    """Returns `row` if it is `known`, bool[], else a newly initialised one."""
    initial = algorithm.client_init(shared.origin, client_key(shared.seed, client))
    return jax.tree.map(lambda new, old: jnp.where(known, old, new), initial, row)


def view_of(
    shared: Shared, data: FederatedData, dispatch: types.Dispatch, draws: Randomness
) -> ClientData:
    """Returns the client's examples and the parts of the model that are not trained."""
    first, frozen = dispatch.first_step, shared.frozen
    view = client_view(data, dispatch.client, draws.order, shared.statistics, first, frozen)
    return view.with_drawn(draws.drawn)


def exchange(
    algorithm: Algorithm,
    shared: Shared,
    received: types.Broadcast,
    data: FederatedData,
    dispatch: types.Dispatch,
    draws: Randomness,
    own: tuple[types.ClientState, Any],
) -> Exchanged:
    """Runs one client's exchange; `own` has its row and whether the row is initialised."""
    before = initialised_row(algorithm, shared, dispatch.client, *own)
    view = view_of(shared, data, dispatch, draws).sealed(algorithm.local)
    row, message, report = _update(algorithm, received, before, view, dispatch, draws.key)
    return Exchanged(row, before, message, report)


def _update(algorithm, received, row, *arguments):
    """Calls `client_update` and checks its result."""
    made = algorithm.client_update(received, row, *arguments)
    fits = isinstance(made, tuple) and len(made) == 3 and isinstance(made[2], types.Report)
    fits = fits and all(isinstance(metric, types.Mean) for metric in made[2].metrics.values())
    fits = fits and not any(isinstance(leaf, str) for leaf in jax.tree.leaves(made))
    fix = "return (client state, update, Report(metrics, statistics)), with a Mean for each metric"
    require(fits, f"client_update returned {described(made)}; {fix}")
    fix = "return a row of the shapes and types of client_init's"
    check_like("the client state that client_update returned: ", made[0], row, fix)
    return made


def first_exchange(algorithm, shared, received, data, dispatch, draws) -> Exchanged:
    """Runs one client's exchange in the prelude, which reads no row; see `exchange`."""
    view = view_of(shared, data, dispatch, draws).sealed(algorithm.local)
    message = algorithm.prelude.client_update(received, view, dispatch, draws.key)
    return Exchanged((), (), message, ())


class ExchangeShapes(NamedTuple):
    """Shapes and dtypes of the arguments of `client_update`, in its order."""

    received: types.Broadcast
    row: types.ClientState
    view: ClientData
    dispatch: types.Dispatch
    key: Any

    def updates(self, algorithm: Algorithm) -> tuple[types.Update, types.Update, types.Report]:
        """Returns the shapes of the prelude's update (or ()), of the update and of the report."""
        first: Any = ()
        if algorithm.prelude is not None:
            arguments = self.received[0], self.view, self.dispatch, self.key
            first = jax.eval_shape(algorithm.prelude.client_update, *arguments)
        _, update, report = jax.eval_shape(partial(_update, algorithm), *self)
        return first, update, report


def exchange_shapes(
    algorithm: Algorithm,
    server: types.ServerState,
    shared: Shared,
    data: FederatedData,
    dispatch: types.Dispatch,
) -> ExchangeShapes:
    """Returns the shapes of one client's exchange; all arguments may be shapes."""

    def arguments(server, shared, data, dispatch):
        draws = draw(algorithm.local.batches, shared.seed, dispatch.client, dispatch.number)
        row = algorithm.client_init(shared.origin, client_key(shared.seed, dispatch.client))
        view = view_of(shared, data, dispatch, draws)
        return ExchangeShapes(send(algorithm, server), row, view, dispatch, draws.key)

    return jax.eval_shape(arguments, server, shared, data, dispatch)


class Transfer(NamedTuple):
    """Bytes that one client transfers in one round, the model's statistics included.

    Attributes:
      download: bytes that a client receives; if broadcasts build upon each other, the first time.
      upload: bytes that it sends.
      message: bytes that it receives if it has received all earlier broadcasts.
      missed: additional bytes for each broadcast that it has missed, up to `download` in all.
      report: bytes that a client sends before it is chosen for the cohort, or chosen to send its
        update; None if it sends nothing.
    """

    download: int
    upload: int
    message: int
    missed: int
    report: int | None = None

    def downloads(self, gaps: np.ndarray, chosen: int | None = None) -> int:
        """Counts the bytes that many dispatches download.

        Args:
          gaps: int64[...]: number of dispatches by the rounds since the client's previous one; [0]
            counts the first dispatches of clients.
          chosen: how many of them were chosen; None for all.
        """
        if chosen is not None and self.report is None:
            return chosen * self.download
        missed = np.arange(-1, len(gaps) - 1)
        each = np.minimum(self.message + missed * self.missed, self.download)
        each[0] = self.download
        return int((gaps * each).sum())

    def uploads(self, answered: int, chosen: int | None = None) -> int:
        """Counts the bytes that many dispatches upload.

        Args:
          answered: how many of them have not failed.
          chosen: how many of these have sent their update; None for all.
        """
        sent = answered if chosen is None else chosen
        return answered * (self.report or 0) + sent * self.upload


def count_transfer(
    algorithm: Algorithm, state: FederatedState, data: RunData, dispatches: types.Dispatch
) -> Transfer:
    """Implements `Engine.transfer`."""
    dispatch = take(with_arrays(dispatches), 0)
    arguments = state.server, shared_of(state), data_shapes(data), dispatch
    leaves, tree = jax.tree.flatten(arguments)
    return _transfer_of_shapes(algorithm, tree, tuple(map(jax.typeof, leaves)))


@lru_cache(maxsize=64)
def _transfer_of_shapes(algorithm, tree, leaves):
    """Counts from shapes; the runs of an engine have equal ones, so they share one trace."""
    server, shared, *_ = arguments = tree.unflatten(leaves)
    shapes = exchange_shapes(algorithm, *arguments)
    first, update, _ = shapes.updates(algorithm)
    statistics, message = sent_bytes(shared.statistics), 0
    for phase in filter(None, (algorithm.prelude, algorithm)):
        sent = phase.download or phase.broadcast  # clients decode their broadcast from it
        message += sent_bytes(jax.eval_shape(sent, server, jnp.int32(0)))
    report, selection = None, algorithm.selection
    if algorithm.traits.offers:
        report, update = sent_bytes(update[0]), update[1]
    catch_up, up = algorithm.traits.catch_up, sent_bytes((first, update))
    whole = sent_bytes(shapes.received) if catch_up else message
    missed = message if catch_up == "sum" else whole
    if selection is not None and selection.asks:
        model = jax.eval_shape(lambda view, params: view.model(params), shapes.view, server.params)
        report = sent_bytes(jax.eval_shape(selection.value, model, *shapes[1:]))
    return Transfer(whole + statistics, up + statistics, message + statistics, missed, report)
