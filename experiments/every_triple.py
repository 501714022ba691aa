"""Every triple of an algorithm and two of its settings in a run, against the algorithm's plain run.

The settings are the layout, devices, place of client state, place of examples, wrapper, what is
done with non-finite updates, and cohorts, of all samplers and with failures that leave holes. For
each algorithm every two values of them stand together in at least one run of three rounds in
float64, and every three values in a run of some algorithm. (The clients of some read the examples
of all others, which must be in memory.) Its server state, its client rows and the rows of its
metrics must be those of the plain run: without layouts, on one device, with everything in memory,
with the same cohorts, and without a wrapper, unless this chooses the cohort. Algorithms whose
clients keep state must refuse cohorts with a client that is in them twice, cohorts that are chosen
must refuse sharded examples, and `mean` the algorithms that it does not fit.

COMMAND   python experiments/every_triple.py
EXPECTED  a line for each algorithm, and "0 of ... runs differ" at the end
TIME      about an hour and a half on two CPU cores; with `--only scaffold` three minutes
"""

import argparse
import functools
import itertools
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, late, simulated
from fedjax_algos.core.algorithm import stateless
from fedjax_algos.data import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import by_client, independent, samplers, uniform
from fedjax_algos.participation.sampling import of_clients
from fedjax_algos.participation.systems.fedscale import Sessions

AXES = {
    "layout": ["sequential", "vmapped", 2],
    "devices": [1, 2],
    "client_state": ["device", "host", "disk"],
    "examples": ["in memory", "sharded", "stored"],
    "wrapper": ["none", "identity", "mean", "choice"],
    "non_finite": ["exclude", "keep"],
    "cohorts": ["full", "empty slots", "random size", "available", "twice"],
}
OPTIONS = {  # of algorithms whose defaults do not fit a small network
    "fedrep": {"head": "out*"},
    "fedbn": {"norm": "hidden/b"},
    "ghbm": {"tau": 2},
}
REFUSED = {"fedlga": "compares the updates", "ifca": "choose what they train"}  # with `mean`
COUNTS = [5, 1, 8, 3, 6, 2]
LOCAL = fa.Local(batch_size=3, learning_rate=0.05, steps=2)


def all_settings():
    """Every combination of the values of the axes."""
    return [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


def groups(row, size):
    """The groups of so many settings that stand together in a row."""
    return set(itertools.combinations(row.items(), size))


def covering(everything, triples):
    """Rows in which every pair of values of two axes stands at least once (greedy).

    Of rows with equally many new pairs, one with the most `triples` is taken; they are removed.
    """
    pairs = set().union(*(groups(row, 2) for row in everything))
    rows = []
    while pairs:
        news = [(len(pairs & groups(row, 2)), len(triples & groups(row, 3))) for row in everything]
        best = everything[news.index(max(news))]
        pairs -= groups(best, 2)
        triples -= groups(best, 3)
        rows.append(best)
    return rows


def network():
    """A smooth network of two layers for six clients of unequal size."""

    def init(key):
        first, second = jax.random.split(key)
        hidden = {"w": jax.random.normal(first, (3, 4), float), "b": jnp.zeros(4)}
        return fa.Model({"hidden": hidden, "out": jax.random.normal(second, (4,), float)})

    def apply(model, batch, key, training):
        hidden = jnp.tanh(
            batch["x"] @ model.params["hidden"]["w"] + model.params["hidden"]["b"][None]
        )
        return Outputs(hidden @ model.params["out"], hidden), ()

    return fa.Problem(init, apply, lambda outputs, batch: (outputs.logits - batch["y"]) ** 2)


def leave_empty(seed, rounds, num_clients, cohort_size):
    """Uniform cohorts in which slot number (round mod 4) is empty."""
    cohorts = uniform(seed, rounds, num_clients, cohort_size)
    empty = np.arange(cohort_size) == np.asarray(rounds)[:, None] % 4
    return np.where(empty, num_clients, cohorts)


leave_empty.may_leave_empty = True


class Nights(FixedSystem):
    """Client i is there in rounds 0 to i of seven."""

    def unavailability_at(self, client, now, seconds):
        """See `SystemModelWithSessions`."""
        return Sessions.of((0,), (client,), 7).unavailability(now, seconds)


def nights(seed, **sent):
    """The same for all seeds."""
    return Nights([1.0] * len(COUNTS))


def make(spec):
    """A sampler."""
    if not isinstance(spec, str):
        return spec
    name, values = samplers.parse(spec)
    return samplers[name](**values, **({"system": nights} if name == "in_session" else {}))


def in_turn(some):
    """One sampler in each round."""

    def draw(seed, rounds, num_clients, cohort_size):
        turns = enumerate(some[number % len(some)] for number in rounds)
        drawn = [each(seed, rounds[[i]], num_clients, cohort_size) for i, each in turns]
        return np.concatenate(drawn)

    def bind(counts, labels):
        return in_turn([of_clients(each, counts, lambda: labels) for each in some])

    draw.may_leave_empty = any(getattr(each, "may_leave_empty", False) for each in some)
    draw.of_clients = bind
    return draw


SLOW = late(seconds=2.0, system=simulated(speeds="exponential", seconds_per_step=0.5, dropout=0.2))
SAMPLERS = {  # one of them in each round
    "full": ["uniform", "cyclic:num_groups=1", "dirichlet:gamma=1"],
    "empty slots": [leave_empty, "in_session:seconds=1"],
    "random size": ["poisson:mean=2.5", "by_size:replacement=false"],
    "available": ["on_off:leave=0.3,join=0.5", "available:mode=more_data,beta=0.5", "seen:new=1"],
    "twice": ["clustered_by_size", "by_size", "with_replacement"],
}
FAILURES = {
    "empty slots": independent(probability=0.3),
    "random size": by_client(median=0.3),
    "available": SLOW,
}


def choice(algorithm):
    """Cohorts of four of five candidates, by a loss that they report and by one in their rows."""
    remembering = fa.wrappers.power_of_choice(algorithm, candidates=1.25, loss="last")
    reporting = fa.wrappers.power_of_choice(algorithm, candidates=1.25, loss="batch").selection

    def value(model, row, *rest):
        return jnp.minimum(row.own, 9) + reporting.value(model, row.inner, *rest)

    return remembering._replace(selection=reporting._replace(value=value))


def wrapped(name, wrapper):
    """An algorithm with a wrapper of the axis."""
    own = {"none": lambda algorithm: algorithm, "choice": choice}
    return (own.get(wrapper) or fa.wrappers.wrappers[wrapper])(build(name))


def train(algorithm, settings, folder=None):
    """(params, all client states, rows without time) of three rounds with these settings."""
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(sum(COUNTS), 3)), "y": rng.normal(size=sum(COUNTS))}
    partition = fa.Partition.of(np.split(rng.permutation(sum(COUNTS)), np.cumsum(COUNTS)[:-1]))
    data = fa.federate(examples, partition)
    if settings["examples"] == "stored":
        data = StoredData(source_of(examples, partition, [f"client {i}" for i in range(6)]))
    disk = settings["client_state"] == "disk"
    engine = fa.make_engine(
        algorithm,
        settings["layout"],
        client_state=fa.RowsOnDisk(folder) if disk else settings["client_state"],
        devices=settings["devices"],
        examples="sharded" if settings["examples"] == "sharded" else "replicated",
        non_finite=settings["non_finite"],
    )
    options = {"cohort_size": 4, "rounds": 3, "eval_every": 1, "seed": 1}
    options["sampler"] = in_turn([make(spec) for spec in SAMPLERS[settings["cohorts"]]])
    options["failures"] = FAILURES.get(settings["cohorts"])
    state, rows = fa.simulate(engine, data, **options)
    for row in rows:
        for column in ("wall_seconds", "excluded_updates"):  # with "keep", none are excluded
            row.pop(column, None)
    keep_rows = not isinstance(state.dispatched, tuple)
    clients = fa.client_states(engine, state) if keep_rows else ()
    return jax.device_get((state.server.params, clients, rows))


def differ(one, other):
    """Whether two results are equal up to rounding; the same columns, and the same integers."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return True
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return not all(np.allclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True) for a, b in pairs)


def build(name):
    return fa.algorithms.algorithms[name](network(), LOCAL, **OPTIONS.get(name, {}))


@functools.cache
def train_plainly(name, cohorts, wrapper):
    """The results of an algorithm in the simplest settings."""
    plain = {axis: values[0] for axis, values in AXES.items()}
    return train(wrapped(name, wrapper), plain | {"cohorts": cohorts})


def refusal(name, settings):
    """What the error of a run says that must be refused; None for others."""
    wrapper, keeping = settings["wrapper"], build(name).client_init is not stateless
    if wrapper == "mean" and name in REFUSED:
        return REFUSED[name]
    if wrapper == "choice" and settings["examples"] == "sharded" and settings["devices"] > 1:
        return "neither pools examples nor selects clients"
    twice = settings["cohorts"] == "twice" and (keeping or wrapper == "choice")
    return "is twice in the cohort" if twice else None


def check(name, rows, folder):
    """The settings, among the rows, whose runs of an algorithm are not those of its plain run."""
    wrong = []
    for settings in rows:
        wrapper, reason = settings["wrapper"], refusal(name, settings)
        try:
            found = train(wrapped(name, wrapper), settings, folder)
            plain = wrapper if wrapper == "choice" else "none"
            if reason or differ(found, train_plainly(name, settings["cohorts"], plain)):
                wrong.append(settings | ({"missing": reason} if reason else {}))
        except ValueError as error:
            if reason is None or reason not in str(error):
                wrong.append(settings | {"error": str(error)})
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="one algorithm")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_enable_x64", True)
    everything = all_settings()
    triples = set().union(*(groups(row, 3) for row in everything))
    found, runs = 0, 0
    for name in [options.only] if options.only else sorted(fa.algorithms.algorithms):
        pools = build(name).traits.pools_examples
        allowed = [row for row in everything if not pools or row["examples"] == "in memory"]
        rows = covering(allowed, triples)
        with tempfile.TemporaryDirectory() as folder:
            wrong = check(name, rows, folder)
        found, runs = found + len(wrong), runs + len(rows)
        print(f"{name}: {len(wrong)} of {len(rows)} runs differ", *wrong, sep="\n  ", flush=True)
        jax.clear_caches()
    print(f"{len(triples)} triples of three settings were in no run")
    print(f"{found} of {runs} runs differ")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
