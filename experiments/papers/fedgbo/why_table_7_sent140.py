"""Table VII: Mimelite on Sent140, with the mean number of examples as printed and as 20.

COMMAND   python experiments/papers/claims.py run fedgbo/why_table_7_sent140
EXPECTED  .0335, .0335 and .0365 with 15 examples; .0350, .0350 and .0380 with 20
TIME      a few seconds
"""

from collections.abc import Iterator

from costs import OPTIMIZERS, TASKS
from paper_measures.costs import paper_costs, paper_flops


def rows(run) -> Iterator[tuple]:
    """The rows of the explanation, in units of 1e8 operations."""
    task = TASKS["Sent140"]
    for steps in (10, 50):
        for examples in (15, 20):
            for name in OPTIMIZERS:
                sizes = {"steps": steps, "batch_size": task.batch_size, "num_examples": examples}
                costs = paper_costs("mimelite", name)
                flops = paper_flops(costs, task.macs(), task.params(), **sizes) / 1e8
                case = f"K = {steps}, n = {examples}"
                yield case, f"mimelite {name}", "1e8 operations", 0, f"{flops:.4g}"
