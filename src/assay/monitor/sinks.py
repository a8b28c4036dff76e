"""Where the recorder puts its lines: a file in one of three forms, written on at least once a second.

    .jsonl   a line an object
    .json    the same objects in one array, still one a line: a file that was cut off can be read line by line
    .csv     a row a tick

What is in the kernel's hands survives the death of the recorder, so a flush is a write and not a wait for the disk,
which would cost ticks; the disk is waited for once, at the end.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from assay.core.durable import friendly_os_errors, locked
from assay.core.errors import BadInput, MachineCannot
from assay.monitor.columns import columns, rows
from assay.monitor.lines import Beat, End, Header, HostSample
from assay.monitor.options import form_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.monitor.lines import Line

_FIRST_WORDS = (b'{"kind":"header"', b'[\n{"kind":"header"', b"t_ns,wall_time,")
"""How the three forms begin."""


class Writer(Protocol):
    """Turns lines into the text of a form."""

    def text(self, lines: Sequence[Line]) -> str:
        """Return the text of the lines of one tick."""


class JsonlWriter:
    """A line an object."""

    def text(self, lines: Sequence[Line]) -> str:
        """Return the lines as they are."""
        return "".join(f"{line.model_dump_json(exclude_none=True)}\n" for line in lines)


class JsonWriter:
    """One array of all; it opens with the header and closes with the end."""

    def text(self, lines: Sequence[Line]) -> str:
        """Return the lines as elements of the array."""
        return "".join(map(self._element, lines))

    @staticmethod
    def _element(line: Line) -> str:
        opening = "[\n" if isinstance(line, Header) else ""
        closing = "\n]\n" if isinstance(line, End) else ",\n"
        return f"{opening}{line.model_dump_json(exclude_none=True)}{closing}"


class CsvWriter:
    """A row a tick, in columns that the first look at everything fixes."""

    def __init__(self, host: HostSample | None) -> None:
        self._host = host
        self._header: Header | None = None
        self._columns: tuple[str, ...] = ()
        self._wall_offset_ns = 0

    def text(self, lines: Sequence[Line]) -> str:
        """Return rows; the header becomes the names of the columns."""
        buffer = io.StringIO()
        for line in lines:
            if isinstance(line, Header | Beat | End):
                self._wall_offset_ns = line.wall_ns - line.t_ns
            if isinstance(line, Header):
                self._header = line
                self._columns = columns(line, self._host)
                csv.writer(buffer, lineterminator="\n").writerow(self._columns)
        if self._header is None:
            raise RuntimeError("a recording begins with its header")
        table = csv.DictWriter(buffer, self._columns, extrasaction="ignore", lineterminator="\n")
        table.writerows(rows(self._header, lines, self._wall_offset_ns))
        return buffer.getvalue()


def writer_for(path: Path, host: HostSample | None) -> Writer:
    """Return what writes the form that a file's ending stands for; ``host`` is a first look at the host."""
    match form_of(path):
        case "jsonl":
            return JsonlWriter()
        case "json":
            return JsonWriter()
        case "csv":
            return CsvWriter(host)


class FileSink:
    """An open recording. Nobody else records into it meanwhile."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self._path = path
        self._writer = writer
        self._waiting: list[str] = []
        with ExitStack() as held, friendly_os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            held.callback(os.close, self._descriptor)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise BadInput(f"{path} is no plain file, and a recording needs one.")
            self._take_over(mine=held.enter_context(locked(self._descriptor, wait=False)))
            self._held = held.pop_all()

    def _take_over(self, *, mine: bool) -> None:
        """Empty the file, unless another recorder writes it or it holds something else than a recording."""
        if not mine:
            raise MachineCannot(f"{self._path} is being recorded into by another process at this moment.")
        start = os.pread(self._descriptor, max(map(len, _FIRST_WORDS)), 0)
        if start and not start.startswith(_FIRST_WORDS):
            raise BadInput(f"{self._path} exists and is not a recording; name another file.")
        os.ftruncate(self._descriptor, 0)

    def write(self, lines: Sequence[Line]) -> None:
        """Take the lines of one tick."""
        if lines:
            self._waiting.append(self._writer.text(lines))

    def flush(self) -> None:
        """Put what was taken into the file; where it does not fit, the last line is cut, and readers leave it out.

        Raises:
            MachineCannot: The disk is full or gone.
        """
        data = memoryview("".join(self._waiting).encode())
        self._waiting.clear()
        with friendly_os_errors(self._path):
            while data:
                data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Put everything onto the disk and let go of the file."""
        with self._held:
            self.flush()
            with friendly_os_errors(self._path):
                os.fsync(self._descriptor)
