"""Cohorts that are chosen among candidates: goldens, enumerations by NumPy, what is counted."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, fixed, one_round, quadratics, run, small_network
from scipy import stats
from wrapper_helpers import NETWORK_LOCAL, later, sends

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import FixedSystem
from fedjax_algos.core.algorithm import Selection
from fedjax_algos.participation import Cohorts, independent
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.selection.oort import Known, current_utility, system_utility

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(0)
COUNTS = 5, 1, 8, 3
TOY = quadratics([RNG.uniform(0.5, 2, n) for n in COUNTS], [RNG.normal(size=n) for n in COUNTS])
LOCAL, NIGHTLY = NETWORK_LOCAL, pytest.mark.nightly
EVERYONE = [(0, 1, 2, 3), (3, 0, 1, 2)]
POPULATION = fa.Population(4, 2, 17)


def losses_at(params, clients):
    """The mean loss of each client at some params, by NumPy."""
    examples = [TOY.clients[client] for client in clients]
    return np.array([np.mean(e["a"] * (params["x"] - e["b"]) ** 2) / 2 for e in examples])


def taken(candidates, best):
    return jax.tree.map(lambda leaf: leaf[best], candidates)


def chosen_by_hand(bare, dispatches, seed=0):
    """The state after each round of the two candidates with the largest loss; how many train."""
    round_fn = fa.pure_round(bare)
    state, step = round_fn.init(seed, POPULATION), jax.jit(round_fn)
    for index in range(len(dispatches.client)):
        candidates = one_round(dispatches, index)
        values = losses_at(jax.device_get(state.server.params), candidates.client)
        best = np.argsort(-np.where(candidates.arrives, values, -np.inf), kind="stable")[:2]
        best = best[candidates.arrives[best]]
        state, _ = step(state, TOY.data, taken(candidates, best))
        yield state, len(best)


@pytest.mark.parametrize(
    "name", ["scaffold", *later("fedlga", "mime"), *later("fednova", "ifca", mark=NIGHTLY)]
)
def test_the_round_is_that_of_the_candidates_with_the_largest_loss(name):
    """Sums, a stack, a prelude, rows, counts and choices; two rounds."""
    bare = algorithms[name](TOY.problem, LOCAL)
    ends = run(wrap(bare, "power_of_choice"), TOY.data, EVERYONE)
    dispatches = dispatches_of(TOY.data, LOCAL, EVERYONE)._replace(arrives=np.ones((2, 4), bool))
    for end, (state, _) in zip(ends, chosen_by_hand(bare, dispatches), strict=True):
        chex.assert_trees_all_close(end, state.server.params, rtol=1e-10)


@pytest.mark.all
def test_a_candidate_that_fails_reports_nothing():
    """And the chosen ones arrive; who fails is known from the dispatches."""
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    how = {"failures": independent(probability=0.4), "sampler": fixed([(0, 1, 2, 3)] * 3)}
    state, rows = simulate(fa.make_engine(wrap(bare, "power_of_choice")), **how)
    cohorts = Cohorts(TOY.data.counts(), LOCAL, cohort_size=4, seed=1, **how)
    dispatches = cohorts.dispatches(3)
    *_, expected = by_hand = [*chosen_by_hand(bare, dispatches, seed=1)]
    chex.assert_trees_all_close(state.server, expected[0].server, rtol=1e-10)
    answered, trained = int(dispatches.arrives.sum()), sum(number for _, number in by_hand)
    assert (answered, trained) == (6, 5)
    assert rows[-1]["lost"] == 12 - answered
    assert rows[-1]["download_bytes"] == 12 * 8  # all candidates are asked
    assert rows[-1]["upload_bytes"] == 4 * answered + trained * 8


@pytest.mark.all
def test_the_last_loss_is_that_of_the_last_local_update():
    """Who has not trained comes first; then the largest loss of the last update counts."""
    bare, known = fa.algorithms.fedavg(TOY.problem, LOCAL), np.full(4, np.inf)
    dispatches = dispatches_of(TOY.data, LOCAL, [*EVERYONE, *EVERYONE])
    plain, state = jax.jit(fa.pure_round(bare)), fa.pure_round(bare).init(0, POPULATION)
    for index in range(4):
        candidates = one_round(dispatches, index)
        best = np.lexsort((candidates.client, -known[candidates.client]))[:2]
        for place in best:  # one at a time, for its own loss
            _, metrics = plain(state, TOY.data, taken(candidates, [place]))
            known[candidates.client[place]] = metrics["train_loss"].value()
        state, _ = plain(state, TOY.data, taken(candidates, best))
    end = run(wrap(bare, "power_of_choice:loss=last"), TOY.data, [*EVERYONE, *EVERYONE])[-1]
    chex.assert_trees_all_close(end, state.server.params, rtol=1e-6)


def simulate(engine, data=TOY.data, **options):
    given = {"cohort_size": 2, "rounds": 3, "eval_every": 2, "seed": 1}
    return fa.simulate(engine, data, **given | options)


@pytest.mark.all
@pytest.mark.parametrize("loss", ["full", "batch", "last"])
def test_what_is_counted(loss):
    """Candidates that are asked download the model and report 4 bytes; the chosen ones train."""
    toy = small_network()
    bare = fa.algorithms.fedavg(toy.problem, LOCAL)
    _, (_, plain) = simulate(fa.make_engine(bare), toy.data, rounds=2)
    engine = fa.make_engine(wrap(bare, f"power_of_choice:loss={loss}"))
    _, (_, row) = simulate(engine, toy.data, rounds=2)
    model, asked = 8 * 20, 0 if loss == "last" else 8
    assert row["download_bytes"] == model * (asked or 4)
    assert row["upload_bytes"] == 4 * model + 4 * asked
    examples = {"full": 24 * 2, "batch": 4 * 8, "last": 0}[loss]  # in pieces of 4
    each = 2 * (3 * 4 + 4) + 12  # multiply-adds, and about as many others
    assert row["flops"] - plain["flops"] == pytest.approx(examples * each, rel=0.05, abs=8)
    if loss == "last":  # if work differs, only the device knows how much of it is done
        bare = fa.algorithms.fedavg(TOY.problem, LOCAL._replace(steps=None, epochs=1))
        _, rows = simulate(fa.make_engine(wrap(bare, "oort")), rounds=1)
        assert np.isnan(rows[-1]["flops"])


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("cast:direction=down+power_of_choice", {}, "encodes them; leave direction=down"),
        ("topk:direction=down,feedback=ef21+oort", {}, "need whole broadcasts"),
        ("oort", {"devices": 2, "examples": "sharded"}, "examples='replicated'"),
        ("cast:direction=down+oort", {}, "6 candidates; give at most 4"),  # not by the engine
    ],
)
def test_engines_and_cohorts_that_do_not_fit_are_refused(spec, options, reason):
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    with pytest.raises(ValueError, match=reason):
        simulate(fa.make_engine(wrap(bare, spec), **options), cohort_size=3)


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.5, 2.0, 3.0, 10.0])
def test_the_number_of_candidates_gives_the_cohort(factor):
    selection = Selection(factor, None, None)
    for size in range(1, 300):
        candidates = selection.num_candidates(size)
        assert candidates == int(np.ceil(round(factor * size, 6)))
        assert selection.cohort_size(candidates) == size


DRAWS = 10_000


def chosen(spec, values, answered=None, size=2, system=None, seeds=1, **changes):
    """The positions that a wrapper chooses with the seeds from 0 on, int32[seeds, size]."""
    number = len(jax.tree.leaves(values)[0])
    selection = wrap(sends(np.zeros((1, 1, 1))), spec, system).selection
    dispatch = one_round(dispatches_of(TOY.data, LOCAL, [(0,)]), 0)
    dispatches = jax.tree.map(lambda leaf: np.repeat(leaf, number), dispatch)
    changes = {name: np.broadcast_to(value, number) for name, value in changes.items()}
    dispatches = dispatches._replace(**{"client": np.arange(number)} | changes)
    answered = np.broadcast_to(True if answered is None else np.array(answered, bool), number)
    given = jax.tree.map(jnp.asarray, (values, dispatches, answered))
    choose = jax.jit(jax.vmap(lambda seed: selection.choose(*given, size, seed)))
    return np.asarray(choose(jnp.arange(seeds, dtype=jnp.uint32)))


def known_of(utility, round_number):
    """What Oort's server knows, of first dispatches of two steps."""
    ones = np.ones(len(utility), int)
    return Known(np.array(utility, float), np.array(round_number), 0 * ones, 2 * ones)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([0.3, 0.9, 0.1, 0.7], {}, [1, 3]),
        ([1.0, 1.0, 1.0, 1.0], {"client": [7, 2, 9, 5]}, [1, 3]),  # the smaller ids
        ([0.3, 0.9, 0.1, 0.7], {"answered": [1, 0, 1, 1]}, [3, 0]),
        ([0.1, np.inf, np.nan, 0.2], {}, [1, 3]),
    ],
)
def test_goldens_of_power_of_choice(values, options, expected):
    assert chosen("power_of_choice", np.array(values), **options).tolist() == [expected]


@pytest.mark.parametrize(
    ("more", "losses", "answered", "expected"),
    [
        ("", [1.0] * 4, [1, 1, 1, 1], {1, 2}),
        ("", [1.0] * 4, [1, 0, 1, 1], {0, 2}),  # one of three is left out
        ("", [1.0] * 4, [0, 0, 1, 0], [2]),
        (",loss=last", [1.0, np.inf, np.inf, 9.0], [1, 1, 1, 1], [1, 2]),  # the sampler's first
    ],
)
def test_goldens_of_active(more, losses, answered, expected):
    """Values of 2, 3, 4 and 1: a half is left out, by the number of those that answer."""
    spec, counts = f"active:candidates=2,alpha1=0.5,alpha3=0{more}", np.array([4, 9, 16, 1])
    found = chosen(spec, np.array(losses), answered=answered, num_examples=counts, seeds=4)
    for drawn in found.tolist():
        assert (set(drawn) if type(expected) is set else drawn[: len(expected)]) == expected


def law_of_active(values, size, alpha1, alpha2, alpha3):
    """The probability of each set, by all orders in which it may be drawn."""
    number, order = len(values), np.argsort(-values, kind="stable")
    high = order[: number - math.floor(alpha1 * number)]
    by_value = min(math.floor((1 - alpha3) * size), len(high))
    weights, law = np.exp(alpha2 * values), {}
    for drawn in itertools.permutations(high, by_value):
        chance, left = 1.0, list(high)
        for client in drawn:
            chance *= weights[client] / weights[left].sum()
            left.remove(client)
        rest = [*itertools.combinations(sorted(set(range(number)) - {*drawn}), size - by_value)]
        for others in rest:
            both = frozenset(drawn) | frozenset(others)
            law[both] = law.get(both, 0.0) + chance / len(rest)
    return law


@pytest.mark.parametrize(
    ("alpha1", "alpha2", "alpha3"),
    [(0.4, 0.3, 0.3), (0.6, 0.5, 0.7), *later((0.0, 1.0, 0.0), (0, 0.1, 1))],
)
def test_the_law_of_active(alpha1, alpha2, alpha3):
    losses, counts = np.array([0.5, 2.0, 1.0, 0.3, 1.5]), np.array([16, 1, 4, 9, 1])
    spec = f"active:candidates=1.7,alpha1={alpha1},alpha2={alpha2},alpha3={alpha3}"
    found = chosen(spec, losses, size=3, num_examples=counts, seeds=DRAWS)
    law = law_of_active(np.sqrt(counts) * losses, 3, alpha1, alpha2, alpha3)
    assert sum(law.values()) == pytest.approx(1)
    sets = [frozenset(each) for each in found.tolist()]
    assert {len(each) for each in sets} == {3}
    assert set(sets) <= set(law)
    counted = [sets.count(each) for each in law]
    assert stats.chisquare(counted, DRAWS * np.array([*law.values()])).pvalue > 0.001


def test_goldens_of_oort():
    """A utility of 4 examples with loss 1, and of 9 with loss 2; T = 10; their bonuses."""
    known = known_of([4.0, 18.0], [9, 2])
    found = current_utility(known, jnp.int32(10)) - known.utility
    np.testing.assert_allclose(found, [0.15995, 0.33931], atol=5e-6)
    of_system = system_utility(jnp.array([5.0, 20.0]), 10.0, 2.0)
    np.testing.assert_allclose(known.utility * of_system, [4.0, 4.5], rtol=1e-12)


KNOWN = known_of([5.0, 1.0, 4.9, 0.0, 0.0, 0.0], [1, 1, 1, 0, 0, 0])


def test_oort_exploits_and_explores():
    found = chosen("oort:exploration=0.5,decay=1", KNOWN, size=4, server_step=1, seeds=8).tolist()
    for drawn in found:
        assert len(set(drawn)) == 4
        assert set(drawn[:2]) == {0, 2}  # 1 has less than .95 of the second utility
        assert set(drawn[2:]) <= {3, 4, 5}
    assert len({tuple(drawn) for drawn in found}) > 3


@pytest.mark.parametrize(
    ("known", "size", "answered", "expected"),
    [
        (KNOWN, 3, None, {3, 4, 5}),  # exploration of .9: all are new
        (KNOWN._replace(round_number=np.ones(6, int)), 4, None, set()),  # nobody is new
        (KNOWN, 4, [1, 0, 1, 1, 0, 0], {0, 2, 3}),  # the fourth place is of one who does not answer
    ],
)
def test_oort_fills_its_places_from_the_other_kind(known, size, answered, expected):
    for drawn in chosen("oort", known, size=size, answered=answered, seeds=4).tolist():
        assert len(set(drawn)) == size
        assert expected <= set(drawn)


SLOW = ",seconds=10,alpha=1"


@pytest.mark.parametrize(
    ("more", "utility", "round_number", "expected"),
    [
        ("", [3.0, 1.0], [1, 1], 0.25),
        ("", [0.0, 0.0], [0, 0], 0.5),
        *later((SLOW, [3.0, 1.0], [1, 1], 0.5)),  # the first one is three times slower than T
        *later((SLOW, [0.0, 0.0], [0, 0], 0.8)),  # new ones of 32 and 8 seconds
    ],
)
def test_draws_of_oort_follow_utility_or_speed(more, utility, round_number, expected):
    """The times are those of the last dispatch, number 0, or of the present one, number 1."""
    spec = "oort:exploration=0,least_exploration=0,cutoff=0" + more
    system = lambda seed, **sent: FixedSystem([(15.0, 16.0), (5.0, 4.0)])  # noqa: E731
    how = {"size": 1, "system": system, "seeds": DRAWS, "number": 1, "num_steps": 2}
    found = chosen(spec, known_of(utility, round_number), **how)
    assert abs(found.mean() - expected) < 3 * math.sqrt(0.25 / DRAWS)
