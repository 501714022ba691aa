"""Metrics with weights of their own, and means over classes, wherever metrics are consumed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import recall_score

import fedjax_algos as fa
from fedjax_algos.models import with_metrics
from fedjax_algos.runs.results import client_rows

pytestmark = pytest.mark.usefixtures("x64")

NAMES = "accuracy", "balanced_accuracy", "words"
NUM_CLASSES = 3
COUNTS = (5, 1, 0, 7, 2)
LOCAL = fa.Local(batch_size=3, learning_rate=0.5, steps=2)


def words(outputs, batch):
    """The accuracy by the examples' own weights; some are 0."""
    correct = jnp.asarray(outputs.logits.argmax(-1) == batch["y"], float)
    total = jnp.where(batch["w"] > 0, correct * batch["w"], 0)
    return {"words": fa.Mean(total, batch["w"])}


@functools.cache
def task():
    """A linear problem with both metrics, its model, and examples of clients that lack classes."""
    linear = with_metrics(fa.models.linear((2,), NUM_CLASSES), "balanced_accuracy")
    problem = linear._replace(metrics=lambda out, b: {**linear.metrics(out, b), **words(out, b)})
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(n, 2)),
            "y": rng.integers(0, 2, n) if i % 2 else rng.integers(0, NUM_CLASSES, n),
            "w": rng.integers(0, 4, n).astype(float),
        }
        for i, n in enumerate(COUNTS)
    ]
    clients[4]["w"][:] = 0  # examples without weight
    return problem, problem.init(jax.random.key(1)), clients


def pooled(clients):
    return {name: np.concatenate([each[name] for each in clients]) for name in clients[0]}


def stored(clients):
    """The examples of all clients, one of which may have none."""
    ends = np.cumsum([len(each["y"]) for each in clients])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    return fa.federate(pooled(clients), fa.Partition.of(rows), allow_empty=True)


def expected(params, examples):
    """(accuracy, balanced accuracy, weighted accuracy) of NumPy and scikit-learn."""
    kernel, bias = (np.asarray(params["Dense_0"][name]) for name in ("kernel", "bias"))
    predicted, labels = (examples["x"] @ kernel + bias).argmax(1), examples["y"]
    present = np.unique(labels)
    recalls = recall_score(labels, predicted, labels=present, average=None, zero_division=0)
    correct, weight = predicted == labels, examples["w"]
    weighted = (correct * weight).sum() / weight.sum() if weight.any() else np.nan
    return correct.mean(), np.mean(recalls), weighted


def values(metrics):
    return np.stack([metrics[name].value() for name in NAMES], -1)


def check(metrics, params, clients):
    """The metrics of each client against those of its params and examples."""
    each = zip(params, clients, strict=True)
    none = (np.nan,) * 3
    wanted = [expected(own, client) if len(client["y"]) else none for own, client in each]
    np.testing.assert_allclose(values(metrics), wanted, rtol=1e-12)
    assert metrics["accuracy"].weight.tolist() == list(COUNTS)
    np.testing.assert_allclose(metrics["words"].weight, [c["w"].sum() for c in clients])
    classes = [np.bincount(c["y"], minlength=NUM_CLASSES) for c in clients]
    np.testing.assert_allclose(metrics["balanced_accuracy"].weight, classes)


@functools.cache
def of_each_client():
    problem, model, clients = task()
    return fa.make_evaluate_clients(problem, 4)(model, stored(clients))


@pytest.mark.parametrize("batch_size", [4, pytest.param(64, marks=pytest.mark.all)])
def test_over_all_examples(batch_size):
    """15 examples: batches that are full, short, and larger than all of them."""
    problem, model, clients = task()
    metrics = fa.make_evaluate(problem, batch_size)(model, pooled(clients))
    np.testing.assert_allclose(values(metrics), expected(model.params, pooled(clients)), rtol=1e-12)
    assert len(set(values(metrics))) == 3


def test_of_each_client():
    """Their sum is the metric over all examples."""
    _, model, clients = task()
    check(of_each_client(), [model.params] * len(clients), clients)
    whole = values(jax.tree.map(lambda leaf: leaf.sum(0), of_each_client()))
    np.testing.assert_allclose(whole, expected(model.params, pooled(clients)), rtol=1e-12)


@pytest.mark.all
def test_of_clients_that_train_further():
    """With no step it is the common model; the sixth slot of three chunks of two is empty."""
    problem, model, clients = task()
    data = stored(clients)
    evaluate = fa.make_evaluate_personal(problem, LOCAL, batch_size=4, layout=2)
    check(evaluate(model, data, data, num_steps=0), [model.params] * 5, clients)


def test_rows_of_clients_without_examples_or_weight():
    written = client_rows("fedavg", 1, 1, of_each_client(), np.zeros(len(COUNTS)))
    assert [np.isnan(row["balanced_accuracy"]) for row in written] == [n == 0 for n in COUNTS]
    assert [np.isnan(row["words"]) for row in written] == [False, False, True, False, True]
    assert [row["examples"] for row in written] == list(COUNTS)


def test_summaries_over_clients():
    """The mean of each client's own value; and the value of all examples together."""
    _, model, clients = task()
    each = np.array([expected(model.params, client) for client in clients if len(client["y"])])
    _, *of_all = expected(model.params, pooled(clients))
    own = each[:, 1], each[:-1, 2]  # the last client has no weight
    for name, values_of_clients, together in zip(NAMES[1:], own, of_all, strict=True):
        found = fa.summarise_clients(of_each_client()[name], "lowest")
        wanted = values_of_clients.mean(), values_of_clients.min(), together
        found = found.mean, found.worst_decile, found.weighted_mean
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_mean_over_classes():
    total, weight = jnp.array([[[1.0, 0, 3], [0, 0, 0]], [[4.0, 0, 3], [0, 0, 0]]])
    mean = fa.ClassMean(total, weight)
    np.testing.assert_array_equal(mean.value(), [(1 / 4 + 1) / 2, np.nan])
    assert mean.over_classes().weight.tolist() == [2, 0]
    assert isinstance(jax.tree.map(lambda leaf: leaf + 1, mean), fa.ClassMean)
    plain = fa.Mean(jnp.array(3.0), jnp.array(4.0))
    assert plain.over_classes() is plain
    assert np.isnan(fa.Mean(0.0, 0.0).value())
    slope = jax.grad(lambda total: fa.Mean(total, 0.0).value())(1.0)
    assert slope == 0  # not NaN, so that a batch of weight 0 trains nothing


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (lambda n: {"own": fa.Mean(jnp.ones(()), jnp.ones(()))}, r"total \(\) and weight \(\)"),
        (lambda n: {"own": fa.Mean(jnp.ones(n), jnp.ones(()))}, r"shape \(2,\)"),
        (lambda n: {"own": fa.Mean(jnp.ones((n, 3)), jnp.ones((n, 3)))}, r"total \(2, 3\)"),
        (lambda n: {"own": fa.ClassMean(jnp.ones(n), jnp.ones(n))}, r"shape \(2, classes\)"),
        (lambda n: {"own": jnp.ones((n, 3))}, r"own has shape \(2, 3\)"),
        (lambda n: {"loss": jnp.ones(n)}, "without the name 'loss'"),
    ],
)
def test_wrong_metrics(metrics, message):
    problem, model, clients = task()
    problem = problem._replace(metrics=lambda outputs, batch: metrics(len(batch["y"])))
    examples = {name: leaf[:2] for name, leaf in clients[0].items()}
    with pytest.raises(ValueError, match=message):
        fa.make_evaluate(problem)(model, examples)
