"""Compilation is counted; programs kept in a folder are not compiled again, and never stale."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_algos
from fedjax_algos.cli import main, training
from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 2 --local-steps 2 --seeds 1"
SMALL = [*OPTIONS.split(), "--layout", "sequential"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_program_is_counted_once_and_only_in_the_block():
    double, x = jax.jit(lambda x: 2 * x), np.ones(3, np.float32)
    with measure_compilation() as compiled:
        assert compiled == Compilation()
        double(x)
        double(x)
        first = str(compiled)
        double(x[:2])
    jax.jit(lambda x: 3 * x)(x)
    assert (compiled.programs, compiled.from_cache) == (2, 0)
    phases = compiled.trace_seconds, compiled.lower_seconds, compiled.backend_seconds
    assert min(phases) > 0
    assert compiled.seconds == pytest.approx(sum(phases))
    assert first.endswith(" s to compile 1 program")


def read(folder):
    """What was compiled, and the metrics of each method but for the time they took."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    metrics: dict = {}
    for row in rows:
        del row["wall_seconds"]
        metrics.setdefault(row.pop("method"), []).append(row)
    return json.loads((folder / "config.json").read_text())["compilation"], metrics


def test_another_process_reads_what_is_kept_and_compiles_what_is_new(here):
    def process(*methods, out):
        command = [sys.executable, "-m", "fedjax_algos", "compare", *methods, *SMALL]
        command += ["--compilation-cache", "kept", "--out", out]
        as_here = {
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": str(Path(fedjax_algos.__file__).parent.parent),
        }
        told = subprocess.run(
            command, env=os.environ | as_here, check=True, capture_output=True, text=True
        ).stdout
        return told, *read(here / out)

    _, cold, first = process("fedprox:mu=1", out="cold")
    told, warm, second = process("fedprox:mu=1", "fedprox:mu=0.5", out="warm")
    main(["compare", "fedprox:mu=1", "fedprox:mu=0.5", *SMALL, "--out", "neither"])
    _, third = read(here / "neither")

    assert warm["from_cache"] >= cold["programs"] > 5  # the smallest ones are kept too
    assert 0 < warm["programs"] - warm["from_cache"] < 4  # the new mu stands in the program
    assert f"{warm['programs']} programs, {warm['from_cache']} of them from the cache, " in told
    assert second == third
    assert second["fedprox mu=1"] == first["fedprox"]
    assert second["fedprox mu=0.5"] != first["fedprox"]


def test_the_command_line_s_folder_goes_before_a_file_s(here, monkeypatch):
    asked = []

    def refuse(folder):
        asked.append(folder)
        raise ValueError("enough")

    monkeypatch.setattr(training, "keep_compiled", refuse)
    (here / "a.toml").write_text("compilation_cache = 'file'")
    for arguments in (
        ["compare", "--config", "a.toml"],
        ["compare", "--config", "a.toml", "--compilation-cache", "line"],
        ["run", "fedavg", "--compilation-cache", "run"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
    assert asked == ["file", "line", "run"]


@pytest.mark.parametrize(
    ("folder", "why"), [("full", "File exists"), ("full/in", "Not a directory"), ("", "no name")]
)
def test_a_folder_that_cannot_be_one_is_told_before_anything_runs(here, capsys, folder, why):
    (here / "full").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", "--compilation-cache", folder])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: compilation_cache={folder!r} is no folder to write to (")
    assert f"{why}); name a folder" in told
    assert told.count("\n") == 1
    assert not (here / "results").exists()
    assert jax.config.jax_compilation_cache_dir is None
    with pytest.raises(ValueError, match="no folder to write to"):
        keep_compiled(folder)
