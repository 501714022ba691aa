"""FedLGA's factors and approximations, by hand and by its matrices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics_helpers import RATE, cohort, flat, regression, started
from helpers import Case
from paper_measures import approximation
from paper_measures.approximation import approximation_error, fedlga_factors

import fedjax_algos as fa

pytestmark = [pytest.mark.all, pytest.mark.usefixtures("x64")]
STEPS, CLIENTS = (2, 6, 1, 6), (3, 0, 1, 2)


def built(name):
    return regression(), Case(name, {}).build(regression().problem, fa.Local(3, RATE, steps=6))


@pytest.fixture(scope="module")
def updates():
    """Four clients, two of them partial, from FedAvg's engine."""
    toy, algorithm = built("fedavg")
    engine, state, dispatches = started(toy, algorithm, CLIENTS, STEPS)
    return approximation.partial_updates(engine, state, toy.data, dispatches)


def test_updates_are_those_of_a_run(updates):
    """FedLGA's engine gives the same ones; complete work is done on the same batches."""
    toy, algorithm = built("fedlga")
    engine, state, dispatches = started(toy, algorithm, CLIENTS, STEPS, "sequential")
    again = approximation.partial_updates(engine, state, toy.data, dispatches)
    chex.assert_trees_all_close(again.stack.updates, updates.stack.updates, rtol=1e-7, atol=1e-14)
    chex.assert_trees_all_close(again.full, updates.full, rtol=1e-7, atol=1e-14)
    partial, full = flat(updates.stack.updates), flat(updates.full)
    np.testing.assert_allclose(partial[[1, 3]], full[[1, 3]], atol=1e-15)
    whole = engine.updates(state, toy.data, cohort(toy, algorithm.local, CLIENTS)).updates.change
    np.testing.assert_allclose(full, flat(whole), atol=1e-14)


@pytest.mark.parametrize("mode", ["outer", "diag", "update"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("strength", [1.0, 40.0, -1.0])
def test_every_approximation_by_its_matrix(updates, mode, clip, strength):
    """Delta_i + strength G v_i with the matrix G, and a multiple of Delta_i if G has rank 1."""
    changes, full = flat(updates.stack.updates), flat(updates.full)
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
        found = fedlga_factors(updates.stack, **settings)
        np.testing.assert_allclose(found, factors, rtol=1e-10)
    actual = approximation_error(updates, **settings)
    error, norm = (np.linalg.norm(each, axis=1) for each in (full - expected, full))
    np.testing.assert_allclose(actual.error, error, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(actual.relative, error / norm, rtol=1e-10, atol=1e-15)


def test_rounds_without_a_complete_client(updates):
    changes, full = jnp.array([[[0.1, -0.2], [0.3, 0.4]], [[0.2, -0.5], [0.4, 0.4]]])
    stack = jax.tree.map(lambda leaf: leaf[:2], updates.stack)
    dispatches = stack.dispatches._replace(num_steps=np.array([2, 3]), full_steps=np.array([5, 5]))
    stack = stack._replace(updates={"w": changes}, dispatches=dispatches)
    updates = approximation.PartialUpdates(stack, {"w": full})
    np.testing.assert_array_equal(fedlga_factors(stack), 1)
    nothing = approximation_error(updates)
    np.testing.assert_allclose(nothing.error, nothing.uncorrected)
    np.testing.assert_allclose(fedlga_factors(stack, fallback="max"), [-1.5, 1])
    nearest = approximation_error(updates, fallback="max")
    np.testing.assert_array_equal(nearest.partial, [True, True])
    np.testing.assert_allclose(nearest.error, [np.hypot(0.35, 0.8), 0.1])
