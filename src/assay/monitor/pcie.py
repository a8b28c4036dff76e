"""PCIe bytes, counted on where the card's own counter begins anew.

The counters of an H200 (fields 197 and 198) have 32 bits: at the 63 GB/s of PCIe 5 ×16 they are back where they were
after 68 ms. Read more often than that, no byte is lost. What the card counts includes the packets' headers.
"""

from __future__ import annotations

WRAP = 2**32
READ_WITHIN_S = 0.06
"""Read at least so often; a recorder that is held up for 68 ms under full traffic misses 4.3 GB."""
READ_EVERY_NS = 54_000_000
"""And no more often: it takes an H200 0.4 ms, more than all the rest of a look."""


class ByteCount:
    """One direction of one GPU; what was counted before the first reading is kept as it is."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._wraps = 0

    def add(self, raw: int | None) -> int | None:
        """Take what the card says; return the bytes so far. One that shows more than 32 bits hold does not wrap."""
        if raw is None:
            return None
        if self._last is not None and raw < self._last < WRAP:
            self._wraps += 1
        self._last = raw
        return raw + self._wraps * WRAP
