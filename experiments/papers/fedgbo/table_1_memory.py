"""Table I: what a client has to hold in a round beyond FedAvg's, in models.

COMMAND   python experiments/papers/fedgbo/table_1_memory.py
EXPECTED  the differences in Table I, except for FedProx and MFL
TIME      a minute

The library's count is what the client receives and what its local training changes. FedAvg's own
is two models there and one in the paper, because the library's clients upload x - y and keep x.
"""

from collections.abc import Iterator

from costs import TASKS, count, write
from table_1_transfer import LOCAL, PLAIN, SERVER


def table() -> Iterator[tuple]:
    """The rows of the claims; the case is the optimiser of the adaptive algorithms."""
    task = TASKS["FEMNIST"]
    size = 4 * task.params()
    plain = count(task, "fedavg").memory.in_round
    for case, afo in SERVER.items():
        for label, algorithm in (PLAIN | {"AFO": afo} | LOCAL).items():
            options = {"optimizer": case} if algorithm in LOCAL else {}
            memory = count(task, algorithm, **options).memory.in_round
            more = round((memory - plain) / size, 4)
            yield case, label, "memory beyond FedAvg's / model", 0, f"{more:g}"


if __name__ == "__main__":
    write(__file__, table())
