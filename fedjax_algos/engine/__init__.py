"""How an algorithm runs: compiled rounds, chunks of clients, devices, and where the data are.

`make_engine` compiles synchronous rounds, `make_executor` plans of asynchronous training. One
client's exchange is in `exchange.py`, what the server makes of it in `server_step.py`, and what a
round computes with both in `federated_round.py`.
"""

from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, make_executor
from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation
from fedjax_algos.engine.engine import Engine, make_engine
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.non_finite import Excluded, NonFiniteUpdateError
from fedjax_algos.engine.placed.on_disk import DiskClientState, RowsOnDisk
from fedjax_algos.engine.placed.sharded_data import ShardedData
from fedjax_algos.engine.pure_round import PureRound, pure_round
from fedjax_algos.engine.slots import Placement
from fedjax_algos.engine.state import ClientStates, FederatedState, HostClientState, client_states

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
