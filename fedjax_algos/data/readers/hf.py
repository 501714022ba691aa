"""Reader of data sets with Hugging Face's package `datasets`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import ClientDataset, datasets
from fedjax_algos.data.images import ImageFormat, open_image, square
from fedjax_algos.data.readers.client_examples import ClientFeatures, client_dataset, file_identity
from fedjax_algos.data.readers.texts import most_frequent_words, read_vocabulary

_KIND = "a data set of this form"


@datasets.register
def hf(
    *,
    name: str,
    config: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
    x: str = "image",
    y: str | None = None,
    users: str | None = None,
    num_classes: Count | None = None,
    image_size: Count | None = None,
    shorter_side: Count | None = None,
    vocabulary: PathLike | None = None,
    words: Count = 10_000,
    length: Count | None = None,
) -> Dataset | ClientDataset:
    """A data set of Hugging Face, by its name, or from a folder or file on this machine.

    With `users`, each value of a column is a natural client. Its examples are read from the
    memory-mapped Arrow files when they are needed. Otherwise all examples are held in memory.

    Images become uint8[height, width, 3], or 1 channel if the first one is grey. Numbers keep their
    dtype, and texts become ids as in `tff_sqlite`. A data set's code is never run. The package
    downloads a data set that is not on this machine, and keeps its own copy of CSV and JSON files.

    Args:
      name: the name of the data set, such as ylecun/mnist; or a folder that `save_to_disk` has
        written, or that holds files such as train.parquet and test.parquet.
      config: the name of a configuration, if the data set has several.
      train_split, test_split: names of the splits.
      x: the examples' column.
      y: the labels' column. None for `label` or, for a text with `users` and no such column, the
        ids that follow. Labels that are texts are numbered in alphabetical order.
      users: a column of texts or whole numbers; clients are in the order of its values. A test
        split without this column is one client. None without natural clients.
      num_classes: None for the data set's own number, or else one more than the largest label.
      image_size: height and width, in pixels, of the middle that is cut out of each image; None if
        all images have the size of the first one.
      shorter_side: pixels of an image's shorter side before the cut; `image_size` if None.
      vocabulary: a file with a word in each line, the most frequent first. None for the training
        texts' most frequent words if there are labels, otherwise for sequences of characters.
      words: the largest number of words in the vocabulary.
      length: the length of a sequence, in words or characters; 20 words or 80 characters if None.

    Source: https://huggingface.co/docs/datasets.
    """
    huggingface, folder = needed("datasets", "hf"), Path(name)
    # the package and its dependencies raise many types
    with reading(f"hf {name}", "a data set", "check the name, or fetch it again", Exception):
        require(not folder.is_file(), "it is one file with one split; give a folder")
        files.require_regular_below(folder)
        if (folder / "dataset_dict.json").exists() and not (folder / "state.json").exists():
            loaded = huggingface.load_from_disk(name)
        else:
            loaded = huggingface.load_dataset(name, config)
        listed = ", ".join(map(str, loaded))[:200]
        for split in (train_split, test_split):
            require(split in loaded, f"it has no split {split!r}, only {listed}")
        both = train_rows, test_rows = loaded[train_split], loaded[test_split]
        y = "label" if y is None and "label" in train_rows.column_names else y
        if all(_is_text(rows.features.get(y)) for rows in both):
            labels = {text for rows in both for text in rows.unique(y) if text is not None}
            classes = huggingface.ClassLabel(names=sorted(labels))
            train_rows, test_rows = (rows.cast_column(y, classes) for rows in both)
    train = _features(train_rows, f"hf {name}, split {train_split}", users)
    in_test = users if users in test_rows.column_names else None
    test = _features(test_rows, f"hf {name}, split {test_split}", in_test)
    train.require(x)
    known = read_vocabulary(vocabulary, words) if vocabulary else None
    if _is_text(train_rows.features[x]) and y is not None and known is None:
        known = most_frequent_words(_values(train_rows.select_columns([x]), x, train.name), words)
    if y in train.features:
        num_classes = num_classes or getattr(train_rows.features[y], "num_classes", None)
    images = _image_format(train_rows, x, train.name, image_size, shorter_side)
    data = client_dataset(train, test, x, y, num_classes, known, length, image_format=images)
    if users:
        return data
    each, fix = data.train.example["x"], "give users=NAME or a smaller one"
    total = int(data.train.counts[0] + data.test.counts[0]) * each.size * each.dtype.itemsize
    files.check_array_bytes(f"{train.name}: its examples", total, fix)
    parts = [source.examples_of(0) for source in (data.train, data.test)]  # each of one client
    arrays = [part[key] for part in parts for key in ("x", "y")]
    return from_arrays(*arrays, num_classes=data.num_classes, source=train.name)


def _features(rows: Any, name: str, users: str | None) -> ClientFeatures:
    """Makes the columns features; a client's rows have the same value of `users`."""
    clients, numbers = np.array(["all"]), np.zeros(len(rows), int)
    if users is not None:
        with reading(name, _KIND, "choose another column", KeyError):
            values = np.asarray(rows.with_format("numpy", columns=[users])[:][users])
            plain = values.ndim == 1 and values.dtype.kind in "iuUS"
            require(plain, f"{users} is not a column of texts or whole numbers")
        clients, numbers = np.unique(values, return_inverse=True)
    counts = np.bincount(numbers, minlength=len(clients))
    order, ends = np.argsort(numbers, kind="stable"), np.cumsum(counts)

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        mine = order[ends[client] - counts[client] : ends[client]][:limit]
        where = f"{name}: client {clients[client]!s}"
        part = rows.select_columns(list(names)).select(mine)
        return {column: _values(part, column, where) for column in names}

    identity = [name, *(file_identity(file["filename"]) for file in rows.cache_files)]
    ids = [str(client) for client in clients]
    return ClientFeatures(name, ids, counts, rows.column_names, read, "; ".join(identity))


def _values(rows: Any, column: str, source: str) -> np.ndarray | list[bytes]:
    """Reads a column: an array [n, ...] of numbers, or a list of n texts or image files."""
    import datasets as huggingface

    feature = rows.features[column]
    fix = "choose another column, or clean it"
    # pyarrow raises many types
    with reading(f"{source}: {column}", "a column of examples", fix, Exception):
        is_image = isinstance(feature, huggingface.Image)
        if is_image or _is_text(feature):
            if is_image:
                rows = rows.cast_column(column, huggingface.Image(decode=False))
            values = list(rows[column])
            require(None not in values, "a value is missing")
            if not is_image:
                return [text.encode(errors="surrogatepass") for text in values]
            return [  # images stand in the table or in files of their own
                files.read_file(each["path"]) if each["bytes"] is None else each["bytes"]
                for each in values
            ]
        values = rows.with_format("numpy", columns=[column])[:][column]
        while hasattr(feature, "feature"):  # of a list
            feature = feature.feature
        kind = np.dtype(feature.dtype)
        require(values.dtype.kind != "f" or kind.kind == "f", "a number is missing")
        return values.astype(kind)  # the package makes int64 of all integers


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _image_format(
    rows: Any, x: str, source: str, image_size: int | None, shorter_side: int | None
) -> ImageFormat | None:
    """Returns the format of the decoded images; without a size, they are like the first one."""
    import datasets as huggingface
    from PIL import Image

    is_image, given = isinstance(rows.features[x], huggingface.Image), (image_size, shorter_side)
    with reading(source, _KIND, "give image_size, maybe with shorter_side, for images alone"):
        fits = given == (None, None) or (is_image and image_size is not None)
        require(fits, f"image_size={image_size} and shorter_side={shorter_side} with x={x}")
    if not is_image:
        return None
    (content,) = _values(rows.select([0]), x, source)
    with reading(f"{source}: image 0", "an image", "choose another", Image.DecompressionBombError):
        image = open_image(content, "JPEG", "PNG")
        channels = 1 if image.mode in ("1", "L") else 3
        if image_size is None:
            return ImageFormat(image.height, image.width, channels)
    whole = square(image_size, image_size if shorter_side is None else shorter_side)
    return whole._replace(channels=channels)
