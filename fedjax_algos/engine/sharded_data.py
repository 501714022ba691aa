"""Examples divided over devices: each holds those of its own clients, and computes their turns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_algos.core import Batch
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.devices import AXIS


class Parts(NamedTuple):
    """What the devices hold: a store each, filled up with zeros to the largest one's size."""

    examples: Batch  # leaves [devices, rows, ...]
    indices: jax.Array  # int32[devices, assigned]: rows of the device's own examples
    offsets: jax.Array  # int32[devices, num_clients + 1]: the others' clients hold nothing

    @property
    def num_clients(self) -> int:
        return self.offsets.shape[1] - 1


class ShardedData(NamedTuple):
    """Clients' examples, each on the device that is its client's home: see `shard`."""

    parts: Parts
    homes: np.ndarray  # int32[num_clients], on the host: a place in the mesh
    sizes: np.ndarray  # int32[num_clients], on the host: n_i
    shapes: FederatedData  # of the data that these were made from

    @property
    def num_clients(self) -> int:
        return len(self.homes)

    def counts(self) -> np.ndarray:
        """int32[num_clients], on the host: n_i."""
        return self.sizes

    @property
    def examples(self) -> Batch:
        raise _elsewhere()

    @property
    def indices(self) -> jax.Array:
        raise _elsewhere()

    @property
    def offsets(self) -> jax.Array:
        raise _elsewhere()

    def homes_of(self, clients: np.ndarray) -> np.ndarray:
        """The homes of these clients.

        Raises:
          ValueError: for a client that is none.
        """
        for client in (clients.min(), clients.max()):
            if not 0 <= client < self.num_clients:
                raise ValueError(
                    f"client {client} is in a cohort; there are clients 0 to "
                    f"{self.num_clients - 1}: draw the visits from data.counts()"
                )
        return self.homes[clients]


def _elsewhere():
    return ValueError(
        "the examples are sharded by client, and this needs those of all; give the data as "
        "federated, not what the engine placed"
    )


PlacedData = FederatedData | ShardedData


def by_device(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays [devices, ...]."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def deal(sizes: np.ndarray, num_devices: int) -> np.ndarray:
    """int32[num_clients]: each client's home.

    Clients are dealt by size, there and back again: devices differ by one client at most, so that
    cohorts spread evenly, and by the largest client's examples at most.

    Args:
      sizes: int[num_clients]: n_i.
      num_devices: at least 1.
    """
    turn, seat = np.divmod(np.arange(len(sizes)), num_devices)
    homes = np.empty(len(sizes), np.int32)
    by_size = np.argsort(-sizes.astype(np.int64), kind="stable")
    homes[by_size] = np.where(turn % 2, num_devices - 1 - seat, seat)
    return homes


def shard(mesh: Mesh, data: PlacedData) -> ShardedData:
    """Puts each client's examples on the device that is its home.

    An example of clients with different homes is stored in each of them, one of no client nowhere.
    Each process makes the parts of its own devices.

    Args:
      mesh: over which the clients are dealt, by `deal`.
      data: of `federate`, the same in every process; or what this function gave.

    Raises:
      ValueError: for data that were sharded over other devices.
    """
    if isinstance(data, ShardedData):
        on_devices(mesh, True, data)
        return data
    sizes, number = data.counts(), mesh.size
    homes = deal(sizes, number)
    owner = np.repeat(homes, sizes)  # of each index
    ends = np.cumsum(np.bincount(owner, minlength=number))
    held = np.split(np.asarray(data.indices)[np.argsort(owner, kind="stable")], ends[:-1])
    stores = [np.unique(rows, return_inverse=True) for rows in held]
    num_rows = max(1, *(len(kept) for kept, _ in stores))
    assigned = max(1, *map(len, held))

    def put(part: Callable[[int], np.ndarray], length: int, like: Any) -> jax.Array:
        """Each device's `part`, filled up to `length`; rows and dtype are those of `like`."""
        shape, dtype = (length, *like.shape[1:]), jax.dtypes.canonicalize_dtype(like.dtype)

        def filled(index):
            (device,) = range(number)[index[0]]
            result, given = np.zeros((1, *shape), dtype), part(device)
            result[0, : len(given)] = given
            return result

        return jax.make_array_from_callback((number, *shape), by_device(mesh), filled)

    def put_examples(leaf):
        rows = np.asarray(leaf)
        return put(lambda device: rows[stores[device][0]], num_rows, rows)

    def offsets(device):
        return np.concatenate([[0], np.cumsum(np.where(homes == device, sizes, 0))])

    integers = np.zeros(0, np.int32)
    parts = Parts(
        jax.tree.map(put_examples, data.examples),
        put(lambda device: stores[device][1], assigned, integers),
        put(offsets, len(sizes) + 1, integers),
    )
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    return ShardedData(parts, homes, sizes, shapes)


def on_devices(mesh: Mesh | None, sharded: bool, data: PlacedData) -> FederatedData | Parts:
    """What programs read of placed data.

    Args:
      mesh: of the engine; None for one device.
      sharded: whether the engine has each client's examples on one of its devices only.
      data: what the engine placed.

    Raises:
      ValueError: for data that are elsewhere.
    """
    if isinstance(data, ShardedData):
        if not sharded or mesh is None or data.parts.offsets.sharding != by_device(mesh):
            raise ValueError(
                f"data are sharded over {len(data.parts.offsets)} devices, but the engine has "
                "examples='replicated' or other devices; give engine.place(data), of the data as "
                "federated"
            )
        return data.parts
    if sharded:
        raise ValueError(
            "data are whole, but the engine has examples='sharded'; give engine.place(data), made "
            "once"
        )
    if mesh is not None and not set(mesh.devices.flat) <= data.offsets.sharding.device_set:
        raise ValueError(
            "data are not on all devices of the engine; give engine.place(data), made once"
        )
    return data


def shapes_of(data: PlacedData) -> FederatedData:
    """Whole data, or the shapes of what sharded data were made from: enough to count with."""
    return data.shapes if isinstance(data, ShardedData) else data


def own(data: FederatedData | Parts) -> FederatedData:
    """What a device holds, where each sees its own part: inside `shard_map`."""
    if not isinstance(data, Parts):
        return data
    return FederatedData(*jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), data))


def refuse_pool(one: Callable, shared: Any, data: Parts, inputs: tuple) -> None:
    """Raises ValueError for turns that read examples and do not ask which are the client's.

    `centralised` does: a device would give it its own clients' examples for all.
    """

    def first(leaf):
        return leaf[0]

    def of_one(shared, data, inputs):
        return shared, FederatedData(*jax.tree.map(first, data)), jax.tree.map(first, inputs)

    def turn(data, shared, inputs):
        return one(shared, data, *inputs)

    shared, data_of_one, turns = jax.eval_shape(of_one, shared, data, inputs)
    jaxpr = jax.make_jaxpr(turn)(data_of_one, shared, turns).jaxpr
    _, read = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    *examples, offsets = read[: len(jax.tree.leaves(data_of_one))]
    if any(examples) and not offsets:
        raise ValueError(
            "the algorithm's clients read the examples of all, but examples='sharded' keeps most "
            "of them on other devices; give examples='replicated'"
        )
