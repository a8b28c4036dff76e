"""Where Assay keeps what outlives a run: history, leases, sensor models and saved picks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot


def home() -> Path:
    """Return the folder named by ``ASSAY_HOME``, or ``assay`` in the user's data folder; made if missing, private.

    What is kept there is trusted: leases are undone by calling what they name. So nobody else may write into it.
    Folders above it may be anybody's: whoever replaces it puts a folder there that belongs to somebody else.

    Raises:
        MachineCannot: The folder cannot be made or written, belongs to another user, or everybody may write into it.
        BadInput: A file stands in its place.
    """
    folder = _named().absolute()
    with friendly_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise MachineCannot(f"Assay's home {folder} is not writable; set ASSAY_HOME to a folder that is.")
    refuse_writable_by_others(folder, "set ASSAY_HOME to a folder of your own")
    return folder


def lease_folder() -> Path:
    """Return where leases are written down, whether it is there or not."""
    return _named().absolute() / "leases"


def refuse_writable_by_others(folder: Path, advice: str) -> None:
    """Refuse a folder into which somebody else may put files that we would trust.

    A sticky folder, as ``/tmp``, keeps others from replacing our files, but not from adding theirs.

    Raises:
        MachineCannot: It belongs to another user, or everybody may write into it.
    """
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise MachineCannot(f"{folder} belongs to another user, and what it holds is trusted; {advice}.")
    if info.st_mode & stat.S_IWOTH:
        raise MachineCannot(f"Everybody may write into {folder}, whose content is trusted; `chmod o-w` it or {advice}.")


def _named() -> Path:
    try:
        if named := os.environ.get("ASSAY_HOME"):
            return Path(named).expanduser()
        data = Path(os.environ.get("XDG_DATA_HOME", ""))
        return (data if data.is_absolute() else Path.home() / ".local" / "share") / "assay"
    except RuntimeError as error:
        raise MachineCannot("You have no home folder here; set ASSAY_HOME to a folder for Assay's data.") from error
