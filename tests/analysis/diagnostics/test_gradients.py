"""The error of averaged gradients and its bounds, against NumPy."""

import jax
import numpy as np
import pytest
from diagnostics_helpers import MODEL, A, B, regression
from helpers import quadratics, stored

from fedjax_algos.analysis import diagnostics

pytestmark = pytest.mark.usefixtures("x64")

CYCLE = np.array([[0, 1], [4, 5], [3, 2], [0, 1], [4, 5]])
SIX_A, SIX_B = A + [[1.0, 1.0], [0.3]], B + [[3.0, -1.0], [5.0]]


@pytest.fixture(scope="module")
def six():
    return quadratics(SIX_A, SIX_B)


@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize("rounds", [4, 5])
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
    for trial in range(10):
        b = rng.standard_cauchy(size=(12, 2))
        data = stored([{"a": np.ones(2), "b": row} for row in b])
        cohorts = rng.permutation(12).reshape(-1, 2)
        for tau in (1, 2 + trial % 5):
            found = diagnostics.averaged_gradient_error(problem, MODEL, data, cohorts, tau)
            assert found.error <= found.worst_case_bound
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
def test_impossible_cohorts_are_refused(six, cohorts, tau, message):
    with pytest.raises(ValueError, match=message):
        diagnostics.averaged_gradient_error(six.problem, MODEL, six.data, cohorts, tau)
