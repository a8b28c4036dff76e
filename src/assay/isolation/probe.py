"""Which isolation level can hold here: tried in a process of its own, so that nothing of it sticks to ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.core.plan import Isolation
from assay.core.results import IsolationLimit
from assay.core.values import Value
from assay.isolation.allot import LEVELS, Allotment, allot, device_names
from assay.isolation.bind import Held, bind
from assay.isolation.devices import kind_of
from assay.isolation.overlap import Occupant, overlap_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Finding, IsolationCode
    from assay.machine.model import Machine

TRY_WITHIN_S = 30
_MOST_REASONS = 3
_FIXES = {
    "cpu": "allow sched_setaffinity: in a container, drop the seccomp rule or the cpuset that forbids it",
    "numa": "allow set_mempolicy: docker run --cap-add SYS_NICE, or a seccomp profile that permits it",
    "full": "give this process more cores than there are devices",
}


def try_full(machine: Machine, devices: tuple[str, ...]) -> list[Held]:
    """Bind a child to the allotment of each device in turn, at the highest level; return what can hold for each.

    That is what the child read back, as far as the devices are kept apart when all are measured at once.
    """
    allotments = [allot(machine, devices, "full").of(device) for device in devices]
    done = subprocess.run(
        [sys.executable, "-m", "assay.isolation.probe", *(allotment.model_dump_json() for allotment in allotments)],
        capture_output=True,
        text=True,
        timeout=TRY_WITHIN_S,
        check=True,
    )
    held = [_Tried.model_validate(report).held for report in json.loads(done.stdout)]
    workers = [
        Occupant(
            allotment.device,
            "full",
            allotment.cpus or (),
            {allotment.gpu_uuid: allotment.device} if allotment.gpu_uuid else {},
        )
        for allotment in allotments
    ]
    limits = overlap_limits(workers, {"": machine})
    return [one.limited(*more) for one, more in zip(held, limits, strict=True)]


def most_at_full(machine: Machine, devices: tuple[str, ...]) -> int:
    """Return how many of some devices, the first ones, can be measured at once without sharing a core."""
    for count in range(len(devices), 1, -1):
        allotments = allot(machine, devices[:count], "full").allotments
        if not any(overlap_limits([Occupant(a.device, "full", a.cpus or ()) for a in allotments], {"": machine})):
            return count
    return 1


def checks(machine: Machine, devices: tuple[str, ...] = ()) -> list[Finding]:
    """Return the highest level that holds here and what prevents the next, and whether a core is left for us.

    ``devices`` are those that are to be measured at once; none: all GPUs, or all groups of cores where there is none.
    """
    every = device_names(machine)
    devices = devices or tuple(d for d in every if kind_of(d) == kind_of(every[0]))
    held = try_full(machine, devices)
    level = min((result.level for result in held), key=LEVELS.index)
    limits = [limit for result in held for limit in result.limits if limit.level == level]
    at_once = f" for {len(devices)} devices at once" if len(devices) > 1 else ""
    most = most_at_full(machine, devices)
    findings = [
        check(
            f"Full isolation can hold here{at_once}",
            "yes" if level == "full" else "no",
            "; ".join(dict.fromkeys(limit.message for limit in limits[:_MOST_REASONS]))
            or f"{level} was tried and read back",
            fix=_fix(level, [limit.code for limit in limits], most),
            topic="isolation",
            level=level,
            devices=len(devices),
            cores=len(machine.cores),
            most_devices_at_once=most,
            limit=limits[0].code if limits else None,
        )
    ]
    placement = allot(machine, devices, "full")
    findings.append(
        check(
            "A core is left for the parent when every device is measured at once",
            "yes" if placement.kept_cpus else "no",
            "; ".join(placement.notes) or f"CPUs {', '.join(map(str, placement.kept_cpus))}",
            fix=None if placement.kept_cpus else _FIXES["full"],
            topic="isolation",
        )
    )
    return findings


def _fix(level: Isolation, codes: Sequence[IsolationCode], most: int) -> str | None:
    if "shared_cores" in codes:
        return f"{_FIXES['full']}, or measure {'one after another' if most == 1 else f'at most {most} at once'}"
    above = LEVELS[LEVELS.index(level) + 1 :]
    if not above:
        return None
    return _FIXES["cpu" if above[0] == "gpu" else above[0]]


class _Tried(Value):
    """What held for one allotment, as the child tells it."""

    level: Isolation
    limits: tuple[IsolationLimit, ...]

    @property
    def held(self) -> Held:
        """The same as its parent knows it."""
        return Held(self.level, self.limits)


def main(*allotments: str) -> int:
    """Bind this process to one allotment after another, and print what held."""
    held = [bind(Allotment.model_validate_json(text)) for text in allotments]
    print(json.dumps([_Tried(level=h.level, limits=h.limits).as_json() for h in held]))  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
