"""Every registered algorithm gives the same numbers in every layout, on one device or two.

And whether its rounds are programs of their own or one program, and whether each device holds all
examples or its own clients'.
"""

import jax
import numpy as np
import pytest
from helpers import CASES
from layout_histories import LAYOUTS, SETS, histories

SHARDED = {"layout": "sequential", "devices": 2, "examples": "sharded", "at_once": True}
# one of each name; `centralised` draws from all examples, which no device then holds
LAST = {case.name: case for case in CASES if case.name != "centralised"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_agree_in_float64(case, x64):
    first, *others = histories(case, SETS, LAYOUTS + [SHARDED] * (case is LAST.get(case.name)))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(first))
    for other in others:
        seen = first[-len(other) :]  # all rounds in one program show the last params
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), seen, other
        )
