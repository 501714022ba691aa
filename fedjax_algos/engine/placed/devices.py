"""Devices of one or many hosts, as a mesh along which clients are divided."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_algos.core.files import require
from fedjax_algos.engine.placed.processes import num_processes

AXIS = "clients"

Devices = int | Sequence[jax.Device] | None


def client_mesh(devices: Devices) -> Mesh | None:
    """The mesh of so many devices, or of a sequence of them; None for one device.

    Several processes have equally many of them each, the first ones. With None, each process
    computes everything on its own device.
    """
    processes = num_processes()
    if devices is None or (isinstance(devices, int) and devices == processes == 1):
        return None
    known = jax.devices()
    if isinstance(devices, int):
        if not 1 <= devices <= len(known):
            more = "; on a CPU, set jax_num_cpu_devices before jax starts to have more"
            raise ValueError(
                f"devices={devices} is out of range; give 1 to {len(known)}, the number of devices"
                + more * (jax.default_backend() == "cpu")
            )
        fix = f"give a multiple of {processes}, at most {len(known)}"
        even = devices % processes == 0
        require(even, f"devices={devices} do not divide over {processes} processes; {fix}")
        devices = _of_each_process(known, devices // processes)
    if not len(devices):
        raise ValueError("devices is empty; give at least one device, or None for the default one")
    counts = Counter(each.process_index for each in devices)
    found = f"devices are {', '.join(f'{n} of process {i}' for i, n in sorted(counts.items()))}"
    even = len(counts) == processes and len({*counts.values()}) == 1
    require(even, f"{found}; give equally many of each of the {processes} processes")
    return Mesh(np.asarray(devices), (AXIS,))


def no_more_devices(mesh: Mesh | None, number: int) -> Mesh | None:
    """A mesh of at most `number` devices of another one, or of one for each process."""
    if mesh is None or mesh.size <= number:
        return mesh
    return client_mesh(_of_each_process(mesh.devices.flat, -(-number // num_processes())))


def _of_each_process(devices: Iterable[jax.Device], number: int) -> list[jax.Device]:
    """The first `number` devices of each process, or as many as it has."""
    own: dict[int, list[jax.Device]] = {}
    for each in devices:
        own.setdefault(each.process_index, []).append(each)
    return [each for index in sorted(own) for each in own[index][:number]]


def default_num_devices(alone: int = 0) -> int:
    """All devices, of a CPU one a core; or `alone` in one process, and on CPUs in each of them."""
    number, processes = jax.device_count(), num_processes()
    if jax.default_backend() == "cpu":
        return min(number, processes * (alone or usable_cores()))
    return alone if alone and processes == 1 else number


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _replicated(mesh):
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh | None, num_rows: int) -> NamedSharding | None:
    """The sharding of a table: divided by rows, or replicated if the rows do not divide evenly."""
    if mesh is None or num_rows % mesh.size:
        return _replicated(mesh)
    return NamedSharding(mesh, PartitionSpec(AXIS))


def constrain(mesh: Mesh | None, tree: Any) -> Any:
    """Constrains arrays of a traced program to be held by every device."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, _replicated(mesh))


def constrain_rows(mesh: Mesh | None, table: Any) -> Any:
    """Constrains a table, leaves [rows, ...], of a traced program to its `row_sharding`."""
    if mesh is None:
        return table
    constrained = jax.lax.with_sharding_constraint
    return jax.tree.map(lambda leaf: constrained(leaf, row_sharding(mesh, len(leaf))), table)


def replicate(mesh: Mesh | None, tree: Any) -> Any:
    """Copies host arrays, which are the same in every process, to all devices of a mesh."""
    return put(_replicated(mesh), tree)


def put(sharding: Any, tree: Any) -> Any:
    """Places host arrays, which are the same in every process; the default sharding is None."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(partial(_put_parts, sharding), tree)


def _put_parts(sharding, leaf):  # device_put would compare the values of the processes: an exchange
    leaf = np.asarray(leaf)
    leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])


def one_copy(tree: Any) -> Any:
    """Replicated arrays on this process's first device only."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def wait_on_cpu(mesh: Mesh | None, tree: Any) -> Any:
    """Returns `tree`, on a mesh of several CPU devices only when it is ready.

    With many calls in the queue, their collectives can deadlock.
    """
    if mesh is not None and mesh.devices.flat[0].platform == "cpu":
        jax.block_until_ready(tree)
    return tree
