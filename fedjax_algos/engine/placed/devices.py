"""Devices of one or many hosts, as a mesh along which clients are divided."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "clients"

Devices = int | Sequence[jax.Device] | None


def client_mesh(devices: Devices) -> Mesh | None:
    """The mesh of the first `devices` of all, or of a sequence of them; None for one device."""
    if devices is None or (isinstance(devices, int) and devices == 1):
        return None
    known = jax.devices()
    if isinstance(devices, int):
        if not 1 <= devices <= len(known):
            more = "; on a CPU, set jax_num_cpu_devices before jax starts to have more"
            raise ValueError(
                f"devices={devices} is out of range; give 1 to {len(known)}, the number of devices"
                + more * (jax.default_backend() == "cpu")
            )
        devices = known[:devices]
    if not len(devices):
        raise ValueError("devices is empty; give at least one device, or None for the default one")
    return Mesh(np.asarray(devices), (AXIS,))


def default_num_devices() -> int:
    """The number of all devices; on a CPU at most the number of cores that this process may use."""
    number = jax.device_count()
    return number if jax.default_backend() != "cpu" else min(number, usable_cores())


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
    sharding = _replicated(mesh)
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put(leaf):  # device_put would compare the values of the processes, which is an exchange
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(put, tree)


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
