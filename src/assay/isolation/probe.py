"""Which isolation level can hold here: tried in a process of its own, so that nothing of it sticks to ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.isolation.allot import LEVELS, Allotment, allot, device_names
from assay.isolation.bind import Held, bind

if TYPE_CHECKING:
    from assay.core.results import Finding
    from assay.machine.model import Machine

TRY_WITHIN_S = 30
_FIXES = {
    "cpu": "allow sched_setaffinity: in a container, drop the seccomp rule or the cpuset that forbids it",
    "numa": "allow set_mempolicy: docker run --cap-add SYS_NICE, or a seccomp profile that permits it",
    "full": "give this process more cores than there are devices",
}


def try_full(machine: Machine) -> Held:
    """Bind a child to the first device's allotment at the highest level; return what held."""
    device = device_names(machine)[0]
    allotment = allot(machine, (device,), "full").of(device)
    done = subprocess.run(
        [sys.executable, "-m", "assay.isolation.probe", allotment.model_dump_json()],
        capture_output=True,
        text=True,
        timeout=TRY_WITHIN_S,
        check=True,
    )
    said = json.loads(done.stdout)
    return Held(said["level"], tuple(said["notes"]))


def checks(machine: Machine) -> list[Finding]:
    """Return the highest level that holds here and what prevents the next, and whether a core is left for us."""
    held = try_full(machine)
    above = LEVELS[LEVELS.index(held.level) + 1 :]
    found = [
        check(
            "Full isolation can hold here",
            "yes" if held.level == "full" else "no",
            "; ".join(held.notes) or f"{held.level} was tried and read back",
            fix=_FIXES.get(above[0]) if above else None,
            topic="isolation",
            level=held.level,
        )
    ]
    devices = device_names(machine)
    kind = devices[0].partition(":")[0]
    placement = allot(machine, tuple(d for d in devices if d.startswith(kind)), "full")
    found.append(
        check(
            "A core is left for the parent when every device is measured at once",
            "yes" if placement.kept_cpus else "no",
            "; ".join(placement.notes) or f"CPUs {', '.join(map(str, placement.kept_cpus))}",
            fix=None if placement.kept_cpus else _FIXES["full"],
            topic="isolation",
        )
    )
    return found


def main(allotment: str) -> int:
    """Bind this process and print what held."""
    held = bind(Allotment.model_validate_json(allotment))
    print(json.dumps({"level": held.level, "notes": held.notes}))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
