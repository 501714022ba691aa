"""The file `config.json` of a results folder: reading, and comparing it with the runs of now."""

import warnings
from pathlib import Path
from typing import Any

from fedjax_algos.core.files import max_text_bytes, open_regular, parse_json, read_bounded

_COMPARED = ("settings", "methods", "grid", "tuning", "partition_sha256")
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
    ended = sum(1 for _ in path.glob("runs/*/seed-*/model.npz"))
    raise ValueError(
        f"{str(path)!r} is not complete: {ended} of {len(content['methods']) * len(seeds)} runs "
        "have ended; go on with the same command, --out and --resume, or wait for the end"
    )


def check_same(path: Path, earlier: dict[str, Any], configuration: dict[str, Any]) -> None:
    """Raises ValueError, which names the differences, for a folder of other runs.

    Args:
      path: of the folder.
      earlier: the content of its `config.json`.
      configuration: of the runs here.
    """
    different = []
    for name in _COMPARED:
        there, here = earlier.get(name), configuration.get(name)
        if there != here:
            if not (isinstance(there, dict) and isinstance(here, dict)):
                there, here = {name: there}, {name: here}
            different += [
                f"{key}={there.get(key)!r} there and {key}={here.get(key)!r} here"
                for key in dict.fromkeys([*there, *here])
                if there.get(key) != here.get(key)
            ]
    if different:
        raise ValueError(
            f"{str(path)!r} holds other runs: {'; '.join(different)}. Give the command that made "
            "it, or another folder"
        )
    packages = [each["environment"]["packages"] for each in (earlier, configuration)]
    if packages[0] != packages[1]:
        warnings.warn(
            f"{path} was begun with {packages[0]} and goes on with {packages[1]}, which may round "
            "differently",
            stacklevel=4,
        )
