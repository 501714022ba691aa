"""The layouts in float32; each structure also with the optimisations that real runs have."""

import jax
import numpy as np
import pytest
from layout_histories import ONE_CASE_EACH, SETS, histories

LAYOUTS = [  # in one program, as `simulate` runs the rounds between two evaluations
    {"layout": "sequential", "at_once": True},
    {"layout": "vmapped", "devices": 2, "at_once": True},
]
BY_NAME = {case.name: case for case in ONE_CASE_EACH}
# one of each kind of state, sums, prelude and client update; the others differ in formulas
STRUCTURES = ["fedavg", "fedadam", "fedgbo", "mime", "mfl", "scaffold", "adabest", "fedhbm"]
STRUCTURES += ["fednova", "fedlga", "centralised", "fedcompass"]


def check(case):
    first, *others = histories(case, SETS[:1], LAYOUTS)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    for other in others:
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            # relative to the scale of the leaf: an entry near 0 has no relative precision
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(set(BY_NAME) - set(STRUCTURES)))
def test_layouts_agree_in_float32(name):
    check(BY_NAME[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.usefixtures("optimised")
def test_layouts_agree_in_optimised_float32(name):
    check(BY_NAME[name])
