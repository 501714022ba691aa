"""Sessions: the times in which a client is available, which repeat with a period."""

import bisect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_TOLERANCE = 1e-6  # seconds before a session that count as its start, because times are rounded


class Sessions(NamedTuple):
    """The times in which a client is available, both ends included, in each period.

    Attributes:
      starts: in ascending order, from 0 to below the period; sessions that touch are one.
      ends: of the same sessions, at most `period`.
      period: after which the sessions repeat, in the same unit.
    """

    starts: tuple[Any, ...]
    ends: tuple[Any, ...]
    period: Any

    @classmethod
    def of(cls, starts: Sequence[Any], ends: Sequence[Any], period: Any) -> "Sessions":
        """Joins sessions that touch, and leaves out one that starts when the period ends.

        Args:
          starts: in ascending order, from 0.
          ends: of the same sessions: none is before its start or after the next one's.
          period: at least the last end.
        """
        firsts: list[Any] = []
        lasts: list[Any] = []
        for start, end in zip(starts, ends, strict=True):
            if lasts and start == lasts[-1]:
                lasts[-1] = end
            elif start < period:
                firsts.append(start)
                lasts.append(end)
        return cls(tuple(firsts), tuple(lasts), period)

    def unavailability(self, now: Any, seconds: Any) -> tuple[Any, Any] | None:
        """What happens to a dispatch; see `SystemModelWithSessions.unavailability_at`.

        Args:
          now: when it starts.
          seconds: how long it takes.
        """
        starts, ends, period = self
        if not starts:
            return 0, math.inf
        if starts[0] == 0 and ends[0] == period:
            return None
        time = now % period
        time = 0 if period - time <= _TOLERANCE else time
        index = bisect.bisect_right(starts, time + _TOLERANCE) - 1
        following = starts[index + 1] if index + 1 < len(starts) else period + starts[0]
        if index < 0 or time > ends[index]:
            return 0, following - time
        time, end = max(time, starts[index]), ends[index]
        if end == period and starts[0] == 0:  # it goes on in the next period
            end, following = period + ends[0], period + starts[1]
        if seconds <= end - time:
            return None
        return (end - time) / seconds, following - end
