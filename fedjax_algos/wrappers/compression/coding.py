"""How the parts of an update or a broadcast are encoded by a codec of one vector, and decoded."""

import dataclasses
import itertools
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Key
from fedjax_algos.core.algorithm import VECTORS, PartKinds, join_update, kinds, split_update
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.compression.codec import Codec, Message

Scope = Literal["part", "leaf"]


class Shapes(NamedTuple):
    """The structure of a part of an update, and the shapes and dtypes of its leaves."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=["shapes", "place"])
@dataclasses.dataclass(frozen=True)
class Sent:
    """What a client sends, or the server."""

    parts: list[Any]  # of a vector a list of messages of the codec; counts and choices as they are
    shapes: tuple[Shapes, ...]  # of each part, which both ends know
    place: int = 0  # how many codecs came before


class Coding(NamedTuple):
    """A codec for the vectors of updates, or of broadcasts."""

    codec: Codec
    scope: Scope
    parts: PartKinds
    tag: int  # of its random numbers, so that they are none of the algorithm's

    def encode(self, key: Key, update: Any, message: Any = ()) -> Sent:
        """The message of an update, or of what was decoded of another `message`.

        The second of two equal codecs draws other numbers than the first.
        """
        messages = jax.tree.leaves(message, is_leaf=lambda leaf: isinstance(leaf, Sent))
        place = max((1 + each.place for each in messages if isinstance(each, Sent)), default=0)
        key, sent, shapes = jax.random.fold_in(key, self.tag), [], []
        key = jax.random.fold_in(key, place) if place else key
        for index, (kind, tree) in enumerate(self._parts(update)):
            leaves, structure = jax.tree.flatten(tree)
            like = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
            shapes.append(Shapes(structure, tuple(like)))
            of_part = jax.random.fold_in(key, index)
            sent.append(self._encode(of_part, leaves) if kind in VECTORS else tree)
        return Sent(sent, tuple(shapes), place)

    def decode(self, sent: Sent) -> Any:
        """The update that a message stands for."""
        trees = []
        for kind, part, shapes in zip(kinds(self.parts), sent.parts, sent.shapes, strict=True):
            tree = self._decode(part, shapes) if kind in VECTORS else part
            if kind == "moments":
                tree = jax.tree.map(partial(jnp.maximum, 0), tree)
            trees.append(tree)
        return join_update(self.parts, trees)

    def coded_bytes(self, sent: Sent) -> jax.Array:
        """The bytes of a message with an entropy code of each vector that this makes smaller."""
        bits = jnp.float32(0)
        for kind, part, shapes in zip(kinds(self.parts), sent.parts, sent.shapes, strict=True):
            if kind not in VECTORS:
                bits += 8 * sent_bytes(part)
                continue
            sizes = [sum(leaf.size for leaf in group) for group in self._vectors(shapes.leaves)]
            for message, d in zip(part, [d for d in sizes if d], strict=True):
                size = 8 * sent_bytes(message)
                coded = self.codec.coded_bits
                bits += size if coded is None else jnp.minimum(size, coded(message, d))
        return bits / 8

    def sizes(self, tree: Any) -> Any:
        """A tree of whole numbers: the entries of the vector that each leaf is a part of."""
        leaves = jax.tree.leaves(tree)
        groups = self._vectors(leaves)
        of_leaves = [sum(leaf.size for leaf in group) for group in groups for _ in group]
        return jax.tree.unflatten(jax.tree.structure(tree), of_leaves)

    def _parts(self, update):
        return zip(kinds(self.parts), split_update(self.parts, update), strict=True)

    def _vectors(self, leaves):
        """The leaves that each vector is made of."""
        return [[leaf] for leaf in leaves] if self.scope == "leaf" else [leaves]

    def _size(self, group):
        """The entries of a vector, or of a codec of leaves the leaf's shape."""
        return group[0].shape if self.codec.of_leaves else sum(leaf.size for leaf in group)

    def _encode(self, key, leaves):
        messages = []
        for index, group in enumerate(self._vectors(leaves)):
            flat = [leaf.astype(jnp.float32).reshape(-1) for leaf in group]
            vector = jnp.concatenate([jnp.zeros(0, jnp.float32), *flat])
            if vector.size:
                vector = vector.reshape(self._size(group))
                message = self.codec.encode(jax.random.fold_in(key, index), vector)
                messages.append(_as_finite(jnp.isfinite(vector).all(), message))
        return messages

    def _decode(self, messages, shapes):
        messages, leaves = iter(messages), []
        for group in self._vectors(list(shapes.leaves)):
            ends = list(itertools.accumulate(leaf.size for leaf in group))
            if not ends or not ends[-1]:  # a part that is not sent
                leaves += [jnp.zeros(leaf.shape, leaf.dtype) for leaf in group]
                continue
            vector = self.codec.decode(next(messages), self._size(group))
            pieces = jnp.split(vector.reshape(-1), ends[:-1])
            for piece, leaf in zip(pieces, group, strict=True):
                leaves.append(piece.reshape(leaf.shape).astype(leaf.dtype))
        return shapes.structure.unflatten(leaves)


def _as_finite(finite: jax.Array, message: Message) -> Message:
    """The message, whose floats are NaN if what it encodes is not finite, so that it is seen."""

    def of_leaf(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.where(finite, leaf, jnp.asarray(jnp.nan, leaf.dtype))

    return jax.tree.map(of_leaf, message)
