"""Assigns dispatches to slots, and maps the slots over chunks and devices.

Each device has a contiguous range of slots and computes it chunk by chunk. `Placement.slot_order`
gives the order, on the host for NumPy arrays and in a pure round for traced ones. If examples are
sharded, `sharded_data.assign_devices` has assigned each client to a device beforehand. For a wave
of a plan, `assign_slots` in `asynchronous/` gives the order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_algos.base.errors import require
from fedjax_algos.core import Array, Dispatch, EqualSteps
from fedjax_algos.core.trees import take
from fedjax_algos.engine.compilation import round_up_size
from fedjax_algos.engine.non_finite import all_finite, select
from fedjax_algos.engine.placed.devices import AXIS, OptionalMesh
from fedjax_algos.engine.placed.sharded_data import ClientShards, ProgramData, local_shard

Layout = Literal["auto", "vmapped", "sequential"] | str | int
_MAX_DIGITS = 10  # a number of clients fits into 32 bits


def default_layout() -> Literal["sequential", "vmapped"]:
    """Resolves "auto" without a known memory; on a CPU, vmap only moves copies of the weights."""
    return "sequential" if jax.default_backend() == "cpu" else "vmapped"


def chunk_size(layout: Layout, cohort_size: int) -> int:
    """Returns how many clients are computed at once; ValueError for an unknown layout."""
    sizes: dict[Any, int] = {"vmapped": cohort_size, "sequential": 1}
    sizes["auto"] = sizes[default_layout()]
    text = str(sizes.get(layout, layout))
    size = int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0
    fix = "give auto, vmapped, sequential, or a number of clients for each chunk"
    require(size >= 1, f"layout={layout!r} is unknown; {fix}")
    return min(size, cohort_size)


class Placement(NamedTuple):
    """The layout of a cohort: over time in chunks of clients, and over devices.

    Attributes:
      layout: the layout of each device's part of the cohort.
      mesh: the devices; None is one device.
    """

    layout: Layout
    mesh: OptionalMesh = None

    @property
    def num_devices(self) -> int:
        """The number of devices that divide a cohort, or of device groups that share a client."""
        return 1 if self.mesh is None else self.mesh.size

    def chunk(self, cohort_size: int) -> int:
        """Returns the number of clients that a device computes at once.

        Args:
          cohort_size: clients in the cohort.
        """
        return chunk_size(self.layout, -(-cohort_size // self.num_devices))

    def num_slots(self, cohort_size: int) -> int:
        """Returns the number of slots: whole chunks on every device, at least `cohort_size`.

        Args:
          cohort_size: clients in the cohort.
        """
        unit = self.chunk(cohort_size) * self.num_devices
        return -(-cohort_size // unit) * unit

    def slot_order(self, num_steps: Array, devices: np.ndarray | None = None) -> Array:
        """Assigns a dispatch to each slot.

        Dispatches are sorted by their number of steps, because a chunk takes as long as its longest
        dispatch. Chunks are assigned to devices in alternating order (0, 1, 1, 0, ...), and the
        slots of a device are contiguous. One device with a single chunk, or with chunks of one
        client, keeps the order of the cohort.

        With `devices`, each dispatch gets a slot of its own device. All devices have as many slots
        as the fullest one needs, rounded up by `round_up_size`.

        Args:
          num_steps: int32[..., cohort]; traced only on one device.
          devices: int32[..., cohort]: positions in the mesh; None if every device can compute every
            client.

        Returns:
          int32[..., slots]: the index of a dispatch in the cohort, or -1 for an empty slot.
        """
        numpy: Any = jnp if isinstance(num_steps, jax.core.Tracer) else np
        num_steps = numpy.asarray(num_steps)
        if devices is not None:
            return self._order_on_devices(num_steps, devices)
        lead, cohort_size = num_steps.shape[:-1], num_steps.shape[-1]
        size, num_slots = self.chunk(cohort_size), self.num_slots(cohort_size)
        chunks = num_slots // (size * self.num_devices)
        if self.num_devices == 1 and 1 in (chunks, size):  # any order is as good
            numpy, ordered = np, np.broadcast_to(np.arange(cohort_size), num_steps.shape)
        else:
            ordered = numpy.argsort(-num_steps.astype(np.int32), axis=-1, stable=True)
        empty = np.full((*lead, num_slots - cohort_size), -1)
        slots = numpy.concatenate([ordered, empty], axis=-1).astype(np.int32)
        if self.num_devices == 1:
            return slots
        slots = slots.reshape(*lead, chunks, self.num_devices, size)
        slots[..., 1::2, :, :] = slots[..., 1::2, ::-1, :].copy()  # the alternating order
        return np.moveaxis(slots, -2, -3).reshape(*lead, -1)

    def _order_on_devices(self, num_steps, devices):
        lead, cohort_size = num_steps.shape[:-1], num_steps.shape[-1]
        counts = (devices[..., None] == np.arange(self.num_devices)).sum(-2)  # [..., devices]
        num_slots = min(round_up_size(int(counts.max())), cohort_size)  # of one device
        size = chunk_size(self.layout, num_slots)
        num_slots = -(-num_slots // size) * size
        ordered = np.lexsort((-num_steps.astype(np.int64), devices))  # by device, then by steps
        devices = np.take_along_axis(devices, ordered, -1)
        on_earlier_devices = np.take_along_axis(np.cumsum(counts, -1) - counts, devices, -1)
        order = np.full((*lead, self.num_devices * num_slots), -1)
        slots = devices * num_slots + np.arange(cohort_size) - on_earlier_devices
        np.put_along_axis(order, slots, ordered, -1)
        return order.astype(np.int32)


def fill_slots(dispatches: Dispatch, order: Array, num_clients: int) -> Dispatch:
    """Moves dispatches [..., cohort] to [..., slots]; empty slots have client N and no steps."""
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in (order, *dispatches))
    if traced and isinstance(order, np.ndarray) and np.array_equal(order, np.arange(len(order))):
        return dispatches
    numpy: Any = jnp if traced else np

    def take(leaf):
        return jnp.asarray(leaf)[order] if traced else np.take_along_axis(leaf, order, -1)

    filled, slots = order >= 0, jax.tree.map(take, jax.tree.map(numpy.asarray, dispatches))
    return slots._replace(
        client=numpy.where(filled, slots.client, num_clients).astype(np.int32),
        num_steps=numpy.where(filled, slots.num_steps, 0).astype(np.int32),
    )


def mark_equal_steps(
    slots: Dispatch, given: Dispatch, common: int | None, num_clients: int
) -> Dispatch:
    """Returns the slots with `EqualSteps` if each of the `given` dispatches does `common` steps."""
    steps, clients = given.num_steps, given.client
    known = isinstance(steps, np.ndarray) and isinstance(clients, np.ndarray)
    if common is None or not known or (steps != common).any() or (clients >= num_clients).any():
        return slots
    return slots._replace(num_steps=EqualSteps(common))


def answers(dispatches: Dispatch, num_clients: int) -> Array:
    """bool[...]: whether a client answers: the slot is not empty and the client does not fail."""
    filled = dispatches.client < num_clients
    return filled if isinstance(dispatches.arrives, tuple) else filled & dispatches.arrives


def map_cohort(
    function: Callable[..., tuple[Any, Any]],
    draw: Callable[..., Any],
    shared: Any,
    data: ProgramData,
    inputs: tuple,
    placement: Placement,
    check_each: jax.Array | None = None,
) -> tuple[Any, Any, jax.Array | None]:
    """Maps `(shared, data, dispatch, draws, *inputs) -> (summed, stacked)` over a cohort.

    `inputs`, leaves [slots, ...], begin with the dispatches of `fill_slots`. Each device draws the
    randomness of its slots at once: `draw(shared, data, dispatches)`. `shared` is copied to each
    device. The summand of an empty slot, or of a client that fails, is masked out. The third
    result, bool[slots], says whether each client's summand is finite. It is meaningful only where
    `check_each`, bool[], holds, and the sums are wrong there; None without `check_each`.
    """
    size, num_clients = placement.chunk(len(inputs[0].client)), data.num_clients

    def map_slots(shared, data, inputs, check_each):
        dispatches, *more = inputs
        inputs = dispatches, draw(shared, data, dispatches), *more
        return _map_chunks(partial(function, shared, data), inputs, size, num_clients, check_each)

    if placement.num_devices == 1:  # or several that share each client
        return map_slots(shared, local_shard(data), inputs, check_each)
    assert placement.mesh is not None

    def map_on_device(shared, data, inputs):
        shared, check_each = shared
        summed, *stacked = map_slots(shared, local_shard(data), inputs, check_each)
        return jax.lax.psum(summed, AXIS), *stacked

    replicated, divided = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(
        map_on_device,
        mesh=placement.mesh.mesh,
        axis_names={AXIS},  # the compiler divides the work within a client
        in_specs=(replicated, divided if isinstance(data, ClientShards) else replicated, divided),
        out_specs=(replicated, divided, divided),
        check_vma=False,  # loops that start from zeros would all need casts to "varying"
    )((shared, check_each), data, inputs)


def _map_chunks(function, inputs, size, num_clients, check_each):
    """Maps one device's part of the cohort: chunks of `size` clients, one chunk after another."""

    def masked(dispatch, *rest):
        summed, stacked = function(dispatch, *rest)
        answered = answers(dispatch, num_clients)
        # `where`, not a product: 0 * NaN is NaN, and an empty slot must not change the sum
        return select(answered, summed, 0), stacked

    @jax.jit  # traced once, for its shapes and for the loop
    def map_chunk(inputs):
        if size > 1:
            return jax.vmap(masked)(*inputs)
        # no vmap: convolutions stay dense, and loops run their own length
        summed, stacked = masked(*take(inputs, 0))
        return summed, take(stacked, None)

    def add_chunk(sums, inputs):
        each, stacked = map_chunk(inputs)
        summed = each
        if size > 1:
            summed = jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), each)
        if sums is not None:
            if check_each is not None:  # a branch: fused with the sum it would round differently
                empty = jax.tree.map(jnp.zeros_like, sums)
                sums = jax.lax.cond(check_each, lambda _: empty, lambda sums: sums, sums)
            summed = jax.tree.map(jnp.add, sums, summed)
        if check_each is None:
            return summed, (stacked, None)
        if size == 1:  # the client's summand is in memory anyway
            each = take(summed, None)
        unknown = jnp.ones(size, bool)
        finite = jax.lax.cond(check_each, jax.vmap(all_finite), lambda _: unknown, each)
        return summed, (stacked, finite)

    num_chunks = len(inputs[0].client) // size
    if num_chunks == 1:
        summed, stacked = add_chunk(None, inputs)
        return summed, *stacked
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, size, *leaf.shape[1:]), inputs)
    shapes, _ = jax.eval_shape(partial(add_chunk, None), take(chunks, 0))
    summed, stacked = jax.lax.scan(add_chunk, jax.tree.map(jnp.zeros_like, shapes), chunks)
    return summed, *jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacked)
