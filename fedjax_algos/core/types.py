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
