"""Codecs: printed values, means by enumeration, errors and their bounds, bits, extreme vectors."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_helpers import CODECS, both_ends, decoded, draws, over_uniforms

from fedjax_algos.wrappers.compression import quantised, rotated, rotation
from fedjax_algos.wrappers.compression.bits import low_bits, pack_ascending, unpack_ascending
from fedjax_algos.wrappers.compression.quantised import (
    klevel_codec,
    natural_codec,
    qsgd_codec,
    terngrad_codec,
)
from fedjax_algos.wrappers.compression.rotated import eden_codec, lloyd_max
from fedjax_algos.wrappers.compression.signs import scaled_sign_codec, sparse_ternary_codec

V = [3, -1, 0.5, -4]
SAME = {"qsgd, 256 levels", "klevel, two", "drive, least squares", "eden, two bits"}  # but for bits
DIFFERENT = {name: case for name, case in CODECS.items() if name not in SAME}
UNBIASED = {name: case.codec for name, case in CODECS.items() if case.codec.variance}
ROUNDED = [
    name for name in UNBIASED if not name.startswith(("drive", "eden")) and "rotated" not in name
]


def error(found, v):
    """The mean of |v~ - v|^2 over its first axis."""
    return np.square(np.asarray(found, np.float64) - v).sum(-1).mean()


def drawn(seed, d):
    """A vector with about equal, and one with very different entries."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=d), rng.lognormal(size=d) * rng.choice([-1, 1], d)]


@pytest.mark.parametrize("case", CODECS.values(), ids=CODECS)
def test_messages_have_the_bits_of_the_table(case):
    for d in (1, 2, 33, 1000, 1_663_370):
        v = jax.ShapeDtypeStruct((d,), jnp.float32)
        message = jax.eval_shape(case.codec.encode, jax.random.key(0), v)
        sent = [
            x
            for x in jax.tree.leaves(message)
            if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        assert {x.dtype.name for x in sent} <= {"uint32", "float32"}
        assert sum(32 * x.size for x in sent) == case.bits(d)


def test_padding_is_counted_and_blocks_have_none():
    assert CODECS["drive"].bits(1_663_370) == 2**21 + 32
    assert CODECS["drive in blocks"].bits(1_663_370) < 1_663_370 + 32 * 14
    assert CODECS["sparse ternary"].bits(100) == 32 + 64 + 32


@pytest.mark.all
@pytest.mark.parametrize("case", DIFFERENT.values(), ids=DIFFERENT)
def test_zeros_are_exact_and_vectors_that_are_not_finite_stay_so(case):
    vectors = np.tile(np.random.default_rng(0).normal(size=70), (5, 1))
    vectors[:4, 11] = 0, np.nan, np.inf, -np.inf
    vectors[0] = 0
    found = decoded(case.codec, vectors)
    np.testing.assert_array_equal(found[0], np.zeros(70))
    assert not np.isfinite(found[1:4]).all(1).any()


@pytest.mark.all
@pytest.mark.parametrize("case", DIFFERENT.values(), ids=DIFFERENT)
def test_one_entry_alone_is_exact(case):
    values = np.array([[4], [-0.5], [0]])  # natural compression is exact for powers of two
    np.testing.assert_allclose(decoded(case.codec, values), values, rtol=1e-5)


@pytest.mark.parametrize("name", ["qsgd in buckets", "sparse ternary", "eden, 2.5 bits"])
def test_vectors_that_are_encoded_at_once_are_those_that_are_encoded_alone(name):
    codec, vectors = CODECS[name].codec, np.stack(drawn(0, 40))
    key = jax.random.split(jax.random.key(0), 2)[1]
    alone = both_ends(codec)(key, jnp.asarray(vectors[1], jnp.float32))
    np.testing.assert_allclose(decoded(codec, vectors)[1], alone, atol=1e-5)


def test_qsgd_has_the_printed_variance(monkeypatch):
    v, codec = [3, -4, 0, 0], qsgd_codec(4)
    found = over_uniforms(monkeypatch, codec, v, 10)
    np.testing.assert_allclose(found.mean(0), v, atol=1e-5)
    np.testing.assert_allclose(error(found, v), 0.625, rtol=1e-5)
    np.testing.assert_allclose(codec.variance(4) * 25, 6.25)
    levels = {tuple(row) for row in np.abs(found * 4 / 5).round().astype(int)}
    assert levels == {(3, 4, 0, 0), (2, 4, 0, 0), (3, 3, 0, 0), (2, 3, 0, 0)} & levels
    assert (2, 3, 0, 0) in levels


def test_buckets_of_qsgd_are_vectors_of_their_own(monkeypatch):
    v = drawn(0, 20)[1]
    whole = over_uniforms(monkeypatch, qsgd_codec(3, 8, "max"), v, 16)
    for start in (0, 8, 16):
        piece = over_uniforms(monkeypatch, qsgd_codec(3, 0, "max"), v[start : start + 8], 16)
        np.testing.assert_allclose(whole[:, start : start + 8], piece, rtol=1e-6)
    largest = np.abs(v[:8]).argmax()
    np.testing.assert_allclose(whole[:, largest], v[largest], rtol=1e-6)  # it has the last level


def test_klevel_has_the_printed_variance(monkeypatch):
    v = [0, 1, 0.25]
    found = over_uniforms(monkeypatch, klevel_codec(2), v, 8)
    np.testing.assert_array_equal(found.mean(0), v)
    np.testing.assert_allclose(error(found, v), 0.1875)
    np.testing.assert_array_equal(decoded(klevel_codec(5), v), v)


def test_terngrad_has_the_printed_variance(monkeypatch):
    found = over_uniforms(monkeypatch, terngrad_codec(), [3, -4], 8)
    np.testing.assert_array_equal(found.mean(0), [3, -4])
    np.testing.assert_allclose(error(found, [3, -4]), 3)


def test_terngrad_is_unbiased_for_the_clipped_vector(monkeypatch):
    v = np.ones(40)
    v[:2] = 30, -20
    limit = 2.5 * v.std()
    assert limit < 20
    found = over_uniforms(monkeypatch, terngrad_codec(2.5), v, 4000)
    np.testing.assert_allclose(found.mean(0), np.clip(v, -limit, limit), rtol=0.01)
    np.testing.assert_array_equal(decoded(terngrad_codec(2.5), np.full(9, -2.0)), np.full(9, -2.0))


def test_natural_compression_is_exact_on_powers_of_two(monkeypatch):
    powers = np.ldexp([1, -1, 1, -1, 1, 1], [0, 5, -20, 100, -126, 127])
    found = over_uniforms(monkeypatch, natural_codec(), powers, 4)
    np.testing.assert_array_equal(found, np.tile(powers, (4, 1)))
    three = over_uniforms(monkeypatch, natural_codec(), [3, -5], 8)
    assert set(three[:, 0]) == {2, 4}
    assert set(three[:, 1]) == {-4, -8}
    np.testing.assert_array_equal(three.mean(0), [3, -5])
    np.testing.assert_allclose(
        np.square(three[:, 0] - 3).mean(), 9 * natural_codec().variance(1) * 8 / 9
    )


def test_scaled_sign_has_the_printed_values():
    found = np.asarray(decoded(scaled_sign_codec(), V))
    np.testing.assert_array_equal(found, [2.125, -2.125, 2.125, -2.125])
    np.testing.assert_allclose(1 - error(found, V) / 26.25, 0.688, atol=5e-4)
    equal = np.array([0.5, -0.5, -0.5])
    np.testing.assert_array_equal(decoded(scaled_sign_codec(), equal), equal)
    np.testing.assert_array_equal(decoded(scaled_sign_codec(), [0, -2]), [1, -1])


def test_sparse_ternary_keeps_signs_of_the_largest_entries():
    np.testing.assert_array_equal(decoded(sparse_ternary_codec(0.5), V), [3.5, 0, 0, -3.5])
    v = drawn(3, 500)[1].astype(np.float32)
    kept = np.argsort(-np.abs(v))[:25]
    expected = np.zeros(500)
    expected[kept] = np.abs(v[kept]).mean() * np.sign(v[kept])
    np.testing.assert_allclose(decoded(sparse_ternary_codec(0.05), v), expected, rtol=1e-6)


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 1000), (5, 5), (7, 64), (40, 1000), (999, 1000)])
def test_positions_are_packed_with_less_than_two_bits_above_the_entropy(k, d):
    rng, packed = np.random.default_rng(k), jax.jit(lambda positions: pack_ascending(positions, d))
    unpacked = jax.jit(lambda low, words: unpack_ascending(low, words, d))
    for _ in range(3):
        positions = np.sort(rng.choice(d, k, replace=False))
        low, words = packed(jnp.asarray(positions))
        np.testing.assert_array_equal(unpacked(low, words), positions)
    size = k * low_bits(k, d) + k + (d - 1) // 2 ** low_bits(k, d)
    assert words.size == math.ceil((size - k * low_bits(k, d)) / 32)
    assert size <= k * (2 + math.log2(d / k))
    top = jnp.arange(d - k, d)
    np.testing.assert_array_equal(unpacked(*packed(top)), top)


def test_the_size_of_positions_is_near_that_of_golombs_code():
    p, phi = 0.01, (1 + 5**0.5) / 2
    low = 1 + math.floor(math.log2(math.log(phi - 1) / math.log(1 - p)))
    golomb = low + 1 / (1 - (1 - p) ** 2**low)
    np.testing.assert_allclose(golomb, 8.108, atol=5e-4)
    d = 100_000
    ours = low_bits(1000, d) + 1 + (d - 1) // 2 ** low_bits(1000, d) / 1000
    np.testing.assert_allclose(ours, 8.56, atol=5e-3)
    assert ours < 1.06 * golomb


@pytest.mark.parametrize("name", ROUNDED)
def test_quantised_entries_are_unbiased_and_their_errors_bounded(name, monkeypatch):
    """By the mean over 512 uniform numbers, which is exact up to half an interval."""
    codec = UNBIASED[name]
    vectors = np.stack([*drawn(0, 50), np.eye(50)[3], np.ones(50)]).astype(np.float32)
    for v, found in zip(vectors, over_uniforms(monkeypatch, codec, vectors, 512), strict=True):
        gap = np.ptp(found, axis=0).max()  # of two levels
        np.testing.assert_allclose(found.mean(0), v, atol=gap / 1000 + 1e-6)
        assert error(found, v) <= (codec.variance(50) + 1e-3) * np.square(v).sum()


def test_rotation_lowers_the_error_of_klevel():
    v = np.asarray(drawn(1, 1000)[1], np.float32)
    errors = {}
    for rotate in (False, True):
        codec = klevel_codec(16, rotate)
        found = draws(codec, v, 200)
        errors[rotate] = error(found, v) / np.square(v).sum()
        assert errors[rotate] <= codec.variance(1000)
        spread = (errors[rotate] / 200) ** 0.5  # of the mean's relative error
        bias = np.linalg.norm(found.mean(0) - v) / np.linalg.norm(v)
        assert bias < 1.2 * spread
    assert errors[True] < errors[False] / 4


def test_the_points_of_the_normal_distribution():
    printed = {
        1: ([0.7978845608], 0.363380),
        2: ([0.4527800346, 1.5104176085], 0.117482),
        3: ([0.2450941789, 0.7560052812, 1.3439092785, 2.1519457045], 0.034548),
    }
    for bits, (points, least) in printed.items():
        np.testing.assert_allclose(lloyd_max(bits)[0], points, atol=1e-9)
        np.testing.assert_allclose(lloyd_max(bits)[1], least, atol=5e-7)
    np.testing.assert_allclose(lloyd_max(4)[1], 0.009501, atol=5e-7)
    np.testing.assert_allclose(lloyd_max(8)[1], 0.0000411851, atol=5e-11)
    np.testing.assert_allclose(eden_codec(1).variance(1), math.pi / 2 - 1)
    np.testing.assert_allclose(eden_codec(2).variance(1), 0.133121, atol=5e-7)
    np.testing.assert_allclose(eden_codec(0.5).variance(1), math.pi - 1)


def test_the_nearest_point_is_found():
    z = np.random.default_rng(0).normal(size=300) * 1.5
    for bits in (1, 2, 3, 8):
        positive = lloyd_max(bits)[0]
        points = np.concatenate([-positive[::-1], positive])
        nearest = points[np.abs(z[:, None] - points).argmin(1)]
        numbers = jax.jit(rotated.nearest_point, static_argnums=1)(z.astype(np.float32), bits)
        assert numbers.max() < 2**bits
        found = jax.jit(rotated.point, static_argnums=1)(numbers, bits)
        np.testing.assert_allclose(found, nearest, rtol=1e-6)


def all_signs(monkeypatch, codec, v):
    """What is decoded with each D, float32[2^d', d]."""
    size = rotation.padded_size(len(v))

    def one(signs):
        word = (signs.astype(jnp.uint32) << jnp.arange(size, dtype=jnp.uint32)).sum(keepdims=True)
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "bits", lambda key, shape, dtype: word)
            return codec.decode(
                codec.encode(jax.random.key(0), jnp.asarray(v, jnp.float32)), len(v)
            )

    signs = jnp.asarray(list(itertools.product([0, 1], repeat=size)))
    return np.asarray(jax.jit(jax.vmap(one))(signs))


def test_drive_has_the_printed_values(monkeypatch):
    np.testing.assert_allclose(
        all_signs(monkeypatch, eden_codec(), [1, 0.5]), [[1.25, 0]] * 4, atol=1e-6
    )
    v = np.array([1, 2, 3, 4.0])
    found = all_signs(monkeypatch, eden_codec(), v)
    np.testing.assert_allclose(found[0], [0, 0, 0, 7.5], atol=1e-6)
    np.testing.assert_allclose(found.mean(0), [0.5625, 2.4375, 2.4375, 4.3125], rtol=1e-5)
    np.testing.assert_allclose(error(found, v) / 30, 0.5375, rtol=1e-5)
    least = all_signs(monkeypatch, eden_codec(scale="least_squares"), v)
    np.testing.assert_allclose(error(least, v) / 30, 0.3167, rtol=2e-4)


def test_the_bias_of_drive_with_the_fast_rotation(monkeypatch):
    v = np.arange(1, 9.0)
    bias = all_signs(monkeypatch, eden_codec(), v).mean(0) - v
    np.testing.assert_allclose(np.linalg.norm(bias) / np.linalg.norm(v), 0.064, atol=5e-4)


@pytest.mark.parametrize("bits", [1, 1.25, 3.5, 8])
def test_the_unbiased_scale_makes_the_product_with_the_vector_right(bits):
    vectors = np.stack([*drawn(0, 33), np.ones(33), np.eye(33)[0]])
    products = (decoded(eden_codec(bits), vectors) * vectors).sum(1)
    np.testing.assert_allclose(products, np.square(vectors).sum(1), rtol=1e-5)


@pytest.mark.parametrize("bits", [0.5, 1, 1.5, 2])
def test_eden_is_unbiased_with_uniformly_random_rotations(bits, monkeypatch):
    draws, v = 20_000, np.arange(1, 9, dtype=np.float32)
    matrices = np.random.default_rng(0).normal(size=(draws, 8, 8))
    q, r = np.linalg.qr(matrices)
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]  # uniform: Mezzadri 2007
    monkeypatch.setattr(rotated, "rotate", lambda key, v: key @ v)
    monkeypatch.setattr(rotated, "rotate_back", lambda key, y, d: key.T @ y)
    codec = eden_codec(bits)
    run = jax.jit(jax.vmap(lambda q: codec.decode(codec.encode(q, jnp.asarray(v)), 8)))
    found = np.asarray(run(jnp.asarray(q, jnp.float32)))
    expected_size = (error(found, v) / draws) ** 0.5  # the root of the mean square of the mean
    assert np.linalg.norm(found.mean(0) - v) < 1.6 * expected_size


@pytest.mark.parametrize(
    ("bits", "printed", "exact"),
    [(1, 0.5708, 0.01), (2, 0.1331, 0.01), (3, 0.0358, 0.01), (0.5, math.pi - 1, 0.02)],
)
def test_errors_of_drive_and_eden_and_those_of_means(bits, printed, exact):
    d, clients, means = 8192, 10, 30
    v = drawn(5, d)[1]
    found = draws(eden_codec(bits), v, clients * means)
    square = np.square(v).sum()
    np.testing.assert_allclose(error(found, v) / square, printed, rtol=exact)
    mean = found.reshape(means, clients, d).mean(1)
    np.testing.assert_allclose(error(mean, v) / square, printed / clients, rtol=exact)


def test_the_least_squares_scale_has_the_least_error():
    v = drawn(5, 8192)[1]
    for bits, least in ((1, 0.36338), (2, 0.117482)):
        found = draws(eden_codec(bits, "least_squares"), v, 20)
        np.testing.assert_allclose(error(found, v) / np.square(v).sum(), least, rtol=0.01)


FEDJAX_VECTOR = [0.75, -1.5, 0.1, 2.25, -0.3, 0, 1.2, -2]
FEDJAX = {  # version 0.0.17 with the same uniform numbers and signs
    "klevel, 2": (klevel_codec(2), [2.25, -2, 2.25, 2.25, 2.25, -2, 2.25, -2]),
    "klevel, 4": (
        klevel_codec(4),
        [0.833333, -2, 0.833333, 2.25, -0.583333, -0.583333, 0.833333, -2],
    ),
    "klevel, 16": (
        klevel_codec(16),
        [0.833333, -1.433333, 0.266667, 2.25, -0.3, -0.016667, 1.116667, -2],
    ),
    "terngrad": (terngrad_codec(2.5), [2.25, -2.25, 0, 2.25, 0, 0, 0, -2.25]),
    "klevel, rotated": (
        klevel_codec(4, True),
        [0.7125, -1.4375, 0.479167, 2.395833, -0.479167, 0.479167, 1.4375, -2.395833],
    ),
    "drive": (
        eden_codec(),
        [1.117917, -1.117917, 1.117917, 3.35375, 1.117917, 1.117917, 1.117917, -1.117917],
    ),
}


@pytest.mark.parametrize("name", FEDJAX)
def test_decoded_vectors_are_those_of_fedjax(name, monkeypatch):
    uniform = jnp.asarray([0.3, 0.6, 0.1, 0.9, 0.25, 0.8, 0.55, 0.45])
    signs = jnp.asarray([0b01000110], jnp.uint32)  # 1 -1 -1 1 1 1 -1 1
    monkeypatch.setattr(quantised.jax.random, "uniform", lambda key, shape, dtype: uniform)
    monkeypatch.setattr(rotation.jax.random, "bits", lambda key, shape, dtype: signs)
    codec, expected = FEDJAX[name]
    v = jnp.asarray(FEDJAX_VECTOR)
    run = jax.jit(lambda: codec.decode(codec.encode(jax.random.key(0), v), 8))
    np.testing.assert_allclose(run(), expected, atol=2e-6)
