"""Shards examples by client: each device holds the examples of its own clients and trains them.

So a population may be too large for one device. But a draw is uneven, and a round waits for the
fullest device: of M clients over D devices, it has up to about `sqrt(2 M / D ln(D R))` more than
M / D in R rounds. Each device has slots for the fullest one, rounded up to 1, 2, 3, 4, 6, 8, ...,
so a run compiles few programs. If clients are vmapped, empty slots cost as much as others.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import Batch
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.compilation import round_up_size
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import AXIS, ClientMesh, OptionalMesh


class ClientShards(NamedTuple):
    """The examples on the devices: one store for each, padded with zeros to the largest size."""

    examples: Batch  # leaves [devices, rows, ...]
    indices: jax.Array  # int32[devices, assigned]: rows of the device's own examples
    offsets: jax.Array  # int32[devices, num_clients + 1]: clients of other devices hold nothing

    @property
    def num_clients(self) -> int:
        """N, the number of clients on all devices."""
        return self.offsets.shape[1] - 1


class ShardedData(NamedTuple):
    """All clients' examples, each on the device of its client; see `shard`.

    Attributes:
      parts: the examples; each device holds a part.
      device_of_client: int32[num_clients], on the host: a position in the mesh.
      sizes: int32[num_clients], on the host: n_i.
      shapes: shapes and dtypes of the data before sharding.
    """

    parts: ClientShards
    device_of_client: np.ndarray
    sizes: np.ndarray
    shapes: FederatedData

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.device_of_client)

    def counts(self) -> np.ndarray:
        """int32[num_clients], on the host: n_i."""
        return self.sizes

    def devices_of(self, clients: np.ndarray) -> np.ndarray:
        """Returns the devices of clients, as positions in the mesh.

        Args:
          clients: int32[...]: client ids.
        """
        return self.device_of_client[clients]

    def __repr__(self) -> str:
        devices, examples = len(self.parts.offsets), describe_tree(self.shapes.examples)
        return describe(self, clients=self.num_clients, devices=devices, examples=examples)


DeviceData = FederatedData | ShardedData | CohortData  # as the functions of an engine take them
RunData = DeviceData | StoredData  # as `put_data` and whole runs take them
RUN_DATA_FIX = "give what federate or open_federated returned, or StoredData(source) of a source"
ProgramData = FederatedData | ClientShards  # as its compiled programs read them


def _by_device(mesh):
    """Returns the sharding of arrays [devices, ...]."""
    return NamedSharding(mesh.mesh, PartitionSpec(AXIS))


def assign_devices(sizes: np.ndarray, num_devices: int) -> np.ndarray:
    """Assigns devices, int32[num_clients]: by size, in alternating order (0, 1, 1, 0)."""
    cycle, position = np.divmod(np.arange(len(sizes)), num_devices)
    device_of_client = np.empty(len(sizes), np.int32)
    by_size = np.argsort(-sizes.astype(np.int64), kind="stable")
    device_of_client[by_size] = np.where(cycle % 2, num_devices - 1 - position, position)
    return device_of_client


def shard(
    mesh: ClientMesh, data: FederatedData | ShardedData, sizes: np.ndarray | None = None
) -> ShardedData:
    """Puts each client's examples on its device; data that are already sharded are only checked.

    `sizes`, int32[num_clients], are given with a cohort of stored clients. They decide the devices
    of clients, and shards are rounded up.
    """
    if isinstance(data, ShardedData):
        program_data(mesh, True, data)
        return data
    held, num_devices = data.counts(), mesh.size
    device_of_client = assign_devices(held if sizes is None else sizes, num_devices)
    device_of_index = np.repeat(device_of_client, held)
    ends = np.cumsum(np.bincount(device_of_index, minlength=num_devices))
    assigned_rows = np.asarray(data.indices)[: len(device_of_index)]  # without padding
    by_device = assigned_rows[np.argsort(device_of_index, kind="stable")]
    indices = np.split(by_device, ends[:-1])  # of each device, into all examples
    # of each device: the examples that it stores, and its indices into these
    stores = [np.unique(rows, return_inverse=True) for rows in indices]
    num_rows = max(1, *(len(stored) for stored, _ in stores))
    assigned = max(1, *map(len, indices))
    if sizes is not None:
        num_rows = round_up_size(num_rows)
        # as many as resident data have, where that bounds the pieces of a full gradient
        most = int(np.bincount(device_of_client, sizes, num_devices).max())
        assigned = min(max(round_up_size(assigned), len(data.indices)), most)

    def put_parts(part, length, like):
        """Pads each device's part with zeros to a length; rows and dtype are as in `like`."""
        shape, dtype = (length, *like.shape[1:]), jax.dtypes.canonicalize_dtype(like.dtype)

        def padded(index):
            (device,) = range(mesh.size)[index[0]]
            result, rows = np.zeros((1, *shape), dtype), part(device)
            result[0, : len(rows)] = rows
            return result

        return jax.make_array_from_callback((mesh.size, *shape), _by_device(mesh), padded)

    def put_examples(leaf):
        rows = np.asarray(leaf)
        return put_parts(lambda device: rows[stores[device][0]], num_rows, rows)

    def offsets(device):
        return np.concatenate([[0], np.cumsum(np.where(device_of_client == device, held, 0))])

    parts = ClientShards(
        jax.tree.map(put_examples, data.examples),
        put_parts(lambda device: stores[device][1], assigned, device_of_client),
        put_parts(offsets, len(held) + 1, device_of_client),
    )
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    return ShardedData(parts, device_of_client, held, shapes)


def program_data(mesh: OptionalMesh, sharded: bool, data: DeviceData) -> ProgramData | CohortData:
    """Returns the data that an engine's programs read; ValueError if placed differently."""
    if isinstance(data, CohortData):
        return data
    if isinstance(data, ShardedData):
        found = f"sharded over {len(data.parts.offsets)} devices, but the engine has others"
        fits = sharded and data.parts.offsets.sharding == _by_device(mesh)
    elif sharded:
        found, fits = "not sharded, but examples='sharded'", False
    else:
        found = "not on all devices of the engine"
        fits = mesh is None or set(mesh.devices) <= data.offsets.sharding.device_set
    require(fits, f"data are {found}; give engine.put_data(data) of what federate returned")
    return data.parts if isinstance(data, ShardedData) else data


def data_shapes(data: RunData) -> FederatedData:
    """Returns whole data, or only the shapes of data that are sharded or in files."""
    return data if isinstance(data, FederatedData) else data.shapes


def local_shard(data: ProgramData) -> FederatedData:
    """Returns the examples that a device holds, inside `shard_map`."""
    if not isinstance(data, ClientShards):
        return data
    return FederatedData(*jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), data))
