"""Table IV: FedProx's totals to its own maximum on Shakespeare; see `table_4_totals.py`.

COMMAND   python experiments/papers/claims.py run fedgbo/why_table_4_totals_fedprox
EXPECTED  20.4 GB and 396e12 operations
TIME      half a minute
"""

from table_4_totals import table


def rows(run):
    return (r for r in table() if r[0] == "Shakespeare, best" and r[1] == "fedprox")
