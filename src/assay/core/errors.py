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
"""Nobody reads any more what is printed: as every program ends that a closed pipe stops."""


class AssayError(Exception):
    """An error with a sentence for the user; never shown with a traceback."""

    exit_code = EXIT_INTERNAL_ERROR


class BadInput(AssayError):
    """What the user asked for makes no sense."""

    exit_code = 2


class DamagedFile(BadInput):
    """A file that Assay wrote is not as it was written; what it says is not used, nor left out silently."""


class MachineCannot(AssayError):
    """This machine or account cannot do what was asked."""

    exit_code = 3


class TrialFailed(AssayError):
    """A worker could not measure its role; the others go on."""

    exit_code = EXIT_STOPPED


class WrongResult(TrialFailed):
    """What was to be timed does not compute what it should: no time of it is published."""


class EndedEarly(AssayError):
    """The run could not go on to its end, though no signal came; what was measured is kept."""

    exit_code = EXIT_STOPPED


class BudgetEnded(EndedEarly):
    """The time or the money for a run ran out; what was measured is kept."""


class StopRequested(BaseException):
    """A signal asks to stop; what was measured is kept. Like `KeyboardInterrupt` it is no `Exception`."""

    exit_code = EXIT_STOPPED


class GateFailed(AssayError):
    """A gate was asked, and its answer is no."""

    exit_code = 1


def suggest_nearest(word: str, choices: Iterable[str]) -> str:
    """Return " Did you mean X or Y?" for a misspelt word, or nothing when nothing is near."""
    import difflib

    near = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
