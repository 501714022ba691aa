"""`report`: one page, with every method and number, in which texts from outside stay texts."""

import base64
import csv
import hashlib
import html
import math
import re
from importlib import resources

import pytest
from report_helpers import Page, assert_alone
from summary_helpers import NAN, rows, write_folder

from fedjax_algos.analysis.pictures import method_styles
from fedjax_algos.analysis.pictures.curves import MARKERS
from fedjax_algos.runs.studies import folder_content
from fedjax_algos.runs.studies.settings import Settings

COMMAND = "compare fedavg --rounds 20 --share 1/2 --out a --resume"
PNG = b"\x89PNG\r\n\x1a\n of one pixel"
HOSTILE = '</script><script>alert("1")</script>\'&amp; <b>\N{SNOWMAN} \u202e\x1b[31m'
PARTITION = "seed 0\nclient   examples\n     0          3\n\n3 examples on 1 clients\nseed 1\n"


def make_folder(path, measured, methods=None, settings=None, **changes):
    """A results folder without training."""
    labels = dict.fromkeys(row["method"] for row in measured)
    content = {
        "command": COMMAND.split(),
        "settings": {**vars(Settings()), "seeds": [0, 1], "rounds": 20, **(settings or {})},
        "methods": methods or {label: {"algorithm": "fedavg"} for label in labels},
        "partition_sha256": {"0": "f00"},
        "environment": {"python": "3.11.7", "packages": {"jax": "0.10.2"}},
        "layout": {"layout": "sequential", "devices": 1, "source": "rule"},
    }
    write_folder(path, measured, **content | changes)
    (path / "partition.png").write_bytes(PNG)
    (path / "partition.txt").write_text(PARTITION)
    return path


MEASURED = rows("fedavg", [[0.1, 0.5, 0.625], [0.1, 0.7, 0.875]])
MEASURED += rows("fedprox", [[0.1, 0.25, 0.5], [0.1, 0.75, 1.0]])
METHODS = {
    "fedavg": {"algorithm": "fedavg", "client_learning_rate": 0.1, "weighting": "examples"},
    "fedprox": {"algorithm": "fedprox", "mu": 0.5, "weighting": "examples"},
}


@pytest.fixture
def read(command):
    """The report of a folder."""

    def run(folder):
        assert command("report", folder) == f"{folder}/report.html\n"
        page = Page(folder / "report.html")
        assert_alone(page)
        return page

    return run


def test_a_report(here, read):
    folder = make_folder(here / "some", MEASURED, METHODS, settings={"cohort": 10.0})
    lines = [["label", "final"], ["fedavg", repr(1 / 3)], ["a,b\nc", repr(math.pi)]]
    with (folder / "summary.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    page = read(folder)
    assert page.tables["summary.csv"] == [lines]  # all digits
    titles = [page.text.count(title) for title in ("Comparison of 2 methods on digits", "Timeline")]
    assert titles == [2, 0]  # in the head and in the page; no virtual clock
    (changed,) = page.tables["Settings that differ from defaults"]
    assert changed[0] == ["setting", "value", "default"]
    assert changed[1:] == [["cohort", "10", "-"], ["rounds", "20", "100"], ["seeds", "0, 1", "0"]]
    (same,) = page.tables["Others"]
    assert sorted(row[0] for row in same[1:] + changed[1:]) == sorted(vars(Settings()))
    methods, summary = page.tables["Methods"]
    assert methods[1:] == [
        ["fedavg", "fedavg", "client_learning_rate=0.1", "weighting=examples"],
        ["fedprox", "fedprox", "mu=0.5", "weighting=examples"],
    ]
    finals = {row[0]: row[1] for row in summary}
    assert finals == {"method": "final", "FedAvg": "62.5, 87.5", "FedProx": "50.0, 100.0"}
    assert page.tables["Compared with FedAvg"][0][1][0] == "FedProx"
    (image,) = page.attributes("img")
    assert image["src"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert image["alt"] == "Labels of each client's examples on seed 0"
    for text in (
        "3 examples on 1 clients",
        "the digits are the same; elsewhere they agree up to rounding.",
        "All models were finite, and no update was left out.",
        "fedjax-algos compare fedavg --rounds 20To repeat it from the folder",  # and no --out
    ):
        assert text in page.text
    assert ["jax", "0.10.2"] in page.tables["Versions and devices"][0]
    (policy,) = [each["content"] for each in page.attributes("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for tag in ("style", "script"):  # no other one has an effect
        (content,) = [text for index, text in page.raw.items() if page.elements[index] == (tag, {})]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_figure_has_means_bands_and_the_styles_of_all_figures(here, read):
    figure = read(make_folder(here / "some", MEASURED)).figure
    assert [axis["name"] for axis in figure["axes"]] == ["round", "upload_bytes", "wall_seconds"]
    assert [metric["name"] for metric in figure["metrics"]] == ["test_accuracy", "test_loss"]
    assert [metric["percent"] for metric in figure["metrics"]] == [True, False]
    fedavg, fedprox = figure["methods"]
    assert fedavg["columns"]["round"] == [0, 10, 20]
    assert fedavg["columns"]["upload_bytes"] == [0, 1000, 2000]
    assert fedavg["columns"]["wall_seconds"] == [1.5, 1.5, 1.5]
    assert fedavg["columns"]["test_accuracy"] == [0.1, 0.6, 0.75]
    assert fedprox["columns"]["test_loss"] == [0.9, 0.5, 0.25]
    lows, highs = fedavg["bands"]["test_accuracy"]  # of two seeds
    assert lows == pytest.approx([0.1, 0.5, 0.625])
    assert highs == pytest.approx([0.1, 0.7, 0.875])
    style = method_styles(["fedavg", "fedprox"])["fedprox"]
    shown = {"colour": style.colour, "marker": style.marker, "line": [*style.line[1]]}
    assert fedprox["style"] == shown
    assert fedavg["style"] == {"colour": "#000000", "marker": "o", "line": []}
    script = resources.files("fedjax_algos.runs.report").joinpath("figure.js").read_text()
    for marker in MARKERS:
        assert re.search(rf'[ "]{re.escape(marker)}"?: "M', script), marker


def test_the_virtual_clock(here, read):
    measured = rows("fed/avg", [[0.1, 0.5]] * 2, simulated_seconds=2.0)
    folder = make_folder(here / "some", measured, settings={"seconds": 20.0})
    plans = [{"method": "fed/avg", "mean_staleness": 1.25678}]
    folder_content.write_table(folder / "timelines.csv", plans)
    for name in ("timeline", "staleness"):
        (folder / f"{name}-fed-avg.png").write_bytes(PNG)
    (folder / "accuracy.png").write_bytes(b"<script>")
    page = read(folder)
    axes = [(axis["name"], axis["label"]) for axis in page.figure["axes"]]
    assert axes[:2] == [("simulated_seconds", "simulated seconds"), ("round", "server step")]
    (plans,) = page.tables["Plans, in simulated seconds"]
    assert plans == [["method", "mean staleness"], ["fed/avg", "1.257"]]
    assert [image["alt"] for image in page.attributes("img")] == [
        "Labels of each client's examples on seed 0",
        "Dispatches of each client over time: fed/avg",
        "Staleness of the updates: fed/avg",
    ]


def test_what_diverged_is_told(here, read):
    measured = rows("fedavg", [[0.1, 0.5], [0.1, NAN]], excluded_updates=0.3)
    page = read(make_folder(here / "some", measured))
    assert page.figure["methods"][0]["columns"]["test_accuracy"] == [0.1, None]
    assert "fedavg: 6 updates of clients were not finite and were left out" in page.text
    assert "fedavg: seed 1 not finite at round 10" in page.text
    assert page.tables["Methods"][1][1][1] == "1/2 diverged"


def test_texts_from_outside_stay_texts(here, read):
    measured = rows(HOSTILE, [[0.1, 0.5]] * 2) + rows("b", [[0.1, 0.5]] * 2, **{HOSTILE: 1.0})
    folder = make_folder(
        here / "some",
        measured,
        settings={"dataset": HOSTILE, "model": HOSTILE, HOSTILE: HOSTILE},
        methods={HOSTILE: {"algorithm": HOSTILE, HOSTILE: HOSTILE}, "b": HOSTILE},
        command=["run", HOSTILE],
        config=HOSTILE,
        dataset_notes=[HOSTILE],
        sweep_notes=HOSTILE,
        environment={HOSTILE: HOSTILE, "packages": {HOSTILE: [HOSTILE]}},
        partition_sha256={HOSTILE: HOSTILE},
    )
    (folder / "partition.txt").write_text(f"seed {HOSTILE}\n{HOSTILE}\n")
    folder_content.write_table(folder / "summary.csv", [{"label": HOSTILE, HOSTILE: HOSTILE}])
    page = read(folder)
    shown = HOSTILE.replace("\u202e\x1b", r"\u202e\x1b")
    assert "<script>alert" not in page.source
    assert html.escape(shown) in page.source
    assert not {"\u202e", "\x1b"} & set(page.source)
    assert page.tables["summary.csv"] == [[["label", shown], [shown, shown]]]
    assert page.tables["Methods"][0][1][:2] == [shown, shown]
    assert page.figure["methods"][0]["label"] == shown
    assert page.figure["metrics"][2]["label"] == shown.replace("_", " ")


def test_a_long_figure_has_the_first_methods(here, read):
    """The page of a sweep, whose best setting is compared with nothing."""
    measured = [row for i in range(30) for row in rows(f"mu={i}", [[0.1, 0.5]] * 2)]
    page = read(make_folder(here / "some", measured, grid={"mu": [str(i) for i in range(30)]}))
    assert "Sweep of 30 settings on digits" in page.text
    assert [method["label"] for method in page.figure["methods"]] == [f"mu={i}" for i in range(20)]
    assert "The first 20 of 30 methods are drawn." in page.text
    methods, summary = page.tables["Methods"]
    assert len(methods) == len(summary) == 31
    assert not any(caption.startswith("Compared") for caption in page.tables)


def test_other_files_and_wrong_folders(here, command, refused):
    folder = make_folder(here / "some", MEASURED)
    assert command("report", folder, "--out", "page.html") == "page.html\n"
    assert_alone(Page(here / "page.html"))
    assert not (folder / "report.html").exists()
    assert "is not a path" in refused("report", folder, "--out", "")
    assert "out='page.html' exists" in refused("report", folder, "--out", "page.html")
    content = (folder / "config.json").read_text()
    for old, new, message in (
        ('"complete": true', '"complete": false', "some' is not complete: 0 of 4 runs have ended"),
        ('"clients": 100', '"clients": "many"', "config.json: not a file of settings: clients="),
    ):
        (folder / "config.json").write_text(content.replace(old, new))
        assert message in refused("report", folder)
    (folder / "config.json").unlink()
    assert "has no config.json" in refused("report", folder)
