"""Damaged checkpoints: the newest whole one is used, which is said; without one the run is refused.

The results are those of a run that was never interrupted, bit for bit.
"""

import functools
import re
import shutil
import warnings

import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import assert_same, without_time
from sweep_helpers import sweep_toy

import fedjax_algos as fa
from fedjax_algos.asynchrony import immediate, traced

TOY = small_network()
LOCAL = fa.Local(2, 0.1, steps=2)
ROUNDS = {"cohort_size": 2, "rounds": 6, "eval_every": 1, "seed": 3}


@functools.cache
def engine(place="host"):
    return fa.make_engine(Case("scaffold", {}).build(TOY.problem, LOCAL), client_state=place)


@functools.cache
def executor():
    return fa.make_executor(Case("fedasync", {}).build(TOY.problem, LOCAL), slots=1)


class Ended(Exception):
    """Stands for the end of a process."""


def rounds(folder, on_evaluation, checkpoints):
    return fa.simulate(
        engine(), TOY.data, on_evaluation=on_evaluation, checkpoints=checkpoints, **ROUNDS
    )


def rows_on_disk(folder, on_evaluation, checkpoints):
    return fa.simulate(
        engine(fa.RowsOnDisk(folder / "rows")),
        TOY.data, on_evaluation=on_evaluation, checkpoints=checkpoints, **ROUNDS,
    )  # fmt: skip


def clock(folder, on_evaluation, checkpoints):
    return fa.simulate_async(
        executor(), TOY.data, immediate(steps=2), traced(np.full(4, 1.0)), seconds=18,
        evaluations=6, on_evaluation=on_evaluation, checkpoints=checkpoints,
    )[:2]  # fmt: skip


def batched(folder, on_evaluation, checkpoints):
    models = []
    result = sweep_toy(
        "fedprox", {"mu": [0.1, 0.5]}, seeds=(0,), rounds=12, on_evaluation=on_evaluation,
        checkpoints=checkpoints, on_end=lambda *ended: models.append(ended[-1].params),
    )  # fmt: skip
    return models, result.rows


RUNS = {"rounds": rounds, "rows on disk": rows_on_disk, "clock": clock, "batched": batched}
AT = dict.fromkeys(RUNS, 5) | {"batched": 10}  # the row after which there are two checkpoints


def stopped(run, folder, number):
    """Runs until a row of this number, with a checkpoint at each evaluation; two are kept."""
    rows = []

    def on_evaluation(row):
        rows.append(row)
        if len(rows) == number:
            raise Ended

    with pytest.raises(Ended):
        run(folder, on_evaluation, fa.Checkpoints(folder / "checkpoints", every=0))


def kept(folder):
    """The checkpoints, the newest first."""
    paths = (folder / "checkpoints").rglob("*.checkpoint")
    return sorted(paths, key=lambda path: -int(path.stem))


def damage(path, share=0.75):
    """Flips a bit at a share of a file's length."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 4
    path.write_bytes(content)


def check_same(result, expected):
    if isinstance(result[0], list):  # of a sweep
        assert without_time(result[1]) == without_time(expected[1])
        np.testing.assert_array_equal(result[0], expected[0])
    else:
        assert_same(result, expected)


@pytest.mark.parametrize("name", RUNS)
def test_the_checkpoint_before_a_damaged_one_is_used(name, tmp_path):
    """It is said until a whole one takes its place; a run without a whole one is refused."""
    run = RUNS[name]
    checkpoints = fa.Checkpoints(tmp_path / "checkpoints", every=0)
    expected = run(tmp_path, lambda row: None, None)
    stopped(run, tmp_path, AT[name])
    newest, older = kept(tmp_path)
    damage(newest)
    message = (
        re.escape(f"{str(newest)!r} is damaged (its checksum is wrong); the checkpoint before ")
        + rf"is used, {older.name}, which was saved after {older.stem} rounds or server steps"
    )
    with pytest.warns(UserWarning, match=message):
        stopped(run, tmp_path, 1)
    assert kept(tmp_path) == [newest, older]  # nothing is removed before it is replaced
    with pytest.warns(UserWarning, match=message):
        result = run(tmp_path, lambda row: None, checkpoints)
    check_same(result, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same(run(tmp_path, lambda row: None, checkpoints), expected)
    paths = kept(tmp_path)
    assert len(paths) == 2
    for path in paths:
        damage(path, 0.4)
    message = f"no checkpoint in {str(paths[0].parent)!r} can be used: " + "; ".join(
        f"{str(path)!r} is damaged (its checksum is wrong)" for path in paths
    )
    message += ". Remove this folder, and the run starts again from its beginning"
    with pytest.raises(ValueError, match=re.escape(message)):
        run(tmp_path, lambda row: None, checkpoints)
    assert kept(tmp_path) == paths


def test_load_state_reads_the_checkpoint_before_a_damaged_one(tmp_path):
    checkpoints = fa.Checkpoints(tmp_path / "checkpoints", every=0, keep=3)
    rounds(tmp_path, lambda row: None, checkpoints)
    folder, like = checkpoints.folder, engine().init(0, fa.Population(4, 2, 17))
    newest, older, oldest = kept(tmp_path)
    newest.unlink()
    expected = fa.load_state(folder, like)
    newest.write_bytes(b"half")
    with pytest.warns(UserWarning, match=re.escape(f"{newest.name}' is damaged")):
        assert_same(fa.load_state(folder, like), expected)
    damage(older)
    damage(oldest)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: .*4.checkpoint"):
        fa.load_state(folder, like)


def test_a_row_on_disk_is_checked_before_the_run_goes_on(tmp_path):
    """A row of the newest checkpoint only: the one before is used; of both: the run is refused."""
    expected = rows_on_disk(tmp_path / "whole", lambda row: None, None)
    stopped(rows_on_disk, tmp_path, 5)
    checkpoints = fa.Checkpoints(tmp_path / "checkpoints", every=0)
    (file,) = (tmp_path / "rows").glob("*.rows")
    whole, outcomes = file.read_bytes(), set()
    for place in range(5, len(whole), len(whole) // 10):
        content = bytearray(whole)
        content[place] ^= 1
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy")
        file.write_bytes(content)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                result = rows_on_disk(
                    tmp_path, lambda row: None, checkpoints._replace(folder=tmp_path / "copy")
                )
                check_same(result, expected)
                outcomes.add("said" if told else "not needed")
            except ValueError as error:
                assert "no checkpoint in" in str(error)  # noqa: PT017
                outcomes.add("refused")
        file.write_bytes(whole)
    assert {"said", "refused"} <= outcomes


def test_checkpoints_of_an_earlier_version_are_refused(tmp_path):
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    for call in (
        lambda: rounds(tmp_path, lambda row: None, tmp_path / "checkpoints"),
        lambda: fa.load_state(tmp_path / "checkpoints", engine().init(0, fa.Population(4, 2, 17))),
    ):
        with pytest.raises(ValueError, match=r"an earlier version .* cannot be read: remove this"):
            call()
