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
import re
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
PAGE = Path(__file__).parents[1] / "docs" / "baselines.md"
HEADER = "| method | tuned options | final accuracy, % | minus FedAvg | {} | upload, MB | reached |"


def time_of(task: str) -> str:
    """Returns the column of the time to FedAvg's best accuracy."""
    return "simulated_seconds" if task == "clock" else "rounds"


def columns_of(task: str) -> list[str]:
    """Returns the columns of a task's results."""
    qualities = "spec label final final_interval final_difference final_difference_interval"
    costs = "{0} {0}_at_least upload_bytes upload_bytes_at_least".format(time_of(task))
    return f"{qualities} {costs} seeds seeds_reaching seeds_diverged".split()


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


def at_an_end(grid: str, value: str) -> bool:
    """Returns whether a value is the first or the last one of its grid."""
    numbers = [float(each) for each in grid.split(",")]
    return float(value) in (numbers[0], numbers[-1])


def points(row: dict[str, str], name: str, sign: str = "") -> str:
    """Returns a column with its interval, in percent."""
    value, interval = 100 * float(row[name]), 100 * float(row[f"{name}_interval"])
    return f"{value:{sign}.1f} ± {interval:.1f}"


def row_of(row: dict[str, str], option: str, time: str = "rounds") -> str:
    """Returns a row of the page for a method with its other tuned option."""
    name, _, grid = option.partition("=")
    method, _, given = row["spec"].partition("@")[0].partition(":")
    chosen = dict(each.split("=") for each in given.split(","))
    rates = SMALL_RATES if method in ADAPTIVE else RATES
    tuned = {"client_learning_rate": rates, name: grid}
    texts = [
        f"{key}={float(chosen[key]):g}{'*' * at_an_end(tuned[key], chosen[key])}" for key in tuned
    ]
    qualities = [points(row, "final")]
    qualities.append(points(row, "final_difference", "+") if row["final_difference"] else "")
    costs = []
    for column, unit in ((time, 1), ("upload_bytes", 1e6)):
        sign, found = ("", row[column]) if row[column] else ("> ", row[f"{column}_at_least"])
        costs.append(f"{sign}{float(found) / unit:.0f}")
    reached = f"{row['seeds_reaching']}/{row['seeds']}"
    cells = [f"`{row['label']}`", ", ".join(texts), *qualities, *costs, reached]
    return f"| {' | '.join(cells)} |"


def with_tables(page: str) -> str:
    """Returns the page with the tables of the tasks that have results, each after its marker."""
    for task in PARTITIONS:
        path, marker = RESULTS / f"baselines_{task}.csv", f"<!-- {task} -->\n\n"
        if marker not in page or not path.exists():
            continue
        methods = ASYNCHRONOUS if task == "clock" else SYNCHRONOUS
        rows = list(csv.DictReader(path.read_text().splitlines()))
        pairs, time = zip(rows, methods.values(), strict=True), time_of(task)
        table = [HEADER.format(time.replace("_", " ")), "|---|---|---|---|---|---|---|"]
        table += [row_of(*each, time) for each in pairs]
        before, after = page.split(marker)
        rest = re.sub(r"\A(\|.*\n)*", "", after)
        page = before + marker + "\n".join(table) + "\n" + rest
    return page


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
        if (compared / "summary.csv").exists():  # all shares have ended
            table = csv.DictReader(run("table", str(compared), "--format", "csv").splitlines())
            specs = tomllib.loads((tuned / "tuned.toml").read_text())["methods"]
            named = [{"spec": spec, **row} for spec, row in zip(specs, table, strict=True)]
            rows = [{name: row[name] for name in columns_of(task)} for row in named]
            write_table(RESULTS / f"baselines_{task}.csv", rows)
            PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
