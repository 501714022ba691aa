"""A bit that is flipped in any file that --resume reads: refused by name, or without any effect."""

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "experiments" / "flip_bits.py"
if not PROGRAM.exists():
    pytest.skip("the experiments are not part of this copy", allow_module_level=True)
SPEC = importlib.util.spec_from_file_location("flip_bits", PROGRAM)
flip_bits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(flip_bits)

EXPECTED = {
    "newest": {"older checkpoint"},
    "older": {"no effect"},
    "metrics.csv of another run": {"no effect"},
    "rows": {"refused by name", "older checkpoint", "no effect"},
    "config.json": {"refused by name", "no effect"},  # spaces between values do not matter
    "scores.json": {"refused by name", "no effect"},
    "store.json": {"refused by name", "no effect"},
}


@pytest.mark.all
@pytest.mark.parametrize("name", flip_bits.COMMANDS)
def test_no_flipped_bit_changes_a_result(name, here):
    for kind, _, outcomes in flip_bits.flip_bits(name, 2, here):
        for outcome, said, flipped in outcomes:
            shown = kind, outcome, flipped, said
            assert outcome in EXPECTED.get(kind, {"refused by name"}), shown
