"""Who else was busy while something was measured: two looks at the machine, and what lies between them.

    before ── trial ── after        both looks are taken while nothing is timed: listing processes is slow
       └──────┬──────────┘
          strangers(before, after, ours)

Ours are the processes given and all that they started. CPU time of processes that have ended meanwhile is found with
the parents that waited for them. What no process seen from here accounts for, such as other containers and
processes that nobody waited for, is kept apart as ``unseen_cores``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.values import Value
from assay.machine import nvidia
from assay.machine.files import text_of
from assay.machine.vendor import GpuProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from assay.machine.vendor import Vendor

_HOST_PID_NAMESPACE = 0xEFFFFFFC
"""The number that Linux gives the first process numbering, the one that drivers use."""
_BUSIEST = 5
_BUSY_CORES = 0.01


class Process(Value):
    """One process and the CPU time it has used, in s."""

    pid: int
    start_ticks: int = Field(description="When it began: tells it from another one with the same number.")
    parent: int
    name: str
    own_s: float = Field(description="Used by itself.")
    children_s: float = Field(default=0.0, description="Used by those of its children that ended and it waited for.")

    @property
    def key(self) -> tuple[int, int]:
        """What no other process has."""
        return self.pid, self.start_ticks


class Snapshot(Value):
    """One look: CPU time since the machine started, in s over all CPUs, the processes, and who is on the GPUs."""

    at_s: float = Field(description="On a clock that only goes forward; its zero means nothing.")
    busy_s: float = 0.0
    idle_s: float = 0.0
    steal_s: float = Field(default=0.0, description="Taken away by the hypervisor for other virtual machines.")
    processes: tuple[Process, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    pids_comparable: bool = Field(
        default=True,
        description="Whether drivers number processes as this container does; if not, who is who is unsure.",
    )


class Outsider(Value):
    """A process that is not ours, and how many CPUs' worth of time it used."""

    pid: int
    name: str
    cores: float


class Strangers(Value):
    """What others did between two looks. Null: cannot be known."""

    gpu_processes: tuple[GpuProcess, ...] = Field(default=(), description="On a GPU at either look, and not ours.")
    pids_comparable: bool = True
    steal_share: float | None = Field(default=None, description="Of all CPU time: taken by the hypervisor.")
    outside_cores: float | None = Field(default=None, description="CPUs' worth of load by processes not ours.")
    unseen_cores: float | None = Field(default=None, description="CPUs' worth of load that no seen process explains.")
    busiest: tuple[Outsider, ...] = ()


def snapshot(root: str | Path = "/", *, vendor: Vendor | None = nvidia) -> Snapshot:
    """Return one look at the machine; ``root`` may be a recorded tree. Without a vendor, GPUs are not asked."""
    proc = Path(root) / "proc"
    ticks = _cpu_ticks(text_of(proc / "stat") or "")
    hz = os.sysconf("SC_CLK_TCK")
    processes = tuple(_processes(proc, hz))
    names = {process.pid: process.name for process in processes}
    on_gpus = vendor.processes() if vendor is not None else ()
    return Snapshot(
        at_s=_clock_s(proc) if str(root) != "/" else time.monotonic(),
        busy_s=(sum(ticks[:3]) + sum(ticks[5:7])) / hz,
        idle_s=sum(ticks[3:5]) / hz,
        steal_s=ticks[7] / hz,
        processes=processes,
        gpu_processes=tuple(p.model_copy(update={"name": names.get(p.pid)}) for p in on_gpus),
        pids_comparable=_host_numbering(proc),
    )


def strangers(before: Snapshot, after: Snapshot, ours: Collection[int]) -> Strangers:
    """Return what processes other than ours, and what these started, did between two looks."""
    family = descendants((*before.processes, *after.processes), ours)
    took_s = after.at_s - before.at_s
    used = _cpu_used_s(before, after)
    outside = {process: seconds for process, seconds in used.items() if process.pid not in family}
    busy_s, idle_s = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    steal_s = after.steal_s - before.steal_s
    whole_s = busy_s + idle_s + steal_s
    return Strangers(
        gpu_processes=_once(p for p in (*before.gpu_processes, *after.gpu_processes) if p.pid not in family),
        pids_comparable=before.pids_comparable and after.pids_comparable,
        steal_share=min(1.0, max(0.0, steal_s / whole_s)) if whole_s > 0 else None,
        outside_cores=sum(outside.values()) / took_s if took_s > 0 else None,
        unseen_cores=max(0.0, busy_s - sum(used.values())) / took_s if took_s > 0 and whole_s > 0 else None,
        busiest=_busiest(outside, took_s),
    )


def descendants(processes: Collection[Process], roots: Collection[int]) -> frozenset[int]:
    """Return the numbers of some processes and of all that they started, directly or not."""
    family = set(roots)
    while grown := {process.pid for process in processes if process.parent in family} - family:
        family |= grown
    return frozenset(family)


def _cpu_used_s(before: Snapshot, after: Snapshot) -> dict[Process, float]:
    """Return the CPU time that each process of the later look, and children that it waited for, used in between."""
    earlier = {process.key: process for process in before.processes}
    still_there = {process.key for process in after.processes}
    gone_s: dict[int, float] = {}
    for process in before.processes:
        if process.key not in still_there:
            gone_s[process.parent] = gone_s.get(process.parent, 0.0) + process.own_s + process.children_s
    used: dict[Process, float] = {}
    for process in after.processes:
        was = earlier.get(process.key)
        own_s = process.own_s - (was.own_s if was else 0.0)
        children_s = process.children_s - (was.children_s if was else 0.0) - gone_s.get(process.pid, 0.0)
        used[process] = max(0.0, own_s) + max(0.0, children_s)
    return used


def _busiest(outside: dict[Process, float], took_s: float) -> tuple[Outsider, ...]:
    if took_s <= 0:
        return ()
    ranked = sorted(outside.items(), key=lambda item: (-item[1], item[0].pid))[:_BUSIEST]
    found = [Outsider(pid=p.pid, name=p.name, cores=seconds / took_s) for p, seconds in ranked]
    return tuple(outsider for outsider in found if outsider.cores >= _BUSY_CORES)


def _once(found: Iterator[GpuProcess]) -> tuple[GpuProcess, ...]:
    """Return each process on each GPU once, as it was seen last."""
    return tuple({(process.gpu, process.pid): process for process in found}.values())


def _cpu_ticks(stat: str) -> list[int]:
    """Return user, nice, system, idle, iowait, irq, softirq and steal time over all CPUs; guests count as user."""
    line = next((line for line in stat.splitlines() if line.startswith("cpu ")), "cpu")
    numbers = [int(word) for word in line.split()[1:9]]
    return numbers + [0] * (8 - len(numbers))


def _processes(proc: Path, hz: int) -> Iterator[Process]:
    for folder in proc.glob("[0-9]*"):
        process = _process(folder, hz)
        if process is not None:
            yield process


def _process(folder: Path, hz: int) -> Process | None:
    """Read one process; its name in the second field may hold spaces and parentheses."""
    head, _, tail = (text_of(folder / "stat") or "").rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or not folder.name.isdigit():
        return None
    return Process(
        pid=int(folder.name),
        start_ticks=int(fields[19]),
        parent=int(fields[1]),
        name=head.partition("(")[2],
        own_s=(int(fields[11]) + int(fields[12])) / hz,
        children_s=(int(fields[13]) + int(fields[14])) / hz,
    )


def _clock_s(proc: Path) -> float:
    uptime = (text_of(proc / "uptime") or "").split()
    return float(uptime[0]) if uptime else time.monotonic()


def _host_numbering(proc: Path) -> bool:
    """Return whether processes are numbered here as on the host; where the kernel does not say, it is taken so."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return True
