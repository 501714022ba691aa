"""Reader of tables of numbers with a column of classes and an optional column of clients."""

from collections.abc import Sequence

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.core import Batch
from fedjax_algos.core.options import Proportion
from fedjax_algos.data.dataset import Dataset, divide, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.readers.image_folder import Table, in_order, numbered, read_table

TEST_SHARE = 0.2


@datasets.register
def csv(
    *,
    path: PathLike,
    label: str,
    user: str | None = None,
    test: PathLike | None = None,
    test_share: Proportion = TEST_SHARE,
    drop: str = "",
    separator: str = ",",
    standardise: bool = False,
) -> Dataset:
    """A table with a row for each example: a column of classes, all other columns are numbers.

    The first line has the names of the columns. "x" is float32[n, columns], the file's numbers in
    the file's order. Classes are numbered in ascending order of their names; if all names are whole
    numbers, they are ordered as numbers.

    Args:
      path: the file of the training examples, in UTF-8.
      label: the column of the classes, numbers or texts.
      user: the column of the natural clients, if any.
      test: the file of the test examples, with the same columns; None draws them from `path`.
      test_share: the share of rows drawn as test examples if `test` is None, with a fixed seed.
      drop: columns to leave out, separated by semicolons, such as "id;date".
      separator: the character between two fields, such as a semicolon, or tab.
      standardise: whether to subtract each column's mean over the training rows, and to divide by
        its standard deviation if this is not 0.
    """
    separator = {"tab": "\t", "\\t": "\t"}.get(separator, separator)
    fix = "give one character, such as ;, or tab"
    require(len(separator) == 1, f"csv: separator={separator!r} is out of range; {fix}")
    unused = test is None or test_share == TEST_SHARE
    require(unused, f"csv: test_share={test_share} has no effect beside test; leave it out")
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
    own, parts = found.train["x"], (found.train, found.test)
    mean, scale = np.zeros(len(names)), np.ones(len(names))
    if standardise:
        mean, scale = own.mean(0), np.where(np.ptp(own, 0) > 0, own.std(0), 1)
    else:
        _check_whole_numbers(table.name, names, parts)
    train, test_part = (
        part | {"x": ((part["x"] - mean) / scale).astype(np.float32)} for part in parts
    )
    return found._replace(train=train, test=test_part)


def _check_whole_numbers(source: str, names: list[str], parts: Sequence[Batch]) -> None:
    for name, *columns in zip(names, *(part["x"].T for part in parts), strict=True):
        for column in columns:
            lost = (np.floor(column) == column) & (column.astype(np.float32) != column)
            fix = f"give standardise=true, or leave the column out with drop={name}"
            found = f"{name} has {column[lost.argmax()]:.0f}, which is not a float32"
            require(not lost.any(), f"{source}: {found}; {fix}")


def _numbers(table: Table, name: str) -> np.ndarray:
    """Returns a column as float64[rows]; the ValueError for a text names its row."""
    texts = table.columns[name]
    try:
        return np.array(texts, float)
    except ValueError:
        for row, text in enumerate(texts):
            fix = f"give a number in row {row} of {name}, or leave the column out with drop={name}"
            with reading(table.name, "a table of numbers", fix):
                float(text)
        raise
