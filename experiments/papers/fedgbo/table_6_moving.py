"""Table VI: operations of a local step with moving statistics; see `table_6.py`.

COMMAND   python experiments/papers/fedgbo/table_6_moving.py
EXPECTED  9, 5 and 12 for RMSProp, SGDm and Adam
TIME      half a minute
"""

from costs import write
from table_6 import table

if __name__ == "__main__":
    write(__file__, (row for row in table() if row[1] == "moving"))
