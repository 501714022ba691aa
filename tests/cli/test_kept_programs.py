"""Commands keep compiled programs in the user's cache, unless they are told otherwise."""

import csv
import re

import pytest

COMMAND = "compare fedavg --model linear --clients 4 --cohort 2 --local-steps 1 --batch-size 2"


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_a_second_command_reads_what_the_first_has_compiled(command, monkeypatch, here):
    cache = here / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    found = []

    def run(*options):
        folder = here / f"out{len(found)}"
        line = f"{COMMAND} --seeds 1 --rounds 2 --out {folder.name}"
        out = command(*line.split(), *options)
        number, _, read = re.search(r"compile (\d+) programs(, (\d+) of them)?", out).groups()
        rows = [*csv.DictReader((next(folder.rglob("metrics.csv"))).open())]
        found.append((number == read, [row | {"wall_seconds": ""} for row in rows]))

    run()  # the tests set JAX_COMPILATION_CACHE_DIR, which stays
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    run("--compilation-cache", "none")
    assert not cache.exists()
    run()
    assert [*cache.glob("fedjax_algos/*/*-cache")]
    run()
    assert [all_read for all_read, _ in found] == [False, False, False, True]
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "out0" / "config.json"))
    run()  # a folder that cannot be made
    assert all(rows == found[0][1] for _, rows in found)
