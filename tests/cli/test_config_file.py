"""Files of settings and methods for `compare --config`: what prevails, and what is refused."""

import json
from types import SimpleNamespace

import pytest

import fedjax_algos as fa
from fedjax_algos.cli import main
from fedjax_algos.cli.config_file import SETUPS, read_config
from fedjax_algos.runs.studies.method import Method
from fedjax_algos.runs.studies.settings import Settings

CONFIG = """
model = "linear"
clients = 12
cohort = 0.34
rounds = 50
local_steps = 2
batches = "wrapped"
client_learning_rate = 0.2
seeds = [3, 5]
methods = ["fedprox:mu=0.5", "fedprox:mu=1"]
compilation_cache = "there"
"""
TUNED = """
methods = ["fedavg:client_learning_rate=0.3", "fedprox:mu=0.1"]
rounds = 7
layout = "sequential"
[tuning]
seeds = [1000]
"""


@pytest.fixture
def used(here, monkeypatch):
    """What `compare` would train with a file and a line."""

    def compare(text, line, name="a.toml"):
        (here / name).write_text(text)
        given = []
        monkeypatch.setattr("fedjax_algos.cli.training.train", lambda *values: given.extend(values))
        main(["compare", "--config", name, *line.split()])
        names = ("settings", "methods", "name", "values", "tuning")
        return SimpleNamespace(**dict(zip(names, given, strict=True)))

    return compare


def test_the_command_line_prevails_over_the_file(used):
    file = used(CONFIG, "")
    assert [method.label for method in file.methods] == ["fedprox mu=0.5", "fedprox mu=1"]
    assert {method.client_learning_rate for method in file.methods} == {0.2}
    own = file.settings
    assert (own.model, own.clients, own.cohort_size, own.rounds) == ("linear", 12, 4, 50)
    assert (own.local_steps, own.batches, own.seeds) == (2, "wrapped", (3, 5))
    assert file.values["compilation_cache"] == "there"
    line = "fedavg --rounds 3 --local-epochs 0.5 --target 0.01 --seeds 1 --compilation-cache own"
    both = used(CONFIG, line)
    assert [method.label for method in both.methods] == ["fedavg"]
    own = both.settings
    assert (own.rounds, own.seeds, own.target, own.clients) == (3, (0,), 0.01, 12)
    assert (own.local_steps, own.local_epochs) == (None, 0.5)
    assert both.values["compilation_cache"] == "own"
    assert used(CONFIG.replace("[3, 5]", '"3-4"'), "").settings.seeds == (3, 4)
    nothing = used("", "")
    assert nothing.settings.seeds == tuple(range(10))
    assert len(nothing.methods) == 5


@pytest.mark.parametrize("name", SETUPS)
def test_the_setups_of_the_package(name):
    file = read_config(name)
    settings = Settings(**file.settings)
    problem = fa.models.mlp((4,), 10)
    built = [Method.of(spec, settings).build(problem, settings) for spec in file.methods]
    assert len(built) == 9
    assert (settings.clients, settings.rounds, settings.local_epochs) == (100, 1000, 5)


def test_a_run_is_repeated_from_its_configuration(used):
    again = used(json.dumps(configuration(tuning={"seeds": [7]})), "", "a.json")
    assert [method.spec for method in again.methods] == ["fedavg:client_learning_rate=0.1"]
    assert (again.settings.rounds, again.settings.seeds) == (3, (0,))
    assert again.tuning == {"seeds": [7]}


@pytest.mark.parametrize(
    ("line", "tuned"),
    [
        ("", True),
        ("--seeds 3 --target 0.5 --reference fedprox --eval-every 2 --out a", True),
        ("--layout vmapped --devices 2 --client-state host --examples sharded", True),
        ("--evaluate-clients held_out --held-out 0.1 --personal-steps 2", True),
        ("--rounds 7 --track tensorboard", True),
        ("--rounds 8", False),
        ("--model linear", False),
        ("fedavg:client_learning_rate=0.3", False),
    ],
)
def test_what_was_not_tuned_is_not_called_tuned(used, line, tuned):
    assert used(TUNED, line).tuning == ({"seeds": [1000]} if tuned else None)
    assert used("[tuning]\nseeds = [1]\n", line).tuning is None  # it names no methods


WRONG = """
roundz = 3 | a.toml: not a file of settings: unknown setting 'roundz'; did you mean rounds?
method = ['fedavg'] | unknown setting 'method'; did you mean methods?
"\\u001b[31m" = 1 | unknown setting '\\x1b[31m'
[fedavg] | a.toml: not a file of settings: unknown setting 'fedavg'; choose
rounds = 0 | a.toml: not a file of settings: rounds=0 is out of range
rounds = true | a.toml: not a file of settings: rounds=True is not a whole number
rounds = [3] | rounds=[3] is not one value
clip_norm = nan | a.toml: not a file of settings: clip_norm=nan is not a number
seeds = [1.5] | a.toml: not a file of settings: seeds=[1.5] is not a seed count
model = 3 | unknown model '3'
methods = 'fedavg' | a.toml: not a file of settings: methods='fedavg' is not a list of methods
methods = [] | a.toml: not a file of settings: methods=[] is not a list of methods
rounds 3 | a.toml: not a file of settings: Expected '='
compilation_cache = true | compilation_cache=True is not a path
compilation_cache = 'a.toml' | compilation_cache='a.toml' cannot be written to
"""
HOSTILE = {
    "rounds = " + "[" * 10_000 + "]" * 10_000: "it is nested too deeply",
    "\n[rounds" + ".a" * 300 + "]": "line 2 has more than 256 dots",
    "rounds" + ".a" * 200 + " = 1": "rounds={'a': {'a': {'a': {",
    "rounds = " + "9" * 5000: "a.toml: not a file of settings: Exceeds the limit",
    "seeds = [0x" + "f" * 5000 + "]": "Exceeds the limit",
    "methods = [" + "1," * 10_000 + "]": "methods=[1, 1, 1, 1, 1, 1, ...] is not a list of",
    "#" * 300_000: "it has more than 262 kB",
}


def configuration(**changes):
    content = {
        "command": ["compare", "fedavg"],
        "settings": {"rounds": 3, "seeds": [0], "target": None},
        "methods": {"fedavg": {"algorithm": "fedavg", "client_learning_rate": 0.1}},
    }
    return content | changes


WRONG_RESULTS = [
    ("{", "a.json: not a file of settings: Expecting"),
    ([], "it has no settings and methods of a run; give a TOML file"),
    (configuration(methods={}), "it has no settings and methods of a run"),
    (configuration(grid={}), "its command was fedjax-algos compare fedavg"),
    (
        configuration(settings={"roundz": 3}),
        "a.json: not a file of settings: unknown setting 'roundz'; did you mean",
    ),
    (
        configuration(methods={"fedavg": {"mu": 1}}),
        "a.json: not a file of settings: {'mu': 1} is not a method",
    ),
    (configuration(methods={"a": {"algorithm": "fedavg", "weighting": []}}), "is not a method"),
    (
        configuration(tuning={"seeds": "x"}),
        "a.json: not a file of settings: tuning={'seeds': 'x'} is not what tune",
    ),
]
TOML = [*(line.split(" | ") for line in WRONG.strip().splitlines()), *HOSTILE.items()]


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [*(("a.toml", *each) for each in TOML), *(("a.json", *each) for each in WRONG_RESULTS)],
    ids=lambda each: str(each)[:40],
)
def test_wrong_files(refused, here, name, content, message):
    (here / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert message in refused("compare", "--config", name)
