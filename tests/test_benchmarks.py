"""The programs in benchmarks/: their rules, from results written by hand, and some in small."""

import importlib
import json
import sys

import pytest
from helpers import ROOT

MACHINE = {"date": "2026-01-02 03:04", "python": "3.11.9", "jax": "0.10.2"}
MACHINE |= {"cores": 2, "cpu": "a CPU", "command": "python benchmarks/bars.py"}
PEERS = {
    "ratios": {"PyTorch by hand": 0.86, "fedjax": 2.5, "flwr": 9.0},
    "errors": {"ours": 0.0, "PyTorch by hand": 5e-4, "fedjax": 1e-6, "flwr": 1e-6},
    "agrees": 1e-4,
    "others": ["PyTorch by hand"],
    "absent": {"pfl": "missing: `python3.11 -m venv pfl`"},
    "notes": ["fluke --threads 1: exit 1: no such module"],
    "gflops": 140.0,
    "gemm_gflops": 200.0,
}
POINTS = [{"ratio": 1.0, "built": 0.1}, {"ratio": 1.16}, {"ratio": 0.98, "built": 8.9}]


@pytest.fixture
def programs(monkeypatch):
    """Imports a program of the folder; afterwards none of its modules is known."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks/peers")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if "/benchmarks/" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_table_of_bars(programs, tmp_path, capsys):
    """Libraries and loops by hand have bars of their own; all ratios must be steady."""
    bars, earlier, out = programs("bars"), tmp_path / "earlier.json", str(tmp_path / "all.json")
    lines = {
        "cnn": {"numbers": PEERS},
        "mlp-50": {"numbers": PEERS | {"ratios": {"fedjax": 2.5}, "others": []}},
        "population": {"numbers": {"population": POINTS}},
        "sweep": {"numbers": {"cold": 13.3, "warm": 1.2}},
        "processes": {"failed": "exit 1: no cores"},
        "first": {"numbers": {"first": [10.0, 30.0, 11.0]}},
    }
    earlier.write_text(
        json.dumps({"lines": {n: v | {"machine": MACHINE} for n, v in lines.items()}})
    )
    measured = [name for name in lines if name != "processes"]
    assert bars.main(["--from", str(earlier), "--out", out, "--only", *measured]) == 1  # a failure
    output = capsys.readouterr().out
    rows = [line[2:-2].split(" | ")[2:] for line in output.splitlines() if line.startswith("|")]
    who = ["fedjax 2.50", "PyTorch by hand 0.86", MACHINE["date"]]
    assert rows[:3] == [
        ["2.50 times", "met", *who],
        ["0.86 times", "NOT met", *who],
        ["70%", "met", *who],
    ]
    assert [row[:2] for row in rows[3:11]] == [
        ["2.50 times", "met"],
        ["", "not measured"],  # without a loop by hand
        ["1.160 0.980", "NOT met"],
        ["8.9 s", "met"],
        ["13.30 times", "met"],
        ["1.20 times", "NOT met"],
        ["exit 1: no cores", "FAILED"],
        ["11.0 s", "met"],
    ]
    for note in (
        "cnn: pfl: missing: `python3.11 -m venv pfl`",
        "cnn: fluke --threads 1: exit 1: no such module",
        "cnn: PyTorch by hand: params differ from those of our first setting by 5e-04, above 1e-04",
        "Python 3.11.9, jax 0.10.2, 2 cores of a CPU: python benchmarks/bars.py",
    ):
        assert f"- {note}\n" in output
    with pytest.raises(SystemExit):
        bars.arguments_of(["--out", out])
    assert "all.json exists; give another --out" in capsys.readouterr().err


def test_a_default_is_right_unless_a_form_is_clearly_faster(programs):
    accelerator = programs("accelerator")
    assert all(int(accelerator.line_of(where).split(":")[1]) > 0 for where in accelerator.WHERE)
    decision = accelerator.Decision("conv", {"lax": None, "patches": None}, "convolution")
    right = accelerator.verdict(decision, {"lax": [2.0, 3.0, 9.0], "patches": [2.0, 2.9, 4.0]})
    assert right["ratios"] == {"lax": 1.0, "patches": pytest.approx(2.9 / 3)}
    assert right["verdict"] == "lax is right"
    wrong = accelerator.verdict(decision, {"lax": [2.0, 3.0, 9.0], "patches": [1.0]})
    name, line = wrong["verdict"].removeprefix("change to patches: ").split(":")
    text = (accelerator.ROOT / name).read_text().splitlines()[int(line) - 1]
    assert "by_platform(_by_patches, native.by_lax" in text
    unknown = accelerator.verdict(decision, {"lax": "out of memory", "patches": [1.0]})
    assert unknown["verdict"].startswith("unknown without a time of the default")


@pytest.mark.nightly
def test_each_kind_of_decision_runs_in_small(programs, tmp_path, capsys):
    out = tmp_path / "out.json"
    kinds = ["recipe", "depthwise", "max pool 3x3", "loop", "layout, mlp", "plans of"]
    programs("accelerator").main(["--small", "--turns", "1", "--out", str(out), "--only", *kinds])
    recipe, *records = json.loads(out.read_text())
    assert recipe["minutes"] == pytest.approx(25 * recipe["round"])
    assert [record["failed"] for record in records] == [{}] * 5
    assert "layout, mlp: auto 1.00, vmapped " in capsys.readouterr().out
    for record in records:
        assert record["ratios"][record["default"]] == 1
        assert set(record["seconds"]) == set(record["ratios"])
