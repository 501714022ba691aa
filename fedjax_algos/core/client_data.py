"""A client's examples, and the batches that its local steps take of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core.permutation import next_words, permute
from fedjax_algos.core.types import Array, Batch, Batches, Statistics


class ClientData(NamedTuple):
    """One client's view into the flat store of all examples: no copy, no capacity, no padding."""

    examples: Batch  # leaves [total, ...]: the whole store, shared by all clients
    indices: jax.Array  # int32[assigned]: rows of `examples`, one client after another
    offset: jax.Array  # int32[]: where this client's part of `indices` starts
    num_examples: jax.Array  # int32[]: n_i, at least 1
    order: jax.Array  # uint32[20], of (seed, client, visit): the secret of the examples' order
    statistics: Statistics  # the model's statistics as broadcast
    first_step: Array | int = 0  # int32[]: local steps of all earlier visits, for batches="feeder"

    def positions(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[jax.Array, jax.Array]:
        """The examples of local step `step`: int32[batch] below n_i, and bool[batch], real or not.

        `Local` says what the kinds of batches are; "full" has none, see `piece`.
        """
        # without signs: a signed division that rounds down is several operations
        n, step = self.num_examples.astype(jnp.uint32), step.astype(jnp.uint32)
        entries = jnp.arange(batch_size, dtype=jnp.uint32)
        if batches == "replacement":
            key = jax.random.wrap_key_data(self.order[:2], impl="threefry2x32")
            drawn = jax.random.randint(
                jax.random.fold_in(key, step), (batch_size,), 0, self.num_examples, jnp.int32
            )
            return drawn, entries >= 0
        per_epoch = batches_per_epoch(n, batch_size, batches)
        if batches == "feeder":
            step = step + jnp.asarray(self.first_step).astype(jnp.uint32)
        slots = (step % per_epoch) * batch_size + entries
        if batches == "wrapped":
            real = entries >= 0
        else:
            real = slots < (2 * n if batches == "feeder" else n)
        # the rows of slots that are not real repeat real ones
        slots = slots % n if batches in ("wrapped", "feeder") else jnp.minimum(slots, n - 1)
        return permute(next_words(self.order, step // per_epoch), slots, n), real

    def batch(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[Batch, jax.Array]:
        """Batch of local step `step` (leaves [batch, ...]) and its mask, bool[batch]."""
        positions, real = self.positions(step, batch_size, batches)
        return self._rows(positions), real

    def piece(self, number: jax.Array, size: int) -> tuple[Batch, jax.Array]:
        """The `number`-th `size` examples in stored order, and which are real: one pass over all.

        It draws nothing, so a pass leaves the stream of batches as it was.
        """
        positions = number * size + jnp.arange(size, dtype=jnp.int32)
        return self._rows(jnp.minimum(positions, self.num_examples - 1)), (
            positions < self.num_examples
        )

    def _rows(self, positions):
        rows = self.indices[self.offset + positions]
        return jax.tree.map(lambda leaf: leaf[rows], self.examples)


def batches_per_epoch(num_examples: Any, batch_size: int, batches: Batches) -> Any:
    """Local steps of an epoch over n_i examples, for an integer or an array: see `Local`."""
    if batches == "full":
        return num_examples * 0 + 1
    if batches == "feeder":
        return num_examples // batch_size + 1
    if batches == "dropped":
        return (num_examples // batch_size).clip(1)
    return (num_examples + (batch_size - 1)) // batch_size  # unsigned ones too
