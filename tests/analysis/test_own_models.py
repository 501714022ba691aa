"""The metrics of each client's own model of a run, against plain NumPy on the rows."""

import functools

import chex
import numpy as np
import pytest
from evaluation_helpers import check_metrics, fine_tune, held_out, network, own_params
from helpers import Case, Compilations, stored, with_statistics

import fedjax_algos as fa

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
NUMBER = -1  # the dispatch number of fine-tuning


def trained(case, problem=None, *, cohort_size=2, **options):
    """An algorithm, its engine, and the state after one round of two of the four clients."""
    toy = network()
    algorithm = case.build(problem or toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, 2, **options)
    state, _ = fa.simulate(engine, toy.data, cohort_size=cohort_size, rounds=1, seed=1)
    return algorithm, engine, state


@functools.cache
def ditto():
    return trained(Case("ditto", {}))


@pytest.mark.parametrize("layout", ["auto", pytest.param(3, marks=pytest.mark.all)])
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
    """In host memory and on disk, in two pieces, and divided over two devices."""
    monkeypatch.setattr("fedjax_algos.analysis.personal_evaluation._MAX_ROWS", 3)
    case = Case("fedrep", {"head": "out", "body_share": 0.5})
    places = {"host": "host", "disk": fa.RowsOnDisk(tmp_path)}
    given = {"client_state": places[where]} if where in places else {"devices": 2}
    algorithm, engine, state = trained(case, **given)
    evaluate = fa.make_evaluate_own(algorithm)
    params = own_params(algorithm, engine, state, 4)
    check_metrics(evaluate(state, network().data), params, network().clients, 1e-12)


@pytest.mark.all
def test_clients_that_train_further():
    algorithm, engine, state = ditto()
    evaluate = fa.make_evaluate_own(algorithm)
    metrics = evaluate(state, stored(held_out()), train=network().data, num_steps=3, seed=5)
    params = own_params(algorithm, engine, state, 4)
    tuned = [
        fine_tune(own, network().clients, seed=5, steps=[3] * 4, number=NUMBER)[client]
        for client, own in enumerate(params)
    ]
    check_metrics(metrics, tuned, held_out(), 1e-12)


@pytest.mark.all
def test_an_algorithm_without_models_of_clients():
    """The common model; Per-FedAvg's clients take a step of their own rate from it."""
    algorithm, _, state = trained(Case("perfedavg", {"alpha": 0.2}))
    model, test = fa.Model(state.server.params), stored(held_out())
    common = fa.make_evaluate_own(algorithm)(state, test)
    chex.assert_trees_all_equal(common, fa.make_evaluate_clients(algorithm.problem)(model, test))
    step = fa.Local(8, 0.2, steps=1)
    tuned = fa.make_evaluate_own(algorithm, local=step)(state, test, train=network().data)
    personal = fa.make_evaluate_personal(algorithm.problem, step)(model, network().data, test)
    chex.assert_trees_all_close(tuned, personal, rtol=1e-12)


@pytest.mark.all
def test_statistics_are_the_client_s_own_or_those_of_the_run():
    """FedBN's are those of the row; FedRep's models take the run's."""
    problem = with_statistics(network().problem)
    for name, options in (("fedbn", {}), ("fedrep", {"head": "out"})):
        algorithm, engine, state = trained(Case(name, options), problem, cohort_size=4)
        rows = fa.client_states(engine, state).rows
        means = rows.statistics["mean"] if name == "fedbn" else [state.statistics["mean"]] * 4
        shifted = [
            c | {"x": c["x"] - np.asarray(m)} for c, m in zip(network().clients, means, strict=True)
        ]
        metrics = fa.make_evaluate_own(algorithm)(state, network().data)
        check_metrics(metrics, own_params(algorithm, engine, state, 4), shifted, 1e-12)


@pytest.mark.all
def test_one_compilation_for_all_sizes_of_clients_and_all_states():
    algorithm, engine, state = trained(Case("apfl", {}))
    evaluate, clients = fa.make_evaluate_own(algorithm), held_out([1, 40, 3, 7])
    data = stored(clients)
    other = engine.init(7, fa.Population(4, 2, 17))
    with Compilations() as compilations:
        first = evaluate(state, data)
    assert compilations.count >= 1
    with Compilations() as compilations:
        second = evaluate(other, data)
    assert compilations.count == 0
    assert first["loss"].weight.tolist() == second["loss"].weight.tolist() == [1, 40, 3, 7]
    assert not np.array_equal(first["loss"].total, second["loss"].total)


def test_wrong_calls():
    algorithm, _, state = ditto()
    evaluate, data = fa.make_evaluate_own(algorithm), network().data
    with pytest.raises(ValueError, match="num_steps=3 need examples; give train"):
        evaluate(state, data, num_steps=3)
    with pytest.raises(TypeError, match=r"give what engine\.init or a round returned"):
        evaluate(state.server, data)
    with pytest.raises(ValueError, match="4 clients to train and 1 to test"):
        evaluate(state, stored(held_out([3])), train=data)
    with pytest.raises(TypeError, match=r"give what a factory returns, such as algorithms\.fedavg"):
        fa.make_evaluate_own(network().problem)
