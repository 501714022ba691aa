"""Noise on the gradients of examples, and a seal on examples that no other code may read."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.base.errors import require


class ExampleNoise(NamedTuple):
    """Differential privacy of the examples of a client (DP-SGD): noise on every local gradient.

    The gradient of a step is `(sum_j min(1, C / |g_j|) g_j + z C N(0, I)) / B` for the examples j
    of a "poisson" batch, with their gradients g_j and the mean size B. So what a client sends is
    private by itself, and the column `epsilon` is for one example of a client. Algorithms that read
    examples otherwise, or take two gradients of a batch, are refused.

    Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
    https://arxiv.org/abs/1607.00133.

    Attributes:
      clip: C, above 0.
      noise: z, the noise multiplier, at least 0.
      delta: the delta of epsilon.
    """

    clip: float
    noise: float
    delta: float = 1e-5


def poisson_slots(batch_size: int) -> int:
    """Returns the rows of a "poisson" batch with this mean.

    Args:
      batch_size: B, the expected number of examples.
    """
    return math.ceil(batch_size + 4.5 * math.sqrt(batch_size))


def refuse(*place: Any) -> Any:
    """Refuses to read examples without noise."""
    reason = "the algorithm reads examples besides one noisy gradient for each local step"
    raise ValueError(f"example_noise: {reason}; leave example_noise out")


class Sealed:
    """Examples that only noisy gradients may read."""

    __getitem__ = refuse

    def __init__(self, examples: Any):
        self.examples = examples


def opened(examples: Any) -> Any:
    """Returns the examples of a seal, once: to the only local training of a dispatch."""
    if not isinstance(examples, Sealed):
        return examples
    found, examples.examples = examples.examples, examples
    return refuse() if found is examples else found


def noisy_gradient(
    one: Callable[..., Any], problem: Any, noise: ExampleNoise, batch_size: int
) -> Callable[..., Any]:
    """Returns the gradient of `ExampleNoise`; `one` is the gradient of a batch, as the result."""
    reason = "the model has statistics, which would be without noise; leave example_noise out"
    require(not jax.tree.leaves(problem.shapes().statistics), f"example_noise: {reason}")

    def gradient(model, batch, mask, key):
        def of_example(row, real, number):
            row = jax.tree.map(lambda leaf: leaf[None], row)
            found, _, loss = one(model, row, real[None], jax.random.fold_in(key, number))
            length = optax.tree.norm(found)
            factor = jnp.where(length > noise.clip, noise.clip / length, 1)
            kept = real & jnp.isfinite(length)
            shorter = jax.tree.map(lambda g: jnp.where(kept, factor.astype(g.dtype) * g, 0), found)
            return shorter, loss

        each = jax.vmap(of_example)(batch, mask, jnp.arange(len(mask)))
        total, loss = jax.tree.map(lambda leaf: leaf.sum(0), each)
        drawn = optax.tree.random_like(jax.random.fold_in(key, len(mask)), total, jax.random.normal)
        deviation = noise.noise * noise.clip
        made = jax.tree.map(lambda g, z: (g + deviation * z) / batch_size, total, drawn)
        return made, model.statistics, loss

    return gradient
