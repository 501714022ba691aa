"""Table IV: FedProx's totals to FedAvg's best accuracy on Shakespeare; see `table_4_totals.py`.

COMMAND   python experiments/papers/claims.py run fedgbo/table_4_totals_fedprox
EXPECTED  13.0 GB and 252e12 operations
TIME      half a minute
"""

from table_4_totals import table


def rows(run):
    return (r for r in table() if r[0] == "Shakespeare, FedAvg's best" and r[1] == "fedprox")
