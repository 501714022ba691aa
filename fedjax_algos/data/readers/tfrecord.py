"""TFRecord files, without TensorFlow.

A file is a sequence of records: the length as uint64, its check, the record, and its check, all in
little-endian order (https://www.tensorflow.org/tutorials/load_data/tfrecord). A check is a CRC-32C,
turned by 15 bits, plus a constant.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from fedjax_algos.core.files import PathLike, open_regular

_HEADER = struct.Struct("<QI")  # length and check
_CHECK = struct.Struct("<I")
_CONSTANT = 0xA282EAD8


def read_records(path: PathLike, skip: int = 0, take: int | None = None) -> Iterator[bytes]:
    """The records of a file, in its order.

    Args:
      path: the file, which is not compressed.
      skip: leaves the first records out, without a check of what they hold.
      take: the number of records after that; None for all.

    Raises:
      OSError: if the file cannot be opened.
      ValueError: if it is damaged or has fewer records; the message does not name the file.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        number = 0
        while file.tell() < size if take is None else number < skip + take:
            length = _length(file, size)
            if number < skip:
                file.seek(length + _CHECK.size, 1)
            else:
                record = file.read(length)
                _compare(record, *_CHECK.unpack(file.read(_CHECK.size)))
                yield record
            number += 1


def _length(file: BinaryIO, size: int) -> int:
    """The length of the record that follows, which fits into the rest of the file."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError("it ends before its last record")
    length, check = _HEADER.unpack(header)
    _compare(header[:8], check)
    if length + _CHECK.size > size - file.tell():
        raise ValueError("it ends within a record")
    return length


def _compare(content: bytes, stored: int) -> None:
    import google_crc32c

    check = google_crc32c.value(content)
    if ((check >> 15 | check << 17) + _CONSTANT) % 2**32 != stored:
        raise ValueError("a record does not have its checksum")
