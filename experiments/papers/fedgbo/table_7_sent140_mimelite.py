"""Table VII: Mimelite's operations on Sent140 at K = 10; see `table_7.py`.

COMMAND   python experiments/papers/fedgbo/table_7_sent140_mimelite.py
EXPECTED  .0335, .0335 and .0365
TIME      half a minute
"""

from costs import write
from table_7 import table

if __name__ == "__main__":
    write(__file__, (row for row in table(10) if row[0] == "Sent140" and "mimelite" in row[1]))
