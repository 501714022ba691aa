"""With the compiler's optimisations: layouts in float32, and the check of finite numbers."""

import chex
import jax
import numpy as np
import pytest
from helpers import CASES, dispatches_of, small_network

import fedjax_algos as fa

SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3)]
STEPS = (3, 1, 7, 4)  # batches of 3 from 5, 1, 8 and 3 examples
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=1)
BY_NAME = {case.name: case for case in CASES}  # the last case of each name


@pytest.mark.all
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ["scaffold", "mime", "fedlga"])
def test_layouts_agree_in_optimised_float32(name):
    """After a round, in a program of many, as `simulate` runs those between two evaluations.

    For sums with client state, a prelude, and a stack; four rounds have the same bits whether
    updates are checked to be finite or not.
    """
    toy, algorithm = small_network(), BY_NAME[name].build(small_network().problem, LOCAL)
    dispatches = dispatches_of(toy.data, LOCAL, SETS, STEPS)
    layout, other = ("sequential", "vmapped") if name == "scaffold" else ("vmapped", "sequential")
    engine = fa.make_engine(algorithm, layout)

    def rounds(engine, number):
        start = engine.init(0, fa.Population(4, 3, 17))
        state, metrics = engine.rounds(start, engine.put_data(toy.data), dispatches, number)
        return jax.tree.map(np.array, (state._replace(excluded=()), metrics))

    engines = engine, fa.make_engine(algorithm, other, devices=2)
    ends = (rounds(each, 1)[0].server.params for each in engines)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        assert a.dtype == np.float32
        # relative to the scale of the leaf: an entry near 0 has no relative precision
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())
    keeping = fa.make_engine(algorithm, layout, non_finite="keep")
    chex.assert_trees_all_equal(rounds(keeping, 4), rounds(engine, 4))
