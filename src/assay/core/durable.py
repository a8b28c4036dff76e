"""Files that survive: appended and replaced so that a kill at any moment loses only what was in flight.

A line counts once its newline is on disk. The newline is part of the one write that appends the line, so a last
line without one was never promised to anybody: readers leave it out, and the next append cuts it off.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import select
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.core.yaml_aliases import too_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import FileIO

    from pydantic import JsonValue
    from ruamel.yaml.error import YAMLError

_CHUNK_BYTES = 4096
_LOOK_S = 0.05
PIPE_PATIENCE_S = 10.0
"""How long a named pipe is waited for whose other end nobody has opened."""
MOST_STREAM_BYTES = 64 * 1024 * 1024
"""What is read at most of what has no size, as a pipe or a device: ``/dev/zero`` never ends."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_CANNOT = {
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
_WRONG = {
    errno.EISDIR: "{path} is a folder, but a file is needed there.",
    errno.ENOENT: "{path} could not be used: a folder on the way to it does not exist.",
    errno.ENAMETOOLONG: "{path} could not be used: its name is too long.",
    errno.ELOOP: "{path} could not be used: its symbolic links lead in a circle.",
    errno.EINVAL: "{path} is not a usable file name.",
}
_HALF_PAIR = "it holds half of a surrogate pair, which is no character"
_NEVER_OURS = {*_CANNOT, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that come from the machine, or from a path that somebody gave, wherever they appear."""


@contextlib.contextmanager
def friendly_os_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says while ``path`` is written into one sentence naming it.

    Raises:
        MachineCannot: The disk is full, or the path is not writable.
        BadInput: A file stands where a folder is needed, or the path makes no sense otherwise.
    """
    try:
        yield
    except OSError as error:
        friendly = _in_words(error, path)
        if friendly is None:
            raise
        raise friendly from error


def in_words(error: OSError) -> AssayError | None:
    """Return what to say of an error that nobody expected; null where it may be a defect of ours."""
    if error.errno not in _NEVER_OURS or not isinstance(error.filename, str):
        return None
    return _in_words(error, Path(error.filename))


def check_path(path: Path) -> None:
    """Refuse a path that no file can have, before anything is done with it.

    Raises:
        BadInput: A name in it is too long, its symbolic links lead in a circle, or it holds a NUL character.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
            raise BadInput(_WRONG[error.errno].format(path=path)) from None
    except ValueError:
        raise BadInput(f"{str(path)!r} is not a usable file name.") from None


def _in_words(error: OSError, path: Path) -> AssayError | None:
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return BadInput(_what_is_in_the_way(path))
    if error.errno in _CANNOT:
        return MachineCannot(_CANNOT[error.errno].format(path=path))
    if error.errno in _WRONG:
        return BadInput(_WRONG[error.errno].format(path=path))
    return None


def _what_is_in_the_way(path: Path) -> str:
    for ancestor in (path, *path.parents):
        if os.path.lexists(ancestor) and not ancestor.is_dir():
            return f"{ancestor} is a file, but a folder is needed there."
    return f"{path} already exists."


@contextlib.contextmanager
def locked(descriptor: int, *, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on an open file; yield False if ``wait`` is off and somebody else holds it.

    The kernel drops the lock of a process that dies. A few network file systems know no locks: there the file is
    used without one, which is right as long as one process at a time writes it.
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
    the file is left as it was. Several processes may append to one file.
    """
    if "\n" in text:
        raise ValueError("a line has no newline inside")
    append_after(path, lambda _last: text)


def append_after(path: Path, following: Callable[[bytes | None], str]) -> None:
    """Do the same with a line that depends on the last one; null: there is none yet."""
    with friendly_os_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with locked(descriptor):
                end = _end_of_complete_lines(descriptor, os.fstat(descriptor).st_size)
                line = f"{following(_last_line(descriptor, end))}\n".encode()
                if end < os.fstat(descriptor).st_size:
                    os.ftruncate(descriptor, end)
                _write_whole_or_not(descriptor, line, end)
            if end == 0:
                _sync_folder(path.parent)
        finally:
            os.close(descriptor)


def _last_line(descriptor: int, end: int) -> bytes | None:
    """Return the last of the complete lines, which end at an offset, without its newline."""
    if end == 0:
        return None
    start = _end_of_complete_lines(descriptor, end - 1)
    return os.pread(descriptor, end - 1 - start, start)


def _end_of_complete_lines(descriptor: int, stop: int) -> int:
    """Return the offset just after the last newline before another offset, 0 if there is none."""
    while stop > 0:
        start = max(0, stop - _CHUNK_BYTES)
        newline = os.pread(descriptor, stop - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        stop = start
    return 0


def _write_whole_or_not(descriptor: int, line: bytes, end: int) -> None:
    """Write in one go and sync; a disk that fills up halfway leaves nothing behind."""
    try:
        _write(descriptor, line)
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def replace_atomically(path: Path, data: bytes, *, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Put ``data`` at ``path`` so that every reader, even after a crash, finds the old content or the new, whole.

    ``mode`` is the new file's permission before the umask. ``like`` is a file whose permissions and, as far as that is
    allowed, whose owner the new one gets.
    """
    replace_by_parts(path, (data,), mode=mode, like=like)


def replace_by_parts(
    path: Path, parts: Iterable[bytes], *, mode: int = 0o666, like: os.stat_result | None = None
) -> None:
    """Do the same with content of any length, of which one part is held at a time.

    A link goes on pointing to what it points to; what is no plain file, as a pipe or a device, is written to as it is.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        _write_through(path, parts)
        return
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    with friendly_os_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                for part in parts:
                    _write(descriptor, part)
                if like is not None:
                    _make_like(descriptor, like)
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
    with friendly_os_errors(path):
        descriptor = _open_to_write_through(path)
        try:
            os.set_blocking(descriptor, True)
            for part in parts:
                _write(descriptor, part)
        finally:
            os.close(descriptor)


def _open_to_write_through(path: Path) -> int:
    """Open what is no plain file; a pipe is waited for until somebody reads it, but not for ever."""
    until = time.monotonic() + PIPE_PATIENCE_S
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() >= until:
            raise BadInput(f"{path} is a pipe or socket that nobody reads; start its reader first.")
        time.sleep(_LOOK_S)


def _make_like(descriptor: int, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


def remove(path: Path) -> None:
    """Remove a file, durably; one that is gone already is fine."""
    with friendly_os_errors(path):
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
    """Return the complete lines without their newlines; a truncated last line is left out, a missing file is empty."""
    if not os.path.lexists(path):
        return []
    data = read_bytes(path)
    return _decode(data[: data.rfind(b"\n") + 1], path).split("\n")[:-1]


def read_json(path: Path) -> JsonValue:
    """Return the content of a JSON file.

    Raises:
        BadInput: It cannot be read or is not JSON; the sentence names the file, the line and the column.
    """
    text = _decode(read_bytes(path), path)
    try:
        content: JsonValue = json.loads(text)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.") from error
    except UnicodeEncodeError as error:
        raise BadInput(f"{path} is not usable JSON: {_HALF_PAIR}.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not usable JSON: {error}.") from error
    return content


def read_yaml(path: Path) -> JsonValue:
    """Return the content of a YAML 1.2 file as plain JSON data: keys are text (``0:`` is "0"), so are dates.

    Raises:
        BadInput: It cannot be read or is not YAML, or a key comes twice; the sentence names the file, the line and
            the column.
    """
    return parse_yaml(_decode(read_bytes(path), path), str(path))


def parse_yaml(text: str, name: str) -> JsonValue:
    """Return the same of a text; complaints begin with its name.

    Raises:
        BadInput: It is not YAML, a key comes twice, or its aliases stand for too much.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        if (complaint := too_many(text)) is not None:
            raise complaint
        content = _plain(YAML(typ="safe", pure=True).load(text))
        if "\\" in text:
            _refuse_unusable_text(content)
    except YAMLError as error:
        raise BadInput(f"{name}{yaml_complaint(error, text)}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{name} is not usable YAML: {error}.") from error
    return content


def read_settings(path: Path) -> JsonValue:
    """Return the content of a file that somebody wrote to say what is wanted: JSON by its suffix, else YAML.

    Raises:
        BadInput: As `read_json` and `read_yaml` do, or a text in it holds a NUL character, which no name can.
    """
    if path.suffix != ".json":
        return read_yaml(path)
    content = read_json(path)
    try:
        _refuse_unusable_text(content)
    except ValueError as error:
        raise BadInput(f"{path} is not usable JSON: {error}.") from error
    return content


def _refuse_unusable_text(content: JsonValue) -> None:
    """Raise a ValueError where a text holds what no name, path or command can: a NUL, or half of a surrogate pair."""
    text = json.dumps(content, ensure_ascii=False)
    if "\\u0000" in text.replace("\\\\", ""):
        raise ValueError("it holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(_HALF_PAIR) from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file with every character it has: line ends as they are, a byte order mark first.

    Raises:
        BadInput: It cannot be read or is not UTF-8; the sentence names the file, and the line and the column.
    """
    return _decode(read_bytes(path), path, "utf-8")


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, or all that comes out of a pipe or device.

    Raises:
        BadInput: It cannot be read, or it is a pipe that nobody writes to; the sentence names the file.
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
    """Read what has no size to its end; a pipe that nobody has opened to write to is waited for, but not for ever."""
    until = time.monotonic() + PIPE_PATIENCE_S
    data = bytearray()
    while len(data) <= MOST_STREAM_BYTES:
        part = file.read(1 << 16)
        if part is None:  # somebody is there who has not written yet
            select.select([file], [], [])
        elif part:
            data += part
        elif data or not pipe:
            return bytes(data)
        elif time.monotonic() >= until:
            raise BadInput(f"{path} is a pipe that nobody writes to.")
        else:
            time.sleep(_LOOK_S)
    raise BadInput(f"{path} gives more than {MOST_STREAM_BYTES >> 20} MiB; a plain file is needed.")


def _decode(data: bytes, path: Path, encoding: str = "utf-8-sig") -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise BadInput(f"{path}, line {line}, column {column}: not UTF-8 text.") from error


def yaml_complaint(error: YAMLError, text: str) -> str:
    """Say why a text is not YAML, and where; the words follow the file's name."""
    return f"{_place(error, text)}: not valid YAML: {_problem(error)}."


def _place(error: YAMLError, text: str) -> str:
    """Say where a YAML error is; the parser's marks count from 0, its forbidden characters by position."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f", line {mark.line + 1}, column {mark.column + 1}"
    position = getattr(error, "position", None)
    if position is None:
        return ""
    return f", line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"


def _problem(error: YAMLError) -> str:
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if reason.startswith("but "):
        reason = f"{getattr(error, 'context', None)} {reason}"
    return " ".join(str(reason).split()).rstrip(".")


def _plain(value: object) -> JsonValue:
    """Return what YAML gave as JSON data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            plain = {_key(key): _plain(item) for key, item in value.items()}
            if len(plain) < len(value):
                raise ValueError("a key comes twice, once as a number and once as text")
            return plain
        case list() | tuple() | set():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _key(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(_plain(key))
