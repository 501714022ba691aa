"""Planning a million arrivals of a thousand clients, and making waves of four of them.

COMMAND   python benchmarks/planning.py
EXPECTED  seconds for each planner and speed distribution, arrivals a second, peak memory
TIME      about 2 minutes
BAR       plan and waves under 10 s for FedAsync and FedBuff, under 15 s for FedCompass

Everything runs on the host: no model, no data. Each line is one plan in a process of its own.
"""

import multiprocessing
import resource
import time

from rich.console import Console
from rich.table import Table

ARRIVALS, CLIENTS, SLOTS = 1_000_000, 1_000, 4
PLANNERS = {
    "immediate:steps=50": 10,
    "buffered:steps=50,size=10": 10,
    "compass:min_steps=20,max_steps=100": 15,
}


def measure(planner: str, speeds: str) -> tuple[float, float, int, float]:
    """Seconds to plan and to make waves, the number of waves, and the peak memory in MB."""
    from fedjax_algos.asynchrony import planners, system_models
    from fedjax_algos.engine.asynchronous.waves import make_waves

    system = system_models.make(f"simulated:speeds={speeds}")(0)
    start = time.perf_counter()
    plan = planners.make(planner)(system, CLIENTS, arrivals=ARRIVALS)
    planned = time.perf_counter()
    waves = make_waves(plan, SLOTS)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return planned - start, done - planned, len(waves.filled), peak


def main():
    table = Table(
        "planner", "speeds", "plan s", "waves s", "arrivals/s", "waves", "peak MB", "bar s"
    )
    context = multiprocessing.get_context("spawn")
    for planner, bar in PLANNERS.items():
        for speeds in ("homogeneous", "normal", "exponential"):
            with context.Pool(1) as pool:
                plan, waves, number, peak = pool.apply(measure, (planner, speeds))
            rate = ARRIVALS / (plan + waves)
            cells = [f"{plan:.1f}", f"{waves:.1f}", f"{rate:,.0f}", f"{number:,}", f"{peak:.0f}"]
            table.add_row(planner.partition(":")[0], speeds, *cells, str(bar))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
