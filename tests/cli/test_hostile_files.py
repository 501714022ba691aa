"""Damaged and hostile files and texts: one line and exit code 2, or no effect."""

import dataclasses
import importlib
import json
import os

import pytest
from bad_input_helpers import SMALL, WRONG
from helpers import ROOT
from matplotlib.figure import Figure
from summary_helpers import FIRST, NAN, OTHER, rows, write_folder

from fedjax_algos.analysis import pictures
from fedjax_algos.runs.studies.folder_content import read_configuration, read_rows
from fedjax_algos.runs.studies.settings import Settings

nightly = pytest.mark.nightly
CONTROLS, SHOWN = "\x1b[31m\x07\r\u202e", r"\x1b[31m\x07\r\u202e"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


COLUMNS = "method,seed,round,test_accuracy,test_loss,upload_bytes,download_bytes,wall_seconds"
ROWS = [
    f"{method},{seed},{number},0.{number + 5},0.{9 - number},{number},{number},{number}"
    for method in ("fedavg", "fedprox")
    for seed in (0, 1)
    for number in (0, 2, 4)
]
TABLE = "\n".join([COLUMNS, *ROWS, ""])
NO_TABLES = {  # and what is told of each
    "": "not enough values",
    TABLE[:-3] + "\n": "7 cells for 8 columns",
    TABLE[:-1]: "cut off",
    TABLE + ROWS[-1] + "\n": "row 13 .* repeats an earlier row",
    TABLE.replace("fedprox", "fed\0prox"): "null character",
    TABLE.replace("method,", "m,"): "lacks one of",
    TABLE.replace("test_loss", "test_accuracy"): "has a column twice",
    TABLE.replace("0.7", "\x1b[31m"): r"test_accuracy='\\x1b\[31m', which is not a number",
    TABLE.replace(",1,", ",one,"): "seed='one', which is not a whole number",
    TABLE.replace(",2,0", ",2.5,0"): "round='2.5', which is not a whole number",
    TABLE.replace("fedprox", ""): "method='', which is not a text",
    TABLE + 'a,0,0,"0.1': "unexpected end of data",
    TABLE.replace("fedprox", "x" * 200_000): "field limit",
    bytes(range(256)): "is not UTF-8",
    "\ufeff" + TABLE: "lacks one of",
}
READABLE = [TABLE.replace("0.7", text) for text in ("nan", "inf", "", "9" * 5000)]
READABLE += [TABLE.replace(",2,", ",-2,"), TABLE.replace("fedprox", "\x1b[31m[red]é")]


@pytest.fixture
def there(here):
    """A results folder with a table."""
    (here / "there").mkdir()
    (here / "there" / "metrics.csv").write_text(TABLE)
    return here / "there"


def test_damaged_tables_of_results(refused, there):
    file = there / "metrics.csv"
    for table, message in NO_TABLES.items():
        write(file, table)
        with pytest.raises(ValueError, match=message):
            read_rows(file)
    file.write_text(TABLE.replace(ROWS[-1] + "\n", ""))
    for command in ("plot", "table"):
        assert "2 rows of seed 1, but others have 3" in refused(command, "there")
    for table in READABLE:
        file.write_text(table)
        assert len(read_rows(file)) == len(ROWS)


PATHS = ["", "--resume", "a\0b", "x" * 300, "file", "file/below", "/dev/null", "loop"]
PICTURES = ["x", "x.xyz", "nowhere/x.png", "file/x.png", "x.png/", "there/x.png/", "loop/x.png"]


@nightly
@pytest.mark.filterwarnings("error")
def test_options_of_plot_and_table(refused, command, here, there):
    (here / "file").write_text("")
    (here / "loop").symlink_to("loop")
    for text in [*WRONG, "../x", "1e400,2", "nan,", "1x2x3", "infx2", "0x0"]:
        for flag in ("metric", "x", "facet", "methods", "band", "x-limits", "y-limits", "size"):
            refused("plot", "there", f"--{flag}", text)
        for flag in ("reference", "format", "target", "columns", "label"):
            refused("table", "there", f"--{flag}", text)
    for number, text in enumerate(["", "\0", "$\\frac$", "\x1b[31m"]):
        line = ["--title", text, "--x-label", text, "--y-label", text, "--label", f"fedavg={text}"]
        command("plot", "there", *line, "--out", f"{number}.png")
    for path in [*PATHS, *PICTURES, "there", ".", "there/metrics.csv"]:
        refused("plot", "there", "--out", path)
        if path not in ("x", "x.xyz"):  # a table may have any name
            refused("table", "there", "--out", path)
        if path not in ("there", "there/metrics.csv"):
            refused("plot", path)
            refused("table", "there", path)


def configuration(**changes):
    """The text of a `config.json`, with some entries replaced or left out."""
    content = {
        "settings": {**dataclasses.asdict(Settings()), "seeds": [0]}, "methods": {"fedavg": {}},
        "environment": {"packages": {}}, "layout": None, "runs": {}, "complete": False,
    }  # fmt: skip
    return json.dumps({k: v for k, v in (content | changes).items() if v != "left out"})


HOSTILE = {"source": {"a": 1}, "layout": [], "devices": "<b>"}
LAYOUTS = [{}, {"source": "measured"}, "measured", ["source", "layout", "devices"], HOSTILE]
WHOLE = configuration()
NO_CONFIGURATIONS = [
    *("", "{}", "[]", "null", "1", '"x"', WHOLE[:-1], WHOLE[:50], WHOLE + "}", "[" * 10**5),
    *(b"\xff\xfe\x00", bytes(range(256)), b"\0"),
    *(configuration(settings={"seeds": seeds}) for seeds in (None, 3, "0", {})),
    *(configuration(layout=layout) for layout in LAYOUTS),
    *(configuration(methods={}), configuration(shares=3), configuration(shares=[[3]])),
    *(
        configuration(**{key: value})
        for key in ("settings", "methods", "environment", "layout", "complete")
        for value in ("left out", "no", 3, [1], [])
    ),
]


def test_damaged_configurations(refused, there):
    for content in NO_CONFIGURATIONS:
        write(there / "config.json", content)
        with pytest.raises(ValueError, match="is not what compare, run or sweep wrote"):
            read_configuration(there)
    for command in ("report", "plot", "table", f"run fedavg {' '.join(SMALL)} --resume --out"):
        assert "config.json" in refused(*command.split(), "there")
    write(there / "config.json", WHOLE)
    assert read_configuration(there) == json.loads(WHOLE)
    assert read_configuration(there / "none") is None


@nightly
@pytest.mark.filterwarnings("error")
def test_entries_of_a_configuration_in_a_report(command, refused, there):
    """Those that are only shown may be anything."""
    names = ["command", "config", "grid", "dataset_notes", "partition_sha256", "compilation"]
    for value in (None, True, -1, 1e300, "x", "", [1], {"a": [None]}, [{}], "\ud800</script>"):
        shown = dict.fromkeys(names, value) | {"methods": {"a": value, "b": {"algorithm": value}}}
        shown["environment"] = {"packages": {"jax": value}, "x": value}
        write(there / "config.json", configuration(complete=True, **shown))
        command("report", "there")
        (there / "report.html").unlink()
        layout = {"source": value, "layout": value, "devices": value}
        write(there / "config.json", configuration(complete=True, layout=layout))
        refused("report", "there")


PLACES = """
{} | run {} | run fedavg --{} 1 | run fedavg --rounds {} | run fedavg --dataset {}
run fedavg --dataset npz:{} | run fedavg --dataset roles:{} | run fedavg --seeds {}
run fedavg --dataset leaf:path={},task=femnist | compare fedprox:{}=1 | compare {}.py:f
compare --config {} | sweep fedavg --grid {} | plot {} | plot . --facet {} | report {} | table {}
list {}
"""
PLACES = PLACES.strip().replace("\n", " | ").split(" | ")


@pytest.mark.parametrize("line", PLACES)
@pytest.mark.parametrize(
    ("text", "shown"),
    [(f"a{CONTROLS}b", "a"), ("[/][red]$x$", "[/][red]$x$"), ("caf\udce9", "caf")],
    ids=["controls", "markup", "surrogate"],
)
def test_errors_show_what_was_given_as_plain_text(refused, line, text, shown):
    error = refused(*(word.replace("{}", text) for word in line.split()))
    assert error[:-1].isprintable()
    assert shown in error


def test_a_long_error_is_shortened(refused):
    error = refused("run", "fedavg", "--rounds", "9" * 100_000)
    assert error.startswith("error: rounds='999")
    assert error.endswith("give a whole number of at least 1\n")
    assert len(error) < 2100


def test_labels_are_no_markup_in_tables(command, here):
    measured = rows(f"[red]{CONTROLS}[/]", FIRST) + rows("[/]:smile:" + "x" * 200, OTHER)
    write_folder(here / "some", measured)
    lines = command("table", "some").splitlines()
    assert lines[1].startswith(f"[red]{SHOWN}[/] ")
    assert lines[2].startswith("[/]:smile:xxxx")
    assert " ... xxxx" in lines[2]
    for form in ("text", "markdown", "latex", "csv", "json"):
        out = command("table", "some", "--format", form)
        assert all(line.isprintable() for line in out.splitlines()), form


def test_json_has_null_for_what_is_not_finite(command, here):
    diverged, other = rows("fedavg", [[NAN] * 3] * 2), rows("other", [[0.5] * 3] * 2)
    write_folder(here / "some", diverged + other)
    read = json.loads(command("table", "some", "--format", "json"), parse_constant=pytest.fail)
    assert [(each["label"], each["best"]) for each in read] == [("fedavg", None), ("other", 0.5)]


@pytest.mark.filterwarnings("error")
def test_labels_of_pictures_are_no_mathtext(tmp_path, monkeypatch):
    """`$\\frac$` would raise, and a label with _ in front would be left out of the legend."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda own, path, **options: saved.append(own))
    labels = ["$\\frac$", "_hidden", f"a{CONTROLS}", "$x$" * 99, "plain"]
    measured = [row for label in labels for row in rows(label, FIRST)]
    measured = [row | {"$\\frac$_\x1b": row["round"]} for row in measured]
    pictures.plot_metric(measured, tmp_path / "a.png", metric="$\\frac$_\x1b")
    (axes,), (box,) = saved[0].axes, saved[0].legends
    saved[0].draw_without_rendering()
    shown = [text.get_text() for text in box.get_texts()]
    assert shown[:3] == ["$\\frac$", "_hidden", f"a{SHOWN}"]
    assert len(shown[3]) <= 80
    assert axes.get_ylabel() == "$\\frac$ \\x1b"
    assert not any(text.get_parse_math() for text in [*box.get_texts(), axes.yaxis.label])


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_refused(refused, here, name):
    os.mkfifo(here / "pipe")
    for path in ("metrics.csv", "own.py"):
        (here / path).symlink_to(here / name)
    for line in (f"compare --config {name}", f"run fedavg --dataset npz:{name}", "run own.py:f"):
        assert "not a regular file" in refused(*line.split())
    assert "metrics.csv: cannot be read: it is a pipe or a device, not a regular" in refused(
        "table", "."
    )


OUTCOMES = {
    "newest": {"older checkpoint"},
    "older": {"no effect"},
    "metrics.csv of another run": {"no effect"},
    "rows": {"refused by name", "older checkpoint", "no effect"},
    "config.json": {"refused by name", "no effect"},  # spaces between values do not matter
    "scores.json": {"refused by name", "no effect"},
}


@nightly
@pytest.mark.skipif(not (ROOT / "experiments").exists(), reason="it is not in this copy")
def test_no_flipped_bit_changes_a_result(here, monkeypatch):
    """A bit of any file that --resume reads: refused by name, or without any effect."""
    monkeypatch.syspath_prepend(ROOT / "experiments")
    flip_bits = importlib.import_module("flip_bits")
    for name in flip_bits.COMMANDS:
        (folder := here / name.replace(" ", "-")).mkdir()
        for kind, _, outcomes in flip_bits.flip_bits(name, 2, folder):
            for outcome, said, flipped in outcomes:
                shown = name, kind, outcome, flipped, said
                assert outcome in OUTCOMES.get(kind, {"refused by name"}), shown
