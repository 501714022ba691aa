"""The codec of one vector, and how a codec encodes all vectors of an update or a broadcast."""

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Key
from fedjax_algos.core.algorithm import Static
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.stages import shapes_of

Scope = Literal["part", "leaf"]
Message = Any  # packed arrays; exactly their bytes are sent


class Codec(NamedTuple):
    """The encoding of one vector of d floats.

    A message has arrays that are packed into whole words of 32 bits, so exactly their bytes are
    sent. Values that both ends derive from the seed and the client, such as a rotation or random
    positions, are in the message as a typed key of JAX (`jax.random.key`), which is never counted.

    Attributes:
      encode: `(key, v) -> message` of float[d].
      decode: `(message, d) -> v~`, float32[d]; d is a Python number.
      variance: `d -> omega` of an unbiased codec, with E|v~ - v|^2 <= omega |v|^2; None for a
        biased one.
      unbounded: why a biased codec may make a vector longer, so that no client may remember its
        losses, and what to do; "" if it never does.
      of_leaves: whether v is a leaf of the update in its shape, which `decode` receives for d. Such
        a codec has the scope "leaf".
      nearly: whether an unbiased codec is biased for some vectors, so that theorems do not hold.
      coded_bits: `(message, d) -> float32[]`, the bits of the message with an entropy code; None if
        it has none.
    """

    encode: Callable[[Key, jax.Array], Message]
    decode: Callable[[Message, Any], jax.Array]
    variance: Callable[[int], float] | None = None
    unbounded: str = ""
    of_leaves: bool = False
    nearly: bool = False
    coded_bits: Callable[[Message, int], jax.Array] | None = None


unchanged = Codec(lambda key, v: v, lambda message, d: message, lambda d: 0.0)


class Encoded(NamedTuple):
    """Encoded vectors."""

    messages: list[Any]  # for each vector a list of messages of the codec
    shapes: Static  # (structure, shapes of the leaves) of each vector; both ends know them


class Coding(NamedTuple):
    """A codec for the vectors of updates, or of broadcasts."""

    codec: Codec
    scope: Scope

    def encode(self, key: Key, vectors: list[Any]) -> Encoded:
        """Encodes vectors as messages."""
        sent = [
            self._encode(jax.random.fold_in(key, index), jax.tree.leaves(tree))
            for index, tree in enumerate(vectors)
        ]
        return Encoded(sent, Static(tuple(map(shapes_of, vectors))))

    def decode(self, sent: Encoded) -> list[Any]:
        """Decodes messages to vectors."""
        return list(map(self._decode, sent.messages, sent.shapes.value))

    def coded_bytes(self, sent: Encoded) -> jax.Array:
        """Counts the bytes of messages, each vector with an entropy code if that is smaller."""
        bits, coded = jnp.float32(0), self.codec.coded_bits
        for part, shapes in zip(sent.messages, sent.shapes.value, strict=True):
            sizes = [sum(leaf.size for leaf in group) for group in self._vectors(shapes[1])]
            for message, d in zip(part, [d for d in sizes if d], strict=True):
                size = 8 * sent_bytes(message)
                bits += size if coded is None else jnp.minimum(size, coded(message, d))
        return bits / 8

    def sizes(self, tree: Any) -> Any:
        """Returns, for each leaf, the number of entries of the vector that it is a part of."""
        total = sum(leaf.size for leaf in jax.tree.leaves(tree))
        return jax.tree.map(lambda leaf: leaf.size if self.scope == "leaf" else total, tree)

    def _vectors(self, leaves):
        """Groups the leaves by vector."""
        return [[leaf] for leaf in leaves] if self.scope == "leaf" else [leaves]

    def _size(self, group):
        """Returns the size of a vector, or the leaf's shape for a codec of leaves."""
        return group[0].shape if self.codec.of_leaves else sum(leaf.size for leaf in group)

    def _encode(self, key, leaves):
        messages = []
        for index, group in enumerate(self._vectors(leaves)):
            flat = [leaf.astype(jnp.float32).reshape(-1) for leaf in group]
            vector = jnp.concatenate([jnp.zeros(0, jnp.float32), *flat])
            if vector.size:
                vector = vector.reshape(self._size(group))
                message = self.codec.encode(jax.random.fold_in(key, index), vector)
                messages.append(_nan_unless(jnp.isfinite(vector).all(), message))
        return messages

    def _decode(self, messages, shapes):
        messages, (structure, like), leaves = iter(messages), shapes, []
        for group in self._vectors(list(like)):
            ends = list(itertools.accumulate(leaf.size for leaf in group))
            if not ends or not ends[-1]:  # no entries, so nothing is sent
                leaves += [jnp.zeros(leaf.shape, leaf.dtype) for leaf in group]
                continue
            vector = self.codec.decode(next(messages), self._size(group))
            pieces = jnp.split(vector.reshape(-1), ends[:-1])
            for piece, leaf in zip(pieces, group, strict=True):
                leaves.append(piece.reshape(leaf.shape).astype(leaf.dtype))
        return structure.unflatten(leaves)


def _nan_unless(finite: jax.Array, message: Message) -> Message:
    """Sets the message's floats to NaN unless `finite`, so that the engine sees it."""

    def of_leaf(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.where(finite, leaf, jnp.asarray(jnp.nan, leaf.dtype))

    return jax.tree.map(of_leaf, message)
