"""The kinds of batches: which examples a step sees, by hand, and how many steps a turn has."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fixed, one_round, run, small_network
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
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


def joined(epochs):
    """The first steps of epochs that are lists of batches."""
    return [batch for epoch in epochs for batch in epoch][:STEPS]


@settings(deadline=None, max_examples=30)
@given(COUNTS, SEEDS)
def test_short_batches_are_an_order_cut_in_pieces(count, seed):
    expected = joined(cut(order, 4) for order in orders(count, seed))
    assert stream("short", count, seed=seed) == expected


@settings(deadline=None, max_examples=30)
@given(st.integers(4, MOST), SEEDS)
def test_dropped_batches_are_whole_ones_of_distinct_examples(count, seed):
    actual = stream("dropped", count, seed=seed)
    assert actual == joined(cut(order[: count // 4 * 4], 4) for order in orders(count, seed))
    per_epoch = count // 4
    starts = range(0, STEPS - per_epoch + 1, per_epoch)
    epochs = [np.concatenate(actual[start : start + per_epoch]).tolist() for start in starts]
    for seen in epochs:
        assert len(set(seen)) == len(seen) == 4 * per_epoch
    if count % 4:  # who is left out changes
        assert len({frozenset(seen) for seen in epochs}) > 1


@settings(deadline=None, max_examples=30)
@given(COUNTS, SEEDS)
def test_wrapped_batches_are_filled_from_the_start_of_the_same_order(count, seed):
    length = -(-count // 4) * 4
    expected = joined(cut((order * 4)[:length], 4) for order in orders(count, seed))
    assert stream("wrapped", count, seed=seed) == expected


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


def test_turns_of_one_client_are_one_stream():
    """Through cohorts and engine: unequal turns, with rounds of another client in between."""
    numbers = {"number": np.arange(12)}
    data = fa.federate(numbers, fa.Partition.of([np.arange(5), np.arange(5, 12)]))
    local = fa.Local(batch_size=4, learning_rate=4.0, steps=5, batches="persistent")
    # entry j of the model grows by rate times the share of example j in a batch
    problem = fa.Problem(
        init=lambda key: fa.Model({"seen": jnp.zeros(12)}),
        apply=lambda model, batch, key, training: (model.params["seen"], ()),
        loss=lambda seen, batch: -seen[batch["number"]],
    )
    engine = fa.make_engine(algorithms["fedavg"](problem, local))

    def seen(clients, num_steps):
        """How often each example was used in each round, float[rounds, 12]."""

        def work(seed, rounds, clients, full_steps, local):
            return np.array(num_steps)[rounds, None]

        options = {"cohort_size": 1, "seed": 0, "sampler": fixed([[each] for each in clients])}
        cohorts = Cohorts(data.counts(), local, work=work, **options)
        dispatches = cohorts.dispatches(len(clients))
        state = engine.init(0, fa.Population(2, 1, 12))
        totals = [np.zeros(12)]
        for index in range(len(clients)):
            state, _ = engine.round(state, data, one_round(dispatches, index))
            totals.append(np.asarray(state.server.params["seen"]))
        return np.diff(totals, axis=0)

    turns = seen([0, 1, 0, 0, 1, 0], [3, 1, 1, 5, 4, 2])
    assert turns.sum(axis=1).tolist() == [12, 4, 4, 20, 16, 8]
    for client, rounds in ((0, [0, 2, 3, 5]), (1, [1, 4])):
        together = turns[rounds]
        steps = (together.sum(axis=1) / 4).astype(int)
        alone = seen([client] * sum(steps), [1] * sum(steps))
        ends = np.cumsum(steps)
        expected = [alone[end - n : end].sum(axis=0) for n, end in zip(steps, ends, strict=True)]
        np.testing.assert_array_equal(together, expected)
    # two batches are an epoch of seven examples, and one of them again
    np.testing.assert_array_equal(np.sort(alone[:2].sum(axis=0)[5:]), [1] * 6 + [2])


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


def test_full_batches_are_batches_of_everything():
    """Rounds of unequal work on clients with 5, 1, 8 and 3 examples."""
    toy, sets, num_steps = small_network(), [(0, 1, 2), (3, 2, 1), (2, 3, 0)], (3, 1, 4, 2)

    def trained(layout, **kind):
        algorithm = algorithms["fedavg"](toy.problem, fa.Local(learning_rate=0.1, steps=4, **kind))
        return run(algorithm, toy.data, sets, layout=layout, num_steps=num_steps)

    expected = trained("vmapped", batch_size=8)
    for layout in ("vmapped", "sequential"):
        found = trained(layout, batch_size=3, batches="full")
        chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-12)
