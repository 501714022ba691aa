"""Makes meshes of the devices of one or many hosts, and places arrays on them."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_algos.base.errors import require
from fedjax_algos.core.types import MODEL_AXIS
from fedjax_algos.engine.placed.model_sharding import AXIS, ClientMesh, Rules, shardings
from fedjax_algos.engine.placed.processes import num_processes

Devices = int | Sequence[jax.Device] | None


def client_mesh(
    devices: Devices, per_client: int = 1, rules: Rules | None = None
) -> ClientMesh | None:
    """Makes a mesh of given devices, or of the first ones of each process; None means one."""
    processes = num_processes()
    if per_client > 1 and devices is None:
        devices = per_client * processes
    if devices is None or (isinstance(devices, int) and devices == processes == 1):
        return None
    known = jax.devices()
    if isinstance(devices, int):
        fix = f"give 1 to {len(known)}, the number of devices"
        fix += f", a multiple of the {processes} processes" * (processes > 1)
        if jax.default_backend() == "cpu":
            fix += "; on a CPU, set jax_num_cpu_devices before jax starts to have more"
        fits = 1 <= devices <= len(known) and devices % processes == 0
        require(fits, f"devices={devices} is out of range; {fix}")
        devices = _of_each_process(known, devices // processes)
    fix = "give at least one device, or None for the default one"
    require(len(devices), f"devices is empty; {fix}")
    counts = Counter(each.process_index for each in devices)
    found = f"devices are {', '.join(f'{n} of process {i}' for i, n in sorted(counts.items()))}"
    even = len(counts) == processes and len({*counts.values()}) == 1
    require(even, f"{found}; give equally many of each of the {processes} processes")
    if per_client == 1:
        return ClientMesh(Mesh(np.asarray(devices), (AXIS,)))
    own = counts[0]  # of each process
    groups_fit = f"{own} devices of a process do not form groups of devices_per_client={per_client}"
    require(own % per_client == 0, f"{groups_fit}; give a multiple of {per_client} of each")
    groups = np.asarray(devices).reshape(-1, per_client)
    return ClientMesh(Mesh(groups, (AXIS, MODEL_AXIS)), rules)


def no_more_devices(mesh: ClientMesh | None, number: int) -> ClientMesh | None:
    """Returns a mesh of at most `number` devices of another mesh, but at least one per process."""
    if mesh is None or mesh.size <= number:
        return mesh
    return client_mesh(_of_each_process(mesh.devices, -(-number // num_processes())))


def _of_each_process(devices: Iterable[jax.Device], number: int) -> list[jax.Device]:
    """Returns the first `number` devices of each process, or as many as it has."""
    own: dict[int, list[jax.Device]] = {}
    for each in devices:
        own.setdefault(each.process_index, []).append(each)
    return [each for index in sorted(own) for each in own[index][:number]]


def default_num_devices(alone: int = 0) -> int:
    """Counts all devices, on a CPU one a core; or `alone` in one process, and on CPUs in each."""
    number, processes = jax.device_count(), num_processes()
    if jax.default_backend() == "cpu":
        return min(number, processes * (alone or usable_cores()))
    return alone if alone and processes == 1 else number


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _replicated(mesh):
    return None if mesh is None else NamedSharding(mesh.mesh, PartitionSpec())


def row_sharding(mesh: ClientMesh | None, num_rows: int) -> NamedSharding | None:
    """Returns a table's sharding: by rows, or replicated if the rows do not divide evenly."""
    if mesh is None or num_rows % mesh.size:
        return _replicated(mesh)
    return NamedSharding(mesh.mesh, PartitionSpec(AXIS))


def constrain(mesh: ClientMesh | None, tree: Any, *, rows: bool = False) -> Any:
    """Constrains a part of a traced state to its `shardings`."""
    if mesh is None or not jax.tree.leaves(tree):
        return tree
    return jax.lax.with_sharding_constraint(tree, shardings(mesh, tree, rows=rows))


def constrain_state(mesh: ClientMesh | None, state: Any) -> Any:
    """Constrains a traced `FederatedState`, whose clients are rows."""
    clients = constrain(mesh, state.clients, rows=True)
    return constrain(mesh, state._replace(clients=()))._replace(clients=clients)


def replicate(mesh: ClientMesh | None, tree: Any) -> Any:
    """Copies host arrays, the same in every process, to all devices of a mesh."""
    return put(_replicated(mesh), tree)


def put_state(mesh: ClientMesh | None, tree: Any, *, rows: bool = False) -> Any:
    """Places host arrays of a state, the same in every process, by `shardings`."""
    if mesh is None:
        return put(None, tree)
    return jax.tree.map(put, shardings(mesh, tree, rows=rows), tree)


def put(sharding: Any, tree: Any) -> Any:
    """Places host arrays, the same in every process; None means the default sharding."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(partial(_put_parts, sharding), tree)


def _put_parts(sharding, leaf):  # device_put would exchange the values to compare them
    leaf = np.asarray(leaf)
    leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])


def one_copy(tree: Any) -> Any:
    """Keeps only the copy of replicated arrays on the first device, or group, of this process."""

    def of_leaf(leaf):
        sharding = leaf.sharding
        if not isinstance(sharding, NamedSharding) or MODEL_AXIS not in sharding.mesh.axis_names:
            return leaf.addressable_data(0)
        first = ClientMesh(sharding.mesh).of_one_client()
        assert first is not None
        parts = {shard.device: shard.data for shard in leaf.addressable_shards}
        placed = NamedSharding(first.mesh, sharding.spec)
        held = [parts[device] for device in first.devices]
        return jax.make_array_from_single_device_arrays(leaf.shape, placed, held)

    return jax.tree.map(of_leaf, tree)


def wait_on_cpu(mesh: ClientMesh | None, tree: Any) -> Any:
    """Waits for `tree` on several CPU devices, where collectives of queued calls can deadlock."""
    if mesh is not None and mesh.devices[0].platform == "cpu":
        jax.block_until_ready(tree)
    return tree
