"""Table 1: all methods with the sign of the released code at exponential speeds.

COMMAND   python experiments/papers/claims.py run fedcompass/table_1_code_sign_asynchronous
EXPECTED  FedCompass before FedAsync and FedBuff
TIME      a second; it reads the values of table_1_code_sign and why_table_1_spread_baselines
"""

from claim_files.measured import rows_of

CASE, SIGNED = "class, m = 5, exponential", "fedcompass, code's sign"


def rows(run):
    own = run.measured("why_table_1_spread_baselines")
    own |= {q: seen for q, seen in run.measured("table_1_code_sign").items() if q.method == SIGNED}
    return rows_of({quantity: seen for quantity, seen in own.items() if quantity.case == CASE})
