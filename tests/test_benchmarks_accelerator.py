"""The benchmark of the decisions for an accelerator: its rules, and some of it in small."""

import importlib
import json
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def accelerator():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("accelerator")
    for name in ("accelerator", "deferred"):
        sys.modules.pop(name, None)


def sleeper(seconds):
    return lambda: lambda: time.sleep(seconds)


def test_a_default_is_right_unless_a_form_is_clearly_faster(accelerator):
    decision = accelerator.Decision("conv", {"lax": None, "patches": None}, "convolution")
    right = accelerator.verdict(decision, {"lax": [2.0, 3.0, 9.0], "patches": [2.0, 2.9, 4.0]})
    assert right["ratios"] == {"lax": 1.0, "patches": pytest.approx(2.9 / 3)}
    assert right["verdict"] == "lax is right"
    wrong = accelerator.verdict(decision, {"lax": [2.0, 3.0, 9.0], "patches": [1.0]})
    name, line = wrong["verdict"].removeprefix("change to patches: ").split(":")
    text = (accelerator.ROOT / name).read_text().splitlines()[int(line) - 1]
    assert "by_platform(_by_patches, _by_lax" in text
    unknown = accelerator.verdict(decision, {"lax": "out of memory", "patches": [1.0]})
    assert unknown["verdict"].startswith("unknown without a time of the default")
    assert unknown["failed"] == {"lax": "out of memory"}


def test_every_decision_names_a_line_of_the_package(accelerator):
    assert all(int(accelerator.line_of(where).split(":")[1]) > 0 for where in accelerator.WHERE)


def test_a_form_that_fails_or_is_far_behind_does_not_end_the_run(accelerator):
    def too_large():
        raise accelerator.jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GB\nmore")

    forms = {"default": sleeper(0.01), "slow": sleeper(0.1), "large": too_large}
    decision = accelerator.Decision("any", forms, "loops")
    seconds = accelerator.measure(decision, 3, time.monotonic() + 60)
    assert [len(seconds[form]) for form in ("default", "slow")] == [3, 1]
    assert seconds["large"] == "RESOURCE_EXHAUSTED: 3 GB"
    late = accelerator.measure(decision, 3, time.monotonic() - 1)
    assert set(late.values()) == {"no time left"}


@pytest.mark.all
def test_each_kind_of_decision_runs_in_small(accelerator, tmp_path, capsys):
    out = tmp_path / "out.json"
    kinds = ["recipe", "depthwise", "max pool 3x3", "loop", "layout, mlp", "plans of"]
    accelerator.main(["--small", "--turns", "1", "--out", str(out), "--only", *kinds])
    recipe, *records = json.loads(out.read_text())
    assert recipe["minutes"] == pytest.approx(25 * recipe["round"])
    assert [record["failed"] for record in records] == [{}] * 5
    for record in records:
        assert record["ratios"][record["default"]] == 1
        assert set(record["seconds"]) == set(record["ratios"])
    printed = capsys.readouterr().out
    assert all(f"{record['decision']}: " in printed for record in records)
    assert "layout, mlp: auto 1.00, vmapped " in printed
