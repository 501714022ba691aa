"""Whether a checkpoint or a folder is of the same runs as those of now, and what differs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_algos.core.texts import printable

_IN_WORDS = {  # facts that are known by their hashes only
    "algorithm": "the algorithm, its options or the model",
    "initial_model": "the initial model, which the seed draws",
    "partition_and_values": "the clients' examples",
    "partition_sha256": "the clients' examples",
    "test": "the test examples",
    "first_cohorts": "the cohorts of the first rounds, which the seed and the sampler draw",
    "first_steps": "the local work in the first rounds",
    "first_learning_rates": "the learning rates of the first rounds",
    "plan": "the plan of the virtual clock, which depends on its seconds",
    "runs": "the runs, or their clients' examples",
}
_BY_ROUND = ("first_cohorts", "first_steps", "first_learning_rates")
_HASH = re.compile(r"\b[0-9a-f]{16}")
_SHOWN = 80  # characters of a value


class OtherRunError(ValueError):
    """What is saved is of another run.

    Args:
      what: is of another run.
      lines: one for each difference.
      fix: what to do.
    """

    def __init__(self, what: str, lines: Iterable[str], fix: str):
        super().__init__("\n  ".join([f"{what}:", *lines, fix]))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], place: str) -> list[str]:
    """A line for each fact that differs.

    Args:
      there: facts by name, values of JSON or tables of them.
      here: those of now.
      place: where the others are, such as "in the checkpoint".
    """
    lines = []
    for name in dict.fromkeys([*there, *here]):
        one, other = there.get(name), here.get(name)
        if name in _BY_ROUND and one and other:  # of as many rounds as both have
            one, other = zip(*zip(one, other, strict=False), strict=True)
        if one == other:
            continue
        named = printable(name, _SHOWN)
        if name in _IN_WORDS and _HASH.search(f"{one} {other}"):
            lines.append(f"{_IN_WORDS[name]}: others {place}")
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            lines += [f"{named}, {line}" for line in differences(one, other, place)]
        elif isinstance(one, Mapping) or isinstance(other, Mapping):
            lines.append(f"{named}: {place} only" if other is None else f"{named}: not {place}")
        else:
            lines.append(f"{named}: {_shown(one)} {place}, {_shown(other)} here")
    return lines


def _shown(value: Any) -> str:
    return "none" if value is None else printable(value, _SHOWN)


def check_identity(
    there: Mapping[str, Any], here: Mapping[str, Any], position: int, folder: object
) -> None:
    """Checks that a checkpoint is of this run, or of one that differs in its number of rounds only.

    Nothing in a run depends on that number, but for the evaluation at its end.

    Args:
      there: the identity in the checkpoint.
      here: that of this run.
      position: rounds that have been made.
      folder: of the checkpoint.

    Raises:
      OtherRunError: for another run, and if this one has no evaluation after so many rounds.
    """
    lines = differences({**there, "rounds": 0}, {**here, "rounds": 0}, "in the checkpoint")
    rounds, done = here.get("rounds"), position - here.get("start_round", 0)
    if rounds is not None and there.get("rounds") != rounds and not lines:
        line = f"rounds: {there.get('rounds')} in the checkpoint, {rounds} here; "
        if done > rounds:
            lines.append(f"{line}it was made after {done}, and no earlier one is kept")
        elif done % here["eval_every"] and done != rounds:
            lines.append(f"{line}{off_grid(done, here['eval_every'])}")
    if lines:
        fix = "Give the same run, or another folder"
        raise OtherRunError(f"the checkpoint in {folder} is of another run", lines, fix)


def off_grid(rounds: int, eval_every: int) -> str:
    """Why a run cannot go on after its end.

    Args:
      rounds: of the run.
      eval_every: rounds between its evaluations.
    """
    return (
        f"the run ended with an evaluation after {rounds} rounds, which is no multiple of "
        f"eval_every={eval_every}, so that a longer run has none there"
    )
