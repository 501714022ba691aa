"""Packs the examples of all clients into a folder, one client after another, in NumPy's files.

`index.npz`, a sealed file (see `base.arrays`), describes the content. There is a folder for each
split, or only `train` if its examples are also the test examples:

- `NAME.npy`: the values of all examples;
- or `NAME.images`: all image files, one after another; the array `NAME.offsets` of the index says
  where each begins, and where the last ends.

The index also has a checksum for each client and name. While the folder is being packed, it has
checksums of the clients written so far.
"""

import functools
import hashlib
import itertools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.base import files
from fedjax_algos.base.arrays import read_sealed, write_sealed
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core.checks import check_kind, check_whole
from fedjax_algos.data import federated_data
from fedjax_algos.data.federated_data import ClientDataset, ClientSource, as_dataset, datasets
from fedjax_algos.data.images import ImageFormat

FORMAT = 2
_INDEX, _LOCK = "index.npz", ".lock"
_SAVE_SECONDS = 30  # between two writes of the index
_KIND = "a part of a packed folder"
_FIX = "remove the folder and pack it again"


def fields_of(source: ClientSource) -> dict[str, Any]:
    """Returns an example's shapes and types by name, and how images are decoded, as JSON."""
    fields: dict[str, Any] = {}
    for name, one in sorted(source.example.items()):
        image = source.images[name]._asdict() if name in source.images else None
        dtype = np.dtype(one.dtype).newbyteorder("<").str
        fields[name] = {"shape": list(one.shape), "dtype": dtype, "image": image}
    return fields


def checksum(parts: Iterable[Any], lengths: ArrayLike) -> int:
    """Returns the CRC-32 of the lengths and the bytes of a client's examples."""
    value = zlib.crc32(np.asarray(lengths, "<i8").tobytes())
    return functools.reduce(lambda value, part: zlib.crc32(part, value), parts, value)


class Split:
    """The files of a split.

    Args:
      folder: the folder of the split.
      fields: the result of `fields_of`.
      clients: the numbers of examples by the names of the clients.
      arrays: the arrays of the index.
    """

    def __init__(
        self,
        folder: Path,
        fields: Mapping[str, Any],
        clients: Mapping[str, int],
        arrays: dict[str, Any],
    ):
        self.folder, self.client_ids, self.arrays = folder, list(clients), arrays
        self.done = len(arrays["checksums"])  # clients written so far
        self.checksums = np.zeros((len(clients), len(fields)), np.uint32)
        self.checksums[: self.done] = arrays["checksums"]
        self.counts = np.array([*clients.values()], np.int32)
        self.starts = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        total = int(self.starts[-1])
        self.example, self.images, self.paths, self.offsets = {}, {}, {}, {}
        for name, field in fields.items():
            shape, dtype = tuple(map(int, field["shape"])), np.dtype(field["dtype"])
            self.example[name] = jax.ShapeDtypeStruct(shape, dtype)
            self.paths[name] = folder / f"{name}.{'images' if field['image'] else 'npy'}"
            if field["image"]:
                self.images[name] = ImageFormat(**field["image"])
                self.offsets[name] = arrays[f"{name}.offsets"]
            else:
                start = _first_byte(self.paths[name], (total, *shape), dtype)
                size = np.dtype((dtype, shape)).itemsize
                self.offsets[name] = range(start, start + (total + 1) * size, size)

    def _places(self, name, client):
        """Returns where a client's examples begin in their file, and the end: int64[n_i + 1]."""
        first, last = self.starts[client : client + 2]
        return np.asarray(self.offsets[name][first : last + 1])

    def read(self, client: int) -> dict[str, Any]:
        """Reads a client's examples, see `ClientSource.read`; FileError if they were changed."""
        result: dict[str, Any] = {}
        for number, (name, one) in enumerate(self.example.items()):
            path, places = self.paths[name], self._places(name, client)
            with reading(f"{path}: client {self.client_ids[client]!r}", _KIND, _FIX):
                size = int(places[-1] - places[0])
                files.check_array_bytes("its examples", size, _FIX)
                with files.open_regular(path) as file:
                    content = np.fromfile(file, np.uint8, size, offset=int(places[0]))
                same = checksum([content], np.diff(places)) == self.checksums[client, number]
                require(same, "its checksum is wrong: the file was changed")
            if name in self.images:
                spans = itertools.pairwise((places - places[0]).tolist())
                result[name] = [content[start:stop].tobytes() for start, stop in spans]
            else:
                result[name] = content.view(one.dtype).reshape(len(places) - 1, *one.shape)
        return result

    def write(self, parts: Mapping[str, list[Any]]) -> None:
        """Writes the next client; by name, `parts` has its images, or one part with its values."""
        for number, (name, part) in enumerate(parts.items()):
            places = self._places(name, self.done)
            if name in self.images:  # they are a part of the array in the index
                places[1:] = places[0] + np.cumsum([len(image) for image in part], dtype=np.int64)
            with self.paths[name].open("r+b") as file:
                file.seek(places[0])
                file.writelines(part)
            self.checksums[self.done, number] = checksum(part, np.diff(places))
        self.done += 1

    def source(self) -> ClientSource:
        """Returns the source that a run reads; ValueError if some examples are not written yet."""
        number, again = len(self.client_ids), "give the same command again"
        require(self.done == number, f"{self.folder} has {self.done} of {number} clients; {again}")
        known = json.dumps(self.client_ids).encode() + self.checksums.tobytes()
        rest = self.example, self.read, self.images, hashlib.sha256(known).hexdigest()
        return ClientSource(str(self.folder), self.client_ids, self.counts, *rest)


def _first_byte(path, shape, dtype):
    """Returns where an array's values begin in its file; FileError for another shape or type."""
    with reading(path, _KIND, _FIX, Exception):  # NumPy parses headers as Python
        files.require_regular(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        found = f"it is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
        require(array.shape == shape and array.dtype == dtype, found)
    return array.offset


@datasets.register
def packed(*, path: PathLike) -> ClientDataset:
    """Opens clients' examples in a folder that `fedjax-algos pack` has written.

    Args:
      path: the folder.

    Raises:
      ValueError: for a folder that is missing, incomplete or damaged.
    """
    facts, splits = _open(Path(path))
    sources = [split.source() for split in splits.values()]
    return ClientDataset(sources[0], sources[-1], facts["num_classes"], tuple(facts["notes"]))


def _open(folder: Path) -> tuple[dict[str, Any], dict[str, Split]]:
    """Returns the facts in the index, and the splits by name."""
    path = folder / _INDEX
    with reading(path, _KIND, _FIX, KeyError, TypeError, AttributeError):
        arrays, facts = read_sealed(path, _KIND, _FIX)
        known = facts["format"] == FORMAT
        require(known, f"it has format {facts['format']!r}, and this version reads {FORMAT}")
        splits = {}
        for name, clients in facts["clients"].items():
            start = f"{name}/"
            of_split = {key[len(start) :]: arrays[key] for key in arrays if key.startswith(start)}
            splits[name] = Split(folder / name, facts["fields"], clients, of_split)
    return facts, splits


def pack(
    dataset: ClientDataset | ClientSource,
    folder: PathLike,
    *,
    on_client: Callable[[str, int, int], Any] = lambda split, done, total: None,
) -> None:
    """Writes the examples of all clients into a folder that `open_federated` reads.

    The examples of one client are in memory at a time, and image files stay encoded. After an
    interruption or a kill, the same call goes on with the clients that were not written.

    Args:
      dataset: the examples to pack. If it is a source, its examples are also the test examples.
      folder: the folder to make; it may hold a part of the same data set.
      on_client: `(split, done, total)`, called after each client; `done` clients are written.

    Raises:
      TypeError: for an object of another type.
      ValueError: for a folder that holds something else, examples that are damaged or unlike their
        description, labels that are not classes, numbers that are not finite, or a full disk.
    """
    import filelock

    kinds = ClientDataset | ClientSource
    check_kind("dataset", dataset, kinds, "give what a reader of client data sets returned")
    whole = as_dataset(dataset)
    assert isinstance(whole, ClientDataset)
    parts = {"train": whole.train} | ({} if whole.test is whole.train else {"test": whole.test})
    for source in parts.values():
        source.check()
    folder = Path(folder)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        held = filelock.FileLock(folder / _LOCK, timeout=0).acquire()
    with held:
        about = _about(whole, parts)
        splits, saved = _begin(folder, about, parts), time.monotonic()
        with files.writing(folder):
            for name, source in parts.items():
                split, number = splits[name], source.num_clients
                for client in range(split.done, number):
                    split.write(_encoded(source, client, split.example, whole.num_classes))
                    if time.monotonic() - saved >= _SAVE_SECONDS or split.done == number:
                        save_index(folder, about, splits)
                        saved = time.monotonic()
                    on_client(name, split.done, number)
        packed(path=folder)  # raises if a folder that was complete is damaged


def _about(dataset: ClientDataset, parts: Mapping[str, ClientSource]) -> dict[str, Any]:
    """Describes a data set for the index, as JSON values."""
    fields, *others = (fields_of(each) for each in parts.values())
    kinds = [dict(each.example) for each in (dataset.train, dataset.test)]
    found = f"training examples are {kinds[0]} and test examples {kinds[1]}"
    fix = "give both the same names, shapes and types"
    require(others in ([], [fields]), f"{dataset.train.name}: {found}; {fix}")
    if dataset.num_classes is not None:
        check_whole("num_classes", dataset.num_classes)
    fits = all(key.isidentifier() and one.dtype.kind in "uif" for key, one in kinds[0].items())
    found = f"{dataset.train.name}: its example has {describe_tree(kinds[0])}"
    require(fields and fits, f"{found}; give NumPy's numbers, named by identifiers")
    return {
        "format": FORMAT,
        "sources": {split: [each.name, each.identity] for split, each in parts.items()},
        "clients": {
            split: dict(zip(each.client_ids, np.asarray(each.counts).tolist(), strict=True))
            for split, each in parts.items()
        },
        "fields": fields,
        "num_classes": dataset.num_classes,
        "notes": list(dataset.notes),
    }


def _begin(folder: Path, about: dict[str, Any], parts: dict[str, ClientSource]) -> dict[str, Split]:
    """Opens the splits in the folder, or new ones; ValueError if it holds something else."""
    for path in folder.glob(f".*-{_INDEX}"):  # a kill may have left it half-written
        path.unlink()
    others = sorted({path.name for path in folder.iterdir()} - {_LOCK, _INDEX, "train", "test"})
    require(not others, f"{folder} holds {', '.join(others)[:200]}; name a new or an empty folder")
    if not (folder / _INDEX).exists():
        return {name: make_split(folder / name, source) for name, source in parts.items()}
    earlier, splits = _open(folder)
    for key, value in about.items():
        changed = f"{key} was {earlier.get(key)!r:.200} and is {value!r:.200}"
        found = f"{folder} was packed from something else: {changed}"
        require(earlier.get(key) == value, f"{found}; remove it, or name another folder")
    return splits


def make_split(folder: Path, source: ClientSource) -> Split:
    """Makes a split with places for all clients; files of values are sparse."""
    fields, total = fields_of(source), int(np.sum(source.counts, dtype=np.int64))
    arrays: dict[str, Any] = {"checksums": np.zeros((0, len(fields)), np.uint32)}
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, field in fields.items():
            if field["image"]:
                arrays[f"{name}.offsets"] = np.zeros(total + 1, np.int64)
                (folder / f"{name}.images").touch()
            else:
                dtype, shape = np.dtype(field["dtype"]), (total, *field["shape"])
                np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
    clients = dict(zip(source.client_ids, source.counts, strict=True))
    return Split(folder, fields, clients, arrays)


def save_index(folder: Path, about: dict[str, Any], splits: Mapping[str, Split]) -> None:
    """Writes the index after the files that it describes are on disk."""
    arrays: dict[str, Any] = {}
    for name, split in splits.items():
        of_split = split.arrays | {"checksums": split.checksums[: split.done]}
        arrays |= {f"{name}/{key}": array for key, array in of_split.items()}
        for path in split.paths.values():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
    write_sealed(folder / _INDEX, arrays, about)


def _encoded(
    source: ClientSource, client: int, example: Mapping[str, Any], num_classes: int | None
) -> dict[str, list[Any]]:
    """Returns, by name, the files of a client's images, or its values as one part."""
    where, parts = federated_data.where_of(source, client), {}
    stored = federated_data.stored_of(source, client)
    for name, one in example.items():
        array = stored[name]
        if name in source.images:
            parts[name] = list(array)
            continue
        require(np.isfinite(array).all(), f"{where} has NaN or infinity in {name}; clean it first")
        if name == "y" and num_classes is not None and array.dtype.kind in "ui":
            wrong = array[(array < 0) | (array >= num_classes)]
            fix = f"give whole numbers from 0 to {num_classes - 1}"
            require(not wrong.size, f"{where} has label {next(wrong.flat, None)}; {fix}")
        parts[name] = [np.ascontiguousarray(array, one.dtype).reshape(-1).view(np.uint8)]
    return parts
