"""The memory of a large .npz file: once on the host and once on the device."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MEASURE = """
import sys
import jax.numpy as jnp
import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.readers.npz import npz

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

jnp.ones((3, 4)).block_until_ready()  # starts the backend
before = status("VmRSS")
data = npz(path=sys.argv[1])
store = fa.federate(data.train, partitions["dirichlet"](data.train["y"], 10, 0))
store.examples["x"].block_until_ready()
held = data.train["x"].nbytes + data.test["x"].nbytes
print((status("VmHWM") - before) / held)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_npz_is_held_once_on_the_host_and_once_on_the_device(tmp_path):
    """Peak memory of loading, partitioning and the transfer to the device, without imports."""
    count = 160 * 2**20 // (3072 * 4)
    x, y = np.broadcast_to(np.arange(3072, dtype=np.float32), (count, 3072)), np.arange(count) % 10
    path = tmp_path / "some.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[: count // 8], y_test=y[: count // 8])
    command = [sys.executable, "-c", MEASURE, str(path)]
    ratio = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    path.unlink()
    assert 0.95 < ratio < 2.2
