"""Rows of client state on disk, as trees by client; `row_files.py` has their bytes."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_algos.core import ClientState
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.reprs import describe, describe_tree
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.engine.placed.row_files import RowFiles


class RowsOnDisk(NamedTuple):
    """Rows of client state on disk, as the `client_state` of `make_engine`.

    Memory holds the rows of one cohort, and 12 bytes for each client. Each run, and each process of
    it, has files of its own, so several runs may share a folder. They need the room of the rows
    that have been written, and with checkpoints also that of the rows that have changed since the
    oldest one that is kept.

    What a run writes is in a file without a name, which ends with the run or its process. The first
    checkpoint makes a file `NUMBER.rows`, which has the rows of the run's checkpoints: they can go
    on as long as it is in the folder. Remove it when you remove the checkpoints.

    Attributes:
      folder: where the files are; it is made when the first row is written.
    """

    folder: str | Path


ClientStatePlace = Literal["device", "host"] | RowsOnDisk


def place_name(client_state: ClientStatePlace) -> str:
    """The place as `place_of` names it: "device", "host" or "disk"; raises for another one."""
    if isinstance(client_state, RowsOnDisk):
        check_kind("RowsOnDisk: folder", client_state.folder, str | Path, "give a path")
        return "disk"
    if client_state == "disk":
        raise ValueError(
            "client_state='disk' has no folder; give client_state=fedjax_algos.RowsOnDisk(folder)"
        )
    check_choice("client_state", client_state, ("device", "host"))
    return client_state


class DiskClientState(Mapping[int, ClientState]):
    """Rows of client state on disk, as trees of NumPy arrays by client id, read when asked for.

    It holds only the clients that have been dispatched. Every other client has a row of zeros,
    which its first dispatch replaces. A round CONSUMES it, like the arrays of a state: the rows go
    on in the state that the round returns.

    Args:
      folder: where the files are.
      shapes: shapes and dtypes of a row; see `row_shapes`.
      num_clients: N, the number of clients.
    """

    def __init__(self, folder: str | Path, shapes: ClientState, num_clients: int):
        self.blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        self._files: RowFiles | None = RowFiles(Path(folder), tree_bytes(self.blank), num_clients)

    @property
    def files(self) -> RowFiles:
        """The files; a state that a round has consumed has none."""
        if self._files is None:
            raise ValueError(
                "these rows were consumed by the round that their state was given to; use those of "
                "the state that it returned"
            )
        return self._files

    def __getitem__(self, client: int) -> ClientState:
        if not self.files.has(client):
            return self.blank
        row, offset, leaves = self.files.read(client), 0, []
        for leaf in jax.tree.leaves(self.blank):
            leaves.append(np.ndarray(leaf.shape, leaf.dtype, row, offset))
            offset += leaf.nbytes
        return jax.tree.unflatten(jax.tree.structure(self.blank), leaves)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int | np.integer) and self.files.has(int(client))

    def __iter__(self) -> Iterator[int]:
        return iter(self.files.written().tolist())

    def __len__(self) -> int:
        return len(self.files.written())

    def __repr__(self) -> str:
        if self._files is None:
            return describe(self, rows="consumed")
        folder = str(self._files.folder)
        return describe(self, folder=folder, clients=len(self), row=describe_tree(self.blank))

    def __jax_array__(self) -> Any:
        raise TypeError(
            "rows on disk are not copied with a state; take them out with client_states(engine, "
            "state), or save the run and read it with load_state"
        )

    def is_deleted(self) -> bool:
        """Whether a round has consumed the rows; arrays of jax have this method, too."""
        return self._files is None

    def write(self, rows: Iterable[tuple[int, ClientState]]) -> "DiskClientState":
        """Writes rows; consumes this object.

        Args:
          rows: clients and their rows, of the shapes of `blank`.

        Returns:
          The rows with these.

        Raises:
          ValueError: if they cannot be written, as on a full disk.
        """
        written = object.__new__(DiskClientState)
        written.blank, written._files = self.blank, self.files
        self._files = None
        for client, row in rows:
            leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(row)]
            if leaves:
                written.files.write(client, b"".join(leaves))
        return written

    def save(self, owner: str, position: int, kept: Iterable[int]) -> dict[str, Any]:
        """What a checkpoint holds of the rows, which stay on disk; see `RowFiles.save`.

        Args:
          owner: the folder of the checkpoints.
          position: the position of the checkpoint that is being made.
          kept: the positions of the checkpoints that there are.

        Returns:
          Arrays by name, and a row of zeros, which has the shapes.

        Raises:
          ValueError: if the rows cannot be written.
        """
        return self.files.save(owner, position, kept) | {"blank": self.blank}
