"""Samplers that are traced functions: golden cohorts, exact laws by hand, and host = traced.

experiments/sampler_laws.py has what only many cohorts show.
"""

import contextlib
import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_algos as fa
from fedjax_algos.core.randomness import ONCE, cohort_key
from fedjax_algos.core.types import with_arrays
from fedjax_algos.participation import Cohorts, failures, samplers, traced_samplers
from fedjax_algos.participation.sampling_designs import overflow_probability

COUNTS = np.array([5, 2, 8, 3, 9, 1, 4, 40], np.int32)
HELD = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]] * 2, bool)  # of clients
LOCAL = fa.Local(4, 0.1, epochs=1, batches="persistent")
GOLDEN = {
    "poisson:mean=2": [[0, 3, 8, 8], [8, 8, 8, 8], [5, 6, 8, 8]],
    "by_size": [[7, 7, 7, 7], [6, 1, 7, 2], [7, 7, 7, 4]],
    "by_size:replacement=false": [[0, 7, 3, 2], [3, 2, 7, 0], [7, 0, 4, 2]],
    "clustered_by_size": [[7, 7, 2, 6], [7, 7, 2, 2], [7, 7, 2, 0]],
    "on_off:leave=0.2,join=0.1": [[6, 3, 7, 8], [6, 7, 8, 8], [7, 6, 1, 8]],
    "available:mode=lognormal,beta=0.5": [[6, 4, 1, 7], [1, 0, 8, 8], [6, 5, 1, 8]],
    "available:mode=label_cycle,beta=0.9": [[6, 2, 7, 8], [2, 6, 0, 8], [2, 6, 8, 8]],
    "seen:new=3": [[5, 3, 4, 6], [7, 4, 6, 3], [6, 4, 3, 7]],
}
EXPONENTIAL = fa.participation.exponential(0.1, decay=0.9)
COSINE = optax.cosine_decay_schedule(0.1, 40)
later = functools.partial(pytest.param, marks=pytest.mark.all)


def cohorts_of(spec, rounds, cohort_size=4, seed=1, counts=COUNTS, local=LOCAL, **more):
    sampler, labels = samplers.make(spec), lambda: HELD
    keywords = {"cohort_size": cohort_size, "seed": seed, "labels": labels, **more}
    return Cohorts(counts, local, sampler=sampler, **keywords).dispatches(rounds)


def test_every_sampler_is_tested():
    """In either registry; `in_session` is in test_in_rounds.py."""
    old = {"uniform", "cyclic", "dirichlet", "with_replacement"}
    names = {spec.partition(":")[0] for spec in GOLDEN} | {"in_session"}
    for registry in (samplers, traced_samplers):
        assert old | names == {name for name in registry if ":" not in name}


@pytest.mark.parametrize("spec", GOLDEN)
def test_golden_cohorts_in_one_call_or_several(spec):
    assert cohorts_of(spec, 3).client.tolist() == GOLDEN[spec]
    sampler = fa.participation.sampling.of_clients(samplers.make(spec), COUNTS, lambda: HELD)
    together = sampler(7, np.arange(3, 40), 8, 4)
    assert (together.dtype, together.shape) == (np.int32, (37, 4))
    parts = [sampler(7, part, 8, 4) for part in np.split(np.arange(3, 40), [1, 20])]
    np.testing.assert_array_equal(together, np.concatenate(parts))
    if spec.partition(":")[0] not in ("by_size", "clustered_by_size") or "false" in spec:
        for cohort in together.tolist():
            clients = [client for client in cohort if client < 8]
            assert len(set(clients)) == len(clients)
            assert cohort[: len(clients)] == clients  # empty slots are the last ones


@pytest.mark.parametrize(
    ("spec", "local"),
    [
        later("uniform", LOCAL._replace(epochs=2)),
        later("poisson:mean=2", fa.Local(4, EXPONENTIAL, steps=3)),
        ("on_off:leave=0.2,join=0.1", fa.Local(4, COSINE, steps=3, rate_by="dispatch")),
        *(later(spec, LOCAL) for spec in GOLDEN),
    ],
)
def test_traced_cohorts_are_those_on_the_host(spec, local):
    """All fields and dtypes, with failures, for a traced and mapped seed."""
    options = {"cohort_size": 4, "failures": failures.make("by_client:median=0.4")}
    more = {"rounds": 20, "sampler": traced_samplers.make(spec), "labels": lambda: HELD}

    def draw(seed):
        return fa.traced_dispatches(seed, COUNTS, local, **options, **more)

    drawn = with_arrays(jax.jit(jax.vmap(draw))(jnp.arange(2)))
    for seed in range(2):
        expected = cohorts_of(spec, 20, seed=seed, local=local, **options)
        for name in expected._fields:
            ours, theirs = getattr(drawn, name), getattr(expected, name)
            assert ours.dtype == theirs.dtype, name
            np.testing.assert_array_equal(ours[seed], theirs, err_msg=name)


def test_new_clients_are_in_no_cohort_and_the_seed_chooses_them():
    counts, new = np.ones(20, int), []
    for seed in range(3):
        drawn = cohorts_of("seen:new=8", 600, counts=counts, seed=seed).client
        uses = np.bincount(drawn.ravel(), minlength=20)
        new.append(tuple(np.flatnonzero(uses == 0)))
        assert len(new[-1]) == 8
        np.testing.assert_allclose(uses[uses > 0], 600 * 4 / 12, rtol=0.25)
    assert len({*new}) == 3
    with pytest.raises(ValueError, match="new=5 leaves 3 of 8 clients for a cohort of 4; give"):
        cohorts_of("seen:new=5", 1)


def test_sizes_of_poisson_cohorts_are_the_quantiles_of_the_binomial_law():
    """k is the number of j with u >= P(k <= j), in exact fractions; at most B clients are kept."""
    num_clients, mean, slots = 30, 3.0, 5
    below, total, q = [], Fraction(0), Fraction(3, 30)
    for j in range(slots):
        total += math.comb(num_clients, j) * q**j * (1 - q) ** (num_clients - j)
        below.append(total)
    counts = np.ones(num_clients, int)
    drawn = cohorts_of(f"poisson:mean={mean}", 100, slots, counts=counts).client
    sizes = (drawn < num_clients).sum(1).tolist()
    for number, size in enumerate(sizes):
        word = jax.random.bits(jax.random.split(cohort_key(1, number))[0], (), jnp.uint32)
        assert size == sum(Fraction(int(word), 2**32) >= each for each in below)
    assert {0, slots} <= set(sizes)
    assert overflow_probability(mean, num_clients, slots - 1) == pytest.approx(1 - float(total))


def test_poisson_slots():
    assert samplers.make("poisson:mean=50").slots == math.ceil(50 + 6 * 50**0.5) == 93
    everyone = cohorts_of("poisson:mean=8", 5, 8).client
    np.testing.assert_array_equal(np.sort(everyone), [range(8)] * 5)
    options = {"rounds": 3, "sampler": traced_samplers.make("poisson:mean=2")}  # has empty slots
    drawn = fa.traced_dispatches(1, COUNTS, LOCAL, cohort_size=4, **options)
    assert drawn.client.tolist() == GOLDEN["poisson:mean=2"]
    with pytest.raises(ValueError, match="mean=5 is more than the 4 slots of a cohort"):
        cohorts_of("poisson:mean=5", 1)


def test_tickets_are_examples(monkeypatch):
    """Of the 72 examples, each has the client that holds it."""
    sampler = traced_samplers["by_size"]().of_clients(COUNTS, None)
    monkeypatch.setattr(jax.random, "randint", lambda *given: jnp.arange(72))
    np.testing.assert_array_equal(np.bincount(sampler(0, 0, 8, 72)), COUNTS)


def distributions_of_flgo(counts, cohort_size):
    """W of FLGo's `flgo/algorithm/clustered_sampling.py`, times the number of examples."""
    total, done, cluster, before = sum(counts), 0, 0, 0
    weights = [[0] * len(counts) for _ in range(cohort_size)]
    for size, client in sorted(zip(counts, range(len(counts)), strict=True), key=lambda x: -x[0]):
        done += cohort_size * size
        after, rest = divmod(done, total)
        if after > cluster:
            weights[cluster][client] = total - before
            for full in range(cluster + 1, after):
                weights[full][client] = total
            if rest:
                weights[after][client] = rest
        else:
            weights[after][client] = rest - before
        cluster, before = after, rest
    return weights


@pytest.mark.parametrize("cohort_size", [later(3), 7])
def test_clusters_are_those_of_flgo(monkeypatch, cohort_size):
    """All u of all slots: the distributions exactly, which add up to M n_i / n."""
    sampler = traced_samplers["clustered_by_size"]().of_clients(COUNTS, None)
    found = np.zeros((cohort_size, 8), int)
    for u in range(72):
        monkeypatch.setattr(jax.random, "randint", lambda *given, u=u: jnp.full(cohort_size, u))
        found[range(cohort_size), np.asarray(sampler(0, 0, 8, cohort_size))] += 1
    np.testing.assert_array_equal(found, distributions_of_flgo(COUNTS.tolist(), cohort_size))
    np.testing.assert_array_equal(found.sum(0), cohort_size * COUNTS)


def test_clusters_of_more_than_32_bits():
    """2,000 slots of 2e9 examples: k n has 42 bits. Of equal clients each is in one slot."""
    counts = np.full(2000, 10**6)
    drawn = cohorts_of("clustered_by_size", 2, 2000, counts=counts).client
    np.testing.assert_array_equal(np.sort(drawn), [range(2000)] * 2)
    with pytest.raises(ValueError, match="the number of examples of all clients"):
        cohorts_of("clustered_by_size", 2, 2000, counts=2 * counts)


def shares_of(mode, beta):
    held = HELD[[0, 1, 3]]
    sampler = traced_samplers["available"](mode=mode, beta=beta)
    return sampler.of_clients(np.array([1, 4, 16]), lambda: held).args


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("homogeneous", [0.5]),
        ("more_data", [1 / 4, 1 / 2, 1]),
        ("less_data", [1, 1 / 2, 1 / 4]),
        ("label_max", [1 / 2, 1 / 2 + 1 / 6, 1]),
        ("label_few", [1 / 2 + 1 / 8, 1 / 2 + 1 / 4, 1 / 2 + 1 / 8]),
        ("lognormal", [1]),
    ],
)
def test_probabilities_of_modes(mode, expected):
    shares, sigma = shares_of(mode, 0.5)
    np.testing.assert_allclose(shares, [expected], rtol=1e-6)
    assert sigma == pytest.approx(math.log(2) * (mode == "lognormal"))


def test_probabilities_that_change_in_a_day():
    day, sigma = shares_of("day", 0.5)
    assert (day.shape, sigma) == ((24, 1), pytest.approx(math.log(2)))
    expected = {0: 0.5, 6: 0.4 * math.sin(12 * math.pi / 23) + 0.5, 23: 0.5}
    assert [float(day[t, 0]) for t in expected] == pytest.approx([*expected.values()])
    cycle, _ = shares_of("label_cycle", 0.7)
    assert cycle.shape == (24, 3)
    # of 24 hours, those from 8 to 16 are between labels 1 and 2 of 3, and the last is label 3
    for client, hours in enumerate([(), range(7, 16), (23,)]):
        np.testing.assert_allclose(cycle[:, client], [1 if t in hours else 0.3 for t in range(24)])


def test_own_factors_of_clients():
    """Log-normal, divided by the largest, which is always available."""
    normal = np.asarray(jax.random.normal(cohort_key(1, ONCE), (8,), jnp.float32))
    own = np.exp(math.log(2) * normal)
    drawn = cohorts_of("available:mode=lognormal,beta=0.5", 400, 8).client
    seen = np.bincount(drawn.ravel(), minlength=9)[:8] / 400
    assert seen[own.argmax()] == 1
    np.testing.assert_allclose(seen, own / own.max(), atol=0.08)


@pytest.mark.parametrize("first", [*map(later, (0, 2**31 - 5)), 2**30 - 2])
def test_states_are_those_of_the_chain(first):
    """Of 20,000 clients, all paths over four rounds; the middle of time is between two of them."""
    leave, join, clients = 0.05, 0.15, 20_000
    sampler = traced_samplers["on_off"](leave=leave, join=join)
    draw = jax.jit(lambda number: sampler(3, number, clients, clients))
    is_on = np.array([np.isin(range(clients), draw(np.int32(first + t))) for t in range(4)])
    seen = np.bincount([8, 4, 2, 1] @ is_on, minlength=16) / clients
    steps = np.array([[1 - join, join], [leave, 1 - leave]])  # from off or on, to off or on
    for path, share in zip(itertools.product(range(2), repeat=4), seen, strict=True):
        law = [leave, join][path[0]] / (leave + join)
        law *= math.prod(steps[now, then] for now, then in itertools.pairwise(path))
        assert share == pytest.approx(law, abs=5 * math.sqrt(law / clients))


@pytest.mark.parametrize(
    ("rate", "same"), [(1e-300, True), (1e-45, True), (1e-8, True), (1e-2, False), (0.5, False)]
)
def test_all_rates_of_the_chain_take_as_long(rate, same):
    """Half of the clients are on; with small rates the same ones are for ever."""
    drawn = samplers["on_off"](leave=rate, join=rate)(1, np.arange(16), 400, 400)
    assert (drawn < 400).mean() == pytest.approx(0.5, abs=0.1)
    assert (np.sort(drawn) == np.sort(drawn[:1])).all() == same


EXTREMES = [  # all end, with cohorts or a refusal
    *(
        f"on_off:leave={a},join={b}"
        for a in (1e-300, 1e-45, 1e-8, 1.0)
        for b in (1e-300, 1e-8, 1.0)
    ),
    *(
        f"available:mode={mode},beta=0.9999999"
        for mode in ("homogeneous", "more_data", "less_data")
    ),
    *(f"available:mode={mode},beta={1 - 1e-12}" for mode in ("lognormal", "day", "label_cycle")),
    *(f"poisson:mean={mean}" for mean in (1e-300, 1e-30, 4, 5, 1e300)),
    *(f"dirichlet:gamma={gamma}" for gamma in (1e-300, 1e-8, 1e300)),
    *(f"cyclic:num_groups={number}" for number in (1, 2, 3, 8, 9, 2**31 - 1)),
]
EXTREME_FAILURES = [
    f"by_client:median={m},spread={s}" for m in (1e-300, 1 - 1e-16) for s in (0, 1e30)
]
EXTREME_FAILURES += ["independent:1e-300", "independent:0.9999999999999999"]


@pytest.mark.parametrize("spec", EXTREMES)
def test_extreme_samplers_end(spec):
    with contextlib.suppress(ValueError):
        drawn = cohorts_of(spec, 3).client
        assert ((drawn >= 0) & (drawn <= 8)).all()


@pytest.mark.parametrize("spec", EXTREME_FAILURES)
def test_extreme_failures_end(spec):
    fails = failures.make(spec)(np.uint32(0), np.arange(8), np.zeros(8, np.int32))
    assert fails.dtype == bool


@pytest.mark.parametrize("spec", ["by_size", "by_size:replacement=false", "clustered_by_size"])
@pytest.mark.parametrize("counts", [[0, 0], [3, 0], [2, -1], [1.5, 2], [np.nan, 1], []])
def test_samplers_refuse_clients_without_examples(spec, counts):
    """As `available` does, whose rates divide by their numbers."""
    for name in (spec, "available:mode=less_data,beta=0.5"):
        with pytest.raises(
            ValueError, match=r"counts .*give the number of examples of each client"
        ):
            samplers.make(name).of_clients(np.array(counts), None)


def test_what_samplers_refuse():
    with pytest.raises(ValueError, match=r"call by_size\(...\).of_clients\(counts, labels\)"):
        samplers.make("by_size")(0, np.arange(2), 8, 4)
    with pytest.raises(ValueError, match="needs the labels that each client holds; give labels="):
        cohorts_of("available:mode=label_few,beta=0.5", 1, labels=None)
    with pytest.raises(ValueError, match=r"leave \+ join = 1.5 is above 1"):
        samplers.make("on_off:leave=0.9,join=0.6")


def test_failures_by_client():
    """The clients' own probabilities by hand, and none of them with the spread 0."""
    clients, numbers = (axis.ravel() for axis in np.meshgrid(np.arange(6), np.arange(2000)))
    given = np.uint32(5), clients, numbers
    fails = np.asarray(failures.make("by_client:median=0.3,spread=1.5")(*given))
    rates = fails.reshape(2000, 6).mean(0)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 5), 3)  # of client 3
    normal = float(jax.random.normal(jax.random.fold_in(key, ONCE), (), jnp.float32))
    odds = 0.3 / 0.7 * math.exp(1.5 * normal)
    assert rates[3] == pytest.approx(odds / (1 + odds), abs=0.05)
    assert rates.std() > 0.1
    alike = failures.make("by_client:median=0.3,spread=0")(*given)
    np.testing.assert_array_equal(alike, failures.make("independent:0.3")(*given))


def test_labels_that_clients_hold():
    examples = {"x": np.zeros((5, 2), np.float32), "y": np.array([0, 2, 2, 1, 0])}
    data = fa.federate(examples, fa.Partition.of([[0, 4], [1, 2, 3]]))
    held = fa.data.held_labels(data)
    assert held.tolist() == [[True, False, False], [False, True, True]]
    with pytest.raises(ValueError, match="the examples have no labels; give them in"):
        fa.data.held_labels(data._replace(examples={"x": examples["x"]}))
    with pytest.raises(TypeError, match="give clients whose examples are in memory"):
        fa.data.held_labels("stored")


# what only the traced functions draw


def traced_cohorts(sampler, rounds, cohort_size, num_clients, seeds=1):
    """int32[seeds * rounds, cohort_size]."""

    def cohorts(seed):
        of_round = lambda number: sampler(seed, number, num_clients, cohort_size)  # noqa: E731
        return jax.vmap(of_round)(jnp.arange(rounds))

    drawn = jax.jit(jax.vmap(cohorts))(jnp.arange(seeds, dtype=jnp.uint32))
    return np.asarray(drawn).reshape(-1, cohort_size)


def test_traced_cyclic_cohorts_come_from_their_groups():
    """Seven clients in two groups of four and three, three of which are in each cohort."""
    cohorts = traced_cohorts(traced_samplers["cyclic"](num_groups=2), 400, 3, 7)
    assert all(len(set(cohort)) == 3 for cohort in cohorts)
    groups = [set(cohorts[first::2].ravel()) for first in (0, 1)]
    assert [len(group) for group in groups] == [4, 3]
    assert groups[0] | groups[1] == set(range(7))
    frequency = np.unique(cohorts[::2], return_counts=True)[1] / 200
    np.testing.assert_allclose(frequency, 3 / 4, atol=0.1)


@pytest.mark.all
def test_traced_draws_with_replacement_are_uniform():
    cohorts = traced_cohorts(traced_samplers["with_replacement"](), 20, 6, 7)
    assert any(len(set(cohort)) < 6 for cohort in cohorts)
    np.testing.assert_allclose(np.bincount(cohorts.ravel(), minlength=7) / 120, 1 / 7, atol=0.1)


@pytest.mark.all
def test_traced_dirichlet_shares_are_those_of_the_distribution():
    """Over many seeds E p_i^2 is (gamma + 1) / (N (N gamma + 1)); two rounds of a seed share p."""
    gamma, num_clients, seeds = 0.5, 4, 20_000
    cohorts = traced_cohorts(traced_samplers["dirichlet"](gamma=gamma), 2, 1, num_clients, seeds)
    first, second = cohorts.reshape(seeds, 2).T
    np.testing.assert_allclose(np.bincount(first) / seeds, 1 / num_clients, atol=0.015)
    twice = (gamma + 1) / (num_clients * gamma + 1)  # sum of p_i^2
    np.testing.assert_allclose((first == second).mean(), twice, atol=0.015)


@pytest.mark.all
def test_traced_work_of_ones_own():
    options = {"cohort_size": 2, "rounds": 4}
    options["work"] = lambda seed, number, full: jnp.maximum(full - number, 1)
    drawn = fa.traced_dispatches(0, COUNTS, fa.Local(2, 0.1, steps=5), **options)
    np.testing.assert_array_equal(drawn.num_steps, np.asarray([[5, 4, 3, 2]] * 2).T)
    np.testing.assert_array_equal(drawn.full_steps, np.full((4, 2), 5))


@pytest.mark.all
def test_a_client_that_there_is_not_has_no_rate_where_cohorts_are_traced():
    """So its update is not finite, and is left out."""
    options = {"cohort_size": 3, "rounds": 1}
    options["sampler"] = lambda *_: jnp.array([99, 0, -1])
    drawn = jax.jit(lambda seed: fa.traced_dispatches(seed, COUNTS, LOCAL, **options))(0)
    np.testing.assert_array_equal(drawn.client, [[7, 0, 0]])
    np.testing.assert_array_equal(drawn.learning_rate, np.float32([[np.nan, 0.1, np.nan]]))
