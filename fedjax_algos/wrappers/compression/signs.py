"""Signs with one magnitude: of all entries, or of the largest ones.

Scaled sign (https://arxiv.org/abs/1901.09847) and sparse ternary compression
(https://arxiv.org/abs/1903.02891).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.wrappers.compression.bits import (
    low_bits,
    pack,
    pack_ascending,
    unpack,
    unpack_ascending,
)
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.coded_size import golomb_size
from fedjax_algos.wrappers.compression.compress import register
from fedjax_algos.wrappers.compression.sparse import Fraction, at_positions, entries_sent


class Signs(NamedTuple):
    magnitude: jax.Array  # float32[]
    words: jax.Array  # uint32[ceil(d / 32)]: 1 for entries below 0


class SparseSigns(NamedTuple):
    magnitude: jax.Array  # float32[]
    entries: jax.Array  # uint32[]: packed signs and low bits of the positions
    high: jax.Array  # uint32[]: the positions' other bits


def scaled_sign_codec() -> Codec:
    """`|v|_1 / d sign(v)`, where the sign of 0 is 1."""

    def encode(key, v):
        return Signs(jnp.abs(v).mean(), pack((v < 0).astype(jnp.uint32), 1))

    def decode(message, d):
        negative = unpack(message.words, d, 1) == 1
        return jnp.where(negative, -message.magnitude, message.magnitude)

    return Codec(encode, decode)


def sparse_ternary_codec(fraction: float) -> Codec:
    """The signs of the k entries of largest magnitude, times their mean magnitude."""

    def encode(key, v):
        k, d = entries_sent(fraction, len(v)), len(v)
        sizes, positions = jax.lax.top_k(jnp.abs(v), k)
        positions = positions.sort()
        low, high = pack_ascending(positions, d)
        entries = low << 1 | (v[positions] < 0).astype(jnp.uint32)
        return SparseSigns(sizes.mean(), pack(entries, 1 + low_bits(k, d)), high)

    def unpacked(message, d):
        k = entries_sent(fraction, d)
        entries = unpack(message.entries, k, 1 + low_bits(k, d))
        return entries, unpack_ascending(entries >> 1, message.high, d)

    def decode(message, d):
        entries, positions = unpacked(message, d)
        signed = jnp.where(entries & 1 == 1, -message.magnitude, message.magnitude)
        return at_positions(positions, signed, d)

    def coded_bits(message, d):
        entries, positions = unpacked(message, d)
        return 32 + entries.size + golomb_size(positions, d)

    return Codec(encode, decode, coded_bits=coded_bits)


@register
def scaled_sign() -> Codec:
    """Scaled sign: `v~ = |v|_1 / d sign(v)`, where the sign of 0 is 1.

    It is the compressor with which Karimireddy et al. show that signs need error feedback
    (https://arxiv.org/abs/1901.09847). An entry takes 1 bit, and a vector 32 for its scale. It is
    biased; its error is `|v|^2 - |v|_1^2 / d`.
    """
    return scaled_sign_codec()


@register
def sparse_ternary(*, fraction: Fraction = 0.01) -> Codec:
    """Sparse ternary compression: the k entries of largest magnitude become `mu sign(v_j)`.

    mu is the mean of their magnitudes (STC, Sattler et al., https://arxiv.org/abs/1903.02891). It
    is biased; the paper uses it with error feedback. At the default fraction, an entry that is kept
    takes 9.6 bits, and a vector 32 for mu.

    Deviations: positions have the code of Elias and Fano, whose size is fixed, in place of Golomb's
    code, which takes 9.1 bits in the mean at this fraction. Only what clients send is compressed,
    not the broadcast.

    Args:
      fraction: k/d, above 0 and at most 1; the paper uses 1/25 to 1/400. k is rounded up.
    """
    return sparse_ternary_codec(fraction)
