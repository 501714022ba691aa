"""The layouts once more in float32 and with all optimisations, as real runs have them."""

import jax
import numpy as np
import pytest
from helpers import CASES, Compilations, one_round, small_network
from layout_histories import LAYOUTS, LOCAL, SETS, histories

import fedjax_algos as fa
from fedjax_algos.schedules import Synchronous

pytestmark = pytest.mark.usefixtures("optimised")
ONE_EACH = list({case.name: case for case in CASES}.values())  # the last of each name


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_layouts_agree_in_float32(case):
    first, *others = histories(case, SETS[:1], LAYOUTS[1:3])
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    for other in others:
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            # relative to the leaf's own scale: an entry near 0 has no relative precision
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_later_rounds_compile_nothing_and_keep_the_state_s_shape(case):
    toy = small_network()
    engine = fa.make_engine(case.build(toy.problem, LOCAL), layout=2)
    counts = toy.data.counts()
    schedule = Synchronous(counts, LOCAL, cohort_size=3, seed=0)
    visits = schedule.visits(4)
    state = engine.init(0, fa.Population(len(counts), 3, int(counts.sum())))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    with Compilations() as first:
        state, _ = engine.round(state, toy.data, one_round(visits, 0))
    with Compilations() as later:
        for index in (1, 2, 3):
            state, _ = engine.round(state, toy.data, one_round(visits, index))
    assert first.count >= 2  # the cohort and the server update: the counter counts
    assert later.count == 0
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == shapes
