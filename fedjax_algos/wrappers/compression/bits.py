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
