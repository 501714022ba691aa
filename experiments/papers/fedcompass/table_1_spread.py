"""Table 1: whether FedCompass gains on FedAvg as speeds spread.

COMMAND   python experiments/papers/fedcompass/table_1_spread.py
EXPECTED  a factor below 1 at equal speeds, and above 1.5 at normal and exponential ones
TIME      a second; it reads the values of table_1_equal_speeds and table_1_synchronous
"""

from factors import write

if __name__ == "__main__":
    claims = ["table_1_equal_speeds", "table_1_synchronous"]
    write(__file__, claims, {"fedcompass": "fedcompass"})
