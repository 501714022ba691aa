"""The file that tuning writes and `compare --config` reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.tuning.trials import LAST_SHARE, Trial, held_out_rows
from fedjax_algos.runs.tuning.tuning import Tuning

# settings that tuning chooses itself, and those of a machine
_LEFT_OUT = ("seeds", "evaluate_clients", "held_out", "personal_steps", "devices")


def tuned_text(tuning: Tuning, results: Mapping[str, Sequence[Sequence[Trial]]]) -> str:
    """A TOML file with the settings, each method with its best values, and what the tuning saw.

    Args:
      tuning: after its run.
      results: of `run_tuning`.

    Raises:
      ValueError: for a method of which no setting stayed finite.
    """
    settings, best = tuning.experiment.settings, best_trials(results)
    methods = [trial.setting.method for trial in best.values()]
    specs = tuple(method.spec for method in methods)
    tuned = methods_of(specs, settings)
    for method, again in zip(methods, tuned, strict=True):
        assert method.configuration() == again.configuration(), method.spec
    shared = {n: v for n, v in vars(settings).items() if n not in _LEFT_OUT and v is not None}
    if settings.reference is not None:  # the values that were chosen may be part of a label
        labels = dict(zip(best, [method.label for method in tuned], strict=True))
        shared["reference"] = labels[settings.reference]
    return tomli_w.dumps(
        {**shared, "methods": list(specs), "tuning": _record(tuning, best)}, multiline_strings=False
    )


def best_trials(results: Mapping[str, Sequence[Sequence[Trial]]]) -> dict[str, Trial]:
    """The best trial of each method, by label.

    Raises:
      ValueError: for a method of which no setting stayed finite.
    """
    best = {label: stages[-1][0] for label, stages in results.items()}
    for label, trial in best.items():
        if trial.score != trial.score:
            raise ValueError(
                f"{label}: the model of every setting was not finite on some seed; give a grid "
                "with smaller learning rates"
            )
    return best


def _record(tuning: Tuning, best: Mapping[str, Trial]) -> dict[str, Any]:
    """What the tuning saw and computed."""
    experiment = tuning.experiment
    settings = experiment.settings
    rows = held_out_rows(experiment)
    unit = "rounds" if settings.seconds is None else "simulated seconds"
    return {
        "test_data": "not used",
        "validation": settings.held_out,
        "validation_examples": min(map(len, rows.values())),
        "score": f"mean {settings.target_metric} on the validation examples, which each client "
        "holds out of its training examples, over the evaluations in the last "
        f"{100 * LAST_SHARE:g}% of a run and over the seeds",
        "seeds": list(settings.seeds),
        "settings_of_each_method": tuning.stages[0].settings,
        "budget_of_each_method": f"{tuning.budget:g} {unit} over all settings and seeds",
        "stages": [f"{s.settings} settings for {s.length:g} {unit}" for s in tuning.stages],
        "scores": {label: round(trial.score, 6) for label, trial in best.items()},
    }
