"""Losses and metrics by name: against NumPy and scikit-learn, in runs, and of one's own."""

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
from fedjax_algos.models import losses, metrics, with_loss, with_metrics
from fedjax_algos.models.outputs import Outputs, accuracy, cross_entropy
from fedjax_algos.runs import comparison
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

LINEAR = fa.models.linear((3,), 4)
SMALL = Settings(model="linear", clients=12, cohort=4, rounds=1, local_steps=2)
BOTH = "balanced_accuracy,top_k_accuracy:k=3"
OWN = """
import jax.numpy as jnp
import optax
import fedjax_algos as fa

def scaled(outputs, batch, *, scale: float = 2.0):
    return scale * optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

def mean(outputs, batch):
    return scaled(outputs, batch).mean()

def pair(outputs, batch):
    return scaled(outputs, batch), ()

def one_argument(outputs):
    return outputs

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
    path = tmp_path / "own_outputs.py"
    path.write_text(OWN)
    return path


def by_hand(name, z, y, value):
    """Of one example, without arrays."""
    powers = [np.exp(each) for each in z]
    p = [each / sum(powers) for each in powers]
    target = [float(k == y) for k in range(len(z))]
    if name == "cross_entropy":
        shares = [(1 - value) * each + value / len(z) for each in target]
        return -sum(share * np.log(each) for share, each in zip(shares, p, strict=True))
    if name == "focal":
        return -((1 - p[y]) ** value) * np.log(p[y])
    if name == "hinge":
        return max(each + 1 - t for each, t in zip(z, target, strict=True)) - z[y]
    values = p if name == "brier" else z
    return sum((each - t) ** 2 for each, t in zip(values, target, strict=True))


OPTIONS = {"cross_entropy": 0.0, "cross_entropy:0.3": 0.3, "focal": 2.0, "focal:gamma=0.5": 0.5}
OPTIONS |= dict.fromkeys(("brier", "squared_error", "hinge"))


@pytest.mark.parametrize(("spec", "value"), OPTIONS.items())
def test_values_are_those_of_numpy(spec, value):
    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(7, 4)), rng.integers(0, 4, 7)
    problem = with_loss(LINEAR, spec)
    found = problem.loss(Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)})
    name = spec.partition(":")[0]
    expected = [by_hand(name, z, y, value) for z, y in zip(logits, labels, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert problem.metrics is accuracy
    assert problem._replace(loss=None) == LINEAR._replace(loss=None)


def test_gradients_are_finite_where_the_label_is_certain():
    """In float32, where the probability of a label is 1 or 0."""

    def totals(logits):
        batch = {"y": jnp.array([[0, 1]])}  # two labels of one example, for losses of masks too
        options = {"focal": {"gamma": 0.5}}
        own = [name for name in losses if ":" not in name]
        return {n: losses[n](Outputs(logits), batch, **options.get(n, {})).sum() for n in own}

    logits = jnp.array([[[80.0, -80.0], [80.0, -80.0]]], jnp.float32)
    for name, gradient in jax.jit(jax.jacrev(totals))(logits).items():
        assert np.isfinite(gradient).all(), name


def test_equal_texts_give_one_object():
    """So that problems made from them share their compiled programs."""
    assert with_loss(LINEAR, "focal:gamma=1") == with_loss(LINEAR, "focal:1.0")
    assert with_loss(LINEAR, "focal:gamma=1") != with_loss(LINEAR, "focal") != LINEAR
    assert with_metrics(LINEAR, "top_k_accuracy:k=2") == with_metrics(LINEAR, "top_k_accuracy:2")
    assert with_loss(LINEAR, "cross_entropy") == LINEAR


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "cross_entrpy"}, "unknown loss 'cross_entrpy'; did you mean cross_entropy"),
        ({"loss": "focal:gamma=-1"}, "focal: gamma=-1 is out of range; give a number of at least"),
        ({"loss": "cross_entropy:label_smoothing=1"}, "label_smoothing=1 is out of range"),
        ({"metrics": "balanced"}, "unknown metric 'balanced'; did you mean balanced_accuracy?"),
        ({"metrics": "balanced_accuracy,top_k_accuracy:k=0"}, "top_k_accuracy: k=0 is out of ran"),
        ({"metrics": "top_k_accuracy:5,top_k_accuracy:k=5"}, "'top_k_accuracy:5' is given twice"),
    ],
)
def test_wrong_texts_get_the_fix(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(**changes).problem(Settings().load())


def test_losses_of_ones_own(own_file):
    logits, labels = jnp.asarray([[0.1, 0.2, 0.3, 0.4]]), {"y": jnp.array([2])}
    own = with_loss(LINEAR, f"{own_file}:scaled:scale=3")
    expected = 3 * cross_entropy(Outputs(logits), labels)
    np.testing.assert_allclose(own.loss(Outputs(logits), labels), expected)
    with pytest.raises(ValueError, match="is no loss"):
        with_loss(LINEAR, f"{own_file}:one_argument")
    with pytest.raises(ValueError, match="the model has a loss of its own; leave loss out"):
        with_loss(own, "focal")
    assert with_loss(own, f"{own_file}:scaled").loss is not own.loss


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", "loss has shape (), but must give one value for each example"),
        ("pair", "returns a tuple; give a function (outputs, batch, *, ...) -> Array"),
    ],
)
def test_wrong_losses_of_ones_own_get_the_fix(own_file, name, message):
    settings = Settings(**vars(SMALL) | {"loss": f"{own_file}:{name}"})
    with pytest.raises(ValueError, match=re.escape(message)):
        comparison.run(prepare(settings, methods_of(("fedavg",), settings)))


def of(name, logits, labels, **options):
    """All that a metric measures of these examples."""
    return metrics[name](Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}, **options)


@pytest.mark.all
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


def rows_of(**changes):
    settings = Settings(**vars(SMALL) | changes)
    return comparison.run(prepare(settings, methods_of(("fedavg",), settings)))


@pytest.mark.all
def test_columns_of_a_comparison():
    """Two more than without; the others are equal bit for bit."""
    for row, before in zip(rows_of(metrics=BOTH), rows_of(), strict=True):
        added = {name: each for name, each in row.items() if name not in before}
        assert sorted(added) == ["test_balanced_accuracy", "test_top_3_accuracy"]
        assert row == before | added | {"wall_seconds": row["wall_seconds"]}
        assert 0 < added["test_balanced_accuracy"] != row["test_accuracy"]
        assert row["test_accuracy"] < added["test_top_3_accuracy"] <= 1


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


def test_methods_are_compared_by_the_accuracy(own_file):
    """A model that does not measure it is refused before the training, and can be given it."""
    settings = Settings(**vars(SMALL) | {"model": f"{own_file}:model_without_metrics"})
    message = "the model measures loss, but no accuracy, by which methods are compared; give metri"
    with pytest.raises(ValueError, match=message):
        prepare(settings, methods_of(("fedavg",), settings))
    given = Settings(**vars(settings) | {"metrics": "accuracy,top_k_accuracy:11"})
    with pytest.raises(ValueError, match="k=11 is out of range: the model has 10 classes"):
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
