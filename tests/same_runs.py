"""Runs whose states and rows are compared bit for bit."""

import csv

import chex
import jax
import numpy as np

from fedjax_algos.engine.state import RowTable
from fedjax_algos.runs.loops.checkpoints import row_arrays


def host(tree):
    """A copy in NumPy arrays, which a round that takes the tree leaves alone."""
    return jax.tree.map(np.array, tree)


def assert_close(one, other):
    """In float32, to rounding."""
    chex.assert_trees_all_close(host(one), host(other), rtol=1e-5, atol=1e-6)


def without_time(rows):
    return [{key: value for key, value in row.items() if key != "wall_seconds"} for row in rows]


def assert_same_bits(one, other):
    chex.assert_trees_all_equal_shapes_and_dtypes(one, other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def with_arrays(state):
    """The state, with the rows off the devices as arrays."""
    is_table = isinstance(state.clients, RowTable)
    return state._replace(clients=row_arrays(state.clients)) if is_table else state


def assert_same(one, other):
    """States and rows, bit for bit; only wall time differs."""
    assert_same_bits(with_arrays(one[0]), with_arrays(other[0]))
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
