"""Packed numbers, positions and rotations: oracles in plain Python and NumPy, and inverses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import hadamard as sylvester

from fedjax_algos.wrappers.compression import bits
from fedjax_algos.wrappers.compression.rotated import hadamard, padded_size, rotate, rotate_back
from fedjax_algos.wrappers.compression.sparse import position_bits


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


SIZES = [(33, w) for w in range(1, 33)] + [(n, w) for n in (1, 7, 64, 65) for w in (1, 3, 21)]


def test_packed_numbers_are_long_binary_numbers():
    """Of every width, and of some numbers of numbers; those of several clients at once."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 2**w, n, dtype=np.uint64).astype(np.uint32) for n, w in SIZES]
    rows = rng.integers(0, 32, (3, 40), dtype=np.uint32)

    def there_and_back(values, width):
        words = bits.pack(jnp.asarray(values), width)
        return words, bits.unpack(words, len(values), width)

    @jax.jit
    def all_packed():
        each = [there_and_back(v, width) for v, (_, width) in zip(values, SIZES, strict=True)]
        return each, jax.vmap(lambda row: there_and_back(row, 5))(rows)

    found, (words_of_rows, rows_back) = all_packed()
    for (words, back), v, (n, width) in zip(found, values, SIZES, strict=True):
        assert words.dtype == jnp.uint32
        assert len(words) == -(-n * width // 32)
        assert words.tolist() == packed_in_python(v.tolist(), width)
        np.testing.assert_array_equal(back, v)
    assert words_of_rows.tolist() == [packed_in_python(row.tolist(), 5) for row in rows]
    np.testing.assert_array_equal(rows_back, rows)


def test_positions_in_any_order_are_packed():
    sizes = (1, 2, 3, 64, 65, 1000)
    positions = [np.random.default_rng(d).permutation(d) for d in sizes]
    widths = [position_bits(d) for d in sizes]
    pairs = list(zip(map(jnp.asarray, positions), widths, strict=True))
    words = jax.jit(lambda: [bits.pack(each, width) for each, width in pairs])()
    assert [each.size for each in words] == [1, 1, 1, 12, 15, 313]  # of 1, 1, 2, 6, 7, 10 bits
    found = jax.jit(lambda: list(map(bits.unpack, words, sizes, widths)))()
    for each, expected in zip(found, positions, strict=True):
        np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 1000), (5, 5), (7, 64), (40, 1000), (999, 1000)])
def test_ascending_positions_take_less_than_two_bits_above_the_entropy(k, d):
    rng = np.random.default_rng(k)
    positions = np.sort([rng.choice(d, k, replace=False) for _ in range(3)])
    positions = np.concatenate([positions, [np.arange(d - k, d)]])

    @jax.jit
    @jax.vmap
    def there_and_back(positions):
        low, words = bits.pack_ascending(positions, d)
        return words, bits.unpack_ascending(low, words, d)

    words, found = there_and_back(positions)
    np.testing.assert_array_equal(found, positions)
    low = bits.low_bits(k, d)
    high = k + (d - 1) // 2**low
    assert words.shape[1] == math.ceil(high / 32)
    assert k * low + high <= k * (2 + math.log2(d / k))


@pytest.mark.parametrize(("d", "size"), [(1, 1), (3, 4), (64, 64), (2000, 2048)])
def test_a_rotation_is_a_product_with_sylvesters_matrix_and_has_an_inverse(d, size):
    v, key = np.random.default_rng(d).normal(size=d).astype(np.float32), jax.random.key(d)
    assert padded_size(d) == size

    @jax.jit
    def run(v):
        y = rotate(key, v)
        return hadamard(jnp.pad(v, (0, size - d))), y, rotate_back(key, y, d)

    product, y, back = run(v)
    expected = sylvester(size) @ np.pad(v, (0, size - d))
    np.testing.assert_allclose(product, expected, atol=1e-5 * d**0.5)
    assert y.shape == (size,)
    np.testing.assert_allclose(np.linalg.norm(y), np.linalg.norm(v), rtol=1e-6)
    np.testing.assert_allclose(back, v, atol=1e-6)
