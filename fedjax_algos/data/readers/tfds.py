"""Reader, without TensorFlow, of data sets that TensorFlow Datasets (TFDS) has prepared."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.files import PathLike, check_array_bytes, reading, require_regular_below
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.readers.texts import most_frequent_words, read_vocabulary

_KIND = "a data set of TFDS that fits"


@datasets.register
def tfds(
    *,
    name: str,
    data_dir: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
    x: str | None = None,
    y: str | None = None,
    users: str | None = None,
    vocabulary: PathLike | None = None,
    words: Count = 10_000,
    length: Count = 20,
) -> Dataset:
    """A data set of TensorFlow Datasets, such as mnist, emnist/balanced or ag_news_subset.

    Reading needs no TensorFlow and downloads nothing. The data set must have been prepared once, as
    array_record or parquet; TFDS needs TensorFlow for this if it encodes images. TFRecord files are
    converted by `tfds convert_format`, where TensorFlow is installed.

    "x" has the dtype and shape of its feature: images are uint8[n, height, width, channels]. Texts
    become int32[n, length], the ids of their words as in `tff_sqlite`.

    Args:
      name: as in TFDS: a name, name/config or name:version.
      data_dir: the folder of TFDS' data sets; TFDS' own default if None.
      train_split, test_split: names of splits, or slices such as train[:80%].
      x: the examples' feature, of one shape; the data set's own input if None, else `image`.
      y: the labels' feature; the data set's own label if None, else `label`.
      users: the feature of each training example's natural client, numbers or texts, if any.
      vocabulary: a file with a word in each line, the most frequent first. None for the most
        frequent words of the training texts; equally frequent words are in the order of the texts.
      words: the largest number of words in the vocabulary.
      length: the length of a text, in words; longer texts are cut, shorter ones padded with 0.

    Source: https://www.tensorflow.org/datasets.
    """
    tensorflow_datasets = needed("tensorflow_datasets", "tfds", " array-record pillow")
    where, place = (f", data_dir={data_dir!r}", f" in {data_dir}") if data_dir else ("", "")
    prepare = (
        f"prepare it once, with TensorFlow: tensorflow_datasets.builder({name!r}{where}, "
        "file_format='array_record').download_and_prepare(), or convert it: "
        "tfds convert_format --dataset_version_dir=FOLDER --out_file_format=array_record"
    )
    source = f"tfds {name}{place}"
    # TFDS and its dependencies raise many types
    with reading(source, _KIND, "check the names", Exception):
        if data_dir is not None:
            require_regular_below(Path(data_dir, re.split(r"\W", name)[0]))
        builder = tensorflow_datasets.builder(name, data_dir=data_dir)
        keys = builder.info.supervised_keys or ("image", "label")
        names = [x or keys[0], y or keys[1], *([users] if users else [])]
        features = dict(builder.info.features)
        shapes: list[Any] = [getattr(features.get(feature), "shape", None) for feature in names]
        plain = None not in shapes and hasattr(features[names[0]], "np_dtype")
        fits = plain and None not in shapes[0] and all(each == () for each in shapes[1:])
        listed = ", ".join(f"{key} {one}" for key, one in features.items())[:500]
        needed_shapes = "the examples need one shape, and the others one value for each example"
        require(fits, f"{', '.join(names)} do not fit: {needed_shapes}; choose from {listed}")
        shape, dtype = shapes[0], np.dtype(features[names[0]].np_dtype)
    is_text = dtype == np.object_
    parts, owners = list[np.ndarray](), list[np.ndarray]()
    for split in (train_split, test_split):
        with reading(f"{source}, split {split}", _KIND, prepare, Exception):
            records = builder.as_data_source(split)
            size = 4 * (length + 1) if is_text else dtype.itemsize * math.prod(shape)
            total = sum(part.nbytes for part in parts) + size * len(records)
            check_array_bytes("its examples", total, "name a slice, such as train[:10%]")
            values = np.empty((len(records), *shape), dtype)
            rows = []
            for i, record in enumerate(records):
                values[i] = record[names[0]]
                rows.append([record[feature] for feature in names[1:]])
        parts += [values, np.array([row[0] for row in rows])]
        owners.append(np.array([row[-1] for row in rows]))
    if is_text:
        known = read_vocabulary(vocabulary, words) if vocabulary else None
        known = known or most_frequent_words(parts[0].tolist(), words)
        for i in (0, 2):
            parts[i] = known.sequences(parts[i].tolist(), length)[:, :-1]
    arrays: Any = *parts, owners[0] if users else None
    classes = getattr(features[names[1]], "num_classes", None)
    return from_arrays(*arrays, num_classes=classes, source=source)
