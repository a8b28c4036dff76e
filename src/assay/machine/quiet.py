"""Is it quiet here? What others do is judged against what a measurement bears."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.core.results import Disturbance
from assay.machine.strangers import snapshot, strangers

if TYPE_CHECKING:
    from assay.core.results import Finding
    from assay.machine.model import Machine
    from assay.machine.strangers import Snapshot, Strangers
    from assay.machine.vendor import GpuProcess, Vendor

MOST_OUTSIDE_SHARE = 0.05
LEAST_OUTSIDE_CORES = 0.1
MOST_STEAL_SHARE = 0.02


def disturbance(before: Snapshot, after: Snapshot, *, cpus: int, gpus: tuple[str, ...] = ()) -> Disturbance:
    """Return what others did between two looks, and in words what of it is more than a measurement bears.

    ``cpus`` is how many this process may use, ``gpus`` the UUIDs that matter.
    """
    found = strangers(before, after, {os.getpid()})
    on_ours = tuple(_named(p) for p in found.gpu_processes if p.gpu in gpus)
    return Disturbance(
        looked_s=after.at_s - before.at_s,
        steal_share=found.steal_share,
        outside_cores=found.outside_cores,
        unseen_cores=found.unseen_cores,
        busiest=tuple(f"{o.name} (process {o.pid}): {o.cores:.2f} cores" for o in found.busiest),
        gpu_processes=on_ours,
        complaints=tuple(_complaints(found, on_ours, cpus)),
    )


def _named(process: GpuProcess) -> str:
    memory = "" if process.memory_mib is None else f", {process.memory_mib:.0f} MiB"
    return f"{process.name or 'a process'} ({process.pid}{memory})"


def _complaints(found: Strangers, on_ours: tuple[str, ...], cpus: int) -> list[str]:
    complaints: list[str] = []
    outside = min((found.outside_cores or 0.0) + (found.unseen_cores or 0.0), os.cpu_count() or cpus)
    if outside > max(LEAST_OUTSIDE_CORES, MOST_OUTSIDE_SHARE * cpus):
        who = f", most of it {found.busiest[0].name}" if found.busiest else ""
        complaints.append(f"others used {outside:.2f} cores{who}")
    if (found.steal_share or 0.0) > MOST_STEAL_SHARE:
        complaints.append(f"the hypervisor took {found.steal_share:.1%} of the CPU time away")
    if on_ours:
        complaints.append(f"other processes are on the GPU: {'; '.join(on_ours[:3])}")
    return complaints


def look_for(seconds: float, *, cpus: int, gpus: tuple[str, ...] = (), vendor: Vendor | None = None) -> Disturbance:
    """Look at the machine for so long, asleep, and return what others did meanwhile."""
    before = snapshot(vendor=vendor)
    time.sleep(seconds)
    return disturbance(before, snapshot(vendor=vendor), cpus=cpus, gpus=gpus)


def checks(machine: Machine, seconds: float = 1.0) -> list[Finding]:
    """Return whether the neighbours keep quiet, having listened for a second."""
    from assay.machine import nvidia

    uuids = tuple(gpu.uuid for gpu in machine.gpus)
    seen = look_for(seconds, cpus=len(machine.cpus), gpus=uuids, vendor=nvidia if machine.gpus else None)
    return [
        check(
            f"Nobody else is busy here (listened for {seconds:g} s)",
            "no" if seen.complaints else "yes",
            "; ".join(seen.complaints) or f"others used {(seen.outside_cores or 0.0):.2f} cores",
            fix="end or pause them, or measure with --strangers wait" if seen.complaints else None,
            topic="noise",
            outside_cores=seen.outside_cores,
            steal_share=seen.steal_share,
        )
    ]
