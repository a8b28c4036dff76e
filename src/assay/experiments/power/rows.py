"""Rows of power runs: one for each case and GPU, or each point of a sweep; written, read and merged.

Rows are written as JSON lines into the run folder and read back from any number of folders, without their records: a
fleet of ten thousand GPUs has about ten thousand lines. Rows that cannot be read are named and skipped; each row counts
once. In CSV, lists and maps are JSON or columns of their own: ``params.n`` is the parameter n, and a list may be
written ``[1, 2, 3]`` or ``1;2;3``. An empty cell was not measured. A CSV file of hosts and racks adds the rack of each
host.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import read_text
from assay.core.page import Text
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Scalar, Value, first_problem
from assay.machine.devices import gpu_targets
from assay.store.records import verify_file

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from assay.core.results import Estimate, GpuWindowStats, Record
    from assay.machine.model import Machine


GPUS_FILE = "power/gpus.jsonl"
SWEEP_FILE = "power/sweep.jsonl"

IDLE = "idle"
"""The workload that does nothing; of it every GPU takes part unless a number is given."""

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
    """Times, energy and sensor readings of the timed calls. Null: not measured, or not reported."""

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

    @model_validator(mode="after")
    def _has_time(self) -> Self:
        if not 0 < self.median_us < math.inf:
            raise ValueError(f"a median of {self.median_us:g} µs is no time")
        return self


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


KeyT = TypeVar("KeyT", bound="Hashable")
MAP_COLUMNS = frozenset({"params", "config", "held_back"})
LIST_COLUMNS = frozenset({"quartiles_us", "restart_medians_us", "neighbours"})
JSON_COLUMNS = MAP_COLUMNS | LIST_COLUMNS | {"setting"}
"""Fields whose cells may be something else than text; a setting is a number or a word."""


def find_gpu_stats(record: Record, device: str) -> GpuWindowStats | None:
    """Return what the monitor saw of a device; sensors are of whole GPUs, so that instances have none."""
    kind, _, number = device.partition(":")
    gpus = record.during.gpus if record.during is not None else ()
    return next((stats for stats in gpus if kind == "cuda" and number == str(stats.gpu)), None)


def identify_device(machine: Machine, device: str) -> dict[str, Any]:
    """Return UUID, slot, device and model: of a GPU, an instance of one, or a group of cores, known by its name."""
    target = gpu_targets(machine).get(device)
    number = device.partition(":")[2].partition("/")[0]
    return {
        "uuid": device if target is None else target.uuid,
        "slot": int(number) if number.isdigit() else 0,
        "device": device,
        "model": (machine.cpu_model or machine.architecture) if target is None else target.title,
    }


def sensor_fields(stats: GpuWindowStats | None) -> dict[str, Any]:
    """Return clock, temperature and utilisation while a device was timed, by the names of their columns."""
    if stats is None:
        return {}
    return {
        "sm_mhz": stats.sm_mhz_mean,
        "temperature_c": stats.temperature_mean_c,
        "utilisation_percent": stats.utilisation_percent,
    }


def energy_fields(energy: Estimate | None, share: float = 1.0) -> dict[str, float | None]:
    """Return a share of an energy and its interval by the names of their columns."""
    ends = (energy.value, energy.low, energy.high) if energy is not None else (None, None, None)
    names = ("energy_per_call_j", "energy_low_j", "energy_high_j")
    return {name: None if end is None else end * share for name, end in zip(names, ends, strict=True)}


def mean_share_by_reason(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean share of the time of each throttle reason; a reason that is not reported has none."""
    reasons = dict.fromkeys(reason for one in shares for reason in one)
    return {reason: sum(one.get(reason, 0.0) for one in shares) / len(shares) for reason in reasons}


def group_failed(tried: Iterable[tuple[KeyT, Record]]) -> dict[KeyT, list[Record]]:
    """Return the records of each key that was tried and never measured."""
    by_key: dict[KeyT, list[Record]] = {}
    for key, record in tried:
        by_key.setdefault(key, []).append(record)
    return {key: several for key, several in by_key.items() if all(record.status != "ok" for record in several)}


def rows_to_csv(rows: Sequence[GpuRow | SweepRow]) -> str:
    """Return rows as a table: parameters and throttle reasons in columns of their own; null is empty.

    Only the setting of a device as it was found is written "null", as an empty cell would be one that is missing.
    """
    return write_csv([_flatten_row(row) for row in rows])


def rows_to_json_lines(rows: Iterable[GpuRow | SweepRow]) -> str:
    """Return rows as JSON lines."""
    return "".join(f"{row.model_dump_json()}\n" for row in rows)


def write_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as CSV with a column for each of their keys; null is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(k for r in records for k in r)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue() if records else ""


def _flatten_row(row: GpuRow | SweepRow) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in row.as_json().items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            flat[name] = (
                json.dumps(value) if isinstance(value, list) or (value is None and name == "setting") else value
            )
    return flat


def _read_csv(data: bytes, file: Path, kind: type[GpuRow | SweepRow]) -> Iterator[tuple[str, dict[str, object]]]:
    """Give the label of each line and its cells by field.

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
        yield f"line {reader.line_num}", _parse_record(cells)


def _parse_record(cells: dict[str, str | list[str]]) -> dict[str, object]:
    record: dict[str, object] = {}
    for name, cell in cells.items():
        field, dot, part = (name or "").partition(".")
        if not isinstance(cell, str) or not cell.strip():
            continue
        if dot and field in MAP_COLUMNS:
            inner = record.setdefault(field, {})
            if isinstance(inner, dict):
                inner[part] = _parse_scalar(cell)
        elif name in LIST_COLUMNS and not cell.lstrip().startswith("["):
            record[name] = [item.strip() for item in cell.split(";")]
        else:
            record[name] = _parse_scalar(cell) if name in JSON_COLUMNS else cell
    return record


def _parse_scalar(cell: str) -> object:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


RowT = TypeVar("RowT", GpuRow, SweepRow)

SKIPPED_FOLDERS = frozenset({"samples", "monitor", "logs", "figures", "reports", "older"})
"""Folders of a run that contain no other run."""
MAX_PROBLEMS = 20
"""Problems in a report; of more, their number."""
MAX_NAMED_PROBLEMS = 3
"""Lines of a file whose problem is reported; the others are counted."""


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


def load_rows(paths: Sequence[Path], name: str, kind: type[RowT]) -> LoadedRows[RowT]:
    """Read all rows of a kind that paths name: run folders, folders of such, .jsonl or .csv files.

    ``name`` is the rows' file within a run folder. Each row counts once, whichever folders it comes from. Where nothing
    can be used there are no rows.

    Raises:
        DamagedFile: A run's rows are not as the run left them.
    """
    unusable: list[str] = []
    files = list(dict.fromkeys(file for path in paths for file in _find_files(path, name, unusable)))
    many: TypeAdapter[list[RowT]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    rows: list[RowT] = []
    used: list[Path] = []
    repeated: dict[Path, int] = {}
    first_file: dict[Hashable, Path] = {}
    for file in files:
        try:
            own, problems = _read_file(file, kind, many)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
            continue
        if problems or not own:
            unusable.append(_problems_text(file, problems))
        fresh = [row for row in own if first_file.setdefault(_row_key(row), file) == file]
        rows += fresh
        used += [file] if fresh else []
        if len(fresh) < len(own):
            repeated[file] = len(own) - len(fresh)
    return LoadedRows(tuple(rows), tuple(unusable), tuple(_repetition_notes(repeated)), tuple(used))


def _repetition_notes(repeated: Mapping[Path, int]) -> list[str]:
    """Say which files repeat what others hold."""
    if not repeated:
        return []
    others = f" and {len(repeated) - 1} other files" if len(repeated) > 1 else ""
    return [
        f"{sum(repeated.values())} rows of {next(iter(repeated))}{others} are those of another file; they count once."
    ]


def _row_key(row: GpuRow | SweepRow) -> Hashable:
    """Return what tells a row from all others: when, where, and what was measured how often."""
    common = (row.run, row.started_at, row.host, row.uuid, row.workload, tuple(sorted(row.params.items())))
    if isinstance(row, GpuRow):
        return (*common, row.case, row.repeat, row.quantity)
    return (*common, row.knob, row.setting, row.median_us, row.n, row.mean_us)


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
    real, target = path.resolve(), Path(name)
    if real.is_file():
        if real.suffix in {".jsonl", ".csv"}:
            return [real]
        unusable.append(f"{path} is neither a folder nor a .jsonl or .csv file")
        return []
    files = []
    for at, folders, names in os.walk(real, followlinks=False):
        if target.name in names and Path(at).name == target.parent.name:
            files.append(Path(at, target.name))
        folders[:] = [folder for folder in folders if folder not in SKIPPED_FOLDERS]
    if not files:
        unusable.append(f"{path} holds no run with a {name}")
    return sorted(files)


def _read_file(file: Path, kind: type[RowT], many: TypeAdapter[list[RowT]]) -> tuple[list[RowT], list[str]]:
    """Return the rows of a file, and the problem of each line that cannot be read."""
    verify_file(file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise BadInput(f"{file} is empty.")
    if file.suffix == ".csv":
        return _read_line_by_line(_read_csv(data, file, kind), kind)
    lines = [(f"line {n}", line) for n, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    try:
        return many.validate_json(b"[%s]" % b",".join(line for _, line in lines)), []
    except ValidationError:
        rows, problems = _read_line_by_line(lines, kind)
    last = lines[-1][0]
    if not data.endswith(b"\n") and problems and problems[-1].startswith(last):
        problems[-1] = f"{last} is cut off"
    return rows, problems


def _read_line_by_line(
    lines: Iterable[tuple[str, bytes | dict[str, object]]], kind: type[RowT]
) -> tuple[list[RowT], list[str]]:
    rows: list[RowT] = []
    problems: list[str] = []
    for label, line in lines:
        try:
            rows.append(kind.model_validate_json(line) if isinstance(line, bytes) else kind.model_validate(line))
        except ValidationError as error:
            problem = error.errors()[0]
            newer = problem["loc"] == ("schema_version",) and problem["type"] == "less_than_equal"
            text = (
                f"it was written by a newer Assay: its schema is {problem['input']}, this one reads up to "
                f"{SCHEMA_VERSION}"
            )
            problems.append(f"{label}: {text if newer else first_problem(error)}")
    return rows, problems


def _problems_text(file: Path, problems: Sequence[str]) -> str:
    """Say what of a file cannot be used, in one sentence however much it is."""
    if not problems:
        return f"{file} holds no rows"
    more = len(problems) - MAX_NAMED_PROBLEMS
    return f"{file}: {'; '.join(problems[:MAX_NAMED_PROBLEMS])}{f'; and {more} more lines' if more > 0 else ''}"


def row_notes(notes: Sequence[str], unusable: Sequence[str]) -> tuple[Text, ...]:
    """Return the paragraphs of a report about its rows: notes, and what could not be read."""
    more = len(unusable) - MAX_PROBLEMS
    problems = [f"{problem}." for problem in unusable[:MAX_PROBLEMS]]
    problems += [f"{more} more files or lines could not be read; --json lists all."] if more > 0 else []
    return (*(Text(text=note) for note in notes), *(Text(text=problem, tone="bad") for problem in problems))


def read_racks(path: Path) -> dict[str, str]:
    """Return the rack of each host from lines of ``host,rack``; a first line of just these words is a heading.

    Raises:
        BadInput: It cannot be read, or a line is something else.
    """
    try:
        text = read_text(path).removeprefix("\ufeff")
        lines = list(csv.reader(io.StringIO(text)))
    except BadInput as error:
        raise BadInput(f"--racks {path} cannot be read: {error}") from None
    except csv.Error as error:
        raise BadInput(f"--racks {path} is not a table in CSV: {error}.") from None
    racks: dict[str, str] = {}
    for number, cells in enumerate(lines, 1):
        values = [cell.strip() for cell in cells]
        if not any(values) or values == ["host", "rack"]:
            continue
        if len(values) != 2 or not all(values):
            raise BadInput(f"--racks {path}, line {number}: expected a host and its rack, separated by a comma.")
        racks[values[0]] = values[1]
    if not racks:
        raise BadInput(f"--racks {path} names no host.")
    return racks


def add_racks(rows: Sequence[GpuRow], racks: Mapping[str, str]) -> tuple[tuple[GpuRow, ...], tuple[str, ...]]:
    """Return the rows with the racks of their hosts, and which hosts have none."""
    unknown = [host for host in dict.fromkeys(row.host for row in rows) if host not in racks]
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    notes = (f"--racks does not name {', '.join(unknown[:5])}{more}.",) if unknown else ()
    return tuple(row.model_copy(update={"rack": racks.get(row.host, row.rack)}) for row in rows), notes
