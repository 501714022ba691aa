"""Shares: one command in parts, which write one folder, gives what one process gives."""

import itertools
import subprocess
import sys
import threading

import pytest
from same_runs import folder_content

from fedjax_algos.cli import main
from fedjax_algos.core.files import SUMS
from fedjax_algos.runs.saving.opening import open_folder
from fedjax_algos.runs.saving.results_folder import ResultsFolder, read_configuration
from fedjax_algos.runs.saving.shares import Share, describe_missing

pytestmark = pytest.mark.usefixtures("compiled_once", "quick_pictures")
SMALL = "--model linear --clients 8 --batch-size 4 --cohort 2 --rounds 4 --eval-every 2"
RATES = ",".join(f"0.{number}" for number in range(1, 9))
SWEEP = f"sweep fedprox --grid client_learning_rate={RATES} --grid local_steps=1,2 {SMALL}"
COMPARE = f"compare scaffold fedavg --seeds 3 --local-steps 1 {SMALL}"
CLOCK = "compare fedbuff fedcompass --model linear --clients 8 --batch-size 4 --local-steps 1"
CLOCK += " --seconds 9 --evaluations 3 --seeds 2"
TUNE = f"tune fedavg fedprox --grid client_learning_rate=0.1,0.3,0.9 --local-steps 1 {SMALL}"
# ends as SIGKILL does, when a number of runs have ended and another one is on its way
KILLED = """
import os, signal, sys
from fedjax_algos.cli import main
from fedjax_algos.runs.saving.results_folder import ResultsFolder

def killed(folder, *run):
    number[0] -= 1
    if not number[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    end(folder, *run)

number, end, ResultsFolder.end = [5], ResultsFolder.end, killed
main(sys.argv[1:])
"""


def share(command, number, parts, out="parts"):
    main([*command.split(), "--out", out, "--share", f"{number}/{parts}"])


def ended(folder):
    return len([*folder.glob(f"runs/*/seed-*/{SUMS}")])


def test_a_sweep_of_48_runs_in_four_parts_of_which_one_is_killed(here, command, capsys):
    """Bit for bit: on a CPU a run does not depend on the number of runs in its program."""
    main([*SWEEP.split(), "--seeds", "3", "--out", "whole"])
    arguments = [*SWEEP.split(), "--seeds", "3", "--out", "parts", "--share"]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments, "2/4"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    capsys.readouterr()
    for number in (4, 1, 3):  # while the other process computes its own
        main([*arguments, f"{number}/4"])
    assert "share 4/4 of parts has ended; the last share to end" in capsys.readouterr().out
    assert process.wait() == -9, process.stderr.read()
    shares = read_configuration(here / "parts")["shares"]
    assert [len(each) for each in shares] == [12] * 4
    assert [len({name.split()[2] for name in each}) for each in shares] == [1] * 4  # programs
    assert ended(here / "parts") == 36 + 4
    with pytest.raises(SystemExit):
        main(["plot", "parts"])
    error = capsys.readouterr().err
    assert "'parts' is not complete: 40 of 48 runs have ended; go on with the same comm" in error
    assert "local_steps=1 on seeds 0, 1, 2 and " in error
    assert error.count("--share 2/4)") == 1
    main(["table", "parts"])
    shown = capsys.readouterr()
    assert "13 of 16 methods or settings have ended on all seeds and are shown" in shown.err
    assert len([line for line in shown.out.splitlines() if line.startswith("FedProx ")]) == 13
    main([*arguments, "2/4"])
    capsys.readouterr()
    assert command("table", "parts") == command("table", "whole")
    assert folder_content(here / "parts") == folder_content(here / "whole")
    content = [{path.name for path in (here / each).iterdir()} for each in ("whole", "parts")]
    assert content[0] == content[1] | {".lock"} & content[0]
    main([*arguments, "3/4"])
    assert "parts is complete; nothing is left to do" in capsys.readouterr().out


def test_shares_of_a_comparison_have_their_own_rows_and_give_the_same(here, command, capsys):
    """Also the models of clients, and trackers, which have each run once."""
    (here / "mine.py").write_text(
        "import contextlib\n\n\ndef lines():\n    @contextlib.contextmanager\n"
        "    def track(run):\n        with open(run.folder / 'seen', 'a') as file:\n"
        "            yield lambda row: print(run.method, run.seed, row['round'], file=file)\n\n"
        "    return track\n"
    )
    arguments = f"{COMPARE} --evaluate-clients train --track mine.py:lines"
    main([*arguments.split(), "--out", "whole"])
    for number in (2, 4, 3, 1):
        share(arguments, number, 4)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if ": ended at round 4 of 4" in line]) == 2 * 6
    assert folder_content(here / "parts") == folder_content(here / "whole")
    for name in ("clients.csv", "partition.txt"):
        assert (here / "parts" / name).read_bytes() == (here / "whole" / name).read_bytes()
    seen = [sorted((here / each / "seen").read_text().splitlines()) for each in ("parts", "whole")]
    assert seen[0] == seen[1]
    main(["report", "parts", "--out", "page.html"])
    assert "--share" not in (here / "page.html").read_text()


@pytest.mark.all
def test_shares_on_the_virtual_clock(here):
    main([*CLOCK.split(), "--out", "whole"])
    for number in (3, 1, 2):
        share(CLOCK, number, 3)
    assert folder_content(here / "parts") == folder_content(here / "whole")
    for name in ("timelines.csv", "idle.csv", "speeds.csv"):
        assert (here / "parts" / name).read_bytes() == (here / "whole" / name).read_bytes()


@pytest.mark.parametrize("on_clock", [False, pytest.param(True, marks=pytest.mark.all)])
def test_shares_of_tuning(here, capsys, on_clock):
    arguments = f"{TUNE} --seeds 2"
    if on_clock:
        arguments = "tune fedbuff fedasync --grid client_learning_rate=0.1,0.3,0.9 --seeds 1 "
        arguments += "--model linear --clients 4 --local-steps 1 --seconds 4 --evaluations 2"
    main([*arguments.split(), "--out", "whole"])
    share(arguments, 2, 2)
    assert "not ended yet: " in capsys.readouterr().out
    assert not (here / "parts" / "tuned.toml").exists()
    share(arguments, 1, 2)
    for name in ("tuned.toml", "trials.csv"):
        assert (here / "parts" / name).read_bytes() == (here / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--share 0/4", "share='0/4' is no part; give I/N with I from 1 to N, such as 1/4"),
        ("--share 5/4", "share='5/4' is no part; give"),
        ("--share x", "share='x' is no part; give"),
        ("--share 1/7", "share='1/7': there are only 6 runs; give at most 6 parts"),
    ],
)
def test_wrong_shares(refused, here, options, message):
    assert message in refused(*COMPARE.split(), *options.split(), "--out", "parts")


def test_shares_need_a_folder(refused):
    error = refused(*COMPARE.split(), "--share", "1/2")
    assert "share='1/2' needs a folder for all parts; give --out FOLDER" in error


@pytest.mark.parametrize("way", ["--halving 2", "--search optuna --trials 2"])
def test_a_search_that_needs_all_scores_is_not_divided(refused, way):
    name, value = way.removeprefix("--").split()[:2]
    error = refused(*TUNE.split(), *way.split(), "--share", "1/2", "--out", "parts")
    assert f"{name}={value} chooses trials by the scores of all earlier ones" in error
    assert f"leave --share 1/2 or --{name} out" in error


def test_shares_of_other_runs_are_refused(here, refused, capsys):
    share(COMPARE, 1, 3)
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    capsys.readouterr()
    to = ["--out", "parts"]
    told = "the runs in 'parts' are computed in 3 shares; give --share I/3, or name another folder"
    assert f"share='1/2': {told}" in refused(*COMPARE.split(), *to, "--share", "1/2")
    assert told in refused(*COMPARE.split(), *to, "--resume")
    with pytest.raises(SystemExit):
        main([*COMPARE.replace("--rounds 4", "--rounds 6").split(), *to, "--share", "2/3"])
    assert "  rounds: 4 in the folder, 6 here\n" in capsys.readouterr().err
    with open_folder("parts", "compare", share="2/3"):
        error = refused(*COMPARE.split(), *to, "--share", "2/3")
        assert "share='2/3' of out='parts' is in use by another run; wait" in error
    here_now = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    assert here_now.keys() == before.keys()
    assert all(here_now[path] == before[path] for path in before if path.is_file())
    main([*COMPARE.split(), "--out", "one"])
    told = "the runs in 'one' are computed without shares; leave --share out, or name another"
    capsys.readouterr()
    assert told in refused(*COMPARE.split(), "--out", "one", "--share", "1/3")


def test_only_one_share_writes_the_configuration(here):
    """Of many that begin at once, with different settings; the others see what it wrote."""
    barrier, outcomes = threading.Barrier(4), []

    def begin(number):
        settings = {"seeds": [0, 1], "rounds": number % 2}
        record = {"settings": settings, "methods": {"a": {}, "b": {}}, "layout": None}
        record["environment"] = {"packages": {}}
        folder = ResultsFolder(here, 0, 1, Share(number, 4))
        record |= folder.divide([("a", 0), ("a", 1), ("b", 0), ("b", 1)])
        barrier.wait()
        try:
            folder.begin(record)
        except ValueError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=begin, args=[number]) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    assert all("rounds: " in error for error in outcomes)
    assert sorted(path.name for path in here.iterdir()) == ["config.json", "runs"]


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
    assert describe_missing(missing) == "a on seed 1 and b on seeds 0, 1"
    told = "a on seed 1 (--share 1/3); b on seed 0 (--share 2/3); b on seed 1 (--share 3/3)"
    assert describe_missing(missing, shares) == told
    assert describe_missing([("c", 0)], shares) == "c on seed 0"  # a method, and not its trials
    told = "a on seed 1 (--share 1/3); 2 more runs (--share 2/3, 3/3)"
    assert describe_missing(missing, shares, listed=1) == told
    assert describe_missing(missing, shares, listed=0) == "3 runs (--share 1/3, 2/3, 3/3)"
