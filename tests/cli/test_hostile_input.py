"""Text from outside is neither markup nor control codes; hostile files end in one line."""

import importlib.util
import json
import os

import pytest
from summary_helpers import FIRST, NAN, OTHER, rows

from fedjax_algos.analysis import pictures
from fedjax_algos.cli import main
from fedjax_algos.runs import results

needs_tfds = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_datasets") is None,
    reason="tensorflow-datasets, an optional package, is not installed",
)
CONTROLS = "\x1b[31m\x07\r\u202e"
SHOWN = r"\x1b[31m\x07\r\u202e"


@pytest.mark.parametrize(
    "arguments",
    [
        ["{}"],
        ["run", "{}"],
        ["run", "fedavg", "--{}", "1"],
        ["run", "fedavg", "--rounds", "{}"],
        ["run", "fedavg", "--dataset", "{}"],
        ["run", "fedavg", "--dataset", "npz:{}"],
        ["run", "fedavg", "--dataset", "roles:{}"],
        ["run", "fedavg", "--dataset", "leaf:path={},task=femnist"],
        pytest.param(["run", "fedavg", "--dataset", "tfds:name={}"], marks=needs_tfds),
        ["run", "fedavg", "--seeds", "{}"],
        ["compare", "fedprox:{}=1"],
        ["compare", "{}.py:f"],
        ["compare", "--config", "{}"],
        ["sweep", "fedavg", "--grid", "{}"],
        ["plot", "{}"],
        ["plot", ".", "--facet", "{}"],
        ["report", "{}"],
        ["table", "{}"],
        ["list", "{}"],
    ],
)
@pytest.mark.parametrize(
    ("text", "shown"),
    [(f"a{CONTROLS}b", f"a{SHOWN}b"), ("[/][red]$x$", "[/][red]$x$"), ("caf\udce9", r"caf\udce9")],
    ids=["controls", "markup", "surrogate"],
)
def test_errors_show_what_was_given_as_plain_text(refused, arguments, text, shown):
    error = refused(*(argument.replace("{}", text) for argument in arguments))
    assert error[:-1].isprintable()
    inner = shown if "\\" not in shown else shown.replace("\\r", " ").split("\\")[0]
    assert inner.split()[0] in error


def test_a_long_error_is_shortened(refused):
    error = refused("run", "fedavg", "--rounds", "9" * 100_000)
    assert error.startswith("error: rounds='999")
    assert error.endswith("give a whole number of at least 1\n")
    assert len(error) < 2100


def write(folder, lines):
    folder.mkdir()
    results.write_table(folder / "metrics.csv", lines)
    return folder


def test_labels_are_no_markup_in_tables(command, here):
    measured = rows(f"[red]{CONTROLS}[/]", FIRST) + rows("[/]:smile:" + "x" * 200, OTHER)
    write(here / "some", measured)
    out = command("table", "some")
    _, first, other = out.splitlines()[:3]
    assert first.startswith(f"[red]{SHOWN}[/] ")
    assert other.startswith("[/]:smile:xxxx")
    assert " ... xxxx" in other
    assert all(line.isprintable() for line in out.splitlines())
    for form in ("markdown", "latex", "csv", "json"):
        out = command("table", "some", "--format", form)
        assert all(line.isprintable() for line in out.splitlines()), form


def test_json_has_null_for_what_is_not_finite(command, here):
    diverged = rows("fedavg", [[NAN] * 12] * 2, download_bytes=1, simulated_seconds=1)
    other = rows("other", [[0.5] * 12] * 2, download_bytes=1, simulated_seconds=1)
    write(here / "some", diverged + other)

    def refuse(text):
        pytest.fail(f"{text} is not JSON")

    out = command("table", "some", "--format", "json")
    diverged, finite = json.loads(out, parse_constant=refuse)
    assert (diverged["label"], diverged["best"]) == ("fedavg", None)
    assert (finite["label"], finite["best"]) == ("other", 0.5)


@pytest.fixture
def figure(monkeypatch):
    """The figure that a plot saves."""
    from matplotlib.figure import Figure

    saved = []
    save = Figure.savefig

    def keep(self, *args, **keywords):
        saved.append(self)
        save(self, *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


@pytest.mark.filterwarnings("error")
def test_labels_of_pictures_are_no_mathtext(tmp_path, figure):
    """`$\\frac$` would raise, and a label with _ in front would be left out of the legend."""
    labels = ["$\\frac$", "_hidden", f"a{CONTROLS}", "$x$" * 99, "plain"]
    measured = [row for label in labels for row in rows(label, FIRST)]
    measured = [row | {"$\\frac$_\x1b": row["round"]} for row in measured]
    pictures.plot_metric(measured, tmp_path / "a.png", metric="$\\frac$_\x1b")
    (axes,) = figure[0].axes
    texts = figure[0].legends[0].get_texts()
    shown = [text.get_text() for text in texts]
    assert shown[:3] == ["$\\frac$", "_hidden", f"a{SHOWN}"]
    assert len(shown[3]) <= 80
    assert axes.get_ylabel() == "$\\frac$ \\x1b"
    assert not any(text.get_parse_math() for text in [*texts, axes.yaxis.label])


def test_a_metric_names_no_folder(command, here):
    write(here / "some", [row | {"../[a]/b": 1.0} for row in rows("fedavg", FIRST)])
    assert command("plot", "some", "--metric", "../[a]/b") == "some/..-a-b-by-round.png\n"


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_refused(refused, here, name):
    os.mkfifo(here / "pipe")
    (here / "some").mkdir()
    (here / "some" / "metrics.csv").symlink_to(here / name)
    (here / "own.py").symlink_to(here / name)
    for arguments in (
        ["compare", "--config", name],
        ["run", "fedavg", "--dataset", f"npz:{name}"],
        ["compare", "own.py:fedspeed"],
    ):
        assert "not a regular file" in refused(*arguments)
    for arguments in (["plot", "some"], ["table", "some"]):
        assert "some/metrics.csv cannot be read; name a folder" in refused(*arguments)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = " + "[" * 10_000 + "]" * 10_000, "no TOML file: it is nested too deeply"),
        ("rounds" + ".a" * 100_000 + " = 1", "line 1 has more than 256 dots; divide it"),
        ("\n[rounds" + ".a" * 300 + "]", "line 2 has more than 256 dots; divide it"),
        ("rounds" + ".a" * 200 + " = 1", "rounds={'a': {'a': {'a': {"),
        ("rounds = " + "9" * 5000, "no TOML file: Exceeds the limit"),
        ("rounds = 0x" + "f" * 5000, "a.toml: rounds has too many digits; give a smaller number"),
        ("seeds = [0x" + "f" * 5000 + "]", "a.toml: seeds has too many digits"),
        ("rounds = '" + "9" * 10_000 + "'", "is no whole number; give a whole number"),
        ("methods = [" + "1," * 10_000 + "]", "methods=[1, 1, 1, 1, 1, 1, ...] is no list of"),
        ("#" * 300_000, "no TOML file: it has more than 262 kB, which are too many"),
        ('"\\u001b[31m" = 1', r"unknown setting '\x1b[31m'"),
        ('dataset = "[/]\\u202e"', r"unknown dataset '[/]\u202e'"),
    ],
    ids=lambda text: text[:40],
)
def test_hostile_settings_are_refused(refused, here, text, message):
    (here / "a.toml").write_text(text)
    assert message in refused("compare", "--config", "a.toml")


@pytest.mark.all
def test_names_are_no_markup_while_a_run_goes_on(capsys, here):
    """The name of a data set is shown before the run; a note of its reader as well."""
    lines = "\n".join(["some text of a role that is long enough for its windows"] * 3)
    (here / "[").mkdir()
    name = f"[/red]{CONTROLS}.json"  # a file in the folder "["
    (here / name).write_text(json.dumps({"A": lines, "B": lines, "short": "one"}))
    options = "--model linear --partition natural --clients 2 --cohort 1 --rounds 1"
    data = f"roles:{name},window=4,max_examples_per_role=20"
    main(["run", "fedavg", "--dataset", data, "--local-steps", "1", *options.split()])
    error = capsys.readouterr().err
    assert f"roles:[/red]{SHOWN}.json,window=4" in error
    assert "1 of 3 roles are too short and left out" in error
    assert "\x1b" not in error
