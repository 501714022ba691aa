"""Top-k, rand-k and casts of single vectors: golden values, errors and bits."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.compression.cast import cast_codec
from fedjax_algos.wrappers.compression.sparse import (
    entries_sent,
    pack_positions,
    randk_codec,
    topk_codec,
    unpack_positions,
)

V = np.array([3, -1, 0.5, -4], np.float32)
KEYS = jax.random.split(jax.random.key(0), 4000)


def decoded(codec, v, keys=KEYS):
    """What is decoded with each key, [keys, d]."""
    return np.asarray(
        jax.jit(jax.vmap(lambda key: codec.decode(codec.encode(key, jnp.asarray(v)), v.size)))(keys)
    )


def test_top_k_of_four():
    (found,) = decoded(topk_codec(0.5), V, KEYS[:1])
    np.testing.assert_array_equal(found, [3, 0, 0, -4])
    assert ((found - V) ** 2).sum() == 1.25  # 4.8 % of 26.25


def test_of_equal_magnitudes_the_first_are_sent():
    (found,) = decoded(topk_codec(0.4), np.array([1, -2, 2, -2, 2], np.float32), KEYS[:1])
    np.testing.assert_array_equal(found, [0, -2, 2, 0, 0])


def test_the_number_of_entries_is_rounded_up():
    wanted = {(0.01, 1): 1, (0.01, 100): 1, (0.01, 101): 2, (0.07, 100): 7, (1.0, 12): 12}
    assert {given: entries_sent(*given) for given in wanted} == wanted


def test_bits_of_a_large_model():
    """1 % of 1,663,370 entries: 881,602 bits, which fill 27,551 words, 60.4 times fewer."""
    message = jax.eval_shape(
        topk_codec(0.01).encode, KEYS[0], jax.ShapeDtypeStruct((1_663_370,), jnp.float32)
    )
    assert message.values.shape == (16_634,)
    assert 16_634 * (32 + 21) == 881_602
    assert sent_bytes(message) == 4 * (16_634 + -(-16_634 * 21 // 32)) == 4 * 27_551


@pytest.mark.parametrize("d", [1, 2, 3, 64, 65, 1000])
def test_positions_are_packed_and_unpacked(d):
    positions = np.random.default_rng(d).permutation(d)
    words = jax.jit(lambda: pack_positions(jnp.asarray(positions), d))()
    assert words.size == -(-d * max(1, (d - 1).bit_length()) // 32)
    found = jax.jit(lambda words: unpack_positions(words, d, d))(words)
    np.testing.assert_array_equal(found, positions)


def test_rand_k_takes_every_subset_equally_often():
    """The mean over the six subsets of two is v, and their mean square error (d/k - 1) |v|^2."""
    codec = randk_codec(0.5)
    values, counts = np.unique(decoded(codec, V), axis=0, return_counts=True)
    subsets = [np.isin(np.arange(4), pair) * 2 * V for pair in itertools.combinations(range(4), 2)]
    np.testing.assert_array_equal(values, np.unique(subsets, axis=0))
    np.testing.assert_array_equal(values.mean(0), V)
    assert ((values - V) ** 2).sum(1).mean() == codec.variance(4) * (V**2).sum() == 26.25
    expected = len(KEYS) / 6
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # chi-square with 5 degrees, p = .001


FLOATS = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}
NUMBERS = np.array([0, 1 / 3, -5.1, 1e-3, 400, -1e-7, 3e-6], np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_casts_are_those_of_numpy(dtype):
    (found,) = decoded(cast_codec(dtype, False), NUMBERS, KEYS[:1])
    np.testing.assert_array_equal(found, NUMBERS.astype(FLOATS[dtype]).astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_rounding_is_to_the_two_nearest_and_right_in_the_mean(dtype):
    found = decoded(cast_codec(dtype, True), NUMBERS)
    np.testing.assert_array_equal(found, found.astype(FLOATS[dtype]).astype(np.float32))
    for numbers, v in zip(found.T, NUMBERS, strict=True):
        two = np.unique(numbers)
        assert len(two) <= 2
        assert two.min() <= v <= two.max()
        gap = np.ptp(two)
        assert abs(numbers.mean() - v) <= 4 * gap / 2 / len(KEYS) ** 0.5 + 1e-6 * abs(v)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65504), ("float8_e4m3fn", 448)])
@pytest.mark.parametrize("stochastic", [False, True])
def test_what_is_too_large_is_clipped(dtype, largest, stochastic):
    (found,) = decoded(cast_codec(dtype, stochastic), np.array([1e6, -1e6], np.float32), KEYS[:1])
    np.testing.assert_array_equal(found, [largest, -largest])
