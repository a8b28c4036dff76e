"""Which time a result is told in: of the kernels where it was taken, otherwise of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Estimate, Record

TIMES = {
    "busy_us": "the median time of its kernels",
    "span_us": "the median time from its first kernel to its last",
    "call_us": "the median time of a call",
}
"""The times of a result in words, the one that counts first."""

AXES = {
    "busy_us": "time of the kernels of one call",
    "span_us": "time from first to last kernel of one call",
    "call_us": "time of one call",
}
CLOCKS = frozenset({"busy_cycles", "clock_mhz", "throttled"})
"""What is kept beside the times of a GPU."""


def decisive(records: Iterable[Record], role: str) -> str:
    """Return the quantity that counts among those that were taken of a role."""
    measured = {s.quantity for record in records for s in record.series if s.role == role}
    return next((quantity for quantity in TIMES if quantity in measured), "call_us")


def told(record: Record, role: str) -> Estimate | None:
    """Return a record's own estimate of the time that counts; null where it has none."""
    quantity = decisive([record], role)
    return next((s.estimate for s in record.estimates if s.role == role and s.quantity == quantity), None)
