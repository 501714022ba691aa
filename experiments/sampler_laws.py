"""The laws of all samplers, each from many cohorts of five clients, against enumerations.

COMMAND   python experiments/sampler_laws.py
EXPECTED  "every p is above 0.001" (the least of 360 is 0.0017), and no differences at the end
TIME      about five minutes on one CPU core

For ten seeds, 20,000 cohorts of each sampler (2,000 of in_session) are counted by what is in the
slots, and a chi-square test compares the counts with the sampler's exact law, in which inclusion
probabilities, pairs and sizes are contained. A second test compares the last slots of consecutive
rounds, which should be independent, or with `on_off` the clients' changes with the rates. Then the
means over 2,000 cohorts of what clients send are compared with what they estimate, by the largest
of eight z scores.
"""

import functools
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fedjax_algos.asynchrony import FixedSystem
from fedjax_algos.participation import samplers, traced_samplers
from fedjax_algos.participation.sampling import log_shares, of_clients
from fedjax_algos.participation.systems.fedscale import Sessions

SEEDS = range(10)
ROUNDS, LEAST = 20_000, 0.001
COUNTS = np.array([1, 2, 3, 6, 12], np.int32)  # n_i; the last client has half of the examples
LABELS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]], bool)
SIZE = len(COUNTS)


class System(FixedSystem):
    """Client i is there in rounds 0 to i of five."""

    def unavailability_at(self, client, now, seconds):
        """See `SystemModelWithSessions`."""
        return Sessions.of((0,), (client,), 5).unavailability(now, seconds)


def system(seed, **sent):
    """The same for all seeds."""
    return System([1.0] * SIZE)


def ordered(probabilities, slots):
    """The law of independent slots, each with probabilities [SIZE]."""
    return {
        cohort: math.prod(p[client] for p, client in zip(probabilities, cohort, strict=True))
        for cohort in itertools.product(range(SIZE), repeat=slots)
    }


def successive(p, slots):
    """The law of draws by p, renormalised over the clients that are not drawn yet."""
    law = {}
    for cohort in itertools.permutations(range(SIZE), slots):
        left, law[cohort] = 1.0, 1.0
        for client in cohort:
            law[cohort] *= p[client] / left
            left -= p[client]
    return law


def among(available, slots):
    """The law of the uniform set of so many of the clients that are available, as a sorted cohort.

    `available` has the probabilities, [SIZE], of independent clients.
    """
    law = {}
    for here in itertools.product((False, True), repeat=SIZE):
        chance = math.prod(np.where(here, available, 1 - np.asarray(available)))
        clients = [client for client in range(SIZE) if here[client]]
        sets = [*itertools.combinations(clients, min(slots, len(clients)))]
        for members in sets:
            cohort = members + (SIZE,) * (slots - len(members))
            law[cohort] = law.get(cohort, 0) + chance / len(sets)
    return law


def poisson_law(mean, slots):
    """Each client by itself; of more than there are slots, a uniform set stays."""
    return among([mean / SIZE] * SIZE, slots)


def clustered_law(slots):
    """The distributions are what lies between k and k + 1 of the clients side by side."""
    ends = np.cumsum(COUNTS[::-1]) * slots / COUNTS.sum()  # in descending order
    starts = np.concatenate([[0], ends[:-1]])
    rows = []
    for slot in range(slots):
        overlap = np.minimum(ends, slot + 1) - np.maximum(starts, slot)
        rows.append(overlap.clip(0)[::-1])
    return ordered(rows, slots)


P = COUNTS / COUNTS.sum()
DAY = [0.4 * math.sin(2 * math.pi * hour / 23) + 0.5 for hour in range(24)]
HALF, FIRST, LAST = 0.5, np.array([0, 1, 0, 2, 0]), np.array([0, 1, 1, 2, 2])
# name: (spec, slots, the law of a round of the phase, the period, the phase, sorted?)
CASES = {
    "uniform": ("uniform", 3, lambda seed: among([1] * SIZE, 3), 1, 0),
    "with_replacement": ("with_replacement", 2, lambda seed: ordered([[1 / SIZE] * SIZE] * 2, 2)),
    "dirichlet": (
        "dirichlet:gamma=1", 2,
        lambda seed: successive(np.exp(log_shares(seed, SIZE, 1.0)), 2),
    ),
    "poisson": ("poisson:mean=2", 3, lambda seed: poisson_law(2, 3), 1, 0),
    "by_size": ("by_size", 2, lambda seed: ordered([P, P], 2)),
    "by_size, none twice": ("by_size:false", 2, lambda seed: successive(P, 2)),
    "clustered_by_size": ("clustered_by_size", 3, lambda seed: clustered_law(3)),
    "in_session": ("in_session:1", 2, lambda seed: among([0, 0, 1, 1, 1], 2), 5, 2),
}  # fmt: skip
PROBABILITIES = {
    "homogeneous": [HALF] * SIZE,
    "more_data": (COUNTS / 12) ** HALF,
    "less_data": (1.0 * COUNTS) ** -HALF,
    "label_max": HALF * FIRST / 2 + HALF,
    "label_few": HALF * LABELS.sum(1) / 3 + HALF,
}
for mode, chances in PROBABILITIES.items():
    law = functools.partial(lambda chances, seed: among(chances, 2), chances)
    CASES[f"available, {mode}"] = (f"available:{mode},beta=0.5", 2, law, 1, 0)
CASES["available, label_cycle"] = (
    "available:label_cycle,beta=0.5", 2,
    lambda seed: among(np.where((FIRST / 2 <= 13 / 24) & (LAST / 2 >= 13 / 24), 1, HALF), 2),
    24, 12,
)  # fmt: skip


def own_factors(seed):
    """T_i / max T of the log-normal modes, of the keys that the sampler has."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), np.uint32(2**32 - 1))
    normal = np.asarray(jax.random.normal(key, (SIZE,), jnp.float32), float)
    own = np.exp(math.log(2) * normal)
    return own / own.max()


CASES["available, lognormal"] = (
    "available:lognormal,beta=0.5", 2, lambda seed: among(own_factors(seed), 2), 1, 0
)  # fmt: skip
CASES["available, day"] = (
    "available:day,beta=0.5", 2, lambda seed: among(DAY[5] * own_factors(seed), 2), 24, 5
)  # fmt: skip
# drawn every 20 rounds, between which a client's state is forgotten up to a millionth
CASES["on_off"] = ("on_off:leave=0.3,join=0.2", 2, lambda seed: among([0.4] * SIZE, 2), 20, 0)


def make(registry, spec):
    """A sampler of five clients."""
    name, values = registry.parse(spec)
    more = {"system": system} if name == "in_session" else {}
    return of_clients(registry[name](**values, **more), COUNTS, lambda: LABELS)


def draw(spec, slots, seed, rounds):
    """int32[rounds, slots]: of the host's own samplers, and of the others traced."""
    if spec.partition(":")[0] in ("cyclic", "dirichlet", "with_replacement"):
        return make(samplers, spec)(seed, np.arange(rounds), SIZE, slots)
    traced = jax.tree_util.Partial(make(traced_samplers, spec))
    return np.asarray(draw_traced(traced, np.uint32(seed), slots, rounds))


@functools.partial(jax.jit, static_argnums=(2, 3))
def draw_traced(sampler, seed, slots, rounds):
    """int32[rounds, slots]."""
    one = lambda number: sampler(seed, number, SIZE, slots)  # noqa: E731
    return jax.lax.map(one, jnp.arange(rounds), batch_size=500)


def chi_square(seen, expected):
    """The p value; categories of which fewer than five are expected are one."""
    seen, expected = np.asarray(seen, float), np.asarray(expected, float)
    rare = expected < 5
    if expected[rare].sum() > 0:
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:
        if seen[rare].any():
            return 0.0
        seen, expected = seen[~rare], expected[~rare]
    if len(seen) < 2:
        return 1.0
    return float(stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue)


def law_p(cohorts, law, as_sets):
    """The p value of cohorts against a law; 0 for a cohort that cannot be."""
    cohorts = np.sort(cohorts, axis=1) if as_sets else cohorts
    found, counts = np.unique(cohorts, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))
    possible = {cohort for cohort, chance in law.items() if chance > 0}
    if not seen.keys() <= possible:
        return 0.0
    cells = sorted(possible)
    return chi_square([seen.get(c, 0) for c in cells], [len(cohorts) * law[c] for c in cells])


def next_p(cohorts, period):
    """The p value of the independence of the last slots of rounds that are a period apart."""
    last = cohorts[::period, -1]
    table = np.zeros((SIZE + 1, SIZE + 1))
    np.add.at(table, (last[:-1:2], last[1::2][: len(last[:-1:2])]), 1)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    return 1.0 if 1 in table.shape else float(stats.chi2_contingency(table).pvalue)


def changes_p(seed, leave=0.3, join=0.2):
    """The p value of the changes of the clients' states, in cohorts that have room for all."""
    cohorts = draw(f"on_off:leave={leave},join={join}", SIZE, seed, 2000)
    is_on = (cohorts[:, :, None] == np.arange(SIZE)).any(1)
    before, after = is_on[:-1].ravel(), is_on[1:].ravel()
    p = [
        chi_square(
            [(after[before == state]).sum(), (~after[before == state]).sum()],
            [(before == state).sum() * rate, (before == state).sum() * (1 - rate)],
        )
        for state, rate in ((True, 1 - leave), (False, join))
    ]
    return min(p) * 2  # of two tests


def cyclic_p(seed):
    """Five clients in groups of three and two: the pairs of the first group."""
    cohorts = np.sort(draw("cyclic:num_groups=2", 2, seed, ROUNDS), axis=1)[::2]
    _, counts = np.unique(cohorts, axis=0, return_counts=True)
    return chi_square(counts, [len(cohorts) / 3] * 3) if len(counts) == 3 else 0.0


def sizes_p(seed, num_clients=1000, mean=50.0, slots=60):
    """The sizes of Poisson cohorts, against the truncated binomial law."""
    sampler = traced_samplers["poisson"](mean=mean)
    draws = jax.jit(jax.vmap(lambda number: sampler(np.uint32(seed), number, num_clients, slots)))
    sizes = (np.asarray(draws(jnp.arange(ROUNDS))) < num_clients).sum(1)
    law = stats.binom.pmf(np.arange(slots), num_clients, mean / num_clients)
    return chi_square(
        np.bincount(sizes, minlength=slots + 1), ROUNDS * np.append(law, 1 - law.sum())
    )


def largest_z(spec, slots, target, divisor=None):
    """The largest z score, and the variance, of eight estimates from 2,000 cohorts of seed 0.

    `divisor` is that of the sum over a cohort; None is the number of its members.
    """
    values = np.random.default_rng(0).normal(size=(SIZE, 8))
    cohorts = draw(spec, slots, 0, 2000)
    padded = np.concatenate([values, np.zeros((1, 8))])
    members = (cohorts < SIZE).sum(1, keepdims=True)
    means = padded[cohorts].sum(1) / (members if divisor is None else divisor)
    error = means.mean(0) - target @ values
    scores = np.abs(error) / (means.std(0, ddof=1) / 2000**0.5)
    return scores.max(), means.var(0, ddof=1).mean()


def print_laws(names):
    """Prints the p values of these samplers; returns all of them."""
    lowest = []
    for name in names:
        spec, slots, law, *more = CASES[name]
        as_sets = bool(more)
        period, phase = more or (1, 0)
        laws, nexts = [], []
        for seed in SEEDS:
            cohorts = draw(spec, slots, seed, ROUNDS // (10 if name == "in_session" else 1))
            laws.append(law_p(cohorts[phase::period], law(seed), as_sets))
            nexts.append(changes_p(seed) if name == "on_off" else next_p(cohorts, period))
        lowest += laws + nexts
        text = f"{min(laws):.4f} {np.median(laws):.2f}   next round {min(nexts):.4f}"
        print(f"{name:24} law {text} {np.median(nexts):.2f}", flush=True)
    return lowest


def print_others():
    """Prints the p values of `cyclic` and of large Poisson cohorts; returns all of them."""
    lowest = []
    for name, test in {"cyclic": cyclic_p, "poisson, 1000 clients": sizes_p}.items():
        found = [test(seed) for seed in SEEDS]
        lowest += found
        print(f"{name:24} law {min(found):.4f} {np.median(found):.2f}", flush=True)
    return lowest


def print_estimates():
    """Prints z scores and variances; returns how many unbiased means are off."""
    print("\nlargest of 8 z scores of means over 2,000 cohorts (3.3 is p = 0.001 of one), variance")
    everyone, wrong = np.full(SIZE, 1 / SIZE), 0
    for spec, slots, target, divisor in (
        ("uniform", 3, everyone, None),
        ("with_replacement", 3, everyone, None),
        ("poisson:mean=2", 5, everyone, 2),
        ("by_size", 3, P, None),
        ("clustered_by_size", 3, P, None),
    ):
        score, variance = largest_z(spec, slots, target, divisor)
        wrong += score > 3.3
        print(f"{spec:32} {score:5.2f}  {variance:.3f}", flush=True)
    print("biased, as the page on choosing clients says:")
    for spec in ("by_size:false", "available:more_data,beta=0.5", "available:less_data,beta=0.5"):
        score, variance = largest_z(spec, 3, P if spec == "by_size:false" else everyone)
        print(f"{spec:32} {score:5.2f}  {variance:.3f}", flush=True)
    return wrong


def print_differences():
    """Prints how many cohorts on the host are not the traced ones; returns the sum."""
    print("\ncohorts on the host that are not the traced ones, of 200 rounds of each seed")
    others, specs = 0, {spec for spec, *_ in CASES.values()}
    for spec in sorted(specs - {"dirichlet:gamma=1", "with_replacement"}):
        host = make(samplers, spec)
        pairs = ((host(seed, np.arange(200), SIZE, 2), draw(spec, 2, seed, 200)) for seed in SEEDS)
        different = sum(int((one != other).any(1).sum()) for one, other in pairs)
        others += different
        print(f"{spec:32} {different}", flush=True)
    return others


def main():
    print(f"p values of {len(SEEDS)} seeds, {ROUNDS} cohorts each: the least, and the median")
    lowest = print_laws(CASES) + print_others()
    below = sum(p <= LEAST for p in lowest)
    print(f"every p is above {LEAST}" if not below else f"{below} p are not above {LEAST}", end="")
    print(f", of {len(lowest)}; {sum(p < 0.05 for p in lowest)} are below 0.05")
    sys.exit(bool(below + print_estimates() + print_differences()))


if __name__ == "__main__":
    main()
