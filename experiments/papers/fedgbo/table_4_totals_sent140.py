"""Table IV: the rounds behind the totals of Sent140; see `table_4_totals.py`.

COMMAND   python experiments/papers/fedgbo/table_4_totals_sent140.py
EXPECTED  the printed totals to 6%
TIME      half a minute
"""

from costs import write
from table_4_totals import table

if __name__ == "__main__":
    write(__file__, (row for row in table() if row[0].startswith("Sent140")))
