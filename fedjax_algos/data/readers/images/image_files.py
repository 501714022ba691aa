"""Folders of image files, and tables that say to which clients the images belong."""

import csv
import functools
import glob
import hashlib
import io
import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.core.files import PathLike, read_file, reading, require
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.federated_data import ClientSource
from fedjax_algos.data.images import ImageFormat

PART = 256  # images without clients that are read at once
MAX_IMAGE_BYTES = 2**27  # of a file; larger ones are treated as errors
_ID = re.compile(r"\{id(?:\[(\d+)\])?\}")
_KIND = "a CSV file of examples"
_FIX = "write a header and one row for each example, or fetch the file again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class Table(NamedTuple):
    """Some columns of a CSV file, which has at least one row.

    Attributes:
      name: the path of the file, for messages.
      columns: by name, the text of each row; none is empty.
      digest: SHA-256 of the file in hexadecimal digits.
    """

    name: str
    columns: dict[str, list[str]]
    digest: str

    def where(self, **values: str) -> "Table":
        """The rows that have these values by column; ValueError if there are none."""
        pairs = zip(*(self.columns[name] for name in values), strict=True)
        kept = [row for row, found in enumerate(pairs) if found == tuple(values.values())]
        wanted = ", ".join(f"{name}={value}" for name, value in values.items())
        with reading(self.name, _KIND, _FIX):
            require(kept, f"it has no row with {wanted}")
        columns = {name: [column[row] for row in kept] for name, column in self.columns.items()}
        return self._replace(columns=columns)


def read_table(path: PathLike, required: Collection[str], optional: Collection[str] = ()) -> Table:
    """Reads columns of a CSV file in UTF-8, whose first line has their names."""
    name = printable(os.fspath(path))
    with reading(path, _KIND, _FIX, csv.Error):
        content = read_file(path)
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        rows = csv.reader(text, strict=True)
        header = next(rows, [])
        shown = printable(", ".join(header), 200)
        for column in required:
            require(column in header, f"it has no column {column!r}, only {shown}")
        kept = {
            column: header.index(column) for column in (*required, *optional) if column in header
        }
        for column in kept:
            require(header.count(column) == 1, f"it has the column {column!r} twice")
        columns: dict[str, list[str]] = {column: [] for column in kept}
        for row in filter(None, rows):  # an empty line is no row
            fields = f"line {rows.line_num} has {len(row)} fields for {len(header)} columns"
            require(len(row) == len(header), fields)
            for column, place in kept.items():
                require(row[place], f"line {rows.line_num} has no {column}")
                columns[column].append(row[place])
        require(columns[next(iter(kept))], "it has no row below the header")
    return Table(name, columns, hashlib.sha256(content).hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """The distinct names, ascending: as numbers if all are whole numbers ("07" is none)."""
    distinct = set(names)
    if all(map(_NUMBER.fullmatch, distinct)):
        return sorted(distinct, key=int)
    return sorted(distinct)


def numbered(names: list[str], order: list[str]) -> np.ndarray:
    """int32[names]: the place of each name in an order that has them all."""
    places = {name: place for place, name in enumerate(order)}
    return np.array([places[name] for name in names], np.int32)


def class_numbers(table: Table, column: str, num_classes: int) -> np.ndarray:
    """int32[rows]: the classes in a column; ValueError unless they are 0 to num_classes - 1."""
    known = set(map(str, range(num_classes)))
    with reading(table.name, _KIND, f"give whole numbers from 0 to {num_classes - 1}"):
        for row, value in enumerate(table.columns[column]):
            require(value in known, f"row {row} has {column}={value[:50]}")
    return np.array(table.columns[column], np.int32)


class ImageFiles:
    """The paths of images by id, below one folder; ValueError for one that would leave it.

    In the pattern, `{id}` is an image's id, `{id[0]}` the first character of the id, and
    `*` for a folder of any name. With `*`, `{id}` is once in the name of the file, and the folders
    are listed when the first image is read.
    """

    def __init__(self, folder: PathLike, pattern: str, ids: Sequence[str]):
        self.folder, self.pattern = Path(folder), pattern
        self._searched, self._lock = "*" in pattern, threading.Lock()
        first, _, last = pattern.rpartition("/")
        fields = _ID.findall(pattern)
        once = _ID.findall(last) == fields == [""] and "*" not in last
        whole = all(part == "*" or "*" not in part for part in first.split("/"))
        if "" not in fields or _leaves(pattern) or (self._searched and not (once and whole)):
            raise ValueError(
                f"file={pattern!r} is no path of an image; give one such as {{id}}.jpg, "
                "{id[0]}/{id}.jpg or */{id}.jpg"
            )
        longest = max((int(field) for field in fields if field), default=-1)
        with reading(self.folder, "the folder of the images", "correct the table"):
            for each in ids:
                bad = len(each) <= longest or (self._searched and "/" in each)
                bad = bad or _leaves(each if self._searched else self._path(each))
                require(not bad, f"'{each[:80]}' is no id of an image with file={pattern!r}")
        self._ids = set(ids) if self._searched else set()

    def read(self, image: str, owner: str) -> bytes:
        """The content of an image's file; `owner` is its client, for messages."""
        shown = self.path_of(image)
        name = f"{self.folder}: {owner}, {shown}"
        with reading(name, "an image", "fetch the file again"):
            return read_file(self.folder / shown, MAX_IMAGE_BYTES)

    def path_of(self, image: str) -> str:
        """The path of an image in the folder; one that was not found keeps its `*`."""
        path = self._found().get(image, "") if self._searched else self._path(image)
        return path or self.pattern.replace("{id}", image)

    def _path(self, image: str) -> str:
        return _ID.sub(lambda field: image[int(field[1])] if field[1] else image, self.pattern)

    def _found(self) -> dict[str, str]:
        with self._lock:  # several threads read
            return self._index

    @functools.cached_property
    def _index(self) -> dict[str, str]:
        """The path of each image, found by listing the folders."""
        first, _, last = self.pattern.rpartition("/")
        before, after = last.split("{id}")
        folders = [part if part == "*" else glob.escape(part) for part in first.split("/")]
        wanted = "/".join([*folders, f"{glob.escape(before)}*{glob.escape(after)}"])
        found: dict[str, str] = {}
        with reading(self.folder, "a folder with each image once", "remove one"):
            for path in glob.iglob(wanted, root_dir=self.folder):
                image = os.path.basename(path)[len(before) : -len(after) or None]
                first = found.setdefault(image, path) if image in self._ids else path
                require(first == path, f"the image {image} is there twice, as {first} and {path}")
        return found


def _leaves(path: str) -> bool:
    """Whether a path may lead out of its folder, or is none."""
    parts = path.split("/")
    return "\0" in path or not {"", ".", ".."}.isdisjoint(parts)


def image_source(
    table: Table,
    files: ImageFiles,
    labels: np.ndarray,
    image_format: ImageFormat,
    *,
    image: str,
    client: str | None = None,
    min_examples: int = 1,
) -> tuple[ClientSource, tuple[str, ...]]:
    """The images of a table by client, and notes of what is left out.

    `labels` int32[rows] are the classes, and `image` and `client` name columns. Clients are
    numbered in ascending order, and those with fewer than `min_examples` rows are left out. In a
    table without clients, each `PART` rows are read like a client, such as "part 0".
    """
    ids = table.columns[image]
    owners = table.columns[client] if client else [""] * len(ids)
    times = Counter(zip(owners, ids, strict=True))
    with reading(table.name, _KIND, "remove a row"):
        for (owner, each), number in times.items():
            has = f"client '{owner[:80]}' has" if client else "it has"
            require(number == 1, f"{has} the image '{each[:80]}' twice")
    if client:
        names = in_order(owners)
    else:
        owners = [f"part {row // PART}" for row in range(len(ids))]
        names = list(dict.fromkeys(owners))
    numbers = numbered(owners, names)
    counts = np.bincount(numbers)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
    kept = np.flatnonzero(counts >= min_examples)
    with reading(table.name, _KIND, "lower min_examples"):
        require(len(kept), f"no client has min_examples={min_examples}, but at most {counts.max()}")
    notes: tuple[str, ...] = ()
    if len(kept) < len(names):
        lost = len(ids) - counts[kept].sum()
        notes = (
            f"{len(names) - len(kept)} of {len(names)} clients have fewer than {min_examples} "
            f"examples and are left out, with {lost} of {len(ids)} examples",
        )

    def read(number: int) -> dict[str, Any]:
        own, name = rows[kept[number]], printable(names[kept[number]], 80)
        contents = [files.read(ids[row], f"client '{name}'") for row in own]
        return {"x": contents, "y": labels[own]}

    def image_name(number: int, of_client: int) -> str:
        return files.path_of(ids[rows[kept[number]][of_client]])

    height, width, channels, _ = image_format
    classes = hashlib.sha256(labels.astype("<i4").tobytes()).hexdigest()
    example = {
        "x": jax.ShapeDtypeStruct((height, width, channels), np.uint8),
        "y": jax.ShapeDtypeStruct((), np.int32),
    }
    source = ClientSource(
        str(files.folder),
        [names[number] for number in kept],
        counts[kept].astype(np.int32),
        example,
        read,
        {"x": image_format},
        f"{table.digest} {classes} {files.pattern} {tuple(image_format)} {client} {min_examples}",
        image_name,
    )
    return source, notes
