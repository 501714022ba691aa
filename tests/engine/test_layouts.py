"""Every registered algorithm gives equal results in every layout, on one device and on two.

This includes rounds as separate programs or as one program, and examples that are replicated or
sharded. `helpers.run` also checks that rounds after the first compile nothing, and that the state
keeps its shapes and dtypes.
"""

import chex
import jax
import numpy as np
import pytest
from helpers import CASES
from layout_histories import LAYOUTS, SETS, histories

pytestmark = pytest.mark.usefixtures("x64")
SHARDED = {"layout": "sequential", "devices": 2, "examples": "sharded", "at_once": True}
# one case of each name; `centralised` needs the examples of all clients on every device
LAST = {case.name: case for case in CASES if case.name != "centralised"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_agree_in_float64(case):
    first, *others = histories(case, SETS, LAYOUTS + [SHARDED] * (case is LAST.get(case.name)))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(first))
    for other in others:
        expected = first[-len(other) :]  # rounds in one program return the last params only
        chex.assert_trees_all_close(expected, other, rtol=1e-11, atol=1e-11)
