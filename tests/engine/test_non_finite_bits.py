"""Where everything is finite, the check changes no bit, with the compiler's optimisations."""

import chex
import jax
import numpy as np
import pytest
from helpers import Case, fixed, small_network

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("optimised", "x64")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["sequential", "vmapped"])
@pytest.mark.parametrize("name", ["scaffold", "mime", "fedlga"])
def test_finite_updates_give_the_same_bits_whether_they_are_checked_or_not(name, layout):
    """Sums with client state, a prelude, and a stack; four rounds."""
    toy = small_network()
    sets = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3)]
    cohorts = Cohorts(toy.data.counts(), LOCAL, cohort_size=3, seed=0, sampler=fixed(sets))
    dispatches, ends = cohorts.dispatches(4), []
    for choice in ("keep", "exclude"):
        algorithm = Case(name, {}).build(toy.problem, LOCAL)
        engine = fa.make_engine(algorithm, layout, non_finite=choice)
        state = engine.init(0, fa.Population(4, 3, 17))
        state, metrics = engine.rounds(state, toy.data, dispatches)
        ends.append(jax.tree.map(np.array, (state._replace(excluded=()), metrics)))
    chex.assert_trees_all_equal(*ends)
