"""The abstract of secure aggregation: the bits of a client, divided by the plain ones.

COMMAND   python experiments/papers/claims.py run privacy/secure_sum
EXPECTED  1.734 and 1.984, as in the abstract of Bonawitz et al. (2017)
TIME      a second
"""

from fedjax_algos.wrappers import secure_sum_bits

BITS, MEASURE = 16, "bits, times the plain ones"  # of an entry in the clear


def rows(run):
    """Returns a factor for each number of users and entries."""
    for users, entries in ((10, 20), (14, 24)):
        factor = secure_sum_bits(2**users, 2**entries, BITS) / (BITS * 2**entries)
        yield f"2^{users} users, 2^{entries} entries", "secure_sum", MEASURE, 0, f"{factor:.6g}"
