"""The page of baselines has the numbers of the results."""

import importlib.util

import pytest
from helpers import ROOT

spec = importlib.util.spec_from_file_location("baselines", ROOT / "experiments" / "baselines.py")
baselines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(baselines)


def test_the_tables_of_the_page_follow_from_the_results():
    page = baselines.PAGE.read_text()
    assert baselines.with_tables(page) == page
    found = {name for name in baselines.PARTITIONS if f"<!-- {name} -->" in page}
    assert {f"baselines_{name}" for name in found} == {
        path.stem for path in baselines.RESULTS.glob("baselines_*.csv")
    }


@pytest.mark.parametrize("task", baselines.PARTITIONS)
def test_each_method_has_twelve_trials(task):
    methods = baselines.ASYNCHRONOUS if task == "clock" else baselines.SYNCHRONOUS
    grids = baselines.grids_of(methods)[1::2]
    sizes = [len(grid.rpartition("=")[2].split(",")) for grid in grids]
    assert [a * b for a, b in zip(sizes[::2], sizes[1::2], strict=True)] == [12] * len(methods)


def test_a_row_shows_ends_of_grids_and_runs_that_did_not_get_there():
    row = {
        "spec": "fedprox:mu=0.1,client_learning_rate=0.03", "label": "fedprox",
        "final": "0.7794", "final_interval": "0.0182", "final_difference": "-0.0043",
        "final_difference_interval": "0.0117", "rounds": "", "rounds_at_least": "400.0",
        "upload_bytes": "2500000.0", "upload_bytes_at_least": "", "seeds": "5",
        "seeds_reaching": "1",
    }  # fmt: skip
    options = "client_learning_rate=0.03, mu=0.1*"
    cells = f"`fedprox` | {options} | 77.9 ± 1.8 | -0.4 ± 1.2 | > 400 | 2 | 1/5"
    assert baselines.row_of(row, "mu=0.001,0.01,0.1") == f"| {cells} |"
