"""Table 1: whether FedAsync and FedBuff gain on FedAvg as speeds spread.

COMMAND   python experiments/papers/fedcompass/table_1_spread_baselines.py
EXPECTED  factors below 1 at equal, normal and exponential speeds
TIME      a second; it reads the values of table_1_equal_speeds and table_1_synchronous
"""

from factors import write

if __name__ == "__main__":
    claims = ["table_1_equal_speeds", "table_1_synchronous"]
    write(__file__, claims, {"fedasync": "fedasync", "fedbuff": "fedbuff"})
