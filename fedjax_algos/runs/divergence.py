"""Runs whose global model is no longer finite: they stop, and say what usually helps."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence

from fedjax_algos.core import Row
from fedjax_algos.engine.non_finite import NonFiniteUpdateError

WHAT_HELPS = (
    "a smaller client_learning_rate or server_learning_rate, gradients that are clipped "
    "(clip_norm), or fewer local steps"
)
_MAX_NAMED = 5  # runs in a warning


class DivergenceWarning(UserWarning):
    """The global model of a run is not finite, and the run has stopped."""


def describe_divergence(rows: Sequence[Row]) -> str:
    """Where a run has stopped, by its rows: its round, and the last finite row."""
    last, before = rows[-1], rows[:-1]
    loss = f" (test_loss={last['test_loss']:g})" if "test_loss" in last else ""
    finite = f"that of round {before[-1]['round']:g}" if before else "none"
    return f"not finite at round {last['round']:g}{loss}; the last finite row is {finite}"


def warn_of_divergence(runs: Mapping[str, Sequence[Row]]) -> None:
    """Warns that runs have stopped, if there are any; `runs` are their rows by name."""
    if not runs:
        return
    named = [f"{name}: {describe_divergence(rows)}" for name, rows in runs.items()]
    more = len(named) - _MAX_NAMED
    named = named[:_MAX_NAMED] + [f"and {more} more"] * (more > 0)
    warnings.warn(
        f"a run stops when its model is not finite. {'; '.join(named)}. What usually helps is "
        f"{WHAT_HELPS}",
        DivergenceWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Puts a name before the message of a NonFiniteUpdateError of the block."""
    try:
        yield
    except NonFiniteUpdateError as error:
        raise NonFiniteUpdateError(f"{name}{error}") from None
