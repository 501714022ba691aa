"""Compilation is measured, and programs that are kept in a folder are not compiled again."""

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
from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 2 --local-steps 2 --seeds 1"


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
    assert str(Compilation(3, 2, 1.0)) == "1.0 s to compile 3 programs, 2 of them from the cache"
    with measure_compilation() as compiled:
        lowered = jax.jit(lambda x: 5 * x).lower(x)
        assert compiled.is_compiling
        lowered.compile()
        assert not compiled.is_compiling


def read(folder):
    """What was compiled, and the metrics of each method without their wall time."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    metrics: dict = {}
    for row in rows:
        del row["wall_seconds"]
        metrics.setdefault(row.pop("method"), []).append(row)
    return json.loads((folder / "config.json").read_text())["compilation"], metrics


@pytest.mark.all
def test_another_process_reads_kept_programs_and_compiles_new_ones(here):
    def process(*methods, out):
        command = [sys.executable, "-m", "fedjax_algos", "compare", *methods, *OPTIONS.split()]
        command += ["--layout", "sequential", "--compilation-cache", "kept", "--out", out]
        folder = str(Path(fedjax_algos.__file__).parent.parent)
        variables = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": folder}
        output = subprocess.run(
            command, env=os.environ | variables, check=True, capture_output=True, text=True
        ).stdout
        return output, *read(here / out)

    _, cold, first = process("fedprox:mu=1", out="cold")
    output, warm, second = process("fedprox:mu=1", "fedprox:mu=0.5", out="warm")
    assert warm["from_cache"] >= cold["programs"] > 5  # the smallest ones are kept too
    assert 0 < warm["programs"] - warm["from_cache"] < 4  # the new mu stands in the program
    assert f"{warm['programs']} programs, {warm['from_cache']} of them from the cache, " in output
    assert second["fedprox mu=1"] == first["fedprox"]
    assert second["fedprox mu=0.5"] != first["fedprox"]


def test_a_folder_that_cannot_be_written_to_is_refused(here):
    (here / "full").write_text("mine")
    reasons = {"full": "File exists", "full/in": "Not a directory", "": "it has no name"}
    for folder, reason in reasons.items():
        with pytest.raises(ValueError, match=rf"compilation_cache='{folder}' .*\({reason}\)"):
            keep_compiled(folder)
    assert jax.config.jax_compilation_cache_dir is None
