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
"""Is told how many folders are read, and of how many."""

BATCH_POINTS = 20_000
"""Points that are written in one transaction, about."""

MAX_NAMES_PER_QUERY = 500
"""Names in one question; of more, all are read."""


def _no_progress(_done: int, _of: int) -> None:
    """Tell nobody how far it has come."""


@dataclass
class ImportResult:
    """What came of an import: how many runs, and the folders that were left out, some of them as they are damaged."""

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
        """How many finished runs could be read."""
        return self.new + self.replaced + self.unchanged


def import_run(path: Path, location: HistoryLocation | None = None) -> None:
    """Put one finished run into the history, or its newer state in the place of an older one."""
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
    """Make the history anew from run folders, in one transaction; before it ends nobody sees any of it.

    Raises:
        BadInput: Runs would be lost, as their folders are not among these, and ``forget`` does not allow that.
    """
    result = ImportResult()
    paths = list(find_run_folders(folders))
    with database.writing() as connection:
        before = {run.id: run.folder for run in connection.execute(select(RUNS.c.id, RUNS.c.folder))}
        for table in (POINTS, SERIES, RUNS):
            connection.execute(delete(table))
        for batch in _batches(paths, {}, result, progress):
            write_runs(connection, batch, result)
        lost = [before[one] for one in before.keys() - known_states(connection).keys()]
        if lost and not forget:
            raise BadInput(
                f"This would forget {len(lost)} of {len(before)} runs, such as {min(lost)}, whose folders were not "
                f"found; name their folders too, or say --yes to forget them."
            )
        result.forgotten = len(lost)
    return result


def find_run_folders(folders: Iterable[Path]) -> Iterator[Path]:
    """Give every run folder in some folders and below them, each once, in the order of their names."""
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
    """Return how far each run had come when it was imported, by its id."""
    rows = connection.execute(select(RUNS.c.id, RUNS.c.lines, RUNS.c.state))
    return {row.id: RunState(row.id, row.lines, row.state) for row in rows}


def is_newer(state: RunState, previous: RunState | None) -> bool:
    """Return whether a folder has come further than what is known; lines are only ever added."""
    return previous is None or (state.digest != previous.digest and state.lines >= previous.lines)


def _batches(
    paths: Sequence[Path], states_by_id: dict[str, RunState], result: ImportResult, progress: ImportProgress
) -> Iterator[list[RunHistory]]:
    """Read run folders, and give those that bring anything new, so many at a time."""
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
        if sum(len(one.points) for one in batch) >= BATCH_POINTS:
            yield batch
            batch = []
    if batch:
        yield batch


def write_runs(connection: Connection, batch: list[RunHistory], result: ImportResult) -> None:
    """Write runs with their points; who writes is alone, so that numbers can be given here."""
    batch = list({one.run.id: one for one in sorted(batch, key=lambda one: one.state.lines)}.values())
    numbers = _row_numbers(connection, RUNS.c.number, RUNS.c.id, [one.run.id for one in batch])
    states_by_id = known_states(connection) if numbers else {}
    fresh = [one for one in batch if is_newer(one.state, states_by_id.get(one.run.id))]
    result.unchanged += len(batch) - len(fresh)
    series = _series_numbers(connection, fresh)
    following = _next_number(connection, RUNS.c.number)
    rows: list[tuple[object, ...]] = []
    for one in fresh:
        number = numbers.get(one.run.id)
        if number is None:
            number, following = following, following + 1
            connection.execute(insert(RUNS), {"number": number, **run_row(one)})
            result.new += 1
        else:
            connection.execute(delete(POINTS).where(POINTS.c.run == number))
            connection.execute(update(RUNS).where(RUNS.c.number == number).values(**run_row(one)))
            result.replaced += 1
        rows += [point_row(series[key], number, point) for key, point in one.points.items()]
    result.points += len(rows)
    insert_many(connection, POINTS, rows)


def _series_numbers(connection: Connection, batch: list[RunHistory]) -> dict[str, int]:
    """Return the number of every series that some runs have measured; new ones are given theirs."""
    keys = {name: key for one in batch for name, key in one.keys.items()}
    numbers = _row_numbers(connection, SERIES.c.number, SERIES.c.key, list(keys))
    new = [name for name in keys if name not in numbers]
    numbers |= {name: number for number, name in enumerate(new, _next_number(connection, SERIES.c.number))}
    if new:
        connection.execute(insert(SERIES), [series_row(numbers[name], name, keys[name]) for name in new])
    return numbers


def _row_numbers(connection: Connection, number: Column[int], name: Column[str], names: list[str]) -> dict[str, int]:
    """Return the numbers of rows by their names, at least of those that are wanted and there."""
    query = select(name, number)
    if len(names) <= MAX_NAMES_PER_QUERY:
        query = query.where(name.in_(names))
    return {row[0]: row[1] for row in connection.execute(query)}


def _next_number(connection: Connection, number: Column[int]) -> int:
    """Return the number that follows the highest."""
    return 1 + int(connection.execute(select(func.max(number))).scalar() or 0)
