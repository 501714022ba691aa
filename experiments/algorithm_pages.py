"""Every algorithm on one small task, for the figures on the pages of docs/algorithms.

COMMAND   python experiments/algorithm_pages.py
EXPECTED  experiments/results/algorithm_pages.csv and algorithm_pages_settings.csv
TIME      fifteen minutes of one CPU core

Scikit-learn's digits on 20 clients (Dirichlet .1), 10 local steps of batch 10, an MLP with 64
hidden units, five seeds. There are four tasks, each with FedAvg as its reference:

- "rounds": 5 clients in a round, 100 rounds; the accuracy of the global model on the test examples.
- "clock": all clients, 20 local steps, 100 simulated seconds with exponential speeds; the same
  accuracy.
- "clients": as "rounds", but each client holds out a fifth of its examples; the mean over clients
  of the accuracy of their own models on these.
- "clients_norm": as "clients", with BatchNorm in the MLP, without which FedBN is FedAvg.

The client learning rate of each algorithm is the best of one grid, by the accuracy on held-out
examples in the last fifth of the run, on three other seeds. The rates of algorithms with adaptive
local steps are a hundred times smaller. The other options are the defaults, except those that must
be given, and FADAS's server rate, whose default is for thousands of server steps. Runs are kept in
`--work`, and a second start goes on with them.
"""

import argparse
import csv
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Problem, Row
from fedjax_algos.data import Dataset
from fedjax_algos.runs.studies.folder_content import write_table
from fedjax_algos.runs.studies.settings import Settings, split

RATES = (0.01, 0.032, 0.1, 0.32, 1.0, 3.2)
SMALL_RATES = (0.0001, 0.00032, 0.001, 0.0032, 0.01, 0.032)  # of adaptive local steps
ADAPTIVE = ("diloco", "fedadamw", "fedlada", "fedmuon")
TUNING_SEEDS, SEEDS = (1000, 1001, 1002), (0, 1, 2, 3, 4)
HEAD = {"head": "Dense_1/*"}
GIVEN: dict[str, dict[str, Any]] = {
    "ghbm": {"tau": 4},
    **dict.fromkeys(("fedrep", "fedper", "lgfedavg", "fedbabu"), HEAD),
    "fadas": {"server_learning_rate": 0.03},
}
OF_THE_CLOCK = {  # and the planners whose defaults do not suit 20 local steps
    "fedavg": "fedavg",
    "fedasync": "fedasync",
    "fedbuff": "fedbuff",
    "fedat": "fedat",
    "fedcompass": "fedcompass@compass:min_steps=4,max_steps=20",
    "asyncsgd": "asyncsgd",
    "ca2fl": "ca2fl",
    "fadas": "fadas:server_learning_rate=0.03",
    "ace": "ace",
}
OF_CLIENTS = (
    *("fedavg", "ditto", "pfedme", "apfl", "fedrep", "ifca", "perfedavg"),
    *("fedper", "lgfedavg", "fedala"),
)
OF_CLIENTS_NORM = ("fedavg", "fedbn")
SETTINGS = Settings(partition="dirichlet:alpha=0.1", clients=20, cohort=5)
SHARED = ["--partition", SETTINGS.partition, "--clients", "20", "--devices", "1"]
OPTIONS = {
    "rounds": [*SHARED, "--cohort", "5"],
    "clock": [
        *SHARED,
        *["--local-steps", "20", "--seconds", "100", "--evaluations", "20"],
        *["--system", "simulated:speeds=exponential,time_floor=0.2"],
    ],
}
RESULTS = Path(__file__).parent / "results"


class NormalisedPerceptron(nn.Module):
    """The perceptron of `mlp`, with BatchNorm before its ReLU."""

    @nn.compact
    def __call__(self, x, training, mask=None):
        x = nn.Dense(64)(x.reshape(x.shape[0], -1))
        mask = None if mask is None else mask[:, None]  # of the rows of a short batch
        x = nn.BatchNorm(not training, momentum=0.9)(x, mask=mask)
        return nn.Dense(10)(nn.relu(x))


def specs_of(task: str) -> list[str]:
    """The methods of a task on the command line."""
    if task == "clock":
        return list(OF_THE_CLOCK.values())
    others = {*OF_THE_CLOCK, *OF_CLIENTS, *OF_CLIENTS_NORM} - {"fedavg"}
    names = [name for name in algorithms if name not in others]
    names = [name for name in names if (name in ADAPTIVE) == (task == "adaptive")]
    return [with_options(name) for name in names]


def with_options(name: str) -> str:
    """A name with the options that must be given."""
    given = ",".join(f"{option}={value}" for option, value in GIVEN.get(name, {}).items())
    return f"{name}:{given}" if given else name


def command(*arguments: str) -> None:
    """Runs a command of the package; one that has ended is not repeated."""
    subprocess.run([sys.executable, "-m", "fedjax_algos", *arguments, "--resume"], check=True)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_commands(task: str, work: Path) -> tuple[list[Row], list[Row]]:
    """Tunes and compares the methods of a task; the rows of both tables."""
    tuned, compared = work / f"{task}-tuned", work / task
    rates = SMALL_RATES if task == "adaptive" else RATES
    grid = f"client_learning_rate={','.join(map(str, rates))}"
    seeds = f"{TUNING_SEEDS[0]}-{TUNING_SEEDS[-1]}"
    arguments = [
        *OPTIONS["rounds" if task == "adaptive" else task],
        "--grid",
        grid,
        "--seeds",
        seeds,
        "--out",
        str(tuned),
    ]
    command("tune", *specs_of(task), *arguments)
    file = str(tuned / "tuned.toml")
    command("compare", "--config", file, "--seeds", str(len(SEEDS)), "--out", str(compared))
    scores: dict[str, dict[float, float]] = {}
    for row in read(tuned / "trials.csv"):
        rate = float(row["setting"].rpartition("=")[2])
        scores.setdefault(row["method"], {})[rate] = float(row["score"])
    rows, of_table = [], "rounds" if task == "adaptive" else task
    for row in read(compared / "metrics.csv"):
        value = float(row["test_accuracy"])
        rows.append(accuracy_row(of_table, row["method"], int(row["seed"]), position(row), value))
    return rows, [settings_row(of_table, name, own) for name, own in scores.items()]


def position(row: dict[str, str]) -> dict[str, str]:
    """Where a row is on the x axis."""
    if "simulated_seconds" in row:
        return {"round": "", "simulated_seconds": f"{float(row['simulated_seconds']):g}"}
    return {"round": row["round"], "simulated_seconds": ""}


def accuracy_row(task: str, name: str, seed: int, where: dict[str, str], value: float) -> Row:
    """A row of the first table."""
    return {"task": task, "method": name, "seed": seed, **where, "accuracy": f"{value:.4f}"}


def settings_row(task: str, name: str, scores: dict[float, float]) -> Row:
    """A row of the second table: the chosen rate, whether it ends the grid, and all scores."""
    best = max(scores, key=lambda rate: np.nan_to_num(scores[rate], nan=-1.0))
    end = {min(scores): "lowest", max(scores): "highest"}.get(best, "")
    spec = OF_THE_CLOCK[name] if task == "clock" else with_options(name)
    every = sorted({*SMALL_RATES, *RATES})
    own = {f"score_{rate:g}": f"{scores[rate]:.4f}" if rate in scores else "" for rate in every}
    row = {"task": task, "method": name, "spec": spec, "client_learning_rate": f"{best:g}"}
    return {**row, "end_of_the_grid": end, **own}


def evaluations(
    engine: fa.Engine, evaluate: Any, settings: Settings, dataset: Dataset, seed: int, steps: int
) -> Iterator[tuple[int, float]]:
    """The rounds of a run, with the mean accuracy of the clients' own models after them."""
    data, _, held_out = split(settings, dataset, seed)
    more = {"train": data, "num_steps": steps} if steps else {}
    for state, row in fa.iterate_rounds(engine, data, seed=seed, **settings.loop()):
        accuracy = evaluate(state, held_out, **more)["accuracy"]
        yield row["round"], float(np.asarray(accuracy.value())[held_out.counts() > 0].mean())


def run_clients(task: str, name: str, problem: Problem) -> tuple[list[Row], list[Row]]:
    """Tunes and runs one method whose clients have models of their own."""
    settings = dataclasses.replace(SETTINGS, evaluate_clients="held_out")
    dataset = settings.load()
    found = {
        rate: algorithms[name](problem, settings.local(rate), **GIVEN.get(name, {}))
        for rate in RATES
    }
    shared = fa.make_engine(found[RATES[0]])  # the rate is an argument of its program
    engines = {rate: shared.with_algorithm(algorithm) for rate, algorithm in found.items()}
    steps = int(name == "perfedavg")  # a client's model is one step from the global one
    local = settings.local(0.01)._replace(steps=1) if steps else None  # with the default alpha
    evaluate = fa.make_evaluate_own(found[RATES[0]], local=local)
    arguments = evaluate, settings, dataset
    start, scores = 0.8 * settings.rounds, {}
    for rate, engine in engines.items():
        values = [
            value
            for seed in TUNING_SEEDS
            for number, value in evaluations(engine, *arguments, seed, steps)
            if number > start
        ]
        scores[rate] = float(np.mean(values))
    chosen = settings_row(task, name, scores)
    engine = engines[float(chosen["client_learning_rate"])]
    rows = [
        accuracy_row(task, name, seed, {"round": f"{number}", "simulated_seconds": ""}, value)
        for seed in SEEDS
        for number, value in evaluations(engine, *arguments, seed, steps)
    ]
    return rows, [chosen]


def own_models(work: Path) -> tuple[list[Row], list[Row]]:
    """The rows of both tables for the methods whose clients have models of their own."""
    dataset = SETTINGS.load()
    normalised = fa.models.classifier(NormalisedPerceptron(), dataset.example_shape)
    tasks = {
        "clients": (OF_CLIENTS, SETTINGS.problem(dataset)),
        "clients_norm": (OF_CLIENTS_NORM, normalised),
    }
    tables: tuple[list[Row], list[Row]] = [], []
    for task, (names, problem) in tasks.items():
        for name in names:
            paths = [work / f"{task}-{name}{end}.csv" for end in ("", "-settings")]
            if not paths[1].exists():
                for path, table in zip(paths, run_clients(task, name, problem), strict=True):
                    write_table(path, table)
            print(f"{task}: {name} has ended", flush=True)
            for table, path in zip(tables, paths, strict=True):
                table.extend(read(path))
    return tables


def main() -> None:
    """Runs what has not been run, and writes both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("results/algorithm_pages"))
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    parts = [run_commands(task, work) for task in ("rounds", "adaptive", "clock")]
    parts.append(own_models(work))
    for number, name in enumerate(("algorithm_pages", "algorithm_pages_settings")):
        write_table(RESULTS / f"{name}.csv", [row for part in parts for row in part[number]])


if __name__ == "__main__":
    main()
