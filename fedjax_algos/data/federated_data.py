"""The flat store: every example once on the device, and who holds which."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Batch, ClientData, Statistics
from fedjax_algos.data.partitioning import Partition


class FederatedData(NamedTuple):
    """All clients' examples: the memory of the examples and 4 bytes an index, however ragged."""

    examples: Batch  # leaves [total, ...], in the dtype they were given
    indices: jax.Array  # int32[assigned]
    offsets: jax.Array  # int32[num_clients + 1]

    @property
    def num_clients(self) -> int:
        return self.offsets.shape[0] - 1

    def counts(self) -> np.ndarray:
        """int32[num_clients], on the host: n_i."""
        return np.diff(np.asarray(self.offsets))


def client_view(
    data: FederatedData,
    client: jax.Array,
    order: jax.Array,
    statistics: Statistics = (),
    first_step: jax.Array | int = 0,
) -> ClientData:
    """One client's view into the store, for `local_training`.

    Args:
      data: all clients' examples.
      client: int32[]: which one. One past the last is nobody, for padding: its view must not be
        read, but has a count of 1, so that dividing by it is safe.
      order: uint32[20]: the order of its examples, of `permutation_words`.
      statistics: the model's, as broadcast.
      first_step: int32[]: local steps of all its earlier visits.
    """
    offset, end = data.offsets[client], data.offsets[client + 1]
    return ClientData(
        data.examples,
        data.indices,
        offset,
        num_examples=jnp.maximum(end - offset, 1),
        order=order,
        statistics=statistics,
        first_step=first_step,
    )


def federate(examples: Batch, partition: Partition, *, allow_empty: bool = False) -> FederatedData:
    """Puts examples on the device and checks that the partition fits them.

    Args:
      examples: a tree of arrays [total, ...]; dtypes are kept (64-bit ones become 32-bit unless
        x64 is on, as everywhere in jax).
      partition: which rows each client holds. Rows may be in no or in several clients.
      allow_empty: whether clients may hold nothing, as held-out data often has it; such clients
        cannot train.

    Raises:
      ValueError: for leaves of unequal length, rows out of range, or a client without examples.
    """
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(examples)}
    if len(lengths) != 1:
        raise ValueError(
            f"the arrays of examples have {sorted(lengths)} rows; they need the same number"
        )
    (total,) = lengths
    indices, offsets = (np.asarray(part) for part in partition)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(indices):
        raise ValueError(
            f"the offsets must run from 0 to the {len(indices)} indices; make the partition with "
            "Partition.of(rows)"
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= total):
        bad = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(f"the partition names example {bad}; there are examples 0 to {total - 1}")
    empty = np.flatnonzero(np.diff(offsets) < 1)
    if len(empty) and not allow_empty:
        raise ValueError(
            f"client {empty[0]} holds no example (and {len(empty) - 1} others); leave such clients "
            "out of the partition or give each at least one"
        )
    store = jax.device_put(examples)  # one copy at the most; jnp.asarray of NumPy may make two
    return FederatedData(store, jnp.asarray(indices, jnp.int32), jnp.asarray(offsets, jnp.int32))
