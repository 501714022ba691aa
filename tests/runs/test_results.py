"""Results folders."""

import math

from summary_helpers import NAN, rows

from fedjax_algos.analysis.summary import summarise
from fedjax_algos.runs import results


def test_values_that_are_not_finite_survive_the_file(tmp_path):
    measured = rows("first", [[0.1, NAN]], flops=1e9) + rows("other", [[0.1, 0.2]])
    results.write_table(tmp_path / "metrics.csv", measured)
    again = results.read_metrics(tmp_path)
    assert math.isnan(again[1]["test_accuracy"])
    assert summarise(again)[0].seeds_diverged == 1
    assert summarise(again)[1].flops is None
