"""Bad files of settings, results and data: each is one line and exit code 2, or is read."""

import dataclasses
import json

import numpy as np
import pytest
from bad_input_helpers import quick, small
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.core.options import options
from fedjax_algos.runs.settings import Settings

KEYS = [*options(Settings), "methods", "compilation_cache"]
VALUES = [
    *('""', '"x"', "'\u001b[31m'", '"\\u0000"', "true", "nan", "inf", "-inf", "-1", "0", "1.5"),
    *("1e400", "[]", "[[]]", "[{}]", '["x", 1]', "{}", "{a = 1}", "1979-05-27", "07:32:00", "0x10"),
    *("1" + 400 * "0", "1_000", '"""\n"""', "[1, 2.5]", '["fedavg", "fedavg"]', '["fedavg:mu=1"]'),
]  # fmt: skip
TEXTS = [
    *("[", "]", "=", "a", "a =", "= 1", "a = 1\na = 2", "[a]\n[a]", "[[methods]]", "[methods]"),
    *("a.b.c = 1", '"" = 1', "rounds", "rounds = ", 'rounds = "', "rounds = 1 2", "rounds.x = 1"),
    *("\0", "\ufeffrounds = 1", "[settings]\nrounds = 1", "# \x1b", "\r", "rounds = 01"),
]  # fmt: skip


@pytest.mark.all
def test_files_of_settings(attempt, here):
    file = here / "a.toml"
    line = ["compare", "--config", "a.toml"]
    for text in TEXTS:
        file.write_text(text)
        attempt(*line, *small())
    for content in (b"\xff\xfe", bytes(range(256)), "rounds = 1".encode("utf-16"), b"\x80"):
        file.write_bytes(content)
        assert attempt(*line) == "refused", content
    for path in ("", "nowhere.toml", ".", "file/a.toml", "loop", "x" * 300, "a\0.toml"):
        assert attempt("compare", "--config", path) == "refused", path

    @settings(quick, max_examples=250)
    @given(st.sampled_from(KEYS), st.sampled_from(VALUES))
    def check(key, value):
        file.write_text(f"{key} = {value}\n")
        others = {"methods": None, key: None}
        methods = [] if key == "methods" else ["fedavg"]
        attempt(*line, *methods, *small(**others))

    check()


COLUMNS = "method,seed,round,test_accuracy,test_loss,upload_bytes,download_bytes,wall_seconds"
ROWS = [
    f"{method},{seed},{number},0.{number + 5},0.{9 - number},{number},{number},{number}"
    for method in ("fedavg", "fedprox")
    for seed in (0, 1)
    for number in (0, 2, 4)
]
TABLE = "\n".join([COLUMNS, *ROWS, ""])
NO_TABLES = [  # and what is told of each
    ("", "cannot be read (not enough values"),
    (TABLE.split("\n")[0], "holds no metrics"),
    (TABLE[:-3], "has 7 cells for 8 columns"),
    (TABLE[:-1], "is cut off in row 12, which has no end of line"),
    (TABLE + ROWS[-1] + "\n", "row 13 of there/metrics.csv is row 12 again; remove one of them"),
    (TABLE.replace("fedprox", "fed\0prox"), "it has a null character"),
    (b"\x00" * 5000, "it has a null character"),
    (TABLE + "\n", "has 0 cells for 8 columns"),
    (TABLE.replace("method,", "m,"), "holds no metrics"),
    (TABLE.replace("test_loss", "test_accuracy"), "has the column 'test_accuracy' twice"),
    (TABLE.replace("0.7", "\x1b[31m"), r"has test_accuracy='\x1b[31m', which is no number"),
    (TABLE.replace(",1,", ",one,"), "has seed='one', which is no whole number"),
    (TABLE.replace(",2,0", ",2.5,0"), "has round='2.5', which is no whole number"),
    (TABLE.replace("fedprox", ""), "has method='', which is no text"),
    (TABLE.replace(",1,", f",{'9' * 400},"), "which is no whole number"),
    (TABLE.replace("0.7", "²"), "has test_accuracy='²', which is no number"),
    (TABLE + 'a,0,0,"0.1', "cannot be read (unexpected end of data)"),
    (TABLE.replace("fedprox", "x" * 200_000), "field larger than field limit"),
    (bytes(range(256)), "cannot be read ("),
    (TABLE.encode("utf-16"), "cannot be read ('utf-8' codec"),
    ("\ufeff" + TABLE, "holds no metrics"),
    (TABLE.replace(ROWS[-1] + "\n", ""), "fedprox has 2 rows of seed 1, but there are 3 of others"),
]
READABLE = [TABLE.replace("0.7", text) for text in ("nan", "inf", "", "9" * 5000)]
READABLE += [TABLE.replace(",2,", ",-2,"), TABLE.replace("fedprox", "\x1b[31m[red]é")]
PLOT_OPTIONS = ("--facet", "--methods", "--band", "--log", "--x-limits", "--y-limits", "--label")
PLOT_OPTIONS += ("--size",)
PAIRS = ["1e400,2", "nan,", ",,", "1x2x3", "infx2", "0x0", ",", "x", "=", "fedavg=FedProx"]
PLOTTED = {("--facet", "method"), ("--facet", "seed"), ("--log", "x")}


@pytest.mark.parametrize(("table", "message"), NO_TABLES, ids=lambda each: repr(each)[:30])
def test_damaged_tables_of_results(refused, here, table, message):
    (here / "there").mkdir()
    content = table if isinstance(table, bytes) else table.encode()
    (here / "there" / "metrics.csv").write_bytes(content)
    for command in ("plot", "table"):
        assert message in refused(command, "there")


def test_tables_of_results(attempt, here):
    folder = here / "there"
    folder.mkdir()
    (folder / "metrics.csv").write_text(TABLE.replace("test_accuracy", "accuracy"))
    assert attempt("plot", "there") == attempt("table", "there") == "refused"
    assert attempt("plot", "there", "--metric", "upload_bytes", "--out", "a.png") == "done"
    (folder / "config.json").write_text(configuration(complete=True))
    for table in READABLE:
        (folder / "metrics.csv").write_text(table)
        for form in ("text", "markdown", "latex", "csv", "json"):
            attempt("table", "there", "--format", form)
        attempt("report", "there")
        attempt("plot", "there")


@pytest.mark.all
def test_options_of_plot_and_table(attempt, here):
    folder = here / "there"
    folder.mkdir()
    (folder / "metrics.csv").write_text(TABLE)
    texts = ["", " ", "x", "../x", "method", "seed", "é", "-1", "--json", "$^$", "\0", "x" * 5000]
    for text in texts:
        for flag in ("--metric", "--x"):
            assert attempt("plot", "there", flag, text) == "refused", (flag, text)
        for flag in ("--reference", "--format", "--target"):
            assert attempt("table", "there", flag, text) == "refused", (flag, text)
    for flag in PLOT_OPTIONS:
        for text in [*texts, *PAIRS]:
            outcome = "done" if (flag, text) in PLOTTED else "refused"
            assert attempt("plot", "there", flag, text) == outcome, (flag, text)
    for text in [*texts, "nan", "inf", "-1", "0", "2", "90%", "1e400"]:
        assert attempt("table", "there", "--target", text) == "refused", text
    for text in ["", "\0", "$\\frac$", "\x1b[31m"]:
        line = ["--title", text, "--x-label", text, "--y-label", text, "--label", f"fedavg={text}"]
        assert attempt("plot", "there", *line) == "done", text
    assert attempt("plot", "there", "--title", "x" * 5000) == "refused"
    pictures = [
        *("", "x", "x.xyz", "nowhere/x.png", "file", "file/x.png", "there", ".", "loop", "--x"),
        *("x.png/", "there/x.png/"),
        *("loop/x.png", "/dev/full", "there/metrics.csv", "x" * 300 + ".png", "a\0.png"),
    ]  # fmt: skip

    for path in pictures:
        assert attempt("plot", "there", "--out", path) == "refused", path
        if path not in ("x", "x.xyz"):  # a table may have any name
            assert attempt("table", "there", "--out", path) == "refused", path
    long = ["x" * 300, "x" * 5000]
    for path in ["", "nowhere", "file", "file/x", "loop", ".", "a\0", "/dev/null", *long]:
        assert attempt("plot", path) == attempt("plot", "there", path) == "refused", path
        assert attempt("table", path) == attempt("table", "there", path) == "refused", path


def configuration(**changes):
    """The text of a `config.json`, with some entries replaced or, if None, left out."""
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
    configuration(methods={}),
    *(
        configuration(**{key: value})
        for key in ("settings", "methods", "environment", "layout", "complete")
        for value in ("left out", "no", 3, [1], [])
    ),
]


def test_configurations_of_results(attempt, here):
    """The commands that read results or go on with them, and those that find a folder in use."""
    folder = here / "there"
    folder.mkdir()
    (folder / "metrics.csv").write_text(TABLE)
    out = [*small(), "--out", "there"]
    for content in [*NO_CONFIGURATIONS, WHOLE, configuration(complete=True)]:
        given = content if isinstance(content, bytes) else content.encode()
        (folder / "config.json").write_bytes(given)
        if content != configuration(complete=True):
            assert attempt("plot", "there") == "refused", given[:200]
            assert attempt("table", "there") == "refused", given[:200]
            assert attempt("report", "there") == "refused", given[:200]
        (folder / ".lock").unlink(missing_ok=True)
        if content == WHOLE:  # a run that stopped left it
            (folder / ".lock").touch()
        assert attempt("run", "fedavg", *out) == "refused", given[:200]
        assert attempt("run", "fedavg", *out, "--resume") == "refused", given[:200]
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert attempt("run", "fedavg", *out, "--resume") == attempt("plot", "there") == "refused"


ODD = (None, True, -1, 1e300, "x", "", [1], {"a": [None]}, [{}], "\ud800</script>")


@pytest.mark.all
def test_entries_of_a_configuration_in_a_report(attempt, here):
    """Each is refused or shown."""
    folder = here / "there"
    folder.mkdir()
    (folder / "metrics.csv").write_text(TABLE)
    names = ["command", "config", "grid", "dataset_notes", "partition_sha256", "compilation"]
    contents = [{name: value} for name in names for value in ODD]
    contents += [{"methods": {"fedavg": value}} for value in ODD]
    contents += [{"methods": {"fedavg": {"algorithm": value}}} for value in ODD]
    contents += [{"environment": {"packages": {"jax": value}, "x": value}} for value in ODD]
    outcomes = set()
    for content in contents:
        (folder / "config.json").write_text(configuration(complete=True, **content))
        outcomes.add(attempt("report", "there"))
    assert outcomes == {"done"}
    for value in ODD:
        layout = {"source": value, "layout": value, "devices": value}
        (folder / "config.json").write_text(configuration(complete=True, layout=layout))
        assert attempt("report", "there") == "refused", value
    plain = dataclasses.asdict(Settings())
    for name in plain:
        for value in ODD:
            changed = {**plain, "seeds": [0], name: value}
            (folder / "config.json").write_text(configuration(complete=True, settings=changed))
            assert attempt("report", "there") in ("done", "refused")


@pytest.mark.all
def test_data_sets(attempt, here):
    """Which arrays and texts a reader refuses is tested in tests/data/readers."""
    line = ["run", "fedavg", *small(clients="3", cohort="2"), "--partition", "iid", "--dataset"]
    arrays = {"x_train": np.full((24, 2), np.nan), "y_train": np.arange(24) % 2}
    arrays |= {"x_test": np.zeros((2, 2)), "y_test": np.arange(2)}
    np.savez(here / "nan.npz", **arrays)
    np.savez(here / "less.npz", x_train=arrays["x_test"])
    for number, content in enumerate((b"", b"x", b"PK", bytes(range(256)))):
        (here / f"{number}.npz").write_bytes(content)
    for file in here.glob("*.npz"):
        assert attempt(*line, f"npz:path={file.name}") == "refused", file
    (here / "leaf" / "train").mkdir(parents=True)
    (here / "leaf" / "test").mkdir()
    user = '"users": ["a"], "num_samples": [1]'
    empty = f'{{{user}, "user_data": {{"a": {{"x": [], "y": []}}}}}}'
    for text in ("", "[]", "[" * 10**4, "\0", empty):
        for name in ("leaf/train/a.json", "leaf/test/a.json", "a.json"):
            (here / name).write_text(text)
        for task in ("femnist", "shakespeare", "sent140"):
            assert attempt(*line, f"leaf:path=leaf,task={task}") == "refused", (text, task)
        assert attempt(*line, "roles:path=a.json") == "refused", text
    for path in ("", "nowhere", ".", "file", "loop"):
        for spec in ("npz:", "roles:", "leaf:task=femnist,"):
            assert attempt(*line, f"{spec}path={path}") == "refused", (spec, path)
