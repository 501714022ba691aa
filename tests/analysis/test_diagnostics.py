"""Drift, approximated updates and averaged gradients against NumPy, on known gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import LAYOUTS, Case, Toy, fixed, one_round, positions, quadratics, stored

import fedjax_algos as fa
from fedjax_algos.analysis import diagnostics
from fedjax_algos.schedules import Synchronous

pytestmark = pytest.mark.usefixtures("x64")

RATE, SEED = 0.1, 3


@pytest.fixture(scope="module")
def regression():
    """A line through examples in three dimensions, on four clients of 5, 1, 8 and 3 examples."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (5, 1, 8, 3)]
    problem = fa.Problem(
        init=lambda key: fa.Model({"b": jnp.ones(()), "w": jnp.asarray([0.3, -0.2, 1.0])}),
        apply=lambda model, batch, key, training: (
            batch["x"] @ model.params["w"] + model.params["b"],
            (),
        ),
        loss=lambda outputs, batch: (outputs - batch["y"]) ** 2 / 2,
    )
    return Toy(problem, stored(clients), clients)


def cohort(toy, local, clients, rounds=1):
    """The visits of the last of some rounds, all of the same cohort."""
    schedule = Synchronous(
        toy.data.counts(),
        local,
        cohort_size=len(clients),
        seed=SEED,
        sampler=fixed([clients] * rounds),
    )
    return one_round(schedule.visits(rounds), rounds - 1)


def started(toy, algorithm, clients, num_steps=None, layout="vmapped"):
    """An engine, its first state, and the cohort's visits."""
    engine = fa.make_engine(algorithm, layout)
    visits = cohort(toy, algorithm.local, clients)
    if num_steps is not None:
        visits = visits._replace(num_steps=np.asarray(num_steps, np.int32))
    counts = toy.data.counts()
    state = engine.init(SEED, fa.Population(len(counts), len(clients), int(counts.sum())))
    return engine, state, visits


def flat(tree):
    """Leaves [cohort, ...] as one matrix."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)


# Cosines


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


def test_small_angles_survive_float32():
    angle = 1e-4
    models = jnp.asarray([[1, 0], [np.cos(angle), np.sin(angle)]], jnp.float32)
    drift = diagnostics.cosine_drift(models)
    assert drift.dtype == jnp.float32
    np.testing.assert_allclose(drift, angle**2 / 2, rtol=1e-3)


def test_one_client_has_no_pairs():
    with pytest.raises(ValueError, match="a cohort of 1 has no pairs; give at least 2"):
        diagnostics.cosine_drift(jnp.ones((1, 3)))


def test_the_model_zero_has_no_angle():
    assert np.isnan(diagnostics.cosine_drift(jnp.asarray([[0.0, 0.0], [1.0, 0.0]])))


UPLOADS = {
    "fedavg": {"weighting": "uniform"},
    "fedgbo": {"beta": 0.0, "upload": "both"},
    "fedlga": {},
}


@pytest.mark.parametrize("name", UPLOADS)
def test_local_models_of_what_was_uploaded(regression, name):
    """All take the same plain steps in the first round, whose mean is the next global model."""
    toy, local = regression, fa.Local(3, RATE, steps=3)
    engine, state, visits = started(
        toy, Case(name, UPLOADS[name]).build(toy.problem, local), [0, 2]
    )
    updates = engine.updates(state, toy.data, visits).updates
    models = diagnostics.local_models(state.server.params, updates)
    steps = diagnostics.steps_of(state.server.params, updates)
    jax.tree.map(
        lambda y, x, step: np.testing.assert_allclose(y + step, x[None] + 0 * y, atol=1e-15),
        models,
        state.server.params,
        steps,
    )
    state, _ = engine.round(state, toy.data, visits)
    jax.tree.map(
        lambda y, x: np.testing.assert_allclose(y.mean(0), x, atol=1e-14),
        models,
        state.server.params,
    )


@pytest.mark.parametrize(
    ("name", "settings"), [("fednova", {}), ("fedgbo", {"upload": "gradient"})]
)
def test_uploads_without_steps_are_refused(regression, name, settings):
    toy, local = regression, fa.Local(3, RATE, steps=1)
    engine, state, visits = started(toy, Case(name, settings).build(toy.problem, local), [0, 2])
    stack = jax.eval_shape(engine.updates, state, toy.data, visits)
    with pytest.raises(ValueError, match="do not hold the steps x - y_i; give those of an"):
        diagnostics.local_models(state.server.params, stack.updates)


# Client drift

A = [[1.0, 2.0, 0.5], [3.0], [0.2, 1.5, 2.5, 1.0, 0.7], [2.0, 2.0]]
B = [[0.0, 1.0, -1.0], [2.0], [1.0, 0.5, -0.3, 0.0, 4.0], [-2.0, 1.0]]


def gradient(client, x, rows=slice(None)):
    return float(np.mean(np.asarray(A[client])[rows] * (x - np.asarray(B[client])[rows])))


def drift(x, num_steps, shadow, *, batches=None, correction=0.0, decay=0.0):
    """eq. 1 in plain numbers; `num_steps` by client, `batches(client, k)` are rows."""
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


MODEL = fa.Model({"x": np.asarray(0.5)})


def measured(toy, local, clients, num_steps=None, **keywords):
    visits = cohort(toy, local, clients)
    if num_steps is not None:
        visits = visits._replace(num_steps=np.asarray(num_steps, np.int32))
    return diagnostics.client_drift(
        toy.problem, local, MODEL, toy.data, visits, seed=SEED, **keywords
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
    visits = cohort(toy, local, [0, 1])
    drift = diagnostics.client_drift(toy.problem, local, MODEL, toy.data, visits)
    np.testing.assert_allclose(drift, 0.01, rtol=1e-12)


def test_drift_of_short_batches(quadratic):
    """The local steps are those of a run with that seed, in a later visit and of unequal number."""
    local = fa.Local(2, RATE, steps=5)
    clients, steps = [2, 0, 1], [5, 3, 0]
    visits = cohort(quadratic, local, clients, rounds=3)
    visits = visits._replace(num_steps=np.asarray(steps, np.int32))
    actual = diagnostics.client_drift(
        quadratic.problem, local, MODEL, quadratic.data, visits, seed=SEED
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
    visits = cohort(toy, FULL, [0, 1, 2])
    drift = diagnostics.client_drift(toy.problem, FULL, MODEL, toy.data, visits)
    assert drift < 1e-30


def test_an_unknown_shadow_is_told():
    with pytest.raises(ValueError, match="shadow='none' does not exist here; choose all or cohort"):
        diagnostics.client_drift(None, FULL, MODEL, None, None, shadow="none")


# FedLGA


def visits_of(num_steps, full_steps=5, rate=RATE):
    count = len(num_steps)
    numbers = np.arange(count, dtype=np.int32)
    return fa.Visit(
        numbers,
        0 * numbers,
        0 * numbers,
        np.asarray(num_steps, np.int32),
        np.full(count, full_steps, np.int32),
        1 + 0 * numbers,
        np.full(count, 1 / count),
        np.full(count, rate),
        0 * numbers,
    )


def stack_of(changes, num_steps):
    changes = jnp.asarray(changes, float)
    return fa.Stack({"w": changes}, visits_of(num_steps), jnp.ones(len(num_steps), bool))


@pytest.fixture(scope="module")
def worked():
    """Delta = (.1, -.2) after 2 of 5 steps, beside a complete (.3, .4); rate * S_i = .2."""
    stack = stack_of([[0.1, -0.2], [0.3, 0.4]], [2, 5])
    return diagnostics.PartialTurns(stack, {"w": jnp.asarray([[0.2, -0.5], [0.3, 0.4]])})


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({}, -1.5),
        ({"strength": 0.2}, 0.5),
        ({"clip": True}, 0.0),
        ({"strength": 0.2, "clip": True}, 0.5),
        ({"mode": "update"}, 0.9),
        ({"mode": "update", "strength": 3.0}, 0.7),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_factors_by_hand(worked, settings, factor, sign):
    stack = jax.tree.map(lambda leaf: sign * leaf, worked.stack.updates)
    actual = diagnostics.lga_factors(worked.stack._replace(updates=stack), **settings)
    np.testing.assert_allclose(actual, [factor, 1], rtol=1e-13)


@pytest.mark.parametrize(
    ("settings", "approximated"),
    [
        ({"mode": "outer"}, (-0.15, 0.3)),
        ({"mode": "diag"}, (0.15, 0.4)),
        ({"mode": "outer", "clip": True}, (0, 0)),
        ({"mode": "diag", "clip": True}, (0.15, 0.4)),
        ({"mode": "update"}, (0.09, -0.18)),
        ({"mode": "outer", "strength": 0.0}, (0.1, -0.2)),
    ],
)
def test_approximation_error_by_hand(worked, settings, approximated):
    actual = diagnostics.approximation_error(worked, **settings)
    full = np.asarray([0.2, -0.5])
    error = np.linalg.norm(full - approximated)
    np.testing.assert_array_equal(actual.partial, [True, False])
    np.testing.assert_allclose(actual.error, [error, 0], rtol=1e-13)
    np.testing.assert_allclose(actual.relative, [error / np.linalg.norm(full), 0], rtol=1e-13)
    uncorrected = np.linalg.norm(full - [0.1, -0.2])
    np.testing.assert_allclose(actual.uncorrected, [uncorrected, 0], rtol=1e-13)
    np.testing.assert_allclose(
        actual.uncorrected_relative, [uncorrected / np.linalg.norm(full), 0], rtol=1e-13
    )


STEPS, CLIENTS = (2, 6, 1, 6), (3, 0, 1, 2)


@pytest.fixture(scope="module")
def turns(regression):
    """The four clients, two of them partial, from FedAvg's engine."""
    toy, local = regression, fa.Local(3, RATE, steps=6)
    algorithm = Case("fedavg", {}).build(toy.problem, local)
    engine, state, visits = started(toy, algorithm, CLIENTS, STEPS)
    return diagnostics.partial_turns(engine, state, toy.data, visits)


def test_turns_are_those_of_a_run(regression, turns):
    """FedLGA's engine gives the same, and each client its own full turn on the same batches."""
    toy, local = regression, fa.Local(3, RATE, steps=6)
    algorithm = Case("fedlga", {}).build(toy.problem, local)
    engine, state, visits = started(toy, algorithm, CLIENTS, STEPS, "sequential")
    again = diagnostics.partial_turns(engine, state, toy.data, visits)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), again[0][0], turns[0][0]
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), again.full, turns.full)
    assert np.all(np.asarray(visits.num_steps) == STEPS)
    partial, full = flat(turns.stack.updates), flat(turns.full)
    np.testing.assert_allclose(partial[[1, 3]], full[[1, 3]], atol=1e-15)
    whole = engine.updates(state, toy.data, cohort(toy, local, CLIENTS)).updates.change
    np.testing.assert_allclose(full, flat(whole), atol=1e-14)
    engine.round(state, toy.data, visits)  # the state is still there


@pytest.mark.parametrize("mode", ["outer", "diag", "update"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("strength", [1.0, 40.0])
def test_every_approximation_by_its_matrix(turns, mode, clip, strength):
    """L3: Delta_i + strength G v_i with the matrix G, and a multiple of Delta_i if it is rank 1."""
    changes, full = flat(turns.stack.updates), flat(turns.full)
    complete = changes[[1, 3]].mean(0)
    expected, factors = changes.copy(), np.ones(4)
    for i in (0, 2):
        delta, v = changes[i], complete - changes[i]
        g = delta if mode == "update" else -delta / (RATE * STEPS[i])
        matrix = np.diag(g * g) if mode == "diag" else np.outer(g, g)
        expected[i] = delta + strength * matrix @ v
        factors[i] = expected[i] @ delta / (delta @ delta)
        if clip and mode != "diag":
            factors[i] = np.clip(factors[i], 0, 6 / STEPS[i])
        if mode != "diag":
            np.testing.assert_allclose(clip or expected[i], clip or factors[i] * delta, atol=1e-14)
            expected[i] = factors[i] * delta
    settings = {"mode": mode, "clip": clip, "strength": strength}
    if mode != "diag":
        actual = diagnostics.lga_factors(turns.stack, **settings)
        np.testing.assert_allclose(actual, factors, rtol=1e-10)
    actual = diagnostics.approximation_error(turns, **settings)
    error = np.linalg.norm(full - expected, axis=1)
    np.testing.assert_allclose(actual.error, error, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(
        actual.relative, error / np.linalg.norm(full, axis=1), rtol=1e-10, atol=1e-15
    )


def test_l4_identical_clients_with_constant_gradients():
    """c_i = 1 + strength |g|^2 (S - S_i) / S_i, and no error where strength is 1 / |g|^2."""
    slope = np.asarray([0.6, -0.3, 1.2])
    problem = fa.Problem(
        init=lambda key: fa.Model(jnp.ones(3)),
        apply=lambda model, batch, key, training: (batch["s"] @ model.params, ()),
        loss=lambda outputs, batch: outputs,
    )
    data = stored([{"s": np.tile(slope, (2, 1))}] * 3)
    local = fa.Local(2, RATE, steps=5)
    engine = fa.make_engine(Case("fedlga", {}).build(problem, local), "vmapped")
    state = engine.init(SEED, fa.Population(3, 3, 6))
    turns = diagnostics.partial_turns(engine, state, data, visits_of([2, 5, 1]))
    square = slope @ slope
    for strength in (1.0, 0.4):
        expected = [1 + strength * square * 3 / 2, 1, 1 + strength * square * 4]
        actual = diagnostics.lga_factors(turns.stack, strength=strength)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
        bare = engine.updates(state, data, visits_of([2, 5, 1]))
        np.testing.assert_allclose(diagnostics.lga_factors(bare, strength=strength), expected)
    exact = diagnostics.approximation_error(turns, strength=1 / square)
    np.testing.assert_allclose(exact.error, 0, atol=1e-14)
    np.testing.assert_allclose(exact.uncorrected, RATE * np.sqrt(square) * np.array([3, 0, 4]))


def test_rounds_without_a_complete_client():
    changes, full = [[0.1, -0.2], [0.3, 0.4]], {"w": jnp.asarray([[0.2, -0.5], [0.4, 0.4]])}
    turns = diagnostics.PartialTurns(stack_of(changes, [2, 3]), full)
    np.testing.assert_array_equal(diagnostics.lga_factors(turns.stack), 1)
    nothing = diagnostics.approximation_error(turns)
    np.testing.assert_allclose(nothing.error, nothing.uncorrected)
    np.testing.assert_allclose(diagnostics.lga_factors(turns.stack, fallback="max"), [-1.5, 1])
    nearest = diagnostics.approximation_error(turns, fallback="max")
    np.testing.assert_array_equal(nearest.partial, [True, True])
    np.testing.assert_allclose(nearest.error, [np.hypot(0.35, 0.8), 0.1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: diagnostics.lga_factors(t.stack, mode="diag"), "mode='diag' does not exist"),
        (lambda t: diagnostics.approximation_error(t, mode="inner"), "choose outer or diag or upd"),
        (lambda t: diagnostics.approximation_error(t, fallback="min"), "choose none or max"),
    ],
)
def test_unknown_settings_are_told(worked, call, message):
    with pytest.raises(ValueError, match=message):
        call(worked)


# Averaged gradients

CYCLE = np.array([[0, 1], [4, 5], [3, 2], [0, 1], [4, 5]])
SIX_A, SIX_B = A + [[1.0, 1.0], [0.3]], B + [[3.0, -1.0], [5.0]]


@pytest.fixture(scope="module")
def six():
    return quadratics(SIX_A, SIX_B)


@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize("rounds", [4, 5])
def test_cyclic_error_and_bound(six, tau, rounds):
    actual = diagnostics.averaged_gradient_error(
        six.problem, MODEL, six.data, CYCLE[:rounds], tau, size=2
    )
    each = [np.mean(np.array(a) * (0.5 - np.array(b))) for a, b in zip(SIX_A, SIX_B, strict=True)]
    each = np.array(each)
    union = sorted({int(i) for i in CYCLE[rounds - tau : rounds].flat})
    mean, spread = each.mean(), (each - each.mean()) ** 2
    expected = diagnostics.AveragedGradientError(
        error=(each[union].mean() - mean) ** 2,
        bound=8 * (1 - tau / 3) ** 2 * (spread.mean() + mean**2),
        sure_bound=8 * (1 - tau / 3) ** 2 * (spread.max() + mean**2),
        dissimilarity=spread.mean(),
        largest_dissimilarity=spread.max(),
        gradient=mean**2,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-30)
    assert actual.error <= actual.bound
    if tau == 3:
        assert actual.error == 0


def test_gradients_are_averaged_leaf_by_leaf(regression):
    toy, model = regression, regression.problem.init(jax.random.key(0))
    actual = diagnostics.averaged_gradient_error(toy.problem, model, toy.data, [[0, 3]], 1, size=3)
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


def test_the_sure_bound_holds():
    rng = np.random.default_rng(0)
    problem = quadratics([[1.0]], [[0.0]]).problem
    for trial in range(10):
        b = rng.standard_cauchy(size=(12, 2))
        data = stored([{"a": np.ones(2), "b": row} for row in b])
        cohorts = rng.permutation(12).reshape(-1, 2)
        for tau in (1, 2 + trial % 5):
            found = diagnostics.averaged_gradient_error(problem, MODEL, data, cohorts, tau)
            assert found.error <= found.sure_bound
        found = diagnostics.averaged_gradient_error(problem, MODEL, data, cohorts, 6)
        assert found.error == 0


@pytest.mark.parametrize(
    ("cohorts", "tau", "message"),
    [
        ([[0, 1], [2, 3]], 3, "tau=3 is out of range; give 1 to 2, the number of cohorts"),
        ([[0, 1], [2, 3]], 0, "tau=0 is out of range"),
        ([[0, 6]], 1, "client 6 is in a cohort; there are clients 0 to 5"),
        ([[-1, 2]], 1, "client -1 is in a cohort"),
        ([0, 1], 1, r"cohorts has shape \(2,\); give clients as \[rounds, cohort\]"),
    ],
)
def test_impossible_cohorts_are_told(six, cohorts, tau, message):
    with pytest.raises(ValueError, match=message):
        diagnostics.averaged_gradient_error(six.problem, MODEL, six.data, cohorts, tau)
