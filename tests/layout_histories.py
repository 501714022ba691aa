"""Histories of an algorithm in several layouts, for the comparisons in float32 and float64."""

from helpers import CASES, run, small_network

import fedjax_algos as fa

SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3), (2, 3, 0)]
STEPS = (3, 1, 7, 4)  # batches of 3 from 5, 1, 8 and 3 examples: some short, some full
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=1)
ONE_CASE_EACH = list({case.name: case for case in CASES}.values())  # the last case of each name


def histories(case, sets, layouts):
    """The params after each round over the cohorts `sets`, one history for each layout."""
    toy = small_network()
    algorithm = case.build(toy.problem, LOCAL)
    options = {"num_steps": STEPS, "starts": {}}
    return [run(algorithm, toy.data, sets, **options, **layout) for layout in layouts]
