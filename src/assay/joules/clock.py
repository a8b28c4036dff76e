"""The clock that readings and calls are on, handed in so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, and lets it pass."""

    def now_ns(self) -> int:
        """Return nanoseconds of the host's monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class HostClock:
    """The host's monotonic clock, which all its processes share."""

    def now_ns(self) -> int:
        """Return nanoseconds since the machine started."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Wait, if there is anything to wait for."""
        if seconds > 0:
            time.sleep(seconds)
