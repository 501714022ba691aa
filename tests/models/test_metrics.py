"""Metrics by name: against scikit-learn, in runs, and with a function of one's own."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

import fedjax_algos as fa
from fedjax_algos.models import metrics, models, with_metrics
from fedjax_algos.models.adapters import Outputs, accuracy
from fedjax_algos.runs import comparison
from fedjax_algos.runs.batched.sweeps import prepare_sweep, run_sweep
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

LINEAR = fa.models.linear((3,), 4)
SMALL = Settings(model="linear", clients=12, cohort=4, rounds=1, local_steps=2)
BOTH = "balanced_accuracy,top_k_accuracy:k=3"
OWN = """
import jax.numpy as jnp
import fedjax_algos as fa

def margin(outputs, batch, *, scale: float = 1.0):
    top = jnp.sort(outputs.logits)
    return {"margin": scale * (top[:, -1] - top[:, -2])}

def of_class(outputs, batch, *, label: int = 0):
    weight = jnp.asarray(batch["y"] == label, float)
    return {f"accuracy_of_{label}": fa.Mean(weight * (outputs.logits.argmax(-1) == label), weight)}

def values(outputs, batch):
    return jnp.ones(len(batch["y"]))

def model_without_metrics(example_shape, num_classes):
    linear = fa.models.linear(example_shape, num_classes)
    return linear._replace(metrics=lambda outputs, batch: {})
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_metrics.py"
    path.write_text(OWN)
    yield path
    for registry in (metrics, models):
        for name in [name for name in registry if ":" in name]:
            del registry[name]


def of(name, logits, labels, **options):
    """All that a metric measures of these examples."""
    return metrics[name](Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}, **options)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_values_are_those_of_scikit_learn(seed, k):
    """Logits without ties; classes of which some have no labels."""
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(12, 5)), rng.choice(rng.permutation(5)[:3], 12)
    found = of("top_k_accuracy", logits, labels, k=k)[f"top_{k}_accuracy"]
    # scikit-learn refuses k = 5 of 5 classes with a warning, and gives 1
    expected = 1.0 if k == 5 else top_k_accuracy_score(labels, logits, k=k, labels=range(5))
    assert found.mean() == pytest.approx(expected)
    mean = of("balanced_accuracy", logits, labels)["balanced_accuracy"]
    balanced = jax.tree.map(lambda leaf: leaf.sum(0), mean).value()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # predictions of no label
        expected = balanced_accuracy_score(labels, logits.argmax(1))
    assert balanced == pytest.approx(expected)


def test_of_equal_logits_the_first_classes_are_the_largest():
    """So that the largest one is that of `accuracy`."""
    logits, labels = np.array([[1, 3, 3, 3.0]] * 4), np.arange(4)
    for k, expected in ((1, [0, 1, 0, 0]), (2, [0, 1, 1, 0]), (3, [0, 1, 1, 1])):
        assert of("top_k_accuracy", logits, labels, k=k)[f"top_{k}_accuracy"].tolist() == expected
    assert of("accuracy", logits, labels)["accuracy"].tolist() == [0, 1, 0, 0]


def test_several_labels_of_an_example():
    """The shares of an example's labels; the classes of all labels together."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 2, 4, 5)), rng.integers(0, 5, (3, 2, 4))
    found = of("top_k_accuracy", logits, labels, k=2)["top_2_accuracy"]
    right = (np.argsort(logits)[..., -2:] == labels[..., None]).any(-1)
    np.testing.assert_allclose(found, right.mean((1, 2)))
    mean = of("balanced_accuracy", logits, labels)["balanced_accuracy"]
    assert mean.total.shape == mean.weight.shape == (3, 5)
    expected = balanced_accuracy_score(labels.ravel(), logits.argmax(-1).ravel())
    assert jax.tree.map(lambda leaf: leaf.sum(0), mean).value() == pytest.approx(expected)


def test_more_classes_than_the_model_has_are_refused():
    with pytest.raises(ValueError, match="k=6 is out of range: the model has 5 classes"):
        of("top_k_accuracy", np.zeros((2, 5)), np.zeros(2, int), k=6)
    with pytest.raises(ValueError, match="k=0 is out of range; give a whole number of at least 1"):
        of("top_k_accuracy", np.zeros((2, 5)), np.zeros(2, int), k=0)


def test_metrics_are_added_to_those_of_the_model():
    problem = with_metrics(LINEAR, "balanced_accuracy,top_k_accuracy:k=2")
    assert problem._replace(metrics=accuracy) == LINEAR
    batch = {"y": jnp.array([0, 1, 3])}
    outputs = Outputs(jnp.asarray(np.random.default_rng(0).normal(size=(3, 4))))
    found = problem.metrics(outputs, batch)
    assert list(found) == ["accuracy", "balanced_accuracy", "top_2_accuracy"]
    for name, options in (("balanced_accuracy", {}), ("top_k_accuracy", {"k": 2})):
        for key, value in metrics[name](outputs, batch, **options).items():
            assert jax.tree.map(np.array_equal, found[key], value)


def test_equal_texts_give_one_object():
    """So that problems made from them share their compiled programs."""
    assert with_metrics(LINEAR, "top_k_accuracy:k=2") == with_metrics(LINEAR, "top_k_accuracy:2")
    assert with_metrics(LINEAR, "top_k_accuracy:k=2") != with_metrics(LINEAR, "top_k_accuracy")
    assert with_metrics(LINEAR, "balanced_accuracy") != LINEAR


@functools.cache
def rows_of(**changes):
    """The rows of FedAvg, without their wall time."""
    settings = Settings(**vars(SMALL) | changes)
    rows = comparison.run(prepare(settings, methods_of(("fedavg",), settings)))
    return [{name: each for name, each in row.items() if name != "wall_seconds"} for row in rows]


def check_columns(rows, plain):
    """The rows have two columns more than those without; the others are equal bit for bit."""
    for row, before in zip(rows, plain, strict=True):
        added = {name: each for name, each in row.items() if name not in before}
        assert sorted(added) == ["test_balanced_accuracy", "test_top_3_accuracy"]
        assert row == before | added
        assert 0 < added["test_balanced_accuracy"] != row["test_accuracy"]
        assert row["test_accuracy"] < added["test_top_3_accuracy"] <= 1


@pytest.mark.slow
def test_columns_of_a_comparison():
    check_columns(rows_of(metrics=BOTH), rows_of())


@pytest.mark.slow
def test_columns_on_the_virtual_clock():
    clock = {"seconds": 4.0, "evaluations": 2, "eval_every": 5}
    check_columns(rows_of(metrics=BOTH, **clock), rows_of(**clock))


@pytest.mark.slow
def test_a_sweep_measures_what_a_comparison_measures():
    settings = Settings(**vars(SMALL) | {"metrics": BOTH})
    rows, _ = run_sweep(prepare_sweep(settings, "fedavg", {"client_learning_rate": [0.1]}))
    for row, other in zip(rows, rows_of(metrics=BOTH), strict=True):
        for name in ("test_balanced_accuracy", "test_top_3_accuracy"):
            assert row[name] == pytest.approx(other[name], rel=1e-6)


def test_metrics_of_ones_own(own_file):
    problem = with_metrics(
        LINEAR, f"{own_file}:margin:scale=3,{own_file}:of_class,{own_file}:of_class:label=2"
    )
    outputs = Outputs(jnp.asarray([[0.0, 4.0, 1.0, 2.0], [1.0, 0.0, 0.0, 0.0]]))
    found = problem.metrics(outputs, {"y": jnp.array([2, 0])})
    assert list(found) == ["accuracy", "margin", "accuracy_of_0", "accuracy_of_2"]
    assert found["margin"].tolist() == [6, 3]
    assert found["accuracy_of_2"].weight.tolist() == [1, 0]
    assert found["accuracy_of_0"].total.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("balanced", "unknown metric 'balanced'; did you mean balanced_accuracy?"),
        ("", "unknown metric ''"),
        ("top_k_accuracy:n=3", "top_k_accuracy: unknown option 'n'"),
        ("balanced_accuracy,top_k_accuracy:k=0", "top_k_accuracy: k=0 is out of range"),
        ("top_k_accuracy,top_k_accuracy:5,top_k_accuracy:k=5", "'top_k_accuracy:5' is given twice"),
    ],
)
def test_wrong_texts_get_the_fix(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(metrics=text).problem(Settings().load())


def test_methods_are_compared_by_the_accuracy(own_file):
    """A model that does not measure it is refused before the training, and can be given it."""
    settings = Settings(**vars(SMALL) | {"model": f"{own_file}:model_without_metrics"})
    message = "the model measures loss, but no accuracy, by which methods are compared; give metri"
    with pytest.raises(ValueError, match=message):
        prepare(settings, methods_of(("fedavg",), settings))
    given = Settings(**vars(settings) | {"metrics": "accuracy,top_k_accuracy:11"})
    with pytest.raises(ValueError, match="k=11 is out of range: the model has 10 classes"):
        prepare(given, methods_of(("fedavg",), given))
    given = Settings(**vars(settings) | {"metrics": "accuracy"})
    prepare(given, methods_of(("fedavg",), given))


def test_wrong_metrics_get_the_fix(own_file):
    examples = {"x": np.zeros((2, 3)), "y": np.zeros(2, int)}

    def evaluate(text):
        problem = with_metrics(LINEAR, text)
        fa.make_evaluate(problem)(problem.init(jax.random.key(0)), examples)

    with pytest.raises(ValueError, match="'accuracy' is measured twice; leave out one of the"):
        evaluate("accuracy")
    with pytest.raises(ValueError, match=r"returns a .*; give a function \(outputs, batch, \*, "):
        evaluate(f"{own_file}:values")
