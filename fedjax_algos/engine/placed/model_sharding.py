"""Divides clients over devices, and a model over the devices that share a client."""

import fnmatch
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_algos.base.errors import require
from fedjax_algos.core import Problem
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.core.types import MODEL_AXIS

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
        own = jax.process_index()
        rows = [row for row in self.mesh.devices if row[0].process_index == own]
        return self._replace(mesh=Mesh(np.asarray(rows[:1]), (AXIS, MODEL_AXIS)))

    def spec(self, path: str, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns the spec of an array of a state; leading axes that params lack stay whole."""
        if self.per_client == 1:
            return PartitionSpec()
        if self.rules is None:
            return self._by_size(shape)
        matched = (spec for pattern, spec in self.rules if _matches(path, pattern))
        spec = next(matched, PartitionSpec())
        axes = (None,) * (len(shape) - len(spec)) + tuple(spec)
        fits = len(axes) == len(shape) and all(
            name is None or length % self.per_client == 0
            for name, length in zip(axes, shape, strict=True)
        )
        return PartitionSpec(*axes) if fits and any(axes) else PartitionSpec()

    def _by_size(self, shape):
        """Returns the spec that divides the longest divisible axis."""
        lengths = [n if n % self.per_client == 0 else 0 for n in shape]
        if int(np.prod(shape)) < _LEAST or not any(lengths):
            return PartitionSpec()
        return PartitionSpec(*[None] * lengths.index(max(lengths)), MODEL_AXIS)


def shardings(mesh: ClientMesh, tree: Any, *, rows: bool = False) -> Any:
    """Returns the sharding of each leaf; `rows` [rows, ...] are divided over clients."""

    def of_leaf(path, leaf):
        name, shape = _path(path), jnp.shape(leaf)
        if not rows:
            return NamedSharding(mesh.mesh, mesh.spec(name, shape))
        first = None if shape[0] % mesh.size else AXIS
        return NamedSharding(mesh.mesh, PartitionSpec(first, *mesh.spec(name, shape[1:])))

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def shapes_on(mesh: ClientMesh | None, tree: Any, *, rows: bool = False) -> Any:
    """Returns the shapes of a tree with its `shardings`."""
    if mesh is None:
        return tree

    def of_leaf(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(of_leaf, tree, shardings(mesh, tree, rows=rows))


def bytes_of_device(mesh: ClientMesh | None, tree: Any, *, rows: bool = False) -> int:
    """Counts the bytes of a tree, given by its shapes, on one device."""
    if mesh is None:
        return tree_bytes(tree)

    def held(leaf):
        return jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)

    return tree_bytes(jax.tree.map(held, shapes_on(mesh, tree, rows=rows)))


def check_rules(problem: Problem, given: Any, per_client: int) -> Rules | None:
    """Converts a tree of specs to rules; ValueError if they do not fit the params."""
    if given is None:
        return None
    leaves = jax.tree_util.tree_leaves_with_path(given, is_leaf=_is_spec)
    rules = tuple((_path(path), leaf) for path, leaf in leaves)
    known = jax.tree_util.tree_leaves_with_path(problem.shapes().params)
    params = [(_path(path), leaf.shape) for path, leaf in known]
    for pattern, spec in rules:
        name = f"model_sharding: {pattern!r}"
        require(_is_spec(spec), f"{name} has {spec!r}; {_FIX}")
        wrong = [axis for axis in spec if axis not in (None, MODEL_AXIS)]
        require(not wrong, f"{name} names the axis {wrong and wrong[0]!r}; give {MODEL_AXIS!r}")
        matched = [each for each in params if _matches(each[0], pattern)]
        some = ", ".join(path for path, _ in params[:8])
        require(matched, f"{name} matches none of the params, such as {some}; give a pattern")
        for path, shape in matched:
            lengths = zip(reversed(shape), reversed(spec), strict=False)
            fits = len(spec) <= len(shape) and all(
                axis is None or length % per_client == 0 for length, axis in lengths
            )
            found = f"{name} has {spec}, but {path} has the shape {list(shape)}, which"
            fix = "give a spec for the last axes of it, or other patterns"
            require(fits, f"{found} cannot be divided so over {per_client} devices; {fix}")
    return rules


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")


def _path(path: Iterable[Any]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, PartitionSpec)
