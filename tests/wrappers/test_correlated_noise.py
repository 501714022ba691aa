"""Noise that is correlated over rounds: golden values of the matrices, and rounds against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wrapper_helpers import later, rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.participation import samplers
from fedjax_algos.wrappers import Sampling, accountant_of, wrap
from fedjax_algos.wrappers.privacy import strategies
from fedjax_algos.wrappers.privacy.bounds import gaussian_epsilon
from fedjax_algos.wrappers.privacy.central import correlated_gaussian

pytestmark = pytest.mark.usefixtures("x64")
CYCLIC = samplers.make("cyclic:num_groups=2")


def inverse(strategy, rounds):
    """A^-1, by a stream of unit vectors."""
    unit, found = jnp.eye(rounds), []
    memory = strategy.first(unit[0])
    for number in range(rounds):
        row, memory = strategy.step(unit[number], memory, jnp.int32(number))
        found.append(row)
    return np.array(found)


def lengths(column, rounds):
    """The Toeplitz matrix of a column."""
    whole = np.zeros(rounds)
    whole[: len(column)] = column[:rounds]
    return np.array([[whole[i - j] if i >= j else 0 for j in range(rounds)] for i in range(rounds)])


def test_golden_values_of_matrices():
    column = strategies.toeplitz_coefficients(6)
    np.testing.assert_allclose(column, [1, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375])
    np.testing.assert_allclose(inverse(strategies.banded(2), 4)[:, 0], [1, -0.5, 0.25, -0.125])
    buffered = strategies.buffered([0.9], [0.5])
    np.testing.assert_allclose(inverse(buffered, 4)[:, 0], [1, -0.5, -0.2, -0.08])
    errors = [1.48828125, 1.9438788, 2.5313521]
    for rounds, error in zip((4, 16, 100), errors, strict=True):
        whole = strategies.toeplitz_coefficients(rounds)
        found = strategies.toeplitz_sensitivity(whole, rounds, rounds) ** 2
        assert found == pytest.approx(error, abs=1e-7)
    twice = strategies.toeplitz_sensitivity(strategies.toeplitz_coefficients(4), 4, 2)
    assert twice**2 == pytest.approx(3.80078125)
    for rounds, separation, square in ((6, 3, 8), (8, 4, 10), (4, 4, 3)):
        found = strategies.tree(rounds).sensitivity(rounds, separation) ** 2
        assert found == pytest.approx(square)


def test_prefix_sums_of_a_tree_are_its_nodes():
    """Round 6 has the nodes of the rounds 1 to 4 and 5 to 6."""
    sums = np.cumsum(inverse(strategies.tree(8), 8), axis=0)
    expected = np.zeros((8, 8))
    for number in range(1, 9):
        left, end = number, number
        while left:  # a node is drawn when its last round ends
            expected[number - 1, end - 1] = 1
            end -= left & -left
            left = end
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("separation", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["banded", "blt", "one band"])
def test_the_sensitivity_is_the_largest_of_all_patterns(name, separation):
    """Against every pattern of rounds of a client, with the matrix from its streamed inverse."""
    rounds = 7
    made = {"banded": lambda: strategies.banded(3), "one band": lambda: strategies.banded(1)}
    strategy = made.get(name, lambda: strategies.fitted_buffers(rounds))()
    matrix = np.linalg.inv(inverse(strategy, rounds))
    norms = []
    for start in range(min(separation, rounds)):
        own = np.arange(start, rounds, separation)
        for kept in range(2 ** len(own)):
            chosen = own[[bool(kept >> place & 1) for place in range(len(own))]]
            norms.append(np.linalg.norm(matrix[:, chosen].sum(1)))
    assert strategy.sensitivity(rounds, separation) == pytest.approx(max(norms))


@pytest.mark.parametrize("rounds", [16, 100])
def test_fitted_buffers_are_near_the_best_error(rounds):
    """The largest error of a prefix sum, of one participation: within half a percent."""
    strategy = strategies.fitted_buffers(rounds)
    sums = np.cumsum(inverse(strategy, rounds)[:, 0])
    found = strategy.sensitivity(rounds, rounds) * np.linalg.norm(sums)
    best = strategies.toeplitz_coefficients(rounds)
    assert 1 <= found / (best**2).sum() < 1.005


@pytest.mark.parametrize("matrix", ["banded", *later("blt", "tree")])
def test_rounds_have_correlated_noise(matrix):
    """Clients send 0; A W / (s z C) of their rounds is white, with the variance of one release."""
    rounds, size = 6, 20_000
    sampling = Sampling(CYCLIC, 4, 2, rounds)
    options = {"clip": 0.3, "noise": 1.5, "matrix": matrix, "sampling": sampling}
    algorithm = correlated_gaussian(sends(np.zeros((4, rounds, size))), **options)
    sets = [(0, 1), (2, 3)] * 3
    states = rounds_of(algorithm, sets, 4)
    params = np.array([np.zeros(size), *(state.server.params["x"] for state in states)])
    release = algorithm.transport.rule.private
    noise = (params[:-1] - params[1:]) * 2 / (0.3 * release.noise)  # M = 2
    made = {"banded": lambda: strategies.banded(2), "blt": lambda: strategies.fitted_buffers(6)}
    strategy = made.get(matrix, lambda: strategies.tree(6))()
    unit = jax.device_get(inverse(strategy, rounds))
    expected = unit @ unit.T
    np.testing.assert_allclose(noise @ noise.T / size, expected, atol=6 * 2 / np.sqrt(size))
    accountant = accountant_of(algorithm, sampling)
    assert accountant.epsilon(rounds) == pytest.approx(gaussian_epsilon(1.5, 1e-5))
    assert 0 < accountant.epsilon(1) <= accountant.epsilon(2) < accountant.epsilon(3)


def test_a_tree_has_no_noise_for_more_rounds_than_planned():
    sampling = Sampling(CYCLIC, 4, 2, 7)
    zeros = sends(np.zeros((4, 3, 5)))
    private = correlated_gaussian(zeros, clip=1, noise=1, matrix="tree", sampling=sampling)
    accountant = accountant_of(private, sampling)
    assert np.isfinite(accountant.epsilon(7))
    assert accountant.epsilon(8) == np.inf


def test_one_band_is_independent_noise():
    sampling, zeros = Sampling(CYCLIC, 4, 2, 3), sends(np.zeros((4, 3, 5)))
    one = correlated_gaussian(zeros, clip=1, noise=1, bands=1, sampling=sampling)
    noise = one.transport.rule.private.noise
    assert noise == pytest.approx(2**0.5)  # a client has two of three rounds
    other = wrap(zeros, f"gaussian:clip=1,noise={noise}")
    found = [rounds_of(each, [(0, 1)] * 3, 4) for each in (one, other)]
    for state, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(state.server.params["x"], expected.server.params["x"])


@pytest.mark.parametrize(
    ("sampling", "options", "reason"),
    [
        (None, {}, r"number of rounds are not known; give sampling=Sampling\(..., rounds=...\)"),
        (Sampling(CYCLIC, 4, 2), {}, "number of rounds are not known"),
        (
            Sampling(fa.participation.uniform, 100, 10, 5),
            {},
            "correlated noise and fixed cohorts; give cyclic:num_groups=10 or gaussian",
        ),
        (Sampling(CYCLIC, 4, 2, 5), {"matrix": "tree", "bands": 2}, "bands=2 is for matrix=banded"),
    ],
)
def test_cohorts_in_unknown_rounds_are_refused(sampling, options, reason):
    given = {"clip": 1, "noise": 1, "delta": 1e-3, "sampling": sampling}
    with pytest.raises(ValueError, match=reason):
        correlated_gaussian(sends(np.zeros((4, 3, 5))), **given, **options)
