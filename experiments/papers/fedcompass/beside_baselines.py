"""Tables 3 and 19: FedCompass with several Qmin / Qmax beside FedBuff and FedAT.

COMMAND   python experiments/papers/claims.py run fedcompass/table_19_fedbuff
          with the other rows of ROWS in the same way
EXPECTED  FedCompass is faster with small Qmin / Qmax, and not with .8
TIME      a second; it reads the values of other rows
"""

from claim_files.measured import rows_of

ROWS = {  # a row: its values of FedCompass, and the other methods in a case of table_1
    "table_3_baselines": ("table_3_mnist", "Dirichlet", "normal", ("fedbuff", "fedat")),
    "table_19_fedbuff": ("table_19_normal", "class", "normal", ("fedbuff",)),
    "table_19_fedbuff_exponential": ("table_19_exponential", "class", "exponential", ("fedbuff",)),
}
TABLE_1 = {"Dirichlet": "table_1_dirichlet", "class": "table_1_asynchronous"}


def rows(run):
    name, partition, speeds, methods = ROWS[run.row.csv.stem]
    own, case = run.measured(name), f"{partition}, m = 5, {speeds}"
    for quantity, seen in run.measured(TABLE_1[partition]).items():
        if quantity.case == case and quantity.method in methods:
            own[quantity._replace(case="")] = seen
    return rows_of(own)
