"""The budgets of one run (``--max-cost``) and of a month.

They are checked, and an intent is recorded, before a machine is requested.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.guardian import Guardian
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from assay.core.leases import Lease
    from assay.hosts.base import Job, Offer
    from assay.hosts.rented.context import RentalContext
    from assay.hosts.rented.journal import RentalRecord


MONTHLY_VARIABLE = "ASSAY_MONTHLY_BUDGET_USD"
LEAST_USEFUL_S = 120.0
"""Rent nothing for less than the machine's start-up time plus this."""


class Allowance(Value):
    """The budgets, in USD; null: no limit is set."""

    run_usd: float | None = Field(default=None, description="Budget of this run, for all its machines.")
    month_usd: float | None = None
    spent_usd: float = Field(default=0.0, description="This month by other runs: billed, quoted or reserved.")


def monthly_usd(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the monthly budget in USD from the environment; null: none is set.

    Raises:
        BadInput: The variable is not an amount.
    """
    text = environment.get(MONTHLY_VARIABLE, "").strip()
    if not text:
        return None
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise BadInput(f"{MONTHLY_VARIABLE}={text!r} is not an amount of dollars; write {MONTHLY_VARIABLE}=50.")
    return amount


def at_most_usd(usd_per_hour: float, seconds: float) -> float:
    """Return what a machine costs for this time, in USD."""
    return usd_per_hour * max(0.0, seconds) / 3600


def affordable_time_s(
    requested_s: float | None, usd_per_hour: float | None, run_usd: float | None, default_s: float
) -> float:
    """Return how long to keep a machine at most, in seconds.

    The requested time; without one, the default, or less if the run's budget does not last that long.
    """
    if requested_s is not None:
        return requested_s
    if run_usd is None or not usd_per_hour:
        return default_s
    return min(default_s, run_usd / usd_per_hour * 3600)


def reason_over_budget(
    usd_per_hour: float | None,
    seconds: float,
    allowance: Allowance,
    *,
    already_usd: float = 0.0,
    ready_s: float | None = None,
) -> str | None:
    """Return why a machine of this price may not be kept this long, as a clause; null when it may.

    Args:
        usd_per_hour: The live price; null: the provider does not report it.
        seconds: Time until its deadline.
        allowance: The budgets.
        already_usd: What the run has spent on earlier machines.
        ready_s: Expected start-up time of the machine.
    """
    run_usd, month_usd = allowance.run_usd, allowance.month_usd
    if run_usd is None and month_usd is None:
        return None
    if usd_per_hour is None:
        return "its price is not known, so no budget can be kept"
    at = f"at ${usd_per_hour:.2f} an hour"
    if run_usd is not None and seconds < (ready_s or 0.0) + LEAST_USEFUL_S:
        return f"${run_usd:.2f} {at} is enough for {seconds:.0f} s, and starting it takes {ready_s or 0:.0f} s"
    most = at_most_usd(usd_per_hour, seconds) + already_usd
    time_text = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    it_may_cost = f"it may cost ${most:.2f} {at} in {time_text}"
    if run_usd is not None and most > run_usd * (1 + 1e-9):
        return f"{it_may_cost}, and --max-cost is ${run_usd:.2f}"
    if month_usd is not None and allowance.spent_usd + most > month_usd * (1 + 1e-9):
        spent = f"${allowance.spent_usd:.2f} is spent or reserved for running machines"
        return f"{it_may_cost}, and of this month's ${month_usd:.2f} ({MONTHLY_VARIABLE}) {spent}"
    return None


def spent_usd(rentals: Iterable[RentalRecord], now: datetime) -> float:
    """Return what the rentals started in this month (UTC) have cost or may still cost, in USD."""
    return sum(committed_usd(r, now) for r in rentals if (r.begun_at.year, r.begun_at.month) == (now.year, now.month))


def committed_usd(rental: RentalRecord, now: datetime) -> float:
    """Return the cost of one rental in USD: billed, else quoted; while it is not over, the most it may cost."""
    quoted = rental.quoted_usd(now) or 0.0
    if rental.released_at is None:
        return max(rental.at_most_usd or 0.0, quoted)
    return rental.billed_usd if rental.billed_usd is not None else quoted


def job_limit_s(context: RentalContext, job: Job, offer: Offer) -> float:
    """Return a job's time limit on a machine, in seconds."""
    seconds = affordable_time_s(job.limit_s, offer.usd_per_hour, job.max_cost_usd, context.timeouts.limit_s)
    return seconds if offer.longest_s is None or job.limit_s is not None else min(seconds, offer.longest_s)


def reason_job_not_affordable(context: RentalContext, job: Job, offer: Offer, seconds: float) -> str | None:
    """Return why an offer may not be taken for this long, as a clause; the rentals of other runs count too."""
    if offer.longest_s is not None and seconds > offer.longest_s:
        return f"it can be rented for {offer.longest_s / 3600:g} h at most"
    now = context.clock.now()
    rentals = {rental.job_id: rental for rental in context.journal.rentals()}
    own_rental = rentals.pop(job.id, None)
    allowance = Allowance(run_usd=job.max_cost_usd, month_usd=monthly_usd(), spent_usd=spent_usd(rentals.values(), now))
    already_usd = (own_rental.quoted_usd(now) if own_rental else None) or 0.0
    return reason_over_budget(offer.usd_per_hour, seconds, allowance, already_usd=already_usd, ready_s=offer.ready_s)


def check_and_record_intent(context: RentalContext, job: Job, offer: Offer) -> tuple[Lease, datetime]:
    """Check the budget, then record what will be requested; return its lease and its deadline.

    The lease is written first: an intent in the journal without a lease means that the lease was lost.

    Raises:
        MachineCannot: It may cost too much, or no guardian would release it after a kill.
    """
    provider = context.provider
    seconds = job_limit_s(context, job, offer)
    with context.journal.one_at_a_time():
        over_budget = reason_job_not_affordable(context, job, offer, seconds)
        if over_budget is not None:
            raise MachineCannot(f"{provider.name}'s {offer.gpu or offer.name} is not rented: {over_budget}.")
        deadline_at = context.clock.now() + timedelta(seconds=seconds)
        Guardian.require()
        lease = leases.take_lease(
            "rental",
            f"machine of {provider.name} for {job.name}",
            "assay.hosts.rented.cleanup:undo_rental",
            {"provider": provider.name, "job_id": job.id, "account": provider.account()},
            deadline_at,
            lease_id=job.id,
        )
        record_intent(context, job, offer, deadline_at)
    return lease, deadline_at


def record_intent(context: RentalContext, job: Job, offer: Offer, deadline_at: datetime) -> None:
    """Record in the journal that a job is about to request a machine."""
    seconds = (deadline_at - context.clock.now()).total_seconds()
    price = offer.usd_per_hour
    context.note(
        "intent",
        job.id,
        gpu=offer.gpu,
        offer=offer.name,
        account=context.provider.account(),
        usd_per_hour=price,
        at_most_usd=None if price is None else at_most_usd(price, seconds),
        deadline_at=deadline_at,
    )


def check_budget(
    context: RentalContext, job: Job, offer: Offer, deadline_at: datetime, usd_per_hour: float | None = None
) -> None:
    """Check the budget again, with the live price or with the actual price of the machine.

    Raises:
        MachineCannot: It may cost too much.
    """
    price = offer.usd_per_hour if usd_per_hour is None else usd_per_hour
    current = offer.model_copy(update={"usd_per_hour": price, "ready_s": None})
    seconds = (deadline_at - context.clock.now()).total_seconds()
    over_budget = reason_job_not_affordable(context, job, current, seconds)
    if over_budget is not None:
        raise MachineCannot(f"{context.provider.name}'s {offer.gpu or offer.name} is not kept: {over_budget}.")
