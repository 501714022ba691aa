"""Repeats claims with new seeds, and draws the claims to repeat."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from claim_files.reading import Claim
from claim_files.running import Run, run_row
from claim_files.verdicts import Judged, judge


class Repeated(NamedTuple):
    """A row with its verdicts on the fixed seeds and on new ones."""

    old: Judged
    new: Judged

    @property
    def changed(self) -> bool:
        """True if the verdicts differ."""
        return self.old.verdict != self.new.verdict


def repeat(claim: Claim, seeds: Sequence[int], folder: Path) -> list[Repeated]:
    """Runs a claim with new seeds, as many as it has, and judges its rows.

    Values that are there are not run again.

    Args:
      claim: one that trains. If a row has a reason, its experiments keep their values.
      seeds: the numbers; a row with fewer of its own takes the first ones.
      folder: for FOLDER/PAPER/CLAIM.csv.

    Raises:
      ValueError: for a claim that trains nothing or cannot be run, for too few seeds, and for
        a folder with values of other seeds.
    """
    if not claim.trained:
        raise ValueError(f"{claim.name} trains nothing here, so that it has no seeds to change")
    return [_repeat(row, seeds, folder) for row in claim.trained]


def _repeat(row, seeds, folder) -> Repeated:
    if len(seeds) < row.num_seeds:
        raise ValueError(f"{row.name} has {row.num_seeds} seeds; give as many: {seeds}")
    run = Run(row, tuple(seeds[: row.num_seeds]), folder)
    if not run.csv.exists():
        run_row(run)
    new = judge(row, run.csv)
    for seen in new.measured.values():
        if seen.seeds != run.seeds:
            raise ValueError(f"{run.csv} has seeds {seen.seeds}; name another folder")
    return Repeated(judge(row), new)


def draw(claims: Sequence[Claim], number: int, seed: int) -> list[Claim]:
    """Claims that train, drawn without replacement from all of them, whatever they cost.

    Args:
      claims: of all papers.
      number: of claims to draw.
      seed: of the draw.

    Raises:
      ValueError: for more claims than there are.
    """
    names = {claim.name: claim for claim in claims if claim.trained}
    if number > len(names):
        raise ValueError(f"number={number} is more than the {len(names)} claims that train")
    drawn = np.random.default_rng(seed).choice(sorted(names), number, replace=False)
    return [names[name] for name in drawn.tolist()]
