"""Metrics with weights of their own, and means over classes, wherever metrics are consumed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation_helpers import own_params
from sklearn.metrics import recall_score

import fedjax_algos as fa
from fedjax_algos.models import with_metrics
from fedjax_algos.runs.recorder import training_mean
from fedjax_algos.runs.results import client_rows

pytestmark = pytest.mark.usefixtures("x64")

NUM_CLASSES = 3
COUNTS = (5, 1, 0, 7, 2)
LOCAL = fa.Local(batch_size=3, learning_rate=0.5, steps=2)


def words(outputs, batch):
    """The accuracy weighted by the examples' own weights, of which some are 0."""
    correct = jnp.asarray(outputs.logits.argmax(-1) == batch["y"], float)
    total = jnp.where(batch["w"] > 0, correct * batch["w"], 0)
    return {"words": fa.Mean(total, batch["w"])}


@functools.cache
def task():
    """A linear problem with both metrics, and examples of clients that lack some classes."""
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
    return problem, clients


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
    weighted = (correct * weight).sum() / weight.sum() if weight.any() else 0
    return correct.mean(), np.mean(recalls), weighted


def check(metrics, params, clients):
    """The metrics of each client against those of its params and examples."""
    for index, (own, client) in enumerate(zip(params, clients, strict=True)):
        found = [metrics[n].value()[index] for n in ("accuracy", "balanced_accuracy", "words")]
        of_client = expected(own, client) if len(client["y"]) else (0, 0, 0)
        np.testing.assert_allclose(found, of_client, rtol=1e-12)
    assert metrics["accuracy"].weight.tolist() == list(COUNTS)
    np.testing.assert_allclose(metrics["words"].weight, [c["w"].sum() for c in clients])
    classes = [np.bincount(c["y"], minlength=NUM_CLASSES) for c in clients]
    np.testing.assert_allclose(metrics["balanced_accuracy"].weight, classes)


@pytest.mark.parametrize("batch_size", [4, pytest.param(64, marks=pytest.mark.all)])
def test_over_all_examples(batch_size):
    """15 examples: batches that are full, short, and larger than all of them."""
    problem, clients = task()
    model, examples = problem.init(jax.random.key(1)), pooled(clients)
    metrics = fa.make_evaluate(problem, batch_size)(model, examples)
    found = [metrics[n].value() for n in ("accuracy", "balanced_accuracy", "words")]
    np.testing.assert_allclose(found, expected(model.params, examples), rtol=1e-12)
    assert found[0] != found[1] != found[2]
    assert isinstance(metrics["balanced_accuracy"], fa.ClassMean)


@pytest.mark.parametrize("batch_size", [4, pytest.param(64, marks=pytest.mark.all)])
def test_of_each_client(batch_size):
    problem, clients = task()
    model = problem.init(jax.random.key(1))
    metrics = fa.make_evaluate_clients(problem, batch_size)(model, stored(clients))
    check(metrics, [model.params] * len(clients), clients)
    whole = jax.tree.map(lambda leaf: leaf.sum(0), metrics)
    over_all = fa.make_evaluate(problem)(model, pooled(clients))
    for name, mean in whole.items():
        np.testing.assert_allclose(mean.value(), over_all[name].value(), rtol=1e-12)


@pytest.mark.all
def test_of_clients_that_train_further():
    """With no step it is the common model; the sixth slot of three chunks of two is empty."""
    problem, clients = task()
    model, data = problem.init(jax.random.key(1)), stored(clients)
    evaluate = fa.make_evaluate_personal(problem, LOCAL, batch_size=4, layout=2)
    check(evaluate(model, data, data, num_steps=0), [model.params] * 5, clients)


@pytest.mark.all
def test_of_clients_with_models_of_their_own():
    problem, clients = task()
    data = stored(clients)
    train = stored([each if len(each["y"]) else clients[0] for each in clients])
    ditto = fa.algorithms.ditto(problem, LOCAL)
    engine = fa.make_engine(ditto)
    state, _ = fa.simulate(engine, train, cohort_size=3, rounds=1, seed=1)
    metrics = fa.make_evaluate_own(ditto, batch_size=4)(state, data)
    check(metrics, own_params(ditto, engine, state, 5), clients)
    # a client without examples, and one whose examples have no weight
    written = client_rows("ditto", 1, 1, metrics, np.zeros(len(metrics["loss"].weight)))
    assert [np.isnan(row["balanced_accuracy"]) for row in written] == [n == 0 for n in COUNTS]
    assert [np.isnan(row["words"]) for row in written] == [False, False, True, False, True]
    assert [row["examples"] for row in written] == list(COUNTS)


def test_summaries_over_clients():
    """Each client's own value; and the value of all examples together."""
    problem, clients = task()
    model = problem.init(jax.random.key(1))
    metrics = fa.make_evaluate_clients(problem)(model, stored(clients))
    of_all = expected(model.params, pooled(clients))
    found = fa.summarise_clients(metrics["balanced_accuracy"], "lowest")
    values = [expected(model.params, each)[1] for each in clients if len(each["y"])]
    jain = sum(values) ** 2 / (len(values) * np.square(values).sum())
    wanted = np.mean(values), np.std(values), min(values), of_all[1], max(values), jain
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    found = fa.summarise_clients(metrics["words"], "lowest")
    values = [expected(model.params, each)[2] for each in clients if each["w"].any()]
    np.testing.assert_allclose([found.mean, found.weighted_mean], [np.mean(values), of_all[2]])


def test_a_mean_over_classes():
    mean = fa.ClassMean(
        jnp.array([[1.0, 0.0, 3.0], [0.0, 0, 0]]), jnp.array([[4.0, 0, 3], [0, 0, 0]])
    )
    assert mean.value().tolist() == [(1 / 4 + 1) / 2, 0]
    assert mean.over_classes().weight.tolist() == [2, 0]
    assert isinstance(jax.tree.map(lambda leaf: leaf + 1, mean), fa.ClassMean)
    assert np.isnan(training_mean(mean)).tolist() == [False, True]
    plain = fa.Mean(jnp.array(3.0), jnp.array(4.0))
    assert plain.over_classes() is plain


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda n: fa.Mean(jnp.ones(()), jnp.ones(())), r"Mean of total \(\) and weight \(\), but"),
        (lambda n: fa.Mean(jnp.ones(n), jnp.ones(())), r"give both for each example, shape \(2,\)"),
        (lambda n: fa.Mean(jnp.ones((n, 3)), jnp.ones((n, 3))), r"Mean of total \(2, 3\)"),
        (lambda n: fa.ClassMean(jnp.ones(n), jnp.ones(n)), r"shape \(2, classes\): return them"),
        (lambda n: jnp.ones((n, 3)), r"own has shape \(2, 3\), but must give one value for each"),
    ],
)
def test_wrong_shapes_get_the_fix(value, message):
    problem, clients = task()
    problem = problem._replace(metrics=lambda outputs, batch: {"own": value(len(batch["y"]))})
    examples = {name: leaf[:2] for name, leaf in clients[0].items()}
    with pytest.raises(ValueError, match=message):
        fa.make_evaluate(problem)(problem.init(jax.random.key(0)), examples)


def test_the_name_of_the_loss_is_taken():
    problem, clients = task()
    problem = problem._replace(metrics=lambda outputs, batch: {"loss": batch["w"]})
    with pytest.raises(ValueError, match="a metric of the name 'loss', which is that of Problem"):
        fa.make_evaluate(problem)(problem.init(jax.random.key(0)), clients[0])
