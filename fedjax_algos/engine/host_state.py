"""Client rows in host memory: only those of clients that were visited."""

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.core import ClientState, Visit
from fedjax_algos.engine.devices import place


class HostTable(dict[int, ClientState]):
    """Client rows in host memory, of the clients that were visited, as trees of NumPy arrays.

    Whoever was not has a row of zeros, which its first visit replaces.
    """

    def __init__(self, shapes: ClientState):
        super().__init__()
        self.blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def __missing__(self, client: int) -> ClientState:
        return self.blank


def rows_from_host(mesh: Mesh | None, table: HostTable, visits: Visit) -> ClientState:
    """The cohort's rows, on the device."""
    rows = [table[int(client)] for client in visits.client]
    return place(mesh, jax.tree.map(lambda *leaves: np.stack(leaves), *rows))


def keep_on_host(table: HostTable, visits: Visit, rows: ClientState, num_clients: int) -> HostTable:
    """Writes the cohort's rows into the table, in place."""
    rows = jax.device_get(rows)
    for index, client in enumerate(visits.client):
        if client < num_clients:
            # copies: a view would keep the whole cohort's rows alive
            table[int(client)] = jax.tree.map(lambda leaf, i=index: leaf[i].copy(), rows)
    return table
