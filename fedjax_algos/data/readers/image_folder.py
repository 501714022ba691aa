"""Readers of image folders that CSV files divide over clients: any folder, GLDv2, iNaturalist."""

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

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, read_file, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import AnyDataset, ClientDataset, ClientSource, datasets
from fedjax_algos.data.images import ImageFormat

PART = 256  # images read at once if the table has no clients
MAX_IMAGE_BYTES = 2**27  # of a file; larger ones are treated as errors
_ID = re.compile(r"\{id(?:\[(\d+)\])?\}")
_KIND = "a CSV file of examples"
_FIX = "write a header and one row for each example, or fetch the file again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@datasets.register
def image_folder(
    *,
    path: PathLike,
    train: str = "train.csv",
    test: str = "test.csv",
    file: str = "{id}.jpg",
    client_column: str = "user_id",
    image_column: str = "image_id",
    class_column: str = "class",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> ClientDataset:
    """Images in a folder that two CSV files divide over clients; read client by client.

    A row of the training file has a client, the id of an image and a class. A row of the test file
    has the same, or no client: test images are then read in parts of 256, as if these were clients.
    Clients and classes (of both files) are numbered in ascending order of their names. If all names
    are whole numbers, they are ordered as numbers, so classes 0 to K - 1 keep theirs. Other columns
    are not read. An image is scaled to `shorter_side` and its middle is cut out: "x" is
    uint8[n, image_size, image_size, 3]. A missing image is found when it is read.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder.
      file: the path of an image in the folder, for JPEG or PNG files. `{id}` stands for the image's
        id, `{id[0]}` for its first character, and `*` for any folder, as in `*/{id}.jpg`.
      client_column, image_column, class_column: the names of the columns.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of a whole image's shorter side, at least `image_size`.
      min_examples: training clients with fewer images are left out and counted in `notes`.
    """
    image_format = ImageFormat(image_size, image_size, 3, shorter_side)
    tables = (
        read_table(Path(path, train), (client_column, image_column, class_column)),
        read_table(Path(path, test), (image_column, class_column), (client_column,)),
    )
    classes = in_order(name for table in tables for name in table.columns[class_column])
    ids = [table.columns[image_column] for table in tables]
    files = ImageFiles(path, file, [*ids[0], *ids[1]])
    sources, notes = [], list[str]()
    for table, fewest in zip(tables, (min_examples, 1), strict=True):
        labels = numbered(table.columns[class_column], classes)
        client = client_column if client_column in table.columns else ""
        facts = image_format, image_column, client, fewest
        source, left_out = image_source(table, files, labels, *facts)
        sources.append(source)
        notes += left_out
    if in_both := set(ids[0]) & set(ids[1]):
        notes.append(f"{len(in_both)} images are in the training and in the test file")
    return ClientDataset(sources[0], sources[1], len(classes), tuple(notes))


@datasets.register
def gldv2(
    *,
    path: PathLike,
    train: str = "federated_train.csv",
    test: str = "test.csv",
    file: str = "{id[0]}/{id[1]}/{id[2]}/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> AnyDataset:
    """Landmarks-User-160k: photos of the Google Landmarks Dataset v2, by photographer.

    1,262 photographers have 164,172 photos of 2,028 landmarks. The folder has the images as in the
    data set's archives, and the split's CSV files. They are read as by `image_folder`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder: `mini_gld_train_split.csv` and `mini_gld_test.csv`
        are TensorFlow Federated's part with 233 photographers, 23,080 photos and 203 landmarks.
      file: the path of an image, as in `image_folder`; `{id}.jpg` if all are in one folder.
      image_size, shorter_side, min_examples: as in `image_folder`.

    Source: Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data Distribution",
    ECCV 2020, https://arxiv.org/abs/2003.08082; the files of the split are linked from
    https://github.com/google-research/google-research/tree/master/federated_vision_datasets. That
    page gives 1,062 photographers, TensorFlow Federated has 1,262. TensorFlow Federated leaves out
    missing images; here they are an error.
    """
    return image_folder(
        path=path, train=train, test=test, file=file, image_size=image_size,
        shorter_side=shorter_side, min_examples=min_examples,
    )  # fmt: skip


@datasets.register
def inaturalist(
    *,
    path: PathLike,
    train: str = "federated_train_user_120k.csv",
    test: str = "test.csv",
    file: str = "train_val_images/*/*/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> AnyDataset:
    """iNaturalist-User-120k: photos of plants and animals of iNaturalist 2017, by photographer.

    9,275 photographers have 120,300 photos of 1,203 species; the test set has 35,641 photos. The
    folder has the extracted `train_val_images` and the split's CSV files. These do not give an
    image's folder, so all folders are listed once, when the first image is read. Classes are in the
    column `class`; `label` has the competition's. Files are read as by `image_folder`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder; iNaturalist-Geo's files divide by place.
      file, image_size, shorter_side, min_examples: as in `image_folder`.

    Source: as for `gldv2`; the images are linked from
    https://github.com/visipedia/inat_comp/tree/master/2017.
    """
    return image_folder(
        path=path, train=train, test=test, file=file, image_size=image_size,
        shorter_side=shorter_side, min_examples=min_examples,
    )  # fmt: skip


class Table(NamedTuple):
    """Columns of a CSV file with at least one row; no field is empty."""

    name: str  # the path of the file, for messages
    columns: dict[str, list[str]]  # by name, the text of each row
    digest: str  # SHA-256 of the file in hexadecimal digits

    def where(self, column: str, value: str) -> "Table":
        """Selects the rows with a value in a column; ValueError if none has it."""
        kept = [row for row, found in enumerate(self.columns[column]) if found == value]
        with reading(self.name, _KIND, _FIX):
            require(kept, f"it has no row with {column}={value}")
        columns = {name: [texts[row] for row in kept] for name, texts in self.columns.items()}
        return self._replace(columns=columns)


def read_table(
    path: PathLike,
    required: Collection[str],
    optional: Collection[str] = (),
    *,
    others: bool = False,
    separator: str = ",",
) -> Table:
    """Reads the named columns, or all if `others`, of a CSV file in UTF-8 with a header."""
    with reading(path, _KIND, _FIX, csv.Error):
        content = read_file(path)
        lines = io.StringIO(content.decode("utf-8-sig"), newline="")
        rows = csv.DictReader(lines, strict=True, delimiter=separator)
        header = list(rows.fieldnames or [])
        shown = printable(", ".join(header), 200)
        for column in required:
            fix = f"name one of these{', or give another separator' * others}"
            require(column in header, f"it has no column {column!r}, only {shown}; {fix}")
        named = header if others else [c for c in (*required, *optional) if c in header]
        columns: dict[str, list[str]] = {column: [] for column in named}
        for column in columns:
            require(header.count(column) == 1, f"it has the column {column!r} twice")
        for row in rows:
            fits = None not in row and None not in row.values()
            require(fits, f"line {rows.line_num} has not {len(header)} fields, one for each column")
            for column, texts in columns.items():
                texts.append(row[column])
                fix = "fill it in, or leave the line out"
                require(texts[-1], f"line {rows.line_num} has no {column}; {fix}")
        require(all(columns.values()), "it has no row below the header")
    return Table(printable(os.fspath(path)), columns, hashlib.sha256(content).hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts the distinct names: as numbers if all are whole numbers ("07" is a text)."""
    distinct = set(names)
    numbers = all(map(_NUMBER.fullmatch, distinct))
    return sorted(distinct, key=int if numbers else None)


def numbered(names: list[str], order: list[str]) -> np.ndarray:
    """Returns int32[names]: the place of each name in an order that has them all."""
    places = {name: place for place, name in enumerate(order)}
    return np.array([places[name] for name in names], np.int32)


def class_numbers(table: Table, column: str, num_classes: int) -> np.ndarray:
    """Returns a column of classes as int32[rows]; ValueError unless all are below num_classes."""
    known = set(map(str, range(num_classes)))
    with reading(table.name, _KIND, f"give whole numbers from 0 to {num_classes - 1}"):
        for row, value in enumerate(table.columns[column]):
            require(value in known, f"row {row} has {column}={value[:50]}")
    return np.array(table.columns[column], np.int32)


class ImageFiles:
    """The paths of images by id, below one folder. With `*`, the first read lists the folder."""

    def __init__(self, folder: PathLike, pattern: str, ids: Sequence[str]):
        self.folder, self.pattern, self._lock = Path(folder), pattern, threading.Lock()
        searched, fields = "*" in pattern, _ID.findall(pattern)
        *folders, name = pattern.split("/")
        once = _ID.findall(name) == fields == [""] and "*" not in name
        whole = all(part == "*" or "*" not in part for part in folders)
        fits = "" in fields and not _leaves(pattern) and (not searched or (once and whole))
        fix = "give one such as {id}.jpg, {id[0]}/{id}.jpg or */{id}.jpg"
        require(fits, f"file={pattern!r} is not a path of an image; {fix}")
        longest = max((int(field) for field in fields if field), default=-1)
        self._paths: dict[str, str] = {}  # by id
        with reading(self.folder, "the folder of the images", "correct the table"):
            for each in ids:
                bad = len(each) <= longest or (searched and "/" in each)
                path = pattern if bad else _ID.sub(functools.partial(_part, each), pattern)
                bad = bad or _leaves(each if searched else path)
                require(not bad, f"'{each[:80]}' is not an id of an image with file={pattern!r}")
                self._paths[each] = path

    def read(self, image: str, owner: str) -> bytes:
        """Reads an image's file; `owner` is its client, for messages."""
        shown = self.path_of(image)
        with reading(f"{self.folder}: {owner}, {shown}", "an image", "fetch the file again"):
            return read_file(self.folder / shown, MAX_IMAGE_BYTES)

    def path_of(self, image: str) -> str:
        """Returns an image's path in the folder; the path of a missing image keeps its `*`."""
        with self._lock:  # several threads read
            return self._found.get(image, self._paths[image])

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        """The path of each image found by listing the folders."""
        found: dict[str, str] = {}
        if "*" not in self.pattern:
            return found
        *folders, name = self.pattern.split("/")
        before, after = name.split("{id}")
        parts = [part if part == "*" else glob.escape(part) for part in folders]
        wanted = "/".join([*parts, f"{glob.escape(before)}*{glob.escape(after)}"])
        with reading(self.folder, "a folder with each image once", "remove one"):
            for path in glob.iglob(wanted, root_dir=self.folder):
                image = os.path.basename(path)[len(before) : -len(after) or None]
                first = found.setdefault(image, path) if image in self._paths else path
                require(first == path, f"the image {image} is there twice, as {first} and {path}")
        return found


def _part(image: str, field: re.Match) -> str:
    """Returns the value of `{id}` or `{id[0]}`."""
    return image[int(field[1])] if field[1] else image


def _leaves(path: str) -> bool:
    """Returns True if a path may lead out of its folder, or is not valid."""
    return "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/"))


def image_source(
    table: Table,
    files: ImageFiles,
    labels: np.ndarray,
    image_format: ImageFormat,
    image: str,
    client: str,
    min_examples: int = 1,
) -> tuple[ClientSource, tuple[str, ...]]:
    """Makes a source of a table's images with labels int32[rows], and notes of what is left out."""
    # if the table has no clients (`client` is ""), each PART rows are read like one
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
    few = f"clients have fewer than {min_examples} examples and are left out"
    lost = f"{len(ids) - counts[kept].sum()} of {len(ids)} examples"
    left_out = len(names) - len(kept)
    notes = (f"{left_out} of {len(names)} {few}, with {lost}",) * (left_out > 0)

    def read(number: int) -> dict[str, Any]:
        own, name = rows[kept[number]], printable(names[kept[number]], 80)
        contents = [files.read(ids[row], f"client '{name}'") for row in own]
        return {"x": contents, "y": labels[own]}

    def image_name(number: int, of_client: int) -> str:
        return files.path_of(ids[rows[kept[number]][of_client]])

    classes = hashlib.sha256(labels.astype("<i4").tobytes()).hexdigest()
    facts = tuple(image_format), client or None, min_examples
    x, y = jax.ShapeDtypeStruct(image_format[:3], np.uint8), jax.ShapeDtypeStruct((), np.int32)
    ids_kept, sizes = [names[number] for number in kept], counts[kept].astype(np.int32)
    identity = " ".join(map(str, (table.digest, classes, files.pattern, *facts)))
    rest: Any = {"x": x, "y": y}, read, {"x": image_format}, identity, image_name
    return ClientSource(str(files.folder), ids_kept, sizes, *rest), notes
