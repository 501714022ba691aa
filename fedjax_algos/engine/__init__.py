"""How an algorithm runs: compiled rounds, chunks of clients, devices, and where the data are.

`make_engine` compiles synchronous rounds, `make_executor` plans of asynchronous training. The
engine knows no algorithm. Where to change what:

- `exchange.py`: one client's exchange with the server, and its bytes; `server_step.py`: what the
  server makes of arrivals. `federated_round.py`: what a round computes with both.
- `slots.py`: how a cohort is laid out over chunks and devices.
- `engine.py`: the engine, its functions and its options; `checks.py` checks what they are given.
- `state.py`: what a run carries from round to round; `placed/`: where it is, and the examples.
- `asynchronous/` executes plans.
- `pure_round.py`: a round as a pure function, for loops and transformations of one's own.
- `non_finite.py`: which updates are left out because they are not finite.
- `fingerprint.py`: texts that identify what a run computes and reads.
- `compilation.py` measures compilation and keeps its results.
"""

from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, make_executor
from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation
from fedjax_algos.engine.engine import Engine, make_engine
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.non_finite import Excluded, NonFiniteUpdateError
from fedjax_algos.engine.placed.client_states import ClientStates, client_states
from fedjax_algos.engine.placed.on_disk import DiskClientState, RowsOnDisk
from fedjax_algos.engine.placed.sharded_data import ShardedData
from fedjax_algos.engine.pure_round import PureRound, pure_round
from fedjax_algos.engine.slots import Placement
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
    "NonFiniteUpdateError",
    "Placement",
    "PureRound",
    "RowsOnDisk",
    "ShardedData",
    "Transfer",
    "client_states",
    "keep_compiled",
    "make_engine",
    "make_executor",
    "measure_compilation",
    "pure_round",
]
