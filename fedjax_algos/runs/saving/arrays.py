"""The arrays of a checkpoint by name, and trees and states that are filled from them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import FederatedState, HostClientState, RowTable


def flat_arrays(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, as "server/params/out/kernel"; empty ones are left out."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves if np.size(leaf)}


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator="/")


def fill(like: Any, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Any:
    """A tree with the values of a checkpoint, with the shapes, dtypes and devices of `like`.

    `prefix` is that of the names of the tree's arrays. Raises ValueError for an array that is not
    in the checkpoint, or has another shape or dtype there.
    """

    def value(path, leaf):
        name = "/".join(filter(None, [prefix, _name(path)]))  # the path of a bare array is empty
        if not np.size(leaf):
            return leaf
        saved = arrays.get(name)
        if saved is None or saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            found = "missing" if saved is None else f"{saved.dtype}{list(saved.shape)}"
            raise ValueError(
                f"{name} is {leaf.dtype}{list(leaf.shape)} in this run and {found} in the "
                "checkpoint; give the same algorithm, model and clients, or another folder"
            )
        return jax.device_put(saved, leaf.sharding) if isinstance(leaf, jax.Array) else saved

    return jax.tree_util.tree_map_with_path(value, like)


def state_arrays(state: FederatedState) -> dict[str, Any]:
    """A state as a tree of arrays, with rows that are not on devices as tables of their clients."""
    tree = state._asdict()
    if isinstance(state.clients, RowTable):
        ids = np.array(sorted(state.clients), np.int32)
        rows = [state.clients[client] for client in ids.tolist()]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows) if rows else ()
        tree["clients"] = {"ids": ids, "rows": stacked}
    return tree


def saved_arrays(
    state: FederatedState, folder: str | Path, position: int, kept: Iterable[int]
) -> dict[str, Any]:
    """A state as a checkpoint holds it: `state_arrays`, but rows on disk stay in their file.

    `kept` are the positions of the checkpoints that there are.
    """
    if not isinstance(state.clients, DiskClientState):
        return state_arrays(state)
    owner = str(Path(folder).absolute())
    tree = state._replace(clients=())._asdict()
    return tree | {"clients": state.clients.save(owner, position, kept)}


def fill_state(
    like: FederatedState, arrays: Mapping[str, np.ndarray], folder: str | Path
) -> FederatedState:
    """The state of a checkpoint; `like` is the initial one, with rows on disk of `open_rows`.

    Raises ValueError for a state of another algorithm, model, population or place of its rows.
    """
    clients = like.clients
    state = FederatedState(**fill(like._replace(clients=())._asdict(), arrays))
    if not isinstance(clients, RowTable):
        return state._replace(clients=fill(clients, arrays, "clients"))
    ids = arrays.get("clients/ids", np.zeros(0, np.int32))
    if not np.array_equal(ids, np.flatnonzero(state.dispatched)):
        raise ValueError(
            f"the checkpoint in {str(folder)!r} has rows of {len(ids)} clients that are not on the "
            f"devices, but {np.sum(state.dispatched)} clients have been dispatched; give the "
            "client_state that the run had"
        )
    if not isinstance(clients, HostClientState):
        fill(clients.blank, arrays, "clients/blank")  # raises for rows that were kept elsewhere
        return state._replace(clients=clients)
    blank = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(ids), *leaf.shape)), clients.blank)
    rows = fill(blank, arrays, "clients/rows")
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], rows) for i in range(len(ids)))
    return state._replace(clients=clients.write(zip(ids.tolist(), each, strict=True)))


def open_rows(
    like: FederatedState, folder: str | Path, position: int, arrays: Mapping[str, np.ndarray]
) -> None:
    """Opens the rows on disk of a checkpoint, if it has some, and reads all of them once.

    They become the rows of `like`, the initial state of the same run. If DamagedError is raised,
    because rows are not as they were written, nothing is opened.
    """
    if not isinstance(like.clients, DiskClientState) or "clients/file" not in arrays:
        return
    fill(like.clients.blank, arrays, "clients/blank")  # raises for rows of other shapes
    tables = {name: arrays[f"clients/{name}"] for name in ("ids", "places", "checksums", "file")}
    like.clients.files.open_saved(str(Path(folder).absolute()), position, tables)
