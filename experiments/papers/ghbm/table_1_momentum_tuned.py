"""Table 1: methods with momentum, with the tuned rates of Table 7, whose stand-in is the same.

COMMAND   python experiments/papers/claims.py run ghbm/table_1_momentum_tuned
EXPECTED  the values of table_7_fedavgm_tuned
TIME      a second
"""

from claim_files.measured import rows_of


def rows(run):
    return rows_of(run.measured("table_7_fedavgm_tuned"))
