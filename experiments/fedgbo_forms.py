"""How well FedGBO's inverse recovers the mean gradient in float32, and in float64.

COMMAND   python experiments/fedgbo_forms.py
EXPECTED  a table whose errors grow with 1 / (rate (1 - decay))
TIME      two minutes on two CPU cores

One round of scikit-learn's digits (100 clients, Dirichlet .1, cohort 10, ten steps of batch 10, an
MLP with 64 hidden units), once with uploaded models and once with uploaded mean gradients: the
gradient that the server's inverse finds is compared with the uploaded mean. The error is relative,
in the 2-norm.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_algos as fa
from fedjax_algos.algorithms.global_optimizers import biased_optimizers
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.studies.settings import Settings, split

SETTINGS = Settings()
CASES = [
    ("sgdm", rate, decay, {"beta": decay})
    for rate in (1.0, 1e-2, 1e-4)
    for decay in (0.6, 0.9, 0.99, 0.999)
]
CASES += [("rmsprop", 1e-4, 0.9, {"beta": 0.9}), ("adam", 1e-4, 0.9, {"b1": 0.9})]


def error(name, rate, options):
    """|inverse - mean gradient| / |mean gradient| after the first round."""
    dataset = SETTINGS.load()
    problem, (data, *_) = SETTINGS.problem(dataset), split(SETTINGS, dataset, 0)
    local = SETTINGS.local(rate)
    found = {}
    for upload in ("model", "gradient"):
        optimizer = getattr(biased_optimizers, name)(**options)
        # statistics that simply keep the gradient that the server tracks
        keep = optimizer._replace(
            init=lambda x, init=optimizer.init: (init(x), optax.tree.zeros_like(x)),
            update=lambda g, s, update=optimizer.update: update(g, s[0]),
            inverse=lambda d, s, inverse=optimizer.inverse: inverse(d, s[0]),
            track=lambda g, s: (s[0], g),
        )
        algorithm = fa.algorithms.fedgbo(problem, local, optimizer=keep, upload=upload)
        engine = fa.make_engine(algorithm)
        cohorts = Cohorts(data.counts(), local, cohort_size=SETTINGS.cohort_size, seed=0)
        dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        params = problem.init(jax.random.key(0)).params  # Flax makes float32, whatever the mode
        params = jax.tree.map(lambda p: p.astype(float), params)
        state = engine.init(0, fa.Population(data.num_clients, SETTINGS.cohort_size, 1), params)
        state, _ = engine.round(state, data, dispatches)
        found[upload] = state.server.optimizer_statistics[1]
    difference = optax.tree.norm(optax.tree.sub(found["model"], found["gradient"]))
    return float(difference / optax.tree.norm(found["gradient"]))


def main():
    print(f"{'optimiser':10}{'rate':>8}{'decay':>8}{'float32':>12}{'float64':>12}")
    for name, rate, decay, options in CASES:
        errors = []
        for x64 in (False, True):
            jax.config.update("jax_enable_x64", x64)
            assert jnp.zeros(()).dtype == (np.float64 if x64 else np.float32)
            errors.append(error(name, rate, options))
        print(f"{name:10}{rate:8.0e}{decay:8}{errors[0]:12.1e}{errors[1]:12.1e}", flush=True)


if __name__ == "__main__":
    main()
