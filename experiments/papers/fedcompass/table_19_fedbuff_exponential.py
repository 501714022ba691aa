"""Table 19: FedCompass with several Qmin / Qmax beside FedBuff, at exponential speeds.

COMMAND   python experiments/papers/claims.py run fedcompass/table_19_fedbuff_exponential
EXPECTED  FedCompass is faster with Qmin / Qmax = .1 and .2
TIME      a second; it reads the values of table_19_exponential and table_1_asynchronous
"""

from claim_files.measured import rows_of


def rows(run):
    own = run.measured("table_19_exponential")
    for quantity, seen in run.measured("table_1_asynchronous").items():
        if quantity.case == "class, m = 5, exponential" and quantity.method == "fedbuff":
            own[quantity._replace(case="")] = seen
    return rows_of(own)
