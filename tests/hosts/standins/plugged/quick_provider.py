"""A provider as a plug-in, in one file: RunPod under another name, in a hurry, on whose machines nothing is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.hosts.base import Ended
from assay.hosts.remote.line import Said
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.pace import Pace
from assay.hosts.runpod import RunPod

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.base import Order, Watcher
    from assay.hosts.remote.line import Line
    from assay.hosts.rented.provider import Machine

WORK_S = 0.3


class AnyLine:
    """A line that answers."""

    where = "a machine that is none"

    def do(self, script: str, **options: Any) -> Said:
        return Said(0, b"", b"")


class Quick(RunPod):
    """RunPod, by its stand-in's machines."""

    name = "quick"

    def line(self, machine: Machine) -> Any:
        return AnyLine() if machine.address else None


class NoWork:
    """Takes a moment."""

    def run(self, line: Line, order: Order, watcher: Watcher) -> Ended:
        time.sleep(WORK_S)
        return Ended(exit_code=0)

    def collect(self, line: Line, order: Order) -> tuple[Path, ...]:
        return (Path(order.output_dir),)

    def arm(self, line: Line, deadline_at: datetime) -> None: ...


PACE = Pace(look_s=0.02, appears_within_s=0.6, up_within_s=10, gone_within_s=20, ask_again_s=0.2, silent_at_most_s=5)
HOST = RentedHost(Quick(), pace=PACE, work=NoWork())
