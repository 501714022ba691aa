"""The requirements of stages, with the reasons why an algorithm may fail one."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.algorithm import kinds, vector_kinds
from fedjax_algos.core.options import check_choice
from fedjax_algos.wrappers.stages import OBSERVE, Transport

NEEDS = {
    "one exchange": "its clients send twice in a round, and have one memory and one loss",
    "one vector": "its clients send several vectors, whose scales differ",
    "no models": "its clients send models, not differences of models or gradients",
    "no choice": "its clients choose what they train, so they have nothing in common",
    "no counts": "its clients send counts, which the server needs from all clients",
    "no statistics": "the model has statistics, which the engine averages over all clients",
    "sums": "its server compares the updates with each other, so sums are not enough",
}
ONE_VECTOR = ("one exchange", "one vector", "no models", "no choice", "sums")


def check_order(name: str, algorithm: Algorithm) -> None:
    """Raises ValueError if a wrapper follows one that selects clients by values."""
    fix = f"put the selection last, after {name}, and give only one"
    chosen = algorithm.selection is not None or algorithm.traits.offers
    require(not chosen, f"{name}: its clients are chosen already; {fix}")


def check_fit(name: str, before: Transport, added: Transport, needs: list[str], fix: str) -> None:
    """Raises ValueError for stages that do not fit an algorithm or are in a wrong order."""
    stages: list[Any] = [*added.client, *added.server]
    implied = []
    if any(stage.first for stage in stages):
        implied.append("one exchange")
    if added.server or added.rule is not None:
        implied += ["sums", "no choice"]
    for need in (*needs, *implied):
        check_choice("needs", need, NEEDS)
        what = f"{name} does not fit this algorithm: {NEEDS[need]}"
        require(not _fails(before.base, need), f"{what}; {fix}")
    misplaced = next(_misplaced(name, before, added), "")
    require(not misplaced, misplaced)


def _fails(algorithm: Algorithm, need: str) -> Any:
    if need == "no statistics":
        return jax.tree.leaves(algorithm.problem.shapes().statistics)
    traits, sent = algorithm.traits, kinds(algorithm.traits.parts)
    return {
        "one exchange": algorithm.prelude is not None,
        "one vector": len(vector_kinds(traits.parts)) > 1,
        "no models": "model" in sent,
        "no choice": "choice" in sent,
        "no counts": "count" in sent,
        "sums": traits.reduce != "sum",
    }[need]


def _misplaced(name: str, before: Transport, added: Transport) -> Iterator[str]:
    clients = [stage for stage in (*before.client, *added.client) if stage.place != OBSERVE]
    both: Any = [*itertools.pairwise(clients), *itertools.pairwise(before.server + added.server)]
    for first, second in both:
        if first.place > second.place:
            yield f"{second.name} has to act before {first.name}; give {second.name}+{first.name}"
    if before.rule is not None and (added.server or added.rule is not None):
        of = before.rule.name
        if added.rule is not None:
            yield f"{name}: {of} replaces all updates already; leave one of the two out"
        yield f"{name} changes updates, and {of} replaces them; give {name}+{of}"
    if before.down is not None and added.down is not None:
        yield f"{name}: the broadcasts are encoded already; leave one of the two out"
