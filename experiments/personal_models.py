"""When a model of each client's own beats the global one, and when it does not.

COMMAND   python experiments/personal_models.py --figure personal_models.png
EXPECTED  means over clients: with Dirichlet .1 FedAvg 94.4, fine-tuned 97.3, pFedMe 96.6; with iid
          clients FedAvg 95.1, and no own model above 95.2; with reversed labels FedAvg 46.7, IFCA
          94.0
TIME      three and a half minutes of one CPU core

Scikit-learn's digits on 100 clients, 10 in a round, 10 local steps of batch 10 at rate .1, 100
rounds, an MLP with 64 hidden units, five seeds. A fifth of each client's examples is held out, and
each client's own model is evaluated on them. The three tasks are Dirichlet .1 (clients with few
classes), iid clients, and iid clients of which every other one has its labels reversed (9 - y), so
that no single model fits them all. The options are the defaults or round numbers, not tuned.

The table has the mean, the standard deviation and the worst tenth of the accuracy over clients, in
percent. The figure has the mean and the worst tenth.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.data import Dataset, federate
from fedjax_algos.runs.studies.settings import Settings, split

TASKS = {
    "Dirichlet .1": ("dirichlet:alpha=0.1", False),
    "iid": ("iid", False),
    "iid, half of the clients reversed": ("iid", True),
}
METHODS: dict[str, tuple[str, dict[str, Any], int]] = {  # algorithm, options, local steps before
    "FedAvg": ("fedavg", {}, 0),
    "FedAvg, fine-tuned": ("fedavg", {}, 10),
    "local training": ("ditto", {"strength": 0.0}, 0),
    "Ditto": ("ditto", {"strength": 0.1}, 0),
    "APFL": ("apfl", {}, 0),
    "FedRep": ("fedrep", {"head": "Dense_1/*", "body_share": 0.5}, 0),
    "pFedMe": ("pfedme", {"strength": 5.0, "personal_learning_rate": 0.1}, 0),
    "Per-FedAvg": ("perfedavg", {"alpha": 0.1}, 1),
    "IFCA": ("ifca", {"clusters": 2}, 0),
}


def clients_of(settings: Settings, dataset: Dataset, seed: int, reverse: bool) -> tuple[Any, Any]:
    """The training and the held-out examples of the clients, with labels reversed for odd ones."""
    data, partition, held_out = split(settings, dataset, seed)
    if not reverse:
        return data, held_out
    labels = np.array(dataset.train["y"])
    held = fa.Partition(np.asarray(held_out.indices), np.asarray(held_out.offsets))
    for part in (partition, held):
        odd = np.repeat(np.arange(part.num_clients) % 2 == 1, part.counts())
        labels[part.indices[odd]] = 9 - labels[part.indices[odd]]
    examples = dict(dataset.train) | {"y": labels}
    return federate(examples, partition), federate(examples, held, allow_empty=True)


def accuracies(name: str, partition: str, reverse: bool, seeds: int) -> np.ndarray:
    """The accuracy of each client that holds out an example, of all seeds."""
    settings = Settings(partition=partition, evaluate_clients="held_out")
    dataset = settings.load()
    algorithm_name, options, steps = METHODS[name]
    problem = settings.problem(dataset)
    algorithm = algorithms[algorithm_name](problem, settings.local(0.1), **options)
    engine, evaluate = fa.make_engine(algorithm), fa.make_evaluate_own(algorithm)
    values = []
    for seed in range(seeds):
        data, held_out = clients_of(settings, dataset, seed, reverse)
        state, _ = fa.simulate(engine, data, seed=seed, **settings.loop() | {"eval_every": 100})
        more = {"train": data, "num_steps": steps} if steps else {}
        accuracy = evaluate(state, held_out, **more)["accuracy"]
        values.append(np.asarray(accuracy.value())[held_out.counts() > 0])
    return np.concatenate(values)


def draw(results: dict[str, dict[str, tuple[float, float, float]]], path: Path) -> None:
    """A bar for the mean of each method and a dot for the worst tenth, in a panel for each task."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True)
    for (task, by_method), axes in zip(results.items(), panels, strict=True):
        means, _, worst = zip(*by_method.values(), strict=True)
        axes.barh(list(by_method), means, color="tab:blue", alpha=0.6, label="mean of the clients")
        axes.plot(worst, list(by_method), "o", color="tab:red", label="worst tenth", clip_on=False)
        axes.axvline(means[0], color="black", linewidth=0.8, linestyle=":")
        axes.set(title=task, xlabel="accuracy on held-out examples, %", xlim=(0, 100))
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Prints a table for each task, and draws the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    results: dict[str, dict[str, tuple[float, float, float]]] = {}
    for task, (partition, reverse) in TASKS.items():
        print(f"{task:34} {'mean':>6} {'spread':>6} {'worst':>6}")
        for name in METHODS:
            values = 100 * np.sort(accuracies(name, partition, reverse, arguments.seeds))
            line = values.mean(), values.std(), values[: -(-len(values) // 10)].mean()
            print(f"{name:34}", *(f"{value:6.1f}" for value in line), flush=True)
            results.setdefault(task, {})[name] = line
    if arguments.figure is not None:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
