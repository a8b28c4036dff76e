"""Read a recording back: whole, line by line, or only a window of it.

A truncated file is read up to its last complete line. Lines are in time order to within a second or so, so that a
window is found in a file of any size by bisection.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.monitor.options import format_of
from assay.monitor.samples import RECORDING_LINE, RecordingHeader
from assay.monitor.writers import parse_header, parse_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from assay.monitor.samples import RecordingLine

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
