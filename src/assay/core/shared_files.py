"""Files that several processes change: read, changed and replaced as a whole by one of them at a time.

The lock is on the file itself. As a file is replaced by a new one, who waited for the old one looks again.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors, locked, replace_atomically
from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 30.0
_LOOK_S = 0.05


def change_file(path: Path, change: Callable[[bytes], bytes], *, patience_s: float = PATIENCE_S) -> None:
    """Replace a file's content by what ``change`` makes of it; a file that is not there yet is empty before.

    Whatever goes wrong, the file is as it was before. What is no plain file, as a pipe, has nothing to be read and is
    written to as it is.

    Raises:
        MachineCannot: It is not writable, or another process held it for longer than ``patience_s``.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file() and not path.is_dir():
        replace_atomically(path, change(b""))
        return
    with friendly_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    made = not path.exists()
    with _held(path, patience_s) as descriptor:
        before = _content(descriptor)
        try:
            after = change(before)
            if after != before:
                replace_atomically(path, after, like=os.fstat(descriptor))
        except BaseException:
            if made and not before:
                path.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _held(path: Path, patience_s: float) -> Iterator[int]:
    """Hold a file's lock, and give its descriptor."""
    until = time.monotonic() + patience_s
    while True:
        with friendly_os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with locked(descriptor, wait=False) as mine:
                if mine and _is_still(path, descriptor):
                    yield descriptor
                    return
        finally:
            os.close(descriptor)
        if time.monotonic() >= until:
            raise MachineCannot(f"{path} was locked by another process for {patience_s:g} s; nothing was added to it.")
        time.sleep(_LOOK_S)


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that its path leads to."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()
