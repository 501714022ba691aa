"""The Python on the pages of docs/ that have no file of tests of their own, and a loop of sh."""

import csv
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import PAGES, dispatches_of, one_round, programs, run, small_network, written_files
from page_helpers import blocks, commands, executed

import fedjax_algos as fa
from fedjax_algos.cli import main
from fedjax_algos.runs.studies.folder_content import read_configuration

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("here")]
PEERS = [page for page in PAGES if page.startswith("docs/coming_from/") and "index" not in page]


def test_the_first_page(capsys):
    """docs/index.md: GHBM learns from clients with one class each."""
    executed("docs/index.md")
    assert 0.8 < float(capsys.readouterr().out) <= 1


@pytest.mark.parametrize("page", PEERS)
def test_the_experiment_of_another_library_learns(page, capsys):
    """FedAvg on the digits, as on all pages, and what a page asserts; a command is the same run."""
    names = executed(page, 0)
    measured = float(capsys.readouterr().out.split()[-1])
    assert 0.5 < measured < 0.95
    assert names["partition"].num_clients == 50
    assert names["local"][:4] == (10, 0.1, None, 1)
    if "history" in names:
        assert measured == names["history"][-1]["test_accuracy"]
        assert names["history"][-1]["round"] == 20
    for program in programs(page)[1:]:
        exec(program, names)
    for program, *arguments in commands(page):  # docs/coming_from/fedml.md has one
        assert program == "fedjax-algos"
        main([*arguments, "--out", "results"])
        *_, last = csv.DictReader(Path("results/metrics.csv").read_text().splitlines())
        accuracy = names["history"][-1]["test_accuracy"]
        assert float(last["test_accuracy"]) == pytest.approx(accuracy, abs=1e-6)


def test_the_questions(capsys):
    """docs/faq.md, from top to bottom, with what it asserts."""
    names = {}
    for program in programs("docs/faq.md"):
        exec(program, names)
        assert all(np.isfinite(row.get("test_loss", 0)) for row in names.get("history", []))
    assert capsys.readouterr().out.startswith("FederatedData(clients=20, examples=200")
    assert names["accuracies"].value().shape == (50,)
    assert len(names["chosen"]) == 5
    measured = names["measure"](names["state"].model, names["poisoned"])
    assert measured["accuracy"].weight.sum() == 1433


def test_a_model_in_a_file(here):
    """docs/data_and_models.md, from the command line: its layers have 64, 32 and 10 units."""
    (here / "my_model.py").write_text(programs("docs/data_and_models.md")[0])
    problem = fa.models.models.make("my_model.py:two_layers:width=32", (64,), 10)
    model = jax.eval_shape(problem.init, jax.random.key(0))
    assert fa.core.trees.tree_bytes(model.params) == 4 * (64 * 32 + 32 + 32 * 10 + 10)


def test_a_metric_and_an_adapter(capsys):
    """docs/data_and_models.md: the metric is balanced accuracy; only the adapter is uploaded."""
    names = executed("docs/data_and_models.md", 1)
    counts = np.bincount(names["dataset"].test["y"], minlength=10)
    assert np.fromstring(capsys.readouterr().out.strip("[]\n"), sep=" ").tolist() == counts.tolist()
    start, *_, end = executed("docs/data_and_models.md", 2)["history"]
    assert float(capsys.readouterr().out) == end["upload_bytes"] == 20 * 5 * 4 * (64 * 2 + 2 * 10)
    assert end["test_accuracy"] > start["test_accuracy"] + 0.2


@pytest.mark.parametrize("feedback", ["none", "ef"])
def test_compression(feedback, here):
    """docs/compression.md, and docs/tutorials/own_codec.md, whose 20 numbers of 8 bits are sent."""
    assert executed("docs/compression.md")["algorithm"].local.steps == 10
    for name, text in written_files("docs/tutorials/own_codec.md").items():
        (here / name).write_text(text)
    toy, sets = small_network(), [(0, 1), (3, 0)]
    bare = fa.algorithms.fedavg(toy.problem, fa.Local(batch_size=4, learning_rate=0.1, steps=2))
    coded = fa.wrappers.wrap(bare, f"my_codec.py:rounded:feedback={feedback}")
    engine = fa.make_engine(coded)
    first = one_round(dispatches_of(toy.data, bare.local, sets), 0)
    state = engine.init(0, fa.Population(4, 2, 17))
    assert engine.transfer(state, toy.data, first).upload == 20 + 4
    ends = [run(each, toy.data, sets)[-1]["out"] for each in (bare, coded)]
    assert 0 < np.abs(ends[0] - ends[1]).max() < 1e-2


def test_epsilon(capsys):
    """docs/privacy.md: a run of ten rounds, with the epsilon of Poisson cohorts in 150 slots."""
    names = executed("docs/privacy.md")
    rows = names["rows"]
    assert 0.5 < float(capsys.readouterr().out) == rows[-1]["epsilon"] < 1
    assert rows[-1]["signal_to_noise"] > 0
    assert names["local"].example_noise.noise == 1.1


def test_a_sampler(here):
    """docs/choosing_clients.md: of eight clients the four largest are drawn, and slots are left."""
    (program,) = programs("docs/choosing_clients.md")
    (here / "my_file.py").write_text(program)
    sampler = fa.participation.samplers.make("my_file.py:largest_first:share=0.5")
    counts, local = np.array([5, 2, 8, 3, 9, 1, 4, 40]), fa.Local(4, 0.1, steps=1)
    cohorts = fa.participation.Cohorts(counts, local, cohort_size=5, seed=0, sampler=sampler)
    assert (np.sort(cohorts.dispatches(9).client) == [0, 2, 4, 7, 8]).all()


def test_a_saved_model(here, capsys):
    """docs/results.md: it is read without the package, and with `load_model`."""
    given = ["--rounds", "1", "--eval-every", "1", "--clients", "20"]
    main(["compare", "fedavg", *given, "--out", "results/compare"])
    names = executed("docs/results.md", 0)
    assert "(64, 64)" in capsys.readouterr().out
    assert isinstance(names["model"], np.lib.npyio.NpzFile)
    executed("docs/results.md", 1, names=names)
    content = (here / "results/compare/runs/01-fedavg/seed-0/model.npz").read_bytes()
    assert (here / "fedavg.npz").read_bytes() == content


def test_the_costs_of_a_client(capsys):
    """docs/results.md: FedHBM's clients download the model and one number, and keep a model."""
    names = executed("docs/results.md", 2)
    model = 4 * (64 * 10 + 10)
    sent = names["engine"].transfer(names["state"], names["data"], names["dispatches"])
    assert sent[:2] == (model + 4, model)
    memory = fa.count_memory(names["algorithm"], names["state"], names["data"])
    assert memory.between_rounds == model + 1
    assert capsys.readouterr().out == f"{sent}\n{memory}\n"


def test_large_populations(here):
    """docs/large_populations.md: what is packed is opened, and sources of one's own are trained."""
    names, losses = {}, []
    for program in programs("docs/large_populations.md"):
        exec(program, names)
        losses.append(names["history"][-1]["train_loss"])
    assert losses[1] < 1.5  # three classes; the others have ten
    assert max(losses) < 2
    assert 0 < len(names["state"].clients) <= 40
    assert len(list((here / "rows").glob("*.rows"))) == 1
    assert names["data"].num_clients == 40
    assert len(names["test"]["y"]) == 200


def test_transformations(capsys):
    """docs/transformations.md, from top to bottom."""
    names = executed("docs/transformations.md")
    assert capsys.readouterr().out.count("\n") >= 3
    engine = fa.make_engine(names["round_fn"].algorithm)
    settings = {"cohort_size": 5, "rounds": 10, "seed": 1, "test": names["examples"]}
    _, history = fa.simulate(engine, names["data"], **settings)
    np.testing.assert_allclose(names["losses"][1], history[-1]["test_loss"], rtol=1e-5)
    assert names["losses"].shape == (64,)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(names["gradient"]))
    assert (np.asarray(names["gradient"][2]) != 0).any()


def test_the_loop_over_hosts():
    """docs/many_runs.md, in small; `ssh HOST COMMAND` is a process of this machine."""
    script = blocks("docs/many_runs.md", "text")[0].replace(".venv/bin/", "")
    small = "--seeds 2 --model linear --rounds 2 --eval-every 1 --clients 6 --cohort 2 --devices 1"
    assert "--seeds 10" in script
    own = f'fedjax-algos() {{ {sys.executable} -m fedjax_algos "$@"; }}\n'
    own += 'ssh() { shift; eval "$*"; }\n'
    line = ["bash", "-c", own + script.replace("--seeds 10", small)]
    subprocess.run(line, check=True, capture_output=True)
    assert read_configuration(Path("results/study"))["complete"]
    assert len(list(Path().glob("part-?.log"))) == 4
