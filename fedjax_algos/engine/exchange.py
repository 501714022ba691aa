"""One client's exchange with the server, traced: what it receives, reads, computes and sends.

Rounds and plans decide when it takes place, and on which device. Fingerprints and counts of bytes
and FLOPs read the same functions. What the server makes of updates is in `server_step.py`.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core import (
    Algorithm,
    Array,
    Broadcast,
    ClientData,
    ClientState,
    Dispatch,
    EqualSteps,
    Key,
    Local,
    Mean,
    Params,
    Report,
    ServerState,
    Statistics,
    Update,
)
from fedjax_algos.core.checks import check_like, described
from fedjax_algos.core.plain_types import Batches
from fedjax_algos.core.randomness import client_key, dispatch_keys, permutation_words
from fedjax_algos.core.trees import sent_bytes, take
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import FederatedData, client_view
from fedjax_algos.engine.non_finite import all_finite, select
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState

_MAX_DRAWN = 2**24  # examples in the local steps of a device's cohort: rows of 64 MiB


class Shared(NamedTuple):
    """What all clients of a run read besides what they receive."""

    statistics: Statistics  # of the model that they start from
    origin: Params  # theta_0, from which rows are initialised; () if clients keep no state
    seed: jax.Array  # uint32[]
    frozen: Any  # the model's arrays that never change; () if there are none


def shared_of(state: FederatedState) -> Shared:
    """What the clients of a run read of its state besides what they receive."""
    return Shared(state.statistics, state.origin, state.seed, state.frozen)


class Randomness(NamedTuple):
    """The random numbers of one dispatch."""

    order: jax.Array  # uint32[20]: the order of the client's examples; see `permutation_words`
    key: Key  # for the client's training
    drawn: Any = ()  # rows and masks of its batches; see `Drawn`


class Sent(NamedTuple):
    """The end of an exchange: what the client keeps, sends and has measured."""

    row: ClientState  # () of a prelude
    before: ClientState  # the row that the client began with
    message: Any  # as `client_update` returned it
    report: Report | tuple[()]  # () of a prelude

    def finite(self, handed_in: Any) -> jax.Array:
        """Whether all that a client has made is finite, bool[]; it hands in what is summed."""
        return all_finite(self.row, handed_in, self.report)

    def kept(self, finite: jax.Array | None) -> ClientState:
        """The new row, or the old one if something is not finite; None if that is unknown."""
        return self.row if finite is None else select(finite, self.row, self.before)


def draw(batches: Batches, seed: jax.Array, client: Array, number: Array) -> Randomness:
    """A dispatch's random numbers; "persistent" batches have the order of the first dispatch."""
    order, key = dispatch_keys(seed, client, number)
    if batches == "persistent":
        order, _ = dispatch_keys(seed, client, jnp.int32(0))
    return Randomness(permutation_words(order), key)


def draw_cohort(
    local: Local, shared: Shared, data: FederatedData, dispatches: Dispatch
) -> Randomness:
    """The random numbers of dispatches, leaves [slots]; of `EqualSteps` with all their batches."""
    of_one = partial(draw, local.batches, shared.seed)
    draws = jax.vmap(of_one)(dispatches.client, dispatches.number)
    steps, slots = dispatches.num_steps, len(dispatches.client)
    if local.batches == "full" or not isinstance(steps, EqualSteps):
        return draws
    if slots * steps.number * local.batch_size > _MAX_DRAWN:
        return draws

    def drawn(dispatch, draws):
        return view_of(shared, data, dispatch, draws).draw_batches(steps.number, local)

    return draws._replace(drawn=jax.vmap(drawn)(dispatches, draws))


def send(algorithm: Algorithm, server: ServerState) -> Broadcast:
    """What a client has received when its local steps begin; a pair after a prelude's broadcast."""
    broadcast = algorithm.broadcast(server, jnp.int32(0))
    if algorithm.prelude is None:
        return broadcast
    return algorithm.prelude.broadcast(server, jnp.int32(0)), broadcast


def initialised_row(
    algorithm: Algorithm, shared: Shared, client: Array, row: ClientState, known: Any
) -> ClientState:
    """The row that a local update begins with: a new one unless `row` is `known`, bool[]."""
    initial = algorithm.client_init(shared.origin, client_key(shared.seed, client))
    return jax.tree.map(lambda new, old: jnp.where(known, old, new), initial, row)


def view_of(
    shared: Shared, data: FederatedData, dispatch: Dispatch, draws: Randomness
) -> ClientData:
    """The client's examples and the parts of the model that are not trained."""
    first, frozen = dispatch.first_step, shared.frozen
    view = client_view(data, dispatch.client, draws.order, shared.statistics, first, frozen)
    return view.with_drawn(draws.drawn)


def exchange(
    algorithm: Algorithm,
    shared: Shared,
    received: Broadcast,
    data: FederatedData,
    dispatch: Dispatch,
    draws: Randomness,
    own: tuple[ClientState, Any],
) -> Sent:
    """One client's exchange; `own` is its row in the table, and whether it is initialised."""
    before = initialised_row(algorithm, shared, dispatch.client, *own)
    view = view_of(shared, data, dispatch, draws)
    row, message, report = _update(algorithm, received, before, view, dispatch, draws.key)
    return Sent(row, before, message, report)


def _update(algorithm, received, row, *arguments):
    """What `client_update` returns, checked."""
    made = algorithm.client_update(received, row, *arguments)
    fits = isinstance(made, tuple) and len(made) == 3 and isinstance(made[2], Report)
    fits = fits and all(isinstance(metric, Mean) for metric in made[2].metrics.values())
    fits = fits and not any(isinstance(leaf, str) for leaf in jax.tree.leaves(made))
    fix = "return (client state, update, Report(metrics, statistics)), with a Mean for each metric"
    require(fits, f"client_update returned {described(made)}; {fix}")
    fix = "return a row of the shapes and types of client_init's"
    check_like("the client state that client_update returned: ", made[0], row, fix)
    return made


def first_exchange(algorithm, shared, received, data, dispatch, draws) -> Sent:
    """One client's exchange in the prelude of a round, which reads no row; see `exchange`."""
    view = view_of(shared, data, dispatch, draws)
    message = algorithm.prelude.client_update(received, view, dispatch, draws.key)
    return Sent((), (), message, ())


class ExchangeShapes(NamedTuple):
    """Shapes and dtypes of what `client_update` takes, in its order."""

    received: Broadcast
    row: ClientState
    view: ClientData
    dispatch: Dispatch
    key: Any

    def updates(self, algorithm: Algorithm) -> tuple[Update, Update, Report]:
        """Shapes of the prelude's update, () if there is none, of the update, and of the report."""
        first: Any = ()
        if algorithm.prelude is not None:
            arguments = self.received[0], self.view, self.dispatch, self.key
            first = jax.eval_shape(algorithm.prelude.client_update, *arguments)
        _, update, report = jax.eval_shape(partial(_update, algorithm), *self)
        return first, update, report


def exchange_shapes(
    algorithm: Algorithm,
    server: ServerState,
    shared: Shared,
    data: FederatedData,
    dispatch: Dispatch,
) -> ExchangeShapes:
    """Shapes of one client's exchange; all arguments may be shapes, and nothing is computed."""

    def arguments(server, shared, data, dispatch):
        draws = draw(algorithm.local.batches, shared.seed, dispatch.client, dispatch.number)
        row = algorithm.client_init(shared.origin, client_key(shared.seed, dispatch.client))
        view = view_of(shared, data, dispatch, draws)
        return ExchangeShapes(send(algorithm, server), row, view, dispatch, draws.key)

    return jax.eval_shape(arguments, server, shared, data, dispatch)


class Transfer(NamedTuple):
    """Bytes of one client in one round, the model's statistics included.

    Attributes:
      download: bytes that a client receives; if broadcasts build upon each other, the first time.
      upload: bytes that it sends.
      message: bytes that it receives if it has received all earlier broadcasts.
      missed: bytes for each that it has missed, until all are as many as `download`.
      report: bytes that a client sends before it is chosen for the cohort, or to send its update;
        None if it sends nothing.
    """

    download: int
    upload: int
    message: int
    missed: int
    report: int | None = None

    def downloads(self, gaps: np.ndarray, chosen: int | None = None) -> int:
        """Bytes of the downloads of many dispatches.

        Args:
          gaps: int64[...]: dispatches by the rounds since the client's previous one; [0]: the first
            ones of clients.
          chosen: how many of them were chosen; None for all.
        """
        if chosen is not None and self.report is None:
            return chosen * self.download
        missed = np.arange(-1, len(gaps) - 1)
        each = np.minimum(self.message + missed * self.missed, self.download)
        each[0] = self.download
        return int((gaps * each).sum())

    def uploads(self, answered: int, chosen: int | None = None) -> int:
        """Bytes of the uploads of many dispatches.

        Args:
          answered: how many of them have not failed.
          chosen: how many of these have sent their update; None for all.
        """
        sent = answered if chosen is None else chosen
        return answered * (self.report or 0) + sent * self.upload


def count_transfer(
    algorithm: Algorithm, state: FederatedState, data: RunData, dispatches: Dispatch
) -> Transfer:
    """See `Engine.transfer`."""
    dispatch = take(with_arrays(dispatches), 0)
    arguments = state.server, shared_of(state), data_shapes(data), dispatch
    leaves, tree = jax.tree.flatten(arguments)
    return _transfer_of_shapes(algorithm, tree, tuple(map(jax.typeof, leaves)))


@lru_cache(maxsize=64)
def _transfer_of_shapes(algorithm, tree, leaves):
    """The runs of an engine have equal shapes, so they share one trace."""
    server, shared, *_ = arguments = tree.unflatten(leaves)
    shapes = exchange_shapes(algorithm, *arguments)
    first, update, _ = shapes.updates(algorithm)
    statistics, message = sent_bytes(shared.statistics), 0
    for phase in filter(None, (algorithm.prelude, algorithm)):
        sent = phase.download or phase.broadcast  # from which a client decodes what it receives
        message += sent_bytes(jax.eval_shape(sent, server, jnp.int32(0)))
    report, selection = None, algorithm.selection
    if algorithm.traits.offers:
        report, update = sent_bytes(update[0]), update[1]
    catch_up, up = algorithm.traits.catch_up, sent_bytes((first, update))
    whole = sent_bytes(shapes.received) if catch_up else message
    missed = message if catch_up == "sum" else whole
    if selection is not None and selection.asks:
        model = jax.eval_shape(lambda own, params: own.model(params), shapes.view, server.params)
        known = shapes.row, shapes.view, shapes.dispatch, shapes.key
        report = sent_bytes(jax.eval_shape(selection.value, model, *known))
    return Transfer(whole + statistics, up + statistics, message + statistics, missed, report)
