"""How a cohort is spread: over time, in chunks of clients computed at once, and over devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedjax_algos.core import ClientState, Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.devices import AXIS, divided, pin
from fedjax_algos.engine.sharded_data import Parts, own, refuse_pool

Layout = Literal["auto", "vmapped", "sequential"] | str | int


def chunk_size(layout: Layout, cohort_size: int) -> int:
    """How many clients are computed at once.

    Raises:
      ValueError: for a layout that is no name and no positive number.
    """
    if layout == "auto":
        layout = "sequential" if jax.default_backend() == "cpu" else "vmapped"
    named = {"vmapped": cohort_size, "sequential": 1}
    size = named.get(layout) if isinstance(layout, str) else layout
    if isinstance(layout, str) and layout.isdecimal():
        size = int(layout)
    if size is None or size < 1:
        raise ValueError(
            f"layout={layout!r} is unknown; give auto, vmapped, sequential, or a number of clients "
            "for each chunk"
        )
    return min(size, cohort_size)


class Spread(NamedTuple):
    """How a cohort is spread over time, in chunks of clients computed at once, and over devices."""

    layout: Layout
    mesh: Mesh | None = None  # None is one device

    @property
    def num_devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def chunk(self, cohort_size: int) -> int:
        """Clients that a device computes at once."""
        return chunk_size(self.layout, -(-cohort_size // self.num_devices))

    def places(self, cohort_size: int) -> int:
        """Room for a cohort in whole chunks on all devices."""
        unit = self.chunk(cohort_size) * self.num_devices
        return -(-cohort_size // unit) * unit

    def pin(self, tree: Any) -> Any:
        """Says in a traced function that every device holds these."""
        return pin(self.mesh, tree)

    def pin_table(self, table: ClientState) -> ClientState:
        """Says in a traced function how a table of rows is held."""
        if self.mesh is None:
            return table
        return jax.tree.map(
            lambda t: jax.lax.with_sharding_constraint(t, divided(self.mesh, len(t))), table
        )

    def order(self, num_steps: np.ndarray, homes: np.ndarray | None = None) -> np.ndarray:
        """int32[..., places]: whose turn each place takes; -1 for none.

        Turns are sorted by their steps, since a chunk takes as long as its longest one, and chunks
        are dealt to the devices there and back again. A device's places are neighbours.

        With `homes` each turn takes a place of its own device. All have as many as turns come to
        the fullest one in any of the rounds, `rounded` up, so that there are few programs.

        Args:
          num_steps: int32[..., cohort].
          homes: int32[..., cohort]: devices, by their place in the mesh.
        """
        if homes is not None:
            return self._order_at_homes(num_steps, homes)
        cohort_size = num_steps.shape[-1]
        size, devices = self.chunk(cohort_size), self.num_devices
        chunks = self.places(cohort_size) // (size * devices)
        lead = num_steps.shape[:-1]
        if devices == chunks == 1 or devices == size == 1:  # nothing to gain: the order as it was
            ordered = np.broadcast_to(np.arange(cohort_size), num_steps.shape)
        else:
            ordered = np.argsort(-num_steps.astype(np.int64), axis=-1, kind="stable")
        empty = np.full((*lead, self.places(cohort_size) - cohort_size), -1)
        dealt = np.concatenate([ordered, empty], axis=-1).reshape(*lead, chunks, devices, size)
        dealt[..., 1::2, :, :] = dealt[..., 1::2, ::-1, :].copy()
        return np.moveaxis(dealt, -2, -3).reshape(*lead, -1).astype(np.int32)

    def _order_at_homes(self, num_steps, homes):
        cohort_size, lead = num_steps.shape[-1], num_steps.shape[:-1]
        turns = (homes[..., None] == np.arange(self.num_devices)).sum(-2)  # [..., devices]
        room = min(rounded(int(turns.max())), cohort_size)
        size = chunk_size(self.layout, room)
        room = -(-room // size) * size
        ordered = np.lexsort((-num_steps.astype(np.int64), homes))  # by home, then by steps
        homes = np.take_along_axis(homes, ordered, -1)
        earlier = np.take_along_axis(np.cumsum(turns, -1) - turns, homes, -1)  # on devices before
        order = np.full((*lead, self.num_devices * room), -1)
        places = homes * room + np.arange(cohort_size) - earlier
        np.put_along_axis(order, places, ordered, -1)
        return order.astype(np.int32)


def rounded(number: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ..., so that like shapes share what is compiled."""
    unit = 2 ** max((number - 1).bit_length() - 2, 0)
    return -(-number // unit) * unit


def arrange(visits: Visit, order: np.ndarray, nobody: int) -> Visit:
    """The visits in their places; an empty place has client `nobody` and no steps."""
    taken = order >= 0
    placed = jax.tree.map(lambda leaf: np.take_along_axis(np.asarray(leaf), order, -1), visits)
    return placed._replace(
        client=np.where(taken, placed.client, nobody).astype(np.int32),
        num_steps=np.where(taken, placed.num_steps, 0).astype(np.int32),
    )


def map_cohort(
    one: Callable[..., tuple[Any, Any]],
    shared: Any,
    data: FederatedData | Parts,
    inputs: tuple,
    spread: Spread,
) -> tuple[Any, Any]:
    """`one(shared, data, visit, ...) -> (summed, kept)` over a cohort: sums, and what is kept.

    Args:
      one: a client's turn.
      shared: what all turns read; given, not closed over, since every device has its own.
      data: all clients' examples, or parts of which each device holds one. The client past their
        last is nobody, who adds nothing.
      inputs: each turn's own, leaves [places, ...]; the first are the visits, of `arrange`.
      spread: how.
    """
    size, nobody = spread.chunk(len(inputs[0].client)), data.num_clients
    if spread.mesh is None:
        return _map_chunks(partial(one, shared, data), inputs, size, nobody)
    held, split = PartitionSpec(), PartitionSpec(AXIS)
    stored = held
    if isinstance(data, Parts):
        refuse_pool(one, shared, data, inputs)
        stored = split

    def share(shared, data, inputs):
        summed, kept = _map_chunks(partial(one, shared, own(data)), inputs, size, nobody)
        return jax.lax.psum(summed, AXIS), kept

    # not checked, as loops that start from zeros would all need casts to "varying"
    mapped = jax.shard_map(
        share,
        mesh=spread.mesh,
        in_specs=(held, stored, split),
        out_specs=(held, split),
        check_vma=False,
    )
    return mapped(shared, data, inputs)


def _map_chunks(one, inputs, size, nobody):
    """A device's part: chunks of `size` at once, one after another."""

    def masked(visit, *rest):
        summed, kept = one(visit, *rest)
        real = visit.client < nobody
        # `where`, not a product: 0 * NaN is NaN, and an empty place must add nothing
        return jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), summed), kept

    @jax.jit  # traced once, for its shapes and for the loop
    def chunk(turns):
        if size == 1:  # not mapped at all: convolutions stay dense, loops run their own length
            summed, kept = masked(*jax.tree.map(lambda leaf: leaf[0], turns))
            return summed, jax.tree.map(lambda leaf: leaf[None], kept)
        summed, kept = jax.vmap(masked)(*turns)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), summed), kept

    num_chunks = len(inputs[0].client) // size
    if num_chunks == 1:
        return chunk(inputs)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, size, *leaf.shape[1:]), inputs)
    shapes, _ = jax.eval_shape(chunk, jax.tree.map(lambda leaf: leaf[0], chunks))
    zeros = jax.tree.map(jnp.zeros_like, shapes)

    def add(sums, turns):
        summed, kept = chunk(turns)
        return jax.tree.map(jnp.add, sums, summed), kept

    summed, kept = jax.lax.scan(add, zeros, chunks)
    return summed, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)
