"""Counts the bytes that a round of six methods sends, as a multiple of FedAvg's.

COMMAND   python experiments/papers/claims.py run ghbm/table_3_round
EXPECTED  1, 2, 1, 1.5, 1, and 2.5 for MimeMom, or 3 if its clients fetch the model in both phases
TIME      half a minute

Bytes do not depend on the data, so the data are scikit-learn's digits.
"""

import tempfile
from pathlib import Path

from fedjax_algos.cli import main as program
from fedjax_algos.runs.results import read_folders

METHODS = ["fedavg", "scaffold", "fedavgm", "mimemom", "ghbm:tau=10", "fedhbm"]
ROUNDS, COHORT = 20, 10
MEASURE = "bytes of a round / FedAvg's"


def rows(run):
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "overheads"))
        arguments = ["compare", *METHODS, "--rounds", str(ROUNDS), "--seeds", "1", "--out", out]
        try:
            program([*arguments, "--cohort", str(COHORT)])
        except SystemExit as end:
            if end.code:
                raise
        last = {row["method"]: row for row in read_folders([out])}
    sent = {name: (row["download_bytes"], row["upload_bytes"]) for name, row in last.items()}
    model = sent["fedavg"][0]
    overheads = {name: sum(each) / sum(sent["fedavg"]) for name, each in sent.items()}
    if run.row.of:  # the clients of MimeMom fetch the model twice
        twice = (sum(sent["mimemom"]) + model) / sum(sent["fedavg"])
        overheads = {"fedavg": 1.0, "mimemom": twice}
    return [("", method, MEASURE, 0, f"{value:.6g}") for method, value in overheads.items()]
