"""The file `config.json` of a results folder: reading, and comparing it with the runs of now."""

import warnings
from pathlib import Path
from typing import Any

from fedjax_algos.core.checksums import SUMS, DamagedError, checked_json
from fedjax_algos.core.files import max_text_bytes, open_regular, parse_json, read_bounded
from fedjax_algos.runs.identity import OtherRunError, differences, off_grid

_COMPARED = ("methods", "grid", "tuning", "partition_sha256")  # besides the settings
_OF_LAYOUT = {"source": str, "layout": str | int, "devices": int}


def read_configuration(path: Path) -> dict[str, Any] | None:
    """The content of a folder's `config.json`; None if it has none.

    Args:
      path: of the folder.

    Raises:
      ValueError: for a file that cannot be read.
    """
    file = path / "config.json"
    try:
        with open_regular(file) as opened:
            content = parse_json(read_bounded(opened, max_text_bytes()))
        kinds = {
            dict: (content["settings"], content["methods"], content["environment"]["packages"]),
            list: (content["settings"]["seeds"],),
            bool: (content["complete"],),
        }
        valid = all(isinstance(value, kind) for kind, values in kinds.items() for value in values)
        valid = valid and bool(content["methods"])
        valid = valid and (content["layout"] is None or is_layout(content["layout"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise ValueError(
            f"{str(file)!r} is not what compare, run or sweep wrote; name another folder"
        )
    return content


def check_unchanged(path: Path, content: dict[str, Any] | None) -> dict[str, Any] | None:
    """The content of a folder's `config.json` without its checksum, which is compared.

    Args:
      path: of the folder.
      content: of `read_configuration`.

    Raises:
      ValueError: for a file that was edited, damaged, or written by an earlier version.
    """
    try:
        return None if content is None else checked_json(content)
    except DamagedError as error:
        raise ValueError(
            f"{str(path / 'config.json')!r} is not as it was written ({error}), so the runs cannot "
            "go on; begin them in another folder"
        ) from None


def is_layout(value: Any) -> bool:
    """Whether a value is the record of a layout, as `config.json` has it.

    Args:
      value: of JSON.
    """
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in _OF_LAYOUT.items()
    )


def check_complete(path: Path) -> None:
    """Raises ValueError, which says what is missing, for a folder whose runs have not all ended.

    Args:
      path: of the folder.
    """
    content = read_configuration(path)
    if content is None or content["complete"]:
        return
    seeds = content["settings"]["seeds"]
    ended = sum(1 for _ in path.glob(f"runs/*/seed-*/{SUMS}"))
    raise ValueError(
        f"{str(path)!r} is not complete: {ended} of {len(content['methods']) * len(seeds)} runs "
        "have ended; go on with the same command, --out and --resume, or wait for the end"
    )


def check_same(
    path: Path, earlier: dict[str, Any], configuration: dict[str, Any], *, extends: bool = False
) -> bool:
    """Checks that a folder holds the runs of now, or the same ones with fewer rounds.

    Args:
      path: of the folder.
      earlier: the content of its `config.json`.
      configuration: of the runs here.
      extends: whether more rounds than those of the folder are allowed.

    Returns:
      Whether these runs have more rounds.

    Raises:
      OtherRunError: for other runs, which names the differences.
    """
    there, here = ({n: each.get(n) for n in _COMPARED} for each in (earlier, configuration))
    settings, own = earlier["settings"], configuration["settings"]
    before, rounds = settings.get("rounds"), own.get("rounds")
    lines = differences(settings, own, "in the folder") + differences(there, here, "in the folder")
    longer = extends and isinstance(before, int) and rounds is not None and before < rounds
    if longer and len(lines) == 1:
        lines = []
        if before % own["eval_every"]:
            lines = [f"rounds: {before} in the folder, {rounds} here"]
            lines[0] += f"; {off_grid(before, own['eval_every'])}"
    if lines:
        fix = "Give the command that made it, or another folder"
        raise OtherRunError(f"{str(path)!r} holds other runs", lines, fix)
    packages = [each["environment"]["packages"] for each in (earlier, configuration)]
    if packages[0] != packages[1]:
        warnings.warn(
            f"{path} was begun with {packages[0]} and goes on with {packages[1]}, which may round "
            "differently",
            stacklevel=4,
        )
    return longer
