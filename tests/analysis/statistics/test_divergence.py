"""Which models are not finite: one definition for tables and messages."""

import numpy as np
import pytest
from summary_helpers import NAN, rows

from fedjax_algos.analysis.statistics import diverged, finite_quality
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli.method_tables import non_finite_lines


@pytest.mark.parametrize(
    ("row", "finite"),
    [
        ({"test_accuracy": 0.5}, True),
        ({"test_accuracy": 0.5, "test_loss": None}, True),
        ({"test_accuracy": 0.5, "test_loss": 0.1, "train_loss": NAN}, True),  # all left out
        ({"test_accuracy": 0.5, "test_loss": NAN}, False),
        ({"test_accuracy": 0.5, "test_loss": float("inf")}, False),
        ({"test_accuracy": NAN, "test_loss": 0.1}, False),
        ({"test_loss": 0.1}, False),
    ],
)
def test_the_test_accuracy_and_the_test_loss_decide(row, finite):
    assert finite_quality(row) == (0.5 if finite else pytest.approx(NAN, nan_ok=True))


def test_the_last_evaluation_decides():
    assert diverged(np.array([[0.1, NAN], [NAN, 0.1]])).tolist() == [True, False]


def ended(change):
    measured = rows("fedavg", [[0.1, 0.5]] * 2, download_bytes=1)
    measured[-1] |= change
    return measured


@pytest.mark.parametrize(
    ("measured", "number"),
    [
        (ended({"train_loss": NAN, "excluded_updates": 3}), 0),
        (ended({"test_loss": NAN}), 1),
        (ended({"test_accuracy": NAN}), 1),
        (ended({})[:-1], 1),  # its model was not finite in a param that no output needs
        ([row | {"test_loss": NAN if row["round"] == 0 else 0.1} for row in ended({})], 0),
    ],
)
def test_all_count_the_same_runs(measured, number):
    told = [line for line in non_finite_lines(measured) if "not finite at round" in line]
    assert len(told) == number
    assert summarise(measured)[0].seeds_diverged == number
