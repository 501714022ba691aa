"""Readers of data sets; every one ends in plain arrays for the flat store."""

from typing import NamedTuple

import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.registry import Registry

datasets = Registry("dataset")


class Dataset(NamedTuple):
    """Labelled examples: batches are dicts of "x" [examples, ...] and "y" int32[examples]."""

    train: Batch
    test: Batch
    num_classes: int

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self.train["x"].shape[1:]


@datasets
def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, scaled to 0..1; no download.

    Every fifth example of each class, in the order of the file, is the test set (362 examples), so
    the split is the same for all seeds.
    """
    from sklearn.datasets import load_digits  # heavy to import, and only needed here

    images, labels = load_digits(return_X_y=True)
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[::5]] = True
    examples = {"x": (images / 16).astype(np.float32), "y": labels.astype(np.int32)}
    train, held_out = ({k: v[rows] for k, v in examples.items()} for rows in (~test, test))
    return Dataset(train, held_out, num_classes=10)
