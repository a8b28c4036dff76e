"""Who uses most CPU time, and where they may run. Dear: every process is looked at, so it is done rarely."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.machine.files import parse_cpu_list, text_of
from assay.machine.strangers import snapshot
from assay.monitor.lines import BusyProcess, TopProcesses

if TYPE_CHECKING:
    from pathlib import Path

    from assay.machine.strangers import Snapshot
    from assay.monitor.lines import Line
    from assay.monitor.pace import Clock

MOST = 5
LEAST_CORES = 0.01
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)$", re.MULTILINE)


class TopSource:
    """Looks at the busiest processes since the look before, the first since this was made."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._before = snapshot(root, vendor=None)

    def read(self, tick: int) -> list[Line]:
        """Return who used most CPU time."""
        t_ns = self._clock.now_ns()
        now = snapshot(self._root, vendor=None)
        busy = busiest(self._before, now)
        self._before = now
        processes = tuple(
            BusyProcess(pid=pid, name=name, cores=round(cores, 3), cpus=self._allowed(pid)) for pid, name, cores in busy
        )
        return [TopProcesses(t_ns=t_ns, processes=processes)]

    def _allowed(self, pid: int) -> tuple[int, ...] | None:
        match = _ALLOWED.search(text_of(self._root / f"proc/{pid}/status") or "")
        return parse_cpu_list(match[1]) if match else None


def busiest(before: Snapshot, after: Snapshot) -> list[tuple[int, str, float]]:
    """Return pid, name and CPUs' worth of time of those who used most between two looks, the busiest first."""
    took_s = after.at_s - before.at_s
    if took_s <= 0:
        return []
    earlier = {process.key: process.own_s for process in before.processes}
    used = [(p.pid, p.name, (p.own_s - earlier.get(p.key, 0.0)) / took_s) for p in after.processes]
    return sorted((one for one in used if one[2] >= LEAST_CORES), key=lambda one: (-one[2], one[0]))[:MOST]
