"""Physical cores, their siblings and the memory nodes, from sysfs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from assay.machine import cgroups
from assay.machine.files import cpu_list_of, number_of, parse_cpu_list, text_of
from assay.machine.model import Core, Cpu, Node

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["allowed_cpus", "describe_cpu", "memory_nodes", "node_of_cpu", "parse_cpu_list", "physical_cores"]

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def allowed_cpus(root: Path) -> frozenset[int]:
    """Return the logical CPUs this process may use, by its affinity and its control group, as ``root`` tells.

    What the kernel allows may include CPUs that are switched off; what is returned never does.
    """
    allowed = _affinity(root)
    by_group = cgroups.cpuset(root)
    return allowed.intersection(by_group or ()) or allowed


def _affinity(root: Path) -> frozenset[int]:
    if str(root) == "/":
        return frozenset(os.sched_getaffinity(0))
    running = _running(root)
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", text_of(root / "proc/self/status") or "", re.MULTILINE)
    if match is None:
        return running
    allowed = frozenset(parse_cpu_list(match[1]))
    return allowed & running if (root / _CPUS / "online").exists() else allowed


def _running(root: Path) -> frozenset[int]:
    """Return the logical CPUs that are switched on, or all that are described where the kernel keeps no list."""
    online = cpu_list_of(root / _CPUS / "online")
    if online is not None:
        return frozenset(online)
    return frozenset(int(folder.name[len("cpu") :]) for folder in (root / _CPUS).glob("cpu[0-9]*"))


def node_of_cpu(root: Path) -> dict[int, int]:
    """Return the memory node of each logical CPU; empty where the kernel knows of no nodes."""
    return {cpu: node.id for node in memory_nodes(root) for cpu in node.cpus}


def memory_nodes(root: Path) -> tuple[Node, ...]:
    """Return the memory nodes in order; those without CPUs or without memory too."""
    folders = {int(folder.name[len("node") :]): folder for folder in (root / _NODES).glob("node[0-9]*")}
    return tuple(_node(number, folder) for number, folder in sorted(folders.items()))


def _node(number: int, folder: Path) -> Node:
    memory = re.search(r"MemTotal:\s*(\d+) kB", text_of(folder / "meminfo") or "")
    return Node(
        id=number,
        cpus=cpu_list_of(folder / "cpulist") or (),
        memory_mib=int(memory[1]) / 1024 if memory else None,
        distances=tuple(int(word) for word in (text_of(folder / "distance") or "").split() if word.isdecimal()),
    )


def physical_cores(root: Path) -> tuple[Core, ...]:
    """Return the physical cores of which this process may use at least one logical CPU, in a fixed order."""
    nodes, allowed = node_of_cpu(root), allowed_cpus(root)
    siblings: dict[tuple[int, int, str], list[int]] = {}
    for cpu in sorted(allowed | _running(root)):
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
    """Return the socket; kernels that do not number it say -1."""
    return max(0, number_of(_topology(root, cpu) / "physical_package_id") or 0)


def _core_id(root: Path, cpu: int) -> int:
    number = number_of(_topology(root, cpu) / "core_id")
    return cpu if number is None else number


def _core_name(root: Path, cpu: int) -> str:
    """Return what all siblings have in common: their list, as core numbers repeat between clusters on some machines."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        if listed := text_of(_topology(root, cpu) / name):
            return listed
    return str(_core_id(root, cpu))


def describe_cpu(root: Path) -> Cpu:
    """Return how the cores run: sockets, SMT, switched off or kept apart, governor and turbo."""
    running = _running(root)
    packages = {_package(root, cpu) for cpu in running if _topology(root, cpu).is_dir()}
    return Cpu(
        packages=len(packages) or None,
        smt=_smt(root, running),
        offline_cpus=_offline(root, running),
        isolated_cpus=cpu_list_of(root / _CPUS / "isolated") or (),
        governor=_governor(root),
        turbo=_turbo(root),
    )


def _smt(root: Path, running: frozenset[int]) -> bool | None:
    active = number_of(root / _CPUS / "smt/active")
    if active is not None:
        return bool(active)
    described = [cpu for cpu in running if _topology(root, cpu).is_dir()]
    cores = {(_package(root, cpu), _core_name(root, cpu)) for cpu in described}
    return len(described) > len(cores) if described else None


def _offline(root: Path, running: frozenset[int]) -> tuple[int, ...]:
    """Return CPUs that are present but off; a virtual machine's list of all that could be plugged in is longer."""
    present = cpu_list_of(root / _CPUS / "present")
    if present is None:
        return cpu_list_of(root / _CPUS / "offline") or ()
    return tuple(cpu for cpu in present if cpu not in running)


def _governor(root: Path) -> str | None:
    paths = (root / f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in allowed_cpus(root))
    return ", ".join(sorted({governor for path in paths if (governor := text_of(path))})) or None


def _turbo(root: Path) -> bool | None:
    """Return whether cores may run above their nominal clock, by Intel's driver or by the general switch."""
    no_turbo = number_of(root / _CPUS / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return not no_turbo
    boost = number_of(root / _CPUS / "cpufreq/boost")
    return None if boost is None else bool(boost)
