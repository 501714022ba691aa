"""The columns of the rows that `simulate`, `simulate_async` and `run_batched` return."""

from collections.abc import Mapping

from fedjax_algos.core import Row


def metrics_row(
    round_number: int,
    metrics: Mapping[str, float],
    *,
    download_bytes: float,
    upload_bytes: float,
    flops: float,
    wall_seconds: float,
    simulated_seconds: float | None = None,
    arrivals: int | None = None,
    lost: int | None = None,
    excluded_updates: int | None = None,
) -> Row:
    """One evaluation of a run: its columns, in the order of metrics.csv.

    Costs are those of all clients since the start of the run. Comparisons, sweeps and `run_batched`
    put the columns `method` and `seed` before these.

    Args:
      round_number: column `round`, the number of completed rounds; of server steps on the virtual
        clock.
      metrics: `train_loss`, the mean over all examples of all local steps since the last row (not
        in the first row), NaN if all updates since then were left out; `test_loss` and the
        problem's metrics as `test_...`, their values on the test examples.
      download_bytes: bytes sent to clients.
      upload_bytes: bytes sent by clients.
      flops: floating-point operations of the clients, see `count_flops`; NaN if they cannot be
        counted.
      wall_seconds: real time, compilation included.
      simulated_seconds: time on the virtual clock; None in a synchronous run, as the next two.
      arrivals: number of updates that have arrived.
      lost: number of lost dispatches.
      excluded_updates: number of updates that were left out because they were not finite; None if
        such updates are kept.
    """
    row = {
        "round": round_number,
        "simulated_seconds": simulated_seconds,
        **metrics,
        "arrivals": arrivals,
        "lost": lost,
        "excluded_updates": excluded_updates,
        "download_bytes": download_bytes,
        "upload_bytes": upload_bytes,
        "flops": flops,
        "wall_seconds": wall_seconds,
    }
    return {name: value for name, value in row.items() if value is not None}
