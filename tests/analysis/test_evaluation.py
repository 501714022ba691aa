"""Metrics for each client of one model, fine-tuned ones and its own, against plain NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation_helpers import check_metrics, expected, fine_tune, held_out, network, start
from helpers import Case, Compilations, quadratics, stored, with_statistics

import fedjax_algos as fa
from fedjax_algos.core import Mean

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)


def test_means_of_each_client_are_exact_and_another_model_compiles_nothing():
    toy, models = network(), [start(seed) for seed in range(2)]
    evaluate = fa.make_evaluate_clients(toy.problem, 4)
    check_metrics(evaluate(models[1], toy.data), [models[1].params] * 4, toy.clients)
    with Compilations() as compilations:
        check_metrics(evaluate(models[0], toy.data), [models[0].params] * 4, toy.clients)
    assert compilations.count == 0


def test_examples_of_others_are_not_read_and_empty_clients_have_weight_0():
    """A NaN stays with its client."""
    examples = {"x": np.full((9, 3), np.nan), "y": np.full(9, np.nan)}
    client, model = held_out([4])[0], start()
    for key, rows in examples.items():
        rows[[8, 1, 6, 3]] = client[key]
    data = fa.FederatedData(
        examples, jnp.asarray([8, 1, 6, 3, 0], jnp.int32), jnp.asarray([0, 0, 4, 4, 5], jnp.int32)
    )
    loss = fa.make_evaluate_clients(network().problem, 3)(model, data)["loss"]
    assert loss.weight.tolist() == [0, 4, 0, 1]
    values = [np.nan, expected(model.params, client)[0], np.nan, np.nan]
    np.testing.assert_allclose(loss.value(), values, rtol=1e-12)
    summary = fa.summarise_clients(jax.tree.map(lambda leaf: leaf[:3], loss), "highest")
    assert summary.mean == summary.worst_decile == summary.weighted_mean == loss.value()[1]
    assert summary.standard_deviation == 0


def test_sums_have_at_least_the_precision_of_float32():
    """In bfloat16, 1000 flags would add up to 256."""
    problem = quadratics([[1.0]], [[0.0]]).problem._replace(
        metrics=lambda x, batch: {"half": jnp.ones(batch["a"].shape, jnp.bfloat16)}
    )
    data = stored([{"a": np.ones(1000), "b": np.zeros(1000)}])
    model = problem.init(None)
    each = fa.make_evaluate_clients(problem, 10)(model, data)["half"]
    whole = fa.make_evaluate(problem, 10)(model, data.examples)["half"]
    assert [*each.total, *each.weight, *whole] == [1000] * 4


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


@pytest.mark.parametrize("layout", ["auto", pytest.param(3, marks=pytest.mark.all)])
def test_fine_tuning_equals_a_loop_in_every_layout(layout):
    """Other models, seeds and steps compile nothing."""
    toy, test = network(), held_out()
    model, other, data = start(), start(2), stored(test)
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL, batch_size=4, layout=layout)
    metrics = evaluate(model, toy.data, data, seed=3)
    tuned = fine_tune(model.params, toy.clients, seed=3, steps=[4] * 4)
    check_metrics(metrics, tuned, test, 1e-12)
    with Compilations() as compilations:
        metrics = evaluate(other, toy.data, data, seed=4, num_steps=[3, 0, 7, 1])
        evaluate(model, toy.data, data, num_steps=9)
    assert compilations.count == 0
    tuned = fine_tune(other.params, toy.clients, seed=4, steps=[3, 0, 7, 1])
    check_metrics(metrics, tuned, test, 1e-12)


def test_epochs_depend_on_each_client_s_size():
    toy, model = network(), start()
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL._replace(steps=None, epochs=2))
    tuned = fine_tune(model.params, toy.clients, seed=0, steps=[4, 2, 6, 2])
    check_metrics(evaluate(model, toy.data, toy.data), tuned, toy.clients, 1e-12)


def test_a_client_without_examples():
    """It does not train on the examples of others, and has no loss in a test."""
    toy, model, test = network(), start(), held_out()
    offsets = np.asarray(toy.data.offsets).copy()
    offsets[2] -= 1  # client 1 gives its only example to client 2
    emptied = toy.data._replace(offsets=jnp.asarray(offsets))
    evaluate = fa.make_evaluate_personal(toy.problem, LOCAL, layout=3)
    tuned = evaluate(model, emptied, stored(test), num_steps=5)
    loss, _ = expected(model.params, test[1])
    assert float(tuned["loss"].value()[1]) == pytest.approx(loss, rel=1e-14)
    tested = evaluate(model, toy.data, emptied)["loss"]
    assert tested.weight.tolist() == [5, 0, 9, 3]
    assert np.isnan(tested.value()).tolist() == [False, True, False, False]


def test_statistics_are_personal():
    """Statistics that count training batches reach the evaluation of the same client."""
    toy = quadratics([[1.0]] * 3, [[0.0]] * 3)
    problem = toy.problem._replace(
        init=lambda key: fa.Model({"x": jnp.asarray(0.5)}, jnp.asarray(10.0)),
        apply=lambda model, batch, key, training: (model.statistics, model.statistics + training),
        loss=lambda seen, batch: jnp.full(batch["a"].shape, seen),
    )
    evaluate = fa.make_evaluate_personal(problem, LOCAL, layout=2)
    loss = evaluate(problem.init(None), toy.data, toy.data, num_steps=[0, 5, 2])["loss"]
    assert loss.value().tolist() == [10, 15, 12]


def trained(case, problem=None, *, cohort_size=2, **options):
    """An algorithm, its engine, and the state after one round of two of the four clients."""
    toy = network()
    algorithm = case.build(problem or toy.problem, LOCAL._replace(steps=2))
    engine = fa.make_engine(algorithm, 2, **options)
    state, _ = fa.simulate(engine, toy.data, cohort_size=cohort_size, rounds=1, seed=1)
    return algorithm, engine, state


def own_params(algorithm, engine, state, number):
    """The params of each of the clients, also of those that were never dispatched."""
    rows = fa.client_states(engine, state).rows
    of_client = [jax.tree.map(lambda leaf, c=c: leaf[c], rows) for c in range(number)]
    return [algorithm.personal(state.server, row).params for row in of_client]


@functools.cache
def ditto():
    return trained(Case("ditto", {}))


@pytest.mark.all
@pytest.mark.parametrize("layout", ["auto", 3])
def test_every_client_is_evaluated_with_its_own_model(layout):
    """Two of the four were never dispatched; on training and on held-out examples."""
    algorithm, engine, state = ditto()
    params = own_params(algorithm, engine, state, 4)
    assert fa.client_states(engine, state).dispatched.sum() == 2
    evaluate = fa.make_evaluate_own(algorithm, batch_size=4, layout=layout)
    check_metrics(evaluate(state, network().data), params, network().clients, 1e-12)
    check_metrics(evaluate(state, stored(held_out())), params, held_out(), 1e-12)


@pytest.mark.all
@pytest.mark.parametrize("where", ["host", "disk", "two devices"])
def test_rows_elsewhere_give_the_same_metrics(where, monkeypatch, tmp_path):
    """Two pieces of rows in host memory and on disk; rows divided over two devices."""
    monkeypatch.setattr("fedjax_algos.analysis.personal_evaluation._MAX_ROWS", 3)
    case = Case("fedrep", {"head": "out", "body_share": 0.5})
    places = {"host": "host", "disk": fa.RowsOnDisk(tmp_path)}
    given = {"client_state": places[where]} if where in places else {"devices": 2}
    algorithm, engine, state = trained(case, **given)
    evaluate = fa.make_evaluate_own(algorithm)
    params = own_params(algorithm, engine, state, 4)
    check_metrics(evaluate(state, network().data), params, network().clients, 1e-12)


@pytest.mark.all
def test_own_models_that_train_further():
    algorithm, engine, state = ditto()
    evaluate = fa.make_evaluate_own(algorithm)
    metrics = evaluate(state, stored(held_out()), train=network().data, num_steps=3, seed=5)
    starts = own_params(algorithm, engine, state, 4)
    tuned = [fine_tune(own, network().clients, seed=5, steps=[3] * 4) for own in starts]
    check_metrics(metrics, [tuned[client][client] for client in range(4)], held_out(), 1e-12)


@pytest.mark.all
def test_an_algorithm_without_models_of_clients():
    """The common model; Per-FedAvg's clients take a step of their own rate from it."""
    algorithm, _, state = trained(Case("perfedavg", {"alpha": 0.2}))
    params, test = [state.server.params] * 4, stored(held_out())
    check_metrics(fa.make_evaluate_own(algorithm)(state, test), params, held_out())
    evaluate = fa.make_evaluate_own(algorithm, local=fa.Local(3, 0.2, steps=1))
    tuned = fine_tune(params[0], network().clients, seed=0, steps=[1] * 4, rate=0.2)
    check_metrics(evaluate(state, test, train=network().data), tuned, held_out(), 1e-12)


@pytest.mark.all
@pytest.mark.parametrize("name", ["fedbn", "fedrep"])
def test_statistics_are_the_client_s_own_or_those_of_the_run(name):
    """FedBN's are those of the row; FedRep's models take the run's."""
    case = Case(name, {"head": "out"} if name == "fedrep" else {})
    algorithm, engine, state = trained(case, with_statistics(network().problem), cohort_size=4)
    rows = fa.client_states(engine, state).rows
    means = rows.statistics["mean"] if name == "fedbn" else [state.statistics["mean"]] * 4
    each = zip(network().clients, means, strict=True)
    shifted = [client | {"x": client["x"] - np.asarray(mean)} for client, mean in each]
    metrics = fa.make_evaluate_own(algorithm)(state, network().data)
    check_metrics(metrics, own_params(algorithm, engine, state, 4), shifted, 1e-12)


@pytest.mark.all
def test_own_models_compile_once_for_all_sizes_of_clients_and_all_states():
    algorithm, engine, state = trained(Case("apfl", {}))
    evaluate, data = fa.make_evaluate_own(algorithm), stored(held_out([1, 40, 3, 7]))
    other = engine.init(7, fa.Population(4, 2, 17))
    first = evaluate(state, data)
    with Compilations() as compilations:
        second = evaluate(other, data)
    assert compilations.count == 0
    assert first["loss"].weight.tolist() == second["loss"].weight.tolist() == [1, 40, 3, 7]
    assert not np.array_equal(first["loss"].total, second["loss"].total)


def test_wrong_calls():
    toy, model = network(), start()
    averaged = toy.problem._replace(loss=lambda outputs, batch: jnp.mean(outputs.logits))
    empty = toy.data._replace(indices=toy.data.indices[:0], offsets=toy.data.offsets * 0)
    make, tune = fa.make_evaluate_personal, fa.make_evaluate_personal(toy.problem, LOCAL)
    algorithm, _, state = ditto()
    own, others = fa.make_evaluate_own(algorithm), stored(held_out([3]))
    for call, named in {
        lambda: fa.make_evaluate(toy.problem, 0): "batch_size=0",
        lambda: fa.make_evaluate_clients(toy.problem, 0): "batch_size=0",
        lambda: fa.make_evaluate_clients(averaged)(model, toy.data): r"loss has shape \(\)",
        lambda: fa.make_evaluate_clients(toy.problem)(model, empty): "clients' examples=0",
        lambda: fa.summarise_clients(metric([1.0]), "best"): "worst='best'",
        lambda: fa.summarise_clients(metric([1.0, 2.0], [0, 0]), "lowest"): "none of the 2",
        lambda: make(toy.problem, LOCAL, batch_size=-1): "batch_size=-1",
        lambda: make(toy.problem, LOCAL, layout="diagonal"): "layout='diagonal'",
        lambda: make(toy.problem, fa.Local(3, 0.1)): "give exactly one of them",
        lambda: tune(model, toy.data, others): "4 clients train, 1 are tested",
        lambda: own(state, others, train=toy.data): "4 clients train, 1 are tested",
        lambda: own(state, toy.data, num_steps=3): "train=None is not of type FederatedData",
        lambda: tune(model, toy.data, toy.data, num_steps=[1, -2, 0, 0]): "num_steps=-2",
    }.items():
        with pytest.raises(ValueError, match=named):
            call()
    with pytest.raises(TypeError, match=r"engine\.init"):
        own(state.server, toy.data)
    with pytest.raises(TypeError, match=r"algorithms\.fedavg"):
        fa.make_evaluate_own(toy.problem)
