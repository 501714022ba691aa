"""Several devices, on one or many hosts: one mesh, along which clients are divided."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "clients"

Devices = int | Sequence[jax.Device] | None


def client_mesh(devices: Devices) -> Mesh | None:
    """The mesh of these devices; None for one device, the default one.

    Args:
      devices: None or 1 for the default device, a number for the first so many of `jax.devices()`,
        or the devices themselves. With several processes give `jax.devices()`, those of all.

    Raises:
      ValueError: for more devices than there are, or none.
    """
    if devices is None or (isinstance(devices, int) and devices == 1):
        return None
    known = jax.devices()
    if isinstance(devices, int):
        if not 1 <= devices <= len(known):
            more = "; jax_num_cpu_devices makes more of a CPU, before jax starts"
            raise ValueError(
                f"devices={devices} is out of range; give 1 to {len(known)}, as many as there are"
                + more * (jax.default_backend() == "cpu")
            )
        devices = known[:devices]
    if not len(devices):
        raise ValueError("devices is empty; give at least one device, or None for the default one")
    return Mesh(np.asarray(devices), (AXIS,))


def usual_devices() -> int:
    """All devices, but on a CPU no more than this process may use cores."""
    number = jax.device_count()
    return number if jax.default_backend() != "cpu" else min(number, usable_cores())


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def on_all(mesh: Mesh | None) -> NamedSharding | None:
    """The sharding of what every device holds; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def divided(mesh: Mesh | None, rows: int) -> NamedSharding | None:
    """The sharding of a table whose rows are divided, or held by all where they do not divide."""
    if mesh is None or rows % mesh.size:
        return on_all(mesh)
    return NamedSharding(mesh, PartitionSpec(AXIS))


def place(mesh: Mesh | None, tree: Any) -> Any:
    """Puts host arrays, the same in every process, on all devices of the mesh."""
    sharding = on_all(mesh)
    if sharding is None:
        return jax.device_put(tree)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put(leaf):  # device_put would compare the processes' values, which costs an exchange
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(put, tree)


def one_copy(tree: Any) -> Any:
    """What all devices hold, on this process's first device alone."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def pin(mesh: Mesh | None, tree: Any) -> Any:
    """Says in a traced function that every device of the mesh holds these."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, on_all(mesh))


def settle(mesh: Mesh | None, tree: Any) -> Any:
    """Waits on a CPU with several devices, where many queued calls can wait for ever."""
    if mesh is not None and mesh.devices.flat[0].platform == "cpu":
        jax.block_until_ready(tree)
    return tree
