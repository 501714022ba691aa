"""Tuning: scores of held-out examples, stages, proposals, and what the file says."""

import functools
import itertools
import math
import tomllib

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import fedjax_algos as fa
from fedjax_algos.core.files import write_json
from fedjax_algos.engine.compilation import keep_compiled
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.saving.interruption import Interrupted
from fedjax_algos.runs.saving.opening import open_folder
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.simulation import simulate
from fedjax_algos.runs.tuning.tuning import (
    Scores,
    Stage,
    Trial,
    best_first,
    held_out_rows,
    prepare_tuning,
    run_score,
    run_tuning,
    stages_of,
    tuned_text,
)  # fmt: skip

SMALL = Settings(
    model="linear", clients=10, cohort=4, rounds=9, local_steps=2, eval_every=1, seeds=(5, 6)
)
SPECS = ("fedavg", "fedprox:mu=0.5")
GRID = ("client_learning_rate=0.03,0.3,3",)
CLOCK = {"seconds": 4.0, "clients": 4, "evaluations": 4}


@functools.cache
def digits():
    return SMALL.load()


def begin(folder, tuning):
    methods = {space.method.label: {} for space in tuning.spaces}
    others = {"settings": {"seeds": [0]}, "environment": {"packages": {}}, "layout": None}
    folder.begin({"methods": methods, **others})


def tune(path, specs=SPECS, grid=GRID, settings=SMALL, on_row=lambda row: None, **options):
    """The prepared search and its trials."""
    tuning = prepare_tuning(
        settings, specs, grid, **{"dataset": digits(), "validation": 0.3} | options
    )
    with open_folder(str(path), "tune", resume=path.exists()) as folder:
        begin(folder, tuning)
        return tuning, run_tuning(tuning, folder, on_row)


def scores(results):
    return {
        (label, number, trial.setting.method.label): trial.scores
        for label, stages in results.items()
        for number, stage in enumerate(stages)
        for trial in stage
    }


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """The tests repeat searches, whose programs are the same."""
    keep_compiled(tmp_path_factory.mktemp("programs"))
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder, the search and the trials of a search that ends, once for all tests."""

    @functools.cache
    def search(clock=False, **options):
        path = tmp_path_factory.mktemp("whole") / "there"
        settings = Settings(**vars(SMALL) | (CLOCK if clock else {}))
        return path, *tune(path, settings=settings, **options)

    return search


@pytest.mark.all
@pytest.mark.parametrize("clock", [False, True])
def test_scores_are_those_of_runs_that_are_tested_on_what_clients_hold_out(whole, clock):
    _, tuning, results = whole(clock)
    settings = tuning.experiment.settings
    held_out = held_out_rows(tuning.experiment)
    for seed, data in tuning.experiment.data.items():
        trained, tested = set(np.asarray(data.indices)), set(held_out[seed])
        assert not trained & tested
        assert len(tested) == int(0.3 * (len(trained) + len(tested)))
    own = {"evaluate_clients": "held_out", "held_out": 0.3, "client_learning_rate": 0.3}
    alone = Settings(**vars(settings) | own)
    experiment = prepare(alone, methods_of(("fedavg",), alone), digits())
    (engine,) = experiment.engines.values()
    for seed, data in experiment.data.items():
        test = {name: leaf[held_out[seed]] for name, leaf in data.examples.items()}
        if clock:
            result = fa.simulate_async(
                engine, data, fa.asynchrony.barrier(steps=2), fa.asynchrony.simulated(),
                seconds=4.0, seed=seed, test=test, evaluations=4,
            )  # fmt: skip
            late = [row for row in result.rows if row["simulated_seconds"] > 0.8 * 4]
        else:
            _, rows = simulate(engine, data, seed=seed, test=test, **alone.loop())
            late = [row for row in rows if row["round"] > 0.8 * 9]
        assert late
        expected = np.mean([row["test_accuracy"] for row in late])
        scored = scores(results)["fedavg", 0, "fedavg client_learning_rate=0.3"][seed]
        np.testing.assert_allclose(scored, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((27, 100.0, 5.0, None), [(27, 100)]),
        ((27, 100.0, 5.0, 3), [(27, 11), (9, 33), (3, 100)]),
        ((27, 100.0, 1.0, 3), [(27, 4), (9, 11), (3, 33), (1, 100)]),
        ((5, 100.0, 5.0, 2), [(5, 25), (2, 50), (1, 100)]),
        ((2, 100.0, 5.0, 3), [(2, 100)]),
        ((4, 10.0, 1.0, 4, False), [(4, 2.5), (1, 10.0)]),
    ],
)
def test_stages_of_successive_halving(arguments, expected):
    assert stages_of(*arguments) == [Stage(*each) for each in expected]


@pytest.mark.all
def test_halving_runs_the_best_settings_longer(whole):
    _, tuning, results = whole(halving=3)
    assert tuning.stages == [Stage(3, 3), Stage(1, 9)]
    assert tuning.budget == 2 * (3 * 3 + 1 * 9)
    first, (last,) = results["fedavg"]
    full = {trial.setting.method.label: trial for trial in whole()[2]["fedavg"][0]}
    name = first[0].setting.method.label
    assert last.setting.method.label == name
    assert last.scores == pytest.approx(full[name].scores, rel=1e-6)
    assert last.scores != pytest.approx(first[0].scores, rel=1e-6)
    assert {trial.setting.method.label for trial in first} == full.keys()


@pytest.mark.all
@pytest.mark.parametrize("clock", [False, True])
def test_a_search_that_was_interrupted_goes_on_with_the_same_scores(tmp_path, whole, clock):
    path, _, expected = whole(clock)
    settings = Settings(**vars(SMALL) | (CLOCK if clock else {}))
    rows = []

    def interrupt(row):
        rows.append(row)
        if row["method"].startswith("fedprox"):
            raise Interrupted(2)

    with pytest.raises(Interrupted):
        tune(tmp_path / "there", settings=settings, on_row=interrupt)
    count = len(rows)
    computed = []
    _, results = tune(tmp_path / "there", settings=settings, on_row=computed.append)
    assert {row["method"].split()[0] for row in computed} == {"fedprox"}
    assert count > 1
    assert scores(results) == scores(expected)
    tables = [(folder / "trials.csv").read_bytes() for folder in (path, tmp_path / "there")]
    assert tables[0] == tables[1]


@pytest.fixture
def untrained(monkeypatch):
    """The score of a setting is its client learning rate; nothing is trained."""
    calls = []

    def score(experiment, chosen, rounds, on_evaluation, checkpoints, takes):
        calls.append([setting.method.label for setting in chosen])
        rates = {each.method.label: each.method.client_learning_rate for each in chosen}
        return {label: dict.fromkeys(experiment.data, rate) for label, rate in rates.items()}

    monkeypatch.setattr("fedjax_algos.runs.tuning.tuning.try_in_rounds", score)
    return calls


@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_all_methods_have_the_same_number_of_trials(tmp_path, untrained, search):
    grid = ("client_learning_rate=0.1,0.3,1", "fedprox:mu=0.01,0.1,1,3")
    specs = ("fedavg", "fedprox")
    _, results = tune(tmp_path / "there", specs, grid, search=search, trials=3)
    labels = {name: [t.setting.method.label for t in trials] for name, (trials,) in results.items()}
    assert {name: len(set(each)) for name, each in labels.items()} == {"fedavg": 3, "fedprox": 3}
    assert sorted(itertools.chain(*untrained)) == sorted(itertools.chain(*labels.values()))


def test_proposals_depend_on_the_seed_and_the_scores_alone(tmp_path, untrained):
    options = {"specs": ("fedavg",), "grid": ("client_learning_rate=0.01..1",), "trials": 6}
    _, drawn = tune(tmp_path / "drawn", **options)
    _, first = tune(tmp_path / "first", search="optuna", **options)
    _, again = tune(tmp_path / "again", search="optuna", **options)
    assert scores(first) == scores(again) != scores(drawn)
    (trials,) = first["fedavg"]
    assert len(trials) == 6
    rates = [trial.setting.method.client_learning_rate for trial in trials]
    assert all(0.01 <= rate <= 1 and rate == float(f"{rate:.3g}") for rate in rates)
    assert [trial.score for trial in trials] == sorted([t.score for t in trials], reverse=True)


def test_the_scores_of_a_program_are_written_together(tmp_path, untrained, monkeypatch):
    """So that a search that is killed does not train a part of its settings in another program."""
    written = []
    monkeypatch.setattr(
        "fedjax_algos.runs.tuning.tuning.write_json",
        lambda path, content: written.append(len(content)),
    )
    tune(tmp_path / "there", grid=("client_learning_rate=0.1,0.2,0.3",))
    assert written == [3 * 2, 2 * 3 * 2]


def test_the_file_has_the_best_settings_and_what_was_seen(whole):
    _, tuning, results = whole(halving=3)
    settings = SMALL
    content = tomllib.loads(tuned_text(tuning, results))
    specs = content["methods"]
    assert specs == [stages[-1][0].setting.method.spec for stages in results.values()]
    fedavg, fedprox = methods_of(tuple(specs), settings)
    assert fedavg.algorithm == "fedavg"
    assert fedprox.hyperparameters == {"mu": 0.5}
    kept = {name: content[name] for name in vars(settings) if name in content}
    given = {name for name, value in vars(settings).items() if value is not None}
    of_clients = {"evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps"}
    assert kept.keys() == given - {"seeds"} - of_clients
    assert all(vars(settings)[name] == value for name, value in kept.items())
    seen = content["tuning"]
    assert seen["test_data"] == "not used"
    assert seen["seeds"] == [5, 6]
    assert seen["validation_examples"] == len(held_out_rows(tuning.experiment)[5])
    assert seen["settings_of_each_method"] == 3
    assert seen["stages"] == ["3 settings for 3 rounds", "1 settings for 9 rounds"]
    assert seen["scores"]["fedavg"] == pytest.approx(results["fedavg"][-1][0].score, abs=1e-6)


def test_the_reference_has_the_label_that_it_has_in_the_comparison():
    specs = ("fedadam:b2=0.9", "fedadam:b2=0.99")
    settings = Settings(**vars(SMALL) | {"reference": "fedadam b2=0.9"})
    tuning = prepare_tuning(settings, specs, ("b1=0,0.5",), dataset=digits())
    results = {
        space.method.label: [[Trial(space.setting(settings, {"b1": b1}), 9, {5: 0.5, 6: 0.5})]]
        for space, b1 in zip(tuning.spaces, (0.5, 0.0), strict=True)
    }
    content = tomllib.loads(tuned_text(tuning, results))
    assert content["reference"] == "fedadam b1=0.5"
    labels = [method.label for method in methods_of(tuple(content["methods"]), settings)]
    assert labels == ["fedadam b1=0.5", "fedadam b1=0"]


@pytest.mark.all
def test_a_method_of_which_every_setting_diverges_is_named(tmp_path):
    settings = Settings(**vars(SMALL) | {"weight_decay": 1e10, "non_finite": "keep", "rounds": 2})
    grid = ("client_learning_rate=1e38",)
    tuning, results = tune(tmp_path / "there", ("fedavg",), grid, settings)
    with pytest.raises(ValueError, match="fedavg: the model of every setting was not finite"):
        tuned_text(tuning, results)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"reference": "nonsense"}, {}, "reference='nonsense' is unknown; choose fedavg or"),
        ({"evaluate_clients": "train"}, {}, "evaluate_clients='train' is not for tuning"),
        ({"client_state": "host"}, {}, "client_state='host' is not for tuning"),
        ({}, {"search": "optuna"}, "search='optuna' with trials=None and halving=None; give"),
        ({}, {"search": "optuna", "trials": 3, "halving": 3}, r"N \(--trials N\), and no"),
    ],
)
def test_what_cannot_be_tuned(changes, options, message):
    with pytest.raises(ValueError, match=message):
        prepare_tuning(Settings(**vars(SMALL) | changes), SPECS, GRID, **options)


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
        ("[]", r"cannot be read \(it has no checksum\)"),
        ('{"stage 1": 0.5}', r"cannot be read \(it has no checksum\)"),
        ({"stage 1": "x"}, "does not hold"),
        ({"stage 1": math.nan}, "does not hold"),
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
