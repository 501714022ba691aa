"""Counts the bits of a message with an entropy code, whose size depends on the message."""

import math

import jax
import jax.numpy as jnp


def coded_size(symbols: jax.Array, kinds: int, floats: int = 2) -> jax.Array:
    """`d H + K log2(e (d + K) / K) + 32 floats + 2` bits: an arithmetic code with its table.

    H is the entropy of the symbols, and K the number of different ones; the table has a count of
    each (Suresh et al., https://arxiv.org/abs/1611.00429, in the form of fedjax 0.0.17). `floats`
    numbers of 32 bits give the values of the symbols, int[d] below `kinds`.
    """
    d = symbols.size
    counts = jnp.bincount(symbols, length=kinds)
    present = counts > 0
    shares = jnp.where(present, counts, d) / d
    different = present.sum()
    table = different * jnp.log2(math.e * (d + different) / different)
    return -(counts * jnp.log2(shares)).sum() + table + 32 * floats + 2


def elias_size(levels: jax.Array) -> jax.Array:
    """Counts the bits of QSGD's own code of levels with signs, int[d], and a scale.

    A scale takes 32 bits. Each level that is not 0 takes Elias' omega code of the distance to the
    last such level, a bit for its sign, and Elias' omega code of its magnitude (Alistarh et al.,
    https://arxiv.org/abs/1610.02132).
    """
    place = jnp.arange(1, levels.size + 1)
    nonzero = levels != 0
    last = jax.lax.cummax(jnp.where(nonzero, place, 0))
    before = jnp.concatenate([jnp.zeros(1, last.dtype), last[:-1]])
    each = omega_size(place - before) + 1 + omega_size(jnp.maximum(jnp.abs(levels), 1))
    return 32 + jnp.where(nonzero, each, 0).sum(dtype=jnp.float32)


def golomb_size(positions: jax.Array, d: int) -> jax.Array:
    """Counts the bits of Golomb's code of k ascending positions below d.

    The distance n to the last position takes `b + 1 + floor((n - 1) / 2^b)` bits, with the b that
    is best for random positions (Sattler et al., https://arxiv.org/abs/1903.02891).
    """
    gaps = jnp.diff(positions.astype(jnp.int32), prepend=-1)
    b = golomb_bits(len(positions) / d)
    return (b + 1 + ((gaps - 1) >> b)).sum(dtype=jnp.float32)


def golomb_bits(p: float) -> int:
    """`b = 1 + floor(log2(log(phi - 1) / log(1 - p)))`, at least 0, of a share p of positions."""
    golden = (math.sqrt(5) - 1) / 2  # phi - 1
    return max(0, 1 + math.floor(math.log2(math.log(golden) / math.log1p(-p)))) if p < 1 else 0


def subset_size(k: int, d: int) -> float:
    """Returns `log2 binomial(d, k)`, the bits of k positions below d, all equally likely."""
    natural = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
    return natural / math.log(2)


def omega_size(numbers: jax.Array) -> jax.Array:
    """`L(n) = L(floor(log2 n)) + 1 + floor(log2 n)`, `L(1) = 1`: the bits of Elias' omega code."""
    numbers = numbers.astype(jnp.int32)
    size = jnp.ones_like(numbers)
    for _ in range(5):  # 2^31 takes five turns to become 1
        log = 31 - jax.lax.clz(numbers)
        size += jnp.where(numbers > 1, 1 + log, 0)
        numbers = jnp.maximum(log, 1)
    return size
