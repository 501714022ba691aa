"""Tunes the methods of `fedjax-algos compare`: the same grid, budget and seeds for each.

COMMAND   python experiments/tune_compare.py
EXPECTED  experiments/results/tune_compare.csv and, printed, each method's best setting
TIME      about 3 minutes on two CPU cores

Every method gets 9 client rates x 3 values of one more hyperparameter. A fifth of the training
examples is held out for the choice, so the test set is not used; the seeds are not those of
`compare`. The score is the mean held-out accuracy over the evaluations of the last 20 rounds.
"""

import csv
from pathlib import Path

import numpy as np

from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.simulation import simulate

RATES = [float(f"{10**exponent:.2g}") for exponent in np.arange(-3, 1.01, 0.5)]
GRID = {
    "fedavg:weighting=uniform,server_learning_rate={}": (0.5, 1.0, 1.5),
    "fedprox:weighting=uniform,mu={}": (0.001, 0.01, 0.1),
    "fedgbo:optimizer=sgdm,beta={}": (0.6, 0.9, 0.99),
    "fedgbo:optimizer=rmsprop,beta={}": (0.6, 0.9, 0.99),
    "fedgbo:optimizer=adam,beta={}": (0.6, 0.9, 0.99),
}
SETTINGS = Settings(seeds=(100, 101, 102, 103, 104))
LAST_ROUNDS = 20


def held_out(dataset):
    """The data set with every fifth training example as its test set."""
    chosen = np.arange(len(dataset.train["y"])) % 5 == 0
    parts = ({k: v[rows] for k, v in dataset.train.items()} for rows in (~chosen, chosen))
    return dataset._replace(train=next(parts), test=next(parts))


def main():
    dataset = held_out(SETTINGS.load())
    results = []
    for template, values in GRID.items():
        name = template.partition("," if template.startswith("fedgbo") else ":")[0]
        for value in values:
            spec = template.format(value)
            (method,) = methods_of((spec,), SETTINGS)
            experiment = prepare(SETTINGS, [method], dataset)
            (engine,) = experiment.engines.values()
            for rate in RATES:  # the rate is data: no compilation
                local = SETTINGS.local(rate)
                at_rate = engine._replace(algorithm=engine.algorithm._replace(local=local))
                scores = []
                for seed, data in experiment.data.items():
                    _, history = simulate(
                        at_rate,
                        data,
                        cohort_size=SETTINGS.cohort,
                        rounds=SETTINGS.rounds,
                        seed=seed,
                        test=dataset.test,
                        eval_every=SETTINGS.eval_every,
                        evaluate=experiment.evaluate,
                    )
                    late = [r for r in history if r["round"] > SETTINGS.rounds - LAST_ROUNDS]
                    scores.append(np.mean([row["test_accuracy"] for row in late]))
                results.append(
                    {
                        "method": name,
                        "setting": f"{spec},client_learning_rate={rate:g}",
                        "accuracy": round(float(np.mean(scores)), 5),
                    }
                )
                print(results[-1], flush=True)
    path = Path(__file__).parent / "results" / "tune_compare.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(results[0]))
        writer.writeheader()
        writer.writerows(results)
    for method in dict.fromkeys(row["method"] for row in results):
        print(max((r for r in results if r["method"] == method), key=lambda r: r["accuracy"]))


if __name__ == "__main__":
    main()
