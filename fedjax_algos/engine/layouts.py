"""Chooses the layout "auto" on an accelerator: the largest chunks of clients that fit into memory.

The rule reads the device's total memory and the sizes of compiled programs. It measures neither
time nor free memory, so machines of one kind agree.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.limits import accelerator_memory
from fedjax_algos.core import Dispatch
from fedjax_algos.core.trees import take
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import shapes_on
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.slots import Placement, fill_slots, mark_equal_steps
from fedjax_algos.engine.state import FederatedState, row_shapes, table_shapes

SHARE = 0.75  # part of the device's memory for a round; evaluations and gaps use the rest


def largest_chunk(cohort_size: int, limit: float, memory_of: Callable[[int], int]) -> int:
    """Returns the largest of the cohort, its half, its quarter, ..., 1 with memory up to `limit`.

    Memory is close to affine in the chunk, so two and four clients predict which chunks fit.
    `memory_of` is slow, because it compiles.
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


def auto_layout(placement: Placement, cohort_size: int, memory_of: Callable[[int], int]) -> str:
    """Resolves "auto"; returns "auto" if the device's memory is unknown, as on a CPU."""
    memory = accelerator_memory()
    if memory is None:
        return "auto"
    size = -(-cohort_size // placement.num_devices)  # one device's part of the cohort
    return str(largest_chunk(size, SHARE * memory, memory_of))


def round_memory(
    of_round: FederatedRound,
    state: FederatedState,
    data: RunData,
    dispatches: Dispatch,
    sharded: bool,
    common_steps: int | None,
) -> int:
    """Compiles a device's part of a round and returns the bytes that it needs."""
    algorithm, (chunk, mesh), on_device, _ = of_round
    devices, own_mesh = (1, None) if mesh is None else (mesh.size, mesh.of_one_client())
    size = -(-len(dispatches.client) // devices)
    own = take(with_arrays(dispatches), slice(size))
    slots = fill_slots(own, Placement(chunk).slot_order(own.num_steps), data.num_clients)
    slots = mark_equal_steps(slots, own, common_steps, data.num_clients)
    if on_device:
        parts = 1 if data.num_clients % devices else devices
        rows = jax.tree.map(lambda leaf: _shape(leaf, 1 / parts), state.clients)
    else:
        rows = table_shapes(row_shapes(algorithm, state), len(slots.client))
    shapes = shapes_on(own_mesh, jax.tree.map(_shape, state._replace(clients=())))
    shapes = shapes._replace(clients=shapes_on(own_mesh, rows, rows=True))
    held = _held(data, len(dispatches.client), devices if sharded else 1)
    traced = of_round._replace(placement=Placement(chunk, own_mesh))
    compiled = jax.jit(traced.run_round, donate_argnums=0).lower(shapes, held, slots).compile()
    sizes: Any = compiled.memory_analysis()
    needed = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return needed - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes


def _shape(leaf, share=1.0):
    """Returns the shape of an array, or of a share of its rows."""
    rows = [math.ceil(length * share) for length in leaf.shape[:1]]
    return jax.ShapeDtypeStruct((*rows, *leaf.shape[1:]), jnp.result_type(leaf))


def _held(data, cohort_size, parts):
    """Returns shapes of a device's examples; for examples in files, of at most one cohort."""
    shapes = data_shapes(data)
    share = 1 / parts
    if isinstance(data, StoredData | CohortData):
        counts = np.sort(data.counts())
        share *= counts[-cohort_size:].sum() / counts.sum()
    of_part = jax.tree.map(lambda leaf: _shape(leaf, share), shapes)
    return of_part._replace(offsets=_shape(shapes.offsets))
