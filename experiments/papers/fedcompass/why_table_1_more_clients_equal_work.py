"""The work that FedCompass and FedAvg put into the model at equal speeds, ten and 20 clients.

COMMAND   python experiments/papers/claims.py run fedcompass/why_table_1_more_clients_equal_work
EXPECTED  the same as with five clients: FedCompass puts less work into the model per second
TIME      a few seconds

Only the planners run; nothing is trained.
"""

from why_table_1_equal_speeds_work import rows_with

CASES = {"m = 10": (10, 50), "m = 20": (20, 25)}  # clients and local steps


def rows(run):
    return [row for case, sizes in CASES.items() for row in rows_with(run, case, *sizes)]
