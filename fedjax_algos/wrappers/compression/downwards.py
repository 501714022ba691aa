"""What the server sends, encoded: a lossy broadcast each time, or the change of what clients hold.

Clients start from what they decode, so their updates are differences to that. The server has the
exact params, which are evaluated.
"""

import zlib
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm, Key, Params, Prelude
from fedjax_algos.core.algorithm import MODELS, kinds, mismatch, split_update
from fedjax_algos.core.randomness import server_key
from fedjax_algos.wrappers.compression.codec import Codec, unchanged
from fedjax_algos.wrappers.compression.coding import Coding, Scope
from fedjax_algos.wrappers.compression.feedback import (
    Feedback,
    Server,
    Vectors,
    changes_of,
    contractive,
    non_negative_moments,
    vectors_of,
    with_own_state,
    with_vectors,
)

CatchUp = Literal["sum", "full"]


class Sender(NamedTuple):
    """What the server keeps to encode broadcasts."""

    held: Vectors  # what all clients hold; [] if each broadcast stands alone
    seed: jax.Array  # uint32[]
    step: jax.Array  # int32[]: server steps

    @property
    def key(self) -> Key:
        """The key of the next broadcast."""
        return server_key(self.seed, self.step)


def encode_broadcasts(
    name: str,
    algorithm: Algorithm,
    codec: Codec,
    feedback: Feedback,
    scope: Scope,
    catch_up: CatchUp,
) -> Algorithm:
    """The algorithm, whose server sends encoded vectors; see `compress`."""
    _refuse(name, algorithm, codec, feedback)
    if feedback == "ef21":
        return _differences(name, algorithm, contractive(codec), scope, catch_up)
    return algorithm if codec is unchanged else _lossy(name, algorithm, codec, scope)


def _lossy(name, algorithm, codec, scope):
    """Clients start from `decode(encode(broadcast))`, which the next broadcast does not know."""

    def first(inner, population):
        return Sender([], jnp.asarray(population.seed), jnp.int32(0))

    def server_update(server, sums, count, group):
        inner = algorithm.server_update(server.inner, sums, count, group)
        return Server.of(inner, server.own._replace(step=server.own.step + 1))

    def encoding(phase, what):
        tag = zlib.crc32(f"{name} of a {what}".encode())
        coding = Coding(codec, scope, phase.traits.broadcast, tag)

        def download(server, group):
            broadcast = phase.broadcast(server, group)
            check_broadcast(phase, broadcast, server.params)
            return coding.encode(server.own.key, broadcast)

        return phase._replace(
            broadcast=lambda server, group: coding.decode(download(server, group)),
            download=download,
        )

    wrapped = with_own_state(algorithm, first)._replace(server_update=server_update)
    prelude = wrapped.prelude and encoding(wrapped.prelude, "prelude's broadcast")
    return encoding(wrapped, "broadcast")._replace(prelude=prelude)


def _differences(name, algorithm, codec, scope, catch_up):
    """With v of the broadcast and v^ at the clients, `c = C(v - v^)` is sent, and v^ += c (EF21-P).

    In the first round v^ is v itself.
    """
    traits = algorithm.traits
    parts = changes_of(traits.broadcast)
    coding = Coding(codec, scope, parts, zlib.crc32(f"{name} of a broadcast".encode()))

    def first(inner, population):
        broadcast = algorithm.broadcast(inner, jnp.int32(0))
        check_broadcast(algorithm, broadcast, inner.params)
        held = jax.tree.map(jnp.copy, vectors_of(parts, broadcast))
        return Sender(held, jnp.asarray(population.seed), jnp.int32(0))

    def encode(inner, own, group):
        broadcast = algorithm.broadcast(inner, group)
        change = jax.tree.map(jnp.subtract, vectors_of(parts, broadcast), own.held)
        return coding.encode(own.key, with_vectors(parts, broadcast, change))

    def server_update(server, sums, count, group):
        own, inner = server.own, algorithm.server_update(server.inner, sums, count, group)
        change = vectors_of(parts, coding.decode(encode(inner, own, group)))
        held = jax.tree.map(jnp.add, own.held, change)
        held = non_negative_moments(traits.broadcast, held)
        return Server.of(inner, own._replace(held=held, step=own.step + 1))

    def broadcast(server, group):
        return with_vectors(parts, algorithm.broadcast(server.inner, group), server.own.held)

    return with_own_state(algorithm, first)._replace(
        broadcast=broadcast,
        download=lambda server, group: encode(server.inner, server.own, group),
        server_update=server_update,
        traits=traits._replace(catch_up=catch_up),
    )


def check_broadcast(phase: Algorithm | Prelude, broadcast: Any, params: Params) -> None:
    """Raises ValueError for a broadcast that is not what the algorithm declares."""
    parts = phase.traits.broadcast
    trees = split_update(parts, broadcast, "broadcast")
    shapes = [_shapes(tree) for tree in (params, phase.traits.like(params))]
    for kind, tree in zip(kinds(parts), trees, strict=True):
        if kind in MODELS and _shapes(tree) not in shapes:
            found = f"a {kind} in the broadcast is {jax.tree.structure(tree)}, unlike the params"
            raise ValueError(mismatch(parts, found, "broadcast"))


def _shapes(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)


def _refuse(name, algorithm, codec, feedback):
    """Raises ValueError for an algorithm or a codec that the feedback is not for."""
    reason, fix = "", "give feedback=none"
    if feedback in ("ef", "diana"):
        reason, fix = "it is a rule of clients", "give feedback=ef21 or none"
    elif algorithm.download is not None:
        reason, fix = "the broadcasts are encoded already", "leave one of the two out"
    elif feedback == "ef21" and algorithm.prelude is not None:
        reason = "the server sends twice in a round, and first what clients have to answer"
    elif feedback == "ef21" and codec.unbounded:
        reason, _, fix = codec.unbounded.partition("; ")
    if reason:
        given = f"direction=down with feedback={feedback} does not fit"
        raise ValueError(f"{name}: {given}: {reason}; {fix}")
