"""Import run folders into the history: each once, replaced when it has more records, a batch in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, update

from assay.core.errors import AssayError, BadInput, DamagedFile
from assay.store.history.database import HistoryDatabase, garbage_collection_paused, insert_many
from assay.store.history.points import RunState, is_finished, read_run, run_state
from assay.store.history.tables import POINTS, RUNS, SERIES, point_row, run_row, series_row
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Column, Connection

    from assay.store.history.database import HistoryLocation
    from assay.store.history.points import RunHistory

ImportProgress = Callable[[int, int], None]
"""Called with the number of folders read and their total."""

BATCH_POINTS = 20_000
"""Approximate number of points written in one transaction."""

MAX_NAMES_PER_QUERY = 500
"""Names in one query; for more, all rows are read."""


def _no_progress(_done: int, _of: int) -> None:
    """Ignore the progress."""


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
    database: HistoryDatabase, folders: Iterable[Path], progress: ImportProgress = _no_progress
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
    database: HistoryDatabase, folders: Iterable[Path], *, forget: bool, progress: ImportProgress = _no_progress
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
            if not is_finished(folder):
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
