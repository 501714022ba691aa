"""The command that runs a sweep."""

import json

import pytest
from report_helpers import Page, assert_alone

from fedjax_algos.cli import main

pytestmark = pytest.mark.usefixtures("quick_pictures")
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 3 --local-steps 2 --eval-every 2"


@pytest.mark.all
@pytest.mark.filterwarnings("error")
def test_the_command_writes_a_results_folder_best_setting_first(capsys, here, read_table, refused):
    command = ["sweep", "ghbm", "--grid", "tau=1,2", "--grid", "client_learning_rate=1e-9,0.3,0.1"]
    command += [*OPTIONS.split(), "--seeds", "2", "--devices", "3", "--out", "here"]
    main(command)
    output = capsys.readouterr()
    lines = [line for line in output.out.splitlines() if line.startswith("GHBM tau=")]
    assert len(lines) == 6
    assert lines[-1].split()[2] == "client_learning_rate=1e-09"
    assert "6 runs in a program, 6 in a call, 1 at once on each of 3 devices" in output.err
    summary, metrics = (
        read_table(here / "here" / f"{name}.csv") for name in ("summary", "metrics")
    )
    assert "to choose it by test data. `fedjax-algos tune` chooses on held-out" in output.out
    finals = [float(line["final"]) for line in summary]
    assert finals == sorted(finals, reverse=True)
    assert finals[0] > finals[-1]
    labels = [line["label"].replace("ghbm", "GHBM") for line in summary]
    assert [line.split("  ")[0] for line in lines] == labels
    assert len(metrics) == 6 * 2 * 3
    assert metrics[0]["method"] == summary[0]["label"]
    config = json.loads((here / "here" / "config.json").read_text())
    assert config["grid"] == {"tau": ["1", "2"], "client_learning_rate": ["1e-9", "0.3", "0.1"]}
    assert len(config["sweep_notes"]) == 2
    assert config["methods"]["ghbm tau=2 client_learning_rate=0.3"]["tau"] == 2
    assert (here / "here" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    main(["report", "here"])
    page = Page(here / "here" / "report.html")
    assert_alone(page)
    assert "Sweep of 6 settings on digits" in page.text
    assert [row[0] for row in page.tables["Methods"][1][1:]] == labels
    capsys.readouterr()
    assert "out='here' is not empty; name another folder or remove it" in refused(*command)
