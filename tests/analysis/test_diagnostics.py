"""Drift, and the error of averaged gradients with its bounds, against plain NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diagnostics_helpers import MODEL, RATE, SEED, A, B, cohort, regression, started
from helpers import Case, positions, quadratics

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
    state, _ = engine.round(state, toy.data, dispatches)
    mean = jax.tree.map(lambda y: y.mean(0), models)
    chex.assert_trees_all_close(mean, state.server.params, rtol=1e-7, atol=1e-14)


def test_uploads_without_deltas_are_refused():
    toy = regression()
    algorithm = Case("fednova", {}).build(toy.problem, fa.Local(3, RATE, steps=1))
    engine, state, dispatches = started(toy, algorithm, [0, 2])
    stack = jax.eval_shape(engine.updates, state, toy.data, dispatches)
    with pytest.raises(ValueError, match=r"x - y_i of updates with parts=.* is missing"):
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


def measured(local, clients, num_steps=None, rounds=1, **options):
    toy = quadratics(A, B)
    dispatches = cohort(toy, local, clients, num_steps, rounds)
    return diagnostics.client_drift(
        toy.problem, local, MODEL, toy.data, dispatches, seed=SEED, **options
    )


FULL = fa.Local(2, RATE, steps=4, batches="full")


@pytest.mark.parametrize(
    ("shadow", "layout"), [("all", "auto"), pytest.param("cohort", 2, marks=pytest.mark.all)]
)
def test_drift_of_full_batches(shadow, layout):
    chosen = [3, 0, 2]
    averaged = chosen if shadow == "cohort" else range(4)
    actual = measured(FULL, chosen, shadow=shadow, layout=layout)
    expected = drift(0.5, dict.fromkeys(chosen, 4), averaged)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_drift_of_short_batches():
    """The local steps are those of a run with that seed, in a later dispatch, of unequal work."""
    steps = {2: 5, 0: 3, 1: 0}  # by client
    actual = measured(fa.Local(2, RATE, steps=5), [*steps], [*steps.values()], rounds=3)

    def rows(client, k):
        return positions(SEED, client, 2, len(A[client]), k, 2)

    expected = drift(0.5, steps, range(4), batches=rows)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.all
def test_drift_under_a_transform_and_a_correction():
    plain = measured(FULL._replace(transform=optax.trace(0.9)), [1, 2])
    np.testing.assert_allclose(plain, drift(0.5, {1: 4, 2: 4}, range(4), decay=0.9), rtol=1e-12)

    def correct(gradient, params, step):
        return jax.tree.map(lambda g: g + 0.3, gradient)

    corrected = measured(FULL, [1, 2], correct=correct)
    expected = drift(0.5, {1: 4, 2: 4}, range(4), correction=0.3)
    np.testing.assert_allclose(corrected, expected, rtol=1e-12)


def error_of(toy, model, cohorts, tau, **size):
    return diagnostics.averaged_gradient_error(toy.problem, model, toy.data, cohorts, tau, **size)


def check_error(actual, gradients, union):
    """Compares the error and its bounds with those of clients' gradients, [clients, params]."""
    mean, missing = gradients.mean(0), 1 - len(union) / len(gradients)
    spread, square = np.square(gradients - mean).sum(1), mean @ mean
    expected = diagnostics.AveragedGradientError(
        error=np.square(gradients[union].mean(0) - mean).sum(),
        bound=8 * missing**2 * (spread.mean() + square),
        worst_case_bound=8 * missing**2 * (spread.max() + square),
        dissimilarity=spread.mean(),
        largest_dissimilarity=spread.max(),
        gradient=square,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-30)
    assert actual.error <= actual.worst_case_bound


CYCLE = [[0, 1], [4, 5], [3, 2], [0, 1], [4, 5]]
SIX_A, SIX_B = A + [[1.0, 1.0], [0.3]], B + [[3.0, -1.0], [5.0]]


@pytest.mark.parametrize(("tau", "union"), [(1, [4, 5]), (2, [0, 1, 4, 5]), (4, [*range(6)])])
def test_error_and_bounds_of_a_cycle(tau, union):
    """Clients that are in two cohorts count once."""
    actual = error_of(quadratics(SIX_A, SIX_B), MODEL, CYCLE, tau, batch_size=2)
    each = [np.mean(np.array(a) * (0.5 - np.array(b))) for a, b in zip(SIX_A, SIX_B, strict=True)]
    check_error(actual, np.array(each)[:, None], union)
    assert (actual.error == 0) == (tau == 4)


def test_gradients_are_averaged_leaf_by_leaf():
    toy, each = regression(), []
    for client in toy.clients:
        design = np.concatenate([np.ones((len(client["y"]), 1)), client["x"]], 1)
        residuals = design @ [1, 0.3, -0.2, 1] - client["y"]
        each.append(residuals @ design / len(residuals))
    actual = error_of(toy, toy.problem.init(jax.random.key(0)), [[0, 3]], 1, batch_size=3)
    check_error(actual, np.array(each), [0, 3])


def test_one_deviant_client_breaks_the_printed_bound():
    """N = 10, one client with gradient 1 and no other: error .81 at tau = 1, printed bound .648."""
    toy = quadratics([[1.0]] * 10, [[-0.5]] + [[0.5]] * 9)
    actual = error_of(toy, MODEL, np.arange(10)[::-1, None], 1)
    expected = (0.81, 8 * 0.81 * 0.1, 8 * 0.81 * 0.82, 0.09, 0.81, 0.01)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_wrong_calls():
    toy, drift_of = quadratics(A, B), diagnostics.client_drift
    for call, named in {
        lambda: error_of(toy, MODEL, [[0, 1], [2, 3]], 3): "tau=3 is out of range; .* at most 2",
        lambda: error_of(toy, MODEL, [[0, 4]], 1): "client 4 is in a cohort.* clients 0 to 3",
        lambda: error_of(toy, MODEL, [[-1, 2]], 1): "client -1 is in a cohort",
        lambda: error_of(toy, MODEL, [0, 1], 1): r"cohorts have shape \(2,\)",
        lambda: diagnostics.cosine_drift(jnp.ones((1, 3))): "the number of models=1 is out",
        lambda: drift_of(None, FULL, MODEL, None, None, shadow="none"): "shadow='none'",
    }.items():
        with pytest.raises(ValueError, match=named):
            call()
