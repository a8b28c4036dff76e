"""Current and past rentals as rows and as a page: since when, until when, the cost quoted and billed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AwareDatetime, Field

from assay.core.page import Column, Page, Section, Table
from assay.core.values import Value
from assay.hosts.rented import budget, identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from assay.hosts.base import Rental
    from assay.hosts.rented.journal import RentalRecord


class RentalRow(Value):
    """A machine that runs, or an order that is over."""

    provider: str
    job_id: str | None = Field(default=None, description="Null: the machine's name tells none.")
    machine: str = Field(description="The provider's numbers for it.")
    gpu: str | None = None
    state: str
    since: AwareDatetime | None = Field(default=None, description="Null: asked for from elsewhere.")
    deadline_at: AwareDatetime | None = None
    hours: float | None = None
    usd_per_hour: float | None = None
    quoted_usd: float | None = Field(default=None, description="The quoted price times the hours so far.")
    billed_usd: float | None = Field(default=None, description="By the provider's account; null: not told, or not yet.")


def rental_rows(
    rentals: Iterable[RentalRecord], loans: Mapping[str, Iterable[Rental] | None], now: datetime
) -> tuple[RentalRow, ...]:
    """Return what runs, then what is over and was begun in this month, the newest first.

    ``loans`` are what each provider lists; null where it could not be asked.
    """
    by_order = {rental.job_id: rental for rental in rentals}
    running = [_running_rows(loan, by_order, now) for listed in loans.values() for loan in listed or ()]
    shown = {row.job_id for row in running}
    silent = [
        _past_rows(rental, now, state="not seen" if loans.get(rental.provider) is not None else "cannot be asked after")
        for rental in by_order.values()
        if rental.released_at is None and rental.job_id not in shown
    ]
    month = (now.year, now.month)
    over = [
        _past_rows(rental, now, state="over")
        for rental in by_order.values()
        if rental.released_at is not None
        and rental.machines
        and rental.job_id not in shown
        and (rental.begun_at.year, rental.begun_at.month) == month
    ]
    return (*running, *silent, *reversed(over))


def _running_rows(loan: Rental, by_order: Mapping[str, RentalRecord], now: datetime) -> RentalRow:
    job = identity.job_of_machine(loan.name)
    rental = by_order.get(job or "")
    machine = next((record for record in rental.machines if record.number == loan.number), None) if rental else None
    since = machine.made_at if machine else None
    hours = None if since is None else (now - since).total_seconds() / 3600
    has_cost = hours is not None and loan.usd_per_hour is not None
    return RentalRow(
        provider=loan.host,
        job_id=job,
        machine=loan.number,
        gpu=loan.gpu,
        state=loan.state,
        since=since,
        deadline_at=loan.deadline_at,
        hours=hours,
        usd_per_hour=loan.usd_per_hour,
        quoted_usd=(hours or 0.0) * (loan.usd_per_hour or 0.0) if has_cost else None,
    )


def _past_rows(rental: RentalRecord, now: datetime, *, state: str) -> RentalRow:
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
    """Return the rows as a page; ``unasked`` are providers of which nothing is known."""
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
