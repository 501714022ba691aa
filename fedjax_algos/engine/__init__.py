"""How an algorithm runs: compiled rounds, chunks of clients, devices, and where the data are.

`make_engine` compiles synchronous rounds, `make_executor` plans of asynchronous training. The
engine knows no algorithm.
"""

from fedjax_algos.engine.asynchronous.executor import Executor, Memory, make_executor
from fedjax_algos.engine.autotune import choose_layout
from fedjax_algos.engine.compilation import keep_compiled, measure_compilation
from fedjax_algos.engine.engine import Engine, make_engine
from fedjax_algos.engine.federated_round import FederatedState

__all__ = [
    "Engine",
    "Executor",
    "FederatedState",
    "Memory",
    "choose_layout",
    "keep_compiled",
    "make_engine",
    "make_executor",
    "measure_compilation",
]
