"""Whether what a command will write can be written: tried out beforehand, and nothing is left behind."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from pathlib import Path


def check_file(path: Path) -> None:
    """Try whether a file can be written, or be replaced where it is there; what is no plain file is left alone.

    Raises:
        BadInput: It is a folder, or a file stands where a folder is needed.
        MachineCannot: It cannot be written.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise BadInput(f"{path} is a folder, but a file is needed there.")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise MachineCannot(f"{path} is not writable: permission denied.")
        if not path.is_file():
            return
        with friendly_os_errors(path):
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    _try(_nearest(path.parent, path), path, folder=not path.parent.exists())


def check_folder(path: Path) -> None:
    """Try whether a folder can be made, or be written into where it is there.

    Raises:
        BadInput: A file stands where it or a folder above it is needed.
        MachineCannot: It cannot be made.
    """
    _try(_nearest(path, path), path, folder=True)


def _nearest(folder: Path, wanted: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there."""
    folder = folder.absolute()
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        wherefore = "" if existing == wanted.absolute() else f" for {wanted}"
        raise BadInput(f"{existing} is a file, but a folder is needed there{wherefore}.")
    return existing


def _try(place: Path, wanted: Path, *, folder: bool) -> None:
    """Make something in a folder, and remove it."""
    if not os.access(place, os.W_OK | os.X_OK):
        raise MachineCannot(f"{wanted} is not writable: permission denied.")
    trial = place / f".{secrets.token_hex(8)}.tmp"
    with friendly_os_errors(wanted):
        try:
            if folder:
                trial.mkdir()
                trial.rmdir()
            else:
                trial.touch(exist_ok=False)
                trial.unlink()
        except FileNotFoundError:
            raise MachineCannot(f"{wanted} is not writable: nothing can be made in {place}.") from None
