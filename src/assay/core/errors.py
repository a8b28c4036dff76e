"""The tree of everything that can go wrong on purpose; each error knows its exit code.

    AssayError
    ├── BadInput        2   what the user asked for makes no sense
    │   └── DamagedFile 2   a file of ours is not as it was written
    ├── MachineCannot   3   this machine or account cannot do it
    ├── TrialFailed     4   a worker could not measure; the rest goes on
    ├── Stopped         4   a signal or a budget ended the run; what was measured is kept
    └── GateSaysNo      1   a gate was asked and its answer is no

Anything else that escapes is a defect of ours: exit code 70.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_DONE = 0
EXIT_DEFECT = 70
EXIT_UNREAD = 141
"""Nobody reads any more what is printed: as every program ends that a closed pipe stops."""


class AssayError(Exception):
    """An error with a sentence for the user; never shown with a traceback."""

    exit_code = EXIT_DEFECT


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

    exit_code = 4


class Stopped(AssayError):
    """A signal or a budget ended the run early; what was measured is kept."""

    exit_code = 4


class GateSaysNo(AssayError):
    """A gate was asked, and its answer is no."""

    exit_code = 1


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean X or Y?" for a misspelt word, or nothing when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
