"""The vocabulary of the library: what is learned, what travels, what an algorithm is.

Everything here is a NamedTuple of arrays or of pure functions. An `Algorithm` says what is sent,
computed and updated; it knows nothing of devices, chunks, time or data loading.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.permutation import next_words, permute

Array: TypeAlias = jax.Array | np.ndarray
Key = jax.Array  # a typed key of jax.random.key
Params: TypeAlias = chex.ArrayTree
Statistics: TypeAlias = chex.ArrayTree
Batch: TypeAlias = chex.ArrayTree
Outputs: TypeAlias = chex.ArrayTree
ServerState: TypeAlias = Any  # a NamedTuple with a field `params`
ClientState: TypeAlias = Any
Broadcast: TypeAlias = Any
Update: TypeAlias = Any
Contribution: TypeAlias = Any
Metrics = dict[str, "Mean"]


class Population(NamedTuple):
    """Static facts about the clients that an algorithm's `init` may need."""

    num_clients: int  # N
    cohort_size: int  # M, clients in a round
    total_examples: int  # sum of n_i over all clients
    num_groups: int = 1  # groups that the server updates apart, such as FedAT's tiers


class Visit(NamedTuple):
    """Traced facts of one client's turn, given to `client_update` and `contribute`.

    Schedules make them on the host with a leading axis, one entry a client. Fractions and rates
    have jax's default float type (float32, or float64 where x64 is on).
    """

    client: Array  # int32[]: which client
    visit: Array  # int32[]: this client's how-manyeth dispatch, from 0
    server_step: Array  # int32[]: the server step whose broadcast it starts from
    num_steps: Array  # int32[]: local steps that it does
    full_steps: Array  # int32[]: local steps that a complete turn of this client has
    num_examples: Array  # int32[]: n_i
    share: Array  # float[]: n_i / sum of n over ALL clients
    learning_rate: Array  # float[]: the client's rate in this turn
    first_step: Array  # int32[]: local steps that the client did in all its earlier visits


class Model(NamedTuple):
    """A model's trainable `params` and its other `statistics`, `()` where it has none."""

    params: Params
    statistics: Statistics = ()


def _no_metrics(outputs: Outputs, batch: Batch) -> dict[str, jax.Array]:
    del outputs, batch
    return {}


class Problem(NamedTuple):
    """What is learned: a model and a loss, as pure functions.

    `loss` and `metrics` return a value for EACH example, because batches may be short: the library
    masks with `where` and divides by the real count, which a mean over the batch would not allow.
    In training, a batch that is a dict also holds "mask", bool[batch], for models whose outputs mix
    examples, such as BatchNorm's; masked rows repeat real ones.
    """

    init: Callable[[Key], Model]
    apply: Callable[[Model, Batch, Key, bool], tuple[Outputs, Statistics]]  # the bool: training?
    loss: Callable[[Outputs, Batch], jax.Array]  # float[batch]
    metrics: Callable[[Outputs, Batch], dict[str, jax.Array]] = _no_metrics  # float[batch] each


Batches = Literal["short", "dropped", "wrapped", "feeder", "replacement", "full"]


class Local(NamedTuple):
    """How a client trains: `y <- y - learning_rate * transform(gradient)`.

    Give `steps` or `epochs`, not both; a fraction of an epoch is rounded up to whole steps.
    `learning_rate` is a number, or a function from int32[...] to floats of the same shape (such as
    those of `schedules.rates`, or an optax schedule); it is asked with the server step, or, if
    `rate_by` is "visit", with the client's own number of earlier turns.
    `transform` is an optax transformation WITHOUT the rate (`optax.scale_by_adam()`, not
    `optax.adam(0.1)`); its state starts afresh in every turn. It comes after an algorithm's
    gradient correction, so `optax.chain(clip, add_decayed_weights)` stands where the papers put it.

    `batches` says how B = batch_size examples are taken from a client's n:

    - "short": each epoch is a new order of the n examples, cut in ceil(n / B) batches, the last
      one short;
    - "dropped": without that last one, so floor(n / B) batches; needs n >= B;
    - "wrapped": that last one is filled from the start of the same order;
    - "feeder": as "wrapped", but with floor(n / B) + 1 batches and at most 2 n examples in each,
      and the stream goes on where the client's last turn left it (the FedGBO paper's code);
    - "replacement": each example of each batch is drawn anew; an epoch is ceil(n / B) batches;
    - "full": every step takes the gradient of all n examples, computed in pieces of B; an epoch is
      one step. Layers that mix examples, such as BatchNorm, see a piece.
    """

    batch_size: int
    learning_rate: float | Callable[[Any], Any]
    steps: int | None = None
    epochs: float | None = None
    transform: optax.GradientTransformation = optax.identity()
    batches: Batches = "short"
    rate_by: Literal["round", "visit"] = "round"


class Mean(NamedTuple):
    """A metric as a sum and a weight: means over clients, chunks and devices add exactly."""

    total: jax.Array  # float[]
    weight: Array  # float[]

    def value(self) -> jax.Array:
        """The mean, 0 where the weight is 0."""
        return jnp.where(self.weight > 0, self.total / jnp.maximum(self.weight, 1e-30), 0)


class Report(NamedTuple):
    """What local training tells the engine; an algorithm passes it on unread."""

    metrics: Metrics
    statistics: Statistics


class ClientData(NamedTuple):
    """One client's view into the flat store of all examples: no copy, no capacity, no padding."""

    examples: Batch  # leaves [total, ...]: the whole store, shared by all clients
    indices: jax.Array  # int32[assigned]: rows of `examples`, one client after another
    offset: jax.Array  # int32[]: where this client's part of `indices` starts
    num_examples: jax.Array  # int32[]: n_i, at least 1
    order: jax.Array  # uint32[20], of (seed, client, visit): the secret of the examples' order
    statistics: Statistics  # the model's statistics as broadcast
    first_step: Array | int = 0  # int32[]: local steps of all earlier visits, for batches="feeder"

    def positions(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[jax.Array, jax.Array]:
        """The examples of local step `step`: int32[batch] below n_i, and bool[batch], real or not.

        `Local` says what the kinds of batches are; "full" has none, see `piece`.
        """
        # without signs: a signed division that rounds down is several operations
        n, step = self.num_examples.astype(jnp.uint32), step.astype(jnp.uint32)
        entries = jnp.arange(batch_size, dtype=jnp.uint32)
        if batches == "replacement":
            key = jax.random.wrap_key_data(self.order[:2], impl="threefry2x32")
            drawn = jax.random.randint(
                jax.random.fold_in(key, step), (batch_size,), 0, self.num_examples, jnp.int32
            )
            return drawn, entries >= 0
        per_epoch = batches_per_epoch(n, batch_size, batches)
        if batches == "feeder":
            step = step + jnp.asarray(self.first_step).astype(jnp.uint32)
        slots = (step % per_epoch) * batch_size + entries
        if batches == "wrapped":
            real = entries >= 0
        else:
            real = slots < (2 * n if batches == "feeder" else n)
        # the rows of slots that are not real repeat real ones
        slots = slots % n if batches in ("wrapped", "feeder") else jnp.minimum(slots, n - 1)
        return permute(next_words(self.order, step // per_epoch), slots, n), real

    def batch(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[Batch, jax.Array]:
        """Batch of local step `step` (leaves [batch, ...]) and its mask, bool[batch]."""
        positions, real = self.positions(step, batch_size, batches)
        return self._rows(positions), real

    def piece(self, number: jax.Array, size: int) -> tuple[Batch, jax.Array]:
        """The `number`-th `size` examples in stored order, and which are real: one pass over all.

        It draws nothing, so a pass leaves the stream of batches as it was.
        """
        positions = number * size + jnp.arange(size, dtype=jnp.int32)
        return self._rows(jnp.minimum(positions, self.num_examples - 1)), (
            positions < self.num_examples
        )

    def _rows(self, positions):
        rows = self.indices[self.offset + positions]
        return jax.tree.map(lambda leaf: leaf[rows], self.examples)


def batches_per_epoch(num_examples: Any, batch_size: int, batches: Batches) -> Any:
    """Local steps of an epoch over n_i examples, for an integer or an array: see `Local`."""
    if batches == "full":
        return num_examples * 0 + 1
    if batches == "feeder":
        return num_examples // batch_size + 1
    if batches == "dropped":
        return (num_examples // batch_size).clip(1)
    return (num_examples + (batch_size - 1)) // batch_size  # unsigned ones too


class WeightedSum(NamedTuple):
    """The default contribution: `weight * update` and `weight`, summed over the group."""

    total: Update
    weight: Array  # float[]

    def mean(self) -> Update:
        """The weighted mean of the group's updates."""
        return jax.tree.map(lambda t: t / self.weight.astype(t.dtype), self.total)


class Stack(NamedTuple):
    """What `server_update` receives instead of sums where `reduce` is "stack"."""

    updates: Update  # leaves [group, ...]
    visits: Visit  # leaves [group]
    mask: jax.Array  # bool[group]: False for padding


Weighting = Literal["uniform", "examples"]


def weighted_by(weighting: Weighting) -> Callable[[Update, Visit, jax.Array], WeightedSum]:
    """A `contribute` with weight 1 ("uniform") or n_i ("examples") for each client."""

    def contribute(update: Update, visit: Visit, staleness: jax.Array) -> WeightedSum:
        del staleness
        weight = visit.num_examples if weighting == "examples" else jnp.ones_like(visit.client)
        weight = weight.astype(visit.share.dtype)
        return WeightedSum(jax.tree.map(lambda u: weight.astype(u.dtype) * u, update), weight)

    return contribute


def stateless(params: Params, key: Key) -> ClientState:
    """The `client_init` of an algorithm whose clients keep nothing between their turns."""
    del params, key
    return ()


class Prelude(NamedTuple):
    """A first exchange of a round with the same cohort, before the local steps.

    Its `server_update` keeps what was gathered in the server state. The broadcast that
    `client_update` then receives is the pair (the prelude's broadcast, the algorithm's own), as
    what was sent first is still with the client: only send the rest.
    """

    broadcast: Callable[[ServerState, jax.Array], Broadcast]
    client_update: Callable[[Broadcast, ClientData, Visit, Key], Update]
    server_update: Callable[[ServerState, Any, jax.Array, jax.Array], ServerState]
    contribute: Callable[[Update, Visit, jax.Array], Contribution] = weighted_by("examples")


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions in the order in which they are used in a round.

    The server state is a NamedTuple with a field `params`, the model that is evaluated. The engine
    gathers data and client state, runs `client_update` over the cohort, and only ever SUMS what
    `contribute` returns (or stacks the updates); dividing is `server_update`'s business.
    """

    problem: Problem
    local: Local
    init: Callable[[Params, Population], ServerState]
    broadcast: Callable[[ServerState, jax.Array], Broadcast]  # the array: int32[], the group
    client_update: Callable[
        [Broadcast, ClientState, ClientData, Visit, Key], tuple[ClientState, Update, Report]
    ]
    server_update: Callable[
        [ServerState, Any, jax.Array, jax.Array], ServerState  # sums, count int32[], group int32[]
    ]
    contribute: Callable[[Update, Visit, jax.Array], Contribution] = weighted_by("examples")
    client_init: Callable[[Params, Key], ClientState] = stateless  # from theta_0, at visit 0
    reduce: Literal["sum", "stack"] = "sum"
    prelude: Prelude | None = None
