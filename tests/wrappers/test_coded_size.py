"""Sizes of codes: printed values, those of fedjax, real coders, and the column of a run."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_helpers import CODECS
from helpers import dispatches_of, one_round, stored
from wrapper_helpers import LOCAL, sends

import fedjax_algos as fa
from fedjax_algos.wrappers.compression import coded_size as sizes
from fedjax_algos.wrappers.compression.quantised import qsgd_codec
from fedjax_algos.wrappers.compression.rotated import eden_codec, nearest_point

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


def golomb(positions, b):
    """The bits of Golomb's code as a text."""
    text, last = "", -1
    for position in positions:
        ones, low = divmod(position - last - 1, 2**b)
        text += "1" * ones + "0" + format(low, f"0{b}b") * (b > 0)
        last = position
    return text


def test_the_size_of_golombs_code():
    assert [sizes.golomb_bits(p) for p in (1, 0.9, 0.5, 0.3, 0.01)] == [0, 0, 0, 1, 6]
    rng, d = np.random.default_rng(0), 200_000
    for p in (0.01, 0.3, 1):
        positions = np.sort(rng.choice(d, int(p * d), replace=False))
        size = jax.jit(sizes.golomb_size, static_argnums=1)(jnp.asarray(positions), d)
        assert size == len(golomb(positions.tolist(), sizes.golomb_bits(p)))
        if p == 0.01:
            np.testing.assert_allclose(size / len(positions), 8.108, rtol=0.002)


def test_the_size_of_a_set_of_positions():
    assert sizes.subset_size(2, 4) == pytest.approx(math.log2(6))
    assert 32 * 16_634 + sizes.subset_size(16_634, 1_663_370) == pytest.approx(666_671, abs=0.5)


def plain_size(symbols, floats):
    """`coded_size` of a list, in NumPy."""
    _, counts = np.unique(symbols, return_counts=True)
    d, different = counts.sum(), len(counts)
    table = different * np.log2(math.e * (d + different) / different)
    return -(counts * np.log2(counts / d)).sum() + table + 32 * floats + 2


SYMBOLS = {  # what is coded of a vector that is decoded to v~, and the floats beside it
    "klevel": (lambda v: [np.round(v, 5)], 2),
    "terngrad": (lambda v: [np.sign(v)], 1),
    "natural": (lambda v: [v], 0),
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols_are_those_that_are_decoded(name):
    v = jnp.asarray(np.random.default_rng(0).normal(size=500), jnp.float32)
    codec, (symbols, floats) = CODECS[name].codec, SYMBOLS[name]
    message = jax.jit(codec.encode)(jax.random.key(0), v)
    decoded = np.asarray(jax.jit(codec.decode, static_argnums=1)(message, 500))
    size = jax.jit(codec.coded_bits, static_argnums=1)(message, 500)
    expected = sum(plain_size(each, floats) for each in symbols(decoded))
    np.testing.assert_allclose(size, expected, rtol=1e-6)


def test_sizes_of_the_points_of_eden_are_near_their_entropy():
    d, v = 2**14, np.random.default_rng(0).normal(size=2**14).astype(np.float32)
    for bits, entropy in ((2, 1.9111), (3, 2.8249), (2.5, (1.9111 + 2.8249) / 2)):
        codec = eden_codec(bits)
        size = jax.jit(
            lambda codec=codec: codec.coded_bits(codec.encode(jax.random.key(0), v), d)
        )()
        table = sum(
            2**b * math.log2(math.e * d / 2**b) for b in {math.floor(bits), math.ceil(bits)}
        )
        np.testing.assert_allclose(size, entropy * d + 32 + table, rtol=0.005)


def test_qsgd_takes_the_shorter_of_both_codes():
    codec = qsgd_codec(4)  # levels 2 or 3, and 3 or 4
    message = jax.jit(codec.encode)(jax.random.key(0), jnp.asarray([3, -4, 0, 0], jnp.float32))
    levels = jnp.round(codec.decode(message, 4) * 4 / 5).astype(int)
    assert codec.coded_bits(message, 4) == elias_size(levels) in (42, 45)
    dense = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    codec = qsgd_codec(127, 512, "max")
    message = jax.jit(codec.encode)(jax.random.key(0), jnp.asarray(dense))
    rows = (codec.decode(message, 4096).reshape(8, 512) / message.scales[:, None] * 127).round()
    size = codec.coded_bits(message, 4096)
    np.testing.assert_allclose(size, plain_size(rows, 8), rtol=1e-6)
    assert size < 32 * 8 + 8 * 4096 < jax.vmap(elias_size)(rows).sum()


D, ROUNDS = 1030, [(0, 1), (1, 2)]
VECTORS = np.random.default_rng(0).normal(size=(3, 2, D)).astype(np.float32)


def ended(spec):
    """The params after two rounds, the metrics of both, and the counted bytes of an upload."""
    algorithm = fa.wrappers.wrap(sends(VECTORS), spec)
    data = stored([{"b": np.zeros(1)}] * 3)
    dispatches = dispatches_of(data, LOCAL, ROUNDS)
    engine = fa.make_engine(algorithm)
    state = engine.init(0, fa.Population(3, 2, 3))
    counted = engine.transfer(state, data, one_round(dispatches, 0)).upload
    state, metrics = engine.rounds(state, data, dispatches)
    return np.asarray(state.server.params["x"]), metrics, counted


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("topk:fraction=0.1", (32 * 103 + sizes.subset_size(103, D)) / 8),
        ("topk:fraction=0.1,feedback=ef", (32 * 103 + sizes.subset_size(103, D)) / 8),
        ("topk:fraction=1", 4 * D),
        ("randk:fraction=0.1", 4 * 103),
        ("scaled_sign", 4 + 4 * math.ceil(D / 32)),
        ("eden:bits=3,blocks=true", None),
        ("qsgd", None),
        ("sparse_ternary:fraction=0.1", None),
    ],
)
def test_measuring_adds_a_column_and_changes_no_bit(spec, expected):
    name, colon, given = spec.partition(":")
    params, metrics, counted = ended(spec)
    measured, columns, same = ended(f"{name}:{given}{colon and ','}measure_size=true")
    np.testing.assert_array_equal(measured, params)
    assert same == counted
    mean = columns.pop("coded_bytes_per_upload")
    assert columns.keys() == metrics.keys()
    assert mean.weight == 4
    assert (0.5 * counted < mean.value() < counted) if expected is None else True
    np.testing.assert_allclose(mean.value(), expected or mean.value(), rtol=1e-5)


def test_a_codec_without_a_code_has_its_counted_size_and_a_code_that_is_longer_is_not_used():
    for spec in ("cast:dtype=float16", "drive:blocks=false"):
        _, metrics, counted = ended(f"{spec},measure_size=true")
        assert metrics["coded_bytes_per_upload"].value() == counted


def test_sizes_are_not_measured_of_two_exchanges():
    problem = fa.models.mlp((4,), 2)
    with pytest.raises(ValueError, match=r"measure_size=True does not fit.*; leave it out"):
        fa.wrappers.topk(fa.algorithms.mime(problem, LOCAL), measure_size=True)


def test_sizes_are_not_measured_of_broadcasts():
    with pytest.raises(ValueError, match=r"no effect on what clients download; leave it out"):
        fa.wrappers.wrap(sends(VECTORS), "qsgd:direction=down,measure_size=true")
