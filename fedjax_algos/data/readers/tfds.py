"""Reader of data sets that TensorFlow Datasets (TFDS) has prepared, without TensorFlow."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.core.files import check_array_bytes, require_regular
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.read_errors import first_line, unreadable
from fedjax_algos.data.registry import datasets

_INSTALL = "run: pip install tensorflow-datasets array-record pillow"


@datasets.register
def tfds(
    *,
    name: str,
    data_dir: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
) -> Dataset:
    """An image data set of TensorFlow Datasets, such as mnist, cifar100 or emnist/balanced.

    It is read through `tfds.data_source`, which does not need TensorFlow, and nothing is
    downloaded. The data set must have been prepared once in the format array_record (or parquet);
    for that TFDS needs TensorFlow if it encodes images. "x" is uint8[n, height, width, channels].

    Args:
      name: as in TFDS: a name, name/config or name:version.
      data_dir: the folder of TFDS' data sets; TFDS' own default if None.
      train_split, test_split: names of splits, or slices such as train[:80%].

    Raises:
      ValueError: if the package is not installed, if the data set is not prepared, damaged or of
        another format, or if it does not consist of labelled images of one shape.

    Source: https://www.tensorflow.org/datasets.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ValueError(f"tfds needs the package tensorflow-datasets; {_INSTALL}") from error
    where = f", data_dir={data_dir!r}" if data_dir else ""
    prepare = (
        f"prepare it once, with TensorFlow: tensorflow_datasets.builder({name!r}{where}, "
        "file_format='array_record').download_and_prepare()"
    )
    source = f"tfds {name}" + f" in {data_dir}" * bool(data_dir)
    try:
        _require_regular_files(name, data_dir)
        builder = tensorflow_datasets.builder(name, data_dir=data_dir)
        prepared = builder.is_prepared()
        file_format, image, label = _format_and_features(builder.info)
    except Exception as error:  # TFDS and its dependencies raise many types
        raise unreadable(source, error, "check the name") from error
    if not prepared:
        raise ValueError(f"{source}: is not prepared; {prepare}")
    if file_format not in ("array_record", "parquet"):
        raise ValueError(
            f"{source}: has the format {file_format}, which only TensorFlow reads; remove it or "
            f"name another data_dir, and {prepare}"
        )
    if not image:
        raise ValueError(f"{source}: does not consist of labelled images; choose another")
    shape, classes = builder.info.features[image].shape, builder.info.features[label].num_classes
    if None in shape:
        raise ValueError(f"{source}: its images have several shapes, {shape}; choose another")
    parts: list[np.ndarray] = []
    size = math.prod(shape)
    for split in (train_split, test_split):
        try:
            records = builder.as_data_source(split)
            total = sum(part.nbytes for part in parts) + size * len(records)
            check_array_bytes("its images", total, "name a slice, such as train[:10%]")
            x = np.empty((len(records), *shape), np.uint8)
            y = np.empty(len(records), np.int32)
            for i, record in enumerate(records):
                x[i], y[i] = record[image], record[label]
        except ImportError as error:
            raise ValueError(f"{source}: {first_line(error)}; {_INSTALL}") from error
        except Exception as error:
            raise unreadable(f"{source}, split {split}", error, prepare) from error
        parts += [x, y]
    return from_arrays(*parts, num_classes=classes, source=source)


def _require_regular_files(name: str, data_dir: str | None) -> None:
    """Raises OSError if a pipe or a device is among the files of the data set."""
    folder = re.match(r"\w+", name)
    if data_dir is not None and folder is not None:
        for path in Path(data_dir, folder.group()).rglob("*"):
            require_regular(path)


def _format_and_features(info: Any) -> tuple[str, str, str]:
    """The file format, and the names of the image and its label, empty if there is none."""
    image, label = info.supervised_keys or ("image", "label")
    features = dict(info.features)
    labelled_images = (
        getattr(features.get(image), "np_dtype", None) == np.uint8
        and getattr(features.get(label), "num_classes", None) is not None
    )
    return info.file_format.value, *((image, label) if labelled_images else ("", ""))
