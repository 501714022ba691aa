"""Table VII: operations of a client's round at K = 10, by the paper's equation 22 and Table VI.

COMMAND   python experiments/papers/claims.py run fedgbo/table_7
EXPECTED  the printed numbers to three figures, except Mimelite on Sent140
TIME      ten seconds

The multiply-adds of an example and the number of parameters are counted from the library's models.
"""

from collections.abc import Iterator

from costs import OPTIMIZERS, TASKS
from paper_measures.costs import paper_costs, paper_flops

METHODS = {f"{a} {o}": (a, o) for a in ("fedgbo", "mimelite", "mfl") for o in OPTIMIZERS}
METHODS |= {"sgd": ("fedavg", None), "fedprox": ("fedprox", None)}


def table(steps: int) -> Iterator[tuple]:
    """The rows of Table VII or VIII, in units of 1e8 operations.

    Args:
      steps: K.
    """
    for name, task in TASKS.items():
        sizes = {"steps": steps, "batch_size": task.batch_size, "num_examples": task.examples}
        for label, method in METHODS.items():
            flops = paper_flops(paper_costs(*method), task.macs(), task.params(), **sizes)
            yield name, label, "1e8 operations", 0, f"{flops / 1e8:.5g}"


def rows(run):
    return table(10)
