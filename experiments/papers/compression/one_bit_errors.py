"""DRIVE beside k-level quantisation of a rotated vector, both with one bit an entry.

COMMAND   python experiments/papers/claims.py run compression/one_bit_errors
EXPECTED  .057 and 1.31 for the mean of ten clients, a ratio of 23
TIME      a minute
"""

from mean_errors import ONE_BIT, rows_of


def rows(run):
    found = [row for row in rows_of(ONE_BIT, run.seeds) if row[0] == "mean of ten clients"]
    by_name = {(name, seed): float(value) for _, name, _, seed, value in found}
    for seed in run.seeds:
        ratio = by_name["rotated k-level", seed] / by_name["DRIVE", seed]
        found.append((found[0][0], "rotated k-level / DRIVE", "ratio", seed, f"{ratio:.6g}"))
    return found
