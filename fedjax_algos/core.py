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


class Local(NamedTuple):
    """How a client trains: `y <- y - learning_rate * transform(gradient)`.

    Give `steps` or `epochs`, not both; an epoch of n_i examples is ceil(n_i / batch_size) steps.
    `transform` is an optax transformation WITHOUT the rate (`optax.scale_by_adam()`, not
    `optax.adam(0.1)`); its state starts afresh in every turn. It comes after an algorithm's
    gradient correction, so `optax.chain(clip, add_decayed_weights)` stands where the papers put it.
    """

    batch_size: int
    learning_rate: float
    steps: int | None = None
    epochs: int | None = None
    transform: optax.GradientTransformation = optax.identity()


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

    def positions(self, step: jax.Array, batch_size: int) -> tuple[jax.Array, jax.Array]:
        """The examples of local step `step`: int32[batch] below n_i, and bool[batch], real or not.

        Every epoch walks its own keyed permutation of the n_i examples; its last batch is short.
        """
        steps_an_epoch = -(-self.num_examples // batch_size)
        slots = (step % steps_an_epoch) * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        real = slots < self.num_examples
        order = next_words(self.order, step // steps_an_epoch)
        return permute(order, jnp.minimum(slots, self.num_examples - 1), self.num_examples), real

    def batch(self, step: jax.Array, batch_size: int) -> tuple[Batch, jax.Array]:
        """Batch of local step `step` (leaves [batch, ...]) and its mask, bool[batch]."""
        positions, real = self.positions(step, batch_size)
        rows = self.indices[self.offset + positions]
        return jax.tree.map(lambda leaf: leaf[rows], self.examples), real


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
