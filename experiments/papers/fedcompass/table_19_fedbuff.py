"""Table 19: FedCompass with large Qmin / Qmax beside FedBuff.

COMMAND   python experiments/papers/fedcompass/table_19_fedbuff.py
EXPECTED  FedCompass is faster up to Qmin / Qmax = .4, and not with .8
TIME      a second; it reads the values of table_19 and table_1_asynchronous
"""

import csv
from pathlib import Path

FOLDER = Path(__file__).parent


def rows_of(claim, case):
    """The rows of one case of a claim."""
    with (FOLDER / f"{claim}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["case"] == case]


def main():
    rows = rows_of("table_19", "")
    others = rows_of("table_1_asynchronous", "class, m = 5, normal")
    rows += [row for row in others if row["method"] == "fedbuff"]
    with Path(__file__).with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "method", "measure", "seed", "value"])
        for row in rows:
            print(row["method"], row["seed"], row["value"])
            writer.writerow(["", row["method"], row["measure"], row["seed"], row["value"]])


if __name__ == "__main__":
    main()
