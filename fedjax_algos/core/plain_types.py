"""Types of settings and results that do not need arrays."""

from typing import Any, Literal, TypeAlias

RateBy = Literal["round", "dispatch", "step"]
Batches = Literal["short", "dropped", "wrapped", "persistent", "replacement", "full"]
NonFinite = Literal["exclude", "error", "keep"]
Row: TypeAlias = dict[str, Any]  # the measurements of one evaluation of a run, by column
