"""TFRecord files against an encoder of its own."""

import pytest
from tf_records import crc32c, tfrecord

from fedjax_algos.data.readers.tfrecord import read_records

pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")


def test_the_encoder():
    """The check value of CRC-32C, and that of 32 zeros (RFC 3720, B.4)."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_records(tmp_path):
    path, written = tmp_path / "a", [b"", b"some", bytes(300)]
    path.write_bytes(tfrecord(written))
    assert list(read_records(path)) == written
    assert list(read_records(path, 1, 1)) == [b"some"]
    assert list(read_records(path, 2)) == [bytes(300)]
    with pytest.raises(ValueError, match="it ends before its last record"):
        list(read_records(path, 1, 3))


@pytest.mark.parametrize("place", [0, 9, 12, 16])
def test_any_changed_byte_is_found(tmp_path, place):
    content = bytearray(tfrecord([b"some"]))
    content[place] ^= 4
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="a record does not have its checksum"):
        list(read_records(tmp_path / "a"))
