"""Keeping a device busy with calls, back to back, and knowing when each was over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from assay.joules.course import Knot

if TYPE_CHECKING:
    from assay.joules.clock import Clock
    from assay.timing.instrument import Call

CHUNK_NS = 1_000_000
"""Short calls are put together: a knot is made about so often."""


class Keeper(Protocol):
    """Makes calls back to back for as long as it is told to.

    Attributes:
        call_s: About how long a call takes, back to back.
        gap_s: How much of that the device waits for the host; null where it does not.
        how: How calls are put to the device, in words.
        notes: What is to be said of the calls.
    """

    call_s: float
    gap_s: float | None
    how: str
    notes: tuple[str, ...]

    def keep(self, seconds: float) -> None:
        """Keep the device busy for so long from now, one call at least; it may still be busy afterwards."""

    def rest(self, seconds: float) -> None:
        """Let the device finish, and leave it alone for so long."""

    def knots(self) -> list[Knot]:
        """Return the moments between calls so far."""

    def close(self) -> None:
        """Let the device finish, and give back what is held on it."""


class CpuKeeper:
    """The host: a call returns when its work is done."""

    gap_s: float | None = None
    how = "called in a loop"

    def __init__(self, call: Call, clock: Clock, call_s: float, notes: tuple[str, ...] = ()) -> None:
        self.call_s = call_s
        self.notes = notes
        self._call = call
        self._clock = clock
        self._per_chunk = max(1, int(CHUNK_NS / 1e9 / max(call_s, 1e-9)))
        self._knots: list[Knot] = []
        self._calls = 0

    def keep(self, seconds: float) -> None:
        """Call for so long."""
        now_ns = self._clock.now_ns()
        until_ns = now_ns + round(seconds * 1e9)
        self._knots.append(Knot(now_ns, self._calls))
        while True:
            for _ in range(self._per_chunk):
                self._call()
            self._calls += self._per_chunk
            now_ns = self._clock.now_ns()
            self._knots.append(Knot(now_ns, self._calls))
            if now_ns >= until_ns:
                return

    def rest(self, seconds: float) -> None:
        """Call nothing for so long."""
        self._clock.sleep(seconds)

    def knots(self) -> list[Knot]:
        """Return the moments between calls so far."""
        return list(self._knots)

    def close(self) -> None:
        """Nothing is held."""
