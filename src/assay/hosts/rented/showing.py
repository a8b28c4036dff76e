"""What is rented and what was, as rows: since when, until when, what it costs, quoted against billed; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AwareDatetime, Field

from assay.core.page import Column, Page, Section, Table
from assay.core.values import Value
from assay.hosts.rented import budget, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from assay.hosts.base import Loan
    from assay.hosts.rented.book import Rental


class Row(Value):
    """A machine that runs, or an order that is over."""

    provider: str
    order: str | None = Field(default=None, description="Null: the machine's name tells none.")
    machine: str = Field(description="The provider's numbers for it.")
    gpu: str | None = None
    state: str
    since: AwareDatetime | None = Field(default=None, description="Null: asked for from elsewhere.")
    deadline_at: AwareDatetime | None = None
    hours: float | None = None
    usd_per_hour: float | None = None
    quoted_usd: float | None = Field(default=None, description="The quoted price times the hours so far.")
    billed_usd: float | None = Field(default=None, description="By the provider's account; null: not told, or not yet.")


def rows_of(rentals: Iterable[Rental], loans: Mapping[str, Iterable[Loan] | None], now: datetime) -> tuple[Row, ...]:
    """Return what runs, then what is over and was begun in this month, the newest first.

    ``loans`` are what each provider lists; null where it could not be asked.
    """
    by_order = {rental.order: rental for rental in rentals}
    running = [_running(loan, by_order, now) for listed in loans.values() for loan in listed or ()]
    shown = {row.order for row in running}
    silent = [
        _over(rental, now, state="not seen" if loans.get(rental.provider) is not None else "cannot be asked after")
        for rental in by_order.values()
        if rental.released_at is None and rental.order not in shown
    ]
    month = (now.year, now.month)
    over = [
        _over(rental, now, state="over")
        for rental in by_order.values()
        if rental.released_at is not None
        and rental.machines
        and rental.order not in shown
        and (rental.begun_at.year, rental.begun_at.month) == month
    ]
    return (*running, *silent, *reversed(over))


def _running(loan: Loan, by_order: Mapping[str, Rental], now: datetime) -> Row:
    job = names.order_of(loan.name)
    rental = by_order.get(job or "")
    machine = next((record for record in rental.machines if record.number == loan.number), None) if rental else None
    since = machine.made_at if machine else None
    hours = None if since is None else (now - since).total_seconds() / 3600
    has_cost = hours is not None and loan.usd_per_hour is not None
    return Row(
        provider=loan.host,
        order=job,
        machine=loan.number,
        gpu=loan.gpu,
        state=loan.state,
        since=since,
        deadline_at=loan.deadline_at,
        hours=hours,
        usd_per_hour=loan.usd_per_hour,
        quoted_usd=(hours or 0.0) * (loan.usd_per_hour or 0.0) if has_cost else None,
    )


def _over(rental: Rental, now: datetime, *, state: str) -> Row:
    until = rental.released_at or now
    hours = sum(((m.ended_at or until) - m.made_at).total_seconds() for m in rental.machines) / 3600
    return Row(
        provider=rental.provider,
        order=rental.order,
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


def page_of(
    rows: tuple[Row, ...],
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
    of = f" of ${budget_usd:.2f} ({budget.MONTHLY})" if budget_usd is not None else ""
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


def _cells(row: Row) -> tuple[str | float | None, ...]:
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
