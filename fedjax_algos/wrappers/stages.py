"""The path of an update from a client to the server's rule, as data.

A wrapper describes its part as stages and gives them to `compose.add`. An update passes the stages
of clients and then the server's stages, from left to right. At most one rule replaces all updates
by one estimate. A stage sees the vectors of an update: the parts that are trees of floats.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos import core
from fedjax_algos.core.algorithm import VECTORS, PartKinds, kinds, split_update, vector_kinds

Vectors = list[Any]  # trees of floats, one for each vector of an update
OBSERVE, CLIP, ENCODE, WHOLE = range(4)  # places of a stage of clients; see `ClientStage`
ATTACK, DEFENCE = range(2)  # places of a stage of the server


def same(value: Any) -> Any:
    """Returns the value."""
    return value


class Client(NamedTuple):
    """The input of a stage of clients.

    Attributes:
      received, data, dispatch, training_key: arguments of `client_update`.
      kinds: the kind of each vector after this stage.
      message: the message of the stages before.
      rest: the counts and choices, sent beside the message.
      tags: numbers that identify the stage in its key.
    """

    received: core.Broadcast
    data: core.ClientData
    dispatch: core.Dispatch
    training_key: core.Key
    kinds: tuple[str, ...] = ()
    message: Any = None
    rest: list[Any] = []  # noqa: RUF012
    tags: tuple[int, ...] = ()

    @property
    def key(self) -> core.Key:
        """The key of this dispatch and this stage alone."""
        return functools.reduce(jax.random.fold_in, self.tags, self.training_key)


class Sent(NamedTuple):
    """The result of a stage of clients.

    Attributes:
      message: sent in place of the vectors; unused in an `OBSERVE` stage.
      own: the stage's new memory.
      extra: numbers that are sent beside the message, by name. A random key is not counted, and
        its words arrive.
      metrics: a `Mean` for each column of the training metrics.
    """

    message: Any = None
    own: Any = ()
    extra: dict[str, Any] = {}  # noqa: RUF012
    metrics: dict[str, Any] = {}  # noqa: RUF012


class ClientStage(NamedTuple):
    """A stage of clients; all shapes are of one client.

    Attributes:
      name: the wrapper's name. With the key of a dispatch it makes the stage's key.
      apply: `(vectors, own, client) -> Sent`.
      undo: `message -> vectors`, for the next stage and for the server.
      first: `zeros -> own`: the memory before the first dispatch, from zeros like each vector, kept
        in the client's row. None if the stage has no memory.
      kind: maps a vector's kind to its kind after the stage; see `Traits.parts`.
      private: for local differential privacy, what one message reveals; None without noise.
      place: an `OBSERVE` stage may stand anywhere, and changes no vector. `CLIP` is before
        `ENCODE`, which is before `WHOLE`, the stages that send whole numbers.
    """

    name: str
    apply: Callable[[Vectors, Any, Client], Sent]
    undo: Callable[[Any], Vectors] = same
    first: Callable[[Vectors], Any] | None = None
    kind: Callable[[str], str] = same
    place: int = ENCODE
    private: "Release | None" = None


class Facts(NamedTuple):
    """The public facts of a run.

    Attributes:
      num_clients, cohort_size: float[]: N, and the expected number of clients of a cohort. On the
        virtual clock it is N, or for a rule with noise the number of updates of a server step.
      seed: uint32[]: the seed of the run.
      step: int32[]: number of server steps so far.
    """

    num_clients: jax.Array
    cohort_size: jax.Array
    seed: jax.Array
    step: jax.Array


class Cohort(NamedTuple):
    """All updates of a cohort; leaves [slots, ...].

    Attributes:
      vectors: each vector after the stages before.
      weights: float[slots] for each vector: its factor in `contribute`, or 0 where nothing has
        arrived.
      extra, dispatches: see `Sent` and `Dispatch`.
      mask: bool[slots]: which updates have arrived.
      factor: float[slots]: factors of whole contributions, their weights included.
    """

    vectors: Vectors
    weights: list[jax.Array]
    extra: dict[str, Any]
    dispatches: core.Dispatch
    mask: jax.Array
    factor: jax.Array


class Summed(NamedTuple):
    """The input of a rule on sums.

    Attributes:
      total: the sum of the results of `summand`, in their dtypes.
      weights: float[] for each vector: the sum of the weights.
      number: int32[]: number of updates that have arrived.
    """

    total: Any
    weights: list[jax.Array]
    number: jax.Array


class ServerStage(NamedTuple):
    """A change of updates on the server: of one update when it arrives, or of a cohort.

    Attributes:
      name: the wrapper's name.
      place: an `ATTACK` is before a `DEFENCE`.
      one: `(vectors, extra, dispatch, own, key, facts) -> vectors`.
      all: `(cohort, own, key, facts) -> (cohort, own)`, with all updates in memory at once.
      first: `(zeros, population) -> own`, kept in the server state; None if it has no memory.
      report: `own -> {column: number}`, columns of the results.
      reweights: whether it changes `Cohort.factor`, so that the algorithm's contributions must be a
        `WeightedSum`.
    """

    name: str
    one: Callable[..., Vectors] | None = None
    all: Callable[[Cohort, Any, core.Key, Facts], tuple[Cohort, Any]] | None = None
    first: Callable[..., Any] | None = None
    report: Callable[[Any], dict[str, Any]] | None = None
    reweights: bool = False
    place: int = DEFENCE


class Release(NamedTuple):
    """Describes what one server step reveals of the clients' updates: their sum with noise.

    Attributes:
      law: the distribution of the noise, "gaussian" or "laplace".
      noise: z: the noise's standard deviation (or the scale, for "laplace") divided by the largest
        norm of an update, in the 2-norm (or the 1-norm).
      delta: the delta that epsilon is reported for.
      sensitivity: for noise that is correlated over rounds, `Strategy.sensitivity`; else None.
    """

    law: str
    noise: float
    delta: float
    sensitivity: Callable[[int, int], float] | None = None


class Rule(NamedTuple):
    """The estimate that replaces the vectors of every update.

    Attributes:
      name: the wrapper's name.
      estimate: `(read, own, key, facts) -> (vectors, own)`, where `read` is a `Summed` if the rule
        has a `summand`, and else the `Cohort`, with all updates in memory at once.
      summand: `(vectors, weights, extra, dispatch, own, facts) -> tree`, for one update. In a
        `private` rule a weight is 1 for a fresh update, and otherwise a factor for its staleness.
      first: as in a `ServerStage`.
      report: `own -> {column: number}`, columns of the results.
      offers: whether a client may send `Sent.extra` alone; see `Traits.offers`.
      private: for differential privacy, what a step reveals. The algorithm's own rule then acts as
        if `Facts.cohort_size` clients had sent the estimate, even if none has. It needs
        `equal_weights`. None for a rule without noise.
      equal_weights: advice if clients' weights differ and the rule needs equal ones; else "".
    """

    name: str
    estimate: Callable[..., tuple[Vectors, Any]]
    summand: Callable[..., Any] | None = None
    first: Callable[..., Any] | None = None
    report: Callable[[Any], dict[str, Any]] | None = None
    offers: bool = False
    private: Release | None = None
    equal_weights: str = ""


class Down(NamedTuple):
    """The encoding of the vectors of broadcasts.

    Attributes:
      name: the wrapper's name.
      encode: `(key, vectors) -> message`.
      decode: `message -> vectors`.
      held: whether the message is the difference to the vectors that all clients hold.
      catch_up: see `Traits`.
    """

    name: str
    encode: Callable[..., Any]
    decode: Callable[[Any], Vectors]
    held: bool = False
    catch_up: str = ""


class Transport(NamedTuple):
    """Everything that wrappers have added to an algorithm, `base`."""

    base: core.Algorithm
    client: tuple[ClientStage, ...] = ()
    server: tuple[ServerStage, ...] = ()
    rule: Rule | None = None
    down: Down | None = None
    made: Any = None  # the algorithm that `compose` has made


class Row(NamedTuple):
    """A client's row: the algorithm's own row, and the memories of wrappers."""

    inner: core.ClientState
    own: Any


class Server(NamedTuple):
    """The server state of the algorithm, and the memories of wrappers."""

    params: core.Params
    rest: core.ServerState  # the algorithm's state, with params=()
    own: tuple[Any, ...]  # memories of the server's stages and the rule, and what clients hold
    facts: Facts

    @property
    def inner(self) -> core.ServerState:
        """The server state of the algorithm."""
        return self.rest._replace(params=self.params)


def divide(parts: PartKinds, update: Any, field: Any = "parts") -> tuple[Vectors, list[Any]]:
    """Splits an update, or a broadcast, into its vectors and its counts and choices."""
    pairs = list(zip(kinds(parts), split_update(parts, update, field), strict=True))
    vectors = [tree for kind, tree in pairs if kind in VECTORS]
    return vectors, [tree for kind, tree in pairs if kind not in VECTORS]


def non_negative_moments(parts: PartKinds, vectors: Vectors) -> Vectors:
    """Raises negative entries of means of squares to 0."""
    return [
        jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), tree) if kind == "moments" else tree
        for kind, tree in zip(vector_kinds(parts), vectors, strict=True)
    ]


def shapes_of(tree: Any) -> Any:
    """Returns a tree's structure, and its leaves' shapes and dtypes; both can be hashed."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
