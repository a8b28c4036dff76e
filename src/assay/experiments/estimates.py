"""Which time of a result counts (the kernels' where it was measured, otherwise the call's), shares as estimates.

When a ratio's interval is too wide to be useful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.stats.ratios import Proportion


TIME_QUANTITIES = {
    "busy_us": "the median time of its kernels",
    "span_us": "the median time from its first kernel to its last",
    "call_us": "the median time of a call",
}
"""The times of a result in words, the one that counts first."""

TIME_AXES = {
    "busy_us": "time of the kernels of one call",
    "span_us": "time from first to last kernel of one call",
    "call_us": "time of one call",
}
CLOCK_QUANTITIES = frozenset({"busy_cycles", "clock_mhz", "throttled"})
"""What is kept beside the times of a GPU."""


def primary_time(records: Iterable[Record], role: str) -> str:
    """Return the quantity that counts among those that were taken of a role."""
    measured = {s.quantity for record in records for s in record.series if s.role == role}
    return next((quantity for quantity in TIME_QUANTITIES if quantity in measured), "call_us")


def primary_estimate(record: Record, role: str) -> Estimate | None:
    """Return a record's own estimate of the time that counts; null where it has none."""
    quantity = primary_time([record], role)
    return next((s.estimate for s in record.estimates if s.role == role and s.quantity == quantity), None)


def share_estimate(share: Proportion, what: str) -> Estimate | None:
    """Return a share in percent with its exact interval; null where nothing was compared."""
    value, interval = share.value, share.interval()
    if value is None or interval is None:
        return None
    return Estimate(
        value=100 * value,
        low=100 * interval[0],
        high=100 * interval[1],
        unit="%",
        scope="run",
        method=f"{what}: {share.count} of {share.n} comparisons, Clopper–Pearson",
        n=share.n,
    )


def run_estimate(bounds: tuple[float, float | None, float | None], unit: str, method: str, n: int) -> Estimate:
    """Return value, low and high of something over a run as an estimate."""
    value, low, high = bounds
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method=method, n=n)
