"""The tree of expected errors; each error knows its exit code.

    AssayError
    ├── BadInput        2   the request is invalid
    │   └── DamagedFile 2   a file written by Assay was changed afterwards
    ├── MachineCannot   3   this machine or account cannot do it
    ├── TrialFailed     4   a worker could not measure; the other trials continue
    │   └── WrongResult 4   the result to be timed is wrong
    ├── EndedEarly      4   the run stopped before its end; the measurements are stored
    │   └── BudgetEnded 4   the time or the money for it ran out
    └── GateFailed      1   a gate was evaluated and its answer is no

    StopRequested       4   a signal asks to stop: not an error, and no `except Exception` may swallow it

Any other exception that escapes is a bug in Assay: exit code 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_OK = 0
EXIT_STOPPED = 4
"""Stopped early, or some trials failed; the rest is kept and can be resumed."""
EXIT_INTERNAL_ERROR = 70
EXIT_BROKEN_PIPE = 141
"""Nobody reads the output any more: the exit code of any program that a closed pipe stops."""


class AssayError(Exception):
    """An error with a sentence for the user; never shown with a traceback."""

    exit_code = EXIT_INTERNAL_ERROR


class BadInput(AssayError):
    """The user's request is invalid."""

    exit_code = 2


class DamagedFile(BadInput):
    """A file that Assay wrote was changed afterwards; its content is not used, and not skipped silently."""


class MachineCannot(AssayError):
    """This machine or account cannot do what was requested."""

    exit_code = 3


class TrialFailed(AssayError):
    """A worker could not measure its role; the others continue."""

    exit_code = EXIT_STOPPED


class WrongResult(TrialFailed):
    """The code to be timed computes a wrong result: no time of it is published."""


class EndedEarly(AssayError):
    """The run could not be completed, though no signal came; the measurements are kept."""

    exit_code = EXIT_STOPPED


class BudgetEnded(EndedEarly):
    """The time or the money for a run ran out; the measurements are kept."""


class StopRequested(BaseException):
    """A signal asks to stop; the measurements are kept. Like `KeyboardInterrupt` it is not an `Exception`."""

    exit_code = EXIT_STOPPED


class GateFailed(AssayError):
    """A gate was evaluated, and its answer is no."""

    exit_code = 1


def suggest_nearest(word: str, choices: Iterable[str]) -> str:
    """Return " Did you mean X or Y?" for a misspelt word, or "" when nothing is close."""
    import difflib

    near = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
