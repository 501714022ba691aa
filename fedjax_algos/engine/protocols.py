"""The functions of an `Engine`, one protocol each: what they take, return and consume."""

from typing import Protocol

from fedjax_algos.core import Dispatch, Metrics, Model, Params, Population, Stack
from fedjax_algos.engine.client_states import ClientStates
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.sharded_data import DeviceData, RunData
from fedjax_algos.engine.state import FederatedState


class InitFn(Protocol):
    """Makes the state of a run before its first round.

    Args:
      seed: of the model, the clients' batches and their noise.
      population: the number of clients, the cohort size and the number of examples.
      params: the initial params, or a `Model` if the model also has statistics. They are
        copied. None is the problem's own initialisation.
      clients: the rows of client state, such as those of another run. They are copied. None: a row
        is initialised at its client's first dispatch.
    """

    def __call__(
        self,
        seed: int,
        population: Population,
        params: Params | Model | None = None,
        clients: ClientStates | None = None,
    ) -> FederatedState: ...


class RoundFn(Protocol):
    """Runs one round.

    Args:
      state: of the run. It is CONSUMED: its buffers are reused for the new state.
      data: all clients' examples, as `put_data` placed them.
      dispatches: of this round, NumPy arrays [cohort].

    Returns:
      The new state, and the round's metrics: means over all examples of all local steps.

    Raises:
      ValueError: if the data are not on the engine's devices.
    """

    def __call__(
        self, state: FederatedState, data: DeviceData, dispatches: Dispatch
    ) -> tuple[FederatedState, Metrics]: ...


class RoundsFn(Protocol):
    """Runs many rounds, as one program if client state is on the device.

    Args:
      state: of the run. It is CONSUMED: its buffers are reused for the new state.
      data: all clients' examples, as `put_data` placed them.
      dispatches: NumPy arrays [rounds, cohort].
      number: the first `number` rounds are run, without another compilation; None runs all.

    Returns:
      The state after the last round, and the metrics of all rounds together.

    Raises:
      ValueError: if `number` is out of range, or the data are not on the engine's devices.
    """

    def __call__(
        self,
        state: FederatedState,
        data: DeviceData,
        dispatches: Dispatch,
        number: int | None = None,
    ) -> tuple[FederatedState, Metrics]: ...


class TransferFn(Protocol):
    """Counts the bytes that one client downloads and uploads, from the shapes of what is sent.

    Args:
      state: of the run, or its shapes; not consumed.
      data: all clients' examples, or their shapes.
      dispatches: of one round, leaves [cohort].
    """

    def __call__(self, state: FederatedState, data: RunData, dispatches: Dispatch) -> Transfer: ...


class UpdatesFn(Protocol):
    """Computes what the clients of a cohort would upload, for diagnostics.

    Args:
      state: of the run; neither consumed nor changed.
      data: all clients' examples, as `put_data` placed them.
      dispatches: of one round, NumPy arrays [cohort].

    Returns:
      The updates in the order of `dispatches`; leaves [cohort, ...].
    """

    def __call__(self, state: FederatedState, data: DeviceData, dispatches: Dispatch) -> Stack: ...


class PutDataFn(Protocol):
    """Places the clients' examples on the engine's devices; to be called once.

    On one device it returns data in memory as they are.

    Args:
      data: as `federate` or `open_federated` returns them, the same in every process; or as this
        function returned them. Those in files are read later, cohort by cohort.

    Raises:
      ValueError: if the data are sharded over other devices, or in files while the algorithm's
        clients read the examples of others.
    """

    def __call__(self, data: RunData) -> DeviceData: ...
