"""Current and past rentals as rows and as a page: start, deadline, quoted and billed cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AwareDatetime, Field

from assay.core.page import Column, Page, Section, Table
from assay.core.values import Value
from assay.hosts.rented import budget
from assay.hosts.rented.provider import job_of_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from assay.hosts.base import Rental
    from assay.hosts.rented.journal import RentalRecord


class RentalRow(Value):
    """A running machine, or a past rental."""

    provider: str
    job_id: str | None = Field(default=None, description="Null: the machine's name has none.")
    machine: str = Field(description="The provider's id, or ids.")
    gpu: str | None = None
    state: str
    since: AwareDatetime | None = Field(default=None, description="Null: requested from another machine.")
    deadline_at: AwareDatetime | None = None
    hours: float | None = None
    usd_per_hour: float | None = None
    quoted_usd: float | None = Field(default=None, description="The quoted price times the hours so far.")
    billed_usd: float | None = Field(
        default=None, description="Billed by the provider; null: not available, or not yet."
    )


def rental_rows(
    rentals: Iterable[RentalRecord], listed: Mapping[str, Iterable[Rental] | None], now: datetime
) -> tuple[RentalRow, ...]:
    """Return the running machines, then this month's past rentals, the newest first.

    ``listed`` maps each provider to its listed machines; null where it could not be queried.
    """
    by_job = {rental.job_id: rental for rental in rentals}
    running = [_running_row(machine, by_job, now) for machines in listed.values() for machine in machines or ()]
    shown = {row.job_id for row in running}
    unconfirmed: list[RentalRow] = []
    over: list[RentalRow] = []
    for rental in by_job.values():
        if rental.job_id in shown:
            continue
        if rental.released_at is None:
            state = "not seen" if listed.get(rental.provider) is not None else "cannot be queried"
            unconfirmed.append(_past_row(rental, now, state))
        elif rental.machines and (rental.begun_at.year, rental.begun_at.month) == (now.year, now.month):
            over.append(_past_row(rental, now, "over"))
    return (*running, *unconfirmed, *reversed(over))


def _running_row(listed: Rental, by_job: Mapping[str, RentalRecord], now: datetime) -> RentalRow:
    job = job_of_machine(listed.name)
    rental = by_job.get(job or "")
    machine = next((record for record in rental.machines if record.number == listed.number), None) if rental else None
    since, price = machine.made_at if machine else None, listed.usd_per_hour
    hours = None if since is None else (now - since).total_seconds() / 3600
    return RentalRow(
        provider=listed.host,
        job_id=job,
        machine=listed.number,
        gpu=listed.gpu,
        state=listed.state,
        since=since,
        deadline_at=listed.deadline_at,
        hours=hours,
        usd_per_hour=price,
        quoted_usd=None if hours is None or price is None else hours * price,
    )


def _past_row(rental: RentalRecord, now: datetime, state: str) -> RentalRow:
    until = rental.released_at or now
    hours = sum(((m.ended_at or until) - m.made_at).total_seconds() for m in rental.machines) / 3600
    return RentalRow(
        provider=rental.provider,
        job_id=rental.job_id,
        machine=", ".join(machine.number for machine in rental.machines) or "none known",
        gpu=rental.gpu,
        state=state,
        since=rental.begun_at,
        deadline_at=rental.deadline_at,
        hours=hours if rental.machines else None,
        usd_per_hour=rental.usd_per_hour,
        quoted_usd=rental.quoted_usd(now) if rental.machines else None,
        billed_usd=rental.billed_usd,
    )


def rentals_page(
    rows: tuple[RentalRow, ...],
    spent_usd: float,
    budget_usd: float | None,
    notes: Iterable[str] = (),
    unasked: Sequence[str] = (),
) -> Page:
    """Return the rows as a page; ``unasked`` are providers that could not be queried."""
    texts = ("provider", "machine", "GPU", "state", "since (UTC)", "until (UTC)")
    numbers = ("hours", "$/h", "quoted, $", "billed, $")
    running = sum(row.state != "over" for row in rows)
    of = f" of ${budget_usd:.2f} ({budget.MONTHLY_VARIABLE})" if budget_usd is not None else ""
    count = {0: "Nothing is", 1: "1 machine is"}.get(running, f"{running} machines are")
    now = f"What is rented now from {', '.join(unasked)} is not known" if unasked else f"{count} rented now"
    table = Table(
        title="Rented now, and in this month",
        columns=(*(Column(title=text) for text in texts), *(Column(title=text, numeric=True) for text in numbers)),
        rows=tuple(_cells(row) for row in rows),
        note="; ".join(notes) or None,
    )
    return Page(
        title="Rentals",
        lead=f"{now}; this month ${spent_usd:.2f}{of} is spent or reserved.",
        sections=(Section(title="Machines", elements=(table,)),),
    )


def _cells(row: RentalRow) -> tuple[str | float | None, ...]:
    times = (row.since, row.deadline_at)
    amounts = ((row.hours, 2), (row.usd_per_hour, 2), (row.quoted_usd, 3), (row.billed_usd, 3))
    return (
        *(row.provider, row.machine, row.gpu, row.state),
        *(None if time is None else f"{time:%m-%d %H:%M}" for time in times),
        *(None if amount is None else f"{amount:.{digits}f}" for amount, digits in amounts),
    )
