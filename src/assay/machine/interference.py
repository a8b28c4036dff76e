"""Interference: what other processes did while something was measured, and whether it is more than acceptable.

    before ── trial ── after        both snapshots are taken while nothing is timed: listing processes is slow
       └──────┬──────────┘
          find_outside_activity(before, after, ours)

Ours are the given processes and all their descendants. CPU time of processes that ended in between is found with the
parents that waited for them. Load that no visible process accounts for, such as other containers and processes that
nobody waited for, is reported separately as ``unseen_cores``.

A process that ends passes all its CPU time to the parent that waits for it, including what it used before the first
snapshot. That earlier time is subtracted on the way up: from the nearest ancestor that still exists, and what exceeds
that ancestor's gain from the next one above it, since an orphan is waited for by a subreaper or by init:

    init ─ shell ─ make ─ cc        make and cc end: the shell gains the time of both, less what both had before
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.results import Disturbance, Interference, OutsideProcess, make_check
from assay.core.values import Value
from assay.machine import nvidia
from assay.machine.linux import read_text_or_none
from assay.machine.model import GpuProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from assay.core.results import Finding
    from assay.machine.model import Machine, Vendor


ProcessKey = tuple[int, int]
"""A process's PID and its start time."""

_HOST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of Linux's initial PID namespace, the one that drivers use."""
_INIT = 1
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's process flags."""
_BUSIEST = 5
_BUSY_CORES = 0.01


class ProcessUsage(Value):
    """One process and the CPU time it has used, in s."""

    pid: int
    start_ticks: int = Field(description="Start time: distinguishes it from another process with the same PID.")
    parent: int
    name: str
    own_s: float = Field(description="Used by itself.")
    children_s: float = Field(default=0.0, description="Used by its children that ended and that it waited for.")
    kernel: bool = Field(default=False, description="Whether it is a thread of the kernel.")

    @property
    def total_s(self) -> float:
        """CPU time that a parent waiting for it gains if it ends now."""
        return self.own_s + self.children_s

    @property
    def key(self) -> ProcessKey:
        """A key that is unique to this process."""
        return self.pid, self.start_ticks


class ProcessSnapshot(Value):
    """A snapshot: CPU time since the machine started, in s over all CPUs, the processes, and those on the GPUs."""

    at_s: float = Field(description="On a monotonic clock with an arbitrary zero.")
    cpus: int | None = Field(default=None, description="How many are online; null: not reported by the kernel.")
    busy_s: float = 0.0
    idle_s: float = 0.0
    steal_s: float = Field(default=0.0, description="Taken away by the hypervisor for other virtual machines.")
    processes: tuple[ProcessUsage, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    pids_comparable: bool = Field(
        default=True,
        description="Whether drivers use this container's PIDs; if not, processes cannot be identified.",
    )


class OutsideActivity(Value):
    """Activity of other processes between two snapshots. Null: cannot be determined."""

    gpu_processes: tuple[GpuProcess, ...] = Field(
        default=(),
        description="On a GPU in either snapshot, and not ours; in both snapshots where PIDs are not comparable.",
    )
    pids_comparable: bool = True
    steal_share: float | None = Field(default=None, description="Share of all CPU time taken away by the hypervisor.")
    outside_cores: float | None = Field(default=None, description="CPUs' worth of load by processes not ours.")
    kernel_cores: float | None = Field(default=None, description="CPUs' worth of load by threads of the kernel.")
    unseen_cores: float | None = Field(
        default=None, description="CPUs' worth of load that no visible process explains."
    )
    busiest: tuple[OutsideProcess, ...] = ()
    busiest_kernel: tuple[OutsideProcess, ...] = ()


def take_snapshot(root: str | Path = "/", *, vendor: Vendor | None = nvidia) -> ProcessSnapshot:
    """Return a snapshot of the machine; ``root`` may be a recorded tree. Without a vendor, GPUs are skipped."""
    proc = Path(root) / "proc"
    stat = read_text_or_none(proc / "stat") or ""
    ticks = _cpu_ticks(stat)
    hz = os.sysconf("SC_CLK_TCK")
    processes = tuple(_processes(proc, hz))
    comparable = _host_numbering(proc)
    names = {process.pid: process.name for process in processes} if comparable else {}
    on_gpus = vendor.processes() if vendor is not None else ()
    return ProcessSnapshot(
        at_s=_clock_s(proc) if str(root) != "/" else time.monotonic(),
        cpus=len(re.findall(r"^cpu\d+ ", stat, re.MULTILINE)) or None,
        busy_s=(sum(ticks[:3]) + sum(ticks[5:7])) / hz,
        idle_s=sum(ticks[3:5]) / hz,
        steal_s=ticks[7] / hz,
        processes=processes,
        gpu_processes=tuple(p.model_copy(update={"name": names.get(p.pid)}) for p in on_gpus),
        pids_comparable=comparable,
    )


def find_outside_activity(before: ProcessSnapshot, after: ProcessSnapshot, ours: Collection[int]) -> OutsideActivity:
    """Return the activity, between two snapshots, of processes other than ours and their descendants."""
    family = find_descendants((*before.processes, *after.processes), ours)
    took_s = after.at_s - before.at_s
    used = cpu_used_s(before, after)
    others = {process: seconds for process, seconds in used.items() if process.pid not in family}
    outside = {process: seconds for process, seconds in others.items() if not process.kernel}
    kernel = {process: seconds for process, seconds in others.items() if process.kernel}
    busy_s, idle_s = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    steal_s = after.steal_s - before.steal_s
    whole_s = busy_s + idle_s + steal_s
    return OutsideActivity(
        gpu_processes=_others_on_gpus(before, after, family),
        pids_comparable=before.pids_comparable and after.pids_comparable,
        steal_share=min(1.0, max(0.0, steal_s / whole_s)) if whole_s > 0 else None,
        outside_cores=sum(outside.values()) / took_s if took_s > 0 else None,
        kernel_cores=sum(kernel.values()) / took_s if took_s > 0 else None,
        unseen_cores=_unseen_s(before, after, sum(used.values())) / took_s if took_s > 0 and whole_s > 0 else None,
        busiest=_busiest(outside, took_s),
        busiest_kernel=_busiest(kernel, took_s),
    )


def find_descendants(processes: Collection[ProcessUsage], roots: Collection[int]) -> frozenset[int]:
    """Return the PIDs of some processes and of all their descendants."""
    family = set(roots)
    while grown := {process.pid for process in processes if process.parent in family} - family:
        family |= grown
    return frozenset(family)


def cpu_used_s(before: ProcessSnapshot, after: ProcessSnapshot) -> dict[ProcessUsage, float]:
    """Return the CPU time that each process of the later snapshot, and ended children it waited for, used in between.

    Never negative, and in total never more than all CPUs could provide in that time.
    """
    earlier = {process.key: process for process in before.processes}
    gained_s = {
        process.key: max(
            0.0, process.children_s - (previous.children_s if (previous := earlier.get(process.key)) else 0.0)
        )
        for process in after.processes
    }
    inherited_s = _inherited_s(before, gained_s)
    used = {
        process: max(0.0, process.own_s - (previous.own_s if (previous := earlier.get(process.key)) else 0.0))
        + max(0.0, gained_s[process.key] - inherited_s.get(process.key, 0.0))
        for process in after.processes
    }
    return _scale_to_capacity(used, _capacity_s(before, after))


def _inherited_s(before: ProcessSnapshot, gained_s: Mapping[ProcessKey, float]) -> dict[ProcessKey, float]:
    """Return how much of what each survivor gained from ended children was used before the first snapshot.

    An ended process was waited for by one of its ancestors at the first snapshot, but it is not known which: parents
    that end first leave their children to a subreaper or to init. So the earlier time is subtracted from the nearest
    survivor, and what that one did not gain from the next above. In total, never less than the truth is subtracted.
    """
    inherited: dict[ProcessKey, float] = {}
    pending = {process.key: 0.0 if process.key in gained_s else process.total_s for process in before.processes}
    above = _parent_keys(before.processes)
    for key in _children_first(above):
        subtracted_s = min(pending[key], gained_s.get(key, 0.0))
        if key in gained_s:
            inherited[key] = subtracted_s
        parent = above[key]
        if parent is not None:
            pending[parent] += pending[key] - subtracted_s
    return inherited


def _parent_keys(processes: Collection[ProcessUsage]) -> dict[ProcessKey, ProcessKey | None]:
    """Return the parent of each process; init where the parent is not visible, as in a container."""
    by_pid = {process.pid: process.key for process in processes}
    parents = {process.key: by_pid.get(process.parent, by_pid.get(_INIT)) for process in processes}
    return {key: None if key[0] == _INIT or parent == key else parent for key, parent in parents.items()}


def _children_first(above: Mapping[ProcessKey, ProcessKey | None]) -> list[ProcessKey]:
    """Return processes in an order where each comes before its parent; a parent closing a cycle is ignored."""
    depths: dict[ProcessKey, int] = {}
    for key in above:
        path: list[ProcessKey] = []
        current: ProcessKey | None = key
        while current is not None and current not in depths and current not in path:
            path.append(current)
            current = above[current]
        depth = depths.get(current, -1) if current is not None else -1
        for ancestor in reversed(path):
            depth += 1
            depths[ancestor] = depth
    return sorted(above, key=lambda key: -depths[key])


def _capacity_s(before: ProcessSnapshot, after: ProcessSnapshot) -> float | None:
    """Return the CPU time available between two snapshots; null where the number of CPUs is unknown."""
    counts = [snapshot.cpus for snapshot in (before, after) if snapshot.cpus is not None]
    return max(counts) * max(0.0, after.at_s - before.at_s) if counts else None


def _scale_to_capacity(used: dict[ProcessUsage, float], capacity_s: float | None) -> dict[ProcessUsage, float]:
    """Return the times scaled down to what is possible: snapshots take time, and clocks tick coarsely."""
    whole_s = sum(used.values())
    if capacity_s is None or whole_s <= capacity_s:
        return used
    return {process: seconds * (capacity_s / whole_s) for process, seconds in used.items()}


def _unseen_s(before: ProcessSnapshot, after: ProcessSnapshot, seen_s: float) -> float:
    """Return the busy time that no process explains, so that the total does not exceed the capacity."""
    busy_s, capacity_s = after.busy_s - before.busy_s, _capacity_s(before, after)
    return max(0.0, (busy_s if capacity_s is None else min(busy_s, capacity_s)) - seen_s)


def _others_on_gpus(before: ProcessSnapshot, after: ProcessSnapshot, family: Collection[int]) -> tuple[GpuProcess, ...]:
    """Return the processes on GPUs that are not ours.

    Where the driver numbers processes differently from this container, ours cannot be identified by PID: then those
    present in both snapshots count, as all of ours start and end in between.
    """
    if before.pids_comparable and after.pids_comparable:
        return _unique_processes(p for p in (*before.gpu_processes, *after.gpu_processes) if p.pid not in family)
    at_first = {(process.gpu, process.pid) for process in before.gpu_processes}
    return _unique_processes(process for process in after.gpu_processes if (process.gpu, process.pid) in at_first)


def _busiest(outside: dict[ProcessUsage, float], took_s: float) -> tuple[OutsideProcess, ...]:
    if took_s <= 0:
        return ()
    ranked = sorted(outside.items(), key=lambda item: (-item[1], item[0].pid))[:_BUSIEST]
    processes = [OutsideProcess(pid=p.pid, name=p.name, cores=seconds / took_s) for p, seconds in ranked]
    return tuple(process for process in processes if process.cores >= _BUSY_CORES)


def _unique_processes(processes: Iterator[GpuProcess]) -> tuple[GpuProcess, ...]:
    """Return each process on each GPU once, as last seen."""
    return tuple({(process.gpu, process.pid): process for process in processes}.values())


def _cpu_ticks(stat: str) -> list[int]:
    """Return user, nice, system, idle, iowait, irq, softirq and steal time over all CPUs; guests count as user."""
    line = next((line for line in stat.splitlines() if line.startswith("cpu ")), "cpu")
    numbers = [int(word) for word in line.split()[1:9]]
    return numbers + [0] * (8 - len(numbers))


def _processes(proc: Path, hz: int) -> Iterator[ProcessUsage]:
    for folder in proc.glob("[0-9]*"):
        process = _process(folder, hz)
        if process is not None:
            yield process


def _process(folder: Path, hz: int) -> ProcessUsage | None:
    """Read one process; its name in the second field may hold spaces and parentheses."""
    head, _, tail = (read_text_or_none(folder / "stat") or "").rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or not folder.name.isdigit():
        return None
    return ProcessUsage(
        pid=int(folder.name),
        start_ticks=int(fields[19]),
        parent=int(fields[1]),
        name=head.partition("(")[2],
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        own_s=(int(fields[11]) + int(fields[12])) / hz,
        children_s=(int(fields[13]) + int(fields[14])) / hz,
    )


def _clock_s(proc: Path) -> float:
    uptime = (read_text_or_none(proc / "uptime") or "").split()
    return float(uptime[0]) if uptime else time.monotonic()


def _host_numbering(proc: Path) -> bool:
    """Return whether PIDs are those of the host; assumed where the kernel does not report it."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return True


MAX_OUTSIDE_SHARE = 0.05
MIN_OUTSIDE_CORES = 0.1
MAX_STEAL_SHARE = 0.02


def assess_disturbance(
    before: ProcessSnapshot,
    after: ProcessSnapshot,
    *,
    cpus: int,
    gpus: tuple[str, ...] = (),
    helpers: Collection[int] = (),
) -> Disturbance:
    """Return the activity of other processes between two snapshots, and which of it exceeds the tolerance.

    ``cpus`` is the number of CPUs this process may use, ``gpus`` the UUIDs that matter. Ours are this process, the
    ``helpers`` that others started for it, and all their descendants.
    """
    activity = find_outside_activity(before, after, {os.getpid(), *helpers})
    on_ours = tuple(p for p in activity.gpu_processes if p.gpu in gpus)
    return Disturbance(
        observed_s=after.at_s - before.at_s,
        steal_share=activity.steal_share,
        outside_cores=activity.outside_cores,
        kernel_cores=activity.kernel_cores,
        unseen_cores=activity.unseen_cores,
        busiest=activity.busiest,
        gpu_processes=tuple(map(_process_label, on_ours)),
        complaints=tuple(_find_interference(activity, on_ours, cpus)),
    )


def _process_label(process: GpuProcess) -> str:
    memory = "" if process.memory_mib is None else f", {process.memory_mib:.0f} MiB"
    return f"{process.name or 'a process'} ({process.pid}{memory})"


def _find_interference(activity: OutsideActivity, on_ours: tuple[GpuProcess, ...], cpus: int) -> list[Interference]:
    complaints: list[Interference] = []
    limit = max(MIN_OUTSIDE_CORES, MAX_OUTSIDE_SHARE * cpus)
    outside = min((activity.outside_cores or 0.0) + (activity.unseen_cores or 0.0), os.cpu_count() or cpus)
    if outside > limit:
        complaints.append(_process_interference(activity, outside))
    if (activity.kernel_cores or 0.0) > limit:
        complaints.append(_kernel_interference(activity, activity.kernel_cores or 0.0))
    if (activity.steal_share or 0.0) > MAX_STEAL_SHARE:
        complaints.append(hypervisor_interference(100 * (activity.steal_share or 0.0)))
    if on_ours:
        names = tuple(dict.fromkeys(process.name or "a process" for process in on_ours))
        message = f"other processes are on the GPU: {'; '.join(map(_process_label, on_ours[:3]))}"
        source = f"{', '.join(names[:3])} on the GPU"
        complaints.append(Interference(kind="gpu_processes", source=source, message=message))
    return complaints


def _process_interference(activity: OutsideActivity, cores: float) -> Interference:
    """Name the busiest process, with its own usage, if it did most of it; else "several", or not visible."""
    first = activity.busiest[0] if activity.busiest else None
    if first is not None and first.cores >= cores / 2:
        source, amount = first.name, first.cores
    elif (activity.unseen_cores or 0.0) > cores / 2:
        source, amount = "processes that cannot be seen from here", cores
    else:
        source, amount = "several processes", cores
    who = f", most of it {first.name}" if first is not None and first.cores >= cores / 2 else ""
    message = f"others used {cores:.2f} cores{who}"
    return Interference(kind="processes", source=source, amount=amount, unit="cores", message=message)


def _kernel_interference(activity: OutsideActivity, cores: float) -> Interference:
    first = activity.busiest_kernel[0].name if activity.busiest_kernel else "the kernel"
    message = f"threads of the kernel used {cores:.2f} cores, most of it {first}"
    return Interference(kind="kernel", source=f"kernel thread {first}", amount=cores, unit="cores", message=message)


def hypervisor_interference(percent: float, when: str = "") -> Interference:
    """Return the interference of a hypervisor that took this share of the CPU time away."""
    message = f"the hypervisor took {percent:.1f} % of the CPU time away{when}"
    return Interference(kind="hypervisor", source="the hypervisor", amount=percent, unit="%", message=message)


def observe_disturbance(
    seconds: float,
    *,
    cpus: int,
    gpus: tuple[str, ...] = (),
    vendor: Vendor | None = None,
    helpers: Collection[int] = (),
) -> Disturbance:
    """Sleep for some seconds and return the activity of other processes meanwhile."""
    before = take_snapshot(vendor=vendor)
    time.sleep(seconds)
    return assess_disturbance(before, take_snapshot(vendor=vendor), cpus=cpus, gpus=gpus, helpers=helpers)


def check_interference(machine: Machine, seconds: float = 1.0) -> list[Finding]:
    """Return whether other processes are quiet, after observing for some seconds."""
    from assay.machine import nvidia

    uuids = tuple(gpu.uuid for gpu in machine.gpus)
    observed = observe_disturbance(seconds, cpus=len(machine.cpus), gpus=uuids, vendor=nvidia if machine.gpus else None)
    busy = "; ".join(complaint.message for complaint in observed.complaints)
    return [
        make_check(
            f"No other processes interfere (observed for {seconds:g} s)",
            "no" if observed.complaints else "yes",
            busy or f"others used {(observed.outside_cores or 0.0):.2f} cores",
            fix="end or pause them, or measure with --on-interference wait" if observed.complaints else None,
            topic="noise",
            outside_cores=observed.outside_cores,
            steal_share=observed.steal_share,
        )
    ]
