"""Packs whole numbers of a few bits each into words of 32 bits without gaps.

32 numbers of w bits fill w words. They are packed in parts of 1, 2, 4, 8, 16 or 32 bits that add up
to w. As many numbers as fill a word are shifted and added, so XLA makes one loop of it. The last
numbers, fewer than 32, are packed bit by bit.
"""

import jax
import jax.numpy as jnp
import numpy as np

_WORD = 32


def words_of(n: int, width: int) -> int:
    """Returns the number of words for `n` numbers: `ceil(n width / 32)`."""
    return -(-n * width // _WORD)


def pack(values: jax.Array, width: int) -> jax.Array:
    """Packs whole numbers below `2^width` into uint32[ceil(n width / 32)]."""
    values, whole = values.astype(jnp.uint32), len(values) // _WORD * _WORD
    words = [_pack((values[:whole] >> low) & _mask(size), size) for low, size in _parts(width)]
    bits = (values[whole:, None] >> np.arange(width, dtype=np.uint32)[None]) & 1
    return jnp.concatenate([*words, _pack(bits.reshape(-1), 1)])


def unpack(words: jax.Array, n: int, width: int) -> jax.Array:
    """Unpacks `n` numbers, uint32[n], that `pack` has packed into `words` with the same width."""
    whole, start, values = n // _WORD * _WORD, 0, jnp.uint32(0)
    for low, size in _parts(width):
        end = start + whole * size // _WORD
        values |= _unpack(words[start:end], size) << low
        start = end
    bits = _unpack(words[start:], 1)[: (n - whole) * width].reshape(-1, width)
    last = (bits << np.arange(width, dtype=np.uint32)[None]).sum(1, dtype=jnp.uint32)
    return jnp.concatenate([values, last])


def pack_ascending(positions: jax.Array, d: int) -> tuple[jax.Array, jax.Array]:
    """Packs k ascending positions below d by the code of Elias and Fano: `2 + log2(d / k)` bits.

    The first result, uint32[k], has the low `l = floor(log2(d / k))` bits of each position. The
    others are in a long word, which is packed: entry i of position p sets its bit `(p >> l) + i`.
    """
    (k,) = positions.shape
    low, positions = low_bits(k, d), positions.astype(jnp.uint32)
    ones = (positions >> low) + jnp.arange(k, dtype=jnp.uint32)
    long = jnp.zeros(k + ((d - 1) >> low), jnp.uint32).at[ones].set(1, unique_indices=True)
    return positions & (2**low - 1), pack(long, 1)


def unpack_ascending(low: jax.Array, words: jax.Array, d: int) -> jax.Array:
    """Unpacks positions, uint32[k], from the results `low` and `words` of `pack_ascending`."""
    (k,) = low.shape
    bits = low_bits(k, d)
    long = unpack(words, k + ((d - 1) >> bits), 1)
    (ones,) = jnp.nonzero(long, size=k)
    return (ones.astype(jnp.uint32) - jnp.arange(k, dtype=jnp.uint32)) << bits | low


def low_bits(k: int, d: int) -> int:
    """Returns the number of low bits that `pack_ascending` leaves unchanged."""
    return (d // k).bit_length() - 1


def _parts(width):
    """Returns the lowest bit and the size of each part: the powers of two that sum to the width."""
    sizes = [1 << bit for bit in range(6) if width >> bit & 1]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def _pack(values, size):
    """Packs numbers of a size that divides 32, and zeros to fill the last word."""
    padded = jnp.pad(values, (0, -len(values) % (_WORD // size)))
    rows = padded.reshape(-1, _WORD // size)
    return (rows << _shifts(size)).sum(1, dtype=jnp.uint32)


def _unpack(words, size):
    return ((words[:, None] >> _shifts(size)) & _mask(size)).reshape(-1)


def _shifts(size):
    return np.arange(0, _WORD, size, dtype=np.uint32)[None]


def _mask(size):
    return np.uint32(2**size - 1)
