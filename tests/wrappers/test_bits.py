"""Packed numbers: the words of a long binary number in plain Python, at every width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.wrappers.compression.bits import pack, unpack

SIZES = (1, 7, 33, 65)


def packed_in_python(values, width):
    """The words of one long whole number."""
    number = sum(value << (width * i) for i, value in enumerate(values))
    count = -(-len(values) * width // 32)
    return [number >> (32 * word) & 0xFFFFFFFF for word in range(count)]


@pytest.mark.parametrize("width", range(1, 33))
def test_packed_numbers_are_one_long_binary_number(width):
    rng = np.random.default_rng(width)
    sizes = SIZES if width in (1, 3, 8, 21, 32) else SIZES[2:3]
    for n in sizes:
        values = rng.integers(0, 2**width, n, dtype=np.uint64).astype(np.uint32)
        words = pack(jnp.asarray(values), width)
        assert words.dtype == jnp.uint32
        assert words.tolist() == packed_in_python(values.tolist(), width)
        np.testing.assert_array_equal(unpack(words, n, width), values)


def test_numbers_of_several_clients_are_packed_at_once():
    values = np.random.default_rng(0).integers(0, 32, (3, 40), dtype=np.uint32)
    words = jax.vmap(lambda row: pack(row, 5))(jnp.asarray(values))
    assert words.tolist() == [packed_in_python(row.tolist(), 5) for row in values]
    unpacked = jax.vmap(lambda row: unpack(row, 40, 5))(words)
    np.testing.assert_array_equal(unpacked, values)


@pytest.mark.parametrize("width", [0, 33])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match=f"width={width} is out of range"):
        pack(jnp.zeros(3, jnp.uint32), width)
