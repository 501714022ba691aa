"""The bits that a message would take with a code that knows how frequent its symbols are."""

import math

import jax
import jax.numpy as jnp


def coded_size(symbols: jax.Array, kinds: int) -> jax.Array:
    """`d H + K log2(e (d + K) / K) + 66` bits: an arithmetic code and the table that it needs.

    H is the entropy of the symbols, and K how many different ones there are; the table has a count
    of each, and two floats that say what the symbols stand for (Suresh et al.,
    https://arxiv.org/abs/1611.00429, in the form of fedjax 0.0.17).

    Args:
      symbols: whole numbers below `kinds`, int[d].
      kinds: how many symbols there may be.

    Returns:
      float32[], in bits.
    """
    d = symbols.size
    counts = jnp.bincount(symbols, length=kinds)
    present = counts > 0
    shares = jnp.where(present, counts, d) / d
    different = present.sum()
    table = different * jnp.log2(math.e * (d + different) / different)
    return -(counts * jnp.log2(shares)).sum() + table + 66


def elias_size(levels: jax.Array) -> jax.Array:
    """The bits of QSGD's own code of levels with signs, int[d], and a scale.

    A scale takes 32 bits. Each level that is not 0 takes Elias' omega code of the distance to the
    last such level, a bit for its sign, and Elias' omega code of its magnitude (Alistarh et al.,
    https://arxiv.org/abs/1610.02132).

    Returns:
      float32[], in bits.
    """
    place = jnp.arange(1, levels.size + 1)
    nonzero = levels != 0
    last = jax.lax.cummax(jnp.where(nonzero, place, 0))
    before = jnp.concatenate([jnp.zeros(1, last.dtype), last[:-1]])
    each = omega_size(place - before) + 1 + omega_size(jnp.maximum(jnp.abs(levels), 1))
    return 32 + jnp.where(nonzero, each, 0).sum(dtype=jnp.float32)


def omega_size(numbers: jax.Array) -> jax.Array:
    """The bits of Elias' omega code of whole numbers from 1 on: `L(1) = 1` and
    `L(n) = L(floor(log2 n)) + 1 + floor(log2 n)`."""
    numbers = numbers.astype(jnp.int32)
    size = jnp.ones_like(numbers)
    for _ in range(5):  # 2^31 takes five turns to become 1
        log = 31 - jax.lax.clz(numbers)
        size += jnp.where(numbers > 1, 1 + log, 0)
        numbers = jnp.maximum(log, 1)
    return size
