"""The contribution of a run folder to the history: the run, and one point for each series it has measured.

Only the fields of a record that the history needs are parsed, so that a million records take minutes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.results import Findings, Interference, Origin, Scope, Status
from assay.core.values import SCHEMA_VERSION, Value, first_problem
from assay.stats.intervals import expected_method, restarts_interval
from assay.store.identity import SeriesKey, SeriesKeys, host_class, series_key, short_hash
from assay.store.run_folder import BLOCKS, RECORDS
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.core.values import Trial
    from assay.store.run_folder import RunFolder


class ShortEstimate(Value):
    """The fields of an estimate that the history needs."""

    model_config = ConfigDict(extra="ignore")

    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None
    scope: Scope
    method: str
    n: int


class ShortSubjectEstimate(Value):
    """The estimate of one quantity of one subject in a record."""

    model_config = ConfigDict(extra="ignore")

    role: str
    subject: int
    quantity: str
    estimate: ShortEstimate


class SampleFile(Value):
    """A sample file."""

    model_config = ConfigDict(extra="ignore")

    file: str
    digest: str | None = None


class ShortRecord(Value):
    """The fields of a record that the history needs."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    trial: str
    block: str
    attempt: int
    series: tuple[SampleFile, ...] = ()
    estimates: tuple[ShortSubjectEstimate, ...] = ()
    disturbed: tuple[Interference, ...] = ()
    status: Status
    reason: str | None = None
    origin: Origin = "real"


def read_short_records(folder: RunFolder) -> list[tuple[ShortRecord, Trial]]:
    """Return the counting records with their trials: of each block the latest attempt, of each trial the last take.

    Raises:
        DamagedFile: A line or the samples of a record are not as they were written.
    """
    latest = {decision.block.name: decision for decision in folder.decisions()}
    path = folder.path / RECORDS
    counting: dict[str, dict[str, ShortRecord]] = {name: {} for name in latest}
    for line in folder.lines(RECORDS):
        try:
            entry = ShortRecord.model_validate_json(line.body)
        except ValidationError as error:
            what = f"holds a line that this version of Assay does not write: {first_problem(error)}"
            raise BadInput(f"{path} {what}.") from None
        decision = latest.get(entry.block)
        if decision is not None and decision.attempt == entry.attempt:
            counting[entry.block][entry.trial] = entry
    result: list[tuple[ShortRecord, Trial]] = []
    for sample_file in (
        sample_file for measured in counting.values() for entry in measured.values() for sample_file in entry.series
    ):
        folder.verify_samples(sample_file.file, sample_file.digest)
    for name, measured in counting.items():
        trials = _trials_by_id(list(measured), latest[name].block.trials)
        result += [(entry, trials[identity]) for identity, entry in measured.items() if identity in trials]
    return result


def _trials_by_id(measured: list[str], trials: tuple[Trial, ...]) -> dict[str, Trial]:
    """Return the trials of a block by their IDs, given the IDs of those that were measured, in order.

    Hashing trials is the slowest part here. A block is measured in the order of its trials: if as many were measured as
    it has, and the first and the last IDs match, no other trial needs to be hashed.
    """
    if len(measured) == len(trials) and (measured[0], measured[-1]) == (trials[0].id, trials[-1].id):
        return dict(zip(measured, trials, strict=True))
    return {trial.id: trial for trial in trials}


FAILED_QUANTITY = "call_us"
"""The quantity of a failed subject's series: every timing method measures it."""

NO_SERIES = frozenset({"start_us"})
"""Quantities that are timestamps, not measurements."""

_ORIGINS: tuple[Origin, ...] = ("simulated", "fake", "real")


class HistoryRun(Value):
    """A run as stored in the history. Times are in seconds since 1970, UTC."""

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
        """When the run began, ISO 8601, UTC."""
        return datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds")


class HistoryPoint(NamedTuple):
    """The result of one run for one series. Without a value, ``status`` and ``reason`` say why."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    scope: Scope | None
    status: Status
    reason: str | None
    disturbed: bool


@dataclass(frozen=True)
class RunState:
    """The progress of a run folder: its identity, its number of lines, and a hash of them."""

    id: str
    lines: int
    digest: str


@dataclass(frozen=True)
class RunHistory:
    """A run folder's contribution to the history."""

    run: HistoryRun
    state: RunState
    keys: dict[str, SeriesKey]
    points: dict[str, HistoryPoint]


def run_state(folder: RunFolder) -> RunState:
    """Return a run's identity and progress; the identity is the same wherever the folder is moved.

    Raises:
        DamagedFile: A line was changed, or one is missing.
    """
    identity = short_hash([folder.plan.as_json(), folder.machine.host, folder.machine.boot_id])
    content = hashlib.sha256()
    lines = 0
    for name in (BLOCKS, RECORDS):
        lines_of_file = folder.lines(name)
        lines += len(lines_of_file)
        content.update((lines_of_file[-1].digest if lines_of_file else name).encode())
    return RunState(identity, lines, content.hexdigest()[:16])


def read_run(folder: RunFolder, state: RunState | None = None) -> RunHistory:
    """Return a finished run's contribution to the history."""
    state = state or run_state(folder)
    headline = _headline(folder)
    records = read_short_records(folder)
    machine, plan = folder.machine, folder.plan
    origins = {entry.origin for entry, _ in records}
    run = HistoryRun(
        id=state.id,
        experiment=plan.experiment,
        started_s=_started_s(folder),
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
    keys, points = series_points(records, SeriesKeys(machine, plan.cwd))
    return RunHistory(run, state, keys, points)


def series_points(
    records: Iterable[tuple[ShortRecord, Trial]], keys: SeriesKeys
) -> tuple[dict[str, SeriesKey], dict[str, HistoryPoint]]:
    """Return the series that records have measured, and the point of each; null values where all attempts failed.

    Subjects imported from another checkout are left out: they are not the code of the run's commit.
    """
    series_keys: dict[str, SeriesKey] = {}
    good: dict[str, list[tuple[ShortRecord, ShortEstimate]]] = {}
    bad: dict[str, tuple[str, int, ShortRecord]] = {}
    measured: set[str] = set()
    for entry, trial in records:
        for described, quantity, estimate in _trial_estimates(entry, trial, keys):
            if estimate is None:
                bad[described] = quantity, trial.restarts, entry
                continue
            name, key = series_key(described, quantity, estimate.method)
            series_keys[name] = key
            measured.add(described)
            good.setdefault(name, []).append((entry, estimate))
    points = {name: _combine_estimates(parts) for name, parts in good.items()}
    for described, (quantity, restarts, entry) in bad.items():
        if described not in measured:
            name, key = series_key(described, quantity, expected_method(restarts))
            series_keys[name], points[name] = key, _failed_point(entry)
    return series_keys, points


def _trial_estimates(
    entry: ShortRecord, trial: Trial, keys: SeriesKeys
) -> Iterator[tuple[str, str, ShortEstimate | None]]:
    """Yield the common description of a trial's series, each quantity, and its estimate; null where it failed."""
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


def _failed_point(entry: ShortRecord) -> HistoryPoint:
    return HistoryPoint(None, None, None, 0, None, entry.status, entry.reason, bool(entry.disturbed))


def _combine_estimates(parts: list[tuple[ShortRecord, ShortEstimate]]) -> HistoryPoint:
    """Return a single estimate as a point, or several combined with an interval over them."""
    disturbed = any(entry.disturbed for entry, _ in parts)
    estimates = [estimate for _, estimate in parts]
    if len(estimates) == 1:
        (only,) = estimates
        return HistoryPoint(only.value, only.low, only.high, only.n, only.scope, "ok", None, disturbed)
    centre, low, high, _ = restarts_interval([estimate.value for estimate in estimates])
    return HistoryPoint(centre, low, high, sum(estimate.n for estimate in estimates), "run", "ok", None, disturbed)


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run is finished."""
    return (folder.path / "findings.json").is_file()


def _headline(folder: RunFolder) -> str:
    path = folder.path / "findings.json"
    verify_file(path)
    try:
        return Findings.model_validate(read_json(path)).headline
    except ValidationError as error:
        raise BadInput(f"{path} is not what this version of Assay writes: {first_problem(error)}.") from None


def _started_s(folder: RunFolder) -> float:
    try:
        moment = datetime.fromisoformat(folder.plan.created_at)
    except ValueError:
        raise BadInput(f"{folder.path / 'plan.json'}: created_at is not a time: {folder.plan.created_at!r}.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
