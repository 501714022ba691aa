"""Checks of what partitions are made of: rows, labels, seeds, and the sizes of tables."""

import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.core.checks import check_seed, check_whole
from fedjax_algos.core.limits import check_int32, check_memory


def checked_rows(client: int, rows: ArrayLike) -> np.ndarray:
    """A client's example numbers as an array.

    Args:
      client: for the message.
      rows: int[n_i].

    Raises:
      ValueError: for anything else than whole numbers in one axis.
    """
    rows = np.asarray(rows)
    if rows.ndim != 1:
        raise ValueError(
            f"the rows of client {client} have shape {rows.shape}; give its example numbers, in "
            "one axis"
        )
    if not len(rows):
        return rows.astype(np.int32)
    if rows.dtype.kind == "b":
        raise ValueError(
            f"the rows of client {client} are a mask of {len(rows)} examples; give the numbers of "
            "its examples, np.flatnonzero(mask)"
        )
    if rows.dtype.kind not in "iu":
        raise ValueError(
            f"the rows of client {client} are of type {rows.dtype}; give whole numbers of examples"
        )
    check_int32(f"an example of client {client}", rows.max(), "give numbers of examples")
    return rows


def generator(seed: int) -> np.random.Generator:
    """NumPy's generator of a seed.

    Args:
      seed: of a partition.

    Raises:
      ValueError: for a seed that is out of range.
    """
    check_seed(seed)
    return np.random.default_rng(seed)


def check_table(num_clients: int, num_classes: int) -> None:
    """Checks that a table of clients and classes fits into memory.

    Args:
      num_clients: N, the number of clients.
      num_classes: the number of distinct labels.

    Raises:
      ValueError: if it does not.
    """
    check_memory(
        f"a table of {num_clients} clients and {num_classes} classes",
        num_clients * num_classes * 8,
        "give fewer clients, or labels of fewer classes",
    )


def check_labels(labels: np.ndarray, num_clients: int, min_examples: int = 1) -> np.ndarray:
    """Returns the labels as an array after checking that they suffice for the clients.

    Args:
      labels: [examples].
      num_clients: N, the number of clients.
      min_examples: the fewest examples of a client.

    Raises:
      ValueError: unless there is one label for each example, at least one client, and
        `min_examples` examples for each client.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; give one label for each example")
    check_whole("num_clients", num_clients)
    if len(labels) < num_clients * min_examples:
        raise ValueError(
            f"{len(labels)} examples cannot give {num_clients} clients {min_examples} each; "
            f"use at most {len(labels) // min_examples} clients"
        )
    return labels
