"""With the compiler's optimisations: layouts in float32, and the check of finite numbers."""

import chex
import jax
import numpy as np
import pytest
from helpers import Case, fixed, small_network
from layout_histories import ONE_CASE_EACH, SETS, histories

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("optimised")

LAYOUTS = [  # in one program, as `simulate` runs the rounds between two evaluations
    {"layout": "sequential", "at_once": True},
    {"layout": "vmapped", "devices": 2, "at_once": True},
]
BY_NAME = {case.name: case for case in ONE_CASE_EACH}
# one of each kind of state, sums, prelude and client update; the others differ in formulas
STRUCTURES = ["fedavg", "fedadam", "fedgbo", "mime", "mfl", "scaffold", "adabest", "fedhbm"]
STRUCTURES += ["fednova", "fedlga", "centralised", "fedcompass"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", STRUCTURES)
def test_layouts_agree_in_optimised_float32(name):
    first, other = histories(BY_NAME[name], SETS[:1], LAYOUTS)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
        # relative to the scale of the leaf: an entry near 0 has no relative precision
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "layout"), [("scaffold", "sequential"), ("mime", "vmapped"), ("fedlga", "vmapped")]
)
def test_finite_updates_give_the_same_bits_whether_they_are_checked_or_not(name, layout):
    """Sums with client state, a prelude, and a stack; four rounds."""
    toy = small_network()
    local = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
    cohorts = Cohorts(toy.data.counts(), local, cohort_size=3, seed=0, sampler=fixed(SETS))
    dispatches, ends = cohorts.dispatches(4), []
    for choice in ("keep", "exclude"):
        algorithm = Case(name, {}).build(toy.problem, local)
        engine = fa.make_engine(algorithm, layout, non_finite=choice)
        state, metrics = engine.rounds(
            engine.init(0, fa.Population(4, 3, 17)), toy.data, dispatches
        )
        ends.append(jax.tree.map(np.array, (state._replace(excluded=()), metrics)))
    chex.assert_trees_all_equal(*ends)
