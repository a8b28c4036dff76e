"""An order on a machine that shares no files with this one: `run`, `collect`, `clean`, over any line.

    run      ship ─▶ prepare ─▶ look at the GPU ─▶ start, detached ─▶ follow what it prints ─▶ its exit code
    collect  the run folder comes back whole or not at all, is read, and stands under ``order.output_dir``
    end      what still runs of the order is asked to stop, then killed, and seen gone
    clean    the order's folder there is removed

A host that uses these has "ship" among its ``options``: then the command line sends the files that its words name, and
words that make sense there. Whoever creates the machine owns it: nothing here creates or gives back anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Ended, Order, Watcher
    from assay.hosts.remote.line import Line


def run(line: Line, order: Order, watcher: Watcher) -> Ended:
    """Have an order run there to its end; hand on what is printed as it comes.

    A line that is lost meanwhile is taken up again, as the work goes on without it. When a signal stops us (`Stopped`),
    the order is ended there and what it has measured is brought back, before the error goes on; `collect` need not be
    called then.

    Raises:
        MachineCannot: The GPU there is not the one asked for, no environment can be had, the disk is full.
        LineLost: The machine did not answer for so long that it was given up; what runs there ends by itself.
    """
    raise NotImplementedError


def collect(line: Line, order: Order) -> tuple[Path, ...]:
    """Return the order's run folder, brought here, read through, and set under ``order.output_dir``; or nothing.

    Safe to call again: what was brought is brought once more, in its newest state.

    Raises:
        MachineCannot: What came back is not a run, or cannot be written here.
        LineLost: The line broke.
    """
    raise NotImplementedError


def end(line: Line, order: Order) -> None:
    """End whatever still runs of an order there, and see it gone; nothing happens where nothing does."""
    raise NotImplementedError


def clean(line: Line, order: Order) -> None:
    """Remove what an order left there; the environment stays for the next one."""
    raise NotImplementedError
