"""Table 19: FedCompass with large Qmin / Qmax beside FedBuff.

COMMAND   python experiments/papers/claims.py run fedcompass/table_19_fedbuff
EXPECTED  FedCompass is faster up to Qmin / Qmax = .4, and not with .8
TIME      a second; it reads the values of table_19_normal and table_1_asynchronous
"""

from claim_files.measured import rows_of


def rows(run):
    own = run.measured("table_19_normal")
    for quantity, seen in run.measured("table_1_asynchronous").items():
        if quantity.case == "class, m = 5, normal" and quantity.method == "fedbuff":
            own[quantity._replace(case="")] = seen
    return rows_of(own)
