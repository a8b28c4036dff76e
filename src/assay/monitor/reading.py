"""A recording, read back: whole, line by line, or only a window of it.

A file that was cut off is read to its last whole line. Lines follow each other in time to within a second or so, so
that a window is found in a file of any size by halving.
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
from assay.monitor.columns import header_of, lines_of
from assay.monitor.lines import LINE, Header
from assay.monitor.options import form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from assay.monitor.lines import Line

SLACK_NS = 5_000_000_000
"""How far lines may be out of order: slow looks are written once they are done."""

_TIME = re.compile(rb'"t_ns":(\d+)')
_HEADER = re.compile(rb'"kind":\s*"header"')
T = TypeVar("T")


def read(path: Path, *, until: int | None = None) -> Iterator[Line]:
    """Give every line of a recording, the header first; with ``until``, those in its first so many bytes.

    Raises:
        BadInput: The file cannot be read, or is not a recording.
    """
    with _opened(path) as file:
        lines = _lines(path, file, until)
        yield _first(path, lines)
        yield from lines


def read_window(
    path: Path, start_ns: int, end_ns: int, *, margin_s: float = 0.0, until: int | None = None
) -> tuple[Line, ...]:
    """Return the header and what was recorded from one moment to another, both in ns of the host's monotonic clock.

    ``margin_s`` widens the window on both sides, for who needs the readings around it too. With ``until``, only what is
    in the first so many bytes of the file is read.
    """
    low_ns, high_ns = start_ns - round(margin_s * 1e9), end_ns + round(margin_s * 1e9)
    lines = read(path, until=until) if form_of(path) == "csv" else _from(path, low_ns - SLACK_NS, until)
    before_the_end = itertools.takewhile(lambda line: line.t_ns <= high_ns + SLACK_NS, lines)
    return tuple(line for line in before_the_end if isinstance(line, Header) or low_ns <= line.t_ns <= high_ns)


def header(path: Path) -> Header:
    """Return the first line of a recording."""
    with _opened(path) as file:
        return _first(path, _lines(path, file))


def _lines(path: Path, file: BinaryIO, until: int | None = None) -> Iterator[Line]:
    return _csv_lines(path, file, until) if form_of(path) == "csv" else _json_lines(path, file, until)


def _texts(file: BinaryIO, until: int | None) -> Iterator[bytes]:
    """Give the whole lines from where a file stands, as far as they are within so many bytes of it."""
    at = file.tell()
    for text in file:
        at += len(text)
        if not text.endswith(b"\n") or (until is not None and at > until):
            return
        yield text


def _first(path: Path, lines: Iterator[Line]) -> Header:
    first = next(lines, None)
    if isinstance(first, Header):
        return first
    raise _no_recording(path)


def _no_recording(path: Path) -> BadInput:
    return BadInput(f"{path} is not a recording of `assay monitor`: it does not begin with its header.")


def _opened(path: Path) -> BinaryIO:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInput(f"{path} is no plain file, as a recording is.")
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _from(path: Path, start_ns: int, until: int | None) -> Iterator[Line]:
    """Give the header, then the lines from about a moment on."""
    yield header(path)
    with _opened(path) as file:
        file.seek(_offset_of(file, start_ns, until))
        yield from (line for line in _json_lines(path, file, until) if not isinstance(line, Header))


def _offset_of(file: BinaryIO, start_ns: int, until: int | None) -> int:
    """Return where a line begins that is not later than a moment, by halving; the beginning if there is none."""
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


def _json_lines(path: Path, file: BinaryIO, until: int | None) -> Iterator[Line]:
    """Give the lines from where the file stands; in an array each stands on a line of its own as well."""
    at_the_beginning = file.tell() == 0
    for text in _texts(file, until):
        body = text.strip().rstrip(b",")
        if body and body not in {b"[", b"]"}:
            if at_the_beginning and not _HEADER.search(body):
                raise _no_recording(path)
            at_the_beginning = False
            yield _valid(partial(LINE.validate_json, body), path)


def _csv_lines(path: Path, file: BinaryIO, until: int | None) -> Iterator[Line]:
    table = csv.DictReader(text.decode(errors="replace") for text in _texts(file, until))
    for number, row in enumerate(table):
        if number == 0:
            if not {"t_ns", "interval_s"} <= row.keys():
                raise _no_recording(path)
            yield _valid(partial(header_of, row), path)
        yield from _valid(partial(lines_of, row), path)


def _valid(parse: Callable[[], T], path: Path) -> T:
    try:
        return parse()
    except ValidationError as error:
        problem = first_problem(error)
    except KeyError as error:
        problem = f"{error.args[0]} is missing"
    except (ValueError, TypeError) as error:
        problem = str(error)
    raise BadInput(f"{path} holds a line that `assay monitor` (schema {SCHEMA_VERSION}) does not write: {problem}.")
