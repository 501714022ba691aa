"""Table VIII: operations of a client's round at K = 50, by the paper's equation 22 and Table VI.

COMMAND   python experiments/papers/fedgbo/table_8.py
EXPECTED  the printed numbers to three figures
TIME      ten seconds

The multiply-adds of an example and the number of parameters are counted from the library's models.
"""

from costs import write
from table_7 import table

if __name__ == "__main__":
    write(__file__, table(50))
