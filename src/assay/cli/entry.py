"""The console script ``assay``: signals are handled correctly from the first import to the last line of output.

imports ──▶ the command line ──▶ output is complete
│           │                    └ a signal changes nothing any more
│           └ a signal raises `StopRequested`, and everything is cleaned up
└ nothing to clean up yet: a signal ends the process with exit code 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.processes import exit_on_signals, ignore_signals

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in a process of its own; return the exit code."""
    exit_on_signals()
    from assay.cli.main import main as command_line

    code = command_line(arguments)
    ignore_signals()
    return code
