"""What of a run folder belongs into the history: the run, and one point for each series it has measured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from assay.core.durable import read_json
from assay.core.errors import BadInput
from assay.core.results import Findings, Origin
from assay.core.values import Value, first_problem
from assay.stats.intervals import restarts_interval
from assay.stats.summary import usual_method
from assay.store.history.keys import Key, Keys, host_class, named, short_hash
from assay.store.history.reading import entries
from assay.store.runs import BLOCKS, RECORDS
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.core.plan import Trial
    from assay.core.results import Scope, Status
    from assay.store.history.reading import Entry, Measured
    from assay.store.runs import RunFolder

FAILED_QUANTITY = "call_us"
"""Where nothing was measured, the time that would have been: every way of timing takes it."""

NO_SERIES = frozenset({"start_us"})
"""Quantities that say when, and not how much."""

_ORIGINS: tuple[Origin, ...] = ("simulated", "fake", "real")


class Run(Value):
    """A run as the history keeps it. Times are in seconds since 1970, UTC."""

    id: str
    experiment: str
    started_s: float
    host: str
    hostname: str | None
    host_class: str
    driver: str | None
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str | None]
    options_digest: str
    origin: Origin
    folder: str
    headline: str
    trials: int
    failed: int

    @property
    def started_at(self) -> str:
        """When it began, ISO 8601, UTC."""
        return datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds")


class Point(NamedTuple):
    """What one run says of one series. Without a value, ``status`` and ``reason`` say why."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    scope: Scope | None
    status: Status
    reason: str | None
    disturbed: bool


@dataclass(frozen=True)
class State:
    """How far a run folder had come: its identity, how many lines it has, and a hash of them."""

    id: str
    lines: int
    digest: str


@dataclass(frozen=True)
class Told:
    """A run folder as the history keeps it."""

    run: Run
    state: State
    keys: dict[str, Key]
    points: dict[str, Point]


def state_of(folder: RunFolder) -> State:
    """Return a run's identity and how far it has come; it has the same identity wherever its folder is moved.

    Raises:
        DamagedFile: A line of it was changed, or one is missing.
    """
    identity = short_hash([folder.plan.as_json(), folder.machine.host, folder.machine.boot_id])
    content = hashlib.sha256()
    lines = 0
    for name in (BLOCKS, RECORDS):
        whole = folder.lines(name)
        lines += len(whole)
        content.update((whole[-1].digest if whole else name).encode())
    return State(identity, lines, content.hexdigest()[:16])


def told(folder: RunFolder, state: State | None = None) -> Told:
    """Return a finished run as the history keeps it."""
    state = state or state_of(folder)
    headline = _headline(folder)
    records = entries(folder)
    machine, plan = folder.machine, folder.plan
    origins = {entry.origin for entry, _ in records}
    run = Run(
        id=state.id,
        experiment=plan.experiment,
        started_s=_seconds(folder),
        host=machine.host,
        hostname=machine.hostname,
        host_class=host_class(machine),
        driver=machine.driver,
        git_commit=machine.git_commit,
        git_dirty=machine.git_dirty,
        versions=plan.versions,
        options_digest=short_hash(plan.options),
        origin=next((origin for origin in _ORIGINS if origin in origins), "real"),
        folder=str(folder.path),
        headline=headline,
        trials=len(records),
        failed=sum(entry.status == "failed" for entry, _ in records),
    )
    keys, points = points_of(records, Keys(machine, plan.cwd))
    return Told(run, state, keys, points)


def points_of(records: Iterable[tuple[Entry, Trial]], keys: Keys) -> tuple[dict[str, Key], dict[str, Point]]:
    """Return the series that records have measured, and the point of each; null values where all that tried failed.

    What was imported from another checkout is left out: it is not the code of the run's commit.
    """
    series_keys: dict[str, Key] = {}
    good: dict[str, list[tuple[Entry, Measured]]] = {}
    bad: dict[str, tuple[str, int, Entry]] = {}
    measured: set[str] = set()
    for entry, trial in records:
        for described, quantity, estimate in _of_trial(entry, trial, keys):
            if estimate is None:
                bad[described] = quantity, trial.restarts, entry
                continue
            name, key = named(described, quantity, estimate.method)
            series_keys[name] = key
            measured.add(described)
            good.setdefault(name, []).append((entry, estimate))
    points = {name: _combined(parts) for name, parts in good.items()}
    for described, (quantity, restarts, entry) in bad.items():
        if described not in measured:
            name, key = named(described, quantity, usual_method(restarts))
            series_keys[name], points[name] = key, _without(entry)
    return series_keys, points


def _of_trial(entry: Entry, trial: Trial, keys: Keys) -> Iterator[tuple[str, str, Measured | None]]:
    """Give what the series of a trial have in common, each quantity, and its estimate; null where it failed."""
    for role in trial.roles:
        if role.duty != "timed":
            continue
        for number, subject in enumerate(role.subjects):
            if subject.source is not None:
                continue
            described = keys.described(trial, role, subject)
            if entry.status != "ok":
                yield described, FAILED_QUANTITY, None
                continue
            for subject_estimate in entry.estimates:
                if (subject_estimate.role, subject_estimate.subject) == (
                    role.name,
                    number,
                ) and subject_estimate.quantity not in NO_SERIES:
                    yield described, subject_estimate.quantity, subject_estimate.estimate


def _without(entry: Entry) -> Point:
    return Point(None, None, None, 0, None, entry.status, entry.reason, bool(entry.disturbed))


def _combined(parts: list[tuple[Entry, Measured]]) -> Point:
    """Return the point of one estimate as it is, of several with an interval over them."""
    disturbed = any(entry.disturbed for entry, _ in parts)
    estimates = [estimate for _, estimate in parts]
    if len(estimates) == 1:
        (only,) = estimates
        return Point(only.value, only.low, only.high, only.n, only.scope, "ok", None, disturbed)
    centre, low, high, _ = restarts_interval([estimate.value for estimate in estimates])
    return Point(centre, low, high, sum(estimate.n for estimate in estimates), "run", "ok", None, disturbed)


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run came to its end."""
    return (folder.path / "findings.json").is_file()


def _headline(folder: RunFolder) -> str:
    path = folder.path / "findings.json"
    verify_file(path)
    try:
        return Findings.model_validate(read_json(path)).headline
    except ValidationError as error:
        raise BadInput(f"{path} is not what this version of Assay writes: {first_problem(error)}.") from None


def _seconds(folder: RunFolder) -> float:
    try:
        moment = datetime.fromisoformat(folder.plan.created_at)
    except ValueError:
        raise BadInput(f"{folder.path / 'plan.json'}: created_at is not a time: {folder.plan.created_at!r}.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
