"""Where the command ``assay`` begins and ends: a signal has the right answer from the first import to the last word.

imports ──▶ the command line ──▶ everything is said
│           │                    └ a signal changes nothing any more
│           └ a signal is a `StopRequested`, and all is cleaned up
└ nothing is there to clean up: a signal ends the process with exit code 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.stopping import exit_on_signals, ignore_signals

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in a process of its own; return the exit code."""
    exit_on_signals()
    from assay.cli.main import main as command_line

    code = command_line(arguments)
    ignore_signals()
    return code
