"""A client's examples, and the batches that its local steps take from them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core.example_noise import Sealed, poisson_slots
from fedjax_algos.core.options import Batches
from fedjax_algos.core.randomness import next_words, permute
from fedjax_algos.core.trees import take
from fedjax_algos.core.types import Array, Batch, Local, Model, Params, Statistics


class ClientData(NamedTuple):
    """One client's view into the flat store of all examples: no copy and no padding.

    Attributes:
      examples: leaves [total, ...]: the whole store, shared by all clients.
      indices: int32[assigned]: rows of `examples`, one client after another.
      offset: int32[]: where this client's part of `indices` starts.
      num_examples: int32[]: n_i, at least 1.
      order: uint32[20], of (seed, client, dispatch): seeds the order of the examples.
      statistics: the model's statistics as broadcast.
      first_step: int32[]: local steps of all earlier dispatches ("persistent").
      frozen: a tree of the model's arrays that never change; `()` if there are none.
      drawn: `Drawn`, int32[steps, batch_size] and a mask: batches of all local steps; or `()`.
    """

    examples: Batch
    indices: jax.Array
    offset: jax.Array
    num_examples: jax.Array
    order: jax.Array
    statistics: Statistics
    first_step: Array | int = 0
    frozen: Any = ()
    drawn: "Drawn | tuple[()]" = ()

    def model(self, params: Params) -> Model:
        """Returns the model with these params and the view's statistics and frozen arrays.

        Args:
          params: a tree of float arrays, such as a local model.
        """
        return Model(params, self.statistics, self.frozen)

    def sealed(self, local: Local) -> "ClientData":
        """Returns the view, whose examples are `Sealed` if the client's gradients are noisy.

        Args:
          local: how the client trains.
        """
        return self._replace(examples=Sealed(self.examples)) if local.example_noise else self

    def __repr__(self) -> str:
        return describe(self, store=describe_tree(self.examples))

    def positions(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of a local step's batch among the client's examples.

        Args:
          step: int32[]: number of the local step, from 0.
          batch_size: B, the number of examples in a batch.
          batches: any kind of `Local` except "full"; for that, use `piece`.

        Returns:
          int32[batch_size] below n_i, and a mask, bool[batch_size], which is False for padding. For
          "poisson" they have `poisson_slots(batch_size)` entries.
        """
        # unsigned, because a signed division that rounds down is several operations
        n, step = self.num_examples.astype(jnp.uint32), step.astype(jnp.uint32)
        entries = jnp.arange(batch_size, dtype=jnp.uint32)
        key = jax.random.wrap_key_data(self.order[:2], impl="threefry2x32")
        if batches == "poisson":  # the gaps between chosen examples are geometric
            slots, words = poisson_slots(batch_size), next_words(self.order, step)
            uniform = jax.random.uniform(jax.random.fold_in(key, step), (slots,), minval=1e-30)
            chance = jnp.minimum(batch_size / n.astype(float), 1)
            gaps = jnp.minimum(jnp.floor(jnp.log(uniform) / jnp.log1p(-chance)), n)
            places = jnp.cumsum(gaps.astype(jnp.uint32) + 1) - 1
            return permute(words, jnp.minimum(places, n - 1), n), places < n
        if batches == "replacement":
            key = jax.random.fold_in(key, step)
            drawn = jax.random.randint(key, (batch_size,), 0, self.num_examples, jnp.int32)
            return drawn, entries >= 0
        per_epoch = batches_per_epoch(n, batch_size, batches)
        if batches == "persistent":
            step = step + jnp.asarray(self.first_step).astype(jnp.uint32)
        in_epoch = (step % per_epoch) * batch_size + entries
        end = 2 * n if batches == "persistent" else n
        real = entries >= 0 if batches == "wrapped" else in_epoch < end
        wraps = batches in ("wrapped", "persistent")  # padding repeats real examples
        in_epoch = in_epoch % n if wraps else jnp.minimum(in_epoch, n - 1)
        return permute(next_words(self.order, step // per_epoch), in_epoch, n), real

    def batch(
        self, step: jax.Array, batch_size: int, batches: Batches = "short"
    ) -> tuple[Batch, jax.Array]:
        """Returns the batch of a local step, leaves [batch_size, ...], and its mask.

        Args:
          step: int32[]: as in `positions`.
          batch_size: B, as in `positions`.
          batches: as in `positions`.
        """
        rows, real = self._drawn(step, batch_size, batches)
        return take(self.examples, rows), real

    def local_batch(self, step: jax.Array, local: Local) -> tuple[Batch, jax.Array]:
        """Returns the batch of a local step of the dispatch, which may have been drawn before.

        Args:
          step: int32[]: below the dispatch's number of steps.
          local: how the client trains.
        """
        drawn, stream = self.drawn, self._stream()
        # an algorithm may have changed the view, for example to the examples of all clients
        if not drawn or any(a is not b for a, b in zip(drawn.source, stream, strict=True)):
            return self.batch(step, local.batch_size, local.batches)
        return take(self.examples, drawn.rows[step]), drawn.real[step]

    def draw_batches(self, steps: int, local: Local) -> tuple[jax.Array, jax.Array]:
        """Draws the rows and masks of the first local steps' batches at once; see `Drawn`.

        Args:
          steps: the dispatch's number of local steps.
          local: how the client trains.
        """
        draw = partial(self._drawn, batch_size=local.batch_size, batches=local.batches)
        return jax.vmap(draw)(jnp.arange(steps, dtype=jnp.int32))

    def with_drawn(self, batches: tuple[jax.Array, jax.Array] | tuple[()]) -> "ClientData":
        """Returns the view with batches that `draw_batches` drew; `()` changes nothing.

        Args:
          batches: rows, int32[steps, batch_size], and masks, bool[steps, batch_size].
        """
        return self._replace(drawn=Drawn(self._stream(), *batches)) if batches else self

    def piece(self, number: jax.Array, size: int) -> tuple[Batch, jax.Array]:
        """Returns piece `number` of one pass over all examples in stored order, and its mask.

        It draws nothing, so a pass leaves the client's stream of batches unchanged.

        Args:
          number: int32[], from 0.
          size: examples in a piece.

        Returns:
          Leaves [size, ...], and bool[size], which is False for padding.
        """
        positions = number * size + jnp.arange(size, dtype=jnp.int32)
        real = positions < self.num_examples
        positions = jnp.minimum(positions, self.num_examples - 1)
        return take(self.examples, self.indices[self.offset + positions]), real

    def _drawn(self, step, batch_size, batches):
        """Returns the rows of `examples` in the batch of a local step, and its mask."""
        positions, real = self.positions(step, batch_size, batches)
        return self.indices[self.offset + positions], real

    def _stream(self):
        """Returns the fields that decide which batches are drawn."""
        return self.indices, self.offset, self.num_examples, self.order, self.first_step


class Drawn(NamedTuple):
    """The batches of all local steps of a view."""

    source: tuple  # the view's `_stream()` when they were drawn
    rows: jax.Array  # int32[steps, batch_size]: rows of `examples`
    real: jax.Array  # bool[steps, batch_size]: False for padding


def batches_per_epoch(num_examples: Any, batch_size: int, batches: Batches) -> Any:
    """Returns the number of local steps in an epoch; see `Local`.

    Args:
      num_examples: n_i, an integer or an integer array, signed or unsigned.
      batch_size: B, the number of examples in a batch.
      batches: the kind of batches.
    """
    if batches == "full":
        return num_examples * 0 + 1
    if batches == "persistent":
        return num_examples // batch_size + 1
    if batches == "dropped":
        return (num_examples // batch_size).clip(1)
    return (num_examples + (batch_size - 1)) // batch_size
