"""Probe which isolation level can hold here, in a separate process so that the binding does not affect this one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from assay.core.results import make_check
from assay.isolation.binding import HeldIsolation, bind_process
from assay.isolation.placement import LEVELS, Allotment, RunningWorker, allot_cores, list_devices, overlap_limits
from assay.machine.devices import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Finding, IsolationCode
    from assay.core.values import Isolation
    from assay.machine.model import Machine

PROBE_TIMEOUT_S = 30
_MAX_REASONS = 3
_FIXES = {
    "cpu": "allow sched_setaffinity: in a container, drop the seccomp rule or the cpuset that forbids it",
    "numa": "allow set_mempolicy: docker run --cap-add SYS_NICE, or a seccomp profile that permits it",
    "full": "give this process more cores than there are devices",
}


def probe_full_isolation(machine: Machine, devices: tuple[str, ...]) -> list[HeldIsolation]:
    """Bind a child to the allotment of each device in turn, at the highest level; return what can hold for each.

    That is what the child read back, reduced where devices overlap when all are measured at once.
    """
    allotments = [allot_cores(machine, devices, "full").of(device) for device in devices]
    result = subprocess.run(
        [sys.executable, "-m", "assay.isolation.probe", *(allotment.model_dump_json() for allotment in allotments)],
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
        check=True,
    )
    held = _HELD.validate_json(result.stdout)
    workers = [
        RunningWorker(
            allotment.device,
            "full",
            allotment.cpus or (),
            {allotment.gpu_uuid: allotment.device} if allotment.gpu_uuid else {},
        )
        for allotment in allotments
    ]
    limits = overlap_limits(workers, {"": machine})
    return [isolation.limited(*further) for isolation, further in zip(held, limits, strict=True)]


def max_fully_isolated(machine: Machine, devices: tuple[str, ...]) -> int:
    """Return how many of the given devices, from the first, can be measured at once without sharing a core."""
    for count in range(len(devices), 1, -1):
        allotments = allot_cores(machine, devices[:count], "full").allotments
        if not any(overlap_limits([RunningWorker(a.device, "full", a.cpus or ()) for a in allotments], {"": machine})):
            return count
    return 1


def check_isolation(machine: Machine, devices: tuple[str, ...] = ()) -> list[Finding]:
    """Return the highest level that holds here and what prevents the next, and whether a core is left for the parent.

    ``devices`` are those to be measured at once; empty: all GPUs, or all groups of cores where there is none.
    """
    every = list_devices(machine)
    devices = devices or tuple(d for d in every if kind_of(d) == kind_of(every[0]))
    held = probe_full_isolation(machine, devices)
    level = min((result.level for result in held), key=LEVELS.index)
    limits = [limit for result in held for limit in result.limits if limit.level == level]
    at_once = f" for {len(devices)} devices at once" if len(devices) > 1 else ""
    most = max_fully_isolated(machine, devices)
    placement = allot_cores(machine, devices, "full")
    return [
        make_check(
            f"Full isolation can hold here{at_once}",
            "yes" if level == "full" else "no",
            "; ".join(dict.fromkeys(limit.message for limit in limits[:_MAX_REASONS]))
            or f"{level} was tried and read back",
            fix=_suggest_fix(level, [limit.code for limit in limits], most),
            topic="isolation",
            level=level,
            devices=len(devices),
            cores=len(machine.cores),
            most_devices_at_once=most,
            limit=limits[0].code if limits else None,
        ),
        make_check(
            "A core is left for the parent when every device is measured at once",
            "yes" if placement.kept_cpus else "no",
            "; ".join(note.message for note in placement.notes) or f"CPUs {', '.join(map(str, placement.kept_cpus))}",
            fix=None if placement.kept_cpus else _FIXES["full"],
            topic="isolation",
        ),
    ]


def _suggest_fix(level: Isolation, codes: Sequence[IsolationCode], max_devices: int) -> str | None:
    if "shared_cores" in codes:
        return (
            f"{_FIXES['full']}, or measure "
            f"{'one after another' if max_devices == 1 else f'at most {max_devices} at once'}"
        )
    above = LEVELS[LEVELS.index(level) + 1 :]
    if not above:
        return None
    return _FIXES["cpu" if above[0] == "gpu" else above[0]]


_HELD = TypeAdapter(list[HeldIsolation])


def main(*allotments: str) -> int:
    """Bind this process to one allotment after another, and print what held."""
    held = [bind_process(Allotment.model_validate_json(text)) for text in allotments]
    print(_HELD.dump_json(held).decode())  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
