"""A packed folder: the examples of all clients, one client after another, in a file for each name.

The folder has `store.json`, which says what it holds and is written last, and a folder for each
split:

- `NAME.data`: the values of all examples, as they are in memory (little-endian), or image files;
- `NAME.ends`: for images, int64[examples]: where each file ends in `NAME.data`;
- `counts.npy`: int32[num_clients]; `checksums.npy`: uint32[num_clients, names], see `checksum`;
  `clients.json`: the names of the clients. `store.json` has the SHA-256 of these and of itself.

Where the test examples are the training examples, there is only the folder `train`.
"""

import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.core.checks import check_whole
from fedjax_algos.core.files import (
    PathLike,
    checked_json,
    file_digest,
    open_regular,
    parse_json,
    read_file,
    reading,
    require,
)
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.images import ImageFormat
from fedjax_algos.data.registry import datasets

FORMAT = 1
STORE = "store.json"
SPLITS = ("train", "test")
_SMALL = ("counts.npy", "checksums.npy", "clients.json")
_KIND = "a part of a packed folder"
_FIX = "pack it again"


class Field(NamedTuple):
    """The values of one name.

    Attributes:
      name: such as "x".
      shape: the shape of one example, decoded.
      dtype: the dtype of one example, decoded.
      image: how image files are decoded; None for values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    image: ImageFormat | None = None

    @property
    def example_bytes(self) -> int:
        """Bytes of the values of one example."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """The field as values of JSON."""
        image = None if self.image is None else self.image._asdict()
        return {"shape": list(self.shape), "dtype": self.dtype.str, "image": image}

    @classmethod
    def of_json(cls, name: str, value: dict[str, Any]) -> "Field":
        """The field of what `to_json` returned."""
        image = None if value["image"] is None else ImageFormat(**value["image"])
        dtype = np.dtype(value["dtype"])
        require(dtype.kind in "uif", f"{name} is of type {dtype}")
        return cls(name, tuple(map(int, value["shape"])), dtype, image)


def fields_of(source: ClientSource) -> list[Field]:
    """The fields of a source, in the order of their names."""
    return [
        Field(
            name, tuple(one.shape), np.dtype(one.dtype).newbyteorder("<"), source.images.get(name)
        )
        for name, one in sorted(source.example.items())
    ]


@datasets.register
def packed(*, path: PathLike) -> ClientDataset:
    """Clients' examples in a folder that `fedjax-algos pack` has written.

    Args:
      path: the folder.

    Raises:
      ValueError: for a folder that is missing, incomplete or damaged.
    """
    folder = Path(path)
    with reading(folder / STORE, _KIND, _FIX, KeyError, TypeError, AttributeError):
        facts = _facts(folder)
        fields = [Field.of_json(name, value) for name, value in facts["fields"].items()]
        num_classes, notes = facts["num_classes"], tuple(map(str, facts["notes"]))
        check_fields(facts["fields"], num_classes)
        names = dict.fromkeys(["train", *facts["splits"]])
        digests = {name: dict(facts["splits"][name]) for name in names}
    splits = [_split(folder / name, fields, digests[name]) for name in SPLITS if name in digests]
    return ClientDataset(splits[0], splits[-1], num_classes, notes)


def _facts(folder: Path) -> dict[str, Any]:
    """The content of `store.json`."""
    there = not folder.is_dir() or (folder / STORE).exists()
    require(there, f"the folder has no {STORE}: it was not packed, or not to the end")
    facts = checked_json(parse_json(read_file(folder / STORE)))
    known = facts["format"] == FORMAT
    require(known, f"it has format {facts['format']!r}, and this version reads {FORMAT}")
    return facts


def checksum(parts: Iterable[Any], lengths: ArrayLike = ()) -> int:
    """The CRC-32 of a client's values in parts, and of the lengths of its image files."""
    value = zlib.crc32(np.asarray(lengths, "<i8").tobytes())
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def check_fields(fields: Mapping[str, Any], num_classes: int | None) -> None:
    """Raises ValueError for data without a field, or with no class; None where there is none."""
    if num_classes is not None:
        check_whole("num_classes", num_classes)
    require(fields, "the examples have no fields; give at least x and y")


def digests_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of the small files of a split, by name."""
    return {name: file_digest(folder / name) for name in _SMALL}


def _split(folder: Path, fields: list[Field], digests: dict[str, str]) -> ClientSource:
    """The source of a split's examples, whose small files are read and compared."""
    for name in _SMALL:
        with reading(folder / name, _KIND, _FIX):
            same = file_digest(folder / name) == digests.get(name)
            require(same, f"its checksum is not that in {STORE}")
    with reading(folder, _KIND, _FIX, TypeError):
        counts, checksums = (
            np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("counts", "checksums")
        )
        names = json.loads((folder / "clients.json").read_text())
        clients = f"clients.json has {len(names)} names of {len(counts)} clients"
        require(len(names) == len(counts), clients)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        for field in fields:
            _check_size(folder, field, int(starts[-1]))
    reader = _Reader(folder, fields, names, starts, checksums)
    example = {field.name: jax.ShapeDtypeStruct(field.shape, field.dtype) for field in fields}
    images = {field.name: field.image for field in fields if field.image is not None}
    identity = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
    return ClientSource(str(folder), names, counts, example, reader.read, images, identity)


def _check_size(folder, field, examples):
    """Raises ValueError unless a field's files are as long as its examples need."""
    path, expected = folder / f"{field.name}.data", examples * field.example_bytes
    if field.image is not None:
        ends = folder / f"{field.name}.ends"
        found = os.path.getsize(ends)
        require(found == examples * 8, f"{ends.name} has {found} bytes, not {examples * 8}")
        expected = int(_read(ends, (examples - 1) * 8, 8).view("<i8")[0]) if examples else 0
    found = os.path.getsize(path)
    require(found == expected, f"{path.name} has {found} bytes, not {expected}")


class _Reader(NamedTuple):
    """Reads the examples of a client of a split."""

    folder: Path
    fields: list[Field]
    names: list[str]
    starts: np.ndarray  # int64[num_clients + 1]: examples before those of each client
    checksums: np.ndarray

    def read(self, client: int) -> dict[str, Any]:
        first, last = self.starts[client : client + 2].tolist()
        result: dict[str, Any] = {}
        for number, field in enumerate(self.fields):
            path = self.folder / f"{field.name}.data"
            where = f"{path}: client {self.names[client]!r}"
            with reading(where, _KIND, _FIX):
                if field.image is None:
                    size = field.example_bytes
                    content = _read(path, first * size, (last - first) * size)
                else:
                    before = min(first, 1)  # the end of the image before is where they begin
                    ends_path, count = path.with_suffix(".ends"), last - first + before
                    ends = _read(ends_path, (first - before) * 8, count * 8).view("<i8")
                    ends = ends if before else np.concatenate([[0], ends])
                    require((np.diff(ends) >= 0).all(), "its images do not follow each other")
                    content = _read(path, int(ends[0]), int(ends[-1] - ends[0]))
                lengths = () if field.image is None else np.diff(ends)
                same = checksum([content], lengths) == self.checksums[client, number]
                require(same, "its checksum is wrong: the file was changed")
            if field.image is None:
                values = content.view(field.dtype).reshape(last - first, *field.shape)
                result[field.name] = values.astype(field.dtype.newbyteorder("="), copy=False)
            else:
                bounds = (ends - ends[0]).tolist()
                result[field.name] = [
                    content[start:stop].tobytes() for start, stop in itertools.pairwise(bounds)
                ]
        return result


def _read(path: Path, start: int, size: int) -> np.ndarray:
    """uint8[size] from a place of a file."""
    content = np.empty(size, np.uint8)
    with open_regular(path) as file:
        file.seek(start)
        require(file.readinto(content.data) == size, f"{path.name} is too short")
    return content
