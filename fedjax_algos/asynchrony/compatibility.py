"""Which algorithms make sense on which schedules of the virtual clock.

Under a barrier all clients start from the model that the server then updates. Elsewhere an update
x - y_i of an older x is applied to a model that has moved on: the DISPLACEMENT form, which most
rules have. Some rules do not survive that, and are refused with the reason.
"""

from typing import Any, Literal

Fit = Literal["as is", "displacement"]
OWN = {"fedasync": "immediate", "fedbuff": "buffered", "fedat": "tiers", "fedcompass": "compass"}
SCHEDULES = ("barrier", "immediate", "buffered", "tiers", "compass")

_PRELUDE = (
    "a round has two exchanges, and the first needs all of a cohort's answers before anybody trains"
)
_STACK = "it compares the clients of a cohort with its complete ones, all updates at once"
_INVERSE = (
    "the inverse needs the statistics that each client started from, and the server's have moved; "
    "give upload=gradient"
)
_REPLACED = "the mean of a few clients' statistics would replace what the others did"
_TIERS = "it keeps a model for each tier, and only the schedules tiers and barrier have tiers"
_MIXED = "it mixes in one arrival at a time; give form=delta, or the schedule immediate"


def default_schedule(algorithm: str) -> str:
    """The schedule that an algorithm was made for: barrier, unless it is asynchronous."""
    return OWN.get(algorithm, "barrier")


def _reason(algorithm: str, hyperparameters: dict[str, Any], schedule: str) -> str | None:
    given = hyperparameters.get
    moving = schedule != "barrier"
    refused = {
        "mime": (True, _PRELUDE),
        "mimemom": (True, _PRELUDE),
        "fedlga": (True, _STACK),
        "fedat": (schedule not in ("tiers", "barrier"), _TIERS),
        "fedasync": (given("form") == "mixing" and schedule != "immediate", _MIXED),
        "fedgbo": (given("upload", "model") != "gradient" and moving, _INVERSE),
        "mfl": (moving, _REPLACED),
    }
    holds, reason = refused.get(algorithm, (False, ""))
    return reason if holds else None


def fit(algorithm: str, hyperparameters: dict[str, Any], schedule: str) -> Fit:
    """How an algorithm runs on a schedule: "as is", or in "displacement" form.

    Args:
      algorithm: a registered name; others are taken to be sums of displacements.
      hyperparameters: its options, where they matter.
      schedule: a registered name.

    Raises:
      ValueError: if the pair makes no sense, with the reason.
    """
    reason = _reason(algorithm, hyperparameters, schedule)
    if reason is not None:
        raise ValueError(
            f"{algorithm} does not run on the schedule {schedule}: {reason}"
            + (
                ""
                if "give" in reason
                else "; run it in synchronous rounds, or take another schedule"
            )
        )
    return "as is" if schedule in ("barrier", OWN.get(algorithm)) else "displacement"
