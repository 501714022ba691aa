"""Reader of what TensorFlow Datasets has prepared, without TensorFlow."""

from typing import Any

import numpy as np

from fedjax_algos.data.dataset import Dataset, datasets, from_arrays

_INSTALL = "run: pip install tensorflow-datasets array-record pillow"


@datasets
def tfds(
    *,
    name: str,
    data_dir: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
) -> Dataset:
    """An image set of TensorFlow Datasets by name, such as mnist, cifar100 or emnist/balanced.

    It is read through `tfds.data_source`, which needs no TensorFlow, and nothing is downloaded: the
    set has to be prepared once in the format array_record (or parquet), for which TFDS does need
    TensorFlow where a set encodes its images. "x" is uint8[n, height, width, channels].

    Args:
      name: as in TFDS: a name, name/config or name:version.
      data_dir: where TFDS keeps its sets; its own default where None.
      train_split, test_split: names of splits; slices such as train[:80%] are also possible.

    Raises:
      ValueError: if the package is not installed, the set is not prepared, is of another format or
        damaged, or is no set of labelled images of one shape.

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
        builder = tensorflow_datasets.builder(name, data_dir=data_dir)
        prepared, form, (image, label) = builder.is_prepared(), *_facts(builder.info)
    except Exception as error:  # TFDS and what it builds on raise many types
        raise _unreadable(source, error, "check the name") from error
    if not prepared:
        raise ValueError(f"{source}: is not prepared; {prepare}")
    if form not in ("array_record", "parquet"):
        raise ValueError(
            f"{source}: is of the format {form}, which only TensorFlow reads; remove it or name "
            f"another data_dir, and {prepare}"
        )
    if not image:
        raise ValueError(f"{source}: is no set of labelled images; choose another")
    shape, classes = builder.info.features[image].shape, builder.info.features[label].num_classes
    if None in shape:
        raise ValueError(f"{source}: its images have several shapes, {shape}; choose another")
    parts = []
    for split in (train_split, test_split):
        try:
            records = builder.as_data_source(split)
            x = np.empty((len(records), *shape), np.uint8)
            y = np.empty(len(records), np.int32)
            for i, record in enumerate(records):
                x[i], y[i] = record[image], record[label]
        except ImportError as error:
            raise ValueError(f"{source}: {_line(error)}; {_INSTALL}") from error
        except Exception as error:
            raise _unreadable(f"{source}, split {split}", error, prepare) from error
        parts += [x, y]
    return from_arrays(*parts, num_classes=classes, source=source)


def _facts(info: Any) -> tuple[str, tuple[str, str]]:
    """The file format, and the names of the image and of its label, empty where it has none."""
    image, label = info.supervised_keys or ("image", "label")
    features = dict(info.features)
    right = (
        getattr(features.get(image), "np_dtype", None) == np.uint8
        and getattr(features.get(label), "num_classes", None) is not None
    )
    return info.file_format.value, (image, label) if right else ("", "")


def _unreadable(source: str, error: Exception, fix: str) -> ValueError:
    return ValueError(f"{source}: cannot be read ({_line(error)}); {fix}")


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
