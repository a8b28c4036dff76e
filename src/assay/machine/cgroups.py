"""What control groups leave to this process, of either version.

    proc/self/cgroup            sys/fs/cgroup
    0::/user/job          ──▶   user/job/cpu.max, then user/cpu.max, then cpu.max: the lowest counts
    4:cpu,cpuacct:/job    ──▶   cpu,cpuacct/job/cpu.cfs_quota_us, …

A container may be told the host's name of its group while only its own group is mounted; then the mount counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.machine.files import cpu_list_of, is_there, number_of, text_of
from assay.machine.model import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NO_LIMIT_BYTES = 2**60
"""The first version writes "no limit" as a number near 2⁶³."""
_MIB = 2**20


def limits(root: Path) -> Limits:
    """Return the limits on CPUs, CPU time and memory of this process's groups and those above them."""
    return Limits(
        cpus=cpuset(root),
        cpu_quota=_lowest(quota for folder in _folders(root, "cpu") for quota in _quotas(folder)),
        memory_mib=_lowest(limit / _MIB for folder in _folders(root, "memory") for limit in _memory_limits(folder)),
    )


def cpuset(root: Path) -> tuple[int, ...] | None:
    """Return the CPUs that the nearest group with a say allows; null where none has."""
    for folder in _folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := cpu_list_of(folder / name):
                return cpus
    return None


def _lowest(values: Iterable[float]) -> float | None:
    return min(values, default=None)


def _quotas(folder: Path) -> list[float]:
    """Return CPUs' worth of time from "150000 100000" or from the two files of the first version."""
    both = (text_of(folder / "cpu.max") or "").split()
    if len(both) == 2 and all(part.isdecimal() for part in both):
        return [int(both[0]) / int(both[1])]
    quota, period = number_of(folder / "cpu.cfs_quota_us"), number_of(folder / "cpu.cfs_period_us")
    return [quota / period] if quota is not None and quota > 0 and period else []


def _memory_limits(folder: Path) -> list[int]:
    """Return the limit in bytes, if there is one."""
    read = (number_of(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return [limit for limit in read if limit is not None and limit < _NO_LIMIT_BYTES]


def _folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group for a controller, the nearest first, then those above it."""
    mount, folders = root / "sys/fs/cgroup", []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders += _upwards(mount if is_there(mount / "cgroup.controllers") else mount / "unified", path)
        elif controller in controllers.split(","):
            named = (mount / controllers, mount / controller)
            folders += _upwards(next((base for base in named if is_there(base)), named[0]), path)
    return folders


def _upwards(base: Path, path: str) -> list[Path]:
    """Return base/a/b, base/a and base for "/a/b"; only the base where the path is not to be seen from here."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not is_there(base.joinpath(*parts)):
        parts = []
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
