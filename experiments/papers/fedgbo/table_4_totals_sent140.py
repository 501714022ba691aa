"""Table IV: the rounds behind the totals of Sent140; see `table_4_totals.py`.

COMMAND   python experiments/papers/claims.py run fedgbo/table_4_totals_sent140
EXPECTED  the printed totals to 6%
TIME      half a minute
"""

from table_4_totals import table


def rows(run):
    return (row for row in table() if row[0].startswith("Sent140"))
