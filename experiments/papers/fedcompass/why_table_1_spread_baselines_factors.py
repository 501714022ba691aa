"""Table 1: whether FedAsync and FedBuff gain on FedAvg with the released code's sign.

COMMAND   python experiments/papers/claims.py run fedcompass/why_table_1_spread_baselines_factors
EXPECTED  factors below 1 at equal speeds and above 2 at exponential ones
TIME      a second; it reads the values of why_table_1_spread_baselines
"""

from factors import factors


def rows(run):
    claims = ["why_table_1_spread_baselines"]
    return factors(run, claims, {"fedasync": "fedasync", "fedbuff": "fedbuff"})
