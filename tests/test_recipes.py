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


VOCABULARY, LENGTH, WIDTH, LAYERS = 200, 16, 32, 2


def bert():
    """Tensors with the names and shapes of a small BERT; [out, in], as PyTorch has them."""
    rng, shapes = np.random.default_rng(1), {}
    for name, size in (("word", VOCABULARY), ("position", LENGTH), ("token_type", 2)):
        shapes[f"bert.embeddings.{name}_embeddings"] = size, WIDTH
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}.attention.{name}"] = WIDTH, WIDTH
        shapes[f"{layer}.intermediate.dense"] = 4 * WIDTH, WIDTH
        shapes[f"{layer}.output.dense"] = WIDTH, 4 * WIDTH
        shapes |= {
            f"{layer}.{name}LayerNorm": (WIDTH,) for name in ("attention.output.", "output.")
        }
    shapes |= {"bert.embeddings.LayerNorm": (WIDTH,), "bert.pooler.dense": (WIDTH, WIDTH)}
    tensors = {}
    for name, shape in shapes.items():
        drawn = {"weight": len(shape) == 1, "bias": 0}  # around which they are drawn
        for kind in drawn if "_embeddings" not in name else ["weight"]:
            own = shape if kind == "weight" else shape[:1]
            draw = drawn[kind] + 0.3 * rng.normal(size=own)
            tensors[f"{name}.{kind}"] = draw.astype(np.float32)
    return tensors


def bert_features(tensors, tokens):
    """The last layer's output at the first token, of one text, in NumPy."""

    def linear(name, x):
        return x @ tensors[f"{name}.weight"].T.astype(float) + tensors[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def embedding(name):
        return tensors[f"bert.embeddings.{name}_embeddings.weight"].astype(float)

    tokens = tokens[tokens != 0]  # without padding no mask is needed
    x = embedding("word")[tokens] + embedding("position")[: len(tokens)]
    x = norm("bert.embeddings.LayerNorm", x + embedding("token_type")[0])
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        q, k, v = (
            linear(f"{layer}.attention.self.{name}", x).reshape(len(tokens), 4, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(WIDTH / 4)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", shares, v).reshape(x.shape)
        attended = linear(f"{layer}.attention.output.dense", attended)
        x = norm(f"{layer}.attention.output.LayerNorm", x + attended)
        wide = linear(f"{layer}.intermediate.dense", x)
        wide = wide * (1 + erf(wide / np.sqrt(2))) / 2
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", wide))
    return x[0]


def test_a_pretrained_transformer_with_lora():
    tensors = bert()
    save_file(tensors, "model.safetensors")
    names = executed(PAGE, LORA)
    tokens = names["test"]["x"][:5]
    assert (tokens == 0).any()
    assert (tokens != 0).all(axis=1).sum() < 5
    start = names["problem"].init(model_key(0))
    outputs, _ = names["problem"].apply(start, {"x": tokens}, jax.random.key(0), False)
    last = [np.asarray(start.params[f"last/{leaf}"]) for leaf in ("kernel", "bias")]
    expected = [bert_features(tensors, text) @ last[0] + last[1] for text in tokens]
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-3, atol=1e-4)

    trained = names["state"].server.params
    assert {path.split("/")[-1] for path in trained} == {"lora_a", "lora_b", "kernel", "bias"}
    assert names["sent"] == 2 * 2 * 2 * 32 * 4 + 32 * 2 + 2
    assert names["kept"] == sum(t.size for k, t in tensors.items() if "pooler" not in k)
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
