"""A provider as a plug-in, in one file: RunPod under another name, in a hurry, on whose machines nothing is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.hosts.base import JobEnd
from assay.hosts.providers.runpod import RunPodProvider
from assay.hosts.remote.connection import RemoteConnection
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.rented.context import RentalTimeouts
from assay.hosts.rented.host import RentedHost

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.base import Job, JobWatcher
    from assay.hosts.rented.provider import RentedMachine

WORK_S = 0.3


class AnyLine(RemoteConnection):
    """A line that answers."""

    where = "a machine that is none"

    def _run(self, script: str, *options: Any) -> int:
        return 0


class Quick(RunPodProvider):
    """RunPod, by its stand-in's machines."""

    name = "quick"

    def connect(self, machine: RentedMachine) -> Any:
        return AnyLine() if machine.address else None


class NoWork(RemoteWork):
    """Takes a moment."""

    def run(self, line: RemoteConnection, order: Job, watcher: JobWatcher) -> JobEnd:
        time.sleep(WORK_S)
        return JobEnd(exit_code=0)

    def collect(self, line: RemoteConnection, order: Job) -> tuple[Path, ...]:
        return (Path(order.output_dir),)

    def arm(self, line: RemoteConnection, deadline_at: datetime) -> None: ...


PACE = RentalTimeouts(
    look_s=0.02, appears_within_s=0.6, up_within_s=10, gone_within_s=20, ask_again_s=0.2, silent_at_most_s=5
)
HOST = RentedHost(Quick(), timeouts=PACE, work=NoWork())
