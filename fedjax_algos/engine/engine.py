"""The engine compiles an algorithm's rounds and places what they read; it knows no algorithm.

Here are what it is and its options; its functions are in `compiled_rounds.py`.
"""

from functools import partial
from typing import Literal, NamedTuple, get_args

from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.representation import describe
from fedjax_algos.engine.checks import check_algorithm
from fedjax_algos.engine.compiled_rounds import CompiledRounds
from fedjax_algos.engine.devices import Devices, client_mesh
from fedjax_algos.engine.disk_client_state import ClientStatePlace, place_name
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.non_finite import NonFinite
from fedjax_algos.engine.placement import Layout, Placement, chunk_size
from fedjax_algos.engine.protocols import (
    InitFn,
    PutDataFn,
    RoundFn,
    RoundsFn,
    TransferFn,
    UpdatesFn,
)


class Engine(NamedTuple):
    """A compiled algorithm, as `make_engine` returns it. Each function's protocol documents it.

    Attributes:
      algorithm: what is computed.
      init: `(seed, population, params=None) -> FederatedState`.
      round: `(state, data, dispatches) -> (state, metrics)`; consumes the state.
      rounds: `(state, data, dispatches, number=None) -> (state, metrics)`; consumes the state.
      transfer: `(state, data, dispatches) -> Transfer`, the bytes of one client.
      updates: `(state, data, dispatches) -> Stack`, what clients would upload.
      put_data: `data -> data` on the engine's devices.
      placement: layout and devices.
      non_finite: "exclude", "error" or "keep".
    """

    algorithm: Algorithm
    init: InitFn
    round: RoundFn
    rounds: RoundsFn
    transfer: TransferFn
    updates: UpdatesFn
    put_data: PutDataFn
    placement: Placement
    non_finite: NonFinite

    def __repr__(self) -> str:
        layout, devices = self.placement.layout, self.placement.num_devices
        return describe(self, layout=layout, devices=devices, algorithm=self.algorithm)


def make_engine(
    algorithm: Algorithm,
    layout: Layout = "auto",
    client_state: ClientStatePlace = "device",
    devices: Devices = None,
    examples: Literal["replicated", "sharded"] = "replicated",
    non_finite: NonFinite = "exclude",
) -> Engine:
    """Compiles an algorithm's rounds.

    Args:
      algorithm: what is computed.
      layout: how many clients of a cohort are computed at once: "vmapped" all of them, "sequential"
        one, a number chunks of that many. "auto" is "sequential" on a CPU and "vmapped" elsewhere.
        Layouts differ by rounding.
      client_state: where the rows of client state are kept: "device", one row for each client, or
        "host", one for each client that has been dispatched, with the cohort's rows on the device
        during a round. `RowsOnDisk(folder)` keeps the latter on disk. Results are the same, bit for
        bit.
      devices: over which the cohort is divided; see `client_mesh`. Each device holds the server
        state. The table of rows is divided over them if the number of clients is a multiple of
        theirs. The layout is that of each device's part of the cohort.
      examples: which examples a device holds: "replicated", all of them, or "sharded", those of its
        own clients, whose dispatches it computes; see `sharded_data`. It needs several devices.
      non_finite: what is done with an update that holds NaN or an infinite number, where the
        contribution, the report and the new row are parts of the update. "exclude": it is left out
        of all sums and of their count, the client's row stays as it was, and a cohort of which none
        is left leaves the server state as it is; `state.excluded` counts. "error": the functions
        that run rounds raise `NonFiniteUpdateError`, and therefore wait for their results. "keep":
        it is summed like the others.

    Raises:
      TypeError: for an object that is no algorithm.
      ValueError: for an unknown value of an option, for more devices than there are, and for
        sharded examples of an algorithm whose clients read the examples of others.
    """
    check_algorithm(algorithm)
    chunk_size(layout, 1)  # raises if the layout is unknown
    place_name(client_state)  # raises if the place is unknown
    check_choice("examples", examples, ("replicated", "sharded"))
    check_choice("non_finite", non_finite, get_args(NonFinite))
    placement = Placement(layout, client_mesh(devices))
    sharded = examples == "sharded" and placement.mesh is not None
    if sharded and algorithm.pools_examples:
        raise ValueError(
            "the algorithm's clients read the examples of all others, but examples='sharded' keeps "
            "most of them on other devices; give examples='replicated'"
        )
    run = CompiledRounds(algorithm, placement, client_state, sharded, non_finite)
    transfer = partial(count_transfer, algorithm)
    return Engine(
        algorithm,
        run.init,
        run.round,
        run.rounds,
        transfer,
        run.updates,
        run.put_data,
        placement,
        non_finite,
    )
