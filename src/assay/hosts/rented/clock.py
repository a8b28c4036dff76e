"""The clock that renting goes by, handed in so that hours of waiting are tested in no time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What time it is, by our own clock: a provider's times are shown and never reckoned with."""

    def now(self) -> datetime:
        """Return the time of day, with its zone."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a signal may end it with `StopRequested`."""
        ...


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, seconds))
