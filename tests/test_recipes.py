"""docs/recipes.md: each program runs as it stands, and what it computes is what it says."""

from pathlib import Path

import jax
import numpy as np
import pytest
from page_helpers import executed
from safetensors.numpy import save_file
from scipy.special import erf

import fedjax_algos as fa
from fedjax_algos.core.randomness import model_key

PAGE = "docs/recipes.md"
MULTI_LABEL, REGRESSION, POWER_OF_CHOICE, LORA, SCRIPT, DATABASE = range(6)

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("here")]


def test_several_labels():
    names = executed(PAGE, MULTI_LABEL)
    last, model, test = names["history"][-1], names["state"].model, names["test"]
    outputs, _ = names["problem"].apply(model, test, jax.random.key(0), False)
    logits, y = np.asarray(outputs.logits, float), test["y"]
    found = logits > 0
    f1 = 2 * (found & (y > 0)).sum() / (found.sum() + y.sum())
    expected = f1, (found == (y > 0)).mean(), (np.logaddexp(0, logits) - y * logits).mean()
    measured = [last[f"test_{name}"] for name in ("f1", "accuracy", "loss")]
    np.testing.assert_allclose(measured, expected, rtol=1e-5)
    assert f1 > 0.85


def test_a_regression():
    history = executed(PAGE, REGRESSION)["history"]
    assert history[-1]["test_absolute_error"] < 0.2 < history[0]["test_absolute_error"]
    assert history[-1]["test_loss"] >= history[-1]["test_absolute_error"] ** 2  # Jensen


def test_clients_with_the_highest_loss():
    names = executed(PAGE, POWER_OF_CHOICE)
    counts, losses = names["counts"], names["losses"]
    (cohort,) = names["highest_losses"](0, np.array([29]), 40, 4)
    rng = np.random.default_rng([0, 29])
    candidates = rng.choice(40, 10, replace=False, p=counts / sum(counts))
    assert set(cohort) <= set(candidates)
    others = np.setdiff1d(candidates, cohort)
    assert losses[cohort].min() >= losses[others].max()
    assert set(np.asarray(names["dispatches"].client)) == set(cohort)


WIDTH = 32


class Bert(dict):
    """A small BERT of two layers in NumPy, whose tensors are drawn as they are used."""

    rng = np.random.default_rng(1)

    def tensor(self, name, *shape, around=0.0):
        if name not in self:
            self[name] = (around + 0.3 * self.rng.normal(size=shape)).astype(np.float32)
        return self[name].astype(float)

    def linear(self, name, x, width=WIDTH):
        """[out, in], as PyTorch has them."""
        weight = self.tensor(f"{name}.weight", width, x.shape[-1])
        return x @ weight.T + self.tensor(f"{name}.bias", width)

    def norm(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        weight = self.tensor(f"{name}LayerNorm.weight", WIDTH, around=1.0)
        return x * weight + self.tensor(f"{name}LayerNorm.bias", WIDTH)

    def features(self, tokens):
        """The last layer's output at the first token, of one text."""
        tokens = tokens[tokens != 0]  # without padding no mask is needed
        words, positions, types = (
            self.tensor(f"bert.embeddings.{name}_embeddings.weight", size, WIDTH)
            for name, size in (("word", 200), ("position", 16), ("token_type", 2))
        )
        x = words[tokens] + positions[: len(tokens)] + types[0]
        x = self.norm("bert.embeddings.", x)
        for layer in ("bert.encoder.layer.0.", "bert.encoder.layer.1."):
            q, k, v = (
                self.linear(f"{layer}attention.self.{name}", x).reshape(len(tokens), 4, -1)
                for name in ("query", "key", "value")
            )
            shares = np.exp(np.einsum("qhd,khd->hqk", q, k) / np.sqrt(WIDTH / 4))
            shares /= shares.sum(-1, keepdims=True)
            attended = np.einsum("hqk,khd->qhd", shares, v).reshape(x.shape)
            attended = self.linear(f"{layer}attention.output.dense", attended)
            x = self.norm(f"{layer}attention.output.", x + attended)
            wide = self.linear(f"{layer}intermediate.dense", x, 4 * WIDTH)
            wide = wide * (1 + erf(wide / np.sqrt(2))) / 2
            x = self.norm(f"{layer}output.", x + self.linear(f"{layer}output.dense", wide))
        self.linear("bert.pooler.dense", x[0])  # which the recipe leaves out
        return x[0]


def test_a_pretrained_transformer_with_lora():
    bert = Bert()
    bert.features(np.array([1]))
    save_file(bert, "model.safetensors")
    names = executed(PAGE, LORA)
    tokens = names["test"]["x"][:5]
    assert (tokens != 0).all(axis=1).sum() < 5  # some have padding
    start = names["problem"].init(model_key(0))
    outputs, _ = names["problem"].apply(start, {"x": tokens}, jax.random.key(0), False)
    last = [np.asarray(start.params[f"last/{leaf}"]) for leaf in ("kernel", "bias")]
    expected = [bert.features(text) @ last[0] + last[1] for text in tokens]
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-3, atol=1e-4)

    trained = names["state"].server.params
    assert {path.split("/")[-1] for path in trained} == {"lora_a", "lora_b", "kernel", "bias"}
    assert names["sent"] == 2 * 2 * 2 * 32 * 4 + 32 * 2 + 2
    assert names["kept"] == sum(t.size for k, t in bert.items() if "pooler" not in k)
    for path, leaf in names["state"].frozen.items():
        np.testing.assert_array_equal(leaf, start.frozen[path])
    assert all(np.abs(trained[path] - start.params[path]).max() > 0 for path in trained)
    assert names["history"][-1]["test_loss"] < names["history"][0]["test_loss"]


def test_a_script_with_cells():
    names = executed(PAGE, SCRIPT)
    assert len(names["rows"]) == 2 * 3 * 5
    assert Path("accuracy.png").stat().st_size > 10_000


def test_examples_in_a_database():
    """The run equals that of the same examples in memory."""
    names = executed(PAGE, DATABASE)
    read, source = names["read"], names["source"]
    parts = [read(client) for client in range(200)]
    assert [len(part["y"]) for part in parts] == list(source.counts)
    examples = {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}
    rows = np.split(np.arange(len(examples["y"])), np.cumsum(source.counts)[:-1])
    data = fa.federate(examples, fa.Partition.of(rows))
    run = {"cohort_size": 10, "rounds": 30, "test": parts[0]}
    _, history = fa.simulate(names["engine"], data, **run)
    assert history[-1]["train_loss"] == names["history"][-1]["train_loss"]
    assert history[-1]["train_loss"] < 0.55
