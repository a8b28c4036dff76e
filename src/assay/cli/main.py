"""The command ``assay``.

Verbs imported only when called, errors in one sentence, exit codes that callers can rely on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

import click

from assay._version import __version__
from assay.cli.commands import VerbGroup, load_verbs
from assay.core.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERNAL_ERROR,
    EXIT_OK,
    EXIT_STOPPED,
    AssayError,
    BadInput,
    MachineCannot,
    StopRequested,
)
from assay.core.processes import acknowledge_stop, stop_on_signals, stop_reason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GROUPS = {
    "contention": "Measure how contention changes timings and tuner picks.",
    "energy": "Measure the energy of LLM inference, in joules per token.",
    "github": "Run benchmarks requested on GitHub and propose thresholds.",
    "history": "Browse the results of earlier runs and find regressions.",
    "power": "Measure power, energy efficiency and variability across GPUs.",
    "scaling": "Measure scaling over GPUs and the cost of communication.",
    "threshold": "Find the problem size from which a fast path is faster.",
}
"""The verbs that have verbs of their own, each with its sentence."""

cli = VerbGroup("", load_verbs(), GROUPS, "GPU benchmarks you can trust.")
click.version_option(__version__, prog_name="assay")(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, print errors, and return the exit code."""
    try:
        with stop_on_signals():
            return _run_command(arguments)
    except StopRequested as late:  # it came with the last words
        _print_error(_error_message(late)[0])
        return late.exit_code


def _run_command(arguments: Sequence[str] | None) -> int:
    code: object = EXIT_OK
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_undecodable(words)
        code = cli.main(words, "assay", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except SystemExit:  # click exits this way when nobody reads the output any more
        code = EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt, StopRequested) as error:  # noqa: BLE001 - the last resort: every error is reported
        stopped = stop_reason()
        acknowledge_stop()
        if stopped is not None and not isinstance(error, AssayError | StopRequested):
            error = StopRequested(stopped)  # what a library made of the request that was raised within it
        if not (isinstance(error, OSError) and error.errno == errno.EIO):  # the terminal is gone
            sentence, code = _error_message(error)
            _print_error(sentence)
    _detach_closed_streams()
    return code if isinstance(code, int) else EXIT_OK


def _print_error(sentence: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        click.echo(sentence, err=True)


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: plans, records and the history store them as UTF-8 text."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"Argument {number} ({word!r}) is not UTF-8 text; rename what it names.") from None


def _detach_closed_streams() -> None:
    """Point streams that cannot be written any more to nowhere, or Python fails on them when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _error_message(error: BaseException) -> tuple[str, int]:
    """Return the message of an error and its exit code; an unexpected error is a defect, and its traceback is saved."""
    from assay.core.files import explain_os_error

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message(), BadInput.exit_code
    if isinstance(error, AssayError):
        sentence, code = str(error), error.exit_code
    elif isinstance(error, StopRequested):
        sentence, code = f"{str(error).rstrip('.')}.", error.exit_code
    elif isinstance(error, click.UsageError):
        sentence, code = error.format_message(), BadInput.exit_code
    elif isinstance(error, click.exceptions.Abort | KeyboardInterrupt):
        sentence, code = "Stopped.", EXIT_STOPPED
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        sentence = f"The disk is full: {error.filename or 'the output'} could not be written."
        code = MachineCannot.exit_code
    elif isinstance(error, MemoryError):
        sentence, code = "There is not enough memory for this.", MachineCannot.exit_code
    elif isinstance(error, OSError) and (friendly := explain_os_error(error)) is not None:
        sentence, code = str(friendly), friendly.exit_code
    else:
        sentence, code = save_crash_report(error), EXIT_INTERNAL_ERROR
    return f"assay: {sentence}", code


def save_crash_report(error: BaseException) -> str:
    """Save the traceback of a bug in Assay; return the sentence for the user."""
    import platform
    import secrets
    import shlex
    import traceback

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
    """Return the folder of crash reports; the temporary folder when our own cannot be written."""
    import tempfile
    from pathlib import Path

    from assay.core.files import home_folder

    try:
        folder = home_folder() / "defects"
        folder.mkdir(exist_ok=True)
    except (AssayError, OSError):
        return Path(tempfile.gettempdir())
    return folder
