"""What a client remembers of the vectors that it has sent, and what the server makes of it.

With "ef" (error feedback) a client adds to a vector what was lost of those before. With "ef21" and
"diana" it sends the difference to what the server already knows, of which the server keeps the mean
over all clients. MIFA is EF21 of which nothing is lost.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_algos.core import Algorithm, ClientState, Params, ServerState, Stack
from fedjax_algos.core.algorithm import VECTORS, PartKinds, join_update, kinds, split_update
from fedjax_algos.core.checks import check_like
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers.compression.codec import Codec, unchanged
from fedjax_algos.wrappers.compression.coding import Coding
from fedjax_algos.wrappers.mean import weighted_sum
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.replay import replaced, replay, shapes_of_one, weights_of

Feedback = Literal["none", "ef", "ef21", "diana"]
_FIX = "declare Traits(like=...), a function of the params, as in fedrep"
Vectors = list[Any]  # trees of floats, one for each vector of an update


class Row(NamedTuple):
    """A client's row: that of the algorithm, and what a wrapper keeps beside it."""

    inner: ClientState
    own: Any  # of the wrapper, such as what the client remembers of each vector


class Server(NamedTuple):
    """The server state of the algorithm, and what a wrapper keeps beside it."""

    params: Params
    rest: ServerState  # of the algorithm, with params=()
    own: Any  # of the wrapper

    @classmethod
    def of(cls, inner: ServerState, own: Any) -> "Server":
        """The state of both."""
        return cls(inner.params, inner._replace(params=()), own)

    @property
    def inner(self) -> ServerState:
        """The server state of the algorithm."""
        return self.rest._replace(params=self.params)


class Memory(NamedTuple):
    """What the server remembers of all clients."""

    mean: Vectors  # of the memories of all N clients
    seen: jax.Array  # bool[N]: who has sent something


class Rule(NamedTuple):
    """How a client uses its memory m of one vector v, and c, which the server decodes."""

    encoded: Callable[[Any, Any], Any]  # (v, m) -> a, which the codec encodes
    kept: Callable[[Any, Any, Any, Any], Any]  # (a, c, m, alpha) -> m


RULES = {
    "ef": Rule(lambda v, e: v + e, lambda a, c, e, alpha: a - c),
    "ef21": Rule(lambda v, g: v - g, lambda a, c, g, alpha: g + c),
    "diana": Rule(lambda v, h: v - h, lambda a, c, h, alpha: h + alpha * c),
}
RULES["mifa"] = RULES["ef21"]


@wrappers.register
def mifa(algorithm: Algorithm) -> Algorithm:
    """MIFA: the mean over the last updates of all clients, also of those that are not in the round.

    `U = (1/|S|) sum_{i in S} G_i`, where G_i is the last update of client i, and S are the clients
    that have sent one. Each client keeps its G_i and sends the difference to its new one, and the
    server keeps the mean. So this is EF21 with a codec that loses nothing, apart from S: in the
    paper the first round has all clients, and EF21 counts an update that was not sent as 0. The
    algorithm's weighted mean is replaced, so the weights of all clients must be equal.

    Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS
    2021, https://arxiv.org/abs/2106.04159. There G_i is divided by the client learning rate of its
    round, and multiplied by that of the server's step; here it is not, which is the same at a
    constant rate.

    Args:
      algorithm: what is wrapped.
    """
    return with_feedback("mifa", algorithm, Coding(unchanged, "part", (), 0), "mifa")


def with_feedback(
    name: str, algorithm: Algorithm, coding: Coding, feedback: Feedback | Literal["mifa"]
) -> Algorithm:
    """The algorithm with a codec, and a memory of what has been sent; see `compress`."""
    _refuse(name, algorithm, coding.codec, feedback)
    parts, rule = algorithm.traits.parts, RULES[feedback]
    if feedback != "ef":
        parts = changes_of(parts)
    coding = coding._replace(parts=parts)
    if feedback != "diana":
        coding = coding._replace(codec=contractive(coding.codec))

    def client_update(broadcast, row, data, dispatch, key):
        inner, message, report = algorithm.client_update(broadcast, row.inner, data, dispatch, key)
        update = algorithm.decode(message)
        vectors = vectors_of(parts, update)
        check_like("the vectors of the update: ", vectors, row.own, _FIX)
        wanted = jax.tree.map(rule.encoded, vectors, row.own)
        sent = coding.encode(key, with_vectors(parts, update, wanted), message)
        decoded = vectors_of(parts, coding.decode(sent))
        rates = _rates(coding, wanted)
        memory = jax.tree.map(rule.kept, wanted, decoded, row.own, rates)
        return Row(inner, memory), sent, report

    wrapped = with_own_rows(algorithm, lambda params: _first_memory(parts, algorithm, params))
    wrapped = wrapped._replace(
        client_update=client_update,
        decode=coding.decode,
        traits=algorithm.traits._replace(parts=parts),
    )
    if feedback == "ef":
        return wrapped

    def estimate(server, stack, count):
        """The estimate U of each vector, and the new mean of all memories."""
        _check_uniform(name, wrapped, stack)
        own, num_clients = server.own, server.own.seen.size
        # an index out of range is dropped
        senders = jnp.where(stack.mask, stack.dispatches.client, num_clients)
        seen = own.seen.at[senders].set(True, mode="drop")
        ones = jnp.ones(stack.mask.shape)
        total = weighted_sum(vectors_of(parts, stack.updates), ones, stack.mask)
        mean = jax.tree.map(lambda c: c / num_clients, total)
        if feedback != "diana":
            found = memory = jax.tree.map(jnp.add, own.mean, mean)
            if feedback == "mifa":
                found = [scale(num_clients / seen.sum(), tree) for tree in memory]
        else:
            found = jax.tree.map(lambda h, c: h + c / count.astype(c.dtype), own.mean, total)
            memory = jax.tree.map(rule.kept, total, mean, own.mean, _rates(coding, total))
        found = non_negative_moments(algorithm.traits.parts, found)
        return found, Memory(memory, seen)

    def first(inner, population):
        memory = _first_memory(parts, algorithm, inner.params)
        return Memory(memory, jnp.zeros(population.num_clients, bool))

    return with_server_memory(name, wrapped, first, estimate)


def with_server_memory(
    name: str,
    algorithm: Algorithm,
    first: Callable[[ServerState, Any], Any],
    estimate: Callable[[Server, Stack, jax.Array], tuple[list[Any], Any]],
) -> Algorithm:
    """The algorithm, whose server puts an estimate that it remembers in place of all updates."""

    def server_update(server, stack, count, group):
        vectors, own = estimate(server, stack, count)
        sums = replaced(algorithm, stack, vectors)
        return Server.of(algorithm.server_update(server.inner, sums, count, group), own)

    replayed = replay(name, algorithm, lambda vectors, weights, mask: vectors)
    return with_own_state(replayed, first)._replace(server_update=server_update)


def with_own_rows(algorithm: Algorithm, first: Callable[[Params], Any]) -> Algorithm:
    """The algorithm with a `Row` for each client, which keeps `first(params)` at first."""
    personal = algorithm.personal
    return algorithm._replace(
        client_init=lambda params, key: Row(algorithm.client_init(params, key), first(params)),
        personal=personal and (lambda server, row: personal(server, row.inner)),
    )


def with_own_state(algorithm: Algorithm, first: Callable[[ServerState, Any], Any]) -> Algorithm:
    """The algorithm with a `Server`, whose own state is `first(inner, population)` at first."""
    prelude, personal = algorithm.prelude, algorithm.personal

    def init(params, population):
        inner = algorithm.init(params, population)
        return Server.of(inner, first(inner, population))

    def broadcasting(phase):
        download = phase.download
        return phase._replace(
            broadcast=lambda server, group: phase.broadcast(server.inner, group),
            download=download and (lambda server, group: download(server.inner, group)),
        )

    def after_prelude(server, sums, count, group):
        return Server.of(prelude.server_update(server.inner, sums, count, group), server.own)

    return broadcasting(algorithm)._replace(
        init=init,
        personal=personal and (lambda server, row: personal(server.inner, row)),
        prelude=prelude and broadcasting(prelude)._replace(server_update=after_prelude),
    )


def _refuse(name, algorithm, codec, feedback):
    """Raises ValueError for an algorithm or a codec that the feedback is not for."""
    found, reason, fix = kinds(algorithm.traits.parts), "", _instead(name, "none")
    if algorithm.prelude is not None:
        reason = "its clients send twice in a round, and have no row in the first exchange"
    elif "choice" in found:
        reason = "its clients choose what they train, and what was lost belongs to another choice"
    elif feedback == "ef" and "model" in found:
        reason = "its clients send models, and what was lost of one is no part of the next"
    elif feedback != "ef" and algorithm.traits.reduce == "stack":
        reason = "its server compares the updates with each other, which would all be equal"
        fix = _instead(name, "ef or none")
    elif codec.unbounded:
        reason, _, fix = codec.unbounded.partition("; ")
    elif feedback == "diana" and (codec.variance is None or codec.nearly):
        reason = "the codec is biased" + codec.nearly * " for vectors with few large entries"
        fix = "give feedback=ef or ef21, or an unbiased codec"
    if reason:
        what = name if name == feedback else f"{name}: feedback={feedback}"
        raise ValueError(f"{what} does not fit: {reason}; {fix}")


def _instead(name, others):
    """What to give in place of a memory that does not fit."""
    return "leave mifa out" if name == "mifa" else f"give feedback={others}"


def _check_uniform(name, algorithm, stack):
    """Raises ValueError for weights whose sum over ALL clients the server cannot know."""
    trees = split_update(algorithm.traits.parts, stack.updates)
    one = shapes_of_one((trees, stack.dispatches))
    closed = jax.make_jaxpr(partial(weights_of, algorithm))(*one)
    _, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = jax.tree.unflatten(jax.tree.structure(one), used)[1]
    names = [field for field, is_read in zip(read._fields, read, strict=True) if is_read is True]
    if names:
        what = f"the weights of its clients depend on their {' and '.join(names)}"
        reason = "the server's memory is a plain mean over all clients"
        fix = _instead(name, "ef or none")
        if "num_examples" in names or "share" in names:
            fix = f"give the algorithm weighting=uniform, or {fix}"
        raise ValueError(f"{name}: {what}, but {reason}; {fix}")


def contractive(codec: Codec) -> Codec:
    """An unbiased codec, divided by 1 + omega, so that it shrinks the distance to every vector."""
    omega = codec.variance
    if omega is None:
        return codec
    decode = codec.decode
    return codec._replace(decode=lambda message, d: decode(message, d) / (1 + omega(d)))


def _rates(coding, vectors):
    """alpha = 1 / (1 + omega) of each leaf of vectors; 1 for a biased codec, which has no omega."""
    omega = coding.codec.variance
    if omega is None:
        return jax.tree.map(lambda leaf: 1.0, vectors)
    return [jax.tree.map(lambda d: 1 / (1 + omega(d)), coding.sizes(tree)) for tree in vectors]


def changes_of(parts: PartKinds) -> PartKinds:
    """The kinds of the changes of parts: those of vectors have any sign."""
    return jax.tree.map(lambda kind: "vector" if kind in VECTORS else kind, parts)


def vectors_of(parts: PartKinds, update: Any) -> Vectors:
    """The vectors of an update, or of a broadcast."""
    trees = zip(kinds(parts), split_update(parts, update), strict=True)
    return [tree for kind, tree in trees if kind in VECTORS]


def with_vectors(parts: PartKinds, update: Any, vectors: Vectors) -> Any:
    """An update, or a broadcast, with other vectors."""
    new = iter(vectors)
    trees = zip(kinds(parts), split_update(parts, update), strict=True)
    return join_update(parts, [next(new) if kind in VECTORS else tree for kind, tree in trees])


def _first_memory(parts, algorithm, params):
    """Zeros of the shape of each vector."""
    like = algorithm.traits.like(params)
    return [jax.tree.map(jnp.zeros_like, like) for kind in kinds(parts) if kind in VECTORS]


def non_negative_moments(parts: PartKinds, vectors: Vectors) -> Vectors:
    """The vectors, with no entry of a mean of squares below 0."""
    of_vectors = [kind for kind in kinds(parts) if kind in VECTORS]
    return [
        jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), tree) if kind == "moments" else tree
        for kind, tree in zip(of_vectors, vectors, strict=True)
    ]
