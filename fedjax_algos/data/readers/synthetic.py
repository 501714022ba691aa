"""Data that need no file."""

from typing import Annotated

import numpy as np

from fedjax_algos.core.registry import NonNegative, Range
from fedjax_algos.data.dataset import Count, Dataset, Fraction, datasets, from_arrays

FEATURES, CLASSES = 60, 10


@datasets
def synthetic(
    *,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    clients: Count = 30,
    iid: bool = False,
    train_fraction: Fraction = 0.9,
    seed: Annotated[int, Range(0)] = 0,
) -> Dataset:
    """FedProx's synthetic(alpha, beta): logistic regression with a model and inputs of each client.

    For client k: n_k = floor(LogNormal(4, 2)) + 50; u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1);
    B_k ~ N(0, beta), v_k ~ N(B_k, 1), x ~ N(v_k, diag(j^-1.2)), y = argmax(W_k x + b_k), where
    the second parameter is the standard deviation. "x" is float32[n, 60], "y" 0 to 9. The first
    floor(train_fraction * n_k) of a client are its training examples; the test set is that of all.

    Args:
      alpha: how much the clients' models differ.
      beta: how much their inputs differ.
      clients: their number.
      iid: one W, b ~ N(0, 1) for all clients, and v_k = 0; alpha and beta are then without effect.
      train_fraction: of each client's examples.
      seed: of the data. It is not that of a run, so all runs share the data.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks"
    (https://arxiv.org/abs/1812.06127), 5.1, and https://github.com/litian96/FedProx. The paper
    writes N(0, alpha) without saying whether alpha is the variance; as in that code it is the
    standard deviation. Deviations from the code: other random numbers; no shuffle before the split,
    since the draws of a client are exchangeable; and at least one training and one test example
    of each client, whatever the fraction.
    """
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
    return from_arrays(
        x[~test], y[~test], x[test], y[test], users, num_classes=CLASSES, source="synthetic"
    )
