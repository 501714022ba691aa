"""All codecs by their specs, with their bits, and random numbers that are given."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression.bits import low_bits

codec = functools.cache(codecs.make)


def words(*bits):
    """Bits of arrays, each of which has whole words."""
    return sum(32 * math.ceil(each / 32) for each in bits)


def padded(d):
    return 2 ** math.ceil(math.log2(d))


def ternary_bits(d):
    k = math.ceil(d / 10)
    low = low_bits(k, d)
    return 32 + words(k * (1 + low), k + (d - 1) // 2**low)


def block_bits(d):
    """One bit an entry, and a scale for each 1 in the binary number d, of which 32 is the least."""
    blocks = [2**i for i in range(5, d.bit_length()) if d >> i & 1]
    return sum(32 + words(block) for block in blocks) + (32 + 32 if d % 32 else 0)


def top_bits(d):
    k, width = math.ceil(d / 10), max(1, math.ceil(math.log2(d)))
    return words(32 * k, k * width)


CODECS = {  # the bits of a vector of d entries
    "qsgd": lambda d: 32 + words(8 * d),
    "qsgd:levels=1": lambda d: 32 + words(2 * d),
    "qsgd:levels=256": lambda d: 32 + words(10 * d),
    "qsgd:levels=3,bucket=16,norm=max": lambda d: 32 * math.ceil(d / 16) + words(3 * d),
    "klevel": lambda d: 64 + words(4 * d),
    "klevel:levels=2": lambda d: 64 + words(d),
    "klevel:levels=5,rotate=true": lambda d: 64 + words(3 * padded(d)),
    "terngrad:clip=0": lambda d: 32 + words(2 * d),
    "terngrad": lambda d: 32 + words(2 * d),
    "natural": lambda d: words(9 * d),
    "scaled_sign": lambda d: 32 + words(d),
    "sparse_ternary:fraction=0.1": ternary_bits,
    "drive": lambda d: 32 + words(padded(d)),
    "drive:blocks=true": block_bits,
    "drive:scale=least_squares": lambda d: 32 + words(padded(d)),
    "eden:bits=0.5": lambda d: 32 + words(padded(d) / 2),
    "eden:bits=2": lambda d: 32 + words(2 * padded(d)),
    "eden:bits=2.5": lambda d: 32 + words(3 * math.ceil(padded(d) / 2), 2 * (padded(d) // 2)),
    "eden:bits=8": lambda d: 32 + words(8 * padded(d)),
    "topk:fraction=0.1": top_bits,
    "randk:fraction=0.1": lambda d: 32 * math.ceil(d / 10),
    "cast:dtype=float16": lambda d: 16 * d,
    "cast:dtype=float8_e4m3fn,stochastic=true": lambda d: 8 * d,
}


@functools.cache
def many(codec):
    """What the server has of several vectors, or leaves, each with a key, compiled."""

    def run(key, v):
        return codec.decode(codec.encode(key, v), v.shape if codec.of_leaves else v.size)

    return jax.jit(jax.vmap(run))


def decoded(codec, vectors):
    """What the server has of several vectors."""
    vectors = jnp.asarray(vectors, jnp.float32)
    return np.asarray(many(codec)(jax.random.split(jax.random.key(0), len(vectors)), vectors))


def draws(codec, v, number):
    """What the server has of the same vector with different keys, float32[number, ...]."""
    return decoded(codec, np.stack([v] * number))


def error(found, v):
    """The mean of |v~ - v|^2 over the first axis, relative to |v|^2."""
    wrong = np.square(np.asarray(found, np.float64) - v).sum() / len(found)
    return wrong / np.square(v).sum()


def over_uniforms(monkeypatch, codec, v, number):
    """What is decoded if all uniform numbers are equal, at the middles of `number` intervals.

    The means of entries, and of their squares, are exact if rounding probabilities are multiples of
    one interval. float32[number, d], or float32[n, number, d] of n vectors.
    """
    vectors = jnp.atleast_2d(jnp.asarray(v, jnp.float32))
    numbers = (jnp.arange(number) + 0.5) / number

    def one(v, u):
        whole = (u * 2.0**32).astype(jnp.uint32)
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "uniform", lambda key, shape, dtype: jnp.full(shape, u))
            patch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.full(shape, whole))
            return codec.decode(codec.encode(jax.random.key(0), v), v.size)

    found = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(vectors, numbers)
    return np.asarray(found).reshape(*np.shape(v)[:-1], number, -1)
