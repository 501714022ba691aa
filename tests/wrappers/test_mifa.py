"""MIFA: the mean over the last updates of all clients that have sent one."""

import chex
import numpy as np
import pytest
from helpers import quadratics, run, small_network
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.wrappers import wrap

pytestmark = pytest.mark.usefixtures("x64")
SETS = [(0, 1), (1, 2), (0, 2), (3, 1), (2, 0)]
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)


def test_the_mean_over_who_has_been_seen():
    rng = np.random.default_rng(0)
    vectors, last, numbers = rng.normal(size=(4, 5, 6)), {}, [0] * 4
    states, before = rounds_of(wrap(sends(vectors), "mifa"), SETS, 4), np.zeros(6)
    for cohort, state in zip(SETS, states, strict=True):
        for client in cohort:
            last[client] = vectors[client, numbers[client]]
            numbers[client] += 1
        after = state.server.params["x"]
        np.testing.assert_allclose(before - after, np.mean([*last.values()], 0), atol=1e-6)
        before = after
    assert len(last) == 4


def test_the_code_of_flgo():
    """Its option c is 0: the model moves before all clients have been seen."""
    toy = quadratics([[1.0], [2.0], [0.5], [1.5]], [[1.0], [-1.0], [3.0], [0.2]])
    local = fa.Local(1, 0.1, steps=3, batches="full")
    bare = fa.algorithms.fedavg(toy.problem, local, weighting="uniform")
    expected = [0.2017500000, 0.1844654688, 0.1965059589, 0.2065131653, 0.2142405021]
    found = [float(params["x"]) for params in run(wrap(bare, "mifa"), toy.data, SETS)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_with_all_clients_in_every_round_it_is_the_algorithm():
    toy = small_network()
    bare = fa.algorithms.fedavgm(toy.problem, LOCAL, weighting="uniform")
    ends = [run(wrap(bare, spec), toy.data, [(0, 1, 2, 3)] * 3) for spec in ("", "mifa")]
    chex.assert_trees_all_close(*ends, atol=1e-6)


def test_ef21_without_loss_differs_until_all_have_been_seen():
    vectors = np.random.default_rng(1).normal(size=(4, 5, 6)).astype(np.float32)
    sets = [(0, 1), (2, 3), (0, 2), (1, 3)]
    ends = [
        np.stack([np.zeros(6), *(state.server.params["x"] for state in states)])
        for spec in ("mifa", "cast:dtype=float32,feedback=ef21")
        for states in [rounds_of(wrap(sends(vectors), spec), sets, 4)]
    ]
    moved, other = (end[:-1] - end[1:] for end in ends)
    np.testing.assert_allclose(moved[0], 2 * other[0], atol=1e-6)
    np.testing.assert_allclose(moved[1:], other[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavg", "their num_examples.*give the algorithm weighting=uniform, or leave mifa out"),
        ("mime", "mifa does not fit: its clients send twice in a round.*; leave mifa out"),
        ("fedlga", "compares the updates with each other.*; leave mifa out"),
        ("ifca", "its clients choose what they train.*; leave mifa out"),
    ],
)
def test_what_does_not_fit_is_refused(name, reason):
    toy = small_network()
    with pytest.raises(ValueError, match=reason):
        run(wrap(algorithms[name](toy.problem, LOCAL), "mifa"), toy.data, SETS[:1])
