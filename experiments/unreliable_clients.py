"""FedAvg on digits where a fifth of the clients send NaN and a fifth of each cohort drops out.

COMMAND   python experiments/unreliable_clients.py
EXPECTED  best accuracies within 2 points of the clean run: 95.5 and 94.4 with Dirichlet .1, 96.2
          and 95.9 with iid clients
TIME      two minutes on two CPU cores

The table has the means over ten seeds of the best and of the last test accuracy in 100 rounds, and
of the number of updates that were left out. With Dirichlet .1 the last accuracies differ by 2.5
points: the examples of the clients that send NaN are never learned.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.core import Algorithm, Row
from fedjax_algos.runs.studies.settings import Settings, split

SENDING_NAN = 0.2  # the share of all clients
DROPPING_OUT = 0.2  # the share of each cohort


def sending_nan(algorithm: Algorithm, clients: int) -> Algorithm:
    """The algorithm, in which the clients with an id below `clients` send NaN."""

    def client_update(broadcast, row, data, dispatch, key):
        row, update, report = algorithm.client_update(broadcast, row, data, dispatch, key)
        spoiled = dispatch.client < clients
        return row, jax.tree.map(lambda leaf: jnp.where(spoiled, jnp.nan, leaf), update), report

    return algorithm._replace(client_update=client_update)


def compare(settings: Settings) -> dict[str, list[list[Row]]]:
    """The rows of FedAvg on each seed, clean and with unreliable clients.

    A client that drops out sends nothing, and the server averages what the others send. So a cohort
    of which some drop out is a smaller cohort.
    """
    dataset = settings.load()
    problem = settings.problem(dataset)
    fedavg = fa.algorithms.fedavg(problem, settings.local(0.1))
    unreliable = sending_nan(fedavg, round(SENDING_NAN * settings.clients))
    arriving = round((1 - DROPPING_OUT) * settings.cohort_size)
    evaluate = fa.make_evaluate(problem)
    rows: dict[str, list[list[Row]]] = {}
    for name, algorithm, cohort_size in (
        ("clean", fedavg, settings.cohort_size),
        ("unreliable", unreliable, arriving),
    ):
        engine = fa.make_engine(algorithm)
        for seed in settings.seeds:
            data, *_ = split(settings, dataset, seed)
            options = settings.loop() | {"cohort_size": cohort_size, "seed": seed}
            _, history = fa.simulate(engine, data, test=dataset.test, evaluate=evaluate, **options)
            rows.setdefault(name, []).append(history)
    return rows


def best(rows: list[list[Row]]) -> float:
    """The mean over seeds of the best test accuracy in percent."""
    return 100 * float(np.mean([max(row["test_accuracy"] for row in own) for own in rows]))


def main() -> None:
    """Prints a line for each of the two, for two partitions."""
    for partition in ("dirichlet:alpha=0.1", "iid"):
        for name, rows in compare(Settings(seeds=tuple(range(10)), partition=partition)).items():
            last = 100 * np.mean([own[-1]["test_accuracy"] for own in rows])
            excluded = np.mean([own[-1]["excluded_updates"] for own in rows])
            print(f"{partition:20} {name:10} best {best(rows):.1f} last {last:.1f}", end=" ")
            print(f"excluded {excluded:.0f}")


if __name__ == "__main__":
    main()
