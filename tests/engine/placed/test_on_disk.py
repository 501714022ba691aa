"""Rows on disk as trees: every dtype and shape comes back, and memory does not grow."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.engine.placed.on_disk import DiskClientState

SHAPES = {  # of odd sizes, so that most arrays are not aligned in a row
    "flag": jax.ShapeDtypeStruct((), jnp.bool_),
    "half": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
    "nothing": jax.ShapeDtypeStruct((0, 4), jnp.float32),
    "number": jax.ShapeDtypeStruct((), jnp.int32),
    "wide": (jax.ShapeDtypeStruct((2, 3), np.float64), jax.ShapeDtypeStruct((5,), jnp.uint8)),
}


def random_row(rng):
    def bits(leaf):
        size = int(np.prod(leaf.shape))
        if leaf.dtype == bool:
            return rng.random(leaf.shape) < 0.5
        values = np.frombuffer(rng.bytes(leaf.dtype.itemsize * size), leaf.dtype)
        return values.reshape(leaf.shape)

    return jax.tree.map(bits, SHAPES)


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


def test_rows_of_any_dtype_keep_their_bits(tmp_path):
    """Written in two orders of memory, replaced, saved, and read from a checkpoint."""
    rng = np.random.default_rng(0)
    rows = [random_row(rng) for _ in range(4)]
    table = DiskClientState(tmp_path, SHAPES, 6).write([(5, rows[0]), (2, rows[1])])
    turned = jax.tree.map(np.asfortranarray, rows[2])
    table = table.write([(np.int32(5), turned), (0, rows[3])])
    expected = {0: rows[3], 2: rows[1], 5: rows[2]}

    def check(table):
        assert list(table) == [0, 2, 5]
        for client in range(6):
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), SHAPES)
            assert_same_bits(table[client], expected.get(client, zeros))

    check(table)
    tables = table.save("checkpoints", 1, [])
    assert_same_bits(tables.pop("blank"), table.blank)
    loaded = DiskClientState(str(tmp_path), SHAPES, 6)
    loaded.files.open_saved("checkpoints", 1, tables)
    check(loaded)


def test_memory_holds_one_row_at_a_time(tmp_path):
    """40 MB of rows are written, read, and saved."""
    row, number = {"x": np.arange(100_000, dtype=np.float32)}, 100
    table = DiskClientState(tmp_path, row, 10_000)
    tracemalloc.start()
    table = table.write((client, row) for client in range(number))
    assert sum(int(table[client]["x"][-1]) for client in range(number)) == 99_999 * number
    table.save("checkpoints", 1, [])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * row["x"].nbytes
