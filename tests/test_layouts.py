"""Every registered algorithm gives the same numbers in every layout, on one device or two."""

import functools

import jax
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, run, small_network

import fedjax_algos as fa

SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3), (2, 3, 0)]
STEPS = (3, 1, 7, 4)  # batches of 3 from 5, 1, 8 and 3 examples: some short, some whole
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=1)


def histories(case, sets):
    toy = small_network()
    algorithm = case.build(toy.problem, LOCAL)
    go = functools.partial(run, algorithm, toy.data, sets, num_steps=STEPS)
    return [*(go(layout=layout) for layout in LAYOUTS), go(layout="vmapped", devices=2)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_rounds_in_one_program_are_those_rounds(case, x64):
    toy = small_network()
    algorithm = case.build(toy.problem, LOCAL)
    *_, last = run(algorithm, toy.data, SETS, num_steps=STEPS)
    (other,) = run(algorithm, toy.data, SETS, num_steps=STEPS, at_once=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), last, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_agree_in_float64(case, x64):
    first, *others = histories(case, SETS)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(first))
    for other in others:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), first, other
        )
