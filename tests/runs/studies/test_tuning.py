"""Tuning: scores of held-out examples, stages, proposals, and what the file says."""

import functools
import itertools
import math
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.base.files import write_json
from fedjax_algos.runs.loops.interruption import Interrupted
from fedjax_algos.runs.loops.run_batched import BatchedResult, BatchedRuns
from fedjax_algos.runs.loops.simulation import simulate
from fedjax_algos.runs.studies import tuning as module
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.results_folder import open_folder
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.tuning import (
    Trial,
    TuningStage,
    held_out_rows,
    read_scores,
    tuned_text,
)

SMALL = Settings(
    model="linear", clients=10, cohort=4, rounds=9, local_steps=2, eval_every=1, seeds=(5, 6)
)
ON_CLOCK = Settings(**vars(SMALL) | {"seconds": 4.0, "clients": 4, "evaluations": 4})
SPECS = ("fedavg", "fedprox:mu=0.5")
GRID = ("client_learning_rate=0.03,0.3,3",)


@functools.cache
def digits():
    return SMALL.load()


@functools.cache
def prepared(settings=SMALL, specs=SPECS, grid=GRID, **options):
    return module.prepare_tuning(settings, specs, grid, digits(), validation=0.3, **options)


def tune(path, tuning):
    """The trials of a search."""
    with open_folder(str(path), "tune", resume=path.exists()) as folder:
        methods = {space.method.label: {} for space in tuning.spaces}
        others = {"settings": {"seeds": [0]}, "environment": {"packages": {}}, "layout": None}
        folder.begin({"methods": methods, **others})
        return module.run_tuning(tuning, folder, lambda row: None)


def rate_of(trial):
    return trial.method.client_learning_rate


def scores(results):
    """The scores of methods without stages, by the label of the setting."""
    trials = itertools.chain(*(trials for (trials,) in results.values()))
    return {trial.method.label: trial.scores for trial in trials}


@pytest.mark.all
@pytest.mark.parametrize("settings", [SMALL, ON_CLOCK], ids=["rounds", "clock"])
def test_scores_are_those_of_runs_that_are_tested_on_what_clients_hold_out(settings, tmp_path):
    tuning = prepared(settings, specs=("fedavg",))
    results, held_out = tune(tmp_path / "there", tuning), held_out_rows(tuning.experiment)
    own = {"evaluate_clients": "held_out", "held_out": 0.3, "client_learning_rate": 0.3}
    alone = Settings(**vars(settings) | own)
    experiment = prepare(alone, methods_of(("fedavg",), alone), digits())
    (engine,) = experiment.engines.values()
    for seed, data in experiment.data.items():
        trained, tested = set(np.asarray(data.indices)), set(held_out[seed])
        assert not trained & tested
        assert len(tested) == int(0.3 * (len(trained) + len(tested)))
        how = {"seed": seed, "test": {n: x[held_out[seed]] for n, x in data.examples.items()}}
        if settings is ON_CLOCK:
            systems = fa.asynchrony.barrier(steps=2), fa.asynchrony.simulated()
            rows = fa.simulate_async(engine, data, *systems, seconds=4.0, evaluations=4, **how).rows
            late = rows[-1:]  # at 4 of 4 seconds
        else:
            late = simulate(engine, data, **how, **alone.loop())[1][8:]  # after 8 of 9 rounds
        expected = np.mean([row["test_accuracy"] for row in late])
        scored = scores(results)["fedavg client_learning_rate=0.3"][seed]
        np.testing.assert_allclose(scored, expected, rtol=1e-6)


class Calls(list):
    """The calls of what trains; if `end` is a number, the search is interrupted at that one."""

    end = math.inf

    def append(self, call):
        if len(self) == self.end:
            raise Interrupted(2)
        super().append(call)


@pytest.fixture
def untrained(monkeypatch):
    """The score of a setting is its client learning rate times its length; nothing is trained."""
    calls = Calls()

    def in_rounds(batched, on_evaluation, checkpoints):
        runs, rounds = batched.in_order, batched.loop.rounds
        calls.append((sorted({run.label for run in runs}), rounds))
        rows = [
            row(rounds, run.swept["client_learning_rate"] * rounds)
            | {"method": run.label, "seed": run.seed}
            for run in runs
        ]
        return BatchedResult(rows, [])

    def on_the_clock(executor, *arguments, seconds, seed, **options):
        calls.append((seed, seconds))
        score = float(executor.algorithm.local.learning_rate(0)) * seconds
        return SimpleNamespace(rows=[row(1, score) | {"simulated_seconds": seconds}])

    monkeypatch.setattr(BatchedRuns, "run", in_rounds)
    monkeypatch.setattr(module, "simulate_async", on_the_clock)
    return calls


def test_stages_of_successive_halving():
    for arguments, expected in (
        ((27, 100.0, 5.0, None), [(27, 100)]),
        ((27, 100.0, 5.0, 3), [(27, 11), (9, 33), (3, 100)]),
        ((27, 100.0, 1.0, 3), [(27, 4), (9, 11), (3, 33), (1, 100)]),
        ((5, 100.0, 5.0, 2), [(5, 25), (2, 50), (1, 100)]),
        ((2, 100.0, 5.0, 3), [(2, 100)]),
        ((4, 10.0, 1.0, 4, False), [(4, 2.5), (1, 10.0)]),
    ):
        assert module.stages_of(*arguments) == [TuningStage(*each) for each in expected]


def test_halving_runs_the_best_settings_longer_and_writes_them(tmp_path, untrained):
    tuning = prepared(halving=3)
    assert tuning.stages == [TuningStage(3, 3), TuningStage(1, 9)]
    assert tuning.budget == 2 * (3 * 3 + 1 * 9)
    results = tune(tmp_path / "there", tuning)
    for stages in results.values():
        assert [[rate_of(trial) for trial in stage] for stage in stages] == [[3, 0.3, 0.03], [3]]
        assert [stage[0].score for stage in stages] == [3 * 3, 3 * 9]
    assert [(len(labels), rounds) for labels, rounds in untrained] == [(3, 3), (1, 9)] * 2
    content = tomllib.loads(tuned_text(tuning, results))
    fedavg, fedprox = methods_of(tuple(content["methods"]), SMALL)
    assert (fedavg.algorithm, fedavg.client_learning_rate) == ("fedavg", 3)
    assert fedprox.hyperparameters == {"mu": 0.5}
    given = {name: value for name, value in vars(SMALL).items() if value is not None}
    for name in ("seeds", "evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps"):
        del given[name]
        assert name not in content
    assert given.items() <= content.items()
    expected = {"test_data": "not used", "seeds": [5, 6], "settings_of_each_method": 3}
    expected |= {"validation_examples": len(held_out_rows(tuning.experiment)[5])}
    expected |= {"stages": ["3 settings for 3 rounds", "1 settings for 9 rounds"]}
    assert content["tuning"].items() >= expected.items()
    assert content["tuning"]["scores"]["fedavg"] == pytest.approx(27)


@pytest.mark.parametrize("settings", [SMALL, ON_CLOCK], ids=["rounds", "clock"])
def test_a_search_that_was_interrupted_goes_on_with_the_same_scores(tmp_path, untrained, settings):
    tuning, length = prepared(settings), settings.seconds or settings.rounds
    expected = scores(tune(tmp_path / "whole", tuning))
    found = sorted(tuple(by_seed.values()) for by_seed in expected.values())
    assert found == [pytest.approx((rate * length,) * 2) for rate in (0.03, 0.03, 0.3, 0.3, 3, 3)]
    whole, untrained[:] = [*untrained], []
    untrained.end = len(whole) // 2
    with pytest.raises(Interrupted):
        tune(tmp_path / "parts", tuning)
    untrained.end = math.inf
    assert scores(tune(tmp_path / "parts", tuning)) == expected
    assert untrained == whole  # nothing twice
    tables = [(tmp_path / name / "trials.csv").read_bytes() for name in ("whole", "parts")]
    assert tables[0] == tables[1]


def test_the_scores_of_a_program_are_written_together(tmp_path, untrained, monkeypatch):
    """So that a search that is killed does not train a part of its settings in another program."""
    written = []
    monkeypatch.setattr(module, "write_json", lambda path, content: written.append(len(content)))
    tune(tmp_path / "there", prepared())
    assert written == [3 * 2, 2 * 3 * 2]


def test_the_reference_has_the_label_that_it_has_in_the_comparison():
    settings = Settings(**vars(SMALL) | {"reference": "fedadam b2=0.9"})
    tuning = prepared(settings, ("fedadam:b2=0.9", "fedadam:b2=0.99"), ("b1=0,0.5",))
    results = {
        label: [[Trial(tried[place], 9, {5: 0.5, 6: 0.5})]]
        for place, (label, tried) in zip((1, 0), tuning.tried.items(), strict=True)
    }
    content = tomllib.loads(tuned_text(tuning, results))
    assert content["reference"] == "fedadam b1=0.5"
    labels = [method.label for method in methods_of(tuple(content["methods"]), settings)]
    assert labels == ["fedadam b1=0.5", "fedadam b1=0"]
    for stages in results.values():
        stages[0][0].scores[6] = math.nan
    with pytest.raises(ValueError, match=r"fedadam b2=.*: the model of every setting"):
        tuned_text(tuning, results)


@pytest.mark.all
def test_an_option_without_a_default_may_be_tuned():
    tuning = prepared(specs=("ghbm",), grid=("tau=3,2",))
    assert [method.hyperparameters for method in tuning.tried["ghbm"]] == [{"tau": 3}, {"tau": 2}]
    assert [*tuning.experiment.algorithms] == ["ghbm tau=3", "ghbm tau=2"]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"reference": "nonsense"}, {}, "reference='nonsense' is unknown"),
        ({"evaluate_clients": "train"}, {}, "evaluate_clients='train' is not for tuning"),
        ({"client_state": "host"}, {}, "client_state='host' is not for tuning"),
    ],
)
def test_what_cannot_be_tuned(changes, options, message):
    with pytest.raises(ValueError, match=message):
        module.prepare_tuning(Settings(**vars(SMALL) | changes), SPECS, GRID, **options)


def row(round_number, accuracy, loss=1.0):
    return {"round": round_number, "test_accuracy": accuracy, "test_loss": loss}


def test_a_score_is_the_mean_of_the_last_fifth():
    rows = [row(0, 0.0), row(40, 0.5), row(80, 0.9), row(85, 0.1), row(100, 0.3)]
    assert module.run_score(rows) == pytest.approx(0.2)
    assert module.run_score(rows[:1] + [row(3, 0.7)]) == 0.7
    assert module.run_score([*rows, row(105, 0.5, math.nan)]) is None
    clock = [r | {"simulated_seconds": r["round"] / 10, "round": 1} for r in rows]
    assert module.run_score(clock) == pytest.approx(0.2)
    dice = [row(0, 0.0), row(4, 0.5), row(5, 0.9) | {"test_dice_score": 0.25}]
    assert module.run_score(dice, "dice_score") == 0.25
    scores = {"a": 0.1, "b": math.nan, "c": 0.9, "d": 0.1, "e": math.nan}
    trials = [Trial(name, 1, {0: score, 1: 0.5}) for name, score in scores.items()]
    assert "".join(trial.method for trial in module.best_first(trials)) == "cadbe"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not the scores of a search: Expecting value"),
        ('{"stage 1": 0.5}', "not the scores of a search: its checksum is wrong"),
        ({"stage 1": "x"}, "not the scores of a search: it has other values"),
        ({"stage 1": math.nan}, "not the scores of a search: it has other values"),
    ],
)
def test_damaged_scores(tmp_path, content, reason):
    path = tmp_path / "scores.json"
    write_json(path, content) if isinstance(content, dict) else path.write_text(content)
    with pytest.raises(ValueError, match=f"scores.json: {reason}"):
        read_scores(path)
    write_json(path, {"stage 1": 0.5, "stage 2": None})
    assert read_scores(path) == {"stage 1": 0.5, "stage 2": None}
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_scores(path)
