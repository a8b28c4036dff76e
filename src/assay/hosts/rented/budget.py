"""What may be spent: by one run (--max-cost) and in a month, checked before anything is asked for.

What counts is the most that a machine can cost: the price of this moment until its deadline. In a month that is what
was billed, where the provider has said so; else what was quoted; and for what still runs the most it may come to.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from assay.hosts.rented.book import Rental

MONTHLY = "ASSAY_MONTHLY_BUDGET_USD"
LEAST_USEFUL_S = 120.0
"""Nothing is rented for less than the machine's start and this."""


class Allowance(Value):
    """What may be spent; null: no limit was set."""

    run_usd: float | None = Field(default=None, description="By this run, with all its machines.")
    month_usd: float | None = None
    spent_usd: float = Field(default=0.0, description="Of the month's, by other runs: billed, quoted or kept for them.")


def monthly_usd(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the month's budget from the environment; null: none is set.

    Raises:
        BadInput: What is there is not an amount.
    """
    text = environment.get(MONTHLY, "").strip()
    if not text:
        return None
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise BadInput(f"{MONTHLY}={text!r} is not an amount of dollars; write {MONTHLY}=50.")
    return amount


def at_most_usd(usd_per_hour: float, seconds: float) -> float:
    """Return what a machine costs that is kept so long."""
    return usd_per_hour * max(0.0, seconds) / 3600


def limit_s(asked_s: float | None, usd_per_hour: float | None, run_usd: float | None, default_s: float) -> float:
    """Return how long a machine is to be kept at most, in seconds.

    As long as was asked for; where nothing was, the default, or less if the run's money does not last that long.
    """
    if asked_s is not None:
        return asked_s
    if run_usd is None or not usd_per_hour:
        return default_s
    return min(default_s, run_usd / usd_per_hour * 3600)


def why_not(
    usd_per_hour: float | None,
    seconds: float,
    allowance: Allowance,
    *,
    already_usd: float = 0.0,
    ready_s: float | None = None,
) -> str | None:
    """Return why a machine of this price may not be kept so long, as a clause; null when it may.

    Args:
        usd_per_hour: The price of this moment; null: the provider does not tell it.
        seconds: Until its deadline.
        allowance: What may be spent.
        already_usd: What the run has spent on machines before this one.
        ready_s: How long the machine takes to start, as expected.
    """
    if allowance.run_usd is None and allowance.month_usd is None:
        return None
    if usd_per_hour is None:
        return "its price is not told, so no budget can be kept"
    most = at_most_usd(usd_per_hour, seconds) + already_usd
    at = f"at ${usd_per_hour:.2f} an hour"
    if allowance.run_usd is not None and seconds < (ready_s or 0.0) + LEAST_USEFUL_S:
        return (
            f"${allowance.run_usd:.2f} {at} is enough for {seconds:.0f} s, and starting it takes {ready_s or 0:.0f} s"
        )
    if allowance.run_usd is not None and most > allowance.run_usd * (1 + 1e-9):
        return f"it may cost ${most:.2f} {at} in {_time(seconds)}, and --max-cost is ${allowance.run_usd:.2f}"
    if allowance.month_usd is not None and allowance.spent_usd + most > allowance.month_usd * (1 + 1e-9):
        return (
            f"it may cost ${most:.2f} {at} in {_time(seconds)}, and of this month's ${allowance.month_usd:.2f} "
            f"({MONTHLY}) ${allowance.spent_usd:.2f} is spent or kept for what runs"
        )
    return None


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def spent_usd(rentals: Iterable[Rental], now: datetime) -> float:
    """Return what the rentals begun in this month (UTC) have cost or may still cost, in dollars."""
    return sum(committed_usd(r, now) for r in rentals if (r.begun_at.year, r.begun_at.month) == (now.year, now.month))


def committed_usd(rental: Rental, now: datetime) -> float:
    """Return what one rental counts for: as billed, as quoted, or the most it may come to while it is not over."""
    quoted = rental.quoted_usd(now) or 0.0
    if rental.released_at is None:
        return max(rental.at_most_usd or 0.0, quoted)
    return rental.billed_usd if rental.billed_usd is not None else quoted
