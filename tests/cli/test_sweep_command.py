"""The command that runs a sweep."""

import json

import pytest
from report_helpers import Page, assert_alone

from fedjax_algos.cli import main

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 3 --local-steps 2 --eval-every 2"


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fedporx --grid mu=1", "unknown algorithm 'fedporx'; did you mean fedprox?"),
        ("fedprox --grid wieghting=uniform", "did you mean weighting?"),
        ("fedprox --grid mu=0.1,-1", "fedprox: mu=-1 is out of range; give a number of at least 0"),
        ("fedprox --grid mu=1 --grid mu=2", "mu is in two grids; give all its values in one"),
        ("fedprox --grid mu=1,1.0", "fedprox: mu=1 is twice in the grid; give it once"),
        ("fedprox --grid mu", "grid='mu' has no values; give mu=VALUE,VALUE"),
        ("fedprox:mu=2 --grid mu=1", "mu=2.0 is given beside the grid's values; leave it out"),
        (
            "fedprox:client_learning_rate=1 --grid client_learning_rate=1",
            "client_learning_rate=1.0 is given beside the grid's values",
        ),
        ("fedprox --grid local-steps=5 --local-steps 3", "--local-steps is given beside the grid"),
        ("fedprox --grid local_epochs=1,2 --local-steps 3", "local_epochs=1.0 are both given"),
        ("fedprox --grid mu=1 --seconds 3", "seconds=3 is for the virtual clock"),
        ("fedprox --grid mu=1 --client-state host", "client_state='host' is not for sweeps"),
        ("fedprox --grid mu=1 --examples sharded", "examples='sharded' is not for sweeps"),
        ("fedprox --grid mu=1 --devices 99", "devices=99 is out of range; give 1 to"),
        (
            "fedprox --grid mu=1 --runs-per-device 0",
            "runs_per_device=0 is out of range; give a whole number",
        ),
        ("ghbm --grid beta=0.1", "ghbm needs tau; give ghbm:tau=..."),
    ],
)
def test_a_mistake_is_one_line(refused, arguments, message):
    assert message in refused("sweep", *arguments.split())
