"""Parser of `tf.train.Example`, the record of TensorFlow's data sets, without TensorFlow.

An Example is a protocol buffer: features by name, each a list of bytes, of float32 or of int64
(https://www.tensorflow.org/api_docs/python/tf/train/Example). It has no shapes.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT = 10  # bytes of 7 bits each
Feature: TypeAlias = np.ndarray | list[bytes]


def parse_example(content: bytes) -> dict[str, Feature]:
    """The features by name: float32[k], int64[k] or a list of k bytes.

    Args:
      content: a serialised Example.

    Raises:
      ValueError: for bytes that are none.
    """
    features: dict[str, Feature] = {}
    for number, message in _fields(memoryview(content)):  # Example: features = 1
        for inner, entry in _fields(_message(message)) if number == 1 else ():  # a map = 1
            if inner == 1:
                parts = dict(_fields(_message(entry)))  # of a map: key = 1, value = 2
                name = bytes(_message(parts.get(1, memoryview(b"")))).decode()
                if name in features:
                    raise ValueError(f"it has the feature {name!r} twice")
                features[name] = _feature(_message(parts.get(2, memoryview(b""))))
    return features


def _feature(content: memoryview) -> Feature:
    """The values of a Feature, which has one list: bytes = 1, floats = 2 or integers = 3."""
    lists = list(_fields(content))
    if len(lists) > 1 or (lists and lists[0][0] not in (1, 2, 3)):
        raise ValueError("a feature has not one list of values")
    if not lists:
        return []
    kind, values = lists[0][0], [v for n, v in _fields(_message(lists[0][1])) if n == 1]
    if kind == 1:
        return [bytes(_message(value)) for value in values]
    if kind == 2:  # a packed list, or numbers of 4 bytes one by one
        floats = b"".join(_message(value) for value in values)
        if len(floats) % 4:
            raise ValueError("a list of floats ends within a number")
        return np.frombuffer(floats, "<f4").astype(np.float32)
    numbers = [_integers(v) if isinstance(v, memoryview) else np.array([v]) for v in values]
    return np.concatenate([np.zeros(0, np.int64), *(n.astype(np.int64) for n in numbers)])


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview | np.uint64]]:
    """(number, value) of each field: a varint as uint64, all others as bytes."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        number, wire = int(key) >> 3, int(key) & 7
        if wire == _VARINT:
            value, place = _varint(content, place)
            yield number, value
            continue
        if wire == _BYTES:
            size, place = _varint(content, place)
            length = int(size)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"it has a field of wire type {wire}")
        if length > len(content) - place:
            raise ValueError("it ends within a field")
        yield number, content[place : place + length]
        place += length


def _varint(content: memoryview, place: int) -> tuple[np.uint64, int]:
    """A number and the place after it: 7 bits in each byte, the lowest first."""
    value = 0
    for shift, octet in enumerate(content[place : place + _MAX_VARINT]):
        value |= (octet & 127) << 7 * shift
        if octet < 128:
            return np.uint64(value & (2**64 - 1)), place + shift + 1
    raise ValueError("it ends within a number, or has one that is too long")


def _integers(content: memoryview) -> np.ndarray:
    """int64[k] of packed varints, all at once."""
    octets = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(octets < 128)
    if not len(octets):
        return np.zeros(0, np.int64)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise ValueError("a list of integers ends within a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - starts
    if lengths.max() > _MAX_VARINT:
        raise ValueError("a list has an integer that is too long")
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, lengths))
    parts = (octets & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).astype(np.int64)


def _message(value: memoryview | np.uint64) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError("it has a number where a message is expected")
    return value
