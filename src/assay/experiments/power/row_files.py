"""Rows of any number of runs: found in folders of folders, read as far as they can be, each counted once.

A fleet is a folder of runs. What cannot be read is named and left out, and the rest is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.experiments.power.row_csv import records_of
from assay.experiments.power.rows import GpuRow, SweepRow
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from assay.core.results import Origin

RowT = TypeVar("RowT", GpuRow, SweepRow)

LONELY = frozenset({"samples", "monitor", "logs", "figures", "reports", "older"})
"""Folders of a run in which no other run lies."""
MOST_TOLD = 3
"""Of so many lines of a file what is wrong is said; of the rest how many they are."""


@dataclass(frozen=True)
class Gathered(Generic[RowT]):
    """The rows that could be read, each once; in words what could not be; the files they are from."""

    rows: tuple[RowT, ...]
    unusable: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def origin(self) -> Origin:
        """The least real origin among the rows."""
        there = {row.origin for row in self.rows}
        return "simulated" if "simulated" in there else "fake" if "fake" in there else "real"


@dataclass(frozen=True)
class _File(Generic[RowT]):
    rows: list[RowT]
    problems: list[str]


def gather(paths: Sequence[Path], name: str, kind: type[RowT]) -> Gathered[RowT]:
    """Read all rows of a kind that paths name: run folders, folders of such, .jsonl or .csv files.

    ``name`` is the rows' file within a run folder. Where nothing can be used there are no rows.

    Raises:
        DamagedFile: A run's rows are not as the run left them.
    """
    unusable: list[str] = []
    files = list(dict.fromkeys(file for path in paths for file in _files(path, name, unusable)))
    once = _Once[RowT]()
    many: TypeAdapter[list[RowT]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    for file in files:
        try:
            read = _read(file, kind, many)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
            continue
        unusable += _in_words(file, read)
        once.add(file, read.rows)
    return Gathered(tuple(once.rows), tuple(unusable), tuple(once.notes()), tuple(once.files))


def without_steps(path: Path) -> bool:
    """Return whether a file is of rows that are no steps of a sweep, as far as its beginning tells."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"case" in (begin := file.readline()) and b"knob" not in begin


def _files(path: Path, name: str, unusable: list[str]) -> list[Path]:
    """Return the files that a path leads to; a link that was named is followed, one on the way is not."""
    if not path.exists():
        unusable.append(f"{path} is not there")
        return []
    real = path.resolve()
    if real.is_file():
        if real.suffix not in {".jsonl", ".csv"}:
            unusable.append(f"{path} is neither a folder nor a .jsonl or .csv file")
            return []
        return [real]
    files = sorted(_within(real, Path(name)))
    if not files:
        unusable.append(f"{path} holds no run with a {name}")
    return files


def _within(folder: Path, name: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder, followlinks=False):
        if name.name in files and Path(at).name == name.parent.name:
            yield Path(at, name.name)
        folders[:] = [name_of_folder for name_of_folder in folders if name_of_folder not in LONELY]


def _read(file: Path, kind: type[RowT], many: TypeAdapter[list[RowT]]) -> _File[RowT]:
    verify_file(file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise BadInput(f"{file} is empty.")
    if file.suffix == ".csv":
        return _checked([(f"line {n}", record) for n, record in records_of(data, file, kind)], kind)
    lines = data.split(b"\n")
    whole = data.endswith(b"\n")
    numbered_lines = [(f"line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    try:
        return _File(_usable(many.validate_json(b"[%s]" % b",".join(line for _, line in numbered_lines)), []), [])
    except (ValidationError, BadInput):
        result = _checked(numbered_lines, kind)
    if not whole and result.problems and result.problems[-1].startswith(numbered_lines[-1][0]):
        result.problems[-1] = f"{numbered_lines[-1][0]} is cut off"
    return result


def _checked(told: Sequence[tuple[str, bytes | dict[str, object]]], kind: type[RowT]) -> _File[RowT]:
    """Read line by line; keep what is wrong with each that cannot be read."""
    rows: list[RowT] = []
    problems: list[str] = []
    for label, line in told:
        try:
            row = kind.model_validate_json(line) if isinstance(line, bytes) else kind.model_validate(line)
            rows += _usable([row], [label])
        except ValidationError as error:
            problems.append(f"{label}: {_why(error)}")
        except BadInput as error:
            problems.append(str(error))
    return _File(rows, problems)


def _why(error: ValidationError) -> str:
    problem = error.errors()[0]
    if problem["loc"] == ("schema_version",) and problem["type"] == "less_than_equal":
        return (
            f"it was written by a newer Assay: its schema is {problem['input']}, this one reads up to {SCHEMA_VERSION}"
        )
    return first_problem(error)


def _usable(rows: list[RowT], places: Sequence[str]) -> list[RowT]:
    """Return the rows if their times are times.

    Raises:
        BadInput: One is not.
    """
    for row in rows:
        if not 0 < row.median_us < float("inf"):
            raise BadInput(f"{places[0] if places else 'a line'}: a median of {row.median_us:g} µs is no time")
    return rows


def _in_words(file: Path, read: _File[RowT]) -> list[str]:
    """Say what of a file cannot be used, in one sentence however much it is."""
    if not read.problems:
        return [] if read.rows else [f"{file} holds no rows"]
    more = f"; and {len(read.problems) - MOST_TOLD} more lines" if len(read.problems) > MOST_TOLD else ""
    return [f"{file}: {'; '.join(read.problems[:MOST_TOLD])}{more}"]


class _Once(Generic[RowT]):
    """Rows, each counted once, whichever folders they come from."""

    def __init__(self) -> None:
        self.rows: list[RowT] = []
        self.files: list[Path] = []
        self._seen: dict[Hashable, Path] = {}
        self._again: dict[Path, int] = {}

    def add(self, file: Path, rows: Sequence[RowT]) -> None:
        """Take the rows of a file that no other file had."""
        fresh = [row for row in rows if self._seen.setdefault(_identity(row), file) == file]
        if fresh:
            self.files.append(file)
            self.rows += fresh
        if len(fresh) < len(rows):
            self._again[file] = len(rows) - len(fresh)

    def notes(self) -> list[str]:
        """Say which files repeat what others hold."""
        if not self._again:
            return []
        first = next(iter(self._again))
        others = f" and {len(self._again) - 1} other files" if len(self._again) > 1 else ""
        return [f"{sum(self._again.values())} rows of {first}{others} are those of another file; they count once."]


def _identity(row: GpuRow | SweepRow) -> Hashable:
    """Return what tells a row from all others: when, where, and what was measured how often."""
    common = (row.run, row.started_at, row.host, row.uuid, row.workload, tuple(sorted(row.params.items())))
    if isinstance(row, GpuRow):
        return (*common, row.case, row.repeat, row.quantity)
    return (*common, row.knob, row.setting, row.median_us, row.n, row.mean_us)
