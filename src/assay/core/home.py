"""Where Assay keeps what outlives a run: history, leases, sensor models and saved picks."""

from __future__ import annotations

import os
from pathlib import Path

from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot


def home() -> Path:
    """Return the folder named by ``ASSAY_HOME``, or ``assay`` in the user's data folder; made if missing, private.

    Raises:
        MachineCannot: The folder cannot be made or written.
        BadInput: A file stands in its place.
    """
    folder = _named().absolute()
    with friendly_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise MachineCannot(f"Assay's home {folder} is not writable; set ASSAY_HOME to a folder that is.")
    return folder


def lease_folder() -> Path:
    """Return where leases are written down, whether it is there or not."""
    return _named().absolute() / "leases"


def _named() -> Path:
    try:
        if named := os.environ.get("ASSAY_HOME"):
            return Path(named).expanduser()
        data = Path(os.environ.get("XDG_DATA_HOME", ""))
        return (data if data.is_absolute() else Path.home() / ".local" / "share") / "assay"
    except RuntimeError as error:
        raise MachineCannot("You have no home folder here; set ASSAY_HOME to a folder for Assay's data.") from error
