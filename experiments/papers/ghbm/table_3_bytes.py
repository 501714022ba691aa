"""Bytes, down and up, that six methods send until they reach FedAvg's final accuracy.

COMMAND   python experiments/papers/ghbm/table_3_bytes.py
EXPECTED  the table of the claim, and table_3_bytes.csv
TIME      `minutes` of the claim

As `run.py`, whose measures know the bytes of one direction only; here a row has their sum.
"""

import csv
import subprocess
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import run


def main():
    path = Path(__file__).with_suffix(".toml")
    claim = tomllib.loads(path.read_text())
    folder = run.compare(claim["settings"])
    write(path.with_suffix(".csv"), claim, run.runs_of(folder, claim.get("labels", {})))
    subprocess.run([sys.executable, "-m", "fedjax_algos", "claims", str(path)], check=True)


def write(path, claim, runs):
    for row in (row for rows in runs.values() for row in rows):
        row["bytes"] = row["download_bytes"] + row["upload_bytes"]
    lines = [run.COLUMNS]
    for measure, how in claim["measures"].items():
        values = run.measured(runs, **how)
        lines += [("", method, measure, seed, v) for (method, seed), v in values.items()]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
