"""Table 3: FedCompass with several Qmin / Qmax beside FedBuff and FedAT.

COMMAND   python experiments/papers/claims.py run fedcompass/table_3_baselines
EXPECTED  FedCompass is faster up to Qmin / Qmax = .4, and not with .8
TIME      a second; it reads the values of table_3_mnist and table_1_dirichlet
"""

from claim_files.measured import rows_of


def rows(run):
    own = run.measured("table_3_mnist")
    for quantity, seen in run.measured("table_1_dirichlet").items():
        if quantity.method in ("fedbuff", "fedat"):
            own[quantity._replace(case="")] = seen
    return rows_of(own)
