"""Table VIII: operations of a client's round at K = 50, by the paper's equation 22 and Table VI.

COMMAND   python experiments/papers/claims.py run fedgbo/table_8
EXPECTED  the printed numbers to three figures
TIME      ten seconds

The multiply-adds of an example and the number of parameters are counted from the library's models.
"""

from table_7 import table


def rows(run):
    return table(50)
