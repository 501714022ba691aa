"""Packing: a data set's clients are written one after another into a folder."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.files import (
    PathLike,
    checked_json,
    parse_json,
    read_file,
    reading,
    write_json,
    write_text,
    writing,
)
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.registry import as_dataset
from fedjax_algos.data.stored.packed import (
    FORMAT,
    SPLITS,
    STORE,
    Field,
    check_fields,
    checksum,
    digests_of,
    fields_of,
)

_SOURCE, _JOURNAL, _LOCK = "source.json", "journal", ".lock"
_SYNC_BYTES = 2**26  # written between two entries in the journal


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
      ValueError: for a folder that holds something else, examples that are damaged or not what the
        source says of them, labels that are no classes, numbers that are not finite, or a full
        disk.
    """
    kinds = ClientDataset | ClientSource
    check_kind("dataset", dataset, kinds, "give what a reader of client data sets returned")
    whole = as_dataset(dataset)
    assert isinstance(whole, ClientDataset)
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK, timeout=0)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout:
            raise ValueError(f"{folder} is written by another process; wait for its end") from None
        about, parts = _about(whole), _parts(whole)
        if _is_complete(folder, about):
            return
        for split, source in parts.items():
            _pack_split(source, folder / split, split, whole.num_classes, on_client)
        facts = about | {"splits": {split: digests_of(folder / split) for split in parts}}
        write_json(folder / STORE, facts)
        for path in (folder / _SOURCE, *(folder / split / _JOURNAL for split in parts)):
            path.unlink()


def _parts(dataset: ClientDataset) -> dict[str, ClientSource]:
    """The sources by split: only one if the test examples are the training examples."""
    parts = {"train": dataset.train}
    return parts if dataset.test is dataset.train else {**parts, "test": dataset.test}


def _about(dataset: ClientDataset) -> dict[str, Any]:
    """What `store.json` says of a data set, as values of JSON."""
    parts = _parts(dataset)
    fields = {
        split: {f.name: f.to_json() for f in fields_of(each)} for split, each in parts.items()
    }
    if fields["train"] != fields.get("test", fields["train"]):
        raise ValueError(
            f"{dataset.train.name}: training examples are {dict(dataset.train.example)} and test "
            f"examples {dict(dataset.test.example)}; give both the same names, shapes and types"
        )
    check_fields(fields["train"], dataset.num_classes)
    for name in fields["train"]:
        if not name.isidentifier():
            raise ValueError(
                f"{dataset.train.name}: {name!r} cannot name a file; give an identifier"
            )
    return {
        "format": FORMAT,
        "sources": {split: [each.name, each.identity] for split, each in parts.items()},
        "fields": fields["train"],
        "num_classes": dataset.num_classes,
        "notes": list(dataset.notes),
    }


def _is_complete(folder: Path, about: dict[str, Any]) -> bool:
    """Whether the folder holds the data set; ValueError if it holds something else."""
    known = {_LOCK, _SOURCE, STORE, *SPLITS}
    others = [path.name for path in folder.iterdir() if path.name not in known]
    if others:
        raise ValueError(f"{folder} holds {sorted(others)[0]!r}; name a new or an empty folder")
    for name in (STORE, _SOURCE):
        if (folder / name).exists():
            with reading(folder / name, "a part of a packed folder", "remove the folder"):
                earlier = checked_json(parse_json(read_file(folder / name)))
                different = [key for key in about if earlier.get(key) != about[key]]
            if different:
                raise ValueError(
                    f"{folder} was packed from something else: {different[0]} was "
                    f"{earlier.get(different[0])!r} and is {about[different[0]]!r}; remove it, or "
                    "name another folder"
                )
            return name == STORE
    write_json(folder / _SOURCE, about)
    return False


def _pack_split(source: ClientSource, folder: Path, split, num_classes, on_client) -> None:
    """Writes a split, or the rest of it."""
    fields = fields_of(source)
    entry = np.dtype(
        [("count", "<i4"), ("checksums", "<u4", len(fields)), ("bytes", "<i8", len(fields))]
    )
    with writing(folder):
        folder.mkdir(exist_ok=True)
        done = _written(folder, fields, entry)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context((folder / f"{f.name}.data").open("ab")) for f in fields]
            ends = {
                f.name: stack.enter_context((folder / f"{f.name}.ends").open("ab"))
                for f in fields
                if f.image is not None
            }
            journal = stack.enter_context((folder / _JOURNAL).open("ab"))
            totals = done["bytes"].sum(0)
            pending: list[tuple] = []
            since = 0
            for client in range(len(done), source.num_clients):
                count, parts = _encoded(source, client, fields, num_classes)
                sizes = [sum(map(len, part)) for part in parts]
                checksums = []
                for number, (field, part) in enumerate(zip(fields, parts, strict=True)):
                    files[number].writelines(part)
                    lengths = [] if field.image is None else [len(each) for each in part]
                    checksums.append(checksum(part, lengths))
                    if field.image is not None:
                        stops = totals[number] + np.cumsum(lengths)
                        ends[field.name].write(stops.astype("<i8").tobytes())
                totals += sizes
                since += sum(sizes)
                pending.append((count, checksums, sizes))
                last = client + 1 == source.num_clients
                if since >= _SYNC_BYTES or last:
                    for file in (*files, *ends.values()):
                        _sync(file)
                    journal.write(np.array(pending, entry).tobytes())
                    _sync(journal)
                    pending, since = [], 0
                on_client(split, client + 1, source.num_clients)
        done = np.fromfile(folder / _JOURNAL, entry)
        np.save(folder / "counts.npy", done["count"].astype(np.int32))
        np.save(folder / "checksums.npy", done["checksums"].astype(np.uint32))
    write_text(folder / "clients.json", json.dumps(list(source.client_ids)))


def _written(folder: Path, fields: list[Field], entry: np.dtype) -> np.ndarray:
    """The entries of the clients that were written; what was written after them is cut off."""
    journal = folder / _JOURNAL
    journal.touch()
    whole = journal.stat().st_size // entry.itemsize
    done = np.fromfile(journal, entry, whole)
    for number, field in enumerate(fields):
        lengths = {"data": int(done["bytes"][:, number].sum())}
        if field.image is not None:
            lengths["ends"] = 8 * int(done["count"].sum())
        for suffix, length in lengths.items():
            path = folder / f"{field.name}.{suffix}"
            path.touch()
            if path.stat().st_size < length:
                raise ValueError(f"{path} is shorter than was written; remove {folder.parent}")
            os.truncate(path, length)
    os.truncate(journal, whole * entry.itemsize)
    return done


def _encoded(source, client, fields, num_classes):
    """The number of a client's examples, and for each field its bytes in parts."""
    stored, count = source.read(client), int(source.counts[client])
    where = f"{source.name}: client {source.client_ids[client]!r}"
    parts = []
    for field in fields:
        values = stored[field.name]
        if len(values) != count:
            raise ValueError(f"{where} has {len(values)} examples of {field.name}, not {count}")
        if field.image is not None:
            parts.append(list(values))
            continue
        array = np.asarray(values)
        if array.shape[1:] != field.shape or array.dtype.newbyteorder("<") != field.dtype:
            raise ValueError(
                f"{where} has {field.name} of {array.dtype}{list(array.shape[1:])}, not "
                f"{field.dtype}{list(field.shape)}"
            )
        _check_values(array, field.name, where, num_classes)
        parts.append([np.ascontiguousarray(array, field.dtype).reshape(-1).view(np.uint8)])
    return count, parts


def _check_values(array, name, where, num_classes):
    """Raises ValueError for numbers that are not finite, and labels that are no classes."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{where} has NaN or infinity in {name}; clean it first")
    if name == "y" and num_classes is not None and array.size and array.dtype.kind in "ui":
        low, high = array.min(), array.max()
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"{where} has label {low if low < 0 else high}; give whole numbers from 0 to "
                f"{num_classes - 1}"
            )


def _sync(file):
    file.flush()
    os.fsync(file.fileno())
