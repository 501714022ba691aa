"""The Python on the pages of docs/ that have no test of their own, and a list of all that do."""

import itertools
import re

import jax
import numpy as np
import pytest
from helpers import (
    FENCED,
    PAGES,
    ROOT,
    dispatches_of,
    one_round,
    programs,
    run,
    small_network,
    written_files,
)

import fedjax_algos as fa
from fedjax_algos.cli import main

INCLUDED = ("CONTRIBUTING.md", "benchmarks/README.md", "experiments/papers/README.md")
OF_SITE = [page for page in PAGES if page.startswith("docs/") or page in INCLUDED]


def test_every_program_on_a_page_is_run_by_a_test():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {str(page.relative_to(ROOT)) for page in pages if programs(page)}
    assert found == {
        "CONTRIBUTING.md",  # test_readme.py
        "README.md",  # test_readme.py
        "docs/coming_from/fedml.md",  # test_coming_from_page.py, as are the next four
        "docs/coming_from/flower.md",
        "docs/coming_from/google_fedjax.md",
        "docs/coming_from/pfl_research.md",
        "docs/coming_from/tff.md",
        "docs/choosing_clients.md",
        "docs/command_line.md",  # cli/test_resume.py and cli/test_track.py
        "docs/compression.md",
        "docs/data_and_models.md",
        "docs/faq.md",  # test_coming_from_page.py
        "docs/index.md",
        "docs/large_populations.md",
        "docs/own_algorithms.md",  # test_own_algorithms_page.py
        "docs/recipes.md",  # test_recipes.py
        "docs/results.md",
        "docs/transformations.md",
    }


@pytest.mark.parametrize("page", OF_SITE)
def test_code_is_as_wide_as_the_column(page):
    """100 characters fit at 1280 px (docs/_static/site.css); commands are broken before that."""
    text = (ROOT / page).read_text()
    for block in FENCED.finditer(text):
        language, lines = block[2].strip(), block[3].splitlines()
        if re.search("python|yaml|text", language):
            assert max(map(len, lines), default=0) <= 100
        if language == "sh":
            words = [line.removesuffix(" \\").split() for line in lines]
            long = [w for line, w in zip(lines, words, strict=True) if len(line) > 88]
            assert [w for w in long if len(w) > 2] == []


@pytest.mark.parametrize("page", OF_SITE)
def test_headings_are_in_order(page):
    """One title, unless the page only includes another one, and no level is left out."""
    outside = FENCED.sub("", (ROOT / page).read_text())
    levels = [len(marks) for marks in re.findall(r"^(#+) ", outside, re.MULTILINE)]
    assert levels.count(1) == bool(levels)
    assert all(after <= before + 1 for before, after in itertools.pairwise([0, *levels]))


@pytest.mark.all
def test_the_first_page(capsys):
    """docs/index.md: GHBM learns from clients with one class each."""
    (program,) = programs("docs/index.md")
    exec(program, {})
    assert 0.8 < float(capsys.readouterr().out) <= 1


def test_a_model_in_a_file(here):
    """docs/data_and_models.md, from the command line: its layers have 64, 32 and 10 units."""
    (here / "my_model.py").write_text(programs("docs/data_and_models.md")[0])
    problem = fa.models.models.make("my_model.py:two_layers:width=32", (64,), 10)
    model = jax.eval_shape(problem.init, jax.random.key(0))
    assert fa.core.trees.tree_bytes(model.params) == 4 * (64 * 32 + 32 + 32 * 10 + 10)


@pytest.mark.parametrize("feedback", ["none", "ef"])
def test_compression(feedback, here):
    """docs/compression.md, and docs/tutorials/own_codec.md, whose 20 numbers of 8 bits are sent."""
    (program,) = programs("docs/compression.md")
    exec(program, names := {})
    assert names["algorithm"].local.steps == 10
    for name, text in written_files("docs/tutorials/own_codec.md").items():
        (here / name).write_text(text)
    toy, sets = small_network(), [(0, 1), (3, 0)]
    bare = fa.algorithms.fedavg(toy.problem, fa.Local(batch_size=4, learning_rate=0.1, steps=2))
    coded = fa.wrappers.wrap(bare, f"my_codec.py:rounded:feedback={feedback}")
    engine = fa.make_engine(coded)
    state, dispatches = (
        engine.init(0, fa.Population(4, 2, 17)),
        dispatches_of(toy.data, bare.local, sets),
    )
    assert engine.transfer(state, toy.data, one_round(dispatches, 0)).upload == 20 + 4
    ends = [run(each, toy.data, sets)[-1]["out"] for each in (bare, coded)]
    assert 0 < np.abs(ends[0] - ends[1]).max() < 1e-2


def test_a_sampler(here):
    """docs/choosing_clients.md: of eight clients the four largest are drawn, and slots are left."""
    (program,) = programs("docs/choosing_clients.md")
    (here / "my_file.py").write_text(program)
    sampler = fa.participation.samplers.make("my_file.py:largest_first:share=0.5")
    counts, local = np.array([5, 2, 8, 3, 9, 1, 4, 40]), fa.Local(4, 0.1, steps=1)
    cohorts = fa.participation.Cohorts(counts, local, cohort_size=5, seed=0, sampler=sampler)
    assert (np.sort(cohorts.dispatches(9).client) == [0, 2, 4, 7, 8]).all()


def test_a_metric(capsys):
    """docs/data_and_models.md: it equals balanced accuracy; all test examples have a class."""
    _, program, _ = programs("docs/data_and_models.md")
    exec(program, names := {})
    counts = np.bincount(names["dataset"].test["y"], minlength=10)
    assert np.fromstring(capsys.readouterr().out.strip("[]\n"), sep=" ").tolist() == counts.tolist()


def test_an_adapter(capsys):
    """docs/data_and_models.md: what is uploaded is the adapter, and it learns."""
    *_, program = programs("docs/data_and_models.md")
    exec(program, names := {})
    start, end = names["history"][0], names["history"][-1]
    assert float(capsys.readouterr().out) == end["upload_bytes"] == 20 * 5 * 4 * (64 * 2 + 2 * 10)
    assert end["test_accuracy"] > start["test_accuracy"] + 0.2


@pytest.mark.all
def test_a_saved_model(here, capsys):
    """docs/results.md: it is read without the package, and with `load_model`."""
    given = ["--rounds", "1", "--eval-every", "1", "--clients", "20"]
    main(["compare", "fedavg", *given, "--out", "results/compare"])
    capsys.readouterr()
    program, loading, _ = programs("docs/results.md")
    exec(program, names := {})
    shapes = capsys.readouterr().out
    assert "(64, 64)" in shapes
    assert isinstance(names["model"], np.lib.npyio.NpzFile)
    exec(loading, names)
    content = (here / "results/compare/runs/01-fedavg/seed-0/model.npz").read_bytes()
    assert (here / "fedavg.npz").read_bytes() == content


def test_the_costs_of_a_client(capsys):
    """docs/results.md: FedHBM's clients download the model and one number, and keep a model."""
    *_, program = programs("docs/results.md")
    exec(program, names := {})
    model = 4 * (64 * 10 + 10)
    sent = names["engine"].transfer(names["state"], names["data"], names["dispatches"])
    assert sent[:2] == (model + 4, model)
    memory = names["fa"].count_memory(names["algorithm"], names["state"], names["data"])
    assert memory.between_rounds == model + 1
    assert capsys.readouterr().out == f"{sent}\n{memory}\n"


@pytest.mark.all
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


@pytest.mark.all
def test_transformations(capsys):
    """docs/transformations.md, from top to bottom."""
    names = {}
    for program in programs("docs/transformations.md"):
        exec(program, names)
    assert capsys.readouterr().out.count("\n") >= 3
    engine = fa.make_engine(names["round_fn"].algorithm)
    settings = {"cohort_size": 5, "rounds": 10, "seed": 1, "test": names["examples"]}
    _, history = fa.simulate(engine, names["data"], **settings)
    np.testing.assert_allclose(names["losses"][1], history[-1]["test_loss"], rtol=1e-5)
    assert names["losses"].shape == (64,)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(names["gradient"]))
    assert (np.asarray(names["gradient"][2]) != 0).any()


def test_the_page_of_the_code_names_what_exists():
    """Every file and folder, and every function and class in one of the package's files."""
    page, package = ROOT / "docs" / "the_code_in_ten_minutes.md", ROOT / "fedjax_algos"
    named = re.findall(r"`([\w/.]+)`", page.read_text())
    paths = {name for name in named if "/" in name} - {"fedjax_algos/"}
    assert {path for path in paths if not (package / path).exists()} == set()
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))
    words = {name.split(".")[-1] for name in named if "/" not in name} - {"csv"}
    unknown = {w for w in words if not re.search(rf"(def|class) {w}\b|^    {w}: ", text, re.M)}
    assert unknown == set()
