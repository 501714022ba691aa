"""Summaries as plain numbers, for files."""

from collections.abc import Sequence
from typing import Any


def records(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """The fields of named tuples by column; all have the same columns.

    A field that has a `record` of its own, such as an `Estimate`, takes several columns. Several
    numbers in one field are a text.

    Args:
      lines: named tuples of one kind, whose fields are texts, numbers, None, tuples of numbers, or
        such values.
    """
    parts = {name for line in lines for name, value in _fields(line) if hasattr(value, "record")}
    found: list[dict[str, Any]] = []
    for line in lines:
        record: dict[str, Any] = {}
        for name, value in _fields(line):
            if hasattr(value, "record"):
                record.update(value.record(name))
            elif isinstance(value, tuple):
                record[name] = " ".join(map(str, value))
            elif value is not None or name not in parts:
                record[name] = value
        found.append(record)
    columns = dict.fromkeys(name for record in sorted(found, key=len)[::-1] for name in record)
    return [{name: record.get(name) for name in columns} for record in found]


def _fields(line):
    return line._asdict().items()
