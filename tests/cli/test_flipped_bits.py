"""A bit that is flipped in any file that --resume reads: refused by name, or without any effect."""

import importlib

import pytest
from helpers import ROOT

EXPECTED = {
    "newest": {"older checkpoint"},
    "older": {"no effect"},
    "metrics.csv of another run": {"no effect"},
    "rows": {"refused by name", "older checkpoint", "no effect"},
    "config.json": {"refused by name", "no effect"},  # spaces between values do not matter
    "scores.json": {"refused by name", "no effect"},
    "store.json": {"refused by name", "no effect"},
}


@pytest.mark.nightly
@pytest.mark.skipif(not (ROOT / "experiments").exists(), reason="it is not in this copy")
def test_no_flipped_bit_changes_a_result(here, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    flip_bits = importlib.import_module("flip_bits")
    for name in flip_bits.COMMANDS:
        (folder := here / name.replace(" ", "-")).mkdir()
        for kind, _, outcomes in flip_bits.flip_bits(name, 2, folder):
            for outcome, said, flipped in outcomes:
                shown = name, kind, outcome, flipped, said
                assert outcome in EXPECTED.get(kind, {"refused by name"}), shown
