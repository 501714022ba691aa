"""Noise on the gradients of examples: Poisson batches, clipping, noise, epsilon and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, by_kind, quadratics, small_network, with_statistics
from scipy import stats
from wrapper_helpers import in_a_round

import fedjax_algos as fa
from fedjax_algos.core import ExampleNoise
from fedjax_algos.core.client_data import ClientData
from fedjax_algos.core.example_noise import noisy_gradient, poisson_slots
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.core.randomness import dispatch_keys, permutation_words
from fedjax_algos.wrappers import Sampling, accountant_of, wrap
from fedjax_algos.wrappers.privacy.bounds import gaussian_epsilon

NOISE = ExampleNoise(clip=1.0, noise=2.0, delta=1e-3)
TOY = quadratics([[1] * 7, [0.5] * 40], [[1] * 7, [3] * 40])


def local(noise=NOISE, **options):
    given = {"batch_size": 4, "learning_rate": 0.1, "steps": 2, "batches": "poisson"}
    return fa.Local(**given | options, example_noise=noise)


def drawn(examples, batch_size, draws):
    """The positions and masks of the first step of many dispatches."""

    def of_one(dispatch):
        order, _ = dispatch_keys(jnp.uint32(3), jnp.int32(0), dispatch)
        words, number = permutation_words(order), jnp.int32(examples)
        data = ClientData((), jnp.zeros(0, jnp.int32), jnp.int32(0), number, words, ())
        return data.positions(jnp.int32(1), batch_size, "poisson")

    return jax.device_get(jax.jit(jax.vmap(of_one))(jnp.arange(draws)))


def test_each_example_comes_with_the_same_probability():
    """B / n, independently of the others: sizes are binomial, and pairs have no correlation."""
    draws, examples, mean = 20_000, 30, 5
    positions, real = drawn(examples, mean, draws)
    assert positions.shape == (draws, poisson_slots(mean)) == (draws, 16)
    there = np.zeros((draws, examples))
    rows, slots = real.nonzero()
    np.add.at(there, (rows, positions[rows, slots]), 1)
    assert there.max() == 1  # no example comes twice
    counts = np.bincount(there.sum(1).astype(int), minlength=17)
    expected = stats.binom.pmf(np.arange(17), examples, mean / examples) * draws
    few = expected < 20
    counts, expected = np.append(counts[~few], counts[few].sum()), expected[~few]
    expected = np.append(expected, draws - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    deviation = np.sqrt(mean / examples * (1 - mean / examples) / draws)
    assert np.abs(there.mean(0) - mean / examples).max() < 5 * deviation
    assert np.abs(np.corrcoef(there.T) - np.eye(examples)).max() < 5 / np.sqrt(draws)


def test_all_examples_come_to_a_batch_that_is_as_large():
    positions, real = drawn(5, 5, 3)
    assert (real.sum(1) == 5).all()
    assert (np.sort(positions[:, :5]) == np.arange(5)).all()


def linear(x):
    """The loss x . y of a vector y, whose gradient is x."""
    return fa.Problem(
        init=lambda key: fa.Model({"y": jnp.zeros(len(x[0]))}),
        apply=lambda model, batch, key, training: (batch["x"] @ model.params["y"], ()),
        loss=lambda outputs, batch: outputs,
    )


def test_golden_values_of_a_clipped_gradient():
    """(3, 4) is shortened to C = 1, (.3, .4) is not; a masked row and one with NaN count 0."""
    x = jnp.array([[3.0, 4.0], [0.3, 0.4], [9.0, 9.0], [jnp.nan, 1.0]])
    problem, mask = linear(x), jnp.array([True, True, False, True])
    model, key = problem.init(None), jax.random.key(0)
    clear = noisy_gradient(batch_gradient(problem), problem, ExampleNoise(1.0, 0.0), 5)
    found, _, loss = jax.jit(clear)(model, {"x": x[:, :2]}, mask, key)
    np.testing.assert_allclose(found["y"], [0.9 / 5, 1.2 / 5], rtol=1e-6)
    assert loss.weight == 3


def test_the_noise_has_the_variance_of_the_mean():
    """z C / B in each entry, also for a batch without examples; other steps draw other noise."""
    x = jnp.zeros((3, 50_000))
    problem = linear(x)
    noisy = noisy_gradient(batch_gradient(problem), problem, ExampleNoise(0.5, 2.0), 4)
    model, none = problem.init(None), jnp.zeros(3, bool)
    found = [noisy(model, {"x": x}, none, jax.random.key(k))[0]["y"] for k in (0, 1)]
    for each in found:
        assert stats.kstest(each, stats.norm(scale=2.0 * 0.5 / 4).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(found)[0, 1]) < 5 / np.sqrt(50_000)


def test_a_round_in_numpy(x64):
    """FedAvg of two clients: the batches as drawn, clipped gradients, divided by the mean size."""
    made = local(ExampleNoise(0.7, 0.0), steps=3)
    algorithm = fa.algorithms.fedavg(TOY.problem, made, weighting="uniform")
    round_fn, counts = fa.pure_round(algorithm), TOY.data.counts()
    state = round_fn.init(0, fa.Population(2, 2, 47))
    cohorts = fa.participation.Cohorts(counts, made, cohort_size=2, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    end, _ = round_fn(state, TOY.data, dispatches)
    results = []
    for client, (a, b) in enumerate([(1, 1), (0.5, 3)]):
        x = 0.5
        order, _ = dispatch_keys(jnp.uint32(0), jnp.int32(client), jnp.int32(0))
        data = ClientData(
            (), jnp.zeros(0, jnp.int32), jnp.int32(0), jnp.int32(counts[client]),
            permutation_words(order), (),
        )  # fmt: skip
        for step in range(3):
            _, real = data.positions(jnp.int32(step), 4, "poisson")
            x -= 0.1 * int(real.sum()) * np.clip(a * (x - b), -0.7, 0.7) / 4
        results.append(x)
    np.testing.assert_allclose(end.server.params["x"], np.mean(results), rtol=1e-12)


READS = "reads examples besides one noisy gradient"
COMPARES = "compares the examples of a batch"
READ = "mime mimemom mimelite mimexlite mimelitemom qfedavg ditto pfedme ifca perfedavg fedlc"
READ += " feddisco fedala fedsam mofedsam fedgamma fedspeed fedlesam fedsmoo"
REFUSED = {"feddecorr": COMPARES} | dict.fromkeys(READ.split(), READS)


@pytest.mark.parametrize("case", by_kind(CASES))
def test_every_algorithm_has_noisy_gradients_or_is_refused(case):
    """Examples are sealed: one training of a dispatch may open them, and only it."""

    def traced():
        algorithm = case.build(small_network().problem, local())
        jax.eval_shape(fa.pure_round(algorithm), *in_a_round(algorithm))

    if case.name not in REFUSED:
        traced()
        return
    with pytest.raises(ValueError, match=REFUSED[case.name]):
        traced()


def test_what_reads_examples_beside_the_training_is_refused():
    bare = fa.algorithms.fedavg(small_network().problem, local(), weighting="uniform")
    for spec in ("afl", "power_of_choice:candidates=2", "active:candidates=2,alpha1=0"):
        algorithm = wrap(bare, spec)
        with pytest.raises(ValueError, match=READS):
            jax.eval_shape(fa.pure_round(algorithm), *in_a_round(algorithm))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batches": "short"}, r"needs batches='poisson' .*change ExampleNoise"),
        ({"gradient_accumulation": 2}, "gradient_accumulation=1"),
        ({"noise": ExampleNoise(0.0, 1.0)}, "a clip above 0"),
        ({"noise": ExampleNoise(1.0, -1.0)}, "noise of at least 0"),
    ],
)
def test_settings_that_fit_no_bound_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        fa.algorithms.fedavg(TOY.problem, local(**options))
    with pytest.raises(ValueError, match="the model has statistics"):
        fa.algorithms.fedavg(with_statistics(small_network().problem), local())


def test_epsilon_is_for_the_client_with_the_most_steps_and_the_fewest_examples():
    """Client 0 has 7 examples and 4 in a batch; all clients take part in each of two rounds."""
    algorithm = fa.algorithms.fedavg(TOY.problem, local(), weighting="uniform")
    _, rows = fa.simulate(fa.make_engine(algorithm), TOY.data, cohort_size=2, rounds=2)
    import dp_accounting
    from dp_accounting import pld

    event = dp_accounting.PoissonSampledDpEvent(4 / 7, dp_accounting.GaussianDpEvent(2.0))
    by_hand = pld.PLDAccountant().compose(event, 4).get_epsilon(1e-3)
    assert rows[-1]["epsilon"] == pytest.approx(by_hand, rel=1e-9)
    whole = fa.algorithms.fedavg(TOY.problem, local(batch_size=9))
    found = accountant_of(whole, Sampling(fa.participation.uniform, 2, 2, examples=7)).epsilon(6)
    assert found == pytest.approx(gaussian_epsilon(2 / 6**0.5, 1e-3))
    twice = wrap(algorithm, "gaussian:clip=1,noise=1")
    with pytest.raises(ValueError, match="example_noise: gaussian adds noise already"):
        fa.simulate(fa.make_engine(twice), TOY.data, cohort_size=2, rounds=2)


def test_epsilon_on_the_clock_counts_steps():
    algorithm = fa.algorithms.fedbuff(TOY.problem, local(batch_size=7))
    options = {"planner": fa.asynchrony.buffered(steps=2, size=2), "seconds": 9.0}
    executor, system = fa.make_executor(algorithm), fa.asynchrony.simulated()
    _, rows, plan = fa.simulate_async(executor, TOY.data, system=system, **options)
    ended = plan.ended <= 9
    most = 2 * np.bincount(plan.client[ended]).max()
    assert rows[-1]["epsilon"] == pytest.approx(gaussian_epsilon(2 / most**0.5, 1e-3))
