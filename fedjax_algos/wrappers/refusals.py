"""Checks that stages fit an algorithm and are in order, and says why they do not."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Prelude
from fedjax_algos.core.algorithm import (
    MODELS,
    kinds,
    mismatch,
    split_update,
    vector_kinds,
    vectors_like,
)
from fedjax_algos.core.options import check_choice
from fedjax_algos.wrappers.stages import OBSERVE, Transport, shapes_of

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
    needs = needs + ["one exchange"] * any(stage.first for stage in stages)
    needs += ["sums", "no choice"] * bool(added.server or added.rule)
    for need in needs:
        check_choice("needs", need, NEEDS)
        found = f"{name} does not fit this algorithm: {NEEDS[need]}"
        require(not _fails(before.base, need), f"{found}; {fix}")
    message = next(_misplaced(name, before, added), "")
    require(not message, message)


def check_broadcast(phase: Algorithm | Prelude, broadcast: Any, params: Any) -> None:
    """Raises ValueError for a broadcast other than the algorithm declares."""
    parts = phase.traits.broadcast
    trees = split_update(parts, broadcast, "broadcast")
    shapes = [shapes_of(tree) for tree in (params, *vectors_like(phase.traits, params))]
    for kind, tree in zip(kinds(parts), trees, strict=True):
        if kind in MODELS and shapes_of(tree) not in shapes:
            found = f"a {kind} in the broadcast is {jax.tree.structure(tree)}, unlike the params"
            raise ValueError(mismatch(parts, found, "broadcast"))


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
    at_once = next((stage.name for stage in before.server if stage.all), "")
    if at_once and added.rule is not None and added.rule.private is not None:
        found = f"{name}: {at_once} compares updates before noise is added"
        yield f"{found}, so that no bound is known; leave one of the two out"
    if before.rule is not None and (added.server or added.rule is not None):
        rule = before.rule.name
        if added.rule is not None:
            yield f"{name}: {rule} replaces all updates already; leave one of the two out"
        yield f"{name} changes updates, and {rule} replaces them; give {name}+{rule}"
    if before.down is not None and added.down is not None:
        yield f"{name}: the broadcasts are encoded already; leave one of the two out"
