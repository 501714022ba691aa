"""Who makes FedCompass's server steps at exponential speeds, with and without draws near zero.

COMMAND   python experiments/papers/claims.py run fedcompass/why_table_1_exponential_unraised_steps
EXPECTED  without bins the fastest client makes nearly half of the server steps alone, with bins 4%
TIME      a few seconds

Only the planners run, with the speeds of seeds 0 to 9; nothing is trained.
"""

import numpy as np

from fedjax_algos.asynchrony import compass, simulated

CLIENTS, SECONDS = 5, 320.0
DRAWS = {"at least .0015 s": {"time_floor": 0.01}, "bins of .1 s": {"time_bin": 0.667}}


def rows(run):
    found = []
    for case, options in DRAWS.items():
        factory = simulated(seconds_per_step=0.15, speeds="exponential", **options)
        for seed in run.seeds:
            system = factory(seed)
            times = [system.expected_seconds_per_step(client) for client in range(CLIENTS)]
            fastest = int(np.argmin(times))
            plan = compass(min_steps=10, max_steps=50)(system, CLIENTS, seconds=SECONDS)
            others = plan.client[plan.dispatch] != fastest
            with_others = len(np.unique(plan.step[others]))
            alone = 1 - with_others / len(plan.time)
            measures = {
                "slowest / fastest": max(times) / min(times),
                "server steps of the fastest client alone (%)": 100 * alone,
                "staleness of the others, median": np.median(plan.staleness[others]),
            }
            found += [(case, "fedcompass", m, seed, f"{v:.6g}") for m, v in measures.items()]
    return found
