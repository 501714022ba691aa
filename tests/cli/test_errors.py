"""Which errors become one line: a ValueError that the package raises itself, wherever it arises."""

from pathlib import Path

import numpy as np
import pytest
from bad_input_helpers import small

import fedjax_algos
from fedjax_algos.cli import main, training

PACKAGE = Path(fedjax_algos.__file__).parent / "runs" / "comparison.py"
LIBRARY = Path(np.__file__)
REPORT = "This is a fault of fedjax_algos: please report it with these lines."


def raising(file, error):
    """A function whose code is in a file, and which raises an error."""
    names = {}
    source = f"def fail(*args, **keywords): raise {error}('it is not right')"
    exec(compile(source, str(file), "exec"), names)
    return names["fail"]


def test_an_error_of_the_package_while_it_runs_is_one_line(refused, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(training, "prepare", raising(PACKAGE, "ValueError"))
        assert refused("run", "fedavg", *small()) == "error: it is not right\n"
    line = ["sweep", "fedprox", "--grid", "mu=0.1", "--memory", "1", *small(), "--out", "there"]
    with pytest.raises(SystemExit, match="2"):  # what it wrote stays
        main(line)
    assert "error: memory=1 is out of range; give at least " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "error"), [(PACKAGE, TypeError), (PACKAGE, KeyError), (LIBRARY, ValueError)]
)
def test_an_internal_error_keeps_its_traceback_and_asks_for_a_report(monkeypatch, file, error):
    monkeypatch.setattr(training, "prepare", raising(file, error.__name__))
    with pytest.raises(error, match="it is not right") as caught:
        main(["run", "fedavg", *small()])
    assert caught.value.__notes__ == [REPORT]
    assert str(caught.traceback[-1].path) == str(file)


@pytest.mark.parametrize("error", ["ValueError", "TypeError"])
def test_an_error_of_ones_own_code_keeps_its_traceback_and_asks_for_none(here, error):
    own = here / "own.py"
    own.write_text(f"def f(problem, local):\n    raise {error}('it is not right')\n")
    with pytest.raises((ValueError, TypeError), match="it is not right") as caught:
        main(["run", f"{own}:f", *small()])
    assert not hasattr(caught.value, "__notes__")
    assert Path(caught.traceback[-1].path) == own
