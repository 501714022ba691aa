"""Table 1: whether FedCompass, FedAsync and FedBuff gain on FedAvg as speeds spread.

COMMAND   python experiments/papers/claims.py run fedcompass/table_1_spread
EXPECTED  FedCompass: below 1 at equal speeds, and above 1.5 at normal and exponential ones
TIME      a second; it reads the values of table_1_equal_speeds and table_1_synchronous
"""

from factors import factors


def rows(run):
    claims = ["table_1_equal_speeds", "table_1_synchronous"]
    return factors(run, claims, {name: name for name in ("fedcompass", "fedasync", "fedbuff")})
