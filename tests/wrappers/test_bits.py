"""Packed numbers: the words of long binary numbers in plain Python, at every width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.wrappers.compression.bits import pack, unpack


def there_and_back(values, width):
    words = pack(jnp.asarray(values), width)
    return words, unpack(words, len(values), width)


def packed_in_python(values, width):
    """The words of one long whole number for each part of the bits, and of one for the rest."""
    whole, low, words = len(values) // 32 * 32, 0, []
    for size in (1, 2, 4, 8, 16, 32):
        if width & size:
            words += one_long_number([value >> low for value in values[:whole]], size)
            low += size
    return words + one_long_number(values[whole:], width)


def one_long_number(values, width):
    number = sum(value % 2**width << (width * i) for i, value in enumerate(values))
    count = -(-len(values) * width // 32)
    return [number >> (32 * word) & 0xFFFFFFFF for word in range(count)]


def numbers(width, n):
    rng = np.random.default_rng(width)
    return rng.integers(0, 2**width, n, dtype=np.uint64).astype(np.uint32)


def test_packed_numbers_are_long_binary_numbers():
    found = jax.jit(lambda: [there_and_back(numbers(width, 33), width) for width in range(1, 33)])()
    for width, (words, back) in enumerate(found, 1):
        assert words.dtype == jnp.uint32
        assert len(words) == -(-33 * width // 32)
        assert words.tolist() == packed_in_python(numbers(width, 33).tolist(), width)
        np.testing.assert_array_equal(back, numbers(width, 33))


@pytest.mark.parametrize("width", [1, 3, 8, 21])
def test_any_number_of_numbers_is_packed(width):
    sizes = (1, 7, 64, 65)
    found = jax.jit(lambda: [there_and_back(numbers(width, n), width) for n in sizes])()
    for n, (words, back) in zip(sizes, found, strict=True):
        assert words.tolist() == packed_in_python(numbers(width, n).tolist(), width)
        np.testing.assert_array_equal(back, numbers(width, n))


def test_numbers_of_several_clients_are_packed_at_once():
    values = np.random.default_rng(0).integers(0, 32, (3, 40), dtype=np.uint32)
    words, back = jax.jit(jax.vmap(lambda row: there_and_back(row, 5)))(values)
    assert words.tolist() == [packed_in_python(row.tolist(), 5) for row in values]
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("width", [0, 33])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match=f"width={width} is out of range"):
        pack(jnp.zeros(3, jnp.uint32), width)
