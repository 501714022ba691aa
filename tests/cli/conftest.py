"""Fixtures that run the command line in a folder of its own."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from fedjax_algos.cli import main
from fedjax_algos.engine.compilation import keep_compiled
from fedjax_algos.runs.studies import experiment
from fedjax_algos.runs.studies.method import Method
from fedjax_algos.runs.studies.settings import Settings


@pytest.fixture(autouse=True)
def each_alone(here):
    """Each test has a working folder of its own, and keeps no compiled programs for others."""
    yield
    if jax.config.jax_compilation_cache_dir is not None:
        keep_compiled(None)


@pytest.fixture(scope="module")
def compiled_once():
    """Commands of a file share compiled programs, in a memory that a test may clear."""
    memory = {}

    def work(settings):  # programs depend on all but these
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
        return SimpleNamespace(notes=[])

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
    """Runs a command that is wrong and returns its error, of one line or more; no file changes."""

    def content():
        found = [path for path in here.rglob("*") if path.name != ".lock"]
        return {path: path.is_file() and path.stat().st_mtime_ns for path in found}

    def run(*arguments, lines=1):
        before = content()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (stop.value.code, out, err.count("\n")) == (2, "", lines)
        assert len(err.splitlines()) == lines
        assert err.startswith("error: ")
        assert content() == before
        return err

    return run
