"""Labels that are no classes, in problems with a loss of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_algos as fa
from fedjax_algos.models import outputs as model_outputs
from fedjax_algos.models.outputs import check_labels

X = np.ones((4, 3), np.float32)
LINEAR = fa.models.linear((3,), 3)


def entropy(outputs, batch):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])


def indexed(outputs, batch):
    return -jax.nn.log_softmax(outputs.logits)[jnp.arange(len(batch["y"])), batch["y"]]


def of_known_labels(outputs, batch):
    known = batch["y"] >= 0
    return jnp.where(known, entropy(outputs, {"y": jnp.where(known, batch["y"], 0)}), 0)


def regression(outputs, batch):
    return (outputs.logits.sum(-1) - batch["y"]) ** 2


def of_other_labels(outputs, batch):
    return entropy(outputs, {"y": batch["group"]})


def check(loss, y, **others):
    check_labels(LINEAR._replace(loss=loss), "examples", {"x": X, "y": np.array(y), **others})


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (entropy, [0, 1, 2, 3], r"label 3 in \['y'\], .* 3 classes, .* loss of this label is nan"),
        (entropy, [0, -1, 2, 2], "label -1 in .*, and the loss takes it for class 2; give whole"),
        (indexed, [0, 1, 2, 255], "label 255 in .*, and the loss takes it for class 2"),
    ],
)
def test_a_label_that_is_taken_for_another_one_is_refused(loss, y, message):
    with pytest.raises(ValueError, match=message):
        check(loss, np.array(y, np.int16))


def test_labels_that_have_a_meaning_of_their_own_are_left_alone():
    check(entropy, [0, 1, 2, 2])
    check(of_known_labels, [0, -1, -100, 2])  # -1 marks examples that have no label
    check(regression, [0, 7, -3, 100])
    check(of_other_labels, [0, 1, 2, 99], group=np.array([0, 1, 2, 2]))  # y is not read
    check(entropy, [0.0, 1.0, 5.0, 2.0])  # a run explains real labels
    check(lambda outputs, batch: batch["z"], [0, 1, 2, 3])  # and a name that there is not


def test_the_labels_of_each_entry_of_a_sequence():
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.ones((3, 3))}),
        apply=lambda model, batch, key, training: (model.params["w"][batch["x"]], ()),
        loss=lambda logits, batch: optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["y"]
        ).mean(-1),
    )
    x = np.array([[0, 1, 2, 0], [2, 2, 1, 9]])  # nothing but the labels are classes
    check_labels(problem, "examples", {"x": x, "y": x % 3})
    with pytest.raises(ValueError, match=r"label 9 in \['y'\], .* the loss of this label is nan"):
        check_labels(problem, "examples", {"x": x % 3, "y": x})


def test_a_module_whose_classes_are_known_when_it_is_traced():
    problem = fa.models.nnx_classifier(lambda rngs: nnx.Linear(3, 3, rngs=rngs))
    examples = {"x": X, "y": np.array([0, 1, 2, 3])}
    for loss in (problem.loss, entropy):
        with pytest.raises(ValueError, match="examples have label 3"):
            check_labels(problem._replace(loss=loss), "examples", examples)


def test_labels_are_read_once_and_not_in_each_round(monkeypatch):
    data = fa.federate({"x": X, "y": np.array([0, 1, 2, 2])}, fa.Partition.of([[0, 1], [2, 3]]))
    engine = fa.make_engine(fa.algorithms.fedavg(LINEAR, fa.Local(1, 0.1, steps=1)))
    calls = []
    monkeypatch.setattr(model_outputs, "check_labels", lambda *arguments: calls.append(arguments))
    changed = data._replace(examples=data.examples | {"y": data.examples["y"] + 0})
    for examples, number in ((data, 1), (data, 1), (changed, 2)):
        fa.simulate(engine, examples, cohort_size=1, rounds=2)
        assert len(calls) == number
