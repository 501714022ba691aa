"""Files that are missing, pipes, empty or of another kind: one line of every reader of a file."""

import os

import pytest
from bad_input_helpers import refused

from fedjax_algos.data import datasets

PIPE = "it is a pipe or a device, not a regular file"
SPECS = ["npz:{0}", "roles:{0}", "tff_sqlite:{0}", "cifar10:{0}", "cifar100:{0}"]
SPECS += ["fedjax_sqlite:train={0},test={0}", "tff_hdf5:train={0},test={0}"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("bounded")
def test_other_files(tmp_path, spec):
    os.mkfifo(tmp_path / "pipe")
    missing = "there is no such file; check the path"
    for path, message in (("none", missing), ("pipe", PIPE), ("/dev/zero", PIPE)):
        with pytest.raises(ValueError, match=message):
            datasets.make(spec.format(tmp_path / path))
    assert not (tmp_path / "none").exists()
    for content in (b"", b"another kind" * 99, b"\x1f\x8b" * 99, b"PK\x03\x04" * 99):
        (tmp_path / "other").write_bytes(content)
        with refused(tmp_path / "other"):
            datasets.make(spec.format(tmp_path / "other"))
