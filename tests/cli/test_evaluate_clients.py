"""The clients' own models on the command line: what is measured, written and printed."""

import json
import re

import numpy as np
import pytest
from report_helpers import Page, assert_alone

import fedjax_algos as fa
from fedjax_algos.analysis.statistics import gini
from fedjax_algos.cli import main
from fedjax_algos.core import Mean
from fedjax_algos.core.files import checked_json, write_json
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.experiment import split, split_held_out
from fedjax_algos.runs.results import client_rows, participation_ginis, summarise_client_rows
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("quick_pictures")
SHAPE = {"model": "linear", "clients": 12, "cohort": 4, "rounds": 2, "local_steps": 2}
SMALL = [part for name, value in SHAPE.items() for part in (f"--{name.replace('_', '-')}", value)]
HELD_OUT = ["--evaluate-clients", "held_out", "--held-out", "0.3"]


@pytest.mark.all
def test_compare_evaluates_each_client(command, here, read_table, capsys):
    """The values are those of `make_evaluate_own` on examples that no client trained on."""
    at_all = ["--eval-every", 1, "--evaluate-clients-at", "evaluations"]
    goal = ["--target-metric", "client_accuracy_worst_decile", "--target", 0.01]
    options = [*SMALL, *HELD_OUT, *at_all, *goal]
    main(["compare", "fedavg", "ditto", *map(str, options), "--seeds", "2"])
    out, notes = capsys.readouterr()
    (evaluated,) = re.findall(r"clients are evaluated 3 times in a run, with (\d+) exa", notes)
    assert "final, best: client accuracy worst decile in %" in out
    legend = "each client's held-out examples, mean of the seeds: of its own model or"
    for word in ("worst tenth", "pooled", legend):
        assert word in out
    folder = here / "results" / "compare"
    written = read_table(folder / "clients.csv")
    assert len(written) == 2 * 2 * 12
    settings = Settings(**SHAPE, eval_every=1, evaluate_clients="held_out", held_out=0.3)
    dataset = settings.load()
    (data, _), test = split(settings, dataset, 1), split_held_out(settings, dataset, 1)
    ditto = fa.algorithms.ditto(settings.problem(dataset), settings.local(0.1))
    state, _ = fa.simulate(fa.make_engine(ditto), data, seed=1, **settings.loop())
    metrics = fa.make_evaluate_own(ditto)(state, test)
    own = [row for row in written if (row["method"], row["seed"]) == ("ditto", "1")]
    assert [int(row["examples"]) for row in own] == test.counts().tolist()
    assert int(evaluated) == 3 * split_held_out(settings, dataset, 0).counts().sum()
    cohorts = Cohorts(data.counts(), settings.local(0.1), seed=1, **settings.cohorts())
    cohorts.dispatches(2)
    assert [int(row["participations"]) for row in own] == cohorts.dispatched.tolist()
    *_, last = [row for row in read_table(folder / "metrics.csv") if row["seed"] == "1"]
    summary = fa.summarise_clients(metrics["accuracy"], "lowest")._asdict()
    for name, value in summary.items():
        assert float(last[f"client_accuracy_{name}"]) == pytest.approx(value, rel=1e-6)
    assert float(last["participation_gini"]) == gini(cohorts.dispatched)
    shown = Page(here / command("report", folder).strip())
    assert "Accuracy and dispatches of each client" in [i["alt"] for i in shown.attributes("img")]
    for name in ("accuracy", "loss"):
        values = [float(row[name]) for row in own]
        expected = np.where(test.counts() > 0, metrics[name].value(), np.nan)
        np.testing.assert_allclose(values, expected, rtol=1e-6)

    (folder / "clients.csv").unlink()
    config = checked_json(json.loads((folder / "config.json").read_text()))
    write_json(folder / "config.json", config | {"complete": False})
    resume = ["--seeds", "2", "--out", folder, "--resume"]
    command("compare", "fedavg", "ditto", *options, *resume)
    assert read_table(folder / "clients.csv") == written


@pytest.mark.all
def test_participations_by_labels_and_among_candidates(command, here, read_table):
    """A sampler that reads labels draws them again; who is chosen is not known on the host."""
    sampler = ["--sampler", "available:mode=label_max,beta=0.5", "--evaluate-clients", "train"]
    methods = "fedavg", "fedavg+power_of_choice"
    out = command("compare", *methods, *SMALL, "--seeds", 1, *sampler)
    rows = read_table(here / "results" / "compare" / "clients.csv")
    drawn, chosen = (
        [row["participations"] for row in rows if row["method"] == name] for name in methods
    )
    assert 0 < sum(map(int, drawn)) <= 8
    assert set(chosen) == {"nan"}
    assert re.search(r"fedavg\+power_of_choice .* -\n", out[out.index("Jain") :])


@pytest.mark.all
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
    at_all, own = ["--evaluate-clients-at", "evaluations"], "client_accuracy_worst_decile"
    assert "has no examples; give evaluate_clients" in refused("compare", *SMALL, *at_all)
    error = refused("compare", *SMALL, "--target-metric", own)
    assert "is not measured; give evaluate_clients as well, and evaluate_clients_at" in error
    for name in ("client_accuracy_worst", "client_accuracy_standard_deviation"):
        error = refused("compare", *SMALL, *HELD_OUT, *at_all, "--target-metric", name)
        assert re.search("is unknown; choose client|is lower for better models", error)
    error = refused("run", "fedbuff", "--seconds", 9, *HELD_OUT, *at_all)
    assert "evaluate_clients_at='evaluations' is not for the virtual clock" in error
    assert "is not measured" in refused("tune", "fedavg", "--grid", "q=1", "--target-metric", own)
    error = refused("compare", *SMALL, "--evaluate-clients", "held_out", "--held-out", "1e-6")
    assert "held_out=1e-06 of the examples of each of the 12 clients is less than one" in error


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
