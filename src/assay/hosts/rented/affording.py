"""Whether an order may take an offer, and for how long; that it is going to is written down before it asks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.guardian import Guardian
from assay.hosts.rented import budget

if TYPE_CHECKING:
    from datetime import datetime

    from assay.core.leases import Lease
    from assay.hosts.base import Offer, Order
    from assay.hosts.rented.desk import Desk

UNDO = "assay.hosts.rented.undo:end"


def limit_s(desk: Desk, order: Order, offer: Offer) -> float:
    """Return how long a machine is to be kept at most, in seconds."""
    seconds = budget.limit_s(order.limit_s, offer.usd_per_hour, order.max_cost_usd, desk.pace.limit_s)
    return seconds if offer.longest_s is None or order.limit_s is not None else min(seconds, offer.longest_s)


def why_not(desk: Desk, order: Order, offer: Offer, seconds: float) -> str | None:
    """Return why an offer may not be taken for so long, as a clause; what others rent meanwhile is counted."""
    if offer.longest_s is not None and seconds > offer.longest_s:
        return f"it can be had for {offer.longest_s / 3600:g} h at most"
    rentals = desk.book.rentals()
    now = desk.clock.now()
    mine = next((rental for rental in rentals if rental.order == order.id), None)
    allowance = budget.Allowance(
        run_usd=order.max_cost_usd,
        month_usd=budget.monthly_usd(),
        spent_usd=budget.spent_usd((rental for rental in rentals if rental is not mine), now),
    )
    already = (mine.quoted_usd(now) if mine else None) or 0.0
    return budget.why_not(offer.usd_per_hour, seconds, allowance, already_usd=already, ready_s=offer.ready_s)


def intend(desk: Desk, order: Order, offer: Offer) -> tuple[Lease, datetime]:
    """Check the budget, then write down what is going to be asked for; return its lease, and its deadline.

    The lease comes first: an intent in the journal without a lease is one whose lease was lost.

    Raises:
        MachineCannot: It may cost too much, or nobody would give it back after a kill.
    """
    seconds = limit_s(desk, order, offer)
    with desk.book.one_at_a_time():
        against = why_not(desk, order, offer, seconds)
        if against is not None:
            raise MachineCannot(f"{desk.provider.name}'s {offer.gpu or offer.name} is not rented: {against}.")
        deadline_at = desk.clock.now() + timedelta(seconds=seconds)
        Guardian.require()
        lease = leases.take(
            "rental",
            f"machine of {desk.provider.name} for {order.name}",
            UNDO,
            {"provider": desk.provider.name, "order": order.id, "account": desk.account()},
            deadline_at,
            lease_id=order.id,
        )
        note_intent(desk, order, offer, deadline_at)
    return lease, deadline_at


def note_intent(desk: Desk, order: Order, offer: Offer, deadline_at: datetime) -> None:
    """Write down that an order is going to ask for a machine."""
    seconds = (deadline_at - desk.clock.now()).total_seconds()
    price = offer.usd_per_hour
    desk.note(
        "intent",
        order.id,
        gpu=offer.gpu,
        offer=offer.name,
        account=desk.account(),
        usd_per_hour=price,
        at_most_usd=None if price is None else budget.at_most_usd(price, seconds),
        deadline_at=deadline_at,
    )


def check(desk: Desk, order: Order, offer: Offer, deadline_at: datetime, usd_per_hour: float | None = None) -> None:
    """Check the budget again, with the price of this moment or with the one that a machine itself turns out to have.

    Raises:
        MachineCannot: It may cost too much.
    """
    price = offer.usd_per_hour if usd_per_hour is None else usd_per_hour
    seconds = (deadline_at - desk.clock.now()).total_seconds()
    against = why_not(desk, order, offer.model_copy(update={"usd_per_hour": price, "ready_s": None}), seconds)
    if against is not None:
        raise MachineCannot(f"{desk.provider.name}'s {offer.gpu or offer.name} is not kept: {against}.")
