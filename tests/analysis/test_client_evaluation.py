"""Each client's metrics, of the common model and of personal ones, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Compilations, positions, quadratics, small_network, stored

import fedjax_algos as fa
from fedjax_algos.analysis import personal_evaluation
from fedjax_algos.analysis.evaluation import make_evaluate_clients, summarise_clients
from fedjax_algos.analysis.personal_evaluation import client_view, make_evaluate_personal
from fedjax_algos.core import Mean
from fedjax_algos.core.permutation import permutation_words

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)
OUTSIDE = -1  # the visit number that fine-tuning uses


def network():
    """The small network with a metric of flags, and training clients."""
    toy = small_network()
    flags = toy.problem._replace(metrics=lambda out, batch: {"large": out.logits > batch["y"]})
    return toy._replace(problem=flags)


def held_out(counts=(2, 7, 1, 4), seed=9):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in counts]


def forward(params, x):
    """(hidden, outputs) of the small network in NumPy."""
    hidden = np.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden, hidden @ params["out"]


def host(params):
    return jax.tree.map(np.asarray, params)


def expected(params, client):
    """The mean loss and share of outputs above the target, in NumPy."""
    _, outputs = forward(host(params), client["x"])
    return ((outputs - client["y"]) ** 2).mean(), (outputs > client["y"]).mean()


def descended(params, batch, rate):
    """One step of SGD on the mean squared error, the gradient by hand."""
    hidden, outputs = forward(params, batch["x"])
    error = 2 * (outputs - batch["y"]) / len(outputs)
    inner = np.outer(error, params["out"]) * (1 - hidden**2)
    return {
        "hidden": {
            "w": params["hidden"]["w"] - rate * batch["x"].T @ inner,
            "b": params["hidden"]["b"] - rate * inner.sum(0),
        },
        "out": params["out"] - rate * hidden.T @ error,
    }


def fine_tuned(params, clients, *, seed, steps, batch_size=3, rate=0.1):
    """The personal params of each client, by a loop."""
    tuned = []
    for index, client in enumerate(clients):
        y, count = host(params), len(client["y"])
        for k in range(steps[index]):
            chosen = positions(seed, index, OUTSIDE, count, k, batch_size)
            y = descended(y, {key: value[chosen] for key, value in client.items()}, rate)
        tuned.append(y)
    return tuned


def check(metrics, params, clients, tolerance=1e-13):
    for each, client, index in zip(params, clients, range(len(clients)), strict=True):
        loss, large = expected(each, client)
        assert float(metrics["loss"].value()[index]) == pytest.approx(loss, rel=tolerance)
        assert float(metrics["large"].value()[index]) == large
    counts = [len(client["y"]) for client in clients]
    assert metrics["loss"].weight.tolist() == metrics["large"].weight.tolist() == counts


@pytest.mark.parametrize("batch_size", [1, 4, 5, 17, 100])
def test_every_client_s_means_are_exact(batch_size):
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    metrics = make_evaluate_clients(toy.problem, batch_size)(model, toy.data)
    check(metrics, [model.params] * 4, toy.clients)


@pytest.mark.parametrize("batch_size", [7, 64])
def test_many_ragged_clients(batch_size):
    problem = network().problem
    clients = held_out(np.random.default_rng(3).integers(1, 40, size=50))
    model = problem.init(jax.random.key(2))
    metrics = make_evaluate_clients(problem, batch_size)(model, stored(clients))
    check(metrics, [model.params] * 50, clients)


def test_clients_add_up_to_the_pool():
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    pooled = fa.make_evaluate(toy.problem, 4)(model, toy.data.examples)
    each = make_evaluate_clients(toy.problem, 3)(model, toy.data)
    assert set(pooled) == set(each) == {"loss", "large"}
    for name, mean in pooled.items():
        total = jax.tree.map(lambda leaf: leaf.sum(0), each[name])
        assert float(total.value()) == pytest.approx(float(mean.value()), rel=1e-14)
        assert float(total.weight) == float(mean.weight) == 17


def test_a_nan_stays_with_its_client():
    toy = network()
    clients = held_out()
    clients[1]["y"][3] = np.nan
    model = toy.problem.init(jax.random.key(1))
    metrics = make_evaluate_clients(toy.problem, 5)(model, stored(clients))
    assert np.isnan(metrics["loss"].value()).tolist() == [False, True, False, False]


def empty_in_the_middle(toy):
    """The toy's data in which client 1 gave its only example to client 2."""
    offsets = np.asarray(toy.data.offsets).copy()
    offsets[2] -= 1
    return toy.data._replace(offsets=jnp.asarray(offsets))


def test_rows_in_no_client_are_not_touched_and_empty_clients_weigh_nothing():
    toy = network()
    examples = {"x": np.full((9, 3), np.nan), "y": np.full(9, np.nan)}
    client = held_out([4])[0]
    for key, rows in examples.items():
        rows[[8, 1, 6, 3]] = client[key]
    data = fa.FederatedData(
        examples, jnp.asarray([8, 1, 6, 3], jnp.int32), jnp.asarray([0, 0, 4, 4, 4], jnp.int32)
    )
    model = toy.problem.init(jax.random.key(1))
    loss = make_evaluate_clients(toy.problem, 3)(model, data)["loss"]
    assert loss.weight.tolist() == [0, 4, 0, 0]
    assert loss.value().tolist() == pytest.approx([0, expected(model.params, client)[0], 0, 0])
    summary = summarise_clients(loss, "highest")
    assert summary.mean == summary.worst_decile == summary.weighted_mean == loss.value()[1]
    assert summary.standard_deviation == 0


def test_sums_are_no_coarser_than_float32():
    """1000 flags add up to 256 at most in bfloat16."""
    problem = quadratics([[1.0]], [[0.0]]).problem._replace(
        metrics=lambda x, batch: {"half": jnp.ones(batch["a"].shape, jnp.bfloat16)}
    )
    clients = [{"a": np.ones(1000), "b": np.zeros(1000)}]
    data = stored(clients)
    model = problem.init(None)
    for metrics in (
        make_evaluate_clients(problem, 10)(model, data),
        fa.make_evaluate(problem, 10)(model, data.examples),
    ):
        assert float(np.squeeze(metrics["half"].total)) == 1000
        assert float(np.squeeze(metrics["half"].weight)) == 1000


@pytest.mark.parametrize("layout", ["auto", "vmapped", 2, 3, "sequential"])
def test_fine_tuning_equals_a_loop_in_every_layout(layout):
    toy = network()
    test = held_out()
    model = toy.problem.init(jax.random.key(1))
    evaluate = make_evaluate_personal(toy.problem, LOCAL, batch_size=4, layout=layout)
    metrics = evaluate(model, toy.data, stored(test), seed=3)
    tuned = fine_tuned(model.params, toy.clients, seed=3, steps=[4] * 4)
    check(metrics, tuned, test, tolerance=1e-12)
    ragged = [3, 0, 7, 1]
    metrics = evaluate(model, toy.data, stored(test), seed=4, num_steps=ragged)
    check(metrics, fine_tuned(model.params, toy.clients, seed=4, steps=ragged), test, 1e-12)


def test_auto_maps_chunks_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(personal_evaluation, "_AT_ONCE", 3)
    toy = network()
    test = held_out()
    model = toy.problem.init(jax.random.key(1))
    metrics = make_evaluate_personal(toy.problem, LOCAL)(model, toy.data, stored(test), seed=3)
    tuned = fine_tuned(model.params, toy.clients, seed=3, steps=[4] * 4)
    check(metrics, tuned, test, tolerance=1e-12)


def test_epochs_are_of_each_client_s_size():
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    evaluate = make_evaluate_personal(toy.problem, LOCAL._replace(steps=None, epochs=2))
    metrics = evaluate(model, toy.data, toy.data)
    check(
        metrics,
        fine_tuned(model.params, toy.clients, seed=0, steps=[4, 2, 6, 2]),
        toy.clients,
        1e-12,
    )


@pytest.mark.parametrize("layout", ["vmapped", 3, "sequential"])
def test_no_step_is_the_common_model(layout):
    toy = network()
    test = stored(held_out())
    model = toy.problem.init(jax.random.key(1))
    personal = make_evaluate_personal(toy.problem, LOCAL, layout=layout)
    common = make_evaluate_clients(toy.problem)(model, test)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14),
        personal(model, toy.data, test, num_steps=0),
        common,
    )


@pytest.mark.parametrize("layout", [3, "sequential"])
def test_a_client_without_examples(layout):
    """It trains on nobody else's examples, and weighs nothing in a test."""
    toy = network()
    emptied = empty_in_the_middle(toy)
    model = toy.problem.init(jax.random.key(1))
    test = held_out()
    evaluate = make_evaluate_personal(toy.problem, LOCAL, layout=layout)
    tuned = evaluate(model, emptied, stored(test), num_steps=5)
    assert float(tuned["loss"].value()[1]) == pytest.approx(
        expected(model.params, test[1])[0], rel=1e-14
    )
    tested = evaluate(model, toy.data, emptied)["loss"]
    assert tested.weight.tolist() == [5, 0, 9, 3]
    assert float(tested.value()[1]) == 0


def test_the_transform_is_local_s():
    """Adam's first step moves by the rate: x = .5 becomes .6 and .4 whatever the gradient."""
    toy = quadratics([[1.0], [1.0]], [[100.0], [-100.0]])
    local = fa.Local(1, 0.1, steps=1, transform=optax.scale_by_adam(eps=0.0))
    test = stored([{"a": np.asarray([2.0]), "b": np.asarray([0.0])}] * 2)
    evaluate = make_evaluate_personal(toy.problem, local)
    loss = evaluate(toy.problem.init(None), toy.data, test)["loss"]
    np.testing.assert_allclose(loss.value(), [0.36, 0.16], rtol=1e-12)


def test_statistics_are_personal():
    """Statistics that count training batches reach the evaluation of the same client."""
    toy = quadratics([[1.0], [1.0], [1.0]], [[0.0], [0.0], [0.0]])
    problem = toy.problem._replace(
        apply=lambda model, batch, key, training: (model.statistics, model.statistics + training),
        loss=lambda seen, batch: jnp.full(batch["a"].shape, seen),
    )
    evaluate = make_evaluate_personal(problem, LOCAL, layout=2)
    model = fa.Model({"x": jnp.asarray(0.5)}, jnp.asarray(10.0))
    loss = evaluate(model, toy.data, toy.data, num_steps=[0, 5, 2])["loss"]
    assert loss.value().tolist() == [10, 15, 12]


def test_nothing_is_compiled_again():
    toy = network()
    test = stored(held_out())
    models = [toy.problem.init(jax.random.key(seed)) for seed in range(3)]
    common = make_evaluate_clients(toy.problem)
    personal = make_evaluate_personal(toy.problem, LOCAL, layout=3)
    first = (common(models[0], test), personal(models[0], toy.data, test, seed=0))
    with Compilations() as compilations:
        again = (common(models[0], test), personal(models[0], toy.data, test, seed=0))
        common(models[1], test)
        other = personal(models[0], toy.data, test, seed=1)
        personal(models[2], toy.data, test, seed=0, num_steps=9)
        personal(models[2], toy.data, test, seed=0, num_steps=[0, 1, 2, 3])
    assert compilations.count == 0
    jax.tree.map(np.testing.assert_array_equal, first, again)
    changed = np.asarray(first[1]["loss"].total) != np.asarray(other["loss"].total)
    assert changed.tolist() == [True, False, True, False]  # batches of 3 of 5, 1, 8 and 3 examples


def test_a_view_is_the_engine_s():
    toy = network()
    order = permutation_words(jax.random.key(0))
    view = client_view(toy.data, jnp.int32(2), order, "statistics")
    seen = [view.batch(jnp.int32(step), 4)[0]["y"] for step in range(2)]
    assert sorted(np.concatenate(seen)) == sorted(toy.clients[2]["y"])
    assert view.statistics == "statistics"
    assert int(client_view(toy.data, jnp.int32(4), order).num_examples) == 1


def of(values, weights=None):
    """A metric with these values."""
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    return Mean(jnp.asarray(values * weights), weights)


def test_summary():
    values = np.random.default_rng(0).permutation(np.arange(25.0))
    lowest, highest = (summarise_clients(of(values), worst) for worst in ("lowest", "highest"))
    assert lowest.mean == highest.mean == lowest.weighted_mean == 12
    assert lowest.standard_deviation == pytest.approx(np.sqrt((25**2 - 1) / 12))
    assert lowest.worst_decile == 1  # of ceil(2.5) = 3 clients: 0, 1, 2
    assert highest.worst_decile == 23
    assert summarise_clients(of(np.arange(20.0)), "lowest").worst_decile == 0.5
    assert summarise_clients(of(np.arange(4.0)), "highest").worst_decile == 3


def test_weights_count_in_the_weighted_mean_only():
    summary = summarise_clients(of([1.0, 3.0, 8.0], [6, 1, 1]), "highest")
    assert summary.mean == 4
    assert summary.weighted_mean == 17 / 8
    assert summary.worst_decile == 8
    assert summary.standard_deviation == pytest.approx(np.sqrt((9 + 1 + 16) / 3))


@pytest.mark.parametrize("worst", ["lowest", "highest"])
def test_a_diverged_client_shows(worst):
    summary = summarise_clients(of([1.0, np.nan, 3.0]), worst)
    assert np.isnan(summary.mean)
    assert np.isnan(summary.worst_decile)


def test_errors_say_what_to_give():
    toy = network()
    model = toy.problem.init(jax.random.key(1))
    with pytest.raises(ValueError, match="batch_size=0 is out of range; give at least 1"):
        make_evaluate_clients(toy.problem, 0)
    with pytest.raises(ValueError, match="batch_size=-1 is out of range"):
        make_evaluate_personal(toy.problem, LOCAL, batch_size=-1)
    with pytest.raises(ValueError, match="batch_size=0 is out of range"):
        fa.make_evaluate(toy.problem, 0)
    with pytest.raises(ValueError, match="layout='diagonal' is unknown"):
        make_evaluate_personal(toy.problem, LOCAL, layout="diagonal")
    with pytest.raises(ValueError, match="give exactly one of them"):
        make_evaluate_personal(toy.problem, fa.Local(3, 0.1))
    evaluate = make_evaluate_personal(toy.problem, LOCAL)
    with pytest.raises(ValueError, match="4 clients to train and 1 to test"):
        evaluate(model, toy.data, stored(held_out([3])))
    with pytest.raises(ValueError, match="num_steps=-2 is out of range"):
        evaluate(model, toy.data, toy.data, num_steps=[1, -2, 0, 0])
    averaged = toy.problem._replace(loss=lambda outputs, batch: jnp.mean(outputs.logits))
    with pytest.raises(ValueError, match=r"loss has shape \(\), but must give one value for each"):
        make_evaluate_clients(averaged)(model, toy.data)
    nobody = toy.data._replace(indices=toy.data.indices[:0], offsets=toy.data.offsets * 0)
    with pytest.raises(ValueError, match="the 4 clients hold 0 examples"):
        make_evaluate_clients(toy.problem)(model, nobody)
    with pytest.raises(ValueError, match="worst='best' is unknown; give 'lowest'"):
        summarise_clients(of([1.0]), "best")
    with pytest.raises(ValueError, match="none of the 2 clients has examples"):
        summarise_clients(Mean(np.zeros(2), np.zeros(2)), "lowest")
