"""A bug in Assay: save the traceback, and tell the user where to find it."""

from __future__ import annotations

import platform
import secrets
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

from assay._version import __version__
from assay.core.errors import AssayError
from assay.core.files import home_folder


def save_crash_report(error: BaseException) -> str:
    """Write the traceback down; return the sentence for the user."""
    text = "\n".join(
        (
            f"assay {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"command: {shlex.join(sys.argv)}",
            "".join(traceback.format_exception(error)),
        )
    )
    what = f"This is a defect of Assay ({type(error).__name__}: {error})."
    path = crash_folder() / f"defect-{secrets.token_hex(4)}.txt"
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        return f"{what} Please report it; its traceback could not be kept ({problem})."
    return f"{what} Please report it with {path}."


def crash_folder() -> Path:
    """Return where defects are kept; the temporary folder when our own cannot be written."""
    try:
        folder = home_folder() / "defects"
        folder.mkdir(exist_ok=True)
    except (AssayError, OSError):
        return Path(tempfile.gettempdir())
    return folder
