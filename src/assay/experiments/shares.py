"""A share as an estimate, for the findings of all experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate

if TYPE_CHECKING:
    from assay.stats.shares import Share


def share_estimate(share: Share, what: str) -> Estimate | None:
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
