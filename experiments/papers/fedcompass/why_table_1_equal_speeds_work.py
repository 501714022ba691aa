"""How much local work FedAvg and FedCompass put into the model per second at equal speeds.

COMMAND   python experiments/papers/claims.py run fedcompass/why_table_1_equal_speeds_work
EXPECTED  FedCompass's rounds are as long as FedAvg's, and put less work into the model
TIME      a few seconds

Only the planners run; nothing is trained. A local step of client i counts st(d) p_i, its weight in
the server's step, with p_i = 1 / 5. The program for more clients has `rows_with` from here.
"""

import numpy as np

from fedjax_algos.asynchrony import barrier, compass, simulated

SECONDS = 1000.0


def rows(run):
    return rows_with(run, "", 5, 50)


def rows_with(run, case, clients, max_steps):
    """The work of both schedules, with this number of clients and largest number of local steps."""
    found = []
    factory = simulated(seconds_per_step=0.15, speeds="homogeneous")
    planners = {
        "fedavg": barrier(steps=max_steps),
        "fedcompass": compass(min_steps=max_steps // 5, max_steps=max_steps),
    }
    for seed in run.seeds:
        for name, planner in planners.items():
            plan = planner(factory(seed), clients, seconds=SECONDS)
            settled = plan.step > clients  # after the first arrivals and the first group
            steps = plan.num_steps[plan.dispatch[settled]]
            times = plan.time[np.unique(plan.step[settled])]
            alpha = 0.9 if name == "fedcompass" else 1.0
            round_seconds = np.diff(times).mean()
            for measure, value in (
                ("seconds of a round", round_seconds),
                ("steps of a client in a round", steps.mean()),
                ("weighted steps per second", alpha * steps.mean() / round_seconds),
            ):
                found.append((case, name, measure, seed, f"{value:.6g}"))
    return found
