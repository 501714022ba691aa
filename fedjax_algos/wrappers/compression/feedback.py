"""Feedback: clients remember the vectors that they have sent, and the server uses them.

With "ef" (error feedback) a client adds the losses of earlier messages to a vector. With "ef21" and
"diana" a client remembers what the server already knows of its vectors and sends the difference.
The server keeps the mean of these memories over all clients. MIFA is EF21 without losses.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.checks import check_like
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers import stages
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression.coding import Codec, Coding, unchanged
from fedjax_algos.wrappers.registry import wrappers

Feedback = Literal["none", "ef", "ef21", "diana"]
_FIX = "declare Traits(like=...), a function of the params, as in fedrep"


class Memory(NamedTuple):
    """The server's memory of all clients."""

    mean: stages.Vectors  # of the memories of all N clients
    seen: Any  # bool[N]: who has sent something, in MIFA; else ()


# (v, memory) -> a for the codec to encode, and (a, decoded c, memory, alpha) -> memory
USES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ef": (lambda v, e: v + e, lambda a, c, e, alpha: a - c),
    "ef21": (lambda v, g: v - g, lambda a, c, g, alpha: g + c),
    "diana": (lambda v, h: v - h, lambda a, c, h, alpha: h + alpha * c),
}
USES["mifa"] = USES["ef21"]


@wrappers.register
def mifa(algorithm: Algorithm) -> Algorithm:
    """MIFA: averages the last updates of all clients, whether or not they are in the round.

    `U = (1/|S|) sum_{i in S} G_i`, where G_i is the last update of client i, and S are the clients
    that have sent one. Each client keeps its G_i and sends the difference to its new one, and the
    server keeps the mean. So this is EF21 with a lossless codec, apart from S: in the paper the
    first round has all clients, and EF21 counts an update that was not sent as 0. The algorithm's
    weighted mean is replaced, so the weights of all clients must be equal.

    Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS
    2021, https://arxiv.org/abs/2106.04159. There G_i is divided by the client learning rate of its
    round and multiplied by the rate of the server's step; a constant rate gives the same.

    Args:
      algorithm: the algorithm to wrap.
    """
    stage, rule, needs = remembered("mifa", Coding(unchanged, "part"), "mifa")
    return add("mifa", algorithm, client=[stage], rule=rule, needs=needs)


def remembered(
    name: str, coding: Coding, feedback: Feedback | Literal["mifa"]
) -> tuple[stages.ClientStage, stages.Rule | None, tuple[str, ...]]:
    """Makes a codec's stage with a memory, the server's rule, and their needs of an algorithm."""
    check_codec(f"{name}: feedback={feedback}", coding.codec, feedback)
    encoded, kept_of = USES[feedback]
    if feedback != "diana":
        coding = coding._replace(codec=contractive(coding.codec))

    def apply(vectors, memory, client):
        check_like("the vectors of the update: ", vectors, memory, _FIX)
        wanted = jax.tree.map(encoded, vectors, memory)
        message = coding.encode(client.key, wanted)
        decoded = stages.non_negative_moments(client.kinds, coding.decode(message))
        rates = _rates(coding, wanted)
        return stages.Sent(message, jax.tree.map(kept_of, wanted, decoded, memory, rates))

    if feedback == "ef":
        stage = stages.ClientStage(name, apply, coding.decode, stages.same)
        return stage, None, ("no choice", "no models")
    stage = stages.ClientStage(name, apply, coding.decode, stages.same, lambda kind: "vector")

    def first(zeros, population):
        seen = jnp.zeros(population.num_clients, bool) if feedback == "mifa" else ()
        return Memory(zeros, seen)

    def summand(vectors, weights, extra, dispatch, memory, facts):
        zeros = jax.tree.map(lambda seen: jnp.zeros(seen.shape, jnp.uint8), memory.seen)
        return vectors, jax.tree.map(lambda leaf: leaf.at[dispatch.client].set(1), zeros)

    def estimate(summed, memory, key, facts):
        total, senders = summed.total
        mean = jax.tree.map(lambda c: c / facts.num_clients.astype(c.dtype), total)
        if feedback == "diana":
            count = summed.number
            found = jax.tree.map(lambda h, c: h + c / count.astype(c.dtype), memory.mean, total)
            kept = jax.tree.map(kept_of, total, mean, memory.mean, _rates(coding, total))
            return found, Memory(kept, ())
        found = kept = jax.tree.map(jnp.add, memory.mean, mean)
        seen = jax.tree.map(lambda old, new: old | (new > 0), memory.seen, senders)
        if feedback == "mifa":
            found = [scale(facts.num_clients / seen.sum(), tree) for tree in kept]
        return found, Memory(kept, seen)

    fix = "leave mifa out" if feedback == "mifa" else "give feedback=ef or none"
    return stage, stages.Rule(name, estimate, summand, first, equal_weights=fix), ()


def check_codec(what: str, codec: Codec, feedback: str) -> None:
    """Raises ValueError for a codec that does not fit the feedback."""
    reason = codec.unbounded
    if feedback == "diana" and not reason and (codec.variance is None or codec.nearly):
        reason = "the codec is biased" + codec.nearly * " for vectors with few large entries"
        reason += "; give feedback=ef or ef21, or an unbiased codec"
    require(not reason, f"{what} does not fit: {reason}")


def contractive(codec: Codec) -> Codec:
    """Divides an unbiased codec by 1 + omega, so that it shrinks the distance to every vector."""
    omega = codec.variance
    if omega is None:
        return codec
    decode = codec.decode
    return codec._replace(decode=lambda message, d: decode(message, d) / (1 + omega(d)))


def _rates(coding, vectors):
    """Returns alpha = 1 / (1 + omega) of each leaf; 1 for a biased codec, which has no omega."""
    omega = coding.codec.variance
    if omega is None:
        return jax.tree.map(lambda leaf: 1.0, vectors)
    return [jax.tree.map(lambda d: 1 / (1 + omega(d)), coding.sizes(tree)) for tree in vectors]
