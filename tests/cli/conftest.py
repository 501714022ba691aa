"""Fixtures that run the command line in a folder of its own."""

import csv

import pytest

from fedjax_algos.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working folder of the test, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
