"""Table IV: FedProx's totals to its own maximum on Shakespeare; see `table_4_totals.py`.

COMMAND   python experiments/papers/fedgbo/why_table_4_totals_fedprox.py
EXPECTED  20.4 GB and 396e12 operations
TIME      half a minute
"""

from costs import write
from table_4_totals import table

if __name__ == "__main__":
    write(__file__, (r for r in table() if r[0] == "Shakespeare, best" and r[1] == "fedprox"))
