"""Damaged and hostile files and texts: one line and exit code 2, or no effect."""

import dataclasses
import importlib.util
import json
import os

import pytest
from bad_input_helpers import WRONG, small
from matplotlib.figure import Figure
from summary_helpers import FIRST, NAN, OTHER, rows, write_folder

from fedjax_algos.analysis import pictures
from fedjax_algos.cli import main
from fedjax_algos.runs.saving.results_folder import read_configuration, read_rows
from fedjax_algos.runs.settings import Settings

nightly = pytest.mark.nightly
CONTROLS, SHOWN = "\x1b[31m\x07\r\u202e", r"\x1b[31m\x07\r\u202e"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def attempt(here, capsys, recwarn):
    """Runs a command line: "refused", or "done" without an error."""
    (here / "file").write_text("")
    (here / "loop").symlink_to("loop")

    def content():
        """The files and the times of their last change; opening a lock may change its time."""
        paths = [path for path in here.rglob("*") if path.is_symlink() or not path.is_dir()]
        return {path: path.name != ".lock" and path.lstat().st_mtime_ns for path in paths}

    def run(*arguments):
        before, code = content(), 0
        recwarn.clear()
        try:
            main([*arguments])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        if code:
            assert err.startswith("error: ")
            assert len(err.splitlines()) == err.count("\n") == 1
            assert (code, out, [*recwarn], content()) == (2, "", [], before)
        for path in content().keys() - before.keys():
            path.unlink()
        return "refused" if code else "done"

    return run


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
    COLUMNS: "holds no metrics",
    TABLE[:-3]: "7 cells for 8 columns",
    TABLE[:-1]: "cut off in row 12",
    TABLE + ROWS[-1] + "\n": "row 13 .* is row 12 again",
    TABLE.replace("fedprox", "fed\0prox"): "null character",
    b"\x00" * 5000: "null character",
    TABLE + "\n": "0 cells for 8 columns",
    TABLE.replace("method,", "m,"): "holds no metrics",
    TABLE.replace("test_loss", "test_accuracy"): "column 'test_accuracy' twice",
    TABLE.replace("0.7", "\x1b[31m"): r"test_accuracy='\\x1b\[31m', which is no number",
    TABLE.replace(",1,", ",one,"): "seed='one', which is no whole number",
    TABLE.replace(",2,0", ",2.5,0"): "round='2.5', which is no whole number",
    TABLE.replace("fedprox", ""): "method='', which is no text",
    TABLE.replace(",1,", f",{'9' * 400},"): "no whole number",
    TABLE.replace("0.7", "²"): "test_accuracy='²', which is no number",
    TABLE + 'a,0,0,"0.1': "unexpected end of data",
    TABLE.replace("fedprox", "x" * 200_000): "field limit",
    bytes(range(256)): "cannot be read",
    TABLE.encode("utf-16"): "'utf-8' codec",
    "\ufeff" + TABLE: "holds no metrics",
}
READABLE = [TABLE.replace("0.7", text) for text in ("nan", "inf", "", "9" * 5000)]
READABLE += [TABLE.replace(",2,", ",-2,"), TABLE.replace("fedprox", "\x1b[31m[red]é")]


def test_damaged_tables_of_results(refused, here):
    (here / "there").mkdir()
    file = here / "there" / "metrics.csv"
    for table, message in NO_TABLES.items():
        write(file, table)
        with pytest.raises(ValueError, match=message):
            read_rows(file)
    file.write_text(TABLE.replace(ROWS[-1] + "\n", ""))
    for command in ("plot", "table"):
        assert "2 rows of seed 1, but there are 3" in refused(command, "there")
    for table in READABLE:
        file.write_text(table)
        assert len(read_rows(file)) == len(ROWS)


@pytest.fixture
def there(here):
    """A results folder with a table."""
    (here / "there").mkdir()
    (here / "there" / "metrics.csv").write_text(TABLE)
    return here / "there"


PATHS = ["", "--resume", "a\0b", "x" * 300, "file", "file/below", "/dev/null", "loop"]
PICTURES = ["x", "x.xyz", "nowhere/x.png", "file/x.png", "x.png/", "there/x.png/", "loop/x.png"]


@nightly
def test_options_of_plot_and_table(attempt, there):
    for text in [*WRONG, "../x", "1e400,2", "nan,", "1x2x3", "infx2", "0x0"]:
        for flag in ("metric", "x", "facet", "methods", "band", "x-limits", "y-limits", "size"):
            assert attempt("plot", "there", f"--{flag}", text) == "refused", (flag, text)
        for flag in ("reference", "format", "target", "columns", "label"):
            assert attempt("table", "there", f"--{flag}", text) == "refused", (flag, text)
    for text in ("", "\0", "$\\frac$", "\x1b[31m"):
        line = ["--title", text, "--x-label", text, "--y-label", text, "--label", f"fedavg={text}"]
        assert attempt("plot", "there", *line) == "done", text
    for path in [*PATHS, *PICTURES, "there", ".", "there/metrics.csv"]:
        assert attempt("plot", "there", "--out", path) == "refused", path
        if path not in ("x", "x.xyz"):  # a table may have any name
            assert attempt("table", "there", "--out", path) == "refused", path
        if path not in ("there", "there/metrics.csv"):
            assert attempt("plot", path) == attempt("table", "there", path) == "refused", path
    write(there / "config.json", configuration(complete=True))
    for table in READABLE:
        write(there / "metrics.csv", table)
        for line in ("table there --format latex", "table there --format csv", "report there"):
            attempt(*line.split())


def configuration(**changes):
    """The text of a `config.json`, with some entries replaced or left out."""
    content = {
        "settings": {**dataclasses.asdict(Settings()), "seeds": [0]}, "methods": {"fedavg": {}},
        "environment": {"packages": {}}, "layout": None, "runs": {}, "complete": False,
    }  # fmt: skip
    return json.dumps({k: v for k, v in (content | changes).items() if v != "left out"})


HOSTILE = {"source": {"a": 1}, "layout": [], "devices": "<b>"}
WHOLE = configuration()
NO_CONFIGURATIONS = [
    *("", "{}", "[]", "null", "1", '"x"', WHOLE[:-1], WHOLE[:50], WHOLE + "}", "[" * 10**5),
    *(b"\xff\xfe\x00", bytes(range(256)), b"\0"),
    *(configuration(settings={"seeds": seeds}) for seeds in (None, 3, "0", {})),
    *(configuration(layout=layout) for layout in ({}, {"source": "measured"}, "measured")),
    *(configuration(layout=layout) for layout in (["source", "layout", "devices"], HOSTILE)),
    *(configuration(methods={}), configuration(shares=3), configuration(shares=[[3]])),
    *(
        configuration(**{key: value})
        for key in ("settings", "methods", "environment", "layout", "complete")
        for value in ("left out", "no", 3, [1], [])
    ),
]


def test_damaged_configurations(here):
    for content in NO_CONFIGURATIONS:
        write(here / "config.json", content)
        with pytest.raises(ValueError, match="is not what compare, run or sweep wrote"):
            read_configuration(here)
    write(here / "config.json", WHOLE)
    assert read_configuration(here) == json.loads(WHOLE)
    assert read_configuration(here / "none") is read_configuration(here / "config.json") is None


@nightly
def test_commands_on_damaged_configurations(attempt, there):
    """Those that read results or go on with them, and those that find a folder in use."""
    lines = [f"run fedavg {' '.join(small())} --out there{way}" for way in ("", " --resume")]
    lines += ["report there", "plot there", "table there"]
    for content in [*NO_CONFIGURATIONS, WHOLE, configuration(complete=True)]:
        write(there / "config.json", content)
        if content == WHOLE:  # a run that stopped left it
            (there / ".lock").touch()
        for line in lines[: 2 if content == configuration(complete=True) else None]:
            assert attempt(*line.split()) == "refused", (line, content[:200])
        (there / ".lock").unlink(missing_ok=True)
    (there / "config.json").unlink()
    (there / "config.json").mkdir()
    assert {attempt(*line.split()) for line in lines} == {"refused"}


ODD = (None, True, -1, 1e300, "x", "", [1], {"a": [None]}, [{}], "\ud800</script>")


@nightly
def test_entries_of_a_configuration_in_a_report(attempt, there):
    """Each is refused or shown."""
    names = ["command", "config", "grid", "dataset_notes", "partition_sha256", "compilation"]
    plain = {**dataclasses.asdict(Settings()), "seeds": [0]}
    for value in ODD:
        shown = [{name: value} for name in names]
        shown += [{"methods": {"fedavg": own}} for own in (value, {"algorithm": value})]
        shown += [{"environment": {"packages": {"jax": value}, "x": value}}]
        layout = {"source": value, "layout": value, "devices": value}
        some = [{"layout": layout}, *({"settings": {**plain, name: value}} for name in plain)]
        for number, changes in enumerate(shown + some):
            write(there / "config.json", configuration(complete=True, **changes))
            outcome = attempt("report", "there")
            assert outcome == "done" or number >= len(shown), changes
            assert outcome == "refused" or "layout" not in changes, changes


PLACES = """
{} | run {} | run fedavg --{} 1 | run fedavg --rounds {} | run fedavg --dataset {}
run fedavg --dataset npz:{} | run fedavg --dataset roles:{} | run fedavg --seeds {}
run fedavg --dataset leaf:path={},task=femnist | compare fedprox:{}=1 | compare {}.py:f
compare --config {} | sweep fedavg --grid {} | plot {} | plot . --facet {} | report {} | table {}
list {}
"""
PLACES = PLACES.strip().replace("\n", " | ").split(" | ")
if importlib.util.find_spec("tensorflow_datasets"):  # an optional package
    PLACES.append("run fedavg --dataset tfds:name={}")


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
    found = [(each["label"], each["best"]) for each in read]
    assert found == [("fedavg", None), ("other", 0.5)]


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
    assert "metrics.csv cannot be read" in refused("table", ".")
