"""What a figure can be made of: rows of a comparison, the history of a run, or several by label."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fedjax_algos.core import Row

History: TypeAlias = Sequence[Row]  # the rows of one run
Histories: TypeAlias = History | Mapping[str, History | Sequence[History]]
ONE_RUN = ""  # the label of a run without one
_FIX = "give the rows that simulate returns second, or {label: rows}"


def as_rows(histories: Histories) -> list[Row]:
    """The rows of a figure, with `method` and `seed`.

    Args:
      histories: as for `draw_metric`.

    Raises:
      TypeError: for anything else than rows.
      ValueError: for no rows, or if the runs of a method cannot be told apart.
    """
    if not isinstance(histories, Mapping):
        return _with_seeds([{"method": ONE_RUN, **row} for row in _rows("rows", histories)])
    rows = []
    for label, own in histories.items():
        if not isinstance(label, str):
            raise TypeError(f"the label {label!r} is no text; give {{'label': rows}}")
        several = isinstance(own, Sequence) and own and not isinstance(own[0], Mapping)
        for seed, history in enumerate(own if several else [own]):
            number = {"seed": seed} if several else {}
            rows += [{**row, "method": label, **number} for row in _rows(label, history)]
    return _with_seeds(rows)


def _rows(name: str, history: Any) -> list[Row]:
    if not isinstance(history, Sequence) or not all(isinstance(row, Mapping) for row in history):
        raise TypeError(f"{name} is no list of rows but of type {type(history).__name__}; {_FIX}")
    if not history:
        raise ValueError(f"there are no rows to plot in {name}; {_FIX}")
    return list(history)


def _with_seeds(rows: list[Row]) -> list[Row]:
    """The rows with a seed, 0 where there is none: then a method has one run."""
    if not rows:
        raise ValueError(f"there are no rows to plot; {_FIX}")
    seen: set[tuple[str, int]] = set()
    for row in rows:
        place = row["method"], row.get("round", 0)
        if "seed" not in row and place in seen:
            method = f" of {row['method']!r}" if row["method"] != ONE_RUN else ""
            raise ValueError(
                f"the rows{method} have the round {place[1]} twice and no seed; give "
                "{label: [rows, rows]}, or add the column seed"
            )
        seen.add(place)
    return [{"seed": 0, **row} for row in rows]
