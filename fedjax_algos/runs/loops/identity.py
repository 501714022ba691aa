"""Identifies the runs in a checkpoint or folder, and how they differ from the current ones."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from fedjax_algos.base.reprs import describe_tree, printable
from fedjax_algos.core import Algorithm, Batch, Dispatch
from fedjax_algos.engine.fingerprint import (
    algorithm_fingerprint,
    array_fingerprint,
    examples_fingerprint,
)
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.loops.run import Rounds

_IN_WORDS = {  # facts stored as hashes
    "algorithm": "the algorithm, its options or the model",
    "initial_model": "the initial model, which the seed draws",
    "partition_and_values": "the clients' examples",
    "partition_sha256": "the clients' examples",
    "test": "the test examples",
    "first_cohorts": "the cohorts of the first rounds, which the seed and the sampler draw",
    "first_steps": "the local work in the first rounds",
    "first_learning_rates": "the learning rates of the first rounds",
    "first_arrivals": "which clients answer in the first rounds",
    "own_functions": "what functions of your own compute",
    "plan": "the plan of the virtual clock, which depends on its seconds",
    "runs": "the runs, or their clients' examples",
}
_BY_ROUND = ("first_cohorts", "first_steps", "first_learning_rates", "first_arrivals")
_HASH = re.compile(r"\b[0-9a-f]{16}")
_SHOWN = 80  # characters of a value
_COMPARED = 20  # rounds


def identity(
    algorithm: Algorithm,
    state: FederatedState,
    data: RunData,
    dispatch: Dispatch,
    test: Batch | None,
    **facts: Any,
) -> dict[str, Any]:
    """Returns, as JSON, what a checkpoint must match to be resumed; `dispatch` is any one."""
    return {
        "algorithm": algorithm_fingerprint(algorithm, state, data, dispatch),
        "clients": data.num_clients,
        "examples": describe_tree(data_shapes(data).examples),
        "test": examples_fingerprint(test),
        **facts,
    }


def identity_of_rounds(
    algorithm: Algorithm,
    state: FederatedState,
    data: RunData,
    loop: Rounds,
    cohorts: Sequence[Cohorts],
    end: int,
    **facts: Any,
) -> dict[str, Any]:
    """Returns the identity of runs in rounds until `end`, with hashes of the first cohorts."""
    number = min(end, _COMPARED)
    drawn = [each.dispatches(number) for each in cohorts]
    parts: dict[str, Any] = {
        "first_cohorts": [each.client for each in drawn],
        "first_learning_rates": [each.learning_rate for each in drawn],
        "first_steps": [(each.num_steps, each.full_steps, each.first_step) for each in drawn],
        "first_arrivals": [each.arrives for each in drawn],
    }
    by_round = {
        name: [
            array_fingerprint(jax.tree.map(lambda leaf, t=t: leaf[t], part)) for t in range(number)
        ]
        for name, part in parts.items()
        if jax.tree.leaves(part)
    }
    one = jax.tree.map(lambda leaf: leaf[0, 0], drawn[0])
    facts |= {"rounds": loop.rounds, "eval_every": loop.eval_every}
    return identity(algorithm, state, data, one, loop.test, **by_round, **facts)


class OtherRunError(ValueError):
    """A checkpoint or folder belongs to another run; `lines` has one line for each difference."""

    def __init__(self, what: str, lines: Iterable[str], fix: str):
        super().__init__("\n  ".join([f"{what}:", *lines, fix]))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], place: str) -> list[str]:
    """Returns a line for each fact that differs; `there` is at `place`, "in the checkpoint"."""
    lines = []
    for name in dict.fromkeys([*there, *here]):
        one, other = there.get(name), here.get(name)
        if name in _BY_ROUND and one and other:  # compares the rounds that both have
            one, other = zip(*zip(one, other, strict=False), strict=True)
        if one == other:
            continue
        named = printable(name, _SHOWN)
        if name in _IN_WORDS and _HASH.search(f"{one} {other}"):
            lines.append(f"{_IN_WORDS[name]}: different {place}")
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
    there: dict[str, Any], here: dict[str, Any], position: int, folder: object
) -> None:
    """Raises OtherRunError for another run's checkpoint, or one between this run's evaluations."""
    known = {"rounds": 0, "devices": 0}
    if there.get("devices") != here.get("devices"):
        known["slots"] = 0
    lines = differences(there | known, here | known, "in the checkpoint")
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
    warn_of_devices(f"the checkpoint in {folder}", there.get("devices"), here.get("devices"))


def warn_of_devices(what: str, there: int | None, here: int | None) -> None:
    """Warns if a run resumes on another number of devices."""
    if there != here:
        told = f"{what} is of {there} device(s), and the run goes on with {here}"
        warnings.warn(f"{told}, which may round differently", stacklevel=4)


def off_grid(rounds: int, eval_every: int) -> str:
    """Explains why a run cannot be resumed for more rounds."""
    end = f"the run ended with an evaluation after {rounds} rounds"
    return f"{end}, not a multiple of eval_every={eval_every}, so a longer run has none there"
