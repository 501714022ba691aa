"""Divides the runs of a command into N shares, which N processes compute into one folder."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_algos.base.errors import require

RunName = tuple[str, int]  # the label of a method and the seed


class Share(NamedTuple):
    """One of several parts of the runs; `number` counts from 1."""

    number: int
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parses a text such as "1/4"; raises ValueError for other texts."""
        numbers = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        share = cls(*map(int, numbers.groups())) if numbers else None
        fix = "give I/N with I from 1 to N, such as 1/4"
        require(share and 1 <= share.number <= share.parts, f"share={text!r} is not a part; {fix}")
        assert share is not None
        return share

    def divide(self, runs: Sequence[RunName]) -> list[list[RunName]]:
        """Returns the runs of all parts, in order; sizes differ by at most one."""
        fix = f"give at most {len(runs)} parts"
        require(self.parts <= len(runs), f"share='{self}': there are only {len(runs)} runs; {fix}")
        ends = [len(runs) * part // self.parts for part in range(self.parts + 1)]
        return [[*runs[start:end]] for start, end in itertools.pairwise(ends)]


def run_name(label: str, seed: int) -> str:
    """Names a run in `config.json` and in messages."""
    return f"{label}, seed {seed}"


def describe_missing(
    missing: Sequence[RunName], shares: Sequence[Sequence[str]] = (), listed: int = 8
) -> str:
    """Lists the first missing runs, with their shares, and the number of the others."""
    numbers = {name: number for number, names in enumerate(shares, 1) for name in names}
    groups: dict[tuple[int, str], list[int]] = {}  # seeds, by share and label
    for label, seed in missing:
        groups.setdefault((numbers.get(run_name(label, seed), 0), label), []).append(seed)
    by_share: dict[int, list[str]] = {}
    in_order = sorted(groups.items(), key=lambda group: group[0][0])
    for (number, label), seeds in in_order[:listed]:
        text = f"{label} on seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        by_share.setdefault(number, []).append(text)
    texts = [" and ".join(each) + _options([n], shares) for n, each in by_share.items()]
    if others := in_order[listed:]:
        more = sum(len(seeds) for _, seeds in others)
        left = dict.fromkeys(number for (number, _), _ in others)
        texts.append(f"{more}{' more' * bool(texts)} runs{_options(left, shares)}")
    return "; ".join(texts)


def describe_incomplete(
    path: Path, content: Mapping[str, Any], missing: Sequence[RunName], number: int
) -> str:
    """Describes a folder's ended and missing runs, and how to go on."""
    shares = content.get("shares", ())
    text = f"{str(path)!r} is not complete: {number - len(missing)} of {number} runs have ended"
    again = "the same command, --out and --resume"
    if shares:
        again = f"the same command and {'their' if missing else 'any'} --share"
    text += f"; go on with {again}, or wait for the end"
    return f"{text}; missing: {describe_missing(missing, shares)}" if missing else text


def _options(numbers, shares):
    """Formats the options of shares; 0 is no share, as in a search, whose runs are its trials."""
    texts = [f"{number}/{len(shares)}" for number in numbers if number]
    return f" (--share {', '.join(texts)})" if texts else ""
