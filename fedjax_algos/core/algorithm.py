"""Defines `Algorithm`: pure functions that say what is sent, computed and updated.

An `Algorithm` knows nothing of devices, chunks, time or data loading.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.reprs import describe
from fedjax_algos.core.client_data import ClientData
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.trees import scale
from fedjax_algos.core.types import (
    Broadcast,
    ClientState,
    Contribution,
    Dispatch,
    Key,
    Local,
    Model,
    Params,
    Population,
    Problem,
    Report,
    ServerState,
    Update,
    WeightedSum,
)

Weighting = Literal["uniform", "examples"]


def weighted_by(weighting: Weighting) -> Callable[[Update, Dispatch, jax.Array], WeightedSum]:
    """Returns a `contribute` function for weighted means over the cohort.

    Args:
      weighting: the weight of each client: 1 ("uniform"), or n_i ("examples").

    Raises:
      ValueError: for another weighting.
    """
    check_choice("weighting", weighting, typing.get_args(Weighting))

    def contribute(update: Update, dispatch: Dispatch, staleness: jax.Array) -> WeightedSum:
        count = dispatch.num_examples if weighting == "examples" else jnp.int32(1)
        weight = count.astype(dispatch.share.dtype)
        return WeightedSum(scale(weight, update), weight)

    return contribute


def stateless(params: Params, key: Key) -> ClientState:
    """Returns `()`: the `client_init` of algorithms whose clients keep no state.

    Args:
      params: the initial params, unused.
      key: the client's key, unused.
    """
    return ()


PartKind = Literal["delta", "change", "model", "vector", "moments", "count", "choice"]
PartKinds = Any  # a tree prefix of an update, with a `PartKind` as each leaf
MODELS = ("delta", "change", "model")  # trees like the params, or of some of their leaves
VECTORS = (*MODELS, "vector", "moments")  # trees of floats


def unchanged(tree: Any) -> Any:
    """Returns its argument: the default of `Algorithm.decode` and `Traits.like`."""
    return tree


def send_params(server: ServerState, group: jax.Array) -> Broadcast:
    """Returns the params: the default of `Algorithm.broadcast`."""
    return server.params


class Asynchrony(NamedTuple):
    """The planners of the virtual clock that run an algorithm, such as "immediate" or "tiers".

    With the planner "barrier" all clients start from the model that the server then updates. Every
    other planner applies an update `x - y_i` of an older x to a newer model. Most server rules
    allow this.

    Attributes:
      default: the planner that the algorithm was made for, with options if it needs some.
      allowed: the planners that may run it; None allows all.
      reason: why the others may not, and what to do instead.
    """

    default: str = "barrier"
    allowed: tuple[str, ...] | None = None
    reason: str = ""


class Traits(NamedTuple):
    """The properties that an algorithm declares.

    `parts` says what each part of an update is, as a tree prefix of the update, such as
    `Upload("delta", "count")`. Wrappers and diagnostics read it.

    - "delta" is the difference of models x - y_i, "change" is y_i - x, and "model" is y_i. A part
      with the structure of the params must have their shapes and dtypes; the engine checks this.
    - "vector" is another tree of floats, such as a gradient or the change of a control, and
      "moments" is one whose entries stay at least 0, such as a mean of squares.
    - "count" is a public number that is sent exactly, such as a number of steps.
    - "choice" is the client's choice among alternatives, such as the number of its cluster.

    `broadcast` does the same for what the server sends; "count" is everything sent exactly.

    Attributes:
      parts: see above; "delta" if the whole update is x - y_i.
      broadcast: see above; "model" if the whole broadcast is x, or the part of it that is shared.
      reduce: "sum", or "stack": `server_update` receives a `Stack`, and `contribute` is not called.
      asynchrony: the planners of the virtual clock that may run it.
      pools_examples: whether clients read the examples of other clients, as in `centralised`.
      requires_sgd: why the rule is right only if clients step along the gradient itself; the
        engine then refuses `Settings.client_optimizer` and rates that change within a local
        update. "" if clients may have any optimiser.
      own_optimizer: why clients have an optimiser of the algorithm's own, so that the engine
        refuses `Settings.client_optimizer`; "" if they have none.
      catch_up: "" if each broadcast stands alone. Otherwise a broadcast builds upon all earlier
        ones. With "sum", a client that missed some downloads them if they are smaller than the
        whole broadcast, else the whole broadcast; with "full", always the whole broadcast.
      offers: whether a client may send only the first part of its message, which has two or more.
        "uploads", int[], in `Algorithm.report` then counts the clients that sent all of it so far.
      steps_alone: whether the server also makes a step if no update has arrived.
      like: `params -> tree` with the structure, shapes and dtypes of each part of an update that
        is not a count or a choice; or, if the parts differ, a tree like the whole update, of the
        same NamedTuple as `parts`. Wrappers that keep vectors between rounds call it.
    """

    parts: PartKinds = "delta"
    broadcast: PartKinds = "model"
    reduce: Literal["sum", "stack"] = "sum"
    asynchrony: Asynchrony = Asynchrony()
    pools_examples: bool = False
    requires_sgd: str = ""
    own_optimizer: str = ""
    catch_up: Literal["", "sum", "full"] = ""
    offers: bool = False
    steps_alone: bool = False
    like: Callable[[Params], Any] = unchanged


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    """A value in a tree that is not an array; it is compiled into the program."""

    value: Any


class Arrived(NamedTuple):
    """The result of a wrapper's `decode` if more than the update was sent."""

    vectors: list[Any]  # their shapes may differ from the algorithm's
    rest: list[Any]  # counts and choices
    extra: dict[str, Any]  # numbers sent beside the update, by name
    like: Static  # the shapes of the algorithm's vectors
    dispatch: Any = ()  # wrappers add it and the staleness
    staleness: Any = ()


def update_in(parts: PartKinds, decoded: Any) -> Update:
    """Returns the update from the result of `decode`."""
    if not isinstance(decoded, Arrived):
        return decoded
    return unite(parts, decoded.vectors, decoded.rest)


class Prelude(NamedTuple):
    """A first exchange of a round with the same cohort, before the local steps.

    It has the functions of `Algorithm`, without client state. `server_update` keeps the result in
    the server state. The algorithm's `client_update` then receives the pair (the prelude's
    broadcast, the algorithm's broadcast). The client still has the first, so the algorithm
    broadcasts only the rest.

    Attributes:
      client_update: `(broadcast, data, dispatch, key) -> update`.
      broadcast, server_update, contribute, decode, download, transport: as in `Algorithm`.
      traits: the parts of its update, and whether `server_update` receives sums or a stack.
    """

    broadcast: Callable[[ServerState, jax.Array], Broadcast]
    client_update: Callable[[Broadcast, ClientData, Dispatch, Key], Update]
    server_update: Callable[[ServerState, Any, jax.Array, jax.Array], ServerState]
    contribute: Callable[[Update, Dispatch, jax.Array], Contribution] = weighted_by("examples")
    decode: Callable[[Any], Update] = unchanged
    download: Callable[[ServerState, jax.Array], Any] | None = None
    traits: Traits = Traits("vector")
    transport: Any = None


class Selection(NamedTuple):
    """Chooses the cohort of a round among more candidates, by numbers that the candidates report.

    The sampler draws `num_candidates(M)` clients for a cohort of M. Each candidate has a dispatch,
    whose number, local steps and learning rate apply if it is chosen. A candidate that fails
    (`Dispatch.arrives`) reports nothing. The update of a chosen candidate always arrives.

    Attributes:
      factor: candidates per client of the cohort, float of at least 1.
      value: `(model, client_state, data, dispatch, key) -> values`, the numbers that one candidate
        reports. `model` is the server's.
      choose: `(values, dispatches, answered, cohort_size, seed) -> int32[cohort_size]`: positions
        of the chosen candidates in leaves [candidates], each at most once. `answered`,
        bool[candidates], is False for empty slots and for candidates that fail; choosing one of
        them leaves a slot empty. `seed`, uint32[], is the run's, for `randomness.selection_key`.
      asks: whether candidates download the broadcast and send their values. If not, the server
        knows the values, and only the chosen clients download.
    """

    factor: float
    value: Callable[[Model, ClientState, ClientData, Dispatch, Key], Any]
    choose: Callable[[Any, Dispatch, jax.Array, int, jax.Array], jax.Array]
    asks: bool = True

    def num_candidates(self, cohort_size: int) -> int:
        """Returns `factor * cohort_size`, rounded up.

        Args:
          cohort_size: M, the number of clients to choose.
        """
        return math.ceil(self.factor * cohort_size * (1 - 1e-12))

    def cohort_size(self, num_candidates: int) -> int:
        """Returns M, the inverse of `num_candidates`.

        Args:
          num_candidates: the result of `num_candidates(M)`.
        """
        return max(1, math.floor(num_candidates / self.factor * (1 + 1e-12)))


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions, in the order in which a round calls them.

    - `init(params, population)` makes the server state, a NamedTuple with a field `params`. The
      engine evaluates these params.
    - `broadcast(server, group)` returns what a client downloads; the default is `server.params`.
      `group`, int32[], is 0 in rounds; see `Population.num_groups`.
    - `client_init(params, key)` makes a client's state at its first dispatch, from initial params.
    - `client_update(broadcast, client_state, data, dispatch, key)` trains one client and returns
      its new state, its update and the `Report` of local training.
    - `decode(message)` returns the update from the message of `client_update`; by default they are
      the same. Only wrappers that encode updates replace it. Bytes are counted in the message.
    - `download(server, group)` returns the message that a client decodes the broadcast from; None
      if it receives the broadcast itself. It is never computed: only its bytes are counted.
    - `contribute(update, dispatch, staleness)` returns what the engine SUMS over the cohort. It
      divides nothing. `staleness`, int32[], is 0 in rounds. Wrappers with a server rule need the
      result to contain each vector of the update times one number.
    - `server_update(server, sums, count, group)` makes the new server state from the sums over
      `count`, int32[], clients. It does all dividing.
    - `personal(server, client_state)` returns a client's personal model; None means the server's
      model. Its statistics may be `()`: the run's statistics are then used.
    - `report(server)` returns numbers by name, which become columns of the results; None for none.

    The functions see one client at a time. The engine maps, masks and compiles them, so they
    contain no `jit`, `vmap`, masks, batches or devices. docs/own_algorithms.md has a picture.

    Attributes:
      problem: the model and the loss.
      local: how clients train.
      prelude: a first exchange of the round, or None.
      selection: chooses the cohort by what candidates report, or None.
      traits: the properties that it declares.
      transport: what wrappers have added, or None. If given, `contribute` receives the server
        state as its last argument.
    """

    problem: Problem
    local: Local
    init: Callable[[Params, Population], ServerState]
    client_update: Callable[
        [Broadcast, ClientState, ClientData, Dispatch, Key], tuple[ClientState, Update, Report]
    ]
    server_update: Callable[[ServerState, Any, jax.Array, jax.Array], ServerState]
    broadcast: Callable[[ServerState, jax.Array], Broadcast] = send_params
    contribute: Callable[[Update, Dispatch, jax.Array], Contribution] = weighted_by("examples")
    decode: Callable[[Any], Update] = unchanged
    download: Callable[[ServerState, jax.Array], Any] | None = None
    client_init: Callable[[Params, Key], ClientState] = stateless
    prelude: Prelude | None = None
    selection: Selection | None = None
    personal: Callable[[ServerState, ClientState], Model] | None = None
    report: Callable[[ServerState], dict[str, jax.Array]] | None = None
    traits: Traits = Traits()
    transport: Any = None

    def __repr__(self) -> str:
        base = self.transport.base if self.transport else self
        functions = {"client_update": base.client_update, "server_update": base.server_update}
        texts = {n: getattr(f, "__qualname__", "unknown") for n, f in functions.items()}
        factories = {name: text.split(".")[0] for name, text in texts.items()}
        return describe(self, **factories, problem=self.problem, local=self.local)


def contribution_of(
    phase: Algorithm | Prelude, update: Any, dispatch: Dispatch, staleness: Any, server: ServerState
) -> Contribution:
    """Calls `contribute`, with the server state if there are wrappers."""
    server_state = () if phase.transport is None else (server,)
    return phase.contribute(update, dispatch, staleness, *server_state)


def kinds(parts: PartKinds) -> tuple[str, ...]:
    """Returns the kind of each part, in the order of the update's leaves."""
    return tuple(jax.tree.leaves(parts))


def vector_kinds(parts: PartKinds) -> tuple[str, ...]:
    """Returns the kind of each part that is a tree of floats."""
    return tuple(kind for kind in kinds(parts) if kind in VECTORS)


def vectors_like(traits: Traits, params: Params) -> list[Any]:
    """Returns a tree like each vector of an update, by `Traits.like`."""
    like, parts = traits.like(params), kinds(traits.parts)
    if hasattr(traits.parts, "_fields") and type(like) is type(traits.parts):
        trees = split_update(traits.parts, like)
        return [tree for kind, tree in zip(parts, trees, strict=True) if kind in VECTORS]
    return [like] * len(vector_kinds(traits.parts))


def split_update(parts: PartKinds, update: Update, field: str = "parts") -> list[Any]:
    """Returns one tree for each of `kinds(parts)`; `field` is "parts" or "broadcast"."""
    structure: Any = jax.tree.structure(parts)
    try:
        trees = structure.flatten_up_to(update)
    except (TypeError, ValueError) as error:
        noun = "update" if field == "parts" else "broadcast"
        found = f"the {noun} is {jax.tree.structure(update)}"
        raise ValueError(mismatch(parts, found, field)) from error
    for kind, tree in zip(kinds(parts), trees, strict=True):
        for leaf in jax.tree.leaves(tree) if kind in VECTORS else []:
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                found = f"a {kind} has {jnp.result_type(leaf)} entries"
                raise ValueError(mismatch(parts, found, field))
    return trees


def mismatch(parts: PartKinds, found: str, field: str = "parts") -> str:
    """Returns the error message for parts that differ from the declared ones."""
    whole = "update, as in fednova" if field == "parts" else "broadcast, as in scaffold"
    fix = f"give Traits({field}=...) the kind of each part of its {whole}"
    return f"the algorithm declares {field}={parts!r}, but {found}; {fix}"


def unite(parts: PartKinds, vectors: Iterable[Any], rest: Iterable[Any]) -> Update:
    """Puts an update, or a broadcast, together from its vectors and its counts and choices."""
    structure: Any = jax.tree.structure(parts)
    trees = iter(vectors), iter(rest)
    return structure.unflatten(next(trees[kind not in VECTORS]) for kind in kinds(parts))
