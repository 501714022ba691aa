"""docs/coming_from/ and docs/faq.md: their Python runs and learns."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, programs

from fedjax_algos.cli import main

pytestmark = pytest.mark.usefixtures("here")
PEERS = sorted(
    path.name for path in (ROOT / "docs/coming_from").glob("*.md") if path.stem != "index"
)


@pytest.mark.all
@pytest.mark.parametrize("name", PEERS)
def test_the_same_experiment_learns(name, capsys):
    """FedAvg on the digits, as on all pages, and what a page asserts."""
    page, names = f"docs/coming_from/{name}", {}
    exec(programs(page)[0], names)
    measured = float(capsys.readouterr().out.split()[-1])
    assert 0.5 < measured < 0.95
    assert names["partition"].num_clients == 50
    assert names["local"][:4] == (10, 0.1, None, 1)
    if "history" in names:
        assert measured == names["history"][-1]["test_accuracy"]
        assert names["history"][-1]["round"] == 20
    for program in programs(page)[1:]:
        exec(program, names)


@pytest.mark.parametrize("name", PEERS)
def test_the_code_for_the_other_library_is_marked_and_is_python(name):
    text = (ROOT / "docs/coming_from" / name).read_text()
    block = r"^```\{code-block\} python\n:class: peer\n\n(.*?)^```"
    blocks = re.findall(block, text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```{code-block} python") >= 1
    for block in blocks:
        compile(block, name, "exec")
        assert "fedjax_algos" not in block


@pytest.mark.all
def test_the_command_is_the_program(capsys):
    """docs/coming_from/fedml.md: its command and its Python are the same run."""
    page = "docs/coming_from/fedml.md"
    (command,) = re.findall(r"```sh\n(.*?)\n```", (ROOT / page).read_text(), re.DOTALL)
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "fedjax-algos"
    main([*arguments, "--out", "results"])
    header, *rows = Path("results/metrics.csv").read_text().splitlines()
    of_last = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    exec(programs(page)[0], names := {})
    accuracy = names["history"][-1]["test_accuracy"]
    np.testing.assert_allclose(float(of_last["test_accuracy"]), accuracy, atol=1e-6)


@pytest.mark.all
def test_the_questions(capsys):
    """docs/faq.md, from top to bottom, with what it asserts."""
    names = {}
    for program in programs("docs/faq.md"):
        exec(program, names)
        history = names.get("history", [])
        assert all(np.isfinite(row.get("test_loss", 0)) for row in history)
    assert capsys.readouterr().out.startswith("FederatedData(clients=20, examples=200")
    assert names["accuracies"].value().shape == (50,)
    assert len(names["chosen"]) == 5
    measured = names["measure"](names["state"].model, names["poisoned"])
    assert measured["accuracy"].weight.sum() == 1433


def test_there_are_about_twenty_questions():
    assert 15 <= (ROOT / "docs/faq.md").read_text().count("\n### ") <= 25
