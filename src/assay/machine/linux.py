"""What Linux reports through sysfs and procfs: cores, memory nodes, control-group limits, containers, hypervisors, MPS.

A file that does not exist or cannot be read is null, never an error. Control groups of either version:

    proc/self/cgroup            sys/fs/cgroup
    0::/user/job          ──▶   user/job/cpu.max, then user/cpu.max, then cpu.max: the lowest applies
    4:cpu,cpuacct:/job    ──▶   cpu,cpuacct/job/cpu.cfs_quota_us, …

A container may see the host's name of its group while only its own group is mounted; then the mount is used.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from assay.machine.model import ControlGroupLimits, Core, Cpu, MpsStatus, NumaNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def path_exists(path: Path) -> bool:
    """Return whether a path is visible; it is not if permission is denied."""
    try:
        return path.exists()
    except OSError:
        return False


def read_text_or_none(path: Path) -> str | None:
    """Return a file's content without surrounding whitespace; null where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_number(path: Path) -> int | None:
    """Return the integer in a file; null where there is none."""
    text = read_text_or_none(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return (0, 1, 2, 8) from the kernel's "0-2,8"; empty for an empty list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def read_cpu_list(path: Path) -> tuple[int, ...] | None:
    """Return the CPUs listed in a file; null where there is no such list."""
    text = read_text_or_none(path)
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


_NO_LIMIT_BYTES = 2**60
"""Version 1 writes "no limit" as a number near 2⁶³."""
_MIB = 2**20


def read_limits(root: Path) -> ControlGroupLimits:
    """Return the limits on CPUs, CPU time and memory of this process's groups and those above them."""
    return ControlGroupLimits(
        cpus=read_cpuset(root),
        cpu_quota=_lowest(quota for folder in _cgroup_folders(root, "cpu") for quota in _quotas(folder)),
        memory_mib=_lowest(
            limit / _MIB for folder in _cgroup_folders(root, "memory") for limit in _memory_limits(folder)
        ),
    )


def read_cpuset(root: Path) -> tuple[int, ...] | None:
    """Return the CPUs that the nearest group with a cpuset allows; null where none has one."""
    for folder in _cgroup_folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := read_cpu_list(folder / name):
                return cpus
    return None


def _lowest(values: Iterable[float]) -> float | None:
    return min(values, default=None)


def _quotas(folder: Path) -> list[float]:
    """Return CPUs' worth of time from "150000 100000" or from the two files of version 1."""
    quota_and_period = (read_text_or_none(folder / "cpu.max") or "").split()
    if len(quota_and_period) == 2 and all(part.isdecimal() for part in quota_and_period):
        return [int(quota_and_period[0]) / int(quota_and_period[1])]
    quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    return [quota / period] if quota is not None and quota > 0 and period else []


def _memory_limits(folder: Path) -> list[int]:
    """Return the limit in bytes, if there is one."""
    read = (read_number(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return [limit for limit in read if limit is not None and limit < _NO_LIMIT_BYTES]


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group for a controller, the nearest first, then those above it."""
    mount, folders = root / "sys/fs/cgroup", []
    for line in (read_text_or_none(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders += _parent_folders(mount if path_exists(mount / "cgroup.controllers") else mount / "unified", path)
        elif controller in controllers.split(","):
            named = (mount / controllers, mount / controller)
            folders += _parent_folders(next((base for base in named if path_exists(base)), named[0]), path)
    return folders


def _parent_folders(base: Path, path: str) -> list[Path]:
    """Return base/a/b, base/a and base for "/a/b"; only the base where the path is not visible from here."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not path_exists(base.joinpath(*parts)):
        parts = []
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def allowed_cpus(root: Path) -> frozenset[int]:
    """Return the logical CPUs this process may use, by its affinity and its control group, under ``root``.

    What the kernel allows may include CPUs that are offline; the result never does.
    """
    allowed = _affinity(root)
    by_group = read_cpuset(root)
    return allowed.intersection(by_group or ()) or allowed


def _affinity(root: Path) -> frozenset[int]:
    if str(root) == "/":
        return frozenset(os.sched_getaffinity(0))
    running = _online_cpus(root)
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_text_or_none(root / "proc/self/status") or "", re.MULTILINE)
    if match is None:
        return running
    allowed = frozenset(parse_cpu_list(match[1]))
    return allowed & running if (root / _CPUS / "online").exists() else allowed


def _online_cpus(root: Path) -> frozenset[int]:
    """Return the logical CPUs that are online, or all that are listed where the kernel keeps no such list."""
    online = read_cpu_list(root / _CPUS / "online")
    if online is not None:
        return frozenset(online)
    return frozenset(int(folder.name[len("cpu") :]) for folder in (root / _CPUS).glob("cpu[0-9]*"))


def node_of_cpu(root: Path) -> dict[int, int]:
    """Return the memory node of each logical CPU; empty where the kernel has no nodes."""
    return {cpu: node.id for node in read_memory_nodes(root) for cpu in node.cpus}


def read_memory_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return the memory nodes in order, including those without CPUs or without memory."""
    folders = {int(folder.name[len("node") :]): folder for folder in (root / _NODES).glob("node[0-9]*")}
    return tuple(_read_node(number, folder) for number, folder in sorted(folders.items()))


def _read_node(number: int, folder: Path) -> NumaNode:
    memory = re.search(r"MemTotal:\s*(\d+) kB", read_text_or_none(folder / "meminfo") or "")
    return NumaNode(
        id=number,
        cpus=read_cpu_list(folder / "cpulist") or (),
        memory_mib=int(memory[1]) / 1024 if memory else None,
        distances=tuple(
            int(word) for word in (read_text_or_none(folder / "distance") or "").split() if word.isdecimal()
        ),
    )


def read_physical_cores(root: Path) -> tuple[Core, ...]:
    """Return the physical cores of which this process may use at least one logical CPU, in a fixed order."""
    nodes, allowed = node_of_cpu(root), allowed_cpus(root)
    siblings: dict[tuple[int, int, str], list[int]] = {}
    for cpu in sorted(allowed | _online_cpus(root)):
        siblings.setdefault((nodes.get(cpu, 0), _package(root, cpu), _core_name(root, cpu)), []).append(cpu)
    cores = [
        Core(
            package=package,
            core=_core_id(root, cpus[0]),
            node=node,
            cpus=tuple(cpu for cpu in cpus if cpu in allowed),
            foreign_cpus=tuple(cpu for cpu in cpus if cpu not in allowed),
        )
        for (node, package, _), cpus in siblings.items()
        if not allowed.isdisjoint(cpus)
    ]
    return tuple(sorted(cores, key=lambda core: (core.node, core.cpus[0])))


def _topology(root: Path, cpu: int) -> Path:
    return root / f"{_CPUS}/cpu{cpu}/topology"


def _package(root: Path, cpu: int) -> int:
    """Return the socket; kernels that do not number it report -1."""
    return max(0, read_number(_topology(root, cpu) / "physical_package_id") or 0)


def _core_id(root: Path, cpu: int) -> int:
    number = read_number(_topology(root, cpu) / "core_id")
    return cpu if number is None else number


def _core_name(root: Path, cpu: int) -> str:
    """Return a key common to all siblings: their list, as core numbers repeat between clusters on some machines."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        if listed := read_text_or_none(_topology(root, cpu) / name):
            return listed
    return str(_core_id(root, cpu))


def read_cpu(root: Path) -> Cpu:
    """Return how the cores run: sockets, SMT, offline or isolated CPUs, governor and turbo."""
    running = _online_cpus(root)
    packages = {_package(root, cpu) for cpu in running if _topology(root, cpu).is_dir()}
    return Cpu(
        packages=len(packages) or None,
        smt=_smt(root, running),
        offline_cpus=_offline(root, running),
        isolated_cpus=read_cpu_list(root / _CPUS / "isolated") or (),
        governor=_governor(root),
        turbo=_turbo(root),
    )


def _smt(root: Path, running: frozenset[int]) -> bool | None:
    active = read_number(root / _CPUS / "smt/active")
    if active is not None:
        return bool(active)
    described = [cpu for cpu in running if _topology(root, cpu).is_dir()]
    cores = {(_package(root, cpu), _core_name(root, cpu)) for cpu in described}
    return len(described) > len(cores) if described else None


def _offline(root: Path, running: frozenset[int]) -> tuple[int, ...]:
    """Return CPUs that are present but offline; the kernel's offline list includes all that could be plugged in."""
    present = read_cpu_list(root / _CPUS / "present")
    if present is None:
        return read_cpu_list(root / _CPUS / "offline") or ()
    return tuple(cpu for cpu in present if cpu not in running)


def _governor(root: Path) -> str | None:
    paths = (root / f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in allowed_cpus(root))
    return ", ".join(sorted({governor for path in paths if (governor := read_text_or_none(path))})) or None


def _turbo(root: Path) -> bool | None:
    """Return whether cores may run above their nominal clock, by Intel's driver or by the generic switch."""
    no_turbo = read_number(root / _CPUS / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return not no_turbo
    boost = read_number(root / _CPUS / "cpufreq/boost")
    return None if boost is None else bool(boost)


UNNAMED = "unnamed"

_HYPERVISOR_VENDORS = {
    "qemu": "kvm",
    "kvm": "kvm",
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "xen": "xen",
    "microsoft": "hyper-v",
    "amazon ec2": "amazon",
    "google": "google",
    "openstack": "openstack",
    "parallels": "parallels",
    "bochs": "bochs",
}
"""Firmware names → common names of hypervisors; the first match is used."""

_CONTAINER_GROUPS = {
    r"kubepods": "kubernetes",
    r"libpod-": "podman",
    r"/docker[/-]": "docker",
    r"cri-containerd|/containerd/": "containerd",
    r"crio-": "cri-o",
    r"/lxc[./]": "lxc",
}
"""Patterns in control-group names that identify a kind of container."""

_MPS_COMMAND = "nvidia-cuda-mps"
"""The kernel keeps 15 characters of nvidia-cuda-mps-control and nvidia-cuda-mps-server."""


def detect_hypervisor(root: Path) -> str | None:
    """Return the hypervisor of this virtual machine, "unnamed" where it is unknown; null where there is no sign of one.

    An x86 processor has a flag that shows whether it runs under a hypervisor. Firmware alone is trusted only on other
    processors, as bare-metal machines of a cloud carry its name too.
    """
    flags = re.search(r"^flags\s*:(.*)$", read_text_or_none(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags is not None and "hypervisor" not in flags[1].split():
        return None
    kind = read_text_or_none(root / "sys/hypervisor/type") or _firmware(root)
    return kind or (UNNAMED if flags is not None else None)


def _firmware(root: Path) -> str | None:
    folder = root / "sys/class/dmi/id"
    names = " ".join(
        read_text_or_none(folder / name) or "" for name in ("product_name", "sys_vendor", "bios_vendor")
    ).lower()
    return next((name for word, name in _HYPERVISOR_VENDORS.items() if word in names), None)


def detect_container(root: Path) -> str | None:
    """Return the kind of container this is; null where there is no sign of one."""
    if named := read_text_or_none(root / "run/systemd/container"):
        return named
    for mark, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer")):
        if path_exists(root / mark):
            return kind
    groups = " ".join(read_text_or_none(root / f"proc/{process}/cgroup") or "" for process in ("self", "1"))
    return next((kind for pattern, kind in _CONTAINER_GROUPS.items() if re.search(pattern, groups)), None)


def detect_mps(root: Path, environment: Mapping[str, str]) -> MpsStatus | None:
    """Return the signs of NVIDIA's multi-process service; null where there is none."""
    folder = root / environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps").lstrip("/")  # noqa: S108 - CUDA's own default
    daemon = any(read_text_or_none(comm) == _MPS_COMMAND for comm in (root / "proc").glob("[0-9]*/comm"))
    status = MpsStatus(daemon=daemon, pipe=path_exists(folder / "control"))
    return status if status.daemon or status.pipe else None
