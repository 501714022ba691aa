"""Tables VII and VIII: operations relative to FedAvg's, counted from the library's code.

COMMAND   python experiments/papers/claims.py run fedgbo/table_7_counted
EXPECTED  on the three dense tasks all methods but Mimelite within 1.5% of the paper's ratios, and
          Mimelite at 18.5 times FedAvg's on Shakespeare
TIME      four minutes

The paper's models, batch sizes and mean numbers of examples. The library counts two operations for
a multiply-add where the paper's numbers have one, and all rows of the batches that it computes.
"""

from collections.abc import Iterator

from costs import TASKS, count
from table_7 import METHODS


def rows(run) -> Iterator[tuple]:
    """The rows of the claim."""
    for steps in (10, 50):
        for name in ("CIFAR100", "FEMNIST", "Shakespeare"):
            plain = count(TASKS[name], "fedavg", steps=steps).total
            for label, (algorithm, optimizer) in METHODS.items():
                if label != "sgd":
                    options = {} if optimizer is None else {"optimizer": optimizer}
                    total = count(TASKS[name], algorithm, steps=steps, **options).total
                    case = f"{name}, K = {steps}"
                    yield case, label, "operations / FedAvg's", 0, f"{total / plain:.5g}"
