"""Runs whose states and rows are compared bit for bit."""

import csv

import jax
import numpy as np

from fedjax_algos.runs.saving.checkpoints import state_arrays


def host(tree):
    """A copy in NumPy arrays, which a round that takes the tree leaves alone."""
    return jax.tree.map(np.array, tree)


def without_time(rows):
    return [{key: value for key, value in row.items() if key != "wall_seconds"} for row in rows]


def assert_same(one, other):
    """States and rows, bit for bit; only wall time differs."""
    leaves = [jax.tree.leaves(state_arrays(state)) for state, _ in (one, other)]
    for left, right in zip(*leaves, strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    np.testing.assert_equal(without_time(one[1]), without_time(other[1]))  # NaN equals NaN


def folder_content(folder):
    """The rows of all tables without wall time, and the last models."""
    tables = {}
    for path in [folder / "metrics.csv", *sorted(folder.glob("runs/*/*/metrics.csv"))]:
        with path.open(newline="") as file:
            tables[path.relative_to(folder)] = list(csv.DictReader(file))
        for row in tables[path.relative_to(folder)]:
            assert float(row.pop("wall_seconds")) > 0
    models = {}
    for path in sorted(folder.glob("runs/*/*/model.npz")):
        with np.load(path) as arrays:
            models[path.relative_to(folder)] = {name: arrays[name].tobytes() for name in arrays}
    return tables, models
