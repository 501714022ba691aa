"""Top-1 of ten entries on least squares, alone, with error feedback, and with EF21.

COMMAND   python experiments/papers/claims.py run compression/top1_feedback
EXPECTED  see the claims top1_feedback and top1_ef21
TIME      a minute

Ten clients with ten examples each have f_i(x) = |A_i (x - x_i)|^2 / 20. A_i^T A_i / 10 has the
eigenvalues 1 to 10 (a geometric series) in random directions, x_i is x_0 plus a standard normal
vector, and x_0 is standard normal. All clients take part in each round and take one step along the
full gradient, so that fedavg is gradient descent. It begins at 0. A value is |x - x*|^2 / |x*|^2,
where x* is the minimum of the mean of all f_i.

The rate of each method is one of .1 2^-k, k = 0 to 12, for a largest eigenvalue of at most 10. It
has the least distance in the last thousand rounds, in the mean logarithm over the problems of the
seeds 1000 and 1001; distances below 1e-8 count as 1e-8, and of equal rates the largest is taken.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa

ENTRIES, CLIENTS, ROUNDS, LAST = 10, 10, 20_000, 1000
RATES = 0.1 * 0.5 ** np.arange(13)
TUNING_SEEDS = 1000, 1001
LEAST = 1e-8  # of the distance when rates are compared
FEEDBACK = {"top-1": "none", "top-1, EF": "ef", "top-1, EF21": "ef21"}


def problem_of(seed):
    """The examples of all clients, a float[clients, 10, 10] and b float[clients, 10], and x*."""
    random = np.random.default_rng([seed, ENTRIES])
    roots = np.sqrt(ENTRIES * np.geomspace(1, 10, ENTRIES))
    left, right = (
        np.array([np.linalg.qr(random.normal(size=(ENTRIES, ENTRIES)))[0] for _ in range(CLIENTS)])
        for _ in range(2)
    )
    a = left * roots @ right
    centre = random.normal(size=ENTRIES)
    own = centre + random.normal(size=(CLIENTS, ENTRIES))
    b = np.einsum("cij,cj->ci", a, own)
    hessians = np.einsum("cij,cik->cjk", a, a)
    best = np.linalg.solve(hessians.sum(0), np.einsum("cij,ci->j", a, b))
    return a, b, best


def distances(feedback, seeds, rates, rounds=ROUNDS):
    """float[seeds, rates, rounds]: the relative square distance after each round."""
    each = [problem_of(seed) for seed in seeds]
    a, b, best = (np.stack(parts).astype(np.float32) for parts in zip(*each, strict=True))
    rows = np.arange(CLIENTS * ENTRIES, dtype=np.int32)
    parts = fa.Partition.of(np.split(rows, CLIENTS))
    least_squares = fa.Problem(
        init=lambda key: fa.Model(jnp.zeros(ENTRIES)),
        apply=lambda model, batch, key, training: (batch["x"] @ model.params, model.statistics),
        loss=lambda outputs, batch: (outputs - batch["y"]) ** 2 / 2,
    )
    population = fa.Population(CLIENTS, CLIENTS, len(rows))

    def run(a, b, best, rate):
        data = fa.federate({"x": rows, "y": rows}, parts)  # rows stand for the traced examples
        data = data._replace(
            examples={"x": a.reshape(len(rows), ENTRIES), "y": b.reshape(len(rows))}
        )
        local = fa.Local(batch_size=ENTRIES, learning_rate=rate, steps=1, batches="full")
        fedavg = fa.algorithms.fedavg(least_squares, local, weighting="uniform")
        wrapped = fa.wrappers.topk(fedavg, fraction=1 / ENTRIES, feedback=feedback)
        round_fn = fa.pure_round(wrapped, "vmapped")
        dispatches = fa.traced_dispatches(
            0, np.full(CLIENTS, ENTRIES), local, cohort_size=CLIENTS, rounds=rounds
        )

        def one_round(state, of_round):
            state, _ = round_fn(state, data, of_round)
            return state, ((state.model.params - best) ** 2).sum() / (best**2).sum()

        _, found = jax.lax.scan(one_round, round_fn.init(0, population), dispatches)
        return found

    of_rates = jax.vmap(run, (None, None, None, 0))
    return np.asarray(jax.jit(jax.vmap(of_rates, (0, 0, 0, None)))(a, b, best, jnp.asarray(rates)))


def tuned_rate(feedback):
    """The rate of the grid that ends nearest to the minimum."""
    last = distances(feedback, TUNING_SEEDS, RATES)[..., -LAST:].mean(-1)
    score = np.log(np.maximum(np.nan_to_num(last, nan=np.inf), LEAST)).mean(0)
    return RATES[np.argmin(score)]


@functools.cache
def tuned_distances(seeds):
    """float[seeds, rounds] of each method by name, with its rate of the grid."""
    found = {}
    for name, feedback in FEEDBACK.items():
        rate = tuned_rate(feedback)
        print(f"{name}: rate {rate:.6g}", flush=True)
        found[name] = distances(feedback, seeds, rate[None])[:, 0]
    return found


def rows(run):
    for name, own in tuned_distances(run.seeds).items():
        for seed, values in zip(run.seeds, own, strict=True):
            yield "", name, "squared distance at the end", seed, f"{values[-LAST:].mean():.6g}"
            yield "", name, "least squared distance", seed, f"{values.min():.6g}"
    for seed in run.seeds:
        yield "", "1e-6", "squared distance at the end", seed, "1e-06"
        yield "", "1e-3", "least squared distance", seed, "0.001"
