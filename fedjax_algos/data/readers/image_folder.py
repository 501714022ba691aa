"""Readers of image folders that CSV files divide over clients: any folder, GLDv2, iNaturalist."""

import functools
import glob
import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, read_file, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import AnyDataset, ClientDataset, ClientSource, datasets
from fedjax_algos.data.images import ImageFormat, square
from fedjax_algos.data.readers.tables import Table, in_order, numbered, read_table

PART = 256  # images read at once if the table has no clients
MAX_IMAGE_BYTES = 2**27  # of a file; larger ones are treated as errors
_ID = re.compile(r"\{id(?:\[(\d+)\])?\}")
_SEARCHED = re.compile(r"((\*|[^*/]*)/)*[^*/]*\{id\}[^*/]*")  # the form of a path with `*`


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
    """
    image_format = square(image_size, shorter_side)
    train_table = read_table(Path(path, train), (client_column, image_column, class_column))
    test_table = read_table(Path(path, test), (image_column, class_column), (client_column,))
    tables = train_table, test_table
    classes = in_order(name for table in tables for name in table.columns[class_column])
    ids = [table.columns[image_column] for table in tables]
    files = ImageFiles(path, file, [*ids[0], *ids[1]])
    sources = []
    for table in tables:
        labels = numbered(table.columns[class_column], classes)
        client = client_column if client_column in table.columns else ""
        sources.append(image_source(table, files, labels, image_format, image_column, client))
    both = len(set(ids[0]) & set(ids[1]))
    notes = (f"{both} images are in the training and in the test file",) * (both > 0)
    return ClientDataset(sources[0], sources[1], len(classes), notes)


@datasets.register
def gldv2(
    *,
    path: PathLike,
    train: str = "federated_train.csv",
    test: str = "test.csv",
    file: str = "{id[0]}/{id[1]}/{id[2]}/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
) -> AnyDataset:
    """Landmarks-User-160k: photos of the Google Landmarks Dataset v2, by photographer.

    1,262 photographers have 164,172 photos of 2,028 landmarks. The folder has the images as in the
    data set's archives, and the split's CSV files. They are read as by `image_folder`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder: `mini_gld_train_split.csv` and `mini_gld_test.csv`
        are TensorFlow Federated's part with 233 photographers, 23,080 photos and 203 landmarks.
      file: the path of an image, as in `image_folder`; `{id}.jpg` if all are in one folder.
      image_size, shorter_side: as in `image_folder`.

    Source: Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data Distribution",
    ECCV 2020, https://arxiv.org/abs/2003.08082; the files of the split are linked from
    https://github.com/google-research/google-research/tree/master/federated_vision_datasets. That
    page gives 1,062 photographers, TensorFlow Federated has 1,262. TensorFlow Federated leaves out
    missing images; here they are an error.
    """
    sizes: Any = {"image_size": image_size, "shorter_side": shorter_side}
    return image_folder(path=path, train=train, test=test, file=file, **sizes)


@datasets.register
def inaturalist(
    *,
    path: PathLike,
    train: str = "federated_train_user_120k.csv",
    test: str = "test.csv",
    file: str = "train_val_images/*/*/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
) -> AnyDataset:
    """iNaturalist-User-120k: photos of plants and animals of iNaturalist 2017, by photographer.

    9,275 photographers have 120,300 photos of 1,203 species; the test set has 35,641 photos. The
    folder has the extracted `train_val_images` and the split's CSV files. These do not give an
    image's folder, so all folders are listed once, when the first image is read. Classes are in the
    column `class`; `label` has the competition's. Files are read as by `image_folder`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder; iNaturalist-Geo's files divide by place.
      file, image_size, shorter_side: as in `image_folder`.

    Source: as for `gldv2`; the images are linked from
    https://github.com/visipedia/inat_comp/tree/master/2017.
    """
    sizes: Any = {"image_size": image_size, "shorter_side": shorter_side}
    return image_folder(path=path, train=train, test=test, file=file, **sizes)


class ImageFiles:
    """The paths of images by id, below one folder. With `*`, the first read lists the folder."""

    def __init__(self, folder: PathLike, pattern: str, ids: Sequence[str]):
        self.folder, self.pattern, self._lock = Path(folder), pattern, threading.Lock()
        searched = _SEARCHED.fullmatch(pattern) and _ID.findall(pattern) == [""]
        fits = searched if "*" in pattern else "{id}" in pattern
        fix = "give one such as {id}.jpg, {id[0]}/{id}.jpg or */{id}.jpg"
        valid = fits and not _leads_out(pattern)
        require(valid, f"file={pattern!r} is not a path of an image; {fix}")
        self._paths: dict[str, str] = {}  # by id
        with reading(self.folder, "the folder of the images", "correct the table"):
            for each in ids:
                self._paths[each] = path = _ID.sub(functools.partial(_part, each), pattern)
                message = f"'{each[:80]}' is not an id of an image with file={pattern!r}"
                require(not _leads_out(path), message)

    def read(self, image: str, owner: str) -> bytes:
        """Reads an image's file; `owner` is its client, for messages."""
        path = self.path_of(image)
        with reading(f"{self.folder}: {owner}, {path}", "an image", "fetch the file again"):
            return read_file(self.folder / path, MAX_IMAGE_BYTES)

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
        search = "/".join([*parts, f"{glob.escape(before)}*{glob.escape(after)}"])
        with reading(self.folder, "a folder with each image once", "remove one"):
            for path in glob.iglob(search, root_dir=self.folder):
                image = os.path.basename(path)[len(before) : -len(after) or None]
                first = found.setdefault(image, path) if image in self._paths else path
                require(first == path, f"the image {image} is there twice, as {first} and {path}")
        return found


def _part(image: str, field: re.Match) -> str:
    r"""Returns the text of `{id}` or `{id[0]}`; "\0", which no path may have, for a short id."""
    return image[int(field[1]) :][:1] or "\0" if field[1] else image


def _leads_out(path: str) -> bool:
    """Returns True if a path may lead out of its folder, or is not valid."""
    return "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/"))


def image_source(
    table: Table,
    files: ImageFiles,
    labels: np.ndarray,
    image_format: ImageFormat,
    image: str,
    client: str,
) -> ClientSource:
    """Makes a source of a table's images with labels int32[rows]."""
    # if the table has no clients (`client` is ""), each PART rows are read like one
    ids = table.columns[image]
    owners = table.columns[client] if client else [""] * len(ids)
    with reading(table.name, "a table of images", "remove a row"):
        for (owner, each), number in Counter(zip(owners, ids, strict=True)).items():
            require(number == 1, f"client '{owner[:80]}' has the image '{each[:80]}' twice")
    if not client:
        owners = [f"part {row // PART}" for row in range(len(ids))]
    names = in_order(owners) if client else list(dict.fromkeys(owners))
    numbers = numbered(owners, names)
    counts = np.bincount(numbers).astype(np.int32)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])

    def read(number: int) -> dict[str, Any]:
        name = printable(names[number], 80)
        contents = [files.read(ids[row], f"client '{name}'") for row in rows[number]]
        return {"x": contents, "y": labels[rows[number]]}

    def image_name(number: int, image_number: int) -> str:
        return files.path_of(ids[rows[number][image_number]])

    classes = hashlib.sha256(labels.astype("<i4").tobytes()).hexdigest()
    facts = table.digest, classes, files.pattern, tuple(image_format), client or None
    x, y = jax.ShapeDtypeStruct(image_format[:3], np.uint8), jax.ShapeDtypeStruct((), np.int32)
    rest: Any = {"x": x, "y": y}, read, {"x": image_format}, " ".join(map(str, facts)), image_name
    return ClientSource(str(files.folder), names, counts, *rest)
