"""Fashion-MNIST's T-shirts, pullovers and shirts: three classes, of which each is a client.

COMMAND   python experiments/papers/claims.py run fairness/fashion_mnist_afl
EXPECTED  results/papers/three_classes.npz, with 18,000 training and 3,000 test images
TIME      a few seconds
"""

from pathlib import Path

import numpy as np

CLASSES = (0, 2, 6)  # of T-shirts, pullovers and shirts


def make():
    with np.load("data/fashion_mnist.npz") as file:
        arrays = dict(file)
    found = {}
    for part in ("train", "test"):
        labels = arrays[f"y_{part}"]
        chosen = np.isin(labels, CLASSES)
        found[f"x_{part}"] = arrays[f"x_{part}"][chosen]
        found[f"y_{part}"] = np.searchsorted(CLASSES, labels[chosen])
    path = Path("results/papers/three_classes.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **found, user_train=found["y_train"])
