"""Durable files: appended and replaced so that a kill at any moment loses only what was in flight; Assay's data folder.

A line counts once its newline is on disk. The newline is part of the single write that appends the line, so readers
skip a last line without one, and the next append cuts it off. A file that several processes update is locked, and
replaced as a whole; whoever waited for the replaced file locks the new one.

Sealed JSON ends with a digest, the SHA-256 of the bytes before it:

    {"trial":"4f2a","status":"ok","digest":"sha256:…"}
     └───────── these bytes ──────┘

The stored bytes are verified; nothing is serialized again. The lines of one file are chained: each digest also covers
the digest of the line before it, so a line that was changed, lost, repeated or reordered is detected. This guards
against accidents such as damaged disks, truncated copies and edits by hand, not against deliberate forgery.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import select
import stat
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import AssayError, BadInput, DamagedFile, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from io import FileIO

    from pydantic import JsonValue


_CHUNK_BYTES = 4096
_POLL_S = 0.05
PIPE_TIMEOUT_S = 10.0
"""How long to wait for the other end of a named pipe to be opened."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Read limit for files without a size, such as pipes and devices: ``/dev/zero`` never ends."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_MACHINE_ERRORS = {
    errno.ENOSPC: "The disk is full: {path} could not be written; free some space or choose another folder.",
    errno.EDQUOT: "Your disk quota is used up: {path} could not be written; free some space or choose another folder.",
    errno.EACCES: "{path} is not writable: permission denied.",
    errno.EPERM: "{path} is not writable: operation not permitted.",
    errno.EROFS: "{path} is not writable: its file system is read-only.",
    errno.EFBIG: "{path} could not be written: it would exceed the file size limit.",
    errno.EIO: "{path} could not be used: its disk reports an input/output error.",
    errno.ESTALE: "{path} could not be used: its network file system lost it.",
    errno.EMFILE: "{path} could not be opened: this process has too many open files.",
    errno.ENFILE: "{path} could not be opened: this machine has too many open files.",
}
_INPUT_ERRORS = {
    errno.EISDIR: "{path} is a folder, but a file is needed there.",
    errno.ENOENT: "{path} could not be used: a folder on the way to it does not exist.",
    errno.ENAMETOOLONG: "{path} could not be used: its name is too long.",
    errno.ELOOP: "{path} could not be used: its symbolic links lead in a circle.",
    errno.EINVAL: "{path} is not a usable file name.",
}
SURROGATE_PROBLEM = "it holds half of a surrogate pair, which is no character"
_EXTERNAL_ERRNOS = {*_MACHINE_ERRORS, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors caused by the machine or by a path that the user gave, wherever they occur."""


@contextlib.contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Turn an operating system error while ``path`` is written into one sentence naming it.

    Raises:
        MachineCannot: The disk is full, or the path is not writable.
        BadInput: A file is where a folder is needed, or the path is invalid for another reason.
    """
    try:
        yield
    except OSError as error:
        if (friendly := _explain_os_error(error, path)) is None:
            raise
        raise friendly from error


def explain_os_error(error: OSError) -> AssayError | None:
    """Return the message for an unexpected error; null where it may be a bug of ours."""
    if error.errno not in _EXTERNAL_ERRNOS or not isinstance(error.filename, str):
        return None
    return _explain_os_error(error, Path(error.filename))


def check_path(path: Path) -> None:
    """Reject a path that no file can have, before anything is done with it.

    Raises:
        BadInput: A name in it is too long, its symbolic links lead in a circle, or it holds a NUL character.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
            raise BadInput(_INPUT_ERRORS[error.errno].format(path=path)) from None
    except ValueError:
        raise BadInput(f"{str(path)!r} is not a usable file name.") from None


def _explain_os_error(error: OSError, path: Path) -> AssayError | None:
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        obstacles = (part for part in (path, *path.parents) if os.path.lexists(part) and not part.is_dir())
        obstacle = next(obstacles, None)
        if obstacle is None:
            return BadInput(f"{path} already exists.")
        return BadInput(f"{obstacle} is a file, but a folder is needed there.")
    if error.errno in _MACHINE_ERRORS:
        return MachineCannot(_MACHINE_ERRORS[error.errno].format(path=path))
    if error.errno in _INPUT_ERRORS:
        return BadInput(_INPUT_ERRORS[error.errno].format(path=path))
    return None


@contextlib.contextmanager
def file_lock(descriptor: int, *, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on an open file; yield False if ``wait`` is off and another process holds it.

    The kernel drops the lock of a process that dies. A few network file systems do not support locks: there the file
    is used without one, which is safe as long as one process at a time writes it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        yield True
        return
    try:
        yield True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def append_line(path: Path, text: str) -> None:
    """Append one line and sync it to disk; when this returns, the line survives a crash.

    A truncated last line, left by a writer that was killed, is cut off first. If the line cannot be written whole,
    the file is left as it was. Several processes may append to the same file.
    """
    if "\n" in text:
        raise ValueError("a line has no newline inside")
    _append_derived_line(path, lambda _last: text)


def _append_derived_line(path: Path, derive: Callable[[bytes | None], str]) -> None:
    """Do the same with a line that depends on the last one; null: there is none yet."""
    with translate_os_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with file_lock(descriptor):
                end = _end_of_complete_lines(descriptor, os.fstat(descriptor).st_size)
                start = _end_of_complete_lines(descriptor, end - 1)
                last = os.pread(descriptor, end - 1 - start, start) if end else None
                line = f"{derive(last)}\n".encode()
                if end < os.fstat(descriptor).st_size:
                    os.ftruncate(descriptor, end)
                try:
                    _write_all(descriptor, line)
                    os.fsync(descriptor)
                except BaseException:  # the disk may fill up halfway
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, end)
                    raise
            if end == 0:
                _sync_folder(path.parent)
        finally:
            os.close(descriptor)


def _end_of_complete_lines(descriptor: int, stop: int) -> int:
    """Return the offset just after the last newline before ``stop``, 0 if there is none."""
    while stop > 0:
        start = max(0, stop - _CHUNK_BYTES)
        newline = os.pread(descriptor, stop - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        stop = start
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def replace_atomically(path: Path, data: bytes, *, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Write ``data`` to ``path`` so that every reader, even after a crash, sees either the old or the new content.

    ``mode`` is the new file's permission before the umask. The new file gets the permissions and, as far as that is
    allowed, the owner of ``like``.
    """
    replace_from_chunks(path, (data,), mode=mode, like=like)


def replace_from_chunks(
    path: Path, parts: Iterable[bytes], *, mode: int = 0o666, like: os.stat_result | None = None
) -> None:
    """Do the same with content of any length, of which one part is held in memory at a time.

    A link keeps pointing to its target; what is not a regular file, such as a pipe or a device, is written to directly.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        _write_through(path, parts)
        return
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    with translate_os_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                for part in parts:
                    _write_all(descriptor, part)
                if like is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, like.st_uid, like.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)


def _write_through(path: Path, parts: Iterable[bytes]) -> None:
    with translate_os_errors(path):
        descriptor = _open_to_write_through(path)
        try:
            os.set_blocking(descriptor, True)
            for part in parts:
                _write_all(descriptor, part)
        finally:
            os.close(descriptor)


def _open_to_write_through(path: Path) -> int:
    """Open what is not a regular file; wait for a pipe to have a reader, but not forever."""
    until = time.monotonic() + PIPE_TIMEOUT_S
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() >= until:
            raise BadInput(f"{path} is a pipe or socket that nobody reads; start its reader first.")
        time.sleep(_POLL_S)


def remove_file(path: Path) -> None:
    """Remove a file durably; a missing file is not an error."""
    with translate_os_errors(path):
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; they write names through.
        if error.errno not in {errno.EINVAL, *_NO_LOCKS}:
            raise
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[str]:
    """Return the complete lines without newlines; a truncated last line is skipped, a missing file is empty."""
    if not os.path.lexists(path):
        return []
    data = read_bytes(path)
    return decode_text(data[: data.rfind(b"\n") + 1], path).split("\n")[:-1]


def read_json(path: Path) -> JsonValue:
    """Return the content of a JSON file.

    Raises:
        BadInput: It cannot be read or is not JSON; the message names the file, the line and the column.
    """
    text = decode_text(read_bytes(path), path)
    try:
        content: JsonValue = json.loads(text)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # rejects half of a surrogate pair
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.") from error
    except UnicodeEncodeError as error:
        raise BadInput(f"{path} is not usable JSON: {SURROGATE_PROBLEM}.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not usable JSON: {error}.") from error
    return content


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file unchanged: line ends and a byte order mark are kept.

    Raises:
        BadInput: It cannot be read or is not UTF-8; the message names the file, the line and the column.
    """
    return decode_text(read_bytes(path), path, "utf-8")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or everything that comes out of a pipe or device.

    Raises:
        BadInput: It cannot be read, or it is a pipe that nobody writes to; the message names the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            return file.read() if stat.S_ISREG(mode) else _read_stream(file, path, pipe=stat.S_ISFIFO(mode))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist.") from error
    except IsADirectoryError as error:
        raise BadInput(f"{path} is a folder, but a file is needed.") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(f"{path} cannot be read: {why}.") from error


def _read_stream(file: FileIO, path: Path, *, pipe: bool) -> bytes:
    """Read a stream without a size to its end; wait for a pipe that nobody has opened for writing, but not forever."""
    until = time.monotonic() + PIPE_TIMEOUT_S
    data = bytearray()
    while len(data) <= MAX_STREAM_BYTES:
        part = file.read(1 << 16)
        if part is None:  # a writer is connected but has not written yet
            select.select([file], [], [])
        elif part:
            data += part
        elif data or not pipe:
            return bytes(data)
        elif time.monotonic() >= until:
            raise BadInput(f"{path} is a pipe that nobody writes to.")
        else:
            time.sleep(_POLL_S)
    raise BadInput(f"{path} gives more than {MAX_STREAM_BYTES >> 20} MiB; a plain file is needed.")


def decode_text(data: bytes, path: Path, encoding: str = "utf-8-sig") -> str:
    """Return the text of bytes read from a file.

    Raises:
        BadInput: It is not UTF-8; the message names the file, the line and the column.
    """
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise BadInput(f"{path}, line {line}, column {column}: not UTF-8 text.") from error


def update_file(path: Path, change: Callable[[bytes], bytes], *, timeout_s: float = 30.0) -> None:
    """Replace a file's content with what ``change`` returns for it; a missing file counts as empty.

    If anything fails, the file is unchanged. What is not a regular file, such as a pipe, is not read and is written to
    directly.

    Raises:
        MachineCannot: It is not writable, or another process held it for longer than ``timeout_s``.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file() and not path.is_dir():
        replace_atomically(path, change(b""))
        return
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    made = not path.exists()
    with lock_current_file(path, timeout_s, flags=os.O_CREAT) as descriptor:
        with open(descriptor, "rb", closefd=False) as file:
            before = file.read()
        try:
            after = change(before)
            if after != before:
                replace_atomically(path, after, like=os.fstat(descriptor))
        except BaseException:
            if made and not before:
                path.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def lock_current_file(path: Path, timeout_s: float, *, flags: int = 0) -> Iterator[int]:
    """Lock a file against other writers, and yield its descriptor.

    The lock is on the file itself, so that no lock file is left beside it. A writer replaces the file: a process that
    waited for the old one finds that the path leads to another file, and waits for that.
    """
    until = time.monotonic() + timeout_s
    while True:
        with translate_os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666)
        try:
            with file_lock(descriptor, wait=False) as locked:
                if locked and is_at(path, descriptor):
                    yield descriptor
                    return
        finally:
            os.close(descriptor)
        if time.monotonic() >= until:
            raise MachineCannot(f"{path} was locked by another process for {timeout_s:g} s; it is unchanged.")
        time.sleep(_POLL_S)


def is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still the one at a path."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def home_folder() -> Path:
    """Return the folder named by ``ASSAY_HOME``, or ``assay`` in the user's data folder; created if missing, private.

    Its content is trusted: a lease is undone by calling what it names. So nobody else may write to it. Folders above
    it may belong to anybody: someone who replaces it creates a folder with another owner.

    Raises:
        MachineCannot: The folder cannot be created or written, belongs to another user, or is world-writable.
        BadInput: A file is in its place.
    """
    folder = _home_path().absolute()
    with translate_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise MachineCannot(f"Assay's home {folder} is not writable; set ASSAY_HOME to a folder that is.")
    refuse_writable_by_others(folder, "set ASSAY_HOME to a folder of your own")
    return folder


def lease_folder() -> Path:
    """Return the folder of leases, whether it exists or not."""
    return _home_path().absolute() / "leases"


def refuse_writable_by_others(folder: Path, advice: str) -> None:
    """Reject a folder to which others could add files that we would trust.

    A sticky folder, such as ``/tmp``, keeps others from replacing our files, but not from adding theirs.

    Raises:
        MachineCannot: It belongs to another user, or is world-writable.
    """
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise MachineCannot(f"{folder} belongs to another user, and what it holds is trusted; {advice}.")
    if info.st_mode & stat.S_IWOTH:
        raise MachineCannot(f"Everybody may write into {folder}, whose content is trusted; `chmod o-w` it or {advice}.")


def _home_path() -> Path:
    try:
        if named := os.environ.get("ASSAY_HOME"):
            return Path(named).expanduser()
        data = Path(os.environ.get("XDG_DATA_HOME", ""))
        return (data if data.is_absolute() else Path.home() / ".local" / "share") / "assay"
    except RuntimeError as error:
        raise MachineCannot("You have no home folder here; set ASSAY_HOME to a folder for Assay's data.") from error


def find_control_character(text: str) -> str | None:
    """Return the first character that ends a line or controls a terminal, such as a newline; null: there is none."""
    return next((c for c in text if unicodedata.category(c) in {"Cc", "Zl", "Zp"}), None)


DIGEST = "digest"
DIGEST_PATTERN = "sha256:[0-9a-f]{64}"
_SEAL = re.compile(rb'(?:,"digest":"|,\n  "digest": ")(%b)"(?:\}|\n\}\n?)\Z' % DIGEST_PATTERN.encode())


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
        raise DamagedFile("its digest does not match: it was changed after it was written")
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

    def chain(last: bytes | None) -> str:
        before = start if last is None else _last_digest(last)
        if before is None:
            raise DamagedFile(f"{path} is damaged: its last line has no digest, so that none can be added.")
        return seal_json(text, before)

    _append_derived_line(path, chain)


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
