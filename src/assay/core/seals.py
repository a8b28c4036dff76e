"""Digests inside JSON: the last key of an object is the SHA-256 of the bytes before it.

    {"trial":"4f2a","status":"ok","digest":"sha256:…"}
     └───────── these bytes ──────┘

The stored bytes are verified; nothing is serialized again. The lines of one file are chained: each digest also covers
the digest of the line before it, so a line that was changed, lost, repeated or reordered is detected. This guards
against accidents such as damaged disks, truncated copies and edits by hand, not against deliberate forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import append_derived_line, read_bytes, read_json, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pydantic import JsonValue

DIGEST = "digest"
DIGEST_PATTERN = "sha256:[0-9a-f]{64}"
_SEAL = re.compile(rb'(?:,"digest":"|,\n  "digest": ")(%b)"(?:\}|\n\}\n?)\Z' % DIGEST_PATTERN.encode())
_CHANGED = "its digest does not match: it was changed after it was written"


class SealedJson(NamedTuple):
    """A JSON object without its digest, and that digest."""

    body: bytes
    digest: str


def compute_digest(data: bytes) -> str:
    """Return the digest of some bytes: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def seal_json(text: str, before: str = "") -> str:
    """Return a JSON object, on one line or indented, with its digest; ``before`` is the digest it is chained to."""
    content = text.rstrip().removesuffix("}").rstrip()
    if not content.startswith("{") or content == "{":
        raise ValueError("only a JSON object that has keys can be sealed")
    digest = _chained_digest(content.encode(), before)
    return f'{content},\n  "digest": "{digest}"\n}}' if "\n" in content else f'{content},"digest":"{digest}"}}'


def unseal_json(data: bytes, before: str = "") -> SealedJson | None:
    """Return the object in some bytes without its digest; null where it has none.

    Raises:
        DamagedFile: The digest belongs to other bytes, or to another position in the chain.
    """
    match = _SEAL.search(data)
    if match is None:
        return None
    content, digest = data[: match.start()], match[1].decode()
    if _chained_digest(content, before) != digest:
        raise DamagedFile(_CHANGED)
    return SealedJson(content + b"}", digest)


def _chained_digest(content: bytes, before: str) -> str:
    return compute_digest(before.encode() + b"\n" + content)


def write_sealed_json(path: Path, content: Mapping[str, JsonValue]) -> None:
    """Write a JSON object with its digest, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    replace_atomically(path, seal_json(text).encode() + b"\n")


def read_sealed_json(path: Path) -> bytes:
    """Return the JSON object in a file, verified and without its digest.

    Raises:
        DamagedFile: It was changed after it was written, or is not JSON.
        BadInput: It cannot be read, or was written without a digest.
    """
    try:
        sealed_object = unseal_json(read_bytes(path))
    except DamagedFile as error:
        raise DamagedFile(f"{path} is damaged: {error}.") from None
    if sealed_object is None:
        try:
            read_json(path)
        except BadInput as error:
            raise DamagedFile(str(error)) from None
        raise BadInput(f"{path} is not what this version of Assay writes: it has no digest.")
    return sealed_object.body


def seal_lines(texts: Iterable[str], start: str) -> list[str]:
    """Return JSON objects as chained lines; ``start`` is what the first line is chained to."""
    lines: list[str] = []
    before = start
    for text in texts:
        lines.append(seal_json(text, before))
        before = _last_digest(lines[-1].encode()) or before
    return lines


def append_sealed_line(path: Path, text: str, start: str) -> None:
    """Append a JSON object as a line chained to the last one; when this returns, it survives a crash.

    Raises:
        DamagedFile: The last line has no digest to continue from.
    """

    def following(last: bytes | None) -> str:
        before = start if last is None else _last_digest(last)
        if before is None:
            raise DamagedFile(f"{path} is damaged: its last line has no digest, so that none can be added.")
        return seal_json(text, before)

    append_derived_line(path, following)


def _last_digest(line: bytes) -> str | None:
    match = _SEAL.search(line)
    return None if match is None else match[1].decode()


def read_sealed_lines(path: Path, start: str) -> list[SealedJson]:
    """Return the complete lines of a file, verified; a truncated last line is skipped, a missing file is empty.

    Raises:
        DamagedFile: A line was changed, or one before it is missing, repeated or moved.
        BadInput: The file cannot be read, or a line has no digest.
    """
    if not path.is_symlink() and not path.exists():
        return []
    data = read_bytes(path)
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    objects: list[SealedJson] = []
    before = start
    for number, line in enumerate(lines, 1):
        try:
            sealed_object = unseal_json(line, before)
        except DamagedFile:
            raise DamagedFile(f"{path}, line {number} is damaged: it, or one before it, was changed or lost.") from None
        if sealed_object is None:
            raise DamagedFile(
                f"{path} holds a line that this version of Assay does not write: line {number} has no digest."
            )
        objects.append(sealed_object)
        before = sealed_object.digest
    return objects
