"""The baselines of recent papers on Fashion-MNIST, tuned alike, for docs/baselines.md.

COMMAND   python experiments/baselines.py one_class dirichlet clock
EXPECTED  experiments/results/baselines_one_class.csv and one file for each other task
TIME      see docs/baselines.md; `--share 1/2` and `--share 2/2` divide it over two processes

The model is a perceptron with 100 hidden units. In the first two tasks, 10 of 100 clients take part
in each of 400 rounds, with one epoch in batches of 64. In the third, 20 clients of exponential
speeds train for 200 seconds of the virtual clock, with 10 steps in each dispatch. Every method has
12 trials: four client learning rates, and three values of one other option. The trial with the
highest accuracy on held-out examples in the last fifth of the run, on one other seed, is compared
on five seeds. Runs are kept in `--work`, and a second start goes on with them.
"""

import argparse
import csv
import subprocess
import sys
import tomllib
from pathlib import Path

from fedjax_algos.runs.studies.folder_content import write_table

RATES, SMALL_RATES = "0.01,0.03,0.1,0.3", "0.0001,0.0003,0.001,0.003"
PARTITIONS = {
    "one_class": "dirichlet_balanced:alpha=0",
    "dirichlet": "dirichlet:alpha=0.1",
    "clock": "dirichlet:alpha=0.1",
}
RADII = "rho=0.02,0.05,0.1"
SYNCHRONOUS = {  # a method, and its other option with three values
    "fedavg:weighting=uniform": "server_learning_rate=0.7,1,1.4",
    "fedavgm:weighting=uniform": "server_learning_rate=0.1,0.3,1",
    "fedadam:weighting=uniform": "server_learning_rate=0.001,0.01,0.1",
    "fedprox:weighting=uniform": "mu=0.001,0.01,0.1",
    "scaffold": "server_learning_rate=0.7,1,1.4",
    "feddyn": "alpha=0.01,0.03,0.1",
    "fedcm:weighting=uniform": "alpha=0.05,0.1,0.3",
    "fedgbo": "beta=0.8,0.9,0.95",
    "ghbm:tau=10,weighting=uniform": "beta=0.8,0.9,0.95",
    "fedhbm:weighting=uniform": "beta=0.6,0.9,1",
    "fedsam": RADII,
    "mofedsam": RADII,
    "fedgamma": RADII,
    "fedspeed:duals=all": RADII,
    "fedlesam": RADII,
    "fedsmoo": RADII,
    "diloco": "server_learning_rate=0.3,0.7,1",
    "fedadamw": "alpha=0.25,0.5,0.75",
    "fedlada": "gamma=0.5,0.7,0.9",
    "fedmuon": "gamma=0.5,0.7,0.85",
    "moon:weighting=uniform": "mu=0.1,1,5",
    "fedntd:weighting=uniform": "beta=0.3,1,3",
    "fedlc:weighting=uniform": "tau=0.1,0.5,1",
    "feddecorr:weighting=uniform": "beta=0.01,0.1,0.3",
    "fedexp:weighting=uniform": "epsilon=0.001,0.01,0.1",
    "fedacg": "lambda_=0.7,0.85,0.95",
    "feddisco": "a=0.25,0.5,1",
}
ASYNCHRONOUS = {
    "fedavg:weighting=uniform": "server_learning_rate=0.7,1,1.4",
    "asyncsgd": "server_learning_rate=0.01,0.03,0.1",
    "fedasync": "alpha=0.3,0.6,0.9",
    "fedbuff:weighting=buffer": "server_learning_rate=0.3,1,1.4",
    "ca2fl": "server_learning_rate=0.3,1,1.4",
    "fadas": "server_learning_rate=0.001,0.003,0.01",
    "ace": "server_learning_rate=0.03,0.1,0.3",
    "fedat": "mu=0,0.01,0.1",
    "fedcompass@compass:min_steps=2,max_steps=10": "alpha=0.3,0.6,0.9",
}
ADAPTIVE = ("diloco", "fedadamw", "fedlada", "fedmuon")
RESULTS = Path(__file__).parent / "results"


def run(*arguments: str) -> str:
    """Runs a command of the package and returns what it prints."""
    command = [sys.executable, "-m", "fedjax_algos", *arguments]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def settings_of(task: str, data: str) -> list[str]:
    """The options of a task, without the methods."""
    shared = ["--dataset", f"npz:{data}", "--model", "mlp:hidden=100", "--batch-size", "64"]
    shared += ["--partition", PARTITIONS[task]]
    if task == "clock":
        system = "simulated:speeds=exponential,time_floor=0.2"
        shared += ["--clients", "20", "--local-steps", "10", "--system", system]
        return [*shared, "--seconds", "200", "--evaluations", "20"]
    shared += ["--clients", "100", "--cohort", "0.1", "--local-epochs", "1"]
    return [*shared, "--rounds", "400", "--eval-every", "20"]


def grids_of(methods: dict[str, str]) -> list[str]:
    """The grids of the methods: one of rates and one of the other option for each."""
    grids = []
    for spec, option in methods.items():
        name = spec.partition("@")[0].partition(":")[0]
        rates = SMALL_RATES if name in ADAPTIVE else RATES
        grids += ["--grid", f"{name}:client_learning_rate={rates}", "--grid", f"{name}:{option}"]
    return grids


def main() -> None:
    """Tunes and compares the methods of the tasks, and writes a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="+", choices=PARTITIONS)
    parser.add_argument("--data", default="data/fashion_mnist.npz")
    parser.add_argument("--work", type=Path, default=Path("results/baselines"))
    parser.add_argument("--share", default="")
    options = parser.parse_args()
    share = ["--share", options.share] if options.share else []
    for task in options.tasks:
        methods = ASYNCHRONOUS if task == "clock" else SYNCHRONOUS
        tuned, compared = options.work / f"{task}-tuned", options.work / task
        given = [*settings_of(task, options.data), *grids_of(methods), "--seeds", "1000,"]
        run("tune", *methods, *given, "--out", str(tuned), "--resume", *share)
        if not (tuned / "tuned.toml").exists():  # another share has not ended
            continue
        config = ["--config", str(tuned / "tuned.toml"), "--seeds", "5"]
        run("compare", *config, "--out", str(compared), "--resume", *share)
        if not share:
            table = csv.DictReader(run("table", str(compared), "--format", "csv").splitlines())
            specs = tomllib.loads((tuned / "tuned.toml").read_text())["methods"]
            rows = [{"spec": spec, **row} for spec, row in zip(specs, table, strict=True)]
            write_table(RESULTS / f"baselines_{task}.csv", rows)


if __name__ == "__main__":
    main()
