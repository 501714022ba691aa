"""The clients' own models on the command line: what is measured, written and printed."""

import json
import re

import numpy as np
import pytest
from report_helpers import Page, assert_alone

import fedjax_algos as fa
from fedjax_algos.core import Mean
from fedjax_algos.core.files import checked_json, write_json
from fedjax_algos.runs.experiment import split, split_held_out
from fedjax_algos.runs.results import client_rows, summarise_client_rows
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("quick_pictures")
SHAPE = {"model": "linear", "clients": 12, "cohort": 4, "rounds": 2, "local_steps": 2}
SMALL = [part for name, value in SHAPE.items() for part in (f"--{name.replace('_', '-')}", value)]
HELD_OUT = ["--evaluate-clients", "held_out", "--held-out", "0.3"]


@pytest.mark.slow
def test_compare_evaluates_each_client(command, here, read_table):
    """The values are those of `make_evaluate_own` on examples that no client trained on."""
    out = command("compare", "fedavg", "ditto", *SMALL, *HELD_OUT, "--seeds", "2")
    legend = "each client's held-out examples, mean of the seeds: of its own model or"
    for word in ("worst tenth", "pooled", legend):
        assert word in out
    folder = here / "results" / "compare"
    written = read_table(folder / "clients.csv")
    assert len(written) == 2 * 2 * 12
    settings = Settings(**SHAPE, evaluate_clients="held_out", held_out=0.3)
    dataset = settings.load()
    (data, _), test = split(settings, dataset, 1), split_held_out(settings, dataset, 1)
    ditto = fa.algorithms.ditto(settings.problem(dataset), settings.local(0.1))
    state, _ = fa.simulate(fa.make_engine(ditto), data, seed=1, **settings.loop())
    metrics = fa.make_evaluate_own(ditto)(state, test)
    own = [row for row in written if (row["method"], row["seed"]) == ("ditto", "1")]
    assert [int(row["examples"]) for row in own] == test.counts().tolist()
    for name in ("accuracy", "loss"):
        values = [float(row[name]) for row in own]
        expected = np.where(test.counts() > 0, metrics[name].value(), np.nan)
        np.testing.assert_allclose(values, expected, rtol=1e-6)

    (folder / "clients.csv").unlink()
    config = checked_json(json.loads((folder / "config.json").read_text()))
    write_json(folder / "config.json", config | {"complete": False})
    resume = ["--seeds", "2", "--out", folder, "--resume"]
    command("compare", "fedavg", "ditto", *SMALL, *HELD_OUT, *resume)
    assert read_table(folder / "clients.csv") == written


@pytest.mark.slow
def test_on_the_virtual_clock_after_more_steps(command, read_table, here):
    options = ["--model", "linear", "--clients", 6, "--seconds", 40, "--evaluations", 2]
    personal = ["--evaluate-clients", "train", "--personal-steps", 3]
    out = command("run", "fedbuff", *options, "--local-steps", 2, *personal)
    assert "on each client's train examples: of its own model or" in out
    assert "of the global one, after 3 more local steps." in out
    rows = read_table(here / "results" / "fedbuff" / "clients.csv")
    assert [int(row["client"]) for row in rows] == list(range(6))
    page = Page(here / command("report", "results/fedbuff").strip())
    assert_alone(page)
    (clients,) = page.tables["Each client's own model"]
    assert clients[1] == re.split(r" {2,}", out[out.index("pooled") :].splitlines()[1].strip())
    (plans,) = page.tables["Plans, in simulated seconds"]
    assert plans[1][0] == "fedbuff"
    pictures = [image["alt"].partition(":")[0] for image in page.attributes("img")]
    assert "Dispatches of each client over time" in pictures
    assert "Staleness of the updates" in pictures
    (last,) = read_table(here / "results/fedbuff/runs/01-fedbuff/seed-0/metrics.csv")[-1:]
    assert np.mean([float(row["loss"]) for row in rows]) < float(last["test_loss"])


def test_wrong_options(refused):
    for line in ("--evaluate-clients train", "--held-out 0.3", "--personal-steps 2"):
        error = refused("sweep", "fedprox", "--grid", "mu=0.1,1", *SMALL, *line.split())
        assert f"unknown option {line.split()[0]!r}" in error
    error = refused("compare", *SMALL, "--evaluate-clients", "held_out", "--held-out", "1e-6")
    assert "held_out=1e-06 of the examples of each of the 12 clients is less than one" in error


def test_the_summary_is_the_mean_of_the_seeds():
    """Clients of 4, 1 and 0 examples on two seeds; the last has no accuracy."""
    counts, rows = np.array([4.0, 1.0, 0.0]), []
    for seed, right in ((0, [2.0, 1.0, 0.0]), (1, [4.0, 0.0, 0.0])):
        metrics = {name: Mean(np.array(right), counts) for name in ("loss", "accuracy")}
        rows += client_rows("m", seed, 5, metrics)
    assert [row["examples"] for row in rows[:3]] == [4, 1, 0]
    assert np.isnan(rows[2]["accuracy"])
    summary = summarise_client_rows(rows)["m"]
    assert summary == pytest.approx(((0.75 + 0.5) / 2, (0.25 + 0.5) / 2, 0.25, (3 / 5 + 4 / 5) / 2))
