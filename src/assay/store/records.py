"""Records of a run as a sequence, with their sample files and monitor recordings, verified by digest; and the seal.

The recorder continues to write while records are appended, so a record stores the current length of the recording and
the digest of that many bytes. Each record extends the same hash: a recording is hashed once, however many records
it has, and is read no further than it was sealed.

``seal.json`` stores the state of a run when its findings were written, and the digests of the files that hold them. The
lines of ``blocks.jsonl`` and ``records.jsonl`` are chained, so only lines missing at the end could pass for a run that
was stopped; the seal stores how many there were. A resumed run has more lines than its seal, never fewer.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from pydantic import Field, ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import (
    DIGEST_PATTERN,
    SealedJson,
    compute_digest,
    read_bytes,
    read_sealed_json,
    translate_os_errors,
)
from assay.core.format import format_count
from assay.core.values import SCHEMA_VERSION, Value, first_problem
from assay.monitor.recording_file import read_recording, read_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.core.results import Record, Series
    from assay.monitor.samples import RecordingLine

SEAL_FILE = "seal.json"
MAX_DEPTH = 3
"""Maximum depth of the files in a run folder."""


class SealedLength(Value):
    """The number of lines of a file, and the digest of the last; null: it had none."""

    lines: int = Field(ge=0)
    digest: str | None = Field(default=None, pattern=DIGEST_PATTERN)


class Seal(Value):
    """The content of ``seal.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    run_id: str
    lines: dict[str, SealedLength] = Field(description="By file: blocks.jsonl, records.jsonl.")
    files: dict[str, str] = Field(description="Digests of the files that hold findings, by their paths.")


def read_seal(folder: Path) -> Seal | None:
    """Return the seal of a run folder; null: its findings were never written.

    Raises:
        DamagedFile: It is not as it was written.
    """
    path = folder / SEAL_FILE
    if not path.is_symlink() and not path.exists():
        return None
    try:
        return Seal.model_validate_json(read_sealed_json(path))
    except ValidationError as error:
        raise BadInput(f"{path} is not what this version of Assay writes: {first_problem(error)}.") from None


def verify_lines(path: Path, lines: Sequence[SealedJson], seal: Seal | None, run_id: str) -> None:
    """Verify that a file has all the lines that its run's seal covers.

    Raises:
        DamagedFile: Lines are missing, or the seal is that of another run.
    """
    if seal is None:
        return
    if seal.run_id != run_id:
        raise DamagedFile(f"{path.parent / SEAL_FILE} is damaged: it is that of another run.")
    before = seal.lines.get(path.name, SealedLength(lines=0))
    if before.lines > len(lines):
        left = format_count(len(lines), "line")
        raise DamagedFile(f"{path} is damaged: only {left} of {before.lines} are left.")
    if before.lines and lines[before.lines - 1].digest != before.digest:
        raise DamagedFile(f"{path}, line {before.lines} is damaged: it is not the one that {SEAL_FILE} speaks of.")


def verify_file(path: Path) -> None:
    """Verify that a file is as its run left it; files that no run sealed are skipped.

    Raises:
        DamagedFile: It is not.
    """
    parents = path.absolute().parents[:MAX_DEPTH]
    folder = next((parent for parent in parents if (parent / "plan.json").is_file()), None)
    seal = None if folder is None else read_seal(folder)
    if folder is None or seal is None:
        return
    digest = seal.files.get(path.absolute().relative_to(folder).as_posix())
    if digest is None:
        return
    if not path.exists():
        raise DamagedFile(f"{path} is missing; `assay report {folder}` writes it again.")
    if compute_digest(read_bytes(path)) != digest:
        raise DamagedFile(
            f"{path} is damaged: its digest is not the one in {SEAL_FILE}; `assay report {folder}` writes it again."
        )


NEVER_NEGATIVE = frozenset(
    {"call_us", "first_token_us", "gap_us", "tpot_us", "silence_us", "input_tokens", "output_tokens", "requests"}
)
"""Host-clock times and counts; GPU times may be negative, as the overhead of the timestamps is subtracted from them."""
MAY_BE_UNKNOWN = frozenset({"throttled"})
"""NaN where it could not be read."""
_READ_ERRORS = (ValueError, EOFError, OSError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError)


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a record names.

    Raises:
        BadInput: It leads out of the run folder, by its path or through a link.
    """
    try:
        path, root = folder / name, os.path.realpath(folder)
        inside = os.path.commonpath((root, os.path.realpath(path))) == root
    except (OSError, ValueError):
        inside = False
    if not inside:
        raise BadInput(f"{folder} names a file {name!r} that lies outside of it, and is not read.")
    return path


def samples_to_bytes(samples: NDArray[np.float64]) -> bytes:
    """Return samples in their storage format."""
    buffer = io.BytesIO()
    np.save(buffer, samples, allow_pickle=False)
    return buffer.getvalue()


def _read_verified(path: Path, digest: str | None) -> bytes:
    if not path.exists():
        raise DamagedFile(f"{path} does not exist, but records.jsonl names it.")
    data = read_bytes(path)
    if digest is not None and compute_digest(data) != digest:
        raise DamagedFile(f"{path} is damaged: its digest is not the one in records.jsonl.")
    return data


MAX_HELD_BYTES = 1 << 30
"""Maximum size of the sample files cached in memory, in bytes; beyond that, files are read again."""


class SampleFiles:
    """The sample files of a run folder; each is opened and verified once, and cached in memory from then on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: set[str] = set()
        self._held: dict[str, bytes | NDArray[np.generic]] = {}
        self._held_bytes = 0
        self._usable: set[tuple[str, int, str]] = set()

    def hold(self, file: str, data: bytes) -> bytes:
        """Cache a file that was just written, or read and verified."""
        self._verified.add(file)
        if file not in self._held and self._held_bytes + len(data) <= MAX_HELD_BYTES:
            self._held[file] = data
            self._held_bytes += len(data)
        return data

    def verify(self, file: str, digest: str | None) -> None:
        """Verify, once, that a file is as it was written; null: it has no digest, and only has to exist.

        Raises:
            DamagedFile: It is not, or is missing.
            BadInput: It is outside the run folder.
        """
        if file not in self._verified:
            self.hold(file, _read_verified(path_inside(self._folder, file), digest))

    def load(self, series: Series) -> NDArray[np.float64]:
        """Return the samples of a series, read-only, in the order they were taken.

        Raises:
            DamagedFile: They are not as they were written, are missing, or cannot be the result of a measurement.
            BadInput: They are outside the run folder.
        """
        held, checked = self._held.get(series.file), (series.file, series.n, series.quantity)
        if isinstance(held, np.ndarray) and checked in self._usable:
            return np.asarray(held, dtype=np.float64)
        path = self._folder / series.file
        if held is None:
            path = path_inside(self._folder, series.file)
            verified = series.file in self._verified
            held = self.hold(series.file, _read_verified(path, None if verified else series.digest))
        if isinstance(held, bytes):
            held = _parse_samples(path, held)
            if series.file in self._held:
                self._held[series.file] = held
        problem = _sample_problem(held, series)
        if problem is not None:
            raise DamagedFile(f"The samples in {path} cannot be used: {problem}.")
        self._usable.add(checked)
        return np.asarray(held, dtype=np.float64)


def _parse_samples(path: Path, data: bytes) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except _READ_ERRORS as error:
        raise DamagedFile(f"The samples in {path} cannot be read: {str(error).rstrip('.')}.") from None
    array.flags.writeable = False
    return array


def _sample_problem(array: NDArray[np.generic], series: Series) -> str | None:
    """Return what is wrong with an array as samples of a series; null: nothing."""
    if array.dtype != np.float64:
        return f"they are {array.dtype}, not float64"
    if array.ndim != 1:
        return f"they have {array.ndim} dimensions, not one"
    if len(array) != series.n:
        return f"they are {len(array)}, but the record has {series.n}"
    values = np.asarray(array, dtype=np.float64)
    if series.quantity not in MAY_BE_UNKNOWN and not bool(np.isfinite(values).all()):
        return "one is not a finite number"
    if series.quantity in NEVER_NEGATIVE and bool((values < 0).any()):
        return f"a {series.quantity} is negative"
    return None


_PART_BYTES = 1 << 20


@dataclass
class GrowingRecording:
    """A recording that is still being written, hashed as far as it was read."""

    length: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def update(self, path: Path) -> tuple[int, str]:
        """Hash what was appended, up to the last whole line, and sync it to disk; return length and digest."""
        with translate_os_errors(path), path.open("rb") as file:
            file.seek(self.length)
            added = file.read()
            os.fsync(file.fileno())
        added = added[: added.rfind(b"\n") + 1]
        self.hash.update(added)
        self.length += len(added)
        return self.length, f"sha256:{self.hash.hexdigest()}"


def sealed_lengths(records: Iterable[Record]) -> dict[str, int]:
    """Return the sealed length of each recording, in bytes, by its name."""
    lengths: dict[str, int] = {}
    for record in records:
        if record.sensors is not None and record.sensors_bytes is not None:
            lengths[record.sensors] = max(record.sensors_bytes, lengths.get(record.sensors, 0))
    return lengths


def verify_recordings(folder: Path, records: Iterable[Record]) -> None:
    """Verify that recordings are as they were when their records were written.

    Raises:
        DamagedFile: One is not, or is missing.
        BadInput: One is outside the run folder.
    """
    digests_by_name: dict[str, dict[int, str]] = {}
    for record in records:
        if record.sensors is not None and record.sensors_bytes is not None and record.sensors_digest is not None:
            digests_by_name.setdefault(record.sensors, {})[record.sensors_bytes] = record.sensors_digest
    for name, digests in digests_by_name.items():
        _verify_recording(path_inside(folder, name), digests)


def _verify_recording(path: Path, digests: dict[int, str]) -> None:
    """Hash a file once, comparing its digest at each known length."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DamagedFile(f"{path} does not exist, but records.jsonl names it.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    read, running_hash = 0, hashlib.sha256()
    with file:
        for length in sorted(digests):
            while read < length and (part := file.read(min(_PART_BYTES, length - read))):
                running_hash.update(part)
                read += len(part)
            if read < length or f"sha256:{running_hash.hexdigest()}" != digests[length]:
                raise DamagedFile(
                    f"{path} is damaged: its first {length:,} bytes are not those that records.jsonl has."
                )


class Records(Sequence["Record"]):
    """Records of one run in the order they were taken; samples are read from their files on request.

    ``files`` are shared by all records of a run folder, so that each file is opened once. ``sealed`` is how far
    recordings are read, in bytes by name; those that it does not contain are read whole.
    """

    def __init__(
        self,
        records: Sequence[Record],
        folder: Path,
        files: SampleFiles | None = None,
        sealed: Mapping[str, int] | None = None,
    ) -> None:
        self._records = tuple(records)
        self._folder = folder
        self._files = files or SampleFiles(folder)
        self._sealed = sealed_lengths(records) if sealed is None else sealed

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return Records(self._records[index], self._folder, self._files, self._sealed)
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def run(self) -> str:
        """The name of the run folder."""
        return self._folder.name

    def samples(self, series: Series) -> NDArray[np.float64]:
        """Return every sample of a series, read-only, in the order it was taken.

        Raises:
            DamagedFile: They are not as they were written.
            BadInput: They are missing, or lie outside the run folder.
        """
        return self._files.load(series)

    def watched(self) -> Iterator[RecordingLine]:
        """Yield the monitor's lines of the run, one file after another; a missing file yields nothing."""
        for name in dict.fromkeys(record.sensors for record in self._records if record.sensors is not None):
            path = path_inside(self._folder, name)
            if path.is_file():
                yield from read_recording(path, until=self._sealed.get(name))

    def watched_between(
        self, record: Record, start_ns: int, end_ns: int, *, margin_s: float = 0.0
    ) -> tuple[RecordingLine, ...]:
        """Return the monitor's lines of a record between two moments, in ns; empty if nothing was recorded."""
        path = None if record.sensors is None else path_inside(self._folder, record.sensors)
        if record.sensors is None or path is None or not path.is_file():
            return ()
        return read_window(path, start_ns, end_ns, margin_s=margin_s, until=self._sealed.get(record.sensors))
