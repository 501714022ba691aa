"""Methods on the command line: algorithms and wrappers of the user's own, and their specs."""

import contextlib
import json
import shutil
import sys

import jax.numpy as jnp
import pytest
from helpers import programs
from report_helpers import read_table
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli import main
from fedjax_algos.cli.options import settings_of
from fedjax_algos.core import Dispatch
from fedjax_algos.core.specs import join_wrappers, split_wrappers
from fedjax_algos.models import models
from fedjax_algos.runs.studies.method import Method, configured_spec, methods_of
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.trackers import trackers
from fedjax_algos.wrappers.selection.oort import Known

pytestmark = pytest.mark.usefixtures("quick_pictures")
SOURCE = '''
import contextlib
import jax
import fedjax_algos as fa
from fedjax_algos.core.options import NonNegative

def fedspeed(problem, local, *, rho: NonNegative = 0.1, ascending: bool = True):
    """FedSpeed, or nearly.

    Its second paragraph."""
    return fa.algorithms.fedprox(problem, local, mu=rho)

def tiered(problem, local, *, share=0.5):
    own = fa.Asynchrony("tiers", ("tiers", "immediate"), "its tiers have rounds of their own")
    return fedspeed(problem, local)._replace(traits=fa.Traits(asynchrony=own))

def fedavg(problem, local, *, rounds: int = 3):
    return fa.algorithms.fedavg(problem, local, weighting="uniform")

def narrow(problem, local):
    return fa.algorithms.fedavg(problem, local)._replace(server_update=lambda server, sums: server)

def shorten(algorithm, *, share: float = 0.5):
    def client_update(*arguments):
        row, update, report = algorithm.client_update(*arguments)
        return row, jax.tree.map(lambda leaf: share * leaf, update), report

    return algorithm._replace(client_update=client_update)

def shorter(algorithm, *, share: float = 0.5):
    return shorten(algorithm, share=share)

shorter.label = "Short"

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

def nothing(algorithm): pass
'''
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 1 --seeds 1 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.fixture(autouse=True)
def own(here):
    """Files and a module of the user's own, which are forgotten after the test."""
    (here / "folder.py").mkdir()
    for path in ("my_file.py", "own_package/own_module.py", "a+b/my_file.py", "me@home/my_file.py"):
        (here / path).parent.mkdir(exist_ok=True)
        (here / path).write_text(SOURCE)
    yield
    for name in ("own_package", "own_package.own_module"):
        sys.modules.pop(name, None)


def losses(folder):
    """The losses of each method."""
    own = {}
    for row in read_table(folder / "metrics.csv"):
        own.setdefault(row["method"], []).append(row["test_loss"])
    return own


@pytest.mark.all
def test_compare_and_repeat(command, here):
    prox, own = "fedprox:mu=0.3", "my_file.py:fedspeed:rho=0.3,client_learning_rate=0.2"
    wrapped = "own_package.own_module:fedspeed:0.3+identity+a++b/my_file.py:shorten:share=0.25"
    options = ["--client-learning-rate", "0.1", "--track", "my_file.py:remember"]
    command("compare", prox, own, wrapped, *SMALL, *options)
    folder = here / "results" / "compare"
    found = losses(folder)
    assert found["fedspeed"] == found["fedprox"] != found["fedspeed+identity+shorten"]
    methods = json.loads((folder / "config.json").read_text())["methods"]
    assert methods["fedspeed"] == {
        "algorithm": "my_file.py:fedspeed", "client_learning_rate": 0.1, "client_optimizer": "sgd",
        "rho": 0.3, "ascending": True,
    }  # fmt: skip
    last = methods["fedspeed+identity+shorten"]
    assert last["algorithm"] == "own_package.own_module:fedspeed"
    assert last["wrappers"] == wrapped.partition("+")[2]
    (seen,) = trackers["my_file.py:remember"].__wrapped__.__defaults__
    assert [*seen] == [(label, 0) for label in methods]
    given = {"rho": 0.3, "clients": 12, "local_steps": 2}
    assert seen["fedspeed", 0].items() >= given.items()
    command("compare", "--config", folder / "config.json", "--wrap", "identity", "--out", "again")
    assert [*losses(here / "again").values()] == [*found.values()]


def test_own_algorithms_have_options_labels_and_planners(command, here):
    """A folder's name may contain an @."""
    text = command("run", "my_file.py:fedspeed", "--help")
    assert "FedSpeed, or nearly." in text
    assert "second paragraph" not in text
    assert "--rho VALUE" in text
    assert "a number of at least 0 [0.1]" in text
    own = f"{here}/my_file.py:fedavg"
    specs = "fedavg", own, "my_file.py:fedspeed:0.2", "my_file.py:fedspeed"
    labels = [method.label for method in methods_of(specs, Settings())]
    assert labels == ["fedavg (fedavg)", f"fedavg ({own})", "fedspeed rho=0.2", "fedspeed rho=0.1"]
    wrapped = "fedavg+my_file.py:shorter:0.2", "fedavg+my_file.py:shorter", "fedavg"
    labels = [method.label for method in methods_of(wrapped, Settings())]
    assert labels == ["fedavg+Short Short:0.2", "fedavg+Short Short", "fedavg"]
    own = "my_file.py:tiered@immediate", "me@home/my_file.py:tiered", "my_file.py:fedavg"
    clock, problem = Settings(seconds=9.0), models["linear"]((1,), 2)
    methods = [m.on_the_clock(m.build(problem, clock), clock) for m in methods_of(own, clock)]
    planners = [method.planner.partition(":")[0] for method in methods]
    assert planners == ["immediate", "tiers", "barrier"]


@pytest.mark.all
def test_resuming_notices_what_has_changed(command, here, capsys):
    """A comment changes nothing; another function, or a folder that was removed, does."""
    line = ["run", "my_file.py:fedspeed", *SMALL, "--out", "out"]
    command(*line)

    def resumed(source):
        (here / "my_file.py").write_text(source)
        for name in [name for name in algorithms if ":" in name]:
            del algorithms[name]
        with contextlib.suppress(SystemExit):
            main([*line, "--resume"])
        return "".join(capsys.readouterr())

    told = "out is complete; nothing is left to do"
    assert told in resumed(SOURCE.replace("mu=rho)", "mu=rho)  # FedProx"))
    told = "  what functions of your own compute: different in the folder\n"
    assert told in resumed(SOURCE.replace("mu=rho)", "mu=2 * rho)"))
    shutil.rmtree(here / "out" / "runs" / "01-fedspeed" / "seed-0")
    assert "SHA256SUMS' cannot be read (No such file or directory)" in resumed(SOURCE)
    line[-1:] = ["other", "--track", "my_file.py:silent"]
    assert "tracker returned=None is not of type AbstractContextManager" in resumed(SOURCE)


MISTAKES = """
compare folder.py:f | 'folder.py:f' cannot be imported (IsADirectoryError
compare .:f | '.:f' cannot be imported (ImportError
compare __main__:f | __main__: unknown function 'f'
compare my_file.py:fedspeed:roh=1 | fedspeed: unknown option 'roh'; did you mean rho?
compare my_file.py:fedspeed@ | names no planner after the @
run my_file.py:narrow | server_update=<lambda> does not take (server, sums, count, group)
run fedavg --partition my_file.py:short --clients 50 | has 49 clients, not clients=
run fedavg --sampler my_file.py:shared | sampler=<lambda> does not take (seed, rounds, nu
run my_file.py:tiered --share 0.3 | share='0.3'
run my_file.py:fedspeed --roh 1 | No such option
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


@pytest.mark.all
@pytest.mark.parametrize("in_spec", [True, False])
def test_wrappers_read_the_system_model_of_the_command(here, in_spec):
    """Of two clients with equal utility the slower one, with a ninth of it, is left out."""
    (here / "times.csv").write_text("client,seconds_per_step\n0,30\n1,10\n")
    oort = "oort:exploration=0,least_exploration=0,seconds=10"
    spec = f"fedavg+{oort}" if in_spec else "fedavg"
    values = {"system": "csv:file=times.csv", "wrap": None if in_spec else oort}
    settings = settings_of(values, "1", methods=[spec])
    algorithm = Method.of(spec, settings).build(models["linear"]((1,), 2), settings)
    known = Known(*jnp.array([[5.0, 5.0], [1, 1], [0, 0], [1, 1]]).astype(int))
    dispatch = Dispatch(*jnp.arange(2)[None].repeat(len(Dispatch._fields) - 1, 0))
    dispatch = dispatch._replace(server_step=jnp.array([1, 1]))
    given, choose = (known, dispatch, jnp.ones(2, bool), 1), algorithm.selection.choose
    assert [choose(*given, seed).tolist() for seed in range(4)] == [[1]] * 4


def test_single_pluses_separate():
    for text, specs in {
        "": [],
        "fedavg+identity": ["fedavg", "identity"],
        "a:x=1e+3,y=2+./f.py:w:z=c": ["a:x=1e+3,y=2", "./f.py:w:z=c"],
        "c++++/f.py:g+mean": ["c++/f.py:g", "mean"],
    }.items():
        assert split_wrappers(text) == split_wrappers(join_wrappers(specs)) == specs


def test_a_spec_names_the_method_that_it_came_from():
    for spec in ("fedprox:mu=1e+16+identity", "fedbuff:alpha=0.6+identity@buffered:size=5"):
        settings = Settings(seconds=9.0 if "@" in spec else None)
        method = Method.of(spec, settings)
        assert Method.of(method.spec, settings) == method
        again = Method.of(configured_spec(method.configuration()), settings)
        assert again.configuration() == method.configuration()


def test_a_tracker_in_python(tmp_path):
    """docs/command_line.md: `on_evaluation` of a run."""
    names, measured = {}, [{"round": 0, "test_loss": 1.0}, {"round": 2, "test_loss": 0.5}]
    exec(programs("docs/command_line.md")[-1], names)

    def simulate(engine, data, on_evaluation, cohort_size):
        assert (engine, data, cohort_size) == ("engine", "data", 2)
        assert [on_evaluation(row) for row in measured] == [None, None]

    names["fa"] = type("fa", (), {"simulate": staticmethod(simulate)})
    names["simulate_with_a_tracker"]("engine", "data", tmp_path, cohort_size=2)
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "mine" / "seed-0")).Reload()
    assert [(e.step, e.value) for e in reader.Scalars("test_loss")] == [(0, 1.0), (2, 0.5)]


def test_a_missing_package_is_told_before_anything_is_written(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    error = refused("run", "fedavg", "--track", "tensorboard")
    assert error.endswith("run: pip install tensorboardX\n")
