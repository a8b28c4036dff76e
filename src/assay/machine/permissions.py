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

SYS_ADMIN = 21
"""The capability's bit in /proc/self/status: in a container root may lack it."""
STATUS = "proc/self/status"
RAPL = "sys/class/powercap/intel-rapl:0/energy_uj"
DRIVER_PARAMETERS = "proc/driver/nvidia/params"


def checks(machine: Machine, root: Path, *, user_id: int | None = None) -> list[Finding]:
    """Return which privileges are missing, each with how to get it; nothing is changed to find out."""
    is_root = (os.geteuid() if user_id is None else user_id) == 0
    findings = [_cpu_energy(root)]
    if machine.gpus:
        findings += [_limits(missing_to_set(root, user_id=user_id), is_root=is_root), _counters(root, is_root=is_root)]
    return findings


def missing_to_set(root: Path, *, user_id: int | None = None) -> str | None:
    """Return what this process lacks to change limits and clocks of GPUs, in words; null: nothing that can be seen.

    Nothing is changed to find out; whether the driver agrees shows when it is asked to.
    """
    if (os.geteuid() if user_id is None else user_id) != 0:
        return "administrator rights: only root may, as with sudo"
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", text_of(root / STATUS) or "", re.MULTILINE)
    if match is not None and not int(match[1], 16) >> SYS_ADMIN & 1:
        return "the capability CAP_SYS_ADMIN, which this container does not give to its root"
    return None


def _limits(missing: str | None, *, is_root: bool) -> Finding:
    return check(
        "Power limits and clocks of GPUs may be changed (for sweeps; measuring needs none of it)",
        "yes" if missing is None else "no",
        "this is root" if missing is None else missing if is_root else "only root may",
        fix=None
        if missing is None
        else "start the container with --cap-add SYS_ADMIN; everything else works without"
        if is_root
        else "run the sweep with sudo; everything else works without",
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
