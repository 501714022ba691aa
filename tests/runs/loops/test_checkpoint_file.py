"""The file of a checkpoint: what is read is what was written, or the file is refused by name."""

import hashlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.base.arrays import write_sealed
from fedjax_algos.base.errors import DamagedError
from fedjax_algos.runs.loops import checkpoints as saving
from fedjax_algos.runs.loops.checkpoints import read_checkpoint

DTYPES = ["bfloat16", "float8_e4m3fn", "int4", "bool", "int8", "uint32", "float16", "float32"]
DTYPES += ["int64", "float64", "complex64"]
SHAPES = [(), (1,), (3, 2), (2, 1, 4)]
FACTS = {"rows": [{"round": 4, "loss": 0.1 + 0.2, "flops": float("nan")}], "name": "Größe"}


def random_bits(dtype, shape):
    rng, dtype = np.random.default_rng(len(shape)), jnp.dtype(dtype)
    if dtype in (bool, jnp.int4):
        return rng.integers(0, 2, shape).astype(dtype)
    size = int(np.prod(shape))
    return np.frombuffer(rng.bytes(dtype.itemsize * size), dtype).reshape(shape)


def test_every_dtype_and_shape_is_read_as_it_was_written(tmp_path):
    """Bit for bit, also of NaN; of arrays whose bytes are not in order, too."""
    arrays = {f"{each}/{len(size)}": random_bits(each, size) for each in DTYPES for size in SHAPES}
    arrays |= {"transposed": arrays["float32/3"].T, "strided": np.arange(9, dtype=np.int16)[::2]}
    write_sealed(tmp_path / "a", arrays, FACTS)
    _, read, facts = read_checkpoint(tmp_path / "a")
    assert repr(facts) == repr(FACTS)
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
    with np.load(tmp_path / "a") as file:  # NumPy alone reads it
        assert file["float32/3"].tobytes() == arrays["float32/3"].tobytes()


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "7.npz"
    write_sealed(path, {"params": np.float32([1, 2]), "count": np.int32(5)}, {"rows": [1.5]})
    return path


def check_refused(path, reason=""):
    with pytest.raises(DamagedError, match=re.escape(f"{str(path)!r} is damaged (") + reason):
        read_checkpoint(path)


def test_a_bit_of_every_byte_counts_and_so_does_the_length(small):
    content = small.read_bytes()
    for place in range(len(content)):
        for other in (bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :], b""):
            small.write_bytes(content[:place] + other)
            check_refused(small)
    small.write_bytes(content + b"0")
    check_refused(small, "its checksum is wrong")
    with small.open("wb") as file:
        np.savez_compressed(file, facts=np.zeros(9999, np.uint8))  # a small file of many bytes
    content = small.read_bytes()
    small.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    check_refused(small, "its arrays are compressed")
    small.unlink()
    check_refused(small, "No such file")


def test_what_a_kill_leaves_is_removed_and_nothing_else(small):
    for name in (".77-8.npz", ".77-7.npz"):
        (small.parent / name).write_bytes(b"half")
    (small.parent / "thesis.txt").write_text("mine")
    assert saving.checkpoints_in(small.parent) == {7: small}
    saver = saving.RunSaver(saving.Checkpoints(small.parent, every=0), dict)
    saver.after_evaluation(8, dict, {}, last=False)
    names = sorted(path.name for path in small.parent.iterdir())
    assert names == [small.name, "8.npz", "thesis.txt"]
