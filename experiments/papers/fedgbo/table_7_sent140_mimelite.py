"""Table VII: Mimelite's operations on Sent140 at K = 10; see `table_7.py`.

COMMAND   python experiments/papers/claims.py run fedgbo/table_7_sent140_mimelite
EXPECTED  .0335, .0335 and .0365
TIME      half a minute
"""

from table_7 import table


def rows(run):
    return (row for row in table(10) if row[0] == "Sent140" and "mimelite" in row[1])
