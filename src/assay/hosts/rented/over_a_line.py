"""What is done on a rented machine, over its line: the same as on any machine that one can log in to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts.remote import watchdog, work

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from assay.hosts.base import Ended, Order, Watcher
    from assay.hosts.remote.line import Line

ARMED_WITHIN_S = 60.0


class OverALine:
    """Orders over a line, with the machine's own deadline set before anything is run there."""

    def run(self, line: Line, order: Order, watcher: Watcher) -> Ended:
        """Have an order run there to its end."""
        return work.run(line, order, watcher)

    def collect(self, line: Line, order: Order) -> tuple[Path, ...]:
        """Bring its run folder here."""
        return work.collect(line, order)

    def arm(self, line: Line, deadline_at: datetime) -> None:
        """Make the machine keep its own deadline.

        Raises:
            MachineCannot: It cannot; a machine that would run on without us is not used.
        """
        result = line.do(watchdog.script(deadline_at), within_s=ARMED_WITHIN_S)
        if result.code != 0:
            why = " ".join(result.err.decode(errors="replace").split())[-200:]
            raise MachineCannot(f"{line.where} does not take its deadline: {why or f'exit code {result.code}'}.")
