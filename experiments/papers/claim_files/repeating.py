"""Repeats claims with new seeds, and draws the claims to repeat."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from claim_files.reading import Claim
from claim_files.running import Run, run_claim
from claim_files.verdicts import Judged, judge


class Repeated(NamedTuple):
    """A claim with its verdict on the fixed seeds, and with that on new ones."""

    old: Judged
    new: Judged

    @property
    def changed(self) -> bool:
        """Whether the verdicts differ."""
        return self.old.verdict != self.new.verdict


def repeat(claim: Claim, seeds: Sequence[int], folder: Path) -> Repeated:
    """Runs a claim with new seeds, as many as it has, and judges both. What is there is not run.

    Args:
      claim: one that trains. If it has a reason, its experiments keep their values.
      seeds: the numbers; a claim with fewer of its own takes the first ones.
      folder: for FOLDER/PAPER/CLAIM.csv.

    Raises:
      ValueError: for a claim that trains nothing or cannot be run, for too few seeds, and for
        a folder with values of other seeds.
    """
    if not claim.trains or claim.needs:
        raise ValueError(f"{claim.name} trains nothing here, so that it has no seeds to change")
    if len(seeds) < claim.num_seeds:
        raise ValueError(f"{claim.name} has {claim.num_seeds} seeds; give as many: {seeds}")
    run = Run(claim, tuple(seeds[: claim.num_seeds]), folder)
    if not run.csv.exists():
        run_claim(run)
    new = judge(claim, run.csv)
    for seen in new.measured.values():
        if seen.seeds != run.seeds:
            raise ValueError(f"{run.csv} has seeds {seen.seeds}; name another folder")
    return Repeated(judge(claim), new)


def draw(claims: Sequence[Claim], number: int, seed: int) -> list[Claim]:
    """Claims that train, drawn without replacement from all of them, whatever they cost.

    Args:
      claims: of all papers.
      number: of claims to draw.
      seed: of the draw.

    Raises:
      ValueError: for more claims than there are.
    """
    names = {claim.name: claim for claim in claims if claim.trains and not claim.needs}
    if number > len(names):
        raise ValueError(f"number={number} is more than the {len(names)} claims that train")
    drawn = np.random.default_rng(seed).choice(sorted(names), number, replace=False)
    return [names[name] for name in drawn.tolist()]
