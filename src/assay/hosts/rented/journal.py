"""The journal of rentals: written and flushed before a machine is requested, read by cleanup."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import AwareDatetime, Field, ValidationError

from assay.core import files, leases
from assay.core.values import SCHEMA_VERSION, Value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

Event = Literal["intent", "requested", "created", "refused", "no answer", "up", "ended", "released", "billed"]


class _Terms(Value):
    """What was intended or agreed; null where it does not apply or is not known."""

    provider: str
    gpu: str | None = None
    offer: str | None = None
    account: str | None = Field(default=None, description="Identifier of the account; not a credential.")
    usd_per_hour: float | None = Field(default=None, description="As quoted.")
    at_most_usd: float | None = Field(default=None, description="Cost up to the deadline at the quoted price.")
    deadline_at: AwareDatetime | None = None


class JournalEntry(_Terms):
    """One line of the journal; fields that do not apply to an event are null."""

    schema_version: int = SCHEMA_VERSION
    at: AwareDatetime = Field(description="By our clock.")
    event: Event
    job_id: str
    name: str | None = Field(default=None, description="The machine's name.")
    number: str | None = Field(default=None, description="The provider's id of the machine.")
    usd: float | None = Field(default=None, description="As billed.")
    why: str | None = None


class MachineRecord(Value):
    """One machine of a job."""

    number: str
    name: str | None = None
    made_at: AwareDatetime
    usd_per_hour: float | None = None
    up_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    billed_usd: float | None = None


class RentalRecord(_Terms):
    """What the journal records of a job's rental."""

    job_id: str
    begun_at: AwareDatetime
    request_count: int = Field(default=0, description="Number of requests for a machine.")
    refused: int = Field(default=0, description="Number of them that were refused.")
    requested_at: AwareDatetime | None = Field(default=None, description="When a machine was last requested.")
    settled_at: AwareDatetime | None = Field(
        default=None, description="When the outcome of such a request, even no answer, was last recorded."
    )
    machines: tuple[MachineRecord, ...] = ()
    released_at: AwareDatetime | None = Field(
        default=None, description="When all of it was confirmed gone; null: not yet."
    )

    def quoted_usd(self, now: datetime) -> float | None:
        """Return the cost of its machines in USD at quoted prices; null where a price is missing."""
        total = 0.0
        for machine in self.machines:
            if machine.usd_per_hour is None:
                return None
            until = machine.ended_at or self.released_at or now
            total += machine.usd_per_hour * max(timedelta(), until - machine.made_at).total_seconds() / 3600
        return total

    @property
    def billed_usd(self) -> float | None:
        """The cost billed by the provider, in USD; null until every machine is billed."""
        amounts = [machine.billed_usd for machine in self.machines]
        return sum(amount for amount in amounts if amount is not None) if amounts and None not in amounts else None


def replay_entries(entries: Iterable[JournalEntry]) -> tuple[RentalRecord, ...]:
    """Return the rentals that result from a journal's entries, the oldest first."""
    by_job: dict[str, RentalRecord] = {}
    for entry in entries:
        previous = by_job.get(entry.job_id)
        rental = previous or RentalRecord(job_id=entry.job_id, provider=entry.provider, begun_at=entry.at)
        by_job[entry.job_id] = _apply_entry(rental, entry)
    return tuple(by_job.values())


def _apply_entry(rental: RentalRecord, entry: JournalEntry) -> RentalRecord:
    changed: dict[str, object]
    match entry.event:
        case "intent":
            fields = ("deadline_at", "gpu", "offer", "account", "usd_per_hour", "at_most_usd")
            changed = {"released_at": None, **{name: getattr(entry, name) for name in fields}}
        case "requested":
            count = rental.request_count + 1
            changed = {"request_count": count, "requested_at": entry.at, "usd_per_hour": entry.usd_per_hour}
        case "refused":
            changed = {"refused": rental.refused + 1, "settled_at": entry.at}
        case "no answer":
            changed = {"settled_at": entry.at}
        case "released":
            changed = {"released_at": entry.at}
        case "created":
            changed = {"machines": _apply_to_machines(rental, entry), "settled_at": entry.at}
        case _:
            changed = {"machines": _apply_to_machines(rental, entry)}
    return rental.model_copy(update=changed)


def _apply_to_machines(rental: RentalRecord, entry: JournalEntry) -> tuple[MachineRecord, ...]:
    if entry.number is None:
        return rental.machines
    machines = {machine.number: machine for machine in rental.machines}
    price = entry.usd_per_hour if entry.usd_per_hour is not None else rental.usd_per_hour
    new = MachineRecord(number=entry.number, name=entry.name, made_at=entry.at, usd_per_hour=price)
    changes: dict[str, dict[str, object]] = {
        "up": {"up_at": entry.at},
        "ended": {"ended_at": entry.at},
        "billed": {"billed_usd": entry.usd},
    }
    machine = machines.get(entry.number, new).model_copy(update=changes.get(entry.event, {}))
    return tuple({**machines, entry.number: machine}.values())


class RentalJournal:
    """The journal file; several processes may write to it."""

    def __init__(self, path: Path | None = None) -> None:
        """Set the path; null: the file in Assay's home folder."""
        self._path = path
        self.unreadable = 0
        """Number of invalid lines when it was last read."""

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._path or files.home_folder() / "rentals.jsonl"

    def write(self, entry: JournalEntry) -> None:
        """Append an entry; once this returns, it survives a crash."""
        files.append_line(self.path, entry.model_dump_json(exclude_none=True))

    def entries(self) -> tuple[JournalEntry, ...]:
        """Return every valid entry, in order."""
        with files.translate_os_errors(self.path):
            try:
                lines = self.path.read_bytes().split(b"\n")[:-1]
            except FileNotFoundError:
                lines = []
        entries: list[JournalEntry] = []
        self.unreadable = 0
        for line in lines:
            try:
                entries.append(JournalEntry.model_validate_json(line))
            except ValidationError:
                self.unreadable += 1
        return tuple(entries)

    def rentals(self) -> tuple[RentalRecord, ...]:
        """Return the rentals that result from the entries, the oldest first."""
        return replay_entries(self.entries())

    def rental(self, job_id: str) -> RentalRecord | None:
        """Return the rental of one job; null: it has no entry."""
        return next((rental for rental in self.rentals() if rental.job_id == job_id), None)

    def one_at_a_time(self) -> AbstractContextManager[None]:
        """Keep other processes from checking a budget and writing an intent during a ``with`` block."""
        return leases.lease_lock(self.path.with_suffix(".lock"))
