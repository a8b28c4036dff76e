"""``seal.json``: the state of a run when its findings were written, and the digests of the files that hold them.

The lines of ``blocks.jsonl`` and ``records.jsonl`` are chained, so only lines missing at the end could pass for a run
that was stopped; the seal stores how many there were. A resumed run has more lines than its seal, never fewer.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import DIGEST_PATTERN, SealedJson, compute_digest, read_bytes, read_sealed_json, write_sealed_json
from assay.core.values import SCHEMA_VERSION, Value, first_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

SEAL_FILE = "seal.json"
PLAN = "plan.json"
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


def sealed_length(lines: Sequence[SealedJson]) -> SealedLength:
    """Return the current length of a file."""
    return SealedLength(lines=len(lines), digest=lines[-1].digest if lines else None)


def write_seal(folder: Path, seal: Seal) -> None:
    """Write the seal of a run folder."""
    write_sealed_json(folder / SEAL_FILE, seal.as_json())


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
        count = f"{len(lines)} line{'' if len(lines) == 1 else 's'} of {before.lines}"
        raise DamagedFile(f"{path} is damaged: only {count} are left.")
    if before.lines and lines[before.lines - 1].digest != before.digest:
        raise DamagedFile(f"{path}, line {before.lines} is damaged: it is not the one that {SEAL_FILE} speaks of.")


def verify_file(path: Path) -> None:
    """Verify that a file is as its run left it; files that no run sealed are skipped.

    Raises:
        DamagedFile: It is not.
    """
    folder = _run_folder_of(path)
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


def _run_folder_of(path: Path) -> Path | None:
    """Return the run folder that contains a file; null where it is in none."""
    parents = path.absolute().parents[:MAX_DEPTH]
    return next((folder for folder in parents if (folder / PLAN).is_file()), None)


class DigestedParts:
    """An iterable of a file's parts that computes their digest as they pass."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self._hash.update(part)
            yield part

    @property
    def digest(self) -> str:
        """The digest of the parts that have passed so far."""
        return f"sha256:{self._hash.hexdigest()}"
