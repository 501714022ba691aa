"""A small network with its forward pass and its gradient in plain NumPy."""

import jax
import numpy as np
from helpers import positions, small_network


def network():
    """The small network with a boolean metric, and training clients."""
    toy = small_network()
    problem = toy.problem._replace(metrics=lambda out, batch: {"large": out.logits > batch["y"]})
    return toy._replace(problem=problem)


def start(seed=1):
    """A model of the network."""
    return network().problem.init(jax.random.key(seed))


def held_out(counts=(2, 7, 1, 4)):
    """Test examples of clients with these counts."""
    rng = np.random.default_rng(9)
    return [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in counts]


def forward(params, x):
    """(hidden, outputs) of the small network."""
    hidden = np.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden, hidden @ params["out"]


def expected(params, examples):
    """The mean loss, and the share of outputs above the target."""
    _, outputs = forward(jax.tree.map(np.asarray, params), examples["x"])
    return ((outputs - examples["y"]) ** 2).mean(), (outputs > examples["y"]).mean()


def sgd_step(params, batch, rate):
    """One step of SGD on the mean squared error."""
    hidden, outputs = forward(params, batch["x"])
    error = 2 * (outputs - batch["y"]) / len(outputs)
    inner = np.outer(error, params["out"]) * (1 - hidden**2)
    gradient = {"hidden": {"w": batch["x"].T @ inner, "b": inner.sum(0)}, "out": hidden.T @ error}
    return jax.tree.map(lambda x, g: x - rate * g, params, gradient)


def fine_tune(params, clients, *, seed, steps, batch_size=3, rate=0.1):
    """The personal params of each client after its steps, by the batches of dispatch -1."""
    tuned = []
    for index, (client, number) in enumerate(zip(clients, steps, strict=True)):
        y = jax.tree.map(np.asarray, params)
        for k in range(number):
            chosen = positions(seed, index, -1, len(client["y"]), k, batch_size)
            y = sgd_step(y, {key: value[chosen] for key, value in client.items()}, rate)
        tuned.append(y)
    return tuned


def check_metrics(metrics, params, clients, tolerance=1e-13):
    """Compares clients' metrics with those of their params."""
    loss, large = np.transpose([expected(*each) for each in zip(params, clients, strict=True)])
    np.testing.assert_allclose(metrics["loss"].value(), loss, rtol=tolerance)
    np.testing.assert_array_equal(metrics["large"].value(), large)
    counts = [len(client["y"]) for client in clients]
    assert metrics["loss"].weight.tolist() == metrics["large"].weight.tolist() == counts
