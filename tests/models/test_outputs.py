"""Losses and metrics by name and of one's own, and labels that are no classes."""

import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

import fedjax_algos as fa
from fedjax_algos.models import losses, metrics, with_loss, with_metrics
from fedjax_algos.models import outputs as model_outputs
from fedjax_algos.models.outputs import Outputs, accuracy, check_labels, cross_entropy
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

LINEAR, THREE = (fa.models.linear((3,), classes) for classes in (4, 3))
X = np.ones((4, 3), np.float32)
OWN = """
import jax.numpy as jnp
import optax
import fedjax_algos as fa

def scaled(outputs, batch, *, scale: float = 2.0):
    return scale * optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

def one_argument(outputs):
    return outputs

def of_class(outputs, batch, *, label: int = 0):
    weight = jnp.asarray(batch["y"] == label, float)
    return {f"accuracy_of_{label}": fa.Mean(weight * (outputs.logits.argmax(-1) == label), weight)}

def model_without_metrics(example_shape, num_classes):
    linear = fa.models.linear(example_shape, num_classes)
    return linear._replace(metrics=lambda outputs, batch: {})
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_outputs.py"
    path.write_text(OWN)
    return path


def of(logits, labels):
    return Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}


def by_hand(name, z, y, value):
    """The loss of one example."""
    p, target = np.exp(z) / np.exp(z).sum(), np.eye(len(z))[y]
    if name == "cross_entropy":
        return -((1 - value) * target + value / len(z)) @ np.log(p)
    if name == "focal":
        return -((1 - p[y]) ** value) * np.log(p[y])
    if name == "hinge":
        return (z + 1 - target).max() - z[y]
    return (((p if name == "brier" else z) - target) ** 2).sum()


OPTIONS = {"cross_entropy": 0.0, "cross_entropy:0.3": 0.3, "focal": 2.0, "focal:gamma=0.5": 0.5}
OPTIONS |= dict.fromkeys(("brier", "squared_error", "hinge"))


@pytest.mark.parametrize("shape", [(7,), (7, 2, 3)])
def test_losses_are_those_of_numpy(shape):
    """The mean over the labels of an example, if it has several."""
    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(*shape, 4)), rng.integers(0, 4, shape)
    problems = {spec: with_loss(LINEAR, spec) for spec in OPTIONS}
    found = jax.jit(lambda *given: {k: each.loss(*given) for k, each in problems.items()})
    for spec, values in found(*of(logits, labels)).items():
        name, value = spec.partition(":")[0], OPTIONS[spec]
        each = zip(logits.reshape(-1, 4), labels.ravel(), strict=True)
        expected = np.reshape([by_hand(name, z, y, value) for z, y in each], (7, -1)).mean(1)
        np.testing.assert_allclose(values, expected, rtol=1e-12)
        assert problems[spec]._replace(loss=None) == LINEAR._replace(loss=None)


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


def test_wrong_texts_are_refused():
    for changes, message in (
        ({"loss": "cross_entrpy"}, "'cross_entrpy'; did you mean cross_entropy"),
        ({"loss": "focal:gamma=-1"}, "gamma=-1"),
        ({"loss": "cross_entropy:label_smoothing=1"}, "label_smoothing=1"),
        ({"metrics": "balanced"}, "'balanced'; did you mean balanced_accuracy?"),
        ({"metrics": "balanced_accuracy,top_k_accuracy:k=0"}, "k=0"),
        ({"metrics": "top_k_accuracy:5,top_k_accuracy:k=5"}, "'top_k_accuracy:5' is given twice"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Settings(**changes).problem(Settings().load())


@partial(jax.jit, static_argnames="ks")
def measured(logits, labels, ks):
    """The accuracies of each k, and the balanced one of each example and of all."""
    given = Outputs(logits), {"y": labels}
    top = [metrics["top_k_accuracy"](*given, k=k)[f"top_{k}_accuracy"] for k in ks]
    mean = metrics["balanced_accuracy"](*given)["balanced_accuracy"]
    return top, mean, jax.tree.map(lambda leaf: leaf.sum(0), mean).value()


def test_metrics_are_those_of_scikit_learn():
    """Logits without ties; classes of which some have no labels."""
    for seed in range(6):
        rng, ks = np.random.default_rng(seed), (1, 3, 5)
        logits, labels = rng.normal(size=(12, 5)), rng.choice(rng.permutation(5)[:3], 12)
        top, _, balanced = measured(logits, labels, ks)
        for k, found in zip(ks, top, strict=True):
            # scikit-learn refuses k = 5 of 5 classes with a warning, and gives 1
            expected = 1 if k == 5 else top_k_accuracy_score(labels, logits, k=k, labels=range(5))
            assert found.mean() == pytest.approx(expected)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of no label
            expected = balanced_accuracy_score(labels, logits.argmax(1))
        assert balanced == pytest.approx(expected)


def test_equal_logits_and_several_labels():
    """The first classes are the largest; shares of an example's labels; classes of all labels."""
    logits, labels = np.array([[1, 3, 3, 3.0]] * 4), np.arange(4)
    found = np.array(measured(logits, labels, (1, 2, 3))[0])
    np.testing.assert_array_equal(found, [[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(accuracy(*of(logits, labels))["accuracy"], found[0])
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 2, 4, 5)), rng.integers(0, 5, (3, 2, 4))
    right = (np.argsort(logits)[..., -2:] == labels[..., None]).any(-1)
    (found,), mean, balanced = measured(logits, labels, (2,))
    np.testing.assert_allclose(found, right.mean((1, 2)))
    assert mean.total.shape == mean.weight.shape == (3, 5)
    expected = balanced_accuracy_score(labels.ravel(), logits.argmax(-1).ravel())
    assert balanced == pytest.approx(expected)


def test_losses_and_metrics_of_ones_own(own_file):
    given = of([[0.1, 0.2, 0.3, 0.4]], [2])
    own = with_loss(LINEAR, f"{own_file}:scaled:scale=3")
    np.testing.assert_allclose(own.loss(*given), 3 * cross_entropy(*given))
    assert with_loss(own, f"{own_file}:scaled").loss is not own.loss
    problem = with_metrics(LINEAR, f"{own_file}:of_class,{own_file}:of_class:label=2")
    found = problem.metrics(*of([[0.0, 4.0, 1.0, 2.0], [1.0, 0.0, 0.0, 0.0]], [2, 0]))
    assert list(found) == ["accuracy", "accuracy_of_0", "accuracy_of_2"]
    assert found["accuracy_of_2"].weight.tolist() == [1, 0]
    assert found["accuracy_of_0"].total.tolist() == [0, 1]


def test_wrong_losses_and_metrics_of_ones_own(own_file):
    def measure(metrics):
        problem, examples = with_metrics(LINEAR, metrics), {"x": X, "y": np.zeros(4, int)}
        fa.make_evaluate(problem)(problem.init(jax.random.key(0)), examples)

    for call, message in (
        (lambda: with_loss(LINEAR, f"{own_file}:one_argument"), "cannot be the loss"),
        (lambda: with_loss(with_loss(LINEAR, f"{own_file}:scaled"), "focal"), "a loss of its own"),
        (lambda: measure("accuracy"), "'accuracy' is measured twice"),
        (lambda: measure(f"{own_file}:scaled"), "function (outputs, batch, "),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_methods_are_compared_by_the_accuracy(own_file):
    """A model that does not measure it is refused before the training, and can be given it."""
    for given, message in (
        ({}, "'accuracy' is not measured"),
        ({"metrics": "accuracy,top_k_accuracy:11"}, "k=11"),
    ):
        model = f"{own_file}:model_without_metrics"
        settings = Settings(clients=12, cohort=4, rounds=1, local_steps=2, model=model, **given)
        with pytest.raises(ValueError, match=message):
            prepare(settings, methods_of(("fedavg",), settings))


def entropy(outputs, batch):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])


def indexed(outputs, batch):
    return -jax.nn.log_softmax(outputs.logits)[jnp.arange(len(batch["y"])), batch["y"]]


def of_known_labels(outputs, batch):
    known = batch["y"] >= 0
    return jnp.where(known, entropy(outputs, {"y": jnp.where(known, batch["y"], 0)}), 0)


def check(loss, y, **others):
    check_labels(THREE._replace(loss=loss), "examples", {"x": X, "y": np.array(y), **others})


def test_a_label_that_is_taken_for_another_one_is_refused():
    for loss, y, message in (
        (entropy, [0, 1, 2, 3], r"label 3 in \['y'\], .* 3 classes, .* loss of this label is nan"),
        (entropy, [0, -1, 2, 2], "label -1 in .*, and the loss takes it for class 2"),
        (indexed, [0, 1, 2, 255], "label 255 in .*, and the loss takes it for class 2"),
    ):
        with pytest.raises(ValueError, match=message):
            check(loss, np.array(y, np.int16))


def test_labels_that_have_a_meaning_of_their_own_are_left_alone():
    check(entropy, [0, 1, 2, 2])
    check(of_known_labels, [0, -1, -100, 2])  # -1 marks examples that have no label
    check(lambda outputs, batch: (outputs.logits.sum(-1) - batch["y"]) ** 2, [0, 7, -3, 100])
    other = lambda outputs, batch: entropy(outputs, {"y": batch["group"]})  # noqa: E731
    check(other, [0, 1, 2, 99], group=np.array([0, 1, 2, 2]))  # y is not read
    check(entropy, [0.0, 1.0, 5.0, 2.0])  # a run explains real labels
    check(lambda outputs, batch: batch["z"], [0, 1, 2, 3])  # and a name that there is not


@pytest.mark.all
def test_the_labels_of_each_entry_of_a_sequence():
    problem = fa.Problem(
        init=lambda key: fa.Model({}),
        apply=lambda model, batch, key, training: (jnp.ones((3, 3))[batch["x"]], ()),
        loss=lambda logits, batch: entropy(Outputs(logits), batch).mean(-1),
    )
    x = np.array([[0, 1, 2, 0], [2, 2, 1, 9]])  # nothing but the labels are classes
    check_labels(problem, "examples", {"x": x, "y": x % 3})
    with pytest.raises(ValueError, match=r"label 9 in \['y'\], .* the loss of this label is nan"):
        check_labels(problem, "examples", {"x": x % 3, "y": x})


def test_a_module_whose_classes_are_known_when_it_is_traced():
    problem = fa.models.nnx_classifier(lambda rngs: nnx.Linear(3, 3, rngs=rngs))
    for loss in (problem.loss, entropy):
        own = problem._replace(loss=loss)
        with pytest.raises(ValueError, match="examples have label 3"):
            check_labels(own, "examples", {"x": X, "y": np.array([0, 1, 2, 3])})


def test_the_same_arrays_are_read_once(monkeypatch):
    calls = []
    monkeypatch.setattr(model_outputs, "check_labels", lambda *arguments: calls.append(arguments))
    read = model_outputs.LabelCheck(THREE, "examples")
    first, second = ({"x": jnp.asarray(X), "y": jnp.array([0, 1, 2, y])} for y in (1, 2))
    host = {"x": X, "y": np.array([0, 1, 2, 2])}  # which may be changed in place
    for examples, number in ((first, 1), (first, 1), (second, 2), (host, 3), (host, 4)):
        read(examples)
        assert len(calls) == number
