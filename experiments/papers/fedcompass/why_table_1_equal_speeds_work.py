"""How much local work FedAvg and FedCompass put into the model per second at equal speeds.

COMMAND   python experiments/papers/fedcompass/why_table_1_equal_speeds_work.py
EXPECTED  FedCompass's rounds are as long as FedAvg's, and put less work into the model
TIME      a few seconds

Only the schedules run; nothing is trained. A local step of client i counts st(d) p_i, its weight in
the server's step, with p_i = 1 / 5.
"""

from pathlib import Path

import numpy as np

from fedjax_algos.analysis.claims import write_measured
from fedjax_algos.asynchrony import barrier, compass, simulated

CLIENTS, STEPS, SECONDS, SEEDS = 5, 50, 1000.0, 10
PLANNERS = {
    "fedavg": barrier(steps=STEPS),
    "fedcompass": compass(min_steps=STEPS // 5, max_steps=STEPS),
}


def main():
    rows = []
    factory = simulated(seconds_per_step=0.15, speeds="homogeneous")
    for seed in range(SEEDS):
        for name, planner in PLANNERS.items():
            plan = planner(factory(seed), CLIENTS, seconds=SECONDS)
            settled = plan.step > CLIENTS  # after the first arrivals and the first group
            steps = plan.num_steps[plan.dispatch[settled]]
            times = plan.time[np.unique(plan.step[settled])]
            alpha = 0.9 if name == "fedcompass" else 1.0
            round_seconds = np.diff(times).mean()
            for measure, value in (
                ("seconds of a round", round_seconds),
                ("steps of a client in a round", steps.mean()),
                ("weighted steps per second", alpha * steps.mean() / round_seconds),
            ):
                rows.append(("", name, measure, seed, f"{value:.6g}"))
    for measure in dict.fromkeys(row[2] for row in rows):
        means = [
            np.mean([float(row[4]) for row in rows if row[1:3] == (name, measure)])
            for name in PLANNERS
        ]
        print(f"{measure:32}", *(f"{n} {v:.4g}" for n, v in zip(PLANNERS, means, strict=True)))
    write_measured(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
