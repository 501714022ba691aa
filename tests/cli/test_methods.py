"""Methods on the command line: algorithms and wrappers of the user's own, and their specs."""

import contextlib
import json
import shutil
import sys

import jax.numpy as jnp
import pytest

from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli import main
from fedjax_algos.cli.options import settings_of
from fedjax_algos.cli.registries import REGISTRIES
from fedjax_algos.core import Dispatch
from fedjax_algos.core.specs import join_wrappers, split_wrappers
from fedjax_algos.models import models
from fedjax_algos.runs.method import Method, configured_spec, methods_of
from fedjax_algos.runs.saving.trackers import trackers
from fedjax_algos.runs.settings import Settings
from fedjax_algos.wrappers.selection.oort import Known

pytestmark = pytest.mark.usefixtures("quick_pictures")
SOURCE = '''
import contextlib
import jax
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

def shorten(algorithm, *, share: float = 0.5):
    def client_update(*arguments):
        row, update, report = algorithm.client_update(*arguments)
        return row, jax.tree.map(lambda leaf: share * leaf, update), report

    return algorithm._replace(client_update=client_update)

def short(labels, num_clients, seed):
    return fa.data.partitions["iid"](labels, num_clients - 1, seed)

def silent():
    return lambda run: None

def remember(seen={}):
    @contextlib.contextmanager
    def track(run):
        seen[run.method, run.seed] = run.settings
        yield dict.clear

    return track

def shared():
    return lambda seed: seed

def nothing(problem, local=None): pass
class Kind: pass
number = 3
'''
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 1 --eval-every 1 --seeds 1"
SMALL = [*OPTIONS.split(), "--local-steps", "2"]


@pytest.fixture(autouse=True)
def own(here):
    """Files and a module of the user's own, which are forgotten after the test."""
    (here / "binary.py").write_bytes(bytes(range(256)))
    (here / "folder.py").mkdir()
    for path in ("my_file.py", "own_package/own_module.py", "a+b/my_file.py", "me@home/my_file.py"):
        (here / path).parent.mkdir(exist_ok=True)
        (here / path).write_text(SOURCE)
    yield
    for name in ("own_package", "own_package.own_module"):
        sys.modules.pop(name, None)


def losses(path, read_table):
    """The losses of each method."""
    found = {}
    for row in read_table(path / "metrics.csv"):
        found.setdefault(row["method"], []).append(row["test_loss"])
    return found


@pytest.mark.all
def test_compare_and_repeat(command, here, read_table):
    prox, own = "fedprox:mu=0.3", "my_file.py:fedspeed:rho=0.3,client_learning_rate=0.2"
    wrapped = "own_package.own_module:fedspeed:0.3+identity+a++b/my_file.py:shorten:share=0.25"
    command("compare", prox, own, wrapped, *SMALL, "--client-learning-rate", "0.1")
    folder = here / "results" / "compare"
    found = losses(folder, read_table)
    assert found["fedspeed"] == found["fedprox"] != found["fedspeed+identity+shorten"]
    methods = json.loads((folder / "config.json").read_text())["methods"]
    assert methods["fedspeed"] == {
        "algorithm": "my_file.py:fedspeed", "client_learning_rate": 0.1, "client_optimizer": "sgd",
        "rho": 0.3, "ascending": True,
    }  # fmt: skip
    last = methods["fedspeed+identity+shorten"]
    assert last["algorithm"] == "own_package.own_module:fedspeed"
    assert last["wrappers"] == wrapped.partition("+")[2]
    command("compare", "--config", folder / "config.json", "--wrap", "identity", "--out", "again")
    assert [*losses(here / "again", read_table).values()] == [*found.values()]


def test_own_algorithms_have_options_labels_and_planners(command, here):
    """A folder's name may contain an @."""
    text = command("run", "my_file.py:fedspeed", "--help")
    assert "FedSpeed, or nearly." in text
    assert "second paragraph" not in text
    assert "--rho VALUE" in text
    assert "a number of at least 0 [0.1]" in text
    assert "my_file" not in command("run", "--help").partition("Commands:")[2]
    own = f"{here}/my_file.py:fedavg"
    specs = "fedavg", own, "my_file.py:fedspeed:0.2", "my_file.py:fedspeed"
    labels = [method.label for method in methods_of(specs, Settings())]
    assert labels == ["fedavg (fedavg)", f"fedavg ({own})", "fedspeed rho=0.2", "fedspeed rho=0.1"]
    own = "my_file.py:tiered@immediate", "me@home/my_file.py:tiered", "my_file.py:fedavg"
    methods = methods_of(own, Settings(seconds=9.0))
    planners = [method.planner.partition(":")[0] for method in methods]
    assert planners == ["immediate", "tiers", "barrier"]


@pytest.mark.all
def test_a_sweep_of_own_options_and_a_wrapper_of_all_settings(command, here, read_table):
    line = ["sweep", "my_file.py:fedspeed:ascending=false", "--grid", "rho=0.1,0.2", *SMALL]
    wrapped = ["--wrap", "a++b/my_file.py:shorten", "--track", "my_file.py:remember"]
    command(*line, "--out", "all", *wrapped)
    (seen,) = trackers["my_file.py:remember"].__wrapped__.__defaults__
    assert [*seen] == [("fedspeed rho=0.1", 0), ("fedspeed rho=0.2", 0)]
    given = {"rho": 0.1, "clients": 12, "local_steps": 2}
    assert seen["fedspeed rho=0.1", 0].items() >= given.items()
    methods = json.loads((here / "all" / "config.json").read_text())["methods"]
    assert sorted(methods) == ["fedspeed rho=0.1", "fedspeed rho=0.2"]
    own = {"algorithm": "my_file.py:fedspeed", "rho": 0.2, "ascending": False}
    assert methods["fedspeed rho=0.2"].items() >= own.items()
    line[1] += "+a++b/my_file.py:shorten"
    command(*line, "--out", "each")
    of_all, of_each = (losses(here / name, read_table) for name in ("all", "each"))
    assert [*of_all.values()] == [*of_each.values()]


@pytest.mark.all
def test_resuming_notices_what_has_changed(command, here, capsys):
    """A comment changes nothing; another function, or a folder that was removed, does."""
    line = ["run", "my_file.py:fedspeed", *SMALL, "--out", "out"]
    command(*line)

    def resumed(source):
        """What is printed after the file has changed."""
        (here / "my_file.py").write_text(source)
        for name in [name for name in algorithms if ":" in name]:
            del algorithms[name]
        with contextlib.suppress(SystemExit):
            main([*line, "--resume"])
        return "".join(capsys.readouterr())

    told = "out is complete; nothing is left to do"
    assert told in resumed(SOURCE.replace("mu=rho)", "mu=rho)  # FedProx"))
    told = "  what functions of your own compute: others in the folder\n"
    assert told in resumed(SOURCE.replace("mu=rho)", "mu=2 * rho)"))
    shutil.rmtree(here / "out" / "runs" / "01-fedspeed" / "seed-0")
    assert "SHA256SUMS' cannot be read (No such file or directory)" in resumed(SOURCE)
    line[-1:] = ["other", "--track", "my_file.py:silent"]
    assert "tracker returned=None is not of type AbstractContextManager" in resumed(SOURCE)


MISTAKES = """
compare nowhere.py:fedspeed | 'nowhere.py:fedspeed' cannot be imported (FileNotFoundE
compare binary.py:f | 'binary.py:f' cannot be imported (SyntaxError
compare folder.py:f | 'folder.py:f' cannot be imported (IsADirectoryError
compare .:f | '.:f' cannot be imported (ImportError
compare __main__:f | __main__: unknown function 'f'
compare my_file.py:fedspeed:roh=1 | fedspeed: unknown option 'roh'; did you mean rho?
compare my_file.py:nothing | returns a NoneType; give a function (problem, local
compare my_file.py:nothing:a=1 | my_file.py:nothing: unknown option 'a'; choose client
compare my_file.py:fedspeed@ | names no planner after the @
sweep my_file.py:Kind --grid mu=1 | is no algorithm (it is a class, whose objects
run math:sin | it is a part of Python or not written in it
run my_file.py:narrow | server_update=<lambda> does not take (server, sums, count, group)
run fedavg --partition my_file.py:short --clients 50 | has 49 clients, and not clients=
run fedavg --sampler my_file.py:shared | sampler=<lambda> does not take (seed, rounds, nu
run my_file.py:tiered --share 0.3 | share='0.3'
run my_file.py:fedspeed --roh 1 | unknown option '--roh'; did you mean --rho?
run my_file.py:fedspeed --rho -1 | rho=-1 is out of range
run my_file.py:tiered@barrier --seconds 9 | its tiers have rounds of their own
run fedavg+a++b/my_file.py:nothing | returns a NoneType; give a function (algorithm
run fedavg+a+b/my_file.py:shorten | unknown wrapper 'a'
"""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line(refused, case):
    line, message = case.split(" | ")
    assert message in refused(*line.split())


@pytest.mark.parametrize("part", ["builtins:exec", "json:JSONDecoder"])
def test_parts_of_python_are_never_called(refused, part):
    assert f"{part!r} is no algorithm (" in refused("compare", part)
    for registry in REGISTRIES.values():
        with pytest.raises(ValueError, match=f"{part!r} is no {registry.kind} "):
            registry.parse(part)


@pytest.mark.all
@pytest.mark.parametrize("spec", ["fedavg+oort", "fedavg"])
def test_wrappers_read_the_system_model_of_the_command(here, spec):
    """Of two clients with equal utility the slower one, with a ninth of it, is left out."""
    (here / "times.csv").write_text("client,seconds_per_step\n0,30\n1,10\n")
    wrapped = "oort:exploration=0,least_exploration=0,seconds=10"
    own, wrap = (f"{spec}:{wrapped[5:]}", None) if "+" in spec else (spec, wrapped)
    values = {"system": "csv:file=times.csv", "wrap": wrap}
    method = Method.of(own, settings := settings_of(values, "1", methods=[own]))
    algorithm = method.build(models["linear"]((1,), 2), settings)
    known = Known(*jnp.array([[5.0, 5.0], [1, 1], [0, 0], [1, 1]]).astype(int))
    dispatch = Dispatch(*jnp.arange(2)[None].repeat(len(Dispatch._fields) - 1, 0))
    dispatch = dispatch._replace(server_step=jnp.array([1, 1]))
    for seed in range(4):
        chosen = algorithm.selection.choose(known, dispatch, jnp.ones(2, bool), 1, seed)
        assert chosen.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("", []),
        ("fedavg+identity", ["fedavg", "identity"]),
        ("a:x=1e+3,y=2+./f.py:w:z=c", ["a:x=1e+3,y=2", "./f.py:w:z=c"]),
        ("c++++/f.py:g+mean", ["c++/f.py:g", "mean"]),
    ],
)
def test_single_pluses_separate(text, specs):
    assert split_wrappers(text) == specs
    assert split_wrappers(join_wrappers(specs)) == specs


def test_a_spec_names_the_method_that_it_came_from():
    for spec in ("fedprox:mu=1e+16+identity", "fedbuff:alpha=0.6+identity@buffered:size=5"):
        settings = Settings(seconds=9.0 if "@" in spec else None)
        method = Method.of(spec, settings)
        assert Method.of(method.spec, settings) == method
        again = Method.of(configured_spec(method.configuration()), settings)
        assert again.configuration() == method.configuration()
