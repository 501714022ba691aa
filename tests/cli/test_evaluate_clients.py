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
def test_on_the_virtual_clock_after_more_steps(command, read_table, here):
    line = "run fedbuff --model linear --clients 6 --seconds 40 --evaluations 2 --local-steps 2"
    out = command(*line.split(), "--evaluate-clients", "train", "--personal-steps", 3)
    assert "on each client's train examples: of its own model or" in out
    assert "of the global one, after 3 more local steps." in out
    folder = here / "results" / "fedbuff"
    rows = read_table(folder / "clients.csv")
    assert [int(row["client"]) for row in rows] == list(range(6))
    page = Page(here / command("report", folder).strip())
    assert_alone(page)
    (clients,) = page.tables["Each client's own model"]
    assert clients[1] == re.split(r" {2,}", out[out.index("pooled") :].splitlines()[1].strip())
    (plans,) = page.tables["Plans, in simulated seconds"]
    assert plans[1][0] == "fedbuff"
    last = read_table(folder / "metrics.csv")[-1]
    assert np.mean([float(row["loss"]) for row in rows]) < float(last["test_loss"])


WRONG = """
sweep fedprox --grid mu=1 --evaluate-clients train | unknown option '--evaluate-clients'
sweep fedprox --grid mu=1 --held-out 0.3 | unknown option '--held-out'
sweep fedprox --grid mu=1 --personal-steps 2 | unknown option '--personal-steps'
compare --evaluate-clients-at evaluations | has no examples; give evaluate_clients
compare --target-metric client_accuracy_worst_decile | is not measured; give evaluate_clients
compare AT --target-metric client_accuracy_worst | is unknown; choose client
compare AT --target-metric client_accuracy_standard_deviation | is lower for better models
run fedbuff --seconds 9 AT | evaluate_clients_at='evaluations' is not for the virtual clock
compare --evaluate-clients held_out --held-out 1e-6 | held_out=1e-06 of the examples
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_wrong_options(refused, case):
    line, message = case.split(" | ")
    at_all = f"{' '.join(HELD_OUT)} --evaluate-clients-at evaluations"
    assert message in refused(*line.replace("AT", at_all).split())


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
