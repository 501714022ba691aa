"""Reader of tables of numbers with a column of classes, and one of clients if there is one."""

import numpy as np

from fedjax_algos.core.files import PathLike, reading, require
from fedjax_algos.core.options import Proportion
from fedjax_algos.data.dataset import Dataset, divide, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.readers.image_folder import Table, in_order, numbered, read_table


@datasets.register
def csv(
    *,
    path: PathLike,
    label: str,
    user: str | None = None,
    test: PathLike | None = None,
    test_share: Proportion = 0.2,
    drop: str = "",
    separator: str = ",",
    standardise: bool = False,
) -> Dataset:
    """A table with a row for each example: a column of classes, and all others are numbers.

    The first line has the names of the columns. "x" is float32[n, columns] in the order of the
    file, as the numbers are there. Classes are numbered in ascending order of their names; names
    that all are whole numbers are ordered as numbers.

    Args:
      path: the file of the training examples, in UTF-8.
      label: the column of the classes, numbers or texts.
      user: the column of the natural clients; None without such a column.
      test: the file of the test examples with the same columns; None draws them from `path`.
      test_share: the share of rows that is drawn for the test without `test`, with a fixed seed.
      drop: columns that are left out, with semicolons between them, such as "id;date".
      separator: what is between two fields, such as a semicolon.
      standardise: whether the mean of the training rows is subtracted from each column, and the
        result is divided by their standard deviation, if this is not 0.
    """
    left_out = [label, *([user] if user else []), *filter(None, drop.split(";"))]
    table = read_table(path, left_out, others=True, separator=separator)
    names = [name for name in table.columns if name not in left_out]
    tables = [table]
    if test is not None:
        tables.append(read_table(test, [*names, label], separator=separator))
    with reading(table.name, "a table of numbers", "give label=COLUMN"):
        require(names, f"it has no column beside {', '.join(left_out)}")
    x = [np.stack([_numbers(each, name) for name in names], 1) for each in tables]
    classes = in_order(name for each in tables for name in each.columns[label])
    y = [numbered(each.columns[label], classes) for each in tables]
    users = np.array(table.columns[user]) if user else None
    if test is None:
        found = divide(x[0], y[0], test_share, users, source=table.name)
    else:
        found = from_arrays(x[0], y[0], x[1], y[1], users, source=table.name)
    found = found._replace(num_classes=len(classes))
    if standardise:
        mean, deviation = found.train["x"].mean(0), found.train["x"].std(0)
        scale = np.where(deviation > 0, deviation, 1)
        parts = [part | {"x": (part["x"] - mean) / scale} for part in (found.train, found.test)]
        found = found._replace(train=parts[0], test=parts[1])
    return found


def _numbers(table: Table, name: str) -> np.ndarray:
    """float32[rows]: a column; ValueError, which names the row, for a text."""
    texts = table.columns[name]
    try:
        return np.array(texts, np.float32)
    except ValueError:
        for row, text in enumerate(texts):
            fix = f"give a number in row {row} of {name}, or leave the column out with drop={name}"
            with reading(table.name, "a table of numbers", fix):
                float(text)
        raise
