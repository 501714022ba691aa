"""Table 1: whether FedAsync and FedBuff gain on FedAvg as speeds spread.

COMMAND   python experiments/papers/claims.py run fedcompass/table_1_spread_baselines
EXPECTED  factors below 1 at equal, normal and exponential speeds
TIME      a second; it reads the values of table_1_equal_speeds and table_1_synchronous
"""

from factors import factors


def rows(run):
    claims = ["table_1_equal_speeds", "table_1_synchronous"]
    return factors(run, claims, {"fedasync": "fedasync", "fedbuff": "fedbuff"})
