"""Table 1: whether FedAsync and FedBuff gain on FedAvg with the released code's sign.

COMMAND   python experiments/papers/fedcompass/why_table_1_spread_baselines_factors.py
EXPECTED  factors below 1 at equal speeds and above 2 at exponential ones
TIME      a second; it reads the values of why_table_1_spread_baselines
"""

from factors import write

if __name__ == "__main__":
    claims = ["why_table_1_spread_baselines"]
    write(__file__, claims, {"fedasync": "fedasync", "fedbuff": "fedbuff"})
