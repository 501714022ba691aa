"""How an algorithm runs: compiled rounds, chunks of clients, devices, and where the data are.

`make_engine` compiles synchronous rounds, `make_executor` plans of asynchronous training. The
engine knows no algorithm. Where to change what:

- `exchange.py`: one client's exchange with the server, and its bytes; `server_step.py`: what the
  server makes of arrivals. `federated_round.py`: what a round computes with both.
- `placement.py`: how clients are placed on chunks and devices; `sharded_data.py`: which device
  holds which client's examples; `devices.py`: the mesh; `state.py`: where client state is kept,
  `disk_client_state.py`: its rows on disk, in `row_files.py`.
- `checks.py` checks the states, data and dispatches that a caller gives.
- `engine.py` has the engine and its options, and `compiled_rounds.py` its functions, which
  `protocols.py` documents; `cohort_data.py` reads cohorts from files;
  `asynchronous/` executes plans.
- `pure_round.py`: a round as a pure function, for loops and transformations of one's own.
- `client_states.py`: the rows of all clients, taken out of a state or given to the first one.
- `non_finite.py`: which updates are left out because they are not finite.
- `compilation.py` measures compilation and keeps its results.
"""

from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, make_executor
from fedjax_algos.engine.client_states import ClientStates, client_states
from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation
from fedjax_algos.engine.disk_client_state import DiskClientState, RowsOnDisk
from fedjax_algos.engine.engine import Engine, make_engine
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.non_finite import Excluded, NonFiniteUpdateError
from fedjax_algos.engine.placement import Placement
from fedjax_algos.engine.protocols import (
    InitFn,
    PutDataFn,
    RoundFn,
    RoundsFn,
    TransferFn,
    UpdatesFn,
)
from fedjax_algos.engine.pure_round import PureRound, pure_round
from fedjax_algos.engine.sharded_data import ShardedData
from fedjax_algos.engine.state import FederatedState, HostClientState

__all__ = [
    "ClientStates",
    "Compilation",
    "DiskClientState",
    "Engine",
    "Excluded",
    "Executor",
    "FederatedState",
    "HostClientState",
    "InFlightMemory",
    "InitFn",
    "NonFiniteUpdateError",
    "Placement",
    "PureRound",
    "PutDataFn",
    "RoundFn",
    "RoundsFn",
    "RowsOnDisk",
    "ShardedData",
    "Transfer",
    "TransferFn",
    "UpdatesFn",
    "client_states",
    "keep_compiled",
    "make_engine",
    "make_executor",
    "measure_compilation",
    "pure_round",
]
