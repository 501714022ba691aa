"""A file of settings and methods for `compare --config`."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("quick_pictures")
CONFIG = """
model = "linear"
clients = 12
cohort = 0.34
rounds = 50
local_steps = 2
batches = "wrapped"
eval_every = 3
client_learning_rate = 0.2
seeds = [3, 5]
methods = ["fedprox:mu=0.5", "fedprox:mu=1"]
"""


@pytest.mark.all
def test_a_config_file_is_overridden_by_the_command_line(command, here, read_table):
    (here / "study.toml").write_text(CONFIG)
    given = "--rounds 3 --local-epochs 0.5 --target 0.01 --seeds 1 --out there"
    out = command("compare", "--config", "study.toml", *given.split())
    assert "to a test accuracy of 1%" in out
    config = json.loads((here / "there" / "config.json").read_text())
    assert config["config"] == "study.toml"
    settings = config["settings"]
    assert (settings["rounds"], settings["seeds"], settings["target"]) == (3, [0], 0.01)
    assert (settings["local_steps"], settings["local_epochs"]) == (None, 0.5)
    assert (settings["cohort"], config["cohort_size"], settings["batches"]) == (0.34, 4, "wrapped")
    assert list(config["methods"]) == ["fedprox mu=0.5", "fedprox mu=1"]
    assert config["methods"]["fedprox mu=1"]["client_learning_rate"] == 0.2
    rows = read_table(here / "there" / "metrics.csv")
    assert {(row["method"], row["round"]) for row in rows} == {
        (f"fedprox mu={mu}", number) for mu in ("0.5", "1") for number in ("0", "3")
    }
    assert [row["rounds"] for row in read_table(here / "there" / "summary.csv")] == ["0.0", "0.0"]


def test_methods_of_the_command_line_replace_those_of_a_file(command, here, monkeypatch):
    (here / "study.toml").write_text(CONFIG.replace("[3, 5]", '"3-4"'))
    given = []
    monkeypatch.setattr("fedjax_algos.cli.training.train", lambda *values: given.extend(values))
    command("compare", "fedavg", "--config", "study.toml")
    settings, (method,), *_ = given
    assert (method.label, settings.seeds, settings.local_steps) == ("fedavg", (3, 4), 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("roundz = 3", "a.toml: unknown setting 'roundz'; did you mean rounds?"),
        ("local-steps = 3", "a.toml: unknown setting 'local-steps'; did you mean local_steps?"),
        ("method = ['fedavg']", "a.toml: unknown setting 'method'; did you mean methods?"),
        ("[fedavg]\nmu = 1", "a.toml: unknown setting 'fedavg'; choose "),
        ("rounds = 0", "a.toml: rounds=0 is out of range; give a whole number of at least 1"),
        ("rounds = [3]", "a.toml: rounds=[3] is not one value; give a number or a text"),
        ("clip_norm = nan", "a.toml: clip_norm=nan is no number; give a number"),
        ("seeds = [1.5]", "a.toml: seeds=[1.5] is no number of seeds (5), range (10-14)"),
        ("model = 3", "unknown model '3'"),
        ("dataset = 'npz:nowhere.npz'", "nowhere.npz"),
        ("methods = 'fedavg'", "a.toml: methods='fedavg' is no list of methods; give one such as"),
        ("rounds 3", "config='a.toml' is no TOML file: Expected '=' after a key"),
        ("rounds = 3\nrounds = 4", "config='a.toml' is no TOML file: Cannot overwrite a value"),
        ("compilation_cache = true", "a.toml: compilation_cache=True is no folder; give a text"),
        ("compilation_cache = 'a.toml'", "compilation_cache='a.toml' cannot be written to"),
        ("compilation_cash = 'a'", "'compilation_cash'; did you mean compilation_cache?"),
    ],
)
def test_mistakes_in_a_config_file_are_one_line(refused, here, line, message):
    (here / "a.toml").write_text(line)
    assert message in refused("compare", "--config", "a.toml")


def test_a_config_that_cannot_be_read_is_one_line(refused, here):
    assert "config='b.toml' cannot be read (No such fil" in refused("compare", "--config", "b.toml")
    assert "cannot be read (Is a directory)" in refused("compare", "--config", ".")
    (here / "b.toml").write_bytes(b"\xff\xfe\x00")
    assert "config='b.toml' is no TOML file" in refused("compare", "--config", "b.toml")
    assert "unknown option '--config'" in refused("run", "fedavg", "--config", "b.toml")
