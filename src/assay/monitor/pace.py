"""The clock that a recorder goes by; tests hand in one of their own, on which an hour passes in a moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.monitor.wire import Order


class Clock(Protocol):
    """Tells the time."""

    def now_ns(self) -> int:
        """Return the monotonic time in ns."""

    def wall_ns(self) -> int:
        """Return the time since 1970 in ns, as whoever sets the clock wants it."""


class Pace(Clock, Protocol):
    """Tells the time, and waits for it to come."""

    def wait(self, until_ns: int) -> Sequence[Order]:
        """Wait for a moment; return earlier with what the recorder was told meanwhile."""


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """Return the monotonic time in ns."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return the time since 1970 in ns."""
        return time.time_ns()
