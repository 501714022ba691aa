"""Client rows in host memory: only those of clients that were visited."""

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.cohort import FederatedState, row_shapes
from fedjax_algos.core import Algorithm, ClientState, Visit
from fedjax_algos.devices import place


class HostTable(dict[int, ClientState]):
    """Client rows in host memory, of the clients that were visited, as trees of NumPy arrays."""


def rows_from_host(
    algorithm: Algorithm, mesh: Mesh | None, state: FederatedState, visits: Visit
) -> ClientState:
    """The cohort's rows, on the device; zeros for clients that are here for the first time."""
    blank = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), row_shapes(algorithm, state)
    )
    rows = [state.clients.get(int(client), blank) for client in visits.client]
    return place(mesh, jax.tree.map(lambda *leaves: np.stack(leaves), *rows))


def keep_on_host(table: HostTable, visits: Visit, rows: ClientState, num_clients: int) -> HostTable:
    """Writes the cohort's rows into the table, in place."""
    rows = jax.device_get(rows)
    for index, client in enumerate(visits.client):
        if client < num_clients:
            # copies: a view would keep the whole cohort's rows alive
            table[int(client)] = jax.tree.map(lambda leaf, i=index: leaf[i].copy(), rows)
    return table
