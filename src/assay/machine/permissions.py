"""What this user may do here beyond measuring: change limits, read hardware counters, read the CPU's energy."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.machine.files import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Finding
    from assay.machine.model import Machine

RAPL = "sys/class/powercap/intel-rapl:0/energy_uj"
DRIVER_PARAMETERS = "proc/driver/nvidia/params"


def checks(machine: Machine, root: Path, *, user_id: int | None = None) -> list[Finding]:
    """Return which privileges are missing, each with how to get it; nothing is changed to find out."""
    is_root = (os.geteuid() if user_id is None else user_id) == 0
    found = [_cpu_energy(root)]
    if machine.gpus:
        found += [_limits(is_root=is_root), _counters(root, is_root=is_root)]
    return found


def _limits(*, is_root: bool) -> Finding:
    return check(
        "Power limits and clocks of GPUs may be changed (for sweeps; measuring needs none of it)",
        "yes" if is_root else "no",
        "this is root" if is_root else "only root may",
        fix=None if is_root else "run the sweep with sudo; everything else works without",
        topic="permissions",
    )


def _counters(root: Path, *, is_root: bool) -> Finding:
    text = text_of(root / DRIVER_PARAMETERS)
    match = re.search(r"RmProfilingAdminOnly:\s*(\d)", text) if text else None
    restricted = None if match is None else match[1] == "1"
    allowed = is_root or restricted is False
    return check(
        "Hardware counters of GPUs may be read (for ncu)",
        "yes" if allowed else "unsure" if restricted is None else "no",
        "the driver lets only root read them" if restricted and not is_root else None,
        fix=None if allowed else "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reboot",
        topic="permissions",
    )


def _cpu_energy(root: Path) -> Finding:
    path = root / RAPL
    readable = text_of(path) is not None
    return check(
        "The CPU's energy counter (RAPL) may be read",
        "yes" if readable else "no" if path.exists() else "unsure",
        None if readable else "only root may read it" if path.exists() else "this machine shows none",
        fix=f"sudo chmod a+r /{RAPL}" if path.exists() and not readable else None,
        topic="permissions",
    )
