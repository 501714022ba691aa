"""FedGBO's beta and the client learning rate, learned by hyper-gradients through five rounds.

COMMAND   python experiments/hypergradients.py
EXPECTED  the table in docs/transformations.md: objectives 1.387 (grid) and 1.356 (learned)
TIME      six minutes on two busy CPU cores

Digits, 100 clients with Dirichlet .1, an MLP with 50 hidden units, cohorts of 10, three epochs. The
objective is the mean loss after five rounds on the examples of 20 held-out clients, over 16
seeds. Adam follows its gradient with respect to log eta_l and logit beta, through all local steps
and server updates. A grid of 6 rates by 4 decays is the rival, on the same objective. Both choices
are then measured with 64 other seeds, on 20 other held-out clients that neither has seen.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_algos as fa
from fedjax_algos.data import datasets, partitions
from fedjax_algos.models import models

CLIENTS, HELD_OUT, COHORT, ROUNDS, SEEDS = 100, 20, 10, 5, 16
RATES = np.asarray([0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
DECAYS = np.asarray([0.0, 0.5, 0.9, 0.99])
LOCAL = fa.Local(batch_size=10, learning_rate=0.1, epochs=3)


def simulation(policy=None):
    """`(point, seed, held-out examples) -> loss` of a whole run; and the held-out examples."""
    dataset = datasets["digits"]()
    partition = partitions["dirichlet"](dataset.train["y"], CLIENTS, 0, alpha=0.1)
    rows = np.split(partition.indices, partition.offsets[1:-1])
    groups = rows[:HELD_OUT], rows[HELD_OUT : 2 * HELD_OUT]
    seen, unseen = (
        {name: leaf[np.concatenate(group)] for name, leaf in dataset.train.items()}
        for group in groups
    )
    data = fa.federate(dataset.train, fa.Partition.of(rows[2 * HELD_OUT :]))
    problem = models.make("mlp:hidden=50", dataset.example_shape, dataset.num_classes)
    local = fa.differentiable(LOCAL, data.counts(), policy)
    population = fa.Population(data.num_clients, COHORT, len(data.indices))
    evaluate = fa.make_evaluate(problem)

    def loss(point, seed, examples):
        log_rate, logit_decay = point
        rated = local._replace(learning_rate=jnp.exp(log_rate))
        beta = jax.nn.sigmoid(logit_decay)
        algorithm = fa.algorithms.fedgbo(problem, rated, optimizer="sgdm", beta=beta)
        round_fn = fa.pure_round(algorithm, "vmapped")
        dispatches = fa.traced_dispatches(
            seed, data.counts(), rated, cohort_size=COHORT, rounds=ROUNDS
        )
        state, _ = jax.lax.scan(
            lambda state, of_round: round_fn(state, data, of_round),
            round_fn.init(seed, population),
            dispatches,
        )
        return evaluate(fa.Model(state.server.params), examples)["loss"].value()

    return loss, (seen, unseen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="of Adam")
    steps = parser.parse_args().steps
    loss, (seen, unseen) = simulation()
    seeds, others = jnp.arange(SEEDS), 1000 + jnp.arange(64)

    @jax.jit
    def objective(point, seeds, examples):
        return jax.vmap(loss, (None, 0, None))(point, seeds, examples)

    @jax.jit
    def step(point, state):
        def mean(point):
            return objective(point, seeds, seen).mean()

        value, gradient = jax.value_and_grad(mean)(point)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(point, updates), state, value, gradient

    start = time.perf_counter()
    logits = np.log(np.maximum(DECAYS, 1e-9)) - np.log1p(-DECAYS)
    points = [jnp.asarray([np.log(rate), logit]) for rate in RATES for logit in logits]
    values = np.asarray([objective(point, seeds, seen).mean() for point in points])
    best = points[np.nanargmin(values)]
    print(f"grid: {len(points)} points in {time.perf_counter() - start:.0f} s")
    print(np.round(values.reshape(len(RATES), -1), 3))

    start = time.perf_counter()
    optimizer = optax.adam(optax.cosine_decay_schedule(0.3, steps))
    point = jnp.asarray([np.log(0.1), 0.0])
    state, path = optimizer.init(point), []
    for _ in range(steps):
        last = point
        point, state, value, _ = step(point, state)
        path.append((float(value), last))
    learned = min(path, key=lambda entry: entry[0])[1]
    print(f"hyper-gradients: {steps} steps in {time.perf_counter() - start:.0f} s")
    print(np.round([value for value, _ in path], 3))

    results = {}
    for name, chosen in (("grid", best), ("learned", learned)):
        rate, beta = float(jnp.exp(chosen[0])), float(jax.nn.sigmoid(chosen[1]))
        on_seen = float(objective(chosen, seeds, seen).mean())
        results[name] = np.asarray(objective(chosen, others, unseen))
        print(
            f"{name}: eta_l={rate:.3g}, beta={beta:.3g}; objective {on_seen:.4f}; other seeds and "
            f"clients {results[name].mean():.4f}"
        )
    difference = results["grid"] - results["learned"]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    print(f"grid - learned on other seeds and clients: {difference.mean():.4f} +- {2 * error:.4f}")


if __name__ == "__main__":
    main()
