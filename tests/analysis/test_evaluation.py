"""The metrics of one model and of fine-tuned ones, for each client, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evaluation_helpers import check_metrics, expected, fine_tune, held_out, network
from helpers import Compilations, quadratics, stored

import fedjax_algos as fa
from fedjax_algos.core import Mean

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)
NUMBER = -1  # the dispatch number of fine-tuning


def test_means_of_each_client_are_exact_and_another_model_compiles_nothing():
    toy = network()
    models = [toy.problem.init(jax.random.key(seed)) for seed in range(2)]
    evaluate = fa.make_evaluate_clients(toy.problem, 4)
    check_metrics(evaluate(models[1], toy.data), [models[1].params] * 4, toy.clients)
    with Compilations() as compilations:
        check_metrics(evaluate(models[0], toy.data), [models[0].params] * 4, toy.clients)
    assert compilations.count == 0


def test_a_nan_stays_with_its_client():
    toy = network()
    clients = held_out()
    clients[1]["y"][3] = np.nan
    model = toy.problem.init(jax.random.key(1))
    metrics = fa.make_evaluate_clients(toy.problem, 5)(model, stored(clients))
    assert np.isnan(metrics["loss"].value()).tolist() == [False, True, False, False]


def test_examples_of_no_client_are_not_read_and_empty_clients_have_weight_0():
    toy = network()
    examples = {"x": np.full((9, 3), np.nan), "y": np.full(9, np.nan)}
    client = held_out([4])[0]
    for key, rows in examples.items():
        rows[[8, 1, 6, 3]] = client[key]
    data = fa.FederatedData(
        examples, jnp.asarray([8, 1, 6, 3], jnp.int32), jnp.asarray([0, 0, 4, 4, 4], jnp.int32)
    )
    model = toy.problem.init(jax.random.key(1))
    loss = fa.make_evaluate_clients(toy.problem, 3)(model, data)["loss"]
    assert loss.weight.tolist() == [0, 4, 0, 0]
    assert loss.value().tolist() == pytest.approx([0, expected(model.params, client)[0], 0, 0])
    summary = fa.summarise_clients(loss, "highest")
    assert summary.mean == summary.worst_decile == summary.weighted_mean == loss.value()[1]
    assert summary.standard_deviation == 0


def test_sums_have_at_least_the_precision_of_float32():
    """In bfloat16, 1000 flags would add up to 256."""
    problem = quadratics([[1.0]], [[0.0]]).problem._replace(
        metrics=lambda x, batch: {"half": jnp.ones(batch["a"].shape, jnp.bfloat16)}
    )
    data = stored([{"a": np.ones(1000), "b": np.zeros(1000)}])
    model = problem.init(None)
    for metrics in (
        fa.make_evaluate_clients(problem, 10)(model, data),
        fa.make_evaluate(problem, 10)(model, data.examples),
    ):
        assert float(np.squeeze(metrics["half"].total)) == 1000
        assert float(np.squeeze(metrics["half"].weight)) == 1000


def metric(values, weights=None):
    """The `Mean`s of clients with these values."""
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    return Mean(jnp.asarray(values * weights), weights)


def test_summary_of_clients():
    values = np.random.default_rng(0).permutation(np.arange(25.0))
    lowest, highest = (fa.summarise_clients(metric(values), w) for w in ("lowest", "highest"))
    assert lowest.mean == highest.mean == lowest.weighted_mean == 12
    assert lowest.standard_deviation == pytest.approx(np.sqrt((25**2 - 1) / 12))
    assert lowest.worst_decile == 1  # of ceil(2.5) = 3 clients: 0, 1, 2
    assert highest.worst_decile == lowest.best_decile == 23
    assert fa.summarise_clients(metric(np.arange(20.0)), "lowest").worst_decile == 0.5
    assert fa.summarise_clients(metric(np.arange(4.0)), "highest").worst_decile == 3
    for worst in ("lowest", "highest"):
        summary = fa.summarise_clients(metric([1.0, np.nan, 3.0]), worst)
        assert np.isnan([summary.mean, summary.worst_decile, summary.jain_index]).all()
        assert summary.best_decile == (3 if worst == "lowest" else 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 1, 1, 0], 0.75), ([0.3] * 5, 1), ([0, 0, 0.2], 1 / 3), ([0.0, 0], 1), ([0.5], 1)],
)
def test_jain_indices(values, expected):
    found = fa.summarise_clients(metric(np.array(values)), "lowest").jain_index
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_wrong_calls():
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    for make in (fa.make_evaluate, fa.make_evaluate_clients):
        with pytest.raises(ValueError, match="batch_size=0 is out of range; give a whole"):
            make(toy.problem, 0)
    averaged = toy.problem._replace(loss=lambda outputs, batch: jnp.mean(outputs.logits))
    with pytest.raises(ValueError, match=r"loss has shape \(\), but must give one value for each"):
        fa.make_evaluate_clients(averaged)(model, toy.data)
    empty = toy.data._replace(indices=toy.data.indices[:0], offsets=toy.data.offsets * 0)
    with pytest.raises(ValueError, match="the 4 clients hold 0 examples"):
        fa.make_evaluate_clients(toy.problem)(model, empty)
    with pytest.raises(ValueError, match="worst='best' is unknown; choose lowest or highest"):
        fa.summarise_clients(metric([1.0]), "best")
    with pytest.raises(ValueError, match="none of the 2 clients has examples"):
        fa.summarise_clients(metric([1.0, 2.0], [0, 0]), "lowest")


# fine-tuned models


@pytest.mark.parametrize("layout", ["auto", pytest.param(3, marks=pytest.mark.all)])
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


@pytest.mark.all
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
    loss, _ = expected(model.params, test[1])
    assert float(tuned["loss"].value()[1]) == pytest.approx(loss, rel=1e-14)
    tested = evaluate(model, toy.data, emptied)["loss"]
    assert tested.weight.tolist() == [5, 0, 9, 3]
    assert float(tested.value()[1]) == 0


@pytest.mark.all
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
        init=lambda key: fa.Model({"x": jnp.asarray(0.5)}, jnp.asarray(10.0)),
        apply=lambda model, batch, key, training: (model.statistics, model.statistics + training),
        loss=lambda seen, batch: jnp.full(batch["a"].shape, seen),
    )
    evaluate = fa.make_evaluate_personal(problem, LOCAL, layout=2)
    loss = evaluate(problem.init(None), toy.data, toy.data, num_steps=[0, 5, 2])["loss"]
    assert loss.value().tolist() == [10, 15, 12]


def test_wrong_calls_of_personal_evaluation():
    toy = network()
    for local, options, message in (
        (LOCAL, {"batch_size": -1}, "batch_size=-1 is out of range"),
        (LOCAL, {"layout": "diagonal"}, "layout='diagonal' is unknown"),
        (fa.Local(3, 0.1), {}, "give exactly one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.make_evaluate_personal(toy.problem, local, **options)
    model = toy.problem.init(jax.random.key(1))
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL)
    with pytest.raises(ValueError, match="4 clients to train and 1 to test"):
        evaluate(model, toy.data, stored(held_out([3])))
    with pytest.raises(ValueError, match="num_steps=-2 is out of range"):
        evaluate(model, toy.data, toy.data, num_steps=[1, -2, 0, 0])
