"""Table VI: operations of a local step with moving statistics; see `table_6.py`.

COMMAND   python experiments/papers/claims.py run fedgbo/table_6_moving
EXPECTED  9, 5 and 12 for RMSProp, SGDm and Adam
TIME      half a minute
"""

from table_6 import table


def rows(run):
    return (row for row in table() if row[1] == "moving")
