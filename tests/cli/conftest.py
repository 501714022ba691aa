"""Fixtures that run the command line in a folder of its own."""

import contextlib
import csv
import dataclasses
import importlib
import io
import resource
import shutil
import signal
import stat
import traceback
import warnings
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from fedjax_algos.cli import main
from fedjax_algos.runs import comparison, experiment
from fedjax_algos.runs.method import Method
from fedjax_algos.runs.settings import Settings

SECONDS = 30  # for one bad input, on a machine that is busy with other tests
BYTES = 2**29  # by which the memory of the process may grow in one test of bad inputs


@pytest.fixture(autouse=True)
def each_in_a_folder(here):
    """All tests of commands have a working folder of their own."""


@pytest.fixture(autouse=True)
def no_cache():
    """A command of one test keeps no compiled programs for the next ones."""
    yield
    if jax.config.jax_compilation_cache_dir is not None:
        jax.config.update("jax_compilation_cache_dir", None)
        reset_cache()


@pytest.fixture(scope="module")
def compiled_once():
    """Commands of a file share compiled programs, in a memory that a test may clear."""
    memory = {}

    def work(settings):  # of which programs depend on all but these
        return dataclasses.replace(settings, rounds=1, eval_every=1, seeds=(0,))

    keys = {
        (Settings, "problem"): lambda settings, dataset: work(settings),
        (Settings, "local"): lambda settings, *of_method: (work(settings), of_method),
        (Method, "build"): lambda m, problem, settings: (repr(m), id(problem), work(settings)),
        (experiment, "make_engine"): lambda algorithm, **given: (id(algorithm), repr(given)),
        (experiment, "make_executor"): lambda algorithm, **given: (id(algorithm), repr(given)),
    }

    def remembering(name, function, key):
        def remembered(*given, **options):
            place = name, key(*given, **options)
            if place not in memory:
                memory[place] = function(*given, **options), given  # so that ids stay
            return memory[place][0]

        return remembered

    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), key in keys.items():
            patch.setattr(owner, name, remembering(name, getattr(owner, name), key))
        yield memory


@pytest.fixture
def quick_pictures(monkeypatch):
    """Pictures are files of some bytes; how they are drawn is tested in tests/analysis/pictures."""

    def draw(*given, **options):
        path = next(each for each in given if isinstance(each, Path))
        path.write_bytes(b"\x89PNG\r\n\x1a\n")

    for name in ("metric", "partition", "clients", "staleness", "timeline"):
        monkeypatch.setattr(f"fedjax_algos.analysis.pictures.plot_{name}", draw)


@pytest.fixture
def command(capsys):
    """Runs a command and returns its standard output."""

    def run(*arguments):
        main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys, here):
    """Runs a command that is wrong and returns its error, which is one line; nothing is written."""

    def run(*arguments):
        before = sorted(here.rglob("*"))
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert stop.value.code == 2
        assert output.out == ""
        assert output.err.count("\n") == 1
        assert sorted(here.rglob("*")) == before
        return output.err

    return run


@pytest.fixture
def read_table():
    """Reads a CSV file as a list of dictionaries."""

    def read(path):
        with path.open() as file:
            return list(csv.DictReader(file))

    return read


class Trained(Exception):
    """A line has reached its training."""


class Unfinished(BaseException):
    """The time of a line is over; no handler of exceptions may catch it."""


def train(*args, **keywords):
    raise Trained


def stop(*args):
    raise Unfinished


@pytest.fixture
def untrained(monkeypatch):
    """No line trains anything, and the digits are read once."""
    dataset, load, command = [], Settings.load, importlib.import_module("fedjax_algos.cli.sweep")

    def load_once(own):
        if own.dataset != "digits":
            return load(own)
        return dataset[0] if dataset else dataset.append(load(own)) or dataset[0]

    monkeypatch.setattr(Settings, "load", load_once)
    monkeypatch.setattr(comparison, "run", train)
    monkeypatch.setattr(command, "run_sweep", train)


@pytest.fixture
def attempt(here, untrained):
    """Runs a command line: "refused", "trained", or "done" if it ends without an error."""
    (here / "file").write_text("")
    (here / "loop").symlink_to("loop")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, stop)

    def facts(entry):
        """The mode and the time of the last change; opening a lock may change its time."""
        s = entry.lstat()
        return s.st_mode, not (stat.S_ISDIR(s.st_mode) or entry.name == ".lock") and s.st_mtime_ns

    def content():
        return {str(entry): facts(entry) for entry in here.rglob("*")}

    def run(*arguments):
        before, out, err = content(), io.StringIO(), io.StringIO()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as told,
        ):
            warnings.simplefilter("always")
            # an older flax calls what a newer jax deprecates; nobody sees that
            warnings.filterwarnings("ignore", "jax.core", DeprecationWarning, "flax")
            try:
                main(list(arguments))
                outcome = "done"
            except Trained:
                outcome = "trained"
            except SystemExit as error:
                outcome = "refused" if error.code == 2 else f"exit code {error.code}"
            except BaseException:
                outcome = traceback.format_exc()[-2000:]
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        after = content()
        shown = [text[:200] for text in arguments], outcome, out.getvalue()[:500], err.getvalue()
        assert outcome in ("done", "trained", "refused"), shown
        if outcome == "refused":
            assert err.getvalue().startswith("error: "), shown
            assert len(err.getvalue().splitlines()) == err.getvalue().count("\n") == 1, shown
            assert out.getvalue() == "", shown
            assert not told, (shown, str(told[0]))
            assert after == before, (shown, after.keys() ^ before.keys())
        for name in after.keys() - before.keys():
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)
        return outcome

    yield run
    signal.signal(signal.SIGALRM, handler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < BYTES / 1024
