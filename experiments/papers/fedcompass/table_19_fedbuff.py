"""Table 19: FedCompass with large Qmin / Qmax beside FedBuff.

COMMAND   python experiments/papers/fedcompass/table_19_fedbuff.py
EXPECTED  FedCompass is faster up to Qmin / Qmax = .4, and not with .8
TIME      a second; it reads the values of table_19 and table_1_asynchronous
"""

import csv
from pathlib import Path

from fedjax_algos.analysis.claims import write_measured

FOLDER = Path(__file__).parent


def rows_of(claim, case):
    """The rows of one case of a claim."""
    with (FOLDER / f"{claim}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["case"] == case]


def main():
    rows = rows_of("table_19", "")
    others = rows_of("table_1_asynchronous", "class, m = 5, normal")
    rows += [row for row in others if row["method"] == "fedbuff"]
    values = [("", row["method"], row["measure"], row["seed"], row["value"]) for row in rows]
    for _, method, _, seed, value in values:
        print(method, seed, value)
    write_measured(Path(__file__).with_suffix(".csv"), values)


if __name__ == "__main__":
    main()
