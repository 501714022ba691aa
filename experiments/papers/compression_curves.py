"""Codecs on Fashion-MNIST: their rates, and the figure of docs/compression.md.

COMMAND   python experiments/papers/compression_curves.py tune
          python experiments/papers/compression_curves.py collect
          python experiments/papers/compression_curves.py draw docs/compression.png
EXPECTED  experiments/results/compression_rates.csv, compression.csv, and the figure
TIME      25 minutes, 5 minutes and seconds, of one CPU core

The settings are those of the claims in compression/, whose runs are shared: 100 clients (Dirichlet
.3), ten in a round, ten local steps of batch 20, 150 rounds, a perceptron with 80 hidden units. Its
63,610 parameters are nearly a power of two, to which DRIVE pads. `tune` chooses the client rate of
each method from one grid, on examples that clients hold out, with two other seeds and no test data.
For the claims about levels it also chooses the server rate, with one seed.
"""

import argparse
import csv
import subprocess
import sys
from pathlib import Path

from claim_files import running
from claim_files.reading import PAPERS, read_claim

from fedjax_algos.analysis.pictures import plot_metric
from fedjax_algos.runs.results import read_folders

RESULTS = PAPERS.parent / "results"
WORK = Path("results/compression")
ALGORITHMS = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedgbo": "FedGBO"}
CODECS = {
    "": "none",
    "+cast": "cast, bfloat16",
    "+qsgd:levels=7,bucket=512,norm=max": "qsgd, 4 bits",
    "+drive": "drive, 1 bit",
    "+topk:fraction=0.01,feedback=ef": "topk, 1%, ef",
    "+sparse_ternary:fraction=0.01,feedback=ef": "sparse_ternary, 1%, ef",
}
LEVELS = ["", "+klevel:levels=256,scope=leaf", "+klevel:levels=2,scope=leaf", "+drive"]
RATES = "client_learning_rate=0.01,0.032,0.1,0.32,1,3.2"
SERVER_RATES = "server_learning_rate=0.01,0.1,1"
SETTINGS = {
    "--dataset": "npz:data/fashion_mnist.npz",
    "--model": "mlp:hidden=80",
    "--partition": "dirichlet:alpha=0.3",
    "--clients": "100",
    "--cohort": "10",
    "--rounds": "150",
    "--eval-every": "5",
    "--local-steps": "10",
    "--batch-size": "20",
}


def tune() -> None:
    """Tunes all methods, and writes their scores."""
    tasks = {name: [f"{name}{codec}" for codec in CODECS] for name in ALGORITHMS}
    tasks["levels"] = [f"fedavg{codec}" for codec in LEVELS]
    lines = []
    for task, methods in tasks.items():
        out = WORK / task
        options = [part for pair in SETTINGS.items() for part in pair]
        seeds = "1000," if task == "levels" else "1000,1001"
        grids = ["--grid", RATES] + ["--grid", SERVER_RATES] * (task == "levels")
        line = [*methods, *options, *grids, "--seeds", seeds]
        command = [sys.executable, "-m", "fedjax_algos", "tune", *line]
        subprocess.run([*command, "--out", str(out), *["--resume"] * out.exists()], check=True)
        with (out / "trials.csv").open() as file:
            lines += [{"task": task, **line} for line in csv.DictReader(file)]
    with (RESULTS / "compression_rates.csv").open("w", newline="") as file:
        columns = ["task", "method", "setting", "score"]
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(line | {"score": f"{float(line['score']):.4f}"} for line in lines)


def collect() -> None:
    """Writes the curves of the claims that were run; their runs are repeated if they are gone."""
    with (RESULTS / "compression.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["algorithm", "method", "seed", "upload_bytes", "test_accuracy"])
        for algorithm, shown in ALGORITHMS.items():
            claim = read_claim(PAPERS / "compression" / f"topk_{algorithm}.toml")
            if claim.needs:
                continue
            rows = read_folders([str(running.compare(claim.settings))])
            labels = dict.fromkeys(row["method"] for row in rows)
            names = dict(zip(labels, CODECS.values(), strict=True))
            for row in rows:
                values = f"{row['upload_bytes']:.0f}", f"{row['test_accuracy']:.4f}"
                writer.writerow([shown, names[row["method"]], row["seed"], *values])


def draw(path: Path) -> None:
    """Draws the figure from the CSV file: a panel for each algorithm, and FedAvg's for phones."""
    with (RESULTS / "compression.csv").open() as file:
        lines = list(csv.DictReader(file))
    numbers = "seed", "upload_bytes", "test_accuracy"
    rows = [line | {name: float(line[name]) for name in numbers} for line in lines]
    rows = [row for row in rows if row["upload_bytes"]]  # the axis is logarithmic
    options = {"x": "upload_bytes", "log": "x", "y_limits": (0.5, None)}
    plot_metric(rows, path, facet="algorithm", size=(11, 4), **options)
    narrow = [row for row in rows if row["algorithm"] == "FedAvg"]
    name = f"{path.stem}_narrow{path.suffix}"
    plot_metric(narrow, path.with_name(name), title="FedAvg", size=(3.9, 4), **options)


def main() -> None:
    """Does one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=["tune", "collect", "draw"])
    parser.add_argument("path", type=Path, nargs="?", default=Path("compression.png"))
    arguments = parser.parse_args()
    if arguments.step == "draw":
        draw(arguments.path)
    else:
        {"tune": tune, "collect": collect}[arguments.step]()


if __name__ == "__main__":
    main()
