"""Which errors become one line, whose fault others are, and output that cannot be written."""

import contextlib
import io
import os
import re
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from bad_input_helpers import SMALL
from summary_helpers import rows, write_folder

import fedjax_algos
from fedjax_algos.cli import main, print_error, training

PACKAGE = Path(fedjax_algos.__file__).parent / "runs" / "comparison.py"
LIBRARY = Path(np.__file__)
REPORT = "This is a fault of fedjax_algos: please report it with these lines."
RUN = ["run", "fedavg", *SMALL]


def raising(file, error):
    """A function whose code is in a file, and which raises an error."""
    names = {}
    source = f"def fail(*args, **keywords): raise {error}('it is not right')"
    exec(compile(source, str(file), "exec"), names)
    return names["fail"]


def test_an_error_of_the_package_while_it_runs_is_one_line(refused, monkeypatch):
    monkeypatch.setattr(training, "prepare", raising(PACKAGE, "ValueError"))
    assert refused(*RUN) == "error: it is not right\n"


@pytest.mark.parametrize(
    ("file", "error"), [(PACKAGE, TypeError), (PACKAGE, KeyError), (LIBRARY, ValueError)]
)
def test_an_internal_error_keeps_its_traceback_and_asks_for_a_report(monkeypatch, file, error):
    monkeypatch.setattr(training, "prepare", raising(file, error.__name__))
    with pytest.raises(error, match="it is not right") as caught:
        main(RUN)
    assert caught.value.__notes__ == [REPORT]
    assert str(caught.traceback[-1].path) == str(file)


OWN = """
import fedjax_algos as fa

def unfit(problem, local):
    return fa.algorithms.fedavg(problem, local)._replace(client_init=lambda *given: "row")

def flat(problem, local):
    return fa.algorithms.fedavg(problem, local)._replace(contribute=lambda update, *_: [update])

def wrong(problem, local):
    raise ValueError("it is not right")

def mixed(problem, local):
    return problem - local

def traitless(problem, local):
    return fa.algorithms.fedavg(problem, local)._replace(traits=None)

def texts(problem, local):
    algorithm = fa.algorithms.fedavg(problem, local)
    def client_update(*args):
        state, update, report = algorithm.client_update(*args)
        return state, "an update", report
    return algorithm._replace(client_update=client_update)

def leaves(problem, local):
    raise SystemExit(0)

def wrapper(algorithm):
    raise SystemExit
"""


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("traitless", "own.py:traitless: traits=None is not of type Traits; give fed"),
        ("traitless+mean", "own.py:traitless: traits=None is not of type Traits; give fed"),
        ("texts", r"client_update returned .*str.*; return \(client state, update, Report"),
        (
            "flat",
            r"server_update raised AttributeError .* return other updates in client_update, or",
        ),
        ("leaves", r"your own code called sys.exit\(0\); let it raise an error instead"),
        ("wrapper", r"your own code called sys.exit\(None\); let it raise"),
    ],
)
def test_what_is_no_algorithm_or_ends_python_is_one_line(refused, here, method, line):
    (here / "own.py").write_text(OWN)
    name = "fedavg+own.py:wrapper" if method == "wrapper" else f"own.py:{method}"
    assert re.search(line, refused("run", name, *SMALL))


@pytest.mark.parametrize("name", ["wrong", "mixed"])
def test_an_error_of_ones_own_code_keeps_its_traceback_and_asks_for_none(here, monkeypatch, name):
    """Also in an installed package; a function that does not fit is named first."""
    (here / "installed").mkdir()
    for path in ("own.py", "installed/methods.py"):
        (here / path).write_text(OWN)
    monkeypatch.syspath_prepend(here)
    for place in ("own.py", "installed.methods"):
        with pytest.raises((ValueError, TypeError), match=r"not right|unsupported oper") as caught:
            main(["run", f"{place}:{name}", *SMALL])
        assert not hasattr(caught.value, "__notes__")
        places = {"platlib": str(here), **{n: sysconfig.get_path(n) for n in ("stdlib", "purelib")}}
        monkeypatch.setattr(sysconfig, "get_path", places.get)
    with pytest.raises(TypeError) as caught:
        main(["run", "own.py:unfit", *SMALL])
    assert caught.value.__notes__[-1].startswith("Look first for a mistake in your own function")


def test_a_printed_traceback_moves_no_cursor(capsys):
    error = ValueError("\x1b[31mred\x9b\nnext\rline")
    print_error(ValueError, error, None)
    assert capsys.readouterr().err == "ValueError: \\x1b[31mred\\x9b\nnext\\rline\n"


def test_a_function_of_a_library_that_is_no_factory_is_not_called_a_fault():
    with pytest.raises(TypeError) as caught:  # jax removes its own frames
        main(["run", "fedavg", "--rate-schedule", "jax:jit"])
    assert REPORT not in getattr(caught.value, "__notes__", [])


@pytest.fixture
def printing(here, monkeypatch, quick_pictures):
    """Runs a command with another standard output: its exit code and its errors."""
    write_folder(here / "there", rows("fedavg", [[0.1, 0.5], [0.1, 0.7]]))

    def run(line, output):
        errors = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stderr(errors):
            patch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit) as stop:
                main(line.split())
        with contextlib.suppress(BrokenPipeError):  # click does it, where the process ends
            output.close()
        return stop.value.code, errors.getvalue()

    return run


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is full")
@pytest.mark.parametrize(
    "line", ["--help", "run fedprox --help", "list models --json", "table there", "plot there"]
)
def test_a_full_disk_below_standard_output_is_one_line(printing, line):
    told = "error: standard output cannot be written (No space left on device); make room\n"
    with open("/dev/full", "w") as output:
        assert printing(line, output) == (1, told)


@pytest.mark.parametrize("line", ["--help", "table there"])
def test_a_closed_pipe_ends_a_command_silently(printing, line):
    reading, writing = os.pipe()
    os.close(reading)
    assert printing(line, os.fdopen(writing, "w")) == (1, "")
