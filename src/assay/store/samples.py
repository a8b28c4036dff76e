"""Sample files: within the run folder, as they were written, and what a measurement can give."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from assay.core.durable import read_bytes
from assay.core.errors import BadInput, DamagedFile
from assay.core.seals import digest_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.core.results import Series

NEVER_NEGATIVE = frozenset(
    {"call_us", "first_token_us", "gap_us", "tpot_us", "silence_us", "input_tokens", "output_tokens", "requests"}
)
"""Times by the host's clock, and counts; what the stamps themselves cost is taken off times on a GPU."""
MAY_BE_UNKNOWN = frozenset({"throttled"})
"""Not a number where it could not be read."""
_UNREADABLE = (ValueError, EOFError, OSError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError)


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a record names.

    Raises:
        BadInput: It leads out of the run folder, by its path or through a link.
    """
    try:
        path = folder / name
        held = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):
        held = False
    if not held:
        raise BadInput(f"{folder} names a file {name!r} that lies outside of it, and is not read.")
    return path


def to_bytes(samples: NDArray[np.float64]) -> bytes:
    """Return samples as they are stored."""
    buffer = io.BytesIO()
    np.save(buffer, samples, allow_pickle=False)
    return buffer.getvalue()


def verify(folder: Path, file: str, digest: str) -> None:
    """Make sure that a sample file is as it was written.

    Raises:
        DamagedFile: It is not, or is missing.
        BadInput: It lies elsewhere.
    """
    _verified(inside(folder, file), digest)


def load(folder: Path, series: Series, *, verified: bool = False) -> NDArray[np.float64]:
    """Return the samples of a series, in the order they were taken; ``verified``: their digest was looked at.

    Raises:
        DamagedFile: They are not as they were written, are missing, or no measurement gives them.
        BadInput: They are elsewhere.
    """
    path = inside(folder, series.file)
    data = read_bytes(path) if verified else _verified(path, series.digest)
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except _UNREADABLE as error:
        raise DamagedFile(f"The samples in {path} cannot be read: {str(error).rstrip('.')}.") from None
    problem = _problem(array, series)
    if problem is not None:
        raise DamagedFile(f"The samples in {path} cannot be used: {problem}.")
    return np.asarray(array, dtype=np.float64)


def _verified(path: Path, digest: str | None) -> bytes:
    if not path.exists():
        raise DamagedFile(f"{path} does not exist, but records.jsonl names it.")
    data = read_bytes(path)
    if digest is not None and digest_of(data) != digest:
        raise DamagedFile(f"{path} is damaged: its digest is not the one in records.jsonl.")
    return data


def _problem(found: NDArray[np.generic], series: Series) -> str | None:
    """Say what is wrong with an array as samples of a series; null: nothing."""
    if found.dtype != np.float64:
        return f"they are {found.dtype}, not float64"
    if found.ndim != 1:
        return f"they have {found.ndim} dimensions, not one"
    if len(found) != series.n:
        return f"they are {len(found)}, but the record has {series.n}"
    values = np.asarray(found, dtype=np.float64)
    if series.quantity not in MAY_BE_UNKNOWN and not bool(np.isfinite(values).all()):
        return "one is not a finite number"
    if series.quantity in NEVER_NEGATIVE and bool((values < 0).any()):
        return f"a {series.quantity} is negative"
    return None
