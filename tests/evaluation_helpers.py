"""A small network with its forward pass and its gradient in plain NumPy."""

import jax
import numpy as np
import pytest
from helpers import positions, small_network

import fedjax_algos as fa


def network():
    """The small network with a boolean metric, and training clients."""
    toy = small_network()
    problem = toy.problem._replace(metrics=lambda out, batch: {"large": out.logits > batch["y"]})
    return toy._replace(problem=problem)


def held_out(counts=(2, 7, 1, 4), seed=9):
    """Test examples of clients with these counts."""
    rng = np.random.default_rng(seed)
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
    return {
        "hidden": {
            "w": params["hidden"]["w"] - rate * batch["x"].T @ inner,
            "b": params["hidden"]["b"] - rate * inner.sum(0),
        },
        "out": params["out"] - rate * hidden.T @ error,
    }


def fine_tune(params, clients, *, seed, steps, number, batch_size=3, rate=0.1):
    """The personal params of each client after its steps, as dispatch `number` draws batches."""
    tuned = []
    for index, client in enumerate(clients):
        y, count = jax.tree.map(np.asarray, params), len(client["y"])
        for k in range(steps[index]):
            chosen = positions(seed, index, number, count, k, batch_size)
            y = sgd_step(y, {key: value[chosen] for key, value in client.items()}, rate)
        tuned.append(y)
    return tuned


def own_params(algorithm, engine, state, number):
    """The params of each of the clients, also of those that were never dispatched."""
    rows = fa.client_states(engine, state).rows
    of_client = [jax.tree.map(lambda leaf, c=c: leaf[c], rows) for c in range(number)]
    return [algorithm.personal(state.server, row).params for row in of_client]


def check_metrics(metrics, params, clients, tolerance=1e-13):
    """Compares clients' metrics with those of their params."""
    for index, (own, client) in enumerate(zip(params, clients, strict=True)):
        loss, large = expected(own, client)
        assert float(metrics["loss"].value()[index]) == pytest.approx(loss, rel=tolerance)
        assert float(metrics["large"].value()[index]) == large
    counts = [len(client["y"]) for client in clients]
    assert metrics["loss"].weight.tolist() == metrics["large"].weight.tolist() == counts
