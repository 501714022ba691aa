"""Whole numbers whose sum is exact modulo 2^w: golden values, identities and cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import small_network
from wrapper_helpers import (
    LOST,
    NETWORK_LOCAL,
    VECTORS,
    D,
    later,
    moves,
    one_example_each,
    rounds_of,
    sends,
    traced,
    transfer_of,
)

import fedjax_algos as fa
from fedjax_algos.wrappers import secure_sum, secure_sum_bits, wrap
from fedjax_algos.wrappers.compression.bits import unpack
from fedjax_algos.wrappers.secure_sum import sum_width
from fedjax_algos.wrappers.stages import Client

UNIFORM = fa.participation.samplers.make("uniform")
SEVEN = fa.wrappers.Sampling(UNIFORM, 7, 7)


@pytest.mark.parametrize(
    ("clients", "entries", "bits", "total", "factor"),
    [  # the first two are in the abstract of the paper, as 1.73 and 1.98
        (2**10, 2**20, 16, 29_097_984, 1.734),
        (2**14, 2**24, 16, 532_691_968, 1.984),
        (100, 199_210, 16, 4_760_106, 1.493),
        (100, 1_663_370, 16, 38_435_786, 1.444),
    ],
)
def test_golden_costs(clients, entries, bits, total, factor):
    assert secure_sum_bits(clients, entries, bits) == total
    assert total / (bits * entries) == pytest.approx(factor, abs=5e-4)


def numbers_of(vector, **options):
    """The whole numbers that a client sends in 4,000 dispatches."""
    stage = secure_sum(sends(VECTORS), **options, sampling=SEVEN).transport.client[0]

    @jax.vmap
    def one(key):
        client = Client(None, None, None, key, tags=(1,))
        sent = stage.apply([jnp.array(vector)], (), client)
        numbers = unpack(sent.extra["words"][0], len(vector), sum_width(7, options.get("bits", 22)))
        return numbers, sent.metrics["clipped"].value()

    return jax.device_get(one(jax.random.split(jax.random.key(0), 4000)))


def test_golden_numbers():
    """With b = 2 there are the levels -1, 0 and 1."""
    numbers, clipped = numbers_of([0.25, -1.0, 1.0, 3.0, 0.0], clip=1, bits=2)
    assert [*map(set, numbers.T.tolist())] == [{1, 2}, {0}, {2}, {2}, {1}]
    np.testing.assert_allclose(numbers.mean(0), [1.25, 0, 2, 2, 1], atol=0.03)
    np.testing.assert_allclose(clipped, 0.2, rtol=1e-6)


def test_small_entries_keep_their_mean():
    """An update of a thousandth of a level, at the default of 22 bits."""
    unit = 8 / (2**21 - 1)
    numbers, _ = numbers_of([0.001 * unit, 0.4 * unit])
    np.testing.assert_allclose(numbers.mean(0) - 2**21 + 1, [0.001, 0.4], atol=0.03)


@pytest.mark.parametrize("layout", ["vmapped", *later("sequential"), *later(2)])
@pytest.mark.parametrize("bits", [29, 12])
def test_the_sum_is_exact(layout, bits, x64):
    """At 29 bits 7 clients fill the 32 bits of a word. In the third round nothing arrives."""
    algorithm = secure_sum(sends(3 * VECTORS), clip=4, bits=bits, sampling=SEVEN)
    found = moves(algorithm, layout=layout)
    clear = np.clip(3 * VECTORS, -4, 4)
    expected = [clear[~LOST, 0].mean(0), clear[:, 1].mean(0), np.zeros(D)]
    half = 2 ** (bits - 1) - 1
    np.testing.assert_allclose(found, expected, atol=4 / half)
    levels = found[1] / 4 * 7 * half
    np.testing.assert_allclose(levels, levels.round(), atol=1e-4)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_do_not_overflow(sign, x64):
    """65,537 clients of 16 bits at one end: their sum is 0 or 2^32 - 2^17."""
    slots, vectors = 2**16 + 1, np.full((2**16 + 1, 1, 1), sign * 9.0)
    sampling = fa.wrappers.Sampling(UNIFORM, slots, slots)
    algorithm = secure_sum(sends(vectors), clip=2, bits=16, sampling=sampling)
    (state,) = rounds_of(algorithm, [range(slots)], slots)
    np.testing.assert_allclose(state.server.params["x"], [-2.0 * sign], rtol=1e-9)


@pytest.mark.parametrize(
    ("slots", "bits", "dtype"),
    [(7, 26, "float32"), (7, 29, "float32"), (64, 26, "float32"), (2, 31, "float32"),
     (7, 22, "bfloat16"), (7, 22, "float16")],
)  # fmt: skip
def test_the_ends_of_the_range_in_each_type(slots, bits, dtype):
    """Where float32, or the type of the model, cannot say 2^(b-1) - 1."""
    vectors = jnp.tile(jnp.array([-9, -8, 9, 0.5, 0], dtype), (slots, 1, 1))
    sampling = fa.wrappers.Sampling(UNIFORM, slots, slots)
    algorithm = secure_sum(sends(vectors), bits=bits, sampling=sampling)
    (state,) = rounds_of(algorithm, [range(slots)], slots)
    found = np.asarray(state.server.params["x"], float)
    np.testing.assert_allclose(found, [8, 8, -8, -0.5, 0], atol=1e-5)


def test_more_clients_than_slots_have_no_mean():
    algorithm = secure_sum(sends(VECTORS), sampling=SEVEN._replace(cohort_size=6))
    assert np.isnan(moves(algorithm, rounds=1, arrives=np.full((1, 7), True))).all()


def test_an_update_that_is_not_finite_is_left_out():
    vectors = VECTORS.astype(np.float32)
    vectors[3, 0, 1] = np.nan
    engine = fa.make_engine(secure_sum(sends(vectors), sampling=SEVEN))
    data = one_example_each(7)
    state, rows = fa.simulate(engine, data, cohort_size=7, rounds=1, eval_every=1)
    expected = -vectors[np.arange(7) != 3, 0].mean(0)
    np.testing.assert_allclose(state.server.params["x"], expected, atol=1e-5)
    assert rows[-1]["clipped"] == 0


def test_an_entry_takes_the_bits_of_the_sum():
    """Seven clients and 22 bits: 25 bits an entry."""
    base = sends(np.zeros((7, 1, 640), np.float32))
    data = one_example_each(7)
    sent = transfer_of(secure_sum(base, sampling=SEVEN), data)
    plain = transfer_of(base, data)
    assert (sent.upload, plain.upload) == (640 * 25 / 8, 640 * 4)
    assert sent.download == plain.download


@pytest.mark.parametrize(
    ("specs", "sampling", "message"),
    [
        ("secure_sum", None, "the cohorts are not known; give sampling"),
        ("secure_sum", SEVEN._replace(cohort_size=1025), "takes 33 bits; give bits=21 or fewer"),
        ("secure_sum+gaussian:clip=1,noise=1", SEVEN, "secure_sum replaces all updates already"),
        ("secure_sum+qsgd", SEVEN, "qsgd has to act before secure_sum"),
        ("term:t=1+secure_sum", SEVEN, "term reads single updates; leave it out"),
    ],
)
def test_refusals(specs, sampling, message):
    base = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL, weighting="uniform")
    with pytest.raises(ValueError, match=message):
        wrap(base, specs, sampling=sampling)


def test_unequal_weights_are_refused():
    algorithm = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL)
    with pytest.raises(ValueError, match=r"secure_sum needs equal weights.* leave secure_sum out"):
        traced(wrap(algorithm, "secure_sum", sampling=SEVEN))
