"""Trials: scores of runs, their order, and the file that keeps them."""

import math

import pytest

from fedjax_algos.core.files import write_json
from fedjax_algos.runs.tuning.trials import Scores, Trial, best_first, run_score


def row(round_number, accuracy, loss=1.0):
    return {"round": round_number, "test_accuracy": accuracy, "test_loss": loss}


def test_a_score_is_the_mean_of_the_last_fifth():
    rows = [row(0, 0.0), row(40, 0.5), row(80, 0.9), row(85, 0.1), row(100, 0.3)]
    assert run_score(rows) == pytest.approx(0.2)
    assert run_score(rows[:1] + [row(3, 0.7)]) == 0.7
    assert math.isnan(run_score([*rows, row(105, 0.5, math.nan)]))
    clock = [r | {"simulated_seconds": r["round"] / 10, "round": 1} for r in rows]
    assert run_score(clock) == pytest.approx(0.2)
    dice = [row(0, 0.0), row(4, 0.5), row(5, 0.9) | {"test_dice_score": 0.25}]
    assert run_score(dice, "dice_score") == 0.25


def test_settings_with_a_run_that_is_not_finite_come_last():
    scores = {"a": 0.1, "b": math.nan, "c": 0.9, "d": 0.1, "e": math.nan}
    trials = [Trial(name, 1, {0: score, 1: 0.5}) for name, score in scores.items()]
    assert "".join(trial.setting for trial in best_first(trials)) == "cadbe"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", r"cannot be read \(it has no checksum\)"),
        ('{"stage 1": 0.5}', r"cannot be read \(it has no checksum\)"),
        ({"stage 1": "x"}, "does not hold"),
        ({"stage 1": math.nan}, "does not hold"),
        ({"stage 1": True}, "does not hold"),
    ],
)
def test_damaged_scores(tmp_path, content, reason):
    path = tmp_path / "scores.json"
    write_json(path, content) if isinstance(content, dict) else path.write_text(content)
    with pytest.raises(ValueError, match=rf"scores.json {reason}.*; delete it"):
        Scores(path)


def test_another_score_is_noticed(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, {"stage 1": 0.5, "stage 2": None})
    assert Scores(path).scores == {"stage 1": 0.5, "stage 2": None}
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(ValueError, match=r"scores.json cannot be read \(its checksum is wrong"):
        Scores(path)
