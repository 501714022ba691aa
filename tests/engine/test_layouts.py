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
from layout_histories import ONE_CASE_EACH, SETS, histories

pytestmark = pytest.mark.usefixtures("x64")
VMAPPED = {"layout": "vmapped"}
LAYOUTS = [VMAPPED, {"layout": "sequential"}, {"layout": 2, "at_once": True}]
# several slots on each device, some of them empty
ON_DEVICES = {"layout": "vmapped", "devices": 2, "at_once": True}
# other options of the same algorithm: without `vmap`, in a scan, and summed over devices, in one
OTHERS = [VMAPPED, {"layout": "sequential", "devices": 2, "at_once": True}]


def layouts_of(case):
    if case not in ONE_CASE_EACH:
        return OTHERS
    # `centralised` needs the examples of all clients on every device
    examples = "replicated" if case.name == "centralised" else "sharded"
    return [*LAYOUTS, ON_DEVICES | {"examples": examples}]


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_agree_in_float64(case):
    first, *others = histories(case, SETS, layouts_of(case))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(first))
    for other in others:
        expected = first[-len(other) :]  # rounds in one program return the last params only
        chex.assert_trees_all_close(expected, other, rtol=1e-11, atol=1e-11)
