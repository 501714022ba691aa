"""Fashion-MNIST's T-shirts, pullovers and shirts: three classes, of which each is a client.

COMMAND   python experiments/papers/claims.py run fairness/fashion_mnist_afl
EXPECTED  results/papers/three_classes.npz, with 18,000 training and 3,000 test images, and
          results/papers/three_classes_standardised.npz, with the same, standardised pixel by pixel
TIME      a few seconds
"""

from pathlib import Path

import numpy as np

CLASSES = (0, 2, 6)  # of T-shirts, pullovers and shirts


def make():
    """Also a file whose pixels have mean 0 and variance 1 over all images, as in the code."""
    with np.load("data/fashion_mnist.npz") as file:
        arrays = dict(file)
    whole = arrays["x_train"].astype(np.float32)
    mean, deviation = whole.mean(0), whole.std(0) + 0.001
    found = {}
    for part in ("train", "test"):
        labels = arrays[f"y_{part}"]
        chosen = np.isin(labels, CLASSES)
        found[f"x_{part}"] = arrays[f"x_{part}"][chosen]
        found[f"y_{part}"] = np.searchsorted(CLASSES, labels[chosen])
    folder, users = Path("results/papers"), {"user_train": found["y_train"]}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "three_classes.npz", **found, **users)
    for name in ("x_train", "x_test"):
        found[name] = (found[name] - mean) / deviation
    np.savez(folder / "three_classes_standardised.npz", **found, **users)
