"""Figure 5: the draws of the clients' times per step.

COMMAND   python experiments/papers/fedcompass/figure_5.py
EXPECTED  mean .15 for both distributions; standard deviations .045 and .15
TIME      a few seconds
"""

from pathlib import Path

import numpy as np

from fedjax_algos.analysis.claims import write_measured
from fedjax_algos.asynchrony import simulated

DRAWS = {
    "normal": {"speeds": "normal"},
    "exponential": {"speeds": "exponential", "time_floor": 0.0},
    "exponential, at least .03 s": {"speeds": "exponential", "time_floor": 0.2},
}
CLIENTS, SEEDS = 50, 1000


def main():
    rows = []
    for name, options in DRAWS.items():
        factory = simulated(seconds_per_step=0.15, **options)
        times = np.array(
            [
                [system.expected_seconds_per_step(client) for client in range(CLIENTS)]
                for system in map(factory, range(SEEDS))
            ]
        )
        below = (times[:, :5] < 0.03).any(axis=1).mean()
        for measure, value in (
            ("mean (s)", times.mean()),
            ("standard deviation (s)", times.std()),
            ("least time of 50 clients, median (s)", np.median(times.min(axis=1))),
            ("greatest time of 50 clients, median (s)", np.median(times.max(axis=1))),
            ("draws of 5 clients with one below .03 s (%)", 100 * below),
        ):
            print(f"{name:30}{measure:45}{value:8.4g}")
            rows.append((name, "speeds", measure, 0, f"{value:.6g}"))
    write_measured(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
