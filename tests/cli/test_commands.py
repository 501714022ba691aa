"""The command line as a user meets it: what it writes, and what it says when something is wrong."""

import csv
import json

import numpy as np
import pytest

import fedjax_algos
from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli import main
from fedjax_algos.data import Partition

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 4 --eval-every 3 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(capsys, *arguments):
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    told = capsys.readouterr()
    assert stop.value.code == 2
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("error")
def test_compare(capsys, here):
    methods = ["fedavg", "fedprox:mu=1,client_learning_rate=0.3", "fedgbo:optimizer=adam"]
    out = command(capsys, "compare", *methods, *SMALL, "--seeds", "2")
    for word in ("fedavg", "fedprox", "fedgbo", "final", "±", "results/compare"):
        assert word in out
    folder = here / "results" / "compare"
    rows = read(folder / "metrics.csv")
    assert len(rows) == 3 * 2 * 3
    assert [row["round"] for row in rows[:3]] == ["0", "3", "4"]
    assert {row["method"] for row in rows} == {"fedavg", "fedprox", "fedgbo"}
    parameters = 64 * 10 + 10
    assert float(rows[2]["upload_bytes"]) == 4 * 4 * parameters * 4
    gbo = [row for row in rows if row["method"] == "fedgbo"]
    assert float(gbo[2]["download_bytes"]) == 3 * float(gbo[2]["upload_bytes"])
    assert 0 < float(rows[2]["test_accuracy"]) < 1
    assert rows[0]["train_loss"] == ""

    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["clients"] == 12
    assert config["settings"]["seeds"] == [0, 1]
    assert config["local_steps"] == 2
    assert config["methods"]["fedprox"] == {
        "algorithm": "fedprox",
        "client_learning_rate": 0.3,
        "mu": 1.0,
        "server_learning_rate": 1.0,
        "weighting": "examples",
    }
    assert config["environment"]["packages"]["fedjax_algos"] == fedjax_algos.__version__
    assert config["environment"]["backend"] == "cpu"
    compiled = config["compilation"]
    assert compiled["programs"] > compiled["from_cache"] == 0
    phases = ("trace_seconds", "lower_seconds", "backend_seconds")
    assert compiled["seconds"] == pytest.approx(sum(compiled[phase] for phase in phases))
    assert f"{compiled['seconds']:.1f} s to compile {compiled['programs']} programs, " in out
    with np.load(folder / "partitions.npz") as arrays:
        for seed in ("0", "1"):
            partition = Partition(arrays[f"indices_{seed}"], arrays[f"offsets_{seed}"])
            assert partition.digest() == config["partition_sha256"][seed]
            assert partition.num_clients == 12
    for picture in ("accuracy.png", "partition.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    description = (folder / "partition.txt").read_text()
    assert config["partition_sha256"]["1"][:12] in description
    assert len(read(folder / "summary.csv")) == 3

    out = command(capsys, "plot", folder, "--metric", "test_loss", "--x", "upload_bytes")
    assert out.strip() == str(folder / "test_loss-by-upload_bytes.png")
    again = refused(capsys, "plot", folder, "--metric", "test_loss", "--x", "upload_bytes")
    assert "exists; name another file or remove it" in again
    assert "metric='speed' is unknown; choose from test_accuracy" in refused(
        capsys, "plot", folder, "--metric", "speed"
    )


def test_run_twice_gives_the_same_numbers_in_a_new_folder(capsys, here):
    options = ["run", "fedgbo", "--optimizer", "rmsprop", "--beta", "0.5", *SMALL]
    command(capsys, *options)
    command(capsys, *options, "--layout", "2")
    first, second = (
        read(here / "results" / name / "metrics.csv") for name in ("fedgbo", "fedgbo-2")
    )
    config = json.loads((here / "results" / "fedgbo" / "config.json").read_text())
    assert config["methods"]["fedgbo"]["optimizer"] == "rmsprop"
    assert config["methods"]["fedgbo"]["beta"] == 0.5
    for a, b in zip(first, second, strict=True):
        assert float(a["test_loss"]) == pytest.approx(float(b["test_loss"]), rel=1e-5)


def test_epochs_and_rates_are_shared_options(capsys, here):
    settings = "--clients 12 --cohort 4 --rounds 1 --local-epochs 2 --batch-size 50 --model mlp:8"
    rates = "--client-learning-rate 0.5 --server-learning-rate 0.25 --seeds 3,5"
    command(capsys, "run", "fedavg", *settings.split(), *rates.split(), "--out", "here")
    config = json.loads((here / "here" / "config.json").read_text())
    assert config["methods"]["fedavg"]["client_learning_rate"] == 0.5
    assert config["methods"]["fedavg"]["server_learning_rate"] == 0.25
    assert config["settings"]["seeds"] == [3, 5]
    assert config["local_steps"] is None
    assert config["settings"]["local_epochs"] == 2


@pytest.mark.parametrize(
    ("what", "one"),
    [
        ("algorithms", "fedgbo"),
        ("datasets", "digits"),
        ("models", "mlp"),
        ("partitions", "iid"),
        ("rate_schedules", "exponential"),
        ("samplers", "cyclic"),
        ("works", "deadline"),
    ],
)
def test_list_json_is_an_array_of_names_and_nothing_else(capsys, what, one):
    names = json.loads(command(capsys, "list", what, "--json"))
    assert names == sorted(names)
    assert one in names
    assert all(name in command(capsys, "list", what) for name in names)


def test_every_algorithm_has_a_command(capsys):
    for name in algorithms:
        assert "--client-learning-rate" in command(capsys, "run", name, "--help")


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


def test_a_config_file_is_overridden_by_the_command_line(capsys, here):
    (here / "study.toml").write_text(CONFIG)
    given = "--rounds 3 --local-epochs 0.5 --target 0.01 --seeds 1 --out there"
    out = command(capsys, "compare", "--config", "study.toml", *given.split())
    assert "to a test accuracy of 1%" in out
    config = json.loads((here / "there" / "config.json").read_text())
    assert config["config"] == "study.toml"
    settings = config["settings"]
    assert (settings["rounds"], settings["seeds"], settings["target"]) == (3, [0], 0.01)
    assert (settings["local_steps"], settings["local_epochs"]) == (None, 0.5)
    assert (settings["cohort"], config["cohort_size"], settings["batches"]) == (0.34, 4, "wrapped")
    assert list(config["methods"]) == ["fedprox mu=0.5", "fedprox mu=1"]
    assert config["methods"]["fedprox mu=1"]["client_learning_rate"] == 0.2
    rows = read(here / "there" / "metrics.csv")
    assert {(row["method"], row["round"]) for row in rows} == {
        (f"fedprox mu={mu}", number) for mu in ("0.5", "1") for number in ("0", "3")
    }
    assert [row["rounds"] for row in read(here / "there" / "summary.csv")] == ["0.0", "0.0"]


def test_methods_of_the_command_line_take_the_place_of_a_file_s(capsys, here):
    (here / "study.toml").write_text(CONFIG.replace("[3, 5]", '"3-4"').replace("50", "1"))
    command(capsys, "compare", "fedavg", "--config", "study.toml")
    config = json.loads((here / "results" / "compare" / "config.json").read_text())
    assert list(config["methods"]) == ["fedavg"]
    assert config["settings"]["seeds"] == [3, 4]
    assert config["local_steps"] == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("roundz = 3", "a.toml: unknown setting 'roundz'; did you mean rounds?"),
        ("local-steps = 3", "a.toml: unknown setting 'local-steps'; did you mean local_steps?"),
        ("method = ['fedavg']", "a.toml: unknown setting 'method'; did you mean methods?"),
        ("[fedavg]\nmu = 1", "a.toml: unknown setting 'fedavg'; choose dataset, model"),
        ("rounds = 0", "a.toml: rounds=0 is out of range; give a whole number of at least 1"),
        ("rounds = true", "a.toml: rounds='True' is out of range; give a whole number"),
        ("rounds = [3]", "a.toml: rounds=[3] is not one value; give a number or a text"),
        ("clip_norm = nan", "a.toml: clip_norm='nan' is out of range; give a number"),
        ("batches = 'all'", "a.toml: batches='all' is unknown; choose short, dropped"),
        ("seeds = [1.5]", "a.toml: seeds='1.5,' is out of range; give a number (5)"),
        ("seeds = []", "a.toml: seeds=',' is out of range"),
        ("seeds = -1", "a.toml: seeds='-1' is out of range"),
        ("model = 3", "unknown model '3'"),
        ("dataset = 'npz:nowhere.npz'", "nowhere.npz"),
        ("methods = 'fedavg'", "a.toml: methods='fedavg' is no list of methods; give one such as"),
        ("methods = []", "a.toml: methods=[] is no list of methods"),
        ("methods = [1]", "a.toml: methods=[1] is no list of methods"),
        ("methods = ['fedavgg']", "unknown algorithm 'fedavgg'; did you mean fedavg?"),
        ("rounds 3", "config='a.toml' is no TOML file: Expected '=' after a key"),
        ("rounds = 3\nrounds = 4", "config='a.toml' is no TOML file: Cannot overwrite a value"),
        ("local_steps = 2\nlocal_epochs = 1", "are both given; give one of them"),
        ("compilation_cache = true", "a.toml: compilation_cache=True is no folder; give a text"),
        ("compilation_cache = 'a.toml'", "compilation_cache='a.toml' is no folder to write to"),
        ("compilation_cash = 'a'", "'compilation_cash'; did you mean compilation_cache?"),
    ],
)
def test_mistakes_in_a_config_file_are_one_line(capsys, here, line, message):
    (here / "a.toml").write_text(line)
    assert message in refused(capsys, "compare", "--config", "a.toml")


def test_a_config_that_cannot_be_read_is_one_line(capsys, here):
    assert "config='b.toml' cannot be read (No such file or directory); name a TOML" in refused(
        capsys, "compare", "--config", "b.toml"
    )
    assert "cannot be read (Is a directory)" in refused(capsys, "compare", "--config", ".")
    (here / "b.toml").write_bytes(b"\xff\xfe\x00")
    assert "config='b.toml' is no TOML file" in refused(capsys, "compare", "--config", "b.toml")
    assert "unknown option '--config'" in refused(capsys, "run", "fedavg", "--config", "b.toml")


@pytest.mark.filterwarnings("error")
def test_a_method_that_diverges_is_shown_as_such(capsys, here):
    small = "--model mlp:8 --clients 12 --cohort 2 --rounds 2 --eval-every 1 --local-steps 2"
    methods = ["fedavg:client_learning_rate=1e30", "fedavg"]
    out = command(capsys, "compare", *methods, *small.split(), "--seeds", "2")
    (line,) = [line for line in out.splitlines() if line.startswith("fedavg client_lea")][:1]
    assert " diverged " in line
    assert out.count(" diverged ") == 1
    assert [row["seeds_diverged"] for row in read(here / "results/compare/summary.csv")] == [
        "2",
        "0",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run fedavgg", "error: unknown algorithm 'fedavgg'; did you mean fedavg?"),
        ("run fedavg --roundz 3", "error: unknown option '--roundz'; did you mean --rounds?"),
        ("run fedavg --rounds 0", "rounds=0 is out of range; give a whole number of at least 1"),
        ("run fedavg --rounds 1.5", "rounds=1.5 is out of range; give a whole number"),
        ("run fedavg --rounds x", "rounds='x' is out of range; give a whole number of at least 1"),
        ("run fedavg --rounds", "'--rounds' requires an argument"),
        ("run fedavg --cohort 200", "cohort=200 is out of range; give at most clients=100"),
        ("run fedavg --cohort 2.5", "2.5 is out of range; give a whole number from 1 to 100"),
        ("run fedavg --cohort 0", "cohort=0 is out of range; give a number above 0"),
        ("run fedavg --sampler cyclik", "unknown sampler 'cyclik'; did you mean cyclic?"),
        ("run fedavg --sampler cyclic", "cyclic needs num_groups; give cyclic:num_groups=..."),
        ("run fedavg --sampler cyclic:30", "num_groups=30 groups; give num_groups of at most 10"),
        ("run fedavg --sampler dirichlet:0", "dirichlet: gamma=0 is out of range; give a number"),
        (
            "run scaffold --sampler with_replacement --clients 12",
            "but this algorithm's clients keep state; give a sampler without replacement",
        ),
        ("run fedavg --work part", "unknown work 'part'; did you mean partial?"),
        ("run fedavg --work deadline", "deadline needs seconds; give deadline:seconds=..."),
        ("run fedavg --work partial:tau_max=30", "tau_max=30 is out of range; give 1 to 9"),
        ("run fedavg --rate-schedule expo", "unknown rate schedule 'expo'; choose constant"),
        ("run fedavg --rate-schedule step:0.5", "step needs every; give step:every=..."),
        (
            "run fedavg --rate-schedule exponential:1e-30",
            "the client learning rate is 0.0 at count 11; give a rate that stays above 0",
        ),
        ("run fedavg --rate-by epoch", "rate_by='epoch' is unknown; choose round or visit"),
        ("run fedavg --local-epochs 0", "local_epochs=0 is out of range; give a number above 0"),
        ("run fedavg --batches all", "batches='all' is unknown; choose short, dropped, wrapped"),
        ("run fedavg --batches dropped --clients 600", "give smaller batches, or batches='short'"),
        ("run fedavg --weight-decay -1", "weight_decay=-1 is out of range; give a number of at"),
        ("run fedavg --clip-norm inf", "clip_norm='inf' is out of range; give a number of at"),
        ("run fedavg --client-state disk", "client_state='disk' is unknown; choose device or host"),
        ("run fedavg --examples half", "examples='half' is unknown; choose replicated or sharded"),
        ("run fedavg --examples sharded --seconds 9", "'sharded' is not for the virtual clock"),
        ("run fedavg --target 80", "target=80 is out of range; give a number above 0 and at most"),
        ("run ghbm", "ghbm needs tau; give ghbm:tau=..."),
        ("run fedavg --clients 1000", "use at most 716 clients"),
        ("run fedavg --client-learning-rate nan", "='nan' is out of range; give a number above 0"),
        ("run fedavg --local-steps 2 --local-epochs 1", "are both given; give one of them"),
        ("run fedavg --dataset digit", "unknown dataset 'digit'; did you mean digits?"),
        ("run fedavg --model mpl", "unknown model 'mpl'; did you mean mlp?"),
        ("run fedavg --model linear:3", "initialisation='3' is unknown; choose flax or torch"),
        (
            "run fedavg --partition dirichlet:0",
            "dirichlet: alpha=0 is out of range; give a number",
        ),
        ("run fedavg --partition dir", "unknown partition 'dir'"),
        ("run fedavg --layout wide", "layout='wide' is unknown; give auto, vmapped, sequential"),
        ("run fedavg --seeds x", "seeds='x' is out of range; give a number (5), a range (10-14)"),
        ("run fedavg --seeds 3,3", "seeds=(3, 3) is out of range; give different numbers from 0"),
        ("run fedprox --mu -1", "fedprox: mu=-1 is out of range; give a number of at least 0"),
        ("run fedgbo --optimizer sgd", "optimizer='sgd' is unknown; choose sgdm, rmsprop or adam"),
        ("compare fedprox:mu=a", "fedprox: mu='a' is out of range"),
        ("compare fedprox:nu=1", "fedprox: unknown option 'nu'; choose mu, server_l"),
        ("compare fedavg fedavg", "name one of them twice"),
        ("list algorithm", "unknown list 'algorithm'; did you mean algorithms?"),
        ("list rate-schedules", "did you mean rate_schedules?"),
        ("list qq", "unknown list 'qq'; choose algorithms, datasets"),
        ("lisst", "unknown command 'lisst'; did you mean list?"),
        ("plot", "no results folder is given"),
        ("plot nowhere", "nowhere/metrics.csv cannot be read; name a folder that compare or run"),
        ("plot nowhere --x time", "unknown axis 'time'"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert message in refused(capsys, *arguments.split())


def test_a_full_folder_is_not_overwritten(capsys, here):
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("mine")
    told = refused(capsys, "run", "fedavg", "--out", "full")
    assert "out='full' is not empty; name another folder or remove it" in told
    assert [path.name for path in (here / "full").iterdir()] == ["thesis.txt"]
