"""The pages on your own parts: their code runs, and algorithms are those of the package."""

import json
from pathlib import Path

import chex
import numpy as np
import optax
import pytest
from helpers import programs, run, small_network
from page_helpers import commands

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli import main

PAGE, EXTEND = "docs/own_algorithms.md", "docs/extend.md"
PROGRAMS = programs(PAGE) + programs("docs/own_loops.md") + programs("docs/own_wrappers.md")
FILES = {text.split("\n")[0][2:]: text for text in PROGRAMS if text.startswith("# ")}

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("own_files")]


@pytest.fixture
def own_files(here):
    """The page's files in the working folder."""
    for name, text in FILES.items():
        (here / name).write_text(text)


def test_the_loops_run_and_what_they_assert_holds(capsys):
    names, loops = {"fa": fa}, [text for text in PROGRAMS if text not in FILES.values()]
    assert len(loops) == 8
    for text in loops:
        exec(text, names)
    assert capsys.readouterr().out.startswith("0 ")
    toy = small_network()
    bare = algorithms["scaffold"](toy.problem, LOCAL)
    found = [
        run(each, toy.data, SETS)
        for each in (bare, names["mean"](names["counted"](names["clip"](bare, norm=9))))
    ]
    chex.assert_trees_all_close(*found, rtol=1e-5)


def test_the_command_compares_the_files():
    ((program, *arguments),) = commands(PAGE)
    assert program == "fedjax-algos"
    small = "--model linear --clients 6 --cohort 3 --rounds 2 --eval-every 2 --local-steps 2"
    main([*arguments, *small.split(), "--seeds", "1"])
    folder = Path("results/compare")
    own = {name.removesuffix(".py") for name in FILES} - {"robust"}
    methods = json.loads((folder / "config.json").read_text())["methods"]
    assert set(methods) == {"fedavg", "fedavg+middle", *own}
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    columns = header.split(",")
    method, loss, upload = map(columns.index, ("method", "test_loss", "upload_bytes"))
    last = {row.split(",")[method]: row.split(",") for row in rows}
    wrapped = last.pop("fedavg+middle")
    assert float(wrapped[loss]) == pytest.approx(float(last["median"][loss]))
    assert len({row[loss] for row in last.values()}) == 4  # ditto's global model is fedavg's
    assert last["ditto"][loss] == last["fedavg"][loss]
    assert float(last["topk"][upload]) == 2 * 3 * 50 * (4 + 4)  # rounds, cohort, k, value and place


def test_one_of_each_part(here, capsys):
    """docs/extend.md: every part of its file takes part in one of its two commands."""
    (here / "extend.py").write_text(programs(EXTEND)[0])
    small = {"--rounds": "2", "--eval-every": "2", "--cohort": "4", "--clients": "100"}
    for (_, *arguments), folder in zip(commands(EXTEND), ("rounds", "clock"), strict=True):
        options = small if folder == "rounds" else {"--evaluations": "2"}
        given = [text for pair in options.items() for text in pair]
        main([*arguments, *given, "--local-steps", "2", "--seeds", "1", "--out", folder])
    columns = Path("rounds/metrics.csv").read_text().partition("\n")[0].split(",")
    assert "test_confidence" in columns
    assert "01-damped" in capsys.readouterr().out
    speeds = Path("clock/speeds.csv").read_text().splitlines()[1:]
    seconds = sorted({float(line.split(",")[-1]) for line in speeds})
    np.testing.assert_allclose(seconds, 1 + 2 * np.arange(100) / 100)


LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=3)
SETS = [(0, 1, 2), (2, 0, 3), (1, 2, 0), (3, 2, 1)]


def fedavg(problem, **options):
    return fa.algorithms.fedavg(problem, LOCAL, weighting="uniform", **options)


SAME = {  # rules that the package has in another form
    "clipped.py:clipped:bound=0.2": lambda problem: fa.algorithms.fedavg(
        problem, LOCAL, server_transform=optax.clip_by_global_norm(0.2)
    ),
    "ditto.py:ditto:lambda_=0.4": lambda problem: fa.algorithms.ditto(
        problem, LOCAL, strength=0.4, weighting="uniform"
    ),
    "median.py:median": lambda problem: fa.wrappers.wrap(fedavg(problem), "robust.py:middle"),
    "topk.py:topk:k=4": lambda problem: fa.wrappers.wrap(
        fedavg(problem), "topk:fraction=0.2,feedback=ef"
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spec", SAME)
def test_an_algorithm_is_the_same_in_another_form(spec):
    toy = small_network()
    algorithm = algorithms.make(spec, toy.problem, LOCAL)
    own, other = (run(each, toy.data, SETS) for each in (algorithm, SAME[spec](toy.problem)))
    atol = 1e-8 if "topk" in spec else 1e-12  # the codec sends float32
    chex.assert_trees_all_close(own, other, rtol=0, atol=atol)
