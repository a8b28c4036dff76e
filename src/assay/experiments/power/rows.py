"""Rows of power runs: one for each case and GPU, or each point of a sweep; written, read and merged.

Rows are written as JSON lines into the run folder and read back from any number of folders, without their records: a
fleet of ten thousand GPUs has about ten thousand lines. Rows that cannot be read are named and skipped; each row counts
once. In CSV, lists and maps are JSON or columns of their own: ``params.n`` is the parameter n, and a list may be
written
``[1, 2, 3]`` or ``1;2;3``. An empty cell was not measured. A CSV file of hosts and racks adds the rack of each host.
"""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import read_text
from assay.core.page import Text
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Scalar, Value, first_problem
from assay.store.records import verify_file

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence


GPUS_FILE = "power/gpus.jsonl"
SWEEP_FILE = "power/sweep.jsonl"

Knob = Literal["power_limit_w", "sm_mhz", "size", "dtype", "batch", "duty"]


class GpuIdentity(Value):
    """Which GPU it was, in which machine. Without GPUs, a group of cores: its name stands for the UUID."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    run: str = Field(description="The run folder's name.")
    started_at: str = Field(description="ISO 8601, UTC.")
    host: str = Field(description="Tells hosts apart; a name only where it was asked for.")
    rack: str | None = Field(default=None, description="Null: not known.")
    uuid: str
    slot: int = Field(description="The GPU's number on its host, which is where it sits.")
    device: str
    model: str
    origin: Origin = "real"


class CallStats(Value):
    """What the timed calls took, spent and saw. Null: not measured, or not told."""

    n: int = Field(ge=1, description="Calls that were timed.")
    quantity: str = Field(default="span_us", description="Which time it is: of the kernels, or what a caller waits.")
    median_us: float
    low_us: float | None = None
    high_us: float | None = None
    quartiles_us: tuple[float, float, float]
    mean_us: float
    cv: float | None = Field(default=None, description="Of the calls, their order kept out of it.")
    restart_medians_us: tuple[float, ...] = Field(default=(), description="One per start of the worker.")
    energy_per_call_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    gflop_per_j: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    held_back: dict[str, float] = Field(default_factory=dict, description="Share of the time, by throttle reason.")


class GpuRow(GpuIdentity, CallStats):
    """One timed GPU in one case of one repeat; the content of ``power/gpus.jsonl``."""

    case: str
    repeat: int = Field(default=1, ge=1)
    workload: str = Field(description="Its label, as sgemm@torch.")
    params: dict[str, Scalar] = Field(default_factory=dict)
    config: dict[str, Scalar] = Field(default_factory=dict, description="A configuration that was chosen for it.")
    isolation: str | None = Field(default=None, description="As it was asked for; null: not recorded.")
    neighbours: tuple[str, ...] = Field(
        default=(), description="What ran on the other GPUs meanwhile, as cuda:1 resnet50@torch; none: nothing did."
    )
    idle_w: float | None = Field(default=None, description="Of this GPU when idle, in the same run.")


class SweepRow(GpuIdentity, CallStats):
    """One GPU at one setting; the content of ``power/sweep.jsonl``."""

    workload: str
    params: dict[str, Scalar] = Field(default_factory=dict)
    knob: Knob
    setting: Scalar = Field(description="Watts, MHz, elements, a dtype's name, a share; null: as it was found.")
    calls_per_s: float
    work_per_call: float | None = Field(default=None, description="In FLOP, or bytes where it computes nothing.")


MAP_COLUMNS = frozenset({"params", "config", "held_back"})
LIST_COLUMNS = frozenset({"quartiles_us", "restart_medians_us", "neighbours"})
SCALAR_COLUMNS = frozenset({"setting"})
"""Fields whose cells may be a number or a word."""


def rows_to_csv(rows: Sequence[GpuRow | SweepRow]) -> str:
    """Return rows as a table: parameters and throttle reasons in columns of their own; null is empty.

    Only the setting of a device as it was found is written "null", as an empty cell would be one that is missing.
    """
    flat = [_flatten_row(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flatten_row(row: GpuRow | SweepRow) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in row.as_json().items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": "" if part is None else part for key, part in value.items()}
        elif isinstance(value, list):
            flat[name] = json.dumps(value)
        else:
            flat[name] = ("null" if name == "setting" else "") if value is None else value
    return flat


def read_csv_records(data: bytes, file: Path, kind: type[GpuRow | SweepRow]) -> Iterator[tuple[int, dict[str, object]]]:
    """Give the number of each line and its cells by field.

    Raises:
        BadInput: It is no text, or columns that every row needs are missing.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    there = {name.partition(".")[0] for name in reader.fieldnames or ()}
    needed = [name for name, field in kind.model_fields.items() if field.is_required() and name not in there]
    if needed:
        raise BadInput(f"{file} has no column {', '.join(needed)}.")
    for cells in reader:
        yield reader.line_num, _parse_record(cells)


def _parse_record(cells: dict[str, str | list[str]]) -> dict[str, object]:
    record: dict[str, object] = {}
    for name, cell in cells.items():
        if not isinstance(cell, str) or not cell.strip():
            continue
        field, dot, part = name.partition(".")
        if dot and field in MAP_COLUMNS:
            inner = record.setdefault(field, {})
            if isinstance(inner, dict):
                inner[part] = _parse_scalar(cell)
        else:
            record[name] = _parse_cell(name, cell)
    return record


def _parse_cell(name: str, cell: str) -> object:
    if name in LIST_COLUMNS and not cell.lstrip().startswith("["):
        return [part.strip() for part in cell.split(";")]
    return _parse_scalar(cell) if name in MAP_COLUMNS | LIST_COLUMNS | SCALAR_COLUMNS else cell


def _parse_scalar(cell: str) -> object:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


RowT = TypeVar("RowT", GpuRow, SweepRow)

SKIPPED_FOLDERS = frozenset({"samples", "monitor", "logs", "figures", "reports", "older"})
"""Folders of a run in which no other run lies."""
MAX_PROBLEMS = 20
"""Problems in a report; of more, their number."""
MAX_NAMED_PROBLEMS = 3
"""Of so many lines of a file what is wrong is said; of the rest how many they are."""


@dataclass(frozen=True)
class LoadedRows(Generic[RowT]):
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
class _FileRows(Generic[RowT]):
    rows: list[RowT]
    problems: list[str]


def load_rows(paths: Sequence[Path], name: str, kind: type[RowT]) -> LoadedRows[RowT]:
    """Read all rows of a kind that paths name: run folders, folders of such, .jsonl or .csv files.

    ``name`` is the rows' file within a run folder. Where nothing can be used there are no rows.

    Raises:
        DamagedFile: A run's rows are not as the run left them.
    """
    unusable: list[str] = []
    files = list(dict.fromkeys(file for path in paths for file in _find_files(path, name, unusable)))
    once = _UniqueRows[RowT]()
    many: TypeAdapter[list[RowT]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    for file in files:
        try:
            read = _read_file(file, kind, many)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
            continue
        unusable += _problems_text(file, read)
        once.add(file, read.rows)
    return LoadedRows(tuple(once.rows), tuple(unusable), tuple(once.notes()), tuple(once.files))


def has_no_sweep_rows(path: Path) -> bool:
    """Return whether a file is of rows that are no steps of a sweep, as far as its beginning tells."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"case" in (begin := file.readline()) and b"knob" not in begin


def _find_files(path: Path, name: str, unusable: list[str]) -> list[Path]:
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
    files = sorted(_walk_files(real, Path(name)))
    if not files:
        unusable.append(f"{path} holds no run with a {name}")
    return files


def _walk_files(folder: Path, name: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder, followlinks=False):
        if name.name in files and Path(at).name == name.parent.name:
            yield Path(at, name.name)
        folders[:] = [name_of_folder for name_of_folder in folders if name_of_folder not in SKIPPED_FOLDERS]


def _read_file(file: Path, kind: type[RowT], many: TypeAdapter[list[RowT]]) -> _FileRows[RowT]:
    verify_file(file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise BadInput(f"{file} is empty.")
    if file.suffix == ".csv":
        return _read_line_by_line([(f"line {n}", record) for n, record in read_csv_records(data, file, kind)], kind)
    lines = data.split(b"\n")
    whole = data.endswith(b"\n")
    numbered_lines = [(f"line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    try:
        return _FileRows(
            _check_times(many.validate_json(b"[%s]" % b",".join(line for _, line in numbered_lines)), []), []
        )
    except (ValidationError, BadInput):
        result = _read_line_by_line(numbered_lines, kind)
    if not whole and result.problems and result.problems[-1].startswith(numbered_lines[-1][0]):
        result.problems[-1] = f"{numbered_lines[-1][0]} is cut off"
    return result


def _read_line_by_line(
    numbered_lines: Sequence[tuple[str, bytes | dict[str, object]]], kind: type[RowT]
) -> _FileRows[RowT]:
    """Read line by line; keep what is wrong with each that cannot be read."""
    rows: list[RowT] = []
    problems: list[str] = []
    for label, line in numbered_lines:
        try:
            row = kind.model_validate_json(line) if isinstance(line, bytes) else kind.model_validate(line)
            rows += _check_times([row], [label])
        except ValidationError as error:
            problems.append(f"{label}: {_problem_text(error)}")
        except BadInput as error:
            problems.append(str(error))
    return _FileRows(rows, problems)


def _problem_text(error: ValidationError) -> str:
    problem = error.errors()[0]
    if problem["loc"] == ("schema_version",) and problem["type"] == "less_than_equal":
        return (
            f"it was written by a newer Assay: its schema is {problem['input']}, this one reads up to {SCHEMA_VERSION}"
        )
    return first_problem(error)


def _check_times(rows: list[RowT], labels: Sequence[str]) -> list[RowT]:
    """Return the rows if their times are times.

    Raises:
        BadInput: One is not.
    """
    for row in rows:
        if not 0 < row.median_us < float("inf"):
            raise BadInput(f"{labels[0] if labels else 'a line'}: a median of {row.median_us:g} µs is no time")
    return rows


def _problems_text(file: Path, read: _FileRows[RowT]) -> list[str]:
    """Say what of a file cannot be used, in one sentence however much it is."""
    if not read.problems:
        return [] if read.rows else [f"{file} holds no rows"]
    more = (
        f"; and {len(read.problems) - MAX_NAMED_PROBLEMS} more lines" if len(read.problems) > MAX_NAMED_PROBLEMS else ""
    )
    return [f"{file}: {'; '.join(read.problems[:MAX_NAMED_PROBLEMS])}{more}"]


def row_notes(notes: Sequence[str], unusable: Sequence[str]) -> tuple[Text, ...]:
    """Return the paragraphs of a report about its rows: notes, and what could not be read."""
    more = len(unusable) - MAX_PROBLEMS
    problems = [f"{problem}." for problem in unusable[:MAX_PROBLEMS]]
    problems += [f"{more} more files or lines could not be read; --json lists all."] if more > 0 else []
    return (*(Text(text=note) for note in notes), *(Text(text=problem, tone="bad") for problem in problems))


class _UniqueRows(Generic[RowT]):
    """Rows, each counted once, whichever folders they come from."""

    def __init__(self) -> None:
        self.rows: list[RowT] = []
        self.files: list[Path] = []
        self._seen: dict[Hashable, Path] = {}
        self._again: dict[Path, int] = {}

    def add(self, file: Path, rows: Sequence[RowT]) -> None:
        """Take the rows of a file that no other file had."""
        fresh = [row for row in rows if self._seen.setdefault(_row_key(row), file) == file]
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


def _row_key(row: GpuRow | SweepRow) -> Hashable:
    """Return what tells a row from all others: when, where, and what was measured how often."""
    common = (row.run, row.started_at, row.host, row.uuid, row.workload, tuple(sorted(row.params.items())))
    if isinstance(row, GpuRow):
        return (*common, row.case, row.repeat, row.quantity)
    return (*common, row.knob, row.setting, row.median_us, row.n, row.mean_us)


def read_racks(path: Path) -> dict[str, str]:
    """Return the rack of each host from lines of ``host,rack``; a first line of just these words is a heading.

    Raises:
        BadInput: It cannot be read, or a line is something else.
    """
    try:
        text = read_text(path).removeprefix("\ufeff")
    except BadInput as error:
        raise BadInput(f"--racks {path} cannot be read: {error}") from None
    racks: dict[str, str] = {}
    for number, cells in enumerate(_rack_lines(text, path), 1):
        values = [cell.strip() for cell in cells]
        if not any(values) or values == ["host", "rack"]:
            continue
        if len(values) != 2 or not all(values):
            raise BadInput(f"--racks {path}, line {number}: a host and its rack, parted by a comma, are needed.")
        racks[values[0]] = values[1]
    if not racks:
        raise BadInput(f"--racks {path} names no host.")
    return racks


def _rack_lines(text: str, path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise BadInput(f"--racks {path} is not a table in CSV: {error}.") from None


def add_racks(rows: Sequence[GpuRow], racks: Mapping[str, str]) -> tuple[tuple[GpuRow, ...], tuple[str, ...]]:
    """Return the rows with the racks of their hosts, and which hosts have none."""
    hosts = dict.fromkeys(row.host for row in rows)
    strange = [host for host in hosts if host not in racks]
    more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
    notes = (f"--racks does not name {', '.join(strange[:5])}{more}.",) if strange else ()
    return tuple(row.model_copy(update={"rack": racks.get(row.host, row.rack)}) for row in rows), notes
