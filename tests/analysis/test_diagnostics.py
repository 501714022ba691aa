"""Drift, and the error of averaged gradients with its bounds, against plain NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diagnostics_helpers import MODEL, RATE, SEED, A, B, cohort, regression, started
from helpers import LAYOUTS, Case, positions, quadratics, stored

import fedjax_algos as fa
from fedjax_algos.analysis import diagnostics

pytestmark = pytest.mark.usefixtures("x64")


def in_the_plane(*models, dtype=float):
    """Two leaves of one entry each."""
    x, y = np.transpose(models)
    return {"a": jnp.asarray(x[:, None], dtype), "b": jnp.asarray(y, dtype)}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([(1, 0), (0, 3)], 1),
        ([(1, 0), (2, 2)], 1 - np.sqrt(0.5)),
        ([(1, 2), (-2, -4)], 2),
        ([(3, 4), (6, 8)], 0),
        ([(1, 0), (0, 1), (-1, 0), (0, -1)], 4 / 3),  # the mean over six pairs
        ([(0, 0), (1, 0)], np.nan),
    ],
)
def test_cosine_of_models_in_the_plane(models, expected):
    found = diagnostics.cosine_drift(in_the_plane(*models))
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_small_angles_are_accurate_in_float32():
    angle = 1e-4
    models = in_the_plane((1, 0), (np.cos(angle), np.sin(angle)), dtype=jnp.float32)
    drift = diagnostics.cosine_drift(models)
    assert drift.dtype == jnp.float32
    np.testing.assert_allclose(drift, angle**2 / 2, rtol=1e-3)


UPLOADS = {
    "fedavg": {"weighting": "uniform"},
    "fedgbo": {"beta": 0.0, "upload": "both"},
    "fedlga": {},
    "fedat": {"mu": 0.0, "weighting": "uniform"},
}


@pytest.mark.parametrize(
    "name", ["fedavg", *(pytest.param(n, marks=pytest.mark.all) for n in UPLOADS if n != "fedavg")]
)
def test_local_models_from_uploads(name):
    """All take the same SGD steps in the first round, whose mean is the next global model."""
    toy, local = regression(), fa.Local(3, RATE, steps=3)
    algorithm = Case(name, UPLOADS[name]).build(toy.problem, local)
    engine, state, dispatches = started(toy, algorithm, [0, 2])
    updates = engine.updates(state, toy.data, dispatches).updates
    models = diagnostics.local_models(algorithm, state.server.params, updates)
    deltas = diagnostics.client_deltas(algorithm, state.server.params, updates)
    starts = jax.tree.map(jnp.add, models, deltas)
    expected = jax.tree.map(lambda x: jnp.stack([x, x]), state.server.params)
    chex.assert_trees_all_close(starts, expected, rtol=1e-7, atol=1e-15)
    state, _ = engine.round(state, toy.data, dispatches)
    mean = jax.tree.map(lambda y: y.mean(0), models)
    chex.assert_trees_all_close(mean, state.server.params, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "settings"), [("fednova", {}), ("fedgbo", {"upload": "gradient"})]
)
def test_uploads_without_deltas_are_refused(name, settings):
    toy, local = regression(), fa.Local(3, RATE, steps=1)
    algorithm = Case(name, settings).build(toy.problem, local)
    engine, state, dispatches = started(toy, algorithm, [0, 2])
    stack = jax.eval_shape(engine.updates, state, toy.data, dispatches)
    with pytest.raises(ValueError, match="do not contain the deltas x - y_i of the whole"):
        diagnostics.local_models(algorithm, state.server.params, stack.updates)


def gradient(client, x, rows=slice(None)):
    return float(np.mean(np.asarray(A[client])[rows] * (x - np.asarray(B[client])[rows])))


def drift(x, num_steps, shadow, *, batches=None, correction=0.0, decay=0.0):
    """The paper's eq. 1 in plain numbers; `num_steps` by client, `batches(client, k)` are rows."""
    batches = batches or (lambda client, k: slice(None))
    path, momentum = [x], 0.0
    for _ in range(max(num_steps.values())):
        mean = np.mean([gradient(client, path[-1]) for client in shadow])
        momentum = decay * momentum + mean
        path.append(path[-1] - RATE * momentum)
    means = []
    for client, count in num_steps.items():
        y, momentum, squares = x, 0.0, []
        for k in range(count):
            momentum = decay * momentum + gradient(client, y, batches(client, k)) + correction
            y -= RATE * momentum
            squares.append((y - path[k + 1]) ** 2)
        means.append(np.mean(squares) if squares else 0.0)
    return np.mean(means)


@pytest.fixture(scope="module")
def quadratic():
    return quadratics(A, B)


def measured(toy, local, clients, num_steps=None, rounds=1, **keywords):
    dispatches = cohort(toy, local, clients, rounds)
    if num_steps is not None:
        dispatches = dispatches._replace(num_steps=np.asarray(num_steps, np.int32))
    return diagnostics.client_drift(
        toy.problem, local, MODEL, toy.data, dispatches, seed=SEED, **keywords
    )


FULL = fa.Local(2, RATE, steps=4, batches="full")


@pytest.mark.parametrize(
    ("shadow", "layout"),
    [
        ("all", LAYOUTS[0]),
        pytest.param("cohort", LAYOUTS[1], marks=pytest.mark.all),
        pytest.param("all", LAYOUTS[2], marks=pytest.mark.all),
    ],
)
def test_drift_of_full_batches(quadratic, layout, shadow):
    chosen = [3, 0, 2]
    averaged = chosen if shadow == "cohort" else range(4)
    actual = measured(quadratic, FULL, chosen, shadow=shadow, layout=layout)
    expected = drift(0.5, dict.fromkeys(chosen, 4), averaged)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_drift_of_short_batches(quadratic):
    """The local steps are those of a run with that seed, in a later dispatch, of unequal work."""
    local = fa.Local(2, RATE, steps=5)
    clients, steps = [2, 0, 1], [5, 3, 0]
    actual = measured(quadratic, local, clients, steps, rounds=3)

    def rows(client, k):
        return positions(SEED, client, 2, len(A[client]), k, 2)

    expected = drift(0.5, dict(zip(clients, steps, strict=True)), range(4), batches=rows)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.all
def test_drift_under_a_transform_and_a_correction(quadratic):
    local = FULL._replace(transform=optax.trace(0.9))
    clients = [1, 2]
    plain = measured(quadratic, local, clients)
    expected = drift(0.5, dict.fromkeys(clients, 4), range(4), decay=0.9)
    np.testing.assert_allclose(plain, expected, rtol=1e-12)

    def correct(gradient, params, step):
        return jax.tree.map(lambda g: g + 0.3, gradient)

    corrected = measured(quadratic, FULL, clients, correct=correct)
    expected = drift(0.5, dict.fromkeys(clients, 4), range(4), correction=0.3)
    np.testing.assert_allclose(corrected, expected, rtol=1e-12)


CYCLE = np.array([[0, 1], [4, 5], [3, 2], [0, 1], [4, 5]])
SIX_A, SIX_B = A + [[1.0, 1.0], [0.3]], B + [[3.0, -1.0], [5.0]]


@pytest.fixture(scope="module")
def six():
    return quadratics(SIX_A, SIX_B)


@pytest.mark.parametrize(("tau", "rounds"), [(1, 4), (2, 5), (3, 4)])
def test_cyclic_error_and_bound(six, tau, rounds):
    actual = diagnostics.averaged_gradient_error(
        six.problem, MODEL, six.data, CYCLE[:rounds], tau, batch_size=2
    )
    each = [np.mean(np.array(a) * (0.5 - np.array(b))) for a, b in zip(SIX_A, SIX_B, strict=True)]
    each = np.array(each)
    union = sorted({int(i) for i in CYCLE[rounds - tau : rounds].flat})
    mean, spread = each.mean(), (each - each.mean()) ** 2
    expected = diagnostics.AveragedGradientError(
        error=(each[union].mean() - mean) ** 2,
        bound=8 * (1 - tau / 3) ** 2 * (spread.mean() + mean**2),
        worst_case_bound=8 * (1 - tau / 3) ** 2 * (spread.max() + mean**2),
        dissimilarity=spread.mean(),
        largest_dissimilarity=spread.max(),
        gradient=mean**2,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-30)
    assert actual.error <= actual.bound
    if tau == 3:
        assert actual.error == 0


def test_gradients_are_averaged_leaf_by_leaf():
    toy, model = regression(), regression().problem.init(jax.random.key(0))
    actual = diagnostics.averaged_gradient_error(
        toy.problem, model, toy.data, [[0, 3]], 1, batch_size=3
    )
    each = []
    for client in toy.clients:
        design = np.concatenate([np.ones((len(client["y"]), 1)), client["x"]], 1)
        residuals = design @ [1, 0.3, -0.2, 1] - client["y"]
        each.append(residuals @ design / len(residuals))
    each = np.array(each)
    error = np.sum((each[[0, 3]].mean(0) - each.mean(0)) ** 2)
    spread = np.sum((each - each.mean(0)) ** 2, axis=1)
    np.testing.assert_allclose(actual.error, error, rtol=1e-11)
    np.testing.assert_allclose(actual.dissimilarity, spread.mean(), rtol=1e-11)
    np.testing.assert_allclose(actual.largest_dissimilarity, spread.max(), rtol=1e-11)


def test_one_deviant_client_breaks_the_printed_bound():
    """N = 10, one client with gradient 1 and no other: error .81 at tau = 1, printed bound .648."""
    toy = quadratics([[1.0]] * 10, [[-0.5]] + [[0.5]] * 9)
    actual = diagnostics.averaged_gradient_error(
        toy.problem, MODEL, toy.data, np.arange(10)[::-1, None], 1
    )
    expected = (0.81, 8 * 0.81 * 0.1, 8 * 0.81 * 0.82, 0.09, 0.81, 0.01)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_the_worst_case_bound_holds():
    rng = np.random.default_rng(0)
    problem = quadratics([[1.0]], [[0.0]]).problem
    for trial in range(5):
        b = rng.standard_cauchy(size=(12, 2))
        data = stored([{"a": np.ones(2), "b": row} for row in b])
        cohorts = rng.permutation(12).reshape(-1, 2)
        for tau in (1, 2 + trial % 5):
            found = diagnostics.averaged_gradient_error(problem, MODEL, data, cohorts, tau)
            assert found.error <= found.worst_case_bound
        found = diagnostics.averaged_gradient_error(problem, MODEL, data, cohorts, 6)
        assert found.error == 0


def averaged(cohorts, tau):
    toy = quadratics(A, B)
    return diagnostics.averaged_gradient_error(toy.problem, MODEL, toy.data, cohorts, tau)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: averaged([[0, 1], [2, 3]], 3), "tau=3 is out of range; give a .* at most 2"),
        (lambda: averaged([[0, 4]], 1), "client 4 is in a cohort; there are clients 0 to 3"),
        (lambda: averaged([[-1, 2]], 1), "client -1 is in a cohort"),
        (lambda: averaged([0, 1], 1), r"cohorts has shape \(2,\); give clients as \[rounds, coho"),
        (lambda: diagnostics.cosine_drift(jnp.ones((1, 3))), "a cohort of 1 has no pairs; give at"),
        (
            lambda: diagnostics.client_drift(None, FULL, MODEL, None, None, shadow="none"),
            "shadow='none' is unknown; choose all or cohort",
        ),
    ],
)
def test_wrong_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()
