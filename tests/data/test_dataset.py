"""Data sets of arrays and the flat store: no copies, checks, and representations."""

import jax
import numpy as np
import pytest
from data_forms import ARRAYS

import fedjax_algos as fa
from fedjax_algos.data.dataset import from_arrays


def test_arrays_are_not_copied():
    data = from_arrays(*ARRAYS.values())
    assert data.train["x"] is ARRAYS["x_train"]
    floats = {name: ARRAYS[name].astype(np.float32) for name in ("x_train", "x_test")}
    fortran = np.asfortranarray(floats["x_train"]).astype(">f4", order="K")
    data = from_arrays(**(ARRAYS | floats | {"x_train": fortran}))
    assert data.train["x"].flags.c_contiguous
    np.testing.assert_array_equal(data.train["x"], floats["x_train"], strict=True)


def test_data_sets_are_shown_in_one_line():
    data = from_arrays(*ARRAYS.values(), users=np.array([7, 7, 9, 9, 9]))
    expected = "train=5, test=2, x=uint8[4, 3], num_classes=4, natural_clients=2"
    assert repr(data) == f"Dataset({expected})"


X, Y, BAD = ARRAYS["x_train"], ARRAYS["y_train"], (-1, 0.5, np.nan, np.inf, 2**40)
WRONG = {
    r"x_test is uint8\[0, 4, 3\]": {"x_test": X[:0], "y_test": np.empty(0)},
    **{f"label {v} in example 3": {"y_train": np.array([0, 1, 1, v, 0])} for v in BAD},
    r"y_train is int64\[4\] for 5": {"y_train": Y[:4]},
    r"y_train is int64\[5, 1\]": {"y_train": Y[:, None]},
    "y_test is <U1": {"y_test": np.array(["a", "b"])},
    r"uint8\[4, 3\] in x_train and uint8\[3, 3\]": {"x_test": ARRAYS["x_test"][:, :3]},
    r"uint8\[4, 3\] in x_train and float32": {"x_test": np.float32(ARRAYS["x_test"])},
    r"x_train is float64\[5\]": {"x_train": np.zeros(5)},
    "x_train is bool": {"x_train": X > 9},
    "x_train is object": {"x_train": np.array([None] * 5)},
    "x_train has -inf in example 0": {"x_train": np.full(X.shape, -np.inf)},
    r"users are int64\[4\]": {"users": np.arange(4)},
    r"users are float64\[5\]": {"users": np.arange(5.0)},
}


@pytest.mark.parametrize(("named", "wrong"), WRONG.items())
def test_wrong_arrays_are_refused(named, wrong):
    with pytest.raises(ValueError, match=named):
        from_arrays(**(ARRAYS | wrong))


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (np.float64, 3.5e38, r"3\.5e\+38 in example 1, .* out of range of float32"),
        (np.int64, 2**31, "2147483648 in example 1, .* out of range of int32"),
        (np.int64, -(2**31) - 1, "out of range of int32"),
        (np.uint64, 2**32, "out of range of uint32"),
        (np.float64, np.inf, "inf in example 1"),
        (">f4", np.nan, "nan in example 1"),
    ],
)
def test_numbers_that_a_device_would_change_are_refused(kind, value, named):
    """JAX makes 32-bit numbers of them, without a word."""
    x_train, x_test = (ARRAYS[name].astype(kind) for name in ("x_train", "x_test"))
    x_test[1, 2, 1] = value
    with pytest.raises(ValueError, match=f"x_test has .*{named}"):
        from_arrays(**(ARRAYS | {"x_train": x_train, "x_test": x_test}))


def test_numbers_up_to_the_limits_are_kept():
    for kind, value in ((np.float64, 3.4e38), (np.int64, -(2**31)), (np.uint64, 2**32 - 1)):
        x = np.full((2, 3), value, kind)
        data = from_arrays(x, np.arange(2), x, np.arange(2))
        on_device = np.asarray(jax.numpy.asarray(data.train["x"]))
        assert on_device.max() == np.array(value, on_device.dtype)
    x = np.full((2, 3), 1e300)
    with jax.enable_x64(True):
        assert from_arrays(x, np.arange(2), x, np.arange(2)).train["x"].max() == 1e300


def test_labels_that_are_no_classes():
    """Labels alone tell the classes, up to as many as there are examples, or a thousand."""
    x, known = np.zeros((4, 2), np.float32), np.array([0, 1, 2, 999])
    assert from_arrays(x, known, x, np.arange(4)).num_classes == 1000
    assert from_arrays(x, known * 1001, x, np.arange(4), num_classes=10**6).num_classes == 10**6
    for y, num_classes, message in (
        (known * 1001, None, "largest label of 8 examples is 999999"),
        (known * 2**40, None, "y_train has label 1099511627776 in example 1"),
        (known, 2**41, "num_classes=2199023255552"),
    ):
        with pytest.raises(ValueError, match=message):
            from_arrays(x, y, x, np.arange(4), num_classes=num_classes)


def test_ragged_clients_take_no_more_memory_than_examples_and_indices():
    """A padded table of one client of 10,000 examples and of 99 of ten would hold 92 times more."""
    total = 10_000 + 99 * 10
    examples = {"x": np.zeros((total, 7), np.uint8), "y": np.zeros(total, np.int32)}
    rows = np.split(np.arange(total), range(10_000, total, 10))
    data = fa.federate(examples, fa.Partition.of(rows))
    assert data.examples["x"].dtype == np.uint8
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(data)) == total * (7 + 4 + 4) + 4 * (100 + 1)


def test_the_store_is_shown_in_one_line():
    """Without reading values unless they are on the host or on each device."""
    examples = {"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int32)}
    data = fa.federate(examples, fa.Partition.of([[0, 2], [1]]))
    shape = "FederatedData(clients=2, examples=3, each=(x float32[2], y int32[]))"
    assert repr(data) == shape.replace("each", "per_client=1..2, each")
    assert repr(jax.eval_shape(lambda: data)) == shape
    traced = []
    jax.eval_shape(lambda data: traced.append(repr(data)), data)
    assert traced == [shape]
    mesh = jax.make_mesh((3,), ("rows",), devices=jax.devices()[:3])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    assert repr(jax.device_put(data, sharding)) == shape
    assert repr(jax.tree.map(lambda leaf: 0, data)).startswith("FederatedData(leaves=")
    data.offsets.delete()
    assert repr(data) == shape
