"""Sizes of codes: printed values, those of fedjax, a real coder, and the column of a run."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_helpers import codec
from helpers import dispatches_of
from wrapper_helpers import later, one_example_each, sends, transfer_of

import fedjax_algos as fa
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.compression import coded_size as sizes

coded_size = jax.jit(sizes.coded_size, static_argnums=1)
elias_size = jax.jit(sizes.elias_size)


def test_the_size_of_an_arithmetic_code():
    np.testing.assert_allclose(coded_size(jnp.asarray([0, 0, 1, 1]), 4), 76.055, atol=5e-4)
    np.testing.assert_allclose(coded_size(jnp.asarray([3, 1, 3, 1]), 4), 76.055, atol=5e-4)
    symbols = jnp.asarray([0, 1, 2, 2, 2, 2, 3, 3, 3])
    np.testing.assert_allclose(coded_size(symbols, 4), 94.346977, rtol=1e-6)  # fedjax 0.0.17
    alone = coded_size(jnp.zeros(9, int), 4)  # no bits but the table
    np.testing.assert_allclose(alone, 66 + math.log2(10 * math.e), rtol=1e-6)


def test_the_size_of_elias_code():
    numbers = jnp.asarray([1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 100, 1000])
    expected = [1, 3, 3, 6, 6, 7, 7, 11, 11, 12, 13, 17]
    assert jax.jit(sizes.omega_size)(numbers).tolist() == expected
    levels = jnp.asarray([[2, -3, 0, 0], [0, 2, 0, -3], [0, 0, 0, 0]])
    assert jax.jit(jax.vmap(elias_size))(levels).tolist() == [42, 32 + (3 + 1 + 3) * 2, 32]


def golomb(positions, b):
    """The bits of Golomb's code as a text."""
    text, last = "", -1
    for position in positions:
        ones, low = divmod(position - last - 1, 2**b)
        text += "1" * ones + "0" + format(low, f"0{b}b") * (b > 0)
        last = position
    return text


def test_the_sizes_of_positions():
    assert [sizes.golomb_bits(p) for p in (1, 0.9, 0.5, 0.3, 0.01)] == [0, 0, 0, 1, 6]
    rng, d = np.random.default_rng(0), 200_000
    for p in (0.01, 0.3, 1):
        positions = np.sort(rng.choice(d, int(p * d), replace=False))
        size = jax.jit(sizes.golomb_size, static_argnums=1)(jnp.asarray(positions), d)
        assert size == len(golomb(positions.tolist(), sizes.golomb_bits(p)))
        if p == 0.01:
            np.testing.assert_allclose(size / len(positions), 8.108, rtol=0.002)
    assert sizes.subset_size(2, 4) == pytest.approx(math.log2(6))
    assert 32 * 16_634 + sizes.subset_size(16_634, 1_663_370) == pytest.approx(666_671, abs=0.5)


def plain_size(symbols, floats):
    """`coded_size` of a list, in NumPy."""
    _, counts = np.unique(symbols, return_counts=True)
    d, different = counts.sum(), len(counts)
    table = different * np.log2(math.e * (d + different) / different)
    return -(counts * np.log2(counts / d)).sum() + table + 32 * floats + 2


def coded(spec, v):
    """What is sent and decoded, and the size of its code."""
    encode, decode, *_, coded_bits = codec(spec)

    @jax.jit
    def run(v):
        message = encode(jax.random.key(0), v)
        return message, decode(message, v.size), coded_bits(message, v.size)

    return run(jnp.asarray(v, jnp.float32))


@pytest.mark.parametrize(
    ("spec", "floats"), [("klevel", 2), *later(("terngrad:clip=0", 1), ("natural", 0))]
)
def test_symbols_are_those_that_are_decoded(spec, floats):
    """Beside some floats; entries of one symbol are equal up to rounding."""
    _, decoded, size = coded(spec, np.random.default_rng(0).normal(size=500))
    symbols = np.round(np.asarray(decoded), 5) if spec == "klevel" else np.asarray(decoded)
    np.testing.assert_allclose(size, plain_size(symbols, floats), rtol=1e-6)


@pytest.mark.parametrize(("bits", "entropy"), [*later((2, 1.9111), (3, 2.8249)), (2.5, 2.368)])
def test_sizes_of_the_points_of_eden_are_near_their_entropy(bits, entropy):
    d = 2**14
    _, _, size = coded(f"eden:bits={bits}", np.random.default_rng(0).normal(size=d))
    widths = {math.floor(bits), math.ceil(bits)}
    table = sum(2**b * math.log2(math.e * d / 2**b) for b in widths)
    np.testing.assert_allclose(size, entropy * d + 32 + table, rtol=0.005)


def test_qsgd_takes_the_shorter_of_both_codes():
    _, decoded, size = coded("qsgd:levels=4", [3, -4, 0, 0])  # levels 2 or 3, and 3 or 4
    assert size == elias_size(jnp.round(decoded * 4 / 5).astype(int)) in (42, 45)
    dense = np.random.default_rng(0).normal(size=4096)
    message, decoded, size = coded("qsgd:bucket=512,norm=max", dense)
    rows = (decoded.reshape(8, 512) / message[0][:, None] * 127).round()
    np.testing.assert_allclose(size, plain_size(rows, 8), rtol=1e-6)
    assert size < 32 * 8 + 8 * 4096 < jax.jit(jax.vmap(elias_size))(rows).sum()


D, SETS = 1030, [(0, 1), (1, 2)]
VECTORS = np.random.default_rng(0).normal(size=(3, 2, D)).astype(np.float32)


def ended(spec):
    """The params after two rounds, the metrics of both, and the counted bytes of an upload."""
    algorithm, data = wrap(sends(VECTORS), spec), one_example_each(3)
    engine = fa.make_engine(algorithm)
    state = engine.init(0, fa.Population(3, 2, 3))
    state, metrics = engine.rounds(state, data, dispatches_of(data, algorithm.local, SETS))
    return np.asarray(state.server.params["x"]), metrics, transfer_of(algorithm, data).upload


TOP = (32 * 103 + sizes.subset_size(103, D)) / 8  # and not 4 * 103 + the words of 11 bits


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("topk:fraction=0.1,feedback=ef,", TOP),
        *later(("cast:dtype=float16,", 2 * D), ("drive:", 4 + 4 * 64)),  # no, or a longer code
        *later(("topk:fraction=1,", 4 * D), ("randk:fraction=0.1,", 4 * 103)),
        *later(("eden:bits=3,blocks=true,", None), ("sparse_ternary:fraction=0.1,", None)),
    ],
)
def test_measuring_adds_a_column_and_changes_no_bit(spec, expected):
    params, metrics, counted = ended(spec.rstrip(":,"))
    measured, columns, same = ended(f"{spec}measure_size=true")
    np.testing.assert_array_equal(measured, params)
    assert same == counted
    mean = columns.pop("coded_bytes_per_upload")
    assert columns.keys() == metrics.keys()
    assert mean.weight == 4
    if expected is None:
        assert 0.5 * counted < mean.value() < counted
    else:
        np.testing.assert_allclose(mean.value(), expected, rtol=1e-5)
