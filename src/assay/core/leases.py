"""Leases: everything that must be undone is recorded on disk before it is done.

    take_lease ──▶ leases/<id>.json on disk ──▶ the change is made ──▶ release_lease: undo, then remove the file
                     │
                     └── the owner dies ──▶ the guardian, or `assay reap`, releases it instead

A lease is plain data. Its undo is ``module:function`` with keyword arguments, imported only when it runs. It may run
in another process and folder, so its paths are absolute, and it may run twice if the first run was killed, so it must
do no harm when there is nothing left to undo.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import AwareDatetime, Field, JsonValue, ValidationError

from assay.core import files, processes
from assay.core.errors import BadInput, MachineCannot
from assay.core.files import home_folder, refuse_writable_by_others
from assay.core.processes import ProcessIdentity, defer_stop
from assay.core.values import SCHEMA_VERSION, Value, first_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ReleaseOutcome = Literal["released", "failed", "left", "broken"]


class Lease(Value):
    """Something that must be undone: who is responsible for it, and how others can undo it."""

    schema_version: int = SCHEMA_VERSION
    id: str = Field(pattern=r"^[0-9A-Za-z_-]{8,64}$")
    kind: str
    what: str = Field(description='For people: "worker cpu:0 of trial 4f2a".')
    undo: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="module:function")
    args: dict[str, JsonValue] = Field(default_factory=dict)
    owner: ProcessIdentity
    created_at: AwareDatetime
    deadline_at: AwareDatetime | None = Field(description="Undone after this even if the owner lives; null: never.")
    attempts: int = Field(default=0, ge=0, description="Undos that failed so far.")
    last_error: str | None = None

    @property
    def path(self) -> Path:
        """The file that records the lease."""
        return _lease_folder() / f"{self.id}.json"


class ReleaseReport(Value):
    """The outcome for one lease; a file that cannot be parsed has none."""

    file: str
    lease: Lease | None
    outcome: ReleaseOutcome
    reason: str


class LeaseNotReleased(MachineCannot):
    """An undo failed; the lease is kept, with the error in it, for `assay reap` to try again."""


def new_lease_id() -> str:
    """Return an id for `take_lease`, for undos whose arguments name their own lease."""
    return secrets.token_hex(8)


def take_lease(
    kind: str,
    what: str,
    undo: str,
    args: dict[str, JsonValue],
    deadline: datetime | None = None,
    *,
    lease_id: str | None = None,
) -> Lease:
    """Record a lease of this process durably. Make the change only after this has returned.

    ``deadline`` is timezone-aware.
    """
    lease = Lease(
        id=lease_id or new_lease_id(), kind=kind, what=what, undo=undo, args=args,
        owner=processes.current_process(), created_at=datetime.now(UTC), deadline_at=deadline,
    )  # fmt: skip
    if lease.path.exists():
        raise ValueError(f"the lease {lease.id} is taken already")
    _write_lease(lease)
    return lease


def release_lease(lease: Lease) -> None:
    """Undo the change and remove the lease; does nothing if that is done already.

    A request to stop waits until the undo is done.

    Raises:
        LeaseNotReleased: The undo failed; the lease is kept.
    """
    with defer_stop(), _claim(lease.path, wait=True) as claimed:
        if claimed:
            _undo_and_forget(lease)


def discard_lease(lease: Lease) -> None:
    """Remove a lease without an undo: the change was rejected, so there is nothing to undo."""
    with _claim(lease.path, wait=True) as claimed:
        if claimed:
            files.remove_file(lease.path)


@contextlib.contextmanager
def hold_lease(
    kind: str, what: str, undo: str, args: dict[str, JsonValue], deadline: datetime | None = None
) -> Iterator[Lease]:
    """Hold a lease for the length of a ``with`` block and release it at the end, however it ends.

    The caller sees an error of the block itself; a failed release is then only added to it as a note.
    """
    lease = take_lease(kind, what, undo, args, deadline)
    try:
        yield lease
    except BaseException as error:
        try:
            release_lease(lease)
        except LeaseNotReleased as failure:
            error.add_note(str(failure))
        raise
    else:
        release_lease(lease)


def reap_leases() -> list[ReleaseReport]:
    """Release every lease whose owner is dead or whose deadline has passed, newest first; return a report on each.

    Leases of living owners, of other hosts (until their deadline) and of other users are left. Files that cannot be
    parsed are reported and kept.
    """
    readable, reports = _read_all()
    for lease in readable:
        due = _due_reason(lease)
        if due is None:
            reports.append(_report(lease, "left", _not_due_reason(lease)))
        else:
            reports.append(_release_for_another(lease, due, wait=False))
    return reports


def lease_exists(lease_id: str) -> bool:
    """Return whether a lease with this id exists, whoever took it."""
    return (_lease_folder() / f"{lease_id}.json").exists()


def list_foreign_leases(kind: str) -> list[Lease]:
    """Return the leases of a kind that other processes hold, newest first."""
    return [lease for lease in _read_all()[0] if lease.kind == kind and lease.owner != processes.current_process()]


def find_orphaned_leases() -> list[Lease]:
    """Return this user's leases whose owners are dead, newest first."""
    orphaned: list[Lease] = []
    for lease in _read_all()[0]:
        with contextlib.suppress(FileNotFoundError):
            if not processes.is_alive(lease.owner) and lease.path.stat().st_uid == os.geteuid():
                orphaned.append(lease)
    return orphaned


def release_orphans(kind: str, **args: JsonValue) -> list[Lease]:
    """Release leases of dead owners with this kind and these arguments; return those that living processes hold.

    Raises:
        LeaseNotReleased: A lease of a dead owner cannot be undone.
    """
    held: list[Lease] = []
    for lease in list_foreign_leases(kind):
        if any(lease.args.get(name) != value for name, value in args.items()):
            continue
        due = _due_reason(lease)
        if due is None:
            held.append(lease)
        elif (report := _release_for_another(lease, due, wait=True)).outcome == "failed":
            raise LeaseNotReleased(report.reason)
    return held


@contextlib.contextmanager
def lease_lock(path: Path | None = None) -> Iterator[None]:
    """Keep other processes from checking and taking leases, or what else ``path`` guards, during a ``with`` block."""
    path = path or home_folder() / "leases.lock"
    with files.translate_os_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with files.file_lock(descriptor):
            yield
    finally:
        os.close(descriptor)


def release_owned_by(owner: ProcessIdentity) -> list[ReleaseReport]:
    """Release every lease of one process, newest first; return a report on each."""
    readable, _ = _read_all()
    owned = [lease for lease in readable if lease.owner == owner]
    return [_release_for_another(lease, "its owner has ended", wait=True) for lease in owned]


def _lease_folder() -> Path:
    folder = home_folder() / "leases"
    with files.translate_os_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    refuse_writable_by_others(folder, "remove it")
    return folder


def _write_lease(lease: Lease) -> None:
    files.replace_atomically(lease.path, lease.model_dump_json(indent=1).encode(), mode=0o600)


def _read_all() -> tuple[list[Lease], list[ReleaseReport]]:
    """Return the leases, newest first, and reports on the files that are not leases."""
    readable: list[Lease] = []
    broken: list[ReleaseReport] = []
    for path in sorted(_lease_folder().glob("*.json")):
        try:
            readable.append(_read_lease(path))
        except BadInput as error:
            if path.exists():
                broken.append(ReleaseReport(file=str(path), lease=None, outcome="broken", reason=str(error)))
    return sorted(readable, key=lambda lease: lease.created_at, reverse=True), broken


def _read_lease(path: Path) -> Lease:
    content = files.read_json(path)
    try:
        lease = Lease.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{path} is not a lease: {first_problem(error)}.") from error
    if lease.id != path.stem:
        raise BadInput(f"{path} is not a lease: it carries the id {lease.id}.")
    return lease


def _due_reason(lease: Lease) -> str | None:
    """Return why a process other than the owner should release a lease; null: none should."""
    if lease.deadline_at is not None and lease.deadline_at <= datetime.now(UTC):
        return "its deadline has passed"
    return None if processes.is_alive(lease.owner) else "its owner is dead"


def _not_due_reason(lease: Lease) -> str:
    if processes.is_visible(lease.owner):
        return f"its owner, process {lease.owner.pid}, is alive"
    until = f"before {lease.deadline_at.isoformat()}" if lease.deadline_at else "without a deadline"
    return f"it belongs to another host or container and is not undone from here {until}"


def _release_for_another(lease: Lease, due: str, *, wait: bool) -> ReleaseReport:
    """Release another process's lease; an undo is code, so it is never run from another user's file."""
    try:
        with _claim(lease.path, wait=wait) as claimed:
            if not claimed:
                return _report(lease, "left", "another process is releasing it or has done so")
            if lease.path.stat().st_uid != os.geteuid():
                return _report(lease, "left", "it belongs to another user")
            _undo_and_forget(lease)
    except MachineCannot as error:
        return _report(lease, "failed", str(error))
    return _report(lease, "released", due)


def _report(lease: Lease, outcome: ReleaseOutcome, reason: str) -> ReleaseReport:
    return ReleaseReport(file=str(lease.path), lease=lease, outcome=outcome, reason=reason)


@contextlib.contextmanager
def _claim(path: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a lease's file and yield True; False if it is gone, or locked by another process and ``wait`` is off.

    The lock of a dead process disappears with it. A failed undo replaces the file, so a lock obtained after waiting
    counts only if the file is still the one that was locked.
    """
    while True:
        try:
            with files.translate_os_errors(path):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except BadInput:
            yield False
            return
        try:
            with files.file_lock(descriptor, wait=wait) as locked:
                if not locked or files.is_at(path, descriptor):
                    yield locked
                    return
        finally:
            os.close(descriptor)


def _undo_and_forget(lease: Lease) -> None:
    """Run the undo, then remove the file; the caller holds the claim."""
    try:
        module, _, function = lease.undo.partition(":")
        getattr(importlib.import_module(module), function)(**lease.args)
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        attempts = lease.attempts
        with contextlib.suppress(BadInput):
            attempts = max(attempts, _read_lease(lease.path).attempts)
        with contextlib.suppress(MachineCannot):  # a disk too full for that must not hide the failure itself
            _write_lease(lease.model_copy(update={"attempts": attempts + 1, "last_error": why}))
        raise LeaseNotReleased(
            f"Could not undo {lease.what} ({why}); `assay reap` will try again, the lease is {lease.path}."
        ) from error
    files.remove_file(lease.path)
