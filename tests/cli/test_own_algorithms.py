"""Algorithms of the user's own on the command line: `FILE.py:NAME` and `package.module:NAME`."""

import json
import shutil
import sys

import pytest

from fedjax_algos.algorithms import algorithms
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("quick_pictures")
SOURCE = '''
import fedjax_algos as fa
from fedjax_algos.core.options import NonNegative


def fedspeed(problem, local, *, rho: NonNegative = 0.1, ascending: bool = True):
    """FedSpeed, or nearly.

    Its second paragraph.
    """
    return fa.algorithms.fedprox(problem, local, mu=rho)


def tiered(problem, local, *, share=0.5):
    algorithm = fedspeed(problem, local)
    reason = "its tiers have rounds of their own"
    asynchrony = fa.Asynchrony("tiers", ("tiers", "immediate"), reason)
    return algorithm._replace(traits=fa.Traits(asynchrony=asynchrony))


def fedavg(problem, local, *, rounds: int = 3):
    return fa.algorithms.fedavg(problem, local, weighting="uniform")


def narrow(problem, local):
    return fa.algorithms.fedavg(problem, local)._replace(server_update=lambda server, sums: server)


def short(labels, num_clients, seed):
    return fa.data.partitions["iid"](labels, num_clients - 1, seed)


def silent():
    return lambda run: None


def shared():
    return lambda seed: seed


def nothing(problem, local): pass
class Kind: pass
number = 3
'''
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 1 --eval-every 1 --seeds 1"
SMALL = [*OPTIONS.split(), "--local-steps", "2"]


@pytest.fixture(autouse=True)
def own(here):
    """A file and a module of the user's own, which are forgotten after the test."""
    (here / "my_file.py").write_text(SOURCE)
    (here / "binary.py").write_bytes(bytes(range(256)))
    (here / "folder.py").mkdir()
    (here / "own_package").mkdir()
    (here / "own_package" / "own_module.py").write_text(SOURCE)
    yield
    for name in ("own_package", "own_package.own_module"):
        sys.modules.pop(name, None)


def losses(rows, method):
    return [row["test_loss"] for row in rows if row["method"] == method]


def test_compare(command, here, read_table):
    prox, own = "fedprox:mu=0.3", "my_file.py:fedspeed:rho=0.3,client_learning_rate=0.2"
    packaged = "own_package.own_module:tiered"
    command("compare", prox, own, packaged, *SMALL, "--client-learning-rate", "0.1")
    folder = here / "results" / "compare"
    rows = read_table(folder / "metrics.csv")
    assert losses(rows, "fedspeed") == losses(rows, "fedprox") != losses(rows, "tiered")
    methods = json.loads((folder / "config.json").read_text())["methods"]
    assert methods["fedspeed"] == {
        "algorithm": "my_file.py:fedspeed", "client_learning_rate": 0.1, "client_optimizer": "sgd",
        "rho": 0.3, "ascending": True,
    }  # fmt: skip
    assert methods["tiered"]["algorithm"] == packaged


def test_namesakes(here):
    own = f"{here}/my_file.py:fedavg"
    specs = "fedavg", own, "my_file.py:fedspeed:0.2", "my_file.py:fedspeed"
    labels = [method.label for method in methods_of(specs, Settings())]
    assert labels == ["fedavg (fedavg)", f"fedavg ({own})", "fedspeed rho=0.2", "fedspeed rho=0.1"]


@pytest.mark.all
def test_run_has_its_options(command, here):
    text = command("run", "my_file.py:fedspeed", "--help")
    assert "FedSpeed, or nearly." in text
    assert "second paragraph" not in text
    assert "--rho VALUE" in text
    assert "a number of at least 0 [0.1]" in text
    command("run", "my_file.py:fedspeed:ascending=false", "--rho", "0.2", *SMALL)
    methods = json.loads((here / "results" / "fedspeed" / "config.json").read_text())["methods"]
    assert (methods["fedspeed"]["rho"], methods["fedspeed"]["ascending"]) == (0.2, False)
    listed = command("run", "--help").partition("Commands:")[2]
    assert "fedprox" in listed
    assert "my_file" not in listed


@pytest.mark.all
def test_sweep(command, here):
    command("sweep", "my_file.py:fedspeed", "--grid", "rho=0.1,0.2", *SMALL, "--out", "out")
    methods = json.loads((here / "out" / "config.json").read_text())["methods"]
    assert methods["fedspeed rho=0.2"]["algorithm"] == "my_file.py:fedspeed"
    assert list(methods) == ["fedspeed rho=0.1", "fedspeed rho=0.2"]


@pytest.mark.all
def test_resuming_notices_what_has_changed(command, here, capsys):
    """A comment changes nothing; another function, or a folder that was removed, does."""
    arguments = "compare", "my_file.py:fedspeed", *SMALL, "--out", "out"
    command(*arguments)
    (here / "my_file.py").write_text(SOURCE.replace("mu=rho)", "mu=rho)  # FedProx"))
    assert "out is complete; nothing is left to do" in command(*arguments, "--resume")
    (here / "my_file.py").write_text(SOURCE.replace("mu=rho)", "mu=2 * rho)"))
    for name in [name for name in algorithms if ":" in name]:
        del algorithms[name]
    errors = []
    for command_of in (arguments, ("run", "fedavg", "--track", "my_file.py:silent", *SMALL)):
        with pytest.raises(SystemExit):
            command(*command_of, *["--resume"] * ("--out" in command_of))
        errors.append(capsys.readouterr().err)
    assert "  what functions of your own compute: others in the folder\n" in errors[0]
    assert "error: what a tracker returned=None is not of type AbstractContextManager" in errors[1]
    command("run", "fedavg", *SMALL, "--out", "plain")
    shutil.rmtree(here / "plain" / "runs" / "01-fedavg" / "seed-0")
    with pytest.raises(SystemExit):
        command("run", "fedavg", *SMALL, "--out", "plain", "--resume")
    error = "SHA256SUMS' cannot be read (No such file or directory); put it back, or remove"
    assert error in capsys.readouterr().err


@pytest.mark.all
def test_the_virtual_clock(command, here):
    """A planner of its own or a given one, in a folder whose name contains an @."""
    folder = here / "me@home"
    folder.mkdir()
    (folder / "my_file.py").write_text(SOURCE)
    own = "my_file.py:tiered@immediate", f"{folder}/my_file.py:tiered", "my_file.py:fedavg"
    methods = methods_of(own, Settings(seconds=9.0))
    planners = [method.planner.partition(":")[0] for method in methods]
    assert planners == ["immediate", "tiers", "barrier"]
    clock = "--model linear --clients 4 --seeds 1 --evaluations 1 --seconds 9 --out out"
    command("compare", own[1], *clock.split())
    assert [path.name for path in (here / "out").glob("timeline-*")] == ["timeline-tiered.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare nowhere.py:fedspeed", "'nowhere.py:fedspeed' cannot be imported (FileNotFoundE"),
        ("sweep my_file.py:Kind --grid mu=1", "is no algorithm (it is a class, whose objects"),
        ("compare binary.py:f", "'binary.py:f' cannot be imported (SyntaxError: source code strin"),
        ("compare folder.py:f", "'folder.py:f' cannot be imported (IsADirectoryError"),
        ("run math:sin", "(it is a part of Python or not written in it); give a function (problem"),
        ("compare .:f", "'.:f' cannot be imported (ImportError: a module's name begins with that "),
        ("compare __main__:f", "__main__: unknown function 'f'"),
        ("compare my_file.py:fedspeed:roh=1", "fedspeed: unknown option 'roh'; did you mean rho?"),
        ("compare my_file.py:nothing", "returns a NoneType; give a function (problem, local, *, ."),
        ("compare my_file.py:nothing:a=1", "my_file.py:nothing: unknown option 'a'; choose client"),
        ("compare my_file.py:fedspeed@", "names no planner after the @; leave the @ out"),
        (
            "run my_file.py:narrow",
            "server_update=<lambda> does not take (server, sums, count, group)",
        ),
        (
            "run fedavg --partition my_file.py:short --clients 50",
            "has 49 clients, and not clients=",
        ),
        (
            "run fedavg --sampler my_file.py:shared",
            "sampler=<lambda> does not take (seed, rounds, nu",
        ),
        ("run my_file.py:tiered --share 0.3", "share='0.3'"),  # is that of all commands
        ("run my_file.py:fedspeed --roh 1", "unknown option '--roh'; did you mean --rho?"),
        ("run my_file.py:fedspeed --rho -1", "rho=-1 is out of range"),
        ("run my_file.py:tiered@barrier --seconds 9", "its tiers have rounds of their own"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_mistake_is_one_line(refused, arguments, message):
    assert message in refused(*arguments.split())


OPTIONS_WITH_FACTORIES = {
    "dataset": "dataset", "model": "model", "loss": "loss", "metrics": "metric",
    "partition": "partition", "sampler": "sampler", "work": "local work",
    "rate-schedule": "rate schedule", "client-optimizer": "client optimiser",
    "system": "system model", "track": "tracker",
}  # fmt: skip


@pytest.mark.parametrize("part", ["builtins:exec", "json:JSONDecoder"])
def test_parts_of_python_are_never_called(refused, part):
    assert f"{part!r} is no algorithm (" in refused("compare", part)
    for flag, kind in OPTIONS_WITH_FACTORIES.items():
        clock = ["--seconds", "1"] if flag == "system" else []
        model = [] if flag == "model" else SMALL[:2]
        error = refused("run", "fedavg", *model, *clock, f"--{flag}", part)
        assert f"{part!r} is no {kind} (" in error
        assert "; give a function (" in error
