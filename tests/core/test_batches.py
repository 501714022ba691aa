"""The kinds of batches: which examples a step sees, by hand, and how many steps a turn has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.core import ClientData, batches_per_epoch
from fedjax_algos.core.randomness import next_words, permutation_words, permute
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=4, learning_rate=0.5, epochs=2)
STEPS, EPOCHS, MOST = 24, 64, 13  # shapes of the two compiled functions below
COUNTS = st.integers(1, MOST)
SEEDS = st.integers(0, 2**31 - 1)


@functools.partial(jax.jit, static_argnames=("batch_size", "batches", "steps"))
def _positions(seed, count, first_step, batch_size, batches, steps=STEPS):
    words = permutation_words(jax.random.key(seed))
    data = ClientData((), jnp.zeros(0), jnp.int32(0), count, words, (), first_step)
    return jax.vmap(lambda step: data.positions(step, batch_size, batches))(
        jnp.arange(steps, dtype=jnp.int32)
    )


def stream(batches, count, *, batch_size=4, seed=0, first_step=0):
    """The examples of the steps of one turn, a list for each."""
    where, real = _positions(
        seed, np.int32(count), np.int32(first_step), batch_size=batch_size, batches=batches
    )
    assert where.shape == real.shape == (STEPS, batch_size)
    assert 0 <= where.min() <= where.max() < count  # masked rows are there too
    rows = zip(np.asarray(where), np.asarray(real), strict=True)
    return [row[mask].tolist() for row, mask in rows]


@jax.jit
def _orders(seed, count):
    words = permutation_words(jax.random.key(seed))
    places = jnp.minimum(jnp.arange(MOST), count - 1)
    return jax.vmap(lambda epoch: permute(next_words(words, epoch), places, count))(
        jnp.arange(EPOCHS)
    )


def orders(count, seed=0):
    """The order of the examples in each epoch, as lists."""
    return np.asarray(_orders(seed, np.int32(count)))[:, :count].tolist()


def cut(order, batch_size):
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


@pytest.mark.parametrize("batches", ["short", "dropped", "wrapped"])
@settings(deadline=None, max_examples=20)
@given(COUNTS, SEEDS)
def test_batches_are_an_order_cut_in_pieces(batches, count, seed):
    """Dropped ones are whole, and wrapped ones are filled from the start of the same order."""
    if batches == "dropped":
        count = max(count, 4)
    lengths = {"short": count, "dropped": count // 4 * 4, "wrapped": -(-count // 4) * 4}
    epochs = [(order * 4)[: lengths[batches]] for order in orders(count, seed)]
    actual = stream(batches, count, seed=seed)
    assert actual == [batch for epoch in epochs for batch in cut(epoch, 4)][:STEPS]
    if batches == "dropped":
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert count % 4 == 0 or len(set(map(frozenset, epochs))) > 1  # who is left out changes


def persistent_stream(order_of, count, batch_size, steps):
    """The FedGBO paper's loader: a pointer into an order that is shuffled after each wrap."""
    epoch, pointer, batches = 0, 0, []
    for _ in range(steps):
        order = order_of[epoch]
        if pointer + batch_size > count:
            batches.append(order[pointer:] + order[: pointer + batch_size - count])
            epoch, pointer = epoch + 1, 0
        else:
            batches.append(order[pointer : pointer + batch_size])
            pointer += batch_size
    return batches


@pytest.mark.parametrize("batch_size", [1, 4, 20])
@settings(deadline=None, max_examples=20)
@given(COUNTS, SEEDS, st.integers(0, 39))
def test_the_persistent_stream_is_the_papers(batch_size, count, seed, first_step):
    expected = persistent_stream(orders(count, seed), count, batch_size, first_step + STEPS)
    actual = stream("persistent", count, batch_size=batch_size, seed=seed, first_step=first_step)
    assert actual == expected[first_step:]


@pytest.mark.parametrize("batches", ["short", "dropped", "wrapped", "replacement"])
def test_other_batches_start_afresh_in_every_turn(batches):
    assert stream(batches, 7, first_step=3) == stream(batches, 7)


def test_replacement_draws_every_row_anew():
    where, real = _positions(
        3, np.int32(3), np.int32(0), batch_size=4, batches="replacement", steps=6000
    )
    where = np.asarray(where)
    assert np.asarray(real).all()
    assert set(where.ravel()) == {0, 1, 2}
    assert stats.chisquare(np.bincount(where.ravel())).pvalue > 1e-3
    for pair in (where[:, :2], where[:, 2:], where[:, [0, 3]], where.reshape(-1, 2, 4)[:, :, 0]):
        seen = np.bincount(pair @ [3, 1], minlength=9)  # of a batch, or of successive steps
        assert stats.chisquare(seen).pvalue > 1e-3


# How many steps


@pytest.mark.parametrize(
    ("batches", "counts", "an_epoch"),
    [
        ("short", [1, 5, 8, 20, 3], [1, 2, 2, 5, 1]),
        ("wrapped", [1, 5, 8, 20, 3], [1, 2, 2, 5, 1]),
        ("replacement", [1, 5, 8, 20, 3], [1, 2, 2, 5, 1]),
        ("persistent", [1, 5, 8, 20, 3], [1, 2, 3, 6, 1]),
        ("full", [1, 5, 8, 20, 3], [1, 1, 1, 1, 1]),
        ("dropped", [4, 5, 8, 20, 7], [1, 1, 2, 5, 1]),
    ],
)
def test_the_steps_of_an_epoch(batches, counts, an_epoch):
    local = LOCAL._replace(batches=batches)
    dispatches = Cohorts(np.array(counts), local, cohort_size=3, seed=0).dispatches(20)
    assert set(dispatches.client.ravel()) == set(range(5))
    np.testing.assert_array_equal(dispatches.full_steps, 2 * np.array(an_epoch)[dispatches.client])
    np.testing.assert_array_equal(dispatches.num_steps, dispatches.full_steps)
    given = Cohorts(np.array(counts), local._replace(epochs=None, steps=7), cohort_size=3, seed=0)
    assert (given.dispatches(2).full_steps == 7).all()
    assert [batches_per_epoch(n, 4, batches) for n in np.array(counts)] == an_epoch


@pytest.mark.parametrize(
    ("epochs", "batches", "steps"),
    [(0.1, 30, 3), (0.28, 25, 7), (0.25, 4, 1), (0.25, 5, 2), (2.5, 3, 8), (1e-6, 9, 1)],
)
def test_fractions_of_epochs(epochs, batches, steps):
    """Rounded up to whole steps; .28 * 25 is 7.000000000000001, which is 7."""
    cohorts = Cohorts(np.array([4 * batches]), LOCAL._replace(epochs=epochs), cohort_size=1, seed=0)
    assert cohorts.dispatches(1).full_steps.tolist() == [[steps]]
