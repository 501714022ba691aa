"""A packed folder: the examples of all clients, one client after another, in NumPy's files.

The folder has `store.json`, which says what it holds, and a folder for each split:

- `clients.npy`: of each client, the number of its examples, `count`, and for each name the CRC-32
  of its values, `checksums`, see `checksum`;
- `NAME.npy`: the values of all examples; or `NAME.images`, all image files, one after another, and
  `NAME.offsets.npy`: int64[examples + 1]: where each of them begins, and the end.

At the end `store.json` gets the names of the clients and the SHA-256 of `clients.npy`; it has one
of itself. Where the test examples are the training examples, there is only the folder `train`.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import filelock
import jax
import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import FileError, require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.core.checks import check_kind, check_whole
from fedjax_algos.data import federated_data
from fedjax_algos.data.federated_data import ClientDataset, ClientSource, as_dataset, datasets
from fedjax_algos.data.images import ImageFormat

FORMAT = 2
_STORE, _CLIENTS, _LOCK = "store.json", "clients.npy", ".lock"
_SPLITS = ("train", "test")
_KIND = "a part of a packed folder"
_FIX = "remove the folder and pack it again"


def fields_of(source: ClientSource) -> dict[str, Any]:
    """Shape and type of a decoded example by name, and how images are decoded, as JSON."""
    fields: dict[str, Any] = {}
    for name, one in sorted(source.example.items()):
        image = source.images[name]._asdict() if name in source.images else None
        dtype = np.dtype(one.dtype).newbyteorder("<").str
        fields[name] = {"shape": list(one.shape), "dtype": dtype, "image": image}
    return fields


def checksum(parts: Iterable[Any], places: np.ndarray) -> int:
    """The CRC-32 of the places of a client's examples in their file, and of their bytes."""
    value = zlib.crc32(places.tobytes())
    return functools.reduce(lambda value, part: zlib.crc32(part, value), parts, value)


class Split:
    """The files of a split, in which each client has its place.

    Args:
      folder: the folder of the split.
      fields: what `fields_of` returned.
      client_ids: the names of the clients.
      mode: "r+" to write.
    """

    def __init__(
        self,
        folder: Path,
        fields: Mapping[str, Any],
        client_ids: Sequence[str],
        mode: Literal["r", "r+"] = "r",
    ):
        self.folder, self.client_ids = folder, client_ids
        self.clients = _load(folder / _CLIENTS, (len(client_ids),), _row(len(fields)), mode)
        self.starts = np.concatenate([[0], np.cumsum(self.clients["count"], dtype=np.int64)])
        total = int(self.starts[-1])
        self.example, self.images, self.paths, self.offsets = {}, {}, {}, {}
        for name, field in fields.items():
            shape, dtype = tuple(map(int, field["shape"])), np.dtype(field["dtype"])
            self.example[name] = jax.ShapeDtypeStruct(shape, dtype)
            if field["image"]:
                self.images[name] = ImageFormat(**field["image"])
                self.paths[name], path = folder / f"{name}.images", folder / f"{name}.offsets.npy"
                self.offsets[name] = _load(path, (total + 1,), np.dtype("<i8"), mode)
            else:
                self.paths[name], size = folder / f"{name}.npy", np.dtype((dtype, shape)).itemsize
                start = _load(self.paths[name], (total, *shape), dtype, mode).offset
                self.offsets[name] = range(start, start + (total + 1) * size, size)

    def places(self, name: str, client: int) -> np.ndarray:
        """int64[examples + 1]: where a client's examples begin in their file, and the end."""
        first, last = self.starts[client : client + 2]
        return np.asarray(self.offsets[name][first : last + 1])

    def read(self, client: int) -> dict[str, Any]:
        """The examples of a client, see `ClientSource.read`; FileError if they were changed."""
        result: dict[str, Any] = {}
        for number, (name, one) in enumerate(self.example.items()):
            path, places = self.paths[name], self.places(name, client)
            with reading(f"{path}: client {self.client_ids[client]!r}", _KIND, _FIX):
                size = int(places[-1] - places[0])
                files.check_array_bytes("its examples", size, _FIX)
                content = np.empty(size, np.uint8)
                with files.open_regular(path) as file:
                    file.seek(places[0])
                    require(file.readinto(content.data) == size, "the file is too short")
                same = checksum([content], places) == self.clients["checksums"][client, number]
                require(same, "its checksum is wrong: the file was changed")
            if name in self.images:
                spans = itertools.pairwise((places - places[0]).tolist())
                result[name] = [content[start:stop].tobytes() for start, stop in spans]
            else:
                result[name] = content.view(one.dtype).reshape(len(places) - 1, *one.shape)
        return result

    def write(self, client: int, parts: Mapping[str, Sequence[Any]]) -> None:
        """Writes the examples of a client: its images, or the bytes of its values as one part."""
        for number, (name, part) in enumerate(parts.items()):
            places = self.places(name, client)
            if name in self.images:  # they are those in the file of offsets
                places[1:] = places[0] + np.cumsum([len(image) for image in part], dtype=np.int64)
            with self.paths[name].open("r+b") as file:
                file.seek(places[0])
                file.writelines(part)
            self.clients["checksums"][client, number] = checksum(part, places)


def _row(fields):
    """The type of a client's row in `clients.npy`."""
    return np.dtype([("count", "<i4"), ("checksums", "<u4", (fields,))])


def _load(path, shape, dtype, mode):
    """An array that stays in its file; FileError if it has another shape or type."""
    with reading(path, _KIND, _FIX, Exception):  # NumPy parses headers as Python
        files.require_regular(path)
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
        found = f"it is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
        require(array.shape == shape and array.dtype == dtype, found)
    return array


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
        require(there, f"the folder has no {_STORE}: it was not packed")
        facts = files.checked_json(files.parse_json(files.read_file(folder / _STORE)))
        known = facts["format"] == FORMAT
        require(known, f"it has format {facts['format']!r}, and this version reads {FORMAT}")
        require("splits" in facts, "it was not packed to the end; give the same command again")
        sources = []
        for split, of_split in facts["splits"].items():
            with reading(place := folder / split / _CLIENTS, _KIND, _FIX):
                same = files.file_digest(place) == of_split["sha256"]
                require(same, f"its checksum is not that in {_STORE}")
            opened = Split(folder / split, facts["fields"], of_split["clients"])
            identity = hashlib.sha256(json.dumps(of_split).encode()).hexdigest()
            rest = opened.example, opened.read, opened.images, identity
            counts = np.array(opened.clients["count"])
            sources.append(ClientSource(str(opened.folder), opened.client_ids, counts, *rest))
        notes = tuple(map(str, facts["notes"]))
        return ClientDataset(sources[0], sources[-1], facts["num_classes"], notes)


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
    try:
        held = lock.acquire()
    except filelock.Timeout:
        raise ValueError(f"{folder} is written by another process; wait for its end") from None
    with held:
        about = _about(whole, parts)
        if _is_complete(folder, about, parts):
            packed(path=folder)  # raises if it was damaged
            return
        splits = {}
        for split, source in parts.items():
            _pack_split(source, folder / split, about, functools.partial(on_client, split))
            digest = files.file_digest(folder / split / _CLIENTS)
            splits[split] = {"clients": list(source.client_ids), "sha256": digest}
        files.write_json(folder / _STORE, about | {"splits": splits})


def _about(dataset: ClientDataset, parts: Mapping[str, ClientSource]) -> dict[str, Any]:
    """What `store.json` says of a data set before it is packed, as values of JSON."""
    fields, *others = (fields_of(each) for each in parts.values())
    kinds = [dict(each.example) for each in (dataset.train, dataset.test)]
    found = f"training examples are {kinds[0]} and test examples {kinds[1]}"
    fix = "give both the same names, shapes and types"
    require(others in ([], [fields]), f"{dataset.train.name}: {found}; {fix}")
    if dataset.num_classes is not None:
        check_whole("num_classes", dataset.num_classes)
    require(fields, "the examples have no fields; give at least x and y")
    for name, one in dataset.train.example.items():
        what = f"{dataset.train.name}: {name!r}"
        require(name.isidentifier(), f"{what} cannot name a file; give an identifier")
        require(one.dtype.kind in "uif", f"{what} is of type {one.dtype}; give numbers of NumPy's")
    return {
        "format": FORMAT,
        "sources": {split: [each.name, each.identity] for split, each in parts.items()},
        "fields": fields,
        "num_classes": dataset.num_classes,
        "notes": list(dataset.notes),
    }


def _is_complete(folder: Path, about: dict[str, Any], parts: Mapping[str, ClientSource]) -> bool:
    """Whether the folder holds the data set; ValueError if it holds something else."""
    known = {_LOCK, _STORE, *_SPLITS}
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    first = next(iter(others), None)
    require(not others, f"{folder} holds {first!r}; name a new or an empty folder")
    if not (folder / _STORE).exists():
        for split, source in parts.items():
            make_files(source, folder / split)
        files.write_json(folder / _STORE, about)
    with reading(folder / _STORE, _KIND, "remove the folder"):
        earlier = files.checked_json(files.parse_json(files.read_file(folder / _STORE)))
    for key, value in about.items():
        changed = f"{key} was {earlier.get(key)!r} and is {value!r}"
        text = f"{folder} was packed from something else: {changed}"
        same = earlier.get(key) == value
        require(same, f"{text}; remove it, or name another folder")
    return "splits" in earlier


def make_files(source: ClientSource, folder: Path) -> None:
    """Makes the files of a split, which are as long as they will be; those of values are sparse."""
    total = int(np.sum(source.counts, dtype=np.int64))
    clients = np.zeros(source.num_clients, _row(len(source.example)))
    clients["count"] = source.counts
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / _CLIENTS, clients)
        for name, field in fields_of(source).items():
            if field["image"]:
                np.save(folder / f"{name}.offsets.npy", np.zeros(total + 1, "<i8"))
                (folder / f"{name}.images").touch()
            else:
                dtype, shape = np.dtype(field["dtype"]), (total, *field["shape"])
                np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)


def _pack_split(
    source: ClientSource,
    folder: Path,
    about: Mapping[str, Any],
    on_client: Callable[[int, int], Any],
) -> None:
    """Writes a split, or the rest of it, after the first clients that are as they were written."""
    split, done = Split(folder, about["fields"], source.client_ids, "r+"), 0
    same = np.array_equal(split.clients["count"], source.counts)
    require(same, f"{folder} was packed with other numbers of examples; remove it")
    with contextlib.suppress(FileError):
        while done < source.num_clients:
            split.read(done)
            done += 1
    with files.writing(folder):
        for client in range(done, source.num_clients):
            split.write(client, _encoded(source, client, split.example, about["num_classes"]))
            on_client(client + 1, source.num_clients)
        for array in (split.clients, *(split.offsets[name] for name in split.images)):
            array.flush()
        for path in split.paths.values():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def _encoded(
    source: ClientSource, client: int, example: Mapping[str, Any], num_classes: int | None
) -> dict[str, list[Any]]:
    """By name the files of a client's images, or its values as one part."""
    stored, count = federated_data.stored_of(source, client), int(source.counts[client])
    where = f"{federated_data.where_of(source, client)} has"
    parts = {}
    for name, one in example.items():
        values = stored[name]
        require(len(values) == count, f"{where} {len(values)} examples of {name}, not {count}")
        if name in source.images:
            parts[name] = list(values)
            continue
        array = np.asarray(values)
        found = f"{array.dtype}{list(array.shape[1:])}, not {one.dtype}{list(one.shape)}"
        fits = array.shape[1:] == one.shape and array.dtype.newbyteorder("<") == one.dtype
        require(fits, f"{where} {name} of {found}")
        finite = array.dtype.kind != "f" or np.isfinite(array).all()
        require(finite, f"{where} NaN or infinity in {name}; clean it first")
        if name == "y" and num_classes is not None and array.dtype.kind in "ui":
            wrong = array[(array < 0) | (array >= num_classes)]
            fix = f"give whole numbers from 0 to {num_classes - 1}"
            require(not wrong.size, f"{where} label {next(wrong.flat, None)}; {fix}")
        parts[name] = [np.ascontiguousarray(array, one.dtype).reshape(-1).view(np.uint8)]
    return parts
