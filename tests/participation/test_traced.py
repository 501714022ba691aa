"""Dispatches drawn on the device; test_designs.py compares them with those on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.participation import traced_samplers

COUNTS = np.asarray([5, 2, 8, 3, 9, 1, 4], np.int32)


def draw(sampler, rounds, cohort_size, num_clients, seeds=1):
    """int32[seeds * rounds, cohort_size]."""

    def cohorts(seed):
        of_round = lambda number: sampler(seed, number, num_clients, cohort_size)  # noqa: E731
        return jax.vmap(of_round)(jnp.arange(rounds))

    drawn = jax.jit(jax.vmap(cohorts))(jnp.arange(seeds, dtype=jnp.uint32))
    return np.asarray(drawn).reshape(-1, cohort_size)


def test_cyclic_cohorts_come_from_their_groups():
    """Seven clients in two groups of four and three, three of which are in each cohort."""
    cohorts = draw(traced_samplers["cyclic"](num_groups=2), 400, 3, 7)
    assert all(len(set(cohort)) == 3 for cohort in cohorts)
    groups = [set(cohorts[first::2].ravel()) for first in (0, 1)]
    assert [len(group) for group in groups] == [4, 3]
    assert groups[0] | groups[1] == set(range(7))
    frequency = np.unique(cohorts[::2], return_counts=True)[1] / 200
    np.testing.assert_allclose(frequency, 3 / 4, atol=0.1)


@pytest.mark.all
def test_dirichlet_shares_are_those_of_the_distribution():
    """Over many seeds E p_i^2 is (gamma + 1) / (N (N gamma + 1)); two rounds of a seed share p."""
    gamma, num_clients, seeds = 0.5, 4, 20_000
    cohorts = draw(traced_samplers["dirichlet"](gamma=gamma), 2, 1, num_clients, seeds)
    first, second = cohorts.reshape(seeds, 2).T
    np.testing.assert_allclose(np.bincount(first) / seeds, 1 / num_clients, atol=0.015)
    twice = (gamma + 1) / (num_clients * gamma + 1)  # sum of p_i^2
    np.testing.assert_allclose((first == second).mean(), twice, atol=0.015)


@pytest.mark.all
def test_a_client_twice_in_a_cohort_has_two_numbers():
    local = fa.Local(2, 0.1, epochs=1, batches="persistent")
    drawn = fa.traced_dispatches(
        0, COUNTS, local, cohort_size=6, rounds=20, sampler=traced_samplers["with_replacement"]()
    )
    clients = np.asarray(drawn.client)
    assert any(len(set(cohort)) < 6 for cohort in clients)
    frequency = np.bincount(clients.ravel(), minlength=7) / clients.size
    np.testing.assert_allclose(frequency, 1 / 7, atol=0.1)
    done, steps = np.zeros((2, 7), int)
    for entry, client in np.ndenumerate(clients):
        assert drawn.number[entry] == done[client]
        assert drawn.first_step[entry] == steps[client]
        done[client] += 1
        steps[client] += drawn.num_steps[entry]


@pytest.mark.all
def test_work_of_ones_own():
    options = {"cohort_size": 2, "rounds": 4}
    options["work"] = lambda seed, number, full: jnp.maximum(full - number, 1)
    drawn = fa.traced_dispatches(0, COUNTS, fa.Local(2, 0.1, steps=5), **options)
    np.testing.assert_array_equal(drawn.num_steps, np.asarray([[5, 4, 3, 2]] * 2).T)
    np.testing.assert_array_equal(drawn.full_steps, np.full((4, 2), 5))


@pytest.mark.all
def test_a_client_that_there_is_not_has_no_rate_where_cohorts_are_traced():
    """Its update is not finite, so that it is left out and counted, or the model is NaN."""
    problem, counts = fa.models.linear((1,), 2), np.array([2, 2])
    examples = {"x": np.ones((4, 1), np.float32), "y": np.array([0, 1, 0, 1], np.int32)}
    data = fa.federate(examples, fa.Partition.of([[0, 1], [2, 3]]))
    local = fa.Local(2, 0.1, steps=1)
    sampler = lambda *_: jnp.array([0, 99])  # noqa: E731

    @jax.jit
    def run(seed):
        drawn = fa.traced_dispatches(seed, counts, local, cohort_size=2, rounds=1, sampler=sampler)
        one = jax.tree.map(lambda leaf: leaf[0], drawn)
        states = []
        for kind in ("exclude", "keep"):
            algorithm = fa.algorithms.fedavg(problem, local, weighting="uniform")
            round_fn = fa.pure_round(algorithm, "sequential", kind)
            states.append(round_fn(round_fn.init(0, fa.Population(2, 2, 4)), data, one)[0])
        return drawn, states

    drawn, (excluded, kept) = run(0)
    np.testing.assert_array_equal(drawn.client, [[0, 1]])
    np.testing.assert_array_equal(drawn.learning_rate, np.float32([[0.1, np.nan]]))
    assert (int(excluded.excluded.number), int(excluded.excluded.client)) == (1, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(excluded.server.params))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(kept.server.params))
