"""The clients' own models on the command line: what is measured, written and printed."""

import json
import re

import numpy as np
import pytest
from report_helpers import Page, read_table

import fedjax_algos as fa
from fedjax_algos.analysis.rows import gini
from fedjax_algos.base.files import checked_json, write_json
from fedjax_algos.cli import main
from fedjax_algos.core import Mean
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.results import client_rows, participation_ginis, summarise_client_rows
from fedjax_algos.runs.studies.settings import Settings, split

pytestmark = pytest.mark.usefixtures("quick_pictures")
SHAPE = {"model": "linear", "clients": 12, "cohort": 4, "rounds": 2, "local_steps": 2}
SMALL = "--model linear --clients 12 --cohort 4 --rounds 2 --local-steps 2 --eval-every 1"
HELD_OUT = "--evaluate-clients held_out --held-out 0.3 --evaluate-clients-at evaluations"


@pytest.mark.all
def test_new_clients_have_a_column(command, here):
    """The table has the mean accuracy of the clients that never trained."""
    line = f"compare fedavg {SMALL} --sampler seen:new=5 --evaluate-clients held_out --seeds 2"
    out = command(*line.split(), "--personal-steps", "3")
    rows = read_table(here / "results" / "compare" / "clients.csv")
    new = [float(row["accuracy"]) for row in rows if row["participations"] == "0"]
    assert len(new) >= 10
    heading, cells = out[out.index("method  mean") :].splitlines()[:2]
    assert heading.split()[1:3] == ["mean", "new"]
    assert float(cells.split()[2]) == pytest.approx(100 * np.mean(new), abs=0.06)


@pytest.mark.all
def test_compare_evaluates_each_client(command, here, capsys):
    """The values are those of `make_evaluate_own` on examples that no client trained on."""
    goal = "--seeds 2 --target-metric client_accuracy_worst_decile --target 0.01"
    line = f"compare fedavg ditto {SMALL} {HELD_OUT} {goal}".split()
    main(line)
    out, notes = capsys.readouterr()
    legend = "each client's held-out examples, mean of the seeds: of its own model or"
    for word in ("best: client accuracy worst decile in %", "worst tenth", "pooled", legend):
        assert word in out
    folder = here / "results" / "compare"
    written = read_table(folder / "clients.csv")
    assert len(written) == 2 * 2 * 12
    settings = Settings(**SHAPE, eval_every=1, evaluate_clients="held_out", held_out=0.3)
    dataset = settings.load()
    data, _, test = split(settings, dataset, 1)
    examples = 3 * split(settings, dataset, 0).held_out.counts().sum()
    assert f"clients are evaluated 3 times in a run, with {examples} examples" in notes
    ditto = fa.algorithms.ditto(settings.problem(dataset), settings.local(0.1))
    state, _ = fa.simulate(fa.make_engine(ditto), data, seed=1, **settings.loop())
    metrics = fa.make_evaluate_own(ditto)(state, test)
    own = [row for row in written if (row["method"], row["seed"]) == ("ditto", "1")]
    assert [int(row["examples"]) for row in own] == test.counts().tolist()
    cohorts = Cohorts(data.counts(), settings.local(0.1), seed=1, **settings.cohorts())
    cohorts.dispatches(2)
    assert [int(row["participations"]) for row in own] == cohorts.position().dispatched.tolist()
    last = read_table(folder / "metrics.csv")[-1]
    for name, value in fa.summarise_clients(metrics["accuracy"], "lowest")._asdict().items():
        assert float(last[f"client_accuracy_{name}"]) == pytest.approx(value, rel=1e-6)
    assert float(last["participation_gini"]) == gini(cohorts.position().dispatched)
    for name in ("accuracy", "loss"):
        values = [float(row[name]) for row in own]
        np.testing.assert_allclose(values, metrics[name].value(), rtol=1e-6)
    shown = Page(here / command("report", folder).strip())
    assert "Accuracy and dispatches of each client" in [i["alt"] for i in shown.attributes("img")]
    (folder / "clients.csv").unlink()
    config = checked_json(json.loads((folder / "config.json").read_text()))
    write_json(folder / "config.json", config | {"complete": False})
    command(*line, "--out", folder, "--resume")
    assert read_table(folder / "clients.csv") == written


@pytest.mark.all
def test_on_the_virtual_clock_after_more_steps(command, here):
    line = "run fedbuff --model linear --clients 6 --seconds 40 --evaluations 2 --local-steps 2"
    out = command(*line.split(), "--evaluate-clients", "train", "--personal-steps", 3)
    assert "of the global one, after 3 more local steps." in out
    folder = here / "results" / "fedbuff"
    rows = read_table(folder / "clients.csv")
    assert [int(row["client"]) for row in rows] == list(range(6))
    page = Page(here / command("report", folder).strip())
    (clients,) = page.tables["Each client's own model"]
    assert clients[1] == re.split(r" {2,}", out[out.index("pooled") :].splitlines()[1].strip())
    last = read_table(folder / "metrics.csv")[-1]
    assert np.mean([float(row["loss"]) for row in rows]) < float(last["test_loss"])


def test_the_summary_is_the_mean_of_the_seeds():
    """Clients of 4, 1 and 0 examples on two seeds; the last has no accuracy."""
    counts, rows = np.array([4.0, 1.0, 0.0]), []
    for seed, right in ((0, [2.0, 1.0, 0.0]), (1, [4.0, 0.0, 0.0])):
        metrics = {name: Mean(np.array(right), counts) for name in ("loss", "accuracy")}
        rows += client_rows("m", seed, 5, metrics, np.array([3, 1, 0]) * (seed == 0))
    assert [row["examples"] for row in rows[:3]] == [4, 1, 0]
    assert np.isnan(rows[2]["accuracy"])
    summary = summarise_client_rows(rows)["m"]
    mean, spread, pooled = (0.75 + 0.5) / 2, (0.25 + 0.5) / 2, (3 / 5 + 4 / 5) / 2
    assert summary == pytest.approx((mean, spread, 0.25, pooled, 1, (0.9 + 0.5) / 2))
    assert participation_ginis(rows) == pytest.approx([0.5 / 2])
    assert participation_ginis([{"method": "m", "seed": 0}]) == []  # of an earlier version
