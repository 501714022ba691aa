"""Top-k and rand-k: send a few entries of a vector."""

import math

import jax
import jax.numpy as jnp

from fedjax_algos.core.options import PositiveShare
from fedjax_algos.core.randomness import permutation_words, permute
from fedjax_algos.wrappers.compression.bits import pack, unpack
from fedjax_algos.wrappers.compression.coded_size import subset_size
from fedjax_algos.wrappers.compression.coding import Codec, unchanged
from fedjax_algos.wrappers.compression.compress import register


def entries_sent(fraction: float, d: int) -> int:
    """Returns k: `fraction * d`, rounded up."""
    return math.ceil(fraction * d * (1 - 1e-12))  # .07 * 100 is above 7


def position_bits(d: int) -> int:
    """Returns the bits of a position below d: `ceil(log2 d)`."""
    return max(1, (d - 1).bit_length())


def at_positions(positions: jax.Array, values: jax.Array, d: int) -> jax.Array:
    """float32[d]: the values at their positions, 0 elsewhere."""
    return jnp.zeros(d, jnp.float32).at[positions].set(values, unique_indices=True)


@register
def topk(*, fraction: PositiveShare = 0.01) -> Codec:
    """Clients send the k entries of largest magnitude of each vector; the server reads 0 elsewhere.

    `v~_j = v_j` for the k largest `|v_j|`, with `k = ceil(fraction d)`, else 0. It is biased,
    with `|v~ - v|^2 <= (1 - k/d) |v|^2`, so use it with `feedback="ef"`. A message has 32 k bits of
    values and k ceil(log2 d) of positions. With `fraction=1` all entries are sent unchanged.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
    https://arxiv.org/abs/1704.05021; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018,
    https://arxiv.org/abs/1809.07599.

    Args:
      fraction: the share of the entries that are sent, above 0 and at most 1.
    """

    def encode(key, v):
        _, positions = jax.lax.top_k(jnp.abs(v), entries_sent(fraction, v.size))
        return v[positions], pack(positions, position_bits(v.size))

    def decode(message, d):
        values, words = message
        return at_positions(unpack(words, len(values), position_bits(d)), values, d)

    def coded_bits(message, d):
        k = entries_sent(fraction, d)
        return jnp.float32(32 * k + subset_size(k, d))

    return Codec(encode, decode, coded_bits=coded_bits) if fraction < 1 else unchanged


@register
def randk(*, fraction: PositiveShare = 0.01) -> Codec:
    """Clients send k random entries of each vector; the server multiplies them by d/k.

    `v~_j = (d/k) v_j` for k positions, drawn without replacement, with `k = ceil(fraction d)`, and
    else 0. It is unbiased, with `E|v~ - v|^2 = (d/k - 1) |v|^2`. A message has 32 k bits: both ends
    draw the positions from the seed, the client and the number of the dispatch. With `fraction=1`
    all entries are sent unchanged.

    Wangni et al., "Gradient Sparsification for Communication-Efficient Distributed Optimization",
    NeurIPS 2018, https://arxiv.org/abs/1710.09854; "random mask" in Konecny et al., "Federated
    Learning: Strategies for Improving Communication Efficiency", https://arxiv.org/abs/1610.05492.

    Args:
      fraction: the share of the entries that are sent, above 0 and at most 1.
    """

    def positions(key, d):
        return permute(permutation_words(key), jnp.arange(entries_sent(fraction, d)), d)

    def encode(key, v):
        return v[positions(key, v.size)], key

    def decode(message, d):
        values, key = message
        values *= d / len(values)
        return at_positions(positions(key, d), values, d)

    codec = Codec(encode, decode, lambda d: d / entries_sent(fraction, d) - 1)
    return codec if fraction < 1 else unchanged
