"""Makes meshes of devices of one or many hosts, and places arrays on them.

Clients are divided over devices, and a model over the devices that share a client.
"""

import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_algos.base.errors import require
from fedjax_algos.core import Problem
from fedjax_algos.core.checks import check_whole
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.core.types import MODEL_AXIS
from fedjax_algos.engine.placed.processes import num_processes

Devices = int | Sequence[jax.Device] | None
AXIS = "clients"
_LEAST = 1024  # entries; dividing a smaller array is not worth the exchange
_FIX = "give a tree of jax.sharding.PartitionSpec, such as {'*/kernel': PartitionSpec('model')}"
Rules = tuple[tuple[str, PartitionSpec], ...]


class ClientMesh(NamedTuple):
    """Devices that clients are divided over; several of them may share the model of each client.

    `rules` are patterns of array paths with their specs; None divides all large arrays.
    """

    mesh: Mesh
    rules: Rules | None = None

    @property
    def size(self) -> int:
        """The number of clients that are computed at the same time."""
        return self.mesh.shape[AXIS]

    @property
    def per_client(self) -> int:
        """The number of devices that share the model of a client."""
        return self.mesh.shape.get(MODEL_AXIS, 1)

    @property
    def devices(self) -> list[jax.Device]:
        """All devices."""
        return list(self.mesh.devices.flat)

    def of_one_client(self) -> "ClientMesh | None":
        """Returns the devices that share this process's first client; None if it is one device."""
        if self.per_client == 1:
            return None
        rows = [row for row in self.mesh.devices if row[0].process_index == jax.process_index()]
        return self._replace(mesh=Mesh(np.asarray(rows[:1]), (AXIS, MODEL_AXIS)))

    def spec(self, path: str, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns the spec of an array of a state; leading axes that params lack stay whole."""
        if self.per_client == 1:
            return PartitionSpec()
        if self.rules is not None:
            matched = (spec for pattern, spec in self.rules if _matches(path, pattern))
            axes = _axes(next(matched, ()), shape, self.per_client)
            return PartitionSpec(*axes) if axes and any(axes) else PartitionSpec()
        lengths = [n if n % self.per_client == 0 else 0 for n in shape]
        if int(np.prod(shape)) < _LEAST or not any(lengths):
            return PartitionSpec()
        return PartitionSpec(*[None] * lengths.index(max(lengths)), MODEL_AXIS)  # the longest axis


OptionalMesh = ClientMesh | None  # None is one device


def shardings(mesh: ClientMesh, tree: Any, *, rows: bool = False) -> Any:
    """Returns the sharding of each leaf; `rows` [rows, ...] are divided over clients."""

    def of_leaf(path, leaf):
        name, shape = _path(path), jnp.shape(leaf)
        if not rows:
            return NamedSharding(mesh.mesh, mesh.spec(name, shape))
        first = None if shape[0] % mesh.size else AXIS
        return NamedSharding(mesh.mesh, PartitionSpec(first, *mesh.spec(name, shape[1:])))

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def shapes_on(mesh: OptionalMesh, tree: Any, *, rows: bool = False) -> Any:
    """Returns the shapes of a tree with its `shardings`."""
    if mesh is None:
        return tree

    def of_leaf(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(of_leaf, tree, shardings(mesh, tree, rows=rows))


def bytes_of_device(mesh: OptionalMesh, tree: Any, *, rows: bool = False) -> int:
    """Counts the bytes of a tree, given by its shapes, on one device."""
    if mesh is None:
        return tree_bytes(tree)

    def held(leaf):
        return jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)

    return tree_bytes(jax.tree.map(held, shapes_on(mesh, tree, rows=rows)))


def check_rules(problem: Problem, specs: Any, per_client: int) -> Rules | None:
    """Converts a tree of specs to rules; ValueError if they do not fit the params."""
    if specs is None:
        return None
    leaves = jax.tree_util.tree_leaves_with_path(specs)  # a `PartitionSpec` is a leaf
    rules = tuple((_path(path), leaf) for path, leaf in leaves)
    known = jax.tree_util.tree_leaves_with_path(problem.shapes().params)
    params = [(_path(path), leaf.shape) for path, leaf in known]
    examples = ", ".join(path for path, _ in params[:8])
    for pattern, spec in rules:
        name = f"model_sharding: {pattern!r}"
        is_known = isinstance(spec, PartitionSpec) and {*spec} <= {None, MODEL_AXIS}
        require(is_known, f"{name} has {spec!r}; {_FIX}")
        matched = [each for each in params if _matches(each[0], pattern)]
        require(matched, f"{name} matches none of the params, such as {examples}; give a pattern")
        for path, shape in matched:
            fits = _axes(spec, shape, per_client) is not None
            found = f"{name} has {spec}, but {path} has the shape {list(shape)}"
            require(fits, f"{found}; give a spec that divides its last axes by {per_client}")
    return rules


def _axes(spec, shape, per_client):
    """Returns the spec of the last axes for all axes of a shape; None if it does not fit."""
    axes = (None,) * (len(shape) - len(spec)) + tuple(spec)
    divided = [length for name, length in zip(axes, shape, strict=False) if name is not None]
    fits = len(axes) == len(shape) and not any(length % per_client for length in divided)
    return axes if fits else None


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")


def _path(path: Iterable[Any]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def mesh_of(problem: Problem, devices: Devices, per_client: int, specs: Any) -> OptionalMesh:
    """Checks the devices of an engine or an executor and returns their mesh."""
    check_whole("devices_per_client", per_client)
    fix = "give devices_per_client=2 or more, or leave model_sharding out"
    require(per_client > 1 or specs is None, f"model_sharding is for devices of one client; {fix}")
    return client_mesh(devices, per_client, check_rules(problem, specs, per_client))


def client_mesh(devices: Devices, per_client: int = 1, rules: Rules | None = None) -> OptionalMesh:
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
    counts = Counter(each.process_index for each in devices)
    found = ", ".join(f"{n} of process {i}" for i, n in sorted(counts.items())) or "none"
    even = len(counts) == processes and len({*counts.values()}) == 1
    fix = f"give equally many of each of the {processes} processes, or None for one device, and a "
    fix += f"multiple of devices_per_client={per_client}"
    require(even and counts[0] % per_client == 0, f"devices are {found}; {fix}")
    if per_client == 1:
        return ClientMesh(Mesh(np.asarray(devices), (AXIS,)))
    groups = np.asarray(devices).reshape(-1, per_client)
    return ClientMesh(Mesh(groups, (AXIS, MODEL_AXIS)), rules)


def no_more_devices(mesh: OptionalMesh, number: int) -> OptionalMesh:
    """Returns a mesh of at most `number` devices of another mesh, but at least one per process."""
    if mesh is None or mesh.size <= number:
        return mesh
    return client_mesh(_of_each_process(mesh.devices, -(-number // num_processes())))


def _of_each_process(devices: Iterable[jax.Device], number: int) -> list[jax.Device]:
    """Returns the first `number` devices of each process, or as many as it has."""
    by_process: dict[int, list[jax.Device]] = {}
    for device in devices:
        by_process.setdefault(device.process_index, []).append(device)
    return [each for index in sorted(by_process) for each in by_process[index][:number]]


def default_num_devices(alone: int = 0) -> int:
    """Counts all devices, on CPUs at most one for each core.

    `alone`, if not 0, replaces the number of cores, and the number of devices of a single process.
    """
    number, processes = jax.device_count(), num_processes()
    if jax.default_backend() == "cpu":
        return min(number, processes * (alone or usable_cores()))
    return alone if alone and processes == 1 else number


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def constrain(mesh: OptionalMesh, tree: Any, *, rows: bool = False) -> Any:
    """Constrains a part of a traced state to its `shardings`."""
    if mesh is None or not jax.tree.leaves(tree):
        return tree
    return jax.lax.with_sharding_constraint(tree, shardings(mesh, tree, rows=rows))


def place_state(place: Callable[..., Any], mesh: OptionalMesh, state: Any) -> Any:
    """Applies `constrain` or `shapes_on` to a `FederatedState`, whose clients are rows."""
    clients = place(mesh, state.clients, rows=True)
    return place(mesh, state._replace(clients=()))._replace(clients=clients)


def replicate(mesh: OptionalMesh, tree: Any) -> Any:
    """Copies host arrays, the same in every process, to all devices of a mesh."""
    return put(None if mesh is None else NamedSharding(mesh.mesh, PartitionSpec()), tree)


def put_state(mesh: OptionalMesh, tree: Any, *, rows: bool = False) -> Any:
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


def wait_on_cpu(mesh: OptionalMesh, tree: Any) -> Any:
    """Waits for `tree` on several CPU devices, where collectives of queued calls can deadlock."""
    if mesh is not None and mesh.devices[0].platform == "cpu":
        jax.block_until_ready(tree)
    return tree
