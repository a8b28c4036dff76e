"""Recording files: written in three formats, appended to at least once a second, and read back.

    .jsonl   one object per line
    .json    the same objects in one array, still one per line: a truncated file can be read line by line
    .csv     one row per tick, one column for every quantity of every GPU and of the host:

        t_ns  wall_time  tick …  gpu0_power_instant_w  gpu1_power_instant_w  host_cpu_percent  host_core_percent[0] …

The columns of a table are fixed by the first row, so that no later row can be misaligned. A mark is a row of its own,
and so is the end. Processes on a GPU are left out of the table.

Data handed to the kernel survives the death of the recorder, so a flush is a write and not an fsync, which would cost
ticks; there is one fsync at the end.

A truncated file is read up to its last complete line. Lines are in time order to within a second or so, so that a
window is found in a file of any size by bisection.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import stat
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from pydantic import ValidationError

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import file_lock, translate_os_errors
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.machine.model import GpuMeter, GpuReading, PcieRate
from assay.monitor.options import format_of
from assay.monitor.samples import (
    RECORDING_LINE,
    GpuLost,
    GpuMeterSample,
    GpuPcie,
    GpuProcesses,
    GpuSample,
    Heartbeat,
    HostSample,
    Mark,
    RecordingEnd,
    RecordingHeader,
    WatchedGpu,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from assay.monitor.samples import RecordingLine

Row: TypeAlias = dict[str, Any]

_TIME_COLUMNS = (
    "t_ns",
    "wall_time",
    "tick",
    "interval_s",
    "host_every",
    "origin",
    "mark",
    "mark_start_ns",
    "mark_end_ns",
    "end",
)
_READINGS = tuple(GpuReading.model_fields)
_EXTRA_COLUMNS: dict[type[GpuMeterSample | GpuProcesses | GpuPcie | GpuLost], dict[str, str]] = {
    GpuMeterSample: {"meter_t_ns": "t_ns", "meter_tick": "tick", **{name: name for name in GpuMeter.model_fields}},
    GpuProcesses: {"process_count": "count", "process_memory_mib": "memory_mib"},
    GpuPcie: {f"pcie_{name}": name for name in PcieRate.model_fields},
    GpuLost: {"ended": "reason"},
}
"""The columns of a GPU beside its samples, by kind of line: column name and field name."""

_GPU_COLUMNS = ("uuid", *_READINGS, *(column for names in _EXTRA_COLUMNS.values() for column in names))
_SEPARATOR = "; "
_NOT_THROTTLED = "none"
_GPU_COLUMN = re.compile(r"gpu(\d+)_(\w+)")
_HOST_COLUMN = re.compile(r"host_(\w+?)(?:\[([^\]]+)\])?")


def column_names(header: RecordingHeader, host: HostSample | None) -> tuple[str, ...]:
    """Return the columns of a recording; ``host`` is a first sample of the host, null if it is not sampled."""
    gpus = [f"gpu{gpu.index}_{name}" for gpu in header.gpus for name in _GPU_COLUMNS]
    return (*_TIME_COLUMNS, *gpus, *([] if host is None else [name for name, _ in _host_cells(host)]))


def _host_cells(host: HostSample) -> Iterator[tuple[str, Any]]:
    for name in HostSample.model_fields:
        value = getattr(host, name)
        if isinstance(value, dict):
            yield from ((f"host_{name}[{key}]", cell) for key, cell in value.items())
        elif name != "kind":
            yield f"host_{name}", value


def format_rows(header: RecordingHeader, lines: Sequence[RecordingLine], wall_offset_ns: int) -> Iterator[Row]:
    """Yield the rows for the lines of one tick: one with the samples, and one for each mark.

    The row's time is that of the samples; the background samples in it are older.
    """
    merged: Row = {}
    at_ns: int | None = None
    for line in lines:
        if isinstance(line, Mark):
            marked = {"mark": line.name, "mark_start_ns": line.start_ns, "mark_end_ns": line.end_ns}
            yield {**_common(header, line.t_ns, wall_offset_ns), **marked}
        elif isinstance(line, RecordingEnd):
            yield {**_common(header, line.t_ns, wall_offset_ns), "end": line.reason}
        elif cells := _cells(line):
            at_ns = line.t_ns if at_ns is None else at_ns
            merged.update(cells)
    if at_ns is not None:
        yield {**_common(header, at_ns, wall_offset_ns), **merged}


def _common(header: RecordingHeader, t_ns: int, wall_offset_ns: int) -> Row:
    wall = datetime.fromtimestamp((t_ns + wall_offset_ns) / 1e9, UTC)
    return {
        "t_ns": t_ns,
        "wall_time": wall.isoformat(timespec="milliseconds"),
        "interval_s": header.interval_s,
        "host_every": header.host_every,
        "origin": header.origin,
        **{f"gpu{gpu.index}_uuid": gpu.uuid for gpu in header.gpus},
    }


def _cells(line: RecordingLine) -> Row:
    if isinstance(line, HostSample):
        return dict(_host_cells(line))
    if isinstance(line, GpuSample):
        readings = {name: getattr(line, name) for name in _READINGS}
        if line.throttle is not None:
            readings["throttle"] = _SEPARATOR.join(line.throttle) or _NOT_THROTTLED
        return {"tick": line.tick, **{f"gpu{line.gpu}_{name}": value for name, value in readings.items()}}
    if isinstance(line, GpuMeterSample | GpuProcesses | GpuPcie | GpuLost):
        return {f"gpu{line.gpu}_{column}": getattr(line, name) for column, name in _EXTRA_COLUMNS[type(line)].items()}
    return {}


def parse_header(first: Row) -> RecordingHeader:
    """Return the header that the first row contains; a table has no GPU names."""
    gpus = [(int(match[1]), column) for column in first if (match := re.fullmatch(r"gpu(\d+)_uuid", column))]
    return RecordingHeader(
        t_ns=first["t_ns"],
        wall_ns=_wall_ns(first),
        interval_s=first["interval_s"],
        host_every=first["host_every"] or None,
        gpus=tuple(WatchedGpu(index=index, uuid=first[column]) for index, column in gpus),
        origin=first["origin"],
    )


def _wall_ns(row: Row) -> int:
    return round(datetime.fromisoformat(row["wall_time"]).timestamp() * 1e9)


def parse_row(row: Row) -> list[RecordingLine]:
    """Return the lines that a row was made of; empty cells were not measured."""
    if row["mark"]:
        end_ns = row["mark_end_ns"] or None
        return [Mark(t_ns=row["t_ns"], name=row["mark"], start_ns=row["mark_start_ns"], end_ns=end_ns)]
    if row["end"]:
        return [RecordingEnd(t_ns=row["t_ns"], wall_ns=_wall_ns(row), reason=row["end"])]
    gpus: dict[int, Row] = {}
    host: Row = {}
    for column, cell in row.items():
        if cell == "":
            continue
        if match := _GPU_COLUMN.fullmatch(column):
            gpus.setdefault(int(match[1]), {})[match[2]] = cell
        elif (match := _HOST_COLUMN.fullmatch(column)) and column not in _TIME_COLUMNS:
            _set_cell(host, match[1], match[2], cell)
    lines = [line for index, cells in gpus.items() for line in _gpu_lines(row, index, cells)]
    return [*lines, HostSample(**host)] if host else lines


def _set_cell(host: Row, name: str, key: str | None, cell: str) -> None:
    if key is None:
        host[name] = cell
    else:
        host.setdefault(name, {})[key] = cell


def _gpu_lines(row: Row, index: int, cells: Row) -> Iterator[RecordingLine]:
    reading: Row = {name: cells[name] for name in _READINGS if name in cells}
    if "throttle" in reading:
        reading["throttle"] = () if reading["throttle"] == _NOT_THROTTLED else reading["throttle"].split(_SEPARATOR)
    if reading:
        yield GpuSample(t_ns=row["t_ns"], tick=row["tick"], gpu=index, **reading)
    for kind, names in _EXTRA_COLUMNS.items():
        fields = {name: cells[column] for column, name in names.items() if column in cells}
        if fields:
            yield kind.model_validate({"t_ns": row["t_ns"], "gpu": index, **fields})


_FIRST_BYTES = (b'{"kind":"header"', b'[\n{"kind":"header"', b"t_ns,wall_time,")
"""The first bytes of the three formats."""


class LineFormatter(Protocol):
    """Formats lines as text."""

    def text(self, lines: Sequence[RecordingLine]) -> str:
        """Return the text of the lines of one tick."""


class JsonlFormatter:
    """One object per line."""

    def text(self, lines: Sequence[RecordingLine]) -> str:
        """Return the lines as JSON objects."""
        return "".join(f"{line.model_dump_json(exclude_none=True)}\n" for line in lines)


class JsonFormatter:
    """One array of all lines; it opens with the header and closes with the end."""

    def text(self, lines: Sequence[RecordingLine]) -> str:
        """Return the lines as elements of the array."""
        return "".join(map(self._element, lines))

    @staticmethod
    def _element(line: RecordingLine) -> str:
        opening = "[\n" if isinstance(line, RecordingHeader) else ""
        closing = "\n]\n" if isinstance(line, RecordingEnd) else ",\n"
        return f"{opening}{line.model_dump_json(exclude_none=True)}{closing}"


class CsvFormatter:
    """One row per tick, in columns that the first sample of everything fixes."""

    def __init__(self, host: HostSample | None) -> None:
        self._host = host
        self._header: RecordingHeader | None = None
        self._columns: tuple[str, ...] = ()
        self._wall_offset_ns = 0

    def text(self, lines: Sequence[RecordingLine]) -> str:
        """Return rows; the header becomes the column names."""
        buffer = io.StringIO()
        for line in lines:
            if isinstance(line, RecordingHeader | Heartbeat | RecordingEnd):
                self._wall_offset_ns = line.wall_ns - line.t_ns
            if isinstance(line, RecordingHeader):
                self._header = line
                self._columns = column_names(line, self._host)
                csv.writer(buffer, lineterminator="\n").writerow(self._columns)
        if self._header is None:
            raise RuntimeError("a recording begins with its header")
        table = csv.DictWriter(buffer, self._columns, extrasaction="ignore", lineterminator="\n")
        table.writerows(format_rows(self._header, lines, self._wall_offset_ns))
        return buffer.getvalue()


def formatter_for(path: Path, host: HostSample | None) -> LineFormatter:
    """Return the formatter for a file's extension; ``host`` is a first sample of the host."""
    match format_of(path):
        case "jsonl":
            return JsonlFormatter()
        case "json":
            return JsonFormatter()
        case "csv":
            return CsvFormatter(host)


class RecordingFile:
    """An open recording, locked against other recorders."""

    def __init__(self, path: Path, writer: LineFormatter) -> None:
        self._path = path
        self._writer = writer
        self._waiting: list[str] = []
        with ExitStack() as stack, translate_os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, self._descriptor)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise BadInput(f"{path} is no plain file, and a recording needs one.")
            self._take_over(locked=stack.enter_context(file_lock(self._descriptor, wait=False)))
            self._held = stack.pop_all()

    def _take_over(self, *, locked: bool) -> None:
        """Empty the file, unless another recorder is writing it or it is not a recording."""
        if not locked:
            raise MachineCannot(f"{self._path} is being recorded into by another process at this moment.")
        start = os.pread(self._descriptor, max(map(len, _FIRST_BYTES)), 0)
        if start and not start.startswith(_FIRST_BYTES):
            raise BadInput(f"{self._path} exists and is not a recording; name another file.")
        os.ftruncate(self._descriptor, 0)

    def write(self, lines: Sequence[RecordingLine]) -> None:
        """Buffer the lines of one tick."""
        if lines:
            self._waiting.append(self._writer.text(lines))

    def flush(self) -> None:
        """Write the buffered lines to the file; if they do not fit, the last line is cut, and readers skip it.

        Raises:
            MachineCannot: The disk is full or gone.
        """
        data = memoryview("".join(self._waiting).encode())
        self._waiting.clear()
        with translate_os_errors(self._path):
            while data:
                data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Sync the file to disk and release it."""
        with self._held:
            self.flush()
            with translate_os_errors(self._path):
                os.fsync(self._descriptor)


ORDER_SLACK_NS = 5_000_000_000
"""How far lines may be out of order: slow samples are written once they are done."""

_TIME = re.compile(rb'"t_ns":(\d+)')
_HEADER = re.compile(rb'"kind":\s*"header"')
T = TypeVar("T")


def read_recording(path: Path, *, until: int | None = None) -> Iterator[RecordingLine]:
    """Yield every line of a recording, the header first; with ``until``, only those in the first ``until`` bytes.

    Raises:
        BadInput: The file cannot be read, or is not a recording.
    """
    with _open_recording(path) as file:
        lines = _recording_lines(path, file, until)
        yield _first_line(path, lines)
        yield from lines


def read_window(
    path: Path, start_ns: int, end_ns: int, *, margin_s: float = 0.0, until: int | None = None
) -> tuple[RecordingLine, ...]:
    """Return the header and the lines recorded between two moments, in ns of the host's monotonic clock.

    ``margin_s`` widens the window on both sides, to include the readings around it. With ``until``, only the first
    ``until`` bytes of the file are read.
    """
    low_ns, high_ns = start_ns - round(margin_s * 1e9), end_ns + round(margin_s * 1e9)
    lines = (
        read_recording(path, until=until)
        if format_of(path) == "csv"
        else _lines_from(path, low_ns - ORDER_SLACK_NS, until)
    )
    before_the_end = itertools.takewhile(lambda line: line.t_ns <= high_ns + ORDER_SLACK_NS, lines)
    return tuple(line for line in before_the_end if isinstance(line, RecordingHeader) or low_ns <= line.t_ns <= high_ns)


def read_header(path: Path) -> RecordingHeader:
    """Return the first line of a recording."""
    with _open_recording(path) as file:
        return _first_line(path, _recording_lines(path, file))


def _recording_lines(path: Path, file: BinaryIO, until: int | None = None) -> Iterator[RecordingLine]:
    return _csv_lines(path, file, until) if format_of(path) == "csv" else _json_lines(path, file, until)


def _whole_lines(file: BinaryIO, until: int | None) -> Iterator[bytes]:
    """Yield the complete lines from the current position, as far as they end within the first ``until`` bytes."""
    offset = file.tell()
    for text in file:
        offset += len(text)
        if not text.endswith(b"\n") or (until is not None and offset > until):
            return
        yield text


def _first_line(path: Path, lines: Iterator[RecordingLine]) -> RecordingHeader:
    first = next(lines, None)
    if isinstance(first, RecordingHeader):
        return first
    raise _no_recording(path)


def _no_recording(path: Path) -> BadInput:
    return BadInput(f"{path} is not a recording of `assay monitor`: it does not begin with its header.")


def _open_recording(path: Path) -> BinaryIO:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInput(f"{path} is no plain file, as a recording is.")
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _lines_from(path: Path, start_ns: int, until: int | None) -> Iterator[RecordingLine]:
    """Yield the header, then the lines from about a moment on."""
    yield read_header(path)
    with _open_recording(path) as file:
        file.seek(_offset_of(file, start_ns, until))
        yield from (line for line in _json_lines(path, file, until) if not isinstance(line, RecordingHeader))


def _offset_of(file: BinaryIO, start_ns: int, until: int | None) -> int:
    """Return the offset of a line that is not later than a moment, by bisection; the beginning if there is none."""
    low, end = 0, file.seek(0, os.SEEK_END)
    high = end if until is None else min(end, until)
    while high - low > 4096:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        begin = file.tell()
        match = _TIME.search(file.readline())
        if match is not None and int(match[1]) < start_ns and begin < high:
            low = begin
        else:
            high = middle
    return low


def _json_lines(path: Path, file: BinaryIO, until: int | None) -> Iterator[RecordingLine]:
    """Yield the lines from the current position; the elements of an array are on separate lines as well."""
    at_the_beginning = file.tell() == 0
    for text in _whole_lines(file, until):
        body = text.strip().rstrip(b",")
        if body and body not in {b"[", b"]"}:
            if at_the_beginning and not _HEADER.search(body):
                raise _no_recording(path)
            at_the_beginning = False
            yield _parse_line(partial(RECORDING_LINE.validate_json, body), path)


def _csv_lines(path: Path, file: BinaryIO, until: int | None) -> Iterator[RecordingLine]:
    table = csv.DictReader(text.decode(errors="replace") for text in _whole_lines(file, until))
    for number, row in enumerate(table):
        if number == 0:
            if not {"t_ns", "interval_s"} <= row.keys():
                raise _no_recording(path)
            yield _parse_line(partial(parse_header, row), path)
        yield from _parse_line(partial(parse_row, row), path)


def _parse_line(parse: Callable[[], T], path: Path) -> T:
    try:
        return parse()
    except ValidationError as error:
        problem = first_problem(error)
    except KeyError as error:
        problem = f"{error.args[0]} is missing"
    except (ValueError, TypeError) as error:
        problem = str(error)
    raise BadInput(f"{path} holds a line that `assay monitor` (schema {SCHEMA_VERSION}) does not write: {problem}.")
