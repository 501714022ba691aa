"""Rows of methods whose accuracies are given, and results folders of them."""

import json

from fedjax_algos.runs.studies import folder_content


def rows(method, by_seed, **columns):
    """Rows of one method: its test accuracies, and other columns as a factor of the round."""
    return [
        {"method": method, "seed": seed, "round": 10 * index}
        | {"test_accuracy": accuracy, "test_loss": 1 - accuracy}
        | {"upload_bytes": 1000 * index, "wall_seconds": 1.0 + seed}
        | {name: 10 * index * factor for name, factor in columns.items()}
        for seed, curve in enumerate(by_seed)
        for index, accuracy in enumerate(curve)
    ]


NAN = float("nan")
FIRST = [[0.1, 0.5, 0.6], [0.1, 0.7, 0.6]]
OTHER = [[0.1, 0.2, 0.8], [0.1, 0.2, 0.9]]
HALF_DIVERGED = [[0.1, 0.5, NAN], [0.1, 0.4, 0.5]]
ALL_DIVERGED = [[NAN] * 3] * 2


def write_folder(folder, measured, **configuration):
    """A results folder without training; a `config.json` only if something in it is given."""
    folder.mkdir()
    folder_content.write_table(folder / "metrics.csv", measured)
    if configuration:
        content = {"settings": {"seeds": [0]}, "methods": {"first": {}}, "layout": None}
        content |= {"environment": {"packages": {}}, "complete": True, **configuration}
        (folder / "config.json").write_text(json.dumps(content))
