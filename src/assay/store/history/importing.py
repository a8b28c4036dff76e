"""Import run folders into the history: each once, replaced when it has more records, a batch in one transaction.

A run contributes one point for each series it has measured. Only the fields of a record that the history needs are
parsed, so that a million records take minutes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError
from sqlalchemy import delete, func, insert, select, update

from assay.core.errors import AssayError, BadInput, DamagedFile
from assay.core.files import read_json
from assay.core.results import Findings, Interference, Origin, Scope, Status
from assay.core.values import SCHEMA_VERSION, Value, first_problem
from assay.stats.intervals import expected_method, restarts_interval
from assay.store.history.database import (
    POINTS,
    RUNS,
    SERIES,
    HistoryDatabase,
    HistoryPoint,
    HistoryRun,
    RunHistory,
    RunState,
    garbage_collection_paused,
    insert_many,
    point_row,
    run_row,
    series_row,
)
from assay.store.identity import SeriesKey, SeriesKeys, host_class, series_key, short_hash
from assay.store.records import verify_file
from assay.store.run_folder import BLOCKS, FINDINGS, PLAN, RECORDS, UNKNOWN_LINE, RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Column, Connection

    from assay.core.values import Trial
    from assay.store.history.database import HistoryLocation


class _Excerpt(Value):
    """The fields of a value that the history needs; others are ignored."""

    model_config = ConfigDict(extra="ignore")


class ShortEstimate(_Excerpt):
    """An estimate."""

    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None
    scope: Scope
    method: str
    n: int


class ShortSubjectEstimate(_Excerpt):
    """The estimate of one quantity of one subject in a record."""

    role: str
    subject: int
    quantity: str
    estimate: ShortEstimate


class SampleFile(_Excerpt):
    """A sample file."""

    file: str
    digest: str | None = None


class ShortRecord(_Excerpt):
    """A record."""

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
            raise BadInput(f"{path} {UNKNOWN_LINE}: {first_problem(error)}.") from None
        decision = latest.get(entry.block)
        if decision is not None and decision.attempt == entry.attempt:
            counting[entry.block][entry.trial] = entry
    result: list[tuple[ShortRecord, Trial]] = []
    for name, measured in counting.items():
        for sample_file in (file for entry in measured.values() for file in entry.series):
            folder.verify_samples(sample_file.file, sample_file.digest)
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
            series_keys[name] = key
            points[name] = HistoryPoint(
                None, None, None, 0, None, entry.status, entry.reason, disturbed=bool(entry.disturbed)
            )
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


def _combine_estimates(parts: list[tuple[ShortRecord, ShortEstimate]]) -> HistoryPoint:
    """Return a single estimate as a point, or several combined with an interval over them."""
    disturbed = any(entry.disturbed for entry, _ in parts)
    estimates = [estimate for _, estimate in parts]
    if len(estimates) == 1:
        (only,) = estimates
        return HistoryPoint(only.value, only.low, only.high, only.n, only.scope, "ok", None, disturbed)
    centre, low, high, _ = restarts_interval([estimate.value for estimate in estimates])
    return HistoryPoint(centre, low, high, sum(estimate.n for estimate in estimates), "run", "ok", None, disturbed)


def _headline(folder: RunFolder) -> str:
    path = folder.path / FINDINGS
    verify_file(path)
    try:
        return Findings.model_validate(read_json(path)).headline
    except ValidationError as error:
        raise BadInput(f"{path} is not what this version of Assay writes: {first_problem(error)}.") from None


def _started_s(folder: RunFolder) -> float:
    try:
        moment = datetime.fromisoformat(folder.plan.created_at)
    except ValueError:
        raise BadInput(f"{folder.path / PLAN}: created_at is not a time: {folder.plan.created_at!r}.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


ImportProgress = Callable[[int, int], None]
"""Called with the number of folders read and their total."""

BATCH_POINTS = 20_000
"""Approximate number of points written in one transaction."""

MAX_NAMES_PER_QUERY = 500
"""Names in one query; for more, all rows are read."""


@dataclass
class ImportResult:
    """Counts of an import, and the folders that were left out, ``damaged`` of them because they are damaged."""

    new: int = 0
    replaced: int = 0
    unchanged: int = 0
    points: int = 0
    forgotten: int = 0
    unfinished: list[Path] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    damaged: int = 0

    @property
    def read(self) -> int:
        """The number of finished runs that could be read."""
        return self.new + self.replaced + self.unchanged


def import_run(path: Path, location: HistoryLocation | None = None) -> None:
    """Put one finished run into the history, replacing an older state of it."""
    read = read_run(RunFolder.open(path))
    with HistoryDatabase.open(location).writing() as connection:
        write_runs(connection, [read], ImportResult())


def import_runs(
    database: HistoryDatabase, folders: Iterable[Path], progress: ImportProgress = lambda _done, _of: None
) -> ImportResult:
    """Put the runs in some folders, and in those below them, into the history."""
    result = ImportResult()
    with database.reading() as connection:
        states_by_id = known_states(connection)
    for batch in _batches(list(find_run_folders(folders)), states_by_id, result, progress):
        with database.writing() as connection:
            write_runs(connection, batch, result)
    return result


def rebuild_history(
    database: HistoryDatabase,
    folders: Iterable[Path],
    *,
    forget: bool,
    progress: ImportProgress = lambda _done, _of: None,
) -> ImportResult:
    """Rebuild the history from run folders in one transaction; other processes see none of it before it ends.

    Raises:
        BadInput: Runs would be lost because their folders are not among these, and ``forget`` is not set.
    """
    result = ImportResult()
    paths = list(find_run_folders(folders))
    with database.writing() as connection:
        before = {run.id: run.folder for run in connection.execute(select(RUNS.c.id, RUNS.c.folder))}
        for table in (POINTS, SERIES, RUNS):
            connection.execute(delete(table))
        for batch in _batches(paths, {}, result, progress):
            write_runs(connection, batch, result)
        missing = [before[run_id] for run_id in before.keys() - known_states(connection).keys()]
        if missing and not forget:
            raise BadInput(
                f"This would forget {len(missing)} of {len(before)} runs, such as {min(missing)}, whose folders "
                f"were not found; name their folders too, or say --yes to forget them."
            )
        result.forgotten = len(missing)
    return result


def find_run_folders(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield every run folder in some folders and below them, each once, sorted by name."""
    visited: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder." if folder.exists() else f"{folder} does not exist.")
        for directory, below, files in os.walk(folder.resolve()):
            below.sort()
            if "plan.json" in files:
                below.clear()
                path = Path(directory)
                if path not in visited:
                    visited.add(path)
                    yield path


def known_states(connection: Connection) -> dict[str, RunState]:
    """Return the imported state of each run, by its ID."""
    rows = connection.execute(select(RUNS.c.id, RUNS.c.lines, RUNS.c.state))
    return {row.id: RunState(row.id, row.lines, row.state) for row in rows}


def is_newer(state: RunState, previous: RunState | None) -> bool:
    """Return whether a folder has progressed beyond the imported state; lines are only ever appended."""
    return previous is None or (state.digest != previous.digest and state.lines >= previous.lines)


def _batches(
    paths: Sequence[Path], states_by_id: dict[str, RunState], result: ImportResult, progress: ImportProgress
) -> Iterator[list[RunHistory]]:
    """Read run folders, and yield those with new content in batches."""
    batch: list[RunHistory] = []
    for count, path in enumerate(paths):
        progress(count, len(paths))
        try:
            folder = RunFolder.open(path)
            if not (path / FINDINGS).is_file():
                result.unfinished.append(path)
                continue
            state = run_state(folder)
            if is_newer(state, states_by_id.get(state.id)):
                with garbage_collection_paused():
                    batch.append(read_run(folder, state))
            else:
                result.unchanged += 1
        except (AssayError, OSError) as error:
            result.unreadable.append((path, str(error)))
            result.damaged += isinstance(error, DamagedFile)
        if sum(len(history.points) for history in batch) >= BATCH_POINTS:
            yield batch
            batch = []
    if batch:
        yield batch


def write_runs(connection: Connection, batch: list[RunHistory], result: ImportResult) -> None:
    """Write runs with their points; the caller holds the write lock, so that row numbers can be assigned here."""
    batch = list(
        {history.run.id: history for history in sorted(batch, key=lambda history: history.state.lines)}.values()
    )
    numbers = _row_numbers(connection, RUNS.c.number, RUNS.c.id, [history.run.id for history in batch])
    states_by_id = known_states(connection) if numbers else {}
    new_runs = [history for history in batch if is_newer(history.state, states_by_id.get(history.run.id))]
    result.unchanged += len(batch) - len(new_runs)
    series = _series_numbers(connection, new_runs)
    next_free = _next_number(connection, RUNS.c.number)
    rows: list[tuple[object, ...]] = []
    for history in new_runs:
        number = numbers.get(history.run.id)
        if number is None:
            number, next_free = next_free, next_free + 1
            connection.execute(insert(RUNS), {"number": number, **run_row(history)})
            result.new += 1
        else:
            connection.execute(delete(POINTS).where(POINTS.c.run == number))
            connection.execute(update(RUNS).where(RUNS.c.number == number).values(**run_row(history)))
            result.replaced += 1
        rows += [point_row(series[key], number, point) for key, point in history.points.items()]
    result.points += len(rows)
    insert_many(connection, POINTS, rows)


def _series_numbers(connection: Connection, batch: list[RunHistory]) -> dict[str, int]:
    """Return the number of every series that some runs have measured; new series are inserted."""
    keys = {name: key for history in batch for name, key in history.keys.items()}
    numbers = _row_numbers(connection, SERIES.c.number, SERIES.c.key, list(keys))
    new = [name for name in keys if name not in numbers]
    numbers |= {name: number for number, name in enumerate(new, _next_number(connection, SERIES.c.number))}
    if new:
        connection.execute(insert(SERIES), [series_row(numbers[name], name, keys[name]) for name in new])
    return numbers


def _row_numbers(connection: Connection, number: Column[int], name: Column[str], names: list[str]) -> dict[str, int]:
    """Return the numbers of rows by name; it may include rows that were not asked for."""
    query = select(name, number)
    if len(names) <= MAX_NAMES_PER_QUERY:
        query = query.where(name.in_(names))
    return {row[0]: row[1] for row in connection.execute(query)}


def _next_number(connection: Connection, number: Column[int]) -> int:
    """Return the next free number."""
    return 1 + int(connection.execute(select(func.max(number))).scalar() or 0)
