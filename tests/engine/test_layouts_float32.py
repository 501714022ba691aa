"""With the compiler's optimisations: layouts in float32, and the check of finite numbers."""

import chex
import jax
import numpy as np
import pytest
from helpers import CASES, dispatches_of, small_network

import fedjax_algos as fa

pytestmark = pytest.mark.usefixtures("optimised")

SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3)]
STEPS = (3, 1, 7, 4)  # batches of 3 from 5, 1, 8 and 3 examples
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=1)
BY_NAME = {case.name: case for case in CASES}  # the last case of each name
CHECKED = {"scaffold": "sequential", "mime": "vmapped", "fedlga": "vmapped"}
# with other kinds of state, sums and client update; the rest differ in formulas
OTHERS = ["fedgbo", "mfl", "fedhbm", "fednova", "centralised", "fedcompass"]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.all) for name in CHECKED),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS),
    ],
)
def test_layouts_agree_in_optimised_float32(name):
    """After a round, in a program of many, as `simulate` runs those between two evaluations.

    For sums with client state, a prelude, and a stack, four rounds have the same bits whether
    updates are checked to be finite or not.
    """
    toy, algorithm = small_network(), BY_NAME[name].build(small_network().problem, LOCAL)
    dispatches = dispatches_of(toy.data, LOCAL, SETS, STEPS)
    layouts = sorted(("sequential", "vmapped"), key=lambda each: each != CHECKED.get(name, each))
    engine, other = (
        fa.make_engine(algorithm, layout, devices=devices)
        for layout, devices in zip(layouts, (None, 2), strict=True)
    )

    def rounds(engine, number):
        start = engine.init(0, fa.Population(4, 3, 17))
        state, metrics = engine.rounds(start, engine.put_data(toy.data), dispatches, number)
        return jax.tree.map(np.array, (state._replace(excluded=()), metrics))

    ends = (rounds(each, 1)[0].server.params for each in (engine, other))
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        assert a.dtype == np.float32
        # relative to the scale of the leaf: an entry near 0 has no relative precision
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())
    if name in CHECKED:
        keeping = fa.make_engine(algorithm, layouts[0], non_finite="keep")
        chex.assert_trees_all_equal(rounds(keeping, 4), rounds(engine, 4))
