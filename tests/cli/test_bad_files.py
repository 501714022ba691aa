"""Generated bad files: each is one line and exit code 2, or is read as documented.

They are files of settings, results folders and data sets, about 800 in all; see
`test_bad_inputs.py`.
"""

import dataclasses
import io
import json
import zipfile

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


@pytest.mark.slow
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
NO_TABLES = {
    "empty": "",
    "only columns": TABLE.split("\n")[0],
    "half": TABLE[: len(TABLE) // 2],
    "a cell less": TABLE[:-3],
    "cut off in a cell": TABLE.replace("0.5,4,4,4", "0.5,4,4,4.25")[:-2],
    "no end of the last line": TABLE[:-1],
    "a row twice": TABLE + ROWS[-1] + "\n",
    "a null character in a name": TABLE.replace("fedprox", "fed\0prox"),
    "a cell more": TABLE[:-1] + ",1\n",
    "a short row": TABLE + "fedavg,2\n",
    "a blank row": TABLE + "\n",
    "no method": TABLE.replace("method,", "m,"),
    "no seed": TABLE.replace("seed,", "s,"),
    "no round": TABLE.replace("round,", "r,"),
    "no accuracy": TABLE.replace("test_accuracy", "accuracy"),
    "a column twice": TABLE.replace("test_loss", "test_accuracy"),
    "a text as number": TABLE.replace("0.7", "high"),
    "a text as seed": TABLE.replace(",1,", ",one,"),
    "a fraction as round": TABLE.replace(",2,0", ",2.5,0"),
    "no round in a row": TABLE.replace(",2,0", ",,0"),
    "an empty name": TABLE.replace("fedprox", ""),
    "a huge seed": TABLE.replace(",1,", f",{'9' * 400},"),
    "a superscript": TABLE.replace("0.7", "²"),
    "a null character": TABLE.replace("0.7", "\0"),
    "a quote": TABLE.replace("0.7", '"'),
    "a long cell": TABLE.replace("fedprox", "x" * 200_000),
    "bytes": bytes(range(256)),
    "utf-16": TABLE.encode("utf-16"),
    "a byte order mark": "\ufeff" + TABLE,
}
READABLE = {
    "nan": TABLE.replace("0.7", "nan"),
    "inf": TABLE.replace("0.7", "inf"),
    "no value": TABLE.replace("0.7", ""),
    "a huge number": TABLE.replace("0.7", "9" * 5000),
    "below 0": TABLE.replace(",2,", ",-2,"),
    "an escape": TABLE.replace("fedprox", "\x1b[31m[red]é"),
}
PLOT_OPTIONS = ("--facet", "--methods", "--band", "--log", "--x-limits", "--y-limits", "--label")
PLOT_OPTIONS += ("--size",)
PLOTTED = {("--facet", "method"), ("--facet", "seed"), ("--log", "x")}


def test_tables_of_results(attempt, here):
    folder = here / "there"
    folder.mkdir()
    for name, table in NO_TABLES.items():
        content = table if isinstance(table, bytes) else table.encode()
        (folder / "metrics.csv").write_bytes(content)
        assert attempt("plot", "there") == "refused", name
        line = ["plot", "there", "--metric", "upload_bytes", "--out", "a.png"]
        assert attempt(*line) == ("done" if name == "no accuracy" else "refused"), name
        assert attempt("table", "there") == "refused", name
    for name, table in READABLE.items():
        (folder / "metrics.csv").write_text(table)
        (folder / "config.json").write_text(configuration(complete=True))
        for form in ("text", "markdown", "latex", "csv", "json"):
            attempt("table", "there", "--format", form)
        attempt("report", "there")
        if name == "inf":
            assert attempt("plot", "there") == "done"


@pytest.mark.slow
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
        for text in [
            *texts,
            "1e400,2",
            "nan,",
            ",,",
            "1x2x3",
            "infx2",
            "0x0",
            ",",
            "x",
            "=",
            "fedavg=FedProx",
        ]:
            if (flag, text) in PLOTTED:
                assert attempt("plot", "there", flag, text) == "done", (flag, text)
            else:
                assert attempt("plot", "there", flag, text) == "refused", (flag, text)
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
        "settings": {**dataclasses.asdict(Settings()), "seeds": [0]},
        "methods": {"fedavg": {}},
        "environment": {"packages": {}},
        "layout": None,
        "runs": {},
        "complete": False,
    }
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


@pytest.mark.slow
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


ARRAYS = {
    "x_train": np.zeros((24, 2), np.float32),
    "y_train": np.arange(24) % 2,
    "x_test": np.zeros((2, 2), np.float32),
    "y_test": np.arange(2),
}
NO_DATA = [
    {"x_train": None},
    {"y_test": None},
    {"x_train": np.zeros(24)},
    {"x_train": np.zeros((24, 0))},
    {"x_train": np.zeros((0, 2))},
    {"x_train": np.zeros((24, 3), np.float32)},
    {"x_train": np.full((24, 2), np.nan, np.float32)},
    {"x_train": np.full((24, 2), "a")},
    {"x_train": np.full((24, 2), None, object)},
    {"x_train": np.zeros((24, 2), complex)},
    {"y_train": np.arange(23)},
    {"y_train": np.full(24, -1)},
    {"y_train": np.full(24, 0.5)},
    {"y_train": np.full(24, 2**40)},
    {"y_train": np.full(24, "a")},
    {"y_train": np.zeros((24, 1), int)},
    {"user_train": np.zeros(3)},
    {"user_train": np.zeros(24)},
]


def archive(arrays):
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


@pytest.mark.slow
def test_data_sets(attempt, here):
    file = here / "a.npz"
    line = ["run", "fedavg", *small(clients="3", cohort="2"), "--partition", "iid", "--dataset"]
    for changes in NO_DATA:
        file.write_bytes(archive(ARRAYS | changes))
        assert attempt(*line, "npz:path=a.npz") == "refused", changes
    texts = io.BytesIO()
    with zipfile.ZipFile(texts, "w") as zipped:
        for name in ARRAYS:
            zipped.writestr(f"{name}.npy", "x")
    for content in (b"", b"x", b"PK", bytes(range(256)), texts.getvalue()):
        file.write_bytes(content)
        assert attempt(*line, "npz:path=a.npz") == "refused", content[:99]
    whole = archive(ARRAYS)

    @settings(quick, max_examples=50)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 255), st.booleans())
    def check(position, value, cut):
        rest = b"" if cut else whole[position + 1 :]
        file.write_bytes(whole[:position] + bytes([value]) + rest)
        attempt(*line, "npz:path=a.npz")

    check()
    (here / "leaf" / "train").mkdir(parents=True)
    (here / "leaf" / "test").mkdir()
    user = '"users": ["a"], "num_samples": [1]'
    for text in (
        *("", "x", "[]", "{}", "null", "[" * 10**4, "\0", '{"users": []}', f"{{{user}}}"),
        f'{{{user}, "user_data": {{}}}}',
        f'{{{user}, "user_data": {{"a": {{"x": [], "y": []}}}}}}',
        f'{{{user}, "user_data": {{"a": {{"x": [[1]], "y": [0]}}}}}}',
        f'{{{user}, "user_data": {{"a": {{"x": ["é"], "y": [1]}}}}}}',
    ):
        for name in ("leaf/train/a.json", "leaf/test/a.json", "a.json"):
            (here / name).write_text(text)
        for task in ("femnist", "shakespeare", "sent140"):
            assert attempt(*line, f"leaf:path=leaf,task={task}") == "refused", (text, task)
        assert attempt(*line, "roles:path=a.json") == "refused", text
    for path in ("", "nowhere", ".", "file", "loop"):
        for spec in ("npz:", "roles:", "leaf:task=femnist,"):
            assert attempt(*line, f"{spec}path={path}") == "refused", (spec, path)
