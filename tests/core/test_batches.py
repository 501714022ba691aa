"""Batches: which examples a step sees, by hand, how many steps a turn has, and masked rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quadratics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.core import ClientData, batches_per_epoch
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.core.randomness import next_words, permutation_words, permute
from fedjax_algos.participation.cohorts import full_steps

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=4, learning_rate=0.5, epochs=2)
STEPS, EPOCHS, MOST = 24, 64, 13  # shapes of the two compiled functions below
COUNTS = st.integers(1, MOST)
SEEDS = st.integers(0, 2**31 - 1)


@functools.partial(jax.jit, static_argnames=("batch_size", "batches", "steps"))
def _positions(seed, count, first_step, batch_size, batches, steps):
    words = permutation_words(jax.random.key(seed))
    data = ClientData((), jnp.zeros(0), jnp.int32(0), count, words, (), first_step)
    return jax.vmap(lambda step: data.positions(step, batch_size, batches))(
        jnp.arange(steps, dtype=jnp.int32)
    )


def positions(batches, count, *, batch_size=4, seed=0, first_step=0, steps=STEPS):
    """The rows of the steps of one turn, and which of them are real."""
    numbers = np.int32(count), np.int32(first_step)
    found = _positions(seed, *numbers, batch_size=batch_size, batches=batches, steps=steps)
    where, real = map(np.asarray, found)
    assert where.shape == real.shape == (steps, batch_size)
    assert 0 <= where.min() <= where.max() < count  # masked rows are there too
    return where, real


def stream(*args, **options):
    """The examples of the steps of one turn, a list for each."""
    rows = zip(*positions(*args, **options), strict=True)
    return [row[mask].tolist() for row, mask in rows]


@jax.jit
def _orders(seed, count):
    words = permutation_words(jax.random.key(seed))
    places = jnp.minimum(jnp.arange(MOST), count - 1)
    return jax.vmap(lambda epoch: permute(next_words(words, epoch), places, count))(
        jnp.arange(EPOCHS)
    )


def orders(count, seed):
    """The order of the examples in each epoch, as lists."""
    return np.asarray(_orders(seed, np.int32(count)))[:, :count].tolist()


@pytest.mark.parametrize("batches", ["short", "dropped", "wrapped"])
@settings(deadline=None, max_examples=20)
@given(COUNTS, SEEDS)
def test_batches_are_an_order_cut_in_pieces(batches, count, seed):
    """Dropped ones are whole, wrapped ones are filled from the order's start; turns are alike."""
    if batches == "dropped":
        count = max(count, 4)
    lengths = {"short": count, "dropped": count // 4 * 4, "wrapped": -(-count // 4) * 4}
    epochs = [(order * 4)[: lengths[batches]] for order in orders(count, seed)]
    actual = stream(batches, count, seed=seed, first_step=seed % 40)
    cut = [epoch[i : i + 4] for epoch in epochs for i in range(0, len(epoch), 4)]
    assert actual == cut[:STEPS]
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


def test_replacement_draws_every_row_anew():
    where, real = positions("replacement", 3, seed=3, steps=6000)
    assert real.all()
    assert set(where.ravel()) == {0, 1, 2}
    assert stats.chisquare(np.bincount(where.ravel())).pvalue > 1e-3
    for pair in (where[:, :2], where[:, 2:], where[:, [0, 3]], where.reshape(-1, 2, 4)[:, :, 0]):
        seen = np.bincount(pair @ [3, 1], minlength=9)  # of a batch, or of successive steps
        assert stats.chisquare(seen).pvalue > 1e-3


@pytest.mark.parametrize(
    ("kinds", "counts", "an_epoch"),
    [
        (["short", "wrapped", "replacement"], [1, 5, 8, 20, 3], [1, 2, 2, 5, 1]),
        (["persistent"], [1, 5, 8, 20, 3], [1, 2, 3, 6, 1]),
        (["full"], [1, 5, 8, 20, 3], [1, 1, 1, 1, 1]),
        (["dropped"], [4, 5, 8, 20, 7], [1, 1, 2, 5, 1]),
    ],
)
def test_the_steps_of_an_epoch(kinds, counts, an_epoch):
    for batches in kinds:
        assert [batches_per_epoch(n, 4, batches) for n in np.array(counts)] == an_epoch
        found = full_steps(np.array(counts), LOCAL._replace(batches=batches))
        np.testing.assert_array_equal(found, 2 * np.array(an_epoch))


@pytest.mark.parametrize(
    ("epochs", "batches", "steps"),
    [(0.1, 30, 3), (0.28, 25, 7), (0.25, 4, 1), (0.25, 5, 2), (2.5, 3, 8), (1e-6, 9, 1)],
)
def test_fractions_of_epochs(epochs, batches, steps):
    """Rounded up to whole steps; .28 * 25 is 7.000000000000001, which is 7."""
    local = LOCAL._replace(epochs=epochs)
    assert full_steps(np.array([4 * batches]), local).tolist() == [steps]


@pytest.mark.parametrize(("mask", "expected"), [([True, False], 1.5), ([False, False], None)])
def test_masked_rows_leave_no_trace(mask, expected):
    """Without a real row the gradient is 0, and there is no loss."""
    model = fa.Model({"x": jnp.asarray(2.0)})
    batch = {"a": jnp.asarray([1.0, 7.0]), "b": jnp.asarray([0.5, -9.0])}
    gradient = batch_gradient(quadratics([[1.0]], [[0.0]]).problem)
    found, _, loss = gradient(model, batch, jnp.asarray(mask), jax.random.key(0))
    assert float(found["x"]) == (expected or 0)
    value = np.nan if expected is None else 0.5 * expected**2
    assert float(loss.value()) == pytest.approx(value, nan_ok=True)
    assert float(loss.weight) == sum(mask)
