"""The layouts in float32 and with all of the compiler's optimisations, as in real runs."""

import jax
import numpy as np
import pytest
from layout_histories import ONE_CASE_EACH, SETS, histories

pytestmark = pytest.mark.usefixtures("optimised")
LAYOUTS = [  # in one program, as `simulate` runs the rounds between two evaluations
    {"layout": "sequential", "at_once": True},
    {"layout": "vmapped", "devices": 2, "at_once": True},
]


@pytest.mark.parametrize("case", ONE_CASE_EACH, ids=str)
def test_layouts_agree_in_float32(case):
    first, *others = histories(case, SETS[:1], LAYOUTS)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    for other in others:
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            # relative to the scale of the leaf: an entry near 0 has no relative precision
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())
