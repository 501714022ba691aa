"""Table I: what a client downloads and uploads in a round, in models, counted from what is sent.

COMMAND   python experiments/papers/claims.py run fedgbo/table_1_transfer
EXPECTED  the numbers of Table I
TIME      less than three minutes

FEMNIST's network with three clients. The bytes are those of the arrays that the library sends, and
are divided by those of the model. AFO is the paper's AdaptiveFedOpt.
"""

from collections.abc import Iterator

from costs import TASKS, count

PLAIN = {"fedavg": "fedavg", "fedprox": "fedprox", "fedmax": "fedmax"}
SERVER = {"sgdm": "fedavgm", "rmsprop": "fedrmsprop", "adam": "fedadam"}
LOCAL = {"mfl": "mfl", "mimelite": "mimelite", "fedgbo": "fedgbo"}


def rows(run) -> Iterator[tuple]:
    """The rows of the claim; the case is the optimiser of the adaptive algorithms."""
    task = TASKS["FEMNIST"]
    size = 4 * task.params()
    for case, afo in SERVER.items():
        uploads = {}
        for label, algorithm in (PLAIN | {"AFO": afo} | LOCAL).items():
            options = {"optimizer": case} if algorithm in LOCAL else {}
            sent = count(task, algorithm, **options).transfer
            uploads[label] = sent.upload
            yield case, label, "download / model", 0, f"{sent.download / size:g}"
            yield case, label, "upload / model", 0, f"{sent.upload / size:g}"
        yield case, "fedgbo", "upload / MFL's", 0, f"{uploads['fedgbo'] / uploads['mfl']:.6g}"
