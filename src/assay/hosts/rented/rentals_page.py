"""Current and past rentals as rows and as a page: start, deadline, quoted and billed cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AwareDatetime, Field

from assay.core.page import Column, Page, Section, Table
from assay.core.values import Value
from assay.hosts.rented import budget
from assay.hosts.rented import provider as identity

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
    unconfirmed = [
        _past_row(rental, now, state="not seen" if listed.get(rental.provider) is not None else "cannot be asked after")
        for rental in by_job.values()
        if rental.released_at is None and rental.job_id not in shown
    ]
    month = (now.year, now.month)
    over = [
        _past_row(rental, now, state="over")
        for rental in by_job.values()
        if rental.released_at is not None
        and rental.machines
        and rental.job_id not in shown
        and (rental.begun_at.year, rental.begun_at.month) == month
    ]
    return (*running, *unconfirmed, *reversed(over))


def _running_row(listed: Rental, by_job: Mapping[str, RentalRecord], now: datetime) -> RentalRow:
    job = identity.job_of_machine(listed.name)
    rental = by_job.get(job or "")
    machine = next((record for record in rental.machines if record.number == listed.number), None) if rental else None
    since = machine.made_at if machine else None
    hours = None if since is None else (now - since).total_seconds() / 3600
    has_cost = hours is not None and listed.usd_per_hour is not None
    return RentalRow(
        provider=listed.host,
        job_id=job,
        machine=listed.number,
        gpu=listed.gpu,
        state=listed.state,
        since=since,
        deadline_at=listed.deadline_at,
        hours=hours,
        usd_per_hour=listed.usd_per_hour,
        quoted_usd=(hours or 0.0) * (listed.usd_per_hour or 0.0) if has_cost else None,
    )


def _past_row(rental: RentalRecord, now: datetime, *, state: str) -> RentalRow:
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
    titles = (
        "provider",
        "machine",
        "GPU",
        "state",
        "since (UTC)",
        "until (UTC)",
        "hours",
        "$/h",
        "quoted, $",
        "billed, $",
    )
    numeric = {"hours", "$/h", "quoted, $", "billed, $"}
    running = [row for row in rows if row.state != "over"]
    of = f" of ${budget_usd:.2f} ({budget.MONTHLY_VARIABLE})" if budget_usd is not None else ""
    count = {0: "Nothing is", 1: "1 machine is"}.get(len(running), f"{len(running)} machines are")
    now = f"What is rented now from {', '.join(unasked)} is not known" if unasked else f"{count} rented now"
    return Page(
        title="Rentals",
        lead=f"{now}; this month ${spent_usd:.2f}{of} is spent or kept.",
        sections=(
            Section(
                title="Machines",
                elements=(
                    Table(
                        title="Rented now, and in this month",
                        columns=tuple(Column(title=title, numeric=title in numeric) for title in titles),
                        rows=tuple(_cells(row) for row in rows),
                        note="; ".join(notes) or None,
                    ),
                ),
            ),
        ),
    )


def _cells(row: RentalRow) -> tuple[str | float | None, ...]:
    def at(moment: datetime | None) -> str | None:
        return None if moment is None else f"{moment:%m-%d %H:%M}"

    def rounded(number: float | None, digits: int) -> str | None:
        return None if number is None else f"{number:.{digits}f}"

    return (
        row.provider,
        row.machine,
        row.gpu,
        row.state,
        at(row.since),
        at(row.deadline_at),
        rounded(row.hours, 2),
        rounded(row.usd_per_hour, 2),
        rounded(row.quoted_usd, 3),
        rounded(row.billed_usd, 3),
    )
