"""Reader of the handwritten digits that scikit-learn contains."""

import numpy as np

from fedjax_algos.data.dataset import Dataset
from fedjax_algos.data.registry import datasets


@datasets.register
def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, scaled to 0..1; no download.

    "x" is float32[n, 64]. Every fifth example of each class, in the order of the file, is in the
    test set (364 examples), so the split is the same for all seeds.
    """
    from sklearn.datasets import load_digits  # slow to import

    images, labels = load_digits(return_X_y=True)
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[::5]] = True
    examples = {"x": (images / 16).astype(np.float32), "y": labels.astype(np.int32)}
    train, held_out = ({k: v[rows] for k, v in examples.items()} for rows in (~test, test))
    return Dataset(train, held_out, num_classes=10)
