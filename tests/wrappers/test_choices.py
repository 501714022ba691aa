"""Who is chosen among candidates: goldens, and laws against enumerations by NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, dispatches_of, one_round, small_network
from scipy import stats
from wrapper_helpers import sends

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, simulated
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.selection.oort import Known, current_utility, system_utility

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
DRAWS = 10_000


def chooser(spec, values, clients=None, answered=None, size=2, step=0, system=None, **changes):
    """A function of the seed: the positions that a wrapper chooses, int32[size]."""
    number = len(jax.tree.leaves(values)[0])
    selection = wrap(sends(np.zeros((1, 1, 1))), spec, system).selection
    dispatch = one_round(dispatches_of(TOY.data, LOCAL, [(0,)]), 0)
    dispatches = jax.tree.map(lambda leaf: np.repeat(leaf, number), dispatch)
    clients = np.arange(number) if clients is None else np.asarray(clients)
    changes |= {"client": clients, "server_step": np.full(number, step)}
    answered = np.ones(number, bool) if answered is None else np.asarray(answered, bool)
    given = jax.tree.map(jnp.asarray, (values, dispatches._replace(**changes), answered))
    return lambda seed: selection.choose(*given, size, seed)


def choose(spec, values, seed=0, **options):
    """The positions that a wrapper chooses with one seed, as a list."""
    return np.asarray(chooser(spec, values, **options)(np.uint32(seed))).tolist()


def draws(*arguments, **options):
    """int[DRAWS, size]: those of many seeds."""
    seeds = jnp.arange(DRAWS, dtype=jnp.uint32)
    return np.asarray(jax.jit(jax.vmap(chooser(*arguments, **options)))(seeds))


def known_of(utility, round_number):
    """What Oort's server knows, of first dispatches of two steps."""
    ones = np.ones(len(utility), int)
    return Known(np.array(utility, float), np.array(round_number), 0 * ones, 2 * ones)


def test_goldens_of_power_of_choice():
    values = np.array([0.3, 0.9, 0.1, 0.7])
    assert choose("power_of_choice", values) == [1, 3]
    assert choose("power_of_choice", np.ones(4), clients=[7, 2, 9, 5]) == [1, 3]  # the smaller ids
    assert choose("power_of_choice", values, answered=[1, 0, 1, 1]) == [3, 0]
    assert choose("power_of_choice", np.array([0.1, np.inf, np.nan, 0.2])) == [1, 3]


def test_goldens_of_active():
    """Values of 2, 3, 4 and 1: a half is left out, by the number of those that answer."""
    losses, counts = np.array([1.0, 1.0, 1.0, 1.0]), np.array([4, 9, 16, 1])
    spec = "active:candidates=2,alpha1=0.5,alpha3=0"
    for seed in range(4):
        assert set(choose(spec, losses, seed, num_examples=counts)) == {1, 2}
        answered = [1, 0, 1, 1]  # one of three is left out
        assert set(choose(spec, losses, seed, num_examples=counts, answered=answered)) == {0, 2}
        drawn = choose(spec, losses, seed, num_examples=counts, answered=[0, 0, 1, 0])
        assert drawn[0] == 2
        untrained = choose(f"{spec},loss=last", np.array([1.0, np.inf, np.inf, 9.0]), seed)
        assert untrained == [1, 2]  # the sampler's first ones


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
            chosen = frozenset(drawn) | frozenset(others)
            law[chosen] = law.get(chosen, 0.0) + chance / len(rest)
    return law


@pytest.mark.parametrize(
    ("alpha1", "alpha2", "alpha3"), [(0.4, 0.3, 0.3), (0.0, 1.0, 0.0), (0.6, 0.5, 0.7), (0, 0.1, 1)]
)
def test_the_law_of_active(alpha1, alpha2, alpha3):
    losses, counts = np.array([0.5, 2.0, 1.0, 0.3, 1.5]), np.array([16, 1, 4, 9, 1])
    spec = f"active:candidates=1.7,alpha1={alpha1},alpha2={alpha2},alpha3={alpha3}"
    found = draws(spec, losses, size=3, num_examples=counts)
    law = law_of_active(np.sqrt(counts) * losses, 3, alpha1, alpha2, alpha3)
    assert sum(law.values()) == pytest.approx(1)
    sets = [frozenset(each) for each in found.tolist()]
    assert {len(each) for each in sets} == {3}
    assert set(sets) <= set(law)
    counted = [sets.count(each) for each in law]
    assert stats.chisquare(counted, DRAWS * np.array([*law.values()])).pvalue > 0.001


def test_too_few_candidates_for_the_values_are_refused():
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    with pytest.raises(ValueError, match=r"leave 0.5 candidates for 0.9 places.*more candidates"):
        wrap(bare, "active:candidates=2")


def test_goldens_of_oort():
    """A utility of 4 examples with loss 1, and of 9 with loss 2; T = 10; their bonuses."""
    known = known_of([4.0, 18.0], [9, 2])
    found = current_utility(known, jnp.int32(10)) - known.utility
    np.testing.assert_allclose(found, [0.15995, 0.33931], atol=5e-6)
    of_system = system_utility(jnp.array([5.0, 20.0]), 10.0, 2.0)
    np.testing.assert_allclose(known.utility * of_system, [4.0, 4.5], rtol=1e-12)


def test_oort_explores_first_and_then_exploits():
    known = known_of([5.0, 1.0, 4.9, 0.0, 0.0, 0.0], [1, 1, 1, 0, 0, 0])
    spec = "oort:exploration=0.5,decay=1"
    found = [choose(spec, known, seed, size=4, step=1) for seed in range(8)]
    for drawn in found:
        assert len(set(drawn)) == 4
        assert set(drawn[:2]) == {0, 2}  # 1 has less than .95 of the second utility
        assert set(drawn[2:]) <= {3, 4, 5}
    assert len({tuple(drawn) for drawn in found}) > 3
    assert set(choose("oort", known, size=3)) == {3, 4, 5}  # exploration of .9: all are new
    everyone = known._replace(round_number=np.ones(6, int))
    assert len(set(choose("oort", everyone, size=4))) == 4  # nobody is new
    some = [1, 0, 1, 1, 0, 0]  # three answer: the fourth place is of one who does not
    assert sorted(choose("oort", known, size=4, answered=some))[0::2] != [3, 4]
    chosen = choose("oort", known, size=4, answered=some)
    assert len(set(chosen)) == 4
    assert {0, 2, 3} <= set(chosen)


SLOW = ",seconds=10,alpha=1"


@pytest.mark.parametrize(
    ("more", "utility", "round_number", "expected"),
    [
        ("", [3.0, 1.0], [1, 1], 0.25),
        (SLOW, [3.0, 1.0], [1, 1], 0.5),  # the first one is three times slower than T
        ("", [0.0, 0.0], [0, 0], 0.5),
        (SLOW, [0.0, 0.0], [0, 0], 0.8),  # new ones of 32 and 8 seconds
    ],
)
def test_draws_of_oort_are_proportional_to_utility_or_to_speed(
    more, utility, round_number, expected
):
    """The times are those of the last dispatch, number 0, or of the present one, number 1."""
    spec = "oort:exploration=0,least_exploration=0,cutoff=0" + more
    system = FixedSystem([(15.0, 16.0), (5.0, 4.0)])
    found = draws(
        spec,
        known_of(utility, round_number),
        size=1,
        number=np.array([1, 1]),
        num_steps=np.array([2, 2]),
        system=lambda seed, **sent: system,
    )
    share = found.mean()
    assert abs(share - expected) < 3 * math.sqrt(0.25 / DRAWS)


def test_times_need_a_system():
    with pytest.raises(ValueError, match=r"oort has no system model; give oort\(..., system="):
        wrap(fa.algorithms.fedavg(TOY.problem, LOCAL), "oort:seconds=10")


ONE_EACH = list({case.name: case for case in CASES}.values())


@pytest.mark.all
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
@pytest.mark.parametrize("spec", ["power_of_choice:loss=batch", "active", "oort:seconds=1"])
def test_every_algorithm_has_rounds_with_chosen_cohorts(case, spec):
    """Traced only, with the statistics and rows of each."""
    round_fn = fa.pure_round(wrap(case.build(TOY.problem, LOCAL), spec, simulated()))
    state = jax.eval_shape(lambda: round_fn.init(0, fa.Population(4, 1, 17)))
    dispatch = one_round(dispatches_of(TOY.data, LOCAL, [(0, 1, 2, 3)]), 0)
    after, _ = jax.eval_shape(round_fn, state, TOY.data, dispatch)
    assert jax.tree.structure(after) == jax.tree.structure(state)
