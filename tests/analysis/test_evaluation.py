"""The metrics of one model, over all examples and for each client, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation_helpers import check_metrics, expected, held_out, network
from helpers import Compilations, quadratics, stored

import fedjax_algos as fa
from fedjax_algos.core import Mean

pytestmark = pytest.mark.usefixtures("x64")


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
    assert highest.worst_decile == 23
    assert fa.summarise_clients(metric(np.arange(20.0)), "lowest").worst_decile == 0.5
    assert fa.summarise_clients(metric(np.arange(4.0)), "highest").worst_decile == 3
    for worst in ("lowest", "highest"):
        summary = fa.summarise_clients(metric([1.0, np.nan, 3.0]), worst)
        assert np.isnan([summary.mean, summary.worst_decile]).all()


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
