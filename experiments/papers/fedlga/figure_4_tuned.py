"""Figure 4: the best accuracy of FedLGA at a small rate beside those of others at their rates.

COMMAND   python experiments/papers/claims.py run fedlga/figure_4_tuned
EXPECTED  FedLGA is the lowest
TIME      a second; it reads the values of figure_4_fmnist and why_figure_4_feddyn
"""

from claim_files.measured import rows_of


def rows(run):
    own = run.measured("why_figure_4_feddyn")
    for quantity, seen in run.measured("figure_4_fmnist").items():
        if quantity.method == "fedlga":
            own[quantity] = seen
    return rows_of(own)
