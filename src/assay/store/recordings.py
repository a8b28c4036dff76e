"""What the monitor wrote beside a run: sealed as far as it had come when each record was kept, and read no further.

The recorder goes on writing while records are kept, so a record has the length of the recording at its moment and the
digest of so many bytes. Each record adds to the same hash: a recording is hashed once, however many records it has.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.durable import friendly_os_errors
from assay.core.errors import BadInput, DamagedFile
from assay.store.samples import inside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from assay.core.results import Record

_PART_BYTES = 1 << 20


@dataclass
class Growing:
    """A recording that is written to, hashed as far as it was read."""

    length: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def go_on(self, path: Path) -> tuple[int, str]:
        """Hash what was added, up to the last whole line, and put it onto the disk; return its length and digest."""
        with friendly_os_errors(path), path.open("rb") as file:
            file.seek(self.length)
            added = file.read()
            os.fsync(file.fileno())
        added = added[: added.rfind(b"\n") + 1]
        self.hash.update(added)
        self.length += len(added)
        return self.length, f"sha256:{self.hash.hexdigest()}"


def lengths(records: Iterable[Record]) -> dict[str, int]:
    """Return how far each recording is sealed, in bytes, by its name."""
    lengths: dict[str, int] = {}
    for record in records:
        if record.sensors is not None and record.sensors_bytes is not None:
            lengths[record.sensors] = max(record.sensors_bytes, lengths.get(record.sensors, 0))
    return lengths


def verify(folder: Path, records: Iterable[Record]) -> None:
    """Make sure that recordings are as they were when their records were kept.

    Raises:
        DamagedFile: One is not, or is missing.
        BadInput: One is elsewhere.
    """
    digests_by_name: dict[str, dict[int, str]] = {}
    for record in records:
        if record.sensors is not None and record.sensors_bytes is not None and record.sensors_digest is not None:
            digests_by_name.setdefault(record.sensors, {})[record.sensors_bytes] = record.sensors_digest
    for name, digests in digests_by_name.items():
        _verify(inside(folder, name), digests)


def _verify(path: Path, digests: dict[int, str]) -> None:
    """Hash a file once, looking at its digest at each length that is known."""
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
