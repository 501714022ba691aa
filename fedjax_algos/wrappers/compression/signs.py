"""Sends signs with one magnitude: of all entries, the largest ones, or the clients' majority."""

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Positive, PositiveShare
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression import bits
from fedjax_algos.wrappers.compression.coded_size import golomb_size
from fedjax_algos.wrappers.compression.coding import Codec, Coding
from fedjax_algos.wrappers.compression.compress import coded, register
from fedjax_algos.wrappers.compression.sparse import at_positions, entries_sent
from fedjax_algos.wrappers.refusals import ONE_VECTOR
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import Rule
from fedjax_algos.wrappers.templates import weighted


@register
def scaled_sign() -> Codec:
    """Scaled sign: `v~ = |v|_1 / d sign(v)`, where the sign of 0 is 1.

    Karimireddy et al. use it to show that signs need error feedback
    (https://arxiv.org/abs/1901.09847). An entry takes 1 bit, and a vector 32 for its scale. It is
    biased; its error is `|v|^2 - |v|_1^2 / d`.
    """

    def encode(key, v):
        return jnp.abs(v).mean(), bits.pack((v < 0).astype(jnp.uint32), 1)

    def decode(message, d):
        magnitude, words = message
        return jnp.where(bits.unpack(words, d, 1) == 1, -magnitude, magnitude)

    return Codec(encode, decode)


@register
def sparse_ternary(*, fraction: PositiveShare = 0.01) -> Codec:
    """Sparse ternary compression: the k entries of largest magnitude become `mu sign(v_j)`.

    mu is the mean of their magnitudes (STC, Sattler et al., https://arxiv.org/abs/1903.02891). It
    is biased; the paper uses it with error feedback. At the default fraction, an entry that is kept
    takes 9.6 bits, and a vector 32 for mu.

    Args:
      fraction: k/d, above 0 and at most 1; the paper uses 1/25 to 1/400. k is rounded up.
    """

    def encode(key, v):
        k, d = entries_sent(fraction, len(v)), len(v)
        sizes, positions = jax.lax.top_k(jnp.abs(v), k)
        positions = positions.sort()
        low, high = bits.pack_ascending(positions, d)
        entries = low << 1 | (v[positions] < 0).astype(jnp.uint32)
        return sizes.mean(), bits.pack(entries, 1 + bits.low_bits(k, d)), high

    def unpacked(message, d):
        _, words, high = message
        k = entries_sent(fraction, d)
        entries = bits.unpack(words, k, 1 + bits.low_bits(k, d))
        return entries, bits.unpack_ascending(entries >> 1, high, d)

    def decode(message, d):
        magnitude, (entries, positions) = message[0], unpacked(message, d)
        signed = jnp.where(entries & 1 == 1, -magnitude, magnitude)
        return at_positions(positions, signed, d)

    def coded_bits(message, d):
        entries, positions = unpacked(message, d)
        return 32 + entries.size + golomb_size(positions, d)

    return Codec(encode, decode, coded_bits=coded_bits)


def sign_codec() -> Codec:
    """Makes a codec of signs, random for 0, without a scale; the last bit marks a non-finite v."""

    def encode(key, v):
        negative = jnp.where(v == 0, jax.random.bernoulli(key, shape=v.shape), v < 0)
        return bits.pack(jnp.append(negative, ~jnp.isfinite(v).all()).astype(jnp.uint32), 1)

    def decode(message, d):
        votes = bits.unpack(message, d + 1, 1)
        return jnp.where(votes[d] == 1, jnp.nan, 1 - 2 * votes[:d].astype(jnp.float32))

    return Codec(encode, decode)


@wrappers.register
def majority(algorithm: Algorithm, *, magnitude: Positive = 0.01) -> Algorithm:
    """Majority vote: `U = magnitude * sign(sum_i w_i sign(v_i))` replaces each update v_i.

    A tie of the votes gives 0. A client has one bit for an entry, so where an entry
    of v_i is 0 it votes at random. w_i is the weight that the algorithm's own `contribute` gives to
    v_i, such as n_i, so the votes are equal only with equal weights. A message has d + 1 bits; the
    last one marks a v_i that is not finite, and the client is left out. U has the same size
    wherever the updates are, so this is a separate algorithm with its own rate, `magnitude`.

    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018,
    https://arxiv.org/abs/1802.04434; "signSGD with Majority Vote is Communication Efficient and
    Fault Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291.

    Deviations: clients vote on updates of several local steps, not on gradients or their
    momentum. The server sends its model, not d bits of U.

    Args:
      algorithm: the algorithm to wrap.
      magnitude: the size of each entry of U, above 0, in units of the update; with `fedavg` the
        step of each entry of the model.

    Raises:
      ValueError: for an algorithm whose clients send several vectors, models, a choice, or twice in
        a round, or whose server compares updates.
    """
    name = "majority"

    def estimate(summed, own, key, facts):
        return jax.tree.map(lambda v: (magnitude * jnp.sign(v)).astype(v.dtype), summed.total), own

    stage, rule = coded(name, Coding(sign_codec(), "part")), Rule(name, estimate, weighted)
    return add(name, algorithm, client=[stage], rule=rule, needs=ONE_VECTOR)
