"""A packed folder: the examples of all clients, one client after another, in a file for each name.

The folder has `store.json`, written last, which says what it holds, and a folder for each split:

- `NAME.data`: the values of all examples, as they are in memory (little-endian), or image files;
- `NAME.ends`: for images, int64[examples]: where each file ends in `NAME.data`;
- `counts.npy`: int32[num_clients]; `checksums.npy`: uint32[num_clients, names], see `checksum`;
  `clients.json`: the names of the clients. `store.json` has the SHA-256 of these and of itself.

Where the test examples are the training examples, there is only the folder `train`.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.base import files
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.core.checks import check_kind, check_whole
from fedjax_algos.data import federated_data
from fedjax_algos.data.federated_data import ClientDataset, ClientSource, as_dataset, datasets
from fedjax_algos.data.images import ImageFormat

FORMAT = 1
_STORE, _SOURCE, _JOURNAL, _LOCK = "store.json", "source.json", "journal", ".lock"
_SPLITS = ("train", "test")
_SMALL = ("counts.npy", "checksums.npy", "clients.json")
_SYNC_BYTES = 2**26  # written between two entries in the journal
_KIND = "a part of a packed folder"
_FIX = "remove the folder and pack it again"


class Field(NamedTuple):
    """The values of one name: shape and dtype of a decoded example, and how images are decoded."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    image: ImageFormat | None = None  # None for values

    @property
    def example_bytes(self) -> int:
        """Bytes of the values of one example."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def files(self) -> list[str]:
        """The names of the files of the values, and for images of their ends."""
        return [f"{self.name}.data"] + [f"{self.name}.ends"] * (self.image is not None)

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


def _fields_of(source: ClientSource) -> list[Field]:
    """The fields of a source, in the order of their names."""
    return [
        Field(name, tuple(one.shape), one.dtype.newbyteorder("<"), source.images.get(name))
        for name, one in sorted(source.example.items())
    ]


def checksum(parts: Iterable[Any], lengths: ArrayLike = ()) -> int:
    """The CRC-32 of a client's values in parts, and of the lengths of its image files."""
    start = zlib.crc32(np.asarray(lengths, "<i8").tobytes())
    return functools.reduce(lambda value, part: zlib.crc32(part, value), parts, start)


def digests_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of the small files of a split, by name."""
    return {name: files.file_digest(folder / name) for name in _SMALL}


def _check_fields(fields: Mapping[str, Any], num_classes: int | None) -> None:
    """Raises ValueError for data without a field, or with no class; None where there is none."""
    if num_classes is not None:
        check_whole("num_classes", num_classes)
    require(fields, "the examples have no fields; give at least x and y")


@datasets.register
def packed(*, path: PathLike) -> ClientDataset:
    """Clients' examples in a folder that `fedjax-algos pack` has written.

    Args:
      path: the folder.

    Raises:
      ValueError: for a folder that is missing, incomplete or damaged.
    """
    folder = Path(path)
    with reading(folder / _STORE, _KIND, _FIX, KeyError, TypeError, AttributeError):
        there = not folder.is_dir() or (folder / _STORE).exists()
        require(there, f"the folder has no {_STORE}: it was not packed, or not to the end")
        facts = files.checked_json(files.parse_json(files.read_file(folder / _STORE)))
        known = facts["format"] == FORMAT
        require(known, f"it has format {facts['format']!r}, and this version reads {FORMAT}")
        fields = [Field.of_json(name, value) for name, value in facts["fields"].items()]
        num_classes, notes = facts["num_classes"], tuple(map(str, facts["notes"]))
        _check_fields(facts["fields"], num_classes)
        names = dict.fromkeys(["train", *facts["splits"]])
        digests = {name: dict(facts["splits"][name]) for name in names}
    splits = [_split(folder / name, fields, digests[name]) for name in _SPLITS if name in digests]
    return ClientDataset(splits[0], splits[-1], num_classes, notes)


def _split(folder: Path, fields: list[Field], digests: dict[str, str]) -> ClientSource:
    """The source of a split's examples, whose small files are read and compared."""
    for name in _SMALL:
        with reading(folder / name, _KIND, _FIX):
            same = files.file_digest(folder / name) == digests.get(name)
            require(same, f"its checksum is not that in {_STORE}")
    with reading(folder, _KIND, _FIX, TypeError):
        counts, checksums = (np.load(folder / name, allow_pickle=False) for name in _SMALL[:2])
        names = json.loads((folder / "clients.json").read_text())
        clients = f"clients.json has {len(names)} names of {len(counts)} clients"
        require(len(names) == len(counts), clients)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        for field in fields:
            _check_size(folder, field, int(starts[-1]))

    def read(client: int) -> dict[str, Any]:
        first, last = starts[client : client + 2].tolist()
        result: dict[str, Any] = {}
        for field, expected in zip(fields, checksums[client], strict=True):
            path = folder / f"{field.name}.data"
            with reading(f"{path}: client {names[client]!r}", _KIND, _FIX):
                ends = np.array([first, last]) * field.example_bytes
                if field.image is not None:
                    before = min(first, 1)  # the end of the image before is where they begin
                    place = 8 * (first - before), 8 * (last - first + before)
                    ends = _read(path.with_suffix(".ends"), *place).view("<i8")
                    ends = ends if before else np.concatenate([[0], ends])
                    require((np.diff(ends) >= 0).all(), "its images do not follow each other")
                content = _read(path, int(ends[0]), int(ends[-1] - ends[0]))
                lengths = () if field.image is None else np.diff(ends)
                same = checksum([content], lengths) == expected
                require(same, "its checksum is wrong: the file was changed")
            if field.image is None:
                values = content.view(field.dtype).reshape(last - first, *field.shape)
                result[field.name] = values.astype(field.dtype.newbyteorder("="), copy=False)
            else:
                spans = itertools.pairwise((ends - ends[0]).tolist())
                result[field.name] = [content[start:stop].tobytes() for start, stop in spans]
        return result

    example = {field.name: jax.ShapeDtypeStruct(field.shape, field.dtype) for field in fields}
    images = {field.name: field.image for field in fields if field.image is not None}
    identity = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
    return ClientSource(str(folder), names, counts, example, read, images, identity)


def _check_size(folder: Path, field: Field, examples: int) -> None:
    """Raises ValueError unless a field's files are as long as its examples need."""
    sizes = [examples * field.example_bytes]
    for name in field.files[1:]:  # the last end is the size of the images
        last = _read(folder / name, 8 * (examples - 1), 8).view("<i8") if examples else [0]
        sizes = [int(last[0]), 8 * examples]
    for name, expected in zip(field.files, sizes, strict=True):
        with reading(folder / name, _KIND, _FIX):
            found = os.path.getsize(folder / name)
        require(found == expected, f"{name} has {found} bytes, not {expected}")


def _read(path: Path, start: int, size: int) -> np.ndarray:
    """uint8[size] from a place of a file."""
    content = np.empty(size, np.uint8)
    with files.open_regular(path) as file:
        file.seek(start)
        require(file.readinto(content.data) == size, f"{path.name} is too short")
    return content


def pack(
    dataset: ClientDataset | ClientSource,
    folder: PathLike,
    *,
    on_client: Callable[[str, int, int], Any] = lambda split, done, total: None,
) -> None:
    """Writes the examples of all clients into a folder, which `open_federated` reads.

    One client's examples are in memory at a time, and image files stay encoded. If it is
    interrupted, also by a kill, the same call goes on with the first client that was not written.

    Args:
      dataset: what is packed. Examples of a source alone are also the test examples.
      folder: is made; it may hold a part of the same data set.
      on_client: called with the split, the clients that are written, and their number.

    Raises:
      TypeError: for an object of another type.
      ValueError: for a folder that holds something else, examples that are damaged or not as the
        source says, labels that are no classes, numbers that are not finite, or a full disk.
    """
    import filelock

    kinds = ClientDataset | ClientSource
    check_kind("dataset", dataset, kinds, "give what a reader of client data sets returned")
    whole = as_dataset(dataset)
    assert isinstance(whole, ClientDataset)
    sources = whole[:1] if whole.test is whole.train else whole[:2]
    parts = dict(zip(_SPLITS, sources, strict=False))
    for source in sources:
        source.check()
    folder = Path(folder)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK, timeout=0)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout:
            raise ValueError(f"{folder} is written by another process; wait for its end") from None
        about = _about(whole, parts)
        if _is_complete(folder, about):
            packed(path=folder)  # raises if it was damaged
            return
        for split, source in parts.items():
            _pack_split(source, folder / split, split, whole.num_classes, on_client)
        facts = about | {"splits": {split: digests_of(folder / split) for split in parts}}
        files.write_json(folder / _STORE, facts)
        for path in (folder / _SOURCE, *(folder / split / _JOURNAL for split in parts)):
            path.unlink()


def _about(dataset: ClientDataset, parts: Mapping[str, ClientSource]) -> dict[str, Any]:
    """What `store.json` says of a data set, as values of JSON."""
    fields, *others = ({f.name: f.to_json() for f in _fields_of(each)} for each in parts.values())
    kinds = [dict(each.example) for each in (dataset.train, dataset.test)]
    found = f"training examples are {kinds[0]} and test examples {kinds[1]}"
    fix = "give both the same names, shapes and types"
    require(others in ([], [fields]), f"{dataset.train.name}: {found}; {fix}")
    _check_fields(fields, dataset.num_classes)
    for name in fields:
        fix = "give an identifier"
        require(name.isidentifier(), f"{dataset.train.name}: {name!r} cannot name a file; {fix}")
    return {
        "format": FORMAT,
        "sources": {split: [each.name, each.identity] for split, each in parts.items()},
        "fields": fields,
        "num_classes": dataset.num_classes,
        "notes": list(dataset.notes),
    }


def _is_complete(folder: Path, about: dict[str, Any]) -> bool:
    """Whether the folder holds the data set; ValueError if it holds something else."""
    known = {_LOCK, _SOURCE, _STORE, *_SPLITS}
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    first = next(iter(others), None)
    require(not others, f"{folder} holds {first!r}; name a new or an empty folder")
    for name in (_STORE, _SOURCE):
        if (folder / name).exists():
            with reading(folder / name, _KIND, "remove the folder"):
                earlier = files.checked_json(files.parse_json(files.read_file(folder / name)))
            for key, value in about.items():
                changed = f"{key} was {earlier.get(key)!r} and is {value!r}"
                text = f"{folder} was packed from something else: {changed}"
                same = earlier.get(key) == value
                require(same, f"{text}; remove it, or name another folder")
            return name == _STORE
    files.write_json(folder / _SOURCE, about)
    return False


def _pack_split(
    source: ClientSource,
    folder: Path,
    split: str,
    num_classes: int | None,
    on_client: Callable[[str, int, int], Any],
) -> None:
    """Writes a split, or the rest of it."""
    fields = _fields_of(source)
    width = len(fields)
    entry = np.dtype([("count", "<i4"), ("checksums", "<u4", width), ("bytes", "<i8", width)])
    with files.writing(folder):
        folder.mkdir(exist_ok=True)
        done = _written(folder, fields, entry)
        names = [_JOURNAL, *itertools.chain(*(field.files for field in fields))]
        with contextlib.ExitStack() as stack:
            opened: list[Any] = [stack.enter_context((folder / n).open("ab")) for n in names]
            file_of = dict(zip(names, opened, strict=True))
            totals, pending, since = done["bytes"].sum(0), list[tuple](), 0
            for client in range(len(done), source.num_clients):
                parts, checksums, sizes = _encoded(source, client, fields, num_classes), [], []
                for field, part, total in zip(fields, parts, totals, strict=True):
                    lengths = np.array([len(each) for each in part], np.int64)
                    data, *ends = (file_of[name] for name in field.files)
                    data.writelines(part)
                    for file in ends:
                        file.write((total + np.cumsum(lengths)).astype("<i8").tobytes())
                    checksums.append(checksum(part, lengths if ends else ()))
                    sizes.append(int(lengths.sum()))
                totals, since = totals + sizes, since + sum(sizes)
                pending.append((int(source.counts[client]), checksums, sizes))
                if since >= _SYNC_BYTES or client + 1 == source.num_clients:
                    for file in opened[1:]:
                        _sync(file)
                    opened[0].write(np.array(pending, entry).tobytes())
                    _sync(opened[0])
                    pending, since = [], 0
                on_client(split, client + 1, source.num_clients)
        done = np.fromfile(folder / _JOURNAL, entry)
        np.save(folder / "counts.npy", done["count"].astype(np.int32))
        np.save(folder / "checksums.npy", done["checksums"].astype(np.uint32))
    files.write_text(folder / "clients.json", json.dumps(list(source.client_ids)))


def _written(folder: Path, fields: list[Field], entry: np.dtype) -> np.ndarray:
    """The entries of the clients that were written; what was written after them is cut off."""
    journal = folder / _JOURNAL
    journal.touch()
    done = np.fromfile(journal, entry, journal.stat().st_size // entry.itemsize)
    lengths = {_JOURNAL: done.nbytes}
    for field, size in zip(fields, done["bytes"].sum(0), strict=True):
        lengths |= dict(zip(field.files, (int(size), 8 * int(done["count"].sum())), strict=False))
    for name, length in lengths.items():
        (folder / name).touch()
        whole = (folder / name).stat().st_size >= length
        require(whole, f"{folder / name} is shorter than was written; remove {folder.parent}")
        os.truncate(folder / name, length)
    return done


def _encoded(
    source: ClientSource, client: int, fields: list[Field], num_classes: int | None
) -> list[list[Any]]:
    """For each field the files of a client's images, or its values as one part."""
    stored, count = federated_data.stored_of(source, client), int(source.counts[client])
    where = f"{federated_data.where_of(source, client)} has"
    parts = []
    for name, shape, dtype, image in fields:
        values = stored[name]
        require(len(values) == count, f"{where} {len(values)} examples of {name}, not {count}")
        if image is not None:
            parts.append(list(values))
            continue
        array = np.asarray(values)
        found = f"{array.dtype}{list(array.shape[1:])}, not {dtype}{list(shape)}"
        fits = array.shape[1:] == shape and array.dtype.newbyteorder("<") == dtype
        require(fits, f"{where} {name} of {found}")
        finite = array.dtype.kind != "f" or np.isfinite(array).all()
        require(finite, f"{where} NaN or infinity in {name}; clean it first")
        if name == "y" and num_classes is not None and array.dtype.kind in "ui":
            wrong = array[(array < 0) | (array >= num_classes)]
            fix = f"give whole numbers from 0 to {num_classes - 1}"
            require(not wrong.size, f"{where} label {next(wrong.flat, None)}; {fix}")
        parts.append([np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)])
    return parts


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
