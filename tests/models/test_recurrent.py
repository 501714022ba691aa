"""Recurrent layers agree with the equations of PyTorch and with the layers of Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def gru_of_pytorch(x, p):
    """PyTorch's equations of a GRU layer in NumPy, gates in the order r, z, n."""
    w, u = np.split(p["input_kernel"], 3, 1), np.split(p["recurrent_kernel"], 3, 1)
    b, c = np.split(p["input_bias"], 3), np.split(p["recurrent_bias"], 3)
    h, outputs = np.zeros((len(x), len(u[0]))), []
    for t in range(x.shape[1]):
        r, z = (sigmoid(x[:, t] @ w[i] + b[i] + h @ u[i] + c[i]) for i in (0, 1))
        n = np.tanh(x[:, t] @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.stack(outputs, 1)


def lstm_of_pytorch(x, p):
    """PyTorch's equations of an LSTM layer in NumPy, gates in the order i, f, g, o."""
    width = p["recurrent_kernel"].shape[0]
    h, c, outputs = np.zeros((len(x), width)), np.zeros((len(x), width)), []
    for t in range(x.shape[1]):
        gates = x[:, t] @ p["input_kernel"] + p["input_bias"]
        gates = gates + h @ p["recurrent_kernel"] + p["recurrent_bias"]
        i, f, g, o = np.split(gates, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1)


@pytest.mark.parametrize(
    ("cell", "reference"), [("gru", gru_of_pytorch), ("lstm", lstm_of_pytorch)]
)
def test_recurrent_layers_agree_with_pytorch(cell, reference):
    layer = fa.models.Recurrent(cell, 5, initialisation="torch")
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    params = layer.init(jax.random.key(0), x)
    expected = reference(x.astype(float), jax.tree.map(np.asarray, params["params"]))
    np.testing.assert_allclose(layer.apply(params, x), expected, atol=2e-6)


def test_the_gru_with_flax_biases_agrees_with_flax():
    """In nn.GRUCell r and z have one bias and the candidate has two."""
    cell = nn.GRUCell(5)
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    theirs = nn.RNN(cell)
    variables = theirs.init(jax.random.key(0), x)
    p = variables["params"]["cell"]
    stack = lambda part: jnp.concatenate([p[name][part] for name in ("ir", "iz", "in")], -1)  # noqa: E731
    mine = {
        "input_kernel": stack("kernel"),
        "input_bias": stack("bias"),
        "recurrent_kernel": jnp.concatenate([p[n]["kernel"] for n in ("hr", "hz", "hn")], -1),
        "recurrent_bias": p["hn"]["bias"],
    }
    outputs = fa.models.Recurrent("gru", 5, biases="flax").apply({"params": mine}, x)
    np.testing.assert_allclose(outputs, theirs.apply(variables, x), atol=1e-6)


@pytest.mark.parametrize("name", ["gru", "lstm", "lstm_words"])
@pytest.mark.parametrize(("biases", "initialisation"), [("torch", "flax"), ("flax", "torch")])
def test_models_with_x64(name, biases, initialisation):
    """The same params as without it, in float32; wider ones and wider inputs give wider outputs."""
    options = {"embedding": 3, "hidden": 4, "biases": biases, "initialisation": initialisation}
    problem = fa.models.models[name]((5,), 7, **options)
    before = jax.eval_shape(problem.init, jax.random.key(0))
    with jax.enable_x64(True):
        assert jax.eval_shape(problem.init, jax.random.key(0)) == before
        wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), before)
        batch = {"x": jax.ShapeDtypeStruct((2, 5), np.int32)}
        for model, dtype in (before, np.float32), (wide, np.float64):
            apply = lambda model, batch: problem.apply(model, batch, jax.random.key(0), True)  # noqa: E731
            assert jax.eval_shape(apply, model, batch)[0].logits.dtype == dtype
