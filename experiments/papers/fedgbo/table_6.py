"""Table VI: operations of a local step for each parameter, counted from the library's code.

COMMAND   python experiments/papers/claims.py run fedgbo/table_6
EXPECTED  fixed statistics: 5, 5 and 8 for RMSProp, SGDm and Adam; moving ones: 9, 5 and
          12; FedAvg 2, FedProx 5
TIME      half a minute

FEMNIST's network. The difference of a local step from FedAvg's, divided by the number of
parameters, plus the two operations of FedAvg's step (times the rate, and the subtraction).
"""

from collections.abc import Iterator

from costs import OPTIMIZERS, TASKS, count


def rows(run) -> Iterator[tuple]:
    """Operations with fixed and with moving statistics, and of the two plain methods."""
    task = TASKS["FEMNIST"]
    plain, size = count(task, "fedavg").step, task.params()

    def operations(algorithm, **options):
        return f"{2 + (count(task, algorithm, **options).step - plain) / size:.4g}"

    for name in OPTIMIZERS:
        for label, algorithm in {"fixed": "fedgbo", "moving": "mfl"}.items():
            yield name, label, "operations", 0, operations(algorithm, optimizer=name)
    yield "none", "fedavg", "operations", 0, operations("fedavg")
    yield "none", "fedprox", "operations", 0, operations("fedprox")
