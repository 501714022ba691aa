"""Decides what the layout "auto" means on an accelerator: the largest chunk that fits into memory.

The rule reads the device's total memory and the sizes of compiled programs. It measures neither
time nor free memory, so machines of one kind choose the same chunk.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes

SHARE = 0.75  # part of the memory for a round; the rest is for evaluations and gaps


def largest_chunk(cohort_size: int, limit: float, memory_of: Callable[[int], int]) -> int:
    """Returns the largest chunk (the cohort, its half, its quarter, ..., 1) that fits into `limit`.

    Memory is close to affine in the chunk, so the memory of 2 and 4 clients predicts which chunks
    fit. `memory_of` is slow, because it compiles.
    """
    memory_of, chunks = cache(memory_of), [cohort_size]
    while chunks[-1] > 1:
        chunks.append(-(-chunks[-1] // 2))
    if cohort_size > 4:
        of_two = memory_of(2)
        if of_two * cohort_size <= 2 * limit:  # even if it were proportional to the chunk
            return cohort_size
        each = max(memory_of(4) - of_two, 0) / 2
        chunks = [chunk for chunk in chunks if of_two + (chunk - 2) * each <= limit]
    return next((chunk for chunk in chunks if chunk > 1 and memory_of(chunk) <= limit), 1)


def row_share(leaf: Any, share: float = 1.0) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array, or of a share of its rows."""
    rows = [math.ceil(length * share) for length in leaf.shape[:1]]
    return jax.ShapeDtypeStruct((*rows, *leaf.shape[1:]), jnp.result_type(leaf))


def held_shapes(data: RunData, cohort_size: int, parts: int) -> FederatedData:
    """Returns shapes of a device's examples; for examples in files, of at most one cohort."""
    shapes, share = data_shapes(data), 1 / parts
    if isinstance(data, StoredData | CohortData):
        counts = np.sort(data.counts())
        share *= counts[-cohort_size:].sum() / counts.sum()
    of_part = jax.tree.map(lambda leaf: row_share(leaf, share), shapes)
    return of_part._replace(offsets=row_share(shapes.offsets))
