"""Perceptrons with hidden layers of another data set: MNIST's for Fashion-MNIST, and back.

COMMAND   none: `claims.py run` calls it before a claim with `prepare = "pretrained_layers.py"`
EXPECTED  results/papers/ghbm/hidden_of_mnist.npz and hidden_of_fashion_mnist.npz
TIME      a minute

A stand-in for the feature extractors that the GHBM paper's Figure 5 trains on CIFAR-100 for
CIFAR-10 and on CIFAR-10 for CIFAR-100. Each perceptron is trained on all training examples of its
data set: five epochs of SGD with rate .1 and batches of 64. The last layer is drawn anew.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos import data, models
from fedjax_algos.core import Problem

FOLDER = Path("results/papers/ghbm")
HIDDEN, EPOCHS, RATE, BATCH = 100, 5, 0.1, 64


def make() -> None:
    """Writes the hidden layers of both data sets."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("mnist", "fashion_mnist"):
        dataset = data.datasets["npz"](path=f"data/{name}.npz")
        x, y = np.asarray(dataset.train["x"]), np.asarray(dataset.train["y"])
        np.savez(FOLDER / f"hidden_of_{name}.npz", **_hidden_layer(x, y))


def _hidden_layer(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    problem = models.mlp(x.shape[1:], 10, hidden=HIDDEN)
    model = problem.init(jax.random.key(0))

    def loss(params, batch):
        outputs, _ = problem.apply(model._replace(params=params), batch, jax.random.key(0), True)
        return problem.loss(outputs, batch).mean()

    @jax.jit
    def epoch(params, batches):
        def step(params, batch):
            gradient = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), None

        return jax.lax.scan(step, params, batches)[0]

    random = np.random.default_rng(0)
    steps = len(y) // BATCH
    params = model.params
    for _ in range(EPOCHS):
        order = random.permutation(len(y))[: steps * BATCH].reshape(steps, BATCH)
        params = epoch(params, {"x": jnp.asarray(x[order]), "y": jnp.asarray(y[order])})
    return {key: np.asarray(value) for key, value in params["Dense_0"].items()}


def perceptron(example_shape: tuple[int, ...], num_classes: int, *, source: str) -> Problem:
    """A perceptron of 100 hidden units whose hidden layer starts as `source`'s.

    Args:
      example_shape: of one image.
      num_classes: number of labels.
      source: mnist or fashion_mnist.
    """
    problem = models.mlp(example_shape, num_classes, hidden=HIDDEN)
    with np.load(FOLDER / f"hidden_of_{source}.npz") as file:
        hidden = {key: jnp.asarray(value) for key, value in file.items()}

    def init(key):
        model = problem.init(key)
        return model._replace(params={**model.params, "Dense_0": hidden})

    return problem._replace(init=init)
