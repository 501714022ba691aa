"""Codecs: printed values, means by enumeration, errors, bits, and extreme vectors."""

import functools
import inspect
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_helpers import CODECS, codec, decoded, draws, error, many, over_uniforms
from wrapper_helpers import later

from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression import quantised, rotated
from fedjax_algos.wrappers.compression.rotated import lloyd_max
from fedjax_algos.wrappers.compression.signs import sign_codec
from fedjax_algos.wrappers.compression.sparse import entries_sent

V = [3, -1, 0.5, -4]
SAME = {"qsgd:levels=256", "klevel:levels=2", "drive:scale=least_squares", "eden:bits=2"}
DIFFERENT = [spec for spec in CODECS if spec not in SAME and not re.match("topk|randk|cast", spec)]
FIRST = {spec.partition(":")[0]: spec for spec in reversed(DIFFERENT)}.values()  # of each codec
ROUNDED = [s for s in CODECS if re.match("qsgd|klevel(?!.*rotate)|terngrad:clip=0|natural", s)]


def drawn(seed, d):
    """A vector with about equal, and one with very different entries."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=d), rng.lognormal(size=d) * rng.choice([-1, 1], d)
    return np.stack(vectors).astype(np.float32)


@pytest.mark.parametrize("spec", CODECS)
def test_messages_have_the_bits_of_the_table(spec):
    """Keys, such as those of rotations, are not sent."""
    for d in (1, 2, 33, 1000, 1_663_370):
        v = jax.ShapeDtypeStruct((d,), jnp.float32)
        message = jax.eval_shape(codec(spec).encode, jax.random.key(0), v)
        assert 8 * sent_bytes(message) == CODECS[spec](d)
        signs = jax.eval_shape(sign_codec().encode, jax.random.key(0), v)
        assert sent_bytes(signs) == 4 * math.ceil((d + 1) / 32)


@pytest.mark.parametrize("spec", [*FIRST, *later(*(s for s in DIFFERENT if s not in FIRST))])
def test_extreme_vectors(spec):
    """Zeros and one entry alone are exact; vectors that are not finite stay so."""
    vectors = np.tile(np.random.default_rng(0).normal(size=70), (5, 1)).astype(np.float32)
    vectors[:4, 11] = 0, np.nan, np.inf, -np.inf
    vectors[0] = 0
    values = np.float32([[4], [-0.5], [0]])  # natural compression is exact for powers of two
    keys, run = jax.random.split(jax.random.key(0), 5), many(codec(spec))
    found, alone = jax.jit(lambda: (run(keys, vectors), run(keys[:3], values)))()
    np.testing.assert_array_equal(found[0], np.zeros(70))
    assert not np.isfinite(found[1:4]).all(1).any()
    np.testing.assert_allclose(alone, values, rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "v", "number", "printed", "off"),
    [
        ("qsgd:levels=4", [3, -4, 0, 0], 10, 0.625, 1e-5),
        ("klevel:levels=2", [0, 1, 0.25], 8, 0.1875, 0),
        ("terngrad:clip=0", [3, -4], 8, 3, 0),
    ],
)
def test_rounded_entries_have_the_printed_variance(spec, v, number, printed, off, monkeypatch):
    found = over_uniforms(monkeypatch, codec(spec), v, number)
    np.testing.assert_allclose(found.mean(0), v, rtol=0, atol=off)
    np.testing.assert_allclose(error(found, v) * np.square(v).sum(), printed, rtol=max(off, 1e-7))
    assert codec("qsgd:levels=4").variance(4) == 0.25


SKEWED = drawn(3, 500)[1]
KEPT = np.abs(SKEWED) >= np.sort(np.abs(SKEWED))[-25]
SPARSE = np.where(KEPT, np.abs(SKEWED[KEPT]).mean() * np.sign(SKEWED), 0)
GOLDEN = [
    ("klevel:levels=5", [0, 1, 0.25], [0, 1, 0.25]),
    ("terngrad", [-2] * 9, [-2] * 9),
    ("scaled_sign", V, [2.125, -2.125, 2.125, -2.125]),
    ("scaled_sign", [0.5, -0.5, -0.5], [0.5, -0.5, -0.5]),
    ("scaled_sign", [0, -2], [1, -1]),
    ("sparse_ternary:fraction=0.5", V, [3.5, 0, 0, -3.5]),
    ("sparse_ternary:fraction=0.05", SKEWED, SPARSE),
    ("topk:fraction=0.5", V, [3, 0, 0, -4]),
    ("topk:fraction=0.4", [1, -2, 2, -2, 2], [0, -2, 2, 0, 0]),  # the first of equal ones
    ("cast:dtype=float16", [1e6, -1e6], [65504, -65504]),
    ("cast:dtype=float16,stochastic=true", [1e6, -1e6], [65504, -65504]),
    ("cast:dtype=float8_e4m3fn", [1e6, -1e6], [448, -448]),
    ("cast:dtype=float8_e4m3fn,stochastic=true", [1e6, -1e6], [448, -448]),
]


@pytest.mark.parametrize(("spec", "v", "expected"), GOLDEN)
def test_goldens_that_are_not_random(spec, v, expected):
    rtol = 1e-6 if len(v) == 500 else 0
    np.testing.assert_allclose(decoded(codec(spec), [v])[0], expected, rtol=rtol)


def test_the_number_of_entries_is_rounded_up():
    wanted = {(0.01, 1): 1, (0.01, 100): 1, (0.01, 101): 2, (0.07, 100): 7, (1.0, 12): 12}
    assert {given: entries_sent(*given) for given in wanted} == wanted


def test_buckets_of_qsgd_are_vectors_of_their_own(monkeypatch):
    v, alone = drawn(0, 20)[1], codec("qsgd:levels=3,norm=max")
    whole = over_uniforms(monkeypatch, codec("qsgd:levels=3,bucket=8,norm=max"), v, 16)
    for place in (slice(0, 8), slice(8, 16), slice(16, 20)):
        piece = over_uniforms(monkeypatch, alone, v[place], 16)
        np.testing.assert_allclose(whole[:, place], piece, rtol=1e-6)
    largest = np.abs(v[:8]).argmax()
    np.testing.assert_allclose(whole[:, largest], v[largest], rtol=1e-6)  # it has the last level


def test_terngrad_is_unbiased_for_the_clipped_vector(monkeypatch):
    v = np.ones(40)
    v[:2] = 30, -20
    limit = 2.5 * v.std()
    assert limit < 20
    found = over_uniforms(monkeypatch, codec("terngrad"), v, 4000)
    np.testing.assert_allclose(found.mean(0), np.clip(v, -limit, limit), rtol=0.01)


def test_natural_compression_is_exact_on_powers_of_two(monkeypatch):
    powers = np.ldexp([1, -1, 1, -1, 1, 1], [0, 5, -20, 100, -126, 127])
    found = over_uniforms(monkeypatch, codec("natural"), powers, 4)
    np.testing.assert_array_equal(found, np.tile(powers, (4, 1)))
    three = over_uniforms(monkeypatch, codec("natural"), [3, -5], 8)
    assert [{*column} for column in three.T.tolist()] == [{2, 4}, {-4, -8}]
    np.testing.assert_array_equal(three.mean(0), [3, -5])
    np.testing.assert_allclose(np.square(three[:, 0] - 3).mean(), 8 * codec("natural").variance(1))


def test_rand_k_takes_every_subset_equally_often():
    """The mean over the six subsets of two is v, and their mean square error (d/k - 1) |v|^2."""
    half, v = codec("randk:fraction=0.5"), np.array(V)
    values, counts = np.unique(draws(half, v, 4000), axis=0, return_counts=True)
    subsets = [np.isin(np.arange(4), pair) * 2 * v for pair in itertools.combinations(range(4), 2)]
    np.testing.assert_array_equal(values, np.unique(subsets, axis=0))
    np.testing.assert_array_equal(values.mean(0), v)
    assert error(values, v) == half.variance(4) == 1
    assert ((counts - 4000 / 6) ** 2 / (4000 / 6)).sum() < 20.5  # chi-square, 5 degrees, p = .001


NUMBERS = np.array([0, 1 / 3, -5.1, 1e-3, 400, -1e-7, 3e-6], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_casts_are_to_the_nearest_number_or_at_random_right_in_the_mean(dtype):
    nearest = NUMBERS.astype(jnp.dtype(dtype))
    beyond = np.where(nearest.astype(np.float32) < NUMBERS, 448.0, -448.0)
    others = np.nextafter(nearest, beyond.astype(jnp.dtype(dtype))).astype(np.float32)
    nearest, number = nearest.astype(np.float32), 4000
    np.testing.assert_array_equal(decoded(codec(f"cast:dtype={dtype}"), [NUMBERS]), [nearest])
    found = draws(codec(f"cast:dtype={dtype},stochastic=true"), NUMBERS, number)
    for numbers, v, near, far in zip(found.T, NUMBERS, nearest, others, strict=True):
        gap, drawn = abs(far - near), set(numbers.tolist())
        share = abs(v - near) / gap
        assert drawn <= ({near.item(), far.item()} if share else {near.item()})
        assert share < 10 / number or len(drawn) == 2
        assert abs(numbers.mean() - v) <= 4 * gap / 2 / number**0.5 + 1e-6 * abs(v)


def test_random_rounding_to_bfloat16_is_exact_in_the_mean(monkeypatch):
    """Over all 2^16 upper halves of a word, which the first half of the entries has."""
    v = np.array([1 / 3, -5.1, 1e-30, -2.0], np.float32)
    bfloat16 = codec("cast:dtype=bfloat16,stochastic=true")
    found = over_uniforms(monkeypatch, bfloat16, [*v, *v], 2**16)[:, :4]
    np.testing.assert_array_equal(found.mean(0, dtype=float), v)


@pytest.mark.parametrize("spec", ROUNDED)
def test_quantised_entries_are_unbiased_and_their_errors_bounded(spec, monkeypatch):
    """By the mean over 512 uniform numbers, which is exact up to half an interval."""
    vectors = np.stack([*drawn(0, 50), np.eye(50)[3], np.ones(50)]).astype(np.float32)
    decoded = over_uniforms(monkeypatch, codec(spec), vectors, 512)
    for v, found in zip(vectors, decoded, strict=True):
        gap = np.ptp(found, axis=0).max()  # of two levels
        np.testing.assert_allclose(found.mean(0), v, atol=gap / 1000 + 1e-6)
        assert error(found, v) <= codec(spec).variance(50) + 1e-3


def test_rotation_lowers_the_error_of_klevel():
    v, codecs = drawn(1, 1000)[1], [codec("klevel"), codec("klevel:rotate=true")]
    plain, lower = (error(draws(each, v, 200), v) for each in codecs)
    assert plain <= codecs[0].variance(1000)
    assert lower <= min(codecs[1].variance(1000), plain / 4)


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
    np.testing.assert_allclose(codec("drive").variance(1), math.pi / 2 - 1)
    np.testing.assert_allclose(codec("eden:bits=2").variance(1), 0.133121, atol=5e-7)
    np.testing.assert_allclose(codec("eden:bits=0.5").variance(1), math.pi - 1)


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_the_nearest_point_is_found(bits):
    z, positive = np.random.default_rng(0).normal(size=300) * 1.5, lloyd_max(bits)[0]
    points = np.concatenate([-positive[::-1], positive])
    nearest = points[np.abs(z[:, None] - points).argmin(1)]
    numbers = jax.jit(rotated.nearest_point, static_argnums=1)(z.astype(np.float32), bits)
    assert numbers.max() < 2**bits
    found = jax.jit(rotated.point, static_argnums=1)(numbers, bits)
    np.testing.assert_allclose(found, nearest, rtol=1e-6)


def all_signs(monkeypatch, codec, v):
    """What is decoded with each D, float32[2^d', d]."""
    size, v = rotated.padded_size(len(v)), jnp.asarray(v, jnp.float32)

    def one(signs):
        word = (signs.astype(jnp.uint32) << jnp.arange(size, dtype=jnp.uint32)).sum(keepdims=True)
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "bits", lambda key, shape, dtype: word)
            return codec.decode(codec.encode(jax.random.key(0), v), len(v))

    signs = jnp.asarray(list(itertools.product([0, 1], repeat=size)))
    return np.asarray(jax.jit(jax.vmap(one))(signs))


def test_drive_has_the_printed_values(monkeypatch):
    two = all_signs(monkeypatch, codec("drive"), [1, 0.5])
    np.testing.assert_allclose(two, [[1.25, 0]] * 4, atol=1e-6)
    v = np.array([1, 2, 3, 4.0])
    found = all_signs(monkeypatch, codec("drive"), v)
    np.testing.assert_allclose(found[0], [0, 0, 0, 7.5], atol=1e-6)
    np.testing.assert_allclose(found.mean(0), [0.5625, 2.4375, 2.4375, 4.3125], rtol=1e-5)
    np.testing.assert_allclose(error(found, v), 0.5375, rtol=1e-5)
    least = all_signs(monkeypatch, codec("drive:scale=least_squares"), v)
    np.testing.assert_allclose(error(least, v), 0.3167, rtol=2e-4)
    v = np.arange(1, 9.0)
    bias = all_signs(monkeypatch, codec("drive"), v).mean(0) - v  # of the fast rotation
    np.testing.assert_allclose(np.linalg.norm(bias) / np.linalg.norm(v), 0.064, atol=5e-4)
    few = np.array([1, 0.9, 0, 0, 0, 0, 0, 0])  # always the same, whatever the signs
    expected = np.broadcast_to([1.81, 0, 0, 0, 0, 0, 0, 0], (256, 8))
    np.testing.assert_allclose(all_signs(monkeypatch, codec("drive"), few), expected, atol=1e-6)


@pytest.mark.parametrize("bits", [1, 1.25, 3.5, 8])
def test_the_unbiased_scale_makes_the_product_with_the_vector_right(bits):
    vectors = np.stack([*drawn(0, 33), np.ones(33), np.eye(33)[0]])
    products = (decoded(codec(f"eden:bits={bits}"), vectors) * vectors).sum(1)
    np.testing.assert_allclose(products, np.square(vectors).sum(1), rtol=1e-5)


@pytest.mark.parametrize("bits", [*later(0.5, 1, 2), 1.5])
def test_eden_is_unbiased_with_uniformly_random_rotations(bits, monkeypatch):
    draws, v = 20_000, np.arange(1, 9, dtype=np.float32)
    matrices = np.random.default_rng(0).normal(size=(draws, 8, 8))
    q, r = np.linalg.qr(matrices)
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]  # uniform: Mezzadri 2007
    monkeypatch.setattr(rotated, "rotate", lambda key, v: key @ v)
    monkeypatch.setattr(rotated, "rotate_back", lambda key, y, d: key.T @ y)
    eden = codec(f"eden:bits={bits}")
    run = jax.jit(jax.vmap(lambda q: eden.decode(eden.encode(q, jnp.asarray(v)), 8)))
    found = np.asarray(run(jnp.asarray(q, jnp.float32)))
    expected = (error(found, v) / draws) ** 0.5  # the root of the mean square of the mean
    assert np.linalg.norm(found.mean(0) - v) / np.linalg.norm(v) < 1.6 * expected


@pytest.mark.parametrize(
    ("spec", "printed", "exact"),
    [
        ("drive", 0.5708, 0.01),
        ("eden:bits=2,scale=least_squares", 0.117482, 0.01),
        *later(("eden:bits=2", 0.1331, 0.01), ("eden:bits=3", 0.0358, 0.01)),
        *later(("eden:bits=0.5", math.pi - 1, 0.02), ("drive:scale=least_squares", 0.36338, 0.01)),
    ],
)
def test_errors_of_drive_and_eden_and_those_of_means(spec, printed, exact):
    d, clients, means = 8192, 10, 2 if "least" in spec else 30
    v = drawn(5, d)[1]
    found = draws(codec(spec), v, clients * means)
    np.testing.assert_allclose(error(found, v), printed, rtol=exact)
    if "least" not in spec:
        mean = found.reshape(means, clients, d).mean(1)
        np.testing.assert_allclose(error(mean, v), printed / clients, rtol=exact)


A, B, C, D = 0.833333, 1.117917, 0.479167, 2.395833
FEDJAX = {  # version 0.0.17 with the same uniform numbers and signs
    "klevel:levels=2": [2.25, -2, 2.25, 2.25, 2.25, -2, 2.25, -2],
    "klevel:levels=4": [A, -2, A, 2.25, -0.583333, -0.583333, A, -2],
    "klevel:levels=16": [A, -1.433333, 0.266667, 2.25, -0.3, -0.016667, 1.116667, -2],
    "klevel:levels=4,rotate=true": [0.7125, -1.4375, C, D, -C, C, 1.4375, -D],
    "terngrad": [2.25, -2.25, 0, 2.25, 0, 0, 0, -2.25],
    "drive": [B, -B, B, 3.35375, B, B, B, -B],
}


@pytest.mark.parametrize("spec", FEDJAX)
def test_decoded_vectors_are_those_of_fedjax(spec, monkeypatch):
    uniform = jnp.asarray([0.3, 0.6, 0.1, 0.9, 0.25, 0.8, 0.55, 0.45])
    signs = jnp.asarray([0b01000110], jnp.uint32)  # 1 -1 -1 1 1 1 -1 1
    monkeypatch.setattr(quantised.jax.random, "uniform", lambda key, shape, dtype: uniform)
    monkeypatch.setattr(rotated.jax.random, "bits", lambda key, shape, dtype: signs)
    encode, decode, *_ = codec(spec)
    v = jnp.asarray([0.75, -1.5, 0.1, 2.25, -0.3, 0, 1.2, -2])
    found = jax.jit(lambda: decode(encode(jax.random.key(0), v), 8))()
    np.testing.assert_allclose(found, FEDJAX[spec], atol=2e-6)


powersgd = functools.partial(inspect.unwrap(codecs["powersgd"]), iterations=1)
RELEASED_KERNEL = np.array([[[[3, -1, 0.5], [1, 2, 0]], [[-2, 1, 4], [0.5, -1, 1]]]])
RELEASED = [
    [[3.045595, -0.829016, 0.505699], [0.436269, -0.11399, -0.070466]],
    [[-2.149223, 0.440415, 3.981347], [0.707254, -0.222798, 1.025907]],
]


def starting_from(monkeypatch, q):
    monkeypatch.setattr(jax.random, "normal", lambda key, shape, dtype: jnp.asarray(q, dtype))


def test_a_matrix_of_three_rows_has_the_printed_factors(monkeypatch):
    starting_from(monkeypatch, [[1.0], [0.0]])
    leaf = np.array([[1, 2], [3, 4], [5, 6.0]]).T  # the outputs are the last axis
    p, q = powersgd(rank=1, min_rate=1).encode(jax.random.key(0), jnp.asarray(leaf))
    sign = np.sign(p[0])
    np.testing.assert_allclose(sign * p[:, 0], np.array([1, 3, 5]) / 35**0.5, rtol=1e-6)
    np.testing.assert_allclose(sign * q[:, 0], [5.9161, 7.4374], rtol=1e-5)
    for iterations, left in ((1, 0.68571), (2, 0.2645087), (9, 0.2645051)):
        found = decoded(powersgd(rank=1, min_rate=1, iterations=iterations), leaf[None])
        np.testing.assert_allclose(error(found, leaf) * 91, left, rtol=2e-5)


def test_a_kernel_of_a_convolution_is_that_of_the_authors_code(monkeypatch):
    """BasicPowerSGD of epfml/powersgd f07be92, a right and a left step with the same Q, rank 2."""
    starting_from(monkeypatch, [[1, 0], [0, 1], [1, -1], [0.5, 2]])
    found = decoded(powersgd(rank=2, min_rate=0), RELEASED_KERNEL[None])[0, 0]
    np.testing.assert_allclose(found, RELEASED, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 3, 2, 9), (9, 12)])
def test_matrices_of_low_rank_are_exact(shape):
    rng, rows = np.random.default_rng(0), int(np.prod(shape[:-1]))
    ones = [np.outer(rng.normal(size=rows), rng.normal(size=shape[-1])) for _ in range(2)]
    leaves = np.stack([0 * ones[0], ones[0], ones[0] + ones[1]]).reshape(-1, *shape)
    found = decoded(powersgd(rank=2), leaves)
    np.testing.assert_allclose(found, leaves, atol=1e-5)
    np.testing.assert_array_equal(found[0], leaves[0])


ENTRIES = {(): 1, (1000,): 1000, (784, 128): 2 * (784 + 128), (3, 3, 16, 32): 2 * (144 + 32)}
ENTRIES[1, 1, 4, 1000] = 4000  # 2 * 1004 are not half of it


@pytest.mark.parametrize(("shape", "entries"), ENTRIES.items())
def test_bits_of_leaves(shape, entries):
    """Of vectors and of what would gain less than the rate all entries are sent."""
    codec, leaf = powersgd(rank=2), jax.ShapeDtypeStruct(shape, jnp.float32)
    message = jax.eval_shape(codec.encode, jax.random.key(0), leaf)
    assert sent_bytes(message) == 4 * entries
    found = jax.eval_shape(lambda sent: codec.decode(sent, shape), message)
    assert (found.shape, found.dtype) == (shape, jnp.float32)
