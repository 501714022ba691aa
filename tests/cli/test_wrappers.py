"""Wrappers on the command line: after a plus, and those of all methods."""

import json

import jax.numpy as jnp
import pytest

from fedjax_algos.cli.options import settings_of
from fedjax_algos.core import Dispatch
from fedjax_algos.core.specs import join_wrappers, split_wrappers
from fedjax_algos.models import models
from fedjax_algos.runs.method import Method, configured_spec
from fedjax_algos.runs.settings import Settings
from fedjax_algos.wrappers.selection.oort import Known

pytestmark = pytest.mark.usefixtures("quick_pictures")
SOURCE = """
import jax
import fedjax_algos as fa


def shorten(algorithm, *, share: float = 0.5):
    def client_update(*arguments):
        row, update, report = algorithm.client_update(*arguments)
        return row, jax.tree.map(lambda leaf: share * leaf, update), report

    return algorithm._replace(client_update=client_update)


def nothing(algorithm):
    pass
"""
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 1 --eval-every 1 --local-steps 2"
SMALL = [*OPTIONS.split(), "--seeds", "1"]


@pytest.fixture(autouse=True)
def own(here):
    (here / "a+b").mkdir()
    (here / "a+b" / "my_file.py").write_text(SOURCE)


def losses(rows):
    found = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row["test_loss"])
    return found


def test_compare_and_repeat(command, here, read_table):
    own = "fedavg+identity+a++b/my_file.py:shorten:share=0.25"
    command("compare", "fedavg", "fedavg+identity+mean", own, *SMALL)
    folder = here / "results" / "compare"
    rows = losses(read_table(folder / "metrics.csv"))
    assert rows["fedavg"][0] == rows["fedavg+identity+shorten"][0]
    assert rows["fedavg"][-1] != rows["fedavg+identity+shorten"][-1]
    assert float(rows["fedavg+identity+mean"][-1]) == pytest.approx(float(rows["fedavg"][-1]))
    config = json.loads((folder / "config.json").read_text())
    assert config["methods"]["fedavg+identity+shorten"]["wrappers"] == own.removeprefix("fedavg+")
    command("compare", "--config", folder / "config.json", "--wrap", "identity", "--out", "again")
    assert losses(read_table(here / "again" / "metrics.csv")) == rows


def test_candidates_are_counted_before_anything_is_trained(refused):
    methods = "fedavg", "fedavg+power_of_choice:candidates=9", "scaffold"
    error = refused("compare", *methods, *SMALL)
    message = (
        "power_of_choice: a cohort of 4 is chosen among 36 candidates, which are more than the"
    )
    assert message in error
    assert "ended at" not in error


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


@pytest.mark.all
def test_a_wrapper_of_all_settings(command, here, read_table):
    own, arguments = "a++b/my_file.py:shorten", "sweep fedprox --grid mu=0.1,0.5"
    command(*arguments.split(), *SMALL, "--wrap", own, "--out", "all")
    command(*arguments.replace("fedprox", f"fedprox+{own}").split(), *SMALL, "--out", "each")
    of_all, of_each = (losses(read_table(here / n / "metrics.csv")) for n in ("all", "each"))
    assert list(of_all.values()) == list(of_each.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare fedavg+", "'fedavg+' has a plus without a wrapper; leave it out, or name one"),
        ("compare fedavg+idenity", "unknown wrapper 'idenity'; did you mean identity?"),
        ("compare fedavg+mean:f=1", "mean takes no options; leave 'f' out"),
        ("run fedlga+mean", "fedlga: mean cannot wrap this algorithm: its server compares"),
        ("compare fedavg+mean --seconds 9", 'reduce="stack"'),
        ("run fedavg+a++b/my_file.py:nothing", "returns a NoneType; give a function (algorithm"),
        ("run fedavg+a+b/my_file.py:shorten", "unknown wrapper 'a'"),
    ],
)
def test_a_mistake_is_one_line(refused, arguments, message):
    assert message in refused(*arguments.split())


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
