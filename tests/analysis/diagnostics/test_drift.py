"""Cosine drift and client drift against plain NumPy, on known gradients."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diagnostics_helpers import MODEL, RATE, SEED, A, B, cohort, flat, regression, started
from helpers import LAYOUTS, Case, positions, quadratics

import fedjax_algos as fa
from fedjax_algos.analysis import diagnostics

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, 0), (0, 3), 1),
        ((1, 0), (2, 2), 1 - np.sqrt(0.5)),
        ((1, 2), (-2, -4), 2),
        ((3, 4), (6, 8), 0),
    ],
)
def test_cosine_of_two_clients_in_the_plane(first, second, expected):
    models = {"a": jnp.asarray([first[:1], second[:1]], float), "b": jnp.asarray([first, second])}
    models["b"] = models["b"][:, 1].astype(float)
    np.testing.assert_allclose(diagnostics.cosine_drift(models), expected, atol=1e-15)


def test_cosine_is_the_mean_over_pairs():
    rng = np.random.default_rng(0)
    models = {"w": rng.normal(size=(5, 2, 3)), "b": rng.normal(size=5)}
    distances = [
        1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v)
        for u, v in itertools.combinations(flat(models), 2)
    ]
    np.testing.assert_allclose(diagnostics.cosine_drift(models), np.mean(distances), rtol=1e-13)


def test_small_angles_are_accurate_in_float32():
    angle = 1e-4
    models = jnp.asarray([[1, 0], [np.cos(angle), np.sin(angle)]], jnp.float32)
    drift = diagnostics.cosine_drift(models)
    assert drift.dtype == jnp.float32
    np.testing.assert_allclose(drift, angle**2 / 2, rtol=1e-3)


def test_one_client_has_no_pairs():
    with pytest.raises(ValueError, match="a cohort of 1 has no pairs; give at least 2"):
        diagnostics.cosine_drift(jnp.ones((1, 3)))


def test_a_model_of_zeros_gives_nan():
    assert np.isnan(diagnostics.cosine_drift(jnp.asarray([[0.0, 0.0], [1.0, 0.0]])))


UPLOADS = {
    "fedavg": {"weighting": "uniform"},
    "fedgbo": {"beta": 0.0, "upload": "both"},
    "fedlga": {},
    "fedat": {"mu": 0.0, "weighting": "uniform"},
    "scaffold": {},
}


@pytest.mark.parametrize("name", UPLOADS)
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


def measured(toy, local, clients, num_steps=None, **keywords):
    dispatches = cohort(toy, local, clients)
    if num_steps is not None:
        dispatches = dispatches._replace(num_steps=np.asarray(num_steps, np.int32))
    return diagnostics.client_drift(
        toy.problem, local, MODEL, toy.data, dispatches, seed=SEED, **keywords
    )


FULL = fa.Local(2, RATE, steps=4, batches="full")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shadow", ["all", "cohort"])
def test_drift_of_full_batches(quadratic, layout, shadow):
    chosen = [3, 0, 2]
    averaged = chosen if shadow == "cohort" else range(4)
    actual = measured(quadratic, FULL, chosen, shadow=shadow, layout=layout)
    expected = drift(0.5, dict.fromkeys(chosen, 4), averaged)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_drift_by_hand():
    """Two clients, one step: gradients 1 and 3 at rate .1, so each is .1 from the shadow."""
    toy, local = quadratics([[1.0], [1.0]], [[-0.5], [-2.5]]), FULL._replace(steps=1)
    dispatches = cohort(toy, local, [0, 1])
    drift = diagnostics.client_drift(toy.problem, local, MODEL, toy.data, dispatches)
    np.testing.assert_allclose(drift, 0.01, rtol=1e-12)


def test_drift_of_short_batches(quadratic):
    """The local steps are those of a run with that seed, in a later dispatch, of unequal work."""
    local = fa.Local(2, RATE, steps=5)
    clients, steps = [2, 0, 1], [5, 3, 0]
    dispatches = cohort(quadratic, local, clients, rounds=3)
    dispatches = dispatches._replace(num_steps=np.asarray(steps, np.int32))
    actual = diagnostics.client_drift(
        quadratic.problem, local, MODEL, quadratic.data, dispatches, seed=SEED
    )

    def rows(client, k):
        return positions(SEED, client, 2, len(A[client]), k, 2)

    expected = drift(0.5, dict(zip(clients, steps, strict=True)), range(4), batches=rows)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


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


def test_identical_clients_do_not_drift():
    toy = quadratics([A[0]] * 3, [B[0]] * 3)
    dispatches = cohort(toy, FULL, [0, 1, 2])
    drift = diagnostics.client_drift(toy.problem, FULL, MODEL, toy.data, dispatches)
    assert drift < 1e-30


def test_an_unknown_shadow_is_refused():
    with pytest.raises(ValueError, match="shadow='none' is unknown; choose all or cohort"):
        diagnostics.client_drift(None, FULL, MODEL, None, None, shadow="none")
