"""Losses by name: against NumPy, in runs, and with a function of one's own."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.models import losses, with_loss
from fedjax_algos.models.adapters import Outputs, accuracy, cross_entropy
from fedjax_algos.models.labels import check_labels
from fedjax_algos.runs import comparison
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

LINEAR = fa.models.linear((3,), 4)
SMALL = Settings(model="linear", clients=12, cohort=4, rounds=1, local_steps=2, eval_every=1)
OWN = """
import jax.numpy as jnp
import optax

def scaled(outputs, batch, *, scale: float = 2.0):
    return scale * optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

def mean(outputs, batch):
    return scaled(outputs, batch).mean()

def pair(outputs, batch):
    return scaled(outputs, batch), ()

def one_argument(outputs):
    return outputs
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_losses.py"
    path.write_text(OWN)
    yield path
    for name in [name for name in losses if ":" in name]:
        del losses[name]


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


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("cross_entropy", 0.0),
        ("cross_entropy:label_smoothing=0.3", 0.3),
        ("cross_entropy:0.3", 0.3),
        ("focal", 2.0),
        ("focal:gamma=0.5", 0.5),
        ("focal:gamma=0", 0.0),
        ("brier", None),
        ("squared_error", None),
        ("hinge", None),
    ],
)
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


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(name for name in losses if ":" not in name))
def test_gradients_are_finite_where_the_label_is_certain(name):
    """In float32, where the probability of a label is 1 or 0."""

    def total(logits):
        batch = {"y": jnp.array([[0, 1]])}  # two labels of one example, for losses of masks too
        options = {"gamma": 0.5} if name == "focal" else {}
        return losses[name](Outputs(logits), batch, **options).sum()

    logits = jnp.array([[[80.0, -80.0], [80.0, -80.0]]], jnp.float32)
    assert np.isfinite(jax.grad(total)(logits)).all()


def test_equal_texts_give_one_object():
    """So that problems made from them share their compiled programs."""
    assert with_loss(LINEAR, "focal:gamma=1") == with_loss(LINEAR, "focal:1.0")
    assert with_loss(LINEAR, "focal:gamma=1") != with_loss(LINEAR, "focal")
    assert with_loss(LINEAR, "cross_entropy") == LINEAR
    assert LINEAR.loss is cross_entropy


@pytest.mark.slow
def test_a_run_trains_and_evaluates_with_the_loss():
    """The mean squared error of a linear model: a step of each of 4 clients in NumPy."""
    settings = Settings(**vars(SMALL) | {"loss": "squared_error", "local_steps": 1})
    settings = Settings(**vars(settings) | {"batches": "full", "clients": 4})
    experiment = prepare(settings, methods_of(("fedavg:weighting=uniform",), settings))
    (engine,) = experiment.engines.values()
    rows = comparison.run(experiment)
    params = jax.tree.map(np.asarray, engine.algorithm.problem.init(fa.core.keys.model_key(0)))
    w, b = params.params["Dense_0"]["kernel"], params.params["Dense_0"]["bias"]

    def values(examples, w, b):
        x = np.asarray(examples["x"], float).reshape(len(examples["y"]), -1)
        return x, x @ w + b, np.eye(10)[np.asarray(examples["y"])]

    ends = []
    data = experiment.data[0]
    for client in range(4):
        rows_of = data.indices[data.offsets[client] : data.offsets[client + 1]]
        own = {name: np.asarray(leaf)[rows_of] for name, leaf in data.examples.items()}
        x, z, target = values(own, w, b)
        slope = 2 * (z - target) / len(x)
        ends.append((w - 0.1 * x.T @ slope, b - 0.1 * slope.sum(0)))
    w, b = (np.mean(each, 0) for each in zip(*ends, strict=True))
    _, z, target = values(experiment.test, w, b)
    np.testing.assert_allclose(rows[-1]["test_loss"], ((z - target) ** 2).sum(1).mean(), rtol=1e-5)
    right = (z.argmax(1) == target.argmax(1)).mean()
    np.testing.assert_allclose(rows[-1]["test_accuracy"], right, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cross_entrpy", "unknown loss 'cross_entrpy'; did you mean cross_entropy"),
        ("focal:gama=1", "focal: unknown option 'gama'; did you mean gamma?"),
        ("focal:gamma=-1", "focal: gamma=-1 is out of range; give a number of at least 0"),
        ("focal:gamma=nan", "focal: gamma='nan' is no number"),
        ("cross_entropy:label_smoothing=1", "label_smoothing=1 is out of range"),
        ("hinge:margin=2", "hinge takes no options; leave 'margin' out"),
    ],
)
def test_wrong_texts_get_the_fix(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(loss=spec).check()


def test_losses_of_ones_own(own_file):
    logits, labels = jnp.asarray([[0.1, 0.2, 0.3, 0.4]]), {"y": jnp.array([2])}
    own = with_loss(LINEAR, f"{own_file}:scaled:scale=3")
    expected = 3 * cross_entropy(Outputs(logits), labels)
    np.testing.assert_allclose(own.loss(Outputs(logits), labels), expected)
    with pytest.raises(ValueError, match="is no loss"):
        with_loss(LINEAR, f"{own_file}:one_argument")


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


def test_a_model_with_a_loss_of_its_own_keeps_it(own_file):
    own = with_loss(LINEAR, f"{own_file}:scaled")
    with pytest.raises(ValueError, match="the model has a loss of its own; leave loss out"):
        with_loss(own, "focal")
    assert with_loss(own, f"{own_file}:scaled:scale=3").loss is not own.loss


def test_labels_are_checked_for_every_loss():
    examples = {"x": np.zeros((2, 3)), "y": np.array([0, 4])}
    for loss in ("cross_entropy:0.1", "focal", "brier"):
        with pytest.raises(ValueError, match="have label 4; give whole numbers from 0 to 3"):
            check_labels(with_loss(LINEAR, loss), "the examples", examples)
