"""Claims of papers, what was seen of them, and the verdict that follows from it.

A folder has a `paper.toml` and a TOML file for each claim; what was seen is in a CSV file beside
it. The verdict is computed, so that no text can say more than the numbers.
"""

from fedjax_algos.analysis.claims.checks import Check, check_claim
from fedjax_algos.analysis.claims.claim_files import Claim, Paper, read_claim, read_paper
from fedjax_algos.analysis.claims.folders import PaperClaims, read_claims
from fedjax_algos.analysis.claims.measured import (
    Measured,
    Quantity,
    read_measured,
    write_measured,
)
from fedjax_algos.analysis.claims.verdicts import (
    NOT_REPRODUCED,
    NOT_RUN,
    OPEN,
    REPRODUCED,
    REPRODUCED_IN_ORDER,
    VERDICTS,
    Judged,
    judge,
)

__all__ = [
    "NOT_REPRODUCED",
    "NOT_RUN",
    "OPEN",
    "REPRODUCED",
    "REPRODUCED_IN_ORDER",
    "VERDICTS",
    "Check",
    "Claim",
    "Judged",
    "Measured",
    "Paper",
    "PaperClaims",
    "Quantity",
    "check_claim",
    "judge",
    "read_claim",
    "read_claims",
    "read_measured",
    "read_paper",
    "write_measured",
]
