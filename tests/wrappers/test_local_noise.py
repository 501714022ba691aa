"""Noise that each client adds, and noise on the virtual clock."""

import numpy as np
import pytest
from helpers import quadratics
from scipy import stats
from wrapper_helpers import one_example_each, rounds_of, sends, transfer_of

import fedjax_algos as fa
from fedjax_algos.asynchrony import barrier, buffered, simulated
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.privacy.bounds import gaussian_epsilon
from fedjax_algos.wrappers.privacy.local import local_gaussian

TOY = quadratics([[1], [0.5], [1.5], [0.7]], [[1], [3], [-2], [1]])
LOCAL = fa.Local(1, 0.1, steps=1)


def base(**options):
    return fa.algorithms.fedavg(TOY.problem, LOCAL, weighting="uniform", **options)


def test_each_message_has_noise_of_its_own():
    """The mean of 4 messages has a quarter of one's variance; a message that is NaN is noise."""
    vectors = np.zeros((4, 2, 50_000), np.float32)
    vectors[1, 0, 3] = np.nan
    algorithm = local_gaussian(sends(vectors), clip=0.5, noise=2)
    states = rounds_of(algorithm, [(0, 1, 2, 3)] * 2, 4)
    params = [np.zeros(50_000), *(state.server.params["x"] for state in states)]
    noise = -np.diff(params, axis=0)
    assert stats.kstest(noise.ravel(), stats.norm(scale=0.5).cdf).pvalue > 1e-3
    wrapped = wrap(base(), "local_gaussian:clip=1,noise=1")
    assert transfer_of(wrapped, TOY.data) == transfer_of(base(), TOY.data)


def test_epsilon_counts_the_messages_of_the_busiest_client():
    """Any two updates differ by 2 C. Also with a sampler that draws a client twice."""
    assert local_gaussian(base(), clip=1, epsilon=2).transport.client[0].private.noise == (
        pytest.approx(1.9938, abs=6e-5)
    )
    engine = fa.make_engine(wrap(base(), "local_gaussian:clip=1,noise=3"))
    sampler = fa.participation.samplers.make("with_replacement")
    options = {"cohort_size": 3, "rounds": 4, "eval_every": 4, "sampler": sampler}
    _, rows = fa.simulate(engine, TOY.data, **options)
    drawn = np.bincount(sampler(0, np.arange(4), 4, 3).ravel()).max()
    assert rows[-1]["epsilon"] == pytest.approx(gaussian_epsilon(1.5 / drawn**0.5, 1e-5))
    assert rows[-1]["clipped"] <= 1
    with pytest.raises(ValueError, match="local_gaussian adds noise already; leave one out"):
        fa.simulate(
            fa.make_engine(wrap(base(), "local_gaussian:clip=1,noise=1+gaussian:clip=1,noise=1")),
            TOY.data,
            **options,
        )


@pytest.mark.parametrize("spec", ["term:t=1+{}", "{}+term:t=1", "afl+{}"])
def test_numbers_without_noise_are_refused(spec):
    """Losses that clients send for the weights of a fair objective."""
    algorithm = wrap(base(), spec.format("local_gaussian:clip=1,noise=1"))
    with pytest.raises(ValueError, match="sends numbers of the clients' examples without noise"):
        transfer_of(algorithm, TOY.data)


@pytest.mark.parametrize("exponent", [0.5, -1.0])
def test_buffers_on_the_clock(exponent, x64):
    """A step adds the clipped updates of a buffer, times their staleness weights, and noise / K.

    Its epsilon is that of the busiest client, whose updates may be in a buffer twice.
    """
    vectors = np.random.default_rng(0).normal(size=(3, 400, 2000))
    frame = fa.algorithms.fedbuff(
        sends(vectors).problem, LOCAL, weighting="buffer", exponent=exponent
    )
    plain = frame._replace(client_update=sends(vectors).client_update)
    data, planner = one_example_each(3), buffered(steps=1, size=2)
    found = {}
    for spec in ("gaussian:clip=0.5,noise=0", "gaussian:clip=0.5,noise=2"):
        executor = fa.make_executor(wrap(plain, spec))
        options = {"planner": planner, "system": simulated(), "seconds": 12.0, "evaluations": 3}
        state, rows, plan = fa.simulate_async(executor, data, **options)
        found[spec[-1]] = np.asarray(state.server.params["x"]), rows
    clients, steps = plan.client[plan.dispatch], plan.step
    weights = 0.9 * (1.0 + plan.staleness) ** -exponent / 0.9
    sent = weights[:, None] * vectors[clients, plan.number[plan.dispatch]]
    norms = np.linalg.norm(sent, axis=1, keepdims=True)
    expected = -0.9 * (sent * np.minimum(1, 0.5 / norms)).sum(0) / 2
    np.testing.assert_allclose(found["0"][0], expected, rtol=1e-9)
    noise = found["2"][0] - found["0"][0]
    scale = 0.9 * np.sqrt(len(plan.time)) * 2 * 0.5 / 2
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-3
    squares = [sum((clients[steps == u] == i).sum() ** 2 for u in range(len(plan.time)))
               for i in range(3)]  # fmt: skip
    row = found["2"][1][-1]
    assert row["round"] == len(plan.time)
    assert row["epsilon"] == pytest.approx(gaussian_epsilon(2 / max(squares) ** 0.5, 1e-5))


def test_other_planners_and_laws_are_refused_on_the_clock():
    options = {"system": simulated(dropout=0.5), "seconds": 9.0}
    private = fa.make_executor(wrap(base(), "gaussian:clip=1,noise=1"))
    with pytest.raises(ValueError, match=r"equally many updates .*or the planner buffered"):
        fa.simulate_async(private, TOY.data, planner=barrier(steps=1), **options)
    private = fa.make_executor(wrap(base(), "laplace:clip=1,noise=1"))
    with pytest.raises(ValueError, match="no bound is known for laplace noise and buffers"):
        fa.simulate_async(private, TOY.data, planner=buffered(steps=1, size=2), **options)
