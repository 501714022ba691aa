"""Registers wrappers and applies them in order."""

from collections.abc import Sequence
from typing import Any

from fedjax_algos.asynchrony import SystemModelFactory
from fedjax_algos.core import Algorithm
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.specs import split_wrappers
from fedjax_algos.participation.in_rounds import make_in_system

wrappers = Registry[Algorithm]("wrapper", Algorithm)


def wrap(
    algorithm: Algorithm,
    specs: str | Sequence[str],
    system: SystemModelFactory | None = None,
    sampling: Any = None,
) -> Algorithm:
    """Applies wrappers to an algorithm, from left to right, so the first one is the innermost.

    Args:
      algorithm: the algorithm to wrap.
      specs: names with their options, as a list or with a plus between them, such as
        "identity+mean"; "" applies none. `my_file.py:my_wrapper` is a custom wrapper.
      system: makes the system model of a seed, for wrappers that read one, such as `oort`.
      sampling: a `Sampling`, how cohorts are drawn, for wrappers that compute their noise.

    Raises:
      ValueError: for an unknown wrapper or option, or an algorithm that a wrapper refuses.
    """
    for spec in split_wrappers(specs) if isinstance(specs, str) else specs:
        algorithm = make_in_system(wrappers, spec, system, algorithm, sampling=sampling)
    return algorithm
