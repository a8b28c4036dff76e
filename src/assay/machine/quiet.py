"""Is it quiet here? What others do is judged against what a measurement bears."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.core.results import Disturbance, Interference
from assay.machine.strangers import snapshot, strangers

if TYPE_CHECKING:
    from collections.abc import Collection

    from assay.core.results import Finding
    from assay.machine.model import Machine
    from assay.machine.strangers import Snapshot, Strangers
    from assay.machine.vendor import GpuProcess, Vendor

MOST_OUTSIDE_SHARE = 0.05
LEAST_OUTSIDE_CORES = 0.1
MOST_STEAL_SHARE = 0.02


def disturbance(
    before: Snapshot,
    after: Snapshot,
    *,
    cpus: int,
    gpus: tuple[str, ...] = (),
    helpers: Collection[int] = (),
) -> Disturbance:
    """Return what others did between two looks, and what of it is more than a measurement bears.

    ``cpus`` is how many this process may use, ``gpus`` the UUIDs that matter. Ours are this process, the ``helpers``
    that somebody else started for it, and all that they started.
    """
    activity = strangers(before, after, {os.getpid(), *helpers})
    on_ours = tuple(p for p in activity.gpu_processes if p.gpu in gpus)
    return Disturbance(
        looked_s=after.at_s - before.at_s,
        steal_share=activity.steal_share,
        outside_cores=activity.outside_cores,
        kernel_cores=activity.kernel_cores,
        unseen_cores=activity.unseen_cores,
        busiest=activity.busiest,
        gpu_processes=tuple(map(_named, on_ours)),
        complaints=tuple(_complaints(activity, on_ours, cpus)),
    )


def _named(process: GpuProcess) -> str:
    memory = "" if process.memory_mib is None else f", {process.memory_mib:.0f} MiB"
    return f"{process.name or 'a process'} ({process.pid}{memory})"


def _complaints(found: Strangers, on_ours: tuple[GpuProcess, ...], cpus: int) -> list[Interference]:
    complaints: list[Interference] = []
    most = max(LEAST_OUTSIDE_CORES, MOST_OUTSIDE_SHARE * cpus)
    outside = min((found.outside_cores or 0.0) + (found.unseen_cores or 0.0), os.cpu_count() or cpus)
    if outside > most:
        complaints.append(_of_processes(found, outside))
    if (found.kernel_cores or 0.0) > most:
        complaints.append(_of_the_kernel(found, found.kernel_cores or 0.0))
    if (found.steal_share or 0.0) > MOST_STEAL_SHARE:
        complaints.append(of_hypervisor(100 * (found.steal_share or 0.0)))
    if on_ours:
        names = tuple(dict.fromkeys(process.name or "a process" for process in on_ours))
        message = f"other processes are on the GPU: {'; '.join(map(_named, on_ours[:3]))}"
        source = f"{', '.join(names[:3])} on the GPU"
        complaints.append(Interference(kind="gpu_processes", source=source, message=message))
    return complaints


def _of_processes(found: Strangers, cores: float) -> Interference:
    """Name the busiest process where it did most of it, with what it used itself; else it is several, or not seen."""
    first = found.busiest[0] if found.busiest else None
    if first is not None and first.cores >= cores / 2:
        source, amount = first.name, first.cores
    elif (found.unseen_cores or 0.0) > cores / 2:
        source, amount = "processes that cannot be seen from here", cores
    else:
        source, amount = "several processes", cores
    who = f", most of it {first.name}" if first is not None and first.cores >= cores / 2 else ""
    message = f"others used {cores:.2f} cores{who}"
    return Interference(kind="processes", source=source, amount=amount, unit="cores", message=message)


def _of_the_kernel(found: Strangers, cores: float) -> Interference:
    first = found.busiest_kernel[0].name if found.busiest_kernel else "the kernel"
    message = f"threads of the kernel used {cores:.2f} cores, most of it {first}"
    return Interference(kind="kernel", source=f"kernel thread {first}", amount=cores, unit="cores", message=message)


def of_hypervisor(percent: float, when: str = "") -> Interference:
    """Return that the hypervisor took so much of the CPU time away."""
    message = f"the hypervisor took {percent:.1f} % of the CPU time away{when}"
    return Interference(kind="hypervisor", source="the hypervisor", amount=percent, unit="%", message=message)


def look_for(
    seconds: float,
    *,
    cpus: int,
    gpus: tuple[str, ...] = (),
    vendor: Vendor | None = None,
    helpers: Collection[int] = (),
) -> Disturbance:
    """Look at the machine for so long, asleep, and return what others did meanwhile."""
    before = snapshot(vendor=vendor)
    time.sleep(seconds)
    return disturbance(before, snapshot(vendor=vendor), cpus=cpus, gpus=gpus, helpers=helpers)


def checks(machine: Machine, seconds: float = 1.0) -> list[Finding]:
    """Return whether the neighbours keep quiet, having listened for a second."""
    from assay.machine import nvidia

    uuids = tuple(gpu.uuid for gpu in machine.gpus)
    observed = look_for(seconds, cpus=len(machine.cpus), gpus=uuids, vendor=nvidia if machine.gpus else None)
    busy = "; ".join(complaint.message for complaint in observed.complaints)
    return [
        check(
            f"Nobody else is busy here (listened for {seconds:g} s)",
            "no" if observed.complaints else "yes",
            busy or f"others used {(observed.outside_cores or 0.0):.2f} cores",
            fix="end or pause them, or measure with --strangers wait" if observed.complaints else None,
            topic="noise",
            outside_cores=observed.outside_cores,
            steal_share=observed.steal_share,
        )
    ]
