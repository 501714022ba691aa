"""Signs with one magnitude: of all entries, or of the largest ones.

Scaled sign (https://arxiv.org/abs/1901.09847) and sparse ternary compression
(https://arxiv.org/abs/1903.02891).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.compression.bits import (
    low_bits,
    pack,
    pack_ascending,
    unpack,
    unpack_ascending,
)
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.compress import Feedback, Scope, compress
from fedjax_algos.wrappers.compression.sparse import Fraction, at_positions, entries_sent
from fedjax_algos.wrappers.registry import wrappers


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

    def decode(message, d):
        k = entries_sent(fraction, d)
        entries = unpack(message.entries, k, 1 + low_bits(k, d))
        positions = unpack_ascending(entries >> 1, message.high, d)
        signed = jnp.where(entries & 1 == 1, -message.magnitude, message.magnitude)
        return at_positions(positions, signed, d)

    return Codec(encode, decode)


@wrappers.register
def scaled_sign(
    algorithm: Algorithm, *, feedback: Feedback = "none", scope: Scope = "part"
) -> Algorithm:
    """Scaled sign: `v~ = |v|_1 / d sign(v)`, where the sign of 0 is 1.

    It is the compressor with which Karimireddy et al. show that signs need error feedback
    (https://arxiv.org/abs/1901.09847). An entry takes 1 bit, and a vector 32 for its scale. It is
    biased; its error is `|v|^2 - |v|_1^2 / d`.

    Args:
      algorithm: what is wrapped.
      feedback: what a client remembers of what it has sent: "none", "ef" (error
        feedback) or "ef21"; see `compress`.
      scope: what is one vector: all leaves of a part of the update ("part"), or each leaf.
    """
    return compress("scaled_sign", algorithm, scaled_sign_codec(), feedback, scope)


@wrappers.register
def sparse_ternary(
    algorithm: Algorithm,
    *,
    fraction: Fraction = 0.01,
    feedback: Feedback = "none",
    scope: Scope = "part",
) -> Algorithm:
    """Sparse ternary compression: the k entries of largest magnitude become `mu sign(v_j)`.

    mu is the mean of their magnitudes (STC, Sattler et al., https://arxiv.org/abs/1903.02891). It
    is biased; the paper uses it with error feedback. At the default fraction, an entry that is kept
    takes 9.6 bits, and a vector 32 for mu.

    Deviations: positions have the code of Elias and Fano, whose size is fixed, in place of Golomb's
    code, which takes 9.1 bits in the mean at this fraction. Only what clients send is compressed,
    not the broadcast.

    Args:
      algorithm: what is wrapped.
      fraction: k/d, above 0 and at most 1; the paper uses 1/25 to 1/400. k is rounded up.
      feedback: what a client remembers of what it has sent: "none", "ef" (error
        feedback) or "ef21"; see `compress`.
      scope: what is one vector: all leaves of a part of the update ("part"), or each leaf.
    """
    codec = sparse_ternary_codec(fraction)
    return compress("sparse_ternary", algorithm, codec, feedback, scope)
