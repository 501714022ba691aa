"""Types of settings and of results that need no arrays."""

from typing import Any, Literal, TypeAlias

RateBy = Literal["round", "dispatch", "step"]
Batches = Literal["short", "dropped", "wrapped", "persistent", "replacement", "full"]
NonFinite = Literal["exclude", "error", "keep"]
Row: TypeAlias = dict[str, Any]  # what one evaluation of a run measured, by column
