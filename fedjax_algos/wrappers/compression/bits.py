"""Whole numbers of a few bits each, packed into words of 32 bits without gaps.

Number i takes bits `width i` to `width (i + 1) - 1` of one long binary number, whose lowest 32 bits
are the first word. A group of at most 32 numbers fills whole words, so all shifts are static. If
that is one word, a group is one sum, which XLA fuses with what makes the numbers.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

_WORD = 32


def words_of(n: int, width: int) -> int:
    """The words of `n` numbers: `ceil(n width / 32)`."""
    return -(-n * width // _WORD)


def pack(values: jax.Array, width: int) -> jax.Array:
    """Packs whole numbers below `2^width`.

    Args:
      values: uint32[n], or any unsigned type.
      width: the bits of each number, from 1 to 32.

    Returns:
      uint32[ceil(n width / 32)]; unused bits of the last word are 0.
    """
    (n,) = values.shape
    numbers, words = _group(width)
    grouped = _padded(values.astype(jnp.uint32), numbers).reshape(-1, numbers)
    if words == 1:
        return (grouped << _shifts(width)).sum(1, dtype=jnp.uint32)
    columns = [jnp.zeros(len(grouped), jnp.uint32)] * words
    for i in range(numbers):
        word, shift = divmod(i * width, _WORD)
        columns[word] |= grouped[:, i] << shift
        if shift + width > _WORD:
            columns[word + 1] |= grouped[:, i] >> (_WORD - shift)
    return jnp.stack(columns, 1).reshape(-1)[: words_of(n, width)]


def unpack(words: jax.Array, n: int, width: int) -> jax.Array:
    """The `n` numbers, uint32[n], that `pack` has packed into `words` with the same width."""
    numbers, size = _group(width)
    grouped = _padded(words, size).reshape(-1, size)
    mask, columns = jnp.uint32(2**width - 1), []
    if size == 1:
        return ((grouped >> _shifts(width)) & mask).reshape(-1)[:n]
    for i in range(numbers):
        word, shift = divmod(i * width, _WORD)
        column = grouped[:, word] >> shift
        if shift + width > _WORD:
            column |= grouped[:, word + 1] << (_WORD - shift)
        columns.append(column & mask)
    return jnp.stack(columns, 1).reshape(-1)[:n]


def pack_ascending(positions: jax.Array, d: int) -> tuple[jax.Array, jax.Array]:
    """Packs k positions that ascend, below d, by the code of Elias and Fano.

    The low `l = floor(log2(d / k))` bits of each position stand as they are. Of the others, entry i
    of position p sets bit `(p >> l) + i` of a long word. That takes at most `2 + log2(d / k)` bits
    a position, and ceil(log2 d) without the code.

    Returns:
      The low bits, uint32[k], to be packed with `low_bits(k, d)` bits each, and the packed long
      word, uint32[ceil((k + (d - 1 >> l)) / 32)].
    """
    (k,) = positions.shape
    low = low_bits(k, d)
    positions = positions.astype(jnp.uint32)
    ones = (positions >> low) + jnp.arange(k, dtype=jnp.uint32)
    long = jnp.zeros(k + ((d - 1) >> low), jnp.uint32).at[ones].set(1, unique_indices=True)
    return positions & (2**low - 1), pack(long, 1)


def unpack_ascending(low: jax.Array, words: jax.Array, d: int) -> jax.Array:
    """The positions, uint32[k], of which `pack_ascending` has returned `low` and `words`."""
    (k,) = low.shape
    bits = low_bits(k, d)
    long = unpack(words, k + ((d - 1) >> bits), 1)
    (ones,) = jnp.nonzero(long, size=k)
    return (ones.astype(jnp.uint32) - jnp.arange(k, dtype=jnp.uint32)) << bits | low


def low_bits(k: int, d: int) -> int:
    """The low bits of a position that `pack_ascending` leaves as they are."""
    return (d // k).bit_length() - 1


def _group(width):
    """How many numbers fill how many words."""
    if not 1 <= width <= _WORD:
        raise ValueError(f"width={width!r} is out of range; give a whole number from 1 to {_WORD}")
    common = math.gcd(width, _WORD)
    return _WORD // common, width // common


def _shifts(width):
    return np.arange(0, _WORD, width, dtype=np.uint32)[None]


def _padded(values, multiple):
    return jnp.pad(values, (0, -len(values) % multiple))
