"""Runs algorithms: compiles rounds, and places clients, state and examples on devices.

`make_engine` compiles synchronous rounds, `make_executor` plans of asynchronous training.
`exchange.py` has one client's exchange, `server_step.py` the server's aggregation and update, and
`federated_round.py` the round that joins them.
"""

from fedjax_algos.engine.asynchronous.executor import Executor as Executor
from fedjax_algos.engine.asynchronous.executor import InFlightMemory as InFlightMemory
from fedjax_algos.engine.asynchronous.executor import make_executor as make_executor
from fedjax_algos.engine.compilation import Compilation as Compilation
from fedjax_algos.engine.compilation import keep_compiled as keep_compiled
from fedjax_algos.engine.compilation import measure_compilation as measure_compilation
from fedjax_algos.engine.engine import Engine as Engine
from fedjax_algos.engine.engine import make_engine as make_engine
from fedjax_algos.engine.exchange import Transfer as Transfer
from fedjax_algos.engine.non_finite import Excluded as Excluded
from fedjax_algos.engine.non_finite import NonFiniteUpdateError as NonFiniteUpdateError
from fedjax_algos.engine.placed.on_disk import DiskClientState as DiskClientState
from fedjax_algos.engine.placed.on_disk import RowsOnDisk as RowsOnDisk
from fedjax_algos.engine.placed.sharded_data import ShardedData as ShardedData
from fedjax_algos.engine.pure_round import PureRound as PureRound
from fedjax_algos.engine.pure_round import pure_round as pure_round
from fedjax_algos.engine.slots import Placement as Placement
from fedjax_algos.engine.state import ClientStates as ClientStates
from fedjax_algos.engine.state import FederatedState as FederatedState
from fedjax_algos.engine.state import HostClientState as HostClientState
from fedjax_algos.engine.state import client_states as client_states
