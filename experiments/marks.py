"""Counts how often tables show equal methods as different, and what the correction costs.

COMMAND   python experiments/marks.py, and python experiments/marks.py RESULTS_OR_CSV...
EXPECTED  at most 5.4% in the column "all pairs", the rule of tables; "with the best" is another
TIME      about three and a half minutes on one CPU core

In each of 40,000 comparisons, k equal methods have normal qualities on the same seeds, which have
an effect of their own. Their standard deviations are equal, or 1 to k. An error is a comparison in
which any method is not marked, so is shown as worse than the best. With results folders it prints
instead how many methods both rules tell from the best by the final quality, and with the CSV files
of claims by each measure in each case. `python experiments/marks.py experiments/papers/*/*.csv`
tells 515 of 972 methods from the best; comparisons with the best alone would tell 559.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from fedjax_algos.analysis import statistics
from fedjax_algos.analysis.summary import compared_values, summarise
from fedjax_algos.runs import results

RUNS, METHODS, SEEDS = 40_000, (2, 3, 5, 10), (5, 10, 20)


def with_the_best(values):
    """The p-values with Holm's correction over the comparisons with the best alone."""
    finite = [np.array(own) for own in values.values() if np.isfinite(own).all()]
    finite.sort(key=lambda own: -own.mean())
    own = [statistics.paired_p_value(finite[0] - other) for other in finite[1:]]
    return statistics.holm(own)


def all_pairs(values):
    """The p-values of the tables."""
    found = statistics.p_values_against_best(values).values()
    return np.array([p_value for p_value in found if not np.isnan(p_value)])


RULES = {"all pairs": all_pairs, "with the best": with_the_best}


def errors(rule, methods, seeds, deviations):
    """Returns how often a rule tells some of equal methods apart, as a share."""
    rng = np.random.default_rng([methods, seeds])
    wrong = 0
    for _ in range(RUNS):
        noise = rng.normal(size=(methods, seeds)) * deviations[:, None] + rng.normal(size=seeds)
        wrong += rule(dict(enumerate(noise))).min(initial=1) <= statistics.LEVEL
    return wrong / RUNS


def simulate():
    """Prints the family-wise errors, and returns whether the tables have at most 5.4%."""
    highest = 0.0
    print("methods seeds deviations", *RULES, sep="  ")
    for methods in METHODS:
        for seeds in SEEDS:
            for name, deviations in ("equal", np.ones(methods)), ("1..k", 1.0 + np.arange(methods)):
                found = [errors(rule, methods, seeds, deviations) for rule in RULES.values()]
                highest = max(highest, found[0])
                shown = "  ".join(
                    f"{each:{len(rule)}.1%}" for rule, each in zip(RULES, found, strict=True)
                )
                print(f"{methods:7} {seeds:5} {name:>10}  {shown}", flush=True)
    return highest <= 0.054


def comparisons(path):
    """Yields the values by method of each comparison of a folder or file, the larger the better."""
    if path.is_dir():
        yield compared_values(summarise(results.read_folders([path])), "final")
        return
    found = defaultdict(lambda: defaultdict(dict))
    for row in csv.DictReader(path.open()):
        better = 1 if "accuracy" in row["measure"] else -1
        if better < 0 and " to " not in row["measure"]:
            continue  # neither a quality nor what it costs to reach one
        value = row["value"]
        reached = np.nan if value.startswith(">") else float(value or "nan")
        found[row["case"], row["measure"]][row["method"]][row["seed"]] = better * reached
    for methods in found.values():
        seeds = sorted(set.intersection(*map(set, methods.values())))
        if len(methods) > 1 and len(seeds) >= statistics.MIN_SEEDS_OF_AN_INTERVAL:
            yield {method: [own[seed] for seed in seeds] for method, own in methods.items()}


def tell_apart(paths):
    """Prints how many methods the rules tell from the best, of all comparisons and where unlike."""
    total, others = np.zeros(len(RULES), int), 0
    for path in paths:
        for values in comparisons(Path(path)):
            told = [int((rule(values) <= statistics.LEVEL).sum()) for rule in RULES.values()]
            total, others = total + told, others + len(values) - 1
            if len(set(told)) > 1 or len(paths) == 1:
                print(path, f"{len(values) - 1} others", dict(zip(RULES, told, strict=True)))
    print(f"in all {others} others", dict(zip(RULES, total.tolist(), strict=True)))


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(tell_apart(sys.argv[1:]))
    sys.exit(not simulate())
