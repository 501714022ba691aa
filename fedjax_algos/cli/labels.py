"""The option --label of tables and figures, which replaces labels of methods."""

from collections.abc import Collection

from fedjax_algos.analysis.labels import SEPARATOR
from fedjax_algos.core import Row
from fedjax_algos.core.options import unknown


def known_as(name: str, labels: Collection[str]) -> list[str]:
    """The labels that a name means: itself, or the method of that name in each folder.

    Args:
      name: that is given.
      labels: of all methods.
    """
    return [name] if name in labels else [own for own in labels if own.endswith(SEPARATOR + name)]


def labels_of(texts: tuple[str, ...], rows: list[Row]) -> dict[str, str]:
    """The texts that replace labels; a label may itself contain equals signs.

    Args:
      texts: such as "fedavg=Averaging".
      rows: with the labels of the methods, and the names of folders if they have panels.

    Raises:
      ValueError: for an unknown label, one that is given twice, or a text that is missing.
    """
    methods = dict.fromkeys(str(row["method"]) for row in rows)
    others = dict.fromkeys(str(row["results"]) for row in rows if "results" in row)
    labels: dict[str, str] = {}
    for text in texts:
        parts = text.split("=")
        splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
        if not splits:
            raise ValueError(f"label={text!r} has no new text; give OLD=NEW")
        found = [(old, new) for old, new in splits if known_as(old, {**methods, **others})]
        if not found:
            raise ValueError(unknown("label", splits[-1][0], [*methods, *others]))
        old, new = found[0]
        for label in known_as(old, {**methods, **others}):
            if label in labels:
                raise ValueError(f"label={old!r} is given twice; give it once")
            labels[label] = new if label == old else label.removesuffix(old) + new
    return labels
