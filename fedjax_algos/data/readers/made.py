"""Data sets that need no file: scikit-learn's digits and FedProx's synthetic data."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.base.limits import check_memory
from fedjax_algos.core.options import Count, NonNegative, NumpySeed, Proportion
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets

FEATURES, CLASSES = 60, 10


@datasets.register
def synthetic(
    *,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    clients: Count = 30,
    iid: bool = False,
    train_fraction: Proportion = 0.9,
    seed: NumpySeed = 0,
) -> Dataset:
    """FedProx's synthetic(alpha, beta): logistic regression; models and inputs differ by client.

    For client k: n_k = floor(LogNormal(4, 2)) + 50; u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1);
    B_k ~ N(0, beta), v_k ~ N(B_k, 1), x ~ N(v_k, diag(j^-1.2)), y = argmax(W_k x + b_k), where
    the second parameter is the standard deviation. "x" is float32[n, 60], "y" 0 to 9. The first
    floor(train_fraction * n_k) examples of a client are its training examples; the test set
    contains the others of all clients.

    Args:
      alpha: standard deviation of the u_k, at least 0: how much the clients' models differ.
      beta: standard deviation of the B_k, at least 0: how much the clients' inputs differ.
      clients: the number of natural clients, at least 1.
      iid: whether all clients have one W, b ~ N(0, 1), and v_k = 0. Then alpha and beta have no
        effect.
      train_fraction: the share of each client's examples used for training, between 0 and 1.
      seed: the seed of the data, at least 0. All runs share the data, whatever their seeds.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks"
    (https://arxiv.org/abs/1812.06127), 5.1, and https://github.com/litian96/FedProx. The paper
    writes N(0, alpha) without saying whether alpha is the variance; as in its code, it is the
    standard deviation. Deviations from the code: other random numbers; no shuffle before the split,
    because a client's draws are exchangeable; each client has at least one example in both sets.
    """
    smallest = clients * 50 * FEATURES * 4  # a client has at least 50 examples
    check_memory(f"clients={clients}", smallest, "give fewer clients")
    rng = np.random.default_rng(seed)
    counts = rng.lognormal(4, 2, clients).astype(int) + 50
    trains = np.clip((train_fraction * counts).astype(int), 1, counts - 1)
    deviations = np.arange(1, FEATURES + 1) ** -0.6
    shared = rng.normal(size=(FEATURES + 1, CLASSES))
    x = np.empty((counts.sum(), FEATURES), np.float32)
    y = np.empty(len(x), np.int32)
    test = np.zeros(len(x), bool)
    stop = 0
    for count, train in zip(counts, trains, strict=True):
        start, stop = stop, stop + count
        model = shared if iid else rng.normal(rng.normal(0, alpha), 1, shared.shape)
        center = 0.0 if iid else rng.normal(rng.normal(0, beta), 1, FEATURES)
        inputs = center + deviations * rng.normal(size=(count, FEATURES))
        x[start:stop] = inputs
        y[start:stop] = (inputs @ model[:-1] + model[-1]).argmax(1)
        test[start + train : stop] = True
    users = np.repeat(np.arange(clients), trains)
    arrays = x[~test], y[~test], x[test], y[test], users
    return from_arrays(*arrays, num_classes=CLASSES, source="synthetic")


@datasets.register
def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, scaled to 0..1; no download.

    "x" is float32[n, 64]. Every fifth example of each class, in the file's order, is in the test
    set (364 examples), so the split is the same for all seeds.
    """
    spec: Any = find_spec("sklearn")  # importing the package is slow
    file = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(file, delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[::5]] = True
    examples = {"x": (images / 16).astype(np.float32), "y": labels.astype(np.int32)}
    train, held_out = ({k: v[rows] for k, v in examples.items()} for rows in (~test, test))
    return Dataset(train, held_out, num_classes=10)
