"""The flat store: its checks, its memory, and its representation."""

import jax
import numpy as np
import pytest

import fedjax_algos as fa


def test_a_negative_row_is_refused():
    with pytest.raises(ValueError, match="names example -1"):
        fa.federate({"x": np.zeros(3)}, fa.Partition.of([[-1]]))


def test_ragged_clients_take_no_more_memory_than_examples_and_indices():
    """One client of 10,000 and 9,999 of ten: a padded table would hold a thousand times more."""
    counts = [10_000] + [10] * 9_999
    total = sum(counts)
    examples = {"x": np.zeros((total, 7), np.uint8), "y": np.zeros(total, np.int32)}
    rows = np.split(np.arange(total), np.cumsum(counts)[:-1])
    data = fa.federate(examples, fa.Partition.of(rows))
    held = sum(leaf.nbytes for leaf in (*data.examples.values(), data.indices, data.offsets))
    assert data.examples["x"].dtype == np.uint8
    assert held == total * (7 + 4) + 4 * total + 4 * (len(counts) + 1)


def test_the_store_is_shown_in_one_line():
    """Without reading values unless they are on the host or on each device."""
    examples = {"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int32)}
    data = fa.federate(examples, fa.Partition.of([np.array([0, 2]), np.array([1])]))
    shape = "FederatedData(clients=2, examples=3, each=(x float32[2], y int32[]))"
    assert repr(data) == shape.replace("each", "per_client=1..2, each")
    assert repr(jax.eval_shape(lambda: data)) == shape
    traced = []
    jax.jit(lambda data: traced.append(repr(data)))(data)
    assert traced == [shape]
    mesh = jax.make_mesh((3,), ("rows",), devices=jax.devices()[:3])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    assert repr(jax.device_put(data, sharding)) == shape
    assert repr(jax.tree.map(lambda leaf: 0, data)).startswith("FederatedData(leaves=")
    data.offsets.delete()
    assert repr(data) == shape
