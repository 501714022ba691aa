"""All codecs with their bits and classes, and random numbers that are given."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.wrappers.compression.bits import low_bits
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.quantised import (
    klevel_codec,
    natural_codec,
    qsgd_codec,
    terngrad_codec,
)
from fedjax_algos.wrappers.compression.rotated import eden_codec, in_blocks
from fedjax_algos.wrappers.compression.signs import scaled_sign_codec, sparse_ternary_codec
from fedjax_algos.wrappers.compression.sparse import entries_sent


def words(*bits):
    """Bits of arrays, each of which has whole words."""
    return sum(32 * math.ceil(each / 32) for each in bits)


def padded(d):
    return 2 ** math.ceil(math.log2(d))


def sparse_bits(fraction):
    def bits(d):
        k = entries_sent(fraction, d)
        low = low_bits(k, d)
        return 32 + words(k * (1 + low), k + (d - 1) // 2**low)

    return bits


def block_bits(d):
    """One bit an entry, and a scale for each 1 in the binary number d, of which 32 is the least."""
    blocks = [2**i for i in range(5, d.bit_length()) if d >> i & 1]
    return sum(32 + words(block) for block in blocks) + (32 + 32 if d % 32 else 0)


class Case(NamedTuple):
    codec: Codec
    bits: object  # of a vector of d entries


CODECS = {
    "qsgd": Case(qsgd_codec(127), lambda d: 32 + words(8 * d)),
    "qsgd, one level": Case(qsgd_codec(1), lambda d: 32 + words(2 * d)),
    "qsgd, 256 levels": Case(qsgd_codec(256), lambda d: 32 + words(10 * d)),
    "qsgd in buckets": Case(
        qsgd_codec(3, 16, "max"), lambda d: 32 * math.ceil(d / 16) + words(3 * d)
    ),
    "klevel": Case(klevel_codec(16), lambda d: 64 + words(4 * d)),
    "klevel, two": Case(klevel_codec(2), lambda d: 64 + words(d)),
    "klevel, rotated": Case(klevel_codec(5, True), lambda d: 64 + words(3 * padded(d))),
    "terngrad": Case(terngrad_codec(), lambda d: 32 + words(2 * d)),
    "terngrad, clipped": Case(terngrad_codec(2.5), lambda d: 32 + words(2 * d)),
    "natural": Case(natural_codec(), lambda d: words(9 * d)),
    "scaled sign": Case(scaled_sign_codec(), lambda d: 32 + words(d)),
    "sparse ternary": Case(sparse_ternary_codec(0.1), sparse_bits(0.1)),
    "drive": Case(eden_codec(), lambda d: 32 + words(padded(d))),
    "drive in blocks": Case(in_blocks(eden_codec()), block_bits),
    "drive, least squares": Case(
        eden_codec(scale="least_squares"), lambda d: 32 + words(padded(d))
    ),
    "eden, half a bit": Case(eden_codec(0.5), lambda d: 32 + words(padded(d) / 2)),
    "eden, two bits": Case(eden_codec(2), lambda d: 32 + words(2 * padded(d))),
    "eden, 2.5 bits": Case(
        eden_codec(2.5),
        lambda d: 32 + words(3 * math.ceil(padded(d) / 2), 2 * (padded(d) // 2)),
    ),
    "eden, eight bits": Case(eden_codec(8), lambda d: 32 + words(8 * padded(d))),
}


@functools.cache
def both_ends(codec):
    """What the server has of a vector: `(key, v) -> v~`, compiled."""
    return jax.jit(lambda key, v: codec.decode(codec.encode(key, v), v.size))


@functools.cache
def many(codec):
    """The same of several vectors, each with a key."""
    return jax.jit(jax.vmap(lambda key, v: codec.decode(codec.encode(key, v), v.size)))


def decoded(codec, v, seed=0):
    """What the server has of a vector, or of several ones."""
    v, key = jnp.asarray(v, jnp.float32), jax.random.key(seed)
    if v.ndim == 1:
        return np.asarray(both_ends(codec)(key, v))
    return np.asarray(many(codec)(jax.random.split(key, len(v)), v))


def draws(codec, v, number):
    """What the server has of the same vector with different keys, float32[number, d]."""
    return decoded(codec, np.tile(np.asarray(v, np.float32), (number, 1)))


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
