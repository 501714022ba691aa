"""The heaps in which HDF5 stores texts, which are checked before the library reads them.

A text is stored as its length, the address of a heap and the number of an object in it. The library
does not end with a damaged heap that has an empty gap, so the objects of each heap are followed
here: each has 16 bytes with its number and its size, and then its content up to a multiple of 8
bytes; number 0 is the gap that remains
(https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, III.E).
"""

import struct
from typing import Any, BinaryIO

import numpy as np

from fedjax_algos.core.files import check_array_bytes

_HEAP = struct.Struct("<4sB3xQ")  # signature, version, size
_OBJECT = struct.Struct("<H6xQ")  # number, size
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])


def check_heaps(dataset: Any, file: BinaryIO) -> None:
    """Checks the heaps of an array of texts; those of compressed references are not found.

    Args:
      dataset: the array, of which the size is checked already.
      file: the open file in which it is.

    Raises:
      ValueError: for a heap that is damaged or outside of the file.
    """
    import h5py

    name, start = dataset.name, dataset.file.userblock_size
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError(f"{name!r} has texts with addresses of other than 8 bytes")
    settings = dataset.id.get_create_plist()
    if settings.get_layout() == h5py.h5d.CONTIGUOUS:
        places = [(dataset.id.get_offset(), dataset.id.get_storage_size())]
    elif settings.get_layout() == h5py.h5d.CHUNKED and not settings.get_nfilters():
        chunks = (dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks()))
        places = [(chunk.byte_offset, chunk.size) for chunk in chunks]
    else:
        places = []
    heaps = [np.zeros(0, np.uint64)]
    for place, size in places:
        file.seek(place)
        content = file.read(size)
        if len(content) != size or size % _REFERENCE.itemsize:
            raise ValueError(f"{name!r} has references that are not whole")
        heaps.append(np.frombuffer(content, _REFERENCE)["heap"])
    limit = file.seek(0, 2)
    for heap in np.unique(np.concatenate(heaps)):
        if heap:  # an empty text has none
            _check_heap(file, start + int(heap), limit, name)


def _check_heap(file: BinaryIO, place: int, limit: int, name: str) -> None:
    """Follows the objects of a heap to its end."""
    damaged = f"{name!r} has texts in a damaged heap"
    if place + _HEAP.size > limit:
        raise ValueError(damaged)
    file.seek(place)
    signature, version, size = _HEAP.unpack(file.read(_HEAP.size))
    if signature != b"GCOL" or version != 1 or place + size > limit:
        raise ValueError(damaged)
    check_array_bytes(f"a heap of {name!r}", size, "leave examples out")
    content = file.read(max(0, size - _HEAP.size))
    start = 0
    while start + _OBJECT.size <= len(content):
        number, length = _OBJECT.unpack_from(content, start)
        step = length if number == 0 else _OBJECT.size + length + -length % 8
        if not 0 < step <= len(content) - start:
            raise ValueError(damaged)
        start += step
