"""Shares: one command in parts, which write one folder, gives what one process gives."""

import itertools
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from same_runs import folder_content

from fedjax_algos.base.files import SUMS
from fedjax_algos.cli import main
from fedjax_algos.runs.studies.folder_content import (
    describe_missing,
    missing_runs,
    read_configuration,
)
from fedjax_algos.runs.studies.results_folder import ResultsFolder, Share, open_folder

pytestmark = pytest.mark.usefixtures("compiled_once", "quick_pictures")
SMALL = "--model linear --clients 8 --batch-size 4 --cohort 2 --rounds 4 --eval-every 2"
RATES = ",".join(f"0.{number}" for number in range(1, 9))
SWEEP = f"sweep fedprox --grid client_learning_rate={RATES} --grid local_steps=1,2 {SMALL}"
COMPARE = f"compare scaffold fedavg --seeds 2 --local-steps 1 {SMALL}"
ON_CLOCK = "--model linear --clients 4 --batch-size 4 --local-steps 1 --seconds 4 --evaluations 2"
GRID = "--grid client_learning_rate=0.1,0.3,0.9"
# ends as SIGKILL does, when a number of runs have ended and another one is on its way
KILLED = """
import os, signal, sys
from fedjax_algos.cli import main
from fedjax_algos.runs.studies.results_folder import ResultsFolder

def killed(folder, *run):
    number[0] -= 1
    if not number[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    end(folder, *run)

number, end, ResultsFolder.end = [5], ResultsFolder.end, killed
main(sys.argv[1:])
"""


def test_parts_are_contiguous_and_equal():
    runs = [("a", seed) for seed in range(11)]
    for parts in range(1, 12):
        divided = Share(1, parts).divide(runs)
        assert [*itertools.chain(*divided)] == runs
        assert {len(each) for each in divided} <= {11 // parts, -(-11 // parts)}
    assert Share.parse("3/11") == (3, 11)


def test_what_is_missing_is_told():
    shares = [["a, seed 0", "a, seed 1"], ["b, seed 0"], ["b, seed 1"]]
    missing = [("a", 1), ("b", 0), ("b", 1)]
    assert describe_missing(missing) == "a on seed 1; b on seeds 0, 1"
    told = "a on seed 1 (--share 1/3); b on seed 0 (--share 2/3); b on seed 1 (--share 3/3)"
    assert describe_missing(missing, shares) == told
    assert describe_missing([("c", 0)], shares) == "c on seed 0"  # a method, and not its trials
    told = "a on seed 1 (--share 1/3); 2 more runs (--share 2/3, 3/3)"
    assert describe_missing(missing, shares, listed=1) == told
    assert describe_missing(missing, shares, listed=0) == "3 runs (--share 1/3, 2/3, 3/3)"


RUNS = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def begun(path, number=1, parts=2, **settings):
    """A folder of two methods on two seeds, without training, in which a share has begun."""
    path.mkdir(exist_ok=True)
    record = {"settings": {"seeds": [0, 1], "rounds": 4} | settings, "layout": None}
    record |= {"methods": {"a": {}, "b": {}}, "environment": {"packages": {}}}
    folder = ResultsFolder(path, 0, 1, Share(number, parts) if parts else None)
    folder.begin(record | folder.divide(RUNS))
    return folder


def test_each_share_takes_its_own_runs(here, refused):
    first, second = begun(here), begun(here, 2)
    assert [first.takes(*run) for run in RUNS] == [True, True, False, False]
    assert [second.takes(*run) for run in RUNS] == [False, False, True, True]
    for seed in (0, 1):
        (here / "runs" / "01-a" / f"seed-{seed}").mkdir()
        (here / "runs" / "01-a" / f"seed-{seed}" / SUMS).touch()
    assert missing_runs(here, read_configuration(here)) == RUNS[2:]
    (here / "metrics.csv").write_text("method,seed,round,test_accuracy\na,0,0,0.5\n")
    assert "2 of 4 runs have ended" in (error := refused("plot", str(here)))
    assert "b on seeds 0, 1 (--share 2/2)" in error
    with pytest.raises(ValueError, match=r"shares: .* in the folder"):
        begun(here, 1, 3)
    with pytest.raises(ValueError, match="rounds: 4 in the folder, 6 here"):
        begun(here, 2, rounds=6)
    begun(here / "one", parts=0)
    with pytest.raises(ValueError, match="shares: none in the folder"):
        begun(here / "one")


def test_only_one_share_writes_the_configuration(here):
    """Of many that begin at once, with different settings; the others see what it wrote."""
    barrier = threading.Barrier(4)

    def begin(number):
        barrier.wait()
        try:
            begun(here, number, 4, rounds=number % 2)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        errors = [*pool.map(begin, (1, 2, 3, 4))]
    assert [errors.count(""), sum("rounds: " in error for error in errors)] == [2, 2]
    assert sorted(path.name for path in here.iterdir()) == ["config.json", "runs"]


def test_a_share_in_use_is_refused(refused, here):
    with open_folder("parts", "compare", share="2/3"):
        error = refused(*COMPARE.split(), "--out", "parts", "--share", "2/3")
        assert "share='2/3' of out='parts' is in use by another run" in error
        with open_folder("parts", "compare", share="1/3"):
            pass
    assert not (here / "parts").exists()


CLOCK = f"compare fedbuff fedcompass --seeds 2 {ON_CLOCK}"
TUNE = f"tune fedavg fedprox --seeds 2 --local-steps 1 {GRID} {SMALL}"
LINES = {
    f"{COMPARE} --evaluate-clients train": ["clients.csv", "partition.txt"],
    CLOCK: ["timelines.csv", "idle.csv", "speeds.csv"],
    TUNE: ["tuned.toml", "trials.csv"],
    f"tune fedbuff fedasync --seeds 1 {GRID} {ON_CLOCK}": ["tuned.toml", "trials.csv"],
}


@pytest.mark.all
@pytest.mark.parametrize(
    "line", [pytest.param(n, marks=[pytest.mark.nightly] * (COMPARE not in n)) for n in LINES]
)
def test_shares_give_the_same(here, capsys, line):
    """Each run is computed and tracked once; the last share writes the results."""
    main([*line.split(), "--out", "whole"])
    ended, parts, files = capsys.readouterr().err.count(": ended at "), here / "parts", LINES[line]
    tracked = [] if line.startswith("tune") else ["--track", "tensorboard"]
    for number in (2, 3, 1):
        main([*line.split(), *tracked, "--out", "parts", "--share", f"{number}/3"])
        out, err = capsys.readouterr()
        assert ("not ended yet: " in out) == (number != 1)
        assert (parts / files[0]).exists() == (number == 1)
        ended -= err.count(": ended at ")
    assert ended == 0
    for name in files:
        assert (parts / name).read_bytes() == (here / "whole" / name).read_bytes(), name
    if tracked:
        assert folder_content(parts) == folder_content(here / "whole")
        assert len([*parts.rglob("*tfevents*")]) == 4


@pytest.mark.nightly
def test_a_sweep_of_48_runs_in_four_parts_of_which_one_is_killed(here, command, capsys):
    """Bit for bit: on a CPU a run does not depend on the number of runs in its program."""
    main([*SWEEP.split(), "--seeds", "3", "--out", "whole"])
    arguments = [*SWEEP.split(), "--seeds", "3", "--out", "parts", "--share"]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments, "2/4"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for number in (4, 1, 3):  # while the other process computes its own
        main([*arguments, f"{number}/4"])
    assert process.wait() == -9, process.stderr.read()
    capsys.readouterr()
    main(["table", "parts"])
    shown = capsys.readouterr()
    assert "'parts' is not complete: 40 of 48 runs have ended" in shown.err
    assert set(re.findall(r"--share ([0-9/]+)", shown.err)) == {"2/4"}
    assert "13 of 16 methods or settings have ended on all seeds and are shown" in shown.err
    assert len([line for line in shown.out.splitlines() if line.startswith("FedProx ")]) == 13
    main([*arguments, "2/4"])
    capsys.readouterr()
    assert command("table", "parts") == command("table", "whole")
    assert folder_content(here / "parts") == folder_content(here / "whole")
