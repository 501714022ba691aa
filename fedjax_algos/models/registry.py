"""The registry of models, where each of their files can import it."""

from typing import Annotated

from fedjax_algos.core.registry import Range, Registry

models = Registry("model")

Width = Annotated[int, Range(1)]
