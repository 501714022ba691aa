"""Epsilon: tables, an attack that reaches a lower limit, and what has no bound."""

import importlib
import math

import jax
import numpy as np
import pytest
from helpers import quadratics
from scipy import optimize, special, stats
from wrapper_helpers import later, one_example_each, sends

import fedjax_algos as fa
from fedjax_algos.participation import samplers
from fedjax_algos.participation.traced import traced_samplers
from fedjax_algos.wrappers import Release, Sampling, accountant_of, noise_for, wrap
from fedjax_algos.wrappers.privacy.accounting import accountant
from fedjax_algos.wrappers.privacy.bounds import gaussian_epsilon

TOY = quadratics([[1], [0.5], [1.5], [0.7]], [[1], [3], [-2], [1]])
LOCAL = fa.Local(1, 0.1, steps=1)
N, M, T, DELTA = 1000, 50, 200, 1e-4


def epsilon(sampler, slots, noise=1.0, rounds=T, delta=DELTA, law="gaussian", clients=N):
    """The epsilon after some rounds."""
    sampling = Sampling(samplers.make(sampler), clients, slots)
    return accountant(Release(law, noise, delta), sampling).epsilon(rounds)


@pytest.mark.parametrize(
    ("noise", "expected"), [(0.5, 9.9973), (1, 4.3772), (2, 1.9931), (4, 0.9263)]
)
def test_one_gaussian_release(noise, expected):
    assert gaussian_epsilon(noise, 1e-5) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(
    ("wanted", "noise"), [(0.5, 7.0318), (1, 3.7306), (2, 1.9938), (5, 0.8919), (10, 0.4999)]
)
def test_the_noise_of_one_gaussian_release(wanted, noise):
    """Golden values of the analytic calibration."""
    found = noise_for(Sampling(fa.participation.uniform, 4, 4, rounds=1), wanted, 1e-5)
    assert noise - 6e-5 <= found <= noise * 1.001 + 6e-5
    assert gaussian_epsilon(found, 1e-5) <= wanted


@pytest.mark.parametrize(
    ("sampler", "slots", "expected"),
    [
        ("cyclic:num_groups=20", 50, 16.1031),
        ("uniform", 1000, 151.708),
        *later(
            ("uniform", 50, 20.2285),
            ("poisson:mean=50", 1000, 3.9993),
            ("poisson:mean=50", 60, 8.941),
            mark=pytest.mark.all,
        ),
        *later(
            ("poisson:mean=50", 50, 16.414),
            ("poisson:mean=50", 55, 12.509),
            ("poisson:mean=50", 65, 6.538),
            ("poisson:mean=50", 70, 4.991),
            ("poisson:mean=50", 80, 4.011),
            ("poisson:mean=50", 100, 3.9993),
            mark=pytest.mark.nightly,
        ),
    ],
)
def test_the_table_of_samplers(sampler, slots, expected):
    """1,000 clients, 50 in a round, 200 rounds, z = 1, delta = 1e-4."""
    assert epsilon(sampler, slots) == pytest.approx(expected, abs=6e-4)


SETTINGS = [  # clients, M, slots, noise, rounds
    *((N, M, slots, noise, T) for slots in (N, 70) for noise in (0.8, 3)),
    *((100, 10, slots, noise, 50) for slots in (100, 20) for noise in (1, 2)),
]


def conditional(clients, cohort, noise, rounds, delta=1e-5):
    """The epsilon of known cohorts: a mixture of Gaussian releases over a client's rounds."""

    def excess(epsilon):
        total = -delta
        for k in range(1, rounds + 1):
            a = k**0.5 / noise / 2
            part = stats.norm.cdf(a - epsilon / 2 / a)
            part -= math.exp(epsilon + stats.norm.logcdf(-a - epsilon / 2 / a))
            total += stats.binom.pmf(k, rounds, cohort / clients) * part
        return total

    return optimize.brentq(excess, 0, 1000, xtol=1e-10)


def by_hand(clients, mean, slots, noise, rounds):
    """dp-accounting's own accountant; no mean is cohorts of a fixed size."""
    import dp_accounting
    from dp_accounting import pld

    chance = 1.0 if mean is None else mean / clients
    event = dp_accounting.TruncatedSubsampledGaussianDpEvent(clients, chance, slots, noise)
    if slots == clients:
        event = dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(noise))
    return pld.PLDAccountant().compose(event, rounds).get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("clients", "mean", "slots", "noise", "rounds"),
    [
        *later(*SETTINGS[:1], *SETTINGS[4:6], mark=pytest.mark.all),
        *later(*SETTINGS[1:4], *SETTINGS[6:], mark=pytest.mark.nightly),
        *later((100, None, 10, 2, 50), (100, None, 10, 5, 50), mark=pytest.mark.nightly),
        *later((539, None, 50, 3, 20), (539, 50, 90, 1, 100), mark=pytest.mark.nightly),
    ],
)
def test_the_accountant_equals_dp_accounting(clients, mean, slots, noise, rounds):
    sampler = "uniform" if mean is None else f"poisson:mean={mean}"
    found = epsilon(sampler, slots, noise, rounds, 1e-5, clients=clients)
    expected = by_hand(clients, mean, slots, noise, rounds)
    if mean is None:
        expected = min(expected, conditional(clients, slots, noise, rounds))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("sampler", "slots", "noise"),
    [
        ("poisson:mean=10", 20, 1e-6),
        *later(("poisson:mean=10", 100, 1e-3), ("uniform", 10, 1e-3), mark=pytest.mark.all),
        *later(("poisson:mean=10", 20, 0.02), mark=pytest.mark.nightly),
    ],
)
def test_little_noise_has_a_bound(sampler, slots, noise):
    """It is close to the one without sampling for the busiest client of all, or that itself."""
    found = epsilon(sampler, slots, noise, rounds=20, clients=100)
    rounds = stats.binom.isf(DELTA, 20, 0.1)
    low = gaussian_epsilon(noise / max(rounds - 1, 1) ** 0.5, DELTA)
    assert low <= found <= 1.1 * gaussian_epsilon(noise / 20**0.5, DELTA)
    assert epsilon("poisson:mean=10", 100, 1e-4, law="laplace", clients=100) == math.inf


def test_several_rounds_in_known_cohorts_are_one_release():
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent, pld

    def composed(event, number):
        return pld.PLDAccountant().compose(event, number).get_epsilon(DELTA)

    found = [epsilon("cyclic:num_groups=4", 5, 2, t, clients=20) for t in (1, 4, 5, 8)]
    assert found == pytest.approx([composed(GaussianDpEvent(2), k) for k in (1, 1, 2, 2)], abs=1e-3)
    laplace = epsilon("cyclic:num_groups=4", 5, 2, 8, law="laplace", clients=20)
    assert laplace == pytest.approx(composed(LaplaceDpEvent(2), 2), rel=1e-9)
    assert epsilon("uniform", 4, clients=4, rounds=0) == 0
    assert epsilon("uniform", 4, 0, 1, clients=4) == math.inf


@pytest.mark.all
def test_an_attack_reaches_the_lower_limit_of_fixed_cohorts():
    """Client 0 sends C and the others -C, so that its absence moves a sum by 2 C.

    An attacker who knows all but whether client 0 exists adds up log-likelihood ratios of rounds.
    From what fixed cohorts show him follows a lower limit of epsilon for adding a client, with 99%
    confidence, that is above the bound of Poisson cohorts and below the bound by sampling.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    clients, cohort, rounds, noise, delta, runs = 10, 5, 8, 2.0, 1e-3, 40_000
    algorithm = wrap(
        sends(np.ones((clients, rounds, 1)) * ([[[1]]] + [[[-1]]] * 9)), "gaussian:clip=1,noise=2"
    )
    round_fn, data = fa.pure_round(algorithm), one_example_each(clients)

    @jax.jit
    @jax.vmap
    def released(seed):
        """The sum of each round, with client 0 among ten, float[rounds]."""
        options = {"cohort_size": cohort, "rounds": rounds}
        dispatches = fa.participation.traced_dispatches(seed, data.counts(), LOCAL, **options)
        dispatches = dispatches._replace(number=dispatches.number * 0)

        def step(state, of_round):
            state, _ = round_fn(state, data, of_round)
            return state, state.server.params["x"][0]

        start = round_fn.init(seed, fa.Population(clients, cohort, clients))
        return -cohort * jax.numpy.diff(jax.lax.scan(step, start, dispatches)[1], prepend=0)

    sums = np.asarray(released(np.arange(runs)))
    without = np.random.default_rng(0).normal(-cohort, noise, sums.shape)  # all others send -C

    def score(sums):
        present = cohort / clients * stats.norm.pdf(sums, 2 - cohort, noise)
        present += (1 - cohort / clients) * stats.norm.pdf(sums, -cohort, noise)
        return np.log(present / stats.norm.pdf(sums, -cohort, noise)).sum(1)

    scores = score(sums), score(without)
    half, limits = runs // 2, []
    for threshold in np.quantile(scores[0][:half], np.linspace(0.05, 0.95, 19)):
        hits, alarms = ((each[half:] > threshold).sum() for each in scores)
        low = stats.beta.ppf(0.01 / 38, hits, half - hits + 1)
        high = stats.beta.ppf(1 - 0.01 / 38, alarms + 1, half - alarms)
        limits.append(np.log(max(low - delta, 1e-9) / high))
    poisson = epsilon("poisson:mean=5", clients, noise, rounds, delta, clients=clients)
    one = pld.from_truncated_subsampled_gaussian_mechanism(clients, 1.0, cohort, noise)
    bound = one.self_compose(rounds).get_epsilon_for_delta(delta)
    assert poisson < max(limits) < bound


@pytest.mark.all
def test_clients_with_memory_need_cohorts_in_which_nobody_is_displaced():
    """If a client displaces another one, the others' later updates depend on its secret coins.

    Then fixed cohorts have the bound of known cohorts, and Poisson cohorts pay for full slots.
    """
    problem, uniform = TOY.problem, fa.participation.uniform
    plain = fa.algorithms.fedavg(problem, LOCAL, weighting="uniform")
    rate = LOCAL._replace(learning_rate=lambda t: 0.1 + 0 * t, rate_by="dispatch")
    kinds = {
        "plain": plain,
        "rows": fa.algorithms.scaffold(problem, LOCAL),
        "rate": fa.algorithms.fedavg(problem, rate, weighting="uniform"),
        "stream": fa.algorithms.fedavg(
            problem, LOCAL._replace(batches="persistent"), weighting="uniform"
        ),
        "errors": wrap(plain, "cast:dtype=float16,feedback=ef"),
    }
    sampling = {
        "fixed": Sampling(uniform, 1000, 10),
        "few": Sampling(samplers.make("poisson:mean=50"), 1000, 90),
        "all": Sampling(samplers.make("poisson:mean=50"), 1000, 1000),
    }
    found = {}
    for name, algorithm in kinds.items():
        wrapped = wrap(algorithm, "gaussian:clip=1,noise=1,delta=1e-4")
        for cohorts, drawn in sampling.items():
            found[name, cohorts] = accountant_of(wrapped, drawn).epsilon(100)
    for name in kinds:
        assert found[name, "all"] == found["plain", "all"]
        for cohorts in ("fixed", "few"):
            same = found[name, cohorts] == found["rows", cohorts]
            assert same == (name != "plain"), (name, cohorts)
    fixed = conditional(1000, 10, 1.0, 100, 1e-4)
    assert found["rows", "fixed"] == pytest.approx(fixed, rel=1e-9)
    assert found["plain", "fixed"] < fixed
    tau = 100 * 0.05 * special.bdtrc(89, 999, 0.05)  # by hand, as an allowance of delta
    least = epsilon("poisson:mean=50", 1000, 1.0, 100, 1e-4 - 2 * tau)
    assert found["plain", "all"] < least < found["rows", "few"] < fixed


def test_a_design_is_what_the_sampler_does():
    """Of the samplers on the host and on the device, every one that has a design."""
    given = {"poisson": "mean=4", "cyclic": "num_groups=3", "seen": "new=2"}
    given |= {"available": "mode=more_data,beta=0.5", "on_off": "leave=0.3,join=0.5"}
    found = {}
    for registry in (samplers, traced_samplers):
        for name in sorted({*registry} - {"in_session"}):  # it needs a system
            design = getattr(
                registry.make(f"{name}:{given.get(name, '')}".rstrip(":")), "design", None
            )
            found.setdefault(name, set()).add(design and design.kind)
    designs = {name: kinds for name, kinds in found.items() if kinds != {None}}
    assert designs == {"uniform": {"fixed"}, "poisson": {"poisson"}, "cyclic": {"groups"}}
    drawn = samplers.make("cyclic:num_groups=3")(0, np.arange(30), 14, 4)
    for start in range(28):
        assert len(np.unique(drawn[start : start + 3])) == 12
    drawn = samplers.make("uniform")(0, np.arange(30), 14, 4)
    assert all(len(np.unique(cohort)) == 4 for cohort in drawn)


@pytest.mark.parametrize(
    ("sampler", "options", "reason"),
    [
        *(
            (name, {}, "no bound on epsilon is known for cohorts of this sampler; give uniform")
            for name in ("with_replacement", "dirichlet", "by_size", "clustered_by_size")
        ),
        ("seen:new=2", {}, "no bound on epsilon"),
        ("uniform", {"delta": 0.01}, r"delta=0.01 is at least 1/N for N=100 .*give less.*0.001"),
        ("poisson:mean=2.5", {}, r"mean cohort of 2.5 .*give poisson:mean=2$"),
        ("uniform", {"law": "laplace"}, r"laplace noise and fixed cohorts of 10 slots; give gauss"),
        ("poisson:mean=2", {"law": "laplace"}, r"poisson with a slot for each client .cohort=100"),
    ],
)
def test_cohorts_without_a_bound_are_refused(sampler, options, reason):
    with pytest.raises(ValueError, match=reason):
        epsilon(sampler, 10, clients=100, **options)


def simulated(spec, **options):
    """The rows of a run on four clients."""
    base = fa.algorithms.fedavg(TOY.problem, LOCAL, weighting="uniform")
    engine, given = fa.make_engine(wrap(base, spec)), {"cohort_size": 2, "rounds": 4}
    return fa.simulate(engine, TOY.data, eval_every=2, **(given | options))[1]


def test_rows_have_epsilon_and_the_denominator_of_the_sampler():
    """Poisson cohorts have a mean of 2 in four slots; the sampler is asked for both."""
    sampler = samplers.make("poisson:mean=2")
    spec = "gaussian:clip=1,noise=1,delta=0.01"
    rows = simulated(spec, sampler=sampler, cohort_size=4)
    expected = [epsilon("poisson:mean=2", 4, 1, t, 0.01, clients=4) for t in (0, 2, 4)]
    assert [row["epsilon"] for row in rows] == expected
    assert fa.participation.sampling.expected_size(sampler, 4) == 2
    assert "epsilon" not in simulated("")[0]
    runs = [
        fa.runs.Run("private", seed, TOY.data, LOCAL, {"weighting": "uniform"}, {})
        for seed in (0, 1)
    ]

    def factory(problem, local, **options):
        return wrap(fa.algorithms.fedavg(problem, local, **options), spec)

    loop = {"cohort_size": 4, "rounds": 4, "eval_every": 2, "sampler": sampler}
    batched = fa.runs.run_batched(factory, TOY.problem, runs, **loop)
    assert [row["epsilon"] for row in batched.rows] == expected * 2


def test_a_private_run_is_refused_before_it_trains():
    fix = "leave the selection out"
    for selection in ("power_of_choice:candidates=2", "active:candidates=2,alpha1=0"):
        with pytest.raises(ValueError, match=f"the choice of clients by their values .*{fix}"):
            simulated(f"gaussian:clip=1,noise=1+{selection}")
    with pytest.raises(ValueError, match="gaussian: no bound on epsilon"):
        simulated("gaussian:clip=1,noise=1", sampler=samplers.make("with_replacement"))
    with pytest.raises(ValueError, match="on_evaluation ended a private run"):
        simulated("gaussian:clip=1,noise=1", on_evaluation=lambda row: row["round"] == 2)
    assert simulated("gaussian:clip=1,noise=0", sampler=samplers.make("with_replacement"))
    for spec in ("gaussian:clip=1,noise=1", "local_gaussian:clip=1,noise=1"):
        pooled = wrap(fa.algorithms.centralised(TOY.problem, LOCAL), spec)
        with pytest.raises(ValueError, match="clients read the examples of others"):
            fa.simulate(fa.make_engine(pooled), TOY.data, cohort_size=2, rounds=1)
    base = fa.algorithms.fedavg(TOY.problem, LOCAL)
    sampling = Sampling(fa.participation.uniform, 4, 2)
    assert accountant_of(base, sampling) is None
    with pytest.raises(ValueError, match=r"number of rounds are not known; give sampling=Sampling"):
        noise_for(sampling, 2.0)


def test_a_missing_package_is_named(monkeypatch):
    simulated("")  # imports what it needs
    there = importlib.import_module

    def missing(name, *more):
        if name == "dp_accounting":
            raise ImportError(name)
        return there(name, *more)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match="gaussian needs the package dp-accounting; run: pip"):
        simulated("gaussian:clip=1,noise=1")
