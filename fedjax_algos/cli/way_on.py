"""Tells the user how to continue after an interruption."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedjax_algos.base.reprs import printable

open_folders: list[Path] = []  # the results folder of the command, once it is open


def way_on(arguments: Sequence[str]) -> str:
    """Says what to do after an interruption, from the state of the results folder."""
    if not open_folders:
        return "give the same command again"
    from fedjax_algos.runs.studies.folder_content import read_configuration

    path, content = open_folders[-1], None
    with contextlib.suppress(ValueError):
        content = read_configuration(path)
    if not content:
        return "nothing was saved: give the same command again"
    if content["complete"]:
        return f"all results are in {printable(path)}"
    again = list(arguments)
    if not any(each.split("=")[0] == "--out" for each in again):
        again += ["--out", str(path)]
    again += ["--resume"] * ("--resume" not in again)
    return f"go on with: fedjax-algos {shlex.join(again)}"
