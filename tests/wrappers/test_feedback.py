"""What clients remember of what their codecs have lost: golden values, sums and fixed points."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import run, stored
from wrapper_helpers import least_squares, rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.wrappers import Codec, compress, randk, topk

pytestmark = pytest.mark.usefixtures("x64")
V = np.array([3.0, -1.0, 0.5, -4.0])
ALONE = [(0,)] * 4


def always(*vectors, dispatches=4):
    """Each client sends its vector in all dispatches."""
    return np.stack([np.stack([vector] * dispatches) for vector in vectors])


def memories(states, client=0):
    return np.array([state.clients.own[0]["x"][client] for state in states])


def sent(states):
    """What the server has subtracted in each round."""
    params = np.array(
        [np.zeros_like(states[0].server.params["x"])] + [s.server.params["x"] for s in states]
    )
    return params[:-1] - params[1:]


def test_residuals_of_error_feedback():
    states = rounds_of(topk(sends(always(V)), fraction=0.25, feedback="ef"), ALONE[:3], 1)
    np.testing.assert_array_equal(sent(states), [[0, 0, 0, -4], [6, 0, 0, 0], [0, 0, 0, -8]])
    expected = [[3, -1, 0.5, 0], [0, -2, 1, -4], [3, -3, 1.5, 0]]
    np.testing.assert_array_equal(memories(states), expected)


def test_distances_of_ef21():
    states = rounds_of(topk(sends(always(V)), fraction=0.25, feedback="ef21"), ALONE, 1)
    distances = ((memories(states) - V) ** 2).sum(1)
    np.testing.assert_array_equal(distances, [10.25, 1.25, 0.25, 0])
    np.testing.assert_array_equal(sent(states), memories(states))  # U is the mean of one


def test_nothing_sent_is_lost():
    """What has arrived, and the residuals of all clients, are the sum of what was to be sent."""
    rng = np.random.default_rng(0)
    vectors, sets = rng.normal(size=(4, 9, 12)), [(0, 1), (2, 1), (3, 0)] * 3
    for codec in (topk, randk):
        states = rounds_of(codec(sends(vectors), fraction=0.3, feedback="ef"), sets, 4)
        wanted = sum(vectors[i, : sum(i in cohort for cohort in sets)].sum(0) for i in range(4))
        residuals = states[-1].clients.own[0]["x"].sum(0)
        np.testing.assert_allclose(2 * sent(states).sum(0) + residuals, wanted, atol=1e-12)
        assert np.abs(residuals).max() > 0.1


def test_ef21_remembers_the_mean_over_all_clients():
    """Also of those that are not in the cohort, and of those that have not been dispatched."""
    rng = np.random.default_rng(1)
    vectors, sets = rng.normal(size=(4, 9, 12)), [(0, 1), (2, 1), (0, 2)] * 2
    states = rounds_of(topk(sends(vectors), fraction=0.3, feedback="ef21"), sets, 4)
    means = [state.clients.own[0]["x"].sum(0) / 4 for state in states]
    np.testing.assert_allclose(sent(states), means, atol=1e-12)


def diana_of(vectors, sets, mask, omega):
    """What the server subtracts, by the rule in NumPy, if the codec keeps the entries of a mask."""
    num_clients, _, d = vectors.shape
    h, mean_h, numbers, history = np.zeros((num_clients, d)), np.zeros(d), [0] * num_clients, []
    for cohort in sets:
        received = []
        for i in cohort:
            c = mask * (vectors[i, numbers[i]] - h[i]) * (1 + omega)
            h[i] += c / (1 + omega)
            received.append(c)
            numbers[i] += 1
        history.append(mean_h + np.mean(received, 0))
        mean_h = mean_h + np.sum(received, 0) / num_clients / (1 + omega)
    np.testing.assert_allclose(mean_h, h.mean(0), atol=1e-12)
    return history


def alternating(omega):
    """A codec that keeps every second entry, from the first in a fixed way, times 1 + omega."""

    def decode(message, d):
        return jnp.where(jnp.arange(d) % 2 == 0, message, 0) * (1 + omega)

    return Codec(lambda key, v: v, decode, lambda d: omega)


def test_diana():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(3, 9, 6)).astype(np.float32).astype(float)
    sets = [(0, 1), (2, 1), (0, 2), (0, 1)]
    states = rounds_of(compress("a", sends(vectors), alternating(1.0), feedback="diana"), sets, 3)
    mask = np.arange(6) % 2 == 0
    expected = diana_of(vectors, sets, mask, 1.0)
    np.testing.assert_allclose(sent(states), expected, atol=1e-6)


def test_diana_without_memory_is_the_codec_alone():
    """alpha is 1 / (1 + omega), which is 0 here, and h stays 0."""
    vectors = np.random.default_rng(3).normal(size=(3, 9, 6))
    plain = alternating(0.0)._replace(variance=lambda d: np.inf)
    ends = [
        sent(
            rounds_of(compress("a", sends(vectors), plain, feedback=feedback), [(0, 1), (2, 1)], 3)
        )
        for feedback in ("none", "diana")
    ]
    np.testing.assert_allclose(*ends, atol=1e-12)


@pytest.mark.parametrize("feedback", ["ef", "ef21", "diana"])
def test_an_unbiased_codec_that_expands_does_not_diverge(feedback):
    """Rand-k multiplies by 20; the memory of one client finds its vector, and e stays bounded."""
    v = np.random.default_rng(4).normal(size=20)
    states = rounds_of(
        randk(sends(always(v, dispatches=400)), fraction=0.05, feedback=feedback), [(0,)] * 400, 1
    )
    last = memories(states)[-1]
    if feedback == "ef":  # what is not sent for 20 rounds on average, in which v is added to it
        assert np.abs(last).max() < 200 * np.abs(v).max()
        np.testing.assert_allclose(sent(states).sum(0) + last, 400 * v, rtol=1e-6)
    else:
        np.testing.assert_allclose(last, v, atol=1e-6)


def test_fedavg_with_top_k_and_error_feedback_in_numpy():
    """Two of three clients a round, two local steps of full gradients, weights by examples."""
    rng = np.random.default_rng(6)
    counts, sets, rate, k, d = (2, 5, 3), [(0, 1), (2, 1), (0, 2), (1, 0)], 0.1, 2, 7
    a, b = [rng.normal(size=(n, d)) for n in counts], [rng.normal(size=n) for n in counts]
    problem = fa.Problem(
        init=lambda key: fa.Model({"x": jnp.zeros(d)}),
        apply=lambda model, batch, key, training: (batch["a"] @ model.params["x"], ()),
        loss=lambda outputs, batch: 0.5 * (outputs - batch["b"]) ** 2,
    )
    local = fa.Local(batch_size=8, learning_rate=rate, steps=2, batches="full")
    data = stored([{"a": a[i], "b": b[i]} for i in range(3)])
    algorithm = topk(fa.algorithms.fedavg(problem, local), fraction=k / d, feedback="ef")
    history = run(algorithm, data, sets)

    x, e = np.zeros(d), np.zeros((3, d))
    for cohort, found in zip(sets, history, strict=True):
        total = np.zeros(d)
        for i in cohort:
            y = x.copy()
            for _ in range(2):
                y -= rate * a[i].T @ (a[i] @ y - b[i]) / counts[i]
            wanted = x - y + e[i]
            largest = np.argsort(-np.abs(wanted))[:k]
            message = np.zeros(d)
            message[largest] = wanted[largest].astype(np.float32)
            e[i] = wanted - message
            total += counts[i] * message
        x = x - total / sum(counts[i] for i in cohort)
        np.testing.assert_allclose(found["x"], x, atol=1e-7)
    assert np.abs(e).min(0).max() > 1e-3  # entries that no client has sent


def test_top_1_alone_stalls_where_its_memories_converge():
    problem, data, best = least_squares()
    local = fa.Local(batch_size=1, learning_rate=0.02, steps=1)
    bare = fa.algorithms.fedavg(problem, local, weighting="uniform")
    distances = {}
    for feedback in ("none", "ef", "ef21"):
        algorithm = topk(bare, fraction=0.1, feedback=feedback)
        (*_, middle, end) = run(algorithm, data, [(0, 1, 2, 3)] * 3000)[1499::500]
        distances[feedback] = [np.linalg.norm(state["x"] - best) for state in (middle, end)]
    assert distances["none"][1] > 0.5
    assert distances["ef"][1] < 0.3 * distances["none"][1]
    assert distances["ef21"][1] < 1e-6
