"""The metrics of each client's fine-tuned model, against a loop in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evaluation_helpers import check_metrics, expected, fine_tune, held_out, network
from helpers import Compilations, quadratics, stored

import fedjax_algos as fa

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)
NUMBER = -1  # the dispatch number of fine-tuning


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["auto", "vmapped", 3, "sequential"])
def test_fine_tuning_equals_a_loop_in_every_layout(layout):
    """Other models, seeds and steps compile nothing."""
    toy = network()
    test = held_out()
    model = toy.problem.init(jax.random.key(1))
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL, batch_size=4, layout=layout)
    metrics = evaluate(model, toy.data, stored(test), seed=3)
    tuned = fine_tune(model.params, toy.clients, seed=3, steps=[4] * 4, number=NUMBER)
    check_metrics(metrics, tuned, test, tolerance=1e-12)
    other, unequal = toy.problem.init(jax.random.key(2)), [3, 0, 7, 1]
    data = stored(test)
    with Compilations() as compilations:
        metrics = evaluate(other, toy.data, data, seed=4, num_steps=unequal)
        evaluate(model, toy.data, data, num_steps=9)
    assert compilations.count == 0
    tuned = fine_tune(other.params, toy.clients, seed=4, steps=unequal, number=NUMBER)
    check_metrics(metrics, tuned, test, 1e-12)


def test_auto_maps_32_clients_at_once_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    problem = network().problem
    clients = held_out(np.random.default_rng(0).integers(1, 5, size=35))
    model = problem.init(jax.random.key(1))
    evaluate = fa.make_evaluate_personal(problem, LOCAL._replace(steps=2))
    data = stored(clients)
    metrics = evaluate(model, data, data, seed=3)
    tuned = fine_tune(model.params, clients, seed=3, steps=[2] * 35, number=NUMBER)
    check_metrics(metrics, tuned, clients, tolerance=1e-12)


def test_epochs_depend_on_each_client_s_size():
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL._replace(steps=None, epochs=2))
    metrics = evaluate(model, toy.data, toy.data)
    tuned = fine_tune(model.params, toy.clients, seed=0, steps=[4, 2, 6, 2], number=NUMBER)
    check_metrics(metrics, tuned, toy.clients, 1e-12)


def test_a_client_without_examples():
    """It does not train on the examples of others, and has weight 0 in a test."""
    toy = network()
    offsets = np.asarray(toy.data.offsets).copy()
    offsets[2] -= 1  # client 1 gives its only example to client 2
    emptied = toy.data._replace(offsets=jnp.asarray(offsets))
    model = toy.problem.init(jax.random.key(1))
    test = held_out()
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL, layout=3)
    tuned = evaluate(model, emptied, stored(test), num_steps=5)
    assert float(tuned["loss"].value()[1]) == pytest.approx(
        expected(model.params, test[1])[0], rel=1e-14
    )
    tested = evaluate(model, toy.data, emptied)["loss"]
    assert tested.weight.tolist() == [5, 0, 9, 3]
    assert float(tested.value()[1]) == 0


def test_the_transform_of_local_is_applied():
    """The first step of Adam moves by the rate: x = .5 becomes .6 and .4 for any gradient."""
    toy = quadratics([[1.0], [1.0]], [[100.0], [-100.0]])
    local = fa.Local(1, 0.1, steps=1, transform=optax.scale_by_adam(eps=0.0))
    test = stored([{"a": np.asarray([2.0]), "b": np.asarray([0.0])}] * 2)
    evaluate = fa.make_evaluate_personal(toy.problem, local)
    loss = evaluate(toy.problem.init(None), toy.data, test)["loss"]
    np.testing.assert_allclose(loss.value(), [0.36, 0.16], rtol=1e-12)


def test_statistics_are_personal():
    """Statistics that count training batches reach the evaluation of the same client."""
    toy = quadratics([[1.0], [1.0], [1.0]], [[0.0], [0.0], [0.0]])
    problem = toy.problem._replace(
        apply=lambda model, batch, key, training: (model.statistics, model.statistics + training),
        loss=lambda seen, batch: jnp.full(batch["a"].shape, seen),
    )
    evaluate = fa.make_evaluate_personal(problem, LOCAL, layout=2)
    model = fa.Model({"x": jnp.asarray(0.5)}, jnp.asarray(10.0))
    loss = evaluate(model, toy.data, toy.data, num_steps=[0, 5, 2])["loss"]
    assert loss.value().tolist() == [10, 15, 12]


@pytest.mark.parametrize(
    ("local", "options", "message"),
    [
        (LOCAL, {"batch_size": -1}, "batch_size=-1 is out of range"),
        (LOCAL, {"layout": "diagonal"}, "layout='diagonal' is unknown"),
        (fa.Local(3, 0.1), {}, "give exactly one of them"),
    ],
)
def test_wrong_options(local, options, message):
    with pytest.raises(ValueError, match=message):
        fa.make_evaluate_personal(network().problem, local, **options)


def test_wrong_calls():
    toy = network()
    model, evaluate = (
        toy.problem.init(jax.random.key(1)),
        fa.make_evaluate_personal(toy.problem, LOCAL),
    )
    with pytest.raises(ValueError, match="4 clients to train and 1 to test"):
        evaluate(model, toy.data, stored(held_out([3])))
    with pytest.raises(ValueError, match="num_steps=-2 is out of range"):
        evaluate(model, toy.data, toy.data, num_steps=[1, -2, 0, 0])
