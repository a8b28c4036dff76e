"""Physical cores, their siblings and their memory nodes, from sysfs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from assay.machine.model import Core

if TYPE_CHECKING:
    from pathlib import Path


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return (0, 1, 2, 8) from the kernel's "0-2,8"; nothing from an empty list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def allowed_cpus(root: Path) -> frozenset[int]:
    """Return the logical CPUs this process may use, by its own affinity or as the tree under ``root`` says.

    What the kernel allows may include CPUs that are switched off; the affinity never does.
    """
    if str(root) == "/":
        return frozenset(os.sched_getaffinity(0))
    status, online = root / "proc/self/status", root / "sys/devices/system/cpu/online"
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status.read_text(), re.MULTILINE)
    allowed = frozenset(parse_cpu_list(match[1])) if match else frozenset()
    return allowed.intersection(parse_cpu_list(online.read_text())) if online.exists() else allowed


def node_of_cpu(root: Path) -> dict[int, int]:
    """Return the memory node of each logical CPU; empty where the kernel knows of no nodes."""
    nodes: dict[int, int] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in parse_cpu_list((folder / "cpulist").read_text()):
            nodes[cpu] = int(folder.name[len("node") :])
    return nodes


def _number(path: Path, otherwise: int) -> int:
    return int(path.read_text()) if path.exists() else otherwise


def physical_cores(root: Path) -> tuple[Core, ...]:
    """Return the physical cores of which this process may use at least one logical CPU, in a fixed order."""
    nodes = node_of_cpu(root)
    siblings: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(allowed_cpus(root)):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package = max(0, _number(topology / "physical_package_id", 0))
        core = _number(topology / "core_id", cpu)
        siblings.setdefault((nodes.get(cpu, 0), package, core), []).append(cpu)
    return tuple(
        Core(package=package, core=core, node=node, cpus=tuple(cpus))
        for (node, package, core), cpus in sorted(siblings.items(), key=lambda item: (item[0][0], item[1][0]))
    )
