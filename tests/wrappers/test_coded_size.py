"""Sizes of codes: printed values, those of fedjax, and a real arithmetic coder."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.wrappers.compression import coded_size as sizes
from fedjax_algos.wrappers.compression.rotated import nearest_point

coded_size = jax.jit(sizes.coded_size, static_argnums=1)
elias_size, omega_size = jax.jit(sizes.elias_size), jax.jit(sizes.omega_size)


def test_the_size_of_an_arithmetic_code():
    np.testing.assert_allclose(coded_size(jnp.asarray([0, 0, 1, 1]), 4), 76.055, atol=5e-4)
    np.testing.assert_allclose(coded_size(jnp.asarray([3, 1, 3, 1]), 4), 76.055, atol=5e-4)
    symbols = jnp.asarray([0, 1, 2, 2, 2, 2, 3, 3, 3])
    np.testing.assert_allclose(coded_size(symbols, 4), 94.346977, rtol=1e-6)  # fedjax 0.0.17
    alone = coded_size(jnp.zeros(9, int), 4)  # no bits but the table
    np.testing.assert_allclose(alone, 66 + math.log2(10 * math.e), rtol=1e-6)


def encoded(symbols, counts):
    """The number and the bits of an arithmetic code, in exact whole numbers."""
    before = np.concatenate([[0], np.cumsum(counts)]).tolist()
    low, width, total = 0, 1, before[-1]
    for symbol in symbols:
        low, width = low * total + before[symbol] * width, width * counts[symbol]
    whole = total ** len(symbols)
    bits = 1 + math.ceil(math.log2(whole) - math.log2(width))
    return (low << bits) // whole + 1, bits


def symbols_of(number, bits, counts, size):
    before = np.concatenate([[0], np.cumsum(counts)]).tolist()
    place, found = Fraction(number, 2**bits), []
    for _ in range(size):
        scaled = place * before[-1]
        found.append(int(np.searchsorted(before, int(scaled), side="right")) - 1)
        place = (scaled - before[found[-1]]) / counts[found[-1]]
    return found


def test_an_arithmetic_coder_needs_the_size():
    rng = np.random.default_rng(0)
    symbols = np.asarray(
        jax.jit(nearest_point, static_argnums=1)(rng.normal(size=1500).astype(np.float32), 3)
    )
    counts = np.bincount(symbols, minlength=8).tolist()
    symbols = symbols.tolist()
    number, bits = encoded(symbols, counts)
    assert symbols_of(number, bits, counts, len(symbols)) == symbols
    table = math.ceil(math.log2(math.comb(len(symbols) + 7, 7)))  # a number for all counts
    size = float(coded_size(jnp.asarray(symbols), 8))
    np.testing.assert_allclose(size, bits + table + 66, rtol=0.01)
    np.testing.assert_allclose(bits / len(symbols), 2.8249, rtol=0.02)  # entropy of the points


def test_the_size_of_elias_code():
    numbers = jnp.asarray([1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 100, 1000])
    assert omega_size(numbers).tolist() == [1, 3, 3, 6, 6, 7, 7, 11, 11, 12, 13, 17]
    assert elias_size(jnp.asarray([2, -3, 0, 0])) == 42
    assert elias_size(jnp.asarray([0, 2, 0, -3])) == 32 + (3 + 1 + 3) * 2
    assert elias_size(jnp.zeros(4, int)) == 32
    both = jax.vmap(elias_size)(jnp.asarray([[2, -3], [0, 0]]))
    assert both.tolist() == [42, 32]
