"""Table I: what a client has to hold during local training, in models.

COMMAND   python experiments/papers/claims.py run fedgbo/table_1_memory
EXPECTED  the table
TIME      a minute

The library's count is what local training changes and reads (`in_training`).
"""

from collections.abc import Iterator

from costs import TASKS, count
from table_1_transfer import LOCAL, PLAIN, SERVER


def rows(run) -> Iterator[tuple]:
    """The rows of the claims; the case is the optimiser of the adaptive algorithms."""
    task = TASKS["FEMNIST"]
    size = 4 * task.params()
    for case, afo in SERVER.items():
        for label, algorithm in (PLAIN | {"AFO": afo} | LOCAL).items():
            options = {"optimizer": case} if algorithm in LOCAL else {}
            memory = count(task, algorithm, **options).memory.in_training
            yield case, label, "memory / model", 0, f"{memory / size:.4g}"
