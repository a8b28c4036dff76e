"""The journal of what was rented: written and flushed before anything is asked for, read by whoever cleans up.

    intent ─▶ asked ─▶ made ─▶ up ─▶ ended ─▶ released ─▶ billed
       │        │        │             │          └ all of the order was seen gone
       │        │        │             └ one machine was seen gone
       │        │        └ the provider has told its number, in an answer or in a list
       │        └ before each request: an answer may never come (silent)
       └ unique order, deadline, price: nothing exists yet

One line each in ``ASSAY_HOME/rentals.jsonl``. A line that a crash has torn counts as never written; one that cannot be
understood is left out and counted.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import AwareDatetime, Field, ValidationError

from assay.core import durable
from assay.core.home import home
from assay.core.values import SCHEMA_VERSION, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Event = Literal["intent", "asked", "made", "refused", "silent", "up", "ended", "released", "billed"]


class Entry(Value):
    """One line of the journal; what an event does not say is null."""

    schema_version: int = SCHEMA_VERSION
    at: AwareDatetime = Field(description="By our clock.")
    event: Event
    order: str
    provider: str
    name: str | None = Field(default=None, description="Of the machine.")
    number: str | None = Field(default=None, description="What the provider calls the machine.")
    gpu: str | None = None
    offer: str | None = None
    account: str | None = Field(default=None, description="What tells the account from another; no credential.")
    usd_per_hour: float | None = Field(default=None, description="As quoted.")
    at_most_usd: float | None = Field(default=None, description="The price of that moment until the deadline.")
    deadline_at: AwareDatetime | None = None
    usd: float | None = Field(default=None, description="As billed.")
    why: str | None = None


class Rented(Value):
    """One machine of an order."""

    number: str
    name: str | None = None
    made_at: AwareDatetime
    usd_per_hour: float | None = None
    up_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    billed_usd: float | None = None


class Rental(Value):
    """What the journal knows of an order."""

    order: str
    provider: str
    begun_at: AwareDatetime
    deadline_at: AwareDatetime | None = None
    gpu: str | None = None
    offer: str | None = None
    account: str | None = None
    usd_per_hour: float | None = None
    at_most_usd: float | None = None
    asked: int = Field(default=0, description="Requests for a machine.")
    refused: int = Field(default=0, description="Of them, those that were answered with no.")
    asked_at: AwareDatetime | None = Field(default=None, description="When a machine was last asked for.")
    heard_at: AwareDatetime | None = Field(
        default=None, description="When it was last known how such a request had ended, were it by no answer."
    )
    machines: tuple[Rented, ...] = ()
    released_at: AwareDatetime | None = Field(default=None, description="When all of it was seen gone; null: not yet.")

    @property
    def unanswered(self) -> int:
        """How many requests may have made a machine of which we do not know."""
        return max(0, self.asked - self.refused - len(self.machines))

    def quoted_usd(self, now: datetime) -> float | None:
        """Return the quoted price times the hours that its machines were there; null where no price was told."""
        total = 0.0
        for machine in self.machines:
            if machine.usd_per_hour is None:
                return None
            until = machine.ended_at or self.released_at or now
            total += machine.usd_per_hour * max(timedelta(), until - machine.made_at).total_seconds() / 3600
        return total

    @property
    def billed_usd(self) -> float | None:
        """What the provider says it cost; null until it has said so of every machine."""
        amounts = [machine.billed_usd for machine in self.machines]
        return sum(amount for amount in amounts if amount is not None) if amounts and None not in amounts else None


def rentals_of(entries: Iterable[Entry]) -> tuple[Rental, ...]:
    """Return the orders of a journal as their entries leave them, the oldest first."""
    by_job: dict[str, Rental] = {}
    for entry in entries:
        before = by_job.get(entry.order)
        rental = before or Rental(order=entry.order, provider=entry.provider, begun_at=entry.at)
        by_job[entry.order] = _after(rental, entry)
    return tuple(by_job.values())


def _after(rental: Rental, entry: Entry) -> Rental:
    changed: dict[str, object] = {}
    match entry.event:
        case "intent":
            fields = ("deadline_at", "gpu", "offer", "account", "usd_per_hour", "at_most_usd")
            changed = {"released_at": None, **{name: getattr(entry, name) for name in fields}}
        case "asked":
            changed = {"asked": rental.asked + 1, "asked_at": entry.at, "usd_per_hour": entry.usd_per_hour}
        case "refused":
            changed = {"refused": rental.refused + 1, "heard_at": entry.at}
        case "silent":
            changed = {"heard_at": entry.at}
        case "released":
            changed = {"released_at": entry.at}
        case "made":
            changed = {"machines": _machines_after(rental, entry), "heard_at": entry.at}
        case _:
            changed = {"machines": _machines_after(rental, entry)}
    return rental.model_copy(update=changed)


def _machines_after(rental: Rental, entry: Entry) -> tuple[Rented, ...]:
    if entry.number is None:
        return rental.machines
    machines = {machine.number: machine for machine in rental.machines}
    price = entry.usd_per_hour if entry.usd_per_hour is not None else rental.usd_per_hour
    new = Rented(number=entry.number, name=entry.name, made_at=entry.at, usd_per_hour=price)
    machine = machines.get(entry.number, new)
    changed: dict[str, object] = {}
    if entry.event == "up":
        changed = {"up_at": entry.at}
    elif entry.event == "ended":
        changed = {"ended_at": entry.at}
    elif entry.event == "billed":
        changed = {"billed_usd": entry.usd}
    machines[entry.number] = machine.model_copy(update=changed)
    return tuple(machines.values())


class Book:
    """The journal in a file; several processes may write it."""

    def __init__(self, path: Path | None = None) -> None:
        """Name the file; null: the one in Assay's home."""
        self._path = path
        self.unreadable = 0
        """Lines that could not be understood when it was last read."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path or home() / "rentals.jsonl"

    def write(self, entry: Entry) -> None:
        """Append an entry; when this returns, it survives a crash."""
        durable.append_line(self.path, entry.model_dump_json(exclude_none=True))

    def entries(self) -> tuple[Entry, ...]:
        """Return every entry that can be understood, in order."""
        entries: list[Entry] = []
        self.unreadable = 0
        for line in self._lines():
            try:
                entries.append(Entry.model_validate_json(line))
            except ValidationError:
                self.unreadable += 1
        return tuple(entries)

    def _lines(self) -> list[bytes]:
        """Return the complete lines, whatever is in them."""
        with durable.friendly_os_errors(self.path):
            try:
                return self.path.read_bytes().split(b"\n")[:-1]
            except FileNotFoundError:
                return []

    def rentals(self) -> tuple[Rental, ...]:
        """Return the orders as their entries leave them, the oldest first."""
        return rentals_of(self.entries())

    def rental(self, order: str) -> Rental | None:
        """Return one order; null: nothing of it was ever written."""
        return next(iter(rentals_of(entry for entry in self.entries() if entry.order == order)), None)

    @contextlib.contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Keep others from checking a budget and writing an intent for the length of a ``with`` block."""
        path = self.path.with_suffix(".lock")
        with durable.friendly_os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with durable.locked(descriptor):
                yield
        finally:
            os.close(descriptor)
