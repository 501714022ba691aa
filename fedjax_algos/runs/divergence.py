"""Runs whose global model is no longer finite: they stop, and say what usually helps."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Mean, Params, Row
from fedjax_algos.engine.non_finite import NonFinite, NonFiniteUpdateError, all_finite
from fedjax_algos.engine.placed.devices import one_copy

WHAT_HELPS = (
    "a smaller client_learning_rate or server_learning_rate, gradients that are clipped "
    "(clip_norm), or fewer local steps"
)
_MAX_NAMED = 5  # runs in a warning
_all_finite = jax.jit(all_finite)


class DivergenceWarning(UserWarning):
    """The global model of a run is not finite, and the run has stopped."""


def params_finite(params: Params) -> jax.Array:
    """Whether all params of a global model are finite, bool[].

    Args:
      params: of a state; every device holds them.
    """
    return _all_finite(one_copy(params))


def has_diverged(non_finite: NonFinite, row: Row, finite: Any) -> bool:
    """Whether a run stops after a row: its test loss or a param is not finite.

    Args:
      non_finite: of the engine or the executor; with "keep" a run goes on.
      row: of the run's last evaluation.
      finite: bool[]: whether the params of the global model are.
    """
    return non_finite != "keep" and not (math.isfinite(row.get("test_loss", 0)) and bool(finite))


def describe_divergence(rows: Sequence[Row]) -> str:
    """Where a run has stopped: its round, and the last finite row.

    Args:
      rows: of the run; the last one is that of the model that is not finite.
    """
    last, before = rows[-1], rows[:-1]
    loss = f" (test_loss={last['test_loss']:g})" if "test_loss" in last else ""
    finite = f"that of round {before[-1]['round']:g}" if before else "none"
    return f"not finite at round {last['round']:g}{loss}; the last finite row is {finite}"


def warn_of_divergence(runs: Mapping[str, Sequence[Row]]) -> None:
    """Warns that runs have stopped, if there are any.

    Args:
      runs: the rows of each by a name for the message, as in `describe_divergence`.
    """
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
    """Puts a name before the message of a NonFiniteUpdateError of the block.

    Args:
      name: of the run.
    """
    try:
        yield
    except NonFiniteUpdateError as error:
        raise NonFiniteUpdateError(f"{name}{error}") from None


def training_mean(mean: Mean) -> jax.Array:
    """The mean over the updates of some rounds; NaN if all of them were left out.

    Args:
      mean: with leaves [...].
    """
    mean = mean.over_classes()
    return jnp.where(mean.weight > 0, mean.value(), jnp.nan)


def count_excluded(excluded: Any, run: int = 0) -> int | None:
    """The column `excluded_updates`; None if such updates are kept.

    Args:
      excluded: of a state; leaves [] or [runs].
      run: which of the runs.
    """
    return None if excluded == () else int(np.ravel(excluded.number)[run])
